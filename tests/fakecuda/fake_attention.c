/*
 * cuDNN's graph API: descriptors as lists of attributes, and graphs of operations run one
 * operation after the other, in double precision, each result rounded to its tensor's
 * type. What is inconsistent is refused with cuDNN's status when a descriptor is
 * finalized. Attention needs widths of multiples of 8 up to 256. The heuristic proposes
 * first a configuration that has no plan.
 */
#include "fake.h"

#include "base/float16.h"

#if __has_include(<cudnn.h>)

#include <cudnn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ATTRIBUTES 12
#define MOST_VALUES     64 /* tensors of a graph */
#define MOST_WIDTH      256
#define WORK_BYTES      1000

struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t n;
    void *value;
};

struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool final;
    int n;
    struct attribute attribute[MOST_ATTRIBUTES];
    const struct descriptor *graph; /* of a configuration and of a plan */
    bool has_plan;                  /* configuration */
};

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

/* ---- descriptors ---- */

static size_t size_of(cudnnBackendAttributeType_t type)
{
    switch ((int)type) {
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
        return 8;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    }
    return 4;
}

static const struct attribute *find(const struct descriptor *d,
                                    cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < d->n; i++)
        if (d->attribute[i].name == name)
            return &d->attribute[i];
    return NULL;
}

static int64_t integer(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    const struct attribute *a = find(d, name);
    if (!a)
        return 0;
    return a->type == CUDNN_TYPE_INT64     ? *(const int64_t *)a->value
           : a->type == CUDNN_TYPE_BOOLEAN ? *(const bool *)a->value
                                           : *(const int32_t *)a->value;
}

