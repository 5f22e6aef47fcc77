/*
 * What every tool needs of a graph: element types, shapes and their texts, names of
 * operators and phases, neutral elements, and the index (users, parameters, results) that
 * follows from the nodes in one pass.
 */
#include "graph/graph.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/float16.h"

/* ---- element types ---- */

static const struct {
    const char *name;
    int size, precision;
} dtypes[AP_N_DTYPES] = {
    [AP_PRED] = {"pred", 1, 0},     [AP_S8] = {"s8", 1, 0},
    [AP_S16] = {"s16", 2, 0},       [AP_S32] = {"s32", 4, 0},
    [AP_S64] = {"s64", 8, 0},       [AP_U8] = {"u8", 1, 0},
    [AP_U16] = {"u16", 2, 0},       [AP_U32] = {"u32", 4, 0},
    [AP_U64] = {"u64", 8, 0},       [AP_F16] = {"f16", 2, 11},
    [AP_BF16] = {"bf16", 2, 8},     [AP_F32] = {"f32", 4, 24},
    [AP_F64] = {"f64", 8, 53},      [AP_F8E4M3FN] = {"f8e4m3fn", 1, 4},
    [AP_F8E5M2] = {"f8e5m2", 1, 3}, [AP_C64] = {"c64", 8, 24},
    [AP_C128] = {"c128", 16, 53},   [AP_TUPLE] = {"tuple", 0, 0},
};

const char *ap_dtype_name(enum ap_dtype dtype)
{
    return dtypes[dtype].name;
}

int ap_dtype_size(enum ap_dtype dtype)
{
    return dtypes[dtype].size;
}

int ap_dtype_precision(enum ap_dtype dtype)
{
    return dtypes[dtype].precision;
}

enum ap_dtype ap_dtype_of_sums(enum ap_dtype dtype)
{
    return dtype == AP_F16 || dtype == AP_BF16 ? AP_F32 : dtype;
}

bool ap_dtype_is_float(enum ap_dtype dtype)
{
    return dtype >= AP_F16 && dtype <= AP_F8E5M2;
}

bool ap_dtype_is_int(enum ap_dtype dtype)
{
    return dtype >= AP_S8 && dtype <= AP_U64;
}

/* True when the len bytes at s spell name. */
static bool spells(const char *s, size_t len, const char *name)
{
    return len && s[0] == name[0] && !strncmp(s, name, len) && name[len] == '\0';
}

enum ap_dtype ap_dtype_find(const char *s, size_t len)
{
    for (int i = 0; i < AP_TUPLE; i++)
        if (spells(s, len, dtypes[i].name))
            return (enum ap_dtype)i;
    return AP_N_DTYPES;
}

/* ---- shapes ---- */

int64_t ap_shape_elems(const struct ap_shape *s)
{
    int64_t n = s->dtype != AP_TUPLE;

    for (int i = 0; i < s->rank; i++) {
        if (s->dims[i] == 0)
            return 0; /* also after a product that saturated */
        n = ap_mul64(n, s->dims[i]);
    }
    return n;
}

int64_t ap_shape_bytes(const struct ap_shape *s)
{
    int64_t n = 0;

    if (s->dtype != AP_TUPLE)
        return ap_mul64(ap_shape_elems(s), ap_dtype_size(s->dtype));
    for (int i = 0; i < s->n_parts; i++)
        n = ap_add64(n, ap_shape_bytes(&s->parts[i]));
    return n;
}

bool ap_shape_same_dims(const struct ap_shape *a, const struct ap_shape *b)
{
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] != b->dims[i])
            return false;
    return true;
}

bool ap_shape_equal(const struct ap_shape *a, const struct ap_shape *b)
{
    if (a->dtype != b->dtype || a->n_parts != b->n_parts || !ap_shape_same_dims(a, b))
        return false;
    for (int i = 0; i < a->n_parts; i++)
        if (!ap_shape_equal(&a->parts[i], &b->parts[i]))
            return false;
    return true;
}

