/*
 * Computations on scalars that reduce, scatter, sort and others apply. The usual ones get
 * a name ("sum"); the rest keep their nodes. JAX writes one computation per use: equal
 * ones are found by their text in a canonical form and shared.
 */
#include "import.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"

#define MAX_NODES 4096 /* of one reducer, calls inlined */
#define MAX_CALLS 32

/* A body being built; its nodes refer to each other. */
struct body {
    struct import *im;
    struct ap_graph g;
    int cap;
    size_t pos; /* of the user in the text */
};

static int add(struct body *b, const struct ap_node *node)
{
    AP_ROOM(b->g.nodes, b->g.n_nodes, b->cap);
    b->g.nodes[b->g.n_nodes] = *node;
    return b->g.n_nodes++;
}

static int eval(struct body *b, const struct hlo_comp *comp, const int *args, int depth,
                int *roots, int max_roots);

/* One scalar operator on nodes in[]. */
static int eval_op(struct body *b, const struct hlo_instr *instr, const int *ids,
                   int *out)
{
    struct hlo_src *src = b->im->src;
    size_t pos = hlo_at(src, instr->opcode.s);
    enum ap_op_class class = ap_ops[instr->op].class;
    if (instr->shape.rank || instr->shape.dtype == AP_TUPLE)
        return hlo_fail(src, pos, "a reducer works on scalars only");
    if (class != AP_CLASS_ELEMENTWISE && instr->op != AP_OP_CONSTANT)
        return hlo_refuse(src, pos, "a reducer with %s is not supported yet",
                          ap_ops[instr->op].name);
    if (b->g.n_nodes == MAX_NODES)
        return hlo_refuse(src, pos,
                          "a reducer of more than %d operators is not "
                          "supported",
                          MAX_NODES);
    int *in = AP_NEW_N(src->arena, instr->n_in + 1, int);
    for (int i = 0; i < instr->n_in; i++)
        in[i] = ids[instr->in[i]];
    struct ap_attrs *attrs = ap_arena_dup(src->arena, instr->attrs, sizeof *attrs);
    if (instr->literal)
        attrs->literal = *instr->literal;
    struct ap_node node = import_node(instr->op, instr->name);
    node.n_in = instr->n_in;
    node.in = in;
    node.shape = instr->shape;
    node.attrs = attrs;
    struct ap_err err = {{0}};
    for (int i = 0; i < node.n_in; i++)
        if (in[i] < 0)
            return hlo_fail(src, pos, "an operand is a tuple");
    if (ap_check_node(&b->g, &node, &err))
        return hlo_fail(src, pos, "%s: %s", ap_ops[node.op].name, err.msg);
    *out = add(b, &node);
    return 0;
}

static int eval_call(struct body *b, const struct hlo_instr *instr, const int *ids,
                     int depth, int *out)
{
    struct hlo_src *src = b->im->src;
    size_t pos = hlo_at(src, instr->opcode.s);
    const struct hlo_comp *comp = &b->im->module->comps[instr->comp[0]];
    if (depth == MAX_CALLS)
        return hlo_refuse(src, pos,
                          "calls nested more than %d deep in a reducer are not "
                          "supported",
                          MAX_CALLS);
    if (instr->n_in != comp->n_params)
        return hlo_fail(src, pos, "'%.100s' has %d parameters, got %d operands",
                        comp->name, comp->n_params, instr->n_in);
    int *args = ap_xrealloc(NULL, ((size_t)instr->n_in + 1) * sizeof *args);
    for (int i = 0; i < instr->n_in; i++)
        args[i] = ids[instr->in[i]];
    int rc = eval(b, comp, args, depth + 1, out, 1);
    free(args);
    if (rc >= 0 && !ap_shape_equal(&b->g.nodes[*out].shape, &instr->shape))
        return hlo_fail(src, pos, "call: the result of '%.100s' has another shape",
                        comp->name);
    return rc < 0 ? -1 : 0;
}

static int eval_instr(struct body *b, const struct hlo_instr *instr, const int *args,
                      const int *ids, int depth, int *out)
{
    struct import *im = b->im;
    size_t pos = hlo_at(im->src, instr->opcode.s);
    *out = -1; /* tuples have no node */
    if (++im->work > im->max_work)
        return hlo_refuse(im->src, instr->pos,
                          "more than %lld instructions after inlining "
                          "are not supported",
                          (long long)im->max_work);
    if (instr->kind == HLO_OP && instr->op == AP_OP_PARAMETER) {
        *out = args[instr->number];
        if (*out < 0 || !ap_shape_equal(&b->g.nodes[*out].shape, &instr->shape))
            return hlo_fail(im->src, instr->pos,
                            "the operand of the call has another shape");
        return 0;
    }
    if (instr->kind == HLO_OP)
        return eval_op(b, instr, ids, out);
    if (instr->kind == HLO_CALL)
        return eval_call(b, instr, ids, depth, out);
    if (instr->kind == HLO_TUPLE)
        return 0;
    if (instr->kind == HLO_BITCAST && instr->n_in == 1) { /* one scalar: its bits */
        struct hlo_instr bits = *instr;
        bits.op = AP_OP_BITCAST_CONVERT;
        return eval_op(b, &bits, ids, out);
    }
    return hlo_refuse(im->src, pos, "a reducer with %.*s is not supported yet",
                      (int)(instr->opcode.len < 60 ? instr->opcode.len : 60),
                      instr->opcode.s);
}

