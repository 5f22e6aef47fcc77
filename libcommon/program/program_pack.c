/*
 * Gradients are reduced in buckets, while the rest of the backward pass computes.
 *
 * Problem: the partitioner puts a collective right before the first reader of its result.
 * Nothing can run meanwhile, and each gradient pays a latency of its own. Idea: of the
 * list after the microbatches (all of it, where there are none),
 *
 *   1. all-reduces and reduce-scatters of gradients of equal axes, type and reduction
 *      that are smaller than pack_bytes are packed, in the order in which the gradients
 *      are ready, into buckets of about pack_bytes, all about equally large;
 *   2. a bucket's collective comes right after the group that makes its last gradient,
 *      any other collective right after the group that makes its operand;
 *   3. groups that need a reduced gradient come after all others, those first whose
 *      gradients are reduced first;
 *   4. with `overlap`, a collective that is awaited later than at once says where
 *      (ap_program.wait).
 *
 * A bucket is a concatenate of flat gradients, one collective over it, and a slice and a
 * reshape for each gradient where its own collective was. The all-reduce takes place in
 * the bucket (ap_program_reduces_in_place), and a slice at a multiple of 64 bytes is a
 * view (ap_program_view_offset): members whose bytes are such a multiple lie first, so
 * that no more is copied than the one copy that an all-reduce of its own makes. Of a
 * reduce-scatter over k devices the bucket is k rows, each with one device's part of all
 * gradients.
 *
 * In stages of a pipeline (`by_turn`) groups keep their turn, so that lanes that exchange
 * values at the end of the step do not wait in a circle. An all-gather of a parameter
 * could start with the step, but would take memory from then on: with `overlap` it comes
 * right after the one before it, so that one is ahead. Linear, but for the sort by
 * readiness.
 *
 * Sources: Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.3 (prefetching); Li et al.,
 * "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020,
 * section 3.2 (buckets, readiness); Zhang et al., "Rhino", section on gradient packing
 * (equal chunks).
 */
#include "program/program.h"

#include "base/pack.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };

/* What a group is to this pass. */
enum {
    HOISTED = 1, /* a collective that starts as soon as its operand is there */
    MEMBER = 2,  /* is replaced by its part of a bucket */
    LATE = 4     /* needs a reduced gradient */
};

struct bucket {
    int n;
    int *member; /* groups, in the order in which they lie in the bucket */
    int segment;
    int64_t bytes; /* of the operands */
    int left;      /* operands that are not made yet */
    int node;      /* the collective's, once it is made */
};

struct pack {
    struct ap_arena *arena;
    struct ap_program *prog;
    const struct ap_graph *g; /* as it was */
    const struct ap_program_form *form;
    int n;          /* groups */
    int *start;     /* [group], and after the last: its first node */
    uint8_t *what;  /* [group] */
    int *segment;   /* [group]: groups of one segment change places; NONE: none do */
    int *bucket_of; /* [group]: of a member */
    int *left;      /* [group] of one that is hoisted alone: 1 before its operand */
    int n_buckets;
    struct bucket *bucket;
    int *next_gather; /* [group that gathers a parameter]: the next one; NONE */
    bool *gathers;    /* [group]: it does, and may run beside others */
    int *nth; /* [group]: the last of the collectives, as they start, that it needs
                 or is */
    int n_started;
    int64_t *member_at; /* [group] of a member: its first element (of a row) */
    /* the new list */
    struct ap_node *nodes;
    int *source, *turn, *to; /* [node as it was]: its new id */
    int n_nodes, n_groups, cap;
};

/* ---- which groups ---- */

static const struct ap_node *first_node(const struct pack *p, int group)
{
    return &p->g->nodes[p->start[group]];
}

static bool on_devices(const struct pack *p, const struct ap_node *n)
{
    return ap_ops[n->op].class == AP_CLASS_COLLECTIVE &&
           !(n->attrs->coll.axes & p->prog->mesh.microbatch);
}

