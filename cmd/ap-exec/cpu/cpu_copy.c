/*
 * Copies between strided boxes: the one loop of transpose, slice, pad, concatenate,
 * reverse, dynamic slices and the packing of collectives. Dimensions that run on in both
 * tensors are merged; the innermost loop is a memcpy where both are contiguous, and a
 * blocked 2-D transpose where source and target are contiguous in different dimensions.
 */
#include "cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

void box_add(struct box *b, int64_t n, int64_t src, int64_t dst)
{
    b->n[b->rank] = n;
    b->src[b->rank] = src;
    b->dst[b->rank++] = dst;
}

void cpu_strides(const struct ap_shape *s, int64_t *stride)
{
    int64_t run = 1;
    for (int d = s->rank - 1; d >= 0; d--) {
        stride[d] = run;
        run *= s->dims[d];
    }
}

void box_swap(struct box *b, int i, int j)
{
    const int64_t n = b->n[i], s = b->src[i], d = b->dst[i];
    b->n[i] = b->n[j], b->src[i] = b->src[j], b->dst[i] = b->dst[j];
    b->n[j] = n, b->src[j] = s, b->dst[j] = d;
}

void box_finish(struct box *b)
{
    int r = 0;
    for (int i = 0; i < b->rank; i++) {
        if (b->n[i] == 1)
            continue;
        box_swap(b, r++, i);
    }
    b->rank = r;
    /* target strides fall: it is written in order */
    for (int i = 1; i < r; i++)
        for (int j = i; j > 0 && llabs(b->dst[j - 1]) < llabs(b->dst[j]); j--)
            box_swap(b, j, j - 1);
    r = 0;
    for (int i = 0; i < b->rank; i++) {
        if (r && b->src[r - 1] == b->src[i] * b->n[i] &&
            b->dst[r - 1] == b->dst[i] * b->n[i]) {
            b->n[r - 1] *= b->n[i];
            b->src[r - 1] = b->src[i];
            b->dst[r - 1] = b->dst[i];
        } else {
            b->n[r] = b->n[i], b->src[r] = b->src[i], b->dst[r++] = b->dst[i];
        }
    }
    b->rank = r;
    /* a dimension in which the source is contiguous comes last but one: 2-D blocks */
    for (int i = 0; i < r - 2; i++) {
        if (b->src[i] != 1 || b->src[r - 1] == 1)
            continue;
        for (int j = i; j < r - 2; j++)
            box_swap(b, j, j + 1);
        break;
    }
}

#define ROW(T)                              \
    {                                       \
        T *d = dst;                         \
        const T *s = src;                   \
        if (sd == 1 && ss == 0) {           \
            const T v = *s;                 \
            for (int64_t i = 0; i < n; i++) \
                d[i] = v;                   \
        } else if (sd == 1) {               \
            for (int64_t i = 0; i < n; i++) \
                d[i] = s[i * ss];           \
        } else {                            \
            for (int64_t i = 0; i < n; i++) \
                d[i * sd] = s[i * ss];      \
        }                                   \
    }

static void copy_row(void *dst, int64_t sd, const void *src, int64_t ss, int64_t n,
                     int size)
{
    if (sd == 1 && ss == 1) {
        memcpy(dst, src, (size_t)(n * size));
        return;
    }
    CPU_BY_SIZE(size, ROW)
}

#define BLOCK                                                                 \
    32 /* elements: two blocks of 32 x 32 x 8 bytes fit the first-level cache \
        */
#define PLANE(T)                                                             \
    {                                                                        \
        T *d = dst;                                                          \
        const T *s = src;                                                    \
        for (int64_t i0 = 0; i0 < n[0]; i0 += BLOCK)                         \
            for (int64_t j0 = 0; j0 < n[1]; j0 += BLOCK) {                   \
                const int64_t i1 = i0 + BLOCK < n[0] ? i0 + BLOCK : n[0];    \
                const int64_t j1 = j0 + BLOCK < n[1] ? j0 + BLOCK : n[1];    \
                for (int64_t i = i0; i < i1; i++)                            \
                    for (int64_t j = j0; j < j1; j++)                        \
                        d[i * sd[0] + j * sd[1]] = s[i * ss[0] + j * ss[1]]; \
            }                                                                \
    }

