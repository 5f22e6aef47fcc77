/* The nodes that all models are made of. */
#include "model.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

int64_t model_get(const struct model *m, enum model_size s, int64_t derived)
{
    return m->size[s] > 0 ? m->size[s] : derived;
}

bool model_flag(const struct model *m, enum model_size s)
{
    return m->size[s] > 0;
}

int model_check_divides(struct model *m, enum model_size a, enum model_size b)
{
    if (m->size[a] % m->size[b] == 0)
        return 0;
    return ap_err_set(m->err, "--%s %lld is not a multiple of --%s %lld",
                      model_sizes[a].name, (long long)m->size[a], model_sizes[b].name,
                      (long long)m->size[b]);
}

int model_check_positions(struct model *m)
{
    int64_t seq = m->size[MODEL_SEQ];
    if (model_get(m, MODEL_POSITIONS, seq) >= seq)
        return 0;
    return ap_err_set(m->err, "--seq %lld is more than %lld positions", (long long)seq,
                      (long long)m->size[MODEL_POSITIONS]);
}

/* ---- names ---- */

static const char *print_path(struct model *m, const char *fmt, va_list ap)
{
    char text[512];
    int len = vsnprintf(text, sizeof text, fmt, ap);
    assert(len >= 0 && (size_t)len < sizeof text);
    return ap_arena_strndup(m->arena, text, (size_t)len);
}

const char *model_path(struct model *m, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *path = print_path(m, fmt, ap);
    va_end(ap);
    return path;
}

void model_scope(struct model *m, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    m->b.scope = print_path(m, fmt, ap);
    va_end(ap);
}

void model_share(struct model *m, const char *from, const char *to)
{
    m->shared_from = from;
    m->shared_to = to;
}

/* ---- leaves ---- */

/* Where the weight of this name is, -1: nowhere. */
static int find_weight(const struct model *m, const char *name, uint64_t hash)
{
    struct ap_index_walk walk;
    int i = ap_index_first(&m->by_name, hash, &walk);

    while (i >= 0 && strcmp(m->weights[i].name, name) != 0)
        i = ap_index_next(&m->by_name, &walk);
    return i;
}

int model_weight(struct model *m, const char *path, const char *leaf, int rank,
                 const int64_t *dims)
{
    const char *prefix = "";
    size_t skip = m->shared_from ? strlen(m->shared_from) : 0;
    if (skip && strncmp(path, m->shared_from, skip) == 0)
        prefix = m->shared_to;
    else
        skip = 0;
    const char *name = ap_arena_printf(m->arena, "%s%s%s%s", prefix, path + skip,
                                       leaf ? "/" : "", leaf ? leaf : "");
    uint64_t hash = ap_hash(name, strlen(name), 0);
    int known = find_weight(m, name, hash);
    if (known >= 0)
        return m->weights[known].node;
    const char *scope = m->b.scope;
    m->b.scope = name;
    int node = ap_build_param(&m->b, name, ap_build_shape(&m->b, AP_F32, rank, dims),
                              AP_ROLE_WEIGHT);
    m->b.scope = scope;
    AP_ROOM_IN(m->arena, m->weights, m->n_weights, m->cap_weights);
    ap_index_put(&m->by_name, hash, m->n_weights);
    m->weights[m->n_weights++] = (struct model_weight){name, node};
    return node;
}

int model_input(struct model *m, const char *name, enum ap_dtype dtype, int rank,
                const int64_t *dims)
{
    m->b.scope = name;
    return ap_build_param(&m->b, name, ap_build_shape(&m->b, dtype, rank, dims),
                          AP_ROLE_INPUT);
}

int model_image(struct model *m, int64_t features)
{
    int64_t side = m->size[MODEL_IMAGE];
    int64_t dims[4] = {m->size[MODEL_BATCH], side, side, features};
    return model_input(m, "image", AP_F32, 4, dims);
}

int model_label(struct model *m)
{
    return model_input(m, "label", AP_S32, 1, &m->size[MODEL_BATCH]);
}

