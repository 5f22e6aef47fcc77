/*
 * Problem: a good plan where the problem of all axes of a mesh together is too large: a
 * group has about as many strategies as the product of those on each axis, and none of
 * the moves of a local search, which change a few groups, gets from one sharding of a
 * model to another. Idea: block coordinate descent. All groups keep their choices on all
 * axes but one, and choose anew on that axis at once: the problem is as small as for a
 * mesh of one axis, and is usually solved to its optimum in a hundredth of the time. Axes
 * take turns until none gains. The start is the best choice known. On convolutional nets,
 * where it gains most, a start without any sharding leads to the same plans, and letting
 * each group choose which axis it changes leads to no better ones. Cost: a few problems
 * of one axis. Source: block coordinate descent, as in Tseng (JOTA 2001); that axes are
 * planned one after the other, Rhino, section 4.3.
 */
#include "axes.h"

#include <string.h>

/* Of the budget, for a problem of one axis at most: with 0.01 one does not end under
 * --work-limit 6. */
#define SHARE 0.05

struct descent {
    struct ap_arena *arena;
    const struct shard_axes *axes;
    struct ap_work *work;
    const struct shard_space *space;
    struct ap_choice_vec *at; /* [group] */
    double cost;
};

/* The strategies that differ from what is at hand on that axis only. */
static struct shard_space space_on(const struct descent *d, int axis)
{
    const struct shard_space *space = d->space;
    struct shard_space own = *space;
    const int n = space->nests->n, n_axes = space->cost->mesh.n_axes;

    own.arena = d->arena;
    own.n = AP_NEW_N(d->arena, n, int);
    own.choice = AP_NEW_N(d->arena, n, struct ap_choice_vec *);
    own.sec = AP_NEW_N(d->arena, n, double *);
    own.sig = AP_NEW_N(d->arena, n, uint64_t *);
    for (int i = 0; i < n; i++) {
        const int all = space->n[i], root = d->axes->fold->tied[i];
        if (root < i) {
            own.n[i] = own.n[root];
            own.choice[i] = own.choice[root];
            own.sec[i] = own.sec[root];
            own.sig[i] = own.sig[root];
            continue;
        }
        own.choice[i] = AP_NEW_N(d->arena, all, struct ap_choice_vec);
        own.sec[i] = AP_NEW_N(d->arena, all, double);
        own.sig[i] = AP_NEW_N(d->arena, all, uint64_t);
        for (int s = 0; s < all; s++) {
            const struct ap_choice_vec *c = &space->choice[i][s];
            bool same = true;
            for (int a = 0; a < n_axes; a++)
                same &= a == axis || c->axis[a] == d->at[i].axis[a];
            if (!same)
                continue;
            own.choice[i][own.n[i]] = *c;
            own.sec[i][own.n[i]] = space->sec[i][s];
            own.sig[i][own.n[i]++] = space->sig[i][s];
        }
    }
    return own;
}

/* Whether all groups together find something cheaper on the axis. */
static bool improve(struct descent *d, int axis)
{
    const struct ap_mark mark = ap_arena_mark(d->arena);
    const struct shard_space own = space_on(d, axis);
    const int n = own.nests->n;
    struct ap_work part = ap_work_share(d->work, SHARE);
    struct ilp_problem ip;
    struct ap_solution sol;
    struct ap_err none = {0};
    struct ap_plan plan = {.nests = own.nests, .choice = d->at};
    const double before = d->cost;

    part.progress = NULL;
    shard_ilp_tie(d->arena, &own, d->axes->fold, &ip);
    const struct ap_solve_params with = {.start = shard_ilp_choice(d->arena, &ip, &plan),
                                         .work = &part};
    if (with.start && !ap_solve_exact(d->arena, &ip.problem, &with, &sol, &none) &&
        sol.objective < before) {
        d->cost = sol.objective;
        plan = shard_ilp_plan(&ip, sol.choice);
        memcpy(d->at, plan.choice, (size_t)n * sizeof *d->at);
    }
    ap_work_add(d->work, part.done);
    select_free(&ip.builder);
    ap_arena_rewind(d->arena, mark);
    return d->cost < before * (1 - 1e-9);
}

/* Axes take turns, the last one first, until none has gained since its own turn. */
static void descend(struct descent *d)
{
    const int n_axes = d->space->cost->mesh.n_axes;

    for (int k = n_axes - 1, idle = 0; idle < n_axes && !ap_work_over(d->work);
         k = (k + n_axes - 1) % n_axes)
        idle = improve(d, k) ? 1 : idle + 1;
}

void shard_axes_better(void *axes, struct ap_work *work, int *choice)
{
    const struct shard_axes *a = axes;
    const struct ilp_problem *ip = a->ip;
    const struct ap_problem *p = &ip->problem;
    const struct shard_space *space = &ip->space;
    const int n = space->nests->n;
    struct ap_arena scratch = {0};
    struct descent d = {.arena = &scratch,
                        .axes = a,
                        .work = work,
                        .space = space,
                        .at = AP_NEW_N(&scratch, n + 1, struct ap_choice_vec),
                        .cost = ap_problem_score(p, choice)};
    const struct ap_plan plan = {.nests = space->nests, .choice = d.at};

    for (int i = 0; i < n; i++)
        d.at[i] = space->choice[i][choice[ip->var[i]]];
    if (space->cost->mesh.n_axes > 1)
        descend(&d);
    const int *found = shard_ilp_choice(&scratch, ip, &plan);
    if (found)
        memcpy(choice, found, (size_t)p->n_nodes * sizeof *choice);
    ap_arena_free(&scratch);
}
