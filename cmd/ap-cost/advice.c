/*
 * Problem: which change would speed this plan up most: links, devices, memory, or how it
 * is cut into microbatches. Idea: make each change and price the plan again, with the
 * same choices. A search under the change can only do better, so that every saving is a
 * lower bound. Savings refer to the quantity that the plan minimizes: the step, or the
 * time between consecutive batches. With more memory, stages that recompute values could
 * keep them instead. Cost: one price for each change.
 */
#include <math.h>
#include <stdlib.h>

#include "price.h"

#define N_SHOWN 3

/* What the plan of other stages or another cluster is for takes, in seconds; infinite
 * where there is no such plan. peak_bytes: where it is another, else untouched. */
static double price_changed(const struct advice *a, const struct ap_cluster *cluster,
                            const struct ap_stages *stages, int64_t *peak_bytes)
{
    const struct cost_input *in = a->in;
    struct ap_arena scratch = {0};
    struct ap_pipeline_price other;
    struct ap_cost cost = {0};
    struct ap_plan plan = stages->stage[0].sharding.plan;
    struct ap_err err = {0};
    double sec = INFINITY;

    if (a->p->schedule) {
        struct ap_staged_graph of = ap_planned_of(&in->of);
        of.cluster = cluster;
        if (ap_pipeline_price(&scratch, &of, stages, &other, &err) == 0) {
            sec = price_aim_of(stages, &other);
            if (stages == &in->of.stages)
                other.peak_bytes = a->p->peak_bytes;
            else
                (void)ap_pipeline_measure(&of, stages, 0, &other);
            *peak_bytes = other.peak_bytes;
        }
    } else if (ap_cost_init(&scratch, &cost, in->cost.variant, cluster, &plan.mesh,
                            &err) == 0) {
        cost.alpa = in->cost.alpa;
        if (ap_plan_sec(&plan, &cost, &sec, &err))
            sec = INFINITY;
    }
    ap_cost_free(&cost);
    ap_arena_free(&scratch);
    return sec;
}

/* Prices the plan changed; keeps what is quicker. */
static void try_change(struct advice *a, enum limit limit,
                       const struct ap_cluster *cluster, const struct ap_stages *stages,
                       const char *what)
{
    /* a schedule is simulated: what rounding makes of it is no change */
    const double least = a->p->schedule ? 1e-6 : 0;
    int64_t peak_bytes = 0;
    double sec = price_changed(a, cluster, stages, &peak_bytes);

    if (sec < price_aim_sec(a->in, a->p) * (1 - least)) {
        a->list[a->n] = (struct change){limit, what, sec, peak_bytes, a->n};
        a->n++;
    }
}

static void try_links(struct advice *a)
{
    const struct ap_cluster *cluster = &a->in->of.cluster;

    /* several kinds of devices have links of their own inside a host */
    for (int i = cluster->n_kinds ? 1 : 0; i < cluster->n_levels; i++) {
        const char *name = cluster->levels[i].name;
        struct ap_cluster c = *cluster;
        c.levels[i].bandwidth_bytes_per_sec *= 2;
        ap_measured_faster_level(a->arena, &c.measured, i, 2, 1);
        try_change(a, LIMIT_LINKS, &c, &a->in->of.stages,
                   ap_arena_printf(a->arena, "twice the bandwidth of %s", name));
        c = *cluster;
        c.levels[i].latency_sec /= 2;
        ap_measured_faster_level(a->arena, &c.measured, i, 1, 2);
        try_change(a, LIMIT_LINKS, &c, &a->in->of.stages,
                   ap_arena_printf(a->arena, "half the latency of %s", name));
    }
}

