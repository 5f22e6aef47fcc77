/* Graphs: the index, JSON both ways, literals, and what is refused with which place. */
#include "doc/doc.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doc/literal.h"
#include "tap.h"
#include "graph/element.h"

static struct ap_arena arena;

/* Reads a document whose section "graph" is text, with ' for ". */
static int read_graph(const char *text, struct ap_graph *g, struct ap_err *err)
{
    struct ap_buf buf = {0};
    struct ap_doc doc;

    ap_buf_puts(&buf, "{\"autopar\":1,\"graph\":");
    for (const char *p = text; *p; p++)
        ap_buf_putc(&buf, *p == '\'' ? '"' : *p);
    ap_buf_puts(&buf, "}");
    char *copy = ap_arena_strndup(&arena, buf.data, buf.len);
    size_t len = buf.len;
    ap_buf_free(&buf);
    if (ap_doc_parse(&arena, "f.json", copy, len, &doc, err))
        return -1;
    return ap_doc_graph(&arena, &doc, g, err);
}

/* The same text with the name of every node's operator spelt in a way that is not plain.
 */
static const char *spelt(const char *text)
{
    struct ap_buf buf = {0};

    for (const char *p = text; *p; p++) {
        bool op = strncmp(p, "{'op'", 5) == 0;
        ap_buf_puts(&buf, op ? "{'\\u006fp'" : (char[]){*p, 0});
        p += op ? 4 : 0;
    }
    const char *copy = ap_arena_strndup(&arena, buf.data, buf.len);
    ap_buf_free(&buf);
    return copy;
}

static void read_both_ways(const char *text, const struct ap_graph *g)
{
    struct ap_graph other;
    struct ap_err err = {""};
    struct ap_buf a = {0}, b = {0};

    CHECK(read_graph(spelt(text), &other, &err) == 0, "reads if it is not plain: %s",
          err.msg);
    ap_graph_to_json(g, &a);
    ap_graph_to_json(&other, &b);
    CHECK(!strcmp(a.data, b.data), "and is the same graph: %.60s", text);
    ap_buf_free(&a);
    ap_buf_free(&b);
}

/* What is written reads back as the same text; with ' for ". */
static void same(const char *text)
{
    struct ap_graph g;
    struct ap_err err = {""};
    struct ap_buf out = {0};

    if (read_graph(text, &g, &err)) {
        CHECK(false, "reads: %s", err.msg);
        return;
    }
    read_both_ways(text, &g);
    ap_graph_to_json(&g, &out);
    for (char *p = out.data; *p; p++)
        *p = *p == '"' ? '\'' : *p;
    CHECK(!strcmp(out.data, text), "written as read: %.60s%s", text,
          strcmp(out.data, text) ? out.data : "");
    ap_buf_free(&out);
}

#define TAIL ",\n'reducers':[],\n'results':[]}"

/* A loop with this body and these attributes; the state is a counter and a vector. */
static const char *loop_text(const char *body, const char *attrs)
{
    return ap_arena_printf(
        &arena,
        "{'name':'g','nodes':[\n"
        "{'op':'parameter','name':'i','shape':'s32[]','param':0,'phase':'forward'},\n"
        "{'op':'parameter','name':'x','shape':'f32[4]','param':1,'phase':'forward'},\n"
        "{'op':'while','name':'w','in':[0,1],'shape':'(s32[], f32[4])',%s,"
        "'phase':'forward'},\n"
        "{'op':'get-tuple-element','name':'y','in':[2],'shape':'f32[4]','index':1,"
        "'phase':'forward'}],\n'reducers':[],\n'computations':[\n"
        "{'name':'c','nodes':[\n"
        "{'op':'parameter','name':'i','shape':'s32[]','param':0,'phase':'forward'},\n"
        "{'op':'parameter','name':'x','shape':'f32[4]','param':1,'phase':'forward'},\n"
        "{'op':'compare','name':'l','in':[0,0],'shape':'pred[]','direction':'LT',"
        "'phase':'forward'}],'results':[2]},\n"
        "{'name':'b','nodes':[\n"
        "{'op':'parameter','name':'i','shape':'s32[]','param':0,'phase':'forward'},\n"
        "{'op':'parameter','name':'x','shape':'f32[4]','param':1,'phase':'forward'},\n"
        "%s],\n'results':[\n{'node':3,'role':'aux'}]}",
        attrs, body);
}

