/*
 * fft by cuFFT, one plan per call, whose work memory is in the program's scratch memory.
 * From complex to real, cuFFT may write over its operand, so it is given a copy.
 */
#include "cuda.h"
#include "libraries.h"
#include "tool/tool.h"

#include <limits.h>
#include <string.h>

struct transform {
    const struct cufft *lib;
    struct fft s;
    int plan;
    struct cuda_at in, work;
};

static void check(int rc, const char *what)
{
    if (rc)
        ap_die(AP_BAD_INPUT, "rank %d: cufft: %s: error %d", cuda_dev.rank, what, rc);
}

static void transform_run(struct exec *x, void *state)
{
    const struct transform *t = state;
    void *in = cuda_place(x, t->in), *out = t->s.dst;
    check(t->lib->cufftSetWorkArea(t->plan, cuda_place(x, t->work)), "cufftSetWorkArea");
    switch (t->s.type) {
    case AP_FFT_RFFT:
        check(t->lib->cufftExecR2C(t->plan, in, out), "cufftExecR2C");
        return;
    case AP_FFT_IRFFT:
        check(t->lib->cufftExecC2R(t->plan, in, out), "cufftExecC2R");
        return;
    case AP_FFT_FFT:
        check(t->lib->cufftExecC2C(t->plan, in, out, CUFFT_FORWARD_), "cufftExecC2C");
        return;
    case AP_FFT_IFFT:
        check(t->lib->cufftExecC2C(t->plan, in, out, CUFFT_INVERSE_), "cufftExecC2C");
        return;
    case AP_N_FFTS:
        return;
    }
}

static void transform_close(struct exec *x, void *state)
{
    (void)x;
    const struct transform *t = state;
    t->lib->cufftDestroy(t->plan);
}

/* Bytes of work memory; -1: cuFFT has no such transform. */
static int64_t make_plan(struct transform *t)
{
    const int type = t->s.type == AP_FFT_RFFT    ? CUFFT_R2C_
                     : t->s.type == AP_FFT_IRFFT ? CUFFT_C2R_
                                                 : CUFFT_C2C_;
    size_t bytes = 0;
    check(t->lib->cufftCreate(&t->plan), "cufftCreate");
    check(t->lib->cufftSetAutoAllocation(t->plan, 0), "cufftSetAutoAllocation");
    if (t->lib->cufftMakePlanMany(t->plan, t->s.rank, t->s.len, NULL, 1, 0, NULL, 1, 0,
                                  type, (int)t->s.batch, &bytes)) {
        t->lib->cufftDestroy(t->plan);
        return -1;
    }
    check(t->lib->cufftSetStream(t->plan, cuda_dev.stream), "cufftSetStream");
    return (int64_t)bytes;
}

/* out[i] *= scale, in double. */
static void add_scale(struct exec *x, struct cuda_call *c, const struct fft *s)
{
    const int64_t n = ap_mul64(s->batch, s->n_out);
    const struct text_index t = text_index(n);
    struct cuda_at arg[1] = {at_memory(s->dst)};
    struct ap_buf b = {0};
    text_thread(&b, &t, CUDA_BLOCK, n);
    ap_buf_puts(&b, "    float *out = (float *)a.p[0];\n    out[i] = (float)(out[i] * ");
    text_constant(&b, AP_F64, &s->scale);
    ap_buf_puts(&b, ");\n");
    cuda_add_kernel(
        x, c, &b,
        &(struct cuda_launch){CUDA_BLOCK, ap_ceil_div(n, CUDA_BLOCK), 1, 1, arg});
}

int cuda_fft_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    struct transform *t = AP_NEW(x->arena, struct transform);
    if (cpu_fft_state(x, call, &t->s, err))
        return -1;
    struct cuda_call *c = cuda_call_new(x, call);
    int64_t scratch = 0;
    if (t->s.batch == 0)
        return 0;
    t->in = at_memory(t->s.src);
    if (!cuda_dev.opts.compile_for) {
        t->lib = cufft_open();
        if (!t->lib)
            return exec_unsupported(x, call_node(x, call), err,
                                    "without NVIDIA's libcufft.so");
        const int64_t work = t->s.batch > INT_MAX ? -1 : make_plan(t);
        if (work < 0)
            return exec_unsupported(x, call_node(x, call), err, "of this size by cuFFT");
        if (t->s.type == AP_FFT_IRFFT) {
            const int64_t bytes = ap_mul64(t->s.batch, t->s.n_in * 4);
            t->in = at_scratch(exec_take(&scratch, bytes));
            cuda_add_copy(x, c, t->in, at_memory(t->s.src), bytes);
        }
        t->work = cuda_workspace(&scratch, work);
        exec_need_scratch(x, scratch);
        cuda_add(x, c, transform_run, t, transform_close);
    }
    if (t->s.scale != 1)
        add_scale(x, c, &t->s);
    return 0;
}
