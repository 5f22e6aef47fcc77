/*
 * Problem: which splits of a tensor are candidates on one mesh axis? A 256 x 256 tensor
 * on four devices has 16 methods, but no operator can use most of them.
 *
 * Idea: heavy operators decide. Each proposes splits of its own loops, in the largest
 * possible blocks: the first batch dimension that divides, the first contracting one, and
 * every dimension of the result. A proposal floods the graph, to producers, consumers and
 * from parameters to the results that they become, as far as no communication is needed:
 * a piece. Where a piece reaches a group that is already in the piece with another split,
 * the second split is a conflict, which starts a piece of its own in a second round; a
 * proposal that is in a piece already starts none. The candidates of a group are its
 * splits in all pieces and, unless it is heavy, being whole. A heavy group that nothing
 * divides takes a padded split, and is whole only if there is none. A pinned group stops
 * a piece that contradicts the pin, and proposes the splits that the pin allows. Splits
 * inside a dimension (strides) arise where a piece passes a reshape; the factor rules
 * give them.
 *
 * Cost: linear in groups times factors and in the edges between them, for a split that is
 * in one piece is not flooded again by another. After Rhino (Zhang et al.,
 * "Auto-Parallelizing Large Models with Rhino: A Systematic Approach on Production AI
 * Platform"), 4.3.3, and its open program TePDist.
 */
#include "base/array.h"
#include "rhino/rhino.h"

#include <stdlib.h>
#include <string.h>

int64_t rhino_methods(const struct ap_shape *shape, int64_t n_devices)
{
    int64_t n = 2;
    for (int d = 0; d < shape->rank; d++) {
        int64_t rest = shape->dims[d] / n_devices;
        if (shape->dims[d] % n_devices != 0)
            continue;
        for (int64_t i = 1; i * i <= rest; i++)
            if (rest % i == 0)
                n += i * i == rest ? 1 : 2;
    }
    return n;
}

/* ---- what every factor means for every tensor of its group ---- */

enum { CANNOT = -2, UNREACHED = -1 }; /* in piece */

static struct ap_choice_vec on_axis(const struct rhino_axis *ax, int group, int factor)
{
    struct ap_choice_vec c = ax->earlier[group];
    c.axis[ax->axis] = (int16_t)factor;
    return c;
}

/* Devices that share the factor when this axis splits it too. */
static int64_t sharing(const struct rhino_axis *ax, int group, int factor)
{
    const struct ap_mesh *mesh = &ax->task->cost->mesh;
    int64_t devices = ax->n_devices;
    for (int a = 0; a < ax->axis; a++)
        if (ax->earlier[group].axis[a] == factor)
            devices *= mesh->size[a];
    return devices;
}

static bool divides(const struct rhino_axis *ax, int group, int factor)
{
    const struct ap_nest *nest = &ax->task->nests->nest[group];
    return nest->factors[factor].size % sharing(ax, group, factor) == 0;
}

static bool can_split(const struct rhino_axis *ax, int group, int factor)
{
    const struct ap_nest *nest = &ax->task->nests->nest[group];
    struct ap_choice_vec c = on_axis(ax, group, factor);
    return nest->factors[factor].size >= sharing(ax, group, factor) &&
           !(ax->task->params->no_padding && !divides(ax, group, factor)) &&
           ap_choice_ok(nest, &ax->task->cost->mesh, &c);
}

