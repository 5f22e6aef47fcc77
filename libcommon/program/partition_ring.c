/*
 * The program of an attention in a ring on one device.
 *
 * Problem: under its ring a device has a block of keys and values, and its contractions
 * need all (layout/nest_ring.c). Idea: in round t device r has block r - t, for it got it
 * from device r - 1 (mod n). A contraction that makes scores makes those of that block
 * and puts them in their place, among the scores of the device's queries and all keys;
 * one that sums over keys takes the block's columns and adds up; one that sums over
 * queries adds its share of block r - 1 - t to a sum that travels, so that the last round
 * finds it at home. All other members are those of a split by queries, so that the scores
 * and all that is made of them are the very numbers of one device. A kernel would instead
 * keep a maximum and a sum per row and no scores; its blocks and messages are these.
 *
 * Where a device is on the ring is read off constants that are split over its axis.
 * The first two blocks that a device gets are groups of their own: they are the memory
 * that takes turns in receiving. Cost: linear in members and rounds.
 */
#include "program/partition_impl.h"

#include <assert.h>
#include <string.h>

struct ring {
    struct partition *p;
    const struct ap_nest *nest;
    int axis, n;   /* of the mesh; devices */
    int64_t block; /* keys of one device, of each stripe */
    int64_t stripes;
    int m; /* member at hand */
};

enum { MAX_WAITING = 2 }; /* blocks that come before the group */

static struct ap_node *local_at(const struct ring *r, int node)
{
    return &r->p->prog->local.nodes[node];
}

/* A node of the group at hand; n_in operands. */
static int put(const struct ring *r, enum ap_op op, int n_in, const int *in,
               const struct ap_shape *shape, const struct ap_attrs *attrs)
{
    const int id = r->nest->members[r->m];
    const int node = ap_part_add(r->p, op, n_in ? in[0] : -1, id, shape, attrs,
                                 r->p->plan->graph->nodes[id].phase);
    struct ap_node *n = local_at(r, node);

    n->n_in = n_in;
    n->in = ap_arena_dup(r->p->arena, in, (size_t)(n_in + 1) * sizeof *in);
    n->group = --r->p->n_groups; /* of the attention, which is open */
    return node;
}

static struct ap_attrs *new_attrs(const struct ring *r)
{
    struct ap_attrs *attrs =
        ap_arena_dup(r->p->arena, &ap_attrs_default, sizeof ap_attrs_default);
    attrs->attention = AP_ATTENTION_NEXT;
    return attrs;
}

static struct ap_shape with_dim(const struct ring *r, const struct ap_shape *s, int d,
                                int64_t size)
{
    struct ap_shape out = *s;
    int64_t *dims = AP_NEW_N(r->p->arena, s->rank + 1, int64_t);

    memcpy(dims, s->dims, (size_t)s->rank * sizeof *dims);
    dims[d] = size;
    out.dims = dims;
    return out;
}

static int constant(const struct ring *r, const struct ap_shape *shape, const void *data)
{
    struct ap_attrs *attrs = new_attrs(r);
    const int none = -1;

    attrs->literal = (struct ap_literal){.splat = true, .data = data};
    return put(r, AP_OP_CONSTANT, 0, &none, shape, attrs);
}

/* ---- stripes ---- */

/* Dimension d as stripes and what is in them; the node itself without stripes. */
static int open_stripes(const struct ring *r, int node, int d)
{
    const struct ap_shape *s = &local_at(r, node)->shape;
    int64_t *dims = AP_NEW_N(r->p->arena, s->rank + 1, int64_t);
    struct ap_shape to = *s;

    if (r->stripes == 1)
        return node;
    for (int k = 0; k <= s->rank; k++)
        dims[k] = s->dims[k > d ? k - 1 : k];
    dims[d] = r->stripes;
    dims[d + 1] = s->dims[d] / r->stripes;
    to.rank = s->rank + 1;
    to.dims = dims;
    return put(r, AP_OP_RESHAPE, 1, &node, &to, new_attrs(r));
}

/* The other way. */
static int close_stripes(const struct ring *r, int node, int d)
{
    const struct ap_shape *s = &local_at(r, node)->shape;
    int64_t *dims = AP_NEW_N(r->p->arena, s->rank + 1, int64_t);
    struct ap_shape to = *s;

    if (r->stripes == 1)
        return node;
    for (int k = 0; k + 1 < s->rank; k++)
        dims[k] = s->dims[k > d ? k + 1 : k];
    dims[d] = s->dims[d] * s->dims[d + 1];
    to.rank = s->rank - 1;
    to.dims = dims;
    return put(r, AP_OP_RESHAPE, 1, &node, &to, new_attrs(r));
}

/* ---- blocks ---- */

