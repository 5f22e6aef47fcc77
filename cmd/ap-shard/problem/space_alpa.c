/*
 * Problem: of the strategies that a group's factors allow, keep the ones that Alpa lists.
 * Idea: a table of the factors that each operator may split, on top of the factor rules;
 * beyond it every layout must be one of Alpa's specs (an axis splits a whole dimension,
 * evenly, and no two axes the same, unless mixed mesh shapes are asked for; only sums of
 * partial results are partial), and no contraction is replicated. On a mesh of two axes
 * the batch can be bound to one: which factor of a group is the batch follows from the
 * first dimension of the first contraction, through everything that indexes a tensor with
 * it. Nothing is gathered over that axis, unless an operator has the batch and cannot
 * split it (then nothing else is split on it) or sums are scattered over it. Cost:
 * O(operands) per choice, O(edges * factors) for the batch. After Zheng et al., "Alpa",
 * OSDI 2022, tables 1 to 3, and the public code of its pass.
 *
 * A group follows its deepest operand: it takes that one's layout where it can. A new
 * value lies as the parameter that it becomes.
 *
 * Where it differs: a conversion is paid once per tensor and layout; gathers and scatters
 * need not have the batch on its axis; of several left, right or contracting dimensions
 * of a dot only the first is split, as if the others had been folded into it.
 */
#include "problem/shard.h"

#include <string.h>

enum rule {
    RULE_NONE,    /* not in the table: Alpa stops at it */
    RULE_FOLLOW,  /* whatever its factors allow */
    RULE_ONE,     /* one axis at most */
    RULE_WHOLE,   /* replicated */
    RULE_OFFSETS, /* what the indices do not choose */
    RULE_DOT,
    RULE_CONVOLUTION
};

static const uint8_t rules[AP_N_OPS] = {
    [AP_OP_PARAMETER] = RULE_ONE,
    [AP_OP_CONSTANT] = RULE_WHOLE,
    [AP_OP_IOTA] = RULE_FOLLOW,
    [AP_OP_BROADCAST] = RULE_FOLLOW,
    [AP_OP_CONCATENATE] = RULE_FOLLOW,
    [AP_OP_PAD] = RULE_FOLLOW,
    [AP_OP_RESHAPE] = RULE_FOLLOW,
    [AP_OP_REVERSE] = RULE_FOLLOW,
    [AP_OP_SLICE] = RULE_FOLLOW,
    [AP_OP_TRANSPOSE] = RULE_FOLLOW,
    [AP_OP_DOT] = RULE_DOT,
    [AP_OP_CONVOLUTION] = RULE_CONVOLUTION,
    [AP_OP_REDUCE] = RULE_FOLLOW,
    [AP_OP_REDUCE_WINDOW] = RULE_FOLLOW,
    [AP_OP_SELECT_AND_SCATTER] = RULE_FOLLOW,
    [AP_OP_SORT] = RULE_FOLLOW,
    [AP_OP_TOPK] = RULE_FOLLOW, /* a sort and a slice */
    [AP_OP_GATHER] = RULE_OFFSETS,
    [AP_OP_SCATTER] = RULE_OFFSETS,
    [AP_OP_DYNAMIC_SLICE] = RULE_FOLLOW,
    [AP_OP_DYNAMIC_UPDATE_SLICE] = RULE_FOLLOW,
    [AP_OP_GET_TUPLE_ELEMENT] = RULE_FOLLOW,
};

static enum rule rule_of(const struct ap_node *n)
{
    bool elementwise = ap_ops[n->op].class == AP_CLASS_ELEMENTWISE;
    return elementwise ? RULE_FOLLOW : (enum rule)rules[n->op];
}

int shard_alpa_check(const struct ap_graph *g, struct ap_err *err)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (rule_of(&g->nodes[i]) == RULE_NONE)
            return ap_err_set(err, "%s: Alpa lists no strategy for %s (--space alpa)",
                              g->nodes[i].name, ap_ops[g->nodes[i].op].name);
    return 0;
}

/* ---- factors ---- */

static bool indexes(const struct ap_access *a, int f)
{
    for (int d = 0; d < a->rank; d++)
        for (int j = 0; j < a->dims[d].n; j++)
            if (a->dims[d].factor[j] == f)
                return true;
    return false;
}

