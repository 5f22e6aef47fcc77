/*
 * Problem: in which order should fusion groups run? The order of a frontend is made for
 * readers: JAX puts the gradients of weights after the whole backward phase, so that all
 * that they read waits for them. Idea: groups run in the program's order (Kahn, smallest
 * last member first), but groups that free memory come first. A trial runs a ready group,
 * or all that still read one value, then what becomes able to run by it and reads what it
 * made (a gradient's update), some steps far, and counts the bytes of whole tensors: made
 * minus freed. The prefix that gives back most is kept, if it gives any; otherwise all is
 * undone. Trials start where something changes: a group becomes ready, the readers of a
 * value are all ready, or only one is left. An update in a parameter's place takes
 * nothing if nobody else is still to read that parameter, and a copy otherwise. Groups of
 * scalars that depend on parameters alone (step counters) run before the first that needs
 * them. The program's order is taken if its peak is lower and no more gradients wait for
 * their updates at once: activations of the whole batch, which make the peak here, weigh
 * less on devices. Layouts do not enter, so that the order is the same for all plans.
 * Cost: O((groups + edges) log groups); a trial has a bounded number of groups. Source:
 * list scheduling by live bytes, as XLA's ListScheduler has it
 * (xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc), there without a look ahead.
 */
#include "graph/order.h"

#define MOST_READERS 16 /* of a value that are tried together */
#define LOOK_AHEAD   8  /* groups after those of a trial */
#define MOST_DEEP    32 /* groups of scalars that need each other */
#define SMALL        64 /* bytes that a buffer takes anyway */

/* Lists of ids: those of i are v[start[i] .. start[i + 1]). */
struct lists {
    int *start, *v;
};

/* What owns memory, named by the node that makes it. */
struct store {
    int64_t bytes;
    int n_left, n_ready; /* readers that are still to run; those of them that can */
    bool stays;          /* a parameter or a result */
    int place;           /* of a result: the parameter whose memory it may take, -1 */
};

/* Ids that wait for their turn, each once. */
struct ring {
    int *v, first, n, size;
    bool *has;
};

enum state { WAITING, READY, RAN };

struct order {
    const struct ap_graph *g;
    int n;                      /* groups */
    const int *group_of;        /* [node] */
    int *owner;                 /* [node]: whose memory holds it, -1: none */
    struct store *store;        /* [node] */
    struct lists members;       /* [group] */
    struct lists inputs;        /* [group]: groups that it reads, each once */
    struct lists users;         /* [group]: the other way round */
    struct lists reads;         /* [group]: owners that it reads, each once */
    struct lists readers;       /* [node]: the other way round */
    int *n_waiting;             /* [group]: inputs that did not run */
    uint8_t *state;             /* [group]: enum state */
    bool *small;                /* [group]: scalars of parameters, made when needed */
    bool eager;                 /* what gives memory back comes first */
    int *heap, n_heap;          /* groups that became ready */
    struct ring groups, owners; /* trials: of one group; of all that read a value */
    int *trial, n_trial;        /* groups of the trial at hand */
    int *row, n_row;            /* the order */
    int64_t held, most; /* after the last of the row, beside parameters; at its fullest */
};

/* ---- what is read, made and kept ---- */

/* Nodes by group. */
static struct lists list_members(struct ap_arena *arena, const struct order *o)
{
    struct lists l = {AP_NEW_N(arena, o->n + 2, int),
                      AP_NEW_N(arena, o->g->n_nodes + 1, int)};
    for (int v = 0; v < o->g->n_nodes; v++)
        l.start[o->group_of[v] + 2]++;
    for (int c = 0; c < o->n; c++)
        l.start[c + 2] += l.start[c + 1];
    for (int v = 0; v < o->g->n_nodes; v++)
        l.v[l.start[o->group_of[v] + 1]++] = v;
    return l;
}

/* No more than another name for its operand's value. */
static bool is_view(const struct order *o, int c)
{
    const int *m = o->members.v + o->members.start[c];
    enum ap_op op = o->g->nodes[*m].op;
    return o->members.start[c + 1] - o->members.start[c] == 1 &&
           (op == AP_OP_RESHAPE || op == AP_OP_OPT_BARRIER);
}

