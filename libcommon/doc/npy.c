#include "doc/npy.h"

#include "graph/element.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * numpy's name of each element type. It has none for bf16 and fp8: it writes raw elements
 * of two or one bytes (as "f1" those of e5m2), whose type the reader has to know; written
 * here are floats of f32.
 */
static const struct {
    const char *descr;
    enum ap_dtype dtype;
} descrs[] = {
    {"|b1", AP_PRED}, {"|i1", AP_S8},  {"<i1", AP_S8},  {"<i2", AP_S16},
    {"<i4", AP_S32},  {"<i8", AP_S64}, {"|u1", AP_U8},  {"<u1", AP_U8},
    {"<u2", AP_U16},  {"<u4", AP_U32}, {"<u8", AP_U64}, {"<f2", AP_F16},
    {"<f4", AP_F32},  {"<f8", AP_F64}, {"<c8", AP_C64}, {"<c16", AP_C128},
};
#define N_DESCRS (sizeof descrs / sizeof descrs[0])

/* Whether the name is that of raw elements that a type of numpy's extensions has. */
static bool is_raw(const char *descr, enum ap_dtype dtype)
{
    switch ((int)dtype) {
    case AP_BF16:
        return !strcmp(descr, "<V2") || !strcmp(descr, "|V2");
    case AP_F8E4M3FN:
        return !strcmp(descr, "<V1") || !strcmp(descr, "|V1");
    case AP_F8E5M2:
        return !strcmp(descr, "<f1") || !strcmp(descr, "<V1") || !strcmp(descr, "|V1");
    }
    return false;
}

static int parse_shape(const char *p, struct ap_npy *npy)
{
    npy->elems = 1;
    for (p++; *p && *p != ')';) {
        char *end;
        const long long d = strtoll(p, &end, 10);
        if (end == p || d < 0 || npy->rank == AP_MAX_RANK)
            return -1;
        npy->dims[npy->rank++] = d;
        npy->elems = ap_mul64(npy->elems, d);
        for (p = end; *p == ',' || *p == ' ' || *p == 'L'; p++)
            ;
    }
    return *p == ')' ? 0 : -1;
}

/* The header's dictionary. raw: the type of elements that numpy has no name for. */
static int parse_header(const char *path, char *h, enum ap_dtype raw, struct ap_npy *npy,
                        struct ap_err *err)
{
    char *descr = strstr(h, "'descr':"), *shape = strstr(h, "'shape':");
    char *order = strstr(h, "'fortran_order':");
    if (!descr || !shape || !order)
        return ap_err_set(err, "%s: malformed .npy header", path);
    order += strlen("'fortran_order':");
    order += strspn(order, " ");
    if (strncmp(order, "False", 5))
        return ap_err_set(err, "%s: column-major arrays (fortran_order) are not read",
                          path);
    shape = strchr(shape, '(');
    if (!shape || parse_shape(shape, npy))
        return ap_err_set(err, "%s: malformed shape in the .npy header", path);
    descr += strlen("'descr':");
    descr += strspn(descr, " ");
    char *end = *descr == '\'' ? strchr(descr + 1, '\'') : NULL;
    if (!end)
        return ap_err_set(err, "%s: arrays of records are not read", path);
    *end = 0;
    npy->dtype = is_raw(descr + 1, raw) ? raw : AP_N_DTYPES;
    for (size_t i = 0; i < N_DESCRS; i++)
        if (!strcmp(descr + 1, descrs[i].descr))
            npy->dtype = descrs[i].dtype;
    if (npy->dtype == AP_N_DTYPES)
        return ap_err_set(err, "%s: element type '%s' is not read", path, descr + 1);
    return 0;
}

