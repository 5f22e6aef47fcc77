/* ap_families_check on sound and on broken families; sums; the section read back. */
#include <stdlib.h>
#include <string.h>

#include "doc/families_json.h"
#include "graph/build.h"
#include "graph/identity.h"
#include "tap.h"

/*
 * Three layers of 6 nodes: weight, dot, two tanh, a sum with the layer's input, and a
 * product of the sum with a node from outside, or (layer 2, if odd) with itself.
 */
enum { X, Y, LAYER = 6, FIRST = 2, N_NODES = FIRST + 3 * LAYER + 2 };

static void put_layer(struct ap_buf *out, int i, bool odd)
{
    int w = FIRST + i * LAYER, in = i ? w - 1 : X;

    ap_buf_printf(
        out,
        ",{\"op\":\"parameter\",\"name\":\"w%d\",\"shape\":\"f32[4,4]\","
        "\"param\":%d,\"role\":\"weight\",\"scope\":\"net/h_%d/w\"}"
        ",{\"op\":\"dot\",\"name\":\"d%d\",\"in\":[%d,%d],\"shape\":\"f32[4,4]\","
        "\"lhs_contracting_dims\":[1],\"rhs_contracting_dims\":[0]}",
        i, i + 2, i, i, in, w);
    ap_buf_printf(out,
                  ",{\"op\":\"tanh\",\"in\":[%d],\"shape\":\"f32[4,4]\"}"
                  ",{\"op\":\"tanh\",\"in\":[%d],\"shape\":\"f32[4,4]\"}"
                  ",{\"op\":\"add\",\"in\":[%d,%d],\"shape\":\"f32[4,4]\"}"
                  ",{\"op\":\"multiply\",\"in\":[%d,%d],\"shape\":\"f32[4,4]\"}",
                  w + 1, w + 2, w + 3, in, w + 4, odd ? w + 4 : Y);
}

