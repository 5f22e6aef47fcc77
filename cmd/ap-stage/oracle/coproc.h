/*
 * Private to ap-stage: programs that answer a line with a line, several side by side.
 */
#ifndef COPROC_H
#define COPROC_H

#include "base/work.h"
#include "base/base.h"

struct coproc_pool;

/* The source of answers: a shell command, or a function of this program. */
struct coproc_program {
    const char *command;
    const char *const *args; /* appended to the command, quoted; NULL last */
    /* where command is NULL: in a process forked for it, answers on n pipes {requests,
       answers}, each above standard error, and does not return */
    void (*serve)(void *ctx, int n, const int (*pipes)[2]);
    void *ctx;
    struct ap_work *work; /* shows progress; may be NULL */
};

/*
 * Starts n processes of the program. Standard error passes through. Ends this program
 * when it cannot (exit 1).
 */
struct coproc_pool *coproc_start(const struct coproc_program *program, int n);

struct coproc_job {
    const char *line; /* without the newline; holds until the answer */
    int group; /* >= 0; jobs of a group go to one process, which may have prepared their
                  common data */
};

/* Finds the job that a line answers: its number, or -1 and err for an invalid one. */
typedef int coproc_answer_fn(void *ctx, const char *line, size_t len, struct ap_err *err);

/*
 * Sends all jobs, the jobs of a group one after the other, passes every answer to the
 * function, and returns when all have arrived. -1 if a process dies, is silent for longer
 * than limit_sec, or gives an invalid answer; the message has the request.
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
