/*
 * Problem: a pipelined plan gives the blocks of each stage and how they are split; which
 * program does each device run, and what do stages send each other? Idea: ap_subgraph
 * cuts out a stage's graph; it gets the microbatch axis of the whole graph before its own
 * mesh and is partitioned as any plan. Values that a stage sends are results of its
 * program, in the layout in which they lie, with sums completed, one microbatch's share
 * at a time; in the stage that reads them they are parameters, in the layout in which
 * they are read. Two stages therefore share only messages, and a value that several
 * stages read goes to each of them directly from the stage that makes it. Recomputed
 * operators have copies in the stage's graph (recompute.c). Cost: partitioning the
 * stages; linear in the values cut. After Zheng et al., "Alpa", section 6.
 */
#include "pipeline/pipeline_program.h"

#include <stdlib.h>
#include <string.h>

#include "plan/microbatch.h"
#include "pipeline/pipeline_price.h"
#include "pipeline/recompute.h"
#include "pipeline/stage_facts.h"

struct builder {
    struct ap_arena *arena;
    const struct ap_graph *g;
    const struct ap_nests *nests;
    const int *block_of; /* [node of g] */
    const struct ap_cluster *cluster;
    const struct ap_stages *stages;
    const struct ap_program_form *form;
    struct ap_pipeline_program *program;
    /* the whole graph on the microbatch axis; choice NULL without one */
    struct ap_microbatched whole;
    /* [node of g]: some stage reads each microbatch's estimate, or all there is at the
       end; NULL: statistics are the whole batch's */
    bool *read_each, *read_once;
    int *handed_each;        /* [node of g]: result of owner that is the estimate, -1 */
    struct ap_plan *plan;    /* [stage] */
    int *owner, *handed_as;  /* [node of g]: stage that makes it, its result there; -1 */
    struct ap_subgraph *sub; /* [stage]: with what is passed on */
    int **turn;              /* [stage][group] */
};

/* ---- a stage ---- */

/* The stage's graph with one more result for each value that is passed on and is a result
 * of the whole, too: others take it as it lies. */
static struct ap_subgraph hand_on(struct builder *b, int stage)
{
    struct ap_subgraph sub = b->stages->stage[stage].sub;
    const struct ap_subgraph *old = &b->stages->stage[stage].sub;
    struct ap_graph *g = &sub.graph;
    bool *handed = AP_NEW_N(b->arena, g->n_nodes, bool);
    bool *taken = AP_NEW_N(b->arena, g->n_results + 2 * sub.n_cut_out + 1, bool);
    bool *each = AP_NEW_N(b->arena, g->n_results + 2 * sub.n_cut_out + 1, bool);

    g->results =
        AP_NEW_N(b->arena, g->n_results + 2 * sub.n_cut_out + 1, struct ap_result);
    for (int r = 0; r < g->n_results; r++) {
        int node = sub.source[old->graph.results[r].node];
        g->results[r] = old->graph.results[r];
        taken[r] = old->graph.taken[r];
        if (!taken[r])
            continue;
        b->owner[node] = stage;
        b->handed_as[node] = r;
    }
    for (int k = 0; k < sub.n_cut_out; k++) {
        int node = sub.source[sub.cut_out[k]];
        if (b->owner[node] == stage)
            continue;
        b->owner[node] = stage;
        b->handed_as[node] = g->n_results;
        taken[g->n_results] = true;
        g->results[g->n_results++] =
            (struct ap_result){sub.cut_out[k], AP_ROLE_AUX, -1, NULL};
    }
    for (int k = 0; k < sub.n_cut_out && b->read_each; k++) {
        int node = sub.source[sub.cut_out[k]], r = b->handed_as[node];
        if (!b->read_each[node] || b->owner[node] != stage)
            continue;
        if (b->read_once[node]) {
            r = g->n_results++;
            g->results[r] = (struct ap_result){sub.cut_out[k], AP_ROLE_AUX, -1, NULL};
            taken[r] = true;
        }
        each[r] = true;
        b->handed_each[node] = r;
    }
    if (b->read_each)
        b->plan[stage].each_result = each;
    for (int k = 0; k < sub.n_cut_in; k++)
        handed[sub.cut_in[k]] = true;
    g->taken = taken;
    g->handed = handed;
    return sub;
}

