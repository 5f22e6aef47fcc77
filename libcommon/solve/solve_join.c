/*
 * Copies that are paid once. A copy node has two strategies, absent and made: one edge to
 * its producer says what making it costs, edges to its consumers forbid absent where it
 * is needed. As single nodes the copies of a tensor make every relaxation weak: a
 * producer that is half this and half that feeds each copy from its better half. Exact
 * remedy: one node for all copies of a tensor, whose strategies are the sets that can be
 * needed, the unions of one need per consumer; being made costs at least as much as being
 * absent, so no other set is of use. The edge to the producer then couples it with the
 * whole set. Which copies are made follows from the consumers in the end.
 *
 * If there are too many sets, only sets of few members are exact, and a few proxies,
 * which cost no more than any set that they represent, serve all needs. The problem is
 * then a relaxation; if its solution has the cost that the relaxation states, it is
 * optimal; else the groups concerned get more sets and the problem is solved again.
 *
 * O(sets * consumers' distinct needs) per tensor. Groups of more than MAX_COPIES copies
 * are not joined.
 */
#include "solve/solve.h"

#include <stdlib.h>
#include <string.h>

#include "base/union_find.h"

#define FIRST_SETS 352                /* exact sets of a group at first */
#define MORE_SETS  4                  /* times as many after each refinement */
#define MAX_SETS   (SEL_MAX_SETS / 8) /* raised once more they double with proxies */
#define MAX_COPIES 256                /* of a group */
#define WORDS      (MAX_COPIES / 64)

struct copy {
    int node, producer; /* producer edge */
    bool made_is_0;     /* the strategy that means made */
};

struct sel_join {
    struct sel_core *c;
    int *copy_of; /* [node], index of its copy, -1 */
    struct copy *copy;
    int *up;                  /* sets of copies, led by the lowest */
    struct ap_arena *scratch; /* for one group */
    int n_copies, *slot;      /* [copy], its bit in the present group */
    int *max_sets;            /* [node], of the group that it leads; the caller's */
    bool *leads;              /* [node], it stands for a group of copies */
    int *n_sets;              /* [node], exact sets of the group that it leads */
    bool relaxed;             /* some group has not all its sets */
};

/* ---- recognising copies ---- */

/* Absent forbids some of the other end's strategies and costs nothing else. */
static bool is_need(const struct sel_core *c, const struct sel_edge *e, int v, int made)
{
    int n = c->node[sel_other(e, v)].n_strategies;

    for (int t = 0; t < n; t++) {
        double absent = sel_cell(e, v, !made, t);
        if (sel_cell(e, v, made, t) != 0 || (absent != 0 && absent != INFINITY))
            return false;
    }
    return true;
}

/* Absent costs nothing. */
static bool is_making(const struct sel_core *c, const struct sel_edge *e, int v, int made)
{
    int n = c->node[sel_other(e, v)].n_strategies;

    for (int t = 0; t < n; t++)
        if (sel_cell(e, v, !made, t) != 0)
            return false;
    return true;
}

static bool recognise(const struct sel_core *c, int v, int made, struct copy *copy)
{
    const struct sel_node *node = &c->node[v];

    if (node->cost[!made] == INFINITY || node->cost[!made] > node->cost[made])
        return false;
    copy->node = v;
    copy->made_is_0 = made == 0;
    copy->producer = -1;
    for (int i = 0; i < node->n_edges; i++) {
        const struct sel_edge *e = &c->edge[node->edges[i]];
        if (is_need(c, e, v, made))
            continue;
        if (copy->producer >= 0 || !is_making(c, e, v, made))
            return false;
        copy->producer = node->edges[i];
    }
    return copy->producer >= 0 && node->n_edges > 1;
}

static int made(const struct copy *copy)
{
    return copy->made_is_0 ? 0 : 1;
}

static int producer(const struct sel_join *j, int i)
{
    return sel_other(&j->c->edge[j->copy[i].producer], j->copy[i].node);
}

static bool needs(const struct sel_join *j, int i, const struct sel_edge *e, int t)
{
    return sel_cell(e, j->copy[i].node, !made(&j->copy[i]), t) == INFINITY;
}

