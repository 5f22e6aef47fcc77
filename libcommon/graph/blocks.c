/*
 * Blocks of a whole train step, given those of its forward operators.
 *
 * Problem: the backward and update nodes of a graph carry no mark of the forward nodes
 * that they belong to (names may be stripped), yet a stage needs them together with these
 * nodes, and gradients must flow from later blocks to earlier ones only.
 *
 * Idea: a backward node cannot be before any forward value or weight that it works on,
 * before the weight whose gradient it makes, or before a node that reads it. The least
 * block that respects this, low(v), falls along every backward edge. A node whose own
 * forward values and weights decide low(v) takes it; any other (a sum of gradients, a
 * reduction) stays where its operands are, so that values are summed before they cross
 * blocks: block(v) = least block of its backward operands, which is >= low(v). Forward
 * nodes that only the backward pass needs stay with the last of their operands. Update
 * nodes go with the one weight that needs them, an average of a weight (EMA) with that
 * weight; what several weights need (a global norm) goes where all its operands are, else
 * to the last block.
 *
 * Cost: linear; a handful of sweeps.
 */
#include "graph/blocks.h"

#include <assert.h>
#include <string.h>

enum { NONE = -1, MIXED = -2 };

/* ---- what a node is ---- */

static enum ap_origin leaf_origin(const struct ap_node *node)
{
    switch (node->role) {
    case AP_ROLE_WEIGHT:
    case AP_ROLE_STATE:
        return AP_FROM_WEIGHTS;
    case AP_ROLE_CONSTANT:
        return AP_FROM_CONSTANTS;
    case AP_ROLE_NONE:
    case AP_ROLE_INPUT:
    case AP_ROLE_LOSS:
    case AP_ROLE_AUX:
    case AP_N_ROLES:
        break;
    }
    return node->op == AP_OP_PARAMETER ? AP_FROM_INPUTS : AP_FROM_CONSTANTS;
}

static bool is_operator(const struct ap_graph *g, const uint8_t *origin, int i)
{
    const struct ap_node *node = &g->nodes[i];
    return node->phase == AP_FORWARD && origin[i] == AP_FROM_INPUTS &&
           ap_ops[node->op].class != AP_CLASS_LEAF;
}

/* Returns whether a forward node depends on an input. */
static bool spread(const struct ap_graph *g, uint8_t *origin, bool weights_are_inputs)
{
    bool any = false;

    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        origin[i] = node->n_in ? AP_FROM_CONSTANTS : (uint8_t)leaf_origin(node);
        if (weights_are_inputs && origin[i] == AP_FROM_WEIGHTS)
            origin[i] = AP_FROM_INPUTS;
        for (int k = 0; k < node->n_in; k++)
            if (origin[node->in[k]] > origin[i])
                origin[i] = origin[node->in[k]];
        any |= is_operator(g, origin, i);
    }
    return any;
}

uint8_t *ap_blocks_origins(struct ap_arena *arena, const struct ap_graph *g)
{
    uint8_t *origin = AP_NEW_N(arena, g->n_nodes + 1, uint8_t);

    if (!spread(g, origin, false))
        spread(g, origin, true);
    return origin;
}

/* Forward nodes that a forward result needs; all of them in a graph without one. */
static bool *find_needed(struct ap_arena *arena, const struct ap_graph *g)
{
    bool *needed = AP_NEW_N(arena, g->n_nodes + 1, bool), any = false;

    for (int i = 0; i < g->n_results; i++) {
        const struct ap_node *node = &g->nodes[g->results[i].node];
        if (node->phase == AP_FORWARD && node->op != AP_OP_PARAMETER)
            needed[g->results[i].node] = any = true;
    }
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        needed[i] |= !any;
        for (int k = 0; needed[i] && k < g->nodes[i].n_in; k++)
            needed[g->nodes[i].in[k]] = true;
    }
    return needed;
}

