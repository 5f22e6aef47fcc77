/*
 * Conditionals. The graph has no control flow, so all branches are computed and the
 * results selected. This is correct without side effects (a custom call with a side
 * effect is refused), and accelerators do the same with small branches. Where the choice
 * is known (it may follow from a loop's counter), only the branch taken is there.
 */
#include "emit.h"

struct choice {
    struct emit e;
    int selector;   /* pred[] or s32[] */
    bool undecided; /* which branch is taken is not known here */
};

/* pred[]: whether branch i is taken. */
static int is_taken(const struct choice *c, int i)
{
    struct ap_shape shape = *emit_shape(&c->e, c->selector);
    if (shape.dtype == AP_PRED)
        return c->selector;
    return emit_compare(&c->e, AP_EQ, c->selector,
                        emit_int(&c->e, shape.dtype, i, &shape));
}

/* taken ? a : b, part by part; the values have the same shape. */
static struct value choose(const struct choice *c, int taken, const struct value *a,
                           const struct value *b)
{
    if (a->node < 0) {
        struct value *parts =
            AP_NEW_N(c->e.f->im->src->arena, a->n_parts + 1, struct value);
        for (int i = 0; i < a->n_parts; i++)
            parts[i] = choose(c, taken, &a->parts[i], &b->parts[i]);
        return inline_tuple(a->n_parts, parts);
    }
    if (a->node == b->node)
        return *a;
    return (struct value){.node = emit_select(&c->e, taken, a->node, b->node)};
}

static int run_branch(struct choice *c, int i, struct value *out)
{
    struct frame *f = c->e.f;
    struct import *im = f->im;
    size_t pos = c->e.pos;
    const struct hlo_instr *instr = c->e.instr;
    const struct hlo_comp *comp = &im->module->comps[instr->branches[i]];
    struct frame inner =
        inline_inner(f, comp, ap_arena_printf(im->src->arena, "%s/%d", c->e.name, i),
                     inline_op_name(f, instr));
    inner.in_branch |= c->undecided;
    if (f->depth == INLINE_MAX_CALLS)
        return hlo_refuse(im->src, pos,
                          "branches nested more than %d deep are not supported",
                          INLINE_MAX_CALLS);
    if (comp->n_params != 1)
        return hlo_fail(im->src, pos, "conditional: '%.100s' takes %d parameters, not 1",
                        comp->name, comp->n_params);
    if (inline_comp(&inner, &f->values[instr->in[1 + i]], out))
        return -1;
    if (!inline_has_shape(im, out, &instr->shape))
        return hlo_fail(im->src, pos,
                        "conditional: the result of '%.100s' has another shape",
                        comp->name);
    return 0;
}

int inline_conditional(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct import *im = f->im;
    struct choice c = {.e = emit_start(f, instr)};
    size_t pos = c.e.pos;
    c.e.bare = true;
    c.selector = f->values[instr->in[0]].node;
    const struct ap_shape *s = c.selector < 0 ? NULL : &im->g.nodes[c.selector].shape;
    int n = instr->n_branches;
    if (!s || s->rank || (s->dtype != AP_S32 && (s->dtype != AP_PRED || n != 2)))
        return hlo_fail(im->src, pos, "conditional: the selector is not pred[] or s32[]");
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
