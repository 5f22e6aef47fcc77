/*
 * Conversions between register types, and between memory and registers. Floats become
 * integers as in XLA: towards zero, saturating, NaN to 0. Narrow floats round to even.
 */
#include "elem/formula.h"
#include "base/float16.h"

#include <string.h>

/* ---- register to register ---- */

#define TO_INTS(TO, from, F)                        \
    TO(from, F, s8, int8_t, INT8_MIN, INT8_MAX)     \
    TO(from, F, s16, int16_t, INT16_MIN, INT16_MAX) \
    TO(from, F, s32, int32_t, INT32_MIN, INT32_MAX) \
    TO(from, F, s64, int64_t, INT64_MIN, INT64_MAX) \
    TO(from, F, u8, uint8_t, 0, UINT8_MAX)          \
    TO(from, F, u16, uint16_t, 0, UINT16_MAX)       \
    TO(from, F, u32, uint32_t, 0u, UINT32_MAX)      \
    TO(from, F, u64, uint64_t, (uint64_t)0, UINT64_MAX)

#define CUT(from, F, to, T, lo, hi) CPU_UNARY(, from##_to_##to, F, T, (T)x)
#define SATURATE(from, F, to, T, lo, hi) \
    CPU_UNARY(, from##_to_##to, F, T,    \
              x != x              ? 0    \
              : x <= (double)(lo) ? (lo) \
              : x >= (double)(hi) ? (hi) \
                                  : (T)x)
#define FUNCTION(from, F, to, T, lo, hi) from##_to_##to,

