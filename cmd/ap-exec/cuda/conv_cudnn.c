/*
 * convolution by cuDNN, where it is one of the three that a training step has.
 *
 * Problem: HLO knows one convolution. cuDNN has three: y = x * w, and the gradients of it
 * by x and by w, each with kernels of its own. Idea: in each dimension the forward pass
 * is y[o] = sum_k x[o * stride + k * dilation - pad] w[k], and an HLO convolution is one
 * of forward:  lhs = x, rhs = w, result = y; filter:   lhs = x, rhs = y', result = w',
 * where batch is the contracted feature and stride and dilation change places; data: lhs
 * = y', rhs = w, result = x', where lhs is dilated by the stride and pad = (size - 1) *
 * dilation - pad_lo. What fits none (unequal padding, say) is left to im2col (conv.c).
 * Tensors are given to cuDNN as [batch][spatial][features] or [batch][features][spatial],
 * whichever the images lie in, and packed where they do not. The algorithm is the first
 * deterministic one that cuDNN's heuristic proposes, with its workspace in the program's
 * scratch memory.
 */
#include "conv.h"
#include "libraries.h"
#include "tool/tool.h"

#include <limits.h>

#if CUDA_HAS_CUDNN

/* Workspace that an algorithm may use. */
#define MOST_BYTES (256ll << 20)
#define MOST_ALGOS 8
#define MOST_DIMS  5

enum way { FORWARD, DATA, FILTER };
enum { X, W, Y, N_TENSORS };

/* A tensor of the forward pass as a tensor of the node. */
struct role {
    int of;             /* 0: lhs, 1: rhs, 2: the result */
    int outer, feature; /* dimensions: batch or features of y; features */
    const int *spatial;
};

/* The forward pass. */
struct pass {
    enum way way;
    int n_spatial; /* at least 2 */
    int64_t n, c, k, groups;
    int64_t size[N_TENSORS][MOST_DIMS]; /* spatial */
    int pad[MOST_DIMS], stride[MOST_DIMS], dilation[MOST_DIMS];
    bool flip; /* the filter's elements run backwards */
    struct role role[N_TENSORS];
};

struct convolution {
    enum way way;
    int algo;
    size_t bytes; /* of workspace */
    bool wide;    /* scalars are f64 */
    cudnnTensorDescriptor_t x, y;
    cudnnFilterDescriptor_t w;
    cudnnConvolutionDescriptor_t conv;
    struct cuda_at at[N_TENSORS], workspace;
};

static const struct cudnn *lib;
static cudnnHandle_t handle;

/* ---- which convolution it is ---- */

/* Of size y, as cuDNN computes it from x; at most one padding, on both sides. */
static bool fits(int64_t x, int64_t w, int64_t y, int64_t pad, int64_t stride,
                 int64_t dilation)
{
    const int64_t reach = (w - 1) * dilation + 1, room = x + 2 * pad - reach;
    return pad >= 0 && pad < reach && room >= 0 && room / stride + 1 == y &&
           pad <= INT_MAX && stride <= INT_MAX && dilation <= INT_MAX;
}

/* Whether dimension d is of that kind; its sizes and steps into p->...[at]. */
static bool set_dim(struct pass *p, const struct conv *v, int d, int at)
{
    const struct ap_window_dim *w = &v->w[d];
    const int64_t reach = (w->size - 1) * w->rhs_dilate;
    int64_t pad = w->pad_lo, stride = w->stride, dilation = w->rhs_dilate;
    int64_t x = v->in[d], f = w->size, y = v->res[d];
    if (p->way == DATA) {
        if (w->stride != 1)
            return false;
        x = v->res[d], y = v->in[d];
        pad = reach - w->pad_lo, stride = w->lhs_dilate;
    } else if (w->lhs_dilate != 1 && v->in[d] > 1) {
        return false;
    } else if (p->way == FILTER) {
        f = v->res[d], y = w->size;
        stride = w->rhs_dilate, dilation = w->stride;
    }
    p->size[X][at] = x, p->size[W][at] = f, p->size[Y][at] = y;
    if (!fits(x, f, y, pad, stride, dilation))
        return false;
    p->pad[at] = (int)pad, p->stride[at] = (int)stride, p->dilation[at] = (int)dilation;
    return true;
}

