/*
 * Elementwise operations: XLA's answers at the edges, conversions, rounding, and that an
 * element's bits do not depend on where it lies.
 */
#include "exec_eval.h"
#include "base/float16.h"
#include "tap.h"

#include <math.h>

static const int vectors[3] = {1, 1, 1};

/* f(x, y) on one element of an integer type. */
static int64_t int_op(enum ap_op op, enum ap_dtype t, int64_t x, int64_t y)
{
    int64_t out = 0;
    cpu_op_find(op, AP_EQ, t, t)(&out, &x, &y, &y, vectors, 1);
    const int bits = 8 * ap_dtype_size(t);
    if (bits == 64)
        return out;
    const bool is_signed = t >= AP_S8 && t <= AP_S64;
    out &= (INT64_C(1) << bits) - 1;
    return is_signed && out >> (bits - 1) ? out - (INT64_C(1) << bits) : out;
}

static void check_integers(void)
{
    CHECK(int_op(AP_OP_DIVIDE, AP_S32, 7, 0) == -1, "7 / 0 is -1");
    CHECK(int_op(AP_OP_DIVIDE, AP_U8, 7, 0) == 255, "unsigned 7 / 0 is all ones");
    CHECK(int_op(AP_OP_DIVIDE, AP_S32, INT32_MIN, -1) == INT32_MIN, "INT_MIN / -1 wraps");
    CHECK(int_op(AP_OP_DIVIDE, AP_S64, INT64_MIN, -1) == INT64_MIN, "in 64 bits, too");
    CHECK(int_op(AP_OP_REMAINDER, AP_S32, 7, 0) == 7, "7 %% 0 is 7");
    CHECK(int_op(AP_OP_REMAINDER, AP_S64, INT64_MIN, -1) == 0, "INT64_MIN %% -1 is 0");
    CHECK(int_op(AP_OP_REMAINDER, AP_S32, -7, 3) == -1,
          "the remainder's sign is the dividend's");
    CHECK(int_op(AP_OP_MULTIPLY, AP_S16, 32767, 2) == -2, "products wrap");
    CHECK(int_op(AP_OP_MULTIPLY, AP_U16, 65535, 65535) == 1, "u16 products wrap");
    CHECK(int_op(AP_OP_ADD, AP_S8, 127, 1) == -128, "sums wrap");
    CHECK(int_op(AP_OP_SHIFT_LEFT, AP_S32, 1, 32) == 0, "1 << 32 is 0");
    CHECK(int_op(AP_OP_SHIFT_LEFT, AP_U8, 255, 4) == 240, "255 << 4 in u8");
    CHECK(int_op(AP_OP_SHIFT_RIGHT_LOGICAL, AP_S8, -1, 4) == 15, "-1 >>> 4 in s8");
    CHECK(int_op(AP_OP_SHIFT_RIGHT_LOGICAL, AP_S32, -1, -1) == 0,
          "a negative shift is a large one");
    CHECK(int_op(AP_OP_SHIFT_RIGHT_ARITHMETIC, AP_S32, -8, 40) == -1,
          "-8 >> 40 is the sign");
    CHECK(int_op(AP_OP_SHIFT_RIGHT_ARITHMETIC, AP_U8, 128, 3) == 240,
          "bits of u8 as signed");
    CHECK(int_op(AP_OP_ABS, AP_S32, INT32_MIN, 0) == INT32_MIN, "|INT_MIN| wraps");
    CHECK(int_op(AP_OP_POWER, AP_S32, -1, -3) == -1 &&
              int_op(AP_OP_POWER, AP_S32, 2, -1) == 0,
          "negative powers");
    CHECK(int_op(AP_OP_POWER, AP_S32, 3, 4) == 81, "3^4");
    CHECK(int_op(AP_OP_SIGN, AP_S64, -9, 0) == -1, "sign");
}

