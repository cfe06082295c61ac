// Activations to integers per block of 32 (see lib/quantize_block.wgsl), a thread a block.
override K: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= K / 32u || id.y >= step.num_tokens) { return; }
  let i = id.y * (K / 32u) + id.x;
  var block: array<vec4<f32>, 8>;
  for (var j = 0u; j < 8u; j++) { block[j] = x[i * 8u + j]; }
  quantize_block(i, block);
}
