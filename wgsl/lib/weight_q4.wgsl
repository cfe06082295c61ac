// A block of 32 four-bit weights, w = d * q + m, as eight vec4 in element order.
struct Block { q: array<vec4<f32>, 8>, d: f32, m: f32 }

fn load_block(i: u32) -> Block {
  let packed = w_quants[i];
  let scale = unpack2x16float(w_scales[i]);
  let lo = packed & vec4<u32>(0x0f0f0f0fu);
  let hi = (packed >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
  return Block(array<vec4<f32>, 8>(
    vec4<f32>(unpack4xU8(lo.x)), vec4<f32>(unpack4xU8(lo.y)),
    vec4<f32>(unpack4xU8(lo.z)), vec4<f32>(unpack4xU8(lo.w)),
    vec4<f32>(unpack4xU8(hi.x)), vec4<f32>(unpack4xU8(hi.y)),
    vec4<f32>(unpack4xU8(hi.z)), vec4<f32>(unpack4xU8(hi.w))), scale.x, scale.y);
}
