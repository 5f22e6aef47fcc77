/* The CUDA backend's table, and which file's kernel serves which operator. */
#include "cuda.h"

static cpu_prepare_fn *const kernels[AP_N_OPS] = {
    [AP_OP_CONSTANT] = cuda_constant_prepare,
    [AP_OP_RESHAPE] = cuda_move_prepare,
    [AP_OP_REVERSE] = cuda_move_prepare,
    [AP_OP_SLICE] = cuda_move_prepare,
    [AP_OP_TRANSPOSE] = cuda_move_prepare,
    [AP_OP_PAD] = cuda_move_prepare,
    [AP_OP_CONCATENATE] = cuda_move_prepare,
    [AP_OP_DOT] = cuda_dot_prepare,
    [AP_OP_CONVOLUTION] = cuda_conv_prepare,
    [AP_OP_FFT] = cuda_fft_prepare,
    [AP_OP_CHOLESKY] = cuda_linalg_prepare,
    [AP_OP_TRIANGULAR_SOLVE] = cuda_linalg_prepare,
    [AP_OP_REDUCE] = cuda_reduce_prepare,
    [AP_OP_REDUCE_WINDOW] = cuda_window_prepare,
    [AP_OP_SELECT_AND_SCATTER] = cuda_select_scatter_prepare,
    [AP_OP_SORT] = cuda_sort_prepare,
    [AP_OP_TOPK] = cuda_topk_prepare,
    [AP_OP_GATHER] = cuda_gather_prepare,
    [AP_OP_SCATTER] = cuda_scatter_prepare,
    [AP_OP_DYNAMIC_SLICE] = cuda_dynamic_prepare,
    [AP_OP_DYNAMIC_UPDATE_SLICE] = cuda_dynamic_prepare,
    [AP_OP_WHILE] = exec_while_prepare,
    [AP_OP_ALL_REDUCE] = cuda_coll_prepare,
    [AP_OP_ALL_GATHER] = cuda_coll_prepare,
    [AP_OP_REDUCE_SCATTER] = cuda_coll_prepare,
    [AP_OP_ALL_TO_ALL] = cuda_coll_prepare,
    [AP_OP_COLLECTIVE_PERMUTE] = cuda_coll_prepare,
    [AP_OP_AP_SLICE] = cuda_local_prepare,
    [AP_OP_AP_MASK] = cuda_local_prepare,
    [AP_OP_AP_PARTIAL] = cuda_local_prepare,
};

static int prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    cuda_dev.n_prepared++;
    if (call->attention)
        return cuda_attention_prepare(x, call, err);
    return backend_prepare(x, call, cuda_fused_prepare, kernels, err);
}

/* Kernels of the program are what the generator makes (program/kernel_form.h). */
static bool runs_whole(const struct exec *x, const int *nodes, int n)
{
    for (int i = 0; i < n; i++)
        if (!text_computes(x->prog->local.nodes[nodes[i]].shape.dtype))
            return false;
    return true;
}

static int ready(struct exec *x, struct ap_err *err)
{
    (void)x;
    return kernels_build(err);
}

static const struct backend cuda_backend = {
    .name = "cuda",
    .join = cuda_join,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .write = cuda_write,
    .read = cuda_read,
    .copy = cuda_copy,
    .fusible = backend_fusible,
    .in_place = backend_in_place,
    .runs_whole = runs_whole,
    .prepare = prepare,
    .attention = cuda_attention,
    .place = cuda_attention_place,
    .ready = ready,
    .step_begin = cuda_step_begin,
    .step_end = cuda_step_end,
    .close = cuda_close,
    .sync = cuda_sync,
    .clock = &cuda_clock,
    .device = cuda_describe,
};

const struct cuda_plugin ap_cuda_plugin;
const struct cuda_plugin ap_cuda_plugin = {CUDA_PLUGIN_VERSION, &cuda_backend, cuda_probe,
                                           kernels_count};
