/*
 * Section "stages". A stage's graph follows from its blocks: it is cut out again on
 * reading, and the sharding is checked against it, so that a section made for another
 * graph is detected.
 */
#include "pipeline/stages.h"
#include "pipeline/stage_cost.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline/pipeline_program.h"
#include "base/threads.h"
#include "doc/blocks_json.h"

static const char *const recompute_names[] = {"none", "all", "selected"};

/* ---- writing ---- */

static void put_num(struct ap_buf *out, const char *key, double v)
{
    ap_put_key(out, key);
    ap_json_num(out, v);
}

static void put_stage(const struct ap_stage *st, struct ap_buf *out)
{
    assert(st->sharding_json);
    ap_buf_puts(out, "{\"blocks\":[");
    for (int i = 0; i < st->n_blocks; i++)
        ap_buf_printf(out, "%s%d", i ? "," : "", st->blocks[i]);
    ap_buf_putc(out, ']');
    ap_put_int(out, "hosts", st->hosts);
    ap_put_int(out, "devices_per_host", st->devices_per_host);
    ap_put_key(out, "devices");
    for (int64_t i = 0; i < st->n_devices; i++) {
        ap_buf_putc(out, i ? ',' : '[');
        ap_buf_int(out, st->devices[i]);
    }
    ap_buf_putc(out, ']');
    ap_put_str(out, "recompute", recompute_names[st->recompute]);
    if (st->recompute == AP_RECOMPUTE_SELECTED)
        ap_put_ids(out, "recomputed", st->recomputed, st->n_recomputed);
    ap_put_key(out, "sharding");
    ap_buf_puts(out, st->sharding_json);
    ap_buf_putc(out, '}');
}

static const char *const measures[] = {"step", "throughput"};

void ap_stages_to_json(const struct ap_stages *s, struct ap_buf *out)
{
    double gap = s->objective_sec - s->lower_bound_sec;
    ap_buf_puts(out, "{\"algorithm\":");
    ap_json_str(out, s->algorithm);
    if (s->shard_command)
        ap_put_str(out, "shard_command", s->shard_command);
    if (s->line)
        ap_put_str(out, "line", s->line);
    ap_stages_put_lines(s, out);
    ap_put_str(out, "schedule", ap_schedule_names[s->schedule]);
    ap_put_int(out, "chunks", s->chunks);
    ap_put_int(out, "microbatches", s->microbatches);
    ap_put_str(out, "microbatch", s->each ? "each" : "exact");
    if (s->resharding)
        ap_put_str(out, "resharding", ap_resharding_names[s->resharding]);
    if (s->overlap)
        ap_buf_puts(out, ",\"overlap\":true");
    ap_trainer_put(s->trainer, out);
    ap_stages_put_offload(s, out);
    ap_put_int(out, "n_devices", s->n_devices);
    if (s->limit_bytes > 0)
        ap_put_int(out, "memory_limit_bytes", s->limit_bytes);
    if (s->throughput)
        ap_put_str(out, "measure", measures[1]);
    put_num(out, "objective_sec", s->objective_sec);
    put_num(out, "lower_bound_sec", s->lower_bound_sec);
    put_num(out, "gap", gap > 0 && s->objective_sec > 0 ? gap / s->objective_sec : 0);
    ap_put_str(out, "stopped", s->stopped);
    ap_put_key(out, "stages");
    for (int i = 0; i < s->n; i++) {
        ap_buf_putc(out, i ? ',' : '[');
        put_stage(&s->stage[i], out);
    }
    ap_buf_putc(out, ']');
    if (s->extra)
        ap_buf_puts(out, s->extra);
    ap_buf_putc(out, '}');
}

int ap_stage_put_sharding(struct ap_arena *arena, const struct ap_cluster *cluster,
                          struct ap_stage *st, struct ap_err *err)
{
    struct ap_sharding *s = &st->sharding;
    struct ap_cost cost;
    struct ap_conversions conv;
    struct ap_program prog;
    struct ap_buf json = {0};

