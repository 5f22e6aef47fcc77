/*
 * One rank plays several devices of the plan.
 *
 * Problem: a plan for M devices is to run on M / N ranks, each rank running N consecutive
 * devices of the mesh, one after the other. Idea: the list of a rank has each group of
 * the device's list once per device. Devices take turns: the first runs up to a
 * collective that needs what another device of its rank has not made yet, then the next
 * one does, so that the memory of a device between two collectives is free when the next
 * device begins. A collective between devices of a rank becomes local operators, with a
 * collective between ranks in their midst where its group spans several
 * (program_tile_coll.c). Operands of sums are added up as soon as they are made, so that
 * a rank holds one sum of gradients, not N.
 *
 * Devices of a rank share one copy of a group if its operands are the same values and it
 * does not depend on the device's place (value numbering): a weight that all hold, values
 * made of reduced gradients alone, and the update of both. Nodes that depend on the place
 * (parameters, constants, masks, ap-slice, ap-partial) have the number of their device
 * (attrs.device). The first parameters and results are the source graph's, as the first
 * device holds them; after them come those of other devices.
 *
 * A plan's list reduces the loss before the backward pass, and updates a weight as soon
 * as its gradient is reduced: there all devices would meet with all activations in
 * memory. Alternatively, groups that need a sum that the backward pass does not read come
 * after all others, and gradients wait instead. Both lists are made, and the one with the
 * smaller peak of live values is taken.
 *
 * Over microbatches the three stretches of the list stay. Linear in nodes times devices,
 * but for the search of an equal copy, which is quadratic in devices.
 *
 * Source: Wang et al., "Supporting Very Large Models using Automatic Dataflow Graph
 * Partitioning" (Tofu), EuroSys 2019: operators partitioned for k devices, run by one.
 */
#include "program/program_tile.h"

#include "base/array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Operators of a rank; a list of twice as many has no room in a document. */
#define AP_MAX_TILED (1 << 24)

/* ---- meshes ---- */

int ap_tile_ranks(const struct ap_mesh *mesh, int64_t n, struct ap_mesh *ranks)
{
    *ranks = *mesh;
    for (int a = mesh->n_axes - 1; a >= (mesh->microbatch ? 1 : 0); a--) {
        const int64_t size = mesh->size[a];
        if (n % size == 0) {
            ranks->size[a] = 1;
            n /= size;
        } else if (size % n == 0) {
            ranks->size[a] = size / n;
            n = 1;
        } else {
            return -1;
        }
    }
    return n == 1 ? 0 : -1;
}

static struct ap_mesh inner_mesh(const struct ap_mesh *mesh, const struct ap_mesh *ranks)
{
    struct ap_mesh inner = *mesh;
    for (int a = 0; a < mesh->n_axes; a++)
        inner.size[a] = mesh->size[a] / ranks->size[a];
    inner.microbatch = 0;
    return inner;
}

/* Whether two devices have equal coordinates on a set of axes. */
static bool same_place(const struct tile *t, int d, int e, unsigned axes)
{
    int64_t a[AP_MAX_AXES], b[AP_MAX_AXES];

    ap_mesh_coords(&t->inner, d, a);
    ap_mesh_coords(&t->inner, e, b);
    for (int i = 0; i < t->inner.n_axes; i++)
        if (axes >> i & 1 && a[i] != b[i])
            return false;
    return true;
}

int tile_members(const struct tile *t, unsigned axes, int device, int *member)
{
    int k = 0;
    for (int d = 0; d < t->n; d++)
        if (same_place(t, device, d, ~axes))
            member[k++] = d;
    return k;
}

bool tile_meets(const struct tile *t, int node)
{
    const struct ap_node *n = &t->g->nodes[node];
    return ap_ops[n->op].class == AP_CLASS_COLLECTIVE &&
           !(n->attrs->coll.axes & t->prog->mesh.microbatch) &&
           ap_mesh_group(&t->inner, n->attrs->coll.axes) > 1;
}

/* ---- the order of a device ---- */

/* [node]: it, or what is made of it, is read in the backward pass. */
static bool *find_read_backward(const struct tile *t)
{
    const struct ap_graph *g = t->g;
    bool *read = AP_NEW_N(t->arena, g->n_nodes + 1, bool);

    for (int i = g->n_nodes - 1; i >= 0; i--)
        for (int u = g->user_start[i]; u < g->user_start[i + 1]; u++)
            read[i] |= read[g->users[u]] || g->nodes[g->users[u]].phase == AP_BACKWARD;
    return read;
}

/* The plan's list, or with groups that need a sum over devices, such as a gradient or the
 * loss, after all others; how many these are. */
