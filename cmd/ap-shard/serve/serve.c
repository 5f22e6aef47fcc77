/*
 * ap-shard --serve: answers one request per line, for planners of pipelines (the protocol
 * is in ap-shard(1)). A request names a part of the graph, a mesh and a submesh; the
 * answer holds the Pareto front over the plans at hand (ilp's at several prices of memory
 * and the named plans', or the one of another algorithm; each with and without
 * recomputation). The graph is searched once per mesh, parts are
 * added up (serve_sums.c). Whatever is wrong with a request is answered; only a
 * broken document or pipe ends the server.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/threads.h"
#include "doc/blocks_json.h"
#include "doc/fingerprint.h"
#include "pipeline/pipeline_program.h"
#include "serve/serve.h"
#include "tofu/tofu.h"

#define MOST_POINTS 12 /* of a front; scripts/bench/stage shows step times with fewer */
#define MEMO_BYTES  (200 << 20) /* of parts that are kept; scripts/bench/serve */

struct server {
    struct shard_job *job; /* the whole graph */
    const struct shard_request *req;
    struct ap_blocks blocks; /* n = 0: the document has none */
    const struct serve_blocks *parts;
    struct serve_memo *memo;
    double *sec; /* of each request; malloc */
    int n, cap;
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

/* The member "set": blocks of any kind, ascending. */
static int read_set(const struct server *s, struct ap_arena *arena, const json_t *o,
                    struct serve_question *q, struct ap_err *err)
{
    const json_t *list = json_object_get(o, "set");
    struct ap_at at = {NULL, "set", 0};
    size_t n = json_array_size(list);

    if (n == 0 || n > (size_t)s->blocks.n)
        return ap_at_err(&at, err, "expected 1 to %d blocks", s->blocks.n);
    q->block = AP_NEW_N(arena, n, int);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        int64_t least = i > 0 ? q->block[i - 1] + 1 : 0;
        if (!json_is_integer(v) || json_integer_value(v) < least ||
            json_integer_value(v) >= s->blocks.n)
            return ap_at_err(&at, err, "expected ascending blocks below %d", s->blocks.n);
        q->block[i] = (int)json_integer_value(v);
    }
    q->n_blocks = (int)n;
    return 0;
}

static int read_part(const struct server *s, struct ap_arena *arena, const json_t *o,
                     struct serve_question *q, struct ap_err *err)
{
    bool blocks = json_object_get(o, "blocks"), set = json_object_get(o, "set");
    int64_t v[2];

    if (blocks + set + (json_object_get(o, "nodes") != NULL) != 1)
        return ap_err_set(err, "expected one of blocks, set and nodes");
    if ((blocks || set) && s->blocks.n == 0)
        return ap_err_set(err, "the document has no section \"blocks\" (run ap-coarsen)");
    if (set)
        return read_set(s, arena, o, q, err);
    int n = blocks ? s->blocks.n : s->job->graph.n_nodes;
    if (read_pair(o, NULL, blocks ? "blocks" : "nodes", 0, n - 1, v, err))
        return -1;
    if (v[0] > v[1])
        return ap_err_set(err, "the range ends before it starts");
    q->lo = (int)v[0];
    q->hi = (int)v[1];
    q->n_blocks = blocks ? q->hi - q->lo + 1 : 0;
    q->block = AP_NEW_N(arena, q->n_blocks, int);
    for (int i = 0; i < q->n_blocks; i++)
        q->block[i] = q->lo + i;
    return 0;
}

static int read_place(const struct server *s, struct ap_arena *arena, const json_t *o,
                      struct serve_question *q, struct ap_err *err)
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
    if (ap_mesh_parse(arena, mesh, &q->place.mesh, &why))
        return ap_err_set(err, "mesh: %s", why.msg);
    struct ap_mesh asked = q->place.mesh;
    if (shard_algorithms()[s->req->algorithm].halves &&
        tofu_mesh(arena, &asked, &q->place.mesh, &why))
        return ap_err_set(err, "mesh: %s", why.msg);
    q->place.cluster = s->job->cluster;
    q->place.whole = &s->job->cluster;
    if (rc == 1)
        return 0;
    if (ap_mesh_devices(&q->place.mesh) != ap_mul64(v[0], v[1]))
        return ap_err_set(err, "mesh %s has %lld devices, the submesh %lld", mesh,
                          (long long)ap_mesh_devices(&q->place.mesh),
                          (long long)ap_mul64(v[0], v[1]));
    return serve_take(&s->job->cluster, v[0], v[1], &q->place.cluster, err);
}

