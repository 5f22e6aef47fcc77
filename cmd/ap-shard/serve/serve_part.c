/*
 * Problem: a planner of pipelines asks for every run of blocks; searching each of them
 * costs more than searching the whole graph. Idea: plans are made for the whole graph,
 * and a part uses the choices of the whole graph's groups. Two things are decided at the
 * cut: a value from outside arrives in the layout that its readers can use most cheaply,
 * and the few groups that the cut goes through follow their neighbours. Neither depends
 * on the extent of the part, so that the price of a part is a sum over its blocks and the
 * pairs of neighbours (serve_sums.c). Cost: linear in the graph to cut, in the part to
 * plan.
 */
#include "cost/convert.h"
#include "serve/serve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/csr.h"
#include "problem/classes.h"

#define NODE_BYTES 2000 /* of a part's node with its nest, about */

/* Whether the part is all of the graph, node by node, with the same results and groups.
 */
static bool is_all(const struct ap_graph *g, const struct ap_subgraph *sub)
{
    const struct ap_graph *own = &sub->graph;
    bool same = own->n_nodes == g->n_nodes && own->n_results == g->n_results &&
                own->n_groups == g->n_groups && g->n_comps == 0 && sub->n_cut_in == 0 &&
                sub->n_cut_out == 0;

    for (int v = 0; v < g->n_nodes && same; v++)
        same = sub->source[v] == v && own->nodes[v].op == g->nodes[v].op &&
               own->nodes[v].n_in == g->nodes[v].n_in &&
               own->nodes[v].group == g->nodes[v].group;
    for (int r = 0; r < g->n_results && same; r++)
        same = own->results[r].node == g->results[r].node;
    return same;
}

static const enum ap_phase *phases_of(struct ap_arena *arena,
                                      const struct ap_nests *nests)
{
    enum ap_phase *phase = AP_NEW_N(arena, nests->n + 1, enum ap_phase);
    for (int i = 0; i < nests->n; i++)
        phase[i] = ap_plan_group_phase(nests->graph, &nests->nest[i]);
    return phase;
}

/* nests: of the graph; NULL: not known. */
static struct serve_part *cut(const struct ap_graph *g, const struct ap_nests *nests,
                              const bool *inside, struct ap_err *err)
{
    struct serve_part *part = ap_xrealloc(NULL, sizeof *part);

    *part = (struct serve_part){.facts.arena = &part->arena};
    int rc = ap_subgraph(&part->arena, g, inside, &part->sub, err);
    if (rc == 0 && nests && is_all(g, &part->sub)) {
        part->nests = *nests;
        part->nests.graph = &part->sub.graph;
    } else if (rc == 0) {
        rc = ap_nests_build(&part->arena, &part->sub.graph, &part->nests, err);
    }
    if (rc) {
        serve_part_free(part);
        return NULL;
    }
    part->phase = phases_of(&part->arena, &part->nests);
    part->bytes = (int64_t)part->sub.graph.n_nodes * NODE_BYTES + 16 * g->n_nodes;
    return part;
}

struct serve_part *serve_part_of_nodes(const struct ap_graph *g, const bool *inside,
                                       struct ap_err *err)
{
    return cut(g, NULL, inside, err);
}

void serve_part_free(struct serve_part *part)
{
    ap_arena_free(&part->arena);
    free(part);
}

/* ---- groups of the part and of the whole ---- */

/* The group of the whole graph with the same members and nest, -1. */
static int same_group(const struct serve_part *part, const struct ap_nests *nests, int i)
{
    const struct ap_graph *g = nests->graph, *own = &part->sub.graph;
    const struct ap_nest *nest = &part->nests.nest[i];
    int group = g->nodes[part->sub.source[nest->members[0]]].group;
    const struct ap_nest *whole = &nests->nest[group];

    if (nest->n_members != whole->n_members)
        return -1;
    for (int m = 0; m < nest->n_members; m++) {
        int source = part->sub.source[nest->members[m]];
        if (whole->members[m] != source ||
            g->nodes[source].op != own->nodes[nest->members[m]].op)
            return -1;
    }
    for (int k = 0; k < nest->n_ins && nest->n_ins == whole->n_ins; k++)
        if (part->sub.source[nest->ins[k].node] != whole->ins[k].node)
            return -1;
    return shard_fold_same_nest(own, nest, g, whole) ? group : -1;
}

