/* ap-solve: one strategy per node, least cost, memory within a limit at all times. */
#include <inttypes.h>
#include <math.h>

#include "problem_read.h"
#include "tool/tool.h"

struct solver {
    struct ap_choice choice;
    contest_solver *run;
};

static const struct solver solvers[] = {
    {{"auto", "bound, proof and local search, exchanging solutions"}, contest_auto},
    {{"exact", "reductions, bound, then proof"}, contest_exact},
    {{"local", "bound and local search, no proof"}, contest_local},
    {{"glpk", "integer program in GLPK, in the tight form"}, contest_glpk},
    {{NULL, NULL}, NULL},
};

static void put_answer(const struct contest *p, const struct ap_solution *sol,
                       const char *algorithm, struct ap_buf *out)
{
    double gap = sol->objective > 0 ? 1 - sol->bound / sol->objective : 0;

    ap_buf_printf(out,
                  "{\"algorithm\":\"%s\",\"objective\":%.17g,\"bound\":%.17g,"
                  "\"gap\":%.6g,\"stopped\":\"%s\",\"peak\":%" PRId64,
                  algorithm, sol->objective, fmax(sol->bound, 0), fmax(gap, 0),
                  sol->stopped, contest_peak(p, sol->choice));
    if (p->span)
        ap_buf_printf(out, ",\"usage_limit\":%" PRId64, p->usage_limit);
    ap_buf_puts(out, "}\n[");
    for (int v = 0; v < p->costs.n_nodes; v++)
        ap_buf_printf(out, v ? ", %d" : "%d", sol->choice[v]);
    ap_buf_puts(out, "]\n");
}

int main(int argc, char **argv)
{
    double start_sec = ap_now_sec();
    int algorithm = 0;
    int64_t threads = 2, seed = 0;
    struct contest_params params = {0};
    const struct ap_opt opts[] = {
        {"algorithm", AP_OPT_CHOICE, &algorithm, "NAME",
         "solver; --algorithm=help lists them", &solvers->choice, sizeof *solvers, 0, 0,
         NULL},
        {"time-limit", AP_OPT_NUM, &params.time_limit_sec, "S",
         "answer after S seconds, reading included", NULL, 0, 0, 1000000, NULL},
        {"work-limit", AP_OPT_INT, &params.work_limit, "N",
         "stop after N rounds (30), or units of the solver's work", NULL, 0, 0, INT64_MAX,
         NULL},
        {"threads", AP_OPT_INT, &threads, "N", "threads (2)", NULL, 0, 1, 64, NULL},
        {"seed", AP_OPT_INT, &seed, "N", "random seed (0)", NULL, 0, 0, INT64_MAX, NULL},
        {0},
    };
    struct ap_tool tool = {.name = "ap-solve",
                           .summary = "solve a selection problem: one strategy per node",
                           .operand = "[FILE]",
                           .opts = opts};
    struct ap_arena arena = {0};
    struct contest p;
    struct ap_solution sol = {0};
    struct ap_err err = {0};
    struct ap_buf out = {0};

    ap_tool_start(&tool, argc, argv);
    if (contest_read(&arena, tool.path, &p, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    double read_sec = ap_now_sec() - start_sec;
    struct ap_work work = {.progress = ap_tool_progress()};
    params.work = &work;
    ap_work_tell(&work, solvers[algorithm].choice.name, INFINITY, 0);
    if (params.time_limit_sec > 0)
        params.time_limit_sec = fmax(params.time_limit_sec - read_sec, 1e-3);
    params.threads = (int)threads;
    params.seed = (uint64_t)seed;
    if (solvers[algorithm].run(&arena, &p, &params, &sol, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
    put_answer(&p, &sol, solvers[algorithm].choice.name, &out);
    ap_tool_write_bytes(&tool, &out);
    ap_buf_free(&out);
    const char *extra = ap_arena_printf(
        &arena, ",\"nodes\":%d,\"edges\":%d,\"read_sec\":%.3f,\"work\":%" PRId64 "%s",
        p.costs.n_nodes, p.costs.n_edges, read_sec, sol.work, sol.stats ? sol.stats : "");
    return ap_tool_finish(&tool, extra);
}
