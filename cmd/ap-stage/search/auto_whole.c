/*
 * Problem: an average over groups of devices is no busiest group: 24 layers and a head of
 * 1.3 layers do not lie evenly on 4 groups. What does the busiest group do at least,
 * whatever its chunks are?
 * Idea: numbers u_b such that a run takes at least the sum of its blocks' u_b: each
 * block's own seconds times the least ratio of any run to its blocks. Most blocks are
 * alike, with one number u, N of them. The few others are put into groups in every way;
 * if group g has x_g of them and no group does more than T, there is room for sum over g
 * of floor((T - x_g) / u) of the N, so that the least T at which some way has room for
 * all is a bound. Cost: blocks^2, and MOST_STEPS x groups for each way to put the others,
 * of which there are 52 for five.
 */
#include "search/auto.h"

#include <math.h>

#define MOST_OTHERS 5 /* more are left out: that is a bound, too */
#define MOST_STEPS  50
#define SAME        1e-9 /* relative: numbers that are rounded differently */

struct packing {
    int groups, n_same, n_others, n_used;
    double same, others[MOST_OTHERS];
    double load[MOST_OTHERS]; /* [group that has others, used]: of these */
    double least;
};

static bool has_room(const struct packing *p, double most)
{
    double room = 0;

    for (int g = 0; g < p->n_used; g++) {
        if (p->load[g] > most)
            return false;
        room += floor((most - p->load[g]) / p->same + SAME);
    }
    room += (p->groups - p->n_used) * floor(most / p->same + SAME);
    return room >= p->n_same;
}

/* With the others where they are; lowers p->least. */
static void find_least(struct packing *p)
{
    double lo = 0, hi = p->least;

    if (!has_room(p, hi))
        return;
    for (int i = 0; i < MOST_STEPS; i++) {
        const double mid = lo + (hi - lo) / 2;
        if (has_room(p, mid))
            hi = mid;
        else
            lo = mid;
    }
    p->least = hi;
}

/* The others from `at` on in every way; groups without any are alike. */
static void put_others(struct packing *p, int at)
{
    if (at == p->n_others) {
        find_least(p);
        return;
    }
    for (int g = 0; g < p->n_used; g++) {
        p->load[g] += p->others[at];
        put_others(p, at + 1);
        p->load[g] -= p->others[at];
    }
    if (p->n_used == p->groups)
        return;
    p->load[p->n_used++] = p->others[at];
    put_others(p, at + 1);
    p->n_used--;
}

/* Least ratio of a run to the sum of its blocks, at most 1; 0: some block is unknown. */
static double least_ratio(const double *sec, int n)
{
    double least = 1;

    for (int lo = 0; lo < n; lo++) {
        double sum = 0;
        for (int hi = lo; hi < n; hi++) {
            sum += sec[hi * n + hi];
            if (!(sum < INFINITY))
                return 0;
            least = sum > 0 ? least_of(least, sec[lo * n + hi] / sum) : least;
        }
    }
    return least;
}

/* Blocks of the number that most have, and the largest of the others. */
static void sort_blocks(struct packing *p, const double *sec, int n)
{
    for (int b = 0; b < n; b++) {
        int count = 0;
        for (int k = 0; k < n; k++)
            count += fabs(sec[k * n + k] - sec[b * n + b]) <= SAME * sec[b * n + b];
        if (count > p->n_same) {
            p->n_same = count;
            p->same = sec[b * n + b];
        }
    }
    for (int b = 0; b < n; b++) {
        double its = sec[b * n + b];
        if (fabs(its - p->same) <= SAME * p->same)
            continue;
        for (int i = 0; i < p->n_others; i++)
            if (p->others[i] < its) {
                const double swap = p->others[i];
                p->others[i] = its;
                its = swap;
            }
        if (p->n_others < MOST_OTHERS)
            p->others[p->n_others++] = its;
    }
}

double groups_least_sec(const double *sec, int n, int groups)
{
    struct packing p = {.groups = groups};
    const double ratio = least_ratio(sec, n);

    if (!(ratio > 0))
        return 0;
    sort_blocks(&p, sec, n);
    if (!(p.same > 0))
        return 0;
    p.least = p.same * (p.n_same + 1);
    for (int i = 0; i < p.n_others; i++)
        p.least += p.others[i];
    put_others(&p, 0);
    return p.least * ratio * (1 - 1e-8);
}
