/* What a pipelined plan costs: bytes between meshes, parts that add up, sends, weights
 * that two stages hold, recomputation. */
#include "pipeline/pipeline_price.h"
#include "pipeline/pipeline_program.h"

#include <math.h>
#include <string.h>

#include "graph/build.h"
#include "stage_case.h"
#include "tap.h"

static struct ap_arena arena;

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b));
}

/* ---- crossing ---- */

static struct ap_mesh mesh_of(const char *text)
{
    struct ap_mesh mesh = {0};
    struct ap_err err = {0};
    CHECK(ap_mesh_parse(&arena, text, &mesh, &err) == 0, "mesh %s", text);
    return mesh;
}

/* What a tensor costs from eight devices to eight others. */
static struct ap_transfer_price transfer(const struct ap_cluster *cluster,
                                         const struct ap_shape *shape,
                                         const struct ap_mesh *mesh,
                                         const struct ap_layout *to, bool all_gather)
{
    static const int64_t left[] = {0, 1, 2, 3, 4, 5, 6, 7},
                         right[] = {8, 9, 10, 11, 12, 13, 14, 15};
    struct ap_devices a = {8, left}, b = {8, right};
    struct ap_link link = ap_link_between(cluster, &a, &b);
    struct ap_transfer_price x = {.sent_bytes = -1};
    struct ap_cluster own;
    struct ap_cost cost;
    struct ap_err err = {0};

    if (ap_cluster_take(cluster, b.n, b.id, &own, &err) == 0 &&
        ap_cost_init(&arena, &cost, AP_COST_DEFAULT, &own, mesh, &err) == 0) {
        x = ap_price_transfer_on(&link, shape, 1, &cost, to,
                                 all_gather ? AP_RESHARD_ALL_GATHER
                                            : AP_RESHARD_SEND_RECV);
        ap_cost_free(&cost);
    }
    return x;
}

static void local_all_gather(const struct ap_cluster *cluster)
{
    static const struct {
        const char *mesh, *layout;
        int64_t copies;
    } t[] = {{"8", "R", 8},       {"8", "S0", 1},      {"2x4", "S0,R", 4},
             {"2x4", "R,S1", 2},  {"2x4", "S0,S1", 1}, {"2x2x2", "R,S0,R", 4},
             {"2x4", "S0,S0", 1}, {"2x4", "R,R", 8}};
    static const int64_t dims[2] = {64, 32};
    struct ap_shape shape = {.dtype = AP_F32, .rank = 2, .dims = dims};
    int64_t bytes = ap_shape_bytes(&shape);

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct ap_mesh to = mesh_of(t[i].mesh);
        struct ap_layout l;
        struct ap_err err = {0};
        int rc = ap_layout_parse(&to, &shape, t[i].layout, &l, &err);
        struct ap_transfer_price one = transfer(cluster, &shape, &to, &l, true);
        struct ap_transfer_price all = transfer(cluster, &shape, &to, &l, false);
        CHECK(rc == 0 && one.sent_bytes == bytes &&
                  all.sent_bytes == t[i].copies * one.sent_bytes,
              "alpa §6: %s on %s: local all-gather sends 1/%lld of the bytes",
              t[i].layout, t[i].mesh, (long long)t[i].copies);
        CHECK(t[i].copies == 1
                  ? one.gather_bytes == 0 && one.sec == all.sec
                  : one.gather_bytes == bytes * t[i].copies / 8 && all.gather_bytes == 0,
              "what is gathered inside is one tile");
        if (!strcmp(t[i].layout, "R,S1"))
            CHECK(all.sent_bytes == 16384 && one.sent_bytes == 8192 &&
                      one.gather_bytes == 2048,
                  "README of libcommon/pipeline: f32[64,32] to R,S1 on 2x4");
    }
}

