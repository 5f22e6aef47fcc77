/*
 * Plans for trainers: degrees as flags and files. A trainer runs one use per device axis
 * and cuts pipelines between layers; a plan that is not of that kind becomes the nearest
 * one that is, with its price and what differs.
 */
#ifndef REWRITE_TRAINER_H
#define REWRITE_TRAINER_H

#include "line/trainer.h"
#include "pipeline/pipeline_price.h"
#include "tool/tool.h"

/* A plan on its way to a trainer. */
struct trainer_plan {
    struct ap_arena *arena;
    const char *model;
    struct ap_plan_line s;    /* with stages its line has the layers of each */
    struct ap_axis_uses uses; /* of the mesh of a plan without stages */
    int n_layers;
};

struct trainer_price {
    double sec;         /* of a step */
    int64_t peak_bytes; /* of the fullest device */
};

/*
 * Writes the document's plan, or stages, for a trainer, to the tool's output; what
 * differs to standard error. Ends the tool when the plan is bad or has no near one.
 * Returns the exit code.
 */
int trainer_rewrite(struct ap_tool *tool, struct ap_arena *arena,
                    const struct ap_doc *doc, const struct ap_trainer *trainer);

/* ---- the nearest line: trainer_fit.c ---- */

/* Whether the trainer can run the line of the plan; err says why not. */
int trainer_check(const struct ap_trainer *t, const struct ap_line_facts *facts,
                  const struct trainer_plan *p, struct ap_err *err);
/*
 * Moves what the trainer cannot run to the nearest that it can, in the line and in the
 * uses of the axes, and the batch to what divides; a note for each change. -1: nothing
 * near is legal, err says what is wrong with the plan itself. Ends the tool where the
 * plan does not train.
 */
int trainer_fit(const struct ap_trainer *t, const struct ap_line_facts *facts,
                struct trainer_plan *p, struct ap_notes *notes, struct ap_err *err);

/* ---- stages: trainer_stages.c ---- */

/* A graph with the layers of its model and the stages that were planned. */
struct trainer_model {
    const struct ap_staged_graph *of;
    const struct ap_layers *layers;
    const struct ap_stages *stages;
};

/* Layers of each stage of the line (arena), by where most of their FLOPs are; layers that
 * are cut are noted. -1 where layers are not in the order of the stages, or there are
 * none. */
int trainer_layers_by_stage(struct ap_arena *arena, const struct trainer_model *model,
                            struct ap_notes *notes, struct ap_line *line,
                            struct ap_err *err);
/* Gives all stages of the line as many layers, or one more (arena). */
void trainer_even_layers(struct ap_arena *arena, struct trainer_plan *p);
/* The price of stages as ap-cost says it: memory is that of their programs. -1: err. */
int trainer_price(struct ap_arena *arena, const struct ap_staged_graph *of,
                  const struct ap_stages *stages, struct trainer_price *price,
                  struct ap_err *err);
/* The price of the plan that the trainer runs, on the devices of the stages at hand. -1:
 * there is none. */
int trainer_price_stages(struct ap_arena *arena, const struct trainer_model *model,
                         const struct trainer_plan *p, struct trainer_price *price,
                         struct ap_err *err);

#endif
