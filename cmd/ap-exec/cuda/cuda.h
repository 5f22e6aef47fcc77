/*
 * The interfaces of the CUDA backend's files. A call of the program is a list of steps on
 * one stream: kernels that are generated as text, products and convolutions of NVIDIA's
 * libraries, copies, and functions of the communicator. All of it is prepared; a step of
 * training only enqueues.
 */
#ifndef EXEC_CUDA_CUDA_H
#define EXEC_CUDA_CUDA_H

#include "calls.h"
#include "cpu/cpu_state.h"
#include "plugin.h"

/* ---- the device (device.c) ---- */

struct kernels;

/* One per process. */
struct cuda_device {
    struct cuda_options opts;
    int rank;            /* in the job */
    int ordinal;         /* of the device */
    int arch;            /* 90: compute capability 9.0 */
    char bus_id[32];     /* tells devices of a host apart */
    cudaStream_t stream; /* everything but communication */
    cudaStream_t comm;   /* the communicator's */
    cublasLtHandle_t lt;
    bool no_capture;    /* the communicator waits on the host: no CUDA graph */
    int64_t n_prepared; /* calls */
    struct kernels *kernels;
};
extern struct cuda_device cuda_dev;

int cuda_probe(const struct cuda_options *opts, struct ap_err *err);
/* The rank's device, streams and handles, and the communicator's part of it. */
int cuda_join(struct comm *c, struct ap_err *err);
/* struct backend's `device`: all its memory, also where ranks share it. */
int64_t cuda_describe(char *name, size_t size);
void cuda_sync(void); /* waits for the stream */
/* Ends the program with the rank, the call and CUDA's message unless rc is success. */
void cuda_check(cudaError_t rc, const char *what);
void cuda_check_lt(cublasStatus_t rc, const char *what);
void *cuda_alloc(int64_t bytes);
void cuda_release(void *p);
void cuda_write(void *dst, const void *host, int64_t bytes);
void cuda_read(void *host, const void *src, int64_t bytes);
void cuda_copy(void *dst, const void *src, int64_t bytes);

/* Replaces the collectives of *c by NCCL's; *c still starts and ends the job
 * (comm_nccl.c). */
int comm_nccl_open(struct comm *c, struct ap_err *err);
/* Waits for the stream; ends the job, with rank and collective, if a communicator fails.
 */
void comm_nccl_sync(cudaStream_t stream);

/* ---- steps of a call (steps.c) ---- */

/* Device memory, or a place in the scratch memory, which has an address only when the
 * call runs. */
struct cuda_at {
    char *p; /* scratch: NULL + offset */
    bool scratch;
};
static inline struct cuda_at at_memory(const void *p)
{
    return (struct cuda_at){(char *)(uintptr_t)p, false};
}
static inline struct cuda_at at_scratch(int64_t offset)
{
    return (struct cuda_at){(char *)(uintptr_t)offset, true};
}
/* The next place for a library's workspace, at a multiple of 256 bytes, as cublasLt wants
 * it. */
static inline struct cuda_at cuda_workspace(int64_t *scratch, int64_t bytes)
{
    *scratch = (*scratch + 255) / 256 * 256;
    return at_scratch(exec_take(scratch, bytes));
}
static inline char *cuda_place(const struct exec *x, struct cuda_at at)
{
    return at.scratch ? x->scratch + (intptr_t)at.p : at.p;
}
static inline struct cuda_at at_plus(struct cuda_at at, int64_t bytes)
{
    at.p = (char *)((intptr_t)at.p + bytes);
    return at;
}

typedef void cuda_run(struct exec *x, void *state);
struct cuda_step {
    cuda_run *run;
    void *state;
    cuda_run *close; /* NULL: nothing to release */
};
struct cuda_call {
    int n, cap;
    struct cuda_step *step;
};

/* Makes the call an empty list of steps. */
struct cuda_call *cuda_call_new(struct exec *x, struct call *call);
void cuda_add(struct exec *x, struct cuda_call *c, cuda_run *run, void *state,
              cuda_run *close);
