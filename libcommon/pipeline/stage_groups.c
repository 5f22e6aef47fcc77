/*
 * Problem: what do the operators of a stage take, in seconds and bytes, for a number of
 * microbatches? The search of stages asks this of one part of a graph under dozens of
 * plans, for a dozen numbers of microbatches each; a plan that was chosen is asked once.
 * Idea: facts that do not depend on the plan are computed once; a plan's groups are
 * passed once for all numbers of microbatches. One number is a pass like any other, so
 * that a search and a report never disagree. Cost: numbers times operands, two operations
 * each.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "pipeline/stage_facts.h"

bool ap_stage_same_axis(const struct ap_stage_microbatch *a,
                        const struct ap_stage_microbatch *b)
{
    return a->split == b->split && a->runs == b->runs && a->each == b->each &&
           a->block_of == b->block_of && a->host == b->host && a->trainer == b->trainer &&
           (a->n == 1) == (b->n == 1);
}

static const struct ap_stage_fact *fact_of(struct ap_stage_facts *facts,
                                           const struct ap_subgraph *sub,
                                           const struct ap_nests *nests,
                                           const struct ap_stage_microbatch *micro)
{
    struct ap_stage_fact *f = facts->first;

    while (f && !ap_stage_same_axis(&f->micro, micro))
        f = f->next;
    if (f)
        return f;
    f = AP_NEW(facts->arena, struct ap_stage_fact);
    f->micro = *micro;
    f->next = facts->first;
    ap_stage_fact_fill(facts->arena, sub, nests, f);
    return facts->first = f;
}

/* Numbers of microbatches that lie identically on the microbatch axis. */
struct batch {
    const struct ap_stage_fact *fact;
    const struct ap_subgraph *sub;
    const struct ap_plan *plan;
    const struct ap_cost *cost;
    int only; /* as block of struct ap_stage_case */
    int n;
    double *count;              /* [n]: of microbatches */
    struct ap_stage_measure *m; /* [n] */
    double *block;              /* [block][n]: bytes */
    double *value;              /* [node]: bytes of what was handed out so far */
    bool *share;                /* [node]: these are to be divided */
    double *work, *moved, *sec; /* [n]: of a group */
};

/* Whether a value of that layout is one microbatch's: divided by their number. A plan
 * that was made for microbatches has its layouts of one of them; only what is there for
 * all and read share by share is whole. */
static bool is_share(const struct batch *b, int node, const struct ap_layout *layout)
{
    return b->fact->split[node] &&
           (!b->plan->mesh.microbatch || layout->axis[0].kind == AP_REPLICATED);
}

/* Adds bytes of a value, or of one microbatch's share of it. */
static void add_bytes(const struct batch *b, double *sum, double bytes, bool split)
{
    for (int k = 0; k < b->n && split; k++)
        sum[k] += bytes / b->count[k];
    for (int k = 0; k < b->n && !split; k++)
        sum[k] += bytes;
}

/* Whether a group only makes a sum over microbatches of what it reads wider: what it
 * reads is added to the sum, unless trainers send it first. */
static bool only_widens(const struct batch *b, const struct ap_nest *nest)
{
    const struct ap_node *n = &b->plan->graph->nodes[nest->members[0]];
    const unsigned sum = AP_IN_GRADIENTS | AP_IN_FIXED;

    return n->op == AP_OP_CONVERT && nest->n_members == 1 && b->fact->micro.n > 1 &&
           (b->fact->counted[nest->members[0]] & sum) == sum &&
           n->shape.dtype ==
               ap_dtype_of_sums(b->plan->graph->nodes[n->in[0]].shape.dtype) &&
           !(b->fact->micro.trainer & AP_TRAINER_SCATTERS);
}

