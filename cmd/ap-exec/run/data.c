/*
 * Initial values. A value from the seed depends on (seed, parameter, global index) only,
 * by a counter-based mix (SplitMix64; Steele, Lea and Flood, "Fast splittable
 * pseudorandom number generators", OOPSLA 2014), so that the shards that the ranks make
 * are blocks of one array.
 */
#include "run/data.h"
#include "cpu/cpu.h"
#include "graph/part.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- blocks ---- */

/* A rank's shard, row by row. */
struct block {
    struct shard shard;
    int64_t stride[AP_MAX_RANK]; /* of the whole array */
    int64_t row, n_rows;         /* local elements of a row; rows */
};

static void block_open(struct ap_arena *arena, struct block *b,
                       const struct ap_mesh *mesh, const struct placement *place,
                       const int64_t *coords)
{
    const struct shard s = exec_shard(arena, mesh, place, coords);
    *b = (struct block){.shard = s,
                        .row = s.local.rank ? s.local.dims[s.local.rank - 1] : 1};
    cpu_strides(&place->global, b->stride);
    b->n_rows = b->row ? ap_shape_elems(&s.local) / b->row : 0;
}

/* Global offset of row i's first column; -1 when the row is padding. */
static int64_t block_row(const struct block *b, int64_t i)
{
    int64_t base = 0;
    for (int d = b->shard.local.rank - 2; d >= 0; d--) {
        const int64_t g = b->shard.map[d][i % b->shard.local.dims[d]];
        if (g < 0)
            return -1;
        base += g * b->stride[d];
        i /= b->shard.local.dims[d];
    }
    return base;
}

/* Global index of column j within its row, -1 for padding. */
static int64_t block_column(const struct block *b, int64_t j)
{
    return b->shard.local.rank ? b->shard.map[b->shard.local.rank - 1][j] : 0;
}

/* Copies between a block and the whole array. */
static void block_move(const struct block *b, char *local, char *whole, int size,
                       bool out)
{
    for (int64_t i = 0; i < b->n_rows; i++) {
        const int64_t base = block_row(b, i);
        if (base < 0)
            continue;
        for (int64_t j = 0; j < b->row;) {
            const int64_t g = block_column(b, j);
            int64_t n = 1;
            while (g >= 0 && j + n < b->row && block_column(b, j + n) == g + n)
                n++;
            char *p = local + (i * b->row + j) * size, *q = whole + (base + g) * size;
            if (g >= 0 && out)
                memcpy(q, p, (size_t)(n * size));
            else if (g >= 0)
                memcpy(p, q, (size_t)(n * size));
            j += n;
        }
    }
}

/* ---- values from the seed ---- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t draw(const struct source *s, int param, int64_t index)
{
    const uint64_t golden = 0x9e3779b97f4a7c15u;
    const uint64_t stream = mix(mix(s->seed + golden) + (uint64_t)(param + 1) * golden);
    return mix(stream + (uint64_t)(index + 1) * golden);
}

/* What kind of value a parameter starts with. */
enum init { INIT_ZERO, INIT_WEIGHT, INIT_SCALE, INIT_INPUT, INIT_SMALL_INT, INIT_RANGE };

static enum init init_of(const struct source *s, const struct ap_node *v)
{
    const bool is_float = ap_dtype_is_float(v->shape.dtype);
    if (is_float && s->small_ints)
        return INIT_SMALL_INT;
    if (v->role == AP_ROLE_STATE)
        return INIT_ZERO;
    if (!is_float)
        return INIT_RANGE;
    if (v->role != AP_ROLE_WEIGHT)
        return INIT_INPUT;
    const bool vector = (v->attrs->global ? v->attrs->global : &v->shape)->rank <= 1;
    return vector && (strstr(v->name, "scale") || strstr(v->name, "gamma")) ? INIT_SCALE
                                                                            : INIT_WEIGHT;
}

static double seeded(const struct source *s, enum init init, enum ap_dtype dtype,
                     int param, int64_t index)
{
    const uint64_t u = draw(s, param, index);
    const double unit = (double)(u >> 40) * 0x1p-24; /* [0, 1), exact in f32 */
    switch (init) {
    case INIT_ZERO:
        break;
    case INIT_WEIGHT:
        return (unit - 0.5) * 0.125;
    case INIT_SCALE:
        return 1 + (unit - 0.5) * 0.125;
    case INIT_INPUT:
        return 2 * unit - 1;
    case INIT_SMALL_INT:
        return (double)(u % 5) - 2;
    case INIT_RANGE:
        return (double)(u % (uint64_t)(dtype == AP_PRED ? 2 : s->int_range));
    }
    return 0;
}

static void put_number(char *p, double v, enum ap_dtype dtype)
{
    static const int one[3] = {1, 1, 1};
    char reg[8];
    if (cpu_kind(dtype) == CPU_F64)
        memcpy(reg, &v, 8);
    else
        cpu_convert_find(CPU_F64, cpu_kind(dtype))(reg, &v, &v, &v, one, 1);
    cpu_store(p, 1, reg, dtype, 1);
}

static void seed_block(const struct source *s, const struct ap_node *v, int param,
                       const struct block *b, char *out)
{
    const enum init init = init_of(s, v);
    const int size = ap_dtype_size(v->shape.dtype);
    for (int64_t i = 0; i < b->n_rows; i++) {
        const int64_t base = block_row(b, i);
        for (int64_t j = 0; base >= 0 && j < b->row; j++) {
            const int64_t g = block_column(b, j);
            if (g >= 0)
                put_number(out + (i * b->row + j) * size,
                           seeded(s, init, v->shape.dtype, param, base + g),
                           v->shape.dtype);
        }
    }
}

