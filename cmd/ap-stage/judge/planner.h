/*
 * Private to ap-stage: the problem that planners of pipelines solve, without the graph. A
 * chain of blocks (or any DAG over them) is cut into stages, and stages get submeshes. An
 * oracle gives the price of a run of blocks on a submesh: in ap-stage it is the shard
 * command, and in tests random tables.
 */
#ifndef PLANNER_H
#define PLANNER_H

#include "base/work.h"
#include "cost/cost.h"
#include "pipeline/pipeline_price.h"
#include "tool/tool.h"

/* A value that forward nodes of one block make and other blocks read. */
struct plan_value {
    int from; /* block */
    int n_to;
    const int *to;             /* blocks, ascending, all after `from` */
    int64_t forward_bytes;     /* of the whole batch; of one step if not `split` */
    int64_t backward_bytes;    /* of its gradient likewise; 0 when it has none */
    int n_forward, n_backward; /* tensors that those are, 0 as 1 */
    bool split; /* a microbatch sends its share; otherwise each sends it all */
    bool once;  /* the gradient is a sum over the step, of a weight of several blocks; the
                   weight's new value comes back */
};
struct plan_links; /* memo of estimated_sends.c */

/* One way to run a part of the model, as ap-shard --serve answers. */
struct plan_point {
    double forward_sec, backward_sec; /* per microbatch; recompute is in backward_sec */
    double sync_sec, update_sec;      /* once per step */
    int64_t stage_bytes;              /* of a device, whatever is in flight */
    int64_t passing_bytes;    /* the part that is needed only while a pass runs: a device
                                 needs it for one of its stages at a time */
    int64_t microbatch_bytes; /* of a device and microbatch in flight */
    bool recompute;
    int mesh; /* row of the oracle's logical meshes, for whoever asks for the sharding */
    int tag;  /* the oracle's own */
};

/* Bytes of a device that the stage has at any time, whatever is in flight. */
static inline int64_t plan_always_bytes(const struct plan_point *p)
{
    return p->stage_bytes - p->passing_bytes;
}

/* Blocks lo to hi on hosts x devices, or those in the set. */
struct plan_ask {
    int lo, hi;          /* both included */
    const uint64_t *set; /* bit per block; NULL: lo to hi */
    int hosts, devices;  /* of one replica */
    int kind;            /* of devices: row of the instance's kinds */
    int replicas;        /* such submeshes side by side, batch split over them */
    int64_t microbatches;
};

struct plan_front {
    int n; /* 0: nothing runs it (does not fit, batch too small) */
    const struct plan_point *point; /* none as good as another in everything */
    double least_sec;    /* forward and backward of a microbatch: no plan is below this */
    int64_t least_bytes; /* of a device with one microbatch in flight, likewise */
};

/* The same ask gets the same pointer, at no cost the second time. -1: the oracle broke.
 */
typedef int plan_oracle_fn(void *oracle, const struct plan_ask *ask,
                           const struct plan_front **front, struct ap_err *err);

/* Announces questions, most of which will be asked, so that their answers are computed
 * concurrently. */
typedef int plan_ahead_fn(void *oracle, const struct plan_ask *ask, int n,
                          struct ap_err *err);

/*
 * Seconds of forward and backward of a microbatch that no answer to the ask is below,
 * known without asking; a run's are at least the sum of its parts'.
 */
typedef double plan_least_fn(void *oracle, const struct plan_ask *ask);

/* Hosts of one kind of device in a cluster of several: they follow each other. */
struct plan_kind {
    int first_host, n_hosts;
    double memory_share; /* of the largest kind's memory, (0, 1] */
    double speed;        /* of a device, of the fastest kind's; any number > 0 is right */
};

struct plan_instance {
    int n_blocks;
    const double *flops; /* [block], forward, of the whole batch (rhino, equal-*) */
    const int *n_ops;    /* [block], forward operators (equal-operator) */
    const int *twin; /* [lo * n_blocks + hi]: lowest start of an identical run; NULL: not
                        known */
    int n_values;
    const struct plan_value *value;
    const struct ap_cluster *cluster; /* links and memory of a device */
    int n_hosts, n_devices;           /* n_devices: of a host */
    int n_kinds; /* 0: all devices are of one kind; a stage has devices of one kind */
    const struct plan_kind *kind;
    /* of a device, of the kind that has most: others have their share; 0: no limit */
    int64_t memory_bytes;
    bool monotone; /* no run of blocks is faster, or needs less memory, than a part of it
                    */
    /* for estimates of sends (estimated_sends.c), NULL: not kept. Plans are priced again,
       with their layouts; bounds count no sends, so that they are below that price, too
     */
    struct plan_links *links;
    int n_microbatches;
    const int64_t *microbatches; /* what may be tried, ascending */
    bool inference;              /* no backward: schedule inference only */
    plan_oracle_fn *ask;
    plan_ahead_fn *ahead; /* NULL: one question is as quick as another */
    plan_least_fn *least; /* NULL: nothing is known before */
    void *oracle;
};

