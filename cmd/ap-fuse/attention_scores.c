/*
 * Where queries and keys are in the scores of an attention, and which pairs its mask lets
 * through.
 *
 * Problem: a causal mask hides half of the scores, and a window most of them; kernels
 * skip blocks that are hidden whole (Dao et al., "FlashAttention", section 3.3), so that
 * a price of all scores is up to twice the work. Idea: within a group, a reduction of
 * scores removes the dimension of the keys; elementwise operators and transposes carry it
 * to all scores. A mask is a select between scores and a number that no exponential
 * survives, or such numbers added; its predicate is made of comparisons of a i + b j + c
 * with 0, over iotas i along queries and j along keys, which say how far before (back)
 * and after (ahead) its query a key may lie. A constant is looked at element by element.
 * Pairs without a proof count as visible. Linear in the nodes of attentions, and in the
 * elements of constants.
 */
#include "attention.h"

#include <math.h>
#include <string.h>

#include "graph/element.h"

#define HIDDEN    (-1e4) /* what is added to, or stands for, a hidden score, at most */
#define MAX_DEPTH 32     /* of a mask's operators */
#define SWEEPS    4      /* there and back, of the dimensions that are carried */

/* Pairs that may be seen: ahead >= key - query >= -back; INT64_MAX: no bound. */
struct band {
    int64_t back, ahead;
};

static const struct band all_pairs = {INT64_MAX, INT64_MAX};

/* The nodes [first, end) of one group. */
struct stretch {
    struct ap_arena *arena;
    struct ap_graph *g;
    int first, end;
    int *key, *query; /* [node - first]: dimension of scores, -1 */
};

/* Dimensions of a node that stand for queries and keys, -1: it has none. */
struct place {
    int query, key;
};

static const struct ap_node *node_at(const struct stretch *s, int v)
{
    return &s->g->nodes[v];
}

/* ---- numbers ---- */

/* One element of a literal as a number; false: it is complex, or not there. */
static bool element(const struct ap_node *n, int64_t i, double *value)
{
    const struct ap_literal *l = &n->attrs->literal;
    const enum ap_dtype type = n->shape.dtype;
    const char *at = l->data;

    if (l->elided || !at || type == AP_TUPLE || type == AP_C64 || type == AP_C128)
        return false;
    at += l->splat ? 0 : i * ap_dtype_size(type);
    *value = ap_dtype_is_float(type) ? ap_elem_to_double(type, at)
                                     : (double)ap_elem_to_int(type, at);
    return true;
}

static bool keeps_value(const struct ap_node *n)
{
    return n->op == AP_OP_BROADCAST || n->op == AP_OP_CONVERT || n->op == AP_OP_COPY ||
           n->op == AP_OP_RESHAPE;
}

/* The number that a node is everywhere. */
static bool is_number(const struct stretch *s, int v, double *value)
{
    const struct ap_node *n = node_at(s, v);
    for (int hop = 0; hop < MAX_DEPTH && keeps_value(n); hop++)
        n = node_at(s, n->in[0]);
    return n->op == AP_OP_CONSTANT && n->attrs->literal.splat && element(n, 0, value);
}

/* Where `in` has dimension d of `of`, when they differ in dimensions of size 1 only. */
static int dim_in(const struct ap_shape *in, const struct ap_shape *of, int d)
{
    int found = -1;

    for (int i = 0, k = 0;; i++, k++) {
        while (i < in->rank && in->dims[i] == 1)
            i++;
        while (k < of->rank && of->dims[k] == 1)
            k++;
        if (i == in->rank || k == of->rank)
            return i == in->rank && k == of->rank ? found : -1;
        if (in->dims[i] != of->dims[k])
            return -1;
        found = k == d ? i : found;
    }
}

/* Where the operand of node n has what n has at p. */
static struct place place_in(const struct stretch *s, const struct ap_node *n,
                             struct place p)
{
    struct place in = {-1, -1};

    if (n->op == AP_OP_RESHAPE) {
        const struct ap_shape *shape = &node_at(s, n->in[0])->shape;
        return (struct place){dim_in(shape, &n->shape, p.query),
                              dim_in(shape, &n->shape, p.key)};
    }
    if (n->op != AP_OP_BROADCAST)
        return p;
    for (int d = 0; d < n->attrs->dimensions.n; d++) {
        in.query = n->attrs->dimensions.v[d] == p.query ? d : in.query;
        in.key = n->attrs->dimensions.v[d] == p.key ? d : in.key;
    }
    return in;
}

