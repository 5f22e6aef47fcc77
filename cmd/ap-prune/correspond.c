/*
 * Which node of one region stands for which of another.
 *
 * Problem: two regions that repeat one layer are equal but for a few nodes: the first
 * layer has no gradient to pass on, a constant was shared, a sum has one term more. Find
 * the largest part that is isomorphic, in near linear time.
 * Idea: a region is acyclic, so two sweeps hash for every node all that lies above and
 * all that lies below it inside the region. Nodes whose hashes are unique are matched
 * first and the match grows along operands (their order is given) and along users that
 * cannot be confused; ties are then broken one by one, small ones first, by id, growing
 * after each; what is left is matched by the hash of one side only, for next to an odd
 * node one side is disturbed. No pair need be right: the pairs are verified in
 * the end, and a pair whose operands do not correspond is dropped. A dropped pair stands
 * outside on both sides and its users go on to agree, so that one pass suffices. Cost:
 * O((nodes + edges) log nodes).
 */
#include "prune.h"

#include "graph/identity.h"

#include <stdlib.h>
#include <string.h>

#define MAX_USERS 32 /* of a node through which a match grows downwards */

struct prune_space *prune_space_new(struct ap_arena *arena, const struct ap_graph *g)
{
    struct prune_space *s = AP_NEW(arena, struct prune_space);
    int n = g->n_nodes;

    s->arena = arena;
    s->g = g;
    s->sig = AP_NEW_N(arena, n, uint64_t);
    s->key = AP_NEW_N(arena, n, uint64_t);
    s->up = AP_NEW_N(arena, n, uint64_t);
    s->down = AP_NEW_N(arena, n, uint64_t);
    for (int side = 0; side < 2; side++) {
        s->at[side] = AP_NEW_N(arena, n, int);
        s->mate[side] = AP_NEW_N(arena, n, int);
        for (int v = 0; v < n; v++)
            s->at[side][v] = s->mate[side][v] = -1;
    }
    ap_node_signatures(g, s->sig);
    memcpy(s->key, s->sig, (size_t)n * sizeof(*s->key));
    return s;
}

/* ---- hashes of what a region holds ---- */

static void hash_region(struct prune_space *s, int side, const int *nodes, int n)
{
    const int *at = s->at[side];

    for (int i = 0; i < n; i++) {
        const struct ap_node *node = &s->g->nodes[nodes[i]];
        uint64_t h = s->key[nodes[i]];
        for (int k = 0; k < node->n_in; k++)
            h = ap_hash_mix(h, at[node->in[k]] >= 0 ? s->up[node->in[k]] : 1);
        s->up[nodes[i]] = h;
        s->down[nodes[i]] = 0;
    }
    for (int i = n - 1; i >= 0; i--) {
        const struct ap_node *node = &s->g->nodes[nodes[i]];
        s->down[nodes[i]] = ap_hash_mix(s->key[nodes[i]], s->down[nodes[i]]);
        for (int k = 0; k < node->n_in; k++)
            if (at[node->in[k]] >= 0)
                s->down[node->in[k]] += ap_hash_mix(s->down[nodes[i]], (uint64_t)k);
    }
}

/* ---- matching ---- */

/* A match in the making: positions in a and b, and the pairs to grow from. */
struct match {
    struct prune_space *s;
    const int *a, *b;
    int n_a, n_b;
    int *of_a, *of_b; /* [position]: counterpart's position, -1 for none */
    int *stack, n_stack;
};

static int compare_ranked(const void *x, const void *y)
{
    const struct prune_ranked *a = x, *b = y;

    if (a->hash != b->hash)
        return a->hash < b->hash ? -1 : 1;
    return a->at - b->at;
}

void prune_rank(struct prune_ranked *list, int n)
{
    qsort(list, (size_t)n, sizeof(*list), compare_ranked);
}

static void pair(struct match *m, int i, int j)
{
    m->of_a[i] = j;
    m->of_b[j] = i;
    m->stack[m->n_stack++] = i;
}

