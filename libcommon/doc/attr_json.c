/*
 * Attributes as JSON: one table (name, kind, place in struct ap_attrs) drives reading and
 * writing. Names are HLO's, and so are the texts of windows, paddings, slices, labels.
 */
#include "doc/attr_json.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "graph/attr_text.h"
#include "layout/layout.h"
#include "doc/literal.h"

enum attr_kind {
    ATTR_AXES,
    ATTR_BOOL,
    ATTR_DIM_LABELS,
    ATTR_DIRECTION,
    ATTR_FFT,
    ATTR_INT, /* >= 0 */
    ATTR_INTS,
    ATTR_LAYOUT,
    ATTR_PADDING,
    ATTR_RED,
    ATTR_REDUCER,
    ATTR_SHAPE,
    ATTR_SLICE,
    ATTR_SPLIT,
    ATTR_STRING,
    ATTR_VALUE,
    ATTR_WINDOW
};

/*
 * An attribute with its default value is not written, unless the node's operator is one
 * of `always`: there the attribute is always written and must be present, so that a
 * misspelt name is no silent default.
 */
struct attr {
    const char *name;
    enum attr_kind kind;
    size_t offset;
    enum ap_op always[2];
};

#define PLACE(member) offsetof(struct ap_attrs, member)
#define NEVER              \
    {                      \
        AP_N_OPS, AP_N_OPS \
    }
#define OF(op)               \
    {                        \
        AP_OP_##op, AP_N_OPS \
    }
#define OF2(op, other)            \
    {                             \
        AP_OP_##op, AP_OP_##other \
    }

/* Sorted by name, for bsearch. */
static const struct attr attrs[] = {
    {"axes", ATTR_AXES, PLACE(coll.axes), NEVER},
    {"batch_group_count", ATTR_INT, PLACE(batch_group_count), NEVER},
    {"body", ATTR_REDUCER, PLACE(body), OF(WHILE)},
    {"collapsed_slice_dims", ATTR_INTS, PLACE(collapsed_slice_dims), NEVER},
    {"condition", ATTR_REDUCER, PLACE(condition), OF(WHILE)},
    {"dim_labels", ATTR_DIM_LABELS, PLACE(conv), NEVER},
    {"dimensions", ATTR_INTS, PLACE(dimensions), NEVER},
    {"direction", ATTR_DIRECTION, PLACE(direction), OF(COMPARE)},
    {"dynamic_slice_sizes", ATTR_INTS, PLACE(dynamic_slice_sizes), NEVER},
    {"exponent_bits", ATTR_INT, PLACE(exponent_bits), OF(REDUCE_PRECISION)},
    {"feature_group_count", ATTR_INT, PLACE(feature_group_count), NEVER},
    {"fft_length", ATTR_INTS, PLACE(fft_length), OF(FFT)},
    {"fft_type", ATTR_FFT, PLACE(fft_type), OF(FFT)},
    {"flops", ATTR_INT, PLACE(flops), NEVER},
    {"global", ATTR_SHAPE, PLACE(global), NEVER},
    {"index", ATTR_INT, PLACE(index), OF(GET_TUPLE_ELEMENT)},
    {"index_vector_dim", ATTR_INT, PLACE(index_vector_dim), OF2(GATHER, SCATTER)},
    {"indices_are_sorted", ATTR_BOOL, PLACE(indices_are_sorted), NEVER},
    {"input_batching_dims", ATTR_INTS, PLACE(input_batching_dims), NEVER},
    {"inserted_window_dims", ATTR_INTS, PLACE(inserted_window_dims), NEVER},
    {"iota_dimension", ATTR_INT, PLACE(iota_dimension), OF(IOTA)},
    {"is_stable", ATTR_BOOL, PLACE(is_stable), NEVER},
    {"join", ATTR_SPLIT, PLACE(coll.join), NEVER},
    {"k", ATTR_INT, PLACE(k), OF(TOPK)},
    {"largest", ATTR_BOOL, PLACE(largest), OF(TOPK)},
    {"layout", ATTR_LAYOUT, PLACE(layout), NEVER},
    {"left_side", ATTR_BOOL, PLACE(left_side), OF(TRIANGULAR_SOLVE)},
    {"lhs_batch_dims", ATTR_INTS, PLACE(lhs_batch_dims), NEVER},
    {"lhs_contracting_dims", ATTR_INTS, PLACE(lhs_contracting_dims), NEVER},
    {"lower", ATTR_BOOL, PLACE(lower), OF2(CHOLESKY, TRIANGULAR_SOLVE)},
    {"mantissa_bits", ATTR_INT, PLACE(mantissa_bits), OF(REDUCE_PRECISION)},
    {"offset_dims", ATTR_INTS, PLACE(offset_dims), NEVER},
    {"operand_batching_dims", ATTR_INTS, PLACE(operand_batching_dims), NEVER},
    {"padding", ATTR_PADDING, PLACE(padding), NEVER},
    {"red", ATTR_RED, PLACE(coll.red), NEVER},
    {"rhs_batch_dims", ATTR_INTS, PLACE(rhs_batch_dims), NEVER},
    {"rhs_contracting_dims", ATTR_INTS, PLACE(rhs_contracting_dims), NEVER},
    {"scatter", ATTR_REDUCER, PLACE(scatter), NEVER},
    {"scatter_dims_to_operand_dims", ATTR_INTS, PLACE(scatter_dims_to_operand_dims),
     NEVER},
    {"scatter_indices_batching_dims", ATTR_INTS, PLACE(scatter_indices_batching_dims),
     NEVER},
    {"select", ATTR_REDUCER, PLACE(select), NEVER},
    {"slice", ATTR_SLICE, PLACE(slice), NEVER},
    {"slice_sizes", ATTR_INTS, PLACE(slice_sizes), NEVER},
    {"split", ATTR_SPLIT, PLACE(coll.split), NEVER},
    {"start_index_map", ATTR_INTS, PLACE(start_index_map), NEVER},
    {"start_indices_batching_dims", ATTR_INTS, PLACE(start_indices_batching_dims), NEVER},
    {"target", ATTR_STRING, PLACE(target), OF(CUSTOM_CALL)},
    {"to_apply", ATTR_REDUCER, PLACE(to_apply), NEVER},
    {"total_order", ATTR_BOOL, PLACE(total_order), NEVER},
    {"transpose_a", ATTR_BOOL, PLACE(transpose_a), NEVER},
    {"trip_count", ATTR_INT, PLACE(trip_count), NEVER},
    {"unique_indices", ATTR_BOOL, PLACE(unique_indices), NEVER},
    {"unit_diagonal", ATTR_BOOL, PLACE(unit_diagonal), NEVER},
    {"update_window_dims", ATTR_INTS, PLACE(update_window_dims), NEVER},
    {"value", ATTR_VALUE, PLACE(literal), OF2(CONSTANT, AP_MASK)},
    {"window", ATTR_WINDOW, PLACE(window), NEVER},
};
enum { N_ATTRS = sizeof(attrs) / sizeof(attrs[0]) };
_Static_assert(N_ATTRS <= 64, "a bit each");

