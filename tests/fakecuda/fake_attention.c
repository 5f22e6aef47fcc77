/*
 * cuDNN's graphs of attention: run one operation after the other, in double precision,
 * each result rounded to its tensor's type. Attention needs widths of multiples of 8 up
 * to 256. The heuristic proposes first a configuration that has no plan.
 */
#include "fake.h"

#if __has_include(<cudnn.h>)

#include "fake_dnn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_WIDTH 256
#define WORK_BYTES 1000

/* ---- what is consistent ---- */

/* Whether the first n members are tensors of four dimensions. */
static bool are_tensors(const struct descriptor *d,
                        const cudnnBackendAttributeName_t *name, int n)
{
    for (int i = 0; i < n; i++) {
        const struct descriptor *t = dnn_member(d, name[i]);
        if (!t || t->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR || !t->final ||
            dnn_rank(t) != 4)
            return false;
    }
    return true;
}

static bool is_matmul(const struct descriptor *d)
{
    static const cudnnBackendAttributeName_t names[] = {
        CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
        CUDNN_ATTR_OPERATION_MATMUL_CDESC};
    if (!are_tensors(d, names, 3) || !dnn_member(d, CUDNN_ATTR_OPERATION_MATMUL_DESC))
        return false;
    const int64_t *a = dnn_dims(dnn_member(d, names[0])),
                  *b = dnn_dims(dnn_member(d, names[1])),
                  *c = dnn_dims(dnn_member(d, names[2]));
    return a[0] == b[0] && a[0] == c[0] && a[1] == c[1] && a[1] % b[1] == 0 &&
           a[2] == c[2] && a[3] == b[2] && b[3] == c[3];
}

static bool is_pointwise(const struct descriptor *d)
{
    static const cudnnBackendAttributeName_t names[] = {
        CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
        CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
    if (!are_tensors(d, names, 2) ||
        !dnn_member(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR))
        return false;
    const int64_t *y = dnn_dims(dnn_member(d, names[1]));
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4 && dnn_member(d, names[k]); i++)
            if (dnn_dims(dnn_member(d, names[k]))[i] != y[i] &&
                dnn_dims(dnn_member(d, names[k]))[i] != 1)
                return false;
    return true;
}

static bool is_reduction(const struct descriptor *d)
{
    static const cudnnBackendAttributeName_t names[] = {
        CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_YDESC};
    if (!are_tensors(d, names, 2) || !dnn_member(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC))
        return false;
    for (int i = 0; i < 4; i++)
        if (dnn_dims(dnn_member(d, names[0]))[i] % dnn_dims(dnn_member(d, names[1]))[i])
            return false;
    return true;
}

/* Only the last two dimensions exchanged are in the fake. */
static bool is_turned(const struct descriptor *d)
{
    static const cudnnBackendAttributeName_t names[] = {
        CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_ATTR_OPERATION_RESHAPE_YDESC};
    if (!are_tensors(d, names, 2))
        return false;
    const struct descriptor *x = dnn_member(d, names[0]), *y = dnn_member(d, names[1]);
    for (int i = 0; i < 4; i++) {
        const int from = i < 2 ? i : 5 - i;
        if (dnn_dims(y)[i] != dnn_dims(x)[from] ||
            dnn_strides(y)[i] != dnn_strides(x)[from])
            return false;
    }
    return true;
}

