// SIMD kernels of the CPU device, a WebAssembly side module: engine/backends/native.py loads it
// into Pyodide's memory, so that all pointers are those of NumPy arrays. On the build machine
// engine/host/simd/ says what WebAssembly's vectors are there.
//
// Quantized matrices stay as they lie in the file (cpu_quants.h). A row of activations becomes
// 16-bit integers per block of 32, whose products with the integers of the weights add up exactly
// in 32 bits; only the scales of both are f32. What is f32 is multiplied as such (cpu_floats.h).
//
// Kernels whose calls may be long take `from` and `to`, the part of their rows that a run computes.

#include "cpu_quants.h"

#define EXPORT __attribute__((visibility("default")))

enum { BLOCK = 32, LARGEST = 32767 };
enum { POSITION, NUM_TOKENS };  // words of the step record
typedef enum { NONE, SILU, GELU, GELU_ERF } Act;  // as ACTS in engine/ops/gate.py

// 32 activations: x = scale * q. `sum` is that of x, `lower` and `upper` those of its halves.
typedef struct {
  int16_t q[BLOCK];
  float scale, sum, lower, upper;
} Block;

EXPORT void prepare(void) { prepare_halves(); }

INLINE float sum_of(v128_t v) {
  return (wasm_f32x4_extract_lane(v, 0) + wasm_f32x4_extract_lane(v, 1)) +
         (wasm_f32x4_extract_lane(v, 2) + wasm_f32x4_extract_lane(v, 3));
}

INLINE float max_of(v128_t v) {
  v = wasm_f32x4_pmax(v, wasm_i32x4_shuffle(v, v, 2, 3, 0, 1));
  v = wasm_f32x4_pmax(v, wasm_i32x4_shuffle(v, v, 1, 0, 3, 2));
  return wasm_f32x4_extract_lane(v, 0);
}

// e^x within about 1 ulp: 2^n by the exponent's bits, the rest by a polynomial (Cephes).
INLINE v128_t exp_of(v128_t x) {
  x = wasm_f32x4_max(wasm_f32x4_min(x, wasm_f32x4_splat(88.0f)), wasm_f32x4_splat(-87.0f));
  v128_t n = wasm_f32x4_nearest(wasm_f32x4_mul(x, wasm_f32x4_splat(1.44269504f)));
  v128_t r = wasm_f32x4_sub(x, wasm_f32x4_mul(n, wasm_f32x4_splat(0.693359375f)));
  r = wasm_f32x4_sub(r, wasm_f32x4_mul(n, wasm_f32x4_splat(-2.12194440e-4f)));
  static const float terms[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f, 1, 1};
  v128_t p = wasm_f32x4_splat(terms[0]);
  for (int i = 1; i < 8; i++)
    p = wasm_f32x4_add(wasm_f32x4_mul(p, r), wasm_f32x4_splat(terms[i]));
  v128_t bits = wasm_i32x4_add(wasm_i32x4_trunc_sat_f32x4(n), wasm_i32x4_splat(127));
  return wasm_f32x4_mul(p, wasm_i32x4_shl(bits, 23));
}

// ---- Linear layers ------------------------------------------------------------------------------

