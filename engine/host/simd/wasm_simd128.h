// What cpu.c takes of WebAssembly's SIMD, for the machine that compiles it: clang's own vectors,
// with WebAssembly's meaning of every operation.

#pragma once
#include <stdint.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

#define LANES __attribute__((always_inline)) static inline

typedef int32_t v128_t __attribute__((vector_size(16)));
typedef float simd_f32x4 __attribute__((vector_size(16)));
typedef uint32_t simd_u32x4 __attribute__((vector_size(16)));
typedef int16_t simd_i16x8 __attribute__((vector_size(16)));
typedef uint16_t simd_u16x8 __attribute__((vector_size(16)));
typedef int8_t simd_i8x16 __attribute__((vector_size(16)));
typedef uint8_t simd_u8x16 __attribute__((vector_size(16)));
typedef uint64_t simd_u64x2 __attribute__((vector_size(16)));
typedef int16_t simd_i16x4 __attribute__((vector_size(8)));
typedef int8_t simd_i8x8 __attribute__((vector_size(8)));
typedef uint8_t simd_u8x8 __attribute__((vector_size(8)));

// Memory need not be aligned.
LANES v128_t wasm_v128_load(const void *from) {
  v128_t v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

LANES void wasm_v128_store(void *to, v128_t v) { __builtin_memcpy(to, &v, sizeof v); }

LANES v128_t wasm_v128_load32_splat(const void *from) {
  int32_t word;
  __builtin_memcpy(&word, from, sizeof word);
  return (v128_t){word, word, word, word};
}

LANES v128_t wasm_i16x8_load8x8(const void *from) {
  simd_i8x8 v;
  __builtin_memcpy(&v, from, sizeof v);
  return (v128_t)__builtin_convertvector(v, simd_i16x8);
}

LANES v128_t wasm_u16x8_load8x8(const void *from) {
  simd_u8x8 v;
  __builtin_memcpy(&v, from, sizeof v);
  return (v128_t)__builtin_convertvector(v, simd_u16x8);
}

LANES v128_t wasm_f32x4_splat(float x) { return (v128_t)(simd_f32x4){x, x, x, x}; }
LANES v128_t wasm_i32x4_splat(int32_t x) { return (v128_t){x, x, x, x}; }
LANES v128_t wasm_i16x8_splat(int16_t x) { return (v128_t)(simd_i16x8){x, x, x, x, x, x, x, x}; }
LANES v128_t wasm_i8x16_splat(int8_t x) {
  return (v128_t)(simd_i8x16){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}
LANES v128_t wasm_u64x2_splat(uint64_t x) { return (v128_t)(simd_u64x2){x, x}; }

#define wasm_i8x16_make(...) ((v128_t)(simd_i8x16){__VA_ARGS__})
#define wasm_u32x4_make(...) ((v128_t)(simd_u32x4){__VA_ARGS__})
#define wasm_f32x4_extract_lane(v, lane) (((simd_f32x4)(v))[lane])
#define wasm_i32x4_extract_lane(v, lane) ((v)[lane])
#define wasm_i32x4_shuffle(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define wasm_i8x16_shuffle(a, b, ...) \
  ((v128_t)__builtin_shufflevector((simd_i8x16)(a), (simd_i8x16)(b), __VA_ARGS__))

// The bytes of `v` that `places` name; 0 for a place of 16 or more.
LANES v128_t wasm_i8x16_swizzle(v128_t v, v128_t places) {
  simd_u8x16 from = (simd_u8x16)v, at = (simd_u8x16)places, to;
  for (int i = 0; i < 16; i++) to[i] = at[i] < 16 ? from[at[i] & 15] : 0;
  return (v128_t)to;
}

LANES v128_t wasm_v128_and(v128_t a, v128_t b) { return a & b; }
LANES v128_t wasm_v128_or(v128_t a, v128_t b) { return a | b; }
LANES v128_t wasm_v128_andnot(v128_t a, v128_t b) { return a & ~b; }
LANES v128_t wasm_u16x8_shr(v128_t v, int bits) { return (v128_t)((simd_u16x8)v >> bits); }
LANES v128_t wasm_u8x16_shr(v128_t v, int bits) { return (v128_t)((simd_u8x16)v >> bits); }

LANES v128_t wasm_i8x16_eq(v128_t a, v128_t b) {
  return (v128_t)((simd_i8x16)a == (simd_i8x16)b);
}

// Integers wrap, which those of clang do only without a sign.
LANES v128_t wasm_i32x4_add(v128_t a, v128_t b) { return (v128_t)((simd_u32x4)a + (simd_u32x4)b); }
LANES v128_t wasm_i32x4_sub(v128_t a, v128_t b) { return (v128_t)((simd_u32x4)a - (simd_u32x4)b); }
LANES v128_t wasm_i32x4_shl(v128_t v, int bits) { return (v128_t)((simd_u32x4)v << bits); }

LANES v128_t wasm_i16x8_sub(v128_t a, v128_t b) {
  return (v128_t)((simd_u16x8)a - (simd_u16x8)b);
}
LANES v128_t wasm_i8x16_sub(v128_t a, v128_t b) {
  return (v128_t)((simd_u8x16)a - (simd_u8x16)b);
}
LANES v128_t wasm_i16x8_shl(v128_t v, int bits) { return (v128_t)((simd_u16x8)v << bits); }

LANES v128_t wasm_i16x8_extend_low_i8x16(v128_t v) {
  simd_i8x16 x = (simd_i8x16)v;
  simd_i8x8 half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
  return (v128_t)__builtin_convertvector(half, simd_i16x8);
}

LANES v128_t wasm_i16x8_extend_high_i8x16(v128_t v) {
  simd_i8x16 x = (simd_i8x16)v;
  simd_i8x8 half = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  return (v128_t)__builtin_convertvector(half, simd_i16x8);
}

LANES v128_t wasm_i32x4_extend_low_i16x8(v128_t v) {
  simd_i16x8 x = (simd_i16x8)v;
  return __builtin_convertvector(__builtin_shufflevector(x, x, 0, 1, 2, 3), v128_t);
}

LANES v128_t wasm_i32x4_extend_high_i16x8(v128_t v) {
  simd_i16x8 x = (simd_i16x8)v;
  return __builtin_convertvector(__builtin_shufflevector(x, x, 4, 5, 6, 7), v128_t);
}

LANES v128_t wasm_i32x4_dot_i16x8(v128_t a, v128_t b) {
#ifdef __x86_64__  // clang does not find this instruction by itself
  return (v128_t)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  simd_i16x8 x = (simd_i16x8)a, y = (simd_i16x8)b;
#define HALF(v, ...) \
  __builtin_convertvector((simd_i16x4)__builtin_shufflevector(v, v, __VA_ARGS__), v128_t)
  v128_t even = HALF(x, 0, 2, 4, 6) * HALF(y, 0, 2, 4, 6);
  v128_t odd = HALF(x, 1, 3, 5, 7) * HALF(y, 1, 3, 5, 7);
#undef HALF
  return wasm_i32x4_add(even, odd);
#endif
}

LANES v128_t wasm_i16x8_narrow_i32x4(v128_t a, v128_t b) {
  v128_t low = {INT16_MIN, INT16_MIN, INT16_MIN, INT16_MIN};
  v128_t high = {INT16_MAX, INT16_MAX, INT16_MAX, INT16_MAX};
  a = __builtin_elementwise_min(__builtin_elementwise_max(a, low), high);
  b = __builtin_elementwise_min(__builtin_elementwise_max(b, low), high);
  simd_i16x4 x = __builtin_convertvector(a, simd_i16x4), y = __builtin_convertvector(b, simd_i16x4);
  return (v128_t)__builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7);
}

#define ARITHMETIC(name, op)                              \
  LANES v128_t wasm_f32x4_##name(v128_t a, v128_t b) {    \
    return (v128_t)((simd_f32x4)a op (simd_f32x4)b);      \
  }
