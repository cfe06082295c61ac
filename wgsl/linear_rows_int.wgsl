// y = finish(W . x + bias) without barriers, on activations as integers per block of 32, in TERMS
// bytes each (see quantize.wgsl): w . x = d * s * (q . xq) + m * s * sum(xq).
// A thread makes ROWS rows for TOKENS tokens.
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
      var lo: array<vec4<u32>, TERMS>;
      var hi: array<vec4<u32>, TERMS>;
      for (var e = 0u; e < TERMS; e++) {
        lo[e] = x_quants[(i * TERMS + e) * 2u];
        hi[e] = x_quants[(i * TERMS + e) * 2u + 1u];
      }
      let s = x_scales[i];
      for (var r = 0u; r < ROWS * PARTS; r++) {
        let row = min(first + r / PARTS, N - 1u) + (r % PARTS) * N;
        let w = load_packed(row * blocks + b);
        var d = 0;
        for (var e = 0u; e < TERMS; e++) {
          d = d * 128
            + dot4I8Packed(w.lo.x, lo[e].x) + dot4I8Packed(w.lo.y, lo[e].y)
            + dot4I8Packed(w.lo.z, lo[e].z) + dot4I8Packed(w.lo.w, lo[e].w)
            + dot4I8Packed(w.hi.x, hi[e].x) + dot4I8Packed(w.hi.y, hi[e].y)
            + dot4I8Packed(w.hi.z, hi[e].z) + dot4I8Packed(w.hi.w, hi[e].w);
        }
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
