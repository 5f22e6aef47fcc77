/*
 * Linear sets: which operands of a group may be partial sums together, so that its
 * results are partial sums, too, and no all-reduce is needed in between.
 *
 * Single operators have theirs in a table. Chains of elementwise operators are asked, for
 * each operand slot, whether a set that holds it exists: values are followed through the
 * members as constant, zero (both constant and linear), linear or nonlinear; where
 * something linear meets something constant in a sum, the slots that make the constant
 * side are demanded, too, and the walk starts again until nothing more is demanded. Cost:
 * O(slots * walks * members), at most 64 slots and 8 walks, usually 1 or 2.
 */
#include "layout/nest_impl.h"

#include <string.h>

#define MAX_WALKS 8 /* rounds of demands for one slot; with more it has no set */

static bool is_number(enum ap_dtype t)
{
    return ap_dtype_is_float(t) || ap_dtype_is_int(t);
}

/* ---- single operators ---- */

#define POSITION(k) (UINT64_C(1) << (k))
#define EVERY       UINT64_MAX

/* Sets of operand positions of an operator that is a group of its own; returns how many.
 */
static int op_sets(const struct ap_graph *g, const struct ap_node *n, uint64_t sets[2])
{
    int reducer = n->attrs->to_apply;
    bool sums = reducer >= 0 && g->reducers[reducer].red == AP_RED_SUM;

    switch ((int)n->op) {
    case AP_OP_RESHAPE:
    case AP_OP_TRANSPOSE:
    case AP_OP_SLICE:
    case AP_OP_REVERSE:
    case AP_OP_GATHER:
    case AP_OP_DYNAMIC_SLICE:
        sets[0] = POSITION(0);
        return 1;
    case AP_OP_CONCATENATE:
    case AP_OP_PAD:
        sets[0] = EVERY;
        return 1;
    case AP_OP_DYNAMIC_UPDATE_SLICE:
        sets[0] = POSITION(0) | POSITION(1);
        return 1;
    case AP_OP_REDUCE:
    case AP_OP_REDUCE_WINDOW:
        sets[0] = POSITION(0) | POSITION(1);
        return sums && n->n_in == 2;
    case AP_OP_SCATTER:
        sets[0] = POSITION(0) | POSITION(2);
        return sums;
    case AP_OP_DOT:
    case AP_OP_CONVOLUTION:
        sets[0] = POSITION(0);
        sets[1] = POSITION(1);
        return 2;
    }
    return 0;
}

/* Slots of the positions in `set`, 0 when they cannot be partial together. */
static uint64_t slots_of(const struct ap_graph *g, const struct ap_nest *nest,
                         uint64_t set)
{
    const struct ap_node *n = &g->nodes[nest->members[0]];
    uint64_t slots = 0, others = 0;

    for (int k = 0; k < n->n_in; k++) {
        int slot = nest->in_slot[0][k];
        bool in = set == EVERY || (k < 64 && (set & POSITION(k)));
        if (slot >= 64)
            return 0;
        if (in && !is_number(g->nodes[n->in[k]].shape.dtype))
            return 0;
        *(in ? &slots : &others) |= UINT64_C(1) << slot;
    }
    return slots & others ? 0 : slots;
}

/* ---- chains ---- */

enum state { CONSTANT, ZERO, LINEAR, NONLINEAR };

struct walk {
    const struct ap_graph *g;
    const struct ap_nest *nest;
    const int *pos;    /* of nodes among the members */
    const bool *fed;   /* of members: some slot reaches it */
    enum state *state; /* of members */
    int *stack;        /* members whose value must be made linear */
    bool *demanded;    /* of members */
    uint64_t slots;    /* the set so far */
    bool failed;
};

static const struct ap_node *member(const struct walk *w, int m)
{
    return &w->g->nodes[w->nest->members[m]];
}

static bool is_zero(const struct ap_node *n)
{
    static const unsigned char zeros[16];
    const struct ap_literal *l = &n->attrs->literal;
    return n->op == AP_OP_CONSTANT && l->splat && !l->elided && l->data &&
           memcmp(l->data, zeros, (size_t)ap_dtype_size(n->shape.dtype)) == 0;
}

