/*
 * Problem: state what a plan surely holds in memory, so that a search can price it and
 * what it proves is true of every program.
 * Idea: times are, per fusion group, one for the conversion of each operand and one for
 * its run. A parameter is there always. Any other tensor is there whole in its own layout
 * until its first user asks; while a user runs, in the layout that the user asked for;
 * in between in its own layout or as a copy that somebody asked for, whichever is
 * smaller. A conversion of one step holds both ends. A view (reshape) shares its
 * operand's memory: of the two one is counted at a time. A result that may be computed in
 * its parameter's place counts nothing, copies kept for later do not either. With `kept`
 * what a user asked for stays until the next one instead: no bound, but nearer to plans
 * that keep their copies.
 * Cost: a table per tensor and its first and last user.
 */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

#define ALIGN 64

struct modeller {
    struct ap_arena *arena;
    const struct shard_space *space;
    const int *var;
    int64_t least;
    bool kept;    /* copies stay */
    int *base;    /* [group + 1]: its first time; the run is the last one of the group */
    int *covered; /* [node], of roots: counted before this time */
    int *root;    /* [node]: whose memory a view is, itself if it is none */
    int *result;  /* [node]: 1 a result, 2 one that becomes a parameter of its shape */
    struct mem_model *m;
    int cap;
};

/* A tensor while its items are made. */
struct mem_tensor {
    int node, home, member;
    int64_t *bytes; /* [strategy of home] */
    struct ap_layout *home_layout;
    int n_uses;
    const struct select_use *uses; /* by group; results last */
};

