/* Private to ap-shard: plans within a limit of memory per device. */
#ifndef MEMORY_H
#define MEMORY_H

#include "problem/fold.h"

/* ---- ilp.c: the problem without memory ---- */

struct ilp_problem {
    struct shard_space space;
    struct select_builder builder;
    struct ap_problem problem;
    const int *var;    /* per group */
    const int *tensor; /* per node: the tensor whose copies (builder.copy) are its own */
    int n_vars;
};
int shard_ilp_build(struct ap_arena *arena, const struct shard_task *task,
                    const struct shard_fold *fold, const struct ap_plan *plans,
                    int n_plans, struct ilp_problem *out, struct ap_err *err);
/* What groups that are tied make of a graph, whatever the mesh. */
struct ilp_ties {
    int *var, *tensor; /* as in struct ilp_problem */
    int n_stars;
    const struct copy_set *stars;
};
void shard_ilp_ties(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_nests *nests, const struct shard_fold *fold,
                    struct ilp_ties *ties);
/* The problem in a space whose twins share their lists; ties outlive it. */
void shard_ilp_state(struct ap_arena *arena, const struct shard_space *space,
                     const struct shard_fold *fold, const struct ilp_ties *ties,
                     struct ilp_problem *out);
/* The same for a space at hand, whose twins share their lists. */
void shard_ilp_tie(struct ap_arena *arena, const struct shard_space *space,
                   const struct shard_fold *fold, struct ilp_problem *out);
/* The choice that a plan stands for, NULL when it is not in the space; and back. */
int *shard_ilp_choice(struct ap_arena *arena, const struct ilp_problem *p,
                      const struct ap_plan *plan);
struct ap_plan shard_ilp_plan(const struct ilp_problem *p, const int *choice);

/* ---- memory_model.c: what is surely in memory, and when ---- */

/* At the times lo .. hi - 1 these many bytes, by the strategies of one or two variables.
 */
struct mem_item {
    int lo, hi;
    int a, b;             /* variables; b is -1 when a alone decides */
    int n_b;              /* strategies of b, 1 without */
    const int64_t *bytes; /* [s_a * n_b + s_b] */
};

/* A user of a tensor, by its strategy: bytes in the layout that it asks for. */
struct mem_asker {
    int var;
    const int64_t *bytes; /* [strategy] */
};

/* What several users ask for, the largest of it, but no more than the tensor itself. */
struct mem_most {
    int lo, hi, home;
    const int64_t *own; /* [strategy of home] */
    int n_askers;
    const struct mem_asker *asker;
    int n_levels;
    const int64_t *level; /* what they may ask for, ascending */
};

/* What becomes of a copy: made for one phase, kept from one to the other, made twice. */
enum mem_state { MEM_ABSENT, MEM_FORWARD, MEM_LATER, MEM_KEPT, MEM_TWICE };

/* While it is kept these many bytes more, by the strategy of its tensor. */
struct mem_keep {
    int lo, hi, copy, home;
    const int64_t *extra; /* [strategy of home] */
};

/*
 * From one user of a phase until the next one, if the copy serves both ends of it; or
 * over a user between two that it serves, who does not ask for it.
 */
struct mem_hold {
    int lo, hi, copy, home;
    int turn; /* of the user before, or of the one between */
    bool later, over;
    const int64_t *extra; /* as of mem_keep */
};

struct mem_use {
    int edge; /* of the problem, from the copy to who may need it */
    int turn; /* of the copy's users, from 0 in the order in which they run; -1: unknown
               */
    bool later;
    uint8_t when; /* see ap_plan_when; AP_BEFORE without microbatches */
};

struct mem_copy {
    int home_edge, n_uses, n_turns;
    struct mem_use *use;
    bool both;      /* users in both phases */
    int64_t n_each; /* times that one microbatch after the other makes it again */
};

struct mem_model {
    int n_times; /* per group one for each operand's conversion, then one for its run */
    const int *base;       /* [group]: the first of these */
    int *const *slot_time; /* [group][slot]: that of its conversion */
    int n_items;
    struct mem_item *items;
    int n_mosts;
    struct mem_most *mosts;
    int n_keeps;
    struct mem_keep *keeps;
    int n_holds; /* those of a copy of one tensor stand together */
    struct mem_hold *holds;
    const struct ap_problem *problem;
    int n_vars, n_copies; /* of the problem; copies come after the variables */
    struct mem_copy *copy;
};

/*
 * The sum of all items, mosts, keeps and holds at a time is never more than what a plan's
 * program holds then. Tensors that never take `least` bytes are left out.
 */
void mem_model_build(struct ap_arena *arena, const struct ilp_problem *ip, int64_t least,
                     struct mem_model *m);
