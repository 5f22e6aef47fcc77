/*
 * ap-check: is a document right? Each section is checked by the reader that the other
 * tools have for it, and by its schema (schema.c), which also knows members that no tool
 * reads; of a plan also whether it can be priced. All faults are told, one for each
 * section: a reader stops at the first.
 */
#include <math.h>
#include <string.h>

#include "doc/blocks_json.h"
#include "doc/families_json.h"
#include "graph/group.h"
#include "pipeline/pipeline_program.h"
#include "pipeline/stages.h"
#include "schema.h"
#include "tool/tool.h"

struct checker {
    struct ap_arena arena;
    const struct ap_doc *doc;
    struct schemas *schemas;
    struct ap_graph graph;
    bool has_graph;            /* and it is right */
    struct ap_planned planned; /* of sharding or stages */
    bool has_plan;             /* likewise */
    struct ap_buf right;       /* names of the sections, one a line */
    struct ap_buf told;        /* faults, one a line */
    int n_wrong;
};

/* Checks what the schema cannot say of a section; -1 with the place. */
typedef int meaning_fn(struct checker *c, json_t *value, const struct ap_at *at,
                       struct ap_err *err);

static int check_graph(struct checker *c, json_t *value, const struct ap_at *at,
                       struct ap_err *err)
{
    if (ap_graph_from_json(&c->arena, value, at, &c->graph, err))
        return -1;
    ap_group(&c->arena, &c->graph);
    c->has_graph = true;
    return 0;
}

static int check_cluster(struct checker *c, json_t *value, const struct ap_at *at,
                         struct ap_err *err)
{
    struct ap_cluster cluster;

    (void)value;
    (void)at;
    return ap_cluster_get(&c->arena, c->doc, NULL, 1, &cluster, err);
}

static int check_families(struct checker *c, json_t *value, const struct ap_at *at,
                          struct ap_err *err)
{
    struct ap_families families;
    return ap_families_from_json(&c->arena, value, at, &c->graph, &families, err);
}

static int check_blocks(struct checker *c, json_t *value, const struct ap_at *at,
                        struct ap_err *err)
{
    struct ap_blocks blocks;
    return ap_blocks_from_json(&c->arena, value, at, &c->graph, &blocks, err);
}

/* The devices of a plan, and whether its choices are legal and its layouts can be
 * converted. */
static int check_sharding(struct checker *c, json_t *value, const struct ap_at *at,
                          struct ap_err *err)
{
    struct ap_planned *p = &c->planned;
    struct ap_conversions conv;
    struct ap_cost cost;
    struct ap_err why = {{0}};

    (void)value;
    if (ap_doc_alone(&c->arena, c->doc, NULL, NULL, p, err))
        return -1;
    const struct ap_plan *plan = &p->stages.stage->sharding.plan;
    if (ap_stage_cost(&c->arena, &p->cluster, p->stages.stage, &plan->mesh, &cost, &why))
        return ap_at_err(at, err, "%s", why.msg);
    if (cost.alpa.space)
        ap_plan_results_lie(&c->arena, &p->stages.stage->sub.graph);
    int rc = ap_plan_check(plan, &cost, &why) ||
             ap_plan_conversions(&c->arena, plan, &cost, &conv, &why);
    ap_cost_free(&cost);
    c->has_plan = !rc;
    return rc ? ap_at_err(at, err, "%s", why.msg) : 0;
}

static int check_stages(struct checker *c, json_t *value, const struct ap_at *at,
                        struct ap_err *err)
{
    struct ap_planned *p = &c->planned;
    struct ap_pipeline_price price;
    struct ap_err why = {{0}};

    (void)value;
    c->has_plan = false;
    if (ap_doc_planned(&c->arena, c->doc, NULL, NULL, p, err))
        return -1;
    const struct ap_staged_graph of = ap_planned_of(p);
    if (ap_pipeline_price(&c->arena, &of, &p->stages, &price, &why))
        return why.msg[0] == '/' ? ap_err_set(err, "%s", why.msg)
                                 : ap_at_err(at, err, "%s", why.msg);
    c->has_plan = true;
    return 0;
}

