/* Tables of measured times: looking up, reading, writing. */
#include "cost/measured.h"

#include <math.h>
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

double ap_share_at(const struct ap_share_row *row, int n, double size)
{
    int i = 0;

    while (i < n && row[i].size <= size)
        i++;
    if (i == 0 || i == n)
        return row[i == 0 ? 0 : n - 1].of_peak;
    const struct ap_share_row *a = &row[i - 1], *b = &row[i];
    double t0 = a->size / a->of_peak, t1 = b->size / b->of_peak;
    return size / (t0 + (t1 - t0) * (size - a->size) / (b->size - a->size));
}

const struct ap_rate *ap_measured_rate(const struct ap_measured *m, enum ap_kernel kernel,
                                       enum ap_dtype dtype, enum ap_phase phase,
                                       double width)
{
    const struct ap_rate *best = NULL;
    double least = INFINITY;

    for (int i = 0; i < m->n_rates; i++) {
        const struct ap_rate *r = &m->rate[i];
        if (r->kernel != kernel || !(r->dtypes >> dtype & 1))
            continue;
        if (kernel != AP_KERNEL_ATTENTION)
            return r;
        const double apart = fabs(log(width / r->width));
        if (r->phase == phase && apart < least) {
            best = r;
            least = apart;
        }
    }
    return best;
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

/* Whether the time falls where the size rises; of what is no dot the share must not fall
 * either, so that no part of a kernel reaches more than the kernel. */
static int check_rows(const struct ap_at *list, const struct ap_share_row *row, int n,
                      bool by_part, struct ap_err *err)
{
    for (int i = 1; i < n; i++) {
        const struct ap_at here = {list, NULL, i};
        if (row[i].size <= row[i - 1].size)
            return ap_at_err(&here, err, "expected a larger size than in the row before");
        if (row[i].size / row[i].of_peak < row[i - 1].size / row[i - 1].of_peak)
            return ap_at_err(&here, err,
                             "a larger size would take less time than in the row before");
        if (by_part && row[i].of_peak < row[i - 1].of_peak)
            return ap_at_err(&here, err, "a larger size reaches less of the peak");
    }
    return 0;
}

int ap_shares_from_json(const json_t *rows, const struct ap_at *at, const char *size,
                        struct ap_share_row *row, int *n, struct ap_err *err)
{
    const size_t count = json_array_size(rows);

    if (count < 1 || count > AP_MAX_SHARE_ROWS)
        return ap_at_err(at, err, "expected 1 to %d rows, got %zu", AP_MAX_SHARE_ROWS,
                         count);
    for (size_t i = 0; i < count; i++) {
        const struct ap_at here = {at, NULL, (long)i};
        const json_t *from = json_array_get(rows, i);
        if (ap_get_num(from, &here, size, &row[i].size, err) ||
            ap_get_num(from, &here, "of_peak", &row[i].of_peak, err))
            return -1;
        const struct ap_at size_at = {&here, size, 0}, share_at = {&here, "of_peak", 0};
        if (!(row[i].size >= 1 && row[i].size <= 1e30))
            return ap_at_err(&size_at, err, "expected a number from 1 to 1e+30, got %g",
                             row[i].size);
        if (!(row[i].of_peak >= 1e-6 && row[i].of_peak <= 1))
            return ap_at_err(&share_at, err, "expected a number from 1e-06 to 1, got %g",
                             row[i].of_peak);
    }
    *n = (int)count;
    return check_rows(at, row, *n, false, err);
}

static int get_dtypes(const json_t *o, const struct ap_at *at, uint32_t *dtypes,
                      struct ap_err *err)
{
    const struct ap_at list_at = {at, "dtypes", 0};
    json_t *list;

    if (ap_get_arr(o, at, "dtypes", &list, err))
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const struct ap_at here = {&list_at, NULL, (long)i};
        const char *name = json_string_value(json_array_get(list, i));
        enum ap_dtype dtype = name ? ap_dtype_find(name, strlen(name)) : AP_N_DTYPES;
        if (dtype == AP_N_DTYPES || dtype == AP_TUPLE)
            return ap_at_err(&here, err, "no element type has this name");
        *dtypes |= 1u << dtype;
    }
    return *dtypes ? 0 : ap_at_err(&list_at, err, "expected an element type");
}

static int get_rate(const json_t *o, const struct ap_at *at, struct ap_rate *r,
                    struct ap_err *err)
{
    const struct ap_at kernel_at = {at, "kernel", 0}, phase_at = {at, "phase", 0};
    const struct ap_at width_at = {at, "width", 0}, rows_at = {at, "of_peak", 0};
    const char *kernel, *phase = "";

