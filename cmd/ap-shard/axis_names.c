/*
 * Problem: on `--mesh dp=2,tp=2` a user means the batch to lie on dp. The search knows
 * sizes and links only, and where axes are symmetric it may answer with the batch on tp.
 * Idea: the axis that carries the batch is the one that splits it in most groups. If that
 * is not an axis named for data, and one of the same size is, the plan with the two
 * exchanged is priced: it is taken where it costs the same. It can cost more though the
 * links are the same, for axes on one dimension are nested in mesh order; then the names
 * are exchanged, and the mesh of the answer lists them in the other order. Where links or
 * sizes differ the search's answer stands, with a warning. Cost: a price per pair
 * of axes.
 */
#include "axis_names.h"

#include <string.h>

#define SAME_PRICE 1e-9 /* relative; what the search counts as proven equal */
#define CARRIES    2    /* times as many groups as the axis for data: worth a message */

/* Groups that each axis splits along the batch. */
static void count_batch(const struct ap_plan *plan, const int *batch, int *n)
{
    memset(n, 0, AP_MAX_AXES * sizeof *n);
    for (int i = 0; i < plan->nests->n; i++)
        for (int a = 0; a < plan->mesh.n_axes && batch[i] >= 0; a++)
            n[a] += plan->choice[i].axis[a] == batch[i];
}

/* The same plan with two axes exchanged; false where a pin is against it. */
static bool exchange(const struct shard_task *task, struct ap_plan *plan, int a, int b)
{
    for (int i = 0; i < plan->nests->n; i++) {
        int16_t *axis = plan->choice[i].axis, was = axis[a];
        if (was != axis[b] && task->fixed && task->fixed[i])
            return false;
        axis[a] = axis[b];
        axis[b] = was;
    }
    return true;
}

/* By how much the plan with two axes exchanged costs more, which is taken if that is
 * nothing; -1: there is no such plan. */
static double try_exchange(struct ap_arena *arena, const struct shard_task *task,
                           struct ap_plan *plan, int a, int b)
{
    struct ap_plan other = *plan;
    struct ap_err ignored = {0};
    double sec, other_sec;

    other.choice =
        ap_arena_dup(arena, plan->choice, (size_t)plan->nests->n * sizeof *plan->choice);
    if (plan->mesh.size[a] != plan->mesh.size[b] || !exchange(task, &other, a, b) ||
        ap_plan_sec(plan, task->cost, &sec, &ignored) ||
        ap_plan_sec(&other, task->cost, &other_sec, &ignored))
        return -1;
    if (other_sec <= sec * (1 + SAME_PRICE))
        *plan = other;
    return other_sec / sec - 1;
}

static unsigned exchanged(unsigned axes, int a, int b)
{
    unsigned both = 1u << a | 1u << b;
    return (axes & both) && (axes & both) != both ? axes ^ both : axes;
}

/* Rings over any axes are as fast with the two exchanged. */
static bool same_links(const struct ap_cost *cost, int a, int b)
{
    bool same = cost->mesh.size[a] == cost->mesh.size[b];
    for (unsigned axes = 1; axes < 1u << cost->mesh.n_axes && same; axes++) {
        unsigned other = exchanged(axes, a, b);
        same = cost->set_bandwidth[axes] == cost->set_bandwidth[other] &&
               cost->set_latency[axes] == cost->set_latency[other];
    }
    return same;
}

/* The batch goes from axis b to axis a, or the message says why not. */
static const char *prefer(struct ap_arena *arena, const struct shard_task *task,
                          struct ap_plan *plan, int a, int b)
{
    struct ap_mesh *mesh = &plan->mesh;
    const char *name_a = mesh->name[a], *name_b = mesh->name[b];
    double more = try_exchange(arena, task, plan, a, b);

    if (more >= 0 && more <= SAME_PRICE)
        return NULL;
    if (!task->pins && same_links(task->cost, a, b)) {
        mesh->name[a] = name_b;
        mesh->name[b] = name_a;
        return NULL;
    }
    if (more >= 0)
        return ap_arena_printf(arena,
                               "the batch is split over %s, not %s: the other way round "
                               "the plan costs %.3g %% more",
                               name_b, name_a, 100 * more);
    return ap_arena_printf(arena, "the batch is split over %s, not %s: this is cheaper",
                           name_b, name_a);
}

const char *shard_name_axes(struct ap_arena *arena, const struct shard_task *task,
                            struct shard_answer *answer)
{
    struct ap_plan *plan = &answer->plan;
    const struct ap_mesh *mesh = &task->cost->mesh;
    const unsigned data =
        ap_mesh_axes_for(mesh, AP_AXIS_DATA) | ap_mesh_axes_for(mesh, AP_AXIS_FSDP);
    const int *batch = data ? shard_alpa_batch(arena, task->graph, task->nests) : NULL;
    const char *message = NULL;
    int n[AP_MAX_AXES];

    for (int a = 0; a < mesh->n_axes && batch; a++)
        for (int b = 0; b < mesh->n_axes && (data >> a & 1) && mesh->size[a] > 1; b++) {
            count_batch(plan, batch, n);
            if ((data | mesh->microbatch) >> b & 1 || n[b] <= n[a])
                continue;
            const char *why = prefer(arena, task, plan, a, b);
            message = why && n[b] >= CARRIES * n[a] ? why : message;
        }
    return message;
}
