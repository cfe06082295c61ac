// GGUF IQ4_NL blocks (half d, 16 bytes of nibbles; w = d * IQ4[q]) into planes of signed bytes
// IQ4[q], see repack_q8_0.wgsl.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.y * job.stride + id.x;
  if (i >= job.num_blocks) { return; }
  let at = job.source + i * 18u;
  let block = job.first_block + i;
  for (var j = 0u; j < 4u; j++) {
    let packed = raw_u32(at + 2u + 4u * j);
    quants[2u * block][j] = iq4_bytes(packed);
    quants[2u * block + 1u][j] = iq4_bytes(packed >> 4u);
  }
  atomicOr(&scales[block >> 1u], raw_u16(at) << (16u * (block & 1u)));
}
