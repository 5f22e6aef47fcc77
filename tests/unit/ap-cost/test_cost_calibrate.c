/* Fits of measurements: known tables come back; what is read of profiles and nccl-tests.
 */
#include "calibrate/calibrate.h"
#include "tap.h"

#include <math.h>
#include <string.h>

static struct ap_arena arena;

static bool near(double got, double want, double share)
{
    return fabs(got - want) <= share * fabs(want);
}

/* Two hosts of two devices. */
static struct cal start(void)
{
    struct cal c = {.arena = &arena, .has_cluster = true};
    c.cluster.name = "test";
    c.cluster.flops_per_sec[AP_F32] = 1;
    c.cluster.n_levels = 2;
    c.cluster.levels[0] = (struct ap_link_level){.name = "host", .size = 2};
    c.cluster.levels[1] =
        (struct ap_link_level){.name = "network", .size = 2, .uplink = true};
    for (int op = 0; op < AP_N_OPS; op++)
        c.cluster.collective_efficiency[op] = 1;
    return c;
}

/* A machine: 4 us a kernel, contractions at 50 GFLOP/s, but 10 up to 1e6 FLOPs; memory at
 * 8 GB/s, but 40 in caches of 256 KiB. */
static double dot_sec(double flops)
{
    return 4e-6 + fmin(flops, 1e6) / 10e9 + fmax(0, flops - 1e6) / 50e9;
}
static double fused_sec(double flops, double bytes)
{
    return 4e-6 + flops / 20e9 + fmin(bytes, 262144) / 40e9 +
           fmax(0, bytes - 262144) / 8e9;
}

static double kernel_sec(const struct cal *c, enum ap_kernel kernel, double flops,
                         double bytes)
{
    const struct ap_kernel_work w = {
        .kernel = kernel, .dtype = AP_F32, .flops = flops, .bytes = bytes};
    return ap_cluster_kernel_sec(&c->cluster, &w);
}

static void kernels(void)
{
    struct cal c = start();
    const struct cal_class dot = {
        .what = CAL_KERNEL, .kernel = AP_KERNEL_DOT, .dtype = AP_F32};
    const struct cal_class fused = {
        .what = CAL_KERNEL, .kernel = AP_KERNEL_FUSED, .dtype = AP_F32};
    const struct cal_class sort = {
        .what = CAL_KERNEL, .kernel = AP_KERNEL_SORT, .dtype = AP_F32};
    double worst = 0;

    for (double f = 8e3; f < 1e9; f *= 1.7)
        cal_add(&c, cal_class_of(&c, &dot),
                &(struct cal_sample){f, sqrt(f), dot_sec(f), 1});
    for (double b = 1e3; b < 1e8; b *= 1.7)
        for (int k = 1; k <= 4; k *= 4)
            cal_add(&c, cal_class_of(&c, &fused),
                    &(struct cal_sample){b * k / 4, b, fused_sec(b * k / 4, b), 1});
    cal_add(&c, cal_class_of(&c, &sort), &(struct cal_sample){1, 1, 1, 1});
    cal_fit(&c);
    CHECK(c.cluster.measured.n_kernels == 2, "one sample is no table");
    for (double f = 1e4; f < 8e8; f *= 1.3)
        worst =
            fmax(worst, fabs(kernel_sec(&c, AP_KERNEL_DOT, f, sqrt(f)) / dot_sec(f) - 1));
    CHECK(worst < 0.15, "contractions within 15 %%: %.1f %%", 100 * worst);
    worst = 0;
    for (double b = 2e3; b < 8e7; b *= 1.3)
        worst = fmax(
            worst,
            fabs(kernel_sec(&c, AP_KERNEL_FUSED, b / 2, b) / fused_sec(b / 2, b) - 1));
    CHECK(worst < 0.15, "fused passes within 15 %%: %.1f %%", 100 * worst);
    CHECK(near(c.cluster.flops_per_sec[AP_F32], 50e9, 0.05), "peak %.3g",
          c.cluster.flops_per_sec[AP_F32]);
    CHECK(near(c.cluster.launch_sec, 4e-6, 0.2), "launch %.3g", c.cluster.launch_sec);
    CHECK(ap_cluster_efficiency(&c.cluster, 1e5) < 0.25 &&
              ap_cluster_efficiency(&c.cluster, 8e8) > 0.9,
          "efficiency rises with size");
    CHECK(c.class[0].median_error < 0.05 && c.class[0].worst_error < 0.2,
          "residuals are those of the fit");
}

