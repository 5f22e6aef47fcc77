/*
 * Whether a group computes softmax(scale s + mask), or the gradients of it.
 *
 * Problem: softmax and its gradients are written in many ways (the largest score of a row
 * rounded down or not, division before or after a sum, masks by select or by addition, of
 * comparisons of iotas or of constants), and a kernel may take the place of none that it
 * does not equal. Idea: what stands between the contractions is elementwise, or a sum or
 * maximum over keys, so that an element of a score depends on its row alone. So the group
 * is evaluated where it can be compared: for a query, at some keys (the edges of the mask
 * among them), with pseudo-random numbers for the contractions' results, in double
 * precision, from the operators as they are; rows of the forward pass are evaluated from
 * its operators. The weights must be
 *
 *   p_k = exp(scale s_k) / sum_j exp(scale s_j)  over the keys that the mask leaves, else
 * 0 ds_k = scale p_k (dp_k - sum_j p_j dp_j)
 *
 * Equal at random points means equal, but for masks: those of comparisons change at
 * edges, which are among the keys; with a constant that has several elements, every query
 * and key is looked at. Cost: queries looked at x keys x operators of the group.
 */
#include "program/attention_form.h"

#include <math.h>
#include <string.h>

#include "graph/element.h"

/* Queries, and keys beside the mask's edges, that are looked at; all pairs of a constant
 * mask up to MOST_PAIRS. */
#define MOST_QUERIES 192
#define RANDOM_KEYS  6
#define MOST_PAIRS   (1ll << 20)
#define MOST_DEPTH   96 /* operators one after the other */
#define MOST_SUMS    24
/* Relative to the largest weight; double rounding is below. */
#define TOLERANCE 1e-9

/* What a reduction is where it was last asked for. */
struct sum {
    int node;
    bool known;
    int64_t at[AP_MAX_RANK];
    double value;
};

struct probe {
    const struct ap_program *prog;
    const struct ap_graph *g;
    const struct ap_attention_form *a;
    int64_t n_keys, *key; /* places that sums run over */
    bool failed;          /* an operator that is not known here */
    /* The row that is looked at, its sum of p dp, and the logarithm of that of exp. */
    int64_t row[AP_MAX_RANK];
    double mean, stats;
    int n_sums;
    struct sum sum[MOST_SUMS];
};

static double value_at(struct probe *p, int node, const int64_t *at, int depth);

static double fail(struct probe *p)
{
    p->failed = true;
    return 0;
}

/* ---- contractions: the same for the same operands at the same place ---- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

static double product_at(const struct probe *p, int node, const int64_t *at)
{
    const struct ap_node *n = &p->g->nodes[node];
    uint64_t h = mix(mix(1, (uint64_t)n->in[0]), (uint64_t)n->in[1]);
    for (int d = 0; d < n->shape.rank; d++)
        h = mix(h, (uint64_t)at[d]);
    return (double)(mix(h, 7) >> 11) / (double)(1ll << 53) * 4 - 2;
}

/* ---- operators ---- */

static double constant_at(struct probe *p, const struct ap_node *n, const int64_t *at)
{
    const struct ap_literal *l = &n->attrs->literal;
    const enum ap_dtype type = n->shape.dtype;
    int64_t i = 0;
    if (!l->data || (n->attrs->global && !l->splat))
        return fail(p);
    for (int d = 0; d < n->shape.rank && !l->splat; d++)
        i = i * n->shape.dims[d] + at[d];
    const char *e = (const char *)l->data + i * ap_dtype_size(type);
    return ap_dtype_is_float(type) ? ap_elem_to_double(type, e)
                                   : (double)ap_elem_to_int(type, e);
}

static double iota_at(struct probe *p, const struct ap_node *n, const int64_t *at)
{
    const int d = (int)n->attrs->iota_dimension;
    for (int i = 0; i < p->prog->mesh.n_axes && n->attrs->global; i++)
        if (n->attrs->layout.axis[i].kind == AP_SPLIT &&
            n->attrs->layout.axis[i].dim == d) /* a rank's part of the whole */
            return fail(p);
    return (double)at[d];
}

