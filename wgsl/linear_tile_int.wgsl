// y = finish(W . x + bias) for many tokens on integer activations (see quantize.wgsl): a workgroup
// makes a tile of TILE_M tokens by TILE_N rows of each part, STAGE blocks of 32 of K at a time in
// workgroup memory (the sums are those of lib/products_whole.wgsl).
override K: u32;
override N: u32;

const THREADS_M = WORKGROUP / THREADS_N;
const TM = TILE_M / THREADS_M;
const TN = TILE_N / THREADS_N;
const COLS = TILE_N * PARTS;

var<workgroup> xq: array<vec4<u32>, STAGE * TERMS * 2 * TILE_M>;
var<workgroup> xs: array<XScale, STAGE * TILE_M>;
var<workgroup> wq: array<vec4<u32>, STAGE * 2 * COLS>;
var<workgroup> ws: array<Scale, STAGE * COLS>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let blocks = K / 32u;
  let m0 = group.y * TILE_M;
  let n0 = group.x * TILE_N;
  let last = step.num_tokens - 1u;
  let tn = lane % THREADS_N;
  let tm = lane / THREADS_N;
  var acc: array<f32, TM * TN * PARTS>;
  for (var b = 0u; b < blocks; b += STAGE) {
    for (var i = lane; i < STAGE * TILE_M; i += WORKGROUP) {
      let m = i % TILE_M;
      let t = i / TILE_M;
      let from_block = min(m0 + m, last) * blocks + min(b + t, blocks - 1u);
      for (var e = 0u; e < TERMS * 2u; e++) {
        xq[(t * TERMS * 2u + e) * TILE_M + m] = x_quants[from_block * TERMS * 2u + e];
      }
      // A stage past the end of a row counts nothing.
      xs[i] = select(XScale(), load_x_scale(from_block), b + t < blocks);
    }
    for (var i = lane; i < STAGE * COLS; i += WORKGROUP) {
      let c = i % COLS;
      let t = i / COLS;
      let row = min(n0 + c % TILE_N, N - 1u) + (c / TILE_N) * N;
      let w = load_packed(row * blocks + min(b + t, blocks - 1u));
      wq[(t * 2u) * COLS + c] = w.lo;
      wq[(t * 2u + 1u) * COLS + c] = w.hi;
      ws[i] = w.scale;
    }
    workgroupBarrier();
    for (var t = 0u; t < STAGE; t++) {
      var lo: array<vec4<u32>, TN * PARTS>;
      var hi: array<vec4<u32>, TN * PARTS>;
      var scale: array<Scale, TN * PARTS>;
      for (var j = 0u; j < TN * PARTS; j++) {
        let c = tn + j * THREADS_N;
        lo[j] = wq[(t * 2u) * COLS + c];
        hi[j] = wq[(t * 2u + 1u) * COLS + c];
        scale[j] = ws[t * COLS + c];
      }
      for (var i = 0u; i < TM; i++) {
        let m = tm * TM + i;
        let s = xs[t * TILE_M + m];
        var d = array<Dot, TN * PARTS>();
        for (var e = 0u; e < TERMS; e++) {
          let a0 = xq[(t * TERMS * 2u + 2u * e) * TILE_M + m];
          let a1 = xq[(t * TERMS * 2u + 2u * e + 1u) * TILE_M + m];
          for (var j = 0u; j < TN * PARTS; j++) {
            d[j] = d[j] * 128 + both_halves(dot16(a0, lo[j]), dot16(a1, hi[j]));
          }
        }
        for (var j = 0u; j < TN * PARTS; j++) {
          acc[i * TN * PARTS + j] += scaled(scale[j], s, d[j]);
        }
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
