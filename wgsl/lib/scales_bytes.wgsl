// d of both halves of a block of 32 as products of a half and two signed bytes sc, which share a
// word; m is zero.
const MINIMA = false;

fn load_scale(i: u32) -> vec4<f32> {
  let word = w_scales[i];
  return vec4<f32>(unpack2x16float(word).y * vec2<f32>(unpack4xI8(word).xy), 0.0, 0.0);
}
