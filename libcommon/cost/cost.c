/*
 * The prices of collectives and operators on a mesh laid over a cluster: seconds of rings
 * and trees on its links, Alpa's units (Zheng et al., "Alpa", OSDI 2022, and its public
 * code), or bytes moved.
 */
#include "cost/cost.h"

#include <math.h>
#include <stdio.h>

#include "cost/conversion_cache.h"

const char *const ap_cost_variant_names[] = {"default", "alpa", "bytes"};

/* ---- axes on links ---- */

/* How a set of axes taken as rings uses one level. */
struct use {
    int64_t most_per_bus;   /* transfers at once inside one group of the level */
    int64_t most_per_child; /* rings through the link of one child */
};

/* Rank of the first device of the ring that `rank` is in. */
static int64_t ring_of(const struct ap_mesh *mesh, unsigned axes, int64_t rank)
{
    int64_t first = 0, stride = 1;
    for (int a = mesh->n_axes - 1; a >= 0; a--) {
        if (mesh->microbatch >> a & 1)
            continue;
        if (!(axes >> a & 1))
            first += rank % mesh->size[a] * stride;
        rank /= mesh->size[a];
        stride *= mesh->size[a];
    }
    return first;
}

/*
 * The same where children are whole coordinates of one axis with all axes inside it: then
 * all children are alike. False where they are not.
 */
static bool level_use_even(const struct ap_mesh *mesh, unsigned axes, int64_t child,
                           int64_t group, struct use *use)
{
    const int64_t n = ap_mesh_devices(mesh);
    int64_t inside = 1, rings = 1; /* devices of the axes so far; rings in a child */
    bool crosses = false;

    for (int a = mesh->n_axes - 1; a >= 0; a--) {
        const int64_t size = mesh->microbatch >> a & 1 ? 1 : mesh->size[a];
        const int64_t here = inside >= child          ? 1
                             : inside * size <= child ? size
                                                      : child / inside;
        if (inside < child && (child % (inside * here) || size % here))
            return false;
        if (axes >> a & 1)
            crosses |= size > here;
        else
            rings *= here;
        inside *= size;
    }
    use->most_per_child = crosses ? rings : 0;
    use->most_per_bus = crosses ? rings * ((group < n ? group : n) / child) : 0;
    return n >= child || !crosses;
}

/*
 * Counts transfers through one level whose children have `child` devices and whose groups
 * have `group`. A ring runs through its devices in rank order, so it enters each child
 * that it touches once. last and touched have room for one number per device.
 */
static struct use level_use(const struct ap_mesh *mesh, unsigned axes, int64_t child,
                            int64_t group, int64_t *last, int64_t *touched)
{
    int64_t n = ap_mesh_devices(mesh);
    struct use use = {0};

    for (int64_t i = 0; i < n; i++) {
        last[i] = -1;
        touched[i] = 0;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t ring = ring_of(mesh, axes, i);
        if (last[ring] != i / child)
            touched[ring]++;
        last[ring] = i / child;
    }
    int64_t in_child = 0, in_group = 0;
    for (int64_t i = 0; i < n; i++)
        last[i] = -1;
    for (int64_t i = 0; i < n; i++) {
        int64_t ring = ring_of(mesh, axes, i);
        in_child = i % child ? in_child : 0;
        in_group = i % group ? in_group : 0;
        if (touched[ring] > 1 && last[ring] != i / child) {
            in_child++;
            in_group++;
        }
        last[ring] = i / child;
        use.most_per_child =
            in_child > use.most_per_child ? in_child : use.most_per_child;
        use.most_per_bus = in_group > use.most_per_bus ? in_group : use.most_per_bus;
    }
    return use;
}

/* Bandwidth and latency of rings over the axes: those of the slowest level they cross. */
static void lay(struct ap_cost *cost, unsigned axes, int64_t *scratch)
{
    const struct ap_cluster *c = &cost->cluster;
    int64_t n = ap_mesh_devices(&cost->mesh), child = 1;

    cost->set_bandwidth[axes] = INFINITY; /* an axis of size 1 crosses nothing */
    cost->set_latency[axes] = 0;
    cost->set_level[axes] = -1;
    for (int i = 0; i < c->n_levels; i++) {
        const struct ap_link_level *level = &c->levels[i];
        int64_t group = ap_mul64(child, level->size);
        struct use use;
        if (!level_use_even(&cost->mesh, axes, child, group, &use))
            use = level_use(&cost->mesh, axes, child, group, scratch, scratch + n);
        child = group;
        if (use.most_per_child == 0)
            continue;
        double bandwidth =
            ap_link_rate(level, (double)use.most_per_child, (double)use.most_per_bus);
        cost->set_level[axes] = i;
        cost->set_rings[axes] = use.most_per_child;
        if (bandwidth <= cost->set_bandwidth[axes]) {
            cost->set_bandwidth[axes] = bandwidth;
            cost->set_latency[axes] = level->latency_sec;
        }
    }
}