/* The price is that of the plan, as far as the plan says one. */
static int check_cost(struct checker *c, json_t *value, const struct ap_at *at,
                      struct ap_err *err)
{
    const struct ap_stages *s = &c->planned.stages;
    const struct ap_at step_at = {at, "step_sec", 0};
    const char *model = NULL;
    double step_sec;
    int v = AP_COST_DEFAULT;

    if (ap_opt_str(value, at, "cost_model", &model, err))
        return -1;
    while (model && v <= AP_COST_BYTES && strcmp(model, ap_cost_variant_names[v]) != 0)
        v++;
    if (!model || v > AP_COST_BYTES)
        return 0; /* a model of somebody's own */
    if (!c->has_plan || s->objective_sec <= 0 || s->throughput ||
        ap_get_num(value, at, "step_sec", &step_sec, err))
        return err->msg[0] ? -1 : 0;
    if (fabs(step_sec - s->objective_sec) <= 1e-9 * step_sec)
        return 0;
    return ap_at_err(
        &step_at, err,
        "%.9g, but the plan's objective_sec is %.9g: one of them was made for "
        "another plan or cluster",
        step_sec, s->objective_sec);
}

static int check_program(struct checker *c, json_t *value, const struct ap_at *at,
                         struct ap_err *err)
{
    struct ap_pipeline_program program;
    return ap_pipeline_from_json(&c->arena, value, at, &program, err);
}

/* In an order in which what a section is checked against comes before it. */
static const struct check {
    const char *section;
    meaning_fn *meaning; /* NULL: its schema says all */
    bool of_graph;       /* means nothing without a graph that is right */
} checks[] = {
    {"graph", check_graph, false},
    {"step", NULL, false},
    {"cluster", check_cluster, false},
    {"families", check_families, true},
    {"blocks", check_blocks, true},
    {"sharding", check_sharding, true},
    {"stages", check_stages, true},
    {"cost", check_cost, false},
    {"program", check_program, false},
    {"pipeline", check_program, false},
    {"placement", NULL, false},
    {"history", NULL, false},
    {0},
};

/* A fault once, though sections that are read with its own have it, too. */
static void tell(struct checker *c, const struct ap_err *err)
{
    const bool placed = !strncmp(err->msg, c->doc->file, strlen(c->doc->file));
    const char *line = ap_arena_printf(&c->arena, "%s%s%s\n", placed ? "" : c->doc->file,
                                       placed ? "" : ": ", err->msg);

    if (c->told.data && strstr(c->told.data, line))
        return;
    ap_buf_puts(&c->told, line);
    ap_say("%.*s", (int)strlen(line) - 1, line);
    c->n_wrong++;
}

static void check_section(struct checker *c, const struct check *check)
{
    const struct ap_section *section = ap_doc_find(c->doc, check->section);
    const struct ap_at at = {.key = check->section};
    struct ap_err err = {{0}};

    if (!section)
        return;
    json_t *value = ap_doc_load(c->doc, section, &err);
    const bool blind = check->of_graph && !c->has_graph;
    int rc = value ? 0 : -1;
    if (!rc && check->meaning && !blind)
        rc = check->meaning(c, value, &at, &err); /* says more of a fault than a schema */
    if (!rc)
        rc = schemas_check(c->schemas, check->section, value, &err);
    json_decref(value);
    if (rc)
        tell(c, &err);
    else if (blind)
        ap_warn(
            "%s: /%s: its form is right; the rest was not checked, for want of a graph",
            c->doc->file, check->section);
    else
        ap_buf_printf(&c->right, "%s\n", check->section);
}

int main(int argc, char **argv)
{
    struct ap_tool tool = {.name = "ap-check",
                           .summary = "check a document, section by section",
                           .operand = "[FILE]",
                           .opts = (const struct ap_opt[]){{0}}};
    struct checker c = {.schemas = schemas_load()};
    struct ap_doc doc;

    ap_tool_start(&tool, argc, argv);
    ap_tool_read(&tool, &c.arena, &doc);
    c.doc = &doc;
    for (const struct check *check = checks; check->section; check++)
        check_section(&c, check);
    schemas_free(c.schemas);
    ap_buf_free(&c.told);
    if (c.n_wrong)
        ap_die(AP_BAD_INPUT, "%s: %d section%s wrong", doc.file, c.n_wrong,
               c.n_wrong == 1 ? " is" : "s are");
    ap_tool_write_bytes(&tool, &c.right);
    return ap_tool_finish(&tool, "");
}
