/*
 * exp and tanh in f32 without branches, so that the compiler vectorises the loops that
 * call them (several times faster than libm's, and the same bits at every width: no
 * contraction). Polynomial and range reduction of exp: Cephes, expf.c (S. Moshier);
 * rational tanh: as in Eigen and XLA. Errors below 1 and 7 units in the last place.
 */
#ifndef EXEC_MATH_H
#define EXEC_MATH_H

#include "base/float16.h"

static inline float cpu_expf(float x)
{
    const float shift = 0x1.8p23f; /* adding it rounds to an integer, in the low bits */
    x = x > 89 ? 89 : x;
    x = x < -105 ? -105 : x;
    const float t = x * 0x1.715476p+0f + shift, n = t - shift;
    const float r = x - n * 0.693359375f - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1;
    /* 2^n in two factors: the result may be subnormal or infinite */
    const uint32_t k = ap_float_bits(t) - ap_float_bits(shift) + 512;
    const uint32_t half = k >> 1, rest = k - half;
    return p * ap_float_from_bits((half - 256 + 127) << 23) *
           ap_float_from_bits((rest - 256 + 127) << 23);
}

static inline float cpu_tanhf(float x)
{
    const float most = 7.90531110763549805f; /* beyond it the result is 1 */
    float c = x > most ? most : x;
    c = c < -most ? -most : c;
    const float s = c * c;
    float p = -2.76076847742355e-16f;
    p = p * s + 2.00018790482477e-13f;
    p = p * s + -8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    float q = 1.19825839466702e-06f;
    q = q * s + 1.18534705686654e-04f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    const float y = c * p / q;
    return x < 0.0004f && x > -0.0004f ? x : y;
}

#endif
