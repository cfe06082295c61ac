// A block of 32 weights that are integers with a scale for each half, w = d * q + m, as eight vec4
// of w in element order.
struct Block { q: array<vec4<f32>, 8>, d: f32, m: f32 }

fn load_block(i: u32) -> Block {
  let q = load_quants(i);
  let scale = load_scale(i);
  var block = Block(array<vec4<f32>, 8>(), 1.0, 0.0);
  for (var j = 0u; j < 4u; j++) {
    block.q[j] = floats(q.lo[j]) * scale.x + scale.z;
    block.q[j + 4u] = floats(q.hi[j]) * scale.y + scale.w;
  }
  return block;
}
