/* Vectors of LANES floats, for the processor that the compiler's options name. Only the fused multiply-add needs
 * intrinsics; all else are the vector extensions of GCC and Clang. */
#ifndef SHMPPO_VECTORS_H
#define SHMPPO_VECTORS_H

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "every operation must be rounded as IEEE 754 says"
#endif

#if !defined(GENERIC_LANES) && !defined(__aarch64__) && !(defined(__AVX2__) && defined(__FMA__))
#define GENERIC_LANES 4
#endif
#if defined(GENERIC_LANES) /* vectors of any width, for any processor */
enum { LANES = GENERIC_LANES, TILE_ROWS = LANES > 1 ? 8 : 1, TILE_VECTORS = LANES > 1 ? 2 : 1 };
#elif defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16, TILE_ROWS = 8, TILE_VECTORS = 2 };
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { LANES = 8, TILE_ROWS = 6, TILE_VECTORS = 2 };
#elif defined(__aarch64__)
#include <arm_neon.h>
enum { LANES = 4, TILE_ROWS = 6, TILE_VECTORS = 4 };
#endif

enum { PARTS = 16 }; /* partial sums of a sum over units, and of a norm */

#define INLINE static inline __attribute__((always_inline))
typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef int32_t Bits __attribute__((vector_size(LANES * 4)));
typedef uint32_t Words __attribute__((vector_size(LANES * 4))); /* their sums and shifts may overflow */

INLINE Vector all(float value) { return value - (Vector){0}; }

INLINE Vector load(const float *at) {
    Vector v;
    memcpy(&v, at, sizeof v);
    return v;
}

INLINE void store(float *at, Vector v) { memcpy(at, &v, sizeof v); }

/* The first `count` lanes, if there are not enough for a vector. */
INLINE Vector load_part(const float *at, int64_t count) {
    if (count >= LANES) return load(at);
    Vector v = {0};
    memcpy(&v, at, 4 * (size_t)count);
    return v;
}

INLINE void store_part(float *at, Vector v, int64_t count) {
    memcpy(at, &v, count >= LANES ? sizeof v : 4 * (size_t)count);
}

/* a·b + c, rounded once. Without an instruction for it: the product is exact in double, and its sum with c is rounded to
 * odd, so that rounding it again to float gives the exact result (Boldo and Melquiond 2008). */
INLINE float fma_of_one(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, c);
#else
    double product = (double)a * (double)b, addend = c, sum = product + addend, part = sum - product;
    double error = (product - (sum - part)) + (addend - part); /* of the sum, exact (Knuth) */
    uint64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if ((error > 0 || error < 0) && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : UINT64_MAX;
    memcpy(&sum, &bits, sizeof bits);
    return (float)sum;
#endif
}

INLINE Vector fma_(Vector a, Vector b, Vector c) {
#if defined(GENERIC_LANES)
    for (int i = 0; i < LANES; i++) c[i] = fma_of_one(a[i], b[i], c[i]);
    return c;
#elif defined(__AVX512F__)
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return (Vector)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#endif
}

/* Two numbers rounded to bfloat16, ties to even, in the bits of one float: the first in the lower half. */
INLINE float pair(float first, float second) {
    float numbers[2] = {first, second}, result;
    uint32_t bits[2];
    memcpy(bits, numbers, sizeof bits);
    for (int i = 0; i < 2; i++) bits[i] = numbers[i] == numbers[i] ? bits[i] + 0x7FFF + (bits[i] >> 16 & 1) : 0x7FC00000;
    bits[0] = bits[0] >> 16 | (bits[1] & 0xFFFF0000);
    memcpy(&result, bits, sizeof result);
    return result;
}

/* 0 with the same sign in place of subnormal numbers */
INLINE Vector without_subnormals(Vector v) {
    Bits subnormal = ((Bits)v & 0x7FFFFFFF) < 0x00800000;
    return (Vector)((Bits)v & ~(subnormal & 0x7FFFFFFF));
}

/* a·b + c with bfloat16 in the upper halves of a and b */
INLINE Vector bf16_fma(Bits a, Bits b, Vector c) {
    return without_subnormals(fma_(without_subnormals((Vector)a), without_subnormals((Vector)b), c));
}

/* a₀·b₀ + (a₁·b₁ + c) with pairs of bfloat16, as kernels.h says */
INLINE Vector pair_fma(Vector a, Vector b, Vector c) {
#if defined(__AVX512BF16__) && !defined(GENERIC_LANES)
    return (Vector)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
    const Bits upper = (Bits){0} - 0x10000;
    c = bf16_fma((Bits)a & upper, (Bits)b & upper, without_subnormals(c));
    return bf16_fma((Bits)a << 16, (Bits)b << 16, c);
#endif
}