ARITHMETIC(add, +)
ARITHMETIC(sub, -)
ARITHMETIC(mul, *)
ARITHMETIC(div, /)
#undef ARITHMETIC

LANES v128_t wasm_f32x4_neg(v128_t v) { return v ^ wasm_i32x4_splat(INT32_MIN); }
LANES v128_t wasm_f32x4_abs(v128_t v) { return v & wasm_i32x4_splat(INT32_MAX); }

LANES v128_t wasm_f32x4_lt(v128_t a, v128_t b) {
  return (v128_t)((simd_f32x4)a < (simd_f32x4)b);
}

LANES v128_t simd_select(v128_t mask, v128_t yes, v128_t no) { return (mask & yes) | (~mask & no); }

LANES v128_t wasm_f32x4_pmax(v128_t a, v128_t b) {
  return simd_select((v128_t)((simd_f32x4)a < (simd_f32x4)b), b, a);
}

// A NaN in either gives a NaN.
LANES v128_t wasm_f32x4_max(v128_t a, v128_t b) {
  simd_f32x4 x = (simd_f32x4)a, y = (simd_f32x4)b;
  v128_t larger = simd_select((v128_t)(x < y), b, a);
  return simd_select((v128_t)(y != y), b, larger);
}

LANES v128_t wasm_f32x4_min(v128_t a, v128_t b) {
  simd_f32x4 x = (simd_f32x4)a, y = (simd_f32x4)b;
  v128_t smaller = simd_select((v128_t)(y < x), b, a);
  return simd_select((v128_t)(y != y), b, smaller);
}

LANES v128_t wasm_f32x4_nearest(v128_t v) {
  return (v128_t)__builtin_elementwise_roundeven((simd_f32x4)v);
}

LANES v128_t wasm_f32x4_convert_i32x4(v128_t v) {
  return (v128_t)__builtin_convertvector(v, simd_f32x4);
}

// A NaN gives 0, what is too large the largest integer.
LANES v128_t wasm_i32x4_trunc_sat_f32x4(v128_t v) {
  simd_f32x4 x = (simd_f32x4)v;
  v128_t high = (v128_t)(x >= 0x1p31f), low = (v128_t)(x < -0x1p31f), in = (v128_t)(x == x);
  simd_f32x4 inside = (simd_f32x4)(v & in & ~high & ~low);
  v128_t whole = __builtin_convertvector(inside, v128_t);
  whole = simd_select(high, wasm_i32x4_splat(INT32_MAX), whole);
  return simd_select(low, wasm_i32x4_splat(INT32_MIN), whole);
}
