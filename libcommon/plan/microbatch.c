/*
 * Problem: run a step's batch in microbatches, on the same devices one after the other,
 * and still get the numbers of the whole batch. Idea: the microbatches are a first mesh
 * axis, on which the graph lies as under data parallelism (one sweep from the inputs'
 * first dimension). A group with a factor on it runs once per microbatch; groups that
 * only add or move partial sums are left out, for once after the last microbatch is as
 * good. A value that a group reads must be available in time: whole over the axis, or of
 * the same microbatch. If it is not, and depends on inputs alone, the value and the nodes
 * that it depends on are not split over the axis; otherwise microbatches are impossible.
 * Cost: linear in the operand slots, a few passes. Cf. Zheng et al., "Alpa", section 6
 * (gradient accumulation), and Huang et al., "GPipe", section 2 (which takes such
 * statistics per microbatch instead).
 */
#include "plan/microbatch.h"

#include <stdlib.h>
#include <string.h>

#include "plan/named_plan_impl.h"

struct splitter {
    const struct ap_graph *g;
    const struct ap_nests *nests;
    struct ap_mesh mesh;          /* of the microbatch axis only */
    struct ap_choice_vec *choice; /* per group */
    bool *pure; /* per group: made of inputs and constants, no product */
    bool *once; /* per group: taken out of the axis */
    bool *each; /* per group: runs on estimates; NULL: statistics are the whole batch's */
    bool *sums; /* per group: makes sums of sums */
    int *stack;
    bool *cut; /* per node: a parameter that another part of the whole graph makes */
};

bool ap_runs_each(const struct ap_nest *nest, const struct ap_graph *g,
                  const struct ap_mesh *mesh, const struct ap_choice_vec *choice)
{
    int first = nest->members[0];
    return mesh->microbatch && choice->axis[0] >= 0 &&
           (g->nodes[first].op != AP_OP_PARAMETER || (g->handed && g->handed[first]));
}

/* ---- when groups run ---- */

/* Whether a group does no more than to fill a tensor with a constant. */
static bool only_fills(const struct ap_graph *g, const struct ap_nest *nest)
{
    bool fills = nest->n_ins == 0;

    for (int m = 0; m < nest->n_members && fills; m++) {
        const enum ap_op op = g->nodes[nest->members[m]].op;
        fills = op == AP_OP_BROADCAST || op == AP_OP_CONSTANT;
    }
    return fills && g->nodes[nest->members[nest->n_members - 1]].op == AP_OP_BROADCAST;
}

uint8_t *ap_plan_when(struct ap_arena *arena, const struct ap_plan *plan)
{
    const struct ap_nests *nests = plan->nests;
    const struct ap_node *nodes = plan->graph->nodes;
    uint8_t *when;

    if (!plan->mesh.microbatch)
        return NULL;
    when = AP_NEW_N(arena, nests->n, uint8_t);
    for (int i = 0; i < nests->n; i++) {
        const struct ap_nest *nest = &nests->nest[i];
        bool each = ap_runs_each(nest, plan->graph, &plan->mesh, &plan->choice[i]) ||
                    (plan->each && plan->each[i]);
        when[i] = each ? AP_EACH : AP_BEFORE;
        for (int k = 0; k < nest->n_ins && !each; k++)
            if (when[nodes[nest->ins[k].node].group] != AP_BEFORE)
                when[i] = AP_AFTER;
    }
    /* what no microbatch needs is as well made after them, and zeros that only those of a
       stage need are not kept for the next one */
    bool *needed = AP_NEW_N(arena, nests->n, bool);
    bool *kept = AP_NEW_N(arena, nests->n, bool);
    for (int r = 0; r < plan->graph->n_results; r++)
        kept[nodes[plan->graph->results[r].node].group] = true;
    for (int i = nests->n - 1; i >= 0; i--) {
        const struct ap_nest *nest = &nests->nest[i];
        bool param = nodes[nest->members[0]].op == AP_OP_PARAMETER;
        if (when[i] == AP_BEFORE && !needed[i] && !param)
            when[i] = AP_AFTER;
        if (when[i] == AP_BEFORE && plan->turn && !kept[i] &&
            only_fills(plan->graph, nest))
            when[i] = AP_EACH;
        for (int k = 0; k < nest->n_ins; k++) {
            needed[nodes[nest->ins[k].node].group] |= when[i] != AP_AFTER;
            kept[nodes[nest->ins[k].node].group] |= when[i] != AP_EACH;
        }
    }
    return when;
}