/* from -> to of one number. */
static double convert(enum ap_dtype from, enum ap_dtype to, double v)
{
    char a[8], b[8];
    eval_put(a, from, 0, v);
    char reg[8], out[8];
    cpu_load(reg, a, 1, from, 1);
    cpu_fn *fn = cpu_op_find(AP_OP_CONVERT, AP_EQ, from, to);
    fn(out, reg, reg, reg, vectors, 1);
    cpu_store(b, 1, out, to, 1);
    return data_number(b, to, 0);
}

static void check_conversions(void)
{
    CHECK(convert(AP_F32, AP_S32, 1e20) == INT32_MAX, "too large saturates");
    CHECK(convert(AP_F32, AP_S32, -INFINITY) == INT32_MIN, "-inf saturates");
    CHECK(convert(AP_F32, AP_S32, NAN) == 0, "NaN becomes 0");
    CHECK(convert(AP_F32, AP_S8, -3.9) == -3, "towards zero");
    CHECK(convert(AP_F32, AP_U8, -3) == 0, "unsigned from below saturates");
    CHECK(convert(AP_F32, AP_S64, 9.3e18) == 0x1p63, "2^63 saturates");
    CHECK(convert(AP_F64, AP_U64, 1.8e19) == 1.8e19, "large u64");
    CHECK(convert(AP_F32, AP_PRED, 0.5) == 1 && convert(AP_F32, AP_PRED, 0) == 0,
          "to pred");
    CHECK(convert(AP_S32, AP_PRED, 256) == 1, "256 to pred is 1");
    CHECK(convert(AP_S32, AP_U8, 300) == 44, "integers are cut");
    CHECK(convert(AP_S32, AP_BF16, 257) == 256, "257 rounds to 256 in bf16");
    CHECK(convert(AP_F32, AP_BF16, 1.00390625f) == 1, "ties to even in bf16");
    CHECK(convert(AP_F32, AP_F16, 65520) == INFINITY, "65520 is infinite in f16");
    CHECK(convert(AP_F32, AP_F16, 65519) == 65504, "65519 is 65504 in f16");
    CHECK(convert(AP_F32, AP_F16, 0x1p-25) == 0, "2^-25 is 0 in f16, ties to even");
    CHECK(convert(AP_F32, AP_F16, 0x1.8p-25) == 0x1p-24, "f16 subnormals round");
    CHECK(isnan(convert(AP_F32, AP_BF16, NAN)) && isnan(convert(AP_F32, AP_F16, NAN)),
          "NaN stays");
    /* all 65536 values of either half type survive a round trip */
    int bad = 0;
    for (int h = 0; h < 65536; h++) {
        uint16_t u = (uint16_t)h, back;
        float f;
        for (int k = 0; k < 2; k++) {
            cpu_load(&f, &u, 1, k ? AP_F16 : AP_BF16, 1);
            cpu_store(&back, 1, &f, k ? AP_F16 : AP_BF16, 1);
            bad += !isnan(f) && back != u;
            bad += !isnan(f) && f != (k ? ap_f16_to_f32(u) : ap_bf16_to_f32(u));
        }
    }
    CHECK(bad == 0, "every half value to f32 and back");
    for (int h = 0; h < 256; h++)
        for (int k = 0; k < 2; k++) {
            const enum ap_dtype fp8 = k ? AP_F8E5M2 : AP_F8E4M3FN;
            uint8_t u = (uint8_t)h, back, bits;
            float f, again;
            cpu_load(&f, &u, 1, fp8, 1);
            cpu_store(&back, 1, &f, fp8, 1);
            cpu_op_find(AP_OP_BITCAST_CONVERT, AP_EQ, fp8, AP_U8)(&bits, &f, &f, &f,
                                                                  vectors, 1);
            cpu_op_find(AP_OP_BITCAST_CONVERT, AP_EQ, AP_U8, fp8)(&again, &u, &u, &u,
                                                                  vectors, 1);
            bad += !isnan(f) && (back != u || bits != u || again != f);
        }
    CHECK(bad == 0, "every fp8 value to f32 and back");
    CHECK(convert(AP_F32, AP_F8E4M3FN, 448) == 448 &&
              isnan(convert(AP_F32, AP_F8E4M3FN, 480)) &&
              convert(AP_F32, AP_F8E5M2, 1e6) == INFINITY,
          "e4m3fn has no infinity, e5m2 has");
    uint64_t s = 1;
    for (int i = 0; i < 200000; i++) {
        const uint32_t u = (uint32_t)eval_random(&s);
        float f;
        uint16_t h;
        memcpy(&f, &u, 4);
        cpu_store(&h, 1, &f, AP_F16, 1);
        bad += !isnan(f) && h != ap_f32_to_f16(f);
        cpu_store(&h, 1, &f, AP_BF16, 1);
        bad += !isnan(f) && h != ap_f32_to_bf16(f);
    }
    CHECK(bad == 0, "f32 to half rounds as in libcommon");
}

