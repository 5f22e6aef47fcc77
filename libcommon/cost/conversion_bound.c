/*
 * Problem: a lower bound on the cost from every layout of a tensor to a target, for the
 * search for the cheapest conversion (convert.c).
 *
 * Idea: forget where in its dimension an axis splits. A layout is then one of four states
 * per axis (whole, as in the target, split otherwise, sums), at most 4^axes in all, and
 * the steps between layouts are steps between states with the same price, for bytes
 * follow from which axes split. Steps that only the order within a dimension forbids are
 * allowed here. Distances to the target's state, by a search from there over steps in
 * reverse, thus bound what is left (a pattern database: Culberson and Schaeffer, "Pattern
 * databases", 1998). They depend on the tensor's bytes and on the kinds of placements
 * only, so that thousands of conversions share one table: those of a GPT of two layers on
 * six axes are 96 000, and have 4 300 tables.
 *
 * The bound is exact in seconds where sizes divide evenly; padded blocks have more bytes
 * than are counted here. With measured times that fall with the bytes it may thus be too
 * high, and the conversion found a little more expensive than the cheapest.
 *
 * Cost: per table 4^axes states of some thirty steps each, about two milliseconds for
 * six axes.
 */
#include "cost/conversion_bound.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/heap.h"
#include "base/index_map.h"

/* Of the price of summing the whole tensor over all devices: what a step costs beside
 * its seconds, so that of paths of equal seconds the shortest is the cheapest. */
#define STEP_SHARE 1e-11

enum {
    N_SETS = 1 << AP_MAX_AXES,
    N_WORDS = 2,
    FIRST_OP = AP_OP_ALL_REDUCE,
    N_OPS = AP_OP_COLLECTIVE_PERMUTE - FIRST_OP + 1
};

struct entry {
    uint64_t words[N_WORDS];
    struct ap_bound bound;
};

struct ap_bounds {
    struct ap_arena arena; /* of tables */
    int n, cap;
    struct entry *entry;
    struct ap_index index;
};

struct ap_bounds *ap_bounds_new(void)
{
    struct ap_bounds *b = ap_xrealloc(NULL, sizeof *b);
    *b = (struct ap_bounds){.n = 0};
    return b;
}

void ap_bounds_free(struct ap_bounds *b)
{
    if (!b)
        return;
    free(b->entry);
    ap_index_free(&b->index);
    ap_arena_free(&b->arena);
    free(b);
}

/* The search from the target. */
struct table {
    const struct ap_cost *cost;
    const struct ap_mesh *mesh;
    const struct ap_bound_task *task;
    struct ap_bound *bound;
    double *left; /* [code] */
    bool *done;
    struct ap_heap queue;
    int64_t local[N_SETS]; /* bytes of a device, by set of axes that split */
    double price[N_OPS][N_SETS][N_SETS]; /* [op][its axes][axes that split]: seconds,
                                            NAN: not known yet */
    /* sets of states that axis a can have had before it was swapped with b, whose state
       is now this one */
    unsigned swapped[AP_MAX_AXES][AP_MAX_AXES][AP_N_AXIS_STATES];
    int v; /* code of the state at hand */
    enum ap_axis_state state[AP_MAX_AXES];
    unsigned splits; /* axes that split in it */
    double left_v;
    bool each; /* it is one microbatch's */
};

struct reached {
    double left;
    int code;
};

static bool before(const void *x, const void *y)
{
    const struct reached *a = x, *b = y;
    return a->left != b->left ? a->left < b->left : a->code < b->code;
}

static bool splits(const struct table *t, int a, enum ap_axis_state state)
{
    return state == AP_STATE_SPLIT ||
           (state == AP_STATE_DONE && t->task->goal[a] == AP_SPLIT);
}

static bool possible(const struct table *t, int a, enum ap_axis_state state)
{
    return t->bound->weight[a][state] >= 0;
}

static bool is_microbatch_axis(const struct table *t, int a)
{
    return t->mesh->microbatch >> a & 1;
}

