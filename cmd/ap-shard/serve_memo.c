/*
 * Problem: a planner of pipelines asks for thousands of parts, most of them a few layers
 * over and over. Idea: equal parts are one family, and so are parts that differ only in
 * how many equal blocks follow each other. A family's shortest part is searched once per
 * mesh; a plan of it is made longer by giving the blocks in between the choices of the
 * first such block, and all that it costs is then affine in their number (but the largest
 * working set and block, which stay), because each further block brings the same
 * operators and conversions. So two parts, of one period's difference, price all others;
 * a third one says that it is so, and where it is not the part is searched as it is.
 * Cost: a search per family and mesh, three prices per plan and number of microbatches,
 * and a sum per answer.
 */
#include "serve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TOGETHER 1024

struct placed {
    struct serve_place place;
    struct ap_cost cost;
};

struct timed {
    int64_t n;
    struct ap_arena arena;
    struct ap_stage_time time;
    uint64_t *hash; /* [block]: of what its nodes do */
};

struct pooled {
    int family, place;
    struct serve_pool *pool; /* NULL: why */
    struct ap_err why;
};

struct priced {
    int pool, family, extra; /* with no extra periods the family is the pool's */
    int64_t microbatches;
    struct ap_arena arena;
    struct serve_prices prices;
};

/* Which family a list of blocks belongs to. */
struct asked {
    int n, *block; /* malloc */
    int family, extra;
};

struct serve_memo {
    const struct shard_job *job;
    const struct shard_request *req;
    const struct serve_blocks *b;
    struct serve_family *family;
    struct placed *placed;
    struct timed **timed;
    struct pooled *pooled;
    struct priced **priced;
    struct asked *asked;
    int n_families, cap_families, n_placed, cap_placed, n_timed, cap_timed, n_pooled,
        cap_pooled, n_priced, cap_priced, n_asked, cap_asked;
    int *asked_at, *priced_at, *pooled_at; /* hash tables: index + 1 */
    size_t asked_mask, priced_mask, pooled_mask;
    int64_t bytes;
    int n_searches;
    /* the last part by nodes */
    struct serve_family nodes;
    struct serve_pool *nodes_pool;
};

struct serve_memo *serve_memo_new(const struct shard_job *job,
                                  const struct shard_request *req,
                                  const struct serve_blocks *b)
{
    struct serve_memo *memo = ap_xrealloc(NULL, sizeof *memo);
    *memo = (struct serve_memo){.job = job, .req = req, .b = b};
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

static void free_family(struct serve_family *f, bool shared)
{
    for (int d = 0; d < 3; d++) {
        if (f->part[d] && (d > 0 || !shared))
            serve_part_free(f->part[d]);
        free(f->group[d]);
        free(f->node[d]);
    }
    *f = (struct serve_family){0};
}

static void free_nodes(struct serve_memo *m)
{
    free_family(&m->nodes, false);
    if (m->nodes_pool)
        serve_pool_free(m->nodes_pool);
    m->nodes_pool = NULL;
}

static void forget(struct serve_memo *m)
{
    free_nodes(m);
    for (int i = 0; i < m->n_families; i++)
        free_family(&m->family[i], m->family[i].base != i);
    for (int i = 0; i < m->n_placed; i++)
        ap_cost_free(&m->placed[i].cost);
    for (int i = 0; i < m->n_timed; i++) {
        ap_arena_free(&m->timed[i]->arena);
        free(m->timed[i]);
    }
    for (int i = 0; i < m->n_pooled; i++)
        if (m->pooled[i].pool)
            serve_pool_free(m->pooled[i].pool);
    for (int i = 0; i < m->n_priced; i++) {
        ap_arena_free(&m->priced[i]->arena);
        free(m->priced[i]);
    }
    for (int i = 0; i < m->n_asked; i++)
        free(m->asked[i].block);
    void *lists[] = {m->family, m->placed,   m->timed,     m->pooled,   m->priced,
                     m->asked,  m->asked_at, m->priced_at, m->pooled_at};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        free(lists[i]);
    *m = (struct serve_memo){
        .job = m->job, .req = m->req, .b = m->b, .n_searches = m->n_searches};
}

void serve_memo_free(struct serve_memo *memo)
{
    forget(memo);
    free(memo);
}

int serve_memo_searches(const struct serve_memo *memo)
{
    return memo->n_searches;
}

void serve_memo_trim(struct serve_memo *memo, int64_t bytes)
{
    if (memo->bytes > bytes)
        forget(memo);
}

/* ---- time and place ---- */

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
    m->timed = room(m->timed, m->n_timed, &m->cap_timed, sizeof(struct timed *));
    m->timed[m->n_timed++] = t;
    m->bytes += 4 * (int64_t)m->job->graph.n_nodes;
    return t;
}

