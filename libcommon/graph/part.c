/*
 * Parts of arrays. A part lies in its whole as a grid of runs: dimensions that the part
 * has keep their strides in the whole, the dimensions that it was split along add an
 * offset. Linear in the part's elements.
 */
#include "graph/part.h"

#include <string.h>

/* Where a part lies in its whole, in elements. */
struct grid {
    int64_t offset;
    int rank;
    int64_t dims[AP_MAX_RANK], stride[AP_MAX_RANK];
};

/* The whole's dimensions, and which of them are the part's own (NULL: of no interest). */
static int whole_dims(const struct ap_shape *shape, const struct ap_part *part,
                      int64_t *dims, int *split)
{
    int rank = shape->rank;

    for (int d = 0; d < rank; d++) {
        dims[d] = shape->dims[d];
        split[d] = -1;
    }
    for (int i = part ? part->n - 1 : -1; i >= 0; i--) { /* the last split first */
        const struct ap_part_split *s = &part->split[i];
        for (int d = rank++; d > s->dim; d--) {
            dims[d] = dims[d - 1];
            split[d] = split[d - 1];
        }
        dims[s->dim] = s->parts;
        split[s->dim] = i;
    }
    return rank;
}

struct ap_shape ap_part_whole(struct ap_arena *arena, const struct ap_shape *shape,
                              const struct ap_part *part)
{
    int64_t dims[2 * AP_MAX_RANK];
    int split[2 * AP_MAX_RANK];
    struct ap_shape whole = *shape;

    whole.rank = whole_dims(shape, part, dims, split);
    whole.dims = ap_arena_dup(arena, dims, (size_t)whole.rank * sizeof *dims);
    return whole;
}

int ap_part_check(const struct ap_shape *shape, const struct ap_part *part,
                  struct ap_err *err)
{
    int rank = shape->rank;

    for (int i = part ? part->n - 1 : -1; i >= 0; i--, rank++)
        if (part->split[i].dim > rank || rank == AP_MAX_RANK)
            return ap_err_set(
                err,
                "argument: no part of an array of %d dimensions is %d of %d "
                "along dimension %d",
                rank + 1, (int)part->split[i].part, (int)part->split[i].parts,
                part->split[i].dim);
    return 0;
}

bool ap_part_same_whole(const struct ap_part *a, const struct ap_part *b)
{
    bool same = a->index == b->index && a->n == b->n;

    for (int i = 0; same && i < a->n; i++)
        same =
            a->split[i].dim == b->split[i].dim && a->split[i].parts == b->split[i].parts;
    return same;
}

static struct grid grid_of(const struct ap_shape *shape, const struct ap_part *part)
{
    struct grid g = {.rank = shape->rank};
    int64_t dims[2 * AP_MAX_RANK], stride = 1;
    int split[2 * AP_MAX_RANK], own = shape->rank;

    for (int d = whole_dims(shape, part, dims, split) - 1; d >= 0; d--) {
        if (split[d] >= 0) {
            g.offset += part->split[split[d]].part * stride;
        } else {
            g.dims[--own] = dims[d];
            g.stride[own] = stride;
        }
        stride *= dims[d];
    }
    return g;
}

int64_t ap_part_place(const struct ap_shape *shape, const struct ap_part *part,
                      int64_t *stride)
{
    const struct grid g = grid_of(shape, part);

    memcpy(stride, g.stride, (size_t)g.rank * sizeof *stride);
    return g.offset;
}

/* Calls copy for every run: elements that are neighbours in both. */
static void each_run(const struct grid *g, size_t size, char *part, char *whole,
                     void (*copy)(char *part, char *whole, size_t bytes))
{
    int64_t run = 1, n = 1;
    int outer = g->rank;

    while (outer > 0 && g->stride[outer - 1] == run)
        run *= g->dims[--outer];
    for (int d = 0; d < outer; d++)
        n *= g->dims[d];
    for (int64_t i = 0; i < n && run; i++) {
        int64_t at = g->offset, rest = i;
        for (int d = outer - 1; d >= 0; d--) {
            at += rest % g->dims[d] * g->stride[d];
            rest /= g->dims[d];
        }
        copy(part + (size_t)(i * run) * size, whole + (size_t)at * size,
             (size_t)run * size);
    }
}

static void put(char *part, char *whole, size_t bytes)
{
    memcpy(whole, part, bytes);
}

static void get(char *part, char *whole, size_t bytes)
{
    memcpy(part, whole, bytes);
}

void ap_part_put(const struct ap_shape *shape, const struct ap_part *part,
                 const void *data, void *to)
{
    const struct grid g = grid_of(shape, part);

    each_run(&g, (size_t)ap_dtype_size(shape->dtype), (char *)(uintptr_t)data, to, put);
}

void ap_part_get(const struct ap_shape *shape, const struct ap_part *part,
                 const void *from, void *data)
{
    const struct grid g = grid_of(shape, part);

    each_run(&g, (size_t)ap_dtype_size(shape->dtype), data, (char *)(uintptr_t)from, get);
}
