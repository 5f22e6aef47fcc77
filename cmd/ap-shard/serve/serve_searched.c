/*
 * What is computed from a mesh's plans before parts of it are priced: layouts of the
 * values that blocks pass to each other, and hashes of the choices per block. Cost:
 * linear in the graph for each plan.
 */
#include "serve/serve.h"

#include <string.h>

_Static_assert(AP_MAX_AXES % 3 == 0, "choices are hashed by threes");

/* [block]: of the choices of plan p in it, and of the layouts that it reads. */
static const uint64_t *hash_plan(const struct serve_blocks *b,
                                 const struct serve_rows *rows, struct serve_searched *s,
                                 int p)
{
    const struct serve_pool *pool = s->pool;
    const struct ap_choice_vec *choice = pool->choice[p];
    const bool *regather = pool->regather[p];
    uint64_t *hash = AP_NEW_N(&s->arena, b->n + 1, uint64_t);

    for (int i = 0; i < b->n; i++) {
        uint64_t h = 1 + (regather != NULL);
        for (int k = rows->group_start[i]; k < rows->group_start[i + 1]; k++) {
            const struct ap_choice_vec *c = &choice[rows->group[k]];
            for (int a = 0; a < AP_MAX_AXES; a += 3)
                h = ap_hash_mix(h, (uint64_t)(uint16_t)c->axis[a] << 32 |
                                       (uint64_t)(uint16_t)c->axis[a + 1] << 16 |
                                       (uint64_t)(uint16_t)c->axis[a + 2]);
        }
        for (int k = b->node_start[i]; regather && k < b->node_start[i + 1]; k++)
            h = ap_hash_mix(h, regather[b->node[k]]);
        for (int e = b->ext_start[i]; e < b->ext_start[i + 1]; e++) {
            int row = rows->number[b->ext[e]];
            if (row >= 0)
                h = ap_hash_mix(h, ap_layout_hash(s->border.layout[p][row]));
        }
        hash[i] = h;
    }
    return hash;
}

void serve_searched_describe(const struct serve_blocks *b, const struct ap_nests *nests,
                             const struct ap_cost *cost, const struct serve_rows *rows,
                             struct serve_searched *s)
{
    const struct serve_pool *pool = s->pool;

    s->border.number = rows->number;
    s->border.layout = AP_NEW_N(&s->arena, pool->n + 1, const struct ap_layout *const *);
    s->hash = AP_NEW_N(&s->arena, pool->n + 1, const uint64_t *);
    for (int p = 0; p < pool->n; p++) {
        s->border.layout[p] = serve_border_find(&s->arena, b, nests, pool, p, cost, rows);
        s->hash[p] = hash_plan(b, rows, s, p);
    }
    s->all = AP_NEW_N(&s->arena, b->n + 1, uint64_t);
    for (int i = 0; i < b->n; i++)
        for (int p = 0; p < pool->n; p++)
            s->all[i] = ap_hash(&s->hash[p][i], sizeof s->hash[p][i], s->all[i]);
    s->bound = AP_NEW_N(&s->arena, b->n + 1, double);
    for (int k = 0; k < nests->n && pool->objective >= 0 && b->n > 0; k++)
        if (rows->inside[k] >= 0)
            s->bound[rows->inside[k]] += pool->least_sec[k];
}
