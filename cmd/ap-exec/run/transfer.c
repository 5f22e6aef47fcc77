/*
 * Cross-mesh resharding.
 * Problem: a value has one layout on the devices of one stage and must have another on
 * the devices of another stage: which device sends which elements to which?
 * Idea: a shard is a product of index sets, one per dimension, so what a sender holds and
 * a receiver needs is the product of the intersections: a tile. Of senders that hold the
 * same shard, the receiver's number modulo their count picks one, so that they share the
 * load. Sender and receiver compute the same tiles in the same order, so that no message
 * describes another.
 * Cost: linear in the dimensions' sizes for each pair of devices and message, once; then
 * linear in the bytes sent.
 * Source: Zheng et al., "Alpa", section 6, without its local all-gather.
 */
#include "run/transfer.h"

#include "backend.h"
#include "cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

/* The elements of one message that this rank exchanges with one other rank. */
struct tile {
    int peer; /* rank of the job */
    int tag;
    int rank; /* of the value; per dimension: number and offsets here of the indices */
    int64_t n[AP_MAX_RANK];
    int64_t *at[AP_MAX_RANK];
    int64_t bytes;
    /* the sending side of a tile of this rank to itself, else NULL; its bytes there */
    struct tile *twin;
    char *own;
};

/* This rank's tiles of one message. */
struct tiles {
    int n;
    struct tile *tile; /* by peer */
};

/* The sending or the receiving side of a transfer on this rank. */
struct side {
    int node; /* of the stage's program */
    int64_t bytes;
    int elem_bytes;
    char *host;          /* copy of the value, where the backend's is elsewhere */
    bool covered;        /* the tiles of a message are all of the value */
    struct tiles *tiles; /* [message]; NULL: this rank is not on this side */
};

struct transfers {
    struct ap_arena *arena;
    const struct ap_pipeline_program *pipeline;
    struct comm *job;
    const struct backend *backend;
    struct side *out, *in; /* [transfer] */
    char *packed;          /* room for the largest tile */
    int64_t packed_bytes, own_bytes, host_bytes, sent_bytes;
};

/* ---- tiles ---- */

/* What one device holds of a value for one message (of one microbatch). */
static struct shard shard_of(struct ap_arena *arena, const struct ap_mesh *mesh,
                             const struct placement *place, int device, int message)
{
    int64_t coords[AP_MAX_AXES];
    ap_mesh_coords(mesh, device, coords);
    if (mesh->microbatch)
        coords[0] = message;
    return exec_shard(arena, mesh, place, coords);
}

/* The tile of what `mine` and `other` have in common; 0 bytes where that is nothing. */
static struct tile common(struct ap_arena *arena, const struct ap_shape *shape,
                          const struct shard *mine, const struct shard *other)
{
    struct tile p = {.rank = shape->rank};
    int64_t elems = 1, stride[AP_MAX_RANK];

    cpu_strides(&mine->local, stride);
    for (int d = 0; d < shape->rank; d++) {
        const int64_t n = mine->local.dims[d];
        p.at[d] = AP_NEW_N(arena, n + 1, int64_t);
        struct ap_mark mark = ap_arena_mark(arena);
        bool *has = AP_NEW_N(arena, shape->dims[d] + 1, bool);
        for (int64_t i = 0; i < other->local.dims[d]; i++)
            if (other->map[d][i] >= 0)
                has[other->map[d][i]] = true;
        /* local indices rise with global ones: both sides list the same order */
        for (int64_t i = 0; i < n; i++)
            if (mine->map[d][i] >= 0 && has[mine->map[d][i]])
                p.at[d][p.n[d]++] = i * stride[d];
        ap_arena_rewind(arena, mark);
        elems *= p.n[d];
    }
    p.bytes = elems * ap_dtype_size(shape->dtype);
    return p;
}

/* The number of a device among those that hold the same shard, and their count. */
static int64_t copy_of(const struct ap_mesh *mesh, const struct ap_layout *layout,
                       int device, int64_t *copies)
{
    int64_t coords[AP_MAX_AXES], copy = 0;
    ap_mesh_coords(mesh, device, coords);
    *copies = 1;
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
        if (layout->axis[a].kind != AP_SPLIT) {
            copy = copy * mesh->size[a] + coords[a];
            *copies *= mesh->size[a];
        }
    return copy;
}