static void place_group(struct rhino_axis *ax, int group)
{
    const struct shard_task *task = ax->task;
    const struct ap_nest *nest = &task->nests->nest[group];
    int n_slots = rhino_n_slots(nest);
    struct ap_placement *p =
        AP_NEW_N(ax->arena, (nest->n_factors + 1) * n_slots, struct ap_placement);

    ax->place[group] = p;
    ax->piece[group] = AP_NEW_N(ax->arena, nest->n_factors, int);
    for (int f = 0; f < nest->n_factors; f++) {
        struct ap_choice_vec c = {{(int16_t)f}};
        ax->piece[group][f] = can_split(ax, group, f) ? UNREACHED : CANNOT;
        if (ax->piece[group][f] == CANNOT)
            continue;
        for (int s = 0; s < n_slots; s++) {
            struct ap_layout l =
                s < nest->n_ins
                    ? ap_nest_in_layout(nest, task->graph, &ax->mesh, &c, s)
                    : ap_nest_value_layout(nest, task->graph, &ax->mesh, &c,
                                           ax->view->member[nest->outs[s - nest->n_ins]]);
            p[(f + 1) * n_slots + s] = l.axis[0];
        }
    }
}

/* ---- pins ---- */

static bool suits_pins(const struct rhino_axis *ax, int group, int factor)
{
    const struct shard_task *task = ax->task;
    const struct ap_nest *nest = &task->nests->nest[group];
    const struct ap_mesh *mesh = &task->cost->mesh;

    for (int m = 0; task->pins && task->pins->n > 0 && m < nest->n_members; m++) {
        int v = nest->members[m];
        if (!task->pins->pinned[v])
            continue;
        struct ap_choice_vec c = on_axis(ax, group, factor);
        struct ap_layout have = ap_nest_value_layout(nest, task->graph, mesh, &c, m);
        struct ap_layout want = task->pins->layout[v];
        for (int a = ax->axis + 1; a < AP_MAX_AXES; a++)
            want.axis[a] = (struct ap_placement){0};
        if (ap_layout_canon(mesh, &task->graph->nodes[v].shape, &want) ||
            !ap_layout_equal(&have, &want))
            return false;
    }
    return true;
}

static int pinned_member(const struct rhino_axis *ax, int group)
{
    const struct shard_task *task = ax->task;
    const struct ap_nest *nest = &task->nests->nest[group];
    for (int m = 0; task->pins && task->pins->n > 0 && m < nest->n_members; m++)
        if (task->pins->pinned[nest->members[m]])
            return nest->members[m];
    return -1;
}

/* ---- pieces ---- */

struct proposal {
    int group, factor;
};

struct proposals { /* malloc */
    int n, cap;
    struct proposal *item;
};

struct flood {
    struct rhino_axis *ax;
    int current;  /* piece */
    int *last_in; /* [group]: the last piece that it is in */
    struct proposals stack, conflicts;
};

static void push(struct proposals *list, int group, int factor)
{
    AP_ROOM(list->item, list->n, list->cap);
    list->item[list->n++] = (struct proposal){group, factor};
}

/* A tensor of the group has placement p: finds the factor, and adds it to the piece. */
static void reach(struct flood *f, int group, int slot, const struct ap_placement *p)
{
    struct rhino_axis *ax = f->ax;
    int factor = -1;

    for (int k = 0; k < ax->task->nests->nest[group].n_factors && factor < 0; k++)
        if (ax->piece[group][k] != CANNOT && divides(ax, group, k) &&
            rhino_same(rhino_place(ax, group, k, slot), p))
            factor = k;
    if (factor < 0 || ax->piece[group][factor] >= 0)
        return;
    if (f->last_in[group] == f->current) {
        push(&f->conflicts, group, factor);
        return;
    }
    if (pinned_member(ax, group) >= 0 && !suits_pins(ax, group, factor))
        return;
    f->last_in[group] = f->current;
    ax->piece[group][factor] = f->current;
    push(&f->stack, group, factor);
}