/* Two hosts of two devices, with the kinds of links that there are. */
static void links(void)
{
    struct ap_cluster c = {.n_levels = 2};
    static const int64_t host0[] = {0, 1}, host1[] = {2, 3}, even[] = {0, 2},
                         odd[] = {1, 3};
    struct ap_devices a = {2, host0}, b = {2, host1}, e = {2, even}, o = {2, odd};

    c.levels[0] = (struct ap_link_level){
        .name = "in", .size = 2, .bandwidth_bytes_per_sec = 100, .latency_sec = 1};
    c.levels[1] = (struct ap_link_level){
        .name = "out", .size = 2, .bandwidth_bytes_per_sec = 10, .latency_sec = 5};
    struct ap_link l = ap_link_between(&c, &a, &b);
    CHECK(l.level == 1 && l.latency_sec == 5 && near(l.sec_per_byte, 0.5 / 10),
          "host to host: each device sends half, at its own rate");
    c.levels[1].uplink = true;
    l = ap_link_between(&c, &a, &b);
    CHECK(near(l.sec_per_byte, 1.0 / 10), "all through a host's one card");
    l = ap_link_between(&c, &e, &o);
    CHECK(near(l.level_share[0], 0.5) && near(l.level_share[1], 0.5) &&
              near(l.sec_per_byte, 0.25 / 10),
          "side by side: half stays inside, a quarter leaves each host");
    c.levels[0].shared = true;
    c.levels[0].bandwidth_bytes_per_sec = 1;
    l = ap_link_between(&c, &e, &o);
    CHECK(near(l.sec_per_byte, 0.25), "a quarter on the bus of each host");
}

/* ---- plans ---- */

#define DATA2 "\"sharding\":{\"algorithm\":\"data\",\"mesh\":\"2\"}}"
#define TWO_STAGES(head, more)                                           \
    "{" head "\"stages\":[{\"blocks\":[0],\"devices\":[0,1]," more DATA2 \
    ",{\"blocks\":[1],\"devices\":[2,3]," more DATA2 "]}"

static int price(const struct stage_case *c, const char *text, struct ap_stages *s,
                 struct ap_pipeline_price *p)
{
    struct ap_err err = {0};
    int rc = read_stages_text(&arena, c, text, s, &err) ||
             ap_pipeline_price(&arena,
                               &(struct ap_staged_graph){&c->sample.g, &c->sample.nests,
                                                         &c->blocks, &c->cluster},
                               s, p, &err);
    CHECK(rc == 0, "priced %s", err.msg);
    return rc;
}

/* One stage and one microbatch: the plan of the whole graph, to the bit but for order. */
static void single_stage(const struct stage_case *c)
{
    struct ap_stages s;
    struct ap_pipeline_price p;
    struct ap_cost cost;
    struct ap_conversions conv;
    struct ap_err err = {0};

    if (price(c,
              "{\"microbatches\":1,\"stages\":[{\"blocks\":[0,1],\"devices\":[0,1]," DATA2
              "]}",
              &s, &p))
        return;
    struct ap_plan *plan = &s.stage[0].sharding.plan;
    int rc = ap_cost_init(&arena, &cost, AP_COST_DEFAULT, &p.breakdown[0].cost.cluster,
                          &plan->mesh, &err) ||
             ap_plan_conversions(&arena, plan, &cost, &conv, &err);
    CHECK(rc == 0 &&
              near(p.result.step_sec, ap_plan_price(plan, &cost, &conv).serial_sec),
          "one stage, one microbatch: the serial time of the plan");
    ap_cost_free(&cost);
    CHECK(p.n_sends == 0 && p.tied_bytes == 0 && p.result.bubble == 0,
          "nothing is sent, nobody waits");
}

static void two_stages(const struct stage_case *c)
{
    struct ap_stages s;
    struct ap_pipeline_price p;
    double sent = 0;
    int n = 0;

    if (price(c, TWO_STAGES("\"microbatches\":3,\"schedule\":\"gpipe\",", ""), &s, &p))
        return;
    for (int i = 0; i < p.n_sends; i++) {
        const struct ap_send *x = &p.sends[i];
        CHECK(x->kind == AP_SEND_MICROBATCH && x->from != x->to,
              "%s goes from %d to %d, %lld bytes", c->sample.g.nodes[x->node].name,
              x->from, x->to, (long long)x->transfer.sent_bytes);
        sent += 3 * (double)x->transfer.sent_bytes;
        n += x->to > x->from ? 1 : 100;
    }
    CHECK(n == 101, "one activation goes on, one gradient comes back");
    CHECK(near(sent, 3 * 2 * 12 * 16 * 4 / 3.0), "the batch's share of 3 each time");
    double t[2], sends = p.stage[0].send_forward_sec + p.stage[1].send_backward_sec;
    for (int i = 0; i < 2; i++)
        t[i] = p.stage[i].forward_sec + p.stage[i].backward_sec;
    CHECK(p.stage[0].send_backward_sec == 0 && p.stage[1].send_forward_sec == 0 &&
              sends > 0,
          "the ends send nothing further");
    CHECK(p.result.step_sec >= t[0] + t[1] + sends + 2 * fmin(t[0], t[1]),
          "the first microbatch there and back, then two more");
    CHECK(p.mfu > 0 && p.mfu < 1 && p.n_devices == 4, "utilisation of 4 devices");
    CHECK(near(p.flops, 2.0 * 12 * (3 * 16 * 6 + 2 * 10 * 16)), "FLOPs of the model");
}