/* ---- parameters ---- */

int arrays_read(struct arrays *a, struct ap_arena *arena, const struct ap_node *param,
                int k, const struct ap_shape *shape, void **out, bool *missing,
                struct ap_err *err)
{
    const struct ap_part *part = param->attrs->argument;
    const int index = part ? part->index : k;
    const char *path = ap_arena_printf(arena, "%s/%d.npy", a->dir, index);

    *missing = false;
    if (!part || !part->n)
        return ap_npy_read_shape(path, shape, out, missing, err);
    if (!a->whole || a->index != index) {
        const struct ap_shape whole = ap_part_whole(arena, shape, part);
        arrays_free(a);
        if (ap_npy_read_shape(path, &whole, &a->whole, missing, err))
            return -1;
        a->index = index;
    }
    *out = ap_xrealloc(NULL, (size_t)ap_shape_bytes(shape) + 1);
    ap_part_get(shape, part, a->whole, *out);
    return 0;
}

void arrays_free(struct arrays *a)
{
    free(a->whole);
    a->whole = NULL;
}

static int load_param(struct exec *x, const struct source *s, struct arrays *files, int k,
                      char *host, struct ap_err *err)
{
    const struct ap_graph *g = &x->prog->local;
    const struct ap_node *v = &g->nodes[g->params[k]];
    const struct placement place = exec_placement(v);
    struct ap_mark mark = ap_arena_mark(x->arena);
    struct block b;
    void *whole = NULL;
    const int number = x->number ? x->number[k] : k;
    if (number < 0)
        return 0;
    if (cpu_kind(v->shape.dtype) == CPU_N_KINDS)
        return exec_unsupported(x, v, err, ap_dtype_name(v->shape.dtype));
    block_open(x->arena, &b, &x->prog->mesh, &place, x->coords);
    memset(host, 0, (size_t)ap_shape_bytes(&v->shape));
    bool missing = true;
    if (s->dir) {
        struct ap_err why = {{0}};
        if (arrays_read(files, x->arena, v, number, &place.global, &whole, &missing,
                        &why) &&
            (!missing || (!s->seeded && v->role != AP_ROLE_STATE)))
            return ap_err_set(err, "parameter %d (%s): %s", number, v->name, why.msg);
    }
    if (whole)
        block_move(&b, host, whole, ap_dtype_size(v->shape.dtype), false);
    else
        seed_block(s, v, number, &b, host);
    free(whole);
    ap_arena_rewind(x->arena, mark);
    return 0;
}

int data_load(struct exec *x, const struct source *source, struct ap_err *err)
{
    const struct ap_graph *g = &x->prog->local;
    int64_t most = 1;
    for (int k = 0; k < g->n_params; k++) {
        const int64_t bytes = ap_shape_bytes(&g->nodes[g->params[k]].shape);
        most = bytes > most ? bytes : most;
    }
    char *host = ap_xrealloc(NULL, (size_t)most);
    struct arrays files = {.dir = source->dir};
    int rc = 0;
    for (int k = 0; k < g->n_params && !rc; k++) {
        rc = load_param(x, source, &files, k, host, err);
        if (!rc && (!x->number || x->number[k] >= 0))
            x->backend->write(x->value[g->params[k]], host,
                              ap_shape_bytes(&g->nodes[g->params[k]].shape));
    }
    arrays_free(&files);
    free(host);
    return rc;
}

void *data_collect(struct exec *x, const void *value, const struct placement *place)
{
    struct ap_mark mark = ap_arena_mark(x->arena);
    struct ap_shape local =
        ap_layout_local(x->arena, &x->prog->mesh, &place->global, &place->layout);
    const int64_t bytes = ap_shape_bytes(&local);
    const int size = ap_dtype_size(local.dtype);
    char *host = ap_xrealloc(NULL, (size_t)bytes + 1), *whole = NULL;
    if (x->comm->rank == 0)
        whole = ap_xrealloc(NULL, (size_t)ap_shape_bytes(&place->global) + 1);
    x->backend->read(host, value, bytes);
    for (int r = 0; r < x->comm->size; r++) {
        if (x->comm->rank != 0 && x->comm->rank != r)
            continue;
        x->comm->to_root(x->comm, r, host, bytes);
        if (x->comm->rank == 0) {
            struct ap_mark inner = ap_arena_mark(x->arena);
            int64_t coords[AP_MAX_AXES];
            struct block b;
            ap_mesh_coords(&x->prog->mesh, r, coords);
            block_open(x->arena, &b, &x->prog->mesh, place, coords);
            block_move(&b, host, whole, size, true);
            ap_arena_rewind(x->arena, inner);
        }
    }
    free(host);
    ap_arena_rewind(x->arena, mark);
    return whole;
}

double data_number(const void *data, enum ap_dtype dtype, int64_t i)
{
    static const int one[3] = {1, 1, 1};
    char reg[8];
    double v;
    if (dtype == AP_C64) { /* the real part */
        dtype = AP_F32;
        i *= 2;
    }
    cpu_load(reg, (const char *)data + i * ap_dtype_size(dtype), 1, dtype, 1);
    if (cpu_kind(dtype) == CPU_F64)
        memcpy(&v, reg, 8);
    else
        cpu_convert_find(cpu_kind(dtype), CPU_F64)(&v, reg, reg, reg, one, 1);
    return v;
}
