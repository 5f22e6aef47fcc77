/* One function per family of operators; gen_op picks one at random. */
#include "gen_priv.h"

#include <string.h>

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- moves ---- */

static void broadcast(struct gen *g)
{
    int x = gen_pick(g, gen_any);
    if (x < 0 || g->node[x].shape.rank > 3)
        return;
    struct ap_shape s = g->node[x].shape;
    int64_t dims[6], map[6];
    int rank = s.rank + 1, extra = gen_below(&g->rng, rank), k = 0;
    for (int d = 0; d < rank; d++) {
        dims[d] = d == extra ? 2 + gen_below(&g->rng, 5) : s.dims[k];
        if (d != extra)
            map[k++] = d;
    }
    if (ap_shape_elems(&s) > 600)
        return;
    struct ap_attrs *a = gen_attrs_new(g);
    a->dimensions = gen_ints(g, s.rank, map);
    gen_add1(g, AP_OP_BROADCAST, gen_shape_of(g, s.dtype, rank, dims), a, x, g->bound[x]);
}

static void reshape(struct gen *g)
{
    int x = gen_pick(g, gen_any);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    int64_t dims[AP_MAX_RANK];
    int rank = 0;
    for (int d = 0; d < s.rank; d++) { /* merge some neighbours, split some dimensions */
        int64_t v = s.dims[d];
        if (rank > 0 && gen_below(&g->rng, 3) == 0)
            dims[rank - 1] *= v;
        else if (v % 2 == 0 && v > 2 && rank < 4 && gen_below(&g->rng, 2)) {
            bool first = gen_below(&g->rng, 2);
            dims[rank++] = first ? 2 : v / 2;
            dims[rank++] = first ? v / 2 : 2;
        } else
            dims[rank++] = v;
    }
    if (gen_below(&g->rng, 6) == 0 && rank < 4)
        dims[rank++] = 1;
    gen_add1(g, AP_OP_RESHAPE, gen_shape_of(g, s.dtype, rank, dims), NULL, x,
             g->bound[x]);
}

static void transpose(struct gen *g)
{
    int x = gen_pick(g, gen_any);
    if (x < 0 || g->node[x].shape.rank < 2)
        return;
    struct ap_shape s = g->node[x].shape;
    int64_t perm[AP_MAX_RANK], dims[AP_MAX_RANK];
    for (int d = 0; d < s.rank; d++)
        perm[d] = d;
    for (int d = s.rank - 1; d > 0; d--) {
        int e = gen_below(&g->rng, d + 1);
        int64_t t = perm[d];
        perm[d] = perm[e];
        perm[e] = t;
    }
    for (int d = 0; d < s.rank; d++)
        dims[d] = s.dims[perm[d]];
    struct ap_attrs *a = gen_attrs_new(g);
    a->dimensions = gen_ints(g, s.rank, perm);
    gen_add1(g, AP_OP_TRANSPOSE, gen_shape_of(g, s.dtype, s.rank, dims), a, x,
             g->bound[x]);
}

static void slice(struct gen *g)
{
    int x = gen_pick(g, gen_any);
    if (x < 0 || g->node[x].shape.rank == 0)
        return;
    struct ap_shape s = g->node[x].shape;
    struct ap_slice_dim *sl = AP_NEW_N(g->arena, s.rank, struct ap_slice_dim);
    int64_t dims[AP_MAX_RANK];
    for (int d = 0; d < s.rank; d++) {
        sl[d] = (struct ap_slice_dim){0, s.dims[d], 1};
        if (s.dims[d] > 2 && gen_below(&g->rng, 2)) {
            sl[d].start = gen_below(&g->rng, 2);
            sl[d].limit = s.dims[d] - gen_below(&g->rng, 2);
            sl[d].stride = 1 + gen_below(&g->rng, 2);
        }
        dims[d] = (sl[d].limit - sl[d].start + sl[d].stride - 1) / sl[d].stride;
    }
    struct ap_attrs *a = gen_attrs_new(g);
    a->n_slice = s.rank;
    a->slice = sl;
    gen_add1(g, AP_OP_SLICE, gen_shape_of(g, s.dtype, s.rank, dims), a, x, g->bound[x]);
}

