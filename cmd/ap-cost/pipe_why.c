/*
 * Problem: why an operator of a pipelined plan is split as it is, and why one plan of a
 * graph is more expensive than another, pipelined or not.
 * Idea: for one operator, its stage is priced again with each legal choice of its group,
 * and the step simulated with that stage. For two plans, the step is the same for all
 * devices, and each spends it on blocks, on sums of gradients, on sends and on waiting:
 * on average over its devices that adds up to the step, so that the differences of these
 * parts add up to the difference of the steps. A plan that is not pipelined has one
 * stage. Cost: one stage's price and one simulation a choice; a diff is linear in the
 * graphs.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doc/fingerprint.h"
#include "pipe.h"

/* ---- why ---- */

struct retry {
    struct ap_arena *arena;
    const struct pipe_input *in;
    const struct ap_pipeline_price *p;
    const struct ap_cost *cost;
    struct ap_stage_microbatch micro;
    int stage;
};

/* Stages are recomputed as in the plan; selected operators are those of the plan. */
static double sum_of(const struct retry *r, const struct ap_stage_point *point)
{
    bool again = r->in->stages.stage[r->stage].recompute == AP_RECOMPUTE_ALL;
    return (double)r->micro.n *
               (point->forward_sec * (again ? 2 : 1) + point->backward_sec) +
           point->sync_sec + point->update_sec;
}

static struct ap_price simulate_with(void *context, const struct ap_plan *plan,
                                     const struct ap_conversions *conv)
{
    struct retry *r = context;
    const struct ap_stage *st = &r->in->stages.stage[r->stage];
    struct ap_mark mark = ap_arena_mark(r->arena);
    struct ap_sim sim = r->p->sim;
    struct ap_sim_result result;
    struct ap_stage_point with[2] = {{0}}, bare[2] = {{0}}, was[2] = {{0}};
    struct ap_conversions none = *conv;
    struct ap_err err = {0};

    none.n = 0;
    ap_stage_price(r->arena,
                   &(struct ap_stage_plan){&st->sub, &r->micro, plan, conv, r->cost},
                   with);
    ap_stage_price(r->arena,
                   &(struct ap_stage_plan){&st->sub, &r->micro, plan, &none, r->cost},
                   bare);
    ap_stage_price(r->arena,
                   &(struct ap_stage_plan){&st->sub, &r->micro, &st->sharding.plan,
                                           &r->p->breakdown[r->stage].conv, r->cost},
                   was);
    struct ap_sim_stage *stages =
        ap_arena_dup(r->arena, sim.stages, (size_t)sim.n_stages * sizeof *stages);
    struct ap_sim_stage *s = &stages[r->stage];
    if (st->recompute == AP_RECOMPUTE_ALL)
        s->recompute_sec = with[0].forward_sec;
    s->forward_sec = with[0].forward_sec;
    s->backward_sec = with[0].backward_sec;
    s->sync_sec += with[0].sync_sec - was[0].sync_sec; /* tied weights' stays */
    s->update_sec += with[0].update_sec - was[0].update_sec;
    sim.stages = stages;
    int rc = ap_simulate(r->arena, &sim, &result, &err);
    struct ap_price price = {.compute_sec = sum_of(r, &bare[0]),
                             .comm_sec = sum_of(r, &with[0]) - sum_of(r, &bare[0]),
                             .step_sec = rc ? INFINITY : result.step_sec};
    ap_arena_rewind(r->arena, mark);
    return price;
}

int pipe_why(struct ap_arena *arena, const struct pipe_input *in,
             const struct ap_pipeline_price *p, const char *name, struct ap_buf *out,
             struct ap_err *err)
{
    int node = price_find_node(&in->graph, name), own = 0;
    if (node < 0)
        return ap_err_set(err, "the graph has no node %s", name);
    int stage = ap_stages_of_nodes(arena, &in->stages, &in->graph, &in->blocks)[node];
    const struct ap_stage *st = &in->stages.stage[stage];
    struct cost_input part = {.graph = st->sub.graph,
                              .nests = st->nests,
                              .cluster = p->breakdown[stage].cost.cluster,
                              .sharding = st->sharding,
                              .price = simulate_with};
    struct retry r = {
        .arena = arena, .in = in, .p = p, .cost = &part.cost, .stage = stage};
    struct priced priced = {.plan = st->sharding.plan};

    while (own < st->sub.graph.n_nodes && st->sub.source[own] != node)
        own++;
    if (own == st->sub.graph.n_nodes)
        return ap_err_set(err, "node %s is used by no stage", name);
    if (ap_stage_microbatch_axis(arena, &in->graph, &in->nests, in->stages.microbatches,
                                 &r.micro, err) ||
        ap_cost_init(arena, &part.cost, AP_COST_DEFAULT, &part.cluster, &priced.plan.mesh,
                     err))
        return -1;
    part.price_context = &r;
    priced.price = simulate_with(&r, &priced.plan, &p->breakdown[stage].conv);
    ap_buf_printf(
        out, "stage %d of %d, %lld devices, %lld microbatches; ids are the stage's\n",
        stage, in->stages.n, (long long)st->n_devices,
        (long long)in->stages.microbatches);
    int rc =
        price_why(arena, &part, &priced, ap_arena_printf(arena, "%d", own), out, err);
    ap_cost_free(&part.cost);
    return rc;
}

