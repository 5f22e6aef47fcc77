/*
 * Custom calls. Some only carry a sharding or a memory space and are passed by; TopK,
 * LAPACK's Cholesky and triangular solves are operators, and cuDNN's attentions several
 * (normalise/attention.c). All others stay custom-calls in
 * the graph, one node per result, which every device makes whole; kernels of attention,
 * matrix products and convolutions are priced by their products, others by their bytes
 * alone.
 */
#include "emit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Calls that carry shardings or memory spaces: the operand passes through. */
static bool is_no_op_call(const char *target)
{
    static const char *const names[] = {"Sharding",
                                        "SPMDFullToShardShape",
                                        "SPMDShardToFullShape",
                                        "annotate_device_placement",
                                        "LayoutConstraint",
                                        "MoveToHost",
                                        "MoveToDevice",
                                        NULL};
    for (int i = 0; names[i]; i++)
        if (strcmp(target, names[i]) == 0)
            return true;
    return strncmp(target, "xla.sdy.", 8) == 0;
}

/* Whether comp says which of its first two parameters comes first: the larger one? */
static bool is_comparator(const struct hlo_comp *comp, bool *largest)
{
    const struct hlo_instr *root = &comp->instr[comp->root];
    if (root->kind != HLO_OP || root->op != AP_OP_COMPARE || comp->n_params < 2)
        return false;
    enum ap_direction d = root->attrs->direction;
    int a = comp->params[0], b = comp->params[1];
    bool swapped = root->in[0] == b && root->in[1] == a;
    *largest = (d == AP_GT || d == AP_GE) != swapped;
    return (swapped || (root->in[0] == a && root->in[1] == b)) && d != AP_EQ &&
           d != AP_NE;
}

/* custom-call TopK: k is in the shape, the order in the computation that it calls. */
static int eval_topk(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    const struct hlo_src *src = f->im->src;
    size_t pos = hlo_at(src, instr->opcode.s);
    const struct ap_shape *shape = &instr->shape;
    if (shape->n_parts != 2 || shape->parts[0].rank < 1 || instr->n_in != 1)
        return hlo_fail(f->im->src, pos, "TopK takes one array and gives two");
    struct hlo_instr topk = *instr;
    struct ap_attrs *a = ap_arena_dup(src->arena, instr->attrs, sizeof *a);
    a->k = shape->parts[0].dims[shape->parts[0].rank - 1];
    a->largest = true;
    if (instr->comp[0] >= 0) {
        const struct hlo_comp *comp = &f->im->module->comps[instr->comp[0]];
        if (!is_comparator(comp, &a->largest))
            return hlo_refuse(f->im->src, pos,
                              "TopK by '%.100s' is not supported: it is not a comparison "
                              "of its first two parameters",
                              comp->name);
    }
    topk.kind = HLO_OP;
    topk.op = AP_OP_TOPK;
    topk.attrs = a;
    topk.comp[0] = -1;
    return inline_op(f, &topk, out);
}

/* ---- calls that are operators: LAPACK's ---- */

/* The letter that key has in the configuration, "uplo = 76 : ui8"; 0 if it is not there.
 */
static int letter(const struct hlo_instr *instr, const char *key)
{
    struct hlo_span c = instr->config;
    size_t n = strlen(key);
    for (size_t i = 0; i + n < c.len; i++) {
        if (memcmp(c.s + i, key, n) != 0)
            continue;
        i += n;
        while (i < c.len && (c.s[i] == ' ' || c.s[i] == '='))
            i++;
        return i < c.len ? atoi(c.s + i) : 0;
    }
    return 0;
}

/* The factor, and that it was found; where it was not, the factor is NaN. */
static int eval_cholesky(struct frame *f, const struct hlo_instr *instr,
                         struct value *out)
{
    struct emit e = emit_start(f, instr);
    const struct ap_shape *shape = &instr->shape;
    if (instr->n_in != 1 || shape->n_parts != 2 || shape->parts[1].dtype != AP_S32)
        return hlo_fail(f->im->src, e.pos, "'%.40s' takes one array and gives two",
                        instr->target);
    struct hlo_instr cholesky = *instr;
    struct ap_attrs *a = ap_arena_dup(f->im->src->arena, instr->attrs, sizeof *a);
    struct value *parts = AP_NEW_N(f->im->src->arena, 2, struct value);
    a->lower = letter(instr, "uplo") != 'U';
    cholesky.kind = HLO_OP;
    cholesky.op = AP_OP_CHOLESKY;
    cholesky.attrs = a;
    cholesky.shape = shape->parts[0];
    if (inline_op(f, &cholesky, &parts[0]))
        return -1;
    parts[1].node = emit_int(&e, AP_S32, 0, &shape->parts[1]);
    *out = inline_tuple(2, parts);
    return 0;
}

