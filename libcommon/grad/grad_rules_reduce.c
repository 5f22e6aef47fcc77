/*
 * Derivatives of reductions, windows, sort and topk.
 *
 * Sums spread the gradient. Products: with p the product of the elements that are not
 * zero and z the number of zeros, the derivative by x is p / x where z = 0, and p at the
 * zero where z = 1. Maxima give equal shares to equal elements; windows of maxima give
 * all to the first (select-and-scatter). A sorted tensor's gradient is put back by
 * sorting it by the permutation, which is an iota that was sorted along. A reduction
 * that selects one of several pairs, like argmax, gives to the pair whose index came out.
 */
#include "grad/grad_impl.h"

#include <string.h>

#define BINARY(op, x, y) ap_build_binary(b, AP_OP_##op, (x), (y))

/* One value per result: a tuple's part, or the node itself. */
static int part_of(struct ap_build *b, int node, int k)
{
    struct ap_shape s = *ap_build_shape_of(b, node);
    struct ap_attrs *a = ap_build_attrs(b);

    if (s.dtype != AP_TUPLE)
        return node;
    a->index = k;
    return ap_build_node(b, AP_OP_GET_TUPLE_ELEMENT, NULL, s.parts[k], a, 1, &node);
}

static bool is_neutral(const struct ap_build *b, int node, enum ap_red red)
{
    const struct ap_node *n = &b->nodes[node];
    const struct ap_literal *l = &n->attrs->literal;
    char want[16];

    if (n->op != AP_OP_CONSTANT || l->elided)
        return false;
    ap_red_neutral(red, n->shape.dtype, want);
    return memcmp(l->data, want, (size_t)ap_dtype_size(n->shape.dtype)) == 0;
}

/* ---- sums of dy that undo a reduction or a window ---- */

struct ap_window_dim grad_transposed_window(const struct ap_window_dim *w, int64_t n_in,
                                            int64_t n_out)
{
    int64_t base = n_out > 0 ? (n_out - 1) * w->stride + 1 : 0;
    int64_t reach = (w->size - 1) * w->rhs_dilate + 1;
    struct ap_window_dim t = {.size = w->size,
                              .stride = w->lhs_dilate,
                              .pad_lo = reach - 1 - w->pad_lo,
                              .lhs_dilate = w->stride,
                              .rhs_dilate = w->rhs_dilate,
                              .reversal = !w->reversal};
    t.pad_hi = (n_in - 1) * t.stride + reach - base - t.pad_lo;
    return t;
}

/* For each element the sum of x over the results that it takes part in. */
static int back(struct grad *g, const struct ap_node *n, int x)
{
    struct ap_shape in = *ap_build_shape_of(g->b, n->in[0]);
    struct ap_window_dim w[AP_MAX_RANK];

    if (n->op == AP_OP_REDUCE)
        return grad_spread(g, x, &in, &n->attrs->dimensions);
    for (int d = 0; d < in.rank; d++) {
        w[d] = grad_transposed_window(&n->attrs->window[d], in.dims[d], n->shape.dims[d]);
        w[d].reversal = false;
    }
    return ap_build_reduce_window(g->b, x, AP_RED_SUM, w);
}

/* The same reduction of x with another reducer's kind, from its neutral element. */
static int sum_like(struct grad *g, const struct ap_node *n, int x)
{
    const struct ap_ints *dims = &n->attrs->dimensions;
    if (n->op == AP_OP_REDUCE)
        return ap_build_reduce(g->b, x, AP_RED_SUM, dims->n, dims->v);
    return ap_build_reduce_window(g->b, x, AP_RED_SUM, n->attrs->window);
}

/* ---- known reducers ---- */

