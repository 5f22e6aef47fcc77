/*
 * Comparisons: a partitioned run with the unpartitioned graph, or with stored results.
 * Errors are relative: of a loss, |a - b| / |b|; of a tensor or of all together, the norm
 * of the difference over the norm of the reference.
 *
 * Problem: which difference of two right programs is a fault? In f32 a relative error of
 * 1e-4 is accepted. In bf16 a weight of f32 moves by 1e-3 of itself and its gradient is
 * known to three digits; and where a gradient is zero but for rounding (a bias in front
 * of a softmax or a normalisation), Adam divides rounding by rounding and makes a full
 * step. Idea: a tensor that bf16 or f16 computes is compared in parts of its change, 1 %.
 * A larger difference is compared with a measurement: the unpartitioned graph runs again,
 * with its sums rounded at random (noise.c), and a difference of up to ROUNDING times the
 * resulting change counts as rounding. A tensor whose change rounding alters by half or
 * more is named, since nothing is proved about it. Cost: a run of the unpartitioned
 * graph; up to nine where something is out of tolerance.
 */
#include "run/session.h"
#include "run/arrays.h"

#include "doc/doc.h"
#include "plan/microbatch.h"
#include "step/noise.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The plan of one device in `each` microbatches that take their own statistics. */
static int plan_each(struct ap_arena *arena, int each, struct ap_plan *plan,
                     struct ap_err *err)
{
    const int16_t *choice;

    if (each < 2)
        return 0;
    if (ap_mesh_add_microbatches(&plan->mesh, each, err) ||
        ap_microbatch_choices_each(arena, plan->graph, plan->nests, each, &choice,
                                   &plan->each, err))
        return -1;
    for (int i = 0; i < plan->nests->n; i++)
        plan->choice[i].axis[0] = choice[i];
    plan->microbatch_choice = choice;
    return 0;
}

int verify_program(struct ap_arena *arena, struct ap_graph *g, int each,
                   struct ap_program *prog, struct ap_err *err)
{
    struct ap_nests *nests = AP_NEW(arena, struct ap_nests);
    struct ap_plan *plan = AP_NEW(arena, struct ap_plan);
    struct ap_conversions *conv = AP_NEW(arena, struct ap_conversions);
    struct ap_cost *cost = AP_NEW(arena, struct ap_cost);
    struct ap_cluster cluster;
    static const struct ap_doc none;
    ap_group_plain(arena, g);
    if (ap_nests_build(arena, g, nests, err))
        return -1;
    ap_plan_single(arena, g, nests, plan);
    if (plan_each(arena, each, plan, err) ||
        ap_cluster_get(arena, &none, NULL, 1, &cluster, err) ||
        ap_cost_init(arena, cost, AP_COST_DEFAULT, &cluster, &plan->mesh, err) ||
        ap_program_make(arena, plan, &(struct ap_program_form){.cost = cost}, conv, prog,
                        err))
        return -1;
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

/* ---- types ---- */

static bool is_low(enum ap_dtype dtype)
{
    return ap_dtype_precision(dtype) > 0 && ap_dtype_precision(dtype) < 24;
}

static enum ap_dtype coarser(enum ap_dtype a, enum ap_dtype b)
{
    if (ap_dtype_precision(a) == 0 || ap_dtype_precision(b) == 0)
        return ap_dtype_precision(a) == 0 ? b : a;
    return ap_dtype_precision(a) < ap_dtype_precision(b) ? a : b;
}

static enum ap_dtype coarsest_part(const struct ap_shape *s)
{
    enum ap_dtype t = s->dtype;
    for (int i = 0; s->dtype == AP_TUPLE && i < s->n_parts; i++)
        t = coarser(t, s->parts[i].dtype);
    return t;
}

/* [node]: the coarsest type that an operator on the way from the parameters to it
 * computes in. What is stored in such a type and converted before it is used does not
 * count. */
static enum ap_dtype *find_types(struct ap_arena *arena, const struct ap_graph *g)
{
    enum ap_dtype *type = AP_NEW_N(arena, g->n_nodes + 1, enum ap_dtype);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *v = &g->nodes[i];
        type[i] =
            ap_ops[v->op].class == AP_CLASS_LEAF ? AP_PRED : coarsest_part(&v->shape);
        for (int k = 0; k < v->n_in; k++)
            type[i] = coarser(type[i], type[v->in[k]]);
        if (v->op != AP_OP_WHILE)
            continue;
        const struct ap_comp *body = &g->comps[v->attrs->body];
        for (int k = 0; k < body->n_nodes; k++)
            type[i] = coarser(type[i], coarsest_part(&body->nodes[k].shape));
    }
    return type;
}

