/* Arrays as .npy files, versions 1 and 2, little endian, row-major. */
#ifndef AP_NPY_H
#define AP_NPY_H

#include "graph/graph.h"

#include <stdio.h>

/* An array of a file. bf16 and fp8 are stored as f32. The caller frees data. */
struct ap_npy {
    enum ap_dtype dtype;
    int rank;
    int64_t dims[AP_MAX_RANK], elems;
    void *data;
};
/* -1 with err; *missing (may be NULL): the file does not exist, rather than being bad. */
int ap_npy_read(const char *path, struct ap_npy *npy, bool *missing, struct ap_err *err);
/*
 * Reads a file that must have this shape, as its dtype: numpy's raw elements where the
 * dtype is bf16 or fp8, other integers if they fit, f32 and f64 rounded. Caller frees
 * *out.
 */
int ap_npy_read_shape(const char *path, const struct ap_shape *shape, void **out,
                      bool *missing, struct ap_err *err);
/*
 * Opens a file that must have this shape, to read parts of it; its row-major elements
 * begin at *at. The caller closes *out, which is NULL if the elements have another type,
 * which ap_npy_read_shape converts.
 */
int ap_npy_open(const char *path, const struct ap_shape *shape, FILE **out, int64_t *at,
                bool *missing, struct ap_err *err);
int ap_npy_write(const char *path, const struct ap_shape *shape, const void *data,
                 struct ap_err *err);

#endif
