// A block of 32 four-bit weights, w = d * q + m, as bytes in element order.
struct PackedBlock { lo: vec4<u32>, hi: vec4<u32>, d: f32, m: f32 }

fn load_packed(i: u32) -> PackedBlock {
  let packed = w_quants[i];
  let scale = unpack2x16float(w_scales[i]);
  return PackedBlock(packed & vec4<u32>(0x0f0f0f0fu),
                     (packed >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu), scale.x, scale.y);
}
