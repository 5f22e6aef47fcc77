/*
 * Factor rules, one per operator: which dimensions of operands and
 * result are the same factors, which are reduced, indexed or whole, and over which a
 * tensor becomes partial. Semantics are those of XLA's HLO (openxla.org, "Operation
 * semantics"). A rule only fills an ap_rule; refinement and the nests themselves follow
 * from it.
 */
#include "layout/nest_impl.h"

#include <assert.h>
#include <stdlib.h>

#include "base/array.h"

/* ---- filling a rule ---- */

void ap_rule_add_link(struct ap_rule *r, struct ap_rule_at a, struct ap_rule_at b)
{
    AP_ROOM(r->links, r->n_links, r->cap_links);
    r->links[r->n_links++] = (struct ap_rule_link){a, b};
}

void ap_rule_add_mark(struct ap_rule *r, struct ap_rule_at at, enum ap_factor_kind kind,
                      enum ap_red red)
{
    AP_ROOM(r->marks, r->n_marks, r->cap_marks);
    r->marks[r->n_marks++] = (struct ap_rule_mark){at, kind, red};
}

static void add_partial(struct ap_rule *r, int port, struct ap_rule_at over)
{
    AP_ROOM(r->partials, r->n_partials, r->cap_partials);
    r->partials[r->n_partials++] = (struct ap_rule_partial){port, over};
}

void ap_rule_add_cut(struct ap_rule *r, int port, int dim, int n, const int64_t *size)
{
    AP_ROOM(r->cuts, r->n_cuts, r->cap_cuts);
    r->cuts[r->n_cuts++] = (struct ap_rule_cut){port, dim, n, r->n_sizes};
    AP_ROOM_FOR(r->sizes, r->n_sizes, r->cap_sizes, n);
    for (int i = 0; i < n; i++)
        r->sizes[r->n_sizes++] = size[i];
}

void ap_rule_free(struct ap_rule *r)
{
    free(r->links);
    free(r->marks);
    free(r->partials);
    free(r->cuts);
    free(r->sizes);
    *r = (struct ap_rule){0};
}

const struct ap_shape *ap_value_shape(const struct ap_node *n)
{
    bool tuple = n->shape.dtype == AP_TUPLE && n->shape.n_parts > 0;
    return tuple ? &n->shape.parts[0] : &n->shape;
}

/* ---- shorthands ---- */

static const struct ap_shape *shape_of(const struct ap_rule *r, int port)
{
    return ap_value_shape(port == AP_OUT ? r->node : &r->g->nodes[r->node->in[port]]);
}

static int64_t dim_of(const struct ap_rule *r, int port, int dim)
{
    return shape_of(r, port)->dims[dim];
}

static struct ap_rule_at at(int port, int dim)
{
    return (struct ap_rule_at){port, dim, AP_UNCUT};
}

static struct ap_rule_at piece(int port, int dim, int i)
{
    return (struct ap_rule_at){port, dim, i};
}

static void link(struct ap_rule *r, int port_a, int dim_a, int port_b, int dim_b)
{
    assert(dim_of(r, port_a, dim_a) == dim_of(r, port_b, dim_b));
    ap_rule_add_link(r, at(port_a, dim_a), at(port_b, dim_b));
}

static void whole(struct ap_rule *r, int port, int dim)
{
    ap_rule_add_mark(r, at(port, dim), AP_FACTOR_WHOLE, AP_RED_NONE);
}

static void reduced(struct ap_rule *r, int port, int dim, enum ap_red red)
{
    ap_rule_add_mark(r, at(port, dim), AP_FACTOR_REDUCED, red);
}

static void partial(struct ap_rule *r, int port, int over_port, int over_dim)
{
    add_partial(r, port, at(over_port, over_dim));
}

static bool has(const struct ap_ints *list, int64_t v)
{
    for (int i = 0; i < list->n; i++) {
        if (list->v[i] == v)
            return true;
    }
    return false;
}

