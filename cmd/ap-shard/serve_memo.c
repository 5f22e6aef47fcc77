/*
 * Problem: a planner of pipelines asks for thousands of runs of blocks on dozens of
 * meshes. Idea: the whole graph is searched once per mesh, and a run takes its plans over
 * (serve_part.c). What a plan costs is then a sum: over the blocks, each as if it stood
 * alone, and over pairs of neighbours (and of blocks that share a value across others),
 * by which a pair costs more or less than its two blocks. Blocks and pairs that are
 * equal, with equal choices, are priced once; their operators once for all places with
 * the mesh, which differ in conversions. The largest working set of a run is that of its
 * pairs. Sums are exact where no value is shared by three blocks of which two need the
 * same conversion; scalars may be counted twice. Whoever asks for a plan itself gets its
 * own price with it. Cost: per mesh a search and a price of three times the distinct
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
    /* of a place that is searched; rules: NULL until it is */
    struct serve_rules *rules;
    struct ap_stage_known sizes;
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
    struct serve_prices prices; /* measure: malloc */
};

/* One plan of them: searches on a mesh share most. */
struct plan_price {
    struct price_key key;
    struct ap_stage_measure measure;
    double whole; /* seconds, all at once; of the first plan of a pool */
};

struct serve_memo {
    const struct shard_job *job;
    const struct shard_request *req;
    const struct serve_blocks *b;
    struct ap_arena arena; /* contents, costs: what stays */
    struct placed **placed;
    struct serve_time **timed;
    struct serve_shape **shaped;
    struct listed *listed;
    struct priced **priced;
    struct plan_price *one;
    int n_placed, cap_placed, n_timed, cap_timed, n_shaped, cap_shaped, n_listed,
        cap_listed, n_priced, cap_priced, n_one, cap_one;
    int *listed_at, *priced_at, *one_at; /* hash tables: index + 1 */
    size_t listed_mask, priced_mask, one_mask;
    const struct ap_families *families; /* NULL: the document has none */
    struct serve_book book;             /* of the whole graph */
    struct serve_ties ties;             /* of the whole graph, once tied */
    bool tied;
    struct serve_rows rows; /* of the borders, once tied */
    int64_t bytes;          /* of the parts */
    int n_searches;
    int *alone_at,
        *pair_at; /* [block]: list + 1 of it, of it and the next; 0: not known */
    /* the last part by nodes */
    struct serve_part *nodes;
    struct serve_book nodes_book;
    struct serve_rules *nodes_rules;
    struct serve_pool *nodes_pool;
};

