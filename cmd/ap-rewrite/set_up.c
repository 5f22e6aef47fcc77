/* What every form of a sharding plan begins with: the document's graph and plan, the
 * cluster and the cost model. */
#include "rewrite.h"

#include <string.h>

/* The document's plan, or the trivial one of a single device. */
static void read_plan(struct ap_arena *arena, const struct ap_doc *doc, struct job *job)
{
    struct ap_err err = {0};
    const struct ap_section *section = ap_doc_find(doc, "sharding");
    job->sharding.cost_model = ap_cost_variant_names[AP_COST_DEFAULT];
    if (!section) {
        ap_plan_single(arena, &job->graph, &job->nests, &job->sharding.plan);
        return;
    }
    struct ap_at at = {.key = "sharding"};
    json_t *json = ap_doc_load(doc, section, &err);
    if (!json)
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    if (ap_sharding_from_json(arena, json, &at, &job->graph, &job->nests, &job->sharding,
                              &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    json_decref(json);
}

void rewrite_set_up(struct ap_arena *arena, const struct ap_doc *doc, struct job *job)
{
    struct ap_err err = {0};
    if (ap_doc_graph(arena, doc, &job->graph, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_group(arena, &job->graph); /* whatever the document says of groups */
    if (ap_nests_build(arena, &job->graph, &job->nests, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    read_plan(arena, doc, job);

    const struct ap_mesh *mesh = &job->sharding.plan.mesh;
    int variant = AP_COST_DEFAULT;
    while (strcmp(ap_cost_variant_names[variant], job->sharding.cost_model) != 0)
        variant++; /* the reader knows that it is there */
    if (ap_cluster_get(arena, doc, NULL, ap_mesh_devices(mesh), &job->cluster, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_tool_one_kind(&job->cluster);
    if (ap_cost_init(arena, &job->cost, (enum ap_cost_variant)variant, &job->cluster,
                     mesh, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
    job->cost.alpa = job->sharding.alpa;
    job->cost.alpa.no_all_gather = 0; /* a program's results are gathered */
}