/* Which parameters and results of the whole graph the stage's are. */
static void number(struct builder *b, const struct ap_subgraph *sub,
                   struct ap_pipeline_stage *out)
{
    const struct ap_graph *g = &sub->graph;
    int *param = AP_NEW_N(b->arena, g->n_params + 1, int);
    int *result = AP_NEW_N(b->arena, g->n_results + 1, int);

    for (int k = 0; k < g->n_params; k++)
        param[k] =
            g->handed[g->params[k]] ? -1 : b->g->nodes[sub->source[g->params[k]]].param;
    for (int r = 0, w = 0; r < g->n_results; r++) {
        const struct ap_result *res = &g->results[r];
        result[r] = -1;
        if (g->taken[r])
            continue;
        while (b->g->results[w].node != sub->source[res->node] ||
               b->g->results[w].role != res->role)
            w++; /* those of the part are in the order of the whole's */
        result[r] = w++;
    }
    out->param = param;
    out->result = result;
}

/* The stage's plan with the microbatch axis before its own. */
static int plan_in_time(struct builder *b, int stage, const struct ap_subgraph *sub,
                        struct ap_plan *plan, struct ap_err *err)
{
    const struct ap_stage *st = &b->stages->stage[stage];
    const bool *each_result = plan->each_result;
    const int16_t *time;

    *plan = st->sharding.plan;
    plan->graph = &sub->graph;
    plan->each_result = each_result;
    plan->scatters = b->stages->trainer & AP_TRAINER_SCATTERS;
    plan->low_sums = b->stages->trainer & AP_TRAINER_LOW_SUMS;
    plan->host = ap_stages_host_of(b->arena, b->stages, b->g, sub);
    if (!b->whole.choice)
        return 0;
    if (ap_mesh_add_microbatches(&plan->mesh, b->program->microbatches, err) ||
        ap_microbatch_part(b->arena, &b->whole, sub, &st->nests, &time, &plan->each, err))
        return -1;
    plan->microbatch_choice = time;
    plan->choice = AP_NEW_N(b->arena, st->nests.n, struct ap_choice_vec);
    for (int i = 0; i < st->nests.n; i++) {
        plan->choice[i].axis[0] = time[i];
        for (int a = 1; a < AP_MAX_AXES; a++)
            plan->choice[i].axis[a] = st->sharding.plan.choice[i].axis[a - 1];
    }
    return 0;
}

int ap_program_make(struct ap_arena *arena, const struct ap_plan *plan,
                    const struct ap_program_form *form, struct ap_conversions *conv,
                    struct ap_program *prog, struct ap_err *err)
{
    if (ap_plan_conversions(arena, plan, form->cost, conv, err) ||
        ap_partition(arena, plan, conv, prog, err))
        return -1;
    if (form->split && form->cost->cluster.fused_attention)
        ap_program_kernels(arena, prog);
    else if (form->split)
        ap_program_split(arena, prog, false);
    if (plan->host)
        ap_program_offload(arena, plan->host, prog);
    ap_program_pack(arena, prog, form);
    if (!form->by_turn)
        ap_plan_buffers(arena, prog, form->limit_bytes);
    return 0;
}

static int partition(struct builder *b, int stage, const struct ap_plan *plan,
                     struct ap_program *prog, struct ap_err *err)
{
    struct ap_program_form form = *b->form;
    struct ap_cost cost;
    struct ap_conversions conv;

    if (ap_stage_cost(b->arena, b->cluster, &b->stages->stage[stage], &plan->mesh, &cost,
                      err))
        return -1;
    form.by_turn = true;
    form.cost = &cost;
    int rc = ap_plan_check(plan, &cost, err);
    if (!rc)
        rc = ap_program_make(b->arena, plan, &form, &conv, prog, err);
    ap_cost_free(&cost);
    prog->part = true;
    return rc;
}

/* ---- turns ---- */

