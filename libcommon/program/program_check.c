/*
 * Checks on which an interpreter of programs relies beyond the graph's own checks: a
 * document may come from anywhere, and nothing in it may make the interpreter read or
 * write outside the arena or wait for a peer that never comes. Linear in nodes, operands
 * and users.
 */
#include "program/kernel_form.h"
#include "program/program.h"

#include <limits.h>

static int node_err(const struct ap_program *prog, const struct ap_at *at, int node,
                    struct ap_err *err, const char *what)
{
    struct ap_at graph = {at, "graph", 0}, nodes = {&graph, "nodes", 0};
    struct ap_at here = {&nodes, NULL, node};
    return ap_at_err(&here, err, "(%s) %s", prog->local.nodes[node].name, what);
}

/* ---- groups ---- */

static bool is_fusible(const struct ap_node *n)
{
    return ap_ops[n->op].class == AP_CLASS_ELEMENTWISE || n->op == AP_OP_BROADCAST ||
           n->op == AP_OP_IOTA;
}

/* A constant that rides along in the group of its only user. */
static bool is_scalar_constant(const struct ap_node *n)
{
    return n->op == AP_OP_CONSTANT && n->shape.rank == 0;
}

/* A fused pass: one set of dims, scalar constants aside. */
static const char *check_fused(const struct ap_graph *g, int first, int end)
{
    int lead = -1;
    for (int i = first; i < end; i++) {
        if (is_scalar_constant(&g->nodes[i]))
            continue;
        if (!is_fusible(&g->nodes[i]))
            return "shares its group with operators that it cannot be fused with";
        if (lead >= 0 && !ap_shape_same_dims(&g->nodes[lead].shape, &g->nodes[i].shape))
            return "has other dims than the rest of its group";
        lead = i;
    }
    return NULL;
}

/* An attention that was not split: its marks, and operators of one array. */
static bool is_attention(const struct ap_graph *g, int first, int end)
{
    for (int i = first; i < end; i++) {
        const struct ap_node *n = &g->nodes[i];
        if (n->attrs->attention !=
                (i == first ? AP_ATTENTION_FIRST : AP_ATTENTION_NEXT) ||
            n->shape.dtype == AP_TUPLE || ap_ops[n->op].class == AP_CLASS_COLLECTIVE ||
            ap_ops[n->op].class == AP_CLASS_LOCAL || n->op == AP_OP_PARAMETER)
            return false;
    }
    return true;
}

/* A group is one operator, one and its tuple's parts, an attention, or a fused pass. */
static int check_group(const struct ap_program *prog, const struct ap_at *at, int first,
                       int end, struct ap_err *err)
{
    const struct ap_graph *g = &prog->local;
    bool parts = g->nodes[first].shape.dtype == AP_TUPLE;
    for (int i = first + 1; i < end && parts; i++)
        parts = g->nodes[i].op == AP_OP_GET_TUPLE_ELEMENT && g->nodes[i].in[0] == first;
    if (end - first == 1 || parts) {
        if (g->nodes[first].op == AP_OP_GET_TUPLE_ELEMENT)
            return node_err(prog, at, first, err, "is not in the group of its operand");
        return 0;
    }
    if (is_attention(g, first, end))
        return 0;
    const char *what = check_fused(g, first, end);
    if (what && g->nodes[first].attrs->kernel > 0) {
        struct ap_kernel_form form;
        what = ap_kernel_form_of(g, first, end, &form, &first);
    }
    return what ? node_err(prog, at, first, err, what) : 0;
}

