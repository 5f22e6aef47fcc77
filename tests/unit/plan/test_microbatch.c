/*
 * Microbatches: which groups run with each and which once, what forbids them, conversions
 * over the axis in time, and that a plan's price is that of its parts.
 */
#include "plan/microbatch.h"

#include <math.h>
#include <string.h>

#include "program/partition.h"
#include "sample_graphs.h"
#include "pipeline/stage_cost.h"
#include "tap.h"
#include "cost/convert.h"

/* A mean over the batch of `of`, subtracted from y = dot(x, w), and a gradient. */
#define CENTRED(of)                                                                    \
    DOC(PARAM(0, "weight", "f32[4,4]") "," PARAM(1, "input", "f32[12,4]") NODE(        \
            "dot", "y", "1,0", "f32[12,4]",                                            \
            ",\"lhs_contracting_dims\":[1],\"rhs_contracting_dims\":[0]")              \
            NODE("constant", "zero", "", "f32[]", ",\"value\":0") NODE(                \
                "reduce", "mean", of ",3", "f32[4]",                                   \
                ",\"dimensions\":[0],\"to_apply\":0") NODE("broadcast", "rows", "4",   \
                                                           "f32[12,4]",                \
                                                           ",\"dimensions\":[1]")      \
                NODE("subtract", "centred", "2,5", "f32[12,4]", "") NODE(              \
                    "dot", "dw", "1,6", "f32[4,4]",                                    \
                    ",\"lhs_contracting_dims\":[0],\"rhs_contracting_dims\":[0]" BACK) \
                    NODE("subtract", "new", "0,7", "f32[4,4]", UPD),                   \
        "{\"node\":8,\"role\":\"weight\",\"alias\":0},{\"node\":2,\"role\":\"aux\"}")

static int node_of(const struct ap_graph *g, const char *name)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].name, name) == 0)
            return i;
    return -1;
}

/* The plan of the choices on n microbatches alone, on a mesh of one device beside. */
static int timed_plan(struct ap_arena *arena, const struct sample *s, int64_t n,
                      struct ap_plan *plan, struct ap_err *err)
{
    *plan = (struct ap_plan){.graph = &s->g, .nests = &s->nests};
    if (ap_mesh_parse(arena, "1", &plan->mesh, err) ||
        ap_mesh_add_microbatches(&plan->mesh, n, err) ||
        ap_microbatch_choices(arena, &s->g, &s->nests, n, &plan->microbatch_choice, err))
        return -1;
    plan->choice = AP_NEW_N(arena, s->nests.n, struct ap_choice_vec);
    for (int i = 0; i < s->nests.n; i++) {
        plan->choice[i] = AP_CHOICE_NONE;
        plan->choice[i].axis[0] = plan->microbatch_choice[i];
    }
    return 0;
}

static bool runs(const struct ap_plan *plan, const uint8_t *when, const char *name,
                 enum ap_when wanted)
{
    return when[plan->graph->nodes[node_of(plan->graph, name)].group] == wanted;
}

static void test_choices(void)
{
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    struct sample s;
    struct ap_plan plan;

    CHECK(load_sample(&arena, sample_graphs[0].json, &s, &err) == 0 &&
              timed_plan(&arena, &s, 3, &plan, &err) == 0,
          "a batch of 12 in 3 microbatches");
    uint8_t *when = ap_plan_when(&arena, &plan);
    CHECK(runs(&plan, when, "h", AP_EACH) && runs(&plan, when, "y", AP_EACH) &&
              runs(&plan, when, "gr", AP_EACH) && runs(&plan, when, "g0", AP_EACH),
          "products run with each");
    CHECK(runs(&plan, when, "w0", AP_AFTER) && runs(&plan, when, "w1", AP_AFTER),
          "the update runs behind");
    CHECK(runs(&plan, when, "zeros", AP_EACH), "zeros are made share by share");
    CHECK(timed_plan(&arena, &s, 5, &plan, &err) &&
              strstr(err.msg, "a batch of 12 does not divide into 5 microbatches; 4"),
          "the nearest number that divides: %s", err.msg);
    ap_arena_free(&arena);
}

