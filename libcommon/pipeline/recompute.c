/*
 * Problem: a stage that recomputes keeps few values of its forward pass; which groups run
 * again, when, and what do they read?
 * Idea: a group that makes a value that is not kept, and that a backward group reads,
 * gets a copy in the backward phase, under the same choice. The copy stands right in
 * front of the first group that reads it: another copy, or a backward group. It reads
 * kept values, and copies of the others, so that one pass back over the groups finds all
 * copies and their places. Operands of copies are converted anew. After Chen et al.,
 * "Training Deep Nets with Sublinear Memory Cost", 2016, section 4. Cost: linear in the
 * operands.
 */
#include "pipeline/recompute.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

#include "plan/microbatch.h"

struct recomputer {
    struct ap_arena *arena;
    const struct ap_graph *g;
    const struct ap_plan *plan;
    const uint8_t *when;
    const bool *again, *gone;
    int *place;     /* [group]: its copy stands before this group, INT_MAX: it has none */
    int *id, *copy; /* [node]: new number; of its copy, -1 */
    int *group;     /* [new group]: old one */
    bool *is_copy;  /* [new group] */
    int n_groups;
    int *source; /* [new node]: old one */
    int n_nodes;
};

static bool with_each(const struct recomputer *r, int group)
{
    return !r->when || r->when[group] == AP_EACH;
}

/* Of the value's group there is a copy, and who reads this value reads that. */
static bool is_recomputed(const struct recomputer *r, int node)
{
    int group = r->g->nodes[node].group;
    return r->gone[node] && r->again[group] && r->plan->turn[group] == 0 &&
           with_each(r, group) && r->plan->nests->nest[group].n_ins > 0;
}

/* Backward groups come behind forward ones, copies are read by groups behind theirs. */
static int find_places(struct recomputer *r)
{
    const struct ap_nests *nests = r->plan->nests;
    int n = 0;

    for (int i = 0; i < nests->n; i++)
        r->place[i] = INT_MAX;
    for (int i = nests->n - 1; i >= 0; i--) {
        const struct ap_nest *nest = &nests->nest[i];
        int at = r->place[i] < INT_MAX                      ? r->place[i]
                 : r->plan->turn[i] == 1 && with_each(r, i) ? i
                                                            : INT_MAX;
        n += r->place[i] < INT_MAX;
        for (int k = 0; k < nest->n_ins && at < INT_MAX; k++) {
            int maker = r->g->nodes[nest->ins[k].node].group;
            if (is_recomputed(r, nest->ins[k].node) && at < r->place[maker])
                r->place[maker] = at;
        }
    }
    return n;
}

static void add_group(struct recomputer *r, int group, bool is_copy)
{
    const struct ap_nest *nest = &r->plan->nests->nest[group];

    for (int m = 0; m < nest->n_members; m++) {
        (is_copy ? r->copy : r->id)[nest->members[m]] = r->n_nodes;
        r->source[r->n_nodes++] = nest->members[m];
    }
    r->is_copy[r->n_groups] = is_copy;
    r->group[r->n_groups++] = group;
}

/* The new order: nodes by group. */
static void order(struct recomputer *r)
{
    const int n = r->plan->nests->n;
    int *start = AP_NEW_N(r->arena, n + 2, int),
        *by_place = AP_NEW_N(r->arena, n + 1, int);

    for (int i = 0; i < n; i++)
        if (r->place[i] < INT_MAX)
            start[r->place[i] + 1]++;
    for (int i = 0; i < n; i++)
        start[i + 1] += start[i];
    int *next = ap_arena_dup(r->arena, start, (size_t)(n + 1) * sizeof *start);
    for (int i = 0; i < n; i++)
        if (r->place[i] < INT_MAX)
            by_place[next[r->place[i]]++] = i;
    for (int i = 0; i < n; i++) {
        for (int k = start[i]; k < start[i + 1]; k++)
            add_group(r, by_place[k], true);
        add_group(r, i, false);
    }
}

