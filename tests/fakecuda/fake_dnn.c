/*
 * cuDNN's graph API: descriptors as lists of attributes. What is inconsistent is refused
 * with cuDNN's status when a descriptor is finalized. Operations run in double precision,
 * rounded once to the type of each result (fake_attention.c, fake_conv.c).
 */
#include "fake.h"

#include "base/float16.h"

#if __has_include(<cudnn.h>)

#include "fake_dnn.h"

#include <stdlib.h>
#include <string.h>

struct cudnnContext {
    cudaStream_t stream;
};

const char *cudnnGetErrorString(cudnnStatus_t rc)
{
    return rc == CUDNN_STATUS_SUCCESS         ? "CUDNN_STATUS_SUCCESS"
           : rc == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                              : "CUDNN_STATUS_BAD_PARAM";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *h)
{
    *h = fake_alloc(sizeof **h);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t stream)
{
    if (!fake_stream_is(stream))
        return CUDNN_STATUS_BAD_PARAM;
    h->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

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

const struct attribute *dnn_find(const struct descriptor *d,
                                 cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < d->n; i++)
        if (d->attribute[i].name == name)
            return &d->attribute[i];
    return NULL;
}

int64_t dnn_integer(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    const struct attribute *a = dnn_find(d, name);
    if (!a)
        return 0;
    return a->type == CUDNN_TYPE_INT64     ? *(const int64_t *)a->value
           : a->type == CUDNN_TYPE_BOOLEAN ? *(const bool *)a->value
                                           : *(const int32_t *)a->value;
}

const struct descriptor *dnn_member(const struct descriptor *d,
                                    cudnnBackendAttributeName_t name)
{
    const struct attribute *a = dnn_find(d, name);
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
    if (d->final || n < 1 || !value || dnn_find(d, name))
        return CUDNN_STATUS_BAD_PARAM;
    if (d->n == DNN_ATTRIBUTES)
        fake_fail("cudnn: a descriptor with many attributes");
    struct attribute *a = &d->attribute[d->n++];
    *a = (struct attribute){name, type, n, fake_alloc(size_of(type) * (size_t)n)};
    memcpy(a->value, value, size_of(type) * (size_t)n);
    return CUDNN_STATUS_SUCCESS;
}

/* ---- tensors ---- */

int dnn_rank(const struct descriptor *t)
{
    return (int)dnn_find(t, CUDNN_ATTR_TENSOR_DIMENSIONS)->n;
}

const int64_t *dnn_dims(const struct descriptor *t)
{
    return dnn_find(t, CUDNN_ATTR_TENSOR_DIMENSIONS)->value;
}

const int64_t *dnn_strides(const struct descriptor *t)
{
    return dnn_find(t, CUDNN_ATTR_TENSOR_STRIDES)->value;
}

