/*
 * Problem: given how parameters lie on one mesh axis, let every group follow. Idea: one
 * sweep over the groups. A group takes the factor along which most bytes of its operands
 * are split already, keeps partial sums through operators that are linear in them, and is
 * replicated otherwise. The mode says which splits are followed, and what a weight's
 * first user decides. All of it works on the groups' nests; no operator is named but
 * those that use a weight (dot and convolution, gather). Cost: O(operand slots) per axis.
 * Sources, at the modes: Shoeybi et al., "Megatron-LM"; Korthikanti et al.; Lepikhin et
 * al., "GShard".
 */
#include "plan/named_plan_impl.h"
#include "plan/patterns.h"

#include <string.h>

/* What the nest has where operand i is split by a factor of its producer's: a factor of
 * its own, or one of these. */
enum { SPLIT_BY_NONE = -1, IS_PARTIAL = -2 };

static int64_t operand_bytes(const struct ap_sweep *s, const struct ap_nest *nest, int i)
{
    return ap_shape_bytes(&s->g->nodes[nest->ins[i].node].shape);
}

/* Of a group's choice on the axis, the factor of a member's value; past the factors: the
 * choice is a linear set. */
static int value_factor(const struct ap_sweep *s, const struct ap_nest *nest, int m,
                        int c)
{
    if (!ap_choice_is_ring(nest, c))
        return c;
    return ap_ring_part_of(nest, s->g, m) == AP_RING_SUMS ? nest->ring->keys
                                                          : nest->ring->rows;
}

/* How operand i is split on the axis: a factor of the nest, or one of the above. */
static int operand_split(const struct ap_sweep *s, const struct ap_nest *nest, int i)
{
    int node = nest->ins[i].node, group = s->g->nodes[node].group;
    int c = s->choice[group].axis[s->axis];
    const struct ap_nest *from = &s->nests->nest[group];

    if (c < 0)
        return SPLIT_BY_NONE;
    const int f = value_factor(s, from, s->member[node], c);
    if (f >= from->n_factors)
        return IS_PARTIAL;
    struct ap_place p = ap_place_of(from, &from->values[s->member[node]], f);
    if (p.kind == AP_SPLIT)
        return ap_place_factor(nest, &nest->ins[i].access, p);
    return p.kind == AP_PARTIAL ? IS_PARTIAL : SPLIT_BY_NONE;
}

static int64_t axis_size(const struct ap_sweep *s)
{
    return s->mesh->size[s->axis];
}

/* Devices that would share factor f of the group if this axis took it too. */
static int64_t devices_on(const struct ap_sweep *s, int group, int f)
{
    int64_t n = axis_size(s);
    for (int a = 0; a < s->mesh->n_axes; a++)
        if (a != s->axis && s->choice[group].axis[a] == f)
            n *= s->mesh->size[a];
    return n;
}

/* Whether factor f of the group is as large as the devices that would share it. */
static bool reaches(const struct ap_sweep *s, const struct ap_nest *nest, int f)
{
    return nest->factors[f].size >= devices_on(s, nest->group, f);
}

bool ap_sweep_try(const struct ap_sweep *s, const struct ap_nest *nest, int c)
{
    if (s->fixed && s->fixed[nest->group])
        return false;
    if (c >= 0 && c < nest->n_factors) {
        int64_t size = nest->factors[c].size, devices = devices_on(s, nest->group, c);
        *s->uneven |= size > 1 && (size % devices || size == devices);
        if (!reaches(s, nest, c))
            return false;
    }
    struct ap_choice_vec v = s->choice[nest->group];
    v.axis[s->axis] = (int16_t)c;
    if (!ap_choice_ok(nest, s->mesh, &v))
        return false;
    s->choice[nest->group] = v;
    return true;
}

/* ---- weights: decided by the first user, back through what is derived from them ---- */

