/*
 * One line on a terminal for a person who waits: the activity, the objective and the
 * bound so far. The clock decides when the line is written, and has no influence on
 * results.
 */
#include "tool/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "tool/tool.h"

#define QUIET_SEC 1    /* nothing is shown before */
#define EACH_SEC  0.25 /* between two lines */

static const char *shown_by; /* the tool's name */
static double since_sec, last_sec;
static bool is_shown;

static void show(const struct ap_progress *p)
{
    const double now = ap_now_sec();

    if (now - since_sec < QUIET_SEC || now - last_sec < EACH_SEC)
        return;
    last_sec = now;
    is_shown = true;
    fprintf(stderr, "\r%s: %s", shown_by, p->what);
    if (p->objective < INFINITY)
        fprintf(stderr, ", objective %.6g", p->objective);
    if (p->bound > 0 && p->bound < INFINITY)
        fprintf(stderr, ", bound %.6g", p->bound);
    fprintf(stderr, ", %.0f s\033[K", now - since_sec);
    fflush(stderr);
}

void progress_clear(void)
{
    if (is_shown)
        fputs("\r\033[K", stderr);
    is_shown = false;
}

struct ap_progress *progress_new(const char *name, double start_sec)
{
    static struct ap_progress progress;

    if (!isatty(STDERR_FILENO))
        return NULL;
    shown_by = name;
    since_sec = start_sec;
    progress = (struct ap_progress){"start", INFINITY, 0, show};
    return &progress;
}