void ap_shape_print(const struct ap_shape *s, struct ap_buf *out)
{
    if (s->dtype == AP_TUPLE) {
        ap_buf_putc(out, '(');
        for (int i = 0; i < s->n_parts; i++) {
            ap_buf_puts(out, i ? ", " : "");
            ap_shape_print(&s->parts[i], out);
        }
        ap_buf_putc(out, ')');
        return;
    }
    ap_buf_puts(out, ap_dtype_name(s->dtype));
    ap_buf_putc(out, '[');
    for (int i = 0; i < s->rank; i++) {
        if (i)
            ap_buf_putc(out, ',');
        ap_buf_int(out, s->dims[i]);
    }
    ap_buf_putc(out, ']');
}

/* Blanks and comments such as the printer's index=5 marks in tuples. */
static void shape_blanks(const char *text, size_t *pos)
{
    for (;;) {
        size_t p = *pos;
        while (text[p] == ' ' || text[p] == '\t' || text[p] == '\n' || text[p] == '\r')
            p++;
        if (text[p] == '/' && text[p + 1] == '*') {
            const char *end = strstr(text + p + 2, "*/");
            if (!end) {
                *pos = p;
                return;
            }
            p = (size_t)(end - text) + 2;
        }
        if (p == *pos)
            return;
        *pos = p;
    }
}

/* A layout follows only if an integer, a colon or the end comes after the brace. */
static int skip_layout(const char *text, size_t *pos, struct ap_err *err)
{
    size_t p = *pos;
    int depth = 0;

    if (text[p] != '{')
        return 0;
    char next = text[p + 1];
    if (next != '}' && next != ':' && !(next >= '0' && next <= '9'))
        return 0;
    do {
        if (text[p] == '\0')
            return ap_err_set(err, "layout without '}'");
        depth += (text[p] == '{') - (text[p] == '}');
        p++;
    } while (depth);
    *pos = p;
    return 0;
}

static int parse_dims(struct ap_arena *arena, const char *text, size_t *pos,
                      struct ap_shape *shape, struct ap_err *err)
{
    int64_t dims[AP_MAX_RANK];
    int n = 0;
    size_t p = *pos;

    for (shape_blanks(text, &p); text[p] != ']'; shape_blanks(text, &p)) {
        if (n && text[p++] != ',')
            return ap_err_set(err, "expected ',' or ']' in a shape");
        shape_blanks(text, &p);
        if (text[p] == '?' || text[p] == '<')
            return ap_err_set(err, "dynamic dimensions are not supported");
        if (n == AP_MAX_RANK)
            return ap_err_set(err, "a shape of more than %d dimensions", AP_MAX_RANK);
        if (text[p] < '0' || text[p] > '9')
            return ap_err_set(err, "expected a size >= 0 in a shape");
        int64_t v = 0;
        for (; text[p] >= '0' && text[p] <= '9'; p++)
            if (__builtin_mul_overflow(v, 10, &v) ||
                __builtin_add_overflow(v, text[p] - '0', &v))
                return ap_err_set(err, "a size in a shape does not fit in 64 bits");
        dims[n++] = v;
    }
    shape->rank = n;
    shape->dims = ap_arena_dup(arena, dims, (size_t)n * sizeof(dims[0]));
    *pos = p + 1;
    return skip_layout(text, pos, err);
}

static int parse_shape(struct ap_arena *arena, const char *text, size_t *pos, int depth,
                       struct ap_shape *shape, struct ap_err *err);

static int parse_parts(struct ap_arena *arena, const char *text, size_t *pos, int depth,
                       struct ap_shape *shape, struct ap_err *err)
{
    struct ap_buf parts = {0};
    int rc = -1;

    for (shape_blanks(text, pos); text[*pos] != ')'; shape_blanks(text, pos)) {
        struct ap_shape part = {0};
        if (parts.len && text[(*pos)++] != ',') {
            ap_err_set(err, "expected ',' or ')' in a tuple shape");
            goto out;
        }
        if (parse_shape(arena, text, pos, depth + 1, &part, err))
            goto out;
        ap_buf_put(&parts, &part, sizeof(part));
    }
    (*pos)++;
    shape->n_parts = (int)(parts.len / sizeof(*shape));
    shape->parts = ap_arena_dup(arena, parts.data, parts.len);
    rc = 0;
out:
    ap_buf_free(&parts);
    return rc;
}

