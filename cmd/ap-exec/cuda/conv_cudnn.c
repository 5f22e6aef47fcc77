/*
 * convolution by cuDNN, where it is one of the three that a training step has.
 *
 * Problem: HLO knows one convolution. cuDNN has three: y = x * w, and the gradients of it
 * by x and by w, each with kernels of its own. Idea: in each dimension the forward pass
 * is y[o] = sum_k x[o * stride + k * dilation - pad] w[k], and an HLO convolution is one
 * of forward: lhs = x, rhs = w, result = y; filter: lhs = x, rhs = y', result = w', where
 * batch is the contracted feature and stride and dilation change places; data: lhs = y',
 * rhs = w, result = x', where lhs is dilated by the stride and pad = (size - 1) *
 * dilation - pad_lo. Convolutions that fit none of them (with unequal padding, say) are
 * left to im2col (conv.c). Tensors are given to cuDNN as [batch][spatial][features] or
 * [batch][features][spatial], whichever the images lie in, and packed where they do not.
 * Filters that are used backwards are packed so, too, because few engines turn them.
 * Images with fewer features than a tensor core reads at once (three colours) are packed
 * with more, which are zero. Each is a graph of one operation, whose plan is the first
 * that cuDNN's heuristic proposes with an engine that repeats its bits and is as exact as
 * the types ask for (wishes_of), with its workspace in the program's scratch memory.
 * Plans are kept: equal convolutions share one.
 */
#include "cuda.h"
#include "cudnn_graph.h"
#include "tool/tool.h"

#include <limits.h>
#include <string.h>

#if CUDA_HAS_CUDNN

/* Workspace that an engine may use, at least: as much as copies of all tensors, and a
 * quarter more, is allowed, too, where the device has room for it (is_roomy). Tensor
 * cores of tf32 take that for the filter's gradient of images with three features. */
#define MOST_BYTES  (256ll << 20)
#define MOST_DIMS   5
#define MOST_WISHES 3
/* Of tensors, bytes (cudnn_tensor). */
#define ALIGNMENT 16

enum way { FORWARD, DATA, FILTER };
enum { X, W, Y, N_TENSORS };

/* A tensor of the forward pass as a tensor of the node. */
struct role {
    int of;             /* 0: lhs, 1: rhs, 2: the result */
    int outer, feature; /* dimensions: batch or features of y; features */
    const int *spatial;
};

/* What a plan is made for. All members count for equality: made from zeroed memory. */
struct problem {
    enum way way;
    enum ap_dtype dtype;
    bool tf32;     /* operands of f32 may be rounded to it */
    bool roomy;    /* the device has room for the larger workspace */
    bool nhwc;     /* tensors are [batch][spatial][features], else features come second */
    int n_spatial; /* at least 2 */
    int64_t n, c, k, groups;
    int64_t size[N_TENSORS][MOST_DIMS]; /* spatial */
    int64_t pad[MOST_DIMS], stride[MOST_DIMS], dilation[MOST_DIMS];
};

/* The forward pass of a node. */
struct pass {
    struct problem q;
    int64_t c; /* features of x that there are; those after them, to q.c, are zero */
    bool flip; /* the filter's elements run backwards */
    struct role role[N_TENSORS];
};

struct plan {
    struct problem problem;
    struct cudnn_plan graph; /* of: X, W, Y */
    struct plan *next;
};

struct convolution {
    const struct plan *plan;
    struct cuda_at at[N_TENSORS], workspace;
    cudnnBackendDescriptor_t pack; /* NULL: before the first run */
    const char *scratch;           /* that pack was made for */
};

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
    if (p->q.way == DATA) {
        if (w->stride != 1)
            return false;
        x = v->res[d], y = v->in[d];
        pad = reach - w->pad_lo, stride = w->lhs_dilate;
    } else if (w->lhs_dilate != 1 && v->in[d] > 1) {
        return false;
    } else if (p->q.way == FILTER) {
        f = v->res[d], y = w->size;
        stride = w->rhs_dilate, dilation = w->stride;
    }
    p->q.size[X][at] = x, p->q.size[W][at] = f, p->q.size[Y][at] = y;
    if (!fits(x, f, y, pad, stride, dilation))
        return false;
    p->q.pad[at] = pad, p->q.stride[at] = stride, p->q.dilation[at] = dilation;
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
    p->role[X] = p->q.way == FORWARD ? lhs : p->q.way == FILTER ? lhs_turned : out;
    p->role[W] = p->q.way == FORWARD ? rhs : p->q.way == FILTER ? out_turned : rhs_turned;
    p->role[Y] = p->q.way == FORWARD ? out : p->q.way == FILTER ? rhs_turned : lhs;
    p->q.groups = v->n_groups;
}

