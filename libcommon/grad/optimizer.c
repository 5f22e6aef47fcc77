/*
 * Train steps: a forward graph with its gradients and an optimizer's update. With
 * gradient g, weight w and decay d, as PyTorch and optax define them:
 *
 *   sgd       g += d w; w -= lr g
 *   momentum  g += d w; u = momentum u + g; w -= lr u
 *   adam      g += d w; t += 1; m = beta1 m + (1 - beta1) g;
 *             v = beta2 v + (1 - beta2) g^2;
 *             w -= lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
 *   adamw     as adam without the first term, and w -= lr d w
 *   muon      of a matrix: m = momentum m + (1 - momentum) g;
 *             x = momentum m + (1 - momentum) g;
 *             w -= lr (0.2 sqrt(max(rows, columns)) O(x) + d w), where O makes all
 *             singular values nearly 1; adamw of all other weights
 *
 * O(x) for x / |x| is five Newton-Schulz steps x <- A x + (B x x' + C (x x')^2) x, on the
 * shorter side of x, in bf16 where the model's contractions are of 16 bits, as PyTorch's
 * Muon with adjust_lr_fn="match_rms_adamw" (K. Jordan's Muon, 2024; Liu et al., "Muon is
 * Scalable for LLM Training", 2025). Matrices are weights of two dimensions, and those of
 * three that a product reads as a batch (experts), but for tables that are gathered from
 * and for weights with no other product between them and the loss (heads).
 *
 * With a loss scale S the gradients are those of S loss, divided by S; where their sum is
 * not finite every weight and state keeps its value.
 */
#include "grad/grad_impl.h"

#include <math.h>
#include <string.h>

#define GOOD_STEPS 2000 /* before the scale doubles */
#define SCALE_MAX  16777216.0

enum { SGD, MOMENTUM, ADAM, ADAMW, MUON };
const struct ap_optimizer ap_optimizers[] = {
    [SGD] = {"sgd", "plain gradient descent, no state"},
    [MOMENTUM] = {"momentum", "heavy ball, as PyTorch's SGD: one state per weight"},
    [ADAM] = {"adam", "Adam with bias correction: two states per weight"},
    [ADAMW] = {"adamw", "Adam with decoupled weight decay"},
    [MUON] = {"muon", "Muon of the layers' matrices: one state; AdamW of other weights"},
    {NULL, NULL},
};

struct train {
    struct ap_build *b;
    const struct ap_grad_params *p;
    int row; /* of ap_optimizers */
    int n;   /* weights that are trained */
    int *weight, *grad;
    bool *matrix;              /* per weight: Muon updates it */
    int *param[3], *result[3]; /* per weight: itself and up to two states; -1: none */
    int *scale_param[3], *scale_result[3]; /* of states in 8 bits; -1: none */
    int step, new_step;                    /* -1: none, like all below */
    int bias[2];                           /* 1 - beta^t, f32 scalars */
    int scale, new_scale, good, new_good;
    int scale_now;      /* what the loss is multiplied with */
    int finite;         /* whether this step counts */
    enum ap_dtype wide; /* of the weight and its states: its update is computed in it */
};

static int find(const char *name)
{
    for (int r = 0; ap_optimizers[r].name; r++)
        if (name && strcmp(ap_optimizers[r].name, name) == 0)
            return r;
    return -1;
}

int ap_grad_defaults(const char *optimizer, struct ap_grad_params *p, struct ap_err *err)
{
    int row = find(optimizer);

    if (row < 0)
        return ap_err_set(err,
                          "optimizer '%s': expected sgd, momentum, adam, adamw or muon",
                          optimizer ? optimizer : "");
    *p = (struct ap_grad_params){.loss = -1,
                                 .optimizer = ap_optimizers[row].name,
                                 .lr = row < ADAM ? 1e-2 : 1e-3,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .eps = 1e-8,
                                 .momentum = row == MUON ? 0.95 : 0.9,
                                 .weight_decay = row >= ADAMW ? 0.01 : 0,
                                 .compute = AP_F32};
    return 0;
}

