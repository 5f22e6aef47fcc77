/*
 * Fused passes: the elementwise, broadcast, iota and scalar nodes of one group in one
 * pass over tiles of CPU_TILE elements. Operands from outside are read where they lie, or
 * gathered into a register when they are broadcast or need converting; values that others
 * need are written once; all else stays in registers (allocated by linear scan, so that
 * the working set fits the first-level cache). Nodes that depend on scalars only are
 * computed once, before the first tile. Cost: one function call per node and tile.
 * Threads share the tiles; each has its own registers.
 */
#include "cpu/cpu.h"

#include <string.h>

/* Loads among which an equal one is looked for: keeps preparing linear. Passes of models
 * have fewer, so that none is missed. */
#define LOOK_BACK 64

/* Elements of one task: a pass of fewer is not worth waking a thread. */
#define TASK_ELEMS (16 * CPU_TILE)
/* What the tiles of all registers and of what is read and written in place may take of
 * the first-level cache: tiles of a pass with many are shorter (an optimizer's update: 15
 * % of its time). */
#define TILE_BYTES (32 << 10)
#define LEAST_TILE 256

/* Something from memory, per tile. */
struct load {
    int value;
    char *src;
    enum ap_dtype dtype;
    bool direct;  /* the register is the memory itself */
    bool uniform; /* one element, before the tiles */
    int rank;     /* collapsed dimensions of the pass, with the operand's strides */
    int64_t n[AP_MAX_RANK], stride[AP_MAX_RANK];
    const int64_t *iota; /* instead of src: index map of the iota's dimension, or ... */
    bool is_iota;        /* ... the index itself */
};

struct store {
    int value;
    char *dst;
    enum ap_dtype dtype;
    bool direct;
    int64_t n; /* of a uniform value: elements to fill */
};

struct pass {
    int64_t n;
    struct chain chain;
    int n_loads, n_stores, n_slots;
    struct load *loads;
    struct store *stores;
    void **ptr; /* per value */
    int *slot;  /* per value: register, -1 if it has none, -2 if it is uniform */
    int slot_bytes;
    int64_t tile;       /* elements */
    void ***thread_ptr; /* [thread]: ptr of its own; that of thread 0 is ptr */
};

/* While preparing. */
struct builder {
    struct pass *p;
    struct exec *x;
    const struct call *call;
    int *value;    /* per member: its value number */
    bool *uniform; /* per value */
    int *kind_size;
    int n_values;
};

static int new_value(struct builder *b, enum ap_dtype dtype, bool uniform)
{
    const int v = b->n_values++;
    b->uniform[v] = uniform;
    b->kind_size[v] = cpu_kind_size(cpu_kind(dtype));
    if (uniform)
        b->p->ptr[v] = ap_arena_alloc(b->x->arena, 16);
    return v;
}

int call_member(const struct call *call, int node)
{
    int lo = 0, hi = call->n_nodes;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (call->nodes[mid] < node)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < call->n_nodes && call->nodes[lo] == node ? lo : -1;
}

int cpu_collapse(const struct ap_shape *dims, const struct ap_shape *s,
                 const int64_t *map, int64_t *n, int64_t *stride)
{
    int64_t own[AP_MAX_RANK], step[AP_MAX_RANK] = {0};
    int r = 0;
    cpu_strides(s, own);
    for (int i = 0; i < s->rank; i++)
        if (s->dims[i] != 1)
            step[map ? map[i] : i] = own[i];
    for (int d = 0; d < dims->rank; d++) {
        if (dims->dims[d] == 1)
            continue;
        if (r && stride[r - 1] == step[d] * dims->dims[d]) {
            n[r - 1] *= dims->dims[d];
            stride[r - 1] = step[d];
        } else {
            n[r] = dims->dims[d];
            stride[r] = step[d];
            r++;
        }
    }
    return r;
}

