/*
 * cuDNN's attention, as XLA and JAX call it, in plain operators: what ap-fuse finds and
 * makes one group again, and what a device without such kernels runs.
 *
 *   __cudnn$fmhaSoftmax, ...ScaleBiasSoftmax       q, k, v, (bias), (lengths of q and of
 * k) s = scale q k + bias, masked; o = softmax(s) v; and the logarithm of the sums, l
 *   ...Backward                                    q, k, v, l, do, (bias), o, (lengths)
 *       p = exp(s - l), dp = do v, ds = p (dp - sum(do o)),
 *       dq = scale ds k, dk = scale ds q, dv = p do; and d bias, ds summed over what
 *       shares it
 *
 * q is [batch, rows, heads, width] or [batch, heads, rows, width], as the configuration's
 * dimension numbers say; o, dq, dk and dv have heads before rows always. Heads of k may
 * be fewer: groups of heads of q share one. Scores are f32, products of them take the
 * type of q. After jax/_src/cudnn/fused_attention_stablehlo.py and XLA's
 * gpu_fused_mha_runner. These stay calls: dropout, whose random numbers are cuDNN's, fp8,
 * packed sequences, paged keys and ALiBi.
 */
#include "emit.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

struct fmha {
    struct emit e;
    bool backward, bias, heads_first;
    double scale;
    bool causal, padding;
    int64_t window;    /* keys that a query sees, itself included, 0: all */
    int heads, rows;   /* dimensions of q, k and v */
    int64_t groups;    /* heads of q to one of k */
    int rank, at_rows; /* of scores, [batch, heads, rows] and keys, groups in between */
    struct ap_shape s; /* of scores */
    enum ap_dtype dtype;
    int lengths[2]; /* operands, of queries and keys, -1 */
};

/* ---- the configuration ---- */

static int64_t number_of(const json_t *c, const char *key, int64_t without)
{
    const json_t *v = json_object_get(c, key);
    if (json_is_string(v))
        return strtoll(json_string_value(v), NULL, 10);
    return json_is_number(v) ? (int64_t)json_number_value(v) : without;
}

/* The dimension of heads in q: the second batch dimension of the product that has q. */
static int heads_of(const json_t *c, bool backward)
{
    const json_t *dot =
        json_object_get(c, backward ? "bmm2_grad_gemm2_dot_dimension_numbers"
                                    : "bmm1_dot_dimension_numbers");
    const json_t *batch = json_object_get(dot, "lhs_batch_dimensions");
    const json_t *d = json_array_get(batch, 1);
    int heads =
        json_is_string(d) ? atoi(json_string_value(d)) : (int)json_integer_value(d);
    return json_array_size(batch) == 2 && (heads == 1 || heads == 2) ? heads : -1;
}

/* False: nothing that is expanded. */
static bool read_config(struct fmha *a, const json_t *c)
{
    const char *mask = json_string_value(json_object_get(c, "mask_type"));
    const json_t *scale = json_object_get(c, "fmha_scale");

    if (!mask || !json_is_number(scale) ||
        json_number_value(json_object_get(c, "dropout_rate")) != 0 ||
        number_of(c, "max_seg_per_batch", 1) > 1 ||
        json_is_true(json_object_get(c, "is_paged_attention")))
        return false;
    a->scale = json_number_value(scale);
    a->causal = !strcmp(mask, "CAUSAL") || !strcmp(mask, "PADDING_CAUSAL");
    a->padding = !strcmp(mask, "PADDING") || !strcmp(mask, "PADDING_CAUSAL");
    a->window = number_of(c, "sliding_window_length", 0);
    a->heads = heads_of(c, a->backward);
    a->rows = 3 - a->heads;
    a->heads_first = a->heads == 1;
    return a->heads > 0 && (a->causal || a->padding || !strcmp(mask, "NO_MASK"));
}

static bool read_call(struct fmha *a, const struct hlo_instr *instr)
{
    static const struct {
        const char *target;
        bool backward, bias;
    } calls[] = {{"__cudnn$fmhaSoftmax", false, false},
                 {"__cudnn$fmhaScaleBiasSoftmax", false, true},
                 {"__cudnn$fmhaSoftmaxBackward", true, false},
                 {"__cudnn$fmhaScaleBiasSoftmaxBackward", true, true}};
    bool known = false;

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (instr->target && strcmp(instr->target, calls[i].target) == 0) {
            a->backward = calls[i].backward;
            a->bias = calls[i].bias;
            known = true;
        }
    json_t *config =
        known ? json_loadb(instr->config.s, instr->config.len, 0, NULL) : NULL;
    known =
        config && read_config(a, json_object_get(config, "cudnn_fmha_backend_config"));
    json_decref(config);
    return known;
}

