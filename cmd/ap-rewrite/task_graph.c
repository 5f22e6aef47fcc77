/*
 * The task graph: a stage's groups are shared out among modules by the program's cuts
 * (before, forward, backward, after); sums over microbatches are GA, and reductions of
 * these over devices AR. The groups after are cut where a value of another stage is read
 * first, for two stages may wait for each other there in turn (a norm over all of them).
 * Source: Zhang et al., "Rhino", 2023, section 6.1; TePDist, pjrt/task_graph.h.
 */
#include "task_graph.h"

#include "base/array.h"

#include <string.h>

const char *const ap_task_names[AP_N_TASK_KINDS] = {
    "split", "init", "cg", "cg", "ga", "ar", "ag", "send", "receive", "merge"};

struct builder {
    struct ap_arena *arena;
    const struct ap_pipeline_program *r;
    struct ap_task_graph *out;
    int cap_modules, cap_tasks;
    int **module_of; /* [stage][group] */
    int **first;     /* [stage][module number]: its task, of microbatch 0 */
    int n_edges, cap_edges;
    struct edge {
        int from, to;
    } * edge;
};

/* ---- modules ---- */

/* Whether the operator leaves numbers what they are. */
static bool moves_only(const struct ap_node *v)
{
    return ap_ops[v->op].class == AP_CLASS_MOVE ||
           ap_ops[v->op].class == AP_CLASS_LOCAL || v->op == AP_OP_CONVERT ||
           v->op == AP_OP_OPT_BARRIER;
}

/*
 * Groups after the microbatches that reduce their sums over devices, or bring the sums
 * into the layout or type in which they are reduced.
 */
static void find_reductions(struct ap_arena *arena, const struct ap_pipeline_stage *st,
                            uint8_t *kind)
{
    const struct ap_graph *g = &st->prog.local;
    const int lo = st->cuts.each_hi;
    bool *mixed = AP_NEW_N(arena, g->n_groups + 1, bool); /* more than sums, moved */
    bool *wanted = AP_NEW_N(arena, g->n_groups + 1, bool);

    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *v = &g->nodes[i];
        if (v->op == AP_OP_PARAMETER || v->group < lo)
            continue;
        const bool reduces = v->op == AP_OP_ALL_REDUCE || v->op == AP_OP_REDUCE_SCATTER;
        mixed[v->group] |= !reduces && !moves_only(v);
        for (int k = 0; k < v->n_in; k++) {
            const struct ap_node *u = &g->nodes[v->in[k]];
            if (u->op == AP_OP_PARAMETER || (u->group >= lo && mixed[u->group]))
                mixed[v->group] = true;
        }
        if (reduces && !mixed[v->group])
            kind[v->group] = AP_TASK_AR;
    }
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        const struct ap_node *v = &g->nodes[i];
        if (v->op == AP_OP_PARAMETER || v->group < lo ||
            (kind[v->group] != AP_TASK_AR && !wanted[v->group]))
            continue;
        for (int k = 0; k < v->n_in; k++)
            if (g->nodes[v->in[k]].group >= lo)
                wanted[g->nodes[v->in[k]].group] = true;
    }
    for (int k = lo; k < g->n_groups; k++)
        if (wanted[k])
            kind[k] = AP_TASK_AR;
}

/* The kind of the task that runs each group, in a byte each. */
static void find_kinds(struct ap_arena *arena, const struct ap_pipeline_stage *st,
                       uint8_t *kind)
{
    const struct ap_graph *g = &st->prog.local;
    const struct ap_pipeline_cuts *c = &st->cuts;

    for (int k = 0; k < g->n_groups; k++)
        kind[k] = k < c->each_lo       ? AP_TASK_INIT
                  : k < c->backward_lo ? AP_TASK_FORWARD
                  : k < c->each_hi     ? AP_TASK_BACKWARD
                                       : AP_TASK_AG;
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op != AP_OP_PARAMETER && ap_program_is_carried(&st->prog, i))
            kind[g->nodes[i].group] = AP_TASK_GA;
    if (st->prog.mesh.microbatch)
        find_reductions(arena, st, kind);
}

static int new_module(struct builder *b, enum ap_task_kind kind, int stage)
{
    struct ap_task_graph *g = b->out;
    AP_ROOM_IN(b->arena, g->module, g->n_modules, b->cap_modules);
    const int room = b->r->stage[stage].prog.local.n_groups + 1;
    g->module[g->n_modules] =
        (struct ap_task_module){.kind = kind,
                                .stage = stage,
                                .lo = AP_NEW_N(b->arena, room, int),
                                .hi = AP_NEW_N(b->arena, room, int)};
    return g->n_modules++;
}