struct serve_memo *serve_memo_new(const struct shard_job *job,
                                  const struct shard_request *req,
                                  const struct serve_blocks *b)
{
    struct serve_memo *memo = ap_xrealloc(NULL, sizeof *memo);
    *memo = (struct serve_memo){.job = job, .req = req, .b = b};
    memo->alone_at = AP_NEW_N(&memo->arena, b->n + 1, int);
    memo->pair_at = AP_NEW_N(&memo->arena, b->n + 1, int);
    memo->book.shelf = serve_shelf_new(job->nests.n, job->graph.n_nodes);
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
    m->timed = room(m->timed, m->n_timed, &m->cap_timed, sizeof(struct serve_time *));
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

/* Rules, and searches that do not know of rows, give one answer for all numbers. */
static uint64_t rows_of(const struct serve_memo *m, const struct serve_time *t,
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
    m->shaped =
        room(m->shaped, m->n_shaped, &m->cap_shaped, sizeof(struct serve_shape *));
    m->shaped[m->n_shaped++] = s;
    return s;
}

static const struct serve_shape *shape_of(struct serve_memo *m, int place,
                                          const struct serve_time *t)
{
    int at = place_to_search(m, place);
    return search(m, at, rows_of(m, t, &m->placed[at]->cost.mesh), t);
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

static int find_list(struct serve_memo *m, int n, const int *block)
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

/* The first list that equals this one. */
static int list_of(struct serve_memo *m, int n, const int *block)
{
    int *known = n == 1                               ? &m->alone_at[block[0]]
                 : n == 2 && block[1] == block[0] + 1 ? &m->pair_at[block[0]]
                                                      : NULL;
    if (!known)
        return find_list(m, n, block);
    if (*known == 0)
        *known = find_list(m, n, block) + 1;
    return *known - 1;
}

static bool is_own(const struct listed *l, int n, const int *block)
{
    return l->content.n == n &&
           memcmp(l->content.block, block, (size_t)n * sizeof *block) == 0;
}

/* ---- prices ---- */

static struct priced *priced_new(const struct serve_pool *pool)
{
    struct priced *p = ap_xrealloc(NULL, sizeof *p);
    size_t bytes = (size_t)(pool->n + 1) * sizeof(struct ap_stage_measure);
    *p = (struct priced){.prices = {.n = pool->n, .objective = -1}};
    p->prices.measure = ap_xrealloc(NULL, bytes);
    memset(p->prices.measure, 0, bytes);
    return p;
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

static uint64_t hash_one(const struct serve_memo *m, int i)
{
    return hash_key(&m->one[i].key);
}

static bool match_one(const struct serve_memo *m, int i, const void *key)
{
    return memcmp(&m->one[i].key, key, sizeof(struct price_key)) == 0;
}

/* A list of blocks on a place, under the plans of a search. */
struct spot {
    const struct serve_shape *shaped;
    int list, place;
    int n;
    const int *block;
};

/* Of plan p. */
static struct price_key key_of_plan(const struct spot *at, int p,
                                    const struct serve_time *t)
{
    struct price_key key = {at->list, at->place, t->n, p == 0};
    for (int i = 0; i < at->n; i++) {
        int block = at->block[i];
        const uint64_t h[2] = {at->shaped->hash[p][block], t->hash[block]};
        key.hash = ap_hash(h, sizeof h, key.hash);
    }
    return key;
}

/* Of all plans. */
static struct price_key key_of(const struct spot *at, const struct serve_time *t)
{
    struct price_key key = {at->list, at->place, t->n, 0};
    for (int i = 0; i < at->n; i++) {
        const uint64_t h[2] = {at->shaped->all[at->block[i]], t->hash[at->block[i]]};
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
        return serve_part_new(m->b, &m->job->nests, m->ties.fold.twin, n, block, err);
    if (!l->part) {
        l->part = serve_part_new(m->b, &m->job->nests, m->ties.fold.twin, n, block, err);
        m->bytes += l->part ? l->part->bytes : 0;
    }
    return l->part;
}

static const struct plan_price *find_one(const struct serve_memo *m,
                                         const struct price_key *key)
{
    int i = find(m, m->one_at, m->one_mask, hash_key(key), match_one, key);
    return i < 0 ? NULL : &m->one[i];
}

static void enter_one(struct serve_memo *m, struct plan_price one)
{
    m->one = room(m->one, m->n_one, &m->cap_one, sizeof *m->one);
    m->one[m->n_one++] = one;
    enter_last(m, &m->one_at, &m->one_mask, m->n_one, hash_one);
}

/* That of operators alone, for all places with the mesh. */
static struct price_key key_alone(const struct spot *at, struct price_key key)
{
    key.place = ~at->shaped->place;
    return key;
}

/* Plan p of a list, for n numbers of microbatches: into out, from what is known. */
static void price_one(struct serve_memo *m, const struct spot *at, int p,
                      struct serve_part *part, int n, const struct serve_time *const *t,
                      struct priced *const *out)
{
    struct ap_arena scratch = {0};
    const struct ap_stage_time **time =
        AP_NEW_N(&scratch, n, const struct ap_stage_time *);
    struct price_key *key = AP_NEW_N(&scratch, n, struct price_key);
    struct ap_stage_measure *measure = AP_NEW_N(&scratch, n, struct ap_stage_measure);
    struct ap_stage_measure *alone = AP_NEW_N(&scratch, n, struct ap_stage_measure);
    int *new = AP_NEW_N(&scratch, n, int), n_new = 0;
    bool known = true;
    double whole;

    for (int k = 0; k < n; k++) {
        key[n_new] = key_of_plan(at, p, t[k]);
        const struct plan_price *one = find_one(m, &key[n_new]);
        if (!one) {
            const struct price_key mesh = key_alone(at, key[n_new]);
            const struct plan_price *without = find_one(m, &mesh);
            known &= without != NULL;
            if (without)
                alone[n_new] = without->measure;
            time[n_new] = &t[k]->time;
            new[n_new++] = k;
            continue;
        }
        out[k]->prices.measure[p] = one->measure;
        if (p == 0)
            out[k]->prices.objective = one->whole;
    }
    if (n_new > 0) {
        const struct serve_shape *s = at->shaped;
        const struct ap_cost *cost = &m->placed[at->place]->cost;
        struct ap_plan plan =
            serve_part_plan(&scratch, part, s->pool, p, &s->border, cost);
        serve_part_price(&scratch, part, &plan, cost, n_new, time,
                         &m->placed[s->place]->sizes, known, alone, measure,
                         p == 0 ? &whole : NULL);
    }
    for (int k = 0; k < n_new; k++) {
        const struct price_key mesh = key_alone(at, key[k]);
        out[new[k]]->prices.measure[p] = measure[k];
        if (p == 0)
            out[new[k]]->prices.objective = whole;
        enter_one(m, (struct plan_price){key[k], measure[k], p == 0 ? whole : INFINITY});
        if (!known && !find_one(m, &mesh))
            enter_one(m, (struct plan_price){mesh, alone[k], INFINITY});
    }
    ap_arena_free(&scratch);
}

/* A list of blocks, priced for all numbers of microbatches that were named so far and
 * have these plans. */
static const struct serve_prices *
price_list(struct serve_memo *m, const struct serve_shape *s, int place, int n,
           const int *block, const struct serve_time *t, struct ap_err *err)
{
    const struct spot at = {s, list_of(m, n, block), place, n, block};
    struct price_key key = key_of(&at, t);
    int i = find(m, m->priced_at, m->priced_mask, hash_key(&key), match_priced, &key);
    if (i >= 0)
        return &m->priced[i]->prices;
    struct serve_part *part = part_of(m, at.list, n, block, err);
    if (!part)
        return NULL;
    struct ap_arena scratch = {0};
    struct priced **new = AP_NEW_N(&scratch, m->n_timed, struct priced *);
    const struct serve_time **time =
        AP_NEW_N(&scratch, m->n_timed, const struct serve_time *);
    int first = 0, n_new = 0;
    for (int k = 0; k < m->n_timed; k++) {
        if (rows_of(m, m->timed[k], &m->placed[s->place]->cost.mesh) != s->rows)
            continue;
        key = key_of(&at, m->timed[k]);
        if (find(m, m->priced_at, m->priced_mask, hash_key(&key), match_priced, &key) >=
            0)
            continue;
        first = m->timed[k] == t ? n_new : first;
        time[n_new] = m->timed[k];
        new[n_new] = priced_new(s->pool);
        new[n_new++]->key = key;
    }
    for (int p = 0; p < s->pool->n; p++)
        price_one(m, &at, p, part, n_new, time, new);
    const struct serve_prices *prices = &new[first]->prices;
    for (int k = 0; k < n_new; k++) {
        if (s->pool->objective < 0)
            new[k]->prices.objective = -1;
        m->priced = room(m->priced, m->n_priced, &m->cap_priced, sizeof(struct priced *));
        m->priced[m->n_priced++] = new[k];
        enter_last(m, &m->priced_at, &m->priced_mask, m->n_priced, hash_priced);
    }
    ap_arena_free(&scratch);
    if (!is_own(&m->listed[at.list], n, block))
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
    const struct serve_shape *shaped;
    const struct serve_time *time;
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
    const struct ap_stage_time *const time = &t->time;
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
