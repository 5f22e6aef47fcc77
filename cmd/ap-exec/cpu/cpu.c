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

static bool fusible(const struct ap_node *v)
{
    if (v->shape.dtype == AP_TUPLE)
        return false;
    return ap_ops[v->op].class == AP_CLASS_ELEMENTWISE || v->op == AP_OP_BROADCAST ||
           v->op == AP_OP_IOTA ||
           (v->op == AP_OP_CONSTANT && v->shape.rank == 0 && v->attrs->literal.data);
}

static bool in_place(const struct ap_node *v, int i)
{
    switch ((int)v->op) {
    case AP_OP_DYNAMIC_UPDATE_SLICE:
    case AP_OP_SCATTER:
    case AP_OP_ALL_REDUCE:
    case AP_OP_AP_MASK:
    case AP_OP_AP_PARTIAL:
    case AP_OP_RESHAPE:
    case AP_OP_OPT_BARRIER:
        return i == 0;
    }
    return false;
}

static cpu_prepare_fn *kernel_of(enum ap_op op)
{
    switch ((int)op) {
    case AP_OP_CONSTANT:
        return cpu_constant_prepare;
    case AP_OP_RESHAPE:
    case AP_OP_REVERSE:
    case AP_OP_SLICE:
    case AP_OP_TRANSPOSE:
        return cpu_move_prepare;
    case AP_OP_PAD:
        return cpu_pad_prepare;
    case AP_OP_CONCATENATE:
        return cpu_concat_prepare;
    case AP_OP_DOT:
        return cpu_dot_prepare;
    case AP_OP_CONVOLUTION:
        return cpu_conv_prepare;
    case AP_OP_FFT:
        return cpu_fft_prepare;
    case AP_OP_CHOLESKY:
    case AP_OP_TRIANGULAR_SOLVE:
        return cpu_linalg_prepare;
    case AP_OP_REDUCE:
        return cpu_reduce_prepare;
    case AP_OP_REDUCE_WINDOW:
        return cpu_window_prepare;
    case AP_OP_SELECT_AND_SCATTER:
        return cpu_select_scatter_prepare;
    case AP_OP_SORT:
        return cpu_sort_prepare;
    case AP_OP_TOPK:
        return cpu_topk_prepare;
    case AP_OP_GATHER:
        return cpu_gather_prepare;
    case AP_OP_SCATTER:
        return cpu_scatter_prepare;
    case AP_OP_DYNAMIC_SLICE:
    case AP_OP_DYNAMIC_UPDATE_SLICE:
        return cpu_dynamic_prepare;
    case AP_OP_WHILE:
        return cpu_while_prepare;
    case AP_OP_ALL_REDUCE:
    case AP_OP_ALL_GATHER:
    case AP_OP_REDUCE_SCATTER:
    case AP_OP_ALL_TO_ALL:
    case AP_OP_COLLECTIVE_PERMUTE:
        return cpu_coll_prepare;
    case AP_OP_AP_SLICE:
    case AP_OP_AP_MASK:
    case AP_OP_AP_PARTIAL:
        return cpu_local_prepare;
    }
    return NULL;
}

static int prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    if (v->op == AP_OP_CONSTANT && v->attrs->literal.elided &&
        ap_shape_elems(&v->shape)) {
        x->exit_code = 1;
        return ap_err_set(err,
                          "%s: the constant's values were left out of the HLO text "
                          "(\"{...}\"); print it with large constants to run it",
                          v->name);
    }
    if (call->fused)
        return cpu_fused_prepare(x, call, err);
    cpu_prepare_fn *fn = kernel_of(v->op);
    if (!fn || (v->shape.dtype != AP_TUPLE && cpu_kind(v->shape.dtype) == CPU_N_KINDS))
        return exec_unsupported(x, v, err,
                                v->op == AP_OP_CUSTOM_CALL
                                    ? v->attrs->target
                                    : ap_dtype_name(v->shape.dtype));
    return fn(x, call, err);
}

const struct backend cpu_backend = {
    .name = "cpu",
    .open = cpu_open,
    .alloc = host_alloc,
    .release = free,
    .write = host_copy,
    .read = host_copy,
    .copy = host_copy,
    .fusible = fusible,
    .in_place = in_place,
    .prepare = prepare,
};
