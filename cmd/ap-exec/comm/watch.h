/*
 * The watchdog of a rank: a process that waits for other ranks for too long ends, and
 * with it the job. One of the others was stopped then, cannot be reached, or computes for
 * longer than the watchdog's seconds. (If a rank has died, mpirun ends the job itself.)
 */
#ifndef EXEC_WATCH_H
#define EXEC_WATCH_H

#include <stdint.h>

/* The file in which ranks note that they have said why they end (watch_shared). */
#define TOLD_VARIABLE "AP_EXEC_TOLD"

/* The path of a file that launch keeps open, whose host and path are the variable's
   value; NULL: there is none, or it is another host's. The environment's memory. */
const char *watch_shared(const char *variable);

/* Watches this process from now on, for `sec` seconds (0: never). Called once. */
void watch_start(int rank, double sec);
/* From now on ranks may wait as long as they like: rank 0 compares and writes alone. */
void watch_end(void);

/* What the message says: the step, and what is waited for (a string constant). */
void watch_step(int64_t step);
/* A call that may wait for other ranks begins, ends. */
void watch_wait(const char *what);
void watch_go(void);

/* Notes that this rank has printed why it ends with `code`. */
void watch_told(int code);

#endif
