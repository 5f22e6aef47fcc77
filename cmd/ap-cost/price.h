/* Private to ap-cost: the price of one plan, its report, timeline and explanations. */
#ifndef PRICE_H
#define PRICE_H

#include "pipeline/plan_rates.h"
#include "plan/named_plan.h"
#include "plan/overlap.h"
#include "program/program.h"

/* What a plan with another choice costs, where that is not its serial time. */
typedef struct ap_price price_plan_fn(void *context, const struct ap_plan *plan,
                                      const struct ap_conversions *conv);

struct cost_input {
    struct ap_graph graph;
    struct ap_nests nests;
    struct ap_cluster cluster;
    struct ap_cost cost;       /* the plan's cost model */
    struct ap_cost byte_count; /* the bytes variant: what a device sends */
    struct ap_sharding sharding;
    price_plan_fn *price; /* for price_why; NULL: ap_plan_price */
    void *price_context;
};

struct priced {
    const char *name;
    const char *why_not; /* the plan does not exist: the reason; nothing else is filled */
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

/* Bytes that a device may take: the limit of the search if there was one, else what the
 * device has. */
int64_t price_limit(const struct cost_input *in);

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
    struct ap_buf words; /* freed by headline_free */
    struct ap_plan_words says;
    struct ap_plan_rates rates;
    int64_t peak_bytes, limit_bytes;
    bool in_seconds; /* else there are no rates */
};
void headline_of_plan(struct ap_arena *arena, const struct cost_input *in,
                      const struct priced *plan, struct headline *out);
void headline_free(struct headline *h);
/* Lines of at most PRICE_COLUMNS. */
void headline_put(const struct headline *h, struct ap_buf *out);
/* Member "plan" of the section, with a comma in front. */
void headline_json(const struct headline *h, struct ap_buf *out);

/* Section "cost". */
void price_to_json(struct ap_arena *arena, const struct cost_input *in,
                   const struct priced *p, struct ap_buf *out);

/* For people: model, plan, the quickest named plans, where the time goes, what would
 * help; details: also tensors, all named plans, collectives and memory. At most 100
 * columns. */
void price_report(struct ap_arena *arena, const struct cost_input *in,
                  const struct priced *plan, const struct priced *named_plans,
                  bool details, struct ap_buf *out);

/* The three changes of the machine that save this plan most time, by pricing it again. */
void price_advice(struct ap_arena *arena, const struct cost_input *in,
                  const struct priced *plan, struct ap_buf *out);

/* Changes of the machine that make a plan quicker (advice.c). */
struct change {
    const char *what;
    double sec;         /* of the plan after it */
    int64_t peak_bytes; /* likewise; 0: as before */
    int order;
};
struct advice {
    struct ap_arena *arena;
    /* prices the plan on the changed cluster, and adds what is quicker */
    void (*try_cluster)(struct advice *a, const struct ap_cluster *changed,
                        const char *what);
    int n;
    struct change list[2 * AP_MAX_LEVELS + AP_MAX_AXES + 8];
};
void advice_links(struct advice *a, const struct ap_cluster *cluster);
void advice_devices(struct advice *a, const struct ap_cluster *cluster);
void advice_sort(struct advice *a);
void advice_add(struct advice *a, const char *what, double sec, int64_t peak_bytes);
/* The three that save most of the plan's seconds, `whole`. */
void advice_put(struct advice *a, double whole, int64_t peak_bytes, int64_t limit_bytes,
                struct ap_buf *out);

/* All changes of the machine that make the plan quicker; none where it is not priced in
 * seconds. */
void price_changes(struct ap_arena *arena, const struct cost_input *in,
                   const struct priced *plan, struct advice *out);

/* When groups and conversions that take time run, by start (arena): one after the other,
 * or on two streams. */
const struct ap_stretch *price_stretches(struct ap_arena *arena,
                                         const struct cost_input *in,
                                         const struct priced *p, int *n);
/* [group]: most bytes that live while it runs, or since the last group that takes time
 * (arena). */
int64_t *price_memory(struct ap_arena *arena, const struct cost_input *in,
                      const struct priced *p);
/* The step as a timeline in Perfetto's JSON: groups and collectives as slices. */
void price_trace(struct ap_arena *arena, const struct cost_input *in,
                 const struct priced *plan, struct ap_buf *out);

/*
 * The ways in which the node's group could run, all else as in the plan, by price. -1
 * when the graph has no node of this name or number.
 */
int price_why(struct ap_arena *arena, const struct cost_input *in,
              const struct priced *plan, const char *node, struct ap_buf *out,
              struct ap_err *err);

/* Where the prices of two plans of one graph part. -1: not the same graph or units. */
int price_diff(struct ap_arena *arena, const struct cost_input *in,
               const struct priced *plan, const struct cost_input *other_in,
               const struct priced *other, struct ap_buf *out, struct ap_err *err);

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
/* Right in a column of that width; 0: as it is. */
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
