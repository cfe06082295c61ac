// A block of 32 two-bit weights, w = d * sc * q - dmin * m, with a byte of scales for each half of
// the block, sc below and m above: as eight vec4 of w in element order.
struct Block { q: array<vec4<f32>, 8>, d: f32, m: f32 }

fn load_block(i: u32) -> Block {
  let pairs = w_quants[i];
  let packed = w_scales[i];
  let bytes = vec2<u32>(packed.x, packed.x >> 8u);
  let halves = unpack2x16float(packed.y);
  let d = halves.x * vec2<f32>(bytes & vec2<u32>(15u));
  let m = halves.y * vec2<f32>((bytes >> vec2<u32>(4u)) & vec2<u32>(15u));
  var block = Block(array<vec4<f32>, 8>(), 1.0, 0.0);
  for (var j = 0u; j < 4u; j++) {
    let a = (pairs.x >> (2u * j)) & 0x03030303u;
    let b = (pairs.y >> (2u * j)) & 0x03030303u;
    block.q[j] = vec4<f32>(unpack4xU8(a)) * d.x - m.x;
    block.q[j + 4u] = vec4<f32>(unpack4xU8(b)) * d.y - m.y;
  }
  return block;
}
