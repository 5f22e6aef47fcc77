/* Parts of a graph: what is cut, copied and kept; parts of all blocks make up the whole.
 */
#include "graph/subgraph.h"

#include <string.h>

#include "graph/build.h"
#include "tap.h"

static struct ap_arena arena;

/* y = tanh(x w0) w1 + c, loss = sum y; new w1 = w1 * scale. Ids in comments. */
static struct ap_graph sample(int *half)
{
    struct ap_build b;
    struct ap_graph g;
    struct ap_err err = {0};
    int64_t dims[2] = {4, 4}, zero = 0, one = 1, both[2] = {0, 1};

    ap_build_init(&b, &arena);
    b.scope = "";
    struct ap_shape s = ap_build_shape(&b, AP_F32, 2, dims);
    int x = ap_build_param(&b, "x", s, AP_ROLE_INPUT);
    int w0 = ap_build_param(&b, "w0", s, AP_ROLE_WEIGHT);
    int w1 = ap_build_param(&b, "w1", s, AP_ROLE_WEIGHT);
    int c = ap_build_full(&b, &s, 3); /* scalar and broadcast */
    int h = ap_build_unary(&b, AP_OP_TANH, ap_build_matmul(&b, x, w0, one, zero));
    *half = h;
    int y = ap_build_binary(&b, AP_OP_ADD, ap_build_matmul(&b, h, w1, one, zero), c);
    int loss = ap_build_reduce(&b, y, AP_RED_SUM, 2, both);
    int h2 = ap_build_binary(&b, AP_OP_MULTIPLY, h, c);
    int w1n = ap_build_binary(&b, AP_OP_SUBTRACT, w1, h2);
    struct ap_result results[2] = {{loss, AP_ROLE_LOSS, -1, NULL},
                                   {w1n, AP_ROLE_WEIGHT, w1, NULL}};
    CHECK(ap_build_finish(&b, "t", 2, results, &g, &err) == 0, "the sample builds");
    return g;
}

static int by_name(const struct ap_graph *g, const char *name)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (!strcmp(g->nodes[i].name, name))
            return i;
    return -1;
}

static void first_half(const struct ap_graph *g, int half)
{
    struct ap_subgraph sub;
    struct ap_err err = {0};
    bool *inside = AP_NEW_N(&arena, g->n_nodes, bool);
    for (int i = 0; i <= half; i++)
        inside[i] = true;
    CHECK(ap_subgraph(&arena, g, inside, &sub, &err) == 0, "first half");
    CHECK(sub.n_cut_in == 0 && sub.n_cut_out == 1 && sub.source[sub.cut_out[0]] == half,
          "gives the hidden value and needs nothing");
    CHECK(sub.graph.n_results == 1 && sub.graph.results[0].role == AP_ROLE_AUX,
          "as an auxiliary result");
}

static void second_half(const struct ap_graph *g, int half)
{
    struct ap_subgraph sub;
    struct ap_err err = {0};
    bool *inside = AP_NEW_N(&arena, g->n_nodes, bool);
    for (int i = half + 1; i < g->n_nodes; i++)
        inside[i] = true;
    CHECK(ap_subgraph(&arena, g, inside, &sub, &err) == 0, "second half");
    CHECK(sub.n_cut_in == 1 && sub.source[sub.cut_in[0]] == half &&
              sub.graph.nodes[sub.cut_in[0]].op == AP_OP_PARAMETER &&
              sub.graph.nodes[sub.cut_in[0]].role == AP_ROLE_INPUT,
          "takes the hidden value as an input, once");
    CHECK(sub.n_cut_out == 0 && sub.graph.n_results == 2, "gives the whole's results");
    int w1 = by_name(&sub.graph, "w1");
    CHECK(w1 >= 0 && sub.graph.nodes[w1].role == AP_ROLE_WEIGHT &&
              sub.graph.results[1].alias == w1,
          "its weight is a parameter and tied to its new value");
    CHECK(by_name(&sub.graph, "w0") < 0 && by_name(&sub.graph, "x") < 0,
          "what only the other half reads stays away");
    bool constants = false;
    for (int i = 0; i < sub.graph.n_nodes; i++)
        constants |= sub.graph.nodes[i].op == AP_OP_CONSTANT;
    CHECK(constants, "constants are copied");
    CHECK(ap_graph_check_shapes(&sub.graph, "", &err) == 0, "shapes hold");
}

