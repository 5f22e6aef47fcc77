/*
 * Optimizer updates against their formulas in double precision, and the loss scale: steps
 * with a gradient that is not finite change nothing but the scale.
 */
#include "base/poison.h"
#include "grad_case.h"
#include "step/guard.h"
#include "tap.h"

struct step {
    struct ap_arena arena;
    struct ap_graph g;
    struct ap_program prog;
    struct exec x;
    struct ap_err err;
};

/* loss = sum(w * x), so that the gradient of w is x. Parameters: w, x, states. */
static int open_step(struct step *s, struct ap_grad_params *p)
{
    static struct comm self;
    struct ap_build b;
    struct ap_result *results;
    int64_t n = 2, dim = 0;
    int n_results;

    ap_build_init(&b, &s->arena);
    struct ap_shape v = ap_build_shape(&b, AP_F32, 1, &n);
    int w = ap_build_param(&b, "params['a']['w']", v, AP_ROLE_WEIGHT);
    int x = ap_build_param(&b, "x", v, AP_ROLE_INPUT);
    int y = ap_build_binary(&b, AP_OP_MULTIPLY, w, x);
    p->loss = ap_build_reduce(&b, y, AP_RED_SUM, 1, &dim);
    comm_self_open(&self);
    if (ap_grad_train_step(&b, p, &results, &n_results, &s->err) ||
        ap_build_finish(&b, "t", n_results, results, &s->g, &s->err) ||
        verify_program(&s->arena, &s->g, 0, &s->prog, &s->err) ||
        exec_open(&s->x, &s->arena, &s->prog, &cpu_backend, &self, &s->err))
        return -1;
    for (int k = 0; k < s->g.n_params; k++) /* states start at zero */
        for (int i = 0; i < 2; i++)
            if (i == 0 || s->g.nodes[s->g.params[k]].shape.rank)
                eval_put(s->x.value[s->prog.local.params[k]],
                         s->g.nodes[s->g.params[k]].shape.dtype, i, 0);
    return 0;
}

static void *param(const struct step *s, const char *name)
{
    for (int k = 0; k < s->g.n_params; k++)
        if (strcmp(s->g.nodes[s->g.params[k]].name, name) == 0)
            return s->x.value[s->prog.local.params[k]];
    return NULL;
}

static void run_step(struct step *s, const float *gradient)
{
    memcpy(param(s, "x"), gradient, 2 * sizeof *gradient);
    exec_step(&s->x);
    exec_advance(&s->x);
}

/* Three steps of one weight by the book; muon has adamw for what is no matrix. */
static double by_the_book(const struct ap_grad_params *p, double w, const float (*x)[2])
{
    double m = 0, v = 0, u = 0;
    const bool muon = strcmp(p->optimizer, "muon") == 0;
    const bool decoupled = muon || strcmp(p->optimizer, "adamw") == 0;
    for (int t = 1; t <= 3; t++) {
        double g = x[t - 1][0] + (decoupled ? 0 : p->weight_decay * w);
        if (muon || strncmp(p->optimizer, "adam", 4) == 0) {
            m = p->beta1 * m + (1 - p->beta1) * g;
            v = p->beta2 * v + (1 - p->beta2) * g * g;
            w -= decoupled ? p->lr * p->weight_decay * w : 0;
            w -= p->lr * (m / (1 - pow(p->beta1, t))) /
                 (sqrt(v / (1 - pow(p->beta2, t))) + p->eps);
        } else {
            u = (strcmp(p->optimizer, "sgd") == 0 ? 0 : p->momentum * u) + g;
            w -= p->lr * u;
        }
    }
    return w;
}