static void bad_loop(const char *body, const char *attrs, const char *why)
{
    struct ap_graph g;
    struct ap_err err = {""};

    CHECK(read_graph(loop_text(body, attrs), &g, &err) && strstr(err.msg, why),
          "refused: %s (%s)", why, err.msg);
}

static void test_loops(void)
{
    static const char negate[] = "{'op':'negate','name':'n','in':[1],'shape':'f32[4]',"
                                 "'phase':'forward'}],'results':[0,2]}";
    static const char loop[] = "'body':1,'condition':0,'trip_count':3";

    same(loop_text(negate, loop));
    same(loop_text(negate, "'body':1,'condition':0"));
    bad_loop(negate, "'body':1", "needs the attribute \"condition\"");
    bad_loop(negate, "'body':2,'condition':0",
             "/graph/nodes/2/body: computation 2 does not exist");
    bad_loop(negate, "'body':1,'condition':1", "its result must be one pred[]");
    bad_loop(negate, "'body':0,'condition':0", "body: 1 results, but 2 operands");
    bad_loop(negate, "'body':1,'condition':0,'trip_count':-3", "/trip_count");
    bad_loop("{'op':'negate','name':'n','in':[0],'shape':'s32[]'}],'results':[0,2]}",
             loop, "result 1 differs from operand 1 in shape");
    bad_loop("{'op':'negate','name':'n','in':[1],'shape':'f32[5]'}],'results':[0,2]}",
             loop, "/computations/1/nodes/2 (n): negate makes f32[4], not f32[5]");
    bad_loop("{'op':'negate','name':'n','in':[2],'shape':'f32[4]'}],'results':[0,2]}",
             loop, "/computations/1/nodes/2/in/0");
    bad_loop("{'op':'all-reduce','name':'n','in':[1],'shape':'f32[4]','axes':[0],"
             "'red':'sum'}],'results':[0,2]}",
             loop, "/computations/1/nodes/2 (n): a loop holds no part of a program");
    bad_loop("{'op':'while','name':'n','in':[0,1],'shape':'(s32[], f32[4])','body':1,"
             "'condition':0}],'results':[0,1]}",
             loop, "/computations/1/nodes/2/body: computation 1 does not exist");
}

static void test_round_trip(void)
{
    same(
        "{'name':'g','n_groups':2,'nodes':[\n"
        "{'op':'parameter','name':'p','shape':'f32[2,3]','param':0,'role':'weight',"
        "'pin':'{devices=[2,1]<=[2]}','scope':'a/b','phase':'forward','group':0},\n"
        "{'op':'constant','name':'c','shape':'f32[]','value':0.1,'phase':'backward'},\n"
        "{'op':'reduce','name':'r','in':[0,1],'shape':'f32[3]','dimensions':[0],"
        "'to_apply':0,'scope':'a/b','phase':'update','group':1}],\n"
        "'reducers':[\n{'name':'add','kind':'sum'},\n"
        "{'name':'lt','nodes':[\n"
        "{'op':'parameter','name':'x','shape':'f32[]','param':0,'phase':'forward'},\n"
        "{'op':'parameter','name':'y','shape':'f32[]','param':1,'phase':'forward'},\n"
        "{'op':'compare','name':'z','in':[0,1],'shape':'pred[]','direction':'GE',"
        "'phase':'forward'}],'results':[2]}],\n"
        "'results':[\n{'node':2,'role':'loss'},\n{'node':0,'role':'weight','alias':0}],\n"
        "'dropped':['custom-call.1','q']}");
    same("{'name':'','nodes':[\n"
         "{'op':'parameter','name':'a','shape':'f32[1,8,8,6]','param':0,'phase':'forward'"
         "},\n"
         "{'op':'parameter','name':'b','shape':'f32[3,3,2,9]','param':1,'phase':'forward'"
         "},\n"
         "{'op':'convolution','name':'v','in':[0,1],'shape':'f32[1,8,8,9]',"
         "'dim_labels':'b01f_01io->b01f','feature_group_count':3,"
         "'window':'{size=3x3 pad=1_1x1_1}','phase':'forward'},\n"
         "{'op':'slice','name':'s','in':[2],'shape':'f32[1,2,8,9]',"
         "'slice':'{[0:1],[1:5:2],[0:8],[0:9]}','phase':'forward'},\n"
         "{'op':'topk','name':'t','in':[3],'shape':'(f32[1,2,8,4], s32[1,2,8,4])','k':4,"
         "'largest':false,'phase':'forward'},\n"
         "{'op':'get-tuple-element','name':'u','in':[4],'shape':'s32[1,2,8,4]','index':1,"
         "'phase':'forward'}]" TAIL);
    same("{'name':'local','nodes':[\n"
         "{'op':'parameter','name':'a','shape':'f32[4]','param':0,'global':'f32[7]',"
         "'layout':['R','S0/8'],'phase':'forward'},\n"
         "{'op':'ap-mask','name':'m','in':[0],'shape':'f32[4]','global':'f32[7]',"
         "'layout':['Pmax','S0'],'value':'-inf','phase':'forward'},\n"
         "{'op':'all-gather','name':'g','in':[1],'shape':'f32[7]','axes':[1],"
         "'split':{'dim':0,'outer':1,'full':7,'part':4},'phase':'forward'},\n"
         "{'op':'all-reduce','name':'r','in':[2],'shape':'f32[7]','axes':[0,2],"
         "'red':'max','phase':'forward'}]" TAIL);
}

