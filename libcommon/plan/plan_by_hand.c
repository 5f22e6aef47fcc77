/*
 * Problem: a person writes the layouts of some nodes, by name, or the name of a named
 * plan, or both; which plan is that? Idea: groups with such nodes get the choices that
 * give these layouts (pins.h), or the factors that split the operands so that are named;
 * all others follow the named plan, or else the splits that there are
 * (ap_named_plan_complete). Cost: one match per name and node; a small enumeration for
 * each group with layouts.
 */
#include <stdlib.h>
#include <string.h>

#include "plan/named_plan.h"
#include "plan/pins.h"

struct by_hand {
    struct ap_arena *arena;
    struct ap_plan *plan;
    struct ap_pins pins;
    struct ap_choice_vec *by_factor; /* [group]: choices that name operands */
    const char **asker;              /* [group]: who named them; NULL: nobody */
};

/* ---- factors by the operands that they split ---- */

/* The layout of operand k of member m of a nest under a choice. */
static struct ap_layout operand_layout(const struct ap_plan *plan,
                                       const struct ap_nest *nest, int m, int k,
                                       const struct ap_choice_vec *choice)
{
    int slot = nest->in_slot[m][k];
    const struct ap_node *node = &plan->graph->nodes[nest->members[m]];

    return slot >= 0 ? ap_nest_in_layout(nest, plan->graph, &plan->mesh, choice, slot)
                     : ap_nest_value_layout(nest, plan->graph, &plan->mesh, choice,
                                            ap_nest_member(nest, node->in[k]));
}

/* One axis of a text such as "R,1:S0": the factor or linear set, alone on this axis,
 * under which the node's value, or operand k, has the placement. -2: there is none. */
static int find_choice(const struct by_hand *h, int node, int axis, const char *text,
                       struct ap_err *err)
{
    const struct ap_plan *plan = h->plan;
    const struct ap_node *n = &plan->graph->nodes[node];
    const struct ap_nest *nest = &plan->nests->nest[n->group];
    const struct ap_mesh one = {
        .n_axes = 1, .name = {"x"}, .size = {plan->mesh.size[axis]}};
    const char *colon = strchr(text, ':');
    const size_t digits = strspn(text, "0123456789");
    const long k = colon ? strtol(text, NULL, 10) : -1;
    int m = ap_nest_member(nest, node);
    struct ap_layout want;

    if (colon && (digits == 0 || text + digits != colon || k >= n->n_in))
        return ap_err_set(err, "%s: expected an operand from 0 to %d before the colon",
                          text, n->n_in - 1),
               -2;
    const struct ap_shape *shape =
        ap_value_shape(k < 0 ? n : &plan->graph->nodes[n->in[k]]);
    if (ap_layout_parse(&one, shape, colon ? colon + 1 : text, &want, err))
        return -2;
    for (int c = -1; c < nest->n_factors + nest->n_linear; c++) {
        struct ap_choice_vec alone = AP_CHOICE_NONE;
        alone.axis[axis] = (int16_t)c;
        if (!ap_choice_ok(nest, &plan->mesh, &alone))
            continue;
        struct ap_layout l =
            k < 0 ? ap_nest_value_layout(nest, plan->graph, &plan->mesh, &alone, m)
                  : operand_layout(plan, nest, m, (int)k, &alone);
        const struct ap_placement *a = &l.axis[axis], *b = &want.axis[0];
        if (a->kind == b->kind && a->red == b->red &&
            (a->kind != AP_SPLIT || (a->dim == b->dim && a->stride == b->stride)))
            return c;
    }
    ap_err_set(err, "no way of splitting %s (%s) gives %s", n->name, ap_ops[n->op].name,
               text);
    return -2;
}

/* A layout that names operands: the choice of the node's group, one factor per axis. */
static int choose(struct by_hand *h, int node, const char *layout, const char *asker,
                  struct ap_err *err)
{
    const struct ap_plan *plan = h->plan;
    int group = plan->graph->nodes[node].group, a = 0;
    struct ap_choice_vec choice = AP_CHOICE_NONE;
    char *comma, *word = ap_arena_strdup(h->arena, layout);

    for (; word; word = comma ? comma + 1 : NULL) {
        if ((comma = strchr(word, ',')))
            *comma = '\0';
        int c = a < plan->mesh.n_axes ? find_choice(h, node, a, word, err) : -1;
        if (c < -1)
            return -1;
        if (a < plan->mesh.n_axes)
            choice.axis[a] = (int16_t)c;
        a++;
    }
    if (a != plan->mesh.n_axes)
        return ap_err_set(err, "%s has %d placements, the mesh %d axes", layout, a,
                          plan->mesh.n_axes);
    if (!ap_choice_ok(&plan->nests->nest[group], &plan->mesh, &choice))
        return ap_err_set(err, "%s cannot be split like this on all axes at once",
                          plan->graph->nodes[node].name);
    if (h->asker[group] && memcmp(&h->by_factor[group], &choice, sizeof choice) != 0)
        return ap_err_set(err, "the fused group of %s is split another way by %s",
                          plan->graph->nodes[node].name, h->asker[group]);
    h->by_factor[group] = choice;
    h->asker[group] = asker;
    return 0;
}

/* ---- nodes by name ---- */

/* The nodes of this name, or else those that match it: marks them. Returns how many. */
static int find_nodes(const struct ap_graph *g, const char *name, bool *found)
{
    int n = 0;

    for (int glob = 0; glob < 2 && n == 0; glob++)
        for (int i = 0; i < g->n_nodes; i++)
            if (glob ? ap_glob(name, g->nodes[i].name)
                     : !strcmp(name, g->nodes[i].name)) {
                found[i] = true;
                n++;
            }
    return n;
}

