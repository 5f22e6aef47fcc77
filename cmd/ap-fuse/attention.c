/*
 * Attention as one operator.
 *
 * Problem: softmax(q k + mask) v is written as two contractions with a chain on the
 * scores between them, rows of queries by rows of keys. Kernels that fuse it never put
 * the scores into memory (Dao et al., "FlashAttention", NeurIPS 2022): they read q, k and
 * v, write the result and a number or two per row, and compute the scores again for the
 * backward pass. A price that moves the scores is wrong by a factor, and memory by all.
 *
 * Idea: an attention is a fusion group with contractions in it. A *score* is the result
 * of a contraction with batch dimensions, or a value that elementwise operators,
 * transposes and converts make of scores; a *row* is a reduction of scores over one
 * dimension, or a value made of rows. Scores that meet belong together (union-find). Such
 * a set is an attention if it has an exponential, a sum over rows and a contraction that
 * reads scores; its forward nodes, from the first contraction to the last, are one group.
 * The backward nodes are another, with copies of the forward scores that they read: a
 * copy goes back to the first contraction, rows are taken from the forward pass. A
 * forward pass that is computed again (jax.checkpoint) is a set of the backward phase
 * alone: the nodes that do not depend on its first result are its forward side. Nodes
 * that depend on iotas and constants alone (a causal mask), and broadcasts to the scores'
 * dimensions, are copied into each group, so that no mask is kept either.
 *
 * The nodes of a group stand together, its first contraction before all others, in an
 * order in which operands come first. Sets without such an order, sets whose scores are
 * read elsewhere (a gradient of a learned bias, attention weights as a result), and sets
 * that mix phases in other ways stay plain. Cost: linear, and a heap of nodes that may
 * come next, once more for each set that has no such order.
 */
#include "attention.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/csr.h"
#include "base/heap.h"
#include "base/union_find.h"

/* Of the scores of one attention, and of a chain of leaves: copying is a recursion. */
#define MAX_SCORES 256
#define MAX_DEPTH  32
/* Nodes from the first to the last one of a set without a forward phase. */
#define MAX_SPAN 65536

enum kind { OTHER, SCORE, ROW };

/* What a set of scores has. */
struct set {
    bool exponential, sum;
    int n_scores;
    bool forward; /* has scores of the forward phase */
    bool makes[2],
        ends[2];     /* by side: contractions that make scores, and that read them */
    int first, last; /* nodes, -1: none */
    int first_end;   /* the first that reads them, -1 */
};

struct marker {
    struct ap_arena *arena;
    const struct ap_graph *g;
    uint8_t *kind;   /* [node]: enum kind */
    uint8_t *leaf;   /* [node]: depth of what is made of iotas and constants alone, 0 */
    bool *is_end;    /* [node]: a contraction that reads scores */
    bool *is_result; /* [node] */
    bool *gradient;  /* [node]: of its set's backward side */
    int *up;         /* union-find over nodes of scores and rows */
    struct set *set; /* [root] */
    bool *refused;   /* [root] */
    /* the new graph, before it is put in order */
    int n, cap;
    struct ap_node *node;    /* malloc */
    int cap_region, *region; /* [new node]: 2 * root + backward, -1; malloc */
    int *copy;               /* [node]: its copy in the region at hand, -1 */
    int *touched, n_touched;
    int n_copies;
};

static const struct ap_node *node_at(const struct marker *m, int v)
{
    return &m->g->nodes[v];
}

static bool has_dims(const struct marker *m, int a, int b)
{
    return ap_shape_same_dims(&node_at(m, a)->shape, &node_at(m, b)->shape);
}

/* ---- kinds of nodes ---- */

/* A contraction of two operands of several matrices. */
static bool makes_scores(const struct marker *m, int v)
{
    const struct ap_node *n = node_at(m, v);
    return n->op == AP_OP_DOT && n->attrs->lhs_batch_dims.n > 0 &&
           m->kind[n->in[0]] != SCORE && m->kind[n->in[1]] != SCORE &&
           n->shape.rank >= n->attrs->lhs_batch_dims.n + 2 &&
           ap_dtype_is_float(n->shape.dtype) && n->phase != AP_UPDATE;
}

static bool keeps_dims(const struct ap_node *n)
{
    return ap_ops[n->op].class == AP_CLASS_ELEMENTWISE;
}

