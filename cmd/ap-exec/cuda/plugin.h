/*
 * The export of ap_cuda.so: one table with the name `ap_cuda_plugin`. ap-exec opens the
 * library when a CUDA backend is asked for (run/plugin.c); the library in turn uses
 * ap-exec's and libcommon's functions, which ap-exec exports.
 */
#ifndef EXEC_CUDA_PLUGIN_H
#define EXEC_CUDA_PLUGIN_H

#include "step/backend.h"

/* Raised whenever this table, struct backend, struct exec or struct comm change. */
#define CUDA_PLUGIN_VERSION 3

struct cuda_options {
    bool tf32;       /* contractions of f32 may take their operands as tf32 */
    bool no_graph;   /* no step is captured into a CUDA graph */
    int compile_for; /* 80, 90, ...: compile the kernels only, no device; 0: run */
};

struct cuda_plugin {
    int version; /* CUDA_PLUGIN_VERSION */
    const struct backend *backend;
    /* Whether a device can be used; -1 with err set: why not. Called before all else. */
    int (*probe)(const struct cuda_options *opts, struct ap_err *err);
    int (*kernels)(void); /* how many were generated */
};

#define CUDA_PLUGIN_SYMBOL "ap_cuda_plugin"

/*
 * Opens ap_cuda.so: $AP_CUDA_LIBRARY, or in the folder of this program, or in lib/autopar
 * of the place where it is installed. NULL with err set: why it cannot be used.
 */
const struct cuda_plugin *plugin_open(const struct cuda_options *opts,
                                      struct ap_err *err);

#endif
