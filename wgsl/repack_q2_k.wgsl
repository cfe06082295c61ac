// GGUF Q2_K blocks of 256 (16 bytes of scales, 64 of pairs, halves d and dmin; see
// lib/scales_twos.wgsl) into planes, a thread a block of 256. In the file, 32 weights lie k-th among
// four that share bytes.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.y * job.stride + id.x;
  if (i >= job.num_blocks) { return; }
  let at = job.source + i * 84u;
  let halves = raw_u32(at + 80u);
  for (var s = 0u; s < 8u; s++) {
    var pairs = vec2<u32>(0u);
    for (var j = 0u; j < 4u; j++) {
      let bytes = at + 16u + (s >> 2u) * 32u + 4u * j;
      pairs.x |= ((raw_u32(bytes) >> (2u * (s & 3u))) & 0x03030303u) << (2u * j);
      pairs.y |= ((raw_u32(bytes + 16u) >> (2u * (s & 3u))) & 0x03030303u) << (2u * j);
    }
    let block = (job.first_block + i) * 8u + s;
    quants[block] = pairs;
    scales[block] = vec2<u32>(raw_u16(at + 2u * s), halves);
  }
}
