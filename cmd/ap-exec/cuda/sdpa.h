/* cuDNN's fused attention as plans (sdpa.c). */
#ifndef EXEC_CUDA_SDPA_H
#define EXEC_CUDA_SDPA_H

#include "cuda.h"
#include "libraries.h"
#include "program/attention_form.h"

#if CUDA_HAS_CUDNN

/* Tensors of an attention and its gradients; the last two are scratch. */
enum sdpa_tensor {
    SDPA_Q = AP_ATTENTION_Q,
    SDPA_K = AP_ATTENTION_K,
    SDPA_V = AP_ATTENTION_V,
    SDPA_O = AP_ATTENTION_O,
    SDPA_DO = AP_ATTENTION_DO,
    SDPA_DQ = AP_ATTENTION_DQ,
    SDPA_DK = AP_ATTENTION_DK,
    SDPA_DV = AP_ATTENTION_DV,
    /* f32[b,h,s_q], dense: the logarithm of each row's sum of exponentials */
    SDPA_STATS = AP_ATTENTION_OPERANDS,
    SDPA_SUM,   /* f32[b,h,s_q], dense: of dO * O; backward */
    SDPA_ACCUM, /* f32[b,h,s_q,width], dense: sums of dQ; backward */
    N_SDPA
};

/* o = softmax(scale q k' where -back <= key - query <= ahead) v, or its gradients. All
 * members count for equality: made from zeroed memory. */
struct sdpa_shape {
    bool backward;
    bool f16; /* else bf16 */
    int64_t batch, heads, kv_heads, queries, keys, width, value_width;
    int64_t back, ahead;           /* INT64_MAX: no bound */
    int64_t stride[SDPA_STATS][4]; /* batch, head, row, width: elements */
    float scale;
};

struct sdpa_plan;

/* The plan of a shape, the same for equal ones; NULL: cuDNN has none. */
const struct sdpa_plan *sdpa_plan(const struct sdpa_shape *shape);
int64_t sdpa_workspace(const struct sdpa_plan *plan); /* bytes */
/* The arguments of a call of the plan: the memory of its tensors and the workspace; the
 * caller destroys them (sdpa_unbind). */
void *sdpa_bind(const struct sdpa_plan *plan, char *const at[N_SDPA], char *workspace);
void sdpa_unbind(void *pack);
void sdpa_run(const struct sdpa_plan *plan, void *pack);

#endif
#endif
