/* Blocks: what goes with the forward operators, sums, checks, the section. */
#include "graph/blocks.h"

#include <stdlib.h>
#include <string.h>

#include "tap.h"
#include "doc/blocks_json.h"
#include "grad/grad.h"

static struct ap_arena arena;

/* clang-format off */
#define NODE(op, name, in, phase)                                        \
    ",{'op':'" op "','name':'" name "','in':[" in "],'shape':'f32[4]',"  \
    "'phase':'" phase "'}"
#define PARAM(number, name, role)                                           \
    "{'op':'parameter','name':'" name "','param':" number ",'role':'" role  \
    "','shape':'f32[4]'}"

/* A step of two products and a sum, with a weight that is tied, a clipped norm, a
 * recomputed value and one that is made early for the backward pass alone. */
static const char step[] =
    "{'autopar':1,'graph':{'name':'t','nodes':["
    PARAM("0", "x", "input") ","
    PARAM("1", "w0", "weight") ","
    PARAM("2", "w1", "weight") ","
    PARAM("3", "m1", "state") ","
    PARAM("4", "count", "state")
    ",{'op':'constant','name':'c','shape':'f32[4]','value':2}"
    NODE("multiply", "h0", "0,1", "forward")     /* 6 */
    NODE("negate", "cw", "2", "forward")         /* 7 */
    NODE("multiply", "h1", "6,7", "forward")     /* 8 */
    NODE("multiply", "y", "8,1", "forward")      /* 9 */
    NODE("add", "loss", "9,5", "forward")        /* 10 */
    NODE("cosine", "kept", "6", "forward")       /* 11 */
    NODE("multiply", "dy", "10,5", "backward")   /* 12 */
    NODE("multiply", "dh1", "12,1", "backward")  /* 13 */
    NODE("negate", "again", "6", "backward")     /* 14 */
    NODE("multiply", "dw1", "13,14", "backward") /* 15 */
    NODE("multiply", "dh0", "13,7", "backward")  /* 16 */
    NODE("multiply", "dk", "16,11", "backward")  /* 17 */
    NODE("multiply", "dw0a", "17,0", "backward") /* 18 */
    NODE("multiply", "dw0b", "12,8", "backward") /* 19 */
    NODE("add", "dw0", "18,19", "backward")      /* 20 */
    NODE("multiply", "sq0", "20,20", "update")   /* 21 */
    NODE("multiply", "sq1", "15,15", "update")   /* 22 */
    NODE("add", "norm", "21,22", "update")       /* 23 */
    NODE("multiply", "m1n", "3,15", "update")    /* 24 */
    NODE("multiply", "u0", "20,23", "update")    /* 25 */
    NODE("subtract", "w0n", "1,25", "update")    /* 26 */
    NODE("multiply", "u1", "24,23", "update")    /* 27 */
    NODE("subtract", "w1n", "2,27", "update")    /* 28 */
    NODE("add", "countn", "4,5", "update")       /* 29 */
    "],'results':[{'node':10,'role':'loss'},{'node':26,'role':'weight','alias':1},"
    "{'node':28,'role':'weight','alias':2},{'node':24,'role':'state','alias':3},"
    "{'node':29,'role':'state','alias':4}],'reducers':[]}}";

/* Block of each node when h0 is block 0, h1 and y are 1, the loss is 2. */
static const int expected[] = {
    0, 0, 1, 1, 2, 2,          /* parameters and the constant: with a reader */
    0, 1, 1, 1, 2, 0,          /* forward; kept is where h0 is */
    2, 2, 1, 1, 1, 0, 0, 1, 0, /* backward; the sum of the tied weight with it */
    0, 1, 2, 1, 0, 0, 1, 1, 2, /* updates; the norm and the count last */
};
/* clang-format on */

static struct ap_graph graph_of(const char *text)
{
    struct ap_doc doc;
    struct ap_graph g = {0};
    struct ap_err err = {{0}};
    char *json = ap_arena_strdup(&arena, text);

