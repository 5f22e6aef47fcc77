/*
 * Problem: the best plan of a space of lines, and the proof that it is the best.
 * Idea: lines are listed with bounds by their operators (grid_lines.c); those with the
 * least bounds get better ones, by what many ways to shard have in common, by the way to
 * shard (grid_parts.c), which makes their bounds nearly their prices (grid_bound.c), and
 * by the schedule; then they are priced as --grid prices them, and so on, until no bound
 * is below the best price. Ways to shard are measured a few at a time. Then lines that
 * are simpler than the best plan, and whose bounds are little above its price, are
 * priced, the simplest first, until one is little slower. Cost: that of measuring, and
 * the plans of the lines whose bounds are below the best price.
 */
#include "grid/grid_rows.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/threads.h"
#include "grid/grid_rows_impl.h"
#include "pipeline/pipeline_program.h"

/* Ways to shard that are measured side by side: cores have work, and as many at most are
 * measured in vain. */
#define MEASURED_AT_ONCE 16

/* Lines that are priced beside another plan, at most: of models whose blocks share
 * weights little is known before. With 8 of them tests/auto.bats misses the best one. */
#define MOST_BESIDE 20

/* Schedules of whole backward passes that grids by hand have, and those that split. */
#define WHOLE \
    (1U << AP_SCHEDULE_GPIPE | 1U << AP_SCHEDULE_1F1B | 1U << AP_SCHEDULE_INTERLEAVED)
#define SPLIT                                                                     \
    (1U << AP_SCHEDULE_ZB_H1 | 1U << AP_SCHEDULE_ZB_H2 | 1U << AP_SCHEDULE_ZB_V | \
     1U << AP_SCHEDULE_V_HALF | 1U << AP_SCHEDULE_V_MIN | 1U << AP_SCHEDULE_DUALPIPE_V)
/* All that a line can say, of some schedules. */
#define HAND(name_, schedules_)                                                       \
    {                                                                                 \
        .name = name_, .pipelines = true, .tensors = true, .contexts = true,          \
        .experts = true, .hand = true, .staged_shards = true, .most_micro_batch = 16, \
        .least_sequence = 2048, .most_chunks = 8, .schedules = schedules_             \
    }

const struct grid_space grid_spaces[N_GRIDS] = {{.name = "data",
                                                 .hand = true,
                                                 .most_micro_batch = 16,
                                                 .most_chunks = 1,
                                                 .schedules = WHOLE},
                                                {.name = "deepspeed-moe-grid",
                                                 .tensors = true,
                                                 .experts = true,
                                                 .hand = true,
                                                 .most_micro_batch = 16,
                                                 .most_chunks = 1,
                                                 .schedules = WHOLE},
                                                HAND("megatron-grid", WHOLE),
                                                HAND("zero-bubble-grid", SPLIT)};

struct grid_space grid_space_all(void)
{
    return (struct grid_space)HAND("grids", WHOLE | 1U << AP_SCHEDULE_LOOPED_BFS | SPLIT);
}

struct grid_space grid_space_of(const struct ap_trainer *trainer)
{
    return (struct grid_space){.name = trainer->name,
                               .trainer = trainer,
                               .pipelines = true,
                               .tensors = true,
                               .contexts = true,
                               .experts = true,
                               .most_micro_batch = 16,
                               .least_sequence = 1,
                               .most_chunks = AP_LINE_MOST_STAGES,
                               .schedules = WHOLE};
}

bool grid_is_of(const struct grid_space *space, const struct ap_line *l)
{
    return (space->pipelines || l->pipeline == 1) &&
           (space->staged_shards || l->pipeline == 1 || l->degrees.zero < 2) &&
           (space->tensors || l->degrees.tensor == 1) &&
           (space->contexts || l->degrees.context == 1) &&
           (space->experts ? space->pipelines || l->degrees.expert > 1
                           : l->degrees.expert == 1);
}

