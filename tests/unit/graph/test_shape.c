/* Shape checks: for every operator a node that is right, and what is refused. */
#include "doc/doc.h"

#include <string.h>

#include "tap.h"

#define REDUCERS                                                                         \
    "[{\"name\":\"add\",\"kind\":\"sum\"},"                                              \
    "{\"name\":\"lt\",\"nodes\":[{\"op\":\"parameter\",\"shape\":\"f32[]\",\"param\":0}" \
    ","                                                                                  \
    "{\"op\":\"parameter\",\"shape\":\"f32[]\",\"param\":1},"                            \
    "{\"op\":\"compare\",\"in\":[0,1],\"shape\":\"pred[]\",\"direction\":\"LT\"}],"      \
    "\"results\":[2]},"                                                                  \
    "{\"name\":\"argmax\",\"nodes\":[{\"op\":\"parameter\",\"shape\":\"f32[]\","         \
    "\"param\":0},"                                                                      \
    "{\"op\":\"parameter\",\"shape\":\"s32[]\",\"param\":1},"                            \
    "{\"op\":\"parameter\",\"shape\":\"f32[]\",\"param\":2},"                            \
    "{\"op\":\"parameter\",\"shape\":\"s32[]\",\"param\":3},"                            \
    "{\"op\":\"maximum\",\"in\":[0,2],\"shape\":\"f32[]\"},"                             \
    "{\"op\":\"maximum\",\"in\":[1,3],\"shape\":\"s32[]\"}],\"results\":[4,5]}]"

/*
 * Checks a graph whose parameters have the given shapes (separated by blanks) and whose
 * last node is made of rest; ' stands for ".
 */
static int check(const char *params, const char *rest, struct ap_err *err)
{
    struct ap_arena arena = {0};
    struct ap_buf text = {0};
    struct ap_graph g;
    int n = 0, rc = -1;

    ap_buf_puts(&text, "{\"reducers\":" REDUCERS ",\"results\":[],\"nodes\":[");
    for (const char *p = params; *p; n++) {
        int len = (int)strcspn(p, " ");
        ap_buf_printf(&text, "{\"op\":\"parameter\",\"param\":%d,\"shape\":\"%.*s\"},", n,
                      len, p);
        p += len + (p[len] == ' ');
    }
    ap_buf_puts(&text, "{\"name\":\"it\",");
    for (const char *p = rest; *p; p++)
        ap_buf_putc(&text, *p == '\'' ? '"' : *p);
    ap_buf_puts(&text, "}]}");
    json_t *o = json_loadb(text.data, text.len, 0, NULL);
    if (!o)
        ap_err_set(err, "the test is broken: %s", text.data);
    else
        rc = ap_graph_from_json(&arena, o, NULL, &g, err);
    json_decref(o);
    ap_buf_free(&text);
    ap_arena_free(&arena);
    return rc;
}

static void good(const char *params, const char *rest)
{
    struct ap_err err = {""};
    CHECK(!check(params, rest, &err), "%s | %s%s%s", params, rest, err.msg[0] ? ": " : "",
          err.msg);
}

static void bad(const char *params, const char *rest, const char *why)
{
    struct ap_err err = {""};
    CHECK(check(params, rest, &err) && strstr(err.msg, why) && strstr(err.msg, "/nodes/"),
          "%s | %s: %s", params, rest, err.msg);
}

