/* Parts of arrays, in and out of their wholes; .npy files of other types than asked for.
 */
#include "doc/npy.h"
#include "graph/part.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ap_arena arena;

/* ---- parts ---- */

/* x[i][j][k] of shape 3x2x4, split along j and then along what was k. */
static void test_nested(void)
{
    const int64_t dims[1] = {3};
    const struct ap_shape shape = {.dtype = AP_S32, .rank = 1, .dims = dims};
    const struct ap_part part = {.n = 2, .split = {{1, 1, 2}, {1, 3, 4}}};
    const struct ap_shape whole = ap_part_whole(&arena, &shape, &part);
    int32_t x[24], y[3] = {0};

    CHECK(whole.rank == 3 && whole.dims[0] == 3 && whole.dims[1] == 2 &&
              whole.dims[2] == 4,
          "splits along two dimensions are undone");
    for (int i = 0; i < 24; i++)
        x[i] = i;
    ap_part_get(&shape, &part, x, y);
    CHECK(y[0] == 7 && y[1] == 15 && y[2] == 23, "elements [:, 1, 3], not %d %d %d", y[0],
          y[1], y[2]);
    for (int i = 0; i < 3; i++)
        y[i] = -1 - i;
    ap_part_put(&shape, &part, y, x);
    int changed = 0;
    for (int i = 0; i < 24; i++)
        changed += x[i] != i;
    CHECK(x[7] == -1 && x[15] == -2 && x[23] == -3 && changed == 3, "and back");
}

/* Every split of random shapes: the parts are the whole, each element once. */
static void test_all_parts(void)
{
    const int64_t dims[3] = {2, 3, 5};

    for (int dim = 0; dim <= 3; dim++) {
        const struct ap_shape shape = {.dtype = AP_BF16, .rank = 3, .dims = dims};
        struct ap_part part = {.n = 1, .split = {{dim, 0, 4}}};
        uint16_t x[120] = {0}, y[30], z[30];
        int bad = 0;
        for (int p = 0; p < 4; p++) {
            part.split[0].part = p;
            for (int i = 0; i < 30; i++)
                y[i] = (uint16_t)(30 * p + i + 1);
            ap_part_put(&shape, &part, y, x);
        }
        for (int i = 0; i < 120; i++)
            bad += x[i] == 0;
        for (int p = 0; p < 4; p++) {
            part.split[0].part = p;
            ap_part_get(&shape, &part, x, z);
            for (int i = 0; i < 30; i++)
                bad += z[i] != 30 * p + i + 1;
        }
        CHECK(!bad, "four parts along dimension %d", dim);
    }
}

static void test_whole(void)
{
    const int64_t dims[2] = {2, 2};
    const struct ap_shape shape = {.dtype = AP_F32, .rank = 2, .dims = dims};
    const struct ap_part part = {.index = 3};
    const float x[4] = {1, 2, 3, 4};
    float y[4] = {0};

    ap_part_get(&shape, &part, x, y);
    CHECK(!memcmp(x, y, sizeof x) && ap_part_whole(&arena, &shape, NULL).rank == 2,
          "an array that was not split is its own whole");
}

static void test_check(void)
{
    const int64_t dims[2] = {2, 2};
    const struct ap_shape shape = {.dtype = AP_F32, .rank = 2, .dims = dims};
    const struct ap_part good = {.n = 2, .split = {{3, 0, 2}, {2, 1, 3}}};
    const struct ap_part other = {.n = 2, .split = {{3, 1, 2}, {2, 0, 3}}};
    struct ap_part bad = {.n = 1, .split = {{3, 0, 2}}};
    struct ap_err err = {""};

    CHECK(!ap_part_check(&shape, &good, &err) && !ap_part_check(&shape, NULL, &err) &&
              ap_part_same_whole(&good, &other) && !ap_part_same_whole(&good, &bad),
          "parts that fit, and of one whole");
    CHECK(ap_part_check(&shape, &bad, &err) &&
              strstr(err.msg, "array of 3 dimensions is 0 of 2 along dimension 3"),
          "a split dimension that the whole would not have: %s", err.msg);
    bad.n = AP_MAX_RANK;
    for (int i = 0; i < AP_MAX_RANK; i++)
        bad.split[i] = (struct ap_part_split){0, 0, 1};
    err.msg[0] = '\0';
    CHECK(ap_part_check(&shape, &bad, &err), "more dimensions than arrays have: %s",
          err.msg);
}