/* Nodes that a value is made of which goes to a later stage. */
static bool *find_needed(struct builder *b)
{
    bool *needed = AP_NEW_N(b->arena, b->g->n_nodes, bool);

    for (int to = 0; to < b->stages->n; to++)
        for (int k = 0; k < b->sub[to].n_cut_in; k++) {
            int node = b->sub[to].source[b->sub[to].cut_in[k]];
            needed[node] |= b->g->nodes[node].phase != AP_UPDATE && b->owner[node] < to;
        }
    for (int i = b->g->n_nodes - 1; i >= 0; i--)
        for (int k = 0; needed[i] && k < b->g->nodes[i].n_in; k++)
            needed[b->g->nodes[i].in[k]] = true;
    return needed;
}

/* The least turns, without those of weights. */
static void start_turns(struct builder *b, int stage, const bool *needed)
{
    const struct ap_plan *plan = &b->plan[stage];
    const uint8_t *when = ap_plan_when(b->arena, plan);

    for (int i = 0; i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        enum ap_phase phase = ap_plan_group_phase(plan->graph, nest);
        bool forward = phase == AP_FORWARD ||
                       plan->graph->nodes[nest->members[0]].op == AP_OP_PARAMETER;
        for (int m = 0; m < nest->n_members; m++)
            forward |= needed[b->sub[stage].source[nest->members[m]]];
        int turn = forward                ? AP_TURN_FORWARD
                   : phase == AP_BACKWARD ? AP_TURN_BACKWARD
                                          : AP_TURN_END;
        if (when && when[i] == AP_AFTER) /* what runs once has turns of its own */
            turn = AP_TURN_END;
        else if (when && turn == AP_TURN_END)
            turn = AP_TURN_BACKWARD;
        b->turn[stage][i] = turn;
    }
}

/* Whether a result is added up over microbatches: what makes it whole on the devices that
 * send it runs at the end. */
static bool is_sum(const struct builder *b, int stage, int result)
{
    const struct ap_plan *plan = &b->plan[stage];
    const struct ap_layout l = ap_plan_result_layout(plan, result);

    return plan->mesh.microbatch && !ap_layout_per_microbatch(&plan->mesh, &l);
}

/* The least turn of a group, by its operands and by the stages that send them. */
static int least_turn(const struct builder *b, int stage, const struct ap_nest *nest)
{
    const struct ap_subgraph *sub = &b->sub[stage];
    int first = nest->members[0], node = sub->source[first], least = 0;

    for (int k = 0; k < nest->n_ins; k++) {
        int turn = b->turn[stage][sub->graph.nodes[nest->ins[k].node].group];
        least = turn > least ? turn : least;
    }
    if (!sub->graph.handed[first])
        return least;
    int from = b->owner[node];
    if (from < 0) /* refused later */
        return least;
    int made = b->sub[from].graph.results[b->handed_as[node]].node;
    int turn = b->turn[from][b->sub[from].graph.nodes[made].group];
    if (turn == AP_TURN_BACKWARD && b->stages->chunks > 1 &&
        is_sum(b, from, b->handed_as[node]))
        turn = AP_TURN_END;
    return turn >= AP_TURN_END                        ? turn + 1
           : turn == AP_TURN_BACKWARD || from > stage ? AP_TURN_BACKWARD
                                                      : AP_TURN_FORWARD;
}

/*
 * In which turn each group runs, so that nobody waits for what comes later: forward,
 * backward, and at the end by how often values have gone from stage to stage. Groups that
 * need each other in turn never settle; then the order shows who waits.
 */
static void find_turns(struct builder *b)
{
    const bool *needed = find_needed(b);
    int n = b->stages->n, passes = 2 * n + 8;
    bool changed = true;

    for (int s = 0; s < n; s++) {
        b->turn[s] = AP_NEW_N(b->arena, b->plan[s].nests->n + 1, int);
        start_turns(b, s, needed);
    }
    while (changed && passes-- > 0) {
        changed = false;
        for (int s = 0; s < n; s++)
            for (int i = 0; i < b->plan[s].nests->n; i++) {
                int least = least_turn(b, s, &b->plan[s].nests->nest[i]);
                changed |= least > b->turn[s][i];
                b->turn[s][i] = least > b->turn[s][i] ? least : b->turn[s][i];
            }
    }
    for (int s = 0; s < n; s++)
        b->plan[s].turn = b->turn[s];
}

/* ---- what runs again ---- */

/* What the plan does not keep: values of one block alone, or those that it names; never
 * results. */
