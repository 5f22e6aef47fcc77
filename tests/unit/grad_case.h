/* One graph whose gradients are checked against central differences. For test_exec_grad.
 */
#ifndef AP_TEST_GRAD_CASE_H
#define AP_TEST_GRAD_CASE_H

#include "exec_eval.h"
#include "grad/grad.h"

#include <math.h>

#define MAX_PARAMS 8
#define STEP       1e-5

struct gcase {
    struct ap_arena arena;
    struct ap_build b;
    uint64_t seed;
    int n_params; /* all of the graph, in order */
    int param[MAX_PARAMS];
    double *value[MAX_PARAMS];
    int n_wrt, wrt[MAX_PARAMS], wrt_param[MAX_PARAMS];
    double step;  /* of the differences */
    double worst; /* error found, absolute over 1 + size */
    int n_elems;  /* elements compared */
    struct ap_err err;
};

static inline double gc_uniform(struct gcase *c, double lo, double hi)
{
    return lo + (hi - lo) * (double)(eval_random(&c->seed) >> 11) * 0x1p-53;
}
static inline int64_t gc_pick(struct gcase *c, int64_t lo, int64_t hi)
{
    return eval_between(&c->seed, lo, hi);
}

static inline int gc_param(struct gcase *c, enum ap_dtype dtype, int rank,
                           const int64_t *dims)
{
    struct ap_shape s = ap_build_shape(&c->b, dtype, rank, dims);
    int k = c->n_params++;
    c->param[k] = ap_build_param(&c->b, "p", s, AP_ROLE_INPUT);
    c->value[k] = AP_NEW_N(&c->arena, ap_shape_elems(&s) + 1, double);
    return c->param[k];
}
/* A tensor that is differentiated by, with values in [lo, hi). */
static inline int gc_wrt(struct gcase *c, int rank, const int64_t *dims, double lo,
                         double hi)
{
    int x = gc_param(c, AP_F64, rank, dims), k = c->n_params - 1;
    for (int64_t i = 0; i < ap_shape_elems(ap_build_shape_of(&c->b, x)); i++)
        c->value[k][i] = gc_uniform(c, lo, hi);
    c->wrt_param[c->n_wrt] = k;
    c->wrt[c->n_wrt++] = x;
    return x;
}
/* Integers of an input, lo .. hi. */
static inline int gc_ints(struct gcase *c, int rank, const int64_t *dims, int64_t lo,
                          int64_t hi)
{
    int x = gc_param(c, AP_S32, rank, dims), k = c->n_params - 1;
    for (int64_t i = 0; i < ap_shape_elems(ap_build_shape_of(&c->b, x)); i++)
        c->value[k][i] = (double)gc_pick(c, lo, hi);
    return x;
}
static inline double *gc_values(struct gcase *c, int x)
{
    for (int k = 0; k < c->n_params; k++)
        if (c->param[k] == x)
            return c->value[k];
    return NULL;
}

/* Random sizes 1 .. most. */
static inline void gc_dims(struct gcase *c, int rank, int64_t *dims, int64_t most)
{
    for (int d = 0; d < rank; d++)
        dims[d] = gc_pick(c, 1, most);
}
static inline void gc_permutation(struct gcase *c, int n, int64_t *perm)
{
    for (int i = 0; i < n; i++)
        perm[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int64_t j = gc_pick(c, 0, i), old = perm[i];
        perm[i] = perm[j];
        perm[j] = old;
    }
}

/* A scalar: y times coefficients without a pattern, summed. */
static inline int gc_loss(struct gcase *c, int y)
{
    struct ap_shape s = *ap_build_shape_of(&c->b, y);
    int64_t n = ap_shape_elems(&s), dims[AP_MAX_RANK];
    double *w = AP_NEW_N(&c->arena, n + 1, double);
    for (int64_t i = 0; i < n; i++)
        w[i] = gc_uniform(c, 0.5, 2);
    int p = ap_build_binary(&c->b, AP_OP_MULTIPLY, y, ap_build_literal(&c->b, s, w));
    for (int d = 0; d < s.rank; d++)
        dims[d] = d;
    return s.rank ? ap_build_reduce(&c->b, p, AP_RED_SUM, s.rank, dims) : p;
}

