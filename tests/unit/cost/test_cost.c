/* Clusters and the cost models: hand-made numbers, the papers' units, bad files. */
#include "cost/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tap.h"

static struct ap_arena arena;

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-12 * fmax(fabs(a), fabs(b));
}

static int parse(const char *text, struct ap_cluster *c, struct ap_err *err)
{
    json_error_t why;
    json_t *o = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    if (!o)
        return ap_err_set(err, "%s", why.text);
    int rc = ap_cluster_from_json(&arena, o, NULL, c, err);
    json_decref(o);
    return rc;
}

/* A cluster with the given levels, one TFLOP/s and one TB/s per device. */
static struct ap_cluster cluster(const char *levels)
{
    struct ap_cluster c;
    struct ap_err err = {""};
    char *text =
        ap_arena_printf(&arena,
                        "{\"name\":\"t\",\"device\":\"d\",\"memory_bytes\":1000,"
                        "\"flops_per_sec\":{\"f32\":1e12,\"f16\":4e12},"
                        "\"memory_bandwidth_bytes_per_sec\":1e12,\"launch_sec\":1e-6,"
                        "\"efficiency\":0.5,\"levels\":[%s]}",
                        levels);
    if (parse(text, &c, &err))
        CHECK(false, "cluster: %s", err.msg);
    return c;
}

static struct ap_cost cost_of(const char *mesh_text, const struct ap_cluster *c,
                              enum ap_cost_variant variant)
{
    struct ap_cost cost = {0};
    struct ap_mesh mesh;
    struct ap_err err = {""};
    if (ap_mesh_parse(&arena, mesh_text, &mesh, &err) ||
        ap_cost_init(&arena, &cost, variant, c, &mesh, &err))
        CHECK(false, "mesh %s: %s", mesh_text, err.msg);
    return cost;
}

#define NODE                                                                            \
    "{\"name\":\"in\",\"size\":8,\"bandwidth_bytes_per_sec\":100e9,\"latency_sec\":1e-" \
    "6}"
#define NET(kind)                                                                    \
    ",{\"name\":\"out\",\"size\":4,\"bandwidth_bytes_per_sec\":8e9,\"latency_sec\":" \
    "1e-5" kind "}"

static void check_axis(const char *mesh, const char *levels, int axis, double bandwidth,
                       double latency)
{
    struct ap_cluster c = cluster(levels);
    struct ap_cost cost = cost_of(mesh, &c, AP_COST_DEFAULT);
    CHECK(cost.bandwidth[axis] == bandwidth && cost.latency[axis] == latency,
          "mesh %s, axis %d: %g B/s, %g s (want %g, %g)", mesh, axis,
          cost.bandwidth[axis], cost.latency[axis], bandwidth, latency);
    ap_cost_free(&cost);
}

static void test_levels(void)
{
    check_axis("4x8", NODE NET(""), 0, 8e9, 1e-5);
    check_axis("4x8", NODE NET(""), 1, 100e9, 1e-6);
    check_axis("8", NODE NET(""), 0, 100e9, 1e-6); /* the first node only */
    check_axis("2x4", NODE NET(""), 0, 100e9, 1e-6);
    check_axis("32", NODE NET(""), 0, 8e9, 1e-5);
    check_axis("2x16", NODE NET(""), 1, 8e9, 1e-5);
    check_axis("3x5", NODE NET(""), 1, 8e9, 1e-5); /* ranks 5..9 lie on two nodes */
    check_axis("1x8", NODE NET(""), 0, INFINITY, 0);
    /* a network card per node: 8 rings go through it, 2 of 16, one of 32 */
    check_axis("4x8", NODE NET(",\"uplink\":true"), 0, 1e9, 1e-5);
    check_axis("4x8", NODE NET(",\"uplink\":true"), 1, 100e9, 1e-6);
    check_axis("16x2", NODE NET(",\"uplink\":true"), 0, 4e9, 1e-5);
    check_axis("32", NODE NET(",\"uplink\":true"), 0, 8e9, 1e-5);
    check_axis("2x2x8", NODE NET(",\"uplink\":true"), 1, 1e9, 1e-5);
    /* two cards per node for 8 rings; one ring takes one card */
    check_axis("4x8", NODE NET(",\"rails\":2"), 0, 2e9, 1e-5);
    check_axis("16x2", NODE NET(",\"rails\":2"), 0, 8e9, 1e-5);
    check_axis("32", NODE NET(",\"rails\":2"), 0, 8e9, 1e-5);
    /* every device has a link of its own, and half of them is carried at once */
    check_axis("4x8", NODE NET(",\"oversubscription\":2"), 0, 4e9, 1e-5);
    check_axis("4x8", NODE NET(",\"rails\":8,\"oversubscription\":4"), 0, 2e9, 1e-5);
    /* one bus for all nodes: 8 rings of 4, a ring of 4 nodes */
    check_axis("4x8", NODE NET(",\"shared\":true"), 0, 8e9 / 32, 1e-5);
    check_axis("32", NODE NET(",\"shared\":true"), 0, 2e9, 1e-5);
    check_axis("2x2x8", NODE NET(",\"shared\":true"), 1, 8e9 / 32, 1e-5);
}

