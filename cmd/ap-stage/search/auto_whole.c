/*
 * Problem: an average over groups of devices is no busiest group: 24 layers and a head of
 * 1.3 layers do not lie evenly on 4 groups. How long does an interleaved plan take at
 * least, whatever its chunks are, because blocks are whole?
 * Idea: numbers u_b such that a run takes at least the sum of its blocks' u_b for a
 * microbatch: each block's own seconds times the least ratio of any run to its blocks.
 * Group g waits for the first microbatch's way through the g stages before it, and
 * ends before the last one's way back through them or with what it does once: w_g, in
 * which are g blocks at least, both ways, or forward only if u_b has what is done once.
 * The first block is on the first group and the last on the last one. Most blocks are
 * alike, with one number u, N of them. The few others are put into groups in every way;
 * if group g has x_g of them, it ends within T only if it has no more than
 *     floor(((T - w_g) / B - x_g) / u)
 * of the N, so that the least T at which some way has room for all is a bound.
 * Cost: blocks^2, and MOST_STEPS x groups for each way to put the others, of which there
 * are MOST_WAYS at most.
 */
#include "search/auto.h"

#include <math.h>

#define MOST_OTHERS 5   /* more are left out: that is a bound, too */
#define MOST_WAYS   300 /* likewise */
#define MOST_STEPS  50
#define SAME        1e-9 /* relative: numbers that are rounded differently */

struct packing {
    int groups, n_same, n_others;
    double microbatches, same, others[MOST_OTHERS];
    double *load, *wait; /* [group]: of others; of w_g */
    double least;
};

static bool has_room(const struct packing *p, double sec)
{
    double room = 0;

    for (int g = 0; g < p->groups; g++) {
        const double left = (sec - p->wait[g]) / p->microbatches - p->load[g];
        if (left < -SAME * p->load[g])
            return false;
        room += floor(most_of(left, 0) / p->same + SAME * p->n_same);
    }
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

/* The others from `at` on in every way. */
static void put_others(struct packing *p, int at)
{
    if (at == p->n_others) {
        find_least(p);
        return;
    }
    for (int g = 0; g < p->groups; g++) {
        p->load[g] += p->others[at];
        put_others(p, at + 1);
        p->load[g] -= p->others[at];
    }
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

static bool is_same(const struct packing *p, double sec)
{
    return fabs(sec - p->same) <= SAME * p->same;
}

/* The number that most blocks have. */
static void find_same(struct packing *p, const double *sec, int n)
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
}

/* The largest of the others; the first and the last block are where they must be. */
static void find_others(struct packing *p, const double *sec, int n)
{
    int most = 0;

    for (int ways = p->groups; ways <= MOST_WAYS && most < MOST_OTHERS; most++)
        ways *= p->groups;
    if (!is_same(p, sec[0]))
        p->load[0] += sec[0];
    if (!is_same(p, sec[n * n - 1]))
        p->load[p->groups - 1] += sec[n * n - 1];
    for (int b = 1; b + 1 < n; b++) {
        double its = sec[b * n + b];
        if (is_same(p, its))
            continue;
        for (int i = 0; i < p->n_others; i++)
            if (p->others[i] < its) {
                const double swap = p->others[i];
                p->others[i] = its;
                its = swap;
            }
        if (p->n_others < most)
            p->others[p->n_others++] = its;
    }
}

double groups_least_sec(const double *sec, const double *way, int n, int groups,
                        double microbatches)
{
    struct ap_arena scratch = {0};
    struct packing p = {.groups = groups, .microbatches = microbatches};
    const double ratio = least_ratio(sec, n), of_way = least_ratio(way, n);
    double least = 0;

    find_same(&p, sec, n);
    if (ratio > 0 && p.same > 0) {
        p.load = AP_NEW_N(&scratch, groups, double);
        p.wait = AP_NEW_N(&scratch, groups, double);
        find_others(&p, sec, n);
        for (int b = 0; b < n; b++)
            p.least += microbatches * sec[b * n + b];
        for (int g = 1; g < groups; g++)
            p.wait[g] = p.wait[g - 1] + way[(g - 1) * n + g - 1] * of_way / ratio;
        p.least += p.wait[groups - 1] + microbatches * p.same;
        put_others(&p, 0);
        least = p.least * ratio * (1 - 1e-8);
    }
    ap_arena_free(&scratch);
    return least;
}