INLINE Vector choose(Bits condition, Vector a, Vector b) {
    return (Vector)((condition & (Bits)a) | (~condition & (Bits)b));
}

/* Bounds keep NaN: a comparison with NaN is false. */
INLINE Vector at_most(Vector v, float high) { return choose(v > high, all(high), v); }
INLINE Vector at_least(Vector v, float low) { return choose(v < low, all(low), v); }

/* exp(r) − 1 for |r| <= ln(2)/2: r + r²·(c₀ + c₁r + … + c₄r⁴). The coefficients are a minimax fit of (exp(r) − 1 − r)/r²,
 * with a relative error of exp(r) − 1 below 3e-8. */
INLINE Vector expm1_near_0(Vector r) {
    Vector p = all(1.39261835877e-3f);
    p = fma_(p, r, all(8.36317905272e-3f));
    p = fma_(p, r, all(4.16665546172e-2f));
    p = fma_(p, r, all(1.66665769897e-1f));
    p = fma_(p, r, all(0.5f));
    return fma_(p, r * r, r);
}

/* Divide x by ln 2: x = n·ln 2 + r. Returns 2ⁿ. |x| must be below 87.3. */
INLINE Vector reduce(Vector x, Vector *r) {
    const float shift = 12582912.0f; /* 1.5·2²³: adding it rounds to an integer */
    Vector shifted = fma_(x, all(1.44269504f), all(shift));
    Vector n = shifted - shift;
    *r = fma_(n, all(2.12194440e-4f), fma_(n, all(-0.693359375f), x));
    Words exponent = (Words)shifted - 0x4B400000 + 127; /* the bits of `shift`, and the bias of exponents */
    return (Vector)(exponent << 23);
}

/* The errors below are the largest of all float32 arguments, relative to the exact result. */

/* exp, at most exp(87), at least exp(−87). Error 9.3e-8. */
INLINE Vector v_exp(Vector x) {
    Vector r, scale = reduce(at_most(at_least(x, -87.0f), 87.0f), &r);
    return fma_(expm1_near_0(r), scale, scale);
}

/* Error 1.9e-7. exp(2x) − 1 keeps the digits of a small x. */
INLINE Vector v_tanh(Vector x) {
    Vector r, scale = reduce(at_most(at_least(x + x, -20.0f), 20.0f), &r);
    Vector e = fma_(expm1_near_0(r), scale, scale - 1.0f);
    return e / (e + 2.0f);
}

/* Error 1.5e-7 for x > −87; below, the result stays near 1.6e-38. */
INLINE Vector v_sigmoid(Vector x) { return 1.0f / (1.0f + v_exp(-x)); }

/* log for normal x > 0. With x = m·2ᵉ, √½ ≤ m < √2, and s = (m − 1)/(m + 1): e·ln 2 + 2·(s + s³/3 + s⁵/5 + s⁷/7 + s⁹/9).
 * Error 1.8e-7. */
INLINE Vector v_log(Vector x) {
    Bits exponent = (Bits)((Words)x - 0x3F3504F3) >> 23; /* the bits of √½ */
    Vector m = (Vector)((Words)x - ((Words)exponent << 23)), e = __builtin_convertvector(exponent, Vector);
    Vector s = (m - 1.0f) / (m + 1.0f), t = s * s;
    Vector p = fma_(fma_(fma_(all(2.0f / 9), t, all(2.0f / 7)), t, all(2.0f / 5)), t, all(2.0f / 3));
    Vector result = fma_(e, all(0.693359375f), fma_(e, all(-2.12194440e-4f), fma_(p, s * t, s + s)));
    return choose(x == x, result, x);
}

/* log(1 + exp(x)). Error 2.7e-7 for x > −87; below, the result stays near 1.6e-38. */
INLINE Vector v_softplus(Vector x) {
    Vector positive = at_least(x, 0.0f), y = v_exp(choose(x > 0.0f, -x, x)), u = 1.0f + y;
    return positive + (v_log(u) - ((u - 1.0f) - y) / u);
}

INLINE Vector activate(Vector v, int activation) {
    if (activation == TANH) return v_tanh(v);
    return activation == RELU ? at_least(v, 0.0f) : v;
}

/* The derivative of TANH or RELU, from its result */
INLINE Vector slope(Vector y, int activation) {
    if (activation == TANH) return fma_(-y, y, all(1.0f));
    return (Vector)((Bits)all(1.0f) & (y > 0.0f));
}

#define FOR_VECTORS(i, count) for (int64_t i = 0; i < (count); i += LANES)

#endif
