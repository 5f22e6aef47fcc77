/* Families of elementwise operators, and those that read single elements. */
#include "gen_priv.h"

#include <string.h>

void gen_unary(struct gen *g)
{
    static const enum ap_op exact[] = {
        AP_OP_ABS,  AP_OP_NEGATE,    AP_OP_SIGN,       AP_OP_COPY,       AP_OP_FLOOR,
        AP_OP_CEIL, AP_OP_ROUND_AFZ, AP_OP_ROUND_EVEN, AP_OP_OPT_BARRIER};
    static const enum ap_op inexact[] = {AP_OP_ASINH,
                                         AP_OP_CBRT,
                                         AP_OP_COSH,
                                         AP_OP_COSINE,
                                         AP_OP_ERF,
                                         AP_OP_EXPONENTIAL,
                                         AP_OP_EXPONENTIAL_MINUS_ONE,
                                         AP_OP_LOGISTIC,
                                         AP_OP_SINE,
                                         AP_OP_SINH,
                                         AP_OP_TANH,
                                         AP_OP_SQRT,
                                         AP_OP_RSQRT,
                                         AP_OP_LOG,
                                         AP_OP_LOG_PLUS_ONE,
                                         AP_OP_REDUCE_PRECISION,
                                         AP_OP_TAN};
    int x = gen_pick(g, gen_is_f);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    if (gen_below(&g->rng, 2)) {
        gen_add1(g, exact[gen_below(&g->rng, 9)], s, NULL, x, g->bound[x]);
        return;
    }
    if (g->bound[x] > SMALL)
        x = gen_tame(g, x);
    enum ap_op op = inexact[gen_below(&g->rng, sizeof inexact / sizeof *inexact)];
    struct ap_attrs *a = gen_attrs_new(g);
    if (op == AP_OP_REDUCE_PRECISION) {
        a->exponent_bits = 8;
        a->mantissa_bits = 7;
    }
    if (op == AP_OP_SQRT || op == AP_OP_LOG_PLUS_ONE || op == AP_OP_LOG ||
        op == AP_OP_RSQRT) {
        x = gen_add1(g, AP_OP_ABS, s, NULL, x, SMALL);
        if (op == AP_OP_LOG || op == AP_OP_RSQRT) /* positive */
            x = gen_add2(g, AP_OP_ADD, s, NULL, x, gen_filled(g, 1, &s), SMALL + 1);
    }
    if (op == AP_OP_TAN) { /* between the poles */
        x = gen_add1(g, AP_OP_SINE, s, NULL, x, 1);
        g->in_pool[x] = false; /* not integers: sums of them are not exact */
    }
    gen_tame(g, gen_add1(g, op, s, a, x, 30));
}

void gen_binary(struct gen *g)
{
    static const enum ap_op ops[] = {AP_OP_ADD,     AP_OP_ADD,     AP_OP_SUBTRACT,
                                     AP_OP_MAXIMUM, AP_OP_MINIMUM, AP_OP_MULTIPLY,
                                     AP_OP_MULTIPLY};
    int x = gen_pick(g, gen_number);
    if (x < 0)
        return;
    int y = gen_pick_like(g, x);
    enum ap_op op = ops[gen_below(&g->rng, 7)];
    struct ap_shape s = g->node[x].shape;
    double bx = g->bound[x], by = g->bound[y];
    if (op == AP_OP_SUBTRACT && s.dtype >= AP_U8 && s.dtype <= AP_U64)
        op = AP_OP_ADD;
    if (op == AP_OP_MULTIPLY && bx * by > gen_max_exact(s.dtype)) {
        x = gen_tame(g, x);
        y = gen_tame(g, y);
        bx = by = SMALL;
    }
    gen_settle(g,
               gen_add2(g, op, s, NULL, x, y, op == AP_OP_MULTIPLY ? bx * by : bx + by));
}

