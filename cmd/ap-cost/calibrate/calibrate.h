/*
 * --calibrate: a cluster file whose times are fitted to measurements: profiles of ap-exec
 * (man page ap-exec, --profile) and outputs of nccl-tests; or scaled to a trainer's step.
 */
#ifndef COST_CALIBRATE_H
#define COST_CALIBRATE_H

#include "cost/cost.h"
#include "tool/tool.h"

/* One measurement. FLOPs of kernels; bytes, of collectives those of the full tensor. */
struct cal_sample {
    double flops, bytes, sec, weight;
};

/* Measurements that one table is fitted to. */
struct cal_class {
    enum cal_what { CAL_KERNEL, CAL_COLLECTIVE, CAL_SEND } what;
    enum ap_kernel kernel;
    enum ap_dtype dtype;
    enum ap_op op;
    int level; /* outermost that is crossed */
    int64_t devices, rings;
    int n, cap;
    struct cal_sample *sample;
    /* the residuals' median and largest, shares of the measured seconds */
    double median_error, worst_error;
};

struct cal {
    struct ap_arena *arena;
    struct ap_cluster cluster; /* what is measured replaces what it says */
    bool has_cluster;
    int n, cap;
    struct cal_class *class;
};

/* The class with these members (n, sample and errors aside), made if there is none. */
struct cal_class *cal_class_of(struct cal *c, const struct cal_class *key);
void cal_add(struct cal *c, struct cal_class *class, const struct cal_sample *s);
/*
 * Of groups of devices (group g: device[first[g]] .. device[first[g + 1] - 1]) that
 * communicate at once: the outermost level that they cross, and how many go through one
 * of its children. -1: a device that the cluster lacks, or a group that crosses nothing.
 */
int cal_level(const struct ap_cluster *c, int n_groups, const int *first,
              const int64_t *device, int *level, int64_t *rings);

/* Adds what the text says; file: for messages. -1 with err set. */
int cal_read_profile(struct cal *c, const char *file, const json_t *doc,
                     struct ap_err *err);
/* nccl-tests' lines, or what its option -J writes. */
bool cal_is_nccl_json(const json_t *doc);
int cal_read_nccl_json(struct cal *c, const char *file, const json_t *doc,
                       struct ap_err *err);
int cal_read_nccl_text(struct cal *c, const char *file, const char *text,
                       struct ap_err *err);

/*
 * The cluster of a priced plan (FILE, a document), and the measured seconds of its step
 * over the predicted ones. -1: it has no price, or the two differ by more than 100 times.
 */
int cal_read_step(struct cal *c, const char *file, double measured_sec, double *by,
                  struct ap_err *err);
/* All times of the cluster become so many times longer. */
void cal_scale(struct cal *c, double by);

/* Fits a table to each class and puts it, and the figures that follow, into c->cluster.
 */
void cal_fit(struct cal *c);
/* The residuals, a line for each class. */
void cal_report(const struct cal *c, struct ap_buf *out);

/* ap-cost --calibrate: reads the files and writes the cluster, or dies. cluster_path:
 * --cluster, NULL: devices and hosts are those of the first profile. step_sec: --step,
 * what the step of the one file, a plan, took; 0: files are measurements. */
int calibrate(struct ap_tool *tool, const struct ap_list *files, const char *cluster_path,
              double step_sec);

#endif