static void add_group(struct ap_task_module *m, int group)
{
    if (m->n > 0 && m->hi[m->n - 1] == group) {
        m->hi[m->n - 1]++;
        return;
    }
    m->lo[m->n] = group;
    m->hi[m->n++] = group + 1;
}

/* Groups after the microbatches that are the first to read a value of another stage. */
static void find_waits(const struct ap_pipeline_program *r, int stage, bool *waits)
{
    const struct ap_pipeline_stage *st = &r->stage[stage];
    const struct ap_graph *g = &st->prog.local;

    for (int t = 0; t < r->n_transfers; t++) {
        const struct ap_transfer *x = &r->transfer[t];
        if (x->to != stage || st->param[x->param] >= 0)
            continue;
        const int node = g->params[x->param];
        int first = g->n_groups;
        for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
            const int group = g->nodes[g->users[u]].group;
            if (group >= st->cuts.each_hi && group < first)
                first = group;
        }
        waits[first] = true;
    }
}

static void add_modules(struct builder *b, int stage)
{
    const struct ap_pipeline_stage *st = &b->r->stage[stage];
    const int n = st->prog.local.n_groups;
    uint8_t *kind = AP_NEW_N(b->arena, n + 1, uint8_t);
    bool *waits = AP_NEW_N(b->arena, n + 1, bool);
    int now[AP_N_TASK_KINDS];

    b->module_of[stage] = AP_NEW_N(b->arena, n + 1, int);
    memset(now, -1, sizeof now);
    find_kinds(b->arena, st, kind);
    find_waits(b->r, stage, waits);
    now[AP_TASK_FORWARD] = new_module(b, AP_TASK_FORWARD, stage);
    if (b->r->schedule != AP_SCHEDULE_INFERENCE)
        now[AP_TASK_BACKWARD] = new_module(b, AP_TASK_BACKWARD, stage);
    for (int k = 0; k < n; k++) {
        const enum ap_task_kind is = (enum ap_task_kind)kind[k];
        if (now[is] < 0 || (is == AP_TASK_AG && waits[k]))
            now[is] = new_module(b, is, stage);
        b->module_of[stage][k] = now[is];
        add_group(&b->out->module[now[is]], k);
    }
}

/* ---- tasks ---- */

static int new_task(struct builder *b, struct ap_task task)
{
    struct ap_task_graph *g = b->out;
    AP_ROOM_IN(b->arena, g->task, g->n, b->cap_tasks);
    g->task[g->n] = task;
    return g->n++;
}

static void add_edge(struct builder *b, int from, int to)
{
    AP_ROOM_IN(b->arena, b->edge, b->n_edges, b->cap_edges);
    b->edge[b->n_edges++] = (struct edge){from, to};
}

static bool is_repeated(enum ap_task_kind kind)
{
    return kind == AP_TASK_FORWARD || kind == AP_TASK_BACKWARD || kind == AP_TASK_GA;
}

/* The task that runs a module with a microbatch. */
static int task_of(const struct builder *b, const int *first, int module, int microbatch)
{
    return first[module] + (is_repeated(b->out->module[module].kind) ? microbatch : 0);
}

/* Tasks of all modules; first: [module]. */
static void add_tasks(struct builder *b, int *first)
{
    for (int i = 0; i < b->out->n_modules; i++) {
        const struct ap_task_module *m = &b->out->module[i];
        const bool each = is_repeated(m->kind);
        first[i] = b->out->n;
        for (int j = 0; j < (each ? b->r->microbatches : 1); j++)
            new_task(b, (struct ap_task){.kind = m->kind,
                                         .module = i,
                                         .stage = m->stage,
                                         .microbatch = each ? j : -1,
                                         .transfer = -1,
                                         .message = -1});
    }
}

/* What waits for what inside a stage: modules follow each other in the order of their
 * kinds; sums are made in the order of microbatches. */
static void add_order(struct builder *b, const int *first, int stage)
{
    const struct ap_task_graph *g = b->out;
    int last = -1; /* module before */

    for (int kind = AP_TASK_INIT; kind <= AP_TASK_AG; kind++)
        for (int i = 0; i < g->n_modules; i++) {
            if (g->module[i].stage != stage || (int)g->module[i].kind != kind)
                continue;
            const bool each = is_repeated((enum ap_task_kind)kind);
            const bool from = last >= 0 && is_repeated(g->module[last].kind);
            for (int j = 0; last >= 0 && j < b->r->microbatches; j++)
                if (each || from || j == 0)
                    add_edge(b, first[last] + (from ? j : 0), first[i] + (each ? j : 0));
            for (int j = 1; kind == AP_TASK_GA && j < b->r->microbatches; j++)
                add_edge(b, first[i] + j - 1, first[i] + j);
            last = i;
        }
}

