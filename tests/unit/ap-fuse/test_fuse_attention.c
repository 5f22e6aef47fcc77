/* Which attentions are found, what their groups are, and what follows of work. */
#include "attention.h"

#include "nest_print.h"

#include <math.h>

/* Scores of 2 heads, 4 queries and 6 keys of width 8, values of width 3. */
#define QKV                                            \
    "{'op':'parameter','shape':'f32[2,4,8]','in':[]}," \
    "{'op':'parameter','shape':'f32[2,6,8]','in':[]}," \
    "{'op':'parameter','shape':'f32[2,6,3]','in':[]},"
#define SCORES                                                                     \
    "{'op':'dot','shape':'f32[2,4,6]','in':[0,1],'lhs_batch_dims':[0],"            \
    "'rhs_batch_dims':[0],'lhs_contracting_dims':[2],'rhs_contracting_dims':[2]}," \
    "{'op':'constant','shape':'f32[]','in':[],'value':0},"
#define SOFTMAX                                                                    \
    "{'op':'exponential','shape':'f32[2,4,6]','in':[3]},"                          \
    "{'op':'reduce','shape':'f32[2,4]','in':[5,4],'dimensions':[2],'to_apply':0}," \
    "{'op':'broadcast','shape':'f32[2,4,6]','in':[6],'dimensions':[0,1]},"         \
    "{'op':'divide','shape':'f32[2,4,6]','in':[5,7]},"
#define VALUES(weights)                                                           \
    "{'op':'dot','shape':'f32[2,4,3]','in':[" weights ",2],'lhs_batch_dims':[0]," \
    "'rhs_batch_dims':[0],'lhs_contracting_dims':[2],'rhs_contracting_dims':[1]}"

/* Marks the graph and groups it; false: it could not be read. */
static bool marked(const char *nodes, const char *results, struct ap_graph *g,
                   struct fuse_attention_count *count)
{
    struct ap_graph plain;
    struct ap_err err = {""};

    if (!graph_of(nodes, results, &plain))
        return false;
    if (fuse_attention_mark(&arena, &plain, g, count, &err)) {
        CHECK(false, "%s", err.msg);
        return false;
    }
    ap_group(&arena, g);
    return true;
}

static double flops_of(const struct ap_graph *g, double *bytes)
{
    struct ap_nests nests;
    struct ap_err err = {""};
    struct ap_choice_vec none = AP_CHOICE_NONE;
    struct ap_mesh one = {.n_axes = 1, .size = {1}};
    double sum = 0;

    *bytes = 0;
    if (ap_nests_build(&arena, g, &nests, &err))
        return NAN;
    for (int i = 0; i < nests.n; i++) {
        double f, b;
        enum ap_dtype dtype;
        ap_nest_work(&nests.nest[i], g, &one, &none, &f, &b, &dtype);
        sum += f;
        *bytes += b;
    }
    return sum;
}

static void forward(void)
{
    struct ap_graph g, plain;
    struct ap_nests nests;
    struct fuse_attention_count count;
    struct ap_err err = {""};
    double bytes, plain_bytes;

    if (!marked(QKV SCORES SOFTMAX VALUES("8"), "{'node':9}", &g, &count) ||
        !graph_of(QKV SCORES SOFTMAX VALUES("8"), "{'node':9}", &plain) ||
        ap_nests_build(&arena, &g, &nests, &err))
        return;
    CHECK(count.forward == 1 && count.backward == 0 && count.plain == 0,
          "one attention of a forward pass");
    const struct ap_nest *nest = &nests.nest[g.n_groups - 1];
    CHECK(nest->attention && nest->heavy && nest->n_ins == 3 && nest->n_outs == 1 &&
              g.nodes[nest->members[0]].op == AP_OP_DOT,
          "its group reads q, k and v, and its first contraction is in front");
    /* heads, queries, keys, width of keys, width of values */
    int parallel = 0, whole = 0;
    for (int f = 0; f < nest->n_factors; f++) {
        const struct ap_factor *x = &nest->factors[f];
        parallel += x->kind == AP_FACTOR_PARALLEL;
        whole += x->kind == AP_FACTOR_WHOLE && (x->size == 6 || x->size == 8);
    }
    CHECK(nest->n_factors == 5 && parallel == 3 && whole == 2,
          "heads, queries and the width of values are parallel, keys and theirs whole");
    double flops = flops_of(&g, &bytes), as_plain = flops_of(&plain, &plain_bytes);
    CHECK(flops == as_plain && flops > 2 * 2 * 4 * 6 * (8 + 3),
          "the FLOPs of its operators: %g, plain %g", flops, as_plain);
    CHECK(bytes == 4 * (2 * 4 * 8 + 2 * 6 * 8 + 2 * 6 * 3 + 2 * 4 * 3) &&
              plain_bytes > bytes + 4 * 2 * 4 * 6 * 4,
          "bytes of q, k, v and the result: %g, plain %g", bytes, plain_bytes);
    ap_group_plain(&arena, &g);
    CHECK(g.n_groups > 8, "without attentions its operators are groups");
}

