/*
 * cuDNN's fused attention (Dao et al., "FlashAttention", NeurIPS 2022) as plans.
 *
 * Problem: cuDNN has no function for it; it has kernels for graphs of operations that
 * look as it expects. Idea: the graphs below, in which all tensors of queries by keys are
 * virtual, that is, in no memory:
 *
 *   forward   s = mask(scale q k'),  m = max s,  e = exp(s - m),  l = sum e,
 *             stats = m + log l,  p = e / l,  o = p v
 *   backward  D = sum(dO * o),  p = exp(mask(scale q k' - stats)),  dV = p' dO,
 *             dS = scale (dO v' - D) p,  dK = dS' q,  dQ = dS k
 *
 * Of fewer heads of keys than of queries, cuDNN reads a head for several, and sums the
 * gradients of keys and values over them. dQ is summed in f32 by atomic additions: its
 * last bits may differ from run to run (its other way keeps dS in memory). The first
 * configuration that cuDNN's heuristic proposes and that has a plan is taken. Plans are
 * kept: equal layers share one.
 */
#include "sdpa.h"

#include <string.h>

#include "cudnn_graph.h"
#include "tool/tool.h"

#if CUDA_HAS_CUDNN

/* Older ones want masks of padding where 128 does not divide the keys. */
#define OLDEST_VERSION 91600

typedef cudnnBackendDescriptor_t desc;

struct sdpa_plan {
    struct sdpa_shape shape;
    struct sdpa_plan *next;
    struct cudnn_plan graph; /* of: enum sdpa_tensor; -1 - i: scalar[i] */
    int n_scalars;
    union {
        float f;
        int32_t i;
    } scalar[CUDNN_MOST_TENSORS];
};

/* A graph while it is built. */
struct builder {
    struct sdpa_plan *p;
    struct cudnn_builder b;
};

/* A tensor with its type and dimensions. */
struct tensor {
    desc d;
    cudnnDataType_t type;
    int64_t n[4];
};

/* ---- tensors ---- */

static struct tensor put_tensor(struct builder *b, cudnnDataType_t type,
                                const int64_t n[4], const int64_t stride[4],
                                enum cudnn_storage storage, int of)
{
    struct tensor t = {cudnn_tensor(&b->b, type, 4, n, stride, storage, of), type, {0}};
    memcpy(t.n, n, sizeof t.n);
    return t;
}

static struct tensor put_dense(struct builder *b, cudnnDataType_t type,
                               const int64_t n[4], enum cudnn_storage storage, int of)
{
    const int64_t stride[4] = {n[1] * n[2] * n[3], n[2] * n[3], n[3], 1};
    return put_tensor(b, type, n, stride, storage, of);
}

static struct tensor put_virtual(struct builder *b, cudnnDataType_t type,
                                 const int64_t n[4])
{
    return put_dense(b, type, n, CUDNN_VIRTUAL, 0);
}

static const int64_t one[4] = {1, 1, 1, 1};

static struct tensor put_float(struct builder *b, float value)
{
    const int i = b->p->n_scalars++;
    b->p->scalar[i].f = value;
    return put_dense(b, CUDNN_DATA_FLOAT, one, CUDNN_BY_VALUE, -1 - i);
}

static struct tensor put_int(struct builder *b, int32_t value)
{
    const int i = b->p->n_scalars++;
    b->p->scalar[i].i = value;
    return put_dense(b, CUDNN_DATA_INT32, one, CUDNN_BY_VALUE, -1 - i);
}

/* q, o and their gradients; k and v with theirs, rows by width or (turned) width by rows.
 */
static struct tensor put_operand(struct builder *b, enum sdpa_tensor of, bool turned)
{
    const struct sdpa_shape *s = &b->p->shape;
    const bool of_keys = of == SDPA_K || of == SDPA_V || of == SDPA_DK || of == SDPA_DV;
    const bool value = of == SDPA_V || of == SDPA_O || of == SDPA_DO || of == SDPA_DV;
    const int64_t rows = of_keys ? s->keys : s->queries,
                  width = value ? s->value_width : s->width, *t = s->stride[of];
    const int64_t n[4] = {s->batch, of_keys ? s->kv_heads : s->heads,
                          turned ? width : rows, turned ? rows : width};
    const int64_t stride[4] = {t[0], t[1], t[turned ? 3 : 2], t[turned ? 2 : 3]};
    return put_tensor(b, s->f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16, n, stride,
                      CUDNN_IN_MEMORY, of);
}