/* The kind of a node by those of its operands. */
static enum kind kind_of(const struct marker *m, int v)
{
    const struct ap_node *n = node_at(m, v);
    bool score = false, row = false;

    if (n->shape.dtype == AP_TUPLE || n->phase == AP_UPDATE)
        return OTHER;
    if (makes_scores(m, v))
        return SCORE;
    for (int k = 0; k < n->n_in; k++) {
        score |= m->kind[n->in[k]] == SCORE;
        row |= m->kind[n->in[k]] == ROW;
    }
    if (keeps_dims(n))
        return score ? SCORE : row ? ROW : OTHER;
    if (n->op == AP_OP_TRANSPOSE)
        return score ? SCORE : row ? ROW : OTHER;
    if (n->op == AP_OP_RESHAPE)
        return row ? ROW : OTHER;
    if (n->op == AP_OP_BROADCAST && row)
        return n->shape.rank > node_at(m, n->in[0])->shape.rank ||
                       !has_dims(m, v, n->in[0])
                   ? SCORE
                   : ROW;
    if (n->op == AP_OP_REDUCE && n->n_in == 2 && score && n->attrs->dimensions.n == 1)
        return ROW;
    return OTHER;
}

static void join_operands(struct marker *m, int v)
{
    const struct ap_node *n = node_at(m, v);
    for (int k = 0; k < n->n_in && !makes_scores(m, v); k++)
        if (m->kind[n->in[k]] != OTHER)
            ap_sets_join(m->up, v, n->in[k]);
}

/* Depth of what is made of iotas and constants alone, 0: something else. */
static int leaf_depth(const struct marker *m, int v)
{
    const struct ap_node *n = node_at(m, v);
    int depth = 0;

    if (n->op == AP_OP_CONSTANT || n->op == AP_OP_IOTA)
        return n->shape.dtype != AP_TUPLE;
    if (n->n_in == 0 || !(keeps_dims(n) || n->op == AP_OP_BROADCAST))
        return 0;
    for (int k = 0; k < n->n_in; k++) {
        if (m->leaf[n->in[k]] == 0)
            return 0;
        depth = m->leaf[n->in[k]] > depth ? m->leaf[n->in[k]] : depth;
    }
    return depth < MAX_DEPTH ? depth + 1 : 0;
}

static void find_kinds(struct marker *m)
{
    const struct ap_graph *g = m->g;

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = node_at(m, v);
        m->leaf[v] = (uint8_t)leaf_depth(m, v);
        m->kind[v] = (uint8_t)kind_of(m, v);
        if (m->kind[v] != OTHER)
            join_operands(m, v);
        else if (n->op == AP_OP_DOT)
            for (int k = 0; k < 2; k++)
                m->is_end[v] |= m->kind[n->in[k]] == SCORE;
    }
}

/* ---- sides: forward, and what computes gradients ---- */

/* The scores that an end reads, by one of their nodes. */
static int scores_of_end(const struct marker *m, int v)
{
    const struct ap_node *n = node_at(m, v);
    return n->in[m->kind[n->in[0]] == SCORE ? 0 : 1];
}

static int set_of(const struct marker *m, int v)
{
    return ap_sets_root(m->up, m->is_end[v] ? scores_of_end(m, v) : v);
}

static bool is_in_set(const struct marker *m, int v)
{
    return m->is_end[v] || m->kind[v] != OTHER;
}

/* Of a set without a forward phase: its gradients depend on its first result. */
static void find_side(struct marker *m, int root, int *reached)
{
    const struct set *s = &m->set[root];

    if (s->last - s->first > MAX_SPAN) {
        m->refused[root] = true;
        return;
    }
    for (int v = s->first_end; v <= s->last; v++) {
        const struct ap_node *n = node_at(m, v);
        bool after = false;
        for (int k = 0; k < n->n_in; k++)
            after |= n->in[k] == s->first_end || reached[n->in[k]] == root;
        if (after)
            reached[v] = root;
    }
    for (int v = s->first; v <= s->last; v++)
        if (is_in_set(m, v) && set_of(m, v) == root)
            m->gradient[v] = reached[v] == root;
}

