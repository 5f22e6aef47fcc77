/* Factor rules, refinement, linear sets, choices: hand-made graphs, one per rule. */
#include "nest_print.h"

#include <math.h>

struct rule_case {
    const char *what;
    const char *nodes;  /* ' for "; the last node is the only result */
    const char *expect; /* print_nest of the last node's group */
};

#define P(shape) "{'op':'parameter','shape':'" shape "','in':[]}"
#define C(shape, value) "{'op':'constant','shape':'" shape "','in':[],'value':" value "}"
#define N(op, shape, in) "{'op':'" op "','shape':'" shape "','in':[" in "]}"
#define A(op, shape, in, attrs) "{'op':'" op "','shape':'" shape "','in':[" in "]," attrs "}"

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
    {"integer divide is not", P("s32[8]") "," P("s32[8]") "," N("divide", "s32[8]", "0,1"),
     "8 | (0) (0) -> (0) |"},
    {"select is linear in the branches",
     P("pred[8]") "," P("f32[8]") "," P("f32[8]") "," N("select", "f32[8]", "0,1,2"),
     "8 | (0) (0) (0) -> (0) | {1,2}"},
    {"convert between floats", P("f32[8]") "," N("convert", "bf16[8]", "0"),
     "8 | (0) -> (0) | {0}"},
    {"convert to integers", P("f32[8]") "," N("convert", "s32[8]", "0"),
     "8 | (0) -> (0) |"},
    {"select with a zero stays linear",
     P("pred[8]") "," P("f32[8]") "," C("f32[]", "0") ","
     A("broadcast", "f32[8]", "2", "'dimensions':[]") "," N("select", "f32[8]", "0,1,3"),
     "8 | (0) (0) -> () (0) (0) | {1}"},
    {"add of a literal is not linear",
     P("f32[8]") "," C("f32[]", "1") "," A("broadcast", "f32[8]", "1", "'dimensions':[]")
     "," N("add", "f32[8]", "0,2"),
     "8 | (0) -> () (0) (0) |"},
    {"multiply by a literal is",
     P("f32[8]") "," C("f32[]", "3") "," A("broadcast", "f32[8]", "1", "'dimensions':[]")
     "," N("multiply", "f32[8]", "0,2"),
     "8 | (0) -> () (0) (0) | {0}"},
    {"a sum demands the other side: a + w * c",
     P("f32[8]") "," P("f32[8]") "," C("f32[]", "3") ","
     A("broadcast", "f32[8]", "2", "'dimensions':[]") "," N("multiply", "f32[8]", "1,3") ","
     N("add", "f32[8]", "0,4"),
     "8 | (0) (0) -> () (0) (0) (0) | {0,1}"},
    {"all results must be linear: a + b, exp a",
     P("f32[8]") "," P("f32[8]") "," N("add", "f32[8]", "0,1") ","
     N("exponential", "f32[8]", "2") "," N("add", "f32[8]", "2,3"),
     "8 | (0) (0) -> (0) (0) (0) |"},
    {"broadcast of a vector in a chain",
     P("f32[8,6]") "," P("f32[6]") "," A("broadcast", "f32[8,6]", "1", "'dimensions':[1]") ","
     N("add", "f32[8,6]", "0,2"),
     "8 6 | (1) (0 1) -> (0 1) (0 1) | {0,1}"},
    {"two views of one vector",
     P("f32[6]") "," A("broadcast", "f32[6,6]", "0", "'dimensions':[0]") ","
     A("broadcast", "f32[6,6]", "0", "'dimensions':[1]") "," N("add", "f32[6,6]", "1,2"),
     "6 6 | (0) (1) -> (0 1) (0 1) (0 1) | {0,1}"},
    {"transpose",
     P("f32[8,6]") "," A("transpose", "f32[6,8]", "0", "'dimensions':[1,0]"),
     "6 8 | (1 0) -> (0 1) | {0}"},
    {"slice", P("f32[8,6]") "," A("slice", "f32[8,3]", "0", "'slice':'{[0:8],[1:4]}'"),
     "8 3w 6w | (0 2) -> (0 1) | {0}"},
    {"pad",
     P("f32[8,6]") "," P("f32[]") "," A("pad", "f32[8,9]", "0,1", "'padding':'0_0x1_2'"),
     "8 9w 6w | (0 2) () -> (0 1) | {0,1}"},
    {"reverse", P("f32[8,6]") "," A("reverse", "f32[8,6]", "0", "'dimensions':[1]"),
     "8 6w 6w | (0 2) -> (0 1) | {0}"},
    {"concatenate",
     P("f32[8,6]") "," P("f32[8,2]") "," A("concatenate", "f32[8,14]", "0,1,0", "'dimensions':[1]"),
     "8 14w 6w 2w | (0 2) (0 3) -> (0 1) | {0,1}"},
    {"dot",
     P("f32[8,4,16]") "," P("f32[8,16,6]") ","
     A("dot", "f32[8,4,6]", "0,1",
       "'lhs_batch_dims':[0],'rhs_batch_dims':[0],'lhs_contracting_dims':[2],"
       "'rhs_contracting_dims':[1]"),
     "8 4 6 16:sum | (0 1 3) (0 3 2) -> (0 1 2 P3) | {0} {1}"},
    {"dot of a tensor with itself",
     P("f32[16]") ","
     A("dot", "f32[]", "0,0", "'lhs_contracting_dims':[0],'rhs_contracting_dims':[0]"),
     "16:sum | (0) -> ( P0) |"},
    {"convolution",
     P("f32[8,10,10,4]") "," P("f32[3,3,4,6]") ","
     A("convolution", "f32[8,10,10,6]", "0,1",
       "'window':'{size=3x3 pad=1_1x1_1}','dim_labels':'b01f_01io->b01f'"),
     "8 10w 10w 6 10w 10w 4:sum 3w 3w | (0 4 5 6) (7 8 6 3) -> (0 1 2 3 P6) | {0} {1}"},
    {"convolution 1x1: the image splits",
     P("f32[8,10,5,4]") "," P("f32[1,1,4,6]") ","
     A("convolution", "f32[8,10,5,6]", "0,1",
       "'window':'{size=1x1}','dim_labels':'b01f_01io->b01f'"),
     "8 10 5 6 4:sum | (0 1 2 4) (- - 4 3) -> (0 1 2 3 P4) | {0} {1}"},
    {"convolution with feature groups",
     P("f32[8,10,12]") "," P("f32[3,4,6]") ","
     A("convolution", "f32[8,8,6]", "0,1",
       "'window':'{size=3}','dim_labels':'b0f_0io->b0f','feature_group_count':3"),
     "8 8w 3 2 10w 4:sum 3w | (0 4 2.5) (6 5 2.3) -> (0 1 2.3 P5) | {0} {1}"},
    {"convolution with batch groups",
     P("f32[12,10,4]") "," P("f32[3,4,6]") ","
     A("convolution", "f32[4,8,6]", "0,1",
       "'window':'{size=3}','dim_labels':'b0f_0io->b0f','batch_group_count':3"),
     "4 8w 3 2 10w 4:sum 3w | (2.0 4 5) (6 5 2.3) -> (0 1 2.3 P5) | {0} {1}"},
    {"reduce, sum",
     P("f32[8,6,5]") "," P("f32[]") ","
     A("reduce", "f32[8,5]", "0,1", "'dimensions':[1],'to_apply':0"),
     "8 5 6:sum | (0 2 1) ( P2) -> (0 1 P2) | {0,1}"},
    {"reduce, max",
     P("f32[8,6]") "," P("f32[]") ","
     A("reduce", "f32[8]", "0,1", "'dimensions':[1],'to_apply':1"),
     "8 6:max | (0 1) ( P1) -> (0 P1) |"},
    {"reduce, custom",
     P("f32[8,6]") "," P("f32[]") ","
     A("reduce", "f32[8]", "0,1", "'dimensions':[1],'to_apply':5"),
     "8 6w | (0 1) () -> (0) |"},
    {"reduce of two, with its parts",
     P("f32[8,6]") "," P("s32[8,6]") "," P("f32[]") "," P("s32[]") ","
     A("reduce", "(f32[8], s32[8])", "0,1,2,3", "'dimensions':[1],'to_apply':5") ","
     A("get-tuple-element", "s32[8]", "4", "'index':1"),
     "8 6w | (0 1) (0 1) () () -> (0) (0) |"},
    {"reduce-window",
     P("f32[8,6,6]") "," P("f32[]") ","
     A("reduce-window", "f32[8,3,6]", "0,1",
       "'window':'{size=1x2x1 stride=1x2x1}','to_apply':0"),
     "8 3w 6 6w | (0 3 2) () -> (0 1 2) | {0,1}"},
    {"select-and-scatter",
     P("f32[8,6]") "," P("f32[8,3]") "," P("f32[]") ","
     A("select-and-scatter", "f32[8,6]", "0,1,2",
       "'window':'{size=1x2 stride=1x2}','select':5,'scatter':0"),
     "8 6w 6w 3w | (0 2) (0 3) () -> (0 1) |"},
    {"sort of two",
     P("f32[8,6]") "," P("s32[8,6]") ","
     A("sort", "(f32[8,6], s32[8,6])", "0,1", "'dimensions':[1],'to_apply':5") ","
     A("get-tuple-element", "s32[8,6]", "2", "'index':1"),
     "8 6w | (0 1) (0 1) -> (0 1) (0 1) |"},
    {"topk",
     P("f32[8,6]") ","
     A("topk", "(f32[8,2], s32[8,2])", "0", "'k':2,'largest':true") ","
     A("get-tuple-element", "f32[8,2]", "1", "'index':0"),
     "8 2w 6w | (0 2) -> (0 1) (0 1) |"},
    {"gather of rows",
     P("f32[50,16]") "," P("s32[8,4,1]") ","
     A("gather", "f32[8,4,16]", "0,1",
       "'offset_dims':[2],'collapsed_slice_dims':[0],'start_index_map':[0],"
       "'index_vector_dim':2,'slice_sizes':[1,16]"),
     "8 4 16 50?sum | (3 2) (0 1 -) -> (0 1 2 P3) | {0}"},
    {"gather with two indexed dims: neither splits",
     P("f32[50,16]") "," P("s32[8,2]") ","
     A("gather", "f32[8]", "0,1",
       "'offset_dims':[],'collapsed_slice_dims':[0,1],'start_index_map':[0,1],"
       "'index_vector_dim':1,'slice_sizes':[1,1]"),
     "8 50w 16w 2w | (1 2) (0 3) -> (0) | {0}"},
    {"gather with batching dims",
     P("f32[8,50,16]") "," P("s32[8,4,1]") ","
     A("gather", "f32[8,4,16]", "0,1",
       "'offset_dims':[2],'collapsed_slice_dims':[1],'start_index_map':[1],"
       "'operand_batching_dims':[0],'start_indices_batching_dims':[0],"
       "'index_vector_dim':2,'slice_sizes':[1,1,16]"),
     "8 4 16 50?sum | (0 3 2) (0 1 -) -> (0 1 2 P3) | {0}"},
    {"gather of a window",
     P("f32[50,16]") "," P("s32[8,1]") ","
     A("gather", "f32[8,3,16]", "0,1",
       "'offset_dims':[1,2],'collapsed_slice_dims':[],'start_index_map':[0],"
       "'index_vector_dim':1,'slice_sizes':[3,16]"),
     "8 3w 16 50w | (3 2) (0 -) -> (0 1 2) | {0}"},
    {"scatter-add of rows",
     P("f32[50,16]") "," P("s32[8,4,1]") "," P("f32[8,4,16]") ","
     A("scatter", "f32[50,16]", "0,1,2",
       "'update_window_dims':[2],'inserted_window_dims':[0],"
       "'scatter_dims_to_operand_dims':[0],'index_vector_dim':2,'to_apply':0"),
     "50? 16 8:sum 4:sum | (0 1 P2 P3) (2 3 -) (2 3 1) -> (0 1 P2 P3) | {0,2}"},
    {"scatter that replaces",
     P("f32[50,16]") "," P("s32[8,1]") "," P("f32[8,16]") ","
     A("scatter", "f32[50,16]", "0,1,2",
       "'update_window_dims':[1],'inserted_window_dims':[0],"
       "'scatter_dims_to_operand_dims':[0],'index_vector_dim':1,'to_apply':4"),
     "50? 16 8w | (0 1) (2 -) (2 1) -> (0 1) |"},
    {"scatter with batching dims",
     P("f32[8,50]") "," P("s32[8,4,1]") "," P("f32[8,4]") ","
     A("scatter", "f32[8,50]", "0,1,2",
       "'update_window_dims':[],'inserted_window_dims':[1],"
       "'scatter_dims_to_operand_dims':[1],'input_batching_dims':[0],"
       "'scatter_indices_batching_dims':[0],'index_vector_dim':2,'to_apply':0"),
     "8 50? 4:sum | (0 1 P2) (0 2 -) (0 2) -> (0 1 P2) | {0,2}"},
    {"dynamic-slice",
     P("f32[8,6]") "," P("s32[]") ","
     A("dynamic-slice", "f32[8,2]", "0,1,1", "'dynamic_slice_sizes':[8,2]"),
     "8 2w 6w | (0 2) () -> (0 1) | {0}"},
    {"dynamic-update-slice",
     P("f32[8,6]") "," P("f32[8,2]") "," P("s32[]") ","
     N("dynamic-update-slice", "f32[8,6]", "0,1,2,2"),
     "8 6w 2w | (0 1) (0 2) () -> (0 1) | {0,1}"},
    {"reshape merges", P("f32[8,6,5]") "," N("reshape", "f32[48,5]", "0"),
     "8 6 5 | (0 1 2) -> (0.1 2) | {0}"},
    {"reshape cuts", P("f32[48,5]") "," N("reshape", "f32[8,1,6,5]", "0"),
     "8 6 5 | (0.1 2) -> (0 - 1 2) | {0}"},
    {"reshape regroups", P("f32[4,6]") "," N("reshape", "f32[8,3]", "0"),
     "4 2 3 | (0 1.2) -> (0.1 2) | {0}"},
    {"reshape with a common divisor only", P("f32[6,4]") "," N("reshape", "f32[8,3]", "0"),
     "2 4w 3w 3w 4w | (0.3 4) -> (0.1 2) | {0}"},
    {"reshape that fits behind",
     P("f32[2,9,4]") "," N("reshape", "f32[3,6,4]", "0"),
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

int main(void)
{
    rules();
    ap_arena_free(&arena);
    return tap_done();
}
