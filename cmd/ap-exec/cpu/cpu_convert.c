/*
 * Conversions between register types, and between memory and registers. Floats become
 * integers as in XLA: towards zero, saturating, NaN to 0. bf16 and f16 round to even.
 */
#include "cpu/cpu.h"
#include "base/float16.h"

#include <string.h>

/* ---- register to register ---- */

#define CONVERT(from, F, to, T, expr)                                                \
    static void from##_to_##to(void *d, const void *a, const void *b, const void *c, \
                               const int *stride, int64_t n)                         \
    {                                                                                \
        (void)b, (void)c, (void)stride;                                              \
        T *o = d;                                                                    \
        const F *p = a;                                                              \
        for (int64_t i = 0; i < n; i++) {                                            \
            const F x = p[i];                                                        \
            o[i] = (expr);                                                           \
        }                                                                            \
    }

struct c64 {
    float re, im;
};

#define FROM_INT(from, F)                        \
    CONVERT(from, F, pred, uint8_t, x != 0)      \
    CONVERT(from, F, s8, int8_t, (int8_t)x)      \
    CONVERT(from, F, s16, int16_t, (int16_t)x)   \
    CONVERT(from, F, s32, int32_t, (int32_t)x)   \
    CONVERT(from, F, s64, int64_t, (int64_t)x)   \
    CONVERT(from, F, u8, uint8_t, (uint8_t)x)    \
    CONVERT(from, F, u16, uint16_t, (uint16_t)x) \
    CONVERT(from, F, u32, uint32_t, (uint32_t)x) \
    CONVERT(from, F, u64, uint64_t, (uint64_t)x) \
    CONVERT(from, F, f32, float, (float)x)       \
    CONVERT(from, F, f64, double, (double)x)     \
    CONVERT(from, F, c64, struct c64, ((struct c64){(float)x, 0}))

#define TO_INT(T, lo, hi) \
    (x != x ? 0 : x <= (double)(lo) ? (lo) : x >= (double)(hi) ? (hi) : (T)x)
#define FROM_FLOAT(from, F)                                                    \
    CONVERT(from, F, pred, uint8_t, x != 0)                                    \
    CONVERT(from, F, s8, int8_t, TO_INT(int8_t, INT8_MIN, INT8_MAX))           \
    CONVERT(from, F, s16, int16_t, TO_INT(int16_t, INT16_MIN, INT16_MAX))      \
    CONVERT(from, F, s32, int32_t, TO_INT(int32_t, INT32_MIN, INT32_MAX))      \
    CONVERT(from, F, s64, int64_t, TO_INT(int64_t, INT64_MIN, INT64_MAX))      \
    CONVERT(from, F, u8, uint8_t, TO_INT(uint8_t, 0, UINT8_MAX))               \
    CONVERT(from, F, u16, uint16_t, TO_INT(uint16_t, 0, UINT16_MAX))           \
    CONVERT(from, F, u32, uint32_t, TO_INT(uint32_t, 0u, UINT32_MAX))          \
    CONVERT(from, F, u64, uint64_t, TO_INT(uint64_t, (uint64_t)0, UINT64_MAX)) \
    CONVERT(from, F, f32, float, (float)x)                                     \
    CONVERT(from, F, f64, double, (double)x)                                   \
    CONVERT(from, F, c64, struct c64, ((struct c64){(float)x, 0}))

FROM_INT(pred, uint8_t)
FROM_INT(s8, int8_t)
FROM_INT(s16, int16_t)
FROM_INT(s32, int32_t)
FROM_INT(s64, int64_t)
FROM_INT(u8, uint8_t)
FROM_INT(u16, uint16_t)
FROM_INT(u32, uint32_t)
FROM_INT(u64, uint64_t)
FROM_FLOAT(f32, float)
FROM_FLOAT(f64, double)

#define ROW(from)                                                                     \
    {                                                                                 \
        from##_to_pred, from##_to_s8, from##_to_s16, from##_to_s32, from##_to_s64,    \
            from##_to_u8, from##_to_u16, from##_to_u32, from##_to_u64, from##_to_f32, \
            from##_to_f64, from##_to_c64                                              \
    }

cpu_fn *cpu_convert_find(enum cpu_kind from, enum cpu_kind to)
{
    static cpu_fn *const table[CPU_N_KINDS][CPU_N_KINDS] = {
        ROW(pred), ROW(s8),  ROW(s16), ROW(s32), ROW(s64), ROW(u8),
        ROW(u16),  ROW(u32), ROW(u64), ROW(f32), ROW(f64)};
    return table[from][to];
}

/* ---- bf16 and f16 ---- */

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
    }
}

/* ---- memory ---- */

#define STRIDED(T)                      \
    {                                   \
        T *o = dst;                     \
        const T *p = src;               \
        for (int64_t i = 0; i < n; i++) \
            o[i * ds] = p[i * ss];      \
        return;                         \
    }

static void copy_strided(void *dst, int64_t ds, const void *src, int64_t ss, int size,
                         int64_t n)
{
    if (ds == 1 && ss == 1) {
        memcpy(dst, src, (size_t)(n * size));
        return;
    }
    switch (size) {
    case 1:
        STRIDED(uint8_t)
    case 2:
        STRIDED(uint16_t)
    case 4:
        STRIDED(uint32_t)
    case 8:
        STRIDED(uint64_t)
    }
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
        return;                         \
    }

void cpu_fill(void *dst, const void *v, int size, int64_t n)
{
    switch (size) {
    case 1:
        FILL(uint8_t)
    case 2:
        FILL(uint16_t)
    case 4:
        FILL(uint32_t)
    case 8:
        FILL(uint64_t)
    }
}
