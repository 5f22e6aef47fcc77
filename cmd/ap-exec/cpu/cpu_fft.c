/*
 * fft: discrete Fourier transforms over the last dimensions, for any length. A length is
 * taken apart by its smallest prime factor p, n log n for smooth lengths, n * p at worst
 * (Cooley and Tukey, "An algorithm for the machine calculation of complex Fourier
 * series"). All in double precision with one rounding at the end, so that the order of
 * the sums does not show. One transform at a time, of which each device has whole ones.
 */
#include "cpu/cpu.h"

#include <math.h>
#include <string.h>

struct z {
    double re, im;
};

struct fft {
    enum ap_fft type;
    int n_dims;          /* transformed, the last ones */
    int64_t len[3];      /* of the transforms */
    int64_t in[3], half; /* extents in the operand; of the last in the half spectrum */
    int64_t n_batch, n_in, n_full, n_out;
    const char *src;
    char *dst;
    struct z *root[3]; /* exp(-+2 pi i k / len) */
};

/* out[n] = transform of x[0], x[step], ...; root[k * up] are the roots for n. */
static void transform(const struct z *x, int64_t step, struct z *out, struct z *tmp,
                      int64_t n, const struct z *root, int64_t up)
{
    int64_t p = 2;
    if (n == 1) {
        out[0] = x[0];
        return;
    }
    while (p * p <= n && n % p)
        p++;
    if (n % p)
        p = n;
    const int64_t m = n / p;
    for (int64_t j = 0; j < p; j++)
        transform(x + j * step, step * p, tmp + j * m, out + j * m, m, root, up * p);
    for (int64_t k = 0; k < n; k++) {
        struct z sum = {0, 0};
        for (int64_t j = 0; j < p; j++) {
            const struct z a = tmp[j * m + k % m], w = root[j * k % n * up];
            sum.re += a.re * w.re - a.im * w.im;
            sum.im += a.re * w.im + a.im * w.re;
        }
        out[k] = sum;
    }
}

/* Along dimension d of an array of these extents, in place. */
static void along(const struct fft *s, int d, const int64_t *extent, struct z *data,
                  struct z *row)
{
    const int64_t n = s->len[d];
    int64_t outer = 1, inner = 1;
    for (int i = 0; i < d; i++)
        outer *= extent[i];
    for (int i = d + 1; i < s->n_dims; i++)
        inner *= extent[i];
    for (int64_t o = 0; o < outer; o++)
        for (int64_t i = 0; i < inner; i++) {
            struct z *x = data + o * n * inner + i;
            transform(x, inner, row, row + n, n, s->root[d], 1);
            for (int64_t k = 0; k < n; k++)
                x[k * inner] = row[k];
        }
}

/* Rows of the half spectrum become rows of the whole: X[n - k] = conj(X[k]). */
static void mirror(const struct fft *s, const struct z *half, struct z *full)
{
    const int64_t n = s->len[s->n_dims - 1];
    for (int64_t r = 0; r < s->n_full / n; r++)
        for (int64_t k = 0; k < n; k++) {
            const struct z x = half[r * s->half + (k < s->half ? k : n - k)];
            full[r * n + k] = (struct z){x.re, k < s->half ? x.im : -x.im};
        }
}

static void load(const struct fft *s, int64_t batch, struct z *data)
{
    const float *p = (const float *)(const void *)s->src;
    const bool real = s->type == AP_FFT_RFFT;
    p += batch * s->n_in * (real ? 1 : 2);
    for (int64_t i = 0; i < s->n_in; i++)
        data[i] = real ? (struct z){p[i], 0} : (struct z){p[2 * i], p[2 * i + 1]};
}

static void store(const struct fft *s, int64_t batch, const struct z *data)
{
    const int64_t n = s->len[s->n_dims - 1];
    const bool real = s->type == AP_FFT_IRFFT;
    const int64_t row = s->type == AP_FFT_RFFT ? s->half : n;
    const double scale =
        s->type == AP_FFT_FFT || s->type == AP_FFT_RFFT ? 1 : 1 / (double)s->n_full;
    float *p = (float *)(void *)s->dst + batch * s->n_out * (real ? 1 : 2);
    for (int64_t i = 0; i < s->n_out; i++) {
        const struct z x = data[i / row * n + i % row];
        p[real ? i : 2 * i] = (float)(x.re * scale);
        if (!real)
            p[2 * i + 1] = (float)(x.im * scale);
    }
}

static void fft_run(struct exec *x, void *state)
{
    const struct fft *s = state;
    struct z *data = (struct z *)(void *)x->scratch, *half = data + s->n_full;
    struct z *row = half + s->n_full;
    const int last = s->n_dims - 1;
    const bool inverse_real = s->type == AP_FFT_IRFFT;
    for (int64_t b = 0; b < s->n_batch && s->n_out; b++) {
        struct z *first = inverse_real ? half : data;
        load(s, b, first);
        for (int d = 0; d < last; d++)
            along(s, d, s->in, first, row);
        if (inverse_real)
            mirror(s, half, data);
        along(s, last, s->len, data, row);
        store(s, b, data);
    }
}

int cpu_fft_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_shape *in = &call_in(x, v, 0)->shape;
    struct fft *s = AP_NEW(x->arena, struct fft);
    const int n = s->n_dims = v->attrs->fft_length.n;
    int64_t most = 1;
    s->type = v->attrs->fft_type;
    s->n_full = 1;
    if (cpu_kind(in->dtype) == CPU_N_KINDS)
        return exec_unsupported(x, v, err, ap_dtype_name(in->dtype));
    s->n_in = s->n_out = s->n_batch = 1;
    for (int d = 0; d < in->rank - n; d++)
        s->n_batch *= in->dims[d];
    for (int i = 0; i < n; i++) {
        s->len[i] = v->attrs->fft_length.v[i];
        s->in[i] = in->dims[in->rank - n + i];
        s->n_full *= s->len[i];
        s->n_in *= s->in[i];
        s->n_out *= v->shape.dims[in->rank - n + i];
        most = s->len[i] > most ? s->len[i] : most;
    }
    s->half = s->len[n - 1] / 2 + 1;
    const bool forward = s->type == AP_FFT_FFT || s->type == AP_FFT_RFFT;
    const double turn = (forward ? -2 : 2) * 3.14159265358979323846;
    for (int i = 0; i < n; i++) {
        s->root[i] = AP_NEW_N(x->arena, s->len[i] + 1, struct z);
        for (int64_t k = 0; k < s->len[i]; k++) {
            const double angle = turn * (double)k / (double)s->len[i];
            s->root[i][k] = (struct z){cos(angle), sin(angle)};
        }
    }
    s->src = x->value[v->in[0]];
    s->dst = x->value[call->nodes[0]];
    exec_need_scratch(x,
                      (2 * s->n_full + s->n_in + 2 * most) * (int64_t)sizeof(struct z));
    call->run = fft_run;
    call->state = s;
    return 0;
}
