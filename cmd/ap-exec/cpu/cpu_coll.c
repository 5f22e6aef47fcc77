/*
 * Collectives, as packing, communicating and unpacking; and the local steps ap-slice,
 * ap-mask and ap-partial. A dimension that is gathered or cut is taken as (outer, x,
 * inner) with x in blocks of equal length, the last ones padded with zeros (struct
 * ap_coll).
 */
#include "cpu/cpu_state.h"

#include <string.h>

/* A dimension as (outer, x, inner), other dimensions folded into outer and inner. */
struct view {
    int64_t outer, full, block, inner;
};

/* s has size `extent` of x in dimension split->dim. */
static struct view view_of(const struct ap_shape *s, const struct ap_split *split,
                           int64_t extent)
{
    struct view v = {split->outer, split->full, split->part, 1};
    for (int d = 0; d < split->dim; d++)
        v.outer *= s->dims[d];
    const int64_t within = split->outer * extent;
    v.inner = within ? s->dims[split->dim] / within : 1;
    for (int d = split->dim + 1; d < s->rank; d++)
        v.inner *= s->dims[d];
    return v;
}

static int64_t block_len(const struct view *v, int64_t q)
{
    const int64_t left = v->full - q * v->block;
    return left < 0 ? 0 : left < v->block ? left : v->block;
}

/* Block q of a tensor whose x is full, to or from a buffer of (outer, block, inner). */
static struct box block_box(const struct view *v, int64_t q, bool to_block)
{
    struct box b = {0};
    const int64_t whole[3] = {v->full * v->inner, v->inner, 1};
    const int64_t block[3] = {v->block * v->inner, v->inner, 1};
    const int64_t n[3] = {v->outer, block_len(v, q), v->inner};
    for (int i = 0; i < 3; i++)
        box_add(&b, n[i], to_block ? whole[i] : block[i], to_block ? block[i] : whole[i]);
    box_finish(&b);
    return b;
}

static const char *packed(struct exec *x, const struct coll *c)
{
    char *buf = x->scratch + c->pack_at;
    if (c->padded)
        memset(buf, 0, (size_t)(c->n_ranks * c->block_elems * c->size));
    for (int q = 0; q < c->n_ranks; q++)
        box_copy(&c->pack[q], buf + q * c->block_elems * c->size,
                 c->src + c->pack_from[q] * c->size, c->size);
    return buf;
}

static void unpack(const struct coll *c, const char *buf)
{
    for (int q = 0; q < c->n_ranks; q++)
        box_copy(&c->unpack[q], c->dst + c->unpack_to[q] * c->size,
                 buf + q * c->block_elems * c->size, c->size);
}

/* Blocks that lie where they are read and written. The collective may return before it
 * has run, if the program awaits it later. */
static void direct_run(struct exec *x, void *state)
{
    struct coll *c = state;
    const char *send = c->src;
    if (c->job.op == AP_OP_ALL_REDUCE) {
        if (c->dst != c->src)
            memcpy(c->dst, c->src, (size_t)(c->in_elems * c->size));
        send = c->dst;
    }
    if (x->starts)
        x->comm->start(x->comm);
    x->comm->collect(x->comm, &c->job, send, c->dst);
    c->ticket = x->starts ? x->comm->event(x->comm) : -1;
}

static void finish(struct exec *x, void *state)
{
    const struct coll *c = state;
    x->comm->wait(x->comm, c->ticket);
}

static void packed_run(struct exec *x, void *state)
{
    const struct coll *c = state;
    char *recv = c->unpack ? x->scratch + c->recv_at : c->dst;
    x->comm->collect(x->comm, &c->job, c->pack ? packed(x, c) : c->src, recv);
    if (c->unpack)
        unpack(c, recv);
}