static void test_elementwise(void)
{
    good("f32[2,3] f32[2,3]", "'op':'add','in':[0,1],'shape':'f32[2,3]'");
    bad("f32[2,3] f32[3,2]", "'op':'add','in':[0,1],'shape':'f32[2,3]'",
        "operands 0 and 1 of add differ: f32[2,3] and f32[3,2]");
    bad("f32[2,3] f32[]", "'op':'add','in':[0,1],'shape':'f32[2,3]'", "differ");
    bad("f32[2] s32[2]", "'op':'add','in':[0,1],'shape':'f32[2]'", "differ");
    bad("f32[2]", "'op':'exponential','in':[0],'shape':'f32[3]'",
        "exponential makes f32[2], not f32[3]");
    bad("s32[2]", "'op':'exponential','in':[0],'shape':'s32[2]'", "does not work on s32");
    bad("f32[2]", "'op':'not','in':[0],'shape':'f32[2]'", "does not work on f32");
    bad("f32[2] f32[2]", "'op':'shift-left','in':[0,1],'shape':'f32[2]'",
        "does not work");
    bad("f32[2]", "'op':'add','in':[0],'shape':'f32[2]'",
        "/in: add needs 2 operands, got 1");
    good("c64[2]", "'op':'abs','in':[0],'shape':'f32[2]'");
    good("f32[2]", "'op':'is-finite','in':[0],'shape':'pred[2]'");
    good("f32[2]", "'op':'convert','in':[0],'shape':'bf16[2]'");
    bad("f32[2]", "'op':'convert','in':[0],'shape':'bf16[3]'", "makes bf16[2]");
    good("f32[2]", "'op':'reduce-precision','in':[0],'shape':'f32[2]','exponent_bits':8,"
                   "'mantissa_bits':7");
    bad("f32[2]", "'op':'reduce-precision','in':[0],'shape':'f32[2]','exponent_bits':8",
        "needs the attribute \"mantissa_bits\"");
    good("f32[2] f32[2]", "'op':'compare','in':[0,1],'shape':'pred[2]','direction':'LT'");
    bad("f32[2] f32[2]", "'op':'compare','in':[0,1],'shape':'f32[2]','direction':'LT'",
        "makes pred[2]");
    bad("f32[2] f32[2]", "'op':'compare','in':[0,1],'shape':'pred[2]','directoin':'LT'",
        "needs the attribute \"direction\"");
    good("pred[2] f32[2] f32[2]", "'op':'select','in':[0,1,2],'shape':'f32[2]'");
    good("pred[] f32[2] f32[2]", "'op':'select','in':[0,1,2],'shape':'f32[2]'");
    bad("s32[2] f32[2] f32[2]", "'op':'select','in':[0,1,2],'shape':'f32[2]'", "pred");
    bad("pred[3] f32[2] f32[2]", "'op':'select','in':[0,1,2],'shape':'f32[2]'", "differ");
    bad("pred[2] f32[2] f32[]", "'op':'select','in':[0,1,2],'shape':'f32[2]'", "differ");
    good("f32[] f32[2] f32[]", "'op':'clamp','in':[0,1,2],'shape':'f32[2]'");
    good("f32[2] f32[2] f32[]", "'op':'clamp','in':[0,1,2],'shape':'f32[2]'");
    bad("s32[] f32[2] f32[]", "'op':'clamp','in':[0,1,2],'shape':'f32[2]'", "scalar");
    bad("f32[] f32[2] f32[3]", "'op':'clamp','in':[0,1,2],'shape':'f32[2]'", "differ");
}

