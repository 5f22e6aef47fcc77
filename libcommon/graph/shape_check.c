/*
 * Does each node's shape follow from its operands and attributes? Here: the walk, and the
 * elementwise, moving, reducing and sorting operators; shape_check_heavy.c has
 * contractions and windows, shape_check_index.c gathers and scatters,
 * shape_check_program.c operators that occur in programs only. Linear in the graph.
 * Rules: XLA's operation semantics, https://openxla.org/xla/operation_semantics
 */
#include "graph/shape_check.h"

#include "graph/part.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- helpers ---- */

/* "expected result A, got B" */
static int result_err(const struct check *c, const struct ap_shape *want)
{
    struct ap_buf a = {0}, b = {0};

    ap_shape_print(want, &a);
    ap_shape_print(&c->node->shape, &b);
    ap_err_set(c->err, "%s makes %s, not %s", ap_ops[c->node->op].name, a.data, b.data);
    ap_buf_free(&a);
    ap_buf_free(&b);
    return -1;
}

int check_result_like(const struct check *c, const struct ap_shape *s)
{
    return ap_shape_equal(&c->node->shape, s) ? 0 : result_err(c, s);
}

int check_result(const struct check *c, enum ap_dtype dtype, const int64_t *dims,
                 int rank)
{
    struct ap_shape want = {.dtype = dtype, .rank = rank, .dims = dims};

    if (rank > AP_MAX_RANK)
        return ap_err_set(c->err,
                          "%s makes %d dimensions, more than %d are not supported",
                          ap_ops[c->node->op].name, rank, AP_MAX_RANK);
    return check_result_like(c, &want);
}

/* The result must be one array, or a tuple of n of them if n > 1, of operands 0 .. n -
 * 1's dtypes, all with these dims. */
static int check_results_of(const struct check *c, int n, const int64_t *dims, int rank)
{
    const struct ap_shape *have = &c->node->shape;

    if (n == 1)
        return check_result(c, check_in(c, 0)->dtype, dims, rank);
    if (have->dtype != AP_TUPLE || have->n_parts != n)
        return ap_err_set(c->err, "%s makes a tuple of %d", ap_ops[c->node->op].name, n);
    for (int i = 0; i < n; i++) {
        struct ap_shape want = {
            .dtype = check_in(c, i)->dtype, .rank = rank, .dims = dims};
        if (!ap_shape_equal(&have->parts[i], &want)) {
            struct ap_buf text = {0};
            ap_shape_print(&want, &text);
            ap_err_set(c->err, "%s makes %s as part %d of its tuple",
                       ap_ops[c->node->op].name, text.data, i);
            ap_buf_free(&text);
            return -1;
        }
    }
    return 0;
}

int check_dims(const struct check *c, const char *name, const struct ap_ints *dims,
               int rank, unsigned *mask)
{
    *mask = 0;
    for (int i = 0; i < dims->n; i++) {
        int64_t d = dims->v[i];
        if (d < 0 || d >= rank)
            return ap_err_set(c->err, "%s: dimension %" PRId64 " of a tensor of rank %d",
                              name, d, rank);
        if (*mask >> d & 1)
            return ap_err_set(c->err, "%s: dimension %" PRId64 " twice", name, d);
        *mask |= 1u << d;
    }
    return 0;
}

int check_count(const struct check *c, const char *name, int have, int need)
{
    if (have == need)
        return 0;
    return ap_err_set(c->err, "%s has %d entries, %s needs %d", name, have,
                      ap_ops[c->node->op].name, need);
}

int check_scalar(const struct check *c, int k, enum ap_dtype dtype)
{
    const struct ap_shape *s = check_in(c, k);

    if (s->rank || s->dtype != dtype)
        return ap_err_set(c->err, "operand %d of %s must be a scalar of type %s", k,
                          ap_ops[c->node->op].name, ap_dtype_name(dtype));
    return 0;
}