static void find_sides(struct marker *m)
{
    const struct ap_graph *g = m->g;
    int *reached = AP_NEW_N(m->arena, g->n_nodes, int);

    for (int v = 0; v < g->n_nodes; v++) {
        reached[v] = m->set[v].first = m->set[v].first_end = -1;
        m->gradient[v] = node_at(m, v)->phase != AP_FORWARD;
    }
    for (int v = 0; v < g->n_nodes; v++) {
        if (!is_in_set(m, v))
            continue;
        struct set *s = &m->set[set_of(m, v)];
        s->forward |= m->kind[v] == SCORE && !m->gradient[v];
        s->first = s->first < 0 ? v : s->first;
        s->last = v;
        if (m->is_end[v] && s->first_end < 0)
            s->first_end = v;
    }
    for (int v = 0; v < g->n_nodes; v++)
        if (m->set[v].first_end >= 0 && !m->set[v].forward)
            find_side(m, v, reached);
}

/* ---- which sets are attentions ---- */

/* Whether a reader of scores is of their set, or a contraction that ends it. */
static bool may_read(const struct marker *m, int user, int v)
{
    if (m->kind[user] != OTHER)
        return ap_sets_root(m->up, user) == ap_sets_root(m->up, v);
    return m->is_end[user] && node_at(m, user)->phase != AP_UPDATE;
}

static void look_at_score(struct marker *m, int v)
{
    const struct ap_graph *g = m->g;
    const struct ap_node *n = node_at(m, v);
    const int root = ap_sets_root(m->up, v);
    struct set *s = &m->set[root];

    s->n_scores++;
    s->exponential |= n->op == AP_OP_EXPONENTIAL;
    s->makes[m->gradient[v]] |= n->op == AP_OP_DOT;
    m->refused[root] |= m->is_result[v];
    for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++) {
        int user = g->users[u];
        m->refused[root] |= !may_read(m, user, v);
        s->ends[m->gradient[user]] |= m->is_end[user];
    }
}

/* What reads scores of two sets, or twice, ends neither. */
static void look_at_end(struct marker *m, int v)
{
    const struct ap_node *n = node_at(m, v);
    bool both = m->kind[n->in[0]] == SCORE && m->kind[n->in[1]] == SCORE;
    for (int k = 0; k < 2 && both; k++)
        m->refused[ap_sets_root(m->up, n->in[k])] = true;
}

static void find_sets(struct marker *m)
{
    const struct ap_graph *g = m->g;

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = node_at(m, v);
        if (m->kind[v] == SCORE)
            look_at_score(m, v);
        if (m->kind[v] == ROW && n->op == AP_OP_REDUCE)
            m->set[ap_sets_root(m->up, v)].sum |=
                g->reducers[n->attrs->to_apply].red == AP_RED_SUM;
        if (m->is_end[v])
            look_at_end(m, v);
    }
}

static bool is_softmax(const struct set *s)
{
    return s->exponential && s->sum && s->makes[0] && s->ends[0];
}

static bool is_attention(const struct marker *m, int root)
{
    return is_softmax(&m->set[root]) && !m->refused[root] &&
           m->set[root].n_scores <= MAX_SCORES;
}

/* The region of a node as it stands: 2 * set + (1: backward), -1: none. */
static int region_of(const struct marker *m, int v)
{
    if (!is_in_set(m, v) || !is_attention(m, set_of(m, v)))
        return -1;
    return 2 * set_of(m, v) + m->gradient[v];
}

/* ---- the new nodes ---- */

static int put(struct marker *m, const struct ap_node *n, int region)
{
    AP_ROOM(m->node, m->n, m->cap);
    AP_ROOM_FOR(m->region, m->n, m->cap_region, 1);
    m->node[m->n] = *n;
    m->region[m->n] = region;
    return m->n++;
}

/* What a group makes for itself of the operand of a member: scores of the forward pass
 * in the backward one, and what takes no more than itself to make. */
static bool is_copied(const struct marker *m, int region, int in, int reader)
{
    const struct ap_node *n = node_at(m, in);
    if (m->kind[in] == SCORE && region_of(m, in) >= 0)
        return region_of(m, in) != region && region_of(m, in) / 2 == region / 2;
    if (m->kind[in] != OTHER || node_at(m, reader)->op == AP_OP_DOT)
        return false;
    return m->leaf[in] > 0 || (n->op == AP_OP_BROADCAST &&
                               keeps_dims(node_at(m, reader)) && has_dims(m, in, reader));
}

static int copy_into(struct marker *m, int region, enum ap_phase phase, int v);

