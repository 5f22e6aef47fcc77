/*
 * Derivatives of contractions.
 *
 * dot: the gradient of one side is the dot of y's gradient with the other side over the
 * other side's free dimensions, in the order of operands that gives the side's own order
 * of dimensions, or else transposed to it.
 *
 * convolution, per spatial dimension with size k, stride s, padding lo, dilations dl of
 * the left and dr of the right side: y[o] = sum over j of x[(o s + j dr - lo) / dl] w[j].
 * So dx[i] = sum over j of dy[(i dl + lo - j dr) / s] w[j], a convolution of dy, dilated
 * by s, with w turned round, stride dl, low padding (k - 1) dr - lo; and dw[j] = sum over
 * o of x[(j dr + o s - lo) / dl] dy[o], a convolution of x with dy as the kernel, dilated
 * by s, stride dr, low padding lo. The high padding follows from the size wanted. Groups:
 * a group count of the forward features is one of the batch for dw, and the other way.
 */
#include "grad/grad_impl.h"

#include <string.h>

/* Dimensions of a side that are neither batched nor contracted, ascending. */
static int free_dims(const struct ap_shape *s, const struct ap_ints *batch,
                     const struct ap_ints *contract, int64_t *out)
{
    int n = 0;
    for (int d = 0; d < s->rank; d++)
        if (!grad_listed(batch, d) && !grad_listed(contract, d))
            out[n++] = d;
    return n;
}

/* x, whose dimension k belongs at place[k], in that order. */
static int put_back(struct ap_build *b, int x, int rank, const int64_t *place)
{
    int64_t perm[AP_MAX_RANK];
    bool moved = false;
    for (int k = 0; k < rank; k++) {
        perm[place[k]] = k;
        moved |= place[k] != k;
    }
    return moved ? ap_build_transpose(b, x, perm) : x;
}

static bool in_order(int rank, const int64_t *place)
{
    for (int k = 0; k < rank; k++)
        if (place[k] != k)
            return false;
    return true;
}

/* A product of the backward pass is as precise as that of the forward pass. */
static void keep_precision(struct ap_build *b, int d, const struct ap_attrs *forward)
{
    struct ap_attrs *a;

    if (!forward->algorithm && !forward->operand_precision[0] &&
        !forward->operand_precision[1])
        return;
    a = ap_arena_dup(b->arena, b->nodes[d].attrs, sizeof *a);
    a->algorithm = forward->algorithm;
    memcpy(a->operand_precision, forward->operand_precision, sizeof a->operand_precision);
    b->nodes[d].attrs = a;
}

/* The gradient of side k of a dot. */
static int dot_side(struct grad *g, const struct ap_node *n, int dy, int k)
{
    const struct ap_attrs *a = n->attrs;
    const struct ap_ints *batch[2] = {&a->lhs_batch_dims, &a->rhs_batch_dims};
    const struct ap_ints *contract[2] = {&a->lhs_contracting_dims,
                                         &a->rhs_contracting_dims};
    struct ap_build *b = g->b;
    struct ap_shape mine = *ap_build_shape_of(b, n->in[k]);
    struct ap_shape his = *ap_build_shape_of(b, n->in[1 - k]);
    int64_t my_free[AP_MAX_RANK], his_free[AP_MAX_RANK], in_dy[AP_MAX_RANK],
        dy_batch[AP_MAX_RANK], place[2][AP_MAX_RANK]; /* dy first, or the other side */
    int n_batch = batch[0]->n, n_contract = contract[0]->n, at = n_batch;
    int n_mine = free_dims(&mine, batch[k], contract[k], my_free);
    int n_his = free_dims(&his, batch[1 - k], contract[1 - k], his_free);

    for (int j = 0; j < n_batch; j++)
        place[0][j] = place[1][j] = batch[k]->v[dy_batch[j] = j];
    for (int j = 0; j < n_his; j++)
        in_dy[j] = n_batch + (k ? 0 : n_mine) + j;
    for (int j = 0; j < n_mine; j++)
        place[0][n_batch + j] = place[1][n_batch + n_contract + j] = my_free[j];
    for (int64_t e = 0; e < his.rank; e++) /* his contracted ones, as they stand in him */
        for (int j = 0; j < n_contract; j++)
            if (contract[1 - k]->v[j] == e) {
                place[0][at + n_mine] = place[1][at] = contract[k]->v[j];
                at++;
            }
    int other = ap_build_convert(b, n->in[1 - k], n->shape.dtype), d, first = k;
    if (in_order(mine.rank, place[1 - k]))
        first = 1 - k;
    if (first)
        d = ap_build_dot(b, other, dy,
                         &(struct ap_dot_dims){n_batch, batch[1 - k]->v, dy_batch, n_his,
                                               his_free, in_dy});
    else
        d = ap_build_dot(b, dy, other,
                         &(struct ap_dot_dims){n_batch, dy_batch, batch[1 - k]->v, n_his,
                                               in_dy, his_free});
    keep_precision(b, d, a);
    return ap_build_convert(b, put_back(b, d, mine.rank, place[first]), mine.dtype);
}

int grad_dot(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    for (int k = 0; k < 2; k++)
        if (grad_wants(g, i, k))
            grad_add(g, n.in[k], dot_side(g, &n, dy, k));
    return 0;
}

/* ---- convolution ---- */

/* Dimension from, of size groups * m, is cut; its group index becomes the major part of
 * dimension `to`. */