static void pad(struct gen *g)
{
    int x = gen_pick(g, gen_ranked);
    if (x < 0 || ap_shape_elems(&g->node[x].shape) > 600)
        return;
    struct ap_shape s = g->node[x].shape;
    struct ap_pad_dim *p = AP_NEW_N(g->arena, s.rank, struct ap_pad_dim);
    int64_t dims[AP_MAX_RANK];
    for (int d = 0; d < s.rank; d++) {
        if (gen_below(&g->rng, 2)) {
            p[d].lo = gen_below(&g->rng, 3) - (s.dims[d] > 3);
            p[d].hi = gen_below(&g->rng, 3) - (s.dims[d] > 3);
            p[d].interior = gen_below(&g->rng, 4) == 0;
        }
        dims[d] = s.dims[d] + p[d].lo + p[d].hi + (s.dims[d] - 1) * p[d].interior;
        if (dims[d] < 1)
            return;
    }
    struct ap_attrs *a = gen_attrs_new(g);
    a->n_padding = s.rank;
    a->padding = p;
    gen_add2(g, AP_OP_PAD, gen_shape_of(g, s.dtype, s.rank, dims), a, x,
             gen_scalar(g, s.dtype, gen_below(&g->rng, 2)), g->bound[x] + 1);
}

static void concatenate(struct gen *g)
{
    int x = gen_pick(g, gen_ranked);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    int y = gen_pick_like(g, x), d = gen_below(&g->rng, s.rank);
    int64_t dims[AP_MAX_RANK];
    memcpy(dims, s.dims, sizeof *dims * (size_t)s.rank);
    dims[d] *= 2;
    if (ap_shape_elems(&s) > 600)
        return;
    struct ap_attrs *a = gen_attrs_new(g);
    a->dimensions = gen_ints(g, 1, (int64_t[]){d, 0});
    gen_add2(g, AP_OP_CONCATENATE, gen_shape_of(g, s.dtype, s.rank, dims), a, x, y,
             g->bound[x] + g->bound[y]);
}

static void reverse(struct gen *g)
{
    int x = gen_pick(g, gen_ranked);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    struct ap_attrs *a = gen_attrs_new(g);
    a->dimensions = gen_ints(g, 1, (int64_t[]){gen_below(&g->rng, s.rank), 0});
    gen_add1(g, AP_OP_REVERSE, s, a, x, g->bound[x]);
}

static void iota_or_constant(struct gen *g)
{
    int x = gen_pick(g, gen_ranked);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    struct ap_attrs *a = gen_attrs_new(g);
    int c;
    if (gen_below(&g->rng, 2)) {
        a->iota_dimension = gen_below(&g->rng, s.rank);
        c = gen_add(g, AP_OP_IOTA, s, a, 0, (int[]){0},
                    (double)s.dims[a->iota_dimension]);
    } else { /* a dense literal of bytes 0 and 1: small integers only in these types */
        if (s.dtype != AP_S32 && s.dtype != AP_F32)
            return;
        int64_t n = ap_shape_elems(&s);
        void *data = ap_arena_alloc(g->arena, (size_t)(4 * n + 4));
        for (int64_t i = 0; i < n; i++) {
            double v = gen_value(g->rng.state, 99, i, AP_F32);
            if (s.dtype == AP_F32)
                ((float *)data)[i] = (float)v;
            else
                ((int32_t *)data)[i] = (int32_t)v;
        }
        a->literal = (struct ap_literal){.data = data};
        c = gen_add(g, AP_OP_CONSTANT, s, a, 0, (int[]){0}, 2);
    }
    gen_settle(g, gen_add2(g, AP_OP_ADD, s, NULL, x, c, g->bound[x] + g->bound[c]));
}

/* ---- contractions ---- */

/* A second operand for a contraction of x: new values from a broadcast and an iota. */
static int operand_of(struct gen *g, enum ap_dtype t, int rank, const int64_t *dims)
{
    struct ap_shape s = gen_shape_of(g, t, rank, dims);
    for (int tries = 0; tries < 40; tries++) {
        int id = gen_below(&g->rng, g->n);
        if (g->in_pool[id] && ap_shape_equal(&g->node[id].shape, &s))
            return gen_settle(g, id);
    }
    struct ap_attrs *a = gen_attrs_new(g);
    a->iota_dimension = gen_below(&g->rng, rank);
    int i = gen_add(g, AP_OP_IOTA, s, a, 0, (int[]){0}, (double)dims[a->iota_dimension]);
    g->in_pool[i] = false;
    return gen_tame(g, i);
}