static void try_devices(struct advice *a)
{
    const struct ap_cluster *cluster = &a->in->of.cluster;
    struct ap_cluster c = *cluster;

    if (c.n_kinds)
        return; /* no change is one of all devices */
    c.host_link.out_bytes_per_sec *= 2;
    c.host_link.in_bytes_per_sec *= 2;
    c.host_link.both_bytes_per_sec *= 2;
    if (a->in->of.stages.n_offloaded > 0)
        try_change(a, LIMIT_HOST, &c, &a->in->of.stages,
                   "twice the bandwidth of the host's link");
    c = *cluster;
    for (int t = 0; t < AP_N_DTYPES; t++)
        c.flops_per_sec[t] *= 2;
    c.tf32_flops_per_sec *= 2;
    ap_measured_faster(a->arena, &c.measured, 2, 1, 1);
    try_change(a, LIMIT_COMPUTE, &c, &a->in->of.stages, "devices of twice the FLOP/s");
    c = *cluster;
    c.memory_bandwidth_bytes_per_sec *= 2;
    ap_measured_faster(a->arena, &c.measured, 1, 2, 1);
    try_change(a, LIMIT_BANDWIDTH, &c, &a->in->of.stages,
               "devices of twice the memory bandwidth");
    c = *cluster;
    c.launch_sec /= 2;
    ap_measured_faster(a->arena, &c.measured, 1, 1, 2);
    try_change(a, LIMIT_LAUNCHES, &c, &a->in->of.stages,
               "half the kernel-launch overhead");
}

/* Other sizes of the one stage's mesh. */
static void try_axes(struct advice *a)
{
    struct ap_stages s = a->in->of.stages;
    struct ap_stage *stage = ap_arena_dup(a->arena, s.stage, sizeof *stage);
    const struct ap_mesh *mesh = &s.stage->sharding.plan.mesh;
    struct ap_mesh *wide = &stage->sharding.plan.mesh;

    s.stage = stage;
    for (int i = 0; i < mesh->n_axes; i++) {
        struct ap_cluster c = a->in->of.cluster;
        *wide = *mesh;
        if (mesh->microbatch >> i & 1) {
            wide->size[i] /= 2;
            if (wide->size[i] > 1)
                try_change(a, LIMIT_LAUNCHES, &c, &s, "half as many microbatches");
            continue;
        }
        c.levels[c.n_levels - 1].size *= 2;
        wide->size[i] *= 2;
        try_change(
            a, LIMIT_DEVICES, &c, &s,
            ap_arena_printf(a->arena, "twice the devices, on axis %s", mesh->name[i]));
    }
}

static void try_microbatches(struct advice *a, enum limit limit, int64_t n)
{
    struct ap_stages s = a->in->of.stages;

    s.microbatches = n;
    s.order = NULL; /* a program's lists are for its own number */
    try_change(
        a, limit, &a->in->of.cluster, &s,
        ap_arena_printf(a->arena, "%lld microbatch%s", (long long)n, n == 1 ? "" : "es"));
}

static void try_cuts(struct advice *a)
{
    int64_t n = a->in->of.stages.microbatches;

    try_microbatches(a, LIMIT_BUBBLE, 2 * n);
    if (n % 2 == 0)
        try_microbatches(a, LIMIT_LAUNCHES, n / 2);
}

static void try_memory(struct advice *a)
{
    struct ap_stages s = a->in->of.stages;
    struct ap_stage *stage = ap_arena_dup(a->arena, s.stage, (size_t)s.n * sizeof *stage);
    bool any = false;

    for (int i = 0; i < s.n; i++) {
        any |= stage[i].recompute != AP_RECOMPUTE_NONE;
        stage[i].recompute = AP_RECOMPUTE_NONE;
    }
    s.stage = stage;
    if (any)
        try_change(a, LIMIT_MEMORY, &a->in->of.cluster, &s,
                   "memory to keep recomputed activations");
}

static int by_sec(const void *a, const void *b)
{
    const struct change *x = a, *y = b;
    if (x->sec != y->sec)
        return x->sec < y->sec ? -1 : 1;
    return x->order - y->order;
}

void price_changes(struct ap_arena *arena, const struct cost_input *in,
                   const struct priced *p, struct advice *out)
{
    *out = (struct advice){.arena = arena, .in = in, .p = p};
    if (in->cost.variant != AP_COST_DEFAULT)
        return;
    try_links(out);
    if (!p->schedule)
        try_axes(out);
    try_devices(out);
    if (p->schedule)
        try_cuts(out);
    try_memory(out);
    qsort(out->list, (size_t)out->n, sizeof *out->list, by_sec);
}

int64_t price_fewest_microbatches(const struct cost_input *in, const struct priced *p)
{
    const struct advice a = {.in = in, .p = p};
    const int64_t limit = price_limit(in, 0);
    struct ap_stages s = in->of.stages;

    if (!p->schedule || in->of.cluster.n_kinds || in->cost.variant != AP_COST_DEFAULT ||
        p->peak_bytes > limit)
        return 0;
    for (; s.microbatches % 2 == 0; s.microbatches /= 2) {
        struct ap_stages half = s;
        int64_t peak = 0;
        half.microbatches /= 2;
        half.order = NULL;
        if (!isfinite(price_changed(&a, &in->of.cluster, &half, &peak)) || peak > limit)
            break;
    }
    return s.microbatches;
}