/* The operands of a new node of the region; old: the node that it comes from. */
static const int *read_in(struct marker *m, int region, enum ap_phase phase, int old)
{
    const struct ap_node *n = node_at(m, old);
    int *in = AP_NEW_N(m->arena, n->n_in + 1, int);
    for (int k = 0; k < n->n_in; k++)
        in[k] = is_copied(m, region, n->in[k], old)
                    ? copy_into(m, region, phase, n->in[k])
                    : n->in[k];
    return in;
}

/* As deep as a chain of scores is long: a score's operands stand before it. */
static int copy_into(struct marker *m, int region, enum ap_phase phase, int v)
{
    if (m->copy[v] >= 0)
        return m->copy[v];
    struct ap_node n = *node_at(m, v);
    n.in = read_in(m, region, phase, v);
    n.name = ap_arena_printf(m->arena, "%s.attention%d", n.name, m->n);
    n.phase = phase;
    if (n.op == AP_OP_DOT) {
        struct ap_attrs *attrs = ap_arena_dup(m->arena, n.attrs, sizeof *attrs);
        attrs->recomputed = true;
        n.attrs = attrs;
    }
    m->n_copies += m->kind[v] == SCORE;
    m->touched[m->n_touched++] = v;
    return m->copy[v] = put(m, &n, region);
}

/* Members of regions, [region]: lists of nodes. */
static void copy_operands(struct marker *m)
{
    const struct ap_graph *g = m->g;
    int *head = AP_NEW_N(m->arena, 2 * g->n_nodes, int);
    int *next = AP_NEW_N(m->arena, g->n_nodes, int);

    memset(head, -1, sizeof *head * 2 * (size_t)g->n_nodes);
    for (int v = g->n_nodes - 1; v >= 0; v--) {
        int region = m->region[v];
        if (region < 0)
            continue;
        next[v] = head[region];
        head[region] = v;
    }
    for (int r = 0; r < 2 * g->n_nodes; r++) {
        for (int v = head[r]; v >= 0; v = next[v]) {
            const int *in = read_in(m, r, node_at(m, v)->phase, v);
            m->node[v].in = in; /* read_in may have moved m->node */
        }
        while (m->n_touched > 0)
            m->copy[m->touched[--m->n_touched]] = -1;
    }
}

/* ---- order ---- */

/* A unit of order: a region, or a node of none; by the first of its nodes. */
struct ready {
    int key, unit;
};

static bool comes_first(const void *pa, const void *pb)
{
    const struct ready *a = pa, *b = pb;
    return a->key != b->key ? a->key < b->key : a->unit < b->unit;
}

struct ordering {
    const struct marker *m;
    bool *alive;         /* [new node]: read by somebody, or there for good */
    int *unit, n_units;  /* [new node], -1: not alive */
    struct ap_csr nodes; /* of each unit, its first contraction in front */
    struct ap_csr users; /* units that read of each unit, once per operand */
    int *waits;          /* [unit]: operands of others that are still to come */
    int *order, n_order;
};

/* Copies took the place of nodes that nobody else reads: those go. */
static void find_alive(struct ordering *o)
{
    const struct marker *m = o->m;
    const struct ap_graph *g = m->g;

    o->alive = AP_NEW_N(m->arena, m->n, bool);
    for (int v = 0; v < m->n; v++)
        o->alive[v] = v >= g->n_nodes || m->is_result[v] ||
                      g->user_start[v] == g->user_start[v + 1] ||
                      node_at(m, v)->op == AP_OP_PARAMETER;
    for (int v = m->n - 1; v >= 0; v--) /* originals in order, copies are alive */
        for (int k = 0; o->alive[v] && k < m->node[v].n_in; k++)
            o->alive[m->node[v].in[k]] = true;
}

