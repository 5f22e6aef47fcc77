/*
 * Problem: a value lies on the devices of one stage in one layout, and those of another
 * stage need it in another: which device sends what?
 * Idea: dimension by dimension a device holds some of the value's indices; what one
 * device has and another needs is the product of the common ones. Of devices that hold
 * the same, the receiver's number says which one sends, so that they take turns. Both
 * sides find the same products, in the same order, and nothing needs to be told. Cost:
 * linear in the dimensions' sizes for each pair of devices and message, once; then in the
 * bytes. After Zheng et al., "Alpa", section 6, without its local all-gather.
 */
#include "run/handover.h"

#include "backend.h"
#include "cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

/* What goes between this rank and another one in one message. */
struct parcel {
    int peer; /* rank of the job */
    int tag;
    int rank; /* of the value; then per dimension: indices, and where they lie here */
    int64_t n[AP_MAX_RANK];
    int64_t *at[AP_MAX_RANK];
    int64_t bytes;
    char *packed;
    struct parcel *twin; /* of a message of this rank to itself: the other end */
};

/* One end of a message on this rank. */
struct bundle {
    int n;
    struct parcel *parcel; /* by peer */
};

/* One end of a transfer on this rank. */
struct end {
    void *value;           /* the backend's */
    int64_t bytes;         /* of it */
    int size;              /* of an element */
    char *host;            /* receives: the value as far as it has come */
    struct bundle *bundle; /* [message]; NULL: not of this rank */
};

struct handover {
    struct ap_arena *arena;
    const struct ap_pipeline_program *relay;
    struct comm *job;
    const struct backend *backend;
    struct end *out, *in; /* [transfer] */
    char *stage;          /* of the largest value that is sent */
    char *packed;
    int64_t packed_bytes, sent_bytes;
};

/* ---- parts of values ---- */

/* What one device holds of a value with one message at hand. */
struct part {
    struct ap_shape local;
    int64_t *map[AP_MAX_RANK];   /* global index of a local one, -1 */
    int64_t stride[AP_MAX_RANK]; /* of the local value, in elements */
};

static void part_open(struct ap_arena *arena, const struct ap_mesh *mesh,
                      const struct ap_shape *shape, const struct ap_layout *layout,
                      int device, int message, struct part *p)
{
    int64_t coords[AP_MAX_AXES];
    ap_mesh_coords(mesh, device, coords);
    if (mesh->time)
        coords[0] = message;
    p->local = ap_layout_local(arena, mesh, shape, layout);
    cpu_strides(&p->local, p->stride);
    for (int d = 0; d < shape->rank; d++) {
        p->map[d] = AP_NEW_N(arena, p->local.dims[d] + 1, int64_t);
        ap_layout_index_map(mesh, shape, layout, d, coords, p->map[d]);
    }
}

/* The parcel of what `mine` and `other` have in common; no bytes where that is nothing.
 */
static struct parcel common(struct ap_arena *arena, const struct ap_shape *shape,
                            const struct part *mine, const struct part *other)
{
    struct parcel p = {.rank = shape->rank};
    int64_t elems = 1;

    for (int d = 0; d < shape->rank; d++) {
        const int64_t n = mine->local.dims[d];
        p.at[d] = AP_NEW_N(arena, n + 1, int64_t);
        struct ap_mark mark = ap_arena_mark(arena);
        bool *has = AP_NEW_N(arena, shape->dims[d] + 1, bool);
        for (int64_t i = 0; i < other->local.dims[d]; i++)
            if (other->map[d][i] >= 0)
                has[other->map[d][i]] = true;
        /* local indices rise with the global ones, here as at the other end */
        for (int64_t i = 0; i < n; i++)
            if (mine->map[d][i] >= 0 && has[mine->map[d][i]])
                p.at[d][p.n[d]++] = i * mine->stride[d];
        ap_arena_rewind(arena, mark);
        elems *= p.n[d];
    }
    p.bytes = elems * ap_dtype_size(shape->dtype);
    return p;
}

