/*
 * Matrix products: OpenBLAS for f32, f64 and c64; integers by a blocked loop that wraps
 * around (pred: or of ands), in a fixed order of k.
 */
#include "cpu/cpu.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INT_GEMM(name, T, U, COMBINE)                                               \
    static void name(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const T *a, \
                     int64_t lda, const T *b, int64_t ldb, T *c, int64_t ldc)       \
    {                                                                               \
        for (int64_t i = 0; i < m; i++) {                                           \
            T *row = c + i * ldc;                                                   \
            memset(row, 0, (size_t)n * sizeof(T));                                  \
            for (int64_t l = 0; l < k; l++) {                                       \
                const U x = (U)(ta ? a[l * lda + i] : a[i * lda + l]);              \
                if (!tb) {                                                          \
                    const T *q = b + l * ldb;                                       \
                    for (int64_t j = 0; j < n; j++)                                 \
                        row[j] = (T)COMBINE((U)row[j], x, (U)q[j]);                 \
                } else {                                                            \
                    for (int64_t j = 0; j < n; j++)                                 \
                        row[j] = (T)COMBINE((U)row[j], x, (U)b[j * ldb + l]);       \
                }                                                                   \
            }                                                                       \
        }                                                                           \
    }
#define MUL_ADD(r, x, y) ((r) + (x) * (y))
#define AND_OR(r, x, y)  ((r) | ((x) & (y)))
INT_GEMM(gemm_8, uint8_t, uint32_t, MUL_ADD)
INT_GEMM(gemm_16, uint16_t, uint32_t, MUL_ADD)
INT_GEMM(gemm_32, uint32_t, uint32_t, MUL_ADD)
INT_GEMM(gemm_64, uint64_t, uint64_t, MUL_ADD)
INT_GEMM(gemm_pred, uint8_t, uint8_t, AND_OR)

static void gemm_float(enum cpu_kind kind, bool ta, bool tb, int64_t m, int64_t n,
                       int64_t k, const void *a, int64_t lda, const void *b, int64_t ldb,
                       void *c, int64_t ldc)
{
    const CBLAS_TRANSPOSE opa = ta ? CblasTrans : CblasNoTrans;
    const CBLAS_TRANSPOSE opb = tb ? CblasTrans : CblasNoTrans;
    const int im = (int)m, in = (int)n, ik = (int)k;
    const float one[2] = {1, 0}, zero[2] = {0, 0};
    if (kind == CPU_C64)
        cblas_cgemm(CblasRowMajor, opa, opb, im, in, ik, one, a, (int)lda, b, (int)ldb,
                    zero, c, (int)ldc);
    else if (kind == CPU_F32)
        cblas_sgemm(CblasRowMajor, opa, opb, im, in, ik, 1.0f, a, (int)lda, b, (int)ldb,
                    0.0f, c, (int)ldc);
    else
        cblas_dgemm(CblasRowMajor, opa, opb, im, in, ik, 1.0, a, (int)lda, b, (int)ldb,
                    0.0, c, (int)ldc);
}

void cpu_gemm(enum cpu_kind kind, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
              const void *a, int64_t lda, const void *b, int64_t ldb, void *c,
              int64_t ldc)
{
    if (m == 0 || n == 0)
        return;
    if (k == 0) {
        const int size = cpu_kind_size(kind);
        for (int64_t i = 0; i < m; i++)
            memset((char *)c + i * ldc * size, 0, (size_t)(n * size));
        return;
    }
    switch (kind) {
    case CPU_F32:
    case CPU_F64:
    case CPU_C64:
        gemm_float(kind, ta, tb, m, n, k, a, lda, b, ldb, c, ldc);
        break;
    case CPU_PRED:
        gemm_pred(ta, tb, m, n, k, a, lda, b, ldb, c, ldc);
        break;
    case CPU_S8:
    case CPU_U8:
        gemm_8(ta, tb, m, n, k, a, lda, b, ldb, c, ldc);
        break;
    case CPU_S16:
    case CPU_U16:
        gemm_16(ta, tb, m, n, k, a, lda, b, ldb, c, ldc);
        break;
    case CPU_S32:
    case CPU_U32:
        gemm_32(ta, tb, m, n, k, a, lda, b, ldb, c, ldc);
        break;
    case CPU_S64:
    case CPU_U64:
        gemm_64(ta, tb, m, n, k, a, lda, b, ldb, c, ldc);
        break;
    case CPU_N_KINDS:
        break;
    }
}

/*
 * OpenBLAS takes its oldest kernels on a processor that it does not know, at a fraction
 * of the speed, and reads its settings only when it is loaded. So where that happened,
 * name the nearest kernels that this processor can run and start again.
 */
void cpu_open(char **argv)
{
    openblas_set_num_threads(1); /* ranks share the machine's cores */
#if defined(__x86_64__) && defined(__GNUC__)
    const char *name = openblas_get_corename();
    const bool old = !strcmp(name, "Prescott") || !strcmp(name, "Core2") ||
                     !strcmp(name, "Generic") || !strcmp(name, "generic");
    const char *better =
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
            ? "SkylakeX"
        : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell"
                                                                          : NULL;
    if (!old || !better || getenv("OPENBLAS_CORETYPE"))
        return;
    setenv("OPENBLAS_CORETYPE", better, 1);
    execv("/proc/self/exe", argv); /* if it fails, the slow ones will do */
#else
    (void)argv;
#endif
}
