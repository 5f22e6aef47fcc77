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
#include "grid/line_plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "plan/named_plan.h"
#include "plan/patterns.h"

/* ---- devices ---- */

/* A stage's devices are numbered with tensor parallelism innermost, then context and
 * data; experts count the same devices by etp, ep and copies. */
struct grid {
    int64_t tensor, context, shard; /* ends of these, in devices of a stage */
    int64_t exchange;               /* that of tensor, where nothing is exchanged */
    int64_t expert_tensor, expert;
    int n;
    int64_t border[2 * AP_MAX_AXES]; /* of axes, ascending, from 1 */
};

static int compare_borders(const void *pa, const void *pb)
{
    const int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return a < b ? -1 : a > b;
}

static void add_border(struct grid *g, int64_t at)
{
    for (int i = 0; i < g->n; i++)
        if (g->border[i] == at)
            return;
    g->border[g->n++] = at;
    qsort(g->border, (size_t)g->n, sizeof *g->border, compare_borders);
}

/* Whether each border divides the next one. */
static bool nests(const struct grid *g)
{
    for (int i = 1; i < g->n; i++)
        if (g->border[i] % g->border[i - 1])
            return false;
    return true;
}

/* The borders of the axes. Axes are split at the border of hosts, too, so that
 * collectives go inside hosts first. */
static int find_borders(const struct line_maker *k, struct grid *g, struct ap_err *err)
{
    const struct ap_degrees *d = &k->line.degrees;
    const int64_t host = k->model->of.cluster->levels[0].size;
    const int64_t n = d->tensor * d->context * d->data;

    *g = (struct grid){.tensor = d->tensor,
                       .context = d->tensor * d->context,
                       .exchange = d->tensor * (d->exchange > 1 ? d->exchange : 1),
                       .shard = d->tensor * d->shard,
                       .expert_tensor = d->tensor,
                       .expert = d->tensor};
    if (k->model->experts > 0) {
        g->expert_tensor = d->expert_tensor;
        g->expert = d->expert_tensor * d->expert;
    }
    const int64_t ends[] = {1,
                            n,
                            g->tensor,
                            g->exchange,
                            g->context,
                            d->zero > 0 ? g->shard : 1,
                            g->expert_tensor,
                            g->expert};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        add_border(g, ends[i]);
    if (!nests(g) || g->n > AP_MAX_AXES)
        return ap_err_set(err,
                          "tp=%lld x cp=%lld x dp=%lld, experts' etp=%lld x ep=%lld and "
                          "shard=%lld %s",
                          (long long)d->tensor, (long long)d->context, (long long)d->data,
                          (long long)d->expert_tensor, (long long)d->expert,
                          (long long)d->shard,
                          nests(g) ? "are more axes than a mesh has"
                                   : "do not nest: each group of devices must hold the "
                                     "smaller ones whole");
    struct grid split = *g;
    if (host < n && g->n < AP_MAX_AXES)
        add_border(&split, host);
    if (nests(&split))
        *g = split;
    return 0;
}

/* The axis of devices from..to of a stage. */
static void add_axis(struct line_maker *k, const struct grid *g, int64_t from, int64_t to)
{
    const int at = k->mesh.n_axes++;
    const enum ap_axis_split use = to <= g->tensor    ? AP_USE_TENSOR
                                   : to <= g->context ? AP_USE_CONTEXT
                                                      : AP_USE_DATA;

    k->mesh.size[at] = to / from;
    k->uses.use[at] = use;
    k->uses.exchange[at] = use == AP_USE_CONTEXT && to <= g->exchange;
    k->uses.expert_use[at] = to <= g->expert_tensor ? AP_USE_TENSOR
                             : to <= g->expert      ? AP_USE_EXPERT
                             : use == AP_USE_TENSOR ? AP_USE_DATA
                                                    : use;
    if ((use != AP_USE_TENSOR || k->uses.expert_use[at] == AP_USE_DATA) && to <= g->shard)
        k->uses.zero[at] = (uint8_t)k->line.degrees.zero;
}