static int parse_shape(struct ap_arena *arena, const char *text, size_t *pos, int depth,
                       struct ap_shape *shape, struct ap_err *err)
{
    size_t len = 0;

    *shape = (struct ap_shape){0};
    shape_blanks(text, pos);
    if (text[*pos] == '(') {
        if (depth == 8)
            return ap_err_set(err, "tuple shapes nested too deep");
        shape->dtype = AP_TUPLE;
        (*pos)++;
        return parse_parts(arena, text, pos, depth, shape, err);
    }
    const char *s = text + *pos;
    while ((s[len] >= 'a' && s[len] <= 'z') || (s[len] >= '0' && s[len] <= '9'))
        len++;
    shape->dtype = ap_dtype_find(s, len);
    if (len == 0)
        return ap_err_set(err, "expected a shape");
    if (shape->dtype == AP_N_DTYPES)
        return ap_err_set(err, "element type '%.*s' is not supported",
                          (int)(len > 40 ? 40 : len), s);
    *pos += len;
    if (text[*pos] != '[')
        return ap_err_set(err, "expected '[' in a shape");
    (*pos)++;
    return parse_dims(arena, text, pos, shape, err);
}

int ap_shape_parse(struct ap_arena *arena, const char *text, size_t *pos,
                   struct ap_shape *shape, struct ap_err *err)
{
    return parse_shape(arena, text, pos, 0, shape, err);
}

/* ---- names ---- */

const struct ap_op_info ap_ops[AP_N_OPS] = {
#define AP_OP(id, name, arity, class, flops, types, precision, ...) \
    {name, arity, class, flops, types, precision},
#include "graph/ops.def"
#undef AP_OP
};

enum ap_op ap_op_find(const char *s, size_t len)
{
    for (int i = 0; i < AP_N_OPS; i++)
        if (spells(s, len, ap_ops[i].name))
            return (enum ap_op)i;
    return AP_N_OPS;
}

const char *const ap_red_names[AP_N_REDS] = {
    [AP_RED_NONE] = "none", [AP_RED_SUM] = "sum",       [AP_RED_PROD] = "prod",
    [AP_RED_MAX] = "max",   [AP_RED_MIN] = "min",       [AP_RED_AND] = "and",
    [AP_RED_OR] = "or",     [AP_RED_ASSIGN] = "assign",
};
const enum ap_op ap_red_ops[AP_N_REDS] = {
    [AP_RED_SUM] = AP_OP_ADD,     [AP_RED_PROD] = AP_OP_MULTIPLY,
    [AP_RED_MAX] = AP_OP_MAXIMUM, [AP_RED_MIN] = AP_OP_MINIMUM,
    [AP_RED_AND] = AP_OP_AND,     [AP_RED_OR] = AP_OP_OR};
const char *const ap_phase_names[AP_N_PHASES] = {
    [AP_FORWARD] = "forward",
    [AP_BACKWARD] = "backward",
    [AP_UPDATE] = "update",
};
const char *const ap_role_names[AP_N_ROLES] = {
    [AP_ROLE_NONE] = "none",   [AP_ROLE_WEIGHT] = "weight",     [AP_ROLE_STATE] = "state",
    [AP_ROLE_INPUT] = "input", [AP_ROLE_CONSTANT] = "constant", [AP_ROLE_LOSS] = "loss",
    [AP_ROLE_AUX] = "aux",
};

const char *const ap_precision_names[AP_N_PRECISIONS] = {"default", "high", "highest",
                                                         "packed_nibble"};
const char *const ap_fft_names[AP_N_FFTS] = {"FFT", "IFFT", "RFFT", "IRFFT"};

/* ---- phases ---- */

/* Through broadcasts that are not of the forward phase, to what they spread. */
static int spread_of(const struct ap_node *nodes, int i)
{
    while (nodes[i].op == AP_OP_BROADCAST && nodes[i].phase != AP_FORWARD)
        i = nodes[i].in[0];
    return i;
}