struct turn {
    int when, turn, group;
};

static int compare_turns(const void *pa, const void *pb)
{
    const struct turn *a = pa, *b = pb;
    if (a->when != b->when)
        return a->when < b->when ? -1 : 1;
    if (a->turn != b->turn)
        return a->turn < b->turn ? -1 : 1;
    return a->group < b->group ? -1 : a->group > b->group;
}

int *ap_plan_order(struct ap_arena *arena, const struct ap_plan *plan,
                   const uint8_t *when)
{
    int n = 0, n_groups = plan->nests->n, *order = AP_NEW_N(arena, n_groups, int);

    for (int w = AP_BEFORE; w <= AP_AFTER && !plan->turn; w++)
        for (int i = 0; i < n_groups; i++)
            if ((when ? when[i] : AP_BEFORE) == w)
                order[n++] = i;
    if (!plan->turn || n_groups == 0)
        return order;
    struct ap_mark mark = ap_arena_mark(arena);
    struct turn *turn = AP_NEW_N(arena, n_groups, struct turn);
    for (int i = 0; i < n_groups; i++)
        turn[i] = (struct turn){when ? when[i] : AP_BEFORE, plan->turn[i], i};
    qsort(turn, (size_t)n_groups, sizeof *turn, compare_turns);
    for (int i = 0; i < n_groups; i++)
        order[i] = turn[i].group;
    ap_arena_rewind(arena, mark);
    return order;
}

bool ap_plan_slot_is_ready(const struct ap_plan *plan, const struct ap_nest *nest, int k,
                           const uint8_t *when)
{
    const struct ap_graph *g = plan->graph;
    int node = nest->ins[k].node, from = g->nodes[node].group;
    const struct ap_nest *made = &plan->nests->nest[from];
    struct ap_mesh mesh = plan->mesh;

    if (when[from] != AP_EACH)
        return when[from] == AP_BEFORE;
    mesh.n_axes = 1; /* what devices hold of it does not matter */
    struct ap_layout have = ap_nest_value_layout(made, g, &mesh, &plan->choice[from],
                                                 ap_nest_member(made, node));
    struct ap_layout want =
        ap_nest_in_layout(nest, g, &mesh, &plan->choice[nest->group], k);
    return have.axis[0].kind == AP_REPLICATED || ap_layout_equal(&have, &want) ||
           (plan->each && have.axis[0].kind == AP_PARTIAL &&
            want.axis[0].kind == AP_REPLICATED);
}

/* ---- choices ---- */

static int nearest_divisor(int64_t batch, int64_t n)
{
    int64_t best = 1;
    for (int64_t d = 1; d * d <= batch; d++) {
        if (batch % d)
            continue;
        int64_t both[2] = {d, batch / d};
        for (int k = 0; k < 2; k++) {
            int64_t x = both[k] > n ? both[k] - n : n - both[k];
            int64_t y = best > n ? best - n : n - best;
            if (x < y || (x == y && both[k] < best))
                best = both[k];
        }
    }
    return (int)best;
}