static bool attr_always(const struct attr *a, enum ap_op op)
{
    return a->always[0] == op || a->always[1] == op;
}

bool ap_attrs_needed(enum ap_op op)
{
    for (int i = 0; i < N_ATTRS; i++)
        if (attr_always(&attrs[i], op))
            return true;
    return false;
}

static int attr_compare(const void *key, const void *row)
{
    return strcmp(key, ((const struct attr *)row)->name);
}

/* ---- reading ---- */

int ap_shape_from_text(struct ap_arena *arena, const char *text, const struct ap_at *at,
                       struct ap_shape *shape, struct ap_err *err)
{
    struct ap_err why = {""};
    size_t pos = 0;

    if (ap_shape_parse(arena, text, &pos, shape, &why))
        return ap_at_err(at, err, "%s in \"%s\"", why.msg, text);
    if (text[pos])
        return ap_at_err(at, err, "text behind the shape in \"%s\"", text);
    return 0;
}

static int read_axes(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                     unsigned *axes, struct ap_err *err)
{
    struct ap_at list = {at, "axes", 0};
    struct ap_ints ints;

    if (ap_get_ints(arena, o, at, "axes", &ints, err))
        return -1;
    for (int i = 0; i < ints.n; i++) {
        struct ap_at here = {&list, NULL, i};
        if (ints.v[i] < 0 || ints.v[i] >= AP_MAX_AXES || *axes >> ints.v[i] & 1)
            return ap_at_err(&here, err, "expected a mesh axis from 0 to %d, each once",
                             AP_MAX_AXES - 1);
        *axes |= 1u << ints.v[i];
    }
    return 0;
}

