/*
 * Problem: how long does an interleaved plan take at least, because blocks are whole and
 * because all chunks of a device must fit, both at once? auto_room.c has an average
 * over the groups.
 * Idea: some blocks count, N in all: those that take no less than the commonest. Group
 * g has V chunks, each a run with x_c counted blocks. For a price mu >= 0 of bytes it is
 * busy with X of them for at least
 *     w_g + min over x_1 + .. + x_V = X of sum over c of (min over runs with x_c counted
 *           blocks and over their points of [t + mu (r + m + k_gc a)])  -  mu M,
 * k_gc, r, m, a and t as in auto_room.c, w_g the way of a first microbatch through the
 * groups in front; the model's first block is in the first group's first chunk, the last
 * one in the last group's last, and no other chunk has them. The largest value over mu is
 * E_g(X), the Lagrangian bound of one device. In a step of T seconds group g has no more
 * than X_g(T) = max {X: E_g(X) <= T} counted blocks, so that the least T at which the
 * X_g(T) add up to N is a bound. Prices are looked for at the X_g of that T, between what
 * is quickest and needs too much and what is leanest, as in auto_room.c; each price is
 * one for all X. Cost: MOST_ROUNDS x groups x chunks x blocks^2. Source:
 * Everett, "Generalized Lagrange multiplier method", Operations Research 11 (1963).
 */
#include "search/auto.h"

#include <math.h>
#include <stdlib.h>

#define MOST_ROUNDS 24 /* of a price for each group */
#define MOST_STEPS  40
#define SAME        1e-9 /* relative: numbers that are rounded differently */
#define NEAR        1e-4 /* relative: no price lifts more */

/* Runs and points that are cheapest at some price, by their counted blocks. */
struct pile {
    int most;                 /* counted blocks of a run */
    int *n;                   /* [counted blocks] */
    struct chunk_sums **hull; /* likewise, [n] */
    struct chunk_sums *cost;  /* likewise, at the price */
};

/* [counted blocks]; quick and lean: nearest to the memory, above and not. */
struct group {
    double wait;
    struct chunk_sums *quick, *lean;
    double *least;
    bool *done;
};

struct loads {
    const struct chunk_plans *of;
    int n, n_counted, n_parts;
    int *before; /* [block]: counted blocks before it */
    struct chunk_part *part;
    int *part_of;      /* [stage] */
    struct pile *pile; /* [part] */
    struct group *group;
    double limit;                 /* bytes of a device, 0: none */
    struct chunk_sums *from, *to; /* [counted blocks] */
};

static const struct plan_front *front_of(const struct loads *r, int lo, int hi)
{
    const struct chunk_plans *x = r->of;
    return x->c->front[x->sp->run[lo * r->n + hi] * x->c->n_meshes + x->mesh];
}

/* ---- blocks that count ---- */

static double block_sec(const struct loads *r, int b)
{
    const struct plan_front *f = front_of(r, b, b);
    double least = INFINITY;

    for (int i = 0; f && i < f->n; i++)
        least = least_of(least, f->point[i].forward_sec + f->point[i].backward_sec);
    return least;
}

static void count_blocks(struct ap_arena *arena, struct loads *r)
{
    double *sec = AP_NEW_N(arena, r->n, double), common = INFINITY;
    int most = 0;

    for (int b = 0; b < r->n; b++)
        sec[b] = block_sec(r, b);
    for (int b = 0; b < r->n; b++) {
        int alike = 0;
        for (int k = 0; k < r->n; k++)
            alike += fabs(sec[k] - sec[b]) <= SAME * sec[b];
        if (alike > most || (alike == most && sec[b] < common)) {
            most = alike;
            common = sec[b];
        }
    }
    r->before = AP_NEW_N(arena, r->n + 1, int);
    for (int b = 0; b < r->n; b++)
        r->before[b + 1] = r->before[b] + (sec[b] >= common * (1 - SAME));
    r->n_counted = r->before[r->n];
}

/* ---- runs ---- */

