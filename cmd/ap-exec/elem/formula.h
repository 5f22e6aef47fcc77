/*
 * Elementwise functions (cpu_fn) from expressions. An element type's operators are a list
 * of (operator, expression); the list is expanded twice, to functions and to the rows of
 * a table by operator. The loops carry no dependences, so that the compiler vectorises
 * them.
 */
#ifndef EXEC_FORMULA_H
#define EXEC_FORMULA_H

#include "elem/elem.h"

/* Parts of a complex number of type c64. */
struct c64 {
    float re, im;
};

#define CPU_FN(name)                                                       \
    static void name(void *d, const void *a, const void *b, const void *c, \
                     const int *stride, int64_t n)
#define CPU_LOOP   _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)
#define CPU_UNUSED ((void)a, (void)b, (void)c, (void)stride)

/* R d[i] = expr of x = a[i], of type A; WIDE: CPU_WIDE or nothing. */
#define CPU_UNARY(WIDE, name, A, R, expr) \
    WIDE CPU_FN(name)                     \
    {                                     \
        CPU_UNUSED;                       \
        R *o = d;                         \
        const A *p = a;                   \
        CPU_LOOP                          \
        {                                 \
            const A x = p[i];             \
            o[i] = expr;                  \
        }                                 \
    }

/* R d[i] = expr of x = a[i] and y = b[i]; a or b may be uniform. */
#define CPU_BINARY(WIDE, name, A, R, expr)  \
    WIDE CPU_FN(name)                       \
    {                                       \
        CPU_UNUSED;                         \
        R *o = d;                           \
        const A *p = a, *q = b;             \
        if (!stride[0]) {                   \
            const A x = p[0];               \
            CPU_LOOP                        \
            {                               \
                const A y = q[i];           \
                o[i] = expr;                \
            }                               \
        } else if (!stride[1]) {            \
            const A y = q[0];               \
            CPU_LOOP                        \
            {                               \
                const A x = p[i];           \
                o[i] = expr;                \
            }                               \
        } else {                            \
            CPU_LOOP                        \
            {                               \
                const A x = p[i], y = q[i]; \
                o[i] = expr;                \
            }                               \
        }                                   \
    }

/* clamp(low, x, high): expr of lo, x and hi; the bounds are mostly uniform. */
#define CPU_CLAMP(WIDE, name, T, expr)                                \
    WIDE CPU_FN(name)                                                 \
    {                                                                 \
        T *o = d;                                                     \
        const T *l = a, *p = b, *h = c;                               \
        const int64_t sl = stride[0], sp = stride[1], sh = stride[2]; \
        for (int64_t i = 0; i < n; i++) {                             \
            const T lo = l[i * sl], hi = h[i * sh];                   \
            T x = p[i * sp];                                          \
            o[i] = expr;                                              \
        }                                                             \
    }

/* The six comparisons of x and y as OF(x), OF(y), and a table of them by direction. */
#define CPU_COMPARES(WIDE, S, A, OF)                     \
    CPU_BINARY(WIDE, eq_##S, A, uint8_t, OF(x) == OF(y)) \
    CPU_BINARY(WIDE, ne_##S, A, uint8_t, OF(x) != OF(y)) \
    CPU_BINARY(WIDE, ge_##S, A, uint8_t, OF(x) >= OF(y)) \
    CPU_BINARY(WIDE, gt_##S, A, uint8_t, OF(x) > OF(y))  \
    CPU_BINARY(WIDE, le_##S, A, uint8_t, OF(x) <= OF(y)) \
    CPU_BINARY(WIDE, lt_##S, A, uint8_t, OF(x) < OF(y))  \
    static cpu_fn *const compare_##S[] = {eq_##S, ne_##S, ge_##S, gt_##S, le_##S, lt_##S};
#define CPU_AS_IT_IS(x) (x)

#endif
