/*
 * A budget of work that searches share: cells of tables looked at, about a nanosecond
 * each. It counts what is done and knows no clock, so that an answer that stops at it is
 * the same on every machine.
 */
#ifndef AP_WORK_H
#define AP_WORK_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a search does and has found so far, for who waits for it (tool/tool.h). */
struct ap_progress {
    const char *what;
    double objective, bound; /* INFINITY, 0: none so far */
    void (*show)(const struct ap_progress *p);
};

struct ap_work {
    int64_t done, limit;          /* limit 0: none */
    struct ap_progress *progress; /* NULL: nobody waits; of one thread alone */
};

/* work may be NULL in all of these: nothing is counted, and nothing ends. */
static inline void ap_work_add(struct ap_work *work, int64_t cells)
{
    if (!work)
        return;
    work->done += cells;
    if (work->progress)
        work->progress->show(work->progress);
}

/* Tells who waits what is done from here on (NULL: the same), with what is known. */
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

/* A part of what is left of a budget; its work is added when it has ended. One that runs
 * in a thread of its own has no progress. */
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
