/*
 * Problem: a mesh is searched for several numbers of microbatches, and most of the plans
 * are the same. Idea: what is known of a plan before parts of it are priced (layouts of
 * what blocks hand over, hashes of what it decides) is taken over from an earlier search
 * on the mesh. Cost: linear in the graph for each new plan.
 */
#include "serve.h"

#include <string.h>

/* [block]: of what plan p decides in it, and of what it reads. */
static const uint64_t *hash_plan(const struct serve_blocks *b,
                                 const struct ap_nests *nests, const int *number,
                                 struct serve_shape *s, int p)
{
    const struct ap_graph *g = b->graph;
    const struct serve_pool *pool = s->pool;
    uint64_t *hash = AP_NEW_N(&s->arena, b->n + 1, uint64_t);

    for (int i = 0; i < b->n; i++) {
        uint64_t h = pool->remake[p] != NULL;
        for (int k = b->node_start[i]; k < b->node_start[i + 1]; k++) {
            int v = b->node[k], group = g->nodes[v].group;
            if (pool->remake[p])
                h = ap_hash(&pool->remake[p][v], sizeof(bool), h);
            if (v == nests->nest[group].members[0])
                h = ap_hash(&pool->choice[p][group], sizeof pool->choice[p][group], h);
        }
        for (int e = b->ext_start[i]; e < b->ext_start[i + 1]; e++) {
            int row = number[b->ext[e]];
            uint64_t l = row < 0 ? 0 : ap_layout_hash(s->border.layout[p][row]);
            h = row < 0 ? h : ap_hash(&l, sizeof l, h);
        }
        hash[i] = h;
    }
    return hash;
}

/* A plan of an earlier search on the mesh that is the same: its row in *from, or false.
 */
static bool seen_before(int n_before, struct serve_shape *const *before,
                        const struct serve_shape *s, int p,
                        const struct serve_shape **from, int *row)
{
    const struct serve_pool *own = s->pool;
    size_t n = (size_t)own->n_groups;
    for (int i = 0; i < n_before; i++) {
        const struct serve_pool *pool = before[i]->pool;
        for (int k = 0; before[i]->place == s->place && pool && k < pool->n; k++)
            if (pool->remake[k] == own->remake[p] &&
                (pool->choice[k] == own->choice[p] ||
                 !memcmp(pool->choice[k], own->choice[p], n * sizeof *own->choice[p]))) {
                *from = before[i];
                *row = k;
                return true;
            }
    }
    return false;
}

void serve_shape_look(const struct serve_blocks *b, const struct ap_nests *nests,
                      const struct ap_cost *cost, const struct serve_rows *rows,
                      int n_before, struct serve_shape *const *before,
                      struct serve_shape *s)
{
    const struct serve_pool *pool = s->pool;

    s->border.number = rows->number;
    s->border.layout = AP_NEW_N(&s->arena, pool->n + 1, const struct ap_layout *const *);
    s->hash = AP_NEW_N(&s->arena, pool->n + 1, const uint64_t *);
    for (int p = 0; p < pool->n; p++) {
        const struct serve_shape *from;
        int row;
        if (seen_before(n_before, before, s, p, &from, &row)) {
            s->border.layout[p] = from->border.layout[row];
            s->hash[p] = from->hash[row];
            continue;
        }
        s->border.layout[p] = serve_border_find(&s->arena, b, nests, pool, p, cost, rows);
        s->hash[p] = hash_plan(b, nests, rows->number, s, p);
    }
    s->all = AP_NEW_N(&s->arena, b->n + 1, uint64_t);
    for (int i = 0; i < b->n; i++)
        for (int p = 0; p < pool->n; p++)
            s->all[i] = ap_hash(&s->hash[p][i], sizeof s->hash[p][i], s->all[i]);
    s->bound = AP_NEW_N(&s->arena, b->n + 1, double);
    for (int k = 0; k < nests->n && pool->objective >= 0; k++) {
        const struct ap_nest *nest = &nests->nest[k];
        bool inside = true;
        for (int i = 1; i < nest->n_members; i++)
            inside &= b->home[nest->members[i]] == b->home[nest->members[0]];
        if (inside)
            s->bound[b->home[nest->members[0]]] += pool->least_sec[k];
    }
}
