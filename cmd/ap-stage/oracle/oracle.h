/*
 * Private to ap-stage: answers planners by asking the shard command, each distinct
 * question once, several processes side by side.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include "oracle/coproc.h"
#include "oracle/instance.h"

enum stage_recompute {
    STAGE_RECOMPUTE_AUTO,
    STAGE_RECOMPUTE_NONE,
    STAGE_RECOMPUTE_ALL,
    STAGE_RECOMPUTE_SELECTED /* auto, and stage_oracle_ask_light answers */
};

struct stage_oracle_params {
    double limit_sec; /* of an answer */
    enum stage_recompute recompute;
};

struct stage_oracle;

struct stage_oracle_stats {
    int64_t n_asked;    /* fronts that planners asked for, those known already aside */
    int64_t n_fronts;   /* fronts that were made */
    int64_t n_requests; /* lines that were answered */
    int64_t n_refused;  /* those answered with an error */
    int n_distinct;     /* runs of blocks, identical runs once */
    double wait_sec;    /* waiting for answers */
};

/* Asks these processes, [kind of device] of pool, which it ends. Model, params and the
 * array must outlive it. */
struct stage_oracle *stage_oracle_start(struct ap_arena *arena,
                                        const struct stage_model *model,
                                        const struct plan_instance *inst,
                                        const struct stage_oracle_params *params,
                                        struct coproc_pool *const *pool);
/* Another one that asks the processes of o, which must outlive it and ends them. */
struct stage_oracle *stage_oracle_share(struct stage_oracle *o,
                                        const struct stage_oracle_params *params);
/* plan_oracle_fn */
int stage_oracle_ask(void *oracle, const struct plan_ask *ask,
                     const struct plan_front **front, struct ap_err *err);

/* plan_ahead_fn, for both kinds of answers */
int stage_oracle_ahead(void *oracle, const struct plan_ask *ask, int n,
                       struct ap_err *err);

/* plan_oracle_fn: the price without the time of recomputation, a lower bound for every
 * selection of operators. Of an oracle with STAGE_RECOMPUTE_SELECTED. */
int stage_oracle_ask_light(void *oracle, const struct plan_ask *ask,
                           const struct plan_front **front, struct ap_err *err);

/*
 * plan_least_fn: a lower bound on the time of contractions. It is 0 once the command has
 * answered with less, as a command with other prices may.
 */
double stage_oracle_least(void *oracle, const struct plan_ask *ask);

/* The data of a chosen point of a stage. */
struct stage_detail {
    const char *mesh;       /* as --mesh */
    int64_t hosts, devices; /* submesh of all replicas */
    char *sharding;         /* section of the stage's graph; the oracle's */
    bool names_only;        /* it names a rule rather than layouts */
};
/*
 * Shardings of all stages at once, [stage] of detail. -1 when the command does not answer
 * with one.
 */
int stage_oracle_plans(struct stage_oracle *o, const struct plan_answer *answer,
                       struct stage_detail *detail, struct ap_err *err);

/* Whether the command ended, was silent or gave an invalid answer. */
bool stage_oracle_broken(const struct stage_oracle *o);
/* The first refusal that the command gave, NULL for none. */
const char *stage_oracle_refusal(const struct stage_oracle *o);
void stage_oracle_stats(const struct stage_oracle *o, struct stage_oracle_stats *stats);
/* Ends the processes. */
void stage_oracle_stop(struct stage_oracle *o);

#endif
