/*
 * The price of a pipelined plan: each stage is priced per microbatch and per step
 * (stage_cost.h), values between stages are priced by their layouts on both sides, and
 * the schedule is simulated (schedule.h). ap-cost and ap-stage share this code.
 */
#ifndef AP_PIPELINE_PRICE_H
#define AP_PIPELINE_PRICE_H

#include "plan/microbatch.h"
#include "pipeline/reshard.h"
#include "pipeline/stage_cost.h"
#include "pipeline/stages.h"

/* ---- between two sets of devices ---- */

struct ap_devices {
    int64_t n;
    const int64_t *id; /* global numbers, ascending */
};

/* The cost of bytes that go from all devices of one set to all devices of another,
 * evenly. */
struct ap_link {
    double latency_sec, sec_per_byte;
    double level_share[AP_MAX_LEVELS]; /* of the bytes, by the outermost level crossed */
    int level;                         /* outermost of all */
    const struct ap_send_time
        *measured; /* the cluster's table for that level; NULL: none */
    double scale;  /* bytes through the busiest link per byte, for the table */
};
struct ap_link ap_link_between(const struct ap_cluster *cluster,
                               const struct ap_devices *from,
                               const struct ap_devices *to);

/* Seconds of n consecutive messages with `bytes` together. */
double ap_link_sec(const struct ap_link *link, double bytes, int n);

/*
 * The price of bringing its part of a tensor to every device of the destination
 * (reshard.h). If several of its devices hold the same tile, the tile is sent to each of
 * them; or it is sent once, in parts, and gathered there (Zheng et al., "Alpa", section
 * 6); or it is sent to the first, which passes it on. Sums are complete before a tensor
 * is sent, and devices of the source that hold the same elements share the sending, so
 * that the layout of the source does not matter.
 */
struct ap_transfer_price {
    enum ap_resharding how;
    int64_t sent_bytes;   /* over the links between the meshes */
    int64_t gather_bytes; /* full tile that the receivers exchange; 0: none */
    double sec;           /* of both, with links and devices working concurrently */
};
/* The price of 1 / share of the tensor over a link; to_cost is the destination's. */
struct ap_transfer_price ap_price_transfer_on(const struct ap_link *link,
                                              const struct ap_shape *shape, int64_t share,
                                              const struct ap_cost *to_cost,
                                              const struct ap_layout *to,
                                              enum ap_resharding how);
/* The same for the given way, or for the fastest one. */
struct ap_transfer_price ap_price_transfer(const struct ap_link *link,
                                           const struct ap_shape *shape, int64_t share,
                                           const struct ap_cost *to_cost,
                                           const struct ap_layout *to,
                                           enum ap_resharding given);

/* Whether a value that a stage makes (node of its graph) already is as another stage on
 * the same devices reads it, so that nothing is sent. */
bool ap_transfer_stays(const struct ap_stage *from, int made, const struct ap_stage *to,
                       int read);

/* ---- sends between stages ---- */

enum ap_send_kind {
    AP_SEND_MICROBATCH, /* activations and their gradients, once per microbatch */
    AP_SEND_GRADIENT,   /* once per step: of a weight that several stages hold */
    AP_SEND_WEIGHT,     /* once per step: the new value of such a weight */
    AP_SEND_ONCE,       /* once per step: norms, counts */
    AP_N_SENDS
};

struct ap_send {
    int node;       /* of the whole graph */
    int from, to;   /* stages; values skip stages in between */
    int made, read; /* nodes of the stages' graphs */
    enum ap_send_kind kind;
    struct ap_transfer_price transfer; /* of one microbatch or one step */
    struct ap_link link;
};

/* The bytes that a device sends another in a step, between stages and in exchanges of
 * receivers (reshard.h), of n devices that follow each other to n that do. */
struct ap_device_link {
    int64_t from, to; /* global numbers of the first */
    int64_t bytes;    /* of each of the n */
    int64_t n;
};

/* ---- the plan ---- */

/* One stage in parts. */
struct ap_stage_breakdown {
    struct ap_cost cost; /* of its devices and mesh; the memo is freed */
    struct ap_conversions conv;
    double forward_comm_sec, backward_comm_sec; /* per microbatch, inside the stage */
    double recompute_comm_sec; /* of recomputed operators, not in backward_comm_sec */
    double update_comm_sec;    /* once per step, not in sync_sec */
    double flops;              /* heavy, of all devices and the step */
    int64_t role_bytes[AP_N_ROLES]; /* parameters of a device */
    int64_t waiting_bytes; /* values that arrive before a stage in between is done */
};

struct ap_pipeline_price {
    struct ap_sim sim;
    struct ap_sim_stage *stage;
    struct ap_stage_point *point;         /* [stage], as its recompute says */
    struct ap_stage_breakdown *breakdown; /* [stage] */
    struct ap_stage_microbatch micro;     /* that the stages were priced by */
    struct ap_sim_result result;
    double flops;       /* of the model, all devices and phases, no recompute */
    double mfu;         /* flops / (peak * devices * step), [0, 1] */
    int64_t n_devices;  /* that some stage runs on */
    int64_t tied_bytes; /* gradients of weights held by several stages, summed
                           across them once per step */
    int n_sends;
    struct ap_send *sends;
    int n_links;
    struct ap_device_link
        *links; /* by sets of devices; not filled by ap_pipeline_compare */
    double level_bytes[AP_MAX_LEVELS]; /* of a step, between and inside stages */
    int64_t peak_bytes;                /* of the fullest device */
    /* of the device that has least room left on the host: its bytes there, and how many
       it may have (0: unknown); and the most seconds of a step in which a device's link
       to it works, of both directions the longer one; 0: none have */
    int64_t host_bytes, host_limit_bytes;
    double host_link_sec;
};

/* Prices and simulates the plan. -1 if a plan is not legal or the schedule does not
 * exist. */
int ap_pipeline_price(struct ap_arena *arena, const struct ap_staged_graph *of,
                      const struct ap_stages *stages, struct ap_pipeline_price *out,
                      struct ap_err *err);

/* The same for plans that are only compared: fills sim, stage, point, time, result, sends
 * and peak_bytes. micro: for any number of microbatches; NULL: unknown. */
int ap_pipeline_compare(struct ap_arena *arena, const struct ap_staged_graph *of,
                        const struct ap_stages *stages,
                        const struct ap_stage_microbatch *micro,
                        struct ap_pipeline_price *out, struct ap_err *err);

/* ---- private to the price: pipeline_sends.c ---- */

struct ap_pricing {
    struct ap_arena *arena;
    const struct ap_graph *g;
    const struct ap_blocks *blocks;
    const struct ap_cluster *cluster;
    const struct ap_stages *stages;
    const int *stage_of; /* [node of g] */
    struct ap_stage_microbatch micro;
    /* the microbatches if they have their own statistics, and when groups run
       (plan/microbatch.h); `when` is NULL if they have none, or the plan cannot be run */
    struct ap_microbatched whole;
    const uint8_t *when;
    const bool *rows; /* [node of g]: has rows of the batch; NULL: a batch of one row */
    struct ap_pipeline_price *out;
};
/* Fills sends and tied_bytes, adds their times and bytes to the stages. */
void ap_pipeline_sends(struct ap_pricing *p);
/* Fills links by the sends (pipeline_links.c). */
void ap_pipeline_links(struct ap_pricing *p);

#endif
