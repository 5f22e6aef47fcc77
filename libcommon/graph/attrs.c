/*
 * Attributes by kind: defaults, equality and hashes. Values are compared member by
 * member, since structs hold padding; a hash takes what equality compares.
 */
#include "graph/attrs.h"

#include <string.h>

const struct ap_attrs ap_attrs_default = {
    .feature_group_count = 1,
    .batch_group_count = 1,
    .to_apply = -1,
    .select = -1,
    .scatter = -1,
    .condition = -1,
    .body = -1,
    .trip_count = -1,
};

const struct ap_attr_info ap_attr_table[AP_N_ATTRS] = {
#define AP_ATTR(name, kind, member, hlo) \
    [AP_ATTR_##name] = {#name, hlo, AP_ATTR_IS_##kind, offsetof(struct ap_attrs, member)},
#include "graph/attrs.def"
};

static const uint8_t needs[AP_N_OPS][AP_N_ATTRS] = {
#define AP_ATTR_OF(op, attr, in_json, in_hlo, to_hlo) \
    [AP_OP_##op][AP_ATTR_##attr] =                    \
        (in_json)*AP_ATTR_IN_JSON | (in_hlo)*AP_ATTR_IN_HLO | (to_hlo)*AP_ATTR_TO_HLO,
#include "graph/attrs.def"
};

ap_attr_set ap_attrs_needed(enum ap_op op, enum ap_attr_need need)
{
    ap_attr_set set = 0;

    for (int i = 0; i < AP_N_ATTRS; i++)
        set |= (ap_attr_set)((needs[op][i] & need) != 0) << i;
    return set;
}

static bool is_name(const char *name, size_t len, const char *known)
{
    return *known == *name && !strncmp(known, name, len) && !known[len];
}

enum ap_attr ap_attr_find(const char *name, size_t len)
{
    int i = 0;

    while (i < AP_N_ATTRS && !is_name(name, len, ap_attr_table[i].name))
        i++;
    return (enum ap_attr)i;
}

enum ap_attr ap_attr_find_hlo(const char *name, size_t len)
{
    int i = 0;

    while (i < AP_N_ATTRS &&
           !(ap_attr_table[i].hlo && is_name(name, len, ap_attr_table[i].hlo)))
        i++;
    return (enum ap_attr)i;
}

static bool splits(const struct ap_layout *l)
{
    for (int i = 0; i < AP_MAX_AXES; i++)
        if (l->axis[i].kind != AP_REPLICATED)
            return true;
    return false;
}

ap_attr_set ap_attrs_given(const struct ap_attrs *in)
{
    ap_attr_set set = 0;

    if (in == &ap_attrs_default)
        return 0;
#define GIVEN_AXES(m)       (in->m != 0)
#define GIVEN_BOOL(m)       (in->m)
#define GIVEN_COMP(m)       (in->m != -1)
#define GIVEN_DIM_LABELS(m) (in->m.lhs_batch != in->m.lhs_feature)
#define GIVEN_DIRECTION(m)  (in->m != AP_EQ)
#define GIVEN_FFT(m)        (in->m != AP_FFT_FFT)
#define GIVEN_INT(m)        (in->m != ap_attrs_default.m)
#define GIVEN_INTS(m)       (in->m.n != 0)
#define GIVEN_LAYOUT(m)     (splits(&in->m))
#define GIVEN_ORDER(m)      (in->m)
#define GIVEN_PADDING(m)    (in->n_##m != 0)
#define GIVEN_PART(m)       (in->m != NULL)
#define GIVEN_PRECISION(m)  (in->m[0] || in->m[1])
#define GIVEN_RED(m)        (in->m != AP_RED_NONE)
#define GIVEN_REDUCER(m)    (in->m != -1)
#define GIVEN_SHAPE(m)      (in->m != NULL)
#define GIVEN_SLICE(m)      (in->n_##m != 0)
#define GIVEN_SPLIT(m)      (in->m.outer != 0)
#define GIVEN_STRING(m)     (in->m != NULL)
#define GIVEN_TRANSPOSE(m)  (in->m)
#define GIVEN_VALUE(m)      (in->m.elided || in->m.data)
#define GIVEN_WORD(m)       (in->m != NULL)
#define GIVEN_WINDOW(m)     (in->n_##m != 0)
#define AP_ATTR(name, kind, member, hlo) \
    set |= (ap_attr_set)GIVEN_##kind(member) << AP_ATTR_##name;
#include "graph/attrs.def"
    return set;
}

/* ---- the value as words ---- */

/*
 * What two values have in common if and only if they are equal: a few numbers, and bytes
 * (of a string, a constant, a list). A number's meaning depends on the kind alone.
 */
struct value {
    int n;
    int64_t word[8 * AP_MAX_RANK];
    const void *bytes;
    size_t n_bytes;
};

static void put(struct value *v, int64_t word)
{
    v->word[v->n++] = word;
}

static void put_conv(struct value *v, const struct ap_conv_dims *c)
{
    const int fixed[] = {c->n_spatial, c->lhs_batch, c->lhs_feature, c->rhs_in,
                         c->rhs_out,   c->out_batch, c->out_feature};

    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        put(v, fixed[i]);
    for (int i = 0; i < c->n_spatial; i++) {
        put(v, c->lhs_spatial[i]);
        put(v, c->rhs_spatial[i]);
        put(v, c->out_spatial[i]);
    }
}

static void put_window(struct value *v, const struct ap_attrs *in)
{
    for (int i = 0; i < in->n_window; i++) {
        const struct ap_window_dim *d = &in->window[i];
        put(v, d->size);
        put(v, d->stride);
        put(v, d->pad_lo);
        put(v, d->pad_hi);
        put(v, d->lhs_dilate);
        put(v, d->rhs_dilate);
        put(v, d->reversal);
    }
}

static void put_layout(struct value *v, const struct ap_layout *l)
{
    for (int i = 0; i < AP_MAX_AXES; i++) {
        const struct ap_placement *p = &l->axis[i];
        put(v, p->kind);
        put(v, p->kind == AP_PARTIAL ? p->red : p->kind == AP_SPLIT ? p->dim : 0);
        put(v, p->kind == AP_SPLIT ? p->stride : 0);
    }
}

static void put_literal(struct value *v, const struct ap_literal *literal,
                        const struct ap_shape *shape)
{
    bool one = literal->splat || shape->rank == 0;
    int64_t size = ap_dtype_size(shape->dtype);

    put(v, literal->elided);
    put(v, one);
    if (literal->elided)
        return;
    v->bytes = literal->data;
    v->n_bytes = (size_t)(one ? size : size * ap_shape_elems(shape));
}

/* Tuples differ in their parts, too, which ap_attr_equal compares. */
static void put_shape(struct value *v, const struct ap_shape *shape)
{
    put(v, shape->dtype);
    v->bytes = shape->dims;
    v->n_bytes = (size_t)shape->rank * sizeof *shape->dims;
}

static void value_of(enum ap_attr attr, const struct ap_attrs *in,
                     const struct ap_shape *shape, struct value *v)
{
    const void *place = ap_attr_place(attr, in);
    const struct ap_ints *ints = place;
    const struct ap_split *split = place;

    v->n = 0;
    v->bytes = NULL;
    v->n_bytes = 0;
    switch (ap_attr_table[attr].kind) {
    case AP_ATTR_IS_AXES:
        put(v, *(const unsigned *)place);
        return;
    case AP_ATTR_IS_BOOL:
    case AP_ATTR_IS_ORDER:
    case AP_ATTR_IS_TRANSPOSE:
        put(v, *(const bool *)place);
        return;
    case AP_ATTR_IS_COMP:
        put(v, *(const int *)place);
        return;
    case AP_ATTR_IS_DIM_LABELS:
        put_conv(v, &in->conv);
        return;
    case AP_ATTR_IS_DIRECTION:
        put(v, in->direction);
        return;
    case AP_ATTR_IS_FFT:
        put(v, in->fft_type);
        return;
    case AP_ATTR_IS_INT:
        put(v, *(const int64_t *)place);
        return;
    case AP_ATTR_IS_INTS:
        v->bytes = ints->v;
        v->n_bytes = (size_t)ints->n * sizeof *ints->v;
        return;
    case AP_ATTR_IS_LAYOUT:
        put_layout(v, place);
        return;
    case AP_ATTR_IS_PADDING: /* structs without padding, as slice */
        v->bytes = in->padding;
        v->n_bytes = (size_t)in->n_padding * sizeof *in->padding;
        return;
    case AP_ATTR_IS_RED:
        put(v, *(const enum ap_red *)place);
        return;
    case AP_ATTR_IS_PART:
    case AP_ATTR_IS_REDUCER:
        return;
    case AP_ATTR_IS_PRECISION:
        put(v, in->operand_precision[0]);
        put(v, in->operand_precision[1]);
        return;
    case AP_ATTR_IS_SHAPE:
        put_shape(v, in->global);
        return;
    case AP_ATTR_IS_SLICE:
        v->bytes = in->slice;
        v->n_bytes = (size_t)in->n_slice * sizeof *in->slice;
        return;
    case AP_ATTR_IS_SPLIT:
        put(v, split->dim);
        put(v, split->outer);
        put(v, split->full);
        put(v, split->part);
        return;
    case AP_ATTR_IS_STRING:
    case AP_ATTR_IS_WORD:
        v->bytes = *(const char *const *)place;
        v->n_bytes = strlen(v->bytes);
        return;
    case AP_ATTR_IS_VALUE:
        put_literal(v, place, shape);
        return;
    case AP_ATTR_IS_WINDOW:
        put_window(v, in);
        return;
    }
}

bool ap_attr_equal(enum ap_attr attr, const struct ap_attrs *a, const struct ap_attrs *b,
                   const struct ap_shape *shape)
{
    struct value x, y;

    if (ap_attr_table[attr].kind == AP_ATTR_IS_SHAPE)
        return ap_shape_equal(a->global, b->global);
    value_of(attr, a, shape, &x);
    value_of(attr, b, shape, &y);
    return x.n == y.n && x.n_bytes == y.n_bytes &&
           !memcmp(x.word, y.word, (size_t)x.n * sizeof *x.word) &&
           (!x.n_bytes || !memcmp(x.bytes, y.bytes, x.n_bytes));
}

uint64_t ap_attr_hash(enum ap_attr attr, const struct ap_attrs *attrs,
                      const struct ap_shape *shape)
{
    struct value v;

    value_of(attr, attrs, shape, &v);
    uint64_t h = ap_hash(v.word, (size_t)v.n * sizeof *v.word, (uint64_t)attr);
    return v.n_bytes ? ap_hash(v.bytes, v.n_bytes, h) : h;
}