/*
 * Whoever asks for one number of microbatches asks for others: with the first one, all
 * powers of two that the batch has are got ready, to be priced together.
 */
static const struct timed *time_of(struct serve_memo *m, int64_t n, struct ap_err *err)
{
    struct ap_err ignored = {0};
    bool first = m->n_timed == 0;
    const struct timed *t = one_time(m, n, err);
    for (int64_t k = 1; t && first && k <= MOST_TOGETHER; k *= 2)
        if (!one_time(m, k, &ignored))
            break;
    return t;
}

static bool same_place(const struct serve_place *a, const struct serve_place *b)
{
    if (a->mesh.n_axes != b->mesh.n_axes)
        return false;
    for (int i = 0; i < a->mesh.n_axes; i++)
        if (a->mesh.size[i] != b->mesh.size[i])
            return false;
    for (int l = 0; l < a->cluster.n_levels; l++)
        if (a->cluster.levels[l].size != b->cluster.levels[l].size)
            return false;
    return true;
}

static int place_of(struct serve_memo *m, const struct serve_place *place,
                    struct ap_err *err)
{
    struct ap_arena scratch = {0};
    for (int i = 0; i < m->n_placed; i++)
        if (same_place(&m->placed[i].place, place))
            return i;
    m->placed = room(m->placed, m->n_placed, &m->cap_placed, sizeof *m->placed);
    struct placed *p = &m->placed[m->n_placed];
    p->place = *place;
    for (int a = 0; a < place->mesh.n_axes; a++) /* names live as long as a request */
        p->place.mesh.name[a] = "x\0y\0z\0w\0v\0u" + 2 * a;
    int rc = ap_cost_init(&scratch, &p->cost, (enum ap_cost_variant)m->req->cost_model,
                          &place->cluster, &p->place.mesh, err);
    ap_arena_free(&scratch);
    if (rc)
        return -1;
    m->bytes += (int64_t)sizeof *p + (256 << 10); /* its conversions, about */
    return m->n_placed++;
}

/* ---- families ---- */

static bool same_blocks(const struct serve_content *a, const struct serve_content *b)
{
    return a->n == b->n && memcmp(a->block, b->block, (size_t)a->n * sizeof(int)) == 0;
}

/* The family whose shortest part is this one; new ones are cut out. */
static int family_of(struct serve_memo *m, const struct serve_content *c,
                     const struct serve_period *period, bool own, struct ap_err *err)
{
    int base = -1;
    for (int i = 0; i < m->n_families; i++) {
        const struct serve_family *f = &m->family[i];
        const struct serve_content *have = &f->part[0]->content;
        if (f->own != own || !(own ? same_blocks(have, c) : serve_content_equal(have, c)))
            continue;
        if (f->period.period == period->period && f->period.from == period->from)
            return i;
        base = f->base;
    }
    struct serve_part *part =
        base >= 0 ? m->family[base].part[0] : serve_part_new(m->b, c, err);
    if (!part)
        return -1;
    m->family = room(m->family, m->n_families, &m->cap_families, sizeof *m->family);
    m->family[m->n_families] =
        (struct serve_family){.period = *period,
                              .part = {part},
                              .own = own,
                              .base = base >= 0 ? base : m->n_families};
    m->bytes += part->bytes;
    return m->n_families++;
}

/* Cuts the family's part with one or two extra periods; -1 when it is no longer part 0.
 */
