/* Private to the generator of random graphs. */
#ifndef AP_GEN_PRIV_H
#define AP_GEN_PRIV_H

#include "gen.h"

#define MAX_NODES 400
#define SMALL     3.0

struct gen {
    struct ap_arena *arena;
    struct gen_rng rng;
    int n, n_params;
    struct ap_node node[MAX_NODES];
    double bound[MAX_NODES]; /* |values| <= bound, integers */
    bool in_pool[MAX_NODES];
    int n_reducers;
    struct ap_reducer reducer[24];
    int red_id[AP_N_REDS][AP_N_DTYPES]; /* reducer + 1 */
};

/* Largest integer up to which the type is exact (a round figure below it). */
double gen_max_exact(enum ap_dtype t);
struct ap_shape gen_shape_of(struct gen *g, enum ap_dtype t, int rank,
                             const int64_t *dims);
struct ap_attrs *gen_attrs_new(struct gen *g);
struct ap_ints gen_ints(struct gen *g, int n, const int64_t *v);

/* Adds a node whose values are at most bound; returns its id. */
int gen_add(struct gen *g, enum ap_op op, struct ap_shape shape, struct ap_attrs *a,
            int n_in, const int *in, double bound);
int gen_add1(struct gen *g, enum ap_op op, struct ap_shape s, struct ap_attrs *a, int x,
             double bound);
int gen_add2(struct gen *g, enum ap_op op, struct ap_shape s, struct ap_attrs *a, int x,
             int y, double bound);
int gen_scalar(struct gen *g, enum ap_dtype t, double v);
int gen_broadcast_scalar(struct gen *g, int x, const struct ap_shape *like);
int gen_filled(struct gen *g, double v, const struct ap_shape *like);
/* Floor or ceil, and clamp to [-SMALL, SMALL]; x must not hold NaN. */
int gen_tame(struct gen *g, int x);
/* Tames x if its bound came near what its type holds exactly. */
int gen_settle(struct gen *g, int x);

typedef bool want_fn(const struct ap_shape *s);
bool gen_any(const struct ap_shape *s);
bool gen_number(const struct ap_shape *s);
bool gen_is_f(const struct ap_shape *s);
bool gen_is_f_ranked(const struct ap_shape *s);
bool gen_ranked(const struct ap_shape *s);
bool gen_is_signed(const struct ap_shape *s);
/* A random value that fits, newer ones preferred; -1 for none. */
int gen_pick(struct gen *g, want_fn *want);
/* A value of x's shape: from the pool, or x itself. */
int gen_pick_like(struct gen *g, int x);
int gen_reducer(struct gen *g, enum ap_red red, enum ap_dtype t);
int gen_custom_reducer(struct gen *g, enum ap_dtype t, bool argmax);

/* gen_elem.c: families of operators */
void gen_unary(struct gen *g), gen_binary(struct gen *g),
    gen_inexact_binary(struct gen *g), gen_integer_ops(struct gen *g),
    gen_bits(struct gen *g), gen_spectrum(struct gen *g), gen_matrices(struct gen *g),
    gen_logic(struct gen *g), gen_convert(struct gen *g);

/* Adds one random operator (and what tames its result). */
void gen_op(struct gen *g);

#endif
