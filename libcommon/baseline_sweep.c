/*
 * Problem: given how parameters lie on one mesh axis, let every group follow. Idea: one
 * sweep over the groups. A group takes the factor along which most bytes of its operands
 * are split already, keeps partial sums through operators that are linear in them, and is
 * replicated otherwise. What may be followed, and what a weight's first user decides, is
 * the mode. All of it works on the groups' nests; no operator is named but those that use
 * a weight (dot and convolution, gather). Cost: O(operand slots) per axis. Sources, at
 * the modes: Shoeybi et al., "Megatron-LM"; Korthikanti et al.; Lepikhin et al.,
 * "GShard".
 */
#include "baseline_impl.h"

#include <string.h>

/* Where a tensor is split on one axis, before canonicalisation. */
struct place {
    enum ap_placement_kind kind;
    int dim;
    int64_t stride; /* product of the sizes of the split factor and those minor to it */
};

/* ---- between factors and places ---- */

static struct place place_of(const struct ap_nest *nest, const struct ap_access *access,
                             int rank, int factor)
{
    struct place p = {AP_REPLICATED, 0, 0};
    if (factor < 0 || factor >= nest->n_factors)
        return p;
    if (access->partial >> factor & 1) {
        p.kind = AP_PARTIAL;
        return p;
    }
    for (int d = 0; d < rank; d++) {
        const struct ap_dim_factors *list = &access->dims[d];
        int64_t stride = 1;
        for (int j = list->n - 1; j >= 0; j--) {
            stride *= nest->factors[list->factor[j]].size;
            if (list->factor[j] == factor)
                return (struct place){AP_SPLIT, d, stride};
        }
    }
    return p;
}

/* Factor at a place of an access, -1 when its boundaries do not fit. */
static int factor_at(const struct ap_nest *nest, const struct ap_access *access,
                     struct place p)
{
    const struct ap_dim_factors *list = &access->dims[p.dim];
    int64_t stride = 1;
    for (int j = list->n - 1; j >= 0; j--) {
        stride *= nest->factors[list->factor[j]].size;
        if (stride == p.stride && nest->factors[list->factor[j]].size > 1)
            return list->factor[j];
    }
    return -1;
}

static struct place node_place(const struct ap_sweep *s, int node)
{
    const struct ap_nest *nest = &s->nests->nest[s->g->nodes[node].group];
    int c = s->choice[nest->group].axis[s->axis];
    if (c >= nest->n_factors)
        return (struct place){AP_PARTIAL, 0, 0};
    return place_of(nest, &nest->values[s->member[node]], s->g->nodes[node].shape.rank,
                    c);
}

static int64_t axis_size(const struct ap_sweep *s)
{
    return s->mesh->size[s->axis];
}

/* Devices that would share factor f of the group if this axis took it too; axes: theirs.
 */
static int64_t devices_on(const struct ap_sweep *s, int group, int f, unsigned *axes)
{
    int64_t n = axis_size(s);
    *axes = 1U << s->axis;
    for (int a = 0; a < s->mesh->n_axes; a++)
        if (a != s->axis && s->choice[group].axis[a] == f) {
            n *= s->mesh->size[a];
            *axes |= 1U << a;
        }
    return n;
}

/* Whether factor f of the group is as large as the devices that would share it. */
static bool reaches(const struct ap_sweep *s, const struct ap_nest *nest, int f)
{
    unsigned axes;
    int64_t devices = devices_on(s, nest->group, f, &axes);
    if (s->looks)
        ap_baseline_look(s->looks, nest->factors[f].size, axes, AP_LOOK_REACHES);
    return nest->factors[f].size >= devices;
}

/* Some dimension has more behind the factor: whether it is padded decides about layouts.
 */
