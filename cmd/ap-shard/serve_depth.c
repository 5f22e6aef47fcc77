/*
 * Problem: what a plan of a run of equal blocks costs when the run gets longer. Idea: all
 * measures are affine in the number of blocks, but the largest working set and block,
 * which stay; three runs say whether it is so.
 */
#include "serve.h"

#include <math.h>
#include <stddef.h>

#define AFFINE     1e-10 /* relative error that sums of doubles may have */
#define N_MEASURES ((int)(sizeof(struct ap_stage_measure) / sizeof(double)))
_Static_assert(sizeof(struct ap_stage_measure) == 9 * sizeof(double), "doubles only");

static double extrapolate(double zero, double one, int extra)
{
    return zero + extra * (one - zero);
}

static bool near(double a, double b)
{
    return fabs(a - b) <= AFFINE * fmax(fabs(a), fabs(b));
}

/* Whether a measure is the largest of something, and not a sum. */
static bool is_most(int k)
{
    return k ==
               (int)(offsetof(struct ap_stage_measure, working_bytes) / sizeof(double)) ||
           k == (int)(offsetof(struct ap_stage_measure, remade_bytes) / sizeof(double));
}

bool serve_prices_lengthen(struct ap_arena *arena, const struct serve_prices *zero,
                           const struct serve_prices *one, const struct serve_prices *two,
                           int extra, struct serve_prices *out)
{
    *out = (struct serve_prices){.n = zero->n};
    out->measure = AP_NEW_N(arena, zero->n + 1, struct ap_stage_measure);
    bool ok = near(two->objective, extrapolate(zero->objective, one->objective, 2));
    for (int i = 0; i < zero->n; i++) {
        const double *m0 = (const double *)&zero->measure[i];
        const double *m1 = (const double *)&one->measure[i];
        const double *m2 = (const double *)&two->measure[i];
        double *m = (double *)&out->measure[i];
        for (int k = 0; k < N_MEASURES; k++) {
            ok &= near(m2[k], is_most(k) ? m1[k] : extrapolate(m0[k], m1[k], 2));
            m[k] = is_most(k) ? m1[k] : extrapolate(m0[k], m1[k], extra);
        }
    }
    out->objective = extrapolate(zero->objective, one->objective, extra);
    out->bound = extrapolate(zero->bound, one->bound, extra);
    return ok;
}
