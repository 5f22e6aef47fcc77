/*
 * Problem: a plan is priced by the groups that searches decide about. If a device runs
 * the kernels that ap-fuse --kernels marked (program_kernels.c), a sum over columns reads
 * its operand in a kernel of its own, and a value may be computed in several kernels.
 * Idea: price the kernels of the document's program, by the same table of seconds, in
 * place of the plan's. Linear in the nodes.
 */
#include <math.h>

#include "price.h"

static bool is_inside(const struct ap_graph *g, int node, int first, int end)
{
    return node >= first && node < end && g->nodes[node].group == g->nodes[first].group;
}

/* What a group reads from outside, each value once, and leaves in memory; reader: [node],
 * the group that read it last. */
static void find_work(const struct ap_program *prog, int first, int end, int *reader,
                      const int *members, struct ap_kernel_work *w)
{
    const struct ap_graph *g = &prog->local;
    const struct ap_node *last = &g->nodes[end - 1];
    int64_t most = -1;

    *w =
        (struct ap_kernel_work){.kernel = ap_kernel_of_group(g, members, end - first),
                                .dtype = ap_value_shape(last)->dtype,
                                .precise = ap_kernel_is_precise(g, members, end - first)};
    for (int v = first; v < end; v++) {
        const struct ap_node *n = &g->nodes[v];
        const int64_t bytes = ap_shape_bytes(&n->shape);
        const double times = end - first > 1 ? 1 : ap_op_writes(n->op);
        w->flops += ap_node_flops(g, v);
        for (int k = 0; k < n->n_in; k++) {
            const int u = n->in[k];
            if (is_inside(g, u, first, end) || reader[u] == n->group)
                continue;
            reader[u] = n->group;
            w->bytes += (end - first > 1 ? 1 : ap_op_reads(n->op, k)) *
                        (double)ap_shape_bytes(&g->nodes[u].shape);
        }
        if (prog->buffer[v].offset < 0)
            continue;
        w->bytes += times * (double)bytes;
        if (bytes > most)
            w->dtype = ap_value_shape(n)->dtype;
        most = bytes > most ? bytes : most;
    }
    if (ap_ops[last->op].class == AP_CLASS_HEAVY)
        w->dtype = g->nodes[last->in[0]].shape.dtype;
}

/* Whether the group is a kernel: no other name, and nothing between devices. */
static bool is_kernel(const struct ap_program *prog, int first, int end)
{
    bool computes = false;

    for (int v = first; v < end; v++) {
        const enum ap_op_class class = ap_ops[prog->local.nodes[v].op].class;
        if (class == AP_CLASS_COLLECTIVE || class == AP_CLASS_LOCAL)
            return false;
        computes |= class != AP_CLASS_LEAF && class != AP_CLASS_TUPLE;
    }
    return computes && !ap_program_is_view(&prog->local, first);
}

static bool has_kernels(const struct ap_program *prog)
{
    for (int v = 1; v < prog->local.n_nodes; v++)
        if (prog->local.nodes[v].attrs->kernel > 0)
            return true;
    return false;
}

void price_kernels(struct ap_arena *arena, const struct cost_input *in,
                   const struct ap_program *prog, struct priced *out)
{
    const struct ap_graph *g = &prog->local;
    int *reader = AP_NEW_N(arena, g->n_nodes + 1, int);
    int *members = AP_NEW_N(arena, g->n_nodes + 1, int);
    double sum = 0, phase[AP_N_PHASES] = {0}, before = 0;

    if (!in->of.cluster.fused_attention || !has_kernels(prog))
        return;
    for (int v = 0; v < g->n_nodes; v++) {
        members[v] = v;
        reader[v] = -1;
    }
    for (int first = 0, end; first < g->n_nodes; first = end) {
        const int group = g->nodes[first].group;
        struct ap_kernel_work w;
        for (end = first + 1; end < g->n_nodes && g->nodes[end].group == group; end++)
            ;
        if (!is_kernel(prog, first, end))
            continue;
        find_work(prog, first, end, reader, members + first, &w);
        const double sec = ap_cost_kernel(&in->cost, &w) *
                           (group >= prog->each_lo && group < prog->each_hi
                                ? (double)ap_mesh_microbatches(&prog->mesh)
                                : 1);
        sum += sec;
        phase[g->nodes[end - 1].phase] += sec;
    }
    for (int p = 0; p < AP_N_PHASES; p++)
        before += out->phase_sec[p];
    const double more = sum - out->price.compute_sec;
    out->price.compute_sec = sum;
    out->price.serial_sec += more;
    out->price.step_sec += more;
    for (int p = 0; p < AP_N_PHASES && before > 0; p++)
        out->phase_sec[p] = phase[p] + out->phase_sec[p] / before * (before + more - sum);
}