static void pull_back(struct ap_sweep *s, int node, struct ap_place p)
{
    while (p.kind == AP_SPLIT) {
        const struct ap_nest *nest = &s->nests->nest[s->g->nodes[node].group];
        if (!s->derived[nest->group] || s->decided[nest->group])
            return;
        int f = ap_place_factor(nest, &nest->values[s->member[node]], p);
        if (f < 0 || !ap_sweep_try(s, nest, f))
            return;
        s->decided[nest->group] = true;
        if (nest->n_ins == 0)
            return;
        int widest = 0; /* the other operands of such a group are small */
        for (int i = 1; i < nest->n_ins; i++)
            if (ap_shape_bytes(&s->g->nodes[nest->ins[i].node].shape) >
                ap_shape_bytes(&s->g->nodes[nest->ins[widest].node].shape))
                widest = i;
        node = nest->ins[widest].node;
        p = ap_place_of(nest, &nest->ins[widest].access, f);
    }
}

static void pull_back_all(struct ap_sweep *s, const struct ap_nest *nest)
{
    int f = s->choice[nest->group].axis[s->axis];
    for (int i = 0; f >= 0 && i < nest->n_ins; i++) {
        int node = nest->ins[i].node;
        if (s->derived[s->g->nodes[node].group])
            pull_back(s, node, ap_place_of(nest, &nest->ins[i].access, f));
    }
}

/* Every operand that is no scalar is indexed by factor f. */
static bool in_all(const struct ap_nest *nest, int f)
{
    for (int i = 0; i < nest->n_ins; i++)
        if (nest->ins[i].access.rank > 0 && !ap_access_has(&nest->ins[i].access, f))
            return false;
    return true;
}

/*
 * Experts: what a weight and the activations of a dot are batched by. GShard (Lepikhin et
 * al.), section 3.2. On any axis, or one that fits, -1 for none.
 */
static int expert_factor(const struct ap_sweep *s, const struct ap_nest *nest, bool any)
{
    if (s->g->nodes[nest->members[0]].op != AP_OP_DOT)
        return -1;
    bool weight = false;
    for (int i = 0; i < nest->n_ins; i++)
        weight |= s->derived[s->g->nodes[nest->ins[i].node].group];
    for (int f = 0; weight && f < nest->n_factors; f++)
        if (nest->factors[f].kind == AP_FACTOR_PARALLEL && nest->factors[f].size > 1 &&
            nest->n_ins > 1 && in_all(nest, f) && (any || reaches(s, nest, f)))
            return f;
    return -1;
}

/* Output (column) factor for a first use of a weight; embedding tables: the vocabulary.
 */
static int weight_factor(const struct ap_sweep *s, const struct ap_nest *nest)
{
    int first = s->g->nodes[nest->members[0]].op;
    const int experts =
        s->experts == AP_EXPERTS_FIRST ? -1 : expert_factor(s, nest, true);
    if ((!nest->heavy && first != AP_OP_GATHER) ||
        (experts >= 0 && s->experts == AP_EXPERTS_WHOLE) ||
        (experts < 0 && s->experts == AP_EXPERTS_ONLY))
        return -1;
    int best = -1;
    int64_t n = axis_size(s);
    for (int i = 0; i < nest->n_ins; i++) {
        int node = nest->ins[i].node, rank = s->g->nodes[node].shape.rank;
        if (!s->derived[s->g->nodes[node].group] || (first == AP_OP_GATHER && i > 0))
            continue;
        for (int d = 0; d < rank; d++) {
            const struct ap_dim_factors *list = &nest->ins[i].access.dims[d];
            for (int j = 0; j < list->n; j++) {
                int f = list->factor[j];
                const struct ap_factor *factor = &nest->factors[f];
                if (f == experts ||
                    (experts < 0 && nest->heavy &&
                     s->g->nodes[node].shape.dims[d] == s->n_experts) ||
                    factor->kind != (first == AP_OP_GATHER ? AP_FACTOR_INDEXED
                                                           : AP_FACTOR_PARALLEL) ||
                    !reaches(s, nest, f))
                    continue;
                if (best < 0 ||
                    (nest->factors[best].size % n != 0 && factor->size % n == 0))
                    best = f;
            }
        }
    }
    return best;
}

