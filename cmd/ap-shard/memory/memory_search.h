/* Private to memory.c and memory_mend.c: a search for plans that fit, under way. */
#ifndef MEMORY_SEARCH_H
#define MEMORY_SEARCH_H

#include "memory/memory.h"

/* A plan met at some prices. */
struct hunt_cut {
    int *choice;   /* per node of the problem */
    double sec;    /* without prices */
    int64_t *held; /* [time], by the model or, while plans are looked for, its program */
    int64_t peak;  /* the most of these */
    bool tried;    /* measured because its program may fit */
    bool lost;     /* has strategies of hunt.never */
    int64_t *by_model, *by_program; /* held is one of these, the second one may be NULL */
};

/* The priced problem: of the whole graph, or with alike layers tied. */
struct hunt_view {
    struct ilp_problem ip;
    struct mem_model model;
    double *share; /* [copy], see mem_price_problem */
    bool moved;    /* some share, by the last solution */
};

struct hunt {
    struct ap_arena *arena;
    const struct shard_task *task;
    struct hunt_view whole;
    struct hunt_view *tied;   /* plans are looked for here; NULL: in the whole graph */
    struct shard_fold layers; /* where groups are: family and instance */
    int n_cuts, max_cuts;
    struct hunt_cut *cut;
    int n_times, max_times, *time;   /* those that are priced */
    double dearest;                  /* of a price */
    double *best_price;              /* of the highest value for the limit */
    double best_value, proven_value; /* this value; the one whose prices are proven */
    double *last_price;              /* the same for the limit that prices are for */
    double near;                     /* a gap that is good enough */
    bool by_program;                 /* what plans hold is what their programs do */
    bool plain; /* copies are nodes of their own; else, those of a tensor are one */
    double unit, bound; /* of plans that fit, proven */
    bool **never;       /* [var][strategy]: no plan that fits has it; NULL: not known */
    bool **far; /* [var][strategy]: costs too much at the last prices; NULL: not known */
    struct ap_plan best;
    double best_sec; /* INFINITY: none fits */
    struct ap_plan least;
    int64_t least_bytes, least_proven;
    double limit;           /* of the model, that prices are for */
    double excess;          /* least bytes beyond the true one, of plans that keep it */
    double slack;           /* the least of what programs need beyond the model */
    struct hunt_seen *seen; /* memory_mend.c */
    int n_tries, n_solves, n_measured;
    int64_t solve_work; /* of the exact solver, for bounds */
    bool gave_up;       /* it, the last time with all strategies */
    int64_t effort;     /* of solving for prices: about 1 us each */
    int64_t work;       /* what solving took: about 50 ns each */
};

/* Measures the plan, and again with its weights made anew in each phase if it is too
 * large; keeps it if it is the best, or the smallest. The smaller peak. */
int64_t hunt_try(struct hunt *h, const struct ap_plan *plan);
/* The program's peak; keeps the plan as hunt_try does. */
int64_t hunt_measure(struct hunt *h, const struct ap_plan *plan);
/*
 * memory_lp.c: prices for plans to keep the limit, in units of it, price[max_times], from
 * the plans met (inside[cut]; NULL: all); the value that they would have if there were no
 * others, INFINITY where none is found. weight[cut], NULL: not asked for: of the mixture
 * of these plans that has this value.
 */
double hunt_prices(struct hunt *h, double limit, const bool *inside, double *price,
                   double *weight);
/* The same, adding up to 1, for plans to hold little, whatever they cost; the least that
 * a mixture of plans holds at its fullest time. */
double hunt_least_prices(struct hunt *h, double limit, double *price);
/* What a plan met costs at prices, in units of the limit, for what it holds beyond it. */
double hunt_priced(const struct hunt *h, const struct hunt_cut *cut, const double *price,
                   double limit);