/* ---- the tensors of two runs ---- */

/* Disturbed runs: by one unit in the last place and, where these do not explain all, by
 * WIDE of them; sums over ranks round several times. An element of a small tensor that
 * Adam turns round needs some luck to be met. */
enum { N_TWINS = 2, N_WIDE = 6, WIDE = 4 };
/*
 * Of a partitioned run, in units of what a disturbed run changes: 1 to 1.5 for the
 * golden models in bf16 under Adam, data, megatron and ilp, each tensor after 1, 3 and 5
 * steps.
 */
static const double ROUNDING = 4;
/* Of a tensor in f32 and of a loss; of a tensor in bf16 or f16, of its change. */
static const double FULL = 1e-4, LOW = 1e-2;

/* How far a tensor is from b: the norm, and that of the part along b's change. Elements
 * that Adam turns round change the norm; a wrong learning rate changes all along it. */
struct shift {
    double norm, along;
};

/* A parameter that a step updates, or a result that becomes none. */
struct tensor {
    const char *what, *name;
    int number;
    enum ap_role role;
    enum ap_dtype dtype, computed; /* stored in; the coarsest type that computes it */
    int64_t n;
    const void *a, *b, *start; /* partitioned, not; before the first step, or NULL */
    double ref, change;        /* norms: of b; of b - start, or of b */
    double relative;           /* error: of norms */
    double unit; /* in the last place of b's largest element, if stored low */
    struct shift diff, noise, wide_noise; /* of a; the most of disturbed runs */
    enum verify_kind kind;
};

struct verifier {
    const struct settings *set;
    const struct session *s, *whole;
    const struct ap_graph *graph; /* that `whole` runs */
    const enum ap_dtype *type;    /* [node of graph] */
    int n;
    struct tensor *tensor;
    double *loss_noise, *loss_wide; /* [step]: as of tensors */
    int n_twins;                    /* size of the largest set of twins */
    struct comparison *cmp;
    struct ap_err *err;
};

/* Element i of b's change. */
static double change_at(const struct tensor *t, int64_t i)
{
    const double start = t->start ? data_number(t->start, t->dtype, i) : 0;
    const double v = data_number(t->b, t->dtype, i) - start;
    return isfinite(v) ? v : 0;
}

static struct shift shift_of(const struct tensor *t, const void *a)
{
    struct norms s = {0};
    double along = 0;
    add_norms(&s, a, t->b, t->dtype, t->n);
    if (s.bad)
        return (struct shift){INFINITY, INFINITY};
    for (int64_t i = 0; i < t->n && s.diff > 0; i++) {
        const double d = data_number(a, t->dtype, i) - data_number(t->b, t->dtype, i);
        along += isfinite(d) ? d * change_at(t, i) : 0;
    }
    return (struct shift){sqrt(s.diff), t->change > 0 ? fabs(along) / t->change : 0};
}

static void add_tensor(struct verifier *v, const struct tensor *of)
{
    struct tensor *t = &v->tensor[v->n++];
    struct norms one = {0};
    double square = 0;
    *t = *of;
    add_norms(&one, t->a, t->b, t->dtype, t->n);
    t->relative = relative(&one);
    t->ref = sqrt(one.ref);
    for (int64_t i = 0; i < t->n; i++) {
        square += change_at(t, i) * change_at(t, i);
        if (is_low(t->dtype))
            t->unit = fmax(t->unit, fabs(data_number(t->b, t->dtype, i)));
    }
    t->change = sqrt(square);
    t->unit *= ldexp(1, 1 - ap_dtype_precision(t->dtype));
    t->diff = shift_of(t, t->a);
}

