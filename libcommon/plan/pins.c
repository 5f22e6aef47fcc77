/*
 * Layouts that a person gives to nodes by name, and the choices that bring them about.
 * Cost: one glob match per node and pin; one small enumeration per pinned group
 * (layout_to_choice.h).
 */
#include "plan/pins.h"

#include "layout/nested_split.h"
#include "plan/layout_to_choice.h"

struct ap_pins ap_pins_none(struct ap_arena *arena, const struct ap_graph *g)
{
    return (struct ap_pins){.pinned = AP_NEW_N(arena, g->n_nodes, bool),
                            .layout = AP_NEW_N(arena, g->n_nodes, struct ap_layout),
                            .asker = AP_NEW_N(arena, g->n_nodes, const char *)};
}

int ap_pins_set(struct ap_pins *pins, const struct ap_graph *g,
                const struct ap_mesh *mesh, int node, const char *layout,
                const char *asker, struct ap_err *err)
{
    const struct ap_node *n = &g->nodes[node];
    struct ap_err why = {0};

    if (n->shape.dtype == AP_TUPLE)
        return ap_err_set(err, "%s is a tuple, which has no layout of its own", n->name);
    if (ap_layout_parse(mesh, &n->shape, layout, &pins->layout[node], &why))
        return ap_err_set(err, "%s: %s", n->name, why.msg);
    pins->n += !pins->pinned[node];
    pins->pinned[node] = true;
    pins->asker[node] = asker;
    return 0;
}

int ap_pins_refuse(const struct ap_pins *pins, const struct ap_graph *g, int node,
                   const char *why, struct ap_err *err)
{
    const struct ap_node *n = &g->nodes[node];
    const char *asker = pins->asker[node];
    if (asker)
        return ap_err_set(err, "%s (%s) cannot have the layout asked by %s: %s", n->name,
                          ap_ops[n->op].name, asker, why);
    return ap_err_set(err,
                      "%s (%s) cannot have the imported sharding %s: %s (--pins ignore "
                      "drops imported shardings)",
                      n->name, ap_ops[n->op].name, n->pin, why);
}

/* ---- choices ---- */

struct fitter {
    struct ap_arena *arena;
    const struct ap_graph *g;
    const struct ap_mesh *mesh;
    const int16_t *microbatch_choice; /* [group], NULL: none */
    const struct ap_pins *pins;
    bool *wanted; /* per member of the group at hand */
    struct ap_layout *layout;
    int cap;
};

static int microbatch_choice_of(const struct fitter *f, const struct ap_nest *nest)
{
    return f->microbatch_choice ? f->microbatch_choice[nest->group] : -1;
}

/* Why a group has no choice: a dimension that is too small, another pin, or its kind. */
static int refuse(const struct fitter *f, const struct ap_nest *nest, int m,
                  struct ap_err *err)
{
    int node = nest->members[m];
    const struct ap_shape *shape = &f->g->nodes[node].shape;
    struct ap_choice_vec ignored;
    const char *why = NULL;

    for (int a = 0; a < f->mesh->n_axes && !why; a++) {
        const struct ap_placement *p = &f->layout[m].axis[a];
        if (p->kind == AP_SPLIT && ap_stride(p, shape->dims[p->dim]) < f->mesh->size[a])
            why = ap_arena_printf(f->arena,
                                  "%sdimension %d has %lld elements, axis %s %lld "
                                  "devices",
                                  p->stride ? "a run of " : "", p->dim,
                                  (long long)ap_stride(p, shape->dims[p->dim]),
                                  f->mesh->name[a], (long long)f->mesh->size[a]);
    }
    for (int k = 0; k < nest->n_members && !why; k++) {
        bool keep = f->wanted[k];
        if (!keep || k == m)
            continue;
        f->wanted[k] = false;
        if (ap_choice_of_layouts(nest, f->g, f->mesh, microbatch_choice_of(f, nest),
                                 f->wanted, f->layout, &ignored)) {
            const char *other = f->pins->asker[nest->members[k]];
            why = ap_arena_printf(f->arena,
                                  "%s, in the same fused group, has another by %s",
                                  f->g->nodes[nest->members[k]].name,
                                  other ? other : "its imported sharding");
        }
        f->wanted[k] = keep;
    }
    return ap_pins_refuse(f->pins, f->g, node,
                          why ? why : "no way of splitting its operators gives it", err);
}

static int fit_group(struct fitter *f, const struct ap_nest *nest,
                     struct ap_choice_vec *choice, bool *fixed, struct ap_err *err)
{
    int first = -1;
    for (int m = 0; m < nest->n_members; m++)
        if (f->pins->pinned[nest->members[m]] && first < 0)
            first = m;
    if (first < 0)
        return 0;
    if (nest->n_members > f->cap) {
        f->cap = 2 * nest->n_members;
        f->wanted = AP_NEW_N(f->arena, f->cap, bool);
        f->layout = AP_NEW_N(f->arena, f->cap, struct ap_layout);
    }
    for (int m = 0; m < nest->n_members; m++) {
        f->wanted[m] = f->pins->pinned[nest->members[m]];
        f->layout[m] = f->pins->layout[nest->members[m]];
    }
    *fixed = true;
    if (!ap_choice_of_layouts(nest, f->g, f->mesh, microbatch_choice_of(f, nest),
                              f->wanted, f->layout, choice))
        return refuse(f, nest, first, err);
    return 0;
}

int ap_pins_fit(struct ap_arena *arena, const struct ap_plan *plan,
                const struct ap_pins *pins, struct ap_choice_vec **choice, bool **fixed,
                struct ap_err *err)
{
    const struct ap_nests *nests = plan->nests;
    struct fitter f = {.arena = arena,
                       .g = nests->graph,
                       .mesh = &plan->mesh,
                       .microbatch_choice = plan->microbatch_choice,
                       .pins = pins};
    *choice = AP_NEW_N(arena, nests->n, struct ap_choice_vec);
    *fixed = AP_NEW_N(arena, nests->n, bool);
    for (int i = 0; i < nests->n; i++)
        if (fit_group(&f, &nests->nest[i], &(*choice)[i], &(*fixed)[i], err))
            return -1;
    return 0;
}
