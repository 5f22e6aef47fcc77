/*
 * structure and scope on chains of random layers, forward only: families are sound by
 * ap_families_check, and every layer's weight stands for those of the layers of its kind,
 * where kinds take turns too.
 */
#include <stdlib.h>
#include <string.h>

#include "structure.h"

#include "doc/doc.h"
#include "tap.h"

enum { BODY = 9, MAX_LAYERS = 12, MAX_KINDS = 3 };

static uint64_t seed_state;

static int draw(int n)
{
    seed_state = seed_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed_state >> 33) % (uint64_t)n);
}

static const char *const unary[] = {"tanh", "exponential", "negate", "abs"};
static const char *const binary[] = {"add", "multiply", "subtract", "maximum"};

/* A layer contracts its input with its weight; then each node reads the one before. */
struct kind {
    int op[BODY];
    int back[BODY]; /* 0: unary, else how far before its second operand is */
};

static void draw_kind(struct kind *kind)
{
    for (int j = 0; j < BODY; j++) {
        kind->op[j] = draw(4);
        kind->back[j] = draw(3) && j ? 1 + draw(j) : 0;
    }
}

static void put_layer(struct ap_buf *out, const struct kind *kind, int layer, int input,
                      int weight, int id)
{
    ap_buf_printf(
        out,
        ",{\"op\":\"dot\",\"shape\":\"f32[4,4]\",\"in\":[%d,%d],\"scope\":\"l_%d\","
        "\"lhs_contracting_dims\":[1],\"rhs_contracting_dims\":[0]}",
        input, weight, layer);
    for (int j = 0; j < BODY; j++) {
        int at = id + 1 + j;
        ap_buf_printf(out,
                      ",{\"op\":\"%s\",\"shape\":\"f32[4,4]\",\"scope\":\"l_%d\","
                      "\"in\":[%d",
                      kind->back[j] ? binary[kind->op[j]] : unary[kind->op[j]], layer,
                      at - 1);
        if (kind->back[j])
            ap_buf_printf(out, ",%d", at - 1 - kind->back[j]);
        ap_buf_puts(out, "]}");
    }
}

