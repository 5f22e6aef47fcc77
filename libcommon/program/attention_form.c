/*
 * Which contractions of an attention's group are which.
 *
 * A forward group has two: the scores s = q k' and the result o = p v. A backward group
 * has five: s again, dp = dO v', and from scores dV = p' dO, dK = ds' q and dQ = ds k.
 * The contractions say by their dimension numbers where queries, keys, the head's width
 * and the other dimensions (batch, heads) are in each tensor, in whatever order they lie.
 * What stands between the contractions is attention_probe.c's.
 *
 * A backward group may be handed o and the logarithm of each row's sum of exponentials
 * (program_attention.c): then it sums dO o over the head's width.
 */
#include "program/attention_form.h"

#include <string.h>

#define MOST_DOTS 5

/* A contraction; scores: the operand (0, 1) or the result (2) that is scores. */
struct product {
    int node, scores;
    struct ap_attention_tensor t[3]; /* lhs, rhs, result */
};

static const struct ap_node *node_at(const struct ap_graph *g, int v)
{
    return &g->nodes[v];
}

static int index_of(const struct ap_ints *list, int d)
{
    for (int i = 0; i < list->n; i++)
        if (list->v[i] == d)
            return i;
    return -1;
}

/* The dimension of the result that dimension d of operand k becomes; -1: contracted. */
static int result_dim(const struct ap_graph *g, const struct ap_node *n, int k, int d)
{
    const struct ap_attrs *a = n->attrs;
    const struct ap_ints *batch[2] = {&a->lhs_batch_dims, &a->rhs_batch_dims};
    const struct ap_ints *inner[2] = {&a->lhs_contracting_dims, &a->rhs_contracting_dims};
    int at = index_of(batch[k], d);

    if (at >= 0 || index_of(inner[k], d) >= 0)
        return at;
    at = batch[0]->n;
    if (k == 1)
        at += node_at(g, n->in[0])->shape.rank - batch[0]->n - inner[0]->n;
    for (int i = 0; i < d; i++)
        at += index_of(batch[k], i) < 0 && index_of(inner[k], i) < 0;
    return at;
}

/* What a dimension of the scores is. */
static int8_t role(const struct ap_attention_form *a, int d)
{
    return d == a->query ? AP_OF_QUERIES : d == a->key ? AP_OF_KEYS : (int8_t)d;
}

/* Names the dimensions of all three tensors by those of the scores. */
static bool name_dims(const struct ap_graph *g, const struct ap_attention_form *a,
                      struct product *p)
{
    const struct ap_node *n = node_at(g, p->node);
    const struct ap_ints *inner[2] = {&n->attrs->lhs_contracting_dims,
                                      &n->attrs->rhs_contracting_dims};
    const int other = 1 - p->scores;

    for (int k = 0; k < 3; k++) {
        p->t[k].node = p->t[k].order = k < 2 ? n->in[k] : p->node;
        memset(p->t[k].is, AP_OF_WIDTH, sizeof p->t[k].is);
    }
    if (p->scores == 2) {
        for (int k = 0; k < 2; k++)
            for (int d = 0; d < node_at(g, n->in[k])->shape.rank; d++) {
                const int at = result_dim(g, n, k, d);
                p->t[k].is[d] = at < 0 ? AP_OF_WIDTH : role(a, at);
            }
        for (int d = 0; d < n->shape.rank; d++)
            p->t[2].is[d] = role(a, d);
        return inner[0]->n == 1;
    }
    for (int d = 0; d < node_at(g, n->in[p->scores])->shape.rank; d++) {
        const int at = result_dim(g, n, p->scores, d);
        p->t[p->scores].is[d] = role(a, d);
        if (at >= 0)
            p->t[2].is[at] = role(a, d);
    }
    const struct ap_ints *own =
        p->scores == 0 ? &n->attrs->lhs_batch_dims : &n->attrs->rhs_batch_dims;
    const struct ap_ints *batch =
        p->scores == 0 ? &n->attrs->rhs_batch_dims : &n->attrs->lhs_batch_dims;
    for (int i = 0; i < batch->n; i++)
        p->t[other].is[batch->v[i]] = role(a, (int)own->v[i]);
    for (int i = 0; i < inner[other]->n; i++)
        p->t[other].is[inner[other]->v[i]] = role(a, (int)inner[p->scores]->v[i]);
    return true;
}

static int n_with(const struct ap_graph *g, const struct ap_attention_tensor *t, int what)
{
    int n = 0;
    for (int d = 0; d < node_at(g, t->node)->shape.rank; d++)
        n += t->is[d] == what;
    return n;
}