/* Adds the nodes of comp; returns the number of results, their nodes in roots. */
static int eval(struct body *b, const struct hlo_comp *comp, const int *args, int depth,
                int *roots, int max_roots)
{
    int *ids = ap_xrealloc(NULL, (size_t)comp->n * sizeof *ids);
    int rc = 0;
    for (int i = 0; i < comp->n && !rc; i++)
        rc = eval_instr(b, &comp->instr[i], args, ids, depth, &ids[i]);
    const struct hlo_instr *root = &comp->instr[comp->root];
    bool tuple = root->kind == HLO_TUPLE;
    int n = tuple ? root->n_in : 1;
    if (!rc && n > max_roots)
        rc = hlo_fail(b->im->src, b->pos, "the reducer has %d results", n);
    for (int i = 0; i < n && !rc; i++) {
        roots[i] = tuple ? ids[root->in[i]] : ids[comp->root];
        if (roots[i] < 0)
            rc =
                hlo_fail(b->im->src, b->pos, "the reducer's result is a tuple of tuples");
    }
    free(ids);
    return rc ? -1 : n;
}

/* Keeps what the results need, and the n_params parameters in front. */
static void drop_dead(struct body *b, int n_params, int *roots, int n_roots)
{
    struct ap_arena *arena = b->im->src->arena;
    bool *live = AP_NEW_N(arena, b->g.n_nodes, bool);
    int *id = AP_NEW_N(arena, b->g.n_nodes, int), n = 0;
    for (int i = 0; i < n_params; i++)
        live[i] = true;
    for (int i = 0; i < n_roots; i++)
        live[roots[i]] = true;
    import_mark_needed(b->g.nodes, b->g.n_nodes, live);
    for (int i = 0; i < b->g.n_nodes; i++) {
        if (!live[i])
            continue;
        struct ap_node node = b->g.nodes[i];
        import_rewire(arena, &node, id);
        id[i] = n;
        b->g.nodes[n++] = node;
    }
    for (int i = 0; i < n_roots; i++)
        roots[i] = id[roots[i]];
    b->g.n_nodes = n;
}

static enum ap_red recognise(const struct body *b, int n_params, const int *roots,
                             int n_roots, bool scatter)
{
    if (n_params != 2 || n_roots != 1)
        return AP_RED_NONE;
    if (scatter && roots[0] == 1)
        return AP_RED_ASSIGN;
    const struct ap_node *root = &b->g.nodes[roots[0]];
    if (root->n_in != 2 || b->g.n_nodes != 3 || root->in[0] == root->in[1])
        return AP_RED_NONE;
    for (int red = 0; red < AP_N_REDS; red++)
        if (ap_red_ops[red] == root->op)
            return (enum ap_red)red;
    return AP_RED_NONE;
}

/* Equal text means equal meaning; names do not count. */
static void put_text(const struct body *b, enum ap_red red, const int *roots, int n_roots,
                     struct ap_buf *out)
{
    out->len = 0;
    ap_buf_int(out, red);
    for (int i = 0; red == AP_RED_NONE && i < b->g.n_nodes; i++) {
        const struct ap_node *node = &b->g.nodes[i];
        const struct ap_attrs *a = node->attrs;
        ap_buf_printf(out, ";%d,%d,%d,%d,%d,%d", node->op, node->shape.dtype,
                      a->direction, a->total_order, (int)a->exponent_bits,
                      (int)a->mantissa_bits);
        for (int k = 0; k < node->n_in; k++)
            ap_buf_printf(out, ",%d", node->in[k]);
        if (node->op == AP_OP_CONSTANT && a->literal.data)
            ap_buf_put(out, a->literal.data, (size_t)ap_dtype_size(node->shape.dtype));
    }
    for (int i = 0; red == AP_RED_NONE && i < n_roots; i++)
        ap_buf_printf(out, ">%d", roots[i]);
}

/* The reducer whose text is in im->scratch: the one that is there, or this one. */
static int find_or_add(struct import *im, const struct ap_reducer *reducer)
{
    int id = ap_names_get(&im->reducer_texts, im->scratch.data, im->scratch.len);
    if (id >= 0)
        return id;
    AP_ROOM(im->reducers, im->g.n_reducers, im->cap_reducers);
    im->reducers[id = im->g.n_reducers++] = *reducer;
    im->g.reducers = im->reducers;
    const char *key = ap_arena_dup(im->src->arena, im->scratch.data, im->scratch.len);
    ap_names_put(&im->reducer_texts, key, im->scratch.len, id);
    return id;
}

int import_reducer_of(struct import *im, enum ap_red red)
{
    struct ap_reducer reducer = {.name = ap_red_names[red], .red = red};
    put_text(&(struct body){.im = im}, red, NULL, 0, &im->scratch);
    return find_or_add(im, &reducer);
}

