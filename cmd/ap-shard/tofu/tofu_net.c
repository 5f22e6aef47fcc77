/*
 * Problem: state a graph of fusion groups as Tofu does, as operators that need their
 * tensors in aligned schemes, with as few tensors to decide as Tofu's coarsening leaves.
 *
 * Idea: every factor of a group's nest is an aligned request: operands and results that
 * the factor indexes are cut at that place, the others are whole, and results that are
 * summed over the factor are partial sums. No table of operators is needed. Tensors whose
 * schemes are one decision are tied:
 *   - the one whole operand and the results of a group that changes no place (a chain of
 *     elementwise operators, a pooling, a reshape, a transpose);
 *   - all that an update joins: a weight, its gradient, its state, the new weight;
 *   - in the later space the operands of all elementwise groups, and activations with
 *     their gradients;
 *   - there, too, the tensors at the same place of a recurrence's steps (tofu_steps.c).
 * A tied group follows the scheme of its tensors. A group that cannot follow a place
 * where a contraction cuts such a tensor (a slice of it) is not tied. The two gradients
 * of a contraction y = x w, which share dy and have x and w as the other operands, have
 * one request together; they are found by these properties and by the dimensions that
 * each sums over, without names.
 *
 * Cost: linear in operands of groups; gradients are searched among the contractions of
 * the operand that fewer read. Source: Wang, Huang, Li, "Unifying Data, Model and
 * Hybrid Parallelism in Deep Learning via Tensor Tiling", aligned tilings;
 * Wang, Huang, Li, "Supporting Very Large Models using Automatic Dataflow Graph
 * Partitioning", section 5.1 (coarsening).
 */
#include <string.h>

#include "base/csr.h"
#include "base/union_find.h"
#include "problem/fold.h"
#include "tofu/tofu.h"

struct piece {
    int dim, next; /* next: of the same node */
    int64_t stride;
};

struct maker {
    struct tofu_net *net;
    struct piece *piece;
    int *first;   /* per node: its pieces */
    bool *wanted; /* per piece class: a contraction can cut there */
    int *alias;   /* per node: the parameter that it becomes, -1 */
};

bool tofu_factor_usable(const struct ap_nest *nest, int f)
{
    return nest->factors[f].kind != AP_FACTOR_WHOLE && nest->factors[f].size > 1;
}

/* ---- tied tensors and pieces ---- */

static int class_of(const struct maker *m, int node)
{
    return ap_sets_root(m->net->class_of, node);
}

static int piece_class(const struct maker *m, int piece)
{
    return piece < 0 ? piece : ap_sets_root(m->net->piece_of, piece);
}

static void unite_pieces(struct maker *m, int p, int q)
{
    bool wanted = m->wanted[piece_class(m, p)] || m->wanted[piece_class(m, q)];
    ap_sets_join(m->net->piece_of, p, q);
    m->wanted[piece_class(m, p)] = wanted;
}

/* ---- slots ---- */

static int intern(struct maker *m, int node, int dim, int64_t stride)
{
    struct tofu_net *net = m->net;

    for (int p = m->first[node]; p >= 0; p = m->piece[p].next)
        if (m->piece[p].dim == dim && m->piece[p].stride == stride)
            return p;
    int p = net->n_pieces++;
    m->piece[p] = (struct piece){dim, m->first[node], stride};
    m->first[node] = p;
    net->piece_of[p] = p;
    net->piece_dim[p] = dim;
    return p;
}

static void fill_slot(struct maker *m, const struct ap_nest *nest, int node, bool out,
                      const struct ap_access *a, struct tofu_slot *s)
{
    const struct ap_node *n = &m->net->graph->nodes[node];

    *s = (struct tofu_slot){.node = node, .out = out};
    if (n->shape.rank > 0) /* numbers are not worth counting */
        s->bytes = (double)ap_shape_bytes(&n->shape);
    s->piece = AP_NEW_N(m->net->arena, nest->n_factors, int);
    for (int f = 0; f < nest->n_factors; f++)
        s->piece[f] = out && (a->partial >> f & 1) ? TOFU_RED : TOFU_REP;
    for (int d = 0; d < n->shape.rank; d++) {
        int64_t stride = 1;
        for (int j = a->dims[d].n - 1; j >= 0; j--) {
            int f = a->dims[d].factor[j];
            stride *= nest->factors[f].size;
            if (tofu_factor_usable(nest, f))
                s->piece[f] = intern(m, node, d, stride);
        }
    }
}

