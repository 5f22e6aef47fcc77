/*
 * Problem: explain the split of an operator, and the difference in price between two
 * plans. Idea: for one operator, price the plan again with each legal choice of its
 * group; for two plans, take the difference group by group and conversion by conversion,
 * and sum it up by kinds of names. Cost: `why` prices the plan once a choice, MAX_TRIED
 * at most (beyond it one mesh axis changes at a time); `diff` sorts the groups. With a
 * schedule, a choice belongs to a group of one stage, and the step is simulated with the
 * changed stage. Two schedules have one step for all devices, and each spends it on
 * blocks, on sums of gradients, on sends and on waiting: on average over its devices that
 * adds up to the step, so that the differences of these parts add up to the difference of
 * the steps.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "doc/fingerprint.h"
#include "price.h"

#define MAX_TRIED 256

/* ---- alternatives ---- */

struct option {
    struct ap_choice_vec choice;
    struct ap_price price;
    int order;
};

int price_find_node(const struct ap_graph *g, const char *name)
{
    char *end;
    for (int i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].name, name) == 0)
            return i;
    long id = strtol(name, &end, 10);
    return *name && !*end && id >= 0 && id < g->n_nodes ? (int)id : -1;
}

static int by_price(const void *a, const void *b)
{
    const struct option *x = a, *y = b;
    if (x->price.step_sec != y->price.step_sec)
        return x->price.step_sec < y->price.step_sec ? -1 : 1;
    return x->order - y->order;
}

/* Prices the plan with another choice for the group; false where it is not legal. */
static bool price_choice(const struct cost_input *in, struct ap_plan *plan, int group,
                         struct option *o)
{
    struct ap_choice_vec own = plan->choice[group];
    struct ap_arena scratch = {0};
    struct ap_conversions conv;
    struct ap_err err = {""};
    bool ok = false;

    plan->choice[group] = o->choice;
    if (ap_choice_ok(&plan->nests->nest[group], &plan->mesh, &o->choice) &&
        ap_plan_check_choices(plan, &in->cost, &err) == 0 &&
        ap_plan_conversions(&scratch, plan, &in->cost, &conv, &err) == 0) {
        o->price = in->price ? in->price(in->price_context, plan, &conv)
                             : ap_plan_price(plan, &in->cost, &conv);
        ok = true;
    }
    plan->choice[group] = own;
    ap_arena_free(&scratch);
    return ok;
}

/* The i-th combination of factors: all axes freely, or one axis beside the plan's. */
static struct ap_choice_vec nth_choice(const struct ap_plan *plan, int group, bool freely,
                                       int64_t i)
{
    const struct ap_nest *nest = &plan->nests->nest[group];
    int64_t n = nest->n_factors + nest->n_linear + 1;
    struct ap_choice_vec c = plan->choice[group];

    if (!freely) {
        c.axis[i / n] = (int16_t)(i % n - 1);
        return c;
    }
    for (int a = plan->mesh.n_axes - 1; a >= 0; a--, i /= n)
        c.axis[a] = (int16_t)(i % n - 1);
    return c;
}

static int find_options(const struct cost_input *in, struct ap_plan *plan, int group,
                        bool *freely, struct option *list)
{
    const struct ap_nest *nest = &plan->nests->nest[group];
    int64_t each = nest->n_factors + nest->n_linear + 1, all = 1;
    int n = 0;

    for (int a = 0; a < plan->mesh.n_axes; a++)
        all = ap_mul64(all, each);
    *freely = all <= MAX_TRIED;
    if (!*freely)
        all = each * plan->mesh.n_axes;
    for (int64_t i = 0; i < all && n < MAX_TRIED; i++) {
        struct option o = {.choice = nth_choice(plan, group, *freely, i), .order = n};
        size_t bytes = sizeof(o.choice.axis[0]) * (size_t)plan->mesh.n_axes;
        bool own = memcmp(o.choice.axis, plan->choice[group].axis, bytes) == 0;
        bool moved = plan->mesh.microbatch && /* between microbatches: not a choice */
                     o.choice.axis[0] != plan->choice[group].axis[0];
        if (!own && !moved && price_choice(in, plan, group, &o))
            list[n++] = o;
    }
    return n;
}