static int check_view(struct exec *x, const struct ap_node *node, const struct view *v,
                      int n_ranks, int64_t elems, struct ap_err *err)
{
    if (v->outer < 1 || v->block < 1 || v->block != ap_ceil_div(v->full, n_ranks) ||
        v->outer * v->full * v->inner != elems) {
        x->exit_code = 1;
        return ap_err_set(err, "%s: %s: its blocks do not fit its shape", node->name,
                          ap_ops[node->op].name);
    }
    return 0;
}

/* ---- all-reduce and all-gather over the microbatch axis, without communication ---- */

static void accumulate_run(struct exec *x, void *state)
{
    (void)x;
    static const int one[3] = {1, 1, 1};
    const struct accumulate *k = state;
    const int size = ap_dtype_size(k->from);
    double acc[CPU_TILE], next[CPU_TILE]; /* room for any element type */
    const double *sum = k->first ? next : acc;
    if (k->first && k->from == k->dtype) {
        memcpy(k->dst, k->src, (size_t)(k->n * k->size));
        return;
    }
    for (int64_t i = 0; i < k->n; i += CPU_TILE) {
        const int64_t n = k->n - i < CPU_TILE ? k->n - i : CPU_TILE;
        cpu_load(next, k->src + i * size, 1, k->from, n);
        if (!k->first) {
            cpu_load(acc, k->dst + i * k->size, 1, k->dtype, n);
            k->fn(acc, acc, next, next, one, n);
        }
        cpu_store(k->dst + i * k->size, 1, sum, k->dtype, n);
    }
}

static void keep_block_run(struct exec *x, void *state)
{
    (void)x;
    const struct accumulate *k = state;
    box_copy(&k->box, k->dst + k->to * k->size, k->src, k->size);
}

static int accumulate_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_split *split = &v->attrs->coll.split;
    struct accumulate *k = AP_NEW(x->arena, struct accumulate);
    *k = (struct accumulate){.src = x->value[v->in[0]],
                             .dst = x->value[call->nodes[0]],
                             .size = ap_dtype_size(v->shape.dtype),
                             .n = ap_shape_elems(&v->shape),
                             .dtype = v->shape.dtype,
                             .from = x->prog->local.nodes[v->in[0]].shape.dtype};
    call->state = k;
    call->run = keep_block_run;
    if (v->op == AP_OP_ALL_GATHER) {
        const struct view w = view_of(&v->shape, split, split->full);
        if (check_view(x, v, &w, (int)x->prog->mesh.size[0], k->n, err))
            return -1;
        k->box = block_box(&w, x->coords[0], false);
        k->to = block_len(&w, x->coords[0]) ? x->coords[0] * w.block * w.inner : 0;
        return 0;
    }
    k->fn = cpu_op_find(cpu_red_op(v->attrs->coll.red), AP_EQ, k->dtype, k->dtype);
    if (!k->fn)
        return exec_unsupported(x, v, err, ap_dtype_name(k->dtype));
    k->first = x->coords[0] == 0;
    call->run = accumulate_run;
    return 0;
}

/* Number of devices on the axes and the call's place among them, first axis major. */
static int64_t place_on(const struct exec *x, unsigned axes, int *n)
{
    const struct ap_mesh *mesh = &x->prog->mesh;
    int64_t place = 0;
    *n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        if (axes >> a & 1) {
            place = place * mesh->size[a] + x->coords[a];
            *n *= (int)mesh->size[a];
        }
    return place;
}

static int rank_at(const struct exec *x, const int64_t *coords)
{
    int rank = 0;
    for (int a = x->prog->mesh.microbatch ? 1 : 0; a < x->prog->mesh.n_axes; a++)
        rank = rank * (int)x->prog->mesh.size[a] + (int)coords[a];
    return rank;
}

/* Of a swap of two axes, or of a step along one. */
static struct comm_peers peers_of(const struct exec *x, unsigned axes)
{
    const int a = __builtin_ctz(axes);
    const int64_t size = x->prog->mesh.size[a];
    int64_t coords[AP_MAX_AXES];
    struct comm_peers peers;

