/* Factor rules, refinement, linear sets, choices: hand-made graphs, one per rule. */
#include "nest_print.h"

#include <math.h>

struct rule_case {
    const char *what;
    const char *nodes;  /* ' for "; the last node is the only result */
    const char *expect; /* print_nest of the last node's group */
};

#define P(shape)         "{'op':'parameter','shape':'" shape "','in':[]}"
#define C(shape, value)  "{'op':'constant','shape':'" shape "','in':[],'value':" value "}"
#define N(op, shape, in) "{'op':'" op "','shape':'" shape "','in':[" in "]}"
#define A(op, shape, in, attrs) \
    "{'op':'" op "','shape':'" shape "','in':[" in "]," attrs "}"

static const struct rule_case cases[] = {
    {"parameter", P("f32[8,6]"), "8 6 | -> (0 1) |"},
    {"size-1 and size-0 dims", P("f32[1,6,0]"), "6 0w | -> (- 0 1) |"},
    {"constant", C("f32[4]", "2"), "4 | -> (0) |"},
    {"iota", A("iota", "s32[4,5]", "", "'iota_dimension':1"), "4 5 | -> (0 1) |"},
    {"elementwise", P("f32[8,6]") "," N("exponential", "f32[8,6]", "0"),
     "8 6 | (0 1) -> (0 1) |"},
    {"scalar operands of clamp",
     P("f32[8]") "," P("f32[]") "," N("clamp", "f32[8]", "1,0,1"), "8 | () (0) -> (0) |"},
    {"add is linear in both", P("f32[8]") "," P("f32[8]") "," N("add", "f32[8]", "0,1"),
     "8 | (0) (0) -> (0) | {0,1}"},
    {"x + x is linear in x", P("f32[8]") "," N("add", "f32[8]", "0,0"),
     "8 | (0) -> (0) | {0}"},
    {"multiply is linear in each",
     P("f32[8]") "," P("f32[8]") "," N("multiply", "f32[8]", "0,1"),
     "8 | (0) (0) -> (0) | {0} {1}"},
    {"x * x is not linear", P("f32[8]") "," N("multiply", "f32[8]", "0,0"),
     "8 | (0) -> (0) |"},
    {"divide is linear in the left",
     P("f32[8]") "," P("f32[8]") "," N("divide", "f32[8]", "0,1"),
     "8 | (0) (0) -> (0) | {0}"},
    {"integer divide is not",
     P("s32[8]") "," P("s32[8]") "," N("divide", "s32[8]", "0,1"),
     "8 | (0) (0) -> (0) |"},
    {"select is linear in the branches",
     P("pred[8]") "," P("f32[8]") "," P("f32[8]") "," N("select", "f32[8]", "0,1,2"),
     "8 | (0) (0) (0) -> (0) | {1,2}"},
    {"bits are not linear", P("f32[8]") "," N("bitcast-convert", "s32[8]", "0"),
     "8 | (0) -> (0) |"},
    {"a transform's dimensions are whole",
     P("c64[8,6,4]") "," A("fft", "c64[8,6,4]", "0",
                           "'fft_type':'IFFT','fft_length':[6,4]"),
     "8 6w 4w 6w 4w | (0 3 4) -> (0 1 2) |"},
    {"half a spectrum",
     P("f32[8,6]") "," A("fft", "c64[8,4]", "0", "'fft_type':'RFFT','fft_length':[6]"),
     "8 4w 6w | (0 2) -> (0 1) |"},
    {"matrices of cholesky are whole",
     P("f32[8,4,4]") "," A("cholesky", "f32[8,4,4]", "0", "'lower':true"),
     "8 4w 4w 4w 4w | (0 3 4) -> (0 1 2) |"},
    {"right sides of a solve",
     P("f32[8,4,4]") "," P("f32[8,4,6]") "," A("triangular-solve", "f32[8,4,6]", "0,1",
                                               "'lower':true,'left_side':true"),
     "8 4w 6 4w 4w | (0 3 4) (0 1 2) -> (0 1 2) |"},
    {"convert between floats", P("f32[8]") "," N("convert", "bf16[8]", "0"),
     "8 | (0) -> (0) | {0}"},
    {"convert to integers", P("f32[8]") "," N("convert", "s32[8]", "0"),
     "8 | (0) -> (0) |"},
    {"select with a zero stays linear",
     P("pred[8]") "," P("f32[8]") "," C("f32[]", "0") "," A(
         "broadcast", "f32[8]", "2", "'dimensions':[]") "," N("select", "f32[8]",
                                                              "0,1,3"),
     "8 | (0) (0) -> () (0) (0) | {1}"},
    {"add of a literal is not linear",
     P("f32[8]") "," C("f32[]", "1") "," A(
         "broadcast", "f32[8]", "1", "'dimensions':[]") "," N("add", "f32[8]", "0,2"),
     "8 | (0) -> () (0) (0) |"},
    {"multiply by a literal is",
     P("f32[8]") "," C("f32[]", "3") "," A("broadcast", "f32[8]", "1",
                                           "'dimensions':[]") "," N("multiply", "f32[8]",
                                                                    "0,2"),
     "8 | (0) -> () (0) (0) | {0}"},
    {"a sum demands the other side: a + w * c",
     P("f32[8]") "," P("f32[8]") "," C("f32[]", "3") "," A(
         "broadcast", "f32[8]", "2",
         "'dimensions':[]") "," N("multiply", "f32[8]", "1,3") "," N("add", "f32[8]",
                                                                     "0,4"),
     "8 | (0) (0) -> () (0) (0) (0) | {0,1}"},
    {"all results must be linear: a + b, exp a",
     P("f32[8]") "," P("f32[8]") "," N("add", "f32[8]", "0,1") "," N(
         "exponential", "f32[8]", "2") "," N("add", "f32[8]", "2,3"),
     "8 | (0) (0) -> (0) (0) (0) |"},
    {"broadcast of a vector in a chain",
     P("f32[8,6]") "," P("f32[6]") "," A("broadcast", "f32[8,6]", "1",
                                         "'dimensions':[1]") "," N("add", "f32[8,6]",
                                                                   "0,2"),
     "8 6 | (1) (0 1) -> (0 1) (0 1) | {0,1}"},
    {"two views of one vector",
     P("f32[6]") "," A("broadcast", "f32[6,6]", "0", "'dimensions':[0]") "," A(
         "broadcast", "f32[6,6]", "0", "'dimensions':[1]") "," N("add", "f32[6,6]",
                                                                 "1,2"),
     "6 6 | (0) (1) -> (0 1) (0 1) (0 1) | {0,1}"},
    {"transpose", P("f32[8,6]") "," A("transpose", "f32[6,8]", "0", "'dimensions':[1,0]"),
     "6 8 | (1 0) -> (0 1) | {0}"},
    {"slice", P("f32[8,6]") "," A("slice", "f32[8,3]", "0", "'slice':'{[0:8],[1:4]}'"),
     "8 3w 6w | (0 2) -> (0 1) | {0}"},
    {"pad",
     P("f32[8,6]") "," P("f32[]") "," A("pad", "f32[8,9]", "0,1", "'padding':'0_0x1_2'"),
     "8 9w 6w | (0 2) () -> (0 1) | {0,1}"},
    {"reverse", P("f32[8,6]") "," A("reverse", "f32[8,6]", "0", "'dimensions':[1]"),
     "8 6w 6w | (0 2) -> (0 1) | {0}"},
    {"concatenate",
     P("f32[8,6]") "," P("f32[8,2]") "," A("concatenate", "f32[8,14]", "0,1,0",
                                           "'dimensions':[1]"),
     "8 14w 6w 2w | (0 2) (0 3) -> (0 1) | {0,1}"},
    {"dot",
     P("f32[8,4,16]") "," P("f32[8,16,6]") "," A(
         "dot", "f32[8,4,6]", "0,1",
         "'lhs_batch_dims':[0],'rhs_batch_dims':[0],'lhs_contracting_dims':[2],"
         "'rhs_contracting_dims':[1]"),
     "8 4 6 16:sum | (0 1 3) (0 3 2) -> (0 1 2 P3) | {0} {1}"},
    {"dot of a tensor with itself",
     P("f32[16]") "," A("dot", "f32[]", "0,0",
                        "'lhs_contracting_dims':[0],'rhs_contracting_dims':[0]"),
     "16:sum | (0) -> ( P0) |"},
    {"convolution",
     P("f32[8,10,10,4]") "," P("f32[3,3,4,6]") "," A(
         "convolution", "f32[8,10,10,6]", "0,1",
         "'window':'{size=3x3 pad=1_1x1_1}','dim_labels':'b01f_01io->b01f'"),
     "8 10w 10w 6 10w 10w 4:sum 3w 3w | (0 4 5 6) (7 8 6 3) -> (0 1 2 3 P6) | {0} {1}"},
    {"convolution 1x1: the image splits",
     P("f32[8,10,5,4]") "," P("f32[1,1,4,6]") "," A(
         "convolution", "f32[8,10,5,6]", "0,1",
         "'window':'{size=1x1}','dim_labels':'b01f_01io->b01f'"),
     "8 10 5 6 4:sum | (0 1 2 4) (- - 4 3) -> (0 1 2 3 P4) | {0} {1}"},
    {"convolution with feature groups",
     P("f32[8,10,12]") "," P("f32[3,4,6]") "," A(
         "convolution", "f32[8,8,6]", "0,1",
         "'window':'{size=3}','dim_labels':'b0f_0io->b0f','feature_group_count':3"),
     "8 8w 3 2 10w 4:sum 3w | (0 4 2.5) (6 5 2.3) -> (0 1 2.3 P5) | {0} {1}"},
    {"convolution with batch groups",
     P("f32[12,10,4]") "," P("f32[3,4,6]") "," A(
         "convolution", "f32[4,8,6]", "0,1",
         "'window':'{size=3}','dim_labels':'b0f_0io->b0f','batch_group_count':3"),
     "4 8w 3 2 10w 4:sum 3w | (2.0 4 5) (6 5 2.3) -> (0 1 2.3 P5) | {0} {1}"},
    {"reduce, sum",
     P("f32[8,6,5]") "," P("f32[]") "," A("reduce", "f32[8,5]", "0,1",
                                          "'dimensions':[1],'to_apply':0"),
     "8 5 6:sum | (0 2 1) ( P2) -> (0 1 P2) | {0,1}"},
    {"reduce, max",
     P("f32[8,6]") "," P("f32[]") "," A("reduce", "f32[8]", "0,1",
                                        "'dimensions':[1],'to_apply':1"),
     "8 6:max | (0 1) ( P1) -> (0 P1) |"},
    {"reduce, custom",
     P("f32[8,6]") "," P("f32[]") "," A("reduce", "f32[8]", "0,1",
                                        "'dimensions':[1],'to_apply':5"),
     "8 6w | (0 1) () -> (0) |"},
    {"reduce of two, with its parts",
     P("f32[8,6]") "," P("s32[8,6]") "," P("f32[]") "," P("s32[]") "," A(
         "reduce", "(f32[8], s32[8])", "0,1,2,3",
         "'dimensions':[1],'to_apply':6") "," A("get-tuple-element", "s32[8]", "4",
                                                "'index':1"),
     "8 6w | (0 1) (0 1) () () -> (0) (0) |"},
    {"reduce-window",
     P("f32[8,6,6]") "," P("f32[]") "," A(
         "reduce-window", "f32[8,3,6]", "0,1",
         "'window':'{size=1x2x1 stride=1x2x1}','to_apply':0"),
     "8 3w 6 6w | (0 3 2) () -> (0 1 2) | {0,1}"},
    {"select-and-scatter",
     P("f32[8,6]") "," P("f32[8,3]") "," P("f32[]") "," A(
         "select-and-scatter", "f32[8,6]", "0,1,2",
         "'window':'{size=1x2 stride=1x2}','select':5,'scatter':0"),
     "8 6w 6w 3w | (0 2) (0 3) () -> (0 1) |"},
    {"sort of two",
     P("f32[8,6]") "," P("s32[8,6]") "," A(
         "sort", "(f32[8,6], s32[8,6])", "0,1",
         "'dimensions':[1],'to_apply':7") "," A("get-tuple-element", "s32[8,6]", "2",
                                                "'index':1"),
     "8 6w | (0 1) (0 1) -> (0 1) (0 1) |"},
    {"topk",
     P("f32[8,6]") "," A("topk", "(f32[8,2], s32[8,2])", "0",
                         "'k':2,'largest':true") "," A("get-tuple-element", "f32[8,2]",
                                                       "1", "'index':0"),
     "8 2w 6w | (0 2) -> (0 1) (0 1) |"},
    {"gather of rows",
     P("f32[50,16]") "," P("s32[8,4,1]") "," A(
         "gather", "f32[8,4,16]", "0,1",
         "'offset_dims':[2],'collapsed_slice_dims':[0],'start_index_map':[0],"
         "'index_vector_dim':2,'slice_sizes':[1,16]"),
     "8 4 16 50?sum | (3 2) (0 1 -) -> (0 1 2 P3) | {0}"},
    {"gather with two indexed dims: neither splits",
     P("f32[50,16]") "," P("s32[8,2]") "," A(
         "gather", "f32[8]", "0,1",
         "'offset_dims':[],'collapsed_slice_dims':[0,1],'start_index_map':[0,1],"
         "'index_vector_dim':1,'slice_sizes':[1,1]"),
     "8 50w 16w 2w | (1 2) (0 3) -> (0) | {0}"},
    {"gather with batching dims",
     P("f32[8,50,16]") "," P("s32[8,4,1]") "," A(
         "gather", "f32[8,4,16]", "0,1",
         "'offset_dims':[2],'collapsed_slice_dims':[1],'start_index_map':[1],"
         "'operand_batching_dims':[0],'start_indices_batching_dims':[0],"
         "'index_vector_dim':2,'slice_sizes':[1,1,16]"),
     "8 4 16 50?sum | (0 3 2) (0 1 -) -> (0 1 2 P3) | {0}"},
    {"gather of a window",
     P("f32[50,16]") "," P("s32[8,1]") "," A(
         "gather", "f32[8,3,16]", "0,1",
         "'offset_dims':[1,2],'collapsed_slice_dims':[],'start_index_map':[0],"
         "'index_vector_dim':1,'slice_sizes':[3,16]"),
     "8 3w 16 50w | (3 2) (0 -) -> (0 1 2) | {0}"},
    {"scatter-add of rows",
     P("f32[50,16]") "," P("s32[8,4,1]") "," P("f32[8,4,16]") "," A(
         "scatter", "f32[50,16]", "0,1,2",
         "'update_window_dims':[2],'inserted_window_dims':[0],"
         "'scatter_dims_to_operand_dims':[0],'index_vector_dim':2,'to_apply':0"),
     "50? 16 8:sum 4:sum | (0 1 P2 P3) (2 3 -) (2 3 1) -> (0 1 P2 P3) | {0,2}"},
    {"scatter that replaces",
     P("f32[50,16]") "," P("s32[8,1]") "," P("f32[8,16]") "," A(
         "scatter", "f32[50,16]", "0,1,2",
         "'update_window_dims':[1],'inserted_window_dims':[0],"
         "'scatter_dims_to_operand_dims':[0],'index_vector_dim':1,'to_apply':4"),
     "50? 16 8w | (0 1) (2 -) (2 1) -> (0 1) |"},
    {"scatter with batching dims",
     P("f32[8,50]") "," P("s32[8,4,1]") "," P("f32[8,4]") "," A(
         "scatter", "f32[8,50]", "0,1,2",
         "'update_window_dims':[],'inserted_window_dims':[1],"
         "'scatter_dims_to_operand_dims':[1],'input_batching_dims':[0],"
         "'scatter_indices_batching_dims':[0],'index_vector_dim':2,'to_apply':0"),
     "8 50? 4:sum | (0 1 P2) (0 2 -) (0 2) -> (0 1 P2) | {0,2}"},
    {"dynamic-slice",
     P("f32[8,6]") "," P("s32[]") "," A("dynamic-slice", "f32[8,2]", "0,1,1",
                                        "'dynamic_slice_sizes':[8,2]"),
     "8 2w 6w | (0 2) () -> (0 1) | {0}"},
    {"dynamic-update-slice",
     P("f32[8,6]") "," P("f32[8,2]") "," P("s32[]") "," N("dynamic-update-slice",
                                                          "f32[8,6]", "0,1,2,2"),
     "8 6w 2w | (0 1) (0 2) () -> (0 1) | {0,1}"},
    {"reshape merges", P("f32[8,6,5]") "," N("reshape", "f32[48,5]", "0"),
     "8 6 5 | (0 1 2) -> (0.1 2) | {0}"},
    {"reshape cuts", P("f32[48,5]") "," N("reshape", "f32[8,1,6,5]", "0"),
     "8 6 5 | (0.1 2) -> (0 - 1 2) | {0}"},
    {"reshape regroups", P("f32[4,6]") "," N("reshape", "f32[8,3]", "0"),
     "4 2 3 | (0 1.2) -> (0.1 2) | {0}"},
    {"reshape with a common divisor only",
     P("f32[6,4]") "," N("reshape", "f32[8,3]", "0"),
     "2 4w 3w 3w 4w | (0.3 4) -> (0.1 2) | {0}"},
    {"reshape that fits behind", P("f32[2,9,4]") "," N("reshape", "f32[3,6,4]", "0"),
     "3w 2w 3 4 2w 3w | (4 5.2 3) -> (0 1.2 3) | {0}"},
    {"reshape of no elements", P("f32[0,4]") "," N("reshape", "f32[4,0]", "0"),
     "4w 0w 0w 4w | (2 3) -> (0 1) | {0}"},
};