/* What a new group reads as old node `in`. */
static int read_as(const struct recomputer *r, int group, int in)
{
    int old = r->group[group];
    bool is_copy = r->is_copy[group];
    bool backward = is_copy || (r->plan->turn[old] == 1 && with_each(r, old));

    if (is_copy && r->g->nodes[in].group == old)
        return r->copy[in];
    return backward && is_recomputed(r, in) ? r->copy[in] : r->id[in];
}

/* The attributes with the mark of what is computed once more. */
static const struct ap_attrs *recomputed(const struct recomputer *r,
                                         const struct ap_attrs *attrs)
{
    struct ap_attrs *a = ap_arena_dup(r->arena, attrs, sizeof *attrs);
    a->recomputed = true;
    return a;
}

static struct ap_graph write_graph(const struct recomputer *r)
{
    struct ap_graph g = *r->g;
    bool *handed = AP_NEW_N(r->arena, r->n_nodes, bool);
    struct ap_err err = {0};
    int at = 0;

    g.n_nodes = r->n_nodes;
    g.n_groups = r->n_groups;
    g.nodes = AP_NEW_N(r->arena, r->n_nodes, struct ap_node);
    for (int i = 0; i < r->n_groups; i++)
        for (int m = 0; m < r->plan->nests->nest[r->group[i]].n_members; m++, at++) {
            const struct ap_node *old = &r->g->nodes[r->source[at]];
            struct ap_node *n = &g.nodes[at];
            int *in = AP_NEW_N(r->arena, old->n_in + 1, int);
            *n = *old;
            for (int k = 0; k < n->n_in; k++)
                in[k] = read_as(r, i, old->in[k]);
            n->in = in;
            n->group = i;
            handed[at] = r->g->handed[r->source[at]];
            if (!r->is_copy[i])
                continue;
            n->name = ap_arena_printf(r->arena, "%s.remat", old->name);
            n->phase = AP_BACKWARD;
            n->attrs = recomputed(r, n->attrs);
        }
    g.handed = handed;
    g.results =
        ap_arena_dup(r->arena, g.results, (size_t)g.n_results * sizeof *g.results);
    for (int k = 0; k < g.n_results; k++) {
        g.results[k].node = r->id[g.results[k].node];
        if (g.results[k].alias >= 0)
            g.results[k].alias = r->id[g.results[k].alias];
    }
    if (ap_graph_index(r->arena, &g, "", &err))
        assert(!"what was a graph is one with copies in it");
    return g;
}

static void map_ids(const struct recomputer *r, int n, const int **ids)
{
    int *out = AP_NEW_N(r->arena, n + 1, int);
    for (int k = 0; k < n; k++)
        out[k] = r->id[(*ids)[k]];
    *ids = out;
}

/* The nests are the old ones under new numbers, so that choices mean the same. */
static struct ap_nests *write_nests(const struct recomputer *r, const struct ap_graph *g)
{
    struct ap_nests *nests = AP_NEW(r->arena, struct ap_nests);

    *nests = (struct ap_nests){.graph = g,
                               .n = r->n_groups,
                               .nest = AP_NEW_N(r->arena, r->n_groups, struct ap_nest)};
    for (int i = 0; i < r->n_groups; i++) {
        const struct ap_nest *old = &r->plan->nests->nest[r->group[i]];
        struct ap_nest *nest = &nests->nest[i];
        const int *id = r->is_copy[i] ? r->copy : r->id;
        int *members = AP_NEW_N(r->arena, old->n_members + 1, int);
        int *outs = AP_NEW_N(r->arena, old->n_outs + 1, int);
        *nest = *old;
        nest->group = i;
        for (int m = 0; m < old->n_members; m++)
            members[m] = id[old->members[m]];
        for (int o = 0; o < old->n_outs; o++)
            outs[o] = id[old->outs[o]];
        nest->members = members;
        nest->outs = outs;
        nest->ins =
            ap_arena_dup(r->arena, old->ins, (size_t)old->n_ins * sizeof *old->ins);
        for (int k = 0; k < old->n_ins; k++)
            nest->ins[k].node = read_as(r, i, old->ins[k].node);
    }
    return nests;
}

