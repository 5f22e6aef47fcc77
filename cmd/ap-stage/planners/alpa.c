/*
 * Problem: cut a line of blocks into stages and the cluster into submeshes so that a
 * pipeline of B microbatches is fast: minimise sum of t_i + (B - 1) max t_i + u_1, t_i
 * being a stage's forward and backward of one microbatch, u_1 what the first stage pays
 * once per step (sums of gradients, update), which the paper leaves out; a stage with s
 * stages from it to the end holds min(s, B) microbatches and must fit. Idea: for each
 * t_max, f(k, d) = least sum for the blocks from k on with d devices when no stage is
 * above t_max; few stages leave more memory, so that f keeps one value for each number of
 * stages that no smaller number equals. t_max goes over the stages' distinct times from
 * the least that is feasible (found by bisection), in gaps of at least epsilon, and ends
 * once B t_max is no better than the best. Every plan that this meets, one for each
 * number of stages and of devices under each t_max, is simulated (alpa_quickest.c): the
 * quickest is the answer, the one of the least sum, the paper's, is kept beside it, and
 * t_max ends later where that is slow. Cost: for a t_max, usable stages x devices x
 * labels; O(blocks^2 submeshes) values
 * of it. Source: Zheng et al., "Alpa" (OSDI 2022), section 5.2, equations 2 to 5, and its
 * code.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "search/space.h"

#include "base/array.h"

/* A stage that begins at some block, on a mesh, run one way. */
struct candidate {
    int hi, mesh, most_behind; /* stages from it to the end at most */
    double sec, once;
    const struct plan_point *point;
};

struct label {
    int n_stages, candidate, next; /* next: label of the rest */
    double sum;
};

struct dp {
    struct space *sp;
    struct config *c;
    const struct alpa_limits *limits;
    struct ap_arena *scratch;
    int n, n_devices;     /* of all kinds */
    int *first_candidate; /* [block], n + 1 */
    struct candidate *candidate;
    int *first_active, *active; /* the pieces within t_max, likewise */
    double *prefix;             /* [block]: least sum of the stages before it */
    double *device_sec;         /* [block]: least weight * seconds of those */
    int *first; /* [block * width + d]: its labels, n_labels of them; d: the devices that
                   the rest has, as struct plan_counts */
    int *n_labels;
    struct label *label;
    int n_all, cap;
    double *best_sum; /* [stages]: of the state in work */
    struct label *best;
    int64_t work;
    bool counts; /* inference: a stage counts 1 */
};

/* ---- pieces ---- */

static int most_behind(const struct dp *dp, int kind, const struct plan_point *p)
{
    const struct plan_instance *inst = dp->sp->inst;
    int64_t b = dp->c->microbatches;
    int most = dp->n;

    if (inst->memory_bytes == 0)
        return most;
    int64_t left = plan_memory(inst, kind) - p->stage_bytes;
    if (left < 0)
        return 0;
    int64_t held = p->microbatch_bytes > 0 ? left / p->microbatch_bytes : INT64_MAX;
    if (held >= b || (inst->inference && held >= 1))
        return most;
    if (dp->limits->schedule_gpipe || held < 1)
        return 0;
    return held < most ? (int)held : most;
}

static void add_points(struct dp *dp, int hi, int mesh, const struct plan_front *front,
                       int *n, int *cap)
{
    for (int i = 0; i < front->n; i++) {
        const struct plan_point *p = &front->point[i];
        struct candidate q = {.hi = hi,
                              .mesh = mesh,
                              .most_behind = most_behind(dp, dp->c->mesh[mesh].kind, p),
                              .sec = p->forward_sec + p->backward_sec,
                              .once = p->sync_sec + p->update_sec,
                              .point = p};
        if (q.most_behind == 0)
            continue;
        AP_ROOM(dp->candidate, *n, *cap);
        dp->candidate[(*n)++] = q;
    }
}

/* The full mesh is for the whole model. */
static bool only_whole(const struct dp *dp, int mesh)
{
    return mesh_size(&dp->c->mesh[mesh]) == dp->n_devices;
}

static bool fits_somehow(const struct plan_instance *inst, int kind,
                         const struct plan_front *front)
{
    for (int i = 0; i < front->n; i++)
        if (plan_fits(inst, kind, &front->point[i], 1))
            return true;
    return false;
}

/* One size of runs on a mesh: notes what it must ask, or says which do not fit. The
 * number of runs that fit. */
