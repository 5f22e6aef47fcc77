/*
 * Problem: stages with identical layers are priced under many plans, and the seconds,
 * bytes and layouts of one group are computed again and again. Idea: these are kept by
 * the group's content and choice; equal layouts are stored once. Both tables lie in the
 * arena of what is kept, as long as that, and are in the inner loop of pricing: they
 * probe by themselves in place of an ap_index. Cost: a look-up per group.
 */
#include "pipeline/stage_cost.h"

#include <string.h>

/* ---- layouts ---- */

static const struct ap_layout **layout_slot(const struct ap_stage_known *known,
                                            const struct ap_layout *l)
{
    size_t i = ap_layout_hash(l) & known->layout_mask;
    while (known->layout[i] && !ap_layout_equal(known->layout[i], l))
        i = (i + 1) & known->layout_mask;
    return &known->layout[i];
}

/* The one that equals it. */
static const struct ap_layout *intern(struct ap_stage_known *known,
                                      const struct ap_layout *l)
{
    if (2 * (size_t)known->n_layouts >= known->layout_mask) {
        const struct ap_stage_known old = *known;
        known->layout_mask = old.layout ? 2 * old.layout_mask + 1 : 255;
        known->layout =
            AP_NEW_N(&known->arena, known->layout_mask + 1, const struct ap_layout *);
        for (size_t i = 0; old.layout && i <= old.layout_mask; i++)
            if (old.layout[i])
                *layout_slot(known, old.layout[i]) = old.layout[i];
    }
    const struct ap_layout **slot = layout_slot(known, l);
    if (!*slot) {
        *slot = ap_arena_dup(&known->arena, l, sizeof *l);
        known->n_layouts++;
    }
    return *slot;
}

/* ---- groups ---- */

static struct ap_stage_group *look(struct ap_arena *arena, struct ap_stage_known *known,
                                   const struct ap_plan *plan, const struct ap_cost *cost,
                                   const struct ap_nest *nest)
{
    const struct ap_graph *g = plan->graph;
    const struct ap_choice_vec *choice = &plan->choice[nest->group];
    struct ap_stage_group *s = AP_NEW(arena, struct ap_stage_group);
    int n = nest->n_ins + nest->n_outs;
    double ignored;

    s->choice = *choice;
    s->sec = ap_plan_group_sec(nest, g, cost, choice);
    ap_nest_work(nest, g, &plan->mesh, choice, &s->flops, &ignored, &s->dtype);
    s->rounds = ap_plan_rounds(nest, g, cost, choice);
    s->masked = ap_nest_masked(nest, &plan->mesh, choice);
    s->moved = AP_NEW_N(arena, n + 1, double);
    ap_nest_moved(nest, g, &plan->mesh, choice, s->moved);
    s->layout = AP_NEW_N(arena, n + 1, const struct ap_layout *);
    s->bytes = AP_NEW_N(arena, n + 1, double);
    for (int k = 0; k < n; k++) {
        bool in = k < nest->n_ins;
        int node = in ? nest->ins[k].node : nest->outs[k - nest->n_ins];
        struct ap_layout l = in ? ap_nest_in_layout(nest, g, &plan->mesh, choice, k)
                                : ap_plan_node_layout(plan, node);
        s->layout[k] = intern(known, &l);
        s->bytes[k] =
            nest->in_kernel && nest->in_kernel[k]
                ? 0
                : (double)ap_layout_local_bytes(&plan->mesh, &g->nodes[node].shape, &l);
    }
    return s;
}

static struct ap_stage_group **slot_of(const struct ap_stage_known *known, int like,
                                       const struct ap_choice_vec *choice)
{
    size_t i = ap_hash(choice, sizeof *choice, (uint64_t)like) & known->mask;
    while (known->slot[i] &&
           (known->slot[i]->like != like ||
            memcmp(&known->slot[i]->choice, choice, sizeof *choice) != 0))
        i = (i + 1) & known->mask;
    return &known->slot[i];
}

/* Makes room for one more. */
static void make_room(struct ap_stage_known *known)
{
    const struct ap_stage_known old = *known;

    if (2 * (size_t)old.n < old.mask)
        return;
    known->mask = old.slot ? 2 * old.mask + 1 : 1023;
    known->slot = AP_NEW_N(&known->arena, known->mask + 1, struct ap_stage_group *);
    for (size_t i = 0; old.slot && i <= old.mask; i++)
        if (old.slot[i])
            *slot_of(known, old.slot[i]->like, &old.slot[i]->choice) = old.slot[i];
}

const struct ap_stage_group *const *
ap_stage_know(struct ap_arena *arena, struct ap_stage_known *known, const int *like,
              const struct ap_plan *plan, const struct ap_cost *cost)
{
    int n = plan->nests->n;
    const struct ap_stage_group **groups =
        AP_NEW_N(arena, n + 1, const struct ap_stage_group *);

    for (int i = 0; i < n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        if (!like || like[i] < 0) {
            groups[i] = look(arena, known, plan, cost, nest);
            continue;
        }
        make_room(known);
        struct ap_stage_group **slot = slot_of(known, like[i], &plan->choice[i]);
        if (!*slot) {
            *slot = look(&known->arena, known, plan, cost, nest);
            (*slot)->like = like[i];
            known->n++;
        }
        groups[i] = *slot;
    }
    return groups;
}

struct ap_plan_layouts ap_stage_layouts(struct ap_arena *arena,
                                        const struct ap_plan *plan,
                                        const struct ap_stage_group *const *known)
{
    int n = plan->nests->n;
    const struct ap_layout *const **in =
        AP_NEW_N(arena, n + 1, const struct ap_layout *const *);
    const struct ap_layout **value =
        AP_NEW_N(arena, plan->graph->n_nodes + 1, const struct ap_layout *);

    for (int i = 0; i < n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        in[i] = known[i]->layout;
        for (int o = 0; o < nest->n_outs; o++)
            value[nest->outs[o]] = known[i]->layout[nest->n_ins + o];
    }
    return (struct ap_plan_layouts){.in = in, .value = value};
}