static void test_moves(void)
{
    good("f32[3]", "'op':'broadcast','in':[0],'shape':'f32[2,3]','dimensions':[1]");
    good("f32[]", "'op':'broadcast','in':[0],'shape':'f32[2,3]'");
    bad("f32[3]", "'op':'broadcast','in':[0],'shape':'f32[2,3]','dimensions':[0]",
        "broadcast of dimension 0: 3 elements become 2");
    bad("f32[3]", "'op':'broadcast','in':[0],'shape':'f32[2,3]','dimensions':[2]",
        "rank 2");
    bad("f32[3,3]", "'op':'broadcast','in':[0],'shape':'f32[3,3]','dimensions':[1,1]",
        "twice");
    bad("f32[3]", "'op':'broadcast','in':[0],'shape':'s32[2,3]','dimensions':[1]",
        "makes f32");
    bad("f32[3]", "'op':'broadcast','in':[0],'shape':'(f32[2,3])','dimensions':[1]",
        "of rank 0");
    good("f32[2,3] f32[2,4]",
         "'op':'concatenate','in':[0,1],'shape':'f32[2,7]','dimensions':[1]");
    bad("f32[2,3] f32[2,4]",
        "'op':'concatenate','in':[0,1],'shape':'f32[2,6]','dimensions':[1]", "f32[2,7]");
    bad("f32[2,3] f32[3,4]",
        "'op':'concatenate','in':[0,1],'shape':'f32[2,7]','dimensions':[1]", "differ");
    bad("", "'op':'concatenate','in':[],'shape':'f32[2,7]','dimensions':[1]", "without");
    good("f32[4,3] f32[]",
         "'op':'pad','in':[0,1],'shape':'f32[10,1]','padding':'1_2_1x-1_-1'");
    bad("f32[4,3] f32[]",
        "'op':'pad','in':[0,1],'shape':'f32[9,1]','padding':'1_2_1x-1_-1'",
        "makes f32[10,1]");
    bad("f32[4] f32[]", "'op':'pad','in':[0,1],'shape':'f32[0]','padding':'-3_-3'",
        "no valid");
    bad("f32[4] f32[1]", "'op':'pad','in':[0,1],'shape':'f32[4]','padding':'0_0'",
        "scalar");
    bad("f32[4] f32[]", "'op':'pad','in':[0,1],'shape':'f32[4]','padding':'0_0x0_0'",
        "padding has 2 entries, pad needs 1");
    bad("f32[4] f32[]",
        "'op':'pad','in':[0,1],'shape':'f32[4]','padding':'9223372036854775807_1'",
        "valid");
    good("f32[4,6]", "'op':'reshape','in':[0],'shape':'f32[2,12,1]'");
    bad("f32[4,6]", "'op':'reshape','in':[0],'shape':'f32[5,5]'",
        "reshape of 24 elements to 25");
    good("f32[4,6]", "'op':'reverse','in':[0],'shape':'f32[4,6]','dimensions':[1]");
    bad("f32[4,6]", "'op':'reverse','in':[0],'shape':'f32[4,6]','dimensions':[2]",
        "rank 2");
    good("f32[8,5]",
         "'op':'slice','in':[0],'shape':'f32[3,5]','slice':'{[1:7:2],[0:5]}'");
    bad("f32[8,5]", "'op':'slice','in':[0],'shape':'f32[3,5]','slice':'{[1:9:2],[0:5]}'",
        "slice [1:9:2] of dimension 0 with 8 elements");
    bad("f32[8]", "'op':'slice','in':[0],'shape':'f32[4]','slice':'{[0:8:0]}'",
        "[0:8:0]");
    good("f32[2,3,4]",
         "'op':'transpose','in':[0],'shape':'f32[4,2,3]','dimensions':[2,0,1]");
    bad("f32[2,3,4]",
        "'op':'transpose','in':[0],'shape':'f32[3,4,2]','dimensions':[2,0,1]",
        "makes f32[4,2,3]");
    bad("f32[2,3]", "'op':'transpose','in':[0],'shape':'f32[3,2]'",
        "dimensions has 0 entries, transpose needs 2");
    good("", "'op':'iota','shape':'s32[2,3]','iota_dimension':1");
    bad("", "'op':'iota','shape':'s32[2,3]','iota_dimension':2", "rank 2");
    bad("", "'op':'iota','shape':'s32[2,3]'", "needs the attribute");
    bad("", "'op':'constant','shape':'s32[2]'", "needs the attribute \"value\"");
    bad("", "'op':'parameter','shape':'(f32[2])','param':0", "no tuple");
    bad("", "'op':'iota','shape':'s32[4000000000,4000000000]','iota_dimension':0",
        "2^63");
}

#define CONV(out, more) "'op':'convolution','in':[0,1],'shape':'" out "'," more

