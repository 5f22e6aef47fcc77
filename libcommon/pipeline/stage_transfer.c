/*
 * Problem: a tensor lies on the devices of one stage in one layout, and the devices of
 * another stage need it in another; how many bytes cross, and how long does that take?
 * Idea: a tile is the part that a device of the destination holds; if several hold the
 * same tile, it is sent to each of them, or it is sent once and exchanged there. Senders
 * that hold the same share the work, so that bytes are spread evenly over the pairs of
 * devices, and each link level carries those of the pairs whose path it is the outermost
 * of. Levels, devices and buses work side by side: the busiest one counts. Cost: linear
 * in the devices once per pair of stages, then constant per tensor. Source: Zheng et al.,
 * "Alpa" (OSDI 2022), section 6.
 */
#include <math.h>
#include <string.h>

#include "pipeline/pipeline_price.h"

/* ---- links between two sets of devices ---- */

/* Devices of both sides in one group of a level, and in one child of it. */
struct meeting {
    double from, to;             /* in the group */
    double from_child, to_child; /* in the child */
    double inside;               /* pairs that stay in one child, so far */
};

/* What a level carries at its busiest place, per pair of devices. */
struct busy {
    double pairs; /* all over the level */
    double bus, uplink, device;
};

static double max2(double a, double b)
{
    return a > b ? a : b;
}

/* Number of devices of a list, from *i on, with device / span == group. */
static int64_t count_in(const int64_t *devices, int64_t n, int64_t *i, int64_t span,
                        int64_t group)
{
    int64_t first = *i;
    while (*i < n && devices[*i] / span == group)
        ++*i;
    return *i - first;
}

/* A level's groups, as a walk over both lists meets them. */
struct walk {
    const struct ap_devices *from, *to;
    int64_t child, span; /* devices of a group of the level below, and of this level */
    int64_t f, t;        /* positions in the lists */
};

/* One group of the level: both positions go on to its end. */
static void visit_group(struct walk *w, int64_t group, struct busy *b)
{
    const struct ap_devices *from = w->from, *to = w->to;
    const int64_t child = w->child, span = w->span;
    int64_t *f = &w->f, *t = &w->t;
    int64_t f0 = *f, t0 = *t;
    double n_from = (double)count_in(from->id, from->n, f, span, group);
    double n_to = (double)count_in(to->id, to->n, t, span, group), pairs = 0;

    if (n_from == 0 || n_to == 0)
        return;
    while (f0 < *f || t0 < *t) {
        int64_t a = f0 < *f ? from->id[f0] / child : INT64_MAX;
        int64_t c = t0 < *t ? to->id[t0] / child : INT64_MAX;
        int64_t least = a < c ? a : c;
        double in_from = (double)count_in(from->id, *f, &f0, child, least);
        double in_to = (double)count_in(to->id, *t, &t0, child, least);
        double out = in_from * (n_to - in_to), in = in_to * (n_from - in_from);
        pairs += out;
        b->uplink = max2(b->uplink, max2(out, in));
        if (in_from > 0)
            b->device = max2(b->device, n_to - in_to);
        if (in_to > 0)
            b->device = max2(b->device, n_from - in_from);
    }
    b->pairs += pairs;
    b->bus = max2(b->bus, pairs);
}

struct ap_link ap_link_between(const struct ap_cluster *cluster,
                               const struct ap_devices *from, const struct ap_devices *to)
{
    struct ap_link link = {0};
    double all = (double)from->n * (double)to->n;
    int64_t child = 1;

    for (int l = 0; l < cluster->n_levels; l++) {
        /* inside a host the links are those of its kind */
        const struct ap_cluster *of =
            l == 0 && cluster->n_kinds > 0
                ? cluster->kind[ap_cluster_kind_of(cluster, from->id[0])].devices
                : cluster;
        const struct ap_link_level *level = &of->levels[l];
        int64_t span = ap_mul64(child, cluster->levels[l].size);
        struct busy b = {0};
        struct walk w = {.from = from, .to = to, .child = child, .span = span};
        while (w.f < from->n && w.t < to->n) {
            int64_t a = from->id[w.f] / span, c = to->id[w.t] / span;
            visit_group(&w, a < c ? a : c, &b);
        }
        child = span;
        if (b.pairs == 0)
            continue;
        double busiest = level->shared ? b.bus : b.device; /* pairs through one link */
        if (level->uplink)
            busiest =
                max2(busiest, b.uplink / (double)(level->rails > 1 ? level->rails : 1));
        double sec = busiest / all / ap_link_rate(level, 1, 1);
        link.level_share[l] = b.pairs / all;
        link.level = l;
        link.latency_sec = level->latency_sec;
        link.sec_per_byte = max2(link.sec_per_byte, sec);
    }
    link.measured = ap_measured_send(&cluster->measured, link.level);
    link.scale = link.sec_per_byte * ap_link_rate(&cluster->levels[link.level], 1, 1);
    return link;
}

