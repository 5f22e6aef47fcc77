/* Shape checks of operators that occur in programs only, see shape_check.c. */
#include "graph/shape_check.h"

#include <inttypes.h>

static int check_axes(const struct check *c)
{
    unsigned axes = c->node->attrs->coll.axes;

    if (!axes || axes >> AP_MAX_AXES)
        return ap_err_set(c->err, "%s needs one or more mesh axes below %d",
                          ap_ops[c->node->op].name, AP_MAX_AXES);
    return 0;
}

static int check_red(const struct check *c)
{
    enum ap_red red = c->node->attrs->coll.red;

    if (red <= AP_RED_NONE || red >= AP_RED_ASSIGN)
        return ap_err_set(c->err, "%s needs a reduction (red)", ap_ops[c->node->op].name);
    return 0;
}

/*
 * A split (or, reading backwards, join) of a dimension: whole has outer * full * inner
 * elements, cut has outer * part * inner.
 */
static int check_split(const struct check *c, const char *name, const struct ap_split *s,
                       int64_t whole, int64_t cut)
{
    if (s->outer < 1 || s->part < 1 || s->full < s->part ||
        ap_ceil_div(s->full, ap_ceil_div(s->full, s->part)) != s->part)
        return ap_err_set(
            c->err, "%s: blocks of %" PRId64 " of %" PRId64 " elements, outer %" PRId64,
            name, s->part, s->full, s->outer);
    int64_t step = ap_mul64(s->outer, s->full);
    if (whole % step || whole / step * s->outer * s->part != cut)
        return ap_err_set(c->err,
                          "%s: dimension %d has %" PRId64 " elements whole and %" PRId64
                          " cut, with blocks of %" PRId64 " of %" PRId64,
                          name, s->dim, whole, cut, s->part, s->full);
    return 0;
}

/* Every dimension but the named ones keeps its size; the dtype stays. */
static int check_others(const struct check *c, int a, int b)
{
    const struct ap_shape *in = check_in(c, 0), *out = &c->node->shape;
    bool same = in->rank == out->rank && in->dtype == out->dtype;

    for (int d = 0; same && d < in->rank; d++)
        same = d == a || d == b || in->dims[d] == out->dims[d];
    if (!same || a < 0 || a >= in->rank || b < 0 || b >= in->rank)
        return ap_err_set(c->err, "%s changes more than the dimension that it splits",
                          ap_ops[c->node->op].name);
    return 0;
}

static int check_all_to_all(const struct check *c)
{
    const struct ap_coll *coll = &c->node->attrs->coll;
    const struct ap_shape *in = check_in(c, 0), *out = &c->node->shape;
    int s = coll->split.dim, j = coll->join.dim;

    if (check_axes(c) || check_others(c, s, j))
        return -1;
    if (s != j)
        return check_split(c, "split", &coll->split, in->dims[s], out->dims[s]) ||
                       check_split(c, "join", &coll->join, out->dims[j], in->dims[j])
                   ? -1
                   : 0;
    /* both within one dimension: the size between the two follows from either */
    int64_t between = coll->split.full > 0
                          ? ap_mul64(in->dims[s] / coll->split.full, coll->split.part)
                          : 0;
    return check_split(c, "split", &coll->split, in->dims[s], between) ||
                   check_split(c, "join", &coll->join, out->dims[s], between)
               ? -1
               : 0;
}

/* One dimension changes from full to part (cuts) or back. */
static int check_resize(const struct check *c, bool cuts)
{
    const struct ap_coll *coll = &c->node->attrs->coll;
    int d = coll->split.dim;

    if (check_axes(c) || check_others(c, d, d))
        return -1;
    int64_t in = check_in(c, 0)->dims[d], out = c->node->shape.dims[d];
    return check_split(c, "split", &coll->split, cuts ? in : out, cuts ? out : in);
}

static int check_mask(const struct check *c)
{
    const struct ap_attrs *a = c->node->attrs;

    if (!a->literal.data || !a->literal.splat)
        return ap_err_set(c->err, "ap-mask needs one fill value");
    if (!a->global)
        return ap_err_set(c->err, "ap-mask needs the whole tensor's shape (global)");
    return check_result_like(c, check_in(c, 0));
}

/* Sums over microbatches may have a wider type than what is added
 * (program/program_check.c knows the axes). */
static int check_all_reduce(const struct check *c)
{
    struct ap_shape sum = *check_in(c, 0);

    if (check_axes(c) || check_red(c))
        return -1;
    if (c->node->attrs->coll.red == AP_RED_SUM &&
        c->node->shape.dtype == ap_dtype_of_sums(sum.dtype))
        sum.dtype = c->node->shape.dtype;
    return check_result_like(c, &sum);
}

int check_program_op(const struct check *c)
{
    if (c->node->op == AP_OP_ALL_REDUCE)
        return check_all_reduce(c);
    if (c->node->op == AP_OP_ALL_GATHER)
        return check_resize(c, false);
    if (c->node->op == AP_OP_REDUCE_SCATTER)
        return check_red(c) ? -1 : check_resize(c, true);
    if (c->node->op == AP_OP_AP_SLICE)
        return check_resize(c, true);
    if (c->node->op == AP_OP_ALL_TO_ALL)
        return check_all_to_all(c);
    if (c->node->op == AP_OP_AP_MASK)
        return check_mask(c);
    if (c->node->op == AP_OP_COLLECTIVE_PERMUTE)
        return check_axes(c) ? -1 : check_result_like(c, check_in(c, 0));
    if (check_axes(c) || check_red(c))
        return -1;
    return check_result_like(c, check_in(c, 0));
}

int check_global(const struct check *c)
{
    const struct ap_shape *global = c->node->attrs->global;
    enum ap_op op = c->node->op;
    bool of_operand = op == AP_OP_GATHER || op == AP_OP_SCATTER;

    if (!of_operand && op != AP_OP_PARAMETER && op != AP_OP_CONSTANT &&
        op != AP_OP_IOTA && op != AP_OP_AP_MASK)
        return ap_err_set(c->err, "%s has no global shape", ap_ops[op].name);
    const struct ap_shape *local = of_operand ? check_in(c, 0) : &c->node->shape;
    if (local->rank != global->rank || local->dtype != global->dtype)
        return ap_err_set(c->err,
                          "the global shape's type or rank is not the local one's");
    for (int a = 0; a < AP_MAX_AXES; a++) {
        const struct ap_placement *p = &c->node->attrs->layout.axis[a];
        if (p->kind == 1 && p->dim >= global->rank) /* AP_SPLIT */
            return ap_err_set(c->err, "layout: dimension %d of a tensor of rank %d",
                              p->dim, global->rank);
    }
    return 0;
}