int ap_cost_init(struct ap_arena *arena, struct ap_cost *cost,
                 enum ap_cost_variant variant, const struct ap_cluster *cluster,
                 const struct ap_mesh *mesh, struct ap_err *err)
{
    int64_t have = ap_cluster_devices(cluster), need = ap_mesh_devices(mesh);

    *cost = (struct ap_cost){.variant = variant,
                             .alpa = ap_alpa_defaults(),
                             .cluster = *cluster,
                             .mesh = *mesh};
    if (cluster->n_kinds)
        return ap_err_set(err, "cluster %s has several kinds of devices: a mesh has one",
                          cluster->name);
    if (need > have) {
        char text[128];
        size_t len = 0;
        for (int a = mesh->microbatch ? 1 : 0;
             a < mesh->n_axes && len < sizeof(text) - 24; a++)
            len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%lld",
                                    len ? "x" : "", (long long)mesh->size[a]);
        return ap_err_set(err, "mesh %s needs %lld devices, cluster %s has %lld", text,
                          (long long)need, cluster->name, (long long)have);
    }
    struct ap_mark mark = ap_arena_mark(arena);
    int64_t *scratch = AP_NEW_N(arena, 2 * need, int64_t);
    for (unsigned axes = 1; axes < 1u << mesh->n_axes; axes++)
        lay(cost, axes, scratch);
    ap_arena_rewind(arena, mark);
    for (int a = 0; a < mesh->n_axes; a++) {
        cost->bandwidth[a] = cost->set_bandwidth[1u << a];
        cost->latency[a] = cost->set_latency[1u << a];
    }
    cost->cache = ap_conversion_cache_new(mesh->n_axes);
    return 0;
}

void ap_cost_free(struct ap_cost *cost)
{
    ap_conversion_cache_free(cost->cache);
    cost->cache = NULL;
}

/* ---- collectives ---- */

static double devices_on(const struct ap_mesh *mesh, unsigned axes)
{
    return (double)ap_mesh_group(mesh, axes & ~mesh->microbatch);
}

/* Bytes that each device sends. */
static double bytes_moved(enum ap_op op, double n, double b)
{
    if (op == AP_OP_ALL_REDUCE)
        return 2 * b * (n - 1) / n;
    if (op == AP_OP_ALL_TO_ALL)
        return b * (n - 1) / (n * n);
    if (op == AP_OP_COLLECTIVE_PERMUTE)
        return b;
    return b * (n - 1) / n;
}

/*
 * Hops of a ring all-reduce over the axes, one way. Axes over the same links are reduced
 * one after the other, (n1 - 1) + (n2 - 1) + ... hops for as many bytes, so that one
 * all-reduce never costs more than reduce-scatters and all-gathers in its place.
 */
static double ring_hops(const struct ap_cost *cost, unsigned axes)
{
    double n = 1, hops = 0;
    bool same_links = true;

    for (int a = 0; a < cost->mesh.n_axes; a++) {
        if (!((axes & ~cost->mesh.microbatch) >> a & 1) || cost->mesh.size[a] == 1)
            continue;
        n *= (double)cost->mesh.size[a];
        hops += (double)(cost->mesh.size[a] - 1);
        same_links &= cost->bandwidth[a] == cost->set_bandwidth[axes] &&
                      cost->latency[a] == cost->set_latency[axes];
    }
    return same_links ? hops : n - 1;
}

/*
 * Seconds by the cluster's tables, or -1. Where each device has a link of its own, n
 * devices that have no table are taken to be between those with fewer and with more, if
 * they send as many bytes each: linear in log n, and as the nearest beyond them.
 */
