/* Arrays in files, as the exported step has them, and the parameters that they hold. */
#ifndef EXEC_ARRAYS_H
#define EXEC_ARRAYS_H

#include "doc/npy.h"

/*
 * Files of arguments, DIR/K.npy: an array K of the step that a program's parameters are
 * the parts of (their attribute argument), or parameter K. The last whole array read
 * stays until another one is asked for.
 */
struct arrays {
    const char *dir;
    int index;             /* of `whole`, which is malloc's; NULL: none yet */
    struct ap_shape shape; /* its dimensions are in dims */
    int64_t dims[AP_MAX_RANK];
    void *whole;
};
/* A file that is read in parts. */
struct array_file {
    FILE *file;       /* NULL: none, or its elements are of another type */
    const char *path; /* arena */
    int64_t at;       /* bytes before the first element */
};
/* Opens the file of the array that is, or contains, parameter k, as ap_npy_open does. */
int arrays_open(const struct arrays *a, struct ap_arena *arena,
                const struct ap_node *param, int k, const struct ap_shape *shape,
                struct array_file *out, bool *missing, struct ap_err *err);
/* Reads parameter number k from its file, as the whole array of `shape`; the caller frees
 * *out. -1 with err; *missing: there is no such file. */
int arrays_read(struct arrays *a, struct ap_arena *arena, const struct ap_node *param,
                int k, const struct ap_shape *shape, void **out, bool *missing,
                struct ap_err *err);
void arrays_free(struct arrays *a);

/*
 * Writes parameter *k of g, whose whole array is data[*k] (NULL: not there, nothing is
 * written), or, where it is a part of an argument of the step, the whole from its parts,
 * which are neighbours; *k is after them then.
 */
int arrays_write(const char *dir, const struct ap_graph *g, void *const *data, int *k,
                 struct ap_err *err);

#endif
