#include "tool/passes.h"

#include "tool/tool.h"

/* Scores of fewer keys are small beside the weights: it makes no difference. */
#define LEAST_KEYS 128
/* A graph of fewer contractions is searched in a second without families. */
#define LEAST_CONTRACTIONS 96
/* How often a contraction's shape occurs on average in a graph that repeats its layers.
 */
#define LEAST_REPEATS 8

static bool is_forward(const struct ap_node *n, enum ap_op op)
{
    return n->op == op && n->phase == AP_FORWARD;
}

/* The forward product of queries and keys whose scores node `exp` may be the softmax of:
 * a batched product of the same sizes. */
static bool has_scores(const struct ap_graph *g, int exp)
{
    for (int v = exp - 1; v >= 0; v--)
        if (is_forward(&g->nodes[v], AP_OP_DOT) &&
            g->nodes[v].attrs->lhs_batch_dims.n > 0 &&
            ap_shape_same_dims(&g->nodes[v].shape, &g->nodes[exp].shape))
            return true;
    return false;
}

static bool is_softmax(const struct ap_graph *g, int v)
{
    const struct ap_shape *s = &g->nodes[v].shape;

    return is_forward(&g->nodes[v], AP_OP_EXPONENTIAL) && s->rank >= 3 &&
           s->dims[s->rank - 1] >= LEAST_KEYS && has_scores(g, v);
}

/* Whether a softmax of scores is there, and no node that ap-fuse has marked. */
static bool is_unfused(const struct ap_graph *g)
{
    bool found = false;

    for (int v = 0; v < g->n_nodes; v++) {
        if (g->nodes[v].attrs->attention != AP_ATTENTION_NONE)
            return false;
        found = found || is_softmax(g, v);
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
