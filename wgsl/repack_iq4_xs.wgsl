// GGUF IQ4_XS blocks of 256 (half d, 2 bytes with two bits of each of eight scales, 4 bytes with
// four more, 128 bytes of nibbles; w = d * (sc - 32) * IQ4[q]) into planes of signed bytes IQ4[q],
// a thread a block of 256. Each 16 bytes hold 32 weights, the first half of them below.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.y * job.stride + id.x;
  if (i >= job.num_blocks) { return; }
  let at = job.source + i * 136u;
  let d = raw_u16(at);
  for (var s = 0u; s < 8u; s++) {
    let block = (job.first_block + i) * 8u + s;
    for (var j = 0u; j < 4u; j++) {
      let packed = raw_u32(at + 8u + 16u * s + 4u * j);
      quants[2u * block][j] = iq4_bytes(packed);
      quants[2u * block + 1u][j] = iq4_bytes(packed >> 4u);
    }
    let low = (raw_u32(at + 4u) >> (4u * s)) & 15u;
    let high = (raw_u16(at + 2u) >> (2u * s)) & 3u;
    scales[block] = d | ((((low | (high << 4u)) - 32u) & 0xffu) << 16u);
  }
}
