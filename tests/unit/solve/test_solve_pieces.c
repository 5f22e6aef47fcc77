/* Bounds from pieces, and what strategies cost at least, against the whole problem. */
#include <stdio.h>

#include "solve/pieces.h"
#include "solve/solve.h"
#include "solve_gen.h"
#include "tap.h"

#define WIDTH  5 /* nodes of a layer */
#define LAYERS 9
#define MOST   4

/* A layer: every instance has the same costs; its edge to the one before included. */
struct layer {
    int n[WIDTH];
    double cost[WIDTH][MOST];
    double edge[WIDTH][WIDTH][MOST * MOST]; /* i < k */
    double back[MOST * MOST];               /* [last of the layer before][first] */
};

static void fill(double *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = 1e-3 * gen_int(0, 50);
}

static void make_layer(struct layer *l)
{
    memset(l, 0, sizeof *l);
    for (int i = 0; i < WIDTH; i++) {
        l->n[i] = gen_int(2, MOST);
        fill(l->cost[i], l->n[i]);
    }
    for (int i = 0; i < WIDTH; i++)
        for (int k = i + 1; k < WIDTH; k++)
            fill(l->edge[i][k], gen_int(0, 2) ? l->n[i] * l->n[k] : 0);
    fill(l->back, l->n[WIDTH - 1] * l->n[0]);
}

/* Adds a layer, and the edge from node `before` (-1: none); returns its first node. */
static int put_layer(struct gen *g, const struct layer *l, int before)
{
    int first = g->n_nodes;

    for (int i = 0; i < WIDTH; i++)
        memcpy(gen_node(g, l->n[i]), l->cost[i], (size_t)l->n[i] * sizeof(double));
    for (int i = 0; i < WIDTH; i++)
        for (int k = i + 1; k < WIDTH; k++)
            memcpy(gen_edge(g, first + i, first + k), l->edge[i][k],
                   (size_t)(l->n[i] * l->n[k]) * sizeof(double));
    if (before >= 0)
        memcpy(gen_edge(g, before, first), l->back,
               (size_t)(l->n[WIDTH - 1] * l->n[0]) * sizeof(double));
    return first;
}

/* LAYERS layers in a row. */
static struct ap_problem make_whole(struct ap_arena *arena, const struct layer *l)
{
    struct gen g = {.arena = arena};
    int before = -1;

    for (int i = 0; i < LAYERS; i++)
        before = put_layer(&g, l, before) + WIDTH - 1;
    return gen_problem(&g);
}

/*
 * The first and the last layer as one piece, all between as another: each charges its
 * edge back, with a proxy for the layer before.
 */
static struct ap_pieces make_pieces(struct ap_arena *arena, const struct layer *l)
{
    struct ap_subproblem *part = AP_NEW_N(arena, 2, struct ap_subproblem);
    int *n = AP_NEW_N(arena, 1, int);
    struct gen ends = {.arena = arena}, middle = {.arena = arena};

    for (int i = 0; i < 2; i++) {
        struct ap_subproblem_term *term = AP_NEW_N(arena, 2, struct ap_subproblem_term);
        struct gen *g = i ? &middle : &ends;
        int own = i ? -1 : put_layer(g, l, -1);
        int proxy = g->n_nodes;
        gen_node(g, l->n[WIDTH - 1]);
        if (own < 0)
            own = put_layer(g, l, proxy);
        else
            put_layer(g, l, proxy);
        term[0] = (struct ap_subproblem_term){0, proxy, 1};
        term[1] = (struct ap_subproblem_term){0, own + WIDTH - 1, -1};
        part[i] = (struct ap_subproblem){.problem = gen_problem(g),
                                         .weight = i ? LAYERS - 2 : 1,
                                         .n_terms = 2,
                                         .term = term};
    }
    n[0] = l->n[WIDTH - 1];
    return (struct ap_pieces){2, part, 1, n};
}

/* Gives the pieces a choice of the whole: that of its first, second and last layer. */
static void set_starts(struct ap_arena *arena, struct ap_pieces *pieces,
                       const int *choice, const int **start)
{
    int *ends = AP_NEW_N(arena, 2 * WIDTH + 1, int);
    int *middle = AP_NEW_N(arena, WIDTH + 1, int);
    struct ap_subproblem *piece = ap_arena_dup(arena, pieces->piece, 2 * sizeof *piece);

    memcpy(ends, choice, WIDTH * sizeof(int));
    memcpy(ends + WIDTH + 1, choice + WIDTH * (LAYERS - 1), WIDTH * sizeof(int));
    ends[WIDTH] = choice[WIDTH * (LAYERS - 1) - 1];
    memcpy(middle, choice + WIDTH - 1, (WIDTH + 1) * sizeof(int));
    start[0] = ends;
    start[1] = middle;
    for (int i = 0; i < 2; i++)
        piece[i].start = start[i];
    pieces->piece = piece;
}

