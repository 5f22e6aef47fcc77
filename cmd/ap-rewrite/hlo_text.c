/* The small parts of HLO text: names, quoted strings, constants. */
#include "hlo.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doc/literal.h"
#include "graph/attr_text.h"
#include "graph/element.h"

/* ---- names ---- */

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static const char *plain(struct ap_arena *arena, const char *name)
{
    bool odd = !is_letter(*name) || strncmp(name, "ap.", 3) == 0;
    char *s = ap_arena_printf(arena, "%s%s", odd ? "_" : "", name);
    for (char *p = s; *p; p++)
        if (!is_letter(*p) && !(*p >= '0' && *p <= '9') && *p != '.' && *p != '-')
            *p = '_';
    return s;
}

struct named {
    const char *name;
    int id;
};

static int compare_named(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    int c = strcmp(x->name, y->name);
    return c ? c : (x->id > y->id) - (x->id < y->id);
}

const char **hlo_names(struct ap_arena *arena, const char *const *want, int n)
{
    const char **names = AP_NEW_N(arena, n + 1, const char *);
    struct named *sorted = ap_xrealloc(NULL, ((size_t)n + 1) * sizeof *sorted);
    for (int i = 0; i < n; i++)
        sorted[i] = (struct named){plain(arena, want[i]), i};
    qsort(sorted, (size_t)n, sizeof *sorted, compare_named);
    for (int i = 0; i < n; i++) {
        bool again = i && strcmp(sorted[i].name, sorted[i - 1].name) == 0;
        names[sorted[i].id] =
            again ? ap_arena_printf(arena, "ap.%d.%s", sorted[i].id, sorted[i].name)
                  : sorted[i].name;
    }
    free(sorted);
    return names;
}

void hlo_put_quoted(const char *s, struct ap_buf *out)
{
    ap_buf_putc(out, '"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            ap_buf_putc(out, '\\');
        ap_buf_putc(out, (unsigned char)*s < 0x20 ? ' ' : *s);
    }
    ap_buf_putc(out, '"');
}

/* ---- constants ---- */

/* The fewest digits of two that read back as the same number of its type. */
static void put_real(enum ap_dtype dtype, const void *p, struct ap_buf *out)
{
    double v = ap_elem_to_double(dtype, p);
    bool wide = dtype == AP_F64;
    if (isnan(v) || isinf(v)) {
        ap_buf_puts(out, isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
    } else if (v == 0) {
        ap_buf_puts(out, signbit(v) ? "-0.0" : "0");
    } else {
        char text[40];
        snprintf(text, sizeof text, wide ? "%.15g" : "%.6g", v);
        bool same = wide ? strtod(text, NULL) == v : strtof(text, NULL) == (float)v;
        if (!same)
            snprintf(text, sizeof text, wide ? "%.17g" : "%.9g", v);
        ap_buf_puts(out, text);
    }
}

static void put_element(enum ap_dtype dtype, const char *p, struct ap_buf *out)
{
    if (dtype == AP_PRED) {
        ap_buf_puts(out, *p ? "true" : "false");
    } else if (dtype == AP_U64) {
        uint64_t v;
        memcpy(&v, p, sizeof v);
        ap_buf_printf(out, "%llu", (unsigned long long)v);
    } else if (ap_dtype_is_int(dtype)) {
        ap_buf_int(out, ap_elem_to_int(dtype, p));
    } else if (dtype == AP_C64 || dtype == AP_C128) {
        enum ap_dtype part = dtype == AP_C64 ? AP_F32 : AP_F64;
        ap_buf_putc(out, '(');
        put_real(part, p, out);
        ap_buf_puts(out, ", ");
        put_real(part, p + ap_dtype_size(part), out);
        ap_buf_putc(out, ')');
    } else {
        put_real(dtype, p, out);
    }
}

/* Dimension d of an array whose next element is at *p. */
static void put_array(const struct ap_literal *literal, const struct ap_shape *shape,
                      int d, const char **p, struct ap_buf *out)
{
    if (d == shape->rank) {
        put_element(shape->dtype, *p, out);
        *p += literal->splat ? 0 : ap_dtype_size(shape->dtype);
        return;
    }
    ap_buf_puts(out, d + 1 < shape->rank ? "{ " : "{");
    for (int64_t i = 0; i < shape->dims[d]; i++) {
        ap_buf_puts(out, i ? ", " : "");
        put_array(literal, shape, d + 1, p, out);
    }
    ap_buf_puts(out, d + 1 < shape->rank ? " }" : "}");
}

void hlo_put_literal(const struct ap_literal *literal, const struct ap_shape *shape,
                     struct ap_buf *out)
{
    const char *p = literal->data;
    if (literal->elided)
        ap_buf_puts(out, "{...}");
    else
        put_array(literal, shape, 0, &p, out);
}

void hlo_put_attrs(const struct ap_node *node, struct ap_buf *out)
{
    ap_attr_set set =
        ap_attrs_given(node->attrs) | ap_attrs_needed(node->op, AP_ATTR_TO_HLO);

    for (; set; set &= set - 1) {
        const enum ap_attr attr = ap_attr_first(set);
        if (!ap_attr_table[attr].hlo)
            continue;
        ap_buf_printf(out, ", %s=", ap_attr_table[attr].hlo);
        ap_attr_print(attr, node->attrs, out);
    }
}
