// SIMD kernels of the CPU device, a WebAssembly side module: engine/backends/native.py loads it
// into Pyodide's memory, so that all pointers are those of NumPy arrays. On the build machine
// engine/host/simd/ says what WebAssembly's vectors are there.
//
// Matrices stay as they lie in the file (cpu_quants.h). A row of activations becomes 16-bit
// integers per block of 32, whose products with the integers of the weights add up exactly in 32
// bits; only the scales of both are f32.

#include "cpu_quants.h"

#define EXPORT __attribute__((visibility("default")))

enum { BLOCK = 32, LARGEST = 32767 };
enum { POSITION, NUM_TOKENS };  // words of the step record

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

static void normalize(const float *x, const float *gain, float eps, int k, float *y) {
  v128_t squares = wasm_f32x4_splat(0);
  for (int i = 0; i < k; i += 4) {
    v128_t v = wasm_v128_load(x + i);
    squares = wasm_f32x4_add(squares, wasm_f32x4_mul(v, v));
  }
  v128_t inverse = wasm_f32x4_splat(1 / __builtin_sqrtf(sum_of(squares) / k + eps));
  for (int i = 0; i < k; i += 4) {
    v128_t v = wasm_f32x4_mul(wasm_v128_load(x + i), inverse);
    wasm_v128_store(y + i, wasm_f32x4_mul(v, wasm_v128_load(gain + i)));
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

// act(g) * u of f pairs; act is SiLU, or GELU by tanh: x / (1 + e^-s) with s = x or
// 2 sqrt(2 / pi) (x + 0.044715 x^3).
static void gate(const float *g, const float *u, int f, int gelu, float *y) {
  for (int i = 0; i < f; i += 4) {
    float in[8] = {0}, out[4];
    int count = f - i < 4 ? f - i : 4;
    for (int j = 0; j < count; j++) in[j] = g[i + j], in[4 + j] = u[i + j];
    v128_t v = wasm_v128_load(in), one = wasm_f32x4_splat(1);
    v128_t cubic = wasm_f32x4_mul(wasm_f32x4_mul(v, v), wasm_f32x4_splat(0.0713548163f));
    v128_t slope = wasm_f32x4_add(cubic, wasm_f32x4_splat(1.5957691216f));
    v128_t s = gelu ? wasm_f32x4_mul(v, slope) : v;
    v128_t share = wasm_f32x4_div(v, wasm_f32x4_add(one, exp_of(wasm_f32x4_neg(s))));
    wasm_v128_store(out, wasm_f32x4_mul(share, wasm_v128_load(in + 4)));
    for (int j = 0; j < count; j++) y[i + j] = out[j];
  }
}

// Bytes that `linear` needs of scratch memory.
EXPORT int linear_scratch(int capacity, int n, int k) {
  return capacity * (k / BLOCK) * (int)sizeof(Block) + (k + capacity * n) * (int)sizeof(float);
}

// What the references of linear (parts 1) and gated_linear (parts 2) in engine/ops/linear.py do.
// x (capacity, k), w (n, k) quantized, y (capacity, width), of which n / parts from `first` on are
// written; gain, bias and residual, which are as wide as y, may be null.
EXPORT void linear(const uint32_t *step, const float *x, const uint8_t *w, float *y,
                   uint8_t *scratch, Quant quant, int capacity, int n, int k, int parts, int gelu,
                   int width, int first, const float *gain, float eps, const float *bias,
                   const float *residual) {
  int blocks = k / BLOCK, m = (int)step[NUM_TOKENS] < capacity ? (int)step[NUM_TOKENS] : capacity;
  Block *quants = (Block *)scratch;
  float *normal = (float *)(quants + m * blocks), *out = parts == 2 ? normal + k : y + first;
  int stride = parts == 2 ? n : width;
  for (int t = 0; t < m; t++) {
    const float *row = x + t * k;
    if (gain) normalize(row, gain, eps, k, normal), row = normal;
    quantize(row, blocks, quants + t * blocks);
  }
  switch (quant) {
#define PRODUCT(Q) case Q: product_##Q(quants, m, w, n, blocks, out, stride); break
    PRODUCT(Q4_0); PRODUCT(Q4_1); PRODUCT(Q5_0); PRODUCT(Q5_1); PRODUCT(Q8_0); PRODUCT(IQ4_NL);
    PRODUCT(Q2_K); PRODUCT(Q3_K); PRODUCT(Q4_K); PRODUCT(Q5_K); PRODUCT(Q6_K); PRODUCT(IQ4_XS);
#undef PRODUCT
  }
  for (int t = 0; bias && t < m; t++)
    for (int i = 0; i < n; i++) out[t * stride + i] += bias[first + i];
  for (int t = 0; residual && t < m; t++)
    for (int i = 0; i < n; i++) out[t * stride + i] += residual[t * width + first + i];
  for (int t = 0; parts == 2 && t < m; t++)
    gate(out + t * n, out + t * n + n / 2, n / 2, gelu, y + t * width + first);
}

// `gate` in engine/ops/gate.py: x (tokens, 2 f) -> y (tokens, f).
EXPORT void gate_rows(const uint32_t *step, const float *x, float *y, int f, int gelu) {
  for (uint32_t t = 0; t < step[NUM_TOKENS]; t++)
    gate(x + t * 2 * f, x + t * 2 * f + f, f, gelu, y + t * f);
}

// `rmsnorm` in engine/ops/norm.py: x (tokens, k) -> y of that shape; residual may be null.
EXPORT void rmsnorm(const uint32_t *step, const float *x, const float *gain, const float *residual,
                    float *y, int k, float eps) {
  for (uint32_t t = 0; t < step[NUM_TOKENS]; t++) {
    normalize(x + t * k, gain, eps, k, y + t * k);
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

// ---- Attention ----------------------------------------------------------------------------------

enum { KV_BLOCK = 16 };  // tokens in a physical block

// Where the KV head of the token at `position` lies in a pool (blocks, kv_heads, KV_BLOCK, dim).
INLINE int place(const uint32_t *table, int position, int head, int kv_heads, int dim) {
  int block = (int)table[position / KV_BLOCK];
  return ((block * kv_heads + head) * KV_BLOCK + position % KV_BLOCK) * dim;
}

// rotate_and_store in engine/ops/attention.py: qkv (tokens, q_heads + 2 kv_heads, dim),
// rope (context, dim / 2, 2), q (tokens, q_heads, dim); `rotary` elements of a head are rotated.
EXPORT void rope_store(const uint32_t *step, const uint32_t *table, const float *rope,
                       const float *qkv, float *q, float *k_pool, float *v_pool, int q_heads,
                       int kv_heads, int dim, int rotary, int halves) {
  // Pair i is (i, i + rotary / 2) or (2i, 2i + 1).
  int stride = halves ? 1 : 2, apart = halves ? rotary / 2 : 1;
  for (int t = 0; t < (int)step[NUM_TOKENS]; t++) {
    int position = (int)step[POSITION] + t;
    const float *turn = rope + position * dim, *in = qkv + t * (q_heads + 2 * kv_heads) * dim;
    for (int head = 0; head < q_heads + kv_heads; head++, in += dim) {
      float *out = head < q_heads
                       ? q + (t * q_heads + head) * dim
                       : k_pool + place(table, position, head - q_heads, kv_heads, dim);
      for (int i = rotary; i < dim; i++) out[i] = in[i];
      for (int i = 0; i < rotary / 2; i++) {
        float low = in[stride * i], high = in[stride * i + apart];
        out[stride * i] = low * turn[2 * i] - high * turn[2 * i + 1];
        out[stride * i + apart] = low * turn[2 * i + 1] + high * turn[2 * i];
      }
    }
    for (int head = 0; head < kv_heads; head++, in += dim)
      __builtin_memcpy(v_pool + place(table, position, head, kv_heads, dim), in, 4 * (unsigned)dim);
  }
}

// The end of the tokens from `from` on that lie in the same block, `length` at most.
INLINE int block_end(int from, int length) {
  int end = (from / KV_BLOCK + 1) * KV_BLOCK;
  return end < length ? end : length;
}

// Sums of values for 4 * C elements of R query heads; `values` is the pool from these elements on.
INLINE void mix(const int R, const int C, const float *values, const uint32_t *table, int first,
                int length, int head, int kv_heads, int dim, const float *weights, int stride,
                float *y) {
  v128_t sums[R * C];
  for (int i = 0; i < R * C; i++) sums[i] = wasm_f32x4_splat(0);
  for (int from = first, to; from < length; from = to) {
    const float *row = values + place(table, from, head, kv_heads, dim);
    to = block_end(from, length);
    for (int t = from; t < to; t++, row += dim) {
      v128_t v[C];
      for (int c = 0; c < C; c++) v[c] = wasm_v128_load(row + 4 * c);
      for (int r = 0; r < R; r++) {
        v128_t weight = wasm_v128_load32_splat(weights + r * stride + t - first);
        for (int c = 0; c < C; c++)
          sums[r * C + c] = wasm_f32x4_add(sums[r * C + c], wasm_f32x4_mul(weight, v[c]));
      }
    }
  }
  for (int i = 0; i < R * C; i++) wasm_v128_store(y + i / C * dim + i % C * 4, sums[i]);
}

// scores[t] becomes e^(scores[t] - largest) / sum, for `length` scores and room for 3 more.
static void softmax(float *scores, int length) {
  for (int t = length; t % 4; t++) scores[t] = -1e30f;
  v128_t largest = wasm_f32x4_splat(-1e30f), sum = wasm_f32x4_splat(0);
  for (int t = 0; t < length; t += 4)
    largest = wasm_f32x4_pmax(largest, wasm_v128_load(scores + t));
  largest = wasm_f32x4_splat(max_of(largest));
  for (int t = 0; t < length; t += 4) {
    v128_t e = exp_of(wasm_f32x4_sub(wasm_v128_load(scores + t), largest));
    wasm_v128_store(scores + t, e);
    sum = wasm_f32x4_add(sum, e);
  }
  v128_t inverse = wasm_f32x4_splat(1 / sum_of(sum));
  for (int t = 0; t < length; t += 4)
    wasm_v128_store(scores + t, wasm_f32x4_mul(wasm_v128_load(scores + t), inverse));
}

// R query heads of one token that share a KV head: q (R, dim) -> y (R, dim). It sees the tokens from
// `first` on.
INLINE void attend(const int R, const float *q, const float *keys, const float *values,
                   const uint32_t *table, int first, int length, int head, int kv_heads, int dim,
                   float scale, float *scores, float *y) {
  int stride = (length - first + 3) / 4 * 4, d = 0;
  for (int from = first, to; from < length; from = to) {
    const float *key = keys + place(table, from, head, kv_heads, dim);
    to = block_end(from, length);
    for (int t = from; t < to; t++, key += dim) {
      v128_t sums[R];
      for (int r = 0; r < R; r++) sums[r] = wasm_f32x4_splat(0);
      for (int i = 0; i < dim; i += 4) {
        v128_t k = wasm_v128_load(key + i);
        for (int r = 0; r < R; r++)
          sums[r] = wasm_f32x4_add(sums[r], wasm_f32x4_mul(k, wasm_v128_load(q + r * dim + i)));
      }
      for (int r = 0; r < R; r++) scores[r * stride + t - first] = sum_of(sums[r]) * scale;
    }
  }
  for (int r = 0; r < R; r++) softmax(scores + r * stride, length - first);
  for (; d + 16 <= dim; d += 16)
    mix(R, 4, values + d, table, first, length, head, kv_heads, dim, scores, stride, y + d);
  for (; d < dim; d += 8)
    mix(R, 2, values + d, table, first, length, head, kv_heads, dim, scores, stride, y + d);
}

// Bytes that `attention` needs of scratch memory: scores of three query heads.
EXPORT int attention_scratch(int context) { return 3 * (context + 3) * (int)sizeof(float); }

// `attend` in engine/ops/attention.py: q (tokens, q_heads, dim) -> y of the same shape. A token
// sees the last `window` tokens, or all if that is 0.
EXPORT void attention(const uint32_t *step, const uint32_t *table, const float *q,
                      const float *k_pool, const float *v_pool, float *y, float *scratch,
                      int q_heads, int kv_heads, int dim, float scale, int window) {
  int group = q_heads / kv_heads;
  for (int t = 0; t < (int)step[NUM_TOKENS]; t++) {
    int length = (int)step[POSITION] + t + 1;
    int first = window && window < length ? length - window : 0;
    for (int h = 0, heads; h < q_heads; h += heads) {
      int head = h / group, at = (t * q_heads + h) * dim, left = group - h % group;
      heads = left < 3 ? left : 3;  // of those that share these keys
#define ATTEND(R) \
  attend(R, q + at, k_pool, v_pool, table, first, length, head, kv_heads, dim, scale, scratch, \
         y + at)
      if (heads == 3) ATTEND(3);
      if (heads == 2) ATTEND(2);
      if (heads == 1) ATTEND(1);
#undef ATTEND
    }
  }
}
