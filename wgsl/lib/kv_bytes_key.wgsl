// Bytes of keys. A scale needs a whole group: the first thread of a head writes all of it.
fn key_pair(row: Row, i: u32) -> vec2<f32> {
  let bytes = k_pool[row.quads + i / 2u] >> (16u * (i % 2u));
  return pair_with(bytes, scale_bits(k_pool[row.scales + i / 32u], i));
}

// Place i of a head's words, which are those of its bytes, then of its scales.
fn word_of(row: Row, i: u32) -> u32 {
  return select(row.quads + i, row.scales + i - KV_QUADS, i >= KV_QUADS);
}

fn packed(head: ptr<function, array<vec2<f32>, KV_PAIRS>>) -> array<u32, KV_QUADS + KV_SCALES> {
  var words = array<u32, KV_QUADS + KV_SCALES>();
  for (var start = 0u; start < KV_PAIRS; start += KV_GROUP) {
    let end = min(start + KV_GROUP, KV_PAIRS);
    var top = vec2<f32>(0.0);
    for (var i = start; i < end; i++) { top = max(top, abs((*head)[i])); }
    let scale = scale_for(max(top.x, top.y));
    for (var i = start; i < end; i += 2u) {
      words[i / 2u] = bytes_of(vec4<f32>((*head)[i], (*head)[i + 1u]), scale);
    }
    words[KV_QUADS + start / 32u] |= scale << (start & 16u);
  }
  return words;
}

fn store_key(to: u32, src: u32, turn: u32, j: u32) {
  if (j > 0u) { return; }
  var head: array<vec2<f32>, KV_PAIRS>;
  for (var i = 0u; i < KV_QUADS; i++) {
    let k = new_key(src, turn, i);
    head[rope_low(i) / 2u] = k.xy;
    head[rope_high(i) / 2u] = k.zw;
  }
  var words = packed(&head);
  let row = row_of(to);
  for (var i = 0u; i < KV_QUADS + KV_SCALES; i++) { k_pool[word_of(row, i)] = words[i]; }
}