/* Both are in their regions, free and of equal keys. */
static bool may_pair(const struct match *m, int x, int y)
{
    int i = m->s->at[0][x], j = m->s->at[1][y];

    return i >= 0 && j >= 0 && m->of_a[i] < 0 && m->of_b[j] < 0 &&
           m->s->key[x] == m->s->key[y];
}

static bool reads_at(const struct ap_graph *g, int user, int v, int k)
{
    return k < g->nodes[user].n_in && g->nodes[user].in[k] == v;
}

/*
 * The one free user of v in its region with this key that reads v as operand k; -1 if
 * there is none or several.
 */
static int only_user(const struct match *m, int side, int v, uint64_t key, int k)
{
    const struct ap_graph *g = m->s->g;
    const int *of = side ? m->of_b : m->of_a;
    int found = -1;

    for (int e = g->user_start[v]; e < g->user_start[v + 1]; e++) {
        int u = g->users[e], at = m->s->at[side][u];
        if (at < 0 || of[at] >= 0 || m->s->key[u] != key || !reads_at(g, u, v, k) ||
            u == found)
            continue;
        if (found >= 0)
            return -1;
        found = u;
    }
    return found;
}

static void grow_users(struct match *m, int v, int w)
{
    const struct ap_graph *g = m->s->g;

    if (g->user_start[v + 1] - g->user_start[v] > MAX_USERS ||
        g->user_start[w + 1] - g->user_start[w] > MAX_USERS)
        return;
    for (int e = g->user_start[v]; e < g->user_start[v + 1]; e++) {
        int u = g->users[e], at = m->s->at[0][u], k = 0;
        if (at < 0 || m->of_a[at] >= 0)
            continue;
        while (!reads_at(g, u, v, k))
            k++;
        if (only_user(m, 0, v, m->s->key[u], k) != u)
            continue;
        int t = only_user(m, 1, w, m->s->key[u], k);
        if (t >= 0)
            pair(m, at, m->s->at[1][t]);
    }
}

static void grow(struct match *m)
{
    const struct ap_graph *g = m->s->g;

    while (m->n_stack) {
        int i = m->stack[--m->n_stack];
        int v = m->a[i], w = m->b[m->of_a[i]];
        for (int k = 0; k < g->nodes[v].n_in && k < g->nodes[w].n_in; k++)
            if (may_pair(m, g->nodes[v].in[k], g->nodes[w].in[k]))
                pair(m, m->s->at[0][g->nodes[v].in[k]], m->s->at[1][g->nodes[w].in[k]]);
        grow_users(m, v, w);
    }
}

enum round { ROUND_UNIQUE, ROUND_BOTH, ROUND_UP, ROUND_DOWN, ROUND_KEY, N_ROUNDS };

static uint64_t round_hash(const struct prune_space *s, enum round round, int v)
{
    switch (round) {
    case ROUND_UNIQUE:
    case ROUND_BOTH:
        return ap_hash_mix(s->up[v], s->down[v]);
    case ROUND_UP:
        return s->up[v];
    case ROUND_DOWN:
        return s->down[v];
    case ROUND_KEY:
    case N_ROUNDS:
        break;
    }
    return s->key[v];
}

static int rank_free(const struct match *m, enum round round, const int *nodes, int n,
                     const int *of, struct prune_ranked *out)
{
    int n_out = 0;

    for (int i = 0; i < n; i++)
        if (of[i] < 0)
            out[n_out++] = (struct prune_ranked){round_hash(m->s, round, nodes[i]), i};
    prune_rank(out, n_out);
    return n_out;
}

/* Free nodes of one hash: ra[a] up to ra[a_end], rb[b] up to rb[b_end]. */
struct tie {
    int first; /* the lowest position in a */
    int a, a_end, b, b_end;
};

/* The least ambiguous first, then by id: never by hash. */
static int compare_ties(const void *x, const void *y)
{
    const struct tie *p = x, *q = y;
    int a = p->a_end - p->a, b = q->a_end - q->a;
    return a != b ? a - b : p->first - q->first;
}

