/* Graphs: what a capture recorded, launched as often as one likes. */
#include "fake.h"

#include <stdlib.h>

struct CUgraphExec_st {
    struct CUgraph_st graph;
};

void fake_graph_free(struct CUgraph_st *g)
{
    for (int i = 0; i < g->n; i++) {
        fake_work_drop(g->node[i].work);
        free(g->node[i].deps);
    }
    free(g->node);
    free(g);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n)
{
    size_t count = 0; /* joins are no nodes */
    for (int i = 0; i < g->n; i++)
        count += g->node[i].work != NULL;
    if (nodes)
        fake_fail("cudaGraphGetNodes: only the number of nodes is in the fake");
    *n = count;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g,
                                 unsigned long long flags)
{
    if (!g || flags & ~(unsigned long long)cudaGraphInstantiateFlagAutoFreeOnLaunch)
        return fake_error(cudaErrorInvalidValue);
    struct CUgraphExec_st *x = fake_alloc(sizeof *x);
    x->graph.n = g->n;
    x->graph.node = fake_alloc(sizeof *x->graph.node * (size_t)(g->n + 1));
    for (int i = 0; i < g->n; i++) {
        struct fake_node *node = &x->graph.node[i];
        *node = g->node[i];
        node->deps = fake_alloc(2 * sizeof(int));
        for (int k = 0; k < node->n_deps; k++)
            node->deps[k] = g->node[i].deps[k];
        fake_work_keep(node->work);
    }
    *out = x;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t stream)
{
    (void)stream;
    return x ? cudaSuccess : fake_error(cudaErrorInvalidValue);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t stream)
{
    return x ? fake_enqueue_graph(stream, &x->graph) : fake_error(cudaErrorInvalidValue);
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    if (!g)
        return fake_error(cudaErrorInvalidValue);
    fake_graph_free(g);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    if (!x)
        return fake_error(cudaErrorInvalidValue);
    fake_drain_all();
    for (int i = 0; i < x->graph.n; i++) {
        fake_work_drop(x->graph.node[i].work);
        free(x->graph.node[i].deps);
    }
    free(x->graph.node);
    free(x);
    return cudaSuccess;
}