static double table_sec(const struct ap_cost *cost, enum ap_op op, unsigned axes,
                        double n, double b)
{
    const struct ap_measured *m = &cost->cluster.measured;
    const int level = cost->set_level[axes];
    const struct ap_collective_time *less = NULL, *more = NULL;
    double sec[2];

    for (int i = 0; i < m->n_collectives; i++) {
        const struct ap_collective_time *t = &m->collective[i];
        const double has = (double)t->devices;
        if (t->op != op || t->level != level || t->rings != cost->set_rings[axes])
            continue;
        less = has <= n && (!less || t->devices > less->devices) ? t : less;
        more = has >= n && (!more || t->devices < more->devices) ? t : more;
    }
    const bool exact = less && (double)less->devices == n;
    if ((!less && !more) || (!exact && (cost->cluster.levels[level].shared ||
                                        cost->cluster.levels[level].uplink)))
        return -1;
    less = less ? less : more;
    more = more ? more : less;
    for (int i = 0; i < 2; i++) {
        const struct ap_collective_time *t = i ? more : less;
        const double same =
            b * bytes_moved(op, n, 1) / bytes_moved(op, (double)t->devices, 1);
        sec[i] = ap_time_at(&t->bytes, exact ? b : same, t->bytes.row[0].sec);
    }
    if (less == more)
        return sec[0];
    const double first = log2((double)less->devices), last = log2((double)more->devices);
    return sec[0] + (sec[1] - sec[0]) * (log2(n) - first) / (last - first);
}

/*
 * The share of an all-to-all's bytes that is sent where a token of k experts goes once to
 * each of the h children (hosts, or devices of one) that a group spans, and not once for
 * each expert: of experts drawn evenly, h (1 - (1 - 1/h)^k) children have one.
 */
static double sent_once(const struct ap_cost *cost, unsigned axes, double n)
{
    const double k = cost->cluster.experts_per_token;
    double child = 1, h = n;

    if (k <= 1)
        return 1;
    for (int i = 0; i < cost->set_level[axes]; i++)
        child *= (double)cost->cluster.levels[i].size;
    if (cost->set_level[axes] > 0)
        h = fmax(1, n * (double)cost->set_rings[axes] / child);
    return h * (1 - pow(1 - 1 / h, k)) / k;
}

static double seconds(const struct ap_cost *cost, enum ap_op op, unsigned axes, double b)
{
    double n = devices_on(&cost->mesh, axes), e = cost->cluster.collective_efficiency[op];
    double bandwidth = cost->set_bandwidth[axes], latency = cost->set_latency[axes];

    if (op == AP_OP_ALL_TO_ALL)
        b *= sent_once(cost, axes, n) * fmax(1, cost->cluster.expert_load);
    const double measured = table_sec(cost, op, axes, n, b);

    if (measured >= 0)
        return measured;
    if (op ==
        AP_OP_COLLECTIVE_PERMUTE) { /* no ring: at worst all devices leave at once */
        bandwidth = INFINITY;
        latency = 0;
        for (int a = 0; a < cost->mesh.n_axes; a++)
            if (axes >> a & 1) {
                bandwidth = fmin(bandwidth, cost->bandwidth[a]);
                latency = fmax(latency, cost->latency[a]);
            }
        return latency + e * b / bandwidth;
    }
    double move = e * bytes_moved(op, n, b) / bandwidth;
    if (op != AP_OP_ALL_REDUCE)
        return latency * (n - 1) + move;
    double ring = 2 * latency * ring_hops(cost, axes) + move;
    double tree = 2 * latency * ceil(log2(n)) + e * 2 * b / bandwidth;
    return fmin(ring, tree);
}

struct ap_alpa_rules ap_alpa_defaults(void)
{
    struct ap_alpa_rules rules = {0};

    for (int a = 0; a < AP_MAX_AXES; a++) {
        rules.alpha[a] = 1;
        rules.beta[a] = a == 0 ? 1 : 0.1;
    }
    return rules;
}

/*
 * Alpa's units. The constants order choices of equal cost. Over several axes at once, as
 * in XLA: the largest alpha and beta. Not rounded, as in Alpa's Python; its C++ rounds
 * all but the constant to whole units.
 */
