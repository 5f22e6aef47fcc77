/*
 * Problem: the plan that a trainer runs for given degrees, exactly: which layers are in
 * which stage, on which devices, how each stage is sharded, what is recomputed. Idea:
 * layers are counted by the names of the weights and must end where blocks end; all
 * stages have one mesh, whose axes have the uses that the line says
 * (plan/degrees_plan.c); what cannot be divided evenly is refused, since no trainer pads
 * it. Cost: linear in the graph, times stages. Sources: Narayanan et al., SC 2021,
 * sections 2 and 3.1 (order of devices: tensor, data, pipeline); Korthikanti et al.,
 * sections 4.2 (sequence parallelism) and 5 (selective recomputation).
 */
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "grid/grid_impl.h"
#include "pipeline/pipeline_price.h"
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
static int64_t in_host(const struct grid_maker *k, int64_t inside, int64_t size)
{
    const int64_t host = k->m->cluster.levels[0].size;

    if (inside >= host || inside * size <= host || host % inside ||
        size % (host / inside) || k->mesh.n_axes + 2 > AP_MAX_AXES - 1)
        return size;
    return host / inside;
}

static void add_axis(struct grid_maker *k, int degree, int64_t size, const char *name)
{
    const int at = k->mesh.n_axes++;

    k->mesh.size[at] = size;
    k->mesh.name[at] = name;
    k->uses.use[at] = degrees[degree].use;
    k->uses.expert_use[at] = degree == EXPERT ? AP_USE_EXPERT : degrees[degree].use;
    if (degree != TENSOR)
        k->uses.zero[at] = (uint8_t)k->line->degrees.zero;
}

/* ZeRO shards over the innermost axes of `shard` devices in all. */
static int limit_shards(struct grid_maker *k, struct ap_err *err)
{
    int64_t devices = 1;

    for (int a = k->mesh.n_axes - 1; a >= 0 && k->line->degrees.shard > 0; a--) {
        if (k->uses.use[a] == AP_USE_TENSOR)
            continue;
        if (devices >= k->line->degrees.shard)
            k->uses.zero[a] = 0;
        else
            devices *= k->mesh.size[a];
    }
    if (k->line->degrees.shard > 0 && devices != k->line->degrees.shard)
        return ap_err_set(err,
                          "shard=%lld: the nearest groups of devices with other data "
                          "have %lld",
                          (long long)k->line->degrees.shard, (long long)devices);
    return 0;
}

/* The mesh of all stages. Axes are split at the border of hosts, so that collectives go
 * inside hosts first. */
