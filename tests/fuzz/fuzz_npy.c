/*
 * Any bytes as a .npy file: nothing may crash, leak or exit, what is refused says why,
 * and what is accepted has as many elements as its dimensions say.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doc/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As an array of each type, which converts. */
static void read_as(const char *path, enum ap_dtype dtype, const struct ap_npy *npy)
{
    struct ap_err err = {{0}};
    int64_t dims[AP_MAX_RANK + 1], at = 0;
    struct ap_shape shape = {.dtype = dtype, .rank = npy->rank, .dims = dims};
    void *out = NULL;
    FILE *f = NULL;

    memcpy(dims, npy->dims, sizeof npy->dims);
    int rc = ap_npy_read_shape(path, &shape, &out, NULL, &err);
    assert(!rc == !err.msg[0]);
    free(rc ? NULL : out);
    err.msg[0] = 0;
    rc = ap_npy_open(path, &shape, &f, &at, NULL, &err);
    assert(!rc == !err.msg[0] && at >= 0);
    if (!rc && f)
        fclose(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum ap_dtype types[] = {AP_F32, AP_F64, AP_BF16, AP_S32, AP_PRED};
    static FILE *file; /* the reader opens it again, from its beginning */
    static char path[32];
    struct ap_err err = {{0}};
    struct ap_npy npy;

    if (!file) {
        file = tmpfile();
        assert(file);
        snprintf(path, sizeof path, "/dev/fd/%d", fileno(file));
    }
    int rc = ftruncate(fileno(file), 0) || pwrite(fileno(file), data, size, 0) < 0;
    assert(rc == 0);
    rc = ap_npy_read(path, &npy, NULL, &err);
    assert(!rc == !err.msg[0]);
    if (rc)
        return 0;
    int64_t elems = 1;
    for (int d = 0; d < npy.rank; d++)
        elems *= npy.dims[d];
    assert(elems == npy.elems && (uint64_t)elems <= size);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        read_as(path, types[i], &npy);
    free(npy.data);
    return 0;
}
