// Products, normalization and attention of f32 in cpu.c, as graphs have them.

#pragma once

enum { QUERIES = 64 };  // of attention that a run computes at least

// ---- Linear layers ------------------------------------------------------------------------------

// y[t * stride + r] for R rows and T tokens, over k elements four at a time.
INLINE void tile_floats(const int R, const int T, const float *w, const float *x, int k, float *y,
                        int stride) {
  v128_t sums[R * T];
  for (int i = 0; i < R * T; i++) sums[i] = wasm_f32x4_splat(0);
  for (int i = 0; i < k; i += 4) {
    v128_t rows[R];
#pragma unroll
    for (int r = 0; r < R; r++) rows[r] = wasm_v128_load(w + r * k + i);
#pragma unroll
    for (int t = 0; t < T; t++) {
      v128_t token = wasm_v128_load(x + t * k + i);
#pragma unroll
      for (int r = 0; r < R; r++)
        sums[t * R + r] = wasm_f32x4_add(sums[t * R + r], wasm_f32x4_mul(rows[r], token));
    }
  }
#pragma unroll
  for (int i = 0; i < R * T; i++) y[i / R * stride + i % R] = sum_of(sums[i]);
}

// y (m, n), rows of which are `stride` apart, = x (m, k) times w (n, k) transposed; k is a multiple
// of 4. Eight sums and what they are made of fit into 16 registers.
static void product_floats(const float *x, int m, const float *w, int n, int k, float *y,
                           int stride) {
  enum { ROWS = 4, TOKENS = 2 };
  int tiled = m / TOKENS * TOKENS, r = 0;
  for (; r + ROWS <= n; r += ROWS) {
    for (int t = 0; t < tiled; t += TOKENS)
      tile_floats(ROWS, TOKENS, w + r * k, x + t * k, k, y + t * stride + r, stride);
    if (tiled < m)
      tile_floats(ROWS, 1, w + r * k, x + tiled * k, k, y + tiled * stride + r, stride);
  }
  for (; r < n; r++)
    for (int t = 0; t < m; t++) tile_floats(1, 1, w + r * k, x + t * k, k, y + t * stride + r, stride);
}

// Bytes that `linear_floats` needs of scratch memory for so many tokens.
EXPORT int linear_floats_scratch(int tokens, int n, int k) {
  return tokens * (n + k) * (int)sizeof(float);
}

// As `linear`, with w (n, k) f32.
EXPORT void linear_floats(int from, int to, const uint32_t *step, const float *x, const float *w,
                          float *y, float *scratch, int n, int k, int parts, Act act, int width,
                          int first, const float *gain, float eps, const float *bias,
                          const float *residual) {
  int m = tokens_within(step, from, to), at = from * width + first;
  float *normal = scratch, *out = parts == 2 ? normal + m * k : y + at;
  int stride = parts == 2 ? n : width;
  x += from * k;
  for (int t = 0; gain && t < m; t++) normalize(x + t * k, gain, 0, eps, k, 0, normal + t * k);
  product_floats(gain ? normal : x, m, w, n, k, out, stride);
  finish(out, m, n, stride, parts, act, bias ? bias + first : 0, residual ? residual + at : 0,
         y + at, width);
}

// `normalization` in engine/ops/rows.py: rows `from` to `to` of x (rows, k) -> y of that shape.
EXPORT void normalize_rows(int from, int to, const float *x, const float *gain, const float *bias,
                           float *y, int k, float eps, int centred) {
  for (int t = from; t < to; t++) normalize(x + t * k, gain, bias, eps, k, centred, y + t * k);
}

// ---- Attention ----------------------------------------------------------------------------------

// y (T, 4 C) = x (T, k) times w (k, 4 C); each has rows of its own length.
INLINE void columns(const int T, const int C, const float *x, int x_row, const float *w, int w_row,
                    int k, float *y, int y_row) {
  v128_t sums[T * C];
  for (int i = 0; i < T * C; i++) sums[i] = wasm_f32x4_splat(0);
  for (int i = 0; i < k; i++) {
    v128_t v[C];
#pragma unroll
    for (int c = 0; c < C; c++) v[c] = wasm_v128_load(w + i * w_row + 4 * c);
#pragma unroll
    for (int t = 0; t < T; t++) {
      v128_t factor = wasm_v128_load32_splat(x + t * x_row + i);
#pragma unroll
      for (int c = 0; c < C; c++)
        sums[t * C + c] = wasm_f32x4_add(sums[t * C + c], wasm_f32x4_mul(factor, v[c]));
    }
  }
#pragma unroll
  for (int i = 0; i < T * C; i++) wasm_v128_store(y + i / C * y_row + i % C * 4, sums[i]);
}