static int look_at_size(struct dp *dp, int mesh, int size, bool note, int *end,
                        struct ap_err *err)
{
    int n = dp->n, n_left = 0;

    for (int lo = 0, hi = size - 1; hi < n; lo++, hi++) {
        const struct plan_front *front;
        if (end[lo] <= hi)
            continue;
        if (size > 1 && end[lo + 1] <= hi) {
            end[lo] = hi;
            continue;
        }
        if (note) {
            config_note(dp->sp, dp->c, lo, hi, mesh);
            continue;
        }
        if (config_front(dp->sp, dp->c, lo, hi, mesh, &front, err))
            return -1;
        if (fits_somehow(dp->sp->inst, dp->c->mesh[mesh].kind, front))
            n_left++;
        else
            end[lo] = hi;
    }
    return n_left;
}

/*
 * end[mesh * n + lo]: the first block with which a run from lo on does not fit on the
 * mesh; what contains such a run is not asked for. Runs of one size are asked for
 * together, on all meshes.
 */
static int find_ends(struct dp *dp, int *end, struct ap_err *err)
{
    int n = dp->n, n_meshes = dp->c->n_meshes;
    bool *more = AP_NEW_N(dp->scratch, n_meshes, bool), any = false;

    for (int i = 0; i < n * n_meshes; i++)
        end[i] = n;
    if (!dp->sp->inst->monotone || dp->limits->allowed)
        return 0;
    for (int m = 0; m < n_meshes; m++)
        any |= more[m] =
            mesh_size(&dp->c->mesh[m]) <= dp->n_devices && !only_whole(dp, m);
    for (int size = 1; any; size++) {
        for (int m = 0; m < n_meshes; m++)
            if (more[m])
                look_at_size(dp, m, size, true, end + m * n, err);
        if (space_ask_noted(dp->sp, err))
            return -1;
        any = false;
        for (int m = 0; m < n_meshes; m++) {
            int left = more[m] ? look_at_size(dp, m, size, false, end + m * n, err) : 0;
            if (left < 0)
                return -1;
            any |= more[m] = left > 0;
        }
    }
    return 0;
}

static bool is_usable(const struct dp *dp, const int *end, int lo, int hi, int mesh)
{
    if (dp->limits->allowed && !dp->limits->allowed[lo * dp->n + hi])
        return false;
    return mesh_size(&dp->c->mesh[mesh]) <= dp->n_devices &&
           (!only_whole(dp, mesh) || (lo == 0 && hi == dp->n - 1)) &&
           hi < end[mesh * dp->n + lo];
}

static int list_candidates(struct dp *dp, struct ap_err *err)
{
    int n = 0, cap = 0, n_meshes = dp->c->n_meshes;
    int *end = AP_NEW_N(dp->scratch, dp->n * n_meshes, int);

    if (find_ends(dp, end, err))
        return -1;
    for (int lo = 0; lo < dp->n; lo++)
        for (int hi = lo; hi < dp->n; hi++)
            for (int m = 0; m < n_meshes; m++)
                if (is_usable(dp, end, lo, hi, m))
                    config_note(dp->sp, dp->c, lo, hi, m);
    if (space_ask_noted(dp->sp, err))
        return -1;
    for (int lo = 0; lo < dp->n; lo++) {
        dp->first_candidate[lo] = n;
        for (int hi = lo; hi < dp->n; hi++)
            for (int m = 0; m < n_meshes; m++) {
                const struct plan_front *front;
                if (!is_usable(dp, end, lo, hi, m))
                    continue;
                if (config_front(dp->sp, dp->c, lo, hi, m, &front, err))
                    return -1;
                add_points(dp, hi, m, front, &n, &cap);
            }
    }
    dp->first_candidate[dp->n] = n;
    return 0;
}

static void sum_prefixes(struct dp *dp)
{
    for (int k = 1; k <= dp->n; k++)
        dp->prefix[k] = dp->device_sec[k] = INFINITY;
    for (int k = 0; k < dp->n; k++)
        for (int i = dp->first_candidate[k]; i < dp->first_candidate[k + 1]; i++) {
            const struct candidate *q = &dp->candidate[i];
            double *sum = &dp->prefix[q->hi + 1], *dev = &dp->device_sec[q->hi + 1];
            *sum = fmin(*sum, dp->prefix[k] + (dp->counts ? 1 : q->sec));
            *dev = fmin(*dev, dp->device_sec[k] + q->sec * config_weight(dp->c, q->mesh));
        }
}