static void rules(void)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ap_graph g;
        struct ap_nests nests;
        if (!graph_of_last(cases[i].nodes, &g) || !build(&g, &nests))
            continue;
        const struct ap_nest *nest = &nests.nest[g.nodes[g.n_nodes - 1].group];
        const char *text = print_nest(nest);
        CHECK(strcmp(text, cases[i].expect) == 0, "%s: %s", cases[i].what, text);
        bool ok = true;
        for (int n = 0; n < nests.n; n++)
            ok &= nest_fits(&nests.nest[n], &g);
        CHECK(ok, "%s: sizes and extents fit under every choice", cases[i].what);
    }
}

/* ---- refinement ---- */

static const struct ap_nest *nest_of(const struct ap_graph *g,
                                     const struct ap_nests *nests, int node)
{
    return &nests->nest[g->nodes[node].group];
}

static void check_nest(const struct ap_graph *g, const struct ap_nests *nests, int node,
                       const char *what, const char *expect)
{
    const char *text = print_nest(nest_of(g, nests, node));
    CHECK(strcmp(text, expect) == 0, "%s: %s", what, text);
    CHECK(nest_fits(nest_of(g, nests, node), g), "%s: fits", what);
}

/* x W cut into heads: the weight, its update and the hidden layer before it know of
 * heads. */