/* ---- grouping: copies of one producer that some consumer has to choose between ---- */

/* No strategy of consumer v needs what both edges lead to. */
static bool exclusive(const struct sel_join *j, int v, int e1, int e2)
{
    const struct sel_edge *a = &j->c->edge[e1], *b = &j->c->edge[e2];

    for (int t = 0; t < j->c->node[v].n_strategies; t++)
        if (needs(j, j->copy_of[sel_other(a, v)], a, t) &&
            needs(j, j->copy_of[sel_other(b, v)], b, t))
            return false;
    return true;
}

static int by_producer(const void *x, const void *y)
{
    const int *a = x, *b = y;

    return a[0] != b[0] ? (a[0] > b[0]) - (a[0] < b[0]) : (a[1] > b[1]) - (a[1] < b[1]);
}

static void group_at(struct sel_join *j, int v, int (*seen)[2])
{
    const struct sel_node *node = &j->c->node[v];
    int n = 0;

    for (int i = 0; i < node->n_edges; i++) {
        int e = node->edges[i], k = j->copy_of[sel_other(&j->c->edge[e], v)];
        if (k < 0 || j->copy[k].producer == e)
            continue;
        seen[n][0] = producer(j, k);
        seen[n++][1] = e;
    }
    qsort(seen, (size_t)n, sizeof(*seen), by_producer);
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n && seen[k][0] == seen[i][0]; k++) {
            int a =
                ap_sets_root(j->up, j->copy_of[sel_other(&j->c->edge[seen[i][1]], v)]);
            int b =
                ap_sets_root(j->up, j->copy_of[sel_other(&j->c->edge[seen[k][1]], v)]);
            if (a != b && exclusive(j, v, seen[i][1], seen[k][1]))
                ap_sets_join(j->up, a, b);
        }
}

/* ---- sets of copies ---- */

struct bits {
    uint64_t w[WORDS];
};

static bool has(const struct bits *x, int i)
{
    return x->w[i / 64] >> (i % 64) & 1;
}

static void put(struct bits *x, int i)
{
    x->w[i / 64] |= (uint64_t)1 << (i % 64);
}

static struct bits unite(const struct bits *x, const struct bits *y)
{
    struct bits z;

    for (int i = 0; i < WORDS; i++)
        z.w[i] = x->w[i] | y->w[i];
    return z;
}

static bool within(const struct bits *x, const struct bits *y)
{
    uint64_t out = 0;

    for (int i = 0; i < WORDS; i++)
        out |= x->w[i] & ~y->w[i];
    return out == 0;
}

static int size_of(const struct bits *x)
{
    int n = 0;

    for (int i = 0; i < WORDS; i++) /* sets are small */
        for (uint64_t left = x->w[i]; left; left &= left - 1)
            n++;
    return n;
}

static int by_value(const void *x, const void *y)
{
    const struct bits *a = x, *b = y;

    for (int i = WORDS - 1; i >= 0; i--)
        if (a->w[i] != b->w[i])
            return a->w[i] < b->w[i] ? -1 : 1;
    return 0;
}

static int unique(struct bits *x, int n)
{
    int k = 0;

    qsort(x, (size_t)n, sizeof(*x), by_value);
    for (int i = 0; i < n; i++)
        if (i == 0 || by_value(&x[i], &x[k - 1]) != 0)
            x[k++] = x[i];
    return k;
}

/* ---- one group ---- */

struct consumer {
    int node;
    struct bits *mask; /* [strategy], what it needs */
    struct bits *need; /* the distinct ones among strategies that are not forbidden */
    int n_needs;
};

struct group {
    int n, copy[MAX_COPIES]; /* those that are needed at all come first, n_live */
    int n_live;
    int rep; /* the first copy's node, which comes to stand for all */
    struct consumer *consumer;
    int n_consumers;
    struct bits *set;      /* exact ones, then proxies: what they serve */
    struct bits *head;     /* [proxy], what they pay */
    struct bits *next;     /* scratch, as large */
    double *making;        /* [class of the producer][copy] */
    int n_classes, *class; /* [strategy of the producer] */
    int n_sets, first_stand_in, max_sets, cap;
    int members; /* exact sets have up to so many */
};

