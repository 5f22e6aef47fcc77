/* Private to memory/: a search for choices within a limit, under way. */
#ifndef AP_MEMORY_SEARCH_H
#define AP_MEMORY_SEARCH_H

#include "solve/memory.h"

/*
 * Parameters of the search. Gaps and parts are relative; effort is in units of about 1
 * us. `scripts/bench/shard-table --limits` on ap-model's models and on GPT-2 124M shows
 * what each is worth: price, bound, gap and CPU seconds of a row per limit.
 */
struct memory_tuning {
    double gap, gap_small; /* good enough; of small problems, where trying is cheap */
    double solved_to;      /* part of that gap to which priced problems are solved */
    double open_to;        /* the same, of the gap that is still open, if that is more */
    double cheap;          /* keeping a copy costs nothing below this part of making it */
    double cheap_wait;     /* the same of its wait between users of a phase */
    double nearest;        /* part of the strategies that prices are made among first */
    double step, fine;     /* parts of the limit: to lower ones, between two of them */
    double lower;          /* of a limit that no choice met: the next one */
    double highest_price;  /* of the whole memory, in choices without a limit */
    int64_t effort;        /* of all solving for prices */
    int64_t round_effort;  /* of rounds of prices beyond the first ones */
    int64_t program_effort; /* of measuring programs */
    int solve_work,
        proof_work; /* of the exact solver; where a bound is all that is left */
    int few_rounds, rounds, most_rounds; /* of prices, per limit: costly, enough, cheap */
    int branch_rounds, settle_rounds;    /* per branch; among few strategies */
    int tries, most_tries;               /* of lower limits; in small problems */
    int n_lower;                         /* limits looked at for programs that fit */
    int n_fitting;                       /* choices that may fit: measured at a time */
    int n_among;                         /* choices whose strategies are combined */
    int among_solves, most_among_solves; /* of such a combination */
    double among_work;                   /* strategies * solutions of it */
    double changes;    /* of choices in small problems, looked at one by one */
    double tries_work; /* strategies * us of a program * tries */
    int64_t whole;     /* strategies of a problem that is bounded uncut */
    int set_states;    /* of a node for all copies of a tensor */
    double set_cells, all_set_cells; /* of one of its tables; of all of them */
};
extern const struct memory_tuning memory_tuning;

/* ---- memory_choice.c ---- */

/* Whether the users of a copy with this turn in a phase ask for it. */
bool copy_asks(const struct ap_memory *m, const struct ap_copy *copy, bool later,
               int turn, const int *choice);
/* How often a step makes a copy: at most once if it is kept. */
int64_t copy_times(const struct ap_memory *m, const struct ap_copy *copy,
                   const int *choice, bool again);
/* The level that the users' strategies come to. */
int usage_level(const struct ap_usage_max *most, const int *choice);

/* ---- memory_price.c: the problem at prices of memory ---- */

/* What a copy costs between its users of a phase; without a set, a node whose states are
 * spans of these users. */
struct priced_wait {
    int copy, node;
    bool later;
    int first, n; /* turns of these users */
    double *cost; /* [turn - first][strategy of its home]: until the next one */
    double *over; /* the same while that user runs, if it does not ask for it */
};

struct priced_problem {
    int n_sets; /* memory_copy_set.c: tensors whose copies are one node */
    struct priced_set *set;
    int *set_of; /* [copy], -1 */
    int n_waits;
    struct priced_wait *wait;
    int *most; /* [ap_usage_max]: a node that says its level; -1: it costs nothing */
    struct ap_problem problem; /* no more than the true value of any choice */
    double **cost;             /* of problem: may be changed */
    double **kept;             /* [copy][strategy of its home]: price; NULL: none */
    int *later; /* [copy]: node of the copy for later phases, -1: there is none */
};

/*
 * The problem in which costs count `weight` (0 or 1) and usage costs its prices;
 * before[t]: the sum of prices of the times before t. share[copy], 0 .. 1: how much of
 * what keeping a copy saves is taken off the later one's cost. out[var][strategy]: is
 * left out (NULL: nothing is, in all or of a variable).
 */
void price_problem(struct ap_arena *arena, const struct ap_memory *m,
                   const double *before, double weight, const double *share,
                   bool *const *out, struct priced_problem *priced);
/* Moves shares from copies that the solution makes alone; false when there are none. */
bool price_move_shares(const struct ap_memory *m, const struct priced_problem *priced,
                       const int *choice, double step, double *share);
/* A settled choice as one of the priced problem, and back (in place). */
int *priced_start(struct ap_arena *arena, const struct ap_memory *m,
                  const struct priced_problem *priced, const int *choice);
void priced_states(const struct ap_memory *m, const struct priced_problem *priced,
                   int *choice);

/* ---- the search ---- */

/* A choice met at some prices: a cut of the linear program that makes the next ones. */
struct search_cut {
    int *choice;   /* settled */
    double sec;    /* without prices */
    int64_t *held; /* [time], by the model or, while programs are looked at, measured */
    int64_t peak;  /* the most of these */
    bool tried;    /* measured because its program may fit */
    int64_t *by_model, *by_program; /* held is one of these, the second one may be NULL */
};

/* A problem with memory that is priced: the whole one, or with repeated nodes tied. */
struct search_view {
    const struct ap_memory *model;
    double *share; /* [copy], see price_problem */
    bool moved;    /* some share, by the last solution */
};

