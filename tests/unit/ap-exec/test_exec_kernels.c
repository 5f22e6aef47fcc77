/*
 * Kernels that contract, window and move, against their definitions element by element,
 * on random shapes and attributes and small integers.
 */
#include "exec_eval.h"
#include "tap.h"

#include <math.h>

#define CASES 150

/* Runs a case and compares; prints and returns 1 when it fails. Eight parameters: the
 * case, its tensors and what is expected. */
static int fails(const char *what, int seed, enum ap_op op, const struct ap_attrs *attrs,
                 int n_in, struct tensor *const *in, struct tensor *out,
                 const double *want)
{
    struct ap_err err = {{0}};
    int bad = 0;
    if (eval_node(op, attrs, n_in, in, 1, &out, eval_reducers, 2, &err)) {
        printf("# %s, seed %d: %s\n", what, seed, err.msg);
        bad = 1;
    } else {
        const int64_t at = tensor_differs(out, want);
        if (at >= 0) {
            printf("# %s, seed %d: element %lld is %g, not %g\n", what, seed,
                   (long long)at, out->v[at], want[at]);
            bad = 1;
        }
    }
    for (int i = 0; i < n_in; i++)
        free(in[i]->v);
    free(out->v);
    return bad;
}

static void shuffle(uint64_t *s, int *p, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = i;
    for (int i = n - 1; i > 0; i--) {
        const int j = (int)eval_between(s, 0, i), t = p[i];
        p[i] = p[j], p[j] = t;
    }
}

/* ---- dot ---- */

static int dot_case(int seed, enum ap_dtype dtype)
{
    uint64_t s = (uint64_t)seed * 77 + dtype;
    const int nb = (int)eval_between(&s, 0, 2), nc = (int)eval_between(&s, 0, 2);
    const int nl = (int)eval_between(&s, 0, 2), nr = (int)eval_between(&s, 0, 2);
    const int lrank = nb + nc + nl, rrank = nb + nc + nr;
    int lp[AP_MAX_RANK], rp[AP_MAX_RANK];
    int64_t lb[4], rb[4], lc[4], rc[4], ld[8], rd[8], od[8];
    struct tensor l, r, o;
    shuffle(&s, lp, lrank);
    shuffle(&s, rp, rrank);
    int no = 0;
    for (int i = 0; i < nb; i++) {
        lb[i] = lp[i], rb[i] = rp[i];
        od[no++] = ld[lp[i]] = rd[rp[i]] = eval_between(&s, 1, 3);
    }
    for (int i = 0; i < nc; i++) {
        lc[i] = lp[nb + i], rc[i] = rp[nb + i];
        ld[lc[i]] = rd[rc[i]] = eval_between(&s, 1, 5);
    }
    for (int i = nb + nc; i < lrank; i++)
        ld[lp[i]] = eval_between(&s, 1, 5);
    for (int i = nb + nc; i < rrank; i++)
        rd[rp[i]] = eval_between(&s, 1, 5);
    int lfree[4], rfree[4], nlf = 0, nrf = 0;
    for (int d = 0; d < lrank; d++)
        for (int i = nb + nc; i < lrank; i++)
            if (lp[i] == d)
                od[no++] = ld[d], lfree[nlf++] = d;
    for (int d = 0; d < rrank; d++)
        for (int i = nb + nc; i < rrank; i++)
            if (rp[i] == d)
                od[no++] = rd[d], rfree[nrf++] = d;
    tensor_init(&l, dtype, lrank, ld);
    tensor_init(&r, dtype, rrank, rd);
    tensor_init(&o, dtype, no, od);
    tensor_fill(&l, &s, dtype == AP_PRED ? 0 : -2, dtype == AP_PRED ? 1 : 2);
    tensor_fill(&r, &s, dtype == AP_PRED ? 0 : -2, dtype == AP_PRED ? 1 : 2);
    double *want = calloc((size_t)o.n + 1, sizeof *want);
    for (int64_t i = 0; i < l.n; i++)
        for (int64_t j = 0; j < r.n; j++) {
            int64_t li[8], ri[8], oi[8];
            tensor_index(&l, i, li);
            tensor_index(&r, j, ri);
            bool meet = true;
            for (int k = 0; k < nb; k++)
                meet &= li[lb[k]] == ri[rb[k]], oi[k] = li[lb[k]];
            for (int k = 0; k < nc; k++)
                meet &= li[lc[k]] == ri[rc[k]];
            for (int k = 0; k < nlf; k++)
                oi[nb + k] = li[lfree[k]];
            for (int k = 0; k < nrf; k++)
                oi[nb + nlf + k] = ri[rfree[k]];
            if (meet)
                want[tensor_at(&o, oi)] += l.v[i] * r.v[j];
        }
    for (int64_t i = 0; dtype == AP_PRED && i < o.n; i++)
        want[i] = want[i] != 0;
    struct ap_attrs a = ap_attrs_default;
    a.lhs_batch_dims = eval_ints(nb, lb);
    a.rhs_batch_dims = eval_ints(nb, rb);
    a.lhs_contracting_dims = eval_ints(nc, lc);
    a.rhs_contracting_dims = eval_ints(nc, rc);
    struct tensor *in[] = {&l, &r};
    const int bad = fails("dot", seed, AP_OP_DOT, &a, 2, in, &o, want);
    free(want);
    return bad;
}