/* How sums of this type combine: a sum of truth values is an or. */
static enum ap_red sum_of(const struct ap_shape *s)
{
    return s->dtype == AP_PRED ? AP_RED_OR : AP_RED_SUM;
}

static enum ap_red reducer_red(const struct ap_rule *r)
{
    int id = r->node->attrs->to_apply;
    if (id < 0)
        id = r->node->attrs->scatter;
    return id < 0 ? AP_RED_NONE : r->g->reducers[id].red;
}

static bool is_trivial(const struct ap_window_dim *w)
{
    return w->size == 1 && w->stride == 1 && w->pad_lo == 0 && w->pad_hi == 0 &&
           w->lhs_dilate <= 1 && w->rhs_dilate <= 1;
}

/* ---- elementwise and moves ---- */

static void rule_leaf(struct ap_rule *r)
{
    (void)r;
}

/* Operands of the result's rank have its dims; the others are scalars. */
static void rule_elementwise(struct ap_rule *r)
{
    int rank = shape_of(r, AP_OUT)->rank;
    for (int k = 0; k < r->node->n_in; k++) {
        for (int d = 0; d < rank && shape_of(r, k)->rank == rank; d++)
            link(r, k, d, AP_OUT, d);
    }
}

static void rule_tuple_part(struct ap_rule *r)
{
    if (r->g->nodes[r->node->in[0]].op == AP_OP_WHILE) {
        r->opaque = true;
        return;
    }
    if (ap_shape_same_dims(shape_of(r, 0), shape_of(r, AP_OUT))) {
        rule_elementwise(r);
        return;
    }
    for (int d = 0; d < shape_of(r, AP_OUT)->rank; d++)
        whole(r, AP_OUT, d);
}

static void rule_broadcast(struct ap_rule *r)
{
    for (int d = 0; d < shape_of(r, 0)->rank; d++)
        link(r, 0, d, AP_OUT, (int)r->node->attrs->dimensions.v[d]);
}

static void rule_transpose(struct ap_rule *r)
{
    for (int d = 0; d < shape_of(r, AP_OUT)->rank; d++)
        link(r, 0, (int)r->node->attrs->dimensions.v[d], AP_OUT, d);
}

/* A dimension that passes through untouched, or one that is cut up. */
static void pass_or_whole(struct ap_rule *r, int dim, bool untouched)
{
    if (untouched) {
        link(r, 0, dim, AP_OUT, dim);
        return;
    }
    whole(r, 0, dim);
    whole(r, AP_OUT, dim);
}

static void rule_slice(struct ap_rule *r)
{
    for (int d = 0; d < shape_of(r, 0)->rank; d++) {
        const struct ap_slice_dim *s = &r->node->attrs->slice[d];
        bool all = s->start == 0 && s->limit == dim_of(r, 0, d) && s->stride == 1;
        pass_or_whole(r, d, all);
    }
}

static void rule_pad(struct ap_rule *r)
{
    for (int d = 0; d < shape_of(r, 0)->rank; d++) {
        const struct ap_pad_dim *p = &r->node->attrs->padding[d];
        pass_or_whole(r, d, p->lo == 0 && p->hi == 0 && p->interior == 0);
    }
}

static void rule_reverse(struct ap_rule *r)
{
    for (int d = 0; d < shape_of(r, 0)->rank; d++)
        pass_or_whole(r, d, !has(&r->node->attrs->dimensions, d));
}

/* Joined extents are whole; operands of equal extent share theirs, to need few factors.
 */
static void rule_concatenate(struct ap_rule *r)
{
    int joined = (int)r->node->attrs->dimensions.v[0];
    for (int k = 0; k < r->node->n_in; k++) {
        for (int d = 0; d < shape_of(r, k)->rank; d++) {
            if (d != joined)
                link(r, k, d, AP_OUT, d);
        }
        whole(r, k, joined);
        for (int j = 0; j < k && j < AP_MAX_FACTORS; j++) {
            if (dim_of(r, j, joined) == dim_of(r, k, joined)) {
                link(r, j, joined, k, joined);
                break;
            }
        }
    }
    whole(r, AP_OUT, joined);
}

