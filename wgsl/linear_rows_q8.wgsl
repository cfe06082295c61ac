// y = finish(W . x + bias) without barriers, on activations in 8 bits per block of 32:
// w . x = d * s * (q . xq) + m * s * sum(xq). A thread makes ROWS rows for TOKENS tokens.
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
      let i = min(token0 + t, last) * blocks + b;
      let x0 = x_quants[2u * i];
      let x1 = x_quants[2u * i + 1u];
      let s = x_scales[i];
      for (var r = 0u; r < ROWS * PARTS; r++) {
        let row = min(first + r / PARTS, N - 1u) + (r % PARTS) * N;
        let w = load_packed(row * blocks + b);
        let d = dot4I8Packed(w.lo.x, x0.x) + dot4I8Packed(w.lo.y, x0.y)
              + dot4I8Packed(w.lo.z, x0.z) + dot4I8Packed(w.lo.w, x0.w)
              + dot4I8Packed(w.hi.x, x1.x) + dot4I8Packed(w.hi.y, x1.y)
              + dot4I8Packed(w.hi.z, x1.z) + dot4I8Packed(w.hi.w, x1.w);
        acc[r * TOKENS + t] += w.d * s.x * f32(d) + w.m * s.y;
      }
    }
  }
  for (var r = 0u; r < ROWS; r++) {
    for (var t = 0u; t < TOKENS; t++) {
      var result: array<f32, PARTS>;
      for (var p = 0u; p < PARTS; p++) {
        result[p] = acc[(r * PARTS + p) * TOKENS + t] + bias_of(first + r + p * N);
      }
      if (first + r < N && token0 + t <= last) { finish((token0 + t) * N + first + r, result); }
    }
  }
}
