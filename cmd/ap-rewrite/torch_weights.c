/*
 * Problem: how PyTorch holds each parameter of a module, and which of them FSDP2 gathers.
 * Idea: a parameter has four layouts: its own between steps, the layout of its first use
 * in the forward pass, its optimizer state's, and its gradient's when it is computed. A
 * weight, or its state, that lies split along axes along which its use has it whole is
 * FSDP2's, which gathers it and scatters the gradient. FSDP2 has one set of axes, the one
 * with most bytes, and splits one dimension; DTensor gathers weights with other layouts.
 * A sharded state of a whole weight (ZeRO-1, ZeRO-2) is FSDP2 without a second gather:
 * the weight is held as its state. Cost: linear in the update's nodes. Sources:
 * Rajbhandari et al., "ZeRO", section 5; Zhao et al., "PyTorch FSDP", section 3.2;
 * torch.distributed.fsdp.fully_shard.
 */
#include "torch.h"

#include <string.h>

static bool splits(const struct ap_layout *l, int axis)
{
    return l->axis[axis].kind == AP_SPLIT;
}

/* ---- names ---- */

/* "layers.0.q_proj.weight": words of letters, digits and _, with dots between them. */
static bool is_module_name(const char *s)
{
    for (bool first = true; *s; s++) {
        bool word = *s == '_' || (*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'z') ||
                    (*s >= 'A' && *s <= 'Z');
        if (!word && (*s != '.' || first))
            return false;
        first = *s == '.';
    }
    return true;
}

/* The scope of a parameter is its name with slashes for dots. */
static bool is_scope_of(const char *scope, const char *name)
{
    while (*scope && (*scope == *name || (*scope == '/' && *name == '.')))
        scope++, name++;
    return !*scope && !*name;
}

int torch_check_names(const struct ap_graph *g, struct ap_err *err)
{
    int n = 0;

    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *node = &g->nodes[g->params[i]];
        if (node->role != AP_ROLE_WEIGHT)
            continue;
        n++;
        if (!is_module_name(node->name) || !is_scope_of(node->scope, node->name))
            return ap_err_set(err,
                              "weight '%s' is not named as a PyTorch module names its "
                              "parameters: plans of modules come from "
                              "scripts/torch/export.py",
                              node->name);
    }
    return n ? 0 : ap_err_set(err, "the graph has no weights");
}

/* ---- layouts ---- */

struct ap_layout torch_operand_layout(const struct ap_plan *plan,
                                      const struct ap_conversions *conv, int node, int k)
{
    const struct ap_node *n = &plan->graph->nodes[node];
    const struct ap_nest *nest = &plan->nests->nest[n->group];
    int slot = nest->in_slot[ap_nest_member(nest, node)][k];
    int c = slot < 0 ? -1 : conv->in_conv[conv->in_start[n->group] + slot];

    return c < 0 ? ap_plan_node_layout(plan, n->in[k]) : conv->conv[c].to;
}

/* The layout that the first user of this phase takes the weight in. */
static struct ap_layout use_of(const struct torch_part *part, int node)
{
    const struct ap_graph *g = part->plan->graph;
    struct ap_layout first = ap_plan_node_layout(part->plan, node);
    bool found = false, differ = false;

    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        const struct ap_node *user = &g->nodes[g->users[u]];
        for (int k = 0; k < user->n_in; k++) {
            if (user->in[k] != node || user->phase != AP_FORWARD)
                continue;
            struct ap_layout l =
                torch_operand_layout(part->plan, part->conv, g->users[u], k);
            differ |= found && !ap_layout_equal(&l, &first);
            first = found ? first : l;
            found = true;
        }
    }
    if (differ)
        ap_note(part->notes,
                "%s is used in several layouts: it is brought to that of the first",
                g->nodes[node].name);
    return first;
}

/* ---- the update ---- */

/* What the update of a weight reads. */
struct update {
    int state, gradient; /* nodes, -1: none */
};

/* What a node of the update is to its weight; true: the walk goes on to its operands. */
static bool note_update(const struct ap_node *node, int id, struct update *of)
{
    if (node->op == AP_OP_PARAMETER) {
        if (node->role == AP_ROLE_STATE && of->state < 0)
            of->state = id;
        return false;
    }
    if (node->phase == AP_BACKWARD && id > of->gradient)
        of->gradient = id;
    return node->phase == AP_UPDATE;
}

