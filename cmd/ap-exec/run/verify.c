/*
 * Comparisons: a partitioned run with the unpartitioned graph, or with stored results.
 * Errors are relative: of a loss, |a - b| / |b|; of a tensor or of all together, the norm
 * of the difference over the norm of what is compared with.
 */
#include "run/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int verify_program(struct ap_arena *arena, struct ap_graph *g, struct ap_program *prog,
                   struct ap_err *err)
{
    struct ap_nests *nests = AP_NEW(arena, struct ap_nests);
    struct ap_plan *plan = AP_NEW(arena, struct ap_plan);
    struct ap_conversions *conv = AP_NEW(arena, struct ap_conversions);
    struct ap_cost *cost = AP_NEW(arena, struct ap_cost);
    struct ap_cluster cluster;
    static const struct ap_doc none;
    ap_group(arena, g);
    if (ap_nests_build(arena, g, nests, err))
        return -1;
    ap_plan_single(arena, g, nests, plan);
    if (ap_cluster_get(arena, &none, NULL, 1, &cluster, err) ||
        ap_cost_init(arena, cost, AP_COST_DEFAULT, &cluster, &plan->mesh, err) ||
        ap_plan_conversions(arena, plan, cost, conv, err) ||
        ap_partition(arena, plan, conv, prog, err))
        return -1;
    ap_plan_buffers(arena, prog);
    ap_cost_free(cost);
    return 0;
}

struct norms {
    double diff, ref; /* squares */
    int64_t n;
    bool bad; /* NaN or infinite somewhere, or bits that differ */
};

static void add_norms(struct norms *s, const void *a, const void *b, enum ap_dtype dtype,
                      int64_t n)
{
    if (dtype == AP_C64) { /* two numbers each */
        dtype = AP_F32;
        n *= 2;
    }
    for (int64_t i = 0; i < n; i++) {
        const double x = data_number(a, dtype, i), y = data_number(b, dtype, i);
        if (x == y) {
            s->ref += isfinite(y) ? y * y : 0;
        } else if (!isfinite(x) || !isfinite(y)) {
            s->bad = true;
        } else {
            s->diff += (x - y) * (x - y);
            s->ref += y * y;
        }
    }
    s->n += n;
}

static double relative(const struct norms *s)
{
    if (s->bad)
        return INFINITY;
    if (s->diff == 0)
        return 0;
    return s->ref > 0 ? sqrt(s->diff / s->ref) : sqrt(s->diff);
}

static double loss_error(double a, double b)
{
    if (a == b)
        return 0;
    if (!isfinite(a) || !isfinite(b))
        return INFINITY;
    return fabs(a - b) / (fabs(b) > 0 ? fabs(b) : 1);
}

/* Parameters and results of the one are those of the other. */
static int check_same(const struct ap_graph *g, const struct ap_graph *whole,
                      struct ap_err *err)
{
    bool same = g->n_params <= whole->n_params && g->n_results <= whole->n_results;
    for (int k = 0; k < g->n_params && same; k++) {
        const struct placement a = exec_placement(&g->nodes[g->params[k]]);
        const struct placement b = exec_placement(&whole->nodes[whole->params[k]]);
        same = ap_shape_equal(&a.global, &b.global);
    }
    for (int r = 0; r < g->n_results && same; r++)
        same = g->results[r].alias >= 0 ||
               ap_shape_equal(&g->nodes[g->results[r].node].shape,
                              &whole->nodes[whole->results[r].node].shape);
    return same ? 0 : ap_err_set(err, "the program is not one of the section \"graph\"");
}