static bool *find_gone(const struct builder *b, const struct ap_stage *st,
                       const struct ap_subgraph *sub)
{
    const struct ap_graph *g = &sub->graph;
    bool *gone = AP_NEW_N(b->arena, g->n_nodes, bool);

    if (st->recompute == AP_RECOMPUTE_ALL) {
        for (int i = 0; i < g->n_nodes; i++) {
            gone[i] = true;
            for (int u = g->user_start[i]; u < g->user_start[i + 1]; u++)
                gone[i] &=
                    b->block_of[sub->source[g->users[u]]] == b->block_of[sub->source[i]];
        }
    } else {
        bool *recomputed = AP_NEW_N(b->arena, b->g->n_nodes, bool);
        for (int k = 0; k < st->n_recomputed; k++)
            recomputed[st->recomputed[k]] = true;
        for (int i = 0; i < g->n_nodes; i++)
            gone[i] = recomputed[sub->source[i]];
    }
    for (int r = 0; r < g->n_results; r++)
        gone[g->results[r].node] = false;
    return gone;
}

static void recompute_stages(struct builder *b)
{
    for (int s = 0; s < b->stages->n; s++) {
        const struct ap_stage *st = &b->stages->stage[s];
        if (st->recompute != AP_RECOMPUTE_NONE)
            ap_recompute(b->arena,
                         ap_stage_recomputed_groups(b->arena, st, b->g->n_nodes),
                         find_gone(b, st, &b->sub[s]), &b->sub[s], &b->plan[s]);
    }
}

/* ---- gradients of weights ---- */

/* Where backward passes are split: the turns of groups of which no earlier stage reads
 * anything. */
static void split_backward(struct builder *b, int stage)
{
    struct ap_plan *plan = &b->plan[stage];
    const struct ap_subgraph *sub = &b->sub[stage];
    const int n = plan->nests->n;
    bool *leaves = AP_NEW_N(b->arena, plan->graph->n_nodes, bool);
    enum ap_phase *phase = AP_NEW_N(b->arena, n + 1, enum ap_phase);
    int *turn = AP_NEW_N(b->arena, n + 1, int);

    for (int k = 0; k < sub->n_cut_out; k++)
        leaves[sub->cut_out[k]] =
            !is_sum(b, stage, b->handed_as[sub->source[sub->cut_out[k]]]);
    for (int i = 0; i < n; i++)
        phase[i] = plan->turn[i] == AP_TURN_FORWARD    ? AP_FORWARD
                   : plan->turn[i] == AP_TURN_BACKWARD ? AP_BACKWARD
                                                       : AP_UPDATE;
    const bool *weights =
        ap_stage_weights(b->arena, plan->graph, plan->nests, phase, leaves);
    for (int i = 0; i < n; i++)
        turn[i] = weights[i] ? AP_TURN_WEIGHTS : plan->turn[i];
    plan->turn = turn;
}

/* ---- stages ---- */

static int err_of(int stage, const struct ap_err *why, struct ap_err *err)
{
    return ap_err_set(err, "/stages/stages/%d: %s", stage, why->msg);
}

static int add_stage(struct builder *b, int i, struct ap_err *err)
{
    struct ap_pipeline_stage *out = &b->program->stage[i];
    const struct ap_program *p = &out->prog;
    struct ap_err why = {0};

    if (partition(b, i, &b->plan[i], &out->prog, &why))
        return err_of(i, &why, err);
    struct ap_pipeline_cuts *c = &out->cuts;
    int n = p->local.n_groups;
    *c = (struct ap_pipeline_cuts){p->each_lo, p->each_lo, p->each_lo, p->each_hi};
    while (!p->mesh.microbatch && c->each_hi < n && p->turn[c->each_hi] < AP_TURN_END)
        c->each_hi++; /* one microbatch: what the program does not tell from the rest */
    while (c->backward_lo < c->each_hi && p->turn[c->backward_lo] == AP_TURN_FORWARD)
        c->backward_lo++;
    c->weights_lo = c->backward_lo;
    while (c->weights_lo < c->each_hi && p->turn[c->weights_lo] != AP_TURN_WEIGHTS)
        c->weights_lo++;
    return 0;
}