/* Groups made of inputs and constants alone, without contractions. */
static void find_pure(struct splitter *s)
{
    for (int i = 0; i < s->nests->n; i++) {
        const struct ap_nest *nest = &s->nests->nest[i];
        const struct ap_node *first = &s->g->nodes[nest->members[0]];
        s->pure[i] = !nest->heavy;
        if (first->op == AP_OP_PARAMETER)
            s->pure[i] = first->role == AP_ROLE_INPUT || first->role == AP_ROLE_CONSTANT;
        if (first->op == AP_OP_PARAMETER && s->cut[nest->members[0]])
            s->pure[i] = false;
        for (int k = 0; k < nest->n_ins && s->pure[i]; k++)
            s->pure[i] = s->pure[s->g->nodes[nest->ins[k].node].group];
    }
}

/* Takes the group, and what it is made of, out of the axis; whether that was new. */
static bool take_out(struct splitter *s, int group)
{
    int n = 0;
    if (s->once[group])
        return false;
    s->once[group] = true;
    s->stack[n++] = group;
    while (n > 0) {
        const struct ap_nest *nest = &s->nests->nest[s->stack[--n]];
        if (s->g->nodes[nest->members[0]].op == AP_OP_PARAMETER)
            continue; /* lies as it is read */
        s->choice[nest->group].axis[0] = -1;
        for (int k = 0; k < nest->n_ins; k++) {
            int in = s->g->nodes[nest->ins[k].node].group;
            if (!s->once[in])
                s->stack[n++] = in;
            s->once[in] = true;
        }
    }
    return true;
}

/* The value over the batch that a late value comes from. */
static int culprit(const struct splitter *s, int node, const uint8_t *when)
{
    while (when[s->g->nodes[node].group] != AP_EACH) {
        const struct ap_nest *nest = &s->nests->nest[s->g->nodes[node].group];
        int next = -1;
        for (int k = 0; k < nest->n_ins && next < 0; k++)
            if (when[s->g->nodes[nest->ins[k].node].group] != AP_BEFORE)
                next = nest->ins[k].node;
        if (next < 0)
            break;
        node = next;
    }
    return node;
}

static int refuse(const struct splitter *s, const struct ap_nest *nest, int k,
                  const uint8_t *when, struct ap_err *err)
{
    const struct ap_node *nodes = s->g->nodes;
    int node = culprit(s, nest->ins[k].node, when);
    return ap_err_set(err,
                      "node %d (%s) combines the whole batch, and node %d (%s) reads it "
                      "before the update: microbatches would change the numbers",
                      node, nodes[node].name, nest->members[0],
                      nodes[nest->members[0]].name);
}

/* One pass: 1 when something was taken out of the axis, 0 when all operands are there by
 * the time that they are read. */
static int settle(struct ap_arena *arena, struct splitter *s, struct ap_err *err)
{
    struct ap_plan plan = {
        .graph = s->g, .nests = s->nests, .mesh = s->mesh, .choice = s->choice};
    uint8_t *when = ap_plan_when(arena, &plan);
    const struct ap_nest *late = NULL;
    int late_slot = 0;
    bool changed = false;

    for (int i = 0; i < s->nests->n; i++) {
        const struct ap_nest *nest = &s->nests->nest[i];
        for (int k = 0; k < nest->n_ins && when[i] == AP_EACH; k++) {
            int from = s->g->nodes[nest->ins[k].node].group;
            if (s->choice[i].axis[0] < 0 || ap_plan_slot_is_ready(&plan, nest, k, when))
                continue;
            if (s->pure[from]) {
                changed |= take_out(s, from);
            } else if (!late) {
                late = nest;
                late_slot = k;
            }
        }
    }
    if (changed || !late)
        return changed;
    return refuse(s, late, late_slot, when, err);
}

/* ---- statistics of each microbatch ---- */

static struct ap_plan plan_of(const struct splitter *s)
{
    return (struct ap_plan){.graph = s->g,
                            .nests = s->nests,
                            .mesh = s->mesh,
                            .choice = s->choice,
                            .each = s->each};
}

static enum ap_placement_kind lies(const struct splitter *s, int node, enum ap_red *red)
{
    const struct ap_plan plan = plan_of(s);
    const struct ap_placement p = ap_plan_node_layout(&plan, node).axis[0];
    *red = p.red;
    return p.kind;
}