static bool is_mask(const struct ap_node *nodes, int i)
{
    const struct ap_node *node = &nodes[i];
    bool narrower = false;

    if (node->phase != AP_BACKWARD || ap_ops[node->op].class != AP_CLASS_ELEMENTWISE)
        return false;
    for (int k = 0; k < node->n_in; k++) {
        const struct ap_node *in = &nodes[node->in[k]];
        const struct ap_node *from = &nodes[spread_of(nodes, node->in[k])];
        bool made = from->op == AP_OP_IOTA ||
                    (from->op == AP_OP_CONSTANT && from->shape.rank == 0);
        if (!made && from->phase != AP_FORWARD)
            return false;
        narrower |= in == from && !made &&
                    ap_shape_bytes(&node->shape) < ap_shape_bytes(&in->shape);
    }
    return narrower;
}

void ap_graph_keep_masks(struct ap_node *nodes, int n)
{
    for (int i = 0; i < n; i++) {
        if (!is_mask(nodes, i))
            continue;
        nodes[i].phase = AP_FORWARD;
        for (int k = 0; k < nodes[i].n_in; k++)
            for (int in = nodes[i].in[k]; nodes[in].phase != AP_FORWARD;
                 in = nodes[in].in[0]) {
                nodes[in].phase = AP_FORWARD;
                if (nodes[in].op != AP_OP_BROADCAST)
                    break;
            }
    }
}

/* ---- neutral elements ---- */

static int64_t int_limit(enum ap_dtype dtype, bool most)
{
    int bits = 8 * ap_dtype_size(dtype);

    if (dtype == AP_PRED)
        return most;
    if (dtype >= AP_U8)
        return most ? (int64_t)(UINT64_MAX >> (64 - bits)) : 0;
    return most ? INT64_MAX >> (64 - bits) : INT64_MIN >> (64 - bits);
}

static void put_float(enum ap_dtype dtype, double v, void *out)
{
    float f = (float)v;
    uint16_t h = dtype == AP_F16 ? ap_f32_to_f16(f) : ap_f32_to_bf16(f);
    /* f8e4m3fn has no infinity: its largest value stands for it */
    uint8_t b = dtype == AP_F8E5M2 ? ap_f32_to_f8e5m2(f)
                : isinf(v)         ? (v > 0 ? 0x7e : 0xfe)
                                   : ap_f32_to_f8e4m3fn(f);

    if (dtype == AP_F64 || dtype == AP_C128)
        memcpy(out, &v, sizeof(v));
    else if (dtype == AP_F16 || dtype == AP_BF16)
        memcpy(out, &h, sizeof(h));
    else if (dtype == AP_F8E4M3FN || dtype == AP_F8E5M2)
        memcpy(out, &b, sizeof(b));
    else
        memcpy(out, &f, sizeof(f));
}

void ap_red_neutral(enum ap_red red, enum ap_dtype dtype, void *out)
{
    bool is_int = dtype <= AP_U64;
    int64_t i = 0;
    double v = 0;

    memset(out, 0, 16);
    switch (red) {
    case AP_RED_NONE:
    case AP_RED_SUM:
    case AP_RED_OR:
    case AP_RED_ASSIGN:
    case AP_N_REDS:
        return;
    case AP_RED_PROD:
        i = 1;
        v = 1;
        break;
    case AP_RED_MAX:
        i = int_limit(dtype, false);
        v = -INFINITY;
        break;
    case AP_RED_MIN:
        i = int_limit(dtype, true);
        v = INFINITY;
        break;
    case AP_RED_AND:
        i = dtype == AP_PRED ? 1 : -1;
        break;
    }
    if (is_int)
        memcpy(out, &i, (size_t)ap_dtype_size(dtype)); /* little endian */
    else
        put_float(dtype, v, out);
}

/* ---- index ---- */

/* Where a node stands, for messages: where/nodes/id or where/reducers/r/nodes/id. */
struct place {
    const char *where;
    const char *list; /* "reducers" or "computations", NULL: a node of the graph itself */
    int index;        /* in list */
    int id;
};

