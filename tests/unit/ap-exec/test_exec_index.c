/*
 * gather, scatter, dynamic slices, sort, top-k and reducers with a body of their own,
 * against their definitions (XLA's operation semantics), on random shapes.
 */
#include "exec_eval.h"
#include "tap.h"

#include <math.h>

#define CASES 200

/* ---- gather and scatter: one random description serves both ---- */

struct lookup {
    int rank, index_rank, n_map, n_window, n_dropped, n_batching;
    int64_t operand[4], index[4], slice[4], other[6];
    int64_t map[3], dropped[4], batching[2], index_batching[2], window[4];
    int64_t vector_dim;
    int other_rank;
};

/* Dimension 0 may be batching; one to three others are looked up. */
static void random_lookup(uint64_t *s, struct lookup *k)
{
    memset(k, 0, sizeof *k);
    k->rank = (int)eval_between(s, 1, 3);
    for (int d = 0; d < k->rank; d++)
        k->operand[d] = eval_between(s, 2, 6);
    const bool batching = k->rank > 1 && eval_between(s, 0, 2) == 0;
    int64_t batch[3];
    int n_batch = 0;
    if (batching) {
        k->batching[k->n_batching] = 0;
        k->index_batching[k->n_batching++] = 0;
        batch[n_batch++] = k->operand[0];
    }
    while (n_batch < 2 && eval_between(s, 0, 2))
        batch[n_batch++] = eval_between(s, 1, 4);
    for (int d = 0; d < k->rank; d++) {
        k->slice[d] = 1;
        if (batching && d == 0)
            continue;
        if (eval_between(s, 0, 1) || (d == k->rank - 1 && k->n_map == 0))
            k->map[k->n_map++] = d;
        if (eval_between(s, 0, 1))
            k->dropped[k->n_dropped++] = d;
        else
            k->slice[d] = eval_between(s, 1, k->operand[d]);
    }
    if (k->n_map == 2 && eval_between(s, 0, 1)) { /* components in another order */
        const int64_t t = k->map[0];
        k->map[0] = k->map[1], k->map[1] = t;
    }
    /* index vector: inside, last, or left out when it is one long */
    k->vector_dim = eval_between(s, n_batch ? 1 : 0, n_batch);
    const bool bare = k->n_map == 1 && eval_between(s, 0, 1);
    if (bare)
        k->vector_dim = n_batch;
    for (int d = 0, b = 0; d < n_batch + !bare; d++)
        k->index[k->index_rank++] = !bare && d == k->vector_dim ? k->n_map : batch[b++];
    /* the result's dimensions: window ones in order, at random places */
    const int n_win = k->rank - k->n_dropped - k->n_batching;
    k->other_rank = n_win + n_batch;
    int64_t extent[4];
    for (int d = 0, e = 0; d < k->rank; d++) {
        bool gone = batching && d == 0;
        for (int i = 0; i < k->n_dropped; i++)
            gone |= k->dropped[i] == d;
        if (!gone)
            extent[e++] = k->slice[d];
    }
    for (int d = 0, b = 0; d < k->other_rank; d++) {
        const int left = k->other_rank - d, want = n_win - k->n_window;
        if (want && eval_between(s, 1, left) <= want) {
            k->other[d] = extent[k->n_window];
            k->window[k->n_window++] = d;
        } else {
            k->other[d] = batch[b++];
        }
    }
}

static bool has(const int64_t *v, int n, int64_t x)
{
    for (int i = 0; i < n; i++)
        if (v[i] == x)
            return true;
    return false;
}

/* Where element oi of the result or updates lies in the operand; false: out of bounds. */
static bool place(const struct lookup *k, const struct tensor *index, const int64_t *oi,
                  bool clamp, int64_t *at)
{
    int64_t batch[4], ii[4];
    int nb = 0, w = 0;
    for (int d = 0; d < k->other_rank; d++)
        if (!has(k->window, k->n_window, d))
            batch[nb++] = oi[d];
    for (int d = 0; d < k->rank; d++)
        at[d] = 0;
    for (int i = 0; i < k->n_map; i++) {
        for (int d = 0, b = 0; d < k->index_rank; d++)
            ii[d] = d == k->vector_dim ? i : batch[b++];
        int64_t g = (int64_t)index->v[tensor_at(index, ii)];
        const int64_t d = k->map[i], most = k->operand[d] - k->slice[d];
        if (!clamp && (g < 0 || g > most))
            return false;
        at[d] = g < 0 ? 0 : g > most ? most : g;
    }
    for (int i = 0; i < k->n_batching; i++)
        at[k->batching[i]] = batch[k->index_batching[i]];
    for (int d = 0; d < k->rank; d++)
        if (!has(k->dropped, k->n_dropped, d) && !has(k->batching, k->n_batching, d))
            at[d] += oi[k->window[w++]];
    return true;
}