/* ---- arithmetic ---- */

int64_t model_dim(const struct model *m, int x, int d)
{
    const struct ap_shape *s = ap_build_shape_of(&m->b, x);
    return s->dims[d < 0 ? s->rank + d : d];
}

int model_binary(struct model *m, enum ap_op op, int x, int y)
{
    return ap_build_binary(&m->b, op, x, y);
}

int model_add(struct model *m, int x, int y)
{
    return ap_build_binary(&m->b, AP_OP_ADD, x, y);
}

int model_mul(struct model *m, int x, int y)
{
    return ap_build_binary(&m->b, AP_OP_MULTIPLY, x, y);
}

int model_along(struct model *m, int v, int x, int d)
{
    struct ap_shape s = *ap_build_shape_of(&m->b, x);
    int64_t map = d < 0 ? s.rank + d : d;
    return ap_build_broadcast(&m->b, v, s.rank, s.dims, &map);
}

int model_over(struct model *m, int y, int x, int d)
{
    struct ap_shape s = *ap_build_shape_of(&m->b, x);
    int64_t map[AP_MAX_RANK];
    int n = 0;

    d = d < 0 ? s.rank + d : d;
    for (int i = 0; i < s.rank; i++)
        if (i != d)
            map[n++] = i;
    return ap_build_broadcast(&m->b, y, s.rank, s.dims, map);
}

int model_sum(struct model *m, int x, int d)
{
    int64_t dim = d < 0 ? ap_build_shape_of(&m->b, x)->rank + d : d;
    return ap_build_reduce(&m->b, x, AP_RED_SUM, 1, &dim);
}

int model_mean(struct model *m, int x, int n, const int64_t *dims)
{
    double count = 1;
    for (int i = 0; i < n; i++)
        count *= (double)ap_build_shape_of(&m->b, x)->dims[dims[i]];
    int sum = ap_build_reduce(&m->b, x, AP_RED_SUM, n, dims);
    return ap_build_with(&m->b, AP_OP_DIVIDE, sum, count);
}

static const int64_t all_dims[AP_MAX_RANK] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

int model_mean_all(struct model *m, int x)
{
    return model_mean(m, x, ap_build_shape_of(&m->b, x)->rank, all_dims);
}

int model_relu(struct model *m, int x)
{
    return ap_build_with(&m->b, AP_OP_MAXIMUM, x, 0);
}

int model_gelu(struct model *m, int x)
{
    struct ap_build *b = &m->b;
    int cube = model_mul(m, model_mul(m, x, x), x);
    int inner = model_add(m, x, ap_build_with(b, AP_OP_MULTIPLY, cube, 0.044715));
    int t = ap_build_unary(b, AP_OP_TANH,
                           ap_build_with(b, AP_OP_MULTIPLY, inner, sqrt(2 / acos(-1))));
    int half = ap_build_with(b, AP_OP_MULTIPLY, ap_build_with(b, AP_OP_ADD, t, 1), 0.5);
    return model_mul(m, x, half);
}

static int gelu_erf(struct model *m, int x)
{
    struct ap_build *b = &m->b;
    int e = ap_build_unary(b, AP_OP_ERF, ap_build_with(b, AP_OP_MULTIPLY, x, sqrt(0.5)));
    int half = ap_build_with(b, AP_OP_MULTIPLY, ap_build_with(b, AP_OP_ADD, e, 1), 0.5);
    return model_mul(m, x, half);
}

int model_act(struct model *m, enum model_act act, int x)
{
    switch (act) {
    case MODEL_GELU:
        return model_gelu(m, x);
    case MODEL_GELU_ERF:
        return gelu_erf(m, x);
    case MODEL_RELU:
        return model_relu(m, x);
    case MODEL_RELU2:
        x = model_relu(m, x);
        return model_mul(m, x, x);
    case MODEL_SILU:
        break;
    }
    return model_mul(m, x, ap_build_unary(&m->b, AP_OP_LOGISTIC, x));
}

