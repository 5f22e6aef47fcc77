/* A document's plan with its price, and the section that it was read from again where its
 * objective is not the price. */
#include <math.h>
#include <string.h>

#include "price.h"

#include "base/threads.h"
#include "pipeline/pipeline_program.h"
#include "tool/tool.h"

/* The order of the lists that run, if the document has them. */
static int read_order(struct ap_arena *arena, const struct ap_doc *doc,
                      struct cost_input *in, struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "pipeline");
    const struct ap_at at = {NULL, "pipeline", 0};

    if (!section)
        return 0;
    json_t *json = ap_doc_load(doc, section, err);
    int rc = json ? price_read_order(arena, json, &at, &in->of.stages, err) : -1;
    json_decref(json);
    return rc;
}

/* Prices the stages on their schedule. */
static int price_scheduled(struct ap_arena *arena, const struct ap_doc *doc,
                           const struct priced_on *on, struct cost_input *in,
                           struct priced *p, struct ap_err *err)
{
    int rc = read_order(arena, doc, in, err);

    if (rc)
        return rc;
    ap_tool_set_f32_matmul(&in->of.cluster, on->f32_matmul);
    rc = price_stages(arena, in, AP_NEW(arena, struct ap_pipeline_price), p, err);
    if (rc)
        return rc;
    in->by_hand = in->of.stages.objective_sec <= 0;
    return 0;
}

static int price_alone(struct ap_arena *arena, const struct ap_doc *doc,
                       const struct priced_on *on, struct cost_input *in,
                       struct priced *p, struct ap_err *err)
{
    struct ap_planned *of = &in->of;
    struct ap_stage *st = of->stages.stage;
    const struct ap_mesh *mesh = &st->sharding.plan.mesh;
    struct ap_err why = {0};

    in->by_hand = st->sharding.objective_sec <= 0;
    ap_tool_one_kind(&of->cluster);
    ap_tool_set_overlap(&of->cluster, on->overlap);
    ap_tool_set_f32_matmul(&of->cluster, on->f32_matmul);
    if (ap_stage_cost(arena, &of->cluster, st, mesh, &in->cost, err) ||
        ap_cost_init(arena, &in->byte_count, AP_COST_BYTES, &of->cluster, mesh, err))
        return 1;
    if (in->cost.alpa.space)
        ap_plan_results_lie(arena, &st->sub.graph);
    of->graph = st->sub.graph;
    p->name = st->sharding.algorithm;
    return price_plan(arena, in, &st->sharding.plan, p, &why)
               ? ap_err_set(err, "%s: /sharding: %s", doc->file, why.msg)
               : 0;
}

int price_read(struct ap_arena *arena, const struct ap_doc *doc,
               const struct priced_on *on, struct cost_input *in, struct priced *p,
               struct ap_err *err)
{
    int rc = (on->alone ? ap_doc_alone : ap_doc_planned)(arena, doc, on->cluster_path,
                                                         on->cluster, &in->of, err);

    if (rc)
        return rc;
    if (in->of.stages.alone)
        return price_alone(arena, doc, on, in, p, err);
    rc = price_scheduled(arena, doc, on, in, p, err);
    if (rc && err->msg[0] == '/')
        ap_doc_err(doc, err);
    return rc;
}

int price_program(struct ap_arena *arena, const struct ap_doc *doc,
                  const struct cost_input *in, struct priced *p, struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "program");
    const struct ap_at at = {.key = "program"};
    struct ap_pipeline_program one;

    if (!section || p->schedule)
        return 0;
    json_t *json = ap_doc_load(doc, section, err);
    int rc = json ? ap_pipeline_from_json(arena, json, &at, &one, err) : -1;
    json_decref(json);
    if (rc)
        return ap_doc_err(doc, err);
    const struct ap_program *prog = &one.stage[0].prog;
    price_packed(arena, in, prog, p);
    price_kernels(arena, in, prog, p);
    return 0;
}

/* ---- the section again ---- */

/*
 * An objective that is not what the plan costs here (edited by hand, or another cluster)
 * is replaced, and gets no bound: what was proven, if anything, was of another question.
 */
struct ap_buf price_correct(struct ap_arena *arena, struct cost_input *in,
                            const struct priced *p, struct ap_err *err)
{
    struct ap_stages *s = &in->of.stages;
    struct ap_sharding *one = &s->stage[0].sharding;
    const double sec = p->planned_sec;
    struct ap_buf json = {0};

    if (!p->schedule && !one->stopped)
        return json; /* there is none: one device */
    if (!in->by_hand && fabs(s->objective_sec - sec) <= 1e-9 * sec)
        return json;
    if (!in->by_hand)
        ap_warn("/%s: objective_sec %.9g is not what the plan costs, %.9g: corrected, "
                "and its bound dropped",
                p->schedule ? "stages" : "sharding", s->objective_sec, sec);
    if (!p->schedule) {
        one->objective_sec = sec;
        one->lower_bound_sec = 0;
        one->stopped = in->by_hand ? one->stopped : "given";
        if (!ap_stage_put_sharding(arena, &in->of.cluster, s->stage, err))
            ap_buf_puts(&json, s->stage->sharding_json);
        return json;
    }
    s->objective_sec = sec;
    s->lower_bound_sec = 0;
    s->stopped = "given";
    for (int i = 0; i < s->n; i++)
        if (ap_stage_put_sharding(arena, &in->of.cluster, &s->stage[i], err))
            return json;
    ap_stages_to_json(s, &json);
    return json;
}