static int read_question(const struct server *s, struct ap_arena *arena, json_t *o,
                         struct serve_question *q, struct ap_err *err)
{
    static const char *const known[] = {"id",           "nodes",  "blocks",
                                        "set",          "mesh",   "submesh",
                                        "microbatches", "memory", "plan"};
    const char *key;
    json_t *v;

    *q = (struct serve_question){.microbatches = 1, .plan = -1};
    json_object_foreach(o, key, v)
    {
        bool is_known = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known |= !strcmp(key, known[i]);
        if (!is_known)
            return ap_err_set(err, "unknown member \"%.40s\"", key);
    }
    if (read_part(s, arena, o, q, err) || read_place(s, arena, o, q, err))
        return -1;
    if (json_object_get(o, "microbatches") &&
        ap_get_int(o, NULL, "microbatches", 1, 1 << 20, &q->microbatches, err))
        return -1;
    if (json_object_get(o, "memory") &&
        ap_get_int(o, NULL, "memory", 1, INT64_MAX, &q->memory, err))
        return -1;
    if (json_object_get(o, "plan") &&
        ap_get_int(o, NULL, "plan", 0, MOST_POINTS - 1, &q->plan, err))
        return -1;
    return 0;
}

/* ---- answering ---- */

struct answer {
    struct ap_stage_point *points;
    int n;
    struct serve_found found;
    struct ap_buf sharding; /* empty: not requested; malloc */
};

/* Whether a is nowhere more than a share worse than b. */
static bool near_enough(const struct ap_stage_point *a, const struct ap_stage_point *b,
                        double share)
{
    double more = 1 + share;
    return a->forward_sec + a->backward_sec <=
               (b->forward_sec + b->backward_sec) * more &&
           a->sync_sec + a->update_sec <= (b->sync_sec + b->update_sec) * more &&
           (double)a->stage_bytes <= (double)b->stage_bytes * more &&
           (double)(a->stage_bytes - a->passing_bytes) <=
               (double)(b->stage_bytes - b->passing_bytes) * more &&
           (double)a->microbatch_bytes <= (double)b->microbatch_bytes * more;
}

/*
 * Leaves at most MOST_POINTS points: drops points that a quicker one dominates up to a
 * tolerance, which grows until few enough are left. The point of least memory stays.
 */
static int thin_out(struct ap_stage_point *points, int n)
{
    for (double share = 0.002; n > MOST_POINTS; share *= 2) {
        int kept = 0, least = 0;
        for (int i = 1; i < n; i++)
            if (ap_add64(points[i].stage_bytes, points[i].microbatch_bytes) <
                ap_add64(points[least].stage_bytes, points[least].microbatch_bytes))
                least = i;
        for (int i = 0; i < n; i++) {
            bool covered = false;
            for (int k = 0; k < kept && !covered && i != least; k++)
                covered = near_enough(&points[k], &points[i], share);
            if (!covered)
                points[kept++] = points[i];
        }
        n = kept;
    }
    return n;
}

static void list_points(struct ap_arena *arena, const struct serve_prices *prices,
                        const struct serve_pool *pool, struct answer *a)
{
    int n = 0;
    a->points = AP_NEW_N(arena, 2 * prices->n + 1, struct ap_stage_point);
    for (int i = 0; i < prices->n; i++) {
        struct ap_stage_point *p = &a->points[n];
        if (!isfinite(prices->measure[i].forward_sec))
            continue; /* devices without a row of a microbatch */
        p->algorithm = pool->name[i];
        p->tag = i;
        ap_stage_points(&prices->measure[i], p);
        n += 2;
    }
    a->n = ap_stage_front(a->points, n);
}

/* Drops the points that exceed the memory with one microbatch in flight. */
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

/* The facts of the section "sharding" beside the layouts. */
struct section_facts {
    const struct serve_part *part;
    const struct ap_plan *plan;
    const struct ap_conversions *conv;
    const struct serve_found *found;
    struct ap_program prog;
    struct ap_stage_point *direct; /* [2] */
    const char *fingerprint;       /* of the part's graph */
};

/* The program (i = 0), or the price (i = 1). */
static int find_facts(void *ctx, int i, struct ap_arena *arena, struct ap_err *err)
{
    struct section_facts *facts = ctx;
    const struct ap_subgraph *sub = &facts->part->sub;

    if (i == 0) {
        if (ap_partition(arena, facts->plan, facts->conv, &facts->prog, err))
            return -1;
        ap_plan_buffers(arena, &facts->prog, 0);
        return 0;
    }
    ap_stage_price(arena,
                   &(struct ap_stage_plan){sub, facts->found->microbatch, facts->plan,
                                           facts->conv, facts->found->cost},
                   facts->direct);
    facts->fingerprint = ap_graph_fingerprint(arena, &sub->graph);
    return 0;
}

