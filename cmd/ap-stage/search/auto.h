/*
 * The search of `auto`: labels (auto_labels.c), its tree (auto_tree.c), chunks
 * (auto_chunks.c), sets (auto_sets.c), and their caller (auto.c).
 */
#ifndef AUTO_H
#define AUTO_H

#include "search/space.h"

/* fmin and fmax without NaN: calls would be most of the work. */
static inline double least_of(double a, double b)
{
    return a < b ? a : b;
}
static inline double most_of(double a, double b)
{
    return a > b ? a : b;
}

/* A lower bound on the time of a run on a mesh, and its best point, with up to max_flight
 * microbatches in flight. */
struct step {
    int max_flight;
    double forward, backward, sum, tail; /* least of each; tail: once per step */
    const struct plan_point *own, *best; /* of this flight; by B * sum + tail */
};
struct cell {
    int n;             /* 0: not usable; -1: not looked at */
    struct step *step; /* ascending by max_flight */
};

/* One configuration under one schedule. */
struct setting {
    struct space *sp;
    struct config *c;
    enum ap_schedule schedule;
    struct cell *cell;    /* [run * n_meshes + mesh] */
    struct ap_link *link; /* [mesh * n_meshes + mesh after] */
    /* devices of each kind in units, of several devices in large clusters; n_units: all
       of them as a number of these counts */
    struct plan_counts units;
    int n_units, unit[AP_MAX_KINDS];
    double *front_sum; /* [block]: least forward and backward before it, sends left out */
    double *front_device_sec; /* [block]: least weight * seconds of a microbatch */
    double below;             /* plans at or above are of no interest */
};

/* The rest of a plan, from a block to the end; in bounds it represents several rests. */
struct label {
    int least_stages, most_stages;
    /* from the first microbatch's arrival: end of the last backward, of the step, and
       the way of one microbatch there and back */
    double end, done, way;
    int hi, mesh, next; /* next: label of what follows, -1 */
    const struct plan_point *point;
};
struct labels {
    int *first, *n; /* [block * (units + 1) + units used] */
    struct label *all;
    int n_all, cap;
};

/* Prepends a stage to the label of the stages after it; NULL: it is the last stage. */
struct prepend {
    double forward, backward, sum, tail;
    double send_forward, send_backward; /* after it; bounds count none */
    int least_flight, most_flight;
};
void setting_prepend(const struct setting *set, const struct prepend *p,
                     const struct label *rest, struct label *out);
/* Least flight of a stage with this many stages after it. */
int setting_flight(const struct setting *set, int n_behind);

/* [block + 1]: weight * seconds of a microbatch that no plan is below for the blocks
 * before, known without asking; 0 where nothing is known. Arena of the space. */
double *setting_known(const struct space *sp, const struct config *c);
/* Seconds of a step that no plan of the configuration is below, whatever blocks its
 * stages are, known without asking; 0 where nothing is known. */
double setting_known_bound(const struct space *sp, const struct config *c);
/* Whether a stage cannot be in a plan below the limit: it is too slow itself, or the
 * others are on the devices that it leaves. */
bool setting_is_hopeless(const struct space *sp, const struct config *c,
                         const double *known, const struct plan_ask *ask, double below);
/* Asks for all usable cells. -1: the oracle broke. */
int setting_init(struct setting *set, struct space *sp, struct config *c,
                 enum ap_schedule schedule, double below, struct ap_err *err);
/* bounds: labels are merged, so that each is below all plans that it stands for;
 * otherwise they are plans, and the best few of each state are kept. */
void setting_labels(const struct setting *set, bool bounds, struct labels *out);
void setting_free(struct labels *l);
/* Time of a whole plan by the labels' arithmetic, with estimated sends. */
struct plan_answer setting_plan(const struct setting *set, const struct labels *l,
                                int label);

/* ---- the search ---- */

#define SEARCH_TYPED 8 /* at least the number of typed rules */

struct stage_search {
    struct ap_arena *arena; /* of best */
    const struct plan_instance *inst;
    const struct plan_params *params;
    struct plan_answer best;
    double least;           /* score of the best plan, INFINITY while there is none */
    struct shortlist final; /* distinct plans; the first is best */
    int n_typed;
    struct plan_answer typed[SEARCH_TYPED]; /* the best of each typed rule */
    double bound; /* of all that is looked at and not searched to the end */
    double bare;  /* least step time of the simulated plans if sends took no time */
    int64_t n_asked, n_plans;
    int64_t nodes, node_limit;               /* of trees */
    int64_t instructions, instruction_limit; /* simulated */
    bool proves;      /* looks for bounds, in trees; before that, for plans */
    const char *from; /* where the best came from */
};
/* Takes a judged plan for the best or one of the next. */
void auto_take(struct stage_search *search, double score, const struct plan_answer *a,
               const char *from);