    for (char *p = json; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    int rc = ap_doc_parse(&arena, "t.json", json, strlen(json), &doc, &err) ||
             ap_doc_graph(&arena, &doc, &g, &err);
    CHECK(rc == 0, "a graph of %d nodes %s", g.n_nodes, err.msg);
    return g;
}

static int *carried(const struct ap_graph *g)
{
    int *block_of = AP_NEW_N(&arena, g->n_nodes, int);

    for (int i = 0; i < g->n_nodes; i++)
        block_of[i] = -1;
    block_of[6] = 0;
    block_of[8] = block_of[9] = 1;
    block_of[10] = 2;
    ap_blocks_carry(&arena, g, 3, block_of);
    return block_of;
}

static void test_operators(const struct ap_graph *g)
{
    int *ids, n = ap_blocks_operators(&arena, g, &ids);

    CHECK(n == 4 && ids[0] == 6 && ids[1] == 8 && ids[2] == 9 && ids[3] == 10,
          "operators: what the loss needs and is made of inputs, %d", n);
    const uint8_t *origin = ap_blocks_origins(&arena, g);
    CHECK(origin[5] == AP_FROM_CONSTANTS && origin[7] == AP_FROM_WEIGHTS &&
              origin[8] == AP_FROM_INPUTS && origin[29] == AP_FROM_WEIGHTS,
          "origins");
    CHECK(ap_node_flops(g, 6) == 4 && ap_node_flops(g, 11) == 32 &&
              ap_node_heavy_flops(g, 6) == 0,
          "FLOPs of four elements");
}

static void test_carry(const struct ap_graph *g)
{
    const int *block_of = carried(g);

    for (int i = 0; i < g->n_nodes; i++)
        CHECK(block_of[i] == expected[i], "%s is in block %d, got %d", g->nodes[i].name,
              expected[i], block_of[i]);
}

static void test_sums(const struct ap_graph *g)
{
    struct ap_blocks b = {.n = 3, .block_of = carried(g)};
    const struct ap_block_sum *s = ap_blocks_sum(&arena, g, &b);

    CHECK(s[0].in_bytes == 0 && s[1].in_bytes == 16 && s[2].in_bytes == 16, "received");
    CHECK(s[0].out_bytes == 16 && s[1].out_bytes == 16 && s[2].out_bytes == 0, "sent");
    /* kept by block 0, h0 and h1 by block 1, the loss by block 2 */
    CHECK(s[0].kept_bytes == 16 && s[1].kept_bytes == 32 && s[2].kept_bytes == 16,
          "kept: %lld %lld %lld", (long long)s[0].kept_bytes, (long long)s[1].kept_bytes,
          (long long)s[2].kept_bytes);
    CHECK(s[0].weight_bytes == 16 && s[1].weight_bytes == 16 && s[2].weight_bytes == 0,
          "weights");
    CHECK(s[0].state_bytes == 0 && s[1].state_bytes == 16 && s[2].state_bytes == 16,
          "states");
    int64_t all = 0;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < AP_N_PHASES; k++)
            all += s[i].nodes[k];
    CHECK(all == g->n_nodes, "every node is counted");
}