/* Which values that go from stage to stage are read as estimates. */
static void find_reads(struct builder *b)
{
    const uint8_t *when = ap_microbatch_when(b->arena, &b->whole);

    b->read_each = AP_NEW_N(b->arena, b->g->n_nodes, bool);
    b->read_once = AP_NEW_N(b->arena, b->g->n_nodes, bool);
    b->handed_each = AP_NEW_N(b->arena, b->g->n_nodes, int);
    for (int i = 0; i < b->stages->n; i++) {
        const struct ap_subgraph *sub = &b->stages->stage[i].sub;
        const struct ap_graph *g = &sub->graph;
        for (int k = 0; k < sub->n_cut_in; k++) {
            const int node = sub->cut_in[k];
            bool each = false;
            for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++)
                each |= ap_microbatch_is_estimate(&b->whole, when, sub->source[node],
                                                  sub->source[g->users[u]]);
            (each ? b->read_each : b->read_once)[sub->source[node]] = true;
        }
    }
}

static int add_stages(struct builder *b, struct ap_err *err)
{
    struct ap_err why = {0};
    int n = b->stages->n;

    if (b->whole.each)
        find_reads(b);

    for (int i = 0; i < n; i++) {
        b->sub[i] = hand_on(b, i);
        b->program->stage[i].graph =
            ap_arena_dup(b->arena, &b->sub[i].graph, sizeof b->sub[i].graph);
        number(b, &b->sub[i], &b->program->stage[i]);
        if (plan_in_time(b, i, &b->sub[i], &b->plan[i], &why))
            return err_of(i, &why, err);
    }
    find_turns(b);
    recompute_stages(b);
    for (int i = 0; i < n && ap_schedule_traits[b->stages->schedule].splits; i++)
        split_backward(b, i);
    for (int i = 0; i < n; i++)
        if (add_stage(b, i, err))
            return -1;
    return 0;
}

/* ---- lanes ---- */

static int compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

/* Ranks are the devices of all stages in ascending order. */
static void add_lanes(struct builder *b)
{
    const struct ap_stages *s = b->stages;
    struct ap_pipeline_program *r = b->program;
    int64_t n = 0;

    r->n_lanes = s->n / s->chunks;
    r->lane = AP_NEW_N(b->arena, r->n_lanes, struct ap_lane);
    for (int i = 0; i < r->n_lanes; i++)
        n += s->stage[i].n_devices;
    int64_t *ids = AP_NEW_N(b->arena, n, int64_t);
    r->n_ranks = (int)n;
    n = 0;
    for (int i = 0; i < r->n_lanes; i++) {
        memcpy(ids + n, s->stage[i].devices, (size_t)s->stage[i].n_devices * sizeof *ids);
        n += s->stage[i].n_devices;
    }
    qsort(ids, (size_t)n, sizeof *ids, compare_ids);
    for (int i = 0; i < r->n_lanes; i++) {
        const struct ap_stage *st = &s->stage[i];
        int *ranks = AP_NEW_N(b->arena, st->n_devices, int);
        for (int64_t d = 0; d < st->n_devices; d++) {
            const int64_t *at =
                bsearch(&st->devices[d], ids, (size_t)n, sizeof *ids, compare_ids);
            ranks[d] = (int)(at - ids);
        }
        r->lane[i] = (struct ap_lane){.n_ranks = (int)st->n_devices, .ranks = ranks};
    }
    for (int i = 0; i < s->n; i++)
        r->stage[i].lane = ap_schedule_device(s->schedule, r->n_lanes, i);
}

/* ---- transfers ---- */

/* Whether the receiver already has it. */
static bool stays(const struct builder *b, int cut, const struct ap_transfer *t)
{
    const struct ap_stage *from = &b->stages->stage[t->from];
    const struct ap_stage *to = &b->stages->stage[t->to];

    for (int k = 0; k < from->sub.n_cut_out; k++)
        if (from->sub.source[from->sub.cut_out[k]] == to->sub.source[cut])
            return ap_transfer_stays(from, from->sub.cut_out[k], to, cut);
    return false;
}

/* How a transfer is sent: as the plan says, or as is quickest by price. cut: node of the
 * receiver that it becomes. */
