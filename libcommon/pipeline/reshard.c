/*
 * Problem: which device of one stage sends which elements of a value to which device of
 * another stage, whose layout of it is another? Idea: a shard is a product of index sets,
 * one per dimension, so the elements that a sender holds and a receiver needs are the
 * product of the intersections. Among senders that hold the same shard, the one that has
 * sent least so far sends. Receivers that need the same tile are each sent a part of it,
 * cut along its longest dimension, or the first is sent all of it; then they hand it
 * round. Sender and receiver compute the same, so that no message describes another.
 * Cost: linear in the dimensions' sizes for each pair of different index sets, and in the
 * pairs of devices. Source: Zheng et al., "Alpa" (OSDI 2022), section 6; the choice of
 * senders and the broadcast: Zhuang et al., "On Optimizing the Communication of Model
 * Parallelism" (MLSys 2023).
 */
#include "pipeline/reshard.h"

#include <stdint.h>
#include <string.h>

const char *const ap_resharding_names[] = {"auto", "send-recv", "local-allgather",
                                           "broadcast"};

/* ---- index sets ---- */

static struct ap_index_set *sets_of(struct ap_arena *arena, const struct ap_shape *shape,
                                    const struct ap_reshard_side *side, int message)
{
    const int n = (int)ap_mesh_devices(side->mesh), rank = shape->rank;
    struct ap_index_set *sets = AP_NEW_N(arena, n * rank + 1, struct ap_index_set);
    const struct ap_shape local = ap_layout_local(arena, side->mesh, shape, side->layout);

    for (int i = 0; i < n; i++) {
        int64_t coords[AP_MAX_AXES];
        ap_mesh_coords(side->mesh, i, coords);
        if (side->mesh->microbatch)
            coords[0] = message;
        for (int d = 0; d < rank; d++) {
            int64_t *map = AP_NEW_N(arena, local.dims[d] + 1, int64_t), m = 0;
            int64_t *at = AP_NEW_N(arena, local.dims[d] + 1, int64_t);
            ap_layout_index_map(side->mesh, shape, side->layout, d, coords, map);
            for (int64_t k = 0; k < local.dims[d]; k++)
                if (map[k] >= 0) {
                    at[m] = k;
                    map[m++] = map[k];
                }
            sets[i * rank + d] = (struct ap_index_set){m, map, at};
        }
    }
    return sets;
}

static bool is_same(const struct ap_index_set *a, const struct ap_index_set *b)
{
    return a->n == b->n &&
           (a->n == 0 || memcmp(a->global, b->global, (size_t)a->n * 8) == 0);
}

static bool all_same(int rank, const struct ap_index_set *a, const struct ap_index_set *b)
{
    for (int d = 0; d < rank; d++)
        if (!is_same(&a[d], &b[d]))
            return false;
    return true;
}

static int64_t common(const struct ap_index_set *a, const struct ap_index_set *b)
{
    int64_t n = 0;

    for (int64_t i = 0, k = 0; i < a->n && k < b->n;) {
        n += a->global[i] == b->global[k];
        const bool less = a->global[i] <= b->global[k];
        k += a->global[i] >= b->global[k];
        i += less;
    }
    return n;
}

int64_t ap_reshard_common(int rank, const struct ap_index_set *a,
                          const struct ap_index_set *b)
{
    int64_t n = 1;
    for (int d = 0; d < rank && n > 0; d++)
        n *= common(&a[d], &b[d]);
    return n;
}

int64_t ap_reshard_elems(int rank, const struct ap_index_set *a)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++)
        n *= a[d].n;
    return n;
}

/* First device with the same sets as each (devices of one value). */
static int *first_like(struct ap_arena *arena, int rank, int n,
                       const struct ap_index_set *sets)
{
    int *first = AP_NEW_N(arena, n + 1, int);

    for (int i = 0; i < n; i++) {
        while (first[i] < i && (first[first[i]] != first[i] ||
                                !all_same(rank, &sets[i * rank], &sets[first[i] * rank])))
            first[i]++;
    }
    return first;
}

/* Leaves of each receiver's sets what this message brings: what some sender has. */
static void cut_needs(struct ap_arena *arena, const struct ap_shape *shape,
                      struct ap_reshard *r)
{
    for (int d = 0; d < r->rank; d++) {
        struct ap_mark mark = ap_arena_mark(arena);
        bool *there = AP_NEW_N(arena, shape->dims[d] + 1, bool);
        for (int p = 0; p < r->n_from; p++)
            for (int64_t k = 0; k < r->has[p * r->rank + d].n; k++)
                there[r->has[p * r->rank + d].global[k]] = true;
        for (int q = 0; q < r->n_to; q++) {
            struct ap_index_set *set = &r->needs[q * r->rank + d];
            int64_t *global = (int64_t *)(uintptr_t)set->global;
            int64_t *local = (int64_t *)(uintptr_t)set->local, n = 0;
            for (int64_t k = 0; k < set->n; k++)
                if (there[global[k]]) {
                    global[n] = global[k];
                    local[n++] = local[k];
                }
            set->n = n;
        }
        ap_arena_rewind(arena, mark);
    }
}

/* ---- receivers ---- */