/* A constant of a type, as it is written. */
static void literal(const char *shape, const char *value, const char *want)
{
    char text[400];
    struct ap_graph g;
    struct ap_err err = {""};
    struct ap_buf out = {0};

    snprintf(text, sizeof(text),
             "{'nodes':[{'op':'constant','shape':'%s','value':%s}],'results':[]}", shape,
             value);
    if (!read_graph(text, &g, &err))
        ap_literal_to_json(&g.nodes[0].attrs->literal, &g.nodes[0].shape, &out);
    else
        ap_buf_puts(&out, err.msg);
    for (char *p = out.data; *p; p++)
        *p = *p == '"' ? '\'' : *p;
    CHECK(strstr(out.data, want) && (err.msg[0] || !strcmp(out.data, want)), "%s %s: %s",
          shape, value, out.data);
    ap_buf_free(&out);
}

static void test_attrs_anywhere(void)
{
    const char *text =
        "{'name':'g','nodes':["
        "{'op':'constant','shape':'f32[]','value':0},"
        "{'op':'constant','shape':'f32[]','value':0},"
        "{'op':'constant','shape':'s32[]','value':0},"
        "{'op':'broadcast','in':[0],'shape':'f32[2,3]','dimensions':[]},"
        "{'op':'broadcast','in':[1],'shape':'f32[2,3]','dimensions':[]},"
        "{'op':'broadcast','in':[1],'shape':'f32[3,2]','dimensions':[]},"
        "{'op':'transpose','dimensions':[1,0],'in':[3],'shape':'f32[3,2]'},"
        "{'dimensions':[1,0],'op':'transpose','in':[4],'shape':'f32[3,2]'}],"
        "'results':[{'node':6},{'node':7}]}";
    struct ap_graph g;
    struct ap_err err = {""};

    CHECK(read_graph(text, &g, &err) == 0, "attributes in any place%s", err.msg);
    read_both_ways(text, &g);
}

