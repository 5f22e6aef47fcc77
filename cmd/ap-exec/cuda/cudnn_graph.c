/*
 * cuDNN's graph API: descriptors, the choice of an engine, runs.
 *
 * cuDNN's heuristic lists configurations of engines for a graph, best first, and a second
 * list of those that nearly always work. Which of them have a plan shows only when one is
 * made, which may compile a kernel; so an engine's numerical notes are read first, and
 * plans are made one by one until there is one.
 */
#include "cudnn_graph.h"

#include "cuda.h"
#include "tool/tool.h"

#if CUDA_HAS_CUDNN

/* Of each of the heuristic's two lists. */
#define MOST_CONFIGS 64

typedef cudnnBackendDescriptor_t desc;

/* ---- descriptors ---- */

static void keep(struct cudnn_plan *p, desc d)
{
    if (p->n_made == p->cap_made) {
        p->cap_made = p->cap_made ? 2 * p->cap_made : 32;
        p->made = ap_xrealloc(p->made, sizeof *p->made * (size_t)p->cap_made);
    }
    p->made[p->n_made++] = d;
}

desc cudnn_make(struct cudnn_builder *b, cudnnBackendDescriptorType_t type)
{
    desc d = NULL;
    if (b->rc == CUDNN_STATUS_SUCCESS)
        b->rc = cudnn_open()->cudnnBackendCreateDescriptor(type, &d);
    if (d)
        keep(b->p, d);
    return d;
}

void cudnn_set(struct cudnn_builder *b, desc d, cudnnBackendAttributeName_t name,
               cudnnBackendAttributeType_t type, int64_t n, const void *value)
{
    if (b->rc == CUDNN_STATUS_SUCCESS)
        b->rc = cudnn_open()->cudnnBackendSetAttribute(d, name, type, n, value);
}