/* ---- shapes ---- */

static const struct ap_shape *in_shape(const struct fmha *a, int k)
{
    const struct value *v = &a->e.f->values[a->e.instr->in[k]];
    return v->node < 0 ? NULL : emit_shape(&a->e, v->node);
}

static struct ap_ints list(const struct fmha *a, int n, const int64_t *v)
{
    return (struct ap_ints){
        n, ap_arena_dup(a->e.f->im->src->arena, v, (size_t)n * sizeof *v + 1)};
}

static struct ap_shape shape_of(const struct fmha *a, enum ap_dtype dtype, int rank,
                                const int64_t *dims)
{
    return (struct ap_shape){.dtype = dtype, .rank = rank, .dims = list(a, rank, dims).v};
}

/* Whether the operands are as many, and of the shapes, that the call takes. */
static bool has_operands(struct fmha *a)
{
    const int n = 3 + (a->backward ? 3 : 0) + a->bias + (a->padding ? 2 : 0);
    const struct ap_shape *s[3];

    if (a->e.instr->n_in != n)
        return false;
    for (int k = 0; k < n; k++)
        if (!in_shape(a, k))
            return false;
    for (int k = 0; k < 3; k++) {
        s[k] = in_shape(a, k);
        if (s[k]->rank != 4 || s[k]->dtype != s[0]->dtype ||
            s[k]->dims[0] != s[0]->dims[0])
            return false;
    }
    const int h = a->heads, r = a->rows;
    if (s[1]->dims[3] != s[0]->dims[3] || s[2]->dims[h] != s[1]->dims[h] ||
        s[2]->dims[r] != s[1]->dims[r] || s[1]->dims[h] < 1 ||
        s[0]->dims[h] % s[1]->dims[h])
        return false;
    a->dtype = s[0]->dtype;
    a->groups = s[0]->dims[h] / s[1]->dims[h];
    a->rank = a->groups > 1 ? 5 : 4;
    const int64_t kv = s[1]->dims[h], rows = s[0]->dims[r];
    const int64_t plain[4] = {s[0]->dims[0], kv, rows, s[1]->dims[r]};
    const int64_t grouped[5] = {s[0]->dims[0], kv, a->heads_first ? a->groups : rows,
                                a->heads_first ? rows : a->groups, s[1]->dims[r]};
    a->at_rows = a->groups > 1 && a->heads_first ? 3 : 2;
    a->s = shape_of(a, AP_F32, a->rank, a->groups > 1 ? grouped : plain);
    for (int k = 0; k < 2; k++)
        a->lengths[k] = a->padding ? n - 2 + k : -1;
    return a->dtype == AP_BF16 || a->dtype == AP_F16 || a->dtype == AP_F32;
}

/* ---- operators ---- */

static int convert(const struct fmha *a, int x, enum ap_dtype dtype)
{
    return emit_recast(&a->e, AP_OP_CONVERT, x, dtype);
}

static int times(const struct fmha *a, int x, double v)
{
    return emit_binary(
        &a->e, AP_OP_MULTIPLY, x,
        emit_number(&a->e, emit_shape(&a->e, x)->dtype, v, emit_shape(&a->e, x)));
}

/* Dimension i of x is dimension map[i] of the scores; NULL: dimension i. */
static int spread(const struct fmha *a, int x, const int64_t *map)
{
    static const int64_t straight[AP_MAX_RANK] = {0, 1, 2, 3, 4};
    const struct ap_shape *s = emit_shape(&a->e, x);
    struct ap_shape to = a->s;
    struct ap_attrs *attrs = emit_attrs(&a->e);

    to.dtype = s->dtype;
    attrs->dimensions = list(a, s->rank, map ? map : straight);
    return emit_op(&a->e, AP_OP_BROADCAST, 1, &x, &to, attrs);
}

