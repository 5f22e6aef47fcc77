/*
 * Problem: cut the graph into blocks of few weights, so that all plans of each can be
 * enumerated. Idea: the instances of a family are one block, planned once; a family of
 * too many weights is replaced by the families inside it. Weights outside of families are
 * cut into pieces in the order in which the forward phase uses them. An operator without
 * a weight belongs to the weight before it in the forward phase, and to the weight after
 * it in the backward phase, where gradients come from the other side. Cost: linear. After
 * Shi et al., "TAP: Efficient Derivation of Tensor Parallel Plans for Large Neural
 * Networks", arXiv 2302.00247, section 4.2 (ap-prune finds the families).
 */
#include "base/array.h"
#include "base/csr.h"
#include "tap/tap.h"

#include <stdlib.h>
#include <string.h>

struct cutter {
    struct ap_arena *arena;
    const struct ap_plan *plan;
    const struct ap_weights *weights;
    struct tap_block *block;
    int n, cap;
    bool *covered; /* per group: in an instance of a family that is a block */
    int *piece_of; /* per weight: block that is a piece, or -1 */
};

static struct tap_block *new_block(struct cutter *c)
{
    AP_ROOM_IN(c->arena, c->block, c->n, c->cap);
    return &c->block[c->n++];
}

/* Plans of n weights, capped above what any block may have. */
static int64_t plans_of(const struct ap_weights *w, const int *list, int n)
{
    int64_t plans = 1;
    for (int i = 0; i < n && plans <= TAP_MAX_PLANS; i++)
        plans *= w->weight[list[i]].n;
    return plans;
}

/* Weights of an instance into list, in the representative's order. */
static int weights_in(const struct cutter *c, const struct ap_family *f, int instance,
                      int *list)
{
    int n = 0;
    for (int j = 0; j < f->n_nodes; j++)
        if (c->weights->of_node[f->nodes[j]] >= 0)
            list[n++] = c->weights->of_node[f->nodes[instance * f->n_nodes + j]];
    return n;
}

static int groups_of(const struct cutter *c, const int *nodes, int n, int *list)
{
    int count = 0;
    for (int j = 0; j < n; j++) {
        int group = c->plan->graph->nodes[nodes[j]].group;
        if (c->plan->nests->nest[group].members[0] == nodes[j])
            list[count++] = group;
    }
    qsort(list, (size_t)count, sizeof *list, ap_compare_int);
    return count;
}

/* Whether corresponding weights of all instances have the same patterns. */
static bool same_patterns(const struct cutter *c, const int *list, int n, int n_instances)
{
    for (int i = 0; i < n * n_instances; i++) {
        if (list[i] < 0)
            return false;
        const struct ap_weight *a = &c->weights->weight[list[i % n]];
        const struct ap_weight *b = &c->weights->weight[list[i]];
        if (a->n != b->n ||
            memcmp(a->pattern, b->pattern, sizeof a->pattern[0] * (size_t)a->n))
            return false;
    }
    return true;
}

static bool add_family(struct cutter *c, const struct ap_family *f)
{
    int n_all = f->n_nodes * f->n_instances, *list = AP_NEW_N(c->arena, f->n_nodes, int);
    int n = weights_in(c, f, 0, list);

    if (n == 0 || plans_of(c->weights, list, n) > TAP_MAX_PLANS)
        return false;
    int *all = AP_NEW_N(c->arena, n * f->n_instances, int);
    for (int i = 0; i < f->n_instances; i++)
        weights_in(c, f, i, all + (size_t)i * (size_t)n);
    if (!same_patterns(c, all, n, f->n_instances))
        return false;
    struct tap_block *b = new_block(c);
    *b = (struct tap_block){
        .name = f->name, .n_instances = f->n_instances, .n_weights = n, .weight = all};
    b->group = list;
    b->n_groups = groups_of(c, f->nodes, f->n_nodes, list);
    for (int j = 0; j < n_all; j++)
        c->covered[c->plan->graph->nodes[f->nodes[j]].group] = true;
    for (int j = 0; j < n * f->n_instances; j++)
        c->piece_of[all[j]] = -2;
    return true;
}

static void add_families(struct cutter *c, const struct ap_families *families)
{
    bool *taken = AP_NEW_N(c->arena, families->n + 1, bool);
    for (int i = 0; i < families->n; i++) {
        const struct ap_family *f = &families->family[i];
        taken[i] = (f->parent >= 0 && taken[f->parent]) || add_family(c, f);
    }
}