static int find_order(struct tile *t, bool sums_last)
{
    const struct ap_graph *g = t->g;
    const bool *read = find_read_backward(t);
    bool *late = AP_NEW_N(t->arena, g->n_groups + 1, bool);
    int n = 0, n_late = 0;

    for (int i = 0; i < g->n_nodes && sums_last; i++) {
        const struct ap_node *node = &g->nodes[i];
        if (node->group < t->prog->each_hi)
            continue;
        late[node->group] |=
            tile_meets(t, i) && !read[i] &&
            (node->op == AP_OP_ALL_REDUCE || node->op == AP_OP_REDUCE_SCATTER);
        for (int k = 0; k < node->n_in; k++)
            late[node->group] |= late[g->nodes[node->in[k]].group];
    }
    t->order = AP_NEW_N(t->arena, g->n_groups + 1, int);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < g->n_groups; i++)
            if (late[i] == pass) {
                t->order[n++] = i;
                n_late += pass;
            }
    return n_late;
}

/* ---- the new list ---- */

int tile_add(struct tile *t, const struct ap_node *node, int like, bool new_group)
{
    AP_ROOM(t->nodes, t->n_nodes, t->cap_nodes);
    AP_ROOM(t->source, t->n_nodes, t->cap_source);
    AP_ROOM(t->turn, t->n_groups, t->cap_turn);
    if (new_group)
        t->turn[t->n_groups++] = t->prog->turn[t->g->nodes[like].group];
    t->nodes[t->n_nodes] = *node;
    t->nodes[t->n_nodes].group = t->n_groups - 1;
    t->source[t->n_nodes] = t->prog->source[like];
    return t->n_nodes++;
}

/* ---- a group on one device ---- */

/* Axes on which a device's coordinate makes a difference to a node, its operands aside.
 */
static unsigned axes_of(const struct tile *t, const struct ap_node *n)
{
    const struct ap_mesh *mesh = &t->prog->mesh;
    unsigned axes = 0;

    if (n->attrs->global)
        for (int a = 0; a < mesh->n_axes; a++)
            axes |= n->attrs->layout.axis[a].kind == AP_SPLIT ? 1u << a : 0;
    else if (ap_ops[n->op].class == AP_CLASS_LOCAL)
        axes = n->attrs->coll.axes;
    return axes & ~mesh->microbatch;
}

/* Whether device e has made the group, from the values that device d would make it of. */
static bool is_equal(const struct tile *t, int group, int d, int e, unsigned axes)
{
    const int first = t->start[group], end = t->start[group + 1];

    if (d == e || *tile_value(t, first, e) < 0 || !same_place(t, d, e, axes))
        return false;
    for (int i = first; i < end; i++)
        for (int k = 0; k < t->g->nodes[i].n_in; k++) {
            const int in = t->g->nodes[i].in[k];
            if (in < first && *tile_value(t, in, d) != *tile_value(t, in, e))
                return false;
        }
    return true;
}

static void copy_node(struct tile *t, int i, int d, bool new_group, bool again)
{
    struct ap_node node = t->g->nodes[i];
    int *in = AP_NEW_N(t->arena, node.n_in + 1, int);

    for (int k = 0; k < node.n_in; k++)
        in[k] = *tile_value(t, node.in[k], d);
    node.in = in;
    node.param = -1; /* numbered at the end */
    if (again)
        node.name = ap_arena_printf(t->arena, "%s.device%d", node.name, d);
    if (d > 0 && axes_of(t, &node)) {
        struct ap_attrs *attrs = ap_arena_dup(t->arena, node.attrs, sizeof *attrs);
        attrs->device = d;
        node.attrs = attrs;
    }
    *tile_value(t, i, d) = tile_add(t, &node, i, new_group);
}

/* A group of device d: another device's copy of it, or a new one. */
static void copy_group(struct tile *t, int group, int d)
{
    const int first = t->start[group], end = t->start[group + 1];
    unsigned axes = 0;
    bool again = false;

    for (int i = first; i < end; i++)
        axes |= axes_of(t, &t->g->nodes[i]);
    for (int e = 0; e < t->n; e++) {
        again |= *tile_value(t, first, e) >= 0;
        if (!is_equal(t, group, d, e, axes))
            continue;
        for (int i = first; i < end; i++)
            *tile_value(t, i, d) = *tile_value(t, i, e);
        return;
    }
    for (int i = first; i < end; i++)
        copy_node(t, i, d, i == first, again);
}

/* ---- devices take turns ---- */

/* 0: before the microbatches, 1: with each, 2: after. */
static int stretch_of(const struct tile *t, int group)
{
    return (group >= t->prog->each_lo) + (group >= t->prog->each_hi);
}

