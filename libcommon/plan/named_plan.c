/*
 * Problem: write down the plans that people use by hand (data parallelism, ZeRO,
 * Megatron, experts, "split the largest dimension") for any graph. Idea: per mesh axis,
 * seeds say how parameters lie on it, and one sweep lets every group follow
 * (named_plan_sweep.c). Cost: O(axes * operand slots).
 */
#include "plan/named_plan_impl.h"

#include "plan/weight_roles.h"
#include "plan/route.h"

#include <string.h>

const struct ap_named_plan ap_named_plans[AP_N_NAMED_PLANS] = {
    {"data", "data parallel: the batch over all axes", false},
    {"zero1", "ZeRO-1: data, optimizer states and update sharded", true},
    {"zero2", "ZeRO-2: zero1, gradients sharded, too", false},
    {"zero3", "ZeRO-3: zero2, weights sharded, too, gathered in each phase", false},
    {"megatron", "tensor parallel on axis tp or the last, data on the others", false},
    {"megatron-sp", "megatron with sequence parallel activations in between", false},
    {"expert", "expert parallel where a layer has experts, data elsewhere", false},
    {"largest-dim", "every weight split on its largest dimension over all axes", false},
    {"mha-only", "attention's weights split on axis tp or the last, else data", false},
    {"ffn-only", "feed-forward weights split on axis tp or the last, else data", false},
};

/* ---- seeds ---- */

/* Splits an input along the major factor of dimension d (some have size 1), but for what
 * that one has in `stripes` parts. */
static void seed_input(struct ap_sweep *s, int id, int d, int64_t stripes)
{
    const struct ap_nest *nest = &s->nests->nest[s->g->nodes[id].group];
    const struct ap_dim_factors *list = &nest->values[0].dims[d];
    int j = 0;
    while (j + 1 < list->n && (nest->factors[list->factor[j]].size == 1 ||
                               nest->factors[list->factor[j]].size == stripes))
        j++;
    if (s->fixed && s->fixed[nest->group]) {
        int c = s->choice[nest->group].axis[s->axis];
        for (int k = 0; k < list->n; k++)
            s->batch[id] |= list->factor[k] == c;
        return;
    }
    s->batch[id] = list->n > 0 && ap_sweep_try(s, nest, list->factor[j]);
}

void ap_sweep_seed_batch(struct ap_sweep *s, int64_t batch)
{
    for (int i = 0; i < s->g->n_params; i++) {
        const struct ap_node *p = &s->g->nodes[s->g->params[i]];
        if (p->role == AP_ROLE_INPUT && p->shape.rank > 0 && p->shape.dims[0] == batch)
            seed_input(s, s->g->params[i], 0, 1);
    }
}

/* Inputs with a sequence: integers [batch, seq], or numbers [batch, seq, features]. */
static bool has_sequence(const struct ap_node *p, int64_t batch)
{
    if (p->role != AP_ROLE_INPUT || p->shape.rank < 2 || p->shape.dims[0] != batch)
        return false;
    return ap_dtype_is_int(p->shape.dtype) ? p->shape.rank == 2 : p->shape.rank == 3;
}

/* Of the attentions' sequences (ap-fuse --stripes). */
static int64_t stripes_of(const struct ap_graph *g)
{
    int64_t most = 1;

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_ints *scores = &g->nodes[v].attrs->scores;
        if (scores->n > 5 && scores->v[5] > most)
            most = scores->v[5];
    }
    return most;
}

int64_t ap_sweep_seed_sequence(struct ap_sweep *s)
{
    const int64_t stripes = stripes_of(s->g);
    int64_t batch = ap_batch_size(s->g), len = 0;

    for (int i = 0; i < s->g->n_params; i++) {
        const struct ap_node *p = &s->g->nodes[s->g->params[i]];
        if (!has_sequence(p, batch))
            continue;
        len = p->shape.dims[1] > len ? p->shape.dims[1] : len;
        seed_input(s, s->g->params[i], 1, stripes);
    }
    return len;
}

/* Whether an axis inside the sweep's splits the dimension of the nest's value: parts of
 * these parts, which devices have, are other rows than those of parts of the whole. */
static bool is_split_inside(const struct ap_sweep *s, const struct ap_nest *nest, int dim)
{
    const struct ap_dim_factors *list = &nest->values[0].dims[dim];
    bool found = false;

    for (int a = s->axis + 1; a < s->mesh->n_axes; a++)
        for (int j = 0; j < list->n; j++)
            found |= s->choice[nest->group].axis[a] == list->factor[j];
    return found;
}

