/* Groups that a device runs as one kernel each: what becomes of marked nodes, and what a
 * program from a file may say. */
#include "graph/build.h"
#include "graph/group.h"
#include "program/kernel_form.h"
#include "pipeline/pipeline_program.h"
#include "sample_plan.h"
#include "tap.h"

#include <string.h>

enum { ROWS = 6, COLS = 8 };

/* Softmax of rows, with a bias, whose columns are added up, too, after a product. */
struct made {
    struct ap_arena arena;
    struct ap_graph graph;
    struct ap_nests nests;
    struct ap_program prog;
};

static int add_softmax(struct ap_build *b, int x)
{
    const int64_t last = 1, dims[2] = {ROWS, COLS}, row = 0;
    const int max = ap_build_reduce(b, x, AP_RED_MAX, 1, &last);
    const int shifted =
        ap_build_binary(b, AP_OP_SUBTRACT, x, ap_build_broadcast(b, max, 2, dims, &row));
    const int e = ap_build_unary(b, AP_OP_EXPONENTIAL, shifted);
    const int sum = ap_build_reduce(b, e, AP_RED_SUM, 1, &last);
    return ap_build_binary(b, AP_OP_DIVIDE, e, ap_build_broadcast(b, sum, 2, dims, &row));
}

static struct ap_shape f32(struct ap_build *b, int rank, int64_t n, int64_t m)
{
    return ap_build_shape(b, AP_F32, rank, (int64_t[]){n, m});
}

static void mark(struct ap_arena *arena, struct ap_graph *g, int64_t kernel)
{
    for (int i = 0; i < g->n_nodes; i++) {
        struct ap_attrs *attrs = ap_arena_dup(arena, g->nodes[i].attrs, sizeof *attrs);
        attrs->kernel = g->nodes[i].op == AP_OP_PARAMETER ? 0 : kernel;
        g->nodes[i].attrs = attrs;
    }
}

/* The program on one device of what has been built, with its kernels. */
static void make(struct made *m, struct ap_build *b, int n_results,
                 const struct ap_result *results)
{
    struct ap_err err = {{0}};
    struct ap_plan plan = {.graph = &m->graph, .nests = &m->nests};
    struct ap_cost cost = {.cache = NULL};
    struct ap_conversions conv;

    int rc = ap_build_finish(b, "t", n_results, results, &m->graph, &err);
    mark(&m->arena, &m->graph, 1);
    ap_group(&m->arena, &m->graph);
    rc = rc || ap_nests_build(&m->arena, &m->graph, &m->nests, &err);
    ap_plan_single(&m->arena, &m->graph, &m->nests, &plan);
    rc = rc || make_cost(&m->arena, AP_COST_DEFAULT, &plan.mesh, &cost, &err) ||
         ap_plan_conversions(&m->arena, &plan, &cost, &conv, &err) ||
         ap_partition(&m->arena, &plan, &conv, &m->prog, &err);
    if (!rc) {
        ap_program_kernels(&m->arena, &m->prog);
        ap_plan_buffers(&m->arena, &m->prog, 0);
        struct ap_pipeline_program one;
        ap_pipeline_of_program(&m->arena, &m->prog, &one);
        rc = ap_program_check(&m->prog, &(struct ap_at){.key = "program"}, &err) ||
             ap_pipeline_check_memory(&one, &(struct ap_at){.key = "program"}, &err);
    }
    CHECK(!rc, "a program with kernels: %s", err.msg);
    ap_cost_free(&cost);
}

static int first_of(const struct ap_graph *g, int group)
{
    int i = 0;
    while (i < g->n_nodes && g->nodes[i].group < group)
        i++;
    return i;
}

static struct ap_kernel_form form_of(const struct made *m, int group, int *n)
{
    const struct ap_graph *g = &m->prog.local;
    const int first = first_of(g, group), end = first_of(g, group + 1);
    struct ap_kernel_form form;
    int where;

    *n = end - first;
    const char *what = ap_kernel_form_of(g, first, end, &form, &where);
    CHECK(!what, "group %d is a kernel: %s", group, what ? what : "");
    return form;
}

static int count_memory(const struct made *m, int group)
{
    const struct ap_graph *g = &m->prog.local;
    int n = 0;

    for (int i = first_of(g, group); i < first_of(g, group + 1); i++)
        n += m->prog.buffer[i].offset >= 0;
    return n;
}

static void build_softmax(struct made *m)
{
    struct ap_build b;
    const int64_t dims[2] = {ROWS, COLS}, second = 1, first = 0;

    *m = (struct made){.prog = {.peak_bytes = 0}};
    ap_build_init(&b, &m->arena);
    const int x = ap_build_param(&b, "x", f32(&b, 2, ROWS, COLS), AP_ROLE_INPUT);
    const int bias = ap_build_param(&b, "bias", f32(&b, 1, COLS, 0), AP_ROLE_WEIGHT);
    const int y =
        ap_build_binary(&b, AP_OP_ADD, x, ap_build_broadcast(&b, bias, 2, dims, &second));
    const int p = add_softmax(&b, y);
    const int half = ap_build_with(&b, AP_OP_MULTIPLY, y, 0.5);
    const int sums = ap_build_reduce(&b, half, AP_RED_SUM, 1, &first);
    make(m, &b, 2,
         (struct ap_result[]){{.node = p, .alias = -1}, {.node = sums, .alias = -1}});
}

