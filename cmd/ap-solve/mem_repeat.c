/*
 * Proposes that a part of the graph does as a similar region does: what layers of a model
 * are, whose good choices differ from each other's in all of their nodes at once.
 *
 * Nodes are similar that have as many strategies and neighbours as each other, and so
 * have their neighbours. From two similar nodes on, two parts are walked in step: a
 * neighbour of one goes with the most similar neighbour of the other, hubs left out,
 * since layers share them. The first part may take what the second has, node by node: who
 * does is decided at least cost (mem_fuse.c), so parts need not end where layers
 * do. O(neighbours^2) a node, and what fusing costs.
 */
#include "mem_local.h"

#include <stdlib.h>
#include <string.h>

#define TRY_WORK 100
#define LOOKS    8 /* for a similar node that chose otherwise */
#define WALK     6 /* nodes walked per node that differs, at most */

struct mem_repeat {
    const struct mem_core *m;
    uint64_t *sign;       /* [node], equal if similar */
    int *node, n;         /* class by class, without those that are alone */
    int *first, *n_alike; /* [node], its class in node[] */
    const int **label;    /* [node], which strategies it has of its class's */
    int *from;            /* [node] of the first part, who it goes with, or -1 */
    bool *used;           /* [node] of the second part */
    int *alt;             /* [node], what it may take */
};

static bool is_hub(const struct sel_core *c, int v)
{
    return c->node[v].n_edges >= MEM_HUB;
}

static uint64_t sign_alone(const struct sel_core *c, int v)
{
    int n = c->node[v].n_edges;

    return mem_mix((uint64_t)c->node[v].n_strategies * MEM_HUB +
                   (uint64_t)(n < MEM_HUB ? n : MEM_HUB));
}

struct entry {
    uint64_t sign;
    int v;
};

static int by_sign(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;

    if (a->sign != b->sign)
        return a->sign < b->sign ? -1 : 1;
    return a->v - b->v;
}

static void find_classes(struct mem_repeat *a)
{
    const struct sel_core *c = a->m->core;
    struct entry *entry = ap_xrealloc(NULL, ((size_t)c->n_nodes + 1) * sizeof(*entry));

    for (int v = 0; v < c->n_nodes; v++) {
        a->sign[v] = sign_alone(c, v);
        for (int k = 0; k < c->node[v].n_edges && !is_hub(c, v); k++) {
            const struct sel_edge *e = &c->edge[c->node[v].edges[k]];
            a->sign[v] += mem_mix(sign_alone(c, sel_other(e, v)) + (e->a == v));
        }
        entry[v] = (struct entry){a->sign[v], v};
    }
    qsort(entry, (size_t)c->n_nodes, sizeof(*entry), by_sign);
    for (int i = 0, end; i < c->n_nodes; i = end) {
        for (end = i + 1; end < c->n_nodes && entry[end].sign == entry[i].sign; end++)
            ;
        for (int k = i; k < end && end - i > 1 && !is_hub(c, entry[i].v); k++) {
            a->first[entry[k].v] = a->n - (k - i);
            a->n_alike[entry[k].v] = end - i;
            a->node[a->n++] = entry[k].v;
        }
    }
    free(entry);
}

struct mem_repeat *mem_repeat_new(struct ap_arena *arena, const struct mem_core *m)
{
    struct mem_repeat *a = AP_NEW(arena, struct mem_repeat);
    int n = m->core->n_nodes + 1;

    a->m = m;
    a->sign = AP_NEW_N(arena, n, uint64_t);
    a->node = AP_NEW_N(arena, n, int);
    a->first = AP_NEW_N(arena, n, int);
    a->n_alike = AP_NEW_N(arena, n, int);
    a->label = AP_NEW_N(arena, n, const int *);
    a->from = AP_NEW_N(arena, n, int);
    a->used = AP_NEW_N(arena, n, bool);
    a->alt = AP_NEW_N(arena, n, int);
    for (int v = 0; v < m->core->n_nodes; v++) {
        a->label[v] = m->whole ? m->whole->node[m->node_of[v]].label : m->core->identity;
        a->from[v] = -1;
    }
    find_classes(a);
    return a;
}