static void check_misfit(void)
{
    struct ap_cluster c = cluster(NODE);
    struct ap_cost cost;
    struct ap_mesh mesh;
    struct ap_err err = {""};
    c.name = "p3x1";
    ap_mesh_parse(&arena, "4x8", &mesh, &err);
    CHECK(ap_cost_init(&arena, &cost, AP_COST_DEFAULT, &c, &mesh, &err) == -1 &&
              !strcmp(err.msg, "mesh 4x8 needs 32 devices, cluster p3x1 has 8"),
          "too large a mesh: %s", err.msg);
}

static void check_coll(const struct ap_cost *cost, enum ap_op op, unsigned axes,
                       int64_t bytes, double want)
{
    double got = ap_cost_collective(cost, op, axes, bytes);
    CHECK(near(got, want), "%s %s of %lld bytes over axes %u: %.17g (want %.17g)",
          ap_cost_variant_names[cost->variant], ap_ops[op].name, (long long)bytes, axes,
          got, want);
}

static void test_seconds(void)
{
    struct ap_cluster c = cluster(NODE NET(""));
    c.collective_efficiency[AP_OP_REDUCE_SCATTER] = 2;
    struct ap_cost cost = cost_of("4x8", &c, AP_COST_DEFAULT);
    int64_t b = 800000000;

    check_coll(&cost, AP_OP_ALL_GATHER, 2, b, 7e-6 + 7e-3);
    check_coll(&cost, AP_OP_REDUCE_SCATTER, 2, b, 7e-6 + 2 * 7e-3);
    check_coll(&cost, AP_OP_ALL_REDUCE, 2, b, 14e-6 + 14e-3);
    check_coll(&cost, AP_OP_ALL_REDUCE, 2, 80, 6e-6 + 160 / 100e9); /* by tree */
    check_coll(&cost, AP_OP_ALL_TO_ALL, 2, b, 7e-6 + 7e-3 / 8);
    check_coll(&cost, AP_OP_COLLECTIVE_PERMUTE, 2, b, 1e-6 + 8e-3);
    check_coll(&cost, AP_OP_ALL_REDUCE, 3, 8 * b, 62e-5 + 2 * 6.4 * 31 / 32 / 8);
    check_coll(&cost, AP_OP_COLLECTIVE_PERMUTE, 3, b, 1e-5 + 0.1);
    struct ap_cost node =
        cost_of("2x4", &c, AP_COST_DEFAULT); /* equal links: 1 + 3 hops */
    check_coll(&node, AP_OP_ALL_REDUCE, 3, b, 8e-6 + 14e-3);
    ap_cost_free(&node);
    check_coll(&cost, AP_OP_AP_SLICE, 1, b, 0);
    check_coll(&cost, AP_OP_AP_PARTIAL, 1, b, 0);
    ap_cost_free(&cost);
}