/* Without the dimensions of the set. */
static int reduce(const struct fmha *a, int x, enum ap_red red, unsigned over)
{
    static const struct ap_shape scalar = {0};
    const struct ap_shape *s = emit_shape(&a->e, x);
    const enum ap_dtype dtype = s->dtype;
    struct ap_attrs *attrs = emit_attrs(&a->e);
    int64_t dims[AP_MAX_RANK], left[AP_MAX_RANK];
    int n = 0, n_left = 0;

    for (int d = 0; d < s->rank; d++)
        if (over >> d & 1)
            dims[n++] = d;
        else
            left[n_left++] = s->dims[d];
    attrs->dimensions = list(a, n, dims);
    attrs->to_apply = import_reducer_of(a->e.f->im, red);
    const struct ap_shape to = shape_of(a, dtype, n_left, left);
    const double start = red == AP_RED_MAX ? -INFINITY : 0;
    const int in[2] = {x, emit_number(&a->e, dtype, start, &scalar)};
    return emit_op(&a->e, AP_OP_REDUCE, 2, in, &to, attrs);
}

/* A product over batch and heads (dimension hx of x, hy of y), which sums over n
 * dimensions, in ascending order. */
struct product {
    int64_t hx, hy;
    int n;
    int64_t cx[2], cy[2];
};

/*
 * Puts the sizes of dimensions that are not batch, heads or summed over after n others.
 */
static int put_free(const struct ap_shape *s, int64_t heads, int n_sums,
                    const int64_t *sums, int64_t *dims, int n)
{
    for (int d = 1; d < s->rank; d++)
        if (d != heads && d != sums[0] && (n_sums < 2 || d != sums[1]))
            dims[n++] = s->dims[d];
    return n;
}

static int dot(const struct fmha *a, int x, int y, struct product p, enum ap_dtype dtype)
{
    const struct ap_shape *sx = emit_shape(&a->e, x), *sy = emit_shape(&a->e, y);
    struct ap_attrs *attrs = emit_attrs(&a->e);
    int64_t dims[2 * AP_MAX_RANK] = {sx->dims[0], sx->dims[p.hx]};
    const int in[2] = {x, y};

    attrs->lhs_batch_dims = list(a, 2, (int64_t[]){0, p.hx});
    attrs->rhs_batch_dims = list(a, 2, (int64_t[]){0, p.hy});
    attrs->lhs_contracting_dims = list(a, p.n, p.cx);
    attrs->rhs_contracting_dims = list(a, p.n, p.cy);
    int rank = put_free(sx, p.hx, p.n, p.cx, dims, 2);
    rank = put_free(sy, p.hy, p.n, p.cy, dims, rank);
    const struct ap_shape to = shape_of(a, dtype, rank, dims);
    return emit_op(&a->e, AP_OP_DOT, 2, in, &to, attrs);
}

/* ---- queries, keys and scores ---- */

/* An operand in the form of q, with its heads in groups. */
static int grouped(const struct fmha *a, int x)
{
    const struct ap_shape *s = emit_shape(&a->e, x);
    const int64_t kv = s->dims[a->heads] / a->groups, rows = s->dims[a->rows];
    const int64_t dims[5] = {s->dims[0], a->heads_first ? kv : rows,
                             a->heads_first ? a->groups : kv,
                             a->heads_first ? rows : a->groups, s->dims[3]};
    return a->groups == 1 ? x : emit_reshape(&a->e, x, 5, dims);
}

/* x of queries times y of keys, over their width. */
static int pair(const struct fmha *a, int x, int y)
{
    const struct product p = {a->heads, a->heads, 1, {a->rank - 1}, {3}};
    return dot(a, grouped(a, x), y, p, AP_F32);
}

/* [batch, heads, rows] of q, in the order of the scores. */
static int of_rows(const struct fmha *a, int x)
{
    static const int64_t late[4] = {0, 1, 3, 2};
    const struct ap_shape *s = emit_shape(&a->e, x);
    const int64_t dims[4] = {s->dims[0], s->dims[1] / a->groups, a->groups, s->dims[2]};

    if (a->groups == 1)
        return spread(a, x, NULL);
    return spread(a, emit_reshape(&a->e, x, 4, dims), a->heads_first ? NULL : late);
}

/* The dimensions of a bias that the scores have, and those of the scores. */
static int spread_bias(const struct fmha *a, int bias)
{
    const struct ap_shape *s = emit_shape(&a->e, bias);
    int64_t dims[4], map[4];
    int n = 0;

    for (int d = 0; d < 4; d++)
        if (d >= 2 || s->dims[d] != 1) {
            dims[n] = s->dims[d];
            map[n++] = d;
        }
    return spread(a, convert(a, emit_reshape(&a->e, bias, n, dims), AP_F32), map);
}

