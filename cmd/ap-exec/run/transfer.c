/*
 * Cross-mesh resharding: moves what pipeline/reshard.h says. Each rank packs the tiles
 * that it sends of a message, and unpacks those that it receives; then ranks that need
 * the same tile hand it round, in a local all-gather or a broadcast. Sends do not wait
 * and all ranks of a lane have the same instructions, so that nobody waits for ever.
 * Cost: linear in the bytes sent; tiles are found once.
 */
#include "run/transfer.h"

#include "step/backend.h"
#include "cpu/cpu.h"

#include <assert.h>
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

/* A block that this rank passes on to ranks of its own lane, or takes; -1: none. */
struct step {
    int sends, receives; /* blocks */
    int to, from;        /* ranks of the job */
};

/* This rank's tiles of one message. */
struct tiles {
    int n;
    struct tile *tile;
    /* the receiving side: what is handed round afterwards, of n_blocks blocks */
    int n_blocks, n_steps;
    struct tile *block;
    struct step *step;
    int64_t bytes; /* of the value, once all is there */
};

/* A message of a transfer that was asked for ahead of its receive. */
struct ahead {
    bool taken;
    int transfer, message;
    int *awaits;  /* [tile] */
    char *packed; /* the tiles' bytes, one after the other */
};

/* The sending or the receiving side of a transfer on this rank. */
struct side {
    int node; /* of the stage's program */
    int64_t bytes;
    int elem_bytes;
    char *host;          /* copy of the value, where the backend's is elsewhere */
    bool covered;        /* a message is all of the value */
    bool anew;           /* each message is another microbatch's value */
    struct tiles *tiles; /* [message]; NULL: this rank is not on this side */
};

struct transfers {
    struct ap_arena *arena;
    const struct ap_pipeline_program *pipeline;
    struct comm *job;
    const struct backend *backend;
    struct side *out, *in; /* [transfer] */
    char *packed[2];       /* room for the largest tile */
    int64_t packed_bytes, own_bytes, host_bytes;
    struct ahead ahead[TRANSFERS_AHEAD + 1];
    int64_t ahead_bytes; /* of the packed tiles of one message */
    int most_tiles;      /* of a message */
    int64_t *sent;       /* [rank of the job]: bytes */
};

/* ---- tiles ---- */

/* The elements of a local value of `mine` that are in `other`, too. */
static struct tile common(struct ap_arena *arena, const struct ap_shape *shape,
                          const struct ap_shape *local, const struct ap_index_set *mine,
                          const struct ap_index_set *other)
{
    struct tile p = {.rank = shape->rank};
    int64_t elems = 1, stride[AP_MAX_RANK];

    cpu_strides(local, stride);
    for (int d = 0; d < shape->rank; d++) {
        p.at[d] = AP_NEW_N(arena, mine[d].n + 1, int64_t);
        for (int64_t i = 0, k = 0; i < mine[d].n; i++) {
            while (k < other[d].n && other[d].global[k] < mine[d].global[i])
                k++;
            if (k < other[d].n && other[d].global[k] == mine[d].global[i])
                p.at[d][p.n[d]++] = mine[d].local[i] * stride[d];
        }
        elems *= p.n[d];
    }
    p.bytes = elems * ap_dtype_size(shape->dtype);
    return p;
}

static int index_in(const struct ap_lane *lane, int rank)
{
    for (int i = 0; i < lane->n_ranks; i++)
        if (lane->ranks[i] == rank)
            return i;
    return -1;
}

static void need_room(struct transfers *h, int64_t bytes)
{
    h->packed_bytes = bytes > h->packed_bytes ? bytes : h->packed_bytes;
}

/* Room for the tiles of a message that is received. */
static void need_ahead(struct transfers *h, const struct tiles *b)
{
    int64_t bytes = 0;
    for (int i = 0; i < b->n; i++)
        bytes += b->tile[i].peer == h->job->rank ? 0 : b->tile[i].bytes;
    h->ahead_bytes = bytes > h->ahead_bytes ? bytes : h->ahead_bytes;
    h->most_tiles = b->n > h->most_tiles ? b->n : h->most_tiles;
}

/* Ranks of a lane as what reshard.h calls devices. */
static struct ap_reshard_side side_of(struct ap_arena *arena, const struct ap_lane *lane,
                                      const struct ap_mesh *mesh,
                                      const struct ap_layout *layout)
{
    int64_t *id = AP_NEW_N(arena, lane->n_ranks + 1, int64_t);
    for (int i = 0; i < lane->n_ranks; i++)
        id[i] = lane->ranks[i];
    return (struct ap_reshard_side){mesh, layout, id};
}

