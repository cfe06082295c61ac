// Writes four elements of a key or a value as halves.
fn row_of(i: u32) -> u32 { return i * (HEAD_DIM / 2u); }

fn store_key(to: u32, src: u32, position: u32, j: u32) {
  let k = new_key(src, position, j);
  k_pool[row_of(to) + rope_low(j) / 2u] = pack2x16float(k.xy);
  k_pool[row_of(to) + rope_high(j) / 2u] = pack2x16float(k.zw);
}

fn store_value(to: u32, src: u32, j: u32) {
  let v = load4(src, j);
  v_pool[row_of(to) + rope_low(j) / 2u] = pack2x16float(v.xy);
  v_pool[row_of(to) + rope_high(j) / 2u] = pack2x16float(v.zw);
}
