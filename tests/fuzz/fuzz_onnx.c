/*
 * ONNX importer: any bytes give a graph that its own checks accept, or a message. No
 * crash, no leak, no work out of proportion.
 */
#include <assert.h>
#include <string.h>

#include "onnx/onnx.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct onnx_file file = {.arena = &arena,
                             .path = "/nonexistent/fuzz",
                             .data = data,
                             .len = size,
                             .err = &err};
    struct onnx_dim dim = {"batch", 4, true};
    struct onnx_options options = {.n_dims = 1, .dims = &dim};
    struct import_params params = {0};
    struct import_stats stats = {0};
    struct ap_graph graph;
    int rc = import_onnx(&file, &options, &params, &graph, &stats);
    assert(!rc == !err.msg[0]);
    assert(!rc || memchr(err.msg, 0, sizeof err.msg));
    ap_arena_free(&arena);
    return 0;
}
