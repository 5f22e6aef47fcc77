/*
 * Attributes and placements in HLO's spelling: windows, paddings, slices, labels of
 * dimensions, words. The JSON document has the same texts, so that there is one parser
 * and one printer; each reads at a position and moves it. Linear in the text.
 */
#include "graph/attr_text.h"

#include <string.h>

static void skip_blanks(const char *text, size_t *pos)
{
    while (text[*pos] == ' ' || text[*pos] == '\t' || text[*pos] == '\n' ||
           text[*pos] == '\r')
        (*pos)++;
}

/* Consumes c if it comes next. */
static bool take(const char *text, size_t *pos, char c)
{
    if (text[*pos] != c)
        return false;
    (*pos)++;
    return true;
}

static int expect(const char *text, size_t *pos, char c, const char *what,
                  struct ap_err *err)
{
    if (take(text, pos, c))
        return 0;
    return ap_err_set(err, "%s: expected '%c'", what, c);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int int_parse(const char *text, size_t *pos, int64_t *value, struct ap_err *err)
{
    skip_blanks(text, pos);
    size_t p = *pos;
    bool minus = take(text, &p, '-');
    int64_t v = 0;

    if (!is_digit(text[p]))
        return ap_err_set(err, "expected an integer");
    for (; is_digit(text[p]); p++) {
        int digit = text[p] - '0';
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_sub_overflow(v, digit, &v)) /* negative: INT64_MIN fits */
            return ap_err_set(err, "integer does not fit in 64 bits");
    }
    if (!minus && v == INT64_MIN)
        return ap_err_set(err, "integer does not fit in 64 bits");
    *value = minus ? v : -v;
    *pos = p;
    return 0;
}

int ap_ints_parse(struct ap_arena *arena, const char *text, size_t *pos,
                  struct ap_ints *ints, struct ap_err *err)
{
    struct ap_buf buf = {0};
    int rc = -1;

    skip_blanks(text, pos);
    if (expect(text, pos, '{', "list of integers", err))
        return -1;
    skip_blanks(text, pos);
    while (text[*pos] != '}') {
        int64_t v;
        if (buf.len && expect(text, pos, ',', "list of integers", err))
            goto out;
        if (int_parse(text, pos, &v, err))
            goto out;
        ap_buf_put(&buf, &v, sizeof(v));
        skip_blanks(text, pos);
    }
    (*pos)++;
    ints->n = (int)(buf.len / sizeof(int64_t));
    ints->v = buf.len ? ap_arena_dup(arena, buf.data, buf.len) : NULL;
    rc = 0;
out:
    ap_buf_free(&buf);
    return rc;
}

/* ---- window ---- */

/* Consumes "key=". */
static bool take_key(const char *text, size_t *pos, const char *key)
{
    size_t len = strlen(key);
    if (strncmp(text + *pos, key, len) || text[*pos + len] != '=')
        return false;
    *pos += len + 1;
    return true;
}

enum window_field {
    WINDOW_SIZE,
    WINDOW_STRIDE,
    WINDOW_PAD,
    WINDOW_LHS_DILATE,
    WINDOW_RHS_DILATE,
    WINDOW_REVERSAL,
    WINDOW_N_FIELDS
};
static const char *const window_fields[WINDOW_N_FIELDS] = {
    "size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal",
};

static int window_value(const char *text, size_t *pos, enum window_field field,
                        struct ap_window_dim *d, struct ap_err *err)
{
    int64_t flag = 0;

    switch (field) {
    case WINDOW_SIZE:
        return int_parse(text, pos, &d->size, err);
    case WINDOW_STRIDE:
        return int_parse(text, pos, &d->stride, err);
    case WINDOW_PAD:
        if (int_parse(text, pos, &d->pad_lo, err) ||
            expect(text, pos, '_', "window pad", err))
            return -1;
        return int_parse(text, pos, &d->pad_hi, err);
    case WINDOW_LHS_DILATE:
        return int_parse(text, pos, &d->lhs_dilate, err);
    case WINDOW_RHS_DILATE:
        return int_parse(text, pos, &d->rhs_dilate, err);
    case WINDOW_REVERSAL:
        if (int_parse(text, pos, &flag, err))
            return -1;
        if (flag != 0 && flag != 1)
            return ap_err_set(err, "window rhs_reversal: expected 0 or 1");
        d->reversal = flag != 0;
        return 0;
    case WINDOW_N_FIELDS:
        break;
    }
    return ap_err_set(err, "unknown window field");
}