    ap_mesh_coords(&x->prog->mesh, x->comm->rank, coords);
    const int64_t mine = coords[a];
    if (axes == 1u << a) {
        coords[a] = (mine + 1) % size;
        peers.to = rank_at(x, coords);
        coords[a] = (mine + size - 1) % size;
        peers.from = rank_at(x, coords);
        return peers;
    }
    const int b = __builtin_ctz(axes & (axes - 1));
    coords[a] = coords[b];
    coords[b] = mine;
    peers.to = peers.from = rank_at(x, coords);
    return peers;
}

/* The blocks of an operand that is cut (pack), or of a result that is gathered; s: its
 * shape. */
static int set_blocks(struct exec *x, struct coll *c, const struct ap_shape *s,
                      const struct ap_split *split, bool pack, struct ap_err *err)
{
    const struct view v = view_of(s, split, split->full);
    if (check_view(x, c->node, &v, c->n_ranks, pack ? c->in_elems : c->out_elems, err))
        return -1;
    struct box *box = AP_NEW_N(x->arena, c->n_ranks, struct box);
    int64_t *at = AP_NEW_N(x->arena, c->n_ranks, int64_t);
    for (int q = 0; q < c->n_ranks; q++) {
        box[q] = block_box(&v, q, pack);
        at[q] = block_len(&v, q) ? q * v.block * v.inner : 0;
    }
    c->block_elems = v.outer * v.block * v.inner;
    c->direct =
        v.outer == 1 && c->n_ranks * v.block == v.full && c->node->op != AP_OP_ALL_TO_ALL;
    if (pack) {
        c->pack = box, c->pack_from = at;
        c->padded = c->n_ranks * v.block != v.full;
    } else {
        c->unpack = box, c->unpack_to = at;
    }
    return 0;
}

/* Bytes of all blocks. */
static int64_t blocks_bytes(const struct coll *c)
{
    return c->n_ranks * c->block_elems * c->size;
}

int cpu_coll_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_coll *t = &v->attrs->coll;
    const struct ap_shape *in = &call_in(x, v, 0)->shape;
    struct coll *c = AP_NEW(x->arena, struct coll);
    *c = (struct coll){.node = v, .dtype = v->shape.dtype, .src = x->value[v->in[0]]};
    c->dst = x->value[call->nodes[0]];
    c->size = ap_dtype_size(c->dtype);
    c->in_elems = ap_shape_elems(in);
    c->out_elems = ap_shape_elems(&v->shape);
    c->n_ranks = (int)ap_mesh_group(&x->prog->mesh, t->axes);
    if (cpu_kind(c->dtype) == CPU_N_KINDS)
        return exec_unsupported(x, v, err, ap_dtype_name(c->dtype));
    call->state = c;
    if (t->axes & x->prog->mesh.microbatch)
        return accumulate_prepare(x, call, err);
    c->job = (struct comm_job){
        .op = v->op, .n = c->in_elems * c->size, .dtype = c->dtype, .red = t->red};
    c->direct = true;
    int64_t most = 0;
    switch ((int)v->op) {
    case AP_OP_ALL_REDUCE:
        c->job.n = c->in_elems;
        most = c->in_elems * c->size;
        break;
    case AP_OP_ALL_GATHER:
        if (set_blocks(x, c, &v->shape, &t->split, false, err))
            return -1;
        break;
    case AP_OP_REDUCE_SCATTER:
        if (set_blocks(x, c, in, &t->split, true, err))
            return -1;
        c->job.n = c->out_elems;
        most = blocks_bytes(c);
        break;
    case AP_OP_ALL_TO_ALL:
        if (set_blocks(x, c, in, &t->split, true, err) ||
            set_blocks(x, c, &v->shape, &t->join, false, err))
            return -1;
        c->job.n = c->block_elems * c->size;
        c->recv_at = exec_room(blocks_bytes(c));
        exec_need_scratch(x, 2 * c->recv_at);
        break;
    }
    call->run = c->direct ? direct_run : packed_run;
    call->finish = c->direct ? finish : NULL;
    if (!c->direct)
        exec_need_scratch(x, blocks_bytes(c));
    if (v->op == AP_OP_COLLECTIVE_PERMUTE) {
        c->job.peers = peers_of(x, t->axes);
        return 0;
    }
    c->job.group = x->comm->group(x->comm, &x->prog->mesh, t->axes);
    x->comm->reserve(x->comm, most);
    return 0;
}

