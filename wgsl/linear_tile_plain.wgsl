// y = finish(W . x + bias) for many tokens, W in single precision: a workgroup makes TILE_M tokens
// by TILE_N rows, SLICES times 32 of K at a time in workgroup memory, where four tokens, or rows,
// are a vector. A lane makes 4 * GROUPS tokens by 4 rows of one slice; the slices are added at last.
override K: u32;
override N: u32;

const MV = TILE_M / 4u;
const NV = TILE_N / 4u;
const TM = 4u * GROUPS;
const TEAM = MV / GROUPS * NV;  // lanes of a slice
const WORKGROUP = SLICES * TEAM;
const QUADS = 8u * SLICES;  // of K at a time

var<workgroup> xs: array<vec4<f32>, 4u * QUADS * MV>;
var<workgroup> ws: array<vec4<f32>, 4u * QUADS * NV>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row4 = K / 4u;  // vectors of a row
  let m0 = group.y * TILE_M;
  let n0 = group.x * TILE_N;
  let last = step.num_tokens - 1u;
  let slice = lane / TEAM;
  let tn = lane % NV;
  let tm = lane % TEAM / NV;
  var acc: array<vec4<f32>, TM>;
  for (var first = 0u; first < row4; first += QUADS) {
    for (var i = lane; i < QUADS * MV; i += WORKGROUP) {
      let at = i % MV;
      let k = i / MV;
      let quad = min(first + k, row4 - 1u);
      let m = m0 + 4u * at;
      let a = x[min(m, last) * row4 + quad];
      let b = x[min(m + 1u, last) * row4 + quad];
      let c = x[min(m + 2u, last) * row4 + quad];
      let d = x[min(m + 3u, last) * row4 + quad];
      xs[(4u * k) * MV + at] = vec4<f32>(a.x, b.x, c.x, d.x);
      xs[(4u * k + 1u) * MV + at] = vec4<f32>(a.y, b.y, c.y, d.y);
      xs[(4u * k + 2u) * MV + at] = vec4<f32>(a.z, b.z, c.z, d.z);
      xs[(4u * k + 3u) * MV + at] = vec4<f32>(a.w, b.w, c.w, d.w);
    }
    for (var i = lane; i < QUADS * NV; i += WORKGROUP) {
      let at = i % NV;
      let k = i / NV;
      let quad = min(first + k, row4 - 1u);
      let n = n0 + 4u * at;
      let a = w_quants[min(n, N - 1u) * row4 + quad];
      let b = w_quants[min(n + 1u, N - 1u) * row4 + quad];
      let c = w_quants[min(n + 2u, N - 1u) * row4 + quad];
      let d = w_quants[min(n + 3u, N - 1u) * row4 + quad];
      ws[(4u * k) * NV + at] = vec4<f32>(a.x, b.x, c.x, d.x);
      ws[(4u * k + 1u) * NV + at] = vec4<f32>(a.y, b.y, c.y, d.y);
      ws[(4u * k + 2u) * NV + at] = vec4<f32>(a.z, b.z, c.z, d.z);
      ws[(4u * k + 3u) * NV + at] = vec4<f32>(a.w, b.w, c.w, d.w);
    }
    workgroupBarrier();
    // K has whole blocks of 32: a slice beyond its end has nothing to add.
    let end = select(0u, 32u, first + 8u * slice < row4);
    for (var i = 0u; i < end; i++) {
      let k = 32u * slice + i;
      let row = ws[k * NV + tn];
      for (var g = 0u; g < GROUPS; g++) {
        let token = xs[k * MV + tm * GROUPS + g];
        acc[4u * g] = fma(vec4<f32>(token.x), row, acc[4u * g]);
        acc[4u * g + 1u] = fma(vec4<f32>(token.y), row, acc[4u * g + 1u]);
        acc[4u * g + 2u] = fma(vec4<f32>(token.z), row, acc[4u * g + 2u]);
        acc[4u * g + 3u] = fma(vec4<f32>(token.w), row, acc[4u * g + 3u]);
      }
    }
    workgroupBarrier();
  }
  if (SLICES > 1u) {
    for (var i = 0u; i < TM; i++) { xs[i * WORKGROUP + lane] = acc[i]; }
    workgroupBarrier();
    if (slice > 0u) { return; }
    for (var i = 0u; i < TM; i++) {
      for (var s = 1u; s < SLICES; s++) { acc[i] += xs[i * WORKGROUP + s * TEAM + lane]; }
    }
  }
  for (var i = 0u; i < TM; i++) {
    let m = m0 + tm * TM + i;
    for (var j = 0u; j < 4u; j++) {
      let n = n0 + 4u * tn + j;
      if (m <= last && n < N) { finish(m, n, array<f32, PARTS>(acc[i][j] + bias_of(n))); }
    }
  }
}
