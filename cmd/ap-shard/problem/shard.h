/* Private to ap-shard: the space of strategies, the selection problem, pins. */
#ifndef SHARD_H
#define SHARD_H

#include "plan/named_plan.h"
#include "plan/pins.h"
#include "graph/families.h"
#include "solve/problem.h"
#include "tool/tool.h"

/* ---- space_alpa.c: what Alpa lists ---- */

enum { SHARD_BATCH_FREE = -1, SHARD_BATCH_WHOLE = -2 };

struct shard_alpa {
    int axis;         /* of the mesh, that the batch is bound to, or SHARD_BATCH_... */
    const int *batch; /* per group its factor of the batch, -1 for none; NULL: unknown */
    bool mixed;       /* both axes may split one dimension */
    bool gathers;     /* some group has the batch and cannot split it */
    /* per group the slot of the operand that it follows, -1: it chooses */
    const int *follows;
    bool ties; /* a new value lies as the parameter that it becomes */
};
struct shard_request;

/* An operator that Alpa has no strategy for, by name, or 0. */
int shard_alpa_check(const struct ap_graph *g, struct ap_err *err);
/*
 * Sets the space that the options ask for, on the cost's mesh, in the cost. -1 if the
 * mesh has too many axes, or lacks axes that the options name (bad usage).
 */
int shard_alpa_init(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_nests *nests, const struct shard_request *req,
                    struct shard_alpa *alpa, struct ap_cost *cost, struct ap_err *err);
/*
 * Which factor of each group is the batch: the first dimension of the first dot or
 * convolution and all that is indexed by it. NULL if there is none or it is 1.
 */
int *shard_alpa_batch(struct ap_arena *arena, const struct ap_graph *g,
                      const struct ap_nests *nests);
bool shard_alpa_admits(const struct shard_alpa *alpa, const struct ap_nest *nest,
                       const struct ap_graph *g, const struct ap_mesh *mesh,
                       const struct ap_choice_vec *choice);

/* ---- the space ---- */

struct shard_task;

struct shard_params {
    const struct shard_alpa *alpa; /* Alpa's space; NULL: the default one */
    bool no_padding;               /* factors must divide */
    /* for groups that compute: only the fastest choice and the choices of the task's
     * plans */
    bool known;
    bool recompute_heavy; /* heavy operators may be replicated where compute is free */
    int solver;           /* row of shard_solvers */
    int64_t work_limit;
    bool prove;       /* go on where the work limit leaves a gap */
    double gap;       /* relative, ends the search; 0: only a proof does */
    bool no_families; /* the whole graph at once, whatever repeats */
    int64_t rounds;   /* of the folded search's bound */
    int64_t unfold;   /* most strategies left for a search of the whole graph */
    int tofu_space;   /* row of shard_tofu_spaces */
    /* orders among equally good cuts that are tried, 0: as many as bring something */
    int64_t tofu_ties;
    /* rhino */
    int level;            /* 0 to 4 */
    int critical;         /* enum ap_critical_rule */
    int64_t memory_bytes; /* of parameters per device, 0: no limit */
    bool explain;
    bool emit; /* ilp: the selection problem as text */
};

/* Strategies of every group, the named plans' own choices included. */
struct shard_space {
    struct ap_arena *arena;
    const struct ap_graph *graph;
    const struct ap_nests *nests;
    const struct ap_cost *cost;
    const struct shard_alpa *alpa;    /* NULL: groups choose freely */
    const int16_t *microbatch_choice; /* as of shard_task */
    int *n;                           /* per group */
    struct ap_choice_vec **choice;    /* [group][strategy] */
    double **sec;                     /* [group][strategy] */
    uint64_t **sig;                   /* [group][strategy]: hash of the layouts outside */
    int64_t n_strategies, n_folded;   /* all together; tied groups counted once */
    double log10_plans, log10_folded; /* how many combinations that makes */
};