/* ---- convolution ---- */

struct conv_case {
    int ns;
    struct ap_window_dim w[3];
    struct ap_conv_dims c;
    int64_t in[3], res[3], n, f, ci, co, feature_groups, batch_groups;
};

static int64_t window_out(const struct ap_window_dim *w, int64_t n)
{
    const int64_t dilated = n ? (n - 1) * w->lhs_dilate + 1 : 0;
    const int64_t span = (w->size - 1) * w->rhs_dilate + 1;
    const int64_t room = dilated + w->pad_lo + w->pad_hi - span;
    return room < 0 ? 0 : room / w->stride + 1;
}

static void conv_want(const struct conv_case *k, const struct tensor *l,
                      const struct tensor *r, const struct tensor *o, double *want)
{
    for (int64_t i = 0; i < o->n; i++) {
        int64_t oi[5], li[5], ri[5];
        tensor_index(o, i, oi);
        for (int64_t j = 0; j < r->n; j++) {
            tensor_index(r, j, ri);
            const int64_t of = oi[k->c.out_feature];
            if (ri[k->c.rhs_out] != of)
                continue;
            const int64_t groups =
                k->feature_groups > 1 ? k->feature_groups : k->batch_groups;
            const int64_t g = of / (k->co / groups);
            li[k->c.lhs_feature] =
                ri[k->c.rhs_in] + (k->feature_groups > 1 ? g * k->ci : 0);
            const int64_t b = oi[k->c.out_batch];
            li[k->c.lhs_batch] = k->batch_groups > 1 ? g * (k->n / groups) + b : b;
            bool inside = true;
            for (int d = 0; d < k->ns; d++) {
                const struct ap_window_dim *w = &k->w[d];
                int64_t q = ri[k->c.rhs_spatial[d]];
                q = w->reversal ? w->size - 1 - q : q;
                const int64_t p =
                    oi[k->c.out_spatial[d]] * w->stride + q * w->rhs_dilate - w->pad_lo;
                inside &=
                    p >= 0 && p % w->lhs_dilate == 0 && p / w->lhs_dilate < k->in[d];
                li[k->c.lhs_spatial[d]] = p / w->lhs_dilate;
            }
            if (inside)
                want[i] += l->v[tensor_at(l, li)] * r->v[j];
        }
    }
}

static void random_window(uint64_t *s, struct ap_window_dim *w)
{
    w->size = eval_between(s, 1, 3);
    w->stride = eval_between(s, 1, 3);
    w->pad_lo = eval_between(s, -1, 2);
    w->pad_hi = eval_between(s, -1, 2);
    w->lhs_dilate = eval_between(s, 1, 3) == 3 ? 2 : 1;
    w->rhs_dilate = eval_between(s, 1, 3) == 3 ? 2 : 1;
    w->reversal = eval_between(s, 0, 3) == 0;
}