/* The first factor of dimension d that is longer than 1, -1 for none. */
static int major(const struct ap_nest *nest, const struct ap_access *a, int d)
{
    for (int j = 0; j < a->dims[d].n; j++)
        if (nest->factors[a->dims[d].factor[j]].size > 1)
            return a->dims[d].factor[j];
    return -1;
}

/* How a dot is indexed by a factor. */
enum side { SIDE_BATCH, SIDE_LEFT, SIDE_RIGHT, SIDE_CONTRACTED };

/* Accesses of a contraction's operands and result. */
struct contraction {
    const struct ap_access *lhs, *rhs, *out;
};

static struct contraction contraction_of(const struct ap_nest *nest)
{
    const int *slot = nest->in_slot[0];
    return (struct contraction){&nest->ins[slot[0]].access, &nest->ins[slot[1]].access,
                                &nest->values[0]};
}

static enum side side_of(const struct contraction *c, int f)
{
    if (!indexes(c->out, f))
        return SIDE_CONTRACTED;
    if (!indexes(c->lhs, f))
        return SIDE_RIGHT;
    return indexes(c->rhs, f) ? SIDE_BATCH : SIDE_LEFT;
}

/* The major factor of the first dimension whose factors are on this side, -1 for none. */
static int first_of(const struct ap_nest *nest, const struct contraction *c,
                    enum side side)
{
    const struct ap_access *a = side == SIDE_RIGHT ? c->rhs : c->lhs;
    for (int d = 0; d < a->rank; d++) {
        int f = major(nest, a, d);
        if (f >= 0 && side_of(c, f) == side)
            return f;
    }
    return -1;
}

/* Both axes split one dimension: a mixed mesh shape. */
static bool is_one_dim(const struct ap_mesh *mesh, const struct ap_choice_vec *choice)
{
    int a = mesh->microbatch ? 1 : 0;
    return mesh->n_axes - a == 2 && choice->axis[a] >= 0 &&
           choice->axis[a] == choice->axis[a + 1];
}

static bool dot_ok(const struct ap_nest *nest, const struct ap_graph *g,
                   const struct ap_mesh *mesh, const struct ap_choice_vec *choice)
{
    const struct ap_node *n = &g->nodes[nest->members[0]];
    struct contraction c = contraction_of(nest);
    int n_batch = (int)n->attrs->lhs_batch_dims.n, used = 0, long_axes = 0, idle = 0;
    unsigned sides = 0;

    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++) {
        int f = choice->axis[a];
        if (mesh->size[a] == 1)
            continue;
        long_axes++;
        idle += f < 0;
        if (f < 0)
            continue;
        enum side side = side_of(&c, f);
        if (side == SIDE_BATCH) {
            used++;
            continue;
        }
        if (f != first_of(nest, &c, side) ||
            ((sides >> side & 1) && !is_one_dim(mesh, choice)))
            return false;
        sides |= 1u << side;
    }
    if (idle && (long_axes < 2 || sides != 1u << SIDE_CONTRACTED))
        return false; /* recomputed only where the other axis sums */
    return long_axes < 2 || used >= (n_batch < long_axes ? n_batch : long_axes);
}

/* Batch, features and feature groups; no spatial dimension. */
static bool convolution_ok(const struct ap_nest *nest, const struct ap_graph *g,
                           const struct ap_mesh *mesh, const struct ap_choice_vec *choice)
{
    const struct ap_conv_dims *dims = &g->nodes[nest->members[0]].attrs->conv;
    struct contraction c = contraction_of(nest);
    const int admitted[4] = {
        major(nest, c.lhs, dims->lhs_batch), major(nest, c.lhs, dims->lhs_feature),
        major(nest, c.rhs, dims->rhs_out), major(nest, c.rhs, dims->rhs_in)};

    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++) {
        bool ok = choice->axis[a] < 0;
        for (int k = 0; k < 4; k++)
            ok |= choice->axis[a] == admitted[k];
        if (!ok)
            return false;
    }
    return true;
}

/* ---- choices ---- */

/*
 * Member m may be split along factor f. Partial operands are for additions of them alone,
 * which Alpa charges as one sum, and for transposes, which it folds into contractions
 * before it looks.
 */
