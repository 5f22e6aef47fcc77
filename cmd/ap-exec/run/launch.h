/* ap-exec -n: mpirun as a child, and what is left when it ends. */
#ifndef EXEC_LAUNCH_H
#define EXEC_LAUNCH_H

#include "tool/tool.h"

/* How ranks reach the watchdog's hub; set by launch. */
#define WATCH_VARIABLE "AP_EXEC_WATCH"
/* Where rank 0 finds the document that came by standard input; set by launch. */
#define INPUT_VARIABLE "AP_EXEC_INPUT"

/*
 * Runs mpirun -n N of this very command, passes its output on, and exits with its status.
 * A rank that dies is named, with the signal that killed it; one that stalls for
 * watchdog_sec ends the job (0: never), and so do signals and the end of this process.
 */
_Noreturn void launch(const struct ap_tool *tool, int64_t n_ranks, double watchdog_sec);

#endif