/* Receivers of the same tile, together, by their first. */
static void find_groups(struct ap_arena *arena, struct ap_reshard *r)
{
    const int *first = first_like(arena, r->rank, r->n_to, r->needs);
    int *group = AP_NEW_N(arena, r->n_to + 1, int), n = 0;
    int *start = AP_NEW_N(arena, r->n_to + 1, int);
    int *size = AP_NEW_N(arena, r->n_to + 1, int);
    int *place = AP_NEW_N(arena, r->n_to + 1, int);

    for (int q = 0; q < r->n_to; q++) {
        const int lo = n;
        for (int k = q; first[q] == q && k < r->n_to; k++)
            if (first[k] == q) {
                start[k] = lo;
                place[k] = n - lo;
                group[n++] = k;
            }
        for (int k = lo; k < n; k++)
            size[group[k]] = n - lo;
    }
    r->group = group;
    r->start = start;
    r->size = size;
    r->place = place;
}

/* The dimension that a tile is cut along: the longest. */
static int longest(const struct ap_reshard *r, int receiver)
{
    const struct ap_index_set *set = &r->needs[receiver * r->rank];
    int best = -1;

    for (int d = 0; d < r->rank; d++)
        if (best < 0 || set[d].n > set[best].n)
            best = d;
    return best;
}

/* What a receiver is sent. */
static void find_lands(struct ap_reshard *r, enum ap_resharding how)
{
    for (int q = 0; q < r->n_to; q++) {
        struct ap_index_set *set = &r->lands[q * r->rank];
        const int at = r->place[q], copies = r->size[q], d = longest(r, q);
        memcpy(set, &r->needs[q * r->rank], (size_t)r->rank * sizeof *set);
        if (how == AP_RESHARD_SEND_RECV || d < 0)
            continue; /* scalars are sent to each */
        const int64_t n = set[d].n;
        int64_t lo = n * at / copies, hi = n * (at + 1) / copies;
        if (how == AP_RESHARD_BROADCAST) {
            lo = 0;
            hi = at == 0 ? n : 0;
        }
        set[d].global += lo;
        set[d].local += lo;
        set[d].n = hi - lo;
    }
}

/* ---- senders ---- */

static int find_sender(const struct ap_reshard *r, const int *first, const int64_t *load,
                       int shard, const struct ap_reshard_side *from, int64_t receiver)
{
    int best = -1;

    for (int p = shard; p < r->n_from; p++) {
        if (first[p] != shard)
            continue;
        if (from->id[p] == receiver)
            return p;
        if (best < 0 || load[p] < load[best])
            best = p;
    }
    return best;
}

static void find_moves(struct ap_arena *arena, struct ap_reshard *r,
                       const struct ap_reshard_side *from,
                       const struct ap_reshard_side *to)
{
    const int *first = first_like(arena, r->rank, r->n_from, r->has);
    int64_t *load = AP_NEW_N(arena, r->n_from + 1, int64_t);

    r->move = AP_NEW_N(arena, r->n_from * r->n_to + 1, struct ap_reshard_move);
    for (int q = 0; q < r->n_to; q++)
        for (int s = 0; s < r->n_from; s++) {
            if (first[s] != s)
                continue;
            const int64_t elems =
                ap_reshard_common(r->rank, &r->has[s * r->rank], &r->lands[q * r->rank]);
            if (elems == 0)
                continue;
            const int p = find_sender(r, first, load, s, from, to->id[q]);
            load[p] += from->id[p] == to->id[q] ? 0 : elems;
            r->move[r->n_moves++] = (struct ap_reshard_move){p, q, elems};
        }
}

struct ap_reshard ap_reshard_new(struct ap_arena *arena, const struct ap_shape *shape,
                                 const struct ap_reshard_side *from,
                                 const struct ap_reshard_side *to, int message,
                                 enum ap_resharding how)
{
    struct ap_reshard r = {.rank = shape->rank,
                           .n_from = (int)ap_mesh_devices(from->mesh),
                           .n_to = (int)ap_mesh_devices(to->mesh)};

    r.has = sets_of(arena, shape, from, message);
    r.needs = sets_of(arena, shape, to, message);
    r.lands = AP_NEW_N(arena, r.n_to * r.rank + 1, struct ap_index_set);
    cut_needs(arena, shape, &r);
    find_groups(arena, &r);
    find_lands(&r, how);
    find_moves(arena, &r, from, to);
    return r;
}

/* ---- among receivers ---- */

int ap_reshard_steps(const struct ap_reshard *r, enum ap_resharding how, int receiver)
{
    return how == AP_RESHARD_SEND_RECV || r->rank == 0 ? 0 : r->size[receiver] - 1;
}

int ap_reshard_sends(const struct ap_reshard *r, enum ap_resharding how, int receiver,
                     int step)
{
    const int n = r->size[receiver];
    if (how == AP_RESHARD_BROADCAST)
        return r->place[receiver] == step ? 0 : -1;
    return (r->place[receiver] - step + n) % n;
}

int ap_reshard_next(const struct ap_reshard *r, int receiver, int by)
{
    const int n = r->size[receiver];
    return r->group[r->start[receiver] + (r->place[receiver] + by + n) % n];
}

int ap_reshard_receives(const struct ap_reshard *r, enum ap_resharding how, int receiver,
                        int step)
{
    return ap_reshard_sends(r, how, ap_reshard_next(r, receiver, -1), step);
}

const struct ap_index_set *ap_reshard_block(const struct ap_reshard *r,
                                            enum ap_resharding how, int receiver,
                                            int block)
{
    const int member = r->group[r->start[receiver] + block];
    return how == AP_RESHARD_BROADCAST ? &r->needs[receiver * r->rank]
                                       : &r->lands[member * r->rank];
}
