/*
 * Idea: a pool of values, each with a bound on its magnitude; every step picks an
 * operator and operands that fit it, adds the node, and tames the result (floor and
 * clamp) when it is inexact or has grown too large for exact sums.
 */
#include "gen_priv.h"

#include <assert.h>
#include <string.h>

uint32_t gen_next(struct gen_rng *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) >> 16);
}

int gen_below(struct gen_rng *r, int n)
{
    return (int)(gen_next(r) % (uint32_t)n);
}

double gen_value(uint64_t seed, int p, int64_t i, enum ap_dtype dtype)
{
    struct gen_rng r = {seed * 1000003u + (uint64_t)p * 7919u +
                        (uint64_t)i * 2654435761u};
    gen_next(&r);
    if (dtype == AP_PRED)
        return gen_below(&r, 2);
    if (!ap_dtype_is_float(dtype) && dtype >= AP_U8 && dtype <= AP_U64)
        return gen_below(&r, 4);
    return gen_below(&r, 5) - 2;
}

/* ---- building blocks ---- */

double gen_max_exact(enum ap_dtype t)
{
    return t == AP_BF16 ? 256 : t == AP_F16 ? 2048 : t == AP_S8 || t == AP_U8 ? 120 : 1e6;
}

struct ap_shape gen_shape_of(struct gen *g, enum ap_dtype t, int rank,
                             const int64_t *dims)
{
    return (struct ap_shape){
        .dtype = t,
        .rank = rank,
        .dims = ap_arena_dup(g->arena, dims, sizeof *dims * (size_t)rank)};
}

struct ap_attrs *gen_attrs_new(struct gen *g)
{
    return ap_arena_dup(g->arena, &ap_attrs_default, sizeof ap_attrs_default);
}

struct ap_ints gen_ints(struct gen *g, int n, const int64_t *v)
{
    return (struct ap_ints){n, ap_arena_dup(g->arena, v, sizeof *v * (size_t)n)};
}

int gen_add(struct gen *g, enum ap_op op, struct ap_shape shape, struct ap_attrs *a,
            int n_in, const int *in, double bound)
{
    assert(g->n < MAX_NODES);
    int id = g->n++;
    g->node[id] = (struct ap_node){
        .op = op,
        .name = ap_arena_printf(g->arena, "%s.%d", ap_ops[op].name, id),
        .n_in = n_in,
        .in = ap_arena_dup(g->arena, in, sizeof *in * (size_t)(n_in + 1)),
        .shape = shape,
        .attrs = a ? a : gen_attrs_new(g),
        .scope = "",
        .param = -1,
        .group = -1};
    g->bound[id] = bound;
    g->in_pool[id] = shape.dtype != AP_TUPLE;
    return id;
}

int gen_add1(struct gen *g, enum ap_op op, struct ap_shape s, struct ap_attrs *a, int x,
             double bound)
{
    int in[2] = {x, 0};
    return gen_add(g, op, s, a, 1, in, bound);
}

int gen_add2(struct gen *g, enum ap_op op, struct ap_shape s, struct ap_attrs *a, int x,
             int y, double bound)
{
    int in[3] = {x, y, 0};
    return gen_add(g, op, s, a, 2, in, bound);
}

/* Stores v as one element of dtype t. */
static void put_element(void *out, enum ap_dtype t, double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    memset(out, 0, 16);
    switch (t) {
    case AP_F32:
        memcpy(out, &f, 4);
        return;
    case AP_F64:
        memcpy(out, &v, 8);
        return;
    case AP_BF16: { /* small integers: truncation is exact */
        uint16_t h = (uint16_t)(bits >> 16);
        memcpy(out, &h, 2);
        return;
    }
    case AP_F16: { /* small integers and halves only */
        uint16_t h = 0;
        if (v != 0)
            h = (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 255) - 112) << 10 |
                           (bits >> 13 & 1023));
        memcpy(out, &h, 2);
        return;
    }
    default: {
        int64_t i = (int64_t)v; /* little endian: the low bytes come first */
        memcpy(out, &i, 8);
    }
    }
}

