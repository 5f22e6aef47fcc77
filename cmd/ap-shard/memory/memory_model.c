/*
 * Problem: state the memory that a plan needs at least, so that a search can price it and
 * its proofs hold for every program. Idea: times are, per fusion group, one for the
 * conversion of each operand and one for its run. A parameter is there always. Any other
 * tensor is there while a user runs, in the layout that the user asked for; before that
 * in its own layout or, since a smaller copy may be made early (partition.c), in the one
 * that the next user asks for, whichever is smaller. A step of a conversion holds both
 * ends, unless it was made early. A view (reshape) shares its operand's memory: of the
 * two one is counted at a time. A result that may be computed in its parameter's place
 * counts nothing. A copy for both phases is kept or made twice, which is a choice:
 * between the last forward user and the first later one a kept copy counts in full, too.
 * Within a phase a copy is made once: it counts between the first and the last user that
 * asks for it. With microbatches, groups stand in the order in which they run; the one
 * pass over those of a microbatch holds what the last one does, and what is accumulated
 * or gathered over time is so as soon as it is made. Cost: a table per tensor and its
 * first and last user, and per copy of both phases or of several users.
 */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "cost/convert.h"
#include "memory/memory.h"
#include "plan/microbatch.h"

#define ALIGN 64

struct modeller {
    struct ap_arena *arena;
    const struct shard_space *space;
    const struct ilp_problem *ip;
    const int *var;
    int64_t least;
    int *first_copy; /* [node], [copy of the builder]; -1 */
    int *base;       /* [group]: its first time; the run is the last one of the group */
    int *turn;       /* [group]: its place in the order in which groups run */
    int **slot_time; /* [group][slot]: when its conversion is made */
    uint8_t *when;   /* [group]: see ap_plan_when */
    int *covered;    /* [node], of roots: counted before this time */
    int *
        root; /* [node]: the node whose memory a view shows; itself if it is not a view */
    int *result; /* [node]: 1 a result, 2 one that becomes a parameter of its shape */
    struct ap_memory *m;
    int cap, cap_keeps, cap_holds, cap_maxima;
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

static void add_item(struct modeller *k, struct ap_usage_item item, int n_a)
{
    struct ap_memory *m = k->m;
    int64_t most = 0;

    for (int i = 0; i < n_a * item.n_b; i++)
        most = item.bytes[i] > most ? item.bytes[i] : most;
    if (item.lo >= item.hi || most < k->least || most == 0)
        return;
    if (item.a == item.b) { /* tied groups */
        int64_t *own = AP_NEW_N(k->arena, n_a, int64_t);
        for (int s = 0; s < n_a; s++)
            own[s] = item.bytes[s * n_a + s];
        item = (struct ap_usage_item){item.lo, item.hi, item.a, -1, 1, own};
    }
    AP_ROOM(m->items, m->n_items, k->cap);
    m->items[m->n_items++] = item;
}

static int run_time(const struct modeller *k, int group)
{
    return k->base[group] + k->space->nests->nest[group].n_ins;
}

static int slot_time(const struct modeller *k, const struct select_use *use)
{
    return k->slot_time[use->group][use->slot];
}

/* What the tensor is held as by home strategy h and the user's strategy s. */
enum held_as {
    HELD_BETWEEN,   /* its own layout, or the smallest that the user asks for */
    HELD_CONVERTED, /* what the first conversion holds beyond its own layout */
    HELD_ASKED,     /* what the user asks for, beyond its own layout */
    HELD_COPIED     /* of a parameter: copies for the user */
};

/* A copy for the user may be made early: it is for a later phase (partition.c). */
static bool is_crossed(const struct modeller *k, int home, int group)
{
    const struct ap_graph *g = k->space->graph;
    const struct ap_nest *nest = k->space->nests->nest;

    return !k->when && ap_plan_group_phase(g, &nest[home]) == AP_FORWARD &&
           ap_plan_group_phase(g, &nest[group]) != AP_FORWARD;
}

/* Both ends of a conversion's largest step; 0: some step may be left out. */
static int64_t held_on_way(const struct modeller *k, int node,
                           const struct ap_layout *from, const struct ap_layout *to)
{
    const struct ap_cost *cost = k->space->cost;
    int64_t last = in_memory(k, node, from), most = 0;
    struct ap_step room[AP_MAX_STEPS];
    struct ap_path path;

    if (ap_convert(cost, &k->space->graph->nodes[node].shape, from, to, room, &path))
        return 0;
    for (int i = 0; i < path.n_steps; i++) {
        const struct ap_step *step = &path.steps[i];
        if (step->op == AP_OP_AP_PARTIAL || (step->coll.axes & cost->mesh.microbatch))
            return 0;
        const int64_t next = in_memory(k, node, &step->to);
        most = last + next > most ? last + next : most;
        last = next;
    }
    return most;
}

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
        between = bytes < between ? bytes : between;
        copied = bytes > copied ? bytes : copied;
        if (as == HELD_CONVERTED && !(bytes < own && is_crossed(k, t->home, group))) {
            int64_t both = held_on_way(k, t->node, &t->home_layout[h], &l);
            converted = both > converted ? both : converted;
        }
    }
    if (as == HELD_COPIED)
        return copied;
    if (as == HELD_CONVERTED && converted > copied)
        copied = converted;
    if (as == HELD_CONVERTED || as == HELD_ASKED)
        return copied > own ? copied - own : 0;
    return between;
}

