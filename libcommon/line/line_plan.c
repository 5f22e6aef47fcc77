/*
 * Problem: the plan that a trainer runs for given degrees, exactly: which layers are in
 * which stage, on which devices, how each stage is sharded, what is recomputed. Idea:
 * layers are counted by the names of the weights and must end where blocks end; all
 * stages have one mesh, whose axes have the uses that the line says
 * (plan/degrees_plan.c); what cannot be divided evenly is refused, since no trainer pads
 * it. Cost: linear in the graph, times stages. Sources: Narayanan et al., SC 2021,
 * sections 2 and 3.1 (order of devices: tensor, data, pipeline); Korthikanti et al.,
 * section 4.2 (sequence parallelism).
 */
#include "line/line_plan.h"

#include <string.h>

#include "base/threads.h"
#include "plan/named_plan.h"
#include "plan/patterns.h"

/* From the outside in. */
enum { DATA, EXPERT, CONTEXT, TENSOR, N_DEGREES };
static const struct {
    const char *name, *between; /* between hosts, of what is split at their border */
    enum ap_axis_split use;
} degrees[N_DEGREES] = {{"dp", "dp_hosts", AP_USE_DATA},
                        {"ep", "ep_hosts", AP_USE_DATA},
                        {"cp", "cp_hosts", AP_USE_CONTEXT},
                        {"tp", "tp_hosts", AP_USE_TENSOR}};

/* ---- devices ---- */

/* Of an axis whose devices are `inside` apart, how many are in one host. */
static int64_t in_host(const struct ap_line_maker *k, int64_t inside, int64_t size)
{
    const int64_t host = k->model->of.cluster->levels[0].size;

    if (inside >= host || inside * size <= host || host % inside ||
        size % (host / inside) || k->mesh.n_axes + 2 > AP_MAX_AXES - 1)
        return size;
    return host / inside;
}

static void add_axis(struct ap_line_maker *k, int degree, int64_t size, const char *name)
{
    const int at = k->mesh.n_axes++;

    k->mesh.size[at] = size;
    k->mesh.name[at] = name;
    k->uses.use[at] = degrees[degree].use;
    k->uses.expert_use[at] = degree == EXPERT ? AP_USE_EXPERT : degrees[degree].use;
    if (degree != TENSOR)
        k->uses.zero[at] = (uint8_t)k->line.degrees.zero;
}

/* ZeRO shards over the innermost axes of `shard` devices in all. */
static int limit_shards(struct ap_line_maker *k, struct ap_err *err)
{
    int64_t devices = 1;

    for (int a = k->mesh.n_axes - 1; a >= 0 && k->line.degrees.zero > 0; a--) {
        if (k->uses.use[a] == AP_USE_TENSOR)
            continue;
        if (devices >= k->line.degrees.shard)
            k->uses.zero[a] = 0;
        else
            devices *= k->mesh.size[a];
    }
    if (k->line.degrees.zero > 0 && devices != k->line.degrees.shard)
        return ap_err_set(err,
                          "shard=%lld: the nearest groups of devices with other data "
                          "have %lld",
                          (long long)k->line.degrees.shard, (long long)devices);
    return 0;
}

/* The mesh of all stages. Axes are split at the border of hosts, so that collectives go
 * inside hosts first. */
static int lay_mesh(struct ap_line_maker *k, struct ap_err *err)
{
    const struct ap_degrees *d = &k->line.degrees;

    if (ap_line_complete(&k->line, ap_cluster_devices(k->model->of.cluster), err))
        return -1;
    if (d->expert_tensor != d->tensor)
        return ap_err_set(err, "etp=%lld: experts are split as tp=%lld says",
                          (long long)d->expert_tensor, (long long)d->tensor);
    if (d->data % d->expert)
        return ap_err_set(err, "ep=%lld does not divide dp=%lld", (long long)d->expert,
                          (long long)d->data);
    const int64_t size[N_DEGREES] = {d->data / d->expert, d->expert, d->context,
                                     d->tensor};
    int64_t inside = d->tensor * d->context * d->data; /* devices of a step on the axis */
    for (int i = 0; i < N_DEGREES; i++) {
        inside /= size[i];
        const int64_t within = in_host(k, inside, size[i]);
        if (within < size[i])
            add_axis(k, i, size[i] / within, degrees[i].between);
        if (within > 1)
            add_axis(k, i, within, degrees[i].name);
    }
    if (k->mesh.n_axes == 0)
        add_axis(k, DATA, 1, degrees[DATA].name);
    k->uses.degrees.sequence = d->sequence;
    k->uses.degrees.ring = d->ring;
    if (limit_shards(k, err))
        return -1;
    ap_degrees_count(&k->uses, &k->mesh, d->expert > 1);
    k->uses.degrees.zero = d->zero;
    return 0;
}