int check_reducer_arity(const struct check *c, const char *name, int id, int n_params,
                        int n_results)
{
    if (id < 0)
        return ap_err_set(c->err, "%s needs %s", ap_ops[c->node->op].name, name);
    const struct ap_reducer *r = &c->g->reducers[id];
    int n = 0;
    while (n < r->n_nodes && r->nodes[n].op == AP_OP_PARAMETER)
        n++;
    if (r->red != AP_RED_NONE) {
        n = r->n_nodes ? n : 2; /* a known kind needs no body */
        if (n_results != 1)
            return ap_err_set(c->err, "%s: reducer %d combines single values", name, id);
    } else if (r->n_results != n_results) {
        return ap_err_set(c->err, "%s: reducer %d has %d results, not %d", name, id,
                          r->n_results, n_results);
    }
    if (n != n_params)
        return ap_err_set(c->err, "%s: reducer %d has %d parameters, not %d", name, id, n,
                          n_params);
    return 0;
}

/* ---- elementwise ---- */

static bool is_complex(enum ap_dtype dtype)
{
    return dtype == AP_C64 || dtype == AP_C128;
}

static bool is_number(enum ap_dtype dtype)
{
    return dtype != AP_PRED && dtype != AP_TUPLE;
}

/* May the operator work on elements of this type? */
static bool dtype_fits(enum ap_op op, enum ap_dtype dtype)
{
    const unsigned int type = dtype == AP_PRED                     ? AP_OF_PRED
                              : ap_dtype_is_int(dtype)             ? AP_OF_INT
                              : is_complex(dtype)                  ? AP_OF_COMPLEX
                              : dtype == AP_F32 || dtype == AP_F64 ? AP_OF_F32_F64
                              : ap_dtype_is_float(dtype)           ? AP_OF_NARROW
                                                                   : 0;
    return ap_ops[op].types & type;
}

/* Operands must have the dims (dtype too unless any_dtype) of operand `like`. */
static int check_alike(const struct check *c, int k, int like, bool any_dtype)
{
    const struct ap_shape *a = check_in(c, like), *b = check_in(c, k);

    if (ap_shape_same_dims(a, b) && (any_dtype || a->dtype == b->dtype))
        return 0;
    struct ap_buf x = {0}, y = {0};
    ap_shape_print(a, &x);
    ap_shape_print(b, &y);
    ap_err_set(c->err, "operands %d and %d of %s differ: %s and %s", like, k,
               ap_ops[c->node->op].name, x.data, y.data);
    ap_buf_free(&x);
    ap_buf_free(&y);
    return -1;
}

/* select(pred, a, b) and clamp(min, x, max): the first, or first and last, may be scalar.
 */
static int check_ternary(const struct check *c)
{
    bool clamp = c->node->op == AP_OP_CLAMP;

    if (!clamp && check_in(c, 0)->dtype != AP_PRED)
        return ap_err_set(c->err, "operand 0 of select must be pred");
    for (int k = 0; k < 3; k++) {
        if (k == 1)
            continue;
        bool scalar = (clamp || k == 0) && check_in(c, k)->rank == 0;
        if (scalar && clamp ? check_scalar(c, k, check_in(c, 1)->dtype)
                            : !scalar && check_alike(c, k, 1, !clamp && k == 0))
            return -1;
    }
    return check_result_like(c, check_in(c, 1));
}

