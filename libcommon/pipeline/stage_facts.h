/* Between stage_cost.c, which says how a plan is priced, stage_many.c and stage_front.c.
 */
#ifndef AP_STAGE_FACTS_H
#define AP_STAGE_FACTS_H

#include "pipeline/stage_cost.h"

/* Where the memory of a value counts: a set of members of ap_stage_measure. */
enum ap_stage_counted {
    AP_IN_FIXED = 1,
    AP_IN_KEPT = 2,
    AP_IN_INPUTS = 4,
    AP_IN_BLOCK = 8,       /* of the block that reads it, recomputed at once */
    AP_IN_RECOMPUTED = 16, /* of all blocks */
    AP_STAYS = 32,         /* in fixed: readers of this layout have it already */
    AP_SUMMED = 64, /* in fixed, in f32: a sum over microbatches of 16-bit floats */
    AP_IN_GRADIENTS = 128
};

/* Of a part and its groups, for numbers of microbatches that lies on the microbatch axis
 * identical. */
struct ap_stage_fact {
    struct ap_stage_microbatch micro; /* of one of them; the arrays are the caller's */
    struct ap_stage_fact *next;
    int n_blocks;               /* above all numbers of blocks */
    const enum ap_phase *phase; /* [group] */
    bool *runs;                 /* [group]: with each microbatch */
    bool *whole;                /* [group]: on all rows, whenever it runs */
    bool *scalar;               /* [group]: reads and makes nothing but scalars */
    bool *split;                /* [node]: its value is one microbatch's */
    uint8_t *counted;           /* [node]: of values that groups hand out */
    int *reader;                /* [node]: with AP_IN_BLOCK, the block */
    bool *stays;                /* [operand of all groups]: AP_STAYS of what it reads */
};
/* Fills all but time, which is given, and next. */
void ap_stage_fact_fill(struct ap_arena *arena, const struct ap_subgraph *sub,
                        const struct ap_nests *nests, struct ap_stage_fact *f);

/* ---- stage_graph.c ---- */

/* [node]: made of constants and scalars alone; arena, as the others. */
const bool *ap_stage_made_of_scalars(struct ap_arena *arena, const struct ap_graph *g);
/* [node]: used outside of the stage. */
const bool *ap_stage_leaving(struct ap_arena *arena, const struct ap_subgraph *sub);
/* Operands and results of any group. */
int ap_stage_most_moved(const struct ap_nests *nests);
/* Whether the group reads and makes nothing but scalars. */
bool ap_stage_is_scalar(const struct ap_graph *g, const struct ap_nest *nest);

/* Whether a value is a weight, or one in another type or shape. */
bool ap_stage_is_weight(const struct ap_graph *g, int node);
/* The same, where the backward pass reads it, too. */
bool ap_stage_keeps_weight(const struct ap_graph *g, int node);
/* Bit per phase in which another group reads the value; phase: [group]. */
unsigned ap_stage_read_in(const struct ap_graph *g, const enum ap_phase *phase, int node);

/* ---- stage_trainer.c: what trainers do by themselves ---- */

/* A conversion of a stage's plan. */
struct ap_stage_sent {
    const struct ap_conversion *conv;
    const struct ap_node *node; /* its value's */
    bool weight;                /* gathered again for each pass */
    bool partial;               /* a sum is completed */
    bool inside;                /* read inside the stage */
    bool once;                  /* once per step, for what lies inside and is no scalar */
    bool shared;                /* its value is one microbatch's */
    unsigned read_in;           /* bit per phase */
    double more_bytes;          /* that the converted value has, beyond the value */
};
/* Steps that are made together: bytes of each kind on each set of axes. */
#define AP_N_PACKED 5
enum { AP_PACK_FORWARD, AP_PACK_BACKWARD, AP_PACK_SYNC, AP_PACK_UPDATE, AP_N_PACKS };
struct ap_stage_packs {
    double bytes[AP_N_PACKS][AP_N_PACKED][1 << AP_MAX_AXES];
};
/* What sums of gradients have in memory beside what counts already, and what the trainer
 * has otherwise: all the time, and per microbatch. */
void ap_stage_count_sent(const struct ap_stage_microbatch *micro,
                         const struct ap_stage_sent *sent, double *fixed, double *kept);
/* Whether the conversion is one that is sent together with others; adds it. */
bool ap_stage_pack(const struct ap_stage_microbatch *micro,
                   const struct ap_stage_sent *sent, struct ap_stage_packs *packs);
/* Adds their seconds, those beside the passes to gather_sec, too. */
void ap_stage_add_packs(const struct ap_stage_microbatch *micro,
                        const struct ap_stage_packs *packs, const struct ap_cost *cost,
                        struct ap_stage_point *point, double gather_sec[2]);

/* ---- stage_front.c ---- */

/* Passes (forward, backward) take no less than the host takes to launch their operators,
 * and than the weights that are gathered beside them, whose seconds they have. */
void ap_stage_wait_for(const double host[2], const double gather[2],
                       struct ap_stage_point *point);

#endif
