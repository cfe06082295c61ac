// Products of a block of weights with a block of activations, TERMS bytes each, by dot4I8Packed.
struct Term { lo: vec4<u32>, hi: vec4<u32> }
struct Acts { first: Term, second: Term, scale: XScale }

fn load_acts(i: u32) -> Acts {
  var acts: Acts;
  let at = i * TERMS * 2u;
  acts.first = Term(x_quants[at], x_quants[at + 1u]);
  if (TERMS == 2u) { acts.second = Term(x_quants[at + 2u], x_quants[at + 3u]); }
  acts.scale = load_x_scale(i);
  return acts;
}

fn term_dot(w: PackedBlock, x: Term) -> Dot {
  return both_halves(dot16(w.lo, x.lo), dot16(w.hi, x.hi));
}

fn block_dot(w: PackedBlock, x: Acts) -> Dot {
  if (TERMS == 1u) { return term_dot(w, x.first); }
  return term_dot(w, x.first) * 128 + term_dot(w, x.second);
}
