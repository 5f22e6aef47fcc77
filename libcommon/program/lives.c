/*
 * When a program's values are in memory.
 *
 * A value lives from its group to the last group that reads it or a view of it;
 * parameters live throughout. pipeline/pipeline_buffers.c places them.
 *
 * Groups that run once per microbatch are a loop: what is made before and read in it
 * lives to its end, and what it accumulates or gathers lives from its start.
 */
#include "program/lives.h"

#include "base/pack.h"

static bool is_fusible(const struct ap_graph *g, int node)
{
    enum ap_op op = g->nodes[node].op;
    return ap_ops[op].class == AP_CLASS_ELEMENTWISE || op == AP_OP_BROADCAST;
}

/* ---- lifetimes ---- */

/* Where a slice begins in its operand, in bytes; -1: its elements are not consecutive. */
static int64_t slice_offset(const struct ap_shape *from, const struct ap_node *n)
{
    int64_t at = 0, inner = 1;
    bool whole = true; /* the dimensions after are */

    for (int d = from->rank - 1; d >= 0; d--) {
        const struct ap_slice_dim *s = &n->attrs->slice[d];
        if (s->stride != 1 || (!whole && n->shape.dims[d] != 1))
            return -1;
        at = ap_add64(at, ap_mul64(s->start, inner));
        whole &= n->shape.dims[d] == from->dims[d];
        inner = ap_mul64(inner, from->dims[d]);
    }
    return ap_mul64(at, ap_dtype_size(from->dtype));
}

int64_t ap_program_view_offset(const struct ap_graph *g, int node)
{
    const struct ap_node *n = &g->nodes[node];
    int64_t at = 0;

    if (n->op == AP_OP_SLICE &&
        ap_ops[g->nodes[n->in[0]].op].class == AP_CLASS_COLLECTIVE)
        at = slice_offset(&g->nodes[n->in[0]].shape, n);
    else if (n->op != AP_OP_RESHAPE && n->op != AP_OP_OPT_BARRIER)
        return -1;
    if (at % AP_PACK_ALIGN != 0)
        return -1;
    return (node == 0 || g->nodes[node - 1].group != n->group) &&
                   (node + 1 == g->n_nodes || g->nodes[node + 1].group != n->group)
               ? at
               : -1;
}

bool ap_program_is_view(const struct ap_graph *g, int node)
{
    return ap_program_view_offset(g, node) >= 0;
}

bool ap_program_reduces_in_place(const struct ap_program *prog, int node)
{
    const struct ap_graph *g = &prog->local;
    const struct ap_node *n = &g->nodes[node];

    if (n->op != AP_OP_ALL_REDUCE || (n->attrs->coll.axes & prog->mesh.microbatch))
        return false;
    const int in = n->in[0];
    if (g->nodes[in].op != AP_OP_CONCATENATE ||
        g->user_start[in + 1] - g->user_start[in] != 1 || g->nodes[in].group == n->group)
        return false;
    return !ap_graph_is_result(g, in);
}

bool ap_program_is_inner(const struct ap_graph *g, int node)
{
    int group = g->nodes[node].group;
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++)
        if (g->nodes[g->users[u]].group != group)
            return false;
    return g->user_start[node] < g->user_start[node + 1];
}

bool ap_program_is_carried(const struct ap_program *prog, int node)
{
    const struct ap_node *n = &prog->local.nodes[node];
    return ap_ops[n->op].class == AP_CLASS_COLLECTIVE &&
           (n->attrs->coll.axes & prog->mesh.microbatch);
}

void ap_program_stretch(const struct ap_program *prog, int node, int *birth, int *death)
{
    int lo = prog->each_lo, hi = prog->each_hi;
    bool carried = ap_program_is_carried(prog, node);

    if (carried)
        *birth = lo;
    if ((carried || *birth < lo) && *death >= lo && *death < hi)
        *death = hi - 1;
}

/* A collective in flight up to a group keeps its result and what it reads (NULL:
 * nothing). */
static void extend(int *result, int *operand, int until)
{
    if (*result < until)
        *result = until;
    if (operand && *operand < until)
        *operand = until;
}

static void find_lives(struct ap_arena *arena, const struct ap_program *prog,
                       struct ap_lives *l)
{
    const struct ap_graph *g = &prog->local;
    l->g = g;
    l->lo = prog->each_lo;
    l->hi = prog->each_hi;
    l->root = AP_NEW_N(arena, g->n_nodes, int);
    l->birth = AP_NEW_N(arena, g->n_nodes, int);
    l->death = AP_NEW_N(arena, g->n_nodes, int);
    l->has = AP_NEW_N(arena, g->n_nodes, bool);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        l->root[i] = ap_program_is_view(g, i) || ap_program_reduces_in_place(prog, i)
                         ? l->root[n->in[0]]
                         : i;
        l->birth[i] = l->death[i] = n->group;
        l->has[i] =
            l->root[i] == i && n->shape.dtype != AP_TUPLE && !ap_program_is_inner(g, i);
        for (int k = 0; k < n->n_in; k++) {
            int from = l->root[n->in[k]];
            if (l->death[from] < n->group)
                l->death[from] = n->group;
        }
    }
    for (int r = 0; r < g->n_results; r++) {
        int from = l->root[g->results[r].node];
        l->has[from] = true;
        l->death[from] = g->n_groups;
    }
    for (int i = 0; i < g->n_nodes && prog->wait; i++)
        extend(&l->death[l->root[i]],
               g->nodes[i].n_in ? &l->death[l->root[g->nodes[i].in[0]]] : NULL,
               prog->wait[g->nodes[i].group] - 1);
    for (int i = 0; i < g->n_nodes; i++)
        ap_program_stretch(prog, i, &l->birth[i], &l->death[i]);
    for (int i = 0; i < g->n_params; i++) {
        l->has[g->params[i]] = true;
        l->birth[g->params[i]] = 0;
        l->death[g->params[i]] = g->n_groups;
    }
}

