// Products of a block of 32 four-bit weights, w = d * q + m, with activations laid out in pairs, two
// weights a multiplication. With q0 and q2 in the halves of a word, and x0 and x2 crossed,
//   (q0 + q2 2^16) (x2 + x0 2^16) = q0 x2 + (q0 x0 + q2 x2) 2^16   modulo 2^32,
// so that the upper half of a sum of such words is the product wanted, as long as neither half
// overflows: the lower one is within 2^15 for 16 words, the upper one for 8.
struct PackedBlock { a: vec4<i32>, b: vec4<i32>, c: vec4<i32>, d: vec4<i32>, scale: Scale }
struct Term { a: vec4<i32>, b: vec4<i32>, c: vec4<i32>, d: vec4<i32> }
struct Acts { first: Term, second: Term, scale: XScale }

fn pairs(word: u32) -> vec4<i32> {
  return bitcast<vec4<i32>>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 4u, 12u)) & vec4<u32>(0x000f000fu));
}

fn load_packed(i: u32) -> PackedBlock {
  let q = w_quants[i];
  return PackedBlock(pairs(q.x), pairs(q.y), pairs(q.z), pairs(q.w), load_scale(i));
}

fn load_term(i: u32) -> Term {
  return Term(bitcast<vec4<i32>>(x_quants[4u * i]), bitcast<vec4<i32>>(x_quants[4u * i + 1u]),
              bitcast<vec4<i32>>(x_quants[4u * i + 2u]), bitcast<vec4<i32>>(x_quants[4u * i + 3u]));
}

fn load_acts(i: u32) -> Acts {
  var acts: Acts;
  acts.first = load_term(i * TERMS);
  if (TERMS == 2u) { acts.second = load_term(i * TERMS + 1u); }
  acts.scale = load_x_scale(i);
  return acts;
}

fn upper_half(sum: i32) -> i32 { return (sum + 0x8000) >> 16u; }

fn term_dot(w: PackedBlock, x: Term) -> i32 {
  let s = w.a * x.a + w.b * x.b + w.c * x.c + w.d * x.d;
  return upper_half(s.x + s.y) + upper_half(s.z + s.w);
}

fn block_dot(w: PackedBlock, x: Acts) -> Dot {
  if (TERMS == 1u) { return term_dot(w, x.first); }
  return term_dot(w, x.first) * 128 + term_dot(w, x.second);
}