/* ---- the programme for one t_max ---- */

static size_t state(const struct dp *dp, int k, int d)
{
    return (size_t)k * (size_t)dp->c->counts.width + (size_t)d;
}

static void keep_labels(struct dp *dp, int k, int d)
{
    double least = INFINITY;

    dp->first[state(dp, k, d)] = dp->n_all;
    for (int s = 1; s <= dp->n - k; s++) {
        double sum = dp->best_sum[s];
        dp->best_sum[s] = INFINITY;
        if (!isfinite(sum) || (sum >= least && dp->limits->n_stages == 0))
            continue;
        least = sum;
        AP_ROOM(dp->label, dp->n_all, dp->cap);
        dp->label[dp->n_all] = dp->best[s];
        dp->label[dp->n_all++].sum = sum;
    }
    dp->n_labels[state(dp, k, d)] = dp->n_all - dp->first[state(dp, k, d)];
}

/* bound: sums of whole plans must stay below. */
static void fill_state(struct dp *dp, int k, int d, double bound)
{
    for (int j = dp->first_active[k]; j < dp->first_active[k + 1]; j++) {
        int i = dp->active[j];
        const struct candidate *q = &dp->candidate[i];
        if (!config_has(dp->c, d, q->mesh))
            continue;
        size_t rest = state(dp, q->hi + 1, d - config_take(dp->c, q->mesh));
        int at = dp->first[rest], n = dp->n_labels[rest];
        dp->work += 1 + n;
        for (int l = at; l < at + n; l++) {
            int s = dp->label[l].n_stages + 1;
            double sum =
                dp->label[l].sum + (dp->counts ? 1 : q->sec + (k == 0 ? q->once : 0));
            if (s > q->most_behind)
                break; /* labels have rising numbers of stages */
            if (sum >= dp->best_sum[s] || dp->prefix[k] + sum >= bound)
                continue;
            dp->best_sum[s] = sum;
            dp->best[s] = (struct label){.n_stages = s, .candidate = i, .next = l};
        }
    }
    keep_labels(dp, k, d);
}

static void choose_active(struct dp *dp, double t_max)
{
    int n = 0;
    for (int k = 0; k < dp->n; k++) {
        dp->first_active[k] = n;
        for (int i = dp->first_candidate[k]; i < dp->first_candidate[k + 1]; i++)
            if (dp->candidate[i].sec <= t_max)
                dp->active[n++] = i;
    }
    dp->first_active[dp->n] = n;
}

/* Of the devices that d stands for. */
static double weight_of(const struct dp *dp, int d)
{
    double weight = 0;

    for (int k = 0; k < dp->c->counts.n_kinds; k++)
        weight += counts_digit(&dp->c->counts, d, k) * dp->c->speed[k];
    return weight;
}

static bool is_wanted(const struct dp *dp, const struct label *l)
{
    return dp->limits->n_stages == 0 || l->n_stages == dp->limits->n_stages;
}

/* Fills the states with no stage above t_max. The least sum of all blocks on all devices,
 * or on some of them where they may be idle; INFINITY for none. */
static double solve(struct dp *dp, double t_max, double bound)
{
    int all = dp->c->counts.width - 1;
    double least = INFINITY;

    dp->n_all = 0;
    choose_active(dp, t_max);
    for (int d = 0; d <= all; d++)
        dp->n_labels[state(dp, dp->n, d)] = 0;
    if (!dp->label) {
        dp->cap = 4096;
        dp->label = ap_xrealloc(NULL, (size_t)dp->cap * sizeof *dp->label);
    }
    dp->label[dp->n_all++] = (struct label){.candidate = -1, .next = -1};
    dp->first[state(dp, dp->n, 0)] = 0;
    dp->n_labels[state(dp, dp->n, 0)] = 1;
    for (int k = dp->n - 1; k >= 0; k--) {
        /* what is in front needs devices too */
        double front = dp->device_sec[k] / t_max * (1 - 1e-9);
        for (int d = 0; d <= all; d++)
            if (d == 0 || (k > 0 && weight_of(dp, d) > dp->c->capacity - front))
                dp->n_labels[state(dp, k, d)] = 0;
            else
                fill_state(dp, k, d, bound);
    }
    for (int d = dp->limits->idle ? 1 : all; d <= all; d++) {
        const struct label *l = &dp->label[dp->first[state(dp, 0, d)]];
        for (int i = 0; i < dp->n_labels[state(dp, 0, d)]; i++)
            if (is_wanted(dp, &l[i]))
                least = fmin(least, l[i].sum);
    }
    return least;
}

