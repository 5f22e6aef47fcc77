/*
 * while, for any backend: the loop's computations are programs of their own, prepared
 * once and run inside the step. The loop's state lives in the body's parameters; the
 * body's results become the next state as a step's results become parameters. Every rank
 * runs the whole loop, so that no rank has to communicate the condition.
 */
#include "pipeline/pipeline_program.h"
#include "step/backend.h"

#include <string.h>

/* A computation ready to run, and which element of the state each parameter holds. */
struct inner {
    struct ap_program prog;
    struct exec exec;
    const int *state; /* per parameter */
};

struct loop {
    struct inner cond, body;
    int n;           /* elements of the state */
    const void **in; /* where the state comes from */
    void **out;
    const int64_t *bytes;
    int64_t trips; /* -1: as long as the condition says */
};

/*
 * The nodes in order of their groups, as programs have them, without parameters that
 * nothing reads unless keep. Fills g->params and state.
 */
static void order_nodes(struct ap_arena *arena, struct ap_graph *g, bool keep, int *state)
{
    int *at = AP_NEW_N(arena, g->n_groups + 1, int);
    int *id = AP_NEW_N(arena, g->n_nodes + 1, int);
    bool *is_result = AP_NEW_N(arena, g->n_nodes + 1, bool);
    struct ap_node *nodes = AP_NEW_N(arena, g->n_nodes + 1, struct ap_node);
    for (int r = 0; r < g->n_results; r++)
        is_result[g->results[r].node] = true;
    for (int i = 0; i < g->n_nodes; i++) {
        bool idle = g->nodes[i].op == AP_OP_PARAMETER && !is_result[i] &&
                    g->user_start[i] == g->user_start[i + 1];
        id[i] = idle && !keep ? -1 : 0;
        at[g->nodes[i].group + 1] += id[i] + 1;
    }
    for (int k = 0; k < g->n_groups; k++)
        at[k + 1] += at[k];
    int n = at[g->n_groups], n_params = 0;
    for (int i = 0; i < g->n_nodes; i++)
        if (id[i] >= 0)
            id[i] = at[g->nodes[i].group]++;
    for (int i = 0; i < g->n_nodes; i++) {
        if (id[i] < 0)
            continue;
        struct ap_node *node = &nodes[id[i]];
        int *in = AP_NEW_N(arena, g->nodes[i].n_in + 1, int);
        *node = g->nodes[i];
        for (int k = 0; k < node->n_in; k++)
            in[k] = id[node->in[k]];
        node->in = in;
        if (node->op == AP_OP_PARAMETER) {
            state[n_params] = node->param;
            node->param = n_params++;
        }
    }
    for (int r = 0; r < g->n_results; r++)
        g->results[r].node = id[g->results[r].node];
    g->nodes = nodes;
    g->n_nodes = n;
}

static int open_inner(struct exec *x, int comp, bool is_body, struct inner *inner,
                      struct ap_err *err)
{
    struct ap_graph *g = &inner->prog.local;
    ap_graph_of_comp(x->arena, &x->prog->local, comp, g);
    ap_group(x->arena, g);
    int *state = AP_NEW_N(x->arena, g->n_params + 1, int);
    order_nodes(x->arena, g, is_body, state);
    inner->state = state;
    if (ap_graph_index(x->arena, g, "", err))
        return -1;
    for (int r = 0; is_body && r < g->n_results; r++)
        g->results[r].alias = g->params[r];
    inner->prog.mesh = x->prog->mesh;
    ap_plan_buffers(x->arena, &inner->prog, 0);
    int rc = exec_open(&inner->exec, x->arena, &inner->prog, x->backend, x->comm, err);
    inner->exec.next = x->inner;
    x->inner = &inner->exec;
    x->exit_code = inner->exec.exit_code;
    return rc;
}

static void *param_value(const struct inner *inner, int p)
{
    return inner->exec.value[inner->prog.local.params[p]];
}

static bool goes_on(struct loop *l, int64_t i)
{
    struct exec *c = &l->cond.exec;
    if (l->trips >= 0)
        return i < l->trips;
    for (int p = 0; p < l->cond.prog.local.n_params; p++) {
        int k = l->cond.state[p];
        c->backend->copy(param_value(&l->cond, p), param_value(&l->body, k), l->bytes[k]);
    }
    bool go_on;
    exec_step(c);
    c->backend->read(&go_on, c->value[l->cond.prog.local.results[0].node], sizeof go_on);
    return go_on;
}

static void while_run(struct exec *x, void *state)
{
    struct loop *l = state;
    for (int k = 0; k < l->n; k++)
        x->backend->copy(param_value(&l->body, k), l->in[k], l->bytes[k]);
    for (int64_t i = 0; goes_on(l, i); i++) {
        exec_step(&l->body.exec);
        exec_advance(&l->body.exec);
    }
    for (int k = 0; k < l->n; k++)
        x->backend->copy(l->out[k], param_value(&l->body, k), l->bytes[k]);
}

int exec_while_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = &x->prog->local.nodes[call->nodes[0]];
    struct loop *l = AP_NEW(x->arena, struct loop);
    int64_t *bytes = AP_NEW_N(x->arena, v->n_in, int64_t);
    l->n = v->n_in;
    l->trips = v->attrs->trip_count;
    l->in = AP_NEW_N(x->arena, l->n, const void *);
    l->out = x->element[call->nodes[0]];
    l->bytes = bytes;
    for (int k = 0; k < l->n; k++) {
        l->in[k] = x->value[v->in[k]];
        bytes[k] = ap_shape_bytes(&v->shape.parts[k]);
    }
    if (open_inner(x, v->attrs->body, true, &l->body, err) ||
        (l->trips < 0 && open_inner(x, v->attrs->condition, false, &l->cond, err)))
        return -1;
    call->run = while_run;
    call->state = l;
    return 0;
}
