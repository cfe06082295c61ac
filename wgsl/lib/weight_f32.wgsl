// Thirty-two single-precision weights as eight vec4 in element order.
struct Block { q: array<vec4<f32>, 8>, d: f32, m: f32 }

fn load_block(i: u32) -> Block {
  var block = Block(array<vec4<f32>, 8>(), 1.0, 0.0);
  for (var j = 0u; j < 8u; j++) { block.q[j] = w_quants[8u * i + j]; }
  return block;
}
