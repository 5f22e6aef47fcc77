/* Private to ap-rewrite: which rank runs on which host. */
#ifndef REWRITE_PLACEMENT_H
#define REWRITE_PLACEMENT_H

#include "cost/cost.h"
#include "tool/tool.h"

enum rankfile_format { RANKFILE_OPENMPI, RANKFILE_SLURM };
struct placement_asked {
    const char *rankfile; /* --rankfile; NULL: none */
    const char *hosts;    /* --hosts, commas between the names */
    int format;           /* enum rankfile_format */
    int64_t cores;        /* that Open MPI binds a rank to */
};

/*
 * The section "placement" of ranks 0 .. n - 1, which are these devices of the cluster,
 * ascending; and the file that was asked for. Ends the tool (exit 2) when the hosts that
 * are named are not those of the plan. Appends nothing for one rank.
 */
void placement_write(const struct placement_asked *asked, struct ap_arena *arena,
                     const struct ap_cluster *cluster, const int *devices, int n,
                     struct ap_buf *section);

#endif
