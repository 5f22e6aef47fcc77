/*
 * Problem: an unrolled recurrence has the same tensors once per step. Each step would be
 * cut separately, though the steps are identical, and as all steps use the same weights,
 * the tables of the dynamic program grow with the number of steps.
 *
 * Idea: tensors at the same place of two steps have one scheme, and their operators one
 * request. Steps are instances of a family (ap-prune) without weights of their own that
 * multiply the same weights at the same places, or read the results of such steps at the
 * same place (a step may be several families: nodes inside and outside of a name scope).
 * Layers hold weights, so they are not tied; steps inside of layers are, in each layer by
 * themselves.
 *
 * Cost: linear in nodes, per family and round; as many rounds as a step has families.
 * Source: Wang, Huang, Li, "Supporting Very Large Models using Automatic Dataflow Graph
 * Partitioning", section 5.1 (coarsening of unrolled time steps), whose graphs say where
 * steps are.
 */
#include <string.h>

#include "base/union_find.h"
#include "tofu/tofu.h"

#define DEEPEST 8 /* operators between a weight and the parameters it is made of */

/* The last operand of some instance that was a weight, or a tensor of tied steps. */
struct place {
    int instance; /* -1: nowhere */
    int node, operand, tensor;
};

struct finder {
    const struct ap_graph *g;
    const struct ap_families *families;
    bool *weight;        /* [node]: a weight, or made of weights alone */
    int *outer;          /* [node]: instance of the parent of the family at hand, -1 */
    struct place *place; /* [tensor]: the last one, of the family at hand */
    int *step;           /* [node]: union-find; tied nodes of several steps are a set */
    bool *tied;          /* [node]: of a step that is tied to another */
};

/* One class, named by its lowest node; true if they were two. */
static bool tie(struct finder *f, int v, int w)
{
    f->tied[v] = f->tied[w] = true;
    return ap_sets_join(f->step, v, w);
}

static void find_weights(struct finder *f)
{
    for (int v = 0; v < f->g->n_nodes; v++) {
        const struct ap_node *n = &f->g->nodes[v];
        f->weight[v] = n->role == AP_ROLE_WEIGHT || n->n_in > 0;
        for (int k = 0; k < n->n_in; k++)
            f->weight[v] &= f->weight[n->in[k]];
    }
}

static bool holds_weights(const struct finder *f, const struct ap_family *family)
{
    for (int j = 0; j < family->n_nodes; j++)
        if (f->g->nodes[family->nodes[j]].role == AP_ROLE_WEIGHT)
            return true;
    return false;
}

static const int *nodes_of(const struct ap_family *family, int instance)
{
    return family->nodes + (int64_t)instance * family->n_nodes;
}

static void mark_outer(struct finder *f, int family)
{
    memset(f->outer, -1, (size_t)f->g->n_nodes * sizeof *f->outer);
    if (family < 0)
        return;
    const struct ap_family *parent = &f->families->family[family];
    for (int i = 0; i < parent->n_instances; i++)
        for (int j = 0; j < parent->n_nodes; j++)
            f->outer[nodes_of(parent, i)[j]] = i;
}

/* One weight, or made of the same ones in the same way. */
static bool same_weight(struct finder *f, int x, int y, int depth)
{
    const struct ap_node *a = &f->g->nodes[x], *b = &f->g->nodes[y];
    bool same = a->op == b->op && a->n_in == b->n_in && a->n_in > 0 && depth < DEEPEST;

    if (ap_sets_root(f->step, x) == ap_sets_root(f->step, y))
        return true;
    for (int k = 0; same && k < a->n_in; k++)
        same = same_weight(f, a->in[k], b->in[k], depth + 1);
    return same;
}

static bool multiplies(const struct finder *f, const struct ap_node *n, int operand)
{
    return f->weight[n->in[operand]] && ap_ops[n->op].class == AP_CLASS_HEAVY;
}

/* Two instances multiply the same weights everywhere. */
static bool same_weights(struct finder *f, const struct ap_family *family, int i, int k)
{
    for (int j = 0; j < family->n_nodes; j++) {
        const struct ap_node *a = &f->g->nodes[nodes_of(family, i)[j]];
        const struct ap_node *b = &f->g->nodes[nodes_of(family, k)[j]];
        for (int o = 0; o < a->n_in && o < b->n_in; o++)
            if ((multiplies(f, a, o) || multiplies(f, b, o)) &&
                !same_weight(f, a->in[o], b->in[o], 0))
                return false;
    }
    return true;
}

/* An earlier instance in the same one of the parent that this one is a later step of, -1;
 * remembers this one's operands. */
static int instance_before(struct finder *f, const struct ap_family *family, int i)
{
    const int *node = nodes_of(family, i);
    int before = -1;

    for (int j = 0; j < family->n_nodes; j++) {
        const struct ap_node *n = &f->g->nodes[node[j]];
        for (int k = 0; k < n->n_in; k++) {
            const int x = n->in[k];
            struct place *p = &f->place[ap_sets_root(f->step, x)];
            if (!multiplies(f, n, k) && !f->tied[x])
                continue;
            if (p->instance < 0)
                *p = (struct place){i, j, k, x};
            if (p->node != j || p->operand != k)
                continue;
            if (p->instance != i && (multiplies(f, n, k) || p->tensor != x) &&
                f->outer[nodes_of(family, p->instance)[0]] == f->outer[node[0]])
                before = p->instance;
            *p = (struct place){i, j, k, x};
        }
    }
    return before >= 0 && same_weights(f, family, i, before) ? before : -1;
}

/* True when there are new ones. */
static bool find_steps(struct finder *f, const struct ap_family *family)
{
    bool any = false;

    if (holds_weights(f, family))
        return false;
    mark_outer(f, family->parent);
    for (int v = 0; v < f->g->n_nodes; v++)
        f->place[v].instance = -1;
    for (int i = 0; i < family->n_instances; i++) {
        const int before = instance_before(f, family, i);
        for (int j = 0; j < family->n_nodes && before >= 0; j++)
            any |= tie(f, nodes_of(family, i)[j], nodes_of(family, before)[j]);
    }
    return any;
}

int *tofu_steps(struct ap_arena *arena, const struct ap_graph *g,
                const struct ap_families *families)
{
    struct finder f = {.g = g,
                       .families = families,
                       .weight = AP_NEW_N(arena, g->n_nodes + 1, bool),
                       .outer = AP_NEW_N(arena, g->n_nodes + 1, int),
                       .place = AP_NEW_N(arena, g->n_nodes + 1, struct place),
                       .step = ap_sets_new(arena, g->n_nodes + 1),
                       .tied = AP_NEW_N(arena, g->n_nodes + 1, bool)};

    find_weights(&f);
    for (bool any = families != NULL; any;) {
        any = false;
        for (int i = 0; i < families->n; i++)
            any |= find_steps(&f, &families->family[i]);
    }
    for (int v = 0; v < g->n_nodes; v++)
        f.step[v] = ap_sets_root(f.step, v);
    return f.step;
}
