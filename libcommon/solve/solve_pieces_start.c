/*
 * Multipliers to begin with. All pieces are put into one core, each once with its costs
 * times its weight; every multiplier becomes a node that must agree with all nodes that
 * have the multiplier, and message passing (solve_dual.c) runs over the whole. The cost
 * that such a node gives to the others is a multiplier: identical instances share their
 * messages by construction, and the sweeps reach, in a few milliseconds, a bound for
 * which cutting planes without a start take hundreds of solves. That all nodes of a
 * multiplier agree is more than the decomposition asks (their sums have to), so the value
 * of this relaxation is no bound; the multipliers are only a place to start.
 *
 * O(sweeps * cells of the pieces' tables). Worth: without it the bound of BERT on 8x4
 * falls by 9 % of the price.
 */
#include "solve/solve_pieces.h"

#include <string.h>

#define SWEEPS          160
#define STALLED         1e-2 /* of the bound's rise so far, in LOOK sweeps */
#define PATIENT_SWEEPS  800
#define PATIENT_STALLED 1e-4
#define LOOK            8

struct union_core {
    struct sel_core *c;
    const struct ap_pieces *pieces;
    const struct pieces_core *cores;
    int *first_node; /* [piece] */
    int *hub;        /* [multiplier] */
    int **edge;      /* [piece][term] */
};

static double *scaled(struct ap_arena *arena, const double *x, int64_t n, double scale)
{
    double *y = AP_NEW_N(arena, n + 1, double);

    for (int64_t i = 0; i < n; i++)
        y[i] = scale * x[i];
    return y;
}

static void add_piece(struct union_core *u, int i)
{
    struct sel_core *c = u->c;
    const struct sel_core *from = u->cores[i].core;
    double w = u->pieces->piece[i].weight;
    int at = u->first_node[i];

    for (int v = 0; v < from->n_nodes; v++) {
        const struct sel_node *node = &from->node[v];
        struct sel_node *to = &c->node[at + v];
        to->n_strategies = node->n_strategies;
        to->label = node->label;
        to->cost = scaled(c->arena, node->cost, node->n_strategies, w);
    }
    for (int e = 0; e < from->n_edges; e++) {
        struct sel_edge edge = from->edge[e];
        const struct sel_table *t = edge.table;
        if (w != 1) {
            edge.table = sel_table_new(
                c->arena, t->n_rows, t->n_cols,
                scaled(c->arena, t->cost, (int64_t)t->n_rows * t->n_cols, w));
            edge.row_add =
                scaled(c->arena, edge.row_add, from->node[edge.a].n_strategies, w);
            edge.col_add =
                scaled(c->arena, edge.col_add, from->node[edge.b].n_strategies, w);
        }
        edge.a += at;
        edge.b += at;
        sel_core_edge(c, edge);
    }
}

/* 0 on the diagonal, forbidden elsewhere. */
static struct sel_table *equality(struct ap_arena *arena, int n)
{
    double *t = AP_NEW_N(arena, (int64_t)n * n, double);

    for (int i = 0; i < n * n; i++)
        t[i] = i / n == i % n ? 0 : INFINITY;
    return sel_table_new(arena, n, n, t);
}

static void add_hubs(struct union_core *u, int at)
{
    struct sel_core *c = u->c;
    struct sel_table **table =
        AP_NEW_N(c->arena, u->pieces->n_multipliers + 1, struct sel_table *);

    for (int k = 0; k < u->pieces->n_multipliers; k++) {
        int n = u->pieces->n_strategies[k];
        struct sel_node *node = &c->node[at + k];
        node->n_strategies = n;
        node->label = c->identity;
        node->cost = AP_NEW_N(c->arena, n, double);
        table[k] = equality(c->arena, n);
        u->hub[k] = at + k;
    }
    for (int i = 0; i < u->pieces->n; i++) {
        const struct ap_subproblem *piece = &u->pieces->piece[i];
        u->edge[i] = AP_NEW_N(c->arena, piece->n_terms + 1, int);
        for (int t = 0; t < piece->n_terms; t++) {
            int v = u->first_node[i] + u->cores[i].place[piece->term[t].node];
            int k = piece->term[t].multiplier;
            u->edge[i][t] = c->n_edges;
            sel_core_edge(c, (struct sel_edge){.a = u->hub[k],
                                               .b = v,
                                               .table = table[k],
                                               .row = c->identity,
                                               .col = c->node[v].label,
                                               .row_add = c->zeros,
                                               .col_add = c->zeros});
        }
    }
}

