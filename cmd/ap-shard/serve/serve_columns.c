/*
 * Problem: a planner of stages asks for hundreds of searches; a good answer at once is
 * worth more to it than a proof. Idea: column generation. The selection problem is solved
 * with few strategies per node: those of the known answers, and the cheapest. Each
 * strategy of the whole problem is then priced against the answer, the cheapest ones are
 * added, and the problem is solved again, until the objective stalls. A strategy has two
 * prices: one with the copies decided anew and everything else as it is, and one with
 * each neighbour deciding anew, by which two strategies that are expensive alone find
 * each other. The answer is one of the whole problem, and never worse than the answer
 * that it starts from. Cost: per round a pass over the problem's tables, and a small
 * problem. After Gilmore and Gomory, "A linear programming approach to the cutting stock
 * problem" (columns are priced when they are needed), with choices in place of dual
 * multipliers.
 */
#include "serve/serve.h"

#include <math.h>
#include <string.h>

#include "base/csr.h"

/* scripts/bench/stage shows the time and the step time that these give. */
#define FEW  4    /* a node with so few strategies keeps them all */
#define GAIN 1e-3 /* share of the objective that a round must gain */

struct columns {
    struct ap_arena *arena;
    const struct ap_problem *p;
    bool **kept;         /* [node][strategy] */
    int **label, *n;     /* [node]: strategies kept, ascending */
    struct ap_csr edges; /* by node */
    const int *best;     /* the answer, NULL while there is none */
    double **beside;     /* [node][strategy]: its cost beside the answer */
    /* of one node: its two prices, [strategy], [1] with neighbours deciding anew; of one
       of its neighbours: the cost of each strategy without the edge between them; of the
       node: the least cost of that edge and the neighbour */
    double *price[2], *own, *least;
};

static void list_edges(struct columns *w)
{
    const struct ap_problem *p = w->p;
    int *node = AP_NEW_N(w->arena, 2 * p->n_edges + 1, int);
    int *edge = AP_NEW_N(w->arena, 2 * p->n_edges + 1, int);

    for (int e = 0; e < p->n_edges; e++) {
        node[2 * e] = p->edges[e].a;
        node[2 * e + 1] = p->edges[e].b;
        edge[2 * e] = edge[2 * e + 1] = e;
    }
    w->edges = ap_csr_new(w->arena, p->n_nodes, 2 * p->n_edges, node, edge);
}

/* The cost of v's strategy s and u's t, at [s * at_s + t * at_t]. */
struct view {
    const double *cost;
    int at_s, at_t;
};

static struct view seen_from(const struct ap_problem *p, const struct ap_problem_edge *e,
                             int v)
{
    int width = p->n_strategies[e->b];
    return e->a == v ? (struct view){e->cost, width, 1}
                     : (struct view){e->cost, 1, width};
}

static double cell(const struct view *w, int s, int t)
{
    return w->cost[(int64_t)s * w->at_s + (int64_t)t * w->at_t];
}

/* The cost of strategy s of v beside the answer, without the edge `left_out`. */
static double cost_without(const struct columns *w, int v, int s, int left_out)
{
    const struct ap_problem *p = w->p;
    double sum = p->cost[v][s];

    for (int k = w->edges.start[v]; w->best && k < w->edges.start[v + 1]; k++) {
        const struct ap_problem_edge *e = &p->edges[w->edges.item[k]];
        struct view view = seen_from(p, e, v);
        if (w->edges.item[k] != left_out)
            sum += cell(&view, s, w->best[e->a == v ? e->b : e->a]);
    }
    return sum;
}

/* least[s]: of own[t] and the edge, over all t; along the table as it lies. */
static void least_of(const struct view *view, int n_s, int n_t, const double *own,
                     double *least)
{
    for (int s = 0; s < n_s; s++)
        least[s] = INFINITY;
    if (view->at_t == 1) {
        for (int s = 0; s < n_s; s++)
            for (int t = 0; t < n_t; t++) {
                double c = own[t] + view->cost[(int64_t)s * view->at_s + t];
                least[s] = c < least[s] ? c : least[s];
            }
        return;
    }
    for (int t = 0; t < n_t; t++)
        for (int s = 0; s < n_s; s++) {
            double c = own[t] + view->cost[(int64_t)t * view->at_t + s];
            least[s] = c < least[s] ? c : least[s];
        }
}