/* Seconds of a step on tensors that these axes split; an all-to-all's is stated in bytes
 * of the tensor without its axis. */
static double price(struct table *t, enum ap_op op, unsigned axes, unsigned splits)
{
    if (ap_ops[op].class != AP_CLASS_COLLECTIVE)
        return 0;
    double *known = &t->price[op - FIRST_OP][axes][splits];
    if (isnan(*known)) {
        int64_t n = op == AP_OP_ALL_TO_ALL ? ap_mesh_group(t->mesh, axes) : 1;
        *known = ap_cost_collective(t->cost, op, axes, ap_mul64(t->local[splits], n));
    }
    return *known;
}

/* A step from the state of this code to the state at hand. */
static void step(struct table *t, int code, bool each, enum ap_op op, unsigned axes,
                 unsigned splits)
{
    double times = each || t->each ? (double)ap_mesh_microbatches(t->mesh) : 1;
    double left =
        t->left_v +
        (t->task->fewest ? 1 : times * price(t, op, axes, splits) + t->bound->step);
    if (left < t->left[code]) {
        t->left[code] = left;
        ap_heap_push(&t->queue, &(struct reached){left, code});
    }
}

/* Likewise, where only axis a was in another state. */
static void step_on(struct table *t, int a, enum ap_axis_state was, enum ap_op op,
                    unsigned splits)
{
    bool each = is_microbatch_axis(t, a) ? was != AP_STATE_WHOLE : t->each;
    if (possible(t, a, was))
        step(t, t->v + t->bound->weight[a][was] - t->bound->weight[a][t->state[a]], each,
             op, 1u << a, splits);
}

/* ---- steps into the state at hand ---- */

static void into_whole(struct table *t, int a)
{
    if (is_microbatch_axis(t, a) && t->task->goal[a] != AP_REPLICATED)
        return;
    step_on(t, a, AP_STATE_SPLIT, AP_OP_ALL_GATHER, t->splits);
    if (t->task->goal[a] == AP_SPLIT)
        step_on(t, a, AP_STATE_DONE, AP_OP_ALL_GATHER, t->splits);
}

static void into_split(struct table *t, int a)
{
    const bool goal = t->state[a] == AP_STATE_DONE;
    const bool placed = goal || (t->task->split >> a & 1);

    if (placed)
        step_on(t, a, AP_STATE_WHOLE, AP_OP_AP_SLICE, 0);
    if (is_microbatch_axis(t, a))
        return;
    step_on(t, a, AP_STATE_SUMS, AP_OP_REDUCE_SCATTER, t->splits & ~(1u << a));
    if (placed && (goal || t->task->goal[a] == AP_SPLIT))
        step_on(t, a, goal ? AP_STATE_SPLIT : AP_STATE_DONE, AP_OP_ALL_TO_ALL, t->splits);
}

/* Sums over every set of axes that are whole. */
static void into_sums_made(struct table *t)
{
    unsigned all = 0;
    for (int a = 0; a < t->mesh->n_axes; a++)
        if (t->state[a] == AP_STATE_WHOLE && possible(t, a, AP_STATE_SUMS))
            all |= 1u << a;
    for (unsigned axes = all; axes; axes = (axes - 1) & all) {
        int code = t->v;
        if ((axes & t->mesh->microbatch) &&
            (axes != t->mesh->microbatch || t->task->goal[0] != AP_REPLICATED))
            continue;
        for (int a = 0; a < t->mesh->n_axes; a++)
            if (axes >> a & 1)
                code += t->bound->weight[a][AP_STATE_SUMS] -
                        t->bound->weight[a][AP_STATE_WHOLE];
        step(t, code, t->each || (axes & t->mesh->microbatch), AP_OP_ALL_REDUCE, axes,
             t->splits);
    }
}

/* Whether axis a, in state `was`, may hold what lies on axis b in state `now` after the
 * two were swapped. */