static void check_floats(void)
{
    const float x[4] = {NAN, 1, -0.0f, INFINITY}, y[4] = {1, NAN, 2, -1};
    float o[4];
    uint8_t p[4];
    cpu_op_find(AP_OP_MAXIMUM, AP_EQ, AP_F32, AP_F32)(o, x, y, y, vectors, 4);
    CHECK(isnan(o[0]) && isnan(o[1]) && o[2] == 2 && o[3] == INFINITY,
          "maximum passes NaN");
    cpu_op_find(AP_OP_MINIMUM, AP_EQ, AP_F32, AP_F32)(o, x, y, y, vectors, 4);
    CHECK(isnan(o[0]) && isnan(o[1]) && o[3] == -1, "minimum passes NaN");
    cpu_op_find(AP_OP_SIGN, AP_EQ, AP_F32, AP_F32)(o, x, x, x, vectors, 4);
    CHECK(isnan(o[0]) && o[1] == 1 && signbit(o[2]) && o[3] == 1,
          "sign of NaN, 1, -0, inf");
    cpu_op_find(AP_OP_IS_FINITE, AP_EQ, AP_F32, AP_PRED)(p, x, x, x, vectors, 4);
    CHECK(!p[0] && p[1] && p[2] && !p[3], "is-finite");
    cpu_op_find(AP_OP_COMPARE, AP_NE, AP_F32, AP_PRED)(p, x, x, x, vectors, 4);
    CHECK(p[0] && !p[1], "NaN differs from itself");
    const float h[3] = {2.5f, -2.5f, 0.5f};
    cpu_op_find(AP_OP_ROUND_EVEN, AP_EQ, AP_F32, AP_F32)(o, h, h, h, vectors, 3);
    CHECK(o[0] == 2 && o[1] == -2 && o[2] == 0, "halves to even");
    cpu_op_find(AP_OP_ROUND_AFZ, AP_EQ, AP_F32, AP_F32)(o, h, h, h, vectors, 3);
    CHECK(o[0] == 3 && o[1] == -3 && o[2] == 1, "halves away from zero");
    const int64_t bf[2] = {8, 7};
    const float r[2] = {1.00390625f, 3.3e38f};
    cpu_op_find(AP_OP_REDUCE_PRECISION, AP_EQ, AP_F32, AP_F32)(o, r, r, bf, vectors, 2);
    CHECK(o[0] == 1 && o[1] == convert(AP_F32, AP_BF16, 3.3e38f),
          "reduce-precision to bf16");
    const int64_t half[2] = {5, 10};
    const float q[4] = {70000, 1e-6f, 65519, 1.0005f};
    cpu_op_find(AP_OP_REDUCE_PRECISION, AP_EQ, AP_F32, AP_F32)(o, q, q, half, vectors, 4);
    CHECK(o[0] == INFINITY && o[1] == 0 && o[2] == 65504 && o[3] == 1.0009765625f,
          "reduce-precision to e5m10");
}