/*
 * Adds the cost of edge e to both prices of each strategy of v: with the neighbour as it
 * is (unless it has few strategies), and with the neighbour deciding anew.
 */
static void price_edge(const struct columns *w, int v, int e)
{
    const struct ap_problem *p = w->p;
    const struct ap_problem_edge *edge = &p->edges[e];
    int u = edge->a == v ? edge->b : edge->a, n_s = p->n_strategies[v],
        n_t = p->n_strategies[u];
    struct view view = seen_from(p, edge, v);
    double now = w->beside[u][w->best[u]];

    for (int t = 0; t < n_t; t++) {
        double out = cell(&view, w->best[v], t);
        w->own[t] =
            (out < AP_FORBIDDEN ? w->beside[u][t] - out : cost_without(w, u, t, e)) - now;
    }
    least_of(&view, n_s, n_t, w->own, w->least);
    for (int s = 0; s < n_s; s++) {
        w->price[1][s] += w->least[s];
        w->price[0][s] += n_t <= FEW ? w->least[s] : cell(&view, s, w->best[u]);
    }
}

static bool keep_cheapest(const struct columns *w, int v, const double *price)
{
    int least = -1;

    for (int s = 0; s < w->p->n_strategies[v]; s++)
        if (!w->kept[v][s] && price[s] < AP_FORBIDDEN &&
            (least < 0 || price[s] < price[least]))
            least = s;
    if (least >= 0)
        w->kept[v][least] = true;
    return least >= 0;
}

/* Adds the cheapest strategies of the nodes that do not keep all of them. */
static bool add_columns(const struct columns *w)
{
    const struct ap_problem *p = w->p;
    bool any = false;

    for (int v = 0; v < p->n_nodes; v++) {
        memcpy(w->beside[v], p->cost[v], (size_t)p->n_strategies[v] * sizeof(double));
        for (int k = w->edges.start[v]; w->best && k < w->edges.start[v + 1]; k++) {
            const struct ap_problem_edge *e = &p->edges[w->edges.item[k]];
            struct view view = seen_from(p, e, v);
            for (int s = 0; s < p->n_strategies[v]; s++)
                w->beside[v][s] += cell(&view, s, w->best[e->a == v ? e->b : e->a]);
        }
    }
    for (int v = 0; v < p->n_nodes; v++) {
        size_t size = (size_t)p->n_strategies[v] * sizeof(double);
        if (p->n_strategies[v] <= FEW)
            continue;
        for (int i = 0; i < 2; i++)
            memcpy(w->price[i], p->cost[v], size);
        for (int k = w->edges.start[v]; w->best && k < w->edges.start[v + 1]; k++)
            price_edge(w, v, w->edges.item[k]);
        /* without an answer both prices are the node's own cost: add more of it */
        for (int i = 0; i < (w->best ? 2 : FEW); i++)
            any |= keep_cheapest(w, v, w->price[i % 2]);
    }
    return any;
}

/* The problem with the strategies kept; edges that cost nothing are left out. */
static struct ap_problem restricted(struct columns *w)
{
    const struct ap_problem *p = w->p;
    double **cost = AP_NEW_N(w->arena, p->n_nodes + 1, double *);
    struct ap_problem_edge *edges =
        AP_NEW_N(w->arena, p->n_edges + 1, struct ap_problem_edge);
    int n_edges = 0;