/* ---- diff ---- */

enum { SUMS, SENDS, WAITING, N_OTHERS }; /* after the blocks */

/* A part of the step, on average over the plan's devices. */
struct spent {
    double compute_sec, comm_sec;
};

static int add_stage(struct ap_arena *arena, const struct pipe_input *in,
                     const struct ap_pipeline_price *p, int i,
                     const struct ap_blocks *blocks, struct spent *parts,
                     struct ap_err *err)
{
    const struct ap_stage *st = &in->stages.stage[i];
    const struct ap_conversions *conv = &p->breakdown[i].conv;
    const bool *again = ap_stage_recomputed_groups(arena, st, in->graph.n_nodes);
    double *group = AP_NEW_N(arena, st->nests.n, double);
    double *moved = AP_NEW_N(arena, conv->n + 1, double);
    double share = (double)st->n_devices / (double)p->n_devices;
    struct ap_stage_microbatch micro;
    struct ap_cost cost;

    if (ap_stage_microbatch_axis(arena, &in->graph, &in->nests, in->stages.microbatches,
                                 &micro, err) ||
        ap_cost_init(arena, &cost, AP_COST_DEFAULT, &p->breakdown[i].cost.cluster,
                     &st->sharding.plan.mesh, err))
        return -1;
    ap_stage_spent(
        arena, &(struct ap_stage_plan){&st->sub, &micro, &st->sharding.plan, conv, &cost},
        group, moved);
    ap_cost_free(&cost);
    for (int k = 0; k < st->nests.n; k++) {
        int node = st->sub.source[st->nests.nest[k].members[0]];
        parts[blocks->block_of[node]].compute_sec +=
            share * group[k] * (again[k] ? 2 : 1);
    }
    for (int k = 0; k < conv->n; k++) {
        int reader = conv->conv[k].first_group;
        bool twice = reader < st->nests.n && again[reader];
        parts[blocks->block_of[st->sub.source[conv->conv[k].node]]].comm_sec +=
            share * moved[k] * (twice ? 2 : 1);
    }
    return 0;
}

/* What the average device spends its step on; sums of gradients are their block's. */
static int find_parts(struct ap_arena *arena, const struct pipe_input *in,
                      const struct ap_pipeline_price *p, const struct ap_blocks *blocks,
                      struct spent *parts, struct ap_err *err)
{
    double known = 0;

    for (int i = 0; i < in->stages.n; i++)
        if (add_stage(arena, in, p, i, blocks, parts, err))
            return -1;
    for (int b = 0; b < blocks->n; b++)
        known += parts[b].compute_sec + parts[b].comm_sec;
    struct pipe_spent s = pipe_spent_by_all(in, p);
    parts[blocks->n + SENDS].comm_sec = s.send_sec;
    parts[blocks->n + WAITING].comm_sec = s.wait_sec;
    parts[blocks->n + SUMS].comm_sec =
        p->result.step_sec - known - s.send_sec - s.wait_sec;
    return 0;
}

/* The other document's plan as a pipeline of one stage. */
static int read_spmd(struct ap_arena *arena, const struct ap_doc *doc,
                     const struct pipe_input *like, struct pipe_input *in,
                     struct ap_pipeline_price *p, struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "sharding");
    struct ap_at at = {.key = "sharding"};
    struct ap_stage *st = AP_NEW(arena, struct ap_stage);
    int *blocks = AP_NEW_N(arena, like->blocks.n, int);

    if (!section)
        return ap_err_set(err, "%s: no plan: neither /stages nor /sharding", doc->file);
    *in = *like;
    in->stages = (struct ap_stages){.algorithm = "one stage",
                                    .schedule = AP_SCHEDULE_1F1B,
                                    .stage = st,
                                    .n = 1,
                                    .chunks = 1,
                                    .microbatches = 1};
    for (int b = 0; b < like->blocks.n; b++)
        blocks[b] = b;
    st->blocks = blocks;
    st->n_blocks = like->blocks.n;
    int *all = AP_NEW_N(arena, in->graph.n_nodes, int);
    if (ap_subgraph_blocks(arena, &in->graph, all, 0, 0, &st->sub, err) ||
        ap_nests_build(arena, &st->sub.graph, &st->nests, err))
        return -1;
    json_t *json = ap_doc_load(doc, section, err);
    int rc = json ? ap_sharding_from_json(arena, json, &at, &st->sub.graph, &st->nests,
                                          &st->sharding, err)
                  : -1;
    json_decref(json);
    if (rc)
        return ap_doc_err(doc, err);
    in->stages.algorithm = st->sharding.algorithm;
    st->n_devices = ap_mesh_devices(&st->sharding.plan.mesh);
    int64_t *devices = AP_NEW_N(arena, st->n_devices, int64_t);
    for (int64_t d = 0; d < st->n_devices; d++)
        devices[d] = d;
    st->devices = devices;
    if (st->n_devices > ap_cluster_devices(&in->cluster))
        return ap_err_set(err, "%s: the mesh has %lld devices, cluster %s %lld",
                          doc->file, (long long)st->n_devices, in->cluster.name,
                          (long long)ap_cluster_devices(&in->cluster));
    return ap_pipeline_price(arena,
                             &(struct ap_staged_graph){&in->graph, &in->nests,
                                                       &in->blocks, &in->cluster},
                             &in->stages, p, err)
               ? ap_doc_err(doc, err)
               : 0;
}

