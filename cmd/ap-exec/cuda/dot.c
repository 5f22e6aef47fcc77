/*
 * dot as matrix products (matmul.c), planned by the CPU backend's function: operands are
 * read where they lie if their free and their contracting dimensions are evenly strided,
 * else packed. Batch dimensions that are evenly strided in all three tensors are one
 * strided batch; of others, the largest is the strided batch, and there is a product for
 * each index of the rest. f8 is multiplied as bf16, which holds its values exactly;
 * operands of two types are multiplied as f32. Sums are f32, rounded once. Large products
 * with matrices whose rows do not begin at multiples of 16 bytes (a vocabulary of 50257)
 * are made a little larger, by copies with zeros: without, cublasLt takes kernels that
 * are four to seven times as slow, even where only the rows' distance is such a multiple.
 * Two products that want the same copy one after the other share it.
 */
#include "matmul.h"

enum ap_dtype matmul_type(enum ap_dtype lhs, enum ap_dtype rhs)
{
    const bool eight = ap_dtype_size(lhs) == 1 && ap_dtype_size(rhs) == 1;
    if (ap_dtype_is_float(lhs) && ap_dtype_is_float(rhs) && eight)
        return AP_BF16;
    return lhs == rhs ? lhs : AP_F32;
}

enum ap_dtype matmul_result(enum ap_dtype in, enum ap_dtype out)
{
    return in == out || !ap_dtype_is_float(in) ? out : AP_F32;
}

/* The batch dimensions, merged where all strides allow. */
struct batches {
    int rank;
    int64_t n[AP_MAX_RANK], a[AP_MAX_RANK], b[AP_MAX_RANK], c[AP_MAX_RANK];
};

static struct batches merge(const struct dot *d)
{
    struct batches s = {0};
    int64_t out = d->gemm.m * d->gemm.n, stride[AP_MAX_RANK];
    for (int i = d->n_batch - 1; i >= 0; out *= d->batch[i--])
        stride[i] = out;
    for (int i = 0; i < d->n_batch; i++) {
        const int64_t n = d->batch[i], a = d->lhs.batch[i], b = d->rhs.batch[i];
        const int r = s.rank;
        if (n == 1)
            continue;
        if (r && s.a[r - 1] == a * n && s.b[r - 1] == b * n) {
            s.n[r - 1] *= n;
        } else {
            s.n[r] = n;
            s.rank++;
        }
        s.a[s.rank - 1] = a, s.b[s.rank - 1] = b, s.c[s.rank - 1] = stride[i];
    }
    return s;
}

/* The operand's matrices: converted to `type`, packed, or unchanged. */
static struct cuda_at side_at(struct exec *x, struct cuda_call *c, const struct side *s,
                              enum ap_dtype type, int64_t *scratch)
{
    const struct cuda_at src = at_memory(x->value[s->node]);
    struct box whole = {.rank = 1, .n = {s->elems}, .src = {1}, .dst = {1}};
    if (!s->pack && s->dtype == type)
        return src;
    const struct cuda_at dst =
        at_scratch(exec_take(scratch, s->elems * ap_dtype_size(type)));
    if (s->dtype == type)
        cuda_add_box(x, c, &s->box, dst, src, ap_dtype_size(type));
    else
        cuda_add_convert(x, c, s->pack ? &s->box : &whole, dst, type, src, s->dtype);
    return dst;
}

/* ---- sizes that are multiples of 16 bytes ---- */

/* cublasLt's fast kernels read and write 16 bytes at a time. Below this size in any
 * direction copies take longer than they save. */
#define EVEN_LEAST 256
#define EVEN_BYTES 16

static int64_t even(int64_t n, int size)
{
    return ap_ceil_div(n * size, EVEN_BYTES) * EVEN_BYTES / size;
}

/* A matrix, in ld elements from row to row, that is wanted with other sizes. */
struct resized {
    struct cuda_at at;
    int64_t rows, cols, ld, to_rows, to_cols;
    int size;
};