/* ---- contractions ---- */

static void rule_dot(struct ap_rule *r)
{
    const struct ap_attrs *a = r->node->attrs;
    int out = 0;

    for (int i = 0; i < a->lhs_batch_dims.n; i++, out++) {
        link(r, 0, (int)a->lhs_batch_dims.v[i], AP_OUT, out);
        link(r, 1, (int)a->rhs_batch_dims.v[i], AP_OUT, out);
    }
    for (int d = 0; d < shape_of(r, 0)->rank; d++) {
        if (!has(&a->lhs_batch_dims, d) && !has(&a->lhs_contracting_dims, d))
            link(r, 0, d, AP_OUT, out++);
    }
    for (int d = 0; d < shape_of(r, 1)->rank; d++) {
        if (!has(&a->rhs_batch_dims, d) && !has(&a->rhs_contracting_dims, d))
            link(r, 1, d, AP_OUT, out++);
    }
    for (int i = 0; i < a->lhs_contracting_dims.n; i++) {
        int d = (int)a->lhs_contracting_dims.v[i];
        link(r, 0, d, 1, (int)a->rhs_contracting_dims.v[i]);
        reduced(r, 0, d, sum_of(shape_of(r, AP_OUT)));
        partial(r, AP_OUT, 0, d);
    }
}

/* Dimension = [groups, rest]. */
static void cut_groups(struct ap_rule *r, int port, int dim, int64_t groups)
{
    int64_t size[2] = {groups, dim_of(r, port, dim) / groups};
    ap_rule_add_cut(r, port, dim, 2, size);
}

/*
 * Groups are a parallel factor, major in the dimensions that they cut: of the input's
 * feature (feature groups) or batch (batch groups), and of the kernel's and the result's
 * output feature.
 */
static void conv_channels(struct ap_rule *r)
{
    const struct ap_attrs *a = r->node->attrs;
    const struct ap_conv_dims *c = &a->conv;
    bool by_batch = a->batch_group_count > 1;
    int64_t groups = by_batch ? a->batch_group_count : a->feature_group_count;

    if (groups <= 1) {
        link(r, 0, c->lhs_batch, AP_OUT, c->out_batch);
        link(r, 1, c->rhs_out, AP_OUT, c->out_feature);
        link(r, 0, c->lhs_feature, 1, c->rhs_in);
        return;
    }
    int grouped = by_batch ? c->lhs_batch : c->lhs_feature;
    cut_groups(r, 0, grouped, groups);
    cut_groups(r, 1, c->rhs_out, groups);
    cut_groups(r, AP_OUT, c->out_feature, groups);
    ap_rule_add_link(r, piece(0, grouped, 0), piece(AP_OUT, c->out_feature, 0));
    for (int i = 0; i < 2; i++)
        ap_rule_add_link(r, piece(1, c->rhs_out, i), piece(AP_OUT, c->out_feature, i));
    if (by_batch) {
        ap_rule_add_link(r, piece(0, grouped, 1), at(AP_OUT, c->out_batch));
        link(r, 0, c->lhs_feature, 1, c->rhs_in);
    } else {
        ap_rule_add_link(r, piece(0, grouped, 1), at(1, c->rhs_in));
        link(r, 0, c->lhs_batch, AP_OUT, c->out_batch);
    }
}

static void rule_convolution(struct ap_rule *r)
{
    const struct ap_attrs *a = r->node->attrs;
    const struct ap_conv_dims *c = &a->conv;

    conv_channels(r);
    reduced(r, 1, c->rhs_in, AP_RED_SUM);
    partial(r, AP_OUT, 1, c->rhs_in);
    for (int i = 0; i < c->n_spatial; i++) {
        if (is_trivial(&a->window[i])) {
            link(r, 0, c->lhs_spatial[i], AP_OUT, c->out_spatial[i]);
            continue;
        }
        whole(r, 0, c->lhs_spatial[i]);
        whole(r, 1, c->rhs_spatial[i]);
        whole(r, AP_OUT, c->out_spatial[i]);
    }
}