static void refinement(void)
{
    struct ap_graph g;
    struct ap_nests nests;
    bool ok = graph_of(P("f32[4,8,24]") "," P("f32[24,24]") "," A(
                           "dot", "f32[4,8,24]", "0,1",
                           "'lhs_contracting_dims':[2],'rhs_contracting_dims':["
                           "0]") "," N("reshape", "f32[4,8,3,8]",
                                       "2") "," N("multiply", "f32[24,24]",
                                                  "1,1") "," N("reshape", "f32[32,24]",
                                                               "2") "," A("trans"
                                                                          "pose",
                                                                          "f32["
                                                                          "24,"
                                                                          "32]",
                                                                          "5",
                                                                          "'dime"
                                                                          "nsion"
                                                                          "s':["
                                                                          "1,"
                                                                          "0]"),
                       "{'node':3},{'node':4},{'node':6}", &g);
    if (!ok || !build(&g, &nests))
        return;
    check_nest(&g, &nests, 1, "the weight has heads", "24 3 8 | -> (0 1.2) |");
    check_nest(&g, &nests, 2, "so has the dot",
               "4 8 3 8 24:sum | (0 1 4) (4 2.3) -> (0 1 2.3 P4) | {0} {1}");
    check_nest(&g, &nests, 3, "the reshape passes heads",
               "4 8 3 8 | (0 1 2.3) -> (0 1 2 3) | {0}");
    check_nest(&g, &nests, 4, "the update has them", "24 3 8 | (0 1.2) -> (0 1.2) |");
    check_nest(&g, &nests, 5, "merged rows, heads kept",
               "4 8 3 8 | (0 1 2.3) -> (0.1 2.3) | {0}");
    check_nest(&g, &nests, 6, "behind the transpose",
               "3 8 4 8 | (2.3 0.1) -> (0.1 2.3) | {0}");
}

