/* Prices for many numbers of microbatches at once: those of each alone. */
#include "plan/named_plan.h"
#include "pipeline/stage_cost.h"

#include <string.h>

#include "sample_graphs.h"
#include "tap.h"

enum { MOST = 12 };

struct part {
    struct ap_subgraph sub;
    struct ap_nests nests;
    struct ap_stage_facts facts;
    int n;
    struct ap_stage_microbatch micro[MOST];
};

/* All of the graph but its last quarter, in two blocks. */
static int cut(struct ap_arena *arena, const struct sample *s, struct part *p,
               struct ap_err *err)
{
    int n = s->g.n_nodes, *block = AP_NEW_N(arena, n, int);
    bool *inside = AP_NEW_N(arena, n, bool);

    for (int v = 0; v < n; v++) {
        inside[v] = v < n - n / 4;
        block[v] = v >= n / 2;
    }
    *p = (struct part){.facts.arena = arena};
    for (int64_t k = 1; k <= MOST; k++)
        if (ap_stage_microbatch_axis(arena, &s->g, &s->nests, k, &p->micro[p->n], err) ==
            0)
            p->micro[p->n++].block_of = block;
    return ap_subgraph(arena, &s->g, inside, &p->sub, err) ||
           ap_nests_build(arena, &p->sub.graph, &p->nests, err);
}

/* Points that differ. */
static int compare(struct ap_arena *arena, struct part *p, const struct ap_plan *plan,
                   const struct ap_cost *cost, struct ap_err *err)
{
    const struct ap_stage_microbatch *micro[MOST];
    struct ap_stage_measure m[MOST];
    struct ap_stage_known known = {.n = 0};
    struct ap_conversions conv;
    int differ = 0;

    if (ap_plan_conversions(arena, plan, cost, &conv, err))
        return 1;
    const struct ap_stage_plan stage = {&p->sub, NULL, plan, &conv, cost};
    for (int k = 0; k < p->n; k++)
        micro[k] = &p->micro[k];
    ap_stage_measure_all(arena, &stage, &p->facts, p->n, micro,
                         ap_stage_know(arena, &known, NULL, plan, cost), m);
    enum ap_phase *phase = AP_NEW_N(arena, p->nests.n + 1, enum ap_phase);
    for (int i = 0; i < p->nests.n; i++)
        phase[i] = ap_plan_group_phase(&p->sub.graph, &p->nests.nest[i]);
    ap_stage_measure_conversions(arena, &stage, phase, p->n, micro, m);
    for (int k = 0; k < p->n; k++) {
        struct ap_stage_point many[2] = {0}, one[2] = {0};
        ap_stage_points(&m[k], many);
        ap_stage_price(
            arena, &(struct ap_stage_plan){&p->sub, micro[k], plan, &conv, cost}, one);
        for (int i = 0; i < 2; i++)
            differ += many[i].forward_sec != one[i].forward_sec ||
                      many[i].backward_sec != one[i].backward_sec ||
                      many[i].sync_sec != one[i].sync_sec ||
                      many[i].update_sec != one[i].update_sec ||
                      many[i].stage_bytes != one[i].stage_bytes ||
                      many[i].microbatch_bytes != one[i].microbatch_bytes;
    }
    ap_arena_free(&known.arena);
    return differ;
}

int main(void)
{
    struct ap_arena arena = {0};
    int n_plans = 0;

    for (int i = 0; i < N_SAMPLE_GRAPHS; i++) {
        struct ap_err err = {0};
        struct ap_cluster cluster;
        struct ap_cost cost;
        struct ap_mesh mesh;
        struct sample s;
        struct part p;
        int differ = 0;
        if (load_sample(&arena, sample_graphs[i].json, &s, &err) ||
            cut(&arena, &s, &p, &err) || ap_mesh_parse(&arena, "2x2", &mesh, &err) ||
            ap_cluster_get(&arena, NULL, NULL, 4, &cluster, &err) ||
            ap_cost_init(&arena, &cost, AP_COST_DEFAULT, &cluster, &mesh, &err)) {
            CHECK(false, "%s: %s", sample_graphs[i].name, err.msg);
            continue;
        }
        /* every second time the host is slower than devices, and vocabularies are uneven
         */
        cost.cluster.host_sec = i % 2 ? 1e-4 : 0;
        cost.cluster.uneven_of_peak = i % 2 ? 0.3 : cost.cluster.uneven_of_peak;
        for (int row = 0; row < AP_N_NAMED_PLANS; row++) {
            struct ap_plan plan = {
                .graph = &p.sub.graph, .nests = &p.nests, .mesh = mesh};
            if (ap_named_plan_make(&arena, row, &plan, NULL, &err))
                continue;
            n_plans++;
            differ += compare(&arena, &p, &plan, &cost, &err);
        }
        ap_cost_free(&cost);
        CHECK(differ == 0, "%s: at once as each alone (%d points differ)",
              sample_graphs[i].name, differ);
    }
    CHECK(n_plans > 0, "some plans were priced (%d)", n_plans);
    ap_arena_free(&arena);
    return tap_done();
}
