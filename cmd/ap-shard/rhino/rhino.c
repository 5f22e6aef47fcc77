/*
 * Problem: split every tensor of a train step over a mesh so that the fewest bytes move.
 *
 * Idea: one mesh axis after the other, each on the shards that the earlier axes left. On
 * an axis, candidates come from heavy operators (rhino_space.c), groups are gathered into
 * cones (rhino_cones.c), and at levels 0 to 2 cones into segments between critical nodes
 * (rhino_chain.c); moves are counted in bytes (rhino_cost.c), computing is free. The
 * search's objective is thus not the price of the plan.
 *
 * A limit on the bytes of parameters per device is met by splitting the k largest
 * parameters on every axis. The first k is estimated from the bytes that splitting saves,
 * parameter by parameter; from there, solving again, the search finds a k whose plan fits
 * while the plan of k - 1 does not.
 *
 * Cost: linear in groups and edges apart from the solver, times log(parameters) trials of
 * k. After Rhino (Zhang et al., "Auto-Parallelizing Large Models with Rhino: A Systematic
 * Approach on Production AI Platform"), 4.3 and 4.4, and its open program TePDist, whose
 * greedy estimate of k this is.
 */
#include "rhino/rhino.h"

#include <stdlib.h>
#include <string.h>

#include "tool/tool.h"

const struct ap_choice shard_levels[] = {
    {"O3", "cones of the whole graph"},
    {"O0", "segments, greedy inside"},
    {"O1", "segments, cones by readers"},
    {"O2", "segments, cones by operands too"},
    {"O4", "every group a cone of the whole graph"},
    {"0", "as O0"},
    {"1", "as O1"},
    {"2", "as O2"},
    {"3", "as O3"},
    {"4", "as O4"},
    {NULL, NULL},
};

const struct ap_choice shard_criticals[] = {
    {"paper", "heavy, without slack if every operator takes unit time"},
    {"code", "heavy, and ordered against all other heavy operators"},
    {NULL, NULL},
};

struct search {
    struct ap_arena *arena;
    const struct shard_task *task;
    struct rhino_view view;
    struct ap_choice_vec *choice; /* of the last run */
    double bytes;
    struct rhino_counts counts;
    int64_t n_methods, n_strategies;
    int n_pieces, n_mismatches, n_runs;
    struct ap_buf *explain;
};

/* ---- axis after axis ---- */

static int run_axis(struct search *s, int axis, const uint8_t *forced, struct ap_err *err)
{
    const struct ap_mesh *mesh = &s->task->cost->mesh;
    int n = s->task->nests->n;
    int *choice = AP_NEW_N(s->arena, n, int);
    struct ap_mark mark = ap_arena_mark(s->arena);
    struct rhino_axis ax = {
        .arena = s->arena,
        .task = s->task,
        .view = &s->view,
        .forced = forced,
        .axis = axis,
        .n_devices = mesh->size[axis],
        .mesh = {.n_axes = 1, .size = {mesh->size[axis]}, .name = {mesh->name[axis]}},
        .earlier = s->choice};

    if (rhino_axis_strategies(&ax, err))
        return -1;
    rhino_axis_costs(&ax);
    if (rhino_chain(&ax, choice, &s->counts, s->explain, err))
        return -1;
    struct rhino_total total = rhino_axis_total(&ax, choice);
    s->bytes += total.bytes;
    s->n_mismatches += total.n_mismatches;
    s->n_strategies += ax.n_strategies;
    s->n_methods += ax.n_methods;
    s->n_pieces += ax.n_pieces;
    for (int i = 0; i < n; i++)
        s->choice[i].axis[axis] = ax.factor[i][choice[i]];
    ap_arena_rewind(s->arena, mark);
    return 0;
}

static int run_all(struct search *s, const uint8_t *forced, struct ap_err *err)
{
    const struct ap_mesh *mesh = &s->task->cost->mesh;

    s->bytes = 0;
    s->counts = (struct rhino_counts){0};
    s->n_methods = s->n_strategies = 0;
    s->n_pieces = s->n_mismatches = 0;
    s->n_runs++;
    if (s->explain)
        s->explain->len = 0; /* the last run counts */
    for (int i = 0; i < s->task->nests->n; i++)
        for (int a = 0; a < AP_MAX_AXES; a++)
            s->choice[i].axis[a] = -1;
    for (int a = 0; a < mesh->n_axes; a++)
        if (mesh->size[a] > 1 && run_axis(s, a, forced, err))
            return -1;
    return 0;
}

/* ---- memory ---- */

struct param {
    int node;
    int64_t bytes, local; /* whole, and per device by the last run */
};

static bool counts(const struct ap_node *node)
{
    return node->role == AP_ROLE_WEIGHT || node->role == AP_ROLE_STATE;
}

static int by_bytes(const void *pa, const void *pb)
{
    const struct param *a = pa, *b = pb;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a->node < b->node ? -1 : a->node > b->node;
}

/* Sets local; returns the sum per device. */
static int64_t measure(const struct search *s, struct param *params, int n)
{
    const struct shard_task *task = s->task;
    int64_t sum = 0;

    for (int i = 0; i < n; i++) {
        int v = params[i].node, group = task->graph->nodes[v].group;
        struct ap_layout l =
            ap_nest_value_layout(&task->nests->nest[group], task->graph,
                                 &task->cost->mesh, &s->choice[group], s->view.member[v]);
        params[i].local =
            ap_layout_local_bytes(&task->cost->mesh, &task->graph->nodes[v].shape, &l);
        sum = ap_add64(sum, params[i].local);
    }
    return sum;
}

