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
    static const bool over_operand_0[AP_N_OPS] = {
        [AP_OP_DYNAMIC_UPDATE_SLICE] = true, [AP_OP_SCATTER] = true,
        [AP_OP_ALL_REDUCE] = true,           [AP_OP_AP_MASK] = true,
        [AP_OP_AP_PARTIAL] = true,           [AP_OP_RESHAPE] = true,
        [AP_OP_OPT_BARRIER] = true};
    return i == 0 && over_operand_0[v->op];
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
    cpu_prepare_fn *fn = kernels[v->op];
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
