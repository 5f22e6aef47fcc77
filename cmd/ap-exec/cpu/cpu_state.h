/*
 * The states of the CPU backend's prepared calls: operators as sizes, strides and
 * pointers. Another backend prepares a call by the CPU's function and reads its state
 * (cuda/): pointers are then addresses of that backend's memory, which nothing here
 * follows, and the scratch memory is not the state's.
 */
#ifndef EXEC_CPU_STATE_H
#define EXEC_CPU_STATE_H

#include "cpu/cpu.h"

/* ---- constant, reshape, transpose, slice, reverse, pad, concatenate (cpu_move.c) ----
 */

struct move {
    int n; /* copies */
    struct box *box;
    char **dst;
    const char **src;
    int size;
    /* pad and constant: the whole result is filled first */
    char *fill_dst;
    const char *fill_value;
    int64_t fill_n;
};

/* ---- dot (cpu_dot.c) ---- */

/* One operand as matrices. */
struct side {
    int node;
    enum ap_dtype dtype;
    int64_t elems;
    bool pack;       /* into [batch][free][contracting] */
    struct box box;  /* the packing */
    bool transposed; /* contracting dimension major */
    int64_t ld;
    int64_t batch[AP_MAX_RANK]; /* strides of the batch dimensions */
    int64_t half_at, pack_at;   /* scratch: f32 copy of bf16 data, packed copy; -1 none */
};

struct dot {
    struct gemm gemm;
    enum ap_dtype dtype;
    int n_batch;
    int64_t batch[AP_MAX_RANK];
    struct side lhs, rhs;
    char *out;
    int64_t out_batch[AP_MAX_RANK]; /* strides of the result's batch dimensions */
    int64_t out_at;                 /* scratch of the f32 result, -1: straight to out */
};

/* ---- convolution (cpu_conv.c) ---- */

/* The left side as a matrix: row (outer, r) and column (c, inner) is its element
 * [outer][p][inner] at p = r * row_step + c * col_step + offset in each spatial
 * dimension, counted in dilated positions, or 0 where there is none. */
struct unrolled {
    int n_spatial;
    int64_t row_n[AP_MAX_RANK], row_step[AP_MAX_RANK];
    int64_t col_n[AP_MAX_RANK], col_step[AP_MAX_RANK];
    int64_t offset[AP_MAX_RANK], in[AP_MAX_RANK], dilate[AP_MAX_RANK];
    int64_t inner, pixel; /* elements of a position, all that lie there */
    int64_t n_rows, n_cols;
    bool as_it_lies; /* the matrix is the left side itself, of `pixel` columns */
};

struct conv {
    struct unrolled unrolled;                /* of one group */
    bool lhs_direct, rhs_direct, out_direct; /* lie in the order that is wanted */
    enum ap_dtype dtype;
    enum cpu_kind kind;
    const char *lhs, *rhs;
    char *out;
    int64_t lhs_elems, rhs_elems, out_elems;
    int n_spatial;
    struct ap_window_dim w[AP_MAX_RANK];
    int64_t in[AP_MAX_RANK], res[AP_MAX_RANK]; /* spatial sizes */
    int64_t n_groups;                          /* feature or batch groups */
    bool batch_groups;
    int64_t batch, ci,
        co; /* of one group: result batch, contracted features, result features */
    int64_t features; /* of the whole left side */
    /* elements of a window; with features; result positions */
    int64_t window, cols, rows;
    int64_t block_rows; /* that are unrolled at once */
    struct box lhs_box, rhs_box, out_box;
    int64_t lhs_half, rhs_half, lhs_at, rhs_at, cols_at, out_at, half_at; /* scratch */
};

/* ---- cholesky, triangular-solve (cpu_linalg.c), fft (cpu_fft.c) ---- */

/* Matrices n by n, and n by m (or m by n) right-hand sides and solutions; dense. */
struct linalg {
    enum ap_dtype dtype; /* f32 or f64 */
    const char *a, *b;
    char *out;
    int64_t batch, n, m; /* m: right-hand sides */
    int64_t vector_at;   /* scratch: one right-hand side */
    bool lower, left, unit, transpose;
};

struct fft {
    enum ap_fft type;
    int rank, len[3];           /* of one transform */
    int64_t batch, n_in, n_out; /* n: floats of one transform, two per complex number */
    double scale;               /* of the result */
    const float *src;
    float *dst;
    int64_t out_at; /* scratch: the result in double */
    void *plan;     /* FFTW's */
};
/* Fills everything except FFTW's plan; -1 with err set. batch is 0 if there is nothing to
 * do. */
int cpu_fft_state(struct exec *x, struct call *call, struct fft *s, struct ap_err *err);

/* ---- reduce (cpu_reduce.c) ---- */

typedef void run_lanes_fn(void *acc, const void *x, int64_t n);
typedef void run_rows_fn(void *acc, const void *x, int64_t rows, int64_t ld, int64_t n);