/* A tensor of rows of queries, or of keys: of one width. */
static bool is_rows(const struct ap_graph *g, const struct ap_attention_tensor *t, int of)
{
    return n_with(g, t, of) == 1 && n_with(g, t, AP_OF_WIDTH) == 1 &&
           n_with(g, t, of == AP_OF_KEYS ? AP_OF_QUERIES : AP_OF_KEYS) == 0;
}

/* ---- the group ---- */

/* Its nodes: one whole group, in which nothing but contractions is made of rows. */
static int end_of_group(const struct ap_graph *g, int first)
{
    int end = first;
    while (end < g->n_nodes && g->nodes[end].group == g->nodes[first].group) {
        if (g->nodes[end].attrs->attention !=
            (end == first ? AP_ATTENTION_FIRST : AP_ATTENTION_NEXT))
            return -1;
        end++;
    }
    return first > 0 && g->nodes[first - 1].group == g->nodes[first].group ? -1 : end;
}

static int find_products(const struct ap_graph *g, struct ap_attention_form *a,
                         struct product *p)
{
    int n = 0;
    for (int v = a->first; v < a->end; v++) {
        const struct ap_ints *s = &g->nodes[v].attrs->scores;
        if (g->nodes[v].op != AP_OP_DOT)
            continue;
        if (n == MOST_DOTS || s->n < 3 || s->n == 4)
            return 0;
        if (n == 0) {
            a->query = (int)s->v[1], a->key = (int)s->v[2];
            a->back = s->n > 4 ? s->v[3] : INT64_MAX;
            a->ahead = s->n > 4 ? s->v[4] : INT64_MAX;
        }
        if (s->v[1] != a->query || s->v[2] != a->key)
            return 0;
        p[n] = (struct product){v, s->v[0] == 0 ? 2 : (int)s->v[0] - 1, {{0}}};
        if (!name_dims(g, a, &p[n++]))
            return 0;
    }
    return n;
}

/* Which operand of a contraction that makes scores has a row for each query; -1. */
static int queries_of(const struct ap_graph *g, const struct product *p)
{
    for (int k = 0; k < 2; k++)
        if (is_rows(g, &p->t[k], AP_OF_QUERIES) && is_rows(g, &p->t[1 - k], AP_OF_KEYS))
            return k;
    return -1;
}

static void set_result(struct ap_attention_form *a, enum ap_attention_operand of,
                       const struct product *p)
{
    a->of[of] = p->t[2];
    a->weights[of] = p->t[p->scores].node;
}

static bool match_forward(const struct ap_graph *g, struct ap_attention_form *a,
                          const struct product *p)
{
    const int q = queries_of(g, &p[0]);
    if (p[0].scores != 2 || p[1].scores == 2 || q < 0)
        return false;
    const struct ap_attention_tensor *v = &p[1].t[1 - p[1].scores];
    if (!is_rows(g, v, AP_OF_KEYS) || !is_rows(g, &p[1].t[2], AP_OF_QUERIES))
        return false;
    a->scores = p[0].node;
    a->of[AP_ATTENTION_Q] = p[0].t[q];
    a->of[AP_ATTENTION_K] = p[0].t[1 - q];
    a->of[AP_ATTENTION_V] = *v;
    set_result(a, AP_ATTENTION_O, &p[1]);
    return true;
}

/* The contraction of scores with t that sums over queries or keys; NULL: none. */
static const struct product *sum_with(const struct ap_graph *g, const struct product *p,
                                      const struct ap_attention_tensor *t, int over)
{
    for (int i = 0; i < MOST_DOTS; i++) {
        const struct ap_attention_tensor *other = &p[i].t[1 - p[i].scores];
        if (p[i].scores < 2 && other->node == t->node &&
            !memcmp(other->is, t->is, sizeof t->is) && is_rows(g, other, over) &&
            is_rows(g, &p[i].t[2], over == AP_OF_KEYS ? AP_OF_QUERIES : AP_OF_KEYS))
            return &p[i];
    }
    return NULL;
}

static bool match_backward(const struct ap_graph *g, struct ap_attention_form *a,
                           const struct product *p)
{
    const struct product *made[2] = {NULL, NULL};
    int n = 0;
    for (int i = 0; i < MOST_DOTS; i++)
        if (p[i].scores == 2) {
            if (n == 2 || queries_of(g, &p[i]) < 0)
                return false;
            made[n++] = &p[i];
        }
    for (int i = 0; i < 2 && n == 2; i++) {
        const struct product *s = made[i], *dp = made[1 - i];
        const int q = queries_of(g, s), d_o = queries_of(g, dp);
        const struct product *dq = sum_with(g, p, &s->t[1 - q], AP_OF_KEYS),
                             *dk = sum_with(g, p, &s->t[q], AP_OF_QUERIES),
                             *dv = sum_with(g, p, &dp->t[d_o], AP_OF_QUERIES);
        if (!dq || !dk || !dv || dk == dv)
            continue;
        a->scores = s->node;
        a->products = dp->node;
        a->of[AP_ATTENTION_Q] = s->t[q];
        a->of[AP_ATTENTION_K] = s->t[1 - q];
        a->of[AP_ATTENTION_DO] = dp->t[d_o];
        a->of[AP_ATTENTION_V] = dp->t[1 - d_o];
        set_result(a, AP_ATTENTION_DQ, dq);
        set_result(a, AP_ATTENTION_DK, dk);
        set_result(a, AP_ATTENTION_DV, dv);
        return true;
    }
    return false;
}

