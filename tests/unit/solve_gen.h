/* Seeded selection problems for the solver's tests and bench. */
#ifndef AP_SOLVE_GEN_H
#define AP_SOLVE_GEN_H

#include "solve/problem.h"

#include <string.h>

static uint64_t gen_state;

static inline uint64_t gen_next(void)
{
    gen_state += 0x9e3779b97f4a7c15u;
    uint64_t z = gen_state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline int gen_int(int lo, int hi)
{
    return lo + (int)(gen_next() % (uint64_t)(hi - lo + 1));
}

/* ---- a problem under construction ---- */

struct gen {
    struct ap_arena *arena;
    int n_nodes, n_edges, cap_nodes, cap_edges;
    int *n_strategies;
    const double **cost;
    struct ap_problem_edge *edges;
};

static inline void *gen_grow(struct ap_arena *arena, void *old, int n, int *cap,
                             size_t size)
{
    if (n < *cap)
        return old;
    void *p = ap_arena_alloc_n(arena, (size_t)*cap * 2 + 64, size);
    if (n > 0)
        memcpy(p, old, (size_t)n * size);
    return p;
}

static inline double *gen_node(struct gen *g, int n_strategies)
{
    int cap = g->cap_nodes;
    g->n_strategies = gen_grow(g->arena, g->n_strategies, g->n_nodes, &cap, sizeof(int));
    g->cost = gen_grow(g->arena, g->cost, g->n_nodes, &cap, sizeof(double *));
    if (g->n_nodes == g->cap_nodes)
        g->cap_nodes = cap * 2 + 64;
    double *cost = AP_NEW_N(g->arena, n_strategies, double);
    g->n_strategies[g->n_nodes] = n_strategies;
    g->cost[g->n_nodes++] = cost;
    return cost;
}

static inline double *gen_edge(struct gen *g, int a, int b)
{
    g->edges = gen_grow(g->arena, g->edges, g->n_edges, &g->cap_edges, sizeof(*g->edges));
    if (g->n_edges == g->cap_edges)
        g->cap_edges = g->cap_edges * 2 + 64;
    double *cost = AP_NEW_N(
        g->arena, (size_t)g->n_strategies[a] * (size_t)g->n_strategies[b], double);
    g->edges[g->n_edges++] = (struct ap_problem_edge){a, b, cost};
    return cost;
}

static inline struct ap_problem gen_problem(const struct gen *g)
{
    return (struct ap_problem){.n_nodes = g->n_nodes,
                               .n_edges = g->n_edges,
                               .n_strategies = g->n_strategies,
                               .cost = g->cost,
                               .edges = g->edges};
}

/* ---- random problems ---- */

/*
 * n nodes of 1..most strategies; costs are whole numbers below `values` times 1e-6 (few
 * values: many ties); one cell in `forbid` (0: none) is forbidden. reach > 0 joins only
 * nodes that close to each other.
 */
static inline struct ap_problem gen_random(struct ap_arena *arena, int n, int n_edges,
                                           int most, int values, int forbid, int reach)
{
    struct gen g = {.arena = arena};

    for (int v = 0; v < n; v++) {
        int k = gen_int(1, most);
        double *cost = gen_node(&g, k);
        for (int s = 0; s < k; s++)
            cost[s] = forbid && gen_int(1, forbid * 2) == 1
                          ? AP_FORBIDDEN
                          : 1e-6 * gen_int(0, values - 1);
    }
    for (int e = 0; e < n_edges && n > 1; e++) {
        int a = gen_int(0, n - 1), b = gen_int(0, n - 1);
        if (reach > 0) {
            b = a + gen_int(1, reach);
            b = b < n ? b : n - 1;
        }
        if (a == b)
            continue;
        if (gen_int(0, 1)) {
            int t = a;
            a = b;
            b = t;
        }
        double *cost = gen_edge(&g, a, b);
        for (int i = 0; i < g.n_strategies[a] * g.n_strategies[b]; i++)
            cost[i] = forbid && gen_int(1, forbid) == 1 ? AP_FORBIDDEN
                                                        : 1e-6 * gen_int(0, values - 1);
    }
    return gen_problem(&g);
}

/* ---- training steps ---- */

/*
 * A transformer's step on a mesh of two axes in an alpha-beta model. Tensors have dims
 * batch, sequence, width; an operator has factors, a strategy gives each axis a factor or
 * none; per axis a layout is R, S0, S1, S2 or P (libcommon/layout/layout.h says what they
 * are).
 */
enum { GEN_R, GEN_S0, GEN_S1, GEN_S2, GEN_P, GEN_LAYOUTS = 25 };

#define GEN_MAX_IN 5

struct gen_op {
    int n_factors, n_in, in[GEN_MAX_IN];
    signed char dim[GEN_MAX_IN + 1][3]; /* operands, then the result: factor or -1 */
    double flops, bytes;                /* bytes of the result */
    bool alias;                         /* of in[0]: the same layout */
};

struct gen_step {
    struct ap_arena *arena;
    struct gen_op *op;
    int n, cap, mesh[2];
};

static inline int gen_op_new(struct gen_step *g, int n_factors, double flops,
                             double bytes)
{
    g->op = gen_grow(g->arena, g->op, g->n, &g->cap, sizeof(*g->op));
    if (g->n == g->cap)
        g->cap = g->cap * 2 + 64;
    struct gen_op *op = &g->op[g->n];
    memset(op, 0, sizeof(*op));
    op->n_factors = n_factors;
    op->flops = flops;
    op->bytes = bytes;
    memset(op->dim, -1, sizeof(op->dim));
    return g->n++;
}

static inline void gen_in(struct gen_step *g, int op, int tensor, int d0, int d1, int d2)
{
    struct gen_op *o = &g->op[op];
    signed char dim[3] = {(signed char)d0, (signed char)d1, (signed char)d2};

    o->in[o->n_in] = tensor;
    memcpy(o->dim[o->n_in++], dim, 3);
}

static inline void gen_out(struct gen_step *g, int op, int d0, int d1, int d2)
{
    signed char dim[3] = {(signed char)d0, (signed char)d1, (signed char)d2};

    memcpy(g->op[op].dim[GEN_MAX_IN], dim, 3);
}

static inline int gen_layout(const struct gen_op *o, const signed char *dim, int strategy)
{
    int layout = 0, base = o->n_factors + 1;

    for (int axis = 0; axis < 2; axis++) {
        int f = (axis ? strategy / base : strategy % base) - 1, at = GEN_R;
        if (f >= 0) {
            at = dim == o->dim[GEN_MAX_IN] ? GEN_P : GEN_R;
            for (int d = 0; d < 3; d++)
                if (dim[d] == f)
                    at = GEN_S0 + d;
        }
        layout += axis ? 5 * at : at;
    }
    return layout;
}

static inline double gen_convert(const int *mesh, double bytes, int from, int to)
{
    double sum = 0;

    for (int axis = 0; axis < 2; axis++) {
        int x = axis ? from / 5 : from % 5, y = axis ? to / 5 : to % 5;
        int other = axis ? from % 5 : from / 5, n = mesh[axis];
        double b = other >= GEN_S0 && other <= GEN_S2 ? bytes / mesh[!axis] : bytes;
        double full = b * (n - 1) / n / (axis ? 2e11 : 2.5e10), hop = 5e-6 * (n - 1);
        if (x == y || x == GEN_R)
            sum += y == GEN_P && x != y ? AP_FORBIDDEN : 0;
        else if (y == GEN_P)
            sum += AP_FORBIDDEN;
        else if (x == GEN_P)
            sum += y == GEN_R ? 2 * (hop + full) : hop + full;
        else
            sum += y == GEN_R ? hop + full : hop + full / n;
    }
    return sum < AP_FORBIDDEN ? sum : AP_FORBIDDEN;
}

static inline int gen_elt(struct gen_step *g, int n_in, const int *in, double bytes)
{
    int op = gen_op_new(g, 3, 0, bytes);

    for (int i = 0; i < n_in; i++)
        gen_in(g, op, in[i], 0, 1, 2);
    gen_out(g, op, 0, 1, 2);
    return op;
}

/* Factors: 0 batch, 1 sequence, 2 columns, 3 rows of the weight. */
static inline int gen_dot(struct gen_step *g, int x, int w, double flops, double bytes)
{
    int op = gen_op_new(g, 4, flops, bytes);

    gen_in(g, op, x, 0, 1, 3);
    gen_in(g, op, w, -1, 3, 2);
    gen_out(g, op, 0, 1, 2);
    return op;
}

struct gen_tape {
    int out, x, w; /* w >= 0: out = x w; else out is elementwise of x and y */
    int y;
    bool weight; /* w is a parameter */
};

static inline void gen_add_grad(struct gen_step *g, int *grad, int of, int d,
                                double bytes)
{
    int both[2] = {grad[of], d};

    grad[of] = grad[of] < 0 ? d : gen_elt(g, 2, both, bytes);
}

static inline void gen_backward(struct gen_step *g, const struct gen_tape *tape, int n,
                                int *grad, double act, double flops)
{
    for (int i = n - 1; i >= 0; i--) {
        struct gen_tape t = tape[i];
        int dy = grad[t.out];
        if (t.w < 0) {
            int in[3] = {dy, t.x, t.y};
            gen_add_grad(g, grad, t.x, gen_elt(g, t.y < 0 ? 2 : 1, in, act), act);
            if (t.y >= 0)
                gen_add_grad(g, grad, t.y, gen_elt(g, 1, in, act), act);
            continue;
        }
        int dx = gen_op_new(g, 4, flops, act), dw = gen_op_new(g, 4, flops, 4e6);
        gen_in(g, dx, dy, 0, 1, 2);
        gen_in(g, dx, t.w, -1, 3, 2);
        gen_out(g, dx, 0, 1, 3);
        gen_add_grad(g, grad, t.x, dx, act);
        gen_in(g, dw, t.x, 0, 1, 3);
        gen_in(g, dw, dy, 0, 1, 2);
        gen_out(g, dw, -1, 3, 2);
        gen_add_grad(g, grad, t.w, dw, 4e6);
        if (!t.weight)
            continue;
        int w_new[2] = {t.w, grad[t.w]};
        int m = gen_op_new(g, 3, 0, 4e6);
        gen_out(g, m, 0, 1, 2);
        int m_in[2] = {m, grad[t.w]};
        int m_new = gen_elt(g, 2, m_in, 4e6);
        g->op[m_new].alias = true;
        int in[3] = {w_new[0], w_new[1], m_new};
        int u = gen_elt(g, 3, in, 4e6);
        g->op[u].alias = true;
    }
}

static inline int gen_weight(struct gen_step *g)
{
    int w = gen_op_new(g, 3, 0, 4e6);

    gen_out(g, w, 0, 1, 2);
    return w;
}

/* Groups become nodes; a tensor with several users gets a copy node per layout. */
static inline void gen_tensor(struct gen *out, const struct gen_step *g, int tensor,
                              const int *user, const int *slot, int n_users)
{
    const struct gen_op *p = &g->op[tensor];
    int np = out->n_strategies[tensor], copy[GEN_LAYOUTS];

    for (int i = 0; i < GEN_LAYOUTS; i++)
        copy[i] = -1;
    for (int k = 0; k < n_users; k++) {
        const struct gen_op *o = &g->op[user[k]];
        int nu = out->n_strategies[user[k]];
        bool same = o->alias && slot[k] == 0;
        if (n_users == 1 || same) {
            double *t = gen_edge(out, tensor, user[k]);
            for (int s = 0; s < np; s++)
                for (int r = 0; r < nu; r++) {
                    int from = gen_layout(p, p->dim[GEN_MAX_IN], s);
                    int to = gen_layout(o, o->dim[same ? GEN_MAX_IN : slot[k]], r);
                    t[s * nu + r] = same ? (from == to ? 0 : AP_FORBIDDEN)
                                         : gen_convert(g->mesh, p->bytes, from, to);
                }
            if (!same)
                continue;
        }
        for (int r = 0; r < nu; r++)
            copy[gen_layout(o, o->dim[slot[k]], r)] = -2;
    }
    for (int layout = 0; layout < GEN_LAYOUTS; layout++) {
        if (copy[layout] == -1)
            continue;
        copy[layout] = out->n_nodes;
        gen_node(out, 2);
        double *made = gen_edge(out, tensor, copy[layout]);
        for (int s = 0; s < np; s++)
            made[2 * s + 1] = gen_convert(g->mesh, p->bytes,
                                          gen_layout(p, p->dim[GEN_MAX_IN], s), layout);
        for (int k = 0; k < n_users; k++) {
            const struct gen_op *o = &g->op[user[k]];
            int nu = out->n_strategies[user[k]], needed = 0;
            for (int r = 0; r < nu; r++)
                needed += gen_layout(o, o->dim[slot[k]], r) == layout;
            if (needed == 0)
                continue;
            double *need = gen_edge(out, copy[layout], user[k]);
            for (int r = 0; r < nu; r++)
                if (gen_layout(o, o->dim[slot[k]], r) == layout)
                    need[r] = AP_FORBIDDEN;
        }
    }
}

static inline void gen_forward(struct gen_step *g, int n_layers, struct gen_tape *tape,
                               int *n_tape, double act, double flops)
{
    int r = gen_op_new(g, 3, 0, act);

    gen_out(g, r, 0, 1, 2);
    for (int l = 0; l < n_layers; l++) {
        struct gen_tape *t = tape + *n_tape;
        int n = 0, ln, qkv[3], one[2] = {r, -1};
        ln = gen_elt(g, 1, one, act);
        t[n++] = (struct gen_tape){ln, r, -1, -1, false};
        for (int i = 0; i < 3; i++) {
            int w = gen_weight(g);
            qkv[i] = gen_dot(g, ln, w, flops, act);
            t[n++] = (struct gen_tape){qkv[i], ln, w, -1, true};
        }
        int x = gen_dot(g, qkv[0], qkv[1], flops / 4, act * 2);
        t[n++] = (struct gen_tape){x, qkv[0], qkv[1], -1, false};
        int soft = gen_elt(g, 1, &x, act * 2);
        t[n++] = (struct gen_tape){soft, x, -1, -1, false};
        x = gen_dot(g, soft, qkv[2], flops / 4, act);
        t[n++] = (struct gen_tape){x, soft, qkv[2], -1, false};
        for (int half = 0; half < 2; half++) {
            int w = gen_weight(g);
            int y = gen_dot(g, x, w, flops, act);
            t[n++] = (struct gen_tape){y, x, w, -1, true};
            int both[2] = {r, y};
            int sum = gen_elt(g, 2, both, act);
            t[n++] = (struct gen_tape){sum, r, -1, y, false};
            r = sum;
            if (half)
                break;
            int ln2 = gen_elt(g, 1, &r, act);
            t[n++] = (struct gen_tape){ln2, r, -1, -1, false};
            w = gen_weight(g);
            int h = gen_dot(g, ln2, w, flops * 4, act * 4);
            t[n++] = (struct gen_tape){h, ln2, w, -1, true};
            x = gen_elt(g, 1, &h, act * 4);
            t[n++] = (struct gen_tape){x, h, -1, -1, false};
        }
        *n_tape += n;
    }
}

static inline struct ap_problem gen_train(struct ap_arena *arena, int n_layers, int mesh0,
                                          int mesh1)
{
    struct gen_step g = {.arena = arena, .mesh = {mesh0, mesh1}};
    struct gen out = {.arena = arena};
    double act = 8e6, flops = 1e10;
    struct gen_tape *tape = AP_NEW_N(arena, 16 * n_layers + 1, struct gen_tape);
    int n_tape = 0;

    gen_forward(&g, n_layers, tape, &n_tape, act, flops);
    int *grad = AP_NEW_N(arena, 16 * g.n, int);
    for (int i = 0; i < 16 * g.n; i++)
        grad[i] = -1;
    int last = tape[n_tape - 1].out;
    int loss = gen_elt(&g, 1, &last, act);
    grad[last] = loss;
    gen_backward(&g, tape, n_tape, grad, act, flops);

    int *n_users = AP_NEW_N(arena, g.n + 2, int), *first = AP_NEW_N(arena, g.n + 2, int);
    for (int i = 0; i < g.n; i++) {
        const struct gen_op *o = &g.op[i];
        int base = o->n_factors + 1;
        double *cost = gen_node(&out, base * base);
        for (int s = 0; s < base * base; s++) {
            int used = (s % base ? mesh0 : 1) * (s / base ? mesh1 : 1);
            cost[s] = o->n_in == 0 ? 0
                                   : 3e-6 + o->flops / 5e13 / used +
                                         o->bytes * (1 + o->n_in) / 1e12 / used;
        }
        for (int k = 0; k < o->n_in; k++)
            n_users[o->in[k]]++;
    }
    for (int i = 0; i < g.n; i++)
        first[i + 1] = first[i] + n_users[i];
    int *user = AP_NEW_N(arena, first[g.n] + 1, int);
    int *slot = AP_NEW_N(arena, first[g.n] + 1, int);
    memset(n_users, 0, (size_t)g.n * sizeof(int));
    for (int i = 0; i < g.n; i++)
        for (int k = 0; k < g.op[i].n_in; k++) {
            int t = g.op[i].in[k];
            user[first[t] + n_users[t]] = i;
            slot[first[t] + n_users[t]++] = k;
        }
    for (int i = 0, n = g.n; i < n; i++)
        if (n_users[i] > 0)
            gen_tensor(&out, &g, i, user + first[i], slot + first[i], n_users[i]);
    return gen_problem(&out);
}

#endif