static int list_ties(const struct prune_ranked *ra, int n_ra,
                     const struct prune_ranked *rb, int n_rb, struct tie *ties)
{
    int n = 0;

    for (int i = 0, j = 0; i < n_ra && j < n_rb;) {
        struct tie t = {ra[i].at, i, prune_run_end(ra, n_ra, i), j,
                        prune_run_end(rb, n_rb, j)};
        if (ra[i].hash == rb[j].hash)
            ties[n++] = t;
        bool behind = ra[i].hash > rb[j].hash, ahead = ra[i].hash < rb[j].hash;
        i = behind ? i : t.a_end;
        j = ahead ? j : t.b_end;
    }
    qsort(ties, (size_t)n, sizeof *ties, compare_ties);
    return n;
}

/* Pairs free nodes of equal hashes, those of one hash in the order of their ids. */
static void match_round(struct match *m, enum round round, struct prune_ranked *ra,
                        struct prune_ranked *rb, struct tie *ties)
{
    int n_ra = rank_free(m, round, m->a, m->n_a, m->of_a, ra);
    int n_rb = rank_free(m, round, m->b, m->n_b, m->of_b, rb);
    int n_ties = list_ties(ra, n_ra, rb, n_rb, ties);

    for (int t = 0; t < n_ties; t++) {
        int n_a = ties[t].a_end - ties[t].a, n_b = ties[t].b_end - ties[t].b;
        bool take = round == ROUND_UNIQUE ? n_a == 1 && n_b == 1
                    : round == ROUND_KEY  ? n_a == n_b
                                          : true;
        for (int x = ties[t].a, y = ties[t].b; take && x < ties[t].a_end; x++) {
            while (y < ties[t].b_end && m->of_b[rb[y].at] >= 0)
                y++;
            if (y == ties[t].b_end)
                break;
            if (m->of_a[ra[x].at] >= 0)
                continue;
            pair(m, ra[x].at, rb[y].at);
            if (round != ROUND_UNIQUE)
                grow(m);
        }
    }
    grow(m);
}

static void mark_region(struct prune_space *s, int side, const int *nodes, int n, bool on)
{
    for (int i = 0; i < n; i++)
        s->at[side][nodes[i]] = on ? i : -1;
}

int prune_align(struct prune_space *s, const int *a, int n_a, const int *b, int n_b,
                int *counterpart)
{
    struct ap_mark mark = ap_arena_mark(s->arena);
    struct match m = {.s = s, .a = a, .b = b, .n_a = n_a, .n_b = n_b};
    struct prune_ranked *ra = AP_NEW_N(s->arena, n_a, struct prune_ranked);
    struct prune_ranked *rb = AP_NEW_N(s->arena, n_b, struct prune_ranked);
    struct tie *ties = AP_NEW_N(s->arena, n_a, struct tie);
    int *rows = AP_NEW_N(s->arena, 2 * (int64_t)n_a, int), n_pairs = 0;

    m.of_a = AP_NEW_N(s->arena, n_a, int);
    m.of_b = AP_NEW_N(s->arena, n_b, int);
    m.stack = AP_NEW_N(s->arena, n_a, int);
    memset(m.of_a, -1, (size_t)n_a * sizeof(int));
    memset(m.of_b, -1, (size_t)n_b * sizeof(int));
    mark_region(s, 0, a, n_a, true);
    mark_region(s, 1, b, n_b, true);
    hash_region(s, 0, a, n_a);
    hash_region(s, 1, b, n_b);
    for (enum round round = ROUND_UNIQUE; round < N_ROUNDS; round++)
        match_round(&m, round, ra, rb, ties);
    mark_region(s, 0, a, n_a, false);
    mark_region(s, 1, b, n_b, false);

    for (int i = 0; i < n_a; i++)
        n_pairs += m.of_a[i] >= 0;
    for (int i = 0, at = 0; i < n_a; i++)
        if (m.of_a[i] >= 0) {
            rows[at] = a[i];
            rows[n_pairs + at++] = b[m.of_a[i]];
        }
    int kept = prune_reconcile(s, 2, n_pairs, rows);
    for (int i = 0, at = 0; i < n_a; i++) {
        bool here = at < kept && rows[at] == a[i];
        counterpart[i] = here ? rows[kept + at] : -1;
        at += here;
    }
    ap_arena_rewind(s->arena, mark);
    return kept;
}

