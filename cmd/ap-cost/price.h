/* Private to ap-cost: the price of a plan, its report, timeline and explanations. */
#ifndef PRICE_H
#define PRICE_H

#include "doc/doc.h"
#include "pipeline/pipeline_price.h"
#include "pipeline/pipeline_program.h"
#include "plan_rates.h"
#include "plan/named_plan.h"
#include "plan/overlap.h"

/* What a plan with another choice costs, where that is not its serial time. */
typedef struct ap_price price_plan_fn(void *context, const struct ap_plan *plan,
                                      const struct ap_conversions *conv);

/* How to price: the cluster, and what the options make of it. */
struct priced_on {
    const char *cluster_path;         /* NULL: the document's */
    const struct ap_cluster *cluster; /* this one, in place of that; NULL: none */
    int overlap, f32_matmul;          /* rows of ap_overlap_modes, ap_f32_matmul_modes */
    bool alone;                       /* as if the document had no stages */
};

/* A plan, and what its price is made of; a stage that is alone has no schedule. */
struct cost_input {
    struct ap_planned of;
    bool by_hand; /* the section has no objective */
    /* without a schedule */
    struct ap_cost cost;       /* the plan's cost model */
    struct ap_cost byte_count; /* the bytes variant: what a device sends */
    price_plan_fn *price;      /* for price_why; NULL: ap_plan_price */
    void *price_context;
};

struct priced {
    const char *name;
    const char *why_not; /* the plan does not exist: the reason; nothing else is filled */
    /* NULL: one stage, of which operators and collectives run by themselves; else name,
       planned_sec, price.step_sec and peak_bytes are filled beside it */
    const struct ap_pipeline_price *schedule;
    double
        planned_sec; /* what planners keep low: of the plan, whatever program runs it */
    struct ap_plan plan;
    struct ap_price price;
    struct ap_overlap overlap; /* where the cluster overlaps, without stretches */
    struct ap_conversions conv;
    struct ap_program prog;
    int n_colls;
    struct ap_coll_count *colls;
    double *coll_sec; /* per row of colls */
    double phase_sec[AP_N_PHASES];
    double sent_bytes;                   /* per device and step */
    double flops;                        /* per device and step */
    int64_t peak_bytes, parameter_bytes; /* per device */
    int64_t role_bytes[AP_N_ROLES];      /* parameter_bytes by role */
};

/* ---- reading and pricing (read.c, price.c) ---- */

/*
 * Reads and prices the document's plan. in: zeros but for graph and nests where they are
 * known; it must stay where it is. -1: bad input; 1: no solution.
 */
int price_read(struct ap_arena *arena, const struct ap_doc *doc,
               const struct priced_on *on, struct cost_input *in, struct priced *p,
               struct ap_err *err);
/*
 * The order in which each device of stages runs their microbatches, by the section
 * "pipeline" json: fills stages->order, in the arena. So what is simulated is the list
 * that runs, whoever wrote it. -1 with the place when the section is not of these stages.
 */
int price_read_order(struct ap_arena *arena, const json_t *json, const struct ap_at *at,
                     struct ap_stages *stages, struct ap_err *err);
/* Prices the plan by the document's program where it has one. -1: bad input. */
int price_program(struct ap_arena *arena, const struct ap_doc *doc,
                  const struct cost_input *in, struct priced *p, struct ap_err *err);
/* The plan's section where it must be written again: it was by hand, or its objective is
 * not what the plan costs. Empty where it is right. */
struct ap_buf price_correct(struct ap_arena *arena, struct cost_input *in,
                            const struct priced *p, struct ap_err *err);

/* Prices the stages on their schedule, which out keeps. Not 0: as ap_pipeline_price. */
int price_stages(struct ap_arena *arena, const struct cost_input *in,
                 struct ap_pipeline_price *schedule, struct priced *out,
                 struct ap_err *err);
/* The plans by rule on the mesh of a plan of one stage: out[AP_N_NAMED_PLANS]. */
void price_named_plans(struct ap_arena *arena, const struct cost_input *in,
                       struct priced *out);

/* Seconds that the plan is to keep low: of a step, or between batches in a row. */
double price_aim_sec(const struct cost_input *in, const struct priced *p);
double price_aim_of(const struct ap_stages *s, const struct ap_pipeline_price *p);