/* Walks back from each weight's next value through the update's nodes of its dims. */
static struct update *find_updates(struct ap_arena *arena, const struct ap_graph *g)
{
    struct update *of = AP_NEW_N(arena, g->n_nodes, struct update);
    struct ap_mark mark = ap_arena_mark(arena);
    int *stack = AP_NEW_N(arena, g->n_nodes, int);
    int *seen = AP_NEW_N(arena, g->n_nodes, int); /* last result that came by, + 1 */

    for (int i = 0; i < g->n_nodes; i++)
        of[i] = (struct update){-1, -1};
    for (int r = 0; r < g->n_results; r++) {
        int weight = g->results[r].alias, n = 0;
        if (weight < 0 || g->nodes[weight].role != AP_ROLE_WEIGHT)
            continue;
        seen[weight] = seen[g->results[r].node] = r + 1;
        stack[n++] = g->results[r].node;
        while (n) {
            int id = stack[--n];
            const struct ap_node *node = &g->nodes[id];
            if (!ap_shape_same_dims(&node->shape, &g->nodes[weight].shape) ||
                !note_update(node, id, &of[weight]))
                continue;
            for (int k = 0; k < node->n_in; k++) {
                if (seen[node->in[k]] != r + 1)
                    stack[n++] = node->in[k];
                seen[node->in[k]] = r + 1;
            }
        }
    }
    ap_arena_rewind(arena, mark);
    return of;
}

/* ---- FSDP2 ---- */

/* Devices of the axes from `first` on that split the dimension in the weight's use. */
static int64_t split_by_use(const struct ap_mesh *mesh, const struct torch_weight *w,
                            int dim, int first)
{
    int64_t n = 1;
    for (int a = first; a < mesh->n_axes; a++)
        if (splits(&w->use, a) && w->use.axis[a].dim == dim)
            n *= mesh->size[a];
    return n;
}

/* Whether FSDP2 can hold the weight split along the axes: along one dimension, evenly but
 * for the first. */
static bool fsdp_holds(const struct torch_part *part, const struct torch_weight *w,
                       unsigned axes)
{
    const struct ap_shape *shape = &part->plan->graph->nodes[w->node].shape;
    const struct ap_mesh *mesh = &part->plan->mesh;
    int dim = -1;

    for (int a = 0; a < mesh->n_axes; a++) {
        if (!(axes >> a & 1))
            continue;
        if (!splits(&w->held, a) || (dim >= 0 && w->held.axis[a].dim != dim))
            return false;
        dim = w->held.axis[a].dim;
    }
    if (dim < 0)
        return false;
    int64_t size = shape->dims[dim], others = split_by_use(mesh, w, dim, 0);
    return (dim == 0 && others == 1) || size % (others * ap_mesh_group(mesh, axes)) == 0;
}

/* As FSDP2 has it: its axes split what the use's axes left, whatever the mesh's order. */
static struct ap_layout held_by_fsdp(const struct torch_part *part,
                                     const struct torch_weight *w)
{
    const struct ap_shape *shape = &part->plan->graph->nodes[w->node].shape;
    const struct ap_mesh *mesh = &part->plan->mesh;
    struct ap_layout l = w->use;

    for (int a = 0; a < mesh->n_axes; a++) {
        if (!(part->fsdp.shard >> a & 1))
            continue;
        int dim = w->held.axis[a].dim;
        int64_t later = split_by_use(mesh, w, dim, a);
        l.axis[a] = (struct ap_placement){.kind = AP_SPLIT, .dim = (uint8_t)dim};
        if (later > 1)
            l.axis[a].stride = shape->dims[dim] / later;
    }
    return l;
}

static struct ap_layout sharded_as_state(const struct torch_weight *w, int n_axes)
{
    struct ap_layout held = w->own;
    for (int a = 0; a < n_axes; a++)
        if (!splits(&held, a) && !splits(&w->use, a) && splits(&w->state, a)) {
            held.axis[a] = w->state.axis[a];
            held.axis[a].stride = 0; /* which rows a device updates is all the same */
        }
    return held;
}

/* Axes along which the weight lies split and its use has it whole. */
static unsigned gathered_axes(const struct ap_mesh *mesh, const struct torch_weight *w)
{
    unsigned axes = 0;
    for (int a = 0; a < mesh->n_axes; a++)
        if (!(mesh->microbatch >> a & 1) && splits(&w->held, a) && !splits(&w->use, a))
            axes |= 1u << a;
    return axes;
}