bool dnn_is_attention(const struct descriptor *d)
{
    switch ((int)d->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return is_matmul(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return is_pointwise(d);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return is_reduction(d);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return is_turned(d);
    }
    return true;
}

/* ---- heuristics ---- */

/* The operands of contractions that are in memory. */
static bool has_engines(const struct descriptor *graph)
{
    const struct attribute *ops = dnn_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; i < ops->n; i++) {
        const struct descriptor *op = ((struct descriptor *const *)ops->value)[i];
        const struct descriptor *t = dnn_member(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
        if (op->type != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR || dnn_is_virtual(t))
            continue;
        const int64_t type = dnn_integer(t, CUDNN_ATTR_TENSOR_DATA_TYPE);
        if ((type != CUDNN_DATA_HALF && type != CUDNN_DATA_BFLOAT16) ||
            dnn_dims(t)[3] % 8 || dnn_dims(t)[3] > MOST_WIDTH || dnn_strides(t)[3] != 1)
            return false;
    }
    return true;
}

int dnn_propose_attention(const struct descriptor *graph, int64_t mode,
                          struct proposal *out)
{
    if (mode != CUDNN_HEUR_MODE_A || !has_engines(graph))
        return 0;
    out[0] = (struct proposal){.workspace = WORK_BYTES};
    out[1] = (struct proposal){.workspace = WORK_BYTES, .has_plan = true, .runs = true};
    return 2;
}

/* ---- running a graph ---- */

struct value {
    const struct descriptor *tensor;
    double *v; /* dense */
    char *p;   /* of a tensor in memory */
    double scalar;
};

struct run {
    const struct descriptor *graph;
    void *work;
    int n;
    struct value value[DNN_TENSORS];
};

static double rounded(int64_t type, double v)
{
    uint32_t bits = 0;
    if (type == CUDNN_DATA_INT32 || type == CUDNN_DATA_BOOLEAN)
        return v;
    dnn_store(&bits, type, 0, v);
    return dnn_load(&bits, type, 0);
}

static int64_t elements(const struct descriptor *t)
{
    const int64_t *n = dnn_dims(t);
    return n[0] * n[1] * n[2] * n[3];
}

/* The four indices of element i of a dense tensor. */
static void split(const int64_t *n, int64_t i, int64_t at[4])
{
    for (int d = 3; d >= 0; i /= n[d--])
        at[d] = i % n[d];
}

static int64_t offset(const int64_t *stride, const int64_t at[4])
{
    return at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2] + at[3] * stride[3];
}

/* A tensor's elements; those of one in memory are read when they are first asked for. */
static struct value *value_of(struct run *r, const struct descriptor *t, bool read)
{
    const int64_t uid = dnn_integer(t, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    struct value *y = r->value;
    int64_t at[4];
    while (y < r->value + r->n &&
           dnn_integer(y->tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID) != uid)
        y++;
    if (y == r->value + r->n) {
        if (r->n++ == DNN_TENSORS)
            fake_fail("cudnn: a graph of many tensors");
        *y = (struct value){.tensor = t};
    }
    if (y->v)
        return y;
    if (read && dnn_is_virtual(t))
        fake_fail("cudnn: an operation reads what none before it has written");
    y->v = fake_alloc(sizeof *y->v * (size_t)elements(t));
    for (int64_t i = 0; read && i < elements(t); i++) {
        split(dnn_dims(t), i, at);
        y->v[i] = dnn_is_by_value(t)
                      ? y->scalar
                      : dnn_load(y->p, dnn_integer(t, CUDNN_ATTR_TENSOR_DATA_TYPE),
                                 offset(dnn_strides(t), at));
    }
    return y;
}

/* Rounds a result, and writes it where it is in memory. */
static void finish(struct value *y)
{
    const struct descriptor *t = y->tensor;
    const int64_t type = dnn_integer(t, CUDNN_ATTR_TENSOR_DATA_TYPE);
    int64_t at[4];
    for (int64_t i = 0; i < elements(t); i++) {
        y->v[i] = rounded(type, y->v[i]);
        split(dnn_dims(t), i, at);
        if (!dnn_is_virtual(t))
            dnn_store(y->p, type, offset(dnn_strides(t), at), y->v[i]);
    }
}

/* The element that stands for element `at` of a result: of a dimension of 1, the one. */
static double element(const struct value *x, const int64_t at[4])
{
    const int64_t *n = dnn_dims(x->tensor);
    int64_t i = 0;
    for (int d = 0; d < 4; d++)
        i = i * n[d] + (n[d] == 1 ? 0 : at[d]);
    return x->v[i];
}

static double pointwise(int64_t mode, double x, double b, double t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return log(x);
    case CUDNN_POINTWISE_IDENTITY:
        return x;
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b;
    case CUDNN_POINTWISE_CMP_GT:
        return x > b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    }
    fake_fail("cudnn: pointwise mode %d is not in the fake", (int)mode);
}

