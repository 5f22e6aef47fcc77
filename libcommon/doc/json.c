/* Reading and writing single JSON values; errors name a JSON pointer. */
#include "doc/doc.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- places ---- */

void ap_at_print(const struct ap_at *at, struct ap_buf *out)
{
    if (!at)
        return;
    ap_at_print(at->up, out);
    ap_buf_putc(out, '/');
    if (!at->key) {
        ap_buf_int(out, at->index);
        return;
    }
    for (const char *p = at->key; *p; p++) {
        if (*p == '~' || *p == '/')
            ap_buf_puts(out, *p == '~' ? "~0" : "~1");
        else
            ap_buf_putc(out, *p);
    }
}

int ap_at_err(const struct ap_at *at, struct ap_err *err, const char *fmt, ...)
{
    struct ap_buf where = {0};
    char msg[sizeof(err->msg)];
    va_list args;

    va_start(args, fmt);
    vsnprintf(msg, sizeof(msg), fmt, args);
    va_end(args);
    ap_at_print(at, &where);
    ap_err_set(err, "%s%s%s", where.len ? where.data : "", where.len ? ": " : "", msg);
    ap_buf_free(&where);
    return -1;
}

int ap_doc_err(const struct ap_doc *doc, struct ap_err *err)
{
    struct ap_err whole = {""};

    ap_err_set(&whole, "%s: %s", doc->file, err->msg);
    *err = whole;
    return -1;
}

static const char *type_name(const json_t *v)
{
    if (!v)
        return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number that is no integer";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "nothing";
}

/* Member key of o, or NULL with "expected <what>, got ..." set unless is_type holds. */
static json_t *member(const json_t *o, const struct ap_at *at, const char *key,
                      const char *what, struct ap_err *err)
{
    if (!json_is_object(o)) {
        ap_at_err(at, err, "expected an object, got %s", type_name(o));
        return NULL;
    }
    json_t *v = json_object_get(o, key);
    if (!v)
        ap_at_err(at, err, "member \"%s\" (%s) is missing", key, what);
    return v;
}

static int wrong_type(const struct ap_at *at, const char *what, const json_t *v,
                      struct ap_err *err)
{
    return ap_at_err(at, err, "expected %s, got %s", what, type_name(v));
}

static int to_int(const json_t *v, const struct ap_at *at, int64_t lo, int64_t hi,
                  int64_t *out, struct ap_err *err)
{
    if (!json_is_integer(v))
        return wrong_type(at, "an integer", v, err);
    *out = json_integer_value(v);
    if (*out >= lo && *out <= hi)
        return 0;
    if (hi == INT64_MAX)
        return ap_at_err(at, err, "expected an integer >= %" PRId64 ", got %" PRId64, lo,
                         *out);
    return ap_at_err(at, err,
                     "expected an integer from %" PRId64 " to %" PRId64 ", got %" PRId64,
                     lo, hi, *out);
}

int ap_get_int(const json_t *o, const struct ap_at *at, const char *key, int64_t lo,
               int64_t hi, int64_t *out, struct ap_err *err)
{
    struct ap_at here = {at, key, 0};
    const json_t *v = member(o, at, key, "an integer", err);

    return v ? to_int(v, &here, lo, hi, out, err) : -1;
}

int ap_get_num(const json_t *o, const struct ap_at *at, const char *key, double *out,
               struct ap_err *err)
{
    struct ap_at here = {at, key, 0};
    const json_t *v = member(o, at, key, "a number", err);

    if (!v)
        return -1;
    if (!json_is_number(v))
        return wrong_type(&here, "a number", v, err);
    *out = json_number_value(v);
    return 0;
}

int ap_get_str(const json_t *o, const struct ap_at *at, const char *key, const char **out,
               struct ap_err *err)
{
    struct ap_at here = {at, key, 0};
    const json_t *v = member(o, at, key, "a string", err);

    if (!v)
        return -1;
    if (!json_is_string(v))
        return wrong_type(&here, "a string", v, err);
    *out = json_string_value(v);
    return 0;
}

int ap_get_arr(const json_t *o, const struct ap_at *at, const char *key, json_t **out,
               struct ap_err *err)
{
    struct ap_at here = {at, key, 0};
    json_t *v = member(o, at, key, "an array", err);

    if (!v)
        return -1;
    if (!json_is_array(v))
        return wrong_type(&here, "an array", v, err);
    *out = v;
    return 0;
}

int ap_get_ints(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                const char *key, struct ap_ints *out, struct ap_err *err)
{
    struct ap_at list = {at, key, 0};
    const json_t *v = json_object_get(o, key);

    *out = (struct ap_ints){0};
    if (!v)
        return 0;
    if (!json_is_array(v))
        return wrong_type(&list, "an array of integers", v, err);
    size_t n = json_array_size(v);
    int64_t *ints = AP_NEW_N(arena, n, int64_t);
    for (size_t i = 0; i < n; i++) {
        struct ap_at here = {&list, NULL, (long)i};
        if (to_int(json_array_get(v, i), &here, INT64_MIN, INT64_MAX, &ints[i], err))
            return -1;
    }
    out->n = (int)n;
    out->v = ints;
    return 0;
}