/* ---- following ---- */

/* Whose split is followed: what the mode says, or one kind only. */
enum from { FROM_MODE, FROM_ASIDE, FROM_BATCH };

static bool may_follow(const struct ap_sweep *s, const struct ap_nest *nest, int node,
                       enum from from)
{
    if (from == FROM_ASIDE)
        return s->aside[node];
    if (from == FROM_BATCH)
        return s->batch[node];
    if (s->mode == AP_SWEEP_SEQUENCE)
        return !s->aside[node];
    if (s->mode != AP_SWEEP_BATCH && s->mode != AP_SWEEP_EXPERT)
        return true;
    return s->batch[node] || s->derived[nest->group] || s->update[nest->group];
}

/* Takes factor f; of an attention, where the sweep has rings, its ring. */
static bool take(const struct ap_sweep *s, const struct ap_nest *nest, int f)
{
    if (s->ring && nest->ring && (f == nest->ring->rows || f == nest->ring->keys) &&
        ap_sweep_try(s, nest, nest->n_factors))
        return true;
    return ap_sweep_try(s, nest, f);
}

/* The factor along which most bytes of the operands that may be followed are split
 * already, -1 for none. */
static int followed_factor(struct ap_sweep *s, const struct ap_nest *nest, enum from from,
                           bool *batch)
{
    int64_t votes[AP_MAX_FACTORS];
    bool of_batch[AP_MAX_FACTORS], any = false;
    for (int i = 0; i < nest->n_ins; i++) {
        int node = nest->ins[i].node;
        if (!may_follow(s, nest, node, from))
            continue;
        int f = operand_split(s, nest, i);
        if (f < 0)
            continue;
        for (int k = 0; k < nest->n_factors && !any; k++) {
            votes[k] = 0;
            of_batch[k] = false;
        }
        any = true;
        votes[f] = ap_add64(votes[f], operand_bytes(s, nest, i));
        of_batch[f] |= s->batch[node];
    }
    while (any) {
        int best = -1;
        for (int f = 0; f < nest->n_factors; f++)
            if (votes[f] > 0 && (best < 0 || votes[f] > votes[best]))
                best = f;
        if (best < 0)
            return -1;
        if (take(s, nest, best)) {
            *batch = of_batch[best];
            return best;
        }
        votes[best] = 0;
    }
    return -1;
}

/* Keeps partial sums: a linear set that holds all partial operands, and only such. */
static bool follow_partial(struct ap_sweep *s, const struct ap_nest *nest)
{
    uint64_t partial = 0;
    for (int i = 0; i < nest->n_ins; i++) {
        if (operand_split(s, nest, i) != IS_PARTIAL)
            continue;
        if (i >= 64) /* beyond what a linear set names */
            return false;
        partial |= (uint64_t)1 << i;
    }
    if (!partial || !ap_nest_only_adds(s->g, nest) ||
        (s->update[nest->group] && s->g->nodes[nest->members[0]].shape.rank > 0))
        return false;
    for (int k = 0; k < nest->n_linear; k++)
        if (nest->linear[k].ins == partial && ap_sweep_try(s, nest, nest->n_factors + k))
            return true;
    return false;
}

/* Factor of a first use of a weight in the forward phase, taken; -1 for none. */
static int take_weight_factor(struct ap_sweep *s, const struct ap_nest *nest)
{
    if (s->g->nodes[nest->members[0]].phase != AP_FORWARD)
        return -1;
    int f = weight_factor(s, nest);
    return f >= 0 && ap_sweep_try(s, nest, f) ? f : -1;
}

/* Marks the members whose values are split by factor f, or by the ring that was taken. */
static void mark_split(const struct ap_sweep *s, const struct ap_nest *nest, int f,
                       bool *marks)
{
    const int c = s->choice[nest->group].axis[s->axis];

    for (int m = 0; m < nest->n_members; m++) {
        const int of = ap_choice_is_ring(nest, c) ? value_factor(s, nest, m, c) : f;
        marks[nest->members[m]] =
            ap_place_of(nest, &nest->values[m], of).kind == AP_SPLIT;
    }
}