static void fill_group(struct maker *m, int g)
{
    const struct ap_nest *nest = &m->net->nests->nest[g];
    struct tofu_group *group = &m->net->groups[g];

    group->anchor = -1;
    group->slot = AP_NEW_N(m->net->arena, nest->n_ins + nest->n_outs, struct tofu_slot);
    for (int i = 0; i < nest->n_ins; i++)
        fill_slot(m, nest, nest->ins[i].node, false, &nest->ins[i].access,
                  &group->slot[group->n_slots++]);
    for (int i = 0, k = 0; i < nest->n_outs; i++) { /* both lists ascend */
        while (nest->members[k] != nest->outs[i])
            k++;
        fill_slot(m, nest, nest->outs[i], true, &nest->values[k],
                  &group->slot[group->n_slots++]);
    }
}

static int count_pieces(const struct tofu_net *net)
{
    int n = 0;
    for (int g = 0; g < net->nests->n; g++) {
        const struct ap_nest *nest = &net->nests->nest[g];
        for (int i = 0; i < nest->n_ins + nest->n_members; i++) {
            const struct ap_access *a =
                i < nest->n_ins ? &nest->ins[i].access : &nest->values[i - nest->n_ins];
            for (int d = 0; d < a->rank; d++)
                n += a->dims[d].n;
        }
    }
    return n;
}

/* ---- ties ---- */

static bool is_full(const struct ap_nest *nest, const struct tofu_slot *s)
{
    for (int f = 0; f < nest->n_factors; f++)
        if (tofu_factor_usable(nest, f) && s->piece[f] < 0)
            return false;
    return true;
}

static bool is_elementwise(const struct maker *m, const struct ap_nest *nest)
{
    for (int i = 0; i < nest->n_members; i++) {
        enum ap_op_class class = ap_ops[m->net->graph->nodes[nest->members[i]].op].class;
        if (class != AP_CLASS_ELEMENTWISE && class != AP_CLASS_LEAF &&
            m->net->graph->nodes[nest->members[i]].op != AP_OP_BROADCAST)
            return false;
    }
    return true;
}

static bool is_update(const struct maker *m, const struct tofu_group *group)
{
    for (int i = 0; i < group->n_slots; i++)
        if (group->slot[i].out && m->alias[group->slot[i].node] >= 0)
            return true;
    return false;
}

/* Are schemes of the whole operands and results of g one decision? */
static bool may_tie(const struct maker *m, int g)
{
    const struct ap_nest *nest = &m->net->nests->nest[g];
    const struct tofu_group *group = &m->net->groups[g];
    int n_in = 0, n_out = 0, last = -1, n_usable = 0;

    for (int f = 0; f < nest->n_factors; f++)
        n_usable += tofu_factor_usable(nest, f);
    for (int i = 0; i < group->n_slots; i++) {
        const struct tofu_slot *s = &group->slot[i];
        bool full = is_full(nest, s);
        if (nest->n_ins == 0 && !full)
            return false;
        n_out += s->out && full;
        n_in += !s->out && full && s->node != last;
        last = !s->out && full ? s->node : last;
    }
    if (nest->heavy || n_usable == 0 || n_out == 0)
        return false;
    if (nest->n_ins == 0 || n_in == 1)
        return true;
    return n_in > 1 &&
           (is_update(m, group) || (m->net->cut_only && is_elementwise(m, nest)));
}

static bool has_whole(const struct ap_nest *nest)
{
    for (int f = 0; f < nest->n_factors; f++)
        if (nest->factors[f].kind == AP_FACTOR_WHOLE && nest->factors[f].size > 1)
            return true;
    return false;
}

/* Does a contraction cut a tensor of the group where the group itself cannot? */
static bool loses_pieces(const struct maker *m, int g)
{
    const struct ap_nest *nest = &m->net->nests->nest[g];
    const struct tofu_group *group = &m->net->groups[g];

    for (int i = 0; i < group->n_slots; i++) {
        const struct tofu_slot *s = &group->slot[i];
        for (int p = m->first[s->node]; p >= 0 && is_full(nest, s);
             p = m->piece[p].next) {
            bool follows = !m->wanted[piece_class(m, p)];
            for (int f = 0; f < nest->n_factors && !follows; f++)
                follows = piece_class(m, s->piece[f]) == piece_class(m, p);
            if (!follows)
                return true;
        }
    }
    return false;
}