static void set_roles(struct pass *p, const struct conv *v, const struct ap_conv_dims *t)
{
    const struct role lhs = {0, t->lhs_batch, t->lhs_feature, t->lhs_spatial};
    const struct role lhs_turned = {0, t->lhs_feature, t->lhs_batch, t->lhs_spatial};
    const struct role rhs = {1, t->rhs_out, t->rhs_in, t->rhs_spatial};
    const struct role rhs_turned = {1, t->rhs_in, t->rhs_out, t->rhs_spatial};
    const struct role out = {2, t->out_batch, t->out_feature, t->out_spatial};
    const struct role out_turned = {2, t->out_feature, t->out_batch, t->out_spatial};
    p->role[X] = p->way == FORWARD ? lhs : p->way == FILTER ? lhs_turned : out;
    p->role[W] = p->way == FORWARD ? rhs : p->way == FILTER ? out_turned : rhs_turned;
    p->role[Y] = p->way == FORWARD ? out : p->way == FILTER ? rhs_turned : lhs;
    p->groups = v->n_groups;
}

/* The pass, as this kind; false: it is not of this kind. */
static bool try_way(struct pass *p, enum way way, const struct conv *v,
                    const struct ap_node *node, const struct ap_shape *const shape[3])
{
    const struct ap_conv_dims *t = &node->attrs->conv;
    const int more = v->n_spatial == 1; /* cuDNN's images have two dimensions at least */
    bool flipped = false, straight = false;
    *p = (struct pass){.way = way, .n_spatial = v->n_spatial + more};
    if (v->n_spatial < 1 || v->n_spatial > 3 ||
        (v->n_groups > 1 && v->batch_groups != (way == FILTER)))
        return false;
    p->size[X][0] = p->size[W][0] = p->size[Y][0] = p->stride[0] = p->dilation[0] = 1;
    for (int d = 0; d < v->n_spatial; d++) {
        flipped |= v->w[d].reversal && v->w[d].size > 1;
        straight |= !v->w[d].reversal && v->w[d].size > 1;
        if (!set_dim(p, v, d, d + more))
            return false;
    }
    if ((flipped && straight) || (way == FILTER && flipped))
        return false;
    p->flip = way == DATA ? straight : flipped;
    set_roles(p, v, t);
    const struct role *x = &p->role[X], *y = &p->role[Y];
    p->n = shape[x->of]->dims[x->outer];
    p->c = shape[x->of]->dims[x->feature];
    p->k = shape[y->of]->dims[y->feature];
    return p->n <= INT_MAX && p->c <= INT_MAX && p->k <= INT_MAX;
}

static bool choose_way(struct pass *p, const struct conv *v, const struct ap_node *node,
                       const struct ap_shape *const shape[3])
{
    bool dilated = false, reversed = false;
    int64_t result = 1;
    for (int d = 0; d < v->n_spatial; d++) {
        dilated |= v->w[d].lhs_dilate > 1;
        reversed |= v->w[d].reversal;
        result *= v->res[d];
    }
    if (v->window > result && try_way(p, FILTER, v, node, shape))
        return true;
    if ((dilated || reversed) && try_way(p, DATA, v, node, shape))
        return true;
    return try_way(p, FORWARD, v, node, shape) || try_way(p, FILTER, v, node, shape) ||
           try_way(p, DATA, v, node, shape);
}

/* ---- where tensors lie ---- */

static int64_t elems_of(const struct pass *p, int t)
{
    int64_t n = t == W ? p->k * (p->c / p->groups) : p->n * (t == X ? p->c : p->k);
    for (int d = 0; d < p->n_spatial; d++)
        n *= p->size[t][d];
    return n;
}

