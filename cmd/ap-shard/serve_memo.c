/*
 * Problem: a planner of pipelines asks for thousands of runs of blocks on dozens of
 * meshes. Idea: the whole graph is searched once per mesh, and a run takes its plans over
 * (serve_part.c). What a plan costs is then a sum: over the blocks, each as if it stood
 * alone, and over pairs of neighbours (and of blocks that share a value across others),
 * by which a pair costs more or less than its two blocks. Blocks and pairs that are
 * equal, with equal choices, are priced once. The largest working set of a run is that of
 * its pairs. Sums are exact where no value is shared by three blocks of which two need
 * the same conversion; scalars may be counted twice. Whoever asks for a plan itself gets
 * its own price with it. Cost: per mesh a search and a price of three times the distinct
 * blocks; per run a sum over its blocks.
 */
#include "serve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOGETHER 1024

/* A mesh laid over a part of the cluster. */
struct placed {
    struct serve_place place;
    struct ap_cost cost;
};

struct timed {
    int64_t n;
    struct ap_arena arena;
    struct ap_stage_time time;
    uint64_t *hash; /* [block]: of what its nodes do */
    uint64_t dims;  /* hash of the dimensions that are split */
    int64_t *rows;  /* distinct sizes of them, ascending */
    int n_rows;
};

/* Plans of the whole graph for all places with this mesh. */
struct shaped {
    int place;     /* that they were searched for */
    uint64_t rows; /* which devices have none, see rows_key */
    struct ap_arena arena;
    struct serve_pool *pool; /* NULL: why */
    struct ap_err why;
    struct serve_border border;
    uint64_t *hash; /* [block]: of the choices of its groups, and of what it reads */
    double *bound;  /* [block]: no plan of its groups is below the sum */
};

/* A list of blocks that is priced, not added up; equal ones are one. */
struct listed {
    struct serve_content content;
    struct serve_part *part; /* NULL: not cut, or not any more */
};

struct price_key {
    int list, place;
    int64_t microbatches;
    uint64_t hash; /* of the choices and times of the very blocks */
};

struct priced {
    struct price_key key;
    struct ap_arena arena;
    struct serve_prices prices;
};

struct serve_memo {
    const struct shard_job *job;
    const struct shard_request *req;
    const struct serve_blocks *b;
    struct ap_arena arena; /* contents, costs: what stays */
    struct placed **placed;
    struct timed **timed;
    struct shaped **shaped;
    struct listed *listed;
    struct priced **priced;
    int n_placed, cap_placed, n_timed, cap_timed, n_shaped, cap_shaped, n_listed,
        cap_listed, n_priced, cap_priced;
    int *listed_at, *priced_at; /* hash tables: index + 1 */
    size_t listed_mask, priced_mask;
    const struct ap_families *families; /* NULL: the document has none */
    struct shard_fold fold;             /* of the whole graph, once folded */
    bool folded;
    int64_t bytes; /* of the parts */
    int n_searches;
    /* the last part by nodes */
    struct serve_part *nodes;
    struct serve_pool *nodes_pool;
};

struct serve_memo *serve_memo_new(const struct shard_job *job,
                                  const struct shard_request *req,
                                  const struct serve_blocks *b)
{
    struct serve_memo *memo = ap_xrealloc(NULL, sizeof *memo);
    *memo = (struct serve_memo){.job = job, .req = req, .b = b};
    memo->families = job->has_families ? &job->families : NULL;
    return memo;
}

/* ---- lists that grow, tables over them ---- */

static void *room(void *list, int n, int *cap, size_t size)
{
    if (n < *cap)
        return list;
    *cap = *cap ? 2 * *cap : 32;
    return ap_xrealloc(list, (size_t)*cap * size);
}

/* The table's slot of a hash: where a match ends, or the free one behind all misses. */
typedef bool match_fn(const struct serve_memo *memo, int index, const void *key);

static int find(const struct serve_memo *memo, const int *at, size_t mask, uint64_t hash,
                match_fn *match, const void *key)
{
    for (size_t i = hash & mask; at && at[i]; i = (i + 1) & mask)
        if (match(memo, at[i] - 1, key))
            return at[i] - 1;
    return -1;
}

static void enter(int *at, size_t mask, uint64_t hash, int index)
{
    size_t i = hash & mask;
    while (at[i])
        i = (i + 1) & mask;
    at[i] = index + 1;
}

typedef uint64_t hash_fn(const struct serve_memo *memo, int index);

