/*
 * Joins two legal choices of the selection problem with memory.
 *
 * Nodes where they differ fall into components, no edge between two of them: what taking
 * the second choice's side costs adds up over components, and only memory ties them. A
 * component may hold cycles, so no forest makes the same move. From the first choice on,
 * the components that are worth it at several prices of usage are turned over, those
 * that free memory first, as far as they fit; the best result is never more expensive
 * than the first choice. After Whitley, Hains and Howe, "Tunneling between optima:
 * partition crossover for the TSP", 2009. Then parts of components are fused: a node
 * takes its strategy from either choice (solve_mem_fuse.c). O(prices * parts of the nodes
 * that differ * log slots).
 */
#include "solve/memory/solve_mem_local.h"

#include <stdlib.h>
#include <string.h>

#define N_PRICES 12
#define PRICE    0.25 /* times the multipliers', between two of them */

struct piece {
    int first, n;       /* its nodes, in node[] */
    double cost, price; /* of the second choice less those of the first */
    double worth;       /* at the price under way */
    bool turned;
};

struct relink {
    struct mem_local *l;
    const int *from, *to;
    int *node, n;
    int *piece_of; /* [node], -1 where the choices agree */
    struct piece *piece;
    int n_pieces;
};

static void find_pieces(struct relink *r)
{
    const struct sel_core *c = r->l->m->core;
    const int *from = r->from;

    for (int v = 0; v < c->n_nodes; v++)
        r->piece_of[v] = -1;
    for (int v = 0; v < c->n_nodes; v++) {
        if (from[v] == r->to[v] || r->piece_of[v] >= 0)
            continue;
        struct piece *piece = &r->piece[r->n_pieces];
        *piece = (struct piece){.first = r->n};
        r->node[r->n++] = v;
        r->piece_of[v] = r->n_pieces;
        for (int i = piece->first; i < r->n; i++) {
            const struct sel_node *node = &c->node[r->node[i]];
            for (int k = 0; k < node->n_edges; k++) {
                int w = sel_other(&c->edge[node->edges[k]], r->node[i]);
                if (from[w] == r->to[w] || r->piece_of[w] >= 0)
                    continue;
                r->piece_of[w] = r->n_pieces;
                r->node[r->n++] = w;
            }
        }
        piece->n = r->n - piece->first;
        r->n_pieces++;
    }
}

static void price_piece(const struct relink *r, struct piece *piece)
{
    const struct sel_core *c = r->l->m->core;
    const int *from = r->from;

    for (int i = piece->first; i < piece->first + piece->n; i++) {
        int v = r->node[i], s = from[v], t = r->to[v];
        piece->cost += c->node[v].cost[t] - c->node[v].cost[s];
        piece->price += r->l->price[v][t] - r->l->price[v][s];
        for (int k = 0; k < c->node[v].n_edges; k++) {
            const struct sel_edge *e = &c->edge[c->node[v].edges[k]];
            int w = sel_other(e, v);
            if (r->piece_of[w] >= 0 && e->a != v)
                continue; /* counted at its first end */
            piece->cost += sel_cell(e, v, t, r->to[w]) - sel_cell(e, v, s, from[w]);
        }
    }
}

static void swap_sides(const struct relink *r, struct piece *piece)
{
    const int *old = piece->turned ? r->to : r->from;
    const int *new = piece->turned ? r->from : r->to;

    for (int i = piece->first; i < piece->first + piece->n; i++) {
        int v = r->node[i];
        mem_tree_take(&r->l->st->left, r->l->m, v, old[v], 1);
        mem_tree_take(&r->l->st->left, r->l->m, v, new[v], -1);
    }
    piece->turned = !piece->turned;
}

/* Turns a piece over, or back; false when it does not fit. */
static bool turn(const struct relink *r, struct piece *piece)
{
    swap_sides(r, piece);
    if (mem_tree_all(&r->l->st->left) >= 0)
        return true;
    swap_sides(r, piece);
    return false;
}

static int by_worth(const void *x, const void *y)
{
    const struct piece *a = x, *b = y;

    if ((a->price <= 0) != (b->price <= 0))
        return a->price <= 0 ? -1 : 1;
    if (a->worth != b->worth)
        return a->worth < b->worth ? -1 : 1;
    return a->first - b->first;
}

