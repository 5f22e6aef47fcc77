/*
 * Problem: tools write hundreds of thousands of seconds with up to 17 digits, and
 * printing and reading each of them back, up to three times, takes longer than finding
 * them. Idea: times a power of ten that has a whole number of 17 digits a double's error
 * in extended precision is below 0.006, as both factors are exact and the product is
 * rounded once. Where that cannot change which digits are nearest, and how far these are
 * from the next double, they are taken; whoever asks prints the few others as before.
 * Cost: one or two products and some divisions of integers.
 */
#include "base/shortest.h"

#include <float.h>
#include <math.h>

#define MOST_ERROR 0.01L /* more than a product's at 10^17 */

/* Exact with 64 bits: 5^27 < 2^63. */
static const long double tens[] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,
                                   1e7L,  1e8L,  1e9L,  1e10L, 1e11L, 1e12L, 1e13L,
                                   1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L,
                                   1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};

/* v = digits / 10^(n - 1 - exponent), of n digits. */
struct decimal {
    uint64_t digits;
    int n, exponent;
};

/*
 * The nearest of n digits to x, which has 17 before the point; 1: it is nearer to v than
 * half of what is between v and its neighbours; 0: it is not; -1: not sure.
 */
static int nearest(long double x, long double half, int n, struct decimal *out)
{
    static const uint64_t units[] = {1, 10, 100}; /* of the last digit */
    uint64_t unit = units[17 - n], whole = (uint64_t)x, rest = whole % unit;
    long double over = (long double)rest + (x - (long double)whole);
    long double under = (long double)unit - over;
    long double away = over < under ? over : under;

    if (fabsl(over - under) < 2 * MOST_ERROR || fabsl(away - half) < MOST_ERROR)
        return -1;
    out->digits = whole / unit + (over > under);
    out->n = n;
    return away < half;
}

/* Of a positive number in [1e-10, 1e14). */
static bool find_decimal(double v, struct decimal *out)
{
    int e, sure = 0;
    double m = frexp(v, &e);
    int exponent = (int)floor((e - 1) * 0.30102999566398120); /* or one more */
    long double x = (long double)v * tens[16 - exponent];

    if (m == 0.5)
        return false; /* the neighbour below is nearer */
    if (x >= tens[17])
        x = (long double)v * tens[16 - ++exponent];
    if (x < tens[16] + 200 || x > tens[17] - 200)
        return false; /* another number of digits may be meant */
    out->exponent = exponent;
    long double half = (long double)ldexp(1, e - 54) * tens[16 - exponent];
    for (int n = 15; n <= 17 && sure == 0; n++)
        sure = nearest(x, half, n, out);
    return sure == 1;
}

/* As "%g" does: without zeros behind the last digit. */
static void put_decimal(const struct decimal *d, char *at)
{
    char digit[24];
    uint64_t rest = d->digits;
    int n = d->n, before = d->exponent + 1; /* digits before the point */

    for (int i = n - 1; i >= 0; i--, rest /= 10)
        digit[i] = (char)('0' + rest % 10);
    while (n > 1 && digit[n - 1] == '0')
        n--;
    if (d->exponent < -4) {
        before = 1;
    } else if (before <= 0) {
        *at++ = '0';
        *at++ = '.';
        for (; before < 0; before++)
            *at++ = '0';
        before = n; /* and no other point */
    }
    for (int i = 0; i < n || i < before; i++) {
        if (i == before)
            *at++ = '.';
        *at++ = i < n ? digit[i] : '0';
    }
    if (d->exponent < -4) { /* of two digits */
        *at++ = 'e';
        *at++ = '-';
        *at++ = (char)('0' - d->exponent / 10);
        *at++ = (char)('0' - d->exponent % 10);
    }
    *at = '\0';
}

bool ap_shortest(double v, char text[AP_SHORTEST_TEXT])
{
    struct decimal d;

    if (LDBL_MANT_DIG < 64 || !(fabs(v) >= 1e-10 && fabs(v) < 1e14) ||
        !find_decimal(fabs(v), &d))
        return false;
    *text = '-';
    put_decimal(&d, text + (v < 0));
    return true;
}
