/*
 * Steps on two streams: on random small nets, clusters and meshes, all plans are
 * simulated; the search's bound is below all of them, and its answer no better than the
 * best. AP_OVERLAP=N: so many nets (a default of 12).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "memory/memory.h"
#include "problem/fold.h"
#include "problem/statement.h"
#include "plan/overlap.h"
#include "random_plan.h"
#include "sample_graphs.h"
#include "problem/shard.h"
#include "tap.h"

#define MAX_PLANS 30000
#define MAX_VARS  64

/* ---- random nets: layers forward, some gradients of weights, their updates ---- */

struct net {
    struct ap_buf nodes, results;
    int n, n_params, n_results;
    uint64_t state;
};

static int put(struct net *net, const char *op, const char *in, const char *shape,
               const char *attrs)
{
    ap_buf_printf(&net->nodes,
                  "%s{\"op\":\"%s\",\"name\":\"n%d\",\"in\":[%s],\"shape\":\"%s\"%s}",
                  net->n ? "," : "", op, net->n, in, shape, attrs);
    return net->n++;
}

static int put_param(struct net *net, const char *role, const char *shape)
{
    char attrs[64];

    snprintf(attrs, sizeof attrs, ",\"param\":%d,\"role\":\"%s\"", net->n_params++, role);
    return put(net, "parameter", "", shape, attrs);
}

static void put_result(struct net *net, int node, int alias)
{
    ap_buf_printf(&net->results, "%s{\"node\":%d,\"role\":\"%s\"",
                  net->n_results++ ? "," : "", node, alias < 0 ? "none" : "weight");
    if (alias >= 0)
        ap_buf_printf(&net->results, ",\"alias\":%d", alias);
    ap_buf_puts(&net->results, "}");
}

static int dot(struct net *net, int a, int b, const char *shape, int left, int right,
               const char *more)
{
    char in[32], attrs[128];

    snprintf(in, sizeof in, "%d,%d", a, b);
    snprintf(attrs, sizeof attrs,
             ",\"lhs_contracting_dims\":[%d],\"rhs_contracting_dims\":[%d]%s", left,
             right, more);
    return put(net, "dot", in, shape, attrs);
}

/* A net of one or two layers; casts of weights where mixed. */
static char *make_net(uint64_t seed)
{
    struct net net = {.state = seed};
    const int size = 128 << random_below(&net.state, 4);
    const int rows = 64 << random_below(&net.state, 5);
    const int layers = 1 + random_below(&net.state, 2);
    const bool mixed = random_below(&net.state, 3) == 0;
    const char *type = mixed ? "bf16" : "f32";
    char weight[32], full[32], act[32], in[32];
    int w[2], used[2], x, h[3];

    snprintf(weight, sizeof weight, "f32[%d,%d]", size, size);
    snprintf(full, sizeof full, "%s[%d,%d]", type, size, size);
    snprintf(act, sizeof act, "%s[%d,%d]", type, rows, size);
    for (int i = 0; i < layers; i++)
        w[i] = put_param(&net, "weight", weight);
    x = put_param(&net, "input", act);
    h[0] = x;
    for (int i = 0; i < layers; i++) {
        snprintf(in, sizeof in, "%d", w[i]);
        used[i] = mixed ? put(&net, "convert", in, full, "") : w[i];
        h[i + 1] = dot(&net, h[i], used[i], act, 1, 0, "");
    }
    if (random_below(&net.state, 2)) { /* a residual */
        snprintf(in, sizeof in, "%d,%d", h[layers], x);
        h[layers] = put(&net, "add", in, act, "");
    }
    for (int i = layers - 1; i >= 0; i--) {
        int g = dot(&net, h[i], h[layers], full, 0, 0, ",\"phase\":\"backward\"");
        snprintf(in, sizeof in, "%d", g);
        if (mixed)
            g = put(&net, "convert", in, weight, ",\"phase\":\"backward\"");
        snprintf(in, sizeof in, "%d,%d", w[i], g);
        put_result(&net, put(&net, "subtract", in, weight, ",\"phase\":\"update\""), i);
        if (random_below(&net.state, 2))
            break;
    }
    put_result(&net, h[layers], -1);
    struct ap_buf doc = {0};
    ap_buf_printf(
        &doc,
        "{\"autopar\":1,\"graph\":{\"name\":\"t\",\"nodes\":[%s],\"results\":[%s],"
        "\"reducers\":[]}}",
        net.nodes.data, net.results.data);
    ap_buf_free(&net.nodes);
    ap_buf_free(&net.results);
    return doc.data;
}

/* ---- a question ---- */

struct question {
    struct ap_arena arena;
    struct ap_err err;
    struct sample sample;
    struct ap_cost cost, serial;
    struct ap_work work;
    struct shard_params params;
    struct shard_task task;
    struct ilp_problem ip;
};

