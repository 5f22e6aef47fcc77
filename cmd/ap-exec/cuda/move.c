/*
 * Operators that move elements, and the copies of boxes that others need. A box is copied
 * in the order of its target, so that writes are coalesced; where the source is
 * contiguous in another dimension, tiles of 32 x 32 go through shared memory, so that
 * reads are coalesced, too. Rows that lie alike in both go in pieces of up to 16 bytes.
 */
#include "cuda.h"

#include <stdio.h>
#include <string.h>

/* Elements of a tile's side: a warp reads and writes whole rows of it. */
#define TILE 32

static int64_t box_elems(const struct box *b)
{
    int64_t n = 1;
    for (int d = 0; d < b->rank; d++)
        n *= b->n[d];
    return n;
}

/* The largest offset that the box's strides reach, to choose the index type. */
static int64_t box_span(const struct box *b)
{
    int64_t s = 1, d = 1;
    for (int i = 0; i < b->rank; i++) {
        s += (b->n[i] - 1) * (b->src[i] < 0 ? -b->src[i] : b->src[i]);
        d += (b->n[i] - 1) * (b->dst[i] < 0 ? -b->dst[i] : b->dst[i]);
    }
    return s > d ? s : d;
}

/* ---- in pieces of several elements ---- */

static bool divides(const struct box *b, struct cuda_at dst, struct cuda_at src, int k,
                    int bytes)
{
    const int last = b->rank - 1;
    if (b->rank == 0 || b->src[last] != 1 || b->dst[last] != 1 || b->n[last] % k)
        return false;
    for (int d = 0; d < last; d++)
        if (b->src[d] % k || b->dst[d] % k)
            return false;
    return (uintptr_t)dst.p % (uintptr_t)bytes == 0 &&
           (uintptr_t)src.p % (uintptr_t)bytes == 0;
}

/* Takes k elements as one where rows and addresses allow; returns its bytes. */
static int widen(struct box *b, struct cuda_at dst, struct cuda_at src, int size)
{
    for (int bytes = 16; bytes > size; bytes /= 2) {
        const int k = bytes / size;
        if (!divides(b, dst, src, k, bytes))
            continue;
        b->n[b->rank - 1] /= k;
        for (int d = 0; d < b->rank - 1; d++) {
            b->src[d] /= k;
            b->dst[d] /= k;
        }
        return bytes;
    }
    return size;
}

/* ---- kernels ---- */

static void add_plain(struct exec *x, struct cuda_call *c, const struct box *b,
                      const struct cuda_at arg[2], int size)
{
    const int64_t n = box_elems(b), span = box_span(b);
    const struct text_index t = text_index(n > span ? n : span);
    struct ap_buf text = {0};
    text_thread(&text, &t, CUDA_BLOCK, n);
    ap_buf_printf(&text, "    ((%s *)a.p[0])[", text_word(size));
    text_offset(&text, &t, "i", b->rank, b->n, b->dst);
    ap_buf_printf(&text, "] = ((const %s *)a.p[1])[", text_word(size));
    text_offset(&text, &t, "i", b->rank, b->n, b->src);
    ap_buf_puts(&text, "];\n");
    const struct cuda_launch l = {CUDA_BLOCK, ap_ceil_div(n, CUDA_BLOCK), 1, 2,
                                  (struct cuda_at *)(uintptr_t)arg};
    cuda_add_kernel(x, c, &text, &l);
}

/* The last two dimensions by tiles: the source is contiguous in the last but one. */
static void add_tiled(struct exec *x, struct cuda_call *c, const struct box *b,
                      const struct cuda_at arg[2], int size)
{
    const int p = b->rank - 2, q = b->rank - 1;
    const int64_t tp = ap_ceil_div(b->n[p], TILE), tq = ap_ceil_div(b->n[q], TILE);
    const int64_t n = box_elems(b), span = box_span(b);
    const struct text_index t = text_index(n > span ? n : span);
    struct ap_buf text = {0};
    char outer[48];
    snprintf(outer, sizeof outer, "blockIdx.x / %lldu", (long long)(tp * tq));
    ap_buf_printf(&text,
                  "    __shared__ %s tile[%d][%d];\n"
                  "    const int tx = threadIdx.x %% %d, ty = threadIdx.x / %d;\n"
                  "    const %s q = blockIdx.x %% %lldu * %d, "
                  "p = blockIdx.x / %lldu %% %lldu * %d;\n",
                  text_word(size), TILE, TILE + 1, TILE, TILE, t.s, (long long)tq, TILE,
                  (long long)tq, (long long)tp, TILE);
    ap_buf_printf(&text, "    const %s from = ", t.s);
    text_offset(&text, &t, outer, p, b->n, b->src);
    ap_buf_printf(&text, ", to = ");
    text_offset(&text, &t, outer, p, b->n, b->dst);
    ap_buf_printf(&text,
                  ";\n    for (int k = ty; k < %d; k += %d)\n"
                  "        if (p + tx < %lld && q + k < %lld)\n"
                  "            tile[k][tx] = ((const %s *)a.p[1])"
                  "[from + p + tx + (q + k) * (%lld)];\n"
                  "    __syncthreads();\n",
                  TILE, CUDA_BLOCK / TILE, (long long)b->n[p], (long long)b->n[q],
                  text_word(size), (long long)b->src[q]);
    ap_buf_printf(&text,
                  "    for (int k = ty; k < %d; k += %d)\n"
                  "        if (q + tx < %lld && p + k < %lld)\n"
                  "            ((%s *)a.p[0])[to + (q + tx) * (%lld) + (p + k) * (%lld)] "
                  "= tile[tx][k];\n",
                  TILE, CUDA_BLOCK / TILE, (long long)b->n[q], (long long)b->n[p],
                  text_word(size), (long long)b->dst[q], (long long)b->dst[p]);
    const struct cuda_launch l = {CUDA_BLOCK, n / (b->n[p] * b->n[q]) * tp * tq, 1, 2,
                                  (struct cuda_at *)(uintptr_t)arg};
    cuda_add_kernel(x, c, &text, &l);
}