/* A search that finds the whole's optimum, at once or when asked to solve. */
struct finder {
    bool at_once;
    int n_priced, n_solved;
    double objective;
    const int *start[2];
};

static double price(void *arg, int *const *choice)
{
    struct finder *f = arg;
    f->n_priced += choice[0] && choice[1];
    return f->at_once ? f->objective : INFINITY;
}

static int find(void *arg, double share, double *objective, const int **start,
                struct ap_err *err)
{
    struct finder *f = arg;
    f->n_solved++;
    if (share <= 0 || share > 1)
        return ap_err_set(err, "a share of %g", share);
    *objective = f->objective;
    start[0] = f->start[0];
    start[1] = f->start[1];
    return 0;
}

/* Known choices and a search on the way change no bound but by what is cut. */
static void check_known(struct ap_arena *arena, const struct ap_pieces *pieces,
                        const struct ap_pieces_params *known, const int *choice,
                        const struct ap_pieces_answer *one)
{
    struct ap_pieces with = *pieces;
    struct ap_pieces_params params = *known;
    struct ap_pieces_answer answer;
    struct ap_err err = {0};
    struct finder f = {.objective = known->objective};
    const struct ap_pieces_search search = {&f, price, find, NULL};

    with.piece = ap_arena_dup(arena, pieces->piece, 2 * sizeof *pieces->piece);
    set_starts(arena, &with, choice, f.start);
    params.max_rounds = 1;
    bool ok = ap_pieces_bound(arena, &with, &params, &answer, &err) == 0;
    CHECK(ok && fabs(answer.bound - one->bound) <= 1e-9 * one->bound,
          "a round's bound does not depend on what is known");
    params.search = &search;
    params.max_rounds = 8;
    for (int i = 0; i < 2; i++) {
        f.at_once = i == 0;
        ok = ok && ap_pieces_bound(arena, pieces, &params, &answer, &err) == 0;
        CHECK(ok && answer.bound <= f.objective && answer.objective == f.objective &&
                  answer.bound >= one->bound * (1 - 1e-9) && f.n_priced > i,
              "a search on the way leaves the bound valid %s", err.msg);
    }
    CHECK(f.n_solved >= 1, "what has no price is solved");
}

static void test_pieces(void)
{
    int n_close = 0, n_better = 0;

    for (gen_state = 1; gen_state <= 60; gen_state++) {
        struct ap_arena arena = {0};
        uint64_t seed = gen_state;
        struct layer l;
        struct ap_solve_params exact = {0};
        struct ap_solution sol;
        struct ap_err err = {0};
        struct ap_pieces_answer one, many;

        make_layer(&l);
        const struct ap_problem whole = make_whole(&arena, &l);
        const struct ap_pieces pieces = make_pieces(&arena, &l);
        bool ok = ap_solve_exact(&arena, &whole, &exact, &sol, &err) == 0;
        struct ap_pieces_params params = {
            .objective = sol.objective * (1 + 1e-6), .max_rounds = 1, .work_limit = 100};
        ok = ok && ap_pieces_bound(&arena, &pieces, &params, &one, &err) == 0;
        if (ok)
            check_known(&arena, &pieces, &params, sol.choice, &one);
        params.max_rounds = 20;
        ok = ok && ap_pieces_bound(&arena, &pieces, &params, &many, &err) == 0;
        CHECK(ok && one.bound <= sol.objective * (1 + 1e-9) &&
                  many.bound <= sol.objective * (1 + 1e-9) && many.bound >= one.bound,
              "bounds stay below the whole's optimum, seed %d", (int)seed);
        n_close += many.bound >= 0.99 * sol.objective;
        n_better += many.bound > one.bound;
        gen_state = seed;
        ap_arena_free(&arena);
    }
    CHECK(n_close >= 40, "most bounds are within 1 %% (%d of 60)", n_close);
    CHECK(n_better > 0, "cutting planes raise bounds (%d)", n_better);
}

static void test_no_solution(void)
{
    struct ap_arena arena = {0};
    struct ap_pieces_params params = {.objective = 1, .max_rounds = 4, .work_limit = 10};
    struct ap_pieces_answer answer;
    struct ap_err err = {0};
    struct layer l;

    gen_state = 7;
    make_layer(&l);
    for (int s = 0; s < MOST; s++)
        l.cost[2][s] = AP_FORBIDDEN;
    const struct ap_pieces pieces = make_pieces(&arena, &l);
    CHECK(ap_pieces_bound(&arena, &pieces, &params, &answer, &err) != 0 && err.msg[0],
          "pieces without a solution are named: %s", err.msg);
    ap_arena_free(&arena);
}

int main(void)
{
    test_pieces();
    test_no_solution();
    return tap_done();
}
