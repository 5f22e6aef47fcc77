/*
 * Elements in memory: conversions, and elementwise operators over runs of elements.
 * Elements are computed in a register type: storage type for integers, f32, f64 and pred;
 * bf16 and f16 are held as f32 and rounded after every operation.
 */
#ifndef EXEC_ELEM_H
#define EXEC_ELEM_H

#include "graph/graph.h"

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

/* ---- element types and operations (ops.c, ops_int.c, ops_complex.c, convert.c) ---- */

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
/* Of a comparison, which may be by total order. */
cpu_fn *cpu_compare_find(const struct ap_attrs *attrs, enum ap_dtype in);
cpu_fn *cpu_int_find(enum ap_op op, enum ap_direction direction, enum cpu_kind kind);
cpu_fn *cpu_complex_find(enum ap_op op, enum ap_direction direction);
/* NULL between complex and other numbers, but from real to complex. */
cpu_fn *cpu_convert_find(enum cpu_kind from, enum cpu_kind to);
/* The elementwise operator that combines two values like red does. */
enum ap_op cpu_red_op(enum ap_red red);

/* Rounds f32 registers to what dtype can hold; nothing to do for other dtypes. */
void cpu_round(float *v, enum ap_dtype dtype, int64_t n);
/* Memory to register and back; src elements are `stride` apart (in elements). */
void cpu_load(void *reg, const void *src, int64_t stride, enum ap_dtype dtype, int64_t n);
void cpu_store(void *dst, int64_t stride, const void *reg, enum ap_dtype dtype,
               int64_t n);
/* Fills n elements of `size` bytes with the one at v. */
void cpu_fill(void *dst, const void *v, int size, int64_t n);

#endif