/* The node that makes what a node reads, views left out. */
static int maker_of(const struct ap_graph *g, int node)
{
    while (ap_program_view_offset(g, node) >= 0)
        node = g->nodes[node].in[0];
    return node;
}

/* A collective that may start before its place: its operand is computed, not a parameter
 * and not what another collective still makes. */
static bool can_start_early(const struct pack *p, int group)
{
    const struct ap_node *n = first_node(p, group);
    if (p->segment[group] == NONE || p->start[group + 1] - p->start[group] != 1 ||
        !on_devices(p, n) || n->attrs->recomputed)
        return false;
    const struct ap_node *maker = &p->g->nodes[maker_of(p->g, n->in[0])];
    const bool reduces = n->op == AP_OP_ALL_REDUCE || n->op == AP_OP_REDUCE_SCATTER;
    return (reduces || n->phase == AP_UPDATE) && maker->op != AP_OP_PARAMETER &&
           !on_devices(p, maker);
}

static bool depends(const struct pack *p, int group, const bool *on)
{
    for (int i = p->start[group]; i < p->start[group + 1]; i++)
        for (int k = 0; k < p->g->nodes[i].n_in; k++)
            if (on[p->g->nodes[p->g->nodes[i].in[k]].group])
                return true;
    return false;
}

static void find_segments(struct pack *p)
{
    const struct ap_program *prog = p->prog;
    const bool by_turn = p->form->by_turn, once = !prog->mesh.microbatch;
    int lo = prog->each_hi, segment = 0;

    while (by_turn && once && lo < p->n && prog->turn[lo] < AP_TURN_END)
        lo++;
    for (int g = 0; g < p->n; g++) {
        if (by_turn && g > lo && prog->turn[g] != prog->turn[g - 1])
            segment++;
        p->segment[g] = g < lo ? NONE : segment;
    }
}

/* Marks groups; reduced[group]: a gradient's first collective. */
static void find_groups(struct pack *p, bool *reduced)
{
    bool *after = AP_NEW_N(p->arena, p->n + 1, bool); /* reduced, or after one that is */

    for (int g = 0; g < p->n; g++) {
        const struct ap_node *n = first_node(p, g);
        const bool behind = depends(p, g, after), early = can_start_early(p, g);
        const bool reduces = n->op == AP_OP_ALL_REDUCE || n->op == AP_OP_REDUCE_SCATTER;
        p->what[g] = (uint8_t)((early ? HOISTED : 0) | (behind ? LATE : 0));
        reduced[g] = early && !behind && reduces && n->phase == AP_UPDATE;
        after[g] = behind || reduced[g];
    }
}

/* Lists all-gathers of parameters that may run ahead. */
static void find_gathers(struct pack *p)
{
    int next = NONE;

    for (int g = p->n - 1; g >= 0; g--) {
        const struct ap_node *n = first_node(p, g);
        p->gathers[g] = p->form->overlap && p->segment[g] != NONE &&
                        n->op == AP_OP_ALL_GATHER && on_devices(p, n) &&
                        p->g->nodes[n->in[0]].op == AP_OP_PARAMETER &&
                        ap_program_is_direct(p->prog, p->start[g]);
        if (!p->gathers[g])
            continue;
        const bool near = next != NONE && p->segment[next] == p->segment[g] &&
                          p->g->nodes[first_node(p, next)->in[0]].group < g;
        p->next_gather[g] = near ? next : NONE;
        next = g;
    }
}

/* ---- buckets ---- */

/* Elements of one device's part of a reduce-scatter, or of all of an all-reduce. */
static int64_t row_elems(const struct ap_node *n)
{
    return ap_shape_elems(&n->shape);
}

static int64_t operand_bytes(const struct pack *p, int group)
{
    return ap_shape_bytes(&p->g->nodes[first_node(p, group)->in[0]].shape);
}