/* ---- what one pass hands to the other ---- */

static bool is_inside(const struct ap_attention_form *a, int v)
{
    return v >= a->first && v < a->end;
}

/* What dimension d of a row's number is, where it has the order of the scores. */
static int8_t row_role(const struct ap_attention_form *a, int d)
{
    return role(a, d < a->key ? d : d + 1);
}

/* Whether a node has a number per row of the scores. */
static bool is_of_rows(const struct ap_graph *g, const struct ap_attention_form *a, int v)
{
    const struct ap_shape *s = &node_at(g, a->scores)->shape, *r = &node_at(g, v)->shape;
    if (r->rank != s->rank - 1 || !ap_dtype_is_float(r->dtype))
        return false;
    for (int d = 0; d < r->rank; d++)
        if (r->dims[d] != s->dims[d < a->key ? d : d + 1])
            return false;
    return true;
}

static bool is_read_elsewhere(const struct ap_graph *g, const struct ap_attention_form *a,
                              int v)
{
    if (ap_graph_is_result(g, v))
        return true;
    for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++)
        if (!is_inside(a, g->users[u]))
            return true;
    return false;
}

/* What a transpose makes of dimensions; back: of its operand's, from its own. */
static void turn(const struct ap_node *n, bool back, int8_t *is)
{
    int8_t was[AP_MAX_RANK];
    memcpy(was, is, sizeof was);
    for (int d = 0; d < n->shape.rank; d++)
        if (back)
            is[n->attrs->dimensions.v[d]] = was[d];
        else
            is[d] = was[n->attrs->dimensions.v[d]];
}

/* The one value beside o that others read: rows' numbers, or a transpose of them; n:
 * counts transposes. */
static int find_stats_made(const struct ap_graph *g, struct ap_attention_form *a, int *n)
{
    int stats = -1;
    for (int v = a->first; v < a->end; v++) {
        if (v == a->of[AP_ATTENTION_O].node || !is_read_elsewhere(g, a, v))
            continue;
        const bool moves = node_at(g, v)->op == AP_OP_TRANSPOSE;
        if (stats >= 0 || !is_of_rows(g, a, moves ? node_at(g, v)->in[0] : v))
            return -1;
        stats = v;
        if (moves)
            turn(node_at(g, v), false, a->stats_is);
        *n += moves;
    }
    return stats;
}

/* The one value outside that is of rows, or a transpose of which is. */
static int find_stats_read(const struct ap_graph *g, struct ap_attention_form *a, int *n)
{
    int stats = -1, first = -1; /* the first of its readers */
    for (int v = a->first; v < a->end; v++) {
        const bool moves = node_at(g, v)->op == AP_OP_TRANSPOSE;
        for (int k = 0; k < node_at(g, v)->n_in; k++) {
            const int in = node_at(g, v)->in[k];
            if (is_inside(a, in) || !is_of_rows(g, a, moves ? v : in))
                continue;
            if (stats >= 0 &&
                (in != stats || moves || node_at(g, first)->op == AP_OP_TRANSPOSE))
                return -1;
            if (moves)
                turn(node_at(g, v), true, a->stats_is);
            *n += moves;
            stats = in;
            first = v;
        }
    }
    return stats;
}

/* The dimensions of what is a conversion or a transpose of dO; n: counts transposes. */
static bool is_of_gradient(const struct ap_graph *g, const struct ap_attention_form *a,
                           int v, int8_t *is, int *n)
{
    const struct ap_attention_tensor *t = &a->of[AP_ATTENTION_DO];
    if (v == t->node) {
        memcpy(is, t->is, sizeof t->is);
        return true;
    }
    if (!is_inside(a, v) ||
        (node_at(g, v)->op != AP_OP_CONVERT && node_at(g, v)->op != AP_OP_TRANSPOSE) ||
        !is_of_gradient(g, a, node_at(g, v)->in[0], is, n))
        return false;
    if (node_at(g, v)->op == AP_OP_TRANSPOSE) {
        turn(node_at(g, v), false, is);
        ++*n;
    }
    return true;
}

