/*
 * dot: batch, free and contracting dimensions in any order, as a batch of matrix
 * products. An operand whose free and contracting dimensions are each evenly strided is
 * read where it lies (BLAS takes either order); any other is packed to
 * [batch][free][contracting]. bf16 and f16 are converted to f32, accumulated in f32 and
 * rounded once. 2mnk operations.
 */
#include "cpu/cpu.h"

#include <limits.h>
#include <string.h>

/* One operand as matrices. */
struct side {
    int node;
    enum ap_dtype dtype;
    int64_t elems;
    bool pack;       /* into [batch][free][contracting] */
    struct box box;  /* the packing */
    bool transposed; /* contracting dimension major */
    int64_t ld;
    int64_t batch[AP_MAX_RANK]; /* strides of the batch dimensions */
    int64_t half_at, pack_at;   /* scratch: f32 copy of bf16 data, packed copy; -1 none */
};

struct dot {
    enum cpu_kind kind;
    enum ap_dtype dtype;
    int n_batch;
    int64_t batch[AP_MAX_RANK];
    int64_t m, n, k;
    struct side lhs, rhs;
    char *out;
    int64_t out_at; /* scratch of the f32 result, -1: straight to out */
};

/* Size and stride of dims taken as one dimension; false if they are not evenly strided.
 */
static bool collapse(const struct ap_shape *s, const int64_t *stride, const int *dims,
                     int n, int64_t *size, int64_t *step)
{
    *size = 1, *step = 1;
    bool any = false;
    for (int i = n - 1; i >= 0; i--) {
        const int64_t e = s->dims[dims[i]];
        if (e == 1)
            continue;
        if (!any)
            *step = stride[dims[i]];
        else if (stride[dims[i]] != *step * *size)
            return false;
        any = true;
        *size *= e;
    }
    return true;
}

static int64_t product(const struct ap_shape *s, const int *dims, int n)
{
    int64_t p = 1;
    for (int i = 0; i < n; i++)
        p *= s->dims[dims[i]];
    return p;
}