/* Turns over what pays with that weight of usage; returns the change of cost. */
static double turn_all(struct relink *r, double weight)
{
    double sum = 0;

    for (int i = 0; i < r->n_pieces; i++)
        r->piece[i].worth = r->piece[i].cost + weight * r->piece[i].price;
    qsort(r->piece, (size_t)r->n_pieces, sizeof(*r->piece), by_worth);
    for (int i = 0; i < r->n_pieces; i++)
        if (r->piece[i].worth < 0 && turn(r, &r->piece[i]))
            sum += r->piece[i].cost;
    /* usage is free again: what is cheaper and fits, over or back */
    for (int i = 0; i < r->n_pieces; i++) {
        struct piece *piece = &r->piece[i];
        double change = piece->turned ? -piece->cost : piece->cost;
        if (change < 0 && turn(r, piece))
            sum += change;
    }
    return sum;
}

/* The weight that leads to the least cost, -1 when none saves anything. */
static double best_weight(struct relink *r, struct mem_budget *budget)
{
    double least = -r->l->tol, best = -1;

    for (int k = 0; k < N_PRICES && r->n_pieces > 0; k++) {
        double change = turn_all(r, PRICE * k);
        if (change < least) {
            least = change;
            best = PRICE * k;
        }
        for (int i = 0; i < r->n_pieces; i++)
            if (r->piece[i].turned)
                swap_sides(r, &r->piece[i]);
        mem_spend(budget, 20 * (int64_t)r->n);
    }
    return best;
}

/* Nodes where the choices differ into node[], breadth-first from v. */
static int64_t gather(struct mem_local *l, int v, const int *to)
{
    const struct sel_core *c = l->m->core;
    const int *from = l->st->choice;
    int64_t work = 0;

    l->n = 1;
    l->node[0] = v;
    l->place[v] = 0;
    for (int i = 0; i < l->n; i++) {
        const struct sel_node *node = &c->node[l->node[i]];
        for (int k = 0; k < node->n_edges && l->n < MEM_FUSE; k++) {
            int w = sel_other(&c->edge[node->edges[k]], l->node[i]);
            if (from[w] == to[w] || l->place[w] >= 0)
                continue;
            l->place[w] = l->n;
            l->node[l->n++] = w;
        }
        work += node->n_edges;
    }
    return work;
}

/* Takes parts of components over, as far as they pay and fit. */
static void fuse_parts(struct mem_local *l, const int *to, struct mem_budget *budget)
{
    int n_nodes = l->m->core->n_nodes, n = 0;
    int *list = ap_xrealloc(NULL, ((size_t)n_nodes + 1) * sizeof(int));
    bool *seen = ap_xrealloc(NULL, (size_t)n_nodes + 1);

    for (int v = 0; v < n_nodes; v++) {
        seen[v] = false;
        if (l->st->choice[v] != to[v])
            list[n++] = v;
    }
    for (int i = 0; i < n && !budget->out; i++) {
        int at = i + mem_pick(l, n - i), v = list[at];
        list[at] = list[i];
        if (seen[v] || l->st->choice[v] == to[v])
            continue;
        int64_t work = gather(l, v, to);
        double change = mem_fuse(l, to, 0.5 * mem_pick(l, 4), &work);
        for (int k = 0; k < l->n; k++)
            seen[l->node[k]] = true;
        struct trade *t = mem_take_or_trade(l, change, &work);
        for (int k = 0; k < l->n; k++)
            l->place[l->node[k]] = -1;
        mem_spend(budget, work + mem_trade_end(t));
    }
    free(list);
    free(seen);
}

bool mem_relink(struct mem_local *l, const int *to, struct mem_budget *budget)
{
    size_t n = (size_t)l->m->core->n_nodes;
    struct relink r = {.l = l, .from = l->st->choice, .to = to};

    r.node = ap_xrealloc(NULL, n * sizeof(int));
    r.piece_of = ap_xrealloc(NULL, n * sizeof(int));
    r.piece = ap_xrealloc(NULL, n * sizeof(*r.piece));
    find_pieces(&r);
    for (int i = 0; i < r.n_pieces; i++)
        price_piece(&r, &r.piece[i]);
    double weight = best_weight(&r, budget);
    if (weight >= 0)
        turn_all(&r, weight);
    for (int i = 0; i < r.n_pieces; i++)
        for (int k = 0; r.piece[i].turned && k < r.piece[i].n; k++) {
            int v = r.node[r.piece[i].first + k];
            l->priced += l->price[v][to[v]] - l->price[v][l->st->choice[v]];
            mem_spend(budget, mem_state_change(l->st, v, to[v]));
        }
    free(r.node);
    free(r.piece_of);
    free(r.piece);
    double before = l->st->cost;
    fuse_parts(l, to, budget);
    return weight >= 0 || l->st->cost < before;
}