bool ap_grad_uses(const char *optimizer, const char *param)
{
    int row = find(optimizer);

    if (strcmp(param, "momentum") == 0)
        return row == MOMENTUM || row == MUON;
    if (strcmp(param, "beta1") == 0 || strcmp(param, "beta2") == 0 ||
        strcmp(param, "eps") == 0)
        return row >= ADAM;
    return true;
}

/* ---- names ---- */

/* params['a']['b'] and params/a/b are a/b, other names stay. */
static const char *path_of(struct ap_build *b, const char *name)
{
    char *out = ap_arena_strdup(b->arena, name);
    size_t n = 0;

    if (!strstr(name, "['"))
        return strncmp(name, "params/", 7) == 0 ? name + 7 : name;
    for (const char *s = strstr(name, "['"); *s; s++) {
        if (strncmp(s, "['", 2) == 0 || strncmp(s, "']", 2) == 0) {
            if (s[0] == '[' && n > 0)
                out[n++] = '/';
            s++;
        } else {
            out[n++] = *s;
        }
    }
    out[n] = '\0';
    return out;
}

static int state(struct train *t, const char *kind, const char *path,
                 struct ap_shape shape)
{
    struct ap_build *b = t->b;
    const char *name = path ? ap_arena_printf(b->arena, "opt_state/%s/%s", kind, path)
                            : ap_arena_printf(b->arena, "opt_state/%s", kind);
    const char *scope = b->scope;
    b->scope = name;
    int id = ap_build_param(b, name, shape, AP_ROLE_STATE);
    b->scope = scope;
    return id;
}

/* ---- the formulas ---- */

#define BINARY(op, x, y)   ap_build_binary(b, AP_OP_##op, (x), (y))
#define UNARY(op, x)       ap_build_unary(b, AP_OP_##op, (x))
#define WITH(op, x, value) ap_build_with(b, AP_OP_##op, (x), (value))

static int spread(struct ap_build *b, int scalar, int like)
{
    struct ap_shape s = *ap_build_shape_of(b, like);
    scalar = ap_build_convert(b, scalar, s.dtype);
    return s.rank ? ap_build_broadcast(b, scalar, s.rank, s.dims, NULL) : scalar;
}

/* decay old + (1 - decay) x */
static int average(struct ap_build *b, int old, int x, double decay)
{
    return BINARY(ADD, WITH(MULTIPLY, old, decay), WITH(MULTIPLY, x, 1 - decay));
}

/* Weight k, or its state s, as the update reads it. */
static int read_wide(const struct train *t, int s, int k)
{
    struct ap_build *b = t->b;
    const int value = ap_build_convert(b, t->param[s][k], t->wide);
    const int of = t->scale_param[s][k];

    return of < 0 ? value : BINARY(MULTIPLY, value, spread(b, of, value));
}

/* The new state s of weight k in 8 bits: over a scale that makes its largest number the
 * type's. */
static void scale_down(struct train *t, int s, int k)
{
    static const double largest = 448, least = 1e-30;
    struct ap_build *b = t->b;
    const int value = t->result[s][k], rank = ap_build_shape_of(b, value)->rank;
    int64_t all[AP_MAX_RANK];

    for (int d = 0; d < rank; d++)
        all[d] = d;
    int most = UNARY(ABS, value);
    if (rank > 0)
        most = ap_build_reduce(b, most, AP_RED_MAX, rank, all);
    int scale = WITH(MAXIMUM, WITH(MULTIPLY, most, 1 / largest), least);
    t->result[s][k] = BINARY(DIVIDE, value, spread(b, scale, value));
    t->scale_result[s][k] = ap_build_convert(b, scale, AP_F32);
}