static int cut_batch(struct ap_line_maker *k, struct ap_err *err)
{
    const int64_t at_once = ap_mul64(k->uses.degrees.data, k->line.micro_batch);
    const int64_t n = k->model->batch / at_once;

    if (k->model->batch == 0)
        return ap_err_set(err, "no input has a batch dimension");
    if (k->model->batch % at_once)
        return ap_err_set(err, "dp=%lld x mbs=%lld do not divide the batch of %lld",
                          (long long)k->uses.degrees.data, (long long)k->line.micro_batch,
                          (long long)k->model->batch);
    if (k->line.chunks > 1 && n % k->line.pipeline)
        return ap_err_set(
            err, "vpp=%lld: %lld microbatches are not a multiple of pp=%lld",
            (long long)k->line.chunks, (long long)n, (long long)k->line.pipeline);
    k->stages->microbatches = n;
    return 0;
}

/* Stage s is on the s modulo pp-th part of the devices. */
static void place(const struct ap_line_maker *k, int s)
{
    struct ap_stage *st = &k->stages->stage[s];
    const int64_t host = k->model->of.cluster->levels[0].size;
    const int64_t n = ap_mesh_devices(&k->mesh);
    int64_t *list = AP_NEW_N(k->arena, n, int64_t);

    for (int64_t i = 0; i < n; i++)
        list[i] = s % k->line.pipeline * n + i;
    st->n_devices = n;
    st->devices = list;
    st->devices_per_host = n < host ? n : host;
    st->hosts = (n + host - 1) / host;
}

/* ---- layers ---- */

/* First and last block of each layer. */
static void span_layers(struct ap_arena *arena, struct ap_line_model *model)
{
    const struct ap_graph *g = model->of.graph;
    int *first = AP_NEW_N(arena, model->layers.n + 1, int);
    int *last = AP_NEW_N(arena, model->layers.n + 1, int);

    for (int i = 0; i < model->layers.n; i++) {
        first[i] = model->of.blocks->n;
        last[i] = -1;
    }
    model->first = first;
    model->last = last;
    for (int v = 0; v < g->n_nodes; v++) {
        int layer = model->layers.of_node[v], block = model->of.blocks->block_of[v];
        if (layer < 0 || g->nodes[v].phase != AP_FORWARD)
            continue;
        first[layer] = block < first[layer] ? block : first[layer];
        last[layer] = block > last[layer] ? block : last[layer];
    }
}

static int layers_of_stage(const struct ap_line_maker *k, int s)
{
    return k->line.n_layers ? k->line.layers[s] : k->model->layers.n / k->stages->n;
}

static int check_layers(const struct ap_line_maker *k, struct ap_err *err)
{
    int64_t sum = 0;

    if (k->model->layers.n == 0 && k->stages->n > 1)
        return ap_err_set(err, "the names of the weights number no layers");
    for (int s = 0; s < k->stages->n; s++)
        sum += layers_of_stage(k, s);
    if (sum == k->model->layers.n || k->stages->n == 1)
        return 0;
    if (k->line.n_layers)
        return ap_err_set(err, "layers: %lld, the model has %d", (long long)sum,
                          k->model->layers.n);
    return ap_err_set(err,
                      "%d layers in %d stages: layers=A:B:... says how many are in each",
                      k->model->layers.n, k->stages->n);
}

/* Blocks of each stage. */
static int cut_blocks(struct ap_line_maker *k, struct ap_err *err)
{
    const int n_blocks = k->model->of.blocks->n;
    const int *first = k->model->first, *last = k->model->last;
    int layer = 0, block = 0;

    if (check_layers(k, err))
        return -1;
    for (int s = 0; s < k->stages->n; s++) {
        struct ap_stage *st = &k->stages->stage[s];
        int end = n_blocks; /* after its last block */
        layer += layers_of_stage(k, s);
        if (s + 1 < k->stages->n && layer < k->model->layers.n)
            end = first[layer];
        else if (s + 1 < k->stages->n)
            end = last[layer - 1] + 1;
        if (layer > 0 && layer < k->model->layers.n && end <= last[layer - 1])
            return ap_err_set(err,
                              "stage %d ends inside block %d, which has layers %d and "
                              "%d (ap-coarsen --algorithm layers)",
                              s, end, layer - 1, layer);
        if (end <= block)
            return ap_err_set(err, "stage %d has no blocks%s", s,
                              n_blocks < k->model->layers.n + 2
                                  ? " (ap-coarsen --algorithm layers)"
                                  : "");
        int *list = AP_NEW_N(k->arena, end - block, int);
        while (block < end)
            list[st->n_blocks++] = block++;
        st->blocks = list;
    }
    return 0;
}