static void whole_and_nothing(const struct ap_graph *g)
{
    struct ap_subgraph sub;
    struct ap_err err = {0};
    int *block_of = AP_NEW_N(&arena, g->n_nodes, int);
    CHECK(ap_subgraph_blocks(&arena, g, block_of, 0, 0, &sub, &err) == 0 &&
              sub.graph.n_nodes == g->n_nodes && sub.n_cut_in == 0 &&
              sub.n_cut_out == 0 && sub.graph.n_groups == g->n_groups,
          "all blocks are the whole graph");
    CHECK(ap_subgraph_blocks(&arena, g, block_of, 1, 1, &sub, &err) == -1 && *err.msg,
          "no block is nothing");
}

/* s = sum x; y = x * [s, s, ...] in one part, z = x - [s, s, ...] in the other. */
static void spread_scalar(void)
{
    struct ap_build b;
    struct ap_graph g;
    struct ap_subgraph first, second;
    struct ap_err err = {0};
    int64_t dims[2] = {4, 4}, both[2] = {0, 1};

    ap_build_init(&b, &arena);
    b.scope = "";
    struct ap_shape shape = ap_build_shape(&b, AP_F32, 2, dims);
    int x = ap_build_param(&b, "x", shape, AP_ROLE_INPUT);
    int s = ap_build_reduce(&b, x, AP_RED_SUM, 2, both);
    int wide = ap_build_broadcast(&b, s, 2, dims, NULL);
    int y = ap_build_binary(&b, AP_OP_MULTIPLY, x, wide);
    int z = ap_build_binary(&b, AP_OP_SUBTRACT, x, wide);
    struct ap_result results[2] = {{y, AP_ROLE_AUX, -1, NULL},
                                   {z, AP_ROLE_AUX, -1, NULL}};
    CHECK(ap_build_finish(&b, "t", 2, results, &g, &err) == 0, "a scalar is spread");
    int *block_of = AP_NEW_N(&arena, g.n_nodes, int);
    block_of[z] = 1;
    CHECK(ap_subgraph_blocks(&arena, &g, block_of, 0, 0, &first, &err) == 0 &&
              ap_subgraph_blocks(&arena, &g, block_of, 1, 1, &second, &err) == 0,
          "in both parts");
    CHECK(first.n_cut_out == 1 && first.source[first.cut_out[0]] == s,
          "the first part gives the scalar, not what it is spread to");
    CHECK(second.n_cut_in == 1 && second.source[second.cut_in[0]] == s &&
              second.n_cut_out == 0 && second.graph.n_results == 1,
          "the second takes it and spreads it itself");
}

/*
 * A residual, a = tanh(x w), s = a w, c = exp(a + s), where s is outside of the part: a
 * and c are two groups in the whole graph, as s runs in between, and stay two. The chain
 * d = -c, e = d d is one group, which falls into its pieces.
 */
