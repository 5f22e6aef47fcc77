/* A run of some steps: losses, seconds, and the parameters and results of the last step.
 */
#ifndef EXEC_SESSION_H
#define EXEC_SESSION_H

#include "run/data.h"
#include "profile/profile.h"
#include "step/trace.h"
#include "pipeline/pipeline_program.h"

struct settings {
    int64_t n_ranks; /* -n; 0: not given */
    int64_t steps;
    int64_t threads; /* of a rank on the CPU; 0: its share of the cores */
    struct source source;
    const char *out_dir, *compare_dir;
    const char *profile_path; /* --profile; NULL: none */
    const char *trace_path;   /* --trace; NULL: none */
    int n_programs;           /* whose steps alternate */
    double watchdog_sec;      /* 0: none */
    bool json, report, verify, quiet;
    bool prepare_only; /* nothing runs */
    bool check;        /* the program only, nothing runs */
    double tolerance;  /* NaN: not given */
    const struct backend *backend;
};

/* Bytes of the planned arena; of additional memory for kernels, transfers and new values;
 * and of the growth of the process, or -1 if unknown. */
struct rank_memory {
    int64_t buffers, working, measured;
};

/* Called after every step, on rank 0; step: the first of all is 1. */
struct session_hook {
    void (*say)(const void *ctx, int64_t step, bool has_loss, double loss);
    const void *ctx;
};
struct session {
    struct ap_arena *arena;
    const struct backend *backend;
    struct comm *comm; /* of the job */
    const struct ap_pipeline_program *program;
    /* Parameters and results of the whole graph, by number, and no operators */
    struct ap_graph outline;
    struct executor *executor; /* of this rank's lane */
    int64_t steps;
    int loss;       /* result number, -1 for none */
    double *losses; /* per step taken; caller's arena */
    double sec_per_step;
    double *step_sec, *cpu_sec; /* [step]: on the clock, and of this rank's processor */
    int room[3];                /* of losses, step_sec, cpu_sec: they grow */
    const struct session_hook *hook; /* NULL: none */
    bool keep;  /* parameters and results of the last step are kept */
    double sec; /* of all steps so far */
    int64_t n_batches;
    int64_t start_bytes;        /* of memory_start, before anything was prepared */
    const char *batches;        /* a folder per step; NULL: inputs do not change */
    struct profile *profile;    /* NULL: none */
    struct trace *trace;        /* NULL: none */
    struct exec_timing *timing; /* of `alone`; NULL: none */
    /* Whole arrays after the last step, on rank 0, NULL unless they are kept: parameters,
     * and results that become no parameter. */
    void **params, **results;
    void **start; /* parameters before the first step, likewise; NULL: not kept */
    int64_t peak_bytes, scratch_bytes; /* of the rank that needs most */
    struct rank_memory memory;         /* of this rank */
    struct rank_memory *rank_memory;   /* [rank], on rank 0, else NULL */
    const struct exec *alone;   /* of the section "program", all of it; else NULL */
    struct stage_report *stage; /* [stage], on rank 0 */
    int64_t sent_bytes;         /* from stage to stage in a step, between ranks */
    int64_t *link_bytes;        /* the same, [sender * ranks + receiver] */
};

/* Collectives that ran in a stage, per step. */
struct stage_report {
    const struct ap_mesh *mesh;
    int n;
    struct ap_coll_count *coll;
};

/* The number of the loss: the first result with its role, else the first float scalar
 * that is kept nowhere; -1: none. */
int session_loss(const struct ap_graph *g);

/* The results of a session, and how it computes. */
struct session_opts {
    bool keep;       /* parameters and results of the last step */
    bool keep_start; /* parameters before the first one */
    bool observed;   /* a profile and a timeline, where the settings ask for them */
    bool timed;      /* seconds by kind of kernel (timing.c) */
    struct exec_noise *noise;
    const struct session_hook *hook; /* NULL: none */
};
/*
 * Opens the program and loads its data. Called by all ranks; where preparation fails on
 * one, job_agree ends the job.
 */
void session_open(struct session *s, struct ap_arena *arena,
                  const struct ap_pipeline_program *program, const struct settings *set,
                  struct comm *comm, const struct session_opts *opts);
/* Runs the steps of n sessions, one of each in turn, and measures them; s->losses are in
 * the session's arena. */
void session_steps(struct session *const *s, int n);
/* After the steps: memory, what ran, and parameters if they are kept. */
void session_end(struct session *s);
void session_close(struct session *s);
/* Open, steps and end of one program. */
void session_run(struct session *s, struct ap_arena *arena,
                 const struct ap_pipeline_program *program, const struct settings *set,
                 struct comm *comm, const struct session_opts *opts);

