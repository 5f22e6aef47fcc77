/*
 * Problem: interleaved plans keep much: a device has the weights of all its chunks, and
 * before its first backward it has run 2 (G - 1 - g) + (V - 1) G + 1 forwards (group g of
 * G, V chunks each). A bound that lets every chunk fit by itself misses the collectives
 * and the recomputation that the memory forces.
 * Idea: after its first forwards group g holds of chunk c the microbatches k_gc that
 * ap_schedule_pass counts, so that every plan that fits has
 *     r + sum over c of (m + k_gc a) <= M        for each group,
 * r being what the last chunk, whose backward is next, computes again for it,
 * and with a price mu >= 0 of bytes
 *     G T >= sum over stages of min over points of [t + mu (r + m + k_gc a)] - mu G M,
 * r being 0 but for last chunks, and t the seconds of the stage that the average over the
 * groups counts. The right side is a programme over cuts for each mu, concave in mu; its
 * best is found between the plan of least seconds, which needs too much, and that of
 * fewest bytes: the mu at which both cost the same gives a third one, which takes the
 * place of one of them, until none is cheaper. Each value on the way is a bound. Cost:
 * blocks^2 x stages for each mu, of which there are MOST_PRICES at most. Sources:
 * Everett, "Generalized Lagrange multiplier method", Operations Research 11 (1963); the
 * schedule is Narayanan et al.'s, SC 2021, section 2.2.
 */
#include "search/auto.h"

#include <math.h>

#define MOST_PRICES 10

struct room {
    const struct chunk_plans *of;
    int n, n_parts;
    struct chunk_part *part;
    int *part_of;        /* [stage] */
    double limit, price; /* bytes of a device; seconds of a byte, INFINITY: bytes alone */
    /* [part * runs + run]; [block]: of the blocks before */
    struct chunk_sums *cost, *from, *to;
};

int chunk_flights(const struct config *c, int groups, int n_stages, int stage)
{
    const int chunks = n_stages / groups, chunk = stage / groups;
    const struct ap_schedule_size size = {AP_SCHEDULE_INTERLEAVED, groups, chunks,
                                          (int)c->microbatches, false};
    const int warm =
        ap_schedule_warm_up(&size, (int)c->microbatches * chunks, stage % groups);
    int left = warm % n_stages - chunk * groups;

    left = left < 0 ? 0 : left > groups ? groups : left;
    return warm / n_stages * groups + left;
}

int chunk_parts(const struct chunk_plans *x, struct chunk_part *part, int *part_of)
{
    int n = 0;

    for (int s = 0; s < x->n_stages; s++) {
        const struct chunk_part p = {.ahead = s < x->groups ? x->groups - 1 - s : 0,
                                     .flights =
                                         chunk_flights(x->c, x->groups, x->n_stages, s),
                                     .last = s >= x->n_stages - x->groups,
                                     .first_block = s == 0,
                                     .last_block = s == x->n_stages - 1};
        int i = 0;
        while (i < n && (part[i].ahead != p.ahead || part[i].flights != p.flights ||
                         part[i].last != p.last || part[i].first_block != p.first_block ||
                         part[i].last_block != p.last_block))
            i++;
        if (i == n)
            part[n++] = p;
        part_of[s] = i;
    }
    return n;
}

static void price_run(const struct room *r, const struct chunk_part *part,
                      const struct plan_front *front, struct chunk_sums *cost)
{
    const struct chunk_plans *x = r->of;
    const double b = (double)x->c->microbatches, ahead = part->ahead;

    *cost = (struct chunk_sums){INFINITY, INFINITY, INFINITY};
    for (int i = 0; front && i < front->n; i++) {
        const struct plan_point *p = &front->point[i];
        const double work = b * (p->forward_sec + p->backward_sec);
        const double once = p->sync_sec + p->update_sec;
        const double own = (double)(part->last ? p->stage_bytes : plan_always_bytes(p));
        struct chunk_sums one = {.bytes =
                                     own + part->flights * (double)p->microbatch_bytes};
        if (work + once >= x->below || (r->limit > 0 && one.bytes > r->limit))
            continue;
        one.sec = work + ahead * p->forward_sec +
                  (x->counts_once ? once : ahead * p->backward_sec);
        one.value = isfinite(r->price) ? one.sec + r->price * one.bytes : one.bytes;
        if (sums_less(&one, cost))
            *cost = one;
    }
}