/* The section "sharding" of a plan of the requested part, with its exact price. */
static int write_sharding(const struct server *s, struct ap_arena *arena,
                          const struct serve_question *q, const struct serve_part *part,
                          struct answer *a, struct ap_err *err)
{
    const struct serve_found *found = &a->found;
    struct ap_stage_point *p = &a->points[q->plan];
    struct ap_plan plan = part->whole
                              ? serve_part_plan(arena, part, found->pool, p->tag,
                                                found->border, found->cost)
                              : serve_pool_plan(found->pool, p->tag, &part->sub.graph,
                                                &part->nests, found->cost);
    struct ap_conversions conv;
    struct ap_stage_point direct[2] = {{.tag = p->tag, .algorithm = p->algorithm}};
    struct section_facts facts = {part, &plan, &conv, found, .direct = direct};

    double sec = shard_price(arena, &plan, found->cost, &conv, err);
    if (!isfinite(sec) || ap_in_arenas(arena, 2, find_facts, &facts, err))
        return -1;
    direct[1].tag = p->tag;
    *p = direct[p->recompute];
    plan.mesh = q->place.mesh;
    struct ap_sharding section = {
        .plan = plan,
        .algorithm = p->algorithm,
        .cost_model = ap_cost_variant_names[AP_COST_DEFAULT],
        .alpa = found->cost->alpa,
        .stopped = "rule",
        .objective_sec = sec,
        .lower_bound_sec = fmin(found->prices.bound, sec),
        .peak_bytes = facts.prog.peak_bytes,
        .device_bytes = s->job->cluster.memory_bytes,
        .graph_fingerprint = facts.fingerprint,
        .cluster_fingerprint = ap_cluster_fingerprint(arena, &q->place.cluster),
    };
    ap_sharding_to_json(&section, &conv, &a->sharding);
    return 0;
}

/* Answers a request for the plan of a point: cuts the requested part out. */
static int answer_plan(const struct server *s, struct ap_arena *arena,
                       const struct serve_question *q, struct answer *a,
                       struct ap_err *err)
{
    if (q->plan >= a->n)
        return ap_err_set(err, "plan: %lld, but the front has %d points",
                          (long long)q->plan, a->n);
    if (q->n_blocks == 0)
        return write_sharding(s, arena, q, a->found.part, a, err);
    struct serve_part *part =
        serve_part_new(s->parts, &s->job->nests, NULL, q->n_blocks, q->block, err);
    if (!part)
        return -1;
    int rc = write_sharding(s, arena, q, part, a, err);
    serve_part_free(part);
    return rc;
}

static int answer(const struct server *s, struct ap_arena *arena,
                  const struct serve_question *q, struct answer *a, struct ap_err *err)
{
    serve_memo_trim(s->memo, MEMO_BYTES);
    if (serve_memo_find(s->memo, arena, q, &a->found, err))
        return -1;
    list_points(arena, &a->found.prices, a->found.pool, a);
    if (a->n == 0)
        return ap_err_set(err, "%lld microbatches: too few rows for the devices",
                          (long long)q->microbatches);
    if (limit(a, q->memory, err))
        return -1;
    a->n = thin_out(a->points, a->n);
    return q->plan < 0 ? 0 : answer_plan(s, arena, q, a, err);
}

