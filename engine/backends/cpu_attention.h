// Rotation, the KV store and attention of cpu.c, over pools of f32, or of bytes with scales.
//
// Pools are (blocks, kv_heads, KV_BLOCK, dim) f32, or words (blocks, kv_heads, ...): the bytes of a
// head's tokens in a block, then their scales (engine/ops/kv_values.py). `bytes` is always known
// where functions are inlined, so that nothing is left of the choice.

#pragma once

enum { KV_BLOCK = 16 };  // tokens in a physical block

// A KV head of a token: where its values are, and the halves that scale them, if they are bytes.
typedef struct {
  uint8_t *values, *scales;
} Row;

INLINE int scales_of_row(int dim) { return (dim + 63) / 64 * 4; }  // bytes, of whole words

INLINE Row row_at(const int bytes, const void *pool, const uint32_t *table, int position, int head,
                  int kv_heads, int dim) {
  int slot = (int)table[position / KV_BLOCK] * kv_heads + head, token = position % KV_BLOCK;
  uint8_t *start = (uint8_t *)pool;
  if (!bytes) return (Row){start + (slot * KV_BLOCK + token) * dim * (int)sizeof(float), 0};
  start += slot * KV_BLOCK * (dim + scales_of_row(dim));
  return (Row){start + token * dim, start + KV_BLOCK * dim + token * scales_of_row(dim)};
}

// The row of the next token in the same block.
INLINE Row next_row(const int bytes, Row row, int dim) {
  if (!bytes) return (Row){row.values + dim * (int)sizeof(float), 0};
  return (Row){row.values + dim, row.scales + scales_of_row(dim)};
}

// Elements i to i + 3 of a row; i is a multiple of 4.
INLINE v128_t load4(const int bytes, Row row, int i) {
  if (!bytes) return wasm_v128_load((const float *)row.values + i);
  v128_t q = wasm_i16x8_extend_low_i8x16(wasm_v128_load32_splat(row.values + i));
  q = wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(q));
  return wasm_f32x4_mul(q, wasm_f32x4_splat(half_at(row.scales + i / BLOCK * 2)));
}

// The half nearest to x >= 0, to the even one of two.
static uint16_t half_of(float x) {
  union { float value; uint32_t bits; } v = {x};
  if (!(x < 65520)) return x >= 65520 ? 0x7c00 : 0x7e00;
  if (x < 0x1p-14f)
    return (uint16_t)wasm_i32x4_extract_lane(
        wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(wasm_f32x4_splat(x * 0x1p24f))), 0);
  v.bits += 0xfff + ((v.bits >> 13) & 1);
  return (uint16_t)((v.bits >> 13) - (112 << 10));
}

// `quantize` in engine/ops/kv_values.py: x (dim) into a row of bytes.
static void store_bytes(Row row, const float *x, int dim) {
  for (int i = 0; i < scales_of_row(dim); i++) row.scales[i] = 0;
  for (int start = 0; start < dim; start += BLOCK) {
    int end = start + BLOCK < dim ? start + BLOCK : dim;
    v128_t peaks = wasm_f32x4_splat(0);
    for (int i = start; i < end; i += 4)
      peaks = wasm_f32x4_pmax(peaks, wasm_f32x4_abs(wasm_v128_load(x + i)));
    uint16_t half = half_of(max_of(peaks) / 127);
    float scale = halves[half];
    __builtin_memcpy(row.scales + start / BLOCK * 2, &half, 2);
    v128_t inverse = wasm_f32x4_splat(scale > 0 ? 1 / scale : 0);
    for (int i = start; i < end; i += 4) {
      v128_t q = wasm_f32x4_nearest(wasm_f32x4_mul(wasm_v128_load(x + i), inverse));
      q = wasm_f32x4_max(wasm_f32x4_min(q, wasm_f32x4_splat(127)), wasm_f32x4_splat(-127));
      q = wasm_i32x4_trunc_sat_f32x4(q);
      row.values[i] = (uint8_t)wasm_i32x4_extract_lane(q, 0);
      row.values[i + 1] = (uint8_t)wasm_i32x4_extract_lane(q, 1);
      row.values[i + 2] = (uint8_t)wasm_i32x4_extract_lane(q, 2);
      row.values[i + 3] = (uint8_t)wasm_i32x4_extract_lane(q, 3);
    }
  }
}