/* What a group has in memory, but for what is there and read as it is. */
static void find_working(const struct batch *b, const struct ap_nest *nest,
                         const struct ap_stage_group *group, const bool *stays)
{
    memset(b->work, 0, (size_t)b->n * sizeof *b->work);
    if (only_widens(b, nest))
        return;
    for (int i = 0; i < nest->n_ins + nest->n_outs; i++) {
        int node = i < nest->n_ins ? nest->ins[i].node : nest->outs[i - nest->n_ins];
        bool split = is_share(b, node, group->layout[i]);
        if (i >= nest->n_ins || !stays[i] || group->bytes[i] != b->value[node] ||
            split != b->share[node])
            add_bytes(b, b->work, group->bytes[i], split);
    }
    for (int k = 0; k < b->n && nest->n_ins > 0; k++)
        if (b->work[k] > b->m[k].working_bytes)
            b->m[k].working_bytes = b->work[k];
}

/* Masks of padded operands, for one microbatch of so many. */
static double masks_sec(const struct batch *b, const struct ap_nest *nest,
                        const struct ap_stage_group *group, double count)
{
    double sec = 0;

    for (int i = 0; group->masked && i < nest->n_ins && i < 64; i++) {
        int node = nest->ins[i].node;
        double bytes = group->bytes[i];
        if (group->masked >> i & 1)
            sec += ap_cost_compute(b->cost, 0, b->plan->graph->nodes[node].shape.dtype,
                                   2 * (b->fact->split[node] ? bytes / count : bytes));
    }
    return sec;
}

static double rounds_sec(const struct batch *b, const struct ap_nest *nest,
                         const struct ap_stage_group *group, int k)
{
    struct ap_rounds r = group->rounds;
    r.in_bytes /= b->count[k];
    r.out_bytes /= b->count[k];
    return ap_plan_rounds_sec(nest, b->cost, &r, group->flops / b->count[k], group->dtype,
                              b->moved[k]);
}

/* Seconds; of one microbatch's share if it runs once for each. */
static void find_sec(const struct batch *b, const struct ap_nest *nest,
                     const struct ap_stage_group *group)
{
    for (int k = 0; k < b->n; k++)
        b->sec[k] = group->sec;
    if (b->fact->whole[nest->group] || group->sec == 0)
        return;
    if (b->plan->mesh.microbatch) {
        for (int k = 0; k < b->n; k++)
            b->sec[k] /= b->count[k];
        return;
    }
    memset(b->moved, 0, (size_t)b->n * sizeof *b->moved);
    for (int i = 0; i < nest->n_ins; i++)
        add_bytes(b, b->moved, group->moved[i], b->fact->split[nest->ins[i].node]);
    for (int o = 0; o < nest->n_outs; o++)
        add_bytes(b, b->moved, group->moved[nest->n_ins + o],
                  b->fact->split[nest->outs[o]]);
    for (int k = 0; k < b->n; k++)
        b->sec[k] =
            rounds_sec(b, nest, group, k) + masks_sec(b, nest, group, b->count[k]);
}

/* Adds the seconds of a group, and what the host takes to launch it. */
static void add_sec(const struct batch *b, const struct ap_nest *nest)
{
    const int group = nest->group;
    const enum ap_phase phase = b->fact->phase[group];
    const bool again = b->fact->recomputed && b->fact->recomputed[group];

    for (int k = 0; k < b->n; k++) {
        struct ap_stage_measure *m = &b->m[k];
        double sec = b->sec[k];
        if (!b->fact->runs[group])
            m->update_sec += sec;
        else if (phase == AP_FORWARD)
            m->forward_sec += sec;
        else
            m->backward_sec += sec;
        if (b->fact->scalar[group])
            m->scalar_sec[!b->fact->runs[group] ? 3 : phase != AP_FORWARD] += sec;
        m->backward_sec += again ? sec : 0;
        if (b->fact->weights[group] && b->fact->runs[group])
            m->weights_sec += sec;
        if (b->fact->runs[group] && sec > 0 && !nest->launched)
            ap_stage_launch(b->cost, phase, again, 1, m);
    }
}