static void put_choice(const struct ap_plan *plan, int group,
                       const struct ap_choice_vec *choice, int node, struct ap_buf *out)
{
    const struct ap_nest *nest = &plan->nests->nest[group];
    struct ap_layout l = ap_nest_value_layout(nest, plan->graph, &plan->mesh, choice,
                                              ap_nest_member(nest, node));

    ap_layout_print(&plan->mesh, &l, out);
    ap_buf_puts(out, nest->n_ins ? " <-" : "");
    for (int i = 0; i < nest->n_ins; i++) {
        ap_buf_putc(out, ' ');
        l = ap_nest_in_layout(nest, plan->graph, &plan->mesh, choice, i);
        ap_layout_print(&plan->mesh, &l, out);
    }
    ap_buf_putc(out, '\n');
}

static int why_of_group(struct ap_arena *arena, const struct cost_input *in,
                        const struct priced *p, const char *name, struct ap_buf *out,
                        struct ap_err *err)
{
    const struct ap_graph *g = &in->of.graph;
    int node = price_find_node(g, name);
    if (node < 0)
        return ap_err_set(err, "the graph has no node %s", name);
    int group = g->nodes[node].group;
    struct ap_plan plan = p->plan;
    struct option *list = AP_NEW_N(arena, MAX_TRIED, struct option);
    bool freely;
    int n = find_options(in, &plan, group, &freely, list);

    qsort(list, (size_t)n, sizeof(*list), by_price);
    ap_buf_printf(out, "node %d %s (%s), %s, in group %d of %d operators\n", node,
                  g->nodes[node].name, ap_ops[g->nodes[node].op].name,
                  ap_phase_names[g->nodes[node].phase], group,
                  in->of.nests.nest[group].n_members);
    ap_buf_printf(out, "choices of its group, everything else as in the plan%s\n",
                  freely ? "" : ", one mesh axis at a time");
    ap_buf_printf(out, "  %14s%14s%14s  layouts: own <- operands\n", "step", "compute",
                  "communication");
    ap_buf_printf(out, "  %14s%14s%14s  ", "the plan", "", "");
    put_choice(&plan, group, &plan.choice[group], node, out);
    for (int i = 0; i < n && i < PRICE_ROWS; i++) {
        ap_buf_puts(out, "  ");
        price_put_change(out, in, list[i].price.step_sec - p->price.step_sec);
        price_put_change(out, in, list[i].price.compute_sec - p->price.compute_sec);
        price_put_change(out, in, list[i].price.comm_sec - p->price.comm_sec);
        ap_buf_puts(out, "  ");
        put_choice(&plan, group, &list[i].choice, node, out);
    }
    if (n > PRICE_ROWS)
        ap_buf_printf(out, "  and %d more, more expensive than these\n", n - PRICE_ROWS);
    if (n == 0)
        ap_buf_puts(out, "  no other choice is legal\n");
    return 0;
}

/* ---- alternatives in a stage of a schedule ---- */

struct retry {
    struct ap_arena *arena;
    const struct cost_input *in;
    const struct ap_pipeline_price *p;
    const struct ap_cost *cost;
    struct ap_stage_microbatch micro;
    int stage;
};

/* Stages are recomputed as in the plan; selected operators are those of the plan. */
static double sum_of(const struct retry *r, const struct ap_stage_point *point)
{
    bool again = r->in->of.stages.stage[r->stage].recompute == AP_RECOMPUTE_ALL;
    return (double)r->micro.n *
               (point->forward_sec * (again ? 2 : 1) + point->backward_sec) +
           point->sync_sec + point->update_sec;
}