/* Copies a matrix to one with other sizes; what is after it is zero. */
static void add_resize(struct exec *x, struct cuda_call *c, struct cuda_at dst,
                       const struct resized *r)
{
    const int64_t n = r->to_rows * r->to_cols;
    const int width = n % (EVEN_BYTES / r->size) ? 1 : EVEN_BYTES / r->size;
    const struct text_index t = text_index(n > r->rows * r->ld ? n : r->rows * r->ld);
    const char *word = text_word(r->size);
    struct cuda_at arg[2] = {dst, r->at};
    struct ap_buf b = {0};
    text_thread(&b, &t, CUDA_BLOCK, n / width);
    ap_buf_printf(&b,
                  "    %s w[%d];\n#pragma unroll\n    for (int k = 0; k < %d; k++) {\n"
                  "        const %s e = i * %d + k, row = e / %lld%s, at = e %% %lld%s;\n"
                  "        w[k] = 0;\n        if (row < %lld%s && at < %lld%s)\n"
                  "            w[k] = ((const %s *)a.p[1])[row * %lld%s + at];\n    }\n"
                  "    store_pack((%s *)a.p[0] + i * %d, w);\n",
                  word, width, width, t.u, width, (long long)r->to_cols, t.suffix,
                  (long long)r->to_cols, t.suffix, (long long)r->rows, t.suffix,
                  (long long)r->cols, t.suffix, word, (long long)r->ld, t.suffix, word,
                  width);
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(n / width, CUDA_BLOCK), 1, 2, arg});
}

/* The copy at the beginning of the scratch memory that the call prepared last makes: the
 * logits' gradient is an operand of two products, one after the other. */
static struct {
    const struct exec *x; /* the call's */
    int64_t serial;       /* of the call, or 0 */
    struct resized what;
} kept;

static bool is_resized(const struct resized *r)
{
    return r->to_rows != r->rows || r->to_cols != r->cols;
}

static int64_t resized_bytes(const struct resized *r)
{
    return r->to_rows * r->to_cols * r->size;
}

/* Whether the copy is there when the call that is prepared now runs: nothing runs
 * between. */
static bool is_kept(const struct exec *x, const struct resized *r)
{
    const struct resized *k = &kept.what;
    return kept.serial > 0 && kept.serial == cuda_dev.n_prepared - 1 && kept.x == x &&
           is_resized(r) && !r->at.scratch && k->at.p == r->at.p && k->rows == r->rows &&
           k->cols == r->cols && k->ld == r->ld && k->to_rows == r->to_rows &&
           k->to_cols == r->to_cols && k->size == r->size && !x->place.shared &&
           ap_mesh_microbatches(&x->prog->mesh) == 1;
}

/* Where the matrix lies with the sizes that are wanted: its own place, or that of a copy,
 * whose row has *ld elements. */
static struct cuda_at add_resized(struct exec *x, struct cuda_call *c,
                                  const struct resized *r, int64_t *ld, bool again,
                                  int64_t *scratch)
{
    if (!is_resized(r))
        return r->at;
    *ld = r->to_cols;
    if (again && is_kept(x, r))
        return at_scratch(0);
    const struct cuda_at dst = at_scratch(exec_take(scratch, resized_bytes(r)));
    add_resize(x, c, dst, r);
    return dst;
}

/* A large product with those of its sizes even that lie side by side in a matrix whose
 * rows are not. */
static void make_even(struct exec *x, struct cuda_call *c, struct matmul *m,
                      int64_t *scratch)
{
    const int in = ap_dtype_size(m->in), out = ap_dtype_size(m->out);
    const bool a = m->lda * in % EVEN_BYTES, b = m->ldb * in % EVEN_BYTES;
    const bool first = *scratch == 0;
    const struct matmul was = *m;
    if (m->m < EVEN_LEAST || m->n < EVEN_LEAST || m->k < EVEN_LEAST || in > 4)
        return;
    if (a && m->ta)
        m->m = even(m->m, in);
    if ((a && !m->ta) || (b && m->tb))
        m->k = even(m->k, in);
    if ((b && !m->tb) || m->ldc * out % EVEN_BYTES)
        m->n = even(m->n, out < in ? out : in);
    const struct resized lhs =
        was.ta ? (struct resized){m->a, was.k, was.m, was.lda, m->k, m->m, in}
               : (struct resized){m->a, was.m, was.k, was.lda, m->m, m->k, in};
    const struct resized rhs =
        was.tb ? (struct resized){m->b, was.n, was.k, was.ldb, m->n, m->k, in}
               : (struct resized){m->b, was.k, was.n, was.ldb, m->k, m->n, in};
    const bool again = first && (is_kept(x, &lhs) || is_kept(x, &rhs));
    if (again)
        exec_take(scratch, resized_bytes(&kept.what));
    m->a = add_resized(x, c, &lhs, &m->lda, again, scratch);
    m->b = add_resized(x, c, &rhs, &m->ldb, again, scratch);
    if (first && !again && (is_resized(&lhs) || is_resized(&rhs)))
        kept.what = is_resized(&lhs) ? lhs : rhs;
    kept.x = x;
    kept.serial = again || (first && *scratch > 0) ? cuda_dev.n_prepared : 0;
    if (m->m == was.m && m->n == was.n)
        return;
    m->ldc = m->n;
    m->c = at_scratch(exec_take(scratch, m->m * m->n * out));
}