static int eval_solve(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct hlo_instr solve = *instr;
    struct ap_attrs *a = ap_arena_dup(f->im->src->arena, instr->attrs, sizeof *a);
    if (instr->n_in != 2)
        return hlo_fail(f->im->src, hlo_at(f->im->src, instr->opcode.s),
                        "'%.40s' takes two arrays", instr->target);
    a->left_side = letter(instr, "side") == 'L';
    a->lower = letter(instr, "uplo") == 'L';
    a->unit_diagonal = letter(instr, "diag") == 'U';
    a->transpose_a = letter(instr, "trans_x") == 'T' || letter(instr, "trans_x") == 'C';
    solve.kind = HLO_OP;
    solve.op = AP_OP_TRIANGULAR_SOLVE;
    solve.attrs = a;
    return inline_op(f, &solve, out);
}

/* ---- calls whose FLOPs are known ---- */

/* What a call works on: its operands and its first result. */
struct work {
    const struct import *im;
    const struct hlo_instr *instr;
    const int *in;
    int n_in;
};

static const struct ap_shape *operand(const struct work *w, int k)
{
    return &w->im->g.nodes[w->in[k]].shape;
}

static const struct ap_shape *first_result(const struct work *w)
{
    const struct ap_shape *s = &w->instr->shape;
    return s->dtype == AP_TUPLE && s->n_parts ? &s->parts[0] : s;
}

/*
 * Attention on q [batch, length, heads, width] and k of the same form, or both packed
 * with v after the length; two products of each pair of positions forward, five
 * backward.
 */
static int64_t attention_flops(const struct work *w, int products)
{
    if (w->n_in < 1)
        return 0;
    const struct ap_shape *q = operand(w, 0);
    bool packed = q->rank == 5;
    const struct ap_shape *k = packed || w->n_in < 2 ? q : operand(w, 1);
    if ((q->rank != 4 && !packed) || k->rank != q->rank || ap_shape_elems(q) == 0)
        return 0;
    int64_t pairs = ap_mul64(ap_shape_elems(q) / (packed ? q->dims[2] : 1), k->dims[1]);
    return ap_mul64(2 * products, pairs);
}

/*
 * A matrix product [batch, m, k] x [batch, k, n], either side transposed or not: with
 * |a| = batch m k, |b| = batch k n, |c| = batch m n, the contracted size k is the root of
 * |a| |b| / (|c| batch).
 */
static int64_t product_flops(const struct work *w, int unused)
{
    const struct ap_shape *c = first_result(w);
    double batch = 1;
    (void)unused;
    if (w->n_in < 2 || c->rank < 2 || ap_shape_elems(c) == 0)
        return 0;
    for (int d = 0; d < c->rank - 2; d++)
        batch *= (double)c->dims[d];
    double ab = (double)ap_shape_elems(operand(w, 0)) *
                (double)ap_shape_elems(operand(w, 1)) / batch;
    double k = sqrt(ab / (double)ap_shape_elems(c));
    return ap_mul64(2 * ap_shape_elems(c), (int64_t)(k + 0.5));
}

/* A convolution: which of input, kernel and output is made (0, 1, 2) says the call. */
static int64_t convolution_flops(const struct work *w, int made)
{
    const struct ap_conv_dims *v = &w->instr->attrs->conv;
    if (w->n_in < 2 || v->lhs_batch == v->lhs_feature)
        return 0;
    const struct ap_shape *result = first_result(w);
    const struct ap_shape *kernel = made == 1 ? result : operand(w, 1);
    const struct ap_shape *output = made == 2   ? result
                                    : made == 1 ? operand(w, 1)
                                                : operand(w, 0);
    if (kernel->rank != v->n_spatial + 2 || kernel->dims[v->rhs_out] < 1)
        return 0;
    return ap_mul64(2 * ap_shape_elems(output),
                    ap_shape_elems(kernel) / kernel->dims[v->rhs_out]);
}

