/* Private to ap-cost: the price of a pipelined plan, and its reports. */
#ifndef PIPE_H
#define PIPE_H

#include "pipeline/pipeline_price.h"
#include "price.h"

struct pipe_input {
    struct ap_graph graph;
    struct ap_nests nests;
    struct ap_blocks blocks;
    struct ap_cluster cluster;
    struct ap_stages stages;
    int f32_matmul; /* row of ap_f32_matmul_modes, of the cluster that is read */
    bool by_hand;   /* the section has no objective */
    /* [device]: the arena that ap-rewrite plans for it; NULL: it can make no programs for
       such a plan */
    const int64_t *buffer_bytes;
};

/* How a device spends a step; adds up to the step's seconds. */
struct pipe_spent {
    double compute_sec, comm_sec; /* collectives inside the stage, gradients' aside */
    double send_sec, sync_sec, wait_sec;
};
/* On average over all devices of the plan. */
struct pipe_spent pipe_spent_by_all(const struct pipe_input *in,
                                    const struct ap_pipeline_price *p);

/* Seconds that the plan is to keep low: of a step, or between batches in a row. */
double pipe_aim_sec(const struct ap_stages *s, const struct ap_pipeline_price *p);

/* Bytes that each device of a stage may take: the limit of the search if there was one,
 * else what the device has. */
int64_t pipe_limit(const struct pipe_input *in, int stage);

/* The device with least memory to spare, of the plan's price: the fullest where all are
 * of one kind; its limit. */
int pipe_fullest(const struct pipe_input *in, const struct ap_pipeline_price *p,
                 int64_t *limit_bytes);

void headline_of_stages(struct ap_arena *arena, const struct pipe_input *in,
                        const struct ap_pipeline_price *p, struct headline *out);

/* The same of the arenas that ap-rewrite plans; -1: unknown. */
int pipe_fullest_arena(const struct pipe_input *in, const struct ap_pipeline_price *p,
                       int64_t *limit_bytes);

/* Section "cost". */
void pipe_to_json(struct ap_arena *arena, const struct pipe_input *in,
                  const struct ap_pipeline_price *p, struct ap_buf *out);

/* For people, at most 100 columns: the stages, where the time goes, what would help;
 * details: also what is recomputed, memory and weights. */
void pipe_report(struct ap_arena *arena, const struct pipe_input *in,
                 const struct ap_pipeline_price *p, bool details, struct ap_buf *out);
/* All changes that make the plan quicker. */
void pipe_changes(struct ap_arena *arena, const struct pipe_input *in,
                  const struct ap_pipeline_price *p, struct advice *out);
/* What would help most, by pricing the changed plan. */
void pipe_advice(struct ap_arena *arena, const struct pipe_input *in,
                 const struct ap_pipeline_price *p, struct ap_buf *out);

/* The step as a timeline in Perfetto's JSON: stages as processes, microbatches as slices.
 */
void pipe_trace(struct ap_arena *arena, const struct pipe_input *in,
                const struct ap_pipeline_price *p, struct ap_buf *out);

int pipe_why(struct ap_arena *arena, const struct pipe_input *in,
             const struct ap_pipeline_price *p, const char *node, struct ap_buf *out,
             struct ap_err *err);

/* Where the step's time parts from that of another plan of the graph, block by block; the
 * other one is pipelined, or has one sharding for all. */
int pipe_diff(struct ap_arena *arena, const struct pipe_input *in,
              const struct ap_pipeline_price *p, const struct ap_doc *other,
              struct ap_buf *out, struct ap_err *err);

/* Reads and prices the pipelined plan of a document; cluster NULL: the document's or the
 * one at path. in: zeros but for f32_matmul, and for graph and nests where they are
 * known. -1: bad input. */
int pipe_read(struct ap_arena *arena, const struct ap_doc *doc, const char *cluster_path,
              const struct ap_cluster *cluster, struct pipe_input *in,
              struct ap_pipeline_price *p, struct ap_err *err);

/* The section "stages" where it must be written again: it was by hand, or its objective
 * is not what the plan costs. Empty where it is right. */
struct ap_buf pipe_correct(struct ap_arena *arena, struct pipe_input *in,
                           const struct ap_pipeline_price *p, struct ap_err *err);

#endif
