/*
 * cuFFT by FFTW in double precision, rounded once: the bits of the CPU backend. As cuFFT
 * may, a transform from complex to real spoils its operand, and all spoil their work
 * memory.
 */
#include "fake.h"

#ifdef AP_FFTW

#include <fftw3.h>
#include <stdlib.h>
#include <string.h>

/* As in cufft.h, which not every folder of CUDA headers has. */
enum { SUCCESS = 0, INVALID_PLAN = 1, INVALID_VALUE = 4, EXEC_FAILED = 6, NO_WORK = 14 };
enum { C2C = 0x29, R2C = 0x2a, C2R = 0x2c };
#define MAX_PLANS 4096

struct plan {
    bool used, own_memory;
    int rank, len[3], type, batch;
    int64_t n_in, n_out; /* floats of one transform */
    cudaStream_t stream;
    void *work;
    size_t work_bytes;
};
static struct plan plans[MAX_PLANS];

int cufftCreate(int *plan);
int cufftDestroy(int plan);
int cufftSetStream(int plan, cudaStream_t stream);
int cufftSetAutoAllocation(int plan, int allocate);
int cufftMakePlanMany(int plan, int rank, int *n, int *in_embed, int in_stride,
                      int in_dist, int *out_embed, int out_stride, int out_dist, int type,
                      int batch, size_t *work_bytes);
int cufftSetWorkArea(int plan, void *work);
int cufftExecC2C(int plan, void *in, void *out, int direction);
int cufftExecR2C(int plan, void *in, void *out);
int cufftExecC2R(int plan, void *in, void *out);

static struct plan *plan_of(int plan)
{
    return plan >= 0 && plan < MAX_PLANS && plans[plan].used ? &plans[plan] : NULL;
}

int cufftCreate(int *plan)
{
    int i = 0;
    while (i < MAX_PLANS && plans[i].used)
        i++;
    if (i == MAX_PLANS)
        fake_fail("cufft: %d plans at once", MAX_PLANS);
    plans[i] = (struct plan){.used = true, .own_memory = true};
    *plan = i;
    return SUCCESS;
}

int cufftDestroy(int plan)
{
    struct plan *p = plan_of(plan);
    if (!p)
        return INVALID_PLAN;
    p->used = false;
    return SUCCESS;
}

int cufftSetStream(int plan, cudaStream_t stream)
{
    struct plan *p = plan_of(plan);
    if (!p || !fake_stream_is(stream))
        return INVALID_PLAN;
    p->stream = stream;
    return SUCCESS;
}

int cufftSetAutoAllocation(int plan, int allocate)
{
    struct plan *p = plan_of(plan);
    if (!p || p->rank)
        return INVALID_PLAN; /* before the plan is made only */
    p->own_memory = allocate;
    return SUCCESS;
}

int cufftMakePlanMany(int plan, int rank, int *n, int *in_embed, int in_stride,
                      int in_dist, int *out_embed, int out_stride, int out_dist, int type,
                      int batch, size_t *work_bytes)
{
    (void)in_stride, (void)in_dist, (void)out_stride, (void)out_dist;
    struct plan *p = plan_of(plan);
    if (!p || p->rank)
        return INVALID_PLAN;
    if (rank < 1 || rank > 3 || batch < 1 || (type != C2C && type != R2C && type != C2R))
        return INVALID_VALUE;
    if (in_embed || out_embed || p->own_memory)
        fake_fail("cufft: strides and memory of its own are not in the fake");
    p->n_in = type == R2C ? 1 : 2;
    p->n_out = type == C2R ? 1 : 2;
    for (int i = 0; i < rank; i++) {
        const int half = i == rank - 1 ? n[i] / 2 + 1 : n[i];
        if (n[i] < 1)
            return INVALID_VALUE;
        p->len[i] = n[i];
        p->n_in *= type == C2R ? half : n[i];
        p->n_out *= type == R2C ? half : n[i];
    }
    p->rank = rank, p->type = type, p->batch = batch;
    p->work_bytes = (size_t)(p->n_out * 4 + 16); /* as if one result were kept */
    *work_bytes = p->work_bytes;
    return SUCCESS;
}

int cufftSetWorkArea(int plan, void *work)
{
    struct plan *p = plan_of(plan);
    if (!p || !p->rank)
        return INVALID_PLAN;
    p->work = work;
    return SUCCESS;
}

struct run {
    struct plan plan;
    float *in, *out;
    int direction;
};

static void *wide(int64_t floats)
{
    void *p = aligned_alloc(64, (size_t)(floats * 8 + 63) / 64 * 64);
    if (!p)
        fake_fail("out of host memory");
    return p;
}

static fftw_plan host_plan(const struct run *r, double *in, double *out)
{
    fftw_complex *zin = (fftw_complex *)(void *)in, *zout = (fftw_complex *)(void *)out;
    const struct plan *p = &r->plan;
    return p->type == R2C ? fftw_plan_dft_r2c(p->rank, p->len, in, zout, FFTW_ESTIMATE)
           : p->type == C2R
               ? fftw_plan_dft_c2r(p->rank, p->len, zin, out, FFTW_ESTIMATE)
               : fftw_plan_dft(p->rank, p->len, zin, zout, r->direction, FFTW_ESTIMATE);
}

static void transform_run(void *args)
{
    struct run *r = args;
    const struct plan *p = &r->plan;
    double *in = wide(p->n_in), *out = wide(p->n_out);
    const fftw_plan plan = host_plan(r, in, out);
    memset(p->work, 0xFF, p->work_bytes);
    for (int b = 0; b < p->batch; b++) {
        for (int64_t i = 0; i < p->n_in; i++)
            in[i] = r->in[b * p->n_in + i];
        fftw_execute(plan);
        for (int64_t i = 0; i < p->n_out; i++)
            r->out[b * p->n_out + i] = (float)out[i];
    }
    if (p->type == C2R)
        memset(r->in, 0xFF, (size_t)(p->batch * p->n_in) * 4);
    fftw_destroy_plan(plan);
    free(in);
    free(out);
}

static int transform(int plan, int type, void *in, void *out, int direction)
{
    const struct plan *p = plan_of(plan);
    if (!p || p->type != type)
        return INVALID_PLAN;
    if (!p->work)
        return NO_WORK;
    if ((uintptr_t)in % 8 || (uintptr_t)out % 8 || in == out)
        fake_fail("cufft: transforms in place or at odd addresses are not in the fake");
    const struct run r = {*p, in, out, direction};
    return fake_enqueue(p->stream, "cufft", transform_run, &r, sizeof r) ? EXEC_FAILED
                                                                         : SUCCESS;
}

int cufftExecC2C(int plan, void *in, void *out, int direction)
{
    return transform(plan, C2C, in, out, direction);
}

int cufftExecR2C(int plan, void *in, void *out)
{
    return transform(plan, R2C, in, out, 0);
}

int cufftExecC2R(int plan, void *in, void *out)
{
    return transform(plan, C2R, in, out, 0);
}

#endif
