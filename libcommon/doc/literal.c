#include "doc/literal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"
#include "graph/element.h"

static bool is_complex(enum ap_dtype dtype)
{
    return dtype == AP_C64 || dtype == AP_C128;
}

/* Dtype of a complex dtype's parts, or dtype itself. */
static enum ap_dtype part_of(enum ap_dtype dtype)
{
    return dtype == AP_C64 ? AP_F32 : dtype == AP_C128 ? AP_F64 : dtype;
}

/* ---- reading ---- */

static int read_float(const json_t *v, enum ap_dtype dtype, const struct ap_at *at,
                      void *out, struct ap_err *err)
{
    double x;

    if (json_is_number(v)) {
        x = json_number_value(v);
    } else if (json_is_string(v)) {
        const char *s = json_string_value(v);
        const char *bare = s + (*s == '-');
        if (strcmp(bare, "inf") && strcmp(bare, "nan"))
            return ap_at_err(at, err, "expected a number, \"nan\", \"inf\" or \"-inf\"");
        x = strcmp(bare, "inf") ? (double)NAN : *s == '-' ? -INFINITY : INFINITY;
    } else {
        return ap_at_err(at, err, "expected a number");
    }
    if (!ap_elem_from_double(dtype, x, out))
        return ap_at_err(at, err, "%g does not fit in %s", x, ap_dtype_name(dtype));
    return 0;
}

static int read_int(const json_t *v, enum ap_dtype dtype, const struct ap_at *at,
                    void *out, struct ap_err *err)
{
    if (json_is_string(v) && dtype == AP_U64) {
        const char *s = json_string_value(v);
        char *end;
        errno = 0;
        unsigned long long u = strtoull(s, &end, 10);
        if (*s < '0' || *s > '9' || *end || errno)
            return ap_at_err(at, err, "expected an integer of type u64");
        memcpy(out, &u, sizeof(u));
        return 0;
    }
    if (!json_is_integer(v))
        return ap_at_err(at, err, "expected an integer of type %s", ap_dtype_name(dtype));
    if (!ap_elem_from_int(dtype, json_integer_value(v), out))
        return ap_at_err(at, err, "%" PRId64 " does not fit in %s",
                         (int64_t)json_integer_value(v), ap_dtype_name(dtype));
    return 0;
}

static int read_elem(const json_t *v, enum ap_dtype dtype, const struct ap_at *at,
                     void *out, struct ap_err *err)
{
    if (dtype == AP_PRED) {
        if (!json_is_boolean(v))
            return ap_at_err(at, err, "expected true or false");
        *(unsigned char *)out = json_is_true(v);
        return 0;
    }
    if (ap_dtype_is_int(dtype))
        return read_int(v, dtype, at, out, err);
    if (!is_complex(dtype))
        return read_float(v, dtype, at, out, err);
    if (json_array_size(v) != 2)
        return ap_at_err(at, err, "expected a pair [re,im]");
    for (size_t i = 0; i < 2; i++) {
        struct ap_at here = {at, NULL, (long)i};
        char *half = (char *)out + i * (size_t)ap_dtype_size(dtype) / 2;
        if (read_float(json_array_get(v, i), part_of(dtype), &here, half, err))
            return -1;
    }
    return 0;
}

/* A flat array, as opposed to one complex number. */
static bool is_list(const json_t *v, enum ap_dtype dtype)
{
    if (!json_is_array(v))
        return false;
    return !is_complex(dtype) || json_array_size(v) == 0 ||
           json_is_array(json_array_get(v, 0));
}

int ap_literal_from_json(struct ap_arena *arena, const json_t *value,
                         const struct ap_shape *shape, const struct ap_at *at,
                         struct ap_literal *literal, struct ap_err *err)
{
    size_t size = (size_t)ap_dtype_size(shape->dtype);
    const char *word = json_string_value(value);

    *literal = (struct ap_literal){0};
    if (shape->dtype == AP_TUPLE)
        return ap_at_err(at, err, "a tuple has no value");
    if (word && !strcmp(word, "elided")) {
        literal->elided = true;
        return 0;
    }
    if (!is_list(value, shape->dtype)) {
        char *data = ap_arena_alloc(arena, 16);
        literal->splat = true;
        literal->data = data;
        return read_elem(value, shape->dtype, at, data, err);
    }
    size_t n = json_array_size(value);
    if ((int64_t)n != ap_shape_elems(shape) || shape->rank == 0)
        return ap_at_err(at, err, "expected %" PRId64 " elements, got an array of %zu",
                         ap_shape_elems(shape), n);
    char *data = ap_arena_alloc_n(arena, n, size);
    for (size_t i = 0; i < n; i++) {
        struct ap_at here = {at, NULL, (long)i};
        if (read_elem(json_array_get(value, i), shape->dtype, &here, data + i * size,
                      err))
            return -1;
    }
    literal->data = data;
    return 0;
}

/* ---- writing ---- */

/*
 * Shortest decimal of 6 digits or more that reads back as the same float, also for the
 * narrow types: whoever reads it as a double is off by rounding only.
 */
static void write_float(enum ap_dtype dtype, const void *p, struct ap_buf *out)
{
    double v = ap_elem_to_double(dtype, p);
    char text[40];

    if (dtype == AP_F64 && isfinite(v)) {
        ap_json_num(out, v);
        return;
    }
    if (isnan(v) || isinf(v)) {
        ap_buf_puts(out, isnan(v) ? "\"nan\"" : v > 0 ? "\"inf\"" : "\"-inf\"");
        return;
    }
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if ((float)strtod(text, NULL) == (float)v)
            break;
    }
    ap_buf_puts(out, text);
    if (!strcmp(text, "-0")) /* an integer -0 would read back as 0 */
        ap_buf_puts(out, ".0");
}

static void write_elem(enum ap_dtype dtype, const void *p, struct ap_buf *out)
{
    if (dtype == AP_PRED) {
        ap_buf_puts(out, *(const unsigned char *)p ? "true" : "false");
    } else if (ap_dtype_is_int(dtype)) {
        int64_t v = ap_elem_to_int(dtype, p);
        if (dtype == AP_U64 && v < 0)
            ap_buf_printf(out, "\"%" PRIu64 "\"", (uint64_t)v);
        else
            ap_buf_int(out, v);
    } else if (is_complex(dtype)) {
        ap_buf_putc(out, '[');
        write_float(part_of(dtype), p, out);
        ap_buf_putc(out, ',');
        write_float(part_of(dtype), (const char *)p + ap_dtype_size(dtype) / 2, out);
        ap_buf_putc(out, ']');
    } else {
        write_float(dtype, p, out);
    }
}

void ap_literal_to_json(const struct ap_literal *literal, const struct ap_shape *shape,
                        struct ap_buf *out)
{
    if (literal->elided) {
        ap_buf_puts(out, "\"elided\"");
        return;
    }
    if (literal->splat || shape->rank == 0) {
        write_elem(shape->dtype, literal->data, out);
        return;
    }
    const char *p = literal->data;
    int64_t n = ap_shape_elems(shape);
    ap_buf_putc(out, '[');
    for (int64_t i = 0; i < n; i++) {
        if (i)
            ap_buf_putc(out, ',');
        write_elem(shape->dtype, p + i * ap_dtype_size(shape->dtype), out);
    }
    ap_buf_putc(out, ']');
}