/* Names from the inside out: of the use, and experts' where that differs. Of several axes
 * of a name the innermost has it, the next one between hosts is "..._hosts". */
static void name_axes(struct line_maker *k)
{
    static const char *const uses[AP_N_AXIS_USES] = {
        [AP_USE_DATA] = "dp", [AP_USE_CONTEXT] = "cp", [AP_USE_TENSOR] = "tp"};
    static const char *const experts[AP_N_AXIS_USES] = {
        [AP_USE_DATA] = "edp", [AP_USE_TENSOR] = "etp", [AP_USE_EXPERT] = "ep"};
    const int64_t host = k->model->of.cluster->levels[0].size;
    int64_t inside = 1;

    for (int a = k->mesh.n_axes - 1; a >= 0; a--) {
        const enum ap_axis_split use = k->uses.use[a], of = k->uses.expert_use[a];
        const char *name = uses[use];
        int n = 1, between = 0;
        for (int b = a + 1; b < k->mesh.n_axes; b++)
            if (k->uses.use[b] == use && k->uses.expert_use[b] == of) {
                n++;
                between += strstr(k->mesh.name[b], "_hosts") != NULL;
            }
        if (of != use)
            name = use == AP_USE_DATA
                       ? experts[of]
                       : ap_arena_printf(k->arena, "%s_%s", name, experts[of]);
        if (n > 1)
            name = inside >= host && !between
                       ? ap_arena_printf(k->arena, "%s_hosts", name)
                       : ap_arena_printf(k->arena, "%s%d", name, n);
        k->mesh.name[a] = name;
        inside *= k->mesh.size[a];
    }
}

static int check_experts(const struct line_maker *k, struct ap_err *err)
{
    const struct ap_degrees *d = &k->line.degrees;
    const int64_t group = d->expert * d->expert_tensor;

    if (k->model->experts == 0)
        return d->expert_tensor == d->tensor
                   ? 0
                   : ap_err_set(err, "etp=%lld: the model has no experts",
                                (long long)d->expert_tensor);
    if (group < d->tensor && !d->sequence)
        return ap_err_set(err,
                          "ep=%lld x etp=%lld beside tp=%lld: experts have different "
                          "tokens on devices of tensor parallelism only with sp",
                          (long long)d->expert, (long long)d->expert_tensor,
                          (long long)d->tensor);
    if (d->zero > 0 && group > d->tensor * d->shard)
        return ap_err_set(err,
                          "shard=%lld: experts of ep=%lld x etp=%lld are on more "
                          "devices than tp=%lld x shard",
                          (long long)d->shard, (long long)d->expert,
                          (long long)d->expert_tensor, (long long)d->tensor);
    return 0;
}

/* The mesh of all stages: axes of both grids. */
static int lay_mesh(struct line_maker *k, struct ap_err *err)
{
    const struct ap_degrees *d = &k->line.degrees;
    struct grid g;

    if (check_experts(k, err) || find_borders(k, &g, err))
        return -1;
    for (int i = g.n - 1; i > 0; i--)
        add_axis(k, &g, g.border[i - 1], g.border[i]);
    name_axes(k);
    if (k->mesh.n_axes == 0) {
        k->mesh = (struct ap_mesh){.n_axes = 1, .size = {1}, .name = {"dp"}};
        k->uses.use[0] = k->uses.expert_use[0] = AP_USE_DATA;
    }
    k->uses.degrees.sequence = d->sequence;
    k->uses.degrees.ring = d->ring;
    ap_degrees_count(&k->uses, &k->mesh, k->model->experts > 0);
    k->uses.degrees.zero = d->zero;
    return 0;
}