static int window_parse(struct ap_arena *arena, const char *text, size_t *pos,
                        struct ap_attrs *attrs, struct ap_err *err)
{
    struct ap_window_dim dims[AP_MAX_RANK];
    unsigned seen = 0;
    int n = -1; /* number of dimensions, once a field has given it */

    for (int i = 0; i < AP_MAX_RANK; i++)
        dims[i] = (struct ap_window_dim){
            .size = 1, .stride = 1, .lhs_dilate = 1, .rhs_dilate = 1};
    skip_blanks(text, pos);
    if (expect(text, pos, '{', "window", err))
        return -1;
    for (skip_blanks(text, pos); text[*pos] != '}'; skip_blanks(text, pos)) {
        int field = 0, k = 0;
        while (field < WINDOW_N_FIELDS && !take_key(text, pos, window_fields[field]))
            field++;
        if (field == WINDOW_N_FIELDS)
            return ap_err_set(err, "window: expected size=, stride=, pad=, lhs_dilate=, "
                                   "rhs_dilate=, rhs_reversal= or '}'");
        if (seen >> field & 1)
            return ap_err_set(err, "window: %s given twice", window_fields[field]);
        seen |= 1u << field;
        do {
            if (k == AP_MAX_RANK)
                return ap_err_set(err, "window: more than %d dimensions", AP_MAX_RANK);
            if (window_value(text, pos, (enum window_field)field, &dims[k++], err))
                return -1;
        } while (take(text, pos, 'x'));
        if (n >= 0 && k != n)
            return ap_err_set(err, "window: %s has %d dimensions, not %d",
                              window_fields[field], k, n);
        n = k;
    }
    (*pos)++;
    attrs->n_window = n < 0 ? 0 : n;
    attrs->window = ap_arena_dup(arena, dims, (size_t)attrs->n_window * sizeof(dims[0]));
    return 0;
}

static int64_t window_plain(const struct ap_window_dim *d, enum window_field field)
{
    switch (field) {
    case WINDOW_SIZE:
        return d->size;
    case WINDOW_STRIDE:
        return d->stride;
    case WINDOW_LHS_DILATE:
        return d->lhs_dilate;
    case WINDOW_RHS_DILATE:
        return d->rhs_dilate;
    case WINDOW_REVERSAL:
        return d->reversal;
    case WINDOW_PAD:
    case WINDOW_N_FIELDS:
        break;
    }
    return 0;
}

/* A field that is what its absence means needs no text. */
static bool window_is_default(const struct ap_attrs *a, enum window_field field)
{
    int64_t unit = field == WINDOW_REVERSAL ? 0 : 1;

    if (field == WINDOW_SIZE)
        return false;
    for (int i = 0; i < a->n_window; i++) {
        const struct ap_window_dim *d = &a->window[i];
        if (field == WINDOW_PAD ? d->pad_lo || d->pad_hi : window_plain(d, field) != unit)
            return false;
    }
    return true;
}

static void window_print(const struct ap_attrs *a, struct ap_buf *out)
{
    const char *sep = "";

    ap_buf_putc(out, '{');
    for (int field = 0; field < WINDOW_N_FIELDS && a->n_window; field++) {
        if (window_is_default(a, (enum window_field)field))
            continue;
        ap_buf_printf(out, "%s%s=", sep, window_fields[field]);
        sep = " ";
        for (int i = 0; i < a->n_window; i++) {
            const struct ap_window_dim *d = &a->window[i];
            ap_buf_puts(out, i ? "x" : "");
            ap_buf_int(out, field == WINDOW_PAD
                                ? d->pad_lo
                                : window_plain(d, (enum window_field)field));
            if (field == WINDOW_PAD) {
                ap_buf_putc(out, '_');
                ap_buf_int(out, d->pad_hi);
            }
        }
    }
    ap_buf_putc(out, '}');
}

/* ---- padding and slice ---- */

static int padding_parse(struct ap_arena *arena, const char *text, size_t *pos,
                         struct ap_attrs *attrs, struct ap_err *err)
{
    struct ap_pad_dim dims[AP_MAX_RANK] = {{0}};
    int n = 0;

