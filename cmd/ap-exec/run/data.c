/*
 * Initial values. A value from the seed depends on (seed, parameter, global index) only,
 * by a counter-based mix (SplitMix64; Steele, Lea and Flood, "Fast splittable
 * pseudorandom number generators", OOPSLA 2014), so that the shards that the ranks make
 * are blocks of one array.
 */
#include "run/data.h"
#include "base/float16.h"
#include "cpu/cpu.h"
#include "run/arrays.h"
#include "run/block.h"
#include "tool/tool.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- values from the seed ---- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static const uint64_t golden = 0x9e3779b97f4a7c15u;

static uint64_t stream_of(const struct source *s, int param)
{
    return mix(mix(s->seed + golden) + (uint64_t)(param + 1) * golden);
}

static uint64_t draw(const struct source *s, int param, int64_t index)
{
    return mix(stream_of(s, param) + (uint64_t)(index + 1) * golden);
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

/* A shard that is filled from the seed. */
struct seeding {
    const struct source *source;
    enum init init;
    enum ap_dtype dtype;
    int param;
    char *out;
};

/* What seeded() gives, scale * unit + shift, which is exact, by the billion. */
static bool seed_floats(const struct seeding *s, void *out, int64_t whole, int64_t n)
{
    const uint64_t stream = stream_of(s->source, s->param);
    const double scale = s->init == INIT_INPUT ? 2 : 0.125;
    const double shift = s->init == INIT_INPUT    ? -1
                         : s->init == INIT_WEIGHT ? -0.0625
                                                  : 1 - 0.0625;
    if ((s->dtype != AP_F32 && s->dtype != AP_BF16) ||
        (s->init != INIT_INPUT && s->init != INIT_WEIGHT && s->init != INIT_SCALE))
        return false;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t u = mix(stream + (uint64_t)(whole + i + 1) * golden);
        const float v = (float)((double)(u >> 40) * 0x1p-24 * scale + shift);
        if (s->dtype == AP_F32)
            ((float *)out)[i] = v;
        else
            ((uint16_t *)out)[i] = ap_f32_to_bf16(v);
    }
    return true;
}

static int seed_run(void *ctx, int64_t local, int64_t whole, int64_t n)
{
    const struct seeding *s = ctx;
    const int size = ap_dtype_size(s->dtype);
    if (s->init == INIT_ZERO) {
        memset(s->out + local * size, 0, (size_t)(n * size));
        return 0;
    }
    if (seed_floats(s, s->out + local * size, whole, n))
        return 0;
    for (int64_t i = 0; i < n; i++)
        put_number(s->out + (local + i) * size,
                   seeded(s->source, s->init, s->dtype, s->param, whole + i), s->dtype);
    return 0;
}

static void seed_block(const struct source *s, const struct ap_node *v, int param,
                       const struct block *b, char *out)
{
    struct seeding seeding = {s, init_of(s, v), v->shape.dtype, param, out};
    block_each(b, seed_run, &seeding);
}

/* ---- parameters ---- */

/* A parameter that is loaded: by rank 0 of x->comm from a file, or by all from the seed.
 */
struct loading {
    const struct ap_node *node;
    int number; /* in the whole graph */
    struct placement place;
    /* Rank 0: the file, of which runs are read; or, where its elements are of another
     * type, what it holds, converted (caller frees both) */
    struct array_file stored;
    void *whole;
};

/* What the file holds, on rank 0, to *in_file whether there is one, on all. */
static int read_param(struct exec *x, const struct source *s, struct loading *p,
                      bool *in_file, struct ap_err *err)
{
    int64_t state = 0; /* -1: failed, 1: read */
    if (x->comm->rank == 0 && s->dir) {
        struct ap_err why = {{0}};
        bool missing = true;
        const struct array_of of = {p->node, p->number, &p->place.global};
        int rc = arrays_open(s->files, x->arena, &of, &p->stored, &missing, &why);
        if (!rc && !p->stored.file)
            rc = arrays_read(s->files, x->arena, &of, &p->whole, &missing, &why);
        if (rc && (!missing || (!s->seeded && p->node->role != AP_ROLE_STATE)))
            state = ap_err_set(err, "parameter %d (%s): %s", p->number, p->node->name,
                               why.msg);
        else
            state = !rc;
    }
    x->comm->broadcast(x->comm, &state, sizeof state);
    if (state < 0) /* whoever speaks for the job says the same */
        x->comm->broadcast(x->comm, err, sizeof *err);
    *in_file = state > 0;
    return state < 0 ? -1 : 0;
}