int verify_sessions(const struct session *s, const struct session *whole,
                    double tolerance, struct comparison *cmp, struct ap_err *err)
{
    const struct ap_graph *g = &s->exec.prog->local;
    struct norms weights = {0}, states = {0};
    int rc = 0;
    bool any = s->loss >= 0;
    *cmp = (struct comparison){.done = true, .loss_error = -1};
    if (check_same(g, &whole->exec.prog->local, err))
        return -1;
    for (int64_t i = 0; s->loss >= 0 && i < s->steps; i++) {
        const double e = loss_error(s->losses[i], whole->losses[i]);
        cmp->loss_error = e > cmp->loss_error ? e : cmp->loss_error;
        if (e > tolerance && !rc)
            rc = ap_err_set(err, "loss of step %lld: %.9g, unpartitioned %.9g",
                            (long long)i + 1, s->losses[i], whole->losses[i]);
    }
    for (int k = 0; k < g->n_params; k++) {
        const struct ap_node *v = &g->nodes[g->params[k]];
        const struct placement p = exec_placement(v);
        struct norms one = {0};
        if (!s->params[k] || !whole->params[k])
            continue;
        const int64_t n = ap_shape_elems(&p.global);
        add_norms(&one, s->params[k], whole->params[k], v->shape.dtype, n);
        add_norms(v->role == AP_ROLE_STATE ? &states : &weights, s->params[k],
                  whole->params[k], v->shape.dtype, n);
        const double e = relative(&one);
        if (e > tolerance && !rc)
            rc = ap_err_set(err, "parameter %d (%s): relative error %.3g, tolerance %.3g",
                            k, v->name, e, tolerance);
    }
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_shape *shape = &g->nodes[g->results[r].node].shape;
        struct norms one = {0};
        if (!s->results[r] || !whole->results[r])
            continue;
        any = true;
        add_norms(&one, s->results[r], whole->results[r], shape->dtype,
                  ap_shape_elems(shape));
        const double e = relative(&one);
        if (e > tolerance && !rc)
            rc = ap_err_set(err, "result %d (%s): relative error %.3g, tolerance %.3g", r,
                            g->nodes[g->results[r].node].name, e, tolerance);
    }
    cmp->params_error = weights.n ? relative(&weights) : -1;
    cmp->states_error = states.n ? relative(&states) : -1;
    if (!rc && !any && !weights.n && !states.n)
        rc = ap_err_set(err, "the program has nothing to compare");
    return rc;
}

static int within(const char *what, double error, double tolerance, struct ap_err *err)
{
    if (error <= tolerance)
        return 0;
    return ap_err_set(err, "%s: relative error %.3g, tolerance %.3g", what, error,
                      tolerance);
}

int compare_goldens(struct ap_arena *arena, const struct session *s, const char *dir,
                    double tolerance, struct comparison *cmp, struct ap_err *err)
{
    const struct ap_graph *g = &s->exec.prog->local;
    struct norms weights = {0}, states = {0};
    struct ap_npy losses;
    struct arrays files = {.dir = ap_arena_printf(arena, "%s/out", dir)};
    *cmp = (struct comparison){.done = true, .loss_error = -1};
    if (ap_npy_read(ap_arena_printf(arena, "%s/losses.npy", dir), &losses, NULL, err))
        return -1;
    for (int64_t i = 0; s->loss >= 0 && i < s->steps && i < losses.elems; i++) {
        const double e =
            loss_error(s->losses[i], data_number(losses.data, losses.dtype, i));
        cmp->loss_error = e > cmp->loss_error ? e : cmp->loss_error;
    }
    const bool comparable = losses.elems == s->steps;
    free(losses.data);
    if (!comparable)
        return ap_err_set(err, "%s/losses.npy: holds %lld losses, %lld steps were run",
                          dir, (long long)losses.elems, (long long)s->steps);
    for (int k = 0; k < g->n_params; k++) {
        const struct ap_node *v = &g->nodes[g->params[k]];
        const struct placement p = exec_placement(v);
        void *want;
        bool missing;
        struct ap_err why = {{0}};
        if (!s->params[k])
            continue;
        if (arrays_read(&files, arena, v, k, &p.global, &want, &missing, &why)) {
            arrays_free(&files);
            return ap_err_set(err, "parameter %d (%s): %s", k, v->name, why.msg);
        }
        add_norms(v->role == AP_ROLE_STATE ? &states : &weights, s->params[k], want,
                  v->shape.dtype, ap_shape_elems(&p.global));
        free(want);
    }
    arrays_free(&files);
    cmp->params_error = weights.n ? relative(&weights) : -1;
    cmp->states_error = states.n ? relative(&states) : -1;
    if (isnan(tolerance))
        return 0;
    if (cmp->loss_error < 0 && !weights.n && !states.n)
        return ap_err_set(err, "%s: the program has nothing to compare with it", dir);
    return within("losses", cmp->loss_error, tolerance, err) ||
                   within("parameters", cmp->params_error, tolerance, err) ||
                   within("states", cmp->states_error, tolerance, err)
               ? -1
               : 0;
}