    do {
        if (n == AP_MAX_RANK)
            return ap_err_set(err, "padding: more than %d dimensions", AP_MAX_RANK);
        struct ap_pad_dim *d = &dims[n++];
        if (int_parse(text, pos, &d->lo, err) || expect(text, pos, '_', "padding", err) ||
            int_parse(text, pos, &d->hi, err) ||
            (take(text, pos, '_') && int_parse(text, pos, &d->interior, err)))
            return -1;
        if (d->interior < 0)
            return ap_err_set(err, "padding: negative interior padding");
    } while (take(text, pos, 'x'));
    attrs->n_padding = n;
    attrs->padding = ap_arena_dup(arena, dims, (size_t)n * sizeof(dims[0]));
    return 0;
}

static void padding_print(const struct ap_attrs *a, struct ap_buf *out)
{
    for (int i = 0; i < a->n_padding; i++) {
        const struct ap_pad_dim *d = &a->padding[i];
        ap_buf_puts(out, i ? "x" : "");
        ap_buf_int(out, d->lo);
        ap_buf_putc(out, '_');
        ap_buf_int(out, d->hi);
        if (d->interior) {
            ap_buf_putc(out, '_');
            ap_buf_int(out, d->interior);
        }
    }
}

static int slice_dim(const char *text, size_t *pos, struct ap_slice_dim *d,
                     struct ap_err *err)
{
    d->stride = 1;
    skip_blanks(text, pos);
    if (expect(text, pos, '[', "slice", err) || int_parse(text, pos, &d->start, err) ||
        expect(text, pos, ':', "slice", err) || int_parse(text, pos, &d->limit, err) ||
        (take(text, pos, ':') && int_parse(text, pos, &d->stride, err)) ||
        expect(text, pos, ']', "slice", err))
        return -1;
    skip_blanks(text, pos);
    return 0;
}

static int slice_parse(struct ap_arena *arena, const char *text, size_t *pos,
                       struct ap_attrs *attrs, struct ap_err *err)
{
    struct ap_slice_dim dims[AP_MAX_RANK] = {{0}};
    int n = 0;

    skip_blanks(text, pos);
    if (expect(text, pos, '{', "slice", err))
        return -1;
    skip_blanks(text, pos);
    while (text[*pos] != '}') {
        if (n == AP_MAX_RANK)
            return ap_err_set(err, "slice: more than %d dimensions", AP_MAX_RANK);
        if ((n && expect(text, pos, ',', "slice", err)) ||
            slice_dim(text, pos, &dims[n++], err))
            return -1;
    }
    (*pos)++;
    attrs->n_slice = n;
    attrs->slice = ap_arena_dup(arena, dims, (size_t)n * sizeof(dims[0]));
    return 0;
}

static void slice_print(const struct ap_attrs *a, struct ap_buf *out)
{
    ap_buf_putc(out, '{');
    for (int i = 0; i < a->n_slice; i++) {
        const struct ap_slice_dim *d = &a->slice[i];
        ap_buf_puts(out, i ? ",[" : "[");
        ap_buf_int(out, d->start);
        ap_buf_putc(out, ':');
        ap_buf_int(out, d->limit);
        if (d->stride != 1) {
            ap_buf_putc(out, ':');
            ap_buf_int(out, d->stride);
        }
        ap_buf_putc(out, ']');
    }
    ap_buf_putc(out, '}');
}

/* ---- dim_labels ---- */

/* One label such as "b01f": two letters and the digits 0 .. n - 1, each once. */
struct label {
    const char *letters;
    int *at_a, *at_b, *spatial; /* positions of the letters and of the digits */
};

/* *n: how many digits there are (in: -1 if unknown). */
static int label_parse(const char *text, size_t *pos, const struct label *label, int *n,
                       struct ap_err *err)
{
    const char *letters = label->letters;
    int *at_a = label->at_a, *at_b = label->at_b, *spatial = label->spatial, len = 0;

    *at_a = *at_b = -1;
    for (int i = 0; i < AP_MAX_RANK; i++)
        spatial[i] = -1;
    for (; is_digit(text[*pos]) || text[*pos] == letters[0] || text[*pos] == letters[1];
         (*pos)++, len++) {
        char c = text[*pos];
        int *slot = c == letters[0] ? at_a : c == letters[1] ? at_b : &spatial[c - '0'];
        if (*slot >= 0)
            return ap_err_set(err, "dim_labels: '%c' occurs twice", c);
        if (len == AP_MAX_RANK)
            return ap_err_set(err, "dim_labels: more than %d dimensions", AP_MAX_RANK);
        *slot = len;
    }
    if (text[*pos] == '?')
        return ap_err_set(err,
                          "dim_labels: unlabelled dimensions ('?') are not supported");
    if (*at_a < 0 || *at_b < 0)
        return ap_err_set(err, "dim_labels: '%c' or '%c' is missing", letters[0],
                          letters[1]);
    if (*n >= 0 && *n != len - 2)
        return ap_err_set(err, "dim_labels: %d spatial dimensions, then %d", *n, len - 2);
    *n = len - 2;
    for (int i = 0; i < *n; i++)
        if (spatial[i] < 0)
            return ap_err_set(err, "dim_labels: spatial dimension %d is missing", i);
    return 0;
}

