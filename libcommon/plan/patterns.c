/*
 * Problem: what may become of a weight on a mesh axis, and which operators go with it.
 * Idea: the factors of the weight's first forward use are its patterns. A pattern is a
 * place in the weight; the place is carried along to whatever is made of the weight alone
 * and to all contractions that use that, and back from the weight's new value through the
 * update to the contraction that makes the gradient. No operator is named but the
 * look-up. Cost: linear in the operand slots. After Shi et al., "TAP: Efficient
 * Derivation of Tensor Parallel Plans for Large Neural Networks", arXiv 2302.00247,
 * sections 3 and 4.
 */
#include "plan/patterns.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/csr.h"

const char *const ap_pattern_names[AP_N_PATTERNS] = {"replicate", "column", "row",
                                                     "expert", "table"};

/* ---- places ---- */

struct ap_place ap_place_of(const struct ap_nest *nest, const struct ap_access *access,
                            int factor)
{
    const struct ap_place whole = {AP_REPLICATED, 0, 0};

    if (factor < 0 || factor >= nest->n_factors)
        return whole;
    if (access->partial >> factor & 1)
        return (struct ap_place){AP_PARTIAL, 0, 0};
    for (int d = 0; d < access->rank; d++) {
        int64_t stride = 1;
        for (int j = access->dims[d].n - 1; j >= 0; j--) {
            stride *= nest->factors[access->dims[d].factor[j]].size;
            if (access->dims[d].factor[j] == factor)
                return (struct ap_place){AP_SPLIT, d, stride};
        }
    }
    return whole;
}

int ap_place_factor(const struct ap_nest *nest, const struct ap_access *access,
                    struct ap_place place)
{
    if (place.kind != AP_SPLIT || place.dim >= access->rank)
        return -1;
    const struct ap_dim_factors *list = &access->dims[place.dim];
    int64_t stride = 1;
    for (int j = list->n - 1; j >= 0; j--) {
        stride *= nest->factors[list->factor[j]].size;
        if (stride == place.stride && nest->factors[list->factor[j]].size > 1)
            return list->factor[j];
    }
    return -1;
}

bool ap_nest_only_adds(const struct ap_graph *g, const struct ap_nest *nest)
{
    for (int m = 0; m < nest->n_members; m++) {
        enum ap_op op = g->nodes[nest->members[m]].op;
        if (op != AP_OP_ADD && op != AP_OP_CONVERT && op != AP_OP_COPY &&
            op != AP_OP_NEGATE && ap_ops[op].class != AP_CLASS_MOVE)
            return false;
    }
    return true;
}

bool ap_choice_with(const struct ap_plan *plan, int group, int axis, int choice,
                    bool no_padding, struct ap_choice_vec *out)
{
    const struct ap_nest *nest = &plan->nests->nest[group];

    *out = plan->choice[group];
    out->axis[axis] = (int16_t)choice;
    if (!ap_choice_reaches(nest, &plan->mesh, out, choice))
        return false;
    if (no_padding && choice >= 0 && choice < nest->n_factors &&
        nest->factors[choice].size % ap_choice_devices(&plan->mesh, out, choice))
        return false;
    return ap_choice_ok(nest, &plan->mesh, out);
}

/* ---- weights and what is made of them alone ---- */

struct finder {
    struct ap_arena *arena;
    const struct ap_plan *plan;
    const struct ap_graph *g;
    int axis;
    bool no_padding;
    struct ap_weights *w;
    int *origin; /* per group: number of the weight that it is made of alone, or -1 */
    int *seen;   /* per group: the last walk that came by */
    int walk;    /* number of the walk */
    struct ap_csr use; /* per parameter: groups that use it or what is made of it alone */
};

static const struct ap_nest *nest_of(const struct finder *f, int node)
{
    return &f->plan->nests->nest[f->g->nodes[node].group];
}

static enum ap_op first_op(const struct finder *f, const struct ap_nest *nest)
{
    return f->g->nodes[nest->members[0]].op;
}

static bool looks_up(const struct finder *f, const struct ap_nest *nest)
{
    return first_op(f, nest) == AP_OP_GATHER;
}

/* The one weight that all operands but scalars stem from, -1 if there is none. */
static int origin_of(const struct finder *f, const struct ap_nest *nest)
{
    int origin = -1;

    if (nest->heavy || ap_ops[first_op(f, nest)].class == AP_CLASS_INDEX ||
        f->g->nodes[nest->members[0]].phase == AP_UPDATE)
        return -1;
    for (int k = 0; k < nest->n_ins; k++) {
        const struct ap_node *in = &f->g->nodes[nest->ins[k].node];
        if (in->shape.rank == 0)
            continue;
        int o = f->origin[in->group];
        if (o < 0 || (origin >= 0 && o != origin))
            return -1;
        origin = o;
    }
    return origin;
}