// Adds the products of a part of R rows with those of T tokens, `blocks` apart, to sums and
// offsets.
INLINE void multiply(Quant quant, const int R, const int T, v128_t q[R][4], const float *d,
                     const float *m, const Block *x, int blocks, v128_t *sums, float *offsets) {
#pragma unroll
  for (int i = 0; i < R * T; i++) {
    const int r = i / T, scale = r * MOST_SCALES;
    const Block *a = x + i % T * blocks;
    v128_t part, lower = wasm_i32x4_dot_i16x8(q[r][0], wasm_v128_load(a->q));
    lower = wasm_i32x4_add(lower, wasm_i32x4_dot_i16x8(q[r][1], wasm_v128_load(a->q + 8)));
    v128_t upper = halved(quant) ? wasm_i32x4_splat(0) : lower;
    upper = wasm_i32x4_add(upper, wasm_i32x4_dot_i16x8(q[r][2], wasm_v128_load(a->q + 16)));
    upper = wasm_i32x4_add(upper, wasm_i32x4_dot_i16x8(q[r][3], wasm_v128_load(a->q + 24)));
    if (halved(quant)) {
      v128_t first = wasm_v128_load32_splat(d + scale);
      v128_t second = wasm_v128_load32_splat(d + scale + 1);
      part = wasm_f32x4_add(wasm_f32x4_mul(wasm_f32x4_convert_i32x4(lower), first),
                            wasm_f32x4_mul(wasm_f32x4_convert_i32x4(upper), second));
    } else {
      part = wasm_f32x4_mul(wasm_f32x4_convert_i32x4(upper), wasm_v128_load32_splat(d + scale));
    }
    sums[i] = wasm_f32x4_add(sums[i], wasm_f32x4_mul(part, wasm_v128_load32_splat(&a->scale)));
    if (has_minimum(quant) && halved(quant))
      offsets[i] += m[scale] * a->lower + m[scale + 1] * a->upper;
    else if (has_minimum(quant))
      offsets[i] += m[scale] * a->sum;
  }
}

// y[t * stride + r] for R rows and T tokens; a block of the weights is unpacked once for them.
INLINE void tile(Quant quant, const int R, const int T, const uint8_t *w, const Block *x,
                 int blocks, float *y, int stride) {
  const int parts = parts_of(quant), each = halved(quant) ? 2 : 1;
  v128_t sums[R * T], q[parts][R][4];
  float offsets[R * T], d[R][MOST_SCALES], m[R][MOST_SCALES];
  for (int i = 0; i < R * T; i++) sums[i] = wasm_f32x4_splat(0), offsets[i] = 0;
  for (int b = 0; b < blocks; b += parts) {
#pragma unroll
    for (int r = 0; r < R; r++) {
      const uint8_t *block = w + (r * blocks + b) / parts * bytes_of(quant);
      scales_of(quant, block, d[r], m[r]);
#pragma unroll
      for (int p = 0; p < parts; p++) unpack(quant, block, p, q[p][r]);
    }
    if (parts == 1) {
      multiply(quant, R, T, q[0], d[0], m[0], x + b, blocks, sums, offsets);
      continue;
    }
#pragma nounroll  // the loop is slower without
    for (int p = 0; p < parts; p++)
      multiply(quant, R, T, q[p], d[0] + each * p, m[0] + each * p, x + b + p, blocks, sums,
               offsets);
  }
  for (int r = 0; r < R; r++)
    for (int t = 0; t < T; t++) y[t * stride + r] = sum_of(sums[r * T + t]) + offsets[r * T + t];
}

// y (m, n), rows of which are `stride` apart, = x (m, blocks) times w (n, blocks) transposed. Rows
// outside: x fits into a cache.
INLINE void product(Quant quant, const Block *x, int m, const uint8_t *w, int n, int blocks,
                    float *y, int stride) {
  enum { ROWS = 2, TOKENS = 4 };
  int row = blocks / parts_of(quant) * bytes_of(quant), tiled = m / TOKENS * TOKENS, r = 0;
  for (; r + ROWS <= n && tiled; r += ROWS) {
    for (int t = 0; t < tiled; t += TOKENS)
      tile(quant, ROWS, TOKENS, w + r * row, x + t * blocks, blocks, y + t * stride + r, stride);
    for (int i = r; i < r + ROWS; i++)
      for (int t = tiled; t < m; t++)
        tile(quant, 1, 1, w + i * row, x + t * blocks, blocks, y + t * stride + i, stride);
  }
  for (; r < n; r++)
    for (int t = 0; t < m; t++)
      tile(quant, 1, 1, w + r * row, x + t * blocks, blocks, y + t * stride + r, stride);
}

// A function for each quantization: engines compile a huge one badly.
#define PRODUCT(Q)                                                                              \
  static __attribute__((noinline)) void product_##Q(const Block *x, int m, const uint8_t *w,    \
                                                    int n, int blocks, float *y, int stride) {  \
    product(Q, x, m, w, n, blocks, y, stride);                                                  \
  }