/* Weights that no family has, in pieces. */
static void cut_pieces(struct cutter *c)
{
    const struct ap_weights *w = c->weights;
    int64_t plans = TAP_PIECE_PLANS + 1;

    for (int i = 0; i < w->n; i++) {
        if (c->piece_of[i] == -2)
            continue;
        plans *= w->weight[i].n;
        if (plans > TAP_PIECE_PLANS ||
            c->block[c->n - 1].n_weights == TAP_PIECE_WEIGHTS) {
            struct tap_block *b = new_block(c);
            *b = (struct tap_block){.n_instances = 1, .piece = true};
            b->name = c->plan->graph->nodes[w->weight[i].node].name;
            b->weight = AP_NEW_N(c->arena, TAP_PIECE_WEIGHTS, int);
            plans = w->weight[i].n;
        }
        c->piece_of[i] = c->n - 1;
        c->block[c->n - 1].weight[c->block[c->n - 1].n_weights++] = i;
    }
}

/* Piece of each group that no family has, -1 for none. */
static void assign_groups(const struct cutter *c, int *piece)
{
    const struct ap_weights *w = c->weights;
    const struct ap_graph *g = c->plan->graph;
    int n = c->plan->nests->n, next = 0, now = -1;

    for (int i = 0; i < n; i++) { /* forward: the weight before */
        while (next < w->n && w->weight[next].use <= i)
            now = c->piece_of[next++];
        enum ap_phase phase = ap_plan_group_phase(g, &c->plan->nests->nest[i]);
        bool leaf = c->plan->nests->nest[i].n_ins == 0;
        piece[i] = c->covered[i] || leaf || phase != AP_FORWARD ? -1 : now;
        if (w->owner[i] >= 0 && !c->covered[i])
            piece[i] = c->piece_of[w->owner[i]];
    }
    now = -1;
    for (int i = n - 1; i >= 0; i--) { /* backward: the weight after */
        if (ap_plan_group_phase(g, &c->plan->nests->nest[i]) != AP_BACKWARD)
            continue;
        if (w->owner[i] >= 0)
            now = c->piece_of[w->owner[i]];
        else if (!c->covered[i])
            piece[i] = now;
    }
}

/* Updates go with what they are made of, weights and states with their first users. */
static void assign_rest(const struct cutter *c, int *piece)
{
    const struct ap_graph *g = c->plan->graph;

    for (int i = 0; i < c->plan->nests->n; i++) {
        const struct ap_nest *nest = &c->plan->nests->nest[i];
        bool update = ap_plan_group_phase(g, nest) == AP_UPDATE;
        for (int k = 0; k < nest->n_ins && update && piece[i] < 0 && !c->covered[i]; k++)
            piece[i] = piece[g->nodes[nest->ins[k].node].group];
        for (int k = 0; k < nest->n_ins; k++) {
            const struct ap_node *in = &g->nodes[nest->ins[k].node];
            if ((in->role == AP_ROLE_WEIGHT || in->role == AP_ROLE_STATE) &&
                piece[in->group] < 0 && !c->covered[in->group])
                piece[in->group] = piece[i];
        }
    }
}

static void fill_pieces(struct cutter *c)
{
    int n = c->plan->nests->n, *piece = AP_NEW_N(c->arena, n + 1, int);

    assign_groups(c, piece);
    assign_rest(c, piece);
    const struct ap_csr groups = ap_csr_new(c->arena, c->n, n, piece, NULL);
    for (int i = 0; i < c->n; i++) {
        struct tap_block *b = &c->block[i];
        if (!b->piece)
            continue;
        b->group = groups.item + groups.start[i];
        b->n_groups = ap_csr_count(&groups, i);
    }
}

struct tap_block *tap_blocks(struct ap_arena *arena, const struct ap_plan *plan,
                             const struct ap_weights *weights,
                             const struct ap_families *families, int *n)
{
    struct cutter c = {.arena = arena,
                       .plan = plan,
                       .weights = weights,
                       .covered = AP_NEW_N(arena, plan->nests->n + 1, bool),
                       .piece_of = AP_NEW_N(arena, weights->n + 1, int)};

    memset(c.piece_of, -1, sizeof *c.piece_of * ((size_t)weights->n + 1));
    if (families)
        add_families(&c, families);
    cut_pieces(&c);
    fill_pieces(&c);
    *n = c.n;
    return c.block;
}