static int check_groups(const struct ap_program *prog, const struct ap_at *at,
                        struct ap_err *err)
{
    const struct ap_graph *g = &prog->local;
    int last = g->n_nodes > 0 ? g->nodes[g->n_nodes - 1].group : -1;
    if (g->n_groups != last + 1) {
        struct ap_at graph = {at, "graph", 0}, here = {&graph, "n_groups", 0};
        return ap_at_err(&here, err, "%d groups, but the nodes' end at %d", g->n_groups,
                         last);
    }
    for (int first = 0, group = 0, end; first < g->n_nodes; first = end, group++) {
        for (end = first; end < g->n_nodes && g->nodes[end].group == group; end++)
            ;
        if (end == first)
            return node_err(prog, at, first, err,
                            "groups must be numbered 0, 1, ... along the nodes");
        if (check_group(prog, at, first, end, err))
            return -1;
    }
    return 0;
}

/* ---- what depends on the mesh ---- */

static bool is_layout(const struct ap_mesh *mesh, const struct ap_shape *shape,
                      const struct ap_layout *l)
{
    for (int a = 0; a < AP_MAX_AXES; a++) {
        const struct ap_placement *p = &l->axis[a];
        if (a >= mesh->n_axes && p->kind != AP_REPLICATED)
            return false;
        if (p->kind > AP_PARTIAL || p->stride < 0)
            return false;
        if (p->kind == AP_SPLIT && p->dim >= shape->rank)
            return false;
    }
    struct ap_layout canon = *l;
    return !ap_layout_canon(mesh, shape, &canon) && ap_layout_equal(&canon, l);
}

/* The local shape must be that of the attribute `global` under the attribute `layout`. */
static const char *check_place(const struct ap_mesh *mesh, const struct ap_attrs *attrs,
                               const struct ap_shape *local)
{
    if (attrs->global->dtype != local->dtype || attrs->global->rank != local->rank)
        return "attribute global is of another type or rank than the shard";
    if (!is_layout(mesh, attrs->global, &attrs->layout))
        return "attribute layout does not fit mesh and shape";
    struct ap_arena scratch = {0};
    struct ap_shape want = ap_layout_local(&scratch, mesh, attrs->global, &attrs->layout);
    bool same = ap_shape_same_dims(&want, local);
    ap_arena_free(&scratch);
    return same ? NULL : "its shape is not the shard of attribute global under layout";
}

/* Replaces x (full or part) of the split dimension by the other one in dims. */
static bool apply_split(const struct ap_mesh *mesh, unsigned axes,
                        const struct ap_split *s, bool to_part, int rank, int64_t *dims)
{
    if (s->dim < 0 || s->dim >= rank || s->full < 1 || s->outer < 1)
        return false;
    if (s->part != ap_ceil_div(s->full, ap_mesh_group(mesh, axes)))
        return false;
    int64_t from = to_part ? s->full : s->part, to = to_part ? s->part : s->full;
    int64_t *dim = &dims[s->dim];
    if (*dim % from != 0 || *dim / from % s->outer != 0)
        return false;
    *dim = ap_mul64(*dim / from, to);
    return true;
}

static const char *check_splits(const struct ap_mesh *mesh, const struct ap_node *node,
                                const struct ap_shape *operand)
{
    const struct ap_coll *c = &node->attrs->coll;
    int64_t dims[AP_MAX_RANK] = {0};
    for (int d = 0; d < operand->rank; d++)
        dims[d] = operand->dims[d];
    bool to_part = node->op != AP_OP_ALL_GATHER;
    bool ok = __builtin_popcount(c->axes) == 1 &&
              apply_split(mesh, c->axes, &c->split, to_part, operand->rank, dims);
    if (ok && node->op == AP_OP_ALL_TO_ALL)
        ok = apply_split(mesh, c->axes, &c->join, false, operand->rank, dims);
    for (int d = 0; ok && d < operand->rank; d++)
        ok = dims[d] == node->shape.dims[d];
    return ok ? NULL : "split and join do not lead from its operand's shape to its own";
}

static bool combines(enum ap_red red)
{
    return red > AP_RED_NONE && red < AP_RED_ASSIGN;
}

