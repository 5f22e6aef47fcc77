/*
 * Problem: list the strategies of each fusion group on a mesh. Idea: per axis no factor,
 * a factor, or a linear set; all combinations that the nest allows. Among strategies with
 * equal layouts of all operands and results, only the cheapest is listed. Twins (fold.h)
 * share one list. Cost: per group (factors + linear sets + 1)^axes choices.
 */
#include "base/array.h"
#include "problem/fold.h"
#include "problem/shard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct lister {
    struct ap_arena *arena;
    const struct ap_nest *nest;
    const struct ap_graph *g;
    const struct ap_mesh *mesh;
    const struct ap_cost *cost;
    const struct shard_params *params;
    const struct ap_pins *pins;
    const int16_t *microbatch_choice; /* [group]: given */
    bool offered[AP_MAX_FACTORS];
    bool linear;      /* linear sets are listed */
    bool any_padding; /* more than a quarter, where nothing else is left */
    struct ap_choice_vec *list;
    uint64_t *sig;
    double *sec;
    int n, cap, cap_sig, cap_sec;
};

/* Offers the factors that are the major one of a dimension, or after factors that do not
 * divide by the devices: `scripts/bench/serve` takes a tenth less CPU time than with all.
 */
static void offer_factors(struct lister *l)
{
    const struct ap_nest *nest = l->nest;
    int64_t devices = ap_mesh_devices(l->mesh);

    memset(l->offered, 0, sizeof l->offered);
    for (int t = 0; t < nest->n_ins + nest->n_members; t++) {
        const struct ap_access *a =
            t < nest->n_ins ? &nest->ins[t].access : &nest->values[t - nest->n_ins];
        int id = t < nest->n_ins ? nest->ins[t].node : nest->members[t - nest->n_ins];
        for (int d = 0; d < l->g->nodes[id].shape.rank; d++) {
            bool enough = false;
            for (int j = 0; j < a->dims[d].n; j++) {
                int f = a->dims[d].factor[j];
                bool on_microbatches =
                    l->microbatch_choice && l->microbatch_choice[nest->group] == f;
                l->offered[f] |= !enough || nest->factors[f].stripes == AP_STRIPES_INSIDE;
                enough |= nest->factors[f].size %
                              (on_microbatches ? devices * l->mesh->size[0] : devices) ==
                          0;
            }
        }
    }
}

/*
 * Partial sums are passed on by groups that only add, move, convert or scale by a number:
 * elsewhere a later collective is no cheaper than an earlier one.
 */
static bool keeps_sums(const struct lister *l)
{
    for (int m = 0; m < l->nest->n_members; m++) {
        const struct ap_node *n = &l->g->nodes[l->nest->members[m]];
        bool scales = n->op == AP_OP_MULTIPLY || n->op == AP_OP_DIVIDE;
        for (int k = 0; scales && k < 2; k++) {
            const struct ap_node *in = &l->g->nodes[n->in[k]];
            if (in->op == AP_OP_BROADCAST && l->g->nodes[in->in[0]].shape.rank == 0)
                scales = false; /* by one number */
        }
        bool other = ap_ops[n->op].class == AP_CLASS_ELEMENTWISE && n->op != AP_OP_ADD &&
                     n->op != AP_OP_SUBTRACT && n->op != AP_OP_NEGATE &&
                     n->op != AP_OP_CONVERT && n->op != AP_OP_COPY &&
                     n->op != AP_OP_MULTIPLY && n->op != AP_OP_DIVIDE;
        if (scales || other)
            return false;
    }
    return !l->nest->heavy;
}

static bool sizes_ok(const struct lister *l, const struct ap_choice_vec *c)
{
    for (int a = 0; a < l->mesh->n_axes; a++) {
        int f = c->axis[a];
        if (f < 0 || f >= l->nest->n_factors)
            continue;
        int64_t devices = 1;
        for (int b = 0; b < l->mesh->n_axes; b++)
            if (c->axis[b] == f)
                devices *= l->mesh->size[b];
        int64_t size = l->nest->factors[f].size, padding = -size % devices;
        padding += padding < 0 ? devices : 0;
        if (size < devices || (!l->any_padding && 4 * padding > size) ||
            (l->params->no_padding && padding))
            return false;
    }
    return true;
}

static bool heavy_ok(const struct lister *l, const struct ap_choice_vec *c)
{
    bool priced = l->cost->variant == AP_COST_DEFAULT && !l->params->alpa;
    if (!l->nest->heavy || priced || l->params->recompute_heavy)
        return true;
    return ap_plan_idle_axis(l->nest, l->mesh, c) < 0;
}

static bool space_ok(const struct lister *l, const struct ap_choice_vec *c)
{
    const struct shard_alpa *alpa = l->params->alpa;
    return !alpa || shard_alpa_admits(alpa, l->nest, l->g, l->mesh, c);
}