/* Whether slot k makes the group one that the pattern of the weight decides about. */
static bool is_use(const struct finder *f, const struct ap_nest *nest, int k)
{
    return f->origin[nest->group] >= 0 || nest->heavy || (looks_up(f, nest) && k == 0);
}

/* Candidates for weights, numbered as parameters are; then groups by weight. */
static void find_uses(struct finder *f)
{
    const struct ap_nests *nests = f->plan->nests;
    int n = 0, cap[2] = {0, 0}, *weight = NULL, *group = NULL;
    int *last = AP_NEW_N(f->arena, f->g->n_params + 1, int);

    memset(last, -1, sizeof *last * (size_t)f->g->n_params);
    for (int i = 0; i < nests->n; i++) {
        const struct ap_nest *nest = &nests->nest[i];
        const struct ap_node *p = &f->g->nodes[nest->members[0]];
        f->origin[i] =
            p->op == AP_OP_PARAMETER && p->role == AP_ROLE_WEIGHT && p->shape.rank >= 2
                ? p->param
                : origin_of(f, nest);
        for (int k = 0; k < nest->n_ins; k++) {
            int o = f->origin[f->g->nodes[nest->ins[k].node].group];
            if (o < 0 || last[o] == i || !is_use(f, nest, k))
                continue;
            last[o] = i;
            AP_ROOM(weight, n, cap[0]);
            AP_ROOM(group, n, cap[1]);
            weight[n] = o;
            group[n++] = i;
        }
    }
    f->use = ap_csr_new(f->arena, f->g->n_params, n, weight, group);
    free(weight);
    free(group);
}

/* Slot of the group that holds weight o, or what is made of it alone. */
static int slot_of(const struct finder *f, const struct ap_nest *nest, int o)
{
    for (int k = 0; k < nest->n_ins; k++)
        if (f->origin[f->g->nodes[nest->ins[k].node].group] == o && is_use(f, nest, k))
            return k;
    return -1;
}

/* ---- patterns ---- */

/* What splitting factor x of the operand in the slot amounts to. */
static enum ap_pattern pattern_of(const struct ap_nest *nest, int slot, int x)
{
    bool lookup = !nest->heavy;

    switch (nest->factors[x].kind) {
    case AP_FACTOR_REDUCED:
        return lookup ? AP_PATTERN_REPLICATE : AP_PATTERN_ROW;
    case AP_FACTOR_INDEXED:
        return lookup ? AP_PATTERN_TABLE : AP_PATTERN_REPLICATE;
    case AP_FACTOR_WHOLE:
        return AP_PATTERN_REPLICATE;
    case AP_FACTOR_PARALLEL:
        break;
    }
    for (int k = 0; k < nest->n_ins; k++)
        if (k != slot && ap_access_has(&nest->ins[k].access, x))
            return lookup ? AP_PATTERN_REPLICATE : AP_PATTERN_EXPERT;
    return lookup ? AP_PATTERN_REPLICATE : AP_PATTERN_COLUMN;
}

/* The patterns of a use; factor[i] = what is split: one that divides, else the first. */
static void list_patterns(const struct finder *f, const struct ap_nest *nest, int slot,
                          struct ap_weight *w, int *factor)
{
    const struct ap_access *access = &nest->ins[slot].access;
    int best[AP_N_PATTERNS], rank[AP_N_PATTERNS] = {0};

    for (int d = 0; d < access->rank; d++) {
        for (int j = 0; j < access->dims[d].n; j++) {
            int x = access->dims[d].factor[j];
            enum ap_pattern p = pattern_of(nest, slot, x);
            struct ap_choice_vec c;
            if (nest->factors[x].size == 1)
                continue;
            bool fits =
                ap_choice_with(f->plan, nest->group, f->axis, x, f->no_padding, &c);
            bool divides =
                fits && ap_choice_with(f->plan, nest->group, f->axis, x, true, &c);
            if (1 + fits + divides > rank[p]) {
                rank[p] = 1 + fits + divides;
                best[p] = x;
            }
        }
    }
    w->pattern[0] = AP_PATTERN_REPLICATE;
    w->fits[0] = true;
    factor[0] = -1;
    w->n = 1;
    for (int p = 1; p < AP_N_PATTERNS; p++) {
        if (rank[p] == 0)
            continue;
        factor[w->n] = best[p];
        w->fits[w->n] = rank[p] > 1;
        w->pattern[w->n++] = (enum ap_pattern)p;
    }
}

/* ---- what a pattern decides ---- */