static void list_units(struct ordering *o)
{
    const struct marker *m = o->m;
    int *of_region = AP_NEW_N(m->arena, 2 * m->g->n_nodes, int);
    int *nodes = AP_NEW_N(m->arena, m->n, int), *row = AP_NEW_N(m->arena, m->n, int);
    int n = 0;

    memset(of_region, -1, sizeof *of_region * 2 * (size_t)m->g->n_nodes);
    o->unit = AP_NEW_N(m->arena, m->n, int);
    for (int v = 0; v < m->n; v++) {
        int region = m->region[v];
        o->unit[v] = -1;
        if (!o->alive[v])
            continue;
        if (region < 0)
            o->unit[v] = o->n_units++;
        else if (of_region[region] < 0)
            o->unit[v] = of_region[region] = o->n_units++;
        else
            o->unit[v] = of_region[region];
    }
    /* copies are in order and read no other member; then those that were there */
    for (int pass = 0; pass < 2; pass++)
        for (int v = pass ? 0 : m->g->n_nodes; v < (pass ? m->g->n_nodes : m->n); v++)
            if (o->alive[v]) {
                row[n] = o->unit[v];
                nodes[n++] = v;
            }
    o->nodes = ap_csr_new(m->arena, o->n_units, n, row, nodes);
    for (int u = 0; u < o->n_units; u++) {
        int *list = &o->nodes.item[o->nodes.start[u]], first = 0;
        while (first < ap_csr_count(&o->nodes, u) && m->node[list[first]].op != AP_OP_DOT)
            first++;
        if (first == ap_csr_count(&o->nodes, u))
            continue;
        int dot = list[first];
        memmove(&list[1], &list[0], (size_t)first * sizeof *list);
        list[0] = dot;
    }
}

static void list_users(struct ordering *o)
{
    const struct marker *m = o->m;
    int n = 0, n_in = 0;

    for (int v = 0; v < m->n; v++)
        n_in += m->node[v].n_in;
    int *row = AP_NEW_N(m->arena, n_in + 1, int),
        *user = AP_NEW_N(m->arena, n_in + 1, int);
    o->waits = AP_NEW_N(m->arena, o->n_units, int);
    for (int v = 0; v < m->n; v++)
        for (int k = 0; o->alive[v] && k < m->node[v].n_in; k++) {
            int from = o->unit[m->node[v].in[k]];
            if (from == o->unit[v])
                continue;
            row[n] = from;
            user[n++] = o->unit[v];
            o->waits[o->unit[v]]++;
        }
    o->users = ap_csr_new(m->arena, o->n_units, n, row, user);
}

/* A unit's place among the nodes as they were: that of the first of its originals. */
static struct ready ready_of(const struct ordering *o, int unit)
{
    const struct marker *m = o->m;
    int key = m->g->n_nodes;
    for (int i = o->nodes.start[unit]; i < o->nodes.start[unit + 1]; i++)
        if (o->nodes.item[i] < key)
            key = o->nodes.item[i];
    return (struct ready){key, unit};
}

/* Fills order; true when all units found a place. */
static bool put_in_order(struct ordering *o)
{
    struct ap_heap heap = {.size = sizeof(struct ready), .before = comes_first};
    struct ready next;
    int n_done = 0;

    o->order = AP_NEW_N(o->m->arena, o->m->n, int);
    for (int u = 0; u < o->n_units; u++)
        if (o->waits[u] == 0) {
            next = ready_of(o, u);
            ap_heap_push(&heap, &next);
        }
    while (ap_heap_pop(&heap, &next)) {
        n_done++;
        for (int i = o->nodes.start[next.unit]; i < o->nodes.start[next.unit + 1]; i++)
            o->order[o->n_order++] = o->nodes.item[i];
        for (int i = o->users.start[next.unit]; i < o->users.start[next.unit + 1]; i++) {
            int user = o->users.item[i];
            if (--o->waits[user] > 0)
                continue;
            const struct ready more = ready_of(o, user);
            ap_heap_push(&heap, &more);
        }
    }
    ap_heap_free(&heap);
    return n_done == o->n_units;
}

/* ---- the whole ---- */

/* Refuses the first set that waits; all: every one. A set waits where one of its regions
 * needs what is computed from the region's own results. */
static void refuse_waiting(struct marker *m, const struct ordering *o, bool all)
{
    for (int v = 0; v < m->g->n_nodes; v++)
        if (m->region[v] >= 0 && o->waits[o->unit[v]] > 0) {
            m->refused[m->region[v] / 2] = true;
            if (!all)
                return;
        }
}

static void make_nodes(struct marker *m)
{
    m->n = m->n_copies = 0;
    for (int v = 0; v < m->g->n_nodes; v++)
        put(m, node_at(m, v), region_of(m, v));
    copy_operands(m);
}