static void test_statistics(void)
{
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    struct sample s;
    struct ap_plan plan;

    CHECK(load_sample(&arena, CENTRED("2"), &s, &err) == 0 &&
              timed_plan(&arena, &s, 2, &plan, &err) && strstr(err.msg, "(mean)"),
          "a mean of activations that is subtracted again: %s", err.msg);
    err = (struct ap_err){0};
    CHECK(load_sample(&arena, CENTRED("1"), &s, &err) == 0 &&
              timed_plan(&arena, &s, 2, &plan, &err) == 0,
          "a mean of inputs%s", err.msg);
    uint8_t *when = ap_plan_when(&arena, &plan);
    CHECK(runs(&plan, when, "mean", AP_BEFORE) && runs(&plan, when, "y", AP_EACH),
          "is taken of all of them, before");
    struct ap_layout l = ap_plan_node_layout(&plan, node_of(&s.g, "dw"));
    CHECK(l.axis[0].kind == AP_PARTIAL, "the gradient is to be accumulated");
    ap_arena_free(&arena);
}

/* A plan that reads a sum before it is complete is refused. */
static void test_check(void)
{
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    struct sample s;
    struct ap_plan plan;
    struct ap_cost cost;

    CHECK(load_sample(&arena, CENTRED("1"), &s, &err) == 0 &&
              timed_plan(&arena, &s, 2, &plan, &err) == 0 &&
              make_cost(&arena, AP_COST_DEFAULT, &plan.mesh, &cost, &err) == 0 &&
              ap_plan_check(&plan, &cost, &err) == 0,
          "a legal plan");
    const struct ap_nest *mean = &s.nests.nest[s.g.nodes[node_of(&s.g, "mean")].group];
    for (int f = 0; f < mean->n_factors; f++)
        if (mean->factors[f].kind == AP_FACTOR_REDUCED)
            plan.choice[mean->group].axis[0] = (int16_t)f;
    CHECK(ap_plan_check(&plan, &cost, &err) && strstr(err.msg, "of all microbatches"),
          "the mean taken with each: %s", err.msg);
    ap_cost_free(&cost);
    ap_arena_free(&arena);
}

/* ---- conversions ---- */

static struct ap_path convert(const struct ap_cost *cost, const struct ap_shape *shape,
                              const char *from, const char *to, bool *ok)
{
    struct ap_layout a, b;
    static struct ap_step room[AP_MAX_STEPS];
    struct ap_path path = {0};
    struct ap_err err = {0};
    *ok = ap_layout_parse(&cost->mesh, shape, from, &a, &err) == 0 &&
          ap_layout_parse(&cost->mesh, shape, to, &b, &err) == 0 &&
          ap_convert(cost, shape, &a, &b, room, &path) == 0;
    return path;
}

static bool is_step(const struct ap_path *p, int i, enum ap_op op, unsigned axes,
                    int64_t times, const struct ap_cost *cost)
{
    const struct ap_step *s = &p->steps[i];
    double sec = axes & 1 ? 0 : ap_cost_collective(cost, op, axes, s->bytes);
    return i < p->n_steps && s->op == op && s->coll.axes == axes && s->times == times &&
           fabs(s->sec - (double)times * sec) <= 1e-15;
}

static void test_conversions(void)
{
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    struct ap_mesh mesh;
    struct ap_cost cost;
    int64_t dims[2] = {24, 16};
    struct ap_shape shape = {.dtype = AP_F32, .rank = 2, .dims = dims};
    bool ok;

    CHECK(ap_mesh_parse(&arena, "2x2", &mesh, &err) == 0 &&
              ap_mesh_add_microbatches(&mesh, 4, &err) == 0 &&
              ap_mesh_devices(&mesh) == 4 &&
              make_cost(&arena, AP_COST_DEFAULT, &mesh, &cost, &err) == 0,
          "4 microbatches on 2x2 devices");
    struct ap_path p = convert(&cost, &shape, "P,P,R", "R,R,R", &ok);
    CHECK(ok && p.n_steps == 2 && is_step(&p, 0, AP_OP_ALL_REDUCE, 1, 4, &cost) &&
              is_step(&p, 1, AP_OP_ALL_REDUCE, 2, 1, &cost),
          "sums: accumulated first, over devices once");
    p = convert(&cost, &shape, "P,P,R", "R,S0,R", &ok);
    CHECK(ok && p.n_steps == 2 && is_step(&p, 0, AP_OP_ALL_REDUCE, 1, 4, &cost) &&
              is_step(&p, 1, AP_OP_REDUCE_SCATTER, 2, 1, &cost),
          "the same reduce-scattered");
    p = convert(&cost, &shape, "S0,S1,R", "S0,R,R", &ok);
    CHECK(ok && p.n_steps == 1 && is_step(&p, 0, AP_OP_ALL_GATHER, 2, 4, &cost),
          "a share is gathered with each, never all of them before");
    p = convert(&cost, &shape, "P,P,R", "P,R,R", &ok);
    CHECK(ok && p.n_steps == 1 && is_step(&p, 0, AP_OP_ALL_REDUCE, 2, 4, &cost),
          "what stays partial over time is summed over devices with each");
    p = convert(&cost, &shape, "R,S0/6,R", "S0,S0,R", &ok);
    CHECK(ok && p.n_steps == 1 && is_step(&p, 0, AP_OP_AP_SLICE, 1, 4, &cost),
          "a parameter in the rows of each is read in place");
    p = convert(&cost, &shape, "S0,S0,R", "R,R,R", &ok);
    CHECK(ok && p.n_steps == 2 && is_step(&p, 0, AP_OP_ALL_GATHER, 1, 4, &cost) &&
              is_step(&p, 1, AP_OP_ALL_GATHER, 2, 1, &cost),
          "a result's shares are put together, then gathered once");
    convert(&cost, &shape, "S0,R,R", "S1,R,R", &ok);
    CHECK(!ok, "no way from rows to columns of a microbatch");
    convert(&cost, &shape, "P,R,R", "S0,R,R", &ok);
    CHECK(!ok, "none from sums to shares");
    ap_cost_free(&cost);
    ap_arena_free(&arena);
}

