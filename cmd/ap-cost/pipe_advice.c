/*
 * Problem: which change would speed a pipelined plan up most: links, devices, memory, or
 * how it is cut into microbatches?
 * Idea: make each change and price the plan again, all else as it is: a search under the
 * change can only do better, so that every saving is a lower bound. What is saved of is
 * what the plan is for: the step, or the time between batches in a row. More memory is
 * what stages that make values again could keep instead. Cost: one price for each change.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pipe.h"

#define N_SHOWN 3
#define N_MOST  (2 * AP_MAX_LEVELS + 8)

struct pipe_change {
    const char *what;
    double sec;
    int64_t peak_bytes;
    int order;
};

static int by_sec(const void *a, const void *b)
{
    const struct pipe_change *x = a, *y = b;
    if (x->sec != y->sec)
        return x->sec < y->sec ? -1 : 1;
    return x->order - y->order;
}

struct advisor {
    struct ap_arena *arena;
    const struct pipe_input *in;
    const struct ap_pipeline_price *p;
    struct pipe_change *list;
    int n;
};

/* Prices the plan changed; keeps what is quicker. */
static void try_change(struct advisor *a, const struct ap_cluster *cluster,
                       const struct ap_stages *stages, const char *what)
{
    struct ap_mark mark = ap_arena_mark(a->arena);
    struct ap_pipeline_price other;
    struct ap_err err = {0};
    int rc = ap_pipeline_price(
        a->arena,
        &(struct ap_staged_graph){&a->in->graph, &a->in->nests, &a->in->blocks, cluster},
        stages, &other, &err);
    double sec = rc ? INFINITY : pipe_aim_sec(stages, &other);
    int64_t peak = rc ? 0 : other.peak_bytes;

    ap_arena_rewind(a->arena, mark);
    if (sec < pipe_aim_sec(&a->in->stages, a->p) * (1 - 1e-6))
        a->list[a->n] = (struct pipe_change){what, sec, peak, a->n}, a->n++;
}

static void try_links(struct advisor *a)
{
    for (int i = 0; i < a->in->cluster.n_levels; i++) {
        struct ap_cluster c = a->in->cluster;
        const char *name = c.levels[i].name;
        const char *wide = ap_arena_printf(a->arena, "twice the bandwidth of %s", name);
        const char *quick = ap_arena_printf(a->arena, "half the latency of %s", name);
        c.levels[i].bandwidth_bytes_per_sec *= 2;
        try_change(a, &c, &a->in->stages, wide);
        c = a->in->cluster;
        c.levels[i].latency_sec /= 2;
        try_change(a, &c, &a->in->stages, quick);
    }
}

static void try_devices(struct advisor *a)
{
    struct ap_cluster c = a->in->cluster;

    for (int t = 0; t < AP_N_DTYPES; t++)
        c.flops_per_sec[t] *= 2;
    try_change(a, &c, &a->in->stages, "devices of twice the FLOP/s");
    c = a->in->cluster;
    c.memory_bandwidth_bytes_per_sec *= 2;
    try_change(a, &c, &a->in->stages, "devices of twice the memory bandwidth");
    c = a->in->cluster;
    c.launch_sec /= 2;
    try_change(a, &c, &a->in->stages, "half the kernel-launch overhead");
}

static void try_microbatches(struct advisor *a, int64_t n)
{
    struct ap_stages s = a->in->stages;

    s.microbatches = n;
    try_change(
        a, &a->in->cluster, &s,
        ap_arena_printf(a->arena, "%lld microbatch%s", (long long)n, n == 1 ? "" : "es"));
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
    struct ap_stage *stage = ap_arena_dup(a->arena, s.stage, (size_t)s.n * sizeof *stage);
    bool any = false;

    for (int i = 0; i < s.n; i++) {
        any |= stage[i].recompute != AP_RECOMPUTE_NONE;
        stage[i].recompute = AP_RECOMPUTE_NONE;
    }
    s.stage = stage;
    if (any)
        try_change(a, &a->in->cluster, &s, "memory to keep what is recomputed");
}

void pipe_advice(struct ap_arena *arena, const struct pipe_input *in,
                 const struct ap_pipeline_price *p, struct ap_buf *out)
{
    static const struct cost_input seconds = {.cost = {.variant = AP_COST_DEFAULT}};
    struct pipe_change list[N_MOST];
    struct advisor a = {.arena = arena, .in = in, .p = p, .list = list};
    double whole = pipe_aim_sec(&in->stages, p);

    try_links(&a);
    try_devices(&a);
    try_cuts(&a);
    try_memory(&a);
    qsort(list, (size_t)a.n, sizeof *list, by_sec);
    ap_buf_puts(out, "\nwhat would help this plan most\n");
    if (p->peak_bytes > in->cluster.memory_bytes) {
        ap_buf_puts(out, "  devices with ");
        price_put_bytes(out, (double)p->peak_bytes);
        ap_buf_puts(out, " of memory: it does not fit as it is\n");
    }
    for (int i = 0; i < a.n && i < N_SHOWN; i++) {
        ap_buf_printf(out, "  %-44s", list[i].what);
        size_t at = out->len;
        price_put_sec(out, &seconds, list[i].sec);
        price_pad(out, at, 14);
        ap_buf_printf(out, "%8.1f %%", 100 * (list[i].sec - whole) / whole);
        if (list[i].peak_bytes > in->cluster.memory_bytes) {
            ap_buf_puts(out, ", needs ");
            price_put_bytes(out, (double)list[i].peak_bytes);
        }
        ap_buf_putc(out, '\n');
    }
    if (a.n == 0)
        ap_buf_puts(out, "  nothing\n");
}