static void consumer_masks(struct sel_join *j, struct consumer *x, int (*need)[2], int n)
{
    const struct sel_node *node = &j->c->node[x->node];

    x->mask = AP_NEW_N(j->scratch, node->n_strategies, struct bits);
    x->need = AP_NEW_N(j->scratch, node->n_strategies, struct bits);
    x->n_needs = 0;
    for (int k = 0; k < n; k++) {
        const struct sel_edge *e = &j->c->edge[need[k][1]];
        int i = j->copy_of[sel_other(e, x->node)];
        for (int t = 0; t < node->n_strategies; t++)
            if (needs(j, i, e, t))
                put(&x->mask[t], j->slot[i]);
    }
    for (int t = 0; t < node->n_strategies; t++)
        if (node->cost[t] < INFINITY)
            x->need[x->n_needs++] = x->mask[t];
    x->n_needs = unique(x->need, x->n_needs);
}

/* Finds the consumers and what they need, bits by j->slot. */
static void collect_consumers(struct sel_join *j, struct group *g)
{
    struct ap_arena *arena = j->scratch;
    int n = 0, m = 0;

    for (int i = 0; i < g->n; i++)
        n += j->c->node[j->copy[g->copy[i]].node].degree;
    int(*need)[2] = ap_arena_alloc_n(arena, (size_t)n, sizeof(*need));
    for (int i = 0; i < g->n; i++) {
        const struct copy *copy = &j->copy[g->copy[i]];
        const struct sel_node *node = &j->c->node[copy->node];
        j->slot[g->copy[i]] = i;
        for (int k = 0; k < node->n_edges; k++)
            if (node->edges[k] != copy->producer) {
                need[m][0] = sel_other(&j->c->edge[node->edges[k]], copy->node);
                need[m++][1] = node->edges[k];
            }
    }
    qsort(need, (size_t)m, sizeof(*need), by_producer);
    g->consumer = AP_NEW_N(arena, m, struct consumer);
    g->n_consumers = 0;
    for (int from = 0, k; from < m; from = k) {
        struct consumer *x = &g->consumer[g->n_consumers++];
        x->node = need[from][0];
        for (k = from; k < m && need[k][0] == x->node;)
            k++;
        consumer_masks(j, x, need + from, k - from);
    }
}

/* Puts x into a hashed set of n_slots (a power of two), indices into list; true if new.
 */
static bool insert(int *slot, size_t n_slots, const struct bits *list, int n,
                   const struct bits *x)
{
    uint64_t hash = 0;

    for (int i = 0; i < WORDS; i++)
        hash = (hash ^ x->w[i]) * 0x9e3779b97f4a7c15u + (hash >> 29);
    size_t h = (size_t)(hash >> 20) & (n_slots - 1);
    for (; slot[h] > 0; h = (h + 1) & (n_slots - 1))
        if (by_value(&list[slot[h] - 1], x) == 0)
            return false;
    slot[h] = n + 1;
    return true;
}

/*
 * Adds the sets that come with one more consumer, up to most_members each; all becomes
 * false where some are left out. False: too many.
 */
static bool add_consumer(struct sel_join *j, struct group *g, const struct consumer *x,
                         int most_members, bool *all)
{
    struct ap_mark mark = ap_arena_mark(j->scratch);
    size_t n_slots = 16, most = (size_t)g->n_sets * (size_t)x->n_needs;
    int n = 0;

    most = most < (size_t)g->max_sets ? most : (size_t)g->max_sets;
    while (n_slots < 2 * (most + 1))
        n_slots *= 2;
    int *slot = AP_NEW_N(j->scratch, n_slots, int);
    for (int i = 0; i < g->n_sets && n <= g->max_sets; i++)
        for (int k = 0; k < x->n_needs && n <= g->max_sets; k++) {
            struct bits set = unite(&g->set[i], &x->need[k]);
            if (size_of(&set) > most_members)
                *all = false;
            else if (insert(slot, n_slots, g->next, n, &set))
                g->next[n++] = set;
        }
    ap_arena_rewind(j->scratch, mark);
    g->n_sets = n;
    struct bits *t = g->set;
    g->set = g->next;
    g->next = t;
    return n <= g->max_sets;
}