void ap_sweep_seed_split(struct ap_sweep *s, int id, unsigned axes, bool largest)
{
    const struct ap_node *p = &s->g->nodes[id];
    const struct ap_nest *nest = &s->nests->nest[p->group];
    int64_t devices = ap_mesh_group(s->mesh, axes & ~s->mesh->microbatch);
    int best = -1;
    bool best_divides = false, best_free = false;
    for (int d = 0; d < p->shape.rank; d++) {
        if (p->shape.dims[d] < devices)
            continue;
        const bool divides = largest || p->shape.dims[d] % devices == 0;
        const bool is_free = !is_split_inside(s, nest, d);
        if (best < 0 ||
            (is_free != best_free      ? is_free
             : divides != best_divides ? divides
                                       : p->shape.dims[d] > p->shape.dims[best])) {
            best = d;
            best_divides = divides;
            best_free = is_free;
        }
    }
    if (best < 0)
        return;
    const struct ap_dim_factors *list = &nest->values[0].dims[best];
    for (int j = 0; j < list->n; j++)
        if (ap_sweep_try(s, nest, list->factor[j]))
            return;
}

void ap_sweep_batch(struct ap_sweep *s, int axis)
{
    ap_sweep_axis(s, axis, AP_SWEEP_BATCH);
    ap_sweep_seed_batch(s, ap_batch_size(s->g));
    ap_sweep_run(s);
}

/* ---- the named plans ---- */

/* No axis to decide: of one device, or of microbatches, where the choices are given. */
static bool is_idle(const struct ap_mesh *mesh, int a)
{
    return mesh->size[a] == 1 || (mesh->microbatch >> a & 1);
}

/* A question for named plans. */
struct asked {
    struct ap_arena *arena;
    const struct ap_named_plan_how *how;
};

static struct ap_sweep sweep_for(const struct asked *ask, struct ap_plan *plan)
{
    struct ap_named_plan_shared *s = ask->how->shared;

    if (!s)
        return ap_sweep_new(ask->arena, plan, ask->how->fixed);
    if (!s->facts) {
        const struct ap_sweep_facts facts = ap_sweep_facts_find(&s->arena, plan->nests);
        s->facts = ap_arena_dup(&s->arena, &facts, sizeof facts);
    }
    return ap_sweep_with(ask->arena, plan, ask->how->fixed, s->facts);
}

static unsigned all_axes(const struct ap_mesh *mesh)
{
    return (1U << mesh->n_axes) - 1;
}

static int check_batch(const struct ap_plan *plan, unsigned axes, struct ap_err *err)
{
    int64_t batch = ap_batch_size(plan->graph);
    int64_t devices = ap_mesh_group(&plan->mesh, axes);
    if (batch == 0)
        return ap_err_set(err, "no input has a batch dimension");
    if (batch < devices && plan->mesh.microbatch)
        return ap_err_set(err, "batch %lld in %lld microbatches on %lld devices",
                          (long long)batch, (long long)plan->mesh.size[0],
                          (long long)(devices / plan->mesh.size[0]));
    if (batch < devices)
        return ap_err_set(err, "batch %lld on %lld devices", (long long)batch,
                          (long long)devices);
    return 0;
}

static int plan_batch(const struct asked *ask, struct ap_plan *plan, bool states,
                      bool weights, struct ap_err *err)
{
    const struct ap_graph *g = plan->graph;
    int64_t batch = ap_batch_size(g);
    unsigned shards = ap_mesh_axes_for(&plan->mesh, AP_AXIS_FSDP);

    shards = shards ? shards : all_axes(&plan->mesh);
    if (check_batch(plan, all_axes(&plan->mesh), err))
        return -1;
    struct ap_sweep s = sweep_for(ask, plan);
    for (int a = 0; a < plan->mesh.n_axes; a++) {
        if (is_idle(&plan->mesh, a))
            continue;
        ap_sweep_axis(&s, a, AP_SWEEP_BATCH);
        ap_sweep_seed_batch(&s, batch);
        for (int i = 0; i < g->n_params && (shards >> a & 1); i++) {
            enum ap_role role = g->nodes[g->params[i]].role;
            if ((states && role == AP_ROLE_STATE) || (weights && role == AP_ROLE_WEIGHT))
                ap_sweep_seed_split(&s, g->params[i], shards, false);
        }
        ap_sweep_run(&s);
    }
    if (ask->how->even)
        *ask->how->even = !*s.uneven;
    for (int i = 0; weights && i < g->n_nodes; i++)
        plan->regather[i] =
            s.derived[g->nodes[i].group] && g->nodes[i].role != AP_ROLE_STATE;
    return 0;
}

