/*
 * Attributes as JSON: members of a node's object, by name. Their names are HLO's, and so
 * are the texts of windows, paddings, slices, labels; attrs.def lists them.
 */
#include "doc/attr_json.h"

#include <limits.h>
#include <string.h>

#include "doc/literal.h"
#include "graph/attr_text.h"

/* ---- reading ---- */

int ap_shape_from_text(struct ap_arena *arena, const char *text, const struct ap_at *at,
                       struct ap_shape *shape, struct ap_err *err)
{
    struct ap_err why = {""};
    size_t pos = 0;

    if (ap_shape_parse(arena, text, &pos, shape, &why))
        return ap_at_err(at, err, "%s in \"%s\"", why.msg, text);
    if (text[pos])
        return ap_at_err(at, err, "text after the shape in \"%s\"", text);
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

static int read_part_split(const json_t *o, const struct ap_at *at,
                           struct ap_part_split *s, struct ap_err *err)
{
    int64_t dim;

    if (ap_get_int(o, at, "dim", 0, AP_MAX_RANK - 1, &dim, err) ||
        ap_get_int(o, at, "parts", 1, INT64_MAX, &s->parts, err) ||
        ap_get_int(o, at, "part", 0, s->parts - 1, &s->part, err))
        return -1;
    s->dim = (int)dim;
    return 0;
}

int ap_part_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      const struct ap_part **out, struct ap_err *err)
{
    struct ap_part *p = AP_NEW(arena, struct ap_part);
    struct ap_at places[AP_MAX_RANK + 1] = {*at};
    int64_t index;

    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (ap_get_int(o, at, "index", 0, INT_MAX, &index, err))
        return -1;
    p->index = (int)index;
    while (o && (p->n || json_object_get(o, "parts"))) {
        if (p->n == AP_MAX_RANK || !json_is_object(o))
            return ap_at_err(&places[p->n], err, "expected an object, at most %d deep",
                             AP_MAX_RANK);
        if (read_part_split(o, &places[p->n], &p->split[p->n], err))
            return -1;
        places[p->n + 1] = (struct ap_at){&places[p->n], "then", 0};
        o = json_object_get(o, "then");
        p->n++;
    }
    *out = p;
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
            return ap_at_err(&here, err, "text after the placement in \"%s\"", text);
    }
    return 0;
}

/* Attributes that are strings in HLO's spelling. */
static int read_text(struct ap_arena *arena, const json_t *v, const struct ap_at *at,
                     enum ap_attr attr, struct ap_attrs *out, struct ap_err *err)
{
    const char *text = json_string_value(v);
    struct ap_err why = {""};
    size_t pos = 0;

    if (!text)
        return ap_at_err(at, err, "expected a string in HLO's spelling");
    if (ap_attr_parse(arena, attr, text, &pos, out, &why))
        return ap_at_err(at, err, "%s in \"%s\"", why.msg, text);
    if (text[pos])
        return ap_at_err(at, err, "text after the attribute in \"%s\"", text);
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

/* The attribute's member, with value v, of node object o. */
static int read_attr(struct ap_arena *arena, const json_t *o, const json_t *v,
                     const struct ap_at *at, enum ap_attr attr, struct ap_attrs *out,
                     struct ap_err *err)
{
    const char *name = ap_attr_table[attr].name;
    void *place = ap_attr_place_of(attr, out);
    struct ap_at here = {at, name, 0};
    struct ap_shape *global;
    int red = 0;

    switch (ap_attr_table[attr].kind) {
    case AP_ATTR_IS_AXES:
        return read_axes(arena, o, at, place, err);
    case AP_ATTR_IS_BOOL:
    case AP_ATTR_IS_ORDER:
    case AP_ATTR_IS_TRANSPOSE:
        return read_bool(v, &here, place, err);
    case AP_ATTR_IS_STRING:
        return read_string(arena, o, at, name, place, err);
    case AP_ATTR_IS_INT:
        return ap_get_int(o, at, name, 0, INT64_MAX, place, err);
    case AP_ATTR_IS_INTS:
        return ap_get_ints(arena, o, at, name, place, err);
    case AP_ATTR_IS_LAYOUT:
        return read_layout(v, &here, place, err);
    case AP_ATTR_IS_PART:
        return ap_part_from_json(arena, v, &here, place, err);
    case AP_ATTR_IS_RED:
        if (ap_opt_name(o, at, name, ap_red_names, AP_N_REDS, &red, err))
            return -1;
        *(enum ap_red *)place = (enum ap_red)red;
        return 0;
    case AP_ATTR_IS_COMP:
    case AP_ATTR_IS_REDUCER:
        return ap_opt_int(o, at, name, -1, place, err);
    case AP_ATTR_IS_SHAPE:
        if (!json_is_string(v))
            return ap_at_err(&here, err, "expected a shape such as \"f32[8,4]\"");
        global = AP_NEW(arena, struct ap_shape);
        out->global = global;
        return ap_shape_from_text(arena, json_string_value(v), &here, global, err);
    case AP_ATTR_IS_SPLIT:
        return read_split(v, &here, place, err);
    case AP_ATTR_IS_VALUE: /* read_value, once `global` is known */
        return 0;
    case AP_ATTR_IS_DIM_LABELS:
    case AP_ATTR_IS_DIRECTION:
    case AP_ATTR_IS_FFT:
    case AP_ATTR_IS_PADDING:
    case AP_ATTR_IS_PRECISION:
    case AP_ATTR_IS_SLICE:
    case AP_ATTR_IS_WINDOW:
    case AP_ATTR_IS_WORD:
        return read_text(arena, v, &here, attr, out, err);
    }
    return -1;
}

static int read_value(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      const struct ap_node *node, struct ap_attrs *out,
                      struct ap_err *err)
{
    const json_t *v = json_object_get(o, "value");
    struct ap_at here = {at, "value", 0};

