/*
 * From a selection problem with memory to its reduced core.
 *
 * The reductions of solve_reduce.c that take a node out by its best answer are allowed
 * only where usage does not depend on the answer; those that make a node a function of
 * another always are, and leave composites. What a composite uses is found by going
 * through the undo stack backwards, composing the maps from the nodes that are left.
 * Then constant usage is taken off the limit, slots where the most that can be used fits
 * are dropped, nodes that meet no other slot are free of memory, and dominated
 * strategies (no more usage, no more cost whatever the neighbours do) go; this repeats
 * while it helps. O(strategies of composites * nodes in them + slots log slots).
 */
#include "mem.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ROUNDS 4

/* What a node holds at the times lo .. hi - 1, which are numbered. */
struct usage {
    int lo, hi, node;
    const int64_t *bytes; /* [strategy] */
};

struct builder {
    struct ap_arena *arena;
    const struct ap_problem *p;
    int64_t limit;
    int n_times, n_usages;
    int64_t *time; /* [n_times]: where intervals begin and end */
    struct usage *usage;
    struct mem_core *m;
    int *root;          /* [node], the core's node that decides it, -1 for none */
    const int **answer; /* [node][strategy of its root], a strategy of the problem */
};

/* ---- times ---- */

static int by_value(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;

    return (a > b) - (a < b);
}

static int place_of(const struct builder *b, int64_t t)
{
    const int64_t *at = bsearch(&t, b->time, (size_t)b->n_times, sizeof *at, by_value);

    return (int)(at - b->time);
}

static bool is_held(const struct contest *p, int v)
{
    return p->span && p->span[v].lo < p->span[v].hi;
}

/* Numbers the times at which intervals begin and end. */
static void list_usages(struct builder *b, const struct contest *p)
{
    const int n_nodes = p->costs.n_nodes;
    int n = 0;

    b->time = AP_NEW_N(b->arena, 2 * (int64_t)n_nodes + 1, int64_t);
    b->usage = AP_NEW_N(b->arena, n_nodes + 1, struct usage);
    for (int v = 0; v < n_nodes; v++)
        if (is_held(p, v)) {
            b->time[n++] = p->span[v].lo;
            b->time[n++] = p->span[v].hi;
        }
    qsort(b->time, (size_t)n, sizeof *b->time, by_value);
    for (int i = 0; i < n; i++)
        if (i == 0 || b->time[i] != b->time[b->n_times - 1])
            b->time[b->n_times++] = b->time[i];
    for (int v = 0; v < n_nodes; v++)
        if (is_held(p, v))
            b->usage[b->n_usages++] = (struct usage){
                place_of(b, p->span[v].lo), place_of(b, p->span[v].hi), v, p->usage[v]};
}

/* ---- composites ---- */

/* Who decides each node, and how, from the undo stack. */
static void trace(struct builder *b)
{
    const struct sel_core *c = b->m->core;

    for (int v = 0; v < b->p->n_nodes; v++) {
        b->root[v] = c->node[v].gone ? -1 : v;
        b->answer[v] = c->node[v].gone ? NULL : c->node[v].label;
    }
    for (int i = c->n_undo - 1; i >= 0; i--) {
        const struct sel_undo *u = &c->undo[i];
        if (!u->map) {
            b->answer[u->node] = u->label; /* its one strategy, if it holds memory */
            continue;
        }
        const struct sel_arm *arm = &u->arm[0];
        int root = b->root[arm->node], n = root < 0 ? 1 : c->node[root].n_strategies;
        int *answer = AP_NEW_N(b->arena, n, int);
        for (int s = 0; s < n; s++)
            answer[s] = u->map[sel_index_of(arm->label, arm->n_strategies,
                                            b->answer[arm->node][s])];
        b->root[u->node] = root;
        b->answer[u->node] = answer;
    }
}

struct profile {
    int64_t *base, *most; /* [time]: what is used in any case, and at most */
};

static void span_add(int64_t *diff, int lo, int hi, int64_t x)
{
    diff[lo] += x;
    diff[hi] -= x;
}