/* By one user that is still to come. */
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
    add_item(k,
             (struct ap_usage_item){lo, hi, k->var[t->home], k->var[group], n_b, bytes},
             n_a);
}

static void add_own(struct modeller *k, const struct mem_tensor *t, int lo, int hi)
{
    add_item(k, (struct ap_usage_item){lo, hi, k->var[t->home], -1, 1, t->bytes},
             k->space->n[t->home]);
}

/* The uses first .. first + n - 1, of one group, by its strategy. */
static struct ap_usage_user asker_of(const struct modeller *k, const struct mem_tensor *t,
                                     int first, int n)
{
    const struct shard_space *sp = k->space;
    const int group = t->uses[first].group;
    int64_t *bytes = AP_NEW_N(k->arena, sp->n[group], int64_t);

    for (int s = 0; s < sp->n[group]; s++)
        for (int u = first; u < first + n; u++) {
            struct ap_layout l =
                ap_nest_in_layout(&sp->nests->nest[group], sp->graph, &sp->cost->mesh,
                                  &sp->choice[group][s], t->uses[u].slot);
            int64_t x = in_memory(k, t->node, &l);
            bytes[s] = x > bytes[s] ? x : bytes[s];
        }
    return (struct ap_usage_user){k->var[group], bytes};
}

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* ---- copies for both phases ---- */

/* The times after the last forward use and before the first later one. */
struct gap {
    int lo, hi; /* lo >= hi: no such time */
    int use;    /* that later one, of t->uses */
};

static struct gap find_gap(const struct modeller *k, const struct mem_tensor *t)
{
    const struct shard_space *sp = k->space;
    struct gap none = {0, 0, 0};
    int forward = -1, later = -1, use = 0;

    for (int u = 0; u < t->n_uses; u++) {
        const int group = t->uses[u].group;
        bool is_forward =
            group >= 0 &&
            ap_plan_group_phase(sp->graph, &sp->nests->nest[group]) == AP_FORWARD;
        if (is_forward && later >= 0)
            return none;
        if (is_forward)
            forward = group;
        else if (later < 0) {
            later = group < 0 ? sp->nests->n : group;
            use = u;
        }
    }
    if (forward < 0 || later < 0)
        return none;
    return (struct gap){
        run_time(k, forward) + 1,
        later == sp->nests->n ? k->m->n_times : slot_time(k, &t->uses[use]), use};
}

/* By home: a copy's bytes beyond the tensor's, all if that stays; the most of them. */
static int64_t list_extra(const struct modeller *k, const struct mem_tensor *t,
                          const struct ap_layout *l, bool own_stays, int64_t *extra)
{
    const int64_t bytes = ap_layout_is_partial(l) ? 0 : in_memory(k, t->node, l);
    int64_t most = 0;

    for (int h = 0; h < k->space->n[t->home]; h++) {
        if (ap_layout_equal(l, &t->home_layout[h]))
            continue;
        extra[h] = own_stays ? bytes : bytes > t->bytes[h] ? bytes - t->bytes[h] : 0;
        most = extra[h] > most ? extra[h] : most;
    }
    return most;
}

