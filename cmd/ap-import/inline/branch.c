/*
 * Conditionals. The graph has no control flow, so that all branches are computed and the
 * results selected, which is right where nothing has side effects (a custom call that
 * says so is refused), and what accelerators do with small branches anyway. Where the
 * choice is known (it may follow from a loop's counter), only the branch taken is there.
 */
#include "inline/inline.h"

#include <stdlib.h>

#include "doc/literal.h"
#include "graph/element.h"

struct choice {
    struct frame *f;
    const struct hlo_instr *instr;
    struct node_info info;
    const char *name, *scope;
    int selector;   /* pred[] or s32[] */
    bool undecided; /* which branch is taken is not known here */
};

static int add(struct choice *c, enum ap_op op, const int *in, int n_in,
               struct ap_shape shape, const struct ap_attrs *attrs)
{
    struct ap_arena *arena = c->f->im->src->arena;
    struct ap_node node = {.op = op,
                           .name = c->name,
                           .n_in = n_in,
                           .in = ap_arena_dup(arena, in, (size_t)n_in * sizeof *in),
                           .shape = shape,
                           .attrs = attrs ? attrs : &ap_attrs_default,
                           .scope = c->scope,
                           .param = -1,
                           .group = -1};
    return import_add(c->f->im, &node, &c->info);
}

/* pred[]: whether branch i is taken. */
static int is_taken(struct choice *c, int i)
{
    struct import *im = c->f->im;
    struct ap_shape shape = im->g.nodes[c->selector].shape;
    if (shape.dtype == AP_PRED)
        return c->selector;
    unsigned char data[16] = {0};
    struct ap_attrs *number =
        ap_arena_dup(im->src->arena, &ap_attrs_default, sizeof *number);
    struct ap_attrs *equal =
        ap_arena_dup(im->src->arena, &ap_attrs_default, sizeof *equal);
    ap_elem_from_int(shape.dtype, i, data);
    number->literal =
        *hlo_literal_make(im->src->arena, data, 1, (size_t)ap_dtype_size(shape.dtype));
    equal->direction = AP_EQ;
    int in[2] = {c->selector, add(c, AP_OP_CONSTANT, in, 0, shape, number)};
    shape.dtype = AP_PRED;
    return add(c, AP_OP_COMPARE, in, 2, shape, equal);
}

/* taken ? a : b, part by part; the values have the same shape. */
static struct value choose(struct choice *c, int taken, const struct value *a,
                           const struct value *b)
{
    struct import *im = c->f->im;
    if (a->node < 0) {
        struct value *parts = AP_NEW_N(im->src->arena, a->n_parts + 1, struct value);
        for (int i = 0; i < a->n_parts; i++)
            parts[i] = choose(c, taken, &a->parts[i], &b->parts[i]);
        return (struct value){-1, a->n_parts, parts};
    }
    int in[3] = {taken, a->node, b->node};
    if (a->node == b->node)
        return *a;
    return (struct value){
        .node = add(c, AP_OP_SELECT, in, 3, im->g.nodes[a->node].shape, NULL)};
}

static int run_branch(struct choice *c, int i, struct value *out)
{
    struct frame *f = c->f;
    struct import *im = f->im;
    size_t pos = hlo_at(im->src, c->instr->opcode.s);
    const struct hlo_comp *comp = &im->module->comps[c->instr->branches[i]];
    struct frame inner = {im,
                          comp,
                          NULL,
                          ap_arena_printf(im->src->arena, "%s/%d", c->name, i),
                          inline_op_name(f, c->instr),
                          f->depth + 1,
                          f->iteration,
                          c->undecided || f->in_branch};
    if (f->depth == INLINE_MAX_CALLS)
        return hlo_refuse(im->src, pos,
                          "branches nested more than %d deep are not supported",
                          INLINE_MAX_CALLS);
    if (comp->n_params != 1)
        return hlo_fail(im->src, pos, "conditional: '%.100s' takes %d parameters, not 1",
                        comp->name, comp->n_params);
    if (inline_comp(&inner, &f->values[c->instr->in[1 + i]], out))
        return -1;
    if (!inline_has_shape(im, out, &c->instr->shape))
        return hlo_fail(im->src, pos,
                        "conditional: the result of '%.100s' has another shape",
                        comp->name);
    return 0;
}

int inline_conditional(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct import *im = f->im;
    size_t pos = hlo_at(im->src, instr->opcode.s);
    const char *op_name = inline_op_name(f, instr);
    struct choice c = {.f = f, .instr = instr, .name = inline_name(f, instr)};
    c.info = (struct node_info){.pos = pos, .hint = import_hint(op_name)};
    c.scope = import_scope(im, op_name);
    c.selector = f->values[instr->in[0]].node;
    const struct ap_shape *s = c.selector < 0 ? NULL : &im->g.nodes[c.selector].shape;
    int n = instr->n_branches;
    if (!s || s->rank || (s->dtype != AP_S32 && (s->dtype != AP_PRED || n != 2)))
        return hlo_fail(im->src, pos, "conditional: the selector is no pred[] or s32[]");
    int64_t known;
    if (inline_known(im, c.selector, &known)) {
        if (s->dtype == AP_PRED)
            known = !known;
        return run_branch(&c, known < 0 || known >= n ? n - 1 : (int)known, out);
    }
    c.undecided = true;
    if (!im->warned_branches)
        hlo_warn(im->src, pos,
                 "all branches of conditionals are computed, one is selected");
    im->warned_branches = true;
    if (run_branch(&c, n - 1, out))
        return -1;
    for (int i = n - 2; i >= 0; i--) {
        struct value branch;
        if (run_branch(&c, i, &branch))
            return -1;
        *out = choose(&c, is_taken(&c, i), &branch, out);
    }
    return 0;
}