static void test_alpa(void)
{
    struct ap_cluster c = cluster(NODE NET(""));
    struct ap_cost cost = cost_of("2x4", &c, AP_COST_ALPA);

    check_coll(&cost, AP_OP_ALL_GATHER, 1, 1024, 1 + 512 + 0.1);
    check_coll(&cost, AP_OP_ALL_GATHER, 2, 1024, 1 + 0.1 * 768 + 0.1);
    check_coll(&cost, AP_OP_ALL_REDUCE, 1, 1024, 1 + 1024 + 0.01);
    check_coll(&cost, AP_OP_ALL_REDUCE, 2, 1024, 1 + 0.1 * 2 * 768 + 0.01);
    check_coll(&cost, AP_OP_REDUCE_SCATTER, 1, 1024, 1 + 512 + 0.001);
    check_coll(&cost, AP_OP_ALL_TO_ALL, 1, 1024, 1 + 256 + 0.001);
    check_coll(&cost, AP_OP_ALL_TO_ALL, 2, 1024, 1 + 0.1 * 192 * 2 + 0.001);
    check_coll(&cost, AP_OP_ALL_REDUCE, 3, 1024, 1 + 2 * 896 + 0.01);
    check_coll(&cost, AP_OP_COLLECTIVE_PERMUTE, 3, 1024, 2 + 1.1 * 1024);
    CHECK(ap_cost_compute(&cost, 1e12, AP_F32, 1e9) == 0, "compute is free");
    ap_cost_free(&cost);
}

static void test_bytes(void)
{
    struct ap_cluster c = cluster(NODE NET(""));
    struct ap_cost cost = cost_of("2x4", &c, AP_COST_BYTES);

    check_coll(&cost, AP_OP_ALL_REDUCE, 2, 1024, 1536);
    check_coll(&cost, AP_OP_ALL_REDUCE, 3, 1024, 1792);
    check_coll(&cost, AP_OP_ALL_GATHER, 2, 1024, 768);
    check_coll(&cost, AP_OP_REDUCE_SCATTER, 1, 1024, 512);
    check_coll(&cost, AP_OP_ALL_TO_ALL, 2, 1024, 192);
    check_coll(&cost, AP_OP_COLLECTIVE_PERMUTE, 3, 1024, 1024);
    CHECK(ap_cost_compute(&cost, 1e12, AP_F32, 1e9) == 0, "compute is free");
    ap_cost_free(&cost);
}

static void test_compute(void)
{
    struct ap_cluster c = cluster(NODE);
    struct ap_cost cost = cost_of("8", &c, AP_COST_DEFAULT);
    CHECK(near(ap_cost_compute(&cost, 1e9, AP_F32, 8), 2e-3 + 1e-6),
          "10^9 FLOPs at half of 1 TFLOP/s: 2 ms and the launch");
    CHECK(near(ap_cost_compute(&cost, 1e9, AP_F16, 8), 0.5e-3 + 1e-6), "f16: 0.5 ms");
    CHECK(near(ap_cost_compute(&cost, 1e9, AP_S32, 8), 2e-3 + 1e-6), "s32 as f32");
    CHECK(near(ap_cost_compute(&cost, 8, AP_F32, 1e9), 1e-3 + 1e-6),
          "10^9 bytes at 1 TB/s: 1 ms");
    ap_cost_free(&cost);
}

/* Shards too small to fill the device reach less of its peak. */
static void test_curve(void)
{
    struct ap_cluster c = cluster(NODE);
    c.launch_sec = 0;
    c.n_curve = 3;
    c.curve[0] = (struct ap_share_row){1e6, 0.01};
    c.curve[1] = (struct ap_share_row){1e8, 0.5};
    c.curve[2] = (struct ap_share_row){1e9, 0.5};
    struct ap_cost cost = cost_of("8", &c, AP_COST_DEFAULT);
    static const struct {
        double flops, sec;
    } want[] = {{1e5, 1e-5}, {1e6, 1e-4}, {50.5e6, 1.5e-4}, {1e8, 2e-4},
                {5e8, 1e-3}, {1e9, 2e-3}, {2e9, 4e-3}};
    double last = 0;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        double sec = ap_cost_compute(&cost, want[i].flops, AP_F32, 0);
        CHECK(near(sec, want[i].sec) && sec > last, "curve: %g FLOPs take %g s",
              want[i].flops, sec);
        last = sec;
    }
    double whole = ap_cost_compute(&cost, 4e6, AP_F32, 0);
    CHECK(8 * ap_cost_compute(&cost, 5e5, AP_F32, 0) > 2 * whole,
          "eight small shards do not take an eighth each");
    ap_cost_free(&cost);
}

static double kernel_sec(const struct ap_cluster *c, struct ap_kernel_work w)
{
    return ap_cluster_kernel_sec(c, &w);
}

