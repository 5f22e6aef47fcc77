/*
 * What every generated kernel stands on: element types, and how they are read, rounded
 * and written. Registers hold the storage type, but for bf16, f16 and f8, which are held
 * as float and rounded after every operation, as on the CPU. The conversions of narrow
 * floats (libcommon/base/float16.h) are put in front of this text, the functions of the
 * operators (formulas.h) behind it. The subset of CUDA C++ that is used, tests/fakecuda
 * compiles on the host.
 */

/* A kernel: one argument, which holds n pointers. */
#ifndef AP_KERNEL
#define AP_KERNEL(name, n, block) \
    struct name##_args {          \
        char *p[n];               \
    };                            \
    extern "C" __global__ void __launch_bounds__(block) name(const name##_args a)
#endif

#ifndef INFINITY
#define INFINITY ap_float_from_bits(0x7f800000u)
#endif
#define OWN_EXP_f32  expf
#define OWN_EXP_f64  exp
#define OWN_TANH_f32 tanhf
#define OWN_TANH_f64 tanh
#ifdef __CUDA_ARCH__
#define __builtin_popcountll __popcll
#define __builtin_clzll      __clzll
#endif

static inline int bit_length(uint64_t x)
{
    return x ? 64 - __builtin_clzll(x) : 0;
}

/* ---- storage types without a register type of their own ---- */

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
struct f8e4m3fn {
    uint8_t bits;
};
struct f8e5m2 {
    uint8_t bits;
};

static inline bf16 to_bf16(float x)
{
#ifdef __CUDA_ARCH__
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
    return r;
#else
    return {ap_f32_to_bf16(x)};
#endif
}
static inline f16 to_f16(float x)
{
#ifdef __CUDA_ARCH__
    f16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
    return r;
#else
    return {ap_f32_to_f16(x)};
#endif
}
static inline f8e4m3fn to_f8e4m3fn(float x)
{
    return {ap_f32_to_f8e4m3fn(x)};
}
static inline f8e5m2 to_f8e5m2(float x)
{
    return {ap_f32_to_f8e5m2(x)};
}

static inline float value_of(bf16 x)
{
    return ap_bf16_to_f32(x.bits);
}
static inline float value_of(f16 x)
{
#ifdef __CUDA_ARCH__
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
    return r;
#else
    return ap_f16_to_f32(x.bits);
#endif
}
static inline float value_of(f8e4m3fn x)
{
    return ap_f8e4m3fn_to_f32(x.bits);
}
static inline float value_of(f8e5m2 x)
{
    return ap_f8e5m2_to_f32(x.bits);
}

static inline float round_bf16(float x)
{
    return value_of(to_bf16(x));
}
static inline float round_f16(float x)
{
    return value_of(to_f16(x));
}
static inline float round_f8e4m3fn(float x)
{
    return value_of(to_f8e4m3fn(x));
}
static inline float round_f8e5m2(float x)
{
    return value_of(to_f8e5m2(x));
}

/* ---- memory to register and back ---- */

template <class T> static inline T load(const T *p)
{
    return *p;
}
static inline float load(const bf16 *p)
{
    return value_of(*p);
}
static inline float load(const f16 *p)
{
    return value_of(*p);
}
static inline float load(const f8e4m3fn *p)
{
    return value_of(*p);
}
static inline float load(const f8e5m2 *p)
{
    return value_of(*p);
}

template <class T> static inline void store(T *p, T v)
{
    *p = v;
}
static inline void store(bf16 *p, float v)
{
    *p = to_bf16(v);
}
static inline void store(f16 *p, float v)
{
    *p = to_f16(v);
}
static inline void store(f8e4m3fn *p, float v)
{
    *p = to_f8e4m3fn(v);
}
static inline void store(f8e5m2 *p, float v)
{
    *p = to_f8e5m2(v);
}

/* N elements that begin at a multiple of N, in pieces of at most 16 bytes. */
template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) pack {
    T v[N];
};
template <class T, class R, int N> static inline void load_pack(R (&r)[N], const T *p)
{
    const pack<T, N> m = *(const pack<T, N> *)p;
#pragma unroll
    for (int k = 0; k < N; k++)
        r[k] = load(&m.v[k]);
}
template <class T, class R, int N> static inline void store_pack(T *p, const R (&r)[N])
{
    pack<T, N> m;
#pragma unroll
    for (int k = 0; k < N; k++)
        store(&m.v[k], r[k]);
    *(pack<T, N> *)p = m;
}