/* ---- reductions, windows, sorts ---- */

/* Operands: data 0 .. n - 1, then their initial values. */
static void rule_reduce(struct ap_rule *r)
{
    const struct ap_ints *dims = &r->node->attrs->dimensions;
    int n_data = r->node->n_in / 2, out = 0;
    enum ap_red red = n_data == 1 ? reducer_red(r) : AP_RED_NONE;
    bool splits = red != AP_RED_NONE && red != AP_RED_ASSIGN;

    for (int d = 0; d < shape_of(r, 0)->rank; d++) {
        for (int k = 1; k < n_data; k++)
            link(r, k, d, 0, d);
        if (!has(dims, d)) {
            link(r, 0, d, AP_OUT, out++);
        } else if (splits) {
            reduced(r, 0, d, red);
            partial(r, 1, 0, d);
            partial(r, AP_OUT, 0, d);
        } else {
            whole(r, 0, d);
        }
    }
}

static void rule_reduce_window(struct ap_rule *r)
{
    const struct ap_attrs *a = r->node->attrs;
    for (int d = 0; d < shape_of(r, 0)->rank; d++)
        pass_or_whole(r, d, d >= a->n_window || is_trivial(&a->window[d]));
}

/* Operands: the window's input, the windows' source, the initial value. */
static void rule_select_and_scatter(struct ap_rule *r)
{
    const struct ap_attrs *a = r->node->attrs;
    for (int d = 0; d < shape_of(r, 0)->rank; d++) {
        bool trivial = d >= a->n_window || is_trivial(&a->window[d]);
        pass_or_whole(r, d, trivial);
        if (trivial)
            link(r, 1, d, AP_OUT, d);
        else
            whole(r, 1, d);
    }
}

static void rule_sort(struct ap_rule *r)
{
    rule_elementwise(r);
    whole(r, AP_OUT, (int)r->node->attrs->dimensions.v[0]);
}

/* Transformed dimensions are whole. */
static void rule_fft(struct ap_rule *r)
{
    int rank = shape_of(r, 0)->rank;
    for (int d = 0; d < rank; d++)
        pass_or_whole(r, d, d < rank - r->node->attrs->fft_length.n);
}

/* Matrices are whole, the right sides of a solve are not. */
static void rule_linalg(struct ap_rule *r)
{
    int rank = shape_of(r, 0)->rank, b = r->node->n_in - 1;
    int solved = rank - (r->node->attrs->left_side ? 2 : 1);

    for (int d = 0; d < rank; d++) {
        bool matrix = d >= rank - 2;
        if (matrix)
            whole(r, 0, d);
        else
            link(r, 0, d, AP_OUT, d);
        if (matrix && (b == 0 || d == solved))
            whole(r, AP_OUT, d);
        if (b == 1)
            link(r, 1, d, AP_OUT, d);
    }
}

static void rule_topk(struct ap_rule *r)
{
    int rank = shape_of(r, 0)->rank;
    for (int d = 0; d < rank; d++)
        pass_or_whole(r, d, d < rank - 1);
}

/* ---- indexing ---- */

/* The only dimension that indices move in part of the operand, or -1. */
static int only_indexed(const struct ap_rule *r, const struct ap_ints *map,
                        const int64_t *window)
{
    int found = -1;
    for (int i = 0; i < map->n; i++) {
        int d = (int)map->v[i];
        if (window[d] == dim_of(r, 0, d))
            continue;
        if (found >= 0)
            return -1;
        found = d;
    }
    return found;
}

/*
 * Links the dimensions of the indices (port 1), but for the index vector, with those of
 * `port` that are not in `window_dims`. to[d] = dimension of `port` for index dimension
 * d.
 */
static void link_index_dims(struct ap_rule *r, int port,
                            const struct ap_ints *window_dims, int to[AP_MAX_RANK + 1])
{
    int next = 0;
    for (int d = 0; d < shape_of(r, 1)->rank; d++) {
        to[d] = -1;
        if (d == r->node->attrs->index_vector_dim) {
            whole(r, 1, d);
            continue;
        }
        while (has(window_dims, next))
            next++;
        link(r, 1, d, port, next);
        to[d] = next++;
    }
}

