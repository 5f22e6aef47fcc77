/*
 * Values that are known while lowering: shapes and values computed from them. On demand,
 * all that a node depends on is computed once, in the order of the nodes; nodes that
 * depend on a parameter whose value is missing or large are not known. Integers are 64
 * bits wide, floats doubles that are rounded to f32 where the graph's are.
 *
 * Cost: linear in the elements of the requested values; MAX_ELEMS bounds each value.
 */
#include "onnx/onnx.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "doc/npy.h"
#include "graph/element.h"

#define MAX_ELEMS 65536

enum { UNSEEN, ASKED, DONE };

static bool is_float(enum ap_dtype t)
{
    return ap_dtype_is_float(t);
}

static struct ox_val *new_val(struct ox *c, const struct ap_shape *s)
{
    struct ap_arena *a = c->file->arena;
    struct ox_val *v = AP_NEW(a, struct ox_val);
    v->n = ap_shape_elems(s);
    if (is_float(s->dtype))
        v->f = AP_NEW_N(a, v->n + 1, double);
    else
        v->i = AP_NEW_N(a, v->n + 1, int64_t);
    return v;
}

static void copy_elem(struct ox_val *to, int64_t i, const struct ox_val *from, int64_t k)
{
    if (to->f)
        to->f[i] = from->f[k];
    else
        to->i[i] = from->i[k];
}

static double as_double(const struct ox_val *v, int64_t i)
{
    return v->f ? v->f[i] : (double)v->i[i];
}

/* Elements as a file or a literal has them. */
static struct ox_val *from_bytes(struct ox *c, const struct ap_shape *s, const char *data,
                                 bool splat)
{
    struct ox_val *v = new_val(c, s);
    int size = ap_dtype_size(s->dtype);
    unsigned char elem[16];
    for (int64_t i = 0; i < v->n; i++) {
        memcpy(elem, data + (splat ? 0 : i * size), (size_t)size);
        if (v->f)
            v->f[i] = ap_elem_to_double(s->dtype, elem);
        else
            v->i[i] = ap_elem_to_int(s->dtype, elem);
    }
    return v;
}

static struct ox_val *param_value(struct ox *c, const struct ap_node *node)
{
    const struct ox_leaf *leaf = &c->leaves[node->param];
    if (leaf->init >= 0) {
        struct onnx_tensor *t = &c->model->inits[leaf->init];
        if (onnx_map_external(c->file, t))
            return NULL;
        return from_bytes(c, &t->shape, t->data, false);
    }
    if (!c->opt->values)
        return NULL;
    const char *path =
        ap_arena_printf(c->file->arena, "%s/%d.npy", c->opt->values, leaf->input);
    void *data = NULL;
    struct ap_err why = {{0}};
    bool missing;
    if (ap_npy_read_shape(path, &node->shape, &data, &missing, &why)) {
        if (!missing)
            onnx_fail(c->file, "input '%s': %s", node->name, why.msg);
        return NULL;
    }
    struct ox_val *v = from_bytes(c, &node->shape, data, false);
    free(data);
    return v;
}

/* ---- elementwise ---- */

/* Integers and truth values. */
static bool fold_ints(struct ox *c, const struct ap_node *node, struct ox_val *out)
{
    enum ap_dtype dtype = c->b.nodes[node->in[0]].shape.dtype;
    for (int64_t i = 0; i < out->n; i++) {
        int64_t v[3] = {0};
        for (int k = 0; k < node->n_in; k++) {
            const struct ox_val *x = c->known[node->in[k]];
            v[k] = x->i[x->n == 1 ? 0 : i];
        }
        if (!ap_eval_int(node, dtype, v, &out->i[i]))
            return false;
    }
    return true;
}

/* Functions of floats; false for comparisons of NaN, too. */
static bool fold_floats(struct ox *c, const struct ap_node *node, struct ox_val *out)
{
    for (int64_t i = 0; i < out->n; i++) {
        double v[3] = {0}, value;
        for (int k = 0; k < node->n_in; k++) {
            v[k] = c->known[node->in[k]]->f[i];
            if (out->i && isnan(v[k]))
                return false;
        }
        if (!ap_eval_float(node, v, &value))
            return false;
        if (out->f)
            out->f[i] = value;
        else
            out->i[i] = value != 0;
    }
    return true;
}

static bool fold_convert(struct ox_val *out, const struct ox_val *x)
{
    for (int64_t i = 0; i < out->n; i++) {
        if (out->f)
            out->f[i] = as_double(x, i);
        else if (fabs(x->f[i]) < 9e18)
            out->i[i] = (int64_t)x->f[i];
        else
            return false;
    }
    return true;
}

