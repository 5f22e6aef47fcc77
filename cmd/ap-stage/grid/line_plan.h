/*
 * The plan that a line means, exactly: which layers are in which stage, on which devices,
 * how each stage is sharded, what is recomputed. What trainers cannot divide evenly is
 * refused.
 */
#ifndef LINE_PLAN_H
#define LINE_PLAN_H

#include "line/line.h"

/* What the lines of one model have in common (arena). */
struct line_model {
    struct ap_staged_graph of;
    int64_t batch;   /* rows of a step; 0: no input has a batch */
    int64_t experts; /* of a layer, which have a grid of devices of their own; 0: none */
    struct ap_layers layers;
    const int *first, *last;                 /* [layer]: blocks */
    const uint8_t *origins;                  /* [node] enum ap_origin */
    const bool *again[AP_N_LINE_RECOMPUTES]; /* [node]: is recomputed */
    const bool *full_read; /* likewise, by full and AP_TRAINER_STOPS_EARLY */
    const bool *module[AP_N_LINE_MODULES]; /* [node]: is of the module */
};
/* Linear in the graph; what *of points to must outlive the model. */
void line_model_find(struct ap_arena *arena, const struct ap_staged_graph *of,
                     struct line_model *model);

/* A line on the model's cluster: arena, model, line and stages are given. */
struct line_maker {
    struct ap_arena *arena;
    const struct line_model *model;
    struct ap_line line; /* laying completes it */
    struct ap_stages *stages;
    struct ap_axis_uses uses;
    struct ap_mesh mesh; /* of every stage */
};

/*
 * Fills *stages but for the members each, resharding, and the stages' texts: mesh,
 * microbatches, blocks and devices of each stage, its sharding and what it recomputes.
 * Stages are sharded side by side. -1: the model or the cluster has no such plan; err has
 * the reason.
 */
int line_build(struct line_maker *k, struct ap_err *err);

/* Its steps, for searches. Mesh, degrees and microbatches, and the blocks of each stage.
 * -1: the model or the cluster cannot be divided so. */
int line_lay(struct line_maker *k, struct ap_err *err);
/* The plan of a part of the model, whose graph and nests are there; a part need not have
 * all that the line says. -1: as above. */
int line_shard(const struct line_maker *k, struct ap_arena *arena, struct ap_plan *plan,
               struct ap_err *err);

/* ---- private to the plan of a line: degrees_plan.c ---- */

/*
 * Fills plan->choice, regather and whole (arena) for the graph, nests, mesh and
 * microbatch_choice already set: the plan in which every layer uses the axes as u gives
 * them, as a trainer would run it. Gradients are reduce-scattered if states are sharded.
 * -1 with the reason if there is no such plan.
 */
int line_plan_degrees(struct ap_arena *arena, const struct ap_axis_uses *u,
                      struct ap_plan *plan, struct ap_err *err);

/* ---- line_recompute.c ---- */

bool line_is_contraction(const struct ap_graph *g, int v);
/* A contraction of two values that both depend on the inputs. */
bool line_is_of_activations(const struct ap_graph *g, const uint8_t *from, int v);
/* Fills again of a model whose other members are there. */
void line_mark_recomputed(struct ap_arena *arena, struct line_model *model);
/* The same of its modules (line_modules.c), of which some are joined (arena). */
void line_mark_modules(struct ap_arena *arena, struct line_model *model);
const bool *line_join_modules(struct ap_arena *arena, const struct line_model *model,
                              unsigned modules);
/* What stages keep on the host. -1: the cluster has no link to it, or the model no such
 * values. */
int line_list_offloaded(const struct line_maker *k, struct ap_err *err);
/* [node of the graph] (arena): on the host, by bits of enum ap_line_offload; NULL: none.
 */
const bool *line_mark_offloaded(struct ap_arena *arena, const struct line_model *model,
                                unsigned offload);
/* What each stage recomputes. -1: its blocks have several layers, and the line counts. */
int line_list_recomputed(const struct line_maker *k, struct ap_err *err);

#endif
