/* Tables of measured times: looking up, reading, writing. */
#include "cost/measured.h"

#include <string.h>

#include "base/text.h"

/* ---- looking up ---- */

double ap_time_at(const struct ap_time_rows *rows, double size, double at_zero)
{
    const struct ap_time_row *row = rows->row;
    int i = 0;

    if (rows->n == 0)
        return at_zero;
    while (i < rows->n && row[i].size < size)
        i++;
    if (i == rows->n)
        return row[i - 1].sec * (size / row[i - 1].size);
    double s0 = i ? row[i - 1].size : 0, t0 = i ? row[i - 1].sec : at_zero;
    return t0 + (row[i].sec - t0) * (size - s0) / (row[i].size - s0);
}

double ap_kernel_time_at(const struct ap_kernel_time *t, double flops, double bytes)
{
    return t->launch_sec + ap_time_at(&t->flops, flops, 0) +
           ap_time_at(&t->bytes, bytes, 0);
}

const struct ap_kernel_time *ap_measured_kernel(const struct ap_measured *m,
                                                enum ap_kernel kernel,
                                                enum ap_dtype dtype)
{
    for (int i = 0; i < m->n_kernels; i++)
        if (m->kernel[i].kernel == kernel && m->kernel[i].dtype == dtype)
            return &m->kernel[i];
    return NULL;
}

const struct ap_collective_time *ap_measured_collective(const struct ap_measured *m,
                                                        enum ap_op op, int level,
                                                        int64_t devices, int64_t rings)
{
    for (int i = 0; i < m->n_collectives; i++) {
        const struct ap_collective_time *t = &m->collective[i];
        if (t->op == op && t->level == level && t->devices == devices &&
            t->rings == rings)
            return t;
    }
    return NULL;
}

const struct ap_send_time *ap_measured_send(const struct ap_measured *m, int level)
{
    for (int i = 0; i < m->n_sends; i++)
        if (m->send[i].level == level)
            return &m->send[i];
    return NULL;
}

/* ---- reading ---- */

/* Rows of the member `key`; none if it is absent. */
static int get_rows(const json_t *o, const struct ap_at *at, const char *key,
                    struct ap_time_rows *rows, struct ap_err *err)
{
    const struct ap_at list = {at, key, 0};
    json_t *from;

    if (!json_object_get(o, key))
        return 0;
    if (ap_get_arr(o, at, key, &from, err))
        return -1;
    const size_t n = json_array_size(from);
    if (n < 1 || n > AP_MAX_TIME_ROWS)
        return ap_at_err(&list, err, "expected 1 to %d rows, got %zu", AP_MAX_TIME_ROWS,
                         n);
    for (size_t i = 0; i < n; i++) {
        const struct ap_at here = {&list, NULL, (long)i};
        struct ap_time_row *row = &rows->row[i];
        if (ap_get_num(json_array_get(from, i), &here, "size", &row->size, err) ||
            ap_get_num(json_array_get(from, i), &here, "sec", &row->sec, err))
            return -1;
        if (!(row->size >= 1e-3 && row->size <= 1e30))
            return ap_at_err(&here, err, "expected a size from 1e-3 to 1e30, got %g",
                             row->size);
        if (!(row->sec >= 0 && row->sec <= 1e6))
            return ap_at_err(&here, err, "expected from 0 to 1e+06 seconds, got %g",
                             row->sec);
        if (i > 0 && !(row->size > row[-1].size))
            return ap_at_err(&here, err, "expected a larger size than in the row before");
        if (i > 0 && row->sec < row[-1].sec)
            return ap_at_err(&here, err, "takes less time than the row before");
    }
    rows->n = (int)n;
    return 0;
}

/* The list `key`, absent: NULL. */
static int get_list(const json_t *o, const struct ap_at *at, const char *key,
                    json_t **list, struct ap_err *err)
{
    const struct ap_at here = {at, key, 0};

    *list = NULL;
    if (!json_object_get(o, key))
        return 0;
    if (ap_get_arr(o, at, key, list, err))
        return -1;
    const size_t n = json_array_size(*list);
    if (n > AP_MAX_TIMES)
        return ap_at_err(&here, err, "expected at most %d tables, got %zu", AP_MAX_TIMES,
                         n);
    return 0;
}

static int get_kernel(const json_t *o, const struct ap_at *at, struct ap_kernel_time *t,
                      struct ap_err *err)
{
    const struct ap_at kernel_at = {at, "kernel", 0}, dtype_at = {at, "dtype", 0};
    const struct ap_at launch_at = {at, "launch_sec", 0};
    const char *kernel, *dtype;