int gen_scalar(struct gen *g, enum ap_dtype t, double v)
{
    struct ap_attrs *a = gen_attrs_new(g);
    char *data = ap_arena_alloc(g->arena, 16);
    put_element(data, t, v);
    a->literal = (struct ap_literal){.splat = true, .data = data};
    int id = gen_add(g, AP_OP_CONSTANT, gen_shape_of(g, t, 0, (int64_t[]){0}), a, 0,
                     (int[]){0}, v < 0 ? -v : v);
    g->in_pool[id] = false;
    return id;
}

int gen_broadcast_scalar(struct gen *g, int x, const struct ap_shape *like)
{
    struct ap_shape s = gen_shape_of(g, g->node[x].shape.dtype, like->rank, like->dims);
    int id = gen_add1(g, AP_OP_BROADCAST, s, NULL, x, g->bound[x]);
    g->in_pool[id] = false;
    return id;
}

int gen_filled(struct gen *g, double v, const struct ap_shape *like)
{
    return gen_broadcast_scalar(g, gen_scalar(g, like->dtype, v), like);
}

/* Makes integers in [-SMALL, SMALL] of anything without NaN. */
int gen_tame(struct gen *g, int x)
{
    struct ap_shape s = g->node[x].shape;
    double lo = s.dtype >= AP_U8 && s.dtype <= AP_U64 ? 0 : -SMALL;
    if (s.dtype == AP_PRED)
        return x;
    if (ap_dtype_is_float(s.dtype)) {
        /* functions of small integers lie close to integers, where devices may differ */
        g->in_pool[x] = false;
        x = gen_add2(g, AP_OP_ADD, s, NULL, x, gen_filled(g, 0.375, &s), g->bound[x] + 1);
        g->in_pool[x] = false;
        x = gen_add1(g, gen_below(&g->rng, 2) ? AP_OP_FLOOR : AP_OP_CEIL, s, NULL, x,
                     g->bound[x] + 1);
    }
    g->in_pool[x] = false;
    int in[4] = {gen_scalar(g, s.dtype, lo), x, gen_scalar(g, s.dtype, SMALL), 0};
    return gen_add(g, AP_OP_CLAMP, s, NULL, 3, in, SMALL);
}

int gen_settle(struct gen *g, int x)
{
    return g->bound[x] > gen_max_exact(g->node[x].shape.dtype) / 8 ? gen_tame(g, x) : x;
}

bool gen_any(const struct ap_shape *s)
{
    return s->dtype != AP_TUPLE;
}
bool gen_number(const struct ap_shape *s)
{
    return s->dtype != AP_TUPLE && s->dtype != AP_PRED;
}
bool gen_is_f(const struct ap_shape *s)
{
    return ap_dtype_is_float(s->dtype);
}
bool gen_is_f_ranked(const struct ap_shape *s)
{
    return ap_dtype_is_float(s->dtype) && s->rank > 0;
}
bool gen_ranked(const struct ap_shape *s)
{
    return gen_number(s) && s->rank > 0;
}
bool gen_is_signed(const struct ap_shape *s)
{
    return ap_dtype_is_int(s->dtype) && s->dtype <= AP_S64;
}

/* A random pool value that fits, newer ones preferred; -1 for none. */
int gen_pick(struct gen *g, want_fn *want)
{
    for (int tries = 0; tries < 60; tries++) {
        int id = gen_below(&g->rng, g->n);
        if (tries < 30 && gen_below(&g->rng, 2) && g->n > 8)
            id = g->n - 1 - gen_below(&g->rng, 8);
        if (g->in_pool[id] && g->node[id].shape.dtype != AP_C64 &&
            want(&g->node[id].shape)) /* few operators take complex numbers */
            return id;
    }
    return -1;
}

