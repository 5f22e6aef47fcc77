/*
 * Problem: choose a strategy for every group of a scope so that all-reduces and layout
 * changes move the fewest bytes, with an integer program over few groups.
 *
 * Idea: a cone is a tree of groups that ends in a root. Given the root's strategy, a
 * dynamic program decides the rest of the cone: cost(group, s) is the group's own bytes
 * plus, for each operand inside the cone, the minimum over the operand's strategies of
 * its cost and the move. If that minimum is not unique, the operand's strategy may matter
 * elsewhere, so the operand becomes a root. One choice per cone is left, with moves
 * between roots and the cones that read them as costs of pairs: the integer program, in
 * its tight form a selection problem. At level 0 no program decides: the pieces do, in
 * order of FLOPs per byte, and each cone that is left takes the best strategy beside the
 * cones decided before it.
 *
 * Cost: groups times strategies squared, and the solver's. After Rhino (Zhang et al.,
 * "Auto-Parallelizing Large Models with Rhino: A Systematic Approach on Production AI
 * Platform"), 4.3.2, and its open program TePDist.
 */
#include "rhino/rhino.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct build {
    const struct rhino_axis *ax;
    int scope, n;
    const int *group;
    double **value; /* [position][strategy]: of the tree that ends here */
    uint8_t *root;  /* [position] */
    int *reader;    /* [position]: the position that it is in the tree of */
    int **pick;     /* [position][reader's strategy]: its own */
};

static bool in_scope(const struct build *b, int group)
{
    return !b->ax->view->constant[group] && b->ax->view->scope_of[group] == b->scope;
}

/* Least cost of operand u under each strategy of v; false: u must be a root. */
static bool follow_reader(const struct build *b, int u, int v,
                          const struct rhino_edge *edge, double *least)
{
    const struct rhino_axis *ax = b->ax;
    int n_u = ax->n[edge->a], n_v = ax->n[edge->b];

    b->pick[u] = AP_NEW_N(ax->arena, n_v, int);
    b->reader[u] = v;
    for (int s = 0; s < n_v; s++) {
        int n_best = 0;
        for (int k = 0; k < n_u; k++) {
            double cost = b->value[u][k] + edge->cost[k * n_v + s];
            if (n_best > 0 && cost > least[s])
                continue;
            n_best = n_best > 0 && cost == least[s] ? n_best + 1 : 1;
            if (n_best == 1)
                b->pick[u][s] = k;
            least[s] = cost;
        }
        if (n_best > 1)
            return false;
    }
    return true;
}

static void grow(struct build *b, int v)
{
    const struct rhino_axis *ax = b->ax;
    int group = b->group[v], n = ax->n[group];
    double *least = AP_NEW_N(ax->arena, n, double);

    for (int k = ax->edge_start[group]; k < ax->edge_start[group + 1]; k++) {
        const struct rhino_edge *edge = &ax->edge[ax->edge_of[k]];
        int u = ax->view->position[edge->a];
        if (edge->b != group || !in_scope(b, edge->a) || b->root[u])
            continue;
        if (!follow_reader(b, u, v, edge, least)) {
            b->root[u] = 1;
            continue;
        }
        for (int s = 0; s < n; s++)
            b->value[v][s] += least[s];
    }
}

/* Numbers cones, roots ascending, and says what each group does under its root. */
static void number(struct build *b, struct rhino_cones *cones)
{
    const struct rhino_axis *ax = b->ax;
    int *cone = AP_NEW_N(ax->arena, b->n, int), *root = AP_NEW_N(ax->arena, b->n, int);
    int **follow = AP_NEW_N(ax->arena, b->n, int *);
    const double **cost = AP_NEW_N(ax->arena, b->n, const double *);
    int n = 0;

    for (int v = 0; v < b->n; v++)
        if (b->root[v]) {
            cone[v] = n;
            cost[n] = b->value[v];
            root[n++] = b->group[v];
        }
    for (int v = b->n - 1; v >= 0; v--) {
        if (!b->root[v])
            cone[v] = cone[b->reader[v]];
        int n_root = ax->n[root[cone[v]]];
        follow[v] = AP_NEW_N(ax->arena, n_root, int);
        for (int s = 0; s < n_root; s++)
            follow[v][s] = b->root[v] ? s : b->pick[v][follow[b->reader[v]][s]];
    }
    cones->scope = b->scope;
    cones->n = n;
    cones->root = root;
    cones->cone = cone;
    cones->follow = (const int *const *)follow;
    cones->cost = cost;
}