static void adam(struct train *t, int k)
{
    struct ap_build *b = t->b;
    const struct ap_grad_params *p = t->p;
    int w = read_wide(t, 0, k), g = t->grad[k];

    int m = t->result[1][k] = average(b, read_wide(t, 1, k), g, p->beta1);
    int v = t->result[2][k] =
        average(b, read_wide(t, 2, k), BINARY(MULTIPLY, g, g), p->beta2);
    int mean = BINARY(DIVIDE, m, spread(b, t->bias[0], m));
    int size = UNARY(SQRT, BINARY(DIVIDE, v, spread(b, t->bias[1], v)));
    int move = BINARY(DIVIDE, mean, WITH(ADD, size, p->eps));
    if (t->row >= ADAMW && p->weight_decay != 0)
        move = BINARY(ADD, move, WITH(MULTIPLY, w, p->weight_decay));
    t->result[0][k] = BINARY(SUBTRACT, w, WITH(MULTIPLY, move, p->lr));
}

/* Products of matrices x and y, one for each index of the dimensions before the last two;
 * the sum is over dimension x_dim and y_dim of these two. */
static int product(struct ap_build *b, int x, int y, int x_dim, int y_dim)
{
    const int n = ap_build_shape_of(b, x)->rank - 2;
    const int64_t batch = 0, of_x = n + x_dim, of_y = n + y_dim;
    return ap_build_dot(b, x, y,
                        &(struct ap_dot_dims){n, &batch, &batch, 1, &of_x, &of_y});
}

/* x over its norm, then Newton-Schulz steps. */
static int orthogonal(struct ap_build *b, int x, enum ap_dtype type)
{
    static const double A = 3.4445, B = -4.7750, C = 2.0315, least = 1e-7;
    const struct ap_shape s = *ap_build_shape_of(b, x);
    const int64_t first = 0, last[2] = {s.rank - 2, s.rank - 1};
    const bool tall = s.dims[s.rank - 2] > s.dims[s.rank - 1];

    int norm = ap_build_reduce(b, BINARY(MULTIPLY, x, x), AP_RED_SUM, 2, last);
    norm = WITH(MAXIMUM, UNARY(SQRT, norm), least);
    x = BINARY(DIVIDE, x, ap_build_broadcast(b, norm, s.rank, s.dims, &first));
    x = ap_build_convert(b, x, type);
    for (int step = 0; step < 5; step++) {
        int gram = product(b, x, x, !tall, !tall);
        int square = WITH(MULTIPLY, product(b, gram, gram, 1, 0), C);
        int sum = BINARY(ADD, WITH(MULTIPLY, gram, B), square);
        int move = tall ? product(b, x, sum, 1, 0) : product(b, sum, x, 1, 0);
        x = BINARY(ADD, WITH(MULTIPLY, x, A), move);
    }
    return ap_build_convert(b, x, s.dtype);
}

static void muon(struct train *t, int k)
{
    struct ap_build *b = t->b;
    const struct ap_grad_params *p = t->p;
    const struct ap_shape s = *ap_build_shape_of(b, t->weight[k]);
    const int64_t rows = s.dims[s.rank - 2], columns = s.dims[s.rank - 1];
    const bool low = p->compute == AP_BF16 || p->compute == AP_F16;
    int w = read_wide(t, 0, k), g = t->grad[k];

    int m = t->result[1][k] = average(b, read_wide(t, 1, k), g, p->momentum);
    int move = average(b, m, g, p->momentum);
    move = orthogonal(b, move, low ? AP_BF16 : t->wide);
    move = WITH(MULTIPLY, move, 0.2 * sqrt((double)(rows > columns ? rows : columns)));
    if (p->weight_decay != 0)
        move = BINARY(ADD, move, WITH(MULTIPLY, w, p->weight_decay));
    t->result[0][k] = BINARY(SUBTRACT, w, WITH(MULTIPLY, move, p->lr));
}

static void descent(struct train *t, int k)
{
    struct ap_build *b = t->b;
    int move = t->grad[k];

    if (t->row == MOMENTUM)
        move = t->result[1][k] =
            BINARY(ADD, WITH(MULTIPLY, read_wide(t, 1, k), t->p->momentum), move);
    t->result[0][k] =
        BINARY(SUBTRACT, read_wide(t, 0, k), WITH(MULTIPLY, move, t->p->lr));
}