/* ---- predicates ---- */

/* query * q + key * k + more; known: it is nothing else. */
struct line {
    bool known;
    double query, key, more;
};

static struct line line_of(const struct stretch *s, int v, struct place p, int depth)
{
    const struct ap_node *n = node_at(s, v);
    struct line l = {0}, a, b;

    if (depth == MAX_DEPTH)
        return l;
    if (is_number(s, v, &l.more)) {
        l.known = true;
    } else if (n->op == AP_OP_IOTA) {
        l.known =
            n->attrs->iota_dimension == p.query || n->attrs->iota_dimension == p.key;
        l.query = n->attrs->iota_dimension == p.query;
        l.key = n->attrs->iota_dimension == p.key;
    } else if (keeps_value(n)) {
        return line_of(s, n->in[0], place_in(s, n, p), depth + 1);
    } else if (n->op == AP_OP_ADD || n->op == AP_OP_SUBTRACT) {
        const double sign = n->op == AP_OP_ADD ? 1 : -1;
        a = line_of(s, n->in[0], p, depth + 1);
        b = line_of(s, n->in[1], p, depth + 1);
        l = (struct line){a.known && b.known, a.query + sign * b.query,
                          a.key + sign * b.key, a.more + sign * b.more};
    }
    return l;
}

static int64_t bound(double x)
{
    return x < 0 ? -1 : x < 1e15 ? (int64_t)x : INT64_MAX;
}

/* What follows from a line that is at least 0. */
static struct band band_of_line(struct line l)
{
    struct band b = all_pairs;
    if (l.query == 1 && l.key == -1)
        b.ahead = bound(l.more);
    if (l.query == -1 && l.key == 1)
        b.back = bound(l.more);
    return b;
}

static struct band both(struct band a, struct band b)
{
    return (struct band){a.back < b.back ? a.back : b.back,
                         a.ahead < b.ahead ? a.ahead : b.ahead};
}

static struct band band_of_compare(const struct stretch *s, const struct ap_node *n,
                                   struct place p, bool is, int depth)
{
    enum ap_direction direction = n->attrs->direction;
    struct line a = line_of(s, n->in[0], p, depth + 1);
    struct line b = line_of(s, n->in[1], p, depth + 1);

    if (!a.known || !b.known)
        return all_pairs;
    if (!is)
        direction = direction == AP_GE   ? AP_LT
                    : direction == AP_LT ? AP_GE
                    : direction == AP_GT ? AP_LE
                    : direction == AP_LE ? AP_GT
                                         : AP_NE;
    if (direction == AP_NE || direction == AP_EQ)
        return all_pairs;
    struct line d = {true, a.query - b.query, a.key - b.key, a.more - b.more};
    if (direction == AP_LE || direction == AP_LT)
        d = (struct line){true, -d.query, -d.key, -d.more};
    if (direction == AP_GT || direction == AP_LT)
        d.more -= 1;
    return band_of_line(d);
}

/* The band of the elements of a constant that are, or, of numbers, that hide nothing. */
static struct band band_of_constant(const struct ap_node *n, struct place p, bool is)
{
    struct band b = {-1, -1};
    int64_t within[2] = {1, 1};

    if (n->attrs->literal.splat || p.query < 0 || p.key < 0)
        return all_pairs;
    for (int d = n->shape.rank - 1; d > p.query; d--)
        within[0] *= n->shape.dims[d];
    for (int d = n->shape.rank - 1; d > p.key; d--)
        within[1] *= n->shape.dims[d];
    for (int64_t i = 0; i < ap_shape_elems(&n->shape); i++) {
        const int64_t ahead =
            i / within[1] % n->shape.dims[p.key] - i / within[0] % n->shape.dims[p.query];
        double x;
        if (!element(n, i, &x))
            return all_pairs;
        if (n->shape.dtype == AP_PRED ? (x != 0) != is : x <= HIDDEN)
            continue;
        b.ahead = ahead > b.ahead ? ahead : b.ahead;
        b.back = -ahead > b.back ? -ahead : b.back;
    }
    return b;
}

