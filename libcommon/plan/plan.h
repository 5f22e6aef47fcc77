/*
 * A sharding plan for one mesh: one choice per fusion group, and everything that follows
 * from it: layouts, conversions, price. ap-shard, ap-cost and ap-rewrite share this code,
 * so that they cannot disagree.
 */
#ifndef AP_PLAN_H
#define AP_PLAN_H

#include "cost/cost.h"
#include "layout/nest.h"
#include "cost/convert.h"

/* When a group of a stage of a pipeline runs: in the passes of a microbatch, or at the
 * end, in the turn AP_TURN_END or a later one. */
enum { AP_TURN_FORWARD, AP_TURN_BACKWARD, AP_TURN_WEIGHTS, AP_TURN_END };

struct ap_plan {
    const struct ap_graph *graph;
    const struct ap_nests *nests;
    struct ap_mesh mesh;
    struct ap_choice_vec *choice;     /* per group */
    const int16_t *microbatch_choice; /* per group: the choice on the microbatch axis, see
                            microbatch.h; NULL without one */
    /* per group: whether it runs with each microbatch although it has no factor on the
       microbatch axis, on estimates (microbatch.h); NULL: none does */
    const bool *each;
    /* per result: whether each microbatch's estimate is passed on; NULL: for none */
    const bool *each_result;
    /* per node: conversions of this node's value are recomputed in each phase that needs
       them instead of being kept from the first (ZeRO-3's weights); may be NULL (none) */
    bool *regather;
    /* per node: if this node's value is partial, it is all-reduced before it is brought
       to any other layout (ZeRO-1's gradients); may be NULL (none) */
    bool *whole;
    /* per group: orders the groups that run before, with or after the microbatches,
       before their numbers do; it rises from operands to users; NULL: all equal */
    const int *turn;
    /* per node: the value is on the host while nothing reads it: a weight, a state, or a
       value of the forward pass that the backward pass reads; NULL: none is */
    const bool *host;
    /* gradients are reduced and scattered over the devices with each microbatch, and what
       each device has of them is summed (ZeRO-2, ZeRO-3); else sums are reduced once */
    bool scatters;
    /* sums over microbatches have the type of what they sum, in 16 bits, too */
    bool low_sums;
    /* heavy operators may be replicated although compute is free in the cost model */
    bool recompute_heavy;
};

/*
 * A tensor that is brought to a layout once, for all users of that layout (of one phase,
 * if the tensor is regathered). A result that becomes a parameter is brought to the
 * parameter's layout, and any other result to R on every axis. Layouts equal to the
 * tensor's own need no conversion and are not listed.
 */
struct ap_conversion {
    int node;
    struct ap_layout from, to;
    enum ap_phase phase; /* of the first user */
    int first_group;     /* group before which it runs, n_groups for results */
    bool each;     /* repeated for every microbatch although its value is the same */
    bool estimate; /* for a sum over microbatches: makes each microbatch's estimate of it
                    */
    struct ap_path path; /* its steps: arena */
};

struct ap_conversions {
    int n;
    /* by first_group (in the order in which groups run), then node id, then first use */
    struct ap_conversion *conv;
    /* operand slots: in_conv[in_start[g] + i] = index of the conversion that serves
       operand i of group g, -1 if the producer's layout serves */
    const int *in_start, *in_conv;
    const int *result_conv; /* the same per graph result */
};

/* Target layout of result r under the plan; for a result that a part passes on, its own
 * layout with sums completed. */
struct ap_layout ap_plan_result_layout(const struct ap_plan *plan, int r);
/* Sets g->taken: from now on, results that do not become parameters keep their layout
 * with sums completed, as in Alpa's space. */
void ap_plan_results_lie(struct ap_arena *arena, struct ap_graph *g);
/* Layout of node's own value (by its group's choice). */
struct ap_layout ap_plan_node_layout(const struct ap_plan *plan, int node);

/*
 * Phase of a group: that of its first member whose value is used outside the group or is
 * a result (or else its first member). A fused chain that straddles two phases thus
 * counts for the one in which it is first needed.
 */
enum ap_phase ap_plan_group_phase(const struct ap_graph *g, const struct ap_nest *nest);
/* Position of node in its nest's members. */
int ap_nest_member(const struct ap_nest *nest, int node);

/*
 * All conversions, each once per tensor and target (and per phase, forward or later, of a
 * regathered tensor). -1 if a pair of layouts cannot be converted.
 */
int ap_plan_conversions(struct ap_arena *arena, const struct ap_plan *plan,
                        const struct ap_cost *cost, struct ap_conversions *out,
                        struct ap_err *err);
/* Layouts of a plan that the caller has computed. */
struct ap_plan_layouts {
    const struct ap_layout *const *const *in; /* [group][operand] */
    const struct ap_layout *const *value;     /* [node]: of the outs of groups */
    const enum ap_phase *phase; /* [group], the same for all plans; NULL: not computed */
};
/* The same with these layouts; laid may be NULL. */
int ap_plan_conversions_laid(struct ap_arena *arena, const struct ap_plan *plan,
                             const struct ap_plan_layouts *laid,
                             const struct ap_cost *cost, struct ap_conversions *out,
                             struct ap_err *err);

