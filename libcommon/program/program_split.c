/*
 * Splits attentions into operators that a CPU runs.
 *
 * Problem: to the planners an attention is one group, whose scores take no memory; an
 * interpreter without such a kernel runs its operators one after the other and has to put
 * the scores somewhere. Idea: in the program, an attention's group falls into groups that
 * can be run: stretches of fusible nodes of equal dimensions, and every other node alone.
 * Groups after it move up. An attention in a ring sends between its operators, so that
 * it falls apart everywhere; its first node is no AP_ATTENTION_FIRST. Linear.
 */
#include "program/program.h"

static bool is_fusible(const struct ap_node *n)
{
    return ap_ops[n->op].class == AP_CLASS_ELEMENTWISE || n->op == AP_OP_BROADCAST;
}

/* Whether node i is a group of its own after the node before it, of the same attention.
 */
static bool starts(const struct ap_graph *g, int i)
{
    const struct ap_node *n = &g->nodes[i], *before = &g->nodes[i - 1];
    return !is_fusible(n) || !is_fusible(before) ||
           !ap_shape_same_dims(&n->shape, &before->shape);
}

void ap_program_split(struct ap_arena *arena, struct ap_program *prog, bool only_rings)
{
    struct ap_graph *g = &prog->local;
    const int each_lo = prog->each_lo, each_hi = prog->each_hi;
    int *turn = AP_NEW_N(arena, g->n_nodes + 1, int), n = 0, last = -1;
    bool whole = false;

    for (int i = 0; i < g->n_nodes; i++) {
        struct ap_node *node = &g->nodes[i];
        const int old = node->group;
        if (old != last)
            whole = only_rings && node->attrs->attention != AP_ATTENTION_NEXT;
        bool part = old == last && node->attrs->attention && !whole;
        if (old != last && old == each_lo)
            prog->each_lo = n;
        if (old != last && old == each_hi)
            prog->each_hi = n;
        if (old != last || (part && starts(g, i)))
            turn[n++] = prog->turn[old];
        last = old;
        node->group = n - 1;
    }
    if (each_hi == g->n_groups)
        prog->each_hi = n;
    prog->turn = turn;
    g->n_groups = n;
}