/* While a copy is kept. */
static void add_keeps(struct modeller *k, const struct mem_tensor *t, int lo, int hi,
                      bool own_stays)
{
    const struct select_builder *b = &k->ip->builder;
    const int rep = k->ip->tensor[t->node], n = k->space->n[t->home];
    struct ap_memory *m = k->m;

    for (int c = k->first_copy[rep];
         lo < hi && c >= 0 && c < b->n_copies && b->copy[c].tensor == rep; c++) {
        if (!m->copy[c].both)
            continue;
        int64_t *extra = AP_NEW_N(k->arena, n, int64_t);
        const int64_t most = list_extra(k, t, &b->copy[c].layout, own_stays, extra);
        if (most < k->least || most == 0)
            continue;
        AP_ROOM(m->keeps, m->n_keeps, k->cap_keeps);
        m->keeps[m->n_keeps++] =
            (struct ap_usage_keep){lo, hi, c, k->var[t->home], extra};
    }
}

/* ---- copies between users of a phase ---- */

static void push_hold(struct modeller *k, struct ap_usage_hold hold)
{
    struct ap_memory *m = k->m;

    if (hold.lo >= hold.hi)
        return;
    AP_ROOM(m->holds, m->n_holds, k->cap_holds);
    m->holds[m->n_holds++] = hold;
}

/* The use of a copy by a variable, which takes its turn if it has none; NULL: none. */
static const struct ap_copy_use *find_use(const struct modeller *k, struct ap_copy *copy,
                                          int var, bool first)
{
    const struct ap_copy_use *found = NULL;

    for (int u = 0; u < copy->n_uses; u++) {
        struct ap_copy_use *use = &copy->use[u];
        if (k->ip->problem.edges[use->edge].b != var)
            continue;
        if (use->turn < 0 && first)
            use->turn = found ? found->turn : copy->n_turns++;
        found = use;
    }
    return found;
}

/* Of one copy; tied tensors have the turns of the first one. */
static void add_holds_of(struct modeller *k, const struct mem_tensor *t, int c, int birth,
                         const int64_t *extra)
{
    struct ap_copy *copy = &k->m->copy[c];
    const struct ap_copy_use *last = NULL;
    const bool first = copy->n_turns == 0;
    int from = 0;

    for (int u = 0; u < t->n_uses && t->uses[u].group >= 0; u++) {
        const int group = t->uses[u].group;
        if (u > 0 && group == t->uses[u - 1].group)
            continue;
        const struct ap_copy_use *use = find_use(k, copy, k->var[group], first);
        if (!use || use->turn < 0)
            continue;
        const int at = slot_time(k, &t->uses[u]);
        struct ap_usage_hold hold = {
            max_int(from, birth), at, c, k->var[t->home], 0, use->later, false, extra};
        if (last && use->turn == last->turn + 1 && use->later == last->later) {
            hold.turn = last->turn;
            push_hold(k, hold);
            hold.lo = max_int(at, birth);
            hold.hi = run_time(k, group) + 1;
            hold.turn = use->turn;
            hold.over = true;
            push_hold(k, hold);
        }
        last = use;
        from = run_time(k, group) + 1;
    }
}

/* A copy lives from its first user of a phase to the last one. */
static void add_holds(struct modeller *k, const struct mem_tensor *t, int birth,
                      bool own_stays)
{
    const struct select_builder *b = &k->ip->builder;
    const int rep = k->ip->tensor[t->node];

    for (int c = k->first_copy[rep];
         !k->when && c >= 0 && c < b->n_copies && b->copy[c].tensor == rep; c++) {
        int64_t *extra = AP_NEW_N(k->arena, k->space->n[t->home], int64_t);
        const int64_t most = list_extra(k, t, &b->copy[c].layout, own_stays, extra);
        if (most > 0 && most >= k->least)
            add_holds_of(k, t, c, birth, extra);
    }
}

/* ---- tensors ---- */

static int n_alike(const struct mem_tensor *t, int first)
{
    int n = 1;
    while (first + n < t->n_uses && t->uses[first + n].group == t->uses[first].group)
        n++;
    return n;
}