static void sum_up(int64_t *x, int n)
{
    for (int i = 1; i < n; i++)
        x[i] += x[i - 1];
}

static void usage_range(const struct builder *b, const struct usage *it, int64_t *least,
                        int64_t *most)
{
    const int *answer = b->answer[it->node];
    int n = b->root[it->node] < 0 ? 1 : b->m->core->node[b->root[it->node]].n_strategies;

    *least = *most = it->bytes[answer[0]];
    for (int s = 1; s < n; s++) {
        int64_t x = it->bytes[answer[s]];
        *least = x < *least ? x : *least;
        *most = x > *most ? x : *most;
    }
}

static struct profile find_profile(const struct builder *b)
{
    const int n_times = b->n_times;
    struct profile f = {AP_NEW_N(b->arena, n_times + 1, int64_t),
                        AP_NEW_N(b->arena, n_times + 1, int64_t)};

    for (int i = 0; i < b->n_usages; i++) {
        const struct usage *it = &b->usage[i];
        int64_t least, most;
        usage_range(b, it, &least, &most);
        span_add(f.base, it->lo, it->hi, least);
        span_add(f.most, it->lo, it->hi, most);
    }
    sum_up(f.base, n_times);
    sum_up(f.most, n_times);
    return f;
}

/* ---- slots ---- */

struct cut {
    int n;
    int *slot;     /* [time + 1], slots before it */
    int64_t *base; /* [slot] */
};

/* Whether intervals that matter begin and end between two neighbouring slots. */
struct border {
    bool *begins, *ends; /* [time] */
};

static bool varies(const struct builder *b, const struct usage *it)
{
    int64_t least, most;

    if (b->root[it->node] < 0)
        return false;
    usage_range(b, it, &least, &most);
    return least < most;
}

/*
 * Times are visited in order; one whose intervals are among those of the slot before or
 * after it, with no more base, needs no slot of its own.
 */
static struct cut find_slots(const struct builder *b, const struct profile *f)
{
    const int n_times = b->n_times;
    struct border border = {AP_NEW_N(b->arena, n_times + 1, bool),
                            AP_NEW_N(b->arena, n_times + 1, bool)};
    struct cut cut = {.slot = AP_NEW_N(b->arena, n_times + 2, int),
                      .base = AP_NEW_N(b->arena, n_times + 1, int64_t)};
    int *at = AP_NEW_N(b->arena, n_times + 1, int); /* [slot], its time */
    bool begins = false, ends = false;              /* since the last slot */

    for (int i = 0; i < b->n_usages; i++) {
        const struct usage *it = &b->usage[i];
        if (varies(b, it)) {
            border.begins[it->lo] = true;
            border.ends[it->hi] = true;
        }
    }
    for (int t = 0; t < n_times; t++) {
        begins |= border.begins[t];
        ends |= border.ends[t];
        if (f->most[t] <= b->limit)
            continue;
        if (cut.n > 0 && !begins && f->base[t] <= cut.base[cut.n - 1])
            continue;
        if (cut.n == 0 || ends || cut.base[cut.n - 1] > f->base[t])
            cut.n++;
        cut.base[cut.n - 1] = f->base[t]; /* a new one, or in place of the one before */
        at[cut.n - 1] = t;
        begins = ends = false;
    }
    for (int t = 0, k = 0; t <= n_times; t++) {
        cut.slot[t] = k;
        while (k < cut.n && at[k] <= t)
            k++;
    }
    return cut;
}

/* ---- parts ---- */

static int by_slots(const void *x, const void *y)
{
    const struct mem_part *a = x, *b = y;

    if (a->lo != b->lo)
        return a->lo < b->lo ? -1 : 1;
    return (a->hi > b->hi) - (a->hi < b->hi);
}

