/*
 * Problem: join thousands of components to k convex blocks of about equal time. Idea: in
 * passes, from the cheapest cluster up, join each with the neighbour that makes the
 * cheapest pair (or gains most, as the published code has it), each cluster once a pass;
 * so small ones grow first and evenly. Compaction joins clusters that follow each other
 * in topological order, which is always convex, a few a pass: the cheapest ones. Cost: a
 * pass is O((edges + clusters) log); the number of passes is the number of halvings of
 * the clusters, which the caller bounds. After Tanaka et al., "Automatic Graph
 * Partitioning for Very Large-scale Deep Learning", section III-B, coarsening and
 * compaction.
 */
#include "rannc/rannc_order.h"

#include <math.h>
#include <stdlib.h>

struct keyed {
    double key;
    int id;
};

static int by_key(const void *a, const void *b)
{
    const struct keyed *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static struct keyed *cheapest_first(struct ap_arena *arena, const struct rannc_level *l)
{
    struct keyed *order = AP_NEW_N(arena, l->n, struct keyed);
    for (int c = 0; c < l->n; c++)
        order[c] = (struct keyed){rannc_sec(&l->all[c]), c};
    qsort(order, (size_t)l->n, sizeof *order, by_key);
    return order;
}

struct pass {
    const struct rannc_level *l;
    const struct rannc_params *params;
    struct rannc_order order;
    double cap_sec;     /* mean + 2 sigma of the clusters, or infinity */
    bool unprofiled;    /* pairs have no price */
    int *seen;          /* [cluster] last cluster + 1 that looked at it */
    struct keyed *wish; /* neighbours of one cluster */
    int n_wishes;
};

static double mean_plus_two_sigma(const struct rannc_level *l)
{
    double mean = 0, var = 0;
    for (int c = 0; c < l->n; c++)
        mean += rannc_sec(&l->all[c]) / l->n;
    for (int c = 0; c < l->n; c++)
        var += pow(rannc_sec(&l->all[c]) - mean, 2) / l->n;
    return mean + 2 * sqrt(var);
}

/* Whether v may join w, and how well it would: less is better. */
static bool price(const struct pass *p, int v, int w, double *key)
{
    const struct rannc_profile *a = &p->l->all[v], *b = &p->l->all[w];
    struct rannc_profile joined;
    int64_t cut_bytes;
    bool gain = p->params->merge == RANNC_MERGE_GAIN;

    if (gain && p->unprofiled && (rannc_sec(a) > p->cap_sec || rannc_sec(b) > p->cap_sec))
        return false;
    rannc_level_join(p->l, v, w, &joined, &cut_bytes);
    *key = rannc_sec(&joined);
    if (!gain)
        return rannc_fits(p->params, &joined);
    if (!p->unprofiled && (*key > p->cap_sec || !rannc_fits(p->params, &joined)))
        return false;
    double joined_sec = p->unprofiled ? 0 : *key;
    *key = joined_sec - rannc_sec(a) - rannc_sec(b) - rannc_send_sec(cut_bytes);
    return *key <= 0;
}

static void wish(struct pass *p, int v, int w)
{
    double key;
    if (p->seen[w] == v + 1 || p->order.mate[w] >= 0)
        return;
    p->seen[w] = v + 1;
    if (price(p, v, w, &key))
        p->wish[p->n_wishes++] = (struct keyed){key, w};
}

static void wishes(struct pass *p, int v)
{
    const struct rannc_level *l = p->l;

    p->n_wishes = 0;
    for (int i = l->out_start[v]; i < l->out_start[v + 1]; i++)
        for (int x = l->out[i], k = l->reader_start[x]; k < l->reader_start[x + 1]; k++)
            wish(p, v, l->reader[k]);
    for (int i = l->in_start[v]; i < l->in_start[v + 1] && !p->params->successors_only;
         i++)
        wish(p, v, l->owner[l->in[i]]);
    qsort(p->wish, (size_t)p->n_wishes, sizeof *p->wish, by_key);
}

int rannc_coarsen_pass(struct ap_arena *arena, const struct rannc_level *l,
                       const struct rannc_params *params, int target, int *map)
{
    struct pass p = {.l = l, .params = params};
    const struct keyed *cheap = cheapest_first(arena, l);
    bool *done = AP_NEW_N(arena, l->n, bool);
    int n = l->n;

    rannc_order_init(arena, l, &p.order);
    p.seen = AP_NEW_N(arena, l->n, int);
    p.wish = AP_NEW_N(arena, l->n, struct keyed);
    p.cap_sec = mean_plus_two_sigma(l);
    p.unprofiled = params->unprofiled_above && l->n > params->unprofiled_above;
    for (int i = 0; i < l->n && n > target; i++) {
        int v = cheap[i].id;
        if (p.order.mate[v] >= 0)
            continue;
        wishes(&p, v);
        for (int k = 0; k < p.n_wishes; k++)
            if (!done[p.wish[k].id] && rannc_order_merge(&p.order, v, p.wish[k].id)) {
                n--;
                break;
            }
        done[v] = true; /* its turn is over: no costlier cluster merges with it */
    }
    return rannc_order_number(&p.order, map);
}

/* The follower or predecessor of v that makes the cheaper pair, -1: none is left. */
static int cheaper_side(const struct pass *p, int v)
{
    double best_sec = INFINITY;
    int best = -1;

    for (int w = v - 1; w <= v + 1; w += 2) {
        struct rannc_profile joined;
        int64_t cut_bytes;
        if (w < 0 || w >= p->l->n || p->order.mate[w] >= 0)
            continue;
        rannc_level_join(p->l, v, w, &joined, &cut_bytes);
        if (rannc_fits(p->params, &joined) && rannc_sec(&joined) < best_sec) {
            best_sec = rannc_sec(&joined);
            best = w;
        }
    }
    return best;
}

/* An eighth of what is too much in one pass, so that the last ones go one by one. */
int rannc_compact_pass(struct ap_arena *arena, const struct rannc_level *l,
                       const struct rannc_params *params, int target, int *map)
{
    struct pass p = {.l = l, .params = params};
    const struct keyed *cheap = cheapest_first(arena, l);
    int left = (l->n - target + 7) / 8;

    rannc_order_init(arena, l, &p.order);
    for (int i = 0; i < l->n && left > 0; i++) {
        int v = cheap[i].id;
        int w = p.order.mate[v] < 0 ? cheaper_side(&p, v) : -1;
        if (w < 0)
            continue;
        rannc_order_merge_next(&p.order, v < w ? v : w, v < w ? w : v);
        left--;
    }
    return rannc_order_number(&p.order, map);
}
