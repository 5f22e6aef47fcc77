/*
 * Mixtures of experts after GShard: every token goes to its best experts (top 2, or 1 as
 * in the Switch transformer), by products with one-hot masks. An expert takes `capacity`
 * tokens of each row of the batch; those that come later in the sequence, and second
 * choices after all first ones, pass it by. Rows may be cut into groups of tokens, each
 * with a capacity of its own: the masks have top * group elements per token. Without a
 * capacity every expert sees every token, masked. The load-balancing loss is added to
 * m->aux. Source: Lepikhin et al., "GShard", section 2.2 and algorithm 1; Fedus et al.,
 * "Switch Transformers", 2.2.
 */
#include "model.h"

/* What a choice says: where tokens go. */
struct choice {
    int pred, places; /* [batch, seq, experts]: pred, and as s32 */
    int mask;         /* as f32 */
};

/* Pred: where the last of three dimensions is largest, the first one among equals. */
static int largest(struct model *m, int x, int *places)
{
    struct ap_build *b = &m->b;
    int64_t last = 2, n = model_dim(m, x, -1);
    struct ap_shape s = *ap_build_shape_of(b, x);

    int max = ap_build_reduce(b, x, AP_RED_MAX, 1, &last);
    int hit = ap_build_compare(b, AP_EQ, x, model_over(m, max, x, -1));
    s.dtype = AP_S32;
    *places = ap_build_iota(b, s, 2);
    int first = ap_build_reduce(
        b, ap_build_select(b, hit, *places, ap_build_full(b, &s, (double)n)), AP_RED_MIN,
        1, &last);
    return ap_build_compare(b, AP_EQ, *places, model_over(m, first, *places, -1));
}

static struct choice choose(struct model *m, int logits)
{
    struct choice c;
    int places;
    c.pred = largest(m, logits, &places);
    c.places = ap_build_convert(&m->b, c.pred, AP_S32);
    c.mask = ap_build_convert(&m->b, c.pred, AP_F32);
    return c;
}

/* x where pred does not hold, otherwise very small: it will not be the largest. */
static int without(struct model *m, int pred, int x)
{
    struct ap_shape s = *ap_build_shape_of(&m->b, x);
    return ap_build_select(&m->b, pred, ap_build_full(&m->b, &s, -1e30), x);
}

/*
 * Scores of experts outside the best groups become very small (device-limited routing,
 * DeepSeek-AI, "DeepSeek-V2", section 2.2.2; with sums of two, "DeepSeek-V3", 2.1.2).
 */
static int limit_groups(struct model *m, int scores)
{
    struct ap_build *b = &m->b;
    struct ap_shape s = *ap_build_shape_of(b, scores);
    int64_t last = 3, groups = m->style.groups, wide[4] = {s.dims[0], s.dims[1], groups};
    static const int64_t map[3] = {0, 1, 2};
    int chosen = -1, place;

    wide[3] = s.dims[2] / groups;
    int by_group = ap_build_reshape(b, scores, 4, wide);
    int best = ap_build_reduce(b, by_group, AP_RED_MAX, 1, &last);
    if (m->style.choice == MODEL_PAIR_GROUPS) {
        int is_best =
            ap_build_compare(b, AP_EQ, by_group, model_over(m, best, by_group, -1));
        int second =
            ap_build_reduce(b, without(m, is_best, by_group), AP_RED_MAX, 1, &last);
        best = model_add(m, best, second);
    }
    for (int64_t i = 0; i < m->style.top_groups; i++) {
        int hit = largest(m, best, &place);
        chosen = i ? model_binary(m, AP_OP_OR, chosen, hit) : hit;
        if (i + 1 < m->style.top_groups)
            best = without(m, hit, best);
    }
    chosen = ap_build_broadcast(b, chosen, 4, wide, map);
    chosen = ap_build_reshape(b, chosen, 3, s.dims);
    return ap_build_select(b, chosen, scores, ap_build_full(b, &s, -1e30));
}

/* Experts * sum over experts of (share of first choices) * (mean probability), of the
 * batch, or the mean of the rows'. */
static void add_balance(struct model *m, const char *path, int first, int probs)
{
    static const int64_t tokens[2] = {0, 1}, row = 1;
    bool rows = m->style.balance_rows;
    const int64_t *over = rows ? &row : tokens;
    int n = rows ? 1 : 2;

    model_scope(m, "%s/balance", path);
    double experts = (double)model_dim(m, probs, -1);
    int share =
        model_mul(m, model_mean(m, first, n, over), model_mean(m, probs, n, over));
    int sum = rows ? model_mean_all(m, model_sum(m, share, -1)) : model_sum(m, share, 0);
    int loss = ap_build_with(&m->b, AP_OP_MULTIPLY, sum, experts);
    m->aux = m->aux < 0 ? loss : model_add(m, m->aux, loss);
}