static void recompute(const struct stage_case *c)
{
    struct ap_stages s;
    struct ap_pipeline_price none, all, some;

    if (price(c, TWO_STAGES("\"microbatches\":3,", ""), &s, &none) ||
        price(c, TWO_STAGES("\"microbatches\":3,", "\"recompute\":\"all\","), &s, &all) ||
        price(c,
              "{\"microbatches\":3,\"stages\":[{\"blocks\":[0],\"devices\":[0,1],"
              "\"recompute\":\"selected\",\"recomputed\":[3]," DATA2
              ",{\"blocks\":[1],\"devices\":[2,3]," DATA2 "]}",
              &s, &some))
        return;
    const struct ap_sim_stage *n = &none.stage[0], *a = &all.stage[0],
                              *o = &some.stage[0];
    CHECK(near(a->recompute_sec, n->forward_sec) && n->recompute_sec == 0,
          "all: a forward is run again");
    CHECK(o->recompute_sec > 0 && o->recompute_sec < a->recompute_sec,
          "selected: only the named operators are");
    CHECK(a->recomputed_bytes + a->flight_bytes == n->flight_bytes && a->flight_bytes > 0,
          "all: inputs are kept instead of activations");
    CHECK(o->recomputed_bytes > 0 && o->flight_bytes < n->flight_bytes,
          "selected: %lld bytes less in flight",
          (long long)(n->flight_bytes - o->flight_bytes));
    CHECK(none.result.step_sec < some.result.step_sec &&
              some.result.step_sec < all.result.step_sec,
          "the step pays for it");
}

/* Both blocks in one stage keep what each would keep as a stage, and one's activations.
 */
static void recompute_by_block(const struct stage_case *c)
{
    struct ap_stages s;
    struct ap_pipeline_price two, one, none;

    if (price(c, TWO_STAGES("\"microbatches\":3,", "\"recompute\":\"all\","), &s, &two) ||
        price(c,
              "{\"microbatches\":3,\"stages\":[{\"blocks\":[0,1],\"devices\":[0,1],"
              "\"recompute\":\"all\"," DATA2 "]}",
              &s, &one) ||
        price(c,
              "{\"microbatches\":3,\"stages\":[{\"blocks\":[0,1],\"devices\":[0,1]," DATA2
              "]}",
              &s, &none))
        return;
    CHECK(one.stage[0].flight_bytes ==
                  two.stage[0].flight_bytes + two.stage[1].flight_bytes &&
              one.stage[0].flight_bytes < none.stage[0].flight_bytes,
          "what each block reads of others is kept");
    CHECK(one.stage[0].recomputed_bytes == two.stage[0].recomputed_bytes &&
              two.stage[0].recomputed_bytes > two.stage[1].recomputed_bytes &&
              two.stage[1].recomputed_bytes > 0,
          "activations of the largest block are there at once");
}

/* ---- a tied weight and a norm of all gradients ---- */

/*
 * u = (tanh(x w) wᵀ)² v on two stages: both hold w. The new value w - g / |g|, g = the
 * sum of both stages' gradients, is made in the first; v has a gradient in the second
 * stage, and the norm is of both.
 */