static void put_front(const struct answer *a, struct ap_buf *out)
{
    const struct serve_prices *prices = &a->found.prices;
    if (prices->objective >= 0) {
        ap_buf_puts(out, ",\"objective_sec\":");
        ap_json_num(out, prices->objective);
        ap_buf_puts(out, ",\"lower_bound_sec\":");
        ap_json_num(out, fmin(prices->bound, prices->objective));
    }
    ap_buf_puts(out, ",\"front\":[");
    for (int i = 0; i < a->n; i++) {
        const struct ap_stage_point *p = &a->points[i];
        ap_buf_puts(out, i ? ",{\"sec_per_microbatch\":{\"forward\":"
                           : "{\"sec_per_microbatch\":{\"forward\":");
        ap_json_num(out, p->forward_sec);
        ap_buf_puts(out, ",\"backward\":");
        ap_json_num(out, p->backward_sec);
        ap_buf_puts(out, "},\"sec_per_step\":");
        ap_json_num(out, p->sync_sec + p->update_sec);
        ap_buf_puts(out, ",\"sync_sec\":");
        ap_json_num(out, p->sync_sec);
        ap_put_int(out, "stage_bytes", p->stage_bytes);
        ap_put_int(out, "passing_bytes", p->passing_bytes);
        ap_put_int(out, "bytes_per_microbatch", p->microbatch_bytes);
        ap_buf_printf(out, ",\"recompute\":%s", p->recompute ? "true" : "false");
        if (p->slack_sec > 0) {
            ap_buf_puts(out, ",\"slack_sec\":");
            ap_json_num(out, p->slack_sec);
        }
        ap_put_str(out, "algorithm", p->algorithm);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
    if (a->sharding.len > 0) {
        ap_buf_puts(out, ",\"sharding\":");
        ap_buf_put(out, a->sharding.data, a->sharding.len);
    }
}

void serve_line(const struct server *s, const char *line, struct ap_buf *out)
{
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    struct serve_question q;
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
    ap_buf_free(&a.sharding);
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

static int compare_sec(const void *pa, const void *pb)
{
    const double *a = pa, *b = pb;
    return (*a > *b) - (*a < *b);
}

static void note_seconds(struct server *s, double sec)
{
    AP_ROOM(s->sec, s->n, s->cap);
    s->sec[s->n++] = sec;
}

static const char *serve_stats(struct server *s)
{
    double total = 0;
    for (int i = 0; i < s->n; i++)
        total += s->sec[i];
    if (s->n > 0)
        qsort(s->sec, (size_t)s->n, sizeof *s->sec, compare_sec);
    return ap_arena_printf(s->job->arena,
                           ",\"requests\":%d,\"searches\":%d,\"answer_sec\":%.6f,"
                           "\"median_sec\":%.6f,\"longest_sec\":%.6f",
                           s->n, serve_memo_searches(s->memo), total,
                           s->n > 0 ? s->sec[s->n / 2] : 0,
                           s->n > 0 ? s->sec[s->n - 1] : 0);
}

/* Answers all requests that come. */
static void serve_lines(struct server *s)
{
    FILE *in = fdopen(STDIN_FILENO, "r"), *to = fdopen(STDOUT_FILENO, "w");
    char *line = NULL;
    size_t cap = 0;

    if (!in || !to)
        ap_die(AP_BAD_INPUT, "standard input and output: %s", strerror(errno));
    while (getline(&line, &cap, in) >= 0) {
        struct ap_buf out = {0};
        double from = ap_now_sec();
        serve_line(s, line, &out);
        note_seconds(s, ap_now_sec() - from);
        bool bad = fwrite(out.data, 1, out.len, to) != out.len || fflush(to);
        ap_buf_free(&out);
        if (bad)
            ap_die(AP_BAD_INPUT, "standard output: %s", strerror(errno));
    }
    if (ferror(in))
        ap_die(AP_BAD_INPUT, "standard input: %s", strerror(errno));
    free(line);
    fclose(in);
    fclose(to);
}

struct server *serve_open(struct shard_job *job, const struct shard_request *req,
                          const struct ap_doc *doc)
{
    struct server *s = AP_NEW(job->arena, struct server);

    *s = (struct server){.job = job, .req = req};
    read_blocks(s, doc);
    s->parts = serve_blocks_new(job->arena, &job->graph, &s->blocks, NULL);
    s->memo = serve_memo_new(job, req, s->parts);
    return s;
}

void serve_close(struct server *s)
{
    serve_memo_free(s->memo);
    free(s->sec);
}

const char *shard_serve(struct shard_job *job, const struct shard_request *req,
                        const struct ap_doc *doc, const struct shard_pipes *pipes)
{
    struct ap_err err = {0};

    if (!req->cluster && !req->cluster_path && !ap_doc_find(doc, "cluster"))
        ap_die_usage("--serve needs --cluster, or a document with a cluster");
    if (req->cluster)
        job->cluster = *req->cluster;
    else if (ap_cluster_get(job->arena, doc, req->cluster_path, 0, &job->cluster, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_tool_one_kind(&job->cluster);
    job->cluster.overlap = false; /* parts are sums over blocks, and so serial */
    for (int i = 0; i < job->graph.n_nodes; i++)
        if (job->graph.nodes[i].pin && req->pin_mode == 0)
            ap_die_usage(
                "--serve keeps no imported shardings (%s has one): --pins ignore",
                job->graph.nodes[i].name);
    if (req->space == SHARD_SPACE_ALPA) {
        if (shard_alpa_check(&job->graph, &err))
            ap_die(AP_NO_SOLUTION, "%s", err.msg);
        ap_plan_results_lie(job->arena, &job->graph);
    }
    struct server *s = serve_open(job, req, doc);
    if (pipes)
        serve_fork(pipes);
    serve_lines(s);
    const char *stats = serve_stats(s);
    serve_close(s);
    serve_wait();
    return stats;
}