/* The band where a predicate is, or is not. */
static struct band band_of_pred(const struct stretch *s, int v, struct place p, bool is,
                                int depth)
{
    const struct ap_node *n = node_at(s, v);
    double x;

    if (depth == MAX_DEPTH || n->shape.dtype != AP_PRED)
        return all_pairs;
    if (n->op == AP_OP_CONSTANT)
        return band_of_constant(n, p, is);
    if (n->op == AP_OP_COMPARE)
        return band_of_compare(s, n, p, is, depth);
    if (n->op == AP_OP_NOT)
        return band_of_pred(s, n->in[0], p, !is, depth + 1);
    if (keeps_value(n))
        return band_of_pred(s, n->in[0], place_in(s, n, p), is, depth + 1);
    if (n->op == AP_OP_SELECT && is_number(s, n->in[2], &x) && (x != 0) != is)
        return both(band_of_pred(s, n->in[0], p, true, depth + 1),
                    band_of_pred(s, n->in[1], p, is, depth + 1));
    if (n->op == AP_OP_SELECT && is_number(s, n->in[1], &x) && (x != 0) != is)
        return both(band_of_pred(s, n->in[0], p, false, depth + 1),
                    band_of_pred(s, n->in[2], p, is, depth + 1));
    if (n->op == (is ? AP_OP_AND : AP_OP_OR))
        return both(band_of_pred(s, n->in[0], p, is, depth + 1),
                    band_of_pred(s, n->in[1], p, is, depth + 1));
    return all_pairs;
}

/* ---- masks ---- */

static bool hides(const struct stretch *s, int v)
{
    double x;
    return is_number(s, v, &x) && x <= HIDDEN;
}

/* The band where a select does not hide. */
static struct band band_of_select(const struct stretch *s, const struct ap_node *n,
                                  struct place p, int depth)
{
    if (hides(s, n->in[2]))
        return band_of_pred(s, n->in[0], p, true, depth + 1);
    if (hides(s, n->in[1]))
        return band_of_pred(s, n->in[0], p, false, depth + 1);
    return all_pairs;
}

/* The band where a number that is added to scores does not hide. */
static struct band band_of_bias(const struct stretch *s, int v, struct place p)
{
    for (int depth = 0; depth < MAX_DEPTH; depth++) {
        const struct ap_node *n = node_at(s, v);
        if (n->op == AP_OP_SELECT)
            return band_of_select(s, n, p, depth);
        if (n->op == AP_OP_CONSTANT)
            return band_of_constant(n, p, true);
        if (!keeps_value(n))
            break;
        p = place_in(s, n, p);
        v = n->in[0];
    }
    return all_pairs;
}

/* The band that node n of the scores leaves, with its queries in dimension `query`. */
static struct band band_at(const struct stretch *s, int v, int query)
{
    const struct ap_node *n = node_at(s, v);
    const struct place p = {query, s->key[v - s->first]};

    if (n->op == AP_OP_SELECT)
        return band_of_select(s, n, p, 0);
    if (n->op == AP_OP_ADD)
        return both(band_of_bias(s, n->in[0], p), band_of_bias(s, n->in[1], p));
    return all_pairs;
}

/* A band by which every query sees a key: what is hidden has no weight then. */
static bool is_mask(struct band b)
{
    return b.ahead >= 0 && b.back >= 0 && (b.ahead < INT64_MAX || b.back < INT64_MAX);
}

/* ---- dimensions ---- */

static bool is_inside(const struct stretch *s, int v)
{
    return v >= s->first && v < s->end;
}

/* Gives a dimension from node v to its operand, or the other way. */
static void give(const struct stretch *s, int *dim, int v, int in, bool up)
{
    const struct ap_node *n = node_at(s, v);
    int *from = &dim[up ? v - s->first : in - s->first];
    int *to = &dim[up ? in - s->first : v - s->first];

    if (*from < 0 || *to >= 0)
        return;
    if (n->op != AP_OP_TRANSPOSE) {
        *to = *from;
        return;
    }
    for (int d = 0; d < n->attrs->dimensions.n; d++)
        if (up && d == *from)
            *to = n->attrs->dimensions.v[d];
        else if (!up && n->attrs->dimensions.v[d] == *from)
            *to = d;
}

