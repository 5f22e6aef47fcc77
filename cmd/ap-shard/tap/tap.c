/*
 * Problem: a tensor parallel plan on the tensor axis of the mesh (data parallelism on the
 * others): a pattern per weight, so that communication on the critical path is least.
 * Idea: repeated blocks are planned once. All plans of each distinct block, a pattern per
 * weight, are enumerated with the rest of the graph data parallel. A plan is routed from
 * the block's inputs to its leaves, refused if one cannot be reached, and measured by its
 * exposed communication: activations of both phases, and gradients of weights as far as
 * the block's backward compute does not hide them. The best plan of a block is taken for
 * all its instances, and the whole graph is routed once more; so are four usual plans (no
 * weight split, attention's, feed-forward layers', both), and the best of these five is
 * the answer. Families of more than 3^10 plans are searched by the families inside them;
 * weights outside of families in pieces of up to 3^6 plans, in the order of their use.
 * The measure leaves out compute, padding and memory. Cost: plans times operand slots of
 * a block. After Shi et al., "TAP: Efficient Derivation of Tensor Parallel Plans for
 * Large Neural Networks", arXiv 2302.00247, sections 4.2 to 4.6.
 */
#include "tap/tap.h"

#include "plan/weight_roles.h"

#include <math.h>
#include <string.h>

#include "tool/tool.h"

/* The next plan of the block, -1 after the last; the last weight counts fastest. */
static int next_plan(const struct ap_weights *w, const struct tap_block *b, int *pattern)
{
    for (int j = b->n_weights - 1; j >= 0; j--) {
        int i = b->weight[j];
        if (++pattern[i] < w->weight[i].n)
            return 0;
        pattern[i] = 0;
    }
    return -1;
}

/* Finds the best plan of the block and writes it to all its copies. */
static void enumerate(struct ap_router *router, struct tap_block *b, int *pattern)
{
    struct ap_arena *arena = router->arena;
    struct ap_mark mark = ap_arena_mark(arena);
    struct ap_region *region = ap_region_new(router, b->group, b->n_groups);
    int *best = AP_NEW_N(arena, b->n_weights, int);

    b->exposed = INFINITY;
    do {
        struct ap_traffic t;
        b->plans++;
        if (ap_region_route(region, pattern, &t)) {
            b->refused++;
            continue;
        }
        double exposed = ap_traffic_exposed(&t);
        if (exposed < b->exposed * (1 - 1e-12)) {
            b->exposed = exposed;
            for (int j = 0; j < b->n_weights; j++)
                best[j] = pattern[b->weight[j]];
        }
    } while (next_plan(router->weights, b, pattern) == 0);
    for (int j = 0; j < b->n_weights * b->n_instances; j++)
        pattern[b->weight[j]] = best[j % b->n_weights];
    ap_arena_rewind(arena, mark);
}

/* ---- the whole graph ---- */

static struct ap_plan base_plan(struct ap_arena *arena, const struct shard_task *task)
{
    struct ap_plan plan = {.graph = task->graph,
                           .nests = task->nests,
                           .mesh = task->cost->mesh,
                           .microbatch_choice = task->microbatch_choice,
                           .recompute_heavy = task->params->recompute_heavy};
    ap_batch_plan(arena, &plan);
    return plan;
}

/* The usual plans: nothing split, attention, feed-forward layers, both. */
#define N_USUAL 4

/* Routes the whole graph under the patterns found and the usual ones; takes the best. */
static int route_whole(struct ap_router *router, int *chosen, struct ap_plan *plan,
                       struct ap_traffic *traffic, struct ap_err *err)
{
    struct ap_arena *arena = router->arena;
    const struct ap_weights *w = router->weights;
    int n = router->plan->nests->n, *groups = AP_NEW_N(arena, n, int);
    const int *best = NULL;

    for (int i = 0; i < n; i++)
        groups[i] = i;
    struct ap_region *region = ap_region_new(router, groups, n);
    for (int i = 0; i <= N_USUAL; i++) {
        struct ap_traffic t;
        int *pattern = i == N_USUAL ? chosen : AP_NEW_N(arena, w->n + 1, int);
        if (i > 0 && i < N_USUAL &&
            ap_weight_roles_pattern(arena, router->plan, w, i & 1, i >> 1, pattern) == 0)
            continue;
        if (ap_region_route(region, pattern, &t) ||
            (best && ap_traffic_exposed(&t) >= ap_traffic_exposed(traffic)))
            continue;
        *traffic = t;
        best = pattern;
    }
    if (!best)
        return ap_err_set(err,
                          "no plan's route reaches all leaves: not with the best pattern "
                          "of each block, nor with every weight replicated");
    ap_region_route(region, best, traffic);
    ap_region_write(region, plan);
    memmove(chosen, best, sizeof *chosen * (size_t)w->n);
    return 0;
}

