#include "tool/passes.h"

#include "tool/tool.h"

/* Scores of fewer keys are small beside the weights: it makes no difference. */
#define LEAST_KEYS 128
/* A graph of fewer contractions is searched in a second without families. */
#define LEAST_CONTRACTIONS 96
/* How often a contraction's shape occurs on average in a graph that repeats its layers.
 */
#define LEAST_REPEATS 8
#define MOST_KINDS    64 /* of scores that are told apart */

static bool is_forward(const struct ap_node *n, enum ap_op op)
{
    return n->op == op && n->phase == AP_FORWARD;
}

/* Different shapes of batched products: as many as a graph has kinds of attention. */
struct shapes {
    const struct ap_shape *shape[MOST_KINDS];
    int n;
};

static bool is_among(const struct shapes *s, const struct ap_shape *shape)
{
    for (int i = 0; i < s->n; i++)
        if (ap_shape_same_dims(s->shape[i], shape))
            return true;
    return false;
}

/* Whether node v is an exponential of the sizes of scores before it, products of queries
 * and keys. */
static bool is_softmax(const struct ap_graph *g, int v, const struct shapes *scores)
{
    const struct ap_shape *s = &g->nodes[v].shape;

    return is_forward(&g->nodes[v], AP_OP_EXPONENTIAL) && s->rank >= 3 &&
           s->dims[s->rank - 1] >= LEAST_KEYS && is_among(scores, s);
}

/* Whether a softmax of scores is there, and no node that ap-fuse has marked. */
static bool is_unfused(const struct ap_graph *g)
{
    struct shapes scores = {.n = 0};
    bool found = false;

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        if (n->attrs->attention != AP_ATTENTION_NONE)
            return false;
        found = found || is_softmax(g, v, &scores);
        if (is_forward(n, AP_OP_DOT) && n->attrs->lhs_batch_dims.n > 0 &&
            scores.n < MOST_KINDS && !is_among(&scores, &n->shape))
            scores.shape[scores.n++] = &n->shape;
    }
    return found;
}

/* Whether the shapes of forward contractions occur many times each. */
static bool is_repeated(const struct ap_graph *g)
{
    const struct ap_shape *shapes[LEAST_CONTRACTIONS];
    int n = 0, n_shapes = 0;

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *node = &g->nodes[v];
        int s = 0;
        if (node->phase != AP_FORWARD || ap_ops[node->op].class != AP_CLASS_HEAVY)
            continue;
        n++;
        while (s < n_shapes && !ap_shape_equal(shapes[s], &node->shape))
            s++;
        if (s == LEAST_CONTRACTIONS)
            return false;
        shapes[s] = &node->shape;
        n_shapes += s == n_shapes;
    }
    return n >= LEAST_CONTRACTIONS && n >= LEAST_REPEATS * n_shapes;
}

void ap_passes_warn(const struct ap_doc *doc, const struct ap_graph *g,
                    const struct ap_cluster *c, bool searched)
{
    if (c->fused_attention && is_unfused(g))
        ap_warn("the devices of %s run attention as one kernel, and the graph's is not "
                "fused: add 'ap-fuse' to the pipe, before ap-prune",
                c->name);
    if (searched && !ap_doc_find(doc, "families") && is_repeated(g))
        ap_warn("the graph repeats its layers and has no families: add 'ap-prune' to the "
                "pipe, and the search takes equal layers as one");
}