int ap_get_ids(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
               const char *key, struct ap_id_range legal, const int **ids,
               struct ap_err *err)
{
    struct ap_at list = {at, key, 0};
    struct ap_ints ints;

    if (ap_get_ints(arena, o, at, key, &ints, err))
        return -1;
    if (legal.n >= 0 && ints.n != legal.n)
        return ap_at_err(&list, err, "expected %d integers, got %d", legal.n, ints.n);
    int *v = AP_NEW_N(arena, ints.n + 1, int);
    for (int i = 0; i < ints.n; i++) {
        struct ap_at item = {&list, NULL, i};
        if (ints.v[i] < legal.lo || ints.v[i] > legal.hi)
            return ap_at_err(&item, err, "expected an integer from %d to %d, got %lld",
                             legal.lo, legal.hi, (long long)ints.v[i]);
        v[i] = (int)ints.v[i];
    }
    *ids = v;
    return ints.n;
}

int ap_opt_str(const json_t *o, const struct ap_at *at, const char *key, const char **out,
               struct ap_err *err)
{
    return json_object_get(o, key) ? ap_get_str(o, at, key, out, err) : 0;
}

int ap_opt_int(const json_t *o, const struct ap_at *at, const char *key, int lo, int *out,
               struct ap_err *err)
{
    int64_t v;

    if (!json_object_get(o, key))
        return 0;
    if (ap_get_int(o, at, key, lo, INT_MAX, &v, err))
        return -1;
    *out = (int)v;
    return 0;
}

int ap_opt_name(const json_t *o, const struct ap_at *at, const char *key,
                const char *const *names, int n, int *out, struct ap_err *err)
{
    struct ap_at here = {at, key, 0};
    const char *s = NULL;

    if (ap_opt_str(o, at, key, &s, err))
        return -1;
    if (!s)
        return 0;
    for (int i = 0; i < n; i++)
        if (!strcmp(s, names[i])) {
            *out = i;
            return 0;
        }
    return ap_at_err(&here, err, "'%s' is no %s", s, key);
}

/* ---- writing ---- */

/* The number of bytes of the UTF-8 character at s; 0 if it is invalid (RFC 3629). */
static size_t utf8_len(const unsigned char *s)
{
    size_t n = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

    if (s[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool surrogate = s[0] == 0xed && s[1] > 0x9f;
    bool too_large = s[0] == 0xf4 && s[1] > 0x8f;
    return overlong || surrogate || too_large ? 0 : n;
}

static void put_escaped(struct ap_buf *out, unsigned char c)
{
    if (c == '"' || c == '\\')
        ap_buf_printf(out, "\\%c", c);
    else if (c == '\n' || c == '\t')
        ap_buf_puts(out, c == '\n' ? "\\n" : "\\t");
    else if (c < ' ')
        ap_buf_printf(out, "\\u%04x", c);
    else
        ap_buf_puts(out, "\\ufffd"); /* a byte that is no UTF-8 */
}

void ap_json_str(struct ap_buf *out, const char *s)
{
    const char *run = s; /* start of the bytes that are written unchanged */

    ap_buf_putc(out, '"');
    while (*s) {
        unsigned char c = (unsigned char)*s;
        size_t n = c < 0x80 ? 1 : utf8_len((const unsigned char *)s);
        if (c < ' ' || c == '"' || c == '\\' || n == 0) {
            ap_buf_put(out, run, (size_t)(s - run));
            put_escaped(out, c);
            n = 1;
            run = s + 1;
        }
        s += n;
    }
    ap_buf_put(out, run, (size_t)(s - run));
    ap_buf_putc(out, '"');
}

void ap_json_num(struct ap_buf *out, double v)
{
    char text[40];
    bool known = false;

    assert(isfinite(v));
    if (v == floor(v) && fabs(v) < 1e15 && !(v == 0 && signbit(v))) {
        ap_buf_int(out, (int64_t)v);
        return;
    }
    for (int digits = 15; digits <= 17 && !known; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        known = strtod(text, NULL) == v;
    }
    ap_buf_puts(out, v == 0 ? "-0.0" : text);
}

void ap_put_key(struct ap_buf *out, const char *key)
{
    ap_buf_puts(out, ",\"");
    ap_buf_puts(out, key);
    ap_buf_puts(out, "\":");
}

void ap_put_str(struct ap_buf *out, const char *key, const char *value)
{
    ap_put_key(out, key);
    ap_json_str(out, value);
}

void ap_put_int(struct ap_buf *out, const char *key, int64_t value)
{
    ap_put_key(out, key);
    ap_buf_int(out, value);
}

void ap_put_ids(struct ap_buf *out, const char *key, const int *ids, int n)
{
    ap_put_key(out, key);
    ap_buf_putc(out, '[');
    for (int i = 0; i < n; i++) {
        if (i)
            ap_buf_putc(out, ',');
        ap_buf_int(out, ids[i]);
    }
    ap_buf_putc(out, ']');
}

void ap_put_shape(struct ap_buf *out, const char *key, const struct ap_shape *shape)
{
    ap_put_key(out, key);
    ap_buf_putc(out, '"');
    ap_shape_print(shape, out);
    ap_buf_putc(out, '"');
}