static void rule_gather(struct ap_rule *r)
{
    const struct ap_attrs *a = r->node->attrs;
    int indexed = only_indexed(r, &a->start_index_map, a->slice_sizes.v), offset = 0;
    int to[AP_MAX_RANK + 1];

    link_index_dims(r, AP_OUT, &a->offset_dims, to);
    for (int i = 0; i < a->operand_batching_dims.n; i++) {
        int j = (int)a->start_indices_batching_dims.v[i];
        link(r, 0, (int)a->operand_batching_dims.v[i], AP_OUT, to[j]);
    }
    for (int d = 0; d < shape_of(r, 0)->rank; d++) {
        if (has(&a->operand_batching_dims, d))
            continue;
        bool collapsed = has(&a->collapsed_slice_dims, d);
        if (collapsed && d == indexed) {
            ap_rule_add_mark(r, at(0, d), AP_FACTOR_INDEXED, sum_of(shape_of(r, 0)));
            partial(r, AP_OUT, 0, d);
        } else if (collapsed) {
            whole(r, 0, d);
        } else {
            int j = (int)a->offset_dims.v[offset++];
            if (a->slice_sizes.v[d] == dim_of(r, 0, d)) {
                link(r, 0, d, AP_OUT, j);
            } else {
                whole(r, 0, d);
                whole(r, AP_OUT, j);
            }
        }
    }
}

/* Update dimensions that the reducer runs over: all but the window's and the batching
 * ones. */
static void scatter_updates(struct ap_rule *r, enum ap_red red)
{
    const struct ap_attrs *a = r->node->attrs;
    bool splits = red != AP_RED_NONE && red != AP_RED_ASSIGN;
    int to[AP_MAX_RANK + 1];

    link_index_dims(r, 2, &a->update_window_dims, to);
    for (int d = 0; d < shape_of(r, 1)->rank; d++) {
        if (to[d] < 0 || has(&a->scatter_indices_batching_dims, d))
            continue;
        if (!splits) {
            whole(r, 2, to[d]);
            continue;
        }
        reduced(r, 2, to[d], red);
        partial(r, 0, 2, to[d]);
        partial(r, AP_OUT, 2, to[d]);
    }
    for (int i = 0; i < a->input_batching_dims.n; i++) {
        int j = (int)a->scatter_indices_batching_dims.v[i];
        link(r, 2, to[j], AP_OUT, (int)a->input_batching_dims.v[i]);
    }
}

/* Operands: the tensor, the indices, the updates. */
static void rule_scatter(struct ap_rule *r)
{
    const struct ap_attrs *a = r->node->attrs;
    int64_t window[AP_MAX_RANK] = {0}; /* extents of a window in the tensor */
    int update[AP_MAX_RANK], next = 0, rank = shape_of(r, 0)->rank;

    for (int d = 0; d < rank; d++) {
        bool inserted = has(&a->inserted_window_dims, d);
        window[d] = 1;
        update[d] = -1;
        if (!inserted && !has(&a->input_batching_dims, d)) {
            update[d] = (int)a->update_window_dims.v[next++];
            window[d] = dim_of(r, 2, update[d]);
        }
    }
    int indexed = only_indexed(r, &a->scatter_dims_to_operand_dims, window);
    scatter_updates(r, reducer_red(r));
    for (int d = 0; d < rank; d++) {
        link(r, 0, d, AP_OUT, d);
        if (has(&a->input_batching_dims, d))
            continue;
        if (update[d] >= 0 && window[d] == dim_of(r, 0, d)) {
            link(r, 2, update[d], AP_OUT, d);
        } else if (update[d] >= 0) {
            whole(r, 2, update[d]);
            whole(r, AP_OUT, d);
        } else {
            enum ap_factor_kind kind = d == indexed ? AP_FACTOR_INDEXED : AP_FACTOR_WHOLE;
            ap_rule_add_mark(r, at(0, d), kind, AP_RED_NONE);
        }
    }
}

