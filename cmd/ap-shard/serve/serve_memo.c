/*
 * Problem: a planner of pipelines asks for thousands of runs of blocks on dozens of
 * meshes. Idea: the whole graph is searched once per mesh, and a run takes its plans over
 * (serve_part.c), whose prices are sums (serve_sums.c). Cost: per mesh a search, for each
 * set of numbers of microbatches that leave rows to the same devices; per run a sum.
 */
#include "serve/serve_memo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOGETHER 1024

struct serve_memo *serve_memo_new(const struct shard_job *job,
                                  const struct shard_request *req,
                                  const struct serve_blocks *b)
{
    struct serve_memo *memo = ap_xrealloc(NULL, sizeof *memo);
    *memo = (struct serve_memo){.job = job, .req = req, .b = b};
    memo->alone_at = AP_NEW_N(&memo->arena, b->n + 1, int);
    memo->pair_at = AP_NEW_N(&memo->arena, b->n + 1, int);
    memo->book.shelf = serve_cache_new(job->nests.n, job->graph.n_nodes);
    memo->families = job->has_families ? &job->families : NULL;
    return memo;
}

void *serve_memo_room(void *list, int n, int *cap, size_t size)
{
    if (n < *cap)
        return list;
    *cap = *cap ? 2 * *cap : 32;
    return ap_xrealloc(list, (size_t)*cap * size);
}

/* ---- forgetting ---- */

static void free_nodes(struct serve_memo *m)
{
    if (m->nodes)
        serve_part_free(m->nodes);
    if (m->nodes_pool)
        serve_pool_free(m->nodes_pool);
    if (m->nodes_rules)
        serve_rules_free(m->nodes_rules);
    serve_book_free(&m->nodes_book);
    m->nodes_book = (struct serve_book){.n = 0};
    m->nodes = NULL;
    m->nodes_rules = NULL;
    m->nodes_pool = NULL;
}

void serve_memo_trim(struct serve_memo *m, int64_t bytes)
{
    if (m->bytes <= bytes)
        return;
    for (int i = 0; i < m->n_listed; i++)
        if (m->listed[i].part) {
            serve_part_free(m->listed[i].part);
            m->listed[i].part = NULL;
        }
    m->bytes = 0;
}

void serve_memo_free(struct serve_memo *m)
{
    free_nodes(m);
    serve_memo_trim(m, -1);
    for (int i = 0; i < m->n_timed; i++)
        serve_time_free(m->timed[i]);
    for (int i = 0; i < m->n_shaped; i++) {
        if (m->shaped[i]->pool)
            serve_pool_free(m->shaped[i]->pool);
        ap_arena_free(&m->shaped[i]->arena);
        free(m->shaped[i]);
    }
    for (int i = 0; i < m->n_placed; i++) {
        if (m->placed[i]->rules)
            serve_rules_free(m->placed[i]->rules);
        ap_arena_free(&m->placed[i]->sizes.arena);
        ap_cost_free(&m->placed[i]->cost);
        free(m->placed[i]);
    }
    serve_book_free(&m->book);
    for (int i = 0; i < m->n_priced; i++) {
        free(m->priced[i]->prices.measure);
        free(m->priced[i]);
    }
    void *lists[] = {m->placed, m->timed,     m->shaped,    m->listed, m->priced,
                     m->one,    m->listed_at, m->priced_at, m->one_at};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        free(lists[i]);
    ap_arena_free(&m->arena);
    free(m);
}

int serve_memo_searches(const struct serve_memo *memo)
{
    return memo->n_searches;
}

/* ---- time ---- */

static const struct serve_time *one_time(struct serve_memo *m, int64_t n,
                                         struct ap_err *err)
{
    for (int i = 0; i < m->n_timed; i++)
        if (m->timed[i]->n == n)
            return m->timed[i];
    struct serve_time *t = NULL;
    for (int i = 0; i < m->n_timed && !t; i++)
        t = serve_time_like(m->timed[i], n);
    if (!t)
        t = serve_time_new(m->b, &m->job->graph, &m->job->nests, n, err);
    if (!t)
        return NULL;
    m->timed =
        serve_memo_room(m->timed, m->n_timed, &m->cap_timed, sizeof(struct serve_time *));
    m->timed[m->n_timed++] = t;
    return t;
}

/*
 * Whoever asks for a second number of microbatches asks for more: with it, all powers of
 * two that the batch has are got ready, to be priced together.
 */
static const struct serve_time *time_of(struct serve_memo *m, int64_t n,
                                        struct ap_err *err)
{
    struct ap_err ignored = {0};