/* At most three factors from elsewhere, and only chains of divisors. */
static void refinement_limits(void)
{
    struct ap_graph g;
    struct ap_nests nests;
    bool ok = graph_of(P("f32[360]") "," N("reshape", "f32[2,3,4,15]",
                                           "0") "," N("negate", "f32[360]", "0"),
                       "{'node':1},{'node':2}", &g);
    if (!ok || !build(&g, &nests))
        return;
    check_nest(&g, &nests, 0, "two boundaries of three", "2 3 60 | -> (0.1.2) |");
    check_nest(&g, &nests, 1, "the reshape itself has all",
               "2 3 4 15 | (0.1.2.3) -> (0 1 2 3) | {0}");
    ok = graph_of(
        P("f32[12]") "," N("reshape", "f32[3,4]", "0") "," N("reshape", "f32[2,6]", "0"),
        "{'node':1},{'node':2}", &g);
    if (!ok || !build(&g, &nests))
        return;
    check_nest(&g, &nests, 0, "4 and 6 are no chain, their gcd is",
               "3 2 2 | -> (0.1.2) |");
    check_nest(&g, &nests, 1, "the first came through",
               "3 2 2 | (0.1.2) -> (0 1.2) | {0}");
    check_nest(&g, &nests, 2, "the other has what is common",
               "2w 3w 2 3w 2w | (3.4.2) -> (0 1.2) | {0}");
}

