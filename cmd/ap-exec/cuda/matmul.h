/* Matrix products on the device, for dot and convolution. */
#ifndef EXEC_CUDA_MATMUL_H
#define EXEC_CUDA_MATMUL_H

#include "cuda.h"

/*
 * `batch` products c[m][n] = a[m][k] b[k][n], all row-major; ta: a is stored [k][m], tb:
 * b [n][k]. k > 0.
 */
struct matmul {
    enum ap_dtype in;  /* of a and b: f32, f64, bf16, f16, integers, pred */
    enum ap_dtype out; /* of c: the same, or f32 for bf16 and f16 */
    bool tf32;         /* f32 may be rounded to tf32 */
    bool ta, tb;
    int64_t m, n, k, lda, ldb, ldc; /* elements from row to row */
    int64_t batch, stride_a, stride_b, stride_c;
    struct cuda_at a, b, c, workspace;
};
/* Bytes that it needs at m->workspace. */
int64_t matmul_workspace(const struct matmul *m);
int cuda_add_matmul(struct exec *x, struct cuda_call *c, const struct matmul *m,
                    struct ap_err *err);

/* The type in which operands of these types are multiplied for a result of type out. */
enum ap_dtype matmul_type(enum ap_dtype lhs, enum ap_dtype rhs);
/* The type that cublasLt writes for a result of type out. */
enum ap_dtype matmul_result(enum ap_dtype in, enum ap_dtype out);

#endif
