/*
 * Layouts that a person gives to nodes by name, and the choices that bring them about.
 * Cost: one glob match per node and pin; one small enumeration per pinned group
 * (layout_to_choice.h).
 */
#include <string.h>

#include "problem/layout_to_choice.h"
#include "problem/shard.h"

int shard_pins_set(struct shard_pins *pins, const struct ap_graph *g,
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

int shard_pins_add(struct ap_arena *arena, const struct ap_graph *g,
                   const struct ap_mesh *mesh, const struct ap_list *list,
                   struct shard_pins *pins, struct ap_err *err)
{
    if (list->n > 0 && !pins->pinned)
        *pins = shard_pins_none(arena, g);
    for (int i = 0; i < list->n; i++) {
        const char *text = list->v[i], *eq = strrchr(text, '=');
        const char *asker = ap_arena_printf(arena, "--pin '%s'", text);
        bool any = false;
        if (!eq)
            return ap_err_set(err, "%s: expected GLOB=LAYOUT, such as '*/kernel=S0,R'",
                              asker);
        const char *glob = ap_arena_strndup(arena, text, (size_t)(eq - text));
        for (int k = 0; k < g->n_nodes; k++) {
            struct ap_err why = {0};
            if (strcmp(glob, g->nodes[k].name) != 0 && !ap_glob(glob, g->nodes[k].name))
                continue;
            any = true;
            if (shard_pins_set(pins, g, mesh, k, eq + 1, asker, &why))
                return ap_err_set(err, "%s: %s", asker, why.msg);
        }
        if (!any)
            return ap_err_set(err, "%s: the graph has no such node", asker);
    }
    return 0;
}

/* Makes layout l of the devices' axes one of a mesh with a microbatch axis; -1: none. */
static int add_microbatch_axis(const struct ap_nests *nests, const struct ap_mesh *mesh,
                               const int16_t *microbatch_choice, int node,
                               struct ap_layout *l)
{
    const struct ap_graph *g = nests->graph;
    const struct ap_nest *nest = &nests->nest[g->nodes[node].group];
    const struct ap_shape *shape = &g->nodes[node].shape;
    struct ap_choice_vec alone = AP_CHOICE_NONE;
    struct ap_mesh devices_only = *mesh;

    devices_only.microbatch = 0; /* parameters are split as their users are */
    alone.axis[0] = microbatch_choice[nest->group];
    struct ap_layout timed =
        ap_nest_value_layout(nest, g, &devices_only, &alone, ap_nest_member(nest, node));
    for (int a = 1; a < mesh->n_axes; a++)
        timed.axis[a] = l->axis[a - 1];
    *l = timed;
    if (ap_layout_canon(mesh, shape, l))
        return -1;
    bool there = g->nodes[node].op == AP_OP_PARAMETER; /* for all microbatches */
    return there && l->axis[0].kind == AP_SPLIT ? ap_layout_unsplit(mesh, shape, l, 0)
                                                : 0;
}

int shard_pins_on_mesh(struct ap_arena *arena, struct shard_pins *pins,
                       const struct ap_nests *nests, const struct ap_mesh *mesh,
                       const int16_t *microbatch_choice, struct ap_err *err)
{
    const struct ap_graph *g = nests->graph;
    struct ap_layout *layout;

    if (!mesh->microbatch || pins->n == 0)
        return 0;
    layout = ap_arena_dup(arena, pins->layout, (size_t)g->n_nodes * sizeof *layout);
    for (int i = 0; i < g->n_nodes; i++)
        if (pins->pinned[i] &&
            add_microbatch_axis(nests, mesh, microbatch_choice, i, &layout[i]))
            return shard_pins_refuse(pins, g, i, "microbatches do not divide it so", err);
    pins->layout = layout;
    return 0;
}

int shard_pins_refuse(const struct shard_pins *pins, const struct ap_graph *g, int node,
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
    const struct shard_pins *pins;
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
        const struct ap_layout *l = &f->layout[m];
        if (l->axis[a].kind == AP_SPLIT && shape->dims[l->axis[a].dim] < f->mesh->size[a])
            why = ap_arena_printf(f->arena,
                                  "dimension %d has %lld elements, axis %s %lld "
                                  "devices",
                                  l->axis[a].dim, (long long)shape->dims[l->axis[a].dim],
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
    return shard_pins_refuse(f->pins, f->g, node,
                             why ? why : "no way of splitting its operators gives it",
                             err);
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

int shard_pins_fit(struct ap_arena *arena, const struct shard_task *task,
                   const struct shard_pins *pins, struct ap_choice_vec **choice,
                   bool **fixed, struct ap_err *err)
{
    const struct ap_nests *nests = task->nests;
    struct fitter f = {.arena = arena,
                       .g = nests->graph,
                       .mesh = &task->cost->mesh,
                       .microbatch_choice = task->microbatch_choice,
                       .pins = pins};
    *choice = AP_NEW_N(arena, nests->n, struct ap_choice_vec);
    *fixed = AP_NEW_N(arena, nests->n, bool);
    for (int i = 0; i < nests->n; i++)
        if (fit_group(&f, &nests->nest[i], &(*choice)[i], &(*fixed)[i], err))
            return -1;
    return 0;
}