static void give_all(const struct stretch *s, int *dim, int v, bool up)
{
    const struct ap_node *n = node_at(s, v);
    const bool same = ap_ops[n->op].class == AP_CLASS_ELEMENTWISE;

    for (int k = 0; k < n->n_in; k++)
        if (is_inside(s, n->in[k]) && (same || n->op == AP_OP_TRANSPOSE) &&
            n->shape.rank == node_at(s, n->in[k])->shape.rank)
            give(s, dim, v, n->in[k], up);
}

/* Carries a dimension along to all scores. */
static void carry(const struct stretch *s, int *dim)
{
    for (int i = 0; i < SWEEPS; i++) {
        for (int v = s->end - 1; v >= s->first; v--)
            give_all(s, dim, v, true);
        for (int v = s->first; v < s->end; v++)
            give_all(s, dim, v, false);
    }
}

/* By what is subtracted from scores: a number per row, which a forward pass left. */
static void find_key_of_rows(const struct stretch *s, int v)
{
    const struct ap_node *n = node_at(s, v);

    if (n->op != AP_OP_SUBTRACT || !is_inside(s, v) || !is_inside(s, n->in[1]))
        return;
    const struct ap_node *row = node_at(s, n->in[1]);
    if (row->op != AP_OP_BROADCAST || row->attrs->dimensions.n != n->shape.rank - 1)
        return;
    for (int d = 0; d < n->shape.rank; d++) {
        bool has = false;
        for (int k = 0; k < row->attrs->dimensions.n; k++)
            has |= row->attrs->dimensions.v[k] == d;
        if (!has)
            s->key[v - s->first] = d;
    }
}

/* By reductions whose rows scores read again: others sum over what scores share. */
static void find_keys(const struct stretch *s)
{
    bool *spread = AP_NEW_N(s->arena, s->end - s->first, bool); /* becomes scores again */

    for (int v = s->end - 1; v >= s->first; v--) {
        const struct ap_node *n = node_at(s, v);
        const bool row =
            spread[v - s->first] &&
            (ap_ops[n->op].class == AP_CLASS_ELEMENTWISE || n->op == AP_OP_RESHAPE);
        for (int k = 0; k < n->n_in; k++)
            if (is_inside(s, n->in[k]) && (row || n->op == AP_OP_BROADCAST))
                spread[n->in[k] - s->first] = true;
    }
    for (int v = s->first; v < s->end; v++) {
        const struct ap_node *n = node_at(s, v);
        if (n->op == AP_OP_REDUCE && spread[v - s->first] && is_inside(s, n->in[0]) &&
            n->attrs->dimensions.n == 1)
            s->key[n->in[0] - s->first] = n->attrs->dimensions.v[0];
        if (n->op == AP_OP_EXPONENTIAL)
            find_key_of_rows(s, n->in[0]);
    }
    carry(s, s->key);
}

/* Without a mask: the longest dimension of the operand that does not have the keys. */
static void guess_queries(const struct stretch *s)
{
    for (int v = s->first; v < s->end; v++) {
        const struct ap_node *n = node_at(s, v);
        const int key = s->key[v - s->first];
        if (n->op != AP_OP_DOT || key < 0)
            continue;
        const struct ap_attrs *a = n->attrs;
        const int batch = a->lhs_batch_dims.n,
                  rhs = node_at(s, n->in[0])->shape.rank - a->lhs_contracting_dims.n;
        const int from = key < rhs ? rhs : batch, to = key < rhs ? n->shape.rank : rhs;
        int best = -1;
        for (int d = from; d < to; d++)
            if (best < 0 || n->shape.dims[d] > n->shape.dims[best])
                best = d;
        s->query[v - s->first] = best;
    }
}

/* ---- masks' place ---- */

/* Marks the queries of the first mask. */
static bool find_first_mask(const struct stretch *s)
{
    for (int v = s->first; v < s->end; v++)
        for (int d = 0; s->key[v - s->first] >= 0 && d < node_at(s, v)->shape.rank; d++)
            if (d != s->key[v - s->first] && is_mask(band_at(s, v, d))) {
                s->query[v - s->first] = d;
                return true;
            }
    return false;
}

/* What all masks leave. */
static struct band find_band(const struct stretch *s)
{
    struct band mask = all_pairs;