static int check_elementwise(const struct check *c)
{
    enum ap_op op = c->node->op;
    struct ap_shape want = *check_in(c, 0);

    if (op == AP_OP_SELECT || op == AP_OP_CLAMP)
        return check_ternary(c);
    if (!dtype_fits(op, want.dtype))
        return ap_err_set(c->err, "%s does not work on %s", ap_ops[op].name,
                          ap_dtype_name(want.dtype));
    if (c->node->n_in == 2 && check_alike(c, 1, 0, false))
        return -1;
    if (c->node->attrs->total_order && !ap_dtype_is_float(want.dtype))
        return ap_err_set(c->err, "compare by total order does not work on %s",
                          ap_dtype_name(want.dtype));
    if (op == AP_OP_COMPARE || op == AP_OP_IS_FINITE)
        want.dtype = AP_PRED;
    else if (op == AP_OP_COMPLEX)
        want.dtype = want.dtype == AP_F32 ? AP_C64 : AP_C128;
    else if ((op == AP_OP_ABS && is_complex(want.dtype)) || op == AP_OP_REAL ||
             op == AP_OP_IMAG)
        want.dtype = want.dtype == AP_C64 ? AP_F32 : AP_F64;
    else if (op == AP_OP_CONVERT || op == AP_OP_BITCAST_CONVERT)
        want.dtype = c->node->shape.dtype;
    if (op == AP_OP_BITCAST_CONVERT &&
        (!dtype_fits(op, want.dtype) ||
         ap_dtype_size(want.dtype) != ap_dtype_size(check_in(c, 0)->dtype)))
        return ap_err_set(c->err, "bitcast-convert of %s makes no %s",
                          ap_dtype_name(check_in(c, 0)->dtype),
                          ap_dtype_name(want.dtype));
    return check_result_like(c, &want);
}

/* ---- leaves and moves ---- */

static int check_iota(const struct check *c)
{
    const struct ap_shape *s = &c->node->shape;

    if (!is_number(s->dtype))
        return ap_err_set(c->err, "iota makes no %s", ap_dtype_name(s->dtype));
    if (c->node->attrs->iota_dimension < 0 || c->node->attrs->iota_dimension >= s->rank)
        return ap_err_set(c->err,
                          "iota_dimension: dimension %" PRId64 " of a tensor of rank %d",
                          c->node->attrs->iota_dimension, s->rank);
    return 0;
}

static int check_leaf(const struct check *c)
{
    const struct ap_literal *literal = &c->node->attrs->literal;

    if (c->node->shape.dtype == AP_TUPLE)
        return ap_err_set(c->err, "%s makes no tuple", ap_ops[c->node->op].name);
    if (c->node->op == AP_OP_CONSTANT && !literal->elided && !literal->data)
        return ap_err_set(c->err, "constant without a value");
    if (c->node->op == AP_OP_PARAMETER &&
        ap_part_check(c->node->attrs->global ? c->node->attrs->global : &c->node->shape,
                      c->node->attrs->argument, c->err))
        return -1;
    return c->node->op == AP_OP_IOTA ? check_iota(c) : 0;
}

static int check_broadcast(const struct check *c)
{
    const struct ap_shape *in = check_in(c, 0), *out = &c->node->shape;
    const struct ap_ints *dims = &c->node->attrs->dimensions;
    unsigned mask;

    if (check_count(c, "dimensions", dims->n, in->rank) ||
        check_dims(c, "dimensions", dims, out->rank, &mask))
        return -1;
    for (int i = 0; i < in->rank; i++)
        if (out->dims[dims->v[i]] != in->dims[i])
            return ap_err_set(
                c->err, "broadcast of dimension %d: %" PRId64 " elements become %" PRId64,
                i, in->dims[i], out->dims[dims->v[i]]);
    return check_result(c, in->dtype, out->dims, out->rank);
}

static int check_concatenate(const struct check *c)
{
    const struct ap_ints *along = &c->node->attrs->dimensions;
    int64_t dims[AP_MAX_RANK] = {0};
    unsigned mask;

    if (c->node->n_in < 1)
        return ap_err_set(c->err, "concatenate without operands");
    const struct ap_shape *first = check_in(c, 0);
    if (check_count(c, "dimensions", along->n, 1) ||
        check_dims(c, "dimensions", along, first->rank, &mask))
        return -1;
    for (int k = 0; k < c->node->n_in; k++) {
        const struct ap_shape *in = check_in(c, k);
        if (in->rank != first->rank || in->dtype != first->dtype)
            return check_alike(c, k, 0, false);
        for (int d = 0; d < in->rank; d++) {
            if (d == along->v[0])
                dims[d] = ap_add64(dims[d], in->dims[d]);
            else if (in->dims[d] != first->dims[d])
                return check_alike(c, k, 0, false);
            else
                dims[d] = in->dims[d];
        }
    }
    return check_result(c, first->dtype, dims, first->rank);
}

