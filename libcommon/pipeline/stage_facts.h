/* The interface between stage_cost.c, which prices a stage's plan, stage_groups.c, which
 * measures its operators, stage_trainer.c and stage_front.c. */
#ifndef AP_STAGE_FACTS_H
#define AP_STAGE_FACTS_H

#include "pipeline/stage_cost.h"

/* The members of ap_stage_measure in which the memory of a value counts. */
enum ap_stage_counted {
    AP_IN_FIXED = 1,
    AP_IN_KEPT = 2,
    AP_IN_INPUTS = 4,
    AP_IN_BLOCK = 8,       /* of the block that reads it, which is recomputed at once */
    AP_IN_RECOMPUTED = 16, /* of all blocks */
    AP_STAYS = 32,         /* in fixed: readers of this layout do not need a copy */
    AP_SUMMED = 64, /* in fixed, in f32: a sum over microbatches of 16-bit floats */
    AP_IN_GRADIENTS = 128,
    AP_ON_HOST = 256 /* instead of in fixed or in kept */
};

/* Facts of a part and its groups, for numbers of microbatches with equal placements on
 * the microbatch axis. */
struct ap_stage_fact {
    struct ap_stage_microbatch
        micro; /* of one such number; the arrays are the caller's */
    struct ap_stage_fact *next;
    int n_blocks;               /* larger than every block number */
    const enum ap_phase *phase; /* [group] */
    bool *runs;                 /* [group]: runs with each microbatch */
    bool *whole;                /* [group]: works on all rows */
    bool *scalar;               /* [group]: reads and makes scalars only */
    const bool *weights;        /* [group]: ap_stage_weights */
    bool *pending;          /* [node]: the rest of the backward pass leaves it to these */
    bool *split;            /* [node]: its value belongs to one microbatch */
    const bool *recomputed; /* [group]: runs again before each backward; NULL: none */
    uint16_t *counted;      /* [node]: for values that other groups read */
    int *reader;            /* [node]: with AP_IN_BLOCK, the block */
    const int64_t *updated; /* [node]: ap_stage_updated_bytes; NULL: not by the host */
    bool *stays; /* [operand of all groups]: AP_STAYS of the value that it reads */
};
/* Fills all members except micro, which is given, and next; nothing is recomputed. */
void ap_stage_fact_fill(struct ap_arena *arena, const struct ap_subgraph *sub,
                        const struct ap_nests *nests, struct ap_stage_fact *f);

/* ---- stage_front.c: sums of a measure ---- */

/* Seconds of the host to launch n operators of a phase, again if they are recomputed. */
void ap_stage_launch(const struct ap_cost *cost, enum ap_phase phase, bool again, int n,
                     struct ap_stage_measure *m);
/* Adds seconds of a microbatch in a phase, or of the update. */
void ap_stage_add_sec(struct ap_stage_measure *m, bool shared, enum ap_phase phase,
                      double sec);
/*
 * Steps of a plan for microbatches on a value of layout `from`: some are made with each,
 * the others once. Returns the seconds with each.
 */
double ap_stage_add_timed(const struct ap_path *path, const struct ap_layout *from,
                          enum ap_phase phase, struct ap_stage_measure *m);

/* ---- stage_groups.c ---- */

/* Whether both lie on the microbatch axis by the same arrays, so that facts are the same;
 * one microbatch is unlike several. */
bool ap_stage_same_axis(const struct ap_stage_microbatch *a,
                        const struct ap_stage_microbatch *b);
/* Adds the seconds and bytes of operators; known: [group], of ap_stage_know; block: as in
 * struct ap_stage_case. */
void ap_stage_measure_groups(struct ap_arena *scratch, const struct ap_stage_plan *stage,
                             const struct ap_stage_fact *fact,
                             const struct ap_stage_group *const *known, int block,
                             struct ap_stage_measure *measure);
/* Seconds of one group; of one microbatch's share if it runs once for each. */
double ap_stage_group_sec(const struct ap_stage_plan *stage,
                          const struct ap_stage_fact *fact, const struct ap_nest *nest,
                          const struct ap_stage_group *known);

/* ---- stage_graph.c ---- */

/*
 * [node]: depends on constants and scalars alone; in the arena, like the other results.
 */
const bool *ap_stage_made_of_scalars(struct ap_arena *arena, const struct ap_graph *g);
/* [node]: used outside of the stage. */
const bool *ap_stage_leaving(struct ap_arena *arena, const struct ap_subgraph *sub);
/* Whether the group reads and makes scalars only. */
bool ap_stage_is_scalar(const struct ap_graph *g, const struct ap_nest *nest);

/* Whether a value is a weight, or a weight in another type or shape. */
bool ap_stage_is_weight(const struct ap_graph *g, int node);
/* The same, for weights that the backward pass reads, too. */
bool ap_stage_keeps_weight(const struct ap_graph *g, int node);
/* [group] (arena): gradients of weights, groups of the backward phase of which neither
 * the rest of that phase nor another stage reads anything. phase: [group]; leaves:
 * [node]. */
bool *ap_stage_weights(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_nests *nests, const enum ap_phase *phase,
                       const bool *leaves);
/* Bit per phase in which another group reads the value; phase: [group]. */
unsigned ap_stage_read_in(const struct ap_graph *g, const enum ap_phase *phase, int node);

/* ---- stage_trainer.c: actions of trainers ---- */

/* A conversion of a stage's plan. */
struct ap_stage_sent {
    const struct ap_conversion *conv;
    const struct ap_node *node; /* its value's */
    bool weight;                /* gathered again for each pass */
    bool partial;               /* a sum is completed */
    bool inside;                /* read inside the stage */
    bool once;         /* once per step, for a value inside that is not a scalar */
    bool shared;       /* its value belongs to one microbatch */
    unsigned read_in;  /* bit per phase */
    double more_bytes; /* of the converted value, minus those of the value */
    double cut_bytes;  /* the same before the steps that add up over devices */
};
/* Counts additional memory of gradient sums and of the trainer: all the time, and per
 * microbatch. */
void ap_stage_count_sent(const struct ap_stage_microbatch *micro,
                         const struct ap_stage_sent *sent, double *fixed, double *kept);
/* Whether the conversion is sent together with others; if so, adds it. */
bool ap_stage_pack(const struct ap_stage_microbatch *micro,
                   const struct ap_stage_sent *sent, struct ap_stage_packs *packs);

/* ---- stage_beside.c: collectives beside what is computed ---- */

/* The groups of a stage's plan, among which are products. */
struct ap_stage_products {
    const struct ap_stage_plan *stage;
    const struct ap_stage_fact *fact;
    const struct ap_stage_group *const *group; /* as ap_stage_know has them */
};
/* Axes that experts are split over: those of the factor that all of a product has. */
unsigned ap_stage_expert_axes(const struct ap_plan *plan);
/* Whether tokens are sent to experts, or back. */
bool ap_stage_is_exchange(const struct ap_conversion *c, unsigned experts);
/*
 * Seconds that the conversion and the products beside which the trainer sends it take
 * less together than one after the other, of one of so many shares: those that read its
 * gathered tensor or make the one that it scatters (AP_TRAINER_TP_OVERLAP; negative where
 * parts of the products are too small), and weights' gradients of the same layer for a
 * sum of the backward pass (AP_TRAINER_WGRAD_OVERLAP).
 */
double ap_stage_beside_products(const struct ap_stage_products *of,
                                const struct ap_conversion *c, unsigned trainer,
                                int64_t shares);

#endif
