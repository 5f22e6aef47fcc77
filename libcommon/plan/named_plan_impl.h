/* Between named_plan.c, which seeds, and named_plan_sweep.c, which lets groups follow. */
#ifndef AP_NAMED_PLAN_IMPL_H
#define AP_NAMED_PLAN_IMPL_H

#include "plan/named_plan.h"

enum ap_sweep_mode {
    AP_SWEEP_BATCH,    /* follow what stems from the batch; split parameters in the update
                          and in what is made of weights alone (casts, transposes) */
    AP_SWEEP_TENSOR,   /* follow every split; weights are decided by their first use */
    AP_SWEEP_SEQUENCE, /* the same, and what lies between is split along the sequence */
    AP_SWEEP_EXPERT,   /* experts where there are some, the batch elsewhere */
    AP_SWEEP_GIVEN,    /* follow every split, that of the batch first; weights and states
                          that nothing was said of go with their users */
    AP_SWEEP_FOLLOW    /* follow every split */
};

/* What the nests alone say, on any mesh. */
struct ap_sweep_facts {
    const bool *derived; /* per group: made of weights and states only */
    const bool *update;  /* per group: of the update */
    const bool *drawn;   /* per group: made of positions and scalars only */
    const int *member;   /* per node: position in its group's members */
};
/* Arena. */
struct ap_sweep_facts ap_sweep_facts_find(struct ap_arena *arena,
                                          const struct ap_nests *nests);

struct ap_sweep {
    const struct ap_graph *g;
    const struct ap_nests *nests;
    const struct ap_mesh *mesh;
    struct ap_choice_vec *choice;
    int axis;
    enum ap_sweep_mode mode;
    bool ring; /* attentions whose queries the axis splits are rings, if they have one */
    bool *batch;  /* per node: split along the batch on this axis */
    bool *aside;  /* per node: split along the sequence, or the experts, on this axis */
    bool *leaves; /* per group: partial at the end of a tensor parallel region */
    int16_t *seq; /* per group: its factor along the sequence, -1; NULL for none */
    const bool *derived, *update, *drawn; /* as in struct ap_sweep_facts */
    const int *member;
    const bool *fixed; /* per group: its choice was given; NULL for none */
    bool *decided;     /* per group: its choice on this axis stands */
    bool *uneven; /* one: a size was compared with devices that do not divide it, or that
                     are not fewer */
};

/* Scratch for the sweeps of one plan (arena), whose choices they set. */
struct ap_sweep ap_sweep_new(struct ap_arena *arena, struct ap_plan *plan,
                             const bool *fixed);
/* The same; facts of the plan's nests. */
struct ap_sweep ap_sweep_with(struct ap_arena *arena, struct ap_plan *plan,
                              const bool *fixed, const struct ap_sweep_facts *facts);
/* The plan's choices, regather and whole as a sweep starts with them (arena): those that
 * are fixed, and none. */
void ap_sweep_start(struct ap_arena *arena, struct ap_plan *plan, const bool *fixed);
/* Starts on another axis: forgets what was split on the one before. */
void ap_sweep_axis(struct ap_sweep *s, int axis, enum ap_sweep_mode mode);
/* Gives the nest's group choice c on the axis if that is legal and large enough. */
bool ap_sweep_try(const struct ap_sweep *s, const struct ap_nest *nest, int c);
/* The axis takes the batch of the inputs, and all that follows. */
void ap_sweep_batch(struct ap_sweep *s, int axis);
/* ---- seeds on the sweep's axis: what lies split before anything follows ---- */

/* The batch of the inputs. */
void ap_sweep_seed_batch(struct ap_sweep *s, int64_t batch);
/* The sequence of the inputs: integers [batch, seq], or numbers [batch, seq, features].
 * Returns the longest; 0: no input has one. */
int64_t ap_sweep_seed_sequence(struct ap_sweep *s);
/* A parameter's dimension: that which divides by the devices of all the axes (bit mask),
 * else the largest. */
void ap_sweep_seed_split(struct ap_sweep *s, int id, unsigned axes, bool largest);

/* Fills s->seq by a sweep along the sequence, whose choices are taken back. -1: no input
 * has a sequence, or it is shorter than the axis. */
int ap_sweep_find_sequence(struct ap_arena *arena, struct ap_plan *plan,
                           struct ap_sweep *s, int axis, struct ap_err *err);
/* Whether some dot is batched over a weight, too: without one nothing is put aside in
 * AP_SWEEP_EXPERT. */
bool ap_sweep_has_experts(const struct ap_sweep *s);
/* One pass over all groups that have operands and are not decided. */
void ap_sweep_run(struct ap_sweep *s);

#endif