/* ---- verifying ---- */

/* Candidate columns: at[0] is a node's column, at[1] its instance, -1 once dropped. */
struct columns {
    struct prune_space *s;
    int n_instances, n;
    const int *nodes;
    bool *dropped; /* [column] */
};

static int node_at(const struct columns *c, int instance, int j)
{
    return c->nodes[(int64_t)instance * c->n + j];
}

/* Inside means: in a column that stays, in this instance. */
static int column_of(const struct columns *c, int v, int instance)
{
    return c->s->at[1][v] == instance && c->s->at[0][v] >= 0 &&
                   !c->dropped[c->s->at[0][v]]
               ? c->s->at[0][v]
               : -1;
}

/* Node j has as many operands in all instances, and they are in the same columns. */
static bool column_fits(const struct columns *c, int j)
{
    const struct ap_graph *g = c->s->g;
    const struct ap_node *a = &g->nodes[node_at(c, 0, j)];

    for (int i = 1; i < c->n_instances; i++) {
        const struct ap_node *b = &g->nodes[node_at(c, i, j)];
        if (a->n_in != b->n_in)
            return false;
        for (int k = 0; k < a->n_in; k++) {
            int x = a->in[k], y = b->in[k];
            if (column_of(c, x, 0) != column_of(c, y, i) ||
                !ap_shape_equal(&g->nodes[x].shape, &g->nodes[y].shape))
                return false;
        }
    }
    return true;
}

/*
 * Operands from outside must stand for each other one to one. mate is cleared by the
 * second pass over the same operands.
 */
static void match_outside(struct columns *c, int instance, bool clear)
{
    const struct ap_graph *g = c->s->g;
    int *mate_a = c->s->mate[0], *mate_b = c->s->mate[1];

    for (int j = 0; j < c->n; j++) {
        if (node_at(c, 0, j) < 0 || node_at(c, instance, j) < 0)
            continue;
        const struct ap_node *a = &g->nodes[node_at(c, 0, j)];
        const struct ap_node *b = &g->nodes[node_at(c, instance, j)];
        for (int k = 0; k < a->n_in && k < b->n_in; k++) {
            int x = a->in[k], y = b->in[k];
            if (clear) {
                mate_a[x] = mate_b[y] = -1;
                continue;
            }
            if (c->dropped[j] || column_of(c, x, 0) >= 0)
                continue;
            if (mate_a[x] < 0 && mate_b[y] < 0) {
                mate_a[x] = y;
                mate_b[y] = x;
            } else if (mate_a[x] != y || mate_b[y] != x) {
                c->dropped[j] = true;
            }
        }
    }
}

int prune_reconcile(struct prune_space *s, int n_instances, int n, int *nodes)
{
    struct ap_mark mark = ap_arena_mark(s->arena);
    struct columns c = {.s = s, .n_instances = n_instances, .n = n, .nodes = nodes};
    int64_t n_all = (int64_t)n_instances * n, to = 0;
    int kept = 0;

    c.dropped = AP_NEW_N(s->arena, n, bool);
    for (int64_t at = 0; at < n_all; at++) {
        int j = (int)(at % n);
        if (nodes[at] < 0 || nodes[j] < 0 || s->sig[nodes[at]] != s->sig[nodes[j]])
            c.dropped[j] = true;
        if (nodes[at] >= 0) {
            s->at[0][nodes[at]] = j;
            s->at[1][nodes[at]] = (int)(at / n);
        }
    }
    for (int j = 0; j < n; j++)
        c.dropped[j] = c.dropped[j] || !column_fits(&c, j);
    for (int i = 1; i < n_instances; i++) {
        match_outside(&c, i, false);
        match_outside(&c, i, true);
    }
    for (int64_t at = 0; at < n_all; at++)
        if (nodes[at] >= 0)
            s->at[0][nodes[at]] = s->at[1][nodes[at]] = -1;
    for (int j = 0; j < n; j++)
        kept += !c.dropped[j];
    for (int64_t at = 0; at < n_all; at++)
        if (!c.dropped[at % n])
            nodes[to++] = nodes[at];
    ap_arena_rewind(s->arena, mark);
    return kept;
}