/* The type of a sum over microbatches may be wider than that of what is added. */
static bool may_have_dtype(const struct ap_mesh *mesh, const struct ap_node *node,
                           enum ap_dtype operand)
{
    return node->shape.dtype == operand ||
           (node->op == AP_OP_ALL_REDUCE && node->attrs->coll.red == AP_RED_SUM &&
            node->attrs->coll.axes == mesh->microbatch &&
            node->shape.dtype == ap_dtype_of_sums(operand));
}

static const char *check_coll(const struct ap_mesh *mesh, const struct ap_node *node,
                              const struct ap_shape *operand)
{
    const struct ap_coll *c = &node->attrs->coll;
    if (!c->axes || c->axes >> mesh->n_axes)
        return "attribute axes names no axis, or none of the mesh";
    if (!may_have_dtype(mesh, node, operand->dtype) ||
        operand->rank != node->shape.rank || operand->dtype == AP_TUPLE)
        return "its operand has another type or rank";
    bool reduces = node->op == AP_OP_ALL_REDUCE || node->op == AP_OP_REDUCE_SCATTER ||
                   node->op == AP_OP_AP_PARTIAL;
    if (reduces && !combines(c->red))
        return "needs a reduction such as sum";
    if (node->op == AP_OP_COLLECTIVE_PERMUTE) {
        if (__builtin_popcount(c->axes) > 2)
            return "goes along one axis, or swaps two";
        if (__builtin_popcount(c->axes) == 1)
            return ap_shape_same_dims(operand, &node->shape)
                       ? NULL
                       : "changes its operand's shape";
        if (mesh->size[__builtin_ctz(c->axes)] !=
            mesh->size[__builtin_ctz(c->axes & (c->axes - 1))])
            return "swaps two axes of one size";
    }
    if (node->op == AP_OP_ALL_REDUCE || node->op == AP_OP_AP_PARTIAL ||
        node->op == AP_OP_COLLECTIVE_PERMUTE)
        return ap_shape_same_dims(operand, &node->shape) ? NULL
                                                         : "changes its operand's shape";
    return check_splits(mesh, node, operand);
}

static const char *check_node(const struct ap_program *prog, const struct ap_node *node)
{
    const struct ap_shape *operand =
        node->n_in > 0 ? &prog->local.nodes[node->in[0]].shape : NULL;
    const struct ap_attrs *attrs = node->attrs;
    const struct ap_mesh *mesh = &prog->mesh;
    switch ((int)node->op) {
    case AP_OP_PARAMETER:
        if (node->shape.dtype == AP_TUPLE)
            return "parameters that are tuples cannot be run";
        if (!attrs->global)
            return "attribute global is missing";
        return check_place(mesh, attrs, &node->shape);
    case AP_OP_CONSTANT:
    case AP_OP_IOTA:
        return attrs->global ? check_place(mesh, attrs, &node->shape) : NULL;
    case AP_OP_GATHER:
    case AP_OP_SCATTER:
        return attrs->global ? check_place(mesh, attrs, operand) : NULL;
    case AP_OP_AP_MASK:
        if (!attrs->global || !attrs->literal.splat || !attrs->literal.data)
            return "attributes global and literal are missing";
        if (!ap_shape_equal(operand, &node->shape))
            return "changes its operand's shape";
        return check_place(mesh, attrs, &node->shape);
    }
    if (ap_ops[node->op].class == AP_CLASS_LOCAL)
        return check_coll(mesh, node, operand);
    if (ap_ops[node->op].class == AP_CLASS_COLLECTIVE)
        return check_coll(&prog->mesh, node, operand);
    return NULL;
}

/* ---- microbatches ---- */

