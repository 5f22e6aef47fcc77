/*
 * Derivatives of elementwise operators: of the operand x, the result y and y's gradient.
 * At kinks and poles the conventions are JAX's.
 */
#include "grad/grad_impl.h"

static const double two_over_sqrt_pi = 1.1283791670955126;

#define UNARY(op, x)       ap_build_unary(b, AP_OP_##op, (x))
#define BINARY(op, x, y)   ap_build_binary(b, AP_OP_##op, (x), (y))
#define WITH(op, x, value) ap_build_with(b, AP_OP_##op, (x), (value))

/* dy times the derivative, -1 for an operator without one. */
static int unary(struct ap_build *b, enum ap_op op, int x, int y, int dy)
{
    switch ((int)op) {
    case AP_OP_ABS:
        return BINARY(MULTIPLY, dy, UNARY(SIGN, x));
    case AP_OP_CBRT:
        return BINARY(DIVIDE, dy, WITH(MULTIPLY, BINARY(MULTIPLY, y, y), 3));
    case AP_OP_COSINE:
        return UNARY(NEGATE, BINARY(MULTIPLY, dy, UNARY(SINE, x)));
    case AP_OP_ERF: {
        int bell = UNARY(EXPONENTIAL, UNARY(NEGATE, BINARY(MULTIPLY, x, x)));
        return BINARY(MULTIPLY, dy, WITH(MULTIPLY, bell, two_over_sqrt_pi));
    }
    case AP_OP_EXPONENTIAL:
        return BINARY(MULTIPLY, dy, y);
    case AP_OP_EXPONENTIAL_MINUS_ONE:
        return BINARY(MULTIPLY, dy, WITH(ADD, y, 1));
    case AP_OP_LOG:
        return BINARY(DIVIDE, dy, x);
    case AP_OP_LOG_PLUS_ONE:
        return BINARY(DIVIDE, dy, WITH(ADD, x, 1));
    case AP_OP_LOGISTIC:
        return BINARY(MULTIPLY, dy, BINARY(SUBTRACT, y, BINARY(MULTIPLY, y, y)));
    case AP_OP_NEGATE:
        return UNARY(NEGATE, dy);
    case AP_OP_RSQRT:
        return BINARY(MULTIPLY, dy, WITH(MULTIPLY, BINARY(DIVIDE, y, x), -0.5));
    case AP_OP_SINE:
        return BINARY(MULTIPLY, dy, UNARY(COSINE, x));
    case AP_OP_SQRT:
        return BINARY(DIVIDE, WITH(MULTIPLY, dy, 0.5), y);
    case AP_OP_TAN:
        return BINARY(MULTIPLY, dy, WITH(ADD, BINARY(MULTIPLY, y, y), 1));
    case AP_OP_TANH: {
        int left = BINARY(MULTIPLY, dy, BINARY(MULTIPLY, y, y));
        return BINARY(SUBTRACT, dy, left);
    }
    default:
        return -1;
    }
}

int grad_unary(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    grad_add(g, n.in[0], unary(g->b, n.op, n.in[0], i, dy));
    return 0;
}

/* The gradient passes as it is, rounded where the operator rounds. */
int grad_same(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    if (n.op == AP_OP_REDUCE_PRECISION)
        dy = ap_build_node(g->b, n.op, NULL, n.shape, n.attrs, 1, &dy);
    grad_add(g, n.in[0], dy);
    return 0;
}

int grad_convert(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    grad_add(g, n.in[0],
             ap_build_convert(g->b, dy, ap_build_shape_of(g->b, n.in[0])->dtype));
    return 0;
}

/* x^y: with respect to x zero where y is, with respect to y zero where x is. */
static int power(struct ap_build *b, int x, int y, int out, int dy, int k)
{
    struct ap_shape s = *ap_build_shape_of(b, x);
    int one = ap_build_full(b, &s, 1), zero = ap_build_full(b, &s, 0);
    int none = ap_build_compare(b, AP_EQ, k ? x : y, zero);

    if (k == 1) {
        int safe = ap_build_select(b, none, one, x);
        return BINARY(MULTIPLY, dy, BINARY(MULTIPLY, UNARY(LOG, safe), out));
    }
    int less = ap_build_select(b, none, one, BINARY(SUBTRACT, y, one));
    int slope = BINARY(MULTIPLY, y, BINARY(POWER, x, less));
    return BINARY(MULTIPLY, dy, ap_build_select(b, none, zero, slope));
}

