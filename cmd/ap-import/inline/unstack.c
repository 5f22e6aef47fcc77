/*
 * Stacked tensors split layer by layer. A loop over layers reads its weights from, and
 * writes its gradients to, arrays with an axis for the layers; the optimizer works on the
 * whole stacks. After unrolling, every such array becomes one tensor per layer, so that
 * layers can be cut apart, sharded and freed on their own.
 *
 * Which axes: dimensions of nodes that are the same axis are joined (union-find): those
 * that elementwise operators, transposes, broadcasts and so on connect, and those of a
 * parameter and its next value. A set of dimensions is a layer axis if a loop's counter
 * indexes one of them. It is split if every operator on it has a rule: most do their
 * work layer by layer; a slice of one layer is that layer's tensor; an update of one
 * layer renames it, so that buffers dissolve; a reduction over the axis combines the
 * reductions of the layers. One operator without a rule leaves the whole set stacked.
 *
 * A node is split along one axis in a pass; stacks of stacks take several. Linear in the
 * nodes before and after, per pass.
 */
#include "inline/unstack.h"

#include "base/csr.h"
#include "base/union_find.h"
#include "inline/inline.h"

struct sets {
    const struct import *im;
    int *slot;           /* per node: its first dimension */
    int *up;             /* per dimension: ap_sets */
    bool *fixed, *layer; /* per dimension that stands for its set */
};

/* ---- joining ---- */

/* The dimension that stands for the set of a node's. */
static int set_of(struct sets *s, int node, int dim)
{
    return ap_sets_root(s->up, s->slot[node] + dim);
}

static const struct ap_shape *shape_of(const struct sets *s, int node)
{
    return &s->im->g.nodes[node].shape;
}

static void join(struct sets *s, int a, int dim_a, int b, int dim_b)
{
    int x = set_of(s, a, dim_a), y = set_of(s, b, dim_b);
    bool fixed = s->fixed[x] || s->fixed[y], layer = s->layer[x] || s->layer[y];
    ap_sets_join(s->up, x, y);
    x = ap_sets_root(s->up, x);
    s->fixed[x] = fixed;
    s->layer[x] = layer;
}

static void fix(struct sets *s, int node, int dim)
{
    s->fixed[set_of(s, node, dim)] = true;
}

static void fix_all(struct sets *s, int node)
{
    for (int d = 0; d < shape_of(s, node)->rank; d++)
        fix(s, node, d);
}

/* An operator without a rule. */
static void fix_around(struct sets *s, int id)
{
    const struct ap_node *node = &s->im->g.nodes[id];
    fix_all(s, id);
    for (int k = 0; k < node->n_in; k++)
        fix_all(s, node->in[k]);
}

static void join_elementwise(struct sets *s, int id)
{
    const struct ap_node *node = &s->im->g.nodes[id];
    for (int k = 0; k < node->n_in; k++)
        for (int d = 0; d < shape_of(s, node->in[k])->rank; d++)
            join(s, id, d, node->in[k], d);
}

/* Dimensions with the same size and as much before them are the same. */
static void join_reshape(struct sets *s, int id)
{
    int x = s->im->g.nodes[id].in[0], i = 0, k = 0;
    const struct ap_shape *a = shape_of(s, x), *b = shape_of(s, id);
    int64_t front_a = 1, front_b = 1;
    while (i < a->rank || k < b->rank) {
        if (i < a->rank && k < b->rank && front_a == front_b &&
            a->dims[i] == b->dims[k]) {
            join(s, x, i, id, k);
            front_a *= a->dims[i++];
            front_b *= b->dims[k++];
        } else if (i < a->rank &&
                   (k == b->rank || front_a < front_b || a->dims[i] == 1)) {
            fix(s, x, i);
            front_a *= a->dims[i++];
        } else {
            fix(s, id, k);
            front_b *= b->dims[k++];
        }
    }
}

