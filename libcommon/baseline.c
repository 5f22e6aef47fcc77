/*
 * Problem: write down the plans that people use by hand (data parallelism, ZeRO,
 * Megatron, "split the largest dimension") for any graph. Idea: one sweep over the groups
 * per mesh axis. Seeds say how parameters lie on the axis; a group then follows: it takes
 * the factor along which most bytes of its operands are split already, keeps partial sums
 * through operators that are linear in them, and is replicated otherwise. What may be
 * followed, and what a weight's first user decides, is the axis's mode. All of it works
 * on the groups' nests; no operator is named but those that use a weight (dot and
 * convolution, gather). Cost: O(axes * operand slots).
 */
#include "baseline.h"

#include "feeds.h"
#include "route.h"

#include <string.h>

const struct ap_baseline ap_baselines[AP_N_BASELINES] = {
    {"data", "the batch over all axes, weights whole"},
    {"zero2", "data, with optimizer states and update split over all axes"},
    {"zero3", "zero2, with weights split and gathered for each phase"},
    {"megatron", "tensor parallel on the last axis, the batch over the others"},
    {"largest-dim", "every weight split on its largest dimension over all axes"},
    {"mha-only", "attention's weights split on the last axis, data for the rest"},
    {"ffn-only", "feed-forward weights split on the last axis, data for the rest"},
};

enum mode {
    MODE_BATCH,  /* follow what stems from the batch; split parameters in the update and
                    in what is made of weights alone (casts, transposes) */
    MODE_TENSOR, /* follow every split; weights are decided by their first use */
    MODE_FOLLOW  /* follow every split */
};

struct sweep {
    const struct ap_graph *g;
    const struct ap_nests *nests;
    const struct ap_mesh *mesh;
    struct ap_choice_vec *choice;
    int axis;
    enum mode mode;
    bool *batch;   /* per node: split along the batch on this axis */
    bool *derived; /* per group: made of weights and states only */
    bool *decided; /* per group: its choice on this axis stands */
    int *member;   /* per node: position in its group's members */
};

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

static struct place node_place(const struct sweep *s, int node)
{
    const struct ap_nest *nest = &s->nests->nest[s->g->nodes[node].group];
    int c = s->choice[nest->group].axis[s->axis];
    if (c >= nest->n_factors)
        return (struct place){AP_PARTIAL, 0, 0};
    return place_of(nest, &nest->values[s->member[node]], s->g->nodes[node].shape.rank,
                    c);
}

static int64_t axis_size(const struct sweep *s)
{
    return s->mesh->size[s->axis];
}

/* Devices that would share factor f of the group if this axis took it too. */
static int64_t devices_on(const struct sweep *s, int group, int f)
{
    int64_t n = axis_size(s);
    for (int a = 0; a < s->mesh->n_axes; a++)
        if (a != s->axis && s->choice[group].axis[a] == f)
            n *= s->mesh->size[a];
    return n;
}

static bool try_choice(const struct sweep *s, const struct ap_nest *nest, int c)
{
    if (c >= 0 && c < nest->n_factors &&
        nest->factors[c].size < devices_on(s, nest->group, c))
        return false;
    struct ap_choice_vec v = s->choice[nest->group];
    v.axis[s->axis] = (int16_t)c;
    if (!ap_choice_ok(nest, s->mesh, &v))
        return false;
    s->choice[nest->group] = v;
    return true;
}

/* ---- weights: decided by the first user, back through what is derived from them ---- */