/* The new value, or the old one after a step that does not count. */
static void keep_unless_finite(struct train *t, int *value, int old)
{
    if (t->finite >= 0)
        *value = ap_build_select(t->b, t->finite, *value, old);
}

/* The cast of a gradient to f32 belongs to the update, so that sums are of the cast's
 * operand. A weight that is read as two casts has a sum in f32, which stays. */
static void low_gradient(struct train *t, int k)
{
    struct ap_node *node = &t->b->nodes[t->grad[k]];

    if (!t->p->low_gradients || node->op != AP_OP_CONVERT)
        return;
    node->phase = AP_UPDATE;
    node->scope = t->b->scope;
}

static enum ap_dtype type_of(const struct train *t, int node)
{
    return t->b->nodes[node].shape.dtype;
}

static void update(struct train *t, int k)
{
    struct ap_build *b = t->b;
    int w = t->weight[k];

    b->scope =
        ap_arena_printf(b->arena, "%s/%s", t->p->optimizer, path_of(b, b->nodes[w].name));
    low_gradient(t, k);
    t->wide = type_of(t, w);
    for (int s = 0; s < 2; s++)
        if (ap_dtype_precision(t->p->moments[s]) > ap_dtype_precision(t->wide))
            t->wide = t->p->moments[s];
    t->grad[k] = ap_build_convert(b, t->grad[k], t->wide);
    if (t->p->weight_decay != 0 && t->row < ADAMW)
        t->grad[k] = BINARY(ADD, t->grad[k],
                            WITH(MULTIPLY, read_wide(t, 0, k), t->p->weight_decay));
    if (t->matrix[k])
        muon(t, k);
    else if (t->row >= ADAM)
        adam(t, k);
    else
        descent(t, k);
    for (int s = 0; s < 3; s++)
        if (t->param[s][k] >= 0) {
            int *result = &t->result[s][k], old = t->param[s][k];
            if (t->scale_param[s][k] >= 0) {
                scale_down(t, s, k);
                keep_unless_finite(t, &t->scale_result[s][k], t->scale_param[s][k]);
            }
            *result = ap_build_convert(b, *result, type_of(t, old));
            keep_unless_finite(t, result, old);
        }
}

/* ---- step counter and loss scale ---- */

static void count_step(struct train *t)
{
    struct ap_build *b = t->b;
    const double beta[2] = {t->p->beta1, t->p->beta2};

    if (t->step < 0)
        return;
    b->scope = t->p->optimizer;
    t->new_step = WITH(ADD, t->step, 1);
    int count = ap_build_convert(b, t->new_step, AP_F32);
    for (int k = 0; k < 2; k++) {
        int base = ap_build_scalar(b, AP_F32, beta[k]);
        int one = ap_build_scalar(b, AP_F32, 1);
        t->bias[k] = BINARY(SUBTRACT, one, BINARY(POWER, base, count));
    }
    keep_unless_finite(t, &t->new_step, t->step);
}

/* The loss times the scale; a state of zero is a scale that was never set. */
static int scaled_loss(struct train *t)
{
    struct ap_build *b = t->b;

    if (t->scale < 0)
        return t->p->loss;
    b->scope = "loss_scale";
    b->phase = AP_BACKWARD;
    int zero = ap_build_scalar(b, AP_F32, 0);
    int first = ap_build_scalar(b, AP_F32, t->p->loss_scale);
    int unset = ap_build_compare(b, AP_EQ, t->scale, zero);
    t->scale_now = ap_build_select(b, unset, first, t->scale);
    return BINARY(MULTIPLY, t->p->loss, spread(b, t->scale_now, t->p->loss));
}