/* The unions of one need per consumer, of up to most_members; false: too many. */
static bool find_sets(struct sel_join *j, struct group *g, int most_members, bool *all)
{
    g->set[0] = (struct bits){{0}};
    g->n_sets = 1;
    *all = true;
    for (int i = 0; i < g->n_consumers; i++)
        if (!add_consumer(j, g, &g->consumer[i], most_members, all)) {
            *all = false;
            return false;
        }
    qsort(g->set, (size_t)g->n_sets, sizeof(*g->set), by_value);
    return true;
}

struct price {
    double sum;
    int copy;
};

static int dearest_first(const void *x, const void *y)
{
    const struct price *a = x, *b = y;

    if (a->sum != b->sum)
        return a->sum > b->sum ? -1 : 1;
    return (a->copy > b->copy) - (a->copy < b->copy);
}

/* Those that are needed first, then by price, summed over the producer's strategies. */
static void sort_copies(struct sel_join *j, struct group *g)
{
    struct price price[MAX_COPIES];
    struct bits live = {{0}};

    for (int i = 0; i < g->n_consumers; i++)
        for (int k = 0; k < g->consumer[i].n_needs; k++)
            live = unite(&live, &g->consumer[i].need[k]);
    g->n_live = size_of(&live);
    for (int i = 0; i < g->n; i++) {
        const struct copy *copy = &j->copy[g->copy[i]];
        const struct sel_edge *e = &j->c->edge[copy->producer];
        int p = sel_other(e, copy->node);
        price[i] = (struct price){has(&live, i) ? 0 : -1, g->copy[i]};
        for (int s = 0; s < j->c->node[p].n_strategies && has(&live, i); s++)
            if (j->c->node[p].cost[s] < INFINITY)
                price[i].sum += sel_cell(e, copy->node, made(copy), s);
    }
    qsort(price, (size_t)g->n, sizeof(*price), dearest_first);
    for (int i = 0; i < g->n; i++)
        g->copy[i] = price[i].copy;
}

/* What it costs the producer to make each copy, by class of its strategies. */
static void price_copies(struct sel_join *j, struct group *g)
{
    int np = j->c->node[producer(j, g->copy[0])].n_strategies;

    g->making = AP_NEW_N(j->scratch, np * g->n, double);
    g->class = AP_NEW_N(j->c->arena, np, int);
    for (int i = 0; i < g->n; i++) {
        const struct copy *copy = &j->copy[g->copy[i]];
        const double *own = j->c->node[copy->node].cost;
        double extra = own[made(copy)] - own[!made(copy)];
        for (int s = 0; s < np; s++)
            g->making[s * g->n + i] =
                extra + sel_cell(&j->c->edge[copy->producer], copy->node, made(copy), s);
    }
    g->n_classes = sel_classify(g->making, np, g->n, g->class);
}

static double choose(int n, int m)
{
    double x = 1;

    for (int i = 1; i <= m; i++)
        x *= (double)(n - m + i) / i;
    return x;
}

/*
 * Proxies for the sets of more than `members`, by their most expensive `members` (bits
 * are in the order of price, most expensive first): these and the cheapest of all later
 * ones are paid, and all later ones are served.
 */
static void add_stand_ins(struct group *g)
{
    int at[MAX_COPIES], m = g->members, n = g->n_live - 1, i;

    for (i = 0; i < m; i++)
        at[i] = i;
    for (int k = 0;; k++) {
        struct bits *head = &g->head[k], *set = &g->set[g->n_sets++];
        *head = (struct bits){{0}};
        for (i = 0; i < m; i++)
            put(head, at[i]);
        *set = *head;
        for (i = at[m - 1] + 1; i < g->n_live; i++)
            put(set, i);
        for (i = m - 1; i >= 0 && at[i] == n - m + i;)
            i--;
        if (i < 0)
            return;
        for (at[i++]++; i < m; i++)
            at[i] = at[i - 1] + 1;
    }
}