static const char *check_microbatches(const struct ap_program *prog,
                                      const struct ap_node *node)
{
    bool each = node->group >= prog->each_lo && node->group < prog->each_hi;
    bool steps = ap_ops[node->op].class == AP_CLASS_COLLECTIVE ||
                 ap_ops[node->op].class == AP_CLASS_LOCAL;
    unsigned axes = steps && node->op != AP_OP_AP_MASK ? node->attrs->coll.axes : 0;

    if (node->attrs->each &&
        (!each || node->op != AP_OP_PARAMETER || !prog->part || !prog->mesh.microbatch))
        return "comes with each microbatch, but is not a parameter of a stage that does";
    if (node->attrs->global &&
        ap_layout_per_microbatch(&prog->mesh, &node->attrs->layout) &&
        (!each || (node->op == AP_OP_PARAMETER && !prog->part)))
        return "is one microbatch's, but does not run with every one";
    if (!(axes & prog->mesh.microbatch))
        return NULL;
    if (axes != prog->mesh.microbatch ||
        (node->op != AP_OP_ALL_REDUCE && node->op != AP_OP_ALL_GATHER &&
         node->op != AP_OP_AP_SLICE && node->op != AP_OP_AP_PARTIAL))
        return "moves between microbatches, which are not there at once";
    return each ? NULL : "is a step over microbatches, but does not run with every one";
}

/* ---- collectives that are awaited later ---- */

/* ready[node]: the group before which what makes it is awaited, 0: it is there at once.
 */
static const char *check_wait(const struct ap_program *prog, int node, int *ready)
{
    const struct ap_graph *g = &prog->local;
    const struct ap_node *n = &g->nodes[node];
    const int wait = prog->wait[n->group];

    ready[node] = 0;
    if (ap_program_is_view(g, node)) {
        ready[node] = ready[n->in[0]];
        return wait < 0 ? NULL : "is awaited, but is no collective between devices";
    }
    for (int k = 0; k < n->n_in; k++)
        if (ready[n->in[k]] > n->group)
            return "reads what a collective still makes: it is awaited later";
    if (wait < 0)
        return NULL;
    if (ap_ops[n->op].class != AP_CLASS_COLLECTIVE ||
        (n->attrs->coll.axes & prog->mesh.microbatch))
        return "is awaited, but is no collective between devices";
    if (n->group < prog->each_hi)
        return "is awaited later, but runs before the last microbatch";
    if (wait <= n->group || wait > g->n_groups)
        return "is awaited before it starts, or after the end";
    ready[node] = wait;
    return NULL;
}

static int check_waits(const struct ap_program *prog, const struct ap_at *at,
                       struct ap_err *err)
{
    struct ap_arena scratch = {0};
    int *ready = AP_NEW_N(&scratch, prog->local.n_nodes + 1, int);
    const char *what = NULL;
    int node = 0;

    for (; node < prog->local.n_nodes && prog->wait; node++)
        if ((what = check_wait(prog, node, ready)))
            break;
    ap_arena_free(&scratch);
    return what ? node_err(prog, at, node, err, what) : 0;
}

/* ---- memory ---- */

static const char *check_buffer(const struct ap_program *prog, int node)
{
    const struct ap_graph *g = &prog->local;
    const struct ap_buffer *b = &prog->buffer[node];
    const struct ap_node *n = &g->nodes[node];
    if (b->offset == -1) {
        bool inner = ap_program_is_inner(g, node) && n->op != AP_OP_PARAMETER;
        if (n->shape.dtype == AP_TUPLE || (inner && b->alias < 0))
            return NULL;
        return "is read from memory but has no buffer";
    }
    if (n->shape.dtype == AP_TUPLE)
        return "is a tuple; its parts have buffers, not it";
    if (b->offset < 0 || b->offset % 64 != 0)
        return "buffer offset is not a multiple of 64";
    if (b->bytes < ap_shape_bytes(&n->shape))
        return "buffer is smaller than the value";
    if (n->attrs->host
            ? b->bytes > INT64_MAX / 4 || b->offset > INT64_MAX / 4
            : b->bytes > prog->peak_bytes || b->offset > prog->peak_bytes - b->bytes)
        return "buffer reaches beyond peak_bytes"; /* the host's: pipeline_json.c */
    if (b->alias >= 0) {
        const struct ap_buffer *owner = &prog->buffer[b->alias];
        const int64_t at = ap_program_view_offset(g, node);
        const int64_t want = at < 0 ? owner->offset : prog->buffer[n->in[0]].offset + at;
        if (owner->alias >= 0 || b->offset != want || b->offset < owner->offset ||
            b->offset - owner->offset > owner->bytes - b->bytes)
            return "buffer is not that of the node in alias";
    }
    return NULL;
}