/* How many tokens of the row up to and with each one chose each expert. */
static int count_so_far(struct model *m, int places)
{
    struct ap_window_dim window[3];
    int64_t seq = model_dim(m, places, 1);

    for (int d = 0; d < 3; d++)
        window[d] = ap_build_window(1, 1);
    window[1].size = seq;
    window[1].pad_lo = seq - 1;
    return ap_build_reduce_window(&m->b, places, AP_RED_SUM, window);
}

/* [batch, seq, experts] times [batch, seq, capacity]. */
static int outer(struct model *m, int x, int y)
{
    struct ap_build *b = &m->b;
    static const int64_t map_x[3] = {0, 1, 2}, map_y[3] = {0, 1, 3};
    int64_t dims[4] = {model_dim(m, x, 0), model_dim(m, x, 1), model_dim(m, x, 2),
                       model_dim(m, y, 2)};
    return model_mul(m, ap_build_broadcast(b, x, 4, dims, map_x),
                     ap_build_broadcast(b, y, 4, dims, map_y));
}

/* Masks [batch, seq, experts] or, with a capacity, [batch, seq, experts, capacity]. */
struct routes {
    int dispatch, combine;
};

#define MAX_TOP MODEL_MAX_TOP

/* Probabilities of the chosen experts, [batch, seq, experts] each; of several they sum to
 * one, unless the style keeps them as they are; a single one keeps its value. */
static void set_gates(struct model *m, int probs, const struct choice *choices, int n,
                      int *gates)
{
    int sum = -1;
    for (int i = 0; i < n; i++) {
        gates[i] = model_mul(m, probs, choices[i].mask);
        sum = sum < 0 ? gates[i] : model_add(m, sum, gates[i]);
    }
    if (n > 1 && !m->style.raw_gates) {
        int norm = model_over(m, model_sum(m, sum, -1), probs, -1);
        for (int i = 0; i < n; i++)
            gates[i] = model_binary(m, AP_OP_DIVIDE, gates[i], norm);
    }
    double scale = m->style.gate_scale;
    for (int i = 0; i < n && scale != 0 && scale != 1; i++)
        gates[i] = ap_build_with(&m->b, AP_OP_MULTIPLY, gates[i], scale);
}

/* Every choice gets a place in its expert's queue, after all earlier choices. */
static struct routes route_limited(struct model *m, const struct choice *choices,
                                   const int *gates, int n, int64_t capacity)
{
    struct ap_build *b = &m->b;
    struct routes r = {-1, -1};
    int before = -1; /* [batch, experts]: taken by earlier choices */

    for (int i = 0; i < n; i++) {
        int count = count_so_far(m, choices[i].places);
        if (before >= 0)
            count = model_add(m, count, model_over(m, before, count, 1));
        int queue = model_sum(m, model_mul(m, count, choices[i].places), -1);
        queue = ap_build_with(b, AP_OP_SUBTRACT, queue, 1);
        int slot = model_one_hot(m, queue, capacity);
        int dispatch = outer(m, choices[i].mask, slot);
        int combine = outer(m, gates[i], slot);
        r.dispatch = i ? model_add(m, r.dispatch, dispatch) : dispatch;
        r.combine = i ? model_add(m, r.combine, combine) : combine;
        if (i + 1 < n) {
            int taken = model_sum(m, choices[i].places, 1);
            before = i ? model_add(m, before, taken) : taken;
        }
    }
    return r;
}

static struct routes route(struct model *m, const char *path,
                           const struct model_block *block, int x)
{
    struct choice choices[MAX_TOP] = {{0}};
    int gates[MAX_TOP] = {0}, n = (int)block->top;

    int logits = model_dense(m, model_path(m, "%s/router", path), x, block->experts,
                             m->style.router_bias);
    model_scope(m, "%s/route", path);
    int probs = m->style.sigmoid ? ap_build_unary(&m->b, AP_OP_LOGISTIC, logits)
                                 : model_softmax(m, logits);
    int left = logits;
    if (m->style.groups > 1)
        left = limit_groups(m, m->style.sigmoid ? probs : logits);
    for (int i = 0; i < n; i++) {
        choices[i] = choose(m, left);
        if (i + 1 < n)
            left = without(m, choices[i].pred, left);
    }
    set_gates(m, probs, choices, n, gates);
    struct routes r = {-1, -1};
    if (block->capacity)
        r = route_limited(m, choices, gates, n, block->capacity);
    for (int i = 0; i < n && !block->capacity; i++) {
        r.dispatch = i ? model_add(m, r.dispatch, choices[i].mask) : choices[i].mask;
        r.combine = i ? model_add(m, r.combine, gates[i]) : gates[i];
    }
    if (m->style.gate_inputs)
        r = (struct routes){r.combine, r.dispatch};
    if (m->style.balance > 0)
        add_balance(m, path, choices[0].mask, probs);
    return r;
}

