/*
 * Problem: a stage that recomputes keeps few values of its forward pass; which groups run
 * again, when, and what do they read?
 * Idea: a group that makes a value that is not kept, and that a backward group reads,
 * gets a copy in the backward phase, under the same choice. The copy stands right in
 * front of the first group that reads it: another copy, or a backward group. It reads
 * kept values, and copies of the others, so that one pass back over the groups finds all
 * copies and their places. Operands of copies are converted anew. A chain that makes a
 * value that is kept, at the end of a block, and values of the next block from it, is
 * copied from the kept value on: else the copies of a block would wait for those of the
 * block before. A backward group that needs no gradient, only what runs again, runs where
 * its own first reader does: else what all blocks make for such groups would come first.
 * After Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016,
 * section 4. Cost: linear in the operands.
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
    bool *made;     /* [node]: made once more with its group's copy */
    int *place;     /* [group]: its copy stands before this group, INT_MAX: it has none */
    bool *moved;    /* [group]: of the backward pass; it stands there itself */
    int *id, *copy; /* [node]: new number; of its copy, -1 */
    int *group;     /* [new group]: old one */
    int *first;     /* [new group]: its first new node; their number at the end */
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
    return r->gone[node] && r->again[group] && r->plan->turn[group] == AP_TURN_FORWARD &&
           with_each(r, group) && r->plan->nests->nest[group].n_ins > 0;
}

/* Whether a member is made once more with its group's copy, not read where it is kept. */
static bool has_copy(const struct recomputer *r, const struct ap_nest *nest, int m)
{
    return r->made[nest->members[m]];
}

/* Values of a group that are gone, and what they are made of but for values that are
 * kept. */
static void find_made(struct recomputer *r, const struct ap_nest *nest)
{
    const bool whole = nest->heavy || nest->n_members == 1;

    for (int o = 0; o < nest->n_outs; o++)
        r->made[nest->outs[o]] = r->gone[nest->outs[o]];
    for (int m = nest->n_members - 1; m >= 0; m--) {
        const int v = nest->members[m];
        if (whole)
            r->made[v] = true;
        for (int k = 0; k < r->g->nodes[v].n_in && r->made[v]; k++) {
            const int in = r->g->nodes[v].in[k];
            if (r->g->nodes[in].group != nest->group)
                continue;
            bool kept = false;
            for (int o = 0; o < nest->n_outs && !kept; o++)
                kept = nest->outs[o] == in && !r->gone[in];
            r->made[in] |= !kept;
        }
    }
}

/* Whether a member's operand k comes from outside its group's copy: its node. */
static bool comes_in(const struct recomputer *r, const struct ap_nest *nest, int m, int k)
{
    const int in = r->g->nodes[nest->members[m]].in[k];
    return nest->in_slot[m][k] >= 0 || !has_copy(r, nest, ap_nest_member(nest, in));
}

static bool is_backward(const struct recomputer *r, int group)
{
    return r->plan->turn[group] == AP_TURN_BACKWARD && with_each(r, group);
}

/* Whether a backward group reads values of forward groups alone, of which some run again,
 * and is read by backward groups alone. Groups that it reads come first. */
static bool may_move(const struct recomputer *r, const struct ap_nest *nest)
{
    const struct ap_graph *g = r->g;
    bool again = false;

    for (int k = 0; k < nest->n_ins; k++) {
        const int in = nest->ins[k].node, maker = g->nodes[in].group;
        if (r->plan->turn[maker] != AP_TURN_FORWARD && !r->moved[maker])
            return false;
        again |= is_recomputed(r, in) || r->moved[maker];
    }
    for (int o = 0; o < nest->n_outs && again; o++) {
        const int v = nest->outs[o];
        again = !ap_graph_is_result(g, v) && g->user_start[v] < g->user_start[v + 1];
        for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++)
            again &= is_backward(r, g->nodes[g->users[u]].group);
    }
    return again && is_backward(r, nest->group);
}