static int lookup_case(int seed, enum ap_dtype dtype, bool scatter)
{
    uint64_t s = (uint64_t)seed * 41 + dtype + (scatter ? 7 : 0);
    struct lookup k;
    struct tensor t, index, other, out;
    random_lookup(&s, &k);
    tensor_init(&t, dtype, k.rank, k.operand);
    tensor_init(&index, AP_S32, k.index_rank, k.index);
    tensor_init(&other, dtype, k.other_rank, k.other);
    tensor_init(&out, dtype, scatter ? k.rank : k.other_rank,
                scatter ? k.operand : k.other);
    tensor_fill(&t, &s, -5, 5);
    tensor_fill(&index, &s, -1, 6);
    tensor_fill(&other, &s, -2, 2);
    double *want = calloc((size_t)out.n + 1, sizeof *want);
    const int red = (int)eval_between(&s, 0, 1);
    int64_t oi[6], at[4];
    if (scatter)
        memcpy(want, t.v, (size_t)t.n * sizeof *want);
    for (int64_t i = 0; i < other.n; i++) {
        tensor_index(&other, i, oi);
        const bool inside = place(&k, &index, oi, !scatter, at);
        if (!scatter) {
            want[i] = t.v[tensor_at(&t, at)];
        } else if (inside) {
            double *w = &want[tensor_at(&t, at)];
            *w = red == 0 ? *w + other.v[i] : *w > other.v[i] ? *w : other.v[i];
        }
    }
    struct ap_attrs a = ap_attrs_default;
    a.index_vector_dim = k.vector_dim;
    a.to_apply = red;
    const struct ap_ints window = eval_ints(k.n_window, k.window);
    const struct ap_ints dropped = eval_ints(k.n_dropped, k.dropped);
    const struct ap_ints batching = eval_ints(k.n_batching, k.batching);
    const struct ap_ints index_batching = eval_ints(k.n_batching, k.index_batching);
    const struct ap_ints map = eval_ints(k.n_map, k.map);
    if (scatter) {
        a.update_window_dims = window;
        a.inserted_window_dims = dropped;
        a.input_batching_dims = batching;
        a.scatter_indices_batching_dims = index_batching;
        a.scatter_dims_to_operand_dims = map;
    } else {
        a.offset_dims = window;
        a.collapsed_slice_dims = dropped;
        a.operand_batching_dims = batching;
        a.start_indices_batching_dims = index_batching;
        a.start_index_map = map;
        a.slice_sizes = eval_ints(k.rank, k.slice);
    }
    struct tensor *in[] = {&t, &index, &other}, *o = &out;
    struct ap_err err = {{0}};
    int bad = eval_node(scatter ? AP_OP_SCATTER : AP_OP_GATHER, &a, scatter ? 3 : 2, in,
                        1, &o, eval_reducers, 2, &err);
    if (bad || tensor_differs(&out, want) >= 0) {
        printf("# %s, seed %d: %s\n", scatter ? "scatter" : "gather", seed,
               bad ? err.msg : "differs");
        bad = 1;
    }
    free(t.v), free(index.v), free(other.v), free(out.v), free(want);
    return bad != 0;
}

/* ---- dynamic-slice, dynamic-update-slice ---- */

