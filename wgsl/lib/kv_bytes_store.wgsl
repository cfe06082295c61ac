// Writes four neighbouring elements of a key or a value as bytes. Each thread finds the scale of its
// group by itself: that is more work than to wait for others, but they may not be in its workgroup.
fn new_pair(is_key: bool, src: u32, position: u32, i: u32) -> vec2<f32> {
  if (!is_key) { return vec2<f32>(qkv[src + 2u * i], qkv[src + 2u * i + 1u]); }
  let k = new_key(src, position, rope_quad(i));
  return select(k.xy, k.zw, rope_second(i));
}

// The scale of the group that begins at a pair; 0 for one past the head's end.
fn new_scale(is_key: bool, src: u32, position: u32, start: u32) -> u32 {
  var top = vec2<f32>(0.0);
  for (var i = start; i < min(start + KV_GROUP, KV_PAIRS); i++) {
    top = max(top, abs(new_pair(is_key, src, position, i)));
  }
  return scale_for(max(top.x, top.y));
}

fn put(is_key: bool, at: u32, word: u32) {
  if (is_key) { k_pool[at] = word; } else { v_pool[at] = word; }
}

fn store(is_key: bool, to: u32, src: u32, position: u32, j: u32) {
  let row = row_of(to);
  let start = 2u * j / KV_GROUP * KV_GROUP;
  let scale = new_scale(is_key, src, position, start);
  let low = new_pair(is_key, src, position, 2u * j);
  let high = new_pair(is_key, src, position, 2u * j + 1u);
  put(is_key, row.quads + j, bytes_of(vec4<f32>(low, high), scale));
  if (j % 16u == 0u) {
    let next = new_scale(is_key, src, position, start + KV_GROUP);
    put(is_key, row.scales + j / 16u, scale | (next << 16u));
  }
}

fn store_key(to: u32, src: u32, position: u32, j: u32) { store(true, to, src, position, j); }
fn store_value(to: u32, src: u32, j: u32) { store(false, to, src, 0u, j); }