/* Whether a group without a factor on the axis makes more than a sum of what microbatches
 * make: of forward values always, of gradients' sums if an estimate is among them. */
static bool mixes(const struct splitter *s, const struct ap_nest *nest,
                  const uint8_t *when)
{
    const bool forward = ap_plan_group_phase(s->g, nest) == AP_FORWARD;

    for (int k = 0; k < nest->n_ins; k++) {
        const int from = s->g->nodes[nest->ins[k].node].group;
        enum ap_red red;
        if (when[from] == AP_BEFORE || lies(s, nest->ins[k].node, &red) == AP_SPLIT)
            continue;
        if (s->each[from] || (forward && !s->sums[nest->group]))
            return true;
    }
    return false;
}

static const char rows[] = "microbatches would need each other's rows";

static int refuse_each(const struct splitter *s, const struct ap_nest *nest, int node,
                       const char *why, struct ap_err *err)
{
    const struct ap_node *nodes = s->g->nodes;
    return ap_err_set(err, "node %d (%s) is read by node %d (%s): %s", node,
                      nodes[node].name, nest->members[0], nodes[nest->members[0]].name,
                      why);
}

/* Whether operand slot k takes rows of all microbatches: of an input, which is there. */
static bool takes_all_rows(const struct splitter *s, const struct ap_nest *nest, int k)
{
    const struct ap_node *n = &s->g->nodes[nest->ins[k].node];
    struct ap_mesh mesh = s->mesh;

    if (n->op != AP_OP_PARAMETER || s->choice[n->group].axis[0] < 0)
        return false;
    mesh.microbatch = 0; /* as it is read */
    return ap_nest_in_layout(nest, s->g, &mesh, &s->choice[nest->group], k)
               .axis[0]
               .kind == AP_REPLICATED;
}

/* Operand slot k of a group that runs with each microbatch; *changed: its maker does so
 * from now on. */
static int need_slot(struct splitter *s, const struct ap_nest *nest, int k,
                     const uint8_t *when, bool *changed, struct ap_err *err)
{
    const struct ap_plan plan = plan_of(s);
    const int node = nest->ins[k].node, from = s->g->nodes[node].group;
    const struct ap_nest *made = &s->nests->nest[from];
    enum ap_red red;

    if (when[from] == AP_AFTER) {
        if (ap_plan_group_phase(s->g, made) == AP_UPDATE)
            return refuse_each(s, nest, node, "it is of the update", err);
        *changed |= !s->each[from];
        s->each[from] = true;
        return 0;
    }
    if (!ap_plan_slot_is_ready(&plan, nest, k, when))
        return refuse_each(s, nest, node, rows, err);
    if (when[from] == AP_EACH && lies(s, node, &red) == AP_PARTIAL &&
        (red == AP_RED_PROD || red == AP_RED_ASSIGN))
        return refuse_each(s, nest, node, "it cannot be estimated from one microbatch",
                           err);
    return 0;
}

/* One pass: 1 when a group became one that runs on estimates. */
static int settle_each(struct ap_arena *arena, struct splitter *s, struct ap_err *err)
{
    const struct ap_plan plan = plan_of(s);
    const uint8_t *when = ap_plan_when(arena, &plan);
    bool changed = false;

    for (int i = 0; i < s->nests->n; i++) {
        const struct ap_nest *nest = &s->nests->nest[i];
        if (when[i] == AP_AFTER && !s->each[i] &&
            ap_plan_group_phase(s->g, nest) != AP_UPDATE && mixes(s, nest, when))
            changed = s->each[i] = true;
        for (int k = 0; k < nest->n_ins && when[i] != AP_AFTER; k++)
            if (takes_all_rows(s, nest, k))
                return refuse_each(s, nest, nest->ins[k].node, rows, err);
        for (int k = 0; k < nest->n_ins && when[i] == AP_EACH; k++)
            if (need_slot(s, nest, k, when, &changed, err))
                return -1;
    }
    return changed;
}

