// SIMD kernels of the CPU device, a WebAssembly side module: engine/backends/native.py loads it
// into Pyodide's memory, so that all pointers are those of NumPy arrays.
//
// Matrices stay as they lie in the file. A row of activations becomes 16-bit integers per block
// of 32, whose products with 4- or 8-bit weights add up exactly in 32 bits; only the scales of the
// two blocks are f32.

#include <stdint.h>
#include <wasm_simd128.h>

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = 32, LARGEST = 32767 };
enum { POSITION, NUM_TOKENS };  // words of the step record
typedef enum { Q4_0, Q4_1, Q8_0 } Quant;

// 32 activations: x = scale * q. `sum` is that of x, `offset` two times the sum of q: what the
// offset 8 of Q4_0 takes away in each of four lanes.
typedef struct {
  int16_t q[BLOCK];
  float scale, sum;
  int32_t offset, unused;
} Block;

static float halves[65536];  // the f32 value of every f16

EXPORT void prepare(void) {
  for (uint32_t h = 0; h < 65536; h++) {
    union { uint32_t bits; float value; } v = {(h & 0x7fff) << 13};
    v.value *= 0x1p112f;  // also right for subnormals
    v.bits |= (h & 0x8000) << 16;
    halves[h] = v.value;
  }
}

INLINE const float *half_at(const uint8_t *p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return &halves[h];
}

INLINE int bytes_of(Quant quant) {
  return quant == Q4_0 ? 18 : quant == Q4_1 ? 20 : 34;
}

// The integers of a file block as 4 vectors of 8, in order.
INLINE void unpack(Quant quant, const uint8_t *block, v128_t q[4]) {
  if (quant == Q8_0) {
    for (int i = 0; i < 4; i++) q[i] = wasm_i16x8_load8x8(block + 2 + 8 * i);
    return;
  }
  const uint8_t *packed = block + (quant == Q4_0 ? 2 : 4);
  v128_t first = wasm_u16x8_load8x8(packed), second = wasm_u16x8_load8x8(packed + 8);
  q[0] = wasm_v128_and(first, wasm_i16x8_splat(15));
  q[1] = wasm_v128_and(second, wasm_i16x8_splat(15));
  q[2] = wasm_u16x8_shr(first, 4);
  q[3] = wasm_u16x8_shr(second, 4);
}

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

// y[t * stride + r] for R rows and T tokens; the weights of a block are unpacked once for them.
INLINE void tile(Quant quant, const int R, const int T, const uint8_t *w, const Block *x,
                 int blocks, float *y, int stride) {
  v128_t sums[R * T];
  float offsets[R * T];
  for (int i = 0; i < R * T; i++) sums[i] = wasm_f32x4_splat(0), offsets[i] = 0;
  for (int b = 0; b < blocks; b++) {
#pragma unroll
    for (int r = 0; r < R; r++) {
      const uint8_t *block = w + (r * blocks + b) * bytes_of(quant);
      v128_t q[4], d = wasm_v128_load32_splat(half_at(block));
      unpack(quant, block, q);
#pragma unroll
      for (int t = 0; t < T; t++) {
        const Block *a = x + t * blocks + b;
        v128_t dot = wasm_i32x4_dot_i16x8(q[0], wasm_v128_load(a->q));
        dot = wasm_i32x4_add(dot, wasm_i32x4_dot_i16x8(q[1], wasm_v128_load(a->q + 8)));
        dot = wasm_i32x4_add(dot, wasm_i32x4_dot_i16x8(q[2], wasm_v128_load(a->q + 16)));
        dot = wasm_i32x4_add(dot, wasm_i32x4_dot_i16x8(q[3], wasm_v128_load(a->q + 24)));
        if (quant == Q4_0) dot = wasm_i32x4_sub(dot, wasm_v128_load32_splat(&a->offset));
        v128_t scale = wasm_f32x4_mul(d, wasm_v128_load32_splat(&a->scale));
        v128_t part = wasm_f32x4_mul(wasm_f32x4_convert_i32x4(dot), scale);
        sums[r * T + t] = wasm_f32x4_add(sums[r * T + t], part);
        if (quant == Q4_1) offsets[r * T + t] += *half_at(block + 2) * a->sum;
      }
    }
  }
  for (int r = 0; r < R; r++)
    for (int t = 0; t < T; t++) y[t * stride + r] = sum_of(sums[r * T + t]) + offsets[r * T + t];
}

