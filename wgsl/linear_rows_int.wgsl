// y = finish(W . x + bias) without barriers, on activations as integers per block of 32, in TERMS
// bytes each (see quantize.wgsl and lib/products_whole.wgsl).
// A thread makes 8 rows, those of all parts together, for up to 4 tokens. Sums and activations have
// names instead of indices: where the CPU is the GPU, an index into an array is a slow look-up.
override K: u32;
override N: u32;

const EACH = 8u / PARTS;  // rows of each part

struct Sums { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>,
              e: vec4<f32>, f: vec4<f32>, g: vec4<f32>, h: vec4<f32> }
struct Step4 { a: Acts, b: Acts, c: Acts, d: Acts }

fn load_step(i: vec4<u32>) -> Step4 {
  var x: Step4;
  x.a = load_acts(i.x);
  if (TOKENS == 1u) { return x; }
  x.b = load_acts(i.y);
  x.c = load_acts(i.z);
  x.d = load_acts(i.w);
  return x;
}

fn product(w: PackedBlock, x: Acts) -> f32 { return scaled(w.scale, x.scale, block_dot(w, x)); }

// Row j of the thread times a block of each token.
fn row_dot(j: u32, first: u32, block: u32, x: Step4) -> vec4<f32> {
  let row = min(first + j / PARTS, N - 1u) + (j % PARTS) * N;
  let w = load_packed(row * (K / 32u) + block);
  if (TOKENS == 1u) { return vec4<f32>(product(w, x.a), 0.0, 0.0, 0.0); }
  return vec4<f32>(product(w, x.a), product(w, x.b), product(w, x.c), product(w, x.d));
}

fn put(j: u32, first: u32, token0: u32, one: vec4<f32>, other: vec4<f32>) {
  let row = first + j;
  if (row >= N) { return; }
  for (var t = 0u; t < TOKENS; t++) {
    if (token0 + t >= step.num_tokens) { return; }
    var result: array<f32, PARTS>;
    result[0] = one[t] + bias_of(row);
    if (PARTS == 2u) { result[PARTS - 1u] = other[t] + bias_of(row + N); }
    finish(token0 + t, row, result);
  }
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let first = id.x * EACH;
  let token0 = id.y * TOKENS;
  if (first >= N || token0 >= step.num_tokens) { return; }
  let tokens = min(vec4<u32>(token0) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(step.num_tokens - 1u));
  var sums: Sums;
  for (var block = 0u; block < K / 32u; block++) {
    let x = load_step(tokens * (K / 32u) + block);
    sums.a += row_dot(0u, first, block, x);
    sums.b += row_dot(1u, first, block, x);
    sums.c += row_dot(2u, first, block, x);
    sums.d += row_dot(3u, first, block, x);
    sums.e += row_dot(4u, first, block, x);
    sums.f += row_dot(5u, first, block, x);
    sums.g += row_dot(6u, first, block, x);
    sums.h += row_dot(7u, first, block, x);
  }
  if (PARTS == 2u) {
    put(0u, first, token0, sums.a, sums.b);
    put(1u, first, token0, sums.c, sums.d);
    put(2u, first, token0, sums.e, sums.f);
    put(3u, first, token0, sums.g, sums.h);
    return;
  }
  put(0u, first, token0, sums.a, sums.a);
  put(1u, first, token0, sums.b, sums.b);
  put(2u, first, token0, sums.c, sums.c);
  put(3u, first, token0, sums.d, sums.d);
  put(4u, first, token0, sums.e, sums.e);
  put(5u, first, token0, sums.f, sums.f);
  put(6u, first, token0, sums.g, sums.g);
  put(7u, first, token0, sums.h, sums.h);
}
