/*
 * Finds the roles of parameters and results if the text does not state them. A train step
 * takes (weights, states, inputs) and gives (loss, new weights, new states), in some
 * order.
 *
 *   loss      what the section `step` says; without it, the first float scalar among
 *             the results that is no parameter's new value, depends on more than scalar
 *             parameters, and on no gradient of a weight: what the weight's new value is
 *             made of, through elementwise operators. That may reach into the forward
 *             pass, so the one whose last gradient comes first is taken; of parts of a
 *             loss and their sum the sum
 *   alias     from input_output_alias; otherwise by data flow: a new value depends on its
 *             old one through elementwise operators of equal dimensions, outside of what
 *             the loss needs. By this rule the new weight of Adam may belong to the
 *             weight or to either moment; the new moments have one candidate each, which
 *             leaves the weight. Ties go to the lower parameter. A result left over takes
 *             the parameter that follows the previous result's, if shapes agree.
 *   weight    updated, and the loss depends on it, or not updated, and the section `step`
 *             calls it frozen; state: updated otherwise
 *   constant  not updated, and its name is that of a state; input: not updated otherwise
 *
 * Where the section `step` gives the arguments their roles, these hold. There, and
 * without a loss, when there is nothing to train, only the text's own aliases count.
 * Linear: at most MAX_CANDIDATES candidates are kept per node.
 */
#include "import.h"

#include <string.h>

#include "base/csr.h"

#define MAX_CANDIDATES 4
#define MAX_TERMS      8 /* operators between a loss and a part of it */

struct candidates {
    int n, param[MAX_CANDIDATES]; /* ascending */
};

struct roles {
    struct import *im;
    const bool *forward;     /* per node: the loss depends on it */
    struct candidates *cand; /* per result */
    int *count;              /* per result: candidates that nobody took */
    int *taken;              /* per parameter: result, or -1 */
    struct ap_csr users;     /* per parameter: results that have it as candidate */
    int *queue, head, tail;
    int loss; /* result, or -1 */
};

static void add_candidate(struct candidates *c, int param)
{
    int i = c->n;
    while (i > 0 && c->param[i - 1] > param)
        i--;
    if ((i > 0 && c->param[i - 1] == param) || i == MAX_CANDIDATES)
        return;
    int keep = c->n < MAX_CANDIDATES ? c->n : MAX_CANDIDATES - 1;
    memmove(&c->param[i + 1], &c->param[i], (size_t)(keep - i) * sizeof(int));
    c->param[i] = param;
    c->n = keep + 1;
}

/*
 * Parameters that each node depends on through elementwise operators of its dimensions;
 * nodes in `cut` (NULL: none) have no candidates.
 */
static struct candidates *flow(const struct import *im, const bool *cut)
{
    const struct ap_graph *g = &im->g;
    struct candidates *c = AP_NEW_N(im->src->arena, g->n_nodes + 1, struct candidates);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        if (node->op == AP_OP_PARAMETER) {
            add_candidate(&c[i], i);
            continue;
        }
        if (ap_ops[node->op].class != AP_CLASS_ELEMENTWISE || (cut && cut[i]))
            continue;
        for (int k = 0; k < node->n_in; k++) {
            const struct candidates *in = &c[node->in[k]];
            if (!ap_shape_same_dims(&g->nodes[node->in[k]].shape, &node->shape))
                continue;
            for (int j = 0; j < in->n; j++)
                add_candidate(&c[i], in->param[j]);
        }
    }
    return c;
}

/* Keeps the parameters of a result's own type. */
static struct candidates of_result(const struct ap_graph *g,
                                   const struct candidates *flows, int result)
{
    int node = g->results[result].node;
    struct candidates out = {0};
    for (int j = 0; j < flows[node].n; j++)
        if (ap_shape_equal(&g->nodes[flows[node].param[j]].shape, &g->nodes[node].shape))
            add_candidate(&out, flows[node].param[j]);
    return out;
}