static void test_softmax(void)
{
    struct made m;
    int n;

    build_softmax(&m);
    const int groups = m.prog.local.n_groups;
    const struct ap_kernel_form rows = form_of(&m, groups - 2, &n);
    CHECK(groups == 4 && rows.kind == AP_KERNEL_ROWS && rows.rows == ROWS &&
              rows.cols == COLS && count_memory(&m, groups - 2) == 1,
          "a softmax with its bias is rows (%d groups)", groups);
    const struct ap_kernel_form cols = form_of(&m, groups - 1, &n);
    CHECK(cols.kind == AP_KERNEL_COLS && cols.cols == ROWS * COLS &&
              count_memory(&m, groups - 1) == 1 && n == 7,
          "sums over columns compute their operand again (%d nodes)", n);
    ap_arena_free(&m.arena);
}

/* A reshape between, and a transpose of a value from outside: one pass. Of a value of its
 * own: two. */
static void test_pass(void)
{
    const int64_t turn[2] = {1, 0}, flat = ROWS * COLS;
    struct ap_build b;
    struct made m = {.prog = {.peak_bytes = 0}};
    int n;

    ap_build_init(&b, &m.arena);
    const int x = ap_build_param(&b, "x", f32(&b, 2, COLS, ROWS), AP_ROLE_INPUT);
    const int t = ap_build_unary(&b, AP_OP_TANH, ap_build_transpose(&b, x, turn));
    const int e =
        ap_build_unary(&b, AP_OP_EXPONENTIAL, ap_build_reshape(&b, t, 1, &flat));
    const int u = ap_build_transpose(&b, t, turn);
    make(&m, &b, 2,
         (struct ap_result[]){{.node = e, .alias = -1}, {.node = u, .alias = -1}});
    const struct ap_kernel_form form = form_of(&m, 1, &n);
    CHECK(m.prog.local.n_groups == 3 && form.kind == AP_KERNEL_PASS && n == 4 &&
              form.cols == ROWS * COLS && count_memory(&m, 1) == 2,
          "a load, a reshape and elementwise nodes are a pass of %d nodes", n);
    ap_arena_free(&m.arena);
}

/* Two kernels, each of two nodes that read x, each of which needs the other. */
static void test_circle(void)
{
    struct ap_build b;
    struct made m = {.prog = {.peak_bytes = 0}};
    static const enum ap_op of_first[2] = {AP_OP_TANH, AP_OP_MULTIPLY};

    ap_build_init(&b, &m.arena);
    const int x = ap_build_param(&b, "x", f32(&b, 1, COLS, 0), AP_ROLE_INPUT);
    const int t = ap_build_unary(&b, AP_OP_TANH, x),
              s = ap_build_unary(&b, AP_OP_SINE, x);
    const struct ap_result results[2] = {
        {.node = ap_build_binary(&b, AP_OP_ADD, t, x), .alias = -1},
        {.node = ap_build_binary(&b, AP_OP_MULTIPLY, s, x), .alias = -1}};
    make(&m, &b, 2, results);
    struct ap_graph *g = &m.prog.local;
    mark(&m.arena, g, 2);
    for (int i = 0; i < g->n_nodes; i++) {
        struct ap_attrs *attrs = ap_arena_dup(&m.arena, g->nodes[i].attrs, sizeof *attrs);
        attrs->kernel =
            1 + (g->nodes[i].op != of_first[0] && g->nodes[i].op != of_first[1]);
        g->nodes[i].attrs = attrs;
    }
    ap_program_kernels(&m.arena, &m.prog);
    ap_plan_buffers(&m.arena, &m.prog, 0);
    struct ap_err err = {{0}};
    CHECK(!ap_program_check(&m.prog, &(struct ap_at){.key = "program"}, &err) &&
              g->n_groups == 2,
          "kernels in a circle stay as they were (%d groups) %s", g->n_groups, err.msg);
    ap_arena_free(&m.arena);
}

/* ---- what is refused ---- */

static int find(const struct ap_graph *g, enum ap_op op, int nth)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == op && nth-- == 0)
            return i;
    return -1;
}

static void refused(struct made *m, int node, struct ap_attrs *attrs, const char *says)
{
    struct ap_graph *g = &m->prog.local;
    const struct ap_attrs *good = g->nodes[node].attrs;
    struct ap_err err = {{0}};

    g->nodes[node].attrs = attrs;
    const int rc = ap_program_check(&m->prog, &(struct ap_at){.key = "program"}, &err);
    CHECK(rc && !strncmp(err.msg, "/program/modules/0/graph/nodes/", 31) &&
              strstr(err.msg, says),
          "%s", err.msg);
    g->nodes[node].attrs = good;
}

static void test_refused(void)
{
    struct made m;
    static const int64_t first = 0;

    build_softmax(&m);
    const struct ap_graph *g = &m.prog.local;
    struct ap_attrs changed;
#define CHANGED(node) (changed = *g->nodes[node].attrs, &changed)
    const int max = find(g, AP_OP_REDUCE, 0), spread = find(g, AP_OP_BROADCAST, 1);
    CHANGED(max)->kernel = 2;
    refused(&m, max, &changed, "shares its group");
    CHANGED(max)->dimensions = (struct ap_ints){1, &first};
    refused(&m, max, &changed, "one form");
    const int start = g->nodes[max].in[1];
    CHANGED(start)->literal.data = "\0\0\0\0";
    refused(&m, start, &changed, "cannot be a part");
    CHANGED(spread)->dimensions = (struct ap_ints){1, (int64_t[]){1}};
    refused(&m, spread, &changed, "other places");
    ap_arena_free(&m.arena);
}

int main(void)
{
    test_softmax();
    test_pass();
    test_circle();
    test_refused();
    return tap_done();
}
