/*
 * Problem: the plan's conversions are priced one by one, but the program in the document
 * may reduce gradients in buckets (ap-rewrite --pack-bytes), whose latency is paid once.
 * Idea: price the collectives of the program's list and of the plan's own list in the
 * same way; the difference is the saving by packing. Only where both send the same bytes
 * by kind and axes: else the program is of another plan. Linear in the nodes.
 */
#include <math.h>

#include "price.h"

static bool is_row(const struct ap_program *prog, const struct ap_node *node,
                   const struct ap_coll_count *row)
{
    return node->op == row->op && node->attrs->coll.axes == row->axes &&
           !(row->axes & prog->mesh.microbatch);
}

/* Seconds of a step's collectives of one kind and axes. */
static double row_sec(const struct cost_input *in, const struct ap_program *prog,
                      const struct ap_coll_count *row)
{
    const struct ap_graph *g = &prog->local;
    double sec = 0;

    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        if (!is_row(prog, node, row))
            continue;
        const bool each = node->group >= prog->each_lo && node->group < prog->each_hi;
        const int64_t bytes =
            ap_coll_bytes(&prog->mesh, node, &g->nodes[node->in[0]].shape);
        sec += ap_cost_collective(&in->cost, node->op, row->axes, bytes) *
               (each ? (double)ap_mesh_microbatches(&prog->mesh) : 1);
    }
    return sec;
}

void price_packed(struct ap_arena *arena, const struct cost_input *in,
                  const struct ap_program *prog, struct priced *out)
{
    struct ap_coll_count *now;
    bool same = ap_program_collectives(arena, prog, &now) == out->n_colls;
    double saved = 0;

    for (int c = 0; c < out->n_colls && same; c++)
        same = now[c].op == out->colls[c].op && now[c].axes == out->colls[c].axes &&
               now[c].bytes == out->colls[c].bytes;
    for (int c = 0; c < out->n_colls && same; c++) {
        if (now[c].count == out->colls[c].count)
            continue;
        const double less = row_sec(in, &out->prog, &now[c]) - row_sec(in, prog, &now[c]);
        out->coll_sec[c] -= less;
        out->colls[c].count = now[c].count;
        saved += less;
    }
    out->price.comm_sec -= saved;
    out->price.serial_sec -= saved;
    out->phase_sec[AP_UPDATE] -= saved;
    if (!ap_cost_overlaps(&in->cost))
        out->price.step_sec -= saved;
    /* two streams are simulated without buckets, and take no more than one */
    out->price.step_sec = fmin(out->price.step_sec, out->price.serial_sec);
    out->overlap.exposed_sec = fmin(out->overlap.exposed_sec, out->price.comm_sec);
}