// y (m, n), rows of which are `stride` apart, = x (m, blocks) times w (n, blocks) transposed. Rows
// outside: x fits into a cache.
INLINE void product(Quant quant, const Block *x, int m, const uint8_t *w, int n, int blocks,
                    float *y, int stride) {
  enum { ROWS = 2, TOKENS = 4 };
  int row = blocks * bytes_of(quant), tiled = m / TOKENS * TOKENS, r = 0;
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
    v128_t peaks = wasm_f32x4_splat(0), sums = wasm_i32x4_splat(0);
    for (int i = 0; i < BLOCK; i += 4)
      peaks = wasm_f32x4_pmax(peaks, wasm_f32x4_abs(wasm_v128_load(x + i)));
    float peak = max_of(peaks);
    // A peak so small that its inverse is infinite counts as zero.
    v128_t inverse = wasm_f32x4_splat(peak > 1e-30f ? LARGEST / peak : 0);
    for (int i = 0; i < BLOCK; i += 8) {
      v128_t low = wasm_f32x4_nearest(wasm_f32x4_mul(wasm_v128_load(x + i), inverse));
      v128_t high = wasm_f32x4_nearest(wasm_f32x4_mul(wasm_v128_load(x + i + 4), inverse));
      low = wasm_i32x4_trunc_sat_f32x4(low), high = wasm_i32x4_trunc_sat_f32x4(high);
      sums = wasm_i32x4_add(sums, wasm_i32x4_add(low, high));
      wasm_v128_store(out->q + i, wasm_i16x8_narrow_i32x4(low, high));
    }
    int sum = wasm_i32x4_extract_lane(sums, 0) + wasm_i32x4_extract_lane(sums, 1) +
              wasm_i32x4_extract_lane(sums, 2) + wasm_i32x4_extract_lane(sums, 3);
    out->scale = peak / LARGEST;
    out->sum = out->scale * (float)sum;
    out->offset = 2 * sum;
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
    case Q4_0: product(Q4_0, quants, m, w, n, blocks, out, stride); break;
    case Q4_1: product(Q4_1, quants, m, w, n, blocks, out, stride); break;
    case Q8_0: product(Q8_0, quants, m, w, n, blocks, out, stride); break;
  }
  for (int t = 0; bias && t < m; t++)
    for (int i = 0; i < n; i++) out[t * stride + i] += bias[first + i];
  for (int t = 0; residual && t < m; t++)
    for (int i = 0; i < n; i++) out[t * stride + i] += residual[t * width + first + i];
  for (int t = 0; parts == 2 && t < m; t++)
    gate(out + t * n, out + t * n + n / 2, n / 2, gelu, y + t * (n / 2));
}

// `gate` in engine/ops/linear.py: x (tokens, 2 f) -> y (tokens, f).
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

// y (tokens, k) = the rows of w (vocab, k) that ids name, times `scale`.
EXPORT void embed(const uint32_t *step, const uint32_t *ids, const uint8_t *w, float *y,
                  Quant quant, int k, float scale) {
  int blocks = k / BLOCK, row = blocks * bytes_of(quant);
  for (uint32_t t = 0; t < step[NUM_TOKENS]; t++)
    for (int b = 0; b < blocks; b++) {
      const uint8_t *block = w + ids[t] * row + b * bytes_of(quant);
      float d = *half_at(block), m = quant == Q4_1 ? *half_at(block + 2) : 0;
      v128_t q[4];
      int16_t values[BLOCK];
      unpack(quant, block, q);
      for (int i = 0; i < 4; i++) wasm_v128_store(values + 8 * i, q[i]);
      for (int i = 0; i < BLOCK; i++)
        y[t * k + b * BLOCK + i] =
            (d * (float)(values[i] - (quant == Q4_0 ? 8 : 0)) + m) * scale;
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
