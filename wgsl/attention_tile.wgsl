// Causal attention of many tokens over the block table (flash attention), split over the context:
// a workgroup takes one span of it for the query heads of TOKENS tokens that share one KV head.
// LANES neighbouring lanes of a subgroup share a row, a query head of a token; every LANES-th quad
// of elements belongs to the same lane. Keys and values come through workgroup memory, TILE tokens
// at a time, the next ones already on their way; the softmax is kept running, KEYS keys at a time.
override Q_HEADS: u32;
override SCALE: f32;

const QUADS = HEAD_DIM / 4u;
const OWN = QUADS / LANES;
const KEYS = 8u;
const FETCH = (TILE * QUADS + WORKGROUP - 1u) / WORKGROUP;  // quads of a tile that a lane brings
const LOWEST = -3.0e38;

var<workgroup> keys: array<vec4<f32>, TILE * QUADS>;
var<workgroup> values: array<vec4<f32>, TILE * QUADS>;

// The row of the pools that quad i of a tile lies in; past the end, some row inside.
fn place(tile: u32, i: u32, end: u32, head: u32) -> Row {
  return row_of(paged(min(tile + i / QUADS, end - 1u), head));
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let kv_head = group.x;
  let first_token = group.y * TOKENS;
  let last = step.num_tokens - 1u;
  let span = span_origin() + group.z * span_size();
  let start = max(span, seen_from(step.position + first_token + 1u));
  let end = min(span + span_size(), step.position + min(first_token + TOKENS - 1u, last) + 1u);
  if (start >= end) { return; }

  let row = lane / LANES;
  let part = lane % LANES;
  let token = min(first_token + row / GROUP, last);
  let head = kv_head * GROUP + row % GROUP;
  let own_length = step.position + token + 1u;
  let own_first = seen_from(own_length);
  let own_end = min(own_length, end);
  let own = (token * Q_HEADS + head) * QUADS + part;
  var query: array<vec4<f32>, OWN>;
  var acc: array<vec4<f32>, OWN>;
  for (var i = 0u; i < OWN; i++) { query[i] = q[own + i * LANES] * SCALE; }
  var top = LOWEST;
  var total = 0.0;
  var next_k: array<vec2<u32>, FETCH>;
  var next_v: array<vec2<u32>, FETCH>;
  for (var f = 0u; f < FETCH; f++) {
    let i = lane + f * WORKGROUP;
    let row = place(start, i, end, kv_head);
    next_k[f] = key_bits(row, i % QUADS);
    next_v[f] = value_bits(row, i % QUADS);
  }
  for (var tile = start; tile < end; tile += TILE) {
    workgroupBarrier();
    for (var f = 0u; f < FETCH; f++) {
      let i = lane + f * WORKGROUP;
      if (i < TILE * QUADS) {
        // Past the end the pool may hold anything, even what is not a number.
        let inside = tile + i / QUADS < end;
        keys[i] = select(vec4<f32>(0.0), quad_of(next_k[f], i % QUADS), inside);
        values[i] = select(vec4<f32>(0.0), quad_of(next_v[f], i % QUADS), inside);
      }
    }
    workgroupBarrier();
    for (var f = 0u; f < FETCH; f++) {
      let i = lane + f * WORKGROUP;
      let row = place(tile + TILE, i, end, kv_head);
      next_k[f] = key_bits(row, i % QUADS);
      next_v[f] = value_bits(row, i % QUADS);
    }
    for (var first = 0u; first < min(TILE, end - tile); first += KEYS) {
      var score = array<f32, KEYS>();
      var new_top = top;
      for (var k = 0u; k < KEYS; k++) {
        var s = 0.0;
        for (var i = 0u; i < OWN; i++) {
          s += dot(query[i], keys[(first + k) * QUADS + i * LANES + part]);
        }
        s = lanes_sum(s);
        let at = tile + first + k;
        score[k] = select(LOWEST, s, at >= own_first && at < own_end);
        new_top = max(new_top, score[k]);
      }
      let fade = exp(top - new_top);
      top = new_top;
      total *= fade;
      for (var i = 0u; i < OWN; i++) { acc[i] *= fade; }
      for (var k = 0u; k < KEYS; k++) {
        let at = tile + first + k;
        let weight = select(0.0, exp(score[k] - top), at >= own_first && at < own_end);
        total += weight;
        for (var i = 0u; i < OWN; i++) {
          acc[i] += weight * values[(first + k) * QUADS + i * LANES + part];
        }
      }
    }
  }
  let is_row = row < TOKENS * GROUP && first_token + row / GROUP <= last;
  if (is_row && start < own_length) {
    let at = (token * Q_HEADS + head) * num_spans() + group.z;
    for (var i = 0u; i < OWN; i++) { parts[at * QUADS + part + i * LANES] = acc[i]; }
    if (part == 0u) { stats[at] = vec2<f32>(top, total); }
  }
}