static int check_pad(const struct check *c)
{
    const struct ap_shape *in = check_in(c, 0);
    const struct ap_attrs *a = c->node->attrs;
    int64_t dims[AP_MAX_RANK];

    if (check_count(c, "padding", a->n_padding, in->rank) ||
        check_scalar(c, 1, in->dtype))
        return -1;
    for (int d = 0; d < in->rank; d++) {
        const struct ap_pad_dim *p = &a->padding[d];
        int64_t gaps = in->dims[d] > 0 ? in->dims[d] - 1 : 0;
        if (p->interior < 0 || __builtin_mul_overflow(gaps, p->interior, &dims[d]) ||
            __builtin_add_overflow(dims[d], in->dims[d], &dims[d]) ||
            __builtin_add_overflow(dims[d], p->lo, &dims[d]) ||
            __builtin_add_overflow(dims[d], p->hi, &dims[d]) || dims[d] < 0)
            return ap_err_set(c->err, "padding of dimension %d leaves no valid size", d);
    }
    return check_result(c, in->dtype, dims, in->rank);
}

static int check_reshape(const struct check *c)
{
    const struct ap_shape *in = check_in(c, 0), *out = &c->node->shape;

    if (out->dtype != AP_TUPLE && ap_shape_elems(in) != ap_shape_elems(out))
        return ap_err_set(c->err, "reshape of %" PRId64 " elements to %" PRId64,
                          ap_shape_elems(in), ap_shape_elems(out));
    return check_result(c, in->dtype, out->dims, out->rank);
}

static int check_reverse(const struct check *c)
{
    unsigned mask;

    if (check_dims(c, "dimensions", &c->node->attrs->dimensions, check_in(c, 0)->rank,
                   &mask))
        return -1;
    return check_result_like(c, check_in(c, 0));
}

static int check_slice(const struct check *c)
{
    const struct ap_shape *in = check_in(c, 0);
    const struct ap_attrs *a = c->node->attrs;
    int64_t dims[AP_MAX_RANK];

    if (check_count(c, "slice", a->n_slice, in->rank))
        return -1;
    for (int d = 0; d < in->rank; d++) {
        const struct ap_slice_dim *s = &a->slice[d];
        if (s->start < 0 || s->limit < s->start || s->limit > in->dims[d] ||
            s->stride < 1)
            return ap_err_set(c->err,
                              "slice [%" PRId64 ":%" PRId64 ":%" PRId64
                              "] of dimension %d with %" PRId64 " elements",
                              s->start, s->limit, s->stride, d, in->dims[d]);
        dims[d] = ap_ceil_div(s->limit - s->start, s->stride);
    }
    return check_result(c, in->dtype, dims, in->rank);
}

static int check_transpose(const struct check *c)
{
    const struct ap_shape *in = check_in(c, 0);
    const struct ap_ints *perm = &c->node->attrs->dimensions;
    int64_t dims[AP_MAX_RANK];
    unsigned mask;

    if (check_count(c, "dimensions", perm->n, in->rank) ||
        check_dims(c, "dimensions", perm, in->rank, &mask))
        return -1;
    for (int d = 0; d < in->rank; d++)
        dims[d] = in->dims[perm->v[d]];
    return check_result(c, in->dtype, dims, in->rank);
}

/* ---- reduce, sort, topk, get-tuple-element ---- */