double ap_link_sec(const struct ap_link *link, double bytes, int n)
{
    const int times = n > 1 ? n : 1;

    if (!link->measured)
        return times * link->latency_sec + bytes * link->sec_per_byte;
    const struct ap_time_rows *rows = &link->measured->bytes;
    return times * ap_time_at(rows, bytes / times * link->scale, rows->row[0].sec);
}

/* ---- tensors ---- */

/* Devices that hold the same part of a tensor: those along axes that do not split it. */
static unsigned copy_axes(const struct ap_mesh *mesh, const struct ap_layout *l,
                          int64_t *copies)
{
    unsigned axes = 0;
    *copies = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        if (l->axis[a].kind != AP_SPLIT && mesh->size[a] > 1) {
            axes |= 1u << a;
            *copies *= mesh->size[a];
        }
    return axes;
}

struct ap_transfer_price ap_price_transfer_on(const struct ap_link *link,
                                              const struct ap_shape *shape, int64_t share,
                                              const struct ap_cost *to_cost,
                                              const struct ap_layout *to,
                                              enum ap_resharding how)
{
    struct ap_transfer_price x = {.how = how};
    int64_t copies;
    unsigned axes = copy_axes(&to_cost->mesh, to, &copies);
    int64_t tile = ap_ceil_div(ap_layout_local_bytes(&to_cost->mesh, shape, to), share);

    if (copies == 1 || shape->rank == 0)
        how = x.how = AP_RESHARD_SEND_RECV;
    x.sent_bytes = ap_mul64(ap_ceil_div(ap_shape_bytes(shape), share),
                            how == AP_RESHARD_SEND_RECV ? copies : 1);
    x.sec = ap_link_sec(link, (double)x.sent_bytes, 1);
    if (how != AP_RESHARD_SEND_RECV)
        x.gather_bytes = tile;
    if (how == AP_RESHARD_ALL_GATHER)
        x.sec += ap_cost_collective(to_cost, AP_OP_ALL_GATHER, axes, tile);
    if (how == AP_RESHARD_BROADCAST)
        x.sec += (double)(copies - 1) *
                 ap_cost_collective(to_cost, AP_OP_COLLECTIVE_PERMUTE, axes, tile);
    return x;
}

struct ap_transfer_price ap_price_transfer(const struct ap_link *link,
                                           const struct ap_shape *shape, int64_t share,
                                           const struct ap_cost *to_cost,
                                           const struct ap_layout *to,
                                           enum ap_resharding given)
{
    const int lo = given ? (int)given : AP_RESHARD_SEND_RECV;
    const int hi = given ? (int)given : AP_N_RESHARDINGS - 1;
    struct ap_transfer_price best = {0};

    for (int how = lo; how <= hi; how++) {
        struct ap_transfer_price x = ap_price_transfer_on(link, shape, share, to_cost, to,
                                                          (enum ap_resharding)how);
        if (how == lo || x.sec < best.sec)
            best = x;
    }
    return best;
}

bool ap_transfer_stays(const struct ap_stage *from, int made, const struct ap_stage *to,
                       int read)
{
    const struct ap_plan *a = &from->sharding.plan, *b = &to->sharding.plan;
    const struct ap_layout has = ap_stage_out_layout(a, made);
    const struct ap_layout needs = ap_plan_node_layout(b, read);

    return from->n_devices == to->n_devices &&
           !memcmp(from->devices, to->devices,
                   (size_t)to->n_devices * sizeof *to->devices) &&
           a->mesh.n_axes == b->mesh.n_axes &&
           !memcmp(a->mesh.size, b->mesh.size,
                   (size_t)a->mesh.n_axes * sizeof *a->mesh.size) &&
           ap_layout_equal(&has, &needs);
}