/*
 * Lists the strategies of each group: every legal choice over its factors and linear sets
 * whose factors are at least as large as the devices that share them and are padded by at
 * most a quarter. A factor that is never the major one of a dimension is listed only
 * where those before it do not divide by the number of devices, linear sets only for
 * groups that add, move, convert or scale by a number. On meshes of more than two axes a
 * group has at most two different choices, each on neighbouring axes. Choices of the
 * given plans are added (so that the space holds the named_plans; of tied groups only the
 * first one's). Pins remove strategies. Twins share one list.
 */
struct shard_fold; /* fold.h */
int shard_space_build(struct ap_arena *arena, const struct shard_task *task,
                      const struct shard_fold *fold, const struct ap_plan *plans,
                      int n_plans, struct shard_space *space, struct ap_err *err);

/* Strategy of the group with the layouts of this choice, -1 for none. */
int shard_space_find(const struct shard_space *space, int group,
                     const struct ap_choice_vec *choice);

/* Reads the imported shardings; shardings for a mesh of another shape are dropped, with
 * one warning. */
int shard_pins_read(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_mesh *mesh, struct ap_pins *pins, struct ap_err *err);

/*
 * Adds the pins of the command line, GLOB=LAYOUT: a later pin of a node replaces earlier
 * pins and the imported sharding. A layout with a stride becomes the node's own pin, so
 * that nests built from now on have the factors for it. -1 if there is no such node, or
 * it has no such layout.
 */
int shard_pins_add(struct ap_arena *arena, struct ap_graph *g, const struct ap_mesh *mesh,
                   const struct ap_list *list, struct ap_pins *pins, struct ap_err *err);
/* Pins name layouts on the devices' axes alone. On a mesh with a microbatch axis, makes
 * them layouts of all its axes, given each group's choice there (arena). -1: a pin and
 * the microbatches exclude each other. */
int shard_pins_on_mesh(struct ap_arena *arena, struct ap_pins *pins,
                       const struct ap_nests *nests, const struct ap_mesh *mesh,
                       const int16_t *microbatch_choice, struct ap_err *err);
/* ---- plans.c: plans from files ---- */

struct shard_given {
    const char *path;
    json_t *root;
    bool is_document;
};
/*
 * Reads a plan file: a document with a section "sharding", or {"mesh", "nodes": {NAME or
 * GLOB: LAYOUT}, "regather", "fingerprint"}. The caller decrefs root.
 */
int shard_given_load(struct ap_arena *arena, const char *path, struct shard_given *given,
                     struct ap_err *err);
/* Its mesh, with a microbatch axis if it has one; n_axes 0 when it names none. */
int shard_given_mesh(struct ap_arena *arena, const struct shard_given *given,
                     struct ap_mesh *mesh, struct ap_err *err);

/* ---- the parameters and results of every algorithm ---- */

/* A question: the graph on one mesh under one cost model. */
struct shard_task {
    const struct ap_graph *graph;
    const struct ap_nests *nests;
    const struct ap_cost *cost;
    const struct ap_families *families; /* NULL: unknown */
    const struct ap_pins *pins;         /* NULL: none */
    const struct shard_params *params;
    /* the named plans that exist and are legal under the cost model, and their prices,
       NAN while unknown, INFINITY without conversions; `regather` is theirs: a search
       that only keeps copies clears it */
    int n_plans;
    struct ap_plan *plans;
    double *plan_sec;
    const char *const *plan_name;
    int named_plan;       /* rules: the row of ap_named_plans */
    int64_t memory_bytes; /* of a device, 0: any */
    /* choices that pins decide, and per group whether they do (NULL: no pins) */
    struct ap_choice_vec *pinned_choice;
    const bool *fixed;
    const int16_t *microbatch_choice; /* [group]: on the microbatch axis; NULL: none */
    const struct shard_fold *fold;    /* of the families; NULL: unknown */
    struct ap_work *work; /* the budget of all that a search does; NULL: none */
};

