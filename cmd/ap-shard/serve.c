/*
 * ap-shard --serve: answers one request per line, for planners of pipelines (the protocol
 * is in ap-shard(1)). A request names a part of the graph, a mesh and a submesh; the
 * answer holds the Pareto front over the plans at hand (the search's and the baselines',
 * each with and without recomputation). Whatever is wrong with a request is answered;
 * only a broken document or pipe ends the server.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blocks.h"
#include "shard.h"
#include "stage.h"

struct server {
    struct shard_job *job; /* the whole graph */
    const struct shard_request *req;
    struct ap_blocks blocks; /* n = 0: the document has none */
};

struct question {
    bool by_blocks;
    int lo, hi;
    struct ap_mesh mesh;
    struct ap_cluster cluster;
    int64_t microbatches, memory; /* memory 0: no limit */
};

/* ---- reading a request ---- */

/* Two integers, lo <= hi; 1 when the member is absent. */
static int read_pair(const json_t *o, const struct ap_at *at, const char *key,
                     int64_t least, int64_t most, int64_t v[2], struct ap_err *err)
{
    const json_t *list = json_object_get(o, key);
    struct ap_at here = {at, key, 0};
    if (!list)
        return 1;
    for (size_t i = 0; i < 2; i++) {
        const json_t *n = json_array_get(list, i);
        if (json_array_size(list) != 2 || !json_is_integer(n) ||
            json_integer_value(n) < least || json_integer_value(n) > most)
            return ap_at_err(&here, err, "expected two integers from %lld to %lld",
                             (long long)least, (long long)most);
        v[i] = json_integer_value(n);
    }
    return 0;
}

static int read_part(const struct server *s, const json_t *o, struct question *q,
                     struct ap_err *err)
{
    int64_t v[2];
    q->by_blocks = json_object_get(o, "blocks") != NULL;
    if (q->by_blocks == (json_object_get(o, "nodes") != NULL))
        return ap_err_set(err, "expected either blocks or nodes");
    if (q->by_blocks && s->blocks.n == 0)
        return ap_err_set(err, "the document has no section \"blocks\" (run ap-coarsen)");
    int n = q->by_blocks ? s->blocks.n : s->job->graph.n_nodes;
    if (read_pair(o, NULL, q->by_blocks ? "blocks" : "nodes", 0, n - 1, v, err))
        return -1;
    if (v[0] > v[1])
        return ap_err_set(err, "the range ends before it starts");
    q->lo = (int)v[0];
    q->hi = (int)v[1];
    return 0;
}

/* The cluster that is left when so many hosts with so many devices each are taken. */
static int take_submesh(const struct ap_cluster *whole, int64_t hosts, int64_t devices,
                        struct ap_cluster *c, struct ap_err *err)
{
    *c = *whole;
    if (devices > whole->levels[0].size)
        return ap_err_set(err, "submesh: %lld devices, but a host has %lld",
                          (long long)devices, (long long)whole->levels[0].size);
    c->levels[0].size = devices;
    int64_t left = hosts;
    for (int l = 1; l < c->n_levels; l++) {
        int64_t take = left < whole->levels[l].size ? left : whole->levels[l].size;
        if (left % take)
            return ap_err_set(err, "submesh: %lld hosts do not fill level %s",
                              (long long)hosts, whole->levels[l].name);
        c->levels[l].size = take;
        left /= take;
    }
    if (left > 1)
        return ap_err_set(err, "submesh: %lld hosts are more than cluster %s has",
                          (long long)hosts, whole->name);
    return 0;
}

static int read_place(const struct server *s, struct ap_arena *arena, const json_t *o,
                      struct question *q, struct ap_err *err)
{
    int64_t v[2] = {0, 0};
    const char *mesh = NULL;
    int rc = read_pair(o, NULL, "submesh", 1, INT32_MAX, v, err);

    if (rc < 0 || ap_opt_str(o, NULL, "mesh", &mesh, err))
        return -1;
    if (rc == 1 && !mesh)
        return ap_err_set(err, "expected a mesh or a submesh");
    if (!mesh)
        mesh = v[0] > 1 && v[1] > 1
                   ? ap_arena_printf(arena, "%lldx%lld", (long long)v[0], (long long)v[1])
                   : ap_arena_printf(arena, "%lld", (long long)(v[0] * v[1]));
    struct ap_err why = {0};
    if (ap_mesh_parse(arena, mesh, &q->mesh, &why))
        return ap_err_set(err, "mesh: %s", why.msg);
    q->cluster = s->job->cluster;
    if (rc == 1)
        return 0;
    if (ap_mesh_devices(&q->mesh) != ap_mul64(v[0], v[1]))
        return ap_err_set(err, "mesh %s has %lld devices, the submesh %lld", mesh,
                          (long long)ap_mesh_devices(&q->mesh),
                          (long long)ap_mul64(v[0], v[1]));
    return take_submesh(&s->job->cluster, v[0], v[1], &q->cluster, err);
}

