/*
 * Disjoint sets of the numbers below n, as an array of parents. The least number of a set
 * is its root, so that results do not depend on the order of joins. Path halving: nearly
 * O(1) per call in practice.
 */
#ifndef AP_UNION_FIND_H
#define AP_UNION_FIND_H

#include "base/base.h"

/* n sets of one number each. */
static inline int *ap_sets_new(struct ap_arena *arena, int n)
{
    int *up = AP_NEW_N(arena, n, int);
    for (int i = 0; i < n; i++)
        up[i] = i;
    return up;
}
static inline int ap_sets_root(int *up, int i)
{
    while (up[i] != i)
        i = up[i] = up[up[i]];
    return i;
}
/* Joins two sets; false if a and b were in one set already. */
static inline bool ap_sets_join(int *up, int a, int b)
{
    a = ap_sets_root(up, a);
    b = ap_sets_root(up, b);
    if (a < b)
        up[b] = a;
    else
        up[a] = b;
    return a != b;
}

#endif
