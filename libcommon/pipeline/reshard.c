/*
 * Problem: which device of one stage sends which elements of a value to which device of
 * another stage, whose layout of it is another? Idea: a shard is a product of index sets,
 * one per dimension, so the elements that a sender holds and a receiver needs are the
 * product of the intersections. The sets of a dimension on one side are disjoint, and
 * devices with the same coordinates on the axes that split it have the same set, which is
 * listed once. Among senders that hold the same shard, the one that has sent least so far
 * sends. Receivers that need the same tile are each sent a part of it, cut along its
 * longest dimension, or the first is sent all of it; then they hand it round. Sender and
 * receiver compute the same, so that no message describes another. Cost: linear in the
 * dimensions' sizes, and in the moves times the copies of a shard. Source: Zheng et al.,
 * "Alpa" (OSDI 2022), section 6; the choice of senders and the broadcast: Zhuang et al.,
 * "On Optimizing the Communication of Model Parallelism" (MLSys 2023).
 */
#include "pipeline/reshard.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/csr.h"

const char *const ap_resharding_names[] = {"auto", "send-recv", "local-allgather",
                                           "broadcast"};

/* ---- index sets ---- */

/* The different sets of one dimension on one side: two are equal or disjoint. */
struct parts {
    int n;
    struct ap_index_set *set;
    int *of; /* [device] */
};

static bool splits(const struct ap_reshard_side *side, int axis, int d)
{
    return axis >= (side->mesh->microbatch ? 1 : 0) &&
           side->layout->axis[axis].kind == AP_SPLIT && side->layout->axis[axis].dim == d;
}

static struct ap_index_set set_at(struct ap_arena *arena, const struct ap_shape *shape,
                                  const struct ap_reshard_side *side, int d,
                                  const int64_t *coords, int64_t extent)
{
    int64_t *map = AP_NEW_N(arena, extent + 1, int64_t), m = 0;
    int64_t *at = AP_NEW_N(arena, extent + 1, int64_t);

    ap_layout_index_map(side->mesh, shape, side->layout, d, coords, map);
    for (int64_t k = 0; k < extent; k++)
        if (map[k] >= 0) {
            at[m] = k;
            map[m++] = map[k];
        }
    return (struct ap_index_set){m, map, at};
}

static struct parts parts_of(struct ap_arena *arena, const struct ap_shape *shape,
                             const struct ap_reshard_side *side, int d, int message)
{
    const int n = (int)ap_mesh_devices(side->mesh), n_axes = side->mesh->n_axes;
    const int64_t extent =
        ap_layout_local(arena, side->mesh, shape, side->layout).dims[d];
    struct parts p = {.of = AP_NEW_N(arena, n + 1, int)};
    int64_t most = 1;

    for (int a = 0; a < n_axes; a++)
        most *= splits(side, a, d) ? side->mesh->size[a] : 1;
    p.set = AP_NEW_N(arena, most, struct ap_index_set);
    int *known = AP_NEW_N(arena, most, int);               /* [coordinates]: 1 + set */
    int *first = AP_NEW_N(arena, shape->dims[d] + 1, int); /* [first index]: 1 + set */
    for (int i = 0; i < n; i++) {
        int64_t coords[AP_MAX_AXES], at = 0;
        ap_mesh_coords(side->mesh, i, coords);
        for (int a = 0; a < n_axes; a++)
            at = splits(side, a, d) ? at * side->mesh->size[a] + coords[a] : at;
        if (side->mesh->microbatch)
            coords[0] = message;
        if (known[at] == 0) {
            const struct ap_index_set set = set_at(arena, shape, side, d, coords, extent);
            int *same = &first[set.n > 0 ? set.global[0] : shape->dims[d]];
            if (*same == 0) {
                p.set[p.n] = set;
                *same = ++p.n;
            }
            known[at] = *same;
        }
        p.of[i] = known[at] - 1;
    }
    return p;
}

int64_t ap_reshard_elems(int rank, const struct ap_index_set *a)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++)
        n *= a[d].n;
    return n;
}

/* [index of a dimension of `size`]: the set that has it, -1. */
static int *owners_of(struct ap_arena *arena, const struct parts *p, int64_t size)
{
    int *owner = AP_NEW_N(arena, size + 1, int);

    for (int64_t i = 0; i < size; i++)
        owner[i] = -1;
    for (int s = 0; s < p->n; s++)
        for (int64_t k = 0; k < p->set[s].n; k++)
            owner[p->set[s].global[k]] = s;
    return owner;
}