static void tie(struct maker *m, int g)
{
    const struct ap_nest *nest = &m->net->nests->nest[g];
    struct tofu_group *group = &m->net->groups[g];

    for (int i = 0; i < group->n_slots; i++) {
        const struct tofu_slot *s = &group->slot[i];
        if (!is_full(nest, s))
            continue;
        if (group->anchor < 0) {
            group->anchor = i;
            continue;
        }
        const struct tofu_slot *a = &group->slot[group->anchor];
        ap_sets_join(m->net->class_of, a->node, s->node);
        for (int f = 0; f < nest->n_factors; f++)
            if (a->piece[f] >= 0 && s->piece[f] >= 0)
                unite_pieces(m, a->piece[f], s->piece[f]);
    }
}

/* Ties two tensors of one shape, and their pieces. */
static void tie_tensors(struct maker *m, int v, int w)
{
    ap_sets_join(m->net->class_of, v, w);
    for (int p = m->first[v]; p >= 0; p = m->piece[p].next)
        for (int q = m->first[w]; q >= 0; q = m->piece[q].next)
            if (m->piece[p].dim == m->piece[q].dim &&
                m->piece[p].stride == m->piece[q].stride)
                unite_pieces(m, p, q);
}

static void tie_aliases(struct maker *m)
{
    for (int v = 0; v < m->net->graph->n_nodes; v++)
        if (m->alias[v] >= 0)
            tie_tensors(m, v, m->alias[v]);
}

static void tie_groups(struct maker *m)
{
    const struct ap_nests *nests = m->net->nests;

    for (int g = 0; g < nests->n; g++) {
        const struct ap_nest *nest = &nests->nest[g];
        for (int i = 0; nest->heavy && i < m->net->groups[g].n_slots; i++)
            for (int f = 0; f < nest->n_factors; f++)
                if (m->net->groups[g].slot[i].piece[f] >= 0 &&
                    nest->factors[f].size % 2 == 0)
                    m->wanted[m->net->groups[g].slot[i].piece[f]] = true;
    }
    tie_aliases(m);
    for (int g = 0; g < nests->n; g++)
        if (!has_whole(&nests->nest[g]) && may_tie(m, g))
            tie(m, g);
    for (int g = 0; g < nests->n; g++)
        if (has_whole(&nests->nest[g]) && may_tie(m, g) && !loses_pieces(m, g))
            tie(m, g);
}

/* ---- contractions and their gradients ---- */

/* Operand slot of g of this class, -1. */
static int slot_of(const struct maker *m, int g, int class)
{
    for (int i = 0; i < 2; i++)
        if (class_of(m, m->net->groups[g].slot[i].node) == class)
            return i;
    return -1;
}

/* Factor of g that cuts slot i at this piece class, -1. */
static int factor_at(const struct maker *m, int g, int i, int piece)
{
    for (int f = 0; piece >= 0 && f < m->net->nests->nest[g].n_factors; f++)
        if (piece_class(m, m->net->groups[g].slot[i].piece[f]) == piece)
            return f;
    return -1;
}

/* y = x w, dw from x and dy, dx from w and dy. */
struct triple {
    int y, dw, dx;  /* groups */
    int y_x, y_w;   /* slots of x and w in y's group */
    int dw_x, dw_d; /* and so on */
    int dx_w, dx_d;
};

static int at(const struct maker *m, int g, int slot, int f)
{
    return f < 0 ? -1 : piece_class(m, m->net->groups[g].slot[slot].piece[f]);
}

/* The factor of dx's group that goes with factor f of dw's. */
static int joint_factor(const struct maker *m, const struct triple *t, int f)
{
    int d = at(m, t->dw, t->dw_d, f);
    if (d >= 0)
        return factor_at(m, t->dx, t->dx_d, d);
    int fy = factor_at(m, t->y, t->y_x, at(m, t->dw, t->dw_x, f));
    return factor_at(m, t->dx, t->dx_w, at(m, t->y, t->y_w, fy));
}