static bool factor_ok(const struct ap_nest *nest, const struct ap_node *n, int m, int f)
{
    if (f >= nest->n_factors) /* a linear set */
        return n->op == AP_OP_ADD || n->op == AP_OP_TRANSPOSE;
    if (rule_of(n) == RULE_WHOLE)
        return n->shape.rank == 0;
    if (rule_of(n) != RULE_OFFSETS)
        return true;
    int indices = nest->in_slot[m][1];
    return nest->factors[f].kind != AP_FACTOR_INDEXED &&
           (indices < 0 || !indexes(&nest->ins[indices].access, f));
}

static bool divides(const struct ap_nest *nest, const struct ap_mesh *mesh,
                    const struct ap_choice_vec *choice)
{
    for (int a = 0; a < mesh->n_axes; a++) {
        int f = choice->axis[a];
        int64_t devices =
            is_one_dim(mesh, choice) ? ap_mesh_devices(mesh) : mesh->size[a];
        if (f >= 0 && f < nest->n_factors && nest->factors[f].size % devices != 0)
            return false;
    }
    return true;
}

/* mixed: two axes may split one dimension. Shares of microbatches lie at a stride. */
static bool is_spec(const struct ap_layout *l, const struct ap_mesh *mesh, bool mixed)
{
    unsigned dims = 0;
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++) {
        const struct ap_placement *p = &l->axis[a];
        if (p->kind != AP_SPLIT)
            continue;
        if ((p->stride != 0 && !mesh->microbatch) || (!mixed && (dims >> p->dim & 1)))
            return false;
        dims |= 1u << p->dim;
    }
    return true;
}

static bool layouts_ok(const struct shard_alpa *alpa, const struct ap_nest *nest,
                       const struct ap_graph *g, const struct ap_mesh *mesh,
                       const struct ap_choice_vec *choice)
{
    bool mixed = alpa->mixed && is_one_dim(mesh, choice);

    for (int i = 0; i < nest->n_ins; i++) {
        struct ap_layout l = ap_nest_in_layout(nest, g, mesh, choice, i);
        if (!is_spec(&l, mesh, mixed))
            return false;
    }
    for (int m = 0; m < nest->n_members; m++) {
        struct ap_layout l = ap_nest_value_layout(nest, g, mesh, choice, m);
        if (!is_spec(&l, mesh, mixed))
            return false;
    }
    return true;
}

/* Whether the group, which has the batch as factor f, may split it. */
static bool may_split(const struct ap_nest *nest, const struct ap_graph *g, int f)
{
    return nest->factors[f].kind != AP_FACTOR_WHOLE &&
           nest->factors[f].kind != AP_FACTOR_INDEXED &&
           factor_ok(nest, &g->nodes[nest->members[0]], 0, f);
}

/* The batch is on its axis, or on none, if the group has it and may split it. */
static bool batch_ok(const struct shard_alpa *alpa, const struct ap_nest *nest,
                     const struct ap_graph *g, const struct ap_mesh *mesh,
                     const struct ap_choice_vec *choice)
{
    int f = alpa->batch ? alpa->batch[nest->group] : -1;

    if (alpa->axis == SHARD_BATCH_FREE || !alpa->batch)
        return true;
    if (f >= 0 && !may_split(nest, g, f))
        f = -1;
    if (f < 0)
        return alpa->axis < 0 || !alpa->gathers || nest->heavy ||
               choice->axis[alpa->axis] < 0;
    if (alpa->axis >= 0)
        return choice->axis[alpa->axis] == f;
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
        if (choice->axis[a] == f)
            return false;
    return true;
}

bool shard_alpa_admits(const struct shard_alpa *alpa, const struct ap_nest *nest,
                       const struct ap_graph *g, const struct ap_mesh *mesh,
                       const struct ap_choice_vec *choice)
{
    enum rule rule = rule_of(&g->nodes[nest->members[0]]);
    int n_split = 0;

    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++) {
        int f = choice->axis[a];
        if (f < 0 || mesh->size[a] == 1)
            continue;
        for (int m = 0; m < nest->n_members; m++)
            if (!factor_ok(nest, &g->nodes[nest->members[m]], m, f))
                return false;
        n_split++;
    }
    if ((rule == RULE_ONE && n_split > 1 && !is_one_dim(mesh, choice)) ||
        (!alpa->mixed && is_one_dim(mesh, choice)) ||
        !batch_ok(alpa, nest, g, mesh, choice))
        return false;
    if (rule == RULE_DOT && !dot_ok(nest, g, mesh, choice))
        return false;
    if (rule == RULE_CONVOLUTION && !convolution_ok(nest, g, mesh, choice))
        return false;
    return divides(nest, mesh, choice) && layouts_ok(alpa, nest, g, mesh, choice);
}

