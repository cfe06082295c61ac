// The signed bytes that IQ4 quants stand for (kvalues_iq4nl in ggml-common.h).
var<private> IQ4: array<i32, 16> = array<i32, 16>(
  -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);

// Those of the lower nibbles of four bytes.
fn iq4_bytes(nibbles: u32) -> u32 {
  let q = unpack4xU8(nibbles & 0x0f0f0f0fu);
  return pack4xI8(vec4<i32>(IQ4[q.x], IQ4[q.y], IQ4[q.z], IQ4[q.w]));
}
