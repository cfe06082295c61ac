// A block of 32 eight-bit weights, w = d * q, as eight vec4 in element order.
struct Block { q: array<vec4<f32>, 8>, d: f32, m: f32 }

fn load_block(i: u32) -> Block {
  let a = w_quants[2u * i];
  let b = w_quants[2u * i + 1u];
  let scale = unpack2x16float(w_scales[i >> 1u]);
  return Block(array<vec4<f32>, 8>(
    vec4<f32>(unpack4xI8(a.x)), vec4<f32>(unpack4xI8(a.y)),
    vec4<f32>(unpack4xI8(a.z)), vec4<f32>(unpack4xI8(a.w)),
    vec4<f32>(unpack4xI8(b.x)), vec4<f32>(unpack4xI8(b.y)),
    vec4<f32>(unpack4xI8(b.z)), vec4<f32>(unpack4xI8(b.w))),
    select(scale.x, scale.y, (i & 1u) == 1u), 0.0);
}
