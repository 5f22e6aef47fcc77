/*
 * Problem: the time of every operator in a profile run of one microbatch, without a
 * device. Idea: the graph describes a whole batch, so tensors that depend on an input
 * shrink with the rows, whereas weights and their gradients do not; each fusion group
 * takes the roofline's time for the bytes that cross its border, and a member has a share
 * of it in proportion to the bytes that it writes. Sums over blocks are then sums over
 * nodes. Cost: linear.
 */
#include "rannc/rannc_price.h"

#include "base/csr.h"
#include "graph/blocks.h"

struct rannc_rows rannc_rows_of(const struct ap_graph *g,
                                const struct rannc_params *params)
{
    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *p = &g->nodes[g->params[i]];
        if (p->role != AP_ROLE_INPUT || p->shape.rank == 0 || p->shape.dims[0] < 1)
            continue;
        int64_t pieces = ap_mul64(params->n_devices, params->memory.microbatches);
        return (struct rannc_rows){ap_ceil_div(p->shape.dims[0], pieces),
                                   p->shape.dims[0]};
    }
    return (struct rannc_rows){1, 1};
}

int64_t rannc_rows_bytes(const struct rannc_rows *r, int64_t bytes)
{
    /* whole batches first, so that nothing overflows that fits in the end */
    int64_t rest = ap_mul64(bytes % r->batch, r->rows) / r->batch;
    return ap_add64(ap_mul64(bytes / r->batch, r->rows), rest);
}

/* Backward values without a dimension of rows: gradients of weights, which an update
 * reads, unchanged or summed, moved and converted before. */
static bool *gradients(struct ap_arena *arena, const struct ap_graph *g)
{
    bool *is = AP_NEW_N(arena, g->n_nodes, bool);

    for (int i = g->n_nodes - 1; i >= 0; i--) {
        if (g->nodes[i].phase != AP_BACKWARD)
            continue;
        is[i] = g->user_start[i] < g->user_start[i + 1];
        for (int k = g->user_start[i]; k < g->user_start[i + 1] && is[i]; k++) {
            int u = g->users[k];
            enum ap_op_class class = ap_ops[g->nodes[u].op].class;
            is[i] = g->nodes[u].phase == AP_UPDATE ||
                    (is[u] && (class == AP_CLASS_ELEMENTWISE || class == AP_CLASS_MOVE));
        }
    }
    for (int i = 0; i < g->n_results; i++)
        if (g->nodes[g->results[i].node].phase == AP_BACKWARD &&
            g->results[i].role == AP_ROLE_WEIGHT)
            is[g->results[i].node] = true;
    return is;
}

struct pricing {
    const struct ap_graph *g;
    const struct rannc_rows *rows;
    const bool *varies, *gradient, *is_result;
    int *seen; /* [node] last group + 1 that read it */
};

static double node_bytes(const struct pricing *p, int i)
{
    const struct ap_node *n = &p->g->nodes[i];
    int64_t bytes = ap_shape_bytes(&n->shape);
    bool whole = n->phase == AP_FORWARD ? !p->varies[i] : p->gradient[i];
    return (double)(whole ? bytes : rannc_rows_bytes(p->rows, bytes));
}

/* What node i of group reads from other groups, each value once. */
static double read_bytes(const struct pricing *p, int i, int group)
{
    const struct ap_node *n = &p->g->nodes[i];
    double bytes = 0;
    for (int k = 0; k < n->n_in; k++) {
        int u = n->in[k];
        if (p->g->nodes[u].group == group || p->seen[u] == group + 1)
            continue;
        p->seen[u] = group + 1;
        bytes += node_bytes(p, u);
    }
    return bytes;
}

/* Operators that touch a part of an operand only; *bytes is left for all others. */
static void touched_bytes(const struct pricing *p, int i, double *bytes)
{
    const struct ap_node *n = &p->g->nodes[i];
    switch ((int)n->op) {
    case AP_OP_RESHAPE:
        *bytes = 0;
        break;
    case AP_OP_SLICE:
    case AP_OP_DYNAMIC_SLICE:
        *bytes = 2 * node_bytes(p, i);
        break;
    case AP_OP_DYNAMIC_UPDATE_SLICE:
        *bytes = 2 * node_bytes(p, n->in[1]);
        break;
    case AP_OP_GATHER:
        *bytes = node_bytes(p, n->in[1]) + 2 * node_bytes(p, i);
        break;
    }
}