static bool pins_ok(const struct lister *l, const struct ap_choice_vec *c)
{
    for (int m = 0; l->pins && m < l->nest->n_members; m++) {
        int id = l->nest->members[m];
        if (!l->pins->pinned[id])
            continue;
        struct ap_layout v = ap_nest_value_layout(l->nest, l->g, l->mesh, c, m);
        if (!ap_layout_equal(&v, &l->pins->layout[id]))
            return false;
    }
    return true;
}

/* Hash of all layouts that the rest of the graph sees. */
static uint64_t signature(const struct ap_nest *nest, const struct ap_graph *g,
                          const struct ap_mesh *mesh, const struct ap_choice_vec *c)
{
    uint64_t h = 0;
    for (int i = 0; i < nest->n_ins; i++) {
        struct ap_layout v = ap_nest_in_layout(nest, g, mesh, c, i);
        h = ap_hash(&h, sizeof h, ap_layout_hash(&v));
    }
    for (int i = 0, m = 0; i < nest->n_outs; i++) { /* both lists ascend */
        while (nest->members[m] != nest->outs[i])
            m++;
        struct ap_layout v = ap_nest_value_layout(nest, g, mesh, c, m);
        h = ap_hash(&h, sizeof h, ap_layout_hash(&v));
    }
    return h;
}

int shard_space_find(const struct shard_space *space, int group,
                     const struct ap_choice_vec *choice)
{
    uint64_t sig =
        signature(&space->nests->nest[group], space->graph, &space->cost->mesh, choice);
    for (int s = 0; s < space->n[group]; s++)
        if (space->sig[group][s] == sig)
            return s;
    return -1;
}

static void add(struct lister *l, const struct ap_choice_vec *c)
{
    uint64_t sig = signature(l->nest, l->g, l->mesh, c);
    double sec = ap_plan_group_sec(l->nest, l->g, l->cost, c);

    for (int i = 0; i < l->n; i++) {
        if (l->sig[i] != sig)
            continue;
        if (sec < l->sec[i]) {
            l->sec[i] = sec;
            l->list[i] = *c;
        }
        return;
    }
    AP_ROOM(l->list, l->n, l->cap);
    AP_ROOM(l->sig, l->n, l->cap_sig);
    AP_ROOM(l->sec, l->n, l->cap_sec);
    l->list[l->n] = *c;
    l->sig[l->n] = sig;
    l->sec[l->n++] = sec;
}

/* At most two different choices, each on neighbouring axes (those of size 1 aside). */
static bool simple_enough(const struct ap_mesh *mesh, const struct ap_choice_vec *c)
{
    int last = -1, n_changes = 0, n_axes = 0;
    for (int a = 0; a < mesh->n_axes; a++) {
        if (mesh->size[a] == 1 || (mesh->microbatch >> a & 1))
            continue;
        n_changes += n_axes++ > 0 && c->axis[a] != last;
        last = c->axis[a];
    }
    return n_axes <= 2 || n_changes <= 1;
}

static void list_axis(struct lister *l, int axis, struct ap_choice_vec *c)
{
    const struct ap_nest *nest = l->nest;

    if (axis == l->mesh->n_axes) {
        if (simple_enough(l->mesh, c) && sizes_ok(l, c) && heavy_ok(l, c) &&
            ap_choice_ok(nest, l->mesh, c) && space_ok(l, c) && pins_ok(l, c))
            add(l, c);
        return;
    }
    if (l->mesh->microbatch >> axis & 1) {
        c->axis[axis] = l->microbatch_choice[nest->group];
        list_axis(l, axis + 1, c);
        return;
    }
    int n_linear = l->linear || nest->ring ? nest->n_linear : 0;
    for (int k = -1; k < nest->n_factors + n_linear; k++) {
        if (k >= 0 && l->mesh->size[axis] == 1)
            break;
        if (k >= 0 && k < nest->n_factors &&
            (!l->offered[k] || nest->factors[k].kind == AP_FACTOR_WHOLE ||
             nest->factors[k].size < l->mesh->size[axis]))
            continue;
        c->axis[axis] = (int16_t)k;
        list_axis(l, axis + 1, c);
    }
    c->axis[axis] = -1;
}

static int name_infeasible(const struct lister *l, struct ap_err *err)
{
    const struct ap_node *first = &l->g->nodes[l->nest->members[0]];
    for (int m = 0; l->pins && m < l->nest->n_members; m++)
        if (l->pins->pinned[l->nest->members[m]])
            return ap_pins_refuse(l->pins, l->g, l->nest->members[m],
                                  "no strategy of the search has it", err);
    if (l->params->alpa)
        return ap_err_set(err,
                          "%s (%s): Alpa has no strategy on this mesh that splits it on "
                          "every axis evenly, a batch of matrices by batch (--space "
                          "default has more)",
                          first->name, ap_ops[first->op].name);
    return ap_err_set(err,
                      "%s (%s): nothing can be split on every axis of the mesh, and "
                      "replicating it is free under this cost model (--recompute-heavy "
                      "allows it)",
                      first->name, ap_ops[first->op].name);
}

