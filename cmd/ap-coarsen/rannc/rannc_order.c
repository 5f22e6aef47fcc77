/*
 * Problem: two clusters may merge only if no path leaves one and enters the other by way
 * of a third, and pairs that are each fine alone (a with b, c with d, edges a to d and c
 * to b) may not be fine together. Testing reachability from scratch is quadratic. Idea:
 * keep a topological rank of every cluster in the graph as merged so far. A path from a
 * to b passes ranks between theirs only, so search there, forward from a; the clusters
 * found have to move after the pair, and the clusters that lead to b before it; both
 * share the places that they had together. No path is possible, and nobody has to move,
 * when b comes first among a's successors or a last among b's predecessors, which is most
 * of the time. Cost: the part of the graph between the two, at most RANNC_MAX_SEARCH
 * edges each way; beyond that the answer is no, which is always safe. After Pearce and
 * Kelly, "A Dynamic Topological Sort Algorithm for Directed Acyclic Graphs", section 3,
 * with merging in the place of insertion.
 */
#include "rannc/rannc_order.h"

#include <stdlib.h>

void rannc_order_init(struct ap_arena *arena, const struct rannc_level *l,
                      struct rannc_order *o)
{
    *o = (struct rannc_order){.l = l};
    o->mate = AP_NEW_N(arena, l->n, int);
    o->rank = AP_NEW_N(arena, l->n, int);
    o->mark = AP_NEW_N(arena, l->n, int);
    o->ahead = AP_NEW_N(arena, l->n, int);
    o->behind = AP_NEW_N(arena, l->n, int);
    o->slots = AP_NEW_N(arena, l->n + 2, int);
    o->at = AP_NEW_N(arena, l->n, int);
    o->n_readers = AP_NEW_N(arena, l->n, int);
    for (int c = 0; c < l->n; c++) {
        o->at[c] = c;
        for (int i = l->out_start[c]; i < l->out_start[c + 1]; i++)
            o->n_readers[c] +=
                l->reader_start[l->out[i] + 1] - l->reader_start[l->out[i]];
        o->mate[c] = -1;
        o->rank[c] = c;
    }
}

/* The lower id of a pair stands for both. */
static int rep(const struct rannc_order *o, int c)
{
    return o->mate[c] >= 0 && o->mate[c] < c ? o->mate[c] : c;
}

/* A search over ranks strictly between two clusters'; found lists what it met. */
struct search {
    struct rannc_order *o;
    int from, to, lo, hi; /* lo, hi: ranks */
    int *found, n_found, edges;
};

/* False: the path is there, or the search is too long. */
static bool visit(struct search *s, int c)
{
    c = rep(s->o, c);
    if (c == s->to || ++s->edges > RANNC_MAX_SEARCH)
        return false;
    if (s->o->rank[c] > s->lo && s->o->rank[c] < s->hi &&
        s->o->mark[c] != s->o->n_marks) {
        s->o->mark[c] = s->o->n_marks;
        s->found[s->n_found++] = c;
    }
    return true;
}

static bool visit_successors(struct search *s, int c, int but)
{
    const struct rannc_level *l = s->o->l;
    for (int i = l->out_start[c]; i < l->out_start[c + 1]; i++)
        for (int v = l->out[i], k = l->reader_start[v]; k < l->reader_start[v + 1]; k++)
            if (l->reader[k] != but && !visit(s, l->reader[k]))
                return false;
    return true;
}

static bool visit_predecessors(struct search *s, int c, int but)
{
    const struct rannc_level *l = s->o->l;
    for (int i = l->in_start[c]; i < l->in_start[c + 1]; i++) {
        int p = l->owner[l->in[i]];
        if (p != but && !visit(s, p))
            return false;
    }
    return true;
}

typedef bool visit_fn(struct search *s, int c, int but);

/* What lies between by this direction. */
static bool spread(struct search *s, visit_fn *neighbours)
{
    s->o->n_marks++;
    if (!neighbours(s, s->from, s->to))
        return false;
    for (int i = 0; i < s->n_found; i++) {
        int c = s->found[i], mate = s->o->mate[c];
        if (!neighbours(s, c, -1) || (mate >= 0 && !neighbours(s, mate, -1)))
            return false;
    }
    return true;
}

static void sort_by_rank(const struct rannc_order *o, int *v, int n)
{
    for (int i = 0; i < n; i++)
        v[i] = o->rank[v[i]];
    qsort(v, (size_t)n, sizeof(int), ap_compare_int);
    for (int i = 0; i < n; i++)
        v[i] = o->at[v[i]];
}

static void place(struct rannc_order *o, int c, int rank)
{
    o->rank[c] = rank;
    o->at[rank] = c;
}

/* First who leads to b, then the pair, then who follows a, on the places of all. */
static void rearrange(struct rannc_order *o, int a, int b, int n_ahead, int n_behind)
{
    int n = 0, at = 0;

    sort_by_rank(o, o->ahead, n_ahead);
    sort_by_rank(o, o->behind, n_behind);
    o->slots[n++] = o->rank[a];
    o->slots[n++] = o->rank[b];
    for (int i = 0; i < n_ahead; i++)
        o->slots[n++] = o->rank[o->ahead[i]];
    for (int i = 0; i < n_behind; i++)
        o->slots[n++] = o->rank[o->behind[i]];
    qsort(o->slots, (size_t)n, sizeof(int), ap_compare_int);
    for (int i = 0; i < n_ahead; i++)
        place(o, o->ahead[i], o->slots[at++]);
    place(o, a < b ? a : b, o->slots[at]);
    at += 2;
    for (int i = 0; i < n_behind; i++)
        place(o, o->behind[i], o->slots[at++]);
}

static void pair(struct rannc_order *o, int a, int b)
{
    o->mate[a] = b;
    o->mate[b] = a;
}

bool rannc_order_merge(struct rannc_order *o, int a, int b)
{
    if (o->rank[a] > o->rank[b]) {
        int swap = a;
        a = b;
        b = swap;
    }
    struct search fwd = {o, a, b, o->rank[a], o->rank[b], o->behind, 0, 0};
    struct search back = {o, b, a, o->rank[a], o->rank[b], o->ahead, 0, 0};
    int n_in = o->l->in_start[b + 1] - o->l->in_start[b];
    bool back_first = n_in <= o->n_readers[a];

    if (back_first ? !spread(&back, visit_predecessors) : !spread(&fwd, visit_successors))
        return false;
    if (back_first && !back.n_found) {
        place(o, a < b ? a : b, o->rank[a]);
    } else if (!back_first && !fwd.n_found) {
        place(o, a < b ? a : b, o->rank[b]);
    } else {
        if (back_first ? !spread(&fwd, visit_successors)
                       : !spread(&back, visit_predecessors))
            return false;
        rearrange(o, a, b, back.n_found, fwd.n_found);
    }
    pair(o, a, b);
    return true;
}

void rannc_order_merge_next(struct rannc_order *o, int a, int b)
{
    place(o, a < b ? a : b, o->rank[a]);
    pair(o, a, b);
}

int rannc_order_number(const struct rannc_order *o, int *map)
{
    int n = 0;

    /* a place that a merge left empty still names who had it */
    for (int r = 0; r < o->l->n; r++) {
        int c = o->at[r];
        if (o->rank[c] != r || rep(o, c) != c)
            continue;
        map[c] = n;
        if (o->mate[c] >= 0)
            map[o->mate[c]] = n;
        n++;
    }
    return n;
}