static enum state operand_state(const struct walk *w, int m, int k)
{
    int slot = w->nest->in_slot[m][k];
    if (slot < 0)
        return w->state[w->pos[member(w, m)->in[k]]];
    return slot < 64 && (w->slots >> slot & 1) ? LINEAR : CONSTANT;
}

/* Operands of m that must be linear for it to be so when `hint` is: a bit set, 0 for
 * never. */
static unsigned needs(const struct walk *w, int m, unsigned hint)
{
    const struct ap_node *n = member(w, m);
    const struct ap_shape *from = n->n_in > 0 ? &w->g->nodes[n->in[0]].shape : NULL;
    bool is_float = ap_dtype_is_float(n->shape.dtype);

    if (!is_number(n->shape.dtype))
        return 0;
    switch ((int)n->op) {
    case AP_OP_ADD:
    case AP_OP_SUBTRACT:
        return 3;
    case AP_OP_SELECT:
        return 6;
    case AP_OP_NEGATE:
    case AP_OP_COPY:
    case AP_OP_OPT_BARRIER:
    case AP_OP_BROADCAST:
        return 1;
    case AP_OP_CONVERT:
        return is_float && ap_dtype_is_float(from->dtype) ? 1 : 0;
    case AP_OP_MULTIPLY:
        return hint;
    case AP_OP_DIVIDE:
        return is_float ? 1 : 0;
    }
    return 0;
}

/* Asks for operand k of member m to be linear. */
static void demand(struct walk *w, int m, int k, int *n_stack)
{
    int slot = w->nest->in_slot[m][k], id = member(w, m)->in[k];

    if (slot >= 64 || !is_number(w->g->nodes[id].shape.dtype)) {
        w->failed = true;
    } else if (slot >= 0) {
        w->slots |= UINT64_C(1) << slot;
    } else if (!w->demanded[w->pos[id]] && w->state[w->pos[id]] != ZERO) {
        w->demanded[w->pos[id]] = true;
        w->stack[(*n_stack)++] = w->pos[id];
    }
}

/* Which factor of a product to ask: one that slots feed, no broadcast if there is a
 * choice. */
static unsigned product_side(const struct walk *w, int m)
{
    const struct ap_node *n = member(w, m);
    int best = -1, best_rank = 0;

    for (int k = 0; k < 2 && n->n_in == 2; k++) {
        bool inside = w->nest->in_slot[m][k] < 0;
        if (inside && !w->fed[w->pos[n->in[k]]])
            continue;
        int rank = w->g->nodes[n->in[k]].op == AP_OP_BROADCAST ? 1 : 2;
        if (rank > best_rank) {
            best = k;
            best_rank = rank;
        }
    }
    return best < 0 ? 0 : 1u << best;
}

/* Demands the slots that make operand k of member m linear. */
static void demand_all(struct walk *w, int m, int k)
{
    int n_stack = 0;

    demand(w, m, k, &n_stack);
    while (n_stack > 0 && !w->failed) {
        int at = w->stack[--n_stack];
        unsigned set = needs(w, at, product_side(w, at));
        if (set == 0)
            w->failed = true;
        for (int i = 0; i < member(w, at)->n_in && !w->failed; i++) {
            if (set >> i & 1)
                demand(w, at, i, &n_stack);
        }
    }
}

static enum state next_state(struct walk *w, int m)
{
    const struct ap_node *n = member(w, m);
    unsigned linear = 0, zero = 0, constant = 0;

    for (int k = 0; k < n->n_in; k++) {
        switch (operand_state(w, m, k)) {
        case NONLINEAR:
            return NONLINEAR;
        case LINEAR:
            linear |= 1u << k;
            break;
        case ZERO:
            zero |= 1u << k;
            break;
        case CONSTANT:
            constant |= 1u << k;
            break;
        }
    }
    if (!linear) {
        bool keeps =
            n->op == AP_OP_BROADCAST || n->op == AP_OP_CONVERT || n->op == AP_OP_COPY;
        return is_zero(n) || (keeps && zero && !constant) ? ZERO : CONSTANT;
    }
    unsigned set = needs(w, m, linear == 1 || linear == 2 ? linear : 0);
    if (linear & ~set)
        return NONLINEAR;
    for (int k = 0; k < n->n_in && !w->failed; k++) {
        if (set & constant & 1u << k)
            demand_all(w, m, k);
    }
    return LINEAR;
}