/* The copy from the node's tensor to cuDNN's, or back. */
static struct box pack_box(const struct pass *p, int t, bool nhwc,
                           const struct ap_shape *shape, bool back)
{
    const struct role *r = &p->role[t];
    const int more = p->n_spatial > shape->rank - 2;
    int64_t stride[AP_MAX_RANK], inner = 1, area = 1;
    struct box b = {0};
    const int64_t features = t == X ? p->c : t == Y ? p->k : p->c / p->groups;
    for (int d = 0; d < p->n_spatial; d++)
        area *= p->size[t][d];
    cpu_strides(shape, stride);
#define PUT(n, own, packed) \
    box_add(&b, n, back ? (packed) : (own), back ? (own) : (packed))
    PUT(features, stride[r->feature], nhwc ? 1 : area);
    inner = nhwc ? features : 1;
    for (int d = p->n_spatial - 1; d >= more; inner *= p->size[t][d--])
        PUT(p->size[t][d], stride[r->spatial[d - more]], inner);
    if (t == W && p->way == DATA) { /* [features of y of a group][groups, features] */
        const int64_t k = p->k / p->groups;
        PUT(k, stride[r->outer], features * area);
        PUT(p->groups, features * stride[r->feature], k * features * area);
    } else {
        PUT(t == W ? p->k : p->n, stride[r->outer], features * area);
    }
#undef PUT
    box_finish(&b);
    return b;
}

static bool is_same(const struct box *b)
{
    return b->rank == 0 || (b->rank == 1 && b->src[0] == 1 && b->dst[0] == 1);
}

/* ---- descriptors and algorithms ---- */

static cudnnDataType_t data_type(enum ap_dtype dtype)
{
    return dtype == AP_BF16  ? CUDNN_DATA_BFLOAT16
           : dtype == AP_F16 ? CUDNN_DATA_HALF
           : dtype == AP_F64 ? CUDNN_DATA_DOUBLE
                             : CUDNN_DATA_FLOAT;
}

static void describe_tensor(cudnnTensorDescriptor_t *out, const struct pass *p, int t,
                            bool nhwc, cudnnDataType_t type)
{
    const int64_t features = t == X ? p->c : p->k;
    int dims[MOST_DIMS] = {(int)p->n, (int)features}, strides[MOST_DIMS];
    int64_t run = nhwc ? features : 1;
    for (int d = p->n_spatial - 1; d >= 0; d--) {
        dims[2 + d] = (int)p->size[t][d];
        strides[2 + d] = (int)run;
        run *= p->size[t][d];
    }
    strides[1] = nhwc ? 1 : (int)run;
    strides[0] = (int)(nhwc ? run : run * features);
    cudnn_check(lib->cudnnCreateTensorDescriptor(out), "cudnnCreateTensorDescriptor");
    cudnn_check(
        lib->cudnnSetTensorNdDescriptor(*out, type, 2 + p->n_spatial, dims, strides),
        "cudnnSetTensorNdDescriptor");
}

