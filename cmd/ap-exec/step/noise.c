/*
 * Problem: how far do the numbers of a step depend on rounding? Two right programs differ
 * by it, and Adam makes a full step of a gradient that is nothing but rounding. Idea:
 * Monte Carlo arithmetic (Parker, "Monte Carlo Arithmetic", UCLA 1997): the step runs
 * again, and the results of its sums (contractions, reductions, scatters, which a
 * partitioned program adds in another order) are off by up to a unit in their last place,
 * at random. Rounding decides the values that this changes. Cost: one pass over the
 * results of sums.
 */
#include "step/noise.h"

#include "elem/elem.h"
#include "step/backend.h"

#include <math.h>

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Whether the elements of a node are sums whose order is free. */
static bool is_sum(const struct ap_graph *g, const struct ap_node *v)
{
    if (v->op == AP_OP_REDUCE || v->op == AP_OP_REDUCE_WINDOW || v->op == AP_OP_SCATTER)
        return g->reducers[v->attrs->to_apply].red == AP_RED_SUM;
    return ap_ops[v->op].class == AP_CLASS_HEAVY;
}

/* Of 1; 0: no type that is disturbed. */
static double last_place(enum ap_dtype dtype)
{
    return ap_dtype_is_float(dtype) ? ldexp(1, 1 - ap_dtype_precision(dtype)) : 0;
}

/* A sum is as exact as its terms are large: elements that cancel are off by what others
 * beside them are. Zeros stay, they are sums of nothing. */
static void disturb_tile(void *reg, enum ap_dtype dtype, int64_t n, double unit,
                         uint64_t stream)
{
    const bool wide = dtype == AP_F64;
    double *d = reg, square = 0;
    float *f = reg;
    for (int64_t k = 0; k < n; k++)
        square += wide ? d[k] * d[k] : (double)f[k] * f[k];
    const double mean = sqrt(square / (double)n);
    if (!isfinite(mean))
        return;
    for (int64_t k = 0; k < n; k++) {
        const uint64_t u = mix(stream + (uint64_t)(k + 1) * 0x9e3779b97f4a7c15u);
        const double v = wide ? d[k] : f[k], size = fmax(fabs(v), mean),
                     to =
                         v == 0 ? v : v + size * unit * ((double)(u >> 11) * 0x1p-52 - 1);
        if (wide)
            d[k] = to;
        else
            f[k] = (float)to;
    }
}

static void disturb(struct exec *x, int node, uint64_t stream)
{
    const struct ap_shape *s = &x->prog->local.nodes[node].shape;
    const int64_t n = ap_shape_elems(s), size = ap_dtype_size(s->dtype);
    _Alignas(8) char host[CPU_TILE * 8], reg[CPU_TILE * 8];
    for (int64_t i = 0; i < n; i += CPU_TILE) {
        const int64_t len = n - i < CPU_TILE ? n - i : CPU_TILE;
        char *at = (char *)x->value[node] + i * size;
        x->backend->read(host, at, len * size);
        cpu_load(reg, host, 1, s->dtype, len);
        disturb_tile(reg, s->dtype, len, x->noise->units * last_place(s->dtype),
                     mix(stream + (uint64_t)i));
        cpu_store(host, 1, reg, s->dtype, len);
        x->backend->write(at, host, len * size);
    }
}

void noise_apply(struct exec *x, const struct call *call)
{
    const struct ap_graph *g = &x->prog->local;
    for (int m = 0; m < call->n_nodes; m++) {
        const int node = call->nodes[m];
        if (x->value[node] && last_place(g->nodes[node].shape.dtype) > 0 &&
            is_sum(g, &g->nodes[node]))
            disturb(x, node, mix(x->noise->seed + mix(++x->noise->n)));
    }
}

void noise_set(struct exec *x, struct exec_noise *noise)
{
    x->noise = noise;
    for (struct exec *inner = x->inner; inner; inner = inner->next)
        noise_set(inner, noise);
}