static int dim_labels_parse(const char *text, size_t *pos, struct ap_attrs *attrs,
                            struct ap_err *err)
{
    struct ap_conv_dims c = {.n_spatial = -1};
    const struct label lhs = {"bf", &c.lhs_batch, &c.lhs_feature, c.lhs_spatial};
    const struct label rhs = {"io", &c.rhs_in, &c.rhs_out, c.rhs_spatial};
    const struct label out = {"bf", &c.out_batch, &c.out_feature, c.out_spatial};

    skip_blanks(text, pos);
    if (label_parse(text, pos, &lhs, &c.n_spatial, err) ||
        expect(text, pos, '_', "dim_labels", err) ||
        label_parse(text, pos, &rhs, &c.n_spatial, err) ||
        expect(text, pos, '-', "dim_labels", err) ||
        expect(text, pos, '>', "dim_labels", err) ||
        label_parse(text, pos, &out, &c.n_spatial, err))
        return -1;
    for (int i = c.n_spatial; i < AP_MAX_RANK; i++)
        c.lhs_spatial[i] = c.rhs_spatial[i] = c.out_spatial[i] = 0;
    attrs->conv = c;
    return 0;
}

static void label_print(struct ap_buf *out, const char *letters, int at_a, int at_b,
                        const int *spatial, int n)
{
    char label[AP_MAX_RANK + 3] = {0};

    label[at_a] = letters[0];
    label[at_b] = letters[1];
    for (int i = 0; i < n; i++)
        label[spatial[i]] = (char)('0' + i);
    ap_buf_puts(out, label);
}

static void dim_labels_print(const struct ap_attrs *a, struct ap_buf *out)
{
    const struct ap_conv_dims *c = &a->conv;

    label_print(out, "bf", c->lhs_batch, c->lhs_feature, c->lhs_spatial, c->n_spatial);
    ap_buf_putc(out, '_');
    label_print(out, "io", c->rhs_in, c->rhs_out, c->rhs_spatial, c->n_spatial);
    ap_buf_puts(out, "->");
    label_print(out, "bf", c->out_batch, c->out_feature, c->out_spatial, c->n_spatial);
}

/* ---- words ---- */

static const char *const direction_names[] = {"EQ", "NE", "GE", "GT", "LE", "LT"};