static int lengthen(struct serve_memo *m, struct serve_family *f, int extra,
                    const struct serve_content *c, struct ap_err *err)
{
    if (f->part[extra])
        return 0;
    struct serve_part *part = serve_part_new(m->b, c, err);
    if (!part)
        return -1;
    int *group = ap_xrealloc(NULL, ((size_t)part->nests.n + 1) * sizeof *group);
    int *node = ap_xrealloc(NULL, ((size_t)part->sub.graph.n_nodes + 1) * sizeof *node);
    if (serve_part_map(m->b, part, f->part[0], &f->period, extra, group, node)) {
        free(group);
        free(node);
        serve_part_free(part);
        return -1;
    }
    f->part[extra] = part;
    f->group[extra] = group;
    f->node[extra] = node;
    m->bytes += part->bytes + 4 * (part->nests.n + part->sub.graph.n_nodes);
    return 0;
}

static uint64_t hash_list(int n, const int *block)
{
    return ap_hash(block, (size_t)n * sizeof *block, (uint64_t)n);
}

static uint64_t hash_asked(const struct serve_memo *m, int i)
{
    return hash_list(m->asked[i].n, m->asked[i].block);
}

static bool match_asked(const struct serve_memo *m, int i, const void *key)
{
    const struct asked *a = &m->asked[i], *k = key;
    return a->n == k->n && memcmp(a->block, k->block, (size_t)a->n * sizeof(int)) == 0;
}

/* A family of the part with `extra` periods less, if all its parts exist. */
static int short_family(struct serve_memo *m, struct ap_arena *arena,
                        const struct serve_content *c, const struct serve_period *p)
{
    struct serve_content less[3];
    struct serve_period period = {p->from, p->period, 0};
    struct ap_err ignored = {0};

    for (int d = 0; d <= 2 && d <= p->extra; d++)
        if (serve_content_drop(arena, m->b, c, p, p->extra - d, &less[d]))
            return -1;
    int i = family_of(m, &less[0], &period, false, &ignored);
    if (i < 0)
        return -1;
    for (int d = 1; d <= 2 && d <= p->extra; d++)
        if (lengthen(m, &m->family[i], d, &less[d], &ignored))
            return -1;
    return i;
}

/* The family of the very part, or of the first one that equals it. */
static int whole_family(struct serve_memo *m, struct ap_arena *arena,
                        const struct serve_content *c, struct ap_err *err)
{
    struct serve_period none = {0};
    struct serve_content first;

    if (serve_content_drop(arena, m->b, c, &none, 0, &first))
        first = *c;
    return family_of(m, &first, &none, false, err);
}

static int ask(struct serve_memo *m, struct ap_arena *arena, int n, const int *block,
               struct ap_err *err)
{
    struct asked key = {.n = n, .block = (int *)block};
    int i = find(m, m->asked_at, m->asked_mask, hash_list(n, block), match_asked, &key);
    if (i >= 0)
        return i;
    struct serve_content c;
    serve_content_of(arena, m->b, n, block, &c);
    struct serve_period p = serve_content_period(m->b, &c);
    shard_fn *run = shard_algorithms()[m->req->algorithm].run;
    key.family = -1;
    if (p.extra > 0 && (run == shard_ilp || run == shard_rule))
        key.family = short_family(m, arena, &c, &p);
    key.extra = key.family < 0 ? 0 : p.extra;
    if (key.family < 0)
        key.family = whole_family(m, arena, &c, err);
    if (key.family < 0)
        return -1;
    key.block = ap_xrealloc(NULL, (size_t)n * sizeof *block);
    memcpy(key.block, block, (size_t)n * sizeof *block);
    m->asked = room(m->asked, m->n_asked, &m->cap_asked, sizeof *m->asked);
    m->asked[m->n_asked++] = key;
    m->bytes += (int64_t)sizeof key + 4 * n;
    enter_last(m, &m->asked_at, &m->asked_mask, m->n_asked, hash_asked);
    return m->n_asked - 1;
}

/* Whether microbatches run through these blocks as through the family's. */
static bool same_time(const struct serve_family *f, int extra, int n, const int *block,
                      const struct timed *t)
{
    const int *first = f->part[0]->content.block;
    int hole = f->period.from + f->period.period, more = extra * f->period.period;
    for (int i = 0; i < n; i++) {
        int k = i < hole          ? i
                : i < hole + more ? f->period.from + (i - hole) % f->period.period
                                  : i - more;
        if (t->hash[block[i]] != t->hash[first[k]])
            return false;
    }
    return true;
}

/* ---- pools and prices ---- */

struct pool_key {
    int family, place;
};