/* What a group has made is added to sums of the same stretch. */
static void add_to_sums(struct tile *t, int group, int d)
{
    const struct ap_graph *g = t->g;

    for (int i = t->start[group]; i < t->start[group + 1]; i++)
        for (int u = g->user_start[i]; u < g->user_start[i + 1]; u++)
            if (tile_meets(t, g->users[u]) &&
                stretch_of(t, g->nodes[g->users[u]].group) == stretch_of(t, group))
                tile_add_up(t, g->users[u], d);
}

/* A collective on which devices of a rank meet; false: one of them is not there yet. */
static bool meet(struct tile *t, int node, int d, bool *arrived)
{
    arrived[d] = true;
    if (*tile_value(t, node, d) >= 0)
        return true;
    const int k = tile_members(t, t->g->nodes[node].attrs->coll.axes, d, t->member);
    for (int i = 0; i < k; i++)
        if (!arrived[t->member[i]])
            return false;
    tile_meet(t, node, t->member, k);
    return true;
}

/*
 * Groups lo .. hi - 1 of the order on all devices. at[d]: the next one of device d.
 * Whoever waits, waits for a device that is further back: the last one always runs.
 */
static void run_stretch(struct tile *t, int lo, int hi)
{
    int *at = AP_NEW_N(t->arena, t->n, int);
    /* [at - lo][device]: it has come to this group, which is a meeting */
    bool *arrived = AP_NEW_N(t->arena, (int64_t)(hi - lo) * t->n + 1, bool);

    for (int d = 0; d < t->n; d++)
        at[d] = lo;
    for (bool more = lo < hi; more;) {
        more = false;
        for (int d = 0; d < t->n; d++) {
            for (; at[d] < hi; at[d]++) {
                const int group = t->order[at[d]], node = t->start[group];
                if (!tile_meets(t, node))
                    copy_group(t, group, d);
                else if (!meet(t, node, d, arrived + (int64_t)(at[d] - lo) * t->n))
                    break;
                add_to_sums(t, group, d);
            }
            more |= at[d] < hi;
        }
    }
}

/* ---- parameters and results ---- */

/* The source graph's numbers for those of the first device, then come all others. */
static int number_params(struct tile *t, const int **number)
{
    const struct ap_graph *g = t->g;
    int *of = AP_NEW_N(t->arena, (int64_t)g->n_params * t->n + 1, int);
    int n = g->n_params;

    for (int k = 0; k < g->n_params; k++) {
        t->nodes[*tile_value(t, g->params[k], 0)].param = k;
        of[k] = k;
    }
    for (int k = 0; k < g->n_params; k++)
        for (int d = 1; d < t->n; d++) {
            struct ap_node *node = &t->nodes[*tile_value(t, g->params[k], d)];
            if (node->param >= 0)
                continue;
            of[n] = k;
            node->param = n++;
        }
    *number = of;
    return n;
}

/* The first device's results; then new values of parameters that it does not hold. */
static void list_results(struct tile *t, int n_params, struct ap_graph *out)
{
    const struct ap_graph *g = t->g;
    bool *done = AP_NEW_N(t->arena, n_params + 1, bool);

    out->results = AP_NEW_N(t->arena, (int64_t)g->n_results * t->n + 1, struct ap_result);
    out->n_results = 0;
    for (int d = 0; d < t->n; d++)
        for (int r = 0; r < g->n_results; r++) {
            struct ap_result res = g->results[r];
            res.node = *tile_value(t, res.node, d);
            res.alias = res.alias < 0 ? -1 : *tile_value(t, res.alias, d);
            if (d > 0 && (res.alias < 0 || done[t->nodes[res.alias].param]))
                continue;
            if (res.alias >= 0)
                done[t->nodes[res.alias].param] = true;
            out->results[out->n_results++] = res;
        }
}

/* ---- the whole ---- */

static int check_nodes(const struct tile *t, struct ap_err *err)
{
    if ((int64_t)t->g->n_nodes * t->n > AP_MAX_TILED)
        return ap_err_set(err, "%d operators of %d devices are too many for one rank",
                          t->g->n_nodes, t->n);
    for (int i = 0; i < t->g->n_nodes; i++) {
        const struct ap_node *n = &t->g->nodes[i];
        if (!tile_meets(t, i))
            continue;
        const char *why = t->start[n->group + 1] - t->start[n->group] > 1
                              ? "it runs inside of a kernel"
                              : tile_refuses(t, i);
        if (why)
            return ap_err_set(err, "%s (%s) between devices of one rank: %s", n->name,
                              ap_ops[n->op].name, why);
    }
    return 0;
}

