/*
 * Calls inlined, tuples dissolved: computations of instructions become one list of nodes.
 *
 * Every instruction of a computation has a value: a node, or a tuple of values, for which
 * there is no node. A call evaluates its computation again with the operands' values;
 * a get-tuple-element picks. Operators that do make tuples (reduce of several arrays,
 * sort, topk) are followed by one get-tuple-element node per part at once. Linear in the
 * instructions after inlining, which are bounded by max_work.
 */
#include "inline/inline.h"

#include <stdlib.h>
#include <string.h>

#define MAX_SPAN(len) ((int)((len) < 100 ? (len) : 100))

/* ---- values ---- */

bool inline_has_shape(struct import *im, const struct value *v,
                      const struct ap_shape *shape)
{
    im->work += v->node < 0 ? v->n_parts / 8 : 0;
    if (v->node >= 0)
        return ap_shape_equal(&im->g.nodes[v->node].shape, shape);
    if (shape->dtype != AP_TUPLE || shape->n_parts != v->n_parts)
        return false;
    for (int i = 0; i < v->n_parts; i++)
        if (!inline_has_shape(im, &v->parts[i], &shape->parts[i]))
            return false;
    return true;
}

int inline_parts(struct import *im, int id)
{
    struct ap_shape shape = im->g.nodes[id].shape;
    int first = im->g.n_nodes;
    for (int i = 0; i < shape.n_parts; i++) {
        struct node_info info = im->info[id];
        struct ap_attrs *attrs = import_new_attrs(im->src->arena);
        attrs->index = i;
        struct ap_node get = import_node(
            AP_OP_GET_TUPLE_ELEMENT,
            ap_arena_printf(im->src->arena, "%s#%d", im->g.nodes[id].name, i));
        get.in = ap_arena_dup(im->src->arena, &id, sizeof id);
        get.n_in = 1;
        get.shape = shape.parts[i];
        get.attrs = attrs;
        get.scope = im->g.nodes[id].scope;
        info.auto_named = true;
        import_add(im, &get, &info);
    }
    return first;
}

/* The value of a node; one that makes a tuple gets its get-tuple-elements. */
static struct value node_value(struct import *im, int id)
{
    struct ap_shape shape = im->g.nodes[id].shape;
    if (shape.dtype != AP_TUPLE)
        return (struct value){.node = id};
    struct value *parts = AP_NEW_N(im->src->arena, shape.n_parts, struct value);
    int first = inline_parts(im, id);
    for (int i = 0; i < shape.n_parts; i++)
        parts[i] = (struct value){.node = first + i};
    return inline_tuple(shape.n_parts, parts);
}

const char *inline_name(const struct frame *f, const struct hlo_instr *instr)
{
    if (!*f->prefix)
        return instr->name;
    size_t len = strlen(f->prefix) + strlen(instr->name);
    f->im->work += (int64_t)len / 64;
    return ap_arena_printf(f->im->src->arena, "%s/%s", f->prefix, instr->name);
}

/*
 * The op_name of an instruction in an inlined computation continues that of the call,
 * unless it is a whole path itself.
 */
const char *inline_op_name(const struct frame *f, const struct hlo_instr *instr)
{
    const char *own = instr->op_name;
    if (!*f->op_name || strncmp(own, "jit(", 4) == 0 || strncmp(own, "pjit(", 5) == 0)
        return inline_number_path(f, own);
    size_t len = strlen(f->op_name) + strlen(own);
    f->im->work += (int64_t)len / 64;
    return ap_arena_printf(f->im->src->arena, "%s/%s", f->op_name, *own ? own : "op");
}

/* ---- instructions ---- */