#define CONVERSIONS(from, F, TO)                                                 \
    CPU_UNARY(, from##_to_pred, F, uint8_t, x != 0)                              \
    TO_INTS(TO, from, F)                                                         \
    CPU_UNARY(, from##_to_f32, F, float, (float)x)                               \
    CPU_UNARY(, from##_to_f64, F, double, (double)x)                             \
    CPU_UNARY(, from##_to_c64, F, struct c64, ((struct c64){(float)x, 0}))       \
    static cpu_fn *const convert_##from[CPU_N_KINDS] = {                         \
        from##_to_pred, TO_INTS(FUNCTION, from, F) from##_to_f32, from##_to_f64, \
        from##_to_c64};

CONVERSIONS(pred, uint8_t, CUT)
CONVERSIONS(s8, int8_t, CUT)
CONVERSIONS(s16, int16_t, CUT)
CONVERSIONS(s32, int32_t, CUT)
CONVERSIONS(s64, int64_t, CUT)
CONVERSIONS(u8, uint8_t, CUT)
CONVERSIONS(u16, uint16_t, CUT)
CONVERSIONS(u32, uint32_t, CUT)
CONVERSIONS(u64, uint64_t, CUT)
CONVERSIONS(f32, float, SATURATE)
CONVERSIONS(f64, double, SATURATE)

cpu_fn *cpu_convert_find(enum cpu_kind from, enum cpu_kind to)
{
    static cpu_fn *const *const table[CPU_N_KINDS] = {
        convert_pred, convert_s8,  convert_s16, convert_s32, convert_s64, convert_u8,
        convert_u16,  convert_u32, convert_u64, convert_f32, convert_f64};
    return table[from] ? table[from][to] : NULL;
}

/* ---- narrow floats ---- */

static inline uint32_t round_bf16(uint32_t u)
{
    const uint32_t r = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u;
    const uint32_t nan = (u | 0x400000u) & 0xffff0000u;
    return (u & 0x7fffffffu) > 0x7f800000u ? nan : r;
}

CPU_WIDE void cpu_round(float *v, enum ap_dtype dtype, int64_t n)
{
    if (dtype == AP_BF16) {
        uint32_t *u = (uint32_t *)(void *)v;
        for (int64_t i = 0; i < n; i++)
            u[i] = round_bf16(u[i]);
    } else if (dtype == AP_F16) {
        for (int64_t i = 0; i < n; i++)
            v[i] = ap_f16_to_f32(ap_f32_to_f16(v[i]));
    } else if (dtype == AP_F8E4M3FN) {
        for (int64_t i = 0; i < n; i++)
            v[i] = ap_f8e4m3fn_to_f32(ap_f32_to_f8e4m3fn(v[i]));
    } else if (dtype == AP_F8E5M2) {
        for (int64_t i = 0; i < n; i++)
            v[i] = ap_f8e5m2_to_f32(ap_f32_to_f8e5m2(v[i]));
    }
}

/* ---- memory ---- */

#define STRIDED(T)                      \
    {                                   \
        T *o = dst;                     \
        const T *p = src;               \
        for (int64_t i = 0; i < n; i++) \
            o[i * ds] = p[i * ss];      \
    }

static void copy_strided(void *dst, int64_t ds, const void *src, int64_t ss, int size,
                         int64_t n)
{
    if (ds == 1 && ss == 1)
        memcpy(dst, src, (size_t)(n * size));
    else
        CPU_BY_SIZE(size, STRIDED)
}

static void load_fp8(float *o, const uint8_t *p, int64_t stride, bool e5m2, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        o[i] = e5m2 ? ap_f8e5m2_to_f32(p[i * stride]) : ap_f8e4m3fn_to_f32(p[i * stride]);
}

static void store_fp8(uint8_t *o, int64_t stride, const float *p, bool e5m2, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        o[i * stride] = e5m2 ? ap_f32_to_f8e5m2(p[i]) : ap_f32_to_f8e4m3fn(p[i]);
}

CPU_WIDE void cpu_load(void *reg, const void *src, int64_t stride, enum ap_dtype dtype,
                       int64_t n)
{
    if (dtype == AP_BF16) {
        uint32_t *o = reg;
        const uint16_t *p = src;
        if (stride == 1)
            for (int64_t i = 0; i < n; i++)
                o[i] = (uint32_t)p[i] << 16;
        else
            for (int64_t i = 0; i < n; i++)
                o[i] = (uint32_t)p[i * stride] << 16;
    } else if (dtype == AP_F16) {
        float *o = reg;
        const uint16_t *p = src;
        for (int64_t i = 0; i < n; i++)
            o[i] = ap_f16_to_f32(p[i * stride]);
    } else if (!cpu_is_plain(dtype)) {
        load_fp8(reg, src, stride, dtype == AP_F8E5M2, n);
    } else {
        copy_strided(reg, 1, src, stride, ap_dtype_size(dtype), n);
    }
}

CPU_WIDE void cpu_store(void *dst, int64_t stride, const void *reg, enum ap_dtype dtype,
                        int64_t n)
{
    if (dtype == AP_BF16) {
        const uint32_t *p = reg;
        uint16_t *o = dst;
        if (stride == 1)
            for (int64_t i = 0; i < n; i++)
                o[i] = (uint16_t)(round_bf16(p[i]) >> 16);
        else
            for (int64_t i = 0; i < n; i++)
                o[i * stride] = (uint16_t)(round_bf16(p[i]) >> 16);
    } else if (dtype == AP_F16) {
        const float *p = reg;
        uint16_t *o = dst;
        for (int64_t i = 0; i < n; i++)
            o[i * stride] = ap_f32_to_f16(p[i]);
    } else if (!cpu_is_plain(dtype)) {
        store_fp8(dst, stride, reg, dtype == AP_F8E5M2, n);
    } else {
        copy_strided(dst, stride, reg, 1, ap_dtype_size(dtype), n);
    }
}

#define FILL(T)                         \
    {                                   \
        T x, *o = dst;                  \
        memcpy(&x, v, sizeof x);        \
        for (int64_t i = 0; i < n; i++) \
            o[i] = x;                   \
    }

void cpu_fill(void *dst, const void *v, int size, int64_t n)
{
    CPU_BY_SIZE(size, FILL)
}
