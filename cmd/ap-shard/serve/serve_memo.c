/*
 * Problem: a planner of pipelines asks for thousands of runs of blocks on dozens of
 * meshes. Idea: the whole graph is searched once per mesh, and a run of blocks uses the
 * plans of the whole graph (serve_part.c), whose prices are sums (serve_sums.c). Cost:
 * one search per mesh and per set of numbers of microbatches that leave rows to the same
 * devices; per run a sum.
 */
#include "serve/serve_memo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

#define MOST_TOGETHER 1024 /* the largest number of microbatches priced unasked */

struct serve_memo *serve_memo_new(const struct shard_job *job,
                                  const struct shard_request *req,
                                  const struct serve_blocks *b)
{
    struct serve_memo *memo = ap_xrealloc(NULL, sizeof *memo);
    *memo = (struct serve_memo){.job = job, .req = req, .b = b};
    memo->alone_at = AP_NEW_N(&memo->arena, b->n + 1, int);
    memo->pair_at = AP_NEW_N(&memo->arena, b->n + 1, int);
    memo->lists = (struct ap_classes){.same = serve_same_list, .ctx = memo};
    memo->families = job->has_families ? &job->families : NULL;
    return memo;
}

/* ---- forgetting ---- */

static void free_nodes(struct serve_memo *m)
{
    if (m->nodes)
        serve_part_free(m->nodes);
    if (m->nodes_pool)
        serve_pool_free(m->nodes_pool);
    if (m->nodes_start)
        serve_start_free(m->nodes_start);
    m->nodes = NULL;
    m->nodes_start = NULL;
    m->nodes_pool = NULL;
}

void serve_memo_trim(struct serve_memo *m, int64_t bytes)
{
    if (m->bytes <= bytes)
        return;
    for (int i = 0; i < m->n_lists; i++)
        if (m->list[i].part) {
            serve_part_free(m->list[i].part);
            m->list[i].part = NULL;
        }
    m->bytes = 0;
}

void serve_memo_free(struct serve_memo *m)
{
    free_nodes(m);
    serve_memo_trim(m, -1);
    for (int i = 0; i < m->n_microbatches; i++)
        serve_microbatches_free(m->microbatches[i]);
    for (int i = 0; i < m->n_searched; i++) {
        if (m->searched[i]->pool)
            serve_pool_free(m->searched[i]->pool);
        ap_arena_free(&m->searched[i]->arena);
        free(m->searched[i]);
    }
    for (int i = 0; i < m->n_placed; i++) {
        if (m->placed[i]->start)
            serve_start_free(m->placed[i]->start);
        ap_arena_free(&m->placed[i]->sizes.arena);
        ap_cost_free(&m->placed[i]->cost);
        ap_cost_free(&m->placed[i]->model);
        free(m->placed[i]);
    }
    for (int i = 0; i < m->list_keys.n; i++)
        free(m->list_price[i].measure);
    void *arrays[] = {m->placed,     m->microbatches,  m->searched,      m->list,
                      m->list_price, m->list_keys.key, m->plan_keys.key, m->plan_price};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    ap_index_free(&m->list_keys.index);
    ap_index_free(&m->plan_keys.index);
    ap_classes_free(&m->lists);
    ap_arena_free(&m->arena);
    free(m);
}

int serve_memo_searches(const struct serve_memo *memo)
{
    return memo->n_searches;
}

/* ---- microbatches ---- */

static const struct serve_microbatches *one_number(struct serve_memo *m, int64_t n,
                                                   struct ap_err *err)
{
    for (int i = 0; i < m->n_microbatches; i++)
        if (m->microbatches[i]->n == n)
            return m->microbatches[i];
    struct serve_microbatches *t = NULL;
    for (int i = 0; i < m->n_microbatches && !t; i++)
        t = serve_microbatches_like(m->microbatches[i], n);
    if (!t)
        t = serve_microbatches_new(m->b, &m->job->graph, &m->job->nests, n, err);
    if (!t)
        return NULL;
    AP_ROOM(m->microbatches, m->n_microbatches, m->cap_microbatches);
    m->microbatches[m->n_microbatches++] = t;
    return t;
}