/* divide, power, remainder, atan2: inexact, by a positive second operand. */
void gen_inexact_binary(struct gen *g)
{
    static const enum ap_op ops[] = {AP_OP_DIVIDE, AP_OP_POWER, AP_OP_REMAINDER,
                                     AP_OP_ATAN2};
    int x = gen_pick(g, gen_is_f);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    int y = gen_pick_like(g, x);
    x = gen_tame(g, x);
    y = gen_add1(g, AP_OP_ABS, s, NULL, gen_tame(g, y), SMALL);
    y = gen_add2(g, AP_OP_ADD, s, NULL, y, gen_filled(g, 1, &s), SMALL + 1);
    gen_tame(g, gen_add2(g, ops[gen_below(&g->rng, 4)], s, NULL, x, y, 100));
}

void gen_integer_ops(struct gen *g)
{
    static const enum ap_op ops[] = {AP_OP_DIVIDE,
                                     AP_OP_REMAINDER,
                                     AP_OP_AND,
                                     AP_OP_OR,
                                     AP_OP_XOR,
                                     AP_OP_SHIFT_LEFT,
                                     AP_OP_SHIFT_RIGHT_ARITHMETIC,
                                     AP_OP_SHIFT_RIGHT_LOGICAL};
    int x = gen_pick(g, gen_is_signed);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    int y = gen_pick_like(g, x);
    if (gen_below(&g->rng, 8) == 0)
        gen_tame(g, gen_add1(g, AP_OP_NOT, s, NULL, x, g->bound[x] + 1));
    else
        gen_tame(g, gen_add2(g, ops[gen_below(&g->rng, 8)], s, NULL, x, y, 1e9));
}

void gen_bits(struct gen *g)
{
    int x = gen_pick(g, gen_is_signed);
    if (x < 0 || g->node[x].shape.dtype != AP_S32)
        return;
    struct ap_shape s = g->node[x].shape;
    struct ap_shape u = gen_shape_of(g, AP_U32, s.rank, s.dims);
    enum ap_op op = gen_below(&g->rng, 2) ? AP_OP_POPCNT : AP_OP_COUNT_LEADING_ZEROS;
    gen_add1(g, op, u, NULL, gen_add1(g, AP_OP_BITCAST_CONVERT, u, NULL, x, 1e10), 32);
}

#ifdef AP_FFTW
enum { has_fft = 1 };
#else
enum { has_fft = 0 }; /* ap-exec refuses transforms */
#endif

/* The real and the imaginary part of half a spectrum, and their sum. */
void gen_spectrum(struct gen *g)
{
    if (!has_fft)
        return;
    int x = gen_pick(g, gen_is_f_ranked);
    if (x < 0 || g->node[x].shape.dtype != AP_F32)
        return;
    struct ap_shape s = g->node[gen_tame(g, x)].shape;
    struct ap_attrs *a = gen_attrs_new(g);
    int64_t dims[AP_MAX_RANK], len = s.dims[s.rank - 1];
    if (len < 1)
        return;
    memcpy(dims, s.dims, sizeof *dims * (size_t)s.rank);
    dims[s.rank - 1] = len / 2 + 1;
    a->fft_type = AP_FFT_RFFT;
    a->fft_length = gen_ints(g, 1, (int64_t[]){len, 0});
    struct ap_shape half = gen_shape_of(g, AP_F32, s.rank, dims);
    struct ap_shape c = gen_shape_of(g, AP_C64, s.rank, dims);
    int y = gen_add1(g, AP_OP_FFT, c, a, gen_tame(g, x), 1e10);
    int re = gen_add1(g, AP_OP_REAL, half, NULL, y, 1e4);
    int both = gen_add2(g, AP_OP_COMPLEX, c, NULL, re, re, 1e10);
    gen_tame(g, gen_add1(g, AP_OP_IMAG, half, NULL, both, 1e4));
}

