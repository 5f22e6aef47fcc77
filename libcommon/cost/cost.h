/* Clusters, and the price of operators and collectives on them. */
#ifndef AP_COST_H
#define AP_COST_H

#include "doc/doc.h"
#include "layout/layout.h"
#include "cost/convert.h"
#include "cost/measured.h"
#include "cost/published.h"

struct ap_link_level {
    const char *name;
    int64_t size; /* children per group: devices (level 0) or groups of the level below */
    double bandwidth_bytes_per_sec, latency_sec;
    bool shared; /* one bus: the transfers of all children at once divide the bandwidth */
    bool uplink; /* one link per child (a node's network card), divided by the groups that
                    use it at once. If neither is set, every device has a link of its own
                  */
    int64_t rails;           /* uplink: links per child, each for one group; 0: one */
    double oversubscription; /* rate at which all children can send, over the rate that
                                the level carries; 0 means 1 */
};

/*
 * Bytes per second of each of several concurrent transfers, of which at most per_child
 * use one child's links, and per_group are inside one group of the level.
 */
double ap_link_rate(const struct ap_link_level *level, double per_child,
                    double per_group);

/*
 * Hosts of one kind in a cluster of several: `hosts` groups of the innermost level, in
 * the order of devices. `devices` has the members that describe devices, and levels[0]
 * without its size.
 */
struct ap_host_kind {
    int64_t hosts;
    const struct ap_cluster *devices;
};

/* A device's link to the memory of its host: bytes per second of pinned memory, while all
 * devices of the host copy. */
struct ap_host_link {
    double out_bytes_per_sec, in_bytes_per_sec; /* 0: not known, nothing is offloaded */
    double both_bytes_per_sec; /* sum of both directions at once; 0: they do not meet */
    /* what the host's cores read and write, a device's part; 0: not known */
    double memory_bytes_per_sec;
    int64_t memory_bytes; /* a device's part of the host's memory; 0: not known */
};

#define AP_MAX_KINDS  8
#define AP_MAX_LEVELS 6
struct ap_cluster {
    const char *name, *device;
    const char *source; /* of the figures, for people; NULL */
    int64_t memory_bytes;
    double flops_per_sec[AP_N_DTYPES]; /* 0: not given, falls back to f32's */
    double memory_bandwidth_bytes_per_sec, launch_sec, efficiency; /* (0, 1] */
    double tf32_flops_per_sec; /* of contractions of f32, rounded to tf32; 0: as f32's */
    double attention_of_peak; /* reached by fused attentions; 0: as for matrix products */
    /* largest fraction that contractions reach if rows of their operands or results do
       not begin at multiples of 16 bytes; 0: as for others */
    double uneven_of_peak;
    struct ap_host_link host_link;
    double host_sec; /* time in which the host launches an operator, while devices wait */
    /* by size, with rising FLOPs; empty if all operators reach the same; otherwise
       `efficiency` is the last row's */
    int n_curve;
    struct ap_share_row curve[AP_MAX_SHARE_ROWS];
    int n_levels;
    struct ap_link_level levels[AP_MAX_LEVELS]; /* from inside to outside */
    bool fused_attention; /* its devices have kernels for it; read by ap-fuse */
    /* its devices compute while the network works, and steps of one mesh are simulated
       that way (plan/overlap.h) */
    bool overlap;
    /* efficiency factor e per collective kind (TAP), 1 by default */
    double collective_efficiency[AP_N_OPS];
    /* by kind: the share of a device's units that it takes from what runs beside it */
    double collective_share[AP_N_OPS];
    /* > 1: all-to-alls carry tokens to this many experts each, and send a token once to
       each host, or to each device of a host, as DeepEP does; 0: once to each expert */
    double experts_per_token;
    /* tokens of the device whose experts have most, over the mean, above 1: others wait
       for it, in products of experts and in all-to-alls; 0: experts are drawn evenly */
    double expert_load;
    bool has_published; /* somebody looked for published runs, and found these */
    int n_published;
    struct ap_published published[AP_MAX_PUBLISHED];
    struct ap_measured measured; /* tables that replace formulas, none by default */
    /* 0: all hosts have the same devices. Otherwise the members above that describe
       devices are the first kind's, except that memory_bytes is the smallest, and no mesh
       can be laid over several kinds (ap_cost_init); each stage can have one kind
       (ap_cluster_take).
     */
    int n_kinds;
    struct ap_host_kind kind[AP_MAX_KINDS];
};

int64_t ap_cluster_devices(const struct ap_cluster *c);
/* Peak of a device's contractions in dtype; f32 counts as tf32 if the cluster rounds
 * operands. With several kinds it is the mean over all devices. */
double ap_cluster_peak(const struct ap_cluster *c, enum ap_dtype dtype);
/* Devices of a host: a group of the innermost level, or one if that level has a network
 * card per child. */
int64_t ap_cluster_host_devices(const struct ap_cluster *c);
/* The number of the device's kind; 0 if all are of one kind. */
int ap_cluster_kind_of(const struct ap_cluster *c, int64_t device);
/* The description of the device: c, or the cluster of its kind. */
const struct ap_cluster *ap_cluster_of_device(const struct ap_cluster *c, int64_t device);
/* Names of its kinds of devices, commas between them. */
void ap_cluster_put_kinds(const struct ap_cluster *c, struct ap_buf *out);
/* c with the devices of a kind, and no others. */
void ap_cluster_set_kind(struct ap_cluster *c, int kind);
/* The fraction of the peak that an operator of this many FLOPs reaches on one device. */
double ap_cluster_efficiency(const struct ap_cluster *c, double flops);
int ap_cluster_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                         struct ap_cluster *c, struct ap_err *err);
void ap_cluster_to_json(const struct ap_cluster *c, struct ap_buf *out);
/* 16 hexadecimal digits (arena) of all but the source and published runs, the same on
 * every machine. */