struct plan_submesh {
    int hosts, devices;
    int kind; /* row of the instance's kinds */
};

struct plan_stage {
    int lo, hi;
    const uint64_t *set; /* NULL: lo to hi */
    int hosts, devices, kind;
    const struct plan_point *point;
    int first_host, first_device; /* of the first replica, counted from the kind's first
                                     host; filled by plan_place; chunks of one device have
                                     one place */
};

/* The parts of a plan that are reused (outline.h): stages without points. */
struct plan_outline {
    const char *file;     /* for messages */
    int n_blocks;         /* each is in one stage */
    int schedule, chunks; /* enum ap_schedule, -1: not said */
    int64_t microbatches; /* 0: any */
    int replicas;         /* by plan_outline_fit, as hosts, devices and kind of stages */
    int n_stages;
    struct plan_stage *stage;
    struct ap_ints *devices; /* [stage]: of all replicas, ascending */
};

struct plan_params {
    int schedule;      /* enum ap_schedule, -1: any that the planner has */
    int n_stages;      /* 0: any */
    int submesh_space; /* row of plan_submesh_spaces */
    int n_submeshes;   /* > 0: of the space `all`, only these */
    const struct plan_submesh *submesh;
    double epsilon_sec; /* alpa: gap of t_max that is not tried */
    double imbalance;   /* rhino: tolerance of a stage's FLOPs, 0.08 */
    bool search_all;    /* rannc: goes on after the first number of stages that fits */
    bool latency;       /* inference: the time of one batch, not the slowest stage's */
    int64_t n_kept;     /* auto: plans that are simulated */
    int64_t work_limit; /* 0: the planner's own */
    const struct plan_outline
        *given;           /* the only plan, or where auto starts; NULL: none */
    struct ap_work *work; /* shows the progress of the search; may be NULL */
};

struct plan_answer {
    int n_stages;
    struct plan_stage *stage;
    int replicas; /* of the whole pipeline, each on whole hosts or, if there are more than
                     hosts, on an equal part of one; replica r is r * all devices /
                     replicas devices on, all devices being those of the stage's kind */
    int64_t microbatches;
    enum ap_schedule schedule;
    int chunks;
    double objective, bound; /* the planner's own measure; bound 0: nothing is proven */
    const char *measure;     /* what objective counts: "alpa", "bytes", "simulated" ... */
    const char *stopped;     /* why the search ended */
    int64_t n_asked, n_plans; /* fronts used, complete plans looked at */
    /* the judge's, by plan_judge */
    double step_sec;
    double batch_sec;   /* inference: from one batch to the next, of many in a row */
    int64_t peak_bytes; /* of the fullest device, as plan_whole_bytes */
    bool typed;         /* auto: of the grids that people type */
    /* other plans that are nearly as good, best first, judged: for whoever prices plans
       more closely */
    /* alpa: of the least objective, which is the paper's choice; NULL: this one */
    const struct plan_answer *own;
    int n_others;
    const struct plan_answer *others;
};

/* 0; 1: no plan under the limits (explain.c says what would do); -1. */
typedef int plan_fn(struct ap_arena *arena, const struct plan_instance *inst,
                    const struct plan_params *params, struct plan_answer *answer,
                    struct ap_err *err);

/* The dimensions that an algorithm cuts; others have one part in all its plans. */
enum plan_cuts { PLAN_CUTS_STAGES, PLAN_CUTS_BATCH, PLAN_CUTS_NOTHING };
struct plan_algorithm {
    const char *name, *help; /* as struct ap_choice */
    plan_fn *run;            /* NULL: grids of the model itself (grid/grid_rows.h) */
    enum plan_cuts cuts;
    bool replans; /* asked again, with less memory, if its plans do not fit as written */
    bool kinds;   /* plans for several kinds of devices */
};
/* The table, the default first, NULL name last. */
const struct plan_algorithm *plan_algorithms(void);
/* The plan of params->given; no row of the table, since it needs one. */
const struct plan_algorithm *plan_given_algorithm(void);

/* ---- what all planners share (judge.c) ---- */

