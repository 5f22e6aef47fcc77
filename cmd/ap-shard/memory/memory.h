/* Private to ap-shard: plans within a limit of memory per device. */
#ifndef MEMORY_H
#define MEMORY_H

#include "problem/fold.h"
#include "solve/memory.h"

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
    int n_sets;
    const struct copy_set *sets;
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

/* ---- memory_model.c: values that are in memory for certain, and when ---- */

struct mem_model {
    struct ap_memory memory; /* of an ilp_problem, which outlives it */
    /* times: per group one for each operand's conversion, then one for its run */
    const int *base;       /* [group]: the first of its times */
    int *const *slot_time; /* [group][slot]: the time of its conversion */
};

/*
 * The sum of all usage at a time never exceeds the memory in use in a plan's program.
 * Tensors that never take `least` bytes are left out.
 */
void mem_model_build(struct ap_arena *arena, const struct ilp_problem *ip, int64_t least,
                     struct mem_model *m);
/* The plan of a settled choice; regather included. */
struct ap_plan mem_plan_of(const struct ap_memory *m, const struct ilp_problem *ip,
                           const int *choice);

/* ---- memory_peak.c: the memory that a plan's program needs ---- */

/*
 * Price (INFINITY: not legal) and the peak of the program's buffers, which may be larger
 * than it has to be where it is above the limit (0: none) anyway. alive_bytes, if asked
 * for: the most that is in use at once.
 */
void mem_measure(const struct ap_plan *plan, const struct ap_cost *cost, int64_t limit,
                 double *sec, int64_t *peak_bytes, int64_t *alive_bytes);
/* held[time], for the model's times: the memory in use in the plan's program; -1 if the
 * plan is not legal. */
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
 * task->memory_bytes; its bound holds for all plans of the space that fit. -1 with err if
 * none was found: the least memory found, a proven lower limit, and the largest tensors.
 */
int shard_memory(struct ap_arena *arena, const struct shard_task *task,
                 struct shard_answer *answer, struct ap_err *err);

#endif
