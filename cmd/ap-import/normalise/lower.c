/*
 * Instructions that the graph has no operator for, in those that it has: map and windows
 * over several arrays (the computation, element by element), scatters of several arrays
 * (one for each, where their computation keeps them apart), bitcasts between layouts and
 * bitcast-convert between widths. Nodes are linear in the instruction, for windows in the
 * window's positions.
 */
#include "emit.h"

#include <string.h>

#include "graph/attr_text.h"

#define MAX_POSITIONS 1024 /* of a window over several arrays */

bool inline_is_lowered(const struct frame *f, const struct hlo_instr *instr)
{
    int arity = instr->kind == HLO_OP ? ap_ops[instr->op].arity : -1;
    if (instr->kind != HLO_OP)
        return false;
    if (instr->op == AP_OP_BITCAST_CONVERT) {
        int x = f->values[instr->in[0]].node;
        return x >= 0 && ap_dtype_size(f->im->g.nodes[x].shape.dtype) !=
                             ap_dtype_size(instr->shape.dtype);
    }
    return (instr->op == AP_OP_REDUCE_WINDOW || instr->op == AP_OP_SCATTER) &&
           instr->n_in > arity;
}

static struct value tuple_of(const struct emit *e, const int *nodes, int n)
{
    struct value *parts = AP_NEW_N(e->f->im->src->arena, n + 1, struct value);
    for (int i = 0; i < n; i++)
        parts[i] = (struct value){.node = nodes[i]};
    return inline_tuple(n, parts);
}

/* ---- map ---- */

int inline_map(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct emit e = emit_start(f, instr);
    struct hlo_src *src = f->im->src;
    if (instr->comp[0] < 0 || instr->n_in < 1)
        return hlo_fail(src, e.pos, "map needs to_apply= and operands");
    const struct hlo_comp *comp = &f->im->module->comps[instr->comp[0]];
    if (comp->n_params != instr->n_in)
        return hlo_fail(src, e.pos, "map: '%.100s' has %d parameters, got %d operands",
                        comp->name, comp->n_params, instr->n_in);
    int *in = AP_NEW_N(src->arena, instr->n_in, int);
    for (int k = 0; k < instr->n_in; k++) {
        if ((in[k] = emit_operand(&e, k)) < 0)
            return -1;
        const struct ap_shape *p = &comp->instr[comp->params[k]].shape;
        if (!ap_shape_same_dims(emit_shape(&e, in[k]), &instr->shape) ||
            p->dtype != emit_shape(&e, in[k])->dtype)
            return hlo_fail(src, e.pos, "map: operand %d has another shape", k);
    }
    int reducer = import_reducer(f->im, instr->comp[0], false, e.pos), root;
    if (reducer < 0)
        return -1;
    const struct ap_reducer *r = &f->im->g.reducers[reducer];
    if (r->red == AP_RED_NONE && r->n_results != 1)
        return hlo_fail(src, e.pos, "map: the computation has %d results", r->n_results);
    emit_apply(&e, reducer, in, &root);
    *out = (struct value){.node = root};
    if (!inline_has_shape(f->im, out, &instr->shape))
        return hlo_fail(src, e.pos, "the result of a map has another shape");
    return 0;
}

/* ---- reduce-window of several arrays ---- */

/* The array with its borders and gaps filled with the initial value. */
static int padded(const struct emit *e, int x, int init)
{
    const struct ap_attrs *w = e->instr->attrs;
    struct ap_arena *arena = e->f->im->src->arena;
    struct ap_shape shape = *emit_shape(e, x);
    struct ap_pad_dim *pad = AP_NEW_N(arena, shape.rank + 1, struct ap_pad_dim);
    int64_t *dims = AP_NEW_N(arena, shape.rank + 1, int64_t);
    for (int d = 0; d < shape.rank; d++) {
        const struct ap_window_dim *v = &w->window[d];
        pad[d] = (struct ap_pad_dim){v->pad_lo, v->pad_hi, v->lhs_dilate - 1};
        dims[d] = shape.dims[d] + v->pad_lo + v->pad_hi;
        if (shape.dims[d])
            dims[d] += (shape.dims[d] - 1) * (v->lhs_dilate - 1);
    }
    struct ap_attrs *a = emit_attrs(e);
    a->padding = pad;
    a->n_padding = shape.rank;
    shape.dims = dims;
    int in[2] = {x, init};
    return emit_op(e, AP_OP_PAD, 2, in, &shape, a);
}