// rotate_and_store in engine/ops/attention.py: qkv (tokens, q_heads + 2 kv_heads, dim),
// rope (context, dim / 2, 2), q (tokens, q_heads, dim); `rotary` elements of a head are rotated.
// `turned` is room for a head.
EXPORT void rope_store(const uint32_t *step, const uint32_t *table, const float *rope,
                       const float *qkv, float *q, void *k_pool, void *v_pool, float *turned,
                       int bytes, int q_heads, int kv_heads, int dim, int rotary, int halved) {
  // Pair i is (i, i + rotary / 2) or (2i, 2i + 1).
  int stride = halved ? 1 : 2, apart = halved ? rotary / 2 : 1;
  for (int t = 0; t < (int)step[NUM_TOKENS]; t++) {
    int position = (int)step[POSITION] + t;
    const float *turn = rope + position * dim, *in = qkv + t * (q_heads + 2 * kv_heads) * dim;
    for (int head = 0; head < q_heads + kv_heads; head++, in += dim) {
      int is_key = head >= q_heads;
      Row row = {0};
      if (is_key) row = row_at(bytes, k_pool, table, position, head - q_heads, kv_heads, dim);
      float *stored = bytes ? turned : (float *)row.values;
      float *out = is_key ? stored : q + (t * q_heads + head) * dim;
      for (int i = rotary; i < dim; i++) out[i] = in[i];
      for (int i = 0; i < rotary / 2; i++) {
        float low = in[stride * i], high = in[stride * i + apart];
        out[stride * i] = low * turn[2 * i] - high * turn[2 * i + 1];
        out[stride * i + apart] = low * turn[2 * i + 1] + high * turn[2 * i];
      }
      if (is_key && bytes) store_bytes(row, turned, dim);
    }
    for (int head = 0; head < kv_heads; head++, in += dim) {
      Row row = row_at(bytes, v_pool, table, position, head, kv_heads, dim);
      if (bytes)
        store_bytes(row, in, dim);
      else
        __builtin_memcpy(row.values, in, 4 * (unsigned)dim);
    }
  }
}

// The end of the tokens from `from` on that lie in the same block, `length` at most.
INLINE int block_end(int from, int length) {
  int end = (from / KV_BLOCK + 1) * KV_BLOCK;
  return end < length ? end : length;
}

// Sums of values for 4 * C elements, from `start` on, of R query heads.
INLINE void mix(const int bytes, const int R, const int C, const void *values, int start,
                const uint32_t *table, int first, int length, int head, int kv_heads, int dim,
                const float *weights, int stride, float *y) {
  v128_t sums[R * C];
  for (int i = 0; i < R * C; i++) sums[i] = wasm_f32x4_splat(0);
  for (int from = first, to; from < length; from = to) {
    Row row = row_at(bytes, values, table, from, head, kv_heads, dim);
    to = block_end(from, length);
    for (int t = from; t < to; t++, row = next_row(bytes, row, dim)) {
      v128_t v[C];
      for (int c = 0; c < C; c++) v[c] = load4(bytes, row, start + 4 * c);
      for (int r = 0; r < R; r++) {
        v128_t weight = wasm_v128_load32_splat(weights + r * stride + t - first);
        for (int c = 0; c < C; c++)
          sums[r * C + c] = wasm_f32x4_add(sums[r * C + c], wasm_f32x4_mul(weight, v[c]));
      }
    }
  }
  for (int i = 0; i < R * C; i++) wasm_v128_store(y + i / C * dim + start + i % C * 4, sums[i]);
}

// scores[t] becomes e^(scores[t] - largest) / sum, for `length` scores and room for 3 more. If all
// are -infinity, there is no such number.
static void softmax(float *scores, int length) {
  for (int t = length; t % 4; t++) scores[t] = -__builtin_inff();
  v128_t largest = wasm_f32x4_splat(-__builtin_inff()), sum = wasm_f32x4_splat(0);
  for (int t = 0; t < length; t += 4)
    largest = wasm_f32x4_pmax(largest, wasm_v128_load(scores + t));
  largest = wasm_f32x4_splat(max_of(largest));
  for (int t = 0; t < length; t += 4) {
    v128_t x = wasm_f32x4_sub(wasm_v128_load(scores + t), largest), e = exp_of(x);
    // Below, exp_of ends in numbers that are slow to multiply.
    e = wasm_v128_andnot(e, wasm_f32x4_lt(x, wasm_f32x4_splat(-87.0f)));
    wasm_v128_store(scores + t, e);
    sum = wasm_f32x4_add(sum, e);
  }
  v128_t inverse = wasm_f32x4_splat(1 / sum_of(sum));
  for (int t = 0; t < length; t += 4)
    wasm_v128_store(scores + t, wasm_f32x4_mul(wasm_v128_load(scores + t), inverse));
}

