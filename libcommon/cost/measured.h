/*
 * Measured times in a cluster: tables that ap-cost --calibrate fits to profiles. If a
 * cluster has a table, it replaces the formula of cost.c. Measured rates of contractions
 * (scripts/clusters makes them of published measurements) replace the efficiency in it.
 */
#ifndef AP_MEASURED_H
#define AP_MEASURED_H

#include "doc/doc.h"
#include "layout/kernel.h"

/* Seconds at a size (FLOPs or bytes): linear between rows, which rise in size and do not
 * fall in seconds; beyond the last, in proportion to it. */
struct ap_time_row {
    double size, sec;
};
#define AP_MAX_TIME_ROWS 32
struct ap_time_rows {
    int n;
    struct ap_time_row row[AP_MAX_TIME_ROWS];
};

/* A kernel takes launch_sec + seconds by FLOPs + seconds by bytes; both are 0 at 0. */
struct ap_kernel_time {
    enum ap_kernel kernel;
    enum ap_dtype dtype;
    double launch_sec;
    struct ap_time_rows flops, bytes;
};

/* Kernels of this size reach this share of the peak, (0, 1]. */
struct ap_share_row {
    double size, of_peak;
};

/*
 * What one kind of contraction reaches, in some element types, by its size: FLOPs of a
 * dot, rows per expert of a grouped product (tokens, where gradients of weights are sums
 * over them), length of the sequences of an attention.
 */
#define AP_MAX_SHARE_ROWS 16
struct ap_rate {
    enum ap_kernel kernel;
    uint32_t dtypes;     /* bit set */
    enum ap_phase phase; /* attention: AP_FORWARD or AP_BACKWARD */
    double width;        /* attention: of heads */
    int n;
    struct ap_share_row row[AP_MAX_SHARE_ROWS]; /* rising */
};

/*
 * The share of the peak at a size: between two rows the time is linear in the size, and
 * beyond them the share is constant.
 */
double ap_share_at(const struct ap_share_row *row, int n, double size);

/*
 * The time of a collective on `devices` devices whose ring crosses the level (and no
 * level outside of it), with `rings` such rings through one child of the level at once,
 * by bytes of the full tensor. Below the first row it is constant.
 */
struct ap_collective_time {
    enum ap_op op;
    int level;
    int64_t devices, rings;
    struct ap_time_rows bytes;
};

/* The time of a message between two devices whose path crosses the level (and no level
 * outside of it). */
struct ap_send_time {
    int level;
    struct ap_time_rows bytes;
};

#define AP_MAX_TIMES 256 /* tables of one sort in a cluster */
struct ap_measured {
    int n_kernels, n_rates, n_collectives, n_sends;
    const struct ap_kernel_time *kernel;
    const struct ap_rate *rate;
    const struct ap_collective_time *collective;
    const struct ap_send_time *send;
};

/* The time at a size; below the first row it is on the line from (0, at_zero). */
double ap_time_at(const struct ap_time_rows *rows, double size, double at_zero);
double ap_kernel_time_at(const struct ap_kernel_time *t, double flops, double bytes);
/* The table, or NULL. */
const struct ap_kernel_time *ap_measured_kernel(const struct ap_measured *m,
                                                enum ap_kernel kernel,
                                                enum ap_dtype dtype);
/* The rates of a kernel in a type; of attentions those of the phase, by the width that is
 * nearest in proportion. NULL: none. */
const struct ap_rate *ap_measured_rate(const struct ap_measured *m, enum ap_kernel kernel,
                                       enum ap_dtype dtype, enum ap_phase phase,
                                       double width);
const struct ap_collective_time *ap_measured_collective(const struct ap_measured *m,
                                                        enum ap_op op, int level,
                                                        int64_t devices, int64_t rings);
const struct ap_send_time *ap_measured_send(const struct ap_measured *m, int level);

/*
 * Read the members "kernels" and "rates", and "collectives" and "sends" (at: the object
 * that has them), with the names of levels in level[n_levels]. Results are in the arena;
 * -1 with err set.
 */
int ap_measured_kernels_from_json(struct ap_arena *arena, const json_t *o,
                                  const struct ap_at *at, struct ap_measured *m,
                                  struct ap_err *err);
/* Rows of a size, which is called so, and a share of the peak; -1 with err set. */
int ap_shares_from_json(const json_t *rows, const struct ap_at *at, const char *size,
                        struct ap_share_row *row, int *n, struct ap_err *err);
void ap_shares_put(const struct ap_share_row *row, int n, const char *size,
                   struct ap_buf *out);
int ap_measured_links_from_json(struct ap_arena *arena, const json_t *o,
                                const struct ap_at *at, const char *const *level,
                                int n_levels, struct ap_measured *m, struct ap_err *err);
/* Put the same members, with a comma before them; nothing if there are no tables. */
void ap_measured_put_kernels(const struct ap_measured *m, struct ap_buf *out);
void ap_measured_put_links(const struct ap_measured *m, const char *const *level,
                           struct ap_buf *out);

/* Replaces the tables by copies (arena) for a machine that computes, moves bytes and
 * launches kernels faster by these factors. */
void ap_measured_faster(struct ap_arena *arena, struct ap_measured *m, double flops,
                        double bytes, double launch);
void ap_measured_faster_level(struct ap_arena *arena, struct ap_measured *m, int level,
                              double bandwidth, double latency);

#endif