static void dot(struct gen *g)
{
    int x = gen_pick(g, gen_is_f_ranked);
    if (x < 0)
        return;
    x = gen_tame(g, x);
    struct ap_shape s = g->node[x].shape;
    int n_batch = s.rank > 1 && gen_below(&g->rng, 2) ? 1 : 0;
    int k = n_batch + gen_below(&g->rng, s.rank - n_batch);
    int64_t out[8], rhs[4], free_dim = 2 + gen_below(&g->rng, 7);
    int n = 0;
    if (s.dims[k] > 24 || ap_shape_elems(&s) > 1000)
        return;
    if (n_batch) {
        rhs[n] = s.dims[0];
        n++;
    }
    bool k_first = gen_below(&g->rng, 2);
    int rk = n_batch + !k_first;
    rhs[n_batch + !k_first] = s.dims[k];
    rhs[n_batch + k_first] = free_dim;
    int y = gen_tame(g, operand_of(g, s.dtype, n_batch + 2, rhs));
    struct ap_attrs *a = gen_attrs_new(g);
    a->lhs_contracting_dims = gen_ints(g, 1, (int64_t[]){k, 0});
    a->rhs_contracting_dims = gen_ints(g, 1, (int64_t[]){rk, 0});
    if (n_batch) {
        a->lhs_batch_dims = gen_ints(g, 1, (int64_t[]){0, 0});
        a->rhs_batch_dims = gen_ints(g, 1, (int64_t[]){0, 0});
    }
    n = 0;
    for (int d = 0; d < s.rank; d++)
        if (d != k)
            out[n++] = s.dims[d];
    out[n++] = free_dim;
    gen_settle(g, gen_add2(g, AP_OP_DOT, gen_shape_of(g, s.dtype, n, out), a, x, y,
                           (double)s.dims[k] * SMALL * SMALL));
}

static void convolution(struct gen *g)
{
    int64_t groups = gen_below(&g->rng, 3) == 0 ? 2 : 1;
    int64_t batch_groups = groups == 1 && gen_below(&g->rng, 4) == 0 ? 2 : 1;
    int64_t b = 2 + 2 * gen_below(&g->rng, 3), ci = 2 * groups,
            w = 4 + gen_below(&g->rng, 4);
    int64_t co = 2 * groups * batch_groups, kw = 1 + gen_below(&g->rng, 3);
    struct ap_window_dim *win = AP_NEW(g->arena, struct ap_window_dim);
    *win = (struct ap_window_dim){.size = kw,
                                  .stride = 1 + gen_below(&g->rng, 2),
                                  .pad_lo = gen_below(&g->rng, 2),
                                  .pad_hi = gen_below(&g->rng, 3) - 1,
                                  .lhs_dilate = 1 + gen_below(&g->rng, 2),
                                  .rhs_dilate = 1 + gen_below(&g->rng, 2),
                                  .reversal = gen_below(&g->rng, 2)};
    int64_t lhs_len = (w - 1) * win->lhs_dilate + 1 + win->pad_lo + win->pad_hi;
    int64_t rhs_len = (kw - 1) * win->rhs_dilate + 1;
    if (lhs_len < rhs_len)
        return;
    struct ap_attrs *a = gen_attrs_new(g);
    a->n_window = 1;
    a->window = win;
    a->feature_group_count = groups;
    a->batch_group_count = batch_groups;
    a->conv = (struct ap_conv_dims){.n_spatial = 1};
    int order = gen_below(&g->rng, 3); /* b0f_0io->b0f, 0bf_i0o->bf0, f0b_oi0->fb0 */
    static const int lhs[3][3] = {{0, 2, 1}, {1, 2, 0}, {2, 0, 1}}; /* b, f, spatial */
    static const int rhs[3][3] = {{1, 2, 0}, {0, 2, 1}, {1, 0, 2}}; /* i, o, spatial */
    static const int res[3][3] = {{0, 2, 1}, {0, 1, 2}, {1, 0, 2}};
    int64_t ld[3], rd[3], od[3];
    a->conv.lhs_batch = lhs[order][0];
    a->conv.lhs_feature = lhs[order][1];
    a->conv.lhs_spatial[0] = lhs[order][2];
    a->conv.rhs_in = rhs[order][0];
    a->conv.rhs_out = rhs[order][1];
    a->conv.rhs_spatial[0] = rhs[order][2];
    a->conv.out_batch = res[order][0];
    a->conv.out_feature = res[order][1];
    a->conv.out_spatial[0] = res[order][2];
    ld[lhs[order][0]] = b;
    ld[lhs[order][1]] = ci;
    ld[lhs[order][2]] = w;
    rd[rhs[order][0]] = ci / groups;
    rd[rhs[order][1]] = co;
    rd[rhs[order][2]] = kw;
    od[res[order][0]] = b / batch_groups;
    od[res[order][1]] = co;
    od[res[order][2]] = (lhs_len - rhs_len) / win->stride + 1;
    int x = gen_tame(g, operand_of(g, AP_F32, 3, ld));
    int y = gen_tame(g, operand_of(g, AP_F32, 3, rd));
    gen_settle(g, gen_add2(g, AP_OP_CONVOLUTION, gen_shape_of(g, AP_F32, 3, od), a, x, y,
                           (double)(ci * kw) * SMALL * SMALL));
}