static uint64_t hash_pooled(const struct serve_memo *m, int i)
{
    const struct pool_key key = {m->pooled[i].family, m->pooled[i].place};
    return ap_hash(&key, sizeof key, 0);
}

static bool match_pooled(const struct serve_memo *m, int i, const void *key)
{
    const struct pool_key *k = key;
    return m->pooled[i].family == k->family && m->pooled[i].place == k->place;
}

static int pool_of(struct serve_memo *m, int family, int place);

/* Takes the choices of a core's pool over. */
static void take_core(struct serve_seed *seed, const struct serve_pool *pool, int n,
                      const int *seen)
{
    for (int i = 0; i < n; i++) {
        if (seen[i] < 0 || seed->fixed[i])
            continue;
        seed->any = seed->fixed[i] = true;
        for (int k = 0; k < SERVE_VARIANTS; k++)
            seed->choice[k][i] = pool->choice[pool->variant[k]][seen[i]];
    }
}

/*
 * What the searches of its cores decide of a part: a layer is searched once, with another
 * one behind it, and keeps its choices in all parts on this mesh.
 */
static void seed_of(struct serve_memo *m, struct ap_arena *arena, int family, int place,
                    struct serve_seed *seed)
{
    const struct serve_part *part = m->family[family].part[0];
    const struct serve_content *c = &part->content;
    struct serve_period none = {0};
    struct ap_err ignored = {0};
    int n = part->nests.n;
    int *seen = AP_NEW_N(arena, n + 1, int), *done = AP_NEW_N(arena, m->b->n, int);

    *seed = (struct serve_seed){.fixed = AP_NEW_N(arena, n + 1, bool)};
    for (int k = 0; k < SERVE_VARIANTS; k++)
        seed->choice[k] = AP_NEW_N(arena, n + 1, struct ap_choice_vec);
    for (int i = 0; i < c->n; i++) {
        int first = m->b->core[c->block[i]], p = m->b->core_period[c->block[i]];
        if (first < 0 || done[first]++)
            continue;
        int *list = AP_NEW_N(arena, 2 * p, int);
        for (int k = 0; k < 2 * p; k++)
            list[k] = first + k;
        struct serve_content core;
        serve_content_of(arena, m->b, 2 * p, list, &core);
        int of = family_of(m, &core, &none, false, &ignored);
        if (of < 0 || m->family[of].base == m->family[family].base)
            continue; /* the part is the core */
        int pool = pool_of(m, of, place);
        if (!m->pooled[pool].pool)
            continue;
        memset(seen, -1, (size_t)n * sizeof *seen);
        serve_part_core(m->b, part, m->family[of].part[0], seen);
        take_core(seed, m->pooled[pool].pool, n, seen);
    }
}

static int pool_of(struct serve_memo *m, int family, int place)
{
    const struct pool_key key = {m->family[family].base, place};
    int i = find(m, m->pooled_at, m->pooled_mask, ap_hash(&key, sizeof key, 0),
                 match_pooled, &key);
    if (i >= 0)
        return i;
    struct ap_arena scratch = {0};
    struct serve_seed seed = {0};
    struct pooled p = {.family = key.family, .place = place};
    if (shard_algorithms()[m->req->algorithm].run == shard_ilp)
        seed_of(m, &scratch, key.family, place, &seed);
    m->n_searches++;
    p.pool = serve_search(m->b, m->family[key.family].part[0], &m->placed[place].cost,
                          m->req, seed.any ? &seed : NULL, &p.why);
    ap_arena_free(&scratch);
    m->pooled = room(m->pooled, m->n_pooled, &m->cap_pooled, sizeof *m->pooled);
    m->pooled[m->n_pooled++] = p;
    m->bytes += (int64_t)sizeof p + (p.pool ? p.pool->bytes : 0);
    enter_last(m, &m->pooled_at, &m->pooled_mask, m->n_pooled, hash_pooled);
    return m->n_pooled - 1;
}

/*
 * Prices all plans of the pool for a part whose groups copy those of the pool's, for n
 * numbers of microbatches: out[n], each with an arena of its own.
 */
