/*
 * Problem: the seconds of a step whose collectives run concurrently with its operators.
 * Idea: two streams that each do one thing at a time. Compute runs the groups in the
 * order of the program, each when its operands have arrived. A conversion may start when
 * its tensor is there and the network is free; of several, the one that the program needs
 * first. Updates that need a communicated value come last. The device therefore waits for
 * a sum in the forward chain, a weight's gradient is summed during the backward pass, and
 * a weight is gathered before it is needed: that far ahead that all copies that wait for
 * their use take AP_AHEAD_SHARE of the memory, or that only one waits. A weight that is
 * cast before it is gathered is cast then. Microbatches are simulated as the first, one
 * in between, and the last, with all that is before and after; those in between begin
 * when all that the last one started is done. Source: Li et al., "PyTorch Distributed"
 * (VLDB 2020), section 3.2.3; Zhao et al., "PyTorch FSDP" (VLDB 2023), sections 3.3 and
 * 3.4 (prefetching, and its rate limiter).
 */
#include "plan/overlap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "plan/microbatch.h"

/* A conversion that takes time. */
struct move {
    int id;    /* of the list */
    int made;  /* place of the group that makes the tensor, -1: it is there at once */
    int use;   /* place of the first that needs it, n for results */
    int issue; /* 2 place when that group starts, 2 place + 1 when it ends, -1 at once */
    bool ahead;
    double each_sec, once_sec; /* for a microbatch; once per step */
    /* in the part that is simulated */
    double sec, ready, done; /* done < 0: not yet */
};

struct sim {
    const struct ap_plan *plan;
    const struct ap_conversions *conv;
    const uint8_t *when;
    int64_t microbatches;
    int *order, *place;    /* groups as they run; a group's place */
    const double *sec;     /* [group] */
    int n_moves, *move_of; /* [conversion], -1: it takes no time */
    struct move *move;     /* by issue, then use */
    struct ap_heap ready;
    double comm_free;
    struct ap_overlap *out;
    double offset; /* of the part in the step */
    bool stretches;
};

bool ap_cost_overlaps(const struct ap_cost *cost)
{
    return cost->variant == AP_COST_DEFAULT && cost->cluster.overlap;
}

/* ---- what may run ahead ---- */

bool *ap_made_of_weights(struct ap_arena *arena, const struct ap_nests *nests)
{
    const struct ap_node *nodes = nests->graph->nodes;
    bool *made = AP_NEW_N(arena, nests->n + 1, bool);

    for (int i = 0; i < nests->n; i++) { /* operands come first */
        const struct ap_nest *nest = &nests->nest[i];
        const struct ap_node *first = &nodes[nest->members[0]];
        made[i] = first->op != AP_OP_PARAMETER || first->role == AP_ROLE_WEIGHT ||
                  first->role == AP_ROLE_STATE;
        for (int k = 0; k < nest->n_ins; k++)
            made[i] &= made[nodes[nest->ins[k].node].group];
    }
    return made;
}

static int by_use(const void *a, const void *b)
{
    const struct move *x = a, *y = b;
    if (x->use != y->use)
        return x->use < y->use ? -1 : 1;
    return x->id - y->id;
}

static int by_issue(const void *a, const void *b)
{
    const struct move *x = a, *y = b;
    return x->issue != y->issue ? (x->issue < y->issue ? -1 : 1) : by_use(a, b);
}

static int64_t bytes_of(const struct sim *s, const struct move *m)
{
    const struct ap_conversion *c = &s->conv->conv[m->id];
    return ap_layout_local_bytes(&s->plan->mesh, &s->plan->graph->nodes[c->node].shape,
                                 &c->to);
}

/* Lets what makes the group's values run before the place, if it runs after. */
static void hoist(const struct sim *s, const bool *made, int group, int place, int *key)
{
    const struct ap_nest *nest = &s->plan->nests->nest[group];

    if (!made[group] || key[group] <= 2 * place)
        return;
    key[group] = 2 * place;
    for (int k = 0; k < nest->n_ins; k++)
        hoist(s, made, s->plan->graph->nodes[nest->ins[k].node].group, place, key);
}

/*
 * Gathers in the order of their uses: each is issued when the use begins after which all
 * that wait, this one included, fit. Until here issue is -1 or a place, and key[group] is
 * 2 place + 1, or 2 place before which it runs.
 */
