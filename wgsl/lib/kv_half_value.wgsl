// The pools hold halves: values, written by four elements.
fn store_value(to: u32, src: u32, j: u32) {
  let row = row_of(to);
  let v = load4(src, j);
  v_pool[row + rope_low(j) / 2u] = pack2x16float(v.xy);
  v_pool[row + rope_high(j) / 2u] = pack2x16float(v.zw);
}