static int choose(struct builder *b, int cut, struct ap_transfer *t, struct ap_err *err)
{
    const struct ap_stage *from = &b->stages->stage[t->from];
    const struct ap_stage *to = &b->stages->stage[t->to];
    const struct ap_devices senders = {from->n_devices, from->devices};
    const struct ap_devices receivers = {to->n_devices, to->devices};
    const struct ap_link link = ap_link_between(b->cluster, &senders, &receivers);
    const struct ap_layout layout = ap_plan_node_layout(&to->sharding.plan, cut);
    const struct ap_program *prog = &b->program->stage[t->to].prog;
    const bool each = prog->local.nodes[prog->local.params[t->param]].attrs->each;
    struct ap_cluster own;
    struct ap_cost cost;

    t->how = AP_RESHARD_SEND_RECV;
    if (stays(b, cut, t))
        return 0;
    if (ap_cluster_take(b->cluster, to->n_devices, to->devices, &own, err) ||
        ap_cost_init(b->arena, &cost, AP_COST_DEFAULT, &own, &to->sharding.plan.mesh,
                     err))
        return -1;
    t->how = ap_price_transfer(&link, &t->shape, each ? 1 : t->n_messages, &cost, &layout,
                               b->stages->resharding)
                 .how;
    ap_cost_free(&cost);
    return 0;
}

static int add_transfer(struct builder *b, int to, int cut, struct ap_err *err)
{
    const struct ap_subgraph *sub = &b->stages->stage[to].sub;
    int node = sub->source[cut], from = b->owner[node];
    struct ap_pipeline_program *r = b->program;

    if (from < 0)
        return ap_err_set(err, "node %d (%s): no stage hands it on to stage %d", node,
                          b->g->nodes[node].name, to);
    struct ap_transfer t = {.from = from,
                            .to = to,
                            .result = b->handed_as[node],
                            .param = sub->graph.nodes[cut].param,
                            .shape = b->g->nodes[node].shape};
    const struct ap_program *sends = &r->stage[from].prog, *takes = &r->stage[to].prog;
    if (takes->local.nodes[takes->local.params[t.param]].attrs->each)
        t.result = b->handed_each[node];
    t.layout = ap_plan_result_layout(&b->plan[from], t.result);
    bool share = ap_layout_per_microbatch(&sends->mesh, &t.layout);
    bool takes_share = ap_pipeline_is_share(takes, t.param);
    const struct ap_attrs *attrs = takes->local.nodes[takes->local.params[t.param]].attrs;
    if (share && takes_share && !attrs->each &&
        (t.layout.axis[0].dim != attrs->layout.axis[0].dim ||
         t.layout.axis[0].stride != attrs->layout.axis[0].stride))
        return ap_err_set(err,
                          "node %d (%s): its microbatches differ from those of stage %d, "
                          "which reads it",
                          node, b->g->nodes[node].name, to);
    t.n_messages = share || takes_share ? r->microbatches : 1;
    if (choose(b, cut, &t, err))
        return -1;
    r->transfer[r->n_transfers++] = t;
    return 0;
}

/* New values of parameters that several stages hold, from the stage that makes them. */
static int add_new_values(struct builder *b, struct ap_err *err)
{
    const struct ap_stages *s = b->stages;
    struct ap_pipeline_program *r = b->program;
    int *maker = AP_NEW_N(b->arena, b->g->n_params + 1, int);
    int *made_as = AP_NEW_N(b->arena, b->g->n_params + 1, int);

    for (int k = 0; k < b->g->n_params; k++)
        maker[k] = -1;
    for (int i = 0; i < s->n; i++) {
        const struct ap_graph *g = &b->sub[i].graph;
        for (int k = 0; k < g->n_results; k++) {
            int w = r->stage[i].result[k], alias = w < 0 ? -1 : b->g->results[w].alias;
            if (alias < 0)
                continue;
            if (g->results[k].alias < 0)
                return ap_err_set(err,
                                  "/stages/stages/%d: it makes the new value of %s, "
                                  "which it does not read",
                                  i, b->g->nodes[alias].name);
            maker[b->g->nodes[alias].param] = i;
            made_as[b->g->nodes[alias].param] = k;
        }
    }
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < b->sub[i].graph.n_params; k++) {
            int param = r->stage[i].param[k], from = param < 0 ? -1 : maker[param];
            if (from < 0 || from == i)
                continue;
            struct ap_transfer *t = &r->transfer[r->n_transfers++];
            *t = (struct ap_transfer){
                .from = from,
                .to = i,
                .result = made_as[param],
                .param = k,
                .shape = b->g->nodes[b->g->params[param]].shape,
                .layout = ap_plan_result_layout(&b->plan[from], made_as[param]),
                .n_messages = 1};
            if (choose(b, b->stages->stage[i].sub.graph.params[k], t, err))
                return -1;
        }
    return 0;
}