/* ---- the instructions of this rank's lane (executor.c) ---- */

/* Opens the stages of the lane and loads their data; then the timeline, the profile and
 * the times that are asked for. */
struct executor *executor_open(struct session *s, const struct settings *set,
                               const struct session_opts *opts);
/* One step, up to where parameters take their new values: executor_advance. */
void executor_step(struct executor *p);
/* Called by all ranks; known to rank 0 and to the stage that makes it. */
double executor_loss(struct executor *p);
void executor_advance(struct executor *p);
/* data_batch of each stage. */
int executor_feed(struct executor *p, const char *dir, int64_t batch, int *n_read,
                  struct ap_err *err);
/* Whole arrays on rank 0, by number: results that become no parameter, and parameters
 * that a step updates. */
void **executor_results(struct executor *p);
void **executor_params(struct executor *p);
/* Bytes that this rank has allocated in addition to the buffers. */
int64_t executor_working_bytes(const struct executor *p);
/* Counts the work that ran, for the report; called by all ranks. */
void executor_report(struct executor *p);
void executor_close(struct executor *p);

/* ---- results for people and programs (report.c) ---- */

/* The criterion by which a tensor of two runs is equal. */
enum verify_kind {
    VERIFY_FULL,     /* f32, f64, integers: the norm of the difference over the norm */
    VERIFY_LOW,      /* computed in bf16 or f16: over the norm of its change */
    VERIFY_ROUNDING, /* further off, but no more than rounding moves it */
    VERIFY_DECIDED,  /* its change is rounding: a gradient that is zero up to rounding */
    VERIFY_N_KINDS
};

struct comparison {
    bool done;
    double loss_error, params_error, states_error; /* -1: nothing to compare */
    /* --verify without --tolerance: tensors of each kind, and their names */
    bool by_type;
    enum ap_dtype low; /* the coarsest type that a tensor is computed in */
    int n[VERIFY_N_KINDS];
    const char **name[VERIFY_N_KINDS];
};

/* The collectives that a program ran in `steps` steps, per step. */
int session_collectives(struct ap_arena *arena, const struct exec *x, int64_t steps,
                        struct ap_coll_count **out);
void report_json(struct ap_arena *arena, const struct session *s,
                 const struct comparison *cmp, const struct comparison *verified,
                 struct ap_buf *out);
/* A line on the tensors that --verify did not accept at full precision, or nothing. */
void report_kinds(const struct comparison *cmp, struct ap_buf *out);
void report_text(struct ap_arena *arena, const struct session *s, struct ap_buf *out);
/* The line of --check about a correct program. */
void report_checked(const struct ap_pipeline_program *program, bool json,
                    struct ap_buf *out);
/* Before the first step: whether the folder of --out is there or can be made. */
int report_check(const char *dir, struct ap_err *err);
/* Writes the files of --out to dir: all of them, or, with err, none. */
int report_files(const struct session *s, const char *dir, struct ap_err *err);

/* ---- comparisons (verify.c), rank 0 only ---- */

/* The unpartitioned graph as a program for one rank. each: from 2 on, the number of
 * microbatches, each with its own statistics. */
int verify_program(struct ap_arena *arena, struct ap_graph *g, int each,
                   struct ap_program *prog, struct ap_err *err);
/*
 * Runs the unpartitioned graph from the same data and compares losses, parameters and
 * results; -1 names the first that is out of tolerance. With set->tolerance, it bounds
 * every relative error. Otherwise the tolerance follows from the types of the
 * computation, and larger differences are compared with the effect of rounding alone
 * (noise.h).
 */
int verify_run(struct ap_arena *arena, const struct ap_doc *doc,
               const struct settings *set, const struct session *s,
               struct comparison *cmp, struct ap_err *err);
/*
 * Called before the first step: checks that DIR has this number of losses and readable
 * files for the new values of the n parameters with these numbers.
 */
int compare_check(struct ap_arena *arena, const char *dir, int64_t steps, int n,
                  const int *number, struct ap_err *err);
/*
 * With DIR/losses.npy and DIR/out/K.npy; -1 also when an error is above the tolerance or
 * nothing was compared, unless the tolerance is NaN.
 */
int compare_goldens(struct ap_arena *arena, const struct session *s, const char *dir,
                    double tolerance, struct comparison *cmp, struct ap_err *err);

#endif
