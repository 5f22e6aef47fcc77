/*
 * A budget of work that searches share. Work is the number of table cells visited, about
 * a nanosecond each. It is counted without a clock, so that a search that stops at the
 * limit gives the same answer on every machine.
 */
#ifndef AP_WORK_H
#define AP_WORK_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The activity and the best answer of a search so far, for a person who waits for it
 * (tool/tool.h). */
struct ap_progress {
    const char *what;
    double objective, bound; /* INFINITY and 0 if there is none yet */
    void (*show)(const struct ap_progress *p);
};

struct ap_work {
    int64_t done, limit; /* limit 0: unlimited */
    struct ap_progress
        *progress; /* NULL: no progress is shown; used by one thread alone */
};

/*
 * In all these functions work may be NULL: then nothing is counted and there is no limit.
 */
static inline void ap_work_add(struct ap_work *work, int64_t cells)
{
    if (!work)
        return;
    work->done += cells;
    if (work->progress)
        work->progress->show(work->progress);
}

/* Shows the activity that begins here (NULL: unchanged), with the best objective and
 * bound known. */
static inline void ap_work_tell(struct ap_work *work, const char *what, double objective,
                                double bound)
{
    if (!work || !work->progress)
        return;
    if (what)
        work->progress->what = what;
    work->progress->objective = objective;
    work->progress->bound = bound;
    work->progress->show(work->progress);
}

static inline bool ap_work_over(const struct ap_work *work)
{
    return work && work->limit > 0 && work->done >= work->limit;
}

/* A share of the rest of a budget. The caller adds its work to the budget when the share
 * has been used. A share that runs in a thread of its own shows no progress. */
static inline struct ap_work ap_work_share(const struct ap_work *work, double part)
{
    struct ap_work own = {.progress = work ? work->progress : NULL};

    if (work && work->limit > 0) {
        own.limit = (int64_t)(part * (double)(work->limit - work->done));
        own.limit = own.limit > 0 ? own.limit : 1;
    }
    return own;
}

#endif