static int conv_case(int seed, enum ap_dtype dtype)
{
    uint64_t s = (uint64_t)seed * 131 + dtype;
    struct conv_case k = {
        .ns = (int)eval_between(&s, 1, 2), .feature_groups = 1, .batch_groups = 1};
    int lp[5], rp[5], op[5];
    int64_t ld[5], rd[5], od[5];
    const int64_t groups = eval_between(&s, 1, 2), kind = eval_between(&s, 0, 2);
    if (kind == 1)
        k.feature_groups = groups;
    if (kind == 2)
        k.batch_groups = groups;
    k.n = eval_between(&s, 1, 2) * k.batch_groups;
    k.ci = eval_between(&s, 1, 3);
    k.f = k.ci * k.feature_groups;
    k.co = eval_between(&s, 1, 3) * groups;
    for (int d = 0; d < k.ns; d++) {
        do {
            random_window(&s, &k.w[d]);
            k.in[d] = eval_between(&s, 1, 6);
            k.res[d] = window_out(&k.w[d], k.in[d]);
        } while (k.res[d] < 1);
    }
    shuffle(&s, lp, k.ns + 2);
    shuffle(&s, rp, k.ns + 2);
    shuffle(&s, op, k.ns + 2);
    k.c.n_spatial = k.ns;
    ld[k.c.lhs_batch = lp[0]] = k.n;
    ld[k.c.lhs_feature = lp[1]] = k.f;
    rd[k.c.rhs_in = rp[0]] = k.ci;
    rd[k.c.rhs_out = rp[1]] = k.co;
    od[k.c.out_batch = op[0]] = k.n / k.batch_groups;
    od[k.c.out_feature = op[1]] = k.co;
    for (int d = 0; d < k.ns; d++) {
        ld[k.c.lhs_spatial[d] = lp[2 + d]] = k.in[d];
        rd[k.c.rhs_spatial[d] = rp[2 + d]] = k.w[d].size;
        od[k.c.out_spatial[d] = op[2 + d]] = k.res[d];
    }
    struct tensor l, r, o;
    tensor_init(&l, dtype, k.ns + 2, ld);
    tensor_init(&r, dtype, k.ns + 2, rd);
    tensor_init(&o, dtype, k.ns + 2, od);
    tensor_fill(&l, &s, -2, 2);
    tensor_fill(&r, &s, -2, 2);
    double *want = calloc((size_t)o.n + 1, sizeof *want);
    conv_want(&k, &l, &r, &o, want);
    struct ap_attrs a = ap_attrs_default;
    a.n_window = k.ns;
    a.window = k.w;
    a.conv = k.c;
    a.feature_group_count = k.feature_groups;
    a.batch_group_count = k.batch_groups;
    struct tensor *in[] = {&l, &r};
    const int bad = fails("convolution", seed, AP_OP_CONVOLUTION, &a, 2, in, &o, want);
    free(want);
    return bad;
}

/* ---- reduce, reduce-window, select-and-scatter ---- */

static double combine(int red, double a, double b)
{
    return red == 0 ? a + b : a > b ? a : b;
}

