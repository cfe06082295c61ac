// d of a block of 32 as the product of a half and a signed byte, which share a word; m is zero.
fn load_scale(i: u32) -> vec2<f32> {
  let word = w_scales[i];
  return vec2<f32>(unpack2x16float(word).x * f32(unpack4xI8(word).z), 0.0);
}
