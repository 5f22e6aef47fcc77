/* RaNNC's formulas, and its merging on random component graphs against brute force. */
#include "rannc/rannc_order.h"
#include "tap.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 1;

static int pick(int n)
{
    seed = ap_hash(&seed, sizeof seed, 7);
    return (int)(seed % (uint64_t)n);
}

/* ---- the published figures ---- */

/* A figure of the tutorial, printed beside ours. */
static void same(int64_t got, int64_t want, const char *part, const char *name)
{
    CHECK(got == want, "rannc tutorial, %s: %s, %lld bytes (%lld)", part, name,
          (long long)got, (long long)want);
}

static void test_formulas(void)
{
    /* ten layers of 512 units on two devices, batch 64; memory as the tutorial measured
     */
    int64_t param = 10 * (512 * 512 + 512) * 4, row = 64 * 512 * 4;
    struct rannc_profile p = {.param_bytes = param, .in_bytes = row, .out_bytes = row};
    CHECK(param == 10506240 && row == 131072,
          "rannc tutorial, ten layers: %lld bytes of parameters (10506240), %lld of the "
          "input (131072)",
          (long long)param, (long long)row);
    same(rannc_buffer_bytes(&p), 393216, "ten layers", "buffers are 3 x the input");
    same(rannc_optimizer_bytes(param, 2), 21012480, "ten layers", "Adam's states");
    same(rannc_memory_bytes(&p, 33353728, 2), 54759424, "ten layers", "total");

    /* a hundred layers of 5000 units on eight devices, stages of 47 and 53 layers */
    int64_t layer = (5000 * 5000 + 5000) * 4LL, in = 2560000;
    static const struct {
        int layers;
        int64_t param, alloc, total;
    } stage[] = {{47, 4700940000, 14298232544, 23707792544},
                 {53, 5301060000, 16122409376, 26732209376}};
    for (int i = 0; i < 2; i++) {
        struct rannc_profile s = {
            .param_bytes = stage[i].layers * layer, .in_bytes = in, .out_bytes = in};
        const char *part = i ? "stage of 53 layers" : "stage of 47 layers";
        same(s.param_bytes, stage[i].param, part, "parameters");
        same(rannc_buffer_bytes(&s), 7680000, part, "buffers");
        same(rannc_memory_bytes(&s, stage[i].alloc, 2), stage[i].total, part, "total");
    }
    same(rannc_limit_bytes(42506321920, 0.1), 38255689728, "stages",
         "limit, 0.9 of a device's memory");
}

static void test_estimates(void)
{
    struct rannc_profile a = {1, 2, 100, 10, 7, 3, 4, 0}, b = {2, 4, 50, 20, 5, 4, 1, 0};
    struct rannc_memory with = {2, 8, true}, without = {2, 8, false};

    rannc_join(&a, &b);
    CHECK(a.fwd_sec == 3 && a.bwd_sec == 6 && a.param_bytes == 150 &&
              a.activation_bytes == 30 && a.working_bytes == 7,
          "joined: all add up, but work is the larger");
    CHECK(rannc_alloc_bytes(&a, &with) == 2 * 150 + 30 + 7 + 4, "with checkpointing");
    CHECK(rannc_alloc_bytes(&a, &without) == 2 * 150 + 8 * 30 + 7 + 4,
          "without: activations of all microbatches");
}

/* ---- random component graphs ---- */

struct random {
    struct ap_arena arena;
    struct rannc_atoms atoms;
    struct rannc_params params;
};