void ap_line_model_find(struct ap_arena *arena, const struct ap_staged_graph *of,
                        struct ap_line_model *model)
{
    *model = (struct ap_line_model){.of = *of,
                                    .batch = ap_batch_size(of->graph),
                                    .origins = ap_blocks_origins(arena, of->graph)};
    ap_layers_find(arena, of->graph, of->nests, &model->layers);
    span_layers(arena, model);
    ap_line_mark_recomputed(arena, model);
}

/* ---- shardings ---- */

/* Whether a factor is one of heads: of both operands of a contraction. */
static bool is_of_heads(const struct ap_nest *nest, int factor)
{
    return factor >= 0 && factor < nest->n_factors &&
           nest->factors[factor].kind == AP_FACTOR_PARALLEL && nest->n_ins > 1 &&
           ap_access_has(&nest->ins[0].access, factor) &&
           ap_access_has(&nest->ins[1].access, factor);
}

/* A contraction of experts: batched, of activations and weights. */
static bool is_of_experts(const struct ap_graph *g, const uint8_t *from, int v)
{
    return g->nodes[v].op == AP_OP_DOT && g->nodes[v].attrs->lhs_batch_dims.n > 0 &&
           !ap_line_is_of_activations(g, from, v);
}

/* Whether a contraction of activations brings tokens to experts, or back from them: only
 * moves are between it and a contraction of theirs. */
static bool is_beside_experts(const struct ap_graph *g, const uint8_t *from, int v)
{
    for (int k = 0; k < g->nodes[v].n_in; k++) {
        int u = g->nodes[v].in[k];
        while (ap_ops[g->nodes[u].op].class == AP_CLASS_MOVE && g->nodes[u].n_in == 1)
            u = g->nodes[u].in[0];
        if (is_of_experts(g, from, u))
            return true;
    }
    for (int at = g->user_start[v]; at < g->user_start[v + 1]; at++) {
        int u = g->users[at];
        while (ap_ops[g->nodes[u].op].class == AP_CLASS_MOVE &&
               g->user_start[u] < g->user_start[u + 1])
            u = g->users[g->user_start[u]];
        if (is_of_experts(g, from, u))
            return true;
    }
    return false;
}

/* What trainers do not do: pad what an axis splits, leave a contraction whole on the
 * tensor axis, or split attention there by other than heads. */
static int check_contraction(const struct ap_line_maker *k, const struct ap_plan *plan,
                             const struct ap_nest *nest, int axis, const uint8_t *from,
                             struct ap_err *err)
{
    const struct ap_node *n = &plan->graph->nodes[nest->members[0]];
    const int c = plan->choice[nest->group].axis[axis];
    const long long size = k->mesh.size[axis];
    const char *name = k->mesh.name[axis];

    if (c >= 0 && c < nest->n_factors && nest->factors[c].size % size)
        return ap_err_set(err, "%s=%lld does not divide the %lld of %s (%s)", name, size,
                          (long long)nest->factors[c].size, n->name, n->scope);
    if (k->uses.use[axis] != AP_USE_TENSOR || size == 1 || n->phase != AP_FORWARD)
        return 0;
    if (c < 0)
        return ap_err_set(err, "%s=%lld: nothing of %s (%s) is split by it", name, size,
                          n->name, n->scope);
    if (ap_line_is_of_activations(plan->graph, from, nest->members[0]) &&
        !is_of_heads(nest, c) && !is_beside_experts(plan->graph, from, nest->members[0]))
        return ap_err_set(err, "%s=%lld does not divide the heads of %s (%s)", name, size,
                          n->name, n->scope);
    return 0;
}

