/* The CPU backend's table: host memory, and which file's kernel serves which operator. */
#include "cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

static void *host_alloc(int64_t bytes)
{
    const size_t n = ((size_t)bytes + 63) / 64 * 64;
    void *p = aligned_alloc(64, n ? n : 64);
    if (p)
        memset(p, 0, n ? n : 64);
    return p;
}

static void host_copy(void *dst, const void *src, int64_t bytes)
{
    if (dst != src)
        memcpy(dst, src, (size_t)bytes);
}

static cpu_prepare_fn *const kernels[AP_N_OPS] = {
    [AP_OP_CONSTANT] = cpu_constant_prepare,
    [AP_OP_RESHAPE] = cpu_move_prepare,
    [AP_OP_REVERSE] = cpu_move_prepare,
    [AP_OP_SLICE] = cpu_move_prepare,
    [AP_OP_TRANSPOSE] = cpu_move_prepare,
    [AP_OP_PAD] = cpu_pad_prepare,
    [AP_OP_CONCATENATE] = cpu_concat_prepare,
    [AP_OP_DOT] = cpu_dot_prepare,
    [AP_OP_CONVOLUTION] = cpu_conv_prepare,
    [AP_OP_FFT] = cpu_fft_prepare,
    [AP_OP_CHOLESKY] = cpu_linalg_prepare,
    [AP_OP_TRIANGULAR_SOLVE] = cpu_linalg_prepare,
    [AP_OP_REDUCE] = cpu_reduce_prepare,
    [AP_OP_REDUCE_WINDOW] = cpu_window_prepare,
    [AP_OP_SELECT_AND_SCATTER] = cpu_select_scatter_prepare,
    [AP_OP_SORT] = cpu_sort_prepare,
    [AP_OP_TOPK] = cpu_topk_prepare,
    [AP_OP_GATHER] = cpu_gather_prepare,
    [AP_OP_SCATTER] = cpu_scatter_prepare,
    [AP_OP_DYNAMIC_SLICE] = cpu_dynamic_prepare,
    [AP_OP_DYNAMIC_UPDATE_SLICE] = cpu_dynamic_prepare,
    [AP_OP_WHILE] = exec_while_prepare,
    [AP_OP_ALL_REDUCE] = cpu_coll_prepare,
    [AP_OP_ALL_GATHER] = cpu_coll_prepare,
    [AP_OP_REDUCE_SCATTER] = cpu_coll_prepare,
    [AP_OP_ALL_TO_ALL] = cpu_coll_prepare,
    [AP_OP_COLLECTIVE_PERMUTE] = cpu_coll_prepare,
    [AP_OP_AP_SLICE] = cpu_local_prepare,
    [AP_OP_AP_MASK] = cpu_local_prepare,
    [AP_OP_AP_PARTIAL] = cpu_local_prepare,
};

static int prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    return backend_prepare(x, call, cpu_fused_prepare, kernels, err);
}

const struct backend cpu_backend = {
    .name = "cpu",
    .on_host = true,
    .open = cpu_open,
    .alloc = host_alloc,
    .release = free,
    .write = host_copy,
    .read = host_copy,
    .copy = host_copy,
    .fusible = backend_fusible,
    .in_place = backend_in_place,
    .prepare = prepare,
    .blas_sec = cpu_blas_sec,
};