static void test_literals(void)
{
    literal("f32[]", "0.1", "0.1");
    literal("f32[]", "3", "3");
    literal("f32[2]", "[-0.0,1e-45]", "[-0.0,1.4013e-45]");
    literal("f32[3]", "'nan'", "'nan'");
    literal("f32[3]", "['-nan','inf','-inf']", "['nan','inf','-inf']");
    literal("f32[]", "3.4028235e38", "3.4028235e+38");
    literal("f32[]", "1e39", "1e+39 does not fit in f32");
    literal("f64[]", "0.30000000000000004", "0.30000000000000004");
    literal("bf16[]", "0.1", "0.100097656");
    literal("bf16[]", "1.00390625", "1");
    literal("f16[]", "65520", "65520 does not fit in f16");
    literal("f16[]", "65519", "65504");
    literal("f8e4m3fn[]", "448", "448");
    literal("f8e4m3fn[]", "500", "does not fit");
    literal("f8e5m2[]", "0.3", "0.3125");
    literal("f32[2,2]", "[1,2,3]", "expected 4 elements, got an array of 3");
    literal("f32[0]", "[]", "[]");
    literal("f32[]", "[1]", "expected 1 elements, got an array of 1");
    literal("f32[]", "'x'", "expected a number");
    literal("f32[]", "true", "/graph/nodes/0/value: expected a number");
    literal("f32[2]", "[1,null]", "/graph/nodes/0/value/1: expected a number");
    literal("f32[2]", "'elided'", "'elided'");
    literal("pred[2]", "[true,false]", "[true,false]");
    literal("pred[]", "1", "expected true or false");
    literal("s8[2]", "[-128,127]", "[-128,127]");
    literal("s8[]", "128", "128 does not fit in s8");
    literal("u8[]", "-1", "-1 does not fit in u8");
    literal("u32[]", "4294967295", "4294967295");
    literal("s64[2]", "[-9223372036854775808,9223372036854775807]",
            "[-9223372036854775808,9223372036854775807]");
    literal("u64[2]", "['18446744073709551615',5]", "['18446744073709551615',5]");
    literal("u64[]", "'18446744073709551616'", "expected an integer of type u64");
    literal("u64[]", "-1", "does not fit");
    literal("s32[]", "1.5", "expected an integer of type s32");
    literal("c64[]", "[1,-0.5]", "[1,-0.5]");
    literal("c64[2]", "[[1,2],['nan',4]]", "[[1,2],['nan',4]]");
    literal("c128[]", "[1]", "expected a pair");
}

/* Random bits of every float type are written so that they read back the same. */
static void test_float_bits(void)
{
    static const enum ap_dtype types[] = {AP_F32,  AP_F64,      AP_F16,
                                          AP_BF16, AP_F8E4M3FN, AP_F8E5M2};
    int bad = 0;

    for (int t = 0; t < 6; t++) {
        int64_t dim = 4000;
        struct ap_shape shape = {.dtype = types[t], .rank = 1, .dims = &dim};
        size_t size = (size_t)ap_dtype_size(types[t]);
        char *data = AP_NEW_N(&arena, dim * 8, char);
        for (int64_t i = 0; i < dim; i++) {
            uint64_t bits = ap_hash(&i, sizeof(i), 7);
            memcpy(data + (size_t)i * size, &bits, size);
            if (isnan(ap_elem_to_double(types[t], data + (size_t)i * size)))
                memset(data + (size_t)i * size, 0, size);
        }
        struct ap_literal in = {.data = data}, back;
        struct ap_buf out = {0};
        struct ap_err err = {""};
        ap_literal_to_json(&in, &shape, &out);
        json_t *v = json_loadb(out.data, out.len, 0, NULL);
        bad += ap_literal_from_json(&arena, v, &shape, NULL, &back, &err) ||
               memcmp(back.data, data, (size_t)dim * size) != 0;
        json_decref(v);
        ap_buf_free(&out);
    }
    CHECK(bad == 0, "floats of every type read back bit-equal");
}

static void refused(const char *text, const char *want)
{
    struct ap_graph g;
    struct ap_err err = {""};

    CHECK(read_graph(text, &g, &err) == -1 && !strcmp(err.msg, want), "%.70s: %s", text,
          err.msg);
}

#define P0      "{'op':'parameter','shape':'f32[2]','param':0}"
#define NEG(in) "{'op':'negate','shape':'f32[2]','in':[" in "]}"