static int read_question(const struct server *s, struct ap_arena *arena, const json_t *o,
                         struct question *q, struct ap_err *err)
{
    static const char *const known[] = {"id",      "nodes",        "blocks", "mesh",
                                        "submesh", "microbatches", "memory"};
    const char *key;
    json_t *v;

    *q = (struct question){.microbatches = 1};
    json_object_foreach((json_t *)o, key, v)
    {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known |= !strcmp(key, known[i]);
        if (!is_known)
            return ap_err_set(err, "unknown member \"%.40s\"", key);
    }
    if (read_part(s, o, q, err) || read_place(s, arena, o, q, err))
        return -1;
    if (json_object_get(o, "microbatches") &&
        ap_get_int(o, NULL, "microbatches", 1, 1 << 20, &q->microbatches, err))
        return -1;
    if (json_object_get(o, "memory") &&
        ap_get_int(o, NULL, "memory", 1, INT64_MAX, &q->memory, err))
        return -1;
    return 0;
}

/* ---- answering ---- */

struct answer {
    struct stage_point *points;
    int n;
    double objective, bound; /* of the search, for the whole batch */
};

static void add_plan(struct ap_arena *arena, const struct ap_subgraph *sub,
                     const struct stage_time *time, const struct ap_plan *plan,
                     const char *name, const struct ap_cost *cost, struct answer *a)
{
    struct stage_point point[2] = {{.algorithm = name}};
    struct ap_conversions conv;
    struct ap_err err = {0};
    if (!isfinite(shard_price(arena, plan, cost, &conv, &err)))
        return;
    stage_price(arena, sub, time, plan, &conv, cost, point);
    a->points[a->n++] = point[0];
    a->points[a->n++] = point[1];
}

/* All plans of the part, and the front of their points. */
static int search(const struct server *s, struct ap_arena *arena,
                  const struct ap_subgraph *sub, const struct stage_time *time,
                  const struct ap_cost *cost, struct answer *a, struct ap_err *err)
{
    const struct shard_algorithm *row = &shard_algorithms()[s->req->algorithm];
    struct shard_answer found = {0};
    struct ap_nests nests;

    if (ap_nests_build(arena, &sub->graph, &nests, err))
        return -1;
    struct shard_task task = {.graph = &sub->graph,
                              .nests = &nests,
                              .cost = cost,
                              .params = &s->req->params,
                              .baseline = row->baseline};
    if (row->run != shard_rule)
        shard_list_baselines(arena, &task);
    if (row->run(arena, &task, &found, err))
        return -1;
    a->points = AP_NEW_N(arena, 2 * (task.n_plans + 1), struct stage_point);
    found.plan.recompute_heavy = s->req->params.recompute_heavy;
    add_plan(arena, sub, time, &found.plan, row->name, cost, a);
    for (int i = 0; i < task.n_plans; i++)
        add_plan(arena, sub, time, &task.plans[i], task.plan_name[i], cost, a);
    a->objective = found.objective;
    a->bound = found.bound;
    a->n = stage_front(a->points, a->n);
    return a->n > 0 ? 0 : ap_err_set(err, "no legal plan");
}

/* Drops what does not fit with one microbatch in flight. */
static int limit(struct answer *a, int64_t memory, struct ap_err *err)
{
    int kept = 0;
    int64_t least = INT64_MAX;
    for (int i = 0; i < a->n; i++) {
        int64_t need = ap_add64(a->points[i].stage_bytes, a->points[i].microbatch_bytes);
        least = need < least ? need : least;
        if (memory == 0 || need <= memory)
            a->points[kept++] = a->points[i];
    }
    a->n = kept;
    return kept > 0 ? 0
                    : ap_err_set(err, "no plan within %lld bytes; the least needs %lld",
                                 (long long)memory, (long long)least);
}