/* Indexed dimensions stay one factor, whatever reshapes do with the table. */
static void indexed_is_coarse(void)
{
    struct ap_graph g;
    struct ap_nests nests;
    bool ok = graph_of(
        P("f32[50,16]") "," P("s32[8,1]") "," A(
            "gather", "f32[8,16]", "0,1",
            "'offset_dims':[1],'collapsed_slice_dims':[0],'start_index_map':[0],"
            "'index_vector_dim':1,'slice_sizes':[1,16]") "," N("reshape", "f32[10,5,4,4]",
                                                               "0"),
        "{'node':2},{'node':3}", &g);
    if (!ok || !build(&g, &nests))
        return;
    check_nest(&g, &nests, 0, "the table", "10 5 4 4 | -> (0.1 2.3) |");
    check_nest(&g, &nests, 2, "the gather",
               "8 4 4 50?sum | (3 1.2) (0 -) -> (0 1.2 P3) | {0}");
}

/* ---- choices ---- */

static const char *layout_text(const struct ap_mesh *mesh, const struct ap_layout *l)
{
    struct ap_buf buf = {0};
    ap_layout_print(mesh, l, &buf);
    const char *text = ap_arena_strdup(&arena, buf.data);
    ap_buf_free(&buf);
    return text;
}

static struct ap_choice_vec choose(int x, int y)
{
    struct ap_choice_vec c = no_choice();
    c.axis[0] = (int16_t)x;
    c.axis[1] = (int16_t)y;
    return c;
}

/* "layouts of all slots -> value of the first member", or "refused". */
static const char *layouts(const struct ap_nest *nest, const struct ap_graph *g,
                           const struct ap_mesh *mesh, struct ap_choice_vec c)
{
    struct ap_buf buf = {0};
    if (!ap_choice_ok(nest, mesh, &c))
        return "refused";
    for (int i = 0; i < nest->n_ins; i++) {
        struct ap_layout l = ap_nest_in_layout(nest, g, mesh, &c, i);
        ap_buf_printf(&buf, "%s ", layout_text(mesh, &l));
    }
    struct ap_layout l = ap_nest_value_layout(nest, g, mesh, &c, 0);
    ap_buf_printf(&buf, "-> %s", layout_text(mesh, &l));
    const char *text = ap_arena_strdup(&arena, buf.data);
    ap_buf_free(&buf);
    return text;
}

static const struct ap_mesh mesh_2x4 = {2, {2, 4}, {"x", "y"}, 0};

static void check_layouts(const struct ap_nest *nest, const struct ap_graph *g, int x,
                          int y, const char *expect)
{
    const char *text = layouts(nest, g, &mesh_2x4, choose(x, y));
    CHECK(strcmp(text, expect) == 0, "choice %d,%d: %s", x, y, text);
}

/* C[b,i,j] = sum over k of A[b,i,k] B[b,k,j]. */
static const char batched_matmul[] = P("f32[8,16,32]") "," P("f32[8,32,64]") "," A(
    "dot", "f32[8,16,64]", "0,1",
    "'lhs_batch_dims':[0],'rhs_batch_dims':[0],'lhs_contracting_dims':[2],"
    "'rhs_contracting_dims':[1]");

static void choices(void)
{
    struct ap_graph g;
    struct ap_nests nests;
    if (!graph_of_last(batched_matmul, &g) || !build(&g, &nests))
        return;
    const struct ap_nest *dot = nest_of(&g, &nests, 2); /* b i j k */
    check_layouts(dot, &g, -1, -1, "R,R R,R -> R,R");
    check_layouts(dot, &g, 0, 2, "S0,R S0,S2 -> S0,S2");
    check_layouts(dot, &g, 3, 1, "S2,S1 S1,R -> P,S1");
    check_layouts(dot, &g, 3, 3, "S2,S2 S1,S1 -> P,P");
    check_layouts(dot, &g, 4, 0, "P,S0 R,S0 -> P,S0");
    check_layouts(dot, &g, 5, 4, "R,P P,R -> P,P");
    check_layouts(dot, &g, 6, -1, "refused");
    check_layouts(dot, &g, -2, -1, "refused");
    struct ap_mesh one = {2, {1, 4}, {"x", "y"}, 0};
    struct ap_choice_vec c = choose(0, 1);
    CHECK(!ap_choice_ok(dot, &one, &c), "an axis of one device takes no factor");
    CHECK(dot->heavy, "a dot is heavy");

    if (!graph_of_last(P("f32[8,6]") "," N("reshape", "f32[48]", "0"), &g) ||
        !build(&g, &nests))
        return;
    const struct ap_nest *merge = nest_of(&g, &nests, 1);
    check_layouts(merge, &g, 0, -1, "S0,R -> S0,R");
    check_layouts(merge, &g, 1, -1, "S1,R -> S0/6,R");
    check_layouts(merge, &g, 1, 0, "S1,S0 -> S0/6,S0");
    check_layouts(merge, &g, 2, -1, "P,R -> P,R");
    check_layouts(merge, &g, -1, 1, "R,S1 -> R,S0/6");
    struct ap_mesh three = {1, {3}, {"x"}, 0};
    CHECK(strcmp(layouts(merge, &g, &three, choose(0, -1)), "refused") == 0,
          "rows of 6 cut in 3 of 8, padded, have no layout in 48");
    CHECK(strcmp(layouts(merge, &g, &three, choose(1, -1)), "S1 -> S0/6") == 0,
          "the minor factor has one");

    /* parameters are there for all microbatches: without theirs, 4 is split by 2 only */
    if (!graph_of_last(P("f32[3,4]") "," N("reshape", "f32[12]", "0"), &g) ||
        !build(&g, &nests))
        return;
    struct ap_mesh timed = {3, {2, 2, 2}, {"time", "x", "y"}, 1};
    struct ap_choice_vec both = {{1, 1, 0}}, devices = {{-1, 1, 0}};
    CHECK(!ap_choice_ok(nest_of(&g, &nests, 1), &timed, &both),
          "a padded factor, then one that microbatches and devices split");
    CHECK(ap_choice_ok(nest_of(&g, &nests, 1), &timed, &devices),
          "a padded factor, then one that devices split");

    if (!graph_of_last(P("f32[8,6]") "," P("f32[]") "," A(
                           "reduce", "f32[8]", "0,1", "'dimensions':[1],'to_apply':1"),
                       &g) ||
        !build(&g, &nests))
        return;
    check_layouts(nest_of(&g, &nests, 2), &g, 1, 0, "S1,S0 Pmax,R -> Pmax,S0");

    if (!graph_of_last(
            P("f32[8,6]") "," A("slice", "f32[8,3]", "0", "'slice':'{[0:8],[1:4]}'"),
            &g) ||
        !build(&g, &nests))
        return;
    check_layouts(nest_of(&g, &nests, 1), &g, 1, -1, "refused");
    check_layouts(nest_of(&g, &nests, 1), &g, 0, 3, "S0,P -> S0,P");
}