/* True if the group runs no kernel: its values exist already, or are views of others. */
bool ap_plan_group_is_free(const struct ap_graph *g, const struct ap_nest *nest);
/* The rounds of a group: one for each device of the ring of an attention, else 1. */
struct ap_rounds {
    int64_t n;
    unsigned axes;              /* of the ring */
    double in_bytes, out_bytes; /* sent by a device in a round: operands, sums */
    int messages;               /* number of messages that carry them */
    enum ap_phase phase;
    double expert_elems;  /* grouped product: ap_nest_expert_elems, else 0 */
    double length, width; /* attention: ap_nest_heads */
    bool uneven; /* a contraction with rows that do not begin at multiples of 16 bytes, on
                    a cluster with uneven_of_peak */
};
struct ap_rounds ap_plan_rounds(const struct ap_nest *nest, const struct ap_graph *g,
                                const struct ap_cost *cost,
                                const struct ap_choice_vec *choice);
/*
 * Seconds of a group's FLOPs and bytes in rounds: blocks of operands travel while the
 * previous block is computed with; the sums of the last round travel alone.
 */
double ap_plan_rounds_sec(const struct ap_nest *nest, const struct ap_cost *cost,
                          const struct ap_rounds *r, double flops, enum ap_dtype dtype,
                          double bytes);
/*
 * Seconds of one group under a choice: ap_nest_work and masks, priced by ap_cost_compute,
 * times the number of runs in a step.
 */
double ap_plan_group_sec(const struct ap_nest *nest, const struct ap_graph *g,
                         const struct ap_cost *cost, const struct ap_choice_vec *choice);

struct ap_price {
    double compute_sec, comm_sec, serial_sec; /* serial = compute + comm */
    double step_sec; /* on two streams if the cluster overlaps (overlap.h), else serial */
    /* the parts that run once per microbatch (all microbatches together); 0 without
     * microbatches */
    double each_compute_sec, each_comm_sec;
};
/* The sum over groups and conversions, in that order (so that equal plans have bit-equal
 * prices), and the step that ap_plan_overlap simulates. */
struct ap_price ap_plan_price(const struct ap_plan *plan, const struct ap_cost *cost,
                              const struct ap_conversions *conv);
/* The same sums, with known ap_plan_group_sec of every group, or NULL; step_sec is
 * serial. */
struct ap_price ap_plan_price_known(const struct ap_plan *plan,
                                    const struct ap_cost *cost,
                                    const struct ap_conversions *conv,
                                    const double *group_sec);

/*
 * An axis that the choice leaves idle although it could split a factor with at least one
 * element per device; -1 if there is none. Heavy groups must not leave such an axis if
 * compute is free.
 */
int ap_plan_idle_axis(const struct ap_nest *nest, const struct ap_mesh *mesh,
                      const struct ap_choice_vec *choice);

/*
 * Checks that the plan is legal; -1 with the reason (choices that the nests do not allow,
 * heavy operators replicated although the cost model forbids it).
 */
int ap_plan_check(const struct ap_plan *plan, const struct ap_cost *cost,
                  struct ap_err *err);
/* The same without the conversions, for callers that list them next. */
int ap_plan_check_choices(const struct ap_plan *plan, const struct ap_cost *cost,
                          struct ap_err *err);
/*
 * Seconds of a step: ap_plan_check, then a value bit-equal to step_sec of ap_plan_price,
 * computed without a list of conversions if nothing overlaps. -1 if the plan is not
 * legal.
 */
int ap_plan_sec(const struct ap_plan *plan, const struct ap_cost *cost, double *sec,
                struct ap_err *err);

/* ---- the document's section "sharding" ---- */

/* {"axes":["x","y"],"shape":[2,4]}, as sharding and program have it. */
void ap_mesh_to_json(const struct ap_mesh *mesh, struct ap_buf *out);
int ap_mesh_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      struct ap_mesh *mesh, struct ap_err *err);

struct ap_sharding {
    struct ap_plan plan;
    const char *algorithm, *solver, *cost_model, *stopped; /* solver may be NULL */
    struct ap_alpa_rules alpa;                             /* as of the cost */
    double objective_sec, lower_bound_sec;
    int64_t peak_bytes;   /* per device, of the program's buffer plan */
    int64_t limit_bytes;  /* memory limit of the search; 0: no limit */
    int64_t device_bytes; /* written only: memory of a device; 0: not known */
    /* doc/fingerprint.h, cost.h; NULL: not given */
    const char *graph_fingerprint, *cluster_fingerprint;
};

void ap_sharding_to_json(const struct ap_sharding *s, const struct ap_conversions *conv,
                         struct ap_buf *out);
/*
 * Reads and checks against graph and nests (fingerprint by shapes: layouts must agree).
 * A section by hand need not have what follows from other members: it has the mesh, which
 * may be text such as "dp=2,tp=4", and the choices of "groups", or what
 * ap_plan_by_hand reads.
 */
int ap_sharding_from_json(struct ap_arena *arena, json_t *o, const struct ap_at *at,
                          const struct ap_graph *g, const struct ap_nests *nests,
                          struct ap_sharding *s, struct ap_err *err);
/*
 * The choices, regather and whole (arena) of a plan whose graph, nests and mesh are set
 * and that is written by hand: "algorithm" (a named plan's name), "nodes" (layouts of
 * nodes, by names with * and ?; k:S1 in a layout asks that operand k is split so),
 * "regather" (nodes by name or id). At least one of the first two. Groups without such a
 * node follow the named plan, or else the splits of others. -1 with the place; 1: nodes
 * cannot have these layouts. (plan_by_hand.c)
 */
int ap_plan_by_hand(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                    struct ap_plan *plan, struct ap_err *err);
/* The trivial plan: a mesh of one device. */
void ap_plan_single(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_nests *nests, struct ap_plan *plan);

#endif
