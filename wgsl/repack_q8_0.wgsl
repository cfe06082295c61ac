// GGUF Q8_0 blocks (half d, 32 signed bytes; w = d * q) into planes. Two blocks share a word of
// scales and may arrive in different jobs, hence the atomic.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.y * job.stride + id.x;
  if (i >= job.num_blocks) { return; }
  let at = job.source + i * 34u;
  let block = job.first_block + i;
  for (var j = 0u; j < 2u; j++) {
    let src = at + 2u + 16u * j;
    quants[2u * block + j] =
      vec4<u32>(raw_u32(src), raw_u32(src + 4u), raw_u32(src + 8u), raw_u32(src + 12u));
  }
  atomicOr(&scales[block >> 1u], raw_u16(at) << (16u * (block & 1u)));
}
