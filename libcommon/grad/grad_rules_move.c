/* Derivatives of operators that move elements: each is linear, its transpose moves back.
 */
#include "grad/grad_impl.h"

#include <string.h>

int grad_broadcast(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    const struct ap_ints *map = &n.attrs->dimensions;
    int64_t gone[AP_MAX_RANK], perm[AP_MAX_RANK];
    int n_gone = 0;
    bool moved = false;

    for (int d = 0; d < n.shape.rank; d++)
        if (!grad_listed(map, d))
            gone[n_gone++] = d;
    if (n_gone)
        dy = ap_build_reduce(g->b, dy, AP_RED_SUM, n_gone, gone);
    for (int k = 0; k < map->n; k++) { /* rank of map[k] among the kept dimensions */
        perm[k] = 0;
        for (int j = 0; j < map->n; j++)
            perm[k] += map->v[j] < map->v[k];
        moved |= perm[k] != k;
    }
    grad_add(g, n.in[0], moved ? ap_build_transpose(g->b, dy, perm) : dy);
    return 0;
}

int grad_reshape(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    struct ap_shape s = *ap_build_shape_of(g->b, n.in[0]);
    grad_add(g, n.in[0], ap_build_reshape(g->b, dy, s.rank, s.dims));
    return 0;
}

int grad_transpose(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    int64_t back[AP_MAX_RANK];
    for (int d = 0; d < n.shape.rank; d++)
        back[n.attrs->dimensions.v[d]] = d;
    grad_add(g, n.in[0], ap_build_transpose(g->b, dy, back));
    return 0;
}

int grad_reverse(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    const struct ap_ints *dims = &n.attrs->dimensions;
    grad_add(g, n.in[0], ap_build_reverse(g->b, dy, dims->n, dims->v));
    return 0;
}

int grad_slice(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    struct ap_shape s = *ap_build_shape_of(g->b, n.in[0]);
    struct ap_pad_dim pad[AP_MAX_RANK];

    for (int d = 0; d < s.rank; d++) {
        const struct ap_slice_dim *c = &n.attrs->slice[d];
        int64_t span = n.shape.dims[d] > 0 ? (n.shape.dims[d] - 1) * c->stride + 1 : 0;
        pad[d] =
            (struct ap_pad_dim){c->start, s.dims[d] - c->start - span, c->stride - 1};
    }
    int zero = ap_build_scalar(g->b, n.shape.dtype, 0);
    grad_add(g, n.in[0], ap_build_pad(g->b, dy, zero, pad));
    return 0;
}

/* The padding's own value: the sum over what is padding in a padded mask. */
static int pad_value(struct grad *g, const struct ap_node *n, int dy)
{
    struct ap_shape s = *ap_build_shape_of(g->b, n->in[0]);
    int one = ap_build_scalar(g->b, n->shape.dtype, 1);
    int mask = ap_build_pad(g->b, grad_zeros(g, &s), one, n->attrs->padding);
    return grad_sum_all(g, grad_mul(g, dy, mask));
}

int grad_pad(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    struct ap_shape s = *ap_build_shape_of(g->b, n.in[0]);
    struct ap_pad_dim grow[AP_MAX_RANK];
    struct ap_slice_dim cut[AP_MAX_RANK];
    bool negative = false;

    if (grad_wants(g, i, 1))
        grad_add(g, n.in[1], pad_value(g, &n, dy));
    if (!grad_wants(g, i, 0))
        return 0;
    for (int d = 0; d < s.rank; d++) {
        struct ap_pad_dim p = n.attrs->padding[d];
        int64_t span = s.dims[d] > 0 ? (s.dims[d] - 1) * (p.interior + 1) + 1 : 0;
        int64_t lo = p.lo > 0 ? p.lo : 0;
        grow[d] = (struct ap_pad_dim){p.lo < 0 ? -p.lo : 0, p.hi < 0 ? -p.hi : 0, 0};
        negative |= p.lo < 0 || p.hi < 0;
        cut[d] = (struct ap_slice_dim){lo, lo + span, p.interior + 1};
    }
    if (negative) /* what was cut off had no effect */
        dy = ap_build_pad(g->b, dy, ap_build_scalar(g->b, s.dtype, 0), grow);
    grad_add(g, n.in[0], ap_build_slice(g->b, dy, cut));
    return 0;
}

int grad_concatenate(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    int64_t along = n.attrs->dimensions.v[0], at = 0;
    struct ap_slice_dim cut[AP_MAX_RANK];

    for (int d = 0; d < n.shape.rank; d++)
        cut[d] = (struct ap_slice_dim){0, n.shape.dims[d], 1};
    for (int k = 0; k < n.n_in; k++) {
        int64_t size = ap_build_shape_of(g->b, n.in[k])->dims[along];
        cut[along].start = at;
        cut[along].limit = at += size;
        if (grad_wants(g, i, k))
            grad_add(g, n.in[k], ap_build_slice(g->b, dy, cut));
    }
    return 0;
}

int grad_tuple_element(struct grad *g, int i, int dy)
{
    struct ap_node n = grad_node(g, i);
    int tuple = n.in[0], n_parts = g->b->nodes[tuple].shape.n_parts;

    if (!g->part[tuple]) {
        g->part[tuple] = AP_NEW_N(g->b->arena, n_parts, int);
        for (int k = 0; k < n_parts; k++)
            g->part[tuple][k] = -1;
    }
    int *sum = &g->part[tuple][n.attrs->index];
    *sum = *sum < 0 ? dy : ap_build_binary(g->b, AP_OP_ADD, *sum, dy);
    return 0;
}
