/*
 * What a group of one kernel may consist of. A kernel reads a value from outside wherever
 * it likes, but of its own members only the element in its own place, or in its own row:
 * so no member is needed by another thread than the one that computes it, but for sums.
 * Linear in nodes and operands.
 */
#include "program/kernel_form.h"

#include <string.h>

static bool is_complex(enum ap_dtype dtype)
{
    return dtype == AP_C64 || dtype == AP_C128;
}

static bool is_scalar_constant(const struct ap_node *n)
{
    return n->op == AP_OP_CONSTANT && n->shape.rank == 0 && !n->attrs->literal.elided &&
           n->attrs->literal.data;
}

static bool is_load(const struct ap_node *n)
{
    return n->op == AP_OP_TRANSPOSE || n->op == AP_OP_SLICE;
}

static bool is_plain_slice(const struct ap_node *n)
{
    for (int d = 0; d < n->attrs->n_slice; d++)
        if (n->attrs->slice[d].stride != 1)
            return false;
    return true;
}

bool ap_kernel_takes(const struct ap_graph *g, int node)
{
    const struct ap_node *n = &g->nodes[node];

    if (n->shape.dtype == AP_TUPLE || is_complex(n->shape.dtype) ||
        ap_shape_elems(&n->shape) == 0)
        return false;
    for (int k = 0; k < n->n_in; k++) {
        const struct ap_shape *in = &g->nodes[n->in[k]].shape;
        if (is_complex(in->dtype) || in->dtype == AP_TUPLE)
            return false;
        if (ap_ops[n->op].class == AP_CLASS_ELEMENTWISE && in->rank > 0 &&
            !ap_shape_same_dims(in, &n->shape))
            return false; /* a bitcast-convert between sizes */
    }
    return ap_ops[n->op].class == AP_CLASS_ELEMENTWISE || n->op == AP_OP_BROADCAST ||
           n->op == AP_OP_RESHAPE || n->op == AP_OP_TRANSPOSE ||
           (n->op == AP_OP_SLICE && is_plain_slice(n)) || n->op == AP_OP_IOTA ||
           is_scalar_constant(n);
}

bool ap_kernel_reduces(const struct ap_graph *g, int node)
{
    const struct ap_node *n = &g->nodes[node];

    if (n->op != AP_OP_REDUCE || n->n_in != 2 || n->shape.dtype == AP_TUPLE ||
        is_complex(n->shape.dtype) || ap_shape_elems(&n->shape) == 0)
        return false;
    const enum ap_red red = g->reducers[n->attrs->to_apply].red;
    const struct ap_node *from = &g->nodes[n->in[0]], *start = &g->nodes[n->in[1]];
    unsigned char neutral[16];
    if (red <= AP_RED_NONE || red >= AP_RED_ASSIGN || !is_scalar_constant(start) ||
        from->shape.dtype != n->shape.dtype || start->shape.dtype != n->shape.dtype ||
        ap_shape_elems(&from->shape) == 0)
        return false;
    ap_red_neutral(red, n->shape.dtype, neutral);
    return memcmp(neutral, start->attrs->literal.data,
                  (size_t)ap_dtype_size(n->shape.dtype)) == 0;
}

int64_t ap_kernel_row(const struct ap_graph *g, int node)
{
    const struct ap_node *n = &g->nodes[node];
    const struct ap_shape *from = &g->nodes[n->in[0]].shape;
    bool reduced[AP_MAX_RANK] = {false};
    int64_t row = 1;
    int d = from->rank - 1;

    for (int k = 0; k < n->attrs->dimensions.n; k++)
        reduced[n->attrs->dimensions.v[k]] = true;
    for (; d >= 0 && (reduced[d] || from->dims[d] == 1); d--)
        row *= from->dims[d];
    for (; d >= 0; d--)
        if (reduced[d] && from->dims[d] != 1)
            return 0;
    return row;
}

bool ap_kernel_spreads(const struct ap_graph *g, int in, int node)
{
    const struct ap_shape *from = &g->nodes[in].shape;
    const struct ap_node *n = &g->nodes[node];
    int at = 0; /* dimensions of the result before it have been passed */

    for (int d = 0; d < from->rank; d++) {
        if (from->dims[d] == 1)
            continue;
        while (at < n->shape.rank && n->shape.dims[at] == 1)
            at++;
        if (n->attrs->dimensions.v[d] != at)
            return false;
        at++;
    }
    return true;
}

/* ---- forms ---- */

struct group {
    const struct ap_graph *g;
    int first, end;
    int64_t rows, cols; /* by its first reduce; rows 0: it has none */
    int lead;           /* the first reduce, -1 */
    bool by_rows;       /* every reduce is of rows, and of as many */
    bool read;          /* somebody in the group reads a reduce */
    bool alike;         /* reduces have equal dimensions */
};

