/*
 * cholesky and triangular-solve of f32 and f64, in double precision and rounded once, as
 * on the CPU. A matrix is factored by one block of threads, column by column: n steps of
 * up to n^2 / 2 updates each. A right-hand side is solved by one thread, n^2 operations
 * one after the other. Both are fast for many matrices or sides, and right for one.
 */
#include "cuda.h"

/* Threads that factor a matrix: n^2 / 2 updates are a step's work. */
static int factor_block(int64_t n)
{
    return n <= 32 ? 32 : 256;
}

/* A = L L^T, of the upper triangle by its transpose: U = L^T. */
static void put_cholesky(struct ap_buf *b, const struct linalg *s, int block)
{
    const char *type = text_storage(s->dtype);
    const long long n = s->n;
    ap_buf_printf(b,
                  "    const int64_t n = %lld, q = (int64_t)blockIdx.x * n * n;\n"
                  "    const int tid = threadIdx.x;\n    bool bad = false;\n"
                  "    const %s *from = (const %s *)a.p[0] + q;\n"
                  "    %s *to = (%s *)a.p[1] + q;\n"
                  "    double *m = (double *)a.p[2] + q;\n"
                  "    for (int64_t i = tid; i < n * n; i += %d)\n"
                  "        m[i] = from[%s];\n",
                  n, type, type, type, type, block, s->lower ? "i" : "i % n * n + i / n");
    ap_buf_printf(
        b,
        "    for (int64_t k = 0; k < n; k++) {\n"
        "        __syncthreads();\n"
        "        const double pivot = m[k * n + k], root = sqrt(pivot);\n"
        "        const int64_t rest = n - k - 1;\n"
        "        bad = bad || !(pivot > 0);\n"
        "        __syncthreads();\n"
        "        for (int64_t i = k + tid; i < n; i += %d)\n"
        "            m[i * n + k] = i == k ? root : m[i * n + k] / root;\n"
        "        __syncthreads();\n"
        "        for (int64_t e = tid; e < rest * rest; e += %d) {\n"
        "            const int64_t i = k + 1 + e / rest, j = k + 1 + e %% rest;\n"
        "            if (j <= i)\n"
        "                m[i * n + j] -= m[i * n + k] * m[j * n + k];\n"
        "        }\n    }\n    __syncthreads();\n",
        block, block);
    ap_buf_printf(
        b,
        "    for (int64_t i = tid; i < n * n; i += %d) {\n"
        "        const int64_t row = i / n, col = i %% n;\n"
        "        double v = m[%s];\n"
        "        v = bad ? bits_as<double>((uint64_t)0x7ff8000000000000ull) : v;\n"
        "        to[i] = (%s)(%s ? v : 0);\n    }\n",
        block, s->lower ? "i" : "col * n + row", type,
        s->lower ? "col <= row" : "col >= row");
}

/* op(A) x = b by one thread; X op(A) = B as op(A)^T X^T = B^T. */
static void put_solve(struct ap_buf *b, const struct linalg *s)
{
    const struct text_index t = {true, "uint64_t", "int64_t", "ull"};
    const char *type = text_storage(s->dtype);
    const long long n = s->n, m = s->m;
    const bool transposed = s->transpose == s->left, forward = s->lower != transposed;
    text_thread(b, &t, CUDA_BLOCK, s->batch * m);
    ap_buf_printf(b,
                  "    const int64_t n = %lld, q = i / %lldull, r = i %% %lldull;\n"
                  "    const int64_t at = q * n * %lld + r * %lld;\n"
                  "    const %s *m = (const %s *)a.p[0] + q * n * n;\n"
                  "    double *v = (double *)a.p[3] + i;\n"
                  "    for (int64_t s = 0; s < n; s++) {\n"
                  "        const int64_t k = %s;\n"
                  "        double sum = ((const %s *)a.p[1])[at + k * %lld];\n"
                  "        for (int64_t t = 0; t < s; t++) {\n"
                  "            const int64_t j = %s;\n"
                  "            sum -= (double)m[%s] * v[j * %lld];\n        }\n",
                  n, m, m, m, s->left ? 1ll : n, type, type, forward ? "s" : "n - 1 - s",
                  type, s->left ? m : 1ll, forward ? "t" : "n - 1 - t",
                  transposed ? "j * n + k" : "k * n + j", (long long)s->batch * m);
    if (!s->unit)
        ap_buf_puts(b, "        sum /= (double)m[k * n + k];\n");
    ap_buf_printf(b,
                  "        v[k * %lld] = sum;\n"
                  "        ((%s *)a.p[2])[at + k * %lld] = (%s)sum;\n    }\n",
                  (long long)s->batch * m, type, s->left ? m : 1ll, type);
}

int cuda_linalg_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const bool solve = v->op == AP_OP_TRIANGULAR_SOLVE;
    const struct linalg *s = cuda_state(x, call, cpu_linalg_prepare, err);
    if (!s)
        return -1;
    struct cuda_call *c = cuda_call_new(x, call);
    const int block = solve ? CUDA_BLOCK : factor_block(s->n);
    const int64_t sides = ap_mul64(s->batch, s->m);
    struct cuda_at arg[4] = {at_memory(s->a), at_memory(s->out), at_scratch(0)};
    struct ap_buf b = {0};
    if (ap_shape_elems(&v->shape) == 0)
        return 0;
    if (solve) {
        arg[1] = at_memory(s->b);
        arg[2] = at_memory(s->out);
        arg[3] = at_scratch(0);
        put_solve(&b, s);
        exec_need_scratch(x, ap_mul64(sides, s->n * 8));
    } else {
        put_cholesky(&b, s, block);
        exec_need_scratch(x, ap_mul64(s->batch, s->n * s->n * 8));
    }
    const int64_t blocks = solve ? ap_ceil_div(sides, block) : s->batch;
    cuda_add_kernel(x, c, &b,
                    &(struct cuda_launch){block, blocks, 1, solve ? 4 : 3, arg});
    return 0;
}