static void join_reduce(struct sets *s, int id)
{
    const struct ap_node *node = &s->im->g.nodes[id];
    if (node->n_in != 2) {
        fix_around(s, id);
        return;
    }
    bool gone[AP_MAX_RANK] = {false};
    const struct ap_ints *dims = &node->attrs->dimensions;
    for (int i = 0; i < dims->n; i++) {
        gone[dims->v[i]] = true;
        if (!unstack_can_combine(s->im, node))
            fix(s, node->in[0], (int)dims->v[i]);
    }
    int to = 0;
    for (int d = 0; d < shape_of(s, node->in[0])->rank; d++)
        if (!gone[d])
            join(s, node->in[0], d, id, to++);
}

static void join_slice(struct sets *s, int id)
{
    const struct ap_node *node = &s->im->g.nodes[id];
    const struct ap_shape *x = shape_of(s, node->in[0]);
    for (int d = 0; d < x->rank; d++) {
        if (node->shape.dims[d] == x->dims[d] && node->attrs->slice[d].stride == 1) {
            join(s, node->in[0], d, id, d);
        } else if (node->shape.dims[d] == 1) {
            if (s->im->info[id].layered)
                s->layer[set_of(s, node->in[0], d)] = true;
        } else {
            fix(s, node->in[0], d);
            fix(s, id, d);
        }
    }
}

bool unstack_sets(const struct import *im, const struct ap_node *node, int d,
                  int64_t *place)
{
    const struct ap_shape *update = &im->g.nodes[node->in[1]].shape;
    if (update->dims[d] != 1 || !inline_known(im, node->in[2 + d], place))
        return false;
    int64_t last = node->shape.dims[d] - 1;
    *place = *place < 0 ? 0 : *place > last ? last : *place;
    return true;
}

static void join_update(struct sets *s, int id)
{
    const struct ap_node *node = &s->im->g.nodes[id];
    const struct ap_shape *update = shape_of(s, node->in[1]);
    for (int d = 0; d < node->shape.rank; d++) {
        int64_t place;
        join(s, node->in[0], d, id, d);
        if (update->dims[d] == node->shape.dims[d]) {
            join(s, node->in[1], d, id, d);
        } else if (unstack_sets(s->im, node, d, &place)) {
            if (s->im->info[id].layered)
                s->layer[set_of(s, id, d)] = true;
        } else {
            fix(s, id, d);
            fix(s, node->in[1], d);
        }
    }
}

static void join_dynamic_slice(struct sets *s, int id)
{
    const struct ap_node *node = &s->im->g.nodes[id];
    for (int d = 0; d < node->shape.rank; d++) {
        if (node->shape.dims[d] == shape_of(s, node->in[0])->dims[d]) {
            join(s, node->in[0], d, id, d);
        } else {
            fix(s, node->in[0], d);
            fix(s, id, d);
        }
    }
}

static void join_concatenate(struct sets *s, int id)
{
    const struct ap_node *node = &s->im->g.nodes[id];
    int along = (int)node->attrs->dimensions.v[0];
    for (int k = 0; k < node->n_in; k++)
        for (int d = 0; d < node->shape.rank; d++) {
            if (d != along)
                join(s, node->in[k], d, id, d);
            else if (shape_of(s, node->in[k])->dims[d] != 1)
                fix(s, id, d);
        }
    for (int k = 0; k < node->n_in; k++)
        fix(s, node->in[k], along);
}

static void join_pad(struct sets *s, int id)
{
    const struct ap_node *node = &s->im->g.nodes[id];
    for (int d = 0; d < node->shape.rank; d++) {
        const struct ap_pad_dim *p = &node->attrs->padding[d];
        if (!p->lo && !p->hi && !p->interior) {
            join(s, node->in[0], d, id, d);
        } else {
            fix(s, node->in[0], d);
            fix(s, id, d);
        }
    }
}

