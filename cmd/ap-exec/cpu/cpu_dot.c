/*
 * dot: batch, free and contracting dimensions in any order, as a batch of matrix
 * products. An operand whose free and contracting dimensions are each evenly strided is
 * read where it lies (BLAS takes either order); any other is packed to
 * [batch][free][contracting]. bf16 and f16 are converted to f32, accumulated in f32 and
 * rounded once. 2mnk operations.
 */
#include "cpu/cpu_state.h"

#include <limits.h>
#include <string.h>

/* FLOPs of a task of several products, some 20 microseconds; and how many products are
 * too few to be shared as wholes. */
#define TASK_FLOPS   4e6
#define FEW_PRODUCTS 4

/* Some dimensions of an operand. */
struct dims {
    int n;
    int d[AP_MAX_RANK];
};

/* Size and stride of dims taken as one dimension; false if they are not evenly strided.
 */
static bool collapse(const struct ap_shape *s, const int64_t *stride,
                     const struct dims *dims, int64_t *size, int64_t *step)
{
    *size = 1, *step = 1;
    bool any = false;
    for (int i = dims->n - 1; i >= 0; i--) {
        const int64_t e = s->dims[dims->d[i]];
        if (e == 1)
            continue;
        if (!any)
            *step = stride[dims->d[i]];
        else if (stride[dims->d[i]] != *step * *size)
            return false;
        any = true;
        *size *= e;
    }
    return true;
}

static int64_t product(const struct ap_shape *s, const struct dims *dims)
{
    int64_t p = 1;
    for (int i = 0; i < dims->n; i++)
        p *= s->dims[dims->d[i]];
    return p;
}

/* Puts dims before the packed operand's dims; *at: elements of the operand so far.
 */
static void pack_dims(struct side *sd, const struct ap_shape *s, const int64_t *stride,
                      const struct dims *dims, int64_t *at)
{
    for (int i = dims->n - 1; i >= 0; *at *= s->dims[dims->d[i--]])
        box_add(&sd->box, s->dims[dims->d[i]], stride[dims->d[i]], *at);
}

/* How the operand is read: where it lies, or packed. */
static void side_prepare(struct side *sd, const struct ap_shape *s,
                         const struct dims *batch, const struct dims *free_dims,
                         const struct dims *contract)
{
    int64_t stride[AP_MAX_RANK], f, c, fs, cs;
    cpu_strides(s, stride);
    sd->dtype = s->dtype;
    sd->elems = ap_shape_elems(s);
    const bool even =
        collapse(s, stride, free_dims, &f, &fs) & collapse(s, stride, contract, &c, &cs);
    for (int i = 0; i < batch->n; i++)
        sd->batch[i] = stride[batch->d[i]];
    if (even && (c == 1 || cs == 1) && (f == 1 || fs >= c) && fs < INT_MAX) {
        sd->ld = f == 1 ? c : fs;
    } else if (even && (f == 1 || fs == 1) && (c == 1 || cs >= f) && cs < INT_MAX) {
        sd->transposed = true;
        sd->ld = c == 1 ? f : cs;
    } else {
        sd->pack = true;
        sd->ld = product(s, contract);
        int64_t at = 1;
        pack_dims(sd, s, stride, contract, &at);
        pack_dims(sd, s, stride, free_dims, &at);
        for (int i = batch->n - 1; i >= 0; i--) {
            const struct dims one = {1, {batch->d[i]}};
            sd->batch[i] = at;
            pack_dims(sd, s, stride, &one, &at);
        }
        box_finish(&sd->box);
    }
}

static const char *side_data(struct exec *x, const struct side *sd, int size)
{
    const char *data = x->value[sd->node];
    if (sd->half_at >= 0) {
        cpu_load(x->scratch + sd->half_at, data, 1, sd->dtype, sd->elems);
        data = x->scratch + sd->half_at;
    }
    if (sd->pack_at >= 0) {
        box_copy(&sd->box, x->scratch + sd->pack_at, data, size);
        data = x->scratch + sd->pack_at;
    }
    return data;
}

struct products {
    const struct dot *d;
    const char *a, *b;
    char *out;
    int64_t n, each; /* matrices, those of one task */
};

static void run_products(void *ctx, int64_t task, int thread)
{
    (void)thread;
    const struct products *p = ctx;
    const struct dot *d = p->d;
    const int size = cpu_kind_size(d->gemm.kind);
    const int64_t from = task * p->each, left = p->n - from;
    const int64_t to = from + (left < p->each ? left : p->each);
    for (int64_t q = from; q < to; q++) {
        int64_t ao = 0, bo = 0, oo = 0, rest = q;
        for (int i = d->n_batch - 1; i >= 0; i--) {
            const int64_t at = rest % d->batch[i];
            ao += at * d->lhs.batch[i];
            bo += at * d->rhs.batch[i];
            oo += at * d->out_batch[i];
            rest /= d->batch[i];
        }
        cpu_gemm(&d->gemm, p->a + ao * size, p->b + bo * size, p->out + oo * size);
    }
}