/* What receiver `me` hands round of a message. */
static void add_steps(struct transfers *h, const struct ap_transfer *x,
                      const struct ap_reshard *r, int me, const struct ap_shape *local,
                      int tag, struct tiles *b)
{
    const struct ap_lane *lane = &h->pipeline->lane[h->pipeline->stage[x->to].lane];
    const int n = ap_reshard_steps(r, x->how, me);

    b->n_steps = n;
    b->n_blocks = n == 0 ? 0 : x->how == AP_RESHARD_BROADCAST ? 1 : r->size[me];
    b->step = AP_NEW_N(h->arena, n + 1, struct step);
    b->block = AP_NEW_N(h->arena, b->n_blocks + 1, struct tile);
    for (int k = 0; k < b->n_blocks; k++) {
        b->block[k] = common(h->arena, &x->shape, local, &r->needs[me * r->rank],
                             ap_reshard_block(r, x->how, me, k));
        b->block[k].tag = tag;
        need_room(h, b->block[k].bytes);
    }
    for (int i = 0; i < n; i++)
        b->step[i] = (struct step){ap_reshard_sends(r, x->how, me, i),
                                   ap_reshard_receives(r, x->how, me, i),
                                   lane->ranks[ap_reshard_next(r, me, 1)],
                                   lane->ranks[ap_reshard_next(r, me, -1)]};
}

/* The tiles of message `tag` + message of transfer t for `me`, a device of the sending
 * (out) or receiving side. */
static struct tiles tiles_of(struct transfers *h, int t, int message, int me, bool out,
                             int tag)
{
    const struct ap_pipeline_program *p = h->pipeline;
    const struct ap_transfer *x = &p->transfer[t];
    const struct ap_program *from = &p->stage[x->from].prog, *to = &p->stage[x->to].prog;
    const struct ap_lane *senders = &p->lane[p->stage[x->from].lane];
    const struct ap_lane *receivers = &p->lane[p->stage[x->to].lane];
    const struct ap_graph *g = out ? &from->local : &to->local;
    const struct ap_shape *local =
        &g->nodes[out ? g->results[x->result].node : g->params[x->param]].shape;
    const struct ap_layout *taken =
        &to->local.nodes[to->local.params[x->param]].attrs->layout;
    const struct ap_reshard_side a = side_of(h->arena, senders, &from->mesh, &x->layout);
    const struct ap_reshard_side b = side_of(h->arena, receivers, &to->mesh, taken);
    const struct ap_reshard r =
        ap_reshard_new(h->arena, &x->shape, &a, &b, message, x->how);
    struct tiles tiles = {.tile = AP_NEW_N(h->arena, r.n_moves + 1, struct tile)};

    for (int i = 0; i < r.n_moves; i++) {
        const struct ap_reshard_move *move = &r.move[i];
        const struct ap_index_set *has = &r.has[move->from * r.rank];
        const struct ap_index_set *lands = &r.lands[move->to * r.rank];
        if ((out ? move->from : move->to) != me)
            continue;
        struct tile *tile = &tiles.tile[tiles.n++];
        *tile = common(h->arena, &x->shape, local, out ? has : lands, out ? lands : has);
        tile->peer = out ? receivers->ranks[move->to] : senders->ranks[move->from];
        tile->tag = tag + message;
        if (out && tile->peer != h->job->rank)
            need_room(h, tile->bytes);
    }
    if (!out) {
        need_ahead(h, &tiles);
        tiles.bytes = ap_reshard_elems(r.rank, &r.needs[me * r.rank]) *
                      ap_dtype_size(x->shape.dtype);
        add_steps(h, x, &r, me, local, tag + x->n_messages + message, &tiles);
    }
    return tiles;
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
    for (int m = 0; m < tr->n_messages; m++)
        e->covered &= e->tiles[m].bytes == e->bytes;
    e->anew = !out && ap_pipeline_is_share(&st->prog, tr->param);
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
                           .sent = AP_NEW_N(arena, job->size, int64_t),
                           .out = AP_NEW_N(arena, pipeline->n_transfers + 1, struct side),
                           .in = AP_NEW_N(arena, pipeline->n_transfers + 1, struct side)};
    for (int s = 0; s < pipeline->n_stages && !h->backend; s++)
        h->backend = x[s].backend;
    for (int t = 0; t < pipeline->n_transfers; t++) {
        open_end(h, t, true, tag);
        open_end(h, t, false, tag);
        tag += 2 * pipeline->transfer[t].n_messages;
    }
    for (int i = 0; i < 2; i++)
        h->packed[i] = ap_xrealloc(NULL, (size_t)h->packed_bytes + 1);
    join_twins(h);
    for (int i = 0; i < TRANSFERS_AHEAD + 1; i++) {
        h->ahead[i].packed = ap_xrealloc(NULL, (size_t)h->ahead_bytes + 1);
        h->ahead[i].awaits = AP_NEW_N(arena, h->most_tiles + 1, int);
    }
    return h;
}