static int check_even(const struct ap_line_maker *k, struct ap_arena *arena,
                      const struct ap_plan *plan, struct ap_err *err)
{
    const uint8_t *from = ap_blocks_origins(arena, plan->graph);

    for (int i = 0; i < plan->nests->n; i++)
        for (int a = 0; a < k->mesh.n_axes && plan->nests->nest[i].heavy; a++)
            if (check_contraction(k, plan, &plan->nests->nest[i], a, from, err))
                return -1;
    return 0;
}

/* What the plan does is what the line says. */
static int check_degrees(const struct ap_line_maker *k, const struct ap_plan *plan,
                         struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct ap_plan_degrees found;
    int rc = 0;

    ap_degrees_find(&scratch, plan, k->stages->microbatches, &found);
    const struct ap_degrees *d = &found.all.degrees, *want = &k->uses.degrees;
    if (found.flops > 0 && found.layers.n > 0 &&
        (d->tensor != want->tensor || d->data != want->data ||
         d->context != want->context || (want->expert > 1 && d->expert != want->expert) ||
         (d->tensor > 1 && d->sequence != want->sequence))) {
        struct ap_buf is = {0};
        ap_degrees_print(d, &is);
        rc = ap_err_set(err, "the model's plan would be %s", is.data);
        ap_buf_free(&is);
    }
    ap_arena_free(&scratch);
    return rc;
}

int ap_line_shard(const struct ap_line_maker *k, struct ap_arena *arena,
                  struct ap_plan *plan, struct ap_err *err)
{
    return ap_degrees_plan(arena, &k->uses, plan, err) ||
                   check_even(k, arena, plan, err) || check_degrees(k, plan, err)
               ? -1
               : 0;
}

static int shard_stage(void *ctx, int s, struct ap_arena *arena, struct ap_err *err)
{
    const struct ap_line_maker *k = ctx;
    const struct ap_graph *g = k->model->of.graph;
    struct ap_stage *st = &k->stages->stage[s];
    struct ap_err why = {0};

    if (ap_subgraph_blocks(arena, g, k->model->of.blocks->block_of, st->blocks[0],
                           st->blocks[st->n_blocks - 1], &st->sub, &why) ||
        ap_nests_build(arena, &st->sub.graph, &st->nests, &why))
        return ap_err_set(err, "stage %d: %s", s, why.msg);
    st->sharding = (struct ap_sharding){
        .plan = {.graph = &st->sub.graph, .nests = &st->nests, .mesh = k->mesh},
        .algorithm = "grid",
        .cost_model = ap_cost_variant_names[AP_COST_DEFAULT],
        .stopped = "rule"};
    if (ap_line_shard(k, arena, &st->sharding.plan, &why))
        return ap_err_set(err, "stage %d: %s", s, why.msg);
    return 0;
}

/* ---- the plan ---- */

int ap_line_lay(struct ap_line_maker *k, struct ap_err *err)
{
    const struct ap_line *line = &k->line;
    struct ap_stages *stages = k->stages;

    stages->n = ap_line_stages(line);
    stages->stage = AP_NEW_N(k->arena, stages->n, struct ap_stage);
    stages->algorithm = "grid";
    stages->stopped = "rule";
    stages->schedule = line->schedule;
    stages->chunks = (int)line->chunks;
    stages->overlap = line->overlap;
    stages->trainer = ap_line_trainer(line);
    stages->n_devices = ap_cluster_devices(k->model->of.cluster);
    if (lay_mesh(k, err) || cut_batch(k, err) || cut_blocks(k, err))
        return -1;
    stages->line = ap_line_text(k->arena, line);
    return 0;
}

/* A line that says ring has one in some stage. */
static int check_ring(const struct ap_line_maker *k, struct ap_err *err)
{
    for (int s = 0; s < k->stages->n && k->line.degrees.ring; s++) {
        const struct ap_plan *plan = &k->stages->stage[s].sharding.plan;
        for (int i = 0; i < plan->nests->n; i++)
            if (ap_choice_ring_axis(&plan->nests->nest[i], &plan->mesh,
                                    &plan->choice[i]) >= 0)
                return 0;
    }
    return k->line.degrees.ring ? ap_err_set(err, "ring: no attention has one (ap-fuse)")
                                : 0;
}

int ap_line_build(struct ap_line_maker *k, struct ap_err *err)
{
    if (ap_line_lay(k, err))
        return -1;
    for (int s = 0; s < k->stages->n; s++)
        place(k, s);
    ap_line_list_recomputed(k);
    return ap_in_arenas(k->arena, k->stages->n, shard_stage, k, err) || check_ring(k, err)
               ? -1
               : 0;
}