static int price_plans(struct priced *const *out, int n, const struct serve_pool *pool,
                       const struct serve_part *part, const int *group, const int *node,
                       const struct ap_cost *cost,
                       const struct ap_stage_time *const *time, struct ap_err *err)
{
    struct ap_arena scratch = {0};
    for (int k = 0; k < n; k++) {
        struct serve_prices *prices = &out[k]->prices;
        *prices = (struct serve_prices){.n = pool->n, .objective = pool->objective};
        prices->measure = AP_NEW_N(&out[k]->arena, pool->n + 1, struct ap_stage_measure);
        for (int g = 0; g < part->nests.n && pool->objective >= 0; g++)
            prices->bound += pool->least_sec[group ? group[g] : g];
    }
    for (int i = 0; i < pool->n; i++) {
        struct ap_mark mark = ap_arena_mark(&scratch);
        struct ap_plan plan = serve_pool_plan(&scratch, pool, i, part, group, node, cost);
        struct ap_stage_measure *m = AP_NEW_N(&scratch, n, struct ap_stage_measure);
        struct ap_conversions conv;
        if (ap_plan_conversions(&scratch, &plan, cost, &conv, err)) {
            ap_arena_free(&scratch);
            return -1;
        }
        ap_stage_measure_all(&scratch, &part->sub, n, time, &plan, &conv, cost, m);
        for (int k = 0; k < n; k++) {
            int64_t rows, devices;
            out[k]->prices.measure[i] = m[k];
            if (ap_stage_few_rows(&part->sub, time[k], &plan, &rows, &devices) >= 0)
                out[k]->prices.measure[i].forward_sec = INFINITY; /* no plan for them */
            if (i == 0 && pool->objective >= 0)
                out[k]->prices.objective =
                    k > 0 ? out[0]->prices.objective
                          : ap_plan_price(&plan, cost, &conv).serial_sec;
        }
        ap_arena_rewind(&scratch, mark);
    }
    ap_arena_free(&scratch);
    return 0;
}

struct price_key {
    int64_t microbatches;
    int pool, family, extra, unused;
};

static struct price_key price_key(const struct serve_memo *m, int i)
{
    const struct priced *p = m->priced[i];
    return (struct price_key){p->microbatches, p->pool, p->family, p->extra, 0};
}

static uint64_t hash_priced(const struct serve_memo *m, int i)
{
    const struct price_key key = price_key(m, i);
    return ap_hash(&key, sizeof key, 0);
}

static bool match_priced(const struct serve_memo *m, int i, const void *key)
{
    const struct price_key *k = key, have = price_key(m, i);
    return have.pool == k->pool && have.family == k->family && have.extra == k->extra &&
           have.microbatches == k->microbatches;
}

static void free_priced(struct priced *p)
{
    ap_arena_free(&p->arena);
    free(p);
}

/*
 * Whoever asks for one number of microbatches asks for others: all that were named so
 * far are priced at once, those of t first.
 */
static const struct serve_prices *price_all(struct serve_memo *m,
                                            const struct price_key *key,
                                            const struct timed *t, struct ap_err *err)
{
    const struct pooled *from = &m->pooled[key->pool];
    const struct serve_family *f = &m->family[key->family];
    struct priced **new = ap_xrealloc(NULL, sizeof *new *((size_t)m->n_timed + 1));
    const struct ap_stage_time **time =
        ap_xrealloc(NULL, sizeof *time * ((size_t)m->n_timed + 1));
    int n = 0;

    for (int i = -1; i < m->n_timed; i++) {
        const struct timed *other = i < 0 ? t : m->timed[i];
        struct price_key k = *key;
        k.microbatches = other->n;
        if (i >= 0 &&
            (other == t || find(m, m->priced_at, m->priced_mask, ap_hash(&k, sizeof k, 0),
                                match_priced, &k) >= 0))
            continue;
        time[n] = &other->time;
        new[n] = ap_xrealloc(NULL, sizeof **new);
        *new[n++] = (struct priced){.pool = key->pool,
                                    .family = key->family,
                                    .extra = key->extra,
                                    .microbatches = other->n};
    }
    int rc = price_plans(new, n, from->pool, f->part[key->extra], f->group[key->extra],
                         f->node[key->extra], &m->placed[from->place].cost, time, err);
    const struct serve_prices *prices = rc ? NULL : &new[0]->prices;
    for (int i = 0; i < n; i++) {
        if (rc) {
            free_priced(new[i]);
            continue;
        }
        m->priced = room(m->priced, m->n_priced, &m->cap_priced, sizeof(struct priced *));
        m->priced[m->n_priced++] = new[i];
        m->bytes += (int64_t)sizeof *new[i] + (4 << 10);
        enter_last(m, &m->priced_at, &m->priced_mask, m->n_priced, hash_priced);
    }
    free(new);
    free(time);
    return prices;
}