static int plan_data(const struct asked *ask, struct ap_plan *plan, struct ap_err *err)
{
    return plan_batch(ask, plan, false, false, err);
}

/* The choices of zero2; sums over the batch are all-reduced whole, then cut. */
static int plan_zero1(const struct asked *ask, struct ap_plan *plan, struct ap_err *err)
{
    if (plan_batch(ask, plan, true, false, err))
        return -1;
    plan->whole = AP_NEW_N(ask->arena, plan->graph->n_nodes, bool);
    for (int i = 0; i < plan->graph->n_nodes; i++)
        plan->whole[i] = plan->graph->nodes[i].phase != AP_FORWARD;
    return 0;
}

static int plan_zero2(const struct asked *ask, struct ap_plan *plan, struct ap_err *err)
{
    plan->scatters = true;
    return plan_batch(ask, plan, true, false, err);
}

static int plan_zero3(const struct asked *ask, struct ap_plan *plan, struct ap_err *err)
{
    plan->scatters = true;
    return plan_batch(ask, plan, true, true, err);
}

/* The batch over all axes but one, whose sweep is the caller's. */
static int plan_outer_batch(struct ap_plan *plan, int inner, struct ap_sweep *s,
                            struct ap_err *err)
{
    if (check_batch(plan, all_axes(&plan->mesh) & ~(1U << inner), err))
        return -1;
    for (int a = 0; a < plan->mesh.n_axes; a++) {
        if (a != inner && !is_idle(&plan->mesh, a))
            ap_sweep_batch(s, a);
    }
    return 0;
}

/* The axis of tensor parallelism, -1 with a message where all are for something else. */
static int tensor_axis(const struct ap_mesh *mesh, struct ap_err *err)
{
    int axis = ap_mesh_tensor_axis(mesh);
    if (axis < 0)
        ap_err_set(err,
                   "no axis of the mesh is for tensor parallelism: %s is for another",
                   mesh->name[mesh->n_axes - 1]);
    return axis;
}

int ap_sweep_start_sequence(struct ap_arena *arena, struct ap_plan *plan,
                            struct ap_sweep *s, int axis, struct ap_err *err)
{
    int64_t devices = plan->mesh.size[axis];

    ap_sweep_axis(s, axis, AP_SWEEP_BATCH);
    int64_t len = ap_sweep_seed_sequence(s);
    if (len == 0)
        return ap_err_set(err, "no input has a sequence after the batch");
    if (len < devices)
        return ap_err_set(err, "sequence %lld on %lld devices", (long long)len,
                          (long long)devices);
    ap_sweep_run(s);
    s->seq = AP_NEW_N(arena, plan->nests->n, int16_t);
    for (int i = 0; i < plan->nests->n; i++) {
        int c = plan->choice[i].axis[axis];
        s->seq[i] = (int16_t)(c < plan->nests->nest[i].n_factors ? c : -1);
        if (!s->fixed || !s->fixed[i])
            plan->choice[i].axis[axis] = -1;
    }
    ap_sweep_axis(s, axis, AP_SWEEP_SEQUENCE);
    for (int i = 0; i < s->g->n_params; i++) {
        const struct ap_node *p = &s->g->nodes[s->g->params[i]];
        const int along = s->seq[p->group];
        if (p->role == AP_ROLE_INPUT && !ap_dtype_is_int(p->shape.dtype) && along >= 0)
            s->aside[s->g->params[i]] = ap_sweep_try(s, &s->nests->nest[p->group], along);
    }
    return 0;
}

static int plan_tensor(const struct asked *ask, struct ap_plan *plan, bool sequence,
                       struct ap_err *err)
{
    int axis = tensor_axis(&plan->mesh, err);
    struct ap_sweep s = sweep_for(ask, plan);

    if (axis < 0 || plan_outer_batch(plan, axis, &s, err))
        return -1;
    if (plan->mesh.size[axis] == 1)
        return 0;
    if (!sequence)
        ap_sweep_axis(&s, axis, AP_SWEEP_TENSOR);
    else if (ap_sweep_start_sequence(ask->arena, plan, &s, axis, err))
        return -1;
    ap_sweep_run(&s);
    return 0;
}

