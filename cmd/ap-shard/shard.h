/* Private to ap-shard: the space of strategies, the selection problem, pins. */
#ifndef SHARD_H
#define SHARD_H

#include "baseline.h"
#include "problem.h"

struct shard_params {
    bool no_padding;      /* factors must divide */
    bool recompute_heavy; /* heavy operators may be replicated where compute is free */
    int solver;           /* row of shard_solvers */
    int64_t work_limit;
};

/* Strategies of every group, the baselines' own choices included. */
struct shard_space {
    const struct ap_graph *graph;
    const struct ap_nests *nests;
    const struct ap_cost *cost;
    int *n;                        /* per group */
    struct ap_choice_vec **choice; /* [group][strategy] */
    double **sec;                  /* [group][strategy] */
    uint64_t **sig;                /* [group][strategy]: hash of the layouts outside */
    int64_t n_strategies;          /* all together */
};

/* A pinned tensor: its layout is given. */
struct shard_pins {
    bool *pinned;             /* per node */
    struct ap_layout *layout; /* per node */
    int n, n_dropped;
};

/*
 * Lists the strategies of each group: every legal choice over its factors and linear sets
 * whose factors are at least as large as the devices that share them and are padded by at
 * most a quarter. A factor that is never the major one of a dimension is listed only
 * where those before it do not divide by the number of devices, linear sets only for
 * groups that add, move, convert or scale by a number. On meshes of more than two axes a
 * group has at most two different choices, each on neighbouring axes. Choices of the
 * given plans are added (so that the space holds the baselines). Pins remove strategies.
 */
int shard_space_build(struct ap_arena *arena, const struct ap_graph *g,
                      const struct ap_nests *nests, const struct ap_cost *cost,
                      const struct shard_params *params, const struct shard_pins *pins,
                      const struct ap_plan *plans, int n_plans, struct shard_space *space,
                      struct ap_err *err);

/* Strategy of the group with the layouts of this choice, -1 for none. */
int shard_space_find(const struct shard_space *space, int group,
                     const struct ap_choice_vec *choice);

/* Reads the imported shardings; those of a mesh of another shape are dropped (warned
 * once). */
int shard_pins_read(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_mesh *mesh, struct shard_pins *pins,
                    struct ap_err *err);

/* The answer of a search. */
struct shard_answer {
    struct ap_plan plan;
    double objective, bound;
    const char *stopped;
    int64_t work;
    int n_nodes, n_edges; /* of the selection problem */
    double build_sec, solve_sec;
};

struct shard_solver {
    const char *name, *help;
    ap_solver_fn *run;
    int64_t work_limit; /* unless one is given; 0: the solver's own */
};
extern const struct shard_solver shard_solvers[];

/* Alpa's integer program over the whole space, solved by params->solver; start: a plan.
 */
int shard_ilp(struct ap_arena *arena, const struct shard_space *space,
              const struct shard_params *params, const struct ap_plan *start,
              struct shard_answer *answer, struct ap_err *err);

#endif
