/* Values of elementwise operators: integers as their types have them, floats by formula.
 */
#include "graph/element.h"

#include <math.h>

#include "tap.h"

/* The operator's value, `none` where it has none. */
static int64_t of_ints(enum ap_op op, enum ap_dtype dtype, int64_t x, int64_t y)
{
    const struct ap_node node = {
        .op = op, .n_in = ap_ops[op].arity, .shape.dtype = dtype};
    const int64_t v[3] = {x, y}, none = 12345;
    int64_t out;
    return ap_eval_int(&node, dtype, v, &out) ? out : none;
}

static double of_floats(enum ap_op op, double x, double y)
{
    const struct ap_node node = {
        .op = op, .n_in = ap_ops[op].arity, .shape.dtype = AP_F64};
    const double v[3] = {x, y}, none = 12345;
    double out;
    return ap_eval_float(&node, v, &out) ? out : none;
}

static int64_t ordered(enum ap_direction direction, enum ap_dtype dtype, int64_t x,
                       int64_t y)
{
    const struct ap_attrs attrs = {.direction = direction};
    const struct ap_node node = {
        .op = AP_OP_COMPARE, .n_in = 2, .shape.dtype = AP_PRED, .attrs = &attrs};
    const int64_t v[3] = {x, y};
    int64_t out = -1;
    ap_eval_int(&node, dtype, v, &out);
    return out;
}

int main(void)
{
    CHECK(of_ints(AP_OP_ADD, AP_U8, 255, 1) == 0, "u8 wraps");
    CHECK(of_ints(AP_OP_ADD, AP_S8, 127, 1) == -128, "s8 wraps");
    CHECK(of_ints(AP_OP_ADD, AP_PRED, 1, 1) == 1, "pred: add is or");
    CHECK(of_ints(AP_OP_DIVIDE, AP_S8, -128, -1) == -128, "the least number by -1");
    CHECK(of_ints(AP_OP_REMAINDER, AP_S32, -7, 3) == -1, "remainder has x's sign");
    CHECK(of_ints(AP_OP_DIVIDE, AP_S32, 7, 0) == 12345, "division by 0 has no value");
    CHECK(of_ints(AP_OP_MAXIMUM, AP_U64, -1, 1) == -1, "u64 is unsigned");
    CHECK(of_ints(AP_OP_MAXIMUM, AP_S64, -1, 1) == 1, "s64 is signed");
    CHECK(of_ints(AP_OP_NOT, AP_U16, 1, 0) == 65534, "u16: not");
    CHECK(of_ints(AP_OP_SHIFT_LEFT, AP_S32, 1, 1) == 12345, "shifts have no value here");
    CHECK(ordered(AP_LT, AP_S32, -1, 1) == 1 && ordered(AP_LT, AP_U64, -1, 1) == 0 &&
              ordered(AP_GE, AP_S32, 2, 2) == 1 && ordered(AP_NE, AP_S32, 2, 2) == 0,
          "comparisons");
    CHECK(of_floats(AP_OP_ASINH, 1, 0) == asinh(1), "asinh");
    CHECK(of_floats(AP_OP_SUBTRACT, 3, 1) == 2, "subtract");
    CHECK(of_floats(AP_OP_ROUND_EVEN, 2.5, 0) == 2, "round to even");
    CHECK(isnan(of_floats(AP_OP_MAXIMUM, NAN, 1)), "maximum of NaN");
    CHECK(of_floats(AP_OP_IS_FINITE, INFINITY, 0) == 0, "is-finite");
    CHECK(of_floats(AP_OP_DOT, 1, 2) == 12345, "a dot has no value here");
    return tap_done();
}
