// Keys read eight at a time, values by pairs; those of the new token wait in workgroup memory: as
// f32, K before V, then as bytes, a word a pair with its scale in the upper half.
var<workgroup> fresh: array<vec2<f32>, 2u * KV_PAIRS>;
var<workgroup> new_k: array<u32, KV_PAIRS>;
var<workgroup> new_v: array<u32, KV_PAIRS>;

fn put_new(i: u32, k: vec2<f32>, v: vec2<f32>) {
  fresh[i] = k;
  fresh[KV_PAIRS + i] = v;
}

// The scale of the group that begins at a pair of K (first 0) or V; 0 for one past the head's end.
fn new_scale(first: u32, start: u32) -> u32 {
  var top = vec2<f32>(0.0);
  for (var i = start; i < min(start + KV_GROUP, KV_PAIRS); i++) { top = max(top, abs(fresh[first + i])); }
  return scale_for(max(top.x, top.y));
}

fn finish_new(lane: u32, row: Row, store: bool) {
  for (var at = lane; at < 2u * KV_QUADS; at += WORKGROUP) {
    let is_key = at < KV_QUADS;
    let first = select(KV_PAIRS, 0u, is_key);
    let quad = at % KV_QUADS;
    let i = 2u * quad;
    let scale = new_scale(first, i / KV_GROUP * KV_GROUP);
    let bytes = bytes_of(vec4<f32>(fresh[first + i], fresh[first + i + 1u]), scale);
    let low = (bytes & 0xffffu) | (scale << 16u);
    let high = (bytes >> 16u) | (scale << 16u);
    if (is_key) {
      new_k[i] = low;
      new_k[i + 1u] = high;
    } else {
      new_v[i] = low;
      new_v[i + 1u] = high;
    }
    if (!store) { continue; }
    if (is_key) { k_pool[row.quads + quad] = bytes; } else { v_pool[row.quads + quad] = bytes; }
    if (quad % 16u == 0u) {
      let scales = scale | (new_scale(first, i + KV_GROUP) << 16u);
      let to = row.scales + quad / 16u;
      if (is_key) { k_pool[to] = scales; } else { v_pool[to] = scales; }
    }
  }
}

fn key_bits(row: Row, octet: u32) -> vec3<u32> {
  let at = row.quads + 2u * octet;
  let scale = scale_bits(k_pool[row.scales + octet / 8u], 4u * octet);
  return vec3<u32>(k_pool[at], k_pool[at + 1u], scale);
}
fn new_key_bits(octet: u32) -> vec3<u32> {
  let i = 4u * octet;
  let low = (new_k[i] & 0xffffu) | (new_k[i + 1u] << 16u);
  let high = (new_k[i + 2u] & 0xffffu) | (new_k[i + 3u] << 16u);
  return vec3<u32>(low, high, new_k[i] >> 16u);
}
fn low_quad(bits: vec3<u32>) -> vec4<f32> { return quad_with(bits.x, bits.z); }
fn high_quad(bits: vec3<u32>) -> vec4<f32> { return quad_with(bits.y, bits.z); }
fn value_bits(row: Row, pair: u32) -> u32 {
  let bytes = v_pool[row.quads + pair / 2u] >> (16u * (pair % 2u));
  return (bytes & 0xffffu) | (scale_bits(v_pool[row.scales + pair / 32u], pair) << 16u);
}
fn pair_of(bits: u32) -> vec2<f32> { return pair_with(bits, bits >> 16u); }
