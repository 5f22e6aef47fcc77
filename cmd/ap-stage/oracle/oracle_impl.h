/* Private to oracle.c and oracle_plans.c: the known answers of the shard command. */
#ifndef ORACLE_IMPL_H
#define ORACLE_IMPL_H

#include "base/index_map.h"
#include "oracle/answer.h"
#include "oracle/oracle.h"

/* One request of a front: a logical mesh. */
struct request {
    int mesh; /* row of the oracle's meshes */
    int n_points;
    struct answer_point *points; /* arena */
};

/* Where a point comes from: plan_point.tag. */
struct origin {
    int mesh, index; /* row of the front that the command answered with */
    struct answer_point point;
};

/*
 * A sharding that was requested; nearly equally good plans share most of their shardings.
 */
struct known_plan {
    const char *line; /* the request after its id */
    int kind;         /* of devices that it was asked of */
    int n_points;
    const struct answer_point *points;
    char *sharding; /* malloc */
    bool names_only;
};

struct stage_oracle {
    struct ap_arena *arena;
    const struct stage_model *model;
    const struct plan_instance *inst;
    const struct stage_oracle_params *params;
    struct coproc_pool *const *pool; /* [kind] */
    bool lent;                       /* the pools are another oracle's */
    int n_entries, cap_entries;
    struct entry **entry;  /* the request */
    struct ap_index index; /* of entries, by ask */
    int n_columns, cap_columns;
    struct column *column;
    int n_meshes, cap_meshes;
    const char **mesh;
    int n_origins, cap_origins;
    struct origin *origin;
    int n_plans, cap_plans;
    struct known_plan *plan;
    const char *refusal;
    bool broken, cheaper; /* cheaper: than stage_oracle_least */
    struct stage_oracle_stats stats;
    /* the batch under way */
    struct request *request;
    int n_batch;
    struct stage_detail *detail; /* shardings are asked for */
};

/* The submesh that all replicas make up; false when the cluster has none. */
bool oracle_submesh(const struct plan_instance *inst, const struct plan_ask *ask,
                    int64_t *hosts, int64_t *devices);
/*
 * The ask for the lowest identical run, with all replicas in one submesh, if there is
 * one; a set without gaps is a run.
 */
struct plan_ask oracle_canonical(const struct stage_oracle *o,
                                 const struct plan_ask *ask);
/* A line of the protocol (ap-shard(1)), in the arena; plan: of the front, -1: none. */
const char *oracle_request(struct stage_oracle *o, int id, const struct plan_ask *ask,
                           int64_t hosts, int64_t devices, int mesh, int plan);
/* Runs jobs, each kind in its processes; kind_of: [job]; NULL: all jobs are of the first
 * kind. */
int oracle_run(struct stage_oracle *o, const struct coproc_job *jobs, const int *kind_of,
               int n, struct ap_err *err);
/* Takes an answer to the batch under way: its id, -1 with err. */
int oracle_take(void *ctx, const char *line, size_t len, struct ap_err *err);

#endif