static bool is_read_outside(const struct order *o, int v)
{
    const struct ap_graph *g = o->g;
    for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++)
        if (o->group_of[g->users[u]] != o->group_of[v])
            return true;
    return false;
}

static void find_stores(struct ap_arena *arena, struct order *o)
{
    const struct ap_graph *g = o->g;
    const int64_t most = INT64_MAX / 4 / (g->n_nodes + 1); /* sums do not overflow */

    o->owner = AP_NEW_N(arena, g->n_nodes, int);
    o->store = AP_NEW_N(arena, g->n_nodes, struct store);
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *node = &g->nodes[v];
        int64_t bytes = ap_shape_bytes(&node->shape);
        bytes = bytes <= SMALL ? 0 : bytes < most ? bytes : most;
        o->store[v] = (struct store){.bytes = bytes, .place = -1};
        o->store[v].stays = node->op == AP_OP_PARAMETER;
        o->owner[v] = is_view(o, o->group_of[v]) ? o->owner[node->in[0]] : v;
        if (node->shape.dtype == AP_TUPLE)
            o->owner[v] = -1;
    }
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_result *res = &g->results[r];
        const int v = o->owner[res->node], p = res->alias;
        if (v < 0)
            continue;
        if (v == res->node && !o->store[v].stays && p >= 0 &&
            ap_shape_equal(&g->nodes[p].shape, &g->nodes[v].shape))
            o->store[v].place = p;
        o->store[v].stays = true;
    }
    for (int v = 0; v < g->n_nodes; v++)
        if (o->owner[v] == v && !o->store[v].stays && !is_read_outside(o, v))
            o->owner[v] = -1;
}

/* What each group reads: groups, or owners of memory. */
static struct lists list_reads(struct ap_arena *arena, const struct order *o, bool owners)
{
    const struct ap_graph *g = o->g;
    const int *m = o->members.v;
    int *last = AP_NEW_N(arena, g->n_nodes + 1, int), n = 0;
    struct lists l = {AP_NEW_N(arena, o->n + 1, int), NULL};

    for (int v = 0; v < g->n_nodes; v++)
        n += g->nodes[v].n_in;
    l.v = AP_NEW_N(arena, n + 1, int);
    for (int i = 0; i <= g->n_nodes; i++)
        last[i] = -1;
    n = 0;
    for (int c = 0; c < o->n; c++) {
        for (int i = o->members.start[c]; i < o->members.start[c + 1]; i++) {
            const struct ap_node *node = &g->nodes[m[i]];
            for (int k = 0; k < node->n_in; k++) {
                int from = o->group_of[node->in[k]];
                int what = owners ? o->owner[node->in[k]] : from;
                if (from == c || what < 0 || last[what] == c)
                    continue;
                last[what] = c;
                l.v[n++] = what;
            }
        }
        l.start[c + 1] = n;
    }
    return l;
}

/* The other way round; `n` lists. */
static struct lists turn_lists(struct ap_arena *arena, const struct lists *from,
                               int n_from, int n)
{
    struct lists l = {AP_NEW_N(arena, n + 2, int),
                      AP_NEW_N(arena, from->start[n_from] + 1, int)};
    for (int i = 0; i < from->start[n_from]; i++)
        l.start[from->v[i] + 2]++;
    for (int i = 0; i < n; i++)
        l.start[i + 2] += l.start[i + 1];
    for (int c = 0; c < n_from; c++)
        for (int i = from->start[c]; i < from->start[c + 1]; i++)
            l.v[l.start[from->v[i] + 1]++] = c;
    return l;
}

/* Which groups need nothing but parameters, and make nothing but scalars. Inputs come
 * first in the row, but not in the numbers of groups. */
