/*
 * Degrees: the plan of given degrees has these degrees, for documents named as arguments
 * (graphs of transformers with a batch of 8 or more); names of layers.
 */
#include "grid/line_plan.h"

#include <stdlib.h>
#include <string.h>

#include "doc/doc.h"
#include "sample_plan.h"
#include "tap.h"

#define DIMS ",\"lhs_contracting_dims\":[1],\"rhs_contracting_dims\":[0]"

struct asked {
    const char *mesh;
    enum ap_axis_split use[2];
    bool sequence, experts;
    int zero[2];
    const char *said;
    enum ap_axis_split expert_use[2]; /* where experts use some axis in their own way */
};

static const struct asked cases[] = {
    {"4", {AP_USE_DATA}, false, false, {0}, "DP 4", {AP_USE_NONE}},
    {"4", {AP_USE_DATA}, false, false, {2}, "DP 4 · ZeRO-2", {AP_USE_NONE}},
    {"4", {AP_USE_DATA}, false, false, {3}, "DP 4 · ZeRO-3", {AP_USE_NONE}},
    {"4", {AP_USE_TENSOR}, false, false, {0}, "TP 4", {AP_USE_NONE}},
    {"4",
     {AP_USE_TENSOR},
     true,
     false,
     {0},
     "TP 4 with sequence parallelism",
     {AP_USE_NONE}},
    {"4", {AP_USE_CONTEXT}, false, false, {0}, "CP 4", {AP_USE_NONE}},
    {"2x2",
     {AP_USE_DATA, AP_USE_TENSOR},
     true,
     false,
     {2, 0},
     "TP 2 with sequence parallelism · DP 2 · ZeRO-2",
     {AP_USE_NONE}},
    {"2x2",
     {AP_USE_DATA, AP_USE_TENSOR},
     false,
     false,
     {3, 0},
     "TP 2 · DP 2 · ZeRO-3",
     {AP_USE_NONE}},
    {"2x4",
     {AP_USE_DATA, AP_USE_DATA},
     false,
     false,
     {0, 3},
     "DP 8 · ZeRO-3 over 4",
     {AP_USE_NONE}},
    {"2x2",
     {AP_USE_CONTEXT, AP_USE_DATA},
     false,
     false,
     {0, 0},
     "CP 2 · DP 2",
     {AP_USE_NONE}},
    {"2x2",
     {AP_USE_NONE, AP_USE_DATA},
     false,
     false,
     {0, 0},
     "DP 2 · replicated 2",
     {AP_USE_NONE}},
    {"4", {AP_USE_DATA}, false, true, {0}, "DP 4 · EP 4", {AP_USE_NONE}},
    {"2x2",
     {AP_USE_DATA, AP_USE_DATA},
     false,
     true,
     {2, 2},
     "DP 4 · EP 2 · ZeRO-2",
     {AP_USE_NONE}},
    {"1", {AP_USE_NONE}, false, false, {0}, "1 device", {AP_USE_NONE}},
    /* experts in a grid of their own */
    {"2x2",
     {AP_USE_DATA, AP_USE_TENSOR},
     true,
     true,
     {2, 0},
     "EP 2 x expert TP 2",
     {AP_USE_EXPERT, AP_USE_TENSOR}},
    {"2x2",
     {AP_USE_DATA, AP_USE_TENSOR},
     false,
     true,
     {0, 0},
     "EP 4",
     {AP_USE_EXPERT, AP_USE_EXPERT}},
    {"2x2",
     {AP_USE_DATA, AP_USE_TENSOR},
     true,
     true,
     {2, 2},
     "expert TP 1",
     {AP_USE_DATA, AP_USE_DATA}},
    {"2x2",
     {AP_USE_CONTEXT, AP_USE_DATA},
     false,
     true,
     {2, 2},
     "EP 2 over CP, expert TP 2 over DP",
     {AP_USE_EXPERT, AP_USE_TENSOR}},
};

static bool has_experts(const struct ap_graph *g)
{
    return strstr(g->name, "moe") != NULL;
}

static void test_case(const struct asked *c, const struct ap_graph *g,
                      const struct ap_nests *nests)
{
    struct ap_arena arena = {0};
    struct ap_plan plan = {.graph = g, .nests = nests};
    struct ap_axis_uses want = {.degrees.sequence = c->sequence};
    struct ap_plan_degrees got;
    struct ap_err err = {0};
    struct ap_buf said = {0};

    ap_mesh_parse(&arena, c->mesh, &plan.mesh, &err);
    for (int a = 0; a < plan.mesh.n_axes; a++) {
        /* where weights are split by their first use, experts are their first dimension
         */
        bool expert = (c->experts && a == plan.mesh.n_axes - 1) ||
                      (has_experts(g) && c->use[a] == AP_USE_TENSOR);
        want.use[a] = c->use[a];
        want.expert_use[a] = c->expert_use[a] != AP_USE_NONE ? c->expert_use[a]
                             : expert                        ? AP_USE_EXPERT
                                                             : c->use[a];
        want.zero[a] = (uint8_t)c->zero[a];
    }
    ap_degrees_count(&want, &plan.mesh, c->experts || has_experts(g));
    if (line_plan_degrees(&arena, &want, &plan, &err)) {
        CHECK(false, "%s, %s: %s", g->name, c->said, err.msg);
    } else {
        ap_degrees_find(&arena, &plan, 1, &got);
        ap_degrees_print(&got.all.degrees, &said);
        CHECK(ap_degrees_equal(&got.all.degrees, &want.degrees) &&
                  (has_experts(g) || !strcmp(said.data, c->said)),
              "%s on %s: %s (%s)", g->name, c->mesh, c->said, said.data);
        CHECK(got.agreeing > 0.99 * got.flops || c->experts || has_experts(g),
              "%s: %s of %.3f of the FLOPs", g->name, c->said,
              got.flops > 0 ? got.agreeing / got.flops : 1);
        ap_buf_free(&said);
        ap_degrees_print_layers(&got, &said);
        CHECK(said.len == 0 || has_experts(g), "%s: %s: layers are alike%s%s", g->name,
              c->said, said.len ? ": " : "", said.len ? said.data : "");
    }
    ap_buf_free(&said);
    ap_arena_free(&arena);
}

