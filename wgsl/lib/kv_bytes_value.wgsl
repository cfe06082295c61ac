// Bytes of values, written as those of keys.
fn store_value(to: u32, src: u32, j: u32) {
  if (j > 0u) { return; }
  var head: array<vec2<f32>, KV_PAIRS>;
  for (var i = 0u; i < KV_QUADS; i++) {
    let v = load4(src, i);
    head[rope_low(i) / 2u] = v.xy;
    head[rope_high(i) / 2u] = v.zw;
  }
  var words = packed(&head);
  let row = row_of(to);
  for (var i = 0u; i < KV_QUADS + KV_SCALES; i++) { v_pool[word_of(row, i)] = words[i]; }
}
