/*
 * Problem: a planner of stages asks for hundreds of searches; a good answer at once is
 * worth more to it than a proof. Idea: columns. The selection problem is solved with few
 * strategies per node: those of the plans at hand, and the cheapest. Each strategy of
 * the whole problem is then priced against the answer, its copies decided anew, the
 * cheapest ones join, and it is solved again, until nothing gets cheaper. The answer is
 * one of the whole problem, and never worse than the plans that it starts from.
 * Cost: rounds times (a pass over the problem's tables, and a small problem).
 * After Gilmore and Gomory, "A linear programming approach to the cutting stock problem"
 * (columns that are priced when they are needed), with choices for multipliers.
 */
#include "serve.h"

#include <math.h>
#include <string.h>

#define FEW    4 /* nodes with so many strategies keep them all */
#define JOIN   3 /* strategies that join in a round */
#define ROUNDS 4
#define GAIN   1e-3 /* going on is worth it for such a share of the objective */

struct narrow {
    struct ap_arena *arena;
    const struct ap_problem *p;
    bool **kept;              /* [node][strategy] */
    int **label, *n;          /* [node]: strategies kept, ascending */
    int *start, *edge;        /* CSR by node of its edges */
    double *price;            /* [strategy] of the node that is looked at */
    struct ap_solution *best; /* choices of the whole problem */
};

static void list_edges(struct narrow *w)
{
    const struct ap_problem *p = w->p;
    w->start = AP_NEW_N(w->arena, p->n_nodes + 2, int);
    w->edge = AP_NEW_N(w->arena, 2 * p->n_edges + 1, int);
    for (int e = 0; e < p->n_edges; e++) {
        w->start[p->edges[e].a + 2]++;
        w->start[p->edges[e].b + 2]++;
    }
    for (int v = 2; v <= p->n_nodes; v++)
        w->start[v] += w->start[v - 1];
    for (int e = 0; e < p->n_edges; e++) {
        w->edge[w->start[p->edges[e].a + 1]++] = e;
        w->edge[w->start[p->edges[e].b + 1]++] = e;
    }
}

static double cell(const struct ap_problem *p, const struct ap_problem_edge *e, int v,
                   int s, int t)
{
    return e->a == v ? e->cost[(int64_t)s * p->n_strategies[e->b] + t]
                     : e->cost[(int64_t)t * p->n_strategies[e->b] + s];
}

/* Adds what an edge to a node of two states costs at the better one, the other
 * neighbours' choices given. */
static void add_copy(struct narrow *w, int v, int u, const struct ap_problem_edge *e)
{
    const struct ap_problem *p = w->p;
    double own[FEW];
    for (int t = 0; t < p->n_strategies[u]; t++) {
        own[t] = p->cost[u][t];
        for (int k = w->start[u]; k < w->start[u + 1]; k++) {
            const struct ap_problem_edge *f = &p->edges[w->edge[k]];
            int x = f->a == u ? f->b : f->a;
            if (x != v)
                own[t] += cell(p, f, u, t, w->best->choice[x]);
        }
    }
    for (int s = 0; s < p->n_strategies[v]; s++) {
        double least = INFINITY;
        for (int t = 0; t < p->n_strategies[u]; t++)
            least = fmin(least, own[t] + cell(p, e, v, s, t));
        w->price[s] += least;
    }
}

/* The cheapest strategies of v against the answer join. */
static bool join(struct narrow *w, int v)
{
    const struct ap_problem *p = w->p;
    bool any = false;
    memcpy(w->price, p->cost[v], (size_t)p->n_strategies[v] * sizeof *w->price);
    for (int k = w->start[v]; w->best && k < w->start[v + 1]; k++) {
        const struct ap_problem_edge *e = &p->edges[w->edge[k]];
        int u = e->a == v ? e->b : e->a;
        if (p->n_strategies[u] <= FEW) {
            add_copy(w, v, u, e);
            continue;
        }
        for (int s = 0; s < p->n_strategies[v]; s++)
            w->price[s] += cell(p, e, v, s, w->best->choice[u]);
    }
    for (int k = 0; k < JOIN; k++) {
        int least = -1;
        for (int s = 0; s < p->n_strategies[v]; s++)
            if (!w->kept[v][s] && w->price[s] < AP_FORBIDDEN &&
                (least < 0 || w->price[s] < w->price[least]))
                least = s;
        if (least < 0)
            break;
        w->kept[v][least] = any = true;
    }
    return any;
}

/* The problem with the strategies kept; edges that cost nothing are left out. */
static struct ap_problem restricted(struct narrow *w)
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
static int solve(struct narrow *w, ap_solver_fn *run, const struct ap_solve_params *given,
                 struct ap_solution *sol, struct ap_err *err)
{
    const struct ap_problem small = restricted(w);
    struct ap_solve_params params = *given;
    int n = w->p->n_nodes;
    int *start = AP_NEW_N(w->arena, n + 1, int);
    const int *from = w->best ? w->best->choice : given->start;

    for (int v = 0; from && v < n; v++)
        while (w->label[v][start[v]] != from[v])
            start[v]++;
    params.start = from ? start : NULL;
    if (run(w->arena, &small, &params, sol, err))
        return -1;
    for (int v = 0; v < n; v++)
        sol->choice[v] = w->label[v][sol->choice[v]];
    return 0;
}

int serve_narrow(struct ap_arena *arena, const struct ap_problem *p, int n_known,
                 const int *const *known, ap_solver_fn *run,
                 const struct ap_solve_params *params, struct ap_solution *sol,
                 struct ap_err *err)
{
    struct narrow w = {.arena = arena, .p = p};
    struct ap_solution next;
    int most = 1;

    list_edges(&w);
    w.kept = AP_NEW_N(arena, p->n_nodes + 1, bool *);
    w.label = AP_NEW_N(arena, p->n_nodes + 1, int *);
    w.n = AP_NEW_N(arena, p->n_nodes + 1, int);
    for (int v = 0; v < p->n_nodes; v++)
        most = p->n_strategies[v] > most ? p->n_strategies[v] : most;
    w.price = AP_NEW_N(arena, most, double);
    for (int v = 0; v < p->n_nodes; v++) {
        w.kept[v] = AP_NEW_N(arena, p->n_strategies[v], bool);
        for (int s = 0; s < p->n_strategies[v]; s++)
            w.kept[v][s] = p->n_strategies[v] <= FEW;
        for (int k = 0; k < n_known; k++)
            if (known[k])
                w.kept[v][known[k][v]] = true;
        if (params->start)
            w.kept[v][params->start[v]] = true;
        join(&w, v);
    }
    if (solve(&w, run, params, sol, err))
        return -1;
    for (int round = 1; round < ROUNDS; round++) {
        bool any = false;
        w.best = sol;
        for (int v = 0; v < p->n_nodes; v++)
            any |= p->n_strategies[v] > FEW && join(&w, v);
        if (!any)
            break;
        if (solve(&w, run, params, &next, err))
            return -1;
        double gain = sol->objective - next.objective;
        if (gain > 0)
            *sol = next;
        if (gain <= GAIN * sol->objective)
            break;
    }
    sol->bound = 0; /* of the narrow problem only */
    sol->stopped = "columns";
    return 0;
}