static void test_file(const char *path)
{
    struct ap_arena arena = {0};
    struct ap_doc doc;
    struct ap_graph g;
    struct ap_nests nests;
    struct ap_err err = {0};

    if (ap_doc_read(&arena, path, &doc, &err) || ap_doc_graph(&arena, &doc, &g, &err)) {
        CHECK(false, "%s: %s", path, err.msg);
        return;
    }
    ap_group(&arena, &g);
    CHECK(ap_nests_build(&arena, &g, &nests, &err) == 0, "%s: nests", path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!cases[i].experts || has_experts(&g))
            test_case(&cases[i], &g, &nests);
    ap_arena_free(&arena);
}

#define NAMED(i, role, name, shape)                                                 \
    "{\"op\":\"parameter\",\"name\":\"" name "\",\"param\":" #i ",\"role\":\"" role \
    "\",\"shape\":\"" shape "\"}"

/* A chain of four dense layers of these weights, contracted in the order given. */
#define CHAIN(a, b, c, d, order1, order2, order3, order4)                                                \
    "{\"autopar\":1,\"graph\":{\"name\":\"t\",\"nodes\":[" NAMED(0, "input", "x", "f32[8,4]") "," NAMED( \
        1, "weight", a,                                                                                  \
        "f32[4,4]") "," NAMED(2, "weight", b,                                                            \
                              "f32[4,4]") "," NAMED(3, "weight", c,                                      \
                                                    "f32[4,4]") "," NAMED(4, "weight",                   \
                                                                          d, "f32[4,4]")                 \
        NODE("dot", "a", "0," order1, "f32[8,4]", DIMS) NODE("dot", "b", "5," order2,                    \
                                                             "f32[8,4]", DIMS)                           \
            NODE("dot", "c", "6," order3, "f32[8,4]", DIMS) NODE(                                        \
                "dot", "d", "7," order4, "f32[8,4]",                                                     \
                DIMS) "],\"results\":[{\"node\":8,\"role\":\"loss\"}],\"reducers\":[]}}"

static void find_layers(struct ap_arena *arena, const char *json,
                        struct ap_layers *layers)
{
    struct ap_err err = {0};
    struct sample s;

    *layers = (struct ap_layers){.n = 0};
    if (load_sample(arena, json, &s, &err) == 0)
        ap_layers_find(arena, &s.g, &s.nests, layers);
    else
        CHECK(false, "the graph is read: %s", err.msg);
}

/* Layers are the first numbers of which there are several; 7 and 2 are in all names. */
static void test_layers(void)
{
    struct ap_arena arena = {0};
    struct ap_layers l;

    find_layers(&arena,
                CHAIN("net7.v2.embed", "net7.v2.block.11.fc1.w", "net7.v2.block.9.fc1.w",
                      "net7.v2.block.11.fc2.w", "1", "3", "2", "4"),
                &l);
    CHECK(l.n == 2 && l.layer[0].number == 9 && l.layer[1].number == 11,
          "two layers in the order of their use");
    CHECK(l.n == 2 && !strcmp(l.layer[0].stem, "net7.v2.block.") && l.n_stems == 1,
          "their stem");
    CHECK(l.n == 2 && l.of_node[1] == -1 && l.of_node[2] == 1 && l.of_node[3] == 0 &&
              l.of_node[4] == 1,
          "weights by layer");
    find_layers(&arena,
                CHAIN("up/0/w", "up/1/w", "down/0/w", "down/1/w", "1", "3", "2", "4"),
                &l);
    CHECK(l.n == 2 && l.n_stems == 1 && l.of_node[3] == 0 && l.of_node[4] == 1,
          "stems that take turns are one");
    find_layers(&arena,
                CHAIN("up/0/w", "up/1/w", "down/0/w", "down/1/w", "1", "2", "3", "4"),
                &l);
    CHECK(l.n == 4 && l.n_stems == 2, "stems behind each other are not");
    ap_arena_free(&arena);
}

/* Random plans: devices by use multiply to the mesh's, and there are words. */
static void test_random(const struct sample_graph *sg)
{
    int wrong = 0, silent = 0;

    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct ap_arena arena = {0};
        struct ap_err err = {0};
        struct sample_plan p;
        struct ap_plan_degrees d;
        struct ap_buf said = {0};
        if (sample_plan(&arena, sg->json, seed, &p, &err) == 0) {
            ap_degrees_find(&arena, &p.plan, 1, &d);
            const struct ap_degrees *all = &d.all.degrees;
            wrong += all->tensor * all->data * all->context * all->idle !=
                     ap_mesh_devices(&p.plan.mesh);
            wrong += d.agreeing > d.flops * (1 + 1e-9);
            ap_degrees_print(all, &said);
            ap_degrees_print_layers(&d, &said);
            silent += said.len == 0;
        }
        ap_cost_free(&p.cost);
        ap_buf_free(&said);
        ap_arena_free(&arena);
    }
    CHECK(wrong == 0 && silent == 0, "%s: random plans (%d, %d)", sg->name, wrong,
          silent);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        test_file(argv[i]);
    for (int i = 0; argc == 1 && i < N_SAMPLE_GRAPHS; i++)
        test_random(&sample_graphs[i]);
    if (argc == 1)
        test_layers();
    return tap_done();
}