static void put_total(struct ap_buf *out, const struct pipe_input *in,
                      const struct ap_pipeline_price *p)
{
    int64_t limit;
    const int full = pipe_fullest(in, p, &limit);

    price_put_sec(out, NULL, p->result.step_sec, 16);
    ap_buf_printf(
        out, "  %s: %d stage%s on %lld devices, %lld microbatch%s, %.1f %% of peak, ",
        in->stages.algorithm, in->stages.n, in->stages.n == 1 ? "" : "s",
        (long long)p->n_devices, (long long)in->stages.microbatches,
        in->stages.microbatches == 1 ? "" : "es", 100 * p->mfu);
    price_put_bytes(out, (double)p->peak_bytes, 0);
    ap_buf_puts(out, p->result.devices[full].peak_bytes > limit ? ", too large\n" : "\n");
}

static void put_parts(struct ap_buf *out, int n_blocks, const struct spent *d,
                      double whole)
{
    static const char *const others[] = {
        "reductions of gradients and norms across stages",
        "sends that no computation hides", "waiting for other stages"};
    int shown = 0;
    bool any = false;

    for (int i = 0; i < n_blocks + N_OTHERS; i++)
        any |= fabs(d[i].compute_sec + d[i].comm_sec) > 1e-9 * whole;
    if (!any) {
        ap_buf_puts(out, "\nthe two cost the same everywhere\n");
        return;
    }
    ap_buf_printf(
        out,
        "\nthe first costs more (+) or less (-), on average over its devices, for\n"
        "  %14s%14s%14s\n",
        "together", "compute", "communication");
    for (int i = 0; i < n_blocks + N_OTHERS; i++) {
        double sum = d[i].compute_sec + d[i].comm_sec;
        if (fabs(sum) <= 1e-9 * whole || (i < n_blocks && shown++ >= PRICE_ROWS))
            continue;
        ap_buf_puts(out, "  ");
        price_put_change(out, NULL, sum);
        price_put_change(out, NULL, d[i].compute_sec);
        price_put_change(out, NULL, d[i].comm_sec);
        if (i < n_blocks)
            ap_buf_printf(out, "  block %d\n", i);
        else
            ap_buf_printf(out, "  %s\n", others[i - n_blocks]);
    }
    if (shown > PRICE_ROWS)
        ap_buf_printf(out, "  and %d more blocks\n", shown - PRICE_ROWS);
}

int pipe_diff(struct ap_arena *arena, const struct pipe_input *in,
              const struct ap_pipeline_price *p, const struct ap_doc *doc,
              struct ap_buf *out, struct ap_err *err)
{
    int n = in->blocks.n + N_OTHERS;
    struct spent *a = AP_NEW_N(arena, n, struct spent),
                 *b = AP_NEW_N(arena, n, struct spent);
    struct pipe_input other = {0};
    struct ap_pipeline_price q;
    struct ap_graph g;

    if (ap_doc_graph(arena, doc, &g, err))
        return -1;
    ap_group(arena, &g);
    if (strcmp(ap_graph_fingerprint(arena, &g),
               ap_graph_fingerprint(arena, &in->graph)) != 0)
        return ap_err_set(err, "%s: plans of two graphs", doc->file);
    int rc = ap_doc_find(doc, "stages")
                 ? pipe_read(arena, doc, NULL, &in->cluster, &other, &q, err)
                 : read_spmd(arena, doc, in, &other, &q, err);
    if (rc || find_parts(arena, in, p, &in->blocks, a, err) ||
        find_parts(arena, &other, &q, &in->blocks, b, err))
        return -1;
    for (int i = 0; i < n; i++) {
        a[i].compute_sec -= b[i].compute_sec;
        a[i].comm_sec -= b[i].comm_sec;
    }
    put_total(out, in, p);
    put_total(out, &other, &q);
    put_parts(out, in->blocks.n, a, p->result.step_sec);
    price_fit_columns(out);
    return 0;
}