static int reduce_case(int seed, enum ap_dtype dtype)
{
    uint64_t s = (uint64_t)seed * 17 + dtype;
    const int rank = (int)eval_between(&s, 0, 4), red = (int)eval_between(&s, 0, 1);
    int64_t dims[4], od[4], list[4];
    int kept[4], no = 0, nr = 0;
    struct tensor t, init, o;
    for (int d = 0; d < rank; d++) {
        dims[d] = eval_between(&s, 0, 9) == 0 ? 40 : eval_between(&s, 1, 4);
        if (eval_between(&s, 0, 1))
            list[nr++] = d;
        else
            kept[no] = d, od[no++] = dims[d];
    }
    tensor_init(&t, dtype, rank, dims);
    tensor_init(&init, dtype, 0, dims);
    tensor_init(&o, dtype, no, od);
    tensor_fill(&t, &s, dtype == AP_PRED ? 0 : -1, 1);
    double *want = calloc((size_t)o.n + 1, sizeof *want);
    init.v[0] = dtype == AP_PRED ? 0 : -1;
    for (int64_t i = 0; i < o.n; i++)
        want[i] = init.v[0];
    for (int64_t i = 0; i < t.n; i++) {
        int64_t ti[4], oi[4];
        tensor_index(&t, i, ti);
        for (int k = 0; k < no; k++)
            oi[k] = ti[kept[k]];
        double *w = &want[tensor_at(&o, oi)];
        *w = combine(red, *w, t.v[i]);
    }
    for (int64_t i = 0; dtype == AP_PRED && i < o.n; i++)
        want[i] = want[i] != 0;
    struct ap_attrs a = ap_attrs_default;
    a.dimensions = eval_ints(nr, list);
    a.to_apply = red;
    struct tensor *in[] = {&t, &init};
    const int bad = fails("reduce", seed, AP_OP_REDUCE, &a, 2, in, &o, want);
    free(want);
    return bad;
}

static int window_case(int seed, enum ap_dtype dtype)
{
    uint64_t s = (uint64_t)seed * 29 + dtype;
    const int rank = (int)eval_between(&s, 1, 3), red = (int)eval_between(&s, 0, 1);
    struct ap_window_dim w[3];
    int64_t dims[3], od[3], wd[3];
    for (int d = 0; d < rank; d++)
        do {
            random_window(&s, &w[d]);
            w[d].reversal = false;
            dims[d] = eval_between(&s, 1, 12);
            wd[d] = w[d].size;
            od[d] = window_out(&w[d], dims[d]);
        } while (od[d] < 1);
    struct tensor t, init, o, win;
    tensor_init(&t, dtype, rank, dims);
    tensor_init(&init, dtype, 0, dims);
    tensor_init(&o, dtype, rank, od);
    tensor_init(&win, dtype, rank, wd);
    tensor_fill(&t, &s, -2, 2);
    init.v[0] = red ? -9 : 0;
    double *want = calloc((size_t)o.n + 1, sizeof *want);
    for (int64_t i = 0; i < o.n; i++) {
        want[i] = init.v[0];
        for (int64_t j = 0; j < win.n; j++) {
            int64_t oi[3], wi[3], ti[3];
            bool inside = true;
            tensor_index(&o, i, oi);
            tensor_index(&win, j, wi);
            for (int d = 0; d < rank; d++) {
                const int64_t p =
                    oi[d] * w[d].stride + wi[d] * w[d].rhs_dilate - w[d].pad_lo;
                inside &=
                    p >= 0 && p % w[d].lhs_dilate == 0 && p / w[d].lhs_dilate < dims[d];
                ti[d] = p / w[d].lhs_dilate;
            }
            if (inside)
                want[i] = combine(red, want[i], t.v[tensor_at(&t, ti)]);
        }
    }
    struct ap_attrs a = ap_attrs_default;
    a.n_window = rank;
    a.window = w;
    a.to_apply = red;
    struct tensor *in[] = {&t, &init};
    const int bad =
        fails("reduce-window", seed, AP_OP_REDUCE_WINDOW, &a, 2, in, &o, want);
    free(win.v);
    free(want);
    return bad;
}

