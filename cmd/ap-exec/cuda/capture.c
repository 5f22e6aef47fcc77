/*
 * The step as a CUDA graph. The first step runs call by call, so that libraries load what
 * they need; the second is captured while its calls are enqueued, and every later one is
 * a single launch. Not captured: steps that the host looks into (loops without a known
 * number of trips, rounding noise) and collectives that wait on the host.
 */
#include "cuda.h"

struct recording {
    int n_steps;
    bool capturing, never;
    cudaGraphExec_t graph; /* NULL: not captured */
};

/* Steps that are running: those of a loop's computations run inside another. */
static int depth;

/* Whether the host reads values while a step runs. */
static bool host_waits(const struct exec *x)
{
    if (x->noise || cuda_dev.opts.no_graph || cuda_dev.no_capture ||
        cuda_dev.opts.compile_for)
        return true;
    for (int i = 0; i < x->prog->local.n_nodes; i++) {
        const struct ap_node *v = &x->prog->local.nodes[i];
        if (v->op == AP_OP_WHILE && v->attrs->trip_count < 0)
            return true;
    }
    for (const struct exec *inner = x->inner; inner; inner = inner->next)
        if (host_waits(inner))
            return true;
    return false;
}

bool cuda_step_begin(struct exec *x)
{
    if (depth++ > 0)
        return false;
    if (!x->recording) {
        x->recording = AP_NEW(x->arena, struct recording);
        ((struct recording *)x->recording)->never = host_waits(x);
    }
    struct recording *r = x->recording;
    if (x->noise)
        r->never = true;
    if (r->graph && !x->noise) {
        cuda_check(cudaGraphLaunch(r->graph, cuda_dev.stream), "cudaGraphLaunch");
        depth--;
        return true;
    }
    r->capturing = !r->never && r->n_steps++ > 0;
    if (r->capturing)
        cuda_check(cudaStreamBeginCapture(cuda_dev.stream, cudaStreamCaptureModeRelaxed),
                   "cudaStreamBeginCapture");
    return false;
}

void cuda_step_end(struct exec *x)
{
    struct recording *r = x->recording;
    cudaGraph_t graph = NULL;
    if (--depth > 0 || !r->capturing)
        return;
    r->capturing = false;
    cuda_check(cudaStreamEndCapture(cuda_dev.stream, &graph), "cudaStreamEndCapture");
    cuda_check(cudaGraphInstantiate(&r->graph, graph, 0), "cudaGraphInstantiate");
    cuda_check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    cuda_check(cudaGraphLaunch(r->graph, cuda_dev.stream), "cudaGraphLaunch");
}

void cuda_close(struct exec *x)
{
    struct recording *r = x->recording;
    if (r && r->graph)
        cuda_check(cudaGraphExecDestroy(r->graph), "cudaGraphExecDestroy");
}