/* How many of the largest parameters must be split, one by one? */
static int estimate(const struct search *s, const struct param *params, int n,
                    int64_t bytes, int64_t limit)
{
    int64_t devices = ap_mesh_devices(&s->task->cost->mesh);
    int k = 0;

    for (; k < n && bytes > limit; k++)
        bytes -= params[k].local - ap_ceil_div(params[k].bytes, devices) > 0
                     ? params[k].local - ap_ceil_div(params[k].bytes, devices)
                     : 0;
    return k;
}

static int run_forced(struct search *s, struct param *params, int n, int k,
                      int64_t *bytes, struct ap_err *err)
{
    uint8_t *forced = AP_NEW_N(s->arena, s->task->graph->n_nodes, uint8_t);
    for (int i = 0; i < k; i++)
        forced[params[i].node] = 1;
    if (run_all(s, forced, err))
        return -1;
    *bytes = measure(s, params, n);
    return 0;
}

static int list_params(const struct ap_graph *g, struct param *params)
{
    int n = 0;
    for (int v = 0; v < g->n_nodes; v++)
        if (counts(&g->nodes[v]) && g->nodes[v].op == AP_OP_PARAMETER)
            params[n++] = (struct param){v, ap_shape_bytes(&g->nodes[v].shape), 0};
    qsort(params, (size_t)n, sizeof *params, by_bytes);
    return n;
}

/* A k whose plan is within the limit while that of k - 1 is not; s has the plan. */
static int fit(struct search *s, int64_t limit, int *n_forced, int64_t *bytes,
               struct ap_err *err)
{
    struct param *params = AP_NEW_N(s->arena, s->task->graph->n_nodes, struct param);
    int n = list_params(s->task->graph, params), last = 0;

    *bytes = measure(s, params, n);
    if (limit == 0 || *bytes <= limit)
        return 0;
    int64_t least = *bytes;
    int too_few = 0, enough = -1, k = estimate(s, params, n, *bytes, limit), step = 1;
    while (enough != too_few + 1) {
        if (run_forced(s, params, n, k, bytes, err))
            return -1;
        last = k;
        least = *bytes < least ? *bytes : least;
        if (*bytes <= limit) {
            enough = k;
        } else if (k == n) {
            return ap_err_set(err,
                              "parameters need %lld bytes per device with all of them "
                              "split, --memory allows %lld",
                              (long long)least, (long long)limit);
        } else {
            too_few = k;
        }
        k = enough < 0 ? k + step : too_few + (enough - too_few) / 2;
        k = k > n ? n : k;
        step *= 2;
    }
    *n_forced = enough;
    return last == enough ? 0 : run_forced(s, params, n, enough, bytes, err);
}

/* ---- the algorithm ---- */

static void set_answer(const struct search *s, int n_forced, int64_t param_bytes,
                       double sec, struct shard_answer *answer)
{
    const struct shard_task *task = s->task;
    int level = s->view.level;

    answer->plan = (struct ap_plan){.graph = task->graph,
                                    .nests = task->nests,
                                    .mesh = task->cost->mesh,
                                    .choice = s->choice};
    answer->plan.regather = AP_NEW_N(s->arena, task->graph->n_nodes, bool);
    answer->objective = -1;
    answer->stopped = s->counts.n_cut_short > 0 ? "work limit" : "searched";
    answer->solver = level == 0 ? NULL : shard_solvers[task->params->solver].name;
    answer->found = ap_arena_printf(
        s->arena, ",\"level\":%d,\"objective_bytes\":%.15g,\"split_parameters\":%d",
        level, s->bytes, n_forced);
    answer->stats = ap_arena_printf(
        s->arena,
        ",\"groups\":%d,\"methods\":%lld,\"strategies\":%lld,\"pieces\":%d,"
        "\"critical\":%d,\"segments\":%d,\"cones\":%lld,\"solved\":%lld,"
        "\"mismatches\":%d,\"parameter_bytes\":%lld,\"runs\":%d,\"solve_sec\":%.6f",
        task->nests->n, (long long)s->n_methods, (long long)s->n_strategies, s->n_pieces,
        s->view.n_critical, s->view.n_scopes, (long long)s->counts.n_cones,
        (long long)s->counts.n_solved, s->n_mismatches, (long long)param_bytes, s->n_runs,
        sec);
}

int shard_rhino(struct ap_arena *arena, const struct shard_task *task,
                struct shard_answer *answer, struct ap_err *err)
{
    double t0 = ap_now_sec();
    struct search s = {.arena = arena, .task = task};
    int64_t bytes = 0;
    int n_forced = 0;

    if (rhino_view_build(arena, task, task->params->level, &s.view, err))
        return -1;
    s.choice = AP_NEW_N(arena, task->nests->n, struct ap_choice_vec);
    s.explain = task->params->explain ? &answer->explanation : NULL;
    if (run_all(&s, NULL, err) ||
        fit(&s, task->params->memory_bytes, &n_forced, &bytes, err))
        return -1;
    set_answer(&s, n_forced, bytes, ap_now_sec() - t0, answer);
    return 0;
}