/* ---- the search ---- */

double grid_limit(const struct grid_want *want)
{
    return want->simple > 0 ? INFINITY : want->below;
}

struct search {
    struct grid_rows *r;
    double best;  /* step of the best plan so far, at first the limit of the search */
    int taken;    /* row of it; -1: none */
    bool splits;  /* whether the rows searched now split backward passes */
    int *heap, n; /* rows that may be better, the least bound first */
};

/* Whether row a comes before row b. */
static bool is_before(const struct grid_rows *r, int a, int b)
{
    const double x = r->row[a].step_sec, y = r->row[b].step_sec;

    return x < y || (x == y && a < b);
}

static void sink(const struct search *s, int at)
{
    const int row = s->heap[at];

    for (int next; (next = 2 * at + 1) < s->n; at = next) {
        if (next + 1 < s->n && is_before(s->r, s->heap[next + 1], s->heap[next]))
            next++;
        if (is_before(s->r, row, s->heap[next]))
            break;
        s->heap[at] = s->heap[next];
    }
    s->heap[at] = row;
}

/* Takes up a row that is measured. */
static void push(struct search *s, int row)
{
    if (ap_schedule_traits[s->r->row[row].line.schedule].splits != s->splits)
        return;
    int at = s->n++;

    for (; at > 0 && is_before(s->r, row, s->heap[(at - 1) / 2]); at = (at - 1) / 2)
        s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = row;
}

void grid_price(const struct grid_rows *r, double below, struct grid_candidate *row)
{
    struct ap_arena own = {0};
    struct ap_stages stages = {.each = r->want->each, .resharding = r->want->resharding};
    struct line_maker k = {
        .arena = &own, .model = &r->model, .line = row->line, .stages = &stages};
    const struct plan_instance *inst = r->want->inst;
    const int64_t limit = inst->memory_bytes;
    struct ap_pipeline_price price;
    struct ap_err why = {0};

    row->known = GRID_NO_PLAN;
    if (grid_build(&k, r->m, &price, &why) == 0) {
        row->step_sec = price.result.step_sec;
        row->known = GRID_TIMED;
    }
    if (row->known == GRID_TIMED && row->step_sec < below) {
        row->bytes = (double)stage_result_peak(r->m, inst, &stages,
                                               inst->n_kinds > 0 ? 0 : limit, &price);
        row->known = (limit > 0 && row->bytes > (double)limit) ||
                             grid_exceeds_host(r, (double)price.host_bytes, row)
                         ? GRID_TOO_LARGE
                         : GRID_PRICED;
        if (row->known == GRID_TOO_LARGE)
            (void)grid_offload(r, row);
    }
    ap_arena_free(&own);
}

/* Bounds a row better, or prices it: its memory, too, if its step is less than `below`.
 */
static void learn(struct grid_rows *r, struct grid_candidate *row, double below,
                  struct ap_line_counts *n)
{
    if (row->known == GRID_LISTED) {
        if (!r->sharding[row->shard].measured)
            grid_measure(r, 1, &row->shard);
        grid_bound(r, row);
    } else if (row->known == GRID_MEASURED) {
        grid_simulate(r, row);
    } else {
        n->priced += row->known == GRID_SIMULATED && !row->was_priced;
        row->was_priced = true;
        grid_price(r, row->known == GRID_TIMED ? INFINITY : below, row);
    }
}

/* The least bound of the others of the heap. */
static double next_sec(const struct search *s)
{
    double sec = INFINITY;

    for (int i = 1; i < 3 && i < s->n; i++)
        sec = fmin(sec, s->r->row[s->heap[i]].step_sec);
    return sec;
}

