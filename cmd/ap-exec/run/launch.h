/* ap-exec -n: runs mpirun as a child, and cleans up when it ends. */
#ifndef EXEC_LAUNCH_H
#define EXEC_LAUNCH_H

#include "tool/tool.h"

/* Where rank 0 finds the document that came by standard input (watch_shared). */
#define INPUT_VARIABLE "AP_EXEC_INPUT"

/*
 * Runs mpirun -n N of this very command, passes its output on, and exits with its status.
 * Says by which signal a rank was killed. Signals and the end of this process end the
 * job, too.
 */
_Noreturn void launch(const struct ap_tool *tool, int64_t n_ranks);

#endif
