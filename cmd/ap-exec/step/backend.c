/* Functions that backends share: which nodes are fused, and how a call is prepared. */
#include "step/backend.h"

#include "elem/elem.h"

bool backend_fusible(const struct ap_node *v)
{
    if (v->shape.dtype == AP_TUPLE)
        return false;
    return ap_ops[v->op].class == AP_CLASS_ELEMENTWISE || v->op == AP_OP_BROADCAST ||
           v->op == AP_OP_IOTA ||
           (v->op == AP_OP_CONSTANT && v->shape.rank == 0 && v->attrs->literal.data);
}

bool backend_in_place(const struct ap_node *v, int i)
{
    static const bool over_operand_0[AP_N_OPS] = {
        [AP_OP_DYNAMIC_UPDATE_SLICE] = true, [AP_OP_SCATTER] = true,
        [AP_OP_ALL_REDUCE] = true,           [AP_OP_AP_MASK] = true,
        [AP_OP_AP_PARTIAL] = true,           [AP_OP_RESHAPE] = true,
        [AP_OP_OPT_BARRIER] = true};
    return i == 0 && over_operand_0[v->op];
}

int backend_prepare(struct exec *x, struct call *call, backend_prepare_fn *fused,
                    backend_prepare_fn *const kernels[AP_N_OPS], struct ap_err *err)
{
    const struct ap_node *v = &x->prog->local.nodes[call->nodes[0]];
    if (v->op == AP_OP_CONSTANT && v->attrs->literal.elided &&
        ap_shape_elems(&v->shape)) {
        x->exit_code = 1;
        return ap_err_set(err,
                          "%s: the constant's values were left out of the HLO text "
                          "(\"{...}\"); print it with large constants to run it",
                          v->name);
    }
    if (call->fused)
        return fused(x, call, err);
    backend_prepare_fn *fn = kernels[v->op];
    if (!fn || (v->shape.dtype != AP_TUPLE && cpu_kind(v->shape.dtype) == CPU_N_KINDS))
        return exec_unsupported(x, v, err,
                                v->op == AP_OP_CUSTOM_CALL
                                    ? v->attrs->target
                                    : ap_dtype_name(v->shape.dtype));
    return fn(x, call, err);
}
