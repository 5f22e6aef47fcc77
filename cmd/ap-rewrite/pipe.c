/* The programs of a pipelined plan, from the document's sections "blocks" and "stages".
 */
#include "pipe.h"

#include "pipeline/pipeline_program.h"

#include <assert.h>

_Noreturn void pipe_refuse(const struct ap_doc *doc, int exit_code,
                           const struct ap_err *err)
{
    ap_die(exit_code, err->msg[0] == '/' ? "%s: %s" : "%.0s%s", doc->file, err->msg);
}

void pipe_read(struct ap_arena *arena, const struct ap_doc *doc, struct staged_input *in)
{
    struct ap_err err = {0};

    if (ap_doc_graph(arena, doc, &in->graph, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_group(arena, &in->graph); /* whatever the document says of groups */
    if (ap_nests_build(arena, &in->graph, &in->nests, &err) ||
        ap_doc_stages(arena, doc, &in->graph, NULL, NULL, &in->blocks, &in->cluster,
                      &in->stages, &err))
        pipe_refuse(doc, AP_BAD_INPUT, &err);
}

void pipe_build(struct ap_arena *arena, const struct ap_doc *doc,
                const struct ap_program_form *form, struct staged_input *in,
                struct ap_pipeline_program *program)
{
    struct ap_err err = {0};
    bool unsupported;

    pipe_read(arena, doc, in);
    if (ap_pipeline_build(
            arena,
            &(struct ap_staged_graph){&in->graph, &in->nests, &in->blocks, &in->cluster},
            &in->stages, form, program, &unsupported, &err))
        pipe_refuse(doc, unsupported ? AP_USAGE : AP_BAD_INPUT, &err);
}

/* Members of the --stats line. */
static const char *stats(struct ap_arena *arena, const struct ap_pipeline_program *r)
{
    int64_t nodes = 0, peak = 0, messages = 0;

    for (int i = 0; i < r->n_stages; i++) {
        const struct ap_program *p = &r->stage[i].prog;
        nodes += p->local.n_nodes;
        peak = p->peak_bytes > peak ? p->peak_bytes : peak;
    }
    for (int t = 0; t < r->n_transfers; t++)
        messages += r->transfer[t].n_messages;
    return ap_arena_printf(arena,
                           ",\"nodes\":%lld,\"stages\":%d,\"ranks\":%d,"
                           "\"messages\":%lld,\"peak_device_bytes\":%lld",
                           (long long)nodes, r->n_stages, r->n_ranks, (long long)messages,
                           (long long)peak);
}

/* The plan's devices, ascending (arena): rank r is the r-th of them. */
static const int *rank_devices(struct ap_arena *arena, const struct staged_input *in,
                               int n)
{
    const struct ap_stages *stages = &in->stages;
    const int64_t all = ap_cluster_devices(&in->cluster);
    int *devices = AP_NEW_N(arena, n + 1, int), at = 0;
    bool *used = AP_NEW_N(arena, all + 1, bool);

    for (int s = 0; s < stages->n; s++)
        for (int64_t k = 0; k < stages->stage[s].n_devices; k++)
            used[stages->stage[s].devices[k]] = true;
    for (int64_t d = 0; d < all; d++)
        if (used[d])
            devices[at++] = (int)d;
    assert(at == n);
    return devices;
}

int pipe_rewrite(struct ap_tool *tool, struct ap_arena *arena, const struct ap_doc *doc,
                 const struct ap_program_form *form, const struct placement_asked *asked)
{
    struct staged_input in = {0};
    struct ap_pipeline_program program;
    /* the program was of an older plan */
    struct ap_new_section out[] = {
        {.name = "pipeline"}, {.name = "program"}, {.name = "placement"}};

    pipe_build(arena, doc, form, &in, &program);
    ap_pipeline_to_json(&program, &out[0].json);
    placement_write(asked, arena, &in.cluster, rank_devices(arena, &in, program.n_ranks),
                    program.n_ranks, &out[2].json);
    ap_tool_write(tool, doc, out, 3, "");
    return ap_tool_finish(tool, stats(arena, &program));
}
