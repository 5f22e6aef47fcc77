/*
 * cublasLt: column-major products with transposes, batches and narrow types, as loads to
 * f32 (f64), a product by OpenBLAS, and one rounding. What the real library refuses, this
 * one refuses with the same status: sizes that do not fit, leading dimensions, types,
 * alignment below what the heuristic was told, a workspace smaller than the algorithm's.
 */
#include "fake.h"

#include "base/float16.h"

#include <cblas.h>
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

/* Alignment that no kernel needs more of, bytes. */
#define WORKSPACE_ALIGNMENT 256
#define VECTOR_BYTES        16
#define ALGO_MARK           0x66616b65u

struct desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t trans[2];
    cublasLtPointerMode_t mode;
    int8_t fast;
};

struct layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld, stride;
    int32_t batch;
    cublasLtOrder_t order;
};

struct preference {
    uint64_t workspace;
    uint32_t align[4]; /* of A, B, C, D */
};

/* In the opaque words of a cublasLtMatmulAlgo_t. */
struct algo {
    uint32_t mark, align[4];
    uint64_t workspace;
};

struct cublasLtContext {
    int unused;
};

cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = fake_alloc(sizeof **h);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    free(h);
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t rc)
{
    return rc == CUBLAS_STATUS_SUCCESS         ? "success"
           : rc == CUBLAS_STATUS_INVALID_VALUE ? "an invalid parameter was passed"
           : rc == CUBLAS_STATUS_NOT_SUPPORTED ? "the functionality is not supported"
                                               : "unknown status";
}

size_t cublasLtGetVersion(void)
{
    return 1;
}

/* ---- descriptors ---- */

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out,
                                        cublasComputeType_t compute, cudaDataType_t scale)
{
    struct desc *d = fake_alloc(sizeof *d);
    *d = (struct desc){.compute = compute, .scale = scale};
    *out = (void *)d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}