/* ---- prices ---- */

static void test_price(void)
{
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    struct sample s;
    struct ap_plan plan;
    struct ap_cost cost;
    struct ap_conversions conv;

    CHECK(load_sample(&arena, sample_graphs[0].json, &s, &err) == 0 &&
              timed_plan(&arena, &s, 3, &plan, &err) == 0 &&
              make_cost(&arena, AP_COST_DEFAULT, &plan.mesh, &cost, &err) == 0 &&
              ap_plan_conversions(&arena, &plan, &cost, &conv, &err) == 0,
          "a plan to price");
    const struct ap_nest *h = &s.nests.nest[s.g.nodes[node_of(&s.g, "h")].group];
    double flops, bytes;
    enum ap_dtype dtype;
    ap_nest_work(h, &s.g, &plan.mesh, &plan.choice[h->group], &flops, &bytes, &dtype);
    CHECK(flops == 2. * 4 * 10 * 16, "a third of the rows at a time");
    CHECK(ap_plan_group_sec(h, &s.g, &cost, &plan.choice[h->group]) ==
              3 * ap_cost_compute(&cost, flops, dtype, bytes),
          "three times, each with its launch");
    struct ap_price price = ap_plan_price(&plan, &cost, &conv);
    CHECK(price.comm_sec == 0 && price.each_compute_sec < price.compute_sec,
          "nothing is sent, the update runs once");
    struct ap_program prog;
    CHECK(ap_partition(&arena, &plan, &conv, &prog, &err) == 0 &&
              prog.each_lo < prog.each_hi && prog.each_hi < prog.local.n_groups,
          "a loop, and what is behind it");
    struct ap_coll_count *coll;
    CHECK(ap_program_collectives(&arena, &prog, &coll) == 0,
          "accumulating is no collective");
    ap_cost_free(&cost);
    ap_arena_free(&arena);
}

static bool is_sparse(const struct ap_graph *g, const struct ap_nest *nest)
{
    enum ap_op op = g->nodes[nest->members[0]].op;
    return op == AP_OP_GATHER || op == AP_OP_SLICE || op == AP_OP_DYNAMIC_SLICE ||
           op == AP_OP_DYNAMIC_UPDATE_SLICE || op == AP_OP_SCATTER;
}

/* A large table, of which few rows are looked up; slices and updates of them. */
#define LOOKUPS                                                                          \
    DOC(PARAM(0, "weight", "f32[4000,8]") "," PARAM(1, "input", "s32[12,1]") NODE(       \
            "gather", "rows", "0,1", "f32[12,8]",                                        \
            ",\"offset_dims\":[1],\"collapsed_slice_dims\":[0],\"start_index_map\":[0]," \
            "\"index_vector_dim\":1,\"slice_sizes\":[1,8]")                              \
            NODE("slice", "cut", "2", "f32[12,3]", ",\"slice\":\"{[0:12], [2:5]}\"")     \
                NODE("constant", "o", "", "s32[]",                                       \
                     ",\"value\":0") NODE("dynamic-slice", "some", "2,4,4", "f32[12,4]", \
                                          ",\"dynamic_slice_sizes\":[12,4]")             \
                    NODE("dynamic-update-slice", "put", "2,5,4,4", "f32[12,8]",          \
                         "") NODE("constant", "z", "", "f32[]", ",\"value\":0")          \
                        NODE("broadcast", "zeros", "7", "f32[4000,8]",                   \
                             ",\"dimensions\":[]" BACK)                                  \
                            NODE("scatter", "gw", "8,1,6", "f32[4000,8]",                \
                                 ",\"update_window_dims\":[1],\"inserted_window_dims\":" \
                                 "[0],\"scatter_dims_to_operand_dims\":[0],"             \
                                 "\"index_vector_dim\":1,\"to_apply\":0" BACK)           \
                                NODE("subtract", "w", "0,9", "f32[4000,8]", UPD),        \
        "{\"node\":10,\"role\":\"weight\",\"alias\":0},"                                 \
        "{\"node\":3,\"role\":\"aux\"}")

