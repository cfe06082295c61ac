// d of a block of 32, of which two share a word; m is zero.
fn load_scale(i: u32) -> vec2<f32> {
  let both = unpack2x16float(w_scales[i >> 1u]);
  return vec2<f32>(select(both.x, both.y, (i & 1u) == 1u), 0.0);
}
