/* Elementwise operations on complex numbers of two f32 (formulas.h). */
#include "elem/formula.h"
#include "graph/formulas.h"

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

static struct c64 complex_of(float re, float im)
{
    return (struct c64){re, im};
}

static double complex complex_ratio(double complex x, double complex y)
{
    const double norm = creal(y) * creal(y) + cimag(y) * cimag(y);
    const double complex z = x * conj(y);
    return CMPLX(creal(z) / norm, cimag(z) / norm);
}

static double complex complex_sign(double complex x)
{
    const double r = cabs(x);
    return r > 0 ? CMPLX(creal(x) / r, cimag(x) / r) : x;
}

static double complex complex_power(double complex x, double complex y)
{
    return x == 0 && y == 0 ? 1 : cpow(x, y);
}

#define UNARY_FN(OP, S, T, expr)       CPU_UNARY(, OP##_c64, T, T, expr)
#define BINARY_FN(OP, S, T, expr)      CPU_BINARY(, OP##_c64, T, T, expr)
#define UNARY_PART(OP, S, A, R, expr)  CPU_UNARY(, OP##_c64, A, R, expr)
#define BINARY_PART(OP, S, A, R, expr) CPU_BINARY(, OP##_c64, A, R, expr)
#define ROW(OP, S, T, expr)            [AP_OP_##OP] = OP##_c64,
#define PART_ROW(OP, S, A, R, expr)    [AP_OP_##OP] = OP##_c64,

COMPLEX_FORMULAS(UNARY_FN, BINARY_FN)
COMPLEX_PARTS(UNARY_PART, BINARY_PART)
CPU_BINARY(, eq_c64, struct c64, uint8_t, x.re == y.re && x.im == y.im)
CPU_BINARY(, ne_c64, struct c64, uint8_t, x.re != y.re || x.im != y.im)

cpu_fn *cpu_complex_find(enum ap_op op, enum ap_direction direction)
{
    static cpu_fn *const table[AP_N_OPS] = {COMPLEX_FORMULAS(ROW, ROW)
                                                COMPLEX_PARTS(PART_ROW, PART_ROW)};
    if (op == AP_OP_COMPARE)
        return direction == AP_EQ ? eq_c64 : direction == AP_NE ? ne_c64 : NULL;
    return table[op];
}