static int index_along(const struct fmha *a, int d)
{
    return emit_iota(&a->e, AP_S32, &a->s, d);
}

/* Where a query sees a key, -1: everywhere. */
static int visible(const struct fmha *a)
{
    const int q = index_along(a, a->at_rows), k = index_along(a, a->rank - 1);
    int seen = -1;

    if (a->causal)
        seen = emit_compare(&a->e, AP_GE, q, k);
    if (a->window > 0) {
        const int old = emit_with(&a->e, AP_OP_SUBTRACT, q, a->window);
        const int near = emit_compare(&a->e, AP_GT, k, old);
        seen = seen < 0 ? near : emit_binary(&a->e, AP_OP_AND, seen, near);
    }
    for (int i = 0; i < 2 && a->padding; i++) {
        const int64_t batch = 0;
        const int length = emit_operand(&a->e, a->lengths[i]);
        const int in = emit_compare(&a->e, AP_LT, i ? k : q, spread(a, length, &batch));
        seen = seen < 0 ? in : emit_binary(&a->e, AP_OP_AND, seen, in);
    }
    return seen;
}

static int masked(const struct fmha *a, int x, int seen, double fill)
{
    return seen < 0
               ? x
               : emit_select(&a->e, seen, x, emit_number(&a->e, AP_F32, fill, &a->s));
}

static int scores(const struct fmha *a, int seen)
{
    int s = times(a, pair(a, emit_operand(&a->e, 0), emit_operand(&a->e, 1)), a->scale);
    if (a->bias)
        s = emit_binary(&a->e, AP_OP_ADD, s,
                        spread_bias(a, emit_operand(&a->e, a->backward ? 5 : 3)));
    return masked(a, s, seen, -1e9);
}

/* ---- results ---- */

/* A result of queries, [batch, heads, rows, width]. */
static int put_heads_first(const struct fmha *a, int x)
{
    static const int64_t perm[5] = {0, 1, 3, 2, 4};
    const struct ap_shape *s;
    int64_t dims[4];

    if (a->groups == 1)
        return x;
    x = a->heads_first ? x : emit_transpose(&a->e, x, perm);
    s = emit_shape(&a->e, x);
    dims[0] = s->dims[0];
    dims[1] = s->dims[1] * s->dims[2];
    dims[2] = s->dims[3];
    dims[3] = s->dims[4];
    return emit_reshape(&a->e, x, 4, dims);
}

/* Scores times a tensor of keys. */
static int sum_keys(const struct fmha *a, int s, int x)
{
    const struct product p = {1, a->heads, 1, {a->rank - 1}, {a->rows}};
    return put_heads_first(a, dot(a, s, x, p, a->dtype));
}

/* Scores times a tensor of queries: of keys. */
static int sum_rows(const struct fmha *a, int s, int x)
{
    const struct product one = {1, a->heads, 1, {a->at_rows}, {a->rows}};
    /* of queries in groups, the groups' dimension, too */
    const struct product both = a->heads_first
                                    ? (struct product){1, 1, 2, {2, 3}, {2, 3}}
                                    : (struct product){1, 2, 2, {2, 3}, {1, 3}};
    return dot(a, s, grouped(a, x), a->groups > 1 ? both : one, a->dtype);
}

static void forward(const struct fmha *a, int *results)
{
    const int seen = visible(a), s = scores(a, seen);
    const unsigned keys = 1u << (a->rank - 1);
    const int top = reduce(a, s, AP_RED_MAX, keys);
    const int e = emit_unary(&a->e, AP_OP_EXPONENTIAL,
                             emit_binary(&a->e, AP_OP_SUBTRACT, s, spread(a, top, NULL)));
    const int sum = reduce(a, e, AP_RED_SUM, keys);
    int p = emit_binary(&a->e, AP_OP_DIVIDE, e, spread(a, sum, NULL));

    p = a->padding ? masked(a, p, seen, 0) : p; /* rows that see nothing */
    results[0] = sum_keys(a, convert(a, p, a->dtype), emit_operand(&a->e, 2));
    int l = emit_binary(&a->e, AP_OP_ADD, top, emit_unary(&a->e, AP_OP_LOG, sum));
    if (a->groups > 1) {
        static const int64_t perm[4] = {0, 1, 3, 2};
        l = a->heads_first ? l : emit_transpose(&a->e, l, perm);
        const struct ap_shape *ls = emit_shape(&a->e, l);
        const int64_t dims[3] = {ls->dims[0], ls->dims[1] * ls->dims[2], ls->dims[3]};
        l = emit_reshape(&a->e, l, 3, dims);
    }
    results[1] = l;
}

