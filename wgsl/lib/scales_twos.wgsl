// d and m of both halves of a block of 32, w = d * sc * q - dmin * m: a word with a byte for each
// half, sc below and m above, and halves d and dmin.
const MINIMA = true;

fn load_scale(i: u32) -> vec4<f32> {
  let packed = w_scales[i];
  let bytes = vec2<u32>(packed.x, packed.x >> 8u);
  let halves = unpack2x16float(packed.y);
  return vec4<f32>(halves.x * vec2<f32>(bytes & vec2<u32>(15u)),
                   -halves.y * vec2<f32>((bytes >> vec2<u32>(4u)) & vec2<u32>(15u)));
}