static int lay_mesh(struct grid_maker *k, struct ap_err *err)
{
    const struct ap_line *l = k->line;
    const struct ap_degrees *d = &l->degrees;
    const int64_t devices = ap_cluster_devices(&k->m->cluster);
    const int64_t model = ap_mul64(ap_mul64(d->tensor, d->context), l->pipeline);
    const int64_t data = d->data ? d->data : devices / model;

    if (data == 0 || ap_mul64(data, model) != devices)
        return ap_err_set(err,
                          "tp=%lld x cp=%lld x pp=%lld x dp=%lld are %lld devices, "
                          "cluster %s has %lld",
                          (long long)d->tensor, (long long)d->context,
                          (long long)l->pipeline, (long long)data,
                          (long long)ap_mul64(data, model), k->m->cluster.name,
                          (long long)devices);
    if (data % d->expert)
        return ap_err_set(err, "ep=%lld does not divide dp=%lld", (long long)d->expert,
                          (long long)data);
    const int64_t size[N_DEGREES] = {data / d->expert, d->expert, d->context, d->tensor};
    int64_t inside = d->tensor * d->context * data; /* devices of a step on the axis */
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

static int cut_batch(struct grid_maker *k, struct ap_err *err)
{
    const int64_t at_once = ap_mul64(k->uses.degrees.data, k->line->micro_batch);
    const int64_t n = k->m->batch / at_once;

    if (k->m->batch == 0)
        return ap_err_set(err, "no input has a batch dimension");
    if (k->m->batch % at_once)
        return ap_err_set(err, "dp=%lld x mbs=%lld do not divide the batch of %lld",
                          (long long)k->uses.degrees.data,
                          (long long)k->line->micro_batch, (long long)k->m->batch);
    if (k->line->chunks > 1 && n % k->line->pipeline)
        return ap_err_set(
            err, "vpp=%lld: %lld microbatches are not a multiple of pp=%lld",
            (long long)k->line->chunks, (long long)n, (long long)k->line->pipeline);
    k->stages->microbatches = n;
    return 0;
}

/* Stage s is on the s modulo pp-th part of the devices. */
static void place(const struct grid_maker *k, int s)
{
    struct ap_stage *st = &k->stages->stage[s];
    const int64_t host = k->m->cluster.levels[0].size;
    const int64_t n = ap_mesh_devices(&k->mesh);
    int64_t *list = AP_NEW_N(k->arena, n, int64_t);

    for (int64_t i = 0; i < n; i++)
        list[i] = s % k->line->pipeline * n + i;
    st->n_devices = n;
    st->devices = list;
    st->devices_per_host = n < host ? n : host;
    st->hosts = (n + host - 1) / host;
}

/* ---- layers ---- */

/* First and last block of each layer. */
static void span_layers(struct ap_arena *arena, struct grid_facts *facts)
{
    const struct ap_graph *g = &facts->m->graph;
    int *first = AP_NEW_N(arena, facts->layers.n + 1, int);
    int *last = AP_NEW_N(arena, facts->layers.n + 1, int);

    for (int i = 0; i < facts->layers.n; i++) {
        first[i] = facts->m->blocks.n;
        last[i] = -1;
    }
    facts->first = first;
    facts->last = last;
    for (int v = 0; v < g->n_nodes; v++) {
        int layer = facts->layers.of_node[v], block = facts->m->blocks.block_of[v];
        if (layer < 0 || g->nodes[v].phase != AP_FORWARD)
            continue;
        first[layer] = block < first[layer] ? block : first[layer];
        last[layer] = block > last[layer] ? block : last[layer];
    }
}

static int layers_of_stage(const struct grid_maker *k, int s)
{
    return k->line->n_layers ? k->line->layers[s] : k->facts->layers.n / k->stages->n;
}

static int check_layers(const struct grid_maker *k, struct ap_err *err)
{
    int64_t sum = 0;

    if (k->facts->layers.n == 0 && k->stages->n > 1)
        return ap_err_set(err, "the names of the weights number no layers");
    for (int s = 0; s < k->stages->n; s++)
        sum += layers_of_stage(k, s);
    if (sum == k->facts->layers.n || k->stages->n == 1)
        return 0;
    if (k->line->n_layers)
        return ap_err_set(err, "layers: %lld, the model has %d", (long long)sum,
                          k->facts->layers.n);
    return ap_err_set(err,
                      "%d layers in %d stages: layers=A:B:... says how many are in each",
                      k->facts->layers.n, k->stages->n);
}

/* Blocks of each stage. */
static int cut_blocks(struct grid_maker *k, struct ap_err *err)
{
    const int n_blocks = k->m->blocks.n;
    const int *first = k->facts->first, *last = k->facts->last;
    int layer = 0, block = 0;

    if (check_layers(k, err))
        return -1;
    for (int s = 0; s < k->stages->n; s++) {
        struct ap_stage *st = &k->stages->stage[s];
        int end = n_blocks; /* after its last block */
        layer += layers_of_stage(k, s);
        if (s + 1 < k->stages->n && layer < k->facts->layers.n)
            end = first[layer];
        else if (s + 1 < k->stages->n)
            end = last[layer - 1] + 1;
        if (layer > 0 && layer < k->facts->layers.n && end <= last[layer - 1])
            return ap_err_set(err,
                              "stage %d ends inside block %d, which has layers %d and "
                              "%d (ap-coarsen --algorithm layers)",
                              s, end, layer - 1, layer);
        if (end <= block)
            return ap_err_set(err, "stage %d has no blocks%s", s,
                              n_blocks < k->facts->layers.n + 2
                                  ? " (ap-coarsen --algorithm layers)"
                                  : "");
        int *list = AP_NEW_N(k->arena, end - block, int);
        while (block < end)
            list[st->n_blocks++] = block++;
        st->blocks = list;
    }
    return 0;
}

/* ---- what is recomputed ---- */

static bool is_contraction(const struct ap_graph *g, int v)
{
    return g->nodes[v].op == AP_OP_DOT || g->nodes[v].op == AP_OP_CONVOLUTION;
}

/* A contraction of two values that both depend on the inputs. */
static bool is_of_activations(const struct ap_graph *g, const uint8_t *from, int v)
{
    return is_contraction(g, v) && from[g->nodes[v].in[0]] == AP_FROM_INPUTS &&
           from[g->nodes[v].in[1]] == AP_FROM_INPUTS;
}

/* [node]: made of positions and scalars, one of which is an input: random numbers. */
static const bool *find_drawn(struct ap_arena *arena, const struct grid_facts *facts)
{
    const struct ap_graph *g = &facts->m->graph;
    bool *drawn = AP_NEW_N(arena, g->n_nodes, bool);

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        drawn[v] = n->op != AP_OP_PARAMETER && n->shape.rank > 0 &&
                   facts->origins[v] == AP_FROM_INPUTS;
        for (int i = 0; i < n->n_in; i++)
            drawn[v] &= drawn[n->in[i]] || g->nodes[n->in[i]].shape.rank == 0 ||
                        facts->origins[n->in[i]] == AP_FROM_CONSTANTS;
    }
    return drawn;
}

