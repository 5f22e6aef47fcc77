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

const int *pipe_devices(struct ap_arena *arena, const struct staged_input *in, int n)
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
