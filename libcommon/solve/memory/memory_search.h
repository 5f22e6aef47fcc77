/* Private to memory/: the state of a search for choices within a limit. */
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
    double step, fine;     /* parts of the limit: to lower ones, between two of them */
    double lower;          /* of a limit that no choice met: the next one */
    double highest_price;  /* of the whole memory, in choices without a limit */
    int64_t effort;        /* of all solving for prices */
    int64_t round_effort;  /* of rounds of prices beyond the first ones */
    int64_t program_effort; /* of measuring programs */
    int solve_work,
        proof_work; /* of the exact solver; where a bound is all that is left */
    int few_rounds, rounds, most_rounds; /* of prices, per limit: costly, enough, cheap */
    int tries, most_tries;               /* of lower limits; in small problems */
    int n_lower;                         /* limits looked at for programs that fit */
    double changes;    /* of choices in small problems, looked at one by one */
    double tries_work; /* strategies * us of a program * tries */
    int64_t whole;     /* strategies of a problem that is bounded uncut */
    int set_states;    /* of a node for all copies of a tensor */
    double set_cells, all_set_cells; /* of one of its tables; of all of them */
};
extern const struct memory_tuning memory_tuning;

/* ---- memory_choice.c ---- */

/* Whether the users of a copy with this turn in a phase need it. */
bool copy_asks(const struct ap_memory *m, const struct ap_copy *copy, bool later,
               int turn, const int *choice);
/* How often a step makes a copy: at most once if it is kept. */
int64_t copy_times(const struct ap_memory *m, const struct ap_copy *copy,
                   const int *choice, bool again);
/* The level that the users' strategies reach. */
int usage_level(const struct ap_usage_max *most, const int *choice);

/* ---- memory_price.c: the problem at prices of memory ---- */

/* The cost of a copy between its users of a phase. Without a set it is a node whose
 * states are spans of these users. */
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
    struct ap_problem problem; /* its value is a lower bound for every choice */
    double **cost;             /* of problem: may be changed */
    double **kept;             /* [copy][strategy of its home]: price; NULL: none */
    int *later;                /* [copy]: node of the copy for later phases, or -1 */
};

/*
 * The problem in which costs count `weight` (0 or 1) and usage costs its prices;
 * before[t]: the sum of prices of the times before t. share[copy], 0 .. 1: the share of
 * the saving by keeping a copy that is subtracted from the later copy's cost.
 */
void price_problem(struct ap_arena *arena, const struct ap_memory *m,
                   const double *before, double weight, const double *share,
                   struct priced_problem *priced);
/* Moves shares from copies that the solution makes without the other copy; false if there
 * are none. */
bool price_move_shares(const struct ap_memory *m, const struct priced_problem *priced,
                       const int *choice, double step, double *share);
/* Translates a settled choice to a choice of the priced problem, and back (in place). */
int *priced_start(struct ap_arena *arena, const struct ap_memory *m,
                  const struct priced_problem *priced, const int *choice);
void priced_states(const struct ap_memory *m, const struct priced_problem *priced,
                   int *choice);

/* ---- the search ---- */

/* A choice that was optimal at some prices: a cut of the linear program that gives the
 * next prices. */
struct search_cut {
    int *choice;                    /* settled */
    double sec;                     /* without prices */
    int64_t *held;                  /* [time], by the model or, with programs, measured */
    int64_t peak;                   /* the largest of held */
    int64_t *by_model, *by_program; /* held is one of these two; by_program may be NULL */
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
    double unit, bound;              /* proven lower bound of choices that fit */
    int *best;
    double best_sec; /* INFINITY: none fits */
    int64_t least_proven;
    double limit;  /* of the model, that prices are for */
    double excess; /* smallest overshoot of the true limit among choices within the
                      model's limit */
    double slack; /* the smallest number of bytes that a program needs beyond the model */
    struct search_seen *seen; /* memory_mend.c */
    int n_tries, n_solves, n_measured;
    int64_t solve_work; /* of the exact solver, for bounds */
    bool gave_up;       /* the exact solver did, the last time with all strategies */
    int64_t effort;     /* of solving for prices: about 1 us each */
};

/* ---- memory_mend.c: measuring, and taking over from choices that are too large ---- */

/* The program's peak; keeps the choice if it is the best that fits. */
int64_t search_measure(struct memory_search *ms, const int *choice);
/* The same, and also with all copies recomputed if the program is too large. Returns the
 * smaller peak. */
int64_t search_try(struct memory_search *ms, const int *choice);
/* The best choice takes over strategies of choices that are cheaper but too large. */
void search_mend(struct memory_search *ms);
/* In a small problem: changes a few variables of each known choice. */
void search_change(struct memory_search *ms);

/* ---- memory_lp.c ---- */

/*
 * Prices that make choices keep the limit, in units of it, price[max_times], from the
 * cuts. Returns the value at these prices if there were no other choices; INFINITY if no
 * prices are found.
 */
double search_prices(struct memory_search *ms, double limit, double *price);
/* Prices with sum 1 that make choices hold little memory, whatever they cost. Returns the
 * least memory that a mixture of choices holds at its fullest time. */
double search_least_prices(struct memory_search *ms, double limit, double *price);

/* ---- memory_search.c ---- */

#define SEARCH_PROOFS 2 /* solutions of the whole for the prices of tied layers */

/* The cost of a cut at prices, in units of the limit, for memory above the limit. */
double search_priced(const struct memory_search *ms, const struct search_cut *cut,
                     const double *price, double limit);
/*
 * Solves at prices (times per_byte); adds the choice as a cut. Returns its proven value,
 * -1 if the solver gave up.
 */
double search_solve(struct memory_search *ms, struct search_view *v, const double *price,
                    double per_byte, double weight);
/* The priced problem that search_solve solves. */
void search_price_problem(struct ap_arena *scratch, const struct memory_search *ms,
                          const struct search_view *v, const double *price,
                          double per_byte, double weight, struct priced_problem *priced);
/* Whether the time is over. */
bool search_is_late(const struct memory_search *ms);
/* Measures the last cut. */
void search_try_last(struct memory_search *ms);

/* ---- memory_prove.c ---- */

/* Whether the best choice is within a sufficient gap of the proven bound. */
bool search_is_near(const struct memory_search *ms);
/* Whether the whole problem is too large for a search, so that its layers are bounded one
 * by one. */
bool search_is_wide(const struct memory_search *ms);
/* The sum of the first n prices, given in units of the limit, as seconds per byte. */
double search_price_sum(const struct memory_search *ms, const double *price, int n,
                        double limit);
/* Raises the bound by the value of the priced problem, whose prices have the sum `paid`
 * in seconds per byte. */
void search_raise_bound(struct memory_search *ms, double value, double paid);
/* Computes the bound of the whole problem at the best prices for tied layers, if these
 * promise more than the known bound and are new; tries the choices that it finds. */
void search_prove_tied(struct memory_search *ms);
/* Closes the remaining gap: solves with more work if solutions were given up, then bounds
 * the layers one by one. */
void search_prove(struct memory_search *ms);

/* ---- memory_pieces.c ---- */

/* A bound of the priced problem, at prices in units of the limit, from its layers;
 * choice: a known choice that is close to the optimum. */
double search_bound_pieces(struct memory_search *ms, const double *price,
                           const int *choice);

#endif