/*
 * A planner that asks for a second number of microbatches will ask for more: the second
 * number prepares all powers of two up to the batch, so that they are priced together.
 */
static const struct serve_microbatches *microbatches_of(struct serve_memo *m, int64_t n,
                                                        struct ap_err *err)
{
    struct ap_err ignored = {0};

    if (m->n_microbatches == 1 && m->microbatches[0]->n != n) {
        int64_t batch = ap_batch_size(&m->job->graph);
        for (int64_t k = MOST_TOGETHER; k > 0; k /= 2)
            if (k <= batch) /* the largest first: smaller ones may split the graph as it
                               does */
                one_number(m, k, &ignored);
    }
    return one_number(m, n, err);
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

/* The costs of a cost model on a place. */
static int lay_cost(const struct serve_memo *m, enum ap_cost_variant variant,
                    const struct serve_place *place, struct ap_cost *cost,
                    struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct shard_alpa alpa;
    int rc = ap_cost_init(&scratch, cost, variant, &place->cluster, &place->mesh, err);

    if (rc == 0) {
        cost->alpa = m->req->alpa;
        if (m->req->space == SHARD_SPACE_ALPA &&
            shard_alpa_init(&scratch, &m->job->graph, &m->job->nests, m->req, &alpa, cost,
                            err)) {
            ap_cost_free(cost);
            rc = -1;
        }
    }
    ap_arena_free(&scratch);
    return rc;
}

static int place_of(struct serve_memo *m, const struct serve_place *place,
                    struct ap_err *err)
{
    for (int i = 0; i < m->n_placed; i++)
        if (same_place(&m->placed[i]->place, place))
            return i;
    struct placed *p = ap_xrealloc(NULL, sizeof *p);
    p->place = *place;
    p->start = NULL;
    p->sizes = (struct ap_stage_known){.n = 0};
    for (int a = 0; a < place->mesh.n_axes; a++) /* names live as long as a request */
        p->place.mesh.name[a] = &"x\0y\0z\0w\0v\0u"[2 * a];
    int rc = lay_cost(m, AP_COST_DEFAULT, &p->place, &p->cost, err);
    if (rc == 0 && lay_cost(m, (enum ap_cost_variant)m->req->cost_model, &p->place,
                            &p->model, err)) {
        ap_cost_free(&p->cost);
        rc = -1;
    }
    if (rc) {
        free(p);
        return -1;
    }
    AP_ROOM(m->placed, m->n_placed, m->cap_placed);
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
 * The place that is searched for all places with this mesh: the one with the fewest
 * hosts. A place whose mesh has no such arrangement is searched itself.
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

uint64_t serve_memo_rows(const struct serve_memo *m, const struct serve_microbatches *t,
                         const struct ap_mesh *mesh)
{
    bool knows = shard_algorithms()[m->req->algorithm].run == shard_ilp;
    return knows ? serve_microbatches_rows(t, mesh) : 0;
}

/* An integer program for few rows starts from the mesh's plans for many rows. */
static const struct serve_searched *search(struct serve_memo *m, int at, uint64_t rows,
                                           const struct serve_microbatches *t)
{
    struct placed *placed = m->placed[at];
    const struct serve_pool *wide = NULL;

    for (int i = 0; i < m->n_searched; i++)
        if (m->searched[i]->place == at && m->searched[i]->rows == rows)
            return m->searched[i];
    if (rows)
        wide = search(m, at, 0, t)->pool;
    struct serve_searched *s = ap_xrealloc(NULL, sizeof *s);
    *s = (struct serve_searched){.place = at, .rows = rows};
    m->n_searches++;
    if (!m->tied) {
        serve_tie(&m->arena, &m->job->graph, &m->job->nests, m->families, m->req,
                  &m->ties);
        serve_border_rows(&m->arena, m->b, &m->job->nests, &m->rows);
    }
    m->tied = true;
    if (!placed->start)
        placed->start = serve_start_new(&m->job->graph, &m->job->nests, m->families,
                                        &placed->model, m->req);
    s->pool = serve_search(placed->start, &m->ties, rows ? &t->axis : NULL, wide, m->req,
                           &s->why);
    if (s->pool)
        serve_searched_describe(m->b, &m->job->nests, &placed->cost, &m->rows, s);
    AP_ROOM(m->searched, m->n_searched, m->cap_searched);
    m->searched[m->n_searched++] = s;
    return s;
}

static const struct serve_searched *searched_for(struct serve_memo *m, int place,
                                                 const struct serve_microbatches *t)
{
    int at = place_to_search(m, place);
    return search(m, at, serve_memo_rows(m, t, &m->placed[at]->cost.mesh), t);
}

static int find_blocks(struct serve_memo *m, struct ap_arena *arena,
                       const struct serve_question *q, int place,
                       const struct serve_microbatches *t, struct serve_found *found,
                       struct ap_err *err)
{
    const struct serve_searched *s = searched_for(m, place, t);
    struct serve_prices *prices = &found->prices;
    if (!s->pool)
        return ap_err_set(err, "%s", s->why.msg);
    found->pool = s->pool;
    found->border = &s->border;
    *prices = (struct serve_prices){.n = s->pool->n};
    prices->measure = AP_NEW_N(arena, s->pool->n + 1, struct ap_stage_measure);
    const struct serve_run run = {s, place, t};
    if (serve_sum(m, &run, q->n_blocks, q->block, prices, err))
        return -1;
    for (int i = 0; i < q->n_blocks; i++)
        prices->bound += s->bound[q->block[i]];
    if (!serve_pool_in_seconds(s->pool) || !isfinite(prices->objective))
        prices->objective = -1;
    if (q->n_blocks == m->b->n && s->place == place && serve_pool_in_seconds(s->pool))
        prices->bound = fmax(prices->bound, s->pool->bound);
    return 0;
}

static int find_nodes(struct serve_memo *m, struct ap_arena *arena,
                      const struct serve_question *q, int place,
                      const struct serve_microbatches *t, struct serve_found *found,
                      struct ap_err *err)
{
    const struct ap_cost *cost = &m->placed[place]->cost;
    bool *inside = AP_NEW_N(arena, m->job->graph.n_nodes, bool);