/* gpt-oss: gate sigmoid(alpha gate) (up + 1), gate at most limit, |up| at most limit. */
static int clipped(struct model *m, int gate, int up)
{
    struct ap_build *b = &m->b;
    double limit = m->style.glu_limit, alpha = m->style.glu_alpha;

    gate = ap_build_with(b, AP_OP_MINIMUM, gate, limit);
    up = ap_build_with(b, AP_OP_MAXIMUM, ap_build_with(b, AP_OP_MINIMUM, up, limit),
                       -limit);
    int share =
        ap_build_unary(b, AP_OP_LOGISTIC, ap_build_with(b, AP_OP_MULTIPLY, gate, alpha));
    return model_mul(m, ap_build_with(b, AP_OP_ADD, up, 1), model_mul(m, gate, share));
}

int model_glu(struct model *m, int gate, int up)
{
    if (gate < 0)
        return model_act(m, m->style.act, up);
    return m->style.glu_limit > 0 ? clipped(m, gate, up)
                                  : model_mul(m, model_act(m, m->style.act, gate), up);
}

int model_cap(struct model *m, int x, double cap)
{
    struct ap_build *b = &m->b;
    if (cap == 0)
        return x;
    int t = ap_build_unary(b, AP_OP_TANH, ap_build_with(b, AP_OP_DIVIDE, x, cap));
    return ap_build_with(b, AP_OP_MULTIPLY, t, cap);
}

/*
 * x less its largest element along the last dimension, rounded down: what is taken off
 * changes no softmax, and with the rounding, which has no derivative, no gradient is
 * computed for it.
 */
static int below_max(struct model *m, int x, int *max)
{
    int64_t last = ap_build_shape_of(&m->b, x)->rank - 1;
    *max = ap_build_reduce(&m->b, x, AP_RED_MAX, 1, &last);
    *max = ap_build_unary(&m->b, AP_OP_FLOOR, *max);
    return model_binary(m, AP_OP_SUBTRACT, x, model_over(m, *max, x, -1));
}

int model_softmax(struct model *m, int x)
{
    int max;
    int e = ap_build_unary(&m->b, AP_OP_EXPONENTIAL, below_max(m, x, &max));
    return model_binary(m, AP_OP_DIVIDE, e, model_over(m, model_sum(m, e, -1), e, -1));
}

/* Multiplications and shifts as in MurmurHash3's finalizer (Appleby 2011). */
static int mix(struct model *m, int h)
{
    static const double odd[3] = {0x85ebca6b, 0xc2b2ae35, 0x9e3779b1};
    for (int i = 0; i < 3; i++) {
        h = ap_build_with(&m->b, AP_OP_MULTIPLY, h, odd[i]);
        int high = ap_build_with(&m->b, AP_OP_SHIFT_RIGHT_LOGICAL, h, 15);
        h = model_binary(m, AP_OP_XOR, h, high);
    }
    return h;
}

/*
 * Random numbers without a generator: the number of an element, counted through x, is
 * added to the mixed number of the place and the step's seed, and mixed again, so that
 * all layouts draw the same ones, and no two places or steps have shifted ones.
 */
static int draw(struct model *m, int x)
{
    struct ap_build *b = &m->b;
    struct ap_shape s = *ap_build_shape_of(b, x);
    uint32_t stride = 1;

    if (m->n_drops == 0) {
        const char *scope = m->b.scope;
        m->seed = mix(m, model_input(m, "dropout_seed", AP_U32, 0, NULL));
        m->b.scope = scope;
    }
    s.dtype = AP_U32;
    int place =
        ap_build_with(b, AP_OP_ADD, m->seed, 0x9e3779b1u * (uint32_t)++m->n_drops);
    int h = ap_build_broadcast(b, mix(m, place), s.rank, s.dims, NULL);
    for (int d = s.rank - 1; d >= 0; d--) {
        int at = ap_build_iota(b, s, d);
        h = model_add(m, h, ap_build_with(b, AP_OP_MULTIPLY, at, stride));
        stride *= (uint32_t)s.dims[d];
    }
    return mix(m, h);
}