static int select_scatter_case(int seed, enum ap_dtype dtype)
{
    uint64_t s = (uint64_t)seed * 31 + dtype;
    const int rank = (int)eval_between(&s, 1, 3);
    struct ap_window_dim w[3];
    int64_t dims[3], od[3], wd[3];
    for (int d = 0; d < rank; d++)
        do {
            w[d] = (struct ap_window_dim){.size = eval_between(&s, 0, 1) ? 1 : 3,
                                          .stride = 1,
                                          .lhs_dilate = 1,
                                          .rhs_dilate = 1};
            if (w[d].size > 1) {
                w[d].stride = eval_between(&s, 1, 3);
                w[d].pad_lo = eval_between(&s, 0, 1);
                w[d].pad_hi = eval_between(&s, 0, 1);
            }
            dims[d] = eval_between(&s, 1, 12);
            wd[d] = w[d].size;
            od[d] = window_out(&w[d], dims[d]);
        } while (od[d] < 1);
    struct tensor t, src, init, o, win;
    tensor_init(&t, dtype, rank, dims);
    tensor_init(&src, dtype, rank, od);
    tensor_init(&init, dtype, 0, dims);
    tensor_init(&o, dtype, rank, dims);
    tensor_init(&win, dtype, rank, wd);
    tensor_fill(&t, &s, -5, 5);
    tensor_fill(&src, &s, -2, 2);
    double *want = calloc((size_t)o.n + 1, sizeof *want);
    for (int64_t i = 0; i < src.n; i++) {
        int64_t best = -1;
        for (int64_t j = 0; j < win.n; j++) {
            int64_t oi[3], wi[3], ti[3];
            bool inside = true;
            tensor_index(&src, i, oi);
            tensor_index(&win, j, wi);
            for (int d = 0; d < rank; d++) {
                ti[d] = oi[d] * w[d].stride + wi[d] - w[d].pad_lo;
                inside &= ti[d] >= 0 && ti[d] < dims[d];
            }
            const int64_t at = inside ? tensor_at(&t, ti) : 0;
            if (inside && (best < 0 || !(t.v[best] >= t.v[at])))
                best = at;
        }
        if (best >= 0)
            want[best] += src.v[i];
    }
    const struct ap_shape scalar = {.dtype = dtype}, pred = {.dtype = AP_PRED};
    static const int pair[] = {0, 1}, two[] = {2};
    struct ap_attrs ge = ap_attrs_default;
    ge.direction = AP_GE;
    struct ap_node body[] = {
        {.op = AP_OP_PARAMETER, .name = "a", .shape = scalar, .attrs = &ap_attrs_default},
        {.op = AP_OP_PARAMETER,
         .name = "b",
         .shape = scalar,
         .attrs = &ap_attrs_default,
         .param = 1},
        {.op = AP_OP_COMPARE,
         .name = "ge",
         .shape = pred,
         .attrs = &ge,
         .n_in = 2,
         .in = pair}};
    const struct ap_reducer reducers[] = {
        eval_reducers[0],
        {.name = "ge", .n_nodes = 3, .nodes = body, .n_results = 1, .results = two}};
    struct ap_attrs a = ap_attrs_default;
    a.n_window = rank;
    a.window = w;
    a.scatter = 0;
    a.select = 1;
    struct tensor *in[] = {&t, &src, &init}, *out = &o;
    struct ap_err err = {{0}};
    int bad = eval_node(AP_OP_SELECT_AND_SCATTER, &a, 3, in, 1, &out, reducers, 2, &err);
    if (bad || tensor_differs(&o, want) >= 0) {
        printf("# select-and-scatter, seed %d: %s\n", seed, bad ? err.msg : "differs");
        bad = 1;
    }
    free(t.v), free(src.v), free(init.v), free(o.v), free(win.v), free(want);
    return bad != 0;
}

/* ---- moves ---- */