    if (ap_get_str(o, at, "kernel", &kernel, err) || get_dtypes(o, at, &r->dtypes, err) ||
        ap_shares_from_json(json_object_get(o, "of_peak"), &rows_at, "size", r->row,
                            &r->n, err))
        return -1;
    r->kernel = ap_kernel_find(kernel);
    if (r->kernel != AP_KERNEL_DOT && r->kernel != AP_KERNEL_GROUPED &&
        r->kernel != AP_KERNEL_ATTENTION)
        return ap_at_err(&kernel_at, err, "expected dot, grouped or attention");
    if (r->kernel == AP_KERNEL_DOT)
        return 0;
    if (r->kernel == AP_KERNEL_ATTENTION) {
        if (ap_get_str(o, at, "phase", &phase, err) ||
            ap_get_num(o, at, "width", &r->width, err))
            return -1;
        r->phase = strcmp(phase, "backward") == 0 ? AP_BACKWARD : AP_FORWARD;
        if (r->phase == AP_FORWARD && strcmp(phase, "forward") != 0)
            return ap_at_err(&phase_at, err, "expected forward or backward");
        if (!(r->width >= 1 && r->width <= 1e6))
            return ap_at_err(&width_at, err, "expected a number from 1 to 1e+06");
    }
    return check_rows(&rows_at, r->row, r->n, true, err);
}

/* Whether one of them is found where r would be. */
static bool has_rate(const struct ap_measured *m, const struct ap_rate *r)
{
    for (int i = 0; i < m->n_rates; i++)
        if (m->rate[i].kernel == r->kernel && m->rate[i].dtypes & r->dtypes &&
            m->rate[i].phase == r->phase && m->rate[i].width == r->width)
            return true;
    return false;
}

static int get_rates(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                     struct ap_measured *m, struct ap_err *err)
{
    const struct ap_at list_at = {at, "rates", 0};
    json_t *list;

    if (get_list(o, at, "rates", &list, err))
        return -1;
    struct ap_rate *r = AP_NEW_N(arena, json_array_size(list) + 1, struct ap_rate);
    m->rate = r;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const struct ap_at here = {&list_at, NULL, (long)i};
        if (get_rate(json_array_get(list, i), &here, &r[i], err))
            return -1;
        if (has_rate(m, &r[i]))
            return ap_at_err(&here, err, "a second table of this kernel and type");
        m->n_rates++;
    }
    return 0;
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
    return get_rates(arena, o, at, m, err);
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

void ap_shares_put(const struct ap_share_row *row, int n, const char *size,
                   struct ap_buf *out)
{
    for (int i = 0; i < n; i++) {
        ap_buf_printf(out, "%s{\"%s\":", i ? "," : "[", size);
        ap_json_num(out, row[i].size);
        ap_buf_puts(out, ",\"of_peak\":");
        ap_json_num(out, row[i].of_peak);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

static void put_rate(const struct ap_rate *r, struct ap_buf *out)
{
    const char *sep = "[";

    ap_buf_printf(out, "{\"kernel\":\"%s\",\"dtypes\":", ap_kernel_names[r->kernel]);
    for (int t = 0; t < AP_N_DTYPES; t++) {
        if (!(r->dtypes >> t & 1))
            continue;
        ap_buf_printf(out, "%s\"%s\"", sep, ap_dtype_name((enum ap_dtype)t));
        sep = ",";
    }
    ap_buf_putc(out, ']');
    if (r->kernel == AP_KERNEL_ATTENTION) {
        ap_put_str(out, "phase", r->phase == AP_BACKWARD ? "backward" : "forward");
        ap_put_key(out, "width");
        ap_json_num(out, r->width);
    }
    ap_put_key(out, "of_peak");
    ap_shares_put(r->row, r->n, "size", out);
    ap_buf_putc(out, '}');
}

static void put_rates(const struct ap_measured *m, struct ap_buf *out)
{
    for (int i = 0; i < m->n_rates; i++) {
        if (i == 0)
            ap_put_key(out, "rates");
        ap_buf_putc(out, i ? ',' : '[');
        put_rate(&m->rate[i], out);
    }
    if (m->n_rates > 0)
        ap_buf_putc(out, ']');
}

void ap_measured_put_kernels(const struct ap_measured *m, struct ap_buf *out)
{
    put_rates(m, out);
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