static bool fold_select(struct ox_val *out, const struct ox_val *p,
                        const struct ox_val *x, const struct ox_val *y)
{
    for (int64_t i = 0; i < out->n; i++)
        copy_elem(out, i, p->i[p->n == 1 ? 0 : i] ? x : y, i);
    return true;
}

/* ---- moves ---- */

static void strides_of(const struct ap_shape *s, int64_t *stride)
{
    int64_t n = 1;
    for (int d = s->rank - 1; d >= 0; d--) {
        stride[d] = n;
        n *= s->dims[d];
    }
}

/* out[i] = x[base + sum of index d * step[d]]. */
static void copy_strided(struct ox_val *out, const struct ap_shape *s,
                         const struct ox_val *x, int64_t base, const int64_t *step)
{
    int64_t index[AP_MAX_RANK] = {0}, at = base;
    for (int64_t i = 0; i < out->n; i++) {
        copy_elem(out, i, x, at);
        for (int d = s->rank - 1; d >= 0; d--) {
            at += step[d];
            if (++index[d] < s->dims[d])
                break;
            at -= step[d] * s->dims[d];
            index[d] = 0;
        }
    }
}

static bool fold_move(const struct ap_node *node, const struct ap_shape *xs,
                      struct ox_val *out, const struct ox_val *x)
{
    int64_t step[AP_MAX_RANK] = {0}, stride[AP_MAX_RANK], base = 0;
    strides_of(xs, stride);
    if (node->op == AP_OP_BROADCAST)
        for (int d = 0; d < xs->rank; d++)
            step[node->attrs->dimensions.v[d]] = stride[d];
    if (node->op == AP_OP_TRANSPOSE)
        for (int d = 0; d < xs->rank; d++)
            step[d] = stride[node->attrs->dimensions.v[d]];
    if (node->op == AP_OP_SLICE)
        for (int d = 0; d < xs->rank; d++) {
            step[d] = stride[d] * node->attrs->slice[d].stride;
            base += stride[d] * node->attrs->slice[d].start;
        }
    if (node->op == AP_OP_REVERSE) {
        memcpy(step, stride, (size_t)xs->rank * sizeof *step);
        for (int k = 0; k < node->attrs->dimensions.n; k++) {
            int64_t d = node->attrs->dimensions.v[k];
            base += stride[d] * (xs->dims[d] - 1);
            step[d] = -stride[d];
        }
    }
    if (node->op == AP_OP_RESHAPE)
        strides_of(&node->shape, step);
    copy_strided(out, &node->shape, x, base, step);
    return true;
}

static bool fold_concat(struct ox *c, const struct ap_node *node, struct ox_val *out)
{
    int64_t d = node->attrs->dimensions.v[0], inner = 1, outer = 1, at = 0;
    for (int64_t k = d + 1; k < node->shape.rank; k++)
        inner *= node->shape.dims[k];
    for (int64_t k = 0; k < d; k++)
        outer *= node->shape.dims[k];
    for (int64_t o = 0; o < outer; o++)
        for (int k = 0; k < node->n_in; k++) {
            const struct ox_val *x = c->known[node->in[k]];
            int64_t n = c->b.nodes[node->in[k]].shape.dims[d] * inner;
            for (int64_t i = 0; i < n; i++)
                copy_elem(out, at++, x, o * n + i);
        }
    return true;
}

static bool fold_iota(const struct ap_node *node, struct ox_val *out)
{
    int64_t stride[AP_MAX_RANK], d = node->attrs->iota_dimension;
    strides_of(&node->shape, stride);
    for (int64_t i = 0; i < out->n; i++) {
        int64_t v = i / stride[d] % node->shape.dims[d];
        if (out->f)
            out->f[i] = (double)v;
        else
            out->i[i] = v;
    }
    return true;
}

