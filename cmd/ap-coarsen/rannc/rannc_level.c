/*
 * Problem: clusters of components change at every pass, yet the bytes that a cluster
 * sends to each other cluster, its memory and its neighbours must be known exactly and
 * cheaply. Idea: a value is sent once to each cluster that reads it, so all of this
 * follows from the lists of clusters that read each value; a contraction renames and
 * deduplicates them and derives all other lists in order. A join of two clusters differs
 * from their sum only by the common members of their lists, found by searching the longer
 * list for the shorter one's members. Cost: contraction O(components + lists), a join
 * O(shorter * log longer).
 */
#include "rannc/rannc.h"

#include <stdlib.h>

#include "base/csr.h"

double rannc_sec(const struct rannc_profile *p)
{
    return p->fwd_sec + p->bwd_sec;
}

bool rannc_fits(const struct rannc_params *params, const struct rannc_profile *p)
{
    return rannc_memory_bytes(p, rannc_alloc_bytes(p, &params->memory),
                              params->memory.optimizer_factor) <= params->limit_bytes;
}

/* ---- lists from the readers ---- */

static void derive_lists(struct ap_arena *arena, struct rannc_level *l)
{
    int n_values = l->atoms->n, n_reads = l->reader_start[n_values];
    int *maker = AP_NEW_N(arena, n_values, int), *read = AP_NEW_N(arena, n_reads, int);

    for (int v = 0; v < n_values; v++) {
        maker[v] = l->reader_start[v] < l->reader_start[v + 1] ? l->owner[v] : -1;
        for (int i = l->reader_start[v]; i < l->reader_start[v + 1]; i++)
            read[i] = v;
    }
    struct ap_csr out = ap_csr_new(arena, l->n, n_values, maker, NULL);
    struct ap_csr in = ap_csr_new(arena, l->n, n_reads, l->reader, NULL);
    l->out_start = out.start;
    l->out = out.item;
    l->in_start = in.start;
    l->in = in.item;
    l->in_several = AP_NEW_N(arena, n_reads, bool);
    for (int i = 0; i < n_reads; i++) {
        l->in_several[i] = l->reader_count[in.item[i]] > 1;
        in.item[i] = read[in.item[i]];
    }
}

/* Full profiles: clones, inputs, outputs, copies on top of what is a cluster's own. */
static void derive_profiles(struct ap_arena *arena, struct rannc_level *l)
{
    const struct rannc_atoms *atoms = l->atoms;

    l->all = AP_NEW_N(arena, l->n, struct rannc_profile);
    for (int c = 0; c < l->n; c++) {
        struct rannc_profile *p = &l->all[c];
        *p = l->own[c];
        for (int i = l->shared_start[c]; i < l->shared_start[c + 1]; i++) {
            p->fwd_sec += atoms->shared_sec[l->shared[i]];
            p->param_bytes = ap_add64(p->param_bytes, atoms->shared_bytes[l->shared[i]]);
        }
        for (int i = l->in_start[c]; i < l->in_start[c + 1]; i++) {
            int64_t bytes = atoms->value_bytes[l->in[i]];
            p->in_bytes = ap_add64(p->in_bytes, bytes);
            if (l->in_several[i])
                p->copy_bytes = ap_add64(p->copy_bytes, bytes);
        }
        for (int i = l->out_start[c]; i < l->out_start[c + 1]; i++)
            if (!atoms->is_result[l->out[i]])
                p->out_bytes = ap_add64(p->out_bytes, atoms->value_bytes[l->out[i]]);
    }
    for (int v = 0; v < atoms->n; v++)
        if (atoms->is_result[v]) {
            struct rannc_profile *p = &l->all[l->owner[v]];
            p->out_bytes = ap_add64(p->out_bytes, atoms->value_bytes[v]);
        }
}