/* What lies under position k of all windows. */
static int under(const struct emit *e, int x, const int64_t *k,
                 const struct ap_shape *windows)
{
    const struct ap_attrs *w = e->instr->attrs;
    struct ap_shape shape = *windows;
    struct ap_attrs *a = emit_attrs(e);
    struct ap_slice_dim *slice =
        AP_NEW_N(e->f->im->src->arena, shape.rank + 1, struct ap_slice_dim);
    for (int d = 0; d < shape.rank; d++) {
        int64_t at = k[d] * w->window[d].rhs_dilate, step = w->window[d].stride;
        slice[d] = (struct ap_slice_dim){at, at + (shape.dims[d] - 1) * step + 1, step};
    }
    a->slice = slice;
    a->n_slice = shape.rank;
    shape.dtype = emit_shape(e, x)->dtype;
    return emit_op(e, AP_OP_SLICE, 1, &x, &shape, a);
}

/* A window over array i alone has the shape that is said for part i. */
static int check_windows(const struct emit *e, const int *in, int n)
{
    struct import *im = e->f->im;
    const struct ap_shape *shape = &e->instr->shape;
    if (shape->dtype != AP_TUPLE || shape->n_parts != n)
        return hlo_fail(im->src, e->pos, "reduce-window: the result is not a tuple of %d",
                        n);
    int sum = import_sum(im);
    for (int i = 0; i < n; i++) {
        struct ap_attrs *a =
            ap_arena_dup(im->src->arena, e->instr->attrs, sizeof *e->instr->attrs);
        int pair[2] = {in[i], in[n + i]};
        a->to_apply = sum;
        struct ap_node node = {.op = AP_OP_REDUCE_WINDOW,
                               .name = e->name,
                               .n_in = 2,
                               .in = pair,
                               .shape = shape->parts[i],
                               .attrs = a};
        if (inline_check(im, e->pos, &node))
            return -1;
        if (!ap_shape_same_dims(&shape->parts[0], &shape->parts[i]))
            return hlo_fail(im->src, e->pos, "reduce-window: the arrays differ in shape");
    }
    return 0;
}

static int64_t positions(const struct ap_attrs *w)
{
    int64_t n = 1;
    for (int d = 0; d < w->n_window; d++)
        n = ap_mul64(n, w->window[d].size);
    return n;
}

static int lower_window(const struct emit *e, struct value *out)
{
    struct import *im = e->f->im;
    const struct ap_attrs *w = e->instr->attrs;
    int n = e->instr->n_in / 2;
    int *in = AP_NEW_N(im->src->arena, 2 * n + 1, int);
    int *args = AP_NEW_N(im->src->arena, 2 * n + 1, int);
    if (e->instr->n_in % 2)
        return hlo_fail(im->src, e->pos,
                        "reduce-window needs one initial value per operand");
    for (int k = 0; k < 2 * n; k++)
        if ((in[k] = emit_operand(e, k)) < 0)
            return -1;
    int reducer = import_reducer(im, e->instr->comp[0], false, e->pos);
    if (reducer < 0 || check_windows(e, in, n))
        return -1;
    if (im->g.reducers[reducer].n_results != n)
        return hlo_fail(im->src, e->pos, "reduce-window: the reducer has %d results",
                        im->g.reducers[reducer].n_results);
    if (positions(w) > MAX_POSITIONS)
        return hlo_refuse(im->src, e->pos,
                          "a window of more than %d positions over several arrays is "
                          "not supported",
                          MAX_POSITIONS);
    const struct ap_shape *windows = &e->instr->shape.parts[0];
    for (int i = 0; i < n; i++) {
        args[i] = emit_spread(e, in[n + i], windows);
        in[i] = padded(e, in[i], in[n + i]);
    }
    int64_t k[AP_MAX_RANK] = {0}, count = ap_shape_elems(windows) ? positions(w) : 0;
    for (int64_t p = 0; p < count; p++) {
        for (int i = 0; i < n; i++)
            args[n + i] = under(e, in[i], k, windows);
        emit_apply(e, reducer, args, args);
        for (int d = w->n_window - 1; d >= 0 && ++k[d] == w->window[d].size; d--)
            k[d] = 0;
    }
    *out = tuple_of(e, args, n);
    return 0;
}

/* ---- scatter of several arrays ---- */