/* ---- sequences between tensor parallel regions ---- */

/* An operand is the sum at the end of a tensor parallel region. */
static bool reads_region(const struct ap_sweep *s, const struct ap_nest *nest)
{
    for (int i = 0; i < nest->n_ins; i++)
        if (s->leaves[s->g->nodes[nest->ins[i].node].group] &&
            operand_split(s, nest, i) == IS_PARTIAL)
            return true;
    return false;
}

/*
 * Weights and what follows them first, as in AP_SWEEP_TENSOR; then along the sequence.
 * Sums of tensor parallel regions are thereby reduce-scattered, what regions read
 * gathered. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
 * Models", section 4.2.2.
 */
static void sweep_sequence(struct ap_sweep *s, const struct ap_nest *nest)
{
    bool ignored;

    s->decided[nest->group] = true;
    int f = followed_factor(s, nest, FROM_MODE, &ignored);
    bool follows = f >= 0;
    if (!follows)
        f = take_weight_factor(s, nest);
    if (f >= 0) {
        s->leaves[nest->group] = nest->heavy || !follows;
        pull_back_all(s, nest);
        return;
    }
    bool region = reads_region(s, nest);
    if (follow_partial(s, nest)) {
        s->leaves[nest->group] = region;
        return;
    }
    if (s->update[nest->group])
        return;
    f = followed_factor(s, nest, FROM_ASIDE, &ignored);
    int along = s->seq[nest->group];
    if (f < 0 && region && along >= 0 && ap_sweep_try(s, nest, along))
        f = along;
    if (f >= 0)
        mark_split(s, nest, f, s->aside);
}

/* ---- experts ---- */

int64_t ap_sweep_experts_of(const struct ap_sweep *s, const struct ap_nest *nest)
{
    const int f = expert_factor(s, nest, true);
    return f < 0 ? 0 : nest->factors[f].size;
}

bool ap_sweep_has_experts(const struct ap_sweep *s)
{
    for (int i = 0; i < s->nests->n; i++)
        if (ap_sweep_experts_of(s, &s->nests->nest[i]) > 0)
            return true;
    return false;
}

/* A factor along which an operand is split by experts, and which all operands have. */
static int shared_factor(const struct ap_sweep *s, const struct ap_nest *nest)
{
    for (int i = 0; i < nest->n_ins; i++) {
        if (!s->aside[nest->ins[i].node])
            continue;
        int f = operand_split(s, nest, i);
        if (f >= 0 && in_all(nest, f) &&
            (!nest->heavy || nest->factors[f].kind == AP_FACTOR_PARALLEL))
            return f;
    }
    return -1;
}

static void sweep_expert(struct ap_sweep *s, const struct ap_nest *nest)
{
    bool batch = false;

    s->decided[nest->group] = true;
    int f = expert_factor(s, nest, false);
    if (f < 0 || !ap_sweep_try(s, nest, f))
        f = shared_factor(s, nest);
    if (f >= 0 && ap_sweep_try(s, nest, f)) {
        mark_split(s, nest, f, s->aside);
        pull_back_all(s, nest);
        return;
    }
    f = followed_factor(s, nest, FROM_MODE, &batch);
    if (f < 0)
        follow_partial(s, nest);
    else if (s->update[nest->group])
        pull_back_all(s, nest);
    else if (batch)
        mark_split(s, nest, f, s->batch);
}

/* ---- the sweep ---- */

/*
 * Values made of weights alone: their user decides, unless one of them is given. In the
 * modes that do not ask users, they follow like any other.
 */
static bool left_to_user(struct ap_sweep *s, const struct ap_nest *nest)
{
    bool ignored;
    if (!s->derived[nest->group] || s->mode == AP_SWEEP_BATCH ||
        s->mode == AP_SWEEP_FOLLOW)
        return false;
    if (s->fixed && followed_factor(s, nest, FROM_MODE, &ignored) >= 0)
        s->decided[nest->group] = true;
    return true;
}