static struct ap_price simulate_with(void *context, const struct ap_plan *plan,
                                     const struct ap_conversions *conv)
{
    struct retry *r = context;
    const struct ap_stage *st = &r->in->of.stages.stage[r->stage];
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
    s->weights_sec = with[0].weights_sec;
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

static int why_in_stage(struct ap_arena *arena, const struct cost_input *in,
                        const struct ap_pipeline_price *p, const char *name,
                        struct ap_buf *out, struct ap_err *err)
{
    int node = price_find_node(&in->of.graph, name), own = 0;
    if (node < 0)
        return ap_err_set(err, "the graph has no node %s", name);
    int stage =
        ap_stages_of_nodes(arena, &in->of.stages, &in->of.graph, &in->of.blocks)[node];
    const struct ap_stage *st = &in->of.stages.stage[stage];
    struct cost_input part = {
        .of = {.graph = st->sub.graph,
               .nests = st->nests,
               .cluster = p->breakdown[stage].cost.cluster,
               .stages = {.stage = in->of.stages.stage + stage, .n = 1}},
        .price = simulate_with};
    struct retry r = {
        .arena = arena, .in = in, .p = p, .cost = &part.cost, .stage = stage};
    struct priced priced = {.plan = st->sharding.plan};

    while (own < st->sub.graph.n_nodes && st->sub.source[own] != node)
        own++;
    if (own == st->sub.graph.n_nodes)
        return ap_err_set(err, "node %s is used by no stage", name);
    if (ap_stage_microbatch_axis(arena, &in->of.graph, &in->of.nests,
                                 in->of.stages.microbatches, &r.micro, err) ||
        ap_cost_init(arena, &part.cost, AP_COST_DEFAULT, &part.of.cluster,
                     &priced.plan.mesh, err))
        return -1;
    part.price_context = &r;
    priced.price = simulate_with(&r, &priced.plan, &p->breakdown[stage].conv);
    ap_buf_printf(
        out, "stage %d of %d, %lld devices, %lld microbatches; ids are the stage's\n",
        stage, in->of.stages.n, (long long)st->n_devices,
        (long long)in->of.stages.microbatches);
    int rc =
        why_of_group(arena, &part, &priced, ap_arena_printf(arena, "%d", own), out, err);
    ap_cost_free(&part.cost);
    return rc;
}

int price_why(struct ap_arena *arena, const struct cost_input *in, const struct priced *p,
              const char *node, struct ap_buf *out, struct ap_err *err)
{
    int rc = p->schedule ? why_in_stage(arena, in, p->schedule, node, out, err)
                         : why_of_group(arena, in, p, node, out, err);

    price_fit_columns(out);
    return rc;
}

/* ---- two plans of one stage, by groups ---- */

struct part {
    char kind[PRICE_KIND];
    double compute_sec, comm_sec; /* of the plan, less the other's */
};

static int by_kind(const void *a, const void *b)
{
    return strcmp(((const struct part *)a)->kind, ((const struct part *)b)->kind);
}

static int by_size(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    double dx = fabs(x->compute_sec + x->comm_sec);
    double dy = fabs(y->compute_sec + y->comm_sec);
    if (dx != dy)
        return dx > dy ? -1 : 1;
    return strcmp(x->kind, y->kind);
}

/* Adds a plan's groups and conversions to the list, times sign. */
static int add_parts(const struct cost_input *in, const struct priced *p, double sign,
                     struct part *list)
{
    int n = 0;
    for (int i = 0; i < in->of.nests.n; i++) {
        const struct ap_nest *nest = &in->of.nests.nest[i];
        int node = nest->n_outs ? nest->outs[0] : nest->members[0];
        price_kind(price_node_name(&in->of.graph.nodes[node]), list[n].kind);
        list[n++].compute_sec =
            sign * ap_plan_group_sec(nest, &in->of.graph, &in->cost, &p->plan.choice[i]);
    }
    for (int i = 0; i < p->conv.n; i++) {
        const struct ap_conversion *c = &p->conv.conv[i];
        price_kind(price_node_name(&in->of.graph.nodes[c->node]), list[n].kind);
        list[n++].comm_sec = sign * c->path.sec;
    }
    return n;
}

/* Sorts parts and joins those of one kind; returns how many are left. */
static int join_parts(struct part *list, int n)
{
    int to = 0;
    qsort(list, (size_t)n, sizeof(*list), by_kind);
    for (int i = 0; i < n; i++) {
        if (to > 0 && strcmp(list[to - 1].kind, list[i].kind) == 0) {
            list[to - 1].compute_sec += list[i].compute_sec;
            list[to - 1].comm_sec += list[i].comm_sec;
        } else {
            list[to++] = list[i];
        }
    }
    qsort(list, (size_t)to, sizeof(*list), by_size);
    return to;
}

static int check_alike(const struct cost_input *a, const struct cost_input *b,
                       struct ap_err *err)
{
    const struct ap_graph *g = &a->of.graph, *h = &b->of.graph;

    if (a->cost.variant != b->cost.variant)
        return ap_err_set(err, "cost models differ: %s and %s",
                          ap_cost_variant_names[a->cost.variant],
                          ap_cost_variant_names[b->cost.variant]);
    if (g->n_nodes != h->n_nodes)
        return ap_err_set(err, "the graphs differ: %d and %d nodes", g->n_nodes,
                          h->n_nodes);
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op != h->nodes[i].op ||
            !ap_shape_equal(&g->nodes[i].shape, &h->nodes[i].shape))
            return ap_err_set(err, "the graphs differ: node %d is %s and %s", i,
                              g->nodes[i].name, h->nodes[i].name);
    return 0;
}