static int plan_megatron(const struct asked *ask, struct ap_plan *plan,
                         struct ap_err *err)
{
    return plan_tensor(ask, plan, false, err);
}

static int plan_megatron_sp(const struct asked *ask, struct ap_plan *plan,
                            struct ap_err *err)
{
    return plan_tensor(ask, plan, true, err);
}

static int plan_expert(const struct asked *ask, struct ap_plan *plan, struct ap_err *err)
{
    struct ap_sweep s = sweep_for(ask, plan);
    unsigned experts = ap_mesh_axes_for(&plan->mesh, AP_AXIS_EXPERT);
    bool any = false;

    experts = experts ? experts : all_axes(&plan->mesh);
    if (check_batch(plan, all_axes(&plan->mesh), err))
        return -1;
    bool none = ap_mesh_devices(&plan->mesh) > 1 && !ap_sweep_has_experts(&s);
    for (int a = 0; a < plan->mesh.n_axes && !none; a++) {
        if (is_idle(&plan->mesh, a))
            continue;
        ap_sweep_axis(&s, a, experts >> a & 1 ? AP_SWEEP_EXPERT : AP_SWEEP_BATCH);
        ap_sweep_seed_batch(&s, ap_batch_size(plan->graph));
        ap_sweep_run(&s);
        for (int i = 0; i < plan->graph->n_nodes && !any; i++)
            any = s.aside[i];
    }
    if (!any && ap_mesh_devices(&plan->mesh) > 1)
        return ap_err_set(err,
                          "no dot is batched over at least as many weights (experts) "
                          "as an axis has devices");
    return 0;
}

static int plan_largest(const struct asked *ask, struct ap_plan *plan, struct ap_err *err)
{
    (void)err;
    struct ap_sweep s = sweep_for(ask, plan);
    for (int a = 0; a < plan->mesh.n_axes; a++) {
        if (is_idle(&plan->mesh, a))
            continue;
        ap_sweep_axis(&s, a, AP_SWEEP_FOLLOW);
        for (int i = 0; i < plan->graph->n_params; i++) {
            enum ap_role role = plan->graph->nodes[plan->graph->params[i]].role;
            if (role == AP_ROLE_WEIGHT || role == AP_ROLE_STATE)
                ap_sweep_seed_split(&s, plan->graph->params[i], all_axes(&plan->mesh),
                                    true);
        }
        ap_sweep_run(&s);
    }
    return 0;
}

void ap_sweep_start(struct ap_arena *arena, struct ap_plan *plan, const bool *fixed)
{
    struct ap_choice_vec *choice = AP_NEW_N(arena, plan->nests->n, struct ap_choice_vec);
    for (int i = 0; i < plan->nests->n; i++) {
        choice[i] = fixed && fixed[i] ? plan->choice[i] : AP_CHOICE_NONE;
        if (plan->mesh.microbatch)
            choice[i].axis[0] = plan->microbatch_choice[i];
    }
    plan->choice = choice;
    plan->regather = AP_NEW_N(arena, plan->graph->n_nodes, bool);
    plan->whole = NULL;
}

void ap_batch_plan(struct ap_arena *arena, struct ap_plan *plan)
{
    ap_sweep_start(arena, plan, NULL);
    struct ap_sweep s = ap_sweep_new(arena, plan, NULL);
    for (int a = 0; a < plan->mesh.n_axes; a++)
        if (!is_idle(&plan->mesh, a))
            ap_sweep_batch(&s, a);
}

/* ---- TAP's points: some weights have a pattern, the rest is data parallel ---- */

/* What mha-only and ffn-only have in common. */
struct ap_role_plans {
    struct ap_plan base; /* data parallel */
    struct ap_weights weights;
    struct ap_cluster cluster;
    struct ap_cost cost;
    struct ap_region *region; /* the whole graph; NULL: there is none, why says so */
    struct ap_err why;
};