/* The header, up to the data. */
static int read_head(const char *path, FILE *f, enum ap_dtype raw, struct ap_npy *npy,
                     struct ap_err *err)
{
    unsigned char m[12];
    if (fread(m, 1, 10, f) != 10 || memcmp(m, "\x93NUMPY", 6))
        return ap_err_set(err, "%s: not a .npy file", path);
    size_t len = m[8] | (size_t)m[9] << 8;
    if (m[6] != 1 && m[6] != 2)
        return ap_err_set(err, "%s: .npy version %d is not read", path, m[6]);
    if (m[6] == 2) {
        if (fread(m + 10, 1, 2, f) != 2)
            return ap_err_set(err, "%s: truncated .npy header", path);
        len |= (size_t)m[10] << 16 | (size_t)m[11] << 24;
    }
    if (len > 1 << 20)
        return ap_err_set(err, "%s: malformed .npy header", path);
    char *h = ap_xrealloc(NULL, len + 1);
    const bool whole = fread(h, 1, len, f) == len;
    h[len] = 0;
    const int rc = whole ? parse_header(path, h, raw, npy, err)
                         : ap_err_set(err, "%s: truncated .npy header", path);
    free(h);
    if (rc)
        return -1;
    const int64_t bytes = ap_mul64(npy->elems, ap_dtype_size(npy->dtype));
    /* the file's own size bounds what is allocated */
    const long at = ftell(f);
    if (fseek(f, 0, SEEK_END) || ftell(f) - at < bytes || fseek(f, at, SEEK_SET))
        return ap_err_set(err, "%s: truncated: its header promises %lld bytes of data",
                          path, (long long)bytes);
    return 0;
}

static int read_body(const char *path, FILE *f, enum ap_dtype raw, struct ap_npy *npy,
                     struct ap_err *err)
{
    if (read_head(path, f, raw, npy, err))
        return -1;
    const int64_t bytes = ap_mul64(npy->elems, ap_dtype_size(npy->dtype));
    npy->data = ap_xrealloc(NULL, (size_t)bytes + 1);
    if (fread(npy->data, 1, (size_t)bytes, f) != (size_t)bytes)
        return ap_err_set(err, "%s: %s", path, strerror(errno));
    return 0;
}

static int read_file(const char *path, enum ap_dtype raw, struct ap_npy *npy,
                     bool *missing, struct ap_err *err)
{
    *npy = (struct ap_npy){0};
    FILE *f = fopen(path, "rb");
    if (missing)
        *missing = !f && errno == ENOENT;
    if (!f)
        return ap_err_set(err, "%s: %s", path, strerror(errno));
    const int rc = read_body(path, f, raw, npy, err);
    fclose(f);
    if (rc) {
        free(npy->data);
        npy->data = NULL;
    }
    return rc;
}

int ap_npy_read(const char *path, struct ap_npy *npy, bool *missing, struct ap_err *err)
{
    return read_file(path, AP_TUPLE, npy, missing, err);
}

/* ---- other types than the program's ---- */

static bool is_int(enum ap_dtype dtype)
{
    return ap_dtype_is_int(dtype) || dtype == AP_PRED;
}

/* Whether elements are taken as another type: integers as far as they fit (Python's are
 * s64), f32 and f64 rounded as frameworks do (and bf16 is stored so here). */
static bool converts(enum ap_dtype from, enum ap_dtype to)
{
    return from == to || (is_int(from) && is_int(to)) ||
           ((from == AP_F32 || from == AP_F64) && ap_dtype_is_float(to) && to != AP_F64);
}

/* npy's elements as dtype. */
static int convert(const char *path, struct ap_npy *npy, enum ap_dtype dtype,
                   struct ap_err *err)
{
    const size_t from = (size_t)ap_dtype_size(npy->dtype);
    const size_t to = (size_t)ap_dtype_size(dtype);

    if (npy->dtype == dtype)
        return 0;
    char *out = ap_xrealloc(NULL, (size_t)npy->elems * to + 1);
    for (int64_t i = 0; i < npy->elems; i++) {
        const char *x = (char *)npy->data + (size_t)i * from;
        char *y = out + (size_t)i * to;
        if (!is_int(dtype)) {
            ap_elem_from_double(dtype, ap_elem_to_double(npy->dtype, x), y);
            continue;
        }
        const int64_t v = ap_elem_to_int(npy->dtype, x);
        if ((npy->dtype == AP_U64 && v < 0) || !ap_elem_from_int(dtype, v, y)) {
            free(out);
            return ap_err_set(err, "%s: element %lld is %lld, which %s cannot hold", path,
                              (long long)i, (long long)v, ap_dtype_name(dtype));
        }
    }
    free(npy->data);
    npy->data = out;
    npy->dtype = dtype;
    return 0;
}