/* About `degree` readers each, within `reach` of their maker; some clones. */
static void make(struct random *r, int n, int degree, int reach)
{
    struct ap_arena *arena = &r->arena;
    int64_t *bytes = AP_NEW_N(arena, n, int64_t), *sbytes = AP_NEW_N(arena, 5, int64_t);
    int *start = AP_NEW_N(arena, n + 1, int),
        *list = AP_NEW_N(arena, n * degree + 1, int);
    int *sstart = AP_NEW_N(arena, n + 1, int), *shared = AP_NEW_N(arena, 5 * n + 1, int);
    double *ssec = AP_NEW_N(arena, 5, double);
    bool *result = AP_NEW_N(arena, n, bool);
    struct rannc_profile *own = AP_NEW_N(arena, n, struct rannc_profile);

    for (int s = 0; s < 5; s++) {
        ssec[s] = 0.25 * (1 + pick(4));
        sbytes[s] = 1 + pick(100);
    }
    for (int v = 0; v < n; v++) {
        int at = start[v];
        bytes[v] = (int64_t)(1 + pick(1000)) << 30;
        result[v] = pick(10) == 0;
        own[v] = (struct rannc_profile){.fwd_sec = 0.25 * (1 + pick(16)),
                                        .bwd_sec = 0.25 * (1 + pick(16)),
                                        .param_bytes = pick(50),
                                        .activation_bytes = pick(50),
                                        .working_bytes = pick(50)};
        for (int w = v + 1; w < n && w <= v + reach && at < start[v] + degree; w++)
            if (pick(reach) < degree)
                list[at++] = w;
        start[v + 1] = at;
        sstart[v + 1] = sstart[v];
        for (int s = 0; s < 5; s++)
            if (pick(6) == 0)
                shared[sstart[v + 1]++] = s;
    }
    r->atoms = (struct rannc_atoms){.n = n,
                                    .value_bytes = bytes,
                                    .is_result = result,
                                    .reader_start = start,
                                    .reader = list,
                                    .own = own,
                                    .n_shared = 5,
                                    .shared_sec = ssec,
                                    .shared_bytes = sbytes,
                                    .shared_start = sstart,
                                    .shared = shared};
    r->params = (struct rannc_params){.max_blocks = 6,
                                      .merge = RANNC_MERGE_TIME,
                                      .uncoarsen = true,
                                      .limit_bytes = INT64_MAX,
                                      .n_devices = 4,
                                      .memory = {2, 32, true}};
}

/* reach[u * n + v]: a path between quotient nodes; group[] names them. */
static void close_paths(const struct rannc_level *l, const int *group, bool *reach)
{
    int n = l->n;
    memset(reach, 0, (size_t)n * (size_t)n);
    for (int v = 0; v < l->atoms->n; v++)
        for (int i = l->reader_start[v]; i < l->reader_start[v + 1]; i++)
            reach[group[l->owner[v]] * n + group[l->reader[i]]] = true;
    for (int k = 0; k < n; k++)
        for (int u = 0; u < n; u++)
            for (int v = 0; v < n && reach[u * n + k]; v++)
                reach[u * n + v] |= reach[k * n + v];
}

/* Whether joining groups a and b closes a cycle: an edge out of one to a third group
 * from which the other is reached. */
static bool path_between(const struct rannc_level *l, const int *group, const bool *reach,
                         int a, int b)
{
    for (int v = 0; v < l->atoms->n; v++)
        for (int i = l->reader_start[v]; i < l->reader_start[v + 1]; i++) {
            int from = group[l->owner[v]], to = group[l->reader[i]];
            if (to != a && to != b &&
                ((from == a && reach[to * l->n + b]) ||
                 (from == b && reach[to * l->n + a])))
                return true;
        }
    return false;
}

static bool edges_rise(const struct rannc_level *l)
{
    for (int v = 0; v < l->atoms->n; v++)
        for (int i = l->reader_start[v]; i < l->reader_start[v + 1]; i++)
            if (l->owner[v] >= l->reader[i])
                return false;
    return true;
}