/* One product for each index of the batches but the largest. */
static int add_products(struct exec *x, struct cuda_call *c, struct matmul m,
                        const struct batches *s, struct ap_err *err)
{
    const int in = ap_dtype_size(m.in), out = ap_dtype_size(m.out);
    int top = -1;
    int64_t n = 1, at[AP_MAX_RANK] = {0};
    for (int i = 0; i < s->rank; i++)
        top = top < 0 || s->n[i] > s->n[top] ? i : top;
    for (int i = 0; i < s->rank; i++)
        n *= i == top ? 1 : s->n[i];
    m.batch = top < 0 ? 1 : s->n[top];
    m.stride_a = top < 0 ? 0 : s->a[top];
    m.stride_b = top < 0 ? 0 : s->b[top];
    m.stride_c = top < 0 ? 0 : s->c[top];
    for (int64_t q = 0; q < n; q++) {
        struct matmul one = m;
        for (int i = 0; i < s->rank; i++) {
            one.a = at_plus(one.a, at[i] * s->a[i] * in);
            one.b = at_plus(one.b, at[i] * s->b[i] * in);
            one.c = at_plus(one.c, at[i] * s->c[i] * out);
        }
        if (cuda_add_matmul(x, c, &one, err))
            return -1;
        for (int i = s->rank - 1; i >= 0; i--) {
            if (i == top)
                continue;
            if (++at[i] < s->n[i])
                break;
            at[i] = 0;
        }
    }
    return 0;
}

int cuda_dot_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct dot *d = cuda_state(x, call, cpu_dot_prepare, err);
    if (!d)
        return -1;
    if (!text_computes(v->shape.dtype))
        return exec_unsupported(x, v, err, ap_dtype_name(v->shape.dtype));
    struct cuda_call *c = cuda_call_new(x, call);
    const enum ap_dtype in = matmul_type(d->lhs.dtype, d->rhs.dtype);
    const enum ap_dtype out = matmul_result(in, d->dtype);
    const int64_t elems = ap_shape_elems(&v->shape);
    const struct batches s = merge(d);
    int64_t scratch = 0;
    if (call == x->calls) /* an exec that is closed may have had the same addresses */
        kept.serial = 0;
    if (d->gemm.k == 0 || elems == 0) {
        cuda_add_zero(x, c, at_memory(d->out), ap_shape_bytes(&v->shape));
        return 0;
    }
    struct matmul m = {.in = in,
                       .out = out,
                       .tf32 = cuda_dev.opts.tf32 &&
                               v->attrs->operand_precision[0] == AP_PRECISION_DEFAULT &&
                               v->attrs->operand_precision[1] == AP_PRECISION_DEFAULT,
                       .ta = d->gemm.ta,
                       .tb = d->gemm.tb,
                       .m = d->gemm.m,
                       .n = d->gemm.n,
                       .k = d->gemm.k,
                       .lda = d->gemm.lda,
                       .ldb = d->gemm.ldb,
                       .ldc = d->gemm.ldc,
                       .a = side_at(x, c, &d->lhs, in, &scratch),
                       .c = at_memory(d->out)};
    m.b = side_at(x, c, &d->rhs, in, &scratch);
    if (out != d->dtype)
        m.c = at_scratch(exec_take(&scratch, elems * ap_dtype_size(out)));
    const struct matmul was = m;
    if (ap_dtype_is_float(in) && s.rank == 0)
        make_even(x, c, &m, &scratch);
    m.workspace = cuda_workspace(&scratch, matmul_workspace(&m));
    exec_need_scratch(x, scratch);
    if (add_products(x, c, m, &s, err))
        return -1;
    const struct box whole = {.rank = 1, .n = {elems}, .src = {1}, .dst = {1}};
    if (m.m != was.m || m.n != was.n)
        add_resize(x, c, was.c,
                   &(struct resized){m.c, was.m, was.n, m.ldc, was.m, was.n,
                                     ap_dtype_size(out)});
    m.c = was.c;
    if (out != d->dtype)
        cuda_add_convert(x, c, &whole, at_memory(d->out), d->dtype, m.c, out);
    return 0;
}
