/*
 * Which nodes of a set take another strategy, each one of its own: the cheapest choice,
 * usage at its price, all nodes outside as they are.
 *
 * With two strategies a node, tables stay small where those of whole nodes would not: a
 * set with cycles is decided exactly, node by node eliminated, the one with fewest
 * neighbours first. Where all have too many, the node with most stays as it is. After
 * Lempitsky, Rother, Roth and Blake, "Fusion moves for Markov random field optimization",
 * 2010, and Bertele and Brioschi, "Nonserial dynamic programming", 1972. O(nodes *
 * 2^MAX_WIDTH), most often far less.
 */
#include "solve/memory/solve_mem_local.h"

#include <stdlib.h>
#include <string.h>

#define MAX_WIDTH 10 /* neighbours of a node that is eliminated */
#define WORDS     (MEM_FUSE / 64)

struct pair {
    int a, b;                   /* ranks, a first */
    double second, first, both; /* what it adds when b changes, a does, both do */
};

/* Costs of some nodes' changes, by the bits of who changes. */
struct table {
    int next; /* of those that go with the same node, -1 at the end */
    const int *scope;
    int n_scope;
    double *cost;
};

struct fuse {
    struct mem_local *l;
    const int *alt; /* [node], the other strategy */
    int n;          /* how many are decided, in the order of ranks: */
    int node[MEM_FUSE], scope[MEM_FUSE][MAX_WIDTH], n_scope[MEM_FUSE];
    int rank[MEM_FUSE];                      /* [place], -1: it stays */
    double change[MEM_FUSE], move[MEM_FUSE]; /* [rank] without and with usage's price */
    struct pair *pair;
    int n_pairs;
    struct table table[MEM_FUSE];
    int bucket[MEM_FUSE]; /* [rank], the tables that go with it, -1 at the end */
    double *pool;
    bool *takes[MEM_FUSE], x[MEM_FUSE];
    int64_t n_cells, work;
};

static void add_to(uint64_t *set, int i)
{
    set[i / 64] |= (uint64_t)1 << (i % 64);
}

static void take_from(uint64_t *set, int i)
{
    set[i / 64] &= ~((uint64_t)1 << (i % 64));
}

/* The members of a set, in order; how many. */
static int list_of(const uint64_t *set, int *list)
{
    int n = 0;

    for (int k = 0; k < WORDS; k++)
        for (uint64_t bits = set[k]; bits; bits &= bits - 1)
            list[n++] = 64 * k + __builtin_ctzll(bits);
    return n;
}

/* ---- in which order ---- */

static void find_near(struct fuse *f, uint64_t near[][WORDS])
{
    const struct mem_local *l = f->l;
    const struct sel_core *c = l->m->core;

    for (int i = 0; i < l->n; i++) {
        const struct sel_node *node = &c->node[l->node[i]];
        memset(near[i], 0, sizeof(near[i]));
        for (int k = 0; k < node->n_edges; k++) {
            int j = l->place[sel_other(&c->edge[node->edges[k]], l->node[i])];
            if (j >= 0)
                add_to(near[i], j);
        }
        f->work += node->n_edges;
    }
}

/* Takes place i out; its neighbours become each other's if it is decided. */
static void take_out(uint64_t near[][WORDS], int i, bool decided, int *n_near)
{
    int list[MEM_FUSE], n = list_of(near[i], list);

    for (int k = 0; k < n; k++) {
        uint64_t *set = near[list[k]];
        for (int w = 0; decided && w < WORDS; w++)
            set[w] |= near[i][w];
        take_from(set, i);
        if (decided)
            take_from(set, list[k]);
        n_near[list[k]] = 0;
        for (int w = 0; w < WORDS; w++)
            n_near[list[k]] += __builtin_popcountll(set[w]);
    }
}