static bool is_outer(const struct ap_nest *nest, int f)
{
    for (int t = 0; t < nest->n_ins + nest->n_members; t++) {
        const struct ap_access *a =
            t < nest->n_ins ? &nest->ins[t].access : &nest->values[t - nest->n_ins];
        for (int d = 0; d < a->rank; d++)
            for (int j = 0; j + 1 < a->dims[d].n; j++)
                if (a->dims[d].factor[j] == f)
                    return true;
    }
    return false;
}

bool ap_sweep_try(const struct ap_sweep *s, const struct ap_nest *nest, int c)
{
    if (s->fixed && s->fixed[nest->group])
        return false;
    if (c >= 0 && c < nest->n_factors) {
        unsigned axes;
        int64_t size = nest->factors[c].size;
        int64_t devices = devices_on(s, nest->group, c, &axes);
        *s->uneven |= size > 1 && (size % devices || size == devices);
        if (!reaches(s, nest, c))
            return false;
        if (s->looks && is_outer(nest, c))
            ap_baseline_look(s->looks, size, axes, AP_LOOK_DIVIDES);
    }
    struct ap_choice_vec v = s->choice[nest->group];
    v.axis[s->axis] = (int16_t)c;
    if (!ap_choice_ok(nest, s->mesh, &v))
        return false;
    s->choice[nest->group] = v;
    return true;
}

/* ---- weights: decided by the first user, back through what is derived from them ---- */

static void pull_back(struct ap_sweep *s, int node, struct place p)
{
    while (p.kind == AP_SPLIT) {
        const struct ap_nest *nest = &s->nests->nest[s->g->nodes[node].group];
        if (!s->derived[nest->group] || s->decided[nest->group])
            return;
        int f = factor_at(nest, &nest->values[s->member[node]], p);
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
        p = place_of(nest, &nest->ins[widest].access, s->g->nodes[node].shape.rank, f);
    }
}

static void pull_back_all(struct ap_sweep *s, const struct ap_nest *nest)
{
    int f = s->choice[nest->group].axis[s->axis];
    for (int i = 0; f >= 0 && i < nest->n_ins; i++) {
        int node = nest->ins[i].node;
        if (s->derived[s->g->nodes[node].group])
            pull_back(
                s, node,
                place_of(nest, &nest->ins[i].access, s->g->nodes[node].shape.rank, f));
    }
}

/* Output (column) factor for a first use of a weight; embedding tables: the vocabulary.
 */
static int weight_factor(const struct ap_sweep *s, const struct ap_nest *nest)
{
    int first = s->g->nodes[nest->members[0]].op;
    if (!nest->heavy && first != AP_OP_GATHER)
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
                if (factor->kind != (first == AP_OP_GATHER ? AP_FACTOR_INDEXED
                                                           : AP_FACTOR_PARALLEL) ||
                    !reaches(s, nest, f))
                    continue;
                if (best >= 0 && s->looks) {
                    ap_baseline_look(s->looks, nest->factors[best].size, 1U << s->axis,
                                     AP_LOOK_DIVIDES);
                    ap_baseline_look(s->looks, factor->size, 1U << s->axis,
                                     AP_LOOK_DIVIDES);
                }
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
    return s->batch[node] || s->derived[nest->group] ||
           s->g->nodes[nest->members[0]].phase == AP_UPDATE;
}

/* The factor along which most bytes of the operands that may be followed are split
 * already, -1 for none. */
static int followed_factor(struct ap_sweep *s, const struct ap_nest *nest, enum from from,
                           bool *batch)
{
    int64_t votes[AP_MAX_FACTORS] = {0};
    bool of_batch[AP_MAX_FACTORS] = {false};
    for (int i = 0; i < nest->n_ins; i++) {
        int node = nest->ins[i].node;
        if (s->choice[s->group[node]].axis[s->axis] < 0 ||
            !may_follow(s, nest, node, from))
            continue;
        struct place p = node_place(s, node);
        if (p.kind != AP_SPLIT)
            continue;
        int f = factor_at(nest, &nest->ins[i].access, p);
        if (f < 0)
            continue;
        votes[f] = ap_add64(votes[f], ap_shape_bytes(&s->g->nodes[node].shape));
        of_batch[f] |= s->batch[node];
    }
    for (;;) {
        int best = -1;
        for (int f = 0; f < nest->n_factors; f++)
            if (votes[f] > 0 && (best < 0 || votes[f] > votes[best]))
                best = f;
        if (best < 0)
            return -1;
        if (ap_sweep_try(s, nest, best)) {
            *batch = of_batch[best];
            return best;
        }
        votes[best] = 0;
    }
}