int ap_blocks_operators(struct ap_arena *arena, const struct ap_graph *g, int **ids)
{
    const uint8_t *origin = ap_blocks_origins(arena, g);
    const bool *needed = find_needed(arena, g);
    int n = 0;

    *ids = AP_NEW_N(arena, g->n_nodes + 1, int);
    for (int i = 0; i < g->n_nodes; i++)
        if (is_operator(g, origin, i) && needed[i])
            (*ids)[n++] = i;
    return n;
}

double ap_node_heavy_flops(const struct ap_graph *g, int i)
{
    const struct ap_node *node = &g->nodes[i];
    double products = 1;

    if (ap_ops[node->op].class != AP_CLASS_HEAVY)
        return 0;
    const struct ap_shape *x = &g->nodes[node->in[0]].shape;
    const struct ap_shape *w = &g->nodes[node->in[1]].shape;
    if (node->op == AP_OP_DOT)
        for (int k = 0; k < node->attrs->lhs_contracting_dims.n; k++)
            products *= (double)x->dims[node->attrs->lhs_contracting_dims.v[k]];
    else
        for (int k = 0; k < w->rank; k++)
            products *= k == node->attrs->conv.rhs_out ? 1.0 : (double)w->dims[k];
    return 2 * products * (double)ap_shape_elems(&node->shape);
}

bool ap_node_is_of_experts(const struct ap_graph *g, const uint8_t *from, int node)
{
    const struct ap_node *n = &g->nodes[node];

    return n->op == AP_OP_DOT && n->attrs->lhs_batch_dims.n > 0 &&
           (from[n->in[0]] == AP_FROM_INPUTS) != (from[n->in[1]] == AP_FROM_INPUTS);
}

int ap_experts_find(const struct ap_graph *g, const uint8_t *from)
{
    double all = 0, experts = 0;
    int first = -1;

    for (int i = 0; i < g->n_nodes; i++) {
        const double flops =
            g->nodes[i].phase == AP_FORWARD ? ap_node_heavy_flops(g, i) : 0;
        all += flops;
        if (flops == 0 || !ap_node_is_of_experts(g, from, i))
            continue;
        experts += flops;
        first = first < 0 ? i : first;
    }
    return experts > AP_LEAST_EXPERTS * all ? first : -1;
}

double ap_node_flops(const struct ap_graph *g, int i)
{
    const struct ap_node *node = &g->nodes[i];
    const struct ap_op_info *op = &ap_ops[node->op];

    if (op->class == AP_CLASS_HEAVY)
        return ap_node_heavy_flops(g, i);
    int of = op->class == AP_CLASS_REDUCE ? node->in[0] : i;
    return (double)op->flops * (double)ap_shape_elems(&g->nodes[of].shape) +
           (double)node->attrs->flops;
}

/* ---- carrying ---- */

struct carry {
    const struct ap_graph *g;
    int n;
    int *block_of;
    const uint8_t *origin;
    int *anchor; /* [node] the last block of the forward values and weights that it works
                    on and of the weight that it updates; NONE */
    int *owner;  /* [node] of updates: block of the weights that need it, NONE, MIXED */
    int *source; /* [node] of updates: block of the weights whose updates it is made of */
    int *low;    /* [node] of the backward phase: it can be in no earlier block */
};

static int max_int(int a, int b)
{
    return a > b ? a : b;
}

/* First block among the users of i that phase picks (AP_N_PHASES: all), or NONE. */
static int first_reader(const struct carry *c, int i, enum ap_phase phase)
{
    int first = NONE;

    for (int k = c->g->user_start[i]; k < c->g->user_start[i + 1]; k++) {
        int user = c->g->users[k], b = c->block_of[user];
        bool counts = phase == AP_N_PHASES || c->g->nodes[user].phase == phase;
        if (counts && b >= 0 && (first < 0 || b < first))
            first = b;
    }
    return first;
}