static int move_groups(struct ap_build *b, int x, int from, int to, int64_t groups)
{
    struct ap_shape s = *ap_build_shape_of(b, x);
    int64_t dims[AP_MAX_RANK + 1] = {0}, perm[AP_MAX_RANK + 1] = {0};
    int rank = 0, n = 0;

    if (groups == 1)
        return x;
    for (int d = 0; d < s.rank; d++) {
        if (d == from)
            dims[rank++] = groups;
        dims[rank++] = d == from ? s.dims[d] / groups : s.dims[d];
    }
    x = ap_build_reshape(b, x, rank, dims);
    for (int d = 0; d < s.rank; d++) {
        if (d == to)
            perm[n++] = from;
        perm[n++] = d + (d >= from);
    }
    x = ap_build_transpose(b, x, perm);
    for (int d = 0; d < s.rank; d++)
        dims[d] = d == from ? s.dims[d] / groups
                  : d == to ? s.dims[d] * groups
                            : s.dims[d];
    return ap_build_reshape(b, x, s.rank, dims);
}

/* Sets pad_hi of a window so that n_out places fit on n_in elements. */
static void fit(struct ap_window_dim *w, int64_t n_in, int64_t n_out)
{
    int64_t base = n_in > 0 ? (n_in - 1) * w->lhs_dilate + 1 : 0;
    int64_t reach = (w->size - 1) * w->rhs_dilate + 1;
    w->pad_hi = (n_out - 1) * w->stride + reach - base - w->pad_lo;
}

static int conv_lhs(struct grad *g, const struct ap_node *n, int dy)
{
    const struct ap_conv_dims *c = &n->attrs->conv;
    struct ap_build *b = g->b;
    struct ap_shape sx = *ap_build_shape_of(b, n->in[0]);
    struct ap_attrs *a = ap_build_attrs(b);
    struct ap_window_dim *w = AP_NEW_N(b->arena, c->n_spatial + 1, struct ap_window_dim);
    int64_t features = n->attrs->feature_group_count;
    int64_t batches = n->attrs->batch_group_count;

    a->conv = (struct ap_conv_dims){.n_spatial = c->n_spatial,
                                    .lhs_batch = c->out_batch,
                                    .lhs_feature = c->out_feature,
                                    .rhs_in = c->rhs_out,
                                    .rhs_out = c->rhs_in,
                                    .out_batch = c->lhs_batch,
                                    .out_feature = c->lhs_feature};
    for (int i = 0; i < c->n_spatial; i++) {
        a->conv.lhs_spatial[i] = c->out_spatial[i];
        a->conv.rhs_spatial[i] = c->rhs_spatial[i];
        a->conv.out_spatial[i] = c->lhs_spatial[i];
        w[i] = grad_transposed_window(&n->attrs->window[i], sx.dims[c->lhs_spatial[i]],
                                      n->shape.dims[c->out_spatial[i]]);
    }
    a->window = w;
    a->n_window = c->n_spatial;
    a->feature_group_count = features > 1 ? features : batches;
    int kernel = ap_build_convert(b, n->in[1], n->shape.dtype);
    kernel = move_groups(b, kernel, c->rhs_out, c->rhs_in, a->feature_group_count);
    int d = ap_build_conv(b, dy, kernel, a);
    keep_precision(b, d, n->attrs);
    d = move_groups(b, d, c->lhs_feature, c->lhs_batch, batches);
    return ap_build_convert(b, d, sx.dtype);
}

static int conv_rhs(struct grad *g, const struct ap_node *n, int dy)
{
    const struct ap_conv_dims *c = &n->attrs->conv;
    struct ap_build *b = g->b;
    struct ap_shape sx = *ap_build_shape_of(b, n->in[0]);
    struct ap_shape sw = *ap_build_shape_of(b, n->in[1]);
    struct ap_attrs *a = ap_build_attrs(b);
    struct ap_window_dim *w = AP_NEW_N(b->arena, c->n_spatial + 1, struct ap_window_dim);
    int64_t turned[AP_MAX_RANK];
    int n_turned = 0;

    a->conv = (struct ap_conv_dims){.n_spatial = c->n_spatial,
                                    .lhs_batch = c->lhs_feature,
                                    .lhs_feature = c->lhs_batch,
                                    .rhs_in = c->out_batch,
                                    .rhs_out = c->out_feature,
                                    .out_batch = c->rhs_in,
                                    .out_feature = c->rhs_out};
    for (int i = 0; i < c->n_spatial; i++) {
        const struct ap_window_dim *f = &n->attrs->window[i];
        a->conv.lhs_spatial[i] = c->lhs_spatial[i];
        a->conv.rhs_spatial[i] = c->out_spatial[i];
        a->conv.out_spatial[i] = c->rhs_spatial[i];
        w[i] = (struct ap_window_dim){.size = n->shape.dims[c->out_spatial[i]],
                                      .stride = f->rhs_dilate,
                                      .pad_lo = f->pad_lo,
                                      .lhs_dilate = f->lhs_dilate,
                                      .rhs_dilate = f->stride};
        fit(&w[i], sx.dims[c->lhs_spatial[i]], f->size);
        if (f->reversal)
            turned[n_turned++] = c->rhs_spatial[i];
    }
    a->window = w;
    a->n_window = c->n_spatial;
    a->feature_group_count = n->attrs->batch_group_count;
    a->batch_group_count = n->attrs->feature_group_count;
    int d = ap_build_conv(b, ap_build_convert(b, n->in[0], n->shape.dtype), dy, a);
    keep_precision(b, d, n->attrs);
    if (n_turned)
        d = ap_build_reverse(b, d, n_turned, turned);
    return ap_build_convert(b, d, sw.dtype);
}

int grad_convolution(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);

    if (ap_shape_elems(&n.shape) == 0) /* windows of size zero are no windows */
        return 0;
    if (grad_wants(g, i, 0))
        grad_add(g, n.in[0], conv_lhs(g, &n, dy));
    if (grad_wants(g, i, 1))
        grad_add(g, n.in[1], conv_rhs(g, &n, dy));
    return 0;
}
