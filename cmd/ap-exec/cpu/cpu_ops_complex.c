/*
 * Elementwise operations on complex numbers of two f32. Products, quotients and functions
 * are computed in double precision and rounded once, so that no component is lost to
 * cancellation or early overflow.
 */
#include "cpu/cpu.h"

#include <complex.h>
#include <math.h>

struct c64 {
    float re, im;
};

static double complex wide(struct c64 x)
{
    return CMPLX((double)x.re, (double)x.im);
}

static struct c64 narrow(double complex x)
{
    return (struct c64){(float)creal(x), (float)cimag(x)};
}

#define UNARY(name, T, R, expr)                                            \
    static void name(void *d, const void *a, const void *b, const void *c, \
                     const int *stride, int64_t n)                         \
    {                                                                      \
        (void)stride, (void)b, (void)c;                                    \
        R *o = d;                                                          \
        const T *p = a;                                                    \
        for (int64_t i = 0; i < n; i++) {                                  \
            const T x = p[i];                                              \
            o[i] = (expr);                                                 \
        }                                                                  \
    }

#define BINARY(name, T, R, expr)                                           \
    static void name(void *d, const void *a, const void *b, const void *c, \
                     const int *stride, int64_t n)                         \
    {                                                                      \
        (void)c;                                                           \
        R *o = d;                                                          \
        const T *p = a, *q = b;                                            \
        const int64_t s = stride[0], t = stride[1];                        \
        for (int64_t i = 0; i < n; i++) {                                  \
            const T x = p[i * s], y = q[i * t];                            \
            o[i] = (expr);                                                 \
        }                                                                  \
    }

static double complex divided(double complex x, double complex y)
{
    const double norm = creal(y) * creal(y) + cimag(y) * cimag(y);
    const double complex z = x * conj(y);
    return CMPLX(creal(z) / norm, cimag(z) / norm);
}

static double complex sign_of(double complex x)
{
    const double r = cabs(x);
    return r > 0 ? CMPLX(creal(x) / r, cimag(x) / r) : x;
}

static double complex power(double complex x, double complex y)
{
    return x == 0 && y == 0 ? 1 : cpow(x, y);
}

UNARY(real_c64, struct c64, float, x.re)
UNARY(imag_c64, struct c64, float, x.im)
UNARY(abs_c64, struct c64, float, (float)cabs(wide(x)))
UNARY(neg_c64, struct c64, struct c64, ((struct c64){-x.re, -x.im}))
UNARY(cos_c64, struct c64, struct c64, narrow(ccos(wide(x))))
UNARY(exp_c64, struct c64, struct c64, narrow(cexp(wide(x))))
UNARY(expm1_c64, struct c64, struct c64, narrow(cexp(wide(x)) - 1))
UNARY(log_c64, struct c64, struct c64, narrow(clog(wide(x))))
UNARY(log1p_c64, struct c64, struct c64, narrow(clog(wide(x) + 1)))
UNARY(logistic_c64, struct c64, struct c64, narrow(divided(1, 1 + cexp(-wide(x)))))
UNARY(rsqrt_c64, struct c64, struct c64, narrow(divided(1, csqrt(wide(x)))))
UNARY(sign_c64, struct c64, struct c64, narrow(sign_of(wide(x))))
UNARY(sin_c64, struct c64, struct c64, narrow(csin(wide(x))))
UNARY(sqrt_c64, struct c64, struct c64, narrow(csqrt(wide(x))))
UNARY(tan_c64, struct c64, struct c64, narrow(ctan(wide(x))))
UNARY(tanh_c64, struct c64, struct c64, narrow(ctanh(wide(x))))
BINARY(complex_c64, float, struct c64, ((struct c64){x, y}))
BINARY(add_c64, struct c64, struct c64, ((struct c64){x.re + y.re, x.im + y.im}))
BINARY(sub_c64, struct c64, struct c64, ((struct c64){x.re - y.re, x.im - y.im}))
BINARY(mul_c64, struct c64, struct c64, narrow(wide(x) * wide(y)))
BINARY(div_c64, struct c64, struct c64, narrow(divided(wide(x), wide(y))))
BINARY(pow_c64, struct c64, struct c64, narrow(power(wide(x), wide(y))))
BINARY(eq_c64, struct c64, uint8_t, x.re == y.re && x.im == y.im)
BINARY(ne_c64, struct c64, uint8_t, x.re != y.re || x.im != y.im)

cpu_fn *cpu_complex_find(enum ap_op op, enum ap_direction direction)
{
    static cpu_fn *const table[AP_N_OPS] = {
        [AP_OP_REAL] = real_c64,
        [AP_OP_IMAG] = imag_c64,
        [AP_OP_ABS] = abs_c64,
        [AP_OP_NEGATE] = neg_c64,
        [AP_OP_COSINE] = cos_c64,
        [AP_OP_EXPONENTIAL] = exp_c64,
        [AP_OP_EXPONENTIAL_MINUS_ONE] = expm1_c64,
        [AP_OP_LOG] = log_c64,
        [AP_OP_LOG_PLUS_ONE] = log1p_c64,
        [AP_OP_LOGISTIC] = logistic_c64,
        [AP_OP_RSQRT] = rsqrt_c64,
        [AP_OP_SIGN] = sign_c64,
        [AP_OP_SINE] = sin_c64,
        [AP_OP_SQRT] = sqrt_c64,
        [AP_OP_TAN] = tan_c64,
        [AP_OP_TANH] = tanh_c64,
        [AP_OP_COMPLEX] = complex_c64,
        [AP_OP_ADD] = add_c64,
        [AP_OP_SUBTRACT] = sub_c64,
        [AP_OP_MULTIPLY] = mul_c64,
        [AP_OP_DIVIDE] = div_c64,
        [AP_OP_POWER] = pow_c64,
    };
    if (op == AP_OP_COMPARE)
        return direction == AP_EQ ? eq_c64 : direction == AP_NE ? ne_c64 : NULL;
    return table[op];
}