static int read_split(const json_t *o, const struct ap_at *at, struct ap_split *split,
                      struct ap_err *err)
{
    int64_t dim;

    if (ap_get_int(o, at, "dim", 0, AP_MAX_RANK - 1, &dim, err) ||
        ap_get_int(o, at, "outer", 0, INT64_MAX, &split->outer, err) ||
        ap_get_int(o, at, "full", 0, INT64_MAX, &split->full, err) ||
        ap_get_int(o, at, "part", 0, INT64_MAX, &split->part, err))
        return -1;
    split->dim = (int)dim;
    return 0;
}

static int read_layout(const json_t *v, const struct ap_at *at, struct ap_layout *layout,
                       struct ap_err *err)
{
    struct ap_err why = {""};

    if (!json_is_array(v) || json_array_size(v) > AP_MAX_AXES)
        return ap_at_err(at, err, "expected an array of up to %d placements",
                         AP_MAX_AXES);
    for (size_t i = 0; i < json_array_size(v); i++) {
        struct ap_at here = {at, NULL, (long)i};
        const char *text = json_string_value(json_array_get(v, i));
        size_t pos = 0;
        if (!text)
            return ap_at_err(&here, err, "expected a placement such as \"S0\"");
        if (ap_placement_parse(text, &pos, &layout->axis[i], &why))
            return ap_at_err(&here, err, "%s in \"%s\"", why.msg, text);
        if (text[pos])
            return ap_at_err(&here, err, "text behind the placement in \"%s\"", text);
    }
    return 0;
}

/* Attributes that are strings in HLO's spelling. */
static int read_text(struct ap_arena *arena, const json_t *v, const struct ap_at *at,
                     enum attr_kind kind, struct ap_attrs *out, struct ap_err *err)
{
    const char *text = json_string_value(v);
    struct ap_err why = {""};
    size_t pos = 0;
    int rc;

    if (!text)
        return ap_at_err(at, err, "expected a string in HLO's spelling");
    if (kind == ATTR_WINDOW)
        rc = ap_window_parse(arena, text, &pos, out, &why);
    else if (kind == ATTR_PADDING)
        rc = ap_padding_parse(arena, text, &pos, out, &why);
    else if (kind == ATTR_SLICE)
        rc = ap_slice_parse(arena, text, &pos, out, &why);
    else if (kind == ATTR_DIRECTION)
        rc = ap_direction_parse(text, &pos, &out->direction, &why);
    else
        rc = ap_dim_labels_parse(text, &pos, out, &why);
    if (rc)
        return ap_at_err(at, err, "%s in \"%s\"", why.msg, text);
    if (text[pos])
        return ap_at_err(at, err, "text behind the attribute in \"%s\"", text);
    return 0;
}

static int read_string(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       const char *name, void *place, struct ap_err *err)
{
    const char *text;
    if (ap_get_str(o, at, name, &text, err))
        return -1;
    *(const char **)place = ap_arena_strdup(arena, text);
    return 0;
}

static int read_bool(const json_t *v, const struct ap_at *at, bool *out,
                     struct ap_err *err)
{
    if (!json_is_boolean(v))
        return ap_at_err(at, err, "expected true or false");
    *out = json_is_true(v);
    return 0;
}

/* Member a->name with value v of node object o. */
static int read_attr(struct ap_arena *arena, const json_t *o, const json_t *v,
                     const struct ap_at *at, const struct attr *a, struct ap_attrs *out,
                     struct ap_err *err)
{
    void *place = (char *)out + a->offset;
    struct ap_at here = {at, a->name, 0};
    struct ap_shape *global;
    int red = 0;