static int place_err(const struct place *p, struct ap_err *err, const char *member,
                     const char *msg)
{
    if (p->list)
        return ap_err_set(err, "%s/%s/%d/nodes/%d%s: %s", p->where, p->list, p->index,
                          p->id, member, msg);
    return ap_err_set(err, "%s/nodes/%d%s: %s", p->where, p->id, member, msg);
}

static int check_operand(const struct ap_node *nodes, int n_nodes, const struct place *at,
                         int k, struct ap_err *err)
{
    const struct ap_node *node = &nodes[at->id];
    int from = node->in[k];
    char member[32], msg[120];

    if (from < 0 || from >= n_nodes)
        snprintf(msg, sizeof(msg), "node %d does not exist (the graph has %d nodes)",
                 from, n_nodes);
    else if (from >= at->id)
        snprintf(msg, sizeof(msg),
                 "operand %d does not come before its user (cyclic or unordered graph)",
                 from);
    else if (node->op != AP_OP_GET_TUPLE_ELEMENT && nodes[from].shape.dtype == AP_TUPLE)
        snprintf(msg, sizeof(msg), "only get-tuple-element reads a tuple, not %s",
                 ap_ops[node->op].name);
    else
        return 0;
    snprintf(member, sizeof(member), "/in/%d", k);
    return place_err(at, err, member, msg);
}

/* What holds for the nodes of graphs and of reducers. */
static int check_operands(const struct ap_node *nodes, int n_nodes,
                          const struct place *at, struct ap_err *err)
{
    const struct ap_node *node = &nodes[at->id];
    int arity = ap_ops[node->op].arity;
    char msg[120];

    if (arity >= 0 && node->n_in != arity) {
        snprintf(msg, sizeof(msg), "%s needs %d operand%s, got %d", ap_ops[node->op].name,
                 arity, arity == 1 ? "" : "s", node->n_in);
        return place_err(at, err, "/in", msg);
    }
    for (int k = 0; k < node->n_in; k++)
        if (check_operand(nodes, n_nodes, at, k, err))
            return -1;
    return 0;
}

/* Reducers and computations that the node names; it may use n_comps computations. */
static int check_ids(const struct ap_graph *g, const struct ap_node *node, int n_comps,
                     const struct place *at, struct ap_err *err)
{
    const struct ap_attrs *a = node->attrs;
    const struct {
        const char *member;
        int id, n;
        const char *what;
    } refs[] = {{"/to_apply", a->to_apply, g->n_reducers, "reducer"},
                {"/select", a->select, g->n_reducers, "reducer"},
                {"/scatter", a->scatter, g->n_reducers, "reducer"},
                {"/condition", a->condition, n_comps, "computation"},
                {"/body", a->body, n_comps, "computation"}};
    char msg[120];

    for (size_t i = 0; i < sizeof(refs) / sizeof(refs[0]); i++)
        if (refs[i].id < -1 || refs[i].id >= refs[i].n) {
            snprintf(msg, sizeof(msg), "%s %d does not exist (%s %d %ss)", refs[i].what,
                     refs[i].id, at->list ? "before it there are" : "the graph has",
                     refs[i].n, refs[i].what);
            return place_err(at, err, refs[i].member, msg);
        }
    return 0;
}

static int check_reducer(const struct ap_reducer *r, int id, const char *where,
                         struct ap_err *err)
{
    int n_params = 0;

    for (int i = 0; i < r->n_nodes; i++) {
        const struct ap_node *node = &r->nodes[i];
        struct place at = {where, "reducers", id, i};
        if (check_operands(r->nodes, r->n_nodes, &at, err))
            return -1;
        if (node->shape.rank || node->shape.dtype == AP_TUPLE)
            return place_err(&at, err, "/shape", "a reducer works on scalars");
        if (node->op != AP_OP_PARAMETER)
            continue;
        if (i != n_params || node->param != n_params)
            return place_err(&at, err, "/param",
                             "a reducer's parameters come first, in order");
        n_params++;
    }
    if (r->red == AP_RED_NONE && r->n_results == 0)
        return ap_err_set(err, "%s/reducers/%d: neither a kind nor a body with results",
                          where, id);
    for (int i = 0; i < r->n_results; i++)
        if (r->results[i] < 0 || r->results[i] >= r->n_nodes)
            return ap_err_set(err,
                              "%s/reducers/%d/results/%d: node %d does not exist "
                              "(the reducer has %d nodes)",
                              where, id, i, r->results[i], r->n_nodes);
    return 0;
}

