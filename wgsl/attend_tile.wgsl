// y = softmax(SCALE * q @ k.T + mask) @ v, each with strides of its own: a workgroup takes QUERIES
// queries, and keys and values by KEYS in workgroup memory. PARTS lanes share a query: each takes
// its own keys, and in the end they join their sums (Milakov and Gimelshein, 2018).

const WORKGROUP = QUERIES * PARTS;
const OWN = KEYS / PARTS;  // keys of a lane at a time
const W4 = WIDTH / 4u;
const V4 = VALUES / 4u;
const LOWEST = -3.4028234e38;

// Keys, then values; at the end sums of half the lanes.
var<workgroup> held: array<vec4<f32>, HELD>;
var<workgroup> states: array<vec2<f32>, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  // Lanes beside each other have different queries and the same keys.
  let part = lane / QUERIES;
  let row = group.x * QUERIES + lane % QUERIES;
  let own_row = i32(min(row, M - 1u));
  let outer = i32(group.y / HEADS);
  let head = i32(group.y % HEADS);
  let k_base = K_AT + outer * K0 + head * K1;
  let v_base = V_AT + outer * V0 + head * V1;
  let q_base = Q_AT + outer * Q0 + head * Q1 + own_row * Q2;
  var query: array<vec4<f32>, W4>;
  for (var d = 0u; d < W4; d++) {
    let at = q_base + i32(4u * d) * Q3;
    query[d] = SCALE * vec4<f32>(q[at], q[at + Q3], q[at + 2 * Q3], q[at + 3 * Q3]);
  }
  var sum: array<vec4<f32>, V4>;
  var largest = LOWEST;
  var total = 0.0;
  for (var first = 0u; first < N; first += KEYS) {
    for (var i = lane; i < KEYS * W4; i += WORKGROUP) {
      let at = k_base + i32(min(first + i / W4, N - 1u)) * K2 + i32(4u * (i % W4)) * K3;
      held[i] = vec4<f32>(k[at], k[at + K3], k[at + 2 * K3], k[at + 3 * K3]);
    }
    for (var i = lane; i < KEYS * V4; i += WORKGROUP) {
      let at = v_base + i32(min(first + i / V4, N - 1u)) * V2 + i32(4u * (i % V4)) * V3;
      held[KEYS * W4 + i] = vec4<f32>(v[at], v[at + V3], v[at + 2 * V3], v[at + 3 * V3]);
    }
    workgroupBarrier();
    var scores: array<f32, OWN>;
    var above = largest;
    for (var j = 0u; j < OWN; j++) {
      let key = part * OWN + j;
      var score = vec4<f32>();
      for (var d = 0u; d < W4; d++) { score = fma(query[d], held[key * W4 + d], score); }
      let n = i32(min(first + key, N - 1u));
      scores[j] = dot(score, vec4<f32>(1.0)) + mask_of(outer, head, own_row, n);
      if (first + key < N) { above = max(above, scores[j]); }
    }
    let kept = exp(largest - above);
    largest = above;
    total *= kept;
    for (var d = 0u; d < V4; d++) { sum[d] *= kept; }
    for (var j = 0u; j < OWN; j++) {
      let key = part * OWN + j;
      let weight = select(0.0, exp(scores[j] - above), first + key < N);
      total += weight;
      for (var d = 0u; d < V4; d++) {
        sum[d] = fma(vec4<f32>(weight), held[KEYS * W4 + key * V4 + d], sum[d]);
      }
    }
    workgroupBarrier();
  }
  for (var half = PARTS / 2u; half > 0u; half /= 2u) {
    if (part >= half && part < 2u * half) {
      states[lane] = vec2<f32>(largest, total);
      for (var d = 0u; d < V4; d++) { held[d * half * QUERIES + lane - half * QUERIES] = sum[d]; }
    }
    workgroupBarrier();
    if (part < half) {
      let other = states[lane + half * QUERIES];
      let above = max(largest, other.x);
      let mine = exp(largest - above);
      let theirs = exp(other.x - above);
      largest = above;
      total = total * mine + other.y * theirs;
      for (var d = 0u; d < V4; d++) {
        sum[d] = sum[d] * mine + held[d * half * QUERIES + lane] * theirs;
      }
    }
    workgroupBarrier();
  }
  if (part > 0u || row >= M) { return; }
  if (GUARDED == 1u && total == 0.0) { total = 1.0; }
  let y_base = Y_AT + outer * Y0 + head * Y1 + own_row * Y2;
  for (var d = 0u; d < V4; d++) {
    let result = sum[d] / total;
    for (var c = 0u; c < 4u; c++) { y[y_base + i32(4u * d + c) * Y3] = result[c]; }
  }
}