/* Random merges, each answered as brute force would, and the order holds. */
static bool order_agrees(int n, int degree, int reach_of, int *merged)
{
    struct random r = {0};
    make(&r, n, degree, reach_of);
    struct rannc_level *l = rannc_level_first(&r.arena, &r.atoms);
    struct rannc_order o;
    int *group = AP_NEW_N(&r.arena, n, int), *map = AP_NEW_N(&r.arena, n, int);
    bool *reach = AP_NEW_N(&r.arena, n * n, bool), ok = true;

    rannc_order_init(&r.arena, l, &o);
    for (int c = 0; c < n; c++)
        group[c] = c;
    close_paths(l, group, reach);
    for (int t = 0; t < 4 * n && ok; t++) {
        int a = pick(n), b = pick(n);
        if (a == b || o.mate[a] >= 0 || o.mate[b] >= 0)
            continue;
        bool cycle = path_between(l, group, reach, a, b);
        bool did = rannc_order_merge(&o, a, b);
        ok = did == !cycle;
        if (did) {
            group[b] = group[a];
            close_paths(l, group, reach);
            ++*merged;
        }
    }
    int m = rannc_order_number(&o, map);
    ok = ok && edges_rise(rannc_level_contract(&r.arena, l, m, map));
    ap_arena_free(&r.arena);
    return ok;
}

static bool close_to(const struct rannc_profile *a, const struct rannc_profile *b)
{
    return fabs(rannc_sec(a) - rannc_sec(b)) < 1e-9 && a->param_bytes == b->param_bytes &&
           a->activation_bytes == b->activation_bytes &&
           a->working_bytes == b->working_bytes && a->in_bytes == b->in_bytes &&
           a->out_bytes == b->out_bytes && a->copy_bytes == b->copy_bytes;
}

/* What a join says is what contraction finds. */
static bool join_agrees(int n)
{
    struct random r = {0};
    bool ok = true;
    make(&r, n, 3, 6);
    struct rannc_level *l = rannc_level_first(&r.arena, &r.atoms);
    for (int pass = 0; pass < 3 && l->n > 2; pass++) {
        int *map = AP_NEW_N(&r.arena, l->n, int), a = pick(l->n - 1), b = a + 1;
        struct rannc_profile joined;
        int64_t cut, in = l->all[a].in_bytes + l->all[b].in_bytes;
        for (int c = 0; c < l->n; c++)
            map[c] = c <= a ? c : c - 1;
        rannc_level_join(l, b, a, &joined, &cut);
        l = rannc_level_contract(&r.arena, l, l->n - 1, map);
        ok = ok && close_to(&joined, &l->all[a]) && cut <= in;
    }
    ap_arena_free(&r.arena);
    return ok;
}

static int64_t sent_bytes(const struct rannc_level *l)
{
    int64_t bytes = 0;
    for (int b = 0; b < l->n; b++)
        bytes += l->all[b].in_bytes;
    return bytes;
}

static double clone_sec(const struct rannc_level *l)
{
    double sec = 0;
    for (int i = 0; i < l->shared_start[l->n]; i++)
        sec += l->atoms->shared_sec[l->shared[i]];
    return sec;
}

struct tally {
    int bad, too_many, costlier, less_sent, infeasible;
};

static void run_all(int n, struct tally *t)
{
    struct random r = {0};
    struct rannc_level *with, *without;
    struct ap_err err = {{0}};

    make(&r, n, 1 + pick(4), 2 + pick(12));
    r.params.successors_only = pick(2);
    r.params.merge = pick(2) ? RANNC_MERGE_TIME : RANNC_MERGE_GAIN;
    r.params.stop_blocks = 3 * pick(3);
    if (r.params.stop_blocks == 6) /* no compaction, which starts from other blocks */
        r.params.max_blocks = n;
    r.params.unprofiled_above = pick(2) ? 0 : 20;
    if (rannc_blocks(&r.arena, &r.atoms, &r.params, &with, &err)) {
        t->bad++;
        ap_arena_free(&r.arena);
        return;
    }
    r.params.uncoarsen = false;
    t->bad += rannc_blocks(&r.arena, &r.atoms, &r.params, &without, &err) != 0;
    t->bad += !edges_rise(with) || !edges_rise(without);
    t->too_many += with->n > r.params.max_blocks || without->n > r.params.max_blocks;
    if (r.params.max_blocks == n) {
        t->bad += with->n != without->n;
        double a = rannc_send_sec(sent_bytes(with)) + clone_sec(with);
        double b = rannc_send_sec(sent_bytes(without)) + clone_sec(without);
        t->costlier += a > b + 1e-9;
        t->less_sent += a < b;
    }
    ap_arena_free(&r.arena);
}