/* The same of the first row: its memory is of no use while others may be better. */
static void go_on(struct search *s, struct ap_line_counts *n)
{
    struct grid_candidate *row = &s->r->row[s->heap[0]];

    learn(s->r, row, fmin(s->best, next_sec(s)), n);
    if (row->known == GRID_PRICED && row->step_sec < s->best) {
        s->best = row->step_sec;
        s->taken = s->heap[0];
    }
    if (row->known >= GRID_PRICED)
        s->heap[0] = s->heap[--s->n];
    if (s->n > 0)
        sink(s, 0);
}

/* Rows of ways to shard that are bounded side by side. */
struct bounding {
    struct search *s;
    const int *row; /* that are listed by their ways to shard: from start[sharding] */
    const int *start, *sharding;
};

/* Bounds of all lines of a way to shard by its bare way; where that one has no plan, a
 * way with more axes has none. */
static void bound_bare(void *ctx, int i)
{
    const struct bounding *b = ctx;
    struct grid_rows *r = b->s->r;
    struct grid_sharding *s = &r->sharding[i];

    if (s->is_bare || s->bounded || !r->sharding[s->bare].measured)
        return;
    s->bounded = true;
    s->measured = !r->sharding[s->bare].ok;
    s->least_sec = INFINITY;
    for (int k = b->start[i]; k < b->start[i + 1]; k++) {
        struct grid_candidate *row = &r->row[b->row[k]];
        grid_bound_bare(r, row);
        if (row->known == GRID_LISTED)
            s->least_sec = fmin(s->least_sec, row->step_sec);
    }
}

/* Measures the bare ways of n ways to shard whose lines have no bounds by them yet;
 * false: they all have. */
static bool measure_bare(struct bounding *b, const int *sharding, int n)
{
    struct grid_rows *r = b->s->r;
    int bare[MEASURED_AT_ONCE], n_bare = 0;

    for (int i = 0; i < n; i++) {
        struct grid_sharding *s = &r->sharding[r->sharding[sharding[i]].bare];
        if (!s->measured)
            bare[n_bare++] = (int)(s - r->sharding);
        s->measured = true; /* once */
    }
    if (n_bare > 0) {
        grid_measure(r, n_bare, bare);
        ap_in_threads(r->n_shardings, bound_bare, b);
    }
    return n_bare > 0;
}

/* The ways to shard that are not measured and may have a better line, those with the
 * least bounds, ascending, up to MEASURED_AT_ONCE. */
static int pick_shardings(const struct search *s, int *some)
{
    const struct grid_sharding *sharding = s->r->sharding;
    int n = 0;

    for (int i = 0; i < s->r->n_shardings; i++) {
        const double sec = sharding[i].least_sec;
        if (sharding[i].is_bare || sharding[i].measured || sec >= s->best ||
            (n == MEASURED_AT_ONCE && sec >= sharding[some[n - 1]].least_sec))
            continue;
        int at = n < MEASURED_AT_ONCE ? n++ : n - 1;
        for (; at > 0 && sharding[some[at - 1]].least_sec > sec; at--)
            some[at] = some[at - 1];
        some[at] = i;
    }
    return n;
}

static void bound_sharding(void *ctx, int i)
{
    const struct bounding *b = ctx;
    const int at = b->sharding[i];

    for (int k = b->start[at]; k < b->start[at + 1]; k++)
        if (b->s->r->row[b->row[k]].known == GRID_LISTED &&
            b->s->r->row[b->row[k]].step_sec < b->s->best)
            grid_bound(b->s->r, &b->s->r->row[b->row[k]]);
}

/* Measures ways to shard, and takes up their rows that may be better. */
static void take_up(struct bounding *b, const int *sharding, int n)
{
    b->sharding = sharding;
    grid_measure(b->s->r, n, sharding);
    ap_in_threads(n, bound_sharding, b);
    for (int i = 0; i < n; i++)
        for (int k = b->start[sharding[i]]; k < b->start[sharding[i] + 1]; k++)
            if (b->s->r->row[b->row[k]].known == GRID_MEASURED)
                push(b->s, b->row[k]);
}

