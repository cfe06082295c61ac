// y[t] = W[tokens[t]] * SCALE, dequantized; a thread a block of 32.
override K: u32;
override SCALE: f32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= K / 32u || id.y >= step.num_tokens) { return; }
  let w = load_block(tokens[id.y] * (K / 32u) + id.x);
  for (var j = 0u; j < 8u; j++) {
    y[(id.y * (K / 32u) + id.x) * 8u + j] = (w.q[j] * w.d + w.m) * SCALE;
  }
}
