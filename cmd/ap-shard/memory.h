/* Private to ap-shard: plans within a limit of memory per device. */
#ifndef MEMORY_H
#define MEMORY_H

#include "fold.h"

/* ---- memory_model.c: what is surely in memory, and when ---- */

/* At the times lo .. hi - 1 these many bytes, by the strategies of one or two variables.
 */
struct mem_item {
    int lo, hi;
    int a, b;             /* variables; b is -1 when a alone decides */
    int n_b;              /* strategies of b, 1 without */
    const int64_t *bytes; /* [s_a * n_b + s_b] */
};

struct mem_model {
    int n_times; /* per group one for each operand's conversion, then one for its run */
    int n_items;
    struct mem_item *items;
};

/*
 * The sum of all items at a time is never more than what a plan's program holds then.
 * Tensors that never take `least` bytes are left out. var: per group. With `kept` copies
 * are taken to stay until the next use, and the sum may be more.
 */
void mem_model_build(struct ap_arena *arena, const struct shard_space *space,
                     const int *var, int64_t least, bool kept, struct mem_model *m);
/* held[time], of n_times, for the strategies of the variables. */
void mem_model_held(const struct mem_model *m, const int *choice, int64_t *held);

/* ---- memory_peak.c: what a plan's program needs ---- */

/* Price (INFINITY: not legal) and the peak of the program's buffers. */
void mem_measure(const struct ap_plan *plan, const struct ap_cost *cost, double *sec,
                 int64_t *peak_bytes);
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

/* ---- ilp.c: the problem without memory ---- */

struct ilp_problem {
    struct shard_space space;
    struct select_builder builder;
    struct ap_problem problem;
    int *var; /* per group */
    int n_vars;
};
int shard_ilp_build(struct ap_arena *arena, const struct shard_task *task,
                    const struct shard_fold *fold, const struct ap_plan *plans,
                    int n_plans, struct ilp_problem *out, struct ap_err *err);
/* The choice that a plan stands for, NULL when it is not in the space; and back. */
int *shard_ilp_choice(struct ap_arena *arena, const struct ilp_problem *p,
                      const struct ap_plan *plan);
struct ap_plan shard_ilp_plan(const struct ilp_problem *p, const int *choice);

#endif