static bool fold_reduce(struct ox *c, const struct ap_node *node, struct ox_val *out)
{
    const struct ox_val *x = c->known[node->in[0]], *init = c->known[node->in[1]];
    const struct ap_shape *xs = &c->b.nodes[node->in[0]].shape;
    const struct ap_node step = {.op =
                                     ap_red_ops[c->b.reducers[node->attrs->to_apply].red],
                                 .n_in = 2,
                                 .shape.dtype = node->shape.dtype};
    int64_t stride[AP_MAX_RANK], to[AP_MAX_RANK] = {0};
    int kept = 0;
    strides_of(&node->shape, stride);
    for (int d = 0; d < xs->rank; d++) {
        bool reduced = false;
        for (int k = 0; k < node->attrs->dimensions.n; k++)
            reduced = reduced || node->attrs->dimensions.v[k] == d;
        to[d] = reduced ? 0 : stride[kept++];
    }
    for (int64_t i = 0; i < out->n; i++)
        copy_elem(out, i, init, 0);
    for (int64_t i = 0; i < x->n; i++) {
        int64_t rest = i, at = 0;
        for (int d = xs->rank - 1; d >= 0; d--) {
            at += rest % xs->dims[d] * to[d];
            rest /= xs->dims[d];
        }
        if (out->f ? !ap_eval_float(&step, (const double[]){out->f[at], x->f[i]},
                                    &out->f[at])
                   : !ap_eval_int(&step, xs->dtype,
                                  (const int64_t[]){out->i[at], x->i[i]}, &out->i[at]))
            return false;
    }
    return true;
}

/* Gathers that ox_take makes: whole but for one dimension, which the indices replace. */
static bool fold_take(struct ox *c, const struct ap_node *node, struct ox_val *out)
{
    const struct ap_attrs *a = node->attrs;
    const struct ox_val *x = c->known[node->in[0]], *idx = c->known[node->in[1]];
    const struct ap_shape *xs = &c->b.nodes[node->in[0]].shape;
    const struct ap_shape *is = &c->b.nodes[node->in[1]].shape;
    if (a->start_index_map.n != 1 || a->index_vector_dim != is->rank ||
        a->collapsed_slice_dims.n != 1 || a->operand_batching_dims.n)
        return false;
    int64_t d = a->start_index_map.v[0], inner = 1, at = 0;
    for (int64_t k = 0; k < xs->rank; k++)
        if (k != d &&
            (a->slice_sizes.v[k] != xs->dims[k] ||
             a->offset_dims.v[k < d ? k : k - 1] != (k < d ? k : k + is->rank - 1)))
            return false;
    for (int64_t k = d + 1; k < xs->rank; k++)
        inner *= xs->dims[k];
    int64_t block = xs->dims[d] * inner, outer = block > 0 ? x->n / block : 0;
    for (int64_t o = 0; o < outer; o++)
        for (int64_t k = 0; k < idx->n; k++) {
            if (idx->i[k] < 0 || idx->i[k] >= xs->dims[d])
                return false;
            for (int64_t i = 0; i < inner; i++)
                copy_elem(out, at++, x, (o * xs->dims[d] + idx->i[k]) * inner + i);
        }
    return at == out->n;
}

/* ---- the walk ---- */

static bool fold_elementwise(struct ox *c, const struct ap_node *node, struct ox_val *out)
{
    const struct ox_val *x[3] = {NULL};
    bool ints = out->i && node->n_in <= 3, floats = node->n_in <= 3;
    for (int k = 0; k < node->n_in && k < 3; k++) {
        x[k] = c->known[node->in[k]];
        ints = ints && x[k]->i && (x[k]->n == out->n || x[k]->n == 1);
        floats = floats && x[k]->f && x[k]->n == out->n;
    }
    if (ints)
        return fold_ints(c, node, out);
    if (node->op == AP_OP_CONVERT)
        return fold_convert(out, x[0]);
    if (node->op == AP_OP_SELECT)
        return fold_select(out, x[0], x[1], x[2]);
    return floats && fold_floats(c, node, out);
}

static bool fold(struct ox *c, const struct ap_node *node, struct ox_val *out)
{
    switch ((int)node->op) {
    case AP_OP_IOTA:
        return fold_iota(node, out);
    case AP_OP_BROADCAST:
    case AP_OP_RESHAPE:
    case AP_OP_TRANSPOSE:
    case AP_OP_SLICE:
    case AP_OP_REVERSE:
        return fold_move(node, &c->b.nodes[node->in[0]].shape, out,
                         c->known[node->in[0]]);
    case AP_OP_CONCATENATE:
        return fold_concat(c, node, out);
    case AP_OP_REDUCE:
        return node->n_in == 2 && fold_reduce(c, node, out);
    case AP_OP_GATHER:
        return fold_take(c, node, out);
    }
    return ap_ops[node->op].class == AP_CLASS_ELEMENTWISE &&
           fold_elementwise(c, node, out);
}

