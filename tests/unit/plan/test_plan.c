/* Plans: conversions once per tensor and target, prices, legality, the document's
 * section. */
#include "sample_plan.h"
#include "tap.h"

#include <stdlib.h>

/* Order, uniqueness, and that every slot finds its layout. NULL when all is well. */
static const char *check_conversions(const struct ap_plan *plan,
                                     const struct ap_conversions *conv)
{
    const struct ap_graph *g = plan->graph;
    for (int i = 0; i < conv->n; i++) {
        const struct ap_conversion *c = &conv->conv[i];
        if (ap_layout_equal(&c->from, &c->to))
            return "a conversion that converts nothing";
        struct ap_layout own = ap_plan_node_layout(plan, c->node);
        if (!ap_layout_equal(&own, &c->from))
            return "a conversion that starts elsewhere";
        if (i && (c[-1].first_group > c->first_group ||
                  (c[-1].first_group == c->first_group && c[-1].node > c->node)))
            return "conversions out of order";
        for (int j = 0; j < i; j++) {
            const struct ap_conversion *d = &conv->conv[j];
            bool again = plan->regather[c->node] &&
                         (c->phase == AP_FORWARD) != (d->phase == AP_FORWARD);
            if (c->node == d->node && ap_layout_equal(&c->to, &d->to) && !again)
                return "a conversion made twice";
        }
    }
    for (int i = 0; i < plan->nests->n; i++)
        for (int k = 0; k < plan->nests->nest[i].n_ins; k++) {
            const struct ap_nest *nest = &plan->nests->nest[i];
            struct ap_layout need =
                ap_nest_in_layout(nest, g, &plan->mesh, &plan->choice[i], k);
            int c = conv->in_conv[conv->in_start[i] + k];
            struct ap_layout has =
                c < 0 ? ap_plan_node_layout(plan, nest->ins[k].node) : conv->conv[c].to;
            if (!ap_layout_equal(&need, &has))
                return "an operand in the wrong layout";
            if (c >= 0 && conv->conv[c].first_group > i)
                return "a conversion made too late";
            if (c >= 0 && conv->conv[c].node != nest->ins[k].node)
                return "a conversion of another tensor";
        }
    for (int r = 0; r < g->n_results; r++) {
        int c = conv->result_conv[r];
        struct ap_layout need = ap_plan_result_layout(plan, r);
        struct ap_layout has =
            c < 0 ? ap_plan_node_layout(plan, g->results[r].node) : conv->conv[c].to;
        if (!ap_layout_equal(&need, &has))
            return "a result in the wrong layout";
    }
    return NULL;
}

/* Written, read and written again: the same text, and the same choices. */
static const char *check_json(struct ap_arena *arena, const struct ap_plan *plan,
                              const struct ap_conversions *conv, struct ap_err *err)
{
    struct ap_sharding s = {.plan = *plan,
                            .algorithm = "random",
                            .cost_model = "default",
                            .stopped = "seed",
                            .objective_sec = 2,
                            .lower_bound_sec = 1,
                            .peak_bytes = 7};
    struct ap_sharding back;
    struct ap_buf text = {0}, again = {0};
    const char *what = NULL;
    ap_sharding_to_json(&s, conv, &text);
    json_error_t where;
    json_t *o = json_loads(text.data, JSON_REJECT_DUPLICATES, &where);
    struct ap_at at = {.key = "sharding"};
    if (!o)
        what = "no JSON";
    else if (ap_sharding_from_json(arena, o, &at, plan->graph, plan->nests, &back, err))
        what = err->msg;
    if (!what) {
        ap_sharding_to_json(&back, conv, &again);
        if (strcmp(text.data, again.data) != 0)
            what = "reads back differently";
    }
    /* a layout that does not follow from the choices is refused */
    json_t *layouts = json_object_get(o, "layouts");
    json_array_set_new(layouts, 0, json_string("S9,S9"));
    struct ap_err refused = {{0}};
    if (!what &&
        (!ap_sharding_from_json(arena, o, &at, plan->graph, plan->nests, &back,
                                &refused) ||
         !strstr(refused.msg, "/layouts/0") || !strstr(refused.msg, "another graph")))
        what = "a wrong layout was not refused";
    json_decref(o);
    ap_buf_free(&text);
    ap_buf_free(&again);
    return what;
}