void transfers_close(struct transfers *h)
{
    for (int i = 0; i < 2; i++)
        free(h->packed[i]);
    for (int i = 0; i < TRANSFERS_AHEAD + 1; i++)
        free(h->ahead[i].packed);
}

/* ---- moving ---- */

/* Copies between the value and the tile's bytes one after the other, in order of the
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

static void send_tile(struct transfers *h, const struct tile *p, int to)
{
    h->job->send(h->job, to, p->tag, h->packed[0], p->bytes);
    h->sent[to] += p->bytes;
}

/* Hands what arrived round among the ranks that need the same. */
static void hand_round(struct transfers *h, char *value, int elem_bytes,
                       const struct tiles *b)
{
    for (int i = 0; i < b->n_steps; i++) {
        const struct step *s = &b->step[i];
        const struct tile *out = s->sends < 0 ? NULL : &b->block[s->sends];
        const struct tile *in = s->receives < 0 ? NULL : &b->block[s->receives];
        int message = -1;
        if (in && in->bytes > 0)
            message = h->job->expect(h->job, s->from, in->tag, h->packed[1], in->bytes);
        if (out && out->bytes > 0) {
            move(out, value, h->packed[0], elem_bytes, true);
            send_tile(h, out, s->to);
        }
        if (message < 0)
            continue;
        h->job->await(h->job, message);
        move(in, value, h->packed[1], elem_bytes, false);
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
        char *packed = p->twin ? p->own : h->packed[0];
        move(p, value, packed, e->elem_bytes, true);
        if (!p->twin)
            send_tile(h, p, p->peer);
    }
}

void transfers_expect(struct transfers *h, int transfer, int message)
{
    const struct tiles *b = &h->in[transfer].tiles[message];
    struct ahead *a = h->ahead;
    int64_t at = 0;

    while (a->taken)
        a++;
    assert(a <= &h->ahead[TRANSFERS_AHEAD]);
    a->taken = true;
    a->transfer = transfer;
    a->message = message;
    for (int k = 0; k < b->n; k++) {
        const struct tile *p = &b->tile[k];
        if (p->twin)
            continue;
        a->awaits[k] = h->job->expect(h->job, p->peer, p->tag, a->packed + at, p->bytes);
        at += p->bytes;
    }
}

/* The message as it was asked for. */
static struct ahead *expected(struct transfers *h, int transfer, int message)
{
    struct ahead *a = h->ahead;
    while (!a->taken || a->transfer != transfer || a->message != message)
        a++;
    assert(a <= &h->ahead[TRANSFERS_AHEAD]);
    return a;
}

void transfers_receive(struct transfers *h, const struct exec *x, int transfer,
                       int message)
{
    struct side *e = &h->in[transfer];
    const struct tiles *b = &e->tiles[message];
    struct ahead *a = expected(h, transfer, message);
    char *value = e->host ? e->host : x->value[e->node];
    char *packed = a->packed;

    const bool any = b->n > 0 || b->n_blocks > 0;
    if (any && !e->covered && !e->host && (e->anew || message == 0))
        memset(value, 0, (size_t)e->bytes); /* padding: others have used the memory */
    for (int k = 0; k < b->n; k++) {
        struct tile *p = &b->tile[k];
        if (!p->twin)
            h->job->await(h->job, a->awaits[k]);
        move(p, value, p->twin ? p->twin->own : packed, e->elem_bytes, false);
        packed += p->twin ? 0 : p->bytes;
    }
    a->taken = false;
    hand_round(h, value, e->elem_bytes, b);
    if (any && e->host)
        h->backend->write(x->value[e->node], e->host, e->bytes);
}

int64_t transfers_memory(const struct transfers *h)
{
    return 2 * h->packed_bytes + (TRANSFERS_AHEAD + 1) * h->ahead_bytes + h->own_bytes +
           h->host_bytes;
}

const int64_t *transfers_bytes(const struct transfers *h)
{
    return h->sent;
}