/* From now on what plans hold is what their programs do, or what the model says. */
void hunt_look_at(struct hunt *h, bool programs);
/* Prices are as high as allowed, and from now on may be higher. */
bool hunt_pays_more(struct hunt *h, const double *price);
/*
 * Solves at prices (times per_byte) without the strategies out[var][strategy] (NULL:
 * with all); meets the plan. Its proven value, INFINITY when without them there is
 * none, -1 when it got stuck.
 */
double hunt_solve(struct hunt *h, struct hunt_view *v, const double *price,
                  double per_byte, double weight, bool *const *out);
/*
 * Marks strategies in out that no plan has that costs less than sec and keeps the limit,
 * by prices in units of it; false when there is no such plan at all.
 */
bool hunt_rule_out(struct hunt *h, const double *price, double limit, double sec,
                   bool *const *out);
/* Finds h->never, at the times that are priced; false when there is nothing new. */
bool hunt_rule_out_for_good(struct hunt *h);
bool hunt_is_inside(const struct hunt *h, bool *const *out, const int *choice);
/* The last plan met is one met before: its prices tell no more. */
bool hunt_met_before(const struct hunt *h);
/* Measures the last plan met. */
void hunt_try_last(struct hunt *h);
/* ---- memory_prove.c ---- */

#define HUNT_SOLVE_WORK 20 /* of the exact solver, for prices on the way */
#define HUNT_PROOFS     2  /* solutions of the whole for the prices of tied layers */

/* The best plan is as good as what is proven, but for a gap that is good enough. */
bool hunt_is_near(const struct hunt *h);
/* The whole graph is too large for a search: its layers are bounded one by one. */
bool hunt_is_wide(const struct hunt *h);
/* Of the first n prices, in units of the limit: seconds per byte. */
double hunt_price_sum(const struct hunt *h, const double *price, int n, double limit);
/* By the value of the priced problem, whose prices add up to paid seconds per byte. */
void hunt_raise_bound(struct hunt *h, double value, double paid);
/* The bound of the whole graph, at the best prices for tied layers, if these promise more
 * than what is known and not looked at before; tries the plans that it meets. */
void hunt_prove_tied(struct hunt *h);
/* Closes what is left of the gap: more work for a solution where some were given up, then
 * the layers one by one, then branches. */
void hunt_prove(struct hunt *h);
/* memory_branch.c: raises the bound, and tries what it meets. */
void hunt_branch(struct hunt *h);
/* Tries plans of strategies that plans near the bound have, for a limit of the model. */
void hunt_among(struct hunt *h, double limit, const double *price);
/* ---- memory_near.c: which strategies matter ---- */

/* Cells of tables, without those between stars (from node first_star on) and users, which
 * say little; of all strategies, or of those that are not left out. */
int64_t hunt_cells(struct ap_arena *scratch, const struct mem_priced *priced,
                   int first_star, bool all);
/* What solving takes, see hunt.effort. Nodes that stand for copies one by one are wide:
 * combinations of their users' strategies are what takes time then. */
int64_t hunt_effort(const struct hunt *h, int64_t cells);
/* The priced problem that hunt_solve solves. */
void hunt_price_problem(struct ap_arena *scratch, const struct hunt *h,
                        const struct hunt_view *v, const double *price, double per_byte,
                        double weight, bool *const *out, struct mem_priced *priced);
/* Finds h->far at prices for a limit. */
void hunt_find_far(struct hunt *h, double limit, const double *price);
/* Better prices for it among these strategies, in place. */
void hunt_settle(struct hunt *h, double limit, double *price);
/* memory_pieces.c: a bound of the priced problem, at prices in units of the limit, from
 * its layers; choice: one of the plans met that it is close to. */
double hunt_bound_pieces(struct hunt *h, const double *price, const int *choice);
/* memory_blend.c: plans between one that fits and a cheaper one (settled choices). */
void hunt_blend(struct hunt *h, const int *dear, const int *cheap);
/* The best plan takes over what it can of plans that are cheaper but too large. */
void hunt_mend(struct hunt *h);
/* The problem's choice that a plan stands for; NULL when it is not in the space. */
int *hunt_choice(const struct hunt *h, const struct ap_plan *plan);

#endif