/* Moves between the cones, by the strategies of their roots. */
static void join(const struct build *b, struct rhino_cones *cones)
{
    const struct rhino_axis *ax = b->ax;
    int n_max = 0, n_edges = 0, *n_strategies = AP_NEW_N(ax->arena, cones->n, int);

    for (int v = 0; v < b->n; v++)
        n_max += ax->edge_start[b->group[v] + 1] - ax->edge_start[b->group[v]];
    struct ap_problem_edge *edges = AP_NEW_N(ax->arena, n_max, struct ap_problem_edge);
    for (int c = 0; c < cones->n; c++)
        n_strategies[c] = ax->n[cones->root[c]];
    for (int v = 0; v < b->n; v++) {
        int group = b->group[v];
        for (int k = ax->edge_start[group]; k < ax->edge_start[group + 1]; k++) {
            const struct rhino_edge *edge = &ax->edge[ax->edge_of[k]];
            int u = ax->view->position[edge->a];
            if (edge->b != group || !in_scope(b, edge->a) || !b->root[u])
                continue;
            int c = cones->cone[v], n_u = ax->n[edge->a], n_c = n_strategies[c];
            double *cost = AP_NEW_N(ax->arena, (int64_t)n_u * n_c, double);
            for (int p = 0; p < n_u; p++)
                for (int s = 0; s < n_c; s++)
                    cost[p * n_c + s] =
                        edge->cost[p * ax->n[group] + cones->follow[v][s]];
            edges[n_edges++] = (struct ap_problem_edge){cones->cone[u], c, cost};
        }
    }
    cones->problem = (struct ap_problem){.n_nodes = cones->n,
                                         .n_edges = n_edges,
                                         .n_strategies = n_strategies,
                                         .cost = cones->cost,
                                         .edges = edges};
}

void rhino_cones_build(const struct rhino_axis *ax, int scope,
                       const double *const *outside, struct rhino_cones *cones)
{
    const struct rhino_view *view = ax->view;
    struct build b = {.ax = ax,
                      .scope = scope,
                      .n = view->scope_start[scope + 1] - view->scope_start[scope],
                      .group = view->scoped + view->scope_start[scope]};

    b.value = AP_NEW_N(ax->arena, b.n, double *);
    b.root = AP_NEW_N(ax->arena, b.n, uint8_t);
    b.reader = AP_NEW_N(ax->arena, b.n, int);
    b.pick = AP_NEW_N(ax->arena, b.n, int *);
    for (int v = 0; v < b.n; v++) {
        int group = b.group[v];
        b.root[v] = view->root[group];
        b.value[v] = ap_arena_dup(ax->arena, ax->self[group],
                                  (size_t)ax->n[group] * sizeof(double));
        for (int s = 0; outside && outside[group] && s < ax->n[group]; s++)
            b.value[v][s] += outside[group][s];
    }
    for (int v = 0; v < b.n; v++)
        grow(&b, v);
    number(&b, cones);
    join(&b, cones);
}

/* ---- level 0: pieces and what is best beside them ---- */

struct score {
    int piece, rank; /* rank 0 is the best */
    double flops, bytes;
};

static int by_piece(const void *pa, const void *pb)
{
    const struct score *a = pa, *b = pb;
    return a->piece < b->piece ? -1 : a->piece > b->piece;
}

static int by_score(const void *pa, const void *pb)
{
    const struct score *a = pa, *b = pb;
    double x = a->flops * (b->bytes + 1), y = b->flops * (a->bytes + 1);
    return x > y ? -1 : x < y ? 1 : by_piece(pa, pb);
}

/* The pieces that reach into the scope, ascending; returns their number. */
static int score_pieces(const struct rhino_axis *ax, int n, const int *group,
                        struct score **out)
{
    const struct ap_graph *g = ax->task->graph;
    int n_all = 0, n_pieces = 0;

    for (int v = 0; v < n; v++)
        n_all += ax->n[group[v]];
    struct score *list = AP_NEW_N(ax->arena, n_all, struct score);
    n_all = 0;
    for (int v = 0; v < n; v++) {
        const struct ap_nest *nest = &ax->task->nests->nest[group[v]];
        for (int s = 0; s < ax->n[group[v]]; s++) {
            int f = ax->factor[group[v]][s];
            if (f < 0)
                continue;
            list[n_all++] = (struct score){
                .piece = ax->piece[group[v]][f],
                .flops = nest->heavy ? ap_node_heavy_flops(g, nest->members[0]) : 0,
                .bytes = ax->self[group[v]][s]};
        }
    }
    qsort(list, (size_t)n_all, sizeof *list, by_piece);
    for (int i = 0; i < n_all; i++) {
        if (n_pieces > 0 && list[n_pieces - 1].piece == list[i].piece) {
            list[n_pieces - 1].flops += list[i].flops;
            list[n_pieces - 1].bytes += list[i].bytes;
        } else {
            list[n_pieces++] = list[i];
        }
    }
    qsort(list, (size_t)n_pieces, sizeof *list, by_score);
    for (int i = 0; i < n_pieces; i++)
        list[i].rank = i;
    qsort(list, (size_t)n_pieces, sizeof *list, by_piece);
    *out = list;
    return n_pieces;
}

