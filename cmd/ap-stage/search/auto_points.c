/*
 * Problem: a device has several stages of an interleaved plan; which point of its front
 * does each take, so that all of them fit and the device is done soonest? A knapsack of
 * several choices.
 * Idea: at a price of bytes each stage takes its own cheapest point; bisection finds the
 * least price at which all fit. What room is left then is given to stages that are
 * quicker with more, the last ones first, since they hold least. Cost: points x
 * MOST_PRICES. Source: Everett, Operations Research 11 (1963).
 */
#include "search/auto.h"

#include <math.h>

#define MOST_PRICES 40 /* of a bisection between exponents of 2 */
#define LEAST_PRICE -40
#define MOST_PRICE  10

static double sec_of(const struct device_stages *d, const struct plan_point *p)
{
    return d->microbatches * (p->forward_sec + p->backward_sec) + p->sync_sec +
           p->update_sec;
}

static double bytes_of(const struct device_stage *st, const struct plan_point *p)
{
    return (double)p->stage_bytes + st->flights * (double)p->microbatch_bytes;
}

/* The cheapest point of each stage at a price of seconds per byte. */
static void take_cheapest(struct device_stages *d, double price)
{
    d->bytes = 0;
    for (int s = 0; s < d->n; s++) {
        struct device_stage *st = &d->stage[s];
        double least = INFINITY;
        for (int i = 0; i < st->front->n; i++) {
            const struct plan_point *p = &st->front->point[i];
            const double cost = sec_of(d, p) + price * bytes_of(st, p);
            if (cost < least) {
                least = cost;
                st->point = p;
            }
        }
        d->bytes += bytes_of(st, st->point);
    }
}

static void use_room(struct device_stages *d, double limit)
{
    for (int s = d->n - 1; s >= 0; s--) {
        struct device_stage *st = &d->stage[s];
        for (int i = 0; i < st->front->n; i++) {
            const struct plan_point *p = &st->front->point[i];
            const double bytes = d->bytes + bytes_of(st, p) - bytes_of(st, st->point);
            if (bytes <= limit && sec_of(d, p) < sec_of(d, st->point)) {
                d->bytes = bytes;
                st->point = p;
            }
        }
    }
}

bool choose_points(struct device_stages *d, double limit)
{
    double lo = LEAST_PRICE, hi = MOST_PRICE;

    take_cheapest(d, 0);
    if (limit > 0 && d->bytes > limit) {
        take_cheapest(d, exp2(hi));
        if (d->bytes > limit)
            return false;
        for (int i = 0; i < MOST_PRICES; i++) {
            const double mid = lo + (hi - lo) / 2;
            take_cheapest(d, exp2(mid));
            if (d->bytes <= limit)
                hi = mid;
            else
                lo = mid;
        }
        take_cheapest(d, exp2(hi));
        use_room(d, limit);
    }
    d->sec = 0;
    for (int s = 0; s < d->n; s++)
        d->sec += sec_of(d, d->stage[s].point);
    return true;
}