static int index_in(const struct ap_lane *lane, int rank)
{
    for (int i = 0; i < lane->n_ranks; i++)
        if (lane->ranks[i] == rank)
            return i;
    return -1;
}

/* The tiles of message `tag` + message of transfer t for `me`, a device of the sending
 * (out) or receiving side. */
static struct tiles tiles_of(struct transfers *h, int t, int message, int me, bool out,
                             int tag)
{
    const struct ap_pipeline_program *r = h->pipeline;
    const struct ap_transfer *x = &r->transfer[t];
    const struct ap_program *from = &r->stage[x->from].prog, *to = &r->stage[x->to].prog;
    const struct placement sent = {x->shape, x->layout};
    const struct placement taken = {
        x->shape, to->local.nodes[to->local.params[x->param]].attrs->layout};
    const struct ap_lane *peers = &r->lane[r->stage[out ? x->to : x->from].lane];
    struct tiles b = {.tile = AP_NEW_N(h->arena, peers->n_ranks, struct tile)};
    const struct shard mine = shard_of(h->arena, out ? &from->mesh : &to->mesh,
                                       out ? &sent : &taken, me, message);

    for (int q = 0; q < peers->n_ranks; q++) {
        int64_t copies, copy = copy_of(&from->mesh, &x->layout, out ? me : q, &copies);
        if ((out ? q : me) % copies != copy)
            continue;
        struct ap_mark mark = ap_arena_mark(h->arena);
        const struct shard other = shard_of(h->arena, out ? &to->mesh : &from->mesh,
                                            out ? &taken : &sent, q, message);
        struct tile p = common(h->arena, &x->shape, &mine, &other);
        if (p.bytes == 0) {
            ap_arena_rewind(h->arena, mark);
            continue;
        }
        p.peer = peers->ranks[q];
        p.tag = tag + message;
        h->packed_bytes = p.bytes > h->packed_bytes ? p.bytes : h->packed_bytes;
        b.tile[b.n++] = p;
    }
    return b;
}

static void open_end(struct transfers *h, int t, bool out, int tag)
{
    const struct ap_transfer *tr = &h->pipeline->transfer[t];
    const struct ap_pipeline_stage *st = &h->pipeline->stage[out ? tr->from : tr->to];
    const struct ap_graph *g = &st->prog.local;
    int me = index_in(&h->pipeline->lane[st->lane], h->job->rank);
    int node = out ? g->results[tr->result].node : g->params[tr->param];
    struct side *e = out ? &h->out[t] : &h->in[t];

    if (me < 0)
        return;
    *e = (struct side){.node = node,
                       .bytes = ap_shape_bytes(&g->nodes[node].shape),
                       .elem_bytes = ap_dtype_size(tr->shape.dtype),
                       .tiles = AP_NEW_N(h->arena, tr->n_messages, struct tiles)};
    for (int m = 0; m < tr->n_messages; m++)
        e->tiles[m] = tiles_of(h, t, m, me, out, tag);
    e->covered = true;
    for (int m = 0; m < tr->n_messages; m++) {
        int64_t bytes = 0;
        for (int k = 0; k < e->tiles[m].n; k++)
            bytes += e->tiles[m].tile[k].bytes;
        e->covered &= bytes == e->bytes;
    }
    if (h->backend->on_host)
        return;
    e->host = AP_NEW_N(h->arena, e->bytes + 1, char);
    h->host_bytes += e->bytes;
}

/* The two sides of a tile of a rank to itself share memory, from its send to its receive.
 */
static void join_twins(struct transfers *h)
{
    for (int t = 0; t < h->pipeline->n_transfers; t++)
        for (int m = 0; m < h->pipeline->transfer[t].n_messages; m++) {
            struct tiles *out = h->out[t].tiles ? &h->out[t].tiles[m] : NULL;
            struct tiles *in = h->in[t].tiles ? &h->in[t].tiles[m] : NULL;
            for (int i = 0; out && in && i < out->n; i++)
                for (int k = 0; k < in->n; k++) {
                    struct tile *from = &out->tile[i], *to = &in->tile[k];
                    if (from->peer != h->job->rank || to->peer != h->job->rank)
                        continue;
                    from->twin = to->twin = from;
                    from->own = AP_NEW_N(h->arena, from->bytes, char);
                    h->own_bytes += from->bytes;
                }
        }
}

