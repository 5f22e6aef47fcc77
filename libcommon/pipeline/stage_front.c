/* Which of a stage's points are worth keeping: none as good as another in everything. */
#include <stdlib.h>

#include "pipeline/stage_cost.h"

static double microbatch_sec(const struct ap_stage_point *p)
{
    return p->forward_sec + p->backward_sec;
}

static double step_sec(const struct ap_stage_point *p)
{
    return p->sync_sec + p->update_sec;
}

static bool covers(const struct ap_stage_point *a, const struct ap_stage_point *b)
{
    return microbatch_sec(a) <= microbatch_sec(b) && step_sec(a) <= step_sec(b) &&
           a->stage_bytes <= b->stage_bytes && a->microbatch_bytes <= b->microbatch_bytes;
}

static int compare(const void *pa, const void *pb)
{
    const struct ap_stage_point *a = pa, *b = pb;
    double x = microbatch_sec(a), y = microbatch_sec(b);
    if (x != y)
        return x < y ? -1 : 1;
    x = step_sec(a), y = step_sec(b);
    if (x != y)
        return x < y ? -1 : 1;
    if (a->stage_bytes != b->stage_bytes)
        return a->stage_bytes < b->stage_bytes ? -1 : 1;
    return a->microbatch_bytes < b->microbatch_bytes
               ? -1
               : a->microbatch_bytes > b->microbatch_bytes;
}

int ap_stage_front(struct ap_stage_point *points, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) { /* among equals, the first one stays */
        bool covered = false;
        for (int k = 0; k < kept && !covered; k++)
            covered = covers(&points[k], &points[i]);
        if (covered)
            continue;
        int left = 0;
        for (int k = 0; k < kept; k++)
            if (!covers(&points[i], &points[k]))
                points[left++] = points[k];
        points[left++] = points[i];
        kept = left;
    }
    qsort(points, (size_t)kept, sizeof *points, compare);
    return kept;
}
