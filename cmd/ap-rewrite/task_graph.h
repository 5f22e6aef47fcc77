/*
 * Private to ap-rewrite. Rhino's task graph of a program: what runs, accumulates,
 * reduces, sends and receives for each microbatch, and what waits for what, between one
 * source and one sink; and a list scheduler that orders it. Tasks of one kind and stage
 * run the same groups: they share a module.
 */
#ifndef REWRITE_TASK_GRAPH_H
#define REWRITE_TASK_GRAPH_H

#include "pipeline/pipeline_program.h"

enum ap_task_kind {
    AP_TASK_SPLIT,    /* the source: the batch as microbatches */
    AP_TASK_INIT,     /* what a stage runs before the first microbatch */
    AP_TASK_FORWARD,  /* CG, compute gradients: the forward pass of a microbatch */
    AP_TASK_BACKWARD, /* and its backward pass; without stages one task has both */
    AP_TASK_GA,       /* adds a microbatch's gradients to the sums, on each device */
    AP_TASK_AR,       /* reduces the sums over devices */
    AP_TASK_AG, /* applies the gradients; in parts, where a stage waits for another */
    AP_TASK_SEND,
    AP_TASK_RECEIVE,
    AP_TASK_MERGE, /* the sink */
    AP_N_TASK_KINDS
};
extern const char *const ap_task_names[AP_N_TASK_KINDS]; /* "split", ..., "cg" twice */

/* The groups that tasks of a kind run in a stage. */
struct ap_task_module {
    enum ap_task_kind kind;
    int stage;
    int n; /* ranges of groups, lo[i] .. hi[i] - 1 */
    int *lo, *hi;
};

struct ap_task {
    enum ap_task_kind kind;
    int module;     /* -1: split, merge, send, receive */
    int stage;      /* -1: split, merge; of a message: where it is sent, or arrives */
    int microbatch; /* -1: once per step */
    int transfer, message; /* send, receive; else -1 */
    int n_in;
    const int *in; /* tasks that it waits for, ascending */
};

struct ap_task_graph {
    int n_modules;
    struct ap_task_module *module;
    int n;
    struct ap_task *task; /* the source first, the sink last */
};

/*
 * Of programs; arena. A program alone (ap_pipeline_of_program) has CG and AG, with GA
 * between them where it has microbatches. Linear in tasks, groups and messages.
 */
void ap_task_graph_build(struct ap_arena *arena, const struct ap_pipeline_program *of,
                         struct ap_task_graph *graph);

/*
 * The list scheduler: every lane's tasks in the order in which they start. A lane runs
 * one pass at a time, as soon as it can; it runs forwards as long as it holds fewer
 * microbatches than the schedule has in flight, then a backward. Forwards take 1,
 * backwards 2, all else no time. order[lane] and n[lane], arena. -1: tasks wait for each
 * other in a cycle. (Rhino's static scheduler, TePDist's task_scheduler.cc; the limit
 * alone makes it gpipe, 1f1b, interleaved or eager 1f1b.) O(lanes) per task.
 */
int ap_task_schedule(struct ap_arena *arena, const struct ap_task_graph *graph,
                     const struct ap_schedule_size *size, int **order, int *n,
                     struct ap_err *err);
/* Whether lanes of a pipeline program run passes in that order; -1 names the lane. */
int ap_task_same_order(const struct ap_pipeline_program *program,
                       const struct ap_task_graph *graph, int *const *order, const int *n,
                       struct ap_err *err);

/* A JSON object; program: the graph's. */
void ap_task_graph_to_json(const struct ap_task_graph *graph,
                           const struct ap_schedule_size *size,
                           const struct ap_pipeline_program *program, int *const *order,
                           const int *n, struct ap_buf *out);

#endif