static void test_refused(void)
{
    refused("[]", "f.json: /graph: expected an object");
    refused("{}", "f.json: /graph: member \"nodes\" (an array) is missing");
    refused("{'nodes':[]}", "f.json: /graph: member \"results\" (an array) is missing");
    refused("{'nodes':[3],'results':[]}",
            "f.json: /graph/nodes/0: expected an object, got an integer");
    refused("{'nodes':[{'op':'frobnicate','shape':'f32[2]'}],'results':[]}",
            "f.json: /graph/nodes/0/op: unknown operator 'frobnicate'");
    refused("{'nodes':[{'op':'iota'}],'results':[]}",
            "f.json: /graph/nodes/0: member \"shape\" (a string) is missing");
    refused("{'nodes':[{'op':'iota','shape':'f99[2]'}],'results':[]}",
            "f.json: /graph/nodes/0/shape: element type 'f99' is not supported in "
            "\"f99[2]\"");
    refused("{'nodes':[{'op':'iota','shape':'f32[2]x'}],'results':[]}",
            "f.json: /graph/nodes/0/shape: text after the shape in \"f32[2]x\"");
    refused(
        "{'nodes':[" P0 "," NEG("12") "],'results':[]}",
        "f.json: /graph/nodes/1/in/0: node 12 does not exist (the graph has 2 nodes)");
    refused(
        "{'nodes':[" P0 "," NEG("-1") "],'results':[]}",
        "f.json: /graph/nodes/1/in/0: node -1 does not exist (the graph has 2 nodes)");
    refused(
        "{'nodes':[" P0 "," NEG("2") "," NEG("1") "],'results':[]}",
        "f.json: /graph/nodes/1/in/0: operand 2 does not come before its user (cyclic "
        "or unordered graph)");
    refused("{'nodes':[" P0 "," NEG("0.5") "],'results':[]}",
            "f.json: /graph/nodes/1/in/0: expected a node id");
    refused("{'nodes':[" P0 "," P0 "],'results':[]}",
            "f.json: /graph/nodes/1/param: node 0 is parameter 0 already");
    refused("{'nodes':[{'op':'parameter','shape':'f32[2]','param':1}],'results':[]}",
            "f.json: /graph/nodes/0/param: parameter number 1, but the graph has 1 "
            "parameters");
    refused(
        "{'nodes':[" P0 "],'results':[{'node':4}]}",
        "f.json: /graph/results/0/node: node 4 does not exist (the graph has 1 nodes)");
    refused("{'nodes':[" P0 "," NEG("0") "],'results':[{'node':0,'alias':1}]}",
            "f.json: /graph/results/0/alias: node 1 is not a parameter");
    refused("{'nodes':[" P0 "],'results':[{'node':0,'role':'lost'}]}",
            "f.json: /graph/results/0/role: 'lost' is no role");
    refused("{'nodes':[{'op':'parameter','shape':'f32[2]','param':0,'phase':'later'}],"
            "'results':[]}",
            "f.json: /graph/nodes/0/phase: 'later' is no phase");
    refused(
        "{'n_groups':1,'nodes':[{'op':'parameter','shape':'f32[2]','param':0,'group':3}],"
        "'results':[]}",
        "f.json: /graph/nodes/0/group: group 3 does not exist (the graph has 1 groups)");
    refused(
        "{'nodes':[{'op':'parameter','shape':'f32[2,2]','param':0},{'op':'topk','k':1,"
        "'largest':true,'in':[0],'shape':'(f32[2,1], s32[2,1])'},{'op':'negate','in':[1],"
        "'shape':'f32[2,1]'}],'results':[]}",
        "f.json: /graph/nodes/2/in/0: only get-tuple-element reads a tuple, not negate");
    refused("{'nodes':[" P0 ",{'op':'pad','in':[0,0],'shape':'f32[2]','padding':'0'}],"
            "'results':[]}",
            "f.json: /graph/nodes/1/padding: padding: expected '_' in \"0\"");
    refused("{'nodes':[" P0 "],'results':[],'reducers':[{'name':'x'}]}",
            "f.json: /graph/reducers/0: neither a kind nor a body with results");
    refused("{'nodes':[" P0 "],'results':[],'reducers':[{'nodes':[" P0
            "],'results':[0]}]}",
            "f.json: /graph/reducers/0/nodes/0/shape: a reducer works on scalars");
    refused("{'nodes':[" P0 "],'results':[],'reducers':[{'kind':'plus'}]}",
            "f.json: /graph/reducers/0/kind: 'plus' is no kind");
    refused("{'nodes':[" P0 ",{'op':'parameter','shape':'f32[3]','param':1}],"
            "'results':[{'node':0,'alias':1}]}",
            "f.json: /graph/results/0: node 0 () becomes parameter node 1 () of another "
            "shape");
}

/* Nodes are loaded one by one: places are still the file's. */
static void test_places(void)
{
    refused("{'nodes':[{'op':'iota','op':'x'}],'results':[]}",
            "f.json:1:45: duplicate object key near '\"op\"'");
    refused("{'nodes':[],'nodes':[],'results':[]}",
            "f.json:1:34: duplicate object key near '\"nodes\"'");
    refused("{'results':1e999,'nodes':[" P0 "]}",
            "f.json:1:33: real number overflow near '1e999'");
    refused("{'nodes':[ " P0 " , " P0 " ],'results':1e999}",
            "f.json:1:139: real number overflow near '1e999'");
}