PRODUCT(Q4_0) PRODUCT(Q4_1) PRODUCT(Q5_0) PRODUCT(Q5_1) PRODUCT(Q8_0) PRODUCT(IQ4_NL)
PRODUCT(Q2_K) PRODUCT(Q3_K) PRODUCT(Q4_K) PRODUCT(Q5_K) PRODUCT(Q6_K) PRODUCT(IQ4_XS)
#undef PRODUCT

// y (k) = (x - mean) / sqrt(variance + eps) * gain + bias, or, not `centred`, by RMS, where the mean
// counts as zero; bias may be null.
static void normalize(const float *x, const float *gain, const float *bias, float eps, int k,
                      int centred, float *y) {
  v128_t sums = wasm_f32x4_splat(0), squares = wasm_f32x4_splat(0);
  for (int i = 0; centred && i < k; i += 4) sums = wasm_f32x4_add(sums, wasm_v128_load(x + i));
  v128_t mean = wasm_f32x4_splat(sum_of(sums) / k);
  for (int i = 0; i < k; i += 4) {
    v128_t v = wasm_f32x4_sub(wasm_v128_load(x + i), mean);
    squares = wasm_f32x4_add(squares, wasm_f32x4_mul(v, v));
  }
  v128_t inverse = wasm_f32x4_splat(1 / __builtin_sqrtf(sum_of(squares) / k + eps));
  for (int i = 0; i < k; i += 4) {
    v128_t v = wasm_f32x4_mul(wasm_f32x4_sub(wasm_v128_load(x + i), mean), inverse);
    v = wasm_f32x4_mul(v, wasm_v128_load(gain + i));
    wasm_v128_store(y + i, bias ? wasm_f32x4_add(v, wasm_v128_load(bias + i)) : v);
  }
}

static void quantize(const float *x, int blocks, Block *out) {
  for (; blocks; blocks--, x += BLOCK, out++) {
    v128_t peaks = wasm_f32x4_splat(0), sums[2] = {wasm_i32x4_splat(0), wasm_i32x4_splat(0)};
    for (int i = 0; i < BLOCK; i += 4)
      peaks = wasm_f32x4_pmax(peaks, wasm_f32x4_abs(wasm_v128_load(x + i)));
    float peak = max_of(peaks);
    // A peak so small that its inverse is infinite counts as zero.
    v128_t inverse = wasm_f32x4_splat(peak > 1e-30f ? LARGEST / peak : 0);
    for (int i = 0; i < BLOCK; i += 8) {
      v128_t low = wasm_f32x4_nearest(wasm_f32x4_mul(wasm_v128_load(x + i), inverse));
      v128_t high = wasm_f32x4_nearest(wasm_f32x4_mul(wasm_v128_load(x + i + 4), inverse));
      low = wasm_i32x4_trunc_sat_f32x4(low), high = wasm_i32x4_trunc_sat_f32x4(high);
      sums[i / 16] = wasm_i32x4_add(sums[i / 16], wasm_i32x4_add(low, high));
      wasm_v128_store(out->q + i, wasm_i16x8_narrow_i32x4(low, high));
    }
    // Whole numbers below 2^24: exact as f32.
    float lower = sum_of(wasm_f32x4_convert_i32x4(sums[0]));
    float upper = sum_of(wasm_f32x4_convert_i32x4(sums[1]));
    out->scale = peak / LARGEST;
    out->sum = out->scale * (lower + upper);
    out->lower = out->scale * lower;
    out->upper = out->scale * upper;
  }
}