static void join_dot(struct sets *s, int id)
{
    const struct ap_node *node = &s->im->g.nodes[id];
    int n_batch = node->attrs->lhs_batch_dims.n;
    for (int k = 0; k < 2; k++) {
        const struct ap_ints *batch =
            k ? &node->attrs->rhs_batch_dims : &node->attrs->lhs_batch_dims;
        bool is_batch[AP_MAX_RANK] = {false};
        for (int i = 0; i < batch->n; i++) {
            is_batch[batch->v[i]] = true;
            join(s, node->in[k], (int)batch->v[i], id, i);
        }
        for (int d = 0; d < shape_of(s, node->in[k])->rank; d++)
            if (!is_batch[d])
                fix(s, node->in[k], d);
    }
    for (int d = n_batch; d < node->shape.rank; d++)
        fix(s, id, d);
}

static void join_transpose(struct sets *s, int id)
{
    const struct ap_node *node = &s->im->g.nodes[id];
    for (int d = 0; d < node->attrs->dimensions.n; d++)
        join(s, node->in[0], (int)node->attrs->dimensions.v[d], id, d);
}

static void join_broadcast(struct sets *s, int id)
{
    const struct ap_node *node = &s->im->g.nodes[id];
    for (int d = 0; d < node->attrs->dimensions.n; d++)
        join(s, node->in[0], d, id, (int)node->attrs->dimensions.v[d]);
}

static void join_nothing(struct sets *s, int id)
{
    (void)s;
    (void)id;
}

static void join_node(struct sets *s, int id)
{
    static void (*const joins[AP_N_OPS])(struct sets * s, int id) = {
        [AP_OP_PARAMETER] = join_nothing,
        [AP_OP_CONSTANT] = join_nothing,
        [AP_OP_IOTA] = join_nothing,
        [AP_OP_REVERSE] = join_elementwise,
        [AP_OP_TRANSPOSE] = join_transpose,
        [AP_OP_BROADCAST] = join_broadcast,
        [AP_OP_RESHAPE] = join_reshape,
        [AP_OP_REDUCE] = join_reduce,
        [AP_OP_SLICE] = join_slice,
        [AP_OP_DYNAMIC_UPDATE_SLICE] = join_update,
        [AP_OP_DYNAMIC_SLICE] = join_dynamic_slice,
        [AP_OP_CONCATENATE] = join_concatenate,
        [AP_OP_PAD] = join_pad,
        [AP_OP_DOT] = join_dot,
    };
    enum ap_op op = s->im->g.nodes[id].op;
    if (joins[op])
        joins[op](s, id);
    else if (ap_ops[op].class == AP_CLASS_ELEMENTWISE)
        join_elementwise(s, id);
    else
        fix_around(s, id);
}

/* ---- choosing ---- */

/*
 * The dimension along which each node is split in this pass. Sets are taken as they come,
 * unless one of their nodes is split already: NULL when there is none.
 */
static int *choose(struct sets *s, struct ap_arena *arena)
{
    const struct ap_graph *g = &s->im->g;
    int n = s->slot[g->n_nodes], *node_of = AP_NEW_N(arena, n + 1, int);
    int *root_of = AP_NEW_N(arena, n + 1, int);
    int *axis = AP_NEW_N(arena, g->n_nodes + 1, int);
    bool any = false;
    for (int i = 0; i < g->n_nodes; i++) {
        axis[i] = -1;
        for (int x = s->slot[i]; x < s->slot[i + 1]; x++)
            node_of[x] = i;
    }
    for (int x = 0; x < n; x++)
        root_of[x] = ap_sets_root(s->up, x);
    struct ap_csr members = ap_csr_new(arena, n, n, root_of, NULL);
    for (int root = 0; root < n; root++) {
        if (root_of[root] != root || !s->layer[root] || s->fixed[root])
            continue;
        const int *member = members.item + members.start[root];
        int n_members = ap_csr_count(&members, root);
        bool split = true;
        for (int k = 0; k < n_members && split; k++) {
            int node = node_of[member[k]];
            split = axis[node] < 0 && (!k || node_of[member[k - 1]] != node);
        }
        for (int k = 0; k < n_members && split; k++)
            axis[node_of[member[k]]] = member[k] - s->slot[node_of[member[k]]];
        any |= split;
    }
    return any ? axis : NULL;
}

