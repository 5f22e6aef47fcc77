/* The table of ONNX operators, by file. */
#include "onnx/onnx.h"

#include <string.h>

const struct ox_op *ox_find(const char *domain, const char *name, int64_t opset,
                            bool *known_name)
{
    static const struct ox_op *const tables[] = {
        ox_math_ops, ox_shape_ops,  ox_reduce_ops, ox_index_ops, ox_nn_ops,
        ox_pool_ops, ox_resize_ops, ox_loss_ops,   ox_quant_ops, ox_einsum_ops};
    static const char preview[] = "ai.onnx.preview.training";
    bool training = strcmp(domain, preview) == 0;
    if (*domain && strcmp(domain, "ai.onnx") != 0 && !training)
        return NULL;
    for (size_t t = 0; t < sizeof tables / sizeof(void *); t++)
        for (const struct ox_op *op = tables[t]; op->name; op++) {
            if (strcmp(op->name, name) != 0 || training != (op->since == 0))
                continue;
            *known_name = true;
            if (training || (opset >= op->since && opset <= op->until))
                return op;
        }
    return NULL;
}
