// Thirty-two five-bit quants as bytes in element order: nibbles as in quants_nibbles.wgsl, and a word
// whose bit j of byte b is the high bit of element 4 j + b.
struct Quants { lo: vec4<u32>, hi: vec4<u32> }

fn load_quants(i: u32) -> Quants {
  let packed = w_quants[i];
  let bits = vec4<u32>(w_high[i]);
  let lo = (bits >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(0x01010101u);
  let hi = (bits >> vec4<u32>(4u, 5u, 6u, 7u)) & vec4<u32>(0x01010101u);
  return Quants((packed & vec4<u32>(0x0f0f0f0fu)) | (lo << vec4<u32>(4u)),
                ((packed >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu)) | (hi << vec4<u32>(4u)));
}

fn floats(word: u32) -> vec4<f32> { return vec4<f32>(unpack4xU8(word)); }