static int dynamic_case(int seed, enum ap_dtype dtype, bool update)
{
    uint64_t s = (uint64_t)seed * 43 + dtype;
    const int rank = (int)eval_between(&s, 1, 3);
    int64_t dims[3], win[3], start[3];
    struct tensor t, w, at[3], out;
    for (int d = 0; d < rank; d++) {
        dims[d] = eval_between(&s, 1, 6);
        win[d] = eval_between(&s, 1, dims[d]);
        tensor_init(&at[d], AP_S32, 0, dims);
        start[d] = eval_between(&s, -2, 7);
        at[d].v[0] = (double)start[d];
        const int64_t most = dims[d] - win[d];
        start[d] = start[d] < 0 ? 0 : start[d] > most ? most : start[d];
    }
    tensor_init(&t, dtype, rank, dims);
    tensor_init(&w, dtype, rank, win);
    tensor_init(&out, dtype, rank, update ? dims : win);
    tensor_fill(&t, &s, -5, 5);
    tensor_fill(&w, &s, -5, 5);
    double *want = calloc((size_t)out.n + 1, sizeof *want);
    if (update)
        memcpy(want, t.v, (size_t)t.n * sizeof *want);
    for (int64_t i = 0; i < w.n; i++) {
        int64_t idx[3];
        tensor_index(&w, i, idx);
        for (int d = 0; d < rank; d++)
            idx[d] += start[d];
        if (update)
            want[tensor_at(&t, idx)] = w.v[i];
        else
            want[i] = t.v[tensor_at(&t, idx)];
    }
    struct ap_attrs a = ap_attrs_default;
    a.dynamic_slice_sizes = eval_ints(rank, win);
    struct tensor *in[5] = {&t, &w}, *o = &out;
    for (int d = 0; d < rank; d++)
        in[1 + update + d] = &at[d];
    struct ap_err err = {{0}};
    const enum ap_op op = update ? AP_OP_DYNAMIC_UPDATE_SLICE : AP_OP_DYNAMIC_SLICE;
    int bad = eval_node(op, &a, 1 + update + rank, in, 1, &o, eval_reducers, 2, &err);
    if (bad || tensor_differs(&out, want) >= 0) {
        printf("# %s, seed %d: %s\n", ap_ops[op].name, seed, bad ? err.msg : "differs");
        bad = 1;
    }
    for (int d = 0; d < rank; d++)
        free(at[d].v);
    free(t.v), free(w.v), free(out.v), free(want);
    return bad != 0;
}

/* ---- bodies: argmax, sort ---- */

#define SCALAR(t)  \
    {              \
        .dtype = t \
    }
#define ARG(i, t)                                               \
    {                                                           \
        .op = AP_OP_PARAMETER, .name = "p", .shape = SCALAR(t), \
        .attrs = &ap_attrs_default, .param = i                  \
    }
#define BODY(o, t, a, k, ...)                                            \
    {                                                                    \
        .op = o, .name = "b", .shape = SCALAR(t), .attrs = a, .n_in = k, \
        .in = (const int[])                                              \
        {                                                                \
            __VA_ARGS__                                                  \
        }                                                                \
    }