static void test_heavy(void)
{
    good("f32[8,4] f32[4,5]", "'op':'dot','in':[0,1],'shape':'f32[8,5]',"
                              "'lhs_contracting_dims':[1],'rhs_contracting_dims':[0]");
    bad("f32[8,4] f32[5,3]",
        "'op':'dot','in':[0,1],'shape':'f32[8,3]','lhs_contracting_dims':[1],"
        "'rhs_contracting_dims':[0]",
        "/nodes/2 (it): dot contracts 4 with 5 elements (lhs dimension 1, rhs dimension "
        "0)");
    good("bf16[2,3,4] bf16[2,5,4]",
         "'op':'dot','in':[0,1],'shape':'f32[2,3,5]','lhs_contracting_dims':[2],"
         "'rhs_contracting_dims':[2],'lhs_batch_dims':[0],'rhs_batch_dims':[0]");
    bad("f32[2,3,4] f32[2,5,4]",
        "'op':'dot','in':[0,1],'shape':'f32[2,3,5]','lhs_contracting_dims':[2],"
        "'rhs_contracting_dims':[2],'lhs_batch_dims':[0]",
        "dot batches 1 dimensions of its lhs with 0");
    bad("f32[2,2] f32[2,2]",
        "'op':'dot','in':[0,1],'shape':'f32[2]','lhs_contracting_dims':[0],"
        "'rhs_contracting_dims':[0],'lhs_batch_dims':[0],'rhs_batch_dims':[0]",
        "contracts a batch dimension");
    bad("f32[2,2] s32[2,2]",
        "'op':'dot','in':[0,1],'shape':'f32[2,2]',"
        "'lhs_contracting_dims':[1],'rhs_contracting_dims':[0]",
        "dot of f32 and s32");
    good("f32[2] f32[3]", "'op':'dot','in':[0,1],'shape':'f32[2,3]'");
    bad("f32[1,1,1,1,1,1,1] f32[1,1,1,1,1,1]", "'op':'dot','in':[0,1],'shape':'f32[1]'",
        "13 dimensions");
    good("f32[2,8,8,6] f32[3,3,6,5]",
         CONV("f32[2,4,4,5]", "'window':'{size=3x3 stride=2x2 pad=0_1x0_1}',"
                              "'dim_labels':'b01f_01io->b01f'"));
    good("f32[2,8,6] f32[3,2,9]", CONV("f32[2,9,4]", "'feature_group_count':3,"
                                                     "'window':'{size=3 rhs_dilate=2}',"
                                                     "'dim_labels':'b0f_0io->bf0'"));
    good("f32[8,4,6] f32[3,6,8]",
         CONV("f32[4,9,8]", "'batch_group_count':2,"
                            "'window':'{size=3 pad=2_2 lhs_dilate=2}',"
                            "'dim_labels':'b0f_0io->b0f'"));
    bad("f32[2,8,6] f32[3,2,9]",
        CONV("f32[2,9,4]", "'window':'{size=3}',"
                           "'dim_labels':'b0f_0io->bf0'"),
        "6 features in 1 groups with a kernel of 2");
    bad("f32[2,8,6] f32[3,2,8]",
        CONV("f32[2,8,4]", "'feature_group_count':3,"
                           "'window':'{size=3}','dim_labels':'b0f_0io->bf0'"),
        "group counts do not divide 8");
    bad("f32[2,8,6] f32[3,6,9]",
        CONV("f32[2,9,4]", "'window':'{size=2}',"
                           "'dim_labels':'b0f_0io->bf0'"),
        "window size 2 is not the kernel's 3");
    bad("f32[2,8,6] f32[3,6,9]",
        CONV("f32[2,9,4]", "'window':'{size=3 stride=0}',"
                           "'dim_labels':'b0f_0io->bf0'"),
        "must be > 0");
    bad("f32[2,8,6] f32[3,6,9]",
        CONV("f32[2,9,5]", "'window':'{size=3}',"
                           "'dim_labels':'b0f_0io->bf0'"),
        "makes f32[2,9,6]");
    bad("f32[2,8,6] f32[3,6,9]", CONV("f32[2,9,6]", "'window':'{size=3}'"),
        "needs dim_labels");
    bad("f32[2,8,6] f32[3,6,9]",
        CONV("f32[2,9,6]", "'window':'{size=3}',"
                           "'dim_labels':'b01f_01io->b01f'"),
        "dim_labels of rank 4");
    bad("f32[2,8,6] f32[3,6,9]",
        CONV("f32[2,9,6]", "'window':'{size=3 pad=-9_0}',"
                           "'dim_labels':'b0f_0io->bf0'"),
        "no valid size");
}

