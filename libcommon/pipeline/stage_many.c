/*
 * Problem: a part of a graph is priced under dozens of plans for a dozen numbers of
 * microbatches each, and most of what stage_cost.c computes is the same for all of them.
 * Idea: what does not depend on the plan is computed once (facts); a plan's groups are
 * passed once for all numbers of microbatches, in the order in which stage_cost.c adds
 * them up, so that the sums are equal to the bit. Cost: numbers times operands, two
 * operations each.
 */
#include <assert.h>
#include <string.h>

#include "pipeline/stage_facts.h"

/* Whether both lies on the microbatch axis by the same arrays; one microbatch is unlike
 * several. */
static bool same_axis(const struct ap_stage_microbatch *a,
                      const struct ap_stage_microbatch *b)
{
    return a->split == b->split && a->runs == b->runs && a->each == b->each &&
           a->block_of == b->block_of && (a->n == 1) == (b->n == 1);
}

static const struct ap_stage_fact *fact_of(struct ap_stage_facts *facts,
                                           const struct ap_subgraph *sub,
                                           const struct ap_nests *nests,
                                           const struct ap_stage_microbatch *micro)
{
    struct ap_stage_fact *f = facts->first;

    while (f && !same_axis(&f->micro, micro))
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
    const struct ap_plan *plan;
    const struct ap_cost *cost;
    int n;
    double *count;              /* [n]: of microbatches */
    struct ap_stage_measure *m; /* [n] */
    double *block;              /* [block][n]: bytes */
    double *value;              /* [node]: bytes of what was handed out so far */
    double *work, *moved, *sec; /* [n]: of a group */
};

/* Adds bytes of a value, or of one microbatch's share of it. */
static void add_bytes(const struct batch *b, double *sum, double bytes, bool split)
{
    for (int k = 0; k < b->n && split; k++)
        sum[k] += bytes / b->count[k];
    for (int k = 0; k < b->n && !split; k++)
        sum[k] += bytes;
}

/* What a group has in memory, but for what is there and read as it is. */
static void find_working(const struct batch *b, const struct ap_nest *nest,
                         const struct ap_stage_group *group, const bool *stays)
{
    const double *out = group->bytes + nest->n_ins;

    memset(b->work, 0, (size_t)b->n * sizeof *b->work);
    for (int i = 0; i < nest->n_ins; i++) {
        int node = nest->ins[i].node;
        if (!stays[i] || group->bytes[i] != b->value[node])
            add_bytes(b, b->work, group->bytes[i], b->fact->split[node]);
    }
    for (int o = 0; o < nest->n_outs; o++)
        add_bytes(b, b->work, out[o], b->fact->split[nest->outs[o]]);
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

static void add_sec(const struct batch *b, int group)
{
    enum ap_phase phase = b->fact->phase[group];

    for (int k = 0; k < b->n; k++) {
        struct ap_stage_measure *m = &b->m[k];
        if (!b->fact->runs[group])
            m->update_sec += b->sec[k];
        else if (phase == AP_FORWARD)
            m->forward_sec += b->sec[k];
        else
            m->backward_sec += b->sec[k];
        if (b->fact->scalar[group])
            m->scalar_sec[!b->fact->runs[group] ? 3 : phase != AP_FORWARD] += b->sec[k];
    }
}

static void add_value(const struct batch *b, int node, double bytes)
{
    unsigned counted = b->fact->counted[node];
    double *block = b->block + (ptrdiff_t)b->fact->reader[node] * b->n;

    b->value[node] = bytes;
    for (int k = 0; k < b->n && counted; k++) {
        struct ap_stage_measure *m = &b->m[k];
        double own = b->fact->split[node] ? bytes / b->count[k] : bytes;
        if (counted & AP_IN_FIXED)
            m->fixed_bytes += counted & AP_SUMMED && b->count[k] > 1 ? 2 * own : own;
        if (counted & AP_IN_GRADIENTS)
            m->gradient_bytes += own;
        if (counted & AP_IN_KEPT)
            m->kept_bytes += own;
        if (counted & AP_IN_INPUTS)
            m->input_bytes += own;
        if (counted & AP_IN_BLOCK)
            block[k] += own;
    }
}

static void measure_batch(const struct batch *b,
                          const struct ap_stage_group *const *known)
{
    const struct ap_nests *nests = b->plan->nests;
    const bool *stays = b->fact->stays;

    for (int i = 0; i < nests->n; i++) {
        const struct ap_nest *nest = &nests->nest[i];
        find_working(b, nest, known[i], stays);
        stays += nest->n_ins;
        find_sec(b, nest, known[i]);
        add_sec(b, i);
        for (int o = 0; o < nest->n_outs; o++)
            add_value(b, nest->outs[o], known[i]->bytes[nest->n_ins + o]);
    }
    for (int i = 0; i < b->fact->n_blocks; i++)
        for (int k = 0; k < b->n; k++)
            if (b->block[(ptrdiff_t)i * b->n + k] > b->m[k].recomputed_bytes)
                b->m[k].recomputed_bytes = b->block[(ptrdiff_t)i * b->n + k];
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
        struct batch b = {.plan = plan, .cost = stage->cost};
        b.fact = fact_of(facts, stage->sub, plan->nests, micro[first]);
        b.count = AP_NEW_N(scratch, n, double);
        for (int k = first; k < n; k++)
            if (!done[k] && same_axis(&b.fact->micro, micro[k])) {
                done[k] = true;
                b.count[b.n] = (double)micro[k]->n;
                at[b.n++] = k;
            }
        b.m = AP_NEW_N(scratch, b.n, struct ap_stage_measure);
        b.block = AP_NEW_N(scratch, (size_t)b.fact->n_blocks * (size_t)b.n, double);
        b.value = AP_NEW_N(scratch, plan->graph->n_nodes + 1, double);
        b.work = AP_NEW_N(scratch, 3 * b.n, double);
        b.moved = b.work + b.n;
        b.sec = b.moved + b.n;
        measure_batch(&b, known);
        for (int k = 0; k < b.n; k++)
            measure[at[k]] = b.m[k];
    }
}
