/*
 * Elementwise operations on f32 and f64, operations on bits, and the look-up for all
 * types. Without contraction and fast-math an element has the bits of the scalar
 * expression at any position. libm functions are called per element.
 */
#include "elem/formula.h"
#include "elem/math.h"
#include "graph/formulas.h"

#include <math.h>
#include <string.h>

enum cpu_kind cpu_kind(enum ap_dtype dtype)
{
    static const enum cpu_kind kind[AP_N_DTYPES + 1] = {
        [AP_PRED] = CPU_PRED,        [AP_S8] = CPU_S8,        [AP_S16] = CPU_S16,
        [AP_S32] = CPU_S32,          [AP_S64] = CPU_S64,      [AP_U8] = CPU_U8,
        [AP_U16] = CPU_U16,          [AP_U32] = CPU_U32,      [AP_U64] = CPU_U64,
        [AP_F16] = CPU_F32,          [AP_BF16] = CPU_F32,     [AP_F32] = CPU_F32,
        [AP_F64] = CPU_F64,          [AP_C64] = CPU_C64,      [AP_F8E4M3FN] = CPU_F32,
        [AP_F8E5M2] = CPU_F32,       [AP_C128] = CPU_N_KINDS, [AP_TUPLE] = CPU_N_KINDS,
        [AP_N_DTYPES] = CPU_N_KINDS,
    };
    return kind[dtype];
}

int cpu_kind_size(enum cpu_kind kind)
{
    static const int size[CPU_N_KINDS] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 8};
    return size[kind];
}

/* ---- f32 and f64 ---- */

#define OWN_EXP_f32  cpu_expf
#define OWN_EXP_f64  exp
#define OWN_TANH_f32 cpu_tanhf
#define OWN_TANH_f64 tanh

#define UNARY_FN(OP, S, T, expr)  CPU_UNARY(CPU_WIDE, OP##_##S, T, T, expr)
#define BINARY_FN(OP, S, T, expr) CPU_BINARY(CPU_WIDE, OP##_##S, T, T, expr)
#define FINITE_FN(S, T, expr)     CPU_UNARY(CPU_WIDE, finite_##S, T, uint8_t, expr)
#define CLAMP_FN(S, T, expr)      CPU_CLAMP(CPU_WIDE, clamp_##S, T, expr)
#define ROW(OP, S, T, expr)       [AP_OP_##OP] = OP##_##S,

#define FLOAT_TABLE(T, S, f)                                                             \
    FLOAT_FORMULAS(UNARY_FN, BINARY_FN, T, S, f)                                         \
    FLOAT_FINITE(FINITE_FN, S, T, f)                                                     \
    FLOAT_CLAMP(CLAMP_FN, S, T)                                                          \
    CPU_COMPARES(CPU_WIDE, S, T, CPU_AS_IT_IS)                                           \
    static cpu_fn *const table_##S[AP_N_OPS] = {                                         \
        FLOAT_FORMULAS(ROW, ROW, T, S, f)[AP_OP_IS_FINITE] = finite_##S, [AP_OP_CLAMP] = \
                                                                             clamp_##S};

FLOAT_TABLE(float, f32, f)
FLOAT_TABLE(double, f64, )

/* ---- bits ---- */

/*
 * Keeps e exponent and m mantissa bits of f32 (c points to them): rounds to even, what is
 * too large becomes infinite, what is too small zero; XLA's reduce-precision.
 */
CPU_FN(reduce_precision)
{
    (void)b, (void)stride;
    const int64_t *bits = c;
    const int drop = 23 - (int)(bits[1] < 23 ? bits[1] : 23);
    const int bias = bits[0] >= 8 ? 127 : (1 << (bits[0] - 1)) - 1;
    const uint32_t top = (uint32_t)(127 + bias) << 23;     /* largest exponent kept */
    const uint32_t low = (uint32_t)(127 - bias + 1) << 23; /* smallest normal kept */
    const uint32_t *p = a;
    uint32_t *o = d;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t sign = p[i] & 0x80000000u;
        uint32_t v = p[i] & 0x7fffffffu;
        if (v <= 0x7f800000u) {
            if (drop > 0 && v < 0x7f800000u)
                v = (v + (1u << (drop - 1)) - 1 + ((v >> drop) & 1)) &
                    ~((1u << drop) - 1);
            if (bits[0] < 8 && v >= top + 0x800000u)
                v = 0x7f800000u;
            if (bits[0] < 8 && v < low)
                v = 0;
        } else {
            v |= 0x400000u;
        }
        o[i] = sign | v;
    }
}