/* Members that a linear set makes partial, and those that stay. */
static void linear_members(void)
{
    struct ap_graph g;
    struct ap_nests nests;
    bool ok = graph_of_last(
        P("f32[8]") "," P("f32[8]") "," C("f32[]", "2") "," A(
            "broadcast", "f32[8]", "2",
            "'dimensions':[]") "," N("multiply", "f32[8]",
                                     "0,3") "," N("exponential", "f32[8]",
                                                  "1") "," N("multiply", "f32[8]", "4,5"),
        &g);
    if (!ok || !build(&g, &nests))
        return;
    const struct ap_nest *nest = nest_of(&g, &nests, 6);
    CHECK(strcmp(print_nest(nest), "8 | (0) (0) -> () (0) (0) (0) (0) | {0}") == 0,
          "2 a exp(b) is linear in a: %s", print_nest(nest));
    static const char *const expect[] = {"R,R", "R,R", "P,R", "R,R", "P,R"};
    struct ap_choice_vec c = choose(nest->n_factors, -1);
    for (int m = 0; m < 5 && m < nest->n_members; m++) {
        struct ap_layout l = ap_nest_value_layout(nest, &g, &mesh_2x4, &c, m);
        const char *text = layout_text(&mesh_2x4, &l);
        CHECK(strcmp(text, expect[m]) == 0, "value of member %d: %s", m, text);
    }
}

static void masks(void)
{
    struct ap_graph g;
    struct ap_nests nests;
    struct ap_mesh mesh = {1, {3}, {"x"}, 0};
    struct ap_choice_vec c;

    if (!graph_of_last(batched_matmul, &g) || !build(&g, &nests))
        return;
    const struct ap_nest *nest = nest_of(&g, &nests, 2);
    c = choose(3, -1);
    CHECK(ap_nest_masked(nest, &mesh, &c) == 3, "dot: both operands, 32 over 3");
    c = choose(1, -1);
    CHECK(ap_nest_masked(nest, &mesh, &c) == 0, "dot: no mask over a parallel factor");
    mesh.size[0] = 4;
    c = choose(3, -1);
    CHECK(ap_nest_masked(nest, &mesh, &c) == 0, "dot: 32 over 4 is not padded");

    mesh.size[0] = 3;
    if (!graph_of_last(P("f32[50,16]") "," P("s32[8,1]") "," P("f32[8,16]") "," A(
                           "scatter", "f32[50,16]", "0,1,2",
                           "'update_window_dims':[1],'inserted_window_dims':[0],"
                           "'scatter_dims_to_operand_dims':[0],'index_vector_dim':1,"
                           "'to_apply':0"),
                       &g) ||
        !build(&g, &nests))
        return;
    c = choose(2, -1);
    CHECK(ap_nest_masked(nest_of(&g, &nests, 3), &mesh, &c) == 4,
          "scatter: the updates only");
    c = choose(0, -1);
    CHECK(ap_nest_masked(nest_of(&g, &nests, 3), &mesh, &c) == 0,
          "scatter: no mask over rows");

    if (!graph_of_last(P("f32[8,7]") "," P("f32[]") "," A(
                           "reduce", "f32[8]", "0,1", "'dimensions':[1],'to_apply':0"),
                       &g) ||
        !build(&g, &nests))
        return;
    c = choose(1, -1);
    CHECK(ap_nest_masked(nest_of(&g, &nests, 2), &mesh, &c) == 1, "reduce: the data");
}

static void check_work(const char *nodes, int x, int y, double flops, double bytes,
                       const char *what)
{
    struct ap_graph g;
    struct ap_nests nests;
    double f, b;
    enum ap_dtype dtype;
    if (!graph_of_last(nodes, &g) || !build(&g, &nests))
        return;
    struct ap_choice_vec c = choose(x, y);
    ap_nest_work(nest_of(&g, &nests, g.n_nodes - 1), &g, &mesh_2x4, &c, &f, &b, &dtype);
    CHECK(fabs(f - flops) < 0.5 && fabs(b - bytes) < 0.5,
          "work of %s: %g flops, %g bytes", what, f, b);
    CHECK(dtype == g.nodes[g.n_nodes - 1].shape.dtype, "type of %s", what);
}