/* Per node: whether it depends on a parameter that is no scalar. */
static bool *mark_wide(const struct import *im)
{
    const struct ap_graph *g = &im->g;
    bool *wide = AP_NEW_N(im->src->arena, g->n_nodes + 1, bool);
    for (int i = 0; i < g->n_nodes; i++) {
        wide[i] = g->nodes[i].op == AP_OP_PARAMETER && g->nodes[i].shape.rank > 0;
        for (int k = 0; !wide[i] && k < g->nodes[i].n_in; k++)
            wide[i] = wide[g->nodes[i].in[k]];
    }
    return wide;
}

/* A node that has the elements of its operand k, in any order. */
static bool keeps_elements(const struct ap_graph *g, int i, int k)
{
    const struct ap_node *node = &g->nodes[i];
    return (ap_ops[node->op].class == AP_CLASS_ELEMENTWISE || node->op == AP_OP_RESHAPE ||
            node->op == AP_OP_TRANSPOSE) &&
           ap_shape_elems(&g->nodes[node->in[k]].shape) == ap_shape_elems(&node->shape);
}

/*
 * Per node: the last gradient of a weight that it depends on, -1 for none. A weight is a
 * parameter that is no scalar, has a new value, and is used for more than that.
 */
static int *mark_gradients(const struct import *im, const struct candidates *flows)
{
    const struct ap_graph *g = &im->g;
    bool *used = AP_NEW_N(im->src->arena, g->n_nodes + 1, bool);
    bool *own = AP_NEW_N(im->src->arena, g->n_nodes + 1, bool);
    int *last = AP_NEW_N(im->src->arena, g->n_nodes + 1, int);
    for (int i = g->n_nodes - 1; i >= 0; i--)
        for (int k = 0; k < g->nodes[i].n_in; k++)
            used[g->nodes[i].in[k]] |= used[i] || !keeps_elements(g, i, k);
    for (int i = 0; i < g->n_results; i++) {
        struct candidates all = of_result(g, flows, i);
        for (int j = 0; j < all.n && g->nodes[g->results[i].node].shape.rank; j++)
            own[g->results[i].node] |= used[all.param[j]];
    }
    for (int i = g->n_nodes - 1; i >= 0; i--)
        for (int k = 0; own[i] && k < g->nodes[i].n_in; k++)
            own[g->nodes[i].in[k]] |= keeps_elements(g, i, k);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        bool end = node->n_in && node->op != AP_OP_BROADCAST && !keeps_elements(g, i, 0);
        last[i] = own[i] && end ? i : -1;
        for (int k = 0; k < node->n_in; k++)
            if (last[node->in[k]] > last[i])
                last[i] = last[node->in[k]];
    }
    return last;
}

/* Whether scalar `node` is a sum of scalar `part` and of others, each scaled. */
static bool is_sum_of(const struct ap_graph *g, int node, int part, bool added, int steps)
{
    const struct ap_node *n = &g->nodes[node];

    if (node == part)
        return added;
    if (n->shape.rank || steps == 0)
        return false;
    switch ((int)n->op) {
    case AP_OP_ADD:
        added = true;
        break;
    case AP_OP_MULTIPLY:
    case AP_OP_DIVIDE:
    case AP_OP_CONVERT:
        break;
    default:
        return false;
    }
    for (int k = 0; k < n->n_in; k++)
        if (is_sum_of(g, n->in[k], part, added, steps - 1))
            return true;
    return false;
}

static int find_loss(const struct import *im, const struct import_params *params)
{
    const struct ap_graph *g = &im->g;
    int any = -1, first = -1, best = -1;
    const struct candidates *flows = flow(im, NULL);
    const bool *wide = mark_wide(im);
    const int *gradient = mark_gradients(im, flows);
    for (int i = 0; i < g->n_results; i++)
        for (int k = 0; k < params->n_roles; k++)
            if (params->roles[k].value == AP_ROLE_LOSS &&
                ap_glob(params->roles[k].glob, g->nodes[g->results[i].node].name)) {
                params->roles[k].used = true;
                return i;
            }
    if (im->step_loss)
        return import_step_result(g, im->step_loss - 1);
    for (int i = 0; i < g->n_results; i++) {
        const struct ap_node *node = &g->nodes[g->results[i].node];
        if (node->shape.rank || !ap_dtype_is_float(node->shape.dtype) ||
            g->results[i].alias >= 0 || node->op == AP_OP_PARAMETER)
            continue;
        if (any < 0)
            any = i;
        if (!wide[g->results[i].node]) /* a learning rate, say */
            continue;
        if (first < 0)
            first = i;
        if (of_result(g, flows, i).n)
            continue;
        const int node_of_best = best < 0 ? -1 : g->results[best].node;
        if (best < 0 || gradient[g->results[i].node] < gradient[node_of_best] ||
            (gradient[g->results[i].node] == gradient[node_of_best] &&
             is_sum_of(g, g->results[i].node, node_of_best, false, MAX_TERMS)))
            best = i;
    }
    return best >= 0 ? best : first >= 0 ? first : any;
}