    if (ap_get_str(o, at, "kernel", &kernel, err) ||
        ap_get_str(o, at, "dtype", &dtype, err) ||
        ap_get_num(o, at, "launch_sec", &t->launch_sec, err))
        return -1;
    t->kernel = ap_kernel_find(kernel);
    if (t->kernel == AP_N_KERNELS)
        return ap_at_err(&kernel_at, err, "no kernel has this name");
    t->dtype = ap_dtype_find(dtype, strlen(dtype));
    if (t->dtype == AP_N_DTYPES || t->dtype == AP_TUPLE)
        return ap_at_err(&dtype_at, err, "no element type has this name");
    if (!(t->launch_sec >= 0 && t->launch_sec <= 1e6))
        return ap_at_err(&launch_at, err, "expected from 0 to 1e+06 seconds, got %g",
                         t->launch_sec);
    return get_rows(o, at, "flops", &t->flops, err) ||
                   get_rows(o, at, "bytes", &t->bytes, err)
               ? -1
               : 0;
}

int ap_measured_kernels_from_json(struct ap_arena *arena, const json_t *o,
                                  const struct ap_at *at, struct ap_measured *m,
                                  struct ap_err *err)
{
    const struct ap_at list_at = {at, "kernels", 0};
    json_t *list;

    if (get_list(o, at, "kernels", &list, err))
        return -1;
    struct ap_kernel_time *t =
        AP_NEW_N(arena, json_array_size(list) + 1, struct ap_kernel_time);
    m->kernel = t;
    m->n_kernels = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const struct ap_at here = {&list_at, NULL, (long)i};
        if (get_kernel(json_array_get(list, i), &here, &t[i], err))
            return -1;
        if (ap_measured_kernel(m, t[i].kernel, t[i].dtype))
            return ap_at_err(&here, err, "a second table of this kernel and type");
        m->n_kernels++;
    }
    return 0;
}

/* The level by its name, and rows by bytes. */
static int get_link(const json_t *o, const struct ap_at *at, const char *const *level,
                    int n_levels, int *number, struct ap_time_rows *rows,
                    struct ap_err *err)
{
    const struct ap_at level_at = {at, "level", 0}, rows_at = {at, "bytes", 0};
    const char *name;

    if (ap_get_str(o, at, "level", &name, err) || get_rows(o, at, "bytes", rows, err))
        return -1;
    *number = 0;
    while (*number < n_levels && strcmp(level[*number], name) != 0)
        ++*number;
    if (*number == n_levels)
        return ap_at_err(&level_at, err, "no level has this name");
    if (rows->n == 0)
        return ap_at_err(&rows_at, err, "expected 1 to %d rows, got 0", AP_MAX_TIME_ROWS);
    return 0;
}

static int get_collective(const json_t *o, const struct ap_at *at,
                          const char *const *level, int n_levels,
                          struct ap_collective_time *t, struct ap_err *err)
{
    const struct ap_at op_at = {at, "op", 0};
    const char *op;

    if (ap_get_str(o, at, "op", &op, err) ||
        get_link(o, at, level, n_levels, &t->level, &t->bytes, err) ||
        ap_get_int(o, at, "devices", 2, 1 << 20, &t->devices, err) ||
        ap_get_int(o, at, "rings", 1, 1 << 20, &t->rings, err))
        return -1;
    t->op = ap_op_find(op, strlen(op));
    if (t->op == AP_N_OPS || ap_ops[t->op].class != AP_CLASS_COLLECTIVE)
        return ap_at_err(&op_at, err, "no collective has this name");
    return 0;
}

int ap_measured_links_from_json(struct ap_arena *arena, const json_t *o,
                                const struct ap_at *at, const char *const *level,
                                int n_levels, struct ap_measured *m, struct ap_err *err)
{
    const struct ap_at list_at = {at, "collectives", 0}, sends_at = {at, "sends", 0};
    json_t *list, *sends;

    if (get_list(o, at, "collectives", &list, err) ||
        get_list(o, at, "sends", &sends, err))
        return -1;
    struct ap_collective_time *t =
        AP_NEW_N(arena, json_array_size(list) + 1, struct ap_collective_time);
    struct ap_send_time *s =
        AP_NEW_N(arena, json_array_size(sends) + 1, struct ap_send_time);
    m->collective = t;
    m->send = s;
    m->n_collectives = m->n_sends = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const struct ap_at here = {&list_at, NULL, (long)i};
        if (get_collective(json_array_get(list, i), &here, level, n_levels, &t[i], err))
            return -1;
        if (ap_measured_collective(m, t[i].op, t[i].level, t[i].devices, t[i].rings))
            return ap_at_err(
                &here, err,
                "a second table of this collective, level, devices and rings");
        m->n_collectives++;
    }
    for (size_t i = 0; i < json_array_size(sends); i++) {
        const struct ap_at here = {&sends_at, NULL, (long)i};
        if (get_link(json_array_get(sends, i), &here, level, n_levels, &s[i].level,
                     &s[i].bytes, err))
            return -1;
        if (ap_measured_send(m, s[i].level))
            return ap_at_err(&here, err, "a second table of this level");
        m->n_sends++;
    }
    return 0;
}