static void pull_back(struct sweep *s, int node, struct place p)
{
    while (p.kind == AP_SPLIT) {
        const struct ap_nest *nest = &s->nests->nest[s->g->nodes[node].group];
        if (!s->derived[nest->group] || s->decided[nest->group])
            return;
        int f = factor_at(nest, &nest->values[s->member[node]], p);
        if (f < 0 || !try_choice(s, nest, f))
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

static void pull_back_all(struct sweep *s, const struct ap_nest *nest)
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
static int weight_factor(const struct sweep *s, const struct ap_nest *nest)
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
                    factor->size < devices_on(s, nest->group, f))
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

static bool may_follow(const struct sweep *s, const struct ap_nest *nest, int node)
{
    if (s->mode != MODE_BATCH)
        return true;
    return s->batch[node] || s->derived[nest->group] ||
           s->g->nodes[nest->members[0]].phase == AP_UPDATE;
}

/* The factor along which most operand bytes are split already, -1 for none. */
static int followed_factor(struct sweep *s, const struct ap_nest *nest, bool *batch)
{
    int64_t votes[AP_MAX_FACTORS] = {0};
    bool of_batch[AP_MAX_FACTORS] = {false};
    for (int i = 0; i < nest->n_ins; i++) {
        int node = nest->ins[i].node;
        struct place p = node_place(s, node);
        if (p.kind != AP_SPLIT || !may_follow(s, nest, node))
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
        if (try_choice(s, nest, best)) {
            *batch = of_batch[best];
            return best;
        }
        votes[best] = 0;
    }
}

/* Sums and moves only: the value stays as near to a collective as it was. */
static bool only_adds(const struct sweep *s, const struct ap_nest *nest)
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
static bool follow_partial(struct sweep *s, const struct ap_nest *nest)
{
    uint64_t partial = 0;
    for (int i = 0; i < nest->n_ins; i++)
        if (node_place(s, nest->ins[i].node).kind == AP_PARTIAL)
            partial |= (uint64_t)1 << i;
    if (!partial || !only_adds(s, nest) ||
        s->g->nodes[nest->members[0]].phase == AP_UPDATE)
        return false;
    for (int k = 0; k < nest->n_linear; k++)
        if (nest->linear[k].ins == partial && try_choice(s, nest, nest->n_factors + k))
            return true;
    return false;
}

static void sweep_group(struct sweep *s, const struct ap_nest *nest)
{
    int f = -1;
    bool batch = false;

    if (nest->n_ins == 0 || s->decided[nest->group])
        return;
    if (s->derived[nest->group] && s->mode == MODE_TENSOR)
        return; /* its user decides */
    f = followed_factor(s, nest, &batch);
    if (f < 0 && s->mode == MODE_TENSOR &&
        s->g->nodes[nest->members[0]].phase == AP_FORWARD) {
        f = weight_factor(s, nest);
        if (f >= 0 && !try_choice(s, nest, f))
            f = -1;
    }
    if (f < 0)
        follow_partial(s, nest);
    else if (s->mode == MODE_TENSOR)
        pull_back_all(s, nest);
    s->decided[nest->group] = true;
    for (int m = 0; batch && m < nest->n_members; m++)
        s->batch[nest->members[m]] =
            place_of(nest, &nest->values[m], s->g->nodes[nest->members[m]].shape.rank, f)
                .kind == AP_SPLIT;
}

static void run_sweep(struct sweep *s)
{
    for (int i = 0; i < s->nests->n; i++)
        sweep_group(s, &s->nests->nest[i]);
}

/* ---- seeds ---- */

/* The batch: the first dimension that most inputs share; 0 when there is none. */
static int64_t batch_size(const struct ap_graph *g)
{
    int64_t best = 0;
    int best_count = 0;
    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *p = &g->nodes[g->params[i]];
        int count = 0;
        if (p->role != AP_ROLE_INPUT || p->shape.rank == 0)
            continue;
        for (int j = 0; j < g->n_params && count < 64; j++) {
            const struct ap_node *q = &g->nodes[g->params[j]];
            count += q->role == AP_ROLE_INPUT && q->shape.rank > 0 &&
                     q->shape.dims[0] == p->shape.dims[0];
        }
        if (count > best_count) {
            best = p->shape.dims[0];
            best_count = count;
        }
    }
    return best;
}

static void seed_batch(struct sweep *s, int64_t batch)
{
    for (int i = 0; i < s->g->n_params; i++) {
        int id = s->g->params[i];
        const struct ap_node *p = &s->g->nodes[id];
        const struct ap_nest *nest = &s->nests->nest[p->group];
        if (p->role != AP_ROLE_INPUT || p->shape.rank == 0 || p->shape.dims[0] != batch)
            continue;
        const struct ap_dim_factors *list = &nest->values[0].dims[0];
        int j = 0; /* the major factor; some have size 1 */
        while (j + 1 < list->n && nest->factors[list->factor[j]].size == 1)
            j++;
        s->batch[id] = try_choice(s, nest, list->factor[j]);
    }
}

