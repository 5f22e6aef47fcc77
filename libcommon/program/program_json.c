/*
 * The section "program": one module, run by all ranks, with the layout of its buffers. A
 * program that is read is checked (program_check.c) unless it is a part of one that was.
 */
#include "program/program.h"

#include <limits.h>
#include <string.h>

/* ---- writing ---- */

static void put_axes(const struct ap_mesh *mesh, unsigned axes, struct ap_buf *out)
{
    const char *comma = "";
    ap_buf_puts(out, "\"axes\":[");
    for (int a = 0; a < mesh->n_axes; a++) {
        if (!(axes >> a & 1))
            continue;
        ap_buf_puts(out, comma);
        ap_json_str(out, mesh->name[a]);
        comma = ",";
    }
    ap_buf_putc(out, ']');
}

static void put_buffers(const struct ap_program *prog, struct ap_buf *out)
{
    static const char *const keys[] = {"{\"offset\":[", "],\"bytes\":[", "],\"alias\":["};

    for (int key = 0; key < 3; key++) {
        ap_buf_puts(out, keys[key]);
        for (int i = 0; i < prog->local.n_nodes; i++) {
            const struct ap_buffer *b = &prog->buffer[i];
            if (i)
                ap_buf_putc(out, ',');
            ap_buf_int(out, key == 0 ? b->offset : key == 1 ? b->bytes : b->alias);
        }
    }
    ap_buf_puts(out, "]}");
}

static void put_waits(const struct ap_program *prog, struct ap_buf *out)
{
    const char *comma = "";
    if (!prog->wait)
        return;
    ap_buf_puts(out, ",\"async\":[");
    for (int i = 0; i < prog->local.n_groups; i++) {
        if (prog->wait[i] < 0)
            continue;
        ap_buf_printf(out, "%s{\"start\":%d,\"wait\":%d}", comma, i, prog->wait[i]);
        comma = ",";
    }
    ap_buf_putc(out, ']');
}

static void put_module(const struct ap_program *prog, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"name\":\"step\",\"graph\":");
    ap_graph_to_json(&prog->local, out);
    ap_buf_puts(out, ",\"buffers\":");
    put_buffers(prog, out);
    ap_put_ids(out, "source", prog->source, prog->local.n_nodes);
    put_waits(prog, out);
    ap_buf_putc(out, '}');
}

/* Each set of axes once, in order of its bits. */
static void put_communicators(const struct ap_mesh *mesh,
                              const struct ap_coll_count *coll, int n, struct ap_buf *out)
{
    bool used[1u << AP_MAX_AXES] = {false};
    const char *comma = "";
    for (int i = 0; i < n; i++)
        used[coll[i].axes] = true;
    for (unsigned axes = 0; axes < 1u << AP_MAX_AXES; axes++) {
        if (!used[axes])
            continue;
        ap_buf_puts(out, comma);
        ap_buf_putc(out, '{');
        put_axes(mesh, axes, out);
        ap_buf_putc(out, '}');
        comma = ",";
    }
}

void ap_program_to_json(const struct ap_program *prog, struct ap_buf *out)
{
    struct ap_arena scratch = {0};
    struct ap_coll_count *coll;
    int n = ap_program_collectives(&scratch, prog, &coll);
    ap_buf_puts(out, "{\"mesh\":");
    ap_mesh_to_json(&prog->mesh, out);
    ap_buf_puts(out, ",\"n_ranks\":");
    ap_buf_int(out, ap_mesh_devices(&prog->mesh));
    ap_buf_puts(out, ",\"modules\":[");
    put_module(prog, out);
    ap_buf_puts(out, "],\"communicators\":[");
    put_communicators(&prog->mesh, coll, n, out);
    ap_buf_puts(out, "],\"instructions\":{\"all\":[{\"run\":0}]},");
    if (prog->mesh.microbatch)
        ap_buf_printf(out, "\"each_microbatch\":{\"groups\":[%d,%d]},", prog->each_lo,
                      prog->each_hi);
    ap_buf_puts(out, "\"peak_bytes\":");
    ap_buf_int(out, prog->peak_bytes);
    ap_buf_puts(out, ",\"collectives\":[");
    for (int i = 0; i < n; i++) {
        ap_buf_printf(out, "%s{\"op\":\"%s\",", i ? "," : "", ap_ops[coll[i].op].name);
        put_axes(&prog->mesh, coll[i].axes, out);
        ap_buf_puts(out, ",\"count\":");
        ap_buf_int(out, coll[i].count);
        ap_buf_puts(out, ",\"bytes\":");
        ap_buf_int(out, coll[i].bytes);
        ap_buf_putc(out, '}');
    }
    ap_buf_puts(out, "]}");
    ap_arena_free(&scratch);
}