struct shard_answer {
    struct ap_plan plan;
    /* in the cost model's unit; a negative objective: the search has a measure of its own
       (said in stats), the plan is priced afterwards. bound 0: nothing is proven */
    double objective, bound;
    const char *stopped;
    const char *solver;        /* NULL: none */
    const char *stats;         /* members of a JSON object, each with a comma in front */
    const char *found;         /* the same for the history and stats; NULL: none */
    const char *note;          /* for the user, as a warning; NULL: none */
    struct ap_buf explanation; /* text for a person; the tool frees it */
    struct ap_buf problem;     /* with params.emit; the tool frees it */
};

typedef int shard_fn(struct ap_arena *arena, const struct shard_task *task,
                     struct shard_answer *answer, struct ap_err *err);

shard_fn shard_ilp;   /* Alpa's integer program over the whole space */
shard_fn shard_rhino; /* Rhino's candidates, cones and segments */
shard_fn shard_tofu;  /* recursive halving, one dynamic program per cut */
shard_fn shard_tap;   /* TAP's patterns, enumerated block by block */
shard_fn shard_rule;  /* a named_plan, written down by rules */
/* the same where conversions, which always exist under the default cost model, are priced
   by the caller */
shard_fn shard_rule_unpriced;

/*
 * overlap.c: a search where the cluster overlaps. The objective is the simulated step,
 * for which the bound holds, too. run: the algorithm; only shard_ilp searches plans that
 * overlap well, and the plans of other algorithms are simulated.
 */
int shard_overlap(struct ap_arena *arena, const struct shard_task *task, shard_fn *run,
                  struct shard_answer *answer, struct ap_err *err);
/* Budgets of one search that it takes at most. */
double shard_overlap_budgets(const struct shard_params *params);

/* Options that not every algorithm takes. */
enum shard_takes {
    SHARD_TAKES_PADDING = 1,
    SHARD_TAKES_SOLVER = 2,
    SHARD_TAKES_FAMILIES = 4,
    SHARD_TAKES_FOLDING = 8, /* how a folded search unfolds */
    SHARD_TAKES_SPACE = 16,
    SHARD_TAKES_START = 32,
    SHARD_TAKES_EMIT = 64,
    SHARD_TAKES_TOFU = 128,
    SHARD_TAKES_RHINO = 256
};

struct shard_algorithm {
    const char *name, *help; /* as struct ap_choice */
    shard_fn *run;
    int named_plan;      /* -1 unless run is shard_rule */
    unsigned takes;      /* enum shard_takes */
    bool whole_batch;    /* it knows no microbatch axis: it plans the whole batch */
    bool keeps_pins;     /* imported ones, too */
    bool halves;         /* its meshes are of halves */
    bool limits_params;  /* its memory limit is one of parameters, which it keeps */
    bool compares_rules; /* it wants to know all named_plans */
};
/* The table, NULL name last: searches first, then a row per named plan. */
const struct shard_algorithm *shard_algorithms(void);

struct shard_solver {
    const char *name, *help;
    ap_solver_fn *run;
};
extern const struct shard_solver shard_solvers[];

extern const struct ap_choice shard_levels[];    /* of rhino; the digit ends the name */
extern const struct ap_choice shard_criticals[]; /* its enum ap_critical_rule */

/* ---- job.c: one question from a document to a sharding ---- */

enum { SHARD_SPACE_DEFAULT, SHARD_SPACE_ALPA };

struct shard_request {
    int algorithm, cost_model, pin_mode;
    const char *mesh_text, *cluster_path, *plan_path, *start_path, *solution_path;
    const struct ap_cluster
        *cluster;            /* of --serve; NULL: cluster_path's or the document's */
    const char *memory_text; /* --memory, NULL: no limit */
    struct ap_list pins;
    int overlap;                          /* row of ap_overlap_modes */
    int f32_matmul;                       /* row of ap_f32_matmul_modes */
    int64_t jobs, max_axes, microbatches; /* 0: 1, or the number of the plan file */
    int microbatch;                       /* 0: exact */
    bool serve;
    int space;                          /* SHARD_SPACE_... */
    const char *batch_axis;             /* NULL: Alpa's default */
    const char *alpha_text, *beta_text; /* NULL: Alpa's default */
    struct ap_list forbid;
    struct ap_alpa_rules alpa; /* what these, and --mixed-mesh, mean */
    int level_row;             /* of shard_levels */
    const char *explain_path, *emit_path;
    struct shard_params params;
};