/* Seconds of a collective of so many bytes on n of the node's devices. */
static double coll_sec(const struct ap_cluster *c, const char *mesh, enum ap_op op,
                       int64_t bytes)
{
    struct ap_cost cost = cost_of(mesh, c, AP_COST_DEFAULT);
    const double sec = ap_cost_collective(&cost, op, 1, bytes);

    ap_cost_free(&cost);
    return sec;
}

/* Tables of two and of eight devices say what four take, where links are their own. */
static void test_between_tables(void)
{
    static const struct ap_collective_time table[] = {
        {AP_OP_ALL_GATHER, 0, 2, 1, {2, {{1e6, 1e-5}, {1e8, 1e-3}}}},
        {AP_OP_ALL_GATHER, 0, 8, 1, {2, {{1e6, 2e-5}, {1e8, 2e-3}}}}};
    struct ap_cluster c = cluster(NODE);
    const double formula = coll_sec(&c, "4", AP_OP_ALL_GATHER, 48000000);

    c.measured.collective = table;
    c.measured.n_collectives = 2;
    CHECK(near(coll_sec(&c, "8", AP_OP_ALL_GATHER, 50000000), 1e-3), "its own table");
    /* 3/4 of the bytes are sent: as many as of 3/2 of them by two, of 6/7 by eight */
    CHECK(near(coll_sec(&c, "4", AP_OP_ALL_GATHER, 48000000),
               (1e-3 * 0.48 * 3 / 2 + 2e-3 * 0.48 * 6 / 7) / 2),
          "four between two and eight that send as much");
    c.measured.n_collectives = 1;
    CHECK(near(coll_sec(&c, "4", AP_OP_ALL_GATHER, 48000000), 1e-3 * 0.48 * 3 / 2),
          "four as two that send as much");
    c.levels[0].shared = true;
    CHECK(coll_sec(&c, "4", AP_OP_ALL_GATHER, 48000000) > formula,
          "on a bus: the formula");
}

/* Tokens of eight experts go once to each of two devices: to 1.99 of 2, not 8 times. */
static void test_sent_once(void)
{
    struct ap_cluster c = cluster(NODE);
    const double none = coll_sec(&c, "2", AP_OP_ALL_TO_ALL, 0);
    const double each = coll_sec(&c, "2", AP_OP_ALL_TO_ALL, 100000000) - none;
    const double sums = coll_sec(&c, "2", AP_OP_ALL_REDUCE, 100000000);

    c.experts_per_token = 8;
    CHECK(near((coll_sec(&c, "2", AP_OP_ALL_TO_ALL, 100000000) - none) / each,
               2 * (1 - 1. / 256) / 8),
          "a token once to each device");
    c.experts_per_token = 0;
    c.expert_load = 1.5;
    CHECK(near((coll_sec(&c, "2", AP_OP_ALL_TO_ALL, 100000000) - none) / each, 1.5),
          "one device has half more tokens than others");
    CHECK(coll_sec(&c, "2", AP_OP_ALL_REDUCE, 100000000) == sums, "sums are sums");
}