static void test_reduce(void)
{
    good("f32[2,3,4] f32[]",
         "'op':'reduce','in':[0,1],'shape':'f32[3]','dimensions':[0,2],'to_apply':0");
    bad("f32[2,3,4] f32[]",
        "'op':'reduce','in':[0,1],'shape':'f32[2]','dimensions':[0,2],'to_apply':0",
        "makes f32[3]");
    bad("f32[2] f32[]", "'op':'reduce','in':[0,1],'shape':'f32[]','dimensions':[0]",
        "needs to_apply");
    bad("f32[2] f32[]",
        "'op':'reduce','in':[0,1],'shape':'f32[]','dimensions':[0],'to_apply':3",
        "/to_apply: reducer 3 does not exist (the graph has 3 reducers)");
    bad("f32[2] f32[2]",
        "'op':'reduce','in':[0,1],'shape':'f32[]','dimensions':[0],'to_apply':0",
        "scalar");
    bad("f32[2]", "'op':'reduce','in':[0],'shape':'f32[]','dimensions':[0],'to_apply':0",
        "one initial value per operand");
    good("f32[2,3] s32[2,3] f32[] s32[]",
         "'op':'reduce','in':[0,1,2,3],"
         "'shape':'(f32[2], s32[2])','dimensions':[1],'to_apply':2");
    bad("f32[2,3] s32[2,3] f32[] s32[]",
        "'op':'reduce','in':[0,1,2,3],"
        "'shape':'(f32[2], f32[2])','dimensions':[1],'to_apply':2",
        "makes s32[2] as part 1");
    bad("f32[2,3] s32[2,3] f32[] s32[]",
        "'op':'reduce','in':[0,1,2,3],"
        "'shape':'(f32[2], s32[2])','dimensions':[1],'to_apply':0",
        "single values");
    bad("f32[2] f32[]",
        "'op':'reduce','in':[0,1],'shape':'f32[]','dimensions':[0],'to_apply':2",
        "reducer 2 has 2 results, not 1");
    good("f32[1,8,8] f32[]",
         "'op':'reduce-window','in':[0,1],'shape':'f32[1,4,4]','to_apply':0,"
         "'window':'{size=1x3x3 stride=1x2x2 pad=0_0x0_1x0_1}'");
    bad("f32[1,8,8] f32[]",
        "'op':'reduce-window','in':[0,1],'shape':'f32[1,4,4]',"
        "'to_apply':0,'window':'{size=3x3}'",
        "window has 2 entries");
    good("f32[8] f32[4] f32[]", "'op':'select-and-scatter','in':[0,1,2],'shape':'f32[8]',"
                                "'window':'{size=2 stride=2}','select':1,'scatter':0");
    bad("f32[8] f32[3] f32[]",
        "'op':'select-and-scatter','in':[0,1,2],'shape':'f32[8]',"
        "'window':'{size=2 stride=2}','select':1,'scatter':0",
        "needs f32[4] as operand 1");
    bad("f32[8] f32[4] f32[]",
        "'op':'select-and-scatter','in':[0,1,2],'shape':'f32[8]',"
        "'window':'{size=2 stride=2}','scatter':0",
        "needs select");
    good("f32[8,2]",
         "'op':'sort','in':[0],'shape':'f32[8,2]','dimensions':[0],'to_apply':1");
    good("f32[2,8]", "'op':'topk','in':[0],'shape':'(f32[2,3], s32[2,3])','k':3,"
                     "'largest':true");
    bad("f32[2,8]",
        "'op':'topk','in':[0],'shape':'(f32[2,9], s32[2,9])','k':9,"
        "'largest':true",
        "topk of 9 from 8");
    bad("f32[2,8]",
        "'op':'topk','in':[0],'shape':'(f32[2,3], f32[2,3])','k':3,"
        "'largest':true",
        "topk makes (f32[2,3], s32[2,3])");
    bad("f32[2]", "'op':'get-tuple-element','in':[0],'shape':'f32[2]','index':0",
        "not a tuple");
}

#define GATHER(out, more) \
    "'op':'gather','in':[0,1],'shape':'" out "','index_vector_dim':1," more
#define SCATTER(more) \
    "'op':'scatter','in':[0,1,2],'shape':'f32[9,4]','index_vector_dim':1," more