static void load_collapse(struct load *l, const struct ap_shape *dims,
                          const struct ap_shape *s, const int64_t *map)
{
    l->rank = cpu_collapse(dims, s, map, l->n, l->stride);
    l->uniform = l->rank == 0 || (l->rank == 1 && l->stride[0] == 0);
    l->direct =
        !l->uniform && l->rank == 1 && l->stride[0] == 1 && cpu_is_plain(l->dtype);
}

/* The value of node as an operand; map is a broadcast's, NULL for an operand of equal
 * dims. */
static int load_node(struct builder *b, const struct ap_shape *dims, int node,
                     const int64_t *map)
{
    struct pass *p = b->p;
    const struct ap_node *v = &b->x->prog->local.nodes[node];
    struct load l = {.src = b->x->value[node], .dtype = v->shape.dtype};
    load_collapse(&l, dims, &v->shape, map);
    for (int i = p->n_loads > LOOK_BACK ? p->n_loads - LOOK_BACK : 0; i < p->n_loads;
         i++) {
        const struct load *o = &p->loads[i];
        if (o->src == l.src && !o->is_iota && o->dtype == l.dtype && o->rank == l.rank &&
            !memcmp(o->n, l.n, sizeof l.n) &&
            !memcmp(o->stride, l.stride, sizeof l.stride))
            return o->value;
    }
    l.value = new_value(b, l.dtype, l.uniform);
    p->loads[p->n_loads++] = l;
    return l.value;
}

static int load_iota(struct builder *b, const struct ap_node *v)
{
    struct load l = {.dtype = v->shape.dtype, .is_iota = true};
    const int d = (int)v->attrs->iota_dimension;
    int64_t inner = 1;
    for (int i = d + 1; i < v->shape.rank; i++)
        inner *= v->shape.dims[i];
    l.n[0] = v->shape.dims[d];
    l.n[1] = inner;
    l.iota = exec_index_map(b->x, v->attrs, &v->shape, d);
    l.value = new_value(b, l.dtype, false);
    b->p->loads[b->p->n_loads++] = l;
    return l.value;
}

static int add_elementwise(struct builder *b, int m, const struct ap_shape *dims,
                           struct ap_err *err)
{
    const struct ap_node *v = &b->x->prog->local.nodes[b->call->nodes[m]];
    struct chain_operand in[3];
    bool uniform = true;
    for (int k = 0; k < v->n_in; k++) {
        const struct ap_node *u = call_in(b->x, v, k);
        const int at = call_member(b->call, v->in[k]);
        static const int64_t none[1] = {0};
        const int value = at >= 0
                              ? b->value[at]
                              : load_node(b, dims, v->in[k], u->shape.rank ? NULL : none);
        in[k] = (struct chain_operand){u->shape.dtype, value, b->uniform[value]};
        uniform &= b->uniform[value];
    }
    b->value[m] = new_value(b, v->shape.dtype, uniform);
    return chain_add(b->x, &b->p->chain, v, in, b->value[m], uniform, err);
}

/* A uniform or loaded value that must be stored is a copy of its own. */
static int add_member(struct builder *b, int m, struct ap_err *err)
{
    const struct ap_node *v = &b->x->prog->local.nodes[b->call->nodes[m]];
    const struct ap_shape *dims = &v->shape;
    if (cpu_kind(v->shape.dtype) == CPU_N_KINDS)
        return exec_unsupported(b->x, v, err, ap_dtype_name(v->shape.dtype));
    if (v->op == AP_OP_IOTA) {
        b->value[m] = load_iota(b, v);
    } else if (v->op == AP_OP_CONSTANT) {
        b->value[m] = new_value(b, v->shape.dtype, true);
        cpu_load(b->p->ptr[b->value[m]], v->attrs->literal.data, 1, v->shape.dtype, 1);
    } else if (v->op == AP_OP_BROADCAST) {
        const int at = call_member(b->call, v->in[0]);
        b->value[m] =
            at >= 0 ? b->value[at] : load_node(b, dims, v->in[0], v->attrs->dimensions.v);
    } else {
        return add_elementwise(b, m, dims, err);
    }
    return 0;
}