/* Where the block that a device has after t rounds starts: block r - t - back. */
static int start_of(const struct ring *r, int t, int back)
{
    struct ap_arena *arena = r->p->arena;
    int64_t *n = AP_NEW(arena, int64_t), *one = AP_NEW(arena, int64_t);
    int32_t *at = AP_NEW_N(arena, r->n, int32_t);
    struct ap_attrs *attrs = new_attrs(r);
    const int none = -1;

    *n = r->n;
    *one = 1;
    for (int d = 0; d < r->n; d++)
        at[d] = (int32_t)(((d - t - back) % r->n + r->n) % r->n * r->block);
    struct ap_shape all = {.dtype = AP_S32, .rank = 1, .dims = n};
    struct ap_shape mine = {.dtype = AP_S32, .rank = 1, .dims = one};
    const struct ap_shape scalar = {.dtype = AP_S32};
    attrs->literal.data = at;
    attrs->global = ap_arena_dup(arena, &all, sizeof all);
    attrs->layout = ap_layout_replicated();
    attrs->layout.axis[r->axis].kind = AP_SPLIT;
    const int table = put(r, AP_OP_CONSTANT, 0, &none, &mine, attrs);
    return put(r, AP_OP_RESHAPE, 1, &table, &scalar, new_attrs(r));
}

/* A dynamic slice, or update, of what a block has in dimension d of an open tensor. */
static int slice_at(const struct ring *r, int tensor, int update, int d, int start)
{
    const enum ap_op op = update < 0 ? AP_OP_DYNAMIC_SLICE : AP_OP_DYNAMIC_UPDATE_SLICE;
    static const int32_t zero = 0;
    const struct ap_shape scalar = {.dtype = AP_S32};
    const struct ap_shape *s = &local_at(r, tensor)->shape;
    const int origin = constant(r, &scalar, &zero);
    int in[AP_MAX_RANK + 3] = {tensor}, n_in = 1;
    struct ap_attrs *attrs = new_attrs(r);
    struct ap_shape part = with_dim(r, s, d, r->block);

    if (update >= 0)
        in[n_in++] = update;
    for (int k = 0; k < s->rank; k++)
        in[n_in++] = k == d ? start : origin;
    if (op == AP_OP_DYNAMIC_UPDATE_SLICE)
        return put(r, op, n_in, in, s, attrs);
    attrs->dynamic_slice_sizes = (struct ap_ints){part.rank, part.dims};
    return put(r, op, n_in, in, &part, attrs);
}

/* A block, or a sum, one device further. */
static int pass_on(const struct ring *r, int node)
{
    struct ap_attrs *attrs = new_attrs(r);
    attrs->coll.axes = 1u << r->axis;
    return put(r, AP_OP_COLLECTIVE_PERMUTE, 1, &node, &local_at(r, node)->shape, attrs);
}

/* The block of a slot in round t: made once, for all who read it. */
static int block_of(const struct ring *r, int slot, int t)
{
    int *block = &r->p->ring_block[slot * r->n];

    for (int k = 1; k <= t; k++)
        if (block[k] < 0)
            block[k] = pass_on(r, block[k - 1]);
    return block[t];
}

void ap_part_ring_start(struct partition *p, const struct ap_nest *nest)
{
    const struct ap_plan *plan = p->plan;
    const int axis = ap_choice_ring_axis(nest, &plan->mesh, &plan->choice[nest->group]);

    if (axis < 0)
        return;
    const int n = (int)plan->mesh.size[axis];
    struct ap_attrs *attrs = ap_arena_dup(p->arena, &ap_attrs_default, sizeof *attrs);
    attrs->coll.axes = 1u << axis;
    p->ring_block = AP_NEW_N(p->arena, nest->n_ins * n, int);
    memset(p->ring_block, -1, (size_t)(nest->n_ins * n) * sizeof *p->ring_block);
    for (int s = 0; s < nest->n_ins; s++) {
        int *block = &p->ring_block[s * n];
        block[0] = p->slot_node[s];
        for (int t = 1; t < n && t <= MAX_WAITING && s < 64; t++)
            if (nest->ring->ins >> s & 1)
                block[t] =
                    ap_part_add(p, AP_OP_COLLECTIVE_PERMUTE, block[t - 1],
                                nest->ins[s].node, &p->prog->local.nodes[block[0]].shape,
                                attrs, ap_plan_group_phase(plan->graph, nest));
    }
}

/* ---- contractions ---- */

static const struct ap_access *access_of(const struct ring *r, int k)
{
    const int slot = r->nest->in_slot[r->m][k];
    const int in = r->p->plan->graph->nodes[r->nest->members[r->m]].in[k];
    return slot >= 0 ? &r->nest->ins[slot].access
                     : &r->nest->values[ap_nest_member(r->nest, in)];
}

/* Whether operand k goes round. */
static bool goes_round(const struct ring *r, int k)
{
    const int slot = r->nest->in_slot[r->m][k];
    return slot >= 0 && slot < 64 && (r->nest->ring->ins >> slot & 1);
}

