/*
 * Constants: "3", "{1, 2}", "{ { true, false }, ... }", "inf", "-nan", "(1, 2)" for
 * complex numbers, and "{...}" where the printer left the value out. Elements are
 * collected as they come, so that memory is linear in the text whatever the shape claims.
 */
#include "hlo/hlo_parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"

static int put_int(struct hlo_src *src, enum ap_dtype dtype, struct ap_buf *out)
{
    const char *s = src->text + src->pos;
    bool negative = *s == '-', is_signed = dtype >= AP_S8 && dtype <= AP_S64;
    if (!isdigit((unsigned char)s[negative || *s == '+']))
        return hlo_fail(src, src->pos, "expected an integer");
    int bits = 8 * ap_dtype_size(dtype);
    char *end;
    errno = 0;
    uint64_t v = strtoull(s, &end, 10);
    uint64_t magnitude = negative ? 0 - v : v;
    uint64_t max = is_signed  ? (UINT64_MAX >> (65 - bits)) + negative
                   : negative ? 0
                              : UINT64_MAX >> (64 - bits);
    if (errno || magnitude > max)
        return hlo_fail(src, src->pos, "the value does not fit %s", ap_dtype_name(dtype));
    if (*end == '.' || *end == 'e' || *end == 'E')
        return hlo_fail(src, src->pos, "expected an integer");
    ap_buf_put(out, &v, (size_t)bits / 8); /* little endian */
    src->pos += (size_t)(end - s);
    return 0;
}

static void put_float(enum ap_dtype dtype, double d, float f, struct ap_buf *out)
{
    if (dtype == AP_F64 || dtype == AP_C128) {
        ap_buf_put(out, &d, 8);
    } else if (dtype == AP_F32 || dtype == AP_C64) {
        ap_buf_put(out, &f, 4);
    } else if (dtype == AP_BF16 || dtype == AP_F16) {
        float odd = ap_f64_to_f32_odd(d);
        uint16_t h = dtype == AP_BF16 ? ap_f32_to_bf16(odd) : ap_f32_to_f16(odd);
        ap_buf_put(out, &h, 2);
    } else {
        float odd = ap_f64_to_f32_odd(d);
        uint8_t h = dtype == AP_F8E5M2 ? ap_f32_to_f8e5m2(odd) : ap_f32_to_f8e4m3fn(odd);
        ap_buf_put(out, &h, 1);
    }
}

/* inf, nan, nan(0x...), with a sign; decimal otherwise. */
static int put_real(struct hlo_src *src, enum ap_dtype dtype, struct ap_buf *out)
{
    const char *s = src->text + src->pos, *p = s + (*s == '-' || *s == '+');
    bool negative = *s == '-';
    if (strncmp(p, "inf", 3) == 0 || strncmp(p, "nan", 3) == 0) {
        double d = *p == 'i' ? (double)INFINITY : (double)NAN;
        d = copysign(d, negative ? -1.0 : 1.0);
        put_float(dtype, d, (float)d, out);
        src->pos += (size_t)(p - s) + 3;
        if (*p == 'n' && src->text[src->pos] == '(') {
            const char *close = strchr(src->text + src->pos, ')');
            if (!close)
                return hlo_fail(src, src->pos, "this '(' is not closed");
            src->pos = hlo_at(src, close) + 1;
        }
        return 0;
    }
    if (!isdigit((unsigned char)*p) && !(*p == '.' && isdigit((unsigned char)p[1])))
        return hlo_fail(src, src->pos, "expected a number");
    char *end;
    double d = strtod(s, &end);
    put_float(dtype, d, dtype == AP_F32 || dtype == AP_C64 ? strtof(s, NULL) : 0.0F, out);
    src->pos += (size_t)(end - s);
    return 0;
}

static int put_pred(struct hlo_src *src, struct ap_buf *out)
{
    const char *s = src->text + src->pos;
    if (strncmp(s, "true", 4) == 0 || *s == '1')
        ap_buf_putc(out, 1);
    else if (strncmp(s, "false", 5) == 0 || *s == '0')
        ap_buf_putc(out, 0);
    else
        return hlo_fail(src, src->pos, "expected true or false");
    src->pos += isdigit((unsigned char)*s) ? 1 : *s == 't' ? 4 : 5;
    return 0;
}