static void rule_dynamic_slice(struct ap_rule *r)
{
    for (int d = 0; d < shape_of(r, 0)->rank; d++)
        pass_or_whole(r, d, dim_of(r, 0, d) == dim_of(r, AP_OUT, d));
}

static void rule_dynamic_update_slice(struct ap_rule *r)
{
    for (int d = 0; d < shape_of(r, 0)->rank; d++) {
        link(r, 0, d, AP_OUT, d);
        if (dim_of(r, 0, d) == dim_of(r, 1, d)) {
            link(r, 1, d, AP_OUT, d);
        } else {
            whole(r, 1, d);
            whole(r, AP_OUT, d);
        }
    }
}

/* Nobody knows what it does: everything on every device. */
static void rule_custom_call(struct ap_rule *r)
{
    for (int k = 0; k < r->node->n_in; k++)
        for (int d = 0; d < shape_of(r, k)->rank; d++)
            whole(r, k, d);
    for (int d = 0; d < shape_of(r, AP_OUT)->rank; d++)
        whole(r, AP_OUT, d);
}

/* Every device runs the loop; its state has more dimensions than a nest has factors. */
static void rule_while(struct ap_rule *r)
{
    r->opaque = true;
}

/* ---- the table ---- */

/* Rules that are not their class's. */
static void (*const op_rules[AP_N_OPS])(struct ap_rule *) = {
    [AP_OP_BROADCAST] = rule_broadcast,
    [AP_OP_CONCATENATE] = rule_concatenate,
    [AP_OP_PAD] = rule_pad,
    [AP_OP_RESHAPE] = ap_rule_reshape,
    [AP_OP_REVERSE] = rule_reverse,
    [AP_OP_SLICE] = rule_slice,
    [AP_OP_TRANSPOSE] = rule_transpose,
    [AP_OP_DOT] = rule_dot,
    [AP_OP_CONVOLUTION] = rule_convolution,
    [AP_OP_CHOLESKY] = rule_linalg,
    [AP_OP_TRIANGULAR_SOLVE] = rule_linalg,
    [AP_OP_FFT] = rule_fft,
    [AP_OP_REDUCE] = rule_reduce,
    [AP_OP_REDUCE_WINDOW] = rule_reduce_window,
    [AP_OP_SELECT_AND_SCATTER] = rule_select_and_scatter,
    [AP_OP_SORT] = rule_sort,
    [AP_OP_TOPK] = rule_topk,
    [AP_OP_GATHER] = rule_gather,
    [AP_OP_SCATTER] = rule_scatter,
    [AP_OP_CUSTOM_CALL] = rule_custom_call,
    [AP_OP_WHILE] = rule_while,
    [AP_OP_DYNAMIC_SLICE] = rule_dynamic_slice,
    [AP_OP_DYNAMIC_UPDATE_SLICE] = rule_dynamic_update_slice,
};

static void (*const class_rules[])(struct ap_rule *) = {
    [AP_CLASS_LEAF] = rule_leaf,
    [AP_CLASS_ELEMENTWISE] = rule_elementwise,
    [AP_CLASS_TUPLE] = rule_tuple_part,
    [AP_CLASS_LOCAL] = NULL, /* the last class: of programs, as collectives */
};

int ap_rule_run(struct ap_rule *rule, const struct ap_graph *g, int id,
                const struct ap_refine *refine, struct ap_err *err)
{
    const struct ap_node *n = &g->nodes[id];
    void (*run)(struct ap_rule *) =
        op_rules[n->op] ? op_rules[n->op] : class_rules[ap_ops[n->op].class];

    if (!run)
        return ap_err_set(err, "node %d (%s): %s has no factor rule", id, n->name,
                          ap_ops[n->op].name);
    rule->g = g;
    rule->node = n;
    rule->refine = refine;
    rule->opaque = false;
    rule->n_links = rule->n_marks = rule->n_partials = rule->n_cuts = rule->n_sizes = 0;
    run(rule);
    return 0;
}