static void unroll(const struct dp *dp, int label, struct plan_answer *a)
{
    int lo = 0, s = 0;

    *a = (struct plan_answer){.n_stages = dp->label[label].n_stages,
                              .replicas = dp->c->replicas,
                              .microbatches = dp->c->microbatches,
                              .chunks = 1,
                              .schedule = dp->limits->schedule_gpipe ? AP_SCHEDULE_GPIPE
                                                                     : AP_SCHEDULE_1F1B,
                              .measure = "alpa"};
    if (dp->sp->inst->inference)
        a->schedule = AP_SCHEDULE_INFERENCE;
    a->stage = AP_NEW_N(dp->sp->arena, a->n_stages, struct plan_stage);
    for (; dp->label[label].candidate >= 0; label = dp->label[label].next) {
        const struct candidate *q = &dp->candidate[dp->label[label].candidate];
        a->stage[s++] = (struct plan_stage){.lo = lo,
                                            .hi = q->hi,
                                            .hosts = dp->c->mesh[q->mesh].hosts,
                                            .devices = dp->c->mesh[q->mesh].devices,
                                            .kind = dp->c->mesh[q->mesh].kind,
                                            .point = q->point};
        lo = q->hi + 1;
    }
}

double alpa_objective(const struct plan_instance *inst, const struct plan_answer *a)
{
    double sum = 0, most = 0;
    for (int s = 0; s < a->n_stages; s++) {
        double sec = a->stage[s].point->forward_sec + a->stage[s].point->backward_sec;
        sum += sec;
        most = sec > most ? sec : most;
    }
    if (inst->inference)
        return a->n_stages * most * (double)a->microbatches;
    return sum + (double)(a->microbatches - 1) * most + a->stage[0].point->sync_sec +
           a->stage[0].point->update_sec;
}

/* ---- t_max ---- */

static int compare_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Distinct times, ascending; caller frees. */
static double *list_times(const struct dp *dp, int *n_times)
{
    int n = dp->first_candidate[dp->n], k = 0;
    double *t = ap_xrealloc(NULL, ((size_t)n + 1) * sizeof *t);
    for (int i = 0; i < n; i++)
        t[i] = dp->candidate[i].sec;
    qsort(t, (size_t)n, sizeof *t, compare_double);
    for (int i = 0; i < n; i++)
        if (k == 0 || t[i] > t[k - 1])
            t[k++] = t[i];
    *n_times = k;
    return t;
}