/* Whether a collective may share a bucket; of reduce-scatters those without padding. */
static bool can_be_packed(const struct pack *p, int group)
{
    const struct ap_node *n = first_node(p, group);
    const struct ap_coll *c = &n->attrs->coll;
    const int64_t most =
        p->form->pack_bytes == AP_BUCKET_BY_PRICE ? AP_BUCKET_MOST : p->form->pack_bytes;
    if (row_elems(n) == 0 || operand_bytes(p, group) >= most)
        return false;
    return n->op == AP_OP_ALL_REDUCE ||
           c->split.part * ap_mesh_group(&p->prog->mesh, c->axes) == c->split.full;
}

static bool same_bucket(const struct pack *p, int ga, int gb)
{
    const struct ap_node *a = first_node(p, ga), *b = first_node(p, gb);
    return a->op == b->op && a->shape.dtype == b->shape.dtype &&
           a->attrs->coll.axes == b->attrs->coll.axes &&
           a->attrs->coll.red == b->attrs->coll.red && p->segment[ga] == p->segment[gb];
}

/* A group, and the number that it comes by. */
struct ready {
    int after, group;
};

static int by_readiness(const void *pa, const void *pb)
{
    const struct ready *a = pa, *b = pb;
    return a->after != b->after ? (a->after > b->after) - (a->after < b->after)
                                : (a->group > b->group) - (a->group < b->group);
}

/* A bucket of groups; those whose parts end at multiples of 64 bytes lie first. */
static void add_bucket(struct pack *p, const int *group, int n)
{
    struct bucket *b = &p->bucket[p->n_buckets];
    int64_t at = 0;

    if (n < 2)
        return;
    *b = (struct bucket){.member = AP_NEW_N(p->arena, n, int),
                         .segment = p->segment[group[0]],
                         .node = NONE};
    for (int odd = 0; odd < 2; odd++)
        for (int i = 0; i < n; i++) {
            const struct ap_shape *s = &first_node(p, group[i])->shape;
            if ((ap_shape_bytes(s) % AP_PACK_ALIGN != 0) != odd)
                continue;
            b->member[b->n++] = group[i];
            b->bytes += operand_bytes(p, group[i]);
            p->member_at[group[i]] = at;
            at += ap_shape_elems(s);
            p->what[group[i]] = MEMBER | LATE;
            p->bucket_of[group[i]] = p->n_buckets;
        }
    p->n_buckets++;
}

/*
 * Bytes of a bucket, of gradients of `sum` bytes in all. By price: with a seconds of
 * latency and s seconds per byte, buckets of b bytes leave b s + (sum / b) a that nothing
 * hides, least at b = sqrt(sum a / s).
 */
static int64_t bucket_bytes(const struct pack *p, int group, int64_t sum)
{
    const struct ap_node *n = first_node(p, group);
    if (p->form->pack_bytes != AP_BUCKET_BY_PRICE)
        return p->form->pack_bytes;
    if (p->form->cost->variant != AP_COST_DEFAULT)
        return AP_BUCKET_MOST; /* no seconds */
    const double none = ap_cost_collective(p->form->cost, n->op, n->attrs->coll.axes, 1);
    const double all = ap_cost_collective(p->form->cost, n->op, n->attrs->coll.axes, sum);
    const double b =
        all > none ? (double)sum * sqrt(none / (all - none)) : (double)AP_BUCKET_MOST;
    return b < 1 ? 1 : b < AP_BUCKET_MOST ? (int64_t)b : AP_BUCKET_MOST;
}

/* Cuts the groups of one kind, by readiness, into buckets of about equal bytes. */
static void cut_buckets(struct pack *p, const int *group, int n)
{
    int64_t sum = 0, at = 0, last = 0;
    int first = 0;

    for (int i = 0; i < n; i++)
        sum = ap_add64(sum, operand_bytes(p, group[i]));
    const int64_t n_cuts = ap_ceil_div(sum, bucket_bytes(p, group[0], sum));
    for (int i = 0; i < n; i++) {
        const int64_t k = (int64_t)((double)at / (double)sum * (double)n_cuts);
        if (k != last) {
            add_bucket(p, group + first, i - first);
            first = i;
            last = k;
        }
        at += operand_bytes(p, group[i]);
    }
    add_bucket(p, group + first, n - first);
}