/* Largest error of an f32 function in units in the last place of the exact result. */
static double worst_error(enum ap_op op, double (*exact)(double), float lo, float hi)
{
    cpu_fn *fn = cpu_op_find(op, AP_EQ, AP_F32, AP_F32);
    double worst = 0;
    const int n = 1000000;
    for (int i = 0; i <= n; i++) {
        const float x = lo + (hi - lo) * (float)i / (float)n;
        float y;
        fn(&y, &x, &x, &x, vectors, 1);
        const double want = exact(x);
        const double ulp = nextafterf((float)fabs(want), INFINITY) - (float)fabs(want);
        const double e = fabs(y - want) / ulp;
        worst = e > worst ? e : worst;
    }
    return worst;
}

static void check_functions(void)
{
    CHECK(worst_error(AP_OP_EXPONENTIAL, exp, -103, 88.7f) < 2,
          "exponential within 2 ulp");
    CHECK(worst_error(AP_OP_EXPONENTIAL, exp, -1, 1) < 2,
          "exponential near 0 within 2 ulp");
    CHECK(worst_error(AP_OP_TANH, tanh, -10, 10) < 7, "tanh within 7 ulp");
    CHECK(worst_error(AP_OP_TANH, tanh, -1e-3f, 1e-3f) < 7, "tanh near 0 within 7 ulp");
    const float x[7] = {INFINITY, -INFINITY, NAN, 0, -0.0f, 89, -200};
    float e[7], t[7];
    cpu_op_find(AP_OP_EXPONENTIAL, AP_EQ, AP_F32, AP_F32)(e, x, x, x, vectors, 7);
    cpu_op_find(AP_OP_TANH, AP_EQ, AP_F32, AP_F32)(t, x, x, x, vectors, 7);
    CHECK(e[0] == INFINITY && e[1] == 0 && isnan(e[2]) && e[3] == 1 && e[4] == 1 &&
              e[5] == INFINITY && e[6] == 0,
          "exponential at its ends");
    CHECK(fabsf(t[0] - 1) < 2e-7f && fabsf(t[1] + 1) < 2e-7f && isnan(t[2]) &&
              t[3] == 0 && signbit(t[4]),
          "tanh at its ends");
}

/* Every float operation, on a run of 1000 and on each element alone, at any place. */
static void check_places(void)
{
    static float x[1003], y[1003], all[1003];
    uint64_t s = 9;
    for (int i = 0; i < 1003; i++) {
        x[i] = (float)((double)eval_between(&s, -400000, 400000) * 1e-5);
        y[i] = (float)((double)eval_between(&s, 1, 400000) * 1e-5);
    }
    for (enum ap_op op = 0; op < AP_N_OPS; op++) {
        if (ap_ops[op].class != AP_CLASS_ELEMENTWISE || op == AP_OP_COMPARE ||
            op == AP_OP_SELECT || op == AP_OP_REDUCE_PRECISION || op == AP_OP_IS_FINITE)
            continue;
        cpu_fn *fn = cpu_op_find(op, AP_EQ, AP_F32, AP_F32);
        if (!fn)
            continue;
        int bad = 0;
        static const int scalar[3] = {1, 0, 1};
        for (int off = 0; off < 3; off++) {
            fn(all + off, x + off, y + off, y + off, vectors, 1000);
            for (int i = off; i < 1000 + off; i++) {
                float one, again;
                fn(&one, &x[i], &y[i], &y[i], vectors, 1);
                fn(&again, &x[i], &y[i], &y[i], ap_ops[op].arity == 2 ? scalar : vectors,
                   1);
                bad += memcmp(&one, &all[i], 4) != 0 || memcmp(&one, &again, 4) != 0;
            }
        }
        CHECK(bad == 0, "%s: the same bits at every place", ap_ops[op].name);
    }
}

int main(void)
{
    check_integers();
    check_conversions();
    check_floats();
    check_functions();
    check_places();
    return tap_done();
}