static void make_graph(struct ap_arena *arena, bool odd, struct ap_graph *g)
{
    struct ap_buf text = {0};
    struct ap_err err = {0};
    struct ap_doc doc;

    ap_buf_puts(&text, "{\"autopar\":1,\"graph\":{\"nodes\":["
                       "{\"op\":\"parameter\",\"shape\":\"f32[4,4]\",\"param\":0},"
                       "{\"op\":\"parameter\",\"shape\":\"f32[4,4]\",\"param\":1}");
    for (int i = 0; i < 3; i++)
        put_layer(&text, i, odd && i == 2);
    ap_buf_printf(&text,
                  ",{\"op\":\"parameter\",\"shape\":\"f32[4,4]\",\"param\":5,"
                  "\"role\":\"weight\",\"scope\":\"net/head\"}"
                  ",{\"op\":\"add\",\"in\":[%d,%d],\"shape\":\"f32[4,4]\"}"
                  "],\"results\":[{\"node\":%d}],\"reducers\":[]}}",
                  N_NODES - 3, N_NODES - 2, N_NODES - 1);
    if (ap_doc_parse(arena, "test", text.data, text.len, &doc, &err) ||
        ap_doc_graph(arena, &doc, g, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    ap_buf_free(&text);
}

/* Two families, layers and the two tanh of each, to be broken. */
struct sample {
    struct ap_families f;
    struct ap_family family[2];
    int nodes[3 * LAYER], inner[6], trimmed[2];
};

static const char *const labels[] = {"net/h_0", "net/h_1", "net/h_2"};
static const char *const inner_labels[] = {"a", "b", "c", "d", "e", "f"};

static void make_sample(struct sample *s)
{
    *s = (struct sample){.trimmed = {X, Y}};
    for (int at = 0; at < 3 * LAYER; at++)
        s->nodes[at] = FIRST + at;
    for (int at = 0; at < 6; at++)
        s->inner[at] = FIRST + at / 2 * LAYER + 2 + at % 2;
    s->family[0] = (struct ap_family){"net/h_*", -1, 3, LAYER, s->nodes, labels};
    s->family[1] = (struct ap_family){"net/h_*/t", 0, 6, 1, s->inner, inner_labels};
    s->f = (struct ap_families){"test", 2, s->family, 2, s->trimmed};
}

/* The families of `sample` as the caller broke them are refused, with `text`. */
static void refused(struct ap_arena *arena, const struct ap_graph *g,
                    const struct sample *s, const char *text)
{
    struct ap_err err = {0};
    int rc = ap_families_check(arena, g, &s->f, &err);

    CHECK(rc == -1 && strstr(err.msg, text), "%s: %s", text, err.msg);
}

static void test_places(struct ap_arena *arena, const struct ap_graph *g)
{
    struct sample s;

    make_sample(&s);
    s.nodes[LAYER + 3] = N_NODES;
    refused(arena, g, &s, "/families/0/nodes/1/3: no node of the graph");
    make_sample(&s);
    s.nodes[0] = -1;
    refused(arena, g, &s, "/families/0/nodes/0/0: no node of the graph");
    make_sample(&s);
    s.nodes[2] = FIRST + 3, s.nodes[3] = FIRST + 2;
    refused(arena, g, &s, "/families/0/nodes/0/3: ids of the first instance must ascend");
    make_sample(&s);
    for (int j = 0; j < LAYER; j++) {
        s.nodes[LAYER + j] += LAYER;
        s.nodes[2 * LAYER + j] -= LAYER;
    }
    refused(arena, g, &s, "/families/0/nodes/2/0: instances must be in the order");
    make_sample(&s);
    s.nodes[LAYER + 3] = s.nodes[LAYER + 2];
    refused(arena, g, &s, "/families/0/nodes/1/3: stands in the family already");
    make_sample(&s);
    s.family[1].parent = -1;
    refused(arena, g, &s, "/families/1/nodes/0/0: belongs to another family");
    make_sample(&s);
    s.family[1].parent = 1;
    refused(arena, g, &s, "/families/1/parent: must be an earlier family");
    make_sample(&s);
    s.family[0].n_instances = 1;
    refused(arena, g, &s, "/families/0: expected at least 2 instances");
    make_sample(&s);
    s.inner[5] = N_NODES - 1;
    refused(arena, g, &s, "/families/1/nodes/5/0: lies outside the parent family");
    make_sample(&s);
    s.family[1].n_instances = 3;
    s.family[1].n_nodes = 2;
    s.inner[1] = FIRST + LAYER + 2;
    s.inner[2] = FIRST + LAYER + 3;
    refused(arena, g, &s,
            "/families/1/nodes/0/1: lies in another instance of the parent");
    make_sample(&s);
    s.family[1].n_instances = 5;
    refused(arena, g, &s, "/families/1: instance 2 of the parent holds 1");
    make_sample(&s);
    s.trimmed[1] = FIRST;
    refused(arena, g, &s, "/trimmed/1: node 2 belongs to a family");
    make_sample(&s);
    s.trimmed[1] = X;
    refused(arena, g, &s, "/trimmed/1: expected ascending node ids");
}

static void test_wiring(struct ap_arena *arena, const struct ap_graph *g,
                        const struct ap_graph *odd)
{
    struct sample s;

    make_sample(&s);
    s.f.n = 1;
    s.nodes[LAYER + 3] = FIRST + LAYER + 4;
    s.nodes[LAYER + 4] = FIRST + LAYER + 3;
    refused(arena, g, &s, "/families/0/nodes/1/3: operator, shape");
    make_sample(&s);
    s.f.n = 1;
    s.nodes[LAYER + 2] = FIRST + LAYER + 3;
    s.nodes[LAYER + 3] = FIRST + LAYER + 2;
    refused(arena, g, &s,
            "/families/0/nodes/1/2: has an operand that does not correspond");
    make_sample(&s);
    s.f.n = 1;
    refused(arena, odd, &s, "/families/0/nodes/2/5: has an operand inside its instance");

    /* the sum and the product alone: x and y outside, in layer 2 of `odd` the sum twice
     */
    static const int pairs[] = {FIRST + 5, FIRST + LAYER + 5, FIRST + 2 * LAYER + 5};
    make_sample(&s);
    s.family[0] = (struct ap_family){"p", -1, 3, 1, pairs, labels};
    s.f.n = 1;
    struct ap_err err = {0};
    CHECK(!ap_families_check(arena, g, &s.f, &err), "products alone: %s", err.msg);
    refused(arena, odd, &s,
            "/families/0/nodes/2/0: has an operand from outside that stands");
}

static void test_section(struct ap_arena *arena, const struct ap_graph *g)
{
    struct ap_at at = {.key = "families"};
    struct ap_families back;
    struct ap_err err = {0};
    struct ap_buf text = {0}, again = {0};
    struct sample s;

    make_sample(&s);
    ap_families_to_json(arena, g, &s.f, &text);
    json_t *o = json_loads(text.data, 0, NULL);
    CHECK(o && !ap_families_from_json(arena, o, &at, g, &back, &err), "read back: %s",
          err.msg);
    ap_families_to_json(arena, g, &back, &again);
    CHECK(!strcmp(text.data, again.data), "written again, the same bytes");
    json_t *families = json_object_get(o, "families");
    json_t *rows = json_object_get(json_array_get(families, 0), "nodes");
    json_array_set_new(json_array_get(rows, 1), 0, json_integer(0));
    CHECK(ap_families_from_json(arena, o, &at, g, &back, &err) &&
              strstr(err.msg, "/families/families/0/nodes/1/0: "),
          "a wrong node is refused: %s", err.msg);
    err.msg[0] = '\0';
    json_array_remove(json_array_get(rows, 2), 0);
    CHECK(ap_families_from_json(arena, o, &at, g, &back, &err) &&
              strstr(err.msg, "/families/families/0/nodes/2: expected an array of 6"),
          "a short instance is refused: %s", err.msg);
    json_decref(o);
    ap_buf_free(&text);
    ap_buf_free(&again);
}

/* Reductions by equal computations are identical whatever the computations' ids are. */
static void test_identity(void)
{
    struct ap_arena arena = {0};
    struct ap_build b;
    struct ap_graph g;
    struct ap_err err = {""};
    const int64_t dim0 = 0, dim1 = 1, dims[2] = {4, 4};
    int node[4];

    ap_build_init(&b, &arena);
    int x = ap_build_param(&b, "x", ap_build_shape(&b, AP_F32, 2, dims), AP_ROLE_INPUT);
    node[0] = ap_build_reduce(&b, x, AP_RED_SUM, 1, &dim0);
    node[1] = ap_build_reduce(&b, x, AP_RED_SUM, 1, &dim0);
    node[2] = ap_build_reduce(&b, x, AP_RED_MAX, 1, &dim0);
    node[3] = ap_build_reduce(&b, x, AP_RED_SUM, 1, &dim1);
    struct ap_attrs other = *b.nodes[node[1]].attrs; /* the same computation again */
    other.to_apply = ap_build_add_reducer(&b, b.reducers[other.to_apply]);
    b.nodes[node[1]].attrs = &other;
    struct ap_result result = {.node = node[3], .role = AP_ROLE_AUX, .alias = -1};
    CHECK(!ap_build_finish(&b, "reductions", 1, &result, &g, &err), "built%s", err.msg);
    uint64_t *sig = AP_NEW_N(&arena, g.n_nodes, uint64_t);
    ap_node_signatures(&g, sig);
    CHECK(ap_nodes_identical(&g, node[0], node[1]) && sig[node[0]] == sig[node[1]],
          "reducers are compared by what they compute");
    CHECK(!ap_nodes_identical(&g, node[0], node[2]) && sig[node[0]] != sig[node[2]] &&
              !ap_nodes_identical(&g, node[0], node[3]) && sig[node[0]] != sig[node[3]],
          "another computation or dimension makes another node");
    ap_arena_free(&arena);
}

int main(void)
{
    struct ap_arena arena = {0};
    struct ap_families_summary sum;
    struct ap_graph g, odd;
    struct ap_err err = {0};
    struct sample s;

    make_graph(&arena, false, &g);
    make_graph(&arena, true, &odd);
    make_sample(&s);
    CHECK(!ap_families_check(&arena, &g, &s.f, &err), "the sample is sound: %s", err.msg);
    test_places(&arena, &g);
    test_wiring(&arena, &g, &odd);
    test_section(&arena, &g);
    make_sample(&s);
    ap_families_sum(&arena, &g, &s.f, &sum);
    CHECK(sum.n_outer == 1 && sum.n_instances == 3 && sum.nodes == 3 * LAYER,
          "one outer family of three instances");
    CHECK(sum.weights == 3 && sum.all_weights == 4 && sum.n_distinct == 2,
          "the head's weight is a block of its own");
    CHECK(ap_nodes_identical(&g, FIRST + 2, FIRST + 3) &&
              !ap_nodes_identical(&g, FIRST + 3, FIRST + 4) &&
              !ap_nodes_identical(&g, X, FIRST),
          "operators and roles tell nodes apart");
    ap_arena_free(&arena);
    test_identity();
    return tap_done();
}
