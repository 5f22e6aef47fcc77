/*
 * Trades memory: what saves cost but does not fit is taken all the same, and memory is
 * freed elsewhere for less than was saved; if that fails, all of it is taken back.
 *
 * Usage has an extra price at the slots that lack memory, in proportion to what they
 * lack, such that to free all of it at that rate would cost a part of what was saved.
 * Forests around nodes that use memory there are decided anew; the part grows when that
 * frees nothing. So one change that needs much is paid for by many small ones, which a
 * search that never leaves the limit can not see. O(slots + parts) each time that slots
 * get new prices, and what forests cost.
 */
#include "mem_local.h"

#include <stdlib.h>

#define TRY_WORK   100
#define MAX_TRIES  400
#define MAX_FAILS  48   /* in a row */
#define FIRST_PART 0.05 /* of what was saved; twice that after so many failures: */
#define PATIENCE   8
#define REPRICE    6 /* successes until slots get new prices */
#define SIZES      7 /* of forests, from 4 nodes on */

struct trade {
    struct mem_local *l;
    struct {
        int node, before;
    } * log; /* changes, to be undone */
    int n_log, cap_log;
    double *prefix;      /* [slot + 1], sums of the extra prices, which add up to 1 */
    double lack;         /* what to free all costs at these prices */
    int *user, n_users;  /* nodes that use memory where it lacks */
    double *bill;        /* [node], of its usage at these prices */
    double limit;        /* of mem_value */
    double cost, priced; /* at the start */
    int64_t work;
};

static void log_change(struct trade *t, int v, int before)
{
    if (t->n_log == t->cap_log) {
        t->cap_log = 2 * t->cap_log + 64;
        t->log = ap_xrealloc(t->log, (size_t)t->cap_log * sizeof(*t->log));
    }
    t->log[t->n_log].node = v;
    t->log[t->n_log++].before = before;
}

/* Takes pick[] over, whose usage was swapped in. */
static void take(struct trade *t)
{
    struct mem_local *l = t->l;

    l->priced += mem_price_change(l);
    for (int i = 0; i < l->n; i++) {
        int v = l->node[i];
        if (l->pick[i] == l->st->choice[v])
            continue;
        log_change(t, v, l->st->choice[v]);
        t->work += mem_state_change(l->st, v, l->pick[i]);
    }
}

static void take_back(struct trade *t)
{
    struct mem_local *l = t->l;

    while (t->n_log-- > 0) {
        int v = t->log[t->n_log].node, before = t->log[t->n_log].before;
        mem_tree_take(&l->st->left, l->m, v, l->st->choice[v], 1);
        mem_tree_take(&l->st->left, l->m, v, before, -1);
        t->work += mem_state_change(l->st, v, before);
    }
    l->st->cost = t->cost;
    l->priced = t->priced;
}

/* Prices slots by what they lack, and finds who uses memory there. */
static void price_slots(struct trade *t)
{
    const struct mem_core *m = t->l->m;
    double sum = 0, squares = 0;

    mem_tree_left(&t->l->st->left, m->n_slots, t->prefix + 1);
    for (int k = 1; k <= m->n_slots; k++) {
        double over = fmax(-t->prefix[k], 0);
        sum += over;
        squares += over * over;
    }
    t->prefix[0] = 0;
    for (int k = 1; k <= m->n_slots; k++)
        t->prefix[k] = t->prefix[k - 1] + fmax(-t->prefix[k], 0) / sum;
    t->lack = squares / sum;
    t->n_users = 0;
    for (int v = 0; v < m->core->n_nodes; v++) {
        t->bill[v] = mem_price(m, t->prefix, v, t->l->st->choice[v]);
        if (t->bill[v] > 0)
            t->user[t->n_users++] = v;
    }
    t->work += 2 * m->n_slots + m->n_parts;
}

static int pick_user(struct trade *t)
{
    int v = t->user[mem_pick(t->l, t->n_users)], w = t->user[mem_pick(t->l, t->n_users)];

    return t->bill[v] > t->bill[w] ? v : w;
}

/* Frees memory if that costs at most rate per unit; false when no more is left. */
static bool free_some(struct trade *t, double rate)
{
    struct mem_local *l = t->l;
    int64_t least = mem_tree_all(&l->st->left);
    int size = 4 << mem_pick(l, SIZES);

    t->work += mem_decide_forest(l, pick_user(t), size, 1, t->prefix, rate) + TRY_WORK;
    bool fits = mem_swap_usage(l, false);
    bool freed = fits || mem_tree_all(&l->st->left) > least;
    if (freed)
        take(t);
    else
        mem_swap_usage(l, true);
    mem_disband(l);
    return freed;
}

/* Frees memory until everything fits; false when that costs more than may be spent. */
static bool free_all(struct trade *t)
{
    struct mem_local *l = t->l;
    double part = FIRST_PART;
    int n_freed = 0, n_fails = 0;

    price_slots(t);
    for (int i = 0; i < MAX_TRIES && n_fails < MAX_FAILS && t->n_users > 0; i++) {
        double spare = t->limit - mem_value(l);
        if (spare <= l->tol)
            return false;
        if (!free_some(t, part * spare / t->lack)) {
            if (++n_fails % PATIENCE == 0)
                part = fmin(1, 2 * part);
            continue;
        }
        n_fails = 0;
        if (mem_tree_all(&l->st->left) >= 0)
            return mem_value(l) < t->limit - l->tol;
        if (++n_freed % REPRICE == 0)
            price_slots(t);
    }
    return false;
}

struct trade *mem_take_or_trade(struct mem_local *l, double change, int64_t *work)
{
    if (mem_take_picks(l, change, work) ||
        change + l->weight * mem_price_change(l) >= -l->tol)
        return NULL;
    struct trade *t = ap_xrealloc(NULL, sizeof(*t));
    *t = (struct trade){.l = l, .limit = mem_value(l)};
    t->cost = l->st->cost;
    t->priced = l->priced;
    mem_swap_usage(l, false);
    take(t);
    return t;
}

int64_t mem_trade_end(struct trade *t)
{
    if (!t)
        return 0;
    size_t n = (size_t)t->l->m->core->n_nodes + 1;
    t->prefix = ap_xrealloc(NULL, ((size_t)t->l->m->n_slots + 1) * sizeof(double));
    t->user = ap_xrealloc(NULL, n * sizeof(int));
    t->bill = ap_xrealloc(NULL, n * sizeof(double));
    if (!free_all(t))
        take_back(t);
    int64_t work = t->work;
    free(t->log);
    free(t->prefix);
    free(t->user);
    free(t->bill);
    free(t);
    return work;
}