static void spread(struct flood *f, int group, int factor)
{
    struct rhino_axis *ax = f->ax;
    const struct rhino_view *view = ax->view;
    const struct ap_graph *g = ax->task->graph;
    const struct ap_nest *nest = &ax->task->nests->nest[group];

    for (int s = 0; s < rhino_n_slots(nest); s++) {
        const struct ap_placement *p = rhino_place(ax, group, factor, s);
        if (p->kind != AP_SPLIT)
            continue;
        if (s < nest->n_ins) {
            int v = nest->ins[s].node, home = g->nodes[v].group;
            reach(f, home, ax->task->nests->nest[home].n_ins + view->out_slot[v], p);
            continue;
        }
        int v = nest->outs[s - nest->n_ins];
        for (int k = view->use_start[v]; k < view->use_start[v + 1]; k++)
            reach(f, view->use_group[k], view->use_slot[k], p);
        for (int k = view->partner_start[v]; k < view->partner_start[v + 1]; k++) {
            int w = view->partner[k], home = g->nodes[w].group;
            if (home != group)
                reach(f, home, ax->task->nests->nest[home].n_ins + view->out_slot[w], p);
        }
    }
}

static void propose(struct flood *f, int group, int factor)
{
    struct rhino_axis *ax = f->ax;

    if (ax->piece[group][factor] != UNREACHED || !suits_pins(ax, group, factor))
        return;
    f->current = ax->n_pieces++;
    f->last_in[group] = f->current;
    ax->piece[group][factor] = f->current;
    if (divides(ax, group, factor))
        push(&f->stack, group, factor);
    while (f->stack.n > 0) {
        struct proposal p = f->stack.item[--f->stack.n];
        spread(f, p.group, p.factor);
    }
}

/* ---- who proposes what ---- */

static bool holds(const struct ap_access *access, int factor)
{
    for (int d = 0; d < access->rank; d++)
        for (int j = 0; j < access->dims[d].n; j++)
            if (access->dims[d].factor[j] == factor)
                return true;
    return false;
}

/* The major factor of a dimension that divides, -1 for none. */
static int major(const struct rhino_axis *ax, int group, const struct ap_dim_factors *dim,
                 bool reduced)
{
    const struct ap_nest *nest = &ax->task->nests->nest[group];
    for (int j = 0; j < dim->n; j++) {
        int f = dim->factor[j];
        if (ax->piece[group][f] != CANNOT && divides(ax, group, f) &&
            reduced == (nest->factors[f].kind == AP_FACTOR_REDUCED))
            return f;
    }
    return -1;
}

/* The loops of a dot or convolution: batch, contracting, then the result's. */
static int heavy_factors(const struct rhino_axis *ax, int group, int *out)
{
    const struct ap_nest *nest = &ax->task->nests->nest[group];
    int batch = -1, contracting = -1, n = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (int d = 0; d < nest->values[0].rank; d++) {
            int f = major(ax, group, &nest->values[0].dims[d], false);
            bool in_all = f >= 0;
            for (int k = 0; k < nest->n_ins && in_all; k++)
                in_all = holds(&nest->ins[k].access, f);
            if (f < 0)
                continue;
            if (in_all && pass == 0 && batch < 0)
                out[n++] = batch = f;
            if (!in_all && pass == 1)
                out[n++] = f;
        }
        for (int k = 0; pass == 0 && k < nest->n_ins; k++)
            for (int d = 0; d < nest->ins[k].access.rank && contracting < 0; d++) {
                contracting = major(ax, group, &nest->ins[k].access.dims[d], true);
                if (contracting >= 0)
                    out[n++] = contracting;
            }
    }
    return n;
}

/* The largest factor that could be split with padding, where nothing divides. */
static int padded_factor(const struct rhino_axis *ax, int group)
{
    const struct ap_nest *nest = &ax->task->nests->nest[group];
    int best = -1;
    for (int f = 0; f < nest->n_factors; f++)
        if (ax->piece[group][f] != CANNOT &&
            (best < 0 || nest->factors[f].size > nest->factors[best].size))
            best = f;
    return best;
}

static bool has_candidate(const struct rhino_axis *ax, int group)
{
    for (int f = 0; f < ax->task->nests->nest[group].n_factors; f++)
        if (ax->piece[group][f] >= 0)
            return true;
    return false;
}