/* The pass, as this kind; false: it is not of this kind. */
static bool try_way(struct pass *p, enum way way, const struct conv *v,
                    const struct ap_node *node, const struct ap_shape *const shape[3])
{
    const struct ap_conv_dims *t = &node->attrs->conv;
    const int more = v->n_spatial == 1; /* cuDNN's images have two dimensions at least */
    bool flipped = false, straight = false;
    memset(p, 0, sizeof *p);
    p->q.way = way;
    p->q.n_spatial = v->n_spatial + more;
    if (v->n_spatial < 1 || v->n_spatial > 3 ||
        (v->n_groups > 1 && v->batch_groups != (way == FILTER)))
        return false;
    p->q.size[X][0] = p->q.size[W][0] = p->q.size[Y][0] = p->q.stride[0] =
        p->q.dilation[0] = 1;
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
    p->q.n = shape[x->of]->dims[x->outer];
    p->c = p->q.c = shape[x->of]->dims[x->feature];
    p->q.k = shape[y->of]->dims[y->feature];
    return p->q.n <= INT_MAX && p->q.c <= INT_MAX && p->q.k <= INT_MAX;
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

static int64_t elems_of(const struct problem *q, int t)
{
    int64_t n = t == W ? q->k * (q->c / q->groups) : q->n * (t == X ? q->c : q->k);
    for (int d = 0; d < q->n_spatial; d++)
        n *= q->size[t][d];
    return n;
}

/* The copy from the node's tensor to cuDNN's, or back; the node's starts at element
 * *first. */
static struct box pack_box(const struct pass *p, int t, const struct ap_shape *shape,
                           bool back, int64_t *first)
{
    const struct role *r = &p->role[t];
    const int more = p->q.n_spatial > shape->rank - 2;
    const bool nhwc = p->q.nhwc, flip = p->flip && t == W;
    int64_t stride[AP_MAX_RANK], inner = 1, area = 1;
    struct box b = {0};
    const int64_t features = t == X ? p->q.c : t == Y ? p->q.k : p->q.c / p->q.groups;
    const int64_t there = t == Y || p->c == p->q.c ? features : p->c;
    for (int d = 0; d < p->q.n_spatial; d++)
        area *= p->q.size[t][d];
    cpu_strides(shape, stride);
#define PUT(n, own, packed) \
    box_add(&b, n, back ? (packed) : (own), back ? (own) : (packed))
    PUT(there, stride[r->feature], nhwc ? 1 : area);
    inner = nhwc ? features : 1;
    *first = 0;
    for (int d = p->q.n_spatial - 1; d >= more; inner *= p->q.size[t][d--]) {
        const int64_t own = stride[r->spatial[d - more]];
        *first += flip ? (p->q.size[t][d] - 1) * own : 0;
        PUT(p->q.size[t][d], flip ? -own : own, inner);
    }
    if (t == W && p->q.way == DATA) { /* [features of y of a group][groups, features] */
        const int64_t k = p->q.k / p->q.groups;
        PUT(k, stride[r->outer], features * area);
        PUT(p->q.groups, features * stride[r->feature], k * features * area);
    } else {
        PUT(t == W ? p->q.k : p->q.n, stride[r->outer], features * area);
    }
#undef PUT
    box_finish(&b);
    return b;
}

static bool is_same(const struct box *b)
{
    return b->rank == 0 || (b->rank == 1 && b->src[0] == 1 && b->dst[0] == 1);
}

/* Few features of x are padded to one read of a tensor core; with groups they do not
 * change. Engines for the filter's gradient do so themselves. */
static void pad_features(struct pass *p)
{
    const int64_t least = ALIGNMENT / ap_dtype_size(p->q.dtype), c = p->q.c;
    if (p->q.groups > 1 || p->q.way != FORWARD || c >= least ||
        (!p->q.tf32 && ap_dtype_size(p->q.dtype) > 2))
        return;
    p->q.c = least;
    if (elems_of(&p->q, X) > INT_MAX)
        p->q.c = c;
}

/* ---- plans ---- */

static cudnnDataType_t data_type(enum ap_dtype dtype)
{
    return dtype == AP_BF16  ? CUDNN_DATA_BFLOAT16
           : dtype == AP_F16 ? CUDNN_DATA_HALF
           : dtype == AP_F64 ? CUDNN_DATA_DOUBLE
                             : CUDNN_DATA_FLOAT;
}

static cudnnBackendDescriptor_t describe_tensor(struct cudnn_builder *b,
                                                const struct problem *q, int t)
{
    const int64_t features = t == X ? q->c : t == Y ? q->k : q->c / q->groups;
    int64_t n[MOST_DIMS] = {t == W ? q->k : q->n, features}, stride[MOST_DIMS];
    int64_t run = q->nhwc ? features : 1;
    for (int d = q->n_spatial - 1; d >= 0; d--) {
        n[2 + d] = q->size[t][d];
        stride[2 + d] = run;
        run *= q->size[t][d];
    }
    stride[1] = q->nhwc ? 1 : run;
    stride[0] = q->nhwc ? run : run * features;
    return cudnn_tensor(b, data_type(q->dtype), 2 + q->n_spatial, n, stride,
                        CUDNN_IN_MEMORY, t);
}

static cudnnBackendDescriptor_t describe_steps(struct cudnn_builder *b,
                                               const struct problem *q)
{
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t n = q->n_spatial;
    cudnnBackendDescriptor_t d = cudnn_make(b, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    cudnn_set_type(b, d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE,
                   q->dtype == AP_F64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT);
    cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1,
              &mode);
    cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &n);
    cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, n, q->pad);
    cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, n, q->pad);
    cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, n, q->dilation);
    cudnn_set(b, d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, n,
              q->stride);
    cudnn_finalize(b, d);
    return d;
}