/* ---- operations ---- */

/* y = mode(x, more, which); operands that the mode does not have are NULL. */
static void put_pointwise(struct builder *b, cudnnPointwiseMode_t mode,
                          cudnnDataType_t compute, const struct tensor *x,
                          const struct tensor *more, const struct tensor *which,
                          const struct tensor *y)
{
    desc d = cudnn_make(&b->b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnn_set(&b->b, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    cudnn_set_type(&b->b, d, CUDNN_ATTR_POINTWISE_MATH_PREC, compute);
    cudnn_finalize(&b->b, d);
    desc op = cudnn_make(&b->b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x->d);
    if (more)
        cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, more->d);
    if (which)
        cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, which->d);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y->d);
    cudnn_end_op(&b->b, op);
}

/* The result of an operation on floats, of the dimensions of x. */
static struct tensor pointwise(struct builder *b, cudnnPointwiseMode_t mode,
                               const struct tensor *x, const struct tensor *more)
{
    const struct tensor y = put_virtual(b, CUDNN_DATA_FLOAT, x->n);
    put_pointwise(b, mode, CUDNN_DATA_FLOAT, x, more, NULL, &y);
    return y;
}

/* Each element's place along a dimension. */
static struct tensor place_along(struct builder *b, const struct tensor *x, int64_t axis)
{
    const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_GEN_INDEX;
    const struct tensor y = put_virtual(b, CUDNN_DATA_INT32, x->n);
    desc d = cudnn_make(&b->b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnn_set(&b->b, d, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    cudnn_set_type(&b->b, d, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    cudnn_set(&b->b, d, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    cudnn_finalize(&b->b, d);
    desc op = cudnn_make(&b->b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, d);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x->d);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y.d);
    cudnn_end_op(&b->b, op);
    return y;
}

static void put_matmul(struct builder *b, const struct tensor *x, const struct tensor *y,
                       const struct tensor *z)
{
    desc d = cudnn_make(&b->b, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnn_set_type(&b->b, d, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    cudnn_finalize(&b->b, d);
    desc op = cudnn_make(&b->b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_MATMUL_DESC, d);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x->d);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_MATMUL_BDESC, y->d);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_MATMUL_CDESC, z->d);
    cudnn_end_op(&b->b, op);
}

static void put_reduction(struct builder *b, cudnnReduceTensorOp_t kind,
                          const struct tensor *x, const struct tensor *y)
{
    desc d = cudnn_make(&b->b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnn_set(&b->b, d, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
              1, &kind);
    cudnn_set_type(&b->b, d, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    cudnn_finalize(&b->b, d);
    desc op = cudnn_make(&b->b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_REDUCTION_DESC, d);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x->d);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y->d);
    cudnn_end_op(&b->b, op);
}

/* x with its last two dimensions exchanged, of the same memory order. */
static struct tensor turned(struct builder *b, const struct tensor *x,
                            cudnnDataType_t type, const int64_t stride[4])
{
    const int64_t n[4] = {x->n[0], x->n[1], x->n[3], x->n[2]};
    const struct tensor y = put_tensor(b, type, n, stride, CUDNN_VIRTUAL, 0);
    desc op = cudnn_make(&b->b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x->d);
    cudnn_set_desc(&b->b, op, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.d);
    cudnn_end_op(&b->b, op);
    return y;
}

/* ---- the two graphs ---- */

static cudnnDataType_t operand_type(const struct builder *b)
{
    return b->p->shape.f16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/* Scores where a comparison holds, and minus infinity elsewhere. */
static struct tensor where(struct builder *b, cudnnPointwiseMode_t compare,
                           const struct tensor *left, const struct tensor *right,
                           const struct tensor *scores)
{
    const struct tensor hidden = put_float(b, -__builtin_inff());
    const struct tensor seen = put_virtual(b, CUDNN_DATA_BOOLEAN, scores->n);
    const struct tensor y = put_virtual(b, CUDNN_DATA_FLOAT, scores->n);
    put_pointwise(b, compare, CUDNN_DATA_BOOLEAN, left, right, NULL, &seen);
    put_pointwise(b, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, scores, &hidden,
                  &seen, &y);
    return y;
}

static struct tensor masked(struct builder *b, struct tensor scores)
{
    const struct sdpa_shape *s = &b->p->shape;
    if (s->ahead < INT64_MAX) { /* query + ahead >= key */
        struct tensor query = place_along(b, &scores, 2);
        const struct tensor key = place_along(b, &scores, 3);
        if (s->ahead > 0) {
            const struct tensor ahead = put_int(b, (int32_t)s->ahead),
                                last = put_virtual(b, CUDNN_DATA_INT32, scores.n);
            put_pointwise(b, CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, &query, &ahead, NULL,
                          &last);
            query = last;
        }
        scores = where(b, CUDNN_POINTWISE_CMP_GE, &query, &key, &scores);
    }
    if (s->back < INT64_MAX) { /* key + back + 1 > query */
        const struct tensor query = place_along(b, &scores, 2),
                            key = place_along(b, &scores, 3),
                            window = put_float(b, (float)(s->back + 1)),
                            last = put_virtual(b, CUDNN_DATA_FLOAT, scores.n);
        put_pointwise(b, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, &key, &window, NULL,
                      &last);
        scores = where(b, CUDNN_POINTWISE_CMP_GT, &last, &query, &scores);
    }
    return scores;
}

/* scale q k' */
static struct tensor scores_of(struct builder *b, const struct tensor *q,
                               const struct tensor *k)
{
    const int64_t n[4] = {q->n[0], q->n[1], q->n[2], k->n[3]};
    const struct tensor product = put_virtual(b, CUDNN_DATA_FLOAT, n),
                        scale = put_float(b, b->p->shape.scale);
    put_matmul(b, q, k, &product);
    return pointwise(b, CUDNN_POINTWISE_MUL, &product, &scale);
}

static void put_forward(struct builder *b)
{
    const struct sdpa_shape *s = &b->p->shape;
    const int64_t row[4] = {s->batch, s->heads, s->queries, 1};
    const struct tensor q = put_operand(b, SDPA_Q, false),
                        k = put_operand(b, SDPA_K, true),
                        v = put_operand(b, SDPA_V, false),
                        o = put_operand(b, SDPA_O, false);
    const struct tensor stats =
        put_dense(b, CUDNN_DATA_FLOAT, row, CUDNN_IN_MEMORY, SDPA_STATS);

    const struct tensor z = masked(b, scores_of(b, &q, &k));
    const struct tensor max = put_virtual(b, CUDNN_DATA_FLOAT, row),
                        sum = put_virtual(b, CUDNN_DATA_FLOAT, row),
                        p = put_virtual(b, operand_type(b), z.n);
    put_reduction(b, CUDNN_REDUCE_TENSOR_MAX, &z, &max);
    const struct tensor below = pointwise(b, CUDNN_POINTWISE_SUB, &z, &max);
    const struct tensor e = pointwise(b, CUDNN_POINTWISE_EXP, &below, NULL);
    put_reduction(b, CUDNN_REDUCE_TENSOR_ADD, &e, &sum);
    const struct tensor log = pointwise(b, CUDNN_POINTWISE_LOG, &sum, NULL);
    put_pointwise(b, CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, &max, &log, NULL, &stats);
    put_pointwise(b, CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, &e, &sum, NULL, &p);
    put_matmul(b, &p, &v, &o);
}

/* What a contraction over queries makes for every head of the queries, or its sums over
 * those that share a head of the keys. */
static void put_key_gradient(struct builder *b, const struct tensor *left,
                             const struct tensor *right, enum sdpa_tensor of)
{
    const struct sdpa_shape *s = &b->p->shape;
    const struct tensor y = put_operand(b, of, false);
    if (s->heads == s->kv_heads) {
        put_matmul(b, left, right, &y);
        return;
    }
    const int64_t n[4] = {s->batch, s->heads, y.n[2], y.n[3]};
    const struct tensor all = put_virtual(b, operand_type(b), n);
    put_matmul(b, left, right, &all);
    put_reduction(b, CUDNN_REDUCE_TENSOR_ADD, &all, &y);
}

static void put_backward(struct builder *b)
{
    const struct sdpa_shape *s = &b->p->shape;
    const int64_t row[4] = {s->batch, s->heads, s->queries, 1};
    const int64_t wide[4] = {s->batch, s->heads, s->queries, s->width};
    const int64_t area = s->queries * s->keys;
    const int64_t as_rows[4] = {s->heads * area, area, 1, s->keys};
    const struct tensor q = put_operand(b, SDPA_Q, false),
                        k = put_operand(b, SDPA_K, true),
                        v = put_operand(b, SDPA_V, true),
                        o = put_operand(b, SDPA_O, false),
                        d_o = put_operand(b, SDPA_DO, false),
                        dq = put_operand(b, SDPA_DQ, false);
    const struct tensor stats = put_dense(b, CUDNN_DATA_FLOAT, row, CUDNN_IN_MEMORY,
                                          SDPA_STATS),
                        total = put_dense(b, CUDNN_DATA_FLOAT, row, CUDNN_IN_MEMORY,
                                          SDPA_SUM),
                        accum = put_dense(b, CUDNN_DATA_FLOAT, wide, CUDNN_IN_MEMORY,
                                          SDPA_ACCUM);
    const struct tensor unit = put_float(b, 1), scale = put_float(b, s->scale);

    /* D */
    const struct tensor product = pointwise(b, CUDNN_POINTWISE_MUL, &d_o, &o);
    const struct tensor sum = put_virtual(b, CUDNN_DATA_FLOAT, row);
    put_reduction(b, CUDNN_REDUCE_TENSOR_ADD, &product, &sum);
    put_pointwise(b, CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, &sum, &unit, NULL, &total);

    /* p and dV */
    const struct tensor z = scores_of(b, &q, &k);
    const struct tensor below = masked(b, pointwise(b, CUDNN_POINTWISE_SUB, &z, &stats));
    const struct tensor p = pointwise(b, CUDNN_POINTWISE_EXP, &below, NULL);
    const struct tensor p_turned = turned(b, &p, operand_type(b), as_rows);
    put_key_gradient(b, &p_turned, &d_o, SDPA_DV);

    /* dS, dK and dQ */
    const struct tensor dp = put_virtual(b, CUDNN_DATA_FLOAT, z.n);
    put_matmul(b, &d_o, &v, &dp);
    const struct tensor less = pointwise(b, CUDNN_POINTWISE_SUB, &dp, &total);
    const struct tensor weighted = pointwise(b, CUDNN_POINTWISE_MUL, &less, &p);
    const struct tensor ds = pointwise(b, CUDNN_POINTWISE_MUL, &weighted, &scale);
    const struct tensor ds_turned = turned(b, &ds, operand_type(b), as_rows);
    put_key_gradient(b, &ds_turned, &q, SDPA_DK);
    const struct tensor keys = turned(b, &k, operand_type(b), s->stride[SDPA_K]);
    put_matmul(b, &ds, &keys, &accum);
    put_pointwise(b, CUDNN_POINTWISE_IDENTITY, CUDNN_DATA_FLOAT, &accum, NULL, NULL, &dq);
}

/* ---- plans ---- */

static void make_plan(struct sdpa_plan *p)
{
    static const struct cudnn_wish any = {0, 0};
    struct builder b = {.p = p, .b = {.p = &p->graph}};

    if (p->shape.backward)
        put_backward(&b);
    else
        put_forward(&b);
    cudnn_end_graph(&b.b, 1, &any, INT64_MAX);
}

const struct sdpa_plan *sdpa_plan(const struct sdpa_shape *shape)
{
    static struct sdpa_plan *plans; /* of the process */
    struct sdpa_plan *p;

    if (!cudnn_handle())
        return NULL;
    if (cudnn_open()->cudnnGetVersion() < OLDEST_VERSION)
        return NULL;
    for (p = plans; p; p = p->next)
        if (!memcmp(&p->shape, shape, sizeof *shape))
            return p->graph.plan ? p : NULL;
    p = ap_xrealloc(NULL, sizeof *p);
    memset(p, 0, sizeof *p);
    p->shape = *shape;
    p->next = plans;
    plans = p;
    make_plan(p);
    return p->graph.plan ? p : NULL;
}

int64_t sdpa_workspace(const struct sdpa_plan *p)
{
    return p->graph.workspace;
}

void *sdpa_bind(const struct sdpa_plan *p, char *const at[N_SDPA], char *workspace)
{
    const void *pointer[CUDNN_MOST_TENSORS];
    for (int i = 0; i < p->graph.n; i++) {
        const int of = p->graph.of[i];
        pointer[i] = of < 0 ? (const void *)&p->scalar[-1 - of] : at[of];
    }
    return cudnn_bind(&p->graph, pointer, workspace);
}

void sdpa_unbind(void *pack)
{
    cudnn_unbind(pack);
}

void sdpa_run(const struct sdpa_plan *p, void *pack)
{
    cudnn_run(&p->graph, pack);
}

#endif
