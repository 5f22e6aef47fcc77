/*
 * Problem: how much do two halves of the devices move to bring a tensor from one scheme
 * to another, when earlier cuts may differ between the two schemes?
 *
 * Idea: each half has half of each place that was cut; the elements that a half needs and
 * does not have come from the other half, which holds first(r1) or second(r1). Elements
 * of the other group of an earlier cut were paid for by that cut, so only the overlap
 * counts. A partial sum is reduced to the half that needs it, or to both.
 *
 * Cost: a few comparisons per earlier cut. Source: Wang, Huang, Li, "Unifying Data, Model
 * and Hybrid Parallelism in Deep Learning via Tensor Tiling", conversion of tilings.
 */
#include "tofu/tofu.h"

enum half { WHOLE, FIRST, SECOND };

/* Share of piece p that a region spans: [lo, hi) of 1. */
static void span(const struct tofu_region *r, int scheme, enum half half, int p,
                 double *lo, double *hi)
{
    *lo = 0;
    *hi = 1;
    for (int i = 0; i < r->n; i++)
        if (r->piece[i] == p)
            *hi /= 2;
    if (p != scheme || half == WHOLE)
        return;
    if (half == FIRST)
        *hi /= 2;
    else
        *lo = *hi / 2;
}

static bool seen(const int *list, int n, int p)
{
    for (int i = 0; i < n; i++)
        if (list[i] == p)
            return true;
    return false;
}

/* Share of the tensor in both regions, each halved as said. */
static double overlap(const struct tofu_region *r1, int s1, enum half h1,
                      const struct tofu_region *r2, int s2, enum half h2)
{
    int pieces[2 * AP_MAX_AXES + 2], n = 0;
    double share = 1;

    for (int i = 0; i < r1->n; i++)
        pieces[n++] = r1->piece[i];
    for (int i = 0; i < r2->n; i++)
        pieces[n++] = r2->piece[i];
    if (s1 >= 0)
        pieces[n++] = s1;
    if (s2 >= 0)
        pieces[n++] = s2;
    for (int i = 0; i < n; i++) {
        double lo1, hi1, lo2, hi2;
        if (seen(pieces, i, pieces[i]))
            continue;
        span(r1, s1, h1, pieces[i], &lo1, &hi1);
        span(r2, s2, h2, pieces[i], &lo2, &hi2);
        double lo = lo1 > lo2 ? lo1 : lo2, hi = hi1 < hi2 ? hi1 : hi2;
        share *= hi > lo ? hi - lo : 0;
    }
    return share;
}

double tofu_move(double size, const struct tofu_region *r1, int s1,
                 const struct tofu_region *r2, int s2)
{
    double share = 0;

    if (s1 == TOFU_RED)
        return size * overlap(r1, TOFU_REP, WHOLE, r1, TOFU_REP, WHOLE) *
               (s2 == TOFU_REP ? 2 : 1);
    if (s1 >= 0)
        share = overlap(r1, s1, FIRST, r2, s2, SECOND) +
                overlap(r1, s1, SECOND, r2, s2, FIRST);
    if (s2 == TOFU_REP)
        share += overlap(r2, TOFU_REP, WHOLE, r2, TOFU_REP, WHOLE) -
                 overlap(r1, TOFU_REP, WHOLE, r2, TOFU_REP, WHOLE);
    return size * share;
}