/* The strategy of v that is the present one of w, -1 if there is none. */
static int strategy_of(const struct mem_local *l, int v, int w)
{
    const struct mem_repeat *a = l->repeat;
    int label = a->label[w][l->st->choice[w]], s = l->st->choice[w];
    int n = l->m->core->node[v].n_strategies;

    if (s < n && a->label[v][s] == label)
        return s;
    for (s = 0; s < n; s++)
        if (a->label[v][s] == label)
            return s;
    return -1;
}

static void pair_up(struct mem_local *l, int v, int w)
{
    l->repeat->from[v] = w;
    l->repeat->used[w] = true;
    l->frontier[l->n_frontier++] = v;
}

/* The neighbour of w most similar to what e leads to from v, -1 if none is. */
static int find_partner(const struct mem_local *l, int v, const struct sel_edge *e, int w)
{
    const struct mem_repeat *a = l->repeat;
    const struct sel_core *c = l->m->core;
    int x = sel_other(e, v), best = -1, most = 0;

    for (int k = 0; k < c->node[w].n_edges; k++) {
        const struct sel_edge *f = &c->edge[c->node[w].edges[k]];
        int y = sel_other(f, w);
        if (a->used[y] || y == x || is_hub(c, y) || (e->a == v) != (f->a == w) ||
            c->node[x].n_strategies != c->node[y].n_strategies)
            continue;
        int score = 1 + 4 * (a->sign[x] == a->sign[y]) +
                    2 * (c->node[x].n_edges == c->node[y].n_edges) +
                    (e->table == f->table);
        if (score > most) {
            most = score;
            best = y;
        }
    }
    return best;
}

/* Nodes around v that may take what nodes around w have, into node[]. */
static int64_t walk(struct mem_local *l, int v, int w, int size)
{
    struct mem_repeat *a = l->repeat;
    const struct sel_core *c = l->m->core;
    bool breadth = mem_random(l) & 1;
    int64_t work = 0;

    l->n = l->n_frontier = 0;
    pair_up(l, v, w);
    for (int head = 0; l->n < size && head < l->n_frontier && head < WALK * size;
         head++) {
        if (!breadth) {
            int i = head + mem_pick(l, l->n_frontier - head), t = l->frontier[i];
            l->frontier[i] = l->frontier[head];
            l->frontier[head] = t;
        }
        v = l->frontier[head];
        w = a->from[v];
        a->alt[v] = strategy_of(l, v, w);
        if (a->alt[v] >= 0 && a->alt[v] != l->st->choice[v]) {
            l->place[v] = l->n;
            l->node[l->n++] = v;
        }
        for (int k = 0; k < c->node[v].n_edges; k++) {
            const struct sel_edge *e = &c->edge[c->node[v].edges[k]];
            int x = sel_other(e, v), y;
            if (a->from[x] >= 0 || is_hub(c, x) || (y = find_partner(l, v, e, w)) < 0)
                continue;
            pair_up(l, x, y);
        }
        work += (int64_t)c->node[v].n_edges * c->node[w].n_edges;
    }
    return work;
}

static void part(struct mem_local *l)
{
    for (int i = 0; i < l->n_frontier; i++) {
        int v = l->frontier[i];
        l->repeat->used[l->repeat->from[v]] = false;
        l->repeat->from[v] = -1;
    }
    for (int i = 0; i < l->n; i++)
        l->place[l->node[i]] = -1;
}

void mem_try_repeat(struct mem_local *l, int start, int size, double factor,
                    struct mem_budget *budget)
{
    const struct mem_repeat *a = l->repeat;
    int64_t work = TRY_WORK;
    int w = start;

    for (int i = 0;
         i < LOOKS && a->n_alike[start] > 0 && l->st->choice[w] == l->st->choice[start];
         i++)
        w = a->node[a->first[start] + mem_pick(l, a->n_alike[start])];
    if (l->st->choice[w] != l->st->choice[start]) {
        work += walk(l, start, w, size < MEM_FUSE ? size : MEM_FUSE);
        double change = mem_fuse(l, a->alt, factor, &work);
        struct trade *t = mem_take_or_trade(l, change, &work);
        part(l);
        work += mem_trade_end(t);
    }
    mem_spend(budget, work);
}