static void run_ahead(struct sim *s, const bool *made, int64_t most, int *key)
{
    int first = 0, begins = -1;
    int64_t held = 0;

    qsort(s->move, (size_t)s->n_moves, sizeof *s->move, by_use);
    for (int i = 0; i < s->n_moves; i++) {
        struct move *m = &s->move[i];
        if (!m->ahead)
            continue;
        held += bytes_of(s, m);
        for (; held > most && first < i; first++) {
            if (!s->move[first].ahead)
                continue;
            held -= bytes_of(s, &s->move[first]);
            begins = s->move[first].use;
        }
        m->issue = begins;
        if (held > s->out->ahead_bytes)
            s->out->ahead_bytes = held;
        int group = s->plan->graph->nodes[s->conv->conv[m->id].node].group;
        if (!s->when && s->sec[group] > 0)
            hoist(s, made, group, m->issue < 0 ? 0 : m->issue, key);
    }
}

/* ---- the lists of both streams ---- */

struct place_key {
    int key, place, group;
};

static int by_key(const void *a, const void *b)
{
    const struct place_key *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->place - y->place;
}

static void reorder(struct ap_arena *arena, struct sim *s, const int *key)
{
    const int n = s->plan->nests->n;
    struct place_key *list = AP_NEW_N(arena, n + 1, struct place_key);

    for (int i = 0; i < n; i++)
        list[i] = (struct place_key){key[s->order[i]], i, s->order[i]};
    qsort(list, (size_t)n, sizeof *list, by_key);
    for (int i = 0; i < n; i++)
        s->order[i] = list[i].group;
}

static void set_places(struct sim *s)
{
    for (int i = 0; i < s->plan->nests->n; i++)
        s->place[s->order[i]] = i;
}

/*
 * Groups of the update that need what was sent come after all others, in the order in
 * which that was made, as ap-rewrite has them with collectives in flight
 * (program/program_pack.c), so that the rest of the backward pass hides it.
 */
static void defer_update(struct ap_arena *arena, struct sim *s, const bool *made)
{
    const struct ap_nests *nests = s->plan->nests;
    const struct ap_graph *g = s->plan->graph;
    int *key = AP_NEW_N(arena, nests->n + 1, int);
    int *needs = AP_NEW_N(arena, nests->n + 1, int); /* place; 0: nothing that was sent */

    for (int p = 0; p < nests->n; p++) {
        const int group = s->order[p];
        const struct ap_nest *nest = &nests->nest[group];
        key[group] = p;
        if (ap_plan_group_phase(g, nest) != AP_UPDATE)
            continue;
        for (int k = 0; k < nest->n_ins; k++) {
            int from = g->nodes[nest->ins[k].node].group;
            int c = s->conv->in_conv[s->conv->in_start[group] + k];
            int behind =
                c >= 0 && s->conv->conv[c].path.sec > 0 && !made[from] && needs[from] == 0
                    ? s->place[from]
                    : needs[from];
            needs[group] = behind > needs[group] ? behind : needs[group];
        }
        if (needs[group] > 0)
            key[group] = nests->n + needs[group];
    }
    reorder(arena, s, key);
    set_places(s);
}

static void list_moves(struct ap_arena *arena, struct sim *s, const bool *made)
{
    const int n = s->plan->nests->n;
    const double share = 1 / (double)s->microbatches;

    s->move_of = AP_NEW_N(arena, s->conv->n + 1, int);
    s->move = AP_NEW_N(arena, s->conv->n + 1, struct move);
    for (int i = 0; i < s->conv->n; i++) {
        const struct ap_conversion *c = &s->conv->conv[i];
        if (c->path.sec <= 0)
            continue;
        int group = s->plan->graph->nodes[c->node].group;
        struct move m = {.id = i,
                         .made = s->sec[group] > 0 || !made[group] ? s->place[group] : -1,
                         .use = c->first_group < n ? s->place[c->first_group] : n,
                         .ahead = made[group]};
        for (int k = 0; k < c->path.n_steps; k++) {
            const struct ap_step *step = &c->path.steps[k];
            if (step->times > 1)
                m.each_sec += step->sec * share;
            else
                m.once_sec += step->sec;
        }
        s->move[s->n_moves++] = m;
    }
}

