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
/* Folders of DIR while a run writes it: of files that are not all there yet, and of files
 * that are, and are moved to DIR. */
#define ARRAYS_UNFINISHED "ap-exec-unfinished"
#define ARRAYS_FINISHED   "ap-exec-finished"

/* A program's parameter as an array of the step. */
struct array_of {
    const struct ap_node *param;
    int number;                   /* among the step's parameters */
    const struct ap_shape *shape; /* the whole array's */
};
/* A file that is read in parts. */
struct array_file {
    FILE *file;       /* NULL: none, or its elements are of another type */
    const char *path; /* arena */
    int64_t at;       /* bytes before the first element */
};
/* Opens the file of the array that is, or contains, the parameter, as ap_npy_open does.
 */
int arrays_open(const struct arrays *a, struct ap_arena *arena, const struct array_of *of,
                struct array_file *out, bool *missing, struct ap_err *err);
/* Reads the parameter from its file, as a whole array; the caller frees *out. -1 with
 * err; *missing: there is no such file. */
int arrays_read(struct arrays *a, struct ap_arena *arena, const struct array_of *of,
                void **out, bool *missing, struct ap_err *err);
void arrays_free(struct arrays *a);

/* -1 with err where a run that wrote to dir did not end (report_files). */
int arrays_check(const char *dir, struct ap_err *err);

/*
 * Writes parameter *k of g, whose whole array is data[*k] (NULL: not there, nothing is
 * written), or, where it is a part of an argument of the step, the whole from its parts,
 * which are neighbours; *k is after them then.
 */
int arrays_write(const char *dir, const struct ap_graph *g, void *const *data, int *k,
                 struct ap_err *err);

#endif
