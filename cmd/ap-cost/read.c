/*
 * Problem: a document has a plan of stages (`stages`), or one sharding of the whole graph
 * (`sharding`), or none. Idea: all are one kind of plan, and a sharding is one of a
 * single stage: this file makes it so, prices it, and writes the section that was read
 * when its objective is not the price. Cost: linear in the document.
 */
#include <math.h>
#include <string.h>

#include "price.h"

#include "base/threads.h"
#include "pipeline/pipeline_program.h"
#include "tool/tool.h"

/* ---- a plan with a schedule ---- */

struct reading {
    const struct ap_doc *doc;
    const struct priced_on *on;
    struct cost_input *in;
};

/* Of the whole graph in one round, of its stages in the other. */
static int read_half(void *ctx, int i, struct ap_arena *arena, struct ap_err *err)
{
    const struct reading *r = ctx;
    struct cost_input *in = r->in;

    if (i == 0 && in->nests.nest)
        return 0;
    return i == 0 ? ap_nests_build(arena, &in->graph, &in->nests, err)
                  : ap_doc_stages(arena, r->doc, &in->graph, r->on->cluster_path,
                                  r->on->cluster, &in->blocks, &in->cluster, &in->stages,
                                  err);
}

/*
 * The price of memory that planners go by is a sum of values, without what is lost in
 * packing and without copies that stay from one phase to the next. The programs' buffers
 * are what a device needs.
 */
static const int64_t *plan_buffers(struct ap_arena *arena, const struct cost_input *in)
{
    const struct ap_staged_graph of = {&in->graph, &in->nests, &in->blocks, &in->cluster};
    int64_t *bytes = AP_NEW_N(arena, in->stages.n, int64_t);
    struct ap_pipeline_program program;
    struct ap_arena scratch = {0};
    struct ap_err why = {0};
    bool unsupported;
    const int rc =
        ap_pipeline_build(&scratch, &of, &in->stages, &(struct ap_program_form){0},
                          &program, &unsupported, &why);

    for (int d = 0; !rc && d < program.n_lanes; d++)
        bytes[d] = program.lane[d].peak_bytes;
    ap_arena_free(&scratch);
    return rc ? NULL : bytes;
}

/* The order of the lists that run, if the document has them. */
static int read_order(struct ap_arena *arena, const struct ap_doc *doc,
                      struct cost_input *in, struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "pipeline");
    const struct ap_at at = {NULL, "pipeline", 0};

    if (!section)
        return 0;
    json_t *json = ap_doc_load(doc, section, err);
    int rc = json ? ap_pipeline_read_order(arena, json, &at, &in->stages, err) : -1;
    json_decref(json);
    return rc;
}

static int read_stages(struct ap_arena *arena, const struct ap_doc *doc,
                       const struct priced_on *on, struct cost_input *in,
                       struct priced *p, struct ap_err *err)
{
    struct reading halves = {doc, on, in};
    struct ap_pipeline_price *schedule = AP_NEW(arena, struct ap_pipeline_price);

    if (!in->nests.nest) {
        if (ap_doc_graph(arena, doc, &in->graph, err))
            return -1;
        ap_group(arena, &in->graph); /* whatever the document says of groups */
    }
    int rc = ap_in_arenas(arena, 2, read_half, &halves, err);
    if (!rc)
        rc = read_order(arena, doc, in, err);
    if (rc)
        return rc;
    ap_tool_set_f32_matmul(&in->cluster, on->f32_matmul);
    rc = price_stages(arena, in, schedule, p, err);
    if (rc)
        return rc;
    in->by_hand = in->stages.objective_sec <= 0;
    in->buffer_bytes = plan_buffers(arena, in);
    return 0;
}

/* ---- a plan of one stage ---- */

int price_read_graph(struct ap_arena *arena, const struct ap_doc *doc, struct ap_graph *g,
                     struct ap_nests *nests, struct ap_err *err)
{
    struct ap_err why = {0};

    if (ap_doc_graph(arena, doc, g, err))
        return -1;
    ap_group(arena, g); /* whatever the document says of groups */
    return ap_nests_build(arena, g, nests, &why)
               ? ap_err_set(err, "%s: %s", doc->file, why.msg)
               : 0;
}

int price_read_sharding(struct ap_arena *arena, const struct ap_doc *doc,
                        const struct ap_section *section, struct ap_stage *stage,
                        struct ap_err *err)
{
    const struct ap_at top = {.key = "sharding"};
    json_t *json = ap_doc_load(doc, section, err);
    int rc = json ? ap_sharding_from_json(arena, json, &top, &stage->sub.graph,
                                          &stage->nests, &stage->sharding, err)
                  : -1;