static void find_buckets(struct pack *p, const bool *reduced)
{
    struct ready *ready = AP_NEW_N(p->arena, p->n + 1, struct ready);
    int *group = AP_NEW_N(p->arena, p->n + 1, int);
    int n = 0;

    for (int g = 0; g < p->n; g++)
        if (reduced[g] && can_be_packed(p, g))
            ready[n++] = (struct ready){p->g->nodes[first_node(p, g)->in[0]].group, g};
    qsort(ready, (size_t)n, sizeof *ready, by_readiness);
    p->bucket = AP_NEW_N(p->arena, n + 1, struct bucket);
    for (int i = 0; i < n; i++) {
        int n_same = 0;
        if (ready[i].group == NONE)
            continue;
        const int lead = ready[i].group;
        for (int k = i; k < n; k++)
            if (ready[k].group != NONE && same_bucket(p, lead, ready[k].group)) {
                group[n_same++] = ready[k].group;
                ready[k].group = NONE;
            }
        cut_buckets(p, group, n_same);
    }
}

/* ---- the new list ---- */

/* A node in a group of its own, of the source node, phase and scope of `like`. */
static int add(struct pack *p, enum ap_op op, int n_in, const int *in,
               const struct ap_shape *shape, const struct ap_attrs *attrs, int like)
{
    const struct ap_node *old = &p->g->nodes[like];
    const int id = p->n_nodes++;

    assert(id < p->cap);
    p->nodes[id] = (struct ap_node){
        .op = op,
        .name = ap_arena_printf(p->arena, "%s.%s.pack%d", old->name, ap_ops[op].name, id),
        .n_in = n_in,
        .in = ap_arena_dup(p->arena, in, (size_t)n_in * sizeof *in),
        .shape = *shape,
        .attrs = attrs,
        .scope = old->scope,
        .phase = old->phase,
        .param = -1,
        .group = p->n_groups,
    };
    p->source[id] = p->prog->source[like];
    p->turn[p->n_groups++] = p->prog->turn[old->group];
    return id;
}

static struct ap_attrs *new_attrs(struct pack *p)
{
    return ap_arena_dup(p->arena, &ap_attrs_default, sizeof ap_attrs_default);
}

static struct ap_shape shape_of(struct pack *p, enum ap_dtype dtype, int rank,
                                const int64_t *dims)
{
    int64_t *own = AP_NEW_N(p->arena, rank + 1, int64_t);
    for (int d = 0; d < rank; d++)
        own[d] = dims[d];
    return (struct ap_shape){.dtype = dtype, .rank = rank, .dims = own};
}

static int add_reshape(struct pack *p, int in, int rank, const int64_t *dims, int like)
{
    const struct ap_shape s = shape_of(p, p->nodes[in].shape.dtype, rank, dims);
    if (ap_shape_equal(&s, &p->nodes[in].shape))
        return in;
    return add(p, AP_OP_RESHAPE, 1, &in, &s, &ap_attrs_default, like);
}

/* A gradient as its bucket has it: flat, or a row for each device. */
static int add_flat(struct pack *p, int group)
{
    const int like = p->start[group];
    const struct ap_node *n = &p->g->nodes[like];
    const struct ap_split *split = &n->attrs->coll.split;
    const int in = p->to[n->in[0]];
    const int64_t row = row_elems(n), k = split->part ? split->full / split->part : 1;
    int64_t outer = split->outer;

    if (n->op == AP_OP_ALL_REDUCE)
        return add_reshape(p, in, 1, &row, like);
    for (int d = 0; d < split->dim; d++)
        outer *= n->shape.dims[d];
    const int64_t rows[2] = {k, row}, cut[3] = {outer, k, row / outer},
                  turned[3] = {k, outer, row / outer}, perm[3] = {1, 0, 2};
    if (outer == 1)
        return add_reshape(p, in, 2, rows, like);
    struct ap_attrs *attrs = new_attrs(p);
    attrs->dimensions = (struct ap_ints){3, ap_arena_dup(p->arena, perm, sizeof perm)};
    const struct ap_shape s = shape_of(p, n->shape.dtype, 3, turned);
    const int x = add_reshape(p, in, 3, cut, like);
    return add_reshape(p, add(p, AP_OP_TRANSPOSE, 1, &x, &s, attrs, like), 2, rows, like);
}

