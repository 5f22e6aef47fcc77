/*
 * Which contractions of an attention's group are which.
 *
 * A forward group has two: the scores s = q k' and the result o = p v. A backward group
 * has five: s again, dp = dO v', and from scores dV = p' dO, dK = ds' q and dQ = ds k.
 * The contractions say by their dimension numbers where queries, keys, the head's width
 * and the other dimensions (batch, heads) are in each tensor, in whatever order they lie.
 * What stands between the contractions is attention_probe.c's.
 */
#include "attention.h"

#if CUDA_HAS_CUDNN

#include <string.h>

#define MOST_DOTS 5

/* A contraction; scores: the operand (0, 1) or the result (2) that is scores. */
struct product {
    int node, scores;
    struct attention_tensor t[3]; /* lhs, rhs, result */
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
static int8_t role(const struct attention *a, int d)
{
    return d == a->query ? OF_QUERIES : d == a->key ? OF_KEYS : (int8_t)d;
}

/* Names the dimensions of all three tensors by those of the scores. */
static bool name_dims(const struct ap_graph *g, const struct attention *a,
                      struct product *p)
{
    const struct ap_node *n = node_at(g, p->node);
    const struct ap_ints *inner[2] = {&n->attrs->lhs_contracting_dims,
                                      &n->attrs->rhs_contracting_dims};
    const int other = 1 - p->scores;

    for (int k = 0; k < 3; k++) {
        p->t[k].node = p->t[k].order = k < 2 ? n->in[k] : p->node;
        memset(p->t[k].is, OF_WIDTH, sizeof p->t[k].is);
    }
    if (p->scores == 2) {
        for (int k = 0; k < 2; k++)
            for (int d = 0; d < node_at(g, n->in[k])->shape.rank; d++) {
                const int at = result_dim(g, n, k, d);
                p->t[k].is[d] = at < 0 ? OF_WIDTH : role(a, at);
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

static int n_with(const struct ap_graph *g, const struct attention_tensor *t, int what)
{
    int n = 0;
    for (int d = 0; d < node_at(g, t->node)->shape.rank; d++)
        n += t->is[d] == what;
    return n;
}

/* A tensor of rows of queries, or of keys: of one width. */
static bool is_rows(const struct ap_graph *g, const struct attention_tensor *t, int of)
{
    return n_with(g, t, of) == 1 && n_with(g, t, OF_WIDTH) == 1 &&
           n_with(g, t, of == OF_KEYS ? OF_QUERIES : OF_KEYS) == 0;
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

static int find_products(const struct ap_graph *g, struct attention *a, struct product *p)
{
    int n = 0;
    for (int v = a->first; v < a->end; v++) {
        const struct ap_ints *s = &g->nodes[v].attrs->scores;
        if (g->nodes[v].op == AP_OP_TRANSPOSE)
            return 0;
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
        if (is_rows(g, &p->t[k], OF_QUERIES) && is_rows(g, &p->t[1 - k], OF_KEYS))
            return k;
    return -1;
}

static void set_result(struct attention *a, enum sdpa_tensor of, const struct product *p)
{
    a->of[of] = p->t[2];
    a->weights[of] = p->t[p->scores].node;
}

static bool match_forward(const struct ap_graph *g, struct attention *a,
                          const struct product *p)
{
    const int q = queries_of(g, &p[0]);
    if (p[0].scores != 2 || p[1].scores == 2 || q < 0)
        return false;
    const struct attention_tensor *v = &p[1].t[1 - p[1].scores];
    if (!is_rows(g, v, OF_KEYS) || !is_rows(g, &p[1].t[2], OF_QUERIES))
        return false;
    a->scores = p[0].node;
    a->of[SDPA_Q] = p[0].t[q];
    a->of[SDPA_K] = p[0].t[1 - q];
    a->of[SDPA_V] = *v;
    set_result(a, SDPA_O, &p[1]);
    return true;
}

/* The contraction of scores with t that sums over queries or keys; NULL: none. */
static const struct product *sum_with(const struct ap_graph *g, const struct product *p,
                                      const struct attention_tensor *t, int over)
{
    for (int i = 0; i < MOST_DOTS; i++) {
        const struct attention_tensor *other = &p[i].t[1 - p[i].scores];
        if (p[i].scores < 2 && other->node == t->node &&
            !memcmp(other->is, t->is, sizeof t->is) && is_rows(g, other, over) &&
            is_rows(g, &p[i].t[2], over == OF_KEYS ? OF_QUERIES : OF_KEYS))
            return &p[i];
    }
    return NULL;
}

static bool match_backward(const struct ap_graph *g, struct attention *a,
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
        const struct product *dq = sum_with(g, p, &s->t[1 - q], OF_KEYS),
                             *dk = sum_with(g, p, &s->t[q], OF_QUERIES),
                             *dv = sum_with(g, p, &dp->t[d_o], OF_QUERIES);
        if (!dq || !dk || !dv || dk == dv)
            continue;
        a->scores = s->node;
        a->products = dp->node;
        a->of[SDPA_Q] = s->t[q];
        a->of[SDPA_K] = s->t[1 - q];
        a->of[SDPA_DO] = dp->t[d_o];
        a->of[SDPA_V] = dp->t[1 - d_o];
        set_result(a, SDPA_DQ, dq);
        set_result(a, SDPA_DK, dk);
        set_result(a, SDPA_DV, dv);
        return true;
    }
    return false;
}

/* Whether all tensors have the type, and are in memory. */
static bool has_types(const struct ap_graph *g, const struct attention *a)
{
    const enum ap_dtype type = node_at(g, a->of[SDPA_Q].node)->shape.dtype;
    for (int t = 0; t < SDPA_STATS; t++)
        if (a->of[t].node >= 0 && node_at(g, a->of[t].node)->shape.dtype != type)
            return false;
    return type == AP_BF16 || type == AP_F16;
}

bool attention_match(const struct ap_graph *g, int first, struct attention *a)
{
    struct product p[MOST_DOTS] = {{0}};
    *a =
        (struct attention){.first = first, .end = end_of_group(g, first), .products = -1};
    for (int t = 0; t < SDPA_STATS; t++)
        a->of[t].node = -1;
    const int n = find_products(g, a, p);
    a->backward = n == MOST_DOTS;
    return (n == 2 || n == MOST_DOTS) &&
           (a->backward ? match_backward(g, a, p) : match_forward(g, a, p)) &&
           has_types(g, a);
}

#endif