static double alpa_units(const struct ap_cost *cost, enum ap_op op, unsigned axes,
                         double b)
{
    const struct ap_mesh *mesh = &cost->mesh;
    double n = devices_on(mesh, axes), alpha = 0, beta = 0, sum = 0;

    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++) {
        int k = ap_mesh_device_axis(mesh, a);
        if (!(axes >> a & 1))
            continue;
        alpha = fmax(alpha, cost->alpa.alpha[k]);
        beta = fmax(beta, cost->alpa.beta[k]);
        /* a permute goes along each of its axes */
        sum += cost->alpa.alpha[k] + cost->alpa.beta[k] * b;
    }

    if (op == AP_OP_ALL_GATHER)
        return alpha + beta * (n - 1) / n * b + 0.1;
    if (op == AP_OP_ALL_REDUCE)
        return alpha + beta * 2 * (n - 1) / n * b + 0.01;
    if (op == AP_OP_REDUCE_SCATTER)
        return alpha + beta * (n - 1) / n * b + 0.001;
    if (op == AP_OP_ALL_TO_ALL)
        return alpha + beta * (n - 1) / n / n * b * (n / 2) + 0.001;
    return sum;
}

double ap_cost_collective(const struct ap_cost *cost, enum ap_op op, unsigned axes,
                          int64_t bytes)
{
    double n = devices_on(&cost->mesh, axes);

    if (ap_ops[op].class != AP_CLASS_COLLECTIVE || n == 1)
        return 0;
    switch (cost->variant) {
    case AP_COST_DEFAULT:
        return seconds(cost, op, axes, (double)bytes);
    case AP_COST_ALPA:
        return alpa_units(cost, op, axes, (double)bytes);
    case AP_COST_BYTES:
        return bytes_moved(op, n, (double)bytes);
    }
    return 0;
}

/* The share of the peak that a kernel reaches. A grouped product without rates of its own
 * is a dot of all its FLOPs; an attention without them has the cluster's efficiency. */
static double share_of_peak(const struct ap_cluster *c, const struct ap_kernel_work *w)
{
    enum ap_kernel kernel = w->kernel;
    const struct ap_rate *rate =
        kernel < AP_KERNEL_DOT
            ? NULL
            : ap_measured_rate(&c->measured, kernel, w->dtype, w->phase, w->width);
    double size = w->size;

    if (!rate && kernel == AP_KERNEL_GROUPED)
        rate = ap_measured_rate(&c->measured, kernel = AP_KERNEL_DOT, w->dtype, w->phase,
                                w->width);
    if (kernel == AP_KERNEL_DOT)
        size = w->flops;
    return rate ? ap_share_at(rate->row, rate->n, size)
                : ap_cluster_efficiency(c, w->flops);
}

double ap_cluster_kernel_sec(const struct ap_cluster *c, const struct ap_kernel_work *w)
{
    const struct ap_kernel_time *measured =
        ap_measured_kernel(&c->measured, w->kernel, w->dtype);

    if (!measured && w->kernel == AP_KERNEL_GROUPED)
        measured = ap_measured_kernel(&c->measured, AP_KERNEL_DOT, w->dtype);
    if (measured)
        return ap_kernel_time_at(measured, w->flops, w->bytes);
    double peak = c->flops_per_sec[w->dtype] > 0 ? c->flops_per_sec[w->dtype]
                                                 : c->flops_per_sec[AP_F32];
    if (w->dtype == AP_F32 && w->kernel >= AP_KERNEL_DOT && !w->precise &&
        c->tf32_flops_per_sec > 0)
        peak = c->tf32_flops_per_sec;
    return fmax(w->flops / peak / share_of_peak(c, w),
                w->bytes / c->memory_bandwidth_bytes_per_sec) +
           c->launch_sec;
}

double ap_cost_kernel(const struct ap_cost *cost, const struct ap_kernel_work *w)
{
    struct ap_kernel_work most = *w;

    if (cost->variant != AP_COST_DEFAULT)
        return 0;
    if (w->kernel == AP_KERNEL_GROUPED) {
        most.flops *= fmax(1, cost->cluster.expert_load);
        most.size *= fmax(1, cost->cluster.expert_load);
    }
    return ap_cluster_kernel_sec(&cost->cluster, &most);
}

double ap_cost_compute(const struct ap_cost *cost, double flops, enum ap_dtype dtype,
                       double bytes)
{
    const struct ap_kernel_work w = {
        .kernel = AP_KERNEL_MOVE, .dtype = dtype, .flops = flops, .bytes = bytes};

    return ap_cost_kernel(cost, &w);
}
