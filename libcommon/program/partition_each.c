/*
 * Problem: microbatches take their own statistics (plan/microbatch.h); where do their
 * estimates come from, and who reads what of them? Idea: a sum over microbatches that a
 * group of theirs reads is multiplied by their number instead of accumulated. What runs
 * after the last microbatch reads averages: an estimate that it wants is accumulated
 * right after the group that makes it, and divided once. Cost: linear in operands.
 */
#include "program/partition_impl.h"

#include "graph/element.h"
#include "plan/microbatch.h"

/* Local node cur, of source node `source`, with op and a number in one pass. */
static int add_number(struct partition *p, enum ap_op op, int cur, int source,
                      int64_t number, enum ap_phase phase)
{
    const struct ap_shape shape = p->prog->local.nodes[cur].shape;
    struct ap_shape scalar = {.dtype = shape.dtype};
    struct ap_attrs *attrs =
        ap_arena_dup(p->arena, &ap_attrs_default, sizeof(ap_attrs_default));
    void *data = ap_arena_alloc(p->arena, 16);

    if (ap_dtype_is_float(shape.dtype))
        ap_elem_from_double(shape.dtype, (double)number, data);
    else
        ap_elem_from_int(shape.dtype, number, data);
    attrs->literal = (struct ap_literal){.splat = true, .data = data};
    int c = ap_part_add(p, AP_OP_CONSTANT, cur, source, &scalar, attrs, phase);
    const int group = p->n_groups - 1;
    struct ap_node *nodes = p->prog->local.nodes;
    nodes[c].n_in = 0;
    int b = c;
    if (shape.rank > 0)
        b = ap_part_add(p, AP_OP_BROADCAST, c, source, &shape, &ap_attrs_default, phase);
    int x = ap_part_add(p, op, cur, source, &shape, &ap_attrs_default, phase);
    const int in[] = {cur, b};
    nodes[x].n_in = 2;
    nodes[x].in = ap_arena_dup(p->arena, in, sizeof in);
    nodes[b].group = nodes[x].group = group;
    p->n_groups = group + 1;
    return x;
}

/* What one microbatch makes of a sum over all of them. */
int ap_part_estimate(struct partition *p, const struct ap_conversion *conv,
                     const struct ap_step *step, int cur)
{
    if (step->coll.red != AP_RED_SUM)
        return cur;
    return add_number(p, AP_OP_MULTIPLY, cur, conv->node,
                      ap_mesh_microbatches(&p->plan->mesh), conv->phase);
}

/* ---- averages ---- */

bool ap_part_is_estimate(const struct partition *p, int node)
{
    return p->plan->each && p->plan->each[p->plan->graph->nodes[node].group];
}

/* Whether a conversion is made after the microbatches. */
static bool is_after(const struct partition *p, int c)
{
    const int group = p->conv->conv[c].first_group;
    return !p->at_once[c] && (group == p->plan->nests->n || p->when[group] == AP_AFTER);
}

/* What something after reads of a value, as it is or converted. */
static void list_average(struct partition *p, int node, int c)
{
    if (!ap_part_is_estimate(p, node))
        return;
    if (c < 0 || is_after(p, c))
        p->average[node] = -1;
    else
        p->conv_average[c] = -1;
}

void ap_part_list_averages(struct partition *p)
{
    const struct ap_plan *plan = p->plan;
    const struct ap_conversions *conv = p->conv;

    p->average = AP_NEW_N(p->arena, plan->graph->n_nodes + 1, int);
    p->conv_average = AP_NEW_N(p->arena, conv->n + 1, int);
    for (int i = 0; i < plan->nests->n && plan->each; i++)
        for (int k = 0; k < plan->nests->nest[i].n_ins && p->when[i] == AP_AFTER; k++)
            list_average(p, plan->nests->nest[i].ins[k].node,
                         conv->in_conv[conv->in_start[i] + k]);
    for (int r = 0; r < plan->graph->n_results && plan->each; r++)
        if (!plan->each_result || !plan->each_result[r])
            list_average(p, plan->graph->results[r].node, conv->result_conv[r]);
}

/* Starts an average that is wanted: a sum over microbatches of local node cur. */
void ap_part_start_average(struct partition *p, int *average, int cur, int source)
{
    const enum ap_phase phase = p->plan->graph->nodes[source].phase;
    struct ap_shape shape = p->prog->local.nodes[cur].shape;

    if (*average != -1)
        return;
    shape.dtype = ap_dtype_of_sums(shape.dtype);
    struct ap_attrs *attrs =
        ap_arena_dup(p->arena, &ap_attrs_default, sizeof(ap_attrs_default));
    attrs->coll.axes = p->plan->mesh.microbatch;
    attrs->coll.red = AP_RED_SUM;
    *average = 1 + ap_part_add(p, AP_OP_ALL_REDUCE, cur, source, &shape, attrs, phase);
}

static void finish_average(struct partition *p, int *average, int source)
{
    const struct ap_node *src = &p->plan->graph->nodes[source];

    if (*average <= 0)
        return;
    int x = add_number(p, AP_OP_DIVIDE, *average - 1, source,
                       ap_mesh_microbatches(&p->plan->mesh), src->phase);
    struct ap_shape shape = p->prog->local.nodes[x].shape;
    if (shape.dtype != src->shape.dtype) {
        shape.dtype = src->shape.dtype;
        x = ap_part_add(p, AP_OP_CONVERT, x, source, &shape, &ap_attrs_default,
                        src->phase);
    }
    *average = 1 + x;
}

/* After the last microbatch: all averages, and what passes them on. */
void ap_part_finish_averages(struct partition *p)
{
    for (int i = 0; i < p->plan->graph->n_nodes; i++)
        finish_average(p, &p->average[i], i);
    for (int c = 0; c < p->conv->n; c++)
        finish_average(p, &p->conv_average[c], p->conv->conv[c].node);
}

/* A value, or what conversion c (-1: none) made of it, as something after reads it. */
int ap_part_average_of(const struct partition *p, int node, int c)
{
    const int average = c >= 0 ? p->conv_average[c] : p->average[node];
    const int cur = c >= 0 ? p->conv_node[c] : p->node_of[node];
    return average > 0 ? average - 1 : cur;
}