/* ---- reading ---- */

/* An array member with one integer per local node. */
static int read_per_node(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                         const char *key, int n, const int64_t **out, struct ap_err *err)
{
    struct ap_ints ints;
    if (ap_get_ints(arena, o, at, key, &ints, err))
        return -1;
    if (ints.n != n) {
        struct ap_at here = {at, key, 0};
        return ap_at_err(&here, err, "expected one number per node (%d), got %d", n,
                         ints.n);
    }
    *out = ints.v;
    return 0;
}

static int read_buffers(struct ap_arena *arena, const json_t *module,
                        const struct ap_at *at, struct ap_program *prog,
                        struct ap_err *err)
{
    int n = prog->local.n_nodes;
    struct ap_at here = {at, "buffers", 0};
    const json_t *o = json_object_get(module, "buffers");
    const int64_t *offset, *bytes, *alias;
    if (!json_is_object(o))
        return ap_at_err(&here, err, "expected an object");
    if (read_per_node(arena, o, &here, "offset", n, &offset, err) ||
        read_per_node(arena, o, &here, "bytes", n, &bytes, err) ||
        read_per_node(arena, o, &here, "alias", n, &alias, err))
        return -1;
    prog->buffer = AP_NEW_N(arena, n, struct ap_buffer);
    for (int i = 0; i < n; i++) {
        if (alias[i] < -1 || alias[i] >= n) {
            struct ap_at list = {&here, "alias", 0}, item = {&list, NULL, i};
            return ap_at_err(&item, err, "no node %lld", (long long)alias[i]);
        }
        prog->buffer[i] = (struct ap_buffer){offset[i], bytes[i], (int)alias[i]};
    }
    return 0;
}

static int read_source(struct ap_arena *arena, const json_t *module,
                       const struct ap_at *at, struct ap_program *prog,
                       struct ap_err *err)
{
    int n = prog->local.n_nodes;
    const int64_t *v;
    if (read_per_node(arena, module, at, "source", n, &v, err))
        return -1;
    int *source = AP_NEW_N(arena, n, int);
    for (int i = 0; i < n; i++) {
        if (v[i] < 0 || v[i] > INT_MAX) {
            struct ap_at list = {at, "source", 0}, item = {&list, NULL, i};
            return ap_at_err(&item, err, "expected the id of a node, got %lld",
                             (long long)v[i]);
        }
        source[i] = (int)v[i];
    }
    prog->source = source;
    return 0;
}

/* Collectives that are awaited later than at once. */
static int read_waits(struct ap_arena *arena, const json_t *module,
                      const struct ap_at *at, struct ap_program *prog, struct ap_err *err)
{
    const int n = prog->local.n_groups;
    json_t *list;
    if (!json_object_get(module, "async"))
        return 0;
    if (ap_get_arr(module, at, "async", &list, err))
        return -1;
    if (n > prog->local.n_nodes) {
        struct ap_at graph = {at, "graph", 0}, here = {&graph, "n_groups", 0};
        return ap_at_err(&here, err, "%d groups of %d nodes", n, prog->local.n_nodes);
    }
    struct ap_at async = {at, "async", 0};
    int *wait = AP_NEW_N(arena, n + 1, int);
    for (int i = 0; i < n; i++)
        wait[i] = -1;
    for (int i = 0; i < (int)json_array_size(list); i++) {
        struct ap_at item = {&async, NULL, i};
        const json_t *o = json_array_get(list, (size_t)i);
        int64_t start, until;
        if (!json_is_object(o))
            return ap_at_err(&item, err, "expected an object");
        if (ap_get_int(o, &item, "start", 0, n - 1, &start, err) ||
            ap_get_int(o, &item, "wait", start + 1, n, &until, err))
            return -1;
        if (wait[start] >= 0)
            return ap_at_err(&item, err, "group %lld is awaited twice", (long long)start);
        wait[start] = (int)until;
    }
    prog->wait = wait;
    return 0;
}