/* ---- --stats ---- */

static void put_block(struct ap_buf *out, const struct ap_router *router,
                      const struct tap_block *b, const int *pattern)
{
    const char *sep = "";

    ap_buf_puts(out, "{\"name\":");
    ap_json_str(out, b->name);
    ap_put_int(out, "instances", b->n_instances);
    ap_put_int(out, "weights", b->n_weights);
    ap_put_int(out, "plans", b->plans);
    ap_put_int(out, "refused", b->refused);
    ap_put_int(out, "priced", b->plans - b->refused);
    if (isfinite(b->exposed))
        ap_buf_printf(out, ",\"exposed\":%.9g", b->exposed);
    ap_put_key(out, "split");
    ap_buf_putc(out, '{');
    for (int j = 0; j < b->n_weights; j++) {
        const struct ap_weight *w = &router->weights->weight[b->weight[j]];
        if (pattern[b->weight[j]] == 0)
            continue;
        ap_buf_puts(out, sep);
        ap_json_str(out, router->plan->graph->nodes[w->node].name);
        ap_buf_printf(out, ":\"%s\"",
                      ap_pattern_names[w->pattern[pattern[b->weight[j]]]]);
        sep = ",";
    }
    ap_buf_puts(out, "}}");
}

static const char *stats_of(const struct ap_router *router, const struct tap_block *block,
                            int n, const int *pattern, const struct ap_traffic *traffic,
                            double sec)
{
    struct ap_buf out = {0};
    int64_t plans = 0, refused = 0;
    double log_space = 0;

    for (int i = 0; i < router->weights->n; i++)
        log_space += log10(router->weights->weight[i].n);
    for (int i = 0; i < n; i++) {
        plans += block[i].plans;
        refused += block[i].refused;
    }
    ap_put_int(&out, "variables", router->weights->n_variables);
    ap_put_int(&out, "weights", router->weights->n);
    ap_buf_printf(&out, ",\"space_log10\":%.6g", log_space);
    ap_put_int(&out, "plans", plans);
    ap_put_int(&out, "refused", refused);
    ap_put_int(&out, "priced", plans - refused);
    ap_buf_printf(&out,
                  ",\"activations\":%.9g,\"gradients\":%.9g,\"exposed\":%.9g,"
                  "\"search_sec\":%.6f,\"blocks\":[",
                  traffic->activations, traffic->gradients, ap_traffic_exposed(traffic),
                  sec);
    for (int i = 0; i < n; i++) {
        if (i > 0)
            ap_buf_putc(&out, ',');
        put_block(&out, router, &block[i], pattern);
    }
    ap_buf_putc(&out, ']');
    const char *stats = ap_arena_strdup(router->arena, out.data);
    ap_buf_free(&out);
    return stats;
}

int shard_tap(struct ap_arena *arena, const struct shard_task *task,
              struct shard_answer *answer, struct ap_err *err)
{
    double t0 = ap_now_sec();
    int axis = ap_mesh_tensor_axis(&task->cost->mesh), n;
    struct ap_plan base = base_plan(arena, task);
    struct ap_weights weights;
    struct ap_traffic traffic;

    if (axis < 0)
        return ap_err_set(err, "no axis of the mesh is for tensor parallelism");
    if (task->pins && task->pins->n > 0)
        ap_warn("tap keeps no imported shardings: %d are ignored", task->pins->n);
    ap_weights_find(arena, &base, axis, task->params->no_padding, &weights);
    struct ap_router *router =
        ap_router_new(arena, &base, task->cost, &weights, axis, task->params->no_padding);
    struct tap_block *block = tap_blocks(arena, &base, &weights, task->families, &n);
    int *pattern = AP_NEW_N(arena, weights.n + 1, int);
    int *chosen = AP_NEW_N(arena, weights.n + 1, int);
    for (int i = 0; i < n; i++) {
        const struct tap_block *b = &block[i];
        enumerate(router, &block[i], pattern);
        for (int j = 0; j < b->n_weights * b->n_instances; j++) {
            chosen[b->weight[j]] = pattern[b->weight[j]];
            pattern[b->weight[j]] = 0;
        }
    }
    answer->plan = base_plan(arena, task);
    if (route_whole(router, chosen, &answer->plan, &traffic, err))
        return -1;
    answer->objective = -1; /* what is exposed is no price of the plan */
    answer->stopped = "enumerated";
    answer->stats = stats_of(router, block, n, chosen, &traffic, ap_now_sec() - t0);
    return 0;
}