/* (value, index) pairs: the larger value wins, then the lower index. */
static int argmax_case(int seed, int axis)
{
    uint64_t s = (uint64_t)seed * 47;
    struct ap_attrs gt = ap_attrs_default, eq = ap_attrs_default, lt = ap_attrs_default;
    gt.direction = AP_GT, eq.direction = AP_EQ, lt.direction = AP_LT;
    struct ap_node body[] = {ARG(0, AP_F32),
                             ARG(1, AP_S32),
                             ARG(2, AP_F32),
                             ARG(3, AP_S32),
                             BODY(AP_OP_COMPARE, AP_PRED, &gt, 2, 0, 2),
                             BODY(AP_OP_COMPARE, AP_PRED, &eq, 2, 0, 2),
                             BODY(AP_OP_COMPARE, AP_PRED, &lt, 2, 1, 3),
                             BODY(AP_OP_AND, AP_PRED, &ap_attrs_default, 2, 5, 6),
                             BODY(AP_OP_OR, AP_PRED, &ap_attrs_default, 2, 4, 7),
                             BODY(AP_OP_SELECT, AP_F32, &ap_attrs_default, 3, 4, 0, 2),
                             BODY(AP_OP_SELECT, AP_S32, &ap_attrs_default, 3, 8, 1, 3)};
    static const int results[] = {9, 10};
    const struct ap_reducer red = {.name = "argmax",
                                   .n_nodes = 11,
                                   .nodes = body,
                                   .n_results = 2,
                                   .results = results};
    const int64_t dims[3] = {eval_between(&s, 1, 5), eval_between(&s, 1, 40),
                             eval_between(&s, 1, 5)};
    const int64_t od[2] = {axis == 0 ? dims[1] : dims[0], axis == 2 ? dims[1] : dims[2]};
    const int64_t list[1] = {axis};
    struct tensor v, id, v0, id0, out, oid;
    tensor_init(&v, AP_F32, 3, dims);
    tensor_init(&id, AP_S32, 3, dims);
    tensor_init(&v0, AP_F32, 0, dims);
    tensor_init(&id0, AP_S32, 0, dims);
    tensor_init(&out, AP_F32, 2, od);
    tensor_init(&oid, AP_S32, 2, od);
    tensor_fill(&v, &s, -3, 3);
    v0.v[0] = -100;
    id0.v[0] = 1000;
    double *want = calloc((size_t)out.n, sizeof *want), *wid = calloc((size_t)out.n, 8);
    for (int64_t i = 0; i < out.n; i++)
        want[i] = -100;
    for (int64_t i = 0; i < v.n; i++) {
        int64_t idx[3], oi[2];
        tensor_index(&v, i, idx);
        id.v[i] = (double)idx[axis];
        oi[0] = axis == 0 ? idx[1] : idx[0];
        oi[1] = axis == 2 ? idx[1] : idx[2];
        const int64_t o = tensor_at(&out, oi);
        if (v.v[i] > want[o])
            want[o] = v.v[i], wid[o] = (double)idx[axis];
    }
    struct ap_attrs a = ap_attrs_default;
    a.dimensions = eval_ints(1, list);
    a.to_apply = 0;
    struct tensor *in[] = {&v, &id, &v0, &id0}, *outs[] = {&out, &oid};
    struct ap_err err = {{0}};
    int bad = eval_node(AP_OP_REDUCE, &a, 4, in, 2, outs, &red, 1, &err);
    if (bad || tensor_differs(&out, want) >= 0 || tensor_differs(&oid, wid) >= 0) {
        printf("# argmax, seed %d: %s\n", seed, bad ? err.msg : "differs");
        bad = 1;
    }
    free(v.v), free(id.v), free(v0.v), free(id0.v), free(out.v), free(oid.v), free(want);
    free(wid);
    return bad != 0;
}

/* Keys with ties and a payload that shows stability; bare: a plain comparison. */
static int sort_case(int seed, bool bare)
{
    uint64_t s = (uint64_t)seed * 53;
    struct ap_attrs lt = ap_attrs_default;
    lt.direction = AP_LT;
    struct ap_node plain[] = {ARG(0, AP_F32), ARG(1, AP_F32), ARG(2, AP_S32),
                              ARG(3, AP_S32), BODY(AP_OP_COMPARE, AP_PRED, &lt, 2, 0, 1)};
    struct ap_node negated[] = {ARG(0, AP_F32),
                                ARG(1, AP_F32),
                                ARG(2, AP_S32),
                                ARG(3, AP_S32),
                                BODY(AP_OP_NEGATE, AP_F32, &ap_attrs_default, 1, 0),
                                BODY(AP_OP_NEGATE, AP_F32, &ap_attrs_default, 1, 1),
                                BODY(AP_OP_COMPARE, AP_PRED, &lt, 2, 5, 4)};
    static const int r4[] = {4}, r6[] = {6};
    const struct ap_reducer red = {.name = "lt",
                                   .n_nodes = bare ? 5 : 7,
                                   .nodes = bare ? plain : negated,
                                   .n_results = 1,
                                   .results = bare ? r4 : r6};
    const int64_t dims[3] = {eval_between(&s, 1, 3), eval_between(&s, 1, 30),
                             eval_between(&s, 1, 3)};
    static const int64_t list[1] = {1};
    struct tensor key, id, out, oid;
    tensor_init(&key, AP_F32, 3, dims);
    tensor_init(&id, AP_S32, 3, dims);
    tensor_init(&out, AP_F32, 3, dims);
    tensor_init(&oid, AP_S32, 3, dims);
    tensor_fill(&key, &s, -5, 5);
    for (int64_t i = 0; i < id.n; i++)
        id.v[i] = (double)i;
    struct ap_attrs a = ap_attrs_default;
    a.dimensions = eval_ints(1, list);
    a.to_apply = 0;
    a.is_stable = true;
    struct tensor *in[] = {&key, &id}, *outs[] = {&out, &oid};
    struct ap_err err = {{0}};
    int bad = eval_node(AP_OP_SORT, &a, 2, in, 2, outs, &red, 1, &err);
    for (int64_t i = 0; !bad && i < out.n; i++) {
        int64_t idx[3];
        tensor_index(&out, i, idx);
        bad |= key.v[(int64_t)oid.v[i]] != out.v[i];
        if (++idx[1] < dims[1]) {
            const int64_t j = tensor_at(&out, idx);
            bad |= out.v[i] > out.v[j] || (out.v[i] == out.v[j] && oid.v[i] >= oid.v[j]);
        }
    }
    if (bad)
        printf("# sort, seed %d: %s\n", seed, err.msg);
    free(key.v), free(id.v), free(out.v), free(oid.v);
    return bad != 0;
}