/* Whether what the group reads and makes lies in time as the plan has it. */
static bool lies_alike(const struct ap_plan *timed, const struct ap_nest *nest,
                       const struct ap_stage_microbatch *micro)
{
    const struct ap_choice_vec *choice = &timed->choice[nest->group];
    bool agree = true;
    for (int k = 0; k < nest->n_ins; k++)
        agree &= micro->split[nest->ins[k].node] ==
                 (ap_nest_in_layout(nest, timed->graph, &timed->mesh, choice, k)
                      .axis[0]
                      .kind == AP_SPLIT);
    for (int m = 0; m < nest->n_members; m++)
        agree &= micro->split[nest->members[m]] ==
                 (ap_nest_value_layout(nest, timed->graph, &timed->mesh, choice, m)
                      .axis[0]
                      .kind == AP_SPLIT);
    return agree;
}

/*
 * Groups that run with each of n microbatches: a plan without them is priced as the same
 * plan made for them, which computes each group's work on a share. Returns how many are
 * equal, and of those how many touch part of an operand.
 */
static int compare_shares(struct ap_arena *arena, const struct sample *s, int64_t n,
                          int *sparse)
{
    struct ap_err err = {0};
    struct ap_plan timed, plan = {.graph = &s->g, .nests = &s->nests};
    struct ap_cost in_time, cost;
    struct ap_stage_microbatch micro;
    struct ap_conversions none = {0};
    struct ap_subgraph sub = {.graph = s->g};
    int *source = AP_NEW_N(arena, s->g.n_nodes, int), equal = 0;
    double *sec = AP_NEW_N(arena, s->nests.n, double);

    for (int i = 0; i < s->g.n_nodes; i++)
        source[i] = i;
    sub.source = source;
    if (timed_plan(arena, s, n, &timed, &err) ||
        ap_stage_microbatch_axis(arena, &s->g, &s->nests, n, &micro, &err) ||
        micro.each || make_cost(arena, AP_COST_DEFAULT, &timed.mesh, &in_time, &err) ||
        ap_mesh_parse(arena, "1", &plan.mesh, &err) ||
        make_cost(arena, AP_COST_DEFAULT, &plan.mesh, &cost, &err))
        return 0;
    plan.choice = AP_NEW_N(arena, s->nests.n, struct ap_choice_vec);
    for (int i = 0; i < s->nests.n; i++)
        plan.choice[i] = AP_CHOICE_NONE;
    ap_stage_spent(arena, &(struct ap_stage_plan){&sub, &micro, &plan, &none, &cost}, sec,
                   NULL);
    for (int i = 0; i < s->nests.n; i++) {
        const struct ap_nest *nest = &s->nests.nest[i];
        double want = ap_plan_group_sec(nest, &s->g, &in_time, &timed.choice[i]);
        bool same = fabs(sec[i] - want) <= 1e-12 * want;
        if (!ap_runs_each(nest, &s->g, &timed.mesh, &timed.choice[i]) ||
            !lies_alike(&timed, nest, &micro))
            continue;
        CHECK(same, "%s, %lld microbatches: %g s, as of shares: %g s",
              s->g.nodes[nest->members[0]].name, (long long)n, sec[i], want);
        equal += same;
        *sparse += same && is_sparse(&s->g, nest);
    }
    ap_cost_free(&in_time);
    ap_cost_free(&cost);
    return equal;
}

static void test_shares(void)
{
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    struct sample s;
    int equal = 0, sparse = 0;

    for (int64_t n = 2; n <= 6; n++) {
        for (int i = 0; i < N_SAMPLE_GRAPHS; i++)
            if (load_sample(&arena, sample_graphs[i].json, &s, &err) == 0)
                equal += compare_shares(&arena, &s, n, &sparse);
        if (load_sample(&arena, LOOKUPS, &s, &err) == 0)
            equal += compare_shares(&arena, &s, n, &sparse);
    }
    CHECK(equal > 0 && sparse == 5 * 4,
          "%d groups, %d of which touch part of an operand%s", equal, sparse, err.msg);
    ap_arena_free(&arena);
}

int main(void)
{
    test_choices();
    test_statistics();
    test_check();
    test_conversions();
    test_price();
    test_shares();
    return tap_done();
}