static int put_element(struct hlo_src *src, enum ap_dtype dtype, struct ap_buf *out)
{
    hlo_skip(src);
    if (dtype == AP_PRED)
        return put_pred(src, out);
    if (ap_dtype_is_int(dtype))
        return put_int(src, dtype, out);
    if (dtype != AP_C64 && dtype != AP_C128)
        return put_real(src, dtype, out);
    if (hlo_expect(src, '(', "a complex number"))
        return -1;
    hlo_skip(src);
    if (put_real(src, dtype, out) || hlo_expect(src, ',', "a complex number"))
        return -1;
    hlo_skip(src);
    return put_real(src, dtype, out) || hlo_expect(src, ')', "a complex number") ? -1 : 0;
}

/* "{ {a, b}, {c, d} }": depth d of the braces is dimension d, counts must agree. */
static int put_array(struct hlo_src *src, const struct ap_shape *shape,
                     struct ap_buf *out, bool *elided)
{
    int64_t count[AP_MAX_RANK] = {0};
    int depth = 0;
    do {
        if (hlo_eat_str(src, "...")) {
            *elided = true;
        } else if (hlo_eat(src, '{')) {
            if (depth == shape->rank)
                return hlo_fail(src, src->pos - 1, "more braces than dimensions");
            count[depth++] = 0;
            if (hlo_skip(src) != '}')
                continue;
        } else if (depth == shape->rank && src->text[src->pos] != '}') {
            if (put_element(src, shape->dtype, out))
                return -1;
            count[depth - 1]++;
        }
        hlo_skip(src);
        while (depth && hlo_eat(src, '}')) {
            int64_t want = shape->dims[--depth];
            if (!*elided && count[depth] != want)
                return hlo_fail(src, src->pos - 1, "expected %lld elements, got %lld",
                                (long long)want, (long long)count[depth]);
            if (depth)
                count[depth - 1]++;
        }
        if (depth && hlo_expect(src, ',', "a constant"))
            return -1;
    } while (depth);
    return 0;
}

const struct ap_literal *hlo_literal_make(struct ap_arena *arena, const void *data,
                                          int64_t n, size_t size)
{
    struct ap_literal *lit = AP_NEW(arena, struct ap_literal);
    const char *bytes = data;
    lit->splat = n >= 1 && memcmp(bytes, bytes + size, (size_t)(n - 1) * size) == 0;
    lit->data = ap_arena_dup(arena, data, lit->splat ? size : (size_t)n * size);
    return lit;
}

int hlo_literal(struct hlo_src *src, const struct ap_shape *shape,
                const struct ap_literal **out)
{
    if (shape->dtype == AP_TUPLE)
        return hlo_refuse(src, src->pos, "constant tuples are not supported yet");
    struct ap_shape printed;
    if (hlo_skip(src) != '(' && hlo_at_shape(src) &&
        hlo_shape(src, &printed)) /* older text repeats the shape */
        return -1;
    struct ap_buf data = {0};
    bool elided = false;
    int rc;
    hlo_skip(src);
    size_t pos = src->pos;
    if (shape->rank == 0 && src->text[src->pos] == '{') {
        rc = hlo_eat(src, '{') && hlo_eat_str(src, "...") && hlo_eat(src, '}')
                 ? 0
                 : hlo_fail(src, pos, "expected one element");
        elided = true;
    } else if (shape->rank == 0) {
        rc = put_element(src, shape->dtype, &data);
    } else if (src->text[src->pos] != '{') {
        rc = hlo_fail(src, pos, "expected '{' and %d dimensions", shape->rank);
    } else {
        rc = put_array(src, shape, &data, &elided);
    }
    if (!rc && elided) {
        struct ap_literal *lit = AP_NEW(src->arena, struct ap_literal);
        lit->elided = true;
        *out = lit;
    } else if (!rc) {
        size_t size = (size_t)ap_dtype_size(shape->dtype);
        *out = hlo_literal_make(src->arena, data.data ? data.data : "",
                                (int64_t)(data.len / size), size);
    }
    ap_buf_free(&data);
    return rc;
}
