/* ap-shard: choose how every tensor of a graph is split over one mesh. */
#include "problem/shard.h"

#include <string.h>

#include "tool/passes.h"

/* Whether equal layers, where they are known, are planned as one. */
static bool is_search(const struct shard_request *req)
{
    return req->algorithm == 0 && !req->plan_path && !req->params.no_families;
}

int main(int argc, char **argv)
{
    struct shard_request req;
    struct ap_tool tool;
    struct ap_arena arena = {0};
    struct shard_job job = {.arena = &arena};
    struct shard_result result;
    struct ap_doc doc;

    shard_read_options(&arena, &tool, &req, argc, argv);
    ap_tool_read(&tool, &arena, &doc);
    shard_job_read(&job, &doc);
    if (!req.params.no_families)
        shard_job_families(&job, &doc, true);
    if (req.serve)
        return ap_tool_finish(&tool, shard_serve(&job, &req, &doc, NULL));
    if (req.mesh_text && !strcmp(req.mesh_text, "auto")) {
        result = shard_auto(&job, &req, &doc);
    } else {
        struct ap_mesh mesh = shard_job_mesh(&job, &req);
        shard_job_place(&job, &req, &doc, &mesh);
        ap_passes_warn(&doc, &job.graph, &job.cluster, is_search(&req));
        shard_job_run(&job, &req);
        if (req.explain_path)
            ap_tool_write_file(req.explain_path, &job.answer.explanation);
        if (req.emit_path)
            ap_tool_write_file(req.emit_path, &job.answer.problem);
        result = shard_job_result(&job, &req);
    }

    /* what was derived from an older plan goes */
    struct ap_new_section out[] = {
        {.name = "cluster"},   {.name = "sharding", .json = result.json},
        {.name = "stages"},    {.name = "cost"},
        {.name = "program"},   {.name = "pipeline"},
        {.name = "placement"}, {.name = "graph", .graph = &job.graph}};
    ap_cluster_to_json(&job.cluster, &out[0].json);
    int n = (int)(sizeof out / sizeof *out) - !job.pins.cut;
    ap_tool_write(&tool, &doc, out, n, result.found);
    ap_cost_free(&job.cost);
    return ap_tool_finish(&tool,
                          ap_arena_printf(&arena, "%s%s", result.found, result.stats));
}
