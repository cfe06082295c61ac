// A block of 32 eight-bit weights, w = d * q, as signed bytes in element order.
struct PackedBlock { lo: vec4<u32>, hi: vec4<u32>, d: f32, m: f32 }

fn load_packed(i: u32) -> PackedBlock {
  let scale = unpack2x16float(w_scales[i >> 1u]);
  return PackedBlock(w_quants[2u * i], w_quants[2u * i + 1u],
                     select(scale.x, scale.y, (i & 1u) == 1u), 0.0);
}
