// GGUF Q3_K blocks of 256 (32 bytes of high bits, 64 of low pairs, 12 of scales, half d;
// w = d * (sc - 32) * (q - 4)) into the planes of Q6_K, whose w = d * sc * (q - 32), a thread a
// block of 256. In the file, 32 weights lie k-th among four that share bytes of pairs, and s-th
// among eight that share bytes of high bits.
fn six_bits(at: u32, n: u32, k: u32, j: u32) -> u32 {
  let pairs = (raw_u32(at + 32u + n * 32u + j) >> (2u * k)) & 0x03030303u;
  let bits = (raw_u32(at + j) >> (4u * n + k)) & 0x01010101u;
  return pairs + (bits << 2u) + 0x1c1c1c1cu;  // q - 4 + 32 in each byte
}

// One of the 16 scales: four bits in the first eight bytes, two in the last four.
fn scale_byte(at: u32, i: u32) -> u32 {
  let low = raw_u32(at + 96u + (i & 4u)) >> (8u * (i & 3u) + 4u * (i >> 3u));
  let high = raw_u32(at + 104u) >> (8u * (i & 3u) + 2u * (i >> 2u));
  return (((low & 15u) | ((high & 3u) << 4u)) - 32u) & 0xffu;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.y * job.stride + id.x;
  if (i >= job.num_blocks) { return; }
  let at = job.source + i * 110u;
  let d = raw_u16(at + 108u);
  for (var s = 0u; s < 8u; s++) {
    var low = vec4<u32>(0u);
    var pairs = vec2<u32>(0u);
    for (var j = 0u; j < 4u; j++) {
      let a = six_bits(at, s / 4u, s % 4u, 4u * j);
      let b = six_bits(at, s / 4u, s % 4u, 4u * j + 16u);
      low[j] = (a & 0x0f0f0f0fu) | ((b & 0x0f0f0f0fu) << 4u);
      pairs.x |= ((a >> 4u) & 0x03030303u) << (2u * j);
      pairs.y |= ((b >> 4u) & 0x03030303u) << (2u * j);
    }
    let block = (job.first_block + i) * 8u + s;
    quants[block] = low;
    high[block] = pairs;
    scales[block] = scale_byte(at, 2u * s) | (scale_byte(at, 2u * s + 1u) << 8u) | (d << 16u);
  }
}