/* What the update and the results take of estimates is an average. */
static int check_averages(struct ap_arena *arena, const struct splitter *s,
                          struct ap_err *err)
{
    const struct ap_plan plan = plan_of(s);
    const uint8_t *when = ap_plan_when(arena, &plan);
    static const char integers[] = "integers of microbatches have no average";

    for (int i = 0; i < s->nests->n; i++) {
        const struct ap_nest *nest = &s->nests->nest[i];
        for (int k = 0; k < nest->n_ins && when[i] == AP_AFTER; k++) {
            const struct ap_node *n = &s->g->nodes[nest->ins[k].node];
            if (s->each[n->group] && !ap_dtype_is_float(n->shape.dtype))
                return refuse_each(s, nest, nest->ins[k].node, integers, err);
        }
    }
    for (int r = 0; r < s->g->n_results; r++) {
        const int node = s->g->results[r].node;
        const struct ap_node *n = &s->g->nodes[node];
        const bool taken = s->g->taken && s->g->taken[r];
        if (!taken && s->each[n->group] && !ap_dtype_is_float(n->shape.dtype))
            return ap_err_set(err, "node %d (%s) is a result: %s", node, n->name,
                              integers);
    }
    return 0;
}

static struct ap_layout lies_in_whole(const struct ap_microbatched *whole, int node)
{
    const struct ap_nest *nest = &whole->nests->nest[whole->graph->nodes[node].group];
    const struct ap_mesh mesh = {1, {whole->n}, {"time"}, 0};
    struct ap_choice_vec c = AP_CHOICE_NONE;

    c.axis[0] = whole->choice[nest->group];
    return ap_nest_value_layout(nest, whole->graph, &mesh, &c,
                                ap_nest_member(nest, node));
}

uint8_t *ap_microbatch_when(struct ap_arena *arena, const struct ap_microbatched *whole)
{
    struct ap_plan plan = {.graph = whole->graph,
                           .nests = whole->nests,
                           .mesh = {1, {whole->n}, {"time"}, 1},
                           .each = whole->each};

    plan.choice = AP_NEW_N(arena, whole->nests->n, struct ap_choice_vec);
    for (int i = 0; i < whole->nests->n; i++) {
        plan.choice[i] = AP_CHOICE_NONE;
        plan.choice[i].axis[0] = whole->choice[i];
    }
    return ap_plan_when(arena, &plan);
}

bool ap_microbatch_is_estimate(const struct ap_microbatched *whole, const uint8_t *when,
                               int node, int reader)
{
    const int from = whole->graph->nodes[node].group;
    const struct ap_nest *nest = &whole->nests->nest[from];
    const struct ap_mesh mesh = {1, {whole->n}, {"time"}, 1};
    struct ap_choice_vec c = AP_CHOICE_NONE;

    if (!whole->each || when[from] != AP_EACH ||
        when[whole->graph->nodes[reader].group] != AP_EACH)
        return false;
    c.axis[0] = whole->choice[from];
    return ap_nest_value_layout(nest, whole->graph, &mesh, &c, ap_nest_member(nest, node))
               .axis[0]
               .kind != AP_SPLIT;
}

/* Whether every reader of the group's values takes what choice c makes of them. */
static bool serves_all(const struct splitter *s, const struct ap_nest *nest,
                       const struct ap_choice_vec *c, const uint8_t *when)
{
    const struct ap_graph *g = s->g;
    for (int o = 0; o < nest->n_outs; o++) {
        int node = nest->outs[o];
        struct ap_layout made =
            ap_nest_value_layout(nest, g, &s->mesh, c, ap_nest_member(nest, node));
        if (made.axis[0].kind != AP_SPLIT)
            return false;
        for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
            int group = g->nodes[g->users[u]].group;
            const struct ap_nest *user = &s->nests->nest[group];
            if (group != nest->group && when[group] != AP_EACH)
                return false;
            for (int k = 0; group != nest->group && k < user->n_ins; k++) {
                if (user->ins[k].node != node)
                    continue;
                struct ap_layout want =
                    ap_nest_in_layout(user, g, &s->mesh, &s->choice[group], k);
                if (!ap_layout_equal(&want, &made))
                    return false;
            }
        }
    }
    return nest->n_outs > 0;
}

