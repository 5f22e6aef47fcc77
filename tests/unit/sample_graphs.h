/* Small graphs as documents, which together hold most operators. For tests. */
#ifndef AP_TEST_SAMPLE_GRAPHS_H
#define AP_TEST_SAMPLE_GRAPHS_H

#include <string.h>

#include "plan/plan.h"

struct sample_graph {
    const char *name, *json;
};

/* clang-format off */
#define DOC(nodes, results)                                                          \
    "{\"autopar\":1,\"graph\":{\"name\":\"t\",\"nodes\":[" nodes                     \
    "],\"results\":[" results "],\"reducers\":[{\"name\":\"add\",\"kind\":\"sum\"}," \
    "{\"name\":\"max\",\"kind\":\"max\"}]}}"
#define PARAM(i, role, shape)                                                      \
    "{\"op\":\"parameter\",\"name\":\"p" #i "\",\"param\":" #i ",\"role\":\"" role \
    "\",\"shape\":\"" shape "\"}"
#define NODE(op, name, in, shape, attrs)                                           \
    ",{\"op\":\"" op "\",\"name\":\"" name "\",\"in\":[" in "],\"shape\":\"" shape \
    "\"" attrs "}"
#define BACK ",\"phase\":\"backward\""
#define UPD  ",\"phase\":\"update\""