static int product(struct grad *g, const struct ap_node *n, int dy)
{
    struct ap_build *b = g->b;
    int x = n->in[0];
    struct ap_shape s = *ap_build_shape_of(b, x), out = n->shape;

    int none = ap_build_compare(b, AP_EQ, x, grad_zeros(g, &s));
    int safe = ap_build_select(b, none, ap_build_full(b, &s, 1), x);
    int in[2] = {safe, n->in[1]};
    int p = ap_build_node(b, n->op, NULL, out, n->attrs, 2, in);
    int zeros = sum_like(g, n, ap_build_convert(b, none, s.dtype));
    int dp = grad_mul(g, dy, p);
    int all = ap_build_compare(b, AP_EQ, zeros, grad_zeros(g, &out));
    int one = ap_build_compare(b, AP_EQ, zeros, ap_build_full(b, &out, 1));
    int by_all = BINARY(DIVIDE, back(g, n, grad_where(g, all, dp)), safe);
    int by_one = back(g, n, grad_where(g, one, dp));
    return ap_build_select(b, none, by_one, by_all);
}

/* dy where the result is not just the initial value. */
static int without_init(struct grad *g, const struct ap_node *n, int i, int dy,
                        enum ap_red red)
{
    struct ap_build *b = g->b;
    if (is_neutral(b, n->in[1], red))
        return dy;
    int init = n->in[1];
    if (n->shape.rank)
        init = ap_build_broadcast(b, init, n->shape.rank, n->shape.dims, NULL);
    int more = ap_build_compare(b, red == AP_RED_MAX ? AP_GT : AP_LT, i, init);
    return grad_where(g, more, dy);
}

static int extreme(struct grad *g, const struct ap_node *n, int i, int dy,
                   enum ap_red red)
{
    struct ap_build *b = g->b;
    const struct ap_ints *dims = &n->attrs->dimensions;
    struct ap_shape s = *ap_build_shape_of(b, n->in[0]), out = n->shape;

    int is = ap_build_compare(b, AP_EQ, n->in[0], grad_spread(g, i, &s, dims));
    is = ap_build_convert(b, is, s.dtype);
    int count = ap_build_reduce(b, is, AP_RED_SUM, dims->n, dims->v);
    if (!is_neutral(b, n->in[1], red))
        count = BINARY(MAXIMUM, count, ap_build_full(b, &out, 1));
    dy = BINARY(DIVIDE, without_init(g, n, i, dy, red), count);
    return grad_mul(g, is, grad_spread(g, dy, &s, dims));
}

/* Number of the reducer "first direction second", made on first use. */
static int compare_reducer(struct ap_build *b, enum ap_direction direction,
                           enum ap_dtype dtype)
{
    static const char *const names[] = {"eq", "ne", "ge", "gt", "le", "lt"};
    static const int operands[2] = {0, 1}, result = 2;
    const char *name =
        ap_arena_printf(b->arena, "grad.%s.%s", names[direction], ap_dtype_name(dtype));
    for (int r = 0; r < b->n_reducers; r++)
        if (strcmp(b->reducers[r].name, name) == 0)
            return r;
    struct ap_node *body = AP_NEW_N(b->arena, 3, struct ap_node);
    struct ap_attrs *a = ap_build_attrs(b);
    a->direction = direction;
    for (int k = 0; k < 3; k++)
        body[k] =
            (struct ap_node){.op = k < 2 ? AP_OP_PARAMETER : AP_OP_COMPARE,
                             .name = k == 0   ? "x"
                                     : k == 1 ? "y"
                                              : "compare",
                             .n_in = k < 2 ? 0 : 2,
                             .in = operands,
                             .shape = ap_build_shape(b, k < 2 ? dtype : AP_PRED, 0, NULL),
                             .attrs = k < 2 ? &ap_attrs_default : a,
                             .scope = "",
                             .param = k < 2 ? k : -1,
                             .group = -1};
    return ap_build_add_reducer(b, (struct ap_reducer){.name = name,
                                                       .n_nodes = 3,
                                                       .n_results = 1,
                                                       .nodes = body,
                                                       .results = &result});
}

static int window_extreme(struct grad *g, const struct ap_node *n, int i, int dy,
                          enum ap_red red)
{
    struct ap_build *b = g->b;
    struct ap_shape s = *ap_build_shape_of(b, n->in[0]);
    struct ap_attrs *a = ap_build_attrs(b);
    struct ap_window_dim *w = AP_NEW_N(b->arena, s.rank + 1, struct ap_window_dim);