static void backward(const struct fmha *a, int *results)
{
    static const int64_t perm[3] = {0, 2, 1};
    const int seen = visible(a), q = emit_operand(&a->e, 0), k = emit_operand(&a->e, 1);
    const int v = emit_operand(&a->e, 2), dy = emit_operand(&a->e, 4);
    const int o = emit_operand(&a->e, 5 + a->bias);
    const int l = of_rows(a, emit_operand(&a->e, 3));
    int p = emit_unary(&a->e, AP_OP_EXPONENTIAL,
                       emit_binary(&a->e, AP_OP_SUBTRACT, scores(a, seen), l));
    int d = reduce(
        a,
        emit_binary(&a->e, AP_OP_MULTIPLY, convert(a, dy, AP_F32), convert(a, o, AP_F32)),
        AP_RED_SUM, 1u << 3);

    p = a->padding ? masked(a, p, seen, 0) : p;
    d = of_rows(a, a->heads_first ? d : emit_transpose(&a->e, d, perm));
    const int ds = emit_binary(&a->e, AP_OP_MULTIPLY, p,
                               emit_binary(&a->e, AP_OP_SUBTRACT, pair(a, dy, v), d));
    const int to_scores = convert(a, times(a, ds, a->scale), a->dtype);
    results[0] = sum_keys(a, to_scores, k);
    results[1] = sum_rows(a, to_scores, q);
    results[2] = sum_rows(a, convert(a, p, a->dtype), dy);
    if (!a->bias)
        return;
    const struct ap_shape *b = in_shape(a, 5);
    const unsigned shared = (b->dims[0] == 1) | (unsigned)(b->dims[1] == 1) << 1;
    int db = shared ? reduce(a, ds, AP_RED_SUM, shared) : ds;
    results[3] = emit_reshape(&a->e, convert(a, db, b->dtype), 4, b->dims);
}

/* The results of the call, whose last one is its workspace; -1 if they differ. */
static int hand_out(const struct fmha *a, const int *made, int n, struct value *out)
{
    const struct ap_shape *all = &a->e.instr->shape;
    struct value *parts =
        AP_NEW_N(a->e.f->im->src->arena, all->n_parts + 1, struct value);

    for (int i = 0; i < all->n_parts; i++) {
        const bool workspace = i == all->n_parts - 1;
        parts[i].node = workspace || i >= n
                            ? emit_int(&a->e, all->parts[i].dtype, 0, &all->parts[i])
                            : made[i];
        if (!ap_shape_equal(emit_shape(&a->e, parts[i].node), &all->parts[i]))
            return hlo_fail(a->e.f->im->src, a->e.pos,
                            "'%.60s': result %d has another shape than its operands make",
                            a->e.instr->target, i);
    }
    *out = inline_tuple(all->n_parts, parts);
    return 0;
}

bool inline_is_attention(struct frame *f, const struct hlo_instr *instr)
{
    struct fmha a = {.e = {.f = f, .instr = instr}};
    const struct ap_shape *s = &instr->shape;

    if (!read_call(&a, instr) || !has_operands(&a) || s->dtype != AP_TUPLE)
        return false;
    const int n = a.backward ? 3 + a.bias : s->n_parts - 1;
    if (s->n_parts != n + 1 || n < 1 || (!a.backward && n > 2) ||
        s->parts[n].dtype != AP_U8)
        return false;
    const struct ap_shape *bias = a.bias ? in_shape(&a, a.backward ? 5 : 3) : NULL;
    if (!bias)
        return true;
    return bias->rank == 4 && a.groups == 1 &&
           (bias->dims[0] == 1 || bias->dims[0] == a.s.dims[0]) &&
           (bias->dims[1] == 1 || bias->dims[1] == a.s.dims[1]) &&
           bias->dims[2] == a.s.dims[2] && bias->dims[3] == a.s.dims[3];
}

int inline_attention(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct fmha a = {.e = emit_start(f, instr)};
    int made[4];

    if (!read_call(&a, instr) || !has_operands(&a))
        return hlo_fail(f->im->src, a.e.pos, "'%.60s': other operands than its",
                        instr->target);
    (a.backward ? backward : forward)(&a, made);
    return hand_out(&a, made, a.backward ? 3 + a.bias : instr->shape.n_parts - 1, out);
}