/* The cheapest cuts at the price. */
static struct chunk_sums solve(struct room *r, double price)
{
    const struct chunk_plans *x = r->of;
    const struct space *sp = x->sp;
    const struct chunk_sums none = {INFINITY, INFINITY, INFINITY};
    const int n = r->n;

    r->price = price;
    for (int i = 0; i < r->n_parts; i++)
        for (int run = 0; run < sp->n_runs; run++)
            price_run(r, &r->part[i], x->c->front[run * x->c->n_meshes + x->mesh],
                      &r->cost[i * sp->n_runs + run]);
    for (int b = 0; b <= n; b++)
        r->to[b] = none;
    r->to[0] = (struct chunk_sums){0};
    for (int s = 0; s < x->n_stages; s++) {
        const struct chunk_sums *cost = &r->cost[r->part_of[s] * sp->n_runs];
        struct chunk_sums *swap = r->from;
        r->from = r->to;
        r->to = swap;
        for (int b = 0; b <= n; b++)
            r->to[b] = none;
        for (int lo = s; lo < n; lo++) {
            const struct chunk_sums *before = &r->from[lo];
            if (!isfinite(before->value))
                continue;
            for (int hi = lo; hi <= n - (x->n_stages - s); hi++) {
                const struct chunk_sums *c = &cost[sp->run[lo * n + hi]];
                const struct chunk_sums all = {before->sec + c->sec,
                                               before->bytes + c->bytes,
                                               before->value + c->value};
                if (sums_less(&all, &r->to[hi + 1]))
                    r->to[hi + 1] = all;
            }
        }
    }
    return r->to[n];
}

/* G times the bound: the best value of the price. */
static double best_price(struct room *r, double enough)
{
    const double room = r->limit * r->of->groups;
    struct chunk_sums quick = solve(r, 0), lean;
    double best = quick.sec;

    if (!(r->limit > 0) || quick.bytes <= room || best >= enough)
        return best;
    lean = solve(r, INFINITY);
    if (lean.bytes > room)
        return INFINITY;
    for (int i = 0; i < MOST_PRICES && best < enough && lean.sec > quick.sec; i++) {
        const double price = (lean.sec - quick.sec) / (quick.bytes - lean.bytes);
        const struct chunk_sums mid = solve(r, price);
        const double least = mid.value - price * room;
        const double both = quick.sec + price * (quick.bytes - room);
        best = most_of(best, least);
        if (least >= both - 1e-4 * fabs(both))
            break;
        if (mid.bytes > room)
            quick = mid;
        else
            lean = mid;
    }
    return best;
}

double chunks_room_bound(const struct chunk_plans *x, double enough)
{
    struct ap_arena scratch = {0};
    struct room r = {.of = x,
                     .n = x->sp->n,
                     .limit = (double)plan_memory(x->sp->inst, x->c->mesh[x->mesh].kind)};

    r.part = AP_NEW_N(&scratch, x->n_stages, struct chunk_part);
    r.part_of = AP_NEW_N(&scratch, x->n_stages, int);
    r.n_parts = chunk_parts(x, r.part, r.part_of);
    r.cost = AP_NEW_N(&scratch, r.n_parts * x->sp->n_runs, struct chunk_sums);
    r.from = AP_NEW_N(&scratch, r.n + 1, struct chunk_sums);
    r.to = AP_NEW_N(&scratch, r.n + 1, struct chunk_sums);
    const double all = best_price(&r, enough * x->groups);
    ap_arena_free(&scratch);
    return all / x->groups * (1 - 1e-9);
}