/* Of the operands' values: whole numbers and truth values are exact in a double. */
static double elementwise(struct probe *p, const struct ap_node *n, const double *v)
{
    const enum ap_dtype type = p->g->nodes[n->in[n->n_in - 1]].shape.dtype;
    int64_t whole[3], as_whole;
    double y;

    if (n->op == AP_OP_CONVERT || n->op == AP_OP_REDUCE_PRECISION ||
        n->op == AP_OP_OPT_BARRIER)
        return n->shape.dtype == AP_PRED ? v[0] != 0 : v[0];
    if (ap_dtype_is_float(type))
        return ap_eval_float(n, v, &y) ? y : fail(p);
    for (int k = 0; k < n->n_in; k++) {
        if (!(fabs(v[k]) < 0x1p53))
            return fail(p);
        whole[k] = (int64_t)v[k];
    }
    return ap_eval_int(n, type, whole, &as_whole) ? (double)as_whole : fail(p);
}

/* ---- sums over keys ---- */

static double reduce(struct probe *p, const struct ap_node *n, const int64_t *at,
                     int depth)
{
    const enum ap_red red = p->g->reducers[n->attrs->to_apply].red;
    const int d = (int)n->attrs->dimensions.v[0];
    int64_t in[AP_MAX_RANK], zero[AP_MAX_RANK] = {0};
    double y;

    if (n->n_in != 2 || n->attrs->dimensions.n != 1 || d != p->a->key ||
        n->shape.rank != p->g->nodes[p->a->scores].shape.rank - 1 ||
        (red != AP_RED_SUM && red != AP_RED_MAX))
        return fail(p);
    y = value_at(p, n->in[1], zero, depth + 1);
    for (int i = 0; i < n->shape.rank; i++)
        in[i < d ? i : i + 1] = at[i];
    for (int64_t k = 0; k < p->n_keys && !p->failed; k++) {
        in[d] = p->key[k];
        const double v = value_at(p, n->in[0], in, depth + 1);
        y = red == AP_RED_SUM ? y + v : v > y ? v : y;
    }
    return y;
}

static double reduce_at(struct probe *p, int node, const int64_t *at, int depth)
{
    const struct ap_node *n = &p->g->nodes[node];
    struct sum *s = p->sum;
    while (s < p->sum + p->n_sums && s->node != node)
        s++;
    if (s == p->sum + MOST_SUMS)
        return fail(p);
    if (s == p->sum + p->n_sums) {
        *s = (struct sum){.node = node};
        p->n_sums++;
    }
    if (s->known && !memcmp(s->at, at, sizeof *at * (size_t)n->shape.rank))
        return s->value;
    const double y = reduce(p, n, at, depth);
    memcpy(s->at, at, sizeof *at * (size_t)n->shape.rank);
    s->known = true;
    s->value = y;
    return y;
}

/* ---- elements ---- */

static double reshape_at(struct probe *p, const struct ap_node *n, const int64_t *at,
                         int depth)
{
    const struct ap_shape *s = &p->g->nodes[n->in[0]].shape;
    int64_t i = 0, in[AP_MAX_RANK];
    for (int d = 0; d < n->shape.rank; d++)
        i = i * n->shape.dims[d] + at[d];
    for (int d = s->rank - 1; d >= 0; i /= s->dims[d--])
        in[d] = i % s->dims[d];
    return value_at(p, n->in[0], in, depth + 1);
}

/* The sum of dO o of a row, which is that of p dp if o is the attention's. */
static double total_at(struct probe *p, const int64_t *at)
{
    const size_t rank = (size_t)p->g->nodes[p->a->total].shape.rank;
    return memcmp(at, p->row, rank * sizeof *at) ? fail(p) : p->mean;
}