    if (ap_stage_cost(arena, cluster, st, &s->plan.mesh, &cost, err))
        return -1;
    int rc = ap_plan_conversions(arena, &s->plan, &cost, &conv, err);
    if (!rc && s->objective_sec <= 0)
        s->objective_sec = ap_plan_price(&s->plan, &cost, &conv).serial_sec;
    if (!rc && s->peak_bytes == 0) {
        rc = ap_partition(arena, &s->plan, &conv, &prog, err);
        if (!rc)
            ap_plan_buffers(arena, &prog, 0);
        s->peak_bytes = rc ? 0 : prog.peak_bytes;
    }
    ap_cost_free(&cost);
    if (rc)
        return rc;
    ap_sharding_to_json(s, &conv, &json);
    st->sharding_json = ap_arena_strndup(arena, json.data, json.len);
    ap_buf_free(&json);
    return 0;
}

/* ---- devices ---- */

int ap_cluster_take(const struct ap_cluster *whole, int64_t n, const int64_t *devices,
                    struct ap_cluster *c, struct ap_err *err)
{
    int64_t left = n, below = 1; /* groups of the level below; its devices */

    *c = *whole;
    c->overlap = false; /* stages are priced by microbatch, serially */
    for (int l = 0; l < whole->n_levels; l++) {
        int64_t span = ap_mul64(below, whole->levels[l].size), groups = 0;
        for (int64_t i = 0, run = 0, last_group = -1, last = -1; i < n; i++) {
            int64_t child = devices[i] / below, group = devices[i] / span;
            if (group != last_group)
                groups++, run = 0;
            run += group != last_group || child != last;
            last_group = group;
            last = child;
            bool ends = i + 1 == n || devices[i + 1] / span != group;
            if (ends && groups > 1 && run != c->levels[l].size)
                return ap_err_set(err, "devices are not spread evenly over level %s",
                                  whole->levels[l].name);
            if (ends)
                c->levels[l].size = run;
        }
        if (groups * c->levels[l].size != left)
            return ap_err_set(err, "devices are not spread evenly over level %s",
                              whole->levels[l].name);
        left = groups;
        below = span;
    }
    int first = ap_cluster_kind_of(whole, devices[0]);
    int last = ap_cluster_kind_of(whole, devices[n - 1]);
    if (first != last)
        return ap_err_set(err, "devices are of several kinds, %s and %s: a stage has one",
                          whole->kind[first].devices->device,
                          whole->kind[last].devices->device);
    ap_cluster_set_kind(c, first);
    return 0;
}

static int read_devices(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                        const struct ap_cluster *cluster, struct ap_stage *st,
                        struct ap_err *err)
{
    struct ap_at list = {at, "devices", 0};
    struct ap_ints ids;
    struct ap_cluster own;
    struct ap_err why = {0};
    int64_t all = ap_cluster_devices(cluster), hosts = 0;

    if (ap_get_ints(arena, o, at, "devices", &ids, err))
        return -1;
    if (ids.n == 0)
        return ap_at_err(&list, err, "expected the numbers of the stage's devices");
    for (int i = 0; i < ids.n; i++) {
        struct ap_at here = {&list, NULL, i};
        if (ids.v[i] < 0 || ids.v[i] >= all)
            return ap_at_err(&here, err, "cluster %s has devices 0 to %lld, not %lld",
                             cluster->name, (long long)all - 1, (long long)ids.v[i]);
        if (i > 0 && ids.v[i] <= ids.v[i - 1])
            return ap_at_err(&here, err, "expected devices in ascending order");
        int64_t size = cluster->levels[0].size;
        hosts += i == 0 || ids.v[i] / size != ids.v[i - 1] / size;
    }
    if (ap_cluster_take(cluster, ids.n, ids.v, &own, &why))
        return ap_at_err(&list, err, "%s", why.msg);
    st->n_devices = ids.n;
    st->devices = ids.v;
    st->hosts = hosts;
    st->devices_per_host = ids.n / hosts;
    int64_t given = hosts;
    if (json_object_get(o, "hosts") &&
        (ap_get_int(o, at, "hosts", 1, INT64_MAX, &given, err) || given != hosts))
        return ap_at_err(&list, err, "they are on %lld hosts, not %lld", (long long)hosts,
                         (long long)given);
    return 0;
}

/* ---- a stage ---- */

/* What is read of all stages. */
struct reader {
    struct ap_arena *arena;
    const struct ap_staged_graph *of;
    int *stage_of; /* [block]: -1: of none so far */
};

