/*
 * Matrix products by cublasLt, and products of integers by a kernel. Matrices are
 * row-major: cublasLt, which is column-major, is given the transposed problem, C' = B'
 * A'. The algorithm is chosen when the program is prepared: the first that cublasLt
 * proposes for these sizes, strides and addresses.
 */
#include "matmul.h"

#include <string.h>

/* The scratch memory that cublasLt is offered; NVIDIA advises 32 MiB from Hopper on. */
#define WORKSPACE_BYTES (32 << 20)

struct product {
    struct matmul m;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace;
};

/* Whether cublasLt multiplies it; integers it does not. */
static bool is_cublas(enum ap_dtype dtype)
{
    return ap_dtype_is_float(dtype) || dtype == AP_C64;
}

static cudaDataType_t data_type(enum ap_dtype dtype)
{
    return dtype == AP_F64    ? CUDA_R_64F
           : dtype == AP_C64  ? CUDA_C_32F
           : dtype == AP_BF16 ? CUDA_R_16BF
           : dtype == AP_F16  ? CUDA_R_16F
                              : CUDA_R_32F;
}

static void product_run(struct exec *x, void *state)
{
    static const float one[2] = {1}, zero[2] = {0}; /* of f32 or of c64 */
    static const double one64 = 1, zero64 = 0;
    const struct product *p = state;
    const bool wide = p->m.in == AP_F64;
    void *c = cuda_place(x, p->m.c);
    cuda_check_lt(cublasLtMatmul(cuda_dev.lt, p->desc,
                                 wide ? (const void *)&one64 : (const void *)one,
                                 cuda_place(x, p->m.b), p->b, cuda_place(x, p->m.a), p->a,
                                 wide ? (const void *)&zero64 : (const void *)zero, c,
                                 p->c, c, p->c, &p->algo, cuda_place(x, p->m.workspace),
                                 p->workspace, cuda_dev.stream),
                  "cublasLtMatmul");
}

static void product_close(struct exec *x, void *state)
{
    (void)x;
    const struct product *p = state;
    cublasLtMatmulDescDestroy(p->desc);
    cublasLtMatrixLayoutDestroy(p->a);
    cublasLtMatrixLayoutDestroy(p->b);
    cublasLtMatrixLayoutDestroy(p->c);
}

static void set_layout(cublasLtMatrixLayout_t layout,
                       cublasLtMatrixLayoutAttribute_t what, const void *value,
                       size_t size)
{
    cuda_check_lt(cublasLtMatrixLayoutSetAttribute(layout, what, value, size),
                  "cublasLtMatrixLayoutSetAttribute");
}

/* rows and cols as cublasLt sees them: a column is contiguous. */
static cublasLtMatrixLayout_t new_layout(enum ap_dtype dtype, int64_t rows, int64_t cols,
                                         int64_t ld, int64_t batch, int64_t stride)
{
    cublasLtMatrixLayout_t layout;
    const int32_t count = (int32_t)batch;
    cuda_check_lt(cublasLtMatrixLayoutCreate(&layout, data_type(dtype), (uint64_t)rows,
                                             (uint64_t)cols, ld > rows ? ld : rows),
                  "cublasLtMatrixLayoutCreate");
    set_layout(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
    set_layout(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
               sizeof stride);
    return layout;
}

static cublasLtMatmulDesc_t new_desc(const struct matmul *m)
{
    cublasLtMatmulDesc_t desc;
    const cublasOperation_t first = m->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = m->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasComputeType_t compute = m->in == AP_F64 ? CUBLAS_COMPUTE_64F
                                        : m->in == AP_F32 && m->tf32
                                            ? CUBLAS_COMPUTE_32F_FAST_TF32
                                            : CUBLAS_COMPUTE_32F;
    cuda_check_lt(cublasLtMatmulDescCreate(
                      &desc, compute,
                      m->in == AP_F64 || m->in == AP_C64 ? data_type(m->in) : CUDA_R_32F),
                  "cublasLtMatmulDescCreate");
    cuda_check_lt(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA,
                                                 &first, sizeof first),
                  "cublasLtMatmulDescSetAttribute");
    cuda_check_lt(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB,
                                                 &second, sizeof second),
                  "cublasLtMatmulDescSetAttribute");
    return desc;
}

/* The largest power of two up to 16 that divides the matrices' address. */
static uint32_t alignment(struct cuda_at at)
{
    uint32_t bytes = 16;
    while ((uintptr_t)at.p % bytes)
        bytes /= 2;
    return bytes;
}