struct reduce {
    enum ap_dtype dtype;
    enum cpu_kind kind;
    cpu_fn *fn;
    run_lanes_fn *run_lanes; /* NULL: by fn */
    run_rows_fn *run_rows;   /* NULL: by fn */
    const char *src, *init;
    char *out;
    int64_t n_out;
    bool in_scratch; /* accumulators there, else in out */
    int rank;        /* input dimensions, merged; the last one is the inner run */
    int64_t n[AP_MAX_RANK], stride[AP_MAX_RANK],
        step[AP_MAX_RANK]; /* step: in the result */
    bool reduced[AP_MAX_RANK];
    int64_t acc_bytes;
};

struct custom {
    int n_ops;
    struct body body;
    int64_t n_red, n_kept;
    const char **src, **init;
    char **out;
    enum ap_dtype *dtype;
    struct box *box; /* operand to [reduced][kept] */
    bool *direct;    /* is so already */
    int64_t *at;     /* scratch of the moved operand */
    int64_t reg_at, body_at;
};

/* ---- reduce-window and select-and-scatter (cpu_window.c) ---- */

struct window {
    struct ap_shape in, out;
    const struct ap_window_dim *w;
    int64_t ss[AP_MAX_RANK], ds[AP_MAX_RANK];
    int tile_dim; /* tiles run along it */
    /* Threads share it, -1: one thread does all; shapes of one of its elements */
    int shared_dim;
    struct ap_shape part_in, part_out;
    struct combine combine, select;
    const char *src, *init, *updates;
    char *dst;
    int64_t n_window;
    bool in_scratch;
    int64_t reg_at, reg_bytes, body_at; /* reg_bytes: of a thread */
};

/* ---- sort and topk (cpu_sort.c) ---- */

struct sort {
    int n_ops;
    const char **src;
    char **dst;
    enum ap_dtype *dtype;
    int64_t outer, n, inner;
    struct body body;
    cpu_fn *less; /* of the keys, when the comparator is bare */
    int key;
    bool topk, largest;      /* topk: of one operand, whose row is contiguous */
    int64_t k;               /* results of a row; sort: n */
    int64_t row_at, body_at; /* scratch */
    char **row;              /* registers of one row per operand */
};

/* ---- gather, scatter, dynamic-slice, dynamic-update-slice (cpu_index.c) ---- */

/* One dimension of operand 0 that indices move in. */
struct moved {
    int dim;
    int64_t dim_size, slice; /* of the whole operand; window extent */
    const int64_t *here;     /* global index to local one or -1; NULL: the same */
};

struct index {
    const struct ap_node *node;
    bool scatter;
    enum ap_dtype dtype, index_dtype;
    const char *operand, *indices, *updates;
    char *out;
    int64_t operand_bytes;
    int n_moved;
    struct moved moved[AP_MAX_RANK];
    int64_t component; /* stride of index components in indices */
    int n_batch;       /* loops over index tuples */
    int64_t batch[AP_MAX_RANK];
    int64_t batch_index[AP_MAX_RANK];   /* stride in indices */
    int64_t batch_operand[AP_MAX_RANK]; /* in operand 0 (batching dimensions) */
    int64_t batch_other[AP_MAX_RANK];   /* in the gather's result or the updates */
    struct box window;                  /* operand to result, or updates to operand */
    int64_t window_elems;
    int64_t operand_stride[AP_MAX_RANK];
    bool assign; /* scatter: updates replace, else they are combined */
    struct combine combine;
    bool in_scratch; /* accumulates in f32 */
    int64_t reg_at, body_at;
};

struct dynamic {
    int rank, size;
    int64_t most[AP_MAX_RANK], stride[AP_MAX_RANK]; /* in the tensor that is indexed */
    const char *start[AP_MAX_RANK];
    enum ap_dtype index_dtype[AP_MAX_RANK];
    struct box box;
    const char *src, *operand; /* operand: copied first, or NULL */
    char *dst;
    int64_t bytes;
};

/* ---- collectives and local steps (cpu_coll.c) ---- */

struct coll {
    const struct ap_node *node;
    enum ap_dtype dtype;
    int size, n_ranks;
    struct comm_job job;
    const char *src;
    char *dst;
    int64_t in_elems, out_elems, block_elems;
    int64_t pack_at, recv_at; /* scratch */
    /* per block: the box that is copied from the operand, or to the result */
    struct box *pack, *unpack;
    int64_t *pack_from, *unpack_to;
    bool padded;
    bool direct; /* blocks lie one after the other: nothing is packed or unpacked */
    int ticket;  /* of the collective that run started */
};

struct accumulate {
    const char *src;
    char *dst;
    int size; /* of an element there */
    int64_t n;
    enum ap_dtype dtype, from; /* there, and of the operand */
    cpu_fn *fn;                /* all-reduce: adds to the old value */
    bool first;                /* nothing is there yet */
    struct box box;            /* all-gather: where the microbatch's block goes */
    int64_t to;
};

struct local {
    int size;
    const char *src;
    char *dst;
    int64_t n;
    struct box box; /* ap-slice */
    int64_t from;
    bool zeroed; /* elements outside of the box are padding */
    char fill[16];
    bool keep; /* ap-partial */
    /* ap-mask: per dimension, which local indices are padding; NULL: none */
    struct ap_shape shape;
    const int64_t *map[AP_MAX_RANK];
};

#endif