static int build_tied(struct ap_graph *g, int *second)
{
    struct ap_build b;
    struct ap_err err = {0};
    int64_t dims[2] = {8, 8}, zero = 0, one = 1, both[2] = {0, 1};

    ap_build_init(&b, &arena);
    b.scope = "";
    struct ap_shape s = ap_build_shape(&b, AP_F32, 2, dims);
    int x = ap_build_param(&b, "x", s, AP_ROLE_INPUT);
    int w = ap_build_param(&b, "w", s, AP_ROLE_WEIGHT);
    int v = ap_build_param(&b, "v", s, AP_ROLE_WEIGHT);
    int h = ap_build_matmul(&b, x, w, one, zero);
    *second = h + 1;
    int t = ap_build_unary(&b, AP_OP_TANH, h);
    int y = ap_build_matmul(&b, t, w, one, one);
    int z = ap_build_binary(&b, AP_OP_MULTIPLY, y, y);
    int u = ap_build_matmul(&b, z, v, one, zero);
    int loss = ap_build_reduce(&b, u, AP_RED_SUM, 2, both);
    b.phase = AP_BACKWARD;
    int gy = ap_build_matmul(&b, u, v, one, one);
    int gv = ap_build_matmul(&b, z, u, zero, zero);
    int gw2 = ap_build_matmul(&b, gy, t, zero, zero);
    int gt = ap_build_matmul(&b, gy, w, one, zero);
    int gh = ap_build_binary(&b, AP_OP_MULTIPLY, gt, t);
    int gw1 = ap_build_matmul(&b, x, gh, zero, zero);
    b.phase = AP_UPDATE;
    int gw = ap_build_binary(&b, AP_OP_ADD, gw1, gw2);
    int nw = ap_build_reduce(&b, ap_build_binary(&b, AP_OP_MULTIPLY, gw, gw), AP_RED_SUM,
                             2, both);
    int nv = ap_build_reduce(&b, ap_build_binary(&b, AP_OP_MULTIPLY, gv, gv), AP_RED_SUM,
                             2, both);
    int norm = ap_build_unary(&b, AP_OP_SQRT, ap_build_binary(&b, AP_OP_ADD, nw, nv));
    int wide = ap_build_broadcast(&b, norm, 2, dims, NULL);
    int w1 = ap_build_binary(&b, AP_OP_SUBTRACT, w,
                             ap_build_binary(&b, AP_OP_DIVIDE, gw, wide));
    int v1 = ap_build_binary(&b, AP_OP_SUBTRACT, v,
                             ap_build_binary(&b, AP_OP_DIVIDE, gv, wide));
    struct ap_result results[3] = {
        {loss, AP_ROLE_LOSS, -1, NULL},
        {w1, AP_ROLE_WEIGHT, w, NULL},
        {v1, AP_ROLE_WEIGHT, v, NULL},
    };
    int rc = ap_build_finish(&b, "tied", 3, results, g, &err);
    CHECK(rc == 0, "the tied graph builds %s", err.msg);
    return rc;
}

static void tied_weight(struct stage_case *c)
{
    static const char *const plans[] = {TWO_STAGES("\"microbatches\":4,", ""),
                                        TWO_STAGES("\"microbatches\":1,", "")};
    int second, n[AP_N_SENDS];
    struct ap_err err = {0};
    struct ap_graph *g = &c->sample.g;

    if (build_tied(g, &second))
        return;
    ap_group(&arena, g);
    int *of = AP_NEW_N(&arena, g->n_nodes, int);
    for (int i = 0; i < g->n_nodes; i++)
        of[i] = g->nodes[i].phase == AP_FORWARD && g->nodes[i].op != AP_OP_PARAMETER &&
                        g->nodes[i].n_in > 0
                    ? i >= second
                    : -1;
    ap_blocks_carry(&arena, g, 2, of);
    c->blocks = (struct ap_blocks){.algorithm = "given", .n = 2, .block_of = of};
    CHECK(ap_nests_build(&arena, g, &c->sample.nests, &err) == 0 &&
              ap_blocks_check(&arena, g, &c->blocks, &err) == 0,
          "its blocks are in order %s", err.msg);
    for (size_t k = 0; k < sizeof plans / sizeof *plans; k++) {
        struct ap_stages s;
        struct ap_pipeline_price p;
        memset(n, 0, sizeof n);
        if (price(c, plans[k], &s, &p))
            return;
        for (int i = 0; i < p.n_sends; i++)
            n[p.sends[i].kind]++;
        CHECK(n[AP_SEND_GRADIENT] == 1 && n[AP_SEND_WEIGHT] == 1,
              "a gradient of w goes one way, its new value the other");
        CHECK(p.tied_bytes == 8 * 8 * 4, "tied: the whole gradient, once per step");
        CHECK(n[AP_SEND_ONCE] == 2, "the norm's part goes, the norm comes back");
        CHECK(p.sim.norm_sec >= 2 * c->cluster.levels[0].latency_sec,
              "both stages wait for there and back");
        CHECK(p.breakdown[0].role_bytes[AP_ROLE_WEIGHT] == 8 * 8 * 4 &&
                  p.breakdown[1].role_bytes[AP_ROLE_WEIGHT] == 2 * 8 * 8 * 4,
              "the second stage holds both weights");
    }
}

