/*
 * Problem: the section of the plan that a line says (line_plan.h), with its price.
 * Idea: stages are priced as ap-cost prices them. Cost: that of the price.
 */
#include "base/threads.h"
#include "grid/grid_impl.h"
#include "pipeline/pipeline_program.h"

static int write_stage(void *ctx, int s, struct ap_arena *arena, struct ap_err *err)
{
    const struct line_maker *k = ctx;
    struct ap_err why = {0};

    if (ap_stage_put_sharding(arena, k->model->of.cluster, &k->stages->stage[s], &why))
        return ap_err_set(err, "stage %d: %s", s, why.msg);
    return 0;
}

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

void grid_model_find(struct ap_arena *arena, const struct stage_model *m,
                     struct line_model *model)
{
    const struct ap_staged_graph of = {&m->graph, &m->nests, &m->blocks, &m->cluster};

    line_model_find(arena, &of, model);
}

int grid_build(struct line_maker *k, const struct stage_model *m,
               struct ap_pipeline_price *price, struct ap_err *err)
{
    const struct ap_stage_microbatch *micro = m->micro.n > 0 ? &m->micro : NULL;

    if (line_build(k, err))
        return -1;
    return ap_pipeline_compare(k->arena, &k->model->of, k->stages, micro, price, err);
}

int grid_write(struct line_maker *k, double step_sec, int64_t peak_bytes,
               struct stage_result *out, struct ap_err *err)
{
    if (ap_in_arenas(k->arena, k->stages->n, write_stage, k, err))
        return -1;
    k->stages->objective_sec = step_sec;
    *out = (struct stage_result){.objective_sec = step_sec, .peak_bytes = peak_bytes};
    out->found = history(k->arena, out, &k->model->of, k->stages);
    ap_stages_to_json(k->stages, &out->json);
    return 0;
}

int grid_plan(struct ap_arena *arena, const struct stage_model *m,
              const struct ap_line *line, struct ap_stages *stages,
              struct stage_result *out, struct ap_err *err)
{
    struct line_model model;
    struct line_maker k = {
        .arena = arena, .model = &model, .line = *line, .stages = stages};
    struct ap_pipeline_price price;

    grid_model_find(arena, m, &model);
    if (grid_build(&k, m, &price, err))
        return -1;
    (void)ap_pipeline_measure(&model.of, stages, 0, &price);
    return grid_write(&k, price.result.step_sec, price.peak_bytes, out, err);
}
