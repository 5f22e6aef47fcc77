/*
 * Problem: how many bytes does each device send each other one in a step of a pipeline?
 * Idea: a send is resharded as it will be when it runs (reshard.c), for one microbatch,
 * as all are alike; sends of equal values between equal meshes are resharded once.
 * Devices that follow each other and send equal bytes to devices that follow each other
 * are one entry. Cost: resharding, once per different send; for each two sets of devices
 * the moves between them. Source: Zheng et al., "Alpa" (OSDI 2022), section 6.
 */
#include "pipeline/pipeline_price.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

/* The elements that devices of one mesh send devices of another, and in rings of
 * receivers. */
struct pattern {
    struct ap_mesh sends, takes;
    struct ap_layout made, read;
    const struct ap_shape *shape;
    enum ap_resharding how;
    bool own; /* both are one set of devices */
    int n_moves, n_rings;
    struct ap_reshard_move *move, *ring;
};

/* Sends of one pattern between two sets of devices, or inside one. */
struct bundle {
    int from, to; /* sets of devices, as the stages of the first round of chunks */
    int pattern;
    bool ring;
    int64_t each; /* bytes per element, summed */
};

struct linker {
    struct ap_pricing *p;
    struct pattern *pattern;
    int n_patterns, cap_patterns;
    struct bundle *bundle;
    int n_bundles, cap_bundles;
    struct ap_device_link *one; /* between two sets of devices, one by one */
    int n_ones, cap_ones, cap_links;
};

/* How a value lies on a stage's mesh with the microbatch axis in front; split: dimension
 * of which a microbatch has a share, -1. */
static void put_in_time(const struct ap_pricing *p, const struct ap_plan *plan, int split,
                        struct ap_mesh *mesh, struct ap_layout *layout)
{
    struct ap_err err = {0};

    *mesh = plan->mesh;
    if (split < 0 || p->micro.n == 1 || ap_mesh_add_microbatches(mesh, p->micro.n, &err))
        return;
    for (int a = AP_MAX_AXES - 1; a > 0; a--)
        layout->axis[a] = layout->axis[a - 1];
    layout->axis[0] = (struct ap_placement){.kind = AP_SPLIT, .dim = (int8_t)split};
}

static bool same_mesh(const struct ap_mesh *a, const struct ap_mesh *b)
{
    return a->n_axes == b->n_axes && a->microbatch == b->microbatch &&
           !memcmp(a->size, b->size, (size_t)a->n_axes * sizeof *a->size);
}

static bool same_pattern(const struct pattern *a, const struct pattern *b)
{
    return a->how == b->how && a->own == b->own && a->shape->rank == b->shape->rank &&
           !memcmp(a->shape->dims, b->shape->dims,
                   (size_t)a->shape->rank * sizeof *a->shape->dims) &&
           same_mesh(&a->sends, &b->sends) && same_mesh(&a->takes, &b->takes) &&
           ap_layout_equal(&a->made, &b->made) && ap_layout_equal(&a->read, &b->read);
}

/* Fills the moves. */
static void reshard(struct ap_arena *arena, struct pattern *x, const int64_t *from,
                    const int64_t *to)
{
    struct ap_arena own = {0};
    const struct ap_reshard_side a = {&x->sends, &x->made, from};
    const struct ap_reshard_side b = {&x->takes, &x->read, to};
    const struct ap_reshard r = ap_reshard_new(&own, x->shape, &a, &b, 0, x->how);

    x->n_moves = r.n_moves;
    x->move = AP_NEW_N(arena, r.n_moves, struct ap_reshard_move);
    if (r.n_moves > 0)
        memcpy(x->move, r.move, (size_t)r.n_moves * sizeof *r.move);
    x->ring = AP_NEW_N(arena, r.n_to, struct ap_reshard_move);
    for (int q = 0; q < r.n_to; q++) {
        struct ap_reshard_move next = {q, ap_reshard_next(&r, q, 1), 0};
        for (int i = 0; i < ap_reshard_steps(&r, x->how, q); i++) {
            const int block = ap_reshard_sends(&r, x->how, q, i);
            if (block >= 0)
                next.elems +=
                    ap_reshard_elems(r.rank, ap_reshard_block(&r, x->how, q, block));
        }
        if (next.elems > 0)
            x->ring[x->n_rings++] = next;
    }
    ap_arena_free(&own);
}

static int find_pattern(struct linker *l, struct pattern *x, const struct ap_stage *from,
                        const struct ap_stage *to)
{
    for (int i = 0; i < l->n_patterns; i++)
        if (same_pattern(&l->pattern[i], x))
            return i;
    reshard(l->p->arena, x, from->devices, to->devices);
    AP_ROOM(l->pattern, l->n_patterns, l->cap_patterns);
    l->pattern[l->n_patterns] = *x;
    return l->n_patterns++;
}