/*
 * What would be made of the whole batch beforehand, though each microbatch reads its
 * share only (zeros, masks), is made share by share. Users come first.
 */
static void make_shares(struct ap_arena *arena, struct splitter *s)
{
    const struct ap_plan plan = plan_of(s);
    uint8_t *when = ap_plan_when(arena, &plan);
    bool *result = AP_NEW_N(arena, s->nests->n, bool);

    for (int r = 0; r < s->g->n_results; r++)
        result[s->g->nodes[s->g->results[r].node].group] = true;
    for (int i = s->nests->n - 1; i >= 0; i--) {
        const struct ap_nest *nest = &s->nests->nest[i];
        const bool once = when[i] == AP_BEFORE || (s->each && s->each[i]);
        if (!once || result[i] || s->once[i] ||
            s->g->nodes[nest->members[0]].op == AP_OP_PARAMETER)
            continue;
        for (int f = 0; f < nest->n_factors; f++) {
            struct ap_choice_vec c = AP_CHOICE_NONE;
            c.axis[0] = (int16_t)f;
            if (nest->factors[f].kind != AP_FACTOR_PARALLEL ||
                !ap_choice_ok(nest, &s->mesh, &c) || !serves_all(s, nest, &c, when))
                continue;
            s->choice[i] = c;
            when[i] = AP_EACH;
            if (s->each)
                s->each[i] = false;
            break;
        }
    }
}

static struct splitter splitter_new(struct ap_arena *arena, const struct ap_graph *g,
                                    const struct ap_nests *nests, int64_t n)
{
    struct splitter s = {.g = g,
                         .nests = nests,
                         .mesh = {1, {n}, {"time"}, 1},
                         .choice = AP_NEW_N(arena, nests->n, struct ap_choice_vec),
                         .pure = AP_NEW_N(arena, nests->n, bool),
                         .once = AP_NEW_N(arena, nests->n, bool),
                         .sums = AP_NEW_N(arena, nests->n, bool),
                         .cut = AP_NEW_N(arena, g->n_nodes, bool),
                         .stack = AP_NEW_N(arena, nests->n + 1, int)};
    for (int i = 0; i < nests->n; i++)
        s.choice[i] = AP_CHOICE_NONE;
    return s;
}

static struct ap_sweep sweep_new(struct ap_arena *arena, struct splitter *s)
{
    struct ap_plan plan = {
        .graph = s->g, .nests = s->nests, .mesh = s->mesh, .choice = s->choice};
    struct ap_sweep sweep = ap_sweep_new(arena, &plan, NULL);
    sweep.mesh = &s->mesh; /* the plan ends here */
    return sweep;
}

/*
 * Whether a group makes one sum over microbatches of what it reads of each: of a gradient
 * in 16 bits that in f32, which need not be rounded then, or of two parts of a gradient
 * their sum, which is one sum less to keep.
 */
static bool makes_sum(const struct splitter *s, const struct ap_nest *nest)
{
    const struct ap_node *n = &s->g->nodes[nest->members[0]];
    enum ap_red red;

    if (nest->n_members != 1 || ap_plan_group_phase(s->g, nest) != AP_BACKWARD ||
        !(n->op == AP_OP_ADD ||
          (n->op == AP_OP_CONVERT &&
           n->shape.dtype == ap_dtype_of_sums(s->g->nodes[n->in[0]].shape.dtype))))
        return false;
    for (int k = 0; k < nest->n_ins; k++)
        if (s->choice[s->g->nodes[nest->ins[k].node].group].axis[0] < 0 ||
            lies(s, nest->ins[k].node, &red) != AP_PARTIAL)
            return false;
    return true;
}

