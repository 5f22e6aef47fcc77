#include "run/arrays.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "step/exec.h"
#include "graph/part.h"

/* The number of the parameter's file. */
static int file_number(const struct array_of *of)
{
    const struct ap_part *part = of->param->attrs->argument;
    return part ? part->index : of->number;
}

int arrays_open(const struct arrays *a, struct ap_arena *arena, const struct array_of *of,
                struct array_file *out, bool *missing, struct ap_err *err)
{
    const struct ap_shape whole =
        ap_part_whole(arena, of->shape, of->param->attrs->argument);
    *out = (struct array_file){
        .path = ap_arena_printf(arena, "%s/%d.npy", a->dir, file_number(of))};
    return ap_npy_open(out->path, &whole, &out->file, &out->at, missing, err);
}

int arrays_read(struct arrays *a, struct ap_arena *arena, const struct array_of *of,
                void **out, bool *missing, struct ap_err *err)
{
    const struct ap_part *part = of->param->attrs->argument;
    const struct ap_shape *shape = of->shape;
    const int index = file_number(of);
    const char *path = ap_arena_printf(arena, "%s/%d.npy", a->dir, index);

    *missing = false;
    if (!part || !part->n)
        return ap_npy_read_shape(path, shape, out, missing, err);
    const struct ap_shape whole = ap_part_whole(arena, shape, part);
    if (!a->whole || a->index != index || !ap_shape_equal(&a->shape, &whole)) {
        arrays_free(a);
        if (ap_npy_read_shape(path, &whole, &a->whole, missing, err))
            return -1;
        a->index = index;
        a->shape = whole;
        a->shape.dims = memcpy(a->dims, whole.dims, (size_t)whole.rank * sizeof *a->dims);
    }
    *out = ap_xrealloc(NULL, (size_t)ap_shape_bytes(shape) + 1);
    ap_part_get(shape, part, a->whole, *out);
    return 0;
}

void arrays_free(struct arrays *a)
{
    free(a->whole);
    a->whole = NULL;
}

int arrays_check(const char *dir, struct ap_err *err)
{
    struct ap_buf path = {0};
    struct stat st;
    int rc = 0;
    ap_buf_printf(&path, "%s/" ARRAYS_UNFINISHED, dir);
    if (!lstat(path.data, &st))
        rc = ap_err_set(err,
                        "%s: a run has not ended that writes these files: if it was "
                        "killed, remove them; those of before are as they were",
                        path.data);
    path.len = 0;
    ap_buf_printf(&path, "%s/" ARRAYS_FINISHED, dir);
    if (!lstat(path.data, &st))
        rc = ap_err_set(err,
                        "%s: a run has not ended that moves these files to the folder "
                        "above: if it was killed, move the rest, and remove this folder",
                        path.data);
    ap_buf_free(&path);
    return rc;
}

int arrays_write(const char *dir, const struct ap_graph *g, void *const *data, int *k,
                 struct ap_err *err)
{
    const int first = *k;
    const struct ap_node *v = &g->nodes[g->params[first]];
    const struct ap_part *part = v->attrs->argument;
    const struct placement place = exec_placement(v);
    struct ap_arena arena = {0};
    const struct ap_shape whole = ap_part_whole(&arena, &place.global, part);
    const char *path =
        ap_arena_printf(&arena, "%s/%d.npy", dir, part ? part->index : first);
    const bool split = part && part->n;
    char *joined = split ? ap_xrealloc(NULL, (size_t)ap_shape_bytes(&whole) + 1) : NULL;
    bool has_all = true;

    for (; *k < g->n_params; ++*k) {
        const struct ap_node *other = &g->nodes[g->params[*k]];
        const struct ap_part *its = other->attrs->argument;
        const struct placement there = exec_placement(other);
        if (*k > first && (!split || !its || !ap_part_same_whole(part, its) ||
                           !ap_shape_equal(&there.global, &place.global)))
            break;
        has_all &= data[*k] != NULL;
        if (split && data[*k])
            ap_part_put(&place.global, its, data[*k], joined);
    }
    int rc = has_all ? ap_npy_write(path, &whole, split ? joined : data[first], err) : 0;
    free(joined);
    ap_arena_free(&arena);
    return rc;
}