static bool *mark_forward(const struct import *im, int loss)
{
    const struct ap_graph *g = &im->g;
    bool *forward = AP_NEW_N(im->src->arena, g->n_nodes + 1, bool);
    if (loss >= 0)
        forward[g->results[loss].node] = true;
    import_mark_needed(g->nodes, g->n_nodes, forward);
    return forward;
}

/* ---- aliases ---- */

static bool may_alias(const struct roles *r, int result)
{
    const struct ap_result *res = &r->im->g.results[result];
    const struct ap_node *node = &r->im->g.nodes[res->node];
    return res->alias < 0 && result != r->loss &&
           (!r->forward[res->node] || node->op == AP_OP_PARAMETER);
}

static void take(struct roles *r, int result, int param)
{
    r->im->g.results[result].alias = param;
    r->taken[param] = result;
    for (int i = r->users.start[param]; i < r->users.start[param + 1]; i++) {
        int other = r->users.item[i];
        if (--r->count[other] == 1 && r->im->g.results[other].alias < 0)
            r->queue[r->tail++] = other;
    }
}

static void take_first_free(struct roles *r, int result)
{
    const struct candidates *c = &r->cand[result];
    for (int j = 0; j < c->n; j++)
        if (r->taken[c->param[j]] < 0) {
            take(r, result, c->param[j]);
            return;
        }
}

/* Candidates of all results, and the results of each candidate. */
static void collect(struct roles *r)
{
    struct ap_graph *g = &r->im->g;
    struct ap_arena *arena = r->im->src->arena;
    const struct candidates *flows = flow(r->im, r->forward);
    r->cand = AP_NEW_N(arena, g->n_results + 1, struct candidates);
    r->count = AP_NEW_N(arena, g->n_results + 1, int);
    int n = 0, n_most = MAX_CANDIDATES * g->n_results;
    int *param = AP_NEW_N(arena, n_most, int), *user = AP_NEW_N(arena, n_most, int);
    for (int i = 0; i < g->n_results; i++) {
        struct candidates all =
            may_alias(r, i) ? of_result(g, flows, i) : (struct candidates){0};
        for (int j = 0; j < all.n; j++)
            if (r->taken[all.param[j]] < 0)
                add_candidate(&r->cand[i], all.param[j]);
        r->count[i] = r->cand[i].n;
        for (int j = 0; j < r->cand[i].n; j++) {
            param[n] = r->cand[i].param[j];
            user[n++] = i;
        }
    }
    r->users = ap_csr_new(arena, g->n_params, n, param, user);
}

static void resolve(struct roles *r)
{
    struct ap_graph *g = &r->im->g;
    r->queue = AP_NEW_N(r->im->src->arena, 2 * g->n_results + 1, int);
    for (int i = 0; i < g->n_results; i++)
        if (r->count[i] == 1)
            r->queue[r->tail++] = i;
    for (int i = 0; i < g->n_results; i++) {
        while (r->head < r->tail) {
            int next = r->queue[r->head++];
            if (g->results[next].alias < 0)
                take_first_free(r, next);
        }
        if (g->results[i].alias < 0)
            take_first_free(r, i);
    }
}

/* The parameter next to that of a neighbouring result, if it fits. */
static void take_neighbour(struct roles *r, int result, int other, int step)
{
    const struct ap_graph *g = &r->im->g;
    if (!may_alias(r, result) || other < 0 || other >= g->n_results)
        return;
    int param = g->results[other].alias < 0 ? -1 : g->results[other].alias + step;
    if (param < 0 || param >= g->n_params || r->taken[param] >= 0 ||
        !ap_shape_equal(&g->nodes[g->results[result].node].shape, &g->nodes[param].shape))
        return;
    r->im->g.results[result].alias = param;
    r->taken[param] = result;
}