static void put_total(struct ap_buf *out, const struct cost_input *in,
                      const struct priced *p)
{
    double sec[3] = {p->price.step_sec, p->price.compute_sec, p->price.comm_sec};

    ap_buf_puts(out, "  ");
    for (int i = 0; i < 3; i++) {
        price_put_sec(out, in, sec[i], 14);
    }
    ap_buf_printf(out, "  %s on mesh ", p->name);
    for (int first = in->cost.mesh.microbatch ? 1 : 0, a = first;
         a < in->cost.mesh.n_axes; a++)
        ap_buf_printf(out, a > first ? "x%lld" : "%lld",
                      (long long)in->cost.mesh.size[a]);
    if (in->cost.mesh.microbatch)
        ap_buf_printf(out, " in %lld microbatches", (long long)in->cost.mesh.size[0]);
    ap_buf_puts(out, ", ");
    price_put_bytes(out, (double)p->peak_bytes, 0);
    ap_buf_puts(out, p->peak_bytes > price_limit(in, 0) ? ", too large\n" : "\n");
}

static int diff_groups(struct ap_arena *arena, const struct cost_input *in,
                       const struct priced *p, const struct ap_doc *doc,
                       struct ap_buf *out, struct ap_err *err)
{
    const struct priced_on on = {.cluster = &in->of.cluster, .alone = true};
    struct cost_input other_in = {0};
    struct priced other = {0};
    struct ap_err why = {0};

    int rc = price_read(arena, doc, &on, &other_in, &other, err);
    if (rc)
        return rc;
    if (check_alike(in, &other_in, &why))
        return ap_err_set(err, "%s: %s", doc->file, why.msg);
    struct part *list =
        AP_NEW_N(arena, in->of.nests.n + p->conv.n + other_in.of.nests.n + other.conv.n,
                 struct part);
    int n = add_parts(in, p, 1, list);
    n += add_parts(&other_in, &other, -1, list + n);
    n = join_parts(list, n);
    const double whole = p->price.step_sec;
    int shown = 0;
    while (shown < n && shown < PRICE_ROWS &&
           fabs(list[shown].compute_sec + list[shown].comm_sec) > 1e-9 * whole)
        shown++;

