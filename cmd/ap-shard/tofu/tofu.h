/* Private to --algorithm tofu: tensors, operators, one cut, and its dynamic program. */
#ifndef TOFU_H
#define TOFU_H

#include "problem/shard.h"
#include "tool/tool.h"

extern const struct ap_choice shard_tofu_spaces[];

/*
 * A place where a tensor can be cut: a factor of one of its dimensions (dimension and
 * stride). Tied tensors share pieces, whose ids are the ids of their classes.
 */
enum { TOFU_REP = -1, TOFU_RED = -2 }; /* schemes besides "cut at piece p" */

/* The part that one half of the devices holds after the cuts so far: a half of each
 * piece. */
struct tofu_region {
    int n;
    int piece[AP_MAX_AXES];
};

/*
 * The bytes that the two halves of the devices move if a tensor of `size`, held as region
 * r1 in scheme s1, is needed as region r2 in scheme s2 (never TOFU_RED).
 */
double tofu_move(double size, const struct tofu_region *r1, int s1,
                 const struct tofu_region *r2, int s2);

/* An operand or result of a fusion group. */
struct tofu_slot {
    int node;
    bool out;
    double bytes;
    int *piece;                /* per factor: piece, TOFU_REP or TOFU_RED */
    struct tofu_region region; /* as the group wants it */
};

struct tofu_group {
    int n_slots; /* operands first, then results */
    struct tofu_slot *slot;
    int anchor; /* slot whose tensor's scheme the group follows, -1: it has a request */
};

/* One group that has a request of its own, or the two gradients of a contraction. */
struct tofu_unit {
    int n_groups, group[2];
    const int *joint; /* two groups: factor of the second by factor of the first, or -1 */
    int leader;       /* an earlier unit whose request it takes, or itself */
};

struct tofu_net {
    struct ap_arena *arena;
    const struct ap_graph *graph;
    const struct ap_nests *nests;
    const struct ap_mesh *mesh;
    bool cut_only; /* the later space: no tensor is replicated */
    const struct ap_families
        *families;     /* for the steps of the later space; may be NULL */
    const bool *fixed; /* per node: is cut on dimension 0 every time; NULL: none */
    uint64_t seed; /* which of equally good cuts is taken; 0: the first that is found */
    struct tofu_group *groups; /* per fusion group */
    int *class_of;             /* per node: the lowest node that its scheme is tied to */
    struct tofu_region *home;  /* per class: the region that is kept */
    int n_pieces;
    int *piece_of, *piece_dim; /* per piece: its class, its dimension */
    bool *twisted; /* per piece class: two places of one tensor, cannot be a scheme */
    int n_units;
    struct tofu_unit *units;
    int n_tied; /* nodes that are cut like a node of an earlier step */
};

/* Slots, pieces, ties and pairs of gradients; nothing cut yet. */
void tofu_net_build(struct tofu_net *net);
/* Makes everything whole again. */
void tofu_net_reset(struct tofu_net *net);

/* Per node: the node of the first step (tofu_steps.c) with the same scheme, or itself;
 * families may be NULL. */
int *tofu_steps(struct ap_arena *arena, const struct ap_graph *g,
                const struct ap_families *families);

/* Usable: may be split and has more than one element. */
bool tofu_factor_usable(const struct ap_nest *nest, int f);

struct tofu_stats {
    int n_vars;       /* schemes and requests to decide, first cut */
    int64_t n_states; /* their states together, first cut */
    int64_t largest;  /* table of the dynamic program, over all cuts */
    int n_fixed;      /* decided by themselves because a table grew too large */
    double cut_bytes[AP_MAX_AXES];
};

/*
 * Halves all tensors once along axis `axis`: sets that axis of plan->choice and advances
 * the regions; the bytes that one pair of halves moves are in stats->cut_bytes[axis].
 */
void tofu_cut(struct tofu_net *net, struct ap_plan *plan, int axis,
              struct tofu_stats *stats);

/* ---- the dynamic program ---- */

struct tofu_table {
    int n;
    int *var;  /* ascending */
    double *v; /* the last variable varies fastest */
    bool dead;
};

struct tofu_list {
    int n, cap, n_alive;
    int *table;
};

/* Minimise the sum of tables over variables with few states. */
struct tofu_dp {
    struct ap_arena *arena;
    int n_vars;
    const int *n_states; /* 1..255 each */
    int64_t max_table;   /* entries */
    double **unary;      /* per variable */
    int n_tables, cap_tables;
    struct tofu_table *tables;
    struct tofu_list *of; /* per variable: its tables */
    double constant;
    int64_t largest;
    int n_fixed;
};

void tofu_dp_init(struct tofu_dp *dp, struct ap_arena *arena, int n_vars,
                  const int *n_states);
/* Adds a cost over two different variables, [state of x][state of y]. */
void tofu_dp_add(struct tofu_dp *dp, int x, int y, const double *cost);
/*
 * Best states; levels are counted from variable `root`. The answer is optimal if
 * dp->n_fixed is 0. Frees what init and add have allocated outside the arena.
 */
void tofu_dp_solve(struct tofu_dp *dp, int root, uint8_t *state);

/* The logical mesh "2x4" as halvings "2x2x2" (in the arena); -1 when an axis is no power
   of two or there are too many. */
int tofu_mesh(struct ap_arena *arena, const struct ap_mesh *mesh, struct ap_mesh *halves,
              struct ap_err *err);

#endif