/* A value on the host: a parameter is copied in for each phase that reads it, and its new
 * value out; a value of the forward pass out, and in for the backward pass. */
static void add_host_value(const struct batch *b, int node, double bytes,
                           struct ap_stage_measure *m)
{
    const struct ap_host_link *link = &b->cost->cluster.host_link;
    const unsigned read_in = ap_stage_read_in(b->plan->graph, b->fact->phase, node);
    double in = 0;

    if (b->plan->graph->nodes[node].op != AP_OP_PARAMETER) {
        m->host_flight_bytes += bytes;
        m->pass_link_sec[0] += bytes / link->out_bytes_per_sec;
        m->pass_link_sec[1] += bytes / link->in_bytes_per_sec;
        return;
    }
    double out = bytes;
    for (int phase = 0; phase < AP_N_PHASES; phase++)
        in += read_in >> phase & 1 ? bytes : 0;
    if (b->fact->updated) {
        /* the gradient out, and what passes read in: with a master the copy, with the
           first state of a weight that has none the weight, of which the host has one */
        const struct ap_node *n = &b->plan->graph->nodes[node];
        const double part = bytes / (double)ap_shape_bytes(&n->shape);
        const double weight = part * (double)b->fact->updated[node];
        const double copy = (double)ap_stage_master_copy_bytes(b->plan->graph, node);
        out = n->role == AP_ROLE_WEIGHT ? bytes : weight;
        in = n->role == AP_ROLE_WEIGHT ? part * copy : weight;
        m->step_link_sec[3] +=
            (2 * bytes + out + in + weight) / link->memory_bytes_per_sec;
    }
    m->host_bytes += bytes;
    m->step_link_sec[0] += out / link->out_bytes_per_sec;
    m->step_link_sec[1] += in / link->in_bytes_per_sec;
    if (link->both_bytes_per_sec > 0)
        m->step_link_sec[2] += (out + in) / link->both_bytes_per_sec;
}

static void add_value(const struct batch *b, int node, double bytes, bool split,
                      bool is_counted)
{
    const int sums = b->fact->micro.trainer & AP_TRAINER_KEEPS_GRADIENTS ? 3 : 2;
    unsigned counted = is_counted ? b->fact->counted[node] : 0;
    double *block = b->block + (ptrdiff_t)b->fact->reader[node] * b->n;

    b->value[node] = bytes;
    b->share[node] = split;
    for (int k = 0; k < b->n && counted; k++) {
        struct ap_stage_measure *m = &b->m[k];
        double own = split ? bytes / b->count[k] : bytes;
        if (counted & AP_IN_FIXED)
            m->fixed_bytes += counted & AP_SUMMED ? sums * own : own;
        if (counted & AP_IN_GRADIENTS && b->fact->micro.n == 1)
            m->gradient_bytes += own;
        if (counted & AP_IN_KEPT)
            m->kept_bytes += own;
        if (counted & AP_IN_INPUTS)
            m->input_bytes += own;
        if (counted & AP_IN_RECOMPUTED)
            m->recomputed_bytes += own;
        if (counted & AP_IN_BLOCK)
            block[k] += own;
        if (counted & AP_ON_HOST)
            add_host_value(b, node, own, m);
    }
    for (int k = 0; k < b->n && is_counted && b->fact->pending[node]; k++)
        b->m[k].pending_bytes += split ? bytes / b->count[k] : bytes;
}

/* Whether what the group has counts. */
static bool is_counted(const struct batch *b, const struct ap_nest *nest)
{
    return b->only < 0 ||
           b->fact->micro.block_of[b->sub->source[nest->members[0]]] == b->only;
}