/* Places of groups have changed: those of moves, and when each is issued. */
static void issue_moves(struct sim *s, const int *old_order)
{
    for (int i = 0; i < s->n_moves; i++) {
        struct move *m = &s->move[i];
        m->use = m->use < s->plan->nests->n ? s->place[old_order[m->use]] : m->use;
        m->made = m->made < 0 ? -1 : s->place[old_order[m->made]];
        int start = !m->ahead || m->issue < 0 ? -1 : s->place[old_order[m->issue]];
        m->issue = start < 0 ? -1 : 2 * start;
        if (m->issue >= 2 * m->use) /* its use is the one that it would wait for */
            m->issue = 2 * m->use - 1;
        if (m->made >= 0 && 2 * m->made + 1 > m->issue)
            m->issue = 2 * m->made + 1;
    }
    qsort(s->move, (size_t)s->n_moves, sizeof *s->move, by_issue);
    memset(s->move_of, -1, (size_t)s->conv->n * sizeof *s->move_of);
    for (int i = 0; i < s->n_moves; i++)
        s->move_of[s->move[i].id] = i;
}

/* ---- the simulation ---- */

static bool needed_first(const void *a, const void *b)
{
    return by_use(*(struct move *const *)a, *(struct move *const *)b) < 0;
}

static void put_stretch(struct sim *s, bool comm, int id, double start, double sec)
{
    if (s->stretches && sec > 0)
        s->out->stretch[s->out->n++] =
            (struct ap_stretch){comm, id, 1, s->offset + start, sec};
}

/* Starts what the network can start before the time; or, if a move is given, until it is
 * done. */
static void communicate(struct sim *s, double until, const struct move *wanted)
{
    const void *top;

    while ((!wanted || wanted->done < 0) && (top = ap_heap_top(&s->ready))) {
        struct move *m = *(struct move *const *)top;
        double start = fmax(s->comm_free, m->ready);
        if (start >= until)
            return;
        ap_heap_pop(&s->ready, &m);
        put_stretch(s, true, m->id, start, m->sec);
        s->comm_free = m->done = start + m->sec;
    }
}

/* A part of the order, [first, end), from rest until all is done; its moves have sec. */
static double simulate(struct sim *s, int first, int end, double per_group)
{
    double now = 0;
    int next = 0;

    s->comm_free = 0;
    for (int i = 0; i < s->n_moves; i++)
        s->move[i].done = -1;
    for (int p = first; p <= end; p++) {
        const int group = p < end ? s->order[p] : -1;
        const struct ap_nest *nest = group < 0 ? NULL : &s->plan->nests->nest[group];
        /* this group's start: all that is issued by then, before the part, too */
        for (int half = 0; half < 2; half++) {
            for (; next < s->n_moves && s->move[next].issue <= 2 * p + half - 1; next++) {
                struct move *m = &s->move[next];
                m->ready = now;
                if (m->sec > 0)
                    ap_heap_push(&s->ready, &m);
            }
            for (int k = 0; half == 0 && nest && k < nest->n_ins; k++) {
                int c = s->conv->in_conv[s->conv->in_start[group] + k];
                struct move *m =
                    c < 0 || s->move_of[c] < 0 ? NULL : &s->move[s->move_of[c]];
                if (!m || m->sec <= 0)
                    continue;
                communicate(s, INFINITY, m);
                now = fmax(now, m->done);
            }
            communicate(s, now, NULL);
        }
        if (!nest)
            break;
        double sec =
            s->sec[group] * (s->when && s->when[group] == AP_EACH ? per_group : 1);
        put_stretch(s, false, group, now, sec);
        now += sec;
        communicate(s, now, NULL);
    }
    communicate(s, INFINITY, NULL);
    return fmax(now, s->comm_free);
}

/* Which of a step's three parts pays for what moves once. */
enum part { FIRST, BETWEEN, LAST, WHOLE };

static void set_part(struct sim *s, enum part part, int each_first, int each_end)
{
    for (int i = 0; i < s->n_moves; i++) {
        struct move *m = &s->move[i];
        bool late = m->use >= each_end || (m->made >= each_first && m->made < each_end);
        m->sec = m->each_sec;
        if (part == WHOLE || (part == FIRST && !late) || (part == LAST && late))
            m->sec += m->once_sec;
    }
}

