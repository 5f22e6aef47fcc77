/*
 * Problem: bound the priced problem of a deep graph. Each layer costs a little more than
 * message passing tells; a search over the whole has to find that out for all layers at
 * once, which takes exponentially long in their number. Idea: Lagrangian decomposition,
 * as in fold_bound.c, of any priced problem: a node belongs to the layer of its variable,
 * and nodes without a layer form a piece of their own. A table is charged in one piece,
 * in which a proxy takes the place of the node at the other end if that is elsewhere.
 * Pieces are solved exactly, so that the additional costs of all layers add up; libcommon
 * finds the multipliers (pieces.ms). Cost: per round a solution of every piece.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "solve/memory/memory_search.h"
#include "base/array.h"
#include "solve/memory/memory_copy_set.h"
#include "solve/pieces.h"

#define MOST_ROUNDS 4  /* trials of multipliers */
#define PIECE_WORK  40 /* of a piece's solver, per trial */

/* It takes the place of a node in another piece than its own. */
struct proxy {
    int node, cell, place;
    int before; /* another one of the node, -1 */
};

struct cutter {
    struct ap_arena *arena;
    const struct ap_problem *p;
    int n_pieces;
    int *cell;  /* [node]: its piece */
    int *place; /* [node]: in its piece */
    int *last;  /* [node]: its last proxy, -1 */
    int n_proxies, cap;
    struct proxy *proxy;
    struct ap_subproblem *piece;
    struct ap_problem_edge **edges;
};

/* ---- where nodes belong ---- */

static int home_of(const struct ap_memory *m, int copy)
{
    return m->problem->edges[m->copy[copy].home_edge].a;
}

static void find_cells(struct cutter *k, const struct memory_search *ms,
                       const struct priced_problem *priced)
{
    const struct ap_memory *m = ms->model;

    k->n_pieces = 1 + ms->task->n_cells;
    k->cell = AP_NEW_N(k->arena, k->p->n_nodes + 1, int);
    for (int v = 0; v < m->n_vars; v++)
        k->cell[v] = 1 + ms->task->cell[v];
    for (int c = 0; c < m->n_copies; c++) {
        const int home = home_of(m, c);
        k->cell[m->n_vars + c] = k->cell[home];
        if (priced->later[c] >= 0)
            k->cell[priced->later[c]] = k->cell[home];
    }
    for (int i = 0; i < priced->n_sets; i++)
        k->cell[priced->set[i].node] = k->cell[priced->set[i].home];
    for (int i = 0; i < priced->n_waits; i++)
        k->cell[priced->wait[i].node] = k->cell[home_of(m, priced->wait[i].copy)];
    for (int i = 0; i < m->n_maxima; i++)
        if (priced->most[i] >= 0)
            k->cell[priced->most[i]] = k->cell[m->maxima[i].home];
}

/* ---- pieces ---- */

/* The node's place in a piece: its own, or that of a proxy. */
static int place_in(struct cutter *k, int cell, int node)
{
    if (k->cell[node] == cell)
        return k->place[node];
    for (int i = k->last[node]; i >= 0; i = k->proxy[i].before)
        if (k->proxy[i].cell == cell)
            return k->proxy[i].place;
    AP_ROOM(k->proxy, k->n_proxies, k->cap);
    k->proxy[k->n_proxies] =
        (struct proxy){node, cell, k->piece[cell].problem.n_nodes++, k->last[node]};
    k->last[node] = k->n_proxies;
    return k->proxy[k->n_proxies++].place;
}

/* A table that says what a node stands for is charged where that node is. */
static int charged_in(const struct cutter *k, const struct ap_problem_edge *e, int n_vars)
{
    return k->cell[e->b >= n_vars ? e->b : e->a];
}

static void cut_edges(struct cutter *k, int n_vars)
{
    const struct ap_problem *p = k->p;
    int *n = AP_NEW_N(k->arena, k->n_pieces, int);

    for (int e = 0; e < p->n_edges; e++)
        n[charged_in(k, &p->edges[e], n_vars)]++;
    k->edges = AP_NEW_N(k->arena, k->n_pieces, struct ap_problem_edge *);
    for (int i = 0; i < k->n_pieces; i++)
        k->edges[i] = AP_NEW_N(k->arena, n[i] + 1, struct ap_problem_edge);
    for (int e = 0; e < p->n_edges; e++) {
        const struct ap_problem_edge *from = &p->edges[e];
        const int cell = charged_in(k, from, n_vars);
        struct ap_problem *to = &k->piece[cell].problem;
        k->edges[cell][to->n_edges++] = (struct ap_problem_edge){
            place_in(k, cell, from->a), place_in(k, cell, from->b), from->cost};
    }
}