/* Counts the plan's step if sends took no time, by its fronts. */
void auto_price_bare(struct stage_search *search, const struct plan_answer *a);
/* Simulates a plan and takes it if it is better. false: the limit was met. */
bool auto_try(struct stage_search *search, struct space *sp, struct plan_answer *a,
              const char *from);
/* The same; its score, INFINITY when it does not fit or the limit was met. */
double auto_score(struct stage_search *search, struct space *sp, struct plan_answer *a,
                  const char *from);
/* Lowers the limit to a tree's share of the rest; returns the limit to restore. */
int64_t auto_share(struct stage_search *search);
/* A bound that rounding does not lift over a plan's score. */
static inline bool auto_is_over(const struct stage_search *search, double bound)
{
    return bound * (1 - 1e-12) >= search->least;
}
/*
 * Depth first through the plans of a setting whose bound is below the best; adds the
 * setting's bound to the search's if a limit ends that.
 */
void auto_tree(struct stage_search *search, const struct setting *set,
               const struct labels *bounds);
/* typed: the plan of --start and grids that people type; else what rhino finds where
 * blocks are no chain (auto_rules.c). -1: the oracle broke. */
int auto_rules(struct stage_search *search, bool typed, struct ap_err *err);
/* Whether every block is read by the next, so that stages can only be runs. */
bool plan_is_chain(const struct plan_instance *inst);
/* The bound of plans whose stages are not runs; INFINITY if there are none. */
double space_sets_bound(const struct space *sp);
/* Microbatches that a stage of an interleaved plan holds when its device has run the
 * forwards that come before its first backward. */
int chunk_flights(const struct config *c, int groups, int n_stages, int stage);
/* The stages of one device. */
struct device_stages {
    int n;
    double microbatches;
    struct device_stage {
        const struct plan_front *front;        /* of at least one point */
        int flights;                           /* microbatches that it holds */
        const struct plan_point *point, *best; /* best: while points are chosen */
    } * stage;
    /* of the points: seconds of a step; bytes, with the most that one stage
     * needs only while a pass runs */
    double bytes, sec;
};
/* Fills the points, nearly the fastest that fit in `limit` bytes together (0: none).
 * false: none was found that does. */
bool choose_points(struct device_stages *d, double limit);
/* Interleaved plans of a setting with a number of groups and stages. */
struct chunk_plans {
    const struct space *sp;
    const struct config *c;
    int mesh, groups, n_stages;
    bool counts_once; /* after the last backward pass the work that is done once, not the
                         way back */
    double below;     /* plans at or above are of no interest */
};
/* Stages of these plans that count alike. */
struct chunk_part {
    int ahead;        /* groups that wait for the stage's first microbatch */
    int flights;      /* microbatches that it holds when its device turns back */
    bool last;        /* of its device: the first backward is its */
    bool first_block; /* it has the model's first block; the last one */
    bool last_block;
};
/* Fills part_of[stage], and as many of part[stage] as are returned. */
int chunk_parts(const struct chunk_plans *x, struct chunk_part *part, int *part_of);
/* The seconds and bytes of stages; value: the minimized quantity, seconds with priced
 * bytes. */
struct chunk_sums {
    double sec, bytes, value;
};
static inline bool sums_less(const struct chunk_sums *a, const struct chunk_sums *b)
{
    return a->value < b->value || (a->value == b->value && a->sec < b->sec);
}
/* A lower bound on the step time of plans that fit; INFINITY if none fits. Looks for no
 * more than enough. The fronts have been asked for. */
double chunks_room_bound(const struct chunk_plans *x, double enough);
/* The same by whole blocks (auto_loads.c), from a bound that is known on. */
double chunks_loads_bound(const struct chunk_plans *x, double bound, double enough);
/* Interleaved schedules of a configuration. -1: the oracle broke. */
int auto_chunks(struct stage_search *search, struct space *sp, struct config *c,
                struct ap_err *err);

#endif
