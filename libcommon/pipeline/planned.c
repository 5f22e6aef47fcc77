/*
 * Problem: a document has a plan of stages (`stages`), one sharding of the whole graph
 * (`sharding`), or none. Idea: all are one kind of plan, and a sharding is one of a
 * single stage without a schedule; without a plan that stage runs on one device. Cost:
 * linear in the document.
 */
#include "pipeline/stages.h"

#include <string.h>

#include "graph/group.h"

struct ap_staged_graph ap_planned_of(const struct ap_planned *p)
{
    return (struct ap_staged_graph){&p->graph, &p->nests,
                                    p->stages.alone ? NULL : &p->blocks, &p->cluster};
}

int ap_stage_cost(struct ap_arena *arena, const struct ap_cluster *cluster,
                  const struct ap_stage *st, const struct ap_mesh *mesh,
                  struct ap_cost *cost, struct ap_err *err)
{
    const struct ap_sharding *s = &st->sharding;
    struct ap_cluster own = *cluster;
    int variant = AP_COST_DEFAULT;

    while (strcmp(ap_cost_variant_names[variant], s->cost_model) != 0)
        variant++; /* the reader knows that it is there */
    if ((st->devices &&
         ap_cluster_take(cluster, st->n_devices, st->devices, &own, err)) ||
        ap_cost_init(arena, cost, (enum ap_cost_variant)variant, &own, mesh, err))
        return -1;
    cost->alpa = s->alpa;
    return 0;
}

/* ---- one sharding ---- */

/* The document's graph in groups, and their nests. */
static int read_graph(struct ap_arena *arena, const struct ap_doc *doc,
                      struct ap_planned *p, struct ap_err *err)
{
    struct ap_err why = {0};

    if (ap_doc_graph(arena, doc, &p->graph, err))
        return -1;
    ap_group(arena, &p->graph); /* whatever the document says of groups */
    return ap_nests_build(arena, &p->graph, &p->nests, &why)
               ? ap_err_set(err, "%s: %s", doc->file, why.msg)
               : 0;
}

int ap_doc_sharding(struct ap_arena *arena, const struct ap_doc *doc, struct ap_stage *st,
                    struct ap_err *err)
{
    const struct ap_at at = {.key = "sharding"};
    json_t *json = ap_doc_load(doc, ap_doc_find(doc, "sharding"), err);

    if (!json)
        return -1;
    int rc = ap_sharding_from_json(arena, json, &at, &st->sub.graph, &st->nests,
                                   &st->sharding, err);
    json_decref(json);
    return rc ? ap_doc_err(doc, err) : 0;
}

int ap_doc_alone(struct ap_arena *arena, const struct ap_doc *doc, const char *path,
                 const struct ap_cluster *given, struct ap_planned *p, struct ap_err *err)
{
    struct ap_stage *st = AP_NEW(arena, struct ap_stage);
    struct ap_sharding *s = &st->sharding;

    if (read_graph(arena, doc, p, err))
        return -1;
    st->sub.graph = p->graph;
    st->nests = p->nests;
    st->nests.graph = &st->sub.graph;
    s->algorithm = "one device";
    s->cost_model = ap_cost_variant_names[AP_COST_DEFAULT];
    if (!ap_doc_find(doc, "sharding"))
        ap_plan_single(arena, &st->sub.graph, &st->nests, &s->plan);
    else if (ap_doc_sharding(arena, doc, st, err))
        return -1;
    st->n_devices = ap_mesh_devices(&s->plan.mesh);
    p->stages = (struct ap_stages){.alone = true,
                                   .algorithm = s->algorithm,
                                   .limit_bytes = s->limit_bytes,
                                   .objective_sec = s->objective_sec,
                                   .microbatches = ap_mesh_microbatches(&s->plan.mesh),
                                   .stage = st,
                                   .n = 1};
    if (!given)
        return ap_cluster_get(arena, doc, path, st->n_devices, &p->cluster, err);
    p->cluster = *given;
    return 0;
}

/* ---- stages ---- */

static int read_stages(struct ap_arena *arena, const struct ap_doc *doc, const char *path,
                       const struct ap_cluster *given, struct ap_planned *p,
                       struct ap_err *err)
{
    if (read_graph(arena, doc, p, err))
        return -1;
    int rc = ap_doc_stages(arena, doc, path, given, p, err);
    if (rc && err->msg[0] == '/' && strncmp(err->msg, doc->file, strlen(doc->file)))
        ap_doc_err(doc, err);
    return rc;
}

int ap_doc_planned(struct ap_arena *arena, const struct ap_doc *doc, const char *path,
                   const struct ap_cluster *given, struct ap_planned *p,
                   struct ap_err *err)
{
    return ap_doc_find(doc, "stages") ? read_stages(arena, doc, path, given, p, err)
                                      : ap_doc_alone(arena, doc, path, given, p, err);
}
