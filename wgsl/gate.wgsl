// y = act(gate) * up, rows of x holding gate, then up; a thread an element.
override F: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= F || id.y >= step.num_tokens) { return; }
  let at = id.y * 2u * F + id.x;
  y[id.y * F + id.x] = act(x[at]) * x[at + F];
}
