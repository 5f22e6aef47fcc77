/*
 * Functions that communicators share: the ranks of a group, and the absence of overlap.
 */
#include "comm/comm.h"

#include <string.h>

bool comm_key_same(const struct comm_key *a, const struct comm_key *b)
{
    return a->axes == b->axes && a->mesh.n_axes == b->mesh.n_axes &&
           memcmp(a->mesh.size, b->mesh.size,
                  sizeof *a->mesh.size * (size_t)a->mesh.n_axes) == 0;
}

void comm_key_split(const struct comm_key *k, int rank, int *group, int *place)
{
    int64_t coords[AP_MAX_AXES];
    *group = *place = 0;
    ap_mesh_coords(&k->mesh, rank, coords);
    for (int a = 0; a < k->mesh.n_axes; a++) {
        int *to = k->axes >> a & 1 ? place : group;
        *to = *to * (int)k->mesh.size[a] + (int)coords[a];
    }
}

void comm_start_none(struct comm *c)
{
    (void)c;
}

int comm_event_none(struct comm *c)
{
    (void)c;
    return 0;
}

void comm_wait_none(struct comm *c, int ticket)
{
    (void)c, (void)ticket;
}

void comm_receive(struct comm *c, int from, int tag, void *buf, int64_t bytes)
{
    c->await(c, c->expect(c, from, tag, buf, bytes));
}

bool comm_sums(const struct comm_job *job)
{
    return job->op == AP_OP_ALL_REDUCE || job->op == AP_OP_REDUCE_SCATTER;
}

int64_t comm_block_bytes(const struct comm_job *job)
{
    return job->n * (comm_sums(job) ? ap_dtype_size(job->dtype) : 1);
}