struct memory_search {
    struct ap_arena *arena;
    const struct ap_memory_task *task;
    const struct ap_memory *model; /* of the whole */
    struct search_view whole;
    struct search_view *tied; /* prices are looked for here; NULL: in the whole */
    int64_t n_strategies;     /* of the variables, all together */
    int n_cuts, max_cuts;
    struct search_cut *cut;
    int n_times, max_times, *time;   /* those that are priced */
    double highest;                  /* that a price may be */
    double *best_price;              /* of the highest value for the limit */
    double best_value, proven_value; /* this value; the one whose prices are proven */
    double *last_price;              /* the same for the limit that prices are for */
    double near;                     /* a gap that is good enough */
    bool by_program;                 /* what choices hold is what their programs do */
    double unit, bound;              /* of choices that fit, proven */
    bool **far; /* [var][strategy]: costs too much at the last prices; NULL: not known */
    int *best;
    double best_sec; /* INFINITY: none fits */
    int64_t least_proven;
    double limit;             /* of the model, that prices are for */
    double excess;            /* least bytes beyond the true one, of choices within it */
    double slack;             /* the least of what programs need beyond the model */
    struct search_seen *seen; /* memory_mend.c */
    int n_tries, n_solves, n_measured;
    int64_t solve_work; /* of the exact solver, for bounds */
    bool gave_up;       /* it, the last time with all strategies */
    int64_t effort;     /* of solving for prices: about 1 us each */
};

/* ---- memory_mend.c: measuring, and taking over from choices that are too large ---- */

/* The program's peak; keeps the choice if it is the best that fits. */
int64_t search_measure(struct memory_search *ms, const int *choice);
/* The same, and with all copies recomputed if it is too large. The smaller peak. */
int64_t search_try(struct memory_search *ms, const int *choice);
/* The best choice takes over what it can of choices that are cheaper but too large. */
void search_mend(struct memory_search *ms);
/* In a small problem: choices met change a few variables each. */
void search_change(struct memory_search *ms);

/* ---- memory_lp.c ---- */

/*
 * Prices for choices to keep the limit, in units of it, price[max_times], from the cuts
 * (inside[cut]; NULL: all); the value that they would have if there were no others,
 * INFINITY where none is found. weight[cut], NULL: not asked for: of the mixture of these
 * choices that has this value.
 */
double search_prices(struct memory_search *ms, double limit, const bool *inside,
                     double *price, double *weight);
/* The same, adding up to 1, for choices to hold little, whatever they cost; the least
 * that a mixture of choices holds at its fullest time. */
double search_least_prices(struct memory_search *ms, double limit, double *price);

/* ---- memory_search.c ---- */

#define SEARCH_PROOFS 2 /* solutions of the whole for the prices of tied layers */

/* What a cut costs at prices, in units of the limit, for what it holds beyond it. */
double search_priced(const struct memory_search *ms, const struct search_cut *cut,
                     const double *price, double limit);
/* Prices are as high as allowed, and from now on may be higher. */
bool search_pays_more(struct memory_search *ms, const double *price);
/*
 * Solves at prices (times per_byte) without the strategies out[var][strategy] (NULL:
 * with all); meets the choice. Its proven value, INFINITY when without them there is
 * none, -1 when it got stuck.
 */
double search_solve(struct memory_search *ms, struct search_view *v, const double *price,
                    double per_byte, double weight, bool *const *out);
bool search_is_inside(const struct memory_search *ms, bool *const *out,
                      const int *choice);
/* Time is up. */
bool search_is_late(const struct memory_search *ms);
/* The last cut is one met before: its prices tell no more. */
bool search_met_before(const struct memory_search *ms);
/* Measures the last cut. */
void search_try_last(struct memory_search *ms);

/* ---- memory_prove.c ---- */

/* The best choice is as good as what is proven, but for a gap that is good enough. */
bool search_is_near(const struct memory_search *ms);
/* The whole problem is too large for a search: its layers are bounded one by one. */
bool search_is_wide(const struct memory_search *ms);
/* Of the first n prices, in units of the limit: seconds per byte. */
double search_price_sum(const struct memory_search *ms, const double *price, int n,
                        double limit);
/* By the value of the priced problem, whose prices add up to paid seconds per byte. */
void search_raise_bound(struct memory_search *ms, double value, double paid);
/* The bound of the whole, at the best prices for tied layers, if these promise more than
 * what is known and not looked at before; tries the choices that it meets. */
void search_prove_tied(struct memory_search *ms);
/* Closes what is left of the gap: more work for a solution where some were given up, then
 * the layers one by one. */
void search_prove(struct memory_search *ms);

/* ---- memory_branch.c ---- */

/* Tries choices of strategies that cuts near the bound have, for a limit of the model. */
void search_among(struct memory_search *ms, double limit, const double *price);
/* Better prices among these strategies, in place. */
void search_settle(struct memory_search *ms, double limit, double *price);

/* ---- memory_near.c: which strategies matter ---- */

/* Cells of tables of strategies that are not left out, without those between copy sets
 * (from node first_set on) and users, which say little. */
int64_t search_cells(struct ap_arena *scratch, const struct priced_problem *priced,
                     int first_set);
/* Where the problem is priced: see price_problem, search_solve. */
struct at_prices {
    const double *price; /* of the times that are priced */
    double per_byte, weight;
    bool *const *out;
};
/* The priced problem that search_solve solves. */
void search_price_problem(struct ap_arena *scratch, const struct memory_search *ms,
                          const struct search_view *v, const struct at_prices *at,
                          struct priced_problem *priced);
/* Finds ms->far at prices for a limit. */
void search_find_far(struct memory_search *ms, double limit, const double *price);

/* ---- memory_pieces.c ---- */

/* A bound of the priced problem, at prices in units of the limit, from its layers;
 * choice: one of those met that it is close to. */
double search_bound_pieces(struct memory_search *ms, const double *price,
                           const int *choice);

#endif