/* Length of the letters, digits and underscores at *pos, after blanks. */
static size_t word_len(const char *text, size_t *pos)
{
    size_t len = 0;

    skip_blanks(text, pos);
    for (char c;
         (c = text[*pos + len]) &&
         (is_digit(c) || c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'));)
        len++;
    return len;
}

/* One of n names, moves past it; its number, -1 for none. */
static int name_parse(const char *text, size_t *pos, const char *const *names, int n)
{
    size_t len = word_len(text, pos);

    for (int i = 0; i < n; i++)
        if (strlen(names[i]) == len && !strncmp(text + *pos, names[i], len)) {
            *pos += len;
            return i;
        }
    return -1;
}

static int direction_parse(const char *text, size_t *pos, enum ap_direction *direction,
                           struct ap_err *err)
{
    int i = name_parse(text, pos, direction_names, AP_LT + 1);

    if (i < 0)
        return ap_err_set(err, "direction: expected EQ, NE, GE, GT, LE or LT");
    *direction = (enum ap_direction)i;
    return 0;
}

static int fft_parse(const char *text, size_t *pos, enum ap_fft *type, struct ap_err *err)
{
    int i = name_parse(text, pos, ap_fft_names, AP_N_FFTS);

    if (i < 0)
        return ap_err_set(err, "expected FFT, IFFT, RFFT or IRFFT");
    *type = (enum ap_fft)i;
    return 0;
}

static int precision_parse(const char *text, size_t *pos, enum ap_precision *out,
                           struct ap_err *err)
{
    int n = 0;

    skip_blanks(text, pos);
    if (expect(text, pos, '{', "operand_precision", err))
        return -1;
    do {
        int i = name_parse(text, pos, ap_precision_names, AP_N_PRECISIONS);
        if (i < 0 || n == 2)
            return ap_err_set(err,
                              "expected {default, high or highest, for two operands}");
        out[n++] = (enum ap_precision)i;
        skip_blanks(text, pos);
    } while (take(text, pos, ','));
    out[1] = n == 1 ? out[0] : out[1];
    return expect(text, pos, '}', "operand_precision", err);
}

/* A word that is kept unchanged. */
static int text_parse(struct ap_arena *arena, const char *text, size_t *pos,
                      const char **out, struct ap_err *err)
{
    size_t len = word_len(text, pos);

    if (!len)
        return ap_err_set(err, "expected a word");
    *out = ap_arena_strndup(arena, text + *pos, len);
    *pos += len;
    return 0;
}

static int bool_parse(const char *text, size_t *pos, bool *value, struct ap_err *err)
{
    static const char *const names[] = {"false", "true", "0", "1"};
    int i = name_parse(text, pos, names, 4);

    if (i < 0)
        return ap_err_set(err, "expected true or false");
    *value = i % 2;
    return 0;
}

/* True for every word but this one, or for this one only. */
static void word_parse(const char *text, size_t *pos, const char *word, bool yes,
                       bool *value)
{
    size_t len = word_len(text, pos);
    bool is = strlen(word) == len && !strncmp(text + *pos, word, len);

    *value = is == yes;
    *pos += len;
}

/* ---- any attribute ---- */

int ap_attr_parse(struct ap_arena *arena, enum ap_attr attr, const char *text,
                  size_t *pos, struct ap_attrs *attrs, struct ap_err *err)
{
    void *place = ap_attr_place_of(attr, attrs);

    switch (ap_attr_table[attr].kind) {
    case AP_ATTR_IS_BOOL:
        return bool_parse(text, pos, place, err);
    case AP_ATTR_IS_DIM_LABELS:
        return dim_labels_parse(text, pos, attrs, err);
    case AP_ATTR_IS_DIRECTION:
        return direction_parse(text, pos, &attrs->direction, err);
    case AP_ATTR_IS_FFT:
        return fft_parse(text, pos, &attrs->fft_type, err);
    case AP_ATTR_IS_INT:
        return int_parse(text, pos, place, err);
    case AP_ATTR_IS_INTS:
        return ap_ints_parse(arena, text, pos, place, err);
    case AP_ATTR_IS_ORDER:
        word_parse(text, pos, "TOTALORDER", true, place);
        return 0;
    case AP_ATTR_IS_PADDING:
        return padding_parse(arena, text, pos, attrs, err);
    case AP_ATTR_IS_PRECISION:
        return precision_parse(text, pos, attrs->operand_precision, err);
    case AP_ATTR_IS_WORD:
        return text_parse(arena, text, pos, place, err);
    case AP_ATTR_IS_SLICE:
        return slice_parse(arena, text, pos, attrs, err);
    case AP_ATTR_IS_TRANSPOSE: /* ADJOINT of real numbers */
        word_parse(text, pos, "NO_TRANSPOSE", false, place);
        return 0;
    case AP_ATTR_IS_WINDOW:
        return window_parse(arena, text, pos, attrs, err);
    case AP_ATTR_IS_AXES:
    case AP_ATTR_IS_COMP:
    case AP_ATTR_IS_LAYOUT:
    case AP_ATTR_IS_PART:
    case AP_ATTR_IS_RED:
    case AP_ATTR_IS_REDUCER:
    case AP_ATTR_IS_SHAPE:
    case AP_ATTR_IS_SPLIT:
    case AP_ATTR_IS_STRING:
    case AP_ATTR_IS_VALUE:
        break;
    }
    return ap_err_set(err, "%s has no spelling in HLO", ap_attr_table[attr].name);
}

static void ints_print(const struct ap_ints *ints, struct ap_buf *out)
{
    ap_buf_putc(out, '{');
    for (int i = 0; i < ints->n; i++) {
        if (i)
            ap_buf_putc(out, ',');
        ap_buf_int(out, ints->v[i]);
    }
    ap_buf_putc(out, '}');
}

void ap_attr_print(enum ap_attr attr, const struct ap_attrs *attrs, struct ap_buf *out)
{
    const void *place = ap_attr_place(attr, attrs);

    switch ((int)ap_attr_table[attr].kind) { /* others have no spelling in HLO */
    case AP_ATTR_IS_BOOL:
        ap_buf_puts(out, *(const bool *)place ? "true" : "false");
        return;
    case AP_ATTR_IS_DIM_LABELS:
        dim_labels_print(attrs, out);
        return;
    case AP_ATTR_IS_DIRECTION:
        ap_buf_puts(out, direction_names[attrs->direction]);
        return;
    case AP_ATTR_IS_FFT:
        ap_buf_puts(out, ap_fft_names[attrs->fft_type]);
        return;
    case AP_ATTR_IS_INT:
        ap_buf_int(out, *(const int64_t *)place);
        return;
    case AP_ATTR_IS_INTS:
        ints_print(place, out);
        return;
    case AP_ATTR_IS_ORDER:
        ap_buf_puts(out, attrs->total_order ? "TOTALORDER" : "FLOAT");
        return;
    case AP_ATTR_IS_PADDING:
        padding_print(attrs, out);
        return;
    case AP_ATTR_IS_PRECISION:
        ap_buf_printf(out, "{%s,%s}", ap_precision_names[attrs->operand_precision[0]],
                      ap_precision_names[attrs->operand_precision[1]]);
        return;
    case AP_ATTR_IS_WORD:
        ap_buf_puts(out, *(const char *const *)place);
        return;
    case AP_ATTR_IS_SLICE:
        slice_print(attrs, out);
        return;
    case AP_ATTR_IS_TRANSPOSE:
        ap_buf_puts(out, attrs->transpose_a ? "TRANSPOSE" : "NO_TRANSPOSE");
        return;
    case AP_ATTR_IS_WINDOW:
        window_print(attrs, out);
        return;
    }
}

/* ---- placements ---- */

static int partial_parse(const char *text, size_t *pos, struct ap_placement *p,
                         struct ap_err *err)
{
    size_t len = 0;

    p->kind = AP_PARTIAL;
    p->red = AP_RED_SUM;
    while (text[*pos + len] >= 'a' && text[*pos + len] <= 'z')
        len++;
    if (len == 0)
        return 0;
    for (int red = AP_RED_SUM; red < AP_RED_ASSIGN; red++)
        if (strlen(ap_red_names[red]) == len &&
            !strncmp(text + *pos, ap_red_names[red], len)) {
            p->red = (uint8_t)red;
            *pos += len;
            return 0;
        }
    return ap_err_set(err, "placement: '%.*s' is not a reduction",
                      (int)(len > 20 ? 20 : len), text + *pos);
}

int ap_placement_parse(const char *text, size_t *pos, struct ap_placement *placement,
                       struct ap_err *err)
{
    struct ap_placement p = {0};
    int64_t dim;

    skip_blanks(text, pos);
    if (take(text, pos, 'R')) {
        p.kind = AP_REPLICATED;
    } else if (take(text, pos, 'P')) {
        if (partial_parse(text, pos, &p, err))
            return -1;
    } else if (take(text, pos, 'S')) {
        p.kind = AP_SPLIT;
        if (int_parse(text, pos, &dim, err))
            return -1;
        if (dim < 0 || dim >= AP_MAX_RANK)
            return ap_err_set(err, "placement: dimension %lld is not between 0 and %d",
                              (long long)dim, AP_MAX_RANK - 1);
        p.dim = (uint8_t)dim;
        if (take(text, pos, '/')) {
            if (int_parse(text, pos, &p.stride, err))
                return -1;
            if (p.stride < 1)
                return ap_err_set(err, "placement: expected a stride > 0, got %lld",
                                  (long long)p.stride);
        }
    } else {
        return ap_err_set(err, "placement: expected R, P or S<dimension>");
    }
    *placement = p;
    return 0;
}

void ap_placement_print(const struct ap_placement *p, struct ap_buf *out)
{
    switch ((enum ap_placement_kind)p->kind) {
    case AP_REPLICATED:
        ap_buf_putc(out, 'R');
        return;
    case AP_SPLIT:
        ap_buf_putc(out, 'S');
        ap_buf_int(out, p->dim);
        if (p->stride) {
            ap_buf_putc(out, '/');
            ap_buf_int(out, p->stride);
        }
        return;
    case AP_PARTIAL:
        ap_buf_putc(out, 'P');
        if (p->red != AP_RED_SUM)
            ap_buf_puts(out, ap_red_names[p->red]);
        return;
    }
}