/* The rows of each way to shard, one after the other. */
static void list_by_sharding(const struct grid_rows *r, struct bounding *b)
{
    int *start = AP_NEW_N(r->arena, r->n_shardings + 2, int);
    int *row = AP_NEW_N(r->arena, r->n + 1, int);

    for (int i = 0; i < r->n; i++)
        start[r->row[i].shard + 2]++;
    for (int i = 0; i < r->n_shardings; i++)
        start[i + 2] += start[i + 1];
    for (int i = 0; i < r->n; i++)
        row[start[r->row[i].shard + 1]++] = i;
    b->row = row;
    b->start = start;
}

/* most: of lines that are priced, where the search is beside another plan. */
static bool may_be_better(const struct search *s, const struct ap_line_counts *n,
                          int64_t most)
{
    return s->n > 0 && s->r->row[s->heap[0]].step_sec < s->best &&
           (!isfinite(grid_limit(s->r->want)) || n->priced < most);
}

/* The best row whose backward passes are split, or whole, if it is better than the best
 * one before. */
static void search_schedules(struct search *s, struct bounding *b, bool splits,
                             struct ap_line_counts *n)
{
    struct grid_rows *r = s->r;
    const int64_t most = n->priced + MOST_BESIDE;
    int some[MEASURED_AT_ONCE];

    s->splits = splits;
    s->n = 0;
    for (int i = 0; i < r->n; i++)
        if (r->row[i].known == GRID_MEASURED)
            push(s, i);
    for (;;) {
        const int k = pick_shardings(s, some);
        const bool better = may_be_better(s, n, most);
        if (better &&
            (k == 0 || r->row[s->heap[0]].step_sec <= r->sharding[some[0]].least_sec))
            go_on(s, n);
        else if (k == 0)
            break;
        else if (!measure_bare(b, some, k))
            take_up(b, some, k);
    }
}

/* Lines with whole backward passes come first: what split ones gain is then known. */
static void search(struct search *s, struct grid_found *out)
{
    struct bounding b = {.s = s};

    list_by_sharding(s->r, &b);
    search_schedules(s, &b, false, &out->n);
    out->whole_sec = fmin(s->best, s->r->want->below);
    search_schedules(s, &b, true, &out->n);
}

/* ---- the simplest line that is little slower ---- */

struct simple_row {
    struct grid_candidate *row;
    struct stage_simplicity is;
};

static int compare_simple(const void *pa, const void *pb)
{
    const struct simple_row *a = pa, *b = pb;
    const int order = stage_simplicity_compare(&a->is, &b->is);

    if (order != 0 || a->row->step_sec == b->row->step_sec)
        return order != 0 ? order : a->row < b->row ? -1 : a->row > b->row;
    return a->row->step_sec < b->row->step_sec ? -1 : 1;
}

/* Of equally simple lines the quickest. */
static void find_simplest(const struct search *s, struct grid_found *out)
{
    struct grid_rows *r = s->r;
    double limit = (1 + r->want->simple) * s->best;
    const struct stage_simplicity is =
        s->taken < 0 ? r->want->is : stage_simplicity_of(&r->row[s->taken].line, false);
    struct simple_row *list = AP_NEW_N(r->arena, r->n + 1, struct simple_row);
    const struct simple_row *best = NULL;
    int n = 0;

    for (int i = 0; i < r->n && r->want->simple > 0 && isfinite(limit); i++) {
        list[n] =
            (struct simple_row){&r->row[i], stage_simplicity_of(&r->row[i].line, false)};
        n += r->row[i].known <= GRID_PRICED && r->row[i].step_sec <= limit &&
             stage_simplicity_compare(&list[n].is, &is) < 0;
    }
    qsort(list, (size_t)n, sizeof *list, compare_simple);
    const int64_t most = out->n.priced + MOST_BESIDE;
    for (int i = 0; i < n && out->n.priced < most; i++) {
        struct grid_candidate *row = list[i].row;
        if (best && stage_simplicity_compare(&list[i].is, &best->is) > 0)
            break;
        while (row->known < GRID_PRICED && row->step_sec <= limit)
            learn(r, row, limit, &out->n);
        if (row->known != GRID_PRICED || row->step_sec > limit)
            continue;
        limit = row->step_sec;
        best = &list[i];
    }
    if (best)
        out->simple = (struct grid_row){true, best->row->line, best->row->step_sec,
                                        (int64_t)best->row->bytes};
}

