/* Private to ap-stage: the options of its command line. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "oracle/instance.h"
#include "outline.h"

struct stage_options {
    int algorithm, schedule, reduction, recompute, search, resharding;
    int f32_matmul;                   /* row of ap_f32_matmul_modes */
    int for_row;                      /* of ap_trainers; -1: no --for */
    const struct ap_trainer *trainer; /* NULL: no --for */
    const char *cluster_path, *microbatches, *memory, *command, *submeshes, *grid, *from,
        *plan_path, *start_path;
    int64_t jobs, n_stages;
    double limit_sec;
    double simple; /* per cent */
    struct stage_limits limits;
    struct plan_params params;
    struct plan_submesh submesh[64];
    struct plan_outline given; /* of plan_path or start_path */
};

#endif
