/* Private to ap-cost: the price of one plan, its report, timeline and explanations. */
#ifndef PRICE_H
#define PRICE_H

#include "plan/named_plan.h"
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

/* Prices a plan; the program is built for memory. -1 when it is not legal. */
int price_plan(struct ap_arena *arena, const struct cost_input *in,
               const struct ap_plan *plan, struct priced *out, struct ap_err *err);

/* Section "cost". */
void price_to_json(const struct cost_input *in, const struct priced *p,
                   struct ap_buf *out);

/* Tables for people: model, plan, plan beside the named plans, where time and memory go,
 * what would help. At most 100 columns. */
void price_report(struct ap_arena *arena, const struct cost_input *in,
                  const struct priced *plan, const struct priced *named_plans, int n,
                  struct ap_buf *out);

/* The three changes of the machine that save this plan most time, by pricing it again. */
void price_advice(struct ap_arena *arena, const struct cost_input *in,
                  const struct priced *plan, struct ap_buf *out);

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

/* ---- text for people ---- */

#define PRICE_COLUMNS 100
#define PRICE_KIND    96
/* The name with every number replaced by '*' and quotes left out; PRICE_KIND bytes. */
void price_kind(const char *name, char *out);
/* The node of this name, or number; -1 for none. */
int price_find_node(const struct ap_graph *g, const char *name);
/* Scope of a node where it has one, else its name. */
const char *price_node_name(const struct ap_node *node);
void price_put_bytes(struct ap_buf *out, double bytes);
/* Seconds with their unit, plain numbers under other cost models. */
void price_put_sec(struct ap_buf *out, const struct cost_input *in, double sec);
/* Pads what was put since start to a column's width, in front (negative: behind). */
void price_pad(struct ap_buf *out, size_t start, int width);
/* Cuts lines that are too long and marks them with "...". */
void price_fit_columns(struct ap_buf *text);

#endif