    ap_buf_printf(out, "  %14s%14s%14s\n", "step", "compute", "communication");
    put_total(out, in, p);
    put_total(out, &other_in, &other);
    ap_buf_puts(out, shown ? "\nthe first costs more (+) or less (-) for\n"
                           : "\nthe two cost the same everywhere\n");
    for (int i = 0; i < shown; i++) {
        ap_buf_puts(out, "  ");
        price_put_change(out, in, list[i].compute_sec + list[i].comm_sec);
        price_put_change(out, in, list[i].compute_sec);
        price_put_change(out, in, list[i].comm_sec);
        ap_buf_printf(out, "  %s\n", list[i].kind);
    }
    return 0;
}

/* ---- two plans with schedules, by blocks ---- */

enum { SUMS, SENDS, WAITING, HOST, N_OTHERS }; /* after the blocks */

/* A part of the step, on average over the plan's devices. */
struct spent {
    double compute_sec, comm_sec;
};

static int add_stage(struct ap_arena *arena, const struct cost_input *in,
                     const struct ap_pipeline_price *p, int i,
                     const struct ap_blocks *blocks, struct spent *parts,
                     struct ap_err *err)
{
    const struct ap_stage *st = &in->of.stages.stage[i];
    const struct ap_conversions *conv = &p->breakdown[i].conv;
    const bool *again = ap_stage_recomputed_groups(arena, st, in->of.graph.n_nodes);
    double *group = AP_NEW_N(arena, st->nests.n, double);
    double *moved = AP_NEW_N(arena, conv->n + 1, double);
    double share = (double)st->n_devices / (double)p->n_devices;
    struct ap_stage_microbatch micro;
    struct ap_cost cost;

