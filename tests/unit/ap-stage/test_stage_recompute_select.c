/* What stages make again: bytes by hand, and random stages against all sets of values. */
#include "planners/recompute_select.h"

#include <math.h>

#include "graph/build.h"
#include "stage_case.h"
#include "tap.h"

static struct ap_arena arena;
static uint64_t seed = 1;

static int below(int n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

/* ---- graphs ---- */

static int dot(struct ap_build *b, int x, int w)
{
    int64_t zero = 0, one = 1;
    return ap_build_matmul(b, x, w, one, zero);
}

/* Makes c of a built graph whose forward nodes up to `last` are block 0. */
static int finish(struct ap_build *b, int loss, int grad, int x, int w, int last,
                  struct stage_case *c)
{
    struct ap_graph *g = &c->sample.g;
    struct ap_err err = {0};
    struct ap_doc doc;
    const char *empty = "{\"autopar\":1}";
    int64_t zero = 0;

    b->phase = AP_BACKWARD;
    int gw = ap_build_matmul(b, x, grad, zero, zero);
    b->phase = AP_UPDATE;
    int new_w = ap_build_binary(b, AP_OP_SUBTRACT, w, gw);
    struct ap_result results[2] = {{loss, AP_ROLE_LOSS, -1, NULL},
                                   {new_w, AP_ROLE_WEIGHT, w, NULL}};
    if (ap_build_finish(b, "stage", 2, results, g, &err) ||
        ap_doc_parse(&arena, "empty", empty, strlen(empty), &doc, &err) ||
        ap_cluster_get(&arena, &doc, NULL, 1, &c->cluster, &err))
        goto failed;
    ap_group(&arena, g);
    int *of = AP_NEW_N(&arena, g->n_nodes, int);
    for (int i = 0; i < g->n_nodes; i++)
        of[i] = g->nodes[i].phase == AP_FORWARD && g->nodes[i].n_in > 0 ? i > last : -1;
    ap_blocks_carry(&arena, g, 2, of);
    c->blocks = (struct ap_blocks){.algorithm = "given", .n = 2, .block_of = of};
    if (ap_nests_build(&arena, g, &c->sample.nests, &err) ||
        ap_blocks_check(&arena, g, &c->blocks, &err))
        goto failed;
    return 0;
failed:
    CHECK(false, "the stage is built: %s", err.msg);
    return -1;
}

/* One device, four microbatches, all of them in flight. */
static int price(const struct stage_case *c, const char *recompute, struct ap_stages *s,
                 struct ap_pipeline_price *p)
{
    struct ap_err err = {0};
    const char *text = ap_arena_printf(
        &arena,
        "{\"microbatches\":4,\"schedule\":\"gpipe\",\"stages\":[{\"blocks\":[0,1],"
        "\"devices\":[0],\"recompute\":\"%s\",\"sharding\":{\"algorithm\":\"data\","
        "\"mesh\":\"1\"}}]}",
        recompute);
    int rc = read_stages_text(&arena, c, text, s, &err) ||
             ap_pipeline_price(&arena,
                               &(struct ap_staged_graph){&c->sample.g, &c->sample.nests,
                                                         &c->blocks, &c->cluster},
                               s, p, &err);
    if (rc)
        CHECK(false, "%s is priced: %s", recompute, err.msg);
    return rc;
}

static int choose(const struct stage_case *c, int64_t memory_bytes, struct ap_stages *s,
                  struct ap_pipeline_price *p)
{
    struct ap_err err = {0};
    if (price(c, "all", s, p))
        return -1;
    int64_t *memory = AP_NEW_N(&arena, s->n, int64_t);
    for (int i = 0; i < s->n; i++)
        memory[i] = memory_bytes;
    int rc =
        recompute_select_stages(&arena,
                                &(struct ap_staged_graph){&c->sample.g, &c->sample.nests,
                                                          &c->blocks, &c->cluster},
                                memory, true, s, p, &err);
    if (rc)
        CHECK(false, "it is chosen: %s", err.msg);
    return rc;
}

/* ---- by hand ---- */

/*
 * Block 0: h = x w, t = tanh h, u = t w; block 1: v = u w, e = exp v. The backward pass
 * reads x, t, u, v and e, each of 16 x 32 floats. u is read by block 1 and stays. To make
 * t again takes the dot h, too; to make e again takes v, which is kept.
 */
static void by_hand(void)
{
    struct stage_case c = {0};
    struct ap_stages s;
    struct ap_pipeline_price none, some;
    struct ap_build b;
    int64_t rows[2] = {16, 32}, square[2] = {32, 32}, both[2] = {0, 1};
    const int64_t value = 16 * 32 * 4; /* of the batch, so a microbatch's is a fourth */

    ap_build_init(&b, &arena);
    b.scope = "";
    int x = ap_build_param(&b, "x", ap_build_shape(&b, AP_F32, 2, rows), AP_ROLE_INPUT);
    int w =
        ap_build_param(&b, "w", ap_build_shape(&b, AP_F32, 2, square), AP_ROLE_WEIGHT);
    int h = dot(&b, x, w), t = ap_build_unary(&b, AP_OP_TANH, h), u = dot(&b, t, w);
    int v = dot(&b, u, w), e = ap_build_unary(&b, AP_OP_EXPONENTIAL, v);
    int loss = ap_build_reduce(&b, e, AP_RED_SUM, 2, both);
    b.phase = AP_BACKWARD;
    int g = ap_build_binary(&b, AP_OP_MULTIPLY, e, v);
    g = ap_build_binary(&b, AP_OP_MULTIPLY, dot(&b, g, w), u);
    g = ap_build_binary(&b, AP_OP_MULTIPLY, dot(&b, g, w), t);
    if (finish(&b, loss, g, x, w, u, &c) || price(&c, "none", &s, &none))
        return;
    CHECK(none.stage[0].flight_bytes == 5 * value / 4, "x, t, u, v and e are kept");

    int64_t full = none.peak_bytes;
    if (choose(&c, full, &s, &some))
        return;
    CHECK(s.stage[0].recompute == AP_RECOMPUTE_NONE && some.peak_bytes == full &&
              some.result.step_sec == none.result.step_sec,
          "what fits is kept");
    if (choose(&c, full - 1, &s, &some))
        return;
    /* four microbatches keep a fourth less each, one of them has it while it is read */
    CHECK(s.stage[0].recompute == AP_RECOMPUTE_SELECTED && s.stage[0].n_recomputed == 1 &&
              s.stage[0].recomputed[0] == e &&
              some.stage[0].flight_bytes == 4 * value / 4 &&
              full - some.peak_bytes == 4 * value / 4 - value / 4,
          "first e, which takes no contraction: %lld of %lld bytes saved",
          (long long)(full - some.peak_bytes), (long long)full);
    if (choose(&c, full - value, &s, &some))
        return;
    CHECK(s.stage[0].n_recomputed == 2 && s.stage[0].recomputed[0] == v &&
              s.stage[0].recomputed[1] == e &&
              full - some.peak_bytes == 2 * value - 2 * value / 4,
          "then v, whose dot runs on u: both are there at once");
    if (choose(&c, full - 2 * value, &s, &some))
        return;
    CHECK(s.stage[0].n_recomputed == 4 && s.stage[0].recomputed[0] == h &&
              s.stage[0].recomputed[1] == t &&
              some.stage[0].flight_bytes == 2 * value / 4 &&
              some.peak_bytes <= full - 2 * value,
          "then t with h, which nobody keeps");
    if (price(&c, "all", &s, &none) || choose(&c, none.peak_bytes - 1, &s, &some))
        return;
    CHECK(s.stage[0].recompute == AP_RECOMPUTE_ALL && s.stage[0].n_recomputed == 0 &&
              some.result.step_sec == none.result.step_sec,
          "too little memory as it is: left alone");
}

/* ---- against all sets ---- */

/* Elementwise operators and dots over a few values, all read by the backward pass. */
static int random_stage(struct stage_case *c)
{
    struct ap_build b;
    int64_t rows[2] = {64, 64}, square[2] = {64, 64}, both[2] = {0, 1};
    int value[8], n = 0, last = 0, cut = 2 + below(3);

    *c = (struct stage_case){0};
    ap_build_init(&b, &arena);
    b.scope = "";
    int x = ap_build_param(&b, "x", ap_build_shape(&b, AP_F32, 2, rows), AP_ROLE_INPUT);
    int w =
        ap_build_param(&b, "w", ap_build_shape(&b, AP_F32, 2, square), AP_ROLE_WEIGHT);
    int from = x, before = x;
    while (n < 7) {
        int kind = below(4), new;
        if (kind == 0)
            new = ap_build_unary(&b, AP_OP_TANH, from);
        else if (kind == 1 && before != from)
            new = ap_build_binary(&b, AP_OP_ADD, from, before);
        else
            new = dot(&b, from, w);
        before = n == cut ? new : from; /* nothing but the cut's value crosses */
        from = value[n++] = new;
        if (n - 1 == cut)
            last = new;
    }
    int loss = ap_build_reduce(&b, from, AP_RED_SUM, 2, both);
    b.phase = AP_BACKWARD;
    int g = value[n - 1];
    for (int i = n - 1; i >= 0; i--)
        if (below(3))
            g = dot(&b, ap_build_binary(&b, AP_OP_MULTIPLY, g, value[i]), w);
    return finish(&b, loss, g, x, w, last, c);
}

/* The least seconds of a backward within so many bytes, of all sets of values. */
static double least_sec(const struct ap_stages *s, const struct ap_pipeline_price *p,
                        double most_bytes)
{
    const struct ap_stage *st = &s->stage[0];
    const struct ap_plan *plan = &st->sharding.plan;
    int may[32], n = 0;
    struct ap_stage_weights weights;
    struct ap_cost cost = p->breakdown[0].cost;
    bool *again = AP_NEW_N(&arena, st->sub.graph.n_nodes, bool);
    double least = INFINITY;

    cost.cache = NULL;
    ap_stage_weigh(
        &arena,
        &(struct ap_stage_plan){&st->sub, &p->micro, plan, &p->breakdown[0].conv, &cost},
        &weights);
    for (int v = 0; v < st->sub.graph.n_nodes; v++)
        if (weights.value[v].may && n < 32)
            may[n++] = v;
    for (int set = 0; set < 1 << n; set++) {
        struct ap_mark mark = ap_arena_mark(&arena);
        struct ap_stage_point point = {0};
        for (int k = 0; k < n; k++)
            again[may[k]] = set >> k & 1;
        ap_stage_price_recomputed(&arena,
                                  &(struct ap_stage_plan){&st->sub, &p->micro, plan,
                                                          &p->breakdown[0].conv, &cost},
                                  again, &point);
        if ((double)point.stage_bytes + 4.0 * (double)point.microbatch_bytes <=
                most_bytes &&
            point.backward_sec < least)
            least = point.backward_sec;
        ap_arena_rewind(&arena, mark);
    }
    ap_cost_free(&cost);
    return least;
}

static void random_stages(void)
{
    int n_best = 0, n_all = 0, n_left = 0;
    double worst = 1;

    for (int k = 0; k < 60; k++) {
        struct stage_case c;
        struct ap_stages s;
        struct ap_pipeline_price none, all, some;
        if (random_stage(&c) || price(&c, "none", &s, &none) ||
            price(&c, "all", &s, &all))
            return;
        for (int step = 1; step < 4; step++) {
            int64_t most = all.peak_bytes + (none.peak_bytes - all.peak_bytes) * step / 4;
            if (most >= none.peak_bytes || choose(&c, most, &s, &some))
                continue;
            double sec = some.stage[0].backward_sec + some.stage[0].recompute_sec;
            double best = least_sec(&s, &all, (double)most);
            bool left = s.stage[0].recompute == AP_RECOMPUTE_ALL;
            if (some.peak_bytes > most || some.result.step_sec > all.result.step_sec ||
                (!left && sec < best * (1 - 1e-9)))
                CHECK(false, "stage %d, %lld bytes: %lld bytes, %g s, best %g", k,
                      (long long)most, (long long)some.peak_bytes, sec, best);
            n_all++;
            n_left += left;
            n_best += sec <= best * (1 + 1e-9);
            worst = sec / best > worst ? sec / best : worst;
        }
    }
    CHECK(n_all > 100, "%d choices fit, none slower than making all again", n_all);
    CHECK(n_best * 10 >= n_all * 9 && n_left == 0,
          "%d of %d are the best of all sets, %d are left as they were", n_best, n_all,
          n_left);
    CHECK(worst < 1.1, "the backward takes %.3f times the best's at most", worst);
}

int main(void)
{
    by_hand();
    random_stages();
    ap_arena_free(&arena);
    return tap_done();
}
