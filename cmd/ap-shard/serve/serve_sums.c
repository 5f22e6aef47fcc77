/*
 * Problem: the prices of a search's plans for thousands of runs of blocks. Idea: the
 * price of a run is a sum over its blocks, each as if it stood alone, plus, for each pair
 * of neighbours (and of blocks that share a value across others), the difference between
 * the price of the pair and of its two blocks. Equal blocks and pairs with equal choices
 * are priced once; their operators once for all places with the mesh, which differ only
 * in the prices of conversions. The working set of a run is the largest one of its pairs.
 * The sum is exact where no value is shared by three blocks of which two need the same
 * conversion, except for the seconds of scalars, which the sum leaves out. A request for
 * the plan itself is answered with the plan's own price. Cost: per mesh, pricing three
 * times the distinct blocks; per run a sum over its blocks.
 */
#include "serve/serve_memo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

/* ---- lists of blocks ---- */

bool serve_same_list(const void *memo, int a, int b)
{
    const struct serve_memo *m = memo;
    return serve_content_equal(&m->list[a].content, &m->list[b].content);
}

static int find_list(struct serve_memo *m, int n, const int *block)
{
    int i = m->n_lists;
    struct ap_mark mark = ap_arena_mark(&m->arena);

    AP_ROOM(m->list, i, m->cap_lists);
    m->list[i] = (struct block_list){.part = NULL};
    serve_content_of(&m->arena, m->b, n, block, &m->list[i].content);
    int first = ap_class_of(&m->lists, m->list[i].content.hash, i);
    if (first < i)
        ap_arena_rewind(&m->arena, mark);
    else
        m->n_lists++;
    return first;
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

static bool is_own(const struct block_list *l, int n, const int *block)
{
    return l->content.n == n &&
           memcmp(l->content.block, block, (size_t)n * sizeof *block) == 0;
}

/* ---- prices ---- */

static int find_price(const struct price_table *t, const struct price_key *key)
{
    struct ap_index_walk walk;

    for (int i = ap_index_first(&t->index, ap_hash(key, sizeof *key, 0), &walk); i >= 0;
         i = ap_index_next(&t->index, &walk))
        if (memcmp(&t->key[i], key, sizeof *key) == 0)
            return i;
    return -1;
}

/* The position of a new key. */
static int enter_price(struct price_table *t, const struct price_key *key)
{
    AP_ROOM(t->key, t->n, t->cap);
    t->key[t->n] = *key;
    ap_index_put(&t->index, ap_hash(key, sizeof *key, 0), t->n);
    return t->n++;
}

/* A list of blocks on a place, under the plans of a search. */
struct spot {
    const struct serve_searched *searched;
    int list, place;
    int n;
    const int *block;
};

/* Of plan p. */
static struct price_key key_of_plan(const struct spot *at, int p,
                                    const struct serve_microbatches *t)
{
    struct price_key key = {at->list, at->place, t->n, p == 0};
    for (int i = 0; i < at->n; i++) {
        int block = at->block[i];
        const uint64_t h[2] = {at->searched->hash[p][block], t->hash[block]};
        key.hash = ap_hash(h, sizeof h, key.hash);
    }
    return key;
}

/* Of all plans. */
static struct price_key key_of(const struct spot *at, const struct serve_microbatches *t)
{
    struct price_key key = {at->list, at->place, t->n, 0};
    for (int i = 0; i < at->n; i++) {
        const uint64_t h[2] = {at->searched->all[at->block[i]], t->hash[at->block[i]]};
        key.hash = ap_hash(h, sizeof h, key.hash);
    }
    return key;
}

/* Cuts the list, which is to be freed if it is not the memo's own. */
static struct serve_part *part_of(struct serve_memo *m, int list, int n, const int *block,
                                  struct ap_err *err)
{
    struct block_list *l = &m->list[list];
    if (!is_own(l, n, block))
        return serve_part_new(m->b, &m->job->nests, m->ties.fold.twin, n, block, err);
    if (!l->part) {
        l->part = serve_part_new(m->b, &m->job->nests, m->ties.fold.twin, n, block, err);
        m->bytes += l->part ? l->part->bytes : 0;
    }
    return l->part;
}

static const struct plan_price *find_plan_price(const struct serve_memo *m,
                                                const struct price_key *key)
{
    int i = find_price(&m->plan_keys, key);
    return i < 0 ? NULL : &m->plan_price[i];
}

static void enter_plan_price(struct serve_memo *m, const struct price_key *key,
                             struct plan_price price)
{
    AP_ROOM(m->plan_price, m->plan_keys.n, m->cap_plan_prices);
    m->plan_price[enter_price(&m->plan_keys, key)] = price;
}

/* The key of the price without conversions, which is that of all places with the mesh. */
static struct price_key key_alone(const struct spot *at, struct price_key key)
{
    key.place = ~at->searched->place;
    return key;
}

/* The price of plan p, of a microbatch and of the whole batch; out may be NULL. */
static void put_price(struct serve_prices *out, int p,
                      const struct ap_stage_measure *measure, double whole)
{
    if (!out)
        return;
    out->measure[p] = *measure;
    if (p == 0)
        out->objective = whole;
}

/* Prices plan p of a list for n numbers of microbatches that are not known yet, and puts
 * the prices into out[k], unless that is NULL. */
static void price_one(struct serve_memo *m, const struct spot *at, int p,
                      struct serve_part *part, int n,
                      const struct serve_microbatches *const *t,
                      struct serve_prices *const *out)
{
    struct ap_arena scratch = {0};
    const struct ap_stage_microbatch **microbatch =
        AP_NEW_N(&scratch, n, const struct ap_stage_microbatch *);
    struct price_key *key = AP_NEW_N(&scratch, n, struct price_key);
    struct ap_stage_measure *measure = AP_NEW_N(&scratch, n, struct ap_stage_measure);
    struct ap_stage_measure *alone = AP_NEW_N(&scratch, n, struct ap_stage_measure);
    int *new = AP_NEW_N(&scratch, n, int), n_new = 0;
    bool known = true;
    double whole = INFINITY;

    for (int k = 0; k < n; k++) {
        key[n_new] = key_of_plan(at, p, t[k]);
        const struct plan_price *one = find_plan_price(m, &key[n_new]);
        if (!one) {
            const struct price_key mesh = key_alone(at, key[n_new]);
            const struct plan_price *without = find_plan_price(m, &mesh);
            known &= without != NULL;
            if (without)
                alone[n_new] = without->measure;
            microbatch[n_new] = &t[k]->axis;
            new[n_new++] = k;
            continue;
        }
        put_price(out[k], p, &one->measure, one->whole);
    }
    if (n_new > 0) {
        const struct serve_searched *s = at->searched;
        const struct ap_cost *cost = &m->placed[at->place]->cost;
        struct ap_plan plan =
            serve_part_plan(&scratch, part, s->pool, p, &s->border, cost);
        serve_part_price(&scratch, part, &plan, cost, &m->placed[s->place]->sizes,
                         &(struct serve_wanted){n_new, microbatch, known, alone, measure,
                                                p == 0 ? &whole : NULL});
    }
    for (int k = 0; k < n_new; k++) {
        const struct price_key mesh = key_alone(at, key[k]);
        put_price(out[new[k]], p, &measure[k], whole);
        enter_plan_price(m, &key[k], (struct plan_price){measure[k], whole});
        if (!known && !find_plan_price(m, &mesh))
            enter_plan_price(m, &mesh, (struct plan_price){alone[k], INFINITY});
    }
    ap_arena_free(&scratch);
}

/* Numbers of microbatches for which a list is priced: those that use these plans, from
 * t on; then all others, for which only the named plans are priced. */
static void list_microbatches(const struct serve_memo *m, const struct serve_searched *s,
                              const struct spot *at, const struct serve_microbatches **t,
                              int *n_new, int *n_all)
{
    const struct ap_mesh *mesh = &m->placed[s->place]->cost.mesh;

    *n_new = 0;
    for (int k = 0; k < m->n_microbatches; k++) {
        const struct price_key key = key_of(at, m->microbatches[k]);
        if (serve_memo_rows(m, m->microbatches[k], mesh) == s->rows &&
            find_price(&m->list_keys, &key) < 0)
            t[(*n_new)++] = m->microbatches[k];
    }
    *n_all = *n_new;
    for (int k = 0; k < m->n_microbatches; k++)
        if (serve_memo_rows(m, m->microbatches[k], mesh) != s->rows)
            t[(*n_all)++] = m->microbatches[k];
}

/*
 * The prices of a list of blocks under the plans of a search. A list that is not known is
 * priced for all numbers of microbatches named so far: under all plans for the numbers
 * that the search is for, and under the named plans, which do not depend on rows, for
 * all.
 */
static const struct serve_prices *price_list(struct serve_memo *m,
                                             const struct serve_run *run, int n,
                                             const int *block, struct ap_err *err)
{
    const struct serve_searched *s = run->searched;
    const struct serve_microbatches *t = run->microbatches;
    const struct spot at = {s, list_of(m, n, block), run->place, n, block};
    struct price_key key = key_of(&at, t);
    int found = find_price(&m->list_keys, &key), n_new, n_all;
    if (found >= 0)
        return &m->list_price[found];
    struct serve_part *part = part_of(m, at.list, n, block, err);
    if (!part)
        return NULL;
    struct ap_arena scratch = {0};
    const struct serve_microbatches **all =
        AP_NEW_N(&scratch, m->n_microbatches, const struct serve_microbatches *);
    struct serve_prices **new =
        AP_NEW_N(&scratch, m->n_microbatches, struct serve_prices *);
    list_microbatches(m, s, &at, all, &n_new, &n_all);
    for (int k = 0; k < n_new; k++) {
        const struct price_key own = key_of(&at, all[k]);
        int i = enter_price(&m->list_keys, &own);
        found = all[k] == t ? i : found;
        AP_ROOM(m->list_price, i, m->cap_list_prices);
        m->list_price[i] = (struct serve_prices){.n = s->pool->n, .objective = -1};
        size_t bytes = (size_t)(s->pool->n + 1) * sizeof(struct ap_stage_measure);
        m->list_price[i].measure = memset(ap_xrealloc(NULL, bytes), 0, bytes);
    }
    for (int k = 0; k < n_new; k++) /* grown: they stay where they are */
        new[k] = &m->list_price[m->list_keys.n - n_new + k];
    for (int p = 0; p < s->pool->n; p++)
        price_one(m, &at, p, part, p < s->pool->n_searched ? n_new : n_all, all, new);
    for (int k = 0; k < n_new && s->pool->objective < 0; k++)
        new[k]->objective = -1;
    ap_arena_free(&scratch);
    if (!is_own(&m->list[at.list], n, block))
        serve_part_free(part);
    return &m->list_price[found];
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
        m->gradient_bytes += times * a->gradient_bytes;
        m->copied_bytes += times * a->copied_bytes;
        m->kept_bytes += times * a->kept_bytes;
        m->input_bytes += times * a->input_bytes;
        for (int k = 0; k < 4; k++)
            m->scalar_sec[k] += times * a->scalar_sec[k];
        for (int k = 0; k < 2; k++)
            m->host_sec[k] += times * a->host_sec[k];
        if (!largest)
            continue;
        m->working_bytes = fmax(m->working_bytes, a->working_bytes);
        m->recomputed_bytes = fmax(m->recomputed_bytes, a->recomputed_bytes);
    }
}

struct summing {
    struct serve_memo *memo;
    const struct serve_run *run;
    struct serve_prices *sum;
};

static int add_list(const struct summing *s, int n, const int *block, double times,
                    bool largest, struct ap_err *err)
{
    const struct serve_prices *p = price_list(s->memo, s->run, n, block, err);
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
 * A block alone reduces its scalars (norms, checks for overflow) over the devices, which
 * a run of blocks may add up and reduce once: their seconds belong to the slack of the
 * sum.
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

/* The pairs of neighbours less the blocks that are in two of them; then the pairs of
 * distant blocks that share values, less their blocks. */
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
        const struct serve_pair *pair = &b->pair[b->pair[i].first];
        const int both[2] = {pair->a, pair->b};
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

int serve_sum(struct serve_memo *m, const struct serve_run *run, int n, const int *block,
              struct serve_prices *sum, struct ap_err *err)
{
    const struct summing s = {m, run, sum};
    bool neighbours = n > 2 && block[n - 1] - block[0] == n - 1;

    return neighbours ? add_run(&s, block[0], block[n - 1], err)
                      : add_list(&s, n, block, 1, true, err);
}
