/*
 * Rhino's blocks: the segments between critical nodes, with the cones inside them.
 *
 * Problem and idea: libcommon/graph/critical.c and cones.c; this row writes down what
 * they find. --blocks joins segments into this number of groups, as the published
 * program's FORWARD_SUB_GRAPH_NUM does. The published program gives the last group the
 * remainder of the division, and has one group by default; here groups are equal up to
 * one segment, and by default every segment is a group, as in the paper. At levels 0 to 2
 * cones end at blocks and critical nodes are roots; at 3 and 4 the graph is one scope.
 * Cost: linear in nodes and edges. After Rhino (Zhang et al., "Auto-Parallelizing Large
 * Models with Rhino: A Systematic Approach on Production AI Platform"), 4.3.1 and 4.3.2.
 */
#include "coarsen.h"
#include "graph/critical.h"

#include <string.h>

/* For --stats; cut: operators' values that blocks read from others, once per block. */
static const char *stats_of(struct ap_arena *arena, const struct ap_graph *g,
                            int n_critical, const struct ap_segments *s, int n_cones)
{
    struct ap_parts parts;
    int64_t bytes = 0;

    ap_parts_of(arena, g, s->n, s->segment_of, &parts);
    for (int i = 0; i < parts.in_start[parts.n]; i++)
        bytes = ap_add64(bytes, ap_shape_bytes(&g->nodes[parts.in[i]].shape));
    return ap_arena_printf(arena,
                           ",\"critical\":%d,\"segments\":%d,\"cones\":%d,"
                           "\"cut_tensors\":%d,\"cut_bytes\":%lld",
                           n_critical, ap_segments_max(n_critical), n_cones,
                           parts.in_start[parts.n], (long long)bytes);
}

enum ap_exit coarsen_rhino(struct ap_arena *arena, const struct ap_graph *g,
                           const struct coarsen_params *params,
                           struct coarsen_answer *answer, struct ap_err *err)
{
    enum ap_critical_rule rule = (enum ap_critical_rule)params->rhino.critical;
    int level = params->rhino.level;
    bool scopes = ap_cone_level_has_scopes(level);
    const int *critical;
    int n_critical = ap_critical_nodes(arena, g, rule, &critical);
    struct ap_segments s;
    struct ap_cones cones;

    if (params->n_blocks > ap_segments_max(n_critical)) {
        ap_err_set(err, "%d blocks, but %d critical nodes (%s) make at most %d",
                   params->n_blocks, n_critical, ap_critical_names[rule],
                   ap_segments_max(n_critical));
        return AP_NO_SOLUTION;
    }
    ap_segments_of(arena, g, n_critical, critical, params->n_blocks, &s);
    answer->n = s.n;
    memcpy(answer->block_of, s.segment_of, (size_t)g->n_nodes * sizeof(int));
    ap_blocks_carry(arena, g, s.n, answer->block_of);
    ap_cones_of(arena, g, scopes ? answer->block_of : NULL, level,
                scopes ? n_critical : 0, critical, &cones);
    answer->more = (struct ap_blocks){.n_critical = n_critical,
                                      .critical = critical,
                                      .n_cones = cones.n,
                                      .cone_of = cones.cone_of,
                                      .cone_root = cones.root};
    answer->stats = stats_of(arena, g, n_critical, &s, cones.n);
    return AP_OK;
}
