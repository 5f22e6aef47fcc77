/*
 * Tofu's conversions, and what its cuts move on the nets of the papers: plain chains of
 * matrix products and convolutions whose loss is half the sum of squares, so that the
 * last gradient is the last activation.
 */
#include <stdlib.h>
#include <string.h>

#include "grad.h"
#include "tap.h"
#include "tofu.h"

/* ---- the conversion table ---- */

/* What is moved when region r1 in s1 becomes r2 in s2; earlier cuts are lists of pieces
   (0 rows, 1 columns) that end at -1. Size 64. */
static double moved(const int *cuts1, int s1, const int *cuts2, int s2)
{
    struct tofu_region r1 = {.n = 0}, r2 = {.n = 0};
    for (; *cuts1 >= 0; cuts1++)
        r1.piece[r1.n++] = *cuts1;
    for (; *cuts2 >= 0; cuts2++)
        r2.piece[r2.n++] = *cuts2;
    return tofu_move(64, &r1, s1, &r2, s2);
}

static void test_table(void)
{
    enum { R, C, REP = TOFU_REP, RED = TOFU_RED };
    static const int none[] = {-1};
    static const struct {
        int from, to;
        double want;
    } rows[] = {
        {R, R, 0},   {R, C, 32},   {R, REP, 64},  {C, R, 32},   {C, C, 0},    {C, REP, 64},
        {REP, R, 0}, {REP, C, 0}, {REP, REP, 0}, {RED, R, 64}, {RED, C, 64}, {RED, REP, 128},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK(moved(none, rows[i].from, none, rows[i].to) == rows[i].want,
               "TO2: conversion of scheme %d to %d", rows[i].from, rows[i].to);
}

static void test_regions(void)
{
    static const int none[] = {-1}, rows[] = {0, -1}, cols[] = {1, -1};

    CHECK(moved(rows, 0, rows, 0) == 0, "TO2: equal regions cut alike move nothing");
    CHECK(moved(rows, 0, rows, 1) == 16, "TO2: half the tensor, rows to columns");
    CHECK(moved(rows, 0, cols, 1) == 8,
           "TO2: held by rows, wanted by columns, for the second time");
    CHECK(moved(rows, 0, cols, 0) == 8 + 8 - 8, "TO2: rows of half, rows of the other");
    CHECK(moved(rows, 0, none, TOFU_REP) == 32 + 32,
           "TO2: all is wanted where half is held");
    CHECK(moved(rows, TOFU_REP, cols, TOFU_REP) == 16,
           "TO2: whole on both halves, but of other regions");
    CHECK(moved(rows, TOFU_RED, cols, TOFU_REP) == 64 &&
               moved(cols, TOFU_RED, rows, 0) == 32,
           "TO2: terms of a sum count as they are made");
}

/* ---- nets ---- */

static void fail(const struct ap_err *err)
{
    fprintf(stderr, "test_shard_tofu: %s\n", err->msg);
    exit(1);
}

enum { MAX_LAYERS = 24 };

struct net {
    struct ap_arena arena;
    struct ap_build b;
    int n_weights, w[MAX_LAYERS + 1];
    struct ap_graph g;
    struct ap_nests nests;
    struct tofu_stats stats;
    struct ap_plan plan;
    struct tofu_net tofu;
};

static int input(struct net *n, enum ap_role role, int rank, const int64_t *dims)
{
    return ap_build_param(&n->b, "p", ap_build_shape(&n->b, AP_F32, rank, dims), role);
}

static int weight(struct net *n, int rank, const int64_t *dims)
{
    return n->w[n->n_weights++] = input(n, AP_ROLE_WEIGHT, rank, dims);
}

static int dense(struct net *n, int x, int64_t outputs)
{
    const struct ap_shape *s = ap_build_shape_of(&n->b, x);
    int64_t dims[2] = {s->dims[1], outputs}, left = 1, right = 0;
    return ap_build_dot(&n->b, x, weight(n, 2, dims), 0, NULL, NULL, 1, &left, &right);
}

/* 3x3 on images [batch, height, width, features]. */
static int convolve(struct net *n, int x, int64_t outputs)
{
    struct ap_attrs *a = ap_build_attrs(&n->b);
    struct ap_window_dim w = {
        .size = 3, .stride = 1, .pad_lo = 1, .pad_hi = 1, .lhs_dilate = 1, .rhs_dilate = 1};
    struct ap_window_dim windows[2] = {w, w};
    int64_t dims[4] = {3, 3, ap_build_shape_of(&n->b, x)->dims[3], outputs};

    a->n_window = 2;
    a->window = ap_arena_dup(&n->arena, windows, sizeof windows);
    a->conv = (struct ap_conv_dims){.n_spatial = 2,
                                    .lhs_feature = 3,
                                    .lhs_spatial = {1, 2},
                                    .rhs_in = 2,
                                    .rhs_out = 3,
                                    .rhs_spatial = {0, 1},
                                    .out_feature = 3,
                                    .out_spatial = {1, 2}};
    return ap_build_conv(&n->b, x, weight(n, 4, dims), a);
}

/* Sums of 2x2. */
static int pool(struct net *n, int x)
{
    struct ap_window_dim w[4];
    for (int d = 0; d < 4; d++) {
        int64_t size = d == 1 || d == 2 ? 2 : 1;
        w[d] = (struct ap_window_dim){
            .size = size, .stride = size, .lhs_dilate = 1, .rhs_dilate = 1};
    }
    return ap_build_reduce_window(&n->b, x, AP_RED_SUM, w);
}

/* Loss, gradients, weights' update; x >= 0: its gradient is a result as well. */
static void finish(struct net *n, int y, int x)
{
    struct ap_build *b = &n->b;
    int grads[MAX_LAYERS + 1], n_results = 0;
    struct ap_result results[MAX_LAYERS + 2];
    struct ap_err err = {0};
    int64_t dims[AP_MAX_RANK];

    for (int d = 0; d < AP_MAX_RANK; d++)
        dims[d] = d;
    int sum = ap_build_reduce(b, ap_build_binary(b, AP_OP_MULTIPLY, y, y), AP_RED_SUM,
                              ap_build_shape_of(b, y)->rank, dims);
    int loss = ap_build_with(b, AP_OP_MULTIPLY, sum, 0.5);
    results[n_results++] = (struct ap_result){loss, AP_ROLE_LOSS, -1};
    b->phase = AP_BACKWARD;
    if (x >= 0)
        n->w[n->n_weights] = x;
    if (ap_grad(b, loss, n->n_weights + (x >= 0), n->w, grads, &err))
        fail(&err);
    if (x >= 0)
        results[n_results++] =
            (struct ap_result){grads[n->n_weights], AP_ROLE_AUX, -1};
    b->phase = AP_UPDATE;
    for (int i = 0; i < n->n_weights; i++)
        results[n_results++] = (struct ap_result){
            ap_build_binary(b, AP_OP_SUBTRACT, n->w[i],
                            ap_build_with(b, AP_OP_MULTIPLY, grads[i], 0.01)),
            AP_ROLE_WEIGHT, n->w[i]};
    if (ap_build_finish(b, "net", n_results, results, &n->g, &err) ||
        ap_nests_build(&n->arena, &n->g, &n->nests, &err))
        fail(&err);
}

/* Elements that 2^cuts devices move. */
static double elements(struct net *n, int cuts, bool cut_only)
{
    static const char *const meshes[] = {"1", "2", "2x2", "2x2x2", "2x2x2x2"};
    double total = 0;
    struct ap_err err = {0};

    n->plan = (struct ap_plan){.graph = &n->g, .nests = &n->nests};
    ap_mesh_parse(&n->arena, meshes[cuts], &n->plan.mesh, &err);
    n->plan.choice = AP_NEW_N(&n->arena, n->nests.n, struct ap_choice_vec);
    memset(n->plan.choice, 0xff, (size_t)n->nests.n * sizeof *n->plan.choice);
    n->stats = (struct tofu_stats){0};
    n->tofu = (struct tofu_net){.arena = &n->arena,
                                .graph = &n->g,
                                .nests = &n->nests,
                                .mesh = &n->plan.mesh,
                                .cut_only = cut_only};
    tofu_net_build(&n->tofu);
    for (int a = 0; a < cuts; a++) {
        tofu_cut(&n->tofu, &n->plan, a, &n->stats);
        total += (1 << a) * n->stats.cut_bytes[a] / 4;
    }
    return total;
}

/* Checks that count; says what each cut moves when it is another. */
static void moves(struct net *n, int cuts, bool cut_only, double want, const char *name)
{
    double got = elements(n, cuts, cut_only);
    bool ok = got == want && n->stats.n_fixed == 0;

    CHECK(ok, "%s", name);
    if (!ok)
        printf("# %.0f, expected %.0f; cuts %.0f %.0f %.0f %.0f, %d fixed\n", got, want,
               n->stats.cut_bytes[0] / 4, n->stats.cut_bytes[1] / 4,
               n->stats.cut_bytes[2] / 4, n->stats.cut_bytes[3] / 4, n->stats.n_fixed);
}

static void start(struct net *n)
{
    memset(n, 0, sizeof *n);
    ap_build_init(&n->b, &n->arena);
}

static void make_mlp(struct net *n, int64_t batch, int64_t width, int layers)
{
    start(n);
    int x = input(n, AP_ROLE_INPUT, 2, (int64_t[]){batch, width});
    for (int i = 0; i < layers; i++)
        x = dense(n, x, width);
    finish(n, x, -1);
}

static void make_vgg19(struct net *n, int64_t batch, bool input_gradient)
{
    static const int64_t features[] = {64,  64,  0,   128, 128, 0,   256, 256, 256, 256, 0,
                                       512, 512, 512, 512, 0,   512, 512, 512, 512, 0};
    start(n);
    int first = input(n, AP_ROLE_INPUT, 4, (int64_t[]){batch, 224, 224, 4}), x = first;
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        x = features[i] ? convolve(n, x, features[i]) : pool(n, x);
    x = ap_build_reshape(&n->b, x, 2, (int64_t[]){batch, 49 * 512});
    x = dense(n, dense(n, dense(n, x, 4096), 4096), 1000);
    finish(n, x, input_gradient ? first : -1);
}

static void done(struct net *n)
{
    ap_arena_free(&n->arena);
}

static void test_toy(void)
{
    struct net n;

    make_mlp(&n, 300, 500, 2);
    moves(&n, 1, false, 300000, "TO4: toy net on 2 devices, a column and a row split");
    moves(&n, 2, false, 600000, "TO4: toy net on 4 devices");
    moves(&n, 3, false, 1350000, "TO4: toy net on 8 devices");
    moves(&n, 4, false, 2550000, "TO4: toy net on 16 devices");
    done(&n);
}

static void test_mlp(void)
{
    static const struct {
        int64_t batch, width;
        double want;
        const char *name;
    } rows[] = {
        {512, 8192, 104857600, "TO7: four layers of 8192, batch 512"},
        {2048, 8192, 419430400, "TO7: four layers of 8192, batch 2048"},
        {2048, 12288, 629145600, "TO7: four layers of 12288, batch 2048"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct net n;
        make_mlp(&n, rows[i].batch, rows[i].width, 4);
        moves(&n, 3, false, rows[i].want, rows[i].name);
        done(&n);
    }
}

static void test_vgg(void)
{
    struct net n;

    make_vgg19(&n, 64, false);
    moves(&n, 3, false, 268569088, "TO5: VGG-19 on 8 devices");
    moves(&n, 3, true, 383429120, "TO6: VGG-19 cut only, no gradient of the images");
    done(&n);
    make_vgg19(&n, 64, true);
    moves(&n, 3, true, 383445248, "TO6: VGG-19 cut only");
    done(&n);
}

int main(void)
{
    test_table();
    test_regions();
    test_toy();
    test_mlp();
    test_vgg();
    return tap_done();
}