static bool is_forced(const struct rhino_axis *ax, int group)
{
    int v = ax->task->nests->nest[group].members[0];
    return ax->forced && ax->forced[v];
}

static void all_propose(struct flood *f)
{
    struct rhino_axis *ax = f->ax;
    const struct ap_nests *nests = ax->task->nests;
    int factors[AP_MAX_FACTORS];

    for (int i = 0; i < nests->n; i++)
        for (int k = 0; pinned_member(ax, i) >= 0 && k < nests->nest[i].n_factors; k++)
            propose(f, i, k);
    for (int i = 0; i < nests->n; i++) {
        int n = nests->nest[i].heavy ? heavy_factors(ax, i, factors) : 0;
        for (int k = 0; k < n; k++)
            propose(f, i, factors[k]);
    }
    int n_first = f->conflicts.n; /* the second round makes no third */
    for (int k = 0; k < n_first; k++)
        propose(f, f->conflicts.item[k].group, f->conflicts.item[k].factor);
    for (int i = 0; i < nests->n; i++) {
        int last = -1;
        if (has_candidate(ax, i))
            continue;
        if (nests->nest[i].heavy)
            last = padded_factor(ax, i);
        for (int k = 0; last < 0 && is_forced(ax, i) && k < nests->nest[i].n_factors; k++)
            if (ax->piece[i][k] == UNREACHED && divides(ax, i, k))
                last = k;
        if (last >= 0)
            propose(f, i, last);
    }
}

/* ---- candidates ---- */

static int list_group(struct rhino_axis *ax, int group, struct ap_err *err)
{
    const struct ap_nest *nest = &ax->task->nests->nest[group];
    const struct ap_node *nodes = ax->task->graph->nodes;
    int16_t *list = AP_NEW_N(ax->arena, nest->n_factors + 1, int16_t);
    bool split = has_candidate(ax, group);
    int n = 0, pin = pinned_member(ax, group);

    if (!((nest->heavy || is_forced(ax, group)) && split) && suits_pins(ax, group, -1))
        list[n++] = -1;
    for (int f = 0; f < nest->n_factors; f++)
        if (ax->piece[group][f] >= 0 && (pin < 0 || suits_pins(ax, group, f)))
            list[n++] = (int16_t)f;
    if (n == 0)
        return ap_err_set(err,
                          "%s: no strategy has the pinned layout %s on mesh axis %s (use "
                          "--pins ignore to drop imported shardings)",
                          nodes[pin < 0 ? nest->members[0] : pin].name,
                          pin < 0                      ? "-"
                          : ax->task->pins->asker[pin] ? ax->task->pins->asker[pin]
                                                       : nodes[pin].pin,
                          ax->task->cost->mesh.name[ax->axis]);
    ax->factor[group] = list;
    ax->n[group] = n;
    ax->n_strategies += n;
    for (int o = 0; o < nest->n_outs; o++)
        ax->n_methods += rhino_methods(&nodes[nest->outs[o]].shape, ax->n_devices);
    return 0;
}

int rhino_axis_strategies(struct rhino_axis *ax, struct ap_err *err)
{
    int n = ax->task->nests->n, rc = 0;
    struct flood f = {.ax = ax, .last_in = AP_NEW_N(ax->arena, n, int)};

    ax->place = AP_NEW_N(ax->arena, n, struct ap_placement *);
    ax->piece = AP_NEW_N(ax->arena, n, int *);
    ax->n = AP_NEW_N(ax->arena, n, int);
    ax->factor = AP_NEW_N(ax->arena, n, int16_t *);
    for (int i = 0; i < n; i++) {
        f.last_in[i] = -1;
        place_group(ax, i);
    }
    all_propose(&f);
    free(f.stack.item);
    free(f.conflicts.item);
    for (int i = 0; i < n && rc == 0; i++)
        rc = list_group(ax, i, err);
    return rc;
}
