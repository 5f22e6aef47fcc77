/* A step on two streams: random plans keep the order of data and the bounds of both
 * streams, whatever memory gathers may hold ahead. */
#include "sample_plan.h"
#include "tap.h"

#include <math.h>

#include "plan/overlap.h"

static const struct ap_stretch *find(const struct ap_overlap *o, bool comm, int id)
{
    for (int i = 0; i < o->n; i++)
        if (o->stretch[i].comm == comm && o->stretch[i].id == id)
            return &o->stretch[i];
    return NULL;
}

static double end_of(const struct ap_stretch *s)
{
    return s ? s->start_sec + s->sec : 0;
}

/* Each stream does one thing at a time, all of its work, and is done by the end. */
static const char *check_streams(const struct ap_overlap *o, const struct ap_price *price)
{
    double free_at[2] = {0, 0}, sum[2] = {0, 0};
    const double eps = 1e-9 * price->serial_sec;

    for (int i = 0; i < o->n; i++) {
        const struct ap_stretch *s = &o->stretch[i];
        if (s->start_sec < free_at[s->comm] - eps)
            return "a stream does two things at once";
        free_at[s->comm] = end_of(s);
        sum[s->comm] += s->sec;
        if (end_of(s) > o->step_sec + eps)
            return "something goes on behind the step";
    }
    if (fabs(sum[0] - price->compute_sec) > eps || fabs(sum[1] - price->comm_sec) > eps)
        return "the streams do not do all of the work";
    if (o->step_sec > price->serial_sec + eps ||
        o->step_sec < fmax(price->compute_sec, price->comm_sec) - eps)
        return "the step is not between its streams and their sum";
    if (fabs(o->exposed_sec - (o->step_sec - price->compute_sec)) > eps)
        return "exposed is not what is left of the step";
    return NULL;
}

/* What is read has been made, and has arrived. */
static const char *check_data(const struct sample_plan *p, const struct ap_overlap *o,
                              double eps)
{
    const struct ap_graph *g = p->plan.graph;

    for (int i = 0; i < p->conv.n; i++) {
        const struct ap_stretch *c = find(o, true, i);
        const struct ap_stretch *made =
            find(o, false, g->nodes[p->conv.conv[i].node].group);
        if (c && made && c->start_sec < end_of(made) - eps)
            return "a tensor is sent before it is made";
    }
    for (int i = 0; i < p->plan.nests->n; i++) {
        const struct ap_stretch *s = find(o, false, i);
        for (int k = 0; s && k < p->plan.nests->nest[i].n_ins; k++) {
            int c = p->conv.in_conv[p->conv.in_start[i] + k];
            const struct ap_stretch *from =
                c >= 0
                    ? find(o, true, c)
                    : find(o, false, g->nodes[p->plan.nests->nest[i].ins[k].node].group);
            if (s->start_sec < end_of(from) - eps)
                return "a group runs before its operands are there";
        }
    }
    return NULL;
}

static const char *check(const char *json, uint64_t seed, double *hidden)
{
    static const int64_t memory[] = {0, 64 * AP_AHEAD_SHARE, 4096 * AP_AHEAD_SHARE,
                                     INT64_C(80000000000)};
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct sample_plan p;
    const char *what = sample_plan(&arena, json, seed, &p, &err) ? "no plan" : NULL;

    for (size_t m = 0; m < sizeof memory / sizeof *memory && !what; m++) {
        struct ap_overlap o, again;
        p.cost.cluster.memory_bytes = memory[m];
        struct ap_price price = ap_plan_price(&p.plan, &p.cost, &p.conv);
        ap_plan_overlap(&arena, &p.plan, &p.cost, &p.conv, NULL, true, &o);
        ap_plan_overlap(&arena, &p.plan, &p.cost, &p.conv, NULL, false, &again);
        what = check_streams(&o, &price);
        if (!what)
            what = check_data(&p, &o, 1e-9 * price.serial_sec);
        if (!what && again.step_sec != o.step_sec)
            what = "the step depends on who asks";
        if (!what && price.step_sec != price.serial_sec)
            what = "a cluster that does not overlap has another step";
        p.cost.cluster.overlap = true;
        price = ap_plan_price(&p.plan, &p.cost, &p.conv);
        double sec;
        if (!what && (fabs(price.step_sec - o.step_sec) > 1e-9 * o.step_sec ||
                      ap_plan_sec(&p.plan, &p.cost, &sec, &err) || sec != price.step_sec))
            what = "the price is not the simulated step";
        p.cost.cluster.overlap = false;
        *hidden += price.serial_sec - o.step_sec;
    }
    ap_cost_free(&p.cost);
    ap_arena_free(&arena);
    return what;
}

int main(void)
{
    double hidden = 0;

    for (int i = 0; i < N_SAMPLE_GRAPHS; i++) {
        const char *what = NULL;
        uint64_t seed = 0;
        while (seed < 100 && !what)
            what = check(sample_graphs[i].json, ++seed, &hidden);
        CHECK(!what, "%s, %d plans on two streams: %s", sample_graphs[i].name, (int)seed,
              what ? what : "in order, within bounds");
    }
    CHECK(hidden > 0, "something overlaps");
    return tap_done();
}