/* ---- what was found ---- */

/* Of a grid's rows, the priced one with the least step, or of the others the one with the
 * least bound; -1: none. */
static int find_best(const struct grid_rows *r, const struct grid_space *space,
                     bool priced)
{
    int best = -1;

    for (int i = 0; i < r->n; i++) {
        const enum grid_known known = r->row[i].known;
        if ((priced ? known == GRID_PRICED : known < GRID_PRICED) &&
            (space->schedules >> r->row[i].line.schedule & 1) &&
            grid_is_of(space, &r->row[i].line) && (best < 0 || is_before(r, i, best)))
            best = i;
    }
    return best;
}

/* The best line of each grid, where it is proven. */
static void report(const struct grid_rows *r, struct grid_found *out)
{
    for (int f = 0; f < N_GRIDS; f++) {
        const int at = find_best(r, &grid_spaces[f], true);
        const int next = find_best(r, &grid_spaces[f], false);
        if (at >= 0 && (next < 0 || is_before(r, at, next)) &&
            r->row[at].step_sec <= r->least_sec)
            out->row[f] = (struct grid_row){true, r->row[at].line, r->row[at].step_sec,
                                            (int64_t)r->row[at].bytes};
    }
}

/* Counts lines, and finds the least that any of them may take. */
static void sum_up(const struct grid_rows *r, struct grid_found *out)
{
    const int64_t limit = r->want->inst->memory_bytes;
    struct ap_line_counts *n = &out->n;

    n->legal = r->n_legal;
    n->too_large = r->n_too_large;
    n->no_plan = r->n_no_plan;
    n->too_slow = r->n_legal - r->n_too_large - r->n_no_plan - r->n;
    out->least_sec = r->least_sec;
    out->leanest_bytes = INFINITY;
    out->host_bytes = r->host_bytes;
    for (int i = 0; i < r->n; i++) {
        const struct grid_candidate *row = &r->row[i];
        n->too_large += row->known == GRID_TOO_LARGE;
        n->no_plan += row->known == GRID_NO_PLAN;
        n->too_slow += row->known < GRID_PRICED;
        if (row->known == GRID_TOO_LARGE && row->host_bytes > 0)
            out->host_bytes = fmin(out->host_bytes, row->host_bytes);
        if (row->known == GRID_TOO_LARGE && row->bytes > (double)limit &&
            row->bytes < out->leanest_bytes) {
            out->leanest = &row->line;
            out->leanest_bytes = row->bytes;
        }
        if (row->known > GRID_PRICED)
            continue;
        out->least_sec = fmin(out->least_sec, row->step_sec);
    }
}

int grid_start(struct ap_arena *arena, const struct stage_model *m,
               const struct grid_want *want, struct grid_rows *r, struct ap_err *err)
{
    *r = (struct grid_rows){.arena = arena,
                            .m = m,
                            .want = want,
                            .least_sec = INFINITY,
                            .leanest_bytes = INFINITY,
                            .host_bytes = INFINITY};
    grid_model_find(arena, m, &r->model);
    struct ap_line full = ap_line_least;
    full.recompute = AP_LINE_RECOMPUTE_FULL;
    if (want->space->trainer &&
        want->space->trainer->habits(&full).traits & AP_TRAINER_STOPS_EARLY)
        r->model.again[AP_LINE_RECOMPUTE_FULL] = r->model.full_read;
    return grid_find_parts(r, err) || grid_list(r, err) ? -1 : 0;
}

