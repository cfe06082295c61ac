// Causal attention over the block table without barriers: a thread one query head of one token,
// with the softmax kept running (Milakov and Gimelshein, "Online normalizer calculation").
override Q_HEADS: u32;
override SCALE: f32;

const QUADS = HEAD_DIM / 4u;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x >= Q_HEADS || id.y >= step.num_tokens) { return; }
  let kv_head = id.x / (Q_HEADS / KV_HEADS);
  let base = (id.y * Q_HEADS + id.x) * QUADS;
  var query: array<vec4<f32>, QUADS>;
  var acc: array<vec4<f32>, QUADS>;
  for (var i = 0u; i < QUADS; i++) { query[i] = q[base + i] * SCALE; }
  var top = -3.0e38;
  var total = 0.0;
  let length = step.position + id.y + 1u;
  for (var t = seen_from(length); t < length; t++) {
    let row = row_of(paged(t, kv_head));
    var score = 0.0;
    for (var i = 0u; i < QUADS; i++) {
      score += dot(query[i], quad_of(key_bits(row, i), i));
    }
    let new_top = max(top, score);
    let fade = exp(top - new_top);
    let weight = exp(score - new_top);
    top = new_top;
    total = total * fade + weight;
    for (var i = 0u; i < QUADS; i++) {
      acc[i] = acc[i] * fade + quad_of(value_bits(row, i), i) * weight;
    }
  }
  for (var i = 0u; i < QUADS; i++) { y[base + i] = acc[i] / total; }
}