/* node in another block: what the check says */
static void test_check(const struct ap_graph *g)
{
    static const struct {
        int node, block;
        const char *message;
    } cases[] = {
        {6, 2,
         "/blocks: node 8 (h1) of block 1 reads node 6 (h0) of the later block 2 in "
         "the forward pass"},
        {12, 0,
         "/blocks: node 13 (dh1) of block 2 reads node 12 (dy) of the earlier block "
         "0 in the backward pass"},
        {10, 1, "/blocks: block 2 has no forward operator"},
        {29, 3, "/blocks/block_of/29: no block 3, there are 3"},
        {0, -1, "/blocks/block_of/0: no block -1, there are 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ap_err err = {{0}};
        int *block_of = carried(g);
        struct ap_blocks b = {.n = 3, .block_of = block_of};
        CHECK(ap_blocks_check(&arena, g, &b, &err) == 0, "carried blocks hold %s",
              err.msg);
        block_of[cases[i].node] = cases[i].block;
        CHECK(ap_blocks_check(&arena, g, &b, &err) == -1 &&
                  strcmp(err.msg, cases[i].message) == 0,
              "%s", err.msg);
    }
    struct ap_err err = {{0}};
    struct ap_graph wrong = *g;
    wrong.nodes = ap_arena_dup(&arena, g->nodes, (size_t)g->n_nodes * sizeof *g->nodes);
    CHECK(ap_blocks_check_phases(g, &err) == 0, "phases follow each other");
    wrong.nodes[6].phase = AP_UPDATE;
    CHECK(ap_blocks_check_phases(&wrong, &err) == -1 &&
              strcmp(err.msg, "/graph/nodes/8 (h1): a node of phase forward reads node 6 "
                              "(h0) of phase update") == 0,
          "%s", err.msg);
}

static int read_back(const struct ap_graph *g, const char *text, struct ap_blocks *b,
                     struct ap_err *err)
{
    struct ap_at at = {NULL, "blocks", 0};
    json_error_t where;
    json_t *o = json_loads(text, 0, &where);
    int rc = o ? ap_blocks_from_json(&arena, o, &at, g, b, err)
               : ap_err_set(err, "%s", where.text);

    json_decref(o);
    return rc;
}

static void test_json(const struct ap_graph *g)
{
    static const int critical[] = {6, 8}, cone_root[] = {9};
    int *cone_of = AP_NEW_N(&arena, g->n_nodes, int);
    struct ap_blocks b = {.algorithm = "alpa",
                          .n = 3,
                          .block_of = carried(g),
                          .objective = 16,
                          .bound = 15.5,
                          .objective_unit = "bytes",
                          .n_critical = 2,
                          .critical = critical,
                          .n_cones = 1,
                          .cone_of = cone_of,
                          .cone_root = cone_root},
                     back;
    struct ap_buf first = {0}, second = {0};
    struct ap_err err = {{0}};

    ap_blocks_to_json(g, &b, ap_blocks_sum(&arena, g, &b), &first);
    CHECK(read_back(g, first.data, &back, &err) == 0, "reads back %s", err.msg);
    ap_blocks_to_json(g, &back, ap_blocks_sum(&arena, g, &back), &second);
    CHECK(strcmp(first.data, second.data) == 0, "and writes the same");
    ap_buf_free(&first);
    ap_buf_free(&second);

    static const char *const bad[][2] = {
        {"[]", "/blocks: expected an object"},
        {"{\"algorithm\":\"none\",\"n\":31}", "/blocks: 31 blocks of 30 nodes"},
        {"{\"algorithm\":\"none\",\"n\":1,\"block_of\":[0]}",
         "/blocks/block_of: 1 numbers, but the graph has 30 nodes"},
        {"{\"algorithm\":\"none\",\"n\":1,\"block_of\":[0,0,0,0,0,0,0,1,0,0,0,0,0,0,0,0,"
         "0,"
         "0,0,0,0,0,0,0,0,0,0,0,0,0]}",
         "/blocks/block_of/7: expected a block from 0 to 0, or -1 for a node that "
         "follows "
         "the others"},
        {"{\"algorithm\":\"none\",\"n\":2,\"block_of\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,"
         "0,"
         "0,0,0,0,0,0,0,0,0,0,0,0,0]}",
         "/blocks: block 1 has no forward operator"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct ap_err why = {{0}};
        CHECK(read_back(g, bad[i][0], &back, &why) == -1 &&
                  strcmp(why.msg, bad[i][1]) == 0,
              "%s", why.msg);
    }
}

/* A cut of the forward pass, and a whole list in which two nodes are moved. */
static void test_by_hand(const struct ap_graph *g)
{
    static const char *const cuts[] = {"{\"cut\":[\"h1\",10]}", "{\"cut\":[8,\"loss\"]}"};
    int *block_of = carried(g);
    struct ap_buf json = {0};
    struct ap_blocks b;
    struct ap_err err = {{0}};

    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        CHECK(read_back(g, cuts[i], &b, &err) == 0 && b.n == 3 && b.n_moved == 0 &&
                  !memcmp(b.block_of, block_of, (size_t)g->n_nodes * sizeof *block_of),
              "%s is carried as an algorithm's cut %s", cuts[i], err.msg);
    block_of[29] = 0;
    block_of[2] = 2;
    ap_blocks_to_json(
        g, &(struct ap_blocks){.algorithm = "x", .n = 3, .block_of = block_of},
        ap_blocks_sum(&arena, g, &(struct ap_blocks){.n = 3, .block_of = block_of}),
        &json);
    CHECK(read_back(g, json.data, &b, &err) == 0 && b.n_moved == 2 && b.moved == 2 &&
              b.moved_from == 1,
          "two nodes are moved, the first is w1: %d, %d from %d", b.n_moved, b.moved,
          b.moved_from);
    ap_buf_free(&json);
}

/* ---- random steps ---- */

static uint64_t state = 1;

static int draw(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (unsigned)n);
}

/* A value of one of `n`, or what is made of it by an operator. */
static int some(struct ap_build *b, const int *values, int n)
{
    const int v = values[draw(n)];
    return draw(3) ? v : ap_build_unary(b, draw(2) ? AP_OP_TANH : AP_OP_NEGATE, v);
}

/*
 * A layer: a product, sum or norm of an earlier value, mostly the last, and a weight, of
 * which several layers may share one, or what is made of weights alone.
 */
static int layer(struct ap_build *b, const int *values, int n, const int *weights)
{
    const int64_t dims[] = {4, 4}, one = 1, zero = 0;
    const int x = draw(4) ? values[n - 1] : some(b, values, n), w = some(b, weights, 3);

    switch (draw(5)) {
    case 0:
        return ap_build_matmul(b, x, w, one, zero);
    case 1: {
        const int sum = ap_build_reduce(b, ap_build_binary(b, AP_OP_MULTIPLY, x, x),
                                        AP_RED_SUM, 1, &one);
        const int scale = ap_build_unary(b, AP_OP_RSQRT, sum);
        const int norm = ap_build_broadcast(b, scale, 2, dims, &zero);
        return ap_build_binary(b, AP_OP_MULTIPLY,
                               ap_build_binary(b, AP_OP_MULTIPLY, x, norm), w);
    }
    case 2:
        return ap_build_binary(b, AP_OP_ADD, x, some(b, values, n));
    case 3:
        return ap_build_binary(b, AP_OP_MULTIPLY, ap_build_unary(b, AP_OP_TANH, x), w);
    default:
        return ap_build_binary(b, AP_OP_ADD, x, w);
    }
}

static struct ap_graph random_step(int n_layers)
{
    static const char *const optimizers[] = {"sgd", "momentum", "adam"};
    const int64_t dims[] = {4, 4}, both[] = {0, 1};
    int weights[3], values[16];
    struct ap_build b;
    struct ap_grad_params params;
    struct ap_result *results;
    struct ap_graph g = {0};
    struct ap_err err = {{0}};
    int n_results;

    ap_build_init(&b, &arena);
    const struct ap_shape shape = ap_build_shape(&b, AP_F32, 2, dims);
    values[0] = ap_build_param(&b, "x", shape, AP_ROLE_INPUT);
    for (int i = 0; i < 3; i++)
        weights[i] =
            ap_build_param(&b, (const char *[]){"u", "v", "w"}[i], shape, AP_ROLE_WEIGHT);
    values[1] = ap_build_binary(&b, AP_OP_MULTIPLY, values[0], weights[0]);
    for (int i = 1; i < n_layers; i++)
        values[i + 1] = layer(&b, values + 1, i, weights);
    ap_grad_defaults(optimizers[draw(3)], &params, &err);
    params.loss = ap_build_reduce(&b, values[n_layers], AP_RED_SUM, 2, both);
    int rc = ap_grad_train_step(&b, &params, &results, &n_results, &err) ||
             ap_build_finish(&b, "t", n_results, results, &g, &err);
    if (rc)
        CHECK(rc == 0, "a step: %s", err.msg);
    return g;
}

/* Puts the operators into blocks, runs of them or any sets without cycles; how many. */
static int random_blocks(const struct ap_graph *g, bool runs, int *block_of)
{
    int *ids, n = ap_blocks_operators(&arena, g, &ids), last = 0;
    int *number = AP_NEW_N(&arena, g->n_nodes + 1, int); /* of blocks that have nodes */

    for (int i = 0; i < g->n_nodes; i++)
        block_of[i] = -1;
    for (int k = 0; k < n; k++) {
        const struct ap_node *node = &g->nodes[ids[k]];
        int b = runs ? last : 0;
        for (int i = 0; i < node->n_in; i++)
            b = block_of[node->in[i]] > b ? block_of[node->in[i]] : b;
        last = block_of[ids[k]] = b + (k > 0 && draw(4) == 0);
        number[last] = 1;
    }
    for (int b = 0, next = 0; b < g->n_nodes; b++)
        number[b] = number[b] ? next++ : next;
    for (int k = 0; k < n; k++)
        block_of[ids[k]] = number[block_of[ids[k]]];
    return number[g->n_nodes - 1];
}

/* Edges on which a value comes later than it is read: forward passes go through the
 * blocks in order, backward passes in the other, which has the forward values of blocks
 * before. */
static int against_flow(const struct ap_graph *g, const int *block_of)
{
    int n = 0;

    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            const int in = g->nodes[i].in[k];
            const enum ap_phase phase = g->nodes[i].phase, made = g->nodes[in].phase;
            if (g->nodes[in].n_in == 0)
                continue;
            n +=
                phase == AP_BACKWARD && made == AP_BACKWARD && block_of[in] < block_of[i];
            n += phase == AP_FORWARD && block_of[in] > block_of[i];
            n += phase == AP_BACKWARD && made == AP_FORWARD && block_of[in] > block_of[i];
        }
    return n;
}

/* Stages made of such blocks always have an order to run in. */
static void test_random(void)
{
    int wrong = 0, shared = 0;

    for (int i = 0; i < 2000; i++) {
        struct ap_mark mark = ap_arena_mark(&arena);
        const struct ap_graph g = random_step(2 + draw(12));
        int *block_of = AP_NEW_N(&arena, g.n_nodes, int);
        const int blocks = random_blocks(&g, i % 2, block_of);
        ap_blocks_carry(&arena, &g, blocks, block_of);
        wrong += against_flow(&g, block_of) > 0;
        shared += blocks > 2;
        ap_arena_rewind(&arena, mark);
    }
    CHECK(wrong == 0 && shared > 1000,
          "2000 random steps: no value goes against the flow of passes (%d do)", wrong);
}

int main(void)
{
    struct ap_graph g = graph_of(step);

    test_operators(&g);
    test_carry(&g);
    test_sums(&g);
    test_check(&g);
    test_json(&g);
    test_by_hand(&g);
    test_random();
    ap_arena_free(&arena);
    return tap_done();
}
