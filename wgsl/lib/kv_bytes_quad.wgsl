// Bytes read four at a time: they, and the word with their scale.
fn key_bits(row: Row, i: u32) -> vec2<u32> {
  return vec2<u32>(k_pool[row.quads + i], k_pool[row.scales + i / 16u]);
}
fn value_bits(row: Row, i: u32) -> vec2<u32> {
  return vec2<u32>(v_pool[row.quads + i], v_pool[row.scales + i / 16u]);
}
fn quad_of(bits: vec2<u32>, i: u32) -> vec4<f32> {
  return quad_with(bits.x, scale_bits(bits.y, 2u * i));
}