static int choose_algo(struct product *p, struct ap_err *err)
{
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        struct cuda_at at;
    } aligned[] = {{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p->m.b},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p->m.a},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p->m.c},
                   {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p->m.c}};
    cublasLtMatmulPreference_t pref;
    cublasLtMatmulHeuristicResult_t found;
    const uint64_t bytes = WORKSPACE_BYTES;
    int n = 0;
    cuda_check_lt(cublasLtMatmulPreferenceCreate(&pref),
                  "cublasLtMatmulPreferenceCreate");
    cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &bytes, sizeof bytes);
    for (int i = 0; i < 4; i++) {
        const uint32_t a = alignment(aligned[i].at);
        cublasLtMatmulPreferenceSetAttribute(pref, aligned[i].what, &a, sizeof a);
    }
    const cublasStatus_t rc = cublasLtMatmulAlgoGetHeuristic(
        cuda_dev.lt, p->desc, p->b, p->a, p->c, p->c, pref, 1, &found, &n);
    cublasLtMatmulPreferenceDestroy(pref);
    if (rc != CUBLAS_STATUS_SUCCESS || n == 0)
        return ap_err_set(err,
                          "cublasLt has no algorithm for a product of %lldx%lldx%lld",
                          (long long)p->m.m, (long long)p->m.n, (long long)p->m.k);
    p->algo = found.algo;
    p->workspace = found.workspaceSize;
    return 0;
}

/* ---- integers ---- */

/* A thread per element of the result; pred: or of ands. */
static void add_int(struct exec *x, struct cuda_call *c, const struct matmul *m)
{
    const struct text_index t = {true, "uint64_t", "int64_t", "ull"};
    const char *type = text_storage(m->in);
    const int64_t n = m->m * m->n * m->batch;
    const bool pred = m->in == AP_PRED;
    struct ap_buf b = {0};
    text_thread(&b, &t, CUDA_BLOCK, n);
    ap_buf_printf(&b,
                  "    const uint64_t col = i %% %lldull, row = i / %lldull %% %lldull, "
                  "q = i / %lldull;\n"
                  "    const %s *l = (const %s *)a.p[0] + q * %lldull + row * %lldull;\n"
                  "    const %s *r = (const %s *)a.p[1] + q * %lldull + col * %lldull;\n",
                  (long long)m->n, (long long)m->n, (long long)m->m,
                  (long long)(m->m * m->n), type, type, (long long)m->stride_a,
                  (long long)(m->ta ? 1 : m->lda), type, type, (long long)m->stride_b,
                  (long long)(m->tb ? m->ldb : 1));
    ap_buf_printf(&b,
                  "    uint64_t acc = 0;\n    for (uint64_t k = 0; k < %lldull; k++) {\n"
                  "        const uint64_t u = (uint64_t)l[k * %lldull], "
                  "v = (uint64_t)r[k * %lldull];\n        acc = %s;\n    }\n"
                  "    ((%s *)a.p[2])[q * %lldull + row * %lldull + col] = (%s)acc;\n",
                  (long long)m->k, (long long)(m->ta ? m->lda : 1),
                  (long long)(m->tb ? 1 : m->ldb), pred ? "acc | (u & v)" : "acc + u * v",
                  type, (long long)m->stride_c, (long long)m->ldc, type);
    struct cuda_at arg[3] = {m->a, m->b, m->c};
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(n, CUDA_BLOCK), 1, 3, arg});
}

/* ---- both ---- */

int64_t matmul_workspace(const struct matmul *m)
{
    return is_cublas(m->in) ? WORKSPACE_BYTES : 0;
}

int cuda_add_matmul(struct exec *x, struct cuda_call *c, const struct matmul *m,
                    struct ap_err *err)
{
    if (m->m == 0 || m->n == 0 || m->batch == 0)
        return 0;
    if (!is_cublas(m->in)) {
        add_int(x, c, m);
        return 0;
    }
    if (cuda_dev.opts.compile_for)
        return 0;
    struct product *p = AP_NEW(x->arena, struct product);
    p->m = *m;
    p->desc = new_desc(m);
    p->a = m->ta ? new_layout(m->in, m->m, m->k, m->lda, m->batch, m->stride_a)
                 : new_layout(m->in, m->k, m->m, m->lda, m->batch, m->stride_a);
    p->b = m->tb ? new_layout(m->in, m->k, m->n, m->ldb, m->batch, m->stride_b)
                 : new_layout(m->in, m->n, m->k, m->ldb, m->batch, m->stride_b);
    p->c = new_layout(m->out, m->n, m->m, m->ldc, m->batch, m->stride_c);
    cuda_add(x, c, product_run, p, product_close);
    return choose_algo(p, err);
}