static int check_comp(const struct ap_graph *g, int id, const char *where,
                      struct ap_err *err)
{
    const struct ap_comp *c = &g->comps[id];
    int n_params = 0;

    for (int i = 0; i < c->n_nodes; i++) {
        struct place at = {where, "computations", id, i};
        if (check_operands(c->nodes, c->n_nodes, &at, err) ||
            check_ids(g, &c->nodes[i], id, &at, err))
            return -1;
        if (c->nodes[i].op != AP_OP_PARAMETER)
            continue;
        if (i != n_params || c->nodes[i].param != n_params)
            return place_err(&at, err, "/param",
                             "a computation's parameters come first, in order");
        n_params++;
    }
    for (int i = 0; i < c->n_results; i++)
        if (c->results[i] < 0 || c->results[i] >= c->n_nodes ||
            c->nodes[c->results[i]].shape.dtype == AP_TUPLE)
            return ap_err_set(err,
                              "%s/computations/%d/results/%d: node %d does not exist or "
                              "is a tuple (the computation has %d nodes)",
                              where, id, i, c->results[i], c->n_nodes);
    return 0;
}

static int index_params(struct ap_arena *arena, struct ap_graph *g, const char *where,
                        struct ap_err *err)
{
    int n = 0;

    for (int i = 0; i < g->n_nodes; i++)
        n += g->nodes[i].op == AP_OP_PARAMETER;
    int *params = AP_NEW_N(arena, n, int);
    for (int p = 0; p < n; p++)
        params[p] = -1;
    for (int i = 0; i < g->n_nodes; i++) {
        struct ap_node *node = &g->nodes[i];
        if (node->op != AP_OP_PARAMETER) {
            node->param = -1;
            continue;
        }
        if (node->param < 0 || node->param >= n)
            return ap_err_set(err,
                              "%s/nodes/%d/param: parameter number %d, but the graph "
                              "has %d parameters",
                              where, i, node->param, n);
        if (params[node->param] >= 0)
            return ap_err_set(err, "%s/nodes/%d/param: node %d is parameter %d already",
                              where, i, params[node->param], node->param);
        params[node->param] = i;
    }
    g->n_params = n;
    g->params = params;
    return 0;
}

static int check_results(const struct ap_graph *g, const char *where, struct ap_err *err)
{
    for (int i = 0; i < g->n_results; i++) {
        int node = g->results[i].node, alias = g->results[i].alias;
        if (node < 0 || node >= g->n_nodes)
            return ap_err_set(err,
                              "%s/results/%d/node: node %d does not exist (the graph "
                              "has %d nodes)",
                              where, i, node, g->n_nodes);
        if (g->nodes[node].shape.dtype == AP_TUPLE)
            return ap_err_set(err, "%s/results/%d/node: node %d is a tuple", where, i,
                              node);
        if (alias < -1 || alias >= g->n_nodes)
            return ap_err_set(err,
                              "%s/results/%d/alias: node %d does not exist (the graph "
                              "has %d nodes)",
                              where, i, alias, g->n_nodes);
        if (alias >= 0 && g->nodes[alias].op != AP_OP_PARAMETER)
            return ap_err_set(err, "%s/results/%d/alias: node %d is not a parameter",
                              where, i, alias);
    }
    return 0;
}

static void index_users(struct ap_arena *arena, struct ap_graph *g)
{
    int *start = AP_NEW_N(arena, g->n_nodes + 1, int);

    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++)
            start[g->nodes[i].in[k] + 1]++;
    for (int i = 0; i < g->n_nodes; i++)
        start[i + 1] += start[i];
    int *users = AP_NEW_N(arena, start[g->n_nodes], int);
    struct ap_mark mark = ap_arena_mark(arena);
    int *next = ap_arena_dup(arena, start, (size_t)g->n_nodes * sizeof(int));
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++)
            users[next[g->nodes[i].in[k]]++] = i;
    ap_arena_rewind(arena, mark);
    g->user_start = start;
    g->users = users;
}

