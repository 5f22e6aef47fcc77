/* A run of some steps: losses, seconds, and the parameters and results of the last step.
 */
#ifndef EXEC_SESSION_H
#define EXEC_SESSION_H

#include "run/checkpoint.h"
#include "run/data.h"
#include "profile/profile.h"
#include "run/trace.h"
#include "pipeline/pipeline_program.h"

struct settings {
    int64_t n_ranks; /* -n; 0: not given */
    int64_t steps;
    int64_t threads; /* of a rank on the CPU; 0: its share of the cores */
    struct source source;
    const char *out_dir, *compare_dir;
    const char *save_dir; /* --save; NULL: no checkpoints */
    int64_t save_every;   /* steps; 0: after the last one only */
    const char *resume_dir;
    const char *profile_path; /* --profile; NULL: none */
    const char *trace_path;   /* --trace; NULL: none */
    const char *beside_path;  /* --beside; NULL: the timeline stands alone */
    int n_programs;           /* whose steps alternate */
    double watchdog_sec;      /* 0: none */
    bool json, report, verify, quiet;
    bool prepare_only; /* nothing runs */
    bool check;        /* the program only, nothing runs */
    double tolerance;  /* NaN: not given */
    const struct backend *backend;
};

/* Bytes: of the arena that is planned; of what kernels, transfers and new values need
 * beside it; and by how much the process has grown, -1: unknown. */
struct rank_memory {
    int64_t buffers, working, measured;
};

