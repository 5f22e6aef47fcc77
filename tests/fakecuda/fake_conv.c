/*
 * cuDNN's convolutions as loops in double precision, rounded once: graphs of one
 * operation. The heuristic proposes first engines that no program may take: one that does
 * not repeat its bits, some that are inexact, one that wants much memory, one without a
 * plan. Its engine with
 * tensor cores rounds operands of f32 to tf32. The plain one has no f32 in NHWC.
 */
#include "fake.h"

#if __has_include(<cudnn.h>)

#include "fake_dnn.h"

#include <stdlib.h>
#include <string.h>

#define MOST       5
#define WORK_BYTES 1000

enum { X, W, Y };

/* An operation. */
struct parts {
    int result; /* X, W or Y */
    const struct descriptor *tensor[3], *steps;
    const struct attribute *alpha, *beta;
};

static bool parts_of(struct parts *p, const struct descriptor *op)
{
    static const struct {
        cudnnBackendDescriptorType_t type;
        int result;
        cudnnBackendAttributeName_t tensor[3], steps, alpha, beta;
    } kind[] = {
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
         Y,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
         X,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
         W,
         {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    };
    for (int k = 0; k < 3; k++) {
        if (op->type != kind[k].type)
            continue;
        p->result = kind[k].result;
        for (int t = 0; t < 3; t++)
            p->tensor[t] = dnn_member(op, kind[k].tensor[t]);
        p->steps = dnn_member(op, kind[k].steps);
        p->alpha = dnn_find(op, kind[k].alpha);
        p->beta = dnn_find(op, kind[k].beta);
        return true;
    }
    return false;
}

/* ---- what is consistent ---- */

/* One integer of at least `least` for each spatial dimension; NULL: there is not. */
static const int64_t *steps(const struct descriptor *d, cudnnBackendAttributeName_t name,
                            int64_t least)
{
    const struct attribute *a = dnn_find(d, name);
    if (!a || a->type != CUDNN_TYPE_INT64 ||
        a->n != dnn_integer(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS))
        return NULL;
    for (int64_t i = 0; i < a->n; i++)
        if (((const int64_t *)a->value)[i] < least)
            return NULL;
    return a->value;
}

static bool are_steps(const struct descriptor *d)
{
    const int64_t rank = dnn_integer(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
    return rank >= 2 && rank <= MOST - 2 &&
           dnn_find(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) &&
           dnn_find(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE) &&
           steps(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0) &&
           steps(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 0) &&
           steps(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1) &&
           steps(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, 1);
}

static int64_t type_of(const struct descriptor *tensor)
{
    return dnn_integer(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE);
}

static bool fits(const struct parts *p)
{
    const struct descriptor *d = p->steps;
    const int64_t *x = dnn_dims(p->tensor[X]), *w = dnn_dims(p->tensor[W]),
                  *y = dnn_dims(p->tensor[Y]);
    const int64_t *pre = steps(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0),
                  *post = steps(d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 0),
                  *stride = steps(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1),
                  *dilation = steps(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, 1);
    if (x[0] != y[0] || x[1] % w[1] || y[1] != w[0] || w[0] % (x[1] / w[1]))
        return false;
    for (int i = 0; i < dnn_rank(p->tensor[X]) - 2; i++) {
        const int64_t reach = (w[2 + i] - 1) * dilation[i] + 1;
        const int64_t room = x[2 + i] + pre[i] + post[i] - reach;
        if (room < 0 || room / stride[i] + 1 != y[2 + i])
            return false;
    }
    return true;
}

bool dnn_is_convolution(const struct descriptor *d)
{
    struct parts p;
    if (d->type == CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)
        return are_steps(d);
    if (!parts_of(&p, d))
        return true;
    for (int t = 0; t < 3; t++)
        if (!p.tensor[t] || !p.tensor[t]->final || dnn_is_virtual(p.tensor[t]) ||
            dnn_is_by_value(p.tensor[t]) ||
            dnn_rank(p.tensor[t]) != dnn_rank(p.tensor[0]) ||
            type_of(p.tensor[t]) != type_of(p.tensor[0]))
            return false;
    if (!p.steps || !p.steps->final || !p.alpha || !p.beta ||
        dnn_rank(p.tensor[0]) !=
            2 + dnn_integer(p.steps, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS))
        return false;
    const bool wide = type_of(p.tensor[0]) == CUDNN_DATA_DOUBLE;
    const cudnnBackendAttributeType_t scalar =
        wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
    if (p.alpha->type != scalar || p.beta->type != scalar ||
        dnn_integer(p.steps, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) !=
            (wide ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT))
        return false;
    if (dnn_load(p.alpha->value, wide ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, 0) != 1 ||
        dnn_load(p.beta->value, wide ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT, 0) != 0)
        fake_fail("cudnn: scalars other than 1 and 0 are not in the fake");
    return fits(&p);
}

/* ---- heuristics ---- */

static struct parts parts_of_graph(const struct descriptor *graph)
{
    const struct attribute *ops = dnn_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    struct parts p;
    if (ops->n != 1 || !parts_of(&p, *(struct descriptor *const *)ops->value))
        fake_fail("cudnn: a convolution with other operations");
    return p;
}

/* 1: features come last; 0: second; -1: it does not matter. */
static int layout(const struct descriptor *tensor)
{
    int64_t area = 1;
    for (int d = 2; d < dnn_rank(tensor); d++)
        area *= dnn_dims(tensor)[d];
    return dnn_dims(tensor)[1] == 1 || area == 1 ? -1 : dnn_strides(tensor)[1] == 1;
}

int dnn_propose_convolution(const struct descriptor *graph, int64_t mode,
                            struct proposal *out)
{
    static const struct proposal wrong[] = {
        {.notes = 1 << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC |
                  1 << CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
         .has_plan = true},
        {.notes = 1 << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS |
                  1 << CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
         .has_plan = true},
        {.notes = 1 << CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION |
                  1 << CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
         .has_plan = true},
        {.notes = 1 << CUDNN_NUMERICAL_NOTE_WINOGRAD, .has_plan = true},
        {.has_plan = true, .workspace = 1ll << 40},
        {.notes = 1 << CUDNN_NUMERICAL_NOTE_TENSOR_CORE},
    };
    static const struct proposal cores = {.notes = 1 << CUDNN_NUMERICAL_NOTE_TENSOR_CORE,
                                          .workspace = WORK_BYTES,
                                          .has_plan = true,
                                          .runs = true};
    static const struct proposal plain = {
        .workspace = WORK_BYTES, .has_plan = true, .runs = true};
    const struct parts p = parts_of_graph(graph);
    int nhwc = -1, n = 0;
    for (int t = 0; t < 3; t++) {
        const int own = layout(p.tensor[t]);
        if (own >= 0 && nhwc >= 0 && own != nhwc)
            return 0; /* one tensor lies another way */
        nhwc = own >= 0 ? own : nhwc;
    }
    const bool f32 = type_of(p.tensor[X]) == CUDNN_DATA_FLOAT;
    if (mode == CUDNN_HEUR_MODE_FALLBACK) {
        if (!f32 || nhwc != 1)
            out[n++] = plain;
        return n;
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        out[n++] = wrong[i];
    if (type_of(p.tensor[X]) != CUDNN_DATA_DOUBLE) {
        int64_t elems = 0;
        for (int t = 0; t < 3; t++) {
            int64_t one = 1;
            for (int d = 0; d < dnn_rank(p.tensor[t]); d++)
                one *= dnn_dims(p.tensor[t])[d];
            elems += one;
        }
        if (elems * 5 > 256 << 20) { /* as fast engines do: copies, and a quarter more */
            out[n] = cores;
            out[n++].workspace = elems * 5;
        }
        out[n++] = cores;
    }
    return n;
}

/* ---- the loops ---- */

struct run {
    int result; /* X, W or Y */
    int64_t type;
    bool tf32; /* operands are rounded to it */
    bool flip;
    int64_t pad[3], stride[3], dilation[3];
    int64_t dims[3][MOST], strides[3][MOST]; /* batch or k, features, 3 spatial ones */
    void *p[3];
    void *work;
};

/* To 10 bits of mantissa, half away from zero. */
static double to_tf32(double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = (bits + 0x1000) & ~0x1FFFu;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* A tensor's elements as doubles, dense in the order of its dims. */
static double *dense(const struct run *r, int t, bool read)
{
    const int64_t *n = r->dims[t], *s = r->strides[t];
    double *out = fake_alloc(sizeof *out * (size_t)(n[0] * n[1] * n[2] * n[3] * n[4]));
    int64_t at = 0;
    for (int64_t a = 0; read && a < n[0]; a++)
        for (int64_t b = 0; b < n[1]; b++)
            for (int64_t i = 0; i < n[2]; i++)
                for (int64_t j = 0; j < n[3]; j++)
                    for (int64_t k = 0; k < n[4]; k++)
                        out[at++] = dnn_load(r->p[t], r->type,
                                             a * s[0] + b * s[1] + i * s[2] + j * s[3] +
                                                 k * s[4]);
    for (int64_t i = 0; i < at && r->tf32; i++)
        out[i] = to_tf32(out[i]);
    return out;
}

static void write_back(const struct run *r, const double *v)
{
    const int64_t *n = r->dims[r->result], *s = r->strides[r->result];
    int64_t at = 0;
    for (int64_t a = 0; a < n[0]; a++)
        for (int64_t b = 0; b < n[1]; b++)
            for (int64_t i = 0; i < n[2]; i++)
                for (int64_t j = 0; j < n[3]; j++)
                    for (int64_t k = 0; k < n[4]; k++)
                        dnn_store(r->p[r->result], r->type,
                                  a * s[0] + b * s[1] + i * s[2] + j * s[3] + k * s[4],
                                  v[at++]);
}

/* The terms of one image's and one feature's plane: v[result] += product of the others.
 */
static void plane(const struct run *r, double *const v[3], int64_t x0, int64_t w0,
                  int64_t y0)
{
    const int64_t *xn = r->dims[X] + 2, *wn = r->dims[W] + 2, *yn = r->dims[Y] + 2;
    const int64_t n_y = yn[0] * yn[1] * yn[2], n_w = wn[0] * wn[1] * wn[2];
    for (int64_t o = 0; o < n_y; o++)
        for (int64_t f = 0; f < n_w; f++) {
            const int64_t at_o[3] = {o / yn[2] / yn[1], o / yn[2] % yn[1], o % yn[2]};
            const int64_t at_f[3] = {f / wn[2] / wn[1], f / wn[2] % wn[1], f % wn[2]};
            int64_t i = 0;
            bool in = true;
            for (int d = 0; d < 3; d++) {
                const int64_t q =
                    at_o[d] * r->stride[d] + at_f[d] * r->dilation[d] - r->pad[d];
                in = in && q >= 0 && q < xn[d];
                i = i * xn[d] + q;
            }
            const int64_t own = r->flip ? n_w - 1 - f : f;
            if (!in)
                continue;
            if (r->result == Y)
                v[Y][y0 + o] += v[X][x0 + i] * v[W][w0 + own];
            else if (r->result == X)
                v[X][x0 + i] += v[Y][y0 + o] * v[W][w0 + own];
            else
                v[W][w0 + own] += v[X][x0 + i] * v[Y][y0 + o];
        }
}

static void convolution_run(void *args)
{
    const struct run *r = args;
    double *v[3];
    int64_t area[3];
    const int64_t c = r->dims[W][1], k = r->dims[W][0], per = k / (r->dims[X][1] / c);
    memset(r->work, 0xFF, WORK_BYTES);
    for (int t = 0; t < 3; t++) {
        v[t] = dense(r, t, t != r->result);
        area[t] = r->dims[t][2] * r->dims[t][3] * r->dims[t][4];
    }
    for (int64_t n = 0; n < r->dims[X][0]; n++)
        for (int64_t o = 0; o < k; o++)
            for (int64_t i = 0; i < c; i++)
                plane(r, v, (n * r->dims[X][1] + o / per * c + i) * area[X],
                      (o * c + i) * area[W], (n * k + o) * area[Y]);
    write_back(r, v[r->result]);
    for (int t = 0; t < 3; t++)
        free(v[t]);
}

/* Two spatial dimensions are three, of which the first is 1. */
static void set_tensor(struct run *r, int t, const struct descriptor *tensor)
{
    const int rank = dnn_rank(tensor), more = MOST - rank;
    r->dims[t][2] = r->strides[t][2] = 1;
    for (int d = 0; d < rank; d++) {
        r->dims[t][d < 2 ? d : d + more] = dnn_dims(tensor)[d];
        r->strides[t][d < 2 ? d : d + more] = dnn_strides(tensor)[d];
    }
}

static void set_steps(struct run *r, const struct descriptor *d)
{
    const int more = 3 - (int)dnn_integer(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
    r->pad[0] = 0, r->stride[0] = r->dilation[0] = 1;
    for (int i = more; i < 3; i++) {
        r->pad[i] = steps(d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 0)[i - more];
        r->stride[i] = steps(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 1)[i - more];
        r->dilation[i] = steps(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, 1)[i - more];
    }
    r->flip = dnn_integer(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE) == CUDNN_CONVOLUTION;
}

cudaError_t dnn_run_convolution(cudaStream_t stream, const struct descriptor *plan,
                                void *work, int n, const struct dnn_memory *memory)
{
    const struct parts p = parts_of_graph(plan->graph);
    struct run r = {.result = p.result, .type = type_of(p.tensor[X]), .work = work};
    r.tf32 = r.type == CUDNN_DATA_FLOAT &&
             plan->proposal.notes >> CUDNN_NUMERICAL_NOTE_TENSOR_CORE & 1;
    set_steps(&r, p.steps);
    for (int t = 0; t < 3; t++) {
        set_tensor(&r, t, p.tensor[t]);
        for (int i = 0; i < n; i++)
            if (memory[i].tensor == p.tensor[t])
                r.p[t] = memory[i].p;
        if (!r.p[t])
            return cudaErrorInvalidValue;
    }
    return fake_enqueue(stream, "cudnn", convolution_run, &r, sizeof r);
}

#endif