/* The set of axes along which most bytes of weights are gathered that FSDP2 can hold. */
static unsigned most_gathered(const struct torch_part *part)
{
    const struct ap_graph *g = part->plan->graph;
    int64_t bytes[1 << AP_MAX_AXES] = {0};
    unsigned best = 0;

    for (int i = 0; i < part->n_weights; i++) {
        const struct torch_weight *w = &part->weight[i];
        unsigned axes = gathered_axes(&part->plan->mesh, w);
        if (!fsdp_holds(part, w, axes))
            continue;
        bytes[axes] = ap_add64(bytes[axes], ap_shape_bytes(&g->nodes[w->node].shape));
        if (bytes[axes] > bytes[best])
            best = axes;
    }
    return best;
}

/* Axes along which the weights that FSDP2 holds are whole, and their gradients sums. */
static unsigned replicated_axes(const struct torch_part *part)
{
    const struct ap_mesh *mesh = &part->plan->mesh;
    unsigned split = mesh->microbatch, sums = 0;

    for (int i = 0; i < part->n_weights; i++) {
        const struct torch_weight *w = &part->weight[i];
        for (int a = 0; a < mesh->n_axes && w->fsdp; a++) {
            split |= (unsigned)(splits(&w->held, a) || splits(&w->use, a)) << a;
            sums |= (unsigned)(w->gradient.axis[a].kind == AP_PARTIAL) << a;
        }
    }
    return sums & ~split;
}

/* What is different where weights are held otherwise than the plan has them. */
static void note_held(struct torch_part *part, int whole, int moved)
{
    if (moved)
        ap_note(part->notes,
                "%d weights: FSDP2 splits each device's part further, where the "
                "plan splits the whole first",
                moved);
    if (whole)
        ap_note(part->notes,
                "%d weights are whole between steps, their optimizer states split: "
                "both are held split, and the weights gathered for their first use",
                whole);
}

static void choose_fsdp(struct torch_part *part)
{
    const struct ap_plan *plan = part->plan;
    int n = 0, n_again = 0, whole = 0, moved = 0;

    part->fsdp.shard = most_gathered(part);
    for (int i = 0; i < part->n_weights; i++) {
        struct torch_weight *w = &part->weight[i];
        struct ap_layout planned = w->held;
        whole += !ap_layout_equal(&w->held, &w->own);
        w->fsdp = gathered_axes(&plan->mesh, w) == part->fsdp.shard &&
                  fsdp_holds(part, w, part->fsdp.shard);
        if (!w->fsdp)
            continue;
        n++;
        n_again += plan->regather && plan->regather[w->node];
        w->held = held_by_fsdp(part, w);
        moved += !ap_layout_equal(&planned, &w->held);
    }
    part->fsdp.replicate = replicated_axes(part);
    part->fsdp.reshard = 2 * n_again > n;
    if (n_again && n_again < n)
        ap_note(part->notes,
                "%d of %d weights are gathered anew for the backward pass: FSDP2 "
                "does %s",
                n_again, n, part->fsdp.reshard ? "so with all" : "so with none");
    note_held(part, whole, moved);
}

void torch_find_weights(struct torch_part *part)
{
    const struct ap_graph *g = part->plan->graph;
    struct update *update = find_updates(part->arena, g);

    part->weight = AP_NEW_N(part->arena, g->n_params + 1, struct torch_weight);
    for (int i = 0; i < g->n_params; i++) {
        int node = g->params[i];
        if (g->nodes[node].role != AP_ROLE_WEIGHT)
            continue;
        struct torch_weight *w = &part->weight[part->n_weights++];
        int state = update[node].state, gradient = update[node].gradient;
        w->node = node;
        w->own = ap_plan_node_layout(part->plan, node);
        w->state = state < 0 ? w->own : ap_plan_node_layout(part->plan, state);
        w->gradient = gradient < 0 ? w->own : ap_plan_node_layout(part->plan, gradient);
        w->use = use_of(part, node);
        torch_express(part, node, TORCH_USED, &w->use);
        w->held = sharded_as_state(w, part->plan->mesh.n_axes);
    }
    choose_fsdp(part);
    for (int i = 0; i < part->n_weights; i++)
        if (!part->weight[i].fsdp)
            torch_express(part, part->weight[i].node, TORCH_HELD, &part->weight[i].held);
}