void cuda_add_box(struct exec *x, struct cuda_call *c, const struct box *b,
                  struct cuda_at dst, struct cuda_at src, int size)
{
    struct box w = *b;
    const struct cuda_at arg[2] = {dst, src};
    const int64_t n = box_elems(b);
    for (int d = 0; d < b->rank; d++)
        if (b->n[d] <= 0)
            return;
    if (w.rank == 0 || (w.rank == 1 && w.src[0] == 1 && w.dst[0] == 1)) {
        cuda_add_copy(x, c, dst, src, n * size);
        return;
    }
    const int p = w.rank - 2;
    if (p >= 0 && w.src[p] == 1 && w.src[p + 1] != 1 && w.n[p] >= TILE / 2 &&
        w.n[p + 1] >= TILE / 2)
        add_tiled(x, c, &w, arg, size);
    else
        add_plain(x, c, &w, arg, widen(&w, dst, src, size));
}

void cuda_add_convert(struct exec *x, struct cuda_call *c, const struct box *b,
                      struct cuda_at dst, enum ap_dtype to, struct cuda_at src,
                      enum ap_dtype from)
{
    const int64_t n = box_elems(b), span = box_span(b);
    const struct text_index t = text_index(n > span ? n : span);
    struct ap_buf text = {0};
    if (n <= 0)
        return;
    text_thread(&text, &t, CUDA_BLOCK, n);
    ap_buf_printf(&text, "    store((%s *)a.p[0] + ", text_storage(to));
    text_offset(&text, &t, "i", b->rank, b->n, b->dst);
    ap_buf_printf(&text, ", (%s)load((const %s *)a.p[1] + ", text_register(to),
                  text_storage(from));
    text_offset(&text, &t, "i", b->rank, b->n, b->src);
    ap_buf_puts(&text, "));\n");
    struct cuda_at arg[2] = {dst, src};
    const struct cuda_launch l = {CUDA_BLOCK, ap_ceil_div(n, CUDA_BLOCK), 1, 2, arg};
    cuda_add_kernel(x, c, &text, &l);
}

void cuda_add_fill(struct exec *x, struct cuda_call *c, struct cuda_at dst, int64_t n,
                   struct cuda_at value, int size)
{
    const bool packed = n % (16 / size) == 0 && (uintptr_t)dst.p % 16 == 0;
    const int width = packed ? 16 / size : 1;
    const struct text_index t = text_index(n);
    struct ap_buf text = {0};
    if (n <= 0)
        return;
    text_thread(&text, &t, CUDA_BLOCK, n / width);
    ap_buf_printf(&text,
                  "    const %s v = *(const %s *)a.p[1];\n"
                  "    %s w[%d];\n"
                  "#pragma unroll\n    for (int k = 0; k < %d; k++)\n        w[k] = v;\n"
                  "    store_pack((%s *)a.p[0] + i * %d, w);\n",
                  text_word(size), text_word(size), text_word(size), width, width,
                  text_word(size), width);
    struct cuda_at arg[2] = {dst, value};
    const struct cuda_launch l = {CUDA_BLOCK, ap_ceil_div(n / width, CUDA_BLOCK), 1, 2,
                                  arg};
    cuda_add_kernel(x, c, &text, &l);
}

/* ---- the operators ---- */

void *cuda_state(struct exec *x, struct call *call, cpu_prepare_fn *fn,
                 struct ap_err *err)
{
    const int64_t scratch = x->scratch_bytes;
    if (fn(x, call, err))
        return NULL;
    x->scratch_bytes = scratch;
    return call->state;
}

int cuda_move_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    cpu_prepare_fn *fn = v->op == AP_OP_PAD           ? cpu_pad_prepare
                         : v->op == AP_OP_CONCATENATE ? cpu_concat_prepare
                                                      : cpu_move_prepare;
    const struct move *m = cuda_state(x, call, fn, err);
    if (!m)
        return -1;
    struct cuda_call *c = cuda_call_new(x, call);
    if (m->fill_value)
        cuda_add_fill(x, c, at_memory(m->fill_dst), m->fill_n, at_memory(m->fill_value),
                      m->size);
    for (int i = 0; i < m->n; i++)
        cuda_add_box(x, c, &m->box[i], at_memory(m->dst[i]), at_memory(m->src[i]),
                     m->size);
    return 0;
}

/* The device keeps the value, or the whole tensor: its buffer is used by others, too. */
int cuda_constant_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct move *m = cuda_state(x, call, cpu_constant_prepare, err);
    if (!m)
        return -1;
    struct cuda_call *c = cuda_call_new(x, call);
    const void *host = m->n ? (const void *)m->src[0] : m->fill_value;
    const int64_t bytes = m->n ? box_elems(&m->box[0]) * m->size : m->size;
    void *kept = host ? cuda_upload(x, c, host, bytes) : NULL;
    if (m->n)
        cuda_add_copy(x, c, at_memory(m->dst[0]), at_memory(kept), bytes);
    else if (host)
        cuda_add_fill(x, c, at_memory(m->fill_dst), m->fill_n, at_memory(kept), m->size);
    return 0;
}