/* x - y trunc(x / y) */
static int remainder_of(struct ap_build *b, int x, int y, int dy, int k)
{
    if (k == 0)
        return dy;
    int ratio = BINARY(DIVIDE, x, y);
    int whole = BINARY(MULTIPLY, UNARY(SIGN, ratio), UNARY(FLOOR, UNARY(ABS, ratio)));
    return UNARY(NEGATE, BINARY(MULTIPLY, dy, whole));
}

static int binary(struct ap_build *b, enum ap_op op, int x, int y, int out, int dy, int k)
{
    switch ((int)op) {
    case AP_OP_ADD:
        return dy;
    case AP_OP_SUBTRACT:
        return k ? UNARY(NEGATE, dy) : dy;
    case AP_OP_MULTIPLY:
        return BINARY(MULTIPLY, dy, k ? x : y);
    case AP_OP_DIVIDE: {
        int d = BINARY(DIVIDE, dy, y);
        return k ? UNARY(NEGATE, BINARY(MULTIPLY, d, out)) : d;
    }
    case AP_OP_ATAN2: {
        int norm = BINARY(ADD, BINARY(MULTIPLY, x, x), BINARY(MULTIPLY, y, y));
        int d = BINARY(MULTIPLY, dy, BINARY(DIVIDE, k ? x : y, norm));
        return k ? UNARY(NEGATE, d) : d;
    }
    case AP_OP_POWER:
        return power(b, x, y, out, dy, k);
    case AP_OP_REMAINDER:
        return remainder_of(b, x, y, dy, k);
    default:
        return -1;
    }
}

int grad_binary(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    for (int k = 0; k < 2; k++)
        if (grad_wants(g, i, k))
            grad_add(g, n.in[k], binary(g->b, n.op, n.in[0], n.in[1], i, dy, k));
    return 0;
}

/* All to the operand that is chosen, half to each if they are equal. */
int grad_minmax(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    struct ap_build *b = g->b;
    enum ap_direction wins = n.op == AP_OP_MAXIMUM ? AP_GT : AP_LT;

    int half = WITH(MULTIPLY, dy, 0.5), zero = grad_zeros(g, &n.shape);
    int tie = ap_build_compare(b, AP_EQ, n.in[0], n.in[1]);
    for (int k = 0; k < 2; k++) {
        if (!grad_wants(g, i, k))
            continue;
        int mine = ap_build_compare(b, wins, n.in[k], n.in[1 - k]);
        int all = ap_build_select(b, mine, dy, zero);
        grad_add(g, n.in[k], ap_build_select(b, tie, half, all));
    }
    return 0;
}

/* clamp(lo, x, hi) */
int grad_clamp(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    struct ap_build *b = g->b;
    int bound[3];

    for (int k = 0; k < 3; k++) {
        bound[k] = n.in[k];
        if (ap_build_shape_of(b, n.in[k])->rank < n.shape.rank)
            bound[k] = ap_build_broadcast(b, n.in[k], n.shape.rank, n.shape.dims, NULL);
    }
    int lo = bound[0], x = bound[1], hi = bound[2];
    for (int k = 0; k < 3; k++) {
        if (!grad_wants(g, i, k))
            continue;
        int pick = k == 2 ? ap_build_compare(b, AP_LT, hi, x)
                          : ap_build_compare(b, AP_GT, k ? x : lo, k ? lo : x);
        if (k < 2)
            pick = BINARY(AND, pick, ap_build_compare(b, AP_LT, k ? x : lo, hi));
        int d = grad_where(g, pick, dy);
        bool scalar = ap_build_shape_of(b, n.in[k])->rank < n.shape.rank;
        grad_add(g, n.in[k], scalar ? grad_sum_all(g, d) : d);
    }
    return 0;
}

int grad_select(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    int zero = grad_zeros(g, &n.shape);

    if (grad_wants(g, i, 1))
        grad_add(g, n.in[1], ap_build_select(g->b, n.in[0], dy, zero));
    if (grad_wants(g, i, 2))
        grad_add(g, n.in[2], ap_build_select(g->b, n.in[0], zero, dy));
    return 0;
}