#define COPY(size)                      \
    CPU_FN(copy_##size)                 \
    {                                   \
        CPU_UNUSED;                     \
        memmove(d, a, (size_t)n *size); \
    }
COPY(1)
COPY(2)
COPY(4)
COPY(8)
static cpu_fn *const copies[] = {[1] = copy_1, [2] = copy_2, [4] = copy_4, [8] = copy_8};

/* select(pred, on true, on false) by element size: it only moves bits. */
#define SELECT(size, T)                                                   \
    CPU_WIDE CPU_FN(select_##size)                                        \
    {                                                                     \
        T *o = d;                                                         \
        const uint8_t *p = a;                                             \
        const T *t = b, *f = c;                                           \
        if (stride[0] && stride[1] && stride[2]) {                        \
            CPU_LOOP                                                      \
            {                                                             \
                const T x = t[i], y = f[i];                               \
                o[i] = p[i] ? x : y;                                      \
            }                                                             \
        } else if (stride[0] && stride[1]) {                              \
            const T y = f[0];                                             \
            CPU_LOOP                                                      \
            {                                                             \
                const T x = t[i];                                         \
                o[i] = p[i] ? x : y;                                      \
            }                                                             \
        } else {                                                          \
            const int64_t sp = stride[0], st = stride[1], sf = stride[2]; \
            for (int64_t i = 0; i < n; i++)                               \
                o[i] = p[i * sp] ? t[i * st] : f[i * sf];                 \
        }                                                                 \
    }
SELECT(1, uint8_t)
SELECT(2, uint16_t)
SELECT(4, uint32_t)
SELECT(8, uint64_t)

/* Bits as integers whose order is the floats' total order. */
#define ORDERED(T, U, x) \
    ((T)((x) ^ (U)(((x) >> (8 * sizeof(T) - 1) ? (U)-1 : (U)0) >> 1)))
#define ORDERED_32(x) ORDERED(int32_t, uint32_t, x)
#define ORDERED_64(x) ORDERED(int64_t, uint64_t, x)
CPU_COMPARES(CPU_WIDE, total_f32, uint32_t, ORDERED_32)
CPU_COMPARES(CPU_WIDE, total_f64, uint64_t, ORDERED_64)

/* The bits of narrow floats, which registers hold as f32. */
CPU_UNARY(, bf16_to_bits, uint32_t, uint16_t, (uint16_t)(x >> 16))
CPU_UNARY(, bits_to_bf16, uint16_t, uint32_t, (uint32_t)x << 16)
CPU_UNARY(, f16_to_bits, float, uint16_t, ap_f32_to_f16(x))
CPU_UNARY(, bits_to_f16, uint16_t, float, ap_f16_to_f32(x))
CPU_UNARY(, e4m3_to_bits, float, uint8_t, ap_f32_to_f8e4m3fn(x))
CPU_UNARY(, bits_to_e4m3, uint8_t, float, ap_f8e4m3fn_to_f32(x))
CPU_UNARY(, e5m2_to_bits, float, uint8_t, ap_f32_to_f8e5m2(x))
CPU_UNARY(, bits_to_e5m2, uint8_t, float, ap_f8e5m2_to_f32(x))

/* NULL between narrow floats, which nobody needs. */
static cpu_fn *bitcast_find(enum ap_dtype in, enum ap_dtype out)
{
    if (in == out || (cpu_is_plain(in) && cpu_is_plain(out)))
        return copies[cpu_kind_size(cpu_kind(out))];
    if (!cpu_is_plain(in) && !cpu_is_plain(out))
        return NULL;
    static cpu_fn *const to_bits[AP_N_DTYPES] = {[AP_BF16] = bf16_to_bits,
                                                 [AP_F16] = f16_to_bits,
                                                 [AP_F8E4M3FN] = e4m3_to_bits,
                                                 [AP_F8E5M2] = e5m2_to_bits};
    static cpu_fn *const from_bits[AP_N_DTYPES] = {[AP_BF16] = bits_to_bf16,
                                                   [AP_F16] = bits_to_f16,
                                                   [AP_F8E4M3FN] = bits_to_e4m3,
                                                   [AP_F8E5M2] = bits_to_e5m2};
    return cpu_is_plain(in) ? from_bits[out] : to_bits[in];
}

/* ---- the look-up ---- */

cpu_fn *cpu_compare_find(const struct ap_attrs *attrs, enum ap_dtype in)
{
    const enum cpu_kind k = cpu_kind(in);
    if (attrs->total_order && k == CPU_F32)
        return compare_total_f32[attrs->direction];
    if (attrs->total_order && k == CPU_F64)
        return compare_total_f64[attrs->direction];
    return cpu_op_find(AP_OP_COMPARE, attrs->direction, in, AP_PRED);
}

cpu_fn *cpu_op_find(enum ap_op op, enum ap_direction direction, enum ap_dtype in,
                    enum ap_dtype out)
{
    static cpu_fn *const selects[] = {
        [1] = select_1, [2] = select_2, [4] = select_4, [8] = select_8};
    const enum cpu_kind k = cpu_kind(in), to = cpu_kind(out);
    if (k == CPU_N_KINDS || to == CPU_N_KINDS)
        return NULL;
    switch ((int)op) {
    case AP_OP_CONVERT:
        return k == to ? copies[cpu_kind_size(to)] : cpu_convert_find(k, to);
    case AP_OP_BITCAST_CONVERT:
        return bitcast_find(in, out);
    case AP_OP_COPY:
    case AP_OP_OPT_BARRIER:
        return copies[cpu_kind_size(to)];
    case AP_OP_SELECT:
        return selects[cpu_kind_size(to)];
    case AP_OP_REDUCE_PRECISION:
        return k == CPU_F32 ? reduce_precision : NULL;
    }
    if (k == CPU_C64 || to == CPU_C64)
        return cpu_complex_find(op, direction);
    if (k == CPU_F32)
        return op == AP_OP_COMPARE ? compare_f32[direction] : table_f32[op];
    if (k == CPU_F64)
        return op == AP_OP_COMPARE ? compare_f64[direction] : table_f64[op];
    return cpu_int_find(op, direction, k);
}

enum ap_op cpu_red_op(enum ap_red red)
{
    switch (red) {
    case AP_RED_SUM:
        return AP_OP_ADD;
    case AP_RED_PROD:
        return AP_OP_MULTIPLY;
    case AP_RED_MAX:
        return AP_OP_MAXIMUM;
    case AP_RED_MIN:
        return AP_OP_MINIMUM;
    case AP_RED_AND:
        return AP_OP_AND;
    case AP_RED_OR:
        return AP_OP_OR;
    case AP_RED_NONE:
    case AP_RED_ASSIGN:
    case AP_N_REDS:
        break;
    }
    return AP_N_OPS;
}