/* Contractions reach shares of the peak by type and by what their size is. */
static void test_rates(void)
{
    static const struct ap_rate rates[] = {
        {.kernel = AP_KERNEL_DOT,
         .dtypes = 1u << AP_F8E4M3FN,
         .n = 2,
         .row = {{1e9, 0.1}, {1e10, 0.25}}},
        {.kernel = AP_KERNEL_GROUPED,
         .dtypes = 1u << AP_F16,
         .n = 2,
         .row = {{64, 0.125}, {256, 0.25}}},
        {AP_KERNEL_ATTENTION, 1u << AP_F16, AP_FORWARD, 64, 1, {{1024, 0.125}}},
        {AP_KERNEL_ATTENTION, 1u << AP_F16, AP_FORWARD, 128, 1, {{1024, 0.25}}},
        {AP_KERNEL_ATTENTION, 1u << AP_F16, AP_BACKWARD, 128, 1, {{1024, 0.2}}}};
    struct ap_cluster c = cluster(NODE); /* f16: 4 TFLOP/s at 0.5 */
    struct ap_kernel_work dot = {AP_KERNEL_DOT, .dtype = AP_F8E4M3FN, .flops = 1e10};
    struct ap_kernel_work grouped = {AP_KERNEL_GROUPED, .dtype = AP_F16, .flops = 1e9,
                                     .size = 64};
    struct ap_kernel_work heads = {AP_KERNEL_ATTENTION, .dtype = AP_F16, .flops = 1e9,
                                   .size = 4096, .width = 96};

    c.launch_sec = 0;
    c.flops_per_sec[AP_F8E4M3FN] = 8e12;
    c.measured.rate = rates;
    c.measured.n_rates = sizeof rates / sizeof *rates;
    CHECK(near(kernel_sec(&c, dot), 1e10 / 8e12 / 0.25), "a dot by its FLOPs");
    dot.dtype = AP_F16;
    CHECK(near(kernel_sec(&c, dot), 1e10 / 4e12 / 0.5), "a type without rates");
    CHECK(near(kernel_sec(&c, grouped), 1e9 / 4e12 / 0.125), "64 tokens per expert");
    grouped.size = 1e6;
    CHECK(near(kernel_sec(&c, grouped), 1e9 / 4e12 / 0.25), "a million");
    grouped.size = 128;
    CHECK(near(kernel_sec(&c, grouped), 1e9 / 4e12 * (512 + 512 / 3.) / 128),
          "128: the time is linear in tokens");
    grouped.dtype = AP_F8E4M3FN;
    CHECK(near(kernel_sec(&c, grouped), 1e9 / 8e12 / 0.1),
          "no rates: a dot of all FLOPs");
    CHECK(near(kernel_sec(&c, heads), 1e9 / 4e12 / 0.25), "heads of 96 as of 128");
    heads.width = 80;
    CHECK(near(kernel_sec(&c, heads), 1e9 / 4e12 / 0.125), "heads of 80 as of 64");
    heads.phase = AP_BACKWARD;
    CHECK(near(kernel_sec(&c, heads), 1e9 / 4e12 / 0.2), "backward");
    heads.bytes = 1e12;
    CHECK(near(kernel_sec(&c, heads), 1), "no quicker than memory");
}

/* ---- files ---- */

static struct ap_cluster preset(const char *name)
{
    struct ap_cluster c = {0};
    struct ap_err err = {""};
    if (ap_cluster_get(&arena, NULL, name, 8, &c, &err))
        CHECK(false, "%s: %s", name, err.msg);
    return c;
}

/*
 * Tofu: a 5-layer perceptron of 8192 units, batch 512, on 8 cards that share a PCIe bus
 * spends over 80 % of a data-parallel step on communication; with a link per card the
 * same numbers give less.
 */
static void test_to8(void)
{
    struct ap_cluster bus = preset("tofu"), own = bus;
    own.levels[0].shared = false;
    double share[2], flops = 6.0 * 5 * 8192 * 8192 * 512 / 8;
    for (int i = 0; i < 2; i++) {
        struct ap_cost cost = cost_of("8", i ? &own : &bus, AP_COST_DEFAULT);
        double compute = ap_cost_compute(&cost, flops, AP_F32, 0);
        double comm =
            5 * ap_cost_collective(&cost, AP_OP_ALL_REDUCE, 1, (int64_t)4 * 8192 * 8192);
        share[i] = comm / (comm + compute);
        ap_cost_free(&cost);
    }
    CHECK(share[0] > 0.8 && share[0] < 0.97,
          "tofu, communication on PCIe: %.0f %% of the step is communication on a shared "
          "bus",
          100 * share[0]);
    CHECK(share[1] > 0.7 && share[1] < 0.72,
          "tofu, communication on PCIe: %.0f %% with a link per card", 100 * share[1]);
}

/* Every preset is the file of its name, and is read, written and read again. */
static void test_presets(void)
{
    int n = 0;
    for (const struct ap_preset *p = ap_presets; p->name; p++) {
        struct ap_cluster c = preset(p->name), again, file;
        struct ap_buf first = {0}, second = {0};
        struct ap_err err = {""};
        c.collective_efficiency[AP_OP_ALL_GATHER] = 1.5;
        c.n_curve = 2;
        c.curve[0] = (struct ap_share_row){1e6, 0.125};
        c.curve[1] = (struct ap_share_row){1e9, c.efficiency};
        ap_cluster_to_json(&c, &first);
        bool ok = parse(first.data, &again, &err) == 0;
        if (ok)
            ap_cluster_to_json(&again, &second);
        CHECK(ok && !strcmp(first.data, second.data) && !strcmp(c.name, p->name),
              "%s, %lld devices, is read and written %s", p->name,
              (long long)ap_cluster_devices(&c), err.msg);
        c = preset(p->name);
        const char *path = ap_arena_printf(&arena, "clusters/%s.json", p->name);
        if (access(path, F_OK))
            path = ap_arena_printf(&arena, "clusters/papers/%s.json", p->name);
        CHECK(ap_cluster_get(&arena, NULL, path, 8, &file, &err) == 0 &&
                  !strcmp(ap_cluster_fingerprint(&arena, &c),
                          ap_cluster_fingerprint(&arena, &file)),
              "%s has its file's fingerprint %s", p->name, err.msg);
        ap_buf_free(&first);
        ap_buf_free(&second);
        n++;
    }
    CHECK(n >= 18, "%d presets", n);
}