/* ---- conversions ---- */

template <class T> static inline uint8_t to_pred(T x)
{
    return x != 0;
}
/* Floats become integers as in XLA: towards zero, saturating, NaN to 0. */
#define TO_INT(S, T, lo, hi)                                             \
    template <class F> static inline T to_##S(F x)                       \
    {                                                                    \
        return (T)x;                                                     \
    }                                                                    \
    template <> inline T to_##S<double>(double x)                        \
    {                                                                    \
        return x != x                ? (T)0                              \
               : x <= (double)(lo)   ? (T)(lo)                           \
               : x >= (double)(hi)   ? (T)(hi)                           \
                                     : (T)x;                             \
    }                                                                    \
    template <> inline T to_##S<float>(float x)                          \
    {                                                                    \
        return to_##S((double)x);                                        \
    }
TO_INT(s8, int8_t, -128, 127)
TO_INT(s16, int16_t, -32768, 32767)
TO_INT(s32, int32_t, -2147483647 - 1, 2147483647)
TO_INT(s64, int64_t, -9223372036854775807ll - 1, 9223372036854775807ll)
TO_INT(u8, uint8_t, 0, 255)
TO_INT(u16, uint16_t, 0, 65535)
TO_INT(u32, uint32_t, 0, 4294967295u)
TO_INT(u64, uint64_t, 0, 18446744073709551615ull)
template <class T> static inline float to_f32(T x)
{
    return (float)x;
}
template <class T> static inline double to_f64(T x)
{
    return (double)x;
}

template <class R, class T> static inline R bits_as(T x)
{
    R r;
    memcpy(&r, &x, sizeof r);
    return r;
}

/* Bits as integers whose order is the floats' total order. */
static inline int32_t ordered_f32(float x)
{
    const uint32_t u = bits_as<uint32_t>(x);
    return (int32_t)(u ^ ((u >> 31 ? 0xffffffffu : 0u) >> 1));
}
static inline int64_t ordered_f64(double x)
{
    const uint64_t u = bits_as<uint64_t>(x);
    return (int64_t)(u ^ ((u >> 63 ? ~0ull : 0ull) >> 1));
}

/* Keeps e exponent and m mantissa bits: rounds to even, what is too large becomes
 * infinite, what is too small zero; XLA's reduce-precision. */
static inline float reduce_precision(float x, int e, int m)
{
    const uint32_t u = bits_as<uint32_t>(x), sign = u & 0x80000000u;
    const int drop = 23 - (m < 23 ? m : 23), bias = e >= 8 ? 127 : (1 << (e - 1)) - 1;
    const uint32_t top = (uint32_t)(127 + bias) << 23, low = (uint32_t)(128 - bias) << 23;
    uint32_t v = u & 0x7fffffffu;
    if (v > 0x7f800000u)
        return bits_as<float>(u | 0x400000u);
    if (drop > 0 && v < 0x7f800000u)
        v = (v + (1u << (drop - 1)) - 1 + ((v >> drop) & 1)) & ~((1u << drop) - 1);
    if (e < 8 && v >= top + 0x800000u)
        v = 0x7f800000u;
    if (e < 8 && v < low)
        v = 0;
    return bits_as<float>(sign | v);
}

/* ---- indices ---- */

/* An index of any integer type, saturated at int64. */
template <class T> static inline int64_t index_of(T x)
{
    return (int64_t)x;
}
static inline int64_t index_of(uint64_t x)
{
    return x > 9223372036854775807ull ? 9223372036854775807ll : (int64_t)x;
}

/* x ^ y of integers, by squaring in U, where arithmetic wraps. */
template <class T, class U, class W> static inline T power_of(T x, T y)
{
    U r = 1, f = (U)x;
    for (W e = (W)y; e; e >>= 1, f *= f)
        if (e & 1)
            r *= f;
    return (T)r;
}
