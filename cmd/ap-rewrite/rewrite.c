/* The document's plan and its programs, for every form that ap-rewrite writes. */
#include "rewrite.h"

#include <assert.h>

void rewrite_read(struct ap_arena *arena, const struct ap_doc *doc, struct job *job)
{
    struct ap_planned *in = &job->in;
    const struct ap_stage *st;
    struct ap_err err = {0};

    if (ap_doc_planned(arena, doc, NULL, NULL, in, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    if (!in->stages.alone)
        return;
    ap_tool_one_kind(&in->cluster);
    st = in->stages.stage;
    if (ap_stage_cost(arena, &in->cluster, st, &st->sharding.plan.mesh, &job->cost, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
    job->cost.alpa.no_all_gather = 0; /* a program's results are gathered */
}

void rewrite_build(struct ap_arena *arena, const struct ap_doc *doc,
                   const struct ap_program_form *form, struct job *job,
                   struct ap_pipeline_program *program)
{
    const struct ap_staged_graph of = ap_planned_of(&job->in);
    struct ap_program_form priced = *form;
    struct ap_err err = {0};
    bool unsupported;

    priced.cost = &job->cost;
    const int rc = ap_pipeline_build(arena, &of, &job->in.stages, &priced, program,
                                     &unsupported, &err);
    ap_cost_free(&job->cost);
    if (!rc)
        return;
    ap_die(unsupported ? AP_USAGE : AP_BAD_INPUT,
           job->in.stages.alone || err.msg[0] == '/' ? "%s: %s" : "%.0s%s", doc->file,
           err.msg);
}

const int *rewrite_devices(struct ap_arena *arena, const struct job *job, int n)
{
    const struct ap_stages *stages = &job->in.stages;
    const int64_t all = ap_cluster_devices(&job->in.cluster);
    int *devices = AP_NEW_N(arena, n + 1, int), at = 0;
    bool *used = AP_NEW_N(arena, all + 1, bool);

    for (int s = 0; s < stages->n && !stages->alone; s++)
        for (int64_t k = 0; k < stages->stage[s].n_devices; k++)
            used[stages->stage[s].devices[k]] = true;
    for (int64_t d = 0; d < all && at < n; d++)
        if (stages->alone || used[d])
            devices[at++] = (int)d;
    assert(at == n);
    return devices;
}