static void open_list(struct tile *t)
{
    const struct ap_graph *g = t->g;
    const int64_t n = (int64_t)g->n_nodes * t->n + 1;
    int group = 0;

    t->start = AP_NEW_N(t->arena, g->n_groups + 2, int);
    for (int i = 0; i < g->n_nodes; i++)
        while (group <= g->nodes[i].group)
            t->start[group++] = i;
    while (group <= g->n_groups)
        t->start[group++] = g->n_nodes;
    t->value = AP_NEW_N(t->arena, n, int);
    t->sum = AP_NEW_N(t->arena, n, int);
    t->n_added = AP_NEW_N(t->arena, n, int);
    memset(t->value, -1, (size_t)n * sizeof *t->value);
    t->member = AP_NEW_N(t->arena, t->n, int);
    t->adding = AP_NEW_N(t->arena, t->n, int);
}

/* Takes the new list for the program's. */
static int take(struct tile *t, struct ap_program *prog, struct ap_err *err)
{
    struct ap_graph *g = &prog->local;
    const size_t n = (size_t)t->n_nodes;

    list_results(t, number_params(t, &prog->number), g);
    g->nodes = ap_arena_dup(t->arena, t->nodes, n * sizeof *t->nodes);
    g->n_nodes = t->n_nodes;
    g->n_groups = t->n_groups;
    prog->source = ap_arena_dup(t->arena, t->source, n * sizeof *t->source);
    prog->turn = ap_arena_dup(t->arena, t->turn, (size_t)t->n_groups * sizeof *t->turn);
    prog->per_rank = t->n;
    prog->devices = prog->mesh;
    prog->mesh = t->ranks;
    return ap_graph_index(t->arena, g, "/program", err);
}

/* The list by one order; *n_late: how many groups come last in it. */
static int make(struct tile *t, bool sums_last, struct ap_program *prog, int *n_late,
                struct ap_err *err)
{
    const struct ap_program *before = t->prog;

    *prog = *before;
    t->n_nodes = t->n_groups = 0;
    open_list(t);
    if (check_nodes(t, err))
        return -1;
    *n_late = find_order(t, sums_last);
    run_stretch(t, 0, before->each_lo);
    prog->each_lo = t->n_groups;
    run_stretch(t, before->each_lo, before->each_hi);
    prog->each_hi = t->n_groups;
    run_stretch(t, before->each_hi, before->local.n_groups);
    return take(t, prog, err);
}

/* The most bytes that are alive at once. */
static int64_t most_alive(struct ap_arena *arena, const struct ap_program *prog)
{
    struct ap_mark mark = ap_arena_mark(arena);
    const int64_t *alive = ap_program_alive(arena, prog, true);
    int64_t most = 0;

    for (int i = 0; i <= prog->local.n_groups; i++)
        most = alive[i] > most ? alive[i] : most;
    ap_arena_rewind(arena, mark);
    return most;
}

int ap_program_tile(struct ap_arena *arena, struct ap_program *prog, int n,
                    struct ap_err *err)
{
    const struct ap_program before = *prog;
    struct tile t = {.arena = arena, .prog = &before, .g = &before.local, .n = n};
    struct ap_program last;
    int n_late;

    assert(!prog->wait && n >= 1);
    if (n == 1)
        return 0;
    if (ap_tile_ranks(&prog->mesh, n, &t.ranks))
        return ap_err_set(err,
                          "%d devices per rank are not a part of the mesh: expected a "
                          "divisor of its last axis, or whole axes from the last one on "
                          "times a divisor of the one before",
                          n);
    t.inner = inner_mesh(&prog->mesh, &t.ranks);
    int rc = make(&t, true, &last, &n_late, err);
    *prog = last;
    if (!rc && n_late > 0) {
        rc = make(&t, false, prog, &n_late, err);
        if (!rc && most_alive(arena, &last) < most_alive(arena, prog))
            *prog = last;
    }
    free(t.nodes);
    free(t.source);
    free(t.turn);
    return rc;
}

struct ap_graph ap_program_own(const struct ap_program *prog)
{
    struct ap_graph own = prog->local;

    if (!prog->number)
        return own;
    for (own.n_params = 0; own.n_params < prog->local.n_params &&
                           prog->number[own.n_params] == own.n_params;)
        own.n_params++;
    for (own.n_results = 0; own.n_results < prog->local.n_results; own.n_results++) {
        const int alias = own.results[own.n_results].alias;
        if (alias >= 0 && own.nodes[alias].param >= own.n_params)
            break;
    }
    return own;
}
