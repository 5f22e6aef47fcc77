/*
 * Problem: every search on a mesh starts from the plans that people type, and each of
 * these takes passes over the whole graph. Idea: on most meshes with as many axes they
 * are the same (ap_mesh_queries_agree), and are made once, by one of the servers that
 * have a shelf in common. Cost: that of the rules, for each set of answers to what they
 * ask of a mesh.
 */
#include "serve/serve.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Rules that none of the others covers in both time and memory, as a rule. */
static const char *const rules[] = {"data",     "zero2",       "zero3",
                                    "megatron", "megatron-sp", "expert"};
#define N_RULES ((int)(sizeof rules / sizeof *rules))

static bool is_wanted(int row)
{
    for (int i = 0; i < N_RULES; i++)
        if (!strcmp(ap_named_plans[row].name, rules[i]))
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

/* With all that it points to, on the shelf if it is its item there, or in the book. */
static const struct serve_written *keep(struct serve_book *book, int item,
                                        const struct serve_written *w,
                                        const struct shard_task *task)
{
    size_t nodes = (size_t)task->graph->n_nodes,
           choices = (size_t)task->nests->n * sizeof *w->choice,
           looks = (size_t)w->looks.n * sizeof *w->looks.query,
           bytes = rounded(sizeof *w) + rounded(looks) + rounded(choices) +
                   2 * rounded(nodes);
    char *room = item >= 0 ? serve_cache_room(book->shelf, bytes) : NULL;
    bool shared = room;

    if (!shared)
        room = ap_arena_alloc(&book->arena, bytes);
    struct serve_written *kept = put(&room, w, sizeof *w);
    kept->looks.arena = NULL;
    kept->looks.query = put(&room, w->looks.query, looks);
    kept->choice = put(&room, w->choice, choices);
    kept->regather = put(&room, w->regather, nodes);
    kept->whole = put(&room, w->whole, nodes);
    if (shared) {
        serve_cache_end(book->shelf, item, kept);
        return kept;
    }
    book->list =
        ap_xrealloc(book->list, (size_t)(book->n + 1) * sizeof(struct serve_written *));
    return book->list[book->n++] = kept;
}

static const struct serve_written *write_down(struct serve_book *book,
                                              const struct shard_task *task, int row)
{
    struct serve_written w = {.row = row, .mesh = task->cost->mesh};
    struct ap_plan plan = shard_empty_plan(task);
    struct ap_arena scratch = {0};
    struct ap_err ignored = {0};
    int item = serve_cache_begin(book->shelf, row, &w.mesh);

    w.looks.arena = &scratch;
    w.exists = ap_named_plan_make_noting(&scratch, row, &plan, &book->links, &w.looks,
                                         &ignored) == 0;
    if (w.exists) {
        w.choice = plan.choice;
        w.regather = plan.regather;
        w.whole = plan.whole;
    }
    const struct serve_written *kept = keep(book, item, &w, task);
    ap_arena_free(&scratch);
    return kept;
}

/* NULL: another process makes it, or one like it, and it is left to that one. */
static const struct serve_written *
look_up(struct serve_book *book, const struct shard_task *task, int row, bool leave)
{
    const struct ap_mesh *mesh = &task->cost->mesh;
    bool begun;

    for (int i = 0; i < book->n; i++)
        if (book->list[i]->row == row &&
            ap_mesh_queries_agree(&book->list[i]->looks, &book->list[i]->mesh, mesh))
            return book->list[i];
    const struct serve_written *w = serve_cache_find(book->shelf, row, mesh, &begun);
    if (w || (begun && leave))
        return w;
    return write_down(book, task, row);
}

/* The rules' plans, not priced. */
static void list_rules(struct ap_arena *arena, struct serve_book *book,
                       struct shard_task *task)
{
    struct ap_plan *plans = AP_NEW_N(arena, N_RULES, struct ap_plan);
    const char **name = AP_NEW_N(arena, N_RULES, const char *);
    const struct serve_written *written[AP_N_NAMED_PLANS] = {NULL};
    struct ap_err ignored = {0};

    for (int row = 0; row < AP_N_NAMED_PLANS; row++)
        if (is_wanted(row))
            written[row] = look_up(book, task, row, true);
    for (int row = 0; row < AP_N_NAMED_PLANS; row++) {
        if (is_wanted(row) && !written[row])
            written[row] = look_up(book, task, row, false);
        const struct serve_written *w = written[row];
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

struct serve_rules *
serve_rules_new(const struct ap_graph *g, const struct ap_nests *nests,
                const struct ap_families *families, const struct ap_cost *cost,
                const struct shard_request *req, struct serve_book *book)
{
    const struct shard_algorithm *row = &shard_algorithms()[req->algorithm];
    struct serve_rules *r = ap_xrealloc(NULL, sizeof *r);

    *r = (struct serve_rules){.task = {.graph = g,
                                       .nests = nests,
                                       .cost = cost,
                                       .families = families,
                                       .params = &req->params,
                                       .named_plan = row->named_plan}};
    if (row->run == shard_ilp)
        list_rules(&r->arena, book, &r->task);
    return r;
}

void serve_rules_free(struct serve_rules *given)
{
    ap_arena_free(&given->arena);
    free(given);
}

void serve_book_free(struct serve_book *book)
{
    ap_arena_free(&book->arena);
    ap_arena_free(&book->links.arena);
    serve_cache_free(book->shelf);
    free(book->list);
}