static void describe(struct convolution *s, const struct pass *p, bool nhwc,
                     enum ap_dtype dtype, cudnnMathType_t math)
{
    int dims[MOST_DIMS] = {(int)p->k, (int)(p->c / p->groups)};
    for (int d = 0; d < p->n_spatial; d++)
        dims[2 + d] = (int)p->size[W][d];
    describe_tensor(&s->x, p, X, nhwc, data_type(dtype));
    describe_tensor(&s->y, p, Y, nhwc, data_type(dtype));
    cudnn_check(lib->cudnnCreateFilterDescriptor(&s->w), "cudnnCreateFilterDescriptor");
    cudnn_check(lib->cudnnSetFilterNdDescriptor(
                    s->w, data_type(dtype), nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                    2 + p->n_spatial, dims),
                "cudnnSetFilterNdDescriptor");
    cudnn_check(lib->cudnnCreateConvolutionDescriptor(&s->conv),
                "cudnnCreateConvolutionDescriptor");
    cudnn_check(lib->cudnnSetConvolutionNdDescriptor(
                    s->conv, p->n_spatial, p->pad, p->stride, p->dilation,
                    p->flip ? CUDNN_CONVOLUTION : CUDNN_CROSS_CORRELATION,
                    dtype == AP_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
                "cudnnSetConvolutionNdDescriptor");
    cudnn_check(lib->cudnnSetConvolutionGroupCount(s->conv, (int)p->groups),
                "cudnnSetConvolutionGroupCount");
    cudnn_check(lib->cudnnSetConvolutionMathType(s->conv, math),
                "cudnnSetConvolutionMathType");
}

/* The first proposal that repeats its bits, is of the mathematics asked for, and has
 * room; of those with tensor cores first, where they are allowed. The three kinds'
 * structs have members of the same names. */
#define PICK(Perf, call)                                                              \
    do {                                                                              \
        Perf perf[MOST_ALGOS];                                                        \
        if ((call) != CUDNN_STATUS_SUCCESS)                                           \
            n = 0;                                                                    \
        for (int i = 0; i < 2 * n && !found; i++) {                                   \
            const Perf *const p = &perf[i % n];                                       \
            const bool plain = p->mathType == CUDNN_FMA_MATH;                         \
            if (p->status != CUDNN_STATUS_SUCCESS ||                                  \
                p->determinism != CUDNN_DETERMINISTIC || p->memory > MOST_BYTES ||    \
                (math == CUDNN_FMA_MATH ? !plain && p->mathType != CUDNN_DEFAULT_MATH \
                                        : plain && i < n))                            \
                continue;                                                             \
            s->algo = (int)p->algo;                                                   \
            s->bytes = p->memory;                                                     \
            if (math != CUDNN_FMA_MATH)                                               \
                lib->cudnnSetConvolutionMathType(s->conv, p->mathType);               \
            found = true;                                                             \
        }                                                                             \
    } while (0)

static bool pick_algo(struct convolution *s, cudnnMathType_t math)
{
    bool found = false;
    int n = 0;
    switch (s->way) {
    case FORWARD:
        PICK(cudnnConvolutionFwdAlgoPerf_t,
             lib->cudnnGetConvolutionForwardAlgorithm_v7(handle, s->x, s->w, s->conv,
                                                         s->y, MOST_ALGOS, &n, perf));
        break;
    case DATA:
        PICK(cudnnConvolutionBwdDataAlgoPerf_t,
             lib->cudnnGetConvolutionBackwardDataAlgorithm_v7(
                 handle, s->w, s->y, s->conv, s->x, MOST_ALGOS, &n, perf));
        break;
    case FILTER:
        PICK(cudnnConvolutionBwdFilterAlgoPerf_t,
             lib->cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                 handle, s->x, s->y, s->conv, s->w, MOST_ALGOS, &n, perf));
        break;
    }
    return found;
}

static void convolution_close(struct exec *x, void *state)
{
    (void)x;
    const struct convolution *s = state;
    lib->cudnnDestroyTensorDescriptor(s->x);
    lib->cudnnDestroyTensorDescriptor(s->y);
    lib->cudnnDestroyFilterDescriptor(s->w);
    lib->cudnnDestroyConvolutionDescriptor(s->conv);
}

static void convolution_run(struct exec *e, void *state)
{
    static const float one = 1, zero = 0;
    static const double one64 = 1, zero64 = 0;
    const struct convolution *s = state;
    const void *alpha = s->wide ? (const void *)&one64 : (const void *)&one;
    const void *beta = s->wide ? (const void *)&zero64 : (const void *)&zero;
    char *x = cuda_place(e, s->at[X]), *w = cuda_place(e, s->at[W]),
         *y = cuda_place(e, s->at[Y]), *work = cuda_place(e, s->workspace);
    switch (s->way) {
    case FORWARD:
        cudnn_check(lib->cudnnConvolutionForward(handle, alpha, s->x, x, s->w, w, s->conv,
                                                 (cudnnConvolutionFwdAlgo_t)s->algo, work,
                                                 s->bytes, beta, s->y, y),
                    "cudnnConvolutionForward");
        return;
    case DATA:
        cudnn_check(
            lib->cudnnConvolutionBackwardData(handle, alpha, s->w, w, s->y, y, s->conv,
                                              (cudnnConvolutionBwdDataAlgo_t)s->algo,
                                              work, s->bytes, beta, s->x, x),
            "cudnnConvolutionBackwardData");
        return;
    case FILTER:
        cudnn_check(
            lib->cudnnConvolutionBackwardFilter(handle, alpha, s->x, x, s->y, y, s->conv,
                                                (cudnnConvolutionBwdFilterAlgo_t)s->algo,
                                                work, s->bytes, beta, s->w, w),
            "cudnnConvolutionBackwardFilter");
        return;
    }
}