/* ---- the batch ---- */

struct spread {
    const struct ap_graph *g;
    const struct ap_nests *nests;
    int *dim;   /* per node: dimension of the batch, -1 unknown */
    int *batch; /* per group: factor */
    int *queue; /* nodes whose dimension became known */
    int n;
};

static void learn(struct spread *s, int node, int dim)
{
    if (s->dim[node] >= 0)
        return;
    s->dim[node] = dim;
    s->queue[s->n++] = node;
}

/* Dimension of a tensor that the factor is the major one of, -1 for none. */
static int dim_with(const struct ap_nest *nest, const struct ap_access *a, int f)
{
    for (int d = 0; d < a->rank; d++)
        if (major(nest, a, d) == f)
            return d;
    return -1;
}

/* The group's factor is known: so is the batch of all its tensors. */
static void visit(struct spread *s, int group, const struct ap_access *access, int dim)
{
    const struct ap_nest *nest = &s->nests->nest[group];
    int f = access->rank > dim ? major(nest, access, dim) : -1;

    if (s->batch[group] >= 0 || f < 0)
        return;
    s->batch[group] = f;
    for (int i = 0; i < nest->n_ins; i++) {
        int d = dim_with(nest, &nest->ins[i].access, f);
        if (d >= 0)
            learn(s, nest->ins[i].node, d);
    }
    for (int m = 0; m < nest->n_members; m++) {
        int d = dim_with(nest, &nest->values[m], f);
        if (d >= 0)
            learn(s, nest->members[m], d);
    }
}

/* All groups that make or use the node. */
static void visit_groups(struct spread *s, int node)
{
    const struct ap_graph *g = s->g;
    int home = g->nodes[node].group, last = home;

    visit(s, home,
          &s->nests->nest[home].values[ap_nest_member(&s->nests->nest[home], node)],
          s->dim[node]);
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        int group = g->nodes[g->users[u]].group;
        const struct ap_nest *nest = &s->nests->nest[group];
        if (group == last || group == home || s->batch[group] >= 0)
            continue;
        last = group;
        for (int i = 0; i < nest->n_ins; i++)
            if (nest->ins[i].node == node)
                visit(s, group, &nest->ins[i].access, s->dim[node]);
    }
}

int *shard_alpa_batch(struct ap_arena *arena, const struct ap_graph *g,
                      const struct ap_nests *nests)
{
    struct spread s = {.g = g,
                       .nests = nests,
                       .dim = AP_NEW_N(arena, g->n_nodes, int),
                       .batch = AP_NEW_N(arena, nests->n, int),
                       .queue = AP_NEW_N(arena, g->n_nodes, int)};
    int seed = 0;

    for (int i = 0; i < g->n_nodes; i++)
        s.dim[i] = -1;
    for (int i = 0; i < nests->n; i++)
        s.batch[i] = -1;
    while (seed < g->n_nodes && ap_ops[g->nodes[seed].op].class != AP_CLASS_HEAVY)
        seed++;
    if (seed == g->n_nodes || g->nodes[seed].shape.rank == 0 ||
        g->nodes[seed].shape.dims[0] == 1)
        return NULL;
    learn(&s, seed, 0);
    for (int i = 0; i < s.n; i++)
        visit_groups(&s, s.queue[i]);
    return s.batch;
}

/* ---- who follows whom ---- */

/*
 * Per node, how far it is from the inputs: contractions far, after a reduction near, so
 * that what joins a contraction's result follows that rather than a sum or a bias.
 */
static int *find_depths(struct ap_arena *arena, const struct ap_graph *g)
{
    int *depth = AP_NEW_N(arena, g->n_nodes, int);

    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        int step = ap_ops[n->op].class == AP_CLASS_HEAVY ? 1000
                   : n->op == AP_OP_BROADCAST            ? -5
                   : n->op == AP_OP_RESHAPE              ? 0
                                                         : 1;
        for (int k = 0; k < n->n_in && n->op != AP_OP_REDUCE; k++)
            depth[i] = k == 0 || depth[n->in[k]] + step > depth[i]
                           ? depth[n->in[k]] + step
                           : depth[i];
    }
    return depth;
}