static bool could_hold(const struct table *t, int a, enum ap_axis_state was, int b,
                       enum ap_axis_state now)
{
    enum ap_placement_kind kind = now == AP_STATE_WHOLE  ? AP_REPLICATED
                                  : now == AP_STATE_SUMS ? AP_PARTIAL
                                  : now == AP_STATE_SPLIT
                                      ? AP_SPLIT
                                      : (enum ap_placement_kind)t->task->goal[b];
    if (was != AP_STATE_DONE)
        return was == (kind == AP_REPLICATED ? AP_STATE_WHOLE
                       : kind == AP_PARTIAL  ? AP_STATE_SUMS
                                             : AP_STATE_SPLIT);
    /* the target has one placement on one axis, if all divides */
    return t->task->goal[a] == kind &&
           (kind != AP_SPLIT || t->task->loose || now != AP_STATE_DONE);
}

static bool at_goal(const struct table *t, int a, enum ap_axis_state state)
{
    return state == AP_STATE_DONE ||
           (state == AP_STATE_WHOLE && t->task->goal[a] == AP_REPLICATED);
}

static void list_swaps(struct table *t)
{
    for (int a = 0; a < t->mesh->n_axes; a++)
        for (int b = 0; b < t->mesh->n_axes; b++)
            for (int now = 0; now < AP_N_AXIS_STATES; now++) {
                t->swapped[a][b][now] = 0;
                for (int was = 0; was < AP_N_AXIS_STATES; was++)
                    if (possible(t, a, (enum ap_axis_state)was) &&
                        could_hold(t, a, (enum ap_axis_state)was, b,
                                   (enum ap_axis_state)now))
                        t->swapped[a][b][now] |= 1u << was;
            }
}

static void into_swapped(struct table *t, int a, int b)
{
    const enum ap_axis_state x = t->state[a], y = t->state[b];
    const int32_t *weight_a = t->bound->weight[a], *weight_b = t->bound->weight[b];

    if (t->mesh->size[a] != t->mesh->size[b] || t->mesh->size[a] == 1 ||
        is_microbatch_axis(t, a) || (x == AP_STATE_WHOLE && y == AP_STATE_WHOLE) ||
        (!at_goal(t, a, x) && !at_goal(t, b, y)))
        return;
    for (unsigned p = t->swapped[a][b][y]; p; p &= p - 1)
        for (unsigned q = t->swapped[b][a][x]; q; q &= q - 1)
            step(t,
                 t->v + weight_a[__builtin_ctz(p)] - weight_a[x] +
                     weight_b[__builtin_ctz(q)] - weight_b[y],
                 t->each, AP_OP_COLLECTIVE_PERMUTE, 1u << a | 1u << b, t->splits);
}

static void expand(struct table *t)
{
    for (int a = 0; a < t->mesh->n_axes; a++) {
        if (t->state[a] == AP_STATE_WHOLE)
            into_whole(t, a);
        else if (splits(t, a, t->state[a]))
            into_split(t, a);
        else if (t->state[a] == AP_STATE_DONE)
            step_on(t, a, AP_STATE_WHOLE, AP_OP_AP_PARTIAL, 0);
    }
    into_sums_made(t);
    for (int a = 0; a < t->mesh->n_axes; a++)
        for (int b = a + 1; b < t->mesh->n_axes; b++)
            into_swapped(t, a, b);
}

/* ---- tables ---- */

static void look_at(struct table *t, int code)
{
    t->v = code;
    t->left_v = t->left[code];
    t->splits = 0;
    for (int a = t->mesh->n_axes - 1, rest = code; a >= 0; a--) {
        const int32_t *weight = t->bound->weight[a];
        int at = 0;
        for (int s = 0; s < AP_N_AXIS_STATES; s++)
            if (weight[s] >= weight[at] && weight[s] <= rest)
                at = s;
        rest -= weight[at];
        t->state[a] = (enum ap_axis_state)at;
        if (splits(t, a, t->state[a]))
            t->splits |= 1u << a;
    }
    t->each = t->mesh->microbatch && t->state[0] != AP_STATE_WHOLE;
}

