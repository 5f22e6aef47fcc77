/* Fusion groups: what joins, convexity, numbering, and time on a large graph. */
#include "nest_print.h"
#include "graph/order.h"

#include <time.h>

#define P(shape)         "{'op':'parameter','shape':'" shape "','in':[]}"
#define C(shape, value)  "{'op':'constant','shape':'" shape "','in':[],'value':" value "}"
#define N(op, shape, in) "{'op':'" op "','shape':'" shape "','in':[" in "]}"
#define A(op, shape, in, attrs) \
    "{'op':'" op "','shape':'" shape "','in':[" in "]," attrs "}"
#define SPREAD(shape, in) A("broadcast", shape, in, "'dimensions':[]")

#define FLIP(in, ...) A("reverse", "f32[8]", in, "'dimensions':[0]" __VA_ARGS__)
#define BACK          "'phase':'backward'"
#define PHASED(factor)                                                                   \
    P("f32[8]")                                                                          \
    "," FLIP("0", ) "," FLIP("1", ) "," A("multiply", "f32[8]", factor, BACK) "," FLIP(  \
        "0", "," BACK) "," FLIP("4", "," BACK) "," FLIP("5", "," BACK) "," A("multiply", \
                                                                             "f32[8]",   \
                                                                             "3,6",      \
                                                                             BACK)

struct group_case {
    const char *what, *nodes, *results;
    const char *groups; /* group of each node */
};

static const struct group_case cases[] = {
    {"a chain is one group",
     P("f32[8]") "," N("negate", "f32[8]", "0") "," N("sine", "f32[8]",
                                                      "1") "," N("add", "f32[8]", "1,2"),
     "{'node':3}", "0 1 1 1"},
    {"other dims end it",
     P("f32[8]") "," N("negate", "f32[8]", "0") "," N("reshape", "f32[2,4]", "1") "," N(
         "negate", "f32[2,4]", "2"),
     "{'node':3}", "0 1 2 3"},
    {"a path outside ends it: x + reverse(x)",
     P("f32[8]") "," N("negate", "f32[8]", "0") "," A(
         "reverse", "f32[8]", "1", "'dimensions':[0]") "," N("add", "f32[8]", "1,2"),
     "{'node':3}", "0 1 2 3"},
    {"parameters come first",
     P("f32[8]") "," N("negate", "f32[8]", "0") "," P("f32[8]") "," N("add", "f32[8]",
                                                                      "1,2"),
     "{'node':3}", "0 2 1 2"},
    {"constant, broadcast and iota join their only user",
     C("f32[]", "1") "," SPREAD("f32[8]", "0") "," A(
         "iota", "f32[8]", "", "'iota_dimension':0") "," N("add", "f32[8]", "1,2"),
     "{'node':3}", "0 0 0 0"},
    {"a constant with two users does not",
     C("f32[]", "1") "," SPREAD("f32[8]", "0") "," SPREAD("f32[4]", "0") "," N(
         "negate", "f32[8]", "1") "," N("negate", "f32[4]", "2"),
     "{'node':3},{'node':4}", "0 1 2 1 2"},
    {"nor one that is a result", C("f32[]", "1") "," SPREAD("f32[8]", "0"),
     "{'node':0},{'node':1}", "0 1"},
    {"nor one whose user cannot fuse",
     P("f32[8]") "," C("f32[]", "0") "," A("reduce", "f32[]", "0,1",
                                           "'dimensions':[0],'to_apply':0"),
     "{'node':2}", "0 1 2"},
    {"a broadcast's operand stays outside",
     P("f32[8]") "," N("negate", "f32[8]", "0") "," A(
         "broadcast", "f32[8]", "1", "'dimensions':[0]") "," N("sine", "f32[8]", "2"),
     "{'node':3}", "0 1 2 2"},
    {"a broadcast for two fuses with both",
     P("f32[]") "," SPREAD("f32[8]", "0") "," N("negate", "f32[8]",
                                                "1") "," N("sine", "f32[8]", "1"),
     "{'node':2},{'node':3}", "0 1 1 1"},
    {"parts join their tuple",
     P("f32[8,6]") "," A(
         "topk", "(f32[8,2], s32[8,2])", "0",
         "'k':2,'largest':true") "," A("get-tuple-element", "f32[8,2]", "1",
                                       "'index':0") "," A("get-tuple-element", "s32[8,2]",
                                                          "1",
                                                          "'index':1") "," N("negate",
                                                                             "f32[8,2]",
                                                                             "2"),
     "{'node':3},{'node':4}", "0 1 1 1 2"},
    {"what is made of parameters alone rises: m b + f(g)",
     P("f32[8]") "," P("f32[8]") "," C("f32[]", "2") "," SPREAD("f32[8]", "2") "," N(
         "multiply", "f32[8]", "0,3") "," A("reverse", "f32[8]", "1",
                                            "'dimensions':[0]") "," N("add", "f32[8]",
                                                                      "4,5"),
     "{'node':6}", "0 1 3 3 3 2 3"},
    {"what is made of one earlier value rises: (y y) g", PHASED("1,1"), "{'node':7}",
     "0 1 2 6 3 4 5 6"},
    {"not what is made of two: (y x) g", PHASED("1,2"), "{'node':7}", "0 1 2 3 4 5 6 7"},
    {"unless the other is kept", PHASED("1,2"), "{'node':2},{'node':7}",
     "0 1 2 6 3 4 5 6"},
    {"nor what is a result",
     P("f32[8]") "," N("negate", "f32[8]", "0") "," A(
         "reverse", "f32[8]", "0", "'dimensions':[0]") "," N("add", "f32[8]", "1,2"),
     "{'node':1},{'node':3}", "0 1 2 3"},
    {"a sum of contractions stays apart",
     P("f32[8,8]") "," A(
         "dot", "f32[8,8]", "0,0",
         "'lhs_contracting_dims':[1],'rhs_contracting_dims':["
         "0]") "," A("dot", "f32[8,8]", "0,0",
                     "'lhs_contracting_dims':[0],'rhs_"
                     "contracting_dims':[0]") "," N("add", "f32[8,8]",
                                                    "1,2") "," N("sine", "f32[8,8]", "3"),
     "{'node':4}", "0 1 2 3 4"},
};