/* The tensor outside of the group that v, of given dimensions, comes from. */
static struct ap_attention_tensor source_of(const struct ap_graph *g,
                                            const struct ap_attention_form *a, int v,
                                            const int8_t *is, int *n)
{
    struct ap_attention_tensor t;
    memcpy(t.is, is, sizeof t.is);
    while (is_inside(a, v) &&
           (node_at(g, v)->op == AP_OP_CONVERT || node_at(g, v)->op == AP_OP_TRANSPOSE)) {
        if (node_at(g, v)->op == AP_OP_TRANSPOSE) {
            turn(node_at(g, v), true, t.is);
            ++*n;
        }
        v = node_at(g, v)->in[0];
    }
    t.node = t.order = is_inside(a, v) ? -1 : v;
    return t;
}

/* The rows' numbers in the order of the scores: v, or what a transpose makes of it; -1.
 */
static int in_order(const struct ap_graph *g, const struct ap_attention_form *a, int v,
                    int8_t *is, int *n)
{
    const int u = g->user_start[v];
    if (g->user_start[v + 1] == u + 1 && is_inside(a, g->users[u]) &&
        node_at(g, g->users[u])->op == AP_OP_TRANSPOSE) {
        v = g->users[u];
        turn(node_at(g, v), false, is);
        ++*n;
    }
    for (int d = 0; d < node_at(g, v)->shape.rank; d++)
        if (is[d] != row_role(a, d))
            return -1;
    return is_of_rows(g, a, v) ? v : -1;
}

/* Whether node v sums dO o over the width; then o, and what is made of the sums. */
static bool match_total(const struct ap_graph *g, struct ap_attention_form *a, int v,
                        int *n)
{
    const struct ap_node *sum = node_at(g, v);
    if (sum->op != AP_OP_REDUCE || sum->n_in != 2 || sum->attrs->dimensions.n != 1 ||
        g->reducers[sum->attrs->to_apply].red != AP_RED_SUM ||
        !is_inside(a, sum->in[0]) || node_at(g, sum->in[0])->op != AP_OP_MULTIPLY)
        return false;
    const struct ap_node *product = node_at(g, sum->in[0]);
    const int over = (int)sum->attrs->dimensions.v[0];
    for (int k = 0; k < 2; k++) {
        int8_t is[AP_MAX_RANK];
        *n = 0;
        if (!is_of_gradient(g, a, product->in[k], is, n) || is[over] != AP_OF_WIDTH)
            continue;
        a->of[AP_ATTENTION_O] = source_of(g, a, product->in[1 - k], is, n);
        memmove(is + over, is + over + 1, (size_t)(AP_MAX_RANK - 1 - over));
        a->total = in_order(g, a, v, is, n);
        if (a->of[AP_ATTENTION_O].node >= 0 && a->total >= 0)
            return true;
    }
    a->of[AP_ATTENTION_O].node = a->total = -1;
    return false;
}

/* What the group makes for others, or is handed; false: it moves something else. */
static bool find_handed(const struct ap_graph *g, struct ap_attention_form *a)
{
    int moved = 0, of_stats = 0, of_total = 0;
    for (int d = 0; d < AP_MAX_RANK - 1; d++)
        a->stats_is[d] = row_role(a, d);
    a->stats =
        a->backward ? find_stats_read(g, a, &of_stats) : find_stats_made(g, a, &of_stats);
    for (int v = a->first; v < a->end; v++) {
        moved += node_at(g, v)->op == AP_OP_TRANSPOSE;
        if (a->backward && a->total < 0)
            match_total(g, a, v, &of_total);
    }
    return moved == (a->stats >= 0 ? of_stats : 0) + (a->total >= 0 ? of_total : 0);
}

/* Whether all tensors have the type. */
static bool has_types(const struct ap_graph *g, const struct ap_attention_form *a)
{
    const enum ap_dtype type = node_at(g, a->of[AP_ATTENTION_Q].node)->shape.dtype;
    for (int t = 0; t < AP_ATTENTION_OPERANDS; t++)
        if (a->of[t].node >= 0 && node_at(g, a->of[t].node)->shape.dtype != type)
            return false;
    return ap_dtype_is_float(type);
}

bool ap_attention_form_of(const struct ap_graph *g, int first,
                          struct ap_attention_form *a)
{
    struct product p[MOST_DOTS] = {{0}};
    *a = (struct ap_attention_form){.first = first,
                                    .end = end_of_group(g, first),
                                    .products = -1,
                                    .stats = -1,
                                    .total = -1};
    for (int t = 0; t < AP_ATTENTION_OPERANDS; t++)
        a->of[t].node = -1;
    const int n = find_products(g, a, p);
    a->backward = n == MOST_DOTS;
    return (n == 2 || n == MOST_DOTS) &&
           (a->backward ? match_backward(g, a, p) : match_forward(g, a, p)) &&
           find_handed(g, a) && has_types(g, a);
}
