/*
 * cholesky and triangular-solve of f32 and f64, by LAPACK's potrf and BLAS's trsv in
 * double precision with one rounding to f32. One call per matrix and per right-hand side:
 * a rank has whole matrices, but may have some of the right-hand sides only, and the bits
 * of a solution must not depend on how many. n^3 / 3 operations per factorization, n^2
 * per right-hand side.
 */
#include "cpu/cpu_state.h"

#include <cblas.h>
#include <f77blas.h>
#include <limits.h>
#include <math.h>

/* n elements, `step` apart in memory, to doubles and back. */
static void load(const struct linalg *s, double *to, const char *p, int64_t at, int64_t n,
                 int64_t step)
{
    const double *wide = (const double *)(const void *)p + at;
    const float *narrow = (const float *)(const void *)p + at;
    for (int64_t i = 0; i < n; i++)
        to[i] = s->dtype == AP_F64 ? wide[i * step] : (double)narrow[i * step];
}

static void store(const struct linalg *s, const double *from, char *p, int64_t at,
                  int64_t n, int64_t step)
{
    double *wide = (double *)(void *)p + at;
    float *narrow = (float *)(void *)p + at;
    for (int64_t i = 0; i < n; i++)
        if (s->dtype == AP_F64)
            wide[i * step] = from[i];
        else
            narrow[i * step] = (float)from[i];
}

/*
 * A = L L^T of the lower triangle, or A = U^T U of the upper; zero in the other one. A
 * matrix that is not positive definite gives NaN, as in XLA. LAPACK's matrices are
 * column-major: its upper triangle is our lower one.
 */
static void cholesky_run(struct exec *x, void *state)
{
    const struct linalg *s = state;
    char uplo = s->lower ? 'U' : 'L';
    int n = (int)s->n, lda = n > 0 ? n : 1;
    double *a = (double *)(void *)x->scratch;
    for (int64_t q = 0; q < s->batch; q++) {
        int info = 0;
        load(s, a, s->a, q * n * n, (int64_t)n * n, 1);
        BLASFUNC(dpotrf)(&uplo, &n, a, &lda, &info);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                if (s->lower ? j > i : j < i)
                    a[i * n + j] = 0;
                else if (info)
                    a[i * n + j] = NAN;
        store(s, a, s->out, q * n * n, (int64_t)n * n, 1);
    }
}

/* op(A) X = B, or X op(A) = B, which is op(A)^T X^T = B^T. */
static void solve_run(struct exec *x, void *state)
{
    const struct linalg *s = state;
    const int n = (int)s->n, lda = n > 0 ? n : 1;
    const int64_t step = s->left ? s->m : 1, next = s->left ? 1 : n;
    double *a = (double *)(void *)x->scratch;
    double *v = (double *)(void *)(x->scratch + s->vector_at);
    for (int64_t q = 0; q < s->batch * s->m; q++) {
        const int64_t at = q / s->m * n * s->m + q % s->m * next;
        if (q % s->m == 0)
            load(s, a, s->a, q / s->m * n * n, (int64_t)n * n, 1);
        load(s, v, s->b, at, n, step);
        cblas_dtrsv(CblasRowMajor, s->lower ? CblasLower : CblasUpper,
                    s->transpose == s->left ? CblasTrans : CblasNoTrans,
                    s->unit ? CblasUnit : CblasNonUnit, n, a, lda, v, 1);
        store(s, v, s->out, at, n, step);
    }
}

int cpu_linalg_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_shape *a = &call_in(x, v, 0)->shape;
    const bool solve = v->op == AP_OP_TRIANGULAR_SOLVE;
    struct linalg *s = AP_NEW(x->arena, struct linalg);
    s->dtype = a->dtype;
    if (s->dtype != AP_F32 && s->dtype != AP_F64)
        return exec_unsupported(x, v, err, ap_dtype_name(s->dtype));
    s->n = a->dims[a->rank - 1];
    if (s->n > INT_MAX)
        return exec_unsupported(x, v, err, "of this size");
    s->batch = 1;
    for (int d = 0; d < a->rank - 2; d++)
        s->batch *= a->dims[d];
    s->lower = v->attrs->lower;
    s->left = v->attrs->left_side;
    s->unit = v->attrs->unit_diagonal;
    s->transpose = v->attrs->transpose_a;
    s->m = solve ? v->shape.dims[a->rank - (s->left ? 1 : 2)] : 0;
    s->a = x->value[v->in[0]];
    s->b = solve ? x->value[v->in[1]] : NULL;
    s->out = x->value[call->nodes[0]];
    s->vector_at = exec_room(s->n * s->n * 8);
    exec_need_scratch(x, s->vector_at + s->n * 8);
    call->run = solve ? solve_run : cholesky_run;
    call->state = s;
    return 0;
}
