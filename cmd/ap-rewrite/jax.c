/*
 * The plan's parameters and results as a Python module of jax.sharding.PartitionSpecs.
 * JAX requires sizes that divide: other dimensions are None there, which leaves them to
 * XLA. Specs pin the layouts at the edges of the step. This fixes the collectives of the
 * plan that bring results to their layouts; XLA decides anew which partial sums are kept
 * and where they are completed, and to which layout each use converts a value. How many
 * these are, and of how many bytes, is said.
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

static bool is_strided(const struct ap_mesh *mesh, const struct ap_layout *l)
{
    for (int a = 0; a < mesh->n_axes; a++)
        if (l->axis[a].kind == AP_SPLIT && l->axis[a].stride)
            return true;
    return false;
}

static bool is_partial(const struct ap_mesh *mesh, const struct ap_layout *l)
{
    for (int a = 0; a < mesh->n_axes; a++)
        if (l->axis[a].kind == AP_PARTIAL)
            return true;
    return false;
}

void jax_count(const struct ap_plan *plan, const struct ap_conversions *conv,
               struct jax_pinned *sum)
{
    const int n_groups = plan->nests->n;

    *sum = (struct jax_pinned){0};
    for (int i = 0; i < conv->n; i++) {
        const struct ap_conversion *c = &conv->conv[i];
        int64_t count = 0, bytes = 0;
        for (int k = 0; k < c->path.n_steps; k++) {
            const struct ap_step *step = &c->path.steps[k];
            if (ap_ops[step->op].class != AP_CLASS_COLLECTIVE)
                continue;
            count += step->times;
            bytes = ap_add64(bytes, ap_mul64(step->bytes, step->times));
        }
        sum->count += count;
        sum->bytes = ap_add64(sum->bytes, bytes);
        if (c->first_group == n_groups || count == 0)
            continue; /* of a result */
        bool partial = is_partial(&plan->mesh, &c->from);
        *(partial ? &sum->sums : &sum->changes) += count;
        int64_t *all = partial ? &sum->sum_bytes : &sum->change_bytes;
        *all = ap_add64(*all, bytes);
        if (is_strided(&plan->mesh, &c->from) || is_strided(&plan->mesh, &c->to))
            sum->strided += count;
    }
}

void jax_put_pinned(struct ap_arena *arena, const struct jax_pinned *p,
                    struct ap_buf *out)
{
    int64_t left = p->sums + p->changes;

    ap_buf_printf(out, "the plan has %lld collectives of %s", (long long)p->count,
                  ap_size_text(arena, p->bytes));
    if (left == 0)
        return;
    ap_buf_printf(
        out,
        "; its specs pin %lld of them (%s); XLA decides anew: %lld that complete "
        "partial sums (%s), %lld that change a layout between uses (%s)",
        (long long)(p->count - left),
        ap_size_text(arena, p->bytes - p->sum_bytes - p->change_bytes),
        (long long)p->sums, ap_size_text(arena, p->sum_bytes), (long long)p->changes,
        ap_size_text(arena, p->change_bytes));
    if (p->strided)
        ap_buf_printf(out, "; %lld have strided layouts", (long long)p->strided);
}

/* What an assignment, or an item, starts and ends with. */
static void put_start(const char *name, bool items, struct ap_buf *out)
{
    ap_buf_printf(out, items ? "     \"%s\": " : "%s = ", name);
}

void jax_put_specs(const struct ap_plan *plan, bool items, struct ap_buf *out,
                   struct hlo_lost *lost)
{
    const struct ap_graph *g = plan->graph;
    const struct ap_mesh *mesh = &plan->mesh;
    const char *end = items ? ",\n" : "\n", *in = items ? "         " : "    ";

    put_start("axis_names", items, out);
    ap_buf_putc(out, '(');
    for (int a = 0; a < mesh->n_axes; a++)
        ap_buf_printf(out, "\"%s\", ", mesh->name[a]);
    ap_buf_printf(out, ")%s", end);
    put_start("axis_sizes", items, out);
    ap_buf_putc(out, '(');
    for (int a = 0; a < mesh->n_axes; a++)
        ap_buf_printf(out, "%lld, ", (long long)mesh->size[a]);
    ap_buf_printf(out, ")%s%s", end, items ? "" : "\n");
    put_start("params", items, out);
    ap_buf_puts(out, "{\n");
    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *node = &g->nodes[g->params[i]];
        struct ap_layout l = ap_plan_node_layout(plan, g->params[i]);
        ap_buf_puts(out, in);
        hlo_put_quoted(node->name, out);
        ap_buf_puts(out, ": ");
        put_spec(mesh, &node->shape, &l, out, lost);
        ap_buf_puts(out, ",\n");
    }
    ap_buf_printf(out, "%s}%s%s", items ? "     " : "", end, items ? "" : "\n");
    put_start("results", items, out);
    ap_buf_puts(out, "[\n");
    for (int r = 0; r < g->n_results; r++) {
        struct ap_layout l = ap_plan_result_layout(plan, r);
        ap_buf_puts(out, in);
        put_spec(mesh, &g->nodes[g->results[r].node].shape, &l, out, lost);
        ap_buf_puts(out, ",\n");
    }
    ap_buf_printf(out, "%s]%s", items ? "     " : "", end);
}

void jax_print(const struct ap_plan *plan, const struct ap_conversions *conv,
               struct ap_buf *out, struct hlo_lost *lost)
{
    struct ap_arena scratch = {0};
    struct jax_pinned pinned;

    *lost = (struct hlo_lost){0};
    jax_count(plan, conv, &pinned);
    if (pinned.count) {
        ap_buf_puts(out, "# ");
        jax_put_pinned(&scratch, &pinned, out);
        ap_buf_putc(out, '\n');
    }
    ap_buf_puts(out, "from jax.sharding import PartitionSpec as P\n\n");
    jax_put_specs(plan, false, out, lost);
    ap_arena_free(&scratch);
}