static int lower_scatter(const struct emit *e, struct value *out)
{
    struct import *im = e->f->im;
    int n = (e->instr->n_in - 1) / 2;
    const struct ap_shape *shape = &e->instr->shape;
    int *roots = AP_NEW_N(im->src->arena, n + 1, int);
    if (e->instr->n_in % 2 == 0 || shape->dtype != AP_TUPLE || shape->n_parts != n)
        return hlo_fail(im->src, e->pos, "scatter: the result is not a tuple of %d", n);
    for (int i = 0; i < n; i++) {
        int in[3] = {emit_operand(e, i), emit_operand(e, n), emit_operand(e, n + 1 + i)};
        if (in[0] < 0 || in[1] < 0 || in[2] < 0)
            return -1;
        struct ap_attrs *a =
            ap_arena_dup(im->src->arena, e->instr->attrs, sizeof *e->instr->attrs);
        a->to_apply = import_reducer_part(im, e->instr->comp[0], i, n, e->pos);
        if (a->to_apply < 0)
            return -1;
        struct ap_node node = {.op = AP_OP_SCATTER,
                               .name = e->name,
                               .n_in = 3,
                               .in = in,
                               .shape = shape->parts[i],
                               .attrs = a};
        if (inline_check(im, e->pos, &node))
            return -1;
        roots[i] = emit_op(e, AP_OP_SCATTER, 3, in, &shape->parts[i], a);
    }
    *out = tuple_of(e, roots, n);
    return 0;
}

/* ---- bits ---- */

static enum ap_dtype unsigned_of(int size)
{
    return size == 1 ? AP_U8 : size == 2 ? AP_U16 : size == 4 ? AP_U32 : AP_U64;
}

/* Wide elements as rows of narrow ones, low bits first. */
static int to_narrow(const struct emit *e, int x, int wide, int narrow)
{
    struct ap_shape part = *emit_shape(e, x);
    int n = wide / narrow, parts[8];
    int64_t dims[AP_MAX_RANK + 1];
    x = emit_recast(e, AP_OP_BITCAST_CONVERT, x, unsigned_of(wide));
    memcpy(dims, part.dims, (size_t)part.rank * sizeof *dims);
    dims[part.rank] = 1;
    for (int i = 0; i < n; i++) {
        int bits = i ? emit_with(e, AP_OP_SHIFT_RIGHT_LOGICAL, x, 8 * narrow * i) : x;
        bits = emit_recast(e, AP_OP_CONVERT, bits, unsigned_of(narrow));
        parts[i] = emit_reshape(e, bits, part.rank + 1, dims);
    }
    struct ap_shape shape = e->instr->shape;
    struct ap_attrs *a = emit_attrs(e);
    int64_t last = part.rank;
    a->dimensions.n = 1;
    a->dimensions.v = ap_arena_dup(e->f->im->src->arena, &last, sizeof last);
    shape.dtype = unsigned_of(narrow);
    return emit_op(e, AP_OP_CONCATENATE, n, parts, &shape, a);
}

/* Rows of narrow elements as wide ones. */
static int to_wide(const struct emit *e, int x, int wide, int narrow)
{
    struct ap_shape in = *emit_shape(e, x), row = in;
    struct ap_arena *arena = e->f->im->src->arena;
    int64_t *dims = ap_arena_dup(arena, in.dims, (size_t)in.rank * sizeof *dims);
    int last = in.rank - 1, sum = -1;
    x = emit_recast(e, AP_OP_BITCAST_CONVERT, x, unsigned_of(narrow));
    dims[last] = 1;
    row.dims = dims;
    row.dtype = unsigned_of(narrow);
    for (int i = 0; i < wide / narrow; i++) {
        struct ap_slice_dim *slice = AP_NEW_N(arena, in.rank, struct ap_slice_dim);
        struct ap_attrs *a = emit_attrs(e);
        for (int d = 0; d < in.rank; d++)
            slice[d] = (struct ap_slice_dim){0, in.dims[d], 1};
        slice[last] = (struct ap_slice_dim){i, i + 1, 1};
        a->slice = slice;
        a->n_slice = in.rank;
        int bits = emit_op(e, AP_OP_SLICE, 1, &x, &row, a);
        bits = emit_reshape(e, bits, last, in.dims);
        bits = emit_recast(e, AP_OP_CONVERT, bits, unsigned_of(wide));
        if (i)
            bits = emit_with(e, AP_OP_SHIFT_LEFT, bits, 8 * narrow * i);
        sum = i ? emit_binary(e, AP_OP_OR, sum, bits) : bits;
    }
    return sum;
}

static bool has_bits(enum ap_dtype dtype)
{
    return ap_dtype_is_int(dtype) || ap_dtype_is_float(dtype);
}