static void groups_of_the_whole(void)
{
    struct ap_build b;
    struct ap_graph g;
    struct ap_subgraph part, rest;
    struct ap_err err = {0};
    int64_t dims[2] = {4, 4}, zero = 0, one = 1;

    ap_build_init(&b, &arena);
    b.scope = "";
    struct ap_shape shape = ap_build_shape(&b, AP_F32, 2, dims);
    int x = ap_build_param(&b, "x", shape, AP_ROLE_INPUT);
    int w = ap_build_param(&b, "w", shape, AP_ROLE_WEIGHT);
    int a = ap_build_unary(&b, AP_OP_TANH, ap_build_matmul(&b, x, w, one, zero));
    int s = ap_build_matmul(&b, a, w, one, zero);
    int c = ap_build_unary(&b, AP_OP_EXPONENTIAL, ap_build_binary(&b, AP_OP_ADD, a, s));
    int d = ap_build_unary(&b, AP_OP_NEGATE, c);
    int e = ap_build_binary(&b, AP_OP_MULTIPLY, d, d);
    struct ap_result results[1] = {{e, AP_ROLE_AUX, -1, NULL}};
    CHECK(ap_build_finish(&b, "t", 1, results, &g, &err) == 0, "a residual builds");
    CHECK(g.nodes[a].group != g.nodes[c].group && g.nodes[c].group == g.nodes[e].group,
          "what runs before and behind a product are two groups");
    int *block_of = AP_NEW_N(&arena, g.n_nodes, int);
    block_of[s] = block_of[d] = block_of[e] = 1;
    CHECK(ap_subgraph_blocks(&arena, &g, block_of, 0, 0, &part, &err) == 0 &&
              ap_subgraph_blocks(&arena, &g, block_of, 1, 1, &rest, &err) == 0,
          "in two parts");
    int at[2] = {-1, -1}, sum = -1, group[2] = {-1, -1};
    for (int i = 0; i < part.graph.n_nodes; i++) {
        at[0] = part.source[i] == a ? part.graph.nodes[i].group : at[0];
        at[1] = part.source[i] == c ? part.graph.nodes[i].group : at[1];
        sum = part.graph.nodes[i].op == AP_OP_ADD ? part.graph.nodes[i].group : sum;
    }
    CHECK(at[0] >= 0 && at[0] != at[1] && at[1] == sum,
          "they are two in a part that does not hold the product");
    for (int i = 0; i < rest.graph.n_nodes; i++) {
        group[0] = rest.source[i] == d ? rest.graph.nodes[i].group : group[0];
        group[1] = rest.source[i] == e ? rest.graph.nodes[i].group : group[1];
    }
    CHECK(group[0] >= 0 && group[0] == group[1], "a group's piece is one");
}

/* Of a weight w: a wider bias, -w for each row, which both parts read, and its sums t,
 * which have fewer bytes than w and are spread in the second part. */
static void made_of_weights(void)
{
    struct ap_build b;
    struct ap_graph g;
    struct ap_subgraph first, second;
    struct ap_err err = {0};
    int64_t small[2] = {2, 2}, dims[3] = {4, 2, 2}, zero = 0, behind[2] = {1, 2};

    ap_build_init(&b, &arena);
    b.scope = "";
    int x = ap_build_param(&b, "x", ap_build_shape(&b, AP_F32, 3, dims), AP_ROLE_INPUT);
    int w = ap_build_param(&b, "w", ap_build_shape(&b, AP_F32, 2, small), AP_ROLE_WEIGHT);
    int t = ap_build_reduce(&b, w, AP_RED_SUM, 1, &zero);
    int n = ap_build_unary(&b, AP_OP_NEGATE, w);
    int bias = ap_build_broadcast(&b, n, 3, dims, behind);
    int y = ap_build_binary(&b, AP_OP_ADD, x, bias);
    int z = ap_build_binary(&b, AP_OP_MULTIPLY, y, bias);
    int wide = ap_build_broadcast(&b, t, 3, dims, &behind[1]);
    int v = ap_build_binary(&b, AP_OP_ADD, z, wide);
    struct ap_result results[1] = {{v, AP_ROLE_AUX, -1, NULL}};
    CHECK(ap_build_finish(&b, "t", 1, results, &g, &err) == 0, "a bias builds");
    int *block_of = AP_NEW_N(&arena, g.n_nodes, int);
    block_of[z] = block_of[v] = 1;
    CHECK(ap_subgraph_blocks(&arena, &g, block_of, 0, 0, &first, &err) == 0 &&
              ap_subgraph_blocks(&arena, &g, block_of, 1, 1, &second, &err) == 0,
          "in both parts");
    CHECK(first.n_cut_out == 2 && first.source[first.cut_out[0]] == t &&
              first.source[first.cut_out[1]] == y,
          "what has fewer bytes than its weight goes on, a wider bias does not");
    CHECK(second.n_cut_in == 2 && by_name(&second.graph, "w") >= 0,
          "the second part makes the bias of the weight");
    const bool *copied = ap_subgraph_copied(&arena, &g);
    CHECK(copied[n] && copied[bias] && copied[wide] && !copied[t] && !copied[y] &&
              !copied[w] && !copied[x],
          "values that are copied are known");
}

int main(void)
{
    int half;
    struct ap_graph g = sample(&half);
    first_half(&g, half);
    second_half(&g, half);
    whole_and_nothing(&g);
    spread_scalar();
    groups_of_the_whole();
    made_of_weights();
    ap_arena_free(&arena);
    return tap_done();
}