static const int *joint_factors(const struct maker *m, const struct triple *t)
{
    int n = m->net->nests->nest[t->dw].n_factors, n_found = 0;
    int *joint = AP_NEW_N(m->net->arena, n, int);

    for (int f = 0; f < n; f++) {
        joint[f] = tofu_factor_usable(&m->net->nests->nest[t->dw], f)
                       ? joint_factor(m, t, f)
                       : -1;
        n_found += joint[f] >= 0;
    }
    return n_found ? joint : NULL;
}

/* Ties y with dy and x with dx. */
static void tie_gradients(struct maker *m, const struct triple *t)
{
    struct tofu_net *net = m->net;
    struct tofu_slot *y = &net->groups[t->y].slot[2], *dx = &net->groups[t->dx].slot[2];
    struct tofu_slot *x = &net->groups[t->y].slot[t->y_x];
    struct tofu_slot *dy = &net->groups[t->dx].slot[t->dx_d];

    for (int f = 0; f < net->nests->nest[t->y].n_factors; f++) {
        int px = at(m, t->y, t->y_x, f), pw = at(m, t->y, t->y_w, f);
        int in_dw = factor_at(m, t->dw, t->dw_x, px);
        int in_dx = factor_at(m, t->dx, t->dx_w, pw);
        int d = in_dx >= 0 ? at(m, t->dx, t->dx_d, in_dx) : at(m, t->dw, t->dw_d, in_dw);
        if (y->piece[f] >= 0 && d >= 0)
            unite_pieces(m, y->piece[f], d);
        if (in_dx < 0 && d >= 0)
            in_dx = factor_at(m, t->dx, t->dx_d, piece_class(m, d));
        if (px >= 0 && in_dx >= 0 && dx->piece[in_dx] >= 0)
            unite_pieces(m, px, dx->piece[in_dx]);
    }
    ap_sets_join(net->class_of, y->node, dy->node);
    ap_sets_join(net->class_of, x->node, dx->node);
}

static int other(const struct maker *m, int g, int class)
{
    return class_of(m, m->net->groups[g].slot[1 - slot_of(m, g, class)].node);
}

/*
 * Are the two others the gradients of y, place by place? What y sums over is no place of
 * dy, all other places of x and w are. Contractions that share their tensors by chance
 * (in a bottleneck, the weight gradients of its three convolutions) differ in this.
 */
static bool are_gradients(const struct maker *m, const struct triple *t)
{
    for (int f = 0; f < m->net->nests->nest[t->y].n_factors; f++) {
        bool kept = m->net->groups[t->y].slot[2].piece[f] >= 0;
        int in_dw = factor_at(m, t->dw, t->dw_x, at(m, t->y, t->y_x, f));
        int in_dx = factor_at(m, t->dx, t->dx_w, at(m, t->y, t->y_w, f));
        if ((in_dw >= 0 && (at(m, t->dw, t->dw_d, in_dw) >= 0) != kept) ||
            (in_dx >= 0 && (at(m, t->dx, t->dx_d, in_dx) >= 0) != kept))
            return false;
    }
    return true;
}

/* Contractions of two tensors to one, and which of them read a class, ascending. */
struct contractions {
    bool *is_one; /* per group */
    struct ap_csr of;
    bool *taken; /* per group: a gradient */
};

static void list_contractions(struct maker *m, struct contractions *c)
{
    struct tofu_net *net = m->net;
    int *class = AP_NEW_N(net->arena, 2 * net->nests->n, int);
    int *group = AP_NEW_N(net->arena, 2 * net->nests->n, int), n = 0;

    c->is_one = AP_NEW_N(net->arena, net->nests->n, bool);
    c->taken = AP_NEW_N(net->arena, net->nests->n, bool);
    for (int g = 0; g < net->nests->n; g++) {
        const struct ap_nest *nest = &net->nests->nest[g];
        if (!nest->heavy || nest->n_ins != 2 || nest->n_outs != 1)
            continue;
        int a = class_of(m, nest->ins[0].node), b = class_of(m, nest->ins[1].node);
        c->is_one[g] = a != b;
        for (int i = 0; i < 2 && a != b; i++) {
            class[n] = i ? b : a;
            group[n++] = g;
        }
    }
    c->of = ap_csr_new(net->arena, net->graph->n_nodes, n, class, group);
}

static int rarer(const struct contractions *c, int a, int b)
{
    return ap_csr_count(&c->of, a) <= ap_csr_count(&c->of, b) ? a : b;
}

