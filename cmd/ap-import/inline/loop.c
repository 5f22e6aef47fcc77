/*
 * While loops unrolled. The body is evaluated once per iteration, as a call is, on a
 * state whose integer scalars are constants where they can be (fold.c); the loop ends
 * after its known_trip_count, or when its condition, evaluated on that state, is a
 * constant false. Counters may therefore start, step and be compared in any way that
 * folds, and calls, nested loops and rematerialisation need no code of their own.
 *
 * Nodes are named after the layer that they work on: WHILE/3/ADD. A loop whose first
 * slice takes the last layer goes backward, and counts down. In an op_name the number
 * stands after "while/body" as "#3"; import_scope puts it after the first component
 * that follows, the name of the layer's module: "decoder/layers/3/mlp".
 */
#include "inline/inline.h"

#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

/* The number that belongs to the loop at place k of n in a path, or -1. */
static int64_t number_at(const struct iteration *it, int k, int n)
{
    int depth = it->depth - (n - 1 - k);
    while (it && it->depth > depth)
        it = it->outer;
    return it && depth > 0 ? it->number : -1;
}

/* The next "body" after a "while" in path, or NULL. */
static const char *next_body(const char *path)
{
    for (const char *s = path; (s = strstr(s, "while"));) {
        s += strlen("while");
        const char *p = s + strspn(s, ")");
        if (strncmp(p, "/body", 5) == 0 && (p[5] == '/' || !p[5]))
            return p + 5;
    }
    return NULL;
}

const char *inline_number_path(const struct frame *f, const char *op_name)
{
    int n = 0;
    for (const char *s = op_name; f->iteration && (s = next_body(s)); n++)
        continue;
    if (!n)
        return op_name;
    struct ap_buf *out = &f->im->scratch;
    const char *from = op_name;
    out->len = 0;
    for (int k = 0; k < n; k++) {
        const char *s = next_body(from);
        int64_t number = number_at(f->iteration, k, n);
        ap_buf_put(out, from, (size_t)(s - from));
        if (number >= 0)
            ap_buf_printf(out, "/#%lld", (long long)number);
        from = s;
    }
    ap_buf_puts(out, from);
    return ap_arena_strndup(f->im->src->arena, out->data, out->len);
}

/* ---- state ---- */

/* Whether the body passes element k of its tuple on unchanged. */
static bool is_kept(const struct hlo_comp *body, int k)
{
    const struct hlo_instr *root = &body->instr[body->root];
    if (root->kind != HLO_TUPLE || k >= root->n_in)
        return false;
    const struct hlo_instr *get = &body->instr[root->in[k]];
    return get->kind == HLO_GET && get->number == k && get->in[0] == body->params[0];
}

/* The value with a copy of its known scalar, marked as a counter. */
static struct value mark_counter(struct import *im, const struct value *v, int depth)
{
    int64_t known;
    if (v->node < 0 || !inline_known(im, v->node, &known))
        return *v;
    struct ap_node node = im->g.nodes[v->node];
    struct node_info info = im->info[v->node];
    info.counter = depth;
    info.auto_named = true;
    return (struct value){.node = import_add(im, &node, &info)};
}

static struct value initial_state(struct import *im, const struct hlo_comp *body,
                                  const struct value *v, int depth)
{
    if (v->node >= 0)
        return mark_counter(im, v, depth);
    struct value *parts = AP_NEW_N(im->src->arena, v->n_parts + 1, struct value);
    for (int i = 0; i < v->n_parts; i++)
        parts[i] = is_kept(body, i) ? v->parts[i] : mark_counter(im, &v->parts[i], depth);
    return inline_tuple(v->n_parts, parts);
}

/* ---- iterations ---- */

struct loop {
    struct frame *f;
    const struct hlo_instr *instr;
    const struct hlo_comp *cond, *body;
    const char *name, *op_name;
    int depth;
    int64_t n_layers; /* of a loop that goes backward, else 0 */
};

/* Takes back what was added since there were n nodes, which nothing refers to. */
static void rewind_to(struct import *im, int n_nodes, int n_dropped)
{
    im->g.n_nodes = n_nodes;
    im->g.n_dropped = n_dropped;
}