/* One stretch of each stream stands for the microbatches in between. */
static void put_between(struct sim *s, int first, int end, double times)
{
    double sec[2] = {0, 0};

    for (int p = first; p < end; p++)
        sec[0] += s->sec[s->order[p]] / (double)s->microbatches;
    for (int i = 0; i < s->n_moves; i++)
        sec[1] += s->move[i].sec;
    for (int comm = 0; comm < 2; comm++) {
        const int n = s->out->n;
        put_stretch(s, comm, -1, 0, sec[comm] * times);
        if (s->out->n > n)
            s->out->stretch[n].times = (int)times;
    }
}

static double simulate_microbatches(struct sim *s)
{
    const int n = s->plan->nests->n;
    const double share = 1 / (double)s->microbatches;
    int first = 0, end;

    while (first < n && s->when[s->order[first]] == AP_BEFORE)
        first++;
    for (end = first; end < n && s->when[s->order[end]] == AP_EACH;)
        end++;
    set_part(s, FIRST, first, end);
    s->offset = simulate(s, 0, end, share);
    if (s->microbatches > 2) {
        const double times = (double)s->microbatches - 2;
        const int from = s->out->n;
        set_part(s, BETWEEN, first, end);
        double sec = simulate(s, first, end, share);
        s->out->n = from;
        put_between(s, first, end, times);
        s->offset += sec * times;
    }
    set_part(s, LAST, first, end);
    return s->offset + simulate(s, first, n, share);
}

static int by_start(const void *a, const void *b)
{
    const struct ap_stretch *x = a, *y = b;
    if (x->start_sec != y->start_sec)
        return x->start_sec < y->start_sec ? -1 : 1;
    return x->comm != y->comm ? (x->comm ? 1 : -1) : x->id - y->id;
}

static const double *group_seconds(struct ap_arena *arena, const struct ap_plan *plan,
                                   const struct ap_cost *cost)
{
    double *sec = AP_NEW_N(arena, plan->nests->n + 1, double);

    for (int i = 0; i < plan->nests->n; i++)
        sec[i] =
            ap_plan_group_sec(&plan->nests->nest[i], plan->graph, cost, &plan->choice[i]);
    return sec;
}

void ap_plan_overlap(struct ap_arena *arena, const struct ap_plan *plan,
                     const struct ap_cost *cost, const struct ap_conversions *conv,
                     const double *group_sec, bool stretches, struct ap_overlap *out)
{
    const int n = plan->nests->n;
    struct ap_arena scratch = {0};
    const bool *made = ap_made_of_weights(&scratch, plan->nests);
    struct sim s = {.plan = plan,
                    .conv = conv,
                    .when = ap_plan_when(&scratch, plan),
                    .microbatches = ap_mesh_microbatches(&plan->mesh),
                    .place = AP_NEW_N(&scratch, n + 1, int),
                    .sec = group_sec ? group_sec : group_seconds(&scratch, plan, cost),
                    .ready = {.size = sizeof(struct move *), .before = needed_first},
                    .out = out,
                    .stretches = stretches};
    double compute = 0;

    *out = (struct ap_overlap){0};
    if (stretches) /* of three parts */
        out->stretch = AP_NEW_N(arena, 3 * (n + conv->n) + 1, struct ap_stretch);
    s.order = ap_plan_order(&scratch, plan, s.when);
    set_places(&s);
    defer_update(&scratch, &s, made);
    list_moves(&scratch, &s, made);
    int *key = AP_NEW_N(&scratch, n + 1, int);
    for (int i = 0; i < n; i++)
        key[i] = 2 * s.place[i] + 1;
    run_ahead(&s, made, cost->cluster.memory_bytes / AP_AHEAD_SHARE, key);
    const int *old = ap_arena_dup(&scratch, s.order, (size_t)n * sizeof *s.order);
    reorder(&scratch, &s, key);
    set_places(&s);
    issue_moves(&s, old);
    if (s.when && s.microbatches > 1) {
        out->step_sec = simulate_microbatches(&s);
    } else {
        set_part(&s, WHOLE, n, n);
        out->step_sec = simulate(&s, 0, n, 1);
    }
    for (int i = 0; i < n; i++)
        compute += s.sec[i];
    out->step_sec = fmax(out->step_sec, compute); /* rounded otherwise */
    out->exposed_sec = out->step_sec - compute;
    if (stretches)
        qsort(out->stretch, (size_t)out->n, sizeof *out->stretch, by_start);
    ap_heap_free(&s.ready);
    ap_arena_free(&scratch);
}