/* Cones that a piece splits take its strategy. */
static void take_pieces(const struct rhino_axis *ax, const struct rhino_cones *cones,
                        const double *const *cost, int *choice)
{
    int start = ax->view->scope_start[cones->scope];
    const int *group = ax->view->scoped + start;
    int n = ax->view->scope_start[cones->scope + 1] - start;
    struct score *list;
    int n_pieces = score_pieces(ax, n, group, &list);

    for (int c = 0; c < cones->n; c++) {
        int best = -1, i = cones->root[c];
        for (int s = 0; s < ax->n[i]; s++) {
            int f = ax->factor[i][s];
            if (f < 0 || cost[c][s] >= AP_FORBIDDEN)
                continue;
            struct score key = {.piece = ax->piece[i][f]};
            const struct score *found =
                bsearch(&key, list, (size_t)n_pieces, sizeof *list, by_piece);
            if (found->flops <= 0 || (best >= 0 && found->rank > best))
                continue;
            best = found->rank;
            choice[c] = s;
        }
    }
}

/* Edges by cone: 2 e + 1 stands for edge e at its b. */
static int *list_ends(const struct rhino_axis *ax, const struct ap_problem *p,
                      int **first)
{
    int *next = AP_NEW_N(ax->arena, 2 * p->n_edges, int);

    *first = AP_NEW_N(ax->arena, p->n_nodes, int);
    for (int c = 0; c < p->n_nodes; c++)
        (*first)[c] = -1;
    for (int k = 2 * p->n_edges - 1; k >= 0; k--) {
        int c = k % 2 ? p->edges[k / 2].b : p->edges[k / 2].a;
        next[k] = (*first)[c];
        (*first)[c] = k;
    }
    return next;
}

/* What strategy s of a cone pays to neighbours that are decided. */
static double beside(const struct ap_problem *p, int k, const int *next,
                     const int *choice, int s)
{
    double cost = 0;
    for (; k >= 0; k = next[k]) {
        const struct ap_problem_edge *edge = &p->edges[k / 2];
        int there = choice[k % 2 ? edge->a : edge->b], n_b = p->n_strategies[edge->b];
        if (there >= 0)
            cost += edge->cost[k % 2 ? there * n_b + s : s * n_b + there];
    }
    return cost;
}

static void solve_greedily(const struct rhino_axis *ax, const struct rhino_cones *cones,
                           const double *const *cost, struct ap_solution *sol)
{
    struct ap_problem p = cones->problem;
    int *choice = AP_NEW_N(ax->arena, cones->n, int), *first;
    int *next = list_ends(ax, &p, &first);

    p.cost = cost;
    for (int c = 0; c < cones->n; c++)
        choice[c] = -1;
    take_pieces(ax, cones, cost, choice);
    for (int c = 0; c < cones->n; c++) {
        double least = INFINITY;
        int best = 0;
        for (int s = 0; choice[c] < 0 && s < p.n_strategies[c]; s++) {
            double bytes = cost[c][s] + beside(&p, first[c], next, choice, s);
            if (bytes >= least)
                continue;
            least = bytes;
            best = s;
        }
        if (choice[c] < 0)
            choice[c] = best;
    }
    *sol =
        (struct ap_solution){.choice = choice, .objective = ap_problem_score(&p, choice)};
}

/* ---- the choice ---- */

int rhino_cones_solve(const struct rhino_axis *ax, const struct rhino_cones *cones,
                      int fixed, int strategy, int *choice, struct rhino_least *least)
{
    const struct shard_params *params = ax->task->params;
    const struct shard_solver *solver = &shard_solvers[params->solver];
    const struct ap_solve_params sp = {.work = ax->task->work};
    struct ap_problem p = cones->problem;
    struct ap_solution sol;
    struct ap_err none = {0}; /* that there is no solution is said by what is returned */
    int n = ax->view->scope_start[cones->scope + 1] - ax->view->scope_start[cones->scope];

    if (fixed >= 0) {
        int c = cones->cone[ax->view->position[fixed]];
        const double **cost =
            ap_arena_dup(ax->arena, cones->cost, (size_t)cones->n * sizeof *cones->cost);
        double *one =
            ap_arena_dup(ax->arena, cost[c], (size_t)p.n_strategies[c] * sizeof(double));
        for (int s = 0; s < p.n_strategies[c]; s++)
            one[s] = s == strategy ? one[s] : AP_FORBIDDEN;
        cost[c] = one;
        p.cost = cost;
    }
    if (ax->view->level == 0)
        solve_greedily(ax, cones, p.cost, &sol);
    else if (solver->run(ax->arena, &p, &sp, &sol, &none))
        return 1;
    for (int v = 0; v < n; v++)
        choice[v] = cones->follow[v][sol.choice[cones->cone[v]]];
    *least = (struct rhino_least){.bytes = sol.objective,
                                  .cut_short = ax->view->level > 0 &&
                                               strcmp(sol.stopped, "optimal") != 0};
    return 0;
}