/* ---- reductions and windows ---- */

static void reduce(struct gen *g)
{
    static const enum ap_red reds[] = {AP_RED_SUM, AP_RED_SUM, AP_RED_SUM, AP_RED_MAX,
                                       AP_RED_MIN};
    int x = gen_pick(g, gen_ranked);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    int64_t dims[AP_MAX_RANK], red_dims[AP_MAX_RANK], elems = 1;
    int rank = 0, n_red = 0;
    for (int d = 0; d < s.rank; d++)
        if (n_red == 0 ? d == s.rank - 1 || gen_below(&g->rng, 2)
                       : gen_below(&g->rng, 2)) {
            red_dims[n_red++] = d;
            elems *= s.dims[d];
        } else
            dims[rank++] = s.dims[d];
    enum ap_red red = reds[gen_below(&g->rng, 5)];
    if (red == AP_RED_SUM && g->bound[x] * (double)elems > gen_max_exact(s.dtype))
        x = gen_tame(g, x);
    if (red == AP_RED_SUM && g->bound[x] * (double)elems > gen_max_exact(s.dtype))
        return;
    struct ap_attrs *a = gen_attrs_new(g);
    a->dimensions = gen_ints(g, n_red, red_dims);
    a->to_apply = gen_reducer(g, red, s.dtype);
    int init = gen_scalar(g, s.dtype, gen_below(&g->rng, 3) == 0);
    double bound = red == AP_RED_SUM ? g->bound[x] * (double)elems + 1 : g->bound[x] + 1;
    gen_settle(g, gen_add2(g, AP_OP_REDUCE, gen_shape_of(g, s.dtype, rank, dims), a, x,
                           init, bound));
}

/* and, or over pred; product over values in {-1, 0, 1}. */
static void reduce_logic(struct gen *g)
{
    int x = gen_pick(g, gen_is_signed);
    if (x < 0 || g->node[x].shape.rank == 0)
        return;
    struct ap_shape s = g->node[x].shape;
    int64_t d = gen_below(&g->rng, s.rank), dims[AP_MAX_RANK];
    int rank = 0, which = gen_below(&g->rng, 3);
    for (int e = 0; e < s.rank; e++)
        if (e != d)
            dims[rank++] = s.dims[e];
    struct ap_attrs *a = gen_attrs_new(g);
    a->dimensions = gen_ints(g, 1, (int64_t[]){d, 0});
    if (which == 2) {
        x = gen_add1(g, AP_OP_SIGN, s, NULL, x, 1);
    } else {
        struct ap_attrs *ne = gen_attrs_new(g);
        ne->direction = AP_NE;
        x = gen_add2(g, AP_OP_COMPARE, gen_shape_of(g, AP_PRED, s.rank, s.dims), ne, x,
                     gen_pick_like(g, x), 1);
    }
    enum ap_dtype t = g->node[x].shape.dtype;
    a->to_apply = gen_reducer(g,
                              which == 0   ? AP_RED_AND
                              : which == 1 ? AP_RED_OR
                                           : AP_RED_PROD,
                              t);
    gen_add2(g, AP_OP_REDUCE, gen_shape_of(g, t, rank, dims), a, x,
             gen_scalar(g, t, which != 1), 1);
}