static void test_random(const struct sample_graph *sg)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct ap_arena arena = {0};
        struct ap_err err = {{0}};
        struct sample_plan p;
        const char *what = sample_plan(&arena, sg->json, seed, &p, &err) ? err.msg : NULL;
        if (!what)
            what = check_conversions(&p.plan, &p.conv);
        if (!what && ap_plan_check(&p.plan, &p.cost, &err))
            what = err.msg;
        if (!what)
            what = check_json(&arena, &p.plan, &p.conv, &err);
        if (what || seed == 60)
            CHECK(!what, "%s, %d plans: %s", sg->name, (int)seed, what ? what : "legal");
        ap_cost_free(&p.cost);
        ap_arena_free(&arena);
        if (what)
            return;
    }
}

static void test_single(void)
{
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct sample s;
    struct ap_plan plan;
    struct ap_cost cost;
    struct ap_conversions conv;
    int rc = load_sample(&arena, sample_graphs[0].json, &s, &err);
    CHECK(!rc, "sample graph is read: %s", err.msg);
    if (rc)
        exit(tap_done());
    ap_plan_single(&arena, &s.g, &s.nests, &plan);
    rc = make_cost(&arena, AP_COST_DEFAULT, &plan.mesh, &cost, &err) ||
         ap_plan_conversions(&arena, &plan, &cost, &conv, &err);
    CHECK(!rc && conv.n == 0, "one device converts nothing");
    struct ap_price price = ap_plan_price(&plan, &cost, &conv);
    CHECK(price.compute_sec > 0 && price.comm_sec == 0 &&
              price.serial_sec == price.compute_sec,
          "one device only computes");
    double params = 0;
    for (int i = 0; i < s.nests.n; i++)
        if (s.g.nodes[s.nests.nest[i].members[0]].op == AP_OP_PARAMETER)
            params += ap_plan_group_sec(&s.nests.nest[i], &s.g, &cost, &plan.choice[i]);
    CHECK(params == 0, "parameters cost nothing");
    ap_cost_free(&cost);
    ap_arena_free(&arena);
}

/* Where compute is free, a dot on every device is no plan. */
static void test_heavy(void)
{
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct sample s;
    struct ap_cost free_compute, cost;
    struct ap_plan plan;
    int rc = load_sample(&arena, sample_graphs[0].json, &s, &err);
    ap_plan_single(&arena, &s.g, &s.nests, &plan);
    rc = rc || ap_mesh_parse(&arena, "2", &plan.mesh, &err) ||
         make_cost(&arena, AP_COST_BYTES, &plan.mesh, &free_compute, &err) ||
         make_cost(&arena, AP_COST_DEFAULT, &plan.mesh, &cost, &err);
    CHECK(!rc && !ap_plan_check(&plan, &cost, &err), "all replicated is legal: %s",
          err.msg);
    CHECK(ap_plan_check(&plan, &free_compute, &err) && strstr(err.msg, "compute is free"),
          "but not where compute is free");
    plan.choice[0].axis[0] = 99;
    struct ap_err other = {{0}};
    CHECK(ap_plan_check(&plan, &cost, &other), "a factor that is none is refused");
    ap_cost_free(&cost);
    ap_cost_free(&free_compute);
    ap_arena_free(&arena);
}

int main(void)
{
    test_single();
    test_heavy();
    for (int i = 0; i < N_SAMPLE_GRAPHS; i++)
        test_random(&sample_graphs[i]);
    return tap_done();
}