/* Splits a parameter's dimension (that which divides, else the largest) on this axis. */
static void seed_split(struct sweep *s, int id, bool largest)
{
    const struct ap_node *p = &s->g->nodes[id];
    const struct ap_nest *nest = &s->nests->nest[p->group];
    int64_t devices = ap_mesh_devices(s->mesh);
    int best = -1;
    for (int d = 0; d < p->shape.rank; d++) {
        if (p->shape.dims[d] < devices)
            continue;
        bool divides = p->shape.dims[d] % devices == 0;
        bool best_divides = best >= 0 && p->shape.dims[best] % devices == 0;
        if (best < 0 || (!largest && divides && !best_divides) ||
            ((largest || divides == best_divides) &&
             p->shape.dims[d] > p->shape.dims[best]))
            best = d;
    }
    if (best < 0)
        return;
    const struct ap_dim_factors *list = &nest->values[0].dims[best];
    for (int j = 0; j < list->n; j++)
        if (try_choice(s, nest, list->factor[j]))
            return;
}

/* ---- the baselines ---- */

static void mark_derived(struct sweep *s)
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

static struct sweep sweep_new(struct ap_arena *arena, struct ap_plan *plan)
{
    struct sweep s = {
        .g = plan->graph,
        .nests = plan->nests,
        .mesh = &plan->mesh,
        .choice = plan->choice,
        .batch = AP_NEW_N(arena, plan->graph->n_nodes, bool),
        .derived = AP_NEW_N(arena, plan->nests->n, bool),
        .decided = AP_NEW_N(arena, plan->nests->n, bool),
        .member = AP_NEW_N(arena, plan->graph->n_nodes, int),
    };
    for (int i = 0; i < s.nests->n; i++)
        for (int m = 0; m < s.nests->nest[i].n_members; m++)
            s.member[s.nests->nest[i].members[m]] = m;
    mark_derived(&s);
    return s;
}

static void sweep_axis(struct sweep *s, int axis, enum mode mode)
{
    s->axis = axis;
    s->mode = mode;
    memset(s->batch, 0, sizeof *s->batch * (size_t)s->g->n_nodes);
    memset(s->decided, 0, sizeof *s->decided * (size_t)s->nests->n);
}

static int check_batch(const struct ap_plan *plan, int n_axes, struct ap_err *err)
{
    int64_t batch = batch_size(plan->graph), devices = 1;
    for (int a = 0; a < n_axes; a++)
        devices *= plan->mesh.size[a];
    if (batch == 0)
        return ap_err_set(err, "no input has a batch dimension");
    if (batch < devices)
        return ap_err_set(err, "batch %lld on %lld devices", (long long)batch,
                          (long long)devices);
    return 0;
}

static int plan_batch(struct ap_arena *arena, struct ap_plan *plan, bool states,
                      bool weights, struct ap_err *err)
{
    const struct ap_graph *g = plan->graph;
    int64_t batch = batch_size(g);

    if (check_batch(plan, plan->mesh.n_axes, err))
        return -1;
    struct sweep s = sweep_new(arena, plan);
    for (int a = 0; a < plan->mesh.n_axes; a++) {
        if (plan->mesh.size[a] == 1)
            continue;
        sweep_axis(&s, a, MODE_BATCH);
        seed_batch(&s, batch);
        for (int i = 0; i < g->n_params; i++) {
            enum ap_role role = g->nodes[g->params[i]].role;
            if ((states && role == AP_ROLE_STATE) || (weights && role == AP_ROLE_WEIGHT))
                seed_split(&s, g->params[i], false);
        }
        run_sweep(&s);
    }
    for (int i = 0; weights && i < g->n_nodes; i++)
        plan->remake[i] =
            s.derived[g->nodes[i].group] && g->nodes[i].role != AP_ROLE_STATE;
    return 0;
}

static int plan_megatron(struct ap_arena *arena, struct ap_plan *plan, struct ap_err *err)
{
    int last = plan->mesh.n_axes - 1;

    if (check_batch(plan, last, err))
        return -1;
    struct sweep s = sweep_new(arena, plan);
    for (int a = 0; a <= last; a++) {
        if (plan->mesh.size[a] == 1)
            continue;
        sweep_axis(&s, a, a < last ? MODE_BATCH : MODE_TENSOR);
        if (a < last)
            seed_batch(&s, batch_size(plan->graph));
        run_sweep(&s);
    }
    return 0;
}

