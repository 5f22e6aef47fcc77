/*
 * A pipelined plan (the document's section "stages"): the blocks and devices of each
 * stage, its sharding, the number of microbatches and their order. ap-stage writes it,
 * ap-cost prices it, also when written by hand.
 */
#ifndef AP_STAGES_H
#define AP_STAGES_H

#include "graph/blocks.h"
#include "plan/plan.h"
#include "pipeline/reshard.h"
#include "pipeline/schedule.h"
#include "graph/subgraph.h"

/* The subject of a pipelined plan: a grouped graph with its nests and blocks, and a
 * cluster. */
struct ap_staged_graph {
    const struct ap_graph *graph;
    const struct ap_nests *nests; /* not used when a section is read */
    const struct ap_blocks *blocks;
    const struct ap_cluster *cluster;
};

/*
 * The values that a stage recomputes before each backward pass instead of keeping them.
 */
enum ap_recompute { AP_RECOMPUTE_NONE, AP_RECOMPUTE_ALL, AP_RECOMPUTE_SELECTED };

struct ap_stage {
    int n_blocks;
    const int *blocks; /* of the section "blocks", ascending */
    int64_t hosts, devices_per_host;
    /* global numbers (host * devices per host + device), in the order of the mesh of the
       stage's sharding; stages have disjoint devices, except for chunks of one device */
    int64_t n_devices;
    const int64_t *devices;
    enum ap_recompute recompute;
    int n_recomputed;
    const int *recomputed; /* nodes of the whole graph, AP_RECOMPUTE_SELECTED only */
    /* filled from the graph by the reader of the section */
    struct ap_subgraph sub;
    struct ap_nests nests;
    struct ap_sharding sharding; /* of sub.graph */
    /* the text to write: the section "sharding" of sub.graph */
    const char *sharding_json;
};

/* A grid's best line, for comparison with the plan. */
struct ap_grid_row {
    const char *name, *line;
    double step_sec;
    double whole_sec; /* of split backward passes: what the best plan of whole ones takes;
                         0: not said */
};

/* Lines of a search by what became of them; the others are priced, as `priced` counts,
 * and some of these do not fit. */
struct ap_line_counts {
    int64_t legal;     /* all of them; 0: there was no such search */
    int64_t priced;    /* with their plans */
    int64_t too_large; /* excluded: do not fit, by a bound or by their plans */
    int64_t too_slow;  /* excluded: no quicker than the best one, by a bound */
    int64_t no_plan;   /* the model has no such plan */
};

struct ap_stages {
    /* of a section "sharding": one stage, which is the whole graph, on devices that are
       not numbered, without a schedule */
    bool alone;
    const char *algorithm, *stopped;
    const char *shard_command; /* NULL: written by hand */
    const char *line;          /* that the plan was built from (ap-stage --grid); NULL */
    const char *for_trainer;   /* whose best line it is (ap-stage --for); NULL */
    struct ap_line_counts lines; /* that were searched */
    enum ap_schedule schedule;
    int chunks;
    int64_t microbatches;
    bool each; /* --microbatch each: reductions over the batch are per microbatch */
    enum ap_resharding resharding; /* of values that stages send each other */
    /* weights are gathered and gradients reduced while passes run, and devices wait only
       for those that take longer */
    bool overlap;
    unsigned trainer; /* bits of enum ap_trainer_trait */
    /* values on the host while nothing reads them: nodes of the whole graph, ascending,
       of parameters (ap_stage_is_optimizers) and of the forward pass */
    int n_offloaded;
    const int *offloaded;
    int64_t n_devices;   /* number of the cluster's devices that the plan may use */
    int64_t limit_bytes; /* memory limit per device in the search; 0: all its memory */
    bool throughput;     /* inference: seconds are the time between consecutive batches */
    double objective_sec,
        lower_bound_sec; /* simulated time of a step; 0: not given, not proven */
    /* [device]: order of its microbatches in the section "pipeline"
       (ap-cost reads it); NULL: the schedule's */
    const struct ap_instr_list *order;
    int n;
    struct ap_stage *stage; /* in forward order */
    const char *best_words; /* of the best plan, where this one is a simpler one; NULL */
    double best_sec;        /* its step */
    int n_grids;            /* read only, as these two */
    struct ap_grid_row *grid;
    const char *extra; /* written unchanged: members, each after a comma */
};

/* The set of devices that a stage is on: the first stage there. */
static inline int ap_stages_device(const struct ap_stages *s, int stage)
{
    return ap_schedule_device(s->schedule, s->n / s->chunks, stage);
}

/* Each stage's sharding_json must be there. */
void ap_stages_to_json(const struct ap_stages *s, struct ap_buf *out);
/* Makes a stage's sharding_json (arena) from its plan, and fills in its price and memory
 * if they are missing. -1 if the plan is not legal. */
int ap_stage_put_sharding(struct ap_arena *arena, const struct ap_cluster *cluster,
                          struct ap_stage *stage, struct ap_err *err);