// R query heads of one token that share a KV head: q (R, dim) -> y (R, dim). It sees the tokens from
// `first` on.
INLINE void attend(const int bytes, const int R, const float *q, const void *keys,
                   const void *values, const uint32_t *table, int first, int length, int head,
                   int kv_heads, int dim, float scale, float *scores, float *y) {
  int stride = (length - first + 3) / 4 * 4, d = 0;
  for (int from = first, to; from < length; from = to) {
    Row key = row_at(bytes, keys, table, from, head, kv_heads, dim);
    to = block_end(from, length);
    for (int t = from; t < to; t++, key = next_row(bytes, key, dim)) {
      v128_t sums[R];
      for (int r = 0; r < R; r++) sums[r] = wasm_f32x4_splat(0);
      for (int i = 0; i < dim; i += 4) {
        v128_t k = load4(bytes, key, i);
        for (int r = 0; r < R; r++)
          sums[r] = wasm_f32x4_add(sums[r], wasm_f32x4_mul(k, wasm_v128_load(q + r * dim + i)));
      }
      for (int r = 0; r < R; r++) scores[r * stride + t - first] = sum_of(sums[r]) * scale;
    }
  }
  for (int r = 0; r < R; r++) softmax(scores + r * stride, length - first);
  for (; d + 16 <= dim; d += 16)
    mix(bytes, R, 4, values, d, table, first, length, head, kv_heads, dim, scores, stride, y);
  for (; d < dim; d += 8)
    mix(bytes, R, 2, values, d, table, first, length, head, kv_heads, dim, scores, stride, y);
}

// All tokens of a step.
INLINE void attend_all(const int bytes, const uint32_t *step, const uint32_t *table, const float *q,
                       const void *k_pool, const void *v_pool, float *y, float *scratch,
                       int q_heads, int kv_heads, int dim, float scale, int window) {
  int group = q_heads / kv_heads;
  for (int t = 0; t < (int)step[NUM_TOKENS]; t++) {
    int length = (int)step[POSITION] + t + 1;
    int first = window && window < length ? length - window : 0;
    for (int h = 0, heads; h < q_heads; h += heads) {
      int head = h / group, at = (t * q_heads + h) * dim, left = group - h % group;
      heads = left < 3 ? left : 3;  // of those that share these keys
#define ATTEND(R) \
  attend(bytes, R, q + at, k_pool, v_pool, table, first, length, head, kv_heads, dim, scale, \
         scratch, y + at)
      if (heads == 3) ATTEND(3);
      if (heads == 2) ATTEND(2);
      if (heads == 1) ATTEND(1);
#undef ATTEND
    }
  }
}

// A function for each kind of pools: engines compile a huge one badly.
#define ATTENTION(NAME, BYTES)                                                                  \
  static __attribute__((noinline)) void NAME(                                                   \
      const uint32_t *step, const uint32_t *table, const float *q, const void *k_pool,          \
      const void *v_pool, float *y, float *scratch, int q_heads, int kv_heads, int dim,         \
      float scale, int window) {                                                                \
    attend_all(BYTES, step, table, q, k_pool, v_pool, y, scratch, q_heads, kv_heads, dim,       \
               scale, window);                                                                  \
  }
ATTENTION(attend_floats, 0)
ATTENTION(attend_bytes, 1)
#undef ATTENTION

// Bytes that `attention` needs of scratch memory: scores of three query heads.
EXPORT int attention_scratch(int context) { return 3 * (context + 3) * (int)sizeof(float); }

// `attend` in engine/ops/attention.py: q (tokens, q_heads, dim) -> y of the same shape. A token
// sees the last `window` tokens, or all if that is 0.
EXPORT void attention(const uint32_t *step, const uint32_t *table, const float *q,
                      const void *k_pool, const void *v_pool, float *y, float *scratch, int bytes,
                      int q_heads, int kv_heads, int dim, float scale, int window) {
  if (bytes)
    attend_bytes(step, table, q, k_pool, v_pool, y, scratch, q_heads, kv_heads, dim, scale, window);
  else
    attend_floats(step, table, q, k_pool, v_pool, y, scratch, q_heads, kv_heads, dim, scale, window);
}
