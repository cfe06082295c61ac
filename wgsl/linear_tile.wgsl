// y = finish(W . x + bias) for many tokens: a workgroup makes a tile of TILE_M tokens by TILE_N
// rows of each part, a block of 32 of K at a time in workgroup memory, weights dequantized there.
override K: u32;
override N: u32;

const THREADS_M = WORKGROUP / THREADS_N;
const TM = TILE_M / THREADS_M;
const TN = TILE_N / THREADS_N;
const COLS = TILE_N * PARTS;

var<workgroup> xs: array<f32, 32 * TILE_M>;
var<workgroup> ws: array<f32, 32 * COLS>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let blocks = K / 32u;
  let m0 = group.y * TILE_M;
  let n0 = group.x * TILE_N;
  let last = step.num_tokens - 1u;
  let tn = lane % THREADS_N;
  let tm = lane / THREADS_N;
  var acc: array<f32, TM * TN * PARTS>;
  for (var b = 0u; b < blocks; b++) {
    for (var i = lane; i < 8u * TILE_M; i += WORKGROUP) {
      let v = x[(min(m0 + i / 8u, last) * blocks + b) * 8u + i % 8u];
      for (var c = 0u; c < 4u; c++) { xs[((i % 8u) * 4u + c) * TILE_M + i / 8u] = v[c]; }
    }
    for (var i = lane; i < COLS; i += WORKGROUP) {
      let row = min(n0 + i % TILE_N, N - 1u) + (i / TILE_N) * N;
      let w = load_block(row * blocks + b);
      for (var j = 0u; j < 8u; j++) {
        let v = w.q[j] * w.d + w.m;
        for (var c = 0u; c < 4u; c++) { ws[(j * 4u + c) * COLS + i] = v[c]; }
      }
    }
    workgroupBarrier();
    for (var k = 0u; k < 32u; k++) {
      var wk: array<f32, TN * PARTS>;
      for (var j = 0u; j < TN * PARTS; j++) { wk[j] = ws[k * COLS + tn + j * THREADS_N]; }
      for (var i = 0u; i < TM; i++) {
        let xk = xs[k * TILE_M + tm * TM + i];
        for (var j = 0u; j < TN * PARTS; j++) { acc[i * TN * PARTS + j] += xk * wk[j]; }
      }
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < TM; i++) {
    for (var j = 0u; j < TN; j++) {
      let m = m0 + tm * TM + i;
      let n = n0 + tn + j * THREADS_N;
      var result: array<f32, PARTS>;
      for (var p = 0u; p < PARTS; p++) {
        result[p] = acc[i * TN * PARTS + p * TN + j] + bias_of(n + p * N);
      }
      if (m <= last && n < N) { finish(m, n, result); }
    }
  }
}
