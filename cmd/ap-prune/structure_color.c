/*
 * Properties of a graph that `structure` computes before it searches repeats.
 *
 * Colours: color[r][v] is a hash of all within some radius of v: of its signature and its
 * operands' shapes, then, round by round, of its operands' colours in order and its
 * users' with the places at which they read it (colour refinement, Weisfeiler and Leman).
 * Nodes with unequal colours do not correspond within that radius; nodes with equal ones
 * probably do. Small radii join different nodes, and large ones see the ends of a chain
 * and separate its first and last links from the others, so several radii are kept.
 *
 * Cuts: a data node v is a cut if no other value that a given period makes is read after
 * v, scalars (a loss of each layer) aside. Ids are a topological order, and whether a
 * single node separates two others does not depend on which order it is, so one sweep
 * with the last reader of each node finds them.
 *
 * Cost: O(nodes + edges) per round and per sweep.
 */
#include "structure.h"

#include <string.h>

/* One round: out[v] from in[] of v and its neighbours. */
static void refine(const struct ap_graph *g, bool operands, const uint64_t *in,
                   uint64_t *users, uint64_t *out)
{
    memset(users, 0, (size_t)g->n_nodes * sizeof(*users));
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *node = &g->nodes[v];
        uint64_t h = ap_hash_mix(1, in[v]);
        for (int j = 0; j < node->n_in; j++) {
            h = operands ? ap_hash_mix(h, in[node->in[j]]) : h;
            users[node->in[j]] += ap_hash_mix(ap_hash_mix(2, in[v]), (uint64_t)j);
        }
        out[v] = h;
    }
    for (int v = 0; v < g->n_nodes; v++)
        out[v] = ap_hash_mix(out[v], users[v]);
}

static uint64_t mix_shape(uint64_t h, const struct ap_shape *shape)
{
    h = ap_hash_mix(h, (uint64_t)shape->dtype);
    for (int d = 0; d < shape->rank; d++)
        h = ap_hash_mix(h, (uint64_t)shape->dims[d]);
    return h;
}

/*
 * The contractions that read a weight: a layer whose input needs no gradient has one
 * fewer, and is no instance of what the others are.
 */
static uint64_t count_heavy_users(const struct ap_graph *g, int v)
{
    uint64_t n = 0;

    for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++)
        n += ap_ops[g->nodes[g->users[u]].op].class == AP_CLASS_HEAVY;
    return n;
}

static void color_graph(struct structure *s, struct ap_arena *arena)
{
    const struct ap_graph *g = s->g;
    uint64_t *users = AP_NEW_N(arena, g->n_nodes, uint64_t);
    uint64_t *first = s->color[0] = AP_NEW_N(arena, g->n_nodes, uint64_t);

    memcpy(first, s->space->sig, (size_t)g->n_nodes * sizeof(*first));
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *node = &g->nodes[v];
        for (int j = 0; j < node->n_in; j++)
            first[v] = mix_shape(first[v], &g->nodes[node->in[j]].shape);
        if (node->role == AP_ROLE_WEIGHT)
            first[v] = ap_hash_mix(first[v], count_heavy_users(g, v));
    }
    for (int r = 1; r < STRUCTURE_GROUPINGS; r++) {
        bool operands = r < STRUCTURE_COLORS;
        s->color[r] = AP_NEW_N(arena, g->n_nodes, uint64_t);
        refine(g, operands, s->color[operands ? r - 1 : 0], users, s->color[r]);
    }
}

/* Fills data and last_use: forward nodes between the inputs and the loss. */
static void find_data(struct structure *s, struct ap_arena *arena)
{
    enum { FROM_INPUT = 1, FROM_WEIGHT = 2, USEFUL = 4, DATA = 7 };
    const struct ap_graph *g = s->g;
    uint8_t *is = AP_NEW_N(arena, g->n_nodes, uint8_t);

    for (int i = 0; i < g->n_results; i++)
        if (g->results[i].role == AP_ROLE_LOSS)
            is[g->results[i].node] |= USEFUL;
    for (int v = g->n_nodes - 1; v >= 0; v--)
        for (int j = 0; (is[v] & USEFUL) && j < g->nodes[v].n_in; j++)
            is[g->nodes[v].in[j]] |= USEFUL;
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *node = &g->nodes[v];
        if (node->role == AP_ROLE_WEIGHT)
            is[v] |= FROM_WEIGHT;
        else if (node->op == AP_OP_PARAMETER)
            is[v] |= FROM_INPUT;
        for (int j = 0; j < node->n_in; j++)
            is[v] |= is[node->in[j]] & (FROM_INPUT | FROM_WEIGHT);
        s->data[v] = node->phase == AP_FORWARD && is[v] == DATA;
        s->last_use[v] = -1;
        for (int j = 0; s->data[v] && j < node->n_in; j++)
            s->last_use[node->in[j]] = v;
    }
}

void structure_init(struct structure *s, struct ap_arena *arena, struct prune_space *sp)
{
    int n = sp->g->n_nodes;

    *s = (struct structure){.space = sp, .g = sp->g};
    s->data = AP_NEW_N(arena, n, bool);
    s->last_use = AP_NEW_N(arena, n, int);
    s->home = AP_NEW_N(arena, n, int);
    s->is_end = AP_NEW_N(arena, n, uint8_t);
    s->reached = AP_NEW_N(arena, n, uint8_t);
    s->owner = AP_NEW_N(arena, n, int);
    color_graph(s, arena);
    find_data(s, arena);
}

int structure_data_of(const struct structure *s, int node)
{
    const struct ap_graph *g = s->g;

    for (int steps = 0; steps < 8 && node >= 0; steps++) {
        if (s->data[node])
            return node;
        int next = -1;
        for (int u = g->user_start[node]; next < 0 && u < g->user_start[node + 1]; u++)
            if (g->nodes[g->users[u]].phase == AP_FORWARD)
                next = g->users[u];
        node = next;
    }
    return -1;
}

int structure_cuts(struct structure *s, int before, int lo, int hi, int max, int *cut)
{
    enum { FROM_START = 1, FROM_LO = 2 };
    const struct ap_graph *g = s->g;
    int start = before >= 0 ? before : lo, n = 0, alive_until = -1;

    s->reached[start] = FROM_START;
    for (int v = start; v < hi; v++) {
        if (v == lo)
            s->reached[v] |= FROM_LO;
        for (int j = 0; s->data[v] && j < g->nodes[v].n_in; j++)
            s->reached[v] |= s->reached[g->nodes[v].in[j]];
        if (!s->data[v] || !s->reached[v] || !g->nodes[v].shape.rank)
            continue;
        if ((s->reached[v] & FROM_LO) && alive_until <= v) {
            if (n == max)
                memmove(cut, cut + 1, (size_t)--n * sizeof(*cut));
            cut[n++] = v;
        }
        if (s->last_use[v] > alive_until)
            alive_until = s->last_use[v];
    }
    bool chained = false;
    for (int j = 0; j < g->nodes[hi].n_in; j++)
        chained |= (s->reached[g->nodes[hi].in[j]] & FROM_LO) != 0;
    memset(s->reached + start, 0, (size_t)(hi - start));
    return chained ? n : 0;
}
