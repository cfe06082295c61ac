// Joins the spans of an attention; a thread four elements of a query head of a token.
const QUADS = HEAD_DIM / 4u;
override Q_HEADS: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= Q_HEADS * QUADS || id.y >= step.num_tokens) { return; }
  let row = id.y * Q_HEADS + id.x / QUADS;
  y[id.y * Q_HEADS * QUADS + id.x] = joined(row, step.position + id.y + 1u, id.x % QUADS);
}
