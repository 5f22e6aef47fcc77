/*
 * The interfaces of the CPU backend's files. Elements are computed in a register type:
 * storage type for integers, f32, f64 and pred; bf16 and f16 are held as f32 and rounded
 * after every operation. No kernel's result for an element depends on where the element
 * lies (BLAS products excepted).
 */
#ifndef EXEC_CPU_H
#define EXEC_CPU_H

#include "backend.h"

/*
 * Elements of a tile, the unit of fused passes: large enough that a call per node and
 * tile costs little, small enough that a pass's registers stay in the first-level cache.
 * `ap-exec --report` of a GPT (ap-model gpt) shows the seconds of a step.
 */
#define CPU_TILE 1024

/*
 * Compiled for wider vectors, too, and picked when the program starts. The bits are the
 * same: no contraction, and every operation is rounded as IEEE 754 says whatever the
 * width.
 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define CPU_WIDE __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define CPU_WIDE
#endif

/* LOOP, a statement for one type, for that of elements of `size` bytes. */
#define CPU_BY_SIZE(size, LOOP) \
    switch (size) {             \
    case 1:                     \
        LOOP(uint8_t) break;    \
    case 2:                     \
        LOOP(uint16_t) break;   \
    case 4:                     \
        LOOP(uint32_t) break;   \
    case 8:                     \
        LOOP(uint64_t) break;   \
    }

/* ---- element types and operations (cpu_ops.c, cpu_ops_int.c, cpu_ops_complex.c,
 * cpu_convert.c) ---- */

enum cpu_kind {
    CPU_PRED,
    CPU_S8,
    CPU_S16,
    CPU_S32,
    CPU_S64,
    CPU_U8,
    CPU_U16,
    CPU_U32,
    CPU_U64,
    CPU_F32,
    CPU_F64,
    CPU_C64, /* two f32 */
    CPU_N_KINDS
};

/* Register type of a dtype, CPU_N_KINDS if it has none (c128). */
enum cpu_kind cpu_kind(enum ap_dtype dtype);
int cpu_kind_size(enum cpu_kind kind);
/* Whether memory and register hold the same bits: all but narrow floats, which registers
 * hold as f32. */
static inline bool cpu_is_plain(enum ap_dtype dtype)
{
    return dtype != AP_BF16 && dtype != AP_F16 && dtype != AP_F8E4M3FN &&
           dtype != AP_F8E5M2;
}

/*
 * d[i] = f(a[i], b[i], c[i]) for i < n; a stride of 0 reads element 0 throughout. d may
 * be one of the operands, but not overlap them otherwise.
 */
typedef void cpu_fn(void *d, const void *a, const void *b, const void *c,
                    const int *stride, int64_t n);

/* The function of an elementwise node on operands of dtype in, NULL if there is none. */
cpu_fn *cpu_op_find(enum ap_op op, enum ap_direction direction, enum ap_dtype in,
                    enum ap_dtype out);
/* The function of a comparison, which may be by total order. */
cpu_fn *cpu_compare_find(const struct ap_attrs *attrs, enum ap_dtype in);
cpu_fn *cpu_int_find(enum ap_op op, enum ap_direction direction, enum cpu_kind kind);
cpu_fn *cpu_complex_find(enum ap_op op, enum ap_direction direction);
/* NULL between complex and other numbers, but from real to complex. */
cpu_fn *cpu_convert_find(enum cpu_kind from, enum cpu_kind to);
/* The elementwise operator that combines two values like red does. */
enum ap_op cpu_red_op(enum ap_red red);

/* Rounds f32 registers to values of dtype, if dtype is narrower. */
void cpu_round(float *v, enum ap_dtype dtype, int64_t n);
/* Memory to register and back; src elements are `stride` apart (in elements). */
void cpu_load(void *reg, const void *src, int64_t stride, enum ap_dtype dtype, int64_t n);
void cpu_store(void *dst, int64_t stride, const void *reg, enum ap_dtype dtype,
               int64_t n);
/* Fills n elements of `size` bytes with the one at v. */
void cpu_fill(void *dst, const void *v, int size, int64_t n);

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
    bool add;                       /* to what c holds */
    int64_t m, n, k, lda, ldb, ldc; /* ld: elements from row to row */
};
void cpu_gemm(const struct gemm *g, const void *a, const void *b, void *c);
/* The same by one thread, in one call of BLAS: for tasks of a kernel. */
void cpu_gemm_whole(const struct gemm *g, const void *a, const void *b, void *c);
/* Seconds of this thread in cpu_gemm since the first call of cpu_blas_sec. */
double cpu_blas_sec(void);

/* One thread; kernels for this processor. May start the program anew, before it reads
 * anything. */
void cpu_open(char **argv);

/* ---- kernels: each prepares a call ---- */

typedef backend_prepare_fn cpu_prepare_fn;
/* Whether the kernel of a dot can write its result in the order of `to`, a transpose of
 * the result (cpu_dot.c). */
bool cpu_writes_permuted(const struct ap_graph *g, int dot, const struct ap_node *to);
/* Whether the dot can be written to the place of the transpose that alone reads it. */
bool cpu_place_is_free(const struct exec *x, int dot, int to);
/* struct backend's `place`: fills x->permuted (cpu_permute.c). */
void cpu_permute(struct exec *x, const bool *aside);
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
