/*
 * Problem: scalars of the update (a norm of all gradients, a learning rate) go from stage
 * to stage between the sums of gradients and all updates: if any do, all stages wait for
 * the longest chain of them (pipeline_sends.c), and planners should know before a plan is
 * written.
 * Idea: a scalar is as many steps down the chain as scalars of other blocks lie before
 * it. Of a plan, each step takes as long as the slowest that crosses stages there; that
 * is the longest chain where all go through one block, as norms do, or from block to
 * block. Cost: linear in the graph once, but for sorting; per plan, pairs of blocks.
 */
#include "oracle/instance.h"

#include "base/array.h"

#include <stdlib.h>

#include "search/space.h"

struct lister {
    const struct stage_model *m;
    const bool *constant; /* [node] */
    bool *inputs;         /* [node]: made of inputs alone, which every stage makes */
    int *step;            /* [node] */
    int n, cap;
    struct plan_scalar *list; /* malloc */
};

static void add(struct lister *l, int node, int to)
{
    AP_ROOM(l->list, l->n, l->cap);
    l->list[l->n++] =
        (struct plan_scalar){l->step[node], l->m->blocks.block_of[node], to,
                             ap_shape_bytes(&l->m->graph.nodes[node].shape)};
}

static bool is_sent(const struct lister *l, int node)
{
    const struct ap_node *n = &l->m->graph.nodes[node];
    return n->phase == AP_UPDATE && n->op != AP_OP_PARAMETER && n->shape.rank == 0 &&
           n->shape.dtype != AP_TUPLE && !l->constant[node] && !l->inputs[node];
}

/* The scalar that operand `in` brings to a block, which may spread it itself; -1. */
static int brought(const struct lister *l, int in)
{
    const struct ap_node *n = &l->m->graph.nodes[in];
    bool spread = n->op == AP_OP_BROADCAST && l->m->graph.nodes[n->in[0]].shape.rank == 0;
    in = spread ? n->in[0] : in;
    return is_sent(l, in) ? in : -1;
}

static void list_operands(struct lister *l, int node)
{
    const struct ap_node *n = &l->m->graph.nodes[node];
    const int *block_of = l->m->blocks.block_of;

    for (int k = 0; k < n->n_in; k++) {
        int from = brought(l, n->in[k]);
        bool crosses = from >= 0 && block_of[from] != block_of[node];
        int step = crosses ? l->step[from] + 1 : l->step[n->in[k]];
        if (crosses)
            add(l, from, block_of[node]);
        l->step[node] = step > l->step[node] ? step : l->step[node];
    }
}

static int compare(const void *pa, const void *pb)
{
    const struct plan_scalar *a = pa, *b = pb;
    if (a->step != b->step)
        return a->step - b->step;
    if (a->from != b->from)
        return a->from - b->from;
    if (a->to != b->to)
        return a->to - b->to;
    return (a->bytes < b->bytes) - (a->bytes > b->bytes);
}

void stage_scalars_list(struct ap_arena *arena, const struct stage_model *m,
                        const bool *constant, struct plan_instance *inst)
{
    const struct ap_graph *g = &m->graph;
    struct lister l = {.m = m,
                       .constant = constant,
                       .inputs = AP_NEW_N(arena, g->n_nodes + 1, bool),
                       .step = AP_NEW_N(arena, g->n_nodes + 1, int)};
    int kept = 0;

    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        l.inputs[i] = n->op != AP_OP_PARAMETER || n->role == AP_ROLE_INPUT ||
                      n->role == AP_ROLE_CONSTANT;
        for (int k = 0; k < n->n_in && l.inputs[i]; k++)
            l.inputs[i] = l.inputs[n->in[k]];
        list_operands(&l, i);
    }
    if (l.n > 1)
        qsort(l.list, (size_t)l.n, sizeof *l.list, compare);
    for (int i = 0; i < l.n; i++) {
        const struct plan_scalar *s = &l.list[i], *last = kept ? &l.list[kept - 1] : NULL;
        if (!last || last->step != s->step || last->from != s->from || last->to != s->to)
            l.list[kept++] = *s;
    }
    inst->n_scalars = kept;
    inst->scalar = ap_arena_dup(arena, l.list, (size_t)kept * sizeof *l.list);
    free(l.list);
}

double plan_norm_sec(const struct plan_instance *inst, const struct plan_answer *answer)
{
    struct ap_arena scratch = {0};
    double sum = 0, slowest = 0;

    if (inst->n_scalars == 0 || answer->n_stages == 1)
        return 0;
    int *stage_of = AP_NEW_N(&scratch, inst->n_blocks, int);
    plan_stages_of(inst, answer, stage_of);
    for (int i = 0; i < inst->n_scalars; i++) {
        const struct plan_scalar *s = &inst->scalar[i];
        int from = stage_of[s->from], to = stage_of[s->to];
        if (i > 0 && s->step != s[-1].step) {
            sum += slowest;
            slowest = 0;
        }
        if (from == to)
            continue;
        const struct plan_stage *there = &answer->stage[to];
        struct ap_link link =
            plan_link_between(inst, answer->replicas, &answer->stage[from], there);
        int64_t copies = (int64_t)there->hosts * there->devices * answer->replicas;
        double sec =
            link.latency_sec + (double)ap_mul64(s->bytes, copies) * link.sec_per_byte;
        slowest = sec > slowest ? sec : slowest;
    }
    ap_arena_free(&scratch);
    return sum + slowest;
}
