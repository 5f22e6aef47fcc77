/*
 * The watchdog: a job in which a rank has died, stopped or waits for ever ends, and says
 * why.
 *
 * A thread of each rank keeps a connection to the hub, a thread of the process that
 * started mpirun (-n) or else of rank 0, and reports whether the rank makes progress. The
 * hub ends the job when a connection breaks, when a rank has sent no report for the
 * watchdog's seconds, and when no rank has made progress for that long. A rank ends when
 * its connection breaks or the hub is silent for that long. No rank therefore outlives
 * the others by more than that, on any host, whichever process was killed.
 *
 * Progress is a call of the communicator or a kernel that returns, or processor time that
 * is spent outside of the communicator's calls, which spin. A process that was suspended
 * itself does not count the time.
 */
#ifndef EXEC_WATCH_H
#define EXEC_WATCH_H

#include "base/base.h"

/* ---- the activity of a rank; any thread may read it ---- */

/* A kernel begins: doing is a string constant. */
void watch_note(const char *doing);
void watch_step(int64_t step);
/* A call that may wait for other ranks begins (what: a string constant), ends. */
void watch_wait(const char *what);
void watch_go(void);

/* ---- a rank ---- */

struct watch_self {
    int rank;
    double sec; /* of the watchdog; 0: as long as the connection holds */
    const char *hub_name;
    int speaker; /* the rank that says that the hub is gone */
};
/* Joins the hub at one of the addresses (see watch_hub_open), which ends the process with
 * exit code 1 from now on where this file's head says so. -1: no address answers. */
int watch_join(const struct watch_self *self, const char *address, struct ap_err *err);

/* From now on the rank may end, and so may others. said: 0 if its work is done, else the
 * exit code of a rank that has printed why it ends. */
void watch_leave(int said);

/* ---- the hub ---- */

enum watch_verdict {
    WATCH_FINE,
    WATCH_DEAD,  /* the rank whose connection broke */
    WATCH_ENDED, /* a rank says that a signal ends it */
    WATCH_STALL  /* a silent rank; no progress; a rank that never joined */
};
struct watch_hub;
/*
 * The hub of n ranks. address: how ranks reach it, a word without blanks. `stop` is
 * called once by the hub's thread if the job has to end, with words that say why; the
 * ranks are told before. It may end the process.
 */
struct watch_hub *watch_hub_open(int n, double sec, struct ap_buf *address,
                                 struct ap_err *err);
/* Before it runs: `look` is called, likewise, several times a second with the step in
 * which the last rank is, 0 before the first. */
void watch_hub_look(struct watch_hub *h, void (*look)(void *ctx, int64_t step));
/* Exit code of a rank that has printed why it ends; 0: none has. Any thread. */
int watch_hub_said(const struct watch_hub *h);
void watch_hub_run(struct watch_hub *h,
                   void (*stop)(void *ctx, enum watch_verdict why, const char *text),
                   void *ctx);
#endif