/* The smallest set around `slot` that the demands lead to; 0 if there is none. */
static uint64_t close_set(struct walk *w, int slot)
{
    const struct ap_nest *nest = w->nest;
    uint64_t before;

    w->slots = UINT64_C(1) << slot;
    w->failed = false;
    memset(w->demanded, 0, (size_t)nest->n_members * sizeof(*w->demanded));
    for (int i = 0; i < MAX_WALKS; i++) {
        before = w->slots;
        for (int m = 0; m < nest->n_members && !w->failed; m++)
            w->state[m] = next_state(w, m);
        if (w->failed)
            return 0;
        if (w->slots != before)
            continue;
        for (int o = 0; o < nest->n_outs; o++) {
            if (w->state[w->pos[nest->outs[o]]] != LINEAR)
                return 0;
        }
        return w->slots;
    }
    return 0;
}

/* ---- all groups ---- */

struct found {
    int n;
    struct ap_linear_set set[AP_MAX_LINEAR];
    uint8_t *values;
};

static bool is_new(const struct found *f, uint64_t slots)
{
    if (slots == 0 || f->n == AP_MAX_LINEAR)
        return false;
    for (int i = 0; i < f->n; i++) {
        if (f->set[i].ins == slots)
            return false;
    }
    return true;
}

static void chain_sets(struct ap_arena *scratch, const struct ap_graph *g, const int *pos,
                       const struct ap_nest *nest, struct found *found)
{
    int n = nest->n_members;
    bool *fed = AP_NEW_N(scratch, n, bool);
    struct walk w = {.g = g,
                     .nest = nest,
                     .pos = pos,
                     .fed = fed,
                     .state = AP_NEW_N(scratch, n, enum state),
                     .stack = AP_NEW_N(scratch, n, int),
                     .demanded = AP_NEW_N(scratch, n, bool)};

    for (int m = 0; m < n; m++) {
        for (int k = 0; k < member(&w, m)->n_in; k++)
            fed[m] |= nest->in_slot[m][k] >= 0 || fed[pos[member(&w, m)->in[k]]];
    }
    for (int s = 0; s < nest->n_ins && s < 64; s++) {
        if (!is_number(g->nodes[nest->ins[s].node].shape.dtype))
            continue;
        uint64_t slots = close_set(&w, s);
        if (!is_new(found, slots))
            continue;
        for (int m = 0; m < n; m++)
            found->values[m] |= (uint8_t)((w.state[m] == LINEAR) << found->n);
        found->set[found->n++].ins = slots;
    }
}

static void single_sets(const struct ap_graph *g, const struct ap_nest *nest,
                        struct found *found)
{
    uint64_t sets[2];
    const struct ap_node *n = &g->nodes[nest->members[0]];
    int n_sets = is_number(n->shape.dtype) ? op_sets(g, n, sets) : 0;

    for (int i = 0; i < n_sets; i++) {
        uint64_t slots = slots_of(g, nest, sets[i]);
        if (!is_new(found, slots))
            continue;
        found->values[0] |= (uint8_t)(1 << found->n);
        found->set[found->n++].ins = slots;
    }
}

void ap_nest_find_linear(struct ap_arena *arena, struct ap_arena *scratch,
                         const struct ap_graph *g, const int *pos, struct ap_nest *nest)
{
    struct found found = {.values = AP_NEW_N(arena, nest->n_members, uint8_t)};
    const struct ap_node *last = &g->nodes[nest->members[nest->n_members - 1]];

    nest->linear_values = found.values;
    if (nest->n_ins == 0 || nest->n_outs == 0 || nest->attention)
        return;
    if (ap_ops[last->op].class == AP_CLASS_ELEMENTWISE || last->op == AP_OP_BROADCAST) {
        chain_sets(scratch, g, pos, nest, &found);
    } else if (nest->n_members == 1) {
        single_sets(g, nest, &found);
    }
    nest->n_linear = found.n;
    nest->linear = ap_arena_dup(arena, found.set, (size_t)found.n * sizeof(found.set[0]));
}
