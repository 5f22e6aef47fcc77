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

struct change {
    const char *what;
    double sec; /* of the step after it */
    int order;
};

static int by_sec(const void *a, const void *b)
{
    const struct change *x = a, *y = b;
    if (x->sec != y->sec)
        return x->sec < y->sec ? -1 : 1;
    return x->order - y->order;
}

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
        cost.alpa_steps = in->cost.alpa_steps;
        if (ap_plan_sec(&plan, &cost, &sec, &err))
            sec = INFINITY;
    }
    ap_cost_free(&cost);
    ap_arena_free(&scratch);
    return sec;
}

static void try_change(const struct cost_input *in, const struct priced *p,
                       const struct ap_cluster *cluster, const struct ap_mesh *mesh,
                       const char *what, struct change *list, int *n)
{
    double sec = price_on(in, p, cluster, mesh);
    if (sec >= p->price.serial_sec)
        return;
    list[*n] = (struct change){.what = what, .sec = sec, .order = *n};
    ++*n;
}

static int find_changes(struct ap_arena *arena, const struct cost_input *in,
                        const struct priced *p, struct change *list)
{
    const struct ap_mesh *mesh = &p->plan.mesh;
    struct ap_cluster c;
    int n = 0;

    for (int i = 0; i < in->cluster.n_levels; i++) {
        const char *name = in->cluster.levels[i].name;
        c = in->cluster;
        c.levels[i].bandwidth_bytes_per_sec *= 2;
        try_change(in, p, &c, mesh,
                   ap_arena_printf(arena, "twice the bandwidth of %s", name), list, &n);
        c = in->cluster;
        c.levels[i].latency_sec /= 2;
        try_change(in, p, &c, mesh,
                   ap_arena_printf(arena, "half the latency of %s", name), list, &n);
    }
    for (int a = 0; a < mesh->n_axes; a++) {
        struct ap_mesh wide = *mesh;
        c = in->cluster;
        if (mesh->microbatch >> a & 1) {
            wide.size[a] /= 2;
            if (wide.size[a] > 1)
                try_change(in, p, &c, &wide, "half as many microbatches", list, &n);
            continue;
        }
        c.levels[c.n_levels - 1].size *= 2;
        wide.size[a] *= 2;
        try_change(in, p, &c, &wide,
                   ap_arena_printf(arena, "twice the devices, on axis %s", mesh->name[a]),
                   list, &n);
    }
    c = in->cluster;
    for (int t = 0; t < AP_N_DTYPES; t++)
        c.flops_per_sec[t] *= 2;
    try_change(in, p, &c, mesh, "devices of twice the FLOP/s", list, &n);
    c = in->cluster;
    c.memory_bandwidth_bytes_per_sec *= 2;
    try_change(in, p, &c, mesh, "devices of twice the memory bandwidth", list, &n);
    c = in->cluster;
    c.launch_sec /= 2;
    try_change(in, p, &c, mesh, "half the kernel-launch overhead", list, &n);
    return n;
}

void price_advice(struct ap_arena *arena, const struct cost_input *in,
                  const struct priced *p, struct ap_buf *out)
{
    struct change list[2 * AP_MAX_LEVELS + AP_MAX_AXES + 3];
    double whole = p->price.serial_sec;

    if (in->cost.variant != AP_COST_DEFAULT)
        return;
    int n = find_changes(arena, in, p, list);
    ap_buf_puts(out, "\nwhat would help this plan most\n");
    if (p->peak_bytes > in->cluster.memory_bytes) {
        ap_buf_puts(out, "  devices with ");
        price_put_bytes(out, (double)p->peak_bytes);
        ap_buf_puts(out, " of memory: it does not fit as it is\n");
    }
    qsort(list, (size_t)n, sizeof(*list), by_sec);
    for (int i = 0; i < n && i < N_SHOWN; i++) {
        ap_buf_printf(out, "  %-44s", list[i].what);
        size_t at = out->len;
        price_put_sec(out, in, list[i].sec);
        price_pad(out, at, 14);
        ap_buf_printf(out, "%8.1f %%\n", 100 * (list[i].sec - whole) / whole);
    }
    if (n == 0)
        ap_buf_puts(out, "  nothing\n");
}