/* Forward nodes that only backward nodes need: where the last of their operands is. */
static void place_kept(const struct carry *c)
{
    for (int i = 0; i < c->g->n_nodes; i++) {
        const struct ap_node *node = &c->g->nodes[i];
        if (c->block_of[i] >= 0 || !is_operator(c->g, c->origin, i))
            continue;
        for (int k = 0; k < node->n_in; k++)
            if (is_operator(c->g, c->origin, node->in[k]))
                c->block_of[i] = max_int(c->block_of[i], c->block_of[node->in[k]]);
    }
}

/* Parameters and chains of weights and constants that forward nodes read. */
static void place_leaves(const struct carry *c)
{
    for (int i = c->g->n_nodes - 1; i >= 0; i--) {
        const struct ap_node *node = &c->g->nodes[i];
        if (c->block_of[i] < 0 &&
            (node->phase == AP_FORWARD || node->op == AP_OP_PARAMETER))
            c->block_of[i] = first_reader(c, i, AP_FORWARD);
    }
}

/* What operand `in` says about where a node works. */
static int anchor_of(const struct carry *c, int in)
{
    const struct ap_node *node = &c->g->nodes[in];

    if (c->origin[in] == AP_FROM_CONSTANTS)
        return NONE;
    if (c->origin[in] == AP_FROM_WEIGHTS)
        return node->phase == AP_BACKWARD && node->n_in ? c->anchor[in] : c->block_of[in];
    return node->phase == AP_FORWARD && node->n_in ? c->block_of[in] : NONE;
}

static void find_anchors(const struct carry *c)
{
    for (int i = 0; i < c->g->n_nodes; i++) {
        const struct ap_node *node = &c->g->nodes[i];
        c->anchor[i] = NONE;
        for (int k = 0; k < node->n_in && node->phase == AP_BACKWARD; k++)
            c->anchor[i] = max_int(c->anchor[i], anchor_of(c, node->in[k]));
    }
}

/* The block of the one weight that needs it; who serves several says nothing. */
static int join_owner(int a, int b)
{
    return a == b || b < 0 ? a : a == NONE ? b : MIXED;
}

/* Hands the owners of results and readers to what they are made of. */
static void spread_owners(const struct carry *c)
{
    const struct ap_graph *g = c->g;

    for (int i = g->n_nodes - 1; i >= 0; i--) {
        const struct ap_node *node = &g->nodes[i];
        if (node->phase == AP_BACKWARD)
            c->anchor[i] = max_int(c->anchor[i], c->owner[i]);
        for (int k = 0; k < node->n_in && node->phase == AP_UPDATE; k++) {
            int in = node->in[k];
            if (g->nodes[in].phase == AP_BACKWARD)
                c->anchor[in] = max_int(c->anchor[in], c->owner[i]);
            else if (g->nodes[in].phase == AP_UPDATE)
                c->owner[in] = join_owner(c->owner[in], c->owner[i]);
        }
    }
}

/*
 * A state belongs to the weight whose update reads it; its new value goes there even
 * where no weight needs that (it is chosen after the update, by whether the step was
 * finite).
 */
static void own_states(const struct carry *c)
{
    const struct ap_graph *g = c->g;

    for (int r = 0; r < g->n_results; r++) {
        int alias = g->results[r].alias, node = g->results[r].node, owner = NONE;
        if (alias < 0 || c->block_of[alias] >= 0 || c->owner[node] != NONE)
            continue;
        for (int k = g->user_start[alias]; k < g->user_start[alias + 1]; k++)
            owner = join_owner(owner, c->owner[g->users[k]]);
        if (owner >= 0)
            c->owner[node] = owner;
    }
}

/*
 * A state that no weight's update reads, but whose new value is made of one weight's, is
 * an average of that weight (EMA) or a copy of it: it goes where the weight is.
 */