static int *find_axes(struct import *im, const bool *live)
{
    struct ap_graph *g = &im->g;
    struct ap_arena *arena = im->src->arena;
    struct sets s = {.im = im};
    s.slot = AP_NEW_N(arena, g->n_nodes + 2, int);
    for (int i = 0; i < g->n_nodes; i++)
        s.slot[i + 1] = s.slot[i] + g->nodes[i].shape.rank;
    int n = s.slot[g->n_nodes];
    s.up = ap_sets_new(arena, n);
    s.fixed = AP_NEW_N(arena, n + 1, bool);
    s.layer = AP_NEW_N(arena, n + 1, bool);
    for (int i = 0; i < g->n_nodes; i++)
        if (live[i])
            join_node(&s, i);
    for (int i = 0; i < g->n_results; i++)
        for (int d = 0;
             g->results[i].alias >= 0 && d < g->nodes[g->results[i].node].shape.rank; d++)
            join(&s, g->results[i].node, d, g->results[i].alias, d);
    return choose(&s, arena);
}

/* ---- passes ---- */

static bool has_layers(const struct import *im)
{
    for (int i = 0; i < im->g.n_nodes; i++)
        if (im->info[i].layered)
            return true;
    return false;
}

/* Results of split nodes become one per layer, in order; so do the aliases. */
static void split_results(struct unstack *u)
{
    struct ap_graph *g = &u->im->g;
    int n = 0;
    for (int i = 0; i < g->n_results; i++) {
        int node = g->results[i].node, axis = u->axis[node];
        n += axis < 0 ? 1 : (int)u->old.nodes[node].shape.dims[axis];
    }
    struct ap_result *results = AP_NEW_N(u->arena, n + 1, struct ap_result);
    n = 0;
    for (int i = 0; i < g->n_results; i++) {
        struct ap_result r = g->results[i];
        int axis = u->axis[r.node], alias = r.alias;
        int64_t n_layers = axis < 0 ? 1 : u->old.nodes[r.node].shape.dims[axis];
        for (int64_t l = 0; l < n_layers; l++) {
            results[n] = r;
            results[n].node = axis < 0 ? u->to[r.node] : u->pieces[r.node][l];
            if (alias >= 0)
                results[n].alias = axis < 0 ? u->to[alias] : u->pieces[alias][l];
            if (axis >= 0)
                results[n].part = import_part(u->arena, r.part, axis, l, n_layers);
            n++;
        }
    }
    g->results = results;
    g->n_results = n;
}

static void split(struct import *im, const bool *live, const int *axis)
{
    struct ap_graph *g = &im->g;
    struct unstack u = {.im = im, .arena = im->src->arena};
    u.live = live;
    u.axis = axis;
    u.to = AP_NEW_N(u.arena, g->n_nodes + 1, int);
    u.pieces = AP_NEW_N(u.arena, g->n_nodes + 1, int *);
    u.n_users = AP_NEW_N(u.arena, g->n_nodes + 1, int);
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; live[i] && k < g->nodes[i].n_in; k++)
            u.n_users[g->nodes[i].in[k]]++;
    for (int i = 0; i < g->n_results; i++) {
        u.n_users[g->results[i].node]++;
        if (g->results[i].alias >= 0)
            u.n_users[g->results[i].alias]++;
    }
    struct import_nodes old = import_set_aside(im);
    u.old = old.g;
    u.old_info = old.info;
    unstack_emit(&u);
    int n_params = 0;
    while (n_params < im->g.n_nodes && im->g.nodes[n_params].op == AP_OP_PARAMETER) {
        im->g.nodes[n_params].param = n_params;
        n_params++;
    }
    im->g.n_params = n_params;
    split_results(&u);
    import_free_nodes(&old);
}

void import_unstack(struct import *im)
{
    if (!has_layers(im))
        return;
    for (;;) {
        const bool *live = import_live(im);
        const int *axis = find_axes(im, live);
        if (!axis)
            return;
        split(im, live, axis);
    }
}
