/*
 * Custom calls. Some only carry a sharding or a memory space and are passed by; TopK is
 * an operator. All others stay custom-calls in the graph, one node per result, which
 * every device makes whole; attention kernels are priced by their products, others by
 * their bytes alone.
 */
#include "inline.h"

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
        const struct hlo_instr *root = &comp->instr[comp->root];
        if (root->kind != HLO_OP || root->op != AP_OP_COMPARE)
            return hlo_refuse(f->im->src, pos,
                              "TopK by this computation is not supported yet");
        enum ap_direction d = root->attrs->direction;
        bool swapped = root->in[0] != comp->params[0];
        a->largest = (d == AP_GT || d == AP_GE) != swapped;
    }
    topk.kind = HLO_OP;
    topk.op = AP_OP_TOPK;
    topk.attrs = a;
    topk.comp[0] = -1;
    return inline_op(f, &topk, out);
}

/*
 * Kernels whose FLOPs are known: attention on q [batch, length, heads, width] and k of
 * the same form, or both packed with v behind the length; two products of each pair of
 * positions forward, five backward.
 */
static int64_t attention_flops(const struct import *im, const char *target, const int *in,
                               int n_in)
{
    static const struct {
        const char *prefix;
        int products;
    } rows[] = {
        {"te_fused_attn_forward", 2},
        {"te_fused_attn_backward", 5},
        {"__cudnn$fmhaSoftmaxBackward", 5},
        {"__cudnn$fmhaScaleBiasSoftmaxBackward", 5},
        {"__cudnn$fmha", 2},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strncmp(target, rows[i].prefix, strlen(rows[i].prefix)) != 0 || n_in < 1)
            continue;
        const struct ap_shape *q = &im->g.nodes[in[0]].shape;
        bool packed = q->rank == 5;
        const struct ap_shape *k = packed || n_in < 2 ? q : &im->g.nodes[in[1]].shape;
        if ((q->rank != 4 && !packed) || k->rank != q->rank)
            return 0;
        int64_t pairs =
            ap_mul64(ap_shape_elems(q) / (packed ? q->dims[2] : 1), k->dims[1]);
        return ap_mul64(2 * rows[i].products, pairs);
    }
    return 0;
}

static void warn_once(struct import *im, size_t pos, const char *target)
{
    if (hlo_map_get(&im->warned_calls, target, strlen(target)) >= 0)
        return;
    hlo_map_put(&im->warned_calls, target, strlen(target), 0);
    hlo_warn(
        im->src, pos,
        "custom call '%.100s' is not known: every device makes it whole, at no FLOPs",
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
        return (struct value){-1, shape->n_parts, parts};
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
    struct ap_node node = {.op = AP_OP_CUSTOM_CALL,
                           .name = inline_name(f, instr),
                           .n_in = instr->n_in,
                           .scope = import_scope(im, op_name),
                           .pin = instr->pin,
                           .param = -1,
                           .group = -1};
    struct node_info info = {.pos = pos, .hint = import_hint(op_name)};
    int *in = AP_NEW_N(im->src->arena, instr->n_in + 1, int);
    for (int k = 0; k < instr->n_in; k++) {
        in[k] = f->values[instr->in[k]].node;
        if (in[k] < 0)
            return hlo_refuse(im->src, pos,
                              "custom call '%.100s' on a tuple is not supported", target);
    }
    struct ap_attrs *attrs =
        ap_arena_dup(im->src->arena, &ap_attrs_default, sizeof *attrs);
    attrs->target = target;
    attrs->flops = attention_flops(im, target, in, instr->n_in);
    if (!attrs->flops)
        warn_once(im, pos, target);
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
