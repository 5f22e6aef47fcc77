/*
 * Problem: price a pipeline whose stages are whole layers on equal sets of devices, each
 * split in the same way. Idea: the graph is cut into blocks anew, one per layer, one
 * before and one after them; stages are runs of these on consecutive devices of the plan
 * at hand; each stage has the plan of the degrees (plan/degrees_plan.c). It is priced
 * like any pipelined plan.
 */
#include "trainer.h"

#include <stdlib.h>
#include <string.h>

#include "line/line_plan.h"

/* ---- layers of stages ---- */

/* Stage with most FLOPs of each layer, and whether others have some. */
static int *stages_of_layers(struct ap_arena *arena, const struct ap_staged_graph *of,
                             const struct ap_layers *layers,
                             const struct ap_stages *stages, int *n_cut)
{
    const int *stage = ap_stages_of_nodes(arena, stages, of->graph, of->blocks);
    double *flops = AP_NEW_N(arena, layers->n * stages->n + 1, double);
    int *best = AP_NEW_N(arena, layers->n + 1, int);

    for (int i = 0; i < of->graph->n_nodes; i++)
        if (layers->of_node[i] >= 0 && of->graph->nodes[i].phase == AP_FORWARD)
            flops[layers->of_node[i] * stages->n + stage[i]] +=
                ap_node_heavy_flops(of->graph, i);
    for (int l = 0; l < layers->n; l++) {
        int with = 0;
        for (int s = 0; s < stages->n; s++) {
            const double *own = &flops[l * stages->n];
            with += own[s] > 0;
            best[l] = own[s] > own[best[l]] ? s : best[l];
        }
        *n_cut += with > 1;
    }
    return best;
}

int trainer_layers_by_stage(struct ap_arena *arena, const struct trainer_model *model,
                            struct ap_notes *notes, struct ap_line *line,
                            struct ap_err *err)
{
    const struct ap_layers *layers = model->layers;
    int *n = AP_NEW_N(arena, model->stages->n + 1, int), cut = 0;

    line->layers = n;
    line->n_layers = model->stages->n;
    if (layers->n == 0)
        return ap_err_set(err, "the names of the weights do not number the layers, which "
                               "stages are made of");
    if (layers->n_stems > 1)
        return ap_err_set(err,
                          "the model has layers of %d kinds (\"%s\", \"%s\"), and stages "
                          "are made of one",
                          layers->n_stems, layers->layer[0].stem,
                          layers->layer[layers->n - 1].stem);
    const int *best = stages_of_layers(arena, model->of, layers, model->stages, &cut);
    for (int l = 0; l < layers->n; l++) {
        if (l && best[l] < best[l - 1])
            return ap_err_set(err, "layer %d is in stage %d, and layer %d in stage %d",
                              l - 1, best[l - 1], l, best[l]);
        n[best[l]]++;
    }
    if (cut)
        ap_note(notes,
                "stages cut %d layer%s in two: they go whole to the stage with "
                "most of their FLOPs",
                cut, cut == 1 ? "" : "s");
    return 0;
}

void trainer_even_layers(struct ap_arena *arena, struct trainer_plan *p)
{
    const int n = ap_line_stages(&p->s.line), layers = p->n_layers;
    int *count = AP_NEW_N(arena, n + 1, int);

    for (int i = 0; i < n; i++)
        count[i] = (i + 1) * layers / n - i * layers / n;
    p->s.line.layers = count;
    p->s.line.n_layers = n;
}

/* ---- blocks ---- */

/*
 * Block of each operator: 0 before the layers, l + 1 of layer l, n_layers + 1 after
 * them. An operator that no layer owns goes with its operands, or after the layers if it
 * has a name of its own.
 */
static void cut_layers(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_layers *layers, int *block)
{
    int *ids, n = ap_blocks_operators(arena, g, &ids);

    memset(block, -1, sizeof *block * (size_t)g->n_nodes);
    for (int i = 0; i < n; i++) {
        const struct ap_node *node = &g->nodes[ids[i]];
        int at = 0, layer = layers->of_node[ids[i]];
        for (int k = 0; k < node->n_in; k++)
            at = block[node->in[k]] > at ? block[node->in[k]] : at;
        if (layer >= 0)
            at = layer + 1 > at ? layer + 1 : at;
        else if (at == layers->n &&
                 (*node->scope || ap_ops[node->op].class == AP_CLASS_HEAVY))
            at = layers->n + 1;
        block[ids[i]] = at;
    }
}

/* Blocks without operators go; first[stage] = the stage's first block, one more at the
 * end. */