/* What has most of the change: with its share of the step, where that is counted. */
static void put_limit(const struct advice *a, const struct headline *h,
                      struct ap_buf *out)
{
    const struct ap_pipeline_price *p = a->p->schedule;
    const struct price_spent spent =
        p ? price_spent_by_all(a->in, p) : (struct price_spent){0};
    const double step = p ? p->result.step_sec : a->p->price.serial_sec;

    switch (a->list[0].limit) {
    case LIMIT_COMPUTE:
        ap_buf_printf(out, "compute, at %.1f %% of the %s peak", 100 * h->rates.hfu,
                      h->rates.flops.peak_of);
        break;
    case LIMIT_BANDWIDTH:
        ap_buf_puts(out, "the memory bandwidth of devices");
        break;
    case LIMIT_LAUNCHES:
        ap_buf_puts(out, "kernel launches");
        break;
    case LIMIT_LINKS:
        ap_buf_printf(out, "links, for %.1f %% of the step",
                      100 *
                          (p ? spent.comm_sec + spent.send_sec + spent.sync_sec
                             : a->p->price.comm_sec) /
                          step);
        break;
    case LIMIT_HOST:
        ap_buf_printf(out, "the host's link, for %.1f %% of the step",
                      100 * spent.host_wait_sec / step);
        break;
    case LIMIT_BUBBLE:
        ap_buf_printf(out, "the bubble, %.1f %% of the step", 100 * p->result.bubble);
        break;
    case LIMIT_DEVICES:
        ap_buf_puts(out, "the number of devices");
        break;
    case LIMIT_MEMORY:
        ap_buf_puts(out, "memory");
        break;
    }
}

void advice_put_limit(const struct advice *a, const struct headline *h,
                      struct ap_buf *out)
{
    const double whole = price_aim_sec(a->in, a->p);
    const bool fits = h->peak_bytes <= h->limit_bytes;
    struct ap_buf line = {0};

    if (a->in->cost.variant != AP_COST_DEFAULT)
        return;
    ap_buf_puts(&line, "limited by ");
    if (!fits)
        ap_buf_puts(&line, "memory: it does not fit as it is");
    else if (a->n == 0)
        ap_buf_puts(&line, "nothing that was changed");
    else
        put_limit(a, h, &line);
    for (int i = 0; i < a->n && fits; i++) { /* as many as a line holds */
        const size_t whole_line = line.len;
        ap_buf_printf(&line, "%s%s %.1f %%", i ? ", " : "; ", a->list[i].what,
                      100 * (a->list[i].sec - whole) / whole);
        if (i > 0 && line.len > PRICE_COLUMNS) {
            line.len = whole_line;
            break;
        }
    }
    ap_buf_put(out, line.data, line.len);
    ap_buf_putc(out, '\n');
    ap_buf_free(&line);
}

void advice_put(const struct advice *a, const struct headline *h, struct ap_buf *out)
{
    const double whole = price_aim_sec(a->in, a->p);

    if (a->in->cost.variant != AP_COST_DEFAULT)
        return;
    ap_buf_puts(out, "\nwhat would help this plan most\n");
    if (h->peak_bytes > h->limit_bytes) {
        ap_buf_puts(out, "  devices with ");
        price_put_bytes(out, (double)h->peak_bytes, 0);
        ap_buf_puts(out, " of memory: it does not fit as it is\n");
    }
    for (int i = 0; i < a->n && i < N_SHOWN; i++) {
        const struct change *c = &a->list[i];
        ap_buf_printf(out, "  %-44s", c->what);
        price_put_sec(out, NULL, c->sec, 14);
        ap_buf_printf(out, "%8.1f %%", 100 * (c->sec - whole) / whole);
        if (c->peak_bytes > h->limit_bytes) {
            ap_buf_puts(out, ", needs ");
            price_put_bytes(out, (double)c->peak_bytes, 0);
        }
        ap_buf_putc(out, '\n');
    }
    if (a->n == 0)
        ap_buf_puts(out, "  nothing\n");
}