static void find_order(struct fuse *f)
{
    const struct mem_local *l = f->l;
    uint64_t near[MEM_FUSE][WORDS];
    int n_near[MEM_FUSE], list[MEM_FUSE], left[MEM_FUSE];

    find_near(f, near);
    for (int i = 0; i < l->n; i++) {
        n_near[i] = list_of(near[i], list);
        left[i] = i;
        f->rank[i] = -1;
    }
    for (int n_left = l->n; n_left > 0; n_left--) {
        int least = 0, most = 0;
        for (int k = 1; k < n_left; k++) {
            if (n_near[left[k]] < n_near[left[least]])
                least = k;
            if (n_near[left[k]] > n_near[left[most]])
                most = k;
        }
        bool fits = n_near[left[least]] <= MAX_WIDTH;
        int at = fits ? least : most, i = left[at];
        if (fits) {
            f->n_scope[f->n] = list_of(near[i], f->scope[f->n]);
            f->node[f->n] = l->node[i];
            f->rank[i] = f->n++;
        }
        take_out(near, i, fits, n_near);
        left[at] = left[n_left - 1];
        f->work += n_left + WORDS * n_near[i];
    }
}

/* Scopes as ranks, without those who stay. */
static void find_scopes(struct fuse *f)
{
    for (int r = 0; r < f->n; r++) {
        int n = 0;
        for (int k = 0; k < f->n_scope[r]; k++)
            if (f->rank[f->scope[r][k]] >= 0)
                f->scope[r][n++] = f->rank[f->scope[r][k]];
        f->n_scope[r] = n;
        f->n_cells += (int64_t)1 << n;
    }
}

/* ---- costs ---- */

/* What both ends of an edge add, seen from the costs of each alone. */
static void find_pair(struct fuse *f, const struct sel_edge *e, int a, int b)
{
    const int *now = f->l->st->choice;
    int v = f->node[a], w = f->node[b], s = now[v], t = now[w];
    double before = sel_cell(e, v, s, t);

    f->pair[f->n_pairs++] =
        (struct pair){.a = a,
                      .b = b,
                      .second = sel_cell(e, v, s, f->alt[w]) - before,
                      .first = sel_cell(e, v, f->alt[v], t) - before,
                      .both = sel_cell(e, v, f->alt[v], f->alt[w]) - before};
}

static void find_costs(struct fuse *f, double factor)
{
    struct mem_local *l = f->l;
    const struct sel_core *c = l->m->core;
    int n_edges = 0;

    for (int r = 0; r < f->n; r++)
        n_edges += c->node[f->node[r]].n_edges;
    f->pair = ap_xrealloc(NULL, ((size_t)n_edges + 1) * sizeof(*f->pair));
    for (int r = 0; r < f->n; r++) {
        int v = f->node[r], s = l->st->choice[v], t = f->alt[v];
        int forbidden = l->st->forbidden[v][t];
        double change = l->st->answer[v][t] - l->st->answer[v][s];
        for (int k = 0; k < c->node[v].n_edges; k++) {
            const struct sel_edge *e = &c->edge[c->node[v].edges[k]];
            int w = sel_other(e, v), place = l->place[w];
            int b = place < 0 ? -1 : f->rank[place];
            if (b < 0)
                continue;
            double x = sel_cell(e, v, t, l->st->choice[w]);
            change += sel_cell(e, v, s, l->st->choice[w]) - (x < INFINITY ? x : 0);
            forbidden -= !(x < INFINITY);
            if (b > r)
                find_pair(f, e, r, b);
        }
        if (l->heat > 0)
            change += l->heat * (mem_gumbel(l) - mem_gumbel(l));
        f->change[r] = forbidden > 0 ? INFINITY : change;
        f->move[r] = f->change[r] + factor * (l->price[v][t] - l->price[v][s]);
    }
    f->work += 4 * n_edges;
}

/* ---- elimination ---- */