static void own_averages(const struct carry *c)
{
    const struct ap_graph *g = c->g;

    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        c->source[i] = node->phase == AP_UPDATE && node->n_in ? c->owner[i] : NONE;
        for (int k = 0; k < node->n_in && node->phase == AP_UPDATE && c->owner[i] == NONE;
             k++)
            c->source[i] = join_owner(c->source[i], c->source[node->in[k]]);
    }
    for (int r = 0; r < g->n_results; r++) {
        int alias = g->results[r].alias, node = g->results[r].node;
        if (alias >= 0 && c->block_of[alias] < 0 && c->owner[node] == NONE &&
            c->source[node] >= 0)
            c->owner[node] = c->source[node];
    }
}

static void find_owners(const struct carry *c)
{
    const struct ap_graph *g = c->g;

    for (int i = 0; i < g->n_nodes; i++)
        c->owner[i] = NONE;
    for (int i = 0; i < g->n_results; i++) {
        int alias = g->results[i].alias, node = g->results[i].node;
        if (alias >= 0)
            c->owner[node] = join_owner(c->owner[node], c->block_of[alias]);
    }
    spread_owners(c);
    own_states(c);
    spread_owners(c);
    own_averages(c);
    spread_owners(c);
}

/* Whether a node of the phase, in the block or, with NONE, in any, reads a value. */
static bool is_read(const struct carry *c, int value, enum ap_phase phase, int block)
{
    const struct ap_graph *g = c->g;
    bool reads = false;

    for (int k = g->user_start[value]; k < g->user_start[value + 1] && !reads; k++)
        reads = g->nodes[g->users[k]].phase == phase &&
                (block == NONE || c->block_of[g->users[k]] == block);
    return reads;
}

/*
 * Whether a backward node may be in a block after the forward values that it reads,
 * where its gradients are: the block has these values, too, as it reads them. So what a
 * norm's backward makes of the block's input is summed up there, and one gradient goes on
 * to the block before.
 */
static bool may_stay(const struct carry *c, int i, int block)
{
    const struct ap_node *node = &c->g->nodes[i];
    bool may =
        ap_ops[node->op].class == AP_CLASS_ELEMENTWISE && !is_read(c, i, AP_UPDATE, NONE);

    for (int k = 0; k < node->n_in && may; k++) {
        const int anchor = anchor_of(c, node->in[k]);
        may = anchor == NONE || anchor == block ||
              (c->origin[node->in[k]] == AP_FROM_INPUTS &&
               is_read(c, node->in[k], AP_FORWARD, block));
    }
    return may;
}

static void place_backward(const struct carry *c)
{
    const struct ap_graph *g = c->g;

    for (int i = 0; i < g->n_nodes; i++)
        c->low[i] = NONE;
    for (int i = g->n_nodes - 1; i >= 0; i--) {
        const struct ap_node *node = &g->nodes[i];
        if (node->phase != AP_BACKWARD)
            continue;
        c->low[i] = max_int(c->low[i], c->anchor[i]);
        for (int k = 0; k < node->n_in; k++)
            c->low[node->in[k]] = max_int(c->low[node->in[k]], c->low[i]);
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        int least = c->n;
        if (node->phase != AP_BACKWARD || node->op == AP_OP_PARAMETER)
            continue;
        for (int k = 0; k < node->n_in; k++) {
            int in = node->in[k];
            if (g->nodes[in].phase == AP_BACKWARD && c->origin[in] == AP_FROM_INPUTS &&
                g->nodes[in].op != AP_OP_PARAMETER && c->block_of[in] < least)
                least = c->block_of[in];
        }
        bool free = c->low[i] < 0; /* a gradient that no update reads */
        if (least == c->n ||
            (!free && c->anchor[i] == c->low[i] && !may_stay(c, i, least)))
            least = c->low[i];
        c->block_of[i] = least >= 0 ? least : c->n - 1;
    }
}

/* Backward nodes made of no input: with the first one that reads them. A weight that
 * several blocks share lies in the first of them, and what is made of it there would go
 * against the flow of gradients. */