    if (m->n_timed == 1 && m->timed[0]->n != n) {
        int64_t batch = ap_batch_size(&m->job->graph);
        for (int64_t k = MOST_TOGETHER; k > 0; k /= 2)
            if (k <= batch) /* the largest first: others may lie in time like it */
                one_time(m, k, &ignored);
    }
    return one_time(m, n, err);
}

/* ---- place ---- */

static bool same_mesh(const struct ap_mesh *a, const struct ap_mesh *b)
{
    bool same = a->n_axes == b->n_axes;
    for (int i = 0; i < a->n_axes && same; i++)
        same = a->size[i] == b->size[i];
    return same;
}

static bool same_place(const struct serve_place *a, const struct serve_place *b)
{
    bool same = same_mesh(&a->mesh, &b->mesh);
    for (int l = 0; l < a->cluster.n_levels && same; l++)
        same = a->cluster.levels[l].size == b->cluster.levels[l].size;
    return same;
}

static int place_of(struct serve_memo *m, const struct serve_place *place,
                    struct ap_err *err)
{
    struct ap_arena scratch = {0};
    for (int i = 0; i < m->n_placed; i++)
        if (same_place(&m->placed[i]->place, place))
            return i;
    struct placed *p = ap_xrealloc(NULL, sizeof *p);
    p->place = *place;
    p->rules = NULL;
    p->sizes = (struct ap_stage_known){.n = 0};
    for (int a = 0; a < place->mesh.n_axes; a++) /* names live as long as a request */
        p->place.mesh.name[a] = "x\0y\0z\0w\0v\0u" + 2 * a;
    int rc = ap_cost_init(&scratch, &p->cost, (enum ap_cost_variant)m->req->cost_model,
                          &place->cluster, &p->place.mesh, err);
    ap_arena_free(&scratch);
    if (rc) {
        free(p);
        return -1;
    }
    m->placed =
        serve_memo_room(m->placed, m->n_placed, &m->cap_placed, sizeof(struct placed *));
    m->placed[m->n_placed] = p;
    return m->n_placed++;
}

int serve_take(const struct ap_cluster *whole, int64_t hosts, int64_t devices,
               struct ap_cluster *c, struct ap_err *err)
{
    *c = *whole;
    if (devices > whole->levels[0].size)
        return ap_err_set(err, "submesh: %lld devices, but a host has %lld",
                          (long long)devices, (long long)whole->levels[0].size);
    c->levels[0].size = devices;
    int64_t left = hosts;
    for (int l = 1; l < c->n_levels; l++) {
        int64_t take = left < whole->levels[l].size ? left : whole->levels[l].size;
        if (left % take)
            return ap_err_set(err, "submesh: %lld hosts do not fill level %s",
                              (long long)hosts, whole->levels[l].name);
        c->levels[l].size = take;
        left /= take;
    }
    if (left > 1)
        return ap_err_set(err, "submesh: %lld hosts are more than cluster %s has",
                          (long long)hosts, whole->name);
    return 0;
}

/*
 * The place with this mesh that is searched for all of them: hosts are filled before
 * others are taken. Where a place cannot be said so, it is searched itself.
 */
static int place_to_search(struct serve_memo *m, int place)
{
    struct serve_place p = m->placed[place]->place;
    struct ap_err ignored = {0};
    int64_t n = ap_mesh_devices(&p.mesh), devices = p.whole->levels[0].size;

    devices = n < devices ? n : devices;
    if (n % devices || serve_take(p.whole, n / devices, devices, &p.cluster, &ignored))
        return place;
    int i = place_of(m, &p, &ignored);
    return i < 0 ? place : i;
}

/* ---- plans of the whole graph ---- */

uint64_t serve_memo_rows(const struct serve_memo *m, const struct serve_time *t,
                         const struct ap_mesh *mesh)
{
    bool knows = shard_algorithms()[m->req->algorithm].run == shard_ilp;
    return knows ? serve_time_rows(t, mesh) : 0;
}

/* An integer program for few rows starts from the mesh's plans for many. */
static const struct serve_shape *search(struct serve_memo *m, int at, uint64_t rows,
                                        const struct serve_time *t)
{
    struct placed *searched = m->placed[at];
    const struct serve_pool *wide = NULL;

    for (int i = 0; i < m->n_shaped; i++)
        if (m->shaped[i]->place == at && m->shaped[i]->rows == rows)
            return m->shaped[i];
    if (rows)
        wide = search(m, at, 0, t)->pool;
    struct serve_shape *s = ap_xrealloc(NULL, sizeof *s);
    *s = (struct serve_shape){.place = at, .rows = rows};
    m->n_searches++;
    if (!m->tied) {
        serve_tie(&m->arena, &m->job->graph, &m->job->nests, m->families, m->req,
                  &m->ties);
        serve_border_rows(&m->arena, m->b, &m->job->nests, &m->rows);
    }
    m->tied = true;
    if (!searched->rules)
        searched->rules = serve_rules_new(&m->job->graph, &m->job->nests, m->families,
                                          &searched->cost, m->req, &m->book);
    s->pool = serve_search(searched->rules, &m->ties, rows ? &t->time : NULL, wide,
                           m->req, &s->why);
    if (s->pool)
        serve_shape_look(m->b, &m->job->nests, &searched->cost, &m->rows, m->n_shaped,
                         m->shaped, s);
    m->shaped = serve_memo_room(m->shaped, m->n_shaped, &m->cap_shaped,
                                sizeof(struct serve_shape *));
    m->shaped[m->n_shaped++] = s;
    return s;
}

