/*
 * Alpa's space: its specs (table 1), which conversions there are and what they cost, the
 * mappings of a batched product (table 3), penalties and the batch.
 */
#include "cost/alpa.h"
#include "graph/build.h"
#include "problem/shard.h"
#include "tap.h"
#include "cost/convert.h"

#include <math.h>
#include <string.h>

static struct ap_arena arena;

static void set_up(struct ap_cost *cost, const char *mesh_text)
{
    struct ap_mesh mesh;
    struct ap_cluster cluster;
    struct ap_err err = {""};
    struct ap_doc doc = {0};
    if (ap_mesh_parse(&arena, mesh_text, &mesh, &err) ||
        ap_cluster_get(&arena, &doc, NULL, ap_mesh_devices(&mesh), &cluster, &err) ||
        ap_cost_init(&arena, cost, AP_COST_ALPA, &cluster, &mesh, &err))
        CHECK(false, "%s", err.msg);
    cost->alpa.space = true;
}

/* The graph of what was built, with one nest per group. */
static void finish(struct ap_build *b, int result, struct ap_graph *g,
                   struct ap_nests *nests)
{
    struct ap_err err = {""};
    struct ap_result r = {.node = result, .role = AP_ROLE_AUX, .alias = -1};
    if (ap_build_finish(b, "test", 1, &r, g, &err))
        CHECK(false, "%s", err.msg);
    ap_group(&arena, g);
    if (ap_nests_build(&arena, g, nests, &err))
        CHECK(false, "%s", err.msg);
}

static const struct ap_nest *nest_of(const struct ap_nests *nests, int node)
{
    return &nests->nest[nests->graph->nodes[node].group];
}

/* ---- Alpa, table 1 ---- */

struct counts {
    int all, alpa;
};

/* Distinct layouts of a group's value: under any choice, and under those admitted. */
static struct counts count_specs(const struct ap_nests *nests, const struct ap_mesh *mesh,
                                 int node)
{
    const struct ap_nest *nest = nest_of(nests, node);
    struct shard_alpa alpa = {.axis = -1};
    struct ap_layout seen[64];
    struct counts n = {0};

    for (int i = 0; i < (nest->n_factors + 1) * (nest->n_factors + 1); i++) {
        struct ap_choice_vec c = {.axis = {(int16_t)(i % (nest->n_factors + 1) - 1),
                                           (int16_t)(i / (nest->n_factors + 1) - 1)}};
        struct ap_layout l = ap_nest_value_layout(nest, nests->graph, mesh, &c, 0);
        int known = 0;
        while (known < n.all && !ap_layout_equal(&seen[known], &l))
            known++;
        if (known < n.all || !ap_choice_ok(nest, mesh, &c))
            continue;
        seen[n.all++] = l;
        n.alpa += shard_alpa_admits(&alpa, nest, nests->graph, mesh, &c);
    }
    return n;
}

static void test_al4(void)
{
    static const int64_t dims[3] = {8, 16, 32};
    static const struct {
        int rank, all, node, param;
    } cases[] = {{2, 9, 7, 5}, {3, 16, 13, 7}}; /* (r + 1)^2; without S01; one axis */

    for (int i = 0; i < 2; i++) {
        struct ap_build b;
        struct ap_graph g;
        struct ap_nests nests;
        struct ap_cost cost;
        set_up(&cost, "2x2");
        ap_build_init(&b, &arena);
        struct ap_shape shape = ap_build_shape(&b, AP_F32, cases[i].rank, dims);
        int x = ap_build_param(&b, "x", shape, AP_ROLE_INPUT);
        int y = ap_build_unary(&b, AP_OP_EXPONENTIAL, x);
        finish(&b, y, &g, &nests);
        struct counts p = count_specs(&nests, &cost.mesh, x);
        struct counts v = count_specs(&nests, &cost.mesh, y);
        CHECK(v.all == cases[i].all && p.all == cases[i].all,
              "alpa, table 1: %d specs of rank %d on 2x2 (%d)", v.all, cases[i].rank,
              cases[i].all);
        CHECK(v.alpa == cases[i].node && p.alpa == cases[i].param,
              "rank %d: %d of them on two dimensions at most, %d of a parameter",
              cases[i].rank, v.alpa, p.alpa);
        ap_cost_free(&cost);
    }
}

/* ---- conversions ---- */

