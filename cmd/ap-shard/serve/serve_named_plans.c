/*
 * Problem: every search on a mesh starts from the named plans, and making each of them
 * takes passes over the whole graph. Idea: on most meshes with as many axes a named plan
 * is the same (ap_mesh_queries_agree), and is made once, by one of the servers that have
 * the shared cache in common. Cost: making each named plan, for each distinct set of
 * answers to its queries about the mesh.
 */
#include "serve/serve.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Named plans that are rarely worse than another one in both seconds and memory. */
static const char *const starts[] = {"data",     "zero2",       "zero3",
                                     "megatron", "megatron-sp", "expert"};
#define N_STARTS ((int)(sizeof starts / sizeof *starts))

static bool is_wanted(int row)
{
    for (int i = 0; i < N_STARTS; i++)
        if (!strcmp(ap_named_plans[row].name, starts[i]))
            return true;
    return false;
}

static size_t rounded(size_t bytes)
{
    const size_t align = _Alignof(max_align_t);
    return (bytes + align - 1) / align * align;
}

/* A copy, in the room at hand. */
static void *put(char **room, const void *from, size_t bytes)
{
    void *at = *room;
    if (!from)
        return NULL;
    memcpy(at, from, bytes);
    *room += rounded(bytes);
    return at;
}

/* A copy with all that it points to, as item `item` of the shared cache; without room
 * there, in the arena. */
static const struct serve_named_plan *keep(struct ap_arena *arena,
                                           struct serve_shared *shared, int item,
                                           const struct serve_named_plan *w,
                                           const struct shard_task *task)
{
    size_t nodes = (size_t)task->graph->n_nodes,
           choices = (size_t)task->nests->n * sizeof *w->choice,
           queries = (size_t)w->queries.n * sizeof *w->queries.query,
           bytes = rounded(sizeof *w) + rounded(queries) + rounded(choices) +
                   2 * rounded(nodes);
    char *room = item >= 0 ? serve_shared_room(shared, bytes) : NULL;
    bool in_shared = room;

    if (!in_shared)
        room = ap_arena_alloc(arena, bytes);
    struct serve_named_plan *kept = put(&room, w, sizeof *w);
    kept->queries.arena = NULL;
    kept->queries.query = put(&room, w->queries.query, queries);
    kept->choice = put(&room, w->choice, choices);
    kept->regather = put(&room, w->regather, nodes);
    kept->whole = put(&room, w->whole, nodes);
    if (in_shared)
        serve_shared_end(shared, item, kept);
    return kept;
}

static const struct serve_named_plan *make(struct ap_arena *arena,
                                           struct serve_named_plans *named,
                                           const struct shard_task *task, int row)
{
    struct serve_named_plan w = {.row = row, .mesh = task->cost->mesh};
    struct ap_plan plan = shard_empty_plan(task);
    struct ap_arena scratch = {0};
    struct ap_err ignored = {0};
    int item = serve_shared_begin(named->shared, row, &w.mesh);

    w.queries.arena = &scratch;
    const struct ap_named_plan_how how = {.links = &named->links, .queries = &w.queries};
    w.exists = ap_named_plan_make(&scratch, row, &plan, &how, &ignored) == 0;
    if (w.exists) {
        w.choice = plan.choice;
        w.regather = plan.regather;
        w.whole = plan.whole;
    }
    const struct serve_named_plan *kept = keep(arena, named->shared, item, &w, task);
    ap_arena_free(&scratch);
    return kept;
}

/* The named plans of a mesh, not priced. First those that no other process is making. */
static void list_named_plans(struct ap_arena *arena, struct serve_named_plans *named,
                             struct shard_task *task)
{
    const struct ap_mesh *mesh = &task->cost->mesh;
    struct ap_plan *plans = AP_NEW_N(arena, N_STARTS, struct ap_plan);
    const char **name = AP_NEW_N(arena, N_STARTS, const char *);
    const struct serve_named_plan *made[AP_N_NAMED_PLANS] = {NULL};
    struct ap_err ignored = {0};

    for (int pass = 0; pass < 2; pass++)
        for (int row = 0; row < AP_N_NAMED_PLANS; row++) {
            bool begun;
            if (!is_wanted(row) || made[row])
                continue;
            made[row] = serve_shared_find(named->shared, row, mesh, &begun);
            if (!made[row] && (pass > 0 || !begun))
                made[row] = make(arena, named, task, row);
        }
    for (int row = 0; row < AP_N_NAMED_PLANS; row++) {
        const struct serve_named_plan *w = made[row];
        if (!w || !w->exists)
            continue;
        struct ap_plan plan = shard_empty_plan(task);
        plan.choice = w->choice;
        plan.regather = w->regather;
        plan.whole = w->whole;
        if (task->cost->variant != AP_COST_DEFAULT && /* where compute is free */
            ap_plan_check(&plan, task->cost, &ignored))
            continue;
        plans[task->n_plans] = plan;
        name[task->n_plans++] = ap_named_plans[row].name;
    }
    task->plans = plans;
    task->plan_name = name;
}

struct serve_start *
serve_start_new(const struct ap_graph *g, const struct ap_nests *nests,
                const struct ap_families *families, const struct ap_cost *cost,
                const struct shard_request *req, struct serve_named_plans *named)
{
    const struct shard_algorithm *row = &shard_algorithms()[req->algorithm];
    struct serve_start *r = ap_xrealloc(NULL, sizeof *r);

    *r = (struct serve_start){.task = {.graph = g,
                                       .nests = nests,
                                       .cost = cost,
                                       .families = families,
                                       .params = &req->params,
                                       .named_plan = row->named_plan}};
    if (row->run == shard_ilp)
        list_named_plans(&r->arena, named, &r->task);
    return r;
}

void serve_start_free(struct serve_start *start)
{
    ap_arena_free(&start->arena);
    free(start);
}

void serve_named_plans_free(struct serve_named_plans *named)
{
    ap_arena_free(&named->links.arena);
    serve_shared_free(named->shared);
}
