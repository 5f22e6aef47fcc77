/*
 * Collectives and messages alone: sizes rise by a factor of four, each kind on each set
 * of axes of the job's ranks (hosts; halves of a host; ranks of a half), all groups at
 * once as in a step. Every size is repeated until it has taken a while, and ranks begin
 * together; its seconds are the lower quartile of the slowest rank's.
 */
#include "profile/profile.h"

#include "step/backend.h"
#include "doc/doc.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of the full tensor. */
#define LEAST_BYTES 256
#define MOST_BYTES  (16 << 20)
/* A size is repeated LEAST to MOST times, for about so long; a kind of communication ends
 * with the first size that takes TOO_LONG_SEC. */
enum { LEAST = 3, MOST = 11 };
#define REPEAT_SEC   0.02
#define TOO_LONG_SEC 0.05

struct sweep {
    struct comm *c;
    char *a, *b; /* MOST_BYTES of the backend's memory each */
    const struct backend *backend;
};

typedef void once_fn(const struct sweep *s, enum ap_op op, int group, int peer,
                     int64_t bytes, int n);

static void collective(const struct sweep *s, enum ap_op op, int group, int peer,
                       int64_t bytes, int n)
{
    struct comm_job job = {op, group, {peer, peer}, bytes, AP_F32, AP_RED_SUM};
    if (op == AP_OP_ALL_TO_ALL)
        job.n /= (int64_t)n * n;
    else if (op == AP_OP_REDUCE_SCATTER || op == AP_OP_ALL_GATHER)
        job.n /= n;
    if (comm_sums(&job))
        job.n /= ap_dtype_size(job.dtype);
    s->c->collect(s->c, &job, s->a, op == AP_OP_ALL_REDUCE ? s->a : s->b);
}

/* Ranks 0 and peer send each other in turn: two messages. */
static void ping_pong(const struct sweep *s, enum ap_op op, int group, int peer,
                      int64_t bytes, int n)
{
    struct comm *c = s->c;
    (void)op, (void)group, (void)n;
    if (c->rank == 0) {
        c->send(c, peer, 0, s->a, bytes);
        comm_receive(c, peer, 0, s->b, bytes);
    } else if (c->rank == peer) {
        comm_receive(c, 0, 0, s->b, bytes);
        c->send(c, 0, 0, s->a, bytes);
    }
    c->settle(c);
}

static double measure(const struct sweep *s, once_fn *once, enum ap_op op, int group,
                      int peer, int64_t bytes, int n)
{
    double sec[MOST], all = 0;
    int k = 0;
    once(s, op, group, peer, bytes, n);
    do {
        s->c->max(s->c, 0); /* ranks start together */
        const double start = ap_now_sec();
        once(s, op, group, peer, bytes, n);
        if (s->backend->sync)
            s->backend->sync();
        sec[k] = s->c->max_sec(s->c, ap_now_sec() - start);
        all += sec[k++];
    } while (k < LEAST || (k < MOST && all < REPEAT_SEC));
    return profile_quartile(sec, k);
}

static void put_measured(int64_t bytes, double sec, struct ap_buf *out)
{
    ap_put_int(out, "bytes", bytes);
    ap_buf_puts(out, ",\"alone\":true,\"sec\":");
    ap_json_num(out, sec);
    ap_buf_putc(out, '}');
}

void profile_put_groups(struct ap_arena *arena, const struct ap_mesh *mesh, unsigned axes,
                        const int *rank, struct ap_buf *out)
{
    const int64_t n = ap_mesh_devices(mesh);
    bool *done = AP_NEW_N(arena, n, bool);
    const char *sep = "[";

    ap_put_key(out, "groups");
    for (int64_t i = 0; i < n; i++) {
        int64_t at[AP_MAX_AXES], other[AP_MAX_AXES];
        if (done[i])
            continue;
        ap_mesh_coords(mesh, (int)i, at);
        for (int64_t j = i, k = 0; j < n; j++) {
            bool same = true;
            ap_mesh_coords(mesh, (int)j, other);
            for (int a = 0; a < mesh->n_axes; a++)
                same &= (axes >> a & 1) || at[a] == other[a];
            if (!same)
                continue;
            done[j] = true;
            ap_buf_printf(out, "%s%s%d", k ? "" : sep, k ? "," : "[",
                          rank ? rank[j] : (int)j);
            k++;
        }
        ap_buf_putc(out, ']');
        sep = ",";
    }
    ap_buf_putc(out, ']');
}

