/*
 * Matrix products: OpenBLAS for f32, f64 and c64; integers by a blocked loop that wraps
 * around (pred: or of ands), in a fixed order of k.
 */
#include "cpu/cpu.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef void gemm_fn(const struct gemm *g, const void *a, const void *b, void *c);

#define INT_GEMM(name, T, U, COMBINE)                                             \
    static void name(const struct gemm *g, const void *a, const void *b, void *c) \
    {                                                                             \
        const T *l = a, *r = b;                                                   \
        const int64_t n = g->n;                                                   \
        for (int64_t i = 0; i < g->m; i++) {                                      \
            T *row = (T *)c + i * g->ldc;                                         \
            memset(row, 0, (size_t)n * sizeof(T));                                \
            for (int64_t q = 0; q < g->k; q++) {                                  \
                const U x = (U)(g->ta ? l[q * g->lda + i] : l[i * g->lda + q]);   \
                const T *y = g->tb ? r + q : r + q * g->ldb;                      \
                if (!g->tb)                                                       \
                    for (int64_t j = 0; j < n; j++)                               \
                        row[j] = (T)COMBINE((U)row[j], x, (U)y[j]);               \
                else                                                              \
                    for (int64_t j = 0; j < n; j++)                               \
                        row[j] = (T)COMBINE((U)row[j], x, (U)y[j * g->ldb]);      \
            }                                                                     \
        }                                                                         \
    }
#define MUL_ADD(r, x, y) ((r) + (x) * (y))
#define AND_OR(r, x, y)  ((r) | ((x) & (y)))
INT_GEMM(gemm_8, uint8_t, uint32_t, MUL_ADD)
INT_GEMM(gemm_16, uint16_t, uint32_t, MUL_ADD)
INT_GEMM(gemm_32, uint32_t, uint32_t, MUL_ADD)
INT_GEMM(gemm_64, uint64_t, uint64_t, MUL_ADD)
INT_GEMM(gemm_pred, uint8_t, uint8_t, AND_OR)

/* BLAS's routine of type X for scalars one and zero. */
#define BLAS_GEMM(name, X, one, zero)                                             \
    static void name(const struct gemm *g, const void *a, const void *b, void *c) \
    {                                                                             \
        cblas_##X##gemm(CblasRowMajor, g->ta ? CblasTrans : CblasNoTrans,         \
                        g->tb ? CblasTrans : CblasNoTrans, (int)g->m, (int)g->n,  \
                        (int)g->k, one, a, (int)g->lda, b, (int)g->ldb, zero, c,  \
                        (int)g->ldc);                                             \
    }
static const float c_one[2] = {1, 0}, c_zero[2] = {0, 0};
BLAS_GEMM(gemm_f32, s, 1, 0)
BLAS_GEMM(gemm_f64, d, 1, 0)
BLAS_GEMM(gemm_c64, c, c_one, c_zero)

static double thread_sec(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static _Thread_local bool timed; /* the thread asked for its seconds */
static _Thread_local double blas_sec;

double cpu_blas_sec(void)
{
    timed = true;
    return blas_sec;
}

void cpu_gemm(const struct gemm *g, const void *a, const void *b, void *c)
{
    static gemm_fn *const gemm[CPU_N_KINDS] = {gemm_pred, gemm_8,   gemm_16,  gemm_32,
                                               gemm_64,   gemm_8,   gemm_16,  gemm_32,
                                               gemm_64,   gemm_f32, gemm_f64, gemm_c64};
    const int size = cpu_kind_size(g->kind);
    if (g->m == 0 || g->n == 0)
        return;
    const double start = timed ? thread_sec() : 0;
    if (g->k > 0)
        gemm[g->kind](g, a, b, c);
    else
        for (int64_t i = 0; i < g->m; i++)
            memset((char *)c + i * g->ldc * size, 0, (size_t)(g->n * size));
    if (timed)
        blas_sec += thread_sec() - start;
}

/* Widths of vectors that kernels of OpenBLAS use; WIDTH_OTHER: one that is not known. */
enum width { WIDTH_SSE, WIDTH_AVX2, WIDTH_AVX512, WIDTH_OTHER };

static enum width width_of(const char *core)
{
    static const struct {
        const char *core;
        enum width width;
    } known[] = {{"Prescott", WIDTH_SSE}, {"Core2", WIDTH_SSE},    {"Generic", WIDTH_SSE},
                 {"generic", WIDTH_SSE},  {"Haswell", WIDTH_AVX2}, {"Zen", WIDTH_AVX2}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(core, known[i].core))
            return known[i].width;
    return WIDTH_OTHER;
}

/*
 * OpenBLAS takes its oldest kernels on a processor that it does not know, and those of
 * AVX2 on AMD's processors that have AVX-512 (EPYC 9005: 126 GFLOP/s of f32 products
 * instead of 240); it reads its settings only when it is loaded. So where its kernels use
 * narrower vectors than the processor has, name the nearest ones that it can run and
 * start again.
 */
void cpu_open(char **argv)
{
    openblas_set_num_threads(1); /* ranks share the machine's cores */
#if defined(__x86_64__) && defined(__GNUC__)
    const bool avx512 =
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const enum width best = avx512 ? WIDTH_AVX512 : avx2 ? WIDTH_AVX2 : WIDTH_SSE;
    if (width_of(openblas_get_corename()) >= best || getenv("OPENBLAS_CORETYPE"))
        return;
    setenv("OPENBLAS_CORETYPE",
           !avx512                                ? "Haswell"
           : __builtin_cpu_supports("avx512bf16") ? "Cooperlake"
                                                  : "SkylakeX",
           1);
    execv("/proc/self/exe", argv); /* if it fails, the slow ones will do */
#else
    (void)argv;
#endif
}