static struct ap_layout layout(const struct ap_mesh *mesh, const struct ap_shape *shape,
                               const char *text)
{
    struct ap_layout l = {0};
    struct ap_err err = {""};
    if (ap_layout_parse(mesh, shape, text, &l, &err))
        CHECK(false, "%s: %s", text, err.msg);
    return l;
}

/* sec < 0: there is no way */
static void check_steps(const struct ap_cost *cost, const struct ap_shape *shape,
                        const char *from, const char *to, int n_steps, double sec)
{
    const char *where = !cost->alpa.mixed  ? ""
                        : cost->alpa.space ? ", mixed mesh"
                                           : ", outside Alpa's space";
    struct ap_layout f = layout(&cost->mesh, shape, from),
                     t = layout(&cost->mesh, shape, to);
    struct ap_step room[AP_MAX_STEPS];
    struct ap_path path;
    bool found = ap_convert(cost, shape, &f, &t, room, &path) == 0;
    CHECK(found == (sec >= 0) &&
              (!found || (path.n_steps == n_steps && fabs(path.sec - sec) < 1e-6)),
          "%s to %s%s: %s, %d steps, %.3f (want %d, %.3f)", from, to, where,
          found ? "found" : "none", found ? path.n_steps : 0, found ? path.sec : -1.,
          n_steps, sec);
}

static void test_steps(void)
{
    static const int64_t dims[2] = {64, 32};
    const struct ap_shape shape = {.dtype = AP_F32, .rank = 2, .dims = dims};
    const double m = 4 * 64 * 32;
    struct ap_cost cost;

    set_up(&cost, "2x2"); /* beta 1 and 0.1 */
    check_steps(&cost, &shape, "R,R", "S0,S1", 2, 0);
    check_steps(&cost, &shape, "S0,R", "R,R", 1, 1.1 + m / 2);
    check_steps(&cost, &shape, "S0,S1", "S0,R", 1, 1.1 + 0.1 * m / 4);
    check_steps(&cost, &shape, "S0,S1", "R,R", 2, 1.1 + m / 4 + 1.1 + 0.1 * m / 2);
    check_steps(&cost, &shape, "S1,S0", "R,R", 2, 1.1 + 0.1 * m / 4 + 1.1 + m / 2);
    check_steps(&cost, &shape, "S0,R", "S1,R", 0, -1); /* all-to-all needs one axis */
    check_steps(&cost, &shape, "S0,R", "R,S0", 0, -1);
    check_steps(&cost, &shape, "S0,S1", "S1,S0", 0, -1);
    check_steps(&cost, &shape, "P,R", "R,R", 1, 1.01 + m);
    check_steps(&cost, &shape, "P,R", "S0,R", 2, 1.01 + m); /* no reduce-scatter */
    check_steps(&cost, &shape, "P,S1", "S0,S1", 2, 1.01 + m / 2);
    check_steps(&cost, &shape, "P,P", "R,R", 2, 1.01 + m + 1.01 + 0.1 * m);
    check_steps(&cost, &shape, "R,R", "P,R", 1, 0); /* initial values */
    ap_cost_free(&cost);
    /* rows 4 and 5 of the printed table, which the public code forbids on two axes or
       leaves to mixed shapes: all-to-alls of M/n0 and M/(n0 n1), what a device holds */
    set_up(&cost, "2x2");
    cost.alpa.mixed = true;
    check_steps(&cost, &shape, "S0,S1", "S0,S0", 1, 1.001 + 0.1 * m / 4 / 4);
    cost.alpa.space = false;
    check_steps(&cost, &shape, "S0,R", "S1,R", 1, 1.001 + m / 2 / 4);
    ap_cost_free(&cost);
    set_up(&cost, "4");
    check_steps(&cost, &shape, "S0", "S1", 1, 1.001 + m * 3 / 16 * 2);
    check_steps(&cost, &shape, "P", "S1", 2, 1.01 + m * 3 / 2);
    ap_cost_free(&cost);
}

/* ---- Alpa, table 3 ---- */

struct mapping {
    int row;
    char on[2];                  /* factor of each axis */
    const char *a, *b, *c, *sum; /* layouts; c before the sum */
    bool alpa; /* without mixed specs, a batch is always split on two axes */
};