static int read_blocks(const struct reader *r, const json_t *o, const struct ap_at *at,
                       int stage, struct ap_stage *st, struct ap_err *err)
{
    struct ap_at list = {at, "blocks", 0};
    struct ap_ints ids;

    if (ap_get_ints(r->arena, o, at, "blocks", &ids, err))
        return -1;
    if (ids.n == 0)
        return ap_at_err(&list, err, "expected the numbers of the stage's blocks");
    int *v = AP_NEW_N(r->arena, ids.n, int);
    for (int i = 0; i < ids.n; i++) {
        struct ap_at here = {&list, NULL, i};
        if (ids.v[i] < 0 || ids.v[i] >= r->of->blocks->n)
            return ap_at_err(&here, err, "there are blocks 0 to %d, not %lld",
                             r->of->blocks->n - 1, (long long)ids.v[i]);
        v[i] = (int)ids.v[i];
        if (r->stage_of[v[i]] >= 0)
            return ap_at_err(&here, err, "block %d is in stage %d already", v[i],
                             r->stage_of[v[i]]);
        if (i > 0 && v[i] < v[i - 1])
            return ap_at_err(&here, err, "expected blocks in ascending order");
        r->stage_of[v[i]] = stage;
    }
    st->n_blocks = ids.n;
    st->blocks = v;
    return 0;
}

static int read_recompute(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                          const struct ap_graph *g, struct ap_stage *st,
                          struct ap_err *err)
{
    struct ap_at list = {at, "recomputed", 0};
    struct ap_ints ids;
    int how = AP_RECOMPUTE_NONE;

    if (ap_opt_name(o, at, "recompute", recompute_names, 3, &how, err) ||
        ap_get_ints(arena, o, at, "recomputed", &ids, err))
        return -1;
    st->recompute = (enum ap_recompute)how;
    if ((how == AP_RECOMPUTE_SELECTED) != (ids.n > 0))
        return ap_at_err(&list, err,
                         ids.n > 0 ? "nodes are for recompute \"selected\" only"
                                   : "recompute \"selected\" needs the recomputed nodes");
    int *v = AP_NEW_N(arena, ids.n + 1, int);
    for (int i = 0; i < ids.n; i++) {
        struct ap_at here = {&list, NULL, i};
        if (ids.v[i] < 0 || ids.v[i] >= g->n_nodes)
            return ap_at_err(&here, err, "the graph has no node %lld",
                             (long long)ids.v[i]);
        v[i] = (int)ids.v[i];
        if (g->nodes[v[i]].phase != AP_FORWARD)
            return ap_at_err(&here, err, "node %d (%s) is not a forward node", v[i],
                             g->nodes[v[i]].name);
    }
    st->n_recomputed = ids.n;
    st->recomputed = v;
    return 0;
}

static int check_mesh(const struct ap_at *at, const struct ap_stage *st,
                      struct ap_err *err)
{
    struct ap_at here = {at, "sharding", 0};
    int64_t n = ap_mesh_devices(&st->sharding.plan.mesh);

    if (n == st->n_devices)
        return 0;
    return ap_at_err(&here, err, "the mesh has %lld devices, the stage %lld",
                     (long long)n, (long long)st->n_devices);
}

/* The section's value without its stages, and these, each owned; a shell of NULLs. */
struct loaded {
    json_t *head;
    int n; /* -1: "stages" is no array */
    json_t **stage;
    const struct ap_doc *doc;
    const struct ap_item *text;
};

struct completion {
    struct loaded *from;
    const struct ap_at *list;
    const struct ap_graph *g;
    const int *stage_of_node;
    struct ap_stages *s;
};

/* Cuts the stage's graph out and reads its sharding. */
static int complete(const struct completion *c, int i, struct ap_arena *arena,
                    struct ap_err *err)
{
    const struct ap_at here = {c->list, NULL, i}, *at = &here;
    const int *stage_of_node = c->stage_of_node;
    struct ap_stage *st = &c->s->stage[i];
    struct ap_err why = {0};