struct serve_part *serve_part_new(const struct serve_blocks *b,
                                  const struct ap_nests *nests, const int *twin, int n,
                                  const int *block, struct ap_err *err)
{
    bool *chosen = ap_xrealloc(NULL, (size_t)b->n * sizeof *chosen);
    bool *inside = ap_xrealloc(NULL, ((size_t)b->graph->n_nodes + 1) * sizeof *inside);

    memset(chosen, 0, (size_t)b->n * sizeof *chosen);
    for (int i = 0; i < n; i++)
        chosen[block[i]] = true;
    for (int v = 0; v < b->graph->n_nodes; v++)
        inside[v] = chosen[b->home[v]];
    struct serve_part *part = cut(b->graph, nests, inside, err);
    free(chosen);
    free(inside);
    if (!part)
        return NULL;
    int *whole = AP_NEW_N(&part->arena, part->nests.n + 1, int);
    int *first_twin = AP_NEW_N(&part->arena, part->nests.n + 1, int);
    for (int i = 0; i < part->nests.n; i++) {
        whole[i] = same_group(part, nests, i);
        first_twin[i] = whole[i] < 0 || !twin ? -1 : twin[whole[i]];
    }
    part->whole = whole;
    part->twin = first_twin;
    return part;
}

/* ---- what comes from outside ---- */

struct wanted {
    int n;
    struct ap_layout layout[16];
};

static void want(struct wanted *w, struct ap_layout l)
{
    l = ap_layout_whole(&l);
    for (int i = 0; i < w->n; i++)
        if (ap_layout_equal(&w->layout[i], &l))
            return;
    if (w->n < (int)(sizeof w->layout / sizeof *w->layout))
        w->layout[w->n++] = l;
}

/* Layouts in which nodes of other blocks read the value under a plan. */
static void list_wanted(const struct serve_blocks *b, const struct ap_plan *plan,
                        int node, struct wanted *w)
{
    const struct ap_graph *g = b->graph;
    w->n = 0;
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        int user = g->users[u], group = g->nodes[user].group;
        const struct ap_nest *nest = &plan->nests->nest[group];
        if (b->home[user] == b->home[node])
            continue;
        if (group == g->nodes[node].group) { /* that the cut goes through */
            want(w, ap_nest_value_layout(nest, g, &plan->mesh, &plan->choice[group],
                                         ap_nest_member(nest, node)));
            continue;
        }
        int m = ap_nest_member(nest, user);
        for (int k = 0; k < g->nodes[user].n_in; k++)
            if (g->nodes[user].in[k] == node && nest->in_slot[m][k] >= 0)
                want(w, ap_nest_in_layout(nest, g, &plan->mesh, &plan->choice[group],
                                          nest->in_slot[m][k]));
    }
}

static struct ap_layout arriving(const struct serve_blocks *b, const struct ap_plan *plan,
                                 const struct ap_cost *cost, int node)
{
    const struct ap_shape *shape = &b->graph->nodes[node].shape;
    struct ap_layout best = ap_layout_replicated();
    double least = INFINITY;
    struct wanted w;

    if (shape->dtype == AP_TUPLE || ap_shape_elems(shape) <= 1)
        return best;
    list_wanted(b, plan, node, &w);
    for (int i = 0; i < w.n; i++) {
        double sec = 0;
        for (int k = 0; k < w.n; k++)
            if (k != i)
                sec += ap_convert_sec(cost, shape, &w.layout[i], &w.layout[k]);
        if (sec < least) {
            least = sec;
            best = w.layout[i];
        }
    }
    return best;
}