int model_dropout(struct model *m, int x)
{
    if (m->dropout == 0)
        return x;
    struct ap_build *b = &m->b;
    struct ap_shape s = *ap_build_shape_of(b, x);
    int numbers = draw(m, x);
    struct ap_shape like = *ap_build_shape_of(b, numbers);
    int limit = ap_build_full(b, &like, m->dropout * 0x1p32);
    int kept =
        ap_build_unary(b, AP_OP_OPT_BARRIER, ap_build_compare(b, AP_GE, numbers, limit));
    int more = ap_build_with(b, AP_OP_MULTIPLY, x, 1 / (1 - m->dropout));
    return ap_build_select(b, kept, more, ap_build_full(b, &s, 0));
}

/* ---- layers ---- */

int model_bias(struct model *m, const char *path, int x)
{
    int64_t n = model_dim(m, x, -1);
    return model_add(m, x, model_along(m, model_weight(m, path, "b", 1, &n), x, -1));
}

int model_dense(struct model *m, const char *path, int x, int64_t n_out, bool bias)
{
    struct ap_build *b = &m->b;
    int64_t last = ap_build_shape_of(b, x)->rank - 1, zero = 0;
    int64_t dims[2] = {model_dim(m, x, -1), n_out};

    int w = model_weight(m, path, "w", 2, dims);
    model_scope(m, "%s", path);
    int y = ap_build_matmul(b, x, w, last, zero);
    return bias ? model_bias(m, path, y) : y;
}

int model_norm(struct model *m, enum model_norm norm, const char *path, int x)
{
    struct ap_build *b = &m->b;
    int64_t n = model_dim(m, x, -1), last = ap_build_shape_of(b, x)->rank - 1;
    bool rms = norm == MODEL_NORM_RMS || norm == MODEL_NORM_UNIT;
    bool plain = norm == MODEL_NORM_PLAIN || norm == MODEL_NORM_UNIT;
    double eps = m->style.norm_eps > 0 ? m->style.norm_eps : rms ? 1e-6 : 1e-5;
    int scale = plain ? -1 : model_weight(m, path, "scale", 1, &n), d = x;
    int bias = norm == MODEL_NORM_LAYER ? model_weight(m, path, "bias", 1, &n) : -1;

    model_scope(m, "%s", path);
    if (!rms) {
        int mean = model_mean(m, x, 1, &last);
        d = model_binary(m, AP_OP_SUBTRACT, x, model_over(m, mean, x, -1));
    }
    int var = model_mean(m, model_mul(m, d, d), 1, &last);
    int r = ap_build_unary(b, AP_OP_RSQRT, ap_build_with(b, AP_OP_ADD, var, eps));
    int y = model_mul(m, d, model_over(m, r, d, -1));
    if (m->style.norm_plus_one && !plain)
        scale = ap_build_with(b, AP_OP_ADD, scale, 1);
    if (!plain)
        y = model_mul(m, y, model_along(m, scale, y, -1));
    return bias < 0 ? y : model_add(m, y, model_along(m, bias, y, -1));
}

int model_unit_rows(struct model *m, int x)
{
    int sum = model_sum(m, model_mul(m, x, x), -1);
    int r =
        ap_build_unary(&m->b, AP_OP_RSQRT, ap_build_with(&m->b, AP_OP_ADD, sum, 1e-12));
    return model_mul(m, x, model_over(m, r, x, -1));
}

int model_embed(struct model *m, const char *path, int ids, int64_t n, int64_t width,
                int *table)
{
    int64_t dims[2] = {n, width};
    int w = model_weight(m, path, NULL, 2, dims);

    if (table)
        *table = w;
    model_scope(m, "%s", path);
    return ap_build_take(&m->b, w, ids);
}