static int move_case(int seed, enum ap_dtype dtype)
{
    static const enum ap_op ops[] = {AP_OP_TRANSPOSE, AP_OP_SLICE, AP_OP_REVERSE,
                                     AP_OP_PAD, AP_OP_BROADCAST};
    uint64_t s = (uint64_t)seed * 37 + dtype;
    const enum ap_op op = ops[eval_between(&s, 0, 4)];
    const int rank = (int)eval_between(&s, 1, 4);
    int p[4];
    int64_t dims[4], od[5], list[4];
    struct ap_slice_dim slice[4];
    struct ap_pad_dim pad[4];
    int no = rank, nl = 0;
    bool reversed[4] = {false};
    shuffle(&s, p, rank);
    for (int d = 0; d < rank; d++) {
        dims[d] = eval_between(&s, 0, 4) == 0 ? 37 : eval_between(&s, 1, 5);
        slice[d].start = eval_between(&s, 0, dims[d] - 1);
        slice[d].limit = eval_between(&s, slice[d].start + 1, dims[d]);
        slice[d].stride = eval_between(&s, 1, 2);
        do {
            pad[d] = (struct ap_pad_dim){eval_between(&s, -3, 3), eval_between(&s, -3, 3),
                                         eval_between(&s, 0, 2)};
            od[d] = pad[d].lo + pad[d].hi + (dims[d] - 1) * (pad[d].interior + 1) + 1;
        } while (od[d] < 0);
        if (op == AP_OP_REVERSE && eval_between(&s, 0, 1))
            reversed[d] = true, list[nl++] = d;
        if (op == AP_OP_SLICE)
            od[d] = ap_ceil_div(slice[d].limit - slice[d].start, slice[d].stride);
        if (op == AP_OP_REVERSE)
            od[d] = dims[d];
    }
    if (op == AP_OP_TRANSPOSE)
        for (int d = 0; d < rank; d++)
            od[d] = dims[p[d]], list[nl++] = p[d];
    if (op == AP_OP_BROADCAST) {
        no = rank + (rank < 4);
        const int skip = (int)eval_between(&s, 0, no - 1);
        for (int d = 0, k = 0; d < no; d++)
            if (d == skip && no > rank)
                od[d] = eval_between(&s, 1, 50);
            else
                list[nl++] = d, od[d] = dims[k++];
    }
    struct tensor t, fill, o;
    tensor_init(&t, dtype, rank, dims);
    tensor_init(&fill, dtype, 0, dims);
    tensor_init(&o, dtype, no, od);
    tensor_fill(&t, &s, 0, dtype == AP_PRED ? 1 : 100);
    fill.v[0] = dtype == AP_PRED ? 1 : 7;
    double *want = calloc((size_t)o.n + 1, sizeof *want);
    for (int64_t i = 0; i < o.n; i++) {
        int64_t oi[5], ti[5];
        bool inside = true;
        tensor_index(&o, i, oi);
        for (int d = 0; d < rank; d++) {
            if (op == AP_OP_TRANSPOSE)
                ti[p[d]] = oi[d];
            else if (op == AP_OP_SLICE)
                ti[d] = slice[d].start + oi[d] * slice[d].stride;
            else if (op == AP_OP_REVERSE)
                ti[d] = reversed[d] ? dims[d] - 1 - oi[d] : oi[d];
            else if (op == AP_OP_BROADCAST)
                ti[d] = oi[list[d]];
            else {
                const int64_t q = oi[d] - pad[d].lo, step = pad[d].interior + 1;
                inside &= q >= 0 && q % step == 0 && q / step < dims[d];
                ti[d] = q / step;
            }
        }
        want[i] = inside ? t.v[tensor_at(&t, ti)] : fill.v[0];
    }
    struct ap_attrs a = ap_attrs_default;
    a.dimensions = eval_ints(nl, list);
    a.slice = slice;
    a.n_slice = op == AP_OP_SLICE ? rank : 0;
    a.padding = pad;
    a.n_padding = op == AP_OP_PAD ? rank : 0;
    struct tensor *in[] = {&t, &fill};
    if (op != AP_OP_PAD) {
        const int bad = fails(ap_ops[op].name, seed, op, &a, 1, in, &o, want);
        free(fill.v);
        free(want);
        return bad;
    }
    const int bad = fails("pad", seed, op, &a, 2, in, &o, want);
    free(want);
    return bad;
}