/* Sums and moves only: the value stays as near to a collective as it was. */
static bool only_adds(const struct ap_sweep *s, const struct ap_nest *nest)
{
    for (int m = 0; m < nest->n_members; m++) {
        enum ap_op op = s->g->nodes[nest->members[m]].op;
        if (op != AP_OP_ADD && op != AP_OP_CONVERT && op != AP_OP_COPY &&
            op != AP_OP_NEGATE && ap_ops[op].class != AP_CLASS_MOVE)
            return false;
    }
    return true;
}

/* Keeps partial sums: a linear set that holds all partial operands, and only such. */
static bool follow_partial(struct ap_sweep *s, const struct ap_nest *nest)
{
    uint64_t partial = 0;
    for (int i = 0; i < nest->n_ins; i++) {
        if (s->choice[s->group[nest->ins[i].node]].axis[s->axis] < 0 ||
            node_place(s, nest->ins[i].node).kind != AP_PARTIAL)
            continue;
        if (i >= 64) /* beyond what a linear set names */
            return false;
        partial |= (uint64_t)1 << i;
    }
    if (!partial || !only_adds(s, nest) ||
        s->g->nodes[nest->members[0]].phase == AP_UPDATE)
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

/* Marks the members whose values are split by factor f. */
static void mark_split(const struct ap_sweep *s, const struct ap_nest *nest, int f,
                       bool *marks)
{
    for (int m = 0; m < nest->n_members; m++) {
        int node = nest->members[m];
        marks[node] =
            place_of(nest, &nest->values[m], s->g->nodes[node].shape.rank, f).kind ==
            AP_SPLIT;
    }
}

/* ---- sequences between tensor parallel regions ---- */

/* An operand is the sum at the end of a tensor parallel region. */
static bool reads_region(const struct ap_sweep *s, const struct ap_nest *nest)
{
    for (int i = 0; i < nest->n_ins; i++)
        if (s->leaves[s->g->nodes[nest->ins[i].node].group] &&
            node_place(s, nest->ins[i].node).kind == AP_PARTIAL)
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
    const struct ap_node *first = &s->g->nodes[nest->members[0]];
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
    if (first->phase == AP_UPDATE)
        return;
    f = followed_factor(s, nest, FROM_ASIDE, &ignored);
    int along = s->seq[nest->group];
    if (f < 0 && region && along >= 0 && ap_sweep_try(s, nest, along))
        f = along;
    if (f >= 0)
        mark_split(s, nest, f, s->aside);
}

/* ---- experts ---- */

static bool has_factor(const struct ap_access *access, int f)
{
    for (int d = 0; d < access->rank; d++)
        for (int j = 0; j < access->dims[d].n; j++)
            if (access->dims[d].factor[j] == f)
                return true;
    return false;
}

/* Every operand that is no scalar is indexed by factor f. */
static bool in_all(const struct ap_nest *nest, int f)
{
    for (int i = 0; i < nest->n_ins; i++)
        if (nest->ins[i].access.rank > 0 && !has_factor(&nest->ins[i].access, f))
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
        weight |= s->derived[s->group[nest->ins[i].node]];
    for (int f = 0; weight && f < nest->n_factors; f++)
        if (nest->factors[f].kind == AP_FACTOR_PARALLEL && nest->factors[f].size > 1 &&
            nest->n_ins > 1 && in_all(nest, f) && (any || reaches(s, nest, f)))
            return f;
    return -1;
}

bool ap_sweep_has_experts(const struct ap_sweep *s)
{
    for (int i = 0; i < s->nests->n; i++)
        if (expert_factor(s, &s->nests->nest[i], true) >= 0)
            return true;
    return false;
}

/* A factor along which an operand is split by experts, and which all operands have. */
static int shared_factor(const struct ap_sweep *s, const struct ap_nest *nest)
{
    for (int i = 0; i < nest->n_ins; i++) {
        if (!s->aside[nest->ins[i].node])
            continue;
        struct place p = node_place(s, nest->ins[i].node);
        int f = p.kind == AP_SPLIT ? factor_at(nest, &nest->ins[i].access, p) : -1;
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
    else if (s->g->nodes[nest->members[0]].phase == AP_UPDATE)
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
    if (f < 0)
        follow_partial(s, nest);
    else if (s->mode == AP_SWEEP_TENSOR || (s->mode == AP_SWEEP_GIVEN && !batch))
        pull_back_all(s, nest);
    s->decided[nest->group] = true;
    if (batch)
        mark_split(s, nest, f, s->batch);
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
    }
}

/* ---- setting up ---- */

static void mark_derived(struct ap_sweep *s)
{
    for (int i = 0; i < s->nests->n; i++) {
        const struct ap_nest *nest = &s->nests->nest[i];
        const struct ap_node *first = &s->g->nodes[nest->members[0]];
        bool derived = nest->n_ins > 0 && !nest->heavy && first->phase != AP_UPDATE;
        if (first->op == AP_OP_PARAMETER)
            derived = first->role == AP_ROLE_WEIGHT || first->role == AP_ROLE_STATE;
        bool weight = first->op == AP_OP_PARAMETER;
        for (int k = 0; k < nest->n_ins && derived; k++) {
            const struct ap_node *in = &s->g->nodes[nest->ins[k].node];
            derived = s->derived[in->group] || in->shape.rank == 0;
            weight |= s->derived[in->group];
        }
        s->derived[i] = derived && weight;
    }
}

struct ap_sweep ap_sweep_new(struct ap_arena *arena, struct ap_plan *plan,
                             const bool *fixed)
{
    struct ap_sweep s = {
        .g = plan->graph,
        .nests = plan->nests,
        .mesh = &plan->mesh,
        .choice = plan->choice,
        .fixed = fixed,
        .batch = AP_NEW_N(arena, plan->graph->n_nodes, bool),
        .derived = AP_NEW_N(arena, plan->nests->n, bool),
        .decided = AP_NEW_N(arena, plan->nests->n, bool),
        .aside = AP_NEW_N(arena, plan->graph->n_nodes, bool),
        .leaves = AP_NEW_N(arena, plan->nests->n, bool),
        .member = AP_NEW_N(arena, plan->graph->n_nodes, int),
        .group = AP_NEW_N(arena, plan->graph->n_nodes, int),
        .uneven = AP_NEW(arena, bool),
    };
    for (int i = 0; i < s.nests->n; i++)
        for (int m = 0; m < s.nests->nest[i].n_members; m++) {
            s.member[s.nests->nest[i].members[m]] = m;
            s.group[s.nests->nest[i].members[m]] = i;
        }
    mark_derived(&s);
    return s;
}

void ap_sweep_axis(struct ap_sweep *s, int axis, enum ap_sweep_mode mode)
{
    s->axis = axis;
    s->mode = mode;
    memset(s->batch, 0, sizeof *s->batch * (size_t)s->g->n_nodes);
    memset(s->aside, 0, sizeof *s->aside * (size_t)s->g->n_nodes);
    memset(s->leaves, 0, sizeof *s->leaves * (size_t)s->nests->n);
    for (int i = 0; i < s->nests->n; i++)
        s->decided[i] = s->fixed && s->fixed[i];
}
