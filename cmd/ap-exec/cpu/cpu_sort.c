/*
 * sort and topk. Rows along the sorted dimension are ordered by a stable merge sort of
 * positions: O(n log n) comparisons. A bare comparison of two keys is a typed function;
 * any other comparator runs the reducer's body per comparison.
 */
#include "cpu/cpu_state.h"

#include <math.h>
#include <string.h>

/* Whether element i of the row goes strictly before element j. */
static bool before(struct sort *s, int64_t i, int64_t j)
{
    static const int one[3] = {1, 1, 1};
    if (s->less) {
        uint8_t yes;
        const int size = cpu_kind_size(cpu_kind(s->dtype[s->key]));
        const char *row = s->row[s->key];
        s->less(&yes, row + i * size, row + j * size, row, one, 1);
        return yes;
    }
    for (int p = 0; p < s->n_ops; p++) {
        const int size = cpu_kind_size(cpu_kind(s->dtype[p]));
        s->body.ptr[2 * p] = s->row[p] + i * size;
        s->body.ptr[2 * p + 1] = s->row[p] + j * size;
    }
    body_run(&s->body, 1);
    return *(const uint8_t *)s->body.ptr[s->body.result[0]];
}

/* NaN is larger than all else, as in XLA's top-k. */
static bool before_topk(struct sort *s, int64_t i, int64_t j)
{
    static const int one[3] = {1, 1, 1};
    const enum cpu_kind kind = cpu_kind(s->dtype[0]);
    const int size = cpu_kind_size(kind);
    const char *a = s->row[0] + i * size, *b = s->row[0] + j * size;
    uint8_t na = 0, nb = 0, yes;
    if (kind == CPU_F32 || kind == CPU_F64) {
        cpu_fn *ne = cpu_op_find(AP_OP_COMPARE, AP_NE, s->dtype[0], AP_PRED);
        ne(&na, a, a, a, one, 1);
        ne(&nb, b, b, b, one, 1);
        if (na || nb)
            return s->largest ? na && !nb : nb && !na;
    }
    s->less(&yes, a, b, a, one, 1);
    return yes;
}

static void merge_sort(struct sort *s, int32_t *idx, int32_t *tmp, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        idx[i] = (int32_t)i;
    for (int64_t w = 1; w < n; w *= 2) {
        for (int64_t lo = 0; lo < n; lo += 2 * w) {
            const int64_t mid = lo + w < n ? lo + w : n, hi = mid + w < n ? mid + w : n;
            int64_t a = lo, b = mid;
            for (int64_t o = lo; o < hi; o++) {
                bool right = a == mid;
                if (!right && b < hi)
                    right = s->topk ? before_topk(s, idx[b], idx[a])
                                    : before(s, idx[b], idx[a]);
                tmp[o] = right ? idx[b++] : idx[a++];
            }
        }
        memcpy(idx, tmp, (size_t)n * sizeof *idx);
    }
}

/* Row by row: its first k elements in order, and for topk their positions. */
static void sort_run(struct exec *x, void *state)
{
    struct sort *s = state;
    int32_t *idx = (int32_t *)(void *)x->scratch, *tmp = idx + s->n;
    for (int p = 0; p < s->n_ops; p++)
        s->row[p] = x->scratch + s->row_at + p * s->n * 8;
    if (!s->less)
        body_start(&s->body, x->scratch + s->body_at);
    for (int64_t o = 0; o < s->outer * s->inner; o++) {
        const int64_t from = o / s->inner * s->n * s->inner + o % s->inner;
        const int64_t to = o / s->inner * s->k * s->inner + o % s->inner;
        for (int p = 0; p < s->n_ops; p++)
            cpu_load(s->row[p], s->src[p] + from * ap_dtype_size(s->dtype[p]), s->inner,
                     s->dtype[p], s->n);
        merge_sort(s, idx, tmp, s->n);
        for (int p = 0; p < s->n_ops; p++) {
            const int size = cpu_kind_size(cpu_kind(s->dtype[p]));
            const int esize = ap_dtype_size(s->dtype[p]);
            for (int64_t i = 0; i < s->k; i++)
                cpu_store(s->dst[p] + (to + i * s->inner) * esize, 1,
                          s->row[p] + idx[i] * size, s->dtype[p], 1);
        }
        if (s->topk)
            memcpy(s->dst[1] + to * 4, idx, (size_t)s->k * 4);
    }
}

