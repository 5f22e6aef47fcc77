/*
 * The plan's parameters and results as a Python module of jax.sharding.PartitionSpecs.
 * JAX wants sizes that divide: what does not is None there, which leaves it to XLA.
 */
#include "hlo.h"

#include <string.h>

static bool divides(const struct ap_mesh *mesh, const struct ap_shape *shape,
                    const int *n, const int (*order)[AP_MAX_AXES])
{
    for (int d = 0; d < shape->rank; d++) {
        int64_t tiles = 1;
        for (int i = 0; i < n[d]; i++)
            tiles *= mesh->size[order[d][i]];
        if (shape->dims[d] % tiles)
            return false;
    }
    return true;
}

/* "P(None, 'x', ('y', 'z'))" */
static void put_spec(const struct ap_mesh *mesh, const struct ap_shape *shape,
                     const struct ap_layout *l, struct ap_buf *out, struct hlo_lost *lost)
{
    int n[AP_MAX_RANK], order[AP_MAX_RANK][AP_MAX_AXES], rank = shape->rank;
    enum hlo_said said = hlo_axes(mesh, shape, l, n, order);
    if (said == HLO_NOT_SAID ||
        !divides(mesh, shape, n, (const int(*)[AP_MAX_AXES])order)) {
        lost->partial += said == HLO_NOT_SAID;
        lost->strided += said != HLO_NOT_SAID;
        ap_buf_puts(out, "None");
        return;
    }
    lost->moved += said == HLO_MOVED;
    while (rank && !n[rank - 1])
        rank--;
    ap_buf_puts(out, "P(");
    for (int d = 0; d < rank; d++) {
        ap_buf_puts(out, d ? ", " : "");
        if (n[d] == 0)
            ap_buf_puts(out, "None");
        if (n[d] > 1)
            ap_buf_putc(out, '(');
        for (int i = 0; i < n[d]; i++)
            ap_buf_printf(out, "%s\"%s\"", i ? ", " : "", mesh->name[order[d][i]]);
        if (n[d] > 1)
            ap_buf_putc(out, ')');
    }
    ap_buf_putc(out, ')');
}

void jax_print(const struct ap_plan *plan, struct ap_buf *out, struct hlo_lost *lost)
{
    const struct ap_graph *g = plan->graph;
    const struct ap_mesh *mesh = &plan->mesh;
    *lost = (struct hlo_lost){0};
    ap_buf_puts(out, "from jax.sharding import PartitionSpec as P\n\naxis_names = (");
    for (int a = 0; a < mesh->n_axes; a++)
        ap_buf_printf(out, "\"%s\", ", mesh->name[a]);
    ap_buf_puts(out, ")\naxis_sizes = (");
    for (int a = 0; a < mesh->n_axes; a++)
        ap_buf_printf(out, "%lld, ", (long long)mesh->size[a]);
    ap_buf_puts(out, ")\n\nparams = {\n");
    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *node = &g->nodes[g->params[i]];
        struct ap_layout l = ap_plan_node_layout(plan, g->params[i]);
        ap_buf_puts(out, "    ");
        hlo_put_quoted(node->name, out);
        ap_buf_puts(out, ": ");
        put_spec(mesh, &node->shape, &l, out, lost);
        ap_buf_puts(out, ",\n");
    }
    ap_buf_puts(out, "}\n\nresults = [\n");
    for (int r = 0; r < g->n_results; r++) {
        struct ap_layout l = ap_plan_result_layout(plan, r);
        ap_buf_puts(out, "    ");
        put_spec(mesh, &g->nodes[g->results[r].node].shape, &l, out, lost);
        ap_buf_puts(out, ",\n");
    }
    ap_buf_puts(out, "]\n");
}
