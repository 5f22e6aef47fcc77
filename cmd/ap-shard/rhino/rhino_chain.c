/*
 * Problem: a deep model has too many cones for one integer program. Idea: all paths of
 * the forward pass go through the critical nodes, so the graph is a chain of segments
 * between them. A segment is solved alone for every strategy of its head and of its tail,
 * and a dynamic program along the chain keeps the cheapest prefix for each strategy of
 * the tail. Edges from earlier segments (skip connections, the parameter that a result
 * becomes) are priced against the decisions of that prefix; decisions are kept for the
 * last WINDOW segments, and earlier segments are settled as the cheapest prefix has them.
 * Above level 2 the whole graph is one segment.
 *
 * Cost: per segment, strategies of head times tail solutions; linear in segments. After
 * Rhino (Zhang et al., "Auto-Parallelizing Large Models with Rhino: A Systematic Approach
 * on Production AI Platform"), 4.3.1, and its open program TePDist.
 */
#include "rhino/rhino.h"

#include <math.h>
#include <string.h>

#define WINDOW 16 /* segments; scripts/bench/rhino shows bytes and seconds */

struct state {
    double bytes; /* of all segments up to here; INFINITY: no way leads here */
    int head;     /* state of the segment before */
    int *choice;  /* [position in the segment] */
};

struct chain {
    const struct rhino_axis *ax;
    int *n_states; /* [segment] */
    struct state **state;
    int n_settled; /* segments whose groups stand in choice for good */
    int *choice;   /* [group] */
    double **outside;
    struct rhino_counts *counts;
    int n_here; /* cones of the segment, as built last */
};

/* Puts the choices on the way to a state into choice, from the first unsettled segment.
 */
static void walk_back(struct chain *c, int segment, int state)
{
    const struct rhino_view *view = c->ax->view;
    for (int i = segment; i >= c->n_settled; i--) {
        const int *group = view->scoped + view->scope_start[i];
        int n = view->scope_start[i + 1] - view->scope_start[i];
        for (int v = 0; v < n; v++)
            c->choice[group[v]] = c->state[i][state].choice[v];
        state = c->state[i][state].head;
    }
}

/* What the groups of a segment pay to earlier segments, as choice has those. */
static void price_outside(struct chain *c, int segment)
{
    const struct rhino_axis *ax = c->ax;
    const struct rhino_view *view = ax->view;

    for (int k = view->scope_start[segment]; k < view->scope_start[segment + 1]; k++) {
        int i = view->scoped[k];
        c->outside[i] = NULL;
        for (int j = ax->edge_start[i]; j < ax->edge_start[i + 1]; j++) {
            const struct rhino_edge *edge = &ax->edge[ax->edge_of[j]];
            int there = edge->a == i ? edge->b : edge->a, n_b = ax->n[edge->b];
            if (view->constant[there] || view->scope_of[there] >= segment)
                continue;
            if (!c->outside[i])
                c->outside[i] = AP_NEW_N(ax->arena, ax->n[i], double);
            for (int s = 0; s < ax->n[i]; s++)
                c->outside[i][s] += edge->a == i ? edge->cost[s * n_b + c->choice[there]]
                                                 : edge->cost[c->choice[there] * n_b + s];
        }
    }
}

/* Extends the ways from one state of the segment before. */
static void extend(struct chain *c, int segment, int head, double so_far, int *scratch)
{
    const struct rhino_axis *ax = c->ax;
    const struct rhino_view *view = ax->view;
    struct ap_mark mark = ap_arena_mark(ax->arena);
    struct rhino_cones cones;
    int n = view->scope_start[segment + 1] - view->scope_start[segment];

    if (segment > 0)
        walk_back(c, segment - 1, head);
    price_outside(c, segment);
    rhino_cones_build(ax, segment, (const double *const *)c->outside, &cones);
    c->n_here = cones.n;
    for (int t = 0; t < c->n_states[segment]; t++) {
        struct state *state = &c->state[segment][t];
        struct rhino_least least;
        c->counts->n_solved++;
        if (rhino_cones_solve(ax, &cones, view->tail[segment], t, scratch, &least))
            continue;
        c->counts->n_cut_short += least.cut_short;
        if (so_far + least.bytes >= state->bytes)
            continue;
        state->bytes = so_far + least.bytes;
        state->head = head;
        memcpy(state->choice, scratch, (size_t)n * sizeof *scratch);
    }
    ap_arena_rewind(ax->arena, mark);
}

static int cheapest(const struct chain *c, int segment)
{
    int best = 0;
    for (int t = 1; t < c->n_states[segment]; t++)
        if (c->state[segment][t].bytes < c->state[segment][best].bytes)
            best = t;
    return best;
}