struct shard_job {
    struct ap_arena *arena;
    struct ap_graph graph;
    struct ap_nests nests;
    struct ap_families families;
    bool has_families;
    struct ap_cluster cluster;
    struct ap_cost cost;
    struct ap_pins pins, device_pins; /* on the task's mesh; on its devices' axes alone */
    int64_t memory_bytes;             /* the limit, 0: none */
    const int16_t *microbatch_choice; /* see shard_task */
    struct shard_task task;
    struct ap_work work; /* of the task */
    struct shard_answer answer;
    struct shard_alpa alpa;
    struct shard_params params; /* the request's, and Alpa's space */
    const char *algorithm;      /* of the answer */
};

/* Fills tool and request, or dies (exit 2). */
void shard_read_options(struct ap_arena *arena, struct ap_tool *tool,
                        struct shard_request *req, int argc, char **argv);
/* Each dies with the tool's exit codes when it cannot go on. */
void shard_job_read(struct shard_job *job, const struct ap_doc *doc);
/* The section "families", if there is one; warns: where it ties nothing. */
void shard_job_families(struct shard_job *job, const struct ap_doc *doc, bool warns);
/* The mesh of --mesh, or the mesh of the plan file with the file's microbatches as an
 * axis; --mesh auto is handled elsewhere. */
struct ap_mesh shard_job_mesh(struct shard_job *job, const struct shard_request *req);
/* Lays the mesh over the cluster, adds the microbatches that are asked for, and reads the
   pins. */
void shard_job_place(struct shard_job *job, const struct shard_request *req,
                     const struct ap_doc *doc, const struct ap_mesh *mesh);
void shard_job_run(struct shard_job *job, const struct shard_request *req);
/* The data of a section and its history entry, and of the search's --stats. */
struct shard_result {
    struct ap_buf json;
    const char *found, *stats;
    double objective, bound;
};
/* Prices the answer, builds its program for the memory promise. */
struct shard_result shard_job_result(struct shard_job *job,
                                     const struct shard_request *req);

/* The price of a plan, INFINITY with the reason when it is not legal. */
double shard_price(struct ap_arena *arena, const struct ap_plan *plan,
                   const struct ap_cost *cost, struct ap_conversions *conv,
                   struct ap_err *err);
/* Fills the task's plans and names, their prices unknown: all named plans that exist and
   whose choices are legal under the cost model; room is left for one more. */
void shard_list_named_plans(struct ap_arena *arena, struct shard_task *task);
/* Fills in those prices of the task's plans that are unknown. */
void shard_price_named_plans(const struct shard_task *task);
struct ap_plan shard_empty_plan(const struct shard_task *task);

/*
 * The plan of a file for the task, completed around the layouts in it. Says in *differs
 * (NULL: nothing) whether it was made for another graph or cluster. 0, or the exit code
 * for err.
 */
int shard_given_plan(struct ap_arena *arena, const struct shard_given *given,
                     const struct shard_task *task, struct ap_plan *plan,
                     const char **differs, struct ap_err *err);

/* Makes choices on mesh `from` choices on the task's mesh, which has the same devices and
 * differs in its microbatch axis. */
void shard_choices_on_mesh(const struct shard_task *task, const struct ap_mesh *from,
                           struct ap_choice_vec *choice);

/* Ends of pipes: where requests come in, and where answers go. */
struct shard_pipes {
    int n;
    const int (*end)[2];
};
/*
 * serve.c: answers requests on standard input until it ends; members for --stats. pipes:
 * NULL, or for each a process, the first this one, which is forked when all is prepared
 * that they share; the pipe becomes its standard input and output.
 */
const char *shard_serve(struct shard_job *job, const struct shard_request *req,
                        const struct ap_doc *doc, const struct shard_pipes *pipes);

/* auto.c: the best of all logical views of the cluster, each searched by a process. */
struct shard_result shard_auto(struct shard_job *job, const struct shard_request *req,
                               const struct ap_doc *doc);

#endif
