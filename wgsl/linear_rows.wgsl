// y = finish(W . x + bias) without barriers: a thread makes ROWS rows for TOKENS tokens.
override K: u32;
override N: u32;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let first = id.x * ROWS;
  let token0 = id.y * TOKENS;
  if (first >= N || token0 >= step.num_tokens) { return; }
  let blocks = K / 32u;
  let last = step.num_tokens - 1u;
  var acc: array<f32, ROWS * PARTS * TOKENS>;
  for (var b = 0u; b < blocks; b++) {
    for (var t = 0u; t < TOKENS; t++) {
      let base = (min(token0 + t, last) * blocks + b) * 8u;
      var xs: array<vec4<f32>, 8>;
      var total = vec4<f32>(0.0);
      for (var j = 0u; j < 8u; j++) {
        xs[j] = x[base + j];
        total += xs[j];
      }
      let sum = total.x + total.y + total.z + total.w;
      for (var r = 0u; r < ROWS * PARTS; r++) {
        let row = min(first + r / PARTS, N - 1u) + (r % PARTS) * N;
        let w = load_block(row * blocks + b);
        var d = 0.0;
        for (var j = 0u; j < 8u; j++) { d += dot(w.q[j], xs[j]); }
        acc[r * TOKENS + t] += w.d * d + w.m * sum;
      }
    }
  }
  for (var r = 0u; r < ROWS; r++) {
    for (var t = 0u; t < TOKENS; t++) {
      var result: array<f32, PARTS>;
      for (var p = 0u; p < PARTS; p++) {
        result[p] = acc[(r * PARTS + p) * TOKENS + t] + bias_of(first + r + p * N);
      }
      if (first + r < N && token0 + t <= last) { finish(token0 + t, first + r, result); }
    }
  }
}