const char *ap_cluster_fingerprint(struct ap_arena *arena, const struct ap_cluster *c);
/* A cluster known by name: the text of clusters/NAME.json or clusters/papers/NAME.json.
 * The Makefile makes the table. */
struct ap_preset {
    const char *name, *text;
};
/* The presets of clusters/ by name, then the papers' clusters; a NULL name ends the
 * table. */
extern const struct ap_preset ap_presets[];
/* The presets, a line each: name, devices from the outermost level in, source. */
void ap_cluster_list(struct ap_buf *out);
/*
 * The cluster of --cluster FILE if path is given, else the document's section, else a
 * default of n_devices: A100s, 8 to a node (300 GB/s inside, 25 GB/s between). A path
 * without '/' that is no file and is a preset's name means the preset; KIND alone means
 * one host, the preset KIND-N; KINDxHOSTS means this number of hosts of the kind that a
 * preset KIND, or KIND with another number of hosts, has; several of these joined by '+'
 * mean hosts of several kinds, with the slowest of their links between them.
 */
int ap_cluster_get(struct ap_arena *arena, const struct ap_doc *doc, const char *path,
                   int64_t n_devices, struct ap_cluster *c, struct ap_err *err);

enum ap_cost_variant { AP_COST_DEFAULT, AP_COST_ALPA, AP_COST_BYTES };
extern const char *const ap_cost_variant_names[]; /* "default", "alpa", "bytes" */

/*
 * The settings of Alpa's solver. Axes are numbered among the axes of devices, without the
 * microbatch axis.
 */
struct ap_alpa_rules {
    bool space;   /* conversions as Alpa makes them: sums at once, alpa.h says which */
    bool scatter; /* partial sums may be reduce-scattered */
    bool mixed;   /* one dimension may be split over both axes: mixed mesh shape */
    unsigned no_all_gather, no_all_to_all;        /* axes on which these are forbidden */
    double alpha[AP_MAX_AXES], beta[AP_MAX_AXES]; /* units, of the cost model alpa */
};

/* Weights of the prices of one graph's plans: a step on two streams is bounded by
 * weighted sums of compute and communication (cmd/ap-shard/overlap.c). */
struct ap_weighting {
    double compute;       /* of every operator */
    const double *tensor; /* [node]: of its conversions */
};

/* A mesh laid over a cluster under one cost model. Plain data; ap_cost_init fills it. */
struct ap_cost {
    enum ap_cost_variant variant;
    struct ap_alpa_rules alpa; /* defaults: the default space, Alpa's alpha and beta */
    struct ap_cluster cluster;
    struct ap_mesh mesh;
    double bandwidth[AP_MAX_AXES], latency[AP_MAX_AXES]; /* of each axis */
    /* of several axes taken as one ring, by bit set */
    double set_bandwidth[1 << AP_MAX_AXES], set_latency[1 << AP_MAX_AXES];
    /* the outermost level that such a ring crosses, -1: none, and the rings through one
       of the level's children at once */
    int set_level[1 << AP_MAX_AXES];
    int64_t set_rings[1 << AP_MAX_AXES];
    const struct ap_weighting *weighting; /* NULL: all are 1 */
    /* of ap_convert; not shared between threads */
    struct ap_conversion_cache *cache;
};

/* Alpa's own: the default space, alpha 1 on every axis, beta 1 on the first and 0.1 on
 * the others, as for a mesh taken from a physical one. */
struct ap_alpa_rules ap_alpa_defaults(void);
/* -1: the mesh does not fit the cluster (exit 3), message names both sizes. */
int ap_cost_init(struct ap_arena *arena, struct ap_cost *cost,
                 enum ap_cost_variant variant, const struct ap_cluster *cluster,
                 const struct ap_mesh *mesh, struct ap_err *err);
/*
 * Frees the cache. It has memory of its own, so that callers of ap_convert may mark and
 * rewind the arena as they like.
 */
void ap_cost_free(struct ap_cost *cost);

/*
 * Seconds (default), Alpa's units (alpa) or bytes (bytes) of a collective over the axes
 * in the bit set, `bytes` of the full tensor on those axes; local steps cost 0.
 */
double ap_cost_collective(const struct ap_cost *cost, enum ap_op op, unsigned axes,
                          int64_t bytes);

/* What one device does in one kernel. */
struct ap_kernel_work {
    enum ap_kernel kernel;
    enum ap_dtype dtype;
    bool precise;        /* operands in f32 must not be rounded, for which is no table */
    enum ap_phase phase; /* of an attention: its rates by phase, width, length */
    double flops, bytes;
    double size;  /* as in struct ap_rate; of a dot 0: its FLOPs are */
    double width; /* of an attention's heads */
};

/*
 * Its seconds: as measured, if the cluster has a table for the kernel in this type, else
 * max(flops / peak / share of it, bytes / memory bandwidth) + launch, where the share is
 * the measured rate of the kernel in this type or the cluster's efficiency; 0 in the
 * other variants, where compute is free.
 */
double ap_cost_kernel(const struct ap_cost *cost, const struct ap_kernel_work *w);
/* The same for a cluster. */
double ap_cluster_kernel_sec(const struct ap_cluster *c, const struct ap_kernel_work *w);
/* A kernel that moves data. */
double ap_cost_compute(const struct ap_cost *cost, double flops, enum ap_dtype dtype,
                       double bytes);

#endif