/* ---- writing ---- */

static void put_rows(const char *key, const struct ap_time_rows *rows, struct ap_buf *out)
{
    if (rows->n == 0)
        return;
    ap_put_key(out, key);
    for (int i = 0; i < rows->n; i++) {
        ap_buf_puts(out, i ? ",{\"size\":" : "[{\"size\":");
        ap_json_num(out, rows->row[i].size);
        ap_buf_puts(out, ",\"sec\":");
        ap_json_num(out, rows->row[i].sec);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

void ap_measured_put_kernels(const struct ap_measured *m, struct ap_buf *out)
{
    if (m->n_kernels == 0)
        return;
    ap_put_key(out, "kernels");
    for (int i = 0; i < m->n_kernels; i++) {
        const struct ap_kernel_time *t = &m->kernel[i];
        ap_buf_printf(out, "%s{\"kernel\":\"%s\",\"dtype\":\"%s\",\"launch_sec\":",
                      i ? "," : "[", ap_kernel_names[t->kernel], ap_dtype_name(t->dtype));
        ap_json_num(out, t->launch_sec);
        put_rows("flops", &t->flops, out);
        put_rows("bytes", &t->bytes, out);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

void ap_measured_put_links(const struct ap_measured *m, const char *const *level,
                           struct ap_buf *out)
{
    for (int i = 0; i < m->n_collectives; i++) {
        const struct ap_collective_time *t = &m->collective[i];
        ap_buf_printf(out, "%s{\"op\":\"%s\",\"level\":", i ? "," : ",\"collectives\":[",
                      ap_ops[t->op].name);
        ap_json_str(out, level[t->level]);
        ap_put_int(out, "devices", t->devices);
        ap_put_int(out, "rings", t->rings);
        put_rows("bytes", &t->bytes, out);
        ap_buf_puts(out, i + 1 < m->n_collectives ? "}" : "}]");
    }
    for (int i = 0; i < m->n_sends; i++) {
        ap_buf_puts(out, i ? ",{\"level\":" : ",\"sends\":[{\"level\":");
        ap_json_str(out, level[m->send[i].level]);
        put_rows("bytes", &m->send[i].bytes, out);
        ap_buf_puts(out, i + 1 < m->n_sends ? "}" : "}]");
    }
}

/* ---- other machines ---- */

static void divide(struct ap_time_rows *rows, double by)
{
    for (int i = 0; i < rows->n; i++)
        rows->row[i].sec /= by;
}

void ap_measured_faster(struct ap_arena *arena, struct ap_measured *m, double flops,
                        double bytes, double launch)
{
    struct ap_kernel_time *t = AP_NEW_N(arena, m->n_kernels + 1, struct ap_kernel_time);

    for (int i = 0; i < m->n_kernels; i++) {
        t[i] = m->kernel[i];
        t[i].launch_sec /= launch;
        divide(&t[i].flops, flops);
        divide(&t[i].bytes, bytes);
    }
    m->kernel = t;
}

static void speed_up(struct ap_time_rows *rows, double bandwidth, double latency)
{
    const double first = rows->row[0].sec;

    for (int k = 0; k < rows->n; k++)
        rows->row[k].sec = first / latency + (rows->row[k].sec - first) / bandwidth;
}

void ap_measured_faster_level(struct ap_arena *arena, struct ap_measured *m, int level,
                              double bandwidth, double latency)
{
    struct ap_collective_time *t =
        AP_NEW_N(arena, m->n_collectives + 1, struct ap_collective_time);
    struct ap_send_time *s = AP_NEW_N(arena, m->n_sends + 1, struct ap_send_time);

    for (int i = 0; i < m->n_collectives; i++) {
        t[i] = m->collective[i];
        if (t[i].level == level)
            speed_up(&t[i].bytes, bandwidth, latency);
    }
    for (int i = 0; i < m->n_sends; i++) {
        s[i] = m->send[i];
        if (s[i].level == level)
            speed_up(&s[i].bytes, bandwidth, latency);
    }
    m->collective = t;
    m->send = s;
}
