/*
 * Problem: what the plans of a search cost for thousands of runs of blocks. Idea: it is a
 * sum: over the blocks, each as if it stood alone, and over pairs of neighbours (and of
 * blocks that share a value across others), by which a pair costs more or less than its
 * two blocks. Blocks and pairs that are equal, with equal choices, are priced once; their
 * operators once for all places with the mesh, which differ in conversions. The largest
 * working set of a run is that of its pairs. Sums are exact where no value is shared by
 * three blocks of which two need the same conversion, but for what scalars take, which is
 * left out of them. Whoever asks for a plan itself gets its own price with it. Cost: per
 * mesh a price of three times the distinct blocks; per run a sum over its blocks.
 */
#include "serve/serve_memo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables over lists that grow ---- */

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
    m->listed =
        serve_memo_room(m->listed, m->n_listed, &m->cap_listed, sizeof *m->listed);
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
    m->one = serve_memo_room(m->one, m->n_one, &m->cap_one, sizeof *m->one);
    m->one[m->n_one++] = one;
    enter_last(m, &m->one_at, &m->one_mask, m->n_one, hash_one);
}

/* That of operators alone, for all places with the mesh. */
static struct price_key key_alone(const struct spot *at, struct price_key key)
{
    key.place = ~at->shaped->place;
    return key;
}

/* What plan p takes, all at once and of a microbatch; out may be NULL. */
static void put_price(struct priced *out, int p, const struct ap_stage_measure *measure,
                      double whole)
{
    if (!out)
        return;
    out->prices.measure[p] = *measure;
    if (p == 0)
        out->prices.objective = whole;
}

/* Plan p of a list, for n numbers of microbatches: into out, from what is known; where
 * that is NULL, for whoever asks later. */
static void price_one(struct serve_memo *m, const struct spot *at, int p,
                      struct serve_part *part, int n, const struct serve_time *const *t,
                      struct priced *const *out)
{
    struct ap_arena scratch = {0};
    const struct ap_stage_microbatch **time =
        AP_NEW_N(&scratch, n, const struct ap_stage_microbatch *);
    struct price_key *key = AP_NEW_N(&scratch, n, struct price_key);
    struct ap_stage_measure *measure = AP_NEW_N(&scratch, n, struct ap_stage_measure);
    struct ap_stage_measure *alone = AP_NEW_N(&scratch, n, struct ap_stage_measure);
    int *new = AP_NEW_N(&scratch, n, int), n_new = 0;
    bool known = true;
    double whole = INFINITY;

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
        put_price(out[k], p, &one->measure, one->whole);
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
        put_price(out[new[k]], p, &measure[k], whole);
        enter_one(m, (struct plan_price){key[k], measure[k], whole});
        if (!known && !find_one(m, &mesh))
            enter_one(m, (struct plan_price){mesh, alone[k], INFINITY});
    }
    ap_arena_free(&scratch);
}

/*
 * A list of blocks, priced for all numbers of microbatches that were named so far: those
 * that have these plans and, as rules do not ask for rows, the rules' plans for all.
 */
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
    const struct ap_mesh *mesh = &m->placed[s->place]->cost.mesh;
    int first = 0, n_new = 0;
    for (int k = 0; k < m->n_timed; k++) {
        if (serve_memo_rows(m, m->timed[k], mesh) != s->rows)
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
    int n_all = n_new;
    for (int k = 0; k < m->n_timed; k++)
        if (serve_memo_rows(m, m->timed[k], mesh) != s->rows)
            time[n_all++] = m->timed[k];
    for (int p = 0; p < s->pool->n; p++)
        price_one(m, &at, p, part, p < s->pool->n_searched ? n_new : n_all, time, new);
    const struct serve_prices *prices = &new[first]->prices;
    for (int k = 0; k < n_new; k++) {
        if (s->pool->objective < 0)
            new[k]->prices.objective = -1;
        m->priced = serve_memo_room(m->priced, m->n_priced, &m->cap_priced,
                                    sizeof(struct priced *));
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
        for (int k = 0; k < 4; k++)
            m->scalar_sec[k] += times * a->scalar_sec[k];
        if (!largest)
            continue;
        m->working_bytes = fmax(m->working_bytes, a->working_bytes);
        m->recomputed_bytes = fmax(m->recomputed_bytes, a->recomputed_bytes);
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

/*
 * A block alone ends its sums of scalars (norms, checks for overflow), which a run of
 * blocks may add up and send once: they are no part of the sum, but of its slack.
 */
static void leave_scalars(struct serve_prices *sum)
{
    for (int i = 0; i < sum->n; i++) {
        struct ap_stage_measure *m = &sum->measure[i];
        double *const sec[] = {&m->forward_sec, &m->backward_sec, &m->sync_sec,
                               &m->update_sec};
        for (int k = 0; k < 4; k++) {
            const double scalar = fmin(m->scalar_sec[k], *sec[k]);
            if (!isfinite(*sec[k]))
                continue;
            *sec[k] -= scalar;
            m->slack_sec += scalar;
        }
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
    leave_scalars(s->sum);
    return 0;
}

int serve_sum(struct serve_memo *m, const struct serve_shape *shaped, int place,
              const struct serve_time *t, int n, const int *block,
              struct serve_prices *sum, struct ap_err *err)
{
    const struct summing s = {m, shaped, t, place, sum};
    bool run = n > 2 && block[n - 1] - block[0] == n - 1;

    return run ? add_run(&s, block[0], block[n - 1], err)
               : add_list(&s, n, block, 1, true, err);
}