/* What a lane's ranks get: their stages as they were, of others parameters and results.
 */
static void parts(struct stage_case *c)
{
    struct ap_stages s;
    struct ap_pipeline_price price_of;
    struct ap_pipeline_program whole, part;
    struct ap_err err = {0};
    const struct ap_at at = {NULL, "pipeline", 0};
    const struct ap_staged_graph of = {&c->sample.g, &c->sample.nests, &c->blocks,
                                       &c->cluster};
    bool unsupported;

    if (price(c, TWO_STAGES("\"microbatches\":4,", ""), &s, &price_of))
        return;
    CHECK(!ap_pipeline_build(&arena, &of, &s, &(struct ap_program_form){.split = true},
                             &whole, &unsupported, &err),
          "a program of two lanes %s", err.msg);
    for (int lane = 0; lane < whole.n_lanes && !err.msg[0]; lane++) {
        struct ap_buf all = {0}, some = {0}, again = {0};
        const struct ap_pipeline_program cut = ap_pipeline_part(&arena, &whole, lane);
        ap_pipeline_to_json(&whole, &all);
        ap_pipeline_to_json(&cut, &some);
        json_t *o = json_loadb(some.data, some.len, 0, NULL);
        CHECK(!ap_pipeline_part_from_json(&arena, o, &at, &part, &err),
              "the part of lane %d is read %s", lane, err.msg);
        json_decref(o);
        if (err.msg[0])
            return;
        ap_pipeline_to_json(&part, &again);
        CHECK(some.len < all.len && again.len == some.len &&
                  !memcmp(again.data, some.data, some.len),
              "and the same: %zu of %zu bytes", some.len, all.len);
        for (int k = 0; k < whole.n_stages; k++) {
            const struct ap_graph *a = &whole.stage[k].prog.local;
            const struct ap_graph *b = &part.stage[k].prog.local;
            const bool own = whole.stage[k].lane == lane;
            bool same = a->n_results == b->n_results && b->n_params >= a->n_params;
            for (int r = 0; same && r < a->n_results; r++)
                same = ap_shape_equal(&a->nodes[a->results[r].node].shape,
                                      &b->nodes[b->results[r].node].shape) &&
                       (a->results[r].alias < 0) == (b->results[r].alias < 0);
            CHECK(same && (own ? a->n_nodes == b->n_nodes
                               : b->n_nodes <= a->n_params + a->n_results),
                  "stage %d: %d of %d nodes", k, b->n_nodes, a->n_nodes);
        }
        ap_buf_free(&all);
        ap_buf_free(&some);
        ap_buf_free(&again);
    }
}

/* The unpartitioned graph as a program. */
static int plan_alone(const struct stage_case *c, struct ap_program *prog,
                      struct ap_err *err)
{
    const int64_t device = 0;
    struct ap_cluster one;
    struct ap_cost cost;
    struct ap_plan *plan = AP_NEW(&arena, struct ap_plan);
    struct ap_conversions *conv = AP_NEW(&arena, struct ap_conversions);

    ap_plan_single(&arena, &c->sample.g, &c->sample.nests, plan);
    if (ap_cluster_take(&c->cluster, 1, &device, &one, err) ||
        ap_cost_init(&arena, &cost, AP_COST_DEFAULT, &one, &plan->mesh, err) ||
        ap_plan_conversions(&arena, plan, &cost, conv, err) ||
        ap_partition(&arena, plan, conv, prog, err))
        return -1;
    ap_cost_free(&cost);
    ap_plan_buffers(&arena, prog, 0);
    return 0;
}

