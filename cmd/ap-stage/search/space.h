/*
 * What planners share beyond planner.h: runs of blocks and what they cost under one
 * number of replicas and microbatches, comparison of answers.
 */
#ifndef SPACE_H
#define SPACE_H

#include "judge/planner.h"

/* ---- runs of blocks ---- */

struct space {
    struct ap_arena *arena;
    const struct plan_instance *inst;
    const struct plan_params *params;
    int n;                /* blocks */
    int n_runs, *run;     /* [lo * n + hi]: runs of one content have one number */
    int *run_lo, *run_hi; /* [run]: the first one */
    /* [block]: bytes of the whole batch over the cut after it, [1] of gradients */
    int64_t *split_bytes[2], *whole_bytes[2];
    int64_t n_asked, n_plans;
    struct plan_ask *noted; /* arena */
    int n_noted, cap_noted;
};
void space_init(struct space *sp, struct ap_arena *arena,
                const struct plan_instance *inst, const struct plan_params *params);

/*
 * Devices of each kind as one number: digit k of it, which has the weight stride[k], is
 * the number of kind k, 0 to most[k]. With one kind it is the number of devices.
 */
struct plan_counts {
    int n_kinds, width; /* width: of such numbers */
    int most[AP_MAX_KINDS], stride[AP_MAX_KINDS];
};
static inline int counts_digit(const struct plan_counts *c, int number, int kind)
{
    return number / c->stride[kind] % (c->most[kind] + 1);
}

/* The space under one number of replicas and microbatches. */
struct config {
    int replicas;
    int64_t microbatches;
    int hosts, devices;        /* of one replica and of the first kind */
    struct plan_counts counts; /* of one replica */
    double capacity;           /* its devices, each counted with its kind's speed */
    double speed[AP_MAX_KINDS];
    int n_meshes;
    const struct plan_submesh *mesh;
    const struct plan_front **front; /* [run * n_meshes + mesh], NULL: not asked yet */
};
/* All submeshes of the replica's share that params allow, or those given. false: no such
 * share, or none of it. */
bool config_init(struct space *sp, struct config *c, int replicas, int64_t microbatches,
                 const struct plan_submesh *mesh, int n_meshes);
/*
 * The price of blocks lo to hi on a mesh of the configuration. -1 if the oracle failed.
 */
int config_front(struct space *sp, struct config *c, int lo, int hi, int mesh,
                 const struct plan_front **front, struct ap_err *err);
/*
 * Where a planner knows several questions before it needs their answers it notes them
 * all, then asks for them at once. note: false when config_front has the answer already.
 */
bool config_note(struct space *sp, struct config *c, int lo, int hi, int mesh);
int space_ask_noted(struct space *sp, struct ap_err *err);
static inline int mesh_size(const struct plan_submesh *m)
{
    return m->hosts * m->devices;
}
/*
 * The submesh's share of the configuration's capacity. Bounds count it times seconds: if
 * all stages' products are at least w, no plan is below w / capacity, whatever the speeds
 * are.
 */
static inline double config_weight(const struct config *c, int mesh)
{
    return mesh_size(&c->mesh[mesh]) * c->speed[c->mesh[mesh].kind];
}
/* Its devices as a number of the counts; whether a number has them. */
static inline int config_take(const struct config *c, int mesh)
{
    return mesh_size(&c->mesh[mesh]) * c->counts.stride[c->mesh[mesh].kind];
}
static inline bool config_has(const struct config *c, int number, int mesh)
{
    return counts_digit(&c->counts, number, c->mesh[mesh].kind) >=
           mesh_size(&c->mesh[mesh]);
}
/* Bytes of one microbatch and replica over the cut after a block, rounded down. */
int64_t config_cut(const struct space *sp, const struct config *c, int block,
                   bool backward);

/* ---- answers ---- */

/* A copy that shares nothing but points. */
struct plan_answer plan_copy(struct ap_arena *arena, const struct plan_answer *a);
/*
 * The time that planners with simulation minimize: the step, or, for inference without
 * params->latency, the time between batches.
 */
double plan_score(const struct plan_instance *inst, const struct plan_params *params,
                  const struct plan_answer *a);
/* Seconds that a training step takes at least if sends took no time: of the busiest group
 * of devices, after the way through the stages before it, and with the way back or
 * what it does once. */
double plan_least_bare(const struct plan_answer *a);
/* The best few different plans, best first. */
#define SHORTLIST 16
struct shortlist {
    int n;
    struct plan_answer plan[SHORTLIST];
    double score[SHORTLIST];
};
void shortlist_put(struct ap_arena *arena, struct shortlist *l, double score,
                   const struct plan_answer *a);
/* Judges and scores; 1: the plan does not fit, or has other submeshes than params allow.
 */
int plan_try(struct space *sp, struct plan_answer *a, double *score, struct ap_err *err);

/* -1: the planner has pipelines of 1f1b and gpipe only, and another schedule is asked
 * for. */
int plan_check_schedule(const char *name, const struct plan_params *params,
                        struct ap_err *err);
/* A planner's words where it has found no plan. Returns 1. */
int plan_none_fits(const char *name, struct ap_err *err);

/* ---- planners ---- */

plan_fn plan_auto, plan_alpa, plan_rhino, plan_rannc, plan_equal_layer,
    plan_equal_operator, plan_intra_only, plan_inter_only, plan_pp_dp,
    plan_equal_pipelines, plan_equal_replicas, plan_none, plan_exhaustive, plan_given;

/* Rounds of RaNNC's Algorithm 2: hosts of a pipeline and the stages tried on them. */
struct plan_rannc_loop {
    int hosts, devices, replicas, first_stages, last_stages;
};
int plan_rannc_loops(int n_hosts, int n_devices, struct plan_rannc_loop loop[32]);

/* ---- Alpa's dynamic program (alpa.c), with the restrictions of its named plans ---- */

struct alpa_limits {
    const bool *allowed; /* [lo * n + hi], NULL: all runs */
    int n_stages;        /* 0: any */
    bool idle;           /* the least sum may leave devices over, as others do */
    bool schedule_gpipe; /* all microbatches in flight */
};
/* The plans that searches have met, in the space's arena. */
struct alpa_plans {
    struct plan_answer own;    /* of the least objective, 0 stages: none */
    struct shortlist quickest; /* simulated */
    bool limited;              /* a search met its limit of work */
};
/* Adds to the plans; what is no better than those is not looked for. -1: the oracle
 * broke. */
int alpa_search(struct space *sp, struct config *c, const struct alpa_limits *limits,
                struct alpa_plans *plans, struct ap_err *err);
/* Σ t + (B - 1) max t + what the first stage pays once per step; stages x max t x B for
 * inference. */
double alpa_objective(const struct plan_instance *inst, const struct plan_answer *a);
/* Simulates a plan, fills its objective, and keeps it if it is among the quickest
 * (alpa_quickest.c). */
void alpa_take(struct space *sp, struct alpa_plans *plans, struct plan_answer *a);
/* The same where `n` stages from `first` on have the points that are quickest over a
 * step: the sum sees what the first stage pays once only. */
void alpa_take_fastest(struct space *sp, struct alpa_plans *plans,
                       const struct plan_answer *like, int first, int n);
/* The quickest plan after improvement, the others, and the paper's choice. */
void alpa_put_quickest(struct space *sp, struct alpa_plans *plans,
                       struct plan_answer *answer);

#endif
