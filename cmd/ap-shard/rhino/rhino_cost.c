/*
 * Costs on one axis, in bytes as Rhino counts them. An all-reduce counts the tensor once
 * on two devices and twice on more, whatever their number; an all-gather counts all but
 * the device's own part; an all-to-all counts the own part less the share that stays; a
 * slice counts 10 bytes, so that ties are broken in favour of an unchanged layout. A
 * partial value is reduced where it is made, completely; afterwards it is whole, and free
 * to slice. Each reader pays for its own conversion. Tensors have the sizes that the axes
 * before have left them.
 *
 * Cost: a table per edge, linear in edges. After TePDist, the open program of Rhino
 * (Zhang et al.), performance_utils.cc.
 */
#include "base/csr.h"
#include "rhino/rhino.h"

#include <math.h>

#define SLICE_BYTES 10

static double reduce_bytes(double bytes, int64_t n_devices)
{
    return n_devices == 2 ? bytes : 2 * bytes;
}

static double move_bytes(const struct ap_placement *from, const struct ap_placement *to,
                         double bytes, int64_t n_devices)
{
    double n = (double)n_devices;

    if (rhino_same(from, to) || from->kind == AP_PARTIAL || to->kind == AP_PARTIAL)
        return 0;
    if (from->kind == AP_REPLICATED)
        return SLICE_BYTES;
    if (to->kind == AP_REPLICATED)
        return bytes - bytes / n;
    return ceil(bytes / n) - bytes / (n * n);
}

/* Bytes of a node's value on a device, before this axis. */
static double local_bytes(const struct rhino_axis *ax, int v)
{
    const struct shard_task *task = ax->task;
    const struct ap_mesh *mesh = &task->cost->mesh;
    int group = task->graph->nodes[v].group;
    const struct ap_nest *nest = &task->nests->nest[group];
    struct ap_layout l = ap_nest_value_layout(nest, task->graph, mesh,
                                              &ax->earlier[group], ax->view->member[v]);
    return (double)ap_layout_local_bytes(mesh, &task->graph->nodes[v].shape, &l);
}

static const struct ap_placement *out_place(const struct rhino_axis *ax, int v,
                                            int strategy)
{
    int group = ax->task->graph->nodes[v].group;
    return rhino_place(ax, group, ax->factor[group][strategy],
                       ax->task->nests->nest[group].n_ins + ax->view->out_slot[v]);
}

/* ---- nodes ---- */

static void self_costs(struct rhino_axis *ax)
{
    const struct ap_graph *g = ax->task->graph;
    const struct ap_nests *nests = ax->task->nests;
    const struct ap_placement whole = {0};

    ax->self = AP_NEW_N(ax->arena, nests->n, double *);
    for (int i = 0; i < nests->n; i++) {
        ax->self[i] = AP_NEW_N(ax->arena, ax->n[i], double);
        for (int o = 0; o < nests->nest[i].n_outs; o++) {
            int v = nests->nest[i].outs[o];
            for (int s = 0; s < ax->n[i]; s++)
                if (out_place(ax, v, s)->kind == AP_PARTIAL)
                    ax->self[i][s] += reduce_bytes(local_bytes(ax, v), ax->n_devices);
        }
    }
    for (int r = 0; r < g->n_results; r++) {
        int v = g->results[r].node, i = g->nodes[v].group;
        for (int s = 0; g->results[r].alias < 0 && s < ax->n[i]; s++)
            ax->self[i][s] += move_bytes(out_place(ax, v, s), &whole, local_bytes(ax, v),
                                         ax->n_devices);
    }
}

/* ---- edges ---- */

/* Adds what slot k of group i pays for its tensor. */
static void charge_slot(const struct rhino_axis *ax, int i, int k, double *table)
{
    const struct ap_nest *nest = &ax->task->nests->nest[i];
    int v = nest->ins[k].node, home = ax->task->graph->nodes[v].group;
    double bytes = local_bytes(ax, v);

    for (int a = 0; a < ax->n[home]; a++)
        for (int b = 0; b < ax->n[i]; b++)
            table[a * ax->n[i] + b] +=
                move_bytes(out_place(ax, v, a), rhino_place(ax, i, ax->factor[i][b], k),
                           bytes, ax->n_devices);
}