/* After the sweep: leaves out what only handles sums, and settles the rest. */
static int finish(struct ap_arena *arena, struct splitter *s, int16_t *out,
                  struct ap_err *err)
{
    int64_t n = s->mesh.size[0];
    int rc = 1;

    find_pure(s);
    for (int i = 0; i < s->nests->n; i++) {
        const struct ap_nest *nest = &s->nests->nest[i];
        int16_t *c = &s->choice[i].axis[0];
        s->sums[i] = *c >= nest->n_factors;
        if (s->sums[i] && !makes_sum(s, nest))
            *c = -1;
        if (s->each && *c >= 0)
            s->each[i] = false;
        if (*c >= 0 && !s->sums[i] && nest->factors[*c].size % n)
            return ap_err_set(err,
                              "%s splits its batch of %lld, which does not divide into "
                              "%lld microbatches; %d would do",
                              s->g->nodes[nest->members[0]].name,
                              (long long)nest->factors[*c].size, (long long)n,
                              nearest_divisor(nest->factors[*c].size, n));
    }
    while (rc > 0)
        rc = s->each ? settle_each(arena, s, err) : settle(arena, s, err);
    if (rc == 0 && s->each)
        rc = check_averages(arena, s, err);
    if (rc == 0)
        make_shares(arena, s);
    for (int i = 0; i < s->nests->n; i++)
        out[i] = s->choice[i].axis[0];
    return rc;
}

/* each: NULL, or per group. */
static int choose(struct ap_arena *arena, const struct ap_graph *g,
                  const struct ap_nests *nests, int64_t n, int16_t *out, bool *each,
                  struct ap_err *err)
{
    int64_t batch = ap_batch_size(g);

    if (batch == 0)
        return ap_err_set(err, "no input has a batch dimension");
    if (batch % n)
        return ap_err_set(err,
                          "a batch of %lld does not divide into %lld microbatches; %d "
                          "would do",
                          (long long)batch, (long long)n, nearest_divisor(batch, n));
    struct ap_mark mark = ap_arena_mark(arena);
    struct splitter s = splitter_new(arena, g, nests, n);
    struct ap_sweep sweep = sweep_new(arena, &s);
    s.each = each;
    ap_sweep_batch(&sweep, 0);
    int rc = finish(arena, &s, out, err);
    ap_arena_rewind(arena, mark);
    return rc;
}

int ap_microbatch_choices(struct ap_arena *arena, const struct ap_graph *g,
                          const struct ap_nests *nests, int64_t n, const int16_t **choice,
                          struct ap_err *err)
{
    int16_t *out = AP_NEW_N(arena, nests->n, int16_t);
    *choice = out;
    return choose(arena, g, nests, n, out, NULL, err);
}

int ap_microbatch_choices_each(struct ap_arena *arena, const struct ap_graph *g,
                               const struct ap_nests *nests, int64_t n,
                               const int16_t **choice, const bool **each,
                               struct ap_err *err)
{
    int16_t *out = AP_NEW_N(arena, nests->n, int16_t);
    bool *marks = AP_NEW_N(arena, nests->n + 1, bool);
    *choice = out;
    *each = marks;
    return choose(arena, g, nests, n, out, marks, err);
}

/* ---- parts of a graph ---- */

/* A factor that splits node as it lies in the whole graph, from number f on; -1: none.
 * The mesh has no microbatch axis, so that parameters lie as they are read. */