struct rannc_level *rannc_level_first(struct ap_arena *arena,
                                      const struct rannc_atoms *atoms)
{
    struct rannc_level *l = AP_NEW(arena, struct rannc_level);
    int n_edges = atoms->reader_start[atoms->n], n_shared = atoms->shared_start[atoms->n];

    l->atoms = atoms;
    l->n = atoms->n;
    l->owner = AP_NEW_N(arena, l->n, int);
    l->reader_count = AP_NEW_N(arena, n_edges + 1, int);
    for (int v = 0; v < l->n; v++)
        l->owner[v] = v;
    for (int i = 0; i < n_edges; i++)
        l->reader_count[i] = 1;
    l->reader_start =
        ap_arena_dup(arena, atoms->reader_start, ((size_t)l->n + 1) * sizeof(int));
    l->reader = ap_arena_dup(arena, atoms->reader, ((size_t)n_edges + 1) * sizeof(int));
    l->shared_start =
        ap_arena_dup(arena, atoms->shared_start, ((size_t)l->n + 1) * sizeof(int));
    l->shared = ap_arena_dup(arena, atoms->shared, ((size_t)n_shared + 1) * sizeof(int));
    l->own = ap_arena_dup(arena, atoms->own, (size_t)l->n * sizeof *l->own);
    derive_lists(arena, l);
    derive_profiles(arena, l);
    return l;
}

/* ---- contraction ---- */

/* Readers of each value by their new names, without the value's own cluster. */
static void contract_readers(struct ap_arena *arena, const struct rannc_level *fine,
                             struct rannc_level *l)
{
    int n_values = l->atoms->n, at = 0;
    int *seen = AP_NEW_N(arena, l->n, int), *count = AP_NEW_N(arena, l->n, int);

    l->reader_start = AP_NEW_N(arena, n_values + 1, int);
    l->reader = AP_NEW_N(arena, fine->reader_start[n_values] + 1, int);
    l->reader_count = AP_NEW_N(arena, fine->reader_start[n_values] + 1, int);
    for (int v = 0; v < n_values; v++) {
        int first = at;
        l->reader_start[v] = at;
        for (int i = fine->reader_start[v]; i < fine->reader_start[v + 1]; i++) {
            int c = fine->parent[fine->reader[i]];
            if (c == l->owner[v])
                continue;
            if (seen[c] != v + 1) {
                seen[c] = v + 1;
                count[c] = 0;
                l->reader[at++] = c;
            }
            count[c] += fine->reader_count[i];
        }
        qsort(l->reader + first, (size_t)(at - first), sizeof(int), ap_compare_int);
        for (int i = first; i < at; i++)
            l->reader_count[i] = count[l->reader[i]];
    }
    l->reader_start[n_values] = at;
}

static void contract_own(struct ap_arena *arena, const struct rannc_level *fine,
                         struct rannc_level *l)
{
    struct ap_csr members = ap_csr_new(arena, l->n, fine->n, fine->parent, NULL);
    int *seen = AP_NEW_N(arena, l->atoms->n_shared, int), at = 0;

    l->own = AP_NEW_N(arena, l->n, struct rannc_profile);
    l->shared_start = AP_NEW_N(arena, l->n + 1, int);
    l->shared = AP_NEW_N(arena, fine->shared_start[fine->n] + 1, int);
    for (int c = 0; c < l->n; c++) {
        int first = at;
        l->shared_start[c] = at;
        for (int m = members.start[c]; m < members.start[c + 1]; m++) {
            int x = members.item[m];
            rannc_join(&l->own[c], &fine->own[x]);
            for (int i = fine->shared_start[x]; i < fine->shared_start[x + 1]; i++) {
                int s = fine->shared[i];
                if (seen[s] != c + 1) {
                    seen[s] = c + 1;
                    l->shared[at++] = s;
                }
            }
        }
        qsort(l->shared + first, (size_t)(at - first), sizeof(int), ap_compare_int);
    }
    l->shared_start[l->n] = at;
}

struct rannc_level *rannc_level_contract(struct ap_arena *arena, struct rannc_level *fine,
                                         int n, int *map)
{
    struct rannc_level *l = AP_NEW(arena, struct rannc_level);

    l->atoms = fine->atoms;
    l->n = n;
    fine->parent = map;
    l->owner = AP_NEW_N(arena, l->atoms->n, int);
    for (int v = 0; v < l->atoms->n; v++)
        l->owner[v] = map[fine->owner[v]];
    contract_readers(arena, fine, l);
    contract_own(arena, fine, l);
    derive_lists(arena, l);
    derive_profiles(arena, l);
    return l;
}