static bool overlaps(const struct pass *p, const char *dst, int64_t bytes)
{
    for (int i = 0; i < p->n_loads; i++) {
        const struct load *l = &p->loads[i];
        int64_t span = ap_dtype_size(l->dtype);
        for (int d = 0; d < l->rank; d++)
            span += (l->n[d] - 1) * l->stride[d] * ap_dtype_size(l->dtype);
        if (!l->is_iota && l->src && l->src < dst + bytes && dst < l->src + span)
            return true;
    }
    return false;
}

static void add_stores(struct builder *b)
{
    struct pass *p = b->p;
    bool *taken = AP_NEW_N(b->x->arena, b->n_values + 1, bool);
    bool *loaded = AP_NEW_N(b->x->arena, b->n_values + 1, bool);
    for (int i = 0; i < p->n_loads; i++)
        loaded[p->loads[i].value] = true;
    for (int m = 0; m < b->call->n_nodes; m++) {
        const int node = b->call->nodes[m], v = b->value[m];
        const struct ap_node *nd = &b->x->prog->local.nodes[node];
        if (!b->x->value[node])
            continue;
        struct store s = {.value = v, .dst = b->x->value[node], .dtype = nd->shape.dtype};
        s.n = ap_shape_elems(&nd->shape);
        s.direct = cpu_is_plain(s.dtype) && !b->uniform[v] && !loaded[v] && !taken[v] &&
                   !overlaps(p, s.dst, ap_shape_bytes(&nd->shape));
        taken[v] = true;
        p->stores[p->n_stores++] = s;
    }
}

/* Registers by linear scan over the instructions; a result never takes an operand's. */
static void assign_slots(struct builder *b)
{
    struct pass *p = b->p;
    struct ap_arena *arena = b->x->arena;
    const int n = b->n_values;
    int *last = AP_NEW_N(arena, n + 1, int), *free_slot = AP_NEW_N(arena, n + 1, int);
    bool *memory = AP_NEW_N(arena, n + 1, bool);
    int n_free = 0, size = 1;
    for (int v = 0; v < n; v++)
        last[v] = -1, p->slot[v] = -1,
        size = b->kind_size[v] > size ? b->kind_size[v] : size;
    for (int i = 0; i < p->chain.n_instr; i++)
        for (int k = 0; k < 3; k++)
            last[p->chain.instr[i].src[k]] = i;
    for (int i = 0; i < p->n_stores; i++) {
        last[p->stores[i].value] = p->chain.n_instr; /* stored at the tile's end */
        memory[p->stores[i].value] |= p->stores[i].direct;
    }
    for (int i = 0; i < p->n_loads; i++) {
        const struct load *l = &p->loads[i];
        memory[l->value] |= l->direct;
        if (!l->uniform && !l->direct)
            p->slot[l->value] = p->n_slots++;
    }
    for (int i = 0; i < p->chain.n_instr; i++) {
        const struct chain_instr *c = &p->chain.instr[i];
        if (!b->uniform[c->dst] && !memory[c->dst])
            p->slot[c->dst] = n_free ? free_slot[--n_free] : p->n_slots++;
        if (last[c->dst] < 0 && p->slot[c->dst] >= 0)
            free_slot[n_free++] = p->slot[c->dst];
        for (int k = 0; k < 3; k++) {
            const int s = c->src[k];
            if (last[s] == i && p->slot[s] >= 0) {
                free_slot[n_free++] = p->slot[s];
                last[s] = -2;
            }
        }
    }
    int64_t n_tiles = p->n_slots;
    for (int v = 0; v < n; v++)
        n_tiles += memory[v];
    for (p->tile = CPU_TILE;
         p->tile > LEAST_TILE && n_tiles * p->tile * size > TILE_BYTES;)
        p->tile /= 2;
    p->slot_bytes = (int)p->tile * size;
}