static void find_small(struct ap_arena *arena, struct order *o)
{
    uint8_t *depth = AP_NEW_N(arena, o->n, uint8_t);

    o->small = AP_NEW_N(arena, o->n, bool);
    for (int k = 0; k < o->n; k++) {
        const int c = o->row[k], *m = o->members.v + o->members.start[c];
        bool small = o->g->nodes[*m].op != AP_OP_PARAMETER;
        for (; m < o->members.v + o->members.start[c + 1]; m++)
            small &= o->store[*m].bytes == 0;
        for (int i = o->inputs.start[c]; i < o->inputs.start[c + 1]; i++) {
            const int from = o->inputs.v[i];
            const int first = o->members.v[o->members.start[from]];
            small &= o->small[from] || o->g->nodes[first].op == AP_OP_PARAMETER;
            if (depth[c] <= depth[from])
                depth[c] = (uint8_t)(depth[from] + 1);
        }
        o->small[c] = small && depth[c] < MOST_DEEP;
        depth[c] = o->small[c] ? depth[c] : 0;
    }
}

/* ---- groups that run ---- */

static void heap_push(struct order *o, int key)
{
    int *heap = o->heap, i = o->n_heap++;
    for (; i > 0 && heap[(i - 1) / 2] > key; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = key;
}

static int heap_pop(struct order *o)
{
    int *heap = o->heap, top = heap[0], last = heap[--o->n_heap], i = 0;
    for (;;) {
        int c = 2 * i + 1;
        if (c >= o->n_heap)
            break;
        if (c + 1 < o->n_heap && heap[c + 1] < heap[c])
            c++;
        if (heap[c] >= last)
            break;
        heap[i] = heap[c];
        i = c;
    }
    heap[i] = last;
    return top;
}

static void set_ready(struct order *o, int c)
{
    o->state[c] = READY;
    for (int i = o->reads.start[c]; i < o->reads.start[c + 1]; i++)
        o->store[o->reads.v[i]].n_ready++;
}

/* Runs a group that is ready; bytes that it makes and that are free after it. */
static void run_group(struct order *o, int c, int64_t *made, int64_t *freed)
{
    *made = *freed = 0;
    o->state[c] = RAN;
    for (int i = o->reads.start[c]; i < o->reads.start[c + 1]; i++) {
        struct store *s = &o->store[o->reads.v[i]];
        s->n_ready--;
        if (--s->n_left == 0 && !s->stays)
            *freed += s->bytes;
    }
    for (int i = o->members.start[c]; i < o->members.start[c + 1]; i++) {
        const int v = o->members.v[i];
        const struct store *s = &o->store[v];
        if (o->owner[v] != v || o->g->nodes[v].op == AP_OP_PARAMETER)
            continue;
        if (s->place < 0 || o->store[s->place].n_left > 0)
            *made += s->bytes;
        if (s->n_left == 0 && !s->stays)
            *freed += s->bytes;
    }
    if (o->eager && o->small[c])
        return;
    for (int i = o->users.start[c]; i < o->users.start[c + 1]; i++)
        o->n_waiting[o->users.v[i]]--;
}

/* As if the group, the last that ran, were only ready. */
static void undo_group(struct order *o, int c)
{
    for (int i = o->users.start[c]; i < o->users.start[c + 1]; i++) {
        const int u = o->users.v[i];
        o->n_waiting[u]++;
        if (o->state[u] != READY)
            continue;
        o->state[u] = WAITING;
        for (int k = o->reads.start[u]; k < o->reads.start[u + 1]; k++)
            o->store[o->reads.v[k]].n_ready--;
    }
    o->state[c] = READY;
    for (int i = o->reads.start[c]; i < o->reads.start[c + 1]; i++) {
        o->store[o->reads.v[i]].n_ready++;
        o->store[o->reads.v[i]].n_left++;
    }
}

/* ---- trials ---- */

static struct ring new_ring(struct ap_arena *arena, int size)
{
    return (struct ring){AP_NEW_N(arena, size, int), 0, 0, size,
                         AP_NEW_N(arena, size, bool)};
}

static void ring_push(struct ring *r, int id)
{
    if (r->has[id])
        return;
    r->has[id] = true;
    r->v[(r->first + r->n++) % r->size] = id;
}

static int ring_pop(struct ring *r)
{
    const int id = r->v[r->first];
    r->first = (r->first + 1) % r->size;
    r->n--;
    r->has[id] = false;
    return id;
}

/* The group, and what it reads and could be the end of. */
static void try_group(struct order *o, int c)
{
    ring_push(&o->groups, c);
    for (int i = o->reads.start[c]; i < o->reads.start[c + 1]; i++) {
        const struct store *s = &o->store[o->reads.v[i]];
        if (s->n_left > 1 && s->n_left == s->n_ready && s->n_left <= MOST_READERS)
            ring_push(&o->owners, o->reads.v[i]);
    }
}

/* Only one reader is left: it, or what it waits for, may be worth more than before. */
static void try_last_reader(struct order *o, int v)
{
    int i = o->readers.start[v];
    while (o->state[o->readers.v[i]] == RAN)
        i++;
    const int c = o->readers.v[i];
    if (o->state[c] == READY) {
        try_group(o, c);
        return;
    }
    for (int k = o->inputs.start[c]; k < o->inputs.start[c + 1]; k++)
        if (o->state[o->inputs.v[k]] == READY)
            try_group(o, o->inputs.v[k]);
}

/* The next of the row, after what it needs of scalars. */
static void take(struct order *o, int c)
{
    int64_t made, freed;

    for (int i = o->inputs.start[c]; i < o->inputs.start[c + 1] && o->eager; i++)
        if (o->small[o->inputs.v[i]] && o->state[o->inputs.v[i]] != RAN)
            take(o, o->inputs.v[i]);
    run_group(o, c, &made, &freed);
    o->row[o->n_row++] = c;
    o->most = o->held + made > o->most ? o->held + made : o->most;
    o->held += made - freed;
    if (o->eager && o->small[c])
        return;
    for (int i = o->users.start[c]; i < o->users.start[c + 1]; i++)
        if (o->n_waiting[o->users.v[i]] == 0) {
            set_ready(o, o->users.v[i]);
            heap_push(o, o->users.v[i]);
        }
    for (int i = o->users.start[c]; i < o->users.start[c + 1] && o->eager; i++)
        if (o->n_waiting[o->users.v[i]] == 0)
            try_group(o, o->users.v[i]);
    for (int i = o->reads.start[c]; i < o->reads.start[c + 1] && o->eager; i++)
        if (o->store[o->reads.v[i]].n_left == 1 && o->store[o->reads.v[i]].bytes > 0)
            try_last_reader(o, o->reads.v[i]);
}

/* Runs the groups of o->trial and what follows; the prefix that gives back most. */
static int best_prefix(struct order *o)
{
    const int end = o->n_trial + LOOK_AHEAD;
    int64_t sum = 0, best = 0, made, freed;
    int n_best = 0, n = 0;

    for (; n < o->n_trial; n++) {
        const int c = o->trial[n];
        run_group(o, c, &made, &freed);
        sum += freed - made;
        if (sum > best) {
            best = sum;
            n_best = n + 1;
        }
        for (int i = o->users.start[c]; i < o->users.start[c + 1]; i++) {
            const int u = o->users.v[i];
            if (o->n_waiting[u] > 0)
                continue;
            set_ready(o, u);
            if (o->n_trial < end)
                o->trial[o->n_trial++] = u;
        }
    }
    while (n > 0)
        undo_group(o, o->trial[--n]);
    return n_best;
}

static void run_trial(struct order *o)
{
    o->n_trial = 0;
    if (o->groups.n > 0) {
        o->trial[o->n_trial++] = ring_pop(&o->groups);
        if (o->state[o->trial[0]] != READY)
            return;
    } else {
        const int v = ring_pop(&o->owners);
        for (int i = o->readers.start[v]; i < o->readers.start[v + 1]; i++)
            if (o->state[o->readers.v[i]] == READY && o->n_trial < MOST_READERS)
                o->trial[o->n_trial++] = o->readers.v[i];
    }
    const int n = best_prefix(o);
    for (int i = 0; i < n; i++)
        take(o, o->trial[i]);
}

/* ---- the whole ---- */

/* Inputs that a group waits for; what is made when somebody needs it waits for ever. */
static int n_awaited(const struct order *o, int c)
{
    int n = o->eager && o->small[c];
    for (int i = o->inputs.start[c]; i < o->inputs.start[c + 1]; i++)
        n += !o->eager || !o->small[o->inputs.v[i]];
    return n;
}

/* Fills row, most. */
static void run_all(struct order *o, bool eager)
{
    const struct ap_graph *g = o->g;

    o->eager = eager;
    o->n_heap = o->n_row = 0;
    o->held = o->most = 0;
    for (int v = 0; v < g->n_nodes; v++) {
        o->store[v].n_left = o->readers.start[v + 1] - o->readers.start[v];
        o->store[v].n_ready = 0;
    }
    for (int c = 0; c < o->n; c++) {
        o->state[c] = WAITING;
        o->n_waiting[c] = n_awaited(o, c);
    }
    for (int c = 0; c < o->n; c++) {
        if (o->n_waiting[c] > 0)
            continue;
        set_ready(o, c);
        if (g->nodes[o->members.v[o->members.start[c]]].op == AP_OP_PARAMETER)
            continue;
        heap_push(o, c);
        if (eager)
            try_group(o, c);
    }
    /* parameters first, whatever their place in the text */
    for (int v = 0; v < g->n_nodes; v++)
        if (g->nodes[v].op == AP_OP_PARAMETER)
            take(o, o->group_of[v]);
    while (o->n_heap > 0) {
        while (o->groups.n + o->owners.n > 0)
            run_trial(o);
        const int c = heap_pop(o);
        if (o->state[c] == READY)
            take(o, c);
    }
    for (int c = 0; c < o->n; c++)
        if (o->state[c] != RAN)
            take(o, c);
}

/* Most bytes of gradients at once between their groups and the update's. */
static int64_t most_waiting(struct ap_arena *arena, const struct order *o)
{
    const struct ap_graph *g = o->g;
    int *place = AP_NEW_N(arena, o->n + 1, int);
    int64_t *more = AP_NEW_N(arena, o->n + 1, int64_t), held = 0, most = 0;

    for (int i = 0; i < o->n; i++)
        place[o->row[i]] = i;
    for (int v = 0; v < g->n_nodes; v++) {
        int last = -1;
        for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++) {
            const int at = place[o->group_of[g->users[u]]];
            if (g->nodes[g->users[u]].phase == AP_UPDATE && at > last)
                last = at;
        }
        if (g->nodes[v].phase != AP_BACKWARD || last < 0)
            continue;
        more[place[o->group_of[v]]] += o->store[v].bytes;
        more[last] -= o->store[v].bytes;
    }
    for (int i = 0; i < o->n; i++) {
        held += more[i];
        most = held > most ? held : most;
    }
    return most;
}