/* Bytes of the device that hold a copy of host's until the call is closed. */
void *cuda_upload(struct exec *x, struct cuda_call *c, const void *host, int64_t bytes);
void cuda_add_copy(struct exec *x, struct cuda_call *c, struct cuda_at dst,
                   struct cuda_at src, int64_t bytes);
void cuda_add_zero(struct exec *x, struct cuda_call *c, struct cuda_at dst,
                   int64_t bytes);

/*
 * A kernel's launch. The text is the kernel's body, in which a.p[i] is argument i; two
 * equal bodies are one kernel.
 */
struct cuda_launch {
    int block;      /* threads */
    int64_t grid_x; /* blocks, up to 2^31 - 1; none: nothing is launched */
    int64_t grid_y; /* up to 65535 */
    int n_args;
    struct cuda_at *arg;
};
/* text is freed. */
void cuda_add_kernel(struct exec *x, struct cuda_call *c, struct ap_buf *text,
                     const struct cuda_launch *launch);

/* ---- kernels (kernels.c, cache.c) ---- */

struct kernel;

/* In a body: functions stand before it, the kernel after it. */
#define KERNEL_MARK "/* kernel */\n"

/* The kernel of this body: the same for the same text. Compiled by kernels_build. */
struct kernel *kernel_get(const char *body, size_t len, int n_args, int block);
/* Compiles the kernels that were added since the last call; -1 with the compiler's
 * messages. */
int kernels_build(struct ap_err *err);
int kernels_count(void);
void kernel_launch(const struct kernel *k, int64_t grid_x, int64_t grid_y, void **args);

/* A cubin that was compiled from the same text by the same compiler; false: none. buf:
 * the caller's to free. */
bool cache_read(uint64_t key, struct ap_buf *buf);
/* Waits until no other process compiles text with this key; -1, which is not an error, if
 * there is no place for a lock. To be unlocked. */
int cache_lock(uint64_t key);
void cache_unlock(uint64_t key, int lock);
/* Failures are no errors: the kernel is compiled again next time. */
void cache_write(uint64_t key, const void *data, size_t len);

/* ---- text of types and expressions (text.c) ---- */

const char *text_storage(enum ap_dtype dtype);  /* "bf16", "float", "int32_t" */
const char *text_register(enum ap_dtype dtype); /* "float" for bf16 */
/* The type that moves elements of 1, 2, 4, 8 or 16 bytes. */
const char *text_word(int size);
/* Whether kernels can compute with it: all but c128 and tuples. */
bool text_computes(enum ap_dtype dtype);
/* The functions of all operators, after the prelude, and the additional ones for kernels
 * with complex numbers. */
extern const char cuda_prelude[], cuda_formulas[];
extern const char cuda_complex[], cuda_complex_formulas[];

/* An operand of an expression: the name of a register. */
struct text_operand {
    enum ap_dtype dtype;
    char name[24];
};
/*
 * Puts the expression of an elementwise node, rounded to its type. -1 with err where it
 * has none.
 */
int text_node(struct exec *x, struct ap_buf *out, const struct ap_node *v,
              const struct text_operand *in, struct ap_err *err);
/* Appends the contents of src, which does not change. */
void text_append(struct ap_buf *out, const struct ap_buf *src);
/* A literal of the register type. */
void text_constant(struct ap_buf *out, enum ap_dtype dtype, const void *value);
/* Puts "round_bf16(" and ")" around an expression that is computed as float; nothing for
 * other types. */
const char *text_round(enum ap_dtype dtype);

/*
 * A reducer as `static inline void name(parameters by value, results by reference)`,
 * text that stands before the kernel.
 */
int text_body(struct exec *x, struct ap_buf *out, const char *name,
              const struct ap_reducer *red, struct ap_err *err);
/*
 * A function `name(acc, x)` that combines two registers of dtype as the reducer does: the
 * operator's, or one with the reducer's body.
 */
int text_combine(struct exec *x, struct ap_buf *out, const char *name,
                 const struct ap_node *v, int reducer, struct ap_err *err);