    for (int v = 0; v < p->n_nodes; v++) {
        w->label[v] = AP_NEW_N(w->arena, p->n_strategies[v], int);
        cost[v] = AP_NEW_N(w->arena, p->n_strategies[v], double);
        w->n[v] = 0;
        for (int s = 0; s < p->n_strategies[v]; s++)
            if (w->kept[v][s]) {
                cost[v][w->n[v]] = p->cost[v][s];
                w->label[v][w->n[v]++] = s;
            }
    }
    for (int k = 0; k < p->n_edges; k++) {
        const struct ap_problem_edge *e = &p->edges[k];
        int na = w->n[e->a], nb = w->n[e->b], width = p->n_strategies[e->b];
        double *table = AP_NEW_N(w->arena, (int64_t)na * nb, double), most = 0;
        for (int i = 0; i < na; i++)
            for (int j = 0; j < nb; j++) {
                double c =
                    e->cost[(int64_t)w->label[e->a][i] * width + w->label[e->b][j]];
                table[i * nb + j] = c;
                most = fmax(most, c);
            }
        if (most > 0)
            edges[n_edges++] = (struct ap_problem_edge){e->a, e->b, table};
    }
    return (struct ap_problem){.n_nodes = p->n_nodes,
                               .n_edges = n_edges,
                               .n_strategies = w->n,
                               .cost = (const double *const *)cost,
                               .edges = edges};
}

/* Solves the restricted problem from the answer at hand. */
static int solve(struct columns *w, ap_solver_fn *run,
                 const struct ap_solve_params *given, struct ap_solution *sol,
                 struct ap_err *err)
{
    const struct ap_problem small = restricted(w);
    struct ap_solve_params params = *given;
    int n = w->p->n_nodes;
    int *start = AP_NEW_N(w->arena, n + 1, int);

    for (int v = 0; w->best && v < n; v++)
        while (w->label[v][start[v]] != w->best[v])
            start[v]++;
    params.start = w->best ? start : NULL;
    params.is_small = true;
    if (run(w->arena, &small, &params, sol, err))
        return -1;
    for (int v = 0; v < n; v++)
        sol->choice[v] = w->label[v][sol->choice[v]];
    return 0;
}

int serve_columns_solve(struct ap_arena *arena, const struct ap_problem *p,
                        const struct serve_columns *from,
                        const struct ap_solve_params *params, struct ap_solution *sol,
                        struct ap_err *err)
{
    struct columns w = {.arena = arena, .p = p, .best = params->start};
    struct ap_solution next;
    int most = 1;

    list_edges(&w);
    w.kept = AP_NEW_N(arena, p->n_nodes + 1, bool *);
    w.label = AP_NEW_N(arena, p->n_nodes + 1, int *);
    w.n = AP_NEW_N(arena, p->n_nodes + 1, int);
    w.beside = AP_NEW_N(arena, p->n_nodes + 1, double *);
    for (int v = 0; v < p->n_nodes; v++) {
        int n = p->n_strategies[v];
        most = n > most ? n : most;
        w.beside[v] = AP_NEW_N(arena, n, double);
        w.kept[v] = AP_NEW_N(arena, n, bool);
        for (int s = 0; s < n; s++)
            w.kept[v][s] = n <= FEW;
        for (int k = 0; k < from->n_known; k++)
            if (from->known[k])
                w.kept[v][from->known[k][v]] = true;
        if (w.best)
            w.kept[v][w.best[v]] = true;
    }
    w.own = AP_NEW_N(arena, most, double);
    w.least = AP_NEW_N(arena, most, double);
    for (int i = 0; i < 2; i++)
        w.price[i] = AP_NEW_N(arena, most, double);
    add_columns(&w);
    if (solve(&w, from->run, params, sol, err))
        return -1;
    for (int round = 1; round < from->rounds; round++) {
        w.best = sol->choice;
        if (!add_columns(&w))
            break;
        if (solve(&w, from->run, params, &next, err))
            return -1;
        double gain = sol->objective - next.objective;
        if (gain > 0)
            *sol = next;
        if (gain <= GAIN * sol->objective)
            break;
    }
    sol->bound = 0; /* the solver's holds for the small problem only */
    sol->stopped = "columns";
    return 0;
}