static int number_blocks(struct ap_arena *arena, const struct ap_graph *g, int *block,
                         const struct trainer_plan *p, int *first, struct ap_err *err)
{
    const struct ap_line *l = &p->s.line;
    int n = p->n_layers + 2, used = 0, layer = 0;
    int *number = AP_NEW_N(arena, n + 1, int);

    for (int i = 0; i < g->n_nodes; i++)
        if (block[i] >= 0)
            number[block[i]] = 1;
    for (int b = 0; b < n; b++)
        number[b] = number[b] ? used++ : -1;
    for (int i = 0; i < g->n_nodes; i++)
        if (block[i] >= 0)
            block[i] = number[block[i]];
    for (int s = 0; s < l->n_layers; s++) {
        layer += l->layers[s];
        int from = s ? layer - l->layers[s] + 1 : 0;
        int to = s == l->n_layers - 1 ? n : layer + 1;
        first[s] = -1;
        for (int b = from; b < to && first[s] < 0; b++)
            first[s] = number[b];
        if (first[s] < 0)
            return ap_err_set(err, "stage %d has no layer", s);
    }
    first[l->n_layers] = used;
    return used;
}

/* ---- what is recomputed ---- */

struct stage_builder {
    struct ap_arena *arena;
    const struct ap_staged_graph *of;
    const struct ap_line_model *model;
    const struct trainer_plan *plan;
    const int *block_of;
    const int64_t *devices; /* of the whole plan */
    int64_t per_stage;
};

static void select_nodes(const struct stage_builder *b, struct ap_stage *st)
{
    const bool *again = b->model->again[b->plan->s.line.recompute];
    int *ids = AP_NEW_N(b->arena, st->sub.graph.n_nodes + 1, int);

    for (int i = 0; i < st->sub.graph.n_nodes; i++)
        if (again[st->sub.source[i]])
            ids[st->n_recomputed++] = st->sub.source[i];
    st->recomputed = ids;
    if (st->n_recomputed == 0)
        st->recompute = AP_RECOMPUTE_NONE;
}

/* ---- stages ---- */

static int compare_device(const void *pa, const void *pb)
{
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return a < b ? -1 : a > b;
}

/* All devices of the stages, ascending; returns how many. */
static int64_t list_devices(struct ap_arena *arena, const struct ap_stages *stages,
                            int64_t **devices)
{
    int64_t n = 0;

    for (int i = 0; i < stages->n / stages->chunks; i++)
        n += stages->stage[i].n_devices;
    *devices = AP_NEW_N(arena, n + 1, int64_t);
    n = 0;
    for (int i = 0; i < stages->n / stages->chunks; i++) {
        const struct ap_stage *st = &stages->stage[i];
        memcpy(*devices + n, st->devices, sizeof *st->devices * (size_t)st->n_devices);
        n += st->n_devices;
    }
    qsort(*devices, (size_t)n, sizeof **devices, compare_device);
    return n;
}

/*
 * A mesh with one axis per use, and the degrees on it. Experts that are not tensor
 * parallel lie on the devices of the tensor axis first, then on those that share the
 * batch.
 */
static void lay_out(const struct ap_degrees *d, struct ap_axis_uses *out,
                    struct ap_mesh *mesh)
{
    int64_t shard = d->zero ? d->shard / d->context : 1, copies = d->data / shard;
    bool whole = d->expert_tensor == 1; /* experts are not split */
    int64_t experts = whole && d->expert > 1 ? d->expert / d->tensor : d->expert;
    if (experts < 1 || (shard % experts && copies % experts))
        experts = 1;
    bool inside = shard > 1 && shard % experts == 0;
    const struct {
        const char *name;
        int64_t size;
        enum ap_axis_split use, expert_use;
        int64_t zero;
    } axes[] = {
        {"dp", inside ? copies : copies / experts, AP_USE_DATA, AP_USE_DATA, 0},
        {"shard", inside ? shard / experts : shard, AP_USE_DATA, AP_USE_DATA, d->zero},
        {"ep", experts, AP_USE_DATA, AP_USE_EXPERT, inside ? d->zero : 0},
        {"cp", d->context, AP_USE_CONTEXT, AP_USE_CONTEXT, d->zero},
        {"tp", d->tensor, AP_USE_TENSOR, whole ? AP_USE_EXPERT : AP_USE_TENSOR, 0},
    };
    const size_t n = sizeof axes / sizeof *axes;