static const struct descriptor *member(const struct descriptor *d,
                                       cudnnBackendAttributeName_t name)
{
    const struct attribute *a = find(d, name);
    return a ? *(struct descriptor *const *)a->value : NULL;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *out)
{
    struct descriptor *d = fake_alloc(sizeof *d);
    d->type = type;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t p)
{
    struct descriptor *d = p;
    for (int i = 0; i < d->n; i++)
        free(d->attribute[i].value);
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t p,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n,
                                       const void *value)
{
    struct descriptor *d = p;
    if (d->final || n < 1 || !value || find(d, name))
        return CUDNN_STATUS_BAD_PARAM;
    if (d->n == MOST_ATTRIBUTES)
        fake_fail("cudnn: a descriptor with many attributes");
    struct attribute *a = &d->attribute[d->n++];
    *a = (struct attribute){name, type, n, fake_alloc(size_of(type) * (size_t)n)};
    memcpy(a->value, value, size_of(type) * (size_t)n);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- what is consistent ---- */

static const int64_t *dims(const struct descriptor *t)
{
    return find(t, CUDNN_ATTR_TENSOR_DIMENSIONS)->value;
}

static const int64_t *strides(const struct descriptor *t)
{
    return find(t, CUDNN_ATTR_TENSOR_STRIDES)->value;
}

static bool is_virtual(const struct descriptor *t)
{
    return integer(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}

static bool is_by_value(const struct descriptor *t)
{
    return integer(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}

static bool is_tensor(const struct descriptor *d)
{
    const struct attribute *n = find(d, CUDNN_ATTR_TENSOR_DIMENSIONS),
                           *s = find(d, CUDNN_ATTR_TENSOR_STRIDES);
    if (!n || !s || n->n != 4 || s->n != 4 || !find(d, CUDNN_ATTR_TENSOR_UNIQUE_ID) ||
        !find(d, CUDNN_ATTR_TENSOR_DATA_TYPE) ||
        !find(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT))
        return false;
    for (int i = 0; i < 4; i++)
        if (dims(d)[i] < 1 || strides(d)[i] < 1)
            return false;
    return !(is_virtual(d) && is_by_value(d));
}

static bool are_tensors(const struct descriptor *d,
                        const cudnnBackendAttributeName_t *name, int n)
{
    for (int i = 0; i < n; i++) {
        const struct descriptor *t = member(d, name[i]);
        if (!t || t->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR || !t->final)
            return false;
    }
    return true;
}

static bool is_matmul(const struct descriptor *d)
{
    static const cudnnBackendAttributeName_t names[] = {
        CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
        CUDNN_ATTR_OPERATION_MATMUL_CDESC};
    if (!are_tensors(d, names, 3) || !member(d, CUDNN_ATTR_OPERATION_MATMUL_DESC))
        return false;
    const int64_t *a = dims(member(d, names[0])), *b = dims(member(d, names[1])),
                  *c = dims(member(d, names[2]));
    return a[0] == b[0] && a[0] == c[0] && a[1] == c[1] && a[1] % b[1] == 0 &&
           a[2] == c[2] && a[3] == b[2] && b[3] == c[3];
}

static bool is_pointwise(const struct descriptor *d)
{
    static const cudnnBackendAttributeName_t names[] = {
        CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
        CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
    if (!are_tensors(d, names, 2) ||
        !member(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR))
        return false;
    const int64_t *y = dims(member(d, names[1]));
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4 && member(d, names[k]); i++)
            if (dims(member(d, names[k]))[i] != y[i] && dims(member(d, names[k]))[i] != 1)
                return false;
    return true;
}

static bool is_reduction(const struct descriptor *d)
{
    static const cudnnBackendAttributeName_t names[] = {
        CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_ATTR_OPERATION_REDUCTION_YDESC};
    if (!are_tensors(d, names, 2) || !member(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC))
        return false;
    for (int i = 0; i < 4; i++)
        if (dims(member(d, names[0]))[i] % dims(member(d, names[1]))[i])
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
    const struct descriptor *x = member(d, names[0]), *y = member(d, names[1]);
    for (int i = 0; i < 4; i++) {
        const int from = i < 2 ? i : 5 - i;
        if (dims(y)[i] != dims(x)[from] || strides(y)[i] != strides(x)[from])
            return false;
    }
    return true;
}

static bool is_graph(const struct descriptor *d)
{
    const struct attribute *ops = find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; ops && i < ops->n; i++)
        if (!((struct descriptor *const *)ops->value)[i]->final)
            return false;
    return ops && find(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
}

static bool is_consistent(struct descriptor *d)
{
    switch ((int)d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return is_tensor(d);
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return is_matmul(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return is_pointwise(d);
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
        return is_reduction(d);
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
        return is_turned(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return is_graph(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        return member(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) &&
               find(d, CUDNN_ATTR_ENGINEHEUR_MODE);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return find(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) &&
               member(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: {
        const struct attribute *u = find(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
                               *p = find(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
        return u && p && u->n == p->n && find(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    }
    }
    return true;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t p)
{
    struct descriptor *d = p;
    if (d->final || !is_consistent(d))
        return CUDNN_STATUS_BAD_PARAM;
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const struct descriptor *config =
            member(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        if (!config->has_plan)
            return CUDNN_STATUS_NOT_SUPPORTED;
        d->graph = config->graph;
    }
    d->final = true;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- heuristics ---- */

/* The operands of contractions that are in memory. */
static bool has_engines(const struct descriptor *graph)
{
    const struct attribute *ops = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; i < ops->n; i++) {
        const struct descriptor *op = ((struct descriptor *const *)ops->value)[i];
        const struct descriptor *t = member(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
        if (op->type != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR || is_virtual(t))
            continue;
        const int64_t type = integer(t, CUDNN_ATTR_TENSOR_DATA_TYPE);
        if ((type != CUDNN_DATA_HALF && type != CUDNN_DATA_BFLOAT16) || dims(t)[3] % 8 ||
            dims(t)[3] > MOST_WIDTH || strides(t)[3] != 1)
            return false;
    }
    return true;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t p,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room,
                                       int64_t *n, void *out)
{
    const struct descriptor *d = p;
    if (!d->final || room < 1)
        return CUDNN_STATUS_BAD_PARAM;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64) {
        *(int64_t *)out = WORK_BYTES;
        *n = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS || type != CUDNN_TYPE_BACKEND_DESCRIPTOR)
        return CUDNN_STATUS_BAD_PARAM;
    const struct descriptor *graph = member(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    struct descriptor *const *config = out;
    *n = has_engines(graph) && room >= 2 ? 2 : 0;
    for (int i = 0; i < *n; i++) {
        config[i]->graph = graph;
        config[i]->final = true;
        config[i]->has_plan = i == 1;
    }
    return CUDNN_STATUS_SUCCESS;
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
    struct value value[MOST_VALUES];
};

static double load(const void *p, int64_t type, int64_t i)
{
    switch (type) {
    case CUDNN_DATA_FLOAT:
        return (double)((const float *)p)[i];
    case CUDNN_DATA_INT32:
        return (double)((const int32_t *)p)[i];
    case CUDNN_DATA_HALF:
        return (double)ap_f16_to_f32(((const uint16_t *)p)[i]);
    case CUDNN_DATA_BFLOAT16:
        return (double)ap_bf16_to_f32(((const uint16_t *)p)[i]);
    }
    fake_fail("cudnn: a tensor of type %d", (int)type);
}

static void store(void *p, int64_t type, int64_t i, double v)
{
    if (type == CUDNN_DATA_FLOAT)
        ((float *)p)[i] = (float)v;
    else if (type == CUDNN_DATA_HALF)
        ((uint16_t *)p)[i] = ap_f32_to_f16((float)v);
    else if (type == CUDNN_DATA_BFLOAT16)
        ((uint16_t *)p)[i] = ap_f32_to_bf16((float)v);
    else
        fake_fail("cudnn: a result of type %d", (int)type);
}

static double rounded(int64_t type, double v)
{
    uint32_t bits = 0;
    if (type == CUDNN_DATA_INT32 || type == CUDNN_DATA_BOOLEAN)
        return v;
    store(&bits, type, 0, v);
    return load(&bits, type, 0);
}

static int64_t elements(const struct descriptor *t)
{
    const int64_t *n = dims(t);
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
    const int64_t uid = integer(t, CUDNN_ATTR_TENSOR_UNIQUE_ID);
    struct value *y = r->value;
    int64_t at[4];
    while (y < r->value + r->n && integer(y->tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID) != uid)
        y++;
    if (y == r->value + r->n) {
        if (r->n++ == MOST_VALUES)
            fake_fail("cudnn: a graph of many tensors");
        *y = (struct value){.tensor = t};
    }
    if (y->v)
        return y;
    if (read && is_virtual(t))
        fake_fail("cudnn: an operation reads what none before it has written");
    y->v = fake_alloc(sizeof *y->v * (size_t)elements(t));
    for (int64_t i = 0; read && i < elements(t); i++) {
        split(dims(t), i, at);
        y->v[i] = is_by_value(t) ? y->scalar
                                 : load(y->p, integer(t, CUDNN_ATTR_TENSOR_DATA_TYPE),
                                        offset(strides(t), at));
    }
    return y;
}

/* Rounds a result, and writes it where it is in memory. */
static void finish(struct value *y)
{
    const struct descriptor *t = y->tensor;
    const int64_t type = integer(t, CUDNN_ATTR_TENSOR_DATA_TYPE);
    int64_t at[4];
    for (int64_t i = 0; i < elements(t); i++) {
        y->v[i] = rounded(type, y->v[i]);
        split(dims(t), i, at);
        if (!is_virtual(t))
            store(y->p, type, offset(strides(t), at), y->v[i]);
    }
}

/* The element that stands for element `at` of a result: of a dimension of 1, the one. */
static double element(const struct value *x, const int64_t at[4])
{
    const int64_t *n = dims(x->tensor);
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
    const struct descriptor *d = member(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR),
                            *bd = member(op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC),
                            *td = member(op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const int64_t mode = integer(d, CUDNN_ATTR_POINTWISE_MODE),
                  axis = integer(d, CUDNN_ATTR_POINTWISE_AXIS);
    const struct value *x =
        value_of(r, member(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC), true);
    const struct value *b = bd ? value_of(r, bd, true) : NULL,
                       *t = td ? value_of(r, td, true) : NULL;
    struct value *y =
        value_of(r, member(op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC), false);
    int64_t at[4];
    for (int64_t i = 0; i < elements(y->tensor); i++) {
        split(dims(y->tensor), i, at);
        y->v[i] = mode == CUDNN_POINTWISE_GEN_INDEX
                      ? (double)at[axis]
                      : pointwise(mode, element(x, at), b ? element(b, at) : 0,
                                  t ? element(t, at) : 0);
    }
    finish(y);
}

static void run_matmul(struct run *r, const struct descriptor *op)
{
    const struct value *a = value_of(r, member(op, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                                     true),
                       *b = value_of(r, member(op, CUDNN_ATTR_OPERATION_MATMUL_BDESC),
                                     true);
    struct value *c = value_of(r, member(op, CUDNN_ATTR_OPERATION_MATMUL_CDESC), false);
    const int64_t *an = dims(a->tensor), *bn = dims(b->tensor), shared = an[1] / bn[1];
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
        value_of(r, member(op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC), true);
    struct value *y =
        value_of(r, member(op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC), false);
    const bool max = integer(member(op, CUDNN_ATTR_OPERATION_REDUCTION_DESC),
                             CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_MAX;
    const int64_t *xn = dims(x->tensor), *yn = dims(y->tensor);
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
        value_of(r, member(op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC), true);
    struct value *y = value_of(r, member(op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC), false);
    int64_t at[4];
    for (int64_t i = 0; i < elements(y->tensor); i++) {
        split(dims(y->tensor), i, at);
        const int64_t from[4] = {at[0], at[1], at[3], at[2]};
        y->v[i] = element(x, from);
    }
    finish(y);
}

static void graph_run(void *args)
{
    struct run *r = args;
    const struct attribute *ops = find(r->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
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

/* The tensor of an operation of the graph with this id. */
static const struct descriptor *tensor_of(const struct descriptor *graph, int64_t uid)
{
    const struct attribute *ops = find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; i < ops->n; i++) {
        const struct descriptor *op = ((struct descriptor *const *)ops->value)[i];
        for (int k = 0; k < op->n; k++) {
            const struct descriptor *t =
                *(struct descriptor *const *)op->attribute[k].value;
            if (t->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR &&
                integer(t, CUDNN_ATTR_TENSOR_UNIQUE_ID) == uid)
                return t;
        }
    }
    return NULL;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t p,
                                  cudnnBackendDescriptor_t variant)
{
    const struct descriptor *plan = p, *pack = variant;
    struct run r = {.graph = plan->graph};
    if (plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !plan->final ||
        !pack->final)
        return CUDNN_STATUS_BAD_PARAM;
    const struct attribute *uid = find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    void *const *pointer = find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->value;
    r.work = *(void *const *)find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->value;
    for (int64_t i = 0; i < uid->n; i++) {
        const struct descriptor *t = tensor_of(r.graph, ((const int64_t *)uid->value)[i]);
        if (!t || is_virtual(t))
            return CUDNN_STATUS_BAD_PARAM;
        struct value *v = &r.value[r.n++];
        *v = (struct value){.tensor = t, .p = pointer[i]};
        if (is_by_value(t))
            v->scalar = load(pointer[i], integer(t, CUDNN_ATTR_TENSOR_DATA_TYPE), 0);
        else if (!fake_is_device(pointer[i], 1) ||
                 (uintptr_t)pointer[i] %
                     (uintptr_t)integer(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT))
            return CUDNN_STATUS_BAD_PARAM;
    }
    return fake_enqueue(fake_dnn_stream(h), "cudnn graph", graph_run, &r, sizeof r)
               ? CUDNN_STATUS_EXECUTION_FAILED
               : CUDNN_STATUS_SUCCESS;
}

#endif