static void dot_run(struct exec *x, void *state)
{
    const struct dot *d = state;
    const struct gemm *g = &d->gemm;
    const int size = cpu_kind_size(g->kind);
    struct products p = {.d = d, .n = 1};
    p.a = side_data(x, &d->lhs, size);
    p.b = side_data(x, &d->rhs, size);
    p.out = d->out_at >= 0 ? x->scratch + d->out_at : d->out;
    for (int i = 0; i < d->n_batch; i++)
        p.n *= d->batch[i];
    if (p.n == 0)
        return;
    /* products that are too small for a thread go in groups; a few large ones are shared
     * themselves */
    const double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    p.each = p.n < FEW_PRODUCTS || flops * (double)p.n < TASK_FLOPS
                 ? p.n
                 : 1 + (int64_t)(TASK_FLOPS / (flops + 1));
    cpu_each(ap_ceil_div(p.n, p.each), run_products, &p);
    if (d->out_at >= 0)
        cpu_store(d->out, 1, p.out, d->dtype, p.n * g->m * g->n);
}

static void side_scratch(struct side *sd, int64_t *at, int size)
{
    sd->half_at = sd->pack_at = -1;
    if (!cpu_is_plain(sd->dtype))
        sd->half_at = exec_take(at, sd->elems * size);
    if (sd->pack)
        sd->pack_at = exec_take(at, sd->elems * size);
}

static bool has(const struct dims *dims, int d)
{
    for (int i = 0; i < dims->n; i++)
        if (dims->d[i] == d)
            return true;
    return false;
}

/* Dimensions of s that are neither batch nor contracting, ascending. */
static struct dims free_of(const struct ap_shape *s, const struct dims *batch,
                           const struct dims *contract)
{
    struct dims out = {0};
    for (int d = 0; d < s->rank; d++)
        if (!has(batch, d) && !has(contract, d))
            out.d[out.n++] = d;
    return out;
}

static struct dims dims_of(struct ap_ints list)
{
    struct dims out = {.n = list.n};
    for (int i = 0; i < list.n; i++)
        out.d[i] = (int)list.v[i];
    return out;
}

/* Contracting pairs in the order of the right side's dimensions; mostly both then fit. */
static void sort_pairs(int *l, int *r, int n)
{
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && r[j - 1] > r[j]; j--) {
            const int a = l[j], b = r[j];
            l[j] = l[j - 1], r[j] = r[j - 1];
            l[j - 1] = a, r[j - 1] = b;
        }
}

int cpu_dot_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_attrs *t = v->attrs;
    const struct ap_shape *ls = &call_in(x, v, 0)->shape, *rs = &call_in(x, v, 1)->shape;
    struct dot *d = AP_NEW(x->arena, struct dot);
    int64_t os[AP_MAX_RANK];
    const enum cpu_kind kind = cpu_kind(v->shape.dtype);
    if (kind == CPU_N_KINDS || cpu_kind(ls->dtype) != kind || cpu_kind(rs->dtype) != kind)
        return exec_unsupported(x, v, err, "of these element types");
    const struct dims lb = dims_of(t->lhs_batch_dims), rb = dims_of(t->rhs_batch_dims);
    struct dims lc = dims_of(t->lhs_contracting_dims);
    struct dims rc = dims_of(t->rhs_contracting_dims);
    sort_pairs(lc.d, rc.d, lc.n);
    const struct dims lf = free_of(ls, &lb, &lc), rf = free_of(rs, &rb, &rc);
    d->dtype = v->shape.dtype;
    d->n_batch = lb.n;
    for (int i = 0; i < lb.n; i++)
        d->batch[i] = ls->dims[lb.d[i]];
    side_prepare(&d->lhs, ls, &lb, &lf, &lc);
    side_prepare(&d->rhs, rs, &rb, &rf, &rc);
    d->lhs.node = v->in[0];
    d->rhs.node = v->in[1];
    d->gemm = (struct gemm){.kind = kind,
                            .m = product(ls, &lf),
                            .n = product(rs, &rf),
                            .k = product(ls, &lc)};
    d->gemm.ta = d->lhs.transposed;
    d->gemm.tb = !d->rhs.transposed;
    d->gemm.lda = d->lhs.ld;
    d->gemm.ldb = d->rhs.ld;
    d->gemm.ldc = d->gemm.n;
    cpu_strides(&v->shape, os);
    memcpy(d->out_batch, os, sizeof *os * (size_t)d->n_batch);
    if (d->gemm.m > INT_MAX || d->gemm.n > INT_MAX || d->gemm.k > INT_MAX)
        return exec_unsupported(x, v, err, "of this size");
    d->out = x->value[call->nodes[0]];
    int64_t at = 0;
    const int size = cpu_kind_size(kind);
    side_scratch(&d->lhs, &at, size);
    side_scratch(&d->rhs, &at, size);
    d->out_at =
        cpu_is_plain(d->dtype) ? -1 : exec_take(&at, ap_shape_elems(&v->shape) * size);
    exec_need_scratch(x, at);
    call->run = dot_run;
    call->state = d;
    return 0;
}