static void test_missing(void)
{
    struct ap_doc doc;
    struct ap_graph g;
    struct ap_err err = {""};
    const char *text = "{\"autopar\":1}";

    CHECK(!ap_doc_parse(&arena, "f.json", text, strlen(text), &doc, &err) &&
              ap_doc_graph(&arena, &doc, &g, &err) &&
              !strcmp(err.msg, "f.json: no section \"graph\": make one with ap-import"),
          "no graph: %s", err.msg);
}

static void test_index(void)
{
    struct ap_graph g;
    struct ap_err err = {""};
    int rc = read_graph("{'nodes':[{'op':'parameter','shape':'f32[2]','param':1},"
                        "{'op':'parameter','shape':'f32[2]','param':0,'scope':'a'},"
                        "{'op':'add','in':[0,0],'shape':'f32[2]','scope':'a'},"
                        "{'op':'add','in':[2,0],'shape':'f32[2]','note':'kept out'}],"
                        "'results':[{'node':3}]}",
                        &g, &err);

    CHECK(!rc, "reads%s", err.msg);
    CHECK(g.n_params == 2 && g.params[0] == 1 && g.params[1] == 0, "params");
    CHECK(g.user_start[0] == 0 && g.user_start[1] == 3 && g.users[0] == 2 &&
              g.users[1] == 2 && g.users[2] == 3,
          "users ascend, once per operand position");
    CHECK(g.user_start[2] == 3 && g.user_start[3] == 4 && g.user_start[4] == 4,
          "no users");
    CHECK(g.nodes[1].scope == g.nodes[2].scope, "equal scopes are one string");
    CHECK(g.nodes[3].param == -1 && g.nodes[3].group == -1 && g.nodes[3].pin == NULL,
          "defaults");
}

static void test_names(void)
{
    bool all = true;

    for (int i = 0; i < AP_N_OPS; i++)
        all &= ap_op_find(ap_ops[i].name, strlen(ap_ops[i].name)) == (enum ap_op)i;
    for (int i = 0; i < AP_TUPLE; i++)
        all &=
            ap_dtype_find(ap_dtype_name(i), strlen(ap_dtype_name(i))) == (enum ap_dtype)i;
    CHECK(all, "names of operators and types are found");
    CHECK(ap_op_find("ad", 2) == AP_N_OPS && ap_op_find("adds", 4) == AP_N_OPS &&
              ap_op_find("addition", 3) == AP_OP_ADD &&
              ap_dtype_find("f3", 2) == AP_N_DTYPES,
          "and others are not");
}

static void test_neutral(void)
{
    char at[16];

    ap_red_neutral(AP_RED_MAX, AP_S8, at);
    CHECK(ap_elem_to_int(AP_S8, at) == -128, "max of s8");
    ap_red_neutral(AP_RED_MIN, AP_U32, at);
    CHECK(ap_elem_to_int(AP_U32, at) == UINT32_MAX, "min of u32");
    ap_red_neutral(AP_RED_MIN, AP_S64, at);
    CHECK(ap_elem_to_int(AP_S64, at) == INT64_MAX, "min of s64");
    ap_red_neutral(AP_RED_AND, AP_PRED, at);
    CHECK(at[0] == 1, "and of pred");
    ap_red_neutral(AP_RED_MAX, AP_BF16, at);
    CHECK(ap_elem_to_double(AP_BF16, at) == -INFINITY, "max of bf16");
    ap_red_neutral(AP_RED_MIN, AP_F8E4M3FN, at);
    CHECK(ap_elem_to_double(AP_F8E4M3FN, at) == 448, "min of f8e4m3fn");
    ap_red_neutral(AP_RED_PROD, AP_C128, at);
    CHECK(ap_elem_to_double(AP_C128, at) == 1 && ap_elem_to_double(AP_F64, at + 8) == 0,
          "product of c128");
    ap_red_neutral(AP_RED_SUM, AP_F32, at);
    CHECK(ap_elem_to_double(AP_F32, at) == 0, "sum of f32");
}

int main(void)
{
    test_round_trip();
    test_loops();
    test_attrs_anywhere();
    test_literals();
    test_float_bits();
    test_refused();
    test_places();
    test_missing();
    test_index();
    test_names();
    test_neutral();
    ap_arena_free(&arena);
    return tap_done();
}