static void add_send(struct linker *l, const struct ap_send *x)
{
    const struct ap_pricing *p = l->p;
    const struct ap_stage *from = &p->stages->stage[x->from];
    const struct ap_stage *to = &p->stages->stage[x->to];
    const struct ap_shape *shape = &p->g->nodes[x->node].shape;
    const bool often = x->kind == AP_SEND_MICROBATCH;
    const int split = often ? p->micro.dim[x->node] : -1;
    struct bundle b = {.from = ap_stages_device(l->p->stages, x->from),
                       .to = ap_stages_device(l->p->stages, x->to),
                       .each = ap_dtype_size(shape->dtype) * (often ? p->micro.n : 1)};
    struct pattern pattern = {
        .made = ap_stage_out_layout(&from->sharding.plan, x->made),
        .read = ap_plan_node_layout(&to->sharding.plan, x->read),
        .shape = shape,
        .how = x->transfer.how,
        .own = b.from == b.to,
    };

    put_in_time(p, &from->sharding.plan, split, &pattern.sends, &pattern.made);
    put_in_time(p, &to->sharding.plan, split, &pattern.takes, &pattern.read);
    b.pattern = find_pattern(l, &pattern, from, to);
    AP_ROOM_FOR(l->bundle, l->n_bundles, l->cap_bundles, 2);
    l->bundle[l->n_bundles++] = b;
    b.from = b.to;
    b.ring = true;
    if (l->pattern[b.pattern].n_rings > 0)
        l->bundle[l->n_bundles++] = b;
}

static int by_sets(const void *a, const void *b)
{
    const struct bundle *x = a, *y = b;

    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    if (x->pattern != y->pattern)
        return x->pattern < y->pattern ? -1 : 1;
    return (int)x->ring - (int)y->ring;
}

static int by_devices(const void *a, const void *b)
{
    const struct ap_device_link *x = a, *y = b;

    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

static int by_distance(const void *a, const void *b)
{
    const struct ap_device_link *x = a, *y = b;

    if (x->to - x->from != y->to - y->from)
        return x->to - x->from < y->to - y->from ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

static void add(struct linker *l, const struct ap_reshard_move *move, int n,
                const int64_t *from, const int64_t *to, int64_t each)
{
    for (int i = 0; i < n; i++)
        if (from[move[i].from] != to[move[i].to]) {
            AP_ROOM(l->one, l->n_ones, l->cap_ones);
            l->one[l->n_ones++] = (struct ap_device_link){
                from[move[i].from], to[move[i].to], each * move[i].elems, 1};
        }
}

/* The links of `one`, as few as there are. */
static void join(struct linker *l)
{
    struct ap_pipeline_price *out = l->p->out;
    int n = 0;

    if (l->n_ones > 0)
        qsort(l->one, (size_t)l->n_ones, sizeof *l->one, by_devices);
    for (int i = 0; i < l->n_ones; i++) {
        struct ap_device_link *last = n > 0 ? &l->one[n - 1] : NULL;
        if (last && by_devices(last, &l->one[i]) == 0)
            last->bytes += l->one[i].bytes;
        else
            l->one[n++] = l->one[i];
    }
    l->n_ones = 0;
    if (n > 0)
        qsort(l->one, (size_t)n, sizeof *l->one, by_distance);
    for (int i = 0; i < n; i++) {
        const struct ap_device_link *x = &l->one[i];
        struct ap_device_link *run = i > 0 ? &out->links[out->n_links - 1] : NULL;
        if (run && run->from + run->n == x->from && run->to + run->n == x->to &&
            run->bytes == x->bytes) {
            run->n++;
            continue;
        }
        AP_ROOM_IN(l->p->arena, out->links, out->n_links, l->cap_links);
        out->links[out->n_links++] = *x;
    }
}

void ap_pipeline_links(struct ap_pricing *p)
{
    struct linker l = {.p = p};

    for (int i = 0; i < p->out->n_sends; i++)
        if (p->out->sends[i].made >= 0)
            add_send(&l, &p->out->sends[i]);
    if (l.n_bundles > 0)
        qsort(l.bundle, (size_t)l.n_bundles, sizeof *l.bundle, by_sets);
    for (int lo = 0, hi; lo < l.n_bundles; lo = hi) {
        struct bundle b = l.bundle[lo];
        const int64_t *from = p->stages->stage[b.from].devices;
        const int64_t *to = p->stages->stage[b.to].devices;
        const struct pattern *x = &l.pattern[b.pattern];
        for (hi = lo + 1; hi < l.n_bundles && by_sets(&b, &l.bundle[hi]) == 0; hi++)
            b.each += l.bundle[hi].each;
        if (b.ring)
            add(&l, x->ring, x->n_rings, to, to, b.each);
        else
            add(&l, x->move, x->n_moves, from, to, b.each);
        if (hi == l.n_bundles || l.bundle[hi].from != b.from || l.bundle[hi].to != b.to)
            join(&l);
    }
    free(l.pattern);
    free(l.bundle);
    free(l.one);
}