/* A program is one stage in one lane, and is written and read as it was. */
static void alone(struct stage_case *c)
{
    const struct ap_at at = {NULL, "program", 0};
    struct ap_program prog;
    struct ap_pipeline_program r, back;
    struct ap_buf text = {0}, again = {0}, own = {0};
    struct ap_err err = {0};

    CHECK(!plan_alone(c, &prog, &err), "a program %s", err.msg);
    if (err.msg[0])
        return;
    ap_pipeline_of_program(&arena, &prog, &r);
    CHECK(r.n_stages == 1 && r.n_lanes == 1 && r.n_transfers == 0 && r.n_ranks == 1,
          "one stage, one lane, no messages");
    CHECK(r.lane[0].n == 1 && r.lane[0].instr[0].lo == 0 &&
              r.lane[0].instr[0].hi == prog.local.n_groups &&
              r.lane[0].peak_bytes == prog.peak_bytes,
          "which runs all groups");
    CHECK(r.stage[0].param[1] == 1 && r.stage[0].result[0] == 0,
          "whose numbers are the graph's");
    CHECK(!strcmp(ap_pipeline_section(&r), "program"), "of the section program");
    ap_program_to_json(&prog, &own);
    ap_pipeline_to_json(&r, &text);
    json_t *o = json_loadb(text.data, text.len, 0, NULL);
    CHECK(!ap_pipeline_from_json(&arena, o, &at, &back, &err), "is read %s", err.msg);
    json_decref(o);
    if (err.msg[0])
        return;
    ap_pipeline_to_json(&back, &again);
    CHECK(text.len == own.len && !memcmp(text.data, own.data, own.len) &&
              again.len == text.len && !memcmp(again.data, text.data, text.len) &&
              back.alone && !back.stage[0].prog.part,
          "as it was written");
    ap_buf_free(&own);
    ap_buf_free(&text);
    ap_buf_free(&again);
}

static bool same_result(const struct ap_pipeline_price *a,
                        const struct ap_pipeline_price *b)
{
    return a->result.step_sec == b->result.step_sec && a->peak_bytes == b->peak_bytes &&
           a->n_sends == b->n_sends && a->sim.norm_sec == b->sim.norm_sec;
}

/* What is only compared has the numbers of the price, to the bit. */
static void compared(const struct stage_case *c)
{
    static const char *const texts[] = {
        TWO_STAGES("\"microbatches\":3,", ""), TWO_STAGES("\"microbatches\":1,", ""),
        TWO_STAGES("\"microbatches\":6,", "\"recompute\":\"all\",")};

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct ap_stages s;
        struct ap_pipeline_price all, p;
        struct ap_err err = {0};

        if (price(c, texts[i], &s, &all))
            return;
        CHECK(
            ap_pipeline_compare(&arena,
                                &(struct ap_staged_graph){&c->sample.g, &c->sample.nests,
                                                          &c->blocks, &c->cluster},
                                &s, NULL, &p, &err) == 0 &&
                same_result(&p, &all),
            "text %zu is compared as priced %s", i, err.msg);
    }
}

static void refused(const struct stage_case *c)
{
    static const struct {
        const char *json, *want;
    } t[] = {
        {TWO_STAGES("\"microbatches\":13,", ""), "/stages/microbatches: 13: "},
        {TWO_STAGES("\"microbatches\":5,", ""),
         "/stages/microbatches: 12 rows are not 5 microbatches of equal size"},
        {TWO_STAGES("\"microbatches\":12,", ""),
         "too few for 2 devices that split them: at most 6 microbatches"},
        {TWO_STAGES("\"microbatches\":2,\"schedule\":\"inference\",", ""),
         "/stages/schedule: inference, but the graph has a backward pass"},
        {TWO_STAGES("\"microbatches\":3,\"schedule\":\"interleaved-1f1b\",", ""),
         "do not divide 3 microbatches"},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct ap_stages s;
        struct ap_pipeline_price p;
        struct ap_err err = {0};
        int rc =
            read_stages_text(&arena, c, t[i].json, &s, &err) ||
            ap_pipeline_price(&arena,
                              &(struct ap_staged_graph){&c->sample.g, &c->sample.nests,
                                                        &c->blocks, &c->cluster},
                              &s, &p, &err);
        CHECK(rc && strstr(err.msg, t[i].want), "refused: %s", err.msg);
    }
}

int main(void)
{
    struct stage_case c;
    struct ap_err err = {0};

    links();
    CHECK(load_stage_case(&arena, &c, &err) == 0, "the case loads %s", err.msg);
    if (!err.msg[0]) {
        local_all_gather(&c.cluster);
        single_stage(&c);
        two_stages(&c);
        recompute(&c);
        recompute_by_block(&c);
        compared(&c);
        refused(&c);
        parts(&c);
        alone(&c);
        tied_weight(&c);
    }
    ap_arena_free(&arena);
    return tap_done();
}