/* Attention's scores, and what is made of them up to the values' contraction, with the
 * random numbers that are drawn there. */
static void mark_scores(struct ap_arena *arena, const struct grid_facts *facts,
                        bool *again)
{
    const struct ap_graph *g = &facts->m->graph;
    const uint8_t *from = facts->origins;
    bool *behind = AP_NEW_N(arena, g->n_nodes, bool); /* scores */
    bool *ahead = AP_NEW_N(arena, g->n_nodes, bool);  /* of such a contraction */
    const bool *drawn = find_drawn(arena, facts);

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        behind[v] = n->phase == AP_FORWARD && is_of_activations(g, from, v);
        for (int i = 0; i < n->n_in && n->phase == AP_FORWARD && !is_contraction(g, v);
             i++)
            behind[v] |= behind[n->in[i]];
    }
    for (int v = g->n_nodes - 1; v >= 0; v--) {
        const struct ap_node *n = &g->nodes[v];
        bool use = n->phase == AP_FORWARD &&
                   (is_of_activations(g, from, v) || (ahead[v] && !is_contraction(g, v)));
        for (int i = 0; i < n->n_in && use; i++)
            ahead[n->in[i]] = true;
        again[v] = ahead[v] && (behind[v] || drawn[v]);
    }
}

/* All of the layers' forward but what other blocks read; with `operators` less what
 * attention and every other contraction make. */
static void mark_layers(struct ap_arena *arena, const struct grid_facts *facts,
                        bool operators, bool *again)
{
    const struct ap_graph *g = &facts->m->graph;
    const int *block_of = facts->m->blocks.block_of;
    const uint8_t *from = facts->origins;
    bool *has_layer = AP_NEW_N(arena, facts->m->blocks.n, bool), odd = false;

    for (int v = 0; v < g->n_nodes; v++)
        if (facts->layers.of_node[v] >= 0)
            has_layer[block_of[v]] = true;
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        bool keep = n->phase != AP_FORWARD || n->op == AP_OP_PARAMETER ||
                    from[v] != AP_FROM_INPUTS || !has_layer[block_of[v]];
        for (int u = g->user_start[v]; u < g->user_start[v + 1] && !keep; u++)
            keep = g->nodes[g->users[u]].phase == AP_FORWARD &&
                   block_of[g->users[u]] != block_of[v];
        if (operators && !keep && is_contraction(g, v)) {
            if (n->attrs->attention || is_of_activations(g, from, v))
                keep = true;
            else
                keep = odd = !odd;
        } else if (operators && n->attrs->attention) {
            keep = true;
        }
        again[v] = !keep;
    }
}

void grid_facts_find(struct ap_arena *arena, const struct stage_model *m,
                     struct grid_facts *facts)
{
    bool *again[AP_N_LINE_RECOMPUTES];