/* bitcast-convert between widths: the last dimension comes or goes. */
static int lower_bits(const struct emit *e, struct value *out)
{
    struct import *im = e->f->im;
    const struct ap_shape *to = &e->instr->shape;
    int x = emit_operand(e, 0);
    if (x < 0)
        return -1;
    struct ap_shape from = *emit_shape(e, x);
    int in = ap_dtype_size(from.dtype), narrow = ap_dtype_size(to->dtype);
    bool grows = in > narrow;
    const struct ap_shape *small = grows ? &from : to, *large = grows ? to : &from;
    bool fits = has_bits(from.dtype) && has_bits(to->dtype) &&
                large->rank == small->rank + 1 &&
                large->dims[small->rank] == (grows ? in / narrow : narrow / in);
    for (int d = 0; fits && d < small->rank; d++)
        fits = small->dims[d] == large->dims[d];
    if (!fits)
        return hlo_fail(im->src, e->pos,
                        "bitcast-convert: the result's last dimension is not made of "
                        "the operand's bits");
    int bits = grows ? to_narrow(e, x, in, narrow) : to_wide(e, x, narrow, in);
    *out = (struct value){.node = emit_recast(e, AP_OP_BITCAST_CONVERT, bits, to->dtype)};
    return 0;
}

/* ---- bitcast ---- */

/* Dimensions from the one that is major in memory to the minor one. */
static int memory_order(const struct emit *e, const struct hlo_instr *instr, int rank,
                        int64_t *order)
{
    struct hlo_src *src = e->f->im->src;
    struct ap_ints minor_to_major = {0};
    struct ap_err err = {{0}};
    for (int d = 0; d < rank; d++)
        order[d] = d;
    const char *s = src->text + instr->shape_pos;
    s += strcspn(s, "]");
    if (!instr->shape_pos || s[0] != ']' || s[1] != '{' || s[2] < '0' || s[2] > '9')
        return 0;
    struct ap_buf list = {0};
    ap_buf_put(&list, s + 1, strcspn(s + 1, ":}"));
    ap_buf_puts(&list, "}");
    size_t pos = 0;
    int rc = ap_ints_parse(src->arena, list.data, &pos, &minor_to_major, &err);
    ap_buf_free(&list);
    unsigned seen = 0;
    for (int d = 0; !rc && d < minor_to_major.n; d++) {
        int64_t v = minor_to_major.v[d];
        if (v < 0 || v >= rank || seen >> v & 1)
            rc = -1;
        else
            seen |= 1u << v;
    }
    if (rc || minor_to_major.n != rank)
        return hlo_fail(src, instr->pos, "a layout that does not fit the shape");
    for (int d = 0; d < rank; d++)
        order[d] = minor_to_major.v[rank - 1 - d];
    return 0;
}

/* The same bytes in another shape: what that means follows from both layouts. */
int inline_bitcast(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct emit e = emit_start(f, instr);
    struct hlo_src *src = f->im->src;
    int64_t from[AP_MAX_RANK], to[AP_MAX_RANK], dims[AP_MAX_RANK], back[AP_MAX_RANK];
    if (instr->n_in != 1)
        return hlo_fail(src, e.pos, "bitcast takes 1 operand, got %d", instr->n_in);
    int x = emit_operand(&e, 0);
    if (x < 0)
        return -1;
    struct ap_shape in = *emit_shape(&e, x);
    const struct ap_shape *shape = &instr->shape;
    bool same = shape->dtype == in.dtype ||
                (has_bits(shape->dtype) && has_bits(in.dtype) &&
                 ap_dtype_size(shape->dtype) == ap_dtype_size(in.dtype));
    if (!same || ap_shape_elems(shape) != ap_shape_elems(&in))
        return hlo_refuse(src, e.pos, "a bitcast to other elements is not supported yet");
    if (memory_order(&e, &f->comp->instr[instr->in[0]], in.rank, from) ||
        memory_order(&e, instr, shape->rank, to))
        return -1;
    for (int d = 0; d < shape->rank; d++) {
        dims[d] = shape->dims[to[d]];
        back[to[d]] = d;
    }
    x = emit_recast(&e, AP_OP_BITCAST_CONVERT, x, shape->dtype);
    x = emit_transpose(&e, x, from);
    x = emit_reshape(&e, x, shape->rank, dims);
    *out = (struct value){.node = emit_transpose(&e, x, back)};
    return 0;
}

int inline_lowered(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct emit e = emit_start(f, instr);
    if (instr->op == AP_OP_REDUCE_WINDOW)
        return lower_window(&e, out);
    return instr->op == AP_OP_SCATTER ? lower_scatter(&e, out) : lower_bits(&e, out);
}