    if (ap_stage_microbatch_axis(arena, &in->of.graph, &in->of.nests,
                                 in->of.stages.microbatches, &micro, err) ||
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
static int find_parts(struct ap_arena *arena, const struct cost_input *in,
                      const struct ap_pipeline_price *p, const struct ap_blocks *blocks,
                      struct spent *parts, struct ap_err *err)
{
    double known = 0;

    for (int i = 0; i < in->of.stages.n; i++)
        if (add_stage(arena, in, p, i, blocks, parts, err))
            return -1;
    for (int b = 0; b < blocks->n; b++)
        known += parts[b].compute_sec + parts[b].comm_sec;
    struct price_spent s = price_spent_by_all(in, p);
    parts[blocks->n + SENDS].comm_sec = s.send_sec;
    parts[blocks->n + WAITING].comm_sec = s.wait_sec;
    parts[blocks->n + HOST].comm_sec = s.host_wait_sec;
    parts[blocks->n + SUMS].comm_sec =
        p->result.step_sec - known - s.send_sec - s.wait_sec - s.host_wait_sec;
    return 0;
}

/* The other document's plan of one stage, cut into the same blocks and put on a schedule,
 * that of one stage. */
static int read_spmd(struct ap_arena *arena, const struct ap_doc *doc,
                     const struct cost_input *like, struct cost_input *in,
                     struct priced *p, struct ap_err *err)
{
    struct ap_stage *st = AP_NEW(arena, struct ap_stage);
    int *blocks = AP_NEW_N(arena, like->of.blocks.n, int);

    if (!ap_doc_find(doc, "sharding"))
        return ap_err_set(err, "%s: no plan: neither /stages nor /sharding", doc->file);
    *in = *like;
    for (int b = 0; b < like->of.blocks.n; b++)
        blocks[b] = b;
    st->blocks = blocks;
    st->n_blocks = like->of.blocks.n;
    int *all = AP_NEW_N(arena, in->of.graph.n_nodes, int);
    if (ap_subgraph_blocks(arena, &in->of.graph, all, 0, 0, &st->sub, err) ||
        ap_nests_build(arena, &st->sub.graph, &st->nests, err) ||
        ap_doc_sharding(arena, doc, st, err))
        return -1;
    in->of.stages = (struct ap_stages){.algorithm = st->sharding.algorithm,
                                       .schedule = AP_SCHEDULE_1F1B,
                                       .stage = st,
                                       .n = 1,
                                       .chunks = 1,
                                       .microbatches = 1};
    st->n_devices = ap_mesh_devices(&st->sharding.plan.mesh);
    int64_t *devices = AP_NEW_N(arena, st->n_devices, int64_t);
    for (int64_t d = 0; d < st->n_devices; d++)
        devices[d] = d;
    st->devices = devices;
    if (st->n_devices > ap_cluster_devices(&in->of.cluster))
        return ap_err_set(err, "%s: the mesh has %lld devices, cluster %s %lld",
                          doc->file, (long long)st->n_devices, in->of.cluster.name,
                          (long long)ap_cluster_devices(&in->of.cluster));
    return price_stages(arena, in, AP_NEW(arena, struct ap_pipeline_price), p, err)
               ? ap_doc_err(doc, err)
               : 0;
}

static void put_schedule_total(struct ap_buf *out, const struct cost_input *in,
                               const struct ap_pipeline_price *p)
{
    int64_t limit;
    const int full = price_fullest(in, p, &limit);

    price_put_sec(out, NULL, p->result.step_sec, 16);
    ap_buf_printf(
        out, "  %s: %d stage%s on %lld devices, %lld microbatch%s, %.1f %% of peak, ",
        in->of.stages.algorithm, in->of.stages.n, in->of.stages.n == 1 ? "" : "s",
        (long long)p->n_devices, (long long)in->of.stages.microbatches,
        in->of.stages.microbatches == 1 ? "" : "es", 100 * p->mfu);
    price_put_bytes(out, (double)p->peak_bytes, 0);
    ap_buf_puts(out, p->result.devices[full].peak_bytes > limit ? ", too large\n" : "\n");
}

static void put_spent(struct ap_buf *out, int n_blocks, const struct spent *d,
                      double whole)
{
    static const char *const others[] = {
        "reductions of gradients and norms across stages",
        "sends that no computation hides", "waiting for other stages",
        "waiting for the host"};
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

static int diff_blocks(struct ap_arena *arena, const struct cost_input *in,
                       const struct priced *p, const struct ap_doc *doc,
                       struct ap_buf *out, struct ap_err *err)
{
    int n = in->of.blocks.n + N_OTHERS;
    struct spent *a = AP_NEW_N(arena, n, struct spent),
                 *b = AP_NEW_N(arena, n, struct spent);
    struct cost_input other = {0};
    struct priced q = {0};
    struct ap_graph g;

    if (ap_doc_graph(arena, doc, &g, err))
        return -1;
    ap_group(arena, &g);
    if (strcmp(ap_graph_fingerprint(arena, &g),
               ap_graph_fingerprint(arena, &in->of.graph)) != 0)
        return ap_err_set(err, "%s: plans of two graphs", doc->file);
    int rc = ap_doc_find(doc, "stages")
                 ? price_read(arena, doc, &(struct priced_on){.cluster = &in->of.cluster},
                              &other, &q, err)
                 : read_spmd(arena, doc, in, &other, &q, err);
    if (rc || find_parts(arena, in, p->schedule, &in->of.blocks, a, err) ||
        find_parts(arena, &other, q.schedule, &in->of.blocks, b, err))
        return -1;
    for (int i = 0; i < n; i++) {
        a[i].compute_sec -= b[i].compute_sec;
        a[i].comm_sec -= b[i].comm_sec;
    }
    put_schedule_total(out, in, p->schedule);
    put_schedule_total(out, &other, q.schedule);
    put_spent(out, in->of.blocks.n, a, p->price.step_sec);
    return 0;
}

int price_diff(struct ap_arena *arena, const struct cost_input *in,
               const struct priced *p, const struct ap_doc *other, struct ap_buf *out,
               struct ap_err *err)
{
    int rc = p->schedule ? diff_blocks(arena, in, p, other, out, err)
                         : diff_groups(arena, in, p, other, out, err);

    price_fit_columns(out);
    return rc;
}
