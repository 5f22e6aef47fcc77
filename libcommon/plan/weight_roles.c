/*
 * Problem: find attention's and feed-forward layers' weights without any name. Idea: note
 * of every forward value where it comes from: from constants and weights alone, straight
 * from contractions with weights (through elementwise operators and moves), from
 * attention (through anything but a contraction with a weight), or from a mixture
 * (inputs, sums of several layers, norms). Attention is a contraction of two values that
 * both come straight from contractions with weights, or of one that comes from attention;
 * a second contraction with a weight that takes what comes straight from a first one is a
 * pair. Cost: one pass.
 */
#include "plan/weight_roles.h"

#include <string.h>

#define MAX_MAKERS \
    4 /* weights that a value may come straight from; with more it is mixed */

enum source { FROM_NOTHING, FROM_WEIGHTED, FROM_ATTENTION, FROM_MIXTURE };

struct origin {
    enum source source;
    int n, maker[MAX_MAKERS]; /* weights of the contractions, of FROM_WEIGHTED */
};

enum weight_role {
    WEIGHT_OTHER,
    WEIGHT_INTO_ATTENTION,   /* queries, keys, values */
    WEIGHT_OUT_OF_ATTENTION, /* what its output is multiplied with */
    WEIGHT_FIRST,            /* of a pair with elementwise operators in between */
    WEIGHT_SECOND
};

struct role_finder {
    const struct ap_plan *plan;
    const struct ap_weights *weights;
    enum weight_role *role;
    struct origin *origin; /* per group */
    int *used;             /* per group: weight that it contracts with, or -1 */
};

/* Both origins at once. A mixture takes over what is not attention's. */
static void join(struct origin *a, const struct origin *b)
{
    if (b->source == FROM_NOTHING || a->source == FROM_ATTENTION)
        return;
    if (a->source == FROM_NOTHING || b->source > FROM_WEIGHTED) {
        if (a->source != FROM_MIXTURE || b->source == FROM_ATTENTION)
            *a = *b;
        return;
    }
    for (int i = 0; i < b->n && a->source == FROM_WEIGHTED; i++) {
        int j = 0;
        while (j < a->n && a->maker[j] != b->maker[i])
            j++;
        if (j == MAX_MAKERS)
            a->source = FROM_MIXTURE;
        else if (j == a->n)
            a->maker[a->n++] = b->maker[i];
    }
}

static void mark(struct role_finder *f, const struct origin *o, enum weight_role role)
{
    for (int i = 0; o->source == FROM_WEIGHTED && i < o->n; i++)
        if (f->role[o->maker[i]] == WEIGHT_OTHER)
            f->role[o->maker[i]] = role;
}

static bool all_other(const struct role_finder *f, const struct origin *o)
{
    for (int i = 0; i < o->n; i++)
        if (f->role[o->maker[i]] != WEIGHT_OTHER)
            return false;
    return true;
}

static struct origin contract_weight(struct role_finder *f, const struct origin *in,
                                     int w)
{
    if (in->source == FROM_ATTENTION && f->role[w] == WEIGHT_OTHER)
        f->role[w] = WEIGHT_OUT_OF_ATTENTION;
    if (in->source == FROM_WEIGHTED && f->role[w] == WEIGHT_OTHER && all_other(f, in)) {
        f->role[w] = WEIGHT_SECOND;
        mark(f, in, WEIGHT_FIRST);
    }
    return (struct origin){FROM_WEIGHTED, 1, {w}};
}

static struct origin contract_values(struct role_finder *f, const struct ap_nest *nest)
{
    bool attention = false, straight = nest->n_ins > 0;

    for (int k = 0; k < nest->n_ins; k++) {
        const struct ap_node *in = &f->plan->graph->nodes[nest->ins[k].node];
        attention |= f->origin[in->group].source == FROM_ATTENTION;
        straight &= f->origin[in->group].source == FROM_WEIGHTED;
    }
    if (!attention && !straight)
        return (struct origin){.source = FROM_MIXTURE};
    for (int k = 0; k < nest->n_ins; k++)
        mark(f, &f->origin[f->plan->graph->nodes[nest->ins[k].node].group],
             WEIGHT_INTO_ATTENTION);
    return (struct origin){.source = FROM_ATTENTION};
}

static bool reduces(const struct ap_nest *nest)
{
    for (int f = 0; f < nest->n_factors; f++)
        if (nest->factors[f].kind == AP_FACTOR_REDUCED)
            return true;
    return false;
}

static struct origin origin_of(struct role_finder *f, const struct ap_nest *nest)
{
    const struct ap_graph *g = f->plan->graph;
    const struct ap_node *first = &g->nodes[nest->members[0]];
    struct origin all = {.source = FROM_NOTHING};

    if (first->op == AP_OP_PARAMETER && first->role == AP_ROLE_INPUT)
        return (struct origin){.source = FROM_MIXTURE};
    for (int k = 0; k < nest->n_ins; k++)
        join(&all, &f->origin[g->nodes[nest->ins[k].node].group]);
    if (nest->heavy)
        return f->used[nest->group] >= 0 ? contract_weight(f, &all, f->used[nest->group])
                                         : contract_values(f, nest);
    if (all.source == FROM_WEIGHTED &&
        (reduces(nest) || ap_ops[first->op].class == AP_CLASS_INDEX))
        all.source = FROM_MIXTURE;
    return all;
}

/* role[i] for each weight. Linear in the operand slots. */
static void find_roles(struct ap_arena *arena, const struct ap_plan *plan,
                       const struct ap_weights *weights, enum weight_role *role)
{
    int n = plan->nests->n;
    struct role_finder f = {.plan = plan,
                            .weights = weights,
                            .role = role,
                            .origin = AP_NEW_N(arena, n, struct origin),
                            .used = AP_NEW_N(arena, n, int)};

    memset(f.used, -1, sizeof *f.used * (size_t)n);
    for (int i = weights->n - 1; i >= 0; i--) {
        role[i] = WEIGHT_OTHER;
        f.used[weights->weight[i].use] = i;
    }
    for (int i = 0; i < n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        if (plan->graph->nodes[nest->members[0]].phase == AP_FORWARD)
            f.origin[i] = origin_of(&f, nest);
    }
}

int ap_weight_roles_pattern(struct ap_arena *arena, const struct ap_plan *plan,
                            const struct ap_weights *weights, bool attention,
                            bool feed_forward, int *pattern)
{
    enum weight_role *role = AP_NEW_N(arena, weights->n + 1, enum weight_role);
    int n = 0;

    find_roles(arena, plan, weights, role);
    for (int i = 0; i < weights->n; i++) {
        const struct ap_weight *w = &weights->weight[i];
        bool column = (attention && role[i] == WEIGHT_INTO_ATTENTION) ||
                      (feed_forward && role[i] == WEIGHT_FIRST);
        bool row = (attention && role[i] == WEIGHT_OUT_OF_ATTENTION) ||
                   (feed_forward && role[i] == WEIGHT_SECOND);
        for (int p = 1; p < w->n && (column || row); p++)
            if (w->pattern[p] == (column ? AP_PATTERN_COLUMN : AP_PATTERN_ROW)) {
                pattern[i] = p;
                n++;
            }
    }
    return n;
}