static bool is_inside(const struct group *a, int node)
{
    return node >= a->first && node < a->end;
}

static bool reduces_alike(const struct ap_graph *g, int a, int b)
{
    const struct ap_node *p = &g->nodes[a], *q = &g->nodes[b];

    if (!ap_shape_same_dims(&g->nodes[p->in[0]].shape, &g->nodes[q->in[0]].shape) ||
        p->attrs->dimensions.n != q->attrs->dimensions.n)
        return false;
    for (int k = 0; k < p->attrs->dimensions.n; k++)
        if (p->attrs->dimensions.v[k] != q->attrs->dimensions.v[k])
            return false;
    return true;
}

static void find_reduces(struct group *a)
{
    for (int i = a->first; i < a->end; i++) {
        const struct ap_node *n = &a->g->nodes[i];
        for (int k = 0; k < n->n_in; k++)
            a->read |= is_inside(a, n->in[k]) && a->g->nodes[n->in[k]].op == AP_OP_REDUCE;
        if (n->op != AP_OP_REDUCE)
            continue;
        const int64_t row = ap_kernel_row(a->g, i), rows = ap_shape_elems(&n->shape);
        if (a->lead < 0) {
            a->lead = i;
            a->rows = rows;
            a->cols = row;
        }
        a->by_rows &= row > 1 && row == a->cols && rows == a->rows;
        a->alike &= reduces_alike(a->g, a->lead, i);
    }
}

/* Why a member of a group of rows x cols elements cannot read operand k. */
static const char *check_read(const struct group *a, const struct ap_kernel_form *form,
                              int node, int k)
{
    const struct ap_node *n = &a->g->nodes[node];
    const int in = n->in[k];
    const int64_t from = ap_shape_elems(&a->g->nodes[in].shape);
    const int64_t to = ap_shape_elems(&n->shape);

    if (!is_inside(a, in) || from == 1)
        return NULL;
    if (is_load(n))
        return "moves elements of its own kernel's value";
    if (n->op == AP_OP_BROADCAST && !ap_kernel_spreads(a->g, in, node))
        return "reads its own kernel's value at other places";
    if (n->op == AP_OP_BROADCAST && from != to && from != form->rows)
        return "reads its own kernel's value at other places";
    return NULL;
}

static const char *check_member(const struct group *a, const struct ap_kernel_form *form,
                                int node)
{
    const struct ap_node *n = &a->g->nodes[node];
    const bool reduce = n->op == AP_OP_REDUCE;
    const int64_t all = form->rows * form->cols;
    const int64_t elems =
        ap_shape_elems(reduce ? &a->g->nodes[n->in[0]].shape : &n->shape);
    const char *what = NULL;

    if (n->attrs->kernel <= 0 || n->attrs->kernel != a->g->nodes[a->first].attrs->kernel)
        return "shares its group with operators that it cannot be fused with";
    if (!(reduce ? ap_kernel_reduces(a->g, node) : ap_kernel_takes(a->g, node)))
        return "cannot be a part of a kernel";
    if (elems != all && elems != 1 && (reduce || form->rows == 1 || elems != form->rows))
        return "has another number of elements than its kernel";
    if (reduce && elems != all)
        return "reduces what is no value of its kernel";
    for (int k = 0; k < n->n_in && !what; k++)
        what = check_read(a, form, node, k);
    return what;
}

const char *ap_kernel_form_of(const struct ap_graph *g, int first, int end,
                              struct ap_kernel_form *form, int *where)
{
    struct group a = {
        .g = g, .first = first, .end = end, .lead = -1, .by_rows = true, .alike = true};
    const char *what = NULL;

    find_reduces(&a);
    *where = first;
    *form = (struct ap_kernel_form){AP_KERNEL_PASS, 1, 1};
    if (a.lead >= 0 && a.by_rows && a.rows > 1) {
        *form = (struct ap_kernel_form){AP_KERNEL_ROWS, a.rows, a.cols};
    } else if (a.lead >= 0) {
        *where = a.lead;
        if (a.read || !a.alike)
            return "is not of one form with the other reduces of its kernel";
        form->kind = AP_KERNEL_COLS;
        form->cols = ap_shape_elems(&g->nodes[g->nodes[a.lead].in[0]].shape);
    } else {
        for (int i = first; i < end; i++) {
            const int64_t elems = ap_shape_elems(&g->nodes[i].shape);
            form->cols = elems > form->cols ? elems : form->cols;
        }
    }
    for (int i = first; i < end && !what; i++) {
        what = check_member(&a, form, i);
        *where = i;
    }
    return what;
}
