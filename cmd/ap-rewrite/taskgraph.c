/* The task graph of a plan (task_graph.h), and its order by the list scheduler,
 * which must be the one that ap-exec runs. */
#include "taskgraph.h"

#include "pipe.h"
#include "task_graph.h"

/* pipeline: of stages, or NULL. */
static int put(struct ap_tool *tool, struct ap_arena *arena,
               const struct ap_task_graph *graph, const struct ap_schedule_size *size,
               const struct ap_pipeline_program *pipeline)
{
    int **order = AP_NEW_N(arena, size->n_devices, int *);
    int *n = AP_NEW_N(arena, size->n_devices, int), n_edges = 0;
    struct ap_err err = {0};
    struct ap_buf out = {0};

    if (ap_task_schedule(arena, graph, size, order, n, &err) ||
        (pipeline && ap_task_same_order(pipeline, graph, order, n, &err)))
        ap_die(AP_BAD_INPUT, "--to taskgraph: %s", err.msg);
    ap_task_graph_to_json(graph, size, pipeline, order, n, &out);
    ap_tool_write_bytes(tool, &out);
    ap_buf_free(&out);
    for (int t = 0; t < graph->n; t++)
        n_edges += graph->task[t].n_in;
    return ap_tool_finish(
        tool, ap_arena_printf(arena, ",\"tasks\":%d,\"edges\":%d,\"modules\":%d",
                              graph->n, n_edges, graph->n_modules));
}

int taskgraph_of_stages(struct ap_tool *tool, struct ap_arena *arena,
                        const struct ap_doc *doc)
{
    struct staged_input in = {0};
    struct ap_pipeline_program program;
    struct ap_task_graph graph;

    pipe_build(arena, doc, &(struct ap_program_form){.split = true}, &in, &program);
    const struct ap_schedule_size size = {program.schedule, program.n_lanes,
                                          in.stages.chunks, program.microbatches};
    ap_task_graph_build(arena, &program, &graph);
    return put(tool, arena, &graph, &size, &program);
}

int taskgraph_of_program(struct ap_tool *tool, struct ap_arena *arena,
                         const struct ap_program *prog)
{
    const struct ap_schedule_size size = {AP_SCHEDULE_INFERENCE, 1, 1,
                                          (int)ap_mesh_microbatches(&prog->mesh)};
    struct ap_task_graph graph;

    ap_task_graph_of_program(arena, prog, &graph);
    return put(tool, arena, &graph, &size, NULL);
}