static void plan_largest(struct ap_arena *arena, struct ap_plan *plan)
{
    struct sweep s = sweep_new(arena, plan);
    for (int a = 0; a < plan->mesh.n_axes; a++) {
        if (plan->mesh.size[a] == 1)
            continue;
        sweep_axis(&s, a, MODE_FOLLOW);
        for (int i = 0; i < plan->graph->n_params; i++) {
            enum ap_role role = plan->graph->nodes[plan->graph->params[i]].role;
            if (role == AP_ROLE_WEIGHT || role == AP_ROLE_STATE)
                seed_split(&s, plan->graph->params[i], true);
        }
        run_sweep(&s);
    }
}

static void clear_plan(struct ap_arena *arena, struct ap_plan *plan)
{
    plan->choice = AP_NEW_N(arena, plan->nests->n, struct ap_choice_vec);
    plan->remake = AP_NEW_N(arena, plan->graph->n_nodes, bool);
    for (int i = 0; i < plan->nests->n; i++)
        for (int a = 0; a < AP_MAX_AXES; a++)
            plan->choice[i].axis[a] = -1;
}

void ap_batch_plan(struct ap_arena *arena, struct ap_plan *plan)
{
    clear_plan(arena, plan);
    struct sweep s = sweep_new(arena, plan);
    for (int a = 0; a < plan->mesh.n_axes; a++) {
        if (plan->mesh.size[a] == 1)
            continue;
        sweep_axis(&s, a, MODE_BATCH);
        seed_batch(&s, batch_size(plan->graph));
        run_sweep(&s);
    }
}

/* ---- TAP's points: some weights have a pattern, the rest is data parallel ---- */

static int route_feeds(struct ap_arena *arena, struct ap_plan *plan,
                       const struct ap_plan *base, const struct ap_weights *weights,
                       const int *pattern, struct ap_err *err)
{
    int n = plan->nests->n, *groups = AP_NEW_N(arena, n, int);
    struct ap_cluster cluster;
    struct ap_cost cost;
    struct ap_traffic traffic;

    for (int i = 0; i < n; i++)
        groups[i] = i;
    if (ap_cluster_get(arena, NULL, NULL, ap_mesh_devices(&plan->mesh), &cluster, err) ||
        ap_cost_init(arena, &cost, AP_COST_BYTES, &cluster, &plan->mesh, err))
        return -1;
    struct ap_router *router =
        ap_router_new(arena, base, &cost, weights, plan->mesh.n_axes - 1, false);
    struct ap_region *region = ap_region_new(router, groups, n);
    int rc = ap_region_route(region, pattern, &traffic);
    if (rc == 0)
        ap_region_write(region, plan);
    ap_cost_free(&cost);
    return rc ? ap_err_set(err, "the weights are too small for the last axis") : 0;
}

static int plan_feeds(struct ap_arena *arena, struct ap_plan *plan, bool attention,
                      struct ap_err *err)
{
    struct ap_weights weights;

    if (check_batch(plan, plan->mesh.n_axes, err))
        return -1;
    ap_batch_plan(arena, plan);
    struct ap_mark mark = ap_arena_mark(arena); /* the plan's own arrays exist */
    struct ap_plan base = *plan;
    base.choice =
        ap_arena_dup(arena, plan->choice, sizeof *plan->choice * (size_t)plan->nests->n);
    base.recompute_heavy = true; /* the cost model that counts has its say later */
    ap_weights_find(arena, &base, plan->mesh.n_axes - 1, false, &weights);
    int *pattern = AP_NEW_N(arena, weights.n + 1, int);
    int rc = 0;
    if (ap_feeds_pattern(arena, &base, &weights, attention, !attention, pattern) == 0)
        rc = ap_err_set(err, "no weight is %s",
                        attention ? "attention's" : "a feed-forward layer's");
    else
        rc = route_feeds(arena, plan, &base, &weights, pattern, err);
    ap_arena_rewind(arena, mark);
    return rc;
}

int ap_baseline_plan(struct ap_arena *arena, int row, struct ap_plan *plan,
                     struct ap_err *err)
{
    clear_plan(arena, plan);
    switch (row) {
    case 0:
        return plan_batch(arena, plan, false, false, err);
    case 1:
        return plan_batch(arena, plan, true, false, err);
    case 2:
        return plan_batch(arena, plan, true, true, err);
    case 3:
        return plan_megatron(arena, plan, err);
    case 5:
    case 6:
        return plan_feeds(arena, plan, row == 5, err);
    default:
        plan_largest(arena, plan);
        return 0;
    }
}
