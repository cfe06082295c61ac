// GGUF Q5_K blocks of 256 (halves d and dmin, 12 bytes of scales, 32 bytes of high bits, 128 bytes
// of nibbles as in repack_q4_k.wgsl) into planes, a thread a block of 256. Bit s of high byte e
// belongs to weight e of block s of 32.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.y * job.stride + id.x;
  if (i >= job.num_blocks) { return; }
  let at = job.source + i * 176u;
  let block = job.first_block + i;
  scales[block] = vec4<u32>(raw_u32(at), raw_u32(at + 4u), raw_u32(at + 8u), raw_u32(at + 12u));
  for (var s = 0u; s < 8u; s++) {
    var bits = 0u;
    for (var j = 0u; j < 8u; j++) {
      bits |= ((raw_u32(at + 16u + 4u * j) >> s) & 0x01010101u) << j;
    }
    high[8u * block + s] = bits;
    for (var j = 0u; j < 4u; j++) {
      let nibbles = at + 48u + (s >> 1u) * 32u + 4u * j;
      let a = (raw_u32(nibbles) >> (4u * (s & 1u))) & 0x0f0f0f0fu;
      let b = (raw_u32(nibbles + 16u) >> (4u * (s & 1u))) & 0x0f0f0f0fu;
      quants[8u * block + s][j] = a | (b << 4u);
    }
  }
}
