/* ap-exec -n: runs mpirun as a child, and cleans up when it ends. */
#ifndef EXEC_LAUNCH_H
#define EXEC_LAUNCH_H

#include "tool/tool.h"

/* How ranks reach the watchdog's hub; set by launch. */
#define WATCH_VARIABLE "AP_EXEC_WATCH"
/* Where rank 0 finds the document that came by standard input; set by launch. */
#define INPUT_VARIABLE "AP_EXEC_INPUT"

struct launch_opts {
    int64_t n_ranks, steps;
    double watchdog_sec;
    bool json; /* no line per step on standard output */
};
/*
 * Runs mpirun -n N of this very command, passes its output on, and exits with its status.
 * A rank that dies is named, with the signal that killed it; one that stalls for
 * watchdog_sec ends the job (0: never), and so do signals and the end of this process.
 * On a terminal that shows no line per step, a line of progress says the step.
 */
_Noreturn void launch(const struct ap_tool *tool, const struct launch_opts *opts);

#endif