static int get_part(struct gen *g, int tuple, int index, double bound)
{
    struct ap_attrs *a = gen_attrs_new(g);
    a->index = index;
    return gen_add1(g, AP_OP_GET_TUPLE_ELEMENT, g->node[tuple].shape.parts[index], a,
                    tuple, bound);
}

static struct ap_shape tuple_of(struct gen *g, struct ap_shape a, struct ap_shape b)
{
    struct ap_shape parts[2] = {a, b};
    return (struct ap_shape){.dtype = AP_TUPLE,
                             .n_parts = 2,
                             .parts = ap_arena_dup(g->arena, parts, sizeof parts)};
}

static void argmax(struct gen *g)
{
    int x = gen_pick(g, gen_ranked);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape, i32 = gen_shape_of(g, AP_S32, s.rank, s.dims);
    int64_t d = gen_below(&g->rng, s.rank), dims[AP_MAX_RANK];
    int rank = 0;
    for (int e = 0; e < s.rank; e++)
        if (e != d)
            dims[rank++] = s.dims[e];
    struct ap_attrs *ia = gen_attrs_new(g), *a = gen_attrs_new(g);
    ia->iota_dimension = d;
    int idx = gen_add(g, AP_OP_IOTA, i32, ia, 0, (int[]){0}, (double)s.dims[d]);
    a->dimensions = gen_ints(g, 1, &d);
    a->to_apply = gen_custom_reducer(g, s.dtype, true);
    double low = s.dtype >= AP_U8 && s.dtype <= AP_U64 ? 0 : -100;
    int in[5] = {x, idx, gen_scalar(g, s.dtype, low), gen_scalar(g, AP_S32, 0), 0};
    int t = gen_add(g, AP_OP_REDUCE,
                    tuple_of(g, gen_shape_of(g, s.dtype, rank, dims),
                             gen_shape_of(g, AP_S32, rank, dims)),
                    a, 4, in, 0);
    get_part(g, t, 0, g->bound[x] > 100 ? g->bound[x] : 100);
    get_part(g, t, 1, (double)s.dims[d]);
}

static void sort_or_topk(struct gen *g)
{
    int x = gen_pick(g, gen_is_f_ranked);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    struct ap_attrs *a = gen_attrs_new(g);
    if (gen_below(&g->rng, 3) == 0) {
        a->dimensions = gen_ints(g, 1, (int64_t[]){gen_below(&g->rng, s.rank), 0});
        a->to_apply = gen_custom_reducer(g, s.dtype, false);
        a->is_stable = true;
        gen_add1(g, AP_OP_SORT, s, a, x, g->bound[x]);
        return;
    }
    int64_t dims[AP_MAX_RANK], last = s.dims[s.rank - 1];
    memcpy(dims, s.dims, sizeof *dims * (size_t)s.rank);
    a->k = dims[s.rank - 1] = min64(last, 1 + gen_below(&g->rng, 3));
    a->largest = true;
    int t = gen_add1(g, AP_OP_TOPK,
                     tuple_of(g, gen_shape_of(g, s.dtype, s.rank, dims),
                              gen_shape_of(g, AP_S32, s.rank, dims)),
                     a, x, 0);
    get_part(g, t, 0, g->bound[x]);
    get_part(g, t, 1, (double)last);
}