static void unscale(struct train *t)
{
    struct ap_build *b = t->b;
    int sum = -1;

    if (t->scale < 0)
        return;
    b->scope = "loss_scale";
    for (int k = 0; k < t->n; k++) {
        int g = ap_build_convert(b, t->grad[k], AP_F32), rank;
        int64_t dims[AP_MAX_RANK];
        rank = ap_build_shape_of(b, g)->rank;
        for (int d = 0; d < rank; d++)
            dims[d] = d;
        if (rank)
            g = ap_build_reduce(b, g, AP_RED_SUM, rank, dims);
        sum = sum < 0 ? g : BINARY(ADD, sum, g);
        t->grad[k] = BINARY(DIVIDE, t->grad[k], spread(b, t->scale_now, t->grad[k]));
    }
    t->finite = UNARY(IS_FINITE, sum);
    int more = WITH(ADD, t->good, 1), none = ap_build_scalar(b, AP_S32, 0);
    int limit = ap_build_scalar(b, AP_S32, GOOD_STEPS);
    int full = ap_build_compare(b, AP_GE, more, limit);
    int twice = WITH(MINIMUM, WITH(MULTIPLY, t->scale_now, 2), SCALE_MAX);
    int half = WITH(MAXIMUM, WITH(MULTIPLY, t->scale_now, 0.5), 1);
    int grown = ap_build_select(b, full, twice, t->scale_now);
    t->new_scale = ap_build_select(b, t->finite, grown, half);
    more = ap_build_select(b, full, none, more);
    t->new_good = ap_build_select(b, t->finite, more, none);
}

/* ---- the step ---- */

static int check_params(const struct ap_build *b, const struct ap_grad_params *p,
                        struct ap_err *err)
{
    if (find(p->optimizer) < 0)
        return ap_err_set(err,
                          "optimizer '%s': expected sgd, momentum, adam, adamw or muon",
                          p->optimizer ? p->optimizer : "");
    if (p->loss < 0 || p->loss >= b->n)
        return ap_err_set(err, "the graph has no node %d to be the loss", p->loss);
    if (!isfinite(p->lr) || !isfinite(p->eps) || !isfinite(p->momentum) ||
        !isfinite(p->weight_decay) || !(p->beta1 >= 0 && p->beta1 < 1) ||
        !(p->beta2 >= 0 && p->beta2 < 1))
        return ap_err_set(err, "the optimizer's parameters must be finite, and 0 <= "
                               "beta1, beta2 < 1");
    if (!(p->loss_scale >= 0 && p->loss_scale <= SCALE_MAX))
        return ap_err_set(err, "a loss scale of %g is not between 0 and %g",
                          p->loss_scale, SCALE_MAX);
    if (p->loss_scale > 0 && p->n_given)
        return ap_err_set(err, "a loss scale changes how gradients are computed, and the "
                               "graph has its gradients already");
    return 0;
}

static bool is_frozen(const struct train *t, const char *name)
{
    const struct ap_grad_params *p = t->p;
    return p->frozen &&
           (p->frozen(name, p->ctx) || p->frozen(path_of(t->b, name), p->ctx));
}

static void take_given(struct train *t)
{
    const struct ap_grad_params *p = t->p;
    for (int k = 0; k < p->n_given; k++)
        if (!is_frozen(t, t->b->nodes[p->given_weight[k]].name)) {
            t->weight[t->n] = p->given_weight[k];
            t->grad[t->n++] = p->given_grad[k];
        }
}

/* Weights, and their gradients; those without one are left out. */
static int differentiate(struct train *t, int loss, struct ap_err *err)
{
    struct ap_build *b = t->b;
    int n = 0, kept = 0;

    for (int i = 0; i < b->n; i++) {
        const struct ap_node *w = &b->nodes[i];
        if (w->op == AP_OP_PARAMETER && w->role == AP_ROLE_WEIGHT &&
            ap_dtype_is_float(w->shape.dtype) && !is_frozen(t, w->name))
            t->weight[n++] = i;
    }
    if (ap_grad(b, loss, n, t->weight, t->grad, err))
        return -1;
    for (int k = 0; k < n; k++)
        if (t->grad[k] >= 0) {
            t->weight[kept] = t->weight[k];
            t->grad[kept++] = t->grad[k];
        }
    t->n = kept;
    return 0;
}

