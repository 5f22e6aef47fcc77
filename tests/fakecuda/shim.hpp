/*
 * The words of CUDA C++ that the backend's kernels use, for g++. The prelude of the
 * kernels (cmd/ap-exec/cuda/prelude.cu) says AP_KERNEL for each; here that makes a
 * function for one thread and an entry that fake_kernel.c finds by the kernel's name.
 */
#ifndef FAKECUDA_SHIM_H
#define FAKECUDA_SHIM_H

#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS 1 /* C's math.h: an eighth of the time */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* the CPU backend's, so that results can be compared bit by bit */
#include "elem/math.h"
#define expf  cpu_expf
#define tanhf cpu_tanhf

extern "C" {
struct fake_block { /* as in fake.h */
    int threads, started;
    void (*body)(struct fake_block *b);
    void (*resume)(struct fake_block *b, int thread);
    const char *name;
    const void *args;
    unsigned grid[3], block[3], at[3];
    bool backwards;
};
struct fake_entry {
    size_t bytes;
    int block;
    void (*body)(struct fake_block *b);
    void (*resume)(struct fake_block *b, int thread);
    char *shared, *shared_end;
};
void (*fake_barrier_of)(int thread); /* set when the source is loaded */
}

struct fake_dim {
    unsigned x, y, z;
};
static fake_dim threadIdx, blockIdx, blockDim, gridDim;
static int fake_thread;

static inline void fake_set_thread(const fake_block *b, int t)
{
    fake_thread = t;
    threadIdx.x = (unsigned)t % b->block[0];
    threadIdx.y = (unsigned)t / b->block[0] % b->block[1];
    threadIdx.z = (unsigned)t / b->block[0] / b->block[1];
}
static inline void fake_set_block(const fake_block *b)
{
    blockIdx = {b->at[0], b->at[1], b->at[2]};
    blockDim = {b->block[0], b->block[1], b->block[2]};
    gridDim = {b->grid[0], b->grid[1], b->grid[2]};
}
template <class Args, void (*thread)(const Args)> static void fake_body(fake_block *b)
{
    Args a;
    memcpy(&a, b->args, sizeof a);
    fake_set_block(b);
    while (b->started < b->threads) {
        const int t = b->started++;
        fake_set_thread(b, b->backwards ? b->threads - 1 - t : t);
        thread(a);
    }
}
static void fake_resume(fake_block *b, int t)
{
    fake_set_thread(b, t);
}

#define __device__
#define __forceinline__ inline
/* the name of the kernel is put in by fake_kernel.c */
#define __shared__(kernel) static __attribute__((section("shared_" #kernel)))
static inline void __syncthreads(void)
{
    fake_barrier_of(fake_thread);
}

#define AP_KERNEL(name, n, threads)                                               \
    struct name##_args {                                                          \
        char *p[n];                                                               \
    };                                                                            \
    static void name##_thread(const name##_args a);                               \
    extern "C" {                                                                  \
    extern char name##_shared[] __asm__("__start_shared_" #name)                  \
        __attribute__((weak, visibility("hidden")));                              \
    extern char name##_shared_end[] __asm__("__stop_shared_" #name)               \
        __attribute__((weak, visibility("hidden")));                              \
    extern const fake_entry name;                                                 \
    const fake_entry name = {sizeof(name##_args),                                 \
                             threads,                                             \
                             fake_body<name##_args, name##_thread>,               \
                             fake_resume,                                         \
                             name##_shared,                                       \
                             name##_shared_end};                                  \
    }                                                                             \
    static void name##_thread(const name##_args a)

#endif