int import_sum(struct import *im)
{
    return import_reducer_of(im, AP_RED_SUM);
}

static int share(struct body *b, const struct hlo_comp *comp, enum ap_red red,
                 const int *roots, int n_roots)
{
    struct ap_arena *arena = b->im->src->arena;
    struct ap_reducer r = {.name = comp->name, .red = red};
    if (red != AP_RED_NONE) {
        r.name = ap_red_names[red];
    } else {
        r.n_nodes = b->g.n_nodes;
        r.nodes =
            ap_arena_dup(arena, b->g.nodes, (size_t)b->g.n_nodes * sizeof *b->g.nodes);
        r.n_results = n_roots;
        r.results = ap_arena_dup(arena, roots, (size_t)n_roots * sizeof *roots);
    }
    put_text(b, red, roots, n_roots, &b->im->scratch);
    return find_or_add(b->im, &r);
}

/* The body of comp, its parameters first; the number of its results or -1. */
static int build_body(struct body *b, const struct hlo_comp *comp, int *roots)
{
    struct import *im = b->im;
    int *args = AP_NEW_N(im->src->arena, comp->n_params + 1, int);
    for (int i = 0; i < comp->n_params; i++) {
        const struct hlo_instr *instr = &comp->instr[comp->params[i]];
        struct ap_node node = import_node(AP_OP_PARAMETER, instr->name);
        node.shape = instr->shape;
        node.attrs = instr->attrs;
        node.param = i;
        if (instr->shape.rank || instr->shape.dtype == AP_TUPLE)
            return hlo_fail(im->src, instr->pos, "a reducer works on scalars only");
        args[i] = add(b, &node);
    }
    return eval(b, comp, args, 0, roots, comp->n_params + 1);
}

static int build(struct import *im, int comp_id, bool scatter, size_t pos)
{
    const struct hlo_comp *comp = &im->module->comps[comp_id];
    struct body b = {.im = im, .pos = pos};
    int *roots = AP_NEW_N(im->src->arena, comp->n_params + 2, int);
    int id = -1, n_roots = build_body(&b, comp, roots);
    if (n_roots >= 0) {
        drop_dead(&b, comp->n_params, roots, n_roots);
        enum ap_red red = recognise(&b, comp->n_params, roots, n_roots, scatter);
        id = share(&b, comp, red, roots, n_roots);
    }
    free(b.g.nodes);
    return id;
}

/* Puts parameters p and q in front and takes all others out. */
static void keep_two(struct body *b, int n_params, int p, int q)
{
    struct ap_node *nodes = b->g.nodes;
    struct ap_node two[2] = {nodes[p], nodes[q]};
    int shift = n_params - 2;
    for (int i = n_params; i < b->g.n_nodes; i++) {
        int *in = AP_NEW_N(b->im->src->arena, nodes[i].n_in + 1, int);
        for (int k = 0; k < nodes[i].n_in; k++) {
            int x = nodes[i].in[k];
            in[k] = x == p ? 0 : x == q ? 1 : x - shift;
        }
        nodes[i].in = in;
        nodes[i - shift] = nodes[i];
    }
    nodes[0] = two[0];
    nodes[1] = two[1];
    nodes[0].param = 0;
    nodes[1].param = 1;
    b->g.n_nodes -= shift;
}

int import_reducer_part(struct import *im, int comp_id, int i, int n, size_t pos)
{
    const struct hlo_comp *comp = &im->module->comps[comp_id];
    struct body b = {.im = im, .pos = pos};
    int *roots = AP_NEW_N(im->src->arena, comp->n_params + 2, int), root;
    int id = -1, n_roots = build_body(&b, comp, roots);
    if (n_roots >= 0 && (n_roots != n || comp->n_params != 2 * n)) {
        hlo_fail(im->src, pos,
                 "the reducer of %d arrays has %d parameters and %d results", n,
                 comp->n_params, n_roots);
        n_roots = -1;
    }
    if (n_roots >= 0) {
        root = roots[i];
        drop_dead(&b, comp->n_params, &root, 1);
        bool apart = true;
        for (int k = 0; k < b.g.n_nodes; k++)
            for (int j = 0; j < b.g.nodes[k].n_in; j++) {
                int x = b.g.nodes[k].in[j];
                apart &= x >= comp->n_params || x == i || x == n + i;
            }
        apart &= root >= comp->n_params || root == i || root == n + i;
        if (apart) {
            keep_two(&b, comp->n_params, i, n + i);
            root = root == i ? 0 : root == n + i ? 1 : root - (comp->n_params - 2);
            id = share(&b, comp, recognise(&b, 2, &root, 1, true), &root, 1);
        } else {
            hlo_refuse(im->src, pos,
                       "a scatter of several arrays whose computation mixes them is not "
                       "supported yet");
        }
    }
    free(b.g.nodes);
    return id;
}

int import_reducer(struct import *im, int comp, bool scatter, size_t pos)
{
    int *known = &im->reducer_of[2 * comp + scatter];
    if (*known < 0)
        *known = build(im, comp, scatter, pos);
    return *known;
}