/* Contraction h of d is one gradient of y: the other one, of d and x, after y. */
static bool find_partner(const struct maker *m, const struct contractions *c, int y,
                         int h, int d, int x, struct triple *t)
{
    int few = rarer(c, x, d), many = few == x ? d : x;

    for (int i = c->of.start[few]; i < c->of.start[few + 1]; i++) {
        int g = c->of.item[i];
        if (g <= y || g == h || c->taken[g] || other(m, g, few) != many)
            continue;
        int dw = g < h ? g : h, dx = g < h ? h : g;
        int in_dw = other(m, dw, d), in_dx = other(m, dx, d);
        *t = (struct triple){.y = y, .dw = dw, .dx = dx};
        t->y_x = slot_of(m, y, in_dw);
        t->y_w = slot_of(m, y, in_dx);
        t->dw_x = slot_of(m, dw, in_dw);
        t->dw_d = slot_of(m, dw, d);
        t->dx_w = slot_of(m, dx, in_dx);
        t->dx_d = slot_of(m, dx, d);
        if (are_gradients(m, t))
            return true;
    }
    return false;
}

/* The triple that starts with y, by the operand of y that fewer contractions read. */
static bool find_triple(const struct maker *m, const struct contractions *c, int y,
                        struct triple *t)
{
    const struct ap_nest *nest = &m->net->nests->nest[y];
    int a = class_of(m, nest->ins[0].node), b = class_of(m, nest->ins[1].node);
    int few = rarer(c, a, b), many = few == a ? b : a;

    for (int i = c->of.start[few]; i < c->of.start[few + 1]; i++) {
        int h = c->of.item[i], d = other(m, h, few);
        if (h > y && !c->taken[h] && d != many && find_partner(m, c, y, h, d, many, t))
            return true;
    }
    return false;
}

/* The second of two gradients has a partner. */
static struct triple *find_triples(struct maker *m, int *n_triples)
{
    struct contractions c;
    struct triple *triples = AP_NEW_N(m->net->arena, m->net->nests->n, struct triple);

    list_contractions(m, &c);
    *n_triples = 0;
    for (int y = 0; y < m->net->nests->n; y++) {
        struct triple *t = &triples[*n_triples];
        if (!c.is_one[y] || !find_triple(m, &c, y, t))
            continue;
        c.taken[t->dw] = c.taken[t->dx] = true;
        ++*n_triples;
    }
    return triples;
}

/* ---- all together ---- */

static void list_units(struct maker *m, const struct triple *triples, int n_triples)
{
    struct tofu_net *net = m->net;
    const int **joint = AP_NEW_N(net->arena, net->nests->n, const int *);
    int *partner = AP_NEW_N(net->arena, net->nests->n, int);

    for (int g = 0; g < net->nests->n; g++)
        partner[g] = -1;
    for (int i = 0; i < n_triples; i++) {
        joint[triples[i].dw] = joint_factors(m, &triples[i]);
        if (!joint[triples[i].dw])
            continue;
        partner[triples[i].dw] = triples[i].dx;
        partner[triples[i].dx] = triples[i].dw;
    }
    net->units = AP_NEW_N(net->arena, net->nests->n, struct tofu_unit);
    for (int g = 0; g < net->nests->n; g++) {
        if (partner[g] >= 0 && !joint[g])
            continue;
        net->units[net->n_units] = (struct tofu_unit){
            .n_groups = partner[g] >= 0 ? 2 : 1,
            .group = {g, partner[g]},
            .joint = joint[g],
            .leader = net->n_units,
        };
        net->n_units++;
    }
}

/* ---- steps of a recurrence ---- */

/* The group of an earlier step at the place of g, -1. */
static int group_before(const struct tofu_net *net, const int *step, int g)
{
    const struct ap_nest *nest = &net->nests->nest[g];
    const int before = net->graph->nodes[step[nest->members[0]]].group;

    if (before < 0 || before >= g ||
        !shard_fold_same_nest(net->graph, &net->nests->nest[before], net->graph, nest))
        return -1;
    for (int i = 0; i < nest->n_members; i++)
        if (step[nest->members[i]] != net->nests->nest[before].members[i])
            return -1;
    return before;
}

static bool same_joint(const struct tofu_net *net, const struct tofu_unit *u,
                       const struct tofu_unit *first)
{
    return !u->joint ||
           memcmp(u->joint, first->joint,
                  (size_t)net->nests->nest[u->group[0]].n_factors * sizeof(int)) == 0;
}