/* Integers wrap to their type, floats are rounded to theirs. */
static bool settle(struct ox_val *v, enum ap_dtype dtype)
{
    unsigned char elem[16];
    for (int64_t i = 0; i < v->n; i++) {
        if (v->f) {
            ap_elem_from_double(dtype, v->f[i], elem);
            v->f[i] = ap_elem_to_double(dtype, elem);
        } else if (!ap_elem_from_int(dtype, v->i[i], elem)) {
            return false;
        }
    }
    return true;
}

static struct ox_val *compute(struct ox *c, int id)
{
    const struct ap_node *node = &c->b.nodes[id];
    if (ap_shape_elems(&node->shape) > MAX_ELEMS || node->shape.dtype == AP_TUPLE)
        return NULL;
    if (node->op == AP_OP_PARAMETER)
        return param_value(c, node);
    if (node->op == AP_OP_CONSTANT)
        return from_bytes(c, &node->shape, node->attrs->literal.data,
                          node->attrs->literal.splat);
    for (int k = 0; k < node->n_in; k++)
        if (!c->known[node->in[k]])
            return NULL;
    struct ox_val *v = new_val(c, &node->shape);
    return fold(c, node, v) && settle(v, node->shape.dtype) ? v : NULL;
}

static void grow(struct ox *c)
{
    int n = c->b.cap > c->b.n ? c->b.cap : c->b.n;
    if (n <= c->cap_known)
        return;
    c->known = ap_xrealloc(c->known, (size_t)n * sizeof(void *));
    c->known_state = ap_xrealloc(c->known_state, (size_t)n);
    memset(c->known + c->cap_known, 0, (size_t)(n - c->cap_known) * sizeof(void *));
    memset(c->known_state + c->cap_known, UNSEEN, (size_t)(n - c->cap_known));
    c->cap_known = n;
}

/* The nodes that id depends on and that are still to be computed, id among them. */
static int *ask(struct ox *c, int id, int *n)
{
    int cap = 0, *list = NULL;
    *n = 0;
    AP_ROOM(list, *n, cap);
    list[(*n)++] = id;
    c->known_state[id] = ASKED;
    for (int at = 0; at < *n; at++) {
        const struct ap_node *node = &c->b.nodes[list[at]];
        if (ap_shape_elems(&node->shape) > MAX_ELEMS)
            continue;
        AP_ROOM_FOR(list, *n, cap, node->n_in);
        for (int k = 0; k < node->n_in; k++)
            if (c->known_state[node->in[k]] == UNSEEN) {
                c->known_state[node->in[k]] = ASKED;
                list[(*n)++] = node->in[k];
            }
    }
    return list;
}

const struct ox_val *ox_eval(struct ox *c, int id)
{
    if (id < 0)
        return NULL;
    grow(c);
    if (c->known_state[id] == DONE)
        return c->known[id];
    int n, *list = ask(c, id, &n);
    qsort(list, (size_t)n, sizeof *list,
          ap_compare_int); /* operands have lower numbers */
    for (int i = 0; i < n; i++) {
        c->known[list[i]] = compute(c, list[i]);
        c->known_state[list[i]] = DONE;
    }
    free(list);
    return c->known[id];
}

/* ---- what lowering functions ask for ---- */

static int not_known(struct ox *c, int i)
{
    if (c->file->err->msg[0])
        return -1;
    return ox_refuse(c,
                     "input %d ('%.100s') decides a shape, but its value is not known "
                     "(see --values): not supported yet",
                     i, i < c->node->n_in ? c->node->in[i] : "");
}

bool ox_ints(struct ox *c, int i, struct ap_ints *v)
{
    const struct ox_val *x = ox_eval(c, ox_in(c, i));
    if (!x || !x->i) {
        if (x)
            ox_fail(c, "input %d: expected integers", i);
        else
            not_known(c, i);
        return false;
    }
    *v = (struct ap_ints){(int)x->n, x->i};
    return true;
}

bool ox_floats(struct ox *c, int i, const double **v, int64_t *n)
{
    const struct ox_val *x = ox_eval(c, ox_in(c, i));
    if (!x) {
        not_known(c, i);
        return false;
    }
    double *f = AP_NEW_N(c->file->arena, x->n + 1, double);
    for (int64_t k = 0; k < x->n; k++)
        f[k] = as_double(x, k);
    *v = f;
    *n = x->n;
    return true;
}

bool ox_ints_of(struct ox *c, const char *name, int i, struct ap_ints *v, bool *given)
{
    *v = (struct ap_ints){0};
    *given = true;
    if (ox_in(c, i) >= 0)
        return ox_ints(c, i, v);
    *given = ox_attr_ints(c, name, v);
    return true;
}
