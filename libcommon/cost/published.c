#include "cost/published.h"

static const char *const type_names[] = {"16-bit", "narrow"};
static const char *const plan_names[] = {"one-stage", "pipeline", "experts"};

static int read_row(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                    struct ap_published *row, struct ap_err *err)
{
    *row = (struct ap_published){.types = -1, .plan = -1};
    if (ap_opt_name(o, at, "types", type_names, AP_N_PUBLISHED_TYPES, &row->types, err) ||
        ap_opt_name(o, at, "plan", plan_names, AP_N_PUBLISHED_PLANS, &row->plan, err) ||
        ap_get_int(o, at, "runs", 1, INT64_MAX, &row->runs, err) ||
        ap_get_int(o, at, "sources", 1, row->runs, &row->sources, err) ||
        ap_get_int(o, at, "devices", 1, INT64_MAX / 2, &row->devices, err) ||
        ap_get_num(o, at, "low", &row->low, err) ||
        ap_get_num(o, at, "median", &row->median, err) ||
        ap_get_num(o, at, "high", &row->high, err) ||
        ap_get_str(o, at, "of", &row->of, err))
        return -1;
    if (row->types < 0 || row->plan < 0)
        return ap_at_err(at, err, "expected types and plan");
    if (row->low <= 0 || row->low > row->median || row->median > row->high)
        return ap_at_err(at, err, "expected 0 < low <= median <= high");
    row->of = ap_arena_strdup(arena, row->of);
    return 0;
}

int ap_published_from_json(struct ap_arena *arena, const json_t *o,
                           const struct ap_at *at, struct ap_published *rows, int *n,
                           struct ap_err *err)
{
    const struct ap_at list = {at, "published", 0};
    json_t *array;

    *n = 0;
    if (!json_object_get(o, "published"))
        return 0;
    if (ap_get_arr(o, at, "published", &array, err))
        return -1;
    if (json_array_size(array) > AP_MAX_PUBLISHED)
        return ap_at_err(&list, err, "more than %d rows", AP_MAX_PUBLISHED);
    for (; *n < (int)json_array_size(array); (*n)++) {
        const struct ap_at here = {&list, NULL, *n};
        if (read_row(arena, json_array_get(array, (size_t)*n), &here, &rows[*n], err))
            return -1;
    }
    return 0;
}

void ap_published_put(const struct ap_published *rows, int n, struct ap_buf *out)
{
    ap_put_key(out, "published");
    ap_buf_putc(out, '[');
    for (int i = 0; i < n; i++) {
        const struct ap_published *r = &rows[i];
        ap_buf_printf(out, "%s{\"types\":\"%s\",\"plan\":\"%s\"", i ? "," : "",
                      type_names[r->types], plan_names[r->plan]);
        ap_put_int(out, "runs", r->runs);
        ap_put_int(out, "sources", r->sources);
        ap_put_int(out, "devices", r->devices);
        const double numbers[] = {r->low, r->median, r->high};
        for (int k = 0; k < 3; k++) {
            ap_put_key(out, (const char *const[]){"low", "median", "high"}[k]);
            ap_json_num(out, numbers[k]);
        }
        ap_put_str(out, "of", r->of);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

const struct ap_published *ap_published_near(const struct ap_published *rows, int n,
                                             enum ap_dtype dtype,
                                             enum ap_published_plan plan, int64_t devices)
{
    const int types =
        dtype == AP_F16 || dtype == AP_BF16
            ? AP_PUBLISHED_16_BIT
            : (ap_dtype_size(dtype) == 1 ? AP_PUBLISHED_NARROW : AP_N_PUBLISHED_TYPES);

    for (int i = 0; i < n; i++)
        if (rows[i].types == types && rows[i].plan == (int)plan &&
            devices <= 2 * rows[i].devices)
            return &rows[i];
    return NULL;
}