/* Leaves of each set what this message brings: what some sender has. */
static void cut_needs(const int *owner, struct parts *needs)
{
    for (int s = 0; s < needs->n; s++) {
        struct ap_index_set *set = &needs->set[s];
        int64_t *global = (int64_t *)(uintptr_t)set->global;
        int64_t *local = (int64_t *)(uintptr_t)set->local, n = 0;
        for (int64_t k = 0; k < set->n; k++)
            if (owner[global[k]] >= 0) {
                global[n] = global[k];
                local[n++] = local[k];
            }
        set->n = n;
    }
}

/* Sets that are empty now are the same one. */
static void join_empty(struct parts *p, int n_devices)
{
    int empty = -1;

    for (int i = 0; i < n_devices; i++) {
        if (p->set[p->of[i]].n > 0)
            continue;
        empty = empty < 0 ? p->of[i] : empty;
        p->of[i] = empty;
    }
}

/* Devices with the same sets. */
struct alike {
    int *first;         /* [device]: the first such one */
    int *of_code;       /* [code]: 1 + that device, 0: none */
    struct ap_csr list; /* [first]: them */
};

/* A number for one set of each dimension, below the product of their numbers. */
static int64_t code_of(int rank, const struct parts *p, const int *set)
{
    int64_t code = 0;
    for (int d = 0; d < rank; d++)
        code = code * p[d].n + set[d];
    return code;
}

static struct alike alike_of(struct ap_arena *arena, int rank, const struct parts *p,
                             int n)
{
    struct alike a = {.first = AP_NEW_N(arena, n + 1, int)};
    int64_t codes = 1;

    for (int d = 0; d < rank; d++)
        codes *= p[d].n; /* at most n, as an axis splits one dimension */
    a.of_code = AP_NEW_N(arena, codes + 1, int);
    for (int i = 0; i < n; i++) {
        int set[AP_MAX_RANK];
        for (int d = 0; d < rank; d++)
            set[d] = p[d].of[i];
        int *known = &a.of_code[code_of(rank, p, set)];
        if (*known == 0)
            *known = 1 + i;
        a.first[i] = *known - 1;
    }
    a.list = ap_csr_new(arena, n, n, a.first, NULL);
    return a;
}

static struct ap_index_set *spread(struct ap_arena *arena, int rank,
                                   const struct parts *p, int n)
{
    struct ap_index_set *sets = AP_NEW_N(arena, n * rank + 1, struct ap_index_set);

    for (int i = 0; i < n; i++)
        for (int d = 0; d < rank; d++)
            sets[i * rank + d] = p[d].set[p[d].of[i]];
    return sets;
}

/* ---- receivers ---- */

/* Receivers of the same tile, together, by their first. */
static void find_groups(struct ap_arena *arena, const struct alike *tiles,
                        struct ap_reshard *r)
{
    int *start = AP_NEW_N(arena, r->n_to + 1, int);
    int *size = AP_NEW_N(arena, r->n_to + 1, int);
    int *place = AP_NEW_N(arena, r->n_to + 1, int);