/* Reductions of long rows: each element's bits are those that it has alone. */
static int position_case(int seed)
{
    uint64_t s = (uint64_t)seed + 5;
    const int64_t k = eval_between(&s, 1, 3000), n = eval_between(&s, 2, 5);
    const int64_t dims[2] = {n, k}, row[2] = {1, k};
    static const int64_t one[1] = {1};
    struct tensor t, r, o, p, init;
    tensor_init(&t, AP_F32, 2, dims);
    tensor_init(&r, AP_F32, 2, row);
    tensor_init(&o, AP_F32, 1, dims);
    tensor_init(&p, AP_F32, 1, row);
    tensor_init(&init, AP_F32, 0, dims);
    for (int64_t i = 0; i < t.n; i++)
        t.v[i] = (float)((double)eval_between(&s, -1000000, 1000000) * 1e-5);
    const int64_t at = eval_between(&s, 0, n - 1);
    memcpy(r.v, t.v + at * k, (size_t)k * sizeof *r.v);
    struct ap_attrs a = ap_attrs_default;
    a.dimensions = eval_ints(1, one);
    a.to_apply = 0;
    struct ap_err err = {{0}};
    struct tensor *in[] = {&t, &init}, *in1[] = {&r, &init}, *out = &o, *out1 = &p;
    int bad = eval_node(AP_OP_REDUCE, &a, 2, in, 1, &out, eval_reducers, 2, &err) ||
              eval_node(AP_OP_REDUCE, &a, 2, in1, 1, &out1, eval_reducers, 2, &err) ||
              o.v[at] != p.v[0];
    free(t.v), free(r.v), free(o.v), free(p.v), free(init.v);
    return bad;
}

/* A sum by lanes, as cpu/README.md has it: 2^24 and 17 ones. */
static double readme_sum(void)
{
    static const int64_t n[1] = {18}, dim[1] = {0};
    struct tensor t, init, o;
    tensor_init(&t, AP_F32, 1, n);
    tensor_init(&init, AP_F32, 0, n);
    tensor_init(&o, AP_F32, 0, n);
    for (int64_t i = 0; i < t.n; i++)
        t.v[i] = i ? 1 : 0x1p24;
    struct ap_attrs a = ap_attrs_default;
    a.dimensions = eval_ints(1, dim);
    a.to_apply = 0;
    struct ap_err err = {{0}};
    struct tensor *in[] = {&t, &init}, *out = &o;
    const int bad = eval_node(AP_OP_REDUCE, &a, 2, in, 1, &out, eval_reducers, 2, &err);
    const double sum = bad ? 0 : o.v[0];
    free(t.v), free(init.v), free(o.v);
    return sum;
}

int main(void)
{
    static const enum ap_dtype dtypes[] = {AP_F32, AP_F64, AP_BF16, AP_F16, AP_S32,
                                           AP_S8,  AP_S64, AP_S16,  AP_PRED};
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
        const enum ap_dtype d = dtypes[t];
        const bool narrow = d == AP_BF16 || d == AP_F16 || d == AP_S8;
        int dot = 0, conv = 0, red = 0, win = 0, sel = 0, move = 0;
        for (int i = 0; i < CASES; i++) {
            dot += dot_case(i, d);
            red += d != AP_PRED ? reduce_case(i, d) : 0;
            move += move_case(i, d);
            if (d == AP_PRED)
                continue;
            conv += narrow && d == AP_S8 ? 0 : conv_case(i, d);
            win += window_case(i, d);
            sel += select_scatter_case(i, d);
        }
        const char *name = ap_dtype_name(d);
        CHECK(dot == 0, "dot, %s: %d cases", name, CASES);
        CHECK(conv == 0, "convolution, %s", name);
        CHECK(red == 0, "reduce, %s", name);
        CHECK(win == 0, "reduce-window, %s", name);
        CHECK(sel == 0, "select-and-scatter, %s", name);
        CHECK(move == 0, "transpose, slice, reverse, pad, broadcast, %s", name);
    }
    int moved = 0;
    for (int i = 0; i < 40; i++)
        moved += position_case(i);
    CHECK(moved == 0, "a row's sum has the same bits alone and among others");
    CHECK(readme_sum() == 16777220, "README of cmd/ap-exec/cpu: the order of a sum");
    return tap_done();
}