/* A device of the stage, and bytes that it may take: the limit of the search if there was
 * one, else what the device has. */
const struct ap_cluster *price_device(const struct cost_input *in, int stage);
int64_t price_limit(const struct cost_input *in, int stage);

/* How a device of a schedule spends a step; adds up to the step's seconds. */
struct price_spent {
    double compute_sec, comm_sec; /* collectives inside the stage, gradients' aside */
    double send_sec, sync_sec, wait_sec;
    double host_wait_sec; /* for copies to and from the host, and its update */
};
struct price_spent price_spent_by(const struct cost_input *in,
                                  const struct ap_pipeline_price *p, int device);
/* On average over all devices of the plan. */
struct price_spent price_spent_by_all(const struct cost_input *in,
                                      const struct ap_pipeline_price *p);
/* What a device of a schedule holds all the time, and its update, of all its stages. */
struct price_held {
    int64_t role_bytes[AP_N_ROLES]; /* parameters */
    int64_t fixed_bytes;            /* with gradients and copies */
    int64_t waiting_bytes;          /* as in struct ap_stage_breakdown */
    double update_sec;
};
struct price_held price_held_by(const struct ap_pipeline_price *p, int device);
/* The device of a schedule with least memory to spare: the fullest where all are of one
 * kind; its limit. */
int price_fullest(const struct cost_input *in, const struct ap_pipeline_price *p,
                  int64_t *limit_bytes);

/* Prices a plan; the program is built for memory. -1 when it is not legal. */
int price_plan(struct ap_arena *arena, const struct cost_input *in,
               const struct ap_plan *plan, struct priced *out, struct ap_err *err);

/* The collectives' count and seconds as a program of this plan has them, in buckets. */
void price_packed(struct ap_arena *arena, const struct cost_input *in,
                  const struct ap_program *prog, struct priced *out);
/* The kernels that the document's program has, for a device that runs them, in place of
 * the plan's groups (kernels.c). */
void price_kernels(struct ap_arena *arena, const struct cost_input *in,
                   const struct ap_program *prog, struct priced *out);

/* A plan in words and its rates: the head of reports and pages. */
struct headline {
    struct ap_buf words, precision, best; /* freed by headline_free */
    double parameter_bytes;               /* of each parameter; 0: the graph has none */
    struct ap_plan_line says;
    struct ap_plan_rates rates;
    int64_t peak_bytes, limit_bytes;
    /* on the host, of a device (0: nothing), its part of that (0: unknown), and how long
       the link works in a step */
    int64_t host_bytes, host_limit_bytes;
    double host_link_sec;
    int64_t fewest_microbatches; /* that fit; 0: not known */
    bool sure; /* the cluster says how far prices are from published runs */
    const struct ap_published *near; /* those of such plans; NULL: there are none */
    bool in_seconds;                 /* else there are no rates */
};
void headline_of_plan(struct ap_arena *arena, const struct cost_input *in,
                      const struct priced *plan, struct headline *out);
void headline_free(struct headline *h);
/* Lines of at most PRICE_COLUMNS. */
void headline_put(const struct headline *h, struct ap_buf *out);
/* Member "plan" of the section, with a comma in front. */
void headline_json(const struct headline *h, struct ap_buf *out);

/* precision.c: "bf16 products; weights bf16 with f32 master, moments f32, gradient sums
 * f32: 18 bytes per parameter", of the document's graph on one device. Returns these
 * bytes; 0, and nothing is put: there are no weights. */
double precision_put(const struct cost_input *in, struct ap_buf *out);

/* A member of an object, with a comma in front. */
void price_put_num(struct ap_buf *out, const char *key, double v);
/* Section "cost". */
void price_to_json(struct ap_arena *arena, const struct cost_input *in,
                   const struct priced *p, struct ap_buf *out);

/* For people: model, plan (stages, or the quickest named plans), where the time goes,
 * what would help; details: also tensors, all named plans, collectives, what is
 * recomputed, and memory. At most 100 columns. */
void price_report(struct ap_arena *arena, const struct cost_input *in,
                  const struct priced *plan, bool details, struct ap_buf *out);