static int check_reduce(const struct check *c)
{
    const struct ap_attrs *a = c->node->attrs;
    int n = c->node->n_in / 2, rank = 0;
    int64_t dims[AP_MAX_RANK];
    unsigned mask;

    if (n == 0 || c->node->n_in % 2)
        return ap_err_set(c->err, "reduce needs one initial value per operand");
    const struct ap_shape *in = check_in(c, 0);
    if (check_dims(c, "dimensions", &a->dimensions, in->rank, &mask) ||
        check_reducer_arity(c, "to_apply", a->to_apply, 2 * n, n))
        return -1;
    for (int k = 0; k < n; k++)
        if (check_alike(c, k, 0, true) || check_scalar(c, n + k, check_in(c, k)->dtype))
            return -1;
    for (int d = 0; d < in->rank; d++)
        if (!(mask >> d & 1))
            dims[rank++] = in->dims[d];
    return check_results_of(c, n, dims, rank);
}

static int check_sort(const struct check *c)
{
    const struct ap_attrs *a = c->node->attrs;
    int n = c->node->n_in;
    unsigned mask;

    if (n < 1)
        return ap_err_set(c->err, "sort without operands");
    const struct ap_shape *in = check_in(c, 0);
    if (check_count(c, "dimensions", a->dimensions.n, 1) ||
        check_dims(c, "dimensions", &a->dimensions, in->rank, &mask) ||
        check_reducer_arity(c, "to_apply", a->to_apply, 2 * n, 1))
        return -1;
    for (int k = 1; k < n; k++)
        if (check_alike(c, k, 0, true))
            return -1;
    return check_results_of(c, n, in->dims, in->rank);
}

static int check_topk(const struct check *c)
{
    const struct ap_shape *in = check_in(c, 0), *out = &c->node->shape;
    int64_t k = c->node->attrs->k;
    int64_t dims[AP_MAX_RANK];

    if (in->rank < 1 || k < 0 || k > in->dims[in->rank - 1])
        return ap_err_set(c->err, "topk of %" PRId64 " from %" PRId64 " elements", k,
                          in->rank ? in->dims[in->rank - 1] : 1);
    for (int d = 0; d < in->rank; d++)
        dims[d] = in->dims[d];
    dims[in->rank - 1] = k;
    enum ap_dtype index = AP_S32;
    if (out->n_parts == 2 && ap_dtype_is_int(out->parts[1].dtype))
        index = out->parts[1].dtype;
    const struct ap_shape parts[2] = {
        {.dtype = in->dtype, .rank = in->rank, .dims = dims},
        {.dtype = index, .rank = in->rank, .dims = dims},
    };
    struct ap_shape want = {.dtype = AP_TUPLE, .n_parts = 2, .parts = parts};
    return check_result_like(c, &want);
}

static int check_get_tuple_element(const struct check *c)
{
    const struct ap_shape *in = check_in(c, 0);
    int64_t index = c->node->attrs->index;

    if (in->dtype != AP_TUPLE)
        return ap_err_set(c->err, "get-tuple-element of an operand that is not a tuple");
    if (index < 0 || index >= in->n_parts)
        return ap_err_set(c->err, "index %" PRId64 " of a tuple of %d", index,
                          in->n_parts);
    return check_result_like(c, &in->parts[index]);
}

/* ---- while ---- */

static int comp_err(const struct check *c, const char *member, const char *what)
{
    return ap_err_set(c->err, "%s: %s", member, what);
}

/* Parameters of computation `id` are the operands, in order. */
static int check_state(const struct check *c, const char *member, int id)
{
    int n = 0;

    if (id < 0)
        return comp_err(c, member, "a while needs it");
    const struct ap_comp *comp = &c->g->comps[id];
    for (; n < comp->n_nodes && comp->nodes[n].op == AP_OP_PARAMETER; n++)
        if (n < c->node->n_in && !ap_shape_equal(&comp->nodes[n].shape, check_in(c, n)))
            return ap_err_set(c->err, "%s: parameter %d differs from operand %d in shape",
                              member, n, n);
    if (n != c->node->n_in)
        return ap_err_set(c->err, "%s: %d parameters, but %d operands", member, n,
                          c->node->n_in);
    return 0;
}