static void list_tensors(struct ap_arena *arena, struct verifier *v)
{
    const struct ap_graph *g = &v->s->outline, *whole = v->graph;
    enum ap_dtype *made = AP_NEW_N(arena, g->n_params + 1, enum ap_dtype);
    for (int r = 0; r < whole->n_results; r++)
        if (whole->results[r].alias >= 0)
            made[whole->nodes[whole->results[r].alias].param] =
                v->type[whole->results[r].node];
    v->tensor = AP_NEW_N(arena, g->n_params + g->n_results + 1, struct tensor);
    for (int k = 0; k < g->n_params; k++) {
        const struct ap_node *p = &g->nodes[g->params[k]];
        const struct placement place = exec_placement(p);
        if (v->s->params[k] && v->whole->params[k])
            add_tensor(v, &(struct tensor){.what = "parameter",
                                           .name = p->name,
                                           .number = k,
                                           .role = p->role,
                                           .dtype = p->shape.dtype,
                                           .computed = made[k],
                                           .n = ap_shape_elems(&place.global),
                                           .a = v->s->params[k],
                                           .b = v->whole->params[k],
                                           .start = v->whole->start[k]});
    }
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_node *p = &whole->nodes[whole->results[r].node];
        if (v->s->results[r] && v->whole->results[r])
            add_tensor(v, &(struct tensor){.what = "result",
                                           .name = g->nodes[g->results[r].node].name,
                                           .number = r,
                                           .role = g->results[r].role,
                                           .dtype = p->shape.dtype,
                                           .computed = v->type[whole->results[r].node],
                                           .n = ap_shape_elems(&p->shape),
                                           .a = v->s->results[r],
                                           .b = v->whole->results[r]});
    }
}

/* ---- what is out of tolerance ---- */

/* Bound on a loss, relative to it. */
static double loss_bound(const struct verifier *v)
{
    const struct ap_graph *g = v->graph;
    const int p = ap_dtype_precision(v->type[g->results[v->whole->loss].node]);
    return p > 0 && p < 24 ? fmax(FULL, ldexp(1, -p - 1)) : FULL;
}

static bool loss_is_off(const struct verifier *v, int64_t i, double bound)
{
    const double a = v->s->losses[i], b = v->whole->losses[i];
    return loss_error(a, b) > bound &&
           !(v->n_twins > 0 &&
             fabs(a - b) <=
                 bound * fabs(b) + ROUNDING * fmax(v->loss_noise[i], v->loss_wide[i]));
}

/* Whether the tensor is out of tolerance, once rounding is measured of the kinds that
 * need it, too. */
static bool is_off(const struct verifier *v, struct tensor *t)
{
    const bool low = is_low(t->computed);
    const double allowed = low ? LOW * t->change + t->unit : FULL * t->ref;
    const double norm = ROUNDING * fmax(t->noise.norm, t->wide_noise.norm);
    const double along = ROUNDING * fmax(t->noise.along, t->wide_noise.along);

    t->kind = low ? VERIFY_LOW : VERIFY_FULL;
    if (low ? t->diff.norm <= LOW * t->change : t->relative <= FULL)
        return false;
    if (v->n_twins == 0 || !isfinite(norm) || !(t->diff.norm <= allowed + norm) ||
        !(t->diff.along <= allowed + along))
        return true;
    t->kind = t->noise.norm >= 0.5 * t->change ? VERIFY_DECIDED : VERIFY_ROUNDING;
    return false;
}

static bool any_is_off(struct verifier *v)
{
    bool off = false;
    for (int64_t i = 0; v->s->loss >= 0 && i < v->s->steps; i++)
        off |= loss_is_off(v, i, loss_bound(v));
    for (int k = 0; k < v->n; k++)
        off |= is_off(v, &v->tensor[k]);
    return off;
}

/* What rounding changes: a run with sums that are rounded at random. */
static void measure(struct ap_arena *arena, struct verifier *v, double units)
{
    struct exec_noise noise = {.seed = (uint64_t)++v->n_twins, .units = units};
    struct session twin;
    struct comm self;
    comm_self_open(&self);
    session_run(&twin, arena, v->whole->program, v->set, &self,
                &(struct session_opts){.keep = true, .noise = &noise});
    for (int64_t i = 0; i < v->s->steps; i++) {
        double *most = units == 1 ? &v->loss_noise[i] : &v->loss_wide[i];
        *most = fmax(*most, fabs(twin.losses[i] - v->whole->losses[i]));
    }
    for (int k = 0; k < v->n; k++) {
        struct tensor *t = &v->tensor[k];
        void **other = t->what[0] == 'p' ? twin.params : twin.results;
        const struct shift shift = shift_of(t, other[t->number]);
        struct shift *most = units == 1 ? &t->noise : &t->wide_noise;
        most->norm = fmax(most->norm, shift.norm);
        most->along = fmax(most->along, shift.along);
    }
    session_close(&twin);
}