void cudnn_set_desc(struct cudnn_builder *b, desc d, cudnnBackendAttributeName_t name,
                    desc value)
{
    cudnn_set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

void cudnn_set_type(struct cudnn_builder *b, desc d, cudnnBackendAttributeName_t name,
                    cudnnDataType_t value)
{
    cudnn_set(b, d, name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}

void cudnn_finalize(struct cudnn_builder *b, desc d)
{
    if (b->rc == CUDNN_STATUS_SUCCESS)
        b->rc = cudnn_open()->cudnnBackendFinalize(d);
}

desc cudnn_tensor(struct cudnn_builder *b, cudnnDataType_t type, int rank,
                  const int64_t *n, const int64_t *stride, enum cudnn_storage storage,
                  int of)
{
    desc t = cudnn_make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const int64_t uid = ++b->n_uids, alignment = 16;
    const bool is_virtual = storage == CUDNN_VIRTUAL,
               by_value = storage == CUDNN_BY_VALUE;

    cudnn_set_type(b, t, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    cudnn_set(b, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, n);
    cudnn_set(b, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, stride);
    cudnn_set(b, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    cudnn_set(b, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    cudnn_set(b, t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    cudnn_set(b, t, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    cudnn_finalize(b, t);
    if (!is_virtual) {
        b->p->uid[b->p->n] = uid;
        b->p->of[b->p->n++] = of;
    }
    return t;
}

void cudnn_end_op(struct cudnn_builder *b, desc op)
{
    cudnn_finalize(b, op);
    b->ops[b->n_ops++] = op;
}

/* ---- the choice of an engine ---- */

/* One of the heuristic's lists. */
struct proposals {
    int n; /* -1: not asked for yet */
    int n_made;
    desc config[MOST_CONFIGS];
    bool refused[MOST_CONFIGS]; /* it has no plan, or a large one */
    bool kept[MOST_CONFIGS];    /* the plan's */
};

static void ask(struct cudnn_builder *b, desc graph, cudnnBackendHeurMode_t mode,
                struct proposals *q)
{
    const struct cudnn *lib = cudnn_open();
    int64_t n = 0;
    desc heuristic = cudnn_make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    q->n = 0;
    cudnn_set_desc(b, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    cudnn_set(b, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    cudnn_finalize(b, heuristic);
    while (b->rc == CUDNN_STATUS_SUCCESS && q->n_made < MOST_CONFIGS) {
        b->rc = lib->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                                  &q->config[q->n_made]);
        q->n_made += b->rc == CUDNN_STATUS_SUCCESS;
    }
    if (b->rc == CUDNN_STATUS_SUCCESS &&
        lib->cudnnBackendGetAttribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, q->n_made, &n,
                                      q->config) == CUDNN_STATUS_SUCCESS)
        q->n = n < q->n_made ? (int)n : q->n_made;
    b->rc = CUDNN_STATUS_SUCCESS; /* a list that there is not is empty */
}

/* The notes of a configuration's engine as bits; false: cuDNN does not say. */
static bool notes_of(desc config, unsigned *notes)
{
    const struct cudnn *lib = cudnn_open();
    cudnnBackendNumericalNote_t note[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0;
    desc engine = NULL;
    *notes = 0;
    if (lib->cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) !=
        CUDNN_STATUS_SUCCESS)
        return false;
    const bool known =
        lib->cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n,
                                      &engine) == CUDNN_STATUS_SUCCESS &&
        lib->cudnnBackendGetAttribute(
            engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
            CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, note) == CUDNN_STATUS_SUCCESS;
    for (int i = 0; known && i < (int)n && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++)
        *notes |= (unsigned)note[i] < 32 ? 1u << (unsigned)note[i] : 0;
    lib->cudnnBackendDestroyDescriptor(engine);
    return known;
}

static bool grants(desc config, const struct cudnn_wish *wish)
{
    unsigned notes;
    return (wish->with | wish->without) == 0 ||
           (notes_of(config, &notes) && (notes & wish->with) == wish->with &&
            !(notes & wish->without));
}

/* Whether the configuration has a plan; it is the graph's then. */
static bool take(struct cudnn_builder *b, desc config, int64_t most_bytes)
{
    const struct cudnn *lib = cudnn_open();
    cudnnHandle_t handle = cudnn_handle();
    struct cudnn_plan *p = b->p;
    int64_t n = 0;
    desc plan = cudnn_make(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    cudnn_set(b, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    cudnn_set_desc(b, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    cudnn_finalize(b, plan);
    if (b->rc == CUDNN_STATUS_SUCCESS &&
        lib->cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                      CUDNN_TYPE_INT64, 1, &n,
                                      &p->workspace) == CUDNN_STATUS_SUCCESS &&
        p->workspace <= most_bytes) {
        p->plan = plan;
        return true;
    }
    b->rc = CUDNN_STATUS_SUCCESS; /* the next one */
    if (plan)
        lib->cudnnBackendDestroyDescriptor(p->made[--p->n_made]);
    return false;
}

static void choose(struct cudnn_builder *b, desc graph, int n_wishes,
                   const struct cudnn_wish *wish, int64_t most_bytes)
{
    static const cudnnBackendHeurMode_t mode[] = {CUDNN_HEUR_MODE_A,
                                                  CUDNN_HEUR_MODE_FALLBACK};
    struct proposals list[2] = {{.n = -1}, {.n = -1}};
    for (int i = 0; i < 2 * n_wishes && !b->p->plan; i++) {
        struct proposals *q = &list[i % 2];
        if (q->n < 0)
            ask(b, graph, mode[i % 2], q);
        for (int k = 0; k < q->n && !b->p->plan; k++)
            if (!q->refused[k] && grants(q->config[k], &wish[i / 2])) {
                q->refused[k] = !take(b, q->config[k], most_bytes);
                if (b->p->plan)
                    keep(b->p, q->config[k]);
                q->kept[k] = b->p->plan != NULL;
            }
    }
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < list[i].n_made; k++)
            if (!list[i].kept[k])
                cudnn_open()->cudnnBackendDestroyDescriptor(list[i].config[k]);
}

static void destroy_made(struct cudnn_plan *p)
{
    while (p->n_made > 0)
        cudnn_open()->cudnnBackendDestroyDescriptor(p->made[--p->n_made]);
}

void cudnn_end_graph(struct cudnn_builder *b, int n_wishes, const struct cudnn_wish *wish,
                     int64_t most_bytes)
{
    cudnnHandle_t handle = cudnn_handle();
    desc graph = cudnn_make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnn_set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    cudnn_set(b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
              b->n_ops, b->ops);
    cudnn_finalize(b, graph);
    if (b->rc == CUDNN_STATUS_SUCCESS)
        choose(b, graph, n_wishes, wish, most_bytes);
    if (!b->p->plan)
        destroy_made(b->p);
}

/* ---- runs ---- */

desc cudnn_bind(const struct cudnn_plan *p, const void *const *pointer, char *workspace)
{
    const struct cudnn *lib = cudnn_open();
    desc pack;
    cudnn_check(
        lib->cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack),
        "cudnnBackendCreateDescriptor");
    cudnn_check(lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                              CUDNN_TYPE_INT64, p->n, p->uid),
                "cudnnBackendSetAttribute");
    cudnn_check(lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                              CUDNN_TYPE_VOID_PTR, p->n, pointer),
                "cudnnBackendSetAttribute");
    cudnn_check(lib->cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                              CUDNN_TYPE_VOID_PTR, 1, &workspace),
                "cudnnBackendSetAttribute");
    cudnn_check(lib->cudnnBackendFinalize(pack), "cudnnBackendFinalize");
    return pack;
}

void cudnn_unbind(desc pack)
{
    cudnn_open()->cudnnBackendDestroyDescriptor(pack);
}

void cudnn_run(const struct cudnn_plan *p, desc pack)
{
    cudnn_check(cudnn_open()->cudnnBackendExecute(cudnn_handle(), p->plan, pack),
                "cudnnBackendExecute");
}

#endif
