/*
 * Problem: which change of the machine would speed this plan up most.
 * Idea: make each change and price the plan again, choices as they are. A search under
 * the changed machine can only do better, so that every saving is a lower bound. Cost:
 * one pricing for each link level, mesh axis and rate.
 */
#include <math.h>
#include <stdlib.h>

#include "price.h"

#define N_SHOWN 3

/* ---- what plans with and without stages share ---- */

void advice_links(struct advice *a, const struct ap_cluster *cluster)
{
    /* several kinds of devices have links of their own inside a host */
    for (int i = cluster->n_kinds ? 1 : 0; i < cluster->n_levels; i++) {
        const char *name = cluster->levels[i].name;
        struct ap_cluster c = *cluster;
        c.levels[i].bandwidth_bytes_per_sec *= 2;
        ap_measured_faster_level(a->arena, &c.measured, i, 2, 1);
        a->try_cluster(a, &c,
                       ap_arena_printf(a->arena, "twice the bandwidth of %s", name));
        c = *cluster;
        c.levels[i].latency_sec /= 2;
        ap_measured_faster_level(a->arena, &c.measured, i, 1, 2);
        a->try_cluster(a, &c, ap_arena_printf(a->arena, "half the latency of %s", name));
    }
}

void advice_devices(struct advice *a, const struct ap_cluster *cluster)
{
    struct ap_cluster c = *cluster;

    if (c.n_kinds)
        return; /* no change is one of all devices */
    for (int t = 0; t < AP_N_DTYPES; t++)
        c.flops_per_sec[t] *= 2;
    c.tf32_flops_per_sec *= 2;
    ap_measured_faster(a->arena, &c.measured, 2, 1, 1);
    a->try_cluster(a, &c, "devices of twice the FLOP/s");
    c = *cluster;
    c.memory_bandwidth_bytes_per_sec *= 2;
    ap_measured_faster(a->arena, &c.measured, 1, 2, 1);
    a->try_cluster(a, &c, "devices of twice the memory bandwidth");
    c = *cluster;
    c.launch_sec /= 2;
    ap_measured_faster(a->arena, &c.measured, 1, 1, 2);
    a->try_cluster(a, &c, "half the kernel-launch overhead");
}

void advice_add(struct advice *a, const char *what, double sec, int64_t peak_bytes)
{
    a->list[a->n] = (struct change){what, sec, peak_bytes, a->n};
    a->n++;
}

static int by_sec(const void *a, const void *b)
{
    const struct change *x = a, *y = b;
    if (x->sec != y->sec)
        return x->sec < y->sec ? -1 : 1;
    return x->order - y->order;
}

void advice_sort(struct advice *a)
{
    qsort(a->list, (size_t)a->n, sizeof *a->list, by_sec);
}

void advice_put(struct advice *a, double whole, int64_t peak_bytes, int64_t limit_bytes,
                struct ap_buf *out)
{
    ap_buf_puts(out, "\nwhat would help this plan most\n");
    if (peak_bytes > limit_bytes) {
        ap_buf_puts(out, "  devices with ");
        price_put_bytes(out, (double)peak_bytes, 0);
        ap_buf_puts(out, " of memory: it does not fit as it is\n");
    }
    advice_sort(a);
    for (int i = 0; i < a->n && i < N_SHOWN; i++) {
        const struct change *c = &a->list[i];
        ap_buf_printf(out, "  %-44s", c->what);
        price_put_sec(out, NULL, c->sec, 14);
        ap_buf_printf(out, "%8.1f %%", 100 * (c->sec - whole) / whole);
        if (c->peak_bytes > limit_bytes) {
            ap_buf_puts(out, ", needs ");
            price_put_bytes(out, (double)c->peak_bytes, 0);
        }
        ap_buf_putc(out, '\n');
    }
    if (a->n == 0)
        ap_buf_puts(out, "  nothing\n");
}

/* ---- a plan without stages ---- */

struct advisor {
    struct advice advice; /* first */
    const struct cost_input *in;
    const struct priced *p;
};

/* Seconds of the plan on another cluster and mesh; infinite where it does not exist. */
static double price_on(const struct cost_input *in, const struct priced *p,
                       const struct ap_cluster *cluster, const struct ap_mesh *mesh)
{
    struct ap_arena scratch = {0};
    struct ap_err err = {""};
    struct ap_plan plan = p->plan;
    struct ap_cost cost = {0};
    double sec = INFINITY;

    plan.mesh = *mesh;
    if (ap_cost_init(&scratch, &cost, in->cost.variant, cluster, mesh, &err) == 0) {
        cost.alpa = in->cost.alpa;
        if (ap_plan_sec(&plan, &cost, &sec, &err))
            sec = INFINITY;
    }
    ap_cost_free(&cost);
    ap_arena_free(&scratch);
    return sec;
}

static void try_change(struct advisor *a, const struct ap_cluster *cluster,
                       const struct ap_mesh *mesh, const char *what)
{
    double sec = price_on(a->in, a->p, cluster, mesh);
    if (sec < a->p->price.step_sec)
        advice_add(&a->advice, what, sec, 0);
}

static void try_cluster(struct advice *advice, const struct ap_cluster *cluster,
                        const char *what)
{
    struct advisor *a = (struct advisor *)advice;
    try_change(a, cluster, &a->p->plan.mesh, what);
}

static void try_axes(struct advisor *a)
{
    const struct ap_mesh *mesh = &a->p->plan.mesh;

    for (int i = 0; i < mesh->n_axes; i++) {
        struct ap_mesh wide = *mesh;
        struct ap_cluster c = a->in->cluster;
        if (mesh->microbatch >> i & 1) {
            wide.size[i] /= 2;
            if (wide.size[i] > 1)
                try_change(a, &c, &wide, "half as many microbatches");
            continue;
        }
        c.levels[c.n_levels - 1].size *= 2;
        wide.size[i] *= 2;
        try_change(a, &c, &wide,
                   ap_arena_printf(a->advice.arena, "twice the devices, on axis %s",
                                   mesh->name[i]));
    }
}

void price_changes(struct ap_arena *arena, const struct cost_input *in,
                   const struct priced *plan, struct advice *out)
{
    struct advisor a = {
        .advice = {.arena = arena, .try_cluster = try_cluster}, .in = in, .p = plan};

    if (in->cost.variant == AP_COST_DEFAULT) {
        advice_links(&a.advice, &in->cluster);
        try_axes(&a);
        advice_devices(&a.advice, &in->cluster);
    }
    *out = a.advice;
}

void price_advice(struct ap_arena *arena, const struct cost_input *in,
                  const struct priced *p, struct ap_buf *out)
{
    struct advice changes;

    if (in->cost.variant != AP_COST_DEFAULT)
        return;
    price_changes(arena, in, p, &changes);
    advice_put(&changes, p->price.step_sec, p->peak_bytes, price_limit(in), out);
}