static int64_t flops_of(const struct work *w, const char *target)
{
    static const struct {
        const char *prefix;
        int64_t (*flops)(const struct work *w, int which);
        int which;
    } rows[] = {
        {"te_fused_attn_forward", attention_flops, 2},
        {"te_fused_attn_backward", attention_flops, 5},
        {"__cudnn$fmhaSoftmaxBackward", attention_flops, 5},
        {"__cudnn$fmhaScaleBiasSoftmaxBackward", attention_flops, 5},
        {"__cudnn$fmha", attention_flops, 2},
        {"__cudnn$convBackwardInput", convolution_flops, 0},
        {"__cudnn$convBackwardFilter", convolution_flops, 1},
        {"__cudnn$conv", convolution_flops, 2},
        {"__cublas$", product_flops, 0},
        {"__onednn$matmul", product_flops, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strncmp(target, rows[i].prefix, strlen(rows[i].prefix)) == 0)
            return rows[i].flops(w, rows[i].which);
    return 0;
}

/* ---- calls that stay calls ---- */

static void warn_once(struct import *im, size_t pos, const char *target)
{
    if (ap_names_get(&im->warned_calls, target, strlen(target)) >= 0)
        return;
    ap_names_put(&im->warned_calls, target, strlen(target), 0);
    hlo_warn(im->src, pos,
             "unknown custom call '%.100s': it is replicated on every device and priced "
             "as free",
             target);
}

/* A node for each array that the call makes. */
static struct value add_parts(struct import *im, struct ap_node *node,
                              const struct node_info *info, const struct ap_shape *shape,
                              int64_t *index)
{
    struct ap_arena *arena = im->src->arena;
    if (shape->dtype == AP_TUPLE) {
        struct value *parts = AP_NEW_N(arena, shape->n_parts + 1, struct value);
        for (int i = 0; i < shape->n_parts; i++)
            parts[i] = add_parts(im, node, info, &shape->parts[i], index);
        return inline_tuple(shape->n_parts, parts);
    }
    struct ap_node part = *node;
    struct ap_attrs *attrs = ap_arena_dup(arena, node->attrs, sizeof *attrs);
    attrs->index = (*index)++;
    if (attrs->index) {
        attrs->flops = 0; /* with the first one */
        part.name =
            ap_arena_printf(arena, "%s#%lld", node->name, (long long)attrs->index);
        part.pin = NULL;
    }
    part.attrs = attrs;
    part.shape = *shape;
    return (struct value){.node = import_add(im, &part, info)};
}

/* A call of something that the graph has no operator for. */
static int opaque(struct frame *f, const struct hlo_instr *instr, const char *target,
                  struct value *out)
{
    struct import *im = f->im;
    size_t pos = hlo_at(im->src, instr->opcode.s);
    const char *op_name = inline_op_name(f, instr);
    struct ap_node node = import_node(AP_OP_CUSTOM_CALL, inline_name(f, instr));
    node.n_in = instr->n_in;
    node.scope = import_scope(im, op_name);
    node.pin = instr->pin;
    struct node_info info = {.pos = pos, .hint = import_hint(op_name)};
    int *in = AP_NEW_N(im->src->arena, instr->n_in + 1, int);
    if (strstr(target, "python") && strstr(target, "callback"))
        return hlo_refuse(
            im->src, pos,
            "a call back into Python (custom call '%.100s') is no part of a "
            "plan: leave it out of the step",
            target);
    if (instr->side_effect && f->in_branch)
        return hlo_refuse(im->src, pos,
                          "custom call '%.100s' with a side effect in a branch of a "
                          "conditional is not supported: all branches are computed",
                          target);
    for (int k = 0; k < instr->n_in; k++) {
        in[k] = f->values[instr->in[k]].node;
        if (in[k] < 0)
            return hlo_refuse(im->src, pos,
                              "custom call '%.100s' on a tuple is not supported", target);
    }
    struct ap_attrs *attrs = import_new_attrs(im->src->arena);
    attrs->target = target;
    if (instr->config.len)
        attrs->backend_config = hlo_span_dup(im->src->arena, instr->config);
    attrs->flops = flops_of(&(struct work){im, instr, in, instr->n_in}, target);
    if (!attrs->flops)
        warn_once(im, pos, target);
    attrs->recomputed = inline_is_barred(f, instr);
    node.in = in;
    node.attrs = attrs;
    int64_t index = 0;
    *out = add_parts(im, &node, &info, &instr->shape, &index);
    return 0;
}

int inline_custom_call(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct import *im = f->im;
    size_t pos = hlo_at(im->src, instr->opcode.s);
    const char *target = instr->target ? instr->target : "";
    if (strcmp(target, "TopK") == 0 || strcmp(target, "topk") == 0)
        return eval_topk(f, instr, out);
    if (strcmp(target, "lapack_spotrf_ffi") == 0 ||
        strcmp(target, "lapack_dpotrf_ffi") == 0)
        return eval_cholesky(f, instr, out);
    if (strcmp(target, "lapack_strsm_ffi") == 0 ||
        strcmp(target, "lapack_dtrsm_ffi") == 0)
        return eval_solve(f, instr, out);
    if (inline_is_attention(f, instr))
        return inline_attention(f, instr, out);
    if (!is_no_op_call(target) || instr->n_in != 1)
        return opaque(f, instr, target, out);
    *out = f->values[instr->in[0]];
    if (!inline_has_shape(im, out, &instr->shape))
        return hlo_refuse(
            im->src, pos,
            "custom call '%.100s' that changes the shape is not supported yet", target);
    if (instr->pin && out->node >= 0 && !im->g.nodes[out->node].pin)
        im->g.nodes[out->node].pin = instr->pin;
    import_drop(im, inline_name(f, instr));
    return 0;
}