static bool read_outside(const struct pricing *p, int i, int group)
{
    const struct ap_graph *g = p->g;
    for (int k = g->user_start[i]; k < g->user_start[i + 1]; k++)
        if (g->nodes[g->users[k]].group != group)
            return true;
    return p->is_result[i];
}

static enum ap_dtype element_type(const struct ap_node *n)
{
    return n->shape.dtype == AP_TUPLE && n->shape.n_parts ? n->shape.parts[0].dtype
                                                          : n->shape.dtype;
}

static double group_sec(const struct pricing *p, const struct ap_cost *cost,
                        const int *member, int n)
{
    const struct ap_graph *g = p->g;
    double flops = 0, bytes = 0, rows = (double)p->rows->rows / (double)p->rows->batch;
    enum ap_dtype dtype = element_type(&g->nodes[member[n - 1]]);
    int group = g->nodes[member[0]].group;

    for (int m = 0; m < n; m++) {
        const struct ap_node *node = &g->nodes[member[m]];
        bool whole = node->phase == AP_FORWARD && !p->varies[member[m]];
        flops += ap_node_flops(g, member[m]) * (whole ? 1 : rows);
        bytes += read_bytes(p, member[m], group);
        if (read_outside(p, member[m], group))
            bytes += node_bytes(p, member[m]);
        if (ap_ops[node->op].class == AP_CLASS_HEAVY)
            dtype = g->nodes[node->in[0]].shape.dtype;
    }
    touched_bytes(p, member[0], &bytes);
    const struct ap_kernel_work w = {.kernel = ap_kernel_of_group(g, member, n),
                                     .dtype = dtype,
                                     .precise = ap_kernel_is_precise(g, member, n),
                                     .flops = flops,
                                     .bytes = bytes};
    return ap_cost_kernel(cost, &w);
}

static bool is_leaf(const struct ap_graph *g, int i)
{
    return ap_ops[g->nodes[i].op].class == AP_CLASS_LEAF;
}

/* Members by group, ids ascending; updates are left out. */
static struct ap_csr members(struct ap_arena *arena, const struct ap_graph *g)
{
    int *group = AP_NEW_N(arena, g->n_nodes, int);

    for (int i = 0; i < g->n_nodes; i++)
        group[i] = g->nodes[i].phase == AP_UPDATE ? -1 : g->nodes[i].group;
    return ap_csr_new(arena, g->n_groups, g->n_nodes, group, NULL);
}

const double *rannc_node_sec(struct ap_arena *arena, const struct ap_graph *g,
                             const struct ap_cluster *cluster,
                             const struct rannc_rows *rows, const bool *varies)
{
    double *sec = AP_NEW_N(arena, g->n_nodes, double);
    struct ap_cost cost = {.variant = AP_COST_DEFAULT, .cluster = *cluster};
    bool *is_result = AP_NEW_N(arena, g->n_nodes, bool);
    struct pricing p = {g, rows, varies, gradients(arena, g), is_result, NULL};
    struct ap_csr groups = members(arena, g);

    for (int i = 0; i < g->n_results; i++)
        is_result[g->results[i].node] = true;
    p.seen = AP_NEW_N(arena, g->n_nodes, int);
    for (int c = 0; c < g->n_groups; c++) {
        const int *member = groups.item + groups.start[c];
        int n = ap_csr_count(&groups, c);
        double written = 0;
        for (int m = 0; m < n; m++)
            if (!is_leaf(g, member[m]))
                written += 1 + node_bytes(&p, member[m]);
        if (written == 0)
            continue;
        double all = group_sec(&p, &cost, member, n);
        for (int m = 0; m < n; m++)
            if (!is_leaf(g, member[m]))
                sec[member[m]] = all * (1 + node_bytes(&p, member[m])) / written;
    }
    return sec;
}