static void test_index(void)
{
    good("f32[9,4] s32[5,1]",
         GATHER("f32[5,4]", "'offset_dims':[1],'collapsed_slice_dims':[0],"
                            "'start_index_map':[0],'slice_sizes':[1,4]"));
    good("f32[9,4] s32[5]",
         GATHER("f32[5,4]", "'offset_dims':[1],'collapsed_slice_dims':[0],"
                            "'start_index_map':[0],'slice_sizes':[1,4]"));
    good("f32[7,9,4] s32[7,1]",
         GATHER("f32[7,4]",
                "'offset_dims':[1],'collapsed_slice_dims':[1],"
                "'start_index_map':[1],'slice_sizes':[1,1,4],"
                "'operand_batching_dims':[0],'start_indices_batching_dims':[0]"));
    bad("f32[7,9,4] s32[6,1]",
        GATHER("f32[6,4]",
               "'offset_dims':[1],'collapsed_slice_dims':[1],"
               "'start_index_map':[1],'slice_sizes':[1,1,4],"
               "'operand_batching_dims':[0],'start_indices_batching_dims':[0]"),
        "operand_batching_dims pairs 7 with 6");
    bad("f32[9,4] s32[5,1]",
        GATHER("f32[5,4]", "'offset_dims':[1],'collapsed_slice_dims':[0],"
                           "'start_index_map':[0],'slice_sizes':[1,5]"),
        "5 of dimension 1 with 4 elements");
    bad("f32[9,4] s32[5,1]",
        GATHER("f32[5,4]", "'offset_dims':[1],'collapsed_slice_dims':[0],"
                           "'start_index_map':[0],'slice_sizes':[2,4]"),
        "collapsed");
    bad("f32[9,4] s32[5,2]",
        GATHER("f32[5,4]", "'offset_dims':[1],'collapsed_slice_dims':[0],"
                           "'start_index_map':[0],'slice_sizes':[1,4]"),
        "start_index_map has 1 entries for index vectors of 2");
    bad("f32[9,4] f32[5,1]",
        GATHER("f32[5,4]", "'offset_dims':[1],'collapsed_slice_dims':[0],"
                           "'start_index_map':[0],'slice_sizes':[1,4]"),
        "indices of type f32");
    bad("f32[9,4] s32[5,1]",
        GATHER("f32[4,5]", "'offset_dims':[1],'collapsed_slice_dims':[0],"
                           "'start_index_map':[0],'slice_sizes':[1,4]"),
        "makes f32[5,4]");
    bad("f32[9,4] s32[5,1]",
        GATHER("f32[5,4]", "'offset_dims':[2],'collapsed_slice_dims':[0],"
                           "'start_index_map':[0],'slice_sizes':[1,4]"),
        "offset_dims: dimension 2");
    good("f32[9,4] s32[5,1] f32[5,4]",
         SCATTER("'update_window_dims':[1],'inserted_window_dims':[0],"
                 "'scatter_dims_to_operand_dims':[0],'to_apply':0"));
    bad("f32[9,4] s32[5,1] f32[6,4]",
        SCATTER("'update_window_dims':[1],'inserted_window_dims':[0],"
                "'scatter_dims_to_operand_dims':[0],'to_apply':0"),
        "dimension 0 of the updates has 6 elements, expected 5");
    bad("f32[9,4] s32[5,1] f32[5,7]",
        SCATTER("'update_window_dims':[1],'inserted_window_dims':[0],"
                "'scatter_dims_to_operand_dims':[0],'to_apply':0"),
        "at most 4");
    bad("f32[9,4] s32[5,1] f32[5]",
        SCATTER(
            "'inserted_window_dims':[0],'scatter_dims_to_operand_dims':[0],'to_apply':0"),
        "update_window_dims has 0 entries");
    bad("f32[9,4] s32[5,1] f32[5,4]",
        SCATTER("'update_window_dims':[1],'inserted_window_dims':[0],"
                "'scatter_dims_to_operand_dims':[0]"),
        "needs to_apply");
    good("f32[9,4] s32[] s32[]", "'op':'dynamic-slice','in':[0,1,2],'shape':'f32[2,4]',"
                                 "'dynamic_slice_sizes':[2,4]");
    bad("f32[9,4] s32[]",
        "'op':'dynamic-slice','in':[0,1],'shape':'f32[2,4]',"
        "'dynamic_slice_sizes':[2,4]",
        "one scalar index per dimension");
    bad("f32[9,4] s32[] f32[]",
        "'op':'dynamic-slice','in':[0,1,2],'shape':'f32[2,4]',"
        "'dynamic_slice_sizes':[2,4]",
        "integer scalar");
    bad("f32[9,4] s32[] s32[]",
        "'op':'dynamic-slice','in':[0,1,2],'shape':'f32[2,5]',"
        "'dynamic_slice_sizes':[2,5]",
        "5 of dimension 1 with 4");
    good("f32[9,4] f32[2,4] s32[] s32[]",
         "'op':'dynamic-update-slice','in':[0,1,2,3],'shape':'f32[9,4]'");
    bad("f32[9,4] f32[2,5] s32[] s32[]",
        "'op':'dynamic-update-slice','in':[0,1,2,3],'shape':'f32[9,4]'",
        "5 elements into");
    bad("f32[9,4] s32[2,4] s32[] s32[]",
        "'op':'dynamic-update-slice','in':[0,1,2,3],'shape':'f32[9,4]'", "type or rank");
}

#define SPLIT(d, o, f, p) "{'dim':" #d ",'outer':" #o ",'full':" #f ",'part':" #p "}"