int ap_graph_index(struct ap_arena *arena, struct ap_graph *g, const char *where,
                   struct ap_err *err)
{
    int64_t n_edges = 0;

    for (int i = 0; i < g->n_nodes; i++) {
        struct place at = {where, NULL, 0, i};
        if (check_operands(g->nodes, g->n_nodes, &at, err) ||
            check_ids(g, &g->nodes[i], g->n_comps, &at, err))
            return -1;
        if (g->nodes[i].group < -1 ||
            g->nodes[i].group >= (g->n_groups ? g->n_groups : 1))
            return ap_err_set(err,
                              "%s/nodes/%d/group: group %d does not exist (the graph "
                              "has %d groups)",
                              where, i, g->nodes[i].group, g->n_groups);
        n_edges += g->nodes[i].n_in;
    }
    if (n_edges > INT_MAX)
        return ap_err_set(err, "%s/nodes: more than %d operands in all", where, INT_MAX);
    for (int r = 0; r < g->n_reducers; r++)
        if (check_reducer(&g->reducers[r], r, where, err))
            return -1;
    for (int c = 0; c < g->n_comps; c++)
        if (check_comp(g, c, where, err))
            return -1;
    if (index_params(arena, g, where, err) || check_results(g, where, err))
        return -1;
    index_users(arena, g);
    return 0;
}

int64_t ap_batch_size(const struct ap_graph *g)
{
    int64_t best = g->batch;
    int best_count = 0;
    for (int i = 0; i < g->n_params && g->batch == 0; i++) {
        const struct ap_node *p = &g->nodes[g->params[i]];
        int count = 0;
        if (p->role != AP_ROLE_INPUT || p->shape.rank == 0)
            continue;
        for (int j = 0; j < g->n_params && count < 64; j++) {
            const struct ap_node *q = &g->nodes[g->params[j]];
            count += q->role == AP_ROLE_INPUT && q->shape.rank > 0 &&
                     q->shape.dims[0] == p->shape.dims[0];
        }
        if (count > best_count) {
            best = p->shape.dims[0];
            best_count = count;
        }
    }
    return best;
}

bool ap_graph_is_result(const struct ap_graph *g, int node)
{
    for (int r = 0; r < g->n_results; r++)
        if (g->results[r].node == node)
            return true;
    return false;
}

int ap_graph_replace(struct ap_arena *arena, struct ap_graph *g, struct ap_node *nodes,
                     int n, const int *to, struct ap_err *err)
{
    struct ap_result *r = AP_NEW_N(arena, g->n_results + 1, struct ap_result);

    for (int i = 0; i < g->n_results; i++) {
        r[i] = g->results[i];
        r[i].node = to[r[i].node];
        r[i].alias = r[i].alias < 0 ? -1 : to[r[i].alias];
    }
    g->results = r;
    g->nodes = nodes;
    g->n_nodes = n;
    return ap_graph_index(arena, g, "/graph", err);
}

void ap_graph_of_comp(struct ap_arena *arena, const struct ap_graph *g, int id,
                      struct ap_graph *out)
{
    const struct ap_comp *c = &g->comps[id];
    struct ap_err err = {""};

    *out = (struct ap_graph){.name = c->name,
                             .n_nodes = c->n_nodes,
                             .n_results = c->n_results,
                             .n_reducers = g->n_reducers,
                             .reducers = g->reducers,
                             .n_comps = id,
                             .comps = g->comps};
    out->nodes = ap_arena_dup(arena, c->nodes, (size_t)c->n_nodes * sizeof(*c->nodes));
    for (int i = 0; i < c->n_nodes; i++)
        out->nodes[i].group = -1;
    out->results = AP_NEW_N(arena, c->n_results, struct ap_result);
    for (int i = 0; i < c->n_results; i++)
        out->results[i] = (struct ap_result){c->results[i], AP_ROLE_AUX, -1, NULL};
    if (index_params(arena, out, "", &err))
        assert(!"a computation that was checked has an index");
    index_users(arena, out);
}