/* ---- joins ---- */

int rannc_find(const int *start, const int *v, int row, int x)
{
    int lo = start[row], hi = start[row + 1], end = hi;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (v[mid] < x)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < end && v[lo] == x ? lo : -1;
}

static int row_length(const int *start, int row)
{
    return start[row + 1] - start[row];
}

/* Which of rows a and b of a list is shorter, and which longer. */
static void order_rows(const int *start, int a, int b, int *few, int *many)
{
    bool swap = row_length(start, a) > row_length(start, b);

    *few = swap ? b : a;
    *many = swap ? a : b;
}

/* Both read the value from elsewhere: it comes in once and is copied. */
static void join_common(const struct rannc_level *l, int a, int b,
                        struct rannc_profile *p)
{
    int few, many;

    order_rows(l->in_start, a, b, &few, &many);
    for (int i = l->in_start[few]; i < l->in_start[few + 1]; i++) {
        int other = rannc_find(l->in_start, l->in, many, l->in[i]);
        if (other < 0)
            continue;
        int64_t bytes = l->atoms->value_bytes[l->in[i]];
        p->in_bytes -= bytes;
        p->copy_bytes += bytes * (1 - l->in_several[i] - l->in_several[other]);
    }
}

/* Input i of b is made by a; inside the join it is neither input nor copy, and no output
 * unless somebody else reads it. */
static void join_value(const struct rannc_level *l, int i, struct rannc_profile *p,
                       int64_t *cut_bytes)
{
    int v = l->in[i];
    int64_t bytes = l->atoms->value_bytes[v];
    p->in_bytes -= bytes;
    if (l->in_several[i])
        p->copy_bytes -= bytes;
    if (row_length(l->reader_start, v) == 1 && !l->atoms->is_result[v])
        p->out_bytes -= bytes;
    *cut_bytes = ap_add64(*cut_bytes, bytes);
}

static void join_edge(const struct rannc_level *l, int a, int b, struct rannc_profile *p,
                      int64_t *cut_bytes)
{
    if (row_length(l->out_start, a) < row_length(l->in_start, b)) {
        for (int i = l->out_start[a]; i < l->out_start[a + 1]; i++) {
            int in = rannc_find(l->in_start, l->in, b, l->out[i]);
            if (in >= 0)
                join_value(l, in, p, cut_bytes);
        }
        return;
    }
    for (int i = l->in_start[b]; i < l->in_start[b + 1]; i++)
        if (rannc_find(l->out_start, l->out, a, l->in[i]) >= 0)
            join_value(l, i, p, cut_bytes);
}

void rannc_level_join(const struct rannc_level *l, int a, int b,
                      struct rannc_profile *joined, int64_t *cut_bytes)
{
    const struct rannc_atoms *atoms = l->atoms;
    int few, many;

    *cut_bytes = 0;
    *joined = l->all[a];
    rannc_join(joined, &l->all[b]);
    joined->in_bytes = ap_add64(l->all[a].in_bytes, l->all[b].in_bytes);
    joined->out_bytes = ap_add64(l->all[a].out_bytes, l->all[b].out_bytes);
    joined->copy_bytes = ap_add64(l->all[a].copy_bytes, l->all[b].copy_bytes);
    order_rows(l->shared_start, a, b, &few, &many);
    for (int i = l->shared_start[few]; i < l->shared_start[few + 1]; i++)
        if (rannc_find(l->shared_start, l->shared, many, l->shared[i]) >= 0) {
            joined->fwd_sec -= atoms->shared_sec[l->shared[i]];
            joined->param_bytes -= atoms->shared_bytes[l->shared[i]];
        }
    join_common(l, a, b, joined);
    join_edge(l, a, b, joined, cut_bytes);
    join_edge(l, b, a, joined, cut_bytes);
}