#define DOT(in) \
    A("dot", "f32[8,8]", in, "'lhs_contracting_dims':[1],'rhs_contracting_dims':[0]")
#define ALL(in) \
    A("dot", "f32[]", in, "'lhs_contracting_dims':[0,1],'rhs_contracting_dims':[0,1]")

/* Node 0 is the weight, whose next value is node 4. */
static const struct group_case orders[] = {
    {"what gives memory back runs first",
     P("f32[8,8]") "," DOT("0,0") "," DOT("1,0") "," DOT("2,0") "," DOT("3,0") "," ALL(
         "1,2"),
     "{'node':4},{'node':5}", "0 1 2 4 5 3"},
    {"not what needs as much as it gives back",
     P("f32[8,8]") "," DOT("0,0") "," DOT("1,0") "," DOT("2,0") "," DOT("1,1"),
     "{'node':3},{'node':4}", "0 1 2 3 4"},
    {"a gradient and its update",
     P("f32[8,8]") "," DOT("0,0") "," DOT("1,0") "," DOT("2,2") "," DOT("3,3") "," DOT(
         "1,2") "," N("subtract", "f32[8,8]", "0,5"),
     "{'node':4},{'node':6,'alias':0}", "0 1 2 5 6 3 4"},
    {"but not before the weight's last reader, which would take a copy",
     P("f32[8,8]") "," DOT("0,0") "," DOT("1,0") "," DOT("2,2") "," DOT("3,0") "," DOT(
         "1,2") "," N("subtract", "f32[8,8]", "0,5"),
     "{'node':4},{'node':6,'alias':0}", "0 1 2 3 5 4 6"},
    {"the scalars that it needs come in front of it",
     P("f32[8,8]") "," DOT("0,0") "," DOT("1,0") "," DOT("2,2") "," DOT("3,3") "," DOT(
         "1,2") "," C("f32[]",
                      "2") "," C("f32[]",
                                 "3") "," N("power", "f32[]",
                                            "6,7") "," SPREAD("f32[8,8]",
                                                              "8") "," N("multiply",
                                                                         "f32[8,8]",
                                                                         "5,9") "," N("su"
                                                                                      "bt"
                                                                                      "ra"
                                                                                      "c"
                                                                                      "t",
                                                                                      "f3"
                                                                                      "2["
                                                                                      "8,"
                                                                                      "8"
                                                                                      "]",
                                                                                      "0,"
                                                                                      "1"
                                                                                      "0"),
     "{'node':4},{'node':11,'alias':0}", "0 1 2 6 7 3 4 4 4 5 5 5"},
};

static void print_groups(const struct group_case *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct ap_graph g;
        if (!graph_of(list[i].nodes, list[i].results, &g))
            continue;
        struct ap_buf text = {0};
        for (int v = 0; v < g.n_nodes; v++)
            ap_buf_printf(&text, "%s%d", v > 0 ? " " : "", g.nodes[v].group);
        CHECK(strcmp(text.data, list[i].groups) == 0, "%s: %s", list[i].what, text.data);
        ap_buf_free(&text);
    }
}

static void groups(void)
{
    print_groups(cases, sizeof cases / sizeof cases[0]);
    print_groups(orders, sizeof orders / sizeof orders[0]);
}

/* A repeatable sequence of small numbers. */
static int draw(uint64_t *state, int n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((*state >> 33) % (uint64_t)n);
}

/* A random program of negates, adds, reverses and broadcasts of vectors and scalars. */
static struct ap_graph random_graph(uint64_t seed, int n)
{
    static const int64_t dims[1] = {64}, axes[1] = {0};
    struct ap_graph g = {.n_nodes = n, .nodes = AP_NEW_N(&arena, n, struct ap_node)};
    struct ap_attrs *attrs = ap_arena_dup(&arena, &ap_attrs_default, sizeof(*attrs));
    struct ap_err err = {""};