/* A shard that is read from a file. */
struct reading {
    const struct array_file *file;
    char *to;
    int size;
};

static int read_run(void *ctx, int64_t local, int64_t whole, int64_t n)
{
    const struct reading *r = ctx;
    char *to = r->to + local * r->size;
    int64_t at = r->file->at + whole * r->size;
    for (int64_t left = n * r->size; left > 0;) {
        const ssize_t got = pread(fileno(r->file->file), to, (size_t)left, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) /* it was long enough: others wait for what cannot be read now */
            ap_die(AP_BAD_INPUT, "%s: %s", r->file->path,
                   got < 0 ? strerror(errno) : "the file became shorter");
        to += got;
        at += got;
        left -= got;
    }
    return 0;
}

/* This rank's part of what rank 0 has read, to host; padding is 0. */
static void take_part(struct exec *x, const struct loading *p, char *host)
{
    const struct ap_shape *local = &p->node->shape;
    const int64_t bytes = ap_shape_bytes(local);
    const int size = ap_dtype_size(local->dtype);
    if (x->comm->rank != 0) {
        comm_receive(x->comm, 0, 0, host, bytes);
        return;
    }
    for (int r = x->comm->size - 1; r >= 0;
         r--) { /* its own part comes last, and stays */
        struct ap_mark mark = ap_arena_mark(x->arena);
        int64_t coords[AP_MAX_AXES];
        struct block b;
        ap_mesh_coords(&x->prog->mesh, r, coords);
        struct reading reading = {&p->stored, host, size};
        block_open(x->arena, &b, &x->prog->mesh, &p->place,
                   p->whole ? NULL : p->node->attrs->argument, coords);
        memset(host, 0, (size_t)bytes);
        if (p->whole)
            block_move(&b, host, p->whole, size, false);
        else
            block_each(&b, read_run, &reading);
        if (r) {
            x->comm->send(x->comm, r, 0, host, bytes);
            x->comm->settle(x->comm); /* one part at a time: memory */
        }
        ap_arena_rewind(x->arena, mark);
    }
}

static void close_file(struct loading *p)
{
    free(p->whole);
    if (p->stored.file)
        fclose(p->stored.file);
}

static int load_param(struct exec *x, const struct source *s, int k, char *host,
                      struct ap_err *err)
{
    const struct ap_node *v = &x->prog->local.nodes[x->prog->local.params[k]];
    struct ap_mark mark = ap_arena_mark(x->arena);
    struct loading p = {
        .node = v, .number = x->number ? x->number[k] : k, .place = exec_placement(v)};
    bool in_file = false;
    if (p.number < 0)
        return 0;
    if (cpu_kind(v->shape.dtype) == CPU_N_KINDS)
        return exec_unsupported(x, v, err, ap_dtype_name(v->shape.dtype));
    memset(host, 0, (size_t)ap_shape_bytes(&v->shape));
    const int rc = read_param(x, s, &p, &in_file, err);
    if (in_file) {
        take_part(x, &p, host);
    } else if (!rc) {
        struct block b;
        int64_t coords[AP_MAX_AXES];
        ap_mesh_coords(&x->prog->mesh, x->comm->rank, coords);
        block_open(x->arena, &b, &x->prog->mesh, &p.place, NULL, coords);
        seed_block(s, v, p.number, &b, host);
    }
    close_file(&p);
    ap_arena_rewind(x->arena, mark);
    return rc;
}