/*
 * Reads the section's text, whose JSON is valid but for members that occur twice, and
 * checks: blocks exist, each is in one stage (tied weights are held by each stage that
 * reads them), edges between stages go forward, devices exist in the cluster, ascend, are
 * disjoint and as many as the mesh has, the shardings fit the stages' graphs. A
 * hand-written stage may leave out members with defaults, and its sharding may have only
 * "algorithm" (a named plan's name) and "mesh" (an object, or text such as "dp=2,tp=4").
 * -1 with the place in the message.
 */
int ap_stages_from_text(struct ap_arena *arena, const char *text, size_t len,
                        const struct ap_staged_graph *of, struct ap_stages *s,
                        struct ap_err *err);

/*
 * Where blocks have nodes that were moved: whether the stages can run, or wait for each
 * other for ever. -1 with the first such node. Cost: that of ap_pipeline_build.
 * (pipeline_build.c)
 */
int ap_stages_check_waits(const struct ap_staged_graph *of,
                          const struct ap_stages *stages, struct ap_err *err);

/* ---- a document's plan (planned.c) ---- */

struct ap_planned {
    struct ap_graph graph; /* grouped */
    struct ap_nests nests;
    struct ap_blocks blocks; /* none where the stage is alone */
    struct ap_cluster cluster;
    struct ap_stages stages;
};
struct ap_staged_graph ap_planned_of(const struct ap_planned *p);

/*
 * The document's plan: its stages, with its section "blocks", else its sharding, else all
 * on one device. The cluster is the one given, or the one at path, or the document's, or
 * as large a default as the plan's devices. *p must stay where it is. -1: bad input; 1:
 * the cluster at path has not all devices that the stages name. Messages name the file.
 */
int ap_doc_planned(struct ap_arena *arena, const struct ap_doc *doc, const char *path,
                   const struct ap_cluster *given, struct ap_planned *p,
                   struct ap_err *err);
/* The same as if the document had no stages. */
int ap_doc_alone(struct ap_arena *arena, const struct ap_doc *doc, const char *path,
                 const struct ap_cluster *given, struct ap_planned *p,
                 struct ap_err *err);
/* Only the section "sharding", of the stage's graph and nests. */
int ap_doc_sharding(struct ap_arena *arena, const struct ap_doc *doc, struct ap_stage *st,
                    struct ap_err *err);
/* Private to planned.c: only the sections "blocks" and "stages", and the cluster. */
int ap_doc_stages(struct ap_arena *arena, const struct ap_doc *doc, const char *path,
                  const struct ap_cluster *given, struct ap_planned *p,
                  struct ap_err *err);

/* The cost model of a stage's sharding on its devices, for this mesh (that of the
 * sharding, or with microbatches before it); ap_cost_free. */
int ap_stage_cost(struct ap_arena *arena, const struct ap_cluster *cluster,
                  const struct ap_stage *st, const struct ap_mesh *mesh,
                  struct ap_cost *cost, struct ap_err *err);

/* Groups of a stage's graph that run again before each backward (arena); n_nodes is of
 * the whole graph. */
bool *ap_stage_recomputed_groups(struct ap_arena *arena, const struct ap_stage *st,
                                 int n_nodes);

/* Stage of each node, by its block (arena). */
int *ap_stages_of_nodes(struct ap_arena *arena, const struct ap_stages *s,
                        const struct ap_graph *g, const struct ap_blocks *blocks);
/* The cluster that consists of these devices only, which ascend. -1 if they are not
 * spread evenly over hosts and the levels above, or have several kinds. */
int ap_cluster_take(const struct ap_cluster *whole, int64_t n, const int64_t *devices,
                    struct ap_cluster *c, struct ap_err *err);

/* ---- values on the host: stage_offload.c ---- */

/* Marks what is on the host (arena): [node of the graph]; NULL: nothing is. */
const bool *ap_stages_host(struct ap_arena *arena, const struct ap_stages *s,
                           const struct ap_graph *g);
/* The same of a stage's graph, [node of sub->graph], without what other stages send. */
const bool *ap_stages_host_of(struct ap_arena *arena, const struct ap_stages *s,
                              const struct ap_graph *g, const struct ap_subgraph *sub);
/* Whether a node is a state of the optimizer with dimensions, or a weight that passes
 * read as a copy in fewer bytes only. */
bool ap_stage_is_optimizers(const struct ap_graph *g, int node);
/* Whether a link will do for a plan of these traits (enum ap_trainer_trait), and what
 * else than a link one needs, for a message. */
bool ap_host_link_does(const struct ap_host_link *link, unsigned trainer);
const char *ap_host_link_lacks(unsigned trainer);
/* Writes the member "offload", if there is one, and reads it: refuses other values than
 * these and forward ones, and clusters of which no link to the host is known. */
void ap_stages_put_offload(const struct ap_stages *s, struct ap_buf *out);
int ap_stages_read_offload(struct ap_arena *arena, const json_t *o,
                           const struct ap_at *at, const struct ap_graph *g,
                           const struct ap_cluster *cluster, struct ap_stages *s,
                           struct ap_err *err);

/* ---- private to the section: stages_lines.c ---- */

/* Puts the members "for" and "lines" of a search for lines. */
void ap_stages_put_lines(const struct ap_stages *s, struct ap_buf *out);
/* Reads these, and "grids". */
int ap_stages_read_lines(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                         struct ap_stages *s, struct ap_err *err);

#endif