/* Numbers the states; returns how many there are. */
static int number_states(const struct ap_mesh *mesh, const struct ap_bound_task *task,
                         struct ap_bound *bound)
{
    int n = 1;
    bool any_split = task->split || task->sums;
    for (int a = 0; a < mesh->n_axes; a++)
        any_split |= task->goal[a] == AP_SPLIT;
    for (int a = 0; a < mesh->n_axes; a++) {
        const bool there[AP_N_AXIS_STATES] = {true, task->goal[a] != AP_REPLICATED,
                                              any_split, task->sums};
        int k = 0;
        for (int s = 0; s < AP_N_AXIS_STATES; s++)
            bound->weight[a][s] = there[s] ? n * k++ : -1;
        n *= k;
    }
    return n;
}

static void start(struct table *t, const struct ap_cost *cost,
                  const struct ap_bound_task *task, struct ap_bound *bound)
{
    t->cost = cost;
    t->mesh = &cost->mesh;
    t->task = task;
    t->bound = bound;
    t->queue = (struct ap_heap){.size = sizeof(struct reached), .before = before};
    for (unsigned set = 0; set < 1u << t->mesh->n_axes; set++)
        t->local[set] = ap_ceil_div(task->bytes, ap_mesh_group(t->mesh, set));
    for (int op = 0; op < N_OPS; op++)
        for (int axes = 0; axes < N_SETS; axes++)
            for (int set = 0; set < N_SETS; set++)
                t->price[op][axes][set] = NAN;
    list_swaps(t);
}

static void fill(struct ap_arena *arena, const struct ap_cost *cost,
                 const struct ap_bound_task *task, struct ap_bound *bound)
{
    struct table *t = ap_xrealloc(NULL, sizeof *t);
    const unsigned devices = ((1u << cost->mesh.n_axes) - 1) & ~cost->mesh.microbatch;
    int n = number_states(&cost->mesh, task, bound), goal = 0;
    struct reached r;

    start(t, cost, task, bound);
    bound->step = STEP_SHARE * price(t, AP_OP_ALL_REDUCE, devices, 0);
    bound->left = t->left = AP_NEW_N(arena, n, double);
    t->done = ap_xrealloc(NULL, (size_t)n * sizeof *t->done);
    for (int i = 0; i < n; i++) {
        t->left[i] = INFINITY;
        t->done[i] = false;
    }
    for (int a = 0; a < t->mesh->n_axes; a++)
        if (task->goal[a] != AP_REPLICATED)
            goal += bound->weight[a][AP_STATE_DONE];
    t->left[goal] = 0;
    ap_heap_push(&t->queue, &(struct reached){0, goal});
    while (ap_heap_pop(&t->queue, &r)) {
        if (t->done[r.code])
            continue;
        t->done[r.code] = true;
        look_at(t, r.code);
        expand(t);
    }
    free(t->done);
    ap_heap_free(&t->queue);
    free(t);
}

const struct ap_bound *ap_bounds_get(struct ap_bounds *b, const struct ap_cost *cost,
                                     const struct ap_bound_task *task)
{
    struct ap_index_walk walk;
    uint64_t words[N_WORDS] = {(uint64_t)task->bytes, task->split};

    words[1] = words[1] << 3 | (unsigned)(task->sums << 2 | task->loose << 1) |
               (unsigned)task->fewest;
    for (int a = 0; a < cost->mesh.n_axes; a++)
        words[1] = words[1] << 2 | task->goal[a];
    uint64_t hash = ap_hash_mix(ap_hash_mix(0, words[0]), words[1]);
    for (int i = ap_index_first(&b->index, hash, &walk); i >= 0;
         i = ap_index_next(&b->index, &walk))
        if (memcmp(b->entry[i].words, words, sizeof words) == 0)
            return &b->entry[i].bound;
    ap_index_put(&b->index, hash, b->n);
    AP_ROOM(b->entry, b->n, b->cap);
    struct entry *e = &b->entry[b->n++];
    memcpy(e->words, words, sizeof words);
    fill(&b->arena, cost, task, &e->bound);
    return &e->bound;
}