static void run_pointwise(struct run *r, const struct descriptor *op)
{
    const struct descriptor *d = dnn_member(op,
                                            CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR),
                            *bd = dnn_member(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
                            *td = dnn_member(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const int64_t mode = dnn_integer(d, CUDNN_ATTR_POINTWISE_MODE),
                  axis = dnn_integer(d, CUDNN_ATTR_POINTWISE_AXIS);
    const struct value *x =
        value_of(r, dnn_member(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC), true);
    const struct value *b = bd ? value_of(r, bd, true) : NULL,
                       *t = td ? value_of(r, td, true) : NULL;
    struct value *y =
        value_of(r, dnn_member(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC), false);
    int64_t at[4];
    for (int64_t i = 0; i < elements(y->tensor); i++) {
        split(dnn_dims(y->tensor), i, at);
        y->v[i] = mode == CUDNN_POINTWISE_GEN_INDEX
                      ? (double)at[axis]
                      : pointwise(mode, element(x, at), b ? element(b, at) : 0,
                                  t ? element(t, at) : 0);
    }
    finish(y);
}

static void run_matmul(struct run *r, const struct descriptor *op)
{
    const struct value *a = value_of(r, dnn_member(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                                     true),
                       *b = value_of(r, dnn_member(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC),
                                     true);
    struct value *c =
        value_of(r, dnn_member(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC), false);
    const int64_t *an = dnn_dims(a->tensor), *bn = dnn_dims(b->tensor),
                  shared = an[1] / bn[1];
    const int64_t m = an[2], n = bn[3], k = an[3];
    for (int64_t i = 0; i < an[0] * an[1]; i++) {
        const double *x = a->v + i * m * k,
                     *y = b->v + (i / an[1] * bn[1] + i % an[1] / shared) * k * n;
        double *z = c->v + i * m * n;
        for (int64_t p = 0; p < m; p++)
            for (int64_t s = 0; s < k; s++)
                for (int64_t q = 0; q < n; q++)
                    z[p * n + q] += x[p * k + s] * y[s * n + q];
    }
    finish(c);
}

static void run_reduction(struct run *r, const struct descriptor *op)
{
    const struct value *x =
        value_of(r, dnn_member(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC), true);
    struct value *y =
        value_of(r, dnn_member(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC), false);
    const bool max =
        dnn_integer(dnn_member(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC),
                    CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    const int64_t *xn = dnn_dims(x->tensor), *yn = dnn_dims(y->tensor);
    int64_t at[4];
    for (int64_t i = 0; max && i < elements(y->tensor); i++)
        y->v[i] = -INFINITY;
    for (int64_t i = 0; i < elements(x->tensor); i++) {
        int64_t to = 0;
        split(xn, i, at);
        for (int d = 0; d < 4; d++)
            to = to * yn[d] + at[d] / (xn[d] / yn[d]);
        y->v[to] = !max ? y->v[to] + x->v[i] : fmax(y->v[to], x->v[i]);
    }
    finish(y);
}

static void run_turned(struct run *r, const struct descriptor *op)
{
    const struct value *x =
        value_of(r, dnn_member(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC), true);
    struct value *y =
        value_of(r, dnn_member(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC), false);
    int64_t at[4];
    for (int64_t i = 0; i < elements(y->tensor); i++) {
        split(dnn_dims(y->tensor), i, at);
        const int64_t from[4] = {at[0], at[1], at[3], at[2]};
        y->v[i] = element(x, from);
    }
    finish(y);
}

static void graph_run(void *args)
{
    struct run *r = args;
    const struct attribute *ops = dnn_find(r->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    memset(r->work, 0xFF, WORK_BYTES);
    for (int64_t i = 0; i < ops->n; i++) {
        const struct descriptor *op = ((struct descriptor *const *)ops->value)[i];
        if (op->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
            run_pointwise(r, op);
        else if (op->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            run_matmul(r, op);
        else if (op->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            run_reduction(r, op);
        else
            run_turned(r, op);
    }
    for (int i = 0; i < r->n; i++) {
        free(r->value[i].v);
        r->value[i].v = NULL; /* a graph runs again */
    }
}

cudaError_t dnn_run_attention(cudaStream_t stream, const struct descriptor *plan,
                              void *work, int n, const struct dnn_memory *memory)
{
    struct run r = {.graph = plan->graph, .work = work, .n = n};
    for (int i = 0; i < n; i++) {
        const struct descriptor *t = memory[i].tensor;
        r.value[i] = (struct value){.tensor = t, .p = memory[i].p};
        if (dnn_is_by_value(t))
            r.value[i].scalar =
                dnn_load(memory[i].p, dnn_integer(t, CUDNN_ATTR_TENSOR_DATA_TYPE), 0);
    }
    return fake_enqueue(stream, "cudnn graph", graph_run, &r, sizeof r);
}

#endif