static int topk_case(int seed, bool largest)
{
    uint64_t s = (uint64_t)seed * 59;
    const int64_t n = eval_between(&s, 1, 20), k = eval_between(&s, 1, n);
    const int64_t dims[2] = {eval_between(&s, 1, 4), n}, od[2] = {dims[0], k};
    struct tensor t, v, id;
    tensor_init(&t, AP_F32, 2, dims);
    tensor_init(&v, AP_F32, 2, od);
    tensor_init(&id, AP_S32, 2, od);
    tensor_fill(&t, &s, -4, 4);
    if (seed % 5 == 0)
        t.v[0] = NAN;
    double *want = calloc((size_t)v.n, sizeof *want), *wid = calloc((size_t)v.n, 8);
    for (int64_t r = 0; r < dims[0]; r++) {
        bool taken[20] = {false};
        for (int64_t j = 0; j < k; j++) {
            int64_t best = -1;
            for (int64_t i = 0; i < n; i++) {
                const double x = t.v[r * n + i], b = best < 0 ? 0 : t.v[r * n + best];
                const bool more = isnan(x) ? !isnan(b) : x > b;
                const bool less = isnan(b) ? !isnan(x) : x < b;
                if (!taken[i] && (best < 0 || (largest ? more : less)))
                    best = i;
            }
            taken[best] = true;
            want[r * k + j] = t.v[r * n + best];
            wid[r * k + j] = (double)best;
        }
    }
    struct ap_attrs a = ap_attrs_default;
    a.k = k;
    a.largest = largest;
    struct tensor *in[] = {&t}, *outs[] = {&v, &id};
    struct ap_err err = {{0}};
    int bad = eval_node(AP_OP_TOPK, &a, 1, in, 2, outs, eval_reducers, 2, &err);
    if (bad || tensor_differs(&v, want) >= 0 || tensor_differs(&id, wid) >= 0) {
        printf("# topk, seed %d: %s\n", seed, bad ? err.msg : "differs");
        bad = 1;
    }
    free(t.v), free(v.v), free(id.v), free(want), free(wid);
    return bad != 0;
}

int main(void)
{
    static const enum ap_dtype dtypes[] = {AP_F32, AP_BF16, AP_S32, AP_S8, AP_F64};
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
        int gather = 0, scatter = 0, slice = 0, update = 0;
        for (int i = 0; i < CASES; i++) {
            gather += lookup_case(i, dtypes[t], false);
            scatter += lookup_case(i, dtypes[t], true);
            slice += dynamic_case(i, dtypes[t], false);
            update += dynamic_case(i, dtypes[t], true);
        }
        const char *name = ap_dtype_name(dtypes[t]);
        CHECK(gather == 0, "gather, %s: %d cases", name, CASES);
        CHECK(scatter == 0, "scatter, %s", name);
        CHECK(slice == 0, "dynamic-slice, %s", name);
        CHECK(update == 0, "dynamic-update-slice, %s", name);
    }
    int argmax = 0, sort = 0, topk = 0;
    for (int i = 0; i < CASES; i++) {
        argmax += argmax_case(i, i % 3);
        sort += sort_case(i, i % 2);
        topk += topk_case(i, i % 2);
    }
    CHECK(argmax == 0, "reduce with a body of its own: argmax");
    CHECK(sort == 0, "sort, stable, by a comparison or a computation");
    CHECK(topk == 0, "topk, with NaN and ties");
    return tap_done();
}