/* One scheme per tensor and one request per operator of all steps. */
static void tie_steps(struct maker *m)
{
    struct tofu_net *net = m->net;
    const int *step = tofu_steps(net->arena, net->graph, net->families);
    int *unit = AP_NEW_N(net->arena, net->nests->n + 1, int); /* -1: none yet */

    for (int g = 0; g < net->nests->n; g++)
        unit[g] = -1;
    for (int v = 0; v < net->graph->n_nodes; v++)
        if (step[v] != v) {
            tie_tensors(m, v, step[v]);
            net->n_tied++;
        }
    for (int i = 0; i < net->n_units; i++) {
        struct tofu_unit *u = &net->units[i];
        const int before = group_before(net, step, u->group[0]);
        const struct tofu_unit *first =
            before >= 0 && unit[before] >= 0 ? &net->units[unit[before]] : NULL;
        unit[u->group[0]] = i;
        if (first && first->n_groups == u->n_groups && same_joint(net, u, first) &&
            (net->groups[before].anchor < 0) == (net->groups[u->group[0]].anchor < 0) &&
            (u->n_groups == 1 || group_before(net, step, u->group[1]) == first->group[1]))
            u->leader = first->leader;
    }
}

static void flatten(struct maker *m)
{
    struct tofu_net *net = m->net;

    for (int v = 0; v < net->graph->n_nodes; v++)
        net->class_of[v] = class_of(m, v);
    for (int p = 0; p < net->n_pieces; p++)
        net->piece_of[p] = piece_class(m, p);
    for (int v = 0; v < net->graph->n_nodes; v++)
        for (int p = m->first[v]; p >= 0; p = m->piece[p].next)
            for (int q = m->piece[p].next; q >= 0; q = m->piece[q].next)
                if (net->piece_of[p] == net->piece_of[q])
                    net->twisted[net->piece_of[p]] = true;
    for (int g = 0; g < net->nests->n; g++) {
        struct tofu_group *group = &net->groups[g];
        for (int i = 0; i < group->n_slots; i++)
            for (int f = 0; f < net->nests->nest[g].n_factors; f++)
                if (group->slot[i].piece[f] >= 0)
                    group->slot[i].piece[f] = net->piece_of[group->slot[i].piece[f]];
    }
}

void tofu_net_build(struct tofu_net *net)
{
    const struct ap_graph *g = net->graph;
    int n_pieces = count_pieces(net), n_triples;
    struct maker m = {.net = net};

    net->groups = AP_NEW_N(net->arena, net->nests->n, struct tofu_group);
    net->class_of = AP_NEW_N(net->arena, g->n_nodes, int);
    net->home = AP_NEW_N(net->arena, g->n_nodes, struct tofu_region);
    net->piece_of = AP_NEW_N(net->arena, n_pieces, int);
    net->piece_dim = AP_NEW_N(net->arena, n_pieces, int);
    net->twisted = AP_NEW_N(net->arena, n_pieces, bool);
    m.piece = AP_NEW_N(net->arena, n_pieces, struct piece);
    m.wanted = AP_NEW_N(net->arena, n_pieces, bool);
    m.first = AP_NEW_N(net->arena, g->n_nodes, int);
    m.alias = AP_NEW_N(net->arena, g->n_nodes, int);
    for (int v = 0; v < g->n_nodes; v++) {
        net->class_of[v] = v;
        m.first[v] = m.alias[v] = -1;
    }
    for (int r = 0; r < g->n_results; r++)
        m.alias[g->results[r].node] = g->results[r].alias;
    for (int i = 0; i < net->nests->n; i++)
        fill_group(&m, i);
    tie_groups(&m);
    struct triple *triples = find_triples(&m, &n_triples);
    list_units(&m, triples, n_triples);
    for (int i = 0; i < n_triples && net->cut_only; i++)
        tie_gradients(&m, &triples[i]);
    if (net->cut_only)
        tie_steps(&m);
    flatten(&m);
}

void tofu_net_reset(struct tofu_net *net)
{
    for (int v = 0; v < net->graph->n_nodes; v++)
        net->home[v].n = 0;
    for (int g = 0; g < net->nests->n; g++)
        for (int i = 0; i < net->groups[g].n_slots; i++)
            net->groups[g].slot[i].region.n = 0;
}