/* Whether a file's array can be one of this shape. */
static bool fits(const char *path, const struct ap_npy *npy, const struct ap_shape *shape,
                 struct ap_err *err)
{
    const struct ap_shape has = {
        .dtype = npy->dtype, .rank = npy->rank, .dims = (int64_t *)(uintptr_t)npy->dims};
    struct ap_buf a = {0}, b = {0};
    if (ap_shape_same_dims(&has, shape) && converts(npy->dtype, shape->dtype))
        return true;
    ap_shape_print(&has, &a);
    ap_shape_print(shape, &b);
    ap_err_set(err, "%s: expected %s, got %s", path, b.data, a.data);
    ap_buf_free(&a);
    ap_buf_free(&b);
    return false;
}

int ap_npy_open(const char *path, const struct ap_shape *shape, FILE **out, int64_t *at,
                bool *missing, struct ap_err *err)
{
    struct ap_npy npy = {0};
    FILE *f = fopen(path, "rb");
    *out = NULL;
    if (missing)
        *missing = !f && errno == ENOENT;
    if (!f)
        return ap_err_set(err, "%s: %s", path, strerror(errno));
    if (read_head(path, f, shape->dtype, &npy, err) || !fits(path, &npy, shape, err)) {
        fclose(f);
        return -1;
    }
    *at = ftell(f);
    if (npy.dtype == shape->dtype)
        *out = f;
    else
        fclose(f);
    return 0;
}

int ap_npy_read_shape(const char *path, const struct ap_shape *shape, void **out,
                      bool *missing, struct ap_err *err)
{
    struct ap_npy npy;
    if (read_file(path, shape->dtype, &npy, missing, err))
        return -1;
    if (!fits(path, &npy, shape, err) || convert(path, &npy, shape->dtype, err)) {
        free(npy.data);
        return -1;
    }
    *out = npy.data;
    return 0;
}

/* ---- writing ---- */

/* bf16 and fp8 as f32. */
static enum ap_dtype stored_as(enum ap_dtype dtype)
{
    for (size_t i = 0; i < N_DESCRS; i++)
        if (descrs[i].dtype == dtype)
            return dtype;
    return AP_F32;
}

static int write_all(FILE *f, const struct ap_shape *shape, const void *data)
{
    const enum ap_dtype dtype = stored_as(shape->dtype);
    const char *descr = "";
    for (size_t i = N_DESCRS; i-- > 0;)
        if (descrs[i].dtype == dtype)
            descr = descrs[i].descr;
    struct ap_buf h = {0};
    ap_buf_printf(&h, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr);
    for (int d = 0; d < shape->rank; d++)
        ap_buf_printf(&h, d || shape->rank > 1 ? "%lld%s" : "%lld,%s",
                      (long long)shape->dims[d], d + 1 < shape->rank ? ", " : "");
    ap_buf_puts(&h, "), }");
    while ((10 + h.len + 1) % 64)
        ap_buf_putc(&h, ' ');
    ap_buf_putc(&h, '\n');
    const unsigned char m[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, h.len & 255, (unsigned char)(h.len >> 8)};
    fwrite(m, 1, 10, f);
    fwrite(h.data, 1, h.len, f);
    ap_buf_free(&h);
    const int64_t n = ap_shape_elems(shape);
    if (shape->dtype == dtype) {
        fwrite(data, 1, (size_t)(n * ap_dtype_size(dtype)), f);
    } else {
        const size_t size = (size_t)ap_dtype_size(shape->dtype);
        float wide[256];
        for (int64_t i = 0; i < n; i += 256) {
            const int64_t k = n - i < 256 ? n - i : 256;
            for (int64_t j = 0; j < k; j++)
                wide[j] = (float)ap_elem_to_double(
                    shape->dtype, (const char *)data + (size_t)(i + j) * size);
            fwrite(wide, 4, (size_t)k, f);
        }
    }
    return ferror(f);
}

int ap_npy_write(const char *path, const struct ap_shape *shape, const void *data,
                 struct ap_err *err)
{
    FILE *f = fopen(path, "wb");
    if (!f)
        return ap_err_set(err, "%s: %s", path, strerror(errno));
    const bool bad = write_all(f, shape, data) != 0;
    if (fclose(f) || bad)
        return ap_err_set(err, "%s: %s", path, strerror(errno));
    return 0;
}