/* ---- results in place ---- */

/* Every reader of the parameter in `group` comes at or before node `at`, element by
 * element. */
static bool reads_in_step(const struct ap_lives *l, int param, int group, int at)
{
    const struct ap_graph *g = l->g;
    for (int u = g->user_start[param]; u < g->user_start[param + 1]; u++) {
        int user = g->users[u];
        if (l->root[user] == param)
            return false; /* a view: its readers may index otherwise */
        if (g->nodes[user].group == group &&
            (user > at || ap_ops[g->nodes[user].op].class != AP_CLASS_ELEMENTWISE ||
             !ap_shape_same_dims(&g->nodes[user].shape, &g->nodes[param].shape)))
            return false;
    }
    return true;
}

/*
 * True when a result can be computed straight into the buffer of the parameter that it
 * becomes: nobody reads the old value later, and what reads it in the same fused group
 * does so at the same index, before the new value is written. last_read: the group that
 * last reads the parameter or a view of it (n_groups when it is a result, too). Not in a
 * kernel (kernel_form.h), which may read an element several times.
 */
static bool can_be_in_place(const struct ap_lives *l, const struct ap_result *res,
                            int last_read)
{
    const struct ap_graph *g = l->g;
    int v = res->node, p = res->alias;
    if (l->root[v] != v || g->nodes[v].op == AP_OP_PARAMETER || !l->has[v] ||
        !ap_shape_equal(&g->nodes[v].shape, &g->nodes[p].shape))
        return false;
    int group = g->nodes[v].group;
    if (group >= l->lo && group < l->hi) /* later microbatches may read the parameter */
        return false;
    if (last_read < group)
        return true;
    return last_read == group && is_fusible(g, v) && !g->nodes[v].attrs->kernel &&
           reads_in_step(l, p, group, v);
}

/* Gives results their parameters' memory where they may have it. */
static void put_in_place(struct ap_arena *arena, const struct ap_lives *l)
{
    const struct ap_graph *g = l->g;
    int *last_read = ap_arena_dup(arena, l->read, (size_t)g->n_nodes * sizeof(int));
    for (int r = 0; r < g->n_results; r++)
        last_read[l->root[g->results[r].node]] = g->n_groups;
    for (int r = 0; r < g->n_results; r++) {
        const struct ap_result *res = &g->results[r];
        if (res->alias < 0 || !can_be_in_place(l, res, last_read[res->alias]))
            continue;
        l->has[res->node] = false;
        l->root[res->node] = res->alias;
        last_read[res->alias] = g->n_groups; /* taken */
    }
}

/* Last group that reads each value's memory; wait: the program's. */
static int *find_last_reads(struct ap_arena *arena, const struct ap_lives *l,
                            const int *wait)
{
    const struct ap_graph *g = l->g;
    int *last = AP_NEW_N(arena, g->n_nodes, int);
    for (int i = 0; i < g->n_nodes; i++)
        last[i] = -1;
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            int from = l->root[g->nodes[i].in[k]];
            if (last[from] < g->nodes[i].group)
                last[from] = g->nodes[i].group;
            if (wait && last[from] < wait[g->nodes[i].group])
                last[from] = wait[g->nodes[i].group]; /* still in flight just before */
        }
    return last;
}

void ap_lives_find(struct ap_arena *arena, const struct ap_program *prog,
                   struct ap_lives *lives)
{
    find_lives(arena, prog, lives);
    lives->read = find_last_reads(arena, lives, prog->wait);
    put_in_place(arena, lives);
}

void ap_lives_share(const struct ap_lives *l, struct ap_buffer *buffer)
{
    for (int i = 0; i < l->g->n_nodes; i++) {
        const int64_t at = ap_program_view_offset(l->g, i);
        int root = l->root[i];
        while (l->root[root] != root) /* a view of a result that was put in place */
            root = l->root[root];
        if (root == i)
            continue;
        buffer[i].alias = root;
        buffer[i].offset =
            at < 0 ? buffer[root].offset : buffer[l->g->nodes[i].in[0]].offset + at;
    }
}

/* ---- bytes ---- */

int64_t ap_buffer_align(int64_t bytes)
{
    if (bytes > INT64_MAX - AP_PACK_ALIGN)
        return bytes - bytes % AP_PACK_ALIGN;
    return bytes < 1 ? AP_PACK_ALIGN : ap_ceil_div(bytes, AP_PACK_ALIGN) * AP_PACK_ALIGN;
}

int64_t *ap_program_alive(struct ap_arena *arena, const struct ap_program *prog,
                          bool aligned)
{
    const struct ap_graph *g = &prog->local;
    int64_t *held = AP_NEW_N(arena, g->n_groups + 2, int64_t);
    struct ap_mark mark = ap_arena_mark(arena);
    struct ap_lives l;

    ap_lives_find(arena, prog, &l);
    for (int i = 0; i < g->n_nodes; i++)
        if (l.has[i] && !g->nodes[i].attrs->host) {
            const int64_t bytes = ap_shape_bytes(&g->nodes[i].shape);
            const int64_t taken = aligned ? ap_buffer_align(bytes) : bytes;
            held[l.birth[i]] += taken;
            held[l.death[i] + 1] -= taken;
        }
    for (int i = 1; i <= g->n_groups; i++)
        held[i] += held[i - 1];
    ap_arena_rewind(arena, mark);
    return held;
}