int model_add_positions(struct model *m, const char *path, int x)
{
    struct ap_shape s = *ap_build_shape_of(&m->b, x);
    static const int64_t map[2] = {1, 2};
    int64_t rows = model_get(m, MODEL_POSITIONS, s.dims[1]), dims[2] = {rows, s.dims[2]};

    int w = model_weight(m, path, NULL, 2, dims);
    model_scope(m, "%s", path);
    if (rows > s.dims[1]) {
        struct ap_slice_dim first[2] = {{0, s.dims[1], 1}, {0, dims[1], 1}};
        w = ap_build_slice(&m->b, w, first);
    }
    return model_add(m, x, ap_build_broadcast(&m->b, w, 3, s.dims, map));
}

int model_tied_head(struct model *m, const char *path, int x, int table)
{
    int64_t last = ap_build_shape_of(&m->b, x)->rank - 1, one = 1;
    model_scope(m, "%s", path);
    return ap_build_matmul(&m->b, x, table, last, one);
}

int model_row(struct model *m, int x, int64_t row)
{
    struct ap_shape s = *ap_build_shape_of(&m->b, x);
    struct ap_slice_dim cut[3] = {
        {0, s.dims[0], 1}, {row, row + 1, 1}, {0, s.dims[2], 1}};
    int64_t dims[2] = {s.dims[0], s.dims[2]};
    return ap_build_reshape(&m->b, ap_build_slice(&m->b, x, cut), 2, dims);
}

/* ---- losses ---- */

/* True where the last dimension, of n, is the id. */
static int is_id(struct model *m, int ids, int64_t n)
{
    struct ap_shape s = *ap_build_shape_of(&m->b, ids);
    int64_t dims[AP_MAX_RANK];

    memcpy(dims, s.dims, (size_t)s.rank * sizeof *dims);
    dims[s.rank] = n;
    int places =
        ap_build_iota(&m->b, ap_build_shape(&m->b, s.dtype, s.rank + 1, dims), s.rank);
    return ap_build_compare(&m->b, AP_EQ, places, model_over(m, ids, places, -1));
}

int model_one_hot(struct model *m, int ids, int64_t n)
{
    return ap_build_convert(&m->b, is_id(m, ids, n), AP_F32);
}

int model_cross_entropy(struct model *m, int logits, int labels)
{
    struct ap_build *b = &m->b;
    int hit = is_id(m, labels, model_dim(m, logits, -1));
    struct ap_shape s = *ap_build_shape_of(b, logits);
    int picked =
        model_sum(m, ap_build_select(b, hit, logits, ap_build_full(b, &s, 0)), -1);
    int max, e = ap_build_unary(b, AP_OP_EXPONENTIAL, below_max(m, logits, &max));
    int norm = model_add(m, ap_build_unary(b, AP_OP_LOG, model_sum(m, e, -1)), max);
    return model_binary(m, AP_OP_SUBTRACT, norm, picked);
}

static int sum_all(struct model *m, int x)
{
    return ap_build_reduce(&m->b, x, AP_RED_SUM, ap_build_shape_of(&m->b, x)->rank,
                           all_dims);
}

int model_masked_mean(struct model *m, int x, int mask)
{
    mask = ap_build_convert(&m->b, mask, AP_F32);
    int sum = sum_all(m, model_mul(m, x, mask));
    int count = ap_build_with(&m->b, AP_OP_MAXIMUM, sum_all(m, mask), 1);
    return model_binary(m, AP_OP_DIVIDE, sum, count);
}

int model_loss(struct model *m, int logits, int labels)
{
    model_scope(m, "loss");
    return model_balanced(m, model_mean_all(m, model_cross_entropy(m, logits, labels)));
}

int model_balanced(struct model *m, int loss)
{
    model_scope(m, "loss");
    if (m->aux < 0)
        return loss;
    return model_add(m, loss,
                     ap_build_with(&m->b, AP_OP_MULTIPLY, m->aux, m->style.balance));
}
