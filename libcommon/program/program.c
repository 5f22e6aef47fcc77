/* Counting a program's collectives, from its nodes and from the conversions. */
#include "program/program.h"
#include "cost/convert.h"

#include <assert.h>

int64_t ap_coll_bytes(const struct ap_mesh *mesh, const struct ap_node *node,
                      const struct ap_shape *operand)
{
    const struct ap_coll *coll = &node->attrs->coll;
    const struct ap_split *s = &coll->split;
    struct ap_shape result = *operand;
    int64_t dims[AP_MAX_RANK];
    if (node->op == AP_OP_ALL_GATHER) {
        for (int d = 0; d < operand->rank; d++)
            dims[d] = operand->dims[d];
        dims[s->dim] = dims[s->dim] / s->part * s->full;
        result.dims = dims;
    }
    return ap_step_bytes(mesh, node->op, coll, operand, &result);
}

#define N_SETS  (1u << AP_MAX_AXES)
#define N_KINDS (AP_OP_COLLECTIVE_PERMUTE - AP_OP_ALL_REDUCE + 1)

/* Counts by kind and axes; rows of zeros are left out when listed. */
struct tally {
    int64_t count[N_KINDS][N_SETS], bytes[N_KINDS][N_SETS];
};

static void tally_add(struct tally *t, const struct ap_mesh *mesh, enum ap_op op,
                      unsigned axes, int64_t times, int64_t bytes)
{
    if (ap_ops[op].class != AP_CLASS_COLLECTIVE || (axes & mesh->microbatch))
        return;
    int kind = (int)op - AP_OP_ALL_REDUCE;
    assert(kind >= 0 && kind < N_KINDS && axes < N_SETS);
    t->count[kind][axes] += times;
    t->bytes[kind][axes] = ap_add64(t->bytes[kind][axes], ap_mul64(times, bytes));
}

static int tally_list(struct ap_arena *arena, const struct tally *t,
                      struct ap_coll_count **out)
{
    int n = 0;
    for (int k = 0; k < N_KINDS; k++)
        for (unsigned s = 0; s < N_SETS; s++)
            n += t->count[k][s] > 0;
    struct ap_coll_count *list = AP_NEW_N(arena, n, struct ap_coll_count);
    n = 0;
    for (int k = 0; k < N_KINDS; k++)
        for (unsigned s = 0; s < N_SETS; s++)
            if (t->count[k][s] > 0)
                list[n++] = (struct ap_coll_count){
                    .op = (enum ap_op)(AP_OP_ALL_REDUCE + k),
                    .axes = s,
                    .count = t->count[k][s],
                    .bytes = t->bytes[k][s],
                };
    *out = list;
    return n;
}

/* How often a group runs in a step. */
static int64_t times_of(const struct ap_program *prog, int group)
{
    bool each = group >= prog->each_lo && group < prog->each_hi;
    return each ? ap_mesh_microbatches(&prog->mesh) : 1;
}

int ap_program_collectives(struct ap_arena *arena, const struct ap_program *prog,
                           struct ap_coll_count **out)
{
    struct tally t = {0};
    for (int i = 0; i < prog->local.n_nodes; i++) {
        const struct ap_node *node = &prog->local.nodes[i];
        if (ap_ops[node->op].class == AP_CLASS_COLLECTIVE)
            tally_add(
                &t, &prog->mesh, node->op, node->attrs->coll.axes,
                times_of(prog, node->group),
                ap_coll_bytes(&prog->mesh, node, &prog->local.nodes[node->in[0]].shape));
    }
    return tally_list(arena, &t, out);
}

int ap_conversion_collectives(struct ap_arena *arena, const struct ap_mesh *mesh,
                              const struct ap_conversions *conv,
                              struct ap_coll_count **out)
{
    struct tally t = {0};
    for (int i = 0; i < conv->n; i++)
        for (int k = 0; k < conv->conv[i].path.n_steps; k++) {
            const struct ap_step *step = &conv->conv[i].path.steps[k];
            tally_add(&t, mesh, step->op, step->coll.axes, step->times, step->bytes);
        }
    return tally_list(arena, &t, out);
}