    *out = (struct ap_axis_uses){.degrees.sequence = d->sequence};
    *mesh = (struct ap_mesh){.n_axes = 0};
    for (size_t i = 0; i < n; i++) {
        int a = mesh->n_axes;
        if (axes[i].size == 1 && (i + 1 < n || a > 0))
            continue;
        mesh->size[a] = axes[i].size;
        mesh->name[a] = axes[i].name;
        out->use[a] = axes[i].use;
        out->expert_use[a] = axes[i].expert_use;
        out->zero[a] = (uint8_t)axes[i].zero;
        mesh->n_axes++;
    }
    ap_degrees_count(out, mesh, d->expert > 0);
}

static int build_stage(const struct stage_builder *b, int i, int lo, int hi,
                       struct ap_stage *st, struct ap_err *err)
{
    const struct ap_line *line = &b->plan->s.line;
    struct ap_axis_uses uses;
    int *blocks = AP_NEW_N(b->arena, hi - lo + 1, int);

    for (int k = lo; k < hi; k++)
        blocks[k - lo] = k;
    *st = (struct ap_stage){
        .n_blocks = hi - lo,
        .blocks = blocks,
        .hosts = 1,
        .devices_per_host = b->per_stage,
        .n_devices = b->per_stage,
        .devices = b->devices + i % line->pipeline * b->per_stage,
        .recompute = line->recompute == AP_LINE_RECOMPUTE_NONE   ? AP_RECOMPUTE_NONE
                     : line->recompute == AP_LINE_RECOMPUTE_FULL ? AP_RECOMPUTE_ALL
                                                                 : AP_RECOMPUTE_SELECTED};
    if (ap_subgraph_blocks(b->arena, b->of->graph, b->block_of, lo, hi - 1, &st->sub,
                           err) ||
        ap_nests_build(b->arena, &st->sub.graph, &st->nests, err))
        return -1;
    st->sharding =
        (struct ap_sharding){.plan = {.graph = &st->sub.graph, .nests = &st->nests},
                             .algorithm = "trainer",
                             .cost_model = ap_cost_variant_names[AP_COST_DEFAULT],
                             .stopped = "rule"};
    lay_out(&line->degrees, &uses, &st->sharding.plan.mesh);
    if (st->recompute == AP_RECOMPUTE_SELECTED)
        select_nodes(b, st);
    return ap_degrees_plan(b->arena, &uses, &st->sharding.plan, err);
}

int trainer_price_stages(struct ap_arena *arena, const struct trainer_model *model,
                         const struct trainer_plan *p, struct trainer_price *price,
                         struct ap_err *err)
{
    const struct ap_staged_graph *of = model->of;
    const struct ap_stages *stages = model->stages;
    int *block = AP_NEW_N(arena, of->graph->n_nodes + 1, int);
    const struct ap_line *line = &p->s.line;
    int *first = AP_NEW_N(arena, line->n_layers + 1, int);
    int64_t *devices, n_devices = list_devices(arena, stages, &devices);
    const struct ap_degrees *d = &line->degrees;
    struct ap_pipeline_price out;

    cut_layers(arena, of->graph, model->layers, block);
    int n = number_blocks(arena, of->graph, block, p, first, err);
    if (n < 0)
        return -1;
    ap_blocks_carry(arena, of->graph, n, block);
    struct ap_blocks blocks = {.algorithm = "trainer", .n = n, .block_of = block};
    if (ap_blocks_check(arena, of->graph, &blocks, err))
        return -1;
    const struct ap_staged_graph again = {of->graph, of->nests, &blocks, of->cluster};
    struct ap_line_model lines;
    ap_line_model_find(arena, &again, &lines);
    const struct stage_builder b = {
        arena, &again, &lines, p, block, devices, d->tensor * d->data * d->context};
    if (b.per_stage * line->pipeline > n_devices)
        return ap_err_set(err, "%lld sets of %lld devices are more than %lld",
                          (long long)line->pipeline, (long long)b.per_stage,
                          (long long)n_devices);
    struct ap_stages now = {.algorithm = "trainer",
                            .stopped = "rule",
                            .schedule = line->schedule,
                            .chunks = (int)line->chunks,
                            .microbatches = p->s.microbatches,
                            .each = stages->each,
                            .resharding = stages->resharding,
                            .overlap = line->overlap,
                            .trainer = ap_line_trainer(line),
                            .n_devices = stages->n_devices,
                            .n = line->n_layers,
                            .stage = AP_NEW_N(arena, line->n_layers, struct ap_stage)};
    for (int i = 0; i < now.n; i++)
        if (build_stage(&b, i, first[i], first[i + 1], &now.stage[i], err))
            return -1;
    if (ap_pipeline_price(arena, &again, &now, &out, err))
        return -1;
    *price = (struct trainer_price){out.result.step_sec, out.peak_bytes};
    return 0;
}