static int first_at_least(const double *t, int n, double x)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (t[mid] >= x)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* First of the times under which there is a plan; n for none below the limit. */
static int first_feasible(struct dp *dp, const double *t, int n, double below)
{
    double b = (double)dp->c->microbatches;
    double least = dp->device_sec[dp->n] / dp->c->capacity * (1 - 1e-9);
    int lo = first_at_least(t, n, least), hi;

    for (double x = least * 1.1;; x *= 1.3) {
        hi = first_at_least(t, n, x);
        hi = hi < n ? hi : n - 1;
        if (lo >= n || t[lo] * b >= below)
            return n;
        if (isfinite(solve(dp, t[hi], INFINITY)))
            break;
        lo = hi + 1;
    }
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (isfinite(solve(dp, t[mid], INFINITY)))
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

#define WORK_LIMIT ((int64_t)1 << 31)

struct sweep {
    struct dp *dp;
    const double *t;
    struct alpa_plans *plans;
    int64_t limit;
    bool limited;
};

/* The objective of a sum and a maximum; 1 / of the number of stages for inference. */
static double total(const struct dp *dp, double sum, double max)
{
    double b = (double)dp->c->microbatches;
    return dp->counts ? sum * max * b : sum + (b - 1) * max;
}

/* Plans of objectives below this are looked for: they may be the least, or the quickest,
 * since sends take time. */
static double reach(const struct alpa_plans *p)
{
    double own = p->own.n_stages > 0 ? p->own.objective : INFINITY;
    double quickest = p->quickest.n > 0 ? p->quickest.score[0] : INFINITY;

    return fmax(own, quickest);
}

/* Of the states of all blocks the plans of each number of stages, on fewer devices where
 * these are better. */
static void take_plans(struct sweep *w)
{
    struct dp *dp = w->dp;
    struct plan_answer a, *own = &w->plans->own;
    struct ap_err why = {0};
    int all = dp->c->counts.width - 1;

    for (int d = all; d > 0; d--) {
        int at = dp->first[state(dp, 0, d)];
        for (int i = at; i < at + dp->n_labels[state(dp, 0, d)]; i++) {
            const struct label *l = &dp->label[i];
            if (!is_wanted(dp, l) || l->sum >= dp->best_sum[l->n_stages])
                continue;
            dp->best_sum[l->n_stages] = l->sum;
            unroll(dp, i, &a);
            alpa_take(dp->sp, w->plans, &a);
            if ((d == all || dp->limits->idle) &&
                (own->n_stages == 0 || a.objective < own->objective) &&
                plan_place(dp->sp->inst, &a, &why) == 0)
                *own = plan_copy(dp->sp->arena, &a);
            alpa_take_fastest(dp->sp, w->plans, &a, 0, a.n_stages);
        }
    }
    for (int s = 0; s <= dp->n; s++)
        dp->best_sum[s] = INFINITY;
}

/* Least sum below the maximum t[i]; only plans with a maximum from t[from] on are of
 * interest. INFINITY: no such plan is better than the best. */
static double sum_at(struct sweep *w, int i, int from)
{
    double bound = reach(w->plans) - total(w->dp, 0, w->t[from]);
    double sum = solve(w->dp, w->t[i], w->dp->counts ? INFINITY : bound * (1 + 1e-12));

    take_plans(w);
    return sum;
}

/* The times between two, whose least sums are known: the sum falls as t rises. */
static void between(struct sweep *w, int lo, double sum_lo, int hi, double sum_hi)
{
    if (hi - lo < 2 || w->t[hi] - w->t[lo] < w->dp->sp->params->epsilon_sec ||
        sum_hi >= sum_lo || total(w->dp, sum_hi, w->t[lo + 1]) >= reach(w->plans))
        return;
    if (w->dp->work > w->limit) {
        w->limited = true;
        return;
    }
    int mid = lo + (hi - lo) / 2;
    double sum = sum_at(w, mid, lo + 1);
    between(w, lo, sum_lo, mid, sum);
    between(w, mid, sum, hi, sum_hi);
}

static void sweep(struct dp *dp, const double *t, int n, struct alpa_plans *plans)
{
    struct sweep w = {.dp = dp, .t = t, .plans = plans};
    int first = first_feasible(dp, t, n, reach(plans));

    w.limit = dp->sp->params->work_limit ? dp->sp->params->work_limit : WORK_LIMIT;
    w.limit += dp->work;
    if (first >= n)
        return;
    double sum = sum_at(&w, first, first);
    int last = first_at_least(t, n, reach(plans) / (double)dp->c->microbatches);
    last = last < n ? last : n - 1;
    if (last > first)
        between(&w, first, sum, last, sum_at(&w, last, first + 1));
    plans->limited |= w.limited;
}

int alpa_search(struct space *sp, struct config *c, const struct alpa_limits *limits,
                struct alpa_plans *plans, struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct dp dp = {.sp = sp,
                    .c = c,
                    .limits = limits,
                    .scratch = &scratch,
                    .n = sp->n,
                    .counts = sp->inst->inference};
    size_t n_states = (size_t)(dp.n + 1) * (size_t)c->counts.width;
    int rc = -1, n_times;

    for (int k = 0; k < c->counts.n_kinds; k++)
        dp.n_devices += c->counts.most[k];

    dp.first_candidate = AP_NEW_N(&scratch, dp.n + 1, int);
    dp.prefix = AP_NEW_N(&scratch, dp.n + 1, double);
    dp.device_sec = AP_NEW_N(&scratch, dp.n + 1, double);
    dp.first = AP_NEW_N(&scratch, n_states, int);
    dp.n_labels = AP_NEW_N(&scratch, n_states, int);
    dp.best_sum = AP_NEW_N(&scratch, dp.n + 2, double);
    dp.best = AP_NEW_N(&scratch, dp.n + 2, struct label);
    for (int s = 0; s < dp.n + 2; s++)
        dp.best_sum[s] = INFINITY;
    if (list_candidates(&dp, err) == 0) {
        sum_prefixes(&dp);
        int n_candidates = dp.first_candidate[dp.n];
        dp.first_active = AP_NEW_N(&scratch, dp.n + 1, int);
        dp.active = AP_NEW_N(&scratch, n_candidates + 1, int);
        double *t = list_times(&dp, &n_times);
        sweep(&dp, t, n_times, plans);
        free(t);
        rc = 0;
    }
    free(dp.candidate);
    free(dp.label);
    ap_arena_free(&scratch);
    return rc;
}

/* ---- the rows ---- */

static int check_schedule(const char *name, const struct plan_instance *inst,
                          const struct plan_params *params, struct ap_err *err)
{
    if (plan_check_schedule(name, params, err))
        return -1;
    if (inst->inference && params->schedule >= 0 &&
        params->schedule != AP_SCHEDULE_INFERENCE)
        return ap_err_set(err, "%s: a graph without backward has schedule inference only",
                          name);
    return 0;
}

/* Cuts into s stages of equal weight: each at the block whose end is nearest. */
static void equal_cuts(const struct space *sp, const double *end, int s, bool *allowed)
{
    int n = sp->n, lo = 0;
    memset(allowed, 0, (size_t)n * (size_t)n * sizeof *allowed);
    for (int i = 1; i <= s && lo < n; i++) {
        double want = end[n - 1] * i / s;
        int hi = lo;
        while (hi + 1 < n - (s - i) && fabs(end[hi + 1] - want) <= fabs(end[hi] - want))
            hi++;
        if (i == s)
            hi = n - 1;
        allowed[lo * n + hi] = true;
        lo = hi + 1;
    }
}

/* end: weight of the blocks up to each, NULL for free cuts. */
static int alpa_all(const char *name, struct ap_arena *arena,
                    const struct plan_instance *inst, const struct plan_params *params,
                    const double *end, struct plan_answer *answer, struct ap_err *err)
{
    struct space sp;
    struct alpa_plans plans = {.limited = false};
    bool gpipe = params->schedule == AP_SCHEDULE_GPIPE;
    struct alpa_limits limits = {.schedule_gpipe = gpipe};

    if (check_schedule(name, inst, params, err))
        return -1;
    space_init(&sp, arena, inst, params);
    bool *allowed = AP_NEW_N(arena, sp.n * sp.n, bool);
    for (int i = 0; i < inst->n_microbatches; i++) {
        struct config c;
        if (!config_init(&sp, &c, 1, inst->microbatches[i], NULL, 0))
            continue;
        int lo = end ? 1 : 0, hi = end ? sp.n : 0;
        if (params->n_stages > 0)
            lo = hi = params->n_stages;
        for (int s = lo; s <= hi && s <= sp.n; s++) {
            limits.n_stages = s;
            limits.allowed = end ? allowed : NULL;
            if (end)
                equal_cuts(&sp, end, s, allowed);
            if (alpa_search(&sp, &c, &limits, &plans, err))
                return -1;
        }
    }
    if (plans.own.n_stages == 0 && (end || plans.quickest.n == 0))
        return plan_none_fits(name, err);
    if (end) /* as the paper has it */
        *answer = plans.own;
    else
        alpa_put_quickest(&sp, &plans, answer);
    answer->stopped = plans.limited ? "work limit" : "done";
    answer->n_asked = sp.n_asked;
    answer->n_plans = sp.n_plans;
    return plan_judge(arena, inst, answer, err);
}

int plan_alpa(struct ap_arena *arena, const struct plan_instance *inst,
              const struct plan_params *params, struct plan_answer *answer,
              struct ap_err *err)
{
    return alpa_all("alpa", arena, inst, params, NULL, answer, err);
}

int plan_equal_layer(struct ap_arena *arena, const struct plan_instance *inst,
                     const struct plan_params *params, struct plan_answer *answer,
                     struct ap_err *err)
{
    double *end = AP_NEW_N(arena, inst->n_blocks, double);
    for (int b = 0; b < inst->n_blocks; b++)
        end[b] = b + 1;
    return alpa_all("equal-layer", arena, inst, params, end, answer, err);
}

int plan_equal_operator(struct ap_arena *arena, const struct plan_instance *inst,
                        const struct plan_params *params, struct plan_answer *answer,
                        struct ap_err *err)
{
    double *end = AP_NEW_N(arena, inst->n_blocks, double);
    for (int b = 0; b < inst->n_blocks; b++)
        end[b] = (b > 0 ? end[b - 1] : 0) + inst->n_ops[b];
    return alpa_all("equal-operator", arena, inst, params, end, answer, err);
}