/* Adds up the parts of a node with the same slots; their number then. */
static int join_parts(struct mem_part *part, int n, int n_strategies)
{
    int k = 0;

    qsort(part, (size_t)n, sizeof(*part), by_slots);
    for (int i = 0; i < n; i++) {
        if (k == 0 || by_slots(&part[k - 1], &part[i])) {
            part[k++] = part[i];
            continue;
        }
        for (int s = 0; s < n_strategies; s++)
            part[k - 1].usage[s] += part[i].usage[s];
    }
    return k;
}

/* A part whose usage became constant when others were added to it counts as base. */
static bool settle_part(struct mem_core *m, struct mem_part *part, int n_strategies)
{
    int64_t least = part->usage[0], most = least;

    for (int s = 1; s < n_strategies; s++) {
        least = part->usage[s] < least ? part->usage[s] : least;
        most = part->usage[s] > most ? part->usage[s] : most;
    }
    for (int s = 0; s < n_strategies; s++)
        part->usage[s] -= least;
    for (int t = part->lo; t < part->hi; t++)
        m->room[t] -= least;
    return most > least;
}

static void make_parts(struct builder *b, const struct cut *cut)
{
    struct mem_core *m = b->m;
    const struct sel_core *c = m->core;
    int n_nodes = b->p->n_nodes, k = 0;
    int *end = AP_NEW_N(b->arena, n_nodes + 2, int);

    m->first = AP_NEW_N(b->arena, n_nodes + 2, int);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < b->n_usages; i++) {
            const struct usage *it = &b->usage[i];
            int lo = cut->slot[it->lo], hi = cut->slot[it->hi], root = b->root[it->node];
            int64_t least, most;
            if (lo >= hi || !varies(b, it))
                continue;
            if (pass == 0) {
                end[root + 1]++;
                continue;
            }
            usage_range(b, it, &least, &most);
            int n = c->node[root].n_strategies;
            struct mem_part *part = &m->part[end[root]++];
            *part = (struct mem_part){lo, hi, AP_NEW_N(b->arena, n, int64_t)};
            for (int s = 0; s < n; s++)
                part->usage[s] = it->bytes[b->answer[it->node][s]] - least;
        }
        if (pass == 0) {
            for (int v = 0; v < n_nodes; v++)
                end[v + 1] += end[v];
            m->part = AP_NEW_N(b->arena, end[n_nodes] + 1, struct mem_part);
        }
    }
    for (int v = 0, from = 0; v < n_nodes; v++) { /* end[v] is now the end of v's */
        int n = join_parts(m->part + from, end[v] - from, c->node[v].n_strategies);
        m->first[v] = k;
        for (int i = from; i < from + n; i++)
            if (settle_part(m, &m->part[i], c->node[v].n_strategies))
                m->part[k++] = m->part[i];
        from = end[v];
    }
    m->first[n_nodes] = m->n_parts = k;
}

static bool no_more(const void *memory, int v, int t, int s)
{
    const struct mem_core *m = memory;

    for (int i = m->first[v]; i < m->first[v + 1]; i++)
        if (m->part[i].usage[t] > m->part[i].usage[s])
            return false;
    return true;
}

/* Slots and parts of the core as it is. -1 when the least does not fit. */
static int measure(struct builder *b, struct ap_err *err)
{
    struct mem_core *m = b->m;

    trace(b);
    struct profile f = find_profile(b);
    for (int t = 0; t < b->n_times; t++)
        if (f.base[t] > b->limit)
            return ap_err_set(err,
                              "no solution: at time %lld at least %lld are used, "
                              "the limit is %lld",
                              (long long)b->time[t], (long long)f.base[t],
                              (long long)b->limit);
    struct cut cut = find_slots(b, &f);
    m->n_slots = cut.n;
    m->room = AP_NEW_N(b->arena, cut.n + 1, int64_t);
    for (int t = 0; t < cut.n; t++)
        m->room[t] = b->limit - cut.base[t];
    make_parts(b, &cut);
    return 0;
}

