/*
 * Derivatives of elementwise operators: of the operand x, the result y and y's gradient.
 * At kinks and poles the conventions are JAX's.
 */
#include "grad/grad_impl.h"

#define UNARY(op, x)       ap_build_unary(b, AP_OP_##op, (x))
#define BINARY(op, x, y)   ap_build_binary(b, AP_OP_##op, (x), (y))
#define WITH(op, x, value) ap_build_with(b, AP_OP_##op, (x), (value))

/* The gradient of operand k of n from its result and that one's gradient. */
typedef int slope(struct ap_build *b, const struct ap_node *n, int out, int d, int k);

/* Adds it for each operand that wants one. */
static int each_operand(struct grad *g, int i, int d, slope *of)
{
    struct ap_node n = grad_node(g, i);
    for (int k = 0; k < n.n_in; k++)
        if (grad_wants(g, i, k))
            grad_add(g, n.in[k], of(g->b, &n, i, d, k));
    return 0;
}

/* ---- expressions of ops.def ---- */

#define ADD(x, y)       BINARY(ADD, x, y)
#define SUB(x, y)       BINARY(SUBTRACT, x, y)
#define MUL(x, y)       BINARY(MULTIPLY, x, y)
#define DIV(x, y)       BINARY(DIVIDE, x, y)
#define NEG(x)          UNARY(NEGATE, x)
#define OF(op, x)       UNARY(op, x)
#define PLUS(x, value)  WITH(ADD, x, value)
#define TIMES(x, value) WITH(MULTIPLY, x, value)

#define GRAD_UNARY(dx)      return dx;
#define GRAD_BINARY(dx, dy) return k ? (dy) : (dx);
#define GRAD_RULE(rule)     return -1;
#define GRAD_FLAT           return -1;
#define GRAD_NONE           return -1;

/* What the operator's row states, -1 where a rule does it. */
static int expression(struct ap_build *b, const struct ap_node *n, int out, int d, int k)
{
    const int x = n->in[0], y = n->n_in > 1 ? n->in[1] : -1;

    switch ((int)n->op) {
#define AP_OP(id, name, arity, class, flops, types, precision, gradient, jax) \
    case AP_OP_##id:                                                          \
        GRAD_##gradient
#include "graph/ops.def"
#undef AP_OP
    }
    return -1;
}

int grad_expression(struct grad *g, int i, int dy)
{
    return each_operand(g, i, dy, expression);
}

int grad_flat(struct grad *g, int i, int dy)
{
    (void)g, (void)i, (void)dy;
    return 0;
}

/* ---- rules ---- */

/* The gradient passes unchanged, rounded where the operator rounds. */
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

/* atan2(x, y): y / (x^2 + y^2) and -x / (x^2 + y^2) */
static int atan2_slope(struct ap_build *b, const struct ap_node *n, int out, int dy,
                       int k)
{
    const int x = n->in[0], y = n->in[1];
    int norm = BINARY(ADD, BINARY(MULTIPLY, x, x), BINARY(MULTIPLY, y, y));
    int d = BINARY(MULTIPLY, dy, BINARY(DIVIDE, k ? x : y, norm));

    (void)out;
    return k ? UNARY(NEGATE, d) : d;
}

int grad_atan2(struct grad *g, int i, int dy)
{
    return each_operand(g, i, dy, atan2_slope);
}

/* x^y: with respect to x zero where y is, with respect to y zero where x is. */
static int power_slope(struct ap_build *b, const struct ap_node *n, int out, int dy,
                       int k)
{
    const int x = n->in[0], y = n->in[1];
    struct ap_shape s = *ap_build_shape_of(b, x);
    int one = ap_build_full(b, &s, 1), zero = ap_build_full(b, &s, 0);
    int none = ap_build_compare(b, AP_EQ, k ? x : y, zero);

    if (k == 1) {
        int safe = ap_build_select(b, none, one, x);
        return BINARY(MULTIPLY, dy, BINARY(MULTIPLY, UNARY(LOG, safe), out));
    }
    int less = ap_build_select(b, none, one, BINARY(SUBTRACT, y, one));
    int rise = BINARY(MULTIPLY, y, BINARY(POWER, x, less));
    return BINARY(MULTIPLY, dy, ap_build_select(b, none, zero, rise));
}

int grad_power(struct grad *g, int i, int dy)
{
    return each_operand(g, i, dy, power_slope);
}

/* x - y trunc(x / y) */
static int remainder_slope(struct ap_build *b, const struct ap_node *n, int out, int dy,
                           int k)
{
    (void)out;
    if (k == 0)
        return dy;
    int ratio = BINARY(DIVIDE, n->in[0], n->in[1]);
    int whole = BINARY(MULTIPLY, UNARY(SIGN, ratio), UNARY(FLOOR, UNARY(ABS, ratio)));
    return UNARY(NEGATE, BINARY(MULTIPLY, dy, whole));
}

int grad_remainder(struct grad *g, int i, int dy)
{
    return each_operand(g, i, dy, remainder_slope);
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
