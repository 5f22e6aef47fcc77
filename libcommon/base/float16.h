/*
 * Conversions between float and the narrow float types, kept as bit patterns. To narrow
 * rounds to nearest, ties to even; NaN stays NaN. bf16, f16 and f8e5m2 overflow to
 * infinity; f8e4m3fn has no infinity and overflows to NaN.
 */
#ifndef AP_FLOAT16_H
#define AP_FLOAT16_H

#include <stdint.h>
#include <string.h>

static inline uint32_t ap_float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline float ap_float_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}

static inline float ap_bf16_to_f32(uint16_t h)
{
    return ap_float_from_bits((uint32_t)h << 16);
}

static inline uint16_t ap_f32_to_bf16(float x)
{
    uint32_t u = ap_float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40); /* quiet, so that the payload is not 0 */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/*
 * Any type of 1 sign bit, exp_bits and man_bits: value of the bit pattern h, for patterns
 * that are neither infinite nor NaN.
 */
static inline float ap_narrow_to_f32(uint32_t h, int exp_bits, int man_bits)
{
    uint32_t sign = (h >> (exp_bits + man_bits) & 1) << 31;
    uint32_t e = h >> man_bits & ((1u << exp_bits) - 1);
    uint32_t m = h & ((1u << man_bits) - 1);
    int bias = (1 << (exp_bits - 1)) - 1;

    if (e == 0) { /* subnormal: m * 2^(1 - bias - man_bits), exact in float */
        float scale = ap_float_from_bits((uint32_t)(127 + 1 - bias - man_bits) << 23);
        float v = (float)m * scale;
        return ap_float_from_bits(ap_float_bits(v) | sign);
    }
    return ap_float_from_bits(sign | (e + 127u - (uint32_t)bias) << 23 |
                              m << (23 - man_bits));
}

/* Rounds a finite x; the exponent field may overflow into the patterns of infinity. */
static inline uint32_t ap_f32_to_narrow(float x, int exp_bits, int man_bits)
{
    uint32_t u = ap_float_bits(x);
    uint32_t sign = u >> 31 << (exp_bits + man_bits);
    uint32_t mag = u & 0x7fffffffu;
    int bias = (1 << (exp_bits - 1)) - 1;
    int drop = 23 - man_bits;
    int e = (int)(mag >> 23) - 127 + bias; /* biased exponent in the narrow type */
    uint32_t max = (1u << (exp_bits + man_bits)) - 1;

    if (e >= 1) {
        uint32_t r = mag + ((1u << (drop - 1)) - 1) + (mag >> drop & 1);
        uint64_t wide =
            ((uint64_t)r >> drop) - ((uint64_t)(uint32_t)(127 - bias) << man_bits);
        return sign | (wide > max ? max : (uint32_t)wide);
    }
    if (e < -man_bits - 1)
        return sign;
    /* subnormal: shift the full mantissa right by drop + 1 - e bits, at most 25 */
    uint32_t full = (mag & 0x7fffffu) | 0x800000u;
    int shift = drop + 1 - e;
    uint32_t half = 1u << (shift - 1);
    uint32_t r = (full + half - 1 + (full >> shift & 1)) >> shift;
    return sign | r;
}

static inline float ap_f16_to_f32(uint16_t h)
{
    if ((h & 0x7c00) == 0x7c00)
        return ap_float_from_bits((uint32_t)(h & 0x8000) << 16 | 0x7f800000u |
                                  (uint32_t)(h & 0x3ff) << 13);
    return ap_narrow_to_f32(h, 5, 10);
}

static inline uint16_t ap_f32_to_f16(float x)
{
    uint32_t mag = ap_float_bits(x) & 0x7fffffffu;
    uint16_t sign = (uint16_t)(ap_float_bits(x) >> 16 & 0x8000);

    if (mag > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00);
    if (mag >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00);
    return (uint16_t)ap_f32_to_narrow(x, 5, 10);
}

static inline float ap_f8e5m2_to_f32(uint8_t h)
{
    return ap_f16_to_f32((uint16_t)(h << 8));
}

static inline uint8_t ap_f32_to_f8e5m2(float x)
{
    uint32_t mag = ap_float_bits(x) & 0x7fffffffu;
    uint8_t sign = (uint8_t)(ap_float_bits(x) >> 24 & 0x80);

    if (mag > 0x7f800000u)
        return (uint8_t)(sign | 0x7e);
    if (mag >= 0x47700000u) /* 61440 and above round to infinity */
        return (uint8_t)(sign | 0x7c);
    return (uint8_t)ap_f32_to_narrow(x, 5, 2);
}

static inline float ap_f8e4m3fn_to_f32(uint8_t h)
{
    if ((h & 0x7f) == 0x7f)
        return ap_float_from_bits((uint32_t)(h & 0x80) << 24 | 0x7fc00000u);
    return ap_narrow_to_f32(h, 4, 3);
}

static inline uint8_t ap_f32_to_f8e4m3fn(float x)
{
    uint32_t mag = ap_float_bits(x) & 0x7fffffffu;
    uint8_t sign = (uint8_t)(ap_float_bits(x) >> 24 & 0x80);

    if (mag > 0x43e80000u) /* above 464, the middle of 448 and the next step: NaN */
        return (uint8_t)(sign | 0x7f);
    return (uint8_t)ap_f32_to_narrow(x, 4, 3);
}

/* double to float through round-to-odd, so that a second rounding stays correct. */
static inline float ap_f64_to_f32_odd(double x)
{
    float f = (float)x;
    uint32_t u = ap_float_bits(f);

    if ((double)f == x || x != x || (u & 0x7fffffffu) == 0x7f800000u || (u & 1))
        return f;
    /* inexact with an even mantissa: the odd neighbour on x's side */
    int away = (x > (double)f) == (x > 0);
    return ap_float_from_bits(away ? u + 1 : u - 1);
}

#endif
