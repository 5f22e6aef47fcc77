/*
 * The interfaces of the CPU backend's files. Elements are computed in the register types
 * of elem/elem.h. No kernel's result for an element depends on where the element lies
 * (BLAS products excepted).
 */
#ifndef EXEC_CPU_H
#define EXEC_CPU_H

#include "elem/elem.h"
#include "step/backend.h"

/* ---- chains of elementwise operations over tile registers (cpu_chain.c) ---- */

struct chain_instr {
    cpu_fn *fn;
    int dst, src[3]; /* value numbers */
    int stride[3];   /* 0: the operand is uniform */
    const void *aux; /* third operand that is no value */
    enum ap_dtype round;
    bool uniform; /* one element, before the tiles */
};

struct chain {
    int n_instr;
    struct chain_instr *instr;
    int n_values; /* each has a pointer when the chain runs */
};

/* An operand of an instruction. */
struct chain_operand {
    enum ap_dtype dtype;
    int value;
    bool uniform;
};
/*
 * Adds the instruction of one elementwise node, which computes value dst of up to three
 * operands. -1 with err when no kernel fits.
 */
int chain_add(struct exec *x, struct chain *chain, const struct ap_node *node,
              const struct chain_operand *in, int dst, bool uniform, struct ap_err *err);
void chain_run(const struct chain *chain, void *const *ptr, bool uniform, int64_t n);

/* A reducer's body as a chain: values 0 .. n_params - 1 are its parameters. */
struct body {
    struct chain chain;
    int n_params, n_results;
    const int *result;          /* value numbers */
    const enum ap_dtype *dtype; /* of the results */
    void **ptr;                 /* per value; parameters are set by the caller */
    int64_t scratch_bytes;      /* registers of the other values */
    const int *slot;            /* per value: register number, -1 for parameters */
    bool bare_compare;          /* compare(p0, p1), direction below */
    enum ap_direction direction;
};
int body_prepare(struct exec *x, const struct ap_reducer *red, struct body *body,
                 struct ap_err *err);
/* Places the registers in memory of scratch_bytes and computes the constants. */
void body_start(struct body *body, char *scratch);
void body_run(struct body *body, int64_t n); /* n <= CPU_TILE */

/* How a reducer combines two registers: by a known function, or by its body. */
struct combine {
    cpu_fn *fn; /* NULL: the body */
    enum ap_dtype dtype;
    struct body body;
};
/* For v's result type; -1 with err where there is neither. */
int combine_prepare(struct exec *x, const struct ap_node *v, int reducer,
                    struct combine *c, struct ap_err *err);
/* acc = acc combined with x, element by element; body_start comes first. n <= CPU_TILE */
void combine_run(struct combine *c, void *acc, void *x, int64_t n);

/* ---- fused passes (cpu_fused.c) ---- */

/* Position of node among the call's members, -1 if it comes from outside. */
int call_member(const struct call *call, int node);
/*
 * An operand of shape s in a pass over dims: the dims as few sizes n as can be, with the
 * operand's strides, 0 where it is broadcast. map: a broadcast's; NULL: dimension by
 * dimension. Returns how many there are.
 */
int cpu_collapse(const struct ap_shape *dims, const struct ap_shape *s,
                 const int64_t *map, int64_t *n, int64_t *stride);

/* ---- moving elements (cpu_copy.c) ---- */

/* A copy between strided boxes; strides in elements, may be 0 (source) or negative. */
struct box {
    int rank;
    int64_t n[AP_MAX_RANK + 2], src[AP_MAX_RANK + 2], dst[AP_MAX_RANK + 2];
};
void box_add(struct box *b, int64_t n, int64_t src, int64_t dst);
/* Merges dimensions and puts them in a good order; once, before box_copy. */
void box_finish(struct box *b);
/* Swaps two dimensions. */
void box_swap(struct box *b, int i, int j);
void box_copy(const struct box *b, void *dst, const void *src, int size);
/*
 * The next multi-index of `rank` dimensions of sizes n, the last one fastest, and with it
 * two offsets that move by strides s and t; false after the last (all are 0 again).
 */
static inline bool cpu_next(int rank, const int64_t *n, int64_t *at, const int64_t *s,
                            int64_t *from, const int64_t *t, int64_t *to)
{
    for (int d = rank - 1; d >= 0; d--) {
        *from += s[d];
        *to += t[d];
        if (++at[d] < n[d])
            return true;
        *from -= s[d] * n[d];
        *to -= t[d] * n[d];
        at[d] = 0;
    }
    return false;
}
/* Row-major strides in elements. */
void cpu_strides(const struct ap_shape *s, int64_t *stride);

/* ---- threads (cpu_threads.c) ---- */

#define CPU_MAX_THREADS 256

/* Task i of some work; thread: the number of the thread that runs it, from 0. */
typedef void cpu_task(void *ctx, int64_t i, int thread);
/* Threads of the rank that compute; before anything is prepared. */
void cpu_set_threads(int n);
int cpu_n_threads(void);
/* Runs tasks 0 .. n - 1, in any order and on any thread; returns when all are through. A
 * task's own cpu_each runs on its thread. */
void cpu_each(int64_t n, cpu_task *task, void *ctx);

/* ---- matrix products (cpu_gemm.c) ---- */

/* c[m][n] = a[m][k] * b[k][n], all row-major; ta: a is stored [k][m], tb: b [n][k]. */
struct gemm {
    enum cpu_kind kind;
    bool ta, tb;
    int64_t m, n, k, lda, ldb, ldc; /* ld: elements from row to row */
};
void cpu_gemm(const struct gemm *g, const void *a, const void *b, void *c);
/* Seconds of this thread in cpu_gemm since the first call of cpu_blas_sec. */
double cpu_blas_sec(void);

/* One thread; kernels for this processor. May start the program anew, before it reads
 * anything. */
void cpu_open(char **argv);

/* ---- kernels: each prepares a call ---- */

typedef backend_prepare_fn cpu_prepare_fn;
cpu_prepare_fn cpu_fused_prepare;
cpu_prepare_fn cpu_dot_prepare, cpu_conv_prepare;
cpu_prepare_fn cpu_constant_prepare, cpu_move_prepare, cpu_pad_prepare,
    cpu_concat_prepare;
cpu_prepare_fn cpu_reduce_prepare, cpu_window_prepare, cpu_select_scatter_prepare;
cpu_prepare_fn cpu_fft_prepare, cpu_linalg_prepare;
cpu_prepare_fn cpu_sort_prepare, cpu_topk_prepare;
cpu_prepare_fn cpu_gather_prepare, cpu_scatter_prepare, cpu_dynamic_prepare;
cpu_prepare_fn cpu_coll_prepare, cpu_local_prepare;

static inline const struct ap_node *call_node(const struct exec *x, const struct call *c)
{
    return &x->prog->local.nodes[c->nodes[0]];
}
static inline const struct ap_node *call_in(const struct exec *x, const struct ap_node *v,
                                            int i)
{
    return &x->prog->local.nodes[v->in[i]];
}

#endif