static int sort_common(struct exec *x, struct call *call, struct sort *s, int n_ops,
                       int dim, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_shape *in = &call_in(x, v, 0)->shape;
    s->n_ops = n_ops;
    s->src = AP_NEW_N(x->arena, n_ops, const char *);
    s->dst = AP_NEW_N(x->arena, n_ops + 1, char *);
    s->row = AP_NEW_N(x->arena, n_ops, char *);
    s->dtype = AP_NEW_N(x->arena, n_ops, enum ap_dtype);
    for (int p = 0; p < n_ops; p++) {
        s->src[p] = x->value[v->in[p]];
        s->dtype[p] = call_in(x, v, p)->shape.dtype;
        if (cpu_kind(s->dtype[p]) == CPU_N_KINDS)
            return exec_unsupported(x, v, err, ap_dtype_name(s->dtype[p]));
    }
    s->n = s->k = in->dims[dim];
    if (s->n > INT32_MAX)
        return exec_unsupported(x, v, err, "of this size");
    s->outer = s->inner = 1;
    for (int d = 0; d < dim; d++)
        s->outer *= in->dims[d];
    for (int d = dim + 1; d < in->rank; d++)
        s->inner *= in->dims[d];
    s->row_at = exec_room(2 * s->n * 4);
    s->body_at = s->row_at + exec_room(n_ops * s->n * 8);
    call->run = sort_run;
    call->state = s;
    return 0;
}

int cpu_sort_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    struct sort *s = AP_NEW(x->arena, struct sort);
    const int node = call->nodes[0];
    if (v->shape.dtype != AP_TUPLE && v->shape.rank == 0)
        return exec_unsupported(x, v, err, "of a scalar");
    if (sort_common(x, call, s, v->n_in, (int)v->attrs->dimensions.v[0], err))
        return -1;
    for (int p = 0; p < s->n_ops; p++)
        s->dst[p] = v->shape.dtype == AP_TUPLE ? x->element[node][p] : x->value[node];
    const struct ap_reducer *red = &x->prog->local.reducers[v->attrs->to_apply];
    if (red->n_nodes == 0)
        return exec_unsupported(x, v, err, "with a comparator that has no body");
    if (body_prepare(x, red, &s->body, err))
        return -1;
    const struct ap_node *last = &red->nodes[red->results[0]];
    if (last->op == AP_OP_COMPARE && last->in[0] + 1 == last->in[1] &&
        last->in[0] % 2 == 0 && last->in[1] < s->body.n_params) {
        s->key = last->in[0] / 2;
        s->less = cpu_compare_find(last->attrs, s->dtype[s->key]);
    }
    exec_need_scratch(x, s->body_at + s->body.scratch_bytes);
    return 0;
}

int cpu_topk_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    struct sort *s = AP_NEW(x->arena, struct sort);
    const int node = call->nodes[0];
    if (sort_common(x, call, s, 1, call_in(x, v, 0)->shape.rank - 1, err))
        return -1;
    if (v->shape.n_parts != 2 || v->shape.parts[1].dtype != AP_S32)
        return exec_unsupported(x, v, err, "with indices that are not s32");
    s->topk = true;
    s->largest = v->attrs->largest;
    s->less =
        cpu_op_find(AP_OP_COMPARE, s->largest ? AP_GT : AP_LT, s->dtype[0], AP_PRED);
    if (!s->less)
        return exec_unsupported(x, v, err, ap_dtype_name(s->dtype[0]));
    s->k = v->shape.parts[0].dims[v->shape.parts[0].rank - 1];
    s->dst[0] = x->element[node][0];
    s->dst[1] = x->element[node][1];
    exec_need_scratch(x, s->body_at);
    return 0;
}