/* All sets, as choose_sets finds them if it leaves none out. */
static bool find_all(struct sel_join *j, struct group *g)
{
    bool all;
    int members = 1;

    if (!find_sets(j, g, g->n_live, &all))
        return false;
    for (int k = 0; k < g->n_sets; k++) {
        int n = size_of(&g->set[k]);
        members = n > members ? n : members;
    }
    for (int m = 1; m <= members; m++)
        if (choose(g->n_live - 1, m) > g->max_sets)
            return false;
    return true;
}

/* Chooses the sets: all of them, or those of few members and proxies for the others. */
static bool choose_sets(struct sel_join *j, struct group *g)
{
    bool all = find_all(j, g);

    g->members = 0;
    while (!all && choose(g->n_live - 1, g->members + 1) <= g->max_sets &&
           find_sets(j, g, g->members + 1, &all))
        g->members++;
    if (!all && (g->members == 0 || !find_sets(j, g, g->members, &all)))
        return false;
    g->first_stand_in = g->n_sets;
    if (!all)
        add_stand_ins(g);
    j->relaxed |= !all;
    return true;
}

static double proxy_cost(const struct group *g, int k, const double *making)
{
    const struct bits *head = &g->head[k - g->first_stand_in];
    double sum = 0, least = INFINITY;

    for (int i = 0; i < g->n_live; i++)
        if (has(head, i))
            sum += making[i];
        else if (has(&g->set[k], i))
            least = sel_lesser(least, making[i]);
    return sum + least;
}

static double set_cost(const struct group *g, int k, const double *making)
{
    double sum = 0;

    if (k >= g->first_stand_in)
        return proxy_cost(g, k, making);
    for (int w = 0; w < WORDS; w++)
        for (uint64_t left = g->set[k].w[w]; left; left &= left - 1)
            sum += making[64 * w + __builtin_ctzll(left)];
    return sum;
}

/* The edge from the producer, with what each set costs. */
static struct sel_edge making_edge(struct sel_join *j, const struct group *g)
{
    struct sel_core *c = j->c;
    double *t = AP_NEW_N(c->arena, g->n_classes * g->n_sets, double);

    for (int k = 0; k < g->n_classes; k++)
        for (int i = 0; i < g->n_sets; i++)
            t[k * g->n_sets + i] = set_cost(g, i, g->making + k * g->n);
    return (struct sel_edge){
        .a = producer(j, g->copy[0]),
        .b = g->rep,
        .table = sel_table_new(c->arena, g->n_classes, g->n_sets, t),
        .row = g->class,
        .col = c->identity,
        .row_add = c->zeros,
        .col_add = c->zeros,
    };
}

/* Which sets serve which needs: one table for all consumers, a column per need. */
static struct sel_table *serving(struct sel_join *j, const struct group *g,
                                 const struct bits *need, int n_needs)
{
    double *t = AP_NEW_N(j->c->arena, (int64_t)g->n_sets * n_needs, double);

    for (int k = 0; k < g->n_sets; k++)
        for (int i = 0; i < n_needs; i++)
            t[k * n_needs + i] = within(&need[i], &g->set[k]) ? 0 : INFINITY;
    return sel_table_new(j->c->arena, g->n_sets, n_needs, t);
}

/* The distinct masks over all consumers, ascending. */
static struct bits *all_needs(struct sel_join *j, const struct group *g, int *n_needs)
{
    int n = 0;

    for (int i = 0; i < g->n_consumers; i++)
        n += j->c->node[g->consumer[i].node].n_strategies;
    struct bits *need = AP_NEW_N(j->scratch, n, struct bits);
    n = 0;
    for (int i = 0; i < g->n_consumers; i++) {
        const struct consumer *x = &g->consumer[i];
        int m = j->c->node[x->node].n_strategies;
        memcpy(need + n, x->mask, (size_t)m * sizeof(*need));
        n = unique(need, n + m);
    }
    *n_needs = n;
    return need;
}