/* x [experts, ...] times the experts' weights [experts, in, out], plus their biases. */
static int expert_dense(struct model *m, const char *path, int x, int64_t n_out,
                        bool bias)
{
    static const int64_t zero = 0, inner_x = 3, inner_w = 1, map[2] = {0, 3};
    int64_t experts = model_dim(m, x, 0);
    int64_t dims[3] = {experts, model_dim(m, x, -1), n_out},
            bias_dims[2] = {experts, n_out};

    int w = model_weight(m, path, "w", 3, dims);
    model_scope(m, "%s", path);
    int y = ap_build_dot(&m->b, x, w,
                         &(struct ap_dot_dims){1, &zero, &zero, 1, &inner_x, &inner_w});
    if (!bias)
        return y;
    int v = model_weight(m, path, "b", 2, bias_dims);
    struct ap_shape s = *ap_build_shape_of(&m->b, y);
    return model_add(m, y, ap_build_broadcast(&m->b, v, 4, s.dims, map));
}

/* The tokens as the experts see them: [experts, batch, capacity or seq, width]. */
static int dispatch(struct model *m, int mask, int x)
{
    static const int64_t batch[2] = {0, 1}, seq = 1;
    static const int64_t perm_all[4] = {2, 0, 1, 3}, perm[4] = {1, 0, 2, 3};

    if (ap_build_shape_of(&m->b, mask)->rank == 3) {
        int y = ap_build_dot(&m->b, mask, x,
                             &(struct ap_dot_dims){2, batch, batch, 0, NULL, NULL});
        return ap_build_transpose(&m->b, y, perm_all);
    }
    int y = ap_build_dot(&m->b, mask, x,
                         &(struct ap_dot_dims){1, batch, batch, 1, &seq, &seq});
    return ap_build_transpose(&m->b, y, perm);
}

static int combine(struct model *m, int mask, int y)
{
    static const int64_t batch[2] = {0, 1}, batch_y[2] = {1, 2}, expert = 2, expert_y = 0;
    static const int64_t slots[2] = {2, 3}, slots_y[2] = {0, 2};

    if (ap_build_shape_of(&m->b, mask)->rank == 3)
        return ap_build_dot(
            &m->b, mask, y,
            &(struct ap_dot_dims){2, batch, batch_y, 1, &expert, &expert_y});
    return ap_build_dot(&m->b, mask, y,
                        &(struct ap_dot_dims){1, batch, batch_y, 2, slots, slots_y});
}

/* What the experts make of x [batch, seq, width]. */
static int routed(struct model *m, const char *path, const struct model_block *block,
                  int x)
{
    int64_t width = model_dim(m, x, -1);
    int gate = -1;

    struct routes r = route(m, path, block, x);
    model_scope(m, "%s/dispatch", path);
    x = dispatch(m, r.dispatch, x);
    if (m->style.gated)
        gate = expert_dense(m, model_path(m, "%s/gate", path), x, block->ffn,
                            block->expert_bias);
    int y =
        expert_dense(m, model_path(m, "%s/fc", path), x, block->ffn, block->expert_bias);
    model_scope(m, "%s/act", path);
    y = model_glu(m, gate, y);
    y = expert_dense(m, model_path(m, "%s/proj", path), y, width, block->expert_bias);
    model_scope(m, "%s/combine", path);
    return combine(m, r.combine, y);
}

int model_mixture(struct model *m, const char *path, const struct model_block *block,
                  int x)
{
    struct ap_shape s = *ap_build_shape_of(&m->b, x);
    int y = x;

    if (block->group && block->group < s.dims[1]) {
        int64_t rows[3] = {s.dims[0] * (s.dims[1] / block->group), block->group,
                           s.dims[2]};
        model_scope(m, "%s", path);
        y = routed(m, path, block, ap_build_reshape(&m->b, x, 3, rows));
        y = ap_build_reshape(&m->b, y, 3, s.dims);
    } else {
        y = routed(m, path, block, x);
    }
    if (!block->shared_ffn)
        return y;
    const char *shared = model_path(m, "%s/shared", path);
    int all = model_mlp_part(m, shared, block, block->shared_ffn, x);
    if (m->style.shared_gate) {
        int gate = model_dense(m, model_path(m, "%s/open", shared), x, 1, false);
        gate = ap_build_unary(&m->b, AP_OP_LOGISTIC, gate);
        all = model_mul(m, all, model_over(m, model_sum(m, gate, -1), all, -1));
    }
    return model_add(m, y, all);
}