    for (int v = s->first; v < s->end; v++)
        if (s->key[v - s->first] >= 0 && s->query[v - s->first] >= 0) {
            const struct band b = band_at(s, v, s->query[v - s->first]);
            if (is_mask(b))
                mask = both(mask, b);
        }
    return mask;
}

/* ---- attributes ---- */

/* The scores that a contraction makes (0) or reads (1, 2: by operand), -1: none. */
static int scores_of(const struct stretch *s, int v, int *node)
{
    const struct ap_node *n = node_at(s, v);

    *node = v;
    if (s->key[v - s->first] >= 0 && s->query[v - s->first] >= 0)
        return 0;
    for (int k = 0; k < 2; k++) {
        *node = n->in[k];
        if (is_inside(s, *node) && s->key[*node - s->first] >= 0 &&
            s->query[*node - s->first] >= 0)
            return 1 + k;
    }
    return -1;
}

static void describe(const struct stretch *s, bool masked)
{
    const struct band mask = masked ? find_band(s) : all_pairs;

    for (int v = s->first; v < s->end; v++) {
        struct ap_node *n = &s->g->nodes[v];
        int of, at = n->op == AP_OP_DOT ? scores_of(s, v, &of) : -1;
        if (at < 0)
            continue;
        const struct ap_shape *shape = &node_at(s, of)->shape;
        const int query = s->query[of - s->first], key = s->key[of - s->first];
        const int64_t back = shape->dims[query] - 1, ahead = shape->dims[key] - 1;
        const int64_t text[5] = {at, query, key, mask.back < back ? mask.back : back,
                                 mask.ahead < ahead ? mask.ahead : ahead};
        struct ap_attrs *attrs = ap_arena_dup(s->arena, n->attrs, sizeof *attrs);
        attrs->scores.n = masked ? 5 : 3;
        attrs->scores.v = ap_arena_dup(s->arena, text, sizeof text);
        n->attrs = attrs;
    }
}

static void look_at(struct stretch *s)
{
    const size_t n = (size_t)(s->end - s->first);

    s->key = AP_NEW_N(s->arena, n, int);
    s->query = AP_NEW_N(s->arena, n, int);
    memset(s->key, -1, n * sizeof *s->key);
    memset(s->query, -1, n * sizeof *s->query);
    find_keys(s);
    bool masked = find_first_mask(s);
    if (!masked)
        guess_queries(s);
    carry(s, s->query);
    describe(s, masked);
}

void fuse_attention_describe(struct ap_arena *arena, struct ap_graph *g)
{
    for (int v = 0; v < g->n_nodes;) {
        struct stretch s = {.arena = arena, .g = g, .first = v, .end = v + 1};
        while (g->nodes[v].attrs->attention && s.end < g->n_nodes &&
               g->nodes[s.end].attrs->attention == AP_ATTENTION_NEXT)
            s.end++;
        if (g->nodes[v].attrs->attention)
            look_at(&s);
        v = s.end;
    }
}

/* The size of dimension i of the attribute, of the scores of a contraction. */
static int64_t size_of(const struct ap_graph *g, const struct ap_node *n, int i)
{
    const struct ap_ints *s = &n->attrs->scores;
    const struct ap_shape *of = s->v[0] ? &g->nodes[n->in[s->v[0] - 1]].shape : &n->shape;
    return of->dims[s->v[i]];
}

int fuse_attention_stripe(struct ap_arena *arena, struct ap_graph *g, int64_t stripes)
{
    int n_groups = 0;
    bool first = false;

    for (int v = 0; v < g->n_nodes; v++) {
        struct ap_node *n = &g->nodes[v];
        const struct ap_ints *s = &n->attrs->scores;
        first |= n->attrs->attention == AP_ATTENTION_FIRST;
        if (s->n != 5 || s->v[4] >= size_of(g, n, 2) - 1 || size_of(g, n, 1) % stripes ||
            size_of(g, n, 2) % stripes)
            continue;
        const int64_t text[6] = {s->v[0], s->v[1], s->v[2], s->v[3], s->v[4], stripes};
        struct ap_attrs *attrs = ap_arena_dup(arena, n->attrs, sizeof *attrs);
        attrs->scores = (struct ap_ints){6, ap_arena_dup(arena, text, sizeof text)};
        n->attrs = attrs;
        n_groups += first;
        first = false;
    }
    return n_groups;
}