static void add_packed(struct pack *p, struct bucket *b)
{
    const int like = p->start[b->member[0]];
    const struct ap_node *n = &p->g->nodes[like];
    const bool scatters = n->op == AP_OP_REDUCE_SCATTER;
    const int64_t along = scatters,
                  k = ap_mesh_group(&p->prog->mesh, n->attrs->coll.axes);
    int *in = AP_NEW_N(p->arena, b->n, int);
    int64_t sum = 0;

    for (int i = 0; i < b->n; i++) {
        in[i] = add_flat(p, b->member[i]);
        sum += row_elems(first_node(p, b->member[i]));
    }
    struct ap_attrs *attrs = new_attrs(p), *coll = new_attrs(p);
    attrs->dimensions = (struct ap_ints){1, ap_arena_dup(p->arena, &along, sizeof along)};
    coll->coll = (struct ap_coll){.axes = n->attrs->coll.axes, .red = n->attrs->coll.red};
    if (scatters)
        coll->coll.split = (struct ap_split){.dim = 0, .outer = 1, .full = k, .part = 1};
    const struct ap_shape bucket = shape_of(p, n->shape.dtype, scatters ? 2 : 1,
                                            scatters ? (int64_t[]){k, sum} : &sum);
    const struct ap_shape row = shape_of(p, n->shape.dtype, scatters ? 2 : 1,
                                         scatters ? (int64_t[]){1, sum} : &sum);
    const int all = add(p, AP_OP_CONCATENATE, b->n, in, &bucket, attrs, like);
    b->node = add(p, n->op, 1, &all, &row, coll, like);
}

/* A reduced gradient, out of its bucket. */
static void add_member(struct pack *p, int group)
{
    const int like = p->start[group];
    const struct ap_node *n = &p->g->nodes[like];
    const int from = p->bucket[p->bucket_of[group]].node;
    const int rank = p->nodes[from].shape.rank;
    const int64_t at = p->member_at[group], dims[2] = {1, row_elems(n)};
    const struct ap_slice_dim rows = {0, 1, 1}, part = {at, at + dims[1], 1};
    const struct ap_slice_dim slice[2] = {rank == 2 ? rows : part, part};
    struct ap_attrs *attrs = new_attrs(p);

    assert(from != NONE);
    attrs->n_slice = rank;
    attrs->slice = ap_arena_dup(p->arena, slice, (size_t)rank * sizeof *slice);
    const struct ap_shape s =
        shape_of(p, n->shape.dtype, rank, rank == 2 ? dims : dims + 1);
    const int x = add(p, AP_OP_SLICE, 1, &from, &s, attrs, like);
    p->to[like] = add_reshape(p, x, n->shape.rank, n->shape.dims, like);
}

static void add_group(struct pack *p, int group)
{
    for (int i = p->start[group]; i < p->start[group + 1]; i++) {
        struct ap_node node = p->g->nodes[i];
        int *in = AP_NEW_N(p->arena, node.n_in, int);
        for (int k = 0; k < node.n_in; k++)
            in[k] = p->to[node.in[k]];
        node.in = in;
        node.group = p->n_groups;
        assert(p->n_nodes < p->cap);
        p->to[i] = p->n_nodes;
        p->source[p->n_nodes] = p->prog->source[i];
        p->nodes[p->n_nodes++] = node;
    }
    p->turn[p->n_groups++] = p->prog->turn[group];
}