    if (!v)
        return 0;
    return ap_literal_from_json(arena, v, ap_attr_value_shape(node), &here, &out->literal,
                                err);
}

int ap_attrs_from_json(struct ap_arena *arena, json_t *o, const struct ap_at *at,
                       struct ap_node *node, struct ap_err *err)
{
    struct ap_attrs *out = NULL;
    ap_attr_set seen = 0;

    node->attrs = &ap_attrs_default;
    for (void *it = json_object_iter(o); it; it = json_object_iter_next(o, it)) {
        const char *name = json_object_iter_key(it);
        enum ap_attr attr = ap_attr_find(name, strlen(name));
        if (attr == AP_N_ATTRS)
            continue;
        if (!out)
            out = ap_arena_dup(arena, &ap_attrs_default, sizeof(*out));
        node->attrs = out;
        if (read_attr(arena, o, json_object_iter_value(it), at, attr, out, err))
            return -1;
        seen |= ap_attr_bit(attr);
    }
    if (out && read_value(arena, o, at, node, out, err))
        return -1;
    const ap_attr_set missing = ap_attrs_needed(node->op, AP_ATTR_IN_JSON) & ~seen;
    return !missing ? 0
                    : ap_at_err(at, err, "%s needs the attribute \"%s\"",
                                ap_ops[node->op].name,
                                ap_attr_table[ap_attr_first(missing)].name);
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

void ap_part_to_json(struct ap_buf *out, const char *key, const struct ap_part *p)
{
    ap_put_key(out, key);
    ap_buf_printf(out, "{\"index\":%d", p->index);
    for (int i = 0; i < p->n; i++) {
        if (i)
            ap_buf_puts(out, ",\"then\":{\"dim\":");
        else
            ap_put_key(out, "dim");
        ap_buf_int(out, p->split[i].dim);
        ap_put_int(out, "part", p->split[i].part);
        ap_put_int(out, "parts", p->split[i].parts);
    }
    for (int i = 1; i < p->n; i++)
        ap_buf_putc(out, '}');
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

static void write_attr(struct ap_buf *out, enum ap_attr attr, const struct ap_node *node)
{
    const struct ap_attrs *in = node->attrs;
    const void *place = ap_attr_place(attr, in);
    const char *name = ap_attr_table[attr].name;

    switch (ap_attr_table[attr].kind) {
    case AP_ATTR_IS_AXES:
        write_axes(out, name, *(const unsigned *)place);
        return;
    case AP_ATTR_IS_STRING:
        ap_put_str(out, name, *(const char *const *)place);
        return;
    case AP_ATTR_IS_BOOL:
    case AP_ATTR_IS_ORDER:
    case AP_ATTR_IS_TRANSPOSE:
        ap_put_key(out, name);
        ap_buf_puts(out, *(const bool *)place ? "true" : "false");
        return;
    case AP_ATTR_IS_INT:
        ap_put_int(out, name, *(const int64_t *)place);
        return;
    case AP_ATTR_IS_INTS:
        write_ints(out, name, place);
        return;
    case AP_ATTR_IS_LAYOUT:
        write_layout(out, name, place);
        return;
    case AP_ATTR_IS_PART:
        ap_part_to_json(out, name, in->argument);
        return;
    case AP_ATTR_IS_RED:
        ap_put_str(out, name, ap_red_names[*(const enum ap_red *)place]);
        return;
    case AP_ATTR_IS_COMP:
    case AP_ATTR_IS_REDUCER:
        ap_put_int(out, name, *(const int *)place);
        return;
    case AP_ATTR_IS_SHAPE:
        ap_put_shape(out, name, in->global);
        return;
    case AP_ATTR_IS_SPLIT:
        write_split(out, name, place);
        return;
    case AP_ATTR_IS_VALUE:
        ap_put_key(out, name);
        ap_literal_to_json(&in->literal, ap_attr_value_shape(node), out);
        return;
    case AP_ATTR_IS_DIM_LABELS:
    case AP_ATTR_IS_DIRECTION:
    case AP_ATTR_IS_FFT:
    case AP_ATTR_IS_PADDING:
    case AP_ATTR_IS_PRECISION:
    case AP_ATTR_IS_SLICE:
    case AP_ATTR_IS_WINDOW:
    case AP_ATTR_IS_WORD:
        ap_put_key(out, name);
        ap_buf_putc(out, '"');
        ap_attr_print(attr, in, out);
        ap_buf_putc(out, '"');
        return;
    }
}

void ap_attrs_to_json(const struct ap_node *node, struct ap_buf *out)
{
    enum ap_attr list[AP_N_ATTRS]; /* to write, by name */
    ap_attr_set set =
        ap_attrs_given(node->attrs) | ap_attrs_needed(node->op, AP_ATTR_IN_JSON);
    int n = 0;

    for (; set; set &= set - 1) {
        const enum ap_attr attr = ap_attr_first(set);
        const char *name = ap_attr_table[attr].name;
        int at = n++;
        for (; at && strcmp(ap_attr_table[list[at - 1]].name, name) > 0; at--)
            list[at] = list[at - 1];
        list[at] = attr;
    }
    for (int i = 0; i < n; i++)
        write_attr(out, list[i], node);
}