/* Factors of diagonal matrices, and a solve with them. */
void gen_matrices(struct gen *g)
{
    int64_t n = 1 + gen_below(&g->rng, 6), dims[3] = {n, 2, 2}, side[3] = {n, 2, 4};
    struct ap_shape s = gen_shape_of(g, AP_F32, 3, dims);
    struct ap_shape b = gen_shape_of(g, AP_F32, 3, side);
    struct ap_shape pred = gen_shape_of(g, AP_PRED, 3, dims);
    int in[4] = {0}, at[3];
    for (int d = 0; d < 3; d++) {
        struct ap_attrs *a = gen_attrs_new(g);
        a->iota_dimension = d;
        at[d] = gen_add(g, AP_OP_IOTA, s, a, 0, in, 6);
    }
    struct ap_attrs *attrs = gen_attrs_new(g), *of_b = gen_attrs_new(g);
    int eq = gen_add2(g, AP_OP_COMPARE, pred, attrs, at[1], at[2], 1);
    int diagonal = gen_add2(g, AP_OP_ADD, s, NULL, at[0], gen_filled(g, 1, &s), 7);
    int pick[4] = {eq, diagonal, gen_filled(g, 0, &s), 0};
    int a = gen_add(g, AP_OP_SELECT, s, NULL, 3, pick, 7);
    attrs = gen_attrs_new(g);
    attrs->lower = attrs->left_side = true;
    int l = gen_tame(g, gen_add1(g, AP_OP_CHOLESKY, s, attrs, a, 3));
    l = gen_add2(g, AP_OP_ADD, s, NULL, l, at[1], SMALL + 6);
    of_b->iota_dimension = 2;
    int rhs = gen_add(g, AP_OP_IOTA, b, of_b, 0, in, 6);
    gen_tame(g, gen_add2(g, AP_OP_TRIANGULAR_SOLVE, b, attrs, l, rhs, 1e4));
}

void gen_logic(struct gen *g)
{
    int x = gen_pick(g, gen_number);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    struct ap_shape pred = gen_shape_of(g, AP_PRED, s.rank, s.dims);
    struct ap_attrs *a = gen_attrs_new(g);
    a->direction = (enum ap_direction)gen_below(&g->rng, 6);
    int p = gen_add2(g, AP_OP_COMPARE, pred, a, x, gen_pick_like(g, x), 1);
    if (ap_dtype_is_float(s.dtype) && gen_below(&g->rng, 3) == 0) {
        int q = gen_add1(g, AP_OP_IS_FINITE, pred, NULL, x, 1);
        static const enum ap_op ops[] = {AP_OP_AND, AP_OP_OR, AP_OP_XOR};
        p = gen_add2(g, ops[gen_below(&g->rng, 3)], pred, NULL, p, q, 1);
    }
    if (gen_below(&g->rng, 4) == 0)
        p = gen_add1(g, AP_OP_NOT, pred, NULL, p, 1);
    int y = gen_pick_like(g, x), in[4] = {p, x, y, 0};
    gen_add(g, AP_OP_SELECT, s, NULL, 3, in,
            g->bound[x] > g->bound[y] ? g->bound[x] : g->bound[y]);
}

void gen_convert(struct gen *g)
{
    static const enum ap_dtype to[] = {AP_F32, AP_F32, AP_F32, AP_S32, AP_BF16,
                                       AP_F16, AP_S8,  AP_S64, AP_F64, AP_U32};
    int x = gen_pick(g, gen_any);
    if (x < 0)
        return;
    enum ap_dtype t = to[gen_below(&g->rng, 10)];
    struct ap_shape s = gen_shape_of(g, t, g->node[x].shape.rank, g->node[x].shape.dims);
    if (g->bound[x] > gen_max_exact(t))
        x = gen_tame(g, x);
    if (t == AP_U32 && g->node[x].shape.dtype != AP_PRED)
        x = gen_add2(g, AP_OP_MULTIPLY, g->node[x].shape, NULL, x, x,
                     g->bound[x] * g->bound[x]);
    gen_settle(g, gen_add1(g, AP_OP_CONVERT, s, NULL, x, g->bound[x]));
}