/* Stages are on parts of the devices that follow each other, as the schedule says. */
static void place(const struct line_maker *k, int s)
{
    struct ap_stage *st = &k->stages->stage[s];
    const int64_t host = k->model->of.cluster->levels[0].size;
    const int64_t n = ap_mesh_devices(&k->mesh);
    int64_t *list = AP_NEW_N(k->arena, n, int64_t);

    for (int64_t i = 0; i < n; i++)
        list[i] = ap_stages_device(k->stages, s) * n + i;
    st->n_devices = n;
    st->devices = list;
    st->devices_per_host = n < host ? n : host;
    st->hosts = (n + host - 1) / host;
}

/* ---- layers ---- */

/* First and last block of each layer. */
static void span_layers(struct ap_arena *arena, struct line_model *model)
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

static int layers_of_stage(const struct line_maker *k, int s)
{
    return k->line.n_layers ? k->line.layers[s] : k->model->layers.n / k->stages->n;
}

/* Blocks of each stage. */
static int cut_blocks(struct line_maker *k, struct ap_err *err)
{
    const int n_blocks = k->model->of.blocks->n;
    const int *first = k->model->first, *last = k->model->last;
    int layer = 0, block = 0;

    if (k->model->layers.n == 0 && k->stages->n > 1)
        return ap_err_set(err, "the names of the weights number no layers");
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

void line_model_find(struct ap_arena *arena, const struct ap_staged_graph *of,
                     struct line_model *model)
{
    *model = (struct line_model){.of = *of,
                                 .batch = ap_batch_size(of->graph),
                                 .origins = ap_blocks_origins(arena, of->graph)};
    const int first = ap_experts_find(of->graph, model->origins);
    model->experts = first < 0 ? 0 : of->graph->nodes[first].shape.dims[0];
    ap_layers_find(arena, of->graph, of->nests, &model->layers);
    span_layers(arena, model);
    line_mark_recomputed(arena, model);
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

/* [node]: a contraction of activations that brings tokens to experts, or back: between it
 * and a contraction of theirs are no others. */
static const bool *find_beside(struct ap_arena *arena, const struct ap_graph *g,
                               const uint8_t *from)
{
    bool *beside = AP_NEW_N(arena, g->n_nodes, bool);
    bool *near = AP_NEW_N(arena, g->n_nodes, bool);

    for (int v = 0; v < g->n_nodes; v++) {
        bool any = false;
        for (int k = 0; k < g->nodes[v].n_in; k++)
            any |= near[g->nodes[v].in[k]];
        beside[v] = any && line_is_contraction(g, v);
        near[v] =
            ap_node_is_of_experts(g, from, v) || (any && !line_is_contraction(g, v));
    }
    for (int v = g->n_nodes - 1; v >= 0; v--) {
        bool any = false;
        for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++)
            any |= near[g->users[u]];
        beside[v] |= any && line_is_contraction(g, v);
        near[v] =
            ap_node_is_of_experts(g, from, v) || (any && !line_is_contraction(g, v));
    }
    return beside;
}

/* What trainers do not do: pad what an axis splits, leave a contraction whole on the
 * tensor axis, or split attention there by other than heads. */
static int check_contraction(const struct line_maker *k, const struct ap_plan *plan,
                             const struct ap_nest *nest, int axis, const uint8_t *from,
                             const bool *beside, struct ap_err *err)
{
    const int v = nest->members[0];
    const struct ap_node *n = &plan->graph->nodes[v];
    const int c = plan->choice[nest->group].axis[axis];
    const long long size = k->mesh.size[axis];
    const char *name = k->mesh.name[axis];
    const bool tensor = k->uses.use[axis] == AP_USE_TENSOR;
    const bool experts = beside && ap_node_is_of_experts(plan->graph, from, v);
    const bool router =
        beside && !experts && n->shape.dims[n->shape.rank - 1] == k->model->experts;

    if (c >= 0 && c < nest->n_factors && nest->factors[c].size % size)
        return ap_err_set(err, "%s=%lld does not divide the %lld of %s (%s)", name, size,
                          (long long)nest->factors[c].size, n->name, n->scope);
    if (size == 1 || n->phase != AP_FORWARD || router ||
        (beside && beside[v] && !experts))
        return 0;
    if (c < 0 && (tensor || (experts && (k->uses.expert_use[axis] == AP_USE_TENSOR ||
                                         k->uses.expert_use[axis] == AP_USE_EXPERT))))
        return ap_err_set(err, "%s=%lld: nothing of %s (%s) is split by it", name, size,
                          n->name, n->scope);
    if (tensor && !is_of_heads(nest, c) && line_is_of_activations(plan->graph, from, v))
        return ap_err_set(err, "%s=%lld does not divide the heads of %s (%s)", name, size,
                          n->name, n->scope);
    return 0;
}

static int check_even(const struct line_maker *k, struct ap_arena *arena,
                      const struct ap_plan *plan, struct ap_err *err)
{
    const uint8_t *from = ap_blocks_origins(arena, plan->graph);
    const bool *beside =
        k->model->experts > 0 ? find_beside(arena, plan->graph, from) : NULL;

    for (int i = 0; i < plan->nests->n; i++)
        for (int a = 0; a < k->mesh.n_axes && plan->nests->nest[i].heavy; a++)
            if (check_contraction(k, plan, &plan->nests->nest[i], a, from, beside, err))
                return -1;
    return 0;
}

/* What the plan does is what the line says. */
static int check_degrees(const struct line_maker *k, const struct ap_plan *plan,
                         struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct ap_plan_degrees found;
    int rc = 0;

    ap_degrees_find(&scratch, plan, k->stages->microbatches, &found);
    const struct ap_degrees *d = &found.all.degrees, *want = &k->uses.degrees;
    if (found.flops > 0 && found.layers.n > 0 &&
        (d->tensor != want->tensor || d->data != want->data ||
         d->context != want->context || d->exchange != want->exchange ||
         (d->expert > 0 &&
          (d->expert != want->expert || d->expert_tensor != want->expert_tensor)) ||
         (d->tensor > 1 && d->sequence != want->sequence))) {
        struct ap_buf is = {0};
        ap_degrees_print(d, &is);
        rc = ap_err_set(err, "the model's plan would be %s", is.data);
        ap_buf_free(&is);
    }
    ap_arena_free(&scratch);
    return rc;
}

int line_shard(const struct line_maker *k, struct ap_arena *arena, struct ap_plan *plan,
               struct ap_err *err)
{
    return line_plan_degrees(arena, &k->uses, plan, err) ||
                   check_even(k, arena, plan, err)
               ? -1
               : 0;
}

static int shard_stage(void *ctx, int s, struct ap_arena *arena, struct ap_err *err)
{
    const struct line_maker *k = ctx;
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
    if (line_shard(k, arena, &st->sharding.plan, &why) ||
        check_degrees(k, &st->sharding.plan, &why))
        return ap_err_set(err, "stage %d: %s", s, why.msg);
    return 0;
}

/* ---- the plan ---- */

int line_lay(struct line_maker *k, struct ap_err *err)
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
    if (k->model->batch == 0)
        return ap_err_set(err, "no input has a batch dimension");
    if (ap_line_complete(&k->line, ap_cluster_devices(k->model->of.cluster), err) ||
        ap_line_divide(line, k->model->batch, k->model->layers.n, k->model->experts,
                       &stages->microbatches, err) ||
        lay_mesh(k, err) || cut_blocks(k, err))
        return -1;
    stages->line = ap_line_text(k->arena, line);
    return 0;
}

/* A line that says ring has one in some stage. */
static int check_ring(const struct line_maker *k, struct ap_err *err)
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

int line_build(struct line_maker *k, struct ap_err *err)
{
    if (line_lay(k, err))
        return -1;
    for (int s = 0; s < k->stages->n; s++)
        place(k, s);
    return line_list_recomputed(k, err) || line_list_offloaded(k, err) ||
                   ap_in_arenas(k->arena, k->stages->n, shard_stage, k, err) ||
                   check_ring(k, err)
               ? -1
               : 0;
}