/* A node that several names match has the layout of the last. */
static int read_nodes(struct by_hand *h, json_t *nodes, const struct ap_at *at,
                      struct ap_err *err)
{
    const struct ap_graph *g = h->plan->graph;
    const char **last = AP_NEW_N(h->arena, g->n_nodes + 1, const char *), *name;
    json_t *v;

    if (!json_is_object(nodes))
        return ap_at_err(at, err, "expected an object of layouts by the names of nodes");
    json_object_foreach(nodes, name, v)
    {
        const struct ap_at here = {at, name, 0};
        bool *found = AP_NEW_N(h->arena, g->n_nodes + 1, bool);
        if (!json_is_string(v))
            return ap_at_err(&here, err, "expected a layout such as \"S0,R\"");
        if (find_nodes(g, name, found) == 0)
            return ap_at_err(&here, err, "the graph has no such node");
        for (int i = 0; i < g->n_nodes; i++)
            if (found[i])
                last[i] = name;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        if (!last[i])
            continue;
        const struct ap_at here = {at, last[i], 0};
        const char *layout = json_string_value(json_object_get(nodes, last[i]));
        const char *asker = ap_arena_printf(h->arena, "'%s'", last[i]);
        struct ap_err why = {0};
        if (strchr(layout, ':')
                ? choose(h, i, layout, asker, &why)
                : ap_pins_set(&h->pins, g, &h->plan->mesh, i, layout, asker, &why))
            return ap_at_err(&here, err, "%s", why.msg);
    }
    return 0;
}

static int read_regather(struct by_hand *h, const json_t *list, const struct ap_at *at,
                         struct ap_err *err)
{
    const struct ap_graph *g = h->plan->graph;
    bool *marks = AP_NEW_N(h->arena, g->n_nodes + 1, bool);
    const json_t *v;
    size_t i;

    if (!json_is_array(list))
        return ap_at_err(at, err, "expected an array of nodes");
    json_array_foreach(list, i, v)
    {
        const struct ap_at here = {at, NULL, (long)i};
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id >= 0 && id < g->n_nodes)
            marks[id] = true;
        else if (!json_is_string(v) || find_nodes(g, json_string_value(v), marks) == 0)
            return ap_at_err(&here, err, "the graph has no such node");
    }
    for (int k = 0; k < g->n_nodes && h->plan->regather; k++)
        marks[k] |= h->plan->regather[k];
    h->plan->regather = marks;
    return 0;
}

/* ---- the plan ---- */

/* The row of the named plan that "algorithm" names; -1: none is named. */
static int read_row(const json_t *o, const struct ap_at *at, int *row, struct ap_err *err)
{
    const struct ap_at here = {at, "algorithm", 0};
    const char *name = NULL;

    *row = -1;
    if (ap_opt_str(o, at, "algorithm", &name, err))
        return -1;
    for (int i = 0; i < AP_N_NAMED_PLANS && name; i++)
        if (!strcmp(name, ap_named_plans[i].name))
            *row = i;
    if (*row >= 0 || (!name && json_object_get(o, "nodes")))
        return 0;
    if (!name)
        return ap_at_err(at, err,
                         "expected \"groups\", or \"nodes\" with layouts, or the "
                         "\"algorithm\" of a named plan, such as \"data\"");
    return ap_at_err(&here, err,
                     "\"%.80s\" is not a named plan; a plan of another algorithm has "
                     "\"groups\"",
                     name);
}

/* The choices that layouts and operands ask for, and which groups have one. */
static int fit(struct by_hand *h, bool **fixed, struct ap_err *err)
{
    struct ap_plan *plan = h->plan;

    if (ap_pins_fit(h->arena, plan, &h->pins, &plan->choice, fixed, err))
        return -1;
    for (int i = 0; i < plan->nests->n; i++) {
        if (!h->asker[i])
            continue;
        if ((*fixed)[i])
            return ap_err_set(
                err, "the fused group of %s has layouts, and is split by %s",
                plan->graph->nodes[plan->nests->nest[i].members[0]].name, h->asker[i]);
        plan->choice[i] = h->by_factor[i];
        (*fixed)[i] = true;
    }
    return 0;
}

int ap_plan_by_hand(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                    struct ap_plan *plan, struct ap_err *err)
{
    json_t *nodes = json_object_get(o, "nodes");
    const json_t *regather = json_object_get(o, "regather");
    const struct ap_at nodes_at = {at, "nodes", 0}, regather_at = {at, "regather", 0};
    struct by_hand h = {.arena = arena,
                        .plan = plan,
                        .pins = ap_pins_none(arena, plan->graph),
                        .by_factor =
                            AP_NEW_N(arena, plan->nests->n, struct ap_choice_vec),
                        .asker = AP_NEW_N(arena, plan->nests->n, const char *)};
    struct ap_err why = {0};
    bool *fixed;
    int row;

    if (read_row(o, at, &row, err) || (nodes && read_nodes(&h, nodes, &nodes_at, err)))
        return -1;
    if (fit(&h, &fixed, &why))
        return ap_at_err(&nodes_at, err, "%s", why.msg), 1;
    const struct ap_named_plan_how how = {.fixed = fixed};
    if (row < 0)
        ap_named_plan_complete(arena, plan, fixed);
    else if (ap_named_plan_make(arena, row, plan, &how, &why))
        return ap_at_err(at, err, "%s: %s", ap_named_plans[row].name, why.msg);
    return regather ? read_regather(&h, regather, &regather_at, err) : 0;
}