/* Enters item n - 1, the last one. */
static void enter_last(const struct serve_memo *memo, int **at, size_t *mask, int n,
                       hash_fn *hash)
{
    if (2 * (size_t)n < *mask) {
        enter(*at, *mask, hash(memo, n - 1), n - 1);
        return;
    }
    *mask = *mask ? 2 * *mask + 1 : 63;
    free(*at);
    *at = ap_xrealloc(NULL, (*mask + 1) * sizeof **at);
    memset(*at, 0, (*mask + 1) * sizeof **at);
    for (int i = 0; i < n; i++)
        enter(*at, *mask, hash(memo, i), i);
}

/* ---- forgetting ---- */

static void free_nodes(struct serve_memo *m)
{
    if (m->nodes)
        serve_part_free(m->nodes);
    if (m->nodes_pool)
        serve_pool_free(m->nodes_pool);
    m->nodes = NULL;
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
    for (int i = 0; i < m->n_placed; i++) {
        ap_cost_free(&m->placed[i]->cost);
        free(m->placed[i]);
    }
    for (int i = 0; i < m->n_timed; i++) {
        ap_arena_free(&m->timed[i]->arena);
        free(m->timed[i]);
    }
    for (int i = 0; i < m->n_shaped; i++) {
        if (m->shaped[i]->pool)
            serve_pool_free(m->shaped[i]->pool);
        ap_arena_free(&m->shaped[i]->arena);
        free(m->shaped[i]);
    }
    for (int i = 0; i < m->n_priced; i++) {
        ap_arena_free(&m->priced[i]->arena);
        free(m->priced[i]);
    }
    void *lists[] = {m->placed, m->timed,     m->shaped,   m->listed,
                     m->priced, m->listed_at, m->priced_at};
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

static void hash_time(const struct serve_blocks *b, struct timed *t)
{
    t->hash = AP_NEW_N(&t->arena, b->n + 1, uint64_t);
    for (int i = 0; i < b->n; i++) {
        for (int k = b->node_start[i]; k < b->node_start[i + 1]; k++) {
            int v = b->node[k];
            const bool key[3] = {t->time.split[v], t->time.runs[v],
                                 t->time.each && t->time.each[v]};
            t->hash[i] = ap_hash(key, sizeof key, t->hash[i]);
        }
        for (int e = b->ext_start[i]; e < b->ext_start[i + 1]; e++)
            t->hash[i] = ap_hash(&t->time.split[b->ext[e]], sizeof(bool), t->hash[i]);
        for (int e = b->ext_start[i]; e < b->ext_start[i + 1] && t->time.each; e++)
            t->hash[i] = ap_hash(&t->time.each[b->ext[e]], sizeof(bool), t->hash[i]);
    }
}

static int compare_rows(const void *pa, const void *pb)
{
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return (a > b) - (a < b);
}

static void list_rows(const struct ap_graph *g, struct timed *t)
{
    int n = 0;
    t->rows = AP_NEW_N(&t->arena, g->n_nodes + 1, int64_t);
    for (int v = 0; v < g->n_nodes; v++)
        if (t->time.dim[v] >= 0)
            t->rows[n++] = g->nodes[v].shape.dims[t->time.dim[v]];
    qsort(t->rows, (size_t)n, sizeof *t->rows, compare_rows);
    for (int i = 0; i < n; i++)
        if (i == 0 || t->rows[i] != t->rows[i - 1])
            t->rows[t->n_rows++] = t->rows[i];
    t->dims = ap_hash(t->time.dim, (size_t)g->n_nodes * sizeof *t->time.dim, 0);
}

/*
 * Equal for numbers of microbatches that leave rows to the same devices under every
 * choice, so that the search is the same; 0: every device has some.
 */
static uint64_t rows_key(const struct timed *t, const struct ap_mesh *mesh)
{
    uint64_t key = t->dims;
    bool any = false;
    for (int i = 0; i < t->n_rows && t->rows[i] / t->n < ap_mesh_devices(mesh); i++)
        for (unsigned set = 1; set < 1u << mesh->n_axes; set++) {
            int64_t devices = 1;
            for (int a = 0; a < mesh->n_axes; a++)
                devices *= set >> a & 1 ? mesh->size[a] : 1;
            bool few = t->rows[i] / t->n < devices;
            key = ap_hash(&few, sizeof few, key);
            any |= few;
        }
    return any ? key | 1 : 0;
}

static const struct timed *one_time(struct serve_memo *m, int64_t n, struct ap_err *err)
{
    for (int i = 0; i < m->n_timed; i++)
        if (m->timed[i]->n == n)
            return m->timed[i];
    struct timed *t = ap_xrealloc(NULL, sizeof *t);
    *t = (struct timed){.n = n};
    struct ap_err why = {0};
    if (ap_stage_time_of(&t->arena, &m->job->graph, &m->job->nests, n, &t->time, &why)) {
        ap_arena_free(&t->arena);
        free(t);
        ap_err_set(err, "%lld microbatches: %s", (long long)n, why.msg);
        return NULL;
    }
    if (m->b->n > 0)
        t->time.block_of = m->b->home;
    hash_time(m->b, t);
    list_rows(&m->job->graph, t);
    m->timed = room(m->timed, m->n_timed, &m->cap_timed, sizeof(struct timed *));
    m->timed[m->n_timed++] = t;
    return t;
}

/*
 * Whoever asks for a second number of microbatches asks for more: with it, all powers of
 * two that the batch has are got ready, to be priced together.
 */
static const struct timed *time_of(struct serve_memo *m, int64_t n, struct ap_err *err)
{
    struct ap_err ignored = {0};
    int before = m->n_timed;
    const struct timed *t = one_time(m, n, err);
    for (int64_t k = 1; t && before == 1 && m->n_timed > 1 && k <= MOST_TOGETHER; k *= 2)
        if (!one_time(m, k, &ignored))
            break;
    return t;
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
    for (int a = 0; a < place->mesh.n_axes; a++) /* names live as long as a request */
        p->place.mesh.name[a] = "x\0y\0z\0w\0v\0u" + 2 * a;
    int rc = ap_cost_init(&scratch, &p->cost, (enum ap_cost_variant)m->req->cost_model,
                          &place->cluster, &p->place.mesh, err);
    ap_arena_free(&scratch);
    if (rc) {
        free(p);
        return -1;
    }
    m->placed = room(m->placed, m->n_placed, &m->cap_placed, sizeof(struct placed *));
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

static uint64_t hash_choices(const struct serve_pool *pool, int group, uint64_t h)
{
    for (int i = 0; i < pool->n; i++)
        h = ap_hash(&pool->choice[i][group], sizeof pool->choice[i][group], h);
    return h;
}

static void hash_blocks(const struct serve_memo *m, struct shaped *s)
{
    const struct serve_blocks *b = m->b;
    const struct ap_graph *g = &m->job->graph;
    const struct serve_pool *pool = s->pool;

    s->hash = AP_NEW_N(&s->arena, b->n + 1, uint64_t);
    s->bound = AP_NEW_N(&s->arena, b->n + 1, double);
    for (int i = 0; i < b->n; i++) {
        uint64_t h = 1;
        for (int k = b->node_start[i]; k < b->node_start[i + 1]; k++) {
            int v = b->node[k], group = g->nodes[v].group;
            for (int p = 0; p < pool->n; p++)
                if (pool->remake[p])
                    h = ap_hash(&pool->remake[p][v], sizeof(bool), h);
            if (v == m->job->nests.nest[group].members[0])
                h = hash_choices(pool, group, h);
        }
        for (int e = b->ext_start[i]; e < b->ext_start[i + 1]; e++) {
            int row = s->border.number[b->ext[e]];
            for (int p = 0; p < pool->n && row >= 0; p++) {
                uint64_t l = ap_layout_hash(&s->border.layout[p][row]);
                h = ap_hash(&l, sizeof l, h);
            }
        }
        s->hash[i] = h;
    }
    for (int k = 0; k < m->job->nests.n && pool->objective >= 0; k++) {
        const struct ap_nest *nest = &m->job->nests.nest[k];
        bool inside = true;
        for (int i = 1; i < nest->n_members; i++)
            inside &= b->home[nest->members[i]] == b->home[nest->members[0]];
        if (inside)
            s->bound[b->home[nest->members[0]]] += pool->least_sec[k];
    }
}

static const struct shaped *shape_of(struct serve_memo *m, int place,
                                     const struct timed *t)
{
    int at = place_to_search(m, place);
    const struct ap_cost *cost = &m->placed[at]->cost;
    uint64_t rows = rows_key(t, &cost->mesh);
    for (int i = 0; i < m->n_shaped; i++)
        if (m->shaped[i]->place == at && m->shaped[i]->rows == rows)
            return m->shaped[i];
    struct shaped *s = ap_xrealloc(NULL, sizeof *s);
    *s = (struct shaped){.place = at, .rows = rows};
    m->n_searches++;
    if (!m->folded)
        serve_fold(&m->arena, &m->job->graph, &m->job->nests, m->families, &m->fold);
    m->folded = true;
    s->pool = serve_search(&m->job->graph, &m->job->nests, m->families, &m->fold, cost,
                           rows ? &t->time : NULL, m->req, &s->why);
    if (s->pool) {
        serve_border_find(&s->arena, m->b, &m->job->nests, s->pool, cost, &s->border);
        hash_blocks(m, s);
    }
    m->shaped = room(m->shaped, m->n_shaped, &m->cap_shaped, sizeof(struct shaped *));
    m->shaped[m->n_shaped++] = s;
    return s;
}

/* ---- lists of blocks ---- */

static uint64_t hash_listed(const struct serve_memo *m, int i)
{
    return m->listed[i].content.hash;
}

static bool match_listed(const struct serve_memo *m, int i, const void *key)
{
    return serve_content_equal(&m->listed[i].content, key);
}

/* The first list that equals this one. */
static int list_of(struct serve_memo *m, int n, const int *block)
{
    struct serve_content c;
    struct ap_mark mark = ap_arena_mark(&m->arena);
    serve_content_of(&m->arena, m->b, n, block, &c);
    int i = find(m, m->listed_at, m->listed_mask, c.hash, match_listed, &c);
    if (i >= 0) {
        ap_arena_rewind(&m->arena, mark);
        return i;
    }
    m->listed = room(m->listed, m->n_listed, &m->cap_listed, sizeof *m->listed);
    m->listed[m->n_listed++] = (struct listed){.content = c};
    enter_last(m, &m->listed_at, &m->listed_mask, m->n_listed, hash_listed);
    return m->n_listed - 1;
}

static bool is_own(const struct listed *l, int n, const int *block)
{
    return l->content.n == n &&
           memcmp(l->content.block, block, (size_t)n * sizeof *block) == 0;
}

/* ---- prices ---- */

/* Prices of all plans of a part, for n numbers of microbatches: out[n]. */
static void price_plans(struct priced *const *out, int n, const struct serve_part *part,
                        const struct serve_pool *pool, const struct serve_border *border,
                        const struct ap_cost *cost,
                        const struct ap_stage_time *const *time)
{
    struct ap_arena scratch = {0};
    struct ap_err ignored = {0};
    for (int k = 0; k < n; k++) {
        struct serve_prices *prices = &out[k]->prices;
        *prices = (struct serve_prices){.n = pool->n,
                                        .objective = pool->objective < 0 ? -1 : INFINITY};
        prices->measure = AP_NEW_N(&out[k]->arena, pool->n + 1, struct ap_stage_measure);
    }
    for (int i = 0; i < pool->n; i++) {
        struct ap_mark mark = ap_arena_mark(&scratch);
        struct ap_stage_measure *m = AP_NEW_N(&scratch, n, struct ap_stage_measure);
        struct ap_conversions conv;
        struct ap_plan plan =
            part->whole ? serve_part_plan(&scratch, part, pool, i, border, cost)
                        : serve_pool_plan(pool, i, &part->sub.graph, &part->nests, cost);
        if (ap_plan_conversions(&scratch, &plan, cost, &conv, &ignored)) {
            for (int k = 0; k < n; k++)
                out[k]->prices.measure[i].forward_sec = INFINITY; /* not here */
            continue;
        }
        ap_stage_measure_all(&scratch, &part->sub, n, time, &plan, &conv, cost, m);
        double whole = i == 0 ? ap_plan_price(&plan, cost, &conv).serial_sec : 0;
        for (int k = 0; k < n; k++) {
            int64_t rows, devices;
            out[k]->prices.measure[i] = m[k];
            if (ap_stage_few_rows(&part->sub, time[k], &plan, &rows, &devices) >= 0)
                out[k]->prices.measure[i].forward_sec = INFINITY; /* no plan for them */
            if (i == 0 && pool->objective >= 0)
                out[k]->prices.objective = whole;
        }
        ap_arena_rewind(&scratch, mark);
    }
    ap_arena_free(&scratch);
}

static uint64_t hash_key(const struct price_key *key)
{
    return ap_hash(key, sizeof *key, 0);
}

static uint64_t hash_priced(const struct serve_memo *m, int i)
{
    return hash_key(&m->priced[i]->key);
}

static bool match_priced(const struct serve_memo *m, int i, const void *key)
{
    return memcmp(&m->priced[i]->key, key, sizeof(struct price_key)) == 0;
}

static struct price_key key_of(const struct shaped *s, int list, int place, int n,
                               const int *block, const struct timed *t)
{
    struct price_key key = {list, place, t->n, 0};
    for (int i = 0; i < n; i++) {
        const uint64_t h[2] = {s->hash[block[i]], t->hash[block[i]]};
        key.hash = ap_hash(h, sizeof h, key.hash);
    }
    return key;
}

/* Cuts the list, which is to be freed if it is not the memo's own. */
static struct serve_part *part_of(struct serve_memo *m, int list, int n, const int *block,
                                  struct ap_err *err)
{
    struct listed *l = &m->listed[list];
    if (!is_own(l, n, block))
        return serve_part_new(m->b, &m->job->nests, n, block, err);
    if (!l->part) {
        l->part = serve_part_new(m->b, &m->job->nests, n, block, err);
        m->bytes += l->part ? l->part->bytes : 0;
    }
    return l->part;
}

/* A list of blocks, priced for all numbers of microbatches that were named so far and
 * have these plans. */
static const struct serve_prices *price_list(struct serve_memo *m, const struct shaped *s,
                                             int place, int n, const int *block,
                                             const struct timed *t, struct ap_err *err)
{
    int list = list_of(m, n, block), n_new = 0;
    struct price_key key = key_of(s, list, place, n, block, t);
    int i = find(m, m->priced_at, m->priced_mask, hash_key(&key), match_priced, &key);
    if (i >= 0)
        return &m->priced[i]->prices;
    struct serve_part *part = part_of(m, list, n, block, err);
    if (!part)
        return NULL;
    struct priced **new = ap_xrealloc(NULL, sizeof *new *(size_t)m->n_timed);
    const struct ap_stage_time **time =
        ap_xrealloc(NULL, sizeof *time * (size_t)m->n_timed);
    int first = 0;
    for (int k = 0; k < m->n_timed; k++) {
        if (rows_key(m->timed[k], &m->placed[s->place]->cost.mesh) != s->rows)
            continue;
        key = key_of(s, list, place, n, block, m->timed[k]);
        if (find(m, m->priced_at, m->priced_mask, hash_key(&key), match_priced, &key) >=
            0)
            continue;
        first = m->timed[k] == t ? n_new : first;
        time[n_new] = &m->timed[k]->time;
        new[n_new] = ap_xrealloc(NULL, sizeof **new);
        *new[n_new++] = (struct priced){.key = key};
    }
    price_plans(new, n_new, part, s->pool, &s->border, &m->placed[place]->cost, time);
    const struct serve_prices *prices = &new[first]->prices;
    for (int k = 0; k < n_new; k++) {
        m->priced = room(m->priced, m->n_priced, &m->cap_priced, sizeof(struct priced *));
        m->priced[m->n_priced++] = new[k];
        enter_last(m, &m->priced_at, &m->priced_mask, m->n_priced, hash_priced);
    }
    free(new);
    free(time);
    if (!is_own(&m->listed[list], n, block))
        serve_part_free(part);
    return prices;
}

/* ---- sums ---- */

/* Adds a list's prices so many times; the largest of a kind stays. */
static void add(struct serve_prices *sum, const struct serve_prices *p, double times,
                bool largest)
{
    sum->objective += times * p->objective;
    for (int i = 0; i < sum->n; i++) {
        struct ap_stage_measure *m = &sum->measure[i];
        const struct ap_stage_measure *a = &p->measure[i];
        if (!isfinite(a->forward_sec) || !isfinite(m->forward_sec))
            m->forward_sec = INFINITY;
        else
            m->forward_sec += times * a->forward_sec;
        m->backward_sec += times * a->backward_sec;
        m->sync_sec += times * a->sync_sec;
        m->update_sec += times * a->update_sec;
        m->fixed_bytes += times * a->fixed_bytes;
        m->kept_bytes += times * a->kept_bytes;
        m->input_bytes += times * a->input_bytes;
        if (!largest)
            continue;
        m->working_bytes = fmax(m->working_bytes, a->working_bytes);
        m->remade_bytes = fmax(m->remade_bytes, a->remade_bytes);
    }
}

/* A list and a number of microbatches on a place, whose prices are added up. */
struct summing {
    struct serve_memo *memo;
    const struct shaped *shaped;
    const struct timed *time;
    int place;
    struct serve_prices *sum;
};

static int add_list(const struct summing *s, int n, const int *block, double times,
                    bool largest, struct ap_err *err)
{
    const struct serve_prices *p =
        price_list(s->memo, s->shaped, s->place, n, block, s->time, err);
    if (!p)
        return -1;
    add(s->sum, p, times, largest);
    return 0;
}

/* Rounding leaves nothing below zero. */
static void clip(struct serve_prices *sum)
{
    for (int i = 0; i < sum->n; i++) {
        double *v = (double *)&sum->measure[i];
        for (size_t k = 0; k < sizeof *sum->measure / sizeof *v; k++)
            v[k] = fmax(v[k], 0);
    }
}

/* The pairs of neighbours less the blocks that are in two of them; then what others
 * share. */
static int add_run(const struct summing *s, int lo, int hi, struct ap_err *err)
{
    const struct serve_blocks *b = s->memo->b;
    for (int i = lo; i < hi; i++) {
        const int both[2] = {i, i + 1};
        if (add_list(s, 2, both, 1, true, err) ||
            (i > lo && add_list(s, 1, both, -1, false, err)))
            return -1;
    }
    for (int i = 0; i < b->n_pairs; i++) {
        const struct serve_pair *like = &b->pair[b->pair[i].like];
        const int both[2] = {like->a, like->b};
        if (b->pair[i].a < lo || b->pair[i].b > hi)
            continue;
        if (add_list(s, 2, both, 1, false, err) ||
            add_list(s, 1, &both[0], -1, false, err) ||
            add_list(s, 1, &both[1], -1, false, err))
            return -1;
    }
    clip(s->sum);
    return 0;
}

static int find_blocks(struct serve_memo *m, struct ap_arena *arena, int n,
                       const int *block, int place, const struct timed *t,
                       struct serve_found *found, struct ap_err *err)
{
    const struct shaped *s = shape_of(m, place, t);
    struct serve_prices *prices = &found->prices;
    if (!s->pool)
        return ap_err_set(err, "%s", s->why.msg);
    found->pool = s->pool;
    found->border = &s->border;
    *prices = (struct serve_prices){.n = s->pool->n};
    prices->measure = AP_NEW_N(arena, s->pool->n + 1, struct ap_stage_measure);
    const struct summing sum = {m, s, t, place, prices};
    bool run = n > 2 && block[n - 1] - block[0] == n - 1;
    if (run ? add_run(&sum, block[0], block[n - 1], err)
            : add_list(&sum, n, block, 1, true, err))
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
                      int place, const struct timed *t, struct serve_found *found,
                      struct ap_err *err)
{
    const struct ap_cost *cost = &m->placed[place]->cost;
    free_nodes(m);
    m->nodes = serve_part_of_nodes(&m->job->graph, inside, err);
    if (!m->nodes)
        return -1;
    m->n_searches++;
    struct shard_fold alone;
    serve_fold(&m->nodes->arena, &m->nodes->sub.graph, &m->nodes->nests, NULL, &alone);
    m->nodes_pool = serve_search(&m->nodes->sub.graph, &m->nodes->nests, NULL, &alone,
                                 cost, NULL, m->req, err);
    if (!m->nodes_pool)
        return -1;
    found->part = m->nodes;
    found->pool = m->nodes_pool;
    struct priced priced = {0}, *const only = &priced;
    const struct ap_stage_time *const time = &t->time;
    price_plans(&only, 1, m->nodes, m->nodes_pool, NULL, cost, &time);
    found->prices = priced.prices;
    found->prices.measure =
        ap_arena_dup(arena, priced.prices.measure,
                     (size_t)priced.prices.n * sizeof *priced.prices.measure);
    ap_arena_free(&priced.arena);
    found->prices.bound = m->nodes_pool->bound;
    for (int g = 0; g < m->nodes->nests.n && found->prices.bound <= 0; g++)
        found->prices.bound += m->nodes_pool->least_sec[g];
    return 0;
}

int serve_memo_find(struct serve_memo *m, struct ap_arena *arena, int n, const int *block,
                    const bool *inside, const struct serve_place *place,
                    int64_t microbatches, struct serve_found *found, struct ap_err *err)
{
    const struct timed *t = time_of(m, microbatches, err);
    int p = t ? place_of(m, place, err) : -1;
    if (p < 0)
        return -1;
    *found = (struct serve_found){.cost = &m->placed[p]->cost, .time = &t->time};
    return n > 0 ? find_blocks(m, arena, n, block, p, t, found, err)
                 : find_nodes(m, arena, inside, p, t, found, err);
}