/* A node as it stands in the new graph. */
static struct ap_node renumbered(const struct marker *m, int v, const int *id,
                                 enum ap_attention attention)
{
    struct ap_node n = m->node[v];
    int *in = AP_NEW_N(m->arena, n.n_in + 1, int);

    for (int k = 0; k < n.n_in; k++)
        in[k] = id[n.in[k]];
    n.in = in;
    n.group = -1;
    if (attention != (enum ap_attention)n.attrs->attention) {
        struct ap_attrs *attrs = ap_arena_dup(m->arena, n.attrs, sizeof *attrs);
        attrs->attention = attention;
        n.attrs = attrs;
    }
    return n;
}

static int write_graph(const struct marker *m, const struct ordering *o,
                       struct ap_graph *out, struct fuse_attention_count *count,
                       struct ap_err *err)
{
    const struct ap_graph *g = m->g;
    int *id = AP_NEW_N(m->arena, m->n, int), last = -1;

    for (int i = 0; i < o->n_order; i++)
        id[o->order[i]] = i;
    struct ap_node *nodes = AP_NEW_N(m->arena, o->n_order, struct ap_node);
    for (int i = 0; i < o->n_order; i++) {
        int region = m->region[o->order[i]];
        enum ap_attention is = region < 0       ? AP_ATTENTION_NONE
                               : region == last ? AP_ATTENTION_NEXT
                                                : AP_ATTENTION_FIRST;
        nodes[i] = renumbered(m, o->order[i], id, is);
        count->forward += is == AP_ATTENTION_FIRST && !(region & 1);
        count->backward += is == AP_ATTENTION_FIRST && (region & 1);
        last = region;
    }
    count->copies = m->n_copies;
    for (int v = 0; v < g->n_nodes; v++)
        if (m->kind[v] == SCORE && ap_sets_root(m->up, v) == v)
            count->plain += is_softmax(&m->set[v]) && !is_attention(m, v);
    *out = *g;
    out->n_groups = 0;
    if (ap_graph_replace(m->arena, out, nodes, o->n_order, id, err))
        return -1;
    fuse_attention_describe(m->arena, out);
    return 0;
}

/* Whether the graph has marks, and how many. */
static bool is_marked(const struct ap_graph *g, struct fuse_attention_count *count)
{
    bool any = false;

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        any |= n->attrs->attention != AP_ATTENTION_NONE;
        if (n->attrs->attention != AP_ATTENTION_FIRST)
            continue;
        count->forward += n->phase == AP_FORWARD;
        count->backward += n->phase != AP_FORWARD;
    }
    return any;
}

int fuse_attention_mark(struct ap_arena *arena, const struct ap_graph *g,
                        struct ap_graph *out, struct fuse_attention_count *count,
                        struct ap_err *err)
{
    const int rounds = 16;
    struct marker m = {.arena = arena,
                       .g = g,
                       .kind = AP_NEW_N(arena, g->n_nodes, uint8_t),
                       .leaf = AP_NEW_N(arena, g->n_nodes, uint8_t),
                       .is_end = AP_NEW_N(arena, g->n_nodes, bool),
                       .is_result = AP_NEW_N(arena, g->n_nodes, bool),
                       .gradient = AP_NEW_N(arena, g->n_nodes, bool),
                       .up = ap_sets_new(arena, g->n_nodes),
                       .set = AP_NEW_N(arena, g->n_nodes, struct set),
                       .refused = AP_NEW_N(arena, g->n_nodes, bool),
                       .copy = AP_NEW_N(arena, g->n_nodes, int),
                       .touched = AP_NEW_N(arena, g->n_nodes, int)};
    struct ordering o;

    *count = (struct fuse_attention_count){0};
    if (is_marked(g, count)) {
        *out = *g;
        return 0;
    }
    memset(m.copy, -1, sizeof *m.copy * (size_t)g->n_nodes);
    for (int r = 0; r < g->n_results; r++)
        m.is_result[g->results[r].node] = true;
    find_kinds(&m);
    find_sides(&m);
    find_sets(&m);
    for (int round = 0;; round++) {
        make_nodes(&m);
        o = (struct ordering){.m = &m};
        find_alive(&o);
        list_units(&o);
        list_users(&o);
        if (put_in_order(&o))
            break;
        refuse_waiting(&m, &o, round >= rounds);
    }
    int status = write_graph(&m, &o, out, count, err);
    free(m.node);
    free(m.region);
    return status;
}