static int check_while(const struct check *c)
{
    const struct ap_attrs *a = c->node->attrs;
    const struct ap_shape *out = &c->node->shape;
    int n = c->node->n_in;

    if (n < 1 || out->dtype != AP_TUPLE || out->n_parts != n)
        return ap_err_set(c->err, "while makes a tuple of its operands' shapes");
    if (check_state(c, "condition", a->condition) || check_state(c, "body", a->body))
        return -1;
    const struct ap_comp *condition = &c->g->comps[a->condition];
    const struct ap_comp *body = &c->g->comps[a->body];
    const struct ap_shape *go_on =
        condition->n_results == 1 ? &condition->nodes[condition->results[0]].shape : NULL;
    if (!go_on || go_on->rank || go_on->dtype != AP_PRED)
        return comp_err(c, "condition", "its result must be one pred[]");
    if (body->n_results != n)
        return ap_err_set(c->err, "body: %d results, but %d operands", body->n_results,
                          n);
    for (int k = 0; k < n; k++)
        if (!ap_shape_equal(&body->nodes[body->results[k]].shape, check_in(c, k)) ||
            !ap_shape_equal(&out->parts[k], check_in(c, k)))
            return ap_err_set(c->err, "result %d differs from operand %d in shape", k, k);
    return 0;
}

/* ---- the walk ---- */

static int check_move(const struct check *c)
{
    if (c->node->op == AP_OP_BROADCAST)
        return check_broadcast(c);
    if (c->node->op == AP_OP_CONCATENATE)
        return check_concatenate(c);
    if (c->node->op == AP_OP_PAD)
        return check_pad(c);
    if (c->node->op == AP_OP_RESHAPE)
        return check_reshape(c);
    if (c->node->op == AP_OP_REVERSE)
        return check_reverse(c);
    if (c->node->op == AP_OP_SLICE)
        return check_slice(c);
    return check_transpose(c);
}

static int check_reducing(const struct check *c)
{
    if (c->node->op == AP_OP_REDUCE)
        return check_reduce(c);
    if (c->node->op == AP_OP_REDUCE_WINDOW)
        return check_reduce_window(c);
    if (c->node->op == AP_OP_SELECT_AND_SCATTER)
        return check_select_and_scatter(c);
    if (c->node->op == AP_OP_FFT)
        return check_fft(c);
    if (c->node->op == AP_OP_CHOLESKY || c->node->op == AP_OP_TRIANGULAR_SOLVE)
        return check_linalg(c);
    if (c->node->op == AP_OP_SORT)
        return check_sort(c);
    return check_topk(c);
}

static int check_index(const struct check *c)
{
    if (c->node->op == AP_OP_GATHER)
        return check_gather(c);
    if (c->node->op == AP_OP_SCATTER)
        return check_scatter(c);
    if (c->node->op == AP_OP_CUSTOM_CALL)
        return c->node->shape.dtype != AP_TUPLE
                   ? 0
                   : ap_err_set(c->err, "custom-call makes one array, no tuple");
    if (c->node->op == AP_OP_WHILE)
        return check_while(c);
    if (c->node->op == AP_OP_DYNAMIC_SLICE)
        return check_dynamic_slice(c);
    return check_dynamic_update_slice(c);
}

static int check_class(const struct check *c)
{
    switch (ap_ops[c->node->op].class) {
    case AP_CLASS_LEAF:
        return check_leaf(c);
    case AP_CLASS_ELEMENTWISE:
        return check_elementwise(c);
    case AP_CLASS_MOVE:
        return check_move(c);
    case AP_CLASS_HEAVY:
        return c->node->op == AP_OP_DOT ? check_dot(c) : check_convolution(c);
    case AP_CLASS_REDUCE:
        return check_reducing(c);
    case AP_CLASS_INDEX:
        return check_index(c);
    case AP_CLASS_TUPLE:
        return check_get_tuple_element(c);
    case AP_CLASS_COLLECTIVE:
    case AP_CLASS_LOCAL:
        return check_program_op(c);
    }
    return -1;
}