// SiLU, or GELU by tanh: x / (1 + e^-s) with s = x or 2 sqrt(2 / pi) (x + 0.044715 x^3); or GELU by
// the error function (`erf` in engine/ops/elementwise.py).
INLINE v128_t activated(Act act, v128_t v) {
  v128_t one = wasm_f32x4_splat(1);
  if (act == GELU_ERF) {
    static const float terms[] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f,
                                  0.254829592f};
    v128_t x = wasm_f32x4_abs(wasm_f32x4_mul(v, wasm_f32x4_splat(0.70710678f)));
    v128_t t = wasm_f32x4_mul(x, wasm_f32x4_splat(0.3275911f)), series = wasm_f32x4_splat(0);
    t = wasm_f32x4_div(one, wasm_f32x4_add(one, t));
    for (int i = 0; i < 5; i++)
      series = wasm_f32x4_mul(wasm_f32x4_add(series, wasm_f32x4_splat(terms[i])), t);
    v128_t rest = wasm_f32x4_mul(series, exp_of(wasm_f32x4_neg(wasm_f32x4_mul(x, x))));
    v128_t half = wasm_f32x4_mul(v, wasm_f32x4_splat(0.5f)), erf = wasm_f32x4_sub(one, rest);
    return wasm_f32x4_add(half, wasm_f32x4_mul(wasm_f32x4_abs(half), erf));
  }
  v128_t cubic = wasm_f32x4_mul(wasm_f32x4_mul(v, v), wasm_f32x4_splat(0.0713548163f));
  v128_t slope = wasm_f32x4_add(cubic, wasm_f32x4_splat(1.5957691216f));
  v128_t s = act == GELU ? wasm_f32x4_mul(v, slope) : v;
  return wasm_f32x4_div(v, wasm_f32x4_add(one, exp_of(wasm_f32x4_neg(s))));
}

// act(g) * u of f pairs, or act(g) where u is null; y may be g.
static void gate(const float *g, const float *u, int f, Act act, float *y) {
  for (int i = 0; i < f; i += 4) {
    float in[8] = {0}, out[4];
    int count = f - i < 4 ? f - i : 4;
    for (int j = 0; j < count; j++) in[j] = g[i + j], in[4 + j] = u ? u[i + j] : 1;
    wasm_v128_store(out, wasm_f32x4_mul(activated(act, wasm_v128_load(in)), wasm_v128_load(in + 4)));
    for (int j = 0; j < count; j++) y[i + j] = out[j];
  }
}

// Tokens of a step from `from` on, before `to`.
INLINE int tokens_within(const uint32_t *step, int from, int to) {
  int end = (int)step[NUM_TOKENS] < to ? (int)step[NUM_TOKENS] : to;
  return end > from ? end - from : 0;
}

// What follows the product of a linear layer, out (m, n), whose rows are `stride` apart: bias,
// residual and activation, or with two parts the gate, into y. Rows of residual and y are `width`
// apart; bias and residual may be null.
static void finish(float *out, int m, int n, int stride, int parts, Act act, const float *bias,
                   const float *residual, float *y, int width) {
  for (int t = 0; t < m; t++, out += stride, y += width) {
    for (int i = 0; bias && i < n; i++) out[i] += bias[i];
    for (int i = 0; residual && i < n; i++) out[i] += residual[t * width + i];
    if (parts == 2)
      gate(out, out + n / 2, n / 2, act, y);
    else if (act)
      gate(out, 0, n, act, out);
  }
}

// Bytes that `linear` needs of scratch memory for so many tokens.
EXPORT int linear_scratch(int tokens, int n, int k) {
  return tokens * (k / BLOCK) * (int)sizeof(Block) + (k + tokens * n) * (int)sizeof(float);
}