void serve_border_rows(struct ap_arena *arena, const struct serve_blocks *b,
                       const struct ap_nests *nests, struct serve_rows *rows)
{
    int *home = AP_NEW_N(arena, nests->n + 1, int);
    for (int i = 0; i < nests->n; i++)
        home[i] = b->n > 0 ? b->home[nests->nest[i].members[0]] : -1;
    const struct ap_csr groups = ap_csr_new(arena, b->n, nests->n, home, NULL);
    rows->group_start = groups.start;
    rows->group = groups.item;
    rows->inside = AP_NEW_N(arena, nests->n + 1, int);
    for (int k = 0; k < nests->n && b->n > 0; k++) {
        const struct ap_nest *nest = &nests->nest[k];
        rows->inside[k] = b->home[nest->members[0]];
        for (int i = 1; i < nest->n_members; i++)
            if (b->home[nest->members[i]] != rows->inside[k])
                rows->inside[k] = -1;
    }
    rows->number = AP_NEW_N(arena, b->graph->n_nodes + 1, int);
    rows->n = 0;
    for (int v = 0; v < b->graph->n_nodes; v++)
        rows->number[v] = b->n == 0 || b->leaf[v] || b->to_start[v] == b->to_start[v + 1]
                              ? -1
                              : rows->n++;
}

/* Distinct layouts. */
struct layout_set {
    int n;
    const struct ap_layout **item; /* scratch */
    struct ap_classes classes;
};

static bool same_layout(const void *ctx, int a, int b)
{
    const struct layout_set *set = ctx;
    return ap_layout_equal(set->item[a], set->item[b]);
}

/* The one that equals it, in the arena. */
static const struct ap_layout *intern(struct ap_arena *arena, struct layout_set *set,
                                      const struct ap_layout *l)
{
    set->item[set->n] = l;
    int i = ap_class_of(&set->classes, ap_layout_hash(l), set->n);
    if (i == set->n)
        set->item[set->n++] = ap_arena_dup(arena, l, sizeof *l);
    return set->item[i];
}

const struct ap_layout *const *
serve_border_find(struct ap_arena *arena, const struct serve_blocks *b,
                  const struct ap_nests *nests, const struct serve_pool *pool, int i,
                  const struct ap_cost *cost, const struct serve_rows *rows)
{
    struct ap_plan plan = serve_pool_plan(pool, i, b->graph, nests, cost);
    const struct ap_layout **layout =
        AP_NEW_N(arena, rows->n + 1, const struct ap_layout *);
    struct ap_arena scratch = {0};
    struct layout_set set = {
        .item = AP_NEW_N(&scratch, rows->n + 1, const struct ap_layout *)};

    set.classes = (struct ap_classes){.same = same_layout, .ctx = &set};
    for (int v = 0; v < b->graph->n_nodes; v++)
        if (rows->number[v] >= 0) {
            struct ap_layout l = arriving(b, &plan, cost, v);
            layout[rows->number[v]] = intern(arena, &set, &l);
        }
    ap_classes_free(&set.classes);
    ap_arena_free(&scratch);
    return layout;
}

/* The parameter's choice that gives its value this layout, axis by axis. */
static struct ap_choice_vec choose_layout(const struct ap_nest *nest,
                                          const struct ap_graph *g,
                                          const struct ap_mesh *mesh,
                                          const struct ap_layout *want)
{
    struct ap_choice_vec choice = AP_CHOICE_NONE;
    for (int a = 0; a < mesh->n_axes; a++) {
        struct ap_choice_vec best = choice;
        for (int f = 0; f < nest->n_factors && want->axis[a].kind == AP_SPLIT; f++) {
            struct ap_choice_vec try = choice;
            try.axis[a] = (int16_t)f;
            if (nest->factors[f].kind == AP_FACTOR_WHOLE ||
                !ap_choice_ok(nest, mesh, &try))
                continue;
            struct ap_layout l = ap_nest_value_layout(nest, g, mesh, &try, 0);
            if (l.axis[a].kind == AP_SPLIT && l.axis[a].dim == want->axis[a].dim &&
                (best.axis[a] < 0 || l.axis[a].stride == want->axis[a].stride))
                best = try;
        }
        choice = best;
    }
    return choice;
}