/* Gradients of weights that are not frozen; there is one at least. */
static int find_gradients(struct train *t, struct ap_err *err)
{
    struct ap_build *b = t->b;

    t->weight = AP_NEW_N(b->arena, b->n_params + 1, int);
    t->grad = AP_NEW_N(b->arena, b->n_params + 1, int);
    if (t->p->n_given)
        take_given(t);
    else if (differentiate(t, scaled_loss(t), err))
        return -1;
    if (t->n == 0)
        return ap_err_set(err, "no weight that is not frozen reaches the loss (%s)",
                          b->nodes[t->p->loss].name);
    return 0;
}

/* [node]: the weight that it is, maybe transposed or in another type; -1:
 * it is none. */
static const int *find_weights(const struct train *t)
{
    const struct ap_node *nodes = t->b->nodes;
    int *weight = AP_NEW_N(t->b->arena, t->b->n, int);

    for (int i = 0; i < t->b->n; i++)
        weight[i] = -1;
    for (int k = 0; k < t->n; k++)
        weight[t->weight[k]] = k;
    for (int i = 0; i < t->b->n; i++)
        if (nodes[i].op == AP_OP_CONVERT || nodes[i].op == AP_OP_TRANSPOSE)
            weight[i] = weight[nodes[i].in[0]];
    return weight;
}

/* Whether the first dimension of weight k is a batch of the product that reads it as
 * operand o. */
static bool is_batch(const struct train *t, int k, const struct ap_node *product, int o)
{
    const struct ap_attrs *attrs = product->attrs;
    const struct ap_ints *batch = o ? &attrs->rhs_batch_dims : &attrs->lhs_batch_dims;

    return product->op == AP_OP_DOT && batch->n == 1 &&
           ap_build_shape_of(t->b, product->in[o])->dims[batch->v[0]] ==
               ap_build_shape_of(t->b, t->weight[k])->dims[0];
}

/* The weights that Muon updates. */
static void find_matrices(struct train *t)
{
    const int n = t->p->loss + 1;
    enum { APART, BEHIND, BEFORE }; /* of the loss: no part; behind or before a product */
    char *place = AP_NEW_N(t->b->arena, n, char);
    bool *other = AP_NEW_N(t->b->arena, t->n + 1, bool);
    const int *weight = find_weights(t);

    t->matrix = AP_NEW_N(t->b->arena, t->n + 1, bool);
    place[n - 1] = BEHIND;
    for (int i = n - 1; t->row == MUON && i >= 0; i--) {
        const struct ap_node *node = &t->b->nodes[i];
        const bool heavy = node->op == AP_OP_DOT || node->op == AP_OP_CONVOLUTION;
        for (int o = 0; place[i] && o < node->n_in; o++) {
            const int in = node->in[o], after = heavy ? BEFORE : place[i];
            const int k = heavy || node->op == AP_OP_GATHER ? weight[in] : -1;
            place[in] = after > place[in] ? after : place[in];
            if (k < 0)
                continue;
            const int rank = ap_build_shape_of(t->b, t->weight[k])->rank;
            other[k] |= !heavy || place[i] == BEHIND;
            t->matrix[k] |= rank == 2 || (rank == 3 && is_batch(t, k, node, o));
        }
    }
    for (int k = 0; k < t->n; k++)
        t->matrix[k] &= !other[k];
}