static void put_together(struct union_core *u, struct ap_arena *arena)
{
    const struct ap_pieces *pieces = u->pieces;
    int n_nodes = 0, n_edges = 0;

    u->first_node = AP_NEW_N(arena, pieces->n + 1, int);
    u->hub = AP_NEW_N(arena, pieces->n_multipliers + 1, int);
    u->edge = AP_NEW_N(arena, pieces->n + 1, int *);
    for (int i = 0; i < pieces->n; i++) {
        u->first_node[i] = n_nodes;
        n_nodes += u->cores[i].core->n_nodes;
        n_edges += u->cores[i].core->n_edges + pieces->piece[i].n_terms;
    }
    struct sel_core like = *u->cores[0].core;
    for (int i = 0; i < pieces->n; i++) /* the longest runs of 0, 1, 2, ... and zeros */
        if (u->cores[i].core->n_identity > like.n_identity)
            like = *u->cores[i].core;
    u->c = sel_core_new(arena, &like, n_nodes + pieces->n_multipliers, n_edges);
    for (int i = 0; i < pieces->n; i++)
        add_piece(u, i);
    add_hubs(u, n_nodes);
}

static void pass_messages(struct sel_dual *d, bool patient)
{
    double first = 0, last = 0, stalled = patient ? PATIENT_STALLED : STALLED;

    for (int i = 1; i <= (patient ? PATIENT_SWEEPS : SWEEPS); i++) {
        sel_dual_sweep(d);
        if (i == 1)
            first = last = d->bound;
        if (ap_work_over(d->core->work))
            break;
        if (i % LOOK != 0)
            continue;
        if (d->bound - last <= stalled * (d->bound - first))
            break;
        last = d->bound;
    }
}

/*
 * What a hub has over when all it was lent is given back goes to its nodes in equal
 * parts; then what they have been lent adds up to nothing.
 */
static void read_potentials(const struct union_core *u, const struct sel_dual *d,
                            const int *first, double *phi)
{
    const struct ap_pieces *pieces = u->pieces;
    double *plus = AP_NEW_N(u->c->arena, pieces->n_multipliers + 1, double);

    for (int i = 0; i < pieces->n; i++)
        for (int t = 0; t < pieces->piece[i].n_terms; t++)
            if (pieces->piece[i].term[t].sign > 0)
                plus[pieces->piece[i].term[t].multiplier] += pieces->piece[i].weight;
    for (int i = 0; i < pieces->n; i++)
        for (int t = 0; t < pieces->piece[i].n_terms; t++) {
            const struct ap_subproblem_term *term = &pieces->piece[i].term[t];
            int k = term->multiplier, v = u->hub[k];
            const double *lent = d->to_a[u->edge[i][t]];
            for (int s = 0; s < pieces->n_strategies[k] && term->sign > 0; s++) {
                double over = 0;
                for (int j = 0; j < u->c->node[v].n_edges; j++)
                    over += d->to_a[u->c->node[v].edges[j]][s];
                double x = over / u->c->node[v].n_edges - lent[s];
                phi[first[k] + s] += isfinite(x) ? x / plus[k] : 0;
            }
        }
}

void pieces_start(const struct ap_pieces *pieces, const struct pieces_core *cores,
                  const int *first, bool patient, struct ap_work *work, double *phi)
{
    struct ap_arena own = {0};
    struct union_core u = {.pieces = pieces, .cores = cores};

    put_together(&u, &own);
    u.c->work = work;
    struct sel_dual *d = sel_dual_new(u.c);
    pass_messages(d, patient);
    read_potentials(&u, d, first, phi);
    ap_arena_free(&own);
}