/* The job's ranks as hosts, halves of a host and ranks of a half; axes of 1 left out. */
static struct ap_mesh mesh_of(const struct comm *c, const int *host)
{
    struct ap_mesh mesh = {0};
    int n_hosts = 0, each = 0;
    bool even = true;
    for (int r = 0; r < c->size; r++) {
        n_hosts = host[r] + 1 > n_hosts ? host[r] + 1 : n_hosts;
        each += host[r] == 0;
    }
    for (int r = 0; r < c->size; r++)
        even &= host[r] == r / each;
    if (!even || n_hosts * each != c->size) {
        each = c->size; /* hosts of several sizes: one ring through all */
        n_hosts = 1;
    }
    const int halves = each % 2 == 0 && each > 2 ? 2 : 1;
    const int size[] = {n_hosts, halves, each / halves};
    for (int i = 0; i < 3; i++)
        if (size[i] > 1)
            mesh.size[mesh.n_axes++] = size[i];
    return mesh;
}

/* A rank that communicates with this one over all of the axes. */
static int peer_of(const struct comm *c, const struct ap_mesh *mesh, unsigned axes)
{
    int64_t at[AP_MAX_AXES];
    int peer = 0;
    ap_mesh_coords(mesh, c->rank, at);
    for (int a = 0; a < mesh->n_axes; a++)
        peer = peer * (int)mesh->size[a] +
               (int)(axes >> a & 1 && mesh->size[a] % 2 == 0 ? at[a] ^ 1 : at[a]);
    return peer;
}

static void sweep_axes(struct ap_arena *arena, const struct sweep *s,
                       const struct ap_mesh *mesh, unsigned axes, struct ap_buf *out)
{
    struct comm *c = s->c;
    const int n = (int)ap_mesh_group(mesh, axes), group = c->group(c, mesh, axes);
    const int peer = peer_of(c, mesh, axes);
    for (int op = AP_OP_ALL_REDUCE; op <= AP_OP_COLLECTIVE_PERMUTE; op++) {
        double sec = 0;
        if (op == AP_OP_COLLECTIVE_PERMUTE && c->max(c, peer == c->rank) > 0)
            continue; /* an odd number of ranks swaps nothing */
        for (int64_t bytes = LEAST_BYTES; bytes <= MOST_BYTES && sec < TOO_LONG_SEC;
             bytes *= 4) {
            const int64_t unit = 4 * (int64_t)n * n,
                          whole = ap_ceil_div(bytes, unit) * unit;
            sec = measure(s, collective, (enum ap_op)op, group, peer, whole, n);
            if (c->rank > 0)
                continue;
            ap_buf_printf(out, "%s\n{\"op\":\"%s\"", out->len ? "," : "",
                          ap_ops[op].name);
            profile_put_groups(arena, mesh, axes, NULL, out);
            put_measured(whole, sec, out);
        }
    }
}

/* From rank 0 to the next on its host, and to the first on another. */
static void sweep_sends(const struct sweep *s, const int *host, struct ap_buf *out)
{
    struct comm *c = s->c;
    int other = 1;
    while (other < c->size && host[other] == host[0])
        other++;
    const int peers[] = {c->size > 1 && host[1] == host[0] ? 1 : c->size, other};
    for (int i = 0; i < 2; i++) {
        double sec = 0;
        for (int64_t bytes = LEAST_BYTES;
             peers[i] < c->size && bytes <= MOST_BYTES && sec < TOO_LONG_SEC;
             bytes *= 4) {
            sec = measure(s, ping_pong, AP_OP_COLLECTIVE_PERMUTE, 0, peers[i], bytes, 2) /
                  2;
            if (c->rank > 0)
                continue;
            ap_buf_printf(out, "%s\n{\"ranks\":[0,%d]", out->len ? "," : "", peers[i]);
            put_measured(bytes, sec, out);
        }
    }
}

void profile_comm(struct ap_arena *arena, struct comm *job, const struct backend *backend,
                  const int *host, struct ap_buf *collectives, struct ap_buf *sends)
{
    const struct ap_mesh mesh = mesh_of(job, host);
    /* whole sizes are rounded up to a multiple of 4 n² */
    const int64_t room = MOST_BYTES + 4 * (int64_t)job->size * job->size;
    struct sweep s = {job, NULL, NULL, backend};
    if (job->size == 1)
        return;
    s.a = backend->alloc(room);
    s.b = backend->alloc(room);
    if (job->max(job, !s.a || !s.b) == 0) {
        job->reserve(job, room);
        for (unsigned axes = 1; axes < 1u << mesh.n_axes; axes++)
            sweep_axes(arena, &s, &mesh, axes, collectives);
        sweep_sends(&s, host, sends);
    }
    backend->release(s.a);
    backend->release(s.b);
}