/* The attributes of the three operations. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t tensor[N_TENSORS], steps, alpha, beta;
} operation[] = {
    [FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                 {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                  CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [FILTER] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

static void put_operation(struct cudnn_builder *b, const struct problem *q)
{
    static const float one = 1, zero = 0;
    static const double one64 = 1, zero64 = 0;
    const bool wide = q->dtype == AP_F64;
    const cudnnBackendAttributeType_t scalar =
        wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
    cudnnBackendDescriptor_t tensor[N_TENSORS];
    for (int t = 0; t < N_TENSORS; t++)
        tensor[t] = describe_tensor(b, q, t);
    cudnnBackendDescriptor_t steps = describe_steps(b, q);
    cudnnBackendDescriptor_t op = cudnn_make(b, operation[q->way].type);
    for (int t = 0; t < N_TENSORS; t++)
        cudnn_set_desc(b, op, operation[q->way].tensor[t], tensor[t]);
    cudnn_set_desc(b, op, operation[q->way].steps, steps);
    cudnn_set(b, op, operation[q->way].alpha, scalar, 1,
              wide ? (const void *)&one64 : (const void *)&one);
    cudnn_set(b, op, operation[q->way].beta, scalar, 1,
              wide ? (const void *)&zero64 : (const void *)&zero);
    cudnn_end_op(b, op);
}

/*
 * Engines whose runs repeat their bits. Of f32 and f64 those that compute in the type: no
 * smaller one for operands (DOWN_CONVERT_INPUTS: f16 for f32) or partial sums, and no
 * transforms; f32 without tensor cores. Where f32 may be rounded to tf32, and for f16 and
 * bf16, tensor cores come first, of these the ones with sums in f32.
 */
static int wishes_of(const struct problem *q, struct cudnn_wish wish[MOST_WISHES])
{
    const unsigned varies = CUDNN_NOTE(NONDETERMINISTIC), cores = CUDNN_NOTE(TENSOR_CORE);
    const unsigned sums = CUDNN_NOTE(REDUCED_PRECISION_REDUCTION);
    const unsigned inexact = varies | sums | CUDNN_NOTE(DOWN_CONVERT_INPUTS) |
                             CUDNN_NOTE(WINOGRAD) | CUDNN_NOTE(FFT);
    const bool f32 = q->dtype == AP_F32;
    if (q->dtype == AP_F64 || (f32 && !q->tf32)) {
        wish[0] = (struct cudnn_wish){0, f32 ? inexact | cores : inexact};
        return 1;
    }
    wish[0] = (struct cudnn_wish){cores, inexact};
    wish[1] = (struct cudnn_wish){cores, f32 ? inexact & ~sums : varies};
    wish[2] = (struct cudnn_wish){0, f32 ? inexact : varies};
    return 3;
}

static int64_t tensor_bytes(const struct problem *q)
{
    int64_t bytes = 0;
    for (int t = 0; t < N_TENSORS; t++)
        bytes += elems_of(q, t) * ap_dtype_size(q->dtype);
    return bytes;
}

static int64_t most_bytes(const struct problem *q)
{
    const int64_t bytes = q->roomy ? tensor_bytes(q) * 5 / 4 : 0;
    return bytes > MOST_BYTES ? bytes : MOST_BYTES;
}

/* Whether the larger workspace, and packed tensors, take at most half of what the device
 * has beside the program's memory. The other half is for what is allocated later: the
 * other programs of the rank, and what libraries take. Not what is free now: ranks of one
 * program must choose the same engines. */