/* The first walk lists the groups, later ones fill in their choices. */
static void own(struct finder *f, int number, int p, int group, int choice)
{
    struct ap_weight *w = &f->w->weight[number];
    struct ap_choice_vec c;

    if (p == 0 && f->w->owner[group] < 0) {
        f->w->owner[group] = number;
        f->w->at[group] = w->n_own;
        w->own[w->n_own++] = group;
    }
    if (p == 0 || f->w->owner[group] != number)
        return;
    if (choice < 0 || !ap_choice_with(f->plan, group, f->axis, choice, f->no_padding, &c))
        choice = AP_CHOICE_FREE;
    w->choice[p][f->w->at[group]] = (int16_t)choice;
}

/* Place of the weight itself when its use splits this factor. */
static struct ap_place place_of_weight(const struct finder *f, const struct ap_nest *nest,
                                       int slot, int factor, int o)
{
    struct ap_place place = ap_place_of(nest, &nest->ins[slot].access, factor);
    int node = nest->ins[slot].node;

    while (place.kind == AP_SPLIT && node != f->g->params[o]) {
        nest = nest_of(f, node);
        int x = ap_place_factor(nest, &nest->values[ap_nest_member(nest, node)], place);
        slot = slot_of(f, nest, o);
        place = ap_place_of(nest, &nest->ins[slot].access, x);
        node = nest->ins[slot].node;
    }
    return place;
}

/* The weight, what is made of it alone, and the contractions that use that. */
static void walk_forward(struct finder *f, int number, int p, struct ap_place place)
{
    int node = f->w->weight[number].node, o = f->g->nodes[node].param;
    const struct ap_nest *nest = nest_of(f, node);

    own(f, number, p, nest->group, ap_place_factor(nest, &nest->values[0], place));
    for (int i = f->use.start[o]; i < f->use.start[o + 1]; i++) {
        nest = &f->plan->nests->nest[f->use.item[i]];
        int slot = slot_of(f, nest, o), in = nest->ins[slot].node;
        const struct ap_nest *from = nest_of(f, in);
        const struct ap_weight *w = &f->w->weight[number];
        int choice = p > 0 && f->w->owner[from->group] == number
                         ? w->choice[p][f->w->at[from->group]]
                         : -1;
        struct ap_place at =
            ap_place_of(from, &from->values[ap_nest_member(from, in)], choice);
        own(f, number, p, nest->group,
            ap_place_factor(nest, &nest->ins[slot].access, at));
    }
}

struct step {
    int node;
    struct ap_place place;
};

/*
 * From the weight's new value back through operands of as many elements to the
 * contraction or scatter that makes its gradient. number -1: only marks gradients.
 */
static void walk_back(struct finder *f, int result, int number, int p,
                      struct ap_place place)
{
    int64_t elems = ap_shape_elems(&f->g->nodes[result].shape);
    int n = 0, cap = 0;
    struct step *stack = NULL;

    f->walk++;
    AP_ROOM(stack, n, cap);
    stack[n++] = (struct step){result, place};
    while (n > 0) {
        struct step at = stack[--n];
        const struct ap_nest *nest = nest_of(f, at.node);
        const struct ap_node *first = &f->g->nodes[nest->members[0]];
        bool leaf = first->op == AP_OP_PARAMETER;
        if (f->g->nodes[at.node].phase == AP_FORWARD &&
            !(leaf && first->role == AP_ROLE_STATE))
            continue;
        f->w->gradient[at.node] |= !leaf;
        if (f->seen[nest->group] == f->walk)
            continue;
        f->seen[nest->group] = f->walk;
        int x =
            ap_place_factor(nest, &nest->values[ap_nest_member(nest, at.node)], at.place);
        if (number >= 0)
            own(f, number, p, nest->group, x);
        if (nest->heavy || ap_ops[first->op].class == AP_CLASS_INDEX)
            continue;
        for (int k = 0; k < nest->n_ins; k++) {
            if (ap_shape_elems(&f->g->nodes[nest->ins[k].node].shape) != elems)
                continue;
            AP_ROOM(stack, n, cap);
            stack[n++] = (struct step){nest->ins[k].node,
                                       ap_place_of(nest, &nest->ins[k].access, x)};
        }
    }
    free(stack);
}

/* Groups in the list of a weight: an upper bound of their number is all groups, so the
   list grows while it is made and moves to the arena afterwards. */