/* Elements [at, at + n) of a broadcast operand, run by run. */
static void gather_tile(const struct load *l, char *reg, int64_t at, int64_t n)
{
    const int r = l->rank, size = ap_dtype_size(l->dtype);
    const int reg_size = cpu_is_plain(l->dtype) ? size : 4;
    int64_t idx[AP_MAX_RANK], off = 0, rest = at;
    for (int d = r - 1; d >= 0; d--) {
        idx[d] = rest % l->n[d];
        rest /= l->n[d];
        off += idx[d] * l->stride[d];
    }
    const int64_t inner = l->stride[r - 1];
    while (n > 0) {
        const int64_t left = l->n[r - 1] - idx[r - 1], run = left < n ? left : n;
        if (inner == 0) {
            cpu_load(reg, l->src + off * size, 1, l->dtype, 1);
            cpu_fill(reg, reg, reg_size, run);
        } else {
            cpu_load(reg, l->src + off * size, inner, l->dtype, run);
        }
        reg += run * reg_size;
        n -= run;
        off -= idx[r - 1] * inner;
        idx[r - 1] = 0;
        for (int d = r - 2; d >= 0; d--) {
            off += l->stride[d];
            if (++idx[d] < l->n[d])
                break;
            off -= idx[d] * l->stride[d];
            idx[d] = 0;
        }
    }
}

/* Indices that are converted at once. */
#define IOTA_RUN 256

static void iota_tile(const struct load *l, char *reg, int64_t at, int64_t n)
{
    int64_t q = at / l->n[1] % l->n[0], left = l->n[1] - at % l->n[1];
    cpu_fn *convert = cpu_convert_find(CPU_S64, cpu_kind(l->dtype));
    const int size = cpu_kind_size(cpu_kind(l->dtype));
    int64_t buf[IOTA_RUN];
    const int stride[3] = {1, 1, 1};
    while (n > 0) {
        int64_t k = 0;
        for (; k < IOTA_RUN && k < n; k++) {
            const int64_t g = l->iota ? l->iota[q] : q;
            buf[k] = g < 0 ? 0 : g;
            if (--left == 0) {
                left = l->n[1];
                q = q + 1 == l->n[0] ? 0 : q + 1;
            }
        }
        convert(reg, buf, buf, buf, stride, k);
        cpu_round((float *)(void *)reg, l->dtype, k);
        reg += k * size;
        n -= k;
    }
}

static void run_loads(const struct pass *p, void **ptr, int64_t at, int64_t n)
{
    for (int i = 0; i < p->n_loads; i++) {
        const struct load *l = &p->loads[i];
        if (l->uniform)
            continue;
        if (l->direct)
            ptr[l->value] = l->src + at * ap_dtype_size(l->dtype);
        else if (l->is_iota)
            iota_tile(l, ptr[l->value], at, n);
        else
            gather_tile(l, ptr[l->value], at, n);
    }
}

/* What is stored for each tile, or, once, uniform values that fill a tensor. */
static void run_stores(const struct pass *p, void *const *ptr, int64_t at, int64_t n)
{
    for (int i = 0; i < p->n_stores; i++) {
        const struct store *s = &p->stores[i];
        char *dst = s->dst + at * ap_dtype_size(s->dtype);
        if (!s->direct && p->slot[s->value] != -2)
            cpu_store(dst, 1, ptr[s->value], s->dtype, n);
    }
}

static void fill_uniform(const struct pass *p)
{
    for (int i = 0; i < p->n_stores; i++) {
        const struct store *s = &p->stores[i];
        if (s->direct || p->slot[s->value] != -2 || s->n == 0)
            continue;
        cpu_store(s->dst, 1, p->ptr[s->value], s->dtype, 1);
        cpu_fill(s->dst, s->dst, ap_dtype_size(s->dtype), s->n);
    }
}