/* 1 to go on, 0 at the end, -1 on error. */
static int condition(const struct loop *l, const struct value *state, int64_t i)
{
    struct import *im = l->f->im;
    size_t pos = hlo_at(im->src, l->instr->opcode.s);
    if (l->instr->trip_count >= 0)
        return i < l->instr->trip_count;
    struct frame inner = inline_inner(l->f, l->cond, l->name, l->op_name);
    int n_nodes = im->g.n_nodes, n_dropped = im->g.n_dropped;
    struct value out;
    if (inline_comp(&inner, state, &out))
        return -1;
    int64_t go_on;
    if (out.node < 0 || im->g.nodes[out.node].shape.dtype != AP_PRED ||
        im->g.nodes[out.node].shape.rank)
        return hlo_fail(im->src, pos, "while: the condition does not give pred[]");
    if (!inline_known(im, out.node, &go_on))
        return hlo_refuse(im->src, pos,
                          "while '%.100s': unknown trip count; --keep-loops keeps loops "
                          "as single nodes",
                          l->name);
    rewind_to(im, n_nodes, n_dropped);
    return go_on != 0;
}

/* Layers of the stack whose last one an iteration takes first, or 0. */
static int64_t layers_from_last(const struct import *im, int from, int depth)
{
    for (int i = from; i < im->g.n_nodes; i++) {
        const struct ap_node *node = &im->g.nodes[i];
        if (node->op != AP_OP_SLICE || !im->info[i].layered ||
            im->info[i].counter != depth)
            continue;
        const struct ap_shape *x = &im->g.nodes[node->in[0]].shape;
        for (int d = 0; d < x->rank; d++)
            if (node->shape.dims[d] == 1 && x->dims[d] > 1)
                return node->attrs->slice[d].limit == x->dims[d] ? x->dims[d] : 0;
    }
    return 0;
}

static int iterate(struct loop *l, int64_t i, const struct value *state,
                   struct value *next)
{
    struct import *im = l->f->im;
    int n_nodes = im->g.n_nodes, n_dropped = im->g.n_dropped;
    for (;;) {
        struct iteration it = {l->f->iteration, l->depth,
                               l->n_layers ? l->n_layers - 1 - i : i};
        struct ap_arena *arena = im->src->arena;
        struct frame inner = inline_inner(
            l->f, l->body,
            ap_arena_printf(arena, "%s/%lld", l->name, (long long)it.number),
            ap_arena_printf(arena, "%s/body/#%lld", l->op_name, (long long)it.number));
        inner.iteration = &it;
        if (inline_comp(&inner, state, next))
            return -1;
        int64_t n = i || l->n_layers ? 0 : layers_from_last(im, n_nodes, l->depth);
        if (!n)
            break;
        l->n_layers = n; /* once more, now that the layer's number is known */
        rewind_to(im, n_nodes, n_dropped);
    }
    if (!inline_has_shape(im, next, &l->instr->shape))
        return hlo_fail(im->src, hlo_at(im->src, l->instr->opcode.s),
                        "while: the result of '%.100s' has another shape", l->body->name);
    return 0;
}

int inline_while(struct frame *f, const struct hlo_instr *instr, struct value *out)
{
    struct import *im = f->im;
    size_t pos = hlo_at(im->src, instr->opcode.s);
    struct loop l = {.f = f, .instr = instr};
    l.cond = &im->module->comps[instr->comp[1]];
    l.body = &im->module->comps[instr->comp[0]];
    l.name = inline_name(f, instr);
    l.op_name = inline_op_name(f, instr);
    l.depth = f->iteration ? f->iteration->depth + 1 : 1;
    if (f->depth == INLINE_MAX_CALLS)
        return hlo_refuse(im->src, pos,
                          "loops nested more than %d deep are not supported",
                          INLINE_MAX_CALLS);
    if (l.cond->n_params != 1 || l.body->n_params != 1)
        return hlo_fail(im->src, pos, "while: condition and body take one parameter");
    if (!inline_has_shape(im, &f->values[instr->in[0]], &instr->shape))
        return hlo_fail(im->src, pos, "while: operand and result differ in shape");
    if (im->keep_loops)
        return inline_kept_while(f, instr, out);
    struct value state = initial_state(im, l.body, &f->values[instr->in[0]], l.depth);
    int go_on;
    for (int64_t i = 0; (go_on = condition(&l, &state, i)) > 0; i++) {
        struct value next;
        if (++im->work > im->max_work)
            return hlo_refuse(
                im->src, pos,
                "more than %lld instructions after inlining are not supported",
                (long long)im->max_work);
        if (iterate(&l, i, &state, &next))
            return -1;
        state = next;
    }
    *out = state;
    return go_on;
}