/* The last two dimensions, blocked so that both sides stay in the cache. */
static void copy_plane(void *dst, const int64_t *sd, const void *src, const int64_t *ss,
                       const int64_t *n, int size)
{
    CPU_BY_SIZE(size, PLANE)
}

/* A box's part: n[d] indices of dimension d, the first of them at dst and src. */
static void copy_part(const struct box *b, const int64_t *n, void *dst, const void *src,
                      int size)
{
    const int r = b->rank;
    const bool plane = r >= 2 && b->src[r - 2] == 1 && b->src[r - 1] != 1;
    const int inner = plane ? 2 : 1;
    const int outer = r - inner;
    int64_t at[AP_MAX_RANK + 2] = {0}, from = 0, to = 0;
    do {
        char *d = (char *)dst + to * size;
        const char *s = (const char *)src + from * size;
        if (plane)
            copy_plane(d, b->dst + outer, s, b->src + outer, n + outer, size);
        else
            copy_row(d, b->dst[outer], s, b->src[outer], n[outer], size);
    } while (cpu_next(outer, n, at, b->src, &from, b->dst, &to));
}

/* Bytes of a task. */
#define TASK_BYTES (1 << 17)

struct copy {
    const struct box *b;
    void *dst;
    const void *src;
    int size;
    /* Indices of the first dimension in one task; where it is one, of the second. */
    int64_t each, each_second, n_second;
};

static void run_copy(void *ctx, int64_t task, int thread)
{
    (void)thread;
    const struct copy *c = ctx;
    const int64_t each[2] = {c->each, c->each_second};
    const int64_t lo[2] = {task / c->n_second * each[0], task % c->n_second * each[1]};
    int64_t n[AP_MAX_RANK + 2], from = 0, to = 0;
    memcpy(n, c->b->n, sizeof n);
    for (int d = 0; d < 2 && d < c->b->rank; d++) {
        n[d] = n[d] - lo[d] < each[d] ? n[d] - lo[d] : each[d];
        from += lo[d] * c->b->src[d];
        to += lo[d] * c->b->dst[d];
    }
    copy_part(c->b, n, (char *)c->dst + to * c->size,
              (const char *)c->src + from * c->size, c->size);
}

void box_copy(const struct box *b, void *dst, const void *src, int size)
{
    int64_t bytes = size;
    for (int i = 0; i < b->rank; i++) {
        if (b->n[i] <= 0)
            return;
        bytes *= b->n[i];
    }
    if (b->rank == 0) {
        memcpy(dst, src, (size_t)size);
        return;
    }
    if (bytes <= TASK_BYTES || cpu_n_threads() == 1) {
        copy_part(b, b->n, dst, src, size);
        return;
    }
    struct copy c = {b, dst, src, size, b->n[0] * TASK_BYTES / bytes, 1, 1};
    if (b->rank > 1)
        c.each_second = b->n[1];
    if (c.each < 1 && b->rank > 1) {
        c.n_second = ap_ceil_div(bytes / b->n[0], TASK_BYTES);
        c.each_second = ap_ceil_div(ap_ceil_div(b->n[1], c.n_second), BLOCK) * BLOCK;
        c.n_second = ap_ceil_div(b->n[1], c.each_second);
    }
    c.each = c.each < 1 ? 1 : c.each;
    if (b->rank == 2 && b->src[0] == 1)
        c.each = ap_ceil_div(c.each, BLOCK) * BLOCK; /* whole blocks of a plane */
    cpu_each(ap_ceil_div(b->n[0], c.each) * c.n_second, run_copy, &c);
}
