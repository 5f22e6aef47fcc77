/*
 * Problem: which stages of a plan have one price? Idea: those with the same operators
 * under the same choices, by content: names apart, all that a price reads. Cost: linear
 * in the stages' graphs, times the number of different stages; a pipeline of a uniform
 * decoder has few, however many layers.
 */
#include <string.h>

#include "graph/identity.h"
#include "pipeline/pipeline_price.h"

static bool same_bytes(const void *a, const void *b, size_t n)
{
    return a == b || (a && b && memcmp(a, b, n) == 0);
}

/* Node i of two stages' graphs. */
static bool same_node(const struct ap_graph *whole, const struct ap_subgraph *x,
                      const struct ap_subgraph *y, int i)
{
    const struct ap_node *a = &x->graph.nodes[i], *b = &y->graph.nodes[i];

    return a->op == b->op && a->n_in == b->n_in && a->phase == b->phase &&
           a->role == b->role && a->param == b->param && a->group == b->group &&
           a->attrs->recomputed == b->attrs->recomputed &&
           ap_shape_equal(&a->shape, &b->shape) &&
           (a->n_in == 0 || !memcmp(a->in, b->in, (size_t)a->n_in * sizeof *a->in)) &&
           (a->op == AP_OP_PARAMETER ||
            ap_nodes_identical(whole, x->source[i], y->source[i]));
}

static bool same_graph(const struct ap_graph *whole, const struct ap_subgraph *a,
                       const struct ap_subgraph *b)
{
    const struct ap_graph *g = &a->graph, *h = &b->graph;

    if (g->n_nodes != h->n_nodes || g->n_results != h->n_results ||
        a->n_cut_in != b->n_cut_in || a->n_cut_out != b->n_cut_out ||
        !same_bytes(a->cut_in, b->cut_in, (size_t)a->n_cut_in * sizeof *a->cut_in) ||
        !same_bytes(a->cut_out, b->cut_out, (size_t)a->n_cut_out * sizeof *a->cut_out) ||
        !same_bytes(g->taken, h->taken, (size_t)g->n_results * sizeof *g->taken) ||
        !same_bytes(g->handed, h->handed, (size_t)g->n_nodes * sizeof *g->handed))
        return false;
    for (int i = 0; i < g->n_results; i++)
        if (g->results[i].node != h->results[i].node ||
            g->results[i].role != h->results[i].role ||
            g->results[i].alias != h->results[i].alias)
            return false;
    for (int i = 0; i < g->n_nodes; i++)
        if (!same_node(whole, a, b, i))
            return false;
    return true;
}

/* Whether block a, of the one stage's nodes, is block b of the other's: to[a] is 1 + b.
 */
static bool same_block(int *to, int *from, int a, int b)
{
    if (to[a] == 0 && from[b] == 0) {
        to[a] = 1 + b;
        from[b] = 1 + a;
    }
    return to[a] == 1 + b && from[b] == 1 + a;
}

/* How the nodes lie on the microbatch axis and in blocks, and what is recomputed. */
static bool same_microbatch(const struct ap_pricing *p, const struct ap_stage *a,
                            const struct ap_stage *b)
{
    const struct ap_stage_microbatch *m = &p->micro;
    struct ap_mark mark = ap_arena_mark(p->arena);
    int *to = AP_NEW_N(p->arena, p->blocks->n, int);
    int *from = AP_NEW_N(p->arena, p->blocks->n, int);
    bool same = a->recompute == b->recompute && a->n_recomputed == b->n_recomputed;
    int k = 0;

    for (int i = 0; i < a->sub.graph.n_nodes && same; i++) {
        const int v = a->sub.source[i], w = b->sub.source[i];
        const bool again = k < a->n_recomputed && a->recomputed[k] == v;
        same = m->split[v] == m->split[w] && m->runs[v] == m->runs[w] &&
               m->dim[v] == m->dim[w] && !(m->each && m->each[v] != m->each[w]) &&
               same_block(to, from, m->block_of[v], m->block_of[w]) &&
               !(again && b->recomputed[k] != w);
        k += again;
    }
    ap_arena_rewind(p->arena, mark);
    return same && k == a->n_recomputed;
}

static bool same_plan(const struct ap_plan *a, const struct ap_plan *b)
{
    const size_t n_nodes = (size_t)a->graph->n_nodes, n = (size_t)a->nests->n;

    return a->nests->n == b->nests->n && a->graph->n_nodes == b->graph->n_nodes &&
           a->mesh.n_axes == b->mesh.n_axes &&
           !memcmp(a->mesh.size, b->mesh.size,
                   (size_t)a->mesh.n_axes * sizeof *a->mesh.size) &&
           same_bytes(a->choice, b->choice, n * sizeof *a->choice) &&
           same_bytes(a->regather, b->regather, n_nodes * sizeof *a->regather) &&
           same_bytes(a->whole, b->whole, n_nodes * sizeof *a->whole) &&
           a->microbatch_choice == b->microbatch_choice && a->each == b->each &&
           a->each_result == b->each_result && a->turn == b->turn &&
           a->recompute_heavy == b->recompute_heavy;
}

/* Whether the devices are parts of the cluster with the same levels. */
static bool same_devices(const struct ap_pricing *p, const struct ap_stage *a,
                         const struct ap_stage *b)
{
    struct ap_cluster x, y;
    struct ap_err err = {0};

    if (a->n_devices != b->n_devices || !a->devices ||
        ap_cluster_take(p->cluster, a->n_devices, a->devices, &x, &err) ||
        ap_cluster_take(p->cluster, b->n_devices, b->devices, &y, &err))
        return false;
    for (int l = 0; l < x.n_levels; l++)
        if (x.levels[l].size != y.levels[l].size)
            return false;
    return x.n_levels == y.n_levels;
}

static bool is_like(const struct ap_pricing *p, const struct ap_stage *a,
                    const struct ap_stage *b)
{
    return !p->when && !p->cluster->n_kinds &&
           same_plan(&a->sharding.plan, &b->sharding.plan) &&
           same_graph(p->g, &a->sub, &b->sub) && same_microbatch(p, a, b) &&
           same_devices(p, a, b);
}

const int *ap_stages_alike(const struct ap_pricing *p)
{
    const struct ap_stage *stage = p->stages->stage;
    int *like = AP_NEW_N(p->arena, p->stages->n, int);

    for (int i = 0; i < p->stages->n; i++)
        while (like[i] < i &&
               !(like[like[i]] == like[i] && is_like(p, &stage[like[i]], &stage[i])))
            like[i]++;
    return like;
}
