// Reads bytes of keys by pairs; the first thread of a head writes all of it, for it may be the one
// that is read.
fn key_pair(row: Row, i: u32) -> vec2<f32> {
  let bytes = k_pool[row.quads + i / 2u] >> (16u * (i % 2u));
  return pair_with(bytes, scale_bits(k_pool[row.scales + i / 32u], i));
}

fn move_key(to: u32, src: u32, moved: u32, j: u32) {
  if (j > 0u) { return; }
  var head: array<vec2<f32>, KV_PAIRS>;
  for (var i = 0u; i < KV_QUADS; i++) {
    let k = moved_key(src, moved, i);
    head[rope_low(i) / 2u] = k.xy;
    head[rope_high(i) / 2u] = k.zw;
  }
  let row = row_of(to);
  var scales = array<u32, KV_SCALES>();
  for (var start = 0u; start < KV_PAIRS; start += KV_GROUP) {
    let end = min(start + KV_GROUP, KV_PAIRS);
    var top = vec2<f32>(0.0);
    for (var i = start; i < end; i++) { top = max(top, abs(head[i])); }
    let scale = scale_for(max(top.x, top.y));
    for (var i = start; i < end; i += 2u) {
      k_pool[row.quads + i / 2u] = bytes_of(vec4<f32>(head[i], head[i + 1u]), scale);
    }
    scales[start / 32u] |= scale << (start & 16u);
  }
  for (var i = 0u; i < KV_SCALES; i++) { k_pool[row.scales + i] = scales[i]; }
}