static void place_inputless(const struct carry *c)
{
    const struct ap_graph *g = c->g;

    for (int i = g->n_nodes - 1; i >= 0; i--) {
        int first = NONE;
        if (g->nodes[i].phase != AP_BACKWARD || g->nodes[i].op == AP_OP_PARAMETER ||
            c->origin[i] == AP_FROM_INPUTS)
            continue;
        for (int k = g->user_start[i]; k < g->user_start[i + 1]; k++)
            if (g->nodes[g->users[k]].phase == AP_BACKWARD)
                first = max_int(first, c->block_of[g->users[k]]);
        if (first >= 0)
            c->block_of[i] = first;
    }
}

/* The block of all that an update reads beside parameters, or the last one. */
static int block_of_operands(const struct carry *c, int i)
{
    const struct ap_node *node = &c->g->nodes[i];
    int all = NONE;

    for (int k = 0; k < node->n_in; k++) {
        int in = node->in[k];
        if (c->origin[in] != AP_FROM_INPUTS || !c->g->nodes[in].n_in)
            continue;
        all = all == NONE || all == c->block_of[in] ? c->block_of[in] : MIXED;
    }
    return all >= 0 ? all : c->n - 1;
}

static void place_updates(const struct carry *c)
{
    for (int i = 0; i < c->g->n_nodes; i++) {
        const struct ap_node *node = &c->g->nodes[i];
        if (node->phase == AP_UPDATE && node->op != AP_OP_PARAMETER)
            c->block_of[i] = c->owner[i] >= 0 ? c->owner[i] : block_of_operands(c, i);
    }
}

/* What is left: with its first reader, or in the last block. */
static void place_rest(const struct carry *c)
{
    for (int i = c->g->n_nodes - 1; i >= 0; i--) {
        if (c->block_of[i] < 0)
            c->block_of[i] = first_reader(c, i, AP_N_PHASES);
        if (c->block_of[i] < 0)
            c->block_of[i] = c->n - 1;
    }
}

void ap_blocks_carry(struct ap_arena *arena, const struct ap_graph *g, int n,
                     int *block_of)
{
    struct carry c = {.g = g, .n = n, .block_of = block_of};

    c.origin = ap_blocks_origins(arena, g);
    c.anchor = AP_NEW_N(arena, g->n_nodes + 1, int);
    c.owner = AP_NEW_N(arena, g->n_nodes + 1, int);
    c.source = AP_NEW_N(arena, g->n_nodes + 1, int);
    c.low = AP_NEW_N(arena, g->n_nodes + 1, int);
    int *ids, n_ids = ap_blocks_operators(arena, g, &ids);
    for (int i = 0; i < n_ids; i++)
        assert(block_of[ids[i]] >= 0 && block_of[ids[i]] < n);
    place_kept(&c);
    place_leaves(&c);
    find_anchors(&c);
    find_owners(&c);
    place_backward(&c);
    place_inputless(&c);
    place_updates(&c);
    place_rest(&c);
}

/* ---- checks ---- */

int ap_blocks_check_phases(const struct ap_graph *g, struct ap_err *err)
{
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        for (int k = 0; k < node->n_in; k++) {
            const struct ap_node *in = &g->nodes[node->in[k]];
            if (in->op != AP_OP_PARAMETER && in->phase > node->phase)
                return ap_err_set(
                    err,
                    "/graph/nodes/%d (%s): a node of phase %s reads node %d "
                    "(%s) of phase %s",
                    i, node->name, ap_phase_names[node->phase], node->in[k], in->name,
                    ap_phase_names[in->phase]);
        }
    }
    return 0;
}

/* One edge of forward or backward nodes that are made of inputs. */
static int check_edge(const struct ap_graph *g, const struct ap_blocks *b, int from,
                      int to, struct ap_err *err)
{
    const struct ap_node *u = &g->nodes[from], *v = &g->nodes[to];
    bool later = b->block_of[from] > b->block_of[to];
    bool earlier = b->block_of[from] < b->block_of[to];

    if (u->phase != v->phase || !(v->phase == AP_FORWARD ? later : earlier))
        return 0;
    return ap_err_set(err,
                      "/blocks: node %d (%s) of block %d reads node %d (%s) of the %s "
                      "block %d in the %s pass",
                      to, v->name, b->block_of[to], from, u->name,
                      later ? "later" : "earlier", b->block_of[from],
                      ap_phase_names[v->phase]);
}

