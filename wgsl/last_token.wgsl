// y = the row of x that belongs to the last token of the step.
override K: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < K / 4u) { y[id.x] = x[(step.num_tokens - 1u) * (K / 4u) + id.x]; }
}
