// Thirty-two four-bit quants as bytes in element order: a byte of the plane holds one of the first
// half below and one of the second half above.
struct Quants { lo: vec4<u32>, hi: vec4<u32> }

fn load_quants(i: u32) -> Quants {
  let packed = w_quants[i];
  return Quants(packed & vec4<u32>(0x0f0f0f0fu), (packed >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu));
}

fn floats(word: u32) -> vec4<f32> { return vec4<f32>(unpack4xU8(word)); }
