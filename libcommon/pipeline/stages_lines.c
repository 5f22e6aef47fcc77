/*
 * What a search for lines says beside its plan: the trainer that runs them, how many
 * there were, the best lines of grids, and the best plan where this is a simpler one.
 */
#include "pipeline/stages.h"

#include <stddef.h>

/* Lines that were searched, by what became of them. */
static const struct {
    const char *name;
    size_t at;
} counts[] = {{"legal", offsetof(struct ap_line_counts, legal)},
              {"priced", offsetof(struct ap_line_counts, priced)},
              {"too_large", offsetof(struct ap_line_counts, too_large)},
              {"too_slow", offsetof(struct ap_line_counts, too_slow)},
              {"no_plan", offsetof(struct ap_line_counts, no_plan)}};
#define N_COUNTS (sizeof counts / sizeof *counts)

void ap_stages_put_lines(const struct ap_stages *s, struct ap_buf *out)
{
    if (!s->for_trainer)
        return;
    ap_put_str(out, "for", s->for_trainer);
    ap_put_key(out, "lines");
    for (size_t i = 0; i < N_COUNTS; i++)
        ap_buf_printf(
            out, "%c\"%s\":%lld", i ? ',' : '{', counts[i].name,
            (long long)*(const int64_t *)((const char *)&s->lines + counts[i].at));
    ap_buf_putc(out, '}');
}

static int read_counts(const json_t *o, const struct ap_at *at, struct ap_stages *s,
                       struct ap_err *err)
{
    const struct ap_at here = {at, "lines", 0};
    const json_t *lines = json_object_get(o, "lines");

    for (size_t i = 0; lines && i < N_COUNTS; i++)
        if (ap_get_int(lines, &here, counts[i].name, 0, INT64_MAX,
                       (int64_t *)((char *)&s->lines + counts[i].at), err))
            return -1;
    return 0;
}

int ap_stages_read_lines(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                         struct ap_stages *s, struct ap_err *err)
{
    const json_t *list = json_object_get(o, "grids"), *best = json_object_get(o, "best");
    const struct ap_at of_best = {at, "best", 0};

    if (best && (ap_get_str(best, &of_best, "words", &s->best_words, err) ||
                 ap_get_num(best, &of_best, "step_sec", &s->best_sec, err)))
        return -1;
    s->best_words = best ? ap_arena_strdup(arena, s->best_words) : NULL;
    if (ap_opt_str(o, at, "for", &s->for_trainer, err) || read_counts(o, at, s, err))
        return -1;
    s->for_trainer = s->for_trainer ? ap_arena_strdup(arena, s->for_trainer) : NULL;
    s->grid = AP_NEW_N(arena, (int)json_array_size(list), struct ap_grid_row);
    for (; s->n_grids < (int)json_array_size(list); s->n_grids++) {
        const struct ap_at all = {at, "grids", 0}, one = {&all, NULL, s->n_grids};
        const json_t *from = json_array_get(list, (size_t)s->n_grids);
        struct ap_grid_row *row = &s->grid[s->n_grids];
        if (ap_get_str(from, &one, "name", &row->name, err) ||
            ap_get_str(from, &one, "line", &row->line, err) ||
            ap_get_num(from, &one, "step_sec", &row->step_sec, err) ||
            (json_object_get(from, "whole_sec") &&
             ap_get_num(from, &one, "whole_sec", &row->whole_sec, err)))
            return -1;
        row->name = ap_arena_strdup(arena, row->name);
        row->line = ap_arena_strdup(arena, row->line);
    }
    return 0;
}