/* This version runs one module on every rank, once a step. */
static int check_instructions(const json_t *o, const struct ap_at *at, struct ap_err *err)
{
    struct ap_at here = {at, "instructions", 0};
    const json_t *all = json_object_get(json_object_get(o, "instructions"), "all");
    const json_t *run = json_object_get(json_array_get(all, 0), "run");
    if (json_object_size(json_object_get(o, "instructions")) != 1 ||
        json_array_size(all) != 1 || !json_is_integer(run) ||
        json_integer_value(run) != 0)
        return ap_at_err(&here, err, "expected {\"all\":[{\"run\":0}]}");
    return 0;
}

/* The groups that run once per microbatch; the module's number of groups is checked
 * later. */
static int read_each(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                     struct ap_program *prog, struct ap_err *err)
{
    struct ap_at here = {at, "each_microbatch", 0};
    const json_t *each = json_object_get(o, "each_microbatch");
    struct ap_ints groups;
    if (!each && !prog->mesh.microbatch)
        return 0;
    if (!each || !prog->mesh.microbatch)
        return ap_at_err(&here, err, "goes with a mesh that has a microbatch axis");
    if (ap_get_ints(arena, each, &here, "groups", &groups, err))
        return -1;
    if (groups.n != 2 || groups.v[0] < 0 || groups.v[1] < groups.v[0] ||
        groups.v[1] > INT_MAX)
        return ap_at_err(&here, err, "groups: expected the first one and the end");
    prog->each_lo = (int)groups.v[0];
    prog->each_hi = (int)groups.v[1];
    return 0;
}

static int read_module(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       struct ap_program *prog, struct ap_err *err)
{
    json_t *modules;
    if (ap_get_arr(o, at, "modules", &modules, err))
        return -1;
    struct ap_at list = {at, "modules", 0}, here = {&list, NULL, 0};
    if (json_array_size(modules) != 1)
        return ap_at_err(&list, err, "expected one module, got %zu",
                         json_array_size(modules));
    const json_t *module = json_array_get(modules, 0);
    struct ap_at graph_at = {&here, "graph", 0};
    const json_t *graph = json_object_get(module, "graph");
    if (!json_is_object(graph))
        return ap_at_err(&graph_at, err, "expected an object");
    return ap_graph_from_json(arena, graph, &graph_at, &prog->local, err) ||
                   read_buffers(arena, module, &here, prog, err) ||
                   read_source(arena, module, &here, prog, err) ||
                   read_waits(arena, module, &here, prog, err)
               ? -1
               : 0;
}

int ap_program_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                         struct ap_program *prog, struct ap_err *err)
{
    *prog = (struct ap_program){0};
    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    struct ap_at mesh_at = {at, "mesh", 0};
    int64_t n_ranks;
    if (ap_mesh_from_json(arena, json_object_get(o, "mesh"), &mesh_at, &prog->mesh,
                          err) ||
        ap_get_int(o, at, "n_ranks", 1, INT_MAX, &n_ranks, err) ||
        ap_get_int(o, at, "peak_bytes", 0, INT64_MAX / 2, &prog->peak_bytes, err))
        return -1;
    if (n_ranks != ap_mesh_devices(&prog->mesh)) {
        struct ap_at here = {at, "n_ranks", 0};
        return ap_at_err(&here, err, "%lld ranks, but the mesh has %lld devices",
                         (long long)n_ranks, (long long)ap_mesh_devices(&prog->mesh));
    }
    if (check_instructions(o, at, err) || read_each(arena, o, at, prog, err))
        return -1;
    return read_module(arena, o, at, prog, err);
}
