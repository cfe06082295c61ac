// Products of a block of weights with a block of activations, TERMS bytes each, by dot4I8Packed.
struct Term { lo: vec4<u32>, hi: vec4<u32> }
struct Acts { first: Term, second: Term }

fn load_acts(i: u32) -> Acts {
  var acts: Acts;
  let at = i * TERMS * 2u;
  acts.first = Term(x_quants[at], x_quants[at + 1u]);
  if (TERMS == 2u) { acts.second = Term(x_quants[at + 2u], x_quants[at + 3u]); }
  return acts;
}

fn term_dot(w: PackedBlock, x: Term) -> i32 {
  return dot4I8Packed(w.lo.x, x.lo.x) + dot4I8Packed(w.lo.y, x.lo.y)
       + dot4I8Packed(w.lo.z, x.lo.z) + dot4I8Packed(w.lo.w, x.lo.w)
       + dot4I8Packed(w.hi.x, x.hi.x) + dot4I8Packed(w.hi.y, x.hi.y)
       + dot4I8Packed(w.hi.z, x.hi.z) + dot4I8Packed(w.hi.w, x.hi.w);
}

fn block_dot(w: PackedBlock, x: Acts) -> i32 {
  if (TERMS == 1u) { return term_dot(w, x.first); }
  return term_dot(w, x.first) * 128 + term_dot(w, x.second);
}
