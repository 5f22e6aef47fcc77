/*
 * Problem: which change would speed a pipelined plan up most: links, devices, memory, or
 * how it is cut into microbatches?
 * Idea: make each change and price the plan again, all else as it is: a search under the
 * change can only do better, so that every saving is a lower bound. What is saved of is
 * what the plan is for: the step, or the time between batches in a row. More memory is
 * what stages that make values again could keep instead. Cost: one price for each change.
 */
#include <string.h>

#include "pipe.h"

struct advisor {
    struct advice advice; /* first */
    const struct pipe_input *in;
    const struct ap_pipeline_price *p;
};

/* Prices the plan changed; keeps what is quicker. */
static void try_change(struct advisor *a, const struct ap_cluster *cluster,
                       const struct ap_stages *stages, const char *what)
{
    struct ap_arena scratch = {0};
    struct ap_pipeline_price other;
    struct ap_err err = {0};
    int rc = ap_pipeline_price(
        &scratch,
        &(struct ap_staged_graph){&a->in->graph, &a->in->nests, &a->in->blocks, cluster},
        stages, &other, &err);

    if (rc == 0 &&
        pipe_aim_sec(stages, &other) < pipe_aim_sec(&a->in->stages, a->p) * (1 - 1e-6))
        advice_add(&a->advice, what, pipe_aim_sec(stages, &other), other.peak_bytes);
    ap_arena_free(&scratch);
}

static void try_cluster(struct advice *advice, const struct ap_cluster *cluster,
                        const char *what)
{
    struct advisor *a = (struct advisor *)advice;
    try_change(a, cluster, &a->in->stages, what);
}

static void try_microbatches(struct advisor *a, int64_t n)
{
    struct ap_stages s = a->in->stages;

    s.microbatches = n;
    try_change(a, &a->in->cluster, &s,
               ap_arena_printf(a->advice.arena, "%lld microbatch%s", (long long)n,
                               n == 1 ? "" : "es"));
}

static void try_cuts(struct advisor *a)
{
    int64_t n = a->in->stages.microbatches;

    try_microbatches(a, 2 * n);
    if (n % 2 == 0)
        try_microbatches(a, n / 2);
}

static void try_memory(struct advisor *a)
{
    struct ap_stages s = a->in->stages;
    struct ap_stage *stage =
        ap_arena_dup(a->advice.arena, s.stage, (size_t)s.n * sizeof *stage);
    bool any = false;

    for (int i = 0; i < s.n; i++) {
        any |= stage[i].recompute != AP_RECOMPUTE_NONE;
        stage[i].recompute = AP_RECOMPUTE_NONE;
    }
    s.stage = stage;
    if (any)
        try_change(a, &a->in->cluster, &s, "memory to keep recomputed activations");
}

void pipe_changes(struct ap_arena *arena, const struct pipe_input *in,
                  const struct ap_pipeline_price *p, struct advice *out)
{
    struct advisor a = {
        .advice = {.arena = arena, .try_cluster = try_cluster}, .in = in, .p = p};

    advice_links(&a.advice, &in->cluster);
    advice_devices(&a.advice, &in->cluster);
    try_cuts(&a);
    try_memory(&a);
    *out = a.advice;
}

void pipe_advice(struct ap_arena *arena, const struct pipe_input *in,
                 const struct ap_pipeline_price *p, struct ap_buf *out)
{
    struct advice changes;
    int64_t limit;
    int full = pipe_fullest(in, p, &limit);

    pipe_changes(arena, in, p, &changes);
    advice_put(&changes, pipe_aim_sec(&in->stages, p), p->result.devices[full].peak_bytes,
               limit, out);
}