int ap_blocks_check(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_blocks *b, struct ap_err *err)
{
    struct ap_mark mark = ap_arena_mark(arena);
    const uint8_t *origin = ap_blocks_origins(arena, g);
    bool *used = AP_NEW_N(arena, b->n + 1, bool);
    int rc = 0;

    for (int i = 0; i < g->n_nodes && !rc; i++) {
        const struct ap_node *node = &g->nodes[i];
        int block = b->block_of[i];
        if (block < 0 || block >= b->n) {
            rc = ap_err_set(err, "/blocks/block_of/%d: no block %d, there are %d", i,
                            block, b->n);
            break;
        }
        used[block] |= is_operator(g, origin, i);
        if (node->phase == AP_UPDATE || origin[i] != AP_FROM_INPUTS)
            continue;
        for (int k = 0; k < node->n_in && !rc; k++) {
            int in = node->in[k];
            if (origin[in] == AP_FROM_INPUTS && g->nodes[in].op != AP_OP_PARAMETER)
                rc = check_edge(g, b, in, i, err);
        }
    }
    for (int i = 0; i < b->n && !rc; i++)
        if (!used[i])
            rc = ap_err_set(err, "/blocks: block %d has no forward operator", i);
    ap_arena_rewind(arena, mark);
    return rc;
}

/* ---- sums ---- */

/* Adds forward value i to the blocks that read it. seen: last value counted per block. */
static void count_value(const struct ap_graph *g, const struct ap_blocks *b, int i,
                        int *seen_in, int *seen_kept, struct ap_block_sum *sums)
{
    int64_t bytes = ap_shape_bytes(&g->nodes[i].shape);
    int own = b->block_of[i];
    bool left = false;

    for (int k = g->user_start[i]; k < g->user_start[i + 1]; k++) {
        int user = g->users[k], block = b->block_of[user];
        enum ap_phase phase = g->nodes[user].phase;
        if (phase == AP_FORWARD && block != own && seen_in[block] != i) {
            seen_in[block] = i;
            sums[block].in_bytes = ap_add64(sums[block].in_bytes, bytes);
            left = true;
        }
        if (phase == AP_BACKWARD && seen_kept[block] != i) {
            seen_kept[block] = i;
            sums[block].kept_bytes = ap_add64(sums[block].kept_bytes, bytes);
        }
    }
    if (left)
        sums[own].out_bytes = ap_add64(sums[own].out_bytes, bytes);
}

struct ap_block_sum *ap_blocks_sum(struct ap_arena *arena, const struct ap_graph *g,
                                   const struct ap_blocks *b)
{
    struct ap_block_sum *sums = AP_NEW_N(arena, b->n, struct ap_block_sum);
    struct ap_mark mark = ap_arena_mark(arena);
    const uint8_t *origin = ap_blocks_origins(arena, g);
    int *seen_in = AP_NEW_N(arena, b->n, int), *seen_kept = AP_NEW_N(arena, b->n, int);

    for (int i = 0; i < b->n; i++)
        seen_in[i] = seen_kept[i] = -1;
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        struct ap_block_sum *sum = &sums[b->block_of[i]];
        sum->nodes[node->phase]++;
        sum->flops[node->phase] += ap_node_heavy_flops(g, i);
        if (node->role == AP_ROLE_WEIGHT)
            sum->weight_bytes = ap_add64(sum->weight_bytes, ap_shape_bytes(&node->shape));
        if (node->role == AP_ROLE_STATE)
            sum->state_bytes = ap_add64(sum->state_bytes, ap_shape_bytes(&node->shape));
        if (is_operator(g, origin, i))
            count_value(g, b, i, seen_in, seen_kept, sums);
    }
    ap_arena_rewind(arena, mark);
    return sums;
}