    switch (a->kind) {
    case ATTR_AXES:
        return read_axes(arena, o, at, place, err);
    case ATTR_BOOL:
        return read_bool(v, &here, place, err);
    case ATTR_STRING:
        return read_string(arena, o, at, a->name, place, err);
    case ATTR_INT:
        return ap_get_int(o, at, a->name, 0, INT64_MAX, place, err);
    case ATTR_INTS:
        return ap_get_ints(arena, o, at, a->name, place, err);
    case ATTR_LAYOUT:
        return read_layout(v, &here, place, err);
    case ATTR_RED:
        if (ap_opt_name(o, at, a->name, ap_red_names, AP_N_REDS, &red, err))
            return -1;
        *(enum ap_red *)place = (enum ap_red)red;
        return 0;
    case ATTR_FFT:
        if (ap_opt_name(o, at, a->name, ap_fft_names, AP_N_FFTS, &red, err))
            return -1;
        out->fft_type = (enum ap_fft)red;
        return 0;
    case ATTR_REDUCER:
        return ap_opt_int(o, at, a->name, -1, place, err);
    case ATTR_SHAPE:
        if (!json_is_string(v))
            return ap_at_err(&here, err, "expected a shape such as \"f32[8,4]\"");
        global = AP_NEW(arena, struct ap_shape);
        out->global = global;
        return ap_shape_from_text(arena, json_string_value(v), &here, global, err);
    case ATTR_SPLIT:
        return read_split(v, &here, place, err);
    case ATTR_VALUE: /* read_value, once `global` is known */
        return 0;
    case ATTR_DIM_LABELS:
    case ATTR_DIRECTION:
    case ATTR_PADDING:
    case ATTR_SLICE:
    case ATTR_WINDOW:
        return read_text(arena, v, &here, a->kind, out, err);
    }
    return -1;
}

/* A constant of a program holds the whole tensor. */
static const struct ap_shape *value_shape(const struct ap_node *node)
{
    return node->attrs->global ? node->attrs->global : &node->shape;
}

static int read_value(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      const struct ap_node *node, struct ap_attrs *out,
                      struct ap_err *err)
{
    const json_t *v = json_object_get(o, "value");
    struct ap_at here = {at, "value", 0};

    if (!v)
        return 0;
    return ap_literal_from_json(arena, v, value_shape(node), &here, &out->literal, err);
}

int ap_attrs_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       struct ap_node *node, struct ap_err *err)
{
    struct ap_attrs *out = NULL;
    uint64_t seen = 0;

    node->attrs = &ap_attrs_default;
    for (void *it = json_object_iter((json_t *)o); it;
         it = json_object_iter_next((json_t *)o, it)) {
        const struct attr *a = bsearch(json_object_iter_key(it), attrs, N_ATTRS,
                                       sizeof(attrs[0]), attr_compare);
        if (!a)
            continue;
        if (!out)
            out = ap_arena_dup(arena, &ap_attrs_default, sizeof(*out));
        node->attrs = out;
        if (read_attr(arena, o, json_object_iter_value(it), at, a, out, err))
            return -1;
        seen |= (uint64_t)1 << (a - attrs);
    }
    if (out && read_value(arena, o, at, node, out, err))
        return -1;
    for (int i = 0; i < N_ATTRS; i++)
        if (attr_always(&attrs[i], node->op) && !(seen >> i & 1))
            return ap_at_err(at, err, "%s needs the attribute \"%s\"",
                             ap_ops[node->op].name, attrs[i].name);
    return 0;
}

/* ---- writing ---- */

static void write_axes(struct ap_buf *out, const char *key, unsigned axes)
{
    int ids[AP_MAX_AXES], n = 0;

    for (int a = 0; a < AP_MAX_AXES; a++)
        if (axes >> a & 1)
            ids[n++] = a;
    ap_put_ids(out, key, ids, n);
}

static void write_split(struct ap_buf *out, const char *key, const struct ap_split *split)
{
    ap_put_key(out, key);
    ap_buf_printf(out, "{\"dim\":%d", split->dim);
    ap_put_int(out, "outer", split->outer);
    ap_put_int(out, "full", split->full);
    ap_put_int(out, "part", split->part);
    ap_buf_putc(out, '}');
}

static void write_layout(struct ap_buf *out, const char *key, const struct ap_layout *l)
{
    int n = AP_MAX_AXES;

    while (n && l->axis[n - 1].kind == AP_REPLICATED)
        n--;
    ap_put_key(out, key);
    for (int a = 0; a < n; a++) {
        ap_buf_puts(out, a ? ",\"" : "[\"");
        ap_placement_print(&l->axis[a], out);
        ap_buf_putc(out, '"');
    }
    ap_buf_puts(out, n ? "]" : "[]");
}

static void write_text(struct ap_buf *out, const struct attr *a,
                       const struct ap_attrs *in)
{
    ap_put_key(out, a->name);
    ap_buf_putc(out, '"');
    if (a->kind == ATTR_WINDOW)
        ap_window_print(in, out);
    else if (a->kind == ATTR_PADDING)
        ap_padding_print(in, out);
    else if (a->kind == ATTR_SLICE)
        ap_slice_print(in, out);
    else if (a->kind == ATTR_DIRECTION)
        ap_buf_puts(out, ap_direction_name(in->direction));
    else
        ap_dim_labels_print(in, out);
    ap_buf_putc(out, '"');
}