/* The element of a node at a place: of members of attentions, up to contractions. */
static double value_at(struct probe *p, int node, const int64_t *at, int depth)
{
    const struct ap_node *n = &p->g->nodes[node];
    int64_t in[AP_MAX_RANK];
    double v[3];

    if (p->failed || depth == MOST_DEPTH || n->shape.dtype == AP_TUPLE)
        return fail(p);
    if (node == p->a->total)
        return total_at(p, at);
    switch ((int)n->op) {
    case AP_OP_CONSTANT:
        return constant_at(p, n, at);
    case AP_OP_IOTA:
        return iota_at(p, n, at);
    case AP_OP_RESHAPE:
        return reshape_at(p, n, at, depth);
    case AP_OP_BROADCAST:
        for (int d = 0; d < n->attrs->dimensions.n; d++)
            in[d] = at[n->attrs->dimensions.v[d]];
        return value_at(p, n->in[0], in, depth + 1);
    }
    if (!n->attrs->attention)
        return fail(p);
    if (n->op == AP_OP_TRANSPOSE) {
        for (int d = 0; d < n->attrs->dimensions.n; d++)
            in[n->attrs->dimensions.v[d]] = at[d];
        return value_at(p, n->in[0], in, depth + 1);
    }
    if (n->op == AP_OP_DOT)
        return product_at(p, node, at);
    if (n->op == AP_OP_REDUCE)
        return reduce_at(p, node, at, depth);
    if (ap_ops[n->op].class != AP_CLASS_ELEMENTWISE || n->n_in > 3)
        return fail(p);
    for (int k = 0; k < n->n_in; k++)
        v[k] = value_at(p, n->in[k], at, depth + 1);
    return elementwise(p, n, v);
}

/* ---- what it should be ---- */

static bool is_seen(const struct ap_attention_form *a, int64_t query, int64_t key)
{
    return (a->ahead == INT64_MAX || key - query <= a->ahead) &&
           (a->back == INT64_MAX || query - key <= a->back);
}

/* Whether scores `node` are want[k] at the keys of the row `at`. */
static bool has_row(struct probe *p, int node, int64_t *at, const double *want)
{
    for (int64_t k = 0; k < p->n_keys; k++) {
        at[p->a->key] = p->key[k];
        const double v = value_at(p, node, at, 0);
        if (p->failed || !(fabs(v - want[k]) <= TOLERANCE))
            return false;
    }
    return true;
}

/* The scale, from two weights of a row; 0: they do not say. */
static double find_scale(struct probe *p, int node, int64_t *at)
{
    double s[2] = {0, 0}, w[2] = {0, 0};
    int n = 0;
    for (int64_t k = 0; k < p->n_keys && n < 2; k++) {
        if (!is_seen(p->a, at[p->a->query], p->key[k]))
            continue;
        at[p->a->key] = p->key[k];
        s[n] = product_at(p, p->a->scores, at);
        w[n++] = value_at(p, node, at, 0);
    }
    return n == 2 && w[0] > 0 && w[1] > 0 ? log(w[1] / w[0]) / (s[1] - s[0]) : 0;
}

/* The weights and, backward, the gradients of scores at the keys of the row `at`. */
static void expect(struct probe *p, int64_t *at, double scale, double *weight,
                   double *gradient)
{
    const struct ap_attention_form *a = p->a;
    double most = -INFINITY, sum = 0, mean = 0;
    for (int64_t k = 0; k < p->n_keys; k++) {
        at[a->key] = p->key[k];
        weight[k] = scale * product_at(p, a->scores, at);
        if (is_seen(a, at[a->query], p->key[k]) && weight[k] > most)
            most = weight[k];
    }
    for (int64_t k = 0; k < p->n_keys; k++) {
        weight[k] = is_seen(a, at[a->query], p->key[k]) ? exp(weight[k] - most) : 0;
        sum += weight[k];
    }
    for (int64_t k = 0; k < p->n_keys; k++) {
        weight[k] /= sum;
        at[a->key] = p->key[k];
        gradient[k] = a->backward ? product_at(p, a->products, at) : 0;
        mean += weight[k] * gradient[k];
    }
    for (int64_t k = 0; k < p->n_keys; k++)
        gradient[k] = scale * weight[k] * (gradient[k] - mean);
    p->mean = mean;
    p->stats = most + log(sum);
}

/* ---- rows that are looked at ---- */