static int factor_of(const struct splitter *s, const struct ap_mesh *mesh, int node,
                     const struct ap_layout *lies, int f)
{
    const struct ap_nest *nest = &s->nests->nest[s->g->nodes[node].group];
    struct ap_choice_vec c = AP_CHOICE_NONE;

    for (; f < nest->n_factors && lies->axis[0].kind == AP_SPLIT; f++) {
        c.axis[0] = (int16_t)f;
        if (!ap_choice_ok(nest, mesh, &c))
            continue;
        struct ap_layout l =
            ap_nest_value_layout(nest, s->g, mesh, &c, ap_nest_member(nest, node));
        if (ap_layout_equal(&l, lies))
            return f;
    }
    return -1;
}

/* Splits parameter `node` of the part as the whole graph's value lies. */
static void seed(struct splitter *s, struct ap_sweep *sweep, const struct ap_mesh *mesh,
                 int node, const struct ap_layout *lies)
{
    const struct ap_nest *nest = &s->nests->nest[s->g->nodes[node].group];

    for (int f = 0; (f = factor_of(s, mesh, node, lies, f)) >= 0; f++)
        if (ap_sweep_try(sweep, nest, f)) {
            sweep->batch[node] = true;
            return;
        }
}

/*
 * Marks of a part's groups: as in the whole, and inputs that come as estimates. What the
 * whole graph splits because of readers that the part does not have is split, too.
 */
static void mark_part(struct ap_arena *arena, const struct ap_microbatched *whole,
                      const struct ap_subgraph *sub, const struct splitter *s)
{
    const struct ap_graph *g = &sub->graph;
    const struct ap_mesh mesh = {1, {whole->n}, {"time"}, 0};
    const uint8_t *when = ap_microbatch_when(arena, whole);

    for (int i = 0; i < g->n_nodes; i++) {
        int16_t *choice = &s->choice[g->nodes[i].group].axis[0];
        if (g->nodes[i].op == AP_OP_PARAMETER)
            continue;
        s->each[g->nodes[i].group] |=
            whole->each[whole->graph->nodes[sub->source[i]].group];
        const struct ap_layout lies = lies_in_whole(whole, sub->source[i]);
        if (*choice < 0)
            *choice = (int16_t)factor_of(s, &mesh, i, &lies, 0);
    }
    for (int k = 0; k < sub->n_cut_in; k++) {
        const int node = sub->cut_in[k], group = g->nodes[node].group;
        for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++)
            s->each[group] |= ap_microbatch_is_estimate(whole, when, sub->source[node],
                                                        sub->source[g->users[u]]);
        if (s->each[group])
            s->choice[group].axis[0] = -1;
    }
}

int ap_microbatch_part(struct ap_arena *arena, const struct ap_microbatched *whole,
                       const struct ap_subgraph *sub, const struct ap_nests *sub_nests,
                       const int16_t **choice, const bool **each, struct ap_err *err)
{
    int64_t n = whole->n;
    int16_t *out = AP_NEW_N(arena, sub_nests->n, int16_t);
    bool *marks = whole->each ? AP_NEW_N(arena, sub_nests->n + 1, bool) : NULL;
    struct ap_mark mark = ap_arena_mark(arena);
    struct splitter s = splitter_new(arena, &sub->graph, sub_nests, n);
    struct ap_sweep sweep = sweep_new(arena, &s);
    struct ap_mesh mesh = {1, {n}, {"time"}, 0};

    *choice = out;
    *each = s.each = marks;
    for (int k = 0; k < sub->n_cut_in; k++)
        s.cut[sub->cut_in[k]] = true;
    ap_sweep_axis(&sweep, 0, AP_SWEEP_BATCH);
    for (int k = 0; k < sub->graph.n_params; k++) {
        int node = sub->graph.params[k];
        const struct ap_layout lies = lies_in_whole(whole, sub->source[node]);
        seed(&s, &sweep, &mesh, node, &lies);
    }
    ap_sweep_run(&sweep);
    if (marks)
        mark_part(arena, whole, sub, &s);
    int rc = finish(arena, &s, out, err);
    ap_arena_rewind(arena, mark);
    return rc;
}