static struct ap_role_plans *role_plans_new(struct ap_arena *arena,
                                            const struct ap_plan *plan, int axis)
{
    int n = plan->nests->n;
    int *groups = AP_NEW_N(arena, n, int);
    struct ap_role_plans *f = AP_NEW(arena, struct ap_role_plans);

    f->base = *plan;
    ap_batch_plan(arena, &f->base);
    ap_weights_find(arena, &f->base, axis, false, &f->weights);
    for (int i = 0; i < n; i++)
        groups[i] = i;
    if (ap_cluster_get(arena, NULL, NULL, ap_mesh_devices(&plan->mesh), &f->cluster,
                       &f->why) == 0 &&
        ap_cost_init(arena, &f->cost, AP_COST_BYTES, &f->cluster, &plan->mesh, &f->why) ==
            0)
        f->region = ap_region_new(
            ap_router_new(arena, &f->base, &f->cost, &f->weights, axis, false), groups,
            n);
    return f;
}

static int route_roles(struct ap_arena *arena, struct ap_role_plans *f,
                       struct ap_plan *plan, bool attention, struct ap_err *err)
{
    int *pattern = AP_NEW_N(arena, f->weights.n + 1, int);
    struct ap_traffic traffic;

    if (!f->region)
        return ap_err_set(err, "%s", f->why.msg);
    if (ap_weight_roles_pattern(arena, &f->base, &f->weights, attention, !attention,
                                pattern) == 0)
        return ap_err_set(err, "no weight is %s",
                          attention ? "attention's" : "a feed-forward layer's");
    if (ap_region_route(f->region, pattern, &traffic))
        return ap_err_set(err, "the weights are too small for the axis");
    ap_region_write(f->region, plan);
    return 0;
}

static int plan_roles(const struct asked *ask, struct ap_plan *plan, bool attention,
                      struct ap_err *err)
{
    struct ap_named_plan_shared own = {.roles = NULL},
                                *s = ask->how->shared ? ask->how->shared : &own;

    if (ask->how->fixed)
        return ap_err_set(err, "it keeps no pins");
    int axis = tensor_axis(&plan->mesh, err);
    if (axis < 0 || check_batch(plan, all_axes(&plan->mesh), err))
        return -1;
    if (!s->roles)
        s->roles = role_plans_new(&s->arena, plan, axis);
    memcpy(plan->choice, s->roles->base.choice,
           sizeof *plan->choice * (size_t)plan->nests->n);
    int rc = route_roles(ask->arena, s->roles, plan, attention, err);
    ap_named_plan_shared_free(&own);
    return rc;
}

void ap_named_plan_shared_free(struct ap_named_plan_shared *shared)
{
    if (shared->roles)
        ap_cost_free(&shared->roles->cost);
    ap_arena_free(&shared->arena);
    shared->roles = NULL;
    shared->facts = NULL;
}

static int plan_mha(const struct asked *ask, struct ap_plan *plan, struct ap_err *err)
{
    return plan_roles(ask, plan, true, err);
}

static int plan_ffn(const struct asked *ask, struct ap_plan *plan, struct ap_err *err)
{
    return plan_roles(ask, plan, false, err);
}

typedef int plan_fn(const struct asked *ask, struct ap_plan *plan, struct ap_err *err);
static plan_fn *const plan_of[AP_N_NAMED_PLANS] = {
    plan_data,        plan_zero1,  plan_zero2,   plan_zero3, plan_megatron,
    plan_megatron_sp, plan_expert, plan_largest, plan_mha,   plan_ffn,
};

int ap_named_plan_make(struct ap_arena *arena, int row, struct ap_plan *plan,
                       const struct ap_named_plan_how *how, struct ap_err *err)
{
    static const struct ap_named_plan_how alone = {.fixed = NULL};
    const struct asked ask = {arena, how ? how : &alone};

    ap_sweep_start(arena, plan, ask.how->fixed);
    return plan_of[row](&ask, plan, err);
}

void ap_named_plan_complete(struct ap_arena *arena, struct ap_plan *plan,
                            const bool *fixed)
{
    ap_sweep_start(arena, plan, fixed);
    struct ap_sweep s = ap_sweep_new(arena, plan, fixed);
    for (int a = 0; a < plan->mesh.n_axes; a++) {
        if (is_idle(&plan->mesh, a))
            continue;
        ap_sweep_axis(&s, a, AP_SWEEP_GIVEN);
        for (int i = 0; i < plan->graph->n_params; i++)
            s.batch[plan->graph->params[i]] =
                plan->graph->nodes[plan->graph->params[i]].role == AP_ROLE_INPUT &&
                plan->choice[plan->graph->nodes[plan->graph->params[i]].group].axis[a] >=
                    0;
        ap_sweep_run(&s);
    }
}