/* A parameter and the value that it becomes have one layout; where they cannot, the value
 * is converted. */
static const double *affinity(const struct rhino_axis *ax, int param, int result)
{
    const struct ap_node *nodes = ax->task->graph->nodes;
    const struct ap_placement whole = {0};
    int n_a = ax->n[nodes[param].group], n_b = ax->n[nodes[result].group];
    double *table = AP_NEW_N(ax->arena, (int64_t)n_a * n_b, double);
    double bytes = local_bytes(ax, result);
    bool can_agree = false;

    for (int pass = 0; pass < 2; pass++)
        for (int a = 0; a < n_a; a++)
            for (int b = 0; b < n_b; b++) {
                const struct ap_placement *p = out_place(ax, param, a);
                const struct ap_placement *q = out_place(ax, result, b);
                q = q->kind == AP_PARTIAL ? &whole : q;
                can_agree |= rhino_same(p, q);
                if (pass == 1 && !rhino_same(p, q))
                    table[a * n_b + b] = move_bytes(q, p, bytes, ax->n_devices) +
                                         (can_agree ? RHINO_AFFINITY : 0);
            }
    return table;
}

static void add_edge(struct rhino_axis *ax, int a, int b, bool is_affinity,
                     const double *cost)
{
    ax->edge[ax->n_edges++] = (struct rhino_edge){a, b, is_affinity, cost};
}

static void list_edges(struct rhino_axis *ax)
{
    const struct ap_graph *g = ax->task->graph;
    const struct ap_nests *nests = ax->task->nests;
    int *seen = AP_NEW_N(ax->arena, nests->n, int), cap = g->n_results;
    double **table = AP_NEW_N(ax->arena, nests->n, double *);

    for (int i = 0; i < nests->n; i++) {
        cap += nests->nest[i].n_ins;
        seen[i] = -1;
    }
    ax->edge = AP_NEW_N(ax->arena, cap, struct rhino_edge);
    for (int i = 0; i < nests->n; i++)
        for (int k = 0; k < nests->nest[i].n_ins; k++) {
            int home = g->nodes[nests->nest[i].ins[k].node].group;
            if (seen[home] != i) {
                seen[home] = i;
                table[home] =
                    AP_NEW_N(ax->arena, (int64_t)ax->n[home] * ax->n[i], double);
                add_edge(ax, home, i, false, table[home]);
            }
            charge_slot(ax, i, k, table[home]);
        }
    for (int r = 0; r < g->n_results; r++) {
        int param = g->results[r].alias, result = g->results[r].node;
        if (param < 0 || g->nodes[param].group == g->nodes[result].group)
            continue;
        add_edge(ax, g->nodes[param].group, g->nodes[result].group, true,
                 affinity(ax, param, result));
    }
}

void rhino_axis_costs(struct rhino_axis *ax)
{
    self_costs(ax);
    list_edges(ax);
    int *end = AP_NEW_N(ax->arena, 2 * ax->n_edges + 1, int);
    int *edge = AP_NEW_N(ax->arena, 2 * ax->n_edges + 1, int);
    for (int e = 0; e < ax->n_edges; e++) {
        end[2 * e] = ax->edge[e].a;
        end[2 * e + 1] = ax->edge[e].b;
        edge[2 * e] = edge[2 * e + 1] = e;
    }
    const struct ap_csr edges =
        ap_csr_new(ax->arena, ax->task->nests->n, 2 * ax->n_edges, end, edge);
    ax->edge_start = edges.start;
    ax->edge_of = edges.item;
}

struct rhino_total rhino_axis_total(const struct rhino_axis *ax, const int *choice)
{
    const uint8_t *constant = ax->view->constant;
    struct rhino_total total = {0};

    for (int i = 0; i < ax->task->nests->n; i++)
        total.bytes += constant[i] ? 0 : ax->self[i][choice[i]];
    for (int e = 0; e < ax->n_edges; e++) {
        const struct rhino_edge *edge = &ax->edge[e];
        double cost = edge->cost[choice[edge->a] * ax->n[edge->b] + choice[edge->b]];
        if (constant[edge->a] || constant[edge->b])
            continue;
        total.n_mismatches += cost >= RHINO_AFFINITY;
        total.bytes += cost >= RHINO_AFFINITY ? cost - RHINO_AFFINITY : cost;
    }
    return total;
}
