// File blocks of every quantization as integers with scales, w = d * q + m, for cpu.c.
//
// A block of the file is one part of 32 weights, or eight of them. A scale is that of a part, or
// in the quantizations that are `halved` that of 16 weights. `quant` is always known where these
// functions are inlined, so that nothing is left of the choices.

#pragma once

#include <stdint.h>
#include <wasm_simd128.h>

#define INLINE static inline __attribute__((always_inline))

typedef enum {
  Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL,      // 32 weights a block
  Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_XS       // 256
} Quant;

enum { MOST_SCALES = 16 };  // of a file block

static float halves[65536];  // the f32 value of every f16

static void prepare_halves(void) {
  for (uint32_t h = 0; h < 65536; h++) {
    union { uint32_t bits; float value; } v = {(h & 0x7fff) << 13};
    v.value *= 0x1p112f;  // also right for subnormals
    v.bits |= (h & 0x8000) << 16;
    halves[h] = v.value;
  }
}

INLINE float half_at(const uint8_t *p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return halves[h];
}

INLINE uint32_t word_at(const uint8_t *p) {
  uint32_t word;
  __builtin_memcpy(&word, p, 4);
  return word;
}

INLINE int bytes_of(Quant quant) {
  static const int bytes[] = {18, 20, 22, 24, 34, 18, 84, 110, 144, 176, 210, 136};
  return bytes[quant];
}

INLINE int parts_of(Quant quant) { return quant >= Q2_K ? 8 : 1; }

INLINE int halved(Quant quant) { return quant == Q2_K || quant == Q3_K || quant == Q6_K; }

INLINE int has_minimum(Quant quant) {
  return quant == Q4_1 || quant == Q5_1 || quant == Q2_K || quant == Q4_K || quant == Q5_K;
}

// ---- Scales -------------------------------------------------------------------------------------

// The first `count` signed bytes times d, a multiple of four.
INLINE void scaled(v128_t bytes, int count, float d, float *out) {
  v128_t low = wasm_i16x8_extend_low_i8x16(bytes), high = wasm_i16x8_extend_high_i8x16(bytes);
  v128_t words[4] = {wasm_i32x4_extend_low_i16x8(low), wasm_i32x4_extend_high_i16x8(low),
                     wasm_i32x4_extend_low_i16x8(high), wasm_i32x4_extend_high_i16x8(high)};
  for (int i = 0; i < count / 4; i++) {
    v128_t values = wasm_f32x4_mul(wasm_f32x4_convert_i32x4(words[i]), wasm_f32x4_splat(d));
    wasm_v128_store(out + 4 * i, values);
  }
}

// Six bits of sc and of m for each of eight parts (get_scale_min_k4 in ggml-quants.c): of parts 4
// to 7 four bits are in the last four bytes, and two above those of parts 0 to 3.
INLINE void scales_k(const uint8_t *block, float *d, float *m) {
  uint32_t sc = word_at(block + 4), min = word_at(block + 8), rest = word_at(block + 12);
  uint32_t upper_sc = (rest & 0x0f0f0f0f) | ((sc >> 2) & 0x30303030);
  uint32_t upper_min = ((rest >> 4) & 0x0f0f0f0f) | ((min >> 2) & 0x30303030);
  sc &= 0x3f3f3f3f, min &= 0x3f3f3f3f;
  scaled(wasm_u32x4_make(sc, upper_sc, 0, 0), 8, half_at(block), d);
  scaled(wasm_u32x4_make(min, upper_min, 0, 0), 8, -half_at(block + 2), m);
}

// Four bits of each of 16 scales in eight bytes, the upper two in four.
INLINE void scales_q3(const uint8_t *block, float *d) {
  uint32_t a = word_at(block + 96), b = word_at(block + 100), c = word_at(block + 104);
  v128_t lower = wasm_v128_and(wasm_u32x4_make(a, b, a >> 4, b >> 4), wasm_i8x16_splat(15));
  v128_t upper = wasm_u32x4_make(c << 4, c << 2, c, c >> 2);
  v128_t sc = wasm_v128_or(lower, wasm_v128_and(upper, wasm_i8x16_splat(48)));
  scaled(wasm_i8x16_sub(sc, wasm_i8x16_splat(32)), 16, half_at(block + 108), d);
}

INLINE void scales_iq4_xs(const uint8_t *block, float *d) {
  float half = half_at(block);
  for (int p = 0; p < 8; p++) {
    int lower = (block[4 + p / 2] >> (4 * (p & 1))) & 15;
    int upper = (block[2 + p / 4] >> (2 * (p & 3))) & 3;
    d[p] = half * (float)((lower | (upper << 4)) - 32);
  }
}

// d of a file block, and m if it has_minimum: one for each part, or two if it is halved.
INLINE void scales_of(Quant quant, const uint8_t *block, float *d, float *m) {
  switch (quant) {
    case Q4_1: case Q5_1:
      m[0] = half_at(block + 2);
      d[0] = half_at(block);
      break;
    case Q4_0: case Q5_0: case Q8_0: case IQ4_NL:
      d[0] = half_at(block);
      break;
    case Q4_K: case Q5_K:
      scales_k(block, d, m);
      break;
    case Q2_K: {
      v128_t both = wasm_v128_load(block), mask = wasm_i8x16_splat(15);
      scaled(wasm_v128_and(both, mask), 16, half_at(block + 80), d);
      scaled(wasm_u8x16_shr(both, 4), 16, -half_at(block + 82), m);
      break;
    }
    case Q3_K:
      scales_q3(block, d);
      break;
    case Q6_K:
      scaled(wasm_v128_load(block + 192), 16, half_at(block + 208), d);
      break;
    case IQ4_XS:
      scales_iq4_xs(block, d);
      break;
  }
}