    json_decref(json);
    return rc ? ap_doc_err(doc, err) : 0;
}

/* The whole graph as one stage, on one device where the document says nothing. */
static int read_stage(struct ap_arena *arena, const struct ap_doc *doc,
                      struct cost_input *in, enum ap_cost_variant *variant,
                      struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "sharding");
    struct ap_stage *st = AP_NEW(arena, struct ap_stage);
    struct ap_sharding *s = &st->sharding;

    if (!in->nests.nest && price_read_graph(arena, doc, &in->graph, &in->nests, err))
        return -1;
    st->sub.graph = in->graph;
    st->nests = in->nests;
    st->nests.graph = &st->sub.graph;
    if (section) {
        if (price_read_sharding(arena, doc, section, st, err))
            return -1;
        while (strcmp(ap_cost_variant_names[*variant], s->cost_model) != 0)
            ++*variant;
    } else {
        ap_plan_single(arena, &st->sub.graph, &st->nests, &s->plan);
        s->algorithm = "one device";
    }
    st->n_devices = ap_mesh_devices(&s->plan.mesh);
    in->stages = (struct ap_stages){.algorithm = s->algorithm,
                                    .limit_bytes = s->limit_bytes,
                                    .objective_sec = s->objective_sec,
                                    .stage = st,
                                    .n = 1};
    in->by_hand = !s->stopped;
    return 0;
}

int price_read_one_stage(struct ap_arena *arena, const struct ap_doc *doc,
                         const struct priced_on *on, struct cost_input *in,
                         struct priced *p, struct ap_err *err)
{
    enum ap_cost_variant variant = AP_COST_DEFAULT;
    struct ap_err why = {0};

    if (read_stage(arena, doc, in, &variant, err))
        return -1;
    struct ap_sharding *s = &in->stages.stage[0].sharding;
    const struct ap_mesh *mesh = &s->plan.mesh;
    if (on->cluster)
        in->cluster = *on->cluster;
    else if (ap_cluster_get(arena, doc, on->cluster_path, ap_mesh_devices(mesh),
                            &in->cluster, err))
        return -1;
    ap_tool_one_kind(&in->cluster);
    ap_tool_set_overlap(&in->cluster, on->overlap);
    ap_tool_set_f32_matmul(&in->cluster, on->f32_matmul);
    if (ap_cost_init(arena, &in->cost, variant, &in->cluster, mesh, err) ||
        ap_cost_init(arena, &in->byte_count, AP_COST_BYTES, &in->cluster, mesh, err))
        return 1;
    in->cost.alpa = s->alpa;
    if (in->cost.alpa.space)
        ap_plan_results_lie(arena, &in->stages.stage[0].sub.graph);
    in->graph = in->stages.stage[0].sub.graph;
    p->name = s->algorithm;
    return price_plan(arena, in, &s->plan, p, &why)
               ? ap_err_set(err, "%s: /sharding: %s", doc->file, why.msg)
               : 0;
}

int price_read(struct ap_arena *arena, const struct ap_doc *doc,
               const struct priced_on *on, struct cost_input *in, struct priced *p,
               struct ap_err *err)
{
    if (!ap_doc_find(doc, "stages"))
        return price_read_one_stage(arena, doc, on, in, p, err);
    int rc = read_stages(arena, doc, on, in, p, err);
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
    if (ap_program_per_rank(prog) > 1) {
        ap_warn(
            "/program: its ranks play %d devices each; the price is that of the plan, "
            "with every device for itself",
            ap_program_per_rank(prog));
        return 0;
    }
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
    struct ap_stages *s = &in->stages;
    struct ap_sharding *one = &s->stage[0].sharding;
    const double sec = p->planned_sec;
    struct ap_buf json = {0};

    if (in->by_hand ? !p->schedule : fabs(s->objective_sec - sec) <= 1e-9 * sec)
        return json;
    if (!in->by_hand)
        ap_warn("/%s: objective_sec %.9g is not what the plan costs, %.9g: corrected, "
                "and its bound dropped",
                p->schedule ? "stages" : "sharding", s->objective_sec, sec);
    if (!p->schedule) {
        one->objective_sec = sec;
        one->lower_bound_sec = 0;
        one->stopped = "given";
        ap_sharding_to_json(one, &p->conv, &json);
        return json;
    }
    s->objective_sec = sec;
    s->lower_bound_sec = 0;
    s->stopped = "given";
    for (int i = 0; i < s->n; i++)
        if (ap_stage_put_sharding(arena, &in->cluster, &s->stage[i], err))
            return json;
    ap_stages_to_json(s, &json);
    return json;
}
