/*
 * cholesky and triangular-solve of f32 and f64, one matrix after the other, sums in
 * double precision. Each device has whole matrices; of the right sides of a solve it may
 * have some columns (rows, for X A = B). n^3 / 3 and n^2 operations per right side.
 */
#include "cpu/cpu.h"

#include <math.h>

struct linalg {
    enum ap_dtype dtype;
    const char *a, *b;
    char *out;
    int64_t batch, n, m; /* m: right sides */
    bool lower, left, unit, transpose;
};

static double get(const struct linalg *s, const char *p, int64_t i)
{
    return s->dtype == AP_F64 ? ((const double *)(const void *)p)[i]
                              : (double)((const float *)(const void *)p)[i];
}

static void put(const struct linalg *s, char *p, int64_t i, double v)
{
    if (s->dtype == AP_F64)
        ((double *)(void *)p)[i] = v;
    else
        ((float *)(void *)p)[i] = (float)v;
}

/* A = L L^T of the lower triangle, or A = U^T U of the upper; zero in the other one. */
static void cholesky_run(struct exec *x, void *state)
{
    const struct linalg *s = state;
    const int64_t n = s->n, row = s->lower ? n : 1, col = s->lower ? 1 : n;
    double *l = (double *)(void *)x->scratch; /* lower, row-major */
    for (int64_t q = 0; q < s->batch; q++) {
        const int64_t at = q * n * n;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j <= i; j++) {
                double sum = get(s, s->a, at + i * row + j * col);
                for (int64_t k = 0; k < j; k++)
                    sum -= l[i * n + k] * l[j * n + k];
                l[i * n + j] = i == j ? sqrt(sum) : sum / l[j * n + j];
            }
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                put(s, s->out, at + i * row + j * col, j <= i ? l[i * n + j] : 0);
    }
}

/* op(A) X = B, or X op(A) = B, which is op(A)^T X^T = B^T. */
static void solve_run(struct exec *x, void *state)
{
    const struct linalg *s = state;
    const int64_t n = s->n, m = s->m;
    const bool flip = s->transpose == s->left; /* the matrix to solve with is A^T */
    const bool down = s->lower != flip;        /* ... and lower: from the first row on */
    const int64_t row = flip ? 1 : n, col = flip ? n : 1;
    const int64_t step = s->left ? m : 1, next = s->left ? 1 : n;
    double *v = (double *)(void *)x->scratch;
    for (int64_t q = 0; q < s->batch * m; q++) {
        const int64_t a = q / m * n * n, b = q / m * n * m + q % m * next;
        for (int64_t t = 0; t < n; t++) {
            const int64_t i = down ? t : n - 1 - t;
            double sum = get(s, s->b, b + i * step);
            for (int64_t k = down ? 0 : i + 1; k < (down ? i : n); k++)
                sum -= get(s, s->a, a + i * row + k * col) * v[k];
            v[i] = s->unit ? sum : sum / get(s, s->a, a + i * (n + 1));
        }
        for (int64_t i = 0; i < n; i++)
            put(s, s->out, b + i * step, v[i]);
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
    exec_need_scratch(x, (solve ? s->n : s->n * s->n) * (int64_t)sizeof(double));
    call->run = solve ? solve_run : cholesky_run;
    call->state = s;
    return 0;
}