static void add_key(struct probe *p, int64_t key, int64_t n)
{
    bool known = key < 0 || key >= n;
    for (int64_t k = 0; k < p->n_keys; k++)
        known |= p->key[k] == key;
    if (!known)
        p->key[p->n_keys++] = key;
}

/* The keys of a row: all, or the edges of what is seen and a few more. */
static void choose_keys(struct probe *p, int64_t query, int64_t n, bool all)
{
    const struct ap_attention_form *a = p->a;
    p->n_keys = 0;
    for (int64_t k = 0; k < n && all; k++)
        p->key[p->n_keys++] = k;
    if (all)
        return;
    for (int64_t i = 0; i < 2; i++) {
        if (a->ahead < INT64_MAX)
            add_key(p, query + a->ahead + i, n);
        if (a->back < INT64_MAX)
            add_key(p, query - a->back - i, n);
        add_key(p, query + i, n);
        add_key(p, i ? n - 1 : 0, n);
    }
    for (uint64_t i = 0; i < RANDOM_KEYS; i++)
        add_key(p, (int64_t)(mix(mix(3, (uint64_t)query), i) % (uint64_t)n), n);
    /* one that is seen, where any is */
    add_key(p, a->back < INT64_MAX && query - a->back > 0 ? query - a->back : 0, n);
}

/* Whether a constant with several elements is near the scores: the group's, or rows'. */
static bool has_table(const struct ap_graph *g, const struct ap_attention_form *a)
{
    for (int v = 0; v < a->end; v++) {
        const struct ap_node *n = &g->nodes[v];
        if (n->op == AP_OP_CONSTANT && n->attrs->attention && !n->attrs->literal.splat &&
            ap_shape_elems(&n->shape) > 1)
            return true;
    }
    return false;
}

/* What is passed on, or read, as statistics must be them; else there are none. */
static void check_stats(struct probe *p, struct ap_attention_form *a, const int64_t *at)
{
    int64_t place[AP_MAX_RANK];

    if (a->stats < 0)
        return;
    for (int d = 0; d < p->g->nodes[a->stats].shape.rank; d++)
        place[d] = at[a->stats_is[d] == AP_OF_QUERIES ? a->query : a->stats_is[d]];
    const double v = value_at(p, a->stats, place, 0);
    if (p->failed || !(fabs(v - p->stats) <= TOLERANCE))
        a->stats = -1;
    p->failed = false;
}

static bool look_at_row(struct probe *p, struct ap_attention_form *a, int64_t *at,
                        double *room)
{
    const int of = a->backward ? AP_ATTENTION_DV : AP_ATTENTION_O;
    double *weight = room, *gradient = room + p->n_keys;
    bool any = false;

    for (int64_t k = 0; k < p->n_keys; k++)
        any |= is_seen(a, at[a->query], p->key[k]);
    if (!any)
        return false;
    for (int d = 0, n = 0; d < p->g->nodes[a->scores].shape.rank; d++)
        if (d != a->key)
            p->row[n++] = at[d];
    expect(p, at, a->scale, weight, gradient);
    if (p->failed)
        return false;
    check_stats(p, a, at);
    return has_row(p, a->weights[of], at, weight) &&
           (!a->backward || (has_row(p, a->weights[AP_ATTENTION_DQ], at, gradient) &&
                             has_row(p, a->weights[AP_ATTENTION_DK], at, gradient)));
}

/* Row i of n that are looked at, and its keys. */
static void choose_row(struct probe *p, int64_t i, int64_t n, bool all, int64_t *at)
{
    const struct ap_shape *s = &p->g->nodes[p->a->scores].shape;
    const int64_t queries = s->dims[p->a->query];
    for (int d = 0; d < s->rank; d++)
        at[d] = (int64_t)(mix(mix(5, (uint64_t)i), (uint64_t)d) % (uint64_t)s->dims[d]);
    at[p->a->query] = n == queries || i == 0 ? i : i * (queries - 1) / (n - 1);
    choose_keys(p, at[p->a->query], s->dims[p->a->key], all);
    for (int k = 0; k < p->n_sums; k++)
        p->sum[k].known = false;
}