/* The contraction on blocks; its shape is given. */
static int dot(const struct ring *r, const int in[2], const struct ap_shape *shape)
{
    const struct ap_attrs *a = r->p->plan->graph->nodes[r->nest->members[r->m]].attrs;
    struct ap_attrs *attrs = ap_arena_dup(r->p->arena, a, sizeof *a);
    attrs->attention = AP_ATTENTION_NEXT;
    return put(r, AP_OP_DOT, 2, in, shape, attrs);
}

static int add(const struct ring *r, int a, int b)
{
    const int in[2] = {a, b};
    return put(r, AP_OP_ADD, 2, in, &local_at(r, a)->shape, new_attrs(r));
}

/* The columns of a block of keys, of opened scores with keys in dimension d. */
static int block_columns(const struct ring *r, int scores, int d, int start)
{
    return close_stripes(r, slice_at(r, scores, -1, d + (r->stripes > 1), start), d);
}

static int make_scores(const struct ring *r, const int in[2], const struct ap_shape *s)
{
    const int d = ap_ring_key_dim(r->nest, &r->nest->values[r->m]);
    const int k = goes_round(r, 0) ? 0 : 1;
    const struct ap_shape part = with_dim(r, s, d, r->stripes * r->block);
    const int inside = d + (r->stripes > 1);
    int all = constant(r, s, AP_NEW_N(r->p->arena, 16, char));

    all = open_stripes(r, all, d);
    for (int t = 0; t < r->n; t++) {
        int on[2] = {in[0], in[1]};
        on[k] = block_of(r, r->nest->in_slot[r->m][k], t);
        all = slice_at(r, all, open_stripes(r, dot(r, on, &part), d), inside,
                       start_of(r, t, 0));
    }
    return close_stripes(r, all, d);
}

/* Sums of half precision are added up in f32, as one contraction would. */
static int sum_values(const struct ring *r, const int in[2], const struct ap_shape *s)
{
    const int k = goes_round(r, 0) ? 0 : 1;
    const int d = ap_ring_key_dim(r->nest, access_of(r, 1 - k));
    const int scores = open_stripes(r, in[1 - k], d);
    struct ap_shape wide = *s;
    int sum = -1;

    wide.dtype = ap_dtype_of_sums(s->dtype);
    for (int t = 0; t < r->n; t++) {
        int on[2];
        on[k] = block_of(r, r->nest->in_slot[r->m][k], t);
        on[1 - k] = block_columns(r, scores, d, start_of(r, t, 0));
        const int part = dot(r, on, &wide);
        sum = sum < 0 ? part : add(r, sum, part);
    }
    return wide.dtype == s->dtype ? sum : put(r, AP_OP_CONVERT, 1, &sum, s, new_attrs(r));
}

static int sum_rows(const struct ring *r, const int in[2], const struct ap_shape *s)
{
    const int k = ap_ring_key_dim(r->nest, access_of(r, 0)) >= 0 ? 0 : 1;
    const int d = ap_ring_key_dim(r->nest, access_of(r, k));
    const int scores = open_stripes(r, in[k], d);
    int sum = -1;

    for (int t = 0; t < r->n; t++) {
        int on[2] = {in[0], in[1]};
        on[k] = block_columns(r, scores, d, start_of(r, t, 1));
        const int part = dot(r, on, s);
        sum = sum < 0 ? part : add(r, pass_on(r, sum), part);
    }
    return sum;
}

int ap_part_ring_member(struct partition *p, const struct ap_nest *nest, int m,
                        const int *in, const struct ap_shape *local)
{
    const struct ap_plan *plan = p->plan;
    struct ring r = {.p = p, .nest = nest, .m = m};

    r.axis = ap_choice_ring_axis(nest, &plan->mesh, &plan->choice[nest->group]);
    if (r.axis < 0)
        return -1;
    r.n = (int)plan->mesh.size[r.axis];
    r.block = nest->factors[nest->ring->keys].size / r.n;
    r.stripes = ap_ring_stripes(nest, m);
    switch (ap_ring_part_of(nest, plan->graph, m)) {
    case AP_RING_SCORES:
        return goes_round(&r, 0) || goes_round(&r, 1) ? make_scores(&r, in, local) : -1;
    case AP_RING_VALUES:
        return goes_round(&r, 0) || goes_round(&r, 1) ? sum_values(&r, in, local) : -1;
    case AP_RING_SUMS:
        return sum_rows(&r, in, local);
    case AP_RING_NONE:
        break;
    }
    return -1;
}

int ap_part_ring_nodes(const struct ap_plan *plan, const struct ap_nest *nest)
{
    const int axis = ap_choice_ring_axis(nest, &plan->mesh, &plan->choice[nest->group]);
    const int of_round = 10, beside = 4; /* nodes of a contraction */
    int n = 0;

    if (axis < 0)
        return 0;
    for (int m = 0; m < nest->n_members; m++)
        if (ap_ring_part_of(nest, plan->graph, m) != AP_RING_NONE)
            n += of_round * (int)plan->mesh.size[axis] + beside;
    return n + nest->n_ins * MAX_WAITING;
}
