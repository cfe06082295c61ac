// GGUF Q5_0 blocks (half d, a word with a high bit for each weight, 16 bytes of low nibbles;
// w = d * (q - 16)) into planes of signed bytes q - 16, see repack_q8_0.wgsl.
fn signed_bytes(nibbles: u32, bits: u32) -> u32 {
  let high = (vec4<u32>(bits) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u);
  return pack4xI8(vec4<i32>(unpack4xU8(nibbles & 0x0f0f0f0fu) + 16u * high) - 16);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.y * job.stride + id.x;
  if (i >= job.num_blocks) { return; }
  let at = job.source + i * 22u;
  let block = job.first_block + i;
  let bits = raw_u32(at + 2u);
  for (var j = 0u; j < 4u; j++) {
    let packed = raw_u32(at + 6u + 4u * j);
    quants[2u * block][j] = signed_bytes(packed, bits >> (4u * j));
    quants[2u * block + 1u][j] = signed_bytes(packed >> 4u, bits >> (16u + 4u * j));
  }
  atomicOr(&scales[block >> 1u], raw_u16(at) << (16u * (block & 1u)));
}
