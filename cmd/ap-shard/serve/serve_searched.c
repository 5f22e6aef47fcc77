/*
 * What is computed from a mesh's plans before parts of it are priced: layouts of the
 * values that blocks pass to each other, and hashes of the choices per block. Cost:
 * linear in the graph for each plan.
 */
#include "serve/serve.h"

#include <string.h>

_Static_assert(AP_MAX_AXES % 3 == 0, "choices are hashed by threes");

/* Flags of a block's nodes, one after the other, 64 at a time. */
static uint64_t hash_flags(const struct serve_blocks *b, int block, const bool *flag,
                           uint64_t h)
{
    uint64_t word = 1; /* the first one says how many there are */

    for (int k = b->node_start[block]; k < b->node_start[block + 1]; k++) {
        if (word >> 63) {
            h = ap_hash_mix(h, word);
            word = 1;
        }
        word = word << 1 | flag[b->node[k]];
    }
    return ap_hash_mix(h, word);
}

/* [row]: of plan p's layouts at borders. */
static const uint64_t *hash_border(struct ap_arena *arena, const struct serve_rows *rows,
                                   const struct serve_border *border, int p)
{
    uint64_t *hash = AP_NEW_N(arena, rows->n + 1, uint64_t);

    for (int i = 0; i < rows->n; i++)
        hash[i] = i > 0 && border->layout[p][i] == border->layout[p][i - 1]
                      ? hash[i - 1]
                      : ap_layout_hash(border->layout[p][i]);
    return hash;
}

/* [block]: of the choices of plan p in it, and of the layouts that it reads. layout:
 * [row], as above. */
static const uint64_t *hash_plan(const struct serve_blocks *b,
                                 const struct serve_rows *rows, struct serve_searched *s,
                                 int p, int n_axes, const uint64_t *layout)
{
    const struct serve_pool *pool = s->pool;
    const struct ap_choice_vec *choice = pool->choice[p];
    const bool *regather = pool->regather[p];
    uint64_t *hash = AP_NEW_N(&s->arena, b->n + 1, uint64_t);

    for (int i = 0; i < b->n; i++) {
        uint64_t h = 1 + (regather != NULL);
        for (int k = rows->group_start[i]; k < rows->group_start[i + 1]; k++) {
            const int16_t *axis = choice[rows->group[k]].axis;
            for (int a = 0; a < n_axes; a += 3)
                h = ap_hash_mix(h, (uint64_t)(uint16_t)axis[a] << 32 |
                                       (uint64_t)(uint16_t)axis[a + 1] << 16 |
                                       (uint64_t)(uint16_t)axis[a + 2]);
        }
        if (regather)
            h = hash_flags(b, i, regather, h);
        for (int e = b->ext_start[i]; e < b->ext_start[i + 1]; e++) {
            int row = rows->number[b->ext[e]];
            if (row >= 0)
                h = ap_hash_mix(h, layout[row]);
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
    struct ap_arena scratch = {0};

    s->border.number = rows->number;
    s->border.layout = AP_NEW_N(&s->arena, pool->n + 1, const struct ap_layout *const *);
    s->hash = AP_NEW_N(&s->arena, pool->n + 1, const uint64_t *);
    for (int p = 0; p < pool->n; p++) {
        s->border.layout[p] = serve_border_find(&s->arena, b, nests, pool, p, cost, rows);
        s->hash[p] = hash_plan(b, rows, s, p, cost->mesh.n_axes,
                               hash_border(&scratch, rows, &s->border, p));
    }
    ap_arena_free(&scratch);
    s->all = AP_NEW_N(&s->arena, b->n + 1, uint64_t);
    for (int i = 0; i < b->n; i++)
        for (int p = 0; p < pool->n; p++)
            s->all[i] = ap_hash(&s->hash[p][i], sizeof s->hash[p][i], s->all[i]);
    s->bound = AP_NEW_N(&s->arena, b->n + 1, double);
    for (int k = 0; k < nests->n && serve_pool_in_seconds(pool) && b->n > 0; k++)
        if (rows->inside[k] >= 0)
            s->bound[rows->inside[k]] += pool->least_sec[k];
}
