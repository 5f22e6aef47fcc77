/*
 * Private to ap-stage: programs that answer a line with a line, several side by side.
 */
#ifndef COPROC_H
#define COPROC_H

#include "base/base.h"

struct coproc_pool;

/*
 * Starts n copies of the shell command with the arguments appended (quoted; NULL last and
 * valid as long as the pool). All but the first are started with its first answer, unless
 * it has forked them: it finds the pipes that they would have in AP_SERVE_PIPES, behind
 * its process and the inodes of its own, and writes {"pid":N} into each. Standard error
 * passes through. Ends the program when it cannot (exit 1).
 */
struct coproc_pool *coproc_start(const char *command, const char *const *args, int n);

/* From now on processes are started with what args gives, as many arguments. */
void coproc_args(struct coproc_pool *pool, const char *const *(*args)(void *ctx),
                 void *ctx);

struct coproc_job {
    const char *line; /* without the newline; holds until the answer */
    int group;        /* >= 0; jobs of a group go to one process, which may have prepared
                         what they share */
};

/* Finds the job that a line answers: its number, or -1 and err when it is nonsense. */
typedef int coproc_answer_fn(void *ctx, const char *line, size_t len, struct ap_err *err);

/*
 * Sends all jobs, those of a group next to each other, hands every answer to the
 * function, and returns once all are there. -1 when a process dies, is silent for
 * longer than limit_sec, or answers nonsense; the message has the request.
 */
int coproc_run(struct coproc_pool *pool, const struct coproc_job *jobs, int n,
               double limit_sec, coproc_answer_fn *answer, void *ctx, struct ap_err *err);

/* Closes the pipes and waits for the processes; kills those that linger. */
void coproc_stop(struct coproc_pool *pool);
/* The same for processes that are not to say anything any more. */
void coproc_kill(struct coproc_pool *pool);
/* Kills all processes of all pools, and what these have started; for signal handlers. */
void coproc_kill_all(void);

#endif