static void test_default(void)
{
    struct ap_cluster c;
    struct ap_err err = {""};
    ap_cluster_get(&arena, NULL, NULL, 20, &c, &err);
    CHECK(ap_cluster_devices(&c) == 24 && c.n_levels == 2 &&
              c.levels[0].bandwidth_bytes_per_sec == 300e9 &&
              c.levels[1].bandwidth_bytes_per_sec == 25e9,
          "20 devices by default: 3 nodes of 8 A100s");
    ap_cluster_get(&arena, NULL, NULL, 4, &c, &err);
    CHECK(ap_cluster_devices(&c) == 4 && c.n_levels == 1, "4 devices: one node");
}

#define HEAD              "{\"name\":\"t\",\"device\":\"d\",\"memory_bytes\":1,"
#define PEAK              "\"flops_per_sec\":{\"f32\":1},"
#define ROW(flops, share) "{\"flops\":" flops ",\"of_peak\":" share "}"
#define REST              "\"memory_bandwidth_bytes_per_sec\":1,\"launch_sec\":0,"
#define LEVEL \
    "{\"name\":\"l\",\"size\":2,\"bandwidth_bytes_per_sec\":1,\"latency_sec\":0}"
#define LEVELS "\"levels\":[" LEVEL "]"

static void test_bad(void)
{
    static const struct {
        const char *text, *want;
    } bad[] = {
        {"[]", "expected an object, got an array"},
        {"{}", "member \"name\" (a string) is missing"},
        {HEAD REST "\"efficiency\":1," LEVELS "}",
         "/flops_per_sec: expected an object of element types"},
        {HEAD "\"flops_per_sec\":{\"f16\":1}," REST "\"efficiency\":1," LEVELS "}",
         "/flops_per_sec: member \"f32\" (a number) is missing"},
        {HEAD "\"flops_per_sec\":{\"f32\":-1}," REST "\"efficiency\":1," LEVELS "}",
         "/flops_per_sec/f32: expected a number from 1 to 1e+30, got -1"},
        {HEAD "\"flops_per_sec\":{\"f33\":1}," REST "\"efficiency\":1," LEVELS "}",
         "/flops_per_sec/f33: no element type has this name"},
        {HEAD PEAK REST "\"efficiency\":0," LEVELS "}",
         "/efficiency: expected a number from 1e-06 to 1, got 0"},
        {HEAD PEAK REST "\"efficiency\":1.5," LEVELS "}",
         "/efficiency: expected a number from 1e-06 to 1, got 1.5"},
        {HEAD PEAK REST "\"efficiency\":[]," LEVELS "}",
         "/efficiency: expected 1 to 16 rows, got 0"},
        {HEAD PEAK REST "\"efficiency\":[" ROW("1", "1.5") "]," LEVELS "}",
         "/efficiency/0/of_peak: expected a number from 1e-06 to 1, got 1.5"},
        {HEAD PEAK REST "\"efficiency\":[" ROW("2", "1") "," ROW("2", "1") "]," LEVELS
                                                                           "}",
         "/efficiency/1: expected a larger size than in the row before"},
        {HEAD PEAK REST "\"efficiency\":[" ROW("1", "0.1") "," ROW("2", "1") "]," LEVELS
                                                                             "}",
         "/efficiency/1: a larger size would take less time"},
        {HEAD PEAK "\"memory_bandwidth_bytes_per_sec\":1,\"launch_sec\":1e308}",
         "/launch_sec: expected a number from 0 to 1e+06, got 1e+308"},
        {HEAD PEAK REST
         "\"efficiency\":1,\"levels\":[{\"name\":\"l\",\"size\":9999999}]}",
         "/levels/0/size: expected an integer from 1 to 1048576, got 9999999"},
        {HEAD PEAK REST "\"efficiency\":1,\"levels\":[]}",
         "/levels: expected 1 to 6 levels, got 0"},
        {HEAD PEAK REST "\"efficiency\":1,\"levels\":[" LEVEL ",3]}",
         "/levels/1: expected an object, got an integer"},
        {HEAD PEAK REST "\"efficiency\":1,\"levels\":[{\"name\":\"l\",\"size\":0}]}",
         "/levels/0/size: expected an integer from 1 to 1048576, got 0"},
        {HEAD PEAK REST "\"efficiency\":1," LEVELS
                        ",\"collective_efficiency\":{\"dot\":1}}",
         "/collective_efficiency/dot: no collective has this name"},
        {HEAD PEAK REST "\"efficiency\":1e999," LEVELS "}", "real number overflow"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct ap_cluster c;
        struct ap_err err = {""};
        int rc = parse(bad[i].text, &c, &err);
        CHECK(rc == -1 && strstr(err.msg, bad[i].want), "bad cluster: %s (want %s)",
              err.msg, bad[i].want);
    }
    struct ap_cluster c;
    struct ap_err err = {""};
    CHECK(ap_cluster_get(&arena, NULL, "clusters/none.json", 1, &c, &err) == -1 &&
              strstr(err.msg, "none.json"),
          "a missing file: %s", err.msg);
}

/* Rounded to a tenth of a microsecond. */
static double microseconds(double sec)
{
    return round(sec * 1e7) / 10;
}

static void test_readme(void)
{
    struct ap_cluster c;
    struct ap_err err = {""};
    static const struct {
        const char *mesh;
        unsigned axes;
        enum ap_op op;
        int64_t bytes;
        double us;
    } coll[] = {
        {"8", 1, AP_OP_ALL_REDUCE, 1000, 18.0},
        {"8", 1, AP_OP_ALL_REDUCE, 64000000, 415.3},
        {"8", 1, AP_OP_ALL_GATHER, 64000000, 207.7},
        {"8", 1, AP_OP_ALL_TO_ALL, 64000000, 44.3},
        {"2x8", 3, AP_OP_ALL_REDUCE, 64000000, 5100},
        {"2x8", 2, AP_OP_REDUCE_SCATTER, 64000000, 207.7},
        {"2x8", 1, AP_OP_ALL_REDUCE, 8000000, 340},
    };
    for (size_t i = 0; i < sizeof coll / sizeof *coll; i++) {
        bool two = coll[i].mesh[1] != 0;
        if (ap_cluster_get(&arena, NULL, NULL, two ? 16 : 8, &c, &err))
            return;
        struct ap_cost cost = cost_of(coll[i].mesh, &c, AP_COST_DEFAULT);
        double us = microseconds(
            ap_cost_collective(&cost, coll[i].op, coll[i].axes, coll[i].bytes));
        CHECK(fabs(us - coll[i].us) < 0.05,
              "README of libcommon/cost: %s of %lld B: %g us", ap_ops[coll[i].op].name,
              (long long)coll[i].bytes, us);
        ap_cost_free(&cost);
    }
    if (ap_cluster_get(&arena, NULL, NULL, 8, &c, &err))
        return;
    struct ap_cost cost = cost_of("8", &c, AP_COST_DEFAULT);
    const double n = 4096, elems = n * n;
    double dot =
        microseconds(ap_cost_compute(&cost, 2 * n * n * n, AP_BF16, 3 * 2 * elems));
    double add = microseconds(ap_cost_compute(&cost, elems, AP_BF16, 3 * 2 * elems));
    CHECK(dot == 633.3 && add == 54.3, "README of libcommon/cost: dot %g us, add %g us",
          dot, add);
    ap_cost_free(&cost);
}

int main(void)
{
    test_levels();
    check_misfit();
    test_seconds();
    test_alpa();
    test_bytes();
    test_compute();
    test_curve();
    test_rates();
    test_between_tables();
    test_sent_once();
    test_to8();
    test_presets();
    test_default();
    test_bad();
    test_readme();
    ap_arena_free(&arena);
    return tap_done();
}
