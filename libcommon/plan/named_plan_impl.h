/* The interface between named_plan.c, which seeds splits, and named_plan_sweep.c, which
 * lets groups follow them. */
#ifndef AP_NAMED_PLAN_IMPL_H
#define AP_NAMED_PLAN_IMPL_H

#include "plan/named_plan.h"

enum ap_sweep_mode {
    AP_SWEEP_BATCH,  /* follow splits of the batch; split parameters in the update and in
                        groups on weights alone (casts, transposes) */
    AP_SWEEP_TENSOR, /* follow every split; weights are decided by their first use */
    AP_SWEEP_SEQUENCE, /* the same, with activations between regions split along the
                          sequence */
    AP_SWEEP_EXPERT,   /* follow experts if there are some, the batch elsewhere */
    AP_SWEEP_GIVEN, /* follow every split, the batch first; weights and states without a
                       given layout follow their users */
    AP_SWEEP_FOLLOW /* follow every split */
};

/* What sweeps that ask users of weights (AP_SWEEP_TENSOR, AP_SWEEP_SEQUENCE) split of
 * experts. */
enum ap_sweep_experts {
    AP_EXPERTS_FIRST,  /* as other weights: the first dimension of theirs that may be */
    AP_EXPERTS_INSIDE, /* each expert, not which of them a device has */
    AP_EXPERTS_WHOLE,  /* nothing */
    AP_EXPERTS_ONLY    /* as inside, and no other weight; sums are not kept */
};

/* Properties of the nests alone, on any mesh. */
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
    enum ap_sweep_experts experts;
    int64_t n_experts; /* a router, whose output has as many columns, is whole; 0 */
    bool ring; /* attentions whose queries the axis splits are rings, if they have one */
    bool *batch;  /* per node: split along the batch on this axis */
    bool *aside;  /* per node: split along the sequence, or the experts, on this axis */
    bool *leaves; /* per group: partial at the end of a tensor parallel region */
    int16_t *seq; /* per group: its factor along the sequence, -1; NULL for none */
    const bool *derived, *update, *drawn; /* as in struct ap_sweep_facts */
    const int *member;
    const bool *fixed; /* per group: its choice was given; NULL for none */
    bool *decided;     /* per group: its choice on this axis stands */
    bool *uneven; /* points to one flag: a size was compared with a number of devices that
                     does not divide it or is not smaller */
};

/* Scratch for the sweeps of one plan (arena), whose choices they set. */
struct ap_sweep ap_sweep_new(struct ap_arena *arena, struct ap_plan *plan,
                             const bool *fixed);
/* The same; facts of the plan's nests. */
struct ap_sweep ap_sweep_with(struct ap_arena *arena, struct ap_plan *plan,
                              const bool *fixed, const struct ap_sweep_facts *facts);
/* Initializes the plan's choices, regather and whole for a sweep (arena): fixed choices
 * stay, and others are none. */
void ap_sweep_start(struct ap_arena *arena, struct ap_plan *plan, const bool *fixed);
/* Starts on another axis, and forgets the splits on the previous one. */
void ap_sweep_axis(struct ap_sweep *s, int axis, enum ap_sweep_mode mode);
/* The same, but what was chosen on the axis stands. */
void ap_sweep_again(struct ap_sweep *s, int axis, enum ap_sweep_mode mode);
/* Gives the nest's group choice c on the axis if that is legal and large enough. */
bool ap_sweep_try(const struct ap_sweep *s, const struct ap_nest *nest, int c);
/* Splits the batch of the inputs on the axis, and all values that follow. */
void ap_sweep_batch(struct ap_sweep *s, int axis);
/* ---- seeds on the sweep's axis: splits that others follow ---- */

/* The batch of the inputs. */
void ap_sweep_seed_batch(struct ap_sweep *s, int64_t batch);
/* The sequence of the inputs: integers [batch, seq], or numbers [batch, seq, features].
 * Returns the longest sequence; 0 if no input has one. */
int64_t ap_sweep_seed_sequence(struct ap_sweep *s);
/* A dimension of a parameter: one that no axis inside the sweep's splits, that the
 * devices of all the axes (bit mask) divide, else the largest; `largest`: whatever
 * divides. */
void ap_sweep_seed_split(struct ap_sweep *s, int id, unsigned axes, bool largest);

/*
 * Starts on an axis in AP_SWEEP_SEQUENCE: fills s->seq by a sweep along the sequence,
 * whose choices are undone afterwards, and splits inputs that are numbers, such as what a
 * stage gets from another one (Megatron-LM sends each device's share of the sequence). -1
 * if no input has a sequence, or it is shorter than the axis.
 */
int ap_sweep_start_sequence(struct ap_arena *arena, struct ap_plan *plan,
                            struct ap_sweep *s, int axis, struct ap_err *err);
/* Number of experts if a dot is batched over a weight, else 0. */
int64_t ap_sweep_experts_of(const struct ap_sweep *s, const struct ap_nest *nest);
/* Whether some dot is; otherwise AP_SWEEP_EXPERT marks nothing as
 * `aside`. */
bool ap_sweep_has_experts(const struct ap_sweep *s);
/* One pass over all groups that have operands and are not decided. */
void ap_sweep_run(struct ap_sweep *s);

#endif