/* ---- local steps ---- */

static void slice_run(struct exec *x, void *state)
{
    (void)x;
    const struct local *s = state;
    if (s->zeroed)
        memset(s->dst, 0, (size_t)(s->n * s->size));
    box_copy(&s->box, s->dst, s->src + s->from * s->size, s->size);
}

static void partial_run(struct exec *x, void *state)
{
    (void)x;
    const struct local *s = state;
    if (!s->keep)
        cpu_fill(s->dst, s->fill, s->size, s->n);
    else if (s->dst != s->src)
        memcpy(s->dst, s->src, (size_t)(s->n * s->size));
}

static void mask_run(struct exec *x, void *state)
{
    (void)x;
    const struct local *s = state;
    const int last = s->shape.rank - 1;
    const int64_t row = s->shape.rank ? s->shape.dims[last] : 1;
    int64_t at[AP_MAX_RANK] = {0};
    if (s->dst != s->src)
        memcpy(s->dst, s->src, (size_t)(s->n * s->size));
    for (int64_t i = 0; i < s->n; i += row) {
        bool pad = false;
        for (int d = 0; d < last; d++)
            pad |= s->map[d] && s->map[d][at[d]] < 0;
        if (pad)
            cpu_fill(s->dst + i * s->size, s->fill, s->size, row);
        for (int64_t j = 0; !pad && last >= 0 && s->map[last] && j < row; j++)
            if (s->map[last][j] < 0)
                memcpy(s->dst + (i + j) * s->size, s->fill, (size_t)s->size);
        for (int d = last - 1; d >= 0 && ++at[d] == s->shape.dims[d]; d--)
            at[d] = 0;
    }
}

int cpu_local_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    const struct ap_node *v = call_node(x, call);
    const struct ap_coll *t = &v->attrs->coll;
    struct local *s = AP_NEW(x->arena, struct local);
    s->size = ap_dtype_size(v->shape.dtype);
    s->src = x->value[v->in[0]];
    s->dst = x->value[call->nodes[0]];
    s->n = ap_shape_elems(&v->shape);
    s->shape = v->shape;
    call->state = s;
    if (v->op == AP_OP_AP_SLICE) {
        int n_ranks;
        const struct ap_shape *in = &call_in(x, v, 0)->shape;
        const int64_t q = place_on(x, t->axes, &n_ranks);
        const struct view w = view_of(in, &t->split, t->split.full);
        if (check_view(x, v, &w, n_ranks, ap_shape_elems(in), err))
            return -1;
        s->box = block_box(&w, q, true);
        s->zeroed = block_len(&w, q) < w.block;
        s->from = block_len(&w, q) ? q * w.block * w.inner : 0;
        call->run = slice_run;
    } else if (v->op == AP_OP_AP_PARTIAL) {
        s->keep = true;
        for (int a = 0; a < x->prog->mesh.n_axes; a++)
            s->keep &= !(t->axes >> a & 1) || x->coords[a] == 0;
        ap_red_neutral(t->red, v->shape.dtype, s->fill);
        call->run = partial_run;
    } else {
        memcpy(s->fill, v->attrs->literal.data, (size_t)s->size);
        for (int d = 0; d < v->shape.rank; d++)
            s->map[d] =
                v->attrs->global ? exec_index_map(x, v->attrs, &v->shape, d) : NULL;
        call->run = mask_run;
    }
    return 0;
}