/* Which of the devices that hold the same a device is, and how many they are. */
static int64_t copy_of(const struct ap_mesh *mesh, const struct ap_layout *layout,
                       int device, int64_t *copies)
{
    int64_t coords[AP_MAX_AXES], copy = 0;
    ap_mesh_coords(mesh, device, coords);
    *copies = 1;
    for (int a = mesh->time ? 1 : 0; a < mesh->n_axes; a++)
        if (layout->axis[a].kind != AP_SPLIT) {
            copy = copy * mesh->size[a] + coords[a];
            *copies *= mesh->size[a];
        }
    return copy;
}

/* ---- bundles ---- */

static int place_in(const struct ap_lane *lane, int rank)
{
    for (int i = 0; i < lane->n_ranks; i++)
        if (lane->ranks[i] == rank)
            return i;
    return -1;
}

/* One message as seen from `me`, a device of the one side; out: the sending one. */
static struct bundle bundle_of(struct handover *h, int t, int message, int me, bool out,
                               int tag)
{
    const struct ap_pipeline_program *r = h->relay;
    const struct ap_transfer *x = &r->transfer[t];
    const struct ap_program *from = &r->stage[x->from].prog, *to = &r->stage[x->to].prog;
    const struct ap_layout *takes =
        &to->local.nodes[to->local.params[x->param]].attrs->layout;
    const struct ap_lane *peers = &r->lane[r->stage[out ? x->to : x->from].lane];
    struct bundle b = {.parcel = AP_NEW_N(h->arena, peers->n_ranks, struct parcel)};
    struct part mine, other;

    part_open(h->arena, out ? &from->mesh : &to->mesh, &x->shape,
              out ? &x->layout : takes, me, message, &mine);
    for (int q = 0; q < peers->n_ranks; q++) {
        int64_t copies, copy = copy_of(&from->mesh, &x->layout, out ? me : q, &copies);
        if ((out ? q : me) % copies != copy)
            continue;
        struct ap_mark mark = ap_arena_mark(h->arena);
        part_open(h->arena, out ? &to->mesh : &from->mesh, &x->shape,
                  out ? takes : &x->layout, q, message, &other);
        struct parcel p = common(h->arena, &x->shape, &mine, &other);
        if (p.bytes == 0) {
            ap_arena_rewind(h->arena, mark);
            continue;
        }
        p.peer = peers->ranks[q];
        p.tag = tag;
        h->packed_bytes += exec_room(p.bytes);
        b.parcel[b.n++] = p;
    }
    return b;
}

static void open_end(struct handover *h, int t, struct exec *x, bool out, int tag,
                     int64_t *most)
{
    const struct ap_transfer *tr = &h->relay->transfer[t];
    const struct ap_pipeline_stage *st = &h->relay->stage[out ? tr->from : tr->to];
    const struct ap_graph *g = &st->prog.local;
    int me = place_in(&h->relay->lane[st->lane], h->job->rank);
    int node = out ? g->results[tr->result].node : g->params[tr->param];
    struct end *e = out ? &h->out[t] : &h->in[t];

    if (me < 0)
        return;
    *e = (struct end){.value = x[out ? tr->from : tr->to].value[node],
                      .bytes = ap_shape_bytes(&g->nodes[node].shape),
                      .size = ap_dtype_size(tr->shape.dtype),
                      .bundle = AP_NEW_N(h->arena, tr->n_messages, struct bundle)};
    for (int m = 0; m < tr->n_messages; m++)
        e->bundle[m] = bundle_of(h, t, m, me, out, tag + m);
    if (out)
        *most = e->bytes > *most ? e->bytes : *most;
    else
        e->host = AP_NEW_N(h->arena, e->bytes + 1, char);
}