/* The tasks that read message k of a transfer wait for its receipt. */
static void add_readers(struct builder *b, const int *first, const struct ap_transfer *x,
                        int k, int receipt)
{
    const struct ap_pipeline_stage *st = &b->r->stage[x->to];
    const struct ap_graph *g = &st->prog.local;
    const int node = g->params[x->param];
    const bool share = ap_pipeline_is_share(&st->prog, x->param);

    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        const int module = b->module_of[x->to][g->nodes[g->users[u]].group];
        const bool each = is_repeated(b->out->module[module].kind);
        for (int j = 0; j < (each && !share ? b->r->microbatches : 1); j++)
            add_edge(b, receipt, task_of(b, first, module, share ? k : j));
    }
}

static void add_messages(struct builder *b, const int *first, int t)
{
    const struct ap_transfer *x = &b->r->transfer[t];
    const struct ap_pipeline_stage *from = &b->r->stage[x->from],
                                   *to = &b->r->stage[x->to];
    const int node = from->prog.local.results[x->result].node;
    const int group = from->prog.local.nodes[node].group;
    const int made = b->module_of[x->from][group];
    const bool share = ap_pipeline_sends_each(b->r, x);
    const bool sum = ap_program_is_carried(&from->prog, node);

    for (int k = 0; k < x->n_messages; k++) {
        struct ap_task task = {.kind = AP_TASK_SEND,
                               .module = -1,
                               .stage = x->from,
                               .microbatch = x->n_messages > 1 ? k : -1,
                               .transfer = t,
                               .message = k};
        const int send = new_task(b, task);
        add_edge(b,
                 task_of(b, first, made,
                         share ? k
                         : sum ? b->r->microbatches - 1
                               : 0),
                 send);
        task.kind = AP_TASK_RECEIVE;
        task.stage = x->to;
        const int receipt = new_task(b, task);
        add_edge(b, send, receipt);
        if (to->param[x->param] < 0) {
            add_readers(b, first, x, k, receipt);
            continue;
        }
        for (int i = 0; i < b->out->n_modules; i++) /* a new value, when all is done */
            if (b->out->module[i].stage == x->to)
                add_edge(b, task_of(b, first, i, b->r->microbatches - 1), receipt);
    }
}

/* ---- edges ---- */

static int compare_edges(const void *pa, const void *pb)
{
    const struct edge *a = pa, *b = pb;
    if (a->to != b->to)
        return a->to < b->to ? -1 : 1;
    return a->from < b->from ? -1 : a->from > b->from;
}

/* Source and sink, and the edges as lists. */
static void add_ends(struct builder *b)
{
    const int n = b->out->n;
    bool *has_in = AP_NEW_N(b->arena, n + 1, bool),
         *has_out = AP_NEW_N(b->arena, n + 1, bool);

    for (int i = 0; i < b->n_edges; i++) {
        has_in[b->edge[i].to] = true;
        has_out[b->edge[i].from] = true;
    }
    const int sink = new_task(b, (struct ap_task){.kind = AP_TASK_MERGE,
                                                  .module = -1,
                                                  .stage = -1,
                                                  .microbatch = -1,
                                                  .transfer = -1,
                                                  .message = -1});
    for (int i = 1; i < n; i++) {
        if (!has_in[i])
            add_edge(b, 0, i);
        if (!has_out[i])
            add_edge(b, i, sink);
    }
    qsort(b->edge, (size_t)b->n_edges, sizeof *b->edge, compare_edges);
    int *in = AP_NEW_N(b->arena, b->n_edges + 1, int), at = 0;
    for (int i = 0; i < b->n_edges; i++) {
        const struct edge *e = &b->edge[i];
        struct ap_task *task = &b->out->task[e->to];
        if (task->n_in > 0 && in[at - 1] == e->from)
            continue;
        if (task->n_in == 0)
            task->in = in + at;
        in[at++] = e->from;
        task->n_in++;
    }
}

void ap_task_graph_build(struct ap_arena *arena, const struct ap_pipeline_program *of,
                         struct ap_task_graph *graph)
{
    struct builder b = {.arena = arena,
                        .r = of,
                        .out = graph,
                        .module_of = AP_NEW_N(arena, of->n_stages, int *)};

    *graph = (struct ap_task_graph){0};
    for (int s = 0; s < of->n_stages; s++)
        add_modules(&b, s);
    int *first = AP_NEW_N(arena, graph->n_modules + 1, int);
    new_task(&b, (struct ap_task){.kind = AP_TASK_SPLIT,
                                  .module = -1,
                                  .stage = -1,
                                  .microbatch = -1,
                                  .transfer = -1,
                                  .message = -1});
    add_tasks(&b, first);
    for (int s = 0; s < of->n_stages; s++)
        add_order(&b, first, s);
    for (int t = 0; t < of->n_transfers; t++)
        add_messages(&b, first, t);
    add_ends(&b);
}