    if (ap_subgraph_blocks(arena, c->g, stage_of_node, i, i, &st->sub, &why) ||
        ap_nests_build(arena, &st->sub.graph, &st->nests, &why))
        return ap_at_err(at, err, "%s", why.msg);
    for (int k = 0; k < st->n_recomputed; k++)
        if (stage_of_node[st->recomputed[k]] != i)
            return ap_at_err(at, err, "recomputed: node %d is in stage %d",
                             st->recomputed[k], stage_of_node[st->recomputed[k]]);
    const struct ap_at sharding = {at, "sharding", 0};
    if (ap_sharding_from_json(arena, json_object_get(c->from->stage[i], "sharding"),
                              &sharding, &st->sub.graph, &st->nests, &st->sharding, err))
        return -1;
    return check_mesh(at, st, err);
}

static int complete_one(void *ctx, int i, struct ap_arena *arena, struct ap_err *err)
{
    const struct completion *c = ctx;
    int rc = complete(c, i, arena, err);

    json_decref(c->from->stage[i]);
    c->from->stage[i] = NULL;
    return rc;
}

/* ---- the section ---- */

static bool only_forward(const struct ap_graph *g)
{
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].phase != AP_FORWARD)
            return false;
    return true;
}

/* Members beside the stages; all have defaults but the number of microbatches. */
static int read_head(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                     const struct ap_graph *g, const struct ap_cluster *cluster,
                     struct ap_stages *s, struct ap_err *err)
{
    static const char *const modes[] = {"exact", "each"};
    int schedule = only_forward(g) ? AP_SCHEDULE_INFERENCE : AP_SCHEDULE_1F1B, mode = 0;
    int measure = 0, resharding = AP_RESHARD_AUTO;

    *s = (struct ap_stages){.algorithm = "given", .stopped = "given", .chunks = 1};
    s->n_devices = ap_cluster_devices(cluster);
    if (ap_opt_str(o, at, "algorithm", &s->algorithm, err) ||
        ap_opt_str(o, at, "stopped", &s->stopped, err) ||
        ap_opt_str(o, at, "shard_command", &s->shard_command, err) ||
        ap_opt_str(o, at, "line", &s->line, err) ||
        ap_opt_name(o, at, "schedule", ap_schedule_names, AP_N_SCHEDULES, &schedule,
                    err) ||
        ap_opt_name(o, at, "microbatch", modes, 2, &mode, err) ||
        ap_opt_name(o, at, "resharding", ap_resharding_names, AP_N_RESHARDINGS,
                    &resharding, err) ||
        ap_opt_name(o, at, "measure", measures, 2, &measure, err) ||
        ap_opt_int(o, at, "chunks", 1, &s->chunks, err) ||
        ap_stages_read_lines(arena, o, at, s, err) ||
        ap_get_int(o, at, "microbatches", 1, 1 << 20, &s->microbatches, err))
        return -1;
    s->algorithm = ap_arena_strdup(arena, s->algorithm);
    s->stopped = ap_arena_strdup(arena, s->stopped);
    s->shard_command = s->shard_command ? ap_arena_strdup(arena, s->shard_command) : NULL;
    s->line = s->line ? ap_arena_strdup(arena, s->line) : NULL;
    s->schedule = (enum ap_schedule)schedule;
    s->each = mode == 1;
    s->resharding = (enum ap_resharding)resharding;
    s->throughput = measure == 1;
    const json_t *overlap = json_object_get(o, "overlap");
    const struct ap_at overlap_at = {at, "overlap", 0};
    if (overlap && !json_is_boolean(overlap))
        return ap_at_err(&overlap_at, err, "expected true or false");
    s->overlap = json_is_true(overlap);
    if (ap_trainer_read(o, at, s->schedule, &s->trainer, err) ||
        ap_stages_read_offload(arena, o, at, g, cluster, s, err))
        return -1;
    if (s->throughput && s->schedule != AP_SCHEDULE_INFERENCE) {
        const struct ap_at of = {at, "measure", 0};
        return ap_at_err(&of, err, "throughput is of schedule inference");
    }
    int64_t n = s->n_devices; /* a smaller cluster than the plan's may have its own */
    if (json_object_get(o, "n_devices") &&
        ap_get_int(o, at, "n_devices", 1, AP_MAX_DEVICES, &n, err))
        return -1;
    s->n_devices = n < s->n_devices ? n : s->n_devices;
    if (json_object_get(o, "memory_limit_bytes") &&
        ap_get_int(o, at, "memory_limit_bytes", 1, INT64_MAX, &s->limit_bytes, err))
        return -1;
    if (json_object_get(o, "objective_sec") &&
        (ap_get_num(o, at, "objective_sec", &s->objective_sec, err) ||
         ap_get_num(o, at, "lower_bound_sec", &s->lower_bound_sec, err)))
        return -1;
    const struct ap_at objective = {at, "objective_sec", 0},
                       bound = {at, "lower_bound_sec", 0};
    if (s->objective_sec < 0 || s->lower_bound_sec < 0)
        return ap_at_err(s->objective_sec < 0 ? &objective : &bound, err,
                         "expected a number >= 0");
    return 0;
}

