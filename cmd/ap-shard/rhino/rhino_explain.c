/* --explain: the pieces, cones and segments of a rhino search, and its decisions. */
#include "base/csr.h"
#include "rhino/rhino.h"

/* One strategy of a value: "S0", "P", ... */
static void put_place(const struct rhino_axis *ax, int v, int strategy,
                      struct ap_buf *out)
{
    int group = ax->task->graph->nodes[v].group;
    struct ap_layout l = {{{0}}};
    l.axis[0] = *rhino_place(ax, group, ax->factor[group][strategy],
                             ax->task->nests->nest[group].n_ins + ax->view->out_slot[v]);
    ap_layout_print(&ax->mesh, &l, out);
}

static void put_tensor(const struct rhino_axis *ax, int v, int strategy,
                       struct ap_buf *out)
{
    const struct ap_node *node = &ax->task->graph->nodes[v];
    ap_buf_printf(out, "%s ", node->name);
    ap_shape_print(&node->shape, out);
    ap_buf_putc(out, ' ');
    put_place(ax, v, strategy, out);
}

void rhino_explain_axis(const struct rhino_axis *ax, const int *choice,
                        struct ap_buf *out)
{
    struct rhino_total total = rhino_axis_total(ax, choice);
    ap_buf_printf(out,
                  "axis %s: %lld devices, %d pieces, %lld strategies of %d groups, "
                  "%d segments, %.15g bytes\n",
                  ax->task->cost->mesh.name[ax->axis], (long long)ax->n_devices,
                  ax->n_pieces, (long long)ax->n_strategies, ax->view->n_groups,
                  ax->view->n_scopes, total.bytes);
}

static double edge_bytes(const struct rhino_axis *ax, const struct rhino_edge *edge,
                         const int *choice)
{
    double bytes = edge->cost[choice[edge->a] * ax->n[edge->b] + choice[edge->b]];
    return bytes >= RHINO_AFFINITY ? bytes - RHINO_AFFINITY : bytes;
}

static bool is_inside(const struct rhino_axis *ax, const struct rhino_cones *cones,
                      int group, int cone)
{
    return ax->view->scope_of[group] == cones->scope && !ax->view->constant[group] &&
           cones->cone[ax->view->position[group]] == cone;
}

/* Tensors that a group of the cone reads from other cones, and the move's bytes. */
static void put_cuts(const struct rhino_axis *ax, const struct rhino_cones *cones,
                     int cone, int i, const int *choice, struct ap_buf *out)
{
    const struct ap_nest *nest = &ax->task->nests->nest[i];

    for (int k = ax->edge_start[i]; k < ax->edge_start[i + 1]; k++) {
        const struct rhino_edge *edge = &ax->edge[ax->edge_of[k]];
        if (edge->b != i || edge->affinity || ax->view->constant[edge->a] ||
            is_inside(ax, cones, edge->a, cone))
            continue;
        ap_buf_puts(out, "    cut");
        int last = -1;
        for (int s = 0; s < nest->n_ins; s++) {
            int v = nest->ins[s].node;
            if (ax->task->graph->nodes[v].group != edge->a || v == last)
                continue;
            ap_buf_puts(out, last < 0 ? " " : ", ");
            put_tensor(ax, v, choice[edge->a], out);
            last = v;
        }
        ap_buf_printf(out, ": %.15g bytes\n", edge_bytes(ax, edge, choice));
    }
}

static void put_cone(const struct rhino_axis *ax, const struct rhino_cones *cones,
                     int cone, const int *member, int n_members, const int *choice,
                     struct ap_buf *out)
{
    int root = cones->root[cone];
    const struct ap_nest *nest = &ax->task->nests->nest[root];
    int v = nest->n_outs > 0 ? nest->outs[0] : nest->members[0];
    const struct ap_node *node = &ax->task->graph->nodes[v];

    ap_buf_printf(out, "  cone %d: %s ", cone, node->name);
    ap_shape_print(&node->shape, out);
    ap_buf_printf(out, ", %lld methods, %d groups;",
                  (long long)rhino_methods(&node->shape, ax->n_devices), n_members);
    for (int s = 0; s < ax->n[root]; s++) {
        ap_buf_puts(out, s == 0 ? " " : ", ");
        if (nest->n_outs > 0)
            put_place(ax, v, s, out);
        ap_buf_printf(out, "%s %.15g", s == choice[root] ? "*" : "",
                      cones->cost[cone][s]);
    }
    ap_buf_putc(out, '\n');
    for (int m = 0; m < n_members; m++)
        put_cuts(ax, cones, cone, member[m], choice, out);
}

void rhino_explain_scope(const struct rhino_axis *ax, const struct rhino_cones *cones,
                         const int *choice, double bytes, struct ap_buf *out)
{
    const struct rhino_view *view = ax->view;
    const int first = view->scope_start[cones->scope],
              n = view->scope_start[cones->scope + 1] - first,
              tail = view->tail[cones->scope];
    const struct ap_csr members =
        ap_csr_new(ax->arena, cones->n, n, cones->cone, view->scoped + first);

    ap_buf_printf(out, "segment %d: %d groups, %d cones, %.15g bytes", cones->scope, n,
                  cones->n, bytes);
    if (tail >= 0) {
        ap_buf_puts(out, ", tail ");
        put_tensor(ax, ax->task->nests->nest[tail].outs[0], choice[tail], out);
    }
    ap_buf_putc(out, '\n');
    for (int c = 0; c < cones->n; c++)
        put_cone(ax, cones, c, members.item + members.start[c], ap_csr_count(&members, c),
                 choice, out);
}