static int64_t in_memory(const struct modeller *k, int node, const struct ap_layout *l)
{
    int64_t bytes = ap_layout_local_bytes(&k->space->cost->mesh,
                                          &k->space->graph->nodes[node].shape, l);
    return bytes > INT64_MAX / 4 ? INT64_MAX / 4 : (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void add_item(struct modeller *k, struct mem_item item, int n_a)
{
    struct mem_model *m = k->m;
    int64_t most = 0;

    for (int i = 0; i < n_a * item.n_b; i++)
        most = item.bytes[i] > most ? item.bytes[i] : most;
    if (item.lo >= item.hi || most < k->least || most == 0)
        return;
    if (item.a == item.b) { /* tied groups */
        int64_t *own = AP_NEW_N(k->arena, n_a, int64_t);
        for (int s = 0; s < n_a; s++)
            own[s] = item.bytes[s * n_a + s];
        item = (struct mem_item){item.lo, item.hi, item.a, -1, 1, own};
    }
    if (m->n_items == k->cap) {
        k->cap = k->cap ? 2 * k->cap : 256;
        m->items = ap_xrealloc(m->items, (size_t)k->cap * sizeof *m->items);
    }
    m->items[m->n_items++] = item;
}

static int run_time(const struct modeller *k, int group)
{
    return k->base[group + 1] - 1;
}

/* What the tensor is held as by home strategy h and the user's strategy s. */
enum held_as {
    HELD_BETWEEN,   /* its own layout, or the smallest that the user asks for */
    HELD_CONVERTED, /* what a conversion at this time holds beyond that */
    HELD_COPIED     /* of a parameter: copies for the user */
};

static int64_t held_by(const struct modeller *k, const struct mem_tensor *t, int first,
                       int n, int h, int s, enum held_as as)
{
    const struct shard_space *sp = k->space;
    const int group = t->uses[first].group;
    const struct ap_nest *nest = &sp->nests->nest[group];
    int64_t own = t->bytes[h], between = own, copied = 0, converted = 0;

    for (int u = first; u < first + n; u++) {
        struct ap_layout l = ap_nest_in_layout(nest, sp->graph, &sp->cost->mesh,
                                               &sp->choice[group][s], t->uses[u].slot);
        if (ap_layout_equal(&l, &t->home_layout[h]))
            continue;
        int64_t bytes = in_memory(k, t->node, &l);
        struct ap_path path;
        between = bytes < between ? bytes : between;
        copied = bytes > copied ? bytes : copied;
        if (as == HELD_CONVERTED && n == 1 &&
            ap_convert(sp->cost, &sp->graph->nodes[t->node].shape, &t->home_layout[h], &l,
                       &path) == 0 &&
            path.n_steps == 1 && path.steps[0].op != AP_OP_AP_PARTIAL)
            converted = own + bytes;
    }
    if (as == HELD_COPIED)
        return copied;
    if (as == HELD_CONVERTED)
        return converted > between && !k->kept ? converted - between : 0;
    return k->kept && copied > between ? copied : between;
}

static void add_pair(struct modeller *k, const struct mem_tensor *t, int first, int n,
                     int lo, int hi, enum held_as as)
{
    const struct shard_space *sp = k->space;
    const int group = t->uses[first].group;
    const int n_a = sp->n[t->home], n_b = sp->n[group];

    if (lo >= hi)
        return;
    int64_t *bytes = AP_NEW_N(k->arena, (int64_t)n_a * n_b, int64_t);
    for (int h = 0; h < n_a; h++)
        for (int s = 0; s < n_b; s++)
            bytes[h * n_b + s] = held_by(k, t, first, n, h, s, as);
    add_item(k, (struct mem_item){lo, hi, k->var[t->home], k->var[group], n_b, bytes},
             n_a);
}

static void add_own(struct modeller *k, const struct mem_tensor *t, int lo, int hi)
{
    add_item(k, (struct mem_item){lo, hi, k->var[t->home], -1, 1, t->bytes},
             k->space->n[t->home]);
}

/* What the user asks for, while it runs. */
static void add_asked(struct modeller *k, const struct mem_tensor *t, int first, int n)
{
    const struct shard_space *sp = k->space;
    const int group = t->uses[first].group, at = run_time(k, group);
    int64_t *bytes = AP_NEW_N(k->arena, sp->n[group], int64_t);

    if (at < k->covered[k->root[t->node]])
        return;
    for (int s = 0; s < sp->n[group]; s++)
        for (int u = first; u < first + n; u++) {
            struct ap_layout l =
                ap_nest_in_layout(&sp->nests->nest[group], sp->graph, &sp->cost->mesh,
                                  &sp->choice[group][s], t->uses[u].slot);
            int64_t x = in_memory(k, t->node, &l);
            bytes[s] = x > bytes[s] ? x : bytes[s];
        }
    add_item(k, (struct mem_item){at, at + 1, k->var[group], -1, 1, bytes}, sp->n[group]);
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* Uses of one group stand together; first[] and n_firsts say where. */
static void add_tensor(struct modeller *k, const struct mem_tensor *t)
{
    const int n = t->n_uses, root = k->root[t->node];
    const bool ends = t->uses[n - 1].group < 0;
    int n0 = 1, last = n - 1, birth = run_time(k, t->home);

    while (n0 < n && t->uses[n0].group == t->uses[0].group)
        n0++;
    birth = max_int(birth, k->covered[root]);
    if (t->uses[0].group < 0) { /* a result, no more */
        add_own(k, t, birth, k->m->n_times);
        k->covered[root] = k->m->n_times;
        return;
    }
    const int g0 = t->uses[0].group;
    int begin0 = max_int(k->base[g0], birth), run0 = run_time(k, g0);
    add_own(k, t, birth, k->base[g0]);
    add_pair(k, t, 0, n0, begin0, run0, HELD_BETWEEN);
    if (n0 == 1) {
        int at = k->base[g0] + t->uses[0].slot;
        if (at >= birth)
            add_pair(k, t, 0, 1, at, at + 1, HELD_CONVERTED);
    }
    add_asked(k, t, 0, n0);
    int end = run0 + 1;
    if (n0 < n) {
        int next = t->uses[n0].group < 0 ? k->m->n_times : k->base[t->uses[n0].group];
        add_pair(k, t, 0, n0, max_int(run0 + 1, birth), next, HELD_BETWEEN);
        while (last > 0 && t->uses[last - 1].group == t->uses[n - 1].group)
            last--;
        if (ends) { /* results that end otherwise than in their own layout end whole */
            add_own(k, t, max_int(next, birth), k->m->n_times);
            end = k->m->n_times;
        } else {
            int run = run_time(k, t->uses[last].group);
            add_pair(k, t, last, n - last, max_int(next, birth), run, HELD_BETWEEN);
            add_asked(k, t, last, n - last);
            end = run + 1;
        }
    }
    k->covered[root] = max_int(end, k->covered[root]);
}

static void add_parameter(struct modeller *k, const struct mem_tensor *t)
{
    add_own(k, t, 0, k->m->n_times);
    k->covered[t->node] = k->m->n_times;
    for (int u = 0; u < t->n_uses && t->uses[u].group >= 0;) {
        int n = 1, at = run_time(k, t->uses[u].group);
        while (u + n < t->n_uses && t->uses[u + n].group == t->uses[u].group)
            n++;
        add_pair(k, t, u, n, at, at + 1, HELD_COPIED);
        u += n;
    }
}

static int by_group(const void *x, const void *y)
{
    const struct select_use *a = x, *b = y;
    if ((a->group < 0) != (b->group < 0))
        return a->group < 0 ? 1 : -1;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    return (a->slot > b->slot) - (a->slot < b->slot);
}

/* Slots first; of results only that there are some. */
static int sort_uses(struct select_users *users)
{
    int n = 0;
    for (int u = 0; u < users->n; u++) {
        if (users->uses[u].slot < 0)
            users->uses[u].group = -1;
    }
    qsort(users->uses, (size_t)users->n, sizeof *users->uses, by_group);
    while (n < users->n && users->uses[n].group >= 0)
        n++;
    return n < users->n ? n + 1 : n;
}

static void add_node(struct modeller *k, struct select_users *users, int group, int node)
{
    const struct shard_space *sp = k->space;
    const struct ap_nest *nest = &sp->nests->nest[group];
    const struct ap_node *nd = &sp->graph->nodes[node];
    struct mem_tensor t = {
        .node = node, .home = group, .member = ap_nest_member(nest, node)};
    int n = sp->n[group];

    if (nd->shape.dtype == AP_TUPLE ||
        (k->result[node] == 2 && nd->op != AP_OP_PARAMETER) ||
        ap_shape_bytes(&nd->shape) < k->least)
        return;
    select_users_of(users, node);
    t.n_uses = sort_uses(users);
    t.uses = users->uses;
    if (t.n_uses == 0 && nd->op != AP_OP_PARAMETER)
        return;
    t.bytes = AP_NEW_N(k->arena, n, int64_t);
    t.home_layout = AP_NEW_N(k->arena, n, struct ap_layout);
    for (int s = 0; s < n; s++) {
        t.home_layout[s] = ap_nest_value_layout(nest, sp->graph, &sp->cost->mesh,
                                                &sp->choice[group][s], t.member);
        t.bytes[s] = in_memory(k, node, &t.home_layout[s]);
    }
    if (nd->op == AP_OP_PARAMETER)
        add_parameter(k, &t);
    else
        add_tensor(k, &t);
}

static void find_roots(struct modeller *k)
{
    const struct ap_graph *g = k->space->graph;

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        bool view = (n->op == AP_OP_RESHAPE || n->op == AP_OP_OPT_BARRIER) &&
                    k->space->nests->nest[n->group].n_members == 1;
        k->root[v] = view ? k->root[n->in[0]] : v;
    }
    for (int r = 0; r < g->n_results; r++) {
        int v = g->results[r].node, alias = g->results[r].alias;
        bool becomes =
            alias >= 0 && ap_shape_equal(&g->nodes[alias].shape, &g->nodes[v].shape);
        k->result[v] = becomes ? 2 : max_int(k->result[v], 1);
    }
}

void mem_model_build(struct ap_arena *arena, const struct shard_space *space,
                     const int *var, int64_t least, bool kept, struct mem_model *m)
{
    const struct ap_nests *nests = space->nests;
    const int n_nodes = space->graph->n_nodes;
    struct modeller k = {.arena = arena,
                         .space = space,
                         .var = var,
                         .least = least,
                         .kept = kept,
                         .base = AP_NEW_N(arena, nests->n + 1, int),
                         .covered = AP_NEW_N(arena, n_nodes, int),
                         .root = AP_NEW_N(arena, n_nodes, int),
                         .result = AP_NEW_N(arena, n_nodes, int),
                         .m = m};
    struct select_users users;

    *m = (struct mem_model){0};
    for (int i = 0; i < nests->n; i++)
        k.base[i + 1] = k.base[i] + nests->nest[i].n_ins + 1;
    m->n_times = k.base[nests->n] + 1;
    find_roots(&k);
    select_users_init(arena, space->graph, nests, &users);
    for (int i = 0; i < nests->n; i++)
        for (int o = 0; o < nests->nest[i].n_outs; o++)
            add_node(&k, &users, i, nests->nest[i].outs[o]);
    select_users_free(&users);
    struct mem_item *items = m->items;
    m->items = ap_arena_dup(arena, items, (size_t)m->n_items * sizeof *items);
    free(items);
}

void mem_model_held(const struct mem_model *m, const int *choice, int64_t *held)
{
    memset(held, 0, (size_t)m->n_times * sizeof *held);
    for (int i = 0; i < m->n_items; i++) {
        const struct mem_item *it = &m->items[i];
        int64_t x = it->bytes[choice[it->a] * it->n_b + (it->b < 0 ? 0 : choice[it->b])];
        held[it->lo] += x;
        if (it->hi < m->n_times)
            held[it->hi] -= x;
    }
    for (int t = 1; t < m->n_times; t++)
        held[t] += held[t - 1];
}
