/* Runs of blocks said to be identical have equal parts of the graph. */
#include "serve/server.h"

#include <string.h>

#include "graph/build.h"
#include "graph/identity.h"
#include "graph/subgraph.h"
#include "tap.h"

#define MAX_LAYERS 10

static struct ap_arena arena;

struct net {
    struct ap_graph g;
    int n; /* layers, a block each */
    int block_of[4096];
};

struct maker {
    struct ap_build b;
    struct net *net;
    int block;
};

/* Puts the nodes that were added since into the block. */
static int in_block(struct maker *m, int block, int node)
{
    for (int i = m->block; i < m->b.n; i++)
        m->net->block_of[i] = block;
    m->block = m->b.n;
    return node;
}

static int times(struct maker *m, int x, int w)
{
    const int64_t zero = 0, one = 1;
    return ap_build_matmul(&m->b, x, w, one, zero);
}

/*
 * Layers h = op(h w) * mask + skipped, backwards through the same masks, and an update by
 * the norm of all gradients, which is in the last block. kind: per layer, which op;
 * skip: an earlier layer whose result is added, -1 for none.
 */
static void make(struct net *net, int n, const int *kind, const int *skip)
{
    struct maker m = {.net = net};
    struct ap_err err = {0};
    const int64_t dims[2] = {8, 8}, both[2] = {0, 1};
    int w[MAX_LAYERS], h[MAX_LAYERS + 1], grad[MAX_LAYERS], norm = -1;
    struct ap_result results[MAX_LAYERS + 1];

    net->n = n;
    ap_build_init(&m.b, &arena);
    m.b.scope = "";
    struct ap_shape s = ap_build_shape(&m.b, AP_F32, 2, dims);
    h[0] = ap_build_param(&m.b, "x", s, AP_ROLE_INPUT);
    int mask = in_block(&m, 0, ap_build_param(&m.b, "mask", s, AP_ROLE_INPUT));
    for (int l = 0; l < n; l++) {
        w[l] = ap_build_param(&m.b, "w", s, AP_ROLE_WEIGHT);
        int y = ap_build_unary(&m.b, kind[l] ? AP_OP_EXPONENTIAL : AP_OP_TANH,
                               times(&m, h[l], w[l]));
        y = ap_build_binary(&m.b, AP_OP_MULTIPLY, y, mask);
        if (skip[l] >= 0)
            y = ap_build_binary(&m.b, AP_OP_ADD, y, h[skip[l] + 1]);
        h[l + 1] = in_block(&m, l, ap_build_with(&m.b, AP_OP_MULTIPLY, y, 0.5));
    }
    int loss = in_block(&m, n - 1, ap_build_reduce(&m.b, h[n], AP_RED_SUM, 2, both));
    m.b.phase = AP_BACKWARD;
    for (int l = n - 1, g = h[n]; l >= 0; l--) {
        g = ap_build_binary(&m.b, AP_OP_MULTIPLY, g, mask);
        grad[l] = times(&m, h[l], g);
        g = in_block(&m, l, times(&m, g, w[l]));
    }
    m.b.phase = AP_UPDATE;
    for (int l = 0; l < n; l++) {
        int sum = in_block(&m, l, ap_build_reduce(&m.b, grad[l], AP_RED_SUM, 2, both));
        norm = l == 0 ? sum
                      : in_block(&m, n - 1, ap_build_binary(&m.b, AP_OP_ADD, norm, sum));
    }
    for (int l = 0; l < n; l++) {
        int scale = ap_build_broadcast(&m.b, norm, 2, dims, NULL);
        int step = ap_build_binary(&m.b, AP_OP_MULTIPLY, grad[l], scale);
        int new = in_block(&m, l, ap_build_binary(&m.b, AP_OP_SUBTRACT, w[l], step));
        results[l] = (struct ap_result){new, AP_ROLE_WEIGHT, w[l], NULL};
    }
    results[n] = (struct ap_result){loss, AP_ROLE_LOSS, -1, NULL};
    if (ap_build_finish(&m.b, "net", n + 1, results, &net->g, &err))
        CHECK(false, "the net builds: %s", err.msg);
}

