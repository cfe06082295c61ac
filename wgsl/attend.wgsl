// y = softmax(SCALE * q @ k.T + mask) @ v, each with strides of its own: a thread a query, which
// takes the keys one after another and rescales its sum when a larger score comes.

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = i32(group.x * WORKGROUP + lane);
  if (row >= i32(M)) { return; }
  let outer = i32(group.y / HEADS);
  let head = i32(group.y % HEADS);
  let q_base = Q_AT + outer * Q0 + head * Q1 + row * Q2;
  let k_base = K_AT + outer * K0 + head * K1;
  let v_base = V_AT + outer * V0 + head * V1;
  var query: array<f32, WIDTH>;
  for (var d = 0; d < i32(WIDTH); d++) { query[d] = q[q_base + d * Q3] * SCALE; }
  var sum: array<f32, VALUES>;
  var largest = -3.4028234e38;
  var total = 0.0;
  for (var n = 0; n < i32(N); n++) {
    var score = mask_of(outer, head, row, n);
    for (var d = 0; d < i32(WIDTH); d++) { score += query[d] * k[k_base + n * K2 + d * K3]; }
    let above = max(largest, score);
    let kept = exp(largest - above);
    let weight = exp(score - above);
    largest = above;
    total = total * kept + weight;
    for (var d = 0; d < i32(VALUES); d++) {
      sum[d] = sum[d] * kept + weight * v[v_base + n * V2 + d * V3];
    }
  }
  if (GUARDED == 1u && total == 0.0) { total = 1.0; }
  let y_base = Y_AT + outer * Y0 + head * Y1 + row * Y2;
  for (var d = 0; d < i32(VALUES); d++) { y[y_base + d * Y3] = sum[d] / total; }
}
