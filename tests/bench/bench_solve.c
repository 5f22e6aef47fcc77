/*
 * Seconds of the selection solvers on training steps of growing depth, mesh 2x4:
 * bench_solve [GLPK-SECONDS [LAYERS...]]. Each solve is a process of its own, so that
 * peak memory is its own.
 */
#include "solve/problem.h"

#include "../unit/solve_gen.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct result {
    double sec, objective, bound;
    int n_nodes, n_edges;
    char stopped[16];
    long peak_kb;
};

static double now_sec(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void solve(ap_solver_fn *solver, int n_layers, double limit_sec, struct result *r)
{
    struct ap_arena arena = {0};
    struct ap_problem p = gen_train(&arena, n_layers, 2, 4);
    struct ap_solve_params params = {.time_limit_sec = limit_sec};
    struct ap_solution sol;
    struct ap_err err = {0};
    struct rusage usage;
    double start = now_sec();

    r->n_nodes = p.n_nodes;
    r->n_edges = p.n_edges;
    if (solver(&arena, &p, &params, &sol, &err) == 0) {
        r->objective = sol.objective;
        r->bound = sol.bound;
        snprintf(r->stopped, sizeof(r->stopped), "%s", sol.stopped);
    } else {
        snprintf(r->stopped, sizeof(r->stopped), "none found");
    }
    r->sec = now_sec() - start;
    getrusage(RUSAGE_SELF, &usage);
    r->peak_kb = usage.ru_maxrss;
    ap_arena_free(&arena);
}

/* solve in a child; exits when that fails. */
static struct result measure(ap_solver_fn *solver, int n_layers, double limit_sec)
{
    struct result r = {0};
    int fd[2], status = 1;

    fflush(stdout);
    if (pipe(fd) != 0)
        exit(1);
    pid_t pid = fork();
    if (pid == 0) {
        solve(solver, n_layers, limit_sec, &r);
        _exit(write(fd[1], &r, sizeof(r)) == (ssize_t)sizeof(r) ? 0 : 1);
    }
    close(fd[1]);
    if (pid < 0 || read(fd[0], &r, sizeof(r)) != (ssize_t)sizeof(r) ||
        waitpid(pid, &status, 0) != pid || status != 0) {
        fprintf(stderr, "bench_solve: a solve of %d layers failed\n", n_layers);
        exit(1);
    }
    close(fd[0]);
    return r;
}

static void print(const char *solver, int n_layers, const struct result *r)
{
    double gap = r->objective > 0 ? (r->objective - r->bound) / r->objective : 1;

    printf("%6d  %-6s %7d %7d %9.3f %10.2e %8.0f  %-11s %.12g\n", n_layers, solver,
           r->n_nodes, r->n_edges, r->sec, gap, (double)r->peak_kb / 1024, r->stopped,
           r->objective);
}

int main(int argc, char **argv)
{
    static const int usual[] = {1, 2, 4, 12, 24, 48};
    double glpk_sec = argc > 1 ? atof(argv[1]) : 20;
    int n = argc > 2 ? argc - 2 : (int)(sizeof(usual) / sizeof(usual[0]));

    printf("layers  solver   nodes   edges   seconds        gap  peak MB  stopped     "
           "objective\n");
    for (int i = 0; i < n; i++) {
        int n_layers = argc > 2 ? atoi(argv[i + 2]) : usual[i];
        struct result r = measure(ap_solve_exact, n_layers, 0);
        print("exact", n_layers, &r);
        if (n_layers <= 2 && glpk_sec > 0) {
            r = measure(ap_solve_glpk, n_layers, glpk_sec);
            print("glpk", n_layers, &r);
        }
    }
    return 0;
}
