// The pools hold halves: keys, read by pairs and written by four elements.
alias Row = u32;

fn row_of(i: u32) -> Row { return i * (HEAD_DIM / 2u); }
fn key_pair(row: Row, i: u32) -> vec2<f32> { return unpack2x16float(k_pool[row + i]); }

fn store_key(to: u32, src: u32, turn: u32, j: u32) {
  let row = row_of(to);
  let k = new_key(src, turn, j);
  k_pool[row + rope_low(j) / 2u] = pack2x16float(k.xy);
  k_pool[row + rope_high(j) / 2u] = pack2x16float(k.zw);
}