/* Uncoarsening alone: what it leaves must be acyclic, fit and cost less. */
static bool moves_hold(int n)
{
    struct random r = {0};
    make(&r, n, 1 + pick(3), 4);
    struct rannc_level *l = rannc_level_first(&r.arena, &r.atoms);
    int k = 4, *before = AP_NEW_N(&r.arena, n, int), *after = AP_NEW_N(&r.arena, n, int);
    for (int c = 0; c < n; c++)
        before[c] = after[c] = c * k / n;
    struct rannc_level *a = rannc_level_contract(&r.arena, l, k, before);
    for (int b = 0; b < k; b++) { /* as tight as the blocks are */
        int64_t need = rannc_memory_bytes(
            &a->all[b], rannc_alloc_bytes(&a->all[b], &r.params.memory), 2);
        if (b == 0 || need > r.params.limit_bytes)
            r.params.limit_bytes = need;
    }
    rannc_uncoarsen(&r.arena, l, &r.params, k, after);
    struct rannc_level *b = rannc_level_contract(&r.arena, l, k, after);
    bool ok = edges_rise(b) && /* blocks of a chain keep their order */
              rannc_send_sec(sent_bytes(b)) + clone_sec(b) <=
                  rannc_send_sec(sent_bytes(a)) + clone_sec(a) + 1e-9;
    for (int i = 0; i < k; i++)
        ok = ok && rannc_fits(&r.params, &b->all[i]);
    ap_arena_free(&r.arena);
    return ok;
}

/* One maker, many readers: coarsening can merge one of them a pass. */
static void test_star(int n)
{
    struct random r = {0};
    struct rannc_level *l;
    struct ap_err err = {{0}};
    make(&r, n, 1, 1);
    int *start = AP_NEW_N(&r.arena, n + 1, int), *list = AP_NEW_N(&r.arena, n, int);
    for (int v = 0; v < n; v++)
        start[v + 1] = n - 1;
    for (int v = 1; v < n; v++)
        list[v - 1] = v;
    r.atoms.reader_start = start;
    r.atoms.reader = list;
    bool ok = !rannc_blocks(&r.arena, &r.atoms, &r.params, &l, &err);
    CHECK(ok && l->n == 6 && edges_rise(l), "a star of %d ends in 6 blocks", n);
    ap_arena_free(&r.arena);
}

int main(void)
{
    struct tally t = {0};
    int wrong = 0, merged = 0, joins = 0, moves = 0;

    test_formulas();
    test_estimates();
    for (int i = 0; i < 300; i++) {
        wrong += !order_agrees(8 + pick(24), 1 + pick(4), 2 + pick(12), &merged);
        joins += !join_agrees(3 + pick(30));
        moves += !moves_hold(8 + pick(60));
    }
    CHECK(wrong == 0 && merged > 1000, "%d merges as brute force has them", merged);
    CHECK(joins == 0, "a join is what its contraction is");
    CHECK(moves == 0, "moves keep order and limit, and cost less");
    for (int i = 0; i < 300; i++)
        run_all(7 + pick(150), &t);
    CHECK(t.bad == 0, "blocks are in topological order, by every variant");
    CHECK(t.too_many == 0, "rannc §III-B: at most k blocks");
    CHECK(t.costlier == 0 && t.less_sent > 30, "uncoarsening pays %d times, never costs",
          t.less_sent);
    test_star(20000);
    return tap_done();
}