static void work(void)
{
    check_work(batched_matmul, -1, -1, 2.0 * 8 * 16 * 32 * 64,
               4.0 * (8 * 16 * 32 + 8 * 32 * 64 + 8 * 16 * 64), "dot");
    check_work(batched_matmul, 0, 3, 2.0 * 4 * 16 * 8 * 64,
               4.0 * (4 * 16 * 8 + 4 * 8 * 64 + 4 * 16 * 64), "dot, split");
    check_work(P("f32[8,10,10,4]") "," P("f32[3,3,4,6]") "," A(
                   "convolution", "f32[8,10,10,6]", "0,1",
                   "'window':'{size=3x3 pad=1_1x1_1}','dim_labels':'b01f_01io->b01f'"),
               0, 6, 2.0 * 4 * 100 * 6 * 9 * 1,
               4.0 * (4 * 100 * 1 + 9 * 1 * 6 + 4 * 100 * 6), "convolution");
    check_work(
        P("f32[8,10,12]") "," P("f32[3,4,6]") "," A(
            "convolution", "f32[8,8,6]", "0,1",
            "'window':'{size=3}','dim_labels':'b0f_0io->b0f','feature_group_count':3"),
        -1, -1, 2.0 * 8 * 8 * 6 * 3 * 4, 4.0 * (8 * 10 * 12 + 3 * 4 * 6 + 8 * 8 * 6),
        "grouped convolution");
    check_work(P("f32[8,6]") "," P("f32[6]") "," A(
                   "broadcast", "f32[8,6]", "1",
                   "'dimensions':[1]") "," N("exponential", "f32[8,6]",
                                             "0") "," N("add", "f32[8,6]", "2,3"),
               0, -1, 9.0 * 4 * 6, 4.0 * (4 * 6 + 6 + 4 * 6), "chain");
    check_work(P("f32[8,6]") "," N("reshape", "f32[48]", "0"), -1, -1, 0, 0, "reshape");
    check_work(P("f32[8,6]"), -1, -1, 0, 0, "parameter");
    check_work(P("f32[8,6]") "," P("f32[]") "," A("reduce", "f32[8]", "0,1",
                                                  "'dimensions':[1],'to_apply':0"),
               0, -1, 4 * 6 + 1, 4.0 * (4 * 6 + 1 + 4), "reduce");
    check_work(P("f32[50,16]") "," P("s32[8,1]") "," A(
                   "gather", "f32[8,16]", "0,1",
                   "'offset_dims':[1],'collapsed_slice_dims':[0],'start_index_map':[0],"
                   "'index_vector_dim':1,'slice_sizes':[1,16]"),
               0, -1, 0, 4.0 * (4 + 2 * 4 * 16), "gather");
    check_work(
        P("f32[50,16]") "," P("s32[8,1]") "," P("f32[8,16]") "," A(
            "scatter", "f32[50,16]", "0,1,2",
            "'update_window_dims':[1],'inserted_window_dims':[0],"
            "'scatter_dims_to_operand_dims':[0],'index_vector_dim':1,'to_apply':0"),
        -1, -1, 0, 4.0 * (2 * 50 * 16 + 8 + 2 * 8 * 16), "scatter");
    check_work(P("f32[8,6]") "," P("s32[]") "," A("dynamic-slice", "f32[8,2]", "0,1,1",
                                                  "'dynamic_slice_sizes':[8,2]"),
               0, -1, 0, 4.0 * 2 * 4 * 2, "dynamic-slice");
    check_work(P("f32[8,6]") "," P("f32[8,2]") "," P("s32[]") "," N(
                   "dynamic-update-slice", "f32[8,6]", "0,1,2,2"),
               -1, -1, 0, 4.0 * 2 * 8 * 2, "dynamic-update-slice");
}

/* ---- counts from the literature ---- */

/* Alpa, table 1: a matrix has (2 + 1)^2 layouts on a 2x2 mesh, a 3-D tensor 16. */
static void specs(const char *node, int expect)
{
    struct ap_graph g;
    struct ap_nests nests;
    static const struct ap_mesh mesh = {2, {2, 2}, {"x", "y"}, 0};
    struct ap_layout seen[64];
    int n = 0;

    if (!graph_of_last(node, &g) || !build(&g, &nests))
        return;
    struct ap_choice_vec c = no_choice();
    do {
        struct ap_layout l = ap_nest_value_layout(&nests.nest[0], &g, &mesh, &c, 0);
        bool is_new = n < 64;
        for (int i = 0; i < n; i++)
            is_new &= !ap_layout_equal(&seen[i], &l);
        if (is_new)
            seen[n++] = l;
    } while (next_choice(&nests.nest[0], &mesh, &c));
    CHECK(n == expect, "alpa table 1: %d layouts of %s", n, node);
}

/* Alpa, table 3: of the seven rows of parallel algorithms of a batched matmul, 1, 4 and 6
 * are free.
 */