/* Marks of nodes under their new numbers; NULL if there are none. */
static bool *map_marks(const struct recomputer *r, const bool *marks)
{
    bool *out = marks ? AP_NEW_N(r->arena, r->n_nodes, bool) : NULL;
    for (int i = 0; i < r->n_nodes && marks; i++)
        out[i] = marks[r->source[i]];
    return out;
}

/* What copies read is brought to their layouts anew, but for what is there anyway. */
static void read_anew(const struct recomputer *r, struct ap_plan *plan)
{
    if (!plan->regather)
        plan->regather = AP_NEW_N(r->arena, r->n_nodes, bool);
    for (int i = 0; i < r->n_groups; i++)
        for (int k = 0; k < plan->nests->nest[i].n_ins && r->is_copy[i]; k++) {
            int in = plan->nests->nest[i].ins[k].node;
            bool held =
                plan->graph->nodes[in].op == AP_OP_PARAMETER && !plan->graph->handed[in];
            plan->regather[in] |=
                !held && with_each(r, r->group[plan->graph->nodes[in].group]);
        }
}

static void write_plan(const struct recomputer *r, const struct ap_graph *g,
                       struct ap_plan *plan)
{
    struct ap_choice_vec *choice = AP_NEW_N(r->arena, r->n_groups, struct ap_choice_vec);
    int16_t *time =
        plan->microbatch_choice ? AP_NEW_N(r->arena, r->n_groups, int16_t) : NULL;
    int *turn = AP_NEW_N(r->arena, r->n_groups, int);
    bool *each = plan->each ? AP_NEW_N(r->arena, r->n_groups, bool) : NULL;

    plan->graph = g;
    plan->nests = write_nests(r, g);
    for (int i = 0; i < r->n_groups; i++) {
        choice[i] = plan->choice[r->group[i]];
        turn[i] = r->is_copy[i] ? 1 : plan->turn[r->group[i]];
        if (each)
            each[i] = plan->each[r->group[i]];
        if (time)
            time[i] = plan->microbatch_choice[r->group[i]];
    }
    plan->choice = choice;
    plan->each = each;
    plan->microbatch_choice = time;
    plan->turn = turn;
    plan->regather = map_marks(r, plan->regather);
    plan->whole = map_marks(r, plan->whole);
    read_anew(r, plan);
}

void ap_recompute(struct ap_arena *arena, const bool *again, const bool *gone,
                  struct ap_subgraph *sub, struct ap_plan *plan)
{
    const struct ap_plan old = *plan;
    const int n = old.nests->n, n_nodes = sub->graph.n_nodes;
    struct ap_graph *before = AP_NEW(arena, struct ap_graph);
    struct recomputer r = {.arena = arena,
                           .g = before,
                           .plan = &old,
                           .when = ap_plan_when(arena, &old),
                           .again = again,
                           .gone = gone,
                           .place = AP_NEW_N(arena, n + 1, int),
                           .id = AP_NEW_N(arena, n_nodes + 1, int),
                           .copy = AP_NEW_N(arena, n_nodes + 1, int),
                           .source = AP_NEW_N(arena, 2 * n_nodes + 1, int),
                           .group = AP_NEW_N(arena, 2 * n + 1, int),
                           .is_copy = AP_NEW_N(arena, 2 * n + 1, bool)};

    *before = sub->graph;
    if (find_places(&r) == 0)
        return;
    order(&r);
    int *source = AP_NEW_N(arena, r.n_nodes, int);
    for (int i = 0; i < r.n_nodes; i++)
        source[i] = sub->source[r.source[i]];
    sub->source = source;
    sub->graph = write_graph(&r);
    map_ids(&r, sub->n_cut_in, &sub->cut_in);
    map_ids(&r, sub->n_cut_out, &sub->cut_out);
    write_plan(&r, &sub->graph, plan);
}
