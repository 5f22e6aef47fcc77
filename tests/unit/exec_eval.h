/* Evaluates one node on given operands through the CPU backend. For tests. */
#ifndef AP_TEST_EXEC_EVAL_H
#define AP_TEST_EXEC_EVAL_H

#include "cpu/cpu.h"
#include "run/data.h"
#include "run/session.h"

#include <stdlib.h>
#include <string.h>

#define MAX_IN 6

struct tensor {
    struct ap_shape shape;
    int64_t dims[AP_MAX_RANK];
    int64_t n;
    double *v;
};

/* splitmix64 */
static inline uint64_t eval_random(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}
/* lo .. hi */
static inline int64_t eval_between(uint64_t *state, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(eval_random(state) % (uint64_t)(hi - lo + 1));
}

/* An empty tensor of these dims (kept by reference in *t, which must not move). */
static inline void tensor_init(struct tensor *t, enum ap_dtype dtype, int rank,
                               const int64_t *dims)
{
    memset(t, 0, sizeof *t);
    memcpy(t->dims, dims, (size_t)rank * sizeof *dims);
    t->shape = (struct ap_shape){.dtype = dtype, .rank = rank, .dims = t->dims};
    t->n = ap_shape_elems(&t->shape);
    t->v = calloc((size_t)t->n + 1, sizeof *t->v);
}
/* Small integers, lo .. hi. */
static inline void tensor_fill(struct tensor *t, uint64_t *state, int64_t lo, int64_t hi)
{
    for (int64_t i = 0; i < t->n; i++)
        t->v[i] = (double)eval_between(state, lo, hi);
}
static inline int64_t tensor_at(const struct tensor *t, const int64_t *idx)
{
    int64_t at = 0;
    for (int d = 0; d < t->shape.rank; d++)
        at = at * t->dims[d] + idx[d];
    return at;
}
/* The multi-index of element i. */
static inline void tensor_index(const struct tensor *t, int64_t i, int64_t *idx)
{
    for (int d = t->shape.rank - 1; d >= 0; d--) {
        idx[d] = i % t->dims[d];
        i /= t->dims[d];
    }
}

static inline void eval_put(void *data, enum ap_dtype dtype, int64_t i, double v)
{
    static const int one[3] = {1, 1, 1};
    char reg[8];
    if (cpu_kind(dtype) == CPU_F64)
        memcpy(reg, &v, 8);
    else
        cpu_convert_find(CPU_F64, cpu_kind(dtype))(reg, &v, &v, &v, one, 1);
    cpu_store((char *)data + i * ap_dtype_size(dtype), 1, reg, dtype, 1);
}

/*
 * out (shape set, values filled) = op(in...) with attrs; a tuple's parts go to out[0],
 * out[1], ... Returns 0, or -1 with err. Nine parameters: three arrays with their
 * lengths, and what a node has.
 */
static inline int eval_node(enum ap_op op, const struct ap_attrs *attrs, int n_in,
                            struct tensor *const *in, int n_out,
                            struct tensor *const *out, const struct ap_reducer *reducers,
                            int n_reducers, struct ap_err *err)
{
    struct ap_arena arena = {0};
    struct ap_node nodes[MAX_IN + 4];
    struct ap_shape parts[4];
    struct ap_attrs gte[4];
    struct ap_result results[4];
    int ids[MAX_IN], n = 0;
    memset(nodes, 0, sizeof nodes);
    for (int i = 0; i < n_in; i++) {
        nodes[n] = (struct ap_node){.op = AP_OP_PARAMETER,
                                    .name = "p",
                                    .scope = "",
                                    .shape = in[i]->shape,
                                    .param = i,
                                    .group = -1,
                                    .attrs = &ap_attrs_default};
        ids[i] = n++;
    }
    const int node = n;
    nodes[n++] = (struct ap_node){.op = op,
                                  .name = "node",
                                  .scope = "",
                                  .n_in = n_in,
                                  .in = ids,
                                  .attrs = attrs,
                                  .param = -1,
                                  .group = -1,
                                  .shape = out[0]->shape};
    for (int i = 0; i < n_out; i++) {
        parts[i] = out[i]->shape;
        results[i] = (struct ap_result){.node = node, .role = AP_ROLE_AUX, .alias = -1};
        if (n_out == 1)
            break;
        gte[i] = ap_attrs_default;
        gte[i].index = i;
        results[i].node = n;
        nodes[n++] = (struct ap_node){.op = AP_OP_GET_TUPLE_ELEMENT,
                                      .name = "part",
                                      .scope = "",
                                      .n_in = 1,
                                      .in = &node,
                                      .param = -1,
                                      .shape = parts[i],
                                      .group = -1,
                                      .attrs = &gte[i]};
    }
    if (n_out > 1)
        nodes[node].shape =
            (struct ap_shape){.dtype = AP_TUPLE, .n_parts = n_out, .parts = parts};
    struct ap_graph g = {.name = "t",
                         .n_nodes = n,
                         .nodes = nodes,
                         .n_results = n_out,
                         .results = results,
                         .n_reducers = n_reducers,
                         .reducers = reducers};
    struct ap_program prog;
    struct comm self;
    struct exec x;
    comm_self_open(&self);
    int rc = ap_graph_index(&arena, &g, "/graph", err);
    rc = rc || ap_graph_check_shapes(&g, "/graph", err);
    rc = rc || verify_program(&arena, &g, 0, &prog, err);
    if (!rc && exec_open(&x, &arena, &prog, &cpu_backend, &self, err) == 0) {
        for (int i = 0; i < n_in; i++)
            for (int64_t k = 0; k < in[i]->n; k++)
                eval_put(x.value[prog.local.params[i]], in[i]->shape.dtype, k,
                         in[i]->v[k]);
        exec_step(&x);
        for (int i = 0; i < n_out; i++)
            for (int64_t k = 0; k < out[i]->n; k++)
                out[i]->v[k] = data_number(x.value[prog.local.results[i].node],
                                           out[i]->shape.dtype, k);
        exec_close(&x);
    } else {
        rc = -1;
    }
    ap_arena_free(&arena);
    return rc ? -1 : 0;
}

/* Index of the first difference, -1 for none; NaN equals NaN. */
static inline int64_t tensor_differs(const struct tensor *t, const double *want)
{
    for (int64_t i = 0; i < t->n; i++)
        if (t->v[i] != want[i] && (t->v[i] == t->v[i] || want[i] == want[i]))
            return i;
    return -1;
}

/* Reducers 0: sum, 1: max. */
static const struct ap_reducer eval_reducers[] = {{.name = "sum", .red = AP_RED_SUM},
                                                  {.name = "max", .red = AP_RED_MAX}};

static inline struct ap_ints eval_ints(int n, const int64_t *v)
{
    return (struct ap_ints){n, v};
}

#endif