static void write_ints(struct ap_buf *out, const char *key, const struct ap_ints *ints)
{
    ap_put_key(out, key);
    ap_buf_putc(out, '[');
    for (int i = 0; i < ints->n; i++) {
        if (i)
            ap_buf_putc(out, ',');
        ap_buf_int(out, ints->v[i]);
    }
    ap_buf_putc(out, ']');
}

/* True when the attribute says no more than its absence would. */
static bool attr_is_default(const struct attr *a, const struct ap_attrs *in)
{
    const void *place = (const char *)in + a->offset;
    const void *unset = (const char *)&ap_attrs_default + a->offset;

    switch (a->kind) {
    case ATTR_AXES:
        return *(const unsigned *)place == 0;
    case ATTR_STRING:
        return !*(const char *const *)place;
    case ATTR_BOOL:
        return !*(const bool *)place;
    case ATTR_DIM_LABELS:
        return in->conv.lhs_batch == in->conv.lhs_feature;
    case ATTR_DIRECTION:
        return in->direction == AP_EQ;
    case ATTR_FFT:
        return in->fft_type == AP_FFT_FFT;
    case ATTR_INT:
        return *(const int64_t *)place == *(const int64_t *)unset;
    case ATTR_INTS:
        return ((const struct ap_ints *)place)->n == 0;
    case ATTR_LAYOUT:
        for (int i = 0; i < AP_MAX_AXES; i++)
            if (in->layout.axis[i].kind != AP_REPLICATED)
                return false;
        return true;
    case ATTR_PADDING:
        return in->n_padding == 0;
    case ATTR_RED:
        return *(const enum ap_red *)place == AP_RED_NONE;
    case ATTR_REDUCER:
        return *(const int *)place == -1;
    case ATTR_SHAPE:
        return !in->global;
    case ATTR_SLICE:
        return in->n_slice == 0;
    case ATTR_SPLIT:
        return ((const struct ap_split *)place)->outer == 0;
    case ATTR_VALUE:
        return !in->literal.elided && !in->literal.data;
    case ATTR_WINDOW:
        return in->n_window == 0;
    }
    return true;
}

static void write_attr(struct ap_buf *out, const struct attr *a,
                       const struct ap_node *node)
{
    const struct ap_attrs *in = node->attrs;
    const void *place = (const char *)in + a->offset;

    switch (a->kind) {
    case ATTR_AXES:
        write_axes(out, a->name, *(const unsigned *)place);
        return;
    case ATTR_STRING:
        ap_put_str(out, a->name, *(const char *const *)place);
        return;
    case ATTR_BOOL:
        ap_put_key(out, a->name);
        ap_buf_puts(out, *(const bool *)place ? "true" : "false");
        return;
    case ATTR_INT:
        ap_put_int(out, a->name, *(const int64_t *)place);
        return;
    case ATTR_INTS:
        write_ints(out, a->name, place);
        return;
    case ATTR_LAYOUT:
        write_layout(out, a->name, place);
        return;
    case ATTR_RED:
        ap_put_str(out, a->name, ap_red_names[*(const enum ap_red *)place]);
        return;
    case ATTR_FFT:
        ap_put_str(out, a->name, ap_fft_names[in->fft_type]);
        return;
    case ATTR_REDUCER:
        ap_put_int(out, a->name, *(const int *)place);
        return;
    case ATTR_SHAPE:
        ap_put_shape(out, a->name, in->global);
        return;
    case ATTR_SPLIT:
        write_split(out, a->name, place);
        return;
    case ATTR_VALUE:
        ap_put_key(out, a->name);
        ap_literal_to_json(&in->literal, value_shape(node), out);
        return;
    case ATTR_DIM_LABELS:
    case ATTR_DIRECTION:
    case ATTR_PADDING:
    case ATTR_SLICE:
    case ATTR_WINDOW:
        write_text(out, a, in);
        return;
    }
}

void ap_attrs_to_json(const struct ap_node *node, struct ap_buf *out)
{
    for (int i = 0; i < N_ATTRS; i++)
        if (attr_always(&attrs[i], node->op) ||
            (node->attrs != &ap_attrs_default &&
             !attr_is_default(&attrs[i], node->attrs)))
            write_attr(out, &attrs[i], node);
}
