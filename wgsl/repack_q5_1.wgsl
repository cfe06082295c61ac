// GGUF Q5_1 blocks (halves d and m, a word with a high bit for each weight, 16 bytes of low nibbles;
// w = d * q + m) into planes as lib/quants_fives.wgsl takes them.
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.y * job.stride + id.x;
  if (i >= job.num_blocks) { return; }
  let at = job.source + i * 24u;
  let block = job.first_block + i;
  quants[block] =
    vec4<u32>(raw_u32(at + 8u), raw_u32(at + 12u), raw_u32(at + 16u), raw_u32(at + 20u));
  scales[block] = raw_u32(at);
  let bits = raw_u32(at + 4u);
  var spread = 0u;
  for (var e = 0u; e < 32u; e++) { spread |= ((bits >> e) & 1u) << (8u * (e & 3u) + (e >> 2u)); }
  high[block] = spread;
}