/* Prices with 0, 1 or 2 extra periods. */
static const struct serve_prices *prices_of(struct serve_memo *m, int pool, int family,
                                            int extra, const struct timed *t,
                                            struct ap_err *err)
{
    const struct price_key key = {t->n, pool, extra ? family : m->family[family].base,
                                  extra, 0};
    int i = find(m, m->priced_at, m->priced_mask, ap_hash(&key, sizeof key, 0),
                 match_priced, &key);
    if (i >= 0)
        return &m->priced[i]->prices;
    return price_all(m, &key, t, err);
}

/* ---- deeper parts ---- */

/* 1: the family's plans cannot be made longer. */
static int price(struct serve_memo *m, struct ap_arena *arena, int family, int extra,
                 int place, const struct timed *t, struct serve_found *found,
                 struct ap_err *err)
{
    int pool = pool_of(m, family, place);
    if (!m->pooled[pool].pool)
        return ap_err_set(err, "%s", m->pooled[pool].why.msg);
    found->family = &m->family[family];
    found->part = m->family[family].part[0];
    found->extra = extra;
    found->pool = m->pooled[pool].pool;
    found->cost = &m->placed[place].cost;
    found->time = &t->time;
    const struct serve_prices *p[3] = {0};
    for (int d = 0; d <= 2 && d <= extra; d++)
        if (extra > 1 || d == extra) {
            p[d] = prices_of(m, pool, family, d, t, err);
            if (!p[d])
                return -1;
        }
    if (extra <= 1)
        found->prices = *p[extra];
    else if (!serve_prices_lengthen(arena, p[0], p[1], p[2], extra, &found->prices))
        return 1;
    if (extra == 0 && found->pool->bound > found->prices.bound)
        found->prices.bound = found->pool->bound;
    return 0;
}

static int find_nodes(struct serve_memo *m, struct ap_arena *arena, const bool *inside,
                      int place, const struct timed *t, struct serve_found *found,
                      struct ap_err *err)
{
    const struct ap_cost *cost = &m->placed[place].cost;
    free_nodes(m);
    struct serve_part *part = serve_part_of_nodes(&m->job->graph, inside, err);
    if (!part)
        return -1;
    m->nodes = (struct serve_family){.part = {part}};
    m->n_searches++;
    m->nodes_pool = serve_search(m->b, part, cost, m->req, NULL, err);
    if (!m->nodes_pool)
        return -1;
    *found = (struct serve_found){.family = &m->nodes,
                                  .part = part,
                                  .pool = m->nodes_pool,
                                  .cost = cost,
                                  .time = &t->time};
    struct priced priced = {0}, *const only = &priced;
    const struct ap_stage_time *const time = &t->time;
    int rc = price_plans(&only, 1, m->nodes_pool, part, NULL, NULL, cost, &time, err);
    found->prices = priced.prices;
    found->prices.measure =
        ap_arena_dup(arena, priced.prices.measure,
                     (size_t)priced.prices.n * sizeof *priced.prices.measure);
    ap_arena_free(&priced.arena);
    if (rc)
        return -1;
    found->prices.bound = fmax(found->prices.bound, m->nodes_pool->bound);
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
    *found = (struct serve_found){0};
    if (n == 0)
        return find_nodes(m, arena, inside, p, t, found, err);
    int i = ask(m, arena, n, block, err);
    if (i < 0)
        return -1;
    int family = m->asked[i].family, extra = m->asked[i].extra;
    struct serve_period none = {0};
    struct serve_content c;
    if (!same_time(&m->family[family], extra, n, block, t)) {
        serve_content_of(arena, m->b, n, block, &c);
        family = family_of(m, &c, &none, true, err);
        extra = 0;
    }
    int rc = family < 0 ? -1 : price(m, arena, family, extra, p, t, found, err);
    if (rc <= 0)
        return rc;
    serve_content_of(arena, m->b, n, block, &c);
    family = whole_family(m, arena, &c, err);
    return family < 0 ? -1 : price(m, arena, family, 0, p, t, found, err);
}
