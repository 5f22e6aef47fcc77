/*
 * Whether every operator of a program from a file finds its operands: one step is played
 * on the arena (play.c). Groups of the microbatch loop are played twice, so that what an
 * iteration destroys for the next is seen, and what a step destroys for the next step is
 * seen at its end.
 */
#include "program/play.h"

static struct ap_fault play_step(struct ap_play *p)
{
    const struct ap_program *prog = p->prog;
    const struct ap_graph *g = &prog->local;
    const bool loops = ap_mesh_microbatches(&prog->mesh) > 1;

    for (int i = 0; i < g->n_params; i++)
        ap_play_take(p, g->params[i]);
    struct ap_fault f = ap_play_groups(p, 0, prog->each_hi, false);
    if (!f.what && loops)
        f = ap_play_groups(p, prog->each_lo, prog->each_hi, true);
    if (!f.what)
        f = ap_play_groups(p, prog->each_hi, g->n_groups, false);
    return f.what ? f : ap_play_end(p, NULL);
}

int ap_program_check_memory(const struct ap_program *prog, const struct ap_at *at,
                            struct ap_err *err)
{
    const struct ap_graph *g = &prog->local;
    struct ap_arena scratch = {0};
    struct ap_owners owners;
    struct ap_play p = {.prog = prog, .owners = &owners, .n_tags = 1};
    int64_t *edge = AP_NEW_N(&scratch, 2 * (size_t)g->n_nodes + 2, int64_t);
    int n = 0;

    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_buffer *b = &prog->buffer[i];
        if (b->offset < 0)
            continue;
        edge[n++] = b->offset;
        edge[n++] = b->offset + b->bytes;
    }
    ap_owners_open(&scratch, &owners, edge, n);
    struct ap_fault f = ap_play_open(&scratch, &p);
    if (!f.what)
        f = play_step(&p);
    ap_arena_free(&scratch);
    if (!f.what)
        return 0;
    struct ap_at graph = {at, "graph", 0}, nodes = {&graph, "nodes", 0};
    struct ap_at here = {&nodes, NULL, f.node};
    if (f.other < 0)
        return ap_at_err(&here, err, "(%s) %s", g->nodes[f.node].name, f.what);
    return ap_at_err(&here, err, "(%s) %s (by node %lld, %s)", g->nodes[f.node].name,
                     f.what, (long long)f.other, g->nodes[f.other].name);
}