static void run_tiles(void *ctx, int64_t task, int thread)
{
    const struct pass *p = ctx;
    void **ptr = p->thread_ptr[thread];
    const int64_t from = task * TASK_ELEMS, most = from + TASK_ELEMS;
    const int64_t to = most < p->n ? most : p->n;
    for (int64_t at = from; at < to; at += p->tile) {
        const int64_t n = to - at < p->tile ? to - at : p->tile;
        run_loads(p, ptr, at, n);
        for (int i = 0; i < p->n_stores; i++) {
            const struct store *s = &p->stores[i];
            if (s->direct)
                ptr[s->value] = s->dst + at * ap_dtype_size(s->dtype);
        }
        chain_run(&p->chain, ptr, false, n);
        run_stores(p, ptr, at, n);
    }
}

static void fused_run(struct exec *x, void *state)
{
    struct pass *p = state;
    const int64_t n_tasks = ap_ceil_div(p->n, TASK_ELEMS);
    for (int t = 0; t < (n_tasks > 1 ? cpu_n_threads() : 1); t++)
        for (int v = 0; v < p->chain.n_values; v++)
            p->thread_ptr[t][v] =
                p->slot[v] >= 0
                    ? x->scratch + ((int64_t)t * p->n_slots + p->slot[v]) * p->slot_bytes
                    : p->ptr[v];
    for (int i = 0; i < p->n_loads; i++) {
        const struct load *l = &p->loads[i];
        if (l->uniform && (p->n > 0 || l->rank == 0))
            cpu_load(p->ptr[l->value], l->src, 1, l->dtype, 1);
    }
    chain_run(&p->chain, p->ptr, true, 1);
    cpu_each(n_tasks, run_tiles, p);
    fill_uniform(p);
}

int cpu_fused_prepare(struct exec *x, struct call *call, struct ap_err *err)
{
    struct pass *p = AP_NEW(x->arena, struct pass);
    struct builder b = {.p = p, .x = x, .call = call};
    int most = 1;
    for (int m = 0; m < call->n_nodes; m++)
        most += 1 + x->prog->local.nodes[call->nodes[m]].n_in;
    p->chain.instr = AP_NEW_N(x->arena, call->n_nodes, struct chain_instr);
    p->loads = AP_NEW_N(x->arena, most, struct load);
    p->stores = AP_NEW_N(x->arena, call->n_nodes, struct store);
    p->ptr = AP_NEW_N(x->arena, most, void *);
    p->slot = AP_NEW_N(x->arena, most, int);
    b.value = AP_NEW_N(x->arena, call->n_nodes, int);
    b.uniform = AP_NEW_N(x->arena, most, bool);
    b.kind_size = AP_NEW_N(x->arena, most, int);
    for (int m = 0; m < call->n_nodes; m++)
        if (add_member(&b, m, err))
            return -1;
    for (int m = 0; m < call->n_nodes; m++) { /* scalar constants may be in any pass */
        const struct ap_node *v = &x->prog->local.nodes[call->nodes[m]];
        if (m == 0 || v->op != AP_OP_CONSTANT)
            p->n = ap_shape_elems(&v->shape);
    }
    p->chain.n_values = b.n_values;
    add_stores(&b);
    assign_slots(&b);
    for (int v = 0; v < b.n_values; v++)
        if (b.uniform[v])
            p->slot[v] = -2;
    p->thread_ptr = AP_NEW_N(x->arena, cpu_n_threads(), void **);
    for (int t = 0; t < cpu_n_threads(); t++)
        p->thread_ptr[t] = t ? AP_NEW_N(x->arena, most, void *) : p->ptr;
    exec_need_scratch(x, (int64_t)cpu_n_threads() * p->n_slots * p->slot_bytes);
    call->run = fused_run;
    call->state = p;
    return 0;
}