static void window(struct gen *g)
{
    int x = gen_pick(g, gen_is_f_ranked);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    struct ap_window_dim *win = AP_NEW_N(g->arena, s.rank, struct ap_window_dim);
    int64_t dims[AP_MAX_RANK], elems = 1;
    bool scatter = gen_below(&g->rng, 2), sum = gen_below(&g->rng, 2);
    int touched = gen_below(&g->rng, s.rank);
    for (int d = 0; d < s.rank; d++) {
        win[d] = (struct ap_window_dim){
            .size = 1, .stride = 1, .lhs_dilate = 1, .rhs_dilate = 1};
        if (d == touched && s.dims[d] >= 3) {
            win[d].size = 2 + gen_below(&g->rng, 2);
            win[d].stride = 1 + gen_below(&g->rng, 2);
            if (!scatter) {
                win[d].pad_lo = gen_below(&g->rng, 2);
                win[d].pad_hi = gen_below(&g->rng, 2);
            }
        }
        elems *= win[d].size;
        dims[d] =
            (s.dims[d] + win[d].pad_lo + win[d].pad_hi - win[d].size) / win[d].stride + 1;
    }
    struct ap_attrs *a = gen_attrs_new(g);
    a->n_window = s.rank;
    a->window = win;
    x = gen_tame(g, x);
    struct ap_shape out = gen_shape_of(g, s.dtype, s.rank, dims);
    if (!scatter) {
        a->to_apply = gen_reducer(g, sum ? AP_RED_SUM : AP_RED_MAX, s.dtype);
        gen_add2(g, AP_OP_REDUCE_WINDOW, out, a, x,
                 gen_scalar(g, s.dtype, sum ? 0 : -100),
                 sum ? SMALL * (double)elems : 100);
        return;
    }
    int src = gen_tame(g, operand_of(g, s.dtype, s.rank, dims));
    a->select = gen_custom_reducer(g, s.dtype, false);
    a->scatter = gen_reducer(g, AP_RED_SUM, s.dtype);
    int in[4] = {x, src, gen_scalar(g, s.dtype, 0), 0};
    gen_add(g, AP_OP_SELECT_AND_SCATTER, s, a, 3, in, SMALL * (double)elems);
}

/* ---- indexing ---- */

/* s32 indices of the given dims in [0, n + 1): one may be out of range on purpose. */
static int indices(struct gen *g, int rank, const int64_t *dims, int64_t n)
{
    struct ap_shape s = gen_shape_of(g, AP_S32, rank, dims);
    int x = gen_tame(g, operand_of(g, AP_S32, rank, dims));
    struct ap_attrs *a = gen_attrs_new(g);
    a->iota_dimension = 0;
    int i = gen_add(g, AP_OP_IOTA, s, a, 0, (int[]){0}, (double)dims[0]);
    x = gen_add1(g, AP_OP_ABS, s, NULL, x, SMALL);
    x = gen_add2(g, AP_OP_ADD, s, NULL, x, i, SMALL + (double)dims[0]);
    return gen_add2(g, AP_OP_REMAINDER, s, NULL, x, gen_filled(g, (double)(n + 1), &s),
                    (double)n);
}

static void gather(struct gen *g)
{
    int x = gen_pick(g, gen_ranked);
    if (x < 0 || g->node[x].shape.rank > 3)
        return;
    struct ap_shape s = g->node[x].shape;
    bool batching = s.rank > 1 && gen_below(&g->rng, 3) == 0;
    int64_t idx_dims[3] = {batching ? s.dims[0] : 2 + gen_below(&g->rng, 7), 1, 0};
    int64_t dims[AP_MAX_RANK], sizes[AP_MAX_RANK], offset[AP_MAX_RANK];
    int n = 0, n_off = 0, indexed = batching ? 1 : 0;
    dims[n++] = idx_dims[0];
    for (int d = 0; d < s.rank; d++) {
        bool gone = d == indexed || (batching && d == 0);
        sizes[d] = gone ? 1 : s.dims[d];
        if (!gone) {
            offset[n_off++] = n;
            dims[n++] = s.dims[d];
        }
    }
    struct ap_attrs *a = gen_attrs_new(g);
    a->offset_dims = gen_ints(g, n_off, offset);
    a->collapsed_slice_dims = gen_ints(g, 1, (int64_t[]){indexed, 0});
    a->start_index_map = a->collapsed_slice_dims;
    a->slice_sizes = gen_ints(g, s.rank, sizes);
    a->index_vector_dim = 1;
    if (batching) {
        a->operand_batching_dims = gen_ints(g, 1, (int64_t[]){0, 0});
        a->start_indices_batching_dims = gen_ints(g, 1, (int64_t[]){0, 0});
    }
    int idx = indices(g, 2, idx_dims, s.dims[indexed]);
    gen_add2(g, AP_OP_GATHER, gen_shape_of(g, s.dtype, n, dims), a, x, idx, g->bound[x]);
}

