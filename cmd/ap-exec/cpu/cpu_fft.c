/*
 * fft: discrete Fourier transforms over the last dimensions, by FFTW3. Transforms are
 * computed in double precision and rounded to f32 once, one at a time by one plan that is
 * made without measuring, so that the bits of a transform depend neither on the batch nor
 * on the rank. A rank has whole transforms. n log n operations per transform of n
 * elements.
 */
#include "cpu/cpu_state.h"

#include <limits.h>

int cpu_fft_state(struct exec *x, struct call *call, struct fft *s, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_shape *in = &call_in(x, v, 0)->shape;
    const int n = v->attrs->fft_length.n;
    int64_t n_full = 1;
    *s = (struct fft){.type = v->attrs->fft_type, .rank = n, .batch = 1};
    s->n_in = s->type == AP_FFT_RFFT ? 1 : 2;
    s->n_out = s->type == AP_FFT_IRFFT ? 1 : 2;
    for (int d = 0; d < in->rank - n; d++)
        s->batch *= in->dims[d];
    for (int i = 0; i < n; i++) {
        if (v->attrs->fft_length.v[i] > INT_MAX)
            return exec_unsupported(x, v, err, "of this length");
        s->len[i] = (int)v->attrs->fft_length.v[i];
        n_full *= s->len[i];
        s->n_in *= in->dims[in->rank - n + i];
        s->n_out *= v->shape.dims[in->rank - n + i];
    }
    s->scale = s->type == AP_FFT_FFT || s->type == AP_FFT_RFFT ? 1 : 1 / (double)n_full;
    s->src = x->value[v->in[0]];
    s->dst = x->value[call->nodes[0]];
    s->batch = n_full ? s->batch : 0;
    return 0;
}

#ifdef AP_FFTW

#include <fftw3.h>
#include <stdlib.h>

static void execute(const struct fft *s, double *in, double *out)
{
    fftw_complex *zin = (fftw_complex *)(void *)in, *zout = (fftw_complex *)(void *)out;
    if (s->type == AP_FFT_RFFT)
        fftw_execute_dft_r2c(s->plan, in, zout);
    else if (s->type == AP_FFT_IRFFT)
        fftw_execute_dft_c2r(s->plan, zin, out);
    else
        fftw_execute_dft(s->plan, zin, zout);
}

static void fft_run(struct exec *x, void *state)
{
    const struct fft *s = state;
    double *in = (double *)(void *)x->scratch;
    double *out = (double *)(void *)(x->scratch + s->out_at);
    for (int64_t b = 0; b < s->batch; b++) {
        const float *src = s->src + b * s->n_in;
        float *dst = s->dst + b * s->n_out;
        for (int64_t i = 0; i < s->n_in; i++)
            in[i] = src[i];
        execute(s, in, out);
        for (int64_t i = 0; i < s->n_out; i++)
            dst[i] = (float)(out[i] * s->scale);
    }
}

static void fft_close(void *state)
{
    fftw_destroy_plan(((struct fft *)state)->plan);
}

/* The plan for arrays that lie in memory as the scratch does. */
static fftw_plan plan_of(enum ap_fft type, int n, const int *len, int64_t in_bytes,
                         int64_t out_bytes)
{
    const unsigned flags = FFTW_ESTIMATE;
    double *in = aligned_alloc(64, (size_t)in_bytes);
    double *out = aligned_alloc(64, (size_t)out_bytes);
    fftw_complex *zin = (fftw_complex *)(void *)in, *zout = (fftw_complex *)(void *)out;
    fftw_plan plan = NULL;
    if (in && out)
        plan =
            type == AP_FFT_RFFT ? fftw_plan_dft_r2c(n, len, in, zout, flags)
            : type == AP_FFT_IRFFT
                ? fftw_plan_dft_c2r(n, len, zin, out, flags)
                : fftw_plan_dft(n, len, zin, zout,
                                type == AP_FFT_FFT ? FFTW_FORWARD : FFTW_BACKWARD, flags);
    free(in);
    free(out);
    return plan;
}

int cpu_fft_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    struct fft *s = AP_NEW(x->arena, struct fft);
    if (cpu_fft_state(x, call, s, err))
        return -1;
    call->run = fft_run;
    call->state = s;
    if (s->batch == 0)
        return 0;
    s->out_at = exec_room(s->n_in * 8);
    s->plan = plan_of(s->type, s->rank, s->len, s->out_at, exec_room(s->n_out * 8));
    if (!s->plan)
        return exec_unsupported(x, call_node(x, call), err, "of this size");
    exec_need_scratch(x, s->out_at + s->n_out * 8);
    call->close = fft_close;
    return 0;
}

#else

int cpu_fft_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    return exec_unsupported(x, call_node(x, call), err, "by an ap-exec without FFTW");
}

#endif