static int refuse_tensor(const struct verifier *v, const struct tensor *t)
{
    if (t->change == 0 && t->start && isfinite(t->diff.norm))
        return ap_err_set(v->err,
                          "%s %d (%s): changes by %.3g of its norm, and does not "
                          "change in the unpartitioned graph%s",
                          t->what, t->number, t->name, t->relative,
                          t->computed == AP_F16
                              ? " (gradients in f16 may overflow there, so that the step "
                                "is skipped, and not in parts: try another --seed)"
                              : "");
    if (t->kind == VERIFY_FULL || !isfinite(t->diff.norm) || t->change == 0)
        return ap_err_set(v->err, "%s %d (%s): relative error %.3g, tolerance %.3g",
                          t->what, t->number, t->name, t->relative, FULL);
    const double percent = 100 / t->change;
    return ap_err_set(v->err,
                      "%s %d (%s): off by %.3g %% of its change, %.3g %% along it; "
                      "tolerance %g %% in %s, rounding moves it by %.3g %% and %.3g %%",
                      t->what, t->number, t->name, percent * t->diff.norm,
                      percent * t->diff.along, 100 * LOW, ap_dtype_name(t->computed),
                      percent * fmax(t->noise.norm, t->wide_noise.norm),
                      percent * fmax(t->noise.along, t->wide_noise.along));
}

/* Nothing is proved of losses and weights that rounding decides. */
static int check_proof(const struct verifier *v)
{
    int64_t weights = 0, decided = 0;
    for (int64_t i = 0; v->s->loss >= 0 && i < v->s->steps; i++)
        if (v->loss_noise[i] > 10 * loss_bound(v) * fabs(v->whole->losses[i]))
            return ap_err_set(v->err,
                              "rounding alone changes the loss of step %lld, %.9g, by "
                              "%.3g: nothing is verified; run fewer --steps",
                              (long long)i + 1, v->whole->losses[i], v->loss_noise[i]);
    for (int k = 0; k < v->n; k++)
        if (v->tensor[k].role == AP_ROLE_WEIGHT) {
            weights += v->tensor[k].n;
            decided += v->tensor[k].kind == VERIFY_DECIDED ? v->tensor[k].n : 0;
        }
    if (2 * decided > weights)
        return ap_err_set(v->err,
                          "rounding decides %lld of the weights' %lld elements: nothing "
                          "is verified",
                          (long long)decided, (long long)weights);
    return 0;
}

/* By the types that compute and, where they do not suffice, by what rounding changes. */
static int judge(struct ap_arena *arena, struct verifier *v)
{
    v->loss_noise = AP_NEW_N(arena, v->s->steps + 1, double);
    v->loss_wide = AP_NEW_N(arena, v->s->steps + 1, double);
    while (v->n_twins < N_TWINS + N_WIDE && any_is_off(v))
        measure(arena, v, v->n_twins < N_TWINS ? 1 : WIDE);
    for (int64_t i = 0; v->s->loss >= 0 && i < v->s->steps; i++)
        if (loss_is_off(v, i, loss_bound(v)))
            return ap_err_set(v->err, "loss of step %lld: %.9g, unpartitioned %.9g",
                              (long long)i + 1, v->s->losses[i], v->whole->losses[i]);
    for (int k = 0; k < v->n; k++)
        if (is_off(v, &v->tensor[k]))
            return refuse_tensor(v, &v->tensor[k]);
    v->cmp->by_type = true;
    for (int kind = 0; kind < VERIFY_N_KINDS; kind++)
        v->cmp->name[kind] = AP_NEW_N(arena, v->n + 1, const char *);
    v->cmp->low = AP_F32;
    for (int k = 0; k < v->n; k++) {
        const struct tensor *t = &v->tensor[k];
        v->cmp->name[t->kind][v->cmp->n[t->kind]++] = t->name;
        v->cmp->low = coarser(v->cmp->low, t->computed);
    }
    return check_proof(v);
}

/* Every relative error is at most the tolerance. */
static int judge_all(const struct verifier *v, double tolerance)
{
    for (int64_t i = 0; v->s->loss >= 0 && i < v->s->steps; i++)
        if (loss_error(v->s->losses[i], v->whole->losses[i]) > tolerance)
            return ap_err_set(v->err, "loss of step %lld: %.9g, unpartitioned %.9g",
                              (long long)i + 1, v->s->losses[i], v->whole->losses[i]);
    for (int k = 0; k < v->n; k++) {
        const struct tensor *t = &v->tensor[k];
        if (t->relative > tolerance)
            return ap_err_set(v->err, "%s %d (%s): relative error %.3g, tolerance %.3g",
                              t->what, t->number, t->name, t->relative, tolerance);
    }
    return 0;
}