/* Reducers and literal put in; NULL on error. */
static const struct ap_attrs *attrs_of(struct import *im, const struct hlo_instr *instr)
{
    if (!instr->literal && instr->comp[0] < 0 && instr->comp[1] < 0)
        return instr->attrs;
    struct ap_attrs *a = ap_arena_dup(im->src->arena, instr->attrs, sizeof *a);
    if (instr->literal)
        a->literal = *instr->literal;
    size_t pos = hlo_at(im->src, instr->opcode.s);
    if (instr->op == AP_OP_SELECT_AND_SCATTER) {
        a->select = import_reducer(im, instr->comp[0], false, pos);
        a->scatter = import_reducer(im, instr->comp[1], false, pos);
        return a->select < 0 || a->scatter < 0 ? NULL : a;
    }
    if (instr->comp[0] >= 0) {
        a->to_apply = import_reducer(im, instr->comp[0], instr->op == AP_OP_SCATTER, pos);
        if (a->to_apply < 0)
            return NULL;
    }
    return a;
}

int inline_check(struct import *im, size_t pos, const struct ap_node *node)
{
    struct ap_err err = {{0}};
    if (ap_check_node(&im->g, node, &err))
        return hlo_fail(im->src, pos, "%s: %s", ap_ops[node->op].name, err.msg);
    return 0;
}

int inline_op(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct import *im = f->im;
    size_t pos = hlo_at(im->src, instr->opcode.s);
    struct ap_node node = import_node(instr->op, inline_name(f, instr));
    const char *op_name = inline_op_name(f, instr);
    struct node_info info = {.pos = pos, .hint = import_hint(op_name)};
    int *in = AP_NEW_N(im->src->arena, instr->n_in ? instr->n_in : 1, int);
    for (int i = 0; i < instr->n_in; i++) {
        in[i] = f->values[instr->in[i]].node;
        if (in[i] < 0)
            return hlo_fail(im->src, pos, "operand %d of %s is a tuple", i,
                            ap_ops[instr->op].name);
    }
    if (instr->shape.dtype == AP_TUPLE)
        for (int i = 0; i < instr->shape.n_parts; i++)
            if (instr->shape.parts[i].dtype == AP_TUPLE)
                return hlo_fail(im->src, pos, "a tuple of tuples from %s",
                                ap_ops[instr->op].name);
    node.in = in;
    node.n_in = instr->n_in;
    node.shape = instr->shape;
    node.scope = import_scope(im, op_name);
    node.pin = instr->pin;
    node.attrs = attrs_of(im, instr);
    if (!node.attrs || inline_check(im, pos, &node))
        return -1;
    const bool barred = inline_is_barred(f, instr);
    int same = inline_fold(im, &node, &info);
    if (same >= 0) {
        *out = (struct value){.node = same, .barred = barred};
        return 0;
    }
    if (barred)
        node.attrs = import_recomputed(im->src->arena, node.attrs);
    *out = node_value(im, import_add(im, &node, &info));
    return 0;
}

static int eval_get(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct import *im = f->im;
    const struct value *tuple = &f->values[instr->in[0]];
    size_t pos = hlo_at(im->src, instr->opcode.s);
    if (tuple->node >= 0)
        return hlo_fail(im->src, pos, "the operand of get-tuple-element is not a tuple");
    if (instr->number < 0 || instr->number >= tuple->n_parts)
        return hlo_fail(im->src, pos, "index %lld of a tuple of %d",
                        (long long)instr->number, tuple->n_parts);
    *out = tuple->parts[instr->number];
    if (!inline_has_shape(im, out, &instr->shape))
        return hlo_fail(im->src, pos, "get-tuple-element: the element has another shape");
    if (out->node >= 0 && im->info[out->node].auto_named) {
        im->g.nodes[out->node].name = inline_name(f, instr);
        im->info[out->node].auto_named = false;
    }
    if (instr->pin && out->node >= 0 && !im->g.nodes[out->node].pin)
        im->g.nodes[out->node].pin = instr->pin;
    return 0;
}

/* A sharding of a tuple: one for all its leaves, or a list with one for each. */
struct tuple_pin {
    const char *all, *rest;
};