/* What a step is made of. */
struct step_of {
    void (*run)(void *ctx);
    double (*loss)(void *ctx); /* where the session has one; called by all ranks */
    void (*keep_results)(void *ctx);
    void (*advance)(void *ctx);                   /* parameters take their new values */
    void (*put)(void *ctx, struct checkpoint *c); /* checkpoint_put of each */
    /* data_batch of each program */
    int (*feed)(void *ctx, const char *dir, int64_t batch, int *n_read,
                struct ap_err *err);
    void *ctx;
};
/* Called after every step, on rank 0; step: the first of all is 1. */
struct session_hook {
    void (*say)(const void *ctx, int64_t step, bool has_loss, double loss);
    const void *ctx;
};
struct session {
    struct exec exec;
    int64_t first; /* steps that were done before this run */
    int64_t steps;
    int loss;       /* result number, -1 for none */
    double *losses; /* per step taken; caller's arena */
    double sec_per_step;
    double *step_sec, *cpu_sec; /* [step]: on the clock, and of this rank's processor */
    int room[3];                /* of losses, step_sec, cpu_sec: they grow */
    struct step_of of;
    const struct session_hook *hook; /* NULL: none */
    bool keep;  /* parameters and results of the last step are kept */
    double sec; /* of all steps so far */
    int64_t n_batches;
    int64_t start_bytes; /* of memory_start, before anything was prepared */
    const char *batches; /* a folder per step; NULL: inputs stay what they are */
    struct saver *saver; /* NULL: no checkpoints */
    int64_t save_every;
    struct profile *profile; /* NULL: none */
    struct trace *trace;     /* NULL: none */
    /* Whole arrays after the last step, on rank 0, NULL unless they are kept: parameters,
     * and results that become no parameter. */
    void **params, **results;
    void **start; /* parameters before the first step, likewise; NULL: not kept */
    struct rank_memory memory;       /* of this rank */
    struct rank_memory *rank_memory; /* [rank], on rank 0, else NULL */
    int each; /* microbatches that take their own statistics; 0: none do */
    /* Of a pipeline program, on rank 0; 0 and NULL of a single program */
    int n_stages;
    struct stage_report *stage;
    int64_t sent_bytes;  /* from stage to stage in a step, between ranks */
    int64_t *link_bytes; /* the same, [sender * ranks + receiver] */
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

/* What a session leaves, and how it computes. */
struct session_opts {
    bool keep;       /* parameters and results of the last step */
    bool keep_start; /* parameters before the first one */
    bool
        save; /* checkpoints, a profile and a timeline, where the settings ask for them */
    bool timed; /* seconds by kind of kernel (timing.c) */
    struct exec_noise *noise;
    const struct session_hook *hook; /* NULL: none */
};
/*
 * Opens the program and loads its data. Called by all ranks; where preparation fails on
 * one, job_agree ends the job.
 */
void session_open(struct session *s, struct ap_arena *arena,
                  const struct ap_program *prog, const struct settings *set,
                  struct comm *comm, const struct session_opts *opts);
/* Runs the steps of n sessions, one of each in turn, and measures them; s->losses are in
 * the arena of s->exec. */
void session_steps(struct session *const *s, int n);
/* After the steps: memory, and parameters if they are kept. */
void session_end(struct session *s);
void session_close(struct session *s);
/* Open, steps and end of one program. */
void session_run(struct session *s, struct ap_arena *arena, const struct ap_program *prog,
                 const struct settings *set, struct comm *comm,
                 const struct session_opts *opts);

/*
 * The same of a pipeline program: each rank runs the programs of its lane.
 * s->exec.prog has the parameters and results of the whole graph and no operators.
 */
struct executor;
struct executor *executor_open(struct session *s, struct ap_arena *arena,
                               const struct ap_pipeline_program *pipeline,
                               const struct settings *set, struct comm *job, bool keep,
                               const struct session_hook *hook);
void executor_end(struct executor *p, struct session *s);
void executor_close(struct executor *p, struct session *s);

/* Before the steps: reads what --resume needs and prepares --save; g: the parameters and
 * results of the whole graph. */
int session_prepare(struct session *s, struct ap_arena *arena, const struct ap_graph *g,
                    const struct settings *set, bool save, struct ap_err *err);
/* The timeline that --trace asks for, or NULL; called by all ranks. pipeline, lane: as
 * trace_new's. */
struct trace *session_trace(struct ap_arena *arena, const struct settings *set,
                            struct comm *comm, const struct ap_pipeline_program *pipeline,
                            int lane);
/* A scalar node's value. */
double session_scalar(const struct exec *x, int node);

/* ---- seconds by kind of kernel (timing.c) ---- */

/* Kernels of one kind in a step, of the rank's program. */
struct timing_row {
    const char *kind; /* an operator's name, "elementwise" (fused passes) or "copy" */
    double calls;
    double sec;      /* as timing.c measures a call */
    double blas_sec; /* of this rank's first thread within BLAS */
    double flops;    /* of dot and convolution */
    double bytes;    /* each kernel reads its operands and writes its results once */
};
/* Rows in order of seconds, per step of those that were timed; how many. A loop is one
 * kernel. */
int timing_rows(struct ap_arena *arena, const struct exec *x, struct timing_row **out);

/* ---- results for people and programs (report.c) ---- */

/* What decides whether a tensor of two runs is the same. */
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

/* Fills s->rank_memory. Called by all ranks. */
void session_memory(struct ap_arena *arena, struct session *s);
/* The collectives that a program ran in `steps` steps, per step. */
int session_collectives(struct ap_arena *arena, const struct exec *x, int64_t steps,
                        struct ap_coll_count **out);
void report_json(struct ap_arena *arena, const struct session *s,
                 const struct comparison *cmp, const struct comparison *verified,
                 struct ap_buf *out);
/* What --verify met beyond tensors of full precision: a line, or nothing. */
void report_kinds(const struct comparison *cmp, struct ap_buf *out);
void report_text(struct ap_arena *arena, const struct session *s, struct ap_buf *out);
/* What --check found in order: a program, or a pipeline program. */
void report_checked(const struct ap_program *prog,
                    const struct ap_pipeline_program *pipeline, bool json,
                    struct ap_buf *out);
/* Before the first step: whether the option's folder is there or can be made. */
int report_check(const char *option, const char *dir, struct ap_err *err);
int report_files(const struct session *s, const char *dir, struct ap_err *err);

/* ---- comparisons (verify.c), rank 0 only ---- */

/* The unpartitioned graph as a program for one rank; each: as in struct session. */
int verify_program(struct ap_arena *arena, struct ap_graph *g, int each,
                   struct ap_program *prog, struct ap_err *err);
/*
 * Runs the unpartitioned graph from the same data and compares losses, parameters and
 * results; -1 names the first that is out of tolerance. With set->tolerance, it bounds
 * every relative error. Without, the tolerance follows from the types that compute, and
 * what exceeds it is held against what rounding alone changes (noise.h).
 */
int verify_run(struct ap_arena *arena, const struct ap_doc *doc,
               const struct settings *set, const struct session *s,
               struct comparison *cmp, struct ap_err *err);
/*
 * Before the first step: whether DIR has so many losses and, for the new values of the n
 * parameters with these numbers, files that can be read.
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