static void drop_edge(struct sel_core *c, int e)
{
    c->edge[e].gone = true;
    c->node[c->edge[e].a].degree--;
    c->node[c->edge[e].b].degree--;
}

static void add_edges(struct sel_join *j, const struct group *g)
{
    struct sel_core *c = j->c;
    int n_needs;
    const struct bits *need = all_needs(j, g, &n_needs);
    struct sel_edge edge = {.a = g->rep,
                            .table = serving(j, g, need, n_needs),
                            .row = c->identity,
                            .row_add = c->zeros,
                            .col_add = c->zeros};

    sel_core_edge(c, making_edge(j, g));
    for (int i = 0; i < g->n_consumers; i++) {
        const struct consumer *x = &g->consumer[i];
        int n = c->node[x->node].n_strategies, *col = AP_NEW_N(c->arena, n, int);
        for (int s = 0; s < n; s++) {
            const struct bits *at =
                bsearch(&x->mask[s], need, (size_t)n_needs, sizeof(*need), by_value);
            col[s] = (int)(at - need);
        }
        edge.b = x->node;
        edge.col = col;
        sel_core_edge(c, edge);
    }
}

/* The first copy's node becomes the group's, the others are gone. */
static void replace(struct sel_join *j, struct group *g)
{
    struct sel_core *c = j->c;
    struct sel_node *rep = &c->node[g->rep];
    int n_old = c->n_edges;
    double absent = 0;

    for (int i = 0; i < g->n; i++) {
        const struct copy *copy = &j->copy[g->copy[i]];
        absent += c->node[copy->node].cost[!made(copy)];
    }
    add_edges(j, g);
    for (int i = 0; i < g->n; i++) {
        struct sel_node *node = &c->node[j->copy[g->copy[i]].node];
        for (int k = 0; k < node->n_edges; k++)
            if (node->edges[k] < n_old)
                drop_edge(c, node->edges[k]);
        if (node != rep) {
            node->gone = true;
            c->n_left--;
        }
    }
    rep->n_strategies = g->n_sets;
    rep->label = c->identity;
    rep->cost = AP_NEW_N(c->arena, g->n_sets, double);
    for (int k = 0; k < g->n_sets; k++)
        rep->cost[k] = absent;
}

/* ---- all of it ---- */

static void join_group(struct sel_join *j, struct group *g, const int *next, int i)
{
    int *max_sets = &j->max_sets[j->copy[i].node];

    g->n = 0;
    for (; i >= 0 && g->n < MAX_COPIES; i = next[i])
        g->copy[g->n++] = i;
    if (i >= 0)
        return;
    if (*max_sets == 0)
        *max_sets = 2 * g->n > FIRST_SETS ? 2 * g->n : FIRST_SETS;
    g->max_sets = *max_sets;
    g->rep = j->copy[g->copy[0]].node;
    if (g->cap < g->max_sets) { /* what the groups before had is too small */
        g->cap = g->max_sets;
        g->set = AP_NEW_N(j->c->arena, 2 * g->cap + 2, struct bits);
        g->next = AP_NEW_N(j->c->arena, 2 * g->cap + 2, struct bits);
        g->head = AP_NEW_N(j->c->arena, g->cap + 1, struct bits);
    }
    collect_consumers(j, g);
    sort_copies(j, g);
    collect_consumers(j, g); /* by the new order */
    price_copies(j, g);
    if (!choose_sets(j, g))
        return;
    replace(j, g);
    j->leads[g->rep] = true;
    j->n_sets[g->rep] = g->first_stand_in;
}

static void join_groups(struct sel_join *j)
{
    struct ap_arena *arena = j->c->arena;
    int *next = AP_NEW_N(arena, j->n_copies + 1, int);
    int *last = AP_NEW_N(arena, j->n_copies + 1, int);
    struct group g = {0};

    for (int i = 0; i < j->n_copies; i++) {
        int l = ap_sets_root(j->up, i);
        next[i] = -1;
        if (l != i)
            next[last[l]] = i;
        last[l] = i;
    }
    struct ap_arena scratch = {0};
    j->scratch = &scratch;
    for (int i = 0; i < j->n_copies; i++) {
        if (ap_sets_root(j->up, i) != i || next[i] < 0)
            continue;
        struct ap_mark mark = ap_arena_mark(&scratch);
        join_group(j, &g, next, i);
        ap_arena_rewind(&scratch, mark);
    }
    ap_arena_free(&scratch);
    j->scratch = NULL;
}