static void test_formulas(void)
{
    static const float x[3][2] = {{0.5F, 1}, {-2, 1}, {0.25F, 3}};
    for (int r = 0; ap_optimizers[r].name; r++) {
        struct step s = {0};
        struct ap_grad_params p;
        ap_grad_defaults(ap_optimizers[r].name, &p, &s.err);
        p.lr = 0.1;
        p.weight_decay = 0.2;
        if (open_step(&s, &p)) {
            CHECK(false, "%s: %s", p.optimizer, s.err.msg);
            continue;
        }
        float w[2] = {0.7F, -0.3F};
        memcpy(param(&s, "params['a']['w']"), w, sizeof w);
        for (int t = 0; t < 3; t++)
            run_step(&s, x[t]);
        memcpy(w, param(&s, "params['a']['w']"), sizeof w);
        double want = by_the_book(&p, (double)0.7F, x);
        CHECK(fabs((double)w[0] - want) < 1e-6, "%s with decay: %.8f, want %.8f",
              p.optimizer, (double)w[0], want);
        exec_close(&s.x);
        ap_arena_free(&s.arena);
    }
}

static void test_scale(void)
{
    static const float good[2] = {1, 2}, bad[2] = {INFINITY, 2};
    struct step s = {0};
    struct ap_grad_params p;
    ap_grad_defaults("adam", &p, &s.err);
    p.loss_scale = 1024;
    if (open_step(&s, &p)) {
        CHECK(false, "%s", s.err.msg);
        return;
    }
    const char *const names[] = {"params['a']['w']", "opt_state/m/a/w",
                                 "opt_state/v/a/w"};
    float before[3][2], *scale;
    memset(param(&s, names[0]), 0, 8);
    run_step(&s, good);
    scale = param(&s, "opt_state/scale");
    CHECK(*scale == 1024, "the first scale: %g", (double)*scale);
    CHECK(fabs((double)*(float *)param(&s, names[0]) + 1e-3) < 1e-8,
          "the gradient is divided by the scale");
    for (int k = 0; k < 3; k++)
        memcpy(before[k], param(&s, names[k]), 8);
    run_step(&s, bad);
    bool same = true;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 2; i++)
            same &= before[k][i] == ((const float *)param(&s, names[k]))[i];
    scale = param(&s, "opt_state/scale");
    const int32_t *steps = param(&s, "opt_state/step");
    const int32_t *n = param(&s, "opt_state/good_steps");
    CHECK(same && *steps == 1, "a bad step changes neither weight, states nor counter");
    CHECK(*scale == 512 && *n == 0, "and halves the scale: %g", (double)*scale);
    for (int k = 0; k < 1999; k++)
        run_step(&s, good);
    scale = param(&s, "opt_state/scale");
    CHECK(*scale == 512, "1999 good steps: %g", (double)*scale);
    run_step(&s, good);
    scale = param(&s, "opt_state/scale");
    CHECK(*scale == 1024, "2000 good steps: %g", (double)*scale);
    exec_close(&s.x);
    ap_arena_free(&s.arena);
}

/* With AddressSanitizer, a call sees its operands and results, and no other buffer. */
static void test_guard(void)
{
    struct ap_grad_params p;
    struct step s = {0};
    int n_hidden = 0, n_own = 0;

    ap_grad_defaults("adam", &p, &s.err);
    CHECK(open_step(&s, &p) == 0, "adam: %s", s.err.msg);
    const struct exec *x = &s.x;
    for (int i = 0; i < x->n_calls; i++) {
        guard_begin(x, &x->calls[i]);
        for (int k = 0; k < x->calls[i].n_access; k++)
            n_own += ap_is_poisoned(x->calls[i].access[k].p);
        for (int64_t at = 0; at < exec_memory_bytes(x); at += 64)
            n_hidden += ap_is_poisoned(x->memory + at);
        guard_end(x);
    }
    CHECK(n_own == 0 && (n_hidden > 0) == AP_POISONS,
          "%d places are hidden from %d calls", n_hidden, x->n_calls);
    for (int64_t at = 0; at < exec_memory_bytes(x); at += 64)
        n_own += ap_is_poisoned(x->memory + at);
    CHECK(n_own == 0, "and none when they are through");
    exec_close(&s.x);
    ap_arena_free(&s.arena);
}

int main(void)
{
    test_guard();
    test_formulas();
    test_scale();
    return tap_done();
}