/* The operand that the group follows: the deepest, of several the largest. A scalar has
 * one layout. */
static int followed(const struct ap_graph *g, const struct ap_nest *nest,
                    const struct ap_mesh *mesh, const int *depth)
{
    const struct ap_node *first = &g->nodes[nest->members[0]];
    int64_t most = 0;
    int best = -1;

    if (nest->heavy || rule_of(first) != RULE_FOLLOW)
        return -1;
    if (first->op ==
        AP_OP_RESHAPE) { /* with several users it has strategies of its own */
        int id = nest->members[0], long_axes = 0;
        for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
            long_axes += mesh->size[a] > 1;
        if (long_axes < 2 && g->user_start[id + 1] - g->user_start[id] > 1)
            return -1;
    }
    for (int i = 0; i < nest->n_ins; i++) {
        const struct ap_node *in = &g->nodes[nest->ins[i].node];
        int64_t n = ap_shape_elems(&in->shape);
        int more = best < 0 ? 1 : depth[nest->ins[i].node] - depth[nest->ins[best].node];
        if (n > 1 && (more > 0 || (more == 0 && n > most))) {
            most = n;
            best = i;
        }
    }
    return best;
}

/* ---- the space that is asked for ---- */

/* Axis of the mesh with this name, -1 with err. */
static int axis_named(const struct ap_mesh *mesh, const char *option, const char *name,
                      size_t len, struct ap_err *err)
{
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
        if (strlen(mesh->name[a]) == len && !memcmp(mesh->name[a], name, len))
            return a;
    return ap_err_set(err, "--%s: the mesh has no axis %.*s", option, (int)len, name);
}

/* The axis of --batch-axis, by default the first of two long ones. */
static int set_batch(struct shard_alpa *alpa, const struct ap_mesh *mesh,
                     const char *text, struct ap_err *err)
{
    int first = mesh->microbatch ? 1 : 0, long_axes = 0;

    for (int a = first; a < mesh->n_axes; a++)
        long_axes += mesh->size[a] > 1;
    if (!text)
        alpa->axis = long_axes == 2 ? first : SHARD_BATCH_FREE;
    else if (!strcmp(text, "free"))
        alpa->axis = SHARD_BATCH_FREE;
    else if (!strcmp(text, "none"))
        alpa->axis = SHARD_BATCH_WHOLE;
    else if ((alpa->axis = axis_named(mesh, "batch-axis", text, strlen(text), err)) < 0)
        return -1;
    if (alpa->axis >= 0 && mesh->size[alpa->axis] == 1)
        alpa->axis = SHARD_BATCH_WHOLE;
    return 0;
}

int shard_alpa_init(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_nests *nests, const struct shard_request *req,
                    struct shard_alpa *alpa, struct ap_cost *cost, struct ap_err *err)
{
    const struct ap_mesh *mesh = &cost->mesh;
    int n_axes = mesh->n_axes - (mesh->microbatch ? 1 : 0);

    *alpa = (struct shard_alpa){.axis = SHARD_BATCH_FREE, .mixed = req->alpa.mixed};
    if (n_axes > 2)
        return ap_err_set(err, "--space alpa: a mesh of %d axes, Alpa's have two at most",
                          n_axes);
    if (set_batch(alpa, mesh, req->batch_axis, err))
        return -1;
    if (alpa->axis != SHARD_BATCH_FREE)
        alpa->batch = shard_alpa_batch(arena, g, nests);
    int *follows = AP_NEW_N(arena, nests->n, int), *depth = find_depths(arena, g);
    for (int i = 0; i < nests->n; i++)
        follows[i] = followed(g, &nests->nest[i], mesh, depth);
    alpa->follows = follows;
    alpa->ties = !req->alpa.scatter; /* else new values are gathered */
    cost->alpa = req->alpa;
    cost->alpa.space = true;
    for (int i = 0; i < nests->n && alpa->batch; i++)
        alpa->gathers |=
            alpa->batch[i] >= 0 && !may_split(&nests->nest[i], g, alpa->batch[i]);
    if (alpa->axis >= 0 && alpa->batch && !alpa->gathers && !req->alpa.scatter) {
        unsigned bit = 1u << ap_mesh_device_axis(mesh, alpa->axis);
        cost->alpa.no_all_gather |= bit;
        cost->alpa.no_all_to_all |= bit;
    }
    return 0;
}
