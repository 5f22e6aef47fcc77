/*
 * Critical nodes and the segments between them.
 *
 * Problem: find the operators that a graph is strung upon, and cut it there, so that a
 * search can walk along the chain of them. Both rules rank nodes by longest paths of the
 * forward phase, from its start and to its end.
 *
 * paper: every operator takes one unit; an operator without slack lies on a longest path,
 * and a heavy one among these is critical. Two heavy operators side by side (the
 * projections to queries and keys) may both be.
 *
 * code: every other heavy operator must be an ancestor or a descendant. Counting heavy
 * ancestors is quadratic; ranks are enough. Let before(v) be the number of heavy
 * operators on the fullest path that ends in v, after(v) on the fullest that starts
 * there. Claim: v has this property exactly if no other heavy operator has its before,
 * and all with a smaller before have a larger after. If v has it, an ancestor has a
 * smaller before and a larger after, a descendant the reverse. Conversely, take a heavy
 * w. If before(w) > before(v), the fullest path to w has an operator of each smaller
 * rank, and the only one of v's rank is v: w is a descendant. If before(w) < before(v),
 * then after(w) > after(v), and the fullest path from w has an operator of v's after.
 * That is v: no other has its after, neither those with a smaller before nor the
 * descendants. Therefore w is an ancestor. (The published program walks the path with the
 * most FLOPs and tests the operators on it; all operators with this property are on that
 * path.)
 *
 * Segments: the number of a node's segment is the smallest among its readers' and, for
 * critical nodes, its own; one sweep from the end finds it.
 *
 * Cost: linear in nodes and edges. After Rhino (Zhang et al., "Auto-Parallelizing Large
 * Models with Rhino: A Systematic Approach on Production AI Platform"), 4.3.1, and its
 * open program TePDist.
 */
#include "graph/critical.h"

#include <limits.h>

const char *const ap_critical_names[AP_N_CRITICAL_RULES] = {"paper", "code"};

static bool is_heavy(const struct ap_node *node)
{
    return ap_ops[node->op].class == AP_CLASS_HEAVY ||
           (node->op == AP_OP_CUSTOM_CALL && node->attrs->flops > 0);
}

/* before[v]: the largest sum of weights along a forward path that ends in v; after[v]:
   that starts there. Both include v. */
static void rank(const struct ap_graph *g, const uint8_t *weight, int *before, int *after)
{
    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *node = &g->nodes[v];
        if (node->phase != AP_FORWARD)
            continue;
        for (int k = 0; k < node->n_in; k++)
            before[v] = before[node->in[k]] > before[v] ? before[node->in[k]] : before[v];
        before[v] += weight[v];
    }
    for (int v = g->n_nodes - 1; v >= 0; v--) {
        const struct ap_node *node = &g->nodes[v];
        if (node->phase != AP_FORWARD)
            continue;
        after[v] += weight[v];
        for (int k = 0; k < node->n_in; k++)
            if (after[node->in[k]] < after[v])
                after[node->in[k]] = after[v];
    }
}

/* Clears the heavy operators that have slack. */
static void keep_backbone(const struct ap_graph *g, const int *before, const int *after,
                          uint8_t *chosen)
{
    int longest = 0;
    for (int v = 0; v < g->n_nodes; v++)
        longest = before[v] > longest ? before[v] : longest;
    for (int v = 0; v < g->n_nodes; v++)
        chosen[v] = chosen[v] && before[v] + after[v] - 1 == longest;
}

/* Clears the heavy operators that some other one is neither before nor after. */
static void keep_comparable(struct ap_arena *arena, const struct ap_graph *g,
                            const int *before, const int *after, uint8_t *chosen)
{
    int *n_before = AP_NEW_N(arena, g->n_nodes + 1, int);
    int *least_after = AP_NEW_N(arena, g->n_nodes + 1, int); /* of ranks 0 to before */

    for (int r = 0; r <= g->n_nodes; r++)
        least_after[r] = INT_MAX;
    for (int v = 0; v < g->n_nodes; v++) {
        if (!chosen[v])
            continue;
        n_before[before[v]]++;
        if (after[v] < least_after[before[v]])
            least_after[before[v]] = after[v];
    }
    for (int r = 1; r <= g->n_nodes; r++)
        if (least_after[r - 1] < least_after[r])
            least_after[r] = least_after[r - 1];
    for (int v = 0; v < g->n_nodes; v++)
        chosen[v] = chosen[v] && n_before[before[v]] == 1 &&
                    least_after[before[v] - 1] > after[v];
}

