/*
 * ModelProto and its parts, by field number (onnx.proto). Unknown fields are passed by.
 * Messages lie at most five deep, by their types: nothing recurses. Lists are counted in
 * a first pass over their message, then filled.
 */
#include "onnx/onnx_read.h"

#include <stdio.h>
#include <string.h>

int onnx_fail(struct onnx_file *f, const char *fmt, ...)
{
    char msg[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return ap_err_set(f->err, "%s: %s", f->path, msg);
}

int onnx_refuse(struct onnx_file *f, const char *fmt, ...)
{
    char msg[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    if (!f->err->msg[0])
        f->unsupported = true;
    return ap_err_set(f->err, "%s: %s", f->path, msg);
}

enum ap_dtype onnx_dtype(int64_t type)
{
    static const enum ap_dtype types[] = {
        AP_N_DTYPES, AP_F32,      AP_U8,   AP_S8,       AP_U16,      AP_S16,   AP_S32,
        AP_S64,      AP_N_DTYPES, AP_PRED, AP_F16,      AP_F64,      AP_U32,   AP_U64,
        AP_C64,      AP_C128,     AP_BF16, AP_F8E4M3FN, AP_N_DTYPES, AP_F8E5M2};
    return type > 0 && type < (int64_t)(sizeof types / sizeof *types) ? types[type]
                                                                      : AP_N_DTYPES;
}

static const char *text_of(struct onnx_file *f, const struct pb_field *field)
{
    struct pb b = field->bytes;
    return field->wire == PB_BYTES && pb_len(&b) && !memchr(b.p, 0, pb_len(&b))
               ? ap_arena_strndup(f->arena, (const char *)b.p, pb_len(&b))
               : "";
}

/* Fields of this number that are rows of bytes. */
static int count(struct pb m, uint64_t number)
{
    struct pb_field f;
    int n = 0;
    while (pb_next(&m, &f))
        n += f.number == number && f.wire == PB_BYTES;
    return n;
}

/* Integers of a repeated field, packed or not; n counts beyond cap, too. */
static bool add_ints(const struct pb_field *field, int64_t *v, int64_t cap, int64_t *n)
{
    struct pb m = field->bytes;
    uint64_t x;
    if (field->wire == PB_VARINT) {
        if (*n < cap)
            v[*n] = (int64_t)field->value;
        ++*n;
        return true;
    }
    while (field->wire == PB_BYTES && m.p < m.end) {
        if (!pb_varint(&m, &x))
            return false;
        if (*n < cap)
            v[*n] = (int64_t)x;
        ++*n;
    }
    return field->wire == PB_BYTES;
}

/* All integers of a message's field, in the arena. */
static bool get_ints(struct onnx_file *f, struct pb m, uint64_t number, int64_t **v,
                     int64_t *n)
{
    *v = NULL;
    for (int pass = 0; pass < 2; pass++) {
        struct pb at = m;
        struct pb_field field;
        int64_t cap = pass ? *n : 0;
        *n = 0;
        while (pb_next(&at, &field))
            if (field.number == number && !add_ints(&field, *v, cap, n))
                return false;
        if (!pass)
            *v = AP_NEW_N(f->arena, *n + 1, int64_t);
    }
    return true;
}

/* Numbers of `size` bytes of a message's field, where they are if they are in one piece.
 */
static const void *get_fixed(struct onnx_file *f, struct pb m, uint64_t number, int size,
                             int64_t *bytes)
{
    struct pb at = m, piece = {0};
    struct pb_field field;
    int n_pieces = 0;
    *bytes = 0;
    while (pb_next(&at, &field))
        if (field.number == number) {
            piece = field.bytes;
            n_pieces++;
            *bytes += field.wire == PB_BYTES ? (int64_t)pb_len(&piece) : size;
        }
    if (n_pieces == 1 && piece.p)
        return piece.p;
    uint8_t *out = ap_arena_alloc(f->arena, (size_t)*bytes + 1), *to = out;
    for (at = m; pb_next(&at, &field);) {
        size_t len = field.wire == PB_BYTES ? pb_len(&field.bytes) : (size_t)size;
        if (field.number != number)
            continue;
        memcpy(to, field.wire == PB_BYTES ? (const void *)field.bytes.p : &field.value,
               len);
        to += len;
    }
    return out;
}

/* ---- tensors ---- */

/* Elements that are written as varints, each into its own type. */
static int unpack_ints(struct onnx_file *f, struct pb bytes, uint64_t number,
                       const char *what, struct onnx_tensor *t)
{
    int64_t *v, n;
    int size = ap_dtype_size(t->shape.dtype);
    if (!get_ints(f, bytes, number, &v, &n))
        return onnx_fail(f, "%s: malformed data", what);
    char *out = ap_arena_alloc_n(f->arena, (size_t)n + 1, (size_t)size);
    for (int64_t i = 0; i < n; i++)
        memcpy(out + i * size, &v[i], (size_t)size); /* little endian: the low bytes */
    t->data = out;
    t->bytes = n * size;
    return 0;
}

static int typed_data(struct onnx_file *f, struct pb bytes, const char *what,
                      struct onnx_tensor *t)
{
    switch ((int)t->shape.dtype) {
    case AP_F32:
    case AP_C64:
        t->data = get_fixed(f, bytes, 4, 4, &t->bytes);
        return 0;
    case AP_F64:
    case AP_C128:
        t->data = get_fixed(f, bytes, 10, 8, &t->bytes);
        return 0;
    case AP_S64:
        return unpack_ints(f, bytes, 7, what, t);
    case AP_U32:
    case AP_U64:
        return unpack_ints(f, bytes, 11, what, t);
    }
    return unpack_ints(f, bytes, 5, what, t);
}

static void external_entry(struct onnx_file *f, struct pb m, struct onnx_tensor *t)
{
    const char *key = "", *value = "";
    struct pb_field field;
    while (pb_next(&m, &field)) {
        if (field.number == 1)
            key = text_of(f, &field);
        if (field.number == 2)
            value = text_of(f, &field);
    }
    long long number = -1;
    if (strcmp(key, "location") == 0)
        t->location = value;
    else if (strcmp(key, "offset") == 0 && sscanf(value, "%18lld", &number) == 1)
        t->offset = number;
    else if (strcmp(key, "length") == 0 && sscanf(value, "%18lld", &number) == 1)
        t->length = number;
}

static int tensor_shape(struct onnx_file *f, struct pb bytes, const char *what,
                        struct onnx_tensor *t)
{
    int64_t *dims, rank;
    if (!get_ints(f, bytes, 1, &dims, &rank))
        return onnx_fail(f, "%s: malformed dimensions", what);
    if (rank > AP_MAX_RANK)
        return onnx_refuse(f, "%s: %lld dimensions are not supported yet", what,
                           (long long)rank);
    t->shape =
        (struct ap_shape){.dtype = onnx_dtype(t->type), .rank = (int)rank, .dims = dims};
    if (t->shape.dtype == AP_N_DTYPES)
        return onnx_refuse(f, "%s: element type %d is not supported yet", what, t->type);
    for (int d = 0; d < rank; d++)
        if (dims[d] < 0)
            return onnx_fail(f, "%s: negative dimension %lld", what, (long long)dims[d]);
    return 0;
}

int onnx_read_tensor(struct onnx_file *f, struct pb bytes, const char *what,
                     struct onnx_tensor *t)
{
    struct pb_field field;
    struct pb m = bytes;
    const uint8_t *raw = NULL;
    *t = (struct onnx_tensor){.name = "", .length = -1};
    while (pb_next(&m, &field)) {
        if (field.number == 2)
            t->type = (int)field.value;
        else if (field.number == 8)
            t->name = text_of(f, &field);
        else if (field.number == 9 && field.wire == PB_BYTES) {
            raw = field.bytes.p;
            t->bytes = (int64_t)pb_len(&field.bytes);
        } else if (field.number == 13 && field.wire == PB_BYTES)
            external_entry(f, field.bytes, t);
        else if (field.number == 14)
            t->external = field.value == 1;
    }
    if (*t->name)
        what = t->name;
    if (m.bad)
        return onnx_fail(f, "%s: malformed tensor", what);
    if (tensor_shape(f, bytes, what, t))
        return -1;
    if (t->external)
        return 0;
    t->data = raw;
    int64_t want = ap_shape_bytes(&t->shape);
    if (!raw && typed_data(f, bytes, what, t))
        return -1;
    if (t->bytes != want)
        return onnx_fail(f, "%s: expected %lld bytes of data, got %lld", what,
                         (long long)want, (long long)t->bytes);
    return 0;
}

/* ---- nodes ---- */

static int read_attr(struct onnx_file *f, struct pb m, struct onnx_attr *a)
{
    struct pb_field field;
    int64_t n, bytes;
    int64_t *ints;
    *a = (struct onnx_attr){.name = "", .s = ""};
    if (!get_ints(f, m, 8, &ints, &n))
        return -1;
    a->ints = (struct ap_ints){(int)n, ints};
    const void *floats = get_fixed(f, m, 7, 4, &bytes);
    a->n_floats = (int)(bytes / 4);
    a->floats = ap_arena_dup(f->arena, floats, (size_t)bytes + !bytes);
    a->n_strings = count(m, 9);
    while (pb_next(&m, &field)) {
        uint32_t bits = (uint32_t)field.value;
        if (field.number == 1)
            a->name = text_of(f, &field);
        else if (field.number == 2 && field.wire == PB_FIX32) {
            a->has_f = true;
            memcpy(&a->f, &bits, 4);
        } else if (field.number == 3 && field.wire == PB_VARINT) {
            a->has_i = true;
            a->i = (int64_t)field.value;
        } else if (field.number == 4) {
            a->has_s = true;
            a->s = text_of(f, &field);
        } else if (field.number == 5 && field.wire == PB_BYTES)
            a->tensor = field.bytes;
        else if (field.number == 6)
            a->has_graph = true;
    }
    return m.bad ? -1 : 0;
}

static int read_node(struct onnx_file *f, struct pb m, int number, struct onnx_node *node)
{
    struct pb_field field;
    int n_attrs = count(m, 5), n_in = count(m, 1), n_out = count(m, 2);
    struct onnx_attr *attrs = AP_NEW_N(f->arena, n_attrs + 1, struct onnx_attr);
    *node = (struct onnx_node){.name = "", .op = "", .domain = "", .attrs = attrs};
    node->in = AP_NEW_N(f->arena, n_in + 1, const char *);
    node->out = AP_NEW_N(f->arena, n_out + 1, const char *);
    while (pb_next(&m, &field)) {
        if (field.number == 1 && field.wire == PB_BYTES)
            node->in[node->n_in++] = text_of(f, &field);
        else if (field.number == 2 && field.wire == PB_BYTES)
            node->out[node->n_out++] = text_of(f, &field);
        else if (field.number == 3)
            node->name = text_of(f, &field);
        else if (field.number == 4)
            node->op = text_of(f, &field);
        else if (field.number == 7)
            node->domain = text_of(f, &field);
        else if (field.number == 5 && field.wire == PB_BYTES &&
                 read_attr(f, field.bytes, &attrs[node->n_attrs++]))
            m.bad = true;
    }
    if (m.bad)
        return onnx_fail(f, "node %d is malformed", number);
    if (!*node->name)
        node->name = ap_arena_printf(f->arena, "%d", number);
    return 0;
}

/* ---- inputs and outputs ---- */

static void read_dim(struct onnx_file *f, struct pb m, struct onnx_value *v)
{
    struct pb_field field;
    int64_t *dim = &v->dims[v->rank];
    *dim = -1;
    v->symbol[v->rank] = "";
    while (pb_next(&m, &field)) {
        if (field.number == 1 && field.wire == PB_VARINT)
            *dim = (int64_t)field.value < 0 ? -1 : (int64_t)field.value;
        if (field.number == 2)
            v->symbol[v->rank] = text_of(f, &field);
    }
    v->rank++;
}

/* The first row of bytes with this number, empty if there is none. */
static struct pb inner(struct pb m, uint64_t number)
{
    struct pb_field field;
    while (pb_next(&m, &field))
        if (field.number == number && field.wire == PB_BYTES)
            return field.bytes;
    return (struct pb){0};
}

static int read_value(struct onnx_file *f, struct pb m, struct onnx_value *v)
{
    struct pb_field field;
    struct pb type = inner(inner(m, 2), 1); /* tensor_type */
    *v = (struct onnx_value){.name = ""};
    while (pb_next(&m, &field))
        if (field.number == 1)
            v->name = text_of(f, &field);
    while (pb_next(&type, &field)) {
        if (field.number == 1)
            v->type = (int)field.value;
        if (field.number != 2 || field.wire != PB_BYTES)
            continue;
        struct pb shape = field.bytes;
        struct pb_field dim;
        v->has_shape = true;
        while (pb_next(&shape, &dim)) {
            if (dim.number != 1 || dim.wire != PB_BYTES)
                continue;
            if (v->rank == AP_MAX_RANK)
                return onnx_refuse(f,
                                   "'%s' has more than %d dimensions: not supported yet",
                                   v->name, AP_MAX_RANK);
            read_dim(f, dim.bytes, v);
        }
    }
    return m.bad || type.bad ? onnx_fail(f, "'%s': malformed type", v->name) : 0;
}

/* ---- the model ---- */

static int read_graph(struct onnx_file *f, struct pb g, struct onnx_model *m)
{
    struct pb_field field;
    m->nodes = AP_NEW_N(f->arena, count(g, 1) + 1, struct onnx_node);
    m->inits = AP_NEW_N(f->arena, count(g, 5) + 1, struct onnx_tensor);
    m->inputs = AP_NEW_N(f->arena, count(g, 11) + 1, struct onnx_value);
    m->outputs = AP_NEW_N(f->arena, count(g, 12) + 1, struct onnx_value);
    while (pb_next(&g, &field)) {
        int rc = 0;
        if (field.wire != PB_BYTES)
            continue;
        if (field.number == 1) {
            rc = read_node(f, field.bytes, m->n_nodes, &m->nodes[m->n_nodes]);
            m->n_nodes++;
        } else if (field.number == 2)
            m->name = text_of(f, &field);
        else if (field.number == 5)
            rc = onnx_read_tensor(f, field.bytes, "initialiser", &m->inits[m->n_inits++]);
        else if (field.number == 11)
            rc = read_value(f, field.bytes, &m->inputs[m->n_inputs++]);
        else if (field.number == 12)
            rc = read_value(f, field.bytes, &m->outputs[m->n_outputs++]);
        else if (field.number == 15)
            rc = onnx_refuse(f, "sparse initialisers are not supported yet");
        if (rc)
            return -1;
    }
    return g.bad ? onnx_fail(f, "the graph is malformed or cut off") : 0;
}

static void read_opset(struct onnx_file *f, struct pb m, struct onnx_model *model)
{
    struct pb_field field;
    const char *domain = "";
    int64_t version = 0;
    while (pb_next(&m, &field)) {
        if (field.number == 1)
            domain = text_of(f, &field);
        if (field.number == 2)
            version = (int64_t)field.value;
    }
    if (!*domain || strcmp(domain, "ai.onnx") == 0)
        model->opset = version;
}

int onnx_read(struct onnx_file *f, struct onnx_model *model)
{
    struct pb m = {f->data, f->data + f->len, false}, graph = {0};
    struct pb_field field;
    *model = (struct onnx_model){.name = ""};
    while (pb_next(&m, &field)) {
        if (field.number == 7 && field.wire == PB_BYTES)
            graph = field.bytes;
        if (field.number == 8 && field.wire == PB_BYTES)
            read_opset(f, field.bytes, model);
    }
    if (m.bad)
        return onnx_fail(f, "not an ONNX model, or cut off at byte %lld",
                         (long long)(m.p - f->data));
    if (!graph.p)
        return onnx_fail(f, "not an ONNX model: it has no graph");
    return read_graph(f, graph, model);
}