/* A value with x's dims and dtype: from the pool, or x itself. */
int gen_pick_like(struct gen *g, int x)
{
    for (int tries = 0; tries < 40; tries++) {
        int id = gen_below(&g->rng, g->n);
        if (g->in_pool[id] && ap_shape_equal(&g->node[id].shape, &g->node[x].shape))
            return id;
    }
    return x;
}

/* Scalar computation of two parameters as a reducer. */
int gen_reducer(struct gen *g, enum ap_red red, enum ap_dtype t)
{
    static const enum ap_op ops[AP_N_REDS] = {
        [AP_RED_SUM] = AP_OP_ADD,     [AP_RED_PROD] = AP_OP_MULTIPLY,
        [AP_RED_MAX] = AP_OP_MAXIMUM, [AP_RED_MIN] = AP_OP_MINIMUM,
        [AP_RED_AND] = AP_OP_AND,     [AP_RED_OR] = AP_OP_OR};
    if (g->red_id[red][t])
        return g->red_id[red][t] - 1;
    struct gen *r = AP_NEW(g->arena, struct gen);
    r->arena = g->arena;
    struct ap_shape s = gen_shape_of(g, t, 0, (int64_t[]){0});
    for (int i = 0; i < 2; i++) {
        int id = gen_add(r, AP_OP_PARAMETER, s, NULL, 0, (int[]){0}, 1);
        r->node[id].param = i;
    }
    if (red == AP_RED_ASSIGN)
        r->n = 2;
    else
        gen_add2(r, ops[red], s, NULL, 0, 1, 1);
    struct ap_reducer *out = &g->reducer[g->n_reducers];
    *out = (struct ap_reducer){
        .name = ap_arena_printf(g->arena, "%s.%s", ap_red_names[red], ap_dtype_name(t)),
        .red = red,
        .n_nodes = r->n,
        .n_results = 1,
        .nodes = r->node,
        .results = ap_arena_dup(g->arena, &(int){r->n - 1}, sizeof(int))};
    g->red_id[red][t] = ++g->n_reducers;
    return g->n_reducers - 1;
}

/* compare(a, b, GE) as the select of select-and-scatter; or argmax of (value, index). */
int gen_custom_reducer(struct gen *g, enum ap_dtype t, bool argmax)
{
    struct gen *r = AP_NEW(g->arena, struct gen);
    r->arena = g->arena;
    struct ap_shape s = gen_shape_of(g, t, 0, (int64_t[]){0});
    struct ap_shape i32 = gen_shape_of(g, AP_S32, 0, (int64_t[]){0});
    struct ap_shape pred = gen_shape_of(g, AP_PRED, 0, (int64_t[]){0});
    struct ap_reducer *out = &g->reducer[g->n_reducers];
    for (int i = 0; i < (argmax ? 4 : 2); i++) {
        int id = gen_add(r, AP_OP_PARAMETER, argmax && i % 2 ? i32 : s, NULL, 0,
                         (int[]){0}, 1);
        r->node[id].param = i;
    }
    struct ap_attrs *ge = gen_attrs_new(g);
    ge->direction = AP_GE;
    int results[2] = {gen_add2(r, AP_OP_COMPARE, pred, ge, 0, argmax ? 2 : 1, 1), 0};
    if (argmax) { /* keep the greater; of equal ones the lower index */
        struct ap_attrs *eq = gen_attrs_new(g), *lt = gen_attrs_new(g),
                        *gt = gen_attrs_new(g);
        eq->direction = AP_EQ;
        lt->direction = AP_LT;
        gt->direction = AP_GT;
        int greater = gen_add2(r, AP_OP_COMPARE, pred, gt, 0, 2, 1);
        int equal = gen_add2(r, AP_OP_COMPARE, pred, eq, 0, 2, 1);
        int lower = gen_add2(r, AP_OP_COMPARE, pred, lt, 1, 3, 1);
        int both = gen_add2(r, AP_OP_AND, pred, NULL, equal, lower, 1);
        int first = gen_add2(r, AP_OP_OR, pred, NULL, greater, both, 1);
        results[0] = gen_add(r, AP_OP_SELECT, s, NULL, 3, (int[]){first, 0, 2, 0}, 1);
        results[1] = gen_add(r, AP_OP_SELECT, i32, NULL, 3, (int[]){first, 1, 3, 0}, 1);
    }
    *out =
        (struct ap_reducer){.name = argmax ? "argmax" : "ge",
                            .red = AP_RED_NONE,
                            .n_nodes = r->n,
                            .n_results = argmax ? 2 : 1,
                            .nodes = r->node,
                            .results = ap_arena_dup(g->arena, results, sizeof results)};
    return g->n_reducers++;
}