static void communication(void)
{
    struct cal c = start();
    const struct cal_class send = {.what = CAL_SEND, .level = 1, .rings = 1};
    const struct cal_class reduce = {.what = CAL_COLLECTIVE,
                                     .op = AP_OP_ALL_REDUCE,
                                     .level = 1,
                                     .devices = 2,
                                     .rings = 2};
    double worst = 0;

    for (double b = 256; b < 3e7; b *= 4) {
        cal_add(&c, cal_class_of(&c, &send),
                &(struct cal_sample){0, b, 30e-6 + b / 125e6, 1});
        cal_add(&c, cal_class_of(&c, &reduce),
                &(struct cal_sample){0, b, 80e-6 + b / (b < 1e5 ? 30e6 : 60e6), 1});
    }
    cal_fit(&c);
    CHECK(near(c.cluster.levels[1].latency_sec, 30e-6, 0.01) &&
              near(c.cluster.levels[1].bandwidth_bytes_per_sec, 125e6, 0.01),
          "messages give the level's latency and bandwidth");
    const struct ap_collective_time *t =
        ap_measured_collective(&c.cluster.measured, AP_OP_ALL_REDUCE, 1, 2, 2);
    for (double b = 256; t && b < 3e7; b *= 4)
        worst = fmax(worst, fabs(ap_time_at(&t->bytes, b, 0) /
                                     (80e-6 + b / (b < 1e5 ? 30e6 : 60e6)) -
                                 1));
    CHECK(t && worst < 0.05, "a collective's table: %.1f %%", 100 * worst);

    struct ap_cost cost;
    struct ap_mesh mesh = {.n_axes = 2, .size = {2, 2}, .name = {"x", "y"}};
    struct ap_err err = {0};
    c.cluster.efficiency = c.cluster.memory_bandwidth_bytes_per_sec = 1;
    c.cluster.levels[0].bandwidth_bytes_per_sec = 1e9;
    CHECK(ap_cost_init(&arena, &cost, AP_COST_DEFAULT, &c.cluster, &mesh, &err) == 0,
          "%s", err.msg);
    CHECK(near(ap_cost_collective(&cost, AP_OP_ALL_REDUCE, 1, 4194304),
               ap_time_at(&t->bytes, 4194304, 0), 1e-9),
          "two rings through each host: the table");
    CHECK(!near(ap_cost_collective(&cost, AP_OP_ALL_REDUCE, 3, 4194304),
                ap_time_at(&t->bytes, 4194304, 0), 1e-3),
          "four devices: no table");
    CHECK(near(ap_cost_collective(&cost, AP_OP_ALL_GATHER, 2, 1000000), 1e-3 / 2, 1e-9),
          "no table: the formula");
    ap_cost_free(&cost);
}

static void levels(void)
{
    const struct cal c = start();
    const int first[] = {0, 2, 4}, one[] = {0, 4};
    const int64_t inside[] = {0, 1, 2, 3}, across[] = {0, 2, 1, 3}, off[] = {0, 9};
    int level;
    int64_t rings = 0;

    CHECK(cal_level(&c.cluster, 2, first, inside, &level, &rings) == 0 && level == 0 &&
              rings == 1,
          "pairs of a host");
    CHECK(cal_level(&c.cluster, 2, first, across, &level, &rings) == 0 && level == 1 &&
              rings == 2,
          "two rings between hosts");
    CHECK(cal_level(&c.cluster, 1, one, inside, &level, &rings) == 0 && level == 1 &&
              rings == 1,
          "one ring through all");
    CHECK(cal_level(&c.cluster, 1, first, off, &level, &rings) != 0, "no such device");
}

#define NCCL_HEAD                                                                    \
    "# nThread 1 nGpus 4 minBytes 8 maxBytes 64 step: 2(factor)\n"                   \
    "#\n# Using devices\n"                                                           \
    "#  Rank  0 Group  0 Pid   4242 on     node-a device  0 [0000:07:00] GPU\n"      \
    "#  Rank  3 Group  0 Pid   4242 on     node-b device  1 [0000:0f:00] GPU\n"      \
    "node-a:4242:4243 [0] NCCL INFO comm\n"                                          \
    "#       size         count      type   redop    root     time   algbw   busbw " \
    "#wrong     time   algbw   busbw #wrong\n"
#define NCCL_ROW(size, usec)                              \
    "  " size "   1024     float     sum      -1   " usec \
    "    0.10    0.15      0    20.00    0.10    0.15    N/A\n"

static void nccl(void)
{
    static const struct {
        const char *file, *text, *want;
    } bad[] = {
        {"x.txt", NCCL_HEAD NCCL_ROW("4096", "21.5"), "x.txt:8: unknown collective"},
        {"all_reduce.txt", NCCL_HEAD "4096 1024 float\n", "all_reduce.txt:8: expected"},
        {"all_reduce.txt", NCCL_HEAD NCCL_ROW("4096", "fast"),
         "all_reduce.txt:8: expected"},
        {"all_reduce.txt", NCCL_ROW("4096", "21.5"), "all_reduce.txt:1: no line"},
        {"x.txt", "hello\n", "x.txt: neither"},
        {"x.txt", "", "x.txt: neither"},
    };
    struct cal c = start();
    struct ap_err err = {0};

    CHECK(cal_read_nccl_text(&c, "out/all_reduce_4.txt",
                             NCCL_HEAD NCCL_ROW("4096", "21.5")
                                 NCCL_ROW("8192", "30") "# Avg bus bandwidth    : 0.15\n",
                             &err) == 0,
          "%s", err.msg);
    CHECK(c.n == 1 && c.class[0].op == AP_OP_ALL_REDUCE && c.class[0].devices == 4 &&
              c.class[0].level == 1 && c.class[0].n == 2 &&
              c.class[0].sample[1].bytes == 8192 &&
              near(c.class[0].sample[1].sec, 30e-6, 1e-9),
          "rows, devices and level");
    c = start();
    CHECK(cal_read_nccl_text(
              &c, "x",
              "# Collective test starting: alltoall_perf\n" NCCL_HEAD NCCL_ROW("4096",
                                                                               "21.5"),
              &err) == 0 &&
              c.class[0].op == AP_OP_ALL_TO_ALL && c.class[0].sample[0].bytes == 4 * 4096,
          "all-to-all: of all ranks");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ap_err why = {0};
        c = start();
        CHECK(cal_read_nccl_text(&c, bad[i].file, bad[i].text, &why) != 0 &&
                  strncmp(why.msg, bad[i].want, strlen(bad[i].want)) == 0,
              "%s", why.msg);
    }
    c = (struct cal){.arena = &arena};
    CHECK(cal_read_nccl_text(&c, "all_reduce", NCCL_HEAD NCCL_ROW("4096", "1"), &err) !=
              0,
          "no cluster: refused");
}

int main(void)
{
    kernels();
    communication();
    levels();
    nccl();
    ap_arena_free(&arena);
    return tap_done();
}