static bool same_devices(const struct ap_stage *a, const struct ap_stage *b)
{
    return a->n_devices == b->n_devices &&
           !memcmp(a->devices, b->devices, (size_t)a->n_devices * sizeof *a->devices);
}

/* Disjoint, or those of the first stage on these devices. */
static int check_devices(struct ap_arena *arena, const struct ap_at *list,
                         const struct ap_cluster *cluster, const struct ap_stages *s,
                         struct ap_err *err)
{
    int *owner = AP_NEW_N(arena, ap_cluster_devices(cluster), int);
    int round = s->n / s->chunks;
    int64_t used = 0;

    for (int i = 0; i < s->n; i++) {
        const struct ap_stage *st = &s->stage[i];
        struct ap_at here = {list, NULL, i};
        const int like = ap_schedule_device(s->schedule, round, i);
        if (like != i) {
            if (!same_devices(st, &s->stage[like]))
                return ap_at_err(&here, err,
                                 "expected the devices of stage %d: a device has %d "
                                 "chunks in schedule %s",
                                 like, s->chunks, ap_schedule_names[s->schedule]);
            continue;
        }
        for (int64_t d = 0; d < st->n_devices; d++) {
            int64_t device = st->devices[d];
            if (owner[device])
                return ap_at_err(&here, err, "device %lld is of stage %d already",
                                 (long long)device, owner[device] - 1);
            owner[device] = i + 1;
        }
        used += st->n_devices;
    }
    if (used > s->n_devices)
        return ap_at_err(list->up, err, "%lld devices, but n_devices is %lld",
                         (long long)used, (long long)s->n_devices);
    return 0;
}

bool *ap_stage_recomputed_groups(struct ap_arena *arena, const struct ap_stage *st,
                                 int n_nodes)
{
    bool *again = AP_NEW_N(arena, st->nests.n, bool);
    bool *recomputed = AP_NEW_N(arena, n_nodes, bool);

    for (int k = 0; k < st->n_recomputed; k++)
        recomputed[st->recomputed[k]] = true;
    for (int i = 0; i < st->sub.graph.n_nodes; i++) {
        int group = st->sub.graph.nodes[i].group;
        bool forward =
            ap_plan_group_phase(&st->sub.graph, &st->nests.nest[group]) == AP_FORWARD;
        again[group] |= forward && (st->recompute == AP_RECOMPUTE_ALL ||
                                    recomputed[st->sub.source[i]]);
    }
    return again;
}

int *ap_stages_of_nodes(struct ap_arena *arena, const struct ap_stages *s,
                        const struct ap_graph *g, const struct ap_blocks *blocks)
{
    int *of_block = AP_NEW_N(arena, blocks->n, int);
    int *of_node = AP_NEW_N(arena, g->n_nodes, int);

    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->stage[i].n_blocks; k++)
            of_block[s->stage[i].blocks[k]] = i;
    for (int i = 0; i < g->n_nodes; i++)
        of_node[i] = of_block[blocks->block_of[i]];
    return of_node;
}

/* Values flow from stage to stage as they do from block to block. */
static int check_order(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_at *list, const struct ap_stages *s,
                       const int *stage_of_node, struct ap_err *err)
{
    struct ap_blocks as_blocks = {.n = s->n, .block_of = stage_of_node};
    struct ap_err why = {0};
    const char *skip = "/blocks: ";

    if (ap_blocks_check(arena, g, &as_blocks, &why) == 0)
        return 0;
    const char *msg =
        strncmp(why.msg, skip, strlen(skip)) ? why.msg : why.msg + strlen(skip);
    return ap_at_err(list, err, "stages, as blocks of blocks: %s", msg);
}