static void add_and_start(struct pack *p, int group);

/* An operand of the group's collective is there: it starts when all of them are. */
static void operand_made(struct pack *p, int group)
{
    if (p->what[group] & MEMBER) {
        struct bucket *b = &p->bucket[p->bucket_of[group]];
        if (--b->left > 0)
            return;
        add_packed(p, b);
        p->n_started++;
        for (int i = 0; i < b->n; i++)
            p->nth[b->member[i]] = p->n_started;
    } else if (p->what[group] & HOISTED && p->left[group] > 0) {
        p->left[group] = 0;
        p->nth[group] = ++p->n_started;
        add_and_start(p, group);
    }
}

static void add_and_start(struct pack *p, int group)
{
    add_group(p, group);
    for (int i = p->start[group]; i < p->start[group + 1]; i++)
        for (int u = p->g->user_start[i]; u < p->g->user_start[i + 1]; u++) {
            const int user = p->g->nodes[p->g->users[u]].group;
            if (p->segment[user] == p->segment[group])
                operand_made(p, user);
        }
}

/* The place of an all-gather of a parameter: it starts here, if it has not, and the next
 * one ahead of its own place. */
static void add_gather(struct pack *p, int group)
{
    const int next = p->next_gather[group];

    if (p->left[group]-- > 0)
        add_and_start(p, group);
    if (next != NONE && p->left[next]-- > 0)
        add_and_start(p, next);
}

/* Groups that need reduced gradients, in the order in which these are reduced. */
static void add_late(struct pack *p, int lo, int hi)
{
    struct ready *late = AP_NEW_N(p->arena, hi - lo, struct ready);
    int n = 0;

    for (int g = lo; g < hi; g++) {
        if (!(p->what[g] & LATE))
            continue;
        for (int i = p->start[g]; i < p->start[g + 1]; i++)
            for (int k = 0; k < p->g->nodes[i].n_in; k++) {
                const int from = p->g->nodes[p->g->nodes[i].in[k]].group;
                p->nth[g] = p->nth[from] > p->nth[g] ? p->nth[from] : p->nth[g];
            }
        if (!(p->what[g] & HOISTED)) /* else it starts when its operand is made */
            late[n++] = (struct ready){p->nth[g], g};
    }
    qsort(late, (size_t)n, sizeof *late, by_readiness);
    for (int i = 0; i < n; i++)
        if (p->what[late[i].group] & MEMBER)
            add_member(p, late[i].group);
        else
            add_and_start(p, late[i].group);
}

/* Groups lo .. hi - 1 are a segment. */
static void add_segment(struct pack *p, int lo, int hi)
{
    for (int g = lo; g < hi; g++)
        if (p->what[g] & (MEMBER | HOISTED) &&
            p->g->nodes[first_node(p, g)->in[0]].group < lo)
            operand_made(p, g);
    for (int g = lo; g < hi; g++)
        if (p->gathers[g])
            add_gather(p, g);
        else if (!(p->what[g] & (HOISTED | LATE)))
            add_and_start(p, g);
    add_late(p, lo, hi);
}

static void add_all(struct pack *p)
{
    for (int b = 0; b < p->n_buckets; b++)
        p->bucket[b].left = p->bucket[b].n;
    for (int lo = 0, hi; lo < p->n; lo = hi) {
        for (hi = lo + 1; hi < p->n && p->segment[hi] == p->segment[lo]; hi++)
            ;
        if (p->segment[lo] == NONE) {
            for (int g = lo; g < hi; g++)
                add_group(p, g);
            continue;
        }
        add_segment(p, lo, hi);
    }
}

/* ---- where collectives are awaited ---- */

bool ap_program_is_direct(const struct ap_program *prog, int node)
{
    const struct ap_node *n = &prog->local.nodes[node];
    const struct ap_coll *c = &n->attrs->coll;
    int64_t outer = c->split.outer;

    if (n->op == AP_OP_ALL_REDUCE || n->op == AP_OP_COLLECTIVE_PERMUTE)
        return true;
    if (n->op == AP_OP_ALL_TO_ALL)
        return false;
    for (int d = 0; d < c->split.dim; d++)
        outer *= n->shape.dims[d];
    return outer == 1 &&
           c->split.part * ap_mesh_group(&prog->mesh, c->axes) == c->split.full;
}