    struct ap_attrs *reverse = ap_arena_dup(&arena, attrs, sizeof(*attrs));
    reverse->dimensions = (struct ap_ints){1, axes};
    for (int v = 0; v < n; v++) {
        struct ap_node *node = &g.nodes[v];
        int *in = AP_NEW_N(&arena, 2, int);
        int kind = v < 4 ? 0 : draw(&seed, 8);
        *node = (struct ap_node){.op = AP_OP_PARAMETER,
                                 .name = "",
                                 .in = in,
                                 .attrs = attrs,
                                 .scope = "",
                                 .param = -1,
                                 .group = -1};
        node->shape = (struct ap_shape){.dtype = AP_F32, .rank = 1, .dims = dims};
        if (kind == 0) {
            node->param = g.n_params++;
            continue;
        }
        in[0] = v - 1 - draw(&seed, v < 30 ? v : 30);
        in[1] = v - 1 - draw(&seed, v < 30 ? v : 30);
        node->n_in = kind < 3 ? 1 : 2;
        node->op = kind == 1 ? AP_OP_REVERSE : kind == 2 ? AP_OP_NEGATE : AP_OP_ADD;
        if (kind == 1)
            node->attrs = reverse;
    }
    g.n_results = 1;
    g.results = AP_NEW(&arena, struct ap_result);
    g.results[0] = (struct ap_result){.node = n - 1, .alias = -1};
    if (ap_graph_index(&arena, &g, "", &err))
        CHECK(false, "%s", err.msg);
    return g;
}

/* Edges never lead back, so groups are convex and their ids an execution order. */
static bool ordered(const struct ap_graph *g)
{
    for (int v = 0; v < g->n_nodes; v++) {
        if (g->nodes[v].group < 0 || g->nodes[v].group >= g->n_groups)
            return false;
        for (int k = 0; k < g->nodes[v].n_in; k++) {
            if (g->nodes[g->nodes[v].in[k]].group > g->nodes[v].group)
                return false;
        }
    }
    return true;
}

static void random_graphs(void)
{
    for (int i = 0; i < 50; i++) {
        struct ap_graph g = random_graph((uint64_t)i, 200);
        ap_group(&arena, &g);
        struct ap_nests nests;
        bool ok = ordered(&g) && build(&g, &nests);
        for (int n = 0; ok && n < nests.n; n++)
            ok = nests.nest[n].n_members > 0;
        CHECK(ok, "random graph %d: ordered, no group is empty", i);
    }
}

/* Bytes beside parameters at the fullest moment; row: the nodes, each a group. */
static int64_t fullest(const struct ap_graph *g, const int *row)
{
    int *left = AP_NEW_N(&arena, g->n_nodes, int);
    int64_t held = 0, most = 0;

    for (int v = 0; v < g->n_nodes; v++)
        left[v] = g->user_start[v + 1] - g->user_start[v];
    left[g->results[0].node]++;
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[row[i]];
        int64_t bytes = ap_shape_bytes(&n->shape);
        held += n->op == AP_OP_PARAMETER || left[row[i]] == 0 ? 0 : bytes;
        most = held > most ? held : most;
        for (int k = 0; k < n->n_in; k++)
            if (--left[n->in[k]] == 0 && g->nodes[n->in[k]].op != AP_OP_PARAMETER)
                held -= ap_shape_bytes(&g->nodes[n->in[k]].shape);
    }
    return most;
}

/* Each node a group: operands first, and never more memory than in the text's order. */
static void memory(void)
{
    int64_t sum = 0, sum_text = 0;
    bool ok = true, less = true;

    for (int i = 0; i < 50; i++) {
        struct ap_graph g = random_graph((uint64_t)i, 200);
        int *group = AP_NEW_N(&arena, g.n_nodes, int);
        int *place = AP_NEW_N(&arena, g.n_nodes, int);
        int *row = AP_NEW_N(&arena, g.n_nodes, int);
        for (int v = 0; v < g.n_nodes; v++)
            group[v] = v;
        ap_order_groups(&arena, &g, group, g.n_nodes, place);
        const int64_t text = fullest(&g, group);
        for (int v = 0; v < g.n_nodes; v++) {
            row[place[v]] = v;
            for (int k = 0; k < g.nodes[v].n_in; k++)
                ok &= place[g.nodes[v].in[k]] < place[v];
        }
        less &= fullest(&g, row) <= text;
        sum += fullest(&g, row);
        sum_text += text;
    }
    CHECK(ok && less && sum < sum_text, "memory of 50 orders: %.3f of the text's",
          (double)sum / (double)sum_text);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The limit only catches what is not near linear; sanitizers and busy machines are slow.
 */
static void large_graph(void)
{
    struct ap_graph g = random_graph(1, 100000);
    struct ap_nests nests;
    double start = seconds();
    ap_group(&arena, &g);
    bool ok = ordered(&g) && build(&g, &nests);
    CHECK(ok && seconds() - start < 20, "100000 nodes, %d groups", g.n_groups);
    fprintf(stderr, "100000 nodes: %.3f s\n", seconds() - start);
}

int main(void)
{
    groups();
    random_graphs();
    memory();
    large_graph();
    ap_arena_free(&arena);
    return tap_done();
}