static int by_sec(const void *a, const void *b)
{
    const struct chunk_sums *x = a, *y = b;

    if (x->sec != y->sec)
        return x->sec < y->sec ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Keeps what is cheapest at some price. */
static int keep_hull(struct chunk_sums *s, int n)
{
    int kept = 0;

    qsort(s, (size_t)n, sizeof *s, by_sec);
    for (int i = 0; i < n; i++) {
        if (kept > 0 && s[i].bytes >= s[kept - 1].bytes)
            continue;
        while (kept > 1) {
            const struct chunk_sums *a = &s[kept - 2], *b = &s[kept - 1];
            if ((b->sec - a->sec) * (a->bytes - s[i].bytes) <
                (s[i].sec - a->sec) * (a->bytes - b->bytes))
                break;
            kept--;
        }
        s[kept++] = s[i];
    }
    return kept;
}

static void add_run(struct ap_arena *arena, const struct loads *r, int part, int lo,
                    int hi)
{
    const struct chunk_plans *x = r->of;
    const struct chunk_part *p = &r->part[part];
    struct pile *pile = &r->pile[part];
    const struct plan_front *f = front_of(r, lo, hi);
    const int size = r->before[hi + 1] - r->before[lo];
    int n = pile->n[size];

    if (!f || f->n == 0)
        return;
    struct chunk_sums *all = AP_NEW_N(arena, n + f->n, struct chunk_sums);
    for (int i = 0; i < n; i++)
        all[i] = pile->hull[size][i];
    for (int i = 0; i < f->n; i++) {
        const struct plan_point *pt = &f->point[i];
        const double work =
            (double)x->c->microbatches * (pt->forward_sec + pt->backward_sec);
        const double once = pt->sync_sec + pt->update_sec;
        const double own = (double)(p->last ? pt->stage_bytes : plan_always_bytes(pt));
        all[n].sec = work + (x->counts_once ? once : 0);
        all[n].bytes = own + p->flights * (double)pt->microbatch_bytes;
        n += work + once < x->below && (!(r->limit > 0) || all[n].bytes <= r->limit);
    }
    pile->n[size] = keep_hull(all, n);
    pile->hull[size] = all;
    if (n > 0 && size > pile->most)
        pile->most = size;
}

/* Those that a part can have, one of each content. */
static void fill_pile(struct ap_arena *arena, const struct loads *r, int part)
{
    const struct chunk_part *p = &r->part[part];
    struct pile *pile = &r->pile[part];
    bool *seen = AP_NEW_N(arena, r->of->sp->n_runs, bool);

    pile->n = AP_NEW_N(arena, r->n_counted + 1, int);
    pile->hull = AP_NEW_N(arena, r->n_counted + 1, struct chunk_sums *);
    pile->cost = AP_NEW_N(arena, r->n_counted + 1, struct chunk_sums);
    for (int lo = 0; lo < r->n; lo++)
        for (int hi = lo; hi < r->n; hi++) {
            bool *its = &seen[r->of->sp->run[lo * r->n + hi]];
            if ((lo == 0) != p->first_block || (hi == r->n - 1) != p->last_block || *its)
                continue;
            *its = true;
            add_run(arena, r, part, lo, hi);
        }
}

/* Through the first group's chunk, and as many others as there are groups in front. */
static void find_waits(struct loads *r)
{
    const struct chunk_plans *x = r->of;
    double first = INFINITY, other = INFINITY;

    for (int lo = 0; lo < r->n; lo++)
        for (int hi = lo; hi < r->n; hi++) {
            const struct plan_front *f = front_of(r, lo, hi);
            double *least = lo == 0 ? &first : &other;
            for (int i = 0; f && i < f->n; i++)
                *least =
                    least_of(*least, f->point[i].forward_sec +
                                         (x->counts_once ? 0 : f->point[i].backward_sec));
        }
    for (int g = 1; g < x->groups; g++)
        r->group[g].wait = r->group[g - 1].wait + (g == 1 ? first : other);
}

/* ---- groups ---- */

static struct chunk_sums cheapest(const struct chunk_sums *s, int n, double price)
{
    struct chunk_sums best = {INFINITY, INFINITY, INFINITY};

    for (int i = 0; i < n; i++) {
        struct chunk_sums one = s[i];
        one.value = isfinite(price) ? one.sec + price * one.bytes : one.bytes;
        if (sums_less(&one, &best))
            best = one;
    }
    return best;
}

/* Fills r->to: the group with each number of counted blocks at a price, INFINITY: by
 * bytes alone. */
static void solve(struct loads *r, int g, double price)
{
    const struct chunk_sums none = {INFINITY, INFINITY, INFINITY};
    const int n = r->n_counted;
    int most = 0;

    for (int k = 0; k <= n; k++)
        r->to[k] = none;
    r->to[0] = (struct chunk_sums){0};
    for (int s = g; s < r->of->n_stages; s += r->of->groups) {
        const struct pile *pile = &r->pile[r->part_of[s]];
        struct chunk_sums *swap = r->from;
        r->from = r->to;
        r->to = swap;
        const int top = most + pile->most < n ? most + pile->most : n;
        for (int k = 0; k <= pile->most; k++)
            pile->cost[k] = cheapest(pile->hull[k], pile->n[k], price);
        for (int k = 0; k <= n; k++)
            r->to[k] = none;
        for (int k = 0; k <= most; k++)
            for (int i = 0; i <= pile->most && k + i <= n; i++) {
                const struct chunk_sums *a = &r->from[k], *b = &pile->cost[i];
                const struct chunk_sums both = {a->sec + b->sec, a->bytes + b->bytes,
                                                a->value + b->value};
                if (sums_less(&both, &r->to[k + i]))
                    r->to[k + i] = both;
            }
        most = top;
    }
}

/* The quickest, and the leanest. */
static void start_group(struct ap_arena *arena, struct loads *r, int at)
{
    struct group *g = &r->group[at];
    const int n = r->n_counted + 1;

    g->least = AP_NEW_N(arena, n, double);
    g->done = AP_NEW_N(arena, n, bool);
    solve(r, at, 0);
    g->quick = ap_arena_dup(arena, r->to, (size_t)n * sizeof *r->to);
    for (int k = 0; k < n; k++) {
        g->least[k] = g->quick[k].sec;
        g->done[k] =
            !isfinite(g->least[k]) || !(r->limit > 0) || g->quick[k].bytes <= r->limit;
    }
    if (!(r->limit > 0))
        return;
    solve(r, at, INFINITY);
    g->lean = ap_arena_dup(arena, r->to, (size_t)n * sizeof *r->to);
    for (int k = 0; k < n; k++)
        if (!g->done[k] && g->lean[k].bytes > r->limit) {
            g->least[k] = INFINITY;
            g->done[k] = true;
        }
}

/* The price at which so many blocks of a group cost the same quick and lean, for all
 * numbers of blocks. false: no price lifts more. */
static bool refine(struct loads *r, int at, int blocks)
{
    struct group *g = &r->group[at];

    if (g->done[blocks])
        return false;
    const struct chunk_sums quick = g->quick[blocks], lean = g->lean[blocks];
    const double price = (lean.sec - quick.sec) / (quick.bytes - lean.bytes);
    const double both = quick.sec + price * (quick.bytes - r->limit);
    solve(r, at, price);
    for (int k = 0; k <= r->n_counted; k++) {
        const struct chunk_sums *s = &r->to[k];
        if (g->done[k])
            continue;
        g->least[k] = most_of(g->least[k], s->value - price * r->limit);
        if (s->bytes > r->limit && s->bytes < g->quick[k].bytes)
            g->quick[k] = *s;
        if (s->bytes <= r->limit && s->bytes > g->lean[k].bytes)
            g->lean[k] = *s;
    }
    g->done[blocks] |= r->to[blocks].value - price * r->limit >= both - NEAR * fabs(both);
    return true;
}

/* Counted blocks that a group has room for in so many seconds, -1: it has not even room
 * for its chunks. */
static int room_of(const struct loads *r, int g, double sec)
{
    int k = r->n_counted;

    while (k >= 0 && r->group[g].least[k] + r->group[g].wait > sec)
        k--;
    return k;
}

static bool has_room(const struct loads *r, double sec)
{
    int all = 0;

    for (int g = 0; g < r->of->groups; g++) {
        const int its = room_of(r, g, sec);
        if (its < 0)
            return false;
        all += its;
    }
    return all >= r->n_counted;
}

/* The largest number of seconds known not to be enough, at least lo; hi where that is not
 * enough; INFINITY where nothing is. */
static double least_sec(const struct loads *r, double lo, double hi)
{
    double most = 0;

    for (int g = 0; g < r->of->groups; g++)
        for (int k = 0; k <= r->n_counted; k++)
            if (isfinite(r->group[g].least[k]))
                most = most_of(most, r->group[g].least[k] + r->group[g].wait);
    if (!has_room(r, least_of(hi, most)))
        return most <= hi ? INFINITY : hi;
    hi = least_of(hi, most);
    for (int i = 0; i < MOST_STEPS && lo < hi; i++) {
        const double mid = lo + (hi - lo) / 2;
        if (has_room(r, mid))
            hi = mid;
        else
            lo = mid;
    }
    return least_of(lo, hi);
}

/* A price for each group at what it has room for. false: none lifts more. */
static bool refine_all(struct loads *r, double sec)
{
    bool any = false;

    for (int g = 0; g < r->of->groups; g++) {
        const int blocks = room_of(r, g, sec * (1 + NEAR));
        if (blocks >= 0)
            any |= refine(r, g, blocks);
    }
    return any;
}

double chunks_loads_bound(const struct chunk_plans *x, double bound, double enough)
{
    struct ap_arena scratch = {0};
    struct loads r = {.of = x,
                      .n = x->sp->n,
                      .limit =
                          (double)plan_memory(x->sp->inst, x->c->mesh[x->mesh].kind)};

    count_blocks(&scratch, &r);
    r.part = AP_NEW_N(&scratch, x->n_stages, struct chunk_part);
    r.part_of = AP_NEW_N(&scratch, x->n_stages, int);
    r.n_parts = chunk_parts(x, r.part, r.part_of);
    r.pile = AP_NEW_N(&scratch, r.n_parts, struct pile);
    for (int i = 0; i < r.n_parts; i++)
        fill_pile(&scratch, &r, i);
    r.from = AP_NEW_N(&scratch, r.n_counted + 1, struct chunk_sums);
    r.to = AP_NEW_N(&scratch, r.n_counted + 1, struct chunk_sums);
    r.group = AP_NEW_N(&scratch, x->groups, struct group);
    find_waits(&r);
    for (int g = 0; g < x->groups; g++)
        start_group(&scratch, &r, g);
    const double past = enough * (1 + 1e-8); /* so that enough is reached, rounded down */
    double least = least_sec(&r, bound, past);
    for (int i = 0; i < MOST_ROUNDS && least < past && refine_all(&r, least); i++)
        least = least_sec(&r, least, past);
    ap_arena_free(&scratch);
    return most_of(bound, least * (1 - 1e-9));
}