static void measure_batch(const struct batch *b,
                          const struct ap_stage_group *const *known)
{
    const struct ap_nests *nests = b->plan->nests;
    const bool *stays = b->fact->stays;

    for (int i = 0; i < nests->n; i++) {
        const struct ap_nest *nest = &nests->nest[i];
        const bool counted = is_counted(b, nest);
        if (counted) {
            find_working(b, nest, known[i], stays);
            find_sec(b, nest, known[i]);
            add_sec(b, nest);
        }
        stays += nest->n_ins;
        for (int o = 0; o < nest->n_outs; o++) {
            int node = nest->outs[o];
            const struct ap_layout *layout = known[i]->layout[nest->n_ins + o];
            add_value(b, node, known[i]->bytes[nest->n_ins + o],
                      is_share(b, node, layout), counted);
        }
    }
    for (int k = 0; k < b->n; k++) {
        double most = 0;
        for (int i = 0; i < b->fact->n_blocks; i++)
            if (b->only < 0 || b->only == i)
                most = fmax(most, b->block[(ptrdiff_t)i * b->n + k]);
        b->m[k].recomputed_bytes += most;
    }
}

/* Room for n numbers of microbatches. */
static void start(struct ap_arena *scratch, const struct ap_stage_plan *stage,
                  const struct ap_stage_fact *fact, int n, struct batch *b)
{
    *b = (struct batch){.fact = fact,
                        .sub = stage->sub,
                        .plan = stage->plan,
                        .cost = stage->cost,
                        .only = -1};
    b->count = AP_NEW_N(scratch, 4 * n, double);
    b->work = b->count + n;
    b->moved = b->work + n;
    b->sec = b->moved + n;
    b->m = AP_NEW_N(scratch, n, struct ap_stage_measure);
    b->block = AP_NEW_N(scratch, (size_t)fact->n_blocks * (size_t)n, double);
    b->value = AP_NEW_N(scratch, stage->plan->graph->n_nodes + 1, double);
    b->share = AP_NEW_N(scratch, stage->plan->graph->n_nodes + 1, bool);
}

void ap_stage_measure_groups(struct ap_arena *scratch, const struct ap_stage_plan *stage,
                             const struct ap_stage_fact *fact,
                             const struct ap_stage_group *const *known, int block,
                             struct ap_stage_measure *measure)
{
    struct batch b;

    start(scratch, stage, fact, 1, &b);
    b.only = block;
    b.n = 1;
    b.count[0] = (double)fact->micro.n;
    measure_batch(&b, known);
    *measure = b.m[0];
}

double ap_stage_group_sec(const struct ap_stage_plan *stage,
                          const struct ap_stage_fact *fact, const struct ap_nest *nest,
                          const struct ap_stage_group *known)
{
    double count = (double)fact->micro.n, work = 0, moved = 0, sec = 0;
    const struct batch b = {.fact = fact,
                            .plan = stage->plan,
                            .cost = stage->cost,
                            .n = 1,
                            .count = &count,
                            .work = &work,
                            .moved = &moved,
                            .sec = &sec};

    find_sec(&b, nest, known);
    return sec;
}

void ap_stage_measure_all(struct ap_arena *scratch, const struct ap_stage_plan *stage,
                          struct ap_stage_facts *facts, int n,
                          const struct ap_stage_microbatch *const *micro,
                          const struct ap_stage_group *const *known,
                          struct ap_stage_measure *measure)
{
    const struct ap_plan *plan = stage->plan;
    bool *done = AP_NEW_N(scratch, n, bool);
    int *at = AP_NEW_N(scratch, n, int);

    assert(!plan->mesh.microbatch);
    for (int first = 0; first < n; first++) {
        if (done[first])
            continue;
        struct batch b;
        start(scratch, stage, fact_of(facts, stage->sub, plan->nests, micro[first]),
              n - first, &b);
        for (int k = first; k < n; k++)
            if (!done[k] && ap_stage_same_axis(&b.fact->micro, micro[k])) {
                done[k] = true;
                b.count[b.n] = (double)micro[k]->n;
                at[b.n++] = k;
            }
        measure_batch(&b, known);
        for (int k = 0; k < b.n; k++)
            measure[at[k]] = b.m[k];
    }
}