struct ap_plan serve_part_plan(struct ap_arena *arena, const struct serve_part *part,
                               const struct serve_pool *pool, int i,
                               const struct serve_border *border,
                               const struct ap_cost *cost)
{
    const struct ap_graph *g = &part->sub.graph;
    const int *source = part->sub.source;
    struct ap_plan plan = {.graph = g,
                           .nests = &part->nests,
                           .mesh = cost->mesh,
                           .recompute_heavy = pool->recompute_heavy};
    bool *fixed = AP_NEW_N(arena, part->nests.n + 1, bool), all = true;

    plan.choice = AP_NEW_N(arena, part->nests.n + 1, struct ap_choice_vec);
    for (int k = 0; k < part->nests.n; k++) {
        plan.choice[k] = AP_CHOICE_NONE;
        if (part->whole[k] >= 0) {
            plan.choice[k] = pool->choice[i][part->whole[k]];
            fixed[k] = true;
        }
    }
    for (int k = 0; k < part->sub.n_cut_in; k++) {
        int v = part->sub.cut_in[k], row = border->number[source[v]];
        const struct ap_nest *nest = &part->nests.nest[g->nodes[v].group];
        if (row < 0 || nest->n_members != 1)
            continue;
        plan.choice[nest->group] =
            choose_layout(nest, g, &plan.mesh, border->layout[i][row]);
        fixed[nest->group] = true;
    }
    for (int k = 0; k < part->nests.n; k++)
        all &= fixed[k];
    if (!all)
        ap_named_plan_complete(arena, &plan, fixed);
    if (!pool->regather[i])
        return plan;
    plan.regather = AP_NEW_N(arena, g->n_nodes + 1, bool);
    for (int v = 0; v < g->n_nodes; v++)
        plan.regather[v] = pool->regather[i][source[v]];
    return plan;
}

void serve_part_price(struct ap_arena *scratch, struct serve_part *part,
                      const struct ap_plan *plan, const struct ap_cost *cost,
                      struct ap_stage_known *sizes, const struct serve_wanted *want)
{
    const int n = want->n;
    const bool known = want->known;
    struct ap_stage_measure *alone = want->alone, *measure = want->measure;
    struct ap_stage_measure *m = AP_NEW_N(scratch, n, struct ap_stage_measure);
    const struct ap_stage_microbatch **asked =
        AP_NEW_N(scratch, n, const struct ap_stage_microbatch *);
    int *at = AP_NEW_N(scratch, n, int), n_asked = 0;
    struct ap_conversions conv;
    struct ap_err ignored = {0};

    for (int k = 0; k < n; k++) {
        int64_t rows, devices;
        measure[k] = (struct ap_stage_measure){.forward_sec = INFINITY};
        if (known ? isinf(alone[k].forward_sec)
                  : ap_stage_few_rows(&part->sub, want->microbatch[k], plan, &rows,
                                      &devices) >= 0) {
            alone[k] = measure[k];
            continue; /* no plan for them */
        }
        asked[n_asked] = want->microbatch[k];
        at[n_asked++] = k;
    }
    if (want->whole)
        *want->whole = INFINITY;
    if (n_asked == 0 && !want->whole)
        return;
    const struct ap_stage_group *const *groups =
        ap_stage_know(scratch, sizes, part->twin, plan, cost);
    struct ap_plan_layouts laid = ap_stage_layouts(scratch, plan, groups);
    laid.phase = part->phase;
    const struct ap_stage_plan stage = {&part->sub, NULL, plan, &conv, cost};
    if (n_asked > 0 && !known)
        ap_stage_measure_all(scratch, &stage, &part->facts, n_asked, asked, groups, m);
    for (int k = 0; k < n_asked; k++)
        if (known)
            m[k] = alone[at[k]];
        else
            alone[at[k]] = m[k];
    if (ap_plan_conversions_laid(scratch, plan, &laid, cost, &conv, &ignored))
        return; /* not here */
    ap_stage_measure_conversions(scratch, &stage, part->phase, n_asked, asked, m);
    for (int k = 0; k < n_asked; k++)
        measure[at[k]] = m[k];
    if (!want->whole)
        return;
    double *sec = AP_NEW_N(scratch, plan->nests->n + 1, double);
    for (int i = 0; i < plan->nests->n; i++)
        sec[i] = groups[i]->sec;
    *want->whole = ap_plan_price_known(plan, cost, &conv, sec).serial_sec;
}