    for (int d = 0; d < s.rank; d++) {
        w[d] = n->attrs->window[d];
        w[d].reversal = false;
    }
    a->window = w;
    a->n_window = s.rank;
    a->select = compare_reducer(b, red == AP_RED_MAX ? AP_GE : AP_LE, s.dtype);
    a->scatter = ap_build_reducer(b, AP_RED_SUM, s.dtype);
    int in[3] = {n->in[0], without_init(g, n, i, dy, red),
                 ap_build_scalar(b, s.dtype, 0)};
    return ap_build_node(b, AP_OP_SELECT_AND_SCATTER, NULL, s, a, 3, in);
}

static bool is_dilated(const struct ap_attrs *a)
{
    for (int d = 0; d < a->n_window; d++)
        if (a->window[d].lhs_dilate != 1 || a->window[d].rhs_dilate != 1)
            return true;
    return false;
}

/* reduce of one operand, and reduce-window */
static int known(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    enum ap_red red = g->b->reducers[n.attrs->to_apply].red;

    if (grad_wants(g, i, 1)) {
        if (red != AP_RED_SUM)
            return grad_refuse(g, i, "by its initial value");
        grad_add(g, n.in[1], grad_sum_all(g, dy));
    }
    if (!grad_wants(g, i, 0))
        return 0;
    if (red == AP_RED_SUM)
        grad_add(g, n.in[0], back(g, &n, dy));
    else if (red == AP_RED_PROD)
        grad_add(g, n.in[0], product(g, &n, dy));
    else if (red != AP_RED_MAX && red != AP_RED_MIN)
        return grad_refuse(g, i, "with this reducer");
    else if (n.op == AP_OP_REDUCE)
        grad_add(g, n.in[0], extreme(g, &n, i, dy, red));
    else if (is_dilated(n.attrs))
        return grad_refuse(g, i, "of a maximum with dilation");
    else
        grad_add(g, n.in[0], window_extreme(g, &n, i, dy, red));
    return 0;
}

int grad_reduce_window(struct grad *g, int i, int dy)
{
    return known(g, i, dy);
}

/* ---- reductions that select ---- */

/* Does body node `at` only choose between parameters a and b? */
static bool selects(const struct ap_reducer *r, int at, int a, int b, int depth)
{
    const struct ap_node *n = &r->nodes[at];
    if (n->op == AP_OP_PARAMETER)
        return at == a || at == b;
    if (depth == 0)
        return false;
    if (n->op == AP_OP_SELECT)
        return selects(r, n->in[1], a, b, depth - 1) &&
               selects(r, n->in[2], a, b, depth - 1);
    return (n->op == AP_OP_MAXIMUM || n->op == AP_OP_MINIMUM) &&
           selects(r, n->in[0], a, b, depth - 1) && selects(r, n->in[1], a, b, depth - 1);
}

/* Is x's value along dim the position itself? */
static bool is_position(const struct ap_build *b, int x, int64_t dim)
{
    for (;;) {
        const struct ap_node *n = &b->nodes[x];
        if (n->op == AP_OP_IOTA)
            return n->attrs->iota_dimension == dim;
        if (n->op == AP_OP_BROADCAST) {
            int k = 0;
            while (k < n->attrs->dimensions.n && n->attrs->dimensions.v[k] != dim)
                k++;
            if (k == n->attrs->dimensions.n)
                return false;
            dim = k;
        } else if ((n->op != AP_OP_CONVERT && n->op != AP_OP_COPY) ||
                   !ap_dtype_is_int(n->shape.dtype)) {
            return false;
        }
        x = n->in[0];
    }
}