static void parse(struct ap_arena *arena, const struct ap_buf *text, struct ap_graph *g)
{
    struct ap_err err = {0};
    struct ap_doc doc;

    if (ap_doc_parse(arena, "test", text->data, text->len, &doc, &err) ||
        ap_doc_graph(arena, &doc, g, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
}

/* Layers of kinds in turn; node 0 is the input, the weight of layer i is node 1 + i. */
static void make_chain(struct ap_arena *arena, const struct kind *kinds, int n_kinds,
                       int n_layers, struct ap_graph *g)
{
    struct ap_buf text = {0};
    int id = 1 + n_layers, last = 0;

    ap_buf_puts(&text, "{\"autopar\":1,\"graph\":{\"nodes\":[");
    for (int i = 0; i <= n_layers; i++)
        ap_buf_printf(&text,
                      "%s{\"op\":\"parameter\",\"shape\":\"f32[4,4]\",\"param\":%d,"
                      "\"role\":\"%s\"}",
                      i ? "," : "", i, i ? "weight" : "input");
    for (int i = 0; i < n_layers; i++) {
        put_layer(&text, &kinds[i % n_kinds], i, last, 1 + i, id);
        id += 1 + BODY;
        last = id - 1;
    }
    ap_buf_printf(&text, "],\"results\":[{\"node\":%d,\"role\":\"loss\"}]}}", last);
    parse(arena, &text, g);
    ap_buf_free(&text);
}

/* Whether the families, of all levels, say that nodes a and b stand for each other. */
static bool stand_for(const struct ap_families *f, int n_nodes, int a, int b)
{
    int *class = ap_xrealloc(NULL, (size_t)n_nodes * sizeof(int));

    for (int v = 0; v < n_nodes; v++)
        class[v] = v;
    for (int k = 0; k < f->n; k++)
        for (int at = 0; at < f->family[k].n_instances * f->family[k].n_nodes; at++) {
            int from = class[f->family[k].nodes[at]];
            int to = class[f->family[k].nodes[at % f->family[k].n_nodes]];
            for (int v = 0; v < n_nodes; v++)
                class[v] = class[v] == from ? to : class[v];
        }
    bool same = class[a] == class[b];
    free(class);
    return same;
}

/* Chains of n_kinds kinds; both algorithms find them, and nothing unsound. */
static void test_chains(prune_fn *run, const char *name, int n_kinds)
{
    const struct prune_params params = {
        .min_duplicate = 2, .min_nodes = 4, .max_depth = 20};
    int n_graphs = 60, unsound = 0, missed = 0;

    for (int k = 0; k < n_graphs; k++) {
        struct ap_arena arena = {0};
        struct ap_families f = {.algorithm = name};
        struct ap_err err = {0};
        struct kind kinds[MAX_KINDS];
        struct ap_graph g;
        seed_state = (uint64_t)k * 977 + (uint64_t)n_kinds;
        int n_layers = n_kinds * (2 + draw(MAX_LAYERS / n_kinds - 1));
        for (int i = 0; i < n_kinds; i++)
            draw_kind(&kinds[i]);
        make_chain(&arena, kinds, n_kinds, n_layers, &g);
        if (run(&arena, &g, &params, &f, &err) ||
            ap_families_check(&arena, &g, &f, &err)) {
            printf("# %s\n", err.msg);
            unsound++;
        }
        for (int i = n_kinds; i < n_layers; i++)
            missed += !stand_for(&f, g.n_nodes, 1 + i, 1 + i % n_kinds);
        ap_arena_free(&arena);
    }
    CHECK(!unsound, "%s, %d kinds: all sound", name, n_kinds);
    CHECK(!missed, "%s, %d kinds: %d weights stand for none", name, n_kinds, missed);
}

/* Chains of one layer of each of some kinds hold nothing that repeats as a whole. */
static void test_no_layers(void)
{
    struct ap_arena arena = {0};
    const struct prune_params params = {
        .min_duplicate = 2, .min_nodes = BODY, .max_depth = 20};
    struct kind kinds[2] = {{.op = {0, 1, 0, 1, 0, 1, 0, 1, 0}},
                            {.op = {2, 3, 2, 3, 2, 3, 2, 3, 2}}};
    struct ap_families f = {0};
    struct ap_err err = {0};
    struct ap_graph g;

    make_chain(&arena, kinds, 2, 2, &g);
    CHECK(!prune_structure(&arena, &g, &params, &f, &err) && !f.n,
          "two layers of other operators: no family");
    ap_arena_free(&arena);
}

/* ---- README of cmd/ap-prune ---- */

static int compare_hash(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* A chain of eight products has 1, 3, 5, 7, 8 colours at radius 0 to 4. */
static void test_readme_colors(void)
{
    enum { N = 8 };
    static const int want[STRUCTURE_COLORS] = {1, 3, 5, 7, 8};
    struct ap_arena arena = {0};
    struct ap_buf text = {0};
    struct ap_graph g;
    struct structure s;

    ap_buf_puts(&text, "{\"autopar\":1,\"graph\":{\"nodes\":[");
    for (int i = 0; i <= N; i++)
        ap_buf_printf(&text,
                      "%s{\"op\":\"parameter\",\"shape\":\"f32[4,4]\",\"param\":%d,"
                      "\"role\":\"%s\"}",
                      i ? "," : "", i, i ? "weight" : "input");
    for (int i = 1; i <= N; i++)
        ap_buf_printf(&text,
                      ",{\"op\":\"dot\",\"shape\":\"f32[4,4]\",\"in\":[%d,%d],"
                      "\"lhs_contracting_dims\":[1],\"rhs_contracting_dims\":[0]}",
                      i > 1 ? N + i - 1 : 0, i);
    ap_buf_printf(&text, "],\"results\":[{\"node\":%d,\"role\":\"aux\"}]}}", 2 * N);
    parse(&arena, &text, &g);
    structure_init(&s, &arena, prune_space_new(&arena, &g));
    for (int r = 0; r < STRUCTURE_COLORS; r++) {
        uint64_t color[N];
        int n = 1;
        memcpy(color, s.color[r] + N + 1, sizeof color);
        qsort(color, N, sizeof *color, compare_hash);
        for (int i = 1; i < N; i++)
            n += color[i] != color[i - 1];
        CHECK(n == want[r], "README of cmd/ap-prune: %d colours of a chain, radius %d", n,
              r);
    }
    ap_buf_free(&text);
    ap_arena_free(&arena);
}

/* Two regions of one layer, the second with a reader more at its end. */
static void test_readme_align(void)
{
    static const int a[3] = {1, 2, 3}, b[4] = {5, 6, 7, 8};
    struct ap_arena arena = {0};
    struct ap_buf text = {0};
    struct ap_graph g;
    int counterpart[3];

    ap_buf_puts(
        &text,
        "{\"autopar\":1,\"graph\":{\"nodes\":["
        "{\"op\":\"parameter\",\"shape\":\"f32[4]\",\"param\":0,\"role\":\"input\"},"
        "{\"op\":\"tanh\",\"shape\":\"f32[4]\",\"in\":[0]},"
        "{\"op\":\"exponential\",\"shape\":\"f32[4]\",\"in\":[1]},"
        "{\"op\":\"add\",\"shape\":\"f32[4]\",\"in\":[2,1]},"
        "{\"op\":\"parameter\",\"shape\":\"f32[4]\",\"param\":1,\"role\":\"input\"},"
        "{\"op\":\"tanh\",\"shape\":\"f32[4]\",\"in\":[4]},"
        "{\"op\":\"exponential\",\"shape\":\"f32[4]\",\"in\":[5]},"
        "{\"op\":\"add\",\"shape\":\"f32[4]\",\"in\":[6,5]},"
        "{\"op\":\"negate\",\"shape\":\"f32[4]\",\"in\":[7]}],"
        "\"results\":[{\"node\":3,\"role\":\"aux\"},{\"node\":8,\"role\":\"aux\"}]}}");
    parse(&arena, &text, &g);
    struct prune_space *space = prune_space_new(&arena, &g);
    int n = prune_align(space, a, 3, b, 4, counterpart);
    CHECK(n == 3 && counterpart[0] == 5 && counterpart[1] == 6 && counterpart[2] == 7,
          "README of cmd/ap-prune: 3 pairs, the reader that only one region has is left");
    ap_buf_free(&text);
    ap_arena_free(&arena);
}

int main(void)
{
    for (int n = 1; n <= MAX_KINDS; n++) {
        test_chains(prune_structure, "structure", n);
        test_chains(prune_scope, "scope", n);
    }
    test_no_layers();
    test_readme_colors();
    test_readme_align();
    return tap_done();
}