static int add_transfers(struct builder *b, struct ap_err *err)
{
    const struct ap_stages *s = b->stages;
    int64_t n = 0;

    for (int i = 0; i < s->n; i++)
        n += s->stage[i].sub.n_cut_in + s->stage[i].sub.graph.n_params;
    b->program->transfer = AP_NEW_N(b->arena, n + 1, struct ap_transfer);
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->stage[i].sub.n_cut_in; k++)
            if (add_transfer(b, i, s->stage[i].sub.cut_in[k], err))
                return -1;
    return add_new_values(b, err);
}

/* ---- what is not done ---- */

/* Schedule inference runs forward only. */
static int check_schedule(const struct ap_graph *g, const struct ap_stages *stages,
                          struct ap_err *err)
{
    for (int i = 0; i < g->n_nodes && stages->schedule == AP_SCHEDULE_INFERENCE; i++)
        if (g->nodes[i].phase != AP_FORWARD)
            return ap_err_set(err,
                              "/stages/schedule: inference runs forward only, and node "
                              "%d (%s) is of the %s phase",
                              i, g->nodes[i].name, ap_phase_names[g->nodes[i].phase]);
    return 0;
}

static int lie_in_time(struct builder *b, bool *unsupported, struct ap_err *err)
{
    struct ap_err why = {0};

    b->whole = (struct ap_microbatched){
        .graph = b->g, .nests = b->nests, .n = b->stages->microbatches};
    if (b->stages->microbatches == 1)
        return 0;
    if (!b->stages->each)
        return ap_microbatch_choices(b->arena, b->g, b->nests, b->whole.n,
                                     &b->whole.choice, &why)
                   ? ap_err_set(err, "/stages/microbatches: %s", why.msg)
                   : 0;
    *unsupported = true;
    if (ap_microbatch_choices_each(b->arena, b->g, b->nests, b->whole.n, &b->whole.choice,
                                   &b->whole.each, &why))
        return ap_err_set(err, "/stages/microbatch: each, but %s", why.msg);
    *unsupported = false;
    return 0;
}

/* The one stage of a sharding. */
static int build_alone(struct ap_arena *arena, const struct ap_plan *plan,
                       const struct ap_program_form *form,
                       struct ap_pipeline_program *program, bool *unsupported,
                       struct ap_err *err)
{
    struct ap_conversions conv;
    struct ap_program prog;
    const int rc = ap_program_make(arena, plan, form, &conv, &prog, err);

    *unsupported = rc > 0;
    if (rc)
        return -1;
    ap_pipeline_of_program(arena, &prog, program);
    return 0;
}

/* All but where values live. */
static int lay_out(struct ap_arena *arena, const struct ap_staged_graph *of,
                   const struct ap_stages *stages, const struct ap_program_form *form,
                   struct ap_pipeline_program *program, bool *unsupported,
                   struct ap_err *err)
{
    struct builder b = {.arena = arena,
                        .g = of->graph,
                        .nests = of->nests,
                        .block_of = of->blocks->block_of,
                        .cluster = of->cluster,
                        .stages = stages,
                        .form = form,
                        .program = program,
                        .plan = AP_NEW_N(arena, stages->n, struct ap_plan),
                        .owner = AP_NEW_N(arena, of->graph->n_nodes, int),
                        .handed_as = AP_NEW_N(arena, of->graph->n_nodes, int),
                        .sub = AP_NEW_N(arena, stages->n, struct ap_subgraph),
                        .turn = AP_NEW_N(arena, stages->n, int *)};
    *program = (struct ap_pipeline_program){
        .schedule = stages->schedule,
        .microbatches = (int)stages->microbatches,
        .pairs = stages->trainer & AP_TRAINER_EP_OVERLAP,
        .each = stages->each && stages->microbatches > 1,
        .n_stages = stages->n,
        .stage = AP_NEW_N(arena, stages->n, struct ap_pipeline_stage)};
    *unsupported = false;
    if (check_schedule(of->graph, stages, err) || lie_in_time(&b, unsupported, err))
        return -1;
    memset(b.owner, -1, (size_t)of->graph->n_nodes * sizeof *b.owner);
    if (add_stages(&b, err))
        return -1;
    add_lanes(&b);
    *unsupported = true;
    if (add_transfers(&b, err))
        return -1;
    return ap_pipeline_order(arena, stages->chunks, program, err);
}