/* How the operand is read: where it lies, or packed. */
static void side_prepare(struct side *sd, const struct ap_shape *s, const int *batch,
                         int n_batch, const int *free_dims, int n_free,
                         const int *contract, int n_contract)
{
    int64_t stride[AP_MAX_RANK], f, c, fs, cs;
    cpu_strides(s, stride);
    sd->dtype = s->dtype;
    sd->elems = ap_shape_elems(s);
    const bool even = collapse(s, stride, free_dims, n_free, &f, &fs) &
                      collapse(s, stride, contract, n_contract, &c, &cs);
    for (int i = 0; i < n_batch; i++)
        sd->batch[i] = stride[batch[i]];
    if (even && (c == 1 || cs == 1) && (f == 1 || fs >= c) && fs < INT_MAX) {
        sd->ld = f == 1 ? c : fs;
    } else if (even && (f == 1 || fs == 1) && (c == 1 || cs >= f) && cs < INT_MAX) {
        sd->transposed = true;
        sd->ld = c == 1 ? f : cs;
    } else {
        sd->pack = true;
        f = product(s, free_dims, n_free);
        c = product(s, contract, n_contract);
        sd->ld = c;
        int64_t at = 1;
        for (int i = n_contract - 1; i >= 0; at *= s->dims[contract[i--]])
            box_add(&sd->box, s->dims[contract[i]], stride[contract[i]], at);
        for (int i = n_free - 1; i >= 0; at *= s->dims[free_dims[i--]])
            box_add(&sd->box, s->dims[free_dims[i]], stride[free_dims[i]], at);
        for (int i = n_batch - 1; i >= 0; at *= s->dims[batch[i--]]) {
            box_add(&sd->box, s->dims[batch[i]], stride[batch[i]], at);
            sd->batch[i] = at;
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

static void dot_run(struct exec *x, void *state)
{
    const struct dot *d = state;
    const int size = cpu_kind_size(d->kind);
    const char *a = side_data(x, &d->lhs, size), *b = side_data(x, &d->rhs, size);
    char *out = d->out_at >= 0 ? x->scratch + d->out_at : d->out;
    int64_t at[AP_MAX_RANK] = {0}, n = 1;
    for (int i = 0; i < d->n_batch; i++)
        n *= d->batch[i];
    for (int64_t q = 0; q < n; q++) {
        int64_t ao = 0, bo = 0;
        for (int i = 0; i < d->n_batch; i++) {
            ao += at[i] * d->lhs.batch[i];
            bo += at[i] * d->rhs.batch[i];
        }
        cpu_gemm(d->kind, d->lhs.transposed, !d->rhs.transposed, d->m, d->n, d->k,
                 a + ao * size, d->lhs.ld, b + bo * size, d->rhs.ld,
                 out + q * d->m * d->n * size, d->n);
        for (int i = d->n_batch - 1; i >= 0 && ++at[i] == d->batch[i]; i--)
            at[i] = 0;
    }
    if (d->out_at >= 0)
        cpu_store(d->out, 1, out, d->dtype, n * d->m * d->n);
}

static void side_scratch(struct side *sd, int64_t *at, int size)
{
    sd->half_at = sd->pack_at = -1;
    if (!cpu_is_plain(sd->dtype))
        sd->half_at = exec_take(at, sd->elems * size);
    if (sd->pack)
        sd->pack_at = exec_take(at, sd->elems * size);
}

/* Dimensions of s that are in neither list, ascending; returns their number. */
static int other_dims(const struct ap_shape *s, const int *a, int na, const int *b,
                      int nb, int *out)
{
    int n = 0;
    for (int d = 0; d < s->rank; d++) {
        bool used = false;
        for (int i = 0; i < na; i++)
            used |= a[i] == d;
        for (int i = 0; i < nb; i++)
            used |= b[i] == d;
        if (!used)
            out[n++] = d;
    }
    return n;
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
    int lb[AP_MAX_RANK], rb[AP_MAX_RANK], lc[AP_MAX_RANK], rc[AP_MAX_RANK];
    int lf[AP_MAX_RANK], rf[AP_MAX_RANK];
    struct dot *d = AP_NEW(x->arena, struct dot);
    const int nb = t->lhs_batch_dims.n, nc = t->lhs_contracting_dims.n;
    for (int i = 0; i < nb; i++) {
        lb[i] = (int)t->lhs_batch_dims.v[i];
        rb[i] = (int)t->rhs_batch_dims.v[i];
        d->batch[i] = ls->dims[lb[i]];
    }
    for (int i = 0; i < nc; i++) {
        lc[i] = (int)t->lhs_contracting_dims.v[i];
        rc[i] = (int)t->rhs_contracting_dims.v[i];
    }
    sort_pairs(lc, rc, nc);
    const int nlf = other_dims(ls, lb, nb, lc, nc, lf);
    const int nrf = other_dims(rs, rb, nb, rc, nc, rf);
    d->dtype = v->shape.dtype;
    d->kind = cpu_kind(v->shape.dtype);
    if (d->kind == CPU_N_KINDS || cpu_kind(ls->dtype) != d->kind ||
        cpu_kind(rs->dtype) != d->kind)
        return exec_unsupported(x, v, err, "of these element types");
    d->n_batch = nb;
    d->m = product(ls, lf, nlf);
    d->n = product(rs, rf, nrf);
    d->k = product(ls, lc, nc);
    if (d->m > INT_MAX || d->n > INT_MAX || d->k > INT_MAX)
        return exec_unsupported(x, v, err, "of this size");
    side_prepare(&d->lhs, ls, lb, nb, lf, nlf, lc, nc);
    side_prepare(&d->rhs, rs, rb, nb, rf, nrf, rc, nc);
    d->lhs.node = v->in[0];
    d->rhs.node = v->in[1];
    d->out = x->value[call->nodes[0]];
    int64_t at = 0;
    const int size = cpu_kind_size(d->kind);
    side_scratch(&d->lhs, &at, size);
    side_scratch(&d->rhs, &at, size);
    d->out_at =
        cpu_is_plain(d->dtype) ? -1 : exec_take(&at, ap_shape_elems(&v->shape) * size);
    exec_need_scratch(x, at);
    call->run = dot_run;
    call->state = d;
    return 0;
}