/* Notes that what makes the operands of a group, or of its copy, stands before `at`. */
static void place_makers(struct recomputer *r, const struct ap_nest *nest, bool is_copy,
                         int at)
{
    for (int m = 0; m < nest->n_members; m++)
        for (int k = 0; k < r->g->nodes[nest->members[m]].n_in; k++) {
            const int in = r->g->nodes[nest->members[m]].in[k];
            const int maker = r->g->nodes[in].group;
            if (is_copy && !has_copy(r, nest, m))
                break;
            if (maker != nest->group && (is_recomputed(r, in) || r->moved[maker]) &&
                at < r->place[maker])
                r->place[maker] = at;
        }
}

/* Backward groups come after forward ones, copies are read by groups after theirs. */
static int find_places(struct recomputer *r)
{
    const struct ap_nests *nests = r->plan->nests;
    int n = 0;

    for (int i = 0; i < nests->n; i++) {
        r->place[i] = INT_MAX;
        r->moved[i] = may_move(r, &nests->nest[i]);
    }
    for (int i = nests->n - 1; i >= 0; i--) {
        const struct ap_nest *nest = &nests->nest[i];
        const bool is_copy = r->place[i] < INT_MAX && !r->moved[i];
        int at = r->place[i] < INT_MAX ? r->place[i] : is_backward(r, i) ? i : INT_MAX;
        n += is_copy;
        if (at < INT_MAX)
            place_makers(r, nest, is_copy, at);
    }
    return n;
}

static void add_group(struct recomputer *r, int group, bool is_copy)
{
    const struct ap_nest *nest = &r->plan->nests->nest[group];

    for (int m = 0; m < nest->n_members; m++) {
        if (is_copy && !has_copy(r, nest, m))
            continue;
        (is_copy ? r->copy : r->id)[nest->members[m]] = r->n_nodes;
        r->source[r->n_nodes++] = nest->members[m];
    }
    r->is_copy[r->n_groups] = is_copy;
    r->group[r->n_groups++] = group;
    r->first[r->n_groups] = r->n_nodes;
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
            add_group(r, by_place[k], !r->moved[by_place[k]]);
        if (!r->moved[i])
            add_group(r, i, false);
    }
}

