// Reads halves of keys by pairs, and writes four elements.
fn row_of(i: u32) -> u32 { return i * (HEAD_DIM / 2u); }
fn key_pair(row: u32, i: u32) -> vec2<f32> { return unpack2x16float(k_pool[row + i]); }

fn move_key(to: u32, src: u32, moved: u32, j: u32) {
  let k = moved_key(src, moved, j);
  k_pool[row_of(to) + rope_low(j) / 2u] = pack2x16float(k.xy);
  k_pool[row_of(to) + rope_high(j) / 2u] = pack2x16float(k.zw);
}