static void refused(void)
{
    static const struct {
        const char *what, *nodes, *results;
        int plain;
    } rows[] = {
        {"weights that are a result", QKV SCORES SOFTMAX VALUES("8"),
         "{'node':9},{'node':8}", 1},
        {"scores that are read elsewhere",
         QKV SCORES SOFTMAX VALUES("8") ",{'op':'slice','shape':'f32[2,4,1]','in':[3],"
                                        "'slice':'{[0:2],[0:4],[0:1]}'}",
         "{'node':9},{'node':10}", 1},
        {"no softmax",
         QKV SCORES "{'op':'abs','shape':'f32[2,4,6]','in':[3]}," VALUES("5"),
         "{'node':6}", 0},
        {"no contraction behind it",
         QKV SCORES SOFTMAX "{'op':'abs','shape':'f32[2,4,6]','in':[8]}", "{'node':9}",
         0},
        {"a contraction of both sides with the scores",
         QKV SCORES SOFTMAX "{'op':'dot','shape':'f32[2,4,4]','in':[8,5],'lhs_batch_dims'"
                            ":[0],'rhs_batch_dims':[0],'lhs_contracting_dims':[2],"
                            "'rhs_contracting_dims':[2]}",
         "{'node':9}", 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ap_graph g;
        struct fuse_attention_count count;
        bool none = true;
        if (!marked(rows[i].nodes, rows[i].results, &g, &count))
            continue;
        for (int v = 0; v < g.n_nodes; v++)
            none &= !g.nodes[v].attrs->attention;
        CHECK(none && count.forward == 0 && count.plain == rows[i].plain, "%s: plain",
              rows[i].what);
    }
}

/* A contraction that reads the result and is read by the scores: no order has all of it
 * in one group. */
static void cycle(void)
{
    struct ap_graph g;
    struct fuse_attention_count count;
    static const char nodes[] = QKV SCORES SOFTMAX VALUES(
        "8") ","
             "{'op':'reduce','shape':'f32[2]','in':[9,4],'dimensions':[1,2],'to_apply':0}"
             ","
             "{'op':'broadcast','shape':'f32[2,4,6]','in':[10],'dimensions':[0]},"
             "{'op':'add','shape':'f32[2,4,6]','in':[5,11]},"
             "{'op':'dot','shape':'f32[2,4,3]','in':[12,2],'lhs_batch_dims':[0],"
             "'rhs_batch_dims':[0],'lhs_contracting_dims':[2],'rhs_contracting_dims':[1]"
             "}";

    if (!marked(nodes, "{'node':13}", &g, &count))
        return;
    bool ok = count.plain == 1 && g.n_nodes == 14;
    for (int v = 0; v < g.n_nodes; v++)
        ok &= !g.nodes[v].attrs->attention;
    CHECK(ok, "an attention that waits for itself stays plain");
}

/* Chains of scores that are longer than any attention's are left alone. */
static void long_chain(void)
{
    struct ap_buf nodes = {0};
    struct ap_graph g;
    struct fuse_attention_count count;

    ap_buf_puts(&nodes, QKV SCORES SOFTMAX);
    for (int i = 9; i < 2009; i++)
        ap_buf_printf(&nodes, "{'op':'abs','shape':'f32[2,4,6]','in':[%d]},", i - 1);
    ap_buf_puts(&nodes, VALUES("2008"));
    if (marked(nodes.data, "{'node':2009}", &g, &count))
        CHECK(count.forward == 0 && count.plain == 1, "a chain of 2000 scores");
    ap_buf_free(&nodes);
}

/* ---- masks ---- */

/* Queries along dimension 1, keys along 2, of scores [2, 6, 6]. */
#define SQUARE                                                                     \
    "{'op':'parameter','shape':'f32[2,6,8]','in':[]},"                             \
    "{'op':'parameter','shape':'f32[2,6,8]','in':[]},"                             \
    "{'op':'parameter','shape':'f32[2,6,3]','in':[]},"                             \
    "{'op':'dot','shape':'f32[2,6,6]','in':[0,1],'lhs_batch_dims':[0],"            \
    "'rhs_batch_dims':[0],'lhs_contracting_dims':[2],'rhs_contracting_dims':[2]}," \
    "{'op':'constant','shape':'f32[]','in':[],'value':0},"                         \
    "{'op':'iota','shape':'s32[6,6]','in':[],'iota_dimension':0},"                 \
    "{'op':'iota','shape':'s32[6,6]','in':[],'iota_dimension':1},"
#define PUT(fill)                                                                   \
    "{'op':'broadcast','shape':'pred[2,6,6]','in':[9],'dimensions':[1,2]},"         \
    "{'op':'constant','shape':'f32[2,6,6]','in':[],'value':" fill "},"              \
    "{'op':'select','shape':'f32[2,6,6]','in':[10,3,11]},"                          \
    "{'op':'exponential','shape':'f32[2,6,6]','in':[12]},"                          \
    "{'op':'reduce','shape':'f32[2,6]','in':[13,4],'dimensions':[2],'to_apply':0}," \
    "{'op':'broadcast','shape':'f32[2,6,6]','in':[14],'dimensions':[0,1]},"         \
    "{'op':'divide','shape':'f32[2,6,6]','in':[13,15]},"                            \
    "{'op':'dot','shape':'f32[2,6,3]','in':[16,2],'lhs_batch_dims':[0],"            \
    "'rhs_batch_dims':[0],'lhs_contracting_dims':[2],'rhs_contracting_dims':[1]}"
#define COMPARE(a, b, direction)                                                         \
    "{'op':'compare','shape':'pred[6,6]','in':[" a "," b "],'direction':'" direction "'" \
    "}"                                                                                  \
    ","
#define RESHAPE(dims, x) "{'op':'reshape','shape':'pred[" dims "]','in':[" x "]},"
#define NUMBER(x)        "{'op':'constant','shape':'s32[6,6]','in':[],'value':" x "},"

struct mask_case {
    const char *what, *nodes, *scores; /* the mask is node 9; of the first contraction */
};

static const struct mask_case masks[] = {
    {"q >= k", SQUARE NUMBER("0") NUMBER("0") COMPARE("5", "6", "GE") PUT("-1e9"),
     "0 1 2 5 0"},
    {"k < q + 3",
     SQUARE NUMBER("3") "{'op':'add','shape':'s32[6,6]','in':[5,7]}," COMPARE(
         "6", "8", "LT") PUT("-1e9"),
     "0 1 2 5 2"},
    {"k > q - 2: no causal mask, a window",
     SQUARE NUMBER("2") "{'op':'subtract','shape':'s32[6,6]','in':[5,7]}," COMPARE(
         "6", "8", "GT") PUT("-1e9"),
     "0 1 2 1 5"},
    {"q > k: the first query would see none",
     SQUARE NUMBER("0") NUMBER("0") COMPARE("5", "6", "GT") PUT("-1e9"), "0 1 2"},
    {"a fill that weighs",
     SQUARE NUMBER("0") NUMBER("0") COMPARE("5", "6", "GE") PUT("-5"), "0 1 2"},
    {"equality says nothing",
     SQUARE NUMBER("0") NUMBER("0") COMPARE("5", "6", "EQ") PUT("-1e9"), "0 1 2"},
    {"dimensions of size 1 come and go",
     SQUARE COMPARE("5", "6", "GE") RESHAPE("1,6,1,6", "7") RESHAPE("6,6", "8")
         PUT("-1e9"),
     "0 1 2 5 0"},
    {"rows and columns become one dimension",
     SQUARE COMPARE("5", "6", "GE") RESHAPE("36", "7") RESHAPE("6,6", "8") PUT("-1e9"),
     "0 1 2"},
    {"a constant",
     SQUARE NUMBER("0") NUMBER(
         "0") "{'op':'constant','shape':'pred[6,6]','in':[],'value':["
              "true,false,false,false,false,false,true,true,false,false,false,false,"
              "false,true,true,false,false,false,false,true,true,true,false,false,"
              "false,false,true,true,true,false,false,false,false,true,true,true]}," PUT(
                  "-1e9"),
     "0 1 2 2 0"},
};

/* What a mask leaves, and of the FLOPs of the contractions. */
static void find_masks(void)
{
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        struct ap_graph g;
        struct fuse_attention_count count;
        struct ap_buf text = {0};

        if (!marked(masks[i].nodes, "{'node':17}", &g, &count))
            continue;
        for (int v = 0; v < g.n_nodes && !text.len; v++)
            for (int k = 0; k < g.nodes[v].attrs->scores.n; k++)
                ap_buf_printf(&text, "%s%d", k ? " " : "",
                              (int)g.nodes[v].attrs->scores.v[k]);
        ap_buf_puts(&text, "");
        CHECK(text.data && strcmp(text.data, masks[i].scores) == 0, "mask %s: %s, not %s",
              masks[i].what, text.data ? text.data : "", masks[i].scores);
        ap_buf_free(&text);
    }
}