/* Adds a table's costs to those of rank r as it is, and changed. */
static void add_table(const struct table *t, int r, int n, const int *bit, double *stays,
                      double *changes)
{
    int stride[MAX_WIDTH] = {0}, own = 0, index[1 << MAX_WIDTH];

    for (int k = 0; k < t->n_scope; k++)
        if (t->scope[k] == r)
            own = 1 << k;
        else
            stride[bit[t->scope[k]]] = 1 << k;
    index[0] = 0;
    for (int x = 1; x < 1 << n; x++)
        index[x] = index[x & (x - 1)] | stride[__builtin_ctz((unsigned)x)];
    for (int x = 0; x < 1 << n; x++) {
        stays[x] += t->cost[index[x]];
        changes[x] += t->cost[index[x] | own];
    }
}

static void add_pair(const struct pair *p, int n, int bit, double *stays, double *changes)
{
    for (int x = 0; x < 1 << n; x++) {
        bool other = x >> bit & 1;
        stays[x] += other ? p->second : 0;
        changes[x] += other ? p->both : p->first;
    }
}

/* The least over what rank r does, for each thing that its neighbours do. */
static void eliminate(struct fuse *f, int r, int *bit, int *n_pairs)
{
    int n = f->n_scope[r], next = f->n;
    double stays[1 << MAX_WIDTH], changes[1 << MAX_WIDTH];

    for (int k = 0; k < n; k++) {
        bit[f->scope[r][k]] = k;
        next = f->scope[r][k] < next ? f->scope[r][k] : next;
    }
    for (int x = 0; x < 1 << n; x++) {
        stays[x] = 0;
        changes[x] = f->move[r];
    }
    for (; *n_pairs < f->n_pairs && f->pair[*n_pairs].a == r; ++*n_pairs)
        add_pair(&f->pair[*n_pairs], n, bit[f->pair[*n_pairs].b], stays, changes);
    for (int t = f->bucket[r]; t >= 0; t = f->table[t].next)
        add_table(&f->table[t], r, n, bit, stays, changes);
    struct table *t = &f->table[r];
    *t = (struct table){.scope = f->scope[r], .n_scope = n, .cost = f->pool};
    f->pool += (size_t)1 << n;
    for (int x = 0; x < 1 << n; x++) {
        f->takes[r][x] = changes[x] < stays[x];
        t->cost[x] = f->takes[r][x] ? changes[x] : stays[x];
    }
    if (next == f->n)
        return;
    t->next = f->bucket[next];
    f->bucket[next] = r;
}

static void decide(struct fuse *f)
{
    int bit[MEM_FUSE], n_pairs = 0;
    double *pool = ap_xrealloc(NULL, ((size_t)f->n_cells + 1) * sizeof(double));
    bool *takes = ap_xrealloc(NULL, (size_t)f->n_cells + 1);

    f->pool = pool;
    f->takes[0] = takes;
    for (int r = 0; r < f->n; r++) {
        f->bucket[r] = -1;
        if (r > 0)
            f->takes[r] = f->takes[r - 1] + ((size_t)1 << f->n_scope[r - 1]);
    }
    for (int r = 0; r < f->n; r++)
        eliminate(f, r, bit, &n_pairs);
    for (int r = f->n - 1; r >= 0; r--) {
        int x = 0;
        for (int k = 0; k < f->n_scope[r]; k++)
            x |= f->x[f->scope[r][k]] << k;
        f->x[r] = f->takes[r][x];
    }
    f->work += 6 * f->n_cells;
    free(pool);
    free(takes);
}

double mem_fuse(struct mem_local *l, const int *alt, double factor, int64_t *work)
{
    struct fuse f = {.l = l, .alt = alt};
    double sum = 0;

    find_order(&f);
    find_scopes(&f);
    find_costs(&f, factor);
    decide(&f);
    for (int i = 0; i < l->n; i++) {
        int v = l->node[i], r = f.rank[i];
        bool changes = r >= 0 && f.x[r];
        l->pick[i] = changes ? alt[v] : l->st->choice[v];
        sum += changes ? f.change[r] : 0;
    }
    for (int k = 0; k < f.n_pairs; k++) {
        const struct pair *p = &f.pair[k];
        sum += f.x[p->a] ? (f.x[p->b] ? p->both : p->first) : (f.x[p->b] ? p->second : 0);
    }
    free(f.pair);
    *work += f.work;
    return sum;
}
