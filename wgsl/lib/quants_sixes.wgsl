// Thirty-two six-bit quants, less 32, as signed bytes in element order: four bits each as in
// quants_nibbles.wgsl, and a word with two more for each half: bits 2 j and 2 j + 1 of byte b are
// those of element 4 j + b.
struct Quants { lo: vec4<u32>, hi: vec4<u32> }

const SHIFTS = vec4<u32>(0u, 2u, 4u, 6u);

// q - 32 in each byte: with its sixth bit turned, that is q with the sign in there.
fn centred(low: vec4<u32>, high: vec4<u32>) -> vec4<u32> {
  let turned = (low | (high << vec4<u32>(4u))) ^ vec4<u32>(0x20202020u);
  return turned | ((turned & vec4<u32>(0x20202020u)) * 6u);
}

fn load_quants(i: u32) -> Quants {
  let low = w_quants[i];
  let high = w_high[i];
  return Quants(centred(low & vec4<u32>(0x0f0f0f0fu),
                        (vec4<u32>(high.x) >> SHIFTS) & vec4<u32>(0x03030303u)),
                centred((low >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu),
                        (vec4<u32>(high.y) >> SHIFTS) & vec4<u32>(0x03030303u)));
}

fn floats(word: u32) -> vec4<f32> { return vec4<f32>(unpack4xI8(word)); }