// y (T, n) = x (T, k) times w (k, n); n is a multiple of 4.
INLINE void strip(const int T, const float *x, int x_row, const float *w, int w_row, int k, int n,
                  float *y, int y_row) {
  int i = 0;
  for (; i + 8 <= n; i += 8) columns(T, 2, x, x_row, w + i, w_row, k, y + i, y_row);
  if (i < n) columns(T, 1, x, x_row, w + i, w_row, k, y + i, y_row);
}

// A matrix of each head: strides of (batch, head, row, element), and where the first one is.
typedef struct {
  int batch, head, row, element, at;
} Layout;

INLINE int start_of(const Layout *layout, int batch, int head) {
  return layout->at + batch * layout->batch + head * layout->head;
}

// Sizes of attention: queries, keys, elements of a query and of a value.
typedef struct {
  int m, n, width, values;
} Sizes;

// T queries of one head, from q on, whose results are `y_row` apart. `keys` (width, padded) are
// transposed, their padding is anything; scores has room for T rows as long as theirs. A query may
// see no key: its results are no numbers, or zeros if `guarded`.
INLINE void attend_queries(const int T, const Sizes *size, const float *q, int q_row,
                           const float *keys, const float *v, int v_row, const float *mask,
                           const Layout *masked, float scale, int guarded, float *scores, float *y,
                           int y_row) {
  int padded = (size->n + 3) / 4 * 4;
  strip(T, q, q_row, keys, padded, size->width, padded, scores, padded);
  for (int t = 0; t < T; t++) {
    float *row = scores + t * padded;
    const float *added = mask ? mask + t * masked->row : 0;
    for (int i = 0; i < size->n; i++) row[i] *= scale;
    if (mask && masked->element == 1)
      for (int i = 0; i < size->n; i++) row[i] += added[i];
    else if (mask)
      for (int i = 0; i < size->n; i++) row[i] += added[i * masked->element];
    softmax(row, size->n);
    for (int i = 0; guarded && i < size->n; i++) row[i] = row[i] == row[i] ? row[i] : 0;
  }
  strip(T, scores, padded, v, v_row, size->n, size->values, y, y_row);
}

// Bytes that `attend_views` needs of scratch memory.
EXPORT int attend_scratch(int n, int width) {
  return (width + 4) * ((n + 3) / 4 * 4) * (int)sizeof(float);
}

// `attend` in engine/ops/attend.py, for blocks `from` to `to` of QUERIES queries of each head; mask
// may be null. layouts are those of q, k, v, y and mask; elements of the first four lie side by
// side, and there are 4 i of them.
EXPORT void attend_views(int from, int to, const float *q, const float *k, const float *v,
                         const float *mask, float *y, float *scratch, const Layout *layouts,
                         const Sizes *size, int heads, float scale, int guarded) {
  const Layout *ql = layouts, *kl = ql + 1, *vl = ql + 2, *yl = ql + 3, *ml = ql + 4;
  int blocks = (size->m + QUERIES - 1) / QUERIES, padded = (size->n + 3) / 4 * 4;
  float *keys = scratch, *scores = keys + size->width * padded;
  for (int i = from; i < to; i++) {
    int batch = i / blocks / heads, head = i / blocks % heads, t = i % blocks * QUERIES;
    int end = t + QUERIES < size->m ? t + QUERIES : size->m;
    const float *key = k + start_of(kl, batch, head), *value = v + start_of(vl, batch, head);
    for (int j = 0; j < size->n; j++)
      for (int d = 0; d < size->width; d++) keys[d * padded + j] = key[j * kl->row + d];
#define ATTEND(T)                                                                               \
  attend_queries(T, size, q + start_of(ql, batch, head) + t * ql->row, ql->row, keys, value,     \
                 vl->row, mask ? mask + start_of(ml, batch, head) + t * ml->row : 0, ml, scale,  \
                 guarded, scores, y + start_of(yl, batch, head) + t * yl->row, yl->row)
    for (; t + 4 <= end; t += 4) ATTEND(4);
    for (; t < end; t++) ATTEND(1);
#undef ATTEND
  }
}