/* The state through which a way goes at the first unsettled segment. */
static int origin(const struct chain *c, int segment, int state)
{
    for (int i = segment; i > c->n_settled; i--)
        state = c->state[i][state].head;
    return state;
}

/* Settles one segment as the cheapest way has it; other ways end. */
static void settle(struct chain *c, int segment)
{
    int best = cheapest(c, segment), kept = origin(c, segment, best);

    walk_back(c, segment, best);
    for (int t = 0; t < c->n_states[segment]; t++)
        if (isfinite(c->state[segment][t].bytes) && origin(c, segment, t) != kept)
            c->state[segment][t].bytes = INFINITY;
    c->n_settled++;
}

static int run_segment(struct chain *c, int i, struct ap_err *err)
{
    const struct rhino_axis *ax = c->ax;
    const struct rhino_view *view = ax->view;
    int n = view->scope_start[i + 1] - view->scope_start[i];
    int *scratch = AP_NEW_N(ax->arena, n, int);

    c->n_states[i] = view->tail[i] < 0 ? 1 : ax->n[view->tail[i]];
    c->state[i] = AP_NEW_N(ax->arena, c->n_states[i], struct state);
    for (int t = 0; t < c->n_states[i]; t++)
        c->state[i][t] = (struct state){INFINITY, 0, AP_NEW_N(ax->arena, n, int)};
    for (int h = 0; h < (i > 0 ? c->n_states[i - 1] : 1); h++) {
        double so_far = i > 0 ? c->state[i - 1][h].bytes : 0;
        if (isfinite(so_far))
            extend(c, i, h, so_far, scratch);
    }
    c->counts->n_cones += c->n_here;
    if (!isfinite(c->state[i][cheapest(c, i)].bytes))
        return ap_err_set(err, "segment %d: no choice was found within the work limit",
                          i);
    if (i - c->n_settled >= WINDOW)
        settle(c, i);
    return 0;
}

/* Constants are made as those who read them want them. */
static void place_constants(struct chain *c)
{
    const struct rhino_axis *ax = c->ax;

    for (int i = ax->view->n_groups - 1; i >= 0; i--) {
        double least = INFINITY;
        for (int s = 0; ax->view->constant[i] && s < ax->n[i]; s++) {
            double bytes = 0;
            for (int k = ax->edge_start[i]; k < ax->edge_start[i + 1]; k++) {
                const struct rhino_edge *edge = &ax->edge[ax->edge_of[k]];
                if (edge->a == i)
                    bytes += edge->cost[s * ax->n[edge->b] + c->choice[edge->b]];
            }
            if (bytes >= least)
                continue;
            least = bytes;
            c->choice[i] = s;
        }
    }
}

/* Each segment once more, as it was decided. */
static void explain_chain(struct chain *c, struct ap_buf *out)
{
    const struct rhino_axis *ax = c->ax;
    const struct rhino_view *view = ax->view;

    rhino_explain_axis(ax, c->choice, out);
    for (int i = 0; i < view->n_scopes; i++) {
        struct ap_mark mark = ap_arena_mark(ax->arena);
        struct rhino_cones cones;
        int n = view->scope_start[i + 1] - view->scope_start[i], tail = view->tail[i];
        int *again = AP_NEW_N(ax->arena, n, int);
        struct rhino_least least;
        price_outside(c, i);
        rhino_cones_build(ax, i, (const double *const *)c->outside, &cones);
        if (rhino_cones_solve(ax, &cones, tail, tail < 0 ? 0 : c->choice[tail], again,
                              &least) == 0)
            rhino_explain_scope(ax, &cones, c->choice, least.bytes, out);
        ap_arena_rewind(ax->arena, mark);
    }
}

int rhino_chain(const struct rhino_axis *ax, int *choice, struct rhino_counts *counts,
                struct ap_buf *explain, struct ap_err *err)
{
    int n = ax->view->n_scopes;
    struct chain c = {.ax = ax,
                      .n_states = AP_NEW_N(ax->arena, n, int),
                      .state = AP_NEW_N(ax->arena, n, struct state *),
                      .choice = choice,
                      .counts = counts,
                      .outside = AP_NEW_N(ax->arena, ax->view->n_groups, double *)};

    for (int i = 0; i < n; i++)
        if (run_segment(&c, i, err))
            return -1;
    walk_back(&c, n - 1, cheapest(&c, n - 1));
    place_constants(&c);
    if (explain)
        explain_chain(&c, explain);
    return 0;
}
