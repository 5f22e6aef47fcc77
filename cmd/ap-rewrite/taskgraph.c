/* The task graph of a plan (task_graph.h), and its order by the list scheduler,
 * which must be the one that ap-exec runs. */
#include "taskgraph.h"

#include "task_graph.h"

int taskgraph_write(struct ap_tool *tool, struct ap_arena *arena,
                    const struct ap_pipeline_program *program)
{
    const struct ap_schedule_size size = {program->schedule, program->n_lanes,
                                          program->n_stages / program->n_lanes,
                                          program->microbatches, program->pairs};
    int **order = AP_NEW_N(arena, size.n_devices, int *);
    int *n = AP_NEW_N(arena, size.n_devices, int), n_edges = 0;
    struct ap_task_graph graph;
    struct ap_err err = {0};

    if (ap_schedule_traits[program->schedule].splits)
        ap_die_usage("--to taskgraph: the list scheduler has no schedule %s",
                     ap_schedule_names[program->schedule]);
    struct ap_buf out = {0};

    ap_task_graph_build(arena, program, &graph);
    if (ap_task_schedule(arena, &graph, &size, order, n, &err) ||
        (!program->alone && ap_task_same_order(program, &graph, order, n, &err)))
        ap_die(AP_BAD_INPUT, "--to taskgraph: %s", err.msg);
    ap_task_graph_to_json(&graph, &size, program, order, n, &out);
    ap_tool_write_bytes(tool, &out);
    ap_buf_free(&out);
    for (int t = 0; t < graph.n; t++)
        n_edges += graph.task[t].n_in;
    return ap_tool_finish(
        tool, ap_arena_printf(arena, ",\"tasks\":%d,\"edges\":%d,\"modules\":%d", graph.n,
                              n_edges, graph.n_modules));
}
