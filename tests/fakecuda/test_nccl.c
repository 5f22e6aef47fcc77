/*
 * comm_nccl.c over the fake: every collective, element type and reduction on device
 * memory against the job's own communicator on host memory. Run under mpirun:
 *
 *     test_nccl [overlap]
 */
#include "../unit/tap.h"
#include "cuda/cuda.h"
#include "run/job.h"

#include <stdlib.h>
#include <string.h>

#define N 24 /* elements of a block; divisible by 2, 3 and 4 */

static int64_t bytes_of(enum ap_dtype t, int64_t n)
{
    return n * ap_dtype_size(t);
}

/* Small whole numbers, or bits for pred. */
static void fill(void *p, enum ap_dtype t, int64_t n, int rank)
{
    static const uint16_t bf16[] = {0x3f80, 0x4000, 0xbf80, 0},
                          f16[] = {0x3c00, 0x4000, 0xbc00, 0};
    for (int64_t i = 0; i < n; i++) {
        const int k = (int)((i * 7 + rank * 5) % 4), v = k < 2 ? k + 1 : k == 2 ? -1 : 0;
        char *at = (char *)p + bytes_of(t, i);
        memset(at, 0, (size_t)ap_dtype_size(t));
        if (t == AP_F32 || t == AP_C64)
            *(float *)at = (float)v;
        else if (t == AP_F64)
            *(double *)at = v;
        else if (t == AP_BF16)
            *(uint16_t *)at = bf16[k];
        else if (t == AP_F16)
            *(uint16_t *)at = f16[k];
        else if (t == AP_PRED)
            *at = (char)(k & 1);
        else
            memcpy(at, &(int64_t){v}, (size_t)ap_dtype_size(t));
    }
}

static const char *on_device(struct comm *c, int g, int peer, enum ap_dtype t,
                             enum ap_red red, const struct comm *host, int host_g,
                             int size)
{
    const int64_t n = N * size, bytes = bytes_of(t, n);
    char *mine = malloc((size_t)bytes), *want = malloc((size_t)bytes * 4);
    char *got = malloc((size_t)bytes * 4);
    char *a = cuda_alloc(bytes), *b = cuda_alloc(bytes * 4);
    struct comm h = *host;
    const char *bad = NULL;
    fill(mine, t, n, c->rank);
    cuda_write(a, mine, bytes);

    const struct {
        struct comm_job job;
        int64_t result; /* bytes */
    } rows[] = {
        {{AP_OP_REDUCE_SCATTER, g, {0, 0}, N, t, red}, bytes / size},
        {{AP_OP_ALL_GATHER, g, {0, 0}, bytes, t, red}, bytes * size},
        {{AP_OP_ALL_TO_ALL, g, {0, 0}, bytes / size, t, red}, bytes},
        {{AP_OP_COLLECTIVE_PERMUTE, g, {peer, peer}, bytes, t, red}, bytes},
        {{AP_OP_ALL_REDUCE, g, {0, 0}, n, t, red}, bytes},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const bool in_place = rows[i].job.op == AP_OP_ALL_REDUCE;
        struct comm_job on_host = rows[i].job;
        on_host.group = host_g;
        memcpy(want, mine, (size_t)bytes);
        h.collect(&h, &on_host, in_place ? want : mine, want);
        c->collect(c, &rows[i].job, a, in_place ? a : b);
        cuda_read(got, in_place ? a : b, rows[i].result);
        if (memcmp(got, want, (size_t)rows[i].result))
            bad = ap_ops[rows[i].job.op].name;
    }
    cuda_release(a);
    cuda_release(b);
    free(mine);
    free(want);
    free(got);
    return bad;
}