/* A proxy costs nothing, but what the node never has. */
static const double *proxy_cost(struct cutter *k, int node)
{
    const int n = k->p->n_strategies[node];
    double *cost = AP_NEW_N(k->arena, n, double);

    for (int s = 0; s < n; s++)
        cost[s] = k->p->cost[node][s] >= AP_FORBIDDEN ? AP_FORBIDDEN : 0;
    return cost;
}

static void fill_nodes(struct cutter *k, const int *start)
{
    int **n = AP_NEW_N(k->arena, k->n_pieces, int *);
    int **choice = AP_NEW_N(k->arena, k->n_pieces, int *);
    const double ***cost = AP_NEW_N(k->arena, k->n_pieces, const double **);

    for (int i = 0; i < k->n_pieces; i++) {
        const int64_t n_nodes = k->piece[i].problem.n_nodes + 1;
        n[i] = AP_NEW_N(k->arena, n_nodes, int);
        choice[i] = AP_NEW_N(k->arena, n_nodes, int);
        cost[i] = AP_NEW_N(k->arena, n_nodes, const double *);
    }
    for (int v = 0; v < k->p->n_nodes; v++) {
        const int cell = k->cell[v], place = k->place[v];
        n[cell][place] = k->p->n_strategies[v];
        cost[cell][place] = k->p->cost[v];
        choice[cell][place] = start[v];
    }
    for (int i = 0; i < k->n_proxies; i++) {
        const struct proxy *s = &k->proxy[i];
        n[s->cell][s->place] = k->p->n_strategies[s->node];
        cost[s->cell][s->place] = proxy_cost(k, s->node);
        choice[s->cell][s->place] = start[s->node];
    }
    for (int i = 0; i < k->n_pieces; i++) {
        struct ap_subproblem *piece = &k->piece[i];
        piece->weight = 1;
        piece->problem.n_strategies = n[i];
        piece->problem.cost = cost[i];
        piece->problem.edges = k->edges[i];
        piece->start = choice[i];
    }
}

/* A multiplier per proxy. */
static void add_terms(struct cutter *k)
{
    int *n = AP_NEW_N(k->arena, k->n_pieces, int);
    struct ap_subproblem_term **term =
        AP_NEW_N(k->arena, k->n_pieces, struct ap_subproblem_term *);

    for (int i = 0; i < k->n_proxies; i++) {
        n[k->proxy[i].cell]++;
        n[k->cell[k->proxy[i].node]]++;
    }
    for (int i = 0; i < k->n_pieces; i++) {
        term[i] = AP_NEW_N(k->arena, n[i] + 1, struct ap_subproblem_term);
        k->piece[i].term = term[i];
    }
    for (int i = 0; i < k->n_proxies; i++) {
        const struct proxy *s = &k->proxy[i];
        const int own = k->cell[s->node];
        term[s->cell][k->piece[s->cell].n_terms++] =
            (struct ap_subproblem_term){i, s->place, 1};
        term[own][k->piece[own].n_terms++] =
            (struct ap_subproblem_term){i, k->place[s->node], -1};
    }
}

double search_bound_pieces(struct memory_search *ms, const double *price,
                           const int *choice)
{
    struct ap_arena scratch = {0};
    struct priced_problem priced;
    struct ap_pieces_answer answer = {0};
    struct ap_err err = {0};

    search_price_problem(&scratch, ms, &ms->whole, price,
                         ms->unit / (double)ms->task->limit, 1, &priced);
    struct cutter k = {.arena = &scratch, .p = &priced.problem};
    const int n = k.p->n_nodes;
    const int *start = priced_start(&scratch, ms->model, &priced, choice);
    find_cells(&k, ms, &priced);
    k.piece = AP_NEW_N(&scratch, k.n_pieces, struct ap_subproblem);
    k.place = AP_NEW_N(&scratch, n + 1, int);
    k.last = AP_NEW_N(&scratch, n + 1, int);
    for (int v = 0; v < n; v++) {
        k.place[v] = k.piece[k.cell[v]].problem.n_nodes++;
        k.last[v] = -1;
    }
    cut_edges(&k, ms->model->n_vars);
    fill_nodes(&k, start);
    add_terms(&k);
    int *n_strategies = AP_NEW_N(&scratch, k.n_proxies + 1, int);
    for (int i = 0; i < k.n_proxies; i++)
        n_strategies[i] = k.p->n_strategies[k.proxy[i].node];
    const struct ap_pieces pieces = {k.n_pieces, k.piece, k.n_proxies, n_strategies};
    const struct ap_pieces_params params = {.objective = ap_problem_score(k.p, start),
                                            .max_rounds = MOST_ROUNDS,
                                            .work_limit = PIECE_WORK,
                                            .work = ms->task->work};
    const int rc = ap_pieces_bound(&scratch, &pieces, &params, &answer, &err);
    free(k.proxy);
    ap_arena_free(&scratch);
    return rc ? 0 : answer.bound;
}