int grad_reduce(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    struct ap_build *b = g->b;
    const struct ap_reducer *r = &b->reducers[n.attrs->to_apply];
    const struct ap_ints *dims = &n.attrs->dimensions;
    int n_ops = n.n_in / 2, index = 0;

    if (n_ops == 1)
        return known(g, i, dy);
    while (index < n_ops &&
           !(dims->n == 1 && is_position(b, n.in[index], dims->v[0]) && r->n_nodes > 0 &&
             selects(r, r->results[index], index, n_ops + index, 8)))
        index++;
    for (int k = 0; k < n_ops; k++)
        if (g->part[i][k] >= 0 && (index == n_ops || grad_wants(g, i, n_ops + k) ||
                                   !selects(r, r->results[k], k, n_ops + k, 8)))
            return grad_refuse(g, i,
                               "with a reducer that is not a selection by an index");
    int chosen = part_of(b, i, index);
    struct ap_shape s = *ap_build_shape_of(b, n.in[index]);
    int mine = ap_build_compare(b, AP_EQ, n.in[index], grad_spread(g, chosen, &s, dims));
    for (int k = 0; k < n_ops; k++) {
        if (g->part[i][k] < 0)
            continue;
        struct ap_shape sk = *ap_build_shape_of(b, n.in[k]);
        grad_add(g, n.in[k],
                 grad_where(g, mine, grad_spread(g, g->part[i][k], &sk, dims)));
    }
    return 0;
}

/* ---- sort and topk ---- */

/* The comparator of one more operand (s32), which it ignores. */
static int wider(struct ap_build *b, int reducer)
{
    struct ap_reducer r = b->reducers[reducer];
    const char *name = ap_arena_printf(b->arena, "grad.%d.%s", reducer, r.name);
    int n_params = 0;

    for (int k = 0; k < b->n_reducers; k++)
        if (strcmp(b->reducers[k].name, name) == 0)
            return k;
    while (n_params < r.n_nodes && r.nodes[n_params].op == AP_OP_PARAMETER)
        n_params++;
    struct ap_node *body = AP_NEW_N(b->arena, r.n_nodes + 2, struct ap_node);
    memcpy(body, r.nodes, (size_t)n_params * sizeof *body);
    for (int k = 0; k < 2; k++)
        body[n_params + k] = (struct ap_node){.op = AP_OP_PARAMETER,
                                              .name = k ? "position.1" : "position.0",
                                              .shape = ap_build_shape(b, AP_S32, 0, NULL),
                                              .attrs = &ap_attrs_default,
                                              .scope = "",
                                              .param = n_params + k,
                                              .group = -1};
    for (int k = n_params; k < r.n_nodes; k++) {
        struct ap_node *n = &body[k + 2];
        *n = r.nodes[k];
        int *in = AP_NEW_N(b->arena, n->n_in + 1, int);
        for (int j = 0; j < n->n_in; j++)
            in[j] = n->in[j] + (n->in[j] >= n_params ? 2 : 0);
        n->in = in;
    }
    int *result = AP_NEW(b->arena, int);
    *result = r.results[0] + (r.results[0] >= n_params ? 2 : 0);
    r.name = name;
    r.n_nodes += 2;
    r.nodes = body;
    r.results = result;
    return ap_build_add_reducer(b, r);
}

/* The less-than of pairs whose second parts, of these types, do not count. */
static int by_position(struct ap_build *b, int n, const enum ap_dtype *dtype)
{
    struct ap_buf name = {0};
    struct ap_node *body = AP_NEW_N(b->arena, 2 * n + 1, struct ap_node);
    static const int operands[2] = {0, 1};
    int *result = AP_NEW(b->arena, int);
    struct ap_attrs *a = ap_build_attrs(b);

    ap_buf_puts(&name, "grad.position");
    for (int k = 1; k < n; k++)
        ap_buf_printf(&name, ".%s", ap_dtype_name(dtype[k]));
    char *text = ap_arena_strdup(b->arena, name.data);
    ap_buf_free(&name);
    for (int k = 0; k < b->n_reducers; k++)
        if (strcmp(b->reducers[k].name, text) == 0)
            return k;
    a->direction = AP_LT;
    for (int k = 0; k <= 2 * n; k++)
        body[k] = (struct ap_node){
            .op = k < 2 * n ? AP_OP_PARAMETER : AP_OP_COMPARE,
            .name = ap_arena_printf(b->arena, "p.%d", k),
            .n_in = k < 2 * n ? 0 : 2,
            .in = operands,
            .shape = ap_build_shape(b, k < 2 * n ? dtype[k / 2] : AP_PRED, 0, NULL),
            .attrs = k < 2 * n ? &ap_attrs_default : a,
            .scope = "",
            .param = k < 2 * n ? k : -1,
            .group = -1};
    *result = 2 * n;
    return ap_build_add_reducer(b, (struct ap_reducer){.name = text,
                                                       .n_nodes = 2 * n + 1,
                                                       .n_results = 1,
                                                       .nodes = body,
                                                       .results = result});
}