bool dnn_is_virtual(const struct descriptor *t)
{
    return dnn_integer(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}

bool dnn_is_by_value(const struct descriptor *t)
{
    return dnn_integer(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}

static bool is_tensor(const struct descriptor *d)
{
    const struct attribute *n = dnn_find(d, CUDNN_ATTR_TENSOR_DIMENSIONS),
                           *s = dnn_find(d, CUDNN_ATTR_TENSOR_STRIDES);
    if (!n || !s || n->n < 4 || n->n > 5 || s->n != n->n ||
        !dnn_find(d, CUDNN_ATTR_TENSOR_UNIQUE_ID) ||
        !dnn_find(d, CUDNN_ATTR_TENSOR_DATA_TYPE) ||
        !dnn_find(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT))
        return false;
    for (int i = 0; i < dnn_rank(d); i++)
        if (dnn_dims(d)[i] < 1 || dnn_strides(d)[i] < 1)
            return false;
    return !(dnn_is_virtual(d) && dnn_is_by_value(d));
}

double dnn_load(const void *p, int64_t type, int64_t i)
{
    switch (type) {
    case CUDNN_DATA_DOUBLE:
        return ((const double *)p)[i];
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

void dnn_store(void *p, int64_t type, int64_t i, double v)
{
    if (type == CUDNN_DATA_DOUBLE)
        ((double *)p)[i] = v;
    else if (type == CUDNN_DATA_FLOAT)
        ((float *)p)[i] = (float)v;
    else if (type == CUDNN_DATA_HALF)
        ((uint16_t *)p)[i] = ap_f32_to_f16((float)v);
    else if (type == CUDNN_DATA_BFLOAT16)
        ((uint16_t *)p)[i] = ap_f32_to_bf16((float)v);
    else
        fake_fail("cudnn: a result of type %d", (int)type);
}

/* ---- what is consistent ---- */

static bool is_graph(const struct descriptor *d)
{
    const struct attribute *ops = dnn_find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; ops && i < ops->n; i++)
        if (!((struct descriptor *const *)ops->value)[i]->final)
            return false;
    return ops && dnn_find(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
}

static bool is_consistent(struct descriptor *d)
{
    switch ((int)d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return is_tensor(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return is_graph(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        return dnn_member(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) &&
               dnn_find(d, CUDNN_ATTR_ENGINEHEUR_MODE);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return dnn_find(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) &&
               dnn_member(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: {
        const struct attribute *u = dnn_find(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
                               *p = dnn_find(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
        return u && p && u->n == p->n && dnn_find(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    }
    }
    return dnn_is_attention(d) && dnn_is_convolution(d);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t p)
{
    struct descriptor *d = p;
    if (d->final || !is_consistent(d))
        return CUDNN_STATUS_BAD_PARAM;
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
        const struct descriptor *config =
            dnn_member(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
        if (!config->proposal.has_plan)
            return CUDNN_STATUS_NOT_SUPPORTED;
        d->graph = config->graph;
        d->proposal = config->proposal;
    }
    d->final = true;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- heuristics ---- */

/* Whether a graph is one convolution, not an attention. */
static bool convolves(const struct descriptor *graph)
{
    const struct attribute *ops = dnn_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    const cudnnBackendDescriptorType_t type =
        (*(struct descriptor *const *)ops->value)->type;
    return type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ||
           type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ||
           type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;
}

static int64_t propose(const struct descriptor *heuristic, int64_t room,
                       struct descriptor *const *config)
{
    const struct descriptor *graph =
        dnn_member(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    const int64_t mode = dnn_integer(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE);
    struct proposal list[DNN_PROPOSALS];
    const int n = convolves(graph) ? dnn_propose_convolution(graph, mode, list)
                                   : dnn_propose_attention(graph, mode, list);
    for (int i = 0; i < n && i < room; i++) {
        if (config[i]->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
            fake_fail("cudnn: results of a heuristic are configurations");
        config[i]->graph = graph;
        config[i]->final = true;
        config[i]->proposal = list[i];
    }
    return n;
}

static int64_t note_all(unsigned notes, int64_t room, cudnnBackendNumericalNote_t *out)
{
    int64_t n = 0;
    for (int i = 0; i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT && n < room; i++)
        if (notes >> i & 1)
            out[n++] = (cudnnBackendNumericalNote_t)i;
    return n;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t p,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room,
                                       int64_t *n, void *out)
{
    const struct descriptor *d = p;
    if (!d->final || room < 1)
        return CUDNN_STATUS_BAD_PARAM;
    *n = 1;
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64) {
        *(int64_t *)out = d->proposal.workspace;
    } else if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS &&
               type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        *n = propose(d, room, out);
    } else if (name == CUDNN_ATTR_ENGINECFG_ENGINE &&
               type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        struct descriptor *engine = *(struct descriptor *const *)out;
        engine->final = true;
        engine->proposal = d->proposal;
    } else if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE &&
               type == CUDNN_TYPE_NUMERICAL_NOTE) {
        *n = note_all(d->proposal.notes, room, out);
    } else {
        return CUDNN_STATUS_BAD_PARAM;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- execution ---- */

/* The tensor of an operation of the graph with this id. */
static const struct descriptor *tensor_of(const struct descriptor *graph, int64_t uid)
{
    const struct attribute *ops = dnn_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    for (int64_t i = 0; i < ops->n; i++) {
        const struct descriptor *op = ((struct descriptor *const *)ops->value)[i];
        for (int k = 0; k < op->n; k++) {
            const struct attribute *a = &op->attribute[k];
            const struct descriptor *t = a->type == CUDNN_TYPE_BACKEND_DESCRIPTOR
                                             ? *(struct descriptor *const *)a->value
                                             : NULL;
            if (t && t->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR &&
                dnn_integer(t, CUDNN_ATTR_TENSOR_UNIQUE_ID) == uid)
                return t;
        }
    }
    return NULL;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t p,
                                  cudnnBackendDescriptor_t variant)
{
    const struct descriptor *plan = p, *pack = variant;
    struct dnn_memory memory[DNN_TENSORS];
    if (plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !plan->final ||
        !pack->final || !plan->proposal.runs)
        return CUDNN_STATUS_BAD_PARAM;
    const struct attribute *uid = dnn_find(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    void *const *pointer = dnn_find(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->value;
    void *work = *(void *const *)dnn_find(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE)->value;
    if (plan->proposal.workspace > 0 &&
        !fake_is_device(work, (size_t)plan->proposal.workspace))
        return CUDNN_STATUS_BAD_PARAM;
    if (uid->n > DNN_TENSORS)
        fake_fail("cudnn: a graph of many tensors");
    for (int64_t i = 0; i < uid->n; i++) {
        const struct descriptor *t =
            tensor_of(plan->graph, ((const int64_t *)uid->value)[i]);
        if (!t || dnn_is_virtual(t))
            return CUDNN_STATUS_BAD_PARAM;
        if (!dnn_is_by_value(t) &&
            (!fake_is_device(pointer[i], 1) ||
             (uintptr_t)pointer[i] %
                 (uintptr_t)dnn_integer(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)))
            return CUDNN_STATUS_BAD_PARAM;
        memory[i] = (struct dnn_memory){t, pointer[i]};
    }
    const cudaError_t rc =
        convolves(plan->graph)
            ? dnn_run_convolution(h->stream, plan, work, (int)uid->n, memory)
            : dnn_run_attention(h->stream, plan, work, (int)uid->n, memory);
    return rc ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

#endif