static void test_types(struct comm *c, const struct comm *host,
                       const struct ap_mesh *mesh, unsigned axes, int size)
{
    static const enum ap_dtype types[] = {AP_PRED, AP_S8,  AP_S16, AP_S32,
                                          AP_S64,  AP_U8,  AP_U32, AP_F16,
                                          AP_BF16, AP_F32, AP_F64, AP_C64};
    struct comm h = *host;
    const int g = c->group(c, mesh, axes), host_g = h.group(&h, mesh, axes);
    h.reserve(&h, 16 * N * size);
    c->reserve(c, 16 * N * size);
    const int peer = c->rank ^ 1, last = peer < c->size ? peer : c->rank;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int red = AP_RED_SUM; red <= AP_RED_OR; red++) {
            const bool bits = red == AP_RED_AND || red == AP_RED_OR;
            if (types[i] == AP_PRED ? red == AP_RED_SUM || red == AP_RED_PROD
                                    : bits && !ap_dtype_is_int(types[i]))
                continue;
            if (types[i] == AP_C64 && red > AP_RED_PROD)
                continue;
            const char *bad =
                on_device(c, g, last, types[i], (enum ap_red)red, host, host_g, size);
            CHECK(!bad, "%s %s over %d ranks%s%s", ap_red_names[red],
                  ap_dtype_name(types[i]), size, bad ? ": " : "", bad ? bad : "");
        }
}

/* Two all-reduces of values that copies make, in flight while copies run; the host waits
 * for nothing before the end, so that each of the four events is needed. */
static void test_overlap(struct comm *c, const struct ap_mesh *mesh)
{
    const int g = c->group(c, mesh, 1);
    float x[N], y[2][N];
    char *p[5];
    c->reserve(c, sizeof x);
    for (int i = 0; i < 5; i++)
        p[i] = cuda_alloc(sizeof x);
    for (int i = 0; i < N; i++)
        x[i] = (float)(c->rank + 1);
    cuda_write(p[4], x, sizeof x);
    int ticket[2];
    for (int i = 0; i < 2; i++) {
        cuda_copy(p[i], p[4], sizeof x);
        c->start(c);
        const struct comm_job job = {AP_OP_ALL_REDUCE,           g, {0, 0}, N, AP_F32,
                                     i ? AP_RED_MAX : AP_RED_SUM};
        c->collect(c, &job, p[i], p[i]);
        ticket[i] = c->event(c);
    }
    CHECK(c->size == 1 || strcmp(c->name, "nccl") || ticket[0] != ticket[1],
          "a ticket each");
    for (int i = 0; i < 2; i++) {
        c->wait(c, ticket[i]);
        cuda_copy(p[2 + i], p[i], sizeof x);
    }
    for (int i = 0; i < 2; i++)
        cuda_read(y[i], p[2 + i], sizeof x);
    CHECK(y[0][3] == (float)c->size * (float)(c->size + 1) / 2 &&
              y[1][3] == (float)c->size,
          "both results");
    for (int i = 0; i < 5; i++)
        cuda_release(p[i]);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const struct cuda_options opts = {0};
    struct comm c, host, part;
    struct ap_err err = {{0}};
    struct ap_mesh mesh = {.n_axes = 1};
    job_join(&c, 0);
    host = c;
    mesh.size[0] = c.size;
    if (cuda_probe(&opts, &err) || cuda_join(&c, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    CHECK(c.rank == host.rank && c.size == host.size, "the job's ranks");
    if (!*what) {
        test_types(&c, &host, &mesh, 1, c.size);
        if (c.size == 4) {
            struct ap_mesh two = {.n_axes = 2, .size = {2, 2}};
            test_types(&c, &host, &two, 1, 2);
            test_types(&c, &host, &two, 2, 2);
        }
        const int ranks[] = {c.size - 1, 0};
        if (c.size > 2 && c.split(&c, ranks, 2, &part)) {
            struct ap_mesh two = {.n_axes = 1, .size = {2}};
            CHECK(part.size == 2 && part.rank == (c.rank == 0), "numbers of a part");
            test_overlap(&part, &two);
            part.close(&part);
        }
    }
    test_overlap(&c, &mesh);
    if (c.rank == 0)
        tap_done();
    c.close(&c);
    return tap_failed != 0;
}