static int verify_sessions(struct ap_arena *arena, struct verifier *v)
{
    struct norms weights = {0}, states = {0};
    struct comparison *cmp = v->cmp;
    *cmp = (struct comparison){.done = true, .loss_error = -1};
    if (check_same(&v->s->outline, v->graph, v->err))
        return -1;
    list_tensors(arena, v);
    if (v->s->loss < 0 && v->n == 0)
        return ap_err_set(v->err, "the program has nothing to compare");
    if (isnan(v->set->tolerance) ? judge(arena, v) : judge_all(v, v->set->tolerance))
        return -1;
    for (int64_t i = 0; v->s->loss >= 0 && i < v->s->steps; i++)
        cmp->loss_error =
            fmax(cmp->loss_error, loss_error(v->s->losses[i], v->whole->losses[i]));
    for (int k = 0; k < v->n; k++) { /* what rounding decides says nothing */
        const struct tensor *t = &v->tensor[k];
        if (t->what[0] == 'p' && t->kind != VERIFY_DECIDED)
            add_norms(t->role == AP_ROLE_STATE ? &states : &weights, t->a, t->b, t->dtype,
                      t->n);
    }
    cmp->params_error = weights.n ? relative(&weights) : -1;
    cmp->states_error = states.n ? relative(&states) : -1;
    return 0;
}

int verify_run(struct ap_arena *arena, const struct ap_doc *doc,
               const struct settings *set, const struct session *s,
               struct comparison *cmp, struct ap_err *err)
{
    struct ap_graph g;
    struct ap_program prog;
    struct ap_pipeline_program one;
    struct session whole;
    struct comm self;
    const int each = s->program->each ? s->program->microbatches : 0;
    if (ap_doc_graph(arena, doc, &g, err) || verify_program(arena, &g, each, &prog, err))
        return -1;
    ap_pipeline_of_program(arena, &prog, &one);
    comm_self_open(&self);
    session_run(&whole, arena, &one, set, &self,
                &(struct session_opts){.keep = true, .keep_start = true});
    struct verifier v = {.set = set,
                         .s = s,
                         .whole = &whole,
                         .graph = &prog.local,
                         .type = find_types(arena, &prog.local),
                         .cmp = cmp,
                         .err = err};
    const int rc = verify_sessions(arena, &v);
    session_close(&whole);
    return rc;
}

/* ---- stored results ---- */

static int within(const char *what, double error, double tolerance, struct ap_err *err)
{
    if (error <= tolerance)
        return 0;
    return ap_err_set(err, "%s: relative error %.3g, tolerance %.3g", what, error,
                      tolerance);
}

static int check_losses(const char *dir, int64_t steps, int64_t n, struct ap_err *err)
{
    if (n == steps)
        return 0;
    return ap_err_set(err, "%s/losses.npy: holds %lld losses, %lld steps were asked for",
                      dir, (long long)n, (long long)steps);
}

int compare_check(struct ap_arena *arena, const char *dir, int64_t steps, int n,
                  const int *number, struct ap_err *err)
{
    struct ap_npy losses;
    if (ap_npy_read(ap_arena_printf(arena, "%s/losses.npy", dir), &losses, NULL, err))
        return -1;
    free(losses.data);
    if (check_losses(dir, steps, losses.elems, err))
        return -1;
    for (int i = 0; i < n; i++) {
        const char *path = ap_arena_printf(arena, "%s/out/%d.npy", dir, number[i]);
        if (access(path, R_OK))
            return ap_err_set(err, "%s: %s", path, strerror(errno));
    }
    return 0;
}

int compare_goldens(struct ap_arena *arena, const struct session *s, const char *dir,
                    double tolerance, struct comparison *cmp, struct ap_err *err)
{
    const struct ap_graph *g = &s->outline;
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
    free(losses.data);
    if (check_losses(dir, s->steps, losses.elems, err))
        return -1;
    for (int k = 0; k < g->n_params; k++) {
        const struct ap_node *v = &g->nodes[g->params[k]];
        const struct placement p = exec_placement(v);
        void *want;
        bool missing;
        struct ap_err why = {{0}};
        if (!s->params[k])
            continue;
        const struct array_of of = {v, k, &p.global};
        if (arrays_read(&files, arena, &of, &want, &missing, &why)) {
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