// What the references of linear (parts 1) and gated_linear (parts 2) in engine/ops/linear.py do,
// for tokens `from` to `to`. x (tokens, k), w (n, k) quantized, y (tokens, width), of which
// n / parts from `first` on are written; gain, bias and residual, which are as wide as y, may be
// null.
EXPORT void linear(int from, int to, const uint32_t *step, const float *x, const uint8_t *w,
                   float *y, uint8_t *scratch, int n, int k, int parts, Act act, int width,
                   int first, const float *gain, float eps, const float *bias,
                   const float *residual, Quant quant) {
  int blocks = k / BLOCK, m = tokens_within(step, from, to), at = from * width + first;
  Block *quants = (Block *)scratch;
  float *normal = (float *)(quants + m * blocks), *out = parts == 2 ? normal + k : y + at;
  int stride = parts == 2 ? n : width;
  for (int t = 0; t < m; t++) {
    const float *row = x + (from + t) * k;
    if (gain) normalize(row, gain, 0, eps, k, 0, normal), row = normal;
    quantize(row, blocks, quants + t * blocks);
  }
  switch (quant) {
#define PRODUCT(Q) case Q: product_##Q(quants, m, w, n, blocks, out, stride); break
    PRODUCT(Q4_0); PRODUCT(Q4_1); PRODUCT(Q5_0); PRODUCT(Q5_1); PRODUCT(Q8_0); PRODUCT(IQ4_NL);
    PRODUCT(Q2_K); PRODUCT(Q3_K); PRODUCT(Q4_K); PRODUCT(Q5_K); PRODUCT(Q6_K); PRODUCT(IQ4_XS);
#undef PRODUCT
  }
  finish(out, m, n, stride, parts, act, bias ? bias + first : 0, residual ? residual + at : 0,
         y + at, width);
}

// `gate` in engine/ops/gate.py: x (tokens, 2 f) -> y (tokens, f).
EXPORT void gate_rows(const uint32_t *step, const float *x, float *y, int f, Act act) {
  for (uint32_t t = 0; t < step[NUM_TOKENS]; t++)
    gate(x + t * 2 * f, x + t * 2 * f + f, f, act, y + t * f);
}

// `rmsnorm` in engine/ops/norm.py: x (tokens, k) -> y of that shape; residual may be null.
EXPORT void rmsnorm(const uint32_t *step, const float *x, const float *gain, const float *residual,
                    float *y, int k, float eps) {
  for (uint32_t t = 0; t < step[NUM_TOKENS]; t++) {
    normalize(x + t * k, gain, 0, eps, k, 0, y + t * k);
    for (int i = 0; residual && i < k; i++) y[t * k + i] += residual[t * k + i];
  }
}

// y (k) = a row of file blocks, times `factor`.
INLINE void dequantize(Quant quant, const uint8_t *row, int k, float factor, float *y) {
  const int parts = parts_of(quant), each = halved(quant) ? 16 : BLOCK;
  for (int i = 0; i < k; i += BLOCK * parts, row += bytes_of(quant)) {
    float d[MOST_SCALES], m[MOST_SCALES] = {0};
    scales_of(quant, row, d, m);
#pragma unroll
    for (int p = 0; p < parts; p++) {
      v128_t q[4];
      int16_t values[BLOCK];
      unpack(quant, row, p, q);
      for (int j = 0; j < 4; j++) wasm_v128_store(values + 8 * j, q[j]);
      for (int j = 0; j < BLOCK; j++) {
        int scale = (BLOCK * p + j) / each;
        y[i + BLOCK * p + j] = (d[scale] * (float)values[j] + m[scale]) * factor;
      }
    }
  }
}

// y (tokens, k) = the rows of w (rows, k) that ids name, times `factor`, `first` being the id of the
// first row; rows of ids that are not among them stay as they are.
EXPORT void embed(const uint32_t *step, const uint32_t *ids, const uint8_t *w, float *y,
                  Quant quant, int k, uint32_t rows, uint32_t first, float factor) {
  for (uint32_t t = 0; t < step[NUM_TOKENS]; t++, y += k) {
    uint32_t row = ids[t] - first;
    if (row >= rows) continue;
    switch (quant) {
#define ROW(Q) \
  case Q: dequantize(Q, w + row * (uint32_t)(k / BLOCK / parts_of(Q) * bytes_of(Q)), k, factor, y); break
      ROW(Q4_0); ROW(Q4_1); ROW(Q5_0); ROW(Q5_1); ROW(Q8_0); ROW(IQ4_NL);
      ROW(Q2_K); ROW(Q3_K); ROW(Q4_K); ROW(Q5_K); ROW(Q6_K); ROW(IQ4_XS);
#undef ROW
    }
  }
}

#include "cpu_attention.h"  // exports rope_store and attention
#include "cpu_floats.h"     // exports linear_floats, normalize_rows and attend_views
