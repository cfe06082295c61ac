// GGUF Q6_K blocks of 256 (128 bytes of low nibbles, 64 of high pairs, 16 signed scales, half d;
// w = d * sc * (q - 32)) into planes of 32, a thread a block of 256. In the file, 32 weights lie
// k-th among four that share bytes: nibbles k & 1 of 32 bytes, shifted by k >> 1, and pair k.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.y * job.stride + id.x;
  if (i >= job.num_blocks) { return; }
  let at = job.source + i * 210u;
  let d = raw_u16(at + 208u);
  for (var s = 0u; s < 8u; s++) {
    let n = s / 4u;
    let k = s % 4u;
    var low = vec4<u32>(0u);
    var pairs = vec2<u32>(0u);
    for (var j = 0u; j < 4u; j++) {
      let nibbles = at + n * 64u + (k & 1u) * 32u + 4u * j;
      let a = (raw_u32(nibbles) >> (4u * (k >> 1u))) & 0x0f0f0f0fu;
      let b = (raw_u32(nibbles + 16u) >> (4u * (k >> 1u))) & 0x0f0f0f0fu;
      low[j] = a | (b << 4u);
      let bits = at + 128u + n * 32u + 4u * j;
      pairs.x |= ((raw_u32(bits) >> (2u * k)) & 0x03030303u) << (2u * j);
      pairs.y |= ((raw_u32(bits + 16u) >> (2u * k)) & 0x03030303u) << (2u * j);
    }
    let block = (job.first_block + i) * 8u + s;
    quants[block] = low;
    high[block] = pairs;
    scales[block] = raw_u16(at + 192u + n * 8u + 2u * k) | (d << 16u);
  }
}
