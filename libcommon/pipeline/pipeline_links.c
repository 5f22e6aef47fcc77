/*
 * Problem: how many bytes does each device send each other one in a step of a pipeline?
 * Idea: every send is resharded as it will be when it runs (reshard.c), for one
 * microbatch, as all are alike. Cost: resharding, once per send. Source: Zheng et al.,
 * "Alpa" (OSDI 2022), section 6.
 */
#include "pipeline/pipeline_price.h"

#include <stdlib.h>
#include <string.h>

struct linker {
    struct ap_pricing *p;
    int n;
    int64_t *id;    /* devices of the plan, ascending */
    int64_t *bytes; /* [sender * n + receiver] */
};

static int compare_ids(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static int place_of(const struct linker *l, int64_t id)
{
    const int64_t *at = bsearch(&id, l->id, (size_t)l->n, sizeof *l->id, compare_ids);
    return (int)(at - l->id);
}

static void add(const struct linker *l, int64_t from, int64_t to, int64_t bytes)
{
    if (from != to)
        l->bytes[place_of(l, from) * l->n + place_of(l, to)] += bytes;
}

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

static void add_send(const struct linker *l, const struct ap_send *x)
{
    const struct ap_pricing *p = l->p;
    const struct ap_stage *from = &p->stages->stage[x->from];
    const struct ap_stage *to = &p->stages->stage[x->to];
    const struct ap_shape *shape = &p->g->nodes[x->node].shape;
    const enum ap_resharding how = x->transfer.how;
    const bool often = x->kind == AP_SEND_MICROBATCH;
    const int split = often ? p->micro.dim[x->node] : -1;
    const int64_t each = ap_dtype_size(shape->dtype) * (often ? p->micro.n : 1);
    struct ap_layout made = ap_stage_out_layout(&from->sharding.plan, x->made);
    struct ap_layout read = ap_plan_node_layout(&to->sharding.plan, x->read);
    struct ap_mesh sends, takes;
    struct ap_mark mark = ap_arena_mark(p->arena);

    put_in_time(p, &from->sharding.plan, split, &sends, &made);
    put_in_time(p, &to->sharding.plan, split, &takes, &read);
    const struct ap_reshard_side a = {&sends, &made, from->devices};
    const struct ap_reshard_side b = {&takes, &read, to->devices};
    const struct ap_reshard r = ap_reshard_new(p->arena, shape, &a, &b, 0, how);
    for (int i = 0; i < r.n_moves; i++)
        add(l, from->devices[r.move[i].from], to->devices[r.move[i].to],
            each * r.move[i].elems);
    for (int q = 0; q < r.n_to; q++)
        for (int i = 0; i < ap_reshard_steps(&r, how, q); i++) {
            const int block = ap_reshard_sends(&r, how, q, i);
            if (block >= 0)
                add(l, to->devices[q], to->devices[ap_reshard_next(&r, q, 1)],
                    each * ap_reshard_elems(r.rank, ap_reshard_block(&r, how, q, block)));
        }
    ap_arena_rewind(p->arena, mark);
}

void ap_pipeline_links(struct ap_pricing *p)
{
    struct linker l = {.p = p};
    int64_t n = 0;

    for (int i = 0; i < p->stages->n / p->stages->chunks; i++)
        n += p->stages->stage[i].n_devices;
    l.id = AP_NEW_N(p->arena, n + 1, int64_t);
    for (int i = 0; i < p->stages->n / p->stages->chunks; i++) {
        const struct ap_stage *st = &p->stages->stage[i];
        memcpy(l.id + l.n, st->devices, (size_t)st->n_devices * sizeof *l.id);
        l.n += (int)st->n_devices;
    }
    qsort(l.id, (size_t)l.n, sizeof *l.id, compare_ids);
    l.bytes = AP_NEW_N(p->arena, l.n * l.n + 1, int64_t);
    for (int i = 0; i < p->out->n_sends; i++)
        if (p->out->sends[i].made >= 0)
            add_send(&l, &p->out->sends[i]);
    for (int i = 0; i < l.n * l.n; i++)
        p->out->n_links += l.bytes[i] > 0;
    p->out->links = AP_NEW_N(p->arena, p->out->n_links + 1, struct ap_device_link);
    p->out->n_links = 0;
    for (int i = 0; i < l.n * l.n; i++)
        if (l.bytes[i] > 0)
            p->out->links[p->out->n_links++] =
                (struct ap_device_link){l.id[i / l.n], l.id[i % l.n], l.bytes[i]};
}