/* ---- text of indices ---- */

/* Whether indices need 64 bits; the names of index types. */
struct text_index {
    bool wide;
    const char *u, *s; /* "uint32_t", "int"; or "uint64_t", "int64_t" */
    const char *suffix;
};
struct text_index text_index(int64_t elems);
/*
 * The sum of strides times the multi-index of sizes n (the last one fastest) that the
 * linear index `i` (an expression of type u) stands for, as an expression of type s; of
 * int64_t where it can be more than an int holds: a slice of a larger operand.
 */
void text_offset(struct ap_buf *out, const struct text_index *t, const char *i, int rank,
                 const int64_t *n, const int64_t *stride);
/* const u i = blockIdx.x * block + threadIdx.x; and return where i >= n. */
void text_thread(struct ap_buf *out, const struct text_index *t, int block, int64_t n);

/* ---- kernels of operators: each prepares a call ---- */

/* The state of the call as the CPU's function prepares it (cpu/cpu_state.h), without its
 * scratch memory; NULL with err set. */
void *cuda_state(struct exec *x, struct call *call, cpu_prepare_fn *fn,
                 struct ap_err *err);

#define CUDA_BLOCK 256 /* threads of an elementwise kernel's block */

cpu_prepare_fn cuda_fused_prepare;
cpu_prepare_fn cuda_move_prepare, cuda_constant_prepare;
cpu_prepare_fn cuda_dot_prepare, cuda_conv_prepare;
cpu_prepare_fn cuda_fft_prepare, cuda_linalg_prepare;
cpu_prepare_fn cuda_reduce_prepare, cuda_window_prepare, cuda_select_scatter_prepare;
cpu_prepare_fn cuda_sort_prepare, cuda_topk_prepare;
cpu_prepare_fn cuda_gather_prepare, cuda_scatter_prepare, cuda_dynamic_prepare;
cpu_prepare_fn cuda_coll_prepare, cuda_local_prepare;
/* struct backend's, and the call that it makes. */
int cuda_attention(struct exec *x, int first, void **state);
void cuda_attention_place(struct exec *x, const bool *aside);
cpu_prepare_fn cuda_attention_prepare;

/* Adds the convolution by cuDNN; tf32: products of f32 may be rounded to it. False:
 * nothing was added, because there is no cuDNN or it has none such (conv_cudnn.c). */
bool cuda_add_cudnn(struct exec *x, struct cuda_call *c, const struct conv *v,
                    const struct ap_node *node, bool tf32);

/* How many keys are sorted where 2^k are needed. */
#define SORT_CHUNK   1024
#define SORT_KEYS(n) ((n) < SORT_CHUNK ? SORT_CHUNK : (n))
/* Sorts n = SORT_KEYS(2^k) unsigned 64-bit keys, ascending; only keys of all ones may be
 * equal (sort.c). */
void sort_add_keys(struct exec *x, struct cuda_call *c, struct cuda_at keys, int64_t n);

/* Copies a box (cpu.h) between memories of elements of `size` bytes. */
void cuda_add_box(struct exec *x, struct cuda_call *c, const struct box *b,
                  struct cuda_at dst, struct cuda_at src, int size);
/* Fills n elements with the one at value. */
void cuda_add_fill(struct exec *x, struct cuda_call *c, struct cuda_at dst, int64_t n,
                   struct cuda_at value, int size);
/* Copies a box and converts its elements. */
void cuda_add_convert(struct exec *x, struct cuda_call *c, const struct box *b,
                      struct cuda_at dst, enum ap_dtype to, struct cuda_at src,
                      enum ap_dtype from);

/* struct backend's (moments.c). */
extern const struct backend_clock cuda_clock;

/* ---- CUDA graphs (capture.c) ---- */

/* struct backend's: the second step of a program is captured, later ones replay it. */
bool cuda_step_begin(struct exec *x);
void cuda_step_end(struct exec *x);
void cuda_close(struct exec *x);

#endif
