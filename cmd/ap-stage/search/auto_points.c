/*
 * Problem: a device has several stages of an interleaved plan; which point of its front
 * does each take, so that all of them fit and the device is done soonest? A knapsack of
 * several choices.
 * Idea: at a price of bytes each stage takes its own cheapest point; bisection finds the
 * least price at which all fit. What room is left then is given to stages that are
 * quicker with more, the last ones first, since they hold least. What a pass needs
 * only while it runs is there for one stage at a time, so that the largest counts: points
 * that need more than a cap are left out, and the cap falls. Cost: points x
 * MOST_PRICES x MOST_CAPS. Source: Everett, Operations Research 11 (1963).
 */
#include "search/auto.h"

#include <math.h>

#define MOST_PRICES 40 /* of a bisection between exponents of 2 */
#define LEAST_PRICE -40
#define MOST_PRICE  10
#define MOST_CAPS   6
#define LOWER       8 /* a cap is lower than what was needed by this part of it */

static double sec_of(const struct device_stages *d, const struct plan_point *p)
{
    return d->microbatches * (p->forward_sec + p->backward_sec) + p->sync_sec +
           p->update_sec;
}

static double bytes_of(const struct device_stage *st, const struct plan_point *p)
{
    return (double)plan_always_bytes(p) + st->flights * (double)p->microbatch_bytes;
}

static int64_t most_passing(const struct device_stages *d)
{
    int64_t most = 0;

    for (int s = 0; s < d->n; s++)
        if (d->stage[s].point->passing_bytes > most)
            most = d->stage[s].point->passing_bytes;
    return most;
}

static void add_up(struct device_stages *d)
{
    d->bytes = (double)most_passing(d);
    d->sec = 0;
    for (int s = 0; s < d->n; s++) {
        d->bytes += bytes_of(&d->stage[s], d->stage[s].point);
        d->sec += sec_of(d, d->stage[s].point);
    }
}

/* The cheapest point of each stage at a price of seconds per byte, of those that
 * need up to the cap while they run. false: a stage has none. */
static bool take_cheapest(struct device_stages *d, int64_t cap, double price)
{
    for (int s = 0; s < d->n; s++) {
        struct device_stage *st = &d->stage[s];
        double least = INFINITY;
        for (int i = 0; i < st->front->n; i++) {
            const struct plan_point *p = &st->front->point[i];
            const double cost = sec_of(d, p) + price * bytes_of(st, p);
            if (p->passing_bytes <= cap && cost < least) {
                least = cost;
                st->point = p;
            }
        }
        if (!isfinite(least))
            return false;
    }
    add_up(d);
    return true;
}

static void use_room(struct device_stages *d, double limit)
{
    for (int s = d->n - 1; s >= 0; s--) {
        struct device_stage *st = &d->stage[s];
        for (int i = 0; i < st->front->n; i++) {
            const struct plan_point *was = st->point;
            if (sec_of(d, &st->front->point[i]) >= sec_of(d, was))
                continue;
            st->point = &st->front->point[i];
            add_up(d);
            if (d->bytes > limit)
                st->point = was;
        }
    }
    add_up(d);
}

/* With points that need up to the cap while they run; false: none was found that fits. */
static bool choose_below(struct device_stages *d, int64_t cap, double limit)
{
    double lo = LEAST_PRICE, hi = MOST_PRICE;

    if (!take_cheapest(d, cap, 0))
        return false;
    if (!(limit > 0) || d->bytes <= limit)
        return true;
    take_cheapest(d, cap, exp2(hi));
    if (d->bytes > limit)
        return false;
    for (int i = 0; i < MOST_PRICES; i++) {
        const double mid = lo + (hi - lo) / 2;
        take_cheapest(d, cap, exp2(mid));
        if (d->bytes <= limit)
            hi = mid;
        else
            lo = mid;
    }
    take_cheapest(d, cap, exp2(hi));
    use_room(d, limit);
    return true;
}

bool choose_points(struct device_stages *d, double limit)
{
    int64_t cap = INT64_MAX;
    double best = INFINITY;

    for (int i = 1; i <= MOST_CAPS; i++) {
        if (!take_cheapest(d, cap, 0) || d->sec >= best)
            break;
        if (choose_below(d, cap, limit) && d->sec < best) {
            best = d->sec;
            for (int s = 0; s < d->n; s++)
                d->stage[s].best = d->stage[s].point;
        }
        const int64_t most = most_passing(d);
        if (most == 0)
            break;
        cap = i + 1 == MOST_CAPS ? 0 : most - most / LOWER - 1;
    }
    if (!isfinite(best))
        return false;
    for (int s = 0; s < d->n; s++)
        d->stage[s].point = d->stage[s].best;
    add_up(d);
    return true;
}