static void scatter(struct gen *g)
{
    static const enum ap_red reds[] = {AP_RED_SUM, AP_RED_SUM, AP_RED_MAX, AP_RED_MIN};
    int x = gen_pick(g, gen_is_f_ranked);
    if (x < 0 || g->node[x].shape.rank > 3)
        return;
    struct ap_shape s = g->node[x].shape;
    bool batching = s.rank > 1 && gen_below(&g->rng, 3) == 0;
    int64_t idx_dims[3] = {batching ? s.dims[0] : 2 + gen_below(&g->rng, 7), 1, 0};
    int64_t upd[AP_MAX_RANK], win[AP_MAX_RANK];
    int n = 0, n_win = 0, indexed = batching ? 1 : 0;
    upd[n++] = idx_dims[0];
    for (int d = 0; d < s.rank; d++)
        if (d != indexed && !(batching && d == 0)) {
            win[n_win++] = n;
            upd[n++] = s.dims[d];
        }
    struct ap_attrs *a = gen_attrs_new(g);
    a->update_window_dims = gen_ints(g, n_win, win);
    a->inserted_window_dims = gen_ints(g, 1, (int64_t[]){indexed, 0});
    a->scatter_dims_to_operand_dims = a->inserted_window_dims;
    a->index_vector_dim = 1;
    if (batching) {
        a->input_batching_dims = gen_ints(g, 1, (int64_t[]){0, 0});
        a->scatter_indices_batching_dims = gen_ints(g, 1, (int64_t[]){0, 0});
    }
    enum ap_red red = reds[gen_below(&g->rng, 4)];
    a->to_apply = gen_reducer(g, red, s.dtype);
    x = gen_tame(g, x);
    if (red == AP_RED_SUM && gen_below(&g->rng, 2))
        x = gen_filled(g, 0, &s);
    int in[4] = {x, indices(g, 2, idx_dims, s.dims[indexed]),
                 gen_tame(g, operand_of(g, s.dtype, n, upd)), 0};
    gen_settle(g,
               gen_add(g, AP_OP_SCATTER, s, a, 3, in, SMALL * (double)(1 + idx_dims[0])));
}

static void dynamic(struct gen *g)
{
    int x = gen_pick(g, gen_ranked);
    if (x < 0)
        return;
    struct ap_shape s = g->node[x].shape;
    int64_t dims[AP_MAX_RANK];
    int in[AP_MAX_RANK + 3], cut = gen_below(&g->rng, s.rank), n = 1;
    bool update = gen_below(&g->rng, 2);
    memcpy(dims, s.dims, sizeof *dims * (size_t)s.rank);
    dims[cut] = 1 + dims[cut] / 2;
    in[0] = x;
    if (update)
        in[n++] = operand_of(g, s.dtype, s.rank, dims);
    for (int d = 0; d < s.rank; d++)
        in[n++] = gen_scalar(g, AP_S32, d == cut ? gen_below(&g->rng, 4) : 0);
    in[n] = 0;
    struct ap_attrs *a = gen_attrs_new(g);
    if (update) {
        double bound = g->bound[x] > g->bound[in[1]] ? g->bound[x] : g->bound[in[1]];
        gen_add(g, AP_OP_DYNAMIC_UPDATE_SLICE, s, a, n, in, bound);
        return;
    }
    a->dynamic_slice_sizes = gen_ints(g, s.rank, dims);
    gen_add(g, AP_OP_DYNAMIC_SLICE, gen_shape_of(g, s.dtype, s.rank, dims), a, n, in,
            g->bound[x]);
}

void gen_op(struct gen *g)
{
    static void (*const families[])(struct gen *) = {gen_unary,
                                                     gen_unary,
                                                     gen_binary,
                                                     gen_binary,
                                                     gen_binary,
                                                     gen_inexact_binary,
                                                     gen_logic,
                                                     gen_convert,
                                                     broadcast,
                                                     reshape,
                                                     reshape,
                                                     transpose,
                                                     slice,
                                                     pad,
                                                     concatenate,
                                                     reverse,
                                                     iota_or_constant,
                                                     dot,
                                                     dot,
                                                     dot,
                                                     convolution,
                                                     reduce,
                                                     reduce,
                                                     reduce_logic,
                                                     argmax,
                                                     sort_or_topk,
                                                     window,
                                                     gather,
                                                     scatter,
                                                     dynamic,
                                                     gen_integer_ops,
                                                     gen_bits,
                                                     gen_spectrum,
                                                     gen_matrices};
    families[gen_below(&g->rng, (int)(sizeof families / sizeof *families))](g);
}