/* The first group that reads a node's value, views left out; n_groups: none does. */
static int first_read(const struct ap_graph *g, int node)
{
    int first = g->n_groups;
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        const int user = g->users[u];
        const int at = ap_program_view_offset(g, user) >= 0 ? first_read(g, user)
                                                            : g->nodes[user].group;
        first = at < first ? at : first;
    }
    return first;
}

static void find_waits(struct pack *p)
{
    struct ap_program *prog = p->prog;
    const struct ap_graph *g = &prog->local;
    int *wait = AP_NEW_N(p->arena, g->n_groups + 1, int);

    for (int i = 0; i < g->n_groups; i++)
        wait[i] = NONE;
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        const bool alone = (i == 0 || g->nodes[i - 1].group != n->group) &&
                           (i + 1 == g->n_nodes || g->nodes[i + 1].group != n->group);
        if (n->group < prog->each_hi || !alone || !on_devices(p, n) ||
            !ap_program_is_direct(prog, i))
            continue;
        const int first = first_read(g, i);
        if (first > n->group + 1)
            wait[n->group] = first;
    }
    prog->wait = wait;
}

/* ---- the whole ---- */

/* Takes the new list for the program's. */
static void take(struct pack *p)
{
    struct ap_program *prog = p->prog;
    struct ap_err err = {0};

    prog->local.n_groups = p->n_groups;
    prog->source = p->source;
    prog->turn = p->turn;
    const int rc =
        ap_graph_replace(p->arena, &prog->local, p->nodes, p->n_nodes, p->to, &err);
    assert(rc == 0), (void)rc;
}

void ap_program_pack(struct ap_arena *arena, struct ap_program *prog,
                     const struct ap_program_form *form)
{
    const struct ap_graph before = prog->local;
    struct pack p = {.arena = arena, .prog = prog, .g = &before, .form = form};
    const int n = p.n = before.n_groups;
    int group = 0;

    if (!form->overlap && form->pack_bytes == 0)
        return;
    p.start = AP_NEW_N(arena, n + 2, int);
    for (int i = 0; i < before.n_nodes; i++)
        while (group <= before.nodes[i].group)
            p.start[group++] = i;
    while (group <= n)
        p.start[group++] = before.n_nodes;
    p.what = AP_NEW_N(arena, n + 1, uint8_t);
    p.segment = AP_NEW_N(arena, n + 1, int);
    p.bucket_of = AP_NEW_N(arena, n + 1, int);
    p.member_at = AP_NEW_N(arena, n + 1, int64_t);
    p.left = AP_NEW_N(arena, n + 1, int);
    p.nth = AP_NEW_N(arena, n + 1, int);
    p.next_gather = AP_NEW_N(arena, n + 1, int);
    p.gathers = AP_NEW_N(arena, n + 1, bool);
    for (int g = 0; g < n; g++)
        p.left[g] = 1;
    bool *reduced = AP_NEW_N(arena, n + 1, bool);
    find_segments(&p);
    find_groups(&p, reduced);
    find_gathers(&p);
    find_buckets(&p, reduced);

    const int members = 5; /* nodes in place of one collective: three views and a
                              transpose, and its share of the bucket's two */
    p.cap = before.n_nodes + members * n + 2 * p.n_buckets;
    p.nodes = AP_NEW_N(arena, p.cap, struct ap_node);
    p.source = AP_NEW_N(arena, p.cap, int);
    p.turn = AP_NEW_N(arena, p.cap, int);
    p.to = AP_NEW_N(arena, before.n_nodes + 1, int);
    add_all(&p);
    take(&p);
    if (form->overlap)
        find_waits(&p);
}