/* ---- files ---- */

/* A file of n elements of numpy's type, read as dtype; *out is freed by the caller. */
static int read_as(const char *descr, const void *data, size_t bytes, int n,
                   enum ap_dtype dtype, void **out, struct ap_err *err)
{
    static const unsigned char magic[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 0x76, 0};
    char path[] = "/tmp/test_part.XXXXXX", head[128];
    const int64_t dims[1] = {n};
    const struct ap_shape shape = {.dtype = dtype, .rank = 1, .dims = dims};
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "wb");

    memset(head, ' ', sizeof head);
    memcpy(head, magic, sizeof magic);
    int len =
        snprintf(head + 10, sizeof head - 10,
                 "{'descr': '%s', 'fortran_order': False, 'shape': (%d,), }", descr, n);
    head[10 + len] = ' ';
    head[127] = '\n';
    fwrite(head, 1, sizeof head, f);
    fwrite(data, 1, bytes, f);
    fclose(f);
    int rc = ap_npy_read_shape(path, &shape, out, NULL, err);
    unlink(path);
    return rc;
}

static void reads(const char *descr, const void *data, size_t bytes, int n,
                  enum ap_dtype dtype, const void *want, size_t want_bytes)
{
    struct ap_err err = {""};
    void *out = NULL;
    int rc = read_as(descr, data, bytes, n, dtype, &out, &err);

    CHECK(!rc && !memcmp(out, want, want_bytes), "%s as %s%s%s", descr,
          ap_dtype_name(dtype), rc ? ": " : "", err.msg);
    free(out);
}

static void refuses(const char *descr, const void *data, size_t bytes, int n,
                    enum ap_dtype dtype, const char *why)
{
    struct ap_err err = {""};
    void *out = NULL;
    int rc = read_as(descr, data, bytes, n, dtype, &out, &err);

    CHECK(rc && strstr(err.msg, why), "%s as %s is refused: %s", descr,
          ap_dtype_name(dtype), err.msg);
    free(out);
}

static void test_files(void)
{
    const uint16_t bf16[2] = {0x3f80, 0xc000};
    const uint8_t fp8[2] = {0x38, 0xc0}, flag = 1, big = 200;
    const float f32[2] = {1, -2};
    const double f64[2] = {1, -2};
    const int64_t s64[2] = {3, -4}, wide[2] = {1, INT64_C(5000000000)};
    const int32_t s32[2] = {3, -4}, one = 1;
    const uint64_t u64 = UINT64_MAX;

    reads("<V2", bf16, 4, 2, AP_BF16, bf16, 4);
    reads("|V2", bf16, 4, 2, AP_BF16, bf16, 4);
    reads("<f4", f32, 8, 2, AP_BF16, bf16, 4);
    reads("<V1", fp8, 2, 2, AP_F8E4M3FN, fp8, 2);
    reads("<f1", fp8, 2, 2, AP_F8E5M2, fp8, 2);
    reads("<f4", f32, 8, 2, AP_F8E4M3FN, fp8, 2);
    reads("<f8", f64, 16, 2, AP_F32, f32, 8);
    reads("<i8", s64, 16, 2, AP_S32, s32, 8);
    reads("<i4", s32, 8, 2, AP_S64, s64, 16);
    reads("<i4", &one, 4, 1, AP_PRED, &flag, 1);
    refuses("<i8", wide, 16, 2, AP_S32, "element 1 is 5000000000, which s32 cannot hold");
    refuses("|u1", &big, 1, 1, AP_S8, "element 0 is 200, which s8 cannot hold");
    refuses("<u8", &u64, 8, 1, AP_S64, "which s64 cannot hold");
    refuses("<V2", bf16, 4, 2, AP_F16, "element type '<V2' is not read");
    refuses("<f4", f32, 8, 2, AP_S32, "expected s32[2], got f32[2]");
    refuses("<f4", f32, 8, 2, AP_F64, "expected f64[2], got f32[2]");
}

int main(void)
{
    test_nested();
    test_all_parts();
    test_whole();
    test_check();
    test_files();
    ap_arena_free(&arena);
    return tap_done();
}