int data_load(struct exec *x, const struct source *given, struct ap_err *err)
{
    struct arrays files = {.dir = given->dir};
    struct source source = *given;
    const struct ap_graph *g = &x->prog->local;
    int64_t most = 1;
    for (int k = 0; k < g->n_params; k++) {
        const int64_t bytes = ap_shape_bytes(&g->nodes[g->params[k]].shape);
        most = bytes > most ? bytes : most;
    }
    char *host = ap_xrealloc(NULL, (size_t)most);
    source.files = &files;
    int rc = 0;
    for (int k = 0; k < g->n_params && !rc; k++) {
        rc = load_param(x, &source, k, host, err);
        if (!rc && (!x->number || x->number[k] >= 0))
            x->backend->write(x->value[g->params[k]], host,
                              ap_shape_bytes(&g->nodes[g->params[k]].shape));
    }
    arrays_free(&files);
    free(host);
    return rc;
}

int64_t data_batches(struct comm *c, const char *dir, struct ap_err *err)
{
    struct ap_buf path = {0};
    struct stat st;
    int64_t n = 0;
    for (bool more = c->rank == 0; more; n += more) {
        path.len = 0;
        ap_buf_printf(&path, "%s/%lld", dir, (long long)n + 1);
        more = !stat(path.data, &st) && S_ISDIR(st.st_mode);
    }
    ap_buf_free(&path);
    c->broadcast(c, &n, sizeof n);
    if (n == 0)
        ap_err_set(err, "%s/1: no such folder: the first batch", dir);
    return n;
}

int data_batch(struct exec *x, const char *dir, int64_t batch, int *n_read,
               struct ap_err *err)
{
    const struct ap_graph *g = &x->prog->local;
    struct ap_mark mark = ap_arena_mark(x->arena);
    struct arrays files = {
        .dir = ap_arena_printf(x->arena, "%s/%lld", dir, (long long)batch)};
    /* seeded: an input without a file keeps its value */
    const struct source source = {.dir = files.dir, .files = &files, .seeded = true};
    int rc = 0;
    for (int k = 0; k < g->n_params && !rc; k++) {
        const struct ap_node *v = &g->nodes[g->params[k]];
        struct loading p = {.node = v,
                            .number = x->number ? x->number[k] : k,
                            .place = exec_placement(v)};
        bool in_file = false;
        if (v->role != AP_ROLE_INPUT || p.number < 0)
            continue;
        rc = read_param(x, &source, &p, &in_file, err);
        if (in_file) {
            const int64_t bytes = ap_shape_bytes(&v->shape);
            char *host = ap_xrealloc(NULL, (size_t)bytes + 1);
            take_part(x, &p, host);
            x->backend->write(x->value[g->params[k]], host, bytes);
            free(host);
            ++*n_read;
        }
        close_file(&p);
    }
    arrays_free(&files);
    ap_arena_rewind(x->arena, mark);
    return rc;
}

/* Every rank's shard, to its place on rank 0. */
static void collect(struct exec *x, const void *value, const struct placement *place,
                    char *whole)
{
    const struct ap_mesh *mesh = &x->prog->mesh;
    struct ap_mark mark = ap_arena_mark(x->arena);
    struct ap_shape local =
        ap_layout_local(x->arena, mesh, &place->global, &place->layout);
    const int64_t bytes = ap_shape_bytes(&local);
    const int size = ap_dtype_size(local.dtype);
    char *host = ap_xrealloc(NULL, (size_t)bytes + 1);
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
            block_open(x->arena, &b, mesh, place, NULL, coords);
            block_move(&b, host, whole, size, true);
            ap_arena_rewind(x->arena, inner);
        }
    }
    free(host);
    ap_arena_rewind(x->arena, mark);
}

void *data_collect(struct exec *x, int k)
{
    const struct ap_graph *g = &x->prog->local;
    const struct placement place = exec_placement(&g->nodes[g->params[k]]);
    char *whole = x->comm->rank == 0
                      ? ap_xrealloc(NULL, (size_t)ap_shape_bytes(&place.global) + 1)
                      : NULL;
    collect(x, x->value[g->params[k]], &place, whole);
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
