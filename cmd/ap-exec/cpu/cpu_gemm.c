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

/* BLAS's routine of type X for its scalars one and zero. */
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

/*
 * Parts of a product that threads compute: blocks of rows, or of columns where there are
 * too few rows. How many follows from the sizes alone, so that the bits do not depend on
 * the threads. BLAS rearranges the other operand once for each part: parts of PART_SIDE
 * rows cost 1 % (2048 x 512 x 512; of 512 rows 4 %). Products of fewer rows, but not
 * fewer than LEAST_SIDE, have two.
 */
#define PART_SIDE  1024
#define LEAST_SIDE 128
#define MOST_PARTS 16
/* FLOPs that are worth waking a thread. */
#define PART_FLOPS 4e6

struct parts {
    const struct gemm *g;
    const char *a, *b;
    char *c;
    bool rows;
    int64_t n, each; /* parts, rows or columns of one */
};

static struct parts parts_of(const struct gemm *g)
{
    struct parts p = {.g = g, .rows = g->m >= 2 * LEAST_SIDE || g->m >= g->n};
    const int64_t side = p.rows ? g->m : g->n;
    const double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    int64_t n = side / PART_SIDE < MOST_PARTS ? side / PART_SIDE : MOST_PARTS;
    n = n < 2 && side >= LEAST_SIDE ? 2 : n;
    if (flops < PART_FLOPS * (double)n)
        n = (int64_t)(flops / PART_FLOPS);
    n = n < 1 ? 1 : n;
    p.each = (ap_ceil_div(side, n) + 15) / 16 * 16; /* whole rows of BLAS's kernels */
    p.n = n == 1 ? 1 : ap_ceil_div(side, p.each);
    return p;
}

static gemm_fn *const gemm_of[CPU_N_KINDS] = {gemm_pred, gemm_8,   gemm_16,  gemm_32,
                                              gemm_64,   gemm_8,   gemm_16,  gemm_32,
                                              gemm_64,   gemm_f32, gemm_f64, gemm_c64};

static void run_part(void *ctx, int64_t i, int thread)
{
    (void)thread;
    const struct parts *p = ctx;
    struct gemm g = *p->g;
    const int size = cpu_kind_size(g.kind);
    const int64_t from = i * p->each, left = (p->rows ? g.m : g.n) - from;
    const int64_t n = left < p->each ? left : p->each;
    const char *a = p->a, *b = p->b;
    char *c = p->c;
    if (p->rows) {
        g.m = n;
        a += (g.ta ? from : from * g.lda) * size;
        c += from * g.ldc * size;
    } else {
        g.n = n;
        b += (g.tb ? from * g.ldb : from) * size;
        c += from * size;
    }
    gemm_of[g.kind](&g, a, b, c);
}

void cpu_gemm(const struct gemm *g, const void *a, const void *b, void *c)
{
    const int size = cpu_kind_size(g->kind);
    if (g->m == 0 || g->n == 0)
        return;
    const double start = timed ? thread_sec() : 0;
    if (g->k > 0) {
        struct parts p = parts_of(g);
        p.a = a, p.b = b, p.c = c;
        if (p.n == 1)
            gemm_of[g->kind](g, a, b, c);
        else
            cpu_each(p.n, run_part, &p);
    } else {
        for (int64_t i = 0; i < g->m; i++)
            memset((char *)c + i * g->ldc * size, 0, (size_t)(g->n * size));
    }
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
    char self[4096]; /* the file itself, so that the process keeps its name */
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return;
    self[n] = '\0';
    execv(self, argv); /* if it fails, the slow ones will do */
#else
    (void)argv;
#endif
}
