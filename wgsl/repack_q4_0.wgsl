// GGUF Q4_0 blocks (half d, 16 bytes of nibbles; w = d * (q - 8)) into planes, a thread a block.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.y * job.stride + id.x;
  if (i >= job.num_blocks) { return; }
  let at = job.source + i * 18u;
  let d = unpack2x16float(raw_u16(at)).x;
  quants[job.first_block + i] =
    vec4<u32>(raw_u32(at + 2u), raw_u32(at + 6u), raw_u32(at + 10u), raw_u32(at + 14u));
  scales[job.first_block + i] = pack2x16float(vec2<f32>(d, -8.0 * d));
}