void grid_end(struct grid_rows *r)
{
    for (int i = 0; i < r->n_shardings; i++)
        ap_arena_free(&r->sharding[i].arena);
}

int grid_search(struct ap_arena *arena, const struct stage_model *m,
                const struct grid_want *want, struct grid_found *out, struct ap_err *err)
{
    struct grid_rows r;

    *out = (struct grid_found){.step_sec = INFINITY};
    if (grid_start(arena, m, want, &r, err))
        return -1;
    struct search s = {.r = &r, .best = grid_limit(want), .taken = -1};
    s.heap = AP_NEW_N(arena, r.n + 1, int);
    search(&s, out);
    if (!want->space->trainer)
        report(&r, out);
    if (s.best >= want->below) {
        s.best = want->below;
        s.taken = -1;
    }
    if (s.taken >= 0) {
        const struct grid_candidate *best = &r.row[s.taken];
        out->found = true;
        out->line = best->line;
        out->step_sec = best->step_sec;
        out->microbatches = r.at_once[best->at_once].microbatches;
        out->peak_bytes = (int64_t)best->bytes;
    }
    find_simplest(&s, out);
    sum_up(&r, out);
    if (!out->leanest && isfinite(r.leanest_bytes)) {
        out->leanest = ap_arena_dup(arena, &r.leanest, sizeof r.leanest);
        out->leanest_bytes = r.leanest_bytes;
    }
    out->why_not = ap_arena_strdup(arena, r.why.msg);
    grid_end(&r);
    return 0;
}

int grid_take(struct ap_arena *arena, const struct stage_model *m,
              const struct grid_found *found, const struct ap_stages *like,
              struct ap_stages *stages, struct stage_result *out, struct ap_err *err)
{
    const bool simple = found->simple.found;
    struct line_model model;
    struct line_maker k = {.arena = arena,
                           .model = &model,
                           .line = simple ? found->simple.line : found->line,
                           .stages = stages};
    struct ap_pipeline_price price;

    *stages = *like;
    grid_model_find(arena, m, &model);
    if (grid_build(&k, m, &price, err))
        return -1;
    stages->algorithm = like->algorithm;
    stages->stopped = like->stopped;
    /* the bound of plans made of fronts, which a line may be below */
    if (found->step_sec < like->lower_bound_sec)
        stages->lower_bound_sec = fmin(like->lower_bound_sec, found->least_sec);
    (void)ap_pipeline_measure(&model.of, stages, 0, &price);
    assert(price.result.step_sec <= /* or not that line */
           (simple ? found->simple.step_sec : found->step_sec) * (1 + 1e-9));
    if (grid_write(&k, price.result.step_sec, price.peak_bytes, out, err))
        return -1;
    out->bound_sec = stages->lower_bound_sec;
    return 0;
}

void grid_put_rows(struct ap_arena *arena, const struct grid_found *found,
                   struct ap_buf *section)
{
    assert(section->data[section->len - 1] == '}');
    section->len--; /* the object goes on */
    ap_put_key(section, "grids");
    ap_buf_putc(section, '[');
    for (int f = 0, n = 0; f < N_GRIDS; f++) {
        const struct grid_row *row = &found->row[f];
        if (!row->found)
            continue;
        ap_buf_puts(section, n++ ? ",{\"name\":" : "{\"name\":");
        ap_json_str(section, grid_spaces[f].name);
        ap_put_str(section, "line", ap_line_text(arena, &row->line));
        ap_put_key(section, "step_sec");
        ap_json_num(section, row->step_sec);
        ap_put_int(section, "peak_bytes", row->peak_bytes);
        if (f == GRID_ZERO_BUBBLE && isfinite(found->whole_sec)) {
            ap_put_key(section, "whole_sec");
            ap_json_num(section, found->whole_sec);
        }
        ap_buf_putc(section, '}');
    }
    ap_buf_puts(section, "]}");
}