static void set_places(const struct order *o, int *place)
{
    for (int i = 0; i < o->n; i++)
        place[o->row[i]] = i;
}

void ap_order_groups(struct ap_arena *arena, const struct ap_graph *g, const int *group,
                     int n, int *place)
{
    struct ap_mark mark = ap_arena_mark(arena);
    struct order o = {.g = g,
                      .n = n,
                      .group_of = group,
                      .n_waiting = AP_NEW_N(arena, n, int),
                      .state = AP_NEW_N(arena, n, uint8_t),
                      .heap = AP_NEW_N(arena, n, int),
                      .groups = new_ring(arena, n),
                      .owners = new_ring(arena, g->n_nodes),
                      .trial = AP_NEW_N(arena, MOST_READERS + LOOK_AHEAD, int),
                      .row = AP_NEW_N(arena, n, int)};

    o.members = list_members(arena, &o);
    find_stores(arena, &o);
    o.inputs = list_reads(arena, &o, false);
    o.users = turn_lists(arena, &o.inputs, n, n);
    o.reads = list_reads(arena, &o, true);
    o.readers = turn_lists(arena, &o.reads, n, g->n_nodes);
    run_all(&o, false);
    set_places(&o, place);
    const int64_t most = o.most;
    const int64_t waits = most_waiting(arena, &o);
    find_small(arena, &o);
    run_all(&o, true);
    if (o.most <= most || most_waiting(arena, &o) < waits)
        set_places(&o, place);
    ap_arena_rewind(arena, mark);
}