static void test_al6(void)
{
    static const struct mapping rows[] = {
        {1, {'i', 'j'}, "S1,R", "R,S2", "S1,S2", "S1,S2", false},
        {2, {'i', 'k'}, "S1,S2", "R,S1", "S1,P", "S1,R", false},
        {3, {'j', 'k'}, "R,S2", "S2,S1", "S2,P", "S2,R", false},
        {4, {'b', 'i'}, "S0,S1", "S0,R", "S0,S1", "S0,S1", true},
        {5, {'b', 'k'}, "S0,S2", "S0,S1", "S0,P", "S0,R", true},
        {6, {'i', 'i'}, "S1,S1", "R,R", "S1,S1", "S1,S1", false},
        {7, {'k', 'k'}, "S2,S2", "S1,S1", "P,P", "R,R", false},
    };
    static const int64_t da[3] = {4, 16, 8}, db[3] = {4, 8, 32}, batch = 0, ka = 2,
                         kb = 1;
    const double m = 4 * 4 * 16 * 32, want[7] = {0, m / 2, m / 2, 0, m / 2, 0, m};
    struct ap_build b;
    struct ap_graph g;
    struct ap_nests nests;
    struct ap_cost cost;

    set_up(&cost, "2x4");
    cost.alpa.space = false; /* row 7 sums over both axes at once */
    ap_build_init(&b, &arena);
    int x = ap_build_param(&b, "a", ap_build_shape(&b, AP_F32, 3, da), AP_ROLE_INPUT);
    int y = ap_build_param(&b, "b", ap_build_shape(&b, AP_F32, 3, db), AP_ROLE_INPUT);
    int dot =
        ap_build_dot(&b, x, y, &(struct ap_dot_dims){1, &batch, &batch, 1, &ka, &kb});
    finish(&b, dot, &g, &nests);
    const struct ap_nest *nest = nest_of(&nests, dot);
    struct shard_alpa alpa = {.axis = -1};
    const struct ap_access *a = &nest->ins[0].access, *c = &nest->values[0];
    const char names[] = "bijk";
    const int factor[4] = {c->dims[0].factor[0], c->dims[1].factor[0],
                           c->dims[2].factor[0], a->dims[2].factor[0]};

    for (int i = 0; i < 7; i++) {
        const struct mapping *r = &rows[i];
        struct ap_choice_vec choice = {{0}};
        for (int k = 0; k < 2; k++)
            choice.axis[k] = (int16_t)factor[strchr(names, r->on[k]) - names];
        const struct ap_shape *shape = &g.nodes[dot].shape;
        struct ap_layout out = layout(&cost.mesh, shape, r->c),
                         sum = layout(&cost.mesh, shape, r->sum);
        struct ap_layout la = layout(&cost.mesh, &g.nodes[x].shape, r->a),
                         lb = layout(&cost.mesh, &g.nodes[y].shape, r->b);
        struct ap_layout got[3] = {
            ap_nest_in_layout(nest, &g, &cost.mesh, &choice, 0),
            ap_nest_in_layout(nest, &g, &cost.mesh, &choice, 1),
            ap_nest_value_layout(nest, &g, &cost.mesh, &choice, 0)};
        CHECK(ap_choice_ok(nest, &cost.mesh, &choice) && ap_layout_equal(&got[0], &la) &&
                  ap_layout_equal(&got[1], &lb) && ap_layout_equal(&got[2], &out),
              "alpa, table 3: row %d, %c on axis 0 and %c on axis 1", r->row, r->on[0],
              r->on[1]);
        double sec = ap_convert_sec(&cost, shape, &out, &sum), table = 0;
        if (want[i] > 0)
            table = ap_cost_collective(&cost, AP_OP_ALL_REDUCE, i == 6 ? 3 : 2,
                                       (int64_t)want[i]);
        /* over both axes, three collectives on one axis each are cheaper */
        CHECK(sec == table || (i == 6 && sec < table),
              "alpa, table 3: row %d costs %g, at most %g", r->row, sec, table);
        CHECK(shard_alpa_admits(&alpa, nest, &g, &cost.mesh, &choice) == r->alpa,
              "row %d is %s", r->row, r->alpa ? "admitted" : "not");
    }
    ap_cost_free(&cost);
}

/* ---- penalties, batch ---- */

