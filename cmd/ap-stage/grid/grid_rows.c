/*
 * Problem: the best plan that a line of --grid can say, by its price.
 * Idea: lines are listed (grid_lines.c) and estimated (grid_estimate.c); in the order of
 * their estimates their plans are made and priced as --grid makes them, until an estimate
 * is no longer below the best price, or the plan to beat; the first line of each schedule
 * is priced whatever is beaten, since one schedule's estimates may all be above. Cost:
 * MOST_PRICED plans for each grid that the line is of, so that the answer for all is no
 * worse than any grid's alone.
 */
#include "base/array.h"
#include "grid/grid_rows.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "grid/grid_rows_impl.h"

/* Lines of a grid that are priced whole, at most, in the order of their estimates. */
#define MOST_PRICED 16
/* A stage is not quite the sum of its blocks: an estimate may be above the price by so
 * much. Chosen, not measured. */
#define SLACK 1.01

const char *const grid_names[N_GRIDS] = {"data", "deepspeed-moe-grid", "megatron-grid"};

static bool is_of(enum grid_family family, const struct ap_line *l)
{
    if (family == GRID_MEGATRON)
        return true;
    if (l->pipeline > 1 || l->degrees.context > 1)
        return false;
    return family == GRID_DEEPSPEED ? l->degrees.expert > 1
                                    : l->degrees.tensor == 1 && l->degrees.expert == 1;
}

static int number_classes(struct grid_rows *r, struct ap_err *err)
{
    const struct stage_model *m = r->m;
    const int n = m->blocks.n;

    r->class_of = AP_NEW_N(r->arena, n, int);
    r->class = AP_NEW_N(r->arena, n, struct grid_class);
    for (int b = 0; b < n; b++) {
        const int first = m->twin[b * n + b];
        r->class_of[b] = first < b ? r->class_of[first] : r->n_classes;
        if (first < b)
            continue;
        struct grid_class *class = &r->class[r->n_classes++];
        class->block = b;
        if (ap_subgraph_blocks(r->arena, &m->graph, m->blocks.block_of, b, b, &class->sub,
                               err) ||
            ap_nests_build(r->arena, &class->sub.graph, &class->nests, err))
            return -1;
        class->experts = ap_has_experts(r->arena, &class->sub.graph, &class->nests);
        r->experts |= class->experts;
    }
    return 0;
}

static int compare_rows(const void *pa, const void *pb)
{
    const struct grid_candidate *a = *(const struct grid_candidate *const *)pa;
    const struct grid_candidate *b = *(const struct grid_candidate *const *)pb;

    if (a->step_sec != b->step_sec)
        return a->step_sec < b->step_sec ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* The plan of a line, by its price; false: it is none, or does not fit. */
static bool price_row(const struct grid_rows *r, struct grid_candidate *row)
{
    struct ap_arena own = {0};
    struct ap_stages stages = {.each = r->want->each, .resharding = r->want->resharding};
    struct ap_line_maker k = {
        .arena = &own, .model = &r->model, .line = row->line, .stages = &stages};
    const struct plan_instance *inst = r->want->inst;
    struct ap_pipeline_price price;
    struct ap_err why = {0};
    bool fits = false;

    if (grid_build(&k, r->m, &price, &why) == 0) {
        const int64_t peak = stage_result_peak(&own, r->m, inst, &stages, &price);
        row->step_sec = price.result.step_sec;
        row->bytes = (double)peak;
        fits = inst->memory_bytes == 0 || peak <= inst->memory_bytes;
    }
    ap_arena_free(&own);
    return fits;
}

static void report(const struct grid_candidate *row, bool priced, struct grid_found *out)
{
    for (int f = 0; f < N_GRIDS; f++) {
        struct grid_row *to = &out->row[f];
        if (!is_of((enum grid_family)f, &row->line) ||
            (to->found && (to->priced > priced ||
                           (to->priced == priced && to->step_sec <= row->step_sec))))
            continue;
        *to = (struct grid_row){.family = (enum grid_family)f,
                                .found = true,
                                .line = row->line,
                                .step_sec = row->step_sec,
                                .peak_bytes = (int64_t)row->bytes,
                                .priced = priced};
    }
}

/* Counts the line for the grids that it is of; false: all of these have priced enough. */
static bool is_wanted(const struct ap_line *l, int n_priced[N_GRIDS])
{
    bool wanted = false;

    for (int f = 0; f < N_GRIDS; f++)
        if (is_of((enum grid_family)f, l) && n_priced[f] < MOST_PRICED) {
            n_priced[f]++;
            wanted = true;
        }
    return wanted;
}

static void price_rows(struct grid_rows *r, struct grid_candidate **row, int n,
                       struct grid_found *out)
{
    double best = r->want->below;
    int n_priced[N_GRIDS] = {0};
    unsigned schedules = 0; /* bits: of lines that were priced */

    for (int i = 0; i < n; i++)
        report(row[i], false, out);
    for (int i = 0; i < n; i++) {
        const unsigned its = 1u << row[i]->line.schedule;
        const bool first = !(schedules & its), near = row[i]->step_sec < SLACK * best;
        if (!first && (!near || !is_wanted(&row[i]->line, n_priced)))
            continue;
        schedules |= its;
        out->n_priced++;
        if (!price_row(r, row[i]))
            continue;
        report(row[i], true, out);
        if (row[i]->step_sec >= best)
            continue;
        best = out->step_sec = row[i]->step_sec;
        out->microbatches = row[i]->stages.microbatches;
        out->peak_bytes = (int64_t)row[i]->bytes;
        out->found = true;
        out->line = row[i]->line;
    }
}

int grid_search(struct ap_arena *arena, const struct stage_model *m,
                const struct grid_want *want, struct grid_found *out, struct ap_err *err)
{
    struct grid_rows r = {.arena = arena, .m = m, .want = want, .least_sec = INFINITY};
    int n = 0;

    *out = (struct grid_found){.step_sec = INFINITY};
    grid_model_find(arena, m, &r.model);
    if (number_classes(&r, err) || grid_list(&r, err) || grid_estimate(&r, err))
        return -1;
    struct grid_candidate **row = AP_NEW_N(arena, r.n + 1, struct grid_candidate *);
    for (int i = 0; i < r.n; i++)
        if (r.row[i].fits && is_of(want->family, &r.row[i].line))
            row[n++] = &r.row[i];
    qsort(row, (size_t)n, AP_ITEM_BYTES(row), compare_rows);
    price_rows(&r, row, n, out);
    out->n_lines = r.n;
    out->least_sec = r.least_sec;
    out->why_not = ap_arena_strdup(arena, r.why.msg);
    return 0;
}

int grid_take(struct ap_arena *arena, const struct stage_model *m,
              const struct grid_found *found, const struct ap_stages *like,
              struct ap_stages *stages, struct stage_result *out, struct ap_err *err)
{
    struct ap_line_model model;
    struct ap_line_maker k = {
        .arena = arena, .model = &model, .line = found->line, .stages = stages};
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
    assert(price.result.step_sec <= found->step_sec * (1 + 1e-9)); /* or not that line */
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
        ap_json_str(section, grid_names[f]);
        ap_put_str(section, "line", ap_line_text(arena, &row->line));
        ap_put_key(section, "step_sec");
        ap_json_num(section, row->step_sec);
        ap_put_int(section, "peak_bytes", row->peak_bytes);
        ap_buf_printf(section, ",\"estimated\":%s}", row->priced ? "false" : "true");
    }
    ap_buf_puts(section, "]}");
}
