/* Plans written by rules: what is taken over from another mesh. */
#include "plan/named_plan.h"

#include <string.h>

#include "sample_graphs.h"
#include "tap.h"

#define MOST 13

struct written {
    struct ap_mesh mesh;
    struct ap_plan plan;
    struct ap_mesh_queries queries;
    bool exists;
};

/* Number k: [1 to 13], [1 to 13] x [1 to 13]. */
static struct ap_mesh mesh_of(int k)
{
    int a = k / MOST, b = k % MOST + 1;
    if (a == 0)
        return (struct ap_mesh){1, {b}, {"x"}, 0};
    return (struct ap_mesh){2, {a, b}, {"x", "y"}, 0};
}

static bool same(const struct written *a, const struct written *b)
{
    size_t n = (size_t)a->plan.nests->n, nodes = (size_t)a->plan.graph->n_nodes;
    if (!a->exists || !b->exists)
        return a->exists == b->exists;
    return !memcmp(a->plan.choice, b->plan.choice, n * sizeof *a->plan.choice) &&
           !memcmp(a->plan.regather, b->plan.regather, nodes) &&
           !a->plan.whole == !b->plan.whole &&
           (!a->plan.whole || !memcmp(a->plan.whole, b->plan.whole, nodes));
}

/* All pairs of meshes; returns how many were taken over. unlike: plans that are others
 * without what the meshes share. */
static int compare(struct ap_arena *arena, const struct sample *s, int row, int *differ,
                   int *unlike)
{
    static struct written of[MOST * (MOST + 1)];
    struct ap_named_plan_links links = {.made = NULL};
    int n = MOST * (MOST + 1), taken = 0;

    for (int k = 0; k < n; k++) {
        struct ap_err ignored = {0};
        of[k] = (struct written){.mesh = mesh_of(k), .queries.arena = arena};
        of[k].plan = (struct ap_plan){.graph = &s->g, .nests = &s->nests};
        of[k].plan.mesh = of[k].mesh;
        struct written alone = of[k];
        alone.exists = ap_named_plan_make(arena, row, &alone.plan, NULL, &ignored) == 0;
        const struct ap_named_plan_how how = {.links = &links, .queries = &of[k].queries};
        of[k].exists = ap_named_plan_make(arena, row, &of[k].plan, &how, &ignored) == 0;
        *unlike += !same(&of[k], &alone);
    }
    ap_arena_free(&links.arena);
    for (int k = 0; k < n; k++)
        for (int i = 0; i < n; i++)
            if (i != k &&
                ap_mesh_queries_agree(&of[k].queries, &of[k].mesh, &of[i].mesh)) {
                taken++;
                *differ += !same(&of[k], &of[i]);
            }
    return taken;
}

int main(void)
{
    struct ap_arena arena = {0};
    static const char *const rows[] = {"data",   "zero1",      "zero2",
                                       "zero3",  "megatron",   "megatron-sp",
                                       "expert", "largest-dim"};

    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        int differ = 0, unlike = 0, taken = 0;
        CHECK(!strcmp(ap_named_plans[r].name, rows[r]), "row %zu is %s", r, rows[r]);
        for (int i = 0; i < N_SAMPLE_GRAPHS; i++) {
            struct ap_err err = {0};
            struct sample s;
            struct ap_mark mark = ap_arena_mark(&arena);
            if (load_sample(&arena, sample_graphs[i].json, &s, &err)) {
                CHECK(false, "%s: %s", sample_graphs[i].name, err.msg);
                continue;
            }
            taken += compare(&arena, &s, (int)r, &differ, &unlike);
            ap_arena_rewind(&arena, mark);
        }
        CHECK(taken > 0, "%s: some meshes agree (%d)", rows[r], taken);
        CHECK(differ == 0, "%s: those have the plan that they would get (%d have not)",
              rows[r], differ);
        CHECK(unlike == 0, "%s: with links of other meshes and without (%d differ)",
              rows[r], unlike);
    }
    ap_arena_free(&arena);
    return tap_done();
}