// ---- Quants -------------------------------------------------------------------------------------

INLINE v128_t bits(v128_t v, int mask) { return wasm_v128_and(v, wasm_i16x8_splat((int16_t)mask)); }

// Those bits of v, moved to the left (to the right if `left` is negative), that are in mask.
INLINE v128_t moved(v128_t v, int left, int mask) {
  return bits(left < 0 ? wasm_u16x8_shr(v, -left) : wasm_i16x8_shl(v, left), mask);
}

// Thirty-two nibbles: byte j holds that of weight j below and that of weight j + 16 above.
INLINE void nibbles(const uint8_t *packed, v128_t q[4]) {
  v128_t first = wasm_u16x8_load8x8(packed), second = wasm_u16x8_load8x8(packed + 8);
  q[0] = bits(first, 15);
  q[1] = bits(second, 15);
  q[2] = wasm_u16x8_shr(first, 4);
  q[3] = wasm_u16x8_shr(second, 4);
}

INLINE void extend(v128_t lower, v128_t upper, v128_t q[4]) {
  q[0] = wasm_i16x8_extend_low_i8x16(lower), q[1] = wasm_i16x8_extend_high_i8x16(lower);
  q[2] = wasm_i16x8_extend_low_i8x16(upper), q[3] = wasm_i16x8_extend_high_i8x16(upper);
}

// Nibbles as above with a fifth bit each, that of weight j being bit j of the word at `high`; less
// 16 if `centred`.
INLINE void fives(const int centred, const uint8_t *high, const uint8_t *packed, v128_t q[4]) {
  v128_t word = wasm_v128_load32_splat(high), both = wasm_v128_load(packed);
  v128_t each = wasm_u64x2_splat(0x8040201008040201), ones = wasm_i8x16_splat(-16);
  v128_t bits[2] = {wasm_i8x16_shuffle(word, word, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                    wasm_i8x16_shuffle(word, word, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3)};
  v128_t low[2] = {wasm_v128_and(both, wasm_i8x16_splat(15)), wasm_u8x16_shr(both, 4)};
  for (int i = 0; i < 2; i++) {
    v128_t set = wasm_i8x16_eq(wasm_v128_and(bits[i], each), each);
    // Without its fifth bit a centred one is negative: the upper four bits of its byte are set.
    set = centred ? wasm_v128_andnot(ones, set) : wasm_v128_and(set, wasm_i8x16_splat(16));
    low[i] = wasm_v128_or(low[i], set);
  }
  extend(low[0], low[1], q);
}

// The signed bytes that IQ4 quants stand for (kvalues_iq4nl in ggml-common.h), nibbles as above.
INLINE void iq4(const uint8_t *packed, v128_t q[4]) {
  v128_t table = wasm_i8x16_make(-127, -104, -83, -65, -49, -35, -22, -10,
                                 1, 13, 25, 38, 53, 69, 89, 113);
  v128_t both = wasm_v128_load(packed);
  v128_t low = wasm_i8x16_swizzle(table, wasm_v128_and(both, wasm_i8x16_splat(15)));
  v128_t high = wasm_i8x16_swizzle(table, wasm_u8x16_shr(both, 4));
  extend(low, high, q);
}

// q of part p of a file block as 4 vectors of 8, in order.
INLINE void unpack(Quant quant, const uint8_t *block, const int p, v128_t q[4]) {
  int offset = 0;  // what they are too large by
  if (quant == Q8_0)
    for (int i = 0; i < 4; i++) q[i] = wasm_i16x8_load8x8(block + 2 + 8 * i);
  if (quant == Q4_0) nibbles(block + 2, q), offset = 8;
  if (quant == Q4_1) nibbles(block + 4, q);
  if (quant == Q5_0) fives(1, block + 2, block + 6, q);
  if (quant == Q5_1) fives(0, block + 4, block + 8, q);
  if (quant == IQ4_NL) iq4(block + 2, q);
  if (quant == IQ4_XS) iq4(block + 8 + 16 * p, q);
  // In K-quants parts share bytes: each has its bits of the 32 bytes at `low` and at `high`.
  for (int i = 0, n = p / 4, k = p % 4; i < 4; i++) {
    const uint8_t *at = block + 8 * i;
    if (quant == Q2_K) q[i] = moved(wasm_u16x8_load8x8(at + 16 + 32 * n), -2 * k, 3);
    if (quant == Q3_K) {
      v128_t low = wasm_u16x8_load8x8(at + 32 + 32 * n), high = wasm_u16x8_load8x8(at);
      q[i] = wasm_v128_or(moved(low, -2 * k, 3), moved(high, 2 - p, 4));
      offset = 4;
    }
    if (quant == Q4_K) q[i] = moved(wasm_u16x8_load8x8(at + 16 + 32 * (p / 2)), -4 * (p & 1), 15);
    if (quant == Q5_K) {
      v128_t low = wasm_u16x8_load8x8(at + 48 + 32 * (p / 2)), high = wasm_u16x8_load8x8(at + 16);
      q[i] = wasm_v128_or(moved(low, -4 * (p & 1), 15), moved(high, 4 - p, 16));
    }
    if (quant == Q6_K) {
      v128_t low = wasm_u16x8_load8x8(at + 64 * n + 32 * (k & 1));
      v128_t high = wasm_u16x8_load8x8(at + 128 + 32 * n);
      q[i] = wasm_v128_or(moved(low, -4 * (k >> 1), 15), moved(high, 4 - 2 * k, 48));
      offset = 32;
    }
  }
  for (int i = 0; offset && i < 4; i++)
    q[i] = wasm_i16x8_sub(q[i], wasm_i16x8_splat((int16_t)offset));
}