/* A copy next to a copy is none: needs and sets would depend on each other. */
static void drop_chained(struct sel_join *j)
{
    bool *chained = AP_NEW_N(j->c->arena, j->c->n_nodes + 1, bool);
    int n = 0;

    for (int i = 0; i < j->c->n_edges; i++) {
        const struct sel_edge *e = &j->c->edge[i];
        if (j->copy_of[e->a] >= 0 && j->copy_of[e->b] >= 0)
            chained[e->a] = chained[e->b] = true;
    }
    for (int i = 0; i < j->n_copies; i++) {
        int v = j->copy[i].node;
        j->copy_of[v] = chained[v] ? -1 : n;
        if (chained[v])
            continue;
        j->copy[n] = j->copy[i];
        n++;
    }
    j->n_copies = n;
    j->up = ap_sets_new(j->c->arena, n);
}

struct sel_join *sel_join_copies(struct sel_core *c, int *max_sets)
{
    struct sel_join *j = AP_NEW(c->arena, struct sel_join);
    int most_edges = 1;

    j->c = c;
    j->max_sets = max_sets;
    j->leads = AP_NEW_N(c->arena, c->n_nodes + 1, bool);
    j->n_sets = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    j->copy_of = AP_NEW_N(c->arena, c->n_nodes + 1, int);
    j->copy = AP_NEW_N(c->arena, c->n_nodes + 1, struct copy);
    for (int v = 0; v < c->n_nodes; v++) {
        struct copy *copy = &j->copy[j->n_copies];
        j->copy_of[v] = -1;
        most_edges = c->node[v].n_edges > most_edges ? c->node[v].n_edges : most_edges;
        if (c->node[v].n_strategies != 2 ||
            !(recognise(c, v, 1, copy) || recognise(c, v, 0, copy)))
            continue;
        j->copy_of[v] = j->n_copies++;
    }
    drop_chained(j);
    j->slot = AP_NEW_N(c->arena, j->n_copies + 1, int);
    int(*seen)[2] = ap_arena_alloc_n(c->arena, (size_t)most_edges, sizeof(*seen));
    for (int v = 0; v < c->n_nodes; v++)
        if (j->copy_of[v] < 0)
            group_at(j, v, seen);
    join_groups(j);
    return j;
}

void sel_join_decide(const struct sel_join *j, const struct ap_problem *p, int *choice)
{
    for (int i = 0; i < j->n_copies; i++)
        choice[j->copy[i].node] = !made(&j->copy[i]);
    for (int i = 0; i < p->n_edges; i++) {
        const struct ap_problem_edge *e = &p->edges[i];
        int a = j->copy_of[e->a], b = j->copy_of[e->b];
        int sa = a < 0 ? choice[e->a] : !made(&j->copy[a]);
        int sb = b < 0 ? choice[e->b] : !made(&j->copy[b]);
        if ((a < 0 && b < 0) || e->cost[sa * p->n_strategies[e->b] + sb] < AP_FORBIDDEN)
            continue;
        if (a >= 0)
            choice[e->a] = made(&j->copy[a]);
        if (b >= 0)
            choice[e->b] = made(&j->copy[b]);
    }
}

bool sel_join_refine(const struct sel_join *j, const int *best)
{
    bool again = false;

    for (int i = 0; i < j->n_copies && j->relaxed; i++) {
        int v = j->copy[i].node;
        if (!j->leads[v] || j->max_sets[v] >= MAX_SETS || best[v] < j->n_sets[v])
            continue;
        j->max_sets[v] = MORE_SETS * j->max_sets[v];
        again = true;
    }
    return again;
}

bool sel_join_relaxed(const struct sel_join *j)
{
    return j->relaxed;
}