/* ---- pairs ---- */

bool ap_attention_same(const struct ap_graph *g, const struct ap_attention_form *forward,
                       const struct ap_attention_form *backward)
{
    static const int operands[] = {AP_ATTENTION_Q, AP_ATTENTION_K, AP_ATTENTION_V};

    for (int i = 0; i < 3; i++) {
        const struct ap_attention_tensor *a = &forward->of[operands[i]],
                                         *b = &backward->of[operands[i]];
        if (a->node != b->node || memcmp(a->is, b->is, sizeof a->is) != 0)
            return false;
    }
    return !forward->backward && backward->backward &&
           forward->query == backward->query && forward->key == backward->key &&
           forward->back == backward->back && forward->ahead == backward->ahead &&
           ap_shape_same_dims(&g->nodes[forward->scores].shape,
                              &g->nodes[backward->scores].shape) &&
           fabs(forward->scale - backward->scale) <= TOLERANCE * fabs(forward->scale);
}

/* The group whose result, or a transpose of it, a node is. */
static int group_of(const struct ap_graph *g, int node)
{
    if (g->nodes[node].op == AP_OP_TRANSPOSE)
        node = g->nodes[node].in[0];
    const int group = g->nodes[node].group;
    while (node > 0 && g->nodes[node - 1].group == group)
        node--;
    return node;
}

/* Whether a backward group that sums dO o is handed the statistics and the o of an
 * attention that is the same. */
static bool is_handed(struct ap_arena *arena, const struct ap_program *prog,
                      const struct ap_attention_form *backward)
{
    const struct ap_graph *g = &prog->local;
    const struct ap_attention_tensor *o = &backward->of[AP_ATTENTION_O];
    struct ap_attention_form f;

    if (backward->stats < 0 || !ap_attention_form_of(g, group_of(g, o->node), &f) ||
        !ap_attention_probe(arena, prog, &f) || !ap_attention_same(g, &f, backward))
        return false;
    const struct ap_attention_tensor *made = &f.of[AP_ATTENTION_O];
    int8_t is[AP_MAX_RANK];
    memcpy(is, made->is, sizeof is);
    if (o->node != made->node) {
        const struct ap_node *n = &g->nodes[o->node];
        if (n->op != AP_OP_TRANSPOSE || n->in[0] != made->node)
            return false;
        for (int d = 0; d < n->shape.rank; d++)
            is[d] = made->is[n->attrs->dimensions.v[d]];
    }
    return memcmp(is, o->is, (size_t)g->nodes[o->node].shape.rank) == 0;
}

/* ---- the whole ---- */

bool ap_attention_probe(struct ap_arena *arena, const struct ap_program *prog,
                        struct ap_attention_form *a)
{
    const struct ap_graph *g = &prog->local;
    const struct ap_shape *s = &g->nodes[a->scores].shape;
    const int64_t queries = s->dims[a->query], keys = s->dims[a->key];
    const int weights = a->weights[a->backward ? AP_ATTENTION_DV : AP_ATTENTION_O];
    const bool all = has_table(g, a);
    const int64_t n = all || queries < MOST_QUERIES ? queries : MOST_QUERIES;
    struct probe p = {.prog = prog, .g = g, .a = a};
    int64_t at[AP_MAX_RANK] = {0};

    if (ap_shape_elems(s) == 0 || (all && queries * keys > MOST_PAIRS))
        return false;
    p.key = AP_NEW_N(arena, keys + 32, int64_t);
    double *room = AP_NEW_N(arena, 2 * (keys + 32), double);
    a->scale = 0;
    for (int64_t i = 0; i < n && a->scale == 0; i++) {
        choose_row(&p, i, n, all, at);
        a->scale = find_scale(&p, weights, at);
    }
    for (int64_t i = 0; i < n && a->scale != 0; i++) {
        choose_row(&p, i, n, all, at);
        if (!look_at_row(&p, a, at, room))
            return false;
    }
    return a->scale != 0 && !p.failed && (a->total < 0 || is_handed(arena, prog, a));
}
