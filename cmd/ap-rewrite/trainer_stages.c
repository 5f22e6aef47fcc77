/*
 * Problem: price a pipeline whose stages are whole layers on equal sets of devices, each
 * split in the same way. Idea: the graph is cut into blocks anew, one per layer, one
 * before and one after them; the line's plan (line/line_plan.h) on the devices of the
 * plan at hand is priced like any pipelined plan.
 */
#include "trainer.h"

#include <stdlib.h>
#include <string.h>

#include "line/line_plan.h"
#include "pipeline/pipeline_program.h"

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

/* ---- price ---- */

static int compare_device(const void *pa, const void *pb)
{
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return a < b ? -1 : a > b;
}

/* The cluster of the first n of all devices of the stages. */
static int take_devices(struct ap_arena *arena, const struct trainer_model *model,
                        int64_t n, struct ap_cluster *cluster, struct ap_err *err)
{
    const struct ap_stages *stages = model->stages;
    const int sets = stages->n / stages->chunks;
    int64_t all = 0, *devices;

    for (int i = 0; i < sets; i++)
        all += stages->stage[i].n_devices;
    if (n > all)
        return ap_err_set(err, "%lld devices are more than %lld", (long long)n,
                          (long long)all);
    devices = AP_NEW_N(arena, all + 1, int64_t);
    all = 0;
    for (int i = 0; i < sets; i++)
        for (int64_t k = 0; k < stages->stage[i].n_devices; k++)
            devices[all++] = stages->stage[i].devices[k];
    qsort(devices, (size_t)all, sizeof *devices, compare_device);
    return ap_cluster_take(model->of->cluster, n, devices, cluster, err);
}

int trainer_price(struct ap_arena *arena, const struct ap_staged_graph *of,
                  const struct ap_stages *stages, struct trainer_price *price,
                  struct ap_err *err)
{
    struct ap_pipeline_price out;

    if (ap_pipeline_price(arena, of, stages, &out, err))
        return -1;
    (void)ap_pipeline_measure(of, stages, &out);
    *price = (struct trainer_price){out.result.step_sec, out.peak_bytes};
    return 0;
}

int trainer_price_stages(struct ap_arena *arena, const struct trainer_model *model,
                         const struct trainer_plan *p, struct trainer_price *price,
                         struct ap_err *err)
{
    const struct ap_graph *g = model->of->graph;
    const struct ap_line *line = &p->s.line;
    const struct ap_degrees *d = &line->degrees;
    int *block = AP_NEW_N(arena, g->n_nodes + 1, int);
    struct ap_blocks blocks = {.algorithm = "layers", .block_of = block};
    struct ap_stages now = {.each = model->stages->each,
                            .resharding = model->stages->resharding};
    struct ap_line_model lines;
    struct ap_cluster cluster;

    blocks.n = ap_layers_cut(arena, g, model->layers, block, err);
    if (blocks.n < 0)
        return -1;
    ap_blocks_carry(arena, g, blocks.n, block);
    if (ap_blocks_check(arena, g, &blocks, err) ||
        take_devices(arena, model, d->tensor * d->data * d->context * line->pipeline,
                     &cluster, err))
        return -1;
    const struct ap_staged_graph of = {g, model->of->nests, &blocks, &cluster};
    ap_line_model_find(arena, &of, &lines);
    lines.batch = p->s.batch; /* may be rounded */
    struct ap_line_maker k = {
        .arena = arena, .model = &lines, .line = *line, .stages = &now};
    return ap_line_build(&k, err) || trainer_price(arena, &of, &now, price, err) ? -1 : 0;
}