static struct tuple_pin tuple_pin(const char *pin)
{
    bool list = pin && pin[strspn(pin, "{ ")] && strspn(pin, "{ ") > 1;
    return (struct tuple_pin){list ? NULL : pin, list ? pin + 1 : NULL};
}

/* The next leaf's, or NULL. Comments such as index=5 stand between them. */
static const char *next_pin(struct import *im, struct tuple_pin *p)
{
    if (!p->rest)
        return p->all;
    const char *from = p->rest + strcspn(p->rest, "{"), *end = from;
    for (int depth = 0; *end; end++) {
        depth += (*end == '{') - (*end == '}');
        if (!depth)
            break;
    }
    p->rest = *end ? end + 1 : end;
    return *end ? ap_arena_strndup(im->src->arena, from, (size_t)(end + 1 - from)) : NULL;
}

/* Nodes that have no sharding of their own take that of their place in a tuple. */
static void pin_leaves(struct import *im, const struct value *v, struct tuple_pin *pin)
{
    for (int i = 0; v->node < 0 && i < v->n_parts; i++)
        pin_leaves(im, &v->parts[i], pin);
    if (v->node < 0)
        return;
    const char *own = next_pin(im, pin);
    if (!im->g.nodes[v->node].pin)
        im->g.nodes[v->node].pin = own;
}

static int eval_tuple(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct value *parts = AP_NEW_N(f->im->src->arena, instr->n_in + 1, struct value);
    for (int i = 0; i < instr->n_in; i++)
        parts[i] = f->values[instr->in[i]];
    *out = inline_tuple(instr->n_in, parts);
    if (!inline_has_shape(f->im, out, &instr->shape))
        return hlo_fail(f->im->src, hlo_at(f->im->src, instr->opcode.s),
                        "tuple: an element has another shape");
    struct tuple_pin pin = tuple_pin(instr->pin);
    if (instr->pin)
        pin_leaves(f->im, out, &pin);
    return 0;
}

static int refuse_opcode(struct import *im, const struct hlo_instr *instr)
{
    return hlo_refuse(im->src, hlo_at(im->src, instr->opcode.s),
                      "operator '%.*s' is not supported yet", MAX_SPAN(instr->opcode.len),
                      instr->opcode.s);
}

static int eval_call(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct import *im = f->im;
    size_t pos = hlo_at(im->src, instr->opcode.s);
    const struct hlo_comp *comp = &im->module->comps[instr->comp[0]];
    if (f->depth == INLINE_MAX_CALLS)
        return hlo_refuse(im->src, pos,
                          "calls nested more than %d deep are not supported",
                          INLINE_MAX_CALLS);
    if (instr->n_in != comp->n_params)
        return hlo_fail(im->src, pos, "'%.100s' has %d parameters, got %d operands",
                        comp->name, comp->n_params, instr->n_in);
    struct frame inner =
        inline_inner(f, comp, inline_name(f, instr), inline_op_name(f, instr));
    struct value *args = ap_xrealloc(NULL, ((size_t)instr->n_in + 1) * sizeof *args);
    for (int i = 0; i < instr->n_in; i++)
        args[i] = f->values[instr->in[i]];
    int rc = inline_comp(&inner, args, out);
    free(args);
    if (!rc && !inline_has_shape(im, out, &instr->shape))
        return hlo_fail(im->src, pos, "call: the result of '%.100s' has another shape",
                        comp->name);
    return rc;
}

/* All leaves of a value, read through an opt-barrier. */
static struct value bar(struct import *im, const struct value *v)
{
    struct value out = *v;
    out.barred = v->node >= 0;
    if (out.barred || !v->n_parts)
        return out;
    struct value *parts = AP_NEW_N(im->src->arena, v->n_parts, struct value);
    for (int i = 0; i < v->n_parts; i++)
        parts[i] = bar(im, &v->parts[i]);
    out.parts = parts;
    return out;
}

bool inline_is_barred(const struct frame *f, const struct hlo_instr *instr)
{
    for (int k = 0; k < instr->n_in; k++)
        if (f->values[instr->in[k]].barred)
            return true;
    return false;
}