/* An attribute of `bytes`, which must be its size. */
static cublasStatus_t put(void *to, size_t size, const void *from, size_t bytes)
{
    if (bytes != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *p, size_t bytes)
{
    struct desc *d = (void *)desc;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    cublasStatus_t rc;
    switch ((int)what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return put(&d->trans[0], sizeof d->trans[0], p, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return put(&d->trans[1], sizeof d->trans[1], p, bytes);
    case CUBLASLT_MATMUL_DESC_POINTER_MODE:
        return put(&d->mode, sizeof d->mode, p, bytes);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
        return put(&d->fast, sizeof d->fast, p, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        rc = put(&epilogue, sizeof epilogue, p, bytes);
        if (epilogue != CUBLASLT_EPILOGUE_DEFAULT)
            fake_fail("cublasLt: epilogue %d is not in the fake", (int)epilogue);
        return rc;
    }
    fake_fail("cublasLt: attribute %d of a product is not in the fake", (int)what);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    struct layout *l = fake_alloc(sizeof *l);
    *l = (struct layout){type, rows, cols, ld, .batch = 1};
    *out = (void *)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    free(l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t what,
                                                const void *p, size_t bytes)
{
    struct layout *l = (void *)layout;
    switch ((int)what) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return put(&l->batch, sizeof l->batch, p, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return put(&l->stride, sizeof l->stride, p, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
        return put(&l->order, sizeof l->order, p, bytes);
    }
    fake_fail("cublasLt: attribute %d of a layout is not in the fake", (int)what);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    struct preference *p = fake_alloc(sizeof *p);
    *p = (struct preference){0, {256, 256, 256, 256}};
    *out = (void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t
cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref,
                                     cublasLtMatmulPreferenceAttributes_t what,
                                     const void *v, size_t bytes)
{
    struct preference *p = (void *)pref;
    const int first = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return put(&p->workspace, sizeof p->workspace, v, bytes);
    if ((int)what >= first && (int)what < first + 4)
        return put(&p->align[(int)what - first], sizeof p->align[0], v, bytes);
    fake_fail("cublasLt: preference %d is not in the fake", (int)what);
}

/* ---- what is supported ---- */

static int size_of(cudaDataType_t t)
{
    switch ((int)t) {
    case CUDA_C_32F:
    case CUDA_R_64F:
        return 8;
    case CUDA_R_32F:
        return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
        return 2;
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
        return 1;
    }
    return 0;
}

static bool types_fit(const struct desc *d, const struct layout *a,
                      const struct layout *b, const struct layout *c,
                      const struct layout *r)
{
    const int in = size_of(a->type), out = size_of(r->type);
    if (!in || !out || c->type != r->type)
        return false;
    if (a->type == CUDA_R_64F)
        return b->type == a->type && r->type == a->type &&
               d->compute == CUBLAS_COMPUTE_64F && d->scale == CUDA_R_64F;
    if (a->type == CUDA_C_32F)
        return b->type == a->type && r->type == a->type &&
               d->compute == CUBLAS_COMPUTE_32F && d->scale == CUDA_C_32F;
    const bool is_f32 = d->compute == CUBLAS_COMPUTE_32F && d->scale == CUDA_R_32F;
    if (a->type == CUDA_R_32F)
        return b->type == a->type && r->type == a->type && d->scale == CUDA_R_32F &&
               (is_f32 || d->compute == CUBLAS_COMPUTE_32F_FAST_TF32);
    if (in == 2)
        return is_f32 && b->type == a->type &&
               (r->type == a->type || r->type == CUDA_R_32F);
    /* f8: rows of both operands contiguous, no two e5m2, multiples of 16 */
    return is_f32 && in == 1 && size_of(b->type) == 1 && out > 1 &&
           r->type != CUDA_R_64F &&
           !(a->type == CUDA_R_8F_E5M2 && b->type == CUDA_R_8F_E5M2) &&
           d->trans[0] == CUBLAS_OP_T && d->trans[1] == CUBLAS_OP_N && a->ld % 16 == 0 &&
           b->ld % 16 == 0 && a->rows % 16 == 0 && a->cols % 16 == 0 && b->cols % 16 == 0;
}

static cublasStatus_t check(const struct desc *d, const struct layout *a,
                            const struct layout *b, const struct layout *c,
                            const struct layout *r)
{
    const struct layout *all[] = {a, b, c, r};
    const bool ta = d->trans[0] != CUBLAS_OP_N, tb = d->trans[1] != CUBLAS_OP_N;
    for (int i = 0; i < 4; i++) {
        const struct layout *l = all[i];
        if (l->order != CUBLASLT_ORDER_COL)
            fake_fail("cublasLt: order %d is not in the fake", (int)l->order);
        if (!l->rows || !l->cols || l->ld < (int64_t)l->rows || l->batch < 1 ||
            l->batch != r->batch)
            return CUBLAS_STATUS_INVALID_VALUE;
        if (i == 3 && l->batch > 1 &&
            l->stride < l->ld * (int64_t)(l->cols - 1) + (int64_t)l->rows)
            return CUBLAS_STATUS_INVALID_VALUE; /* results over each other */
    }
    if ((ta ? a->rows : a->cols) != (tb ? b->cols : b->rows) ||
        (ta ? a->cols : a->rows) != r->rows || (tb ? b->rows : b->cols) != r->cols ||
        c->rows != r->rows || c->cols != r->cols)
        return CUBLAS_STATUS_INVALID_VALUE;
    return types_fit(d, a, b, c, r) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                               cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                               cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               cublasLtMatmulPreference_t pref, int n,
                               cublasLtMatmulHeuristicResult_t results[], int *n_results)
{
    const struct preference *p = (void *)pref;
    struct algo algo = {.mark = ALGO_MARK};
    *n_results = 0;
    if (!handle || n < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t rc =
        check((void *)desc, (void *)a, (void *)b, (void *)c, (void *)d);
    if (rc)
        return rc;
    /* as if split along k: half of what may be used */
    algo.workspace = p->workspace / 2 / 256 * 256;
    memcpy(algo.align, p->align, sizeof algo.align);
    results[0] = (cublasLtMatmulHeuristicResult_t){
        .workspaceSize = algo.workspace, .state = CUBLAS_STATUS_SUCCESS, .wavesCount = 1};
    memcpy(&results[0].algo, &algo, sizeof algo);
    *n_results = 1;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product ---- */

/* Of a complex number the real part: of alpha and beta. */
static double load(const void *p, cudaDataType_t t, int64_t i)
{
    switch ((int)t) {
    case CUDA_C_32F:
        return ((const float *)p)[2 * i];
    case CUDA_R_64F:
        return ((const double *)p)[i];
    case CUDA_R_32F:
        return ((const float *)p)[i];
    case CUDA_R_16F:
        return ap_f16_to_f32(((const uint16_t *)p)[i]);
    case CUDA_R_16BF:
        return ap_bf16_to_f32(((const uint16_t *)p)[i]);
    case CUDA_R_8F_E4M3:
        return ap_f8e4m3fn_to_f32(((const uint8_t *)p)[i]);
    }
    return ap_f8e5m2_to_f32(((const uint8_t *)p)[i]);
}

static void store(void *p, cudaDataType_t t, int64_t i, double v)
{
    if (t == CUDA_R_64F)
        ((double *)p)[i] = v;
    else if (t == CUDA_R_32F)
        ((float *)p)[i] = (float)v;
    else if (t == CUDA_R_16F)
        ((uint16_t *)p)[i] = ap_f32_to_f16((float)v);
    else
        ((uint16_t *)p)[i] = ap_f32_to_bf16((float)v);
}

struct product {
    struct desc desc;
    struct layout a, b, c, d;
    const void *pa, *pb, *pc;
    void *pd, *workspace;
    size_t workspace_bytes;
    double alpha, beta;
};

/* Matrix `i` of the batch as a dense column-major one, transposed if t. */
static void dense(double *out, const struct layout *l, const void *p, int i, bool t)
{
    for (uint64_t c = 0; c < l->cols; c++)
        for (uint64_t r = 0; r < l->rows; r++)
            out[t ? r * l->cols + c : c * l->rows + r] =
                load(p, l->type, i * l->stride + (int64_t)c * l->ld + (int64_t)r);
}

/* In f32 by the same function that the CPU backend calls, else in f64. */
static void multiply(const struct product *p, int i, double *a, double *b, double *out,
                     int64_t k)
{
    const int m = (int)p->d.rows, n = (int)p->d.cols;
    const bool ta = p->desc.trans[0] != CUBLAS_OP_N, tb = p->desc.trans[1] != CUBLAS_OP_N;
    if (p->a.type != CUDA_R_32F) {
        dense(a, &p->a, p->pa, i, ta);
        dense(b, &p->b, p->pb, i, tb);
        cblas_dgemm(CblasColMajor, CblasNoTrans, CblasNoTrans, m, n, (int)k, 1, a, m, b,
                    (int)k, 0, out, m);
        return;
    }
    float *r = fake_alloc(sizeof *r * (size_t)m * (size_t)n);
    cblas_sgemm(CblasColMajor, ta ? CblasTrans : CblasNoTrans,
                tb ? CblasTrans : CblasNoTrans, m, n, (int)k, 1,
                (const float *)p->pa + i * p->a.stride, (int)p->a.ld,
                (const float *)p->pb + i * p->b.stride, (int)p->b.ld, 0, r, m);
    for (int64_t j = 0; j < (int64_t)m * n; j++)
        out[j] = r[j];
    free(r);
}

/* Complex numbers, by the function that the CPU backend calls. */
static void multiply_complex(const struct product *p, int k)
{
    static const CBLAS_TRANSPOSE how[] = {CblasNoTrans, CblasTrans, CblasConjTrans};
    static const float one[2] = {1}, zero[2] = {0};
    const int64_t size = size_of(CUDA_C_32F);
    if (p->alpha != 1 || p->beta != 0)
        fake_fail("cublasLt: scalars of complex products are not in the fake");
    for (int i = 0; i < p->d.batch; i++)
        cblas_cgemm(CblasColMajor, how[p->desc.trans[0]], how[p->desc.trans[1]],
                    (int)p->d.rows, (int)p->d.cols, k, one,
                    (const char *)p->pa + i * p->a.stride * size, (int)p->a.ld,
                    (const char *)p->pb + i * p->b.stride * size, (int)p->b.ld, zero,
                    (char *)p->pd + i * p->d.stride * size, (int)p->d.ld);
}

static void product_run(void *args)
{
    const struct product *p = args;
    const bool ta = p->desc.trans[0] != CUBLAS_OP_N;
    const size_t m = p->d.rows, n = p->d.cols, k = ta ? p->a.rows : p->a.cols;
    if (p->a.type == CUDA_C_32F) {
        if (p->workspace_bytes)
            memset(p->workspace, 0xFF, p->workspace_bytes);
        multiply_complex(p, (int)k);
        return;
    }
    const bool wide = p->a.type != CUDA_R_32F;
    double *a = fake_alloc(sizeof *a * (wide ? m * k : 1));
    double *b = fake_alloc(sizeof *b * (wide ? k * n : 1));
    double *out = fake_alloc(sizeof *out * m * n);
    if (p->workspace_bytes)
        memset(p->workspace, 0xFF, p->workspace_bytes);
    for (int i = 0; i < p->d.batch; i++) {
        multiply(p, i, a, b, out, (int64_t)k);
        for (size_t c = 0; c < n; c++)
            for (size_t r = 0; r < m; r++) {
                double v = p->alpha * out[c * m + r];
                if (p->beta != 0)
                    v += p->beta *
                         load(p->pc, p->c.type,
                              i * p->c.stride + (int64_t)c * p->c.ld + (int64_t)r);
                store(p->pd, p->d.type,
                      i * p->d.stride + (int64_t)c * p->d.ld + (int64_t)r, v);
            }
    }
    free(a);
    free(b);
    free(out);
}

/* Bytes from the first to the last element. */
static size_t extent(const struct layout *l)
{
    const int64_t elems =
        l->stride * (l->batch - 1) + l->ld * (int64_t)(l->cols - 1) + (int64_t)l->rows;
    return (size_t)elems * (size_t)size_of(l->type);
}

static bool overlap(const void *a, size_t n, const void *b, size_t m)
{
    return (const char *)a < (const char *)b + m && (const char *)b < (const char *)a + n;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                              const void *alpha, const void *a, cublasLtMatrixLayout_t la,
                              const void *b, cublasLtMatrixLayout_t lb, const void *beta,
                              const void *c, cublasLtMatrixLayout_t lc, void *d,
                              cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *how,
                              void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    struct product p = {.a = *(struct layout *)(void *)la,
                        .b = *(struct layout *)(void *)lb,
                        .c = *(struct layout *)(void *)lc,
                        .d = *(struct layout *)(void *)ld,
                        .pa = a,
                        .pb = b,
                        .pc = c,
                        .pd = d,
                        .workspace = workspace};
    const void *at[] = {a, b, c, d};
    const struct layout *layout[] = {&p.a, &p.b, &p.c, &p.d};
    struct algo algo;
    memcpy(&p.desc, desc, sizeof p.desc);
    const cublasStatus_t rc = check(&p.desc, &p.a, &p.b, &p.c, &p.d);
    if (!handle || rc)
        return rc ? rc : CUBLAS_STATUS_INVALID_VALUE;
    if (p.desc.mode != CUBLASLT_POINTER_MODE_HOST || !how)
        fake_fail("cublasLtMatmul: scalars on the device and no algorithm are not in the "
                  "fake");
    memcpy(&algo, how, sizeof algo);
    if (algo.mark != ALGO_MARK || workspace_bytes < algo.workspace)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < 4; i++) {
        const uint32_t most = algo.align[i] < VECTOR_BYTES ? algo.align[i] : VECTOR_BYTES;
        const uint32_t own = (uint32_t)size_of(layout[i]->type);
        if ((uintptr_t)at[i] % (most > own ? most : own))
            return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    p.workspace_bytes = algo.workspace;
    if (p.workspace_bytes && (uintptr_t)workspace % WORKSPACE_ALIGNMENT)
        return CUBLAS_STATUS_INVALID_VALUE; /* as on an H100 */
    p.alpha = load(alpha, p.desc.scale, 0);
    p.beta = load(beta, p.desc.scale, 0);
    if (overlap(d, extent(&p.d), a, extent(&p.a)) ||
        overlap(d, extent(&p.d), b, extent(&p.b)))
        fake_fail("cublasLtMatmul: the result lies over an operand");
    return fake_enqueue(stream, "cublasLtMatmul", product_run, &p, sizeof p)
               ? CUBLAS_STATUS_EXECUTION_FAILED
               : CUBLAS_STATUS_SUCCESS;
}
