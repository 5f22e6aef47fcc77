/*
 * Elementwise operations on complex numbers of two f32. Products, quotients and functions
 * are computed in double precision and rounded once, so that no component is lost to
 * cancellation or early overflow.
 */
#include "cpu/cpu_elem.h"

#include <complex.h>
#include <math.h>

static double complex wide(struct c64 x)
{
    return CMPLX((double)x.re, (double)x.im);
}

static struct c64 narrow(double complex x)
{
    return (struct c64){(float)creal(x), (float)cimag(x)};
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

#define COMPLEX_OPS(UNARY, BINARY)                          \
    UNARY(COSINE, narrow(ccos(wide(x))))                    \
    UNARY(EXPONENTIAL, narrow(cexp(wide(x))))               \
    UNARY(EXPONENTIAL_MINUS_ONE, narrow(cexp(wide(x)) - 1)) \
    UNARY(LOG, narrow(clog(wide(x))))                       \
    UNARY(LOG_PLUS_ONE, narrow(clog(wide(x) + 1)))          \
    UNARY(LOGISTIC, narrow(divided(1, 1 + cexp(-wide(x))))) \
    UNARY(NEGATE, ((struct c64){-x.re, -x.im}))             \
    UNARY(RSQRT, narrow(divided(1, csqrt(wide(x)))))        \
    UNARY(SIGN, narrow(sign_of(wide(x))))                   \
    UNARY(SINE, narrow(csin(wide(x))))                      \
    UNARY(SQRT, narrow(csqrt(wide(x))))                     \
    UNARY(TAN, narrow(ctan(wide(x))))                       \
    UNARY(TANH, narrow(ctanh(wide(x))))                     \
    BINARY(ADD, ((struct c64){x.re + y.re, x.im + y.im}))   \
    BINARY(DIVIDE, narrow(divided(wide(x), wide(y))))       \
    BINARY(MULTIPLY, narrow(wide(x) * wide(y)))             \
    BINARY(POWER, narrow(power(wide(x), wide(y))))          \
    BINARY(SUBTRACT, ((struct c64){x.re - y.re, x.im - y.im}))

#define UNARY_FN(OP, expr)  CPU_UNARY(, OP##_c64, struct c64, struct c64, expr)
#define BINARY_FN(OP, expr) CPU_BINARY(, OP##_c64, struct c64, struct c64, expr)
#define ROW(OP, expr)       [AP_OP_##OP] = OP##_c64,

COMPLEX_OPS(UNARY_FN, BINARY_FN)
CPU_UNARY(, real_c64, struct c64, float, x.re)
CPU_UNARY(, imag_c64, struct c64, float, x.im)
CPU_UNARY(, abs_c64, struct c64, float, (float)cabs(wide(x)))
CPU_BINARY(, complex_c64, float, struct c64, ((struct c64){x, y}))
CPU_BINARY(, eq_c64, struct c64, uint8_t, x.re == y.re && x.im == y.im)
CPU_BINARY(, ne_c64, struct c64, uint8_t, x.re != y.re || x.im != y.im)

cpu_fn *cpu_complex_find(enum ap_op op, enum ap_direction direction)
{
    static cpu_fn *const table[AP_N_OPS] = {
        COMPLEX_OPS(ROW, ROW)[AP_OP_REAL] = real_c64, [AP_OP_IMAG] = imag_c64,
        [AP_OP_ABS] = abs_c64, [AP_OP_COMPLEX] = complex_c64};
    if (op == AP_OP_COMPARE)
        return direction == AP_EQ ? eq_c64 : direction == AP_NE ? ne_c64 : NULL;
    return table[op];
}