static void sweep_group(struct ap_sweep *s, const struct ap_nest *nest)
{
    bool batch = false;

    int f = s->mode == AP_SWEEP_GIVEN ? followed_factor(s, nest, FROM_BATCH, &batch) : -1;
    if (f < 0)
        f = followed_factor(s, nest, FROM_MODE, &batch);
    if (f < 0 && s->mode == AP_SWEEP_TENSOR)
        f = take_weight_factor(s, nest);
    if (f < 0 && s->experts != AP_EXPERTS_ONLY)
        follow_partial(s, nest);
    else if (s->mode == AP_SWEEP_TENSOR || (s->mode == AP_SWEEP_GIVEN && !batch))
        pull_back_all(s, nest);
    s->decided[nest->group] = true;
    if (batch)
        mark_split(s, nest, f, s->batch);
}

/* A group made of positions and scalars, such as random numbers, lies as its first user
 * that splits something. */
static void pull_drawn(struct ap_sweep *s, const struct ap_nest *nest)
{
    const int f = s->choice[nest->group].axis[s->axis];

    for (int i = 0; i < nest->n_ins && f >= 0 && f < nest->n_factors; i++) {
        const int node = nest->ins[i].node, group = s->g->nodes[node].group;
        const struct ap_nest *from = &s->nests->nest[group];
        const struct ap_place p = ap_place_of(nest, &nest->ins[i].access, f);
        if (!s->drawn[group] || p.kind != AP_SPLIT || s->choice[group].axis[s->axis] >= 0)
            continue;
        const int own = ap_place_factor(from, &from->values[s->member[node]], p);
        if (own >= 0)
            ap_sweep_try(s, from, own);
    }
}

/* A factor that splits operand k as another group of the update splits it, -1: none. */
static int split_of_update(const struct ap_sweep *s, const struct ap_nest *nest, int k)
{
    const int node = nest->ins[k].node;

    for (int u = s->g->user_start[node]; u < s->g->user_start[node + 1]; u++) {
        const struct ap_nest *user = &s->nests->nest[s->g->nodes[s->g->users[u]].group];
        const int c = s->choice[user->group].axis[s->axis];
        if (!s->update[user->group] || c < 0 || c >= user->n_factors)
            continue;
        for (int i = 0; i < user->n_ins; i++) {
            const struct ap_place p = ap_place_of(user, &user->ins[i].access, c);
            if (user->ins[i].node == node && p.kind == AP_SPLIT)
                return ap_place_factor(nest, &nest->ins[k].access, p);
        }
    }
    return -1;
}

/*
 * What else the update reads of gradients (norms, whether they are finite) takes each
 * device's part where the weight's update does, so that none is needed whole.
 */
static void share_gradients(struct ap_sweep *s)
{
    bool ignored;

    for (int i = 0; i < s->nests->n; i++) {
        const struct ap_nest *nest = &s->nests->nest[i];
        if (!s->update[i] || nest->n_ins == 0 || s->choice[i].axis[s->axis] >= 0 ||
            followed_factor(s, nest, FROM_MODE, &ignored) >= 0)
            continue;
        bool split = false;
        for (int k = 0; k < nest->n_ins && !split; k++) {
            const int f = split_of_update(s, nest, k);
            split = f >= 0 && ap_sweep_try(s, nest, f);
        }
        if (!split)
            follow_partial(s, nest);
    }
}

void ap_sweep_run(struct ap_sweep *s)
{
    for (int i = 0; i < s->nests->n; i++) {
        const struct ap_nest *nest = &s->nests->nest[i];
        if (nest->n_ins == 0 || s->decided[i] || left_to_user(s, nest))
            continue;
        if (s->mode == AP_SWEEP_SEQUENCE)
            sweep_sequence(s, nest);
        else if (s->mode == AP_SWEEP_EXPERT)
            sweep_expert(s, nest);
        else
            sweep_group(s, nest);
        pull_drawn(s, nest);
    }
    if (s->mode == AP_SWEEP_BATCH)
        share_gradients(s);
}