/* Whether the user of a copy who has this turn in a phase asks for it. */
bool mem_asks(const struct mem_model *m, const struct mem_copy *copy, bool later,
              int turn, const int *choice);
/* The level that the askers' strategies come to. */
int mem_most_level(const struct mem_most *most, const int *choice);
/* held[time], of n_times, for the choice of variables and the states of copies. */
void mem_model_held(const struct mem_model *m, const int *choice, int64_t *held);

/* ---- memory_price.c: the problem at prices of memory ---- */

/*
 * States of the copies by who asks for them: copies for both phases are kept, but made
 * twice where they were (a state) or where their tensor is remade (per node; may be
 * NULL).
 */
void mem_settle_copies(const struct mem_model *m, const struct ilp_problem *ip,
                       const bool *regather, int *choice);
/* The price of a settled choice, AP_FORBIDDEN or more when it is not legal. */
double mem_plan_score(const struct mem_model *m, const struct ilp_problem *ip,
                      const int *choice);
/* A node that says between which users of a phase a copy waits, and pays for it (but not
 * while those who do not ask for it run: only stars tell). */
struct mem_wait {
    int copy, node;
    bool later;
    int first, n; /* turns of these users */
    double *cost; /* [turn - first][strategy of its home]: until the next one */
    double *over; /* the same while that user runs, if it does not ask for it */
};

struct mem_priced {
    int n_stars; /* memory_copy_set.c: tensors whose copies are one node */
    struct mem_copy_set *star;
    int *star_of; /* [copy], -1 */
    int n_waits;
    struct mem_wait *wait;
    int *most; /* [mem_most]: a node that says its level; -1: it costs nothing */
    struct ap_problem problem; /* no more than the true value of any plan */
    double **kept;             /* [copy][strategy of its home]: price; NULL: none */
    int *later; /* [copy]: node of the copy for later phases, -1: there is none */
};
/*
 * The problem in which time counts `weight` (0 or 1) and what is held costs its prices;
 * before[t]: the sum of prices of the times before t. share[copy], 0 .. 1: how much of
 * what keeping a copy saves is taken off the later one's cost. out[var][strategy]: is
 * left out (NULL: nothing is, in all or of a variable). stars: copies of a tensor may be
 * one node.
 */
void mem_price_problem(struct ap_arena *arena, const struct mem_model *m,
                       const struct ilp_problem *ip, const double *before, double weight,
                       const double *share, bool *const *out, bool stars,
                       struct mem_priced *priced);
/* Takes shares from copies that the solution makes alone; false when there are none. */
bool mem_move_shares(const struct mem_model *m, const struct mem_priced *priced,
                     const int *choice, double step, double *share);
/* A settled choice as one of the priced problem, and back (in place). */
int *mem_priced_start(struct ap_arena *arena, const struct mem_model *m,
                      const struct mem_priced *priced, const int *choice);
void mem_priced_states(const struct mem_model *m, const struct ilp_problem *ip,
                       const struct mem_priced *priced, int *choice);
/* The plan of a settled choice; regather included. */
struct ap_plan mem_plan_of(const struct mem_model *m, const struct ilp_problem *ip,
                           const int *choice);

/* ---- memory_peak.c: what a plan's program needs ---- */

/*
 * Price (INFINITY: not legal) and the peak of the program's buffers, which may be larger
 * than it has to be where it is above the limit (0: none) anyway. alive_bytes, if asked
 * for: the most that is in use at once.
 */
void mem_measure(const struct ap_plan *plan, const struct ap_cost *cost, int64_t limit,
                 double *sec, int64_t *peak_bytes, int64_t *alive_bytes);
/* held[time] of the model's times: what is in use in the plan's program; -1: not legal.
 */
int mem_measure_held(const struct ap_plan *plan, const struct ap_cost *cost,
                     const struct mem_model *m, int64_t *held);
/* The largest values at the program's fullest moment: names, layouts, bytes. */
const char *mem_holders(struct ap_arena *arena, const struct ap_plan *plan,
                        const struct ap_cost *cost);
/* "16.0 GiB" */
const char *mem_size_text(struct ap_arena *arena, int64_t bytes);
/* BYTES, or a number with kB, MB, GB, KiB, MiB, GiB, TB, TiB; -1: neither. */
int64_t mem_size_parse(const char *text);

/* ---- memory.c ---- */

/*
 * Replaces the answer of the search without a limit by one whose program fits
 * task->memory_bytes; its bound holds for all plans of the space that fit. -1 with err
 * when none was found: the least memory found, a proven limit of it, and what holds it.
 */
int shard_memory(struct ap_arena *arena, const struct shard_task *task,
                 struct shard_answer *answer, struct ap_err *err);

#endif