/* What a change has more of: what limits the plan, if no other change saves more. */
enum limit {
    LIMIT_COMPUTE,
    LIMIT_BANDWIDTH,
    LIMIT_LAUNCHES,
    LIMIT_LINKS,
    LIMIT_HOST,
    LIMIT_BUBBLE,
    LIMIT_DEVICES,
    LIMIT_MEMORY
};

/* Changes that make a plan quicker (advice.c). */
struct change {
    enum limit limit;
    const char *what;
    double sec;         /* of the plan after it */
    int64_t peak_bytes; /* likewise; 0: as before */
    int order;
};
struct advice {
    struct ap_arena *arena;
    const struct cost_input *in;
    const struct priced *p;
    int n;
    struct change list[2 * AP_MAX_LEVELS + AP_MAX_AXES + 8];
};
/* All changes that make the plan quicker, the quickest first; none where it is not priced
 * in seconds. */
void price_changes(struct ap_arena *arena, const struct cost_input *in,
                   const struct priced *plan, struct advice *out);
/* The line "limited by ...": what the changes that save most have more of. Nothing where
 * the plan is not priced in seconds. */
void advice_put_limit(const struct advice *a, const struct headline *h,
                      struct ap_buf *out);
/* The three changes that save this plan most time; likewise. */
void advice_put(const struct advice *a, const struct headline *h, struct ap_buf *out);
/* The fewest microbatches, of n, n / 2, n / 4 ..., with which stages fit in memory; 0:
 * not known. */
int64_t price_fewest_microbatches(const struct cost_input *in, const struct priced *plan);

/* When groups and conversions that take time run, by start (arena): one after the other,
 * or on two streams. */
const struct ap_stretch *price_stretches(struct ap_arena *arena,
                                         const struct cost_input *in,
                                         const struct priced *p, int *n);
/* [group]: most bytes that live while it runs, or since the last group that takes time
 * (arena). */
int64_t *price_memory(struct ap_arena *arena, const struct cost_input *in,
                      const struct priced *p);
/* The step as a timeline in Perfetto's JSON: groups and collectives as slices, or a
 * schedule's microbatches, with stages as processes. */
void price_trace(struct ap_arena *arena, const struct cost_input *in,
                 const struct priced *plan, struct ap_buf *out);

/*
 * The ways in which the node's group could run, all else as in the plan, by price. -1
 * when the graph has no node of this name or number.
 */
int price_why(struct ap_arena *arena, const struct cost_input *in,
              const struct priced *plan, const char *node, struct ap_buf *out,
              struct ap_err *err);

/* Where the price parts from that of another document's plan of the graph: by kinds of
 * groups, or with a schedule by blocks. -1: not the same graph or units, bad input. */
int price_diff(struct ap_arena *arena, const struct cost_input *in,
               const struct priced *plan, const struct ap_doc *other, struct ap_buf *out,
               struct ap_err *err);

/* The weights of a plan by kind of name, shape and layout, under a title. */
void price_put_weights(const struct ap_plan *plan, const char *title, struct ap_buf *out);

/* ---- text for people ---- */

#define PRICE_COLUMNS 100
#define PRICE_ROWS    16 /* of a table */
#define PRICE_KIND    96
/* The name with every number replaced by '*' and quotes left out; PRICE_KIND bytes. */
void price_kind(const char *name, char *out);
/* The node of this name, or number; -1 for none. */
int price_find_node(const struct ap_graph *g, const char *name);
/* Scope of a node where it has one, else its name. */
const char *price_node_name(const struct ap_node *node);
/* Aligned right in a column of that width; 0: without padding. */
void price_put_bytes(struct ap_buf *out, double bytes, int width);
/* Seconds with their unit, plain numbers under other cost models; in NULL: seconds. */
void price_put_sec(struct ap_buf *out, const struct cost_input *in, double sec,
                   int width);
/* The same with a sign, 14 columns. */
void price_put_change(struct ap_buf *out, const struct cost_input *in, double sec);
/* Pads what was put since start to a column's width, in front (negative: after). */
void price_pad(struct ap_buf *out, size_t start, int width);
/* Cuts lines of ASCII that are too long and marks them with "...". */
void price_fit_columns(struct ap_buf *text);

#endif