static void find_aliases(struct roles *r)
{
    struct ap_graph *g = &r->im->g;
    r->taken = AP_NEW_N(r->im->src->arena, g->n_params + 1, int);
    for (int p = 0; p < g->n_params; p++)
        r->taken[p] = -1;
    for (int i = 0; i < g->n_results; i++)
        if (g->results[i].alias >= 0)
            r->taken[g->results[i].alias] = i;
    if (r->loss < 0 || r->im->step_role) /* only what the text says */
        return;
    collect(r);
    resolve(r);
    for (int i = 0; i < g->n_results; i++)
        take_neighbour(r, i, i - 1, 1);
    for (int i = g->n_results - 1; i >= 0; i--)
        take_neighbour(r, i, i + 1, -1);
}

/* ---- roles ---- */

static bool has_key(const char *name, const char *key)
{
    const char *s = strstr(name, key);
    return s && (s == name || strchr("._['\"/", s[-1]));
}

static enum ap_role param_role(const struct roles *r, int param)
{
    const struct ap_node *node = &r->im->g.nodes[param];
    const char *name = node->name;
    bool state_name = has_key(name, "opt_state") || has_key(name, "batch_stats");
    bool weight_name = has_key(name, "params") && !state_name;
    const struct ap_part *argument = node->attrs->argument;
    if (argument && r->im->step_role)
        return r->im->step_role[argument->index];
    if (r->taken[param] < 0 && argument && r->im->step_frozen[argument->index])
        return AP_ROLE_WEIGHT;
    if (r->taken[param] < 0)
        return weight_name                                    ? AP_ROLE_WEIGHT
               : state_name || strncmp(name, "const", 5) == 0 ? AP_ROLE_CONSTANT
                                                              : AP_ROLE_INPUT;
    if (!ap_dtype_is_float(node->shape.dtype) || state_name)
        return AP_ROLE_STATE;
    if (r->loss < 0)
        return weight_name ? AP_ROLE_WEIGHT : AP_ROLE_STATE;
    return r->forward[param] ? AP_ROLE_WEIGHT : AP_ROLE_STATE;
}

int import_override_roles(struct import *im, struct import_params *params)
{
    struct ap_graph *g = &im->g;
    for (int k = 0; k < params->n_roles; k++) {
        struct override *o = &params->roles[k];
        for (int i = 0; i < g->n_params && o->value <= AP_ROLE_CONSTANT; i++)
            if (ap_glob(o->glob, g->nodes[i].name)) {
                g->nodes[i].role = (enum ap_role)o->value;
                o->used = true;
            }
        if (!o->used)
            return ap_err_set(im->src->err, "roles: '%.200s' matches no %s", o->glob,
                              o->value == AP_ROLE_LOSS ? "result" : "parameter");
    }
    return 0;
}

int import_roles(struct import *im, struct import_params *params)
{
    struct ap_graph *g = &im->g;
    struct roles r = {.im = im, .loss = find_loss(im, params)};
    if (r.loss >= 0)
        g->results[r.loss].alias = -1;
    r.forward = mark_forward(im, r.loss);
    find_aliases(&r);
    for (int i = 0; i < g->n_params; i++)
        g->nodes[i].role = param_role(&r, i);
    if (import_override_roles(im, params))
        return -1;
    for (int i = 0; i < g->n_results; i++) {
        int alias = g->results[i].alias;
        enum ap_role of_param = alias < 0 ? AP_ROLE_NONE : g->nodes[alias].role;
        bool updated = of_param == AP_ROLE_WEIGHT || of_param == AP_ROLE_STATE;
        if (!updated) /* an input whose memory is reused is not its next value */
            g->results[i].alias = -1;
        g->results[i].role = i == r.loss ? AP_ROLE_LOSS
                             : updated   ? of_param
                                         : AP_ROLE_AUX;
    }
    return 0;
}