/* ---- the call ---- */

/* cuDNN for this rank's device; false: there is none, which rank 0 says once. */
static bool open_library(void)
{
    static bool said;
    lib = cudnn_open();
    handle = cudnn_handle();
    if (!handle && !said && cuda_dev.rank == 0)
        ap_say("NVIDIA's libcudnn.so.9 is not found: convolutions are products of "
               "unrolled rows (im2col)");
    said = true;
    return handle != NULL;
}

/* An algorithm for images that lie as the operand does, or else the other way. */
static bool find_algo(struct convolution *s, const struct pass *p, bool *nhwc,
                      enum ap_dtype dtype, bool tf32)
{
    const cudnnMathType_t math = dtype == AP_BF16 || dtype == AP_F16
                                     ? CUDNN_TENSOR_OP_MATH
                                 : tf32 ? CUDNN_DEFAULT_MATH
                                        : CUDNN_FMA_MATH;
    for (int i = 0; i < 2; i++, *nhwc = !*nhwc) {
        describe(s, p, *nhwc, dtype, math);
        if (pick_algo(s, math))
            return true;
        convolution_close(NULL, s);
    }
    return false;
}

bool cuda_add_cudnn(struct exec *x, struct cuda_call *c, const struct conv *v,
                    const struct ap_node *node, bool tf32)
{
    const struct ap_shape *const shape[3] = {&call_in(x, node, 0)->shape,
                                             &call_in(x, node, 1)->shape, &node->shape};
    const void *memory[3] = {v->lhs, v->rhs, v->out};
    const enum ap_dtype dtype = node->shape.dtype;
    const int size = ap_dtype_size(dtype);
    struct pass p;
    int64_t scratch = 0;
    if (!ap_dtype_is_float(dtype) || size == 1 || cuda_dev.opts.compile_for ||
        !choose_way(&p, v, node, shape) || !open_library())
        return false;
    for (int t = 0; t < N_TENSORS; t++)
        if (elems_of(&p, t) > INT_MAX)
            return false;
    const struct role *image = &p.role[p.way == DATA ? Y : X];
    bool nhwc = image->feature == shape[image->of]->rank - 1;
    struct convolution *s = AP_NEW(x->arena, struct convolution);
    s->way = p.way;
    s->wide = dtype == AP_F64;
    if (!find_algo(s, &p, &nhwc, dtype, tf32))
        return false;
    int result = 0;
    struct box unpack = {0};
    for (int t = 0; t < N_TENSORS; t++) {
        const struct role *r = &p.role[t];
        const struct box b = pack_box(&p, t, nhwc, shape[r->of], r->of == 2);
        s->at[t] = at_memory(memory[r->of]);
        if (r->of == 2) {
            result = t;
            unpack = b;
        }
        if (is_same(&b))
            continue;
        s->at[t] = at_scratch(exec_take(&scratch, elems_of(&p, t) * size));
        if (r->of != 2)
            cuda_add_box(x, c, &b, s->at[t], at_memory(memory[r->of]), size);
    }
    s->workspace = cuda_workspace(&scratch, (int64_t)s->bytes);
    exec_need_scratch(x, scratch);
    cuda_add(x, c, convolution_run, s, convolution_close);
    if (!is_same(&unpack))
        cuda_add_box(x, c, &unpack, at_memory(v->out), s->at[result], size);
    return true;
}

#else

bool cuda_add_cudnn(struct exec *x, struct cuda_call *c, const struct conv *v,
                    const struct ap_node *node, bool tf32)
{
    (void)x, (void)c, (void)v, (void)node, (void)tf32;
    return false;
}

#endif
