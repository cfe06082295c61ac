// Thirty-two half-precision weights as eight vec4 in element order.
struct Block { q: array<vec4<f32>, 8>, d: f32, m: f32 }

fn load_block(i: u32) -> Block {
  var block = Block(array<vec4<f32>, 8>(), 1.0, 0.0);
  for (var j = 0u; j < 4u; j++) {
    let words = w_quants[4u * i + j];
    block.q[2u * j] = vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
    block.q[2u * j + 1u] = vec4<f32>(unpack2x16float(words.z), unpack2x16float(words.w));
  }
  return block;
}