static void batched_matmul_rows(void)
{
    enum { B, I, J, K };
    static const struct {
        int x, y;
        const char *all_reduce; /* axes that the result is partial over */
    } rows[] = {{I, J, ""},  {I, K, "y"}, {J, K, "y"}, {B, I, ""},
                {B, K, "y"}, {I, I, ""},  {K, K, "xy"}};
    struct ap_graph g;
    struct ap_nests nests;

    if (!graph_of_last(batched_matmul, &g) || !build(&g, &nests))
        return;
    const struct ap_nest *nest = nest_of(&g, &nests, 2);
    for (int i = 0; i < 7; i++) {
        struct ap_choice_vec c = choose(rows[i].x, rows[i].y);
        struct ap_layout l = ap_nest_value_layout(nest, &g, &mesh_2x4, &c, 0);
        char axes[3] = "";
        int n = 0;
        for (int a = 0; a < 2; a++) {
            if (l.axis[a].kind == AP_PARTIAL)
                axes[n++] = "xy"[a];
        }
        axes[n] = 0;
        CHECK(ap_choice_ok(nest, &mesh_2x4, &c) && strcmp(axes, rows[i].all_reduce) == 0,
              "alpa table 3: row %d of the batched matmul: all-reduce over '%s'", i + 1,
              axes);
    }
}

/* The nest of the last node's group, as README.md of libcommon/layout prints it. */
static const struct ap_nest *readme_nest(const char *what, const char *nodes,
                                         const char *expect, struct ap_graph *g)
{
    struct ap_nests nests;
    if (!graph_of_last(nodes, g) || !build(g, &nests))
        return NULL;
    const struct ap_nest *nest = nest_of(g, &nests, g->n_nodes - 1);
    const char *got = print_nest(nest);
    CHECK(!strcmp(got, expect), "README of libcommon/layout: %s: %s", what, got);
    return nest;
}

static void readme(void)
{
    static const struct ap_mesh mesh = {2, {2, 2}, {"dp", "tp"}, 0};
    static const struct {
        int dp, tp;
        const char *layouts;
        double flops;
    } ways[] = {
        {-1, -1, "R,R R,R -> R,R", 32768},  {0, -1, "S0,R R,R -> S0,R", 16384},
        {0, 1, "S0,R R,S1 -> S0,S1", 8192}, {0, 2, "S0,S1 R,S0 -> S0,P", 8192},
        {2, 2, "S1,S1 S0,S0 -> P,P", 8192}, {0, 3, "S0,P R,R -> S0,P", 16384},
    };
    struct ap_graph g;
    const struct ap_nest *dot = readme_nest(
        "a dot",
        P("f32[8,32]") "," P("f32[32,64]") "," A("dot", "f32[8,64]", "0,1",
                                                 "'lhs_contracting_dims':[1],"
                                                 "'rhs_contracting_dims':[0]"),
        "8 64 32:sum | (0 2) (2 1) -> (0 1 P2) | {0} {1}", &g);
    for (size_t i = 0; dot && i < sizeof ways / sizeof *ways; i++) {
        const struct ap_choice_vec c = choose(ways[i].dp, ways[i].tp);
        const char *got = layouts(dot, &g, &mesh, c);
        double flops, bytes;
        enum ap_dtype dtype;
        ap_nest_work(dot, &g, &mesh, &c, &flops, &bytes, &dtype);
        CHECK(!strcmp(got, ways[i].layouts) && flops == ways[i].flops,
              "README of libcommon/layout: choice (%d, %d): %s, %g FLOPs", ways[i].dp,
              ways[i].tp, got, flops);
    }
    readme_nest("a sum",
                P("f32[8,64]") "," P("f32[8,64]") "," N("add", "f32[8,64]", "0,1"),
                "8 64 | (0 1) (0 1) -> (0 1) | {0,1}", &g);
    readme_nest("a maximum",
                P("f32[8,64]") "," P("f32[8,64]") "," N("maximum", "f32[8,64]", "0,1"),
                "8 64 | (0 1) (0 1) -> (0 1) |", &g);
    readme_nest("a reshape that cuts",
                P("f32[8,64]") "," N("reshape", "f32[8,4,16]", "0"),
                "8 4 16 | (0 1.2) -> (0 1 2) | {0}", &g);
    readme_nest("a reshape that does not fit",
                P("f32[6,4]") "," N("reshape", "f32[8,3]", "0"),
                "2 4w 3w 3w 4w | (0.3 4) -> (0.1 2) | {0}", &g);
    readme_nest("a look-up",
                P("f32[50,16]") "," P("s32[8,1]") "," A(
                    "gather", "f32[8,16]", "0,1",
                    "'offset_dims':[1],'collapsed_slice_dims':[0],'start_index_map':[0],"
                    "'index_vector_dim':1,'slice_sizes':[1,16]"),
                "8 16 50?sum | (2 1) (0 -) -> (0 1 P2) | {0}", &g);
}

static void programs_are_refused(void)
{
    struct ap_graph g;
    struct ap_nests nests;
    struct ap_err err = {""};
    if (!graph_of_last(P("f32[8]") "," N("negate", "f32[8]", "0"), &g))
        return;
    g.nodes[1].op = AP_OP_ALL_REDUCE;
    g.nodes[1].name = "ar";
    int status = ap_nests_build(&arena, &g, &nests, &err);
    CHECK(status == -1 && strstr(err.msg, "node 1 (ar): all-reduce has no factor rule"),
          "a program's operator: %s", err.msg);
}

int main(void)
{
    rules();
    refinement();
    refinement_limits();
    indexed_is_coarse();
    choices();
    linear_members();
    masks();
    work();
    specs(P("f32[8,8]"), 9);
    specs(P("f32[8,8,8]"), 16);
    batched_matmul_rows();
    programs_are_refused();
    readme();
    ap_arena_free(&arena);
    return tap_done();
}