int ap_critical_nodes(struct ap_arena *arena, const struct ap_graph *g,
                      enum ap_critical_rule rule, const int **critical)
{
    int *found = AP_NEW_N(arena, g->n_nodes, int);
    struct ap_mark mark = ap_arena_mark(arena);
    uint8_t *chosen = AP_NEW_N(arena, g->n_nodes, uint8_t);
    uint8_t *weight = AP_NEW_N(arena, g->n_nodes, uint8_t);
    int *before = AP_NEW_N(arena, g->n_nodes, int);
    int *after = AP_NEW_N(arena, g->n_nodes, int);
    int n = 0, *ids;

    for (int i = ap_blocks_operators(arena, g, &ids) - 1; i >= 0; i--)
        chosen[ids[i]] = is_heavy(&g->nodes[ids[i]]);
    for (int v = 0; v < g->n_nodes; v++)
        weight[v] = rule == AP_CRITICAL_PAPER || chosen[v];
    rank(g, weight, before, after);
    if (rule == AP_CRITICAL_PAPER)
        keep_backbone(g, before, after, chosen);
    else
        keep_comparable(arena, g, before, after, chosen);
    for (int v = 0; v < g->n_nodes; v++)
        if (chosen[v])
            found[n++] = v;
    ap_arena_rewind(arena, mark);
    *critical = found;
    return n;
}

/* ---- segments ---- */

#define NONE INT_MAX

int ap_segments_max(int n_critical)
{
    return n_critical > 1 ? n_critical - 1 : 1;
}

struct operators {
    const struct ap_graph *g;
    int n;
    int *id; /* ascending; what others hold is never read */
};

/* segment[v]: the first that needs v, NONE for what no critical node needs. */
static void take_ancestors(const struct operators *ops, int n_critical,
                           const int *critical, int *segment)
{
    for (int i = 0; i < n_critical; i++)
        segment[critical[i]] = i > 0 ? i - 1 : 0;
    for (int i = ops->n - 1; i >= 0; i--) {
        const struct ap_node *node = &ops->g->nodes[ops->id[i]];
        for (int k = 0; k < node->n_in; k++)
            if (segment[ops->id[i]] < segment[node->in[k]])
                segment[node->in[k]] = segment[ops->id[i]];
    }
}

/* Places what no critical node needs: least[v] is the earliest that operands allow. */
static void place_rest(struct ap_arena *arena, const struct operators *ops,
                       int n_critical, const int *critical, int *segment)
{
    uint8_t *follows = AP_NEW_N(arena, ops->g->n_nodes, uint8_t); /* a critical node */
    int *least = AP_NEW_N(arena, ops->g->n_nodes, int);

    for (int i = 0; i < n_critical; i++)
        follows[critical[i]] = 1;
    for (int i = 0; i < ops->n; i++) {
        int v = ops->id[i];
        const struct ap_node *node = &ops->g->nodes[v];
        for (int k = 0; k < node->n_in; k++) {
            follows[v] |= follows[node->in[k]];
            if (least[node->in[k]] > least[v])
                least[v] = least[node->in[k]];
        }
        if (segment[v] != NONE)
            least[v] = segment[v];
        else if (follows[v])
            segment[v] = least[v];
    }
    for (int i = ops->n - 1; i >= 0; i--) {
        int v = ops->id[i];
        const struct ap_node *node = &ops->g->nodes[v];
        if (segment[v] == NONE)
            segment[v] = least[v]; /* no operator reads it */
        for (int k = 0; k < node->n_in; k++)
            if (segment[v] < segment[node->in[k]])
                segment[node->in[k]] = segment[v];
    }
}

void ap_segments_of(struct ap_arena *arena, const struct ap_graph *g, int n_critical,
                    const int *critical, int n_groups, struct ap_segments *s)
{
    int n_ungrouped = ap_segments_max(n_critical);
    int n = n_groups > 0 ? n_groups : n_ungrouped;
    int *segment_of = AP_NEW_N(arena, g->n_nodes, int);
    int *tail = AP_NEW_N(arena, n, int);
    struct ap_mark mark = ap_arena_mark(arena);
    int *segment = AP_NEW_N(arena, g->n_nodes, int);
    struct operators ops = {.g = g};

    ops.n = ap_blocks_operators(arena, g, &ops.id);
    for (int v = 0; v < g->n_nodes; v++) {
        segment[v] = NONE;
        segment_of[v] = -1;
    }
    take_ancestors(&ops, n_critical, critical, segment);
    place_rest(arena, &ops, n_critical, critical, segment);
    for (int i = 0; i < ops.n; i++)
        segment_of[ops.id[i]] = (int)((int64_t)segment[ops.id[i]] * n / n_ungrouped);
    ap_arena_rewind(arena, mark);
    tail[0] = n_critical == 1 ? critical[0] : -1;
    for (int i = 1; i < n_critical; i++)
        tail[(int64_t)(i - 1) * n / n_ungrouped] = critical[i];
    *s = (struct ap_segments){.n = n, .segment_of = segment_of, .tail = tail};
}