static int answer(const struct server *s, struct ap_arena *arena,
                  const struct question *q, struct answer *a, struct ap_err *err)
{
    const struct ap_graph *g = &s->job->graph;
    struct ap_subgraph sub;
    struct stage_time time;
    struct ap_cost cost;
    struct ap_err why = {0};

    if (stage_time_of(arena, g, &s->job->nests, q->microbatches, &time, &why))
        return ap_err_set(err, "%lld microbatches: %s", (long long)q->microbatches,
                          why.msg);
    bool *inside = AP_NEW_N(arena, g->n_nodes, bool);
    for (int i = 0; i < g->n_nodes; i++) {
        int at = q->by_blocks ? s->blocks.block_of[i] : i;
        inside[i] = at >= q->lo && at <= q->hi;
    }
    if (ap_subgraph(arena, g, inside, &sub, err) ||
        ap_cost_init(arena, &cost, (enum ap_cost_variant)s->req->cost_model, &q->cluster,
                     &q->mesh, err))
        return -1;
    int rc = search(s, arena, &sub, &time, &cost, a, err);
    ap_cost_free(&cost);
    return rc ? rc : limit(a, q->memory, err);
}

static void put_front(const struct answer *a, struct ap_buf *out)
{
    if (a->objective >= 0) {
        ap_buf_puts(out, ",\"objective_sec\":");
        ap_json_num(out, a->objective);
        ap_buf_puts(out, ",\"lower_bound_sec\":");
        ap_json_num(out, fmin(a->bound, a->objective));
    }
    ap_buf_puts(out, ",\"front\":[");
    for (int i = 0; i < a->n; i++) {
        const struct stage_point *p = &a->points[i];
        ap_buf_puts(out, i ? ",{\"sec_per_microbatch\":{\"forward\":"
                           : "{\"sec_per_microbatch\":{\"forward\":");
        ap_json_num(out, p->forward_sec);
        ap_buf_puts(out, ",\"backward\":");
        ap_json_num(out, p->backward_sec);
        ap_buf_puts(out, "},\"sec_per_step\":");
        ap_json_num(out, p->step_sec);
        ap_put_int(out, "stage_bytes", p->stage_bytes);
        ap_put_int(out, "bytes_per_microbatch", p->microbatch_bytes);
        ap_buf_printf(out, ",\"recompute\":%s", p->recompute ? "true" : "false");
        ap_put_str(out, "algorithm", p->algorithm);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

/* One line in, one line out. */
static void serve_line(const struct server *s, const char *line, struct ap_buf *out)
{
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    struct question q;
    struct answer a = {0};
    json_error_t bad;
    json_t *o = json_loads(line, JSON_REJECT_DUPLICATES, &bad);
    const json_t *id = json_object_get(o, "id");
    char *id_text = id ? json_dumps(id, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

    ap_buf_printf(out, "{\"id\":%s", id_text ? id_text : "null");
    if (!o)
        ap_err_set(&err, "column %d: %s", bad.column, bad.text);
    else if (!json_is_object(o))
        ap_err_set(&err, "expected an object");
    else if (read_question(s, &arena, o, &q, &err) == 0 &&
             answer(s, &arena, &q, &a, &err) == 0)
        put_front(&a, out);
    if (*err.msg)
        ap_put_str(out, "error", err.msg);
    ap_buf_puts(out, "}\n");
    free(id_text);
    json_decref(o);
    ap_arena_free(&arena);
}

static void read_blocks(struct server *s, const struct ap_doc *doc)
{
    const struct ap_section *section = ap_doc_find(doc, "blocks");
    struct ap_at at = {.key = "blocks"};
    struct ap_err err = {0};
    if (!section)
        return;
    json_t *o = ap_doc_load(doc, section, &err);
    if (!o)
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    if (ap_blocks_from_json(s->job->arena, o, &at, &s->job->graph, &s->blocks, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    json_decref(o);
}

void shard_serve(struct shard_job *job, const struct shard_request *req,
                 const struct ap_doc *doc)
{
    struct server s = {.job = job, .req = req};
    struct ap_err err = {0};
    char *line = NULL;
    size_t cap = 0;

    if (!req->cluster_path && !ap_doc_find(doc, "cluster"))
        ap_die_usage("--serve needs --cluster, or a document with a cluster");
    if (ap_cluster_get(job->arena, doc, req->cluster_path, 0, &job->cluster, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    for (int i = 0; i < job->graph.n_nodes; i++)
        if (job->graph.nodes[i].pin && req->pin_mode == 0)
            ap_die_usage(
                "--serve keeps no imported shardings (%s has one): --pins ignore",
                job->graph.nodes[i].name);
    read_blocks(&s, doc);
    while (getline(&line, &cap, stdin) >= 0) {
        struct ap_buf out = {0};
        serve_line(&s, line, &out);
        bool bad = fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout);
        ap_buf_free(&out);
        if (bad)
            ap_die(AP_BAD_INPUT, "standard output: %s", strerror(errno));
    }
    if (ferror(stdin))
        ap_die(AP_BAD_INPUT, "standard input: %s", strerror(errno));
    free(line);
}