static bool is_listed(const struct lister *l, const struct ap_choice_vec *c)
{
    for (int s = 0; s < l->n; s++)
        if (memcmp(&l->list[s], c, sizeof *c) == 0)
            return true;
    return false;
}

/* Keeps the listed choice with the least seconds of compute; among equals, the first. */
static void keep_fastest(struct lister *l)
{
    int least = 0;

    for (int s = 1; s < l->n; s++)
        if (l->sec[s] < l->sec[least])
            least = s;
    l->list[0] = l->list[least];
    l->sig[0] = l->sig[least];
    l->sec[0] = l->sec[least];
    l->n = 1;
}

/* All strategies of a group; the plans' choices at the groups of its list are added. */
static int list_group(struct lister *l, int group, const struct shard_fold *fold,
                      const int *next, const struct ap_plan *plans, int n_plans,
                      struct ap_err *err)
{
    struct ap_choice_vec c;

    for (int a = 0; a < AP_MAX_AXES; a++)
        c.axis[a] = -1;
    l->n = 0;
    offer_factors(l);
    l->linear = keeps_sums(l);
    l->any_padding = false;
    list_axis(l, 0, &c);
    if (l->n == 0) {
        l->any_padding = true;
        memset(l->offered, 1, sizeof l->offered);
        list_axis(l, 0, &c);
    }
    if (l->n > 0 && l->params->known && !ap_plan_group_is_free(l->g, l->nest))
        keep_fastest(l);
    for (int i = group; i >= 0; i = next[i])
        for (int p = 0; p < n_plans && fold->weight[i] > 0; p++)
            if (!is_listed(l, &plans[p].choice[i]) && heavy_ok(l, &plans[p].choice[i]) &&
                pins_ok(l, &plans[p].choice[i]) && space_ok(l, &plans[p].choice[i]) &&
                (!l->params->no_padding || sizes_ok(l, &plans[p].choice[i])))
                add(l, &plans[p].choice[i]);
    return l->n == 0 ? name_infeasible(l, err) : 0;
}

/* next[group]: the next of its twins, -1 at the end. */
static int *list_twins(struct ap_arena *arena, const struct shard_fold *fold, int n)
{
    int *next = AP_NEW_N(arena, n, int), *last = AP_NEW_N(arena, n, int);
    for (int i = 0; i < n; i++) {
        next[i] = -1;
        last[i] = i;
        if (fold->twin[i] != i) {
            next[last[fold->twin[i]]] = i;
            last[fold->twin[i]] = i;
        }
    }
    return next;
}

int shard_space_build(struct ap_arena *arena, const struct shard_task *task,
                      const struct shard_fold *fold, const struct ap_plan *plans,
                      int n_plans, struct shard_space *space, struct ap_err *err)
{
    int n = task->nests->n, rc = 0;
    struct lister l = {.arena = arena,
                       .g = task->graph,
                       .mesh = &task->cost->mesh,
                       .cost = task->cost,
                       .params = task->params,
                       .pins = task->pins,
                       .microbatch_choice = task->microbatch_choice};
    int *next = list_twins(arena, fold, n);

    *space = (struct shard_space){
        .arena = arena, .graph = task->graph, .nests = task->nests, .cost = task->cost};
    space->microbatch_choice = task->microbatch_choice;
    space->alpa = task->params->alpa;
    space->n = AP_NEW_N(arena, n, int);
    space->choice = AP_NEW_N(arena, n, struct ap_choice_vec *);
    space->sec = AP_NEW_N(arena, n, double *);
    space->sig = AP_NEW_N(arena, n, uint64_t *);
    for (int i = 0; i < n && rc == 0; i++) {
        int twin = fold->twin[i];
        if (twin == i) {
            l.nest = &task->nests->nest[i];
            rc = list_group(&l, i, fold, next, plans, n_plans, err);
            space->n[i] = l.n;
            space->choice[i] = ap_arena_dup(arena, l.list, (size_t)l.n * sizeof *l.list);
            space->sec[i] = ap_arena_dup(arena, l.sec, (size_t)l.n * sizeof *l.sec);
            space->sig[i] = ap_arena_dup(arena, l.sig, (size_t)l.n * sizeof *l.sig);
        } else {
            space->n[i] = space->n[twin];
            space->choice[i] = space->choice[twin];
            space->sec[i] = space->sec[twin];
            space->sig[i] = space->sig[twin];
        }
        space->n_strategies += space->n[i];
        space->log10_plans += log10(space->n[i]);
        if (fold->weight[i] > 0) {
            space->n_folded += space->n[i];
            space->log10_folded += log10(space->n[i]);
        }
    }
    free(l.list);
    free(l.sig);
    free(l.sec);
    return rc;
}
