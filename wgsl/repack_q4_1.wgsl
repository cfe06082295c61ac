// GGUF Q4_1 blocks (half d, half m, 16 bytes of nibbles; w = d * q + m) into planes.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.y * job.stride + id.x;
  if (i >= job.num_blocks) { return; }
  let at = job.source + i * 20u;
  quants[job.first_block + i] =
    vec4<u32>(raw_u32(at + 4u), raw_u32(at + 8u), raw_u32(at + 12u), raw_u32(at + 16u));
  scales[job.first_block + i] = raw_u32(at);
}
