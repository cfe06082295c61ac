// Thirty-two weights, the upper halves of f32 values, as eight vec4 in element order.
struct Block { q: array<vec4<f32>, 8>, d: f32, m: f32 }

fn widened(a: u32, b: u32) -> vec4<f32> {
  return bitcast<vec4<f32>>(vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}

fn load_block(i: u32) -> Block {
  var block = Block(array<vec4<f32>, 8>(), 1.0, 0.0);
  for (var j = 0u; j < 4u; j++) {
    let words = w_quants[4u * i + j];
    block.q[2u * j] = widened(words.x, words.y);
    block.q[2u * j + 1u] = widened(words.z, words.w);
  }
  return block;
}
