/* cuDNN: the backend has convolutions of its own so far; only what its checks call. */
#include "fake.h"

#include <cudnn.h>

const char *cudnnGetErrorString(cudnnStatus_t rc)
{
    return rc == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_BAD_PARAM";
}
