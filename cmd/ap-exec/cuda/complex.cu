/*
 * Complex numbers, behind the prelude of kernels that have some: what the expressions of
 * COMPLEX_FORMULAS (formulas.h) call. c64 is two f32 in memory and in registers. c128 has
 * C's operators and functions of double complex; its operands come from c64, so that sums
 * of squares neither overflow nor vanish.
 */

struct alignas(8) c64 {
    float re, im;
};

struct c128 {
    double re, im;
    inline c128(double r, double i = 0) : re(r), im(i)
    {
    }
};

static inline c64 complex_of(float re, float im)
{
    return {re, im};
}
static inline c128 wide(c64 x)
{
    return {(double)x.re, (double)x.im};
}
static inline c64 narrow(c128 x)
{
    return {(float)x.re, (float)x.im};
}

static inline bool operator==(c64 x, c64 y)
{
    return x.re == y.re && x.im == y.im;
}
static inline bool operator!=(c64 x, c64 y)
{
    return !(x == y);
}
static inline c128 operator-(c128 x)
{
    return {-x.re, -x.im};
}
static inline c128 operator+(c128 x, c128 y)
{
    return {x.re + y.re, x.im + y.im};
}
static inline c128 operator-(c128 x, c128 y)
{
    return {x.re - y.re, x.im - y.im};
}
static inline c128 operator*(c128 x, c128 y)
{
    return {x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}

template <class T> static inline c64 to_c64(T x)
{
    return {(float)x, 0};
}
static inline c64 to_c64(c64 x)
{
    return x;
}

static inline double cabs(c128 x)
{
    return hypot(x.re, x.im);
}
static inline c128 cexp(c128 x)
{
    const double e = exp(x.re);
    return x.im == 0 ? c128(e, x.im) : c128(e * cos(x.im), e * sin(x.im));
}
/* Near |x| = 1 by |x|^2 - 1, whose terms are exact here. */
static inline c128 clog(c128 x)
{
    const double r = cabs(x), a = fabs(x.re), b = fabs(x.im), h = a > b ? a : b,
                 l = a > b ? b : a;
    const double re = r > 0.5 && r < 2 ? log1p((h - 1) * (h + 1) + l * l) / 2 : log(r);
    return {re, atan2(x.im, x.re)};
}
static inline c128 csqrt(c128 x)
{
    if (x.re == 0 && x.im == 0)
        return {0, x.im};
    const double t = sqrt((fabs(x.re) + cabs(x)) / 2);
    return x.re >= 0 ? c128(t, x.im / (2 * t))
                     : c128(fabs(x.im) / (2 * t), copysign(t, x.im));
}
static inline c128 ccos(c128 x)
{
    return {cos(x.re) * cosh(x.im), -sin(x.re) * sinh(x.im)};
}
static inline c128 csin(c128 x)
{
    return {sin(x.re) * cosh(x.im), cos(x.re) * sinh(x.im)};
}
/* Kahan, "Branch cuts for complex elementary functions", 1987; from 22 on |tanh| is 1. */
static inline c128 ctanh(c128 x)
{
    if (fabs(x.re) > 22)
        return {copysign(1.0, x.re),
                4 * sin(x.im) * cos(x.im) * exp(-2 * fabs(x.re))};
    const double t = tan(x.im), s = sinh(x.re), b = 1 + t * t, d = 1 + b * s * s;
    return {b * sqrt(1 + s * s) * s / d, t / d};
}
static inline c128 ctan(c128 x)
{
    const c128 t = ctanh({-x.im, x.re});
    return {t.im, -t.re};
}

static inline c128 complex_ratio(c128 x, c128 y)
{
    const double norm = y.re * y.re + y.im * y.im;
    const c128 z = x * c128(y.re, -y.im);
    return {z.re / norm, z.im / norm};
}
static inline c128 complex_sign(c128 x)
{
    const double r = cabs(x);
    return r > 0 ? c128(x.re / r, x.im / r) : x;
}
static inline c128 complex_power(c128 x, c128 y)
{
    if (x.re == 0 && x.im == 0 && y.re >= 0)
        return y.re == 0 && y.im == 0 ? 1 : 0;
    return cexp(y * clog(x));
}
