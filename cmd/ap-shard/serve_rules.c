/*
 * Problem: every search on a mesh starts from the plans that people type, and each of
 * these takes passes over the whole graph. Idea: on most meshes with as many axes they
 * are the same (ap_baseline_alike), and are made once. Cost: that of the rules, for each
 * set of answers to what they ask of a mesh.
 */
#include "serve.h"

#include <stdlib.h>
#include <string.h>

/* Rules that none of the others covers in both time and memory, as a rule. */
static const char *const rules[] = {"data",     "zero2",       "zero3",
                                    "megatron", "megatron-sp", "expert"};
#define N_RULES ((int)(sizeof rules / sizeof *rules))

/* What a rule says on a mesh, and on those that are alike. */
struct serve_written {
    int row;
    struct ap_mesh mesh;
    struct ap_baseline_looks looks;
    bool exists;
    struct ap_choice_vec *choice;
    bool *remake, *whole;
};

static bool is_wanted(int row)
{
    for (int i = 0; i < N_RULES; i++)
        if (!strcmp(ap_baselines[row].name, rules[i]))
            return true;
    return false;
}

static struct serve_written *write_down(struct serve_book *book,
                                        const struct shard_task *task, int row)
{
    struct serve_written *w = AP_NEW(&book->arena, struct serve_written);
    struct ap_plan plan = shard_empty_plan(task);
    struct ap_arena scratch = {0};
    struct ap_err ignored = {0};

    w->row = row;
    w->mesh = task->cost->mesh;
    w->looks.arena = &book->arena;
    w->exists = ap_baseline_plan_noted(&scratch, row, &plan, &w->looks, &ignored) == 0;
    if (w->exists) {
        size_t nodes = (size_t)task->graph->n_nodes;
        w->choice = ap_arena_dup(&book->arena, plan.choice,
                                 (size_t)task->nests->n * sizeof *plan.choice);
        if (plan.remake)
            w->remake = ap_arena_dup(&book->arena, plan.remake, nodes);
        if (plan.whole)
            w->whole = ap_arena_dup(&book->arena, plan.whole, nodes);
    }
    ap_arena_free(&scratch);
    book->list =
        ap_xrealloc(book->list, (size_t)(book->n + 1) * sizeof(struct serve_written *));
    return book->list[book->n++] = w;
}

static const struct serve_written *look_up(struct serve_book *book,
                                           const struct shard_task *task, int row)
{
    for (int i = 0; i < book->n; i++)
        if (book->list[i]->row == row &&
            ap_baseline_alike(&book->list[i]->looks, &book->list[i]->mesh,
                              &task->cost->mesh))
            return book->list[i];
    return write_down(book, task, row);
}

/* The rules' plans, not priced. */
static void list_rules(struct ap_arena *arena, struct serve_book *book,
                       struct shard_task *task)
{
    struct ap_plan *plans = AP_NEW_N(arena, N_RULES, struct ap_plan);
    const char **name = AP_NEW_N(arena, N_RULES, const char *);
    struct ap_err ignored = {0};

    for (int row = 0; row < AP_N_BASELINES; row++) {
        const struct serve_written *w = is_wanted(row) ? look_up(book, task, row) : NULL;
        if (!w || !w->exists)
            continue;
        struct ap_plan plan = shard_empty_plan(task);
        plan.choice = w->choice;
        plan.remake = w->remake;
        plan.whole = w->whole;
        if (task->cost->variant != AP_COST_DEFAULT && /* where compute is free */
            ap_plan_check(&plan, task->cost, &ignored))
            continue;
        plans[task->n_plans] = plan;
        name[task->n_plans++] = ap_baselines[row].name;
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
                                       .baseline = row->baseline}};
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
    free(book->list);
}