static void decide(struct finder *f, int number, const int *factor, int slot,
                   const int *result_of)
{
    struct ap_weight *w = &f->w->weight[number];
    const struct ap_nest *use = &f->plan->nests->nest[w->use];
    int o = f->g->nodes[w->node].param;

    for (int p = 0; p < w->n; p++) {
        struct ap_place place = {AP_REPLICATED, 0, 0};
        if (p > 0)
            place = place_of_weight(f, use, slot, factor[p], o);
        walk_forward(f, number, p, place);
        if (result_of[o] >= 0)
            walk_back(f, result_of[o], number, p, place);
        if (p == 0) { /* the list is complete: all choices can be written down */
            w->own = ap_arena_dup(f->arena, w->own, (size_t)w->n_own * sizeof *w->own);
            for (int q = 0; q < w->n; q++) {
                w->choice[q] = AP_NEW_N(f->arena, w->n_own, int16_t);
                for (int i = 0; i < w->n_own; i++)
                    w->choice[q][i] =
                        q > 0 ? AP_CHOICE_FREE : f->plan->choice[w->own[i]].axis[f->axis];
            }
        } else if (f->w->owner[w->use] == number) {
            w->choice[p][f->w->at[w->use]] = (int16_t)factor[p];
        }
    }
}

/* First use in the forward phase: -1 if there is none. */
static int first_use(const struct finder *f, int o)
{
    for (int i = f->use.start[o]; i < f->use.start[o + 1]; i++) {
        const struct ap_nest *nest = &f->plan->nests->nest[f->use.item[i]];
        if (f->origin[nest->group] < 0 &&
            f->g->nodes[nest->members[0]].phase == AP_FORWARD)
            return f->use.item[i];
    }
    return -1;
}

struct found {
    int use, param;
};

static int by_use(const void *pa, const void *pb)
{
    const struct found *a = pa, *b = pb;
    if (a->use != b->use)
        return a->use < b->use ? -1 : 1;
    return a->param < b->param ? -1 : a->param > b->param;
}

static void decide_all(struct finder *f, const int *result_of)
{
    int n = 0, *room = AP_NEW_N(f->arena, f->plan->nests->n, int);
    struct found *found = AP_NEW_N(f->arena, f->g->n_params + 1, struct found);

    for (int o = 0; o < f->g->n_params; o++) {
        const struct ap_node *p = &f->g->nodes[f->g->params[o]];
        f->w->n_variables += p->role == AP_ROLE_WEIGHT;
        int use = first_use(f, o);
        if (use >= 0)
            found[n++] = (struct found){use, o};
        else if (p->role == AP_ROLE_WEIGHT && result_of[o] >= 0)
            walk_back(f, result_of[o], -1, 0, (struct ap_place){AP_REPLICATED, 0, 0});
    }
    qsort(found, (size_t)n, sizeof *found, by_use);
    f->w->weight = AP_NEW_N(f->arena, n + 1, struct ap_weight);
    for (int i = 0; i < n; i++) {
        int factor[AP_N_PATTERNS];
        struct ap_weight *w = &f->w->weight[f->w->n];
        const struct ap_nest *use = &f->plan->nests->nest[found[i].use];
        int slot = slot_of(f, use, found[i].param);
        *w = (struct ap_weight){
            .node = f->g->params[found[i].param], .use = found[i].use, .own = room};
        list_patterns(f, use, slot, w, factor);
        f->w->of_node[w->node] = f->w->n;
        decide(f, f->w->n++, factor, slot, result_of);
    }
}

void ap_weights_find(struct ap_arena *arena, const struct ap_plan *plan, int axis,
                     bool no_padding, struct ap_weights *out)
{
    const struct ap_graph *g = plan->graph;
    int n_groups = plan->nests->n;
    struct finder f = {.arena = arena,
                       .plan = plan,
                       .g = g,
                       .axis = axis,
                       .no_padding = no_padding,
                       .w = out,
                       .origin = AP_NEW_N(arena, n_groups, int),
                       .seen = AP_NEW_N(arena, n_groups, int)};
    int *result_of = AP_NEW_N(arena, g->n_params + 1, int);

    *out = (struct ap_weights){.owner = AP_NEW_N(arena, n_groups, int),
                               .at = AP_NEW_N(arena, n_groups, int),
                               .of_node = AP_NEW_N(arena, g->n_nodes, int),
                               .gradient = AP_NEW_N(arena, g->n_nodes, bool)};
    memset(out->owner, -1, sizeof *out->owner * (size_t)n_groups);
    memset(out->of_node, -1, sizeof *out->of_node * (size_t)g->n_nodes);
    memset(result_of, -1, sizeof *result_of * (size_t)g->n_params);
    for (int r = 0; r < g->n_results; r++)
        if (g->results[r].alias >= 0)
            result_of[g->nodes[g->results[r].alias].param] = g->results[r].node;
    find_uses(&f);
    decide_all(&f, result_of);
}