    r->group = tiles->list.item;
    for (int i = 0; i < r->n_to; i++) {
        const int k = r->group[i], first = tiles->first[k];
        start[k] = tiles->list.start[first];
        size[k] = ap_csr_count(&tiles->list, first);
        place[k] = i - start[k];
    }
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

/* The senders' sets of one dimension that a receiver's set meets. */
struct met {
    int n, cap;
    int *set;
    int64_t *common; /* indices in both */
};

struct mover {
    struct ap_arena *arena;
    struct ap_reshard *r;
    const struct ap_reshard_side *from, *to;
    const struct parts *has, *needs; /* [dimension] */
    int *owner[AP_MAX_RANK];         /* of the senders' sets */
    struct met *met[AP_MAX_RANK];    /* [set of needs]: n < 0 until asked for */
    struct met cut;                  /* of a set that only one receiver is sent */
    const struct alike *shards;
    int64_t *count; /* scratch: [set], zero between uses */
    int64_t *load;  /* [sender] */
    int cap_moves, n_hits, cap_hits;
    struct ap_reshard_move *hit; /* of one receiver; from: the first of a shard's */
};

static void meet(struct mover *m, int d, const struct ap_index_set *set, struct met *met)
{
    const int most = m->has[d].n < set->n ? m->has[d].n : (int)set->n;

    met->n = 0;
    if (met->cap < most) {
        met->cap = most;
        met->set = AP_NEW_N(m->arena, most, int);
        met->common = AP_NEW_N(m->arena, most, int64_t);
    }
    for (int64_t k = 0; k < set->n; k++) {
        const int s = m->owner[d][set->global[k]];
        if (m->count[s]++ == 0)
            met->set[met->n++] = s;
    }
    for (int i = 0; i < met->n; i++) {
        met->common[i] = m->count[met->set[i]];
        m->count[met->set[i]] = 0;
    }
}

static const struct met *met_of(struct mover *m, int receiver, int d)
{
    const struct ap_index_set *lands = &m->r->lands[receiver * m->r->rank + d];
    const int s = m->needs[d].of[receiver];
    struct met *met = &m->met[d][s];

    if (lands->n != m->needs[d].set[s].n) { /* at most one dimension is cut */
        meet(m, d, lands, &m->cut);
        return &m->cut;
    }
    if (met->n < 0)
        meet(m, d, lands, met);
    return met;
}

static void add_hits(struct mover *m, int receiver, const struct met *const *met)
{
    const int rank = m->r->rank;
    int at[AP_MAX_RANK] = {0}, d = 0;

    m->n_hits = 0;
    for (int i = 0; i < rank; i++)
        if (met[i]->n == 0)
            return;
    while (d >= 0) { /* the last dimension fastest */
        int set[AP_MAX_RANK];
        int64_t elems = 1;
        for (int i = 0; i < rank; i++) {
            set[i] = met[i]->set[at[i]];
            elems *= met[i]->common[at[i]];
        }
        AP_ROOM_IN(m->arena, m->hit, m->n_hits, m->cap_hits);
        m->hit[m->n_hits++] = (struct ap_reshard_move){
            m->shards->of_code[code_of(rank, m->has, set)] - 1, receiver, elems};
        for (d = rank - 1; d >= 0 && ++at[d] == met[d]->n; d--)
            at[d] = 0;
    }
}

static int by_sender(const void *a, const void *b)
{
    const struct ap_reshard_move *x = a, *y = b;
    return x->from < y->from ? -1 : x->from > y->from;
}

static int find_sender(const struct mover *m, int shard, int64_t receiver)
{
    const struct ap_csr *list = &m->shards->list;
    int best = -1;

    for (int i = list->start[shard]; i < list->start[shard + 1]; i++) {
        const int p = list->item[i];
        if (m->from->id[p] == receiver)
            return p;
        if (best < 0 || m->load[p] < m->load[best])
            best = p;
    }
    return best;
}

static void find_moves(struct mover *m)
{
    struct ap_reshard *r = m->r;

    for (int q = 0; q < r->n_to; q++) {
        const struct met *met[AP_MAX_RANK];
        for (int d = 0; d < r->rank; d++)
            met[d] = met_of(m, q, d);
        add_hits(m, q, met);
        if (m->n_hits > 0)
            qsort(m->hit, (size_t)m->n_hits, sizeof *m->hit, by_sender);
        for (int i = 0; i < m->n_hits; i++) {
            struct ap_reshard_move x = m->hit[i];
            x.from = find_sender(m, x.from, m->to->id[q]);
            m->load[x.from] += m->from->id[x.from] == m->to->id[q] ? 0 : x.elems;
            AP_ROOM_IN(m->arena, r->move, r->n_moves, m->cap_moves);
            r->move[r->n_moves++] = x;
        }
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
    struct parts has[AP_MAX_RANK], needs[AP_MAX_RANK];
    struct mover m = {.arena = arena,
                      .r = &r,
                      .from = from,
                      .to = to,
                      .has = has,
                      .needs = needs,
                      .count = AP_NEW_N(arena, r.n_from + 1, int64_t),
                      .load = AP_NEW_N(arena, r.n_from + 1, int64_t)};

    for (int d = 0; d < r.rank; d++) {
        has[d] = parts_of(arena, shape, from, d, message);
        needs[d] = parts_of(arena, shape, to, d, message);
        m.owner[d] = owners_of(arena, &has[d], shape->dims[d]);
        cut_needs(m.owner[d], &needs[d]);
        join_empty(&needs[d], r.n_to);
        m.met[d] = AP_NEW_N(arena, needs[d].n, struct met);
        for (int s = 0; s < needs[d].n; s++)
            m.met[d][s].n = -1;
    }
    const struct alike shards = alike_of(arena, r.rank, has, r.n_from);
    const struct alike tiles = alike_of(arena, r.rank, needs, r.n_to);
    m.shards = &shards;
    r.has = spread(arena, r.rank, has, r.n_from);
    r.needs = spread(arena, r.rank, needs, r.n_to);
    r.lands = AP_NEW_N(arena, r.n_to * r.rank + 1, struct ap_index_set);
    find_groups(arena, &tiles, &r);
    find_lands(&r, how);
    find_moves(&m);
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