static void test_penalty(void)
{
    static const struct {
        const char *mesh;
        double unit;
    } cases[] = {{"4", 4}, {"4x1", 4}, {"1x4", 2}, {"2x2", 3}, {"8x8", 4}};
    static const int64_t dims[2] = {8, 8};

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct ap_cost cost;
        set_up(&cost, cases[i].mesh);
        CHECK(ap_alpa_unit_penalty(&cost) == cases[i].unit, "%s: %g", cases[i].mesh,
              ap_alpa_unit_penalty(&cost));
        ap_cost_free(&cost);
    }
    struct ap_build b;
    struct ap_graph g;
    struct ap_nests nests;
    struct ap_cost cost;
    set_up(&cost, "2x2");
    ap_build_init(&b, &arena);
    struct ap_shape shape = ap_build_shape(&b, AP_F32, 2, dims);
    int x = ap_build_param(&b, "x", shape, AP_ROLE_INPUT);
    int i = ap_build_iota(&b, shape, 0);
    int e = ap_build_unary(&b, AP_OP_EXPONENTIAL,
                           ap_build_transpose(&b, i, (int64_t[]){1, 0}));
    int y = ap_build_binary(&b, AP_OP_ADD, ap_build_unary(&b, AP_OP_EXPONENTIAL, x), e);
    finish(&b, y, &g, &nests);
    const struct ap_choice_vec none = {{-1, -1}}, one = {{0, -1}};
    const int node[3] = {x, i, y};
    const double want[3] = {3, 15, 0};
    for (int k = 0; k < 3; k++) {
        const struct ap_nest *nest = nest_of(&nests, node[k]);
        CHECK(ap_plan_group_sec(nest, &g, &cost, &none) == want[k] &&
                  ap_plan_group_sec(nest, &g, &cost, &one) == 0,
              "a replicated %s costs %g", ap_ops[g.nodes[node[k]].op].name, want[k]);
    }
    ap_cost_free(&cost);
}

/* x[B,K] w[K,N], then its mean over B: the batch is B wherever it appears. */
static void test_batch(void)
{
    static const int64_t dx[2] = {8, 16}, dw[2] = {16, 4}, k = 1, zero = 0;
    static const int64_t perm[2] = {1, 0};
    struct ap_build b;
    struct ap_graph g;
    struct ap_nests nests;
    struct ap_cost cost;

    set_up(&cost, "2x2");
    ap_build_init(&b, &arena);
    int x = ap_build_param(&b, "x", ap_build_shape(&b, AP_F32, 2, dx), AP_ROLE_INPUT);
    int w = ap_build_param(&b, "w", ap_build_shape(&b, AP_F32, 2, dw), AP_ROLE_WEIGHT);
    int y = ap_build_matmul(&b, x, w, k, zero);
    int t = ap_build_transpose(&b, y, perm);
    int u = ap_build_matmul(&b, t, x, k, zero); /* [N,K] */
    finish(&b, u, &g, &nests);
    struct shard_alpa alpa = {.axis = 0, .batch = shard_alpa_batch(&arena, &g, &nests)};
    const struct {
        int node;
        const char *what;
        bool has;
    } cases[] = {{x, "x", true},
                 {w, "w", false},
                 {y, "x w", true},
                 {t, "its transpose", true},
                 {u, "contracted", true}};
    for (int i = 0; i < 5; i++) {
        const struct ap_nest *nest = nest_of(&nests, cases[i].node);
        int f = alpa.batch[nest->group], n = 0, others = 0;
        CHECK(cases[i].has == (f >= 0 && nest->factors[f].size == 8), "batch of %s",
              cases[i].what);
        for (int c = -1; c < nest->n_factors; c++) {
            bool ok = false; /* with something on the other axis */
            for (int d = -1; d < nest->n_factors; d++) {
                struct ap_choice_vec choice = {{(int16_t)c, (int16_t)d}};
                ok |= ap_choice_ok(nest, &cost.mesh, &choice) &&
                      shard_alpa_admits(&alpa, nest, &g, &cost.mesh, &choice);
            }
            n += ok && c == f;
            others += ok && c != f;
        }
        CHECK(n == 1 && (others > 0) == !cases[i].has,
              "axis 0 of %s is the batch's, where it has one", cases[i].what);
    }
    ap_cost_free(&cost);
}

int main(void)
{
    test_al4();
    test_steps();
    test_al6();
    test_penalty();
    test_batch();
    ap_arena_free(&arena);
    return tap_done();
}
