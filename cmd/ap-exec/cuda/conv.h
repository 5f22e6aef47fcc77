/* Convolutions: by cuDNN, or by unrolling and products. */
#ifndef EXEC_CUDA_CONV_H
#define EXEC_CUDA_CONV_H

#include "cuda.h"

/* Adds the convolution by cuDNN; tf32: products of f32 may be rounded to it. False:
 * nothing was added, because there is no cuDNN or it has none such. */
bool cuda_add_cudnn(struct exec *x, struct cuda_call *c, const struct conv *v,
                    const struct ap_node *node, bool tf32);

#endif