static int read_stages(struct ap_arena *arena, struct loaded *from,
                       const struct ap_at *list, const struct ap_staged_graph *of,
                       struct ap_stages *s, struct ap_err *err)
{
    const struct ap_blocks *blocks = of->blocks;
    struct reader r = {arena, of, AP_NEW_N(arena, blocks->n, int)};

    for (int b = 0; b < blocks->n; b++)
        r.stage_of[b] = -1;
    for (int i = 0; i < s->n; i++) {
        struct ap_at here = {list, NULL, i};
        const json_t *o = from->stage[i];
        struct ap_stage *st = &s->stage[i];
        if (!json_is_object(o))
            return ap_at_err(&here, err, "expected an object");
        if (read_blocks(&r, o, &here, i, st, err) ||
            read_devices(arena, o, &here, of->cluster, st, err) ||
            read_recompute(arena, o, &here, of->graph, st, err))
            return -1;
    }
    for (int b = 0; b < blocks->n; b++)
        if (r.stage_of[b] < 0)
            return ap_at_err(list, err, "block %d is in no stage", b);
    if (check_devices(arena, list, of->cluster, s, err))
        return -1;
    const int *of_node = ap_stages_of_nodes(arena, s, of->graph, blocks);
    if (check_order(arena, of->graph, list, s, of_node, err))
        return -1;
    struct completion all = {from, list, of->graph, of_node, s};
    return ap_in_arenas(arena, s->n, complete_one, &all, err);
}

static int read_section(struct ap_arena *arena, struct loaded *from,
                        const struct ap_at *at, const struct ap_staged_graph *of,
                        struct ap_stages *s, struct ap_err *err)
{
    struct ap_at list = {at, "stages", 0};
    json_t *stages;

    if (!json_is_object(from->head))
        return ap_at_err(at, err, "expected an object");
    if (read_head(arena, from->head, at, of->graph, of->cluster, s, err) ||
        ap_get_arr(from->head, at, "stages", &stages, err))
        return -1;
    int n = from->n;
    if (n < 1 || n > of->blocks->n)
        return ap_at_err(&list, err, "expected 1 to %d stages, the number of blocks",
                         of->blocks->n);
    const struct ap_schedule_traits *t = &ap_schedule_traits[s->schedule];
    if (n % s->chunks || s->chunks < t->least_chunks || s->chunks > t->most_chunks)
        return ap_at_err(at, err, "%d stages are not %d to a device in schedule %s", n,
                         s->chunks, ap_schedule_names[s->schedule]);
    s->n = n;
    s->stage = AP_NEW_N(arena, s->n, struct ap_stage);
    return read_stages(arena, from, &list, of, s, err);
}

/* ---- where it stands ---- */

static void unload(struct loaded *from)
{
    for (int i = 0; i < from->n; i++)
        json_decref(from->stage[i]);
    free(from->stage);
    json_decref(from->head);
}

/* Takes the stages out of a value. */
static void take_stages(struct loaded *from)
{
    const json_t *list = json_object_get(from->head, "stages");

    from->n = json_is_array(list) ? (int)json_array_size(list) : -1;
    from->stage = ap_xrealloc(NULL, sizeof(json_t *) * (size_t)(from->n + 1));
    for (int i = 0; i < from->n; i++)
        from->stage[i] = json_incref(json_array_get(list, (size_t)i));
}

static int load_stage(void *ctx, int i, struct ap_arena *arena, struct ap_err *err)
{
    const struct loaded *from = ctx;

    (void)arena;

    const struct ap_section text = ap_doc_item(from->doc, &from->text[i]);
    from->stage[i] = ap_doc_load(from->doc, &text, err);
    return from->stage[i] ? 0 : -1;
}