static int by_bytes(const void *x, const void *y)
{
    const int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

/* The largest of what the uses first .. last, all of them to come, ask for. */
static void add_most(struct modeller *k, const struct mem_tensor *t, int first, int last,
                     int lo, int hi)
{
    struct ap_memory *m = k->m;
    struct ap_usage_user *user =
        AP_NEW_N(k->arena, last - first + 1, struct ap_usage_user);
    int64_t most = 0, *level;
    int n = 0, n_levels = 0, n_all = 0;

    for (int u = first; u <= last; u += n_alike(t, u)) {
        user[n++] = asker_of(k, t, u, n_alike(t, u));
        n_all += k->space->n[t->uses[u].group];
    }
    level = AP_NEW_N(k->arena, n_all, int64_t);
    n_all = 0;
    for (int i = 0; i < n; i++)
        for (int s = 0; s < k->ip->problem.n_strategies[user[i].var]; s++)
            level[n_all++] = user[i].bytes[s];
    qsort(level, (size_t)n_all, sizeof *level, by_bytes);
    for (int i = 0; i < n_all; i++)
        if (n_levels == 0 || level[i] != level[n_levels - 1])
            level[n_levels++] = level[i];
    for (int h = 0; h < k->space->n[t->home]; h++)
        most = t->bytes[h] > most ? t->bytes[h] : most;
    if (lo >= hi || most < k->least || most == 0)
        return;
    AP_ROOM(m->maxima, m->n_maxima, k->cap_maxima);
    m->maxima[m->n_maxima++] = (struct ap_usage_max){lo, hi,   k->var[t->home], t->bytes,
                                                     n,  user, n_levels,        level};
}

/* The same, or of one use to come. */
static void add_to_come(struct modeller *k, const struct mem_tensor *t, int first,
                        int last, int lo, int hi)
{
    const int n = n_alike(t, first);

    if (first + n > last)
        add_pair(k, t, first, n, lo, hi, HELD_BETWEEN);
    else
        add_most(k, t, first, last, lo, hi);
}

/*
 * Until the uses first .. first + n - 1 of one group are through, from `from` on, when
 * those up to `last` are to come. At the conversion of the first one the tensor is there,
 * unless a copy for a later phase took its place; copies are there from then on.
 */
static void add_until(struct modeller *k, const struct mem_tensor *t, int first, int n,
                      int last, int from, bool early)
{
    const int run = run_time(k, t->uses[first].group);
    int at = slot_time(k, &t->uses[first]);

    if (first == 0 && at >= from) {
        add_pair(k, t, 0, n, at, at + 1, HELD_CONVERTED);
        if (!early) {
            const int there = k->when ? at : from;
            add_to_come(k, t, first, last, from, there);
            add_own(k, t, there, at + 1);
            from = at + 1;
        }
        at++;
    }
    add_pair(k, t, first, n, max_int(at, from), run + 1, HELD_ASKED);
    add_to_come(k, t, first, last, from, run + 1);
}

/* Uses of one group stand together; first[] and n_firsts say where. */
static void add_tensor(struct modeller *k, const struct mem_tensor *t)
{
    const int n = t->n_uses, root = k->root[t->node];
    const bool ends = t->uses[n - 1].group < 0;
    const int last = ends ? n - 2 : n - 1; /* of those that are groups' */
    const struct gap gap = find_gap(k, t);
    const int birth = max_int(run_time(k, t->home), k->covered[root]);
    int from = birth;

    if (ends) /* results that end otherwise than in their own layout end whole */
        add_own(k, t, birth, k->m->n_times);
    for (int u = 0, n_u; u <= last; u += n_u) {
        const int group = t->uses[u].group, run = run_time(k, group);
        /* a copy may take its place before anybody asks */
        const bool crossed = u == 0 && !ends && !k->when && is_crossed(k, t->home, group);
        n_u = n_alike(t, u);
        if (u == 0 && !ends) {
            const int begin = crossed ? run_time(k, t->home) + 1 : k->base[group];
            add_own(k, t, from, begin);
            from = max_int(from, begin);
        }
        if (ends)
            add_pair(k, t, u, n_u, max_int(slot_time(k, &t->uses[u]), from), run + 1,
                     HELD_ASKED);
        else
            add_until(k, t, u, n_u, last, from, crossed);
        from = max_int(run + 1, birth);
    }
    if (last >= 0) {
        add_keeps(k, t, gap.lo, gap.hi, false);
        add_holds(k, t, birth, false);
    }
    k->covered[root] = max_int(ends ? k->m->n_times : from, k->covered[root]);
}

static void add_parameter(struct modeller *k, const struct mem_tensor *t)
{
    add_own(k, t, 0, k->m->n_times);
    k->covered[t->node] = k->m->n_times;
    struct gap gap = find_gap(k, t);
    add_keeps(k, t, gap.lo, gap.hi, true);
    add_holds(k, t, 0, true);
    for (int u = 0; u < t->n_uses && t->uses[u].group >= 0;) {
        const int at = slot_time(k, &t->uses[u]), run = run_time(k, t->uses[u].group);
        int n = 1;
        while (u + n < t->n_uses && t->uses[u + n].group == t->uses[u].group)
            n++;
        add_pair(k, t, u, n, at, run + 1, HELD_COPIED);
        u += n;
    }
}

/* By turn of the group (in var); results last. */
static int by_turn(const void *x, const void *y)
{
    const struct select_use *a = x, *b = y;
    if ((a->group < 0) != (b->group < 0))
        return a->group < 0 ? 1 : -1;
    if (a->group >= 0 && a->var != b->var)
        return a->var < b->var ? -1 : 1;
    return (a->slot > b->slot) - (a->slot < b->slot);
}

/* Slots first; of results only that there are some. */
static int sort_uses(const struct modeller *k, struct select_users *users)
{
    int n = 0;
    for (int u = 0; u < users->n; u++) {
        if (users->uses[u].slot < 0)
            users->uses[u].group = -1;
        users->uses[u].var =
            users->uses[u].group < 0 ? -1 : k->turn[users->uses[u].group];
    }
    qsort(users->uses, (size_t)users->n, sizeof *users->uses, by_turn);
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
    t.n_uses = sort_uses(k, users);
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

struct slot {
    int node, slot;
};

static int by_node(const void *x, const void *y)
{
    const struct slot *a = x, *b = y;
    if (a->node != b->node)
        return a->node < b->node ? -1 : 1;
    return (a->slot > b->slot) - (a->slot < b->slot);
}

/* Conversions for a group are made in the order of what they are made from. */
static int *time_slots(const struct modeller *k, int group)
{
    const struct ap_nest *nest = &k->space->nests->nest[group];
    struct slot *slot = AP_NEW_N(k->arena, nest->n_ins + 1, struct slot);
    int *time = AP_NEW_N(k->arena, nest->n_ins + 1, int);

    for (int i = 0; i < nest->n_ins; i++)
        slot[i] = (struct slot){nest->ins[i].node, i};
    qsort(slot, (size_t)nest->n_ins, sizeof *slot, by_node);
    for (int i = 0; i < nest->n_ins; i++)
        time[slot[i].slot] = k->base[group] + i;
    return time;
}

/* Times of the groups, in the order in which they run: it is the same for all plans. */
static void order_groups(struct modeller *k)
{
    const struct shard_space *sp = k->space;
    int n = sp->nests->n, at = 0;
    struct ap_plan plan = {.graph = sp->graph,
                           .nests = sp->nests,
                           .mesh = sp->cost->mesh,
                           .choice = AP_NEW_N(k->arena, n, struct ap_choice_vec)};

    for (int i = 0; i < n; i++)
        plan.choice[i] = sp->choice[i][0];
    k->when = ap_plan_when(k->arena, &plan);
    int *order = ap_plan_order(k->arena, &plan, k->when);
    for (int o = 0; o < n; o++) {
        k->turn[order[o]] = o;
        k->base[order[o]] = at;
        k->slot_time[order[o]] = time_slots(k, order[o]);
        at += sp->nests->nest[order[o]].n_ins + 1;
    }
    k->m->n_times = at + 1;
}

/* Who makes and who needs each copy, and whether in both phases. */
static void find_copies(struct modeller *k)
{
    const struct ilp_problem *ip = k->ip;
    const struct shard_space *sp = k->space;
    const struct ap_problem *p = &ip->problem;
    struct ap_memory *m = k->m;
    const int64_t n_microbatches = ap_mesh_microbatches(&sp->cost->mesh);
    bool *later = AP_NEW_N(k->arena, ip->n_vars, bool);
    uint8_t *when = AP_NEW_N(k->arena, ip->n_vars, uint8_t);
    int *n_uses = AP_NEW_N(k->arena, p->n_nodes + 1, int);
    int64_t *n_each = AP_NEW_N(k->arena, p->n_nodes + 1, int64_t);

    for (int i = 0; i < sp->nests->n; i++) { /* parameters ask for results */
        const struct ap_nest *nest = &sp->nests->nest[i];
        later[ip->var[i]] = sp->graph->nodes[nest->members[0]].op == AP_OP_PARAMETER ||
                            ap_plan_group_phase(sp->graph, nest) != AP_FORWARD;
        when[ip->var[i]] = k->when ? k->when[i] : AP_BEFORE;
    }
    for (int v = 0; v < sp->graph->n_nodes; v++)
        k->first_copy[v] = -1;
    m->n_copies = ip->builder.n_copies;
    m->copy = AP_NEW_N(k->arena, m->n_copies + 1, struct ap_copy);
    for (int c = m->n_copies - 1; c >= 0; c--)
        k->first_copy[ip->builder.copy[c].tensor] = c;
    for (int e = 0; e < p->n_edges; e++)
        if (p->edges[e].a >= ip->n_vars)
            n_uses[p->edges[e].a - ip->n_vars]++;
    for (int c = 0; c < m->n_copies; c++)
        m->copy[c].use = AP_NEW_N(k->arena, n_uses[c] + 1, struct ap_copy_use);
    for (int e = 0; e < p->n_edges; e++) {
        const struct ap_problem_edge *edge = &p->edges[e];
        if (edge->b >= ip->n_vars) {
            struct ap_copy *copy = &m->copy[edge->b - ip->n_vars];
            copy->home_edge = e;
            copy->tensor = ip->builder.copy[edge->b - ip->n_vars].tensor;
            /* what comes with every microbatch has that in its price */
            n_each[edge->b - ip->n_vars] = when[edge->a] == AP_EACH ? 1 : n_microbatches;
        }
        if (edge->a < ip->n_vars)
            continue;
        struct ap_copy *copy = &m->copy[edge->a - ip->n_vars];
        copy->use[copy->n_uses++] =
            (struct ap_copy_use){e, -1, later[edge->b], when[edge->b],
                                 when[edge->b] == AP_EACH ? n_each[copy - m->copy] : 1};
        copy->both |= copy->use[0].later != later[edge->b];
    }
}

/* A list that grew, in the arena. */
static void *keep(struct ap_arena *arena, void *list, size_t size)
{
    void *kept = ap_arena_dup(arena, list, size);

    free(list);
    return kept;
}

void mem_model_build(struct ap_arena *arena, const struct ilp_problem *ip, int64_t least,
                     struct mem_model *model)
{
    struct ap_memory *m = &model->memory;
    const struct shard_space *space = &ip->space;
    const struct ap_nests *nests = space->nests;
    const int n_nodes = space->graph->n_nodes;
    struct modeller k = {.arena = arena,
                         .space = space,
                         .ip = ip,
                         .var = ip->var,
                         .least = least,
                         .base = AP_NEW_N(arena, nests->n + 1, int),
                         .turn = AP_NEW_N(arena, nests->n + 1, int),
                         .slot_time = AP_NEW_N(arena, nests->n + 1, int *),
                         .covered = AP_NEW_N(arena, n_nodes, int),
                         .root = AP_NEW_N(arena, n_nodes, int),
                         .result = AP_NEW_N(arena, n_nodes, int),
                         .first_copy = AP_NEW_N(arena, n_nodes, int),
                         .m = m};
    struct select_users users;

    *m = (struct ap_memory){.n_vars = ip->n_vars, .problem = &ip->problem};
    order_groups(&k);
    model->base = k.base;
    model->slot_time = k.slot_time;
    find_roots(&k);
    find_copies(&k);
    select_users_init(arena, space->graph, nests, &users);
    for (int i = 0; i < nests->n; i++)
        for (int o = 0; o < nests->nest[i].n_outs; o++)
            add_node(&k, &users, i, nests->nest[i].outs[o]);
    select_users_free(&users);
    m->items = keep(arena, m->items, (size_t)m->n_items * sizeof *m->items);
    m->maxima = keep(arena, m->maxima, (size_t)m->n_maxima * sizeof *m->maxima);
    m->keeps = keep(arena, m->keeps, (size_t)m->n_keeps * sizeof *m->keeps);
    m->holds = keep(arena, m->holds, (size_t)m->n_holds * sizeof *m->holds);
}