static int sort_of(struct ap_build *b, int n, const int *in, int reducer, int64_t dim)
{
    struct ap_attrs *a = ap_build_attrs(b);
    struct ap_shape *parts = AP_NEW_N(b->arena, n, struct ap_shape);

    for (int k = 0; k < n; k++)
        parts[k] = *ap_build_shape_of(b, in[k]);
    a->dimensions = ap_build_ints(b, 1, &dim);
    a->is_stable = true;
    a->to_apply = reducer;
    struct ap_shape s = {.dtype = AP_TUPLE, .n_parts = n, .parts = parts};
    return ap_build_node(b, AP_OP_SORT, NULL, n > 1 ? s : parts[0], a, n, in);
}

int grad_sort(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    struct ap_build *b = g->b;
    int64_t dim = n.attrs->dimensions.v[0];
    struct ap_shape position = *ap_build_shape_of(b, n.in[0]);
    int *in = AP_NEW_N(b->arena, n.n_in + 1, int),
        *of = AP_NEW_N(b->arena, n.n_in + 1, int);
    enum ap_dtype *dtype = AP_NEW_N(b->arena, n.n_in + 1, enum ap_dtype);
    int n_sorted = 1;

    if (b->reducers[n.attrs->to_apply].n_nodes == 0)
        return grad_refuse(g, i, "with a comparator that has no body");
    position.dtype = AP_S32;
    memcpy(in, n.in, (size_t)n.n_in * sizeof *in);
    in[n.n_in] = ap_build_iota(b, position, (int)dim);
    int sorted = sort_of(b, n.n_in + 1, in, wider(b, n.attrs->to_apply), dim);
    in[0] = part_of(b, sorted, n.n_in);
    dtype[0] = AP_S32;
    for (int k = 0; k < n.n_in; k++) {
        int d = n.n_in == 1 ? dy : g->part[i][k];
        if (d < 0 || !grad_wants(g, i, k))
            continue;
        of[n_sorted] = n.in[k];
        dtype[n_sorted] = ap_build_shape_of(b, d)->dtype;
        in[n_sorted++] = d;
    }
    if (n_sorted == 1)
        return 0;
    int restored = sort_of(b, n_sorted, in, by_position(b, n_sorted, dtype), dim);
    for (int k = 1; k < n_sorted; k++)
        grad_add(g, of[k], part_of(b, restored, k));
    return 0;
}

/* The values go back to where the indices say; leading dimensions are batches. */
int grad_topk(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    struct ap_build *b = g->b;
    struct ap_shape s = *ap_build_shape_of(b, n.in[0]);
    struct ap_attrs *a = ap_build_attrs(b);
    int64_t batch[AP_MAX_RANK], last = s.rank - 1;

    dy = g->part[i][0];
    if (dy < 0)
        return 0;
    for (int64_t d = 0; d < last; d++)
        batch[d] = d;
    a->input_batching_dims = ap_build_ints(b, (int)last, batch);
    a->scatter_indices_batching_dims = a->input_batching_dims;
    a->inserted_window_dims = ap_build_ints(b, 1, &last);
    a->scatter_dims_to_operand_dims = a->inserted_window_dims;
    a->index_vector_dim = s.rank;
    a->unique_indices = true;
    a->to_apply = ap_build_reducer(b, AP_RED_SUM, s.dtype);
    int in[3] = {grad_zeros(g, &s), part_of(b, i, 1), dy};
    grad_add(g, n.in[0], ap_build_node(b, AP_OP_SCATTER, NULL, s, a, 3, in));
    return 0;
}