/* What is on the host is a parameter or a copy of what is not, and copies read it. */
static const char *check_host(const struct ap_program *prog, int node)
{
    const struct ap_graph *g = &prog->local;
    const struct ap_node *n = &g->nodes[node];

    for (int k = 0; k < n->n_in; k++)
        if (g->nodes[n->in[k]].attrs->host && (n->op != AP_OP_COPY || n->attrs->host))
            return "reads a value on the host, and does not copy it to the device";
    if (!n->attrs->host)
        return NULL;
    if (n->op != AP_OP_PARAMETER && n->op != AP_OP_COPY)
        return "is on the host, but is neither a parameter nor a copy";
    return prog->part ? NULL : "is on the host, which is for stages of a pipeline";
}

/* No number makes a rank take more memory than its values need. */
static int check_peak(const struct ap_program *prog, const struct ap_at *at,
                      struct ap_err *err)
{
    int64_t end = 0;
    for (int i = 0; i < prog->local.n_nodes; i++) {
        const struct ap_buffer *b = &prog->buffer[i];
        const int64_t bytes =
            b->bytes > 0 ? b->bytes : 1; /* empty ones have a place, too */
        if (b->offset >= 0 && !prog->local.nodes[i].attrs->host &&
            b->offset + bytes > end)
            end = b->offset + bytes;
    }
    if (prog->peak_bytes <= ap_ceil_div(end, 64) * 64)
        return 0;
    return ap_at_err(at, err, "the program has peak_bytes %lld, its buffers end at %lld",
                     (long long)prog->peak_bytes, (long long)end);
}

static int check_results(const struct ap_program *prog, const struct ap_at *at,
                         struct ap_err *err)
{
    const struct ap_graph *g = &prog->local;
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_result *res = &g->results[r];
        if (prog->buffer[res->node].offset < 0)
            return node_err(prog, at, res->node, err, "is a result but has no buffer");
        if (res->alias >= 0 &&
            !ap_shape_equal(&g->nodes[res->node].shape, &g->nodes[res->alias].shape))
            return node_err(prog, at, res->node, err,
                            "has another shape than the parameter that it becomes");
        if (res->alias >= 0 &&
            g->nodes[res->node].attrs->host != g->nodes[res->alias].attrs->host)
            return node_err(prog, at, res->node, err,
                            "is not where the parameter is that it becomes");
    }
    return 0;
}

int ap_program_check(const struct ap_program *prog, const struct ap_at *section,
                     struct ap_err *err)
{
    const struct ap_at list = {section, "modules", 0}, module = {&list, NULL, 0};
    const struct ap_at *at = &module;

    if (check_groups(prog, at, err))
        return -1;
    if (prog->each_hi > prog->local.n_groups)
        return ap_at_err(at, err, "each_microbatch: the graph has %d groups",
                         prog->local.n_groups);
    for (int i = 0; i < prog->local.n_nodes; i++) {
        const char *what = check_node(prog, &prog->local.nodes[i]);
        if (!what)
            what = check_microbatches(prog, &prog->local.nodes[i]);
        if (!what)
            what = check_buffer(prog, i);
        if (!what)
            what = check_host(prog, i);
        if (what)
            return node_err(prog, at, i, err, what);
    }
    return check_waits(prog, at, err) || check_results(prog, at, err) ||
                   check_peak(prog, at, err)
               ? -1
               : 0;
}