static const struct serve_shape *shape_of(struct serve_memo *m, int place,
                                          const struct serve_time *t)
{
    int at = place_to_search(m, place);
    return search(m, at, serve_memo_rows(m, t, &m->placed[at]->cost.mesh), t);
}

static int find_blocks(struct serve_memo *m, struct ap_arena *arena, int n,
                       const int *block, int place, const struct serve_time *t,
                       struct serve_found *found, struct ap_err *err)
{
    const struct serve_shape *s = shape_of(m, place, t);
    struct serve_prices *prices = &found->prices;
    if (!s->pool)
        return ap_err_set(err, "%s", s->why.msg);
    found->pool = s->pool;
    found->border = &s->border;
    *prices = (struct serve_prices){.n = s->pool->n};
    prices->measure = AP_NEW_N(arena, s->pool->n + 1, struct ap_stage_measure);
    if (serve_sum(m, s, place, t, n, block, prices, err))
        return -1;
    for (int i = 0; i < n; i++)
        prices->bound += s->bound[block[i]];
    if (s->pool->objective < 0 || !isfinite(prices->objective))
        prices->objective = -1;
    if (n == m->b->n && s->place == place)
        prices->bound = fmax(prices->bound, s->pool->bound);
    return 0;
}

static int find_nodes(struct serve_memo *m, struct ap_arena *arena, const bool *inside,
                      int place, const struct serve_time *t, struct serve_found *found,
                      struct ap_err *err)
{
    const struct ap_cost *cost = &m->placed[place]->cost;
    free_nodes(m);
    m->nodes = serve_part_of_nodes(&m->job->graph, inside, err);
    if (!m->nodes)
        return -1;
    m->n_searches++;
    struct serve_ties alone;
    serve_tie(&m->nodes->arena, &m->nodes->sub.graph, &m->nodes->nests, NULL, m->req,
              &alone);
    m->nodes_rules = serve_rules_new(&m->nodes->sub.graph, &m->nodes->nests, NULL, cost,
                                     m->req, &m->nodes_book);
    m->nodes_pool = serve_search(m->nodes_rules, &alone, NULL, NULL, m->req, err);
    if (!m->nodes_pool)
        return -1;
    const struct serve_pool *pool = m->nodes_pool;
    const struct ap_stage_microbatch *const time = &t->time;
    struct ap_arena scratch = {0};
    struct ap_stage_measure operators;
    struct ap_stage_known sizes = {.n = 0};
    double whole = -1;
    found->part = m->nodes;
    found->pool = pool;
    found->prices.n = pool->n;
    found->prices.measure = AP_NEW_N(arena, pool->n + 1, struct ap_stage_measure);
    for (int i = 0; i < pool->n; i++) {
        struct ap_plan plan =
            serve_pool_plan(pool, i, &m->nodes->sub.graph, &m->nodes->nests, cost);
        serve_part_price(&scratch, m->nodes, &plan, cost, 1, &time, &sizes, false,
                         &operators, &found->prices.measure[i], i == 0 ? &whole : NULL);
    }
    ap_arena_free(&sizes.arena);
    ap_arena_free(&scratch);
    found->prices.objective = pool->objective < 0 ? -1 : whole;
    found->prices.bound = m->nodes_pool->bound;
    for (int g = 0; g < m->nodes->nests.n && found->prices.bound <= 0; g++)
        found->prices.bound += m->nodes_pool->least_sec[g];
    return 0;
}

int serve_memo_find(struct serve_memo *m, struct ap_arena *arena, int n, const int *block,
                    const bool *inside, const struct serve_place *place,
                    int64_t microbatches, struct serve_found *found, struct ap_err *err)
{
    const struct serve_time *t = time_of(m, microbatches, err);
    int p = t ? place_of(m, place, err) : -1;
    if (p < 0)
        return -1;
    *found = (struct serve_found){.cost = &m->placed[p]->cost, .time = &t->time};
    return n > 0 ? find_blocks(m, arena, n, block, p, t, found, err)
                 : find_nodes(m, arena, inside, p, t, found, err);
}