/* Stages have long shardings and are loaded each by itself. */
static int load(struct ap_arena *arena, const struct ap_doc *doc,
                const struct ap_section *section, struct loaded *from, struct ap_err *err)
{
    const struct ap_item *text;

    *from = (struct loaded){.doc = doc};
    from->head = ap_doc_load_but(arena, doc, section, "stages", &text, &from->n, err);
    if (!from->head) {
        from->n = 0;
        return -1;
    }
    if (from->n < 0) {
        take_stages(from);
        return 0;
    }
    from->text = text;
    from->stage = ap_xrealloc(NULL, sizeof(json_t *) * (size_t)(from->n + 1));
    for (int i = 0; i < from->n; i++)
        from->stage[i] = NULL;
    return ap_in_arenas(arena, from->n, load_stage, from, err);
}

int ap_stages_from_text(struct ap_arena *arena, const char *text, size_t len,
                        const struct ap_staged_graph *of, struct ap_stages *s,
                        struct ap_err *err)
{
    const struct ap_doc doc = {.file = "stages", .text = text, .len = len};
    const struct ap_section section = {.name = "stages", .text = text, .len = len};
    struct ap_at at = {.key = "stages"};
    struct loaded from;
    int rc = load(arena, &doc, &section, &from, err);
    if (!rc)
        rc = read_section(arena, &from, &at, of, s, err);
    unload(&from);
    return rc;
}

/* ---- of a document ---- */

/* One more than the largest device that the section names: what a default cluster has. */
static int64_t devices_named(const struct loaded *from)
{
    int64_t most = 1;
    size_t k;
    const json_t *device;

    for (int i = 0; i < from->n; i++) {
        json_array_foreach(json_object_get(from->stage[i], "devices"), k, device)
        {
            if (json_integer_value(device) >= most &&
                json_integer_value(device) < AP_MAX_DEVICES)
                most = json_integer_value(device) + 1;
        }
    }
    return most;
}

/* 1: the cluster at path is too small for the plan. */
static int get_cluster(struct ap_arena *arena, const struct ap_doc *doc,
                       const struct loaded *from, const struct ap_at *at,
                       const char *path, struct ap_cluster *c, struct ap_err *err)
{
    const struct ap_at n_at = {at, "n_devices", 0};
    int64_t n = json_integer_value(json_object_get(from->head, "n_devices"));
    int64_t named = devices_named(from);

    if (ap_cluster_get(arena, doc, path, named < n && n <= AP_MAX_DEVICES ? n : named, c,
                       err))
        return -1;
    int64_t has = ap_cluster_devices(c);
    if (path && named > has) {
        ap_at_err(at, err, "cluster %s has devices 0 to %lld, not %lld", c->name,
                  (long long)has - 1, (long long)named - 1);
        return 1;
    }
    if (!path && n > has)
        return ap_at_err(&n_at, err, "cluster %s has %lld devices, not %lld", c->name,
                         (long long)has, (long long)n);
    return 0;
}

static int doc_blocks(struct ap_arena *arena, const struct ap_doc *doc,
                      const struct ap_graph *g, struct ap_blocks *blocks,
                      struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "blocks");
    struct ap_at at = {.key = "blocks"};

    if (ap_doc_find(doc, "sharding"))
        return ap_err_set(err, "/stages: there is a /sharding, too: which plan is meant? "
                               "delete one");
    if (!section)
        return ap_err_set(err,
                          "/stages: there is no section \"blocks\" (run ap-coarsen)");
    json_t *json = ap_doc_load(doc, section, err);
    int rc = json ? ap_blocks_from_json(arena, json, &at, g, blocks, err) : -1;
    json_decref(json);
    return rc;
}

int ap_doc_stages(struct ap_arena *arena, const struct ap_doc *doc, const char *path,
                  const struct ap_cluster *given, struct ap_planned *p,
                  struct ap_err *err)
{
    const struct ap_staged_graph of = {&p->graph, &p->nests, &p->blocks, &p->cluster};
    const struct ap_at at = {.key = "stages"};

    if (doc_blocks(arena, doc, &p->graph, &p->blocks, err))
        return -1;
    struct loaded from;
    int rc = load(arena, doc, ap_doc_find(doc, "stages"), &from, err);
    if (given)
        p->cluster = *given;
    else if (!rc)
        rc = get_cluster(arena, doc, &from, &at, path, &p->cluster, err);
    if (!rc)
        rc = read_section(arena, &from, &at, &of, &p->stages, err);
    unload(&from);
    return rc ? rc : ap_stages_check_waits(&of, &p->stages, err) ? -1 : 0;
}