/* ---- setting up ---- */

struct ap_sweep_facts ap_sweep_facts_find(struct ap_arena *arena,
                                          const struct ap_nests *nests)
{
    const struct ap_graph *g = nests->graph;
    int *member = AP_NEW_N(arena, g->n_nodes, int);
    bool *derived = AP_NEW_N(arena, nests->n, bool);
    bool *update = AP_NEW_N(arena, nests->n, bool);
    bool *drawn = AP_NEW_N(arena, nests->n, bool);

    for (int i = 0; i < nests->n; i++) {
        const struct ap_nest *nest = &nests->nest[i];
        const struct ap_node *first = &g->nodes[nest->members[0]];
        for (int m = 0; m < nest->n_members; m++)
            member[nest->members[m]] = m;
        update[i] = first->phase == AP_UPDATE;
        bool all = nest->n_ins > 0 && !nest->heavy && !update[i];
        if (first->op == AP_OP_PARAMETER)
            all = first->role == AP_ROLE_WEIGHT || first->role == AP_ROLE_STATE;
        bool weight = first->op == AP_OP_PARAMETER;
        for (int m = 0; m < nest->n_members; m++)
            drawn[i] |= g->nodes[nest->members[m]].op == AP_OP_IOTA;
        for (int k = 0; k < nest->n_ins; k++)
            drawn[i] &= g->nodes[nest->ins[k].node].shape.rank == 0;
        drawn[i] &= nest->n_ins > 0;
        for (int k = 0; k < nest->n_ins && all; k++) {
            const struct ap_node *in = &g->nodes[nest->ins[k].node];
            all = derived[in->group] || in->shape.rank == 0;
            weight |= derived[in->group];
        }
        derived[i] = all && weight;
    }
    return (struct ap_sweep_facts){derived, update, drawn, member};
}

struct ap_sweep ap_sweep_with(struct ap_arena *arena, struct ap_plan *plan,
                              const bool *fixed, const struct ap_sweep_facts *facts)
{
    const struct ap_graph *g = plan->graph;
    int n_groups = plan->nests->n;
    return (struct ap_sweep){
        .g = g,
        .nests = plan->nests,
        .mesh = &plan->mesh,
        .choice = plan->choice,
        .fixed = fixed,
        .derived = facts->derived,
        .update = facts->update,
        .drawn = facts->drawn,
        .member = facts->member,
        .batch = AP_NEW_N(arena, g->n_nodes, bool),
        .decided = AP_NEW_N(arena, n_groups, bool),
        .aside = AP_NEW_N(arena, g->n_nodes, bool),
        .leaves = AP_NEW_N(arena, n_groups, bool),
        .uneven = AP_NEW(arena, bool),
    };
}

struct ap_sweep ap_sweep_new(struct ap_arena *arena, struct ap_plan *plan,
                             const bool *fixed)
{
    const struct ap_sweep_facts facts = ap_sweep_facts_find(arena, plan->nests);
    return ap_sweep_with(arena, plan, fixed, &facts);
}

void ap_sweep_again(struct ap_sweep *s, int axis, enum ap_sweep_mode mode)
{
    s->axis = axis;
    s->mode = mode;
    memset(s->batch, 0, sizeof *s->batch * (size_t)s->g->n_nodes);
    memset(s->aside, 0, sizeof *s->aside * (size_t)s->g->n_nodes);
    memset(s->leaves, 0, sizeof *s->leaves * (size_t)s->nests->n);
    for (int i = 0; i < s->nests->n; i++)
        s->decided[i] = s->choice[i].axis[axis] >= 0;
}

void ap_sweep_axis(struct ap_sweep *s, int axis, enum ap_sweep_mode mode)
{
    ap_sweep_again(s, axis, mode);
    for (int i = 0; i < s->nests->n; i++)
        s->decided[i] = s->fixed && s->fixed[i];
}
