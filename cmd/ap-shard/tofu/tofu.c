/*
 * Tofu: tilings by recursive halving.
 *
 * Problem: split a train step over 2^k devices so that the fewest bytes move. Idea: halve
 * the devices and find the tilings that move least between the halves (tofu_cut.c); then
 * halve the halves, where every tensor that was cut is half as large. A cut's bytes count
 * once for each group of devices that is halved. The requests of an operator follow from
 * its factors (tofu_net.c), the bytes of a conversion from regions (tofu_move.c).
 *
 * Two spaces: the first allows a tensor to be whole on both halves; the later one, made
 * for models that do not fit, only cuts, ties gradients to their tensors, elementwise
 * operators together, and the steps of a recurrence to one another.
 *
 * The measure counts the conversions of every operator, though devices keep a converted
 * tensor for its other users, and leaves compute out; the plan is priced by the cost
 * model afterwards. Cut after cut is greedy: the choice among equally good first cuts
 * decides the cost of the next ones, so several may be tried. Source: Wang, Huang, Li,
 * "Unifying Data, Model and Hybrid Parallelism in Deep Learning via Tensor Tiling"
 * (k-cuts tiling); "Supporting Very Large Models using Automatic Dataflow Graph
 * Partitioning", section 5.
 */
#include "tofu/tofu.h"

#include <string.h>

const struct ap_choice shard_tofu_spaces[] = {
    {"2018", "tensors are cut or replicated"},
    {"eurosys", "tensors are cut only, gradients like their tensors"},
    {NULL, NULL},
};

int tofu_mesh(struct ap_arena *arena, const struct ap_mesh *mesh, struct ap_mesh *halves,
              struct ap_err *err)
{
    *halves = (struct ap_mesh){.n_axes = 0};
    for (int a = 0; a < mesh->n_axes; a++) {
        int64_t size = mesh->size[a];
        if (size < 1 || (size & (size - 1)) != 0)
            return ap_err_set(
                err, "tofu halves the devices: axis %s has %lld, not a power of two",
                mesh->name[a], (long long)size);
        for (int i = 0; size > 1; i++, size /= 2) {
            if (halves->n_axes == AP_MAX_AXES)
                return ap_err_set(err,
                                  "tofu makes an axis of every halving: at most %d "
                                  "devices, not %lld",
                                  1 << AP_MAX_AXES, (long long)ap_mesh_devices(mesh));
            halves->size[halves->n_axes] = 2;
            halves->name[halves->n_axes++] =
                mesh->size[a] == 2 ? mesh->name[a]
                                   : ap_arena_printf(arena, "%s%d", mesh->name[a], i);
        }
    }
    for (int a = 0; a < halves->n_axes; a++)
        for (int b = 0; b < a; b++)
            if (strcmp(halves->name[a], halves->name[b]) == 0)
                return ap_err_set(err, "tofu's halvings make two axes %s: rename one",
                                  halves->name[a]);
    if (halves->n_axes == 0) /* one device */
        *halves = *mesh;
    return 0;
}

/* Bytes that all groups of all cuts move. */
static double total_bytes(const struct ap_mesh *mesh, const struct tofu_stats *s)
{
    double total = 0;
    for (int a = 0; a < mesh->n_axes; a++)
        total += (double)(1 << a) * s->cut_bytes[a];
    return total;
}

static const char *stats_text(struct ap_arena *arena, const struct tofu_net *net,
                              const struct tofu_stats *s)
{
    const char *cuts = "";

    for (int a = 0; a < net->mesh->n_axes; a++)
        cuts = ap_arena_printf(arena, "%s%s%.0f", cuts, a ? "," : "", s->cut_bytes[a]);
    return ap_arena_printf(arena,
                           ",\"groups\":%d,\"moved_bytes\":%.0f,\"cut_bytes\":[%s],"
                           "\"variables\":%d,\"states\":%lld,\"largest_table\":%lld,"
                           "\"fixed\":%d,\"tied\":%d",
                           net->nests->n, total_bytes(net->mesh, s), cuts, s->n_vars,
                           (long long)s->n_states, (long long)s->largest, s->n_fixed,
                           net->n_tied);
}

static struct ap_choice_vec *nothing_cut(struct ap_arena *arena, int n)
{
    struct ap_choice_vec *choice = AP_NEW_N(arena, n, struct ap_choice_vec);
    for (int g = 0; g < n; g++)
        for (int a = 0; a < AP_MAX_AXES; a++)
            choice[g].axis[a] = -1;
    return choice;
}

/* Without a number of ways to break ties: so many in a row that bring nothing are enough
 * (scripts/experiments/tofu models). */
#define IDLE_TIES 8

/* All cuts, ties broken in n_ties ways, 0: as many as bring something; the one that moves
 * least stays in plan. A single cut is the best one whatever ties there are. */
static void cut_all(struct tofu_net *net, int64_t n_ties, struct ap_plan *plan,
                    struct tofu_stats *best)
{
    const struct ap_mesh *mesh = net->mesh;
    struct ap_plan next = *plan;

    next.choice = nothing_cut(net->arena, net->nests->n);
    if (n_ties == 0 && ap_mesh_devices(mesh) <= 2)
        n_ties = 1;
    for (int64_t i = 0, last = 0; n_ties ? i < n_ties : i <= last + IDLE_TIES; i++) {
        struct tofu_stats stats = {0};
        net->seed = (uint64_t)i;
        tofu_net_reset(net);
        for (int a = 0; a < mesh->n_axes; a++)
            if (mesh->size[a] > 1)
                tofu_cut(net, &next, a, &stats);
        if (i == 0 || total_bytes(mesh, &stats) < total_bytes(mesh, best)) {
            struct ap_choice_vec *kept = plan->choice;
            plan->choice = next.choice;
            next.choice = kept;
            last = i;
            *best = stats;
        }
        for (int g = 0; g < net->nests->n; g++)
            for (int a = 0; a < AP_MAX_AXES; a++)
                next.choice[g].axis[a] = -1;
    }
}

int shard_tofu(struct ap_arena *arena, const struct shard_task *task,
               struct shard_answer *answer, struct ap_err *err)
{
    const struct ap_mesh *mesh = &task->cost->mesh;
    struct ap_plan *plan = &answer->plan;
    struct tofu_stats stats = {0};
    struct tofu_net net = {.arena = arena,
                           .graph = task->graph,
                           .nests = task->nests,
                           .mesh = mesh,
                           .families = task->families,
                           .cut_only = task->params->tofu_space == 1};

    if (task->pins && task->pins->n > 0)
        ap_warn("tofu keeps no imported shardings: %d are ignored", task->pins->n);
    *plan = (struct ap_plan){.graph = task->graph,
                             .nests = task->nests,
                             .mesh = *mesh,
                             .choice = nothing_cut(arena, task->nests->n),
                             .recompute_heavy = task->params->recompute_heavy};
    tofu_net_build(&net);
    cut_all(&net, task->params->tofu_ties, plan, &stats);
    struct ap_err why = {0};
    if (ap_plan_check(plan, task->cost, &why))
        return ap_err_set(err, "tofu: %s", why.msg);
    answer->objective = -1;
    answer->stopped = stats.n_fixed ? "heuristic" : "done";
    answer->stats = stats_text(arena, &net, &stats);
    return 0;
}
