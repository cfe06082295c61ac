// The pools hold halves, read four at a time.
alias Row = u32;

fn row_of(i: u32) -> Row { return i * (HEAD_DIM / 4u); }
fn key_bits(row: Row, i: u32) -> vec2<u32> { return k_pool[row + i]; }
fn value_bits(row: Row, i: u32) -> vec2<u32> { return v_pool[row + i]; }
fn quad_of(bits: vec2<u32>, i: u32) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(bits.x), unpack2x16float(bits.y));
}