/* What a new group reads as old node `in`. */
static int read_as(const struct recomputer *r, int group, int in)
{
    int old = r->group[group];
    bool is_copy = r->is_copy[group];
    bool backward = is_copy || is_backward(r, old);

    if (is_copy && r->g->nodes[in].group == old) {
        const struct ap_nest *nest = &r->plan->nests->nest[old];
        return has_copy(r, nest, ap_nest_member(nest, in)) ? r->copy[in] : r->id[in];
    }
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
        for (; at < r->n_nodes && at < r->first[i + 1]; at++) {
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
    if (ap_graph_replace(r->arena, &g, g.nodes, g.n_nodes, r->id, &err))
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

/* A nest under new numbers, of group i, so that choices mean the same. */
static void renumber(const struct recomputer *r, int i, struct ap_nest *nest)
{
    const struct ap_nest *old = &r->plan->nests->nest[r->group[i]];
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
    nest->ins = ap_arena_dup(r->arena, old->ins, (size_t)old->n_ins * sizeof *old->ins);
    for (int k = 0; k < old->n_ins; k++)
        nest->ins[k].node = read_as(r, i, old->ins[k].node);
}

/* Of a nest that reads kept members: the slot of such a one, or of an old slot. */
struct slots {
    struct ap_nest *nest;
    int *of_slot, *of_member; /* new slots, -1: none yet */
};

/* A slot that is partial where `linear` says so. */
static int new_slot(struct slots *s, int node, const struct ap_access *access,
                    unsigned linear, struct ap_linear_set *sets)
{
    const int slot = s->nest->n_ins++;
    s->nest->ins[slot] = (struct ap_nest_in){node, *access};
    for (int k = 0; k < s->nest->n_linear && slot < 64; k++)
        sets[k].ins |= (uint64_t)(linear >> k & 1) << slot;
    return slot;
}

/* The slot of operand k of old member m. */
static int slot_of(const struct recomputer *r, struct slots *s, const struct ap_nest *old,
                   int m, int k, struct ap_linear_set *sets)
{
    const int in = r->g->nodes[old->members[m]].in[k], was = old->in_slot[m][k];
    const int i = s->nest->group;
    unsigned linear = 0;

    if (was < 0) {
        const int from = ap_nest_member(old, in);
        if (s->of_member[from] < 0)
            s->of_member[from] = new_slot(s, r->id[in], &old->values[from],
                                          old->linear_values[from], sets);
        return s->of_member[from];
    }
    for (int l = 0; l < old->n_linear && was < 64; l++)
        linear |= (unsigned)(old->linear[l].ins >> was & 1) << l;
    if (s->of_slot[was] < 0)
        s->of_slot[was] =
            new_slot(s, read_as(r, i, in), &old->ins[was].access, linear, sets);
    return s->of_slot[was];
}

/* The same without the members that are kept, of a copy. */
static void shorten(const struct recomputer *r, int i, struct ap_nest *nest)
{
    const struct ap_nest *old = &r->plan->nests->nest[r->group[i]];
    const int n = old->n_members, n_slots = old->n_ins + n;
    struct ap_access *values = AP_NEW_N(r->arena, n, struct ap_access);
    uint8_t *linear = AP_NEW_N(r->arena, n, uint8_t);
    const int **in_slot = AP_NEW_N(r->arena, n, const int *);
    int *members = AP_NEW_N(r->arena, n, int), *outs = AP_NEW_N(r->arena, n, int);
    struct ap_linear_set *sets =
        AP_NEW_N(r->arena, old->n_linear + 1, struct ap_linear_set);
    struct slots s = {nest, AP_NEW_N(r->arena, n_slots, int),
                      AP_NEW_N(r->arena, n_slots, int)};

    memset(s.of_slot, -1, (size_t)n_slots * sizeof *s.of_slot);
    memset(s.of_member, -1, (size_t)n_slots * sizeof *s.of_member);
    *nest = *old;
    nest->group = i;
    nest->n_members = nest->n_outs = nest->n_ins = 0;
    nest->ins = AP_NEW_N(r->arena, n_slots, struct ap_nest_in);
    for (int m = 0; m < n; m++) {
        const int v = old->members[m], n_in = r->g->nodes[v].n_in;
        if (!has_copy(r, old, m))
            continue;
        int *slot = AP_NEW_N(r->arena, n_in + 1, int);
        for (int k = 0; k < n_in; k++)
            slot[k] = comes_in(r, old, m, k) ? slot_of(r, &s, old, m, k, sets) : -1;
        values[nest->n_members] = old->values[m];
        linear[nest->n_members] = old->linear_values[m];
        in_slot[nest->n_members] = slot;
        members[nest->n_members++] = r->copy[v];
        for (int o = 0; o < old->n_outs; o++)
            if (old->outs[o] == v)
                outs[nest->n_outs++] = r->copy[v];
    }
    nest->values = values;
    nest->linear_values = linear;
    nest->linear = sets;
    nest->in_slot = in_slot;
    nest->members = members;
    nest->outs = outs;
}

static struct ap_nests *write_nests(const struct recomputer *r, const struct ap_graph *g)
{
    struct ap_nests *nests = AP_NEW(r->arena, struct ap_nests);

    *nests = (struct ap_nests){.graph = g,
                               .n = r->n_groups,
                               .nest = AP_NEW_N(r->arena, r->n_groups, struct ap_nest)};
    for (int i = 0; i < r->n_groups; i++)
        if (r->first[i + 1] - r->first[i] < r->plan->nests->nest[r->group[i]].n_members)
            shorten(r, i, &nests->nest[i]);
        else
            renumber(r, i, &nests->nest[i]);
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
        turn[i] = r->is_copy[i] ? AP_TURN_BACKWARD : plan->turn[r->group[i]];
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
    plan->host = map_marks(r, plan->host);
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
                           .made = AP_NEW_N(arena, n_nodes + 1, bool),
                           .place = AP_NEW_N(arena, n + 1, int),
                           .moved = AP_NEW_N(arena, n + 1, bool),
                           .id = AP_NEW_N(arena, n_nodes + 1, int),
                           .copy = AP_NEW_N(arena, n_nodes + 1, int),
                           .source = AP_NEW_N(arena, 2 * n_nodes + 1, int),
                           .group = AP_NEW_N(arena, 2 * n + 1, int),
                           .first = AP_NEW_N(arena, 2 * n + 2, int),
                           .is_copy = AP_NEW_N(arena, 2 * n + 1, bool)};

    *before = sub->graph;
    for (int i = 0; i < n; i++)
        find_made(&r, &old.nests->nest[i]);
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