static int eval_instr(struct frame *f, const struct hlo_instr *instr,
                      const struct value *args, struct value *out)
{
    struct import *im = f->im;
    if (++im->work > im->max_work)
        return hlo_refuse(im->src, instr->pos,
                          "more than %lld instructions after inlining are not supported",
                          (long long)im->max_work);
    switch (instr->kind) {
    case HLO_OP:
        if (inline_is_lowered(f, instr))
            return inline_lowered(f, instr, out);
        if (instr->op != AP_OP_PARAMETER)
            return inline_op(f, instr, out);
        *out = args[instr->number];
        if (!inline_has_shape(im, out, &instr->shape))
            return hlo_fail(im->src, instr->pos,
                            "parameter %lld and the operand of the call differ in shape",
                            (long long)instr->number);
        return 0;
    case HLO_TUPLE:
        return eval_tuple(f, instr, out);
    case HLO_GET:
        return eval_get(f, instr, out);
    case HLO_CALL:
        return eval_call(f, instr, out);
    case HLO_MAP:
        return inline_map(f, instr, out);
    case HLO_BITCAST:
        return inline_bitcast(f, instr, out);
    case HLO_CUSTOM_CALL:
        return inline_custom_call(f, instr, out);
    case HLO_BATCH_NORM:
        return inline_batch_norm(f, instr, out);
    case HLO_RNG:
        return inline_rng(f, instr, out);
    case HLO_WHILE:
        return inline_while(f, instr, out);
    case HLO_CONDITIONAL:
        return inline_conditional(f, instr, out);
    case HLO_BARRIER:
        *out = bar(im, &f->values[instr->in[0]]);
        import_drop(im, inline_name(f, instr));
        return 0;
    case HLO_UNSUPPORTED:
        return refuse_opcode(im, instr);
    }
    return -1;
}

struct frame inline_inner(const struct frame *f, const struct hlo_comp *comp,
                          const char *prefix, const char *op_name)
{
    struct frame inner = *f;

    inner.comp = comp;
    inner.values = NULL;
    inner.prefix = prefix;
    inner.op_name = op_name;
    inner.depth++;
    return inner;
}

int inline_comp(struct frame *f, const struct value *args, struct value *out)
{
    const struct hlo_comp *comp = f->comp;
    f->values = ap_xrealloc(NULL, (size_t)comp->n * sizeof *f->values);
    int rc = 0;
    for (int i = 0; i < comp->n && !rc; i++)
        rc = eval_instr(f, &comp->instr[i], args, &f->values[i]);
    if (!rc)
        *out = f->values[comp->root];
    free(f->values);
    return rc;
}

/* ---- entry ---- */

/* Nodes for the leaves of one entry parameter, in order. */
static struct value param_value(struct import *im, const struct hlo_instr *instr,
                                const struct ap_shape *shape, const char *name,
                                struct tuple_pin *pin)
{
    if (shape->dtype == AP_TUPLE) {
        struct value *parts = AP_NEW_N(im->src->arena, shape->n_parts + 1, struct value);
        for (int i = 0; i < shape->n_parts; i++)
            parts[i] =
                param_value(im, instr, &shape->parts[i],
                            ap_arena_printf(im->src->arena, "%s.%d", name, i), pin);
        return inline_tuple(shape->n_parts, parts);
    }
    bool path = import_is_path(instr->op_name) && shape == &instr->shape;
    struct ap_node node = import_node(AP_OP_PARAMETER, path ? instr->op_name : name);
    struct node_info info = {.pos = instr->pos};
    node.param = im->g.n_nodes;
    node.shape = *shape;
    node.attrs = instr->attrs;
    node.pin = next_pin(im, pin);
    if (path)
        node.scope = import_path_scope(im, instr->op_name);
    return (struct value){.node = import_add(im, &node, &info)};
}