    *facts = (struct grid_facts){.m = m, .origins = ap_blocks_origins(arena, &m->graph)};
    ap_layers_find(arena, &m->graph, &m->nests, &facts->layers);
    span_layers(arena, facts);
    for (int i = 0; i < AP_N_LINE_RECOMPUTES; i++)
        facts->again[i] = again[i] = AP_NEW_N(arena, m->graph.n_nodes, bool);
    mark_scores(arena, facts, again[AP_LINE_RECOMPUTE_SELECTIVE]);
    mark_layers(arena, facts, true, again[AP_LINE_RECOMPUTE_OPERATORS]);
    mark_layers(arena, facts, false, again[AP_LINE_RECOMPUTE_FULL]);
}

static void list_recomputed(struct grid_maker *k)
{
    const bool *again = k->facts->again[k->line->recompute];
    const int *block_of = k->m->blocks.block_of, n_nodes = k->m->graph.n_nodes;
    int *stage_of = AP_NEW_N(k->arena, k->m->blocks.n, int);
    int *count = AP_NEW_N(k->arena, k->stages->n, int);
    int **list = AP_NEW_N(k->arena, k->stages->n, int *);

    for (int s = 0; s < k->stages->n; s++)
        for (int b = 0; b < k->stages->stage[s].n_blocks; b++)
            stage_of[k->stages->stage[s].blocks[b]] = s;
    for (int v = 0; v < n_nodes; v++)
        count[stage_of[block_of[v]]] += again[v];
    for (int s = 0; s < k->stages->n; s++) {
        struct ap_stage *st = &k->stages->stage[s];
        list[s] = AP_NEW_N(k->arena, count[s] + 1, int);
        st->recomputed = list[s];
        st->recompute = count[s] ? AP_RECOMPUTE_SELECTED : AP_RECOMPUTE_NONE;
    }
    for (int v = 0; v < n_nodes; v++)
        if (again[v]) {
            const int s = stage_of[block_of[v]];
            list[s][k->stages->stage[s].n_recomputed++] = v;
        }
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
           !is_of_activations(g, from, v);
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
static int check_contraction(const struct grid_maker *k, const struct ap_plan *plan,
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
    if (is_of_activations(plan->graph, from, nest->members[0]) && !is_of_heads(nest, c) &&
        !is_beside_experts(plan->graph, from, nest->members[0]))
        return ap_err_set(err, "%s=%lld does not divide the heads of %s (%s)", name, size,
                          n->name, n->scope);
    return 0;
}

static int check_even(const struct grid_maker *k, struct ap_arena *arena,
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
static int check_degrees(const struct grid_maker *k, const struct ap_plan *plan,
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

int grid_shard(const struct grid_maker *k, struct ap_arena *arena, struct ap_plan *plan,
               struct ap_err *err)
{
    return ap_degrees_plan(arena, &k->uses, plan, err) ||
                   check_even(k, arena, plan, err) || check_degrees(k, plan, err)
               ? -1
               : 0;
}

static int shard_stage(void *ctx, int s, struct ap_arena *arena, struct ap_err *err)
{
    const struct grid_maker *k = ctx;
    const struct ap_graph *g = &k->m->graph;
    struct ap_stage *st = &k->stages->stage[s];
    struct ap_err why = {0};

    if (ap_subgraph_blocks(arena, g, k->m->blocks.block_of, st->blocks[0],
                           st->blocks[st->n_blocks - 1], &st->sub, &why) ||
        ap_nests_build(arena, &st->sub.graph, &st->nests, &why))
        return ap_err_set(err, "stage %d: %s", s, why.msg);
    st->sharding = (struct ap_sharding){
        .plan = {.graph = &st->sub.graph, .nests = &st->nests, .mesh = k->mesh},
        .algorithm = "grid",
        .cost_model = ap_cost_variant_names[AP_COST_DEFAULT],
        .stopped = "rule"};
    if (grid_shard(k, arena, &st->sharding.plan, &why))
        return ap_err_set(err, "stage %d: %s", s, why.msg);
    return 0;
}

static int write_stage(void *ctx, int s, struct ap_arena *arena, struct ap_err *err)
{
    const struct grid_maker *k = ctx;
    struct ap_err why = {0};

    if (ap_stage_put_sharding(arena, &k->m->cluster, &k->stages->stage[s], &why))
        return ap_err_set(err, "stage %d: %s", s, why.msg);
    return 0;
}

/* ---- the plan ---- */

static const char *history(struct ap_arena *arena, const struct stage_result *r,
                           const struct ap_staged_graph *of, const struct ap_stages *s)
{
    struct ap_buf out = {0};

    ap_put_str(&out, "words", ap_stages_words(arena, of, s));
    ap_put_key(&out, "objective_sec");
    ap_json_num(&out, r->objective_sec);
    const char *text = ap_arena_strdup(arena, out.data);
    ap_buf_free(&out);
    return text;
}

int grid_lay(struct grid_maker *k, struct ap_err *err)
{
    const struct ap_line *line = k->line;
    struct ap_stages *stages = k->stages;

    stages->n = ap_line_stages(line);
    stages->stage = AP_NEW_N(k->arena, stages->n, struct ap_stage);
    stages->algorithm = "grid";
    stages->stopped = "rule";
    stages->schedule = line->schedule;
    stages->chunks = (int)line->chunks;
    stages->overlap = line->overlap;
    stages->trainer = ap_line_trainer(line);
    stages->n_devices = ap_cluster_devices(&k->m->cluster);
    return lay_mesh(k, err) || cut_batch(k, err) || cut_blocks(k, err) ? -1 : 0;
}

void grid_place(const struct grid_maker *k)
{
    for (int s = 0; s < k->stages->n; s++)
        place(k, s);
}

/* A line that says ring has one in some stage. */
static int check_ring(const struct grid_maker *k, struct ap_err *err)
{
    for (int s = 0; s < k->stages->n && k->line->degrees.ring; s++) {
        const struct ap_plan *plan = &k->stages->stage[s].sharding.plan;
        for (int i = 0; i < plan->nests->n; i++)
            if (ap_choice_ring_axis(&plan->nests->nest[i], &plan->mesh,
                                    &plan->choice[i]) >= 0)
                return 0;
    }
    return k->line->degrees.ring ? ap_err_set(err, "ring: no attention has one (ap-fuse)")
                                 : 0;
}

int grid_build(struct grid_maker *k, struct ap_pipeline_price *price, struct ap_err *err)
{
    const struct stage_model *m = k->m;
    const struct ap_staged_graph of = {&m->graph, &m->nests, &m->blocks, &m->cluster};
    struct ap_pipeline_cache own = {.micro = m->micro.n > 0 ? &m->micro : NULL};

    if (grid_lay(k, err))
        return -1;
    struct ap_stage_priced **stage =
        AP_NEW_N(k->arena, k->stages->n, struct ap_stage_priced *);
    for (int s = 0; s < k->stages->n; s++)
        stage[s] = AP_NEW(k->arena, struct ap_stage_priced);
    own.stage = stage;
    grid_place(k);
    list_recomputed(k);
    return ap_in_arenas(k->arena, k->stages->n, shard_stage, k, err) ||
                   check_ring(k, err) ||
                   ap_pipeline_compare(k->arena, &of, k->stages, &own, price, err)
               ? -1
               : 0;
}

int grid_write(struct grid_maker *k, double step_sec, int64_t peak_bytes,
               struct stage_result *out, struct ap_err *err)
{
    const struct stage_model *m = k->m;
    const struct ap_staged_graph of = {&m->graph, &m->nests, &m->blocks, &m->cluster};

    if (ap_in_arenas(k->arena, k->stages->n, write_stage, k, err))
        return -1;
    k->stages->objective_sec = step_sec;
    *out = (struct stage_result){.objective_sec = step_sec, .peak_bytes = peak_bytes};
    out->found = history(k->arena, out, &of, k->stages);
    ap_stages_to_json(k->stages, &out->json);
    return 0;
}

int grid_plan(struct ap_arena *arena, const struct stage_model *m,
              const struct ap_line *line, struct ap_stages *stages,
              struct stage_result *out, struct ap_err *err)
{
    struct grid_facts facts;
    struct grid_maker k = {
        .arena = arena, .m = m, .facts = &facts, .line = line, .stages = stages};
    struct ap_pipeline_price price;

    grid_facts_find(arena, m, &facts);
    if (grid_build(&k, &price, err))
        return -1;
    return grid_write(&k, price.result.step_sec, price.peak_bytes, out, err);
}
