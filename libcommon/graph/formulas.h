/*
 * The elementwise operators of every element type as expressions of x and y: lists that
 * ap-exec's CPU backend expands to loops (elem/ops*.c), its CUDA backend to the text
 * of device functions (cuda/text.c), and element.c to values of constants, so that an
 * operator is written once. The expressions are C and CUDA C++. An item is (operator,
 * type's name S, register type T, expression).
 */
#ifndef AP_GRAPH_FORMULAS_H
#define AP_GRAPH_FORMULAS_H

/* f: the suffix of libm's functions. */
#define FLOAT_FORMULAS(UNARY, BINARY, T, S, f)       \
    UNARY(ABS, S, T, fabs##f(x))                     \
    UNARY(ASINH, S, T, asinh##f(x))                  \
    UNARY(CBRT, S, T, cbrt##f(x))                    \
    UNARY(CEIL, S, T, ceil##f(x))                    \
    UNARY(COSH, S, T, cosh##f(x))                    \
    UNARY(COSINE, S, T, cos##f(x))                   \
    UNARY(ERF, S, T, erf##f(x))                      \
    UNARY(EXPONENTIAL, S, T, OWN_EXP_##S(x))         \
    UNARY(EXPONENTIAL_MINUS_ONE, S, T, expm1##f(x))  \
    UNARY(FLOOR, S, T, floor##f(x))                  \
    UNARY(LOG, S, T, log##f(x))                      \
    UNARY(LOG_PLUS_ONE, S, T, log1p##f(x))           \
    UNARY(LOGISTIC, S, T, 1 / (1 + OWN_EXP_##S(-x))) \
    UNARY(NEGATE, S, T, -x)                          \
    UNARY(ROUND_AFZ, S, T, round##f(x))              \
    UNARY(ROUND_EVEN, S, T, rint##f(x))              \
    UNARY(RSQRT, S, T, 1 / sqrt##f(x))               \
    UNARY(SIGN, S, T, x > 0 ? 1 : x < 0 ? -1 : x)    \
    UNARY(SINE, S, T, sin##f(x))                     \
    UNARY(SINH, S, T, sinh##f(x))                    \
    UNARY(SQRT, S, T, sqrt##f(x))                    \
    UNARY(TAN, S, T, tan##f(x))                      \
    UNARY(TANH, S, T, OWN_TANH_##S(x))               \
    BINARY(ADD, S, T, (x + y))                       \
    BINARY(ATAN2, S, T, atan2##f(x, y))              \
    BINARY(DIVIDE, S, T, (x / y))                    \
    BINARY(MAXIMUM, S, T, x > y || x != x ? x : y)   \
    BINARY(MINIMUM, S, T, x < y || x != x ? x : y)   \
    BINARY(MULTIPLY, S, T, (x * y))                  \
    BINARY(POWER, S, T, pow##f(x, y))                \
    BINARY(REMAINDER, S, T, fmod##f(x, y))           \
    BINARY(SUBTRACT, S, T, (x - y))

/* Those of other forms: (S, T, expression), of x, or of lo, x and hi. */
#define FLOAT_FINITE(UNARY, S, T, f) UNARY(S, T, fabs##f(x) < (T)INFINITY)
#define FLOAT_CLAMP(CLAMP, S, T) \
    CLAMP(S, T, ((x = lo > x || lo != lo ? lo : x), hi < x || hi != hi ? hi : x))
#define INT_CLAMP(CLAMP, S, T) CLAMP(S, T, ((x = x > lo ? x : lo), x < hi ? x : hi))

/* ---- complex numbers of two f32, struct c64 ---- */

/*
 * Products, quotients and functions are computed in double precision and rounded once, so
 * that no component is lost to cancellation or early overflow. wide(x) is C's double
 * complex on the CPU and a struct with C's operators in CUDA C++; narrow(z) rounds it.
 */
#define COMPLEX_FORMULAS(UNARY, BINARY)                                            \
    UNARY(COSINE, c64, struct c64, narrow(ccos(wide(x))))                          \
    UNARY(EXPONENTIAL, c64, struct c64, narrow(cexp(wide(x))))                     \
    UNARY(EXPONENTIAL_MINUS_ONE, c64, struct c64, narrow(cexp(wide(x)) - 1))       \
    UNARY(LOG, c64, struct c64, narrow(clog(wide(x))))                             \
    UNARY(LOG_PLUS_ONE, c64, struct c64, narrow(clog(wide(x) + 1)))                \
    UNARY(LOGISTIC, c64, struct c64, narrow(complex_ratio(1, 1 + cexp(-wide(x))))) \
    UNARY(NEGATE, c64, struct c64, complex_of(-x.re, -x.im))                       \
    UNARY(RSQRT, c64, struct c64, narrow(complex_ratio(1, csqrt(wide(x)))))        \
    UNARY(SIGN, c64, struct c64, narrow(complex_sign(wide(x))))                    \
    UNARY(SINE, c64, struct c64, narrow(csin(wide(x))))                            \
    UNARY(SQRT, c64, struct c64, narrow(csqrt(wide(x))))                           \
    UNARY(TAN, c64, struct c64, narrow(ctan(wide(x))))                             \
    UNARY(TANH, c64, struct c64, narrow(ctanh(wide(x))))                           \
    BINARY(ADD, c64, struct c64, complex_of(x.re + y.re, x.im + y.im))             \
    BINARY(DIVIDE, c64, struct c64, narrow(complex_ratio(wide(x), wide(y))))       \
    BINARY(MULTIPLY, c64, struct c64, narrow(wide(x) * wide(y)))                   \
    BINARY(POWER, c64, struct c64, narrow(complex_power(wide(x), wide(y))))        \
    BINARY(SUBTRACT, c64, struct c64, complex_of(x.re - y.re, x.im - y.im))

/* From and to real numbers: (operator, S, operands' type, result's type, expression). */
#define COMPLEX_PARTS(UNARY, BINARY)                         \
    UNARY(ABS, c64, struct c64, float, (float)cabs(wide(x))) \
    UNARY(IMAG, c64, struct c64, float, x.im)                \
    UNARY(REAL, c64, struct c64, float, x.re)                \
    BINARY(COMPLEX, f32, float, struct c64, complex_of(x, y))

/* ---- integers: XLA's answers where C has none ---- */

/* T: the type; U: an unsigned one at least as wide as int, in which T's arithmetic wraps;
 * W: T's unsigned type. */
#define INT_FORMULAS(UNARY, BINARY, S, T, U, W)                                   \
    UNARY(COUNT_LEADING_ZEROS, S, T, 8 * sizeof(T) - (size_t)bit_length((W)x))    \
    UNARY(NEGATE, S, T, -(U)x)                                                    \
    UNARY(NOT, S, T, ~(U)x)                                                       \
    UNARY(POPCNT, S, T, __builtin_popcountll((W)x))                               \
    BINARY(ADD, S, T, (U)x + (U)y)                                                \
    BINARY(AND, S, T, (x & y))                                                    \
    BINARY(MAXIMUM, S, T, x > y ? x : y)                                          \
    BINARY(MINIMUM, S, T, x < y ? x : y)                                          \
    BINARY(MULTIPLY, S, T, ((U)x * (U)y))                                         \
    BINARY(OR, S, T, (x | y))                                                     \
    BINARY(SHIFT_LEFT, S, T, (W)y < 8 * sizeof(T) ? (U)(W)x << (W)y : 0)          \
    BINARY(SHIFT_RIGHT_LOGICAL, S, T, (W)y < 8 * sizeof(T) ? (U)(W)x >> (W)y : 0) \
    BINARY(SUBTRACT, S, T, (U)x - (U)y)                                           \
    BINARY(XOR, S, T, (x ^ y))

#define SIGNED_FORMULAS(UNARY, BINARY, S, T, U, W)                           \
    INT_FORMULAS(UNARY, BINARY, S, T, U, W)                                  \
    UNARY(ABS, S, T, x < 0 ? -(U)x : (U)x)                                   \
    UNARY(SIGN, S, T, (x > 0) - (x < 0))                                     \
    BINARY(DIVIDE, S, T, y == 0 ? (T)-1 : y == -1 ? (T) - (U)x : (T)(x / y)) \
    BINARY(POWER, S, T,                                                      \
           y >= 0    ? power_##S(x, y)                                       \
           : x == 1  ? 1                                                     \
           : x == -1 ? (y & 1 ? -1 : 1)                                      \
                     : 0)                                                    \
    BINARY(REMAINDER, S, T, y == 0 ? x : y == -1 ? 0 : x % y)                \
    BINARY(SHIFT_RIGHT_ARITHMETIC, S, T,                                     \
           (W)y < 8 * sizeof(T) ? x >> (W)y                                  \
           : x < 0              ? -1                                         \
                                : 0)

#define UNSIGNED_FORMULAS(UNARY, BINARY, S, T, U, V)  \
    INT_FORMULAS(UNARY, BINARY, S, T, U, T)           \
    UNARY(ABS, S, T, x)                               \
    UNARY(SIGN, S, T, x > 0)                          \
    BINARY(DIVIDE, S, T, y == 0 ? (T)-1 : (T)(x / y)) \
    BINARY(POWER, S, T, power_##S(x, y))              \
    BINARY(REMAINDER, S, T, y == 0 ? x : (T)(x % y))  \
    BINARY(SHIFT_RIGHT_ARITHMETIC, S, T,              \
           (V)x >> (y < 8 * sizeof(T) ? y : 8 * sizeof(T) - 1))

/* Every integer type: (name, T, U, W, V), V: T's other signedness. */
#define SIGNED_TYPES(TYPE)                           \
    TYPE(s8, int8_t, uint32_t, uint8_t, uint8_t)     \
    TYPE(s16, int16_t, uint32_t, uint16_t, uint16_t) \
    TYPE(s32, int32_t, uint32_t, uint32_t, uint32_t) \
    TYPE(s64, int64_t, uint64_t, uint64_t, uint64_t)
#define UNSIGNED_TYPES(TYPE)                         \
    TYPE(u8, uint8_t, uint32_t, uint8_t, int8_t)     \
    TYPE(u16, uint16_t, uint32_t, uint16_t, int16_t) \
    TYPE(u32, uint32_t, uint32_t, uint32_t, int32_t) \
    TYPE(u64, uint64_t, uint64_t, uint64_t, int64_t)

#endif
