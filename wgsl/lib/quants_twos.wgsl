// Thirty-two two-bit quants as bytes in element order: a word for each half, whose bits 2 j and
// 2 j + 1 of byte b are element 4 j + b.
struct Quants { lo: vec4<u32>, hi: vec4<u32> }

fn load_quants(i: u32) -> Quants {
  let pairs = w_quants[i];
  let shifts = vec4<u32>(0u, 2u, 4u, 6u);
  return Quants((vec4<u32>(pairs.x) >> shifts) & vec4<u32>(0x03030303u),
                (vec4<u32>(pairs.y) >> shifts) & vec4<u32>(0x03030303u));
}

fn floats(word: u32) -> vec4<f32> { return vec4<f32>(unpack4xU8(word)); }