/* FLOPs of the group of mask i with rows in n blocks; seen: as if it hid nothing. */
static double masked_flops(int i, int64_t n, bool seen)
{
    struct ap_graph g;
    struct fuse_attention_count count;
    struct ap_nests nests;
    struct ap_err err = {""};
    struct ap_mesh mesh = {.n_axes = 1, .size = {n}};
    struct ap_choice_vec choice = AP_CHOICE_NONE;
    double flops, bytes;
    enum ap_dtype dtype;

    if (!marked(masks[i].nodes, "{'node':17}", &g, &count) ||
        ap_nests_build(&arena, &g, &nests, &err))
        return NAN;
    for (int v = 0; v < g.n_nodes && seen; v++) {
        struct ap_attrs *attrs =
            ap_arena_dup(&arena, g.nodes[v].attrs, sizeof *g.nodes[v].attrs);
        attrs->scores.n = attrs->scores.n ? 3 : 0;
        g.nodes[v].attrs = attrs;
    }
    const struct ap_nest *nest = nests.nest;
    while (!nest->attention)
        nest++;
    for (int f = 0; f < nest->n_factors && n > 1; f++)
        if (nest->values[0].dims[1].factor[0] == f)
            choice.axis[0] = (int16_t)f;
    ap_nest_work(nest, &g, &mesh, &choice, &flops, &bytes, &dtype);
    return flops;
}

/* The device with the last rows sees as many pairs as any. */
static void count_seen(void)
{
    for (int i = 0; i < 3; i++)
        for (int64_t n = 1; n <= 6; n++) {
            const int64_t rows = (6 + n - 1) / n;
            int back = 5, ahead = 5, seen = 0;
            sscanf(masks[i].scores, "0 1 2 %d %d", &back, &ahead);
            for (int64_t q = 6 - rows; q < 6; q++)
                for (int64_t k = 0; k < 6; k++)
                    seen += k - q <= ahead && q - k <= back;
            const double less = 2.0 * 2 * (8 + 3) * (6 * (double)rows - seen);
            const double got = masked_flops(i, n, true) - masked_flops(i, n, false);
            CHECK(fabs(got - less) < 1e-6, "%s, %d blocks: %g FLOPs are hidden, not %g",
                  masks[i].what, (int)n, less, got);
        }
}

int main(void)
{
    find_masks();
    count_seen();
    forward();
    refused();
    cycle();
    long_chain();
    ap_arena_free(&arena);
    return tap_done();
}