static void add_states(struct train *t)
{
    struct ap_build *b = t->b;
    static const char *const kinds[][3] = {[MOMENTUM] = {NULL, "momentum", NULL},
                                           [ADAM] = {NULL, "m", "v"},
                                           [ADAMW] = {NULL, "m", "v"},
                                           [MUON] = {NULL, "m", "v"}};

    for (int s = 0; s < 3; s++) {
        t->param[s] = AP_NEW_N(b->arena, t->n + 1, int);
        t->result[s] = AP_NEW_N(b->arena, t->n + 1, int);
        t->scale_param[s] = AP_NEW_N(b->arena, t->n + 1, int);
        t->scale_result[s] = AP_NEW_N(b->arena, t->n + 1, int);
        for (int k = 0; k < t->n; k++) {
            const struct ap_node w = b->nodes[t->weight[k]];
            const char *kind =
                t->row == SGD ? NULL : kinds[t->matrix[k] ? MOMENTUM : t->row][s];
            struct ap_shape shape = w.shape;
            if (s > 0 && t->p->moments[s - 1])
                shape.dtype = t->p->moments[s - 1];
            t->param[s][k] = s == 0 ? t->weight[k]
                             : kind ? state(t, kind, path_of(b, w.name), shape)
                                    : -1;
            t->scale_param[s][k] = t->scale_result[s][k] = -1;
            if (kind && shape.dtype == AP_F8E4M3FN)
                t->scale_param[s][k] =
                    state(t, ap_arena_printf(b->arena, "%s_scale", kind),
                          path_of(b, w.name), ap_build_shape(b, AP_F32, 0, NULL));
        }
    }
    if (t->row >= ADAM)
        t->step = state(t, "step", NULL, ap_build_shape(b, AP_S32, 0, NULL));
}

static void add_result(struct ap_result *out, int *n, int node, enum ap_role role,
                       int alias)
{
    if (node >= 0)
        out[(*n)++] = (struct ap_result){node, role, alias, NULL};
}

static void collect(const struct train *t, struct ap_result **results, int *n_results)
{
    struct ap_result *out = AP_NEW_N(t->b->arena, 5 * t->n + 4, struct ap_result);
    int n = 0;

    add_result(out, &n, t->p->loss, AP_ROLE_LOSS, -1);
    for (int s = 0; s < 3; s++)
        for (int k = 0; k < t->n; k++) {
            if (t->param[s][k] >= 0)
                add_result(out, &n, t->result[s][k], s ? AP_ROLE_STATE : AP_ROLE_WEIGHT,
                           t->param[s][k]);
            add_result(out, &n, t->scale_result[s][k], AP_ROLE_STATE,
                       t->scale_param[s][k]);
        }
    add_result(out, &n, t->new_step, AP_ROLE_STATE, t->step);
    add_result(out, &n, t->new_scale, AP_ROLE_STATE, t->scale);
    add_result(out, &n, t->new_good, AP_ROLE_STATE, t->good);
    *results = out;
    *n_results = n;
}

int ap_grad_train_step(struct ap_build *b, const struct ap_grad_params *given,
                       struct ap_result **results, int *n_results, struct ap_err *err)
{
    struct ap_grad_params p = *given;
    struct train t = {.b = b,
                      .p = &p,
                      .step = -1,
                      .new_step = -1,
                      .scale = -1,
                      .good = -1,
                      .new_scale = -1,
                      .new_good = -1,
                      .finite = -1};
    const char *scope = b->scope;
    enum ap_phase phase = b->phase;

    if (check_params(b, &p, err) || grad_lower(b, &p, err))
        return -1;
    t.row = find(p.optimizer);
    b->phase = AP_UPDATE;
    if (p.loss_scale > 0) {
        t.scale = state(&t, "scale", NULL, ap_build_shape(b, AP_F32, 0, NULL));
        t.good = state(&t, "good_steps", NULL, ap_build_shape(b, AP_S32, 0, NULL));
    }
    int rc = find_gradients(&t, err);
    if (rc == 0) {
        b->phase = AP_UPDATE;
        find_matrices(&t);
        add_states(&t);
        unscale(&t);
        count_step(&t);
        for (int k = 0; k < t.n; k++)
            update(&t, k);
        collect(&t, results, n_results);
    }
    b->scope = scope;
    b->phase = phase;
    return rc;
}