static inline void gc_fill(const struct gcase *c, struct exec *x)
{
    const struct ap_graph *g = &x->prog->local;
    for (int k = 0; k < c->n_params; k++) {
        const struct ap_shape *s = &g->nodes[g->params[k]].shape;
        for (int64_t i = 0; i < ap_shape_elems(s); i++)
            eval_put(x->value[g->params[k]], s->dtype, i, c->value[k][i]);
    }
}

static inline double gc_result(const struct exec *x, int r, int64_t i)
{
    int node = x->prog->local.results[r].node;
    return data_number(x->value[node], x->prog->local.nodes[node].shape.dtype, i);
}

static inline double gc_eval(const struct gcase *c, struct exec *x)
{
    gc_fill(c, x);
    exec_step(x);
    return gc_result(x, 0, 0);
}

/* Gradients as nodes are results 1 ..; compares each element with a difference. */
static inline void gc_compare(struct gcase *c, struct exec *x, const int *result)
{
    for (int k = 0; k < c->n_wrt; k++) {
        double *v = c->value[c->wrt_param[k]];
        int64_t n = ap_shape_elems(&c->b.nodes[c->wrt[k]].shape);
        double *got = AP_NEW_N(&c->arena, n + 1, double);
        gc_eval(c, x);
        for (int64_t i = 0; i < n; i++)
            got[i] = result[k] < 0 ? 0 : gc_result(x, result[k], i);
        for (int64_t i = 0; i < n; i++) {
            const double old = v[i];
            v[i] = old + c->step;
            const double up = gc_eval(c, x);
            v[i] = old - c->step;
            const double down = gc_eval(c, x);
            v[i] = old;
            const double want = (up - down) / (2 * c->step);
            const double e = fabs(got[i] - want) / (1 + fabs(want));
            if (!(e <= c->worst)) /* NaN too */
                c->worst = e;
            c->n_elems++;
        }
    }
}

/* Differentiates the sum of y and compares; -1 with err when that is not possible. */
static inline int gc_check(struct gcase *c, int y)
{
    int grads[MAX_PARAMS], result[MAX_PARAMS], n = 1;
    struct ap_result results[MAX_PARAMS + 1];
    struct ap_graph g;
    struct ap_program prog;
    struct comm self;
    struct exec x;
    int loss = gc_loss(c, y);

    results[0] = (struct ap_result){loss, AP_ROLE_LOSS, -1, NULL};
    if (ap_grad(&c->b, loss, c->n_wrt, c->wrt, grads, &c->err))
        return -1;
    struct ap_node *nodes =
        ap_arena_dup(&c->arena, c->b.nodes, (size_t)c->b.n * sizeof *nodes);
    for (int k = 0; k < c->n_wrt; k++) {
        result[k] = grads[k] < 0 ? -1 : n;
        if (grads[k] >= 0)
            results[n++] = (struct ap_result){grads[k], AP_ROLE_AUX, -1, NULL};
        if (grads[k] >= 0 &&
            !ap_shape_equal(&nodes[grads[k]].shape, &nodes[c->wrt[k]].shape))
            return ap_err_set(&c->err, "a gradient has another shape");
    }
    comm_self_open(&self);
    if (ap_build_finish(&c->b, "t", n, results, &g, &c->err) ||
        verify_program(&c->arena, &g, 0, &prog, &c->err) ||
        exec_open(&x, &c->arena, &prog, &cpu_backend, &self, &c->err))
        return -1;
    c->b.nodes = nodes;
    gc_compare(c, &x, result);
    c->b.nodes = NULL;
    exec_close(&x);
    return 0;
}

#endif