int ap_check_node(const struct ap_graph *g, const struct ap_node *node,
                  struct ap_err *err)
{
    struct check c = {g, node, err};
    int arity = ap_ops[node->op].arity;

    if (arity >= 0 && node->n_in != arity)
        return ap_err_set(err, "%s needs %d operand%s, got %d", ap_ops[node->op].name,
                          arity, arity == 1 ? "" : "s", node->n_in);
    for (int k = 0; k < node->n_in; k++)
        if (check_in(&c, k)->dtype == AP_TUPLE && node->op != AP_OP_GET_TUPLE_ELEMENT)
            return ap_err_set(err, "only get-tuple-element reads a tuple, not %s",
                              ap_ops[node->op].name);
    if (ap_shape_bytes(&node->shape) == INT64_MAX)
        return ap_err_set(err, "a result of more than 2^63 bytes");
    if (check_class(&c))
        return -1;
    return node->attrs->global ? check_global(&c) : 0;
}

static int check_body(const struct ap_graph *g, int reducer, const char *where,
                      struct ap_err *err)
{
    const struct ap_reducer *r = &g->reducers[reducer];
    struct ap_graph body = {.n_nodes = r->n_nodes, .nodes = r->nodes, .n_reducers = 0};
    struct ap_err why = {""};

    for (int i = 0; i < r->n_nodes; i++)
        if (ap_check_node(&body, &r->nodes[i], &why))
            return ap_err_set(err, "%s/reducers/%d/nodes/%d (%s): %s", where, reducer, i,
                              r->nodes[i].name, why.msg);
    return 0;
}

/* The nodes of computation `id`: those of a graph for one device. */
static int check_comp(const struct ap_graph *g, int id, const char *where,
                      struct ap_err *err)
{
    const struct ap_comp *c = &g->comps[id];
    struct ap_graph inner = {.n_nodes = c->n_nodes,
                             .nodes = c->nodes,
                             .n_reducers = g->n_reducers,
                             .reducers = g->reducers,
                             .n_comps = id,
                             .comps = g->comps};
    struct ap_err why = {""};

    for (int i = 0; i < c->n_nodes; i++) {
        const struct ap_node *node = &c->nodes[i];
        enum ap_op_class class = ap_ops[node->op].class;
        bool local = class == AP_CLASS_COLLECTIVE || class == AP_CLASS_LOCAL;
        if (local || node->attrs->global)
            ap_err_set(&why, "a loop holds no part of a program");
        else if (!ap_check_node(&inner, node, &why))
            continue;
        return ap_err_set(err, "%s/computations/%d/nodes/%d (%s): %s", where, id, i,
                          node->name, why.msg);
    }
    return 0;
}

int ap_graph_check_shapes(const struct ap_graph *g, const char *where, struct ap_err *err)
{
    struct ap_err why = {""};

    for (int r = 0; r < g->n_reducers; r++)
        if (check_body(g, r, where, err))
            return -1;
    for (int c = 0; c < g->n_comps; c++)
        if (check_comp(g, c, where, err))
            return -1;
    for (int i = 0; i < g->n_nodes; i++)
        if (ap_check_node(g, &g->nodes[i], &why))
            return ap_err_set(err, "%s/nodes/%d (%s): %s", where, i, g->nodes[i].name,
                              why.msg);
    for (int i = 0; i < g->n_results; i++) {
        int node = g->results[i].node, alias = g->results[i].alias;
        if (alias >= 0 && !ap_shape_equal(&g->nodes[node].shape, &g->nodes[alias].shape))
            return ap_err_set(err,
                              "%s/results/%d: node %d (%s) becomes parameter node %d "
                              "(%s) of another shape",
                              where, i, node, g->nodes[node].name, alias,
                              g->nodes[alias].name);
    }
    return 0;
}