static void test_program(void)
{
    good("f32[4]",
         "'op':'all-reduce','in':[0],'shape':'f32[4]','axes':[0,1],'red':'sum'");
    bad("f32[4]", "'op':'all-reduce','in':[0],'shape':'f32[4]','red':'sum'", "mesh axes");
    good("f16[4]", "'op':'all-reduce','in':[0],'shape':'f32[4]','axes':[0],'red':'sum'");
    bad("f16[4]", "'op':'all-reduce','in':[0],'shape':'f32[4]','axes':[0],'red':'max'",
        "f16[4]");
    bad("f16[4]", "'op':'all-reduce','in':[0],'shape':'f64[4]','axes':[0],'red':'sum'",
        "f16[4]");
    bad("f32[4]", "'op':'all-reduce','in':[0],'shape':'f32[4]','axes':[0]", "reduction");
    bad("f32[4]", "'op':'all-reduce','in':[0],'shape':'f32[4]','axes':[0,0],'red':'sum'",
        "each once");
    good("f32[2,12]", "'op':'all-gather','in':[0],'shape':'f32[2,20]','axes':[1],"
                      "'split':" SPLIT(1, 2, 5, 3));
    bad("f32[2,12]",
        "'op':'all-gather','in':[0],'shape':'f32[2,24]','axes':[1],"
        "'split':" SPLIT(1, 2, 5, 3),
        "24 elements whole and 12 cut");
    bad("f32[2,8]",
        "'op':'all-gather','in':[0],'shape':'f32[2,10]','axes':[1],"
        "'split':" SPLIT(1, 1, 5, 4),
        "blocks of 4 of 5");
    good("f32[2,20]", "'op':'reduce-scatter','in':[0],'shape':'f32[2,12]','axes':[1],"
                      "'red':'max','split':" SPLIT(1, 2, 5, 3));
    good("f32[2,20]", "'op':'ap-slice','in':[0],'shape':'f32[2,12]','axes':[1],"
                      "'split':" SPLIT(1, 2, 5, 3));
    bad("f32[2,20]",
        "'op':'ap-slice','in':[0],'shape':'f32[1,12]','axes':[1],"
        "'split':" SPLIT(1, 2, 5, 3),
        "more than the dimension");
    good("f32[3,10]", "'op':'all-to-all','in':[0],'shape':'f32[5,6]','axes':[0],"
                      "'split':" SPLIT(1, 2, 5, 3) ",'join':" SPLIT(0, 1, 5, 3));
    bad("f32[3,10]",
        "'op':'all-to-all','in':[0],'shape':'f32[6,6]','axes':[0],"
        "'split':" SPLIT(1, 2, 5, 3) ",'join':" SPLIT(0, 1, 5, 3),
        "join: dimension 0");
    good("f32[3]", "'op':'collective-permute','in':[0],'shape':'f32[3]','axes':[0,2]");
    good("f32[3]", "'op':'collective-permute','in':[0],'shape':'f32[3]','axes':[0]");
    bad("f32[3]", "'op':'collective-permute','in':[0],'shape':'f32[3]','axes':[]", "one");
    good("f32[3]", "'op':'ap-partial','in':[0],'shape':'f32[3]','axes':[0],'red':'sum'");
    good("f32[3]", "'op':'ap-mask','in':[0],'shape':'f32[3]','value':'-inf',"
                   "'global':'f32[11]','layout':['S0']");
    bad("f32[3]", "'op':'ap-mask','in':[0],'shape':'f32[3]','value':0", "global");
    bad("f32[3]",
        "'op':'ap-mask','in':[0],'shape':'f32[3]','value':0,'global':'f32[3,2]'",
        "type or rank");
    bad("f32[3]",
        "'op':'ap-mask','in':[0],'shape':'f32[3]','value':0,'global':'f32[11]',"
        "'layout':['R','S1']",
        "layout: dimension 1");
    bad("f32[3]", "'op':'negate','in':[0],'shape':'f32[3]','global':'f32[11]'",
        "no global");
    good("", "'op':'iota','shape':'s32[3]','iota_dimension':0,'global':'s32[11]',"
             "'layout':['S0']");
    good("", "'op':'constant','shape':'s32[2]','value':[1,2,3,4],'global':'s32[4]',"
             "'layout':['S0']");
}

int main(void)
{
    test_elementwise();
    test_moves();
    test_heavy();
    test_reduce();
    test_index();
    test_program();
    return tap_done();
}