static int ask(struct question *q, const char *json, uint64_t seed)
{
    static const char *const meshes[] = {"2", "4", "2x2", "8"};
    struct ap_mesh mesh;
    struct shard_fold fold;
    uint64_t state = seed ^ 99;

    *q = (struct question){.params = {.rounds = 12, .unfold = 120000},
                           .work = {.limit = 1000000000}};
    q->task = (struct shard_task){.graph = &q->sample.g,
                                  .nests = &q->sample.nests,
                                  .cost = &q->cost,
                                  .params = &q->params,
                                  .work = &q->work};
    if (load_sample(&q->arena, json, &q->sample, &q->err) ||
        ap_mesh_parse(&q->arena, meshes[random_below(&state, 4)], &mesh, &q->err) ||
        make_cost(&q->arena, AP_COST_DEFAULT, &mesh, &q->serial, &q->err))
        return -1;
    struct ap_cluster cluster = q->serial.cluster;
    ap_cost_free(&q->serial);
    for (int l = 0; l < cluster.n_levels; l++) {
        cluster.levels[l].bandwidth_bytes_per_sec /= 1 << random_below(&state, 6);
        cluster.levels[l].latency_sec /= 1 << random_below(&state, 6);
    }
    cluster.launch_sec /= 1 << random_below(&state, 6);
    cluster.memory_bytes = INT64_C(1) << (20 + random_below(&state, 10));
    if (ap_cost_init(&q->arena, &q->serial, AP_COST_DEFAULT, &cluster, &mesh, &q->err))
        return -1;
    cluster.overlap = true;
    if (ap_cost_init(&q->arena, &q->cost, AP_COST_DEFAULT, &cluster, &mesh, &q->err))
        return -1;
    shard_list_named_plans(&q->arena, &q->task);
    struct shard_task plain = q->task;
    plain.cost = &q->serial;
    shard_fold_find(&q->arena, &plain, NULL, &fold);
    return shard_ilp_build(&q->arena, &plain, &fold, NULL, 0, &q->ip, &q->err);
}

static void drop(struct question *q)
{
    select_free(&q->ip.builder);
    ap_cost_free(&q->cost);
    ap_cost_free(&q->serial);
    ap_arena_free(&q->arena);
}

/* The shortest simulated step of all plans, INFINITY if there are too many. */
static double try_all(struct question *q)
{
    const struct shard_space *space = q->ip.builder.space;
    const int n = q->sample.nests.n;
    int *strategy = AP_NEW_N(&q->arena, n, int), i;
    double n_plans = 1, least = INFINITY;
    struct ap_plan plan = shard_empty_plan(&q->task);

    plan.choice = AP_NEW_N(&q->arena, n, struct ap_choice_vec);
    for (int k = 0; k < n; k++) {
        n_plans *= space->n[k];
        plan.choice[k] = space->choice[k][0];
    }
    if (n_plans > MAX_PLANS)
        return INFINITY;
    do {
        double sec;
        struct ap_err err = {0};
        if (!ap_plan_sec(&plan, &q->cost, &sec, &err))
            least = fmin(least, sec);
        for (i = 0; i < n; i++) {
            strategy[i] = (strategy[i] + 1) % space->n[i];
            plan.choice[i] = space->choice[i][strategy[i]];
            if (strategy[i])
                break;
        }
    } while (i < n);
    return least;
}

struct tally {
    int n, n_best;
    double gap;
};

static const char *check(uint64_t seed, struct tally *tally)
{
    struct question q;
    struct shard_answer answer;
    static char why[sizeof q.err.msg];
    char *json = make_net(seed);
    double least = INFINITY;

    why[0] = '\0';
    if (ask(&q, json, seed))
        snprintf(why, sizeof why, "%s", q.err.msg);
    else
        least = try_all(&q);
    if (isfinite(least)) {
        if (shard_overlap(&q.arena, &q.task, shard_ilp, &answer, &q.err))
            snprintf(why, sizeof why, "%s", q.err.msg);
        else if (answer.bound > least * (1 + 1e-9) ||
                 answer.objective < least * (1 - 1e-9))
            snprintf(why, sizeof why, "bound %.9g, answer %.9g, best of all %.9g",
                     answer.bound, answer.objective, least);
        tally->n++;
        tally->n_best += answer.objective <= least * (1 + 1e-9);
        tally->gap += 1 - answer.bound / answer.objective;
    }
    drop(&q);
    free(json);
    return why[0] ? why : NULL;
}

int main(void)
{
    const char *env = getenv("AP_OVERLAP"), *what = NULL;
    const int want = env ? atoi(env) : 12;
    struct tally tally = {0};
    uint64_t seed = 0;

    while (tally.n < want && !what)
        what = check(++seed, &tally);
    CHECK(!what, "net %d: %s", (int)seed, what ? what : "bounds hold");
    printf("# %d nets: the best of all plans in %d, gap %.1f %% on average\n", tally.n,
           tally.n_best, 100 * tally.gap / tally.n);
    CHECK(tally.n_best >= tally.n * 2 / 3, "the best plan is found in %d of %d",
          tally.n_best, tally.n);
    return tap_done();
}