static bool equal_parts(const struct net *net, const struct ap_subgraph *a,
                        const struct ap_subgraph *b)
{
    if (a->graph.n_nodes != b->graph.n_nodes || a->n_cut_in != b->n_cut_in ||
        a->n_cut_out != b->n_cut_out || a->graph.n_results != b->graph.n_results)
        return false;
    for (int i = 0; i < a->graph.n_nodes; i++) {
        const struct ap_node *x = &a->graph.nodes[i], *y = &b->graph.nodes[i];
        if (!ap_nodes_identical(&net->g, a->source[i], b->source[i]) || x->op != y->op ||
            x->role != y->role || x->n_in != y->n_in ||
            (x->n_in > 0 && memcmp(x->in, y->in, sizeof(int) * (size_t)x->n_in) != 0))
            return false;
    }
    for (int r = 0; r < a->graph.n_results; r++) {
        const struct ap_result *x = &a->graph.results[r], *y = &b->graph.results[r];
        if (x->node != y->node || x->role != y->role || x->alias != y->alias)
            return false;
    }
    return true;
}

/* How many runs are distinct; *wrong counts twins whose parts differ. */
static int check_runs(const struct net *net, int *wrong)
{
    const struct ap_blocks blocks = {.n = net->n, .block_of = net->block_of};
    struct ap_err err = {0};
    int distinct = 0, n = net->n;

    const int *twins = serve_twins(&arena, &net->g, &blocks, NULL);
    for (int lo = 0; lo < n; lo++)
        for (int hi = lo; hi < n; hi++) {
            int twin = twins[lo * n + hi];
            struct ap_subgraph a, b;
            distinct += twin == lo;
            if (twin == lo)
                continue;
            if (ap_subgraph_blocks(&arena, &net->g, net->block_of, lo, hi, &a, &err) ||
                ap_subgraph_blocks(&arena, &net->g, net->block_of, twin, twin + hi - lo,
                                   &b, &err) ||
                !equal_parts(net, &a, &b))
                (*wrong)++;
        }
    return distinct;
}

static void test_equal_layers(void)
{
    static struct net net;
    const int plain[MAX_LAYERS] = {0}, odd[MAX_LAYERS] = {0, 0, 0, 0, 1};
    int none[MAX_LAYERS], wrong = 0;

    memset(none, -1, sizeof none);
    for (int n = 4; n <= MAX_LAYERS; n++) {
        make(&net, n, plain, none);
        /* with the first block, with the last, with both, and n - 2 lengths between */
        int want = 2 * (n - 1) + 1 + n - 2, got = check_runs(&net, &wrong);
        CHECK(got == want,
              "README of cmd/ap-shard/serve: %d equal layers, %d distinct runs, got %d",
              n, want, got);
    }
    make(&net, 9, odd, none);
    /* of 7 layers in the middle the fourth is odd: 4 x 4 runs with it, 3 lengths without
     */
    int got = check_runs(&net, &wrong);
    CHECK(got == 17 + 16 + 3,
          "README of cmd/ap-shard/serve: an odd one in the middle, %d runs", got);
    CHECK(wrong == 0, "identical runs have equal parts, %d have not", wrong);
}

static void test_random(void)
{
    static struct net net;
    unsigned state = 7;
    int wrong = 0, shared = 0;

    for (int round = 0; round < 60; round++) {
        struct ap_mark mark = ap_arena_mark(&arena);
        int n = 3 + round % 7, kind[MAX_LAYERS], skip[MAX_LAYERS];
        for (int l = 0; l < n; l++) {
            state = state * 1103515245u + 12345u;
            kind[l] = state >> 16 & 7 ? 0 : 1;
            skip[l] = state >> 20 & 3 || l < 2 ? -1 : (int)(state >> 24) % (l - 1);
        }
        make(&net, n, kind, skip);
        shared += n * (n + 1) / 2 - check_runs(&net, &wrong);
        ap_arena_rewind(&arena, mark);
    }
    CHECK(wrong == 0,
          "random layers and skips: identical runs have equal parts, %d have not", wrong);
    CHECK(shared > 60, "and %d runs are shared", shared);
}

int main(void)
{
    test_equal_layers();
    test_random();
    ap_arena_free(&arena);
    return tap_done();
}