    for (int v = q->lo; v <= q->hi; v++)
        inside[v] = true;
    free_nodes(m);
    m->nodes = serve_part_of_nodes(&m->job->graph, inside, err);
    if (!m->nodes)
        return -1;
    m->n_searches++;
    struct serve_ties alone;
    serve_tie(&m->nodes->arena, &m->nodes->sub.graph, &m->nodes->nests, NULL, m->req,
              &alone);
    m->nodes_start = serve_start_new(&m->nodes->sub.graph, &m->nodes->nests, NULL,
                                     &m->placed[place]->model, m->req);
    m->nodes_pool = serve_search(m->nodes_start, &alone, NULL, NULL, m->req, err);
    if (!m->nodes_pool)
        return -1;
    const struct serve_pool *pool = m->nodes_pool;
    const struct ap_stage_microbatch *const microbatch = &t->axis;
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
        serve_part_price(&scratch, m->nodes, &plan, cost, &sizes,
                         &(struct serve_wanted){1, &microbatch, false, &operators,
                                                &found->prices.measure[i],
                                                i == 0 ? &whole : NULL});
    }
    ap_arena_free(&sizes.arena);
    ap_arena_free(&scratch);
    found->prices.objective = -1;
    if (!serve_pool_in_seconds(pool))
        return 0;
    found->prices.objective = whole;
    found->prices.bound = m->nodes_pool->bound;
    for (int g = 0; g < m->nodes->nests.n && found->prices.bound <= 0; g++)
        found->prices.bound += m->nodes_pool->least_sec[g];
    return 0;
}

int serve_memo_find(struct serve_memo *m, struct ap_arena *arena,
                    const struct serve_question *q, struct serve_found *found,
                    struct ap_err *err)
{
    const struct serve_microbatches *t = microbatches_of(m, q->microbatches, err);
    int p = t ? place_of(m, &q->place, err) : -1;
    if (p < 0)
        return -1;
    *found = (struct serve_found){.cost = &m->placed[p]->cost, .microbatch = &t->axis};
    return q->n_blocks > 0 ? find_blocks(m, arena, q, p, t, found, err)
                           : find_nodes(m, arena, q, p, t, found, err);
}