static const struct sample_graph sample_graphs[] = {
    {"two layers, a loss, and a step of gradient descent",
     DOC(PARAM(0, "weight", "f32[10,16]") "," PARAM(1, "weight", "f32[16,6]") "," PARAM(
             2, "input", "f32[12,10]")
             NODE("dot", "h", "2,0", "f32[12,16]",
                  ",\"lhs_contracting_dims\":[1],\"rhs_contracting_dims\":[0]")
                 NODE("constant", "zero", "", "f32[]", ",\"value\":0") NODE(
                     "broadcast", "zeros", "4", "f32[12,16]",
                     ",\"dimensions\":[]") NODE("maximum", "r", "3,5", "f32[12,16]", "")
                     NODE("dot", "y", "6,1", "f32[12,6]",
                          ",\"lhs_contracting_dims\":[1],\"rhs_contracting_dims\":[0]")
                         NODE("multiply", "yy", "7,7", "f32[12,6]",
                              "") NODE("constant", "zero.1", "", "f32[]", ",\"value\":0")
                             NODE("reduce", "loss", "8,9", "f32[]",
                                  ",\"dimensions\":[0,1],\"to_apply\":0")
                                 NODE("dot", "g1", "6,7", "f32[16,6]",
                                      ",\"lhs_contracting_dims\":[0],\"rhs_contracting_"
                                      "dims\":[0]" BACK)
                                     NODE("dot", "gr", "7,1", "f32[12,16]",
                                          ",\"lhs_contracting_dims\":[1],\"rhs_"
                                          "contracting_dims\":[1]" BACK)
                                         NODE("compare", "c", "3,5", "pred[12,16]",
                                              ",\"direction\":\"GT\"" BACK)
                                             NODE("select", "gh", "13,12,5", "f32[12,16]",
                                                  BACK)
                                                 NODE("dot", "g0", "2,14", "f32[10,16]",
                                                      ",\"lhs_contracting_dims\":[0],"
                                                      "\"rhs_contracting_dims\":[0]" BACK)
                                                     NODE("subtract", "w0", "0,15",
                                                          "f32[10,16]", UPD)
                                                         NODE("subtract", "w1", "1,11",
                                                              "f32[16,6]", UPD),
         "{\"node\":10,\"role\":\"loss\"},{\"node\":16,\"role\":\"weight\",\"alias\":0},"
         "{\"node\":17,\"role\":\"weight\",\"alias\":1}")},
    {"lookups, moves, reductions",
     DOC(PARAM(0, "weight", "f32[17,8]") "," PARAM(
             1, "input", "s32[6,4]") NODE("reshape", "i3", "1", "s32[6,4,1]",
                                          "") NODE("gather", "e", "0,2", "f32[6,4,8]",
                                                   ",\"offset_dims\":[2],\"collapsed_"
                                                   "slice_dims\":[0],"
                                                   "\"start_index_map\":[0],\"index_"
                                                   "vector_dim\":2,\"slice_sizes\":[1,"
                                                   "8]")
             NODE(
                 "transpose", "t", "3", "f32[4,6,8]",
                 ",\"dimensions\":[1,0,2]") NODE("reshape", "flat", "4", "f32[24,8]",
                                                 "") NODE("slice", "s", "5", "f32[24,3]",
                                                          ",\"slice\":\"{[0:24], "
                                                          "[2:5]}\"") NODE("constant",
                                                                           "z", "",
                                                                           "f32[]",
                                                                           ",\"value\":0")
                 NODE("pad", "pd", "6,7", "f32[24,8]", ",\"padding\":\"0_0x2_3\"") NODE(
                     "concatenate", "cc",
                     "8,5", "f32[24,16]",
                     ",\"dimensions\":[1]") NODE("iota", "io", "", "f32[24,16]",
                                                 ",\"iota_dimension\":0")
                     NODE("constant", "tab", "", "f32[3]", ",\"value\":[1,2,3]") NODE(
                         "broadcast",
                         "tb", "11",
                         "f32[24,3]",
                         ",\"dimensions\":[1]") NODE("add", "ts", "12,6", "f32[24,3]", "")
                         NODE("add", "ci", "9,10", "f32[24,16]",
                              "") NODE("constant", "ninf", "", "f32[]",
                                       ",\"value\":\"-inf\"")
                             NODE("reduce", "mx", "14,15", "f32[24]",
                                  ",\"dimensions\":[1],"
                                  "\"to_apply\":1")
                                 NODE("reverse", "rv", "16", "f32[24]",
                                      ",\"dimensions\":[0]")
                                     NODE("reduce", "sm", "13,7", "f32[3]",
                                          ",\"dimensions\":[0],\"to_apply\":0")
                                         NODE(
                                             "reshape", "g",
                                             "8",
                                             "f32[6,4,8]",
                                             BACK) NODE("broadcast", "zz", "7",
                                                        "f32[17,8]",
                                                        ",\"dimensions\":[]" BACK)
                                             NODE(
                                                 "scatter", "ge",
                                                 "20,2,19", "f32[17,8]",
                                                 ",\"update_window_dims\":[2],\"inserted_"
                                                 "window_dims\":[0],"
                                                 "\"scatter_dims_to_operand_dims\":[0],"
                                                 "\"index_vector_dim\":2,"
                                                 "\"to_apply\":0" BACK)
                                                 NODE("add", "w", "0,21", "f32[17,8]",
                                                      UPD) NODE("constant", "o", "",
                                                                "s32[]", ",\"value\":1")
                                                     NODE("dynamic-slice", "ds",
                                                          "14,23,23", "f32[24,4]",
                                                          ",\"dynamic_slice_sizes\":[24,"
                                                          "4]")
                                                         NODE("dynamic-update-slice",
                                                              "du", "14,24,23,23",
                                                              "f32[24,16]", ""),
         "{\"node\":17,\"role\":\"aux\"},{\"node\":18,\"role\":\"loss\"},"
         "{\"node\":22,\"role\":\"weight\",\"alias\":0},{\"node\":25,\"role\":\"aux\"}")},
    {"convolutions with groups",
     DOC(PARAM(0, "weight", "f32[3,3,2,12]") "," PARAM(1, "input", "f32[4,6,6,8]") NODE(
             "convolution", "cv", "1,0", "f32[4,6,6,12]",
             ",\"window\":\"{size=3x3 pad=1_1x1_1}\","
             "\"dim_labels\":\"b01f_01io->b01f\",\"feature_group_count\":4")
             NODE("constant", "z", "",
                  "f32[]", ",\"value\":0") NODE("reduce", "sm", "2,3", "f32[12]",
                                                ",\"dimensions\":[0,1,2],\"to_apply\":0")
                 NODE("convolution", "gw", "1,2", "f32[3,3,2,12]",
                      ",\"window\":\"{size=6x6 pad=1_1x1_1}\","
                      "\"dim_labels\":\"f01b_i01o->01bf\",\"batch_group_count\":4" BACK)
                     NODE("add", "w", "0,5", "f32[3,3,2,12]", UPD) NODE(
                         "reduce-window", "rw", "2,3", "f32[4,3,3,12]",
                         ",\"window\":\"{size=1x2x2x1 stride=1x2x2x1}\",\"to_apply\":0"),
         "{\"node\":4,\"role\":\"loss\"},{\"node\":6,\"role\":\"weight\",\"alias\":0},"
         "{\"node\":7,\"role\":\"aux\"}")},
};
/* clang-format on */
#define N_SAMPLE_GRAPHS ((int)(sizeof(sample_graphs) / sizeof(sample_graphs[0])))

/* A sample graph, grouped, with its nests. */
struct sample {
    struct ap_graph g;
    struct ap_nests nests;
};

static inline int load_sample(struct ap_arena *arena, const char *json, struct sample *s,
                              struct ap_err *err)
{
    struct ap_doc doc;
    if (ap_doc_parse(arena, "sample", json, strlen(json), &doc, err) ||
        ap_doc_graph(arena, &doc, &s->g, err))
        return -1;
    ap_group(arena, &s->g);
    return ap_nests_build(arena, &s->g, &s->nests, err);
}

static inline int make_cost(struct ap_arena *arena, enum ap_cost_variant variant,
                            const struct ap_mesh *mesh, struct ap_cost *cost,
                            struct ap_err *err)
{
    struct ap_cluster cluster;
    struct ap_doc doc;
    const char *empty = "{\"autopar\":1}";
    return ap_doc_parse(arena, "empty", empty, strlen(empty), &doc, err) ||
           ap_cluster_get(arena, &doc, NULL, ap_mesh_devices(mesh), &cluster, err) ||
           ap_cost_init(arena, cost, variant, &cluster, mesh, err);
}

#endif