struct transfers *transfers_open(struct ap_arena *arena,
                                 const struct ap_pipeline_program *pipeline,
                                 struct exec *x, struct comm *job)
{
    struct transfers *h = AP_NEW(arena, struct transfers);
    int tag = 16; /* above those of the collectives */

    *h =
        (struct transfers){.arena = arena,
                           .pipeline = pipeline,
                           .job = job,
                           .out = AP_NEW_N(arena, pipeline->n_transfers + 1, struct side),
                           .in = AP_NEW_N(arena, pipeline->n_transfers + 1, struct side)};
    for (int s = 0; s < pipeline->n_stages && !h->backend; s++)
        h->backend = x[s].backend;
    for (int t = 0; t < pipeline->n_transfers; t++) {
        open_end(h, t, true, tag);
        open_end(h, t, false, tag);
        tag += pipeline->transfer[t].n_messages;
    }
    h->packed = ap_xrealloc(NULL, (size_t)h->packed_bytes + 1);
    join_twins(h);
    return h;
}

void transfers_close(struct transfers *h)
{
    free(h->packed);
}

/* ---- moving ---- */

/* Copies between the value and the tile's bytes one behind the other, in order of the
 * indices. */
static void move(const struct tile *p, char *value, char *packed, int size, bool pack)
{
    int64_t at[AP_MAX_RANK] = {0};
    const int last = p->rank - 1;
    const int64_t row = p->rank ? p->n[last] : 1;
    char *end = packed + p->bytes;
    while (packed < end) {
        int64_t base = 0;
        for (int d = 0; d < last; d++)
            base += p->at[d][at[d]];
        for (int64_t j = 0; j < row;) {
            int64_t first = p->rank ? p->at[last][j] : 0, n = 1;
            while (j + n < row && p->at[last][j + n] == first + n)
                n++;
            char *v = value + (base + first) * size;
            memcpy(pack ? packed : v, pack ? v : packed, (size_t)(n * size));
            packed += n * size;
            j += n;
        }
        for (int d = last - 1; d >= 0 && ++at[d] == p->n[d]; d--)
            at[d] = 0;
    }
}

void transfers_send(struct transfers *h, const struct exec *x, int transfer, int message)
{
    struct side *e = &h->out[transfer];
    const struct tiles *b = &e->tiles[message];
    char *value = e->host ? e->host : x->value[e->node];

    if (b->n > 0 && e->host)
        h->backend->read(e->host, x->value[e->node], e->bytes);
    for (int k = 0; k < b->n; k++) {
        struct tile *p = &b->tile[k];
        char *packed = p->twin ? p->own : h->packed;
        move(p, value, packed, e->elem_bytes, true);
        if (p->twin)
            continue;
        h->job->send(h->job, p->peer, p->tag, packed, p->bytes);
        h->sent_bytes += p->bytes;
    }
}

void transfers_receive(struct transfers *h, const struct exec *x, int transfer,
                       int message)
{
    struct side *e = &h->in[transfer];
    const struct tiles *b = &e->tiles[message];
    char *value = e->host ? e->host : x->value[e->node];

    if (b->n > 0 && !e->covered && !e->host)
        memset(value, 0, (size_t)e->bytes); /* padding: others have used the memory */
    for (int k = 0; k < b->n; k++) {
        struct tile *p = &b->tile[k];
        char *packed = p->twin ? p->twin->own : h->packed;
        if (!p->twin)
            h->job->receive(h->job, p->peer, p->tag, packed, p->bytes);
        move(p, value, packed, e->elem_bytes, false);
    }
    if (b->n > 0 && e->host)
        h->backend->write(x->value[e->node], e->host, e->bytes);
}

int64_t transfers_memory(const struct transfers *h)
{
    return h->packed_bytes + h->own_bytes + h->host_bytes;
}

int64_t transfers_bytes(const struct transfers *h)
{
    return h->sent_bytes;
}
