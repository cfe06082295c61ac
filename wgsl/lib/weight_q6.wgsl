// A block of 32 six-bit weights, w = d * sc * (q - 32), with a scale sc for each half of the
// block: as eight vec4 of sc * (q - 32) in element order.
struct Block { q: array<vec4<f32>, 8>, d: f32, m: f32 }

fn load_block(i: u32) -> Block {
  let low = w_quants[i];
  let high = w_high[i];
  let packed = w_scales[i];
  let scale = vec2<f32>(unpack4xI8(packed).xy);
  var block = Block(array<vec4<f32>, 8>(), unpack2x16float(packed).y, 0.0);
  for (var j = 0u; j < 4u; j++) {
    let a = (low[j] & 0x0f0f0f0fu) | (((high.x >> (2u * j)) & 0x03030303u) << 4u);
    let b = ((low[j] >> 4u) & 0x0f0f0f0fu) | (((high.y >> (2u * j)) & 0x03030303u) << 4u);
    block.q[j] = (vec4<f32>(unpack4xU8(a)) - 32.0) * scale.x;
    block.q[j + 4u] = (vec4<f32>(unpack4xU8(b)) - 32.0) * scale.y;
  }
  return block;
}