int ap_pipeline_build(struct ap_arena *arena, const struct ap_staged_graph *of,
                      const struct ap_stages *stages, const struct ap_program_form *form,
                      struct ap_pipeline_program *program, bool *unsupported,
                      struct ap_err *err)
{
    if (stages->alone)
        return build_alone(arena, &stages->stage->sharding.plan, form, program,
                           unsupported, err);
    const int rc = lay_out(arena, of, stages, form, program, unsupported, err);
    if (rc == 0)
        ap_pipeline_buffers(arena, program, 0);
    return rc;
}

int ap_stages_check_waits(const struct ap_staged_graph *of,
                          const struct ap_stages *stages, struct ap_err *err)
{
    const struct ap_blocks *b = of->blocks;
    struct ap_pipeline_program program;
    struct ap_arena scratch = {0};
    struct ap_err why = {0};
    bool unsupported;
    int rc = 0;

    if (b->n_moved > 0)
        rc = lay_out(&scratch, of, stages, &(struct ap_program_form){0}, &program,
                     &unsupported, &why);
    ap_arena_free(&scratch);
    if (rc <= 0)
        return 0;
    return ap_err_set(err,
                      "/blocks/block_of/%d: node %d (%s) is in block %d and not in block "
                      "%d, where the forward pass has it%s: %s",
                      b->moved, b->moved, of->graph->nodes[b->moved].name,
                      b->block_of[b->moved], b->moved_from,
                      b->n_moved > 1 ? ", and others are not where it has them" : "",
                      why.msg);
}

/* Memory over time, so that its most is the peak. */
static void move_slices(struct ap_sim_device *d)
{
    const int64_t more = d->peak_bytes - d->summed_bytes;

    for (int i = 0; i < d->n_slices; i++) {
        struct ap_sim_slice *s = &d->slices[i];
        s->bytes = s->bytes + more > 0 ? s->bytes + more : 0;
        s->after_bytes = s->after_bytes + more > 0 ? s->after_bytes + more : 0;
    }
}

int ap_pipeline_measure(const struct ap_staged_graph *of, const struct ap_stages *stages,
                        int64_t limit, struct ap_pipeline_price *price)
{
    struct ap_stages as_run = *stages;
    struct ap_pipeline_program program;
    struct ap_pipeline_price plain = *price;
    struct ap_arena scratch = {0};
    struct ap_err why = {0};
    bool unsupported;

    as_run.trainer &= ~(unsigned)AP_TRAINER_KEEPS_GRADIENTS;
    if (lay_out(&scratch, of, stages, &(struct ap_program_form){0}, &program,
                &unsupported, &why) ||
        (as_run.trainer != stages->trainer &&
         ap_pipeline_price(&scratch, of, &as_run, &plain, &why))) {
        ap_arena_free(&scratch);
        return 1;
    }
    ap_pipeline_buffers(&scratch, &program, limit);
    price->peak_bytes = price->host_bytes = 0;
    for (int d = 0; d < program.n_lanes; d++) {
        struct ap_sim_device *dev = &price->result.devices[d];
        dev->peak_bytes = program.lane[d].peak_bytes + dev->summed_bytes -
                          plain.result.devices[d].summed_bytes;
        move_slices(dev);
        if (dev->peak_bytes > price->peak_bytes)
            price->peak_bytes = dev->peak_bytes;
        if (program.lane[d].host_bytes > price->host_bytes)
            price->host_bytes = program.lane[d].host_bytes;
    }
    ap_arena_free(&scratch);
    return 0;
}