/*
 * Submeshes that a stage may have. power-of-two (the default): (1, 2^p) and (2^q, M);
 * small-power-of-two: q <= 2; all: (1, 2^p) and every (n, M); any: every (1, d) and (n,
 * M), of which some have no place side by side. (1, M) and the whole are
 * always among them. Ascending by devices.
 */
extern const struct ap_choice plan_submesh_spaces[];
enum { PLAN_ALL_SUBMESHES = 2, PLAN_ANY_SUBMESHES };
int plan_submeshes(struct ap_arena *arena, int space, int n_hosts, int n_devices,
                   struct plan_submesh **out);
bool plan_may_have(const struct plan_params *params, int hosts, int devices);

/* The number of kinds of devices, 1 if all are of one kind; the number of hosts of a
 * kind; its first host. */
int plan_n_kinds(const struct plan_instance *inst);
int plan_kind_hosts(const struct plan_instance *inst, int kind);
int plan_kind_first(const struct plan_instance *inst, int kind);
/* Speed of a kind's devices by struct plan_kind, 1 where all are of one. */
double plan_kind_speed(const struct plan_instance *inst, int kind);
/* Memory of a device of the kind, 0: no limit. */
int64_t plan_memory(const struct plan_instance *inst, int kind);
/*
 * Bytes of a device of the kind as of one with most memory: the least memory_bytes of the
 * instance with which the kind has so many. Plans fit if this is no more than
 * memory_bytes.
 */
int64_t plan_whole_bytes(const struct plan_instance *inst, int kind, int64_t bytes);

/*
 * Gives each stage its place: larger submeshes first, stages of one size in their order,
 * hosts filled from left to right. -1 when they do not fit (they always do when their
 * sizes add up to the cluster's and come from the spaces above).
 */
int plan_place(const struct plan_instance *inst, struct plan_answer *answer,
               struct ap_err *err);

/* Number (host * n_devices + device) of the first device of a placed stage's replica; the
 * others of its first host follow, a host further is n_devices further. */
int64_t plan_first_device(const struct plan_instance *inst,
                          const struct plan_answer *answer, int s, int replica);

/* Whether two plans have the same blocks on the same devices in the same order. */
bool plan_same_outline(const struct plan_answer *a, const struct plan_answer *b);
/* Whether two plans are equal, including their points, apart from known prices. */
bool plan_same(const struct plan_answer *a, const struct plan_answer *b);

/*
 * Places the plan, runs it through ap_simulate with its schedule, fills step_sec and
 * peak_bytes. 1: it does not fit in memory or places; err says where, and peak_bytes is
 * more than a device has, 0 if it was before and that is not why.
 */
int plan_judge(struct ap_arena *arena, const struct plan_instance *inst,
               struct plan_answer *answer, struct ap_err *err);

/* ---- places (judge.c) ---- */

/* Hosts x devices of a kind in one of `replicas` pipelines; false when they do not
 * divide. */
bool plan_grid(const struct plan_instance *inst, int kind, int replicas, int *hosts,
               int *devices);
/* Groups of devices: stages / chunks. */
int plan_groups(const struct plan_answer *answer);
/* lanes: devices on the smaller side; host_lanes: hosts there. */
double plan_link_sec(const struct ap_cluster *c, int level, int64_t bytes, int64_t lanes,
                     int64_t host_lanes);
/*
 * What ap_pipeline_price will take for the sends of a placed plan, as near as can be said
 * without layouts (estimated_sends.c): fills the stages' sends, adds to what is paid
 * once.
 */
void plan_estimate_sends(const struct plan_instance *inst,
                         const struct plan_answer *answer, struct ap_sim_stage *stages);
/* The link between two stages of one number of replicas, in their places. */
struct ap_link plan_link_between(const struct plan_instance *inst, int replicas,
                                 const struct plan_stage *from,
                                 const struct plan_stage *to);
struct plan_links *plan_links_new(struct ap_arena *arena);
void plan_stages_of(const struct plan_instance *inst, const struct plan_answer *answer,
                    int *stage_of);
/* Microbatches held by a stage with n_behind stages from it to the end. */
int plan_in_flight(enum ap_schedule schedule, int n_behind, int64_t microbatches);
/* As the only stage of a device. */
bool plan_fits(const struct plan_instance *inst, int kind, const struct plan_point *p,
               int flight);

/* The point of a front of one kind that is fastest over a step, NULL when none fits. */
const struct plan_point *plan_fastest(const struct plan_instance *inst, int kind,
                                      const struct plan_front *front,
                                      int64_t microbatches, int flight);

#endif