/* Nodes that turned out to be free of memory; their number. */
static int release(struct mem_core *m)
{
    struct sel_core *c = m->core;
    int n = 0;

    for (int v = 0; v < c->n_nodes; v++)
        if (!c->node[v].gone && c->holds[v] && m->first[v] == m->first[v + 1]) {
            c->holds[v] = false;
            n++;
        }
    return n;
}

/* ---- packing ---- */

/* What is left, numbered from 0, with what edges add put into the nodes. */
static void pack(struct builder *b)
{
    struct mem_core *m = b->m;
    struct sel_core *from = m->core, *to;
    int *map = AP_NEW_N(b->arena, from->n_nodes + 1, int), n = 0;
    int *first = AP_NEW_N(b->arena, from->n_left + 2, int);

    to = sel_core_new(b->arena, from, from->n_left, from->n_edges);
    to->base = from->base;
    m->node_of = AP_NEW_N(b->arena, from->n_left + 1, int);
    for (int v = 0; v < from->n_nodes; v++) {
        if (from->node[v].gone)
            continue;
        const struct sel_node *node = &from->node[v];
        map[v] = n;
        m->node_of[n] = v;
        first[n] = m->first[v]; /* gone nodes have no parts */
        to->node[n] = (struct sel_node){.n_strategies = node->n_strategies,
                                        .label = from->identity,
                                        .cost = node->cost};
        n++;
    }
    first[n] = m->n_parts;
    for (int i = 0; i < from->n_edges; i++) {
        struct sel_edge e = from->edge[i];
        if (e.gone)
            continue;
        for (int s = 0; s < from->node[e.a].n_strategies; s++)
            from->node[e.a].cost[s] += e.row_add[s];
        for (int s = 0; s < from->node[e.b].n_strategies; s++)
            from->node[e.b].cost[s] += e.col_add[s];
        e.row_add = e.col_add = from->zeros;
        e.a = map[e.a];
        e.b = map[e.b];
        sel_core_edge(to, e);
    }
    m->whole = from;
    m->core = to;
    m->first = first;
}

int mem_core_build(struct ap_arena *arena, const struct contest *contest,
                   double until_sec, struct mem_core *m, struct ap_err *err)
{
    const struct ap_problem *p = &contest->costs;
    struct builder b = {.arena = arena, .p = p, .limit = contest->usage_limit, .m = m};
    struct sel_core *c = sel_core_from_problem(arena, p);

    *m = (struct mem_core){.core = c};
    c->until_sec = until_sec;
    sel_late(c, true);
    c->holds = AP_NEW_N(arena, p->n_nodes + 1, bool);
    list_usages(&b, contest);
    b.root = AP_NEW_N(arena, p->n_nodes + 1, int);
    b.answer = AP_NEW_N(arena, p->n_nodes + 1, const int *);
    if (measure(&b, err))
        return -1;
    for (int v = 0; v < p->n_nodes; v++)
        c->holds[v] = m->first[v] < m->first[v + 1];
    c->no_more = no_more;
    for (int round = 0; round < MAX_ROUNDS; round++) {
        if (!sel_reduce(c, false))
            return ap_err_set(err, "no solution: forbidden costs leave no legal choice");
        if (measure(&b, err))
            return -1;
        c->memory = m;
        int n = release(m);
        bool dropped = sel_drop_dominated(c);
        c->memory = NULL;
        if (dropped && !sel_reduce(c, false))
            return ap_err_set(err, "no solution: forbidden costs leave no legal choice");
        if (dropped && measure(&b, err))
            return -1;
        if ((n == 0 && !dropped) || sel_late(c, true))
            break;
    }
    pack(&b);
    return 0;
}

void mem_core_undo(const struct mem_core *m, const int *state, int *choice)
{
    int *whole = ap_xrealloc(NULL, ((size_t)m->whole->n_nodes + 1) * sizeof(int));

    for (int v = 0; v < m->core->n_nodes; v++)
        whole[m->node_of[v]] = state[v];
    sel_set_best(m->whole, whole);
    memcpy(choice, m->whole->best, (size_t)m->whole->n_nodes * sizeof(int));
    free(whole);
}