static bool is_roomy(const struct exec *x, const struct problem *q)
{
    static int64_t device; /* bytes */
    char name[1];
    if (!device)
        device = cuda_describe(name, sizeof name);
    return tensor_bytes(q) * 9 / 4 <=
           (device - exec_memory_bytes(x) - x->temps_bytes) / 2;
}

/* The plan of a problem, the same for equal ones; NULL: cuDNN has none. */
static const struct plan *plan_of(const struct problem *q)
{
    static struct plan *plans; /* of the process */
    struct cudnn_wish wish[MOST_WISHES];
    struct plan *s;
    for (s = plans; s; s = s->next)
        if (!memcmp(&s->problem, q, sizeof *q))
            return s->graph.plan ? s : NULL;
    s = ap_xrealloc(NULL, sizeof *s);
    memset(s, 0, sizeof *s);
    memcpy(&s->problem, q, sizeof *q);
    s->next = plans;
    plans = s;
    struct cudnn_builder b = {.p = &s->graph};
    put_operation(&b, q);
    const int n = wishes_of(q, wish);
    cudnn_end_graph(&b, n, wish, most_bytes(q));
    return s->graph.plan ? s : NULL;
}

/* ---- the call ---- */

static void convolution_close(struct exec *x, void *state)
{
    (void)x;
    struct convolution *s = state;
    if (s->pack)
        cudnn_unbind(s->pack);
    s->pack = NULL;
}

/* The scratch memory has an address only when the first step runs. */
static void bind(struct exec *x, struct convolution *s)
{
    const struct cudnn_plan *p = &s->plan->graph;
    const void *pointer[N_TENSORS];
    convolution_close(x, s);
    for (int i = 0; i < p->n; i++)
        pointer[i] = cuda_place(x, s->at[p->of[i]]);
    s->pack = cudnn_bind(p, pointer, cuda_place(x, s->workspace));
    s->scratch = x->scratch;
}

static void convolution_run(struct exec *x, void *state)
{
    struct convolution *s = state;
    if (!s->pack || s->scratch != x->scratch)
        bind(x, s);
    cudnn_run(&s->plan->graph, s->pack);
}

/* Whether cuDNN is available for this rank's device; if not, rank 0 says so once. */
static bool open_library(void)
{
    static bool said;
    const bool found = cudnn_handle() != NULL;
    if (!found && !said && cuda_dev.rank == 0)
        ap_say("NVIDIA's libcudnn.so.9 is not found: convolutions are products of "
               "unrolled rows (im2col)");
    said = true;
    return found;
}

/* A plan for images that lie as the operand does, or else the other way. */
static const struct plan *find_plan(struct pass *p, const struct ap_shape *image,
                                    int feature)
{
    p->q.nhwc = feature == image->rank - 1;
    const struct plan *s = plan_of(&p->q);
    if (!s) {
        p->q.nhwc = !p->q.nhwc;
        s = plan_of(&p->q);
    }
    return s;
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
        if (elems_of(&p.q, t) > INT_MAX)
            return false;
    const struct role *image = &p.role[p.q.way == DATA ? Y : X];
    p.q.dtype = dtype;
    p.q.tf32 = dtype == AP_F32 && tf32;
    pad_features(&p);
    p.q.roomy = is_roomy(x, &p.q);
    const struct plan *plan = find_plan(&p, shape[image->of], image->feature);
    if (!plan)
        return false;
    struct convolution *s = AP_NEW(x->arena, struct convolution);
    s->plan = plan;
    int result = -1; /* the tensor that is packed and the node's result */
    struct box unpack = {0};
    for (int t = 0; t < N_TENSORS; t++) {
        const struct role *r = &p.role[t];
        int64_t first;
        const struct box b = pack_box(&p, t, shape[r->of], r->of == 2, &first);
        s->at[t] = at_memory(memory[r->of]);
        const bool whole = t == Y || p.c == p.q.c;
        if (whole && is_same(&b) && (uintptr_t)memory[r->of] % ALIGNMENT == 0)
            continue;
        const struct cuda_at own = at_plus(s->at[t], first * size);
        s->at[t] = at_scratch(exec_take(&scratch, elems_of(&p.q, t) * size));
        if (r->of != 2) {
            if (!whole)
                cuda_add_zero(x, c, s->at[t], elems_of(&p.q, t) * size);
            cuda_add_box(x, c, &b, s->at[t], own, size);
        } else {
            result = t;
            unpack = b;
        }
    }
    s->workspace = cuda_workspace(&scratch, plan->graph.workspace);
    exec_need_scratch(x, scratch);
    cuda_add(x, c, convolution_run, s, convolution_close);
    if (result >= 0)
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