/* ---- the graph ---- */

static int random_dim(struct gen *g)
{
    static const int sizes[] = {2, 3, 4, 4, 5, 6, 8, 8, 12, 7, 1};
    return sizes[gen_below(&g->rng, 11)];
}

static void add_params(struct gen *g)
{
    static const enum ap_dtype types[] = {AP_F32,  AP_F32, AP_F32, AP_F32, AP_S32,
                                          AP_BF16, AP_F16, AP_U32, AP_PRED};
    int n = 3 + gen_below(&g->rng, 3);
    int64_t shared[4];
    for (int i = 0; i < 4; i++)
        shared[i] = random_dim(g);
    for (int i = 0; i < n; i++) {
        int64_t dims[5];
        int rank = 1 + gen_below(&g->rng, 3);
        for (int d = 0; d < rank; d++)
            dims[d] = gen_below(&g->rng, 4) ? shared[(d + i / 2) % 4] : random_dim(g);
        enum ap_dtype t = i == 0 ? AP_F32 : types[gen_below(&g->rng, 9)];
        int id = gen_add(g, AP_OP_PARAMETER, gen_shape_of(g, t, rank, dims), NULL, 0,
                         (int[]){0}, SMALL);
        g->node[id].param = g->n_params++;
        g->node[id].role = AP_ROLE_INPUT;
    }
}

static void add_results(struct gen *g, struct ap_graph *out)
{
    struct ap_result *results = AP_NEW_N(g->arena, 8, struct ap_result);
    bool *used = AP_NEW_N(g->arena, g->n, bool);
    int n = 0;
    for (int i = 0; i < g->n; i++)
        for (int k = 0; k < g->node[i].n_in; k++)
            used[g->node[i].in[k]] = true;
    for (int i = g->n - 1; i >= g->n_params && n < 5; i--)
        if (g->in_pool[i] && (!used[i] || gen_below(&g->rng, 6) == 0))
            results[n++] = (struct ap_result){i, AP_ROLE_AUX, -1, NULL};
    for (int p = 0; p < g->n_params && n < 7; p++) /* one parameter is updated */
        for (int i = g->n - 1; i >= g->n_params && g->node[p].role == AP_ROLE_INPUT; i--)
            if (g->in_pool[i] && ap_shape_equal(&g->node[i].shape, &g->node[p].shape)) {
                results[n++] = (struct ap_result){i, AP_ROLE_WEIGHT, p, NULL};
                g->node[p].role = AP_ROLE_WEIGHT;
                p = g->n_params;
                break;
            }
    out->n_results = n;
    out->results = results;
}

int gen_graph(struct ap_arena *arena, uint64_t seed, int n_ops, struct ap_graph *out,
              struct ap_err *err)
{
    struct gen *g = AP_NEW(arena, struct gen);
    g->arena = arena;
    g->rng.state = seed;
    add_params(g);
    for (int i = 0; i < n_ops && g->n < MAX_NODES - 60 && g->n_reducers < 20; i++)
        gen_op(g);
    *out = (struct ap_graph){.name = "random",
                             .n_nodes = g->n,
                             .nodes = g->node,
                             .n_reducers = g->n_reducers,
                             .reducers = g->reducer};
    add_results(g, out);
    if (ap_graph_index(arena, out, "", err) || ap_graph_check_shapes(out, "", err))
        return -1;
    return 0;
}