/* Gives each parcel its memory; those from this rank to itself share it. */
static void place_packed(struct handover *h)
{
    int64_t at = 0;

    h->packed = ap_xrealloc(NULL, (size_t)h->packed_bytes + 1);
    for (int t = 0; t < h->relay->n_transfers; t++)
        for (int m = 0; m < h->relay->transfer[t].n_messages; m++) {
            struct bundle *out = h->out[t].bundle ? &h->out[t].bundle[m] : NULL;
            struct bundle *in = h->in[t].bundle ? &h->in[t].bundle[m] : NULL;
            for (int k = 0; out && k < out->n; k++) {
                out->parcel[k].packed = h->packed + at;
                at += exec_room(out->parcel[k].bytes);
                if (out->parcel[k].peer == h->job->rank)
                    out->parcel[k].twin = &out->parcel[k];
            }
            for (int k = 0; in && k < in->n; k++) {
                struct parcel *p = &in->parcel[k];
                for (int i = 0; out && p->peer == h->job->rank && i < out->n; i++)
                    if (out->parcel[i].peer == p->peer)
                        p->twin = &out->parcel[i];
                p->packed = p->twin ? p->twin->packed : h->packed + at;
                at += p->twin ? 0 : exec_room(p->bytes);
            }
        }
}

struct handover *handover_open(struct ap_arena *arena,
                               const struct ap_pipeline_program *relay, struct exec *x,
                               struct comm *job)
{
    struct handover *h = AP_NEW(arena, struct handover);
    int64_t most = 0;
    int tag = 16; /* above those of the collectives */

    *h = (struct handover){.arena = arena,
                           .relay = relay,
                           .job = job,
                           .out = AP_NEW_N(arena, relay->n_transfers + 1, struct end),
                           .in = AP_NEW_N(arena, relay->n_transfers + 1, struct end)};
    for (int s = 0; s < relay->n_stages && !h->backend; s++)
        h->backend = x[s].backend;
    for (int t = 0; t < relay->n_transfers; t++) {
        open_end(h, t, x, true, tag, &most);
        open_end(h, t, x, false, tag, &most);
        tag += relay->transfer[t].n_messages;
    }
    h->stage = ap_xrealloc(NULL, (size_t)most + 1);
    place_packed(h);
    return h;
}

void handover_close(struct handover *h)
{
    free(h->stage);
    free(h->packed);
}

/* ---- moving ---- */

/* Between the value and the parcel's bytes, in order of the indices. */
static void move(const struct parcel *p, char *value, int size, bool pack)
{
    int64_t at[AP_MAX_RANK] = {0};
    const int last = p->rank - 1;
    const int64_t row = p->rank ? p->n[last] : 1;
    char *packed = p->packed, *end = p->packed + p->bytes;
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

void handover_send(struct handover *h, int transfer, int message)
{
    struct end *e = &h->out[transfer];
    const struct bundle *b = &e->bundle[message];

    if (b->n > 0)
        h->backend->read(h->stage, e->value, e->bytes);
    for (int k = 0; k < b->n; k++) {
        struct parcel *p = &b->parcel[k];
        move(p, h->stage, e->size, true);
        if (p->twin)
            continue;
        h->job->send(h->job, p->peer, p->tag, p->packed, p->bytes);
        h->sent_bytes += p->bytes;
    }
}

void handover_receive(struct handover *h, int transfer, int message)
{
    struct end *e = &h->in[transfer];
    const struct bundle *b = &e->bundle[message];

    for (int k = 0; k < b->n; k++) {
        struct parcel *p = &b->parcel[k];
        if (!p->twin)
            h->job->receive(h->job, p->peer, p->tag, p->packed, p->bytes);
        move(p, e->host, e->size, false);
    }
    if (b->n > 0)
        h->backend->write(e->value, e->host, e->bytes);
}

int64_t handover_bytes(const struct handover *h)
{
    return h->sent_bytes;
}