static int count_leaves(const struct ap_shape *shape)
{
    int n = shape->dtype != AP_TUPLE;
    for (int i = 0; i < shape->n_parts; i++)
        n += count_leaves(&shape->parts[i]);
    return n;
}

static void put_results(struct import *im, const struct value *v)
{
    if (v->node >= 0)
        im->g.results[im->g.n_results++] =
            (struct ap_result){v->node, AP_ROLE_AUX, -1, NULL};
    for (int i = 0; v->node < 0 && i < v->n_parts; i++)
        put_results(im, &v->parts[i]);
}

/* Position of a leaf among those of shape, or -1. */
static int leaf_index(const struct ap_shape *shape, const struct ap_ints *path)
{
    int index = 0;
    for (int d = 0; d < path->n; d++) {
        int64_t at = path->v[d];
        if (shape->dtype != AP_TUPLE || at < 0 || at >= shape->n_parts)
            return -1;
        for (int i = 0; i < at; i++)
            index += count_leaves(&shape->parts[i]);
        shape = &shape->parts[at];
    }
    return shape->dtype == AP_TUPLE ? -1 : index;
}

static int put_aliases(struct import *im, const struct hlo_comp *comp)
{
    const struct hlo_instr *root = &comp->instr[comp->root];
    int *first = AP_NEW_N(im->src->arena, comp->n_params + 1, int);
    for (int i = 0; i < comp->n_params; i++)
        first[i + 1] = first[i] + count_leaves(&comp->instr[comp->params[i]].shape);
    /* flat paths, the common case, in constant time */
    bool flat = true;
    for (int i = 0; i < root->shape.n_parts; i++)
        flat &= root->shape.parts[i].dtype != AP_TUPLE;
    bool *taken = AP_NEW_N(im->src->arena, first[comp->n_params] + 1, bool);
    for (int i = 0; i < im->module->n_aliases; i++) {
        const struct hlo_alias *a = &im->module->aliases[i];
        int result = flat && a->result.n == 1 && root->shape.dtype == AP_TUPLE &&
                             a->result.v[0] >= 0 && a->result.v[0] < root->shape.n_parts
                         ? (int)a->result.v[0]
                         : leaf_index(&root->shape, &a->result);
        if (result < 0 || a->param < 0 || a->param >= comp->n_params)
            return hlo_fail(im->src, a->pos,
                            "input_output_alias: no such result or "
                            "parameter");
        int leaf =
            leaf_index(&comp->instr[comp->params[a->param]].shape, &a->param_index);
        int param = leaf < 0 ? -1 : first[a->param] + leaf;
        if (param < 0 || taken[param] || im->g.results[result].alias >= 0)
            return hlo_fail(im->src, a->pos,
                            "input_output_alias: no such part, or one used twice");
        const struct ap_shape *to = &im->g.nodes[param].shape;
        if (!ap_shape_equal(&im->g.nodes[im->g.results[result].node].shape, to))
            return hlo_fail(im->src, a->pos,
                            "input_output_alias: result and parameter differ in shape");
        taken[param] = true;
        im->g.results[result].alias = param;
    }
    return 0;
}

int import_inline(struct import *im)
{
    const struct hlo_comp *comp = &im->module->comps[im->module->entry];
    struct value root, *args = AP_NEW_N(im->src->arena, comp->n_params + 1, struct value);
    im->g.name = im->module->name;
    for (int i = 0; i < comp->n_params; i++) {
        const struct hlo_instr *instr = &comp->instr[comp->params[i]];
        struct tuple_pin pin = tuple_pin(instr->pin);
        args[i] = param_value(im, instr, &instr->shape, instr->name, &pin);
    }
    im->g.n_params = im->g.n_nodes;
    struct frame entry = {im, comp, NULL, "", "", 0, NULL, false};
    if (inline_comp(&entry, args, &root))
        return -1;
    int n = count_leaves(&comp->instr[comp->root].shape);
    im->g.results = AP_NEW_N(im->src->arena, n + 1, struct ap_result);
    put_results(im, &root);
    return put_aliases(im, comp);
}
