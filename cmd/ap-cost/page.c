/*
 * Problem: a plan that one can look at and search, in one file that needs no server.
 * Idea: the template of html/ with a JSON object in it: head, layers, timeline, memory,
 * what would change the step. All numbers come from the price that reports print; the
 * page only draws. Data must end no script element: '<' is written as an escape. Long
 * lists are cut, and say so. Cost: linear in groups, conversions and slices.
 */
#include "page.h"

#include <math.h>

#include "plan/microbatch.h"

#define MOST_SLICES 20000 /* of a plan; the page is below 2 MB with as many */
#define WINDOWS     256   /* of memory over time, of each device */

/* ---- parts ---- */

/* Names of the devices. */
static void put_kinds(const struct ap_cluster *cluster, struct ap_buf *out)
{
    struct ap_buf kinds = {0};

    ap_cluster_put_kinds(cluster, &kinds);
    ap_json_str(out, kinds.data);
    ap_buf_free(&kinds);
}

static void put_head(const char *file, const struct ap_graph *g,
                     const struct ap_cluster *cluster, const struct headline *head,
                     double step_sec, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"file\":");
    ap_json_str(out, file);
    ap_put_str(out, "model", g->name);
    ap_put_str(out, "cluster", cluster->name);
    ap_put_key(out, "device");
    put_kinds(cluster, out);
    ap_put_int(out, "operators", g->n_nodes);
    price_put_num(out, "step_sec", step_sec);
    ap_put_int(out, "peak_bytes", head->peak_bytes);
    ap_put_int(out, "limit_bytes", head->limit_bytes);
    headline_json(head, out);
}

/* A stage, or the whole plan; its list stays open for layers. */
static void put_stage(const char *name, const struct ap_mesh *mesh, const char *algorithm,
                      struct ap_buf *out)
{
    ap_buf_puts(out, "{\"name\":");
    ap_json_str(out, name);
    ap_put_int(out, "n_devices", ap_mesh_devices(mesh));
    ap_put_str(out, "algorithm", algorithm);
    ap_put_key(out, "mesh");
    ap_mesh_to_json(mesh, out);
}

static void put_changes(const struct advice *a, double whole, struct ap_buf *out)
{
    ap_put_key(out, "changes");
    ap_buf_puts(out, "[");
    for (int i = 0; i < a->n; i++) {
        ap_buf_puts(out, i ? ",[" : "[");
        ap_json_str(out, a->list[i].what);
        ap_buf_putc(out, ',');
        ap_json_num(out, a->list[i].sec);
        ap_buf_putc(out, ',');
        ap_json_num(out, whole > 0 ? a->list[i].sec / whole - 1 : 0);
        ap_buf_printf(out, ",%lld]", (long long)a->list[i].peak_bytes);
    }
    ap_buf_putc(out, ']');
}

/* [start, seconds, kind, label] */
static void put_slice(struct ap_buf *out, int *n, double start, double sec,
                      const char *kind, const char *label)
{
    /* six digits are more than a picture shows */
    ap_buf_printf(out, "%s%.6g,%.6g,\"%s\",", (*n)++ ? ",[" : "[", start, sec, kind);
    ap_json_str(out, label);
    ap_buf_putc(out, ']');
}

/* Memory over time: the most of each window. */
struct curve {
    double end_sec;
    int64_t most[WINDOWS], held; /* held: since the last event */
    int at;
};

/* From now on a device holds bytes, until the next event. */
static void curve_add(struct curve *c, double sec, int64_t bytes)
{
    int to = c->end_sec > 0 ? (int)(sec / c->end_sec * WINDOWS) : 0;

    to = to < WINDOWS ? to : WINDOWS - 1;
    for (; c->at < to; c->at++) {
        c->most[c->at] = c->held > c->most[c->at] ? c->held : c->most[c->at];
    }
    c->most[to] = c->held > c->most[to] ? c->held : c->most[to];
    c->most[to] = bytes > c->most[to] ? bytes : c->most[to];
    c->held = bytes;
}

static void put_curve(struct curve *c, struct ap_buf *out)
{
    curve_add(c, c->end_sec, c->held);
    ap_put_key(out, "most");
    for (int i = 0; i < WINDOWS; i++)
        ap_buf_printf(out, "%s%lld", i ? "," : "[", (long long)c->most[i]);
    ap_buf_putc(out, ']');
}

/* Bytes that lie there all the time, by kind. */
static void put_kind(struct ap_buf *out, int *n, const char *kind, int64_t bytes)
{
    if (bytes > 0)
        ap_buf_printf(out, "%s[\"%s\",%lld]", (*n)++ ? "," : "", kind, (long long)bytes);
}

/* ---- one stage ---- */

struct timeline {
    const struct cost_input *in;
    const struct priced *p;
    const struct ap_layers *layers;
    struct ap_buf row[2]; /* operators, collectives */
    int n[2];             /* slices */
    struct curve memory;
};

static void put_conversion(struct timeline *s, const struct ap_stretch *at)
{
    const struct ap_conversion *c = &s->p->conv.conv[at->id];

    if (s->n[1] < MOST_SLICES / 2)
        put_slice(&s->row[1], &s->n[1], at->start_sec, at->sec, "collective",
                  price_node_name(&s->in->of.graph.nodes[c->node]));
}

/* Groups of one layer and phase that follow each other are one slice. */
struct run {
    int layer, phase; /* phase -1: empty */
    double start, sec, end;
};

static void end_run(struct ap_arena *arena, struct timeline *s, struct run *r)
{
    if (r->phase >= 0 && r->sec > 0 && s->n[0] < MOST_SLICES / 2)
        put_slice(&s->row[0], &s->n[0], r->start, r->sec, ap_phase_names[r->phase],
                  r->layer < 0
                      ? "outside the layers"
                      : ap_arena_printf(arena, "%s%d", s->layers->layer[r->layer].stem,
                                        s->layers->layer[r->layer].number));
    r->phase = -1;
}

static void put_group(struct ap_arena *arena, struct timeline *s,
                      const struct ap_stretch *at, struct run *run)
{
    const struct cost_input *in = s->in;
    const struct ap_nest *nest = &in->of.nests.nest[at->id];
    int phase = ap_plan_group_phase(&in->of.graph, nest);
    int layer = s->layers->of_node[nest->n_outs ? nest->outs[0] : nest->members[0]];

    if (run->end != at->start_sec || run->phase != phase || run->layer != layer)
        end_run(arena, s, run);
    if (run->phase < 0)
        *run = (struct run){layer, phase, at->start_sec, 0, 0};
    run->sec += at->sec;
    run->end = at->start_sec + at->sec;
}

static void put_timeline(struct ap_arena *arena, struct timeline *s)
{
    int n;
    const struct ap_stretch *list = price_stretches(arena, s->in, s->p, &n);
    const int64_t *memory = price_memory(arena, s->in, s->p);
    struct run run = {.phase = -1};

    for (int i = 0; i < n; i++) {
        if (list[i].id < 0) {
            end_run(arena, s, &run);
            put_slice(&s->row[list[i].comm], &s->n[list[i].comm], list[i].start_sec,
                      list[i].sec, "forward", "microbatches like the first");
        } else if (list[i].comm) {
            put_conversion(s, &list[i]);
        } else {
            put_group(arena, s, &list[i], &run);
            curve_add(&s->memory, list[i].start_sec, memory[list[i].id]);
        }
    }
    end_run(arena, s, &run);
}

static void put_rows(struct ap_arena *arena, const struct cost_input *in,
                     const struct priced *p, struct ap_buf *out)
{
    static const char *const names[] = {"operators", "collectives"};
    struct ap_layers layers;
    struct timeline s = {.in = in, .p = p, .memory.end_sec = p->price.step_sec};
    int n = 0;

    ap_layers_find(arena, &in->of.graph, &in->of.nests, &layers);
    s.layers = &layers;
    put_timeline(arena, &s);
    ap_put_key(out, "timeline");
    for (int r = 0; r < 2; r++) {
        ap_buf_printf(out, "%s{\"name\":\"%s\",\"slices\":[", r ? "," : "[", names[r]);
        ap_buf_put(out, s.row[r].data, s.row[r].len);
        ap_buf_puts(out, "]}");
        ap_buf_free(&s.row[r]);
    }
    ap_buf_printf(out, "],\"cut\":%s,\"memory\":[{\"name\":\"each device\",\"kinds\":[",
                  s.n[0] >= MOST_SLICES / 2 || s.n[1] >= MOST_SLICES / 2 ? "true"
                                                                         : "false");
    for (int i = 0; i < AP_N_ROLES; i++)
        put_kind(out, &n, ap_role_names[i], p->role_bytes[i]);
    ap_buf_puts(out, "],\"rest\":\"temporary\"");
    put_curve(&s.memory, out);
    ap_buf_puts(out, "}]");
}

/* Plans by rule beside a plan of one stage. */
static void put_named(struct ap_arena *arena, const struct cost_input *in,
                      const struct priced *p, struct ap_buf *out)
{
    struct priced named[AP_N_NAMED_PLANS] = {0};
    const int n = p->schedule ? 0 : AP_N_NAMED_PLANS;
    const char *sep = "";

    if (n > 0)
        price_named_plans(arena, in, named);
    ap_put_key(out, "named");
    ap_buf_putc(out, '[');
    for (int i = 0; i < n; i++) {
        if (named[i].why_not)
            continue;
        ap_buf_printf(out, "%s[\"%s\",", sep, named[i].name);
        ap_json_num(out, named[i].price.step_sec);
        ap_buf_printf(out, ",%lld]", (long long)named[i].peak_bytes);
        sep = ",";
    }
    ap_buf_putc(out, ']');
}

/* ---- a schedule ---- */

static void put_device(struct ap_arena *arena, const struct ap_pipeline_price *p, int d,
                       int most, struct ap_buf *out)
{
    const struct ap_sim_device *of = &p->result.devices[d];
    const double update = price_held_by(p, d).update_sec;
    double end = 0;
    int n = 0;

    ap_buf_printf(out, "%s{\"name\":\"stage %d\",\"slices\":[", d ? "," : "", d);
    for (int i = 0; i < of->n_slices && i < most; i++) {
        const struct ap_sim_slice *s = &of->slices[i];
        put_slice(out, &n, s->start_sec, s->end_sec - s->start_sec,
                  ap_pass_names[s->instr.pass],
                  p->sim.chunks > 1
                      ? ap_arena_printf(arena, "stage %d, microbatch %d", s->instr.stage,
                                        s->instr.microbatch)
                      : ap_arena_printf(arena, "microbatch %d", s->instr.microbatch));
        end = s->end_sec;
    }
    if (most >= of->n_slices) {
        double from = fmax(end, of->end_sec - update);
        if (from > end)
            put_slice(out, &n, end, from - end, "collective", "sum of gradients");
        if (update > 0)
            put_slice(out, &n, from, of->end_sec - from, "update", "update");
    }
    ap_buf_puts(out, "]}");
}

static void put_device_memory(const struct cost_input *in,
                              const struct ap_pipeline_price *p, int d,
                              struct ap_buf *out)
{
    const struct ap_sim_device *of = &p->result.devices[d];
    struct curve c = {.end_sec = p->result.step_sec};
    const struct price_held h = price_held_by(p, d);
    const int64_t weight = h.role_bytes[AP_ROLE_WEIGHT];
    const int64_t state = h.role_bytes[AP_ROLE_STATE];
    int n = 0;

    c.held = h.fixed_bytes;
    for (int i = 0; i < of->n_slices; i++) {
        curve_add(&c, of->slices[i].start_sec, of->slices[i].bytes);
        curve_add(&c, of->slices[i].end_sec, of->slices[i].after_bytes);
    }
    ap_buf_printf(out, "%s{\"name\":\"stage %d\",\"kinds\":[", d ? "," : "", d);
    put_kind(out, &n, "weight", weight);
    put_kind(out, &n, "state", state);
    put_kind(out, &n, "gradients and copies", h.fixed_bytes - weight - state);
    ap_buf_puts(out, "],\"rest\":\"microbatches in flight and work\"");
    if (in->of.cluster.n_kinds > 0)
        ap_put_int(out, "limit_bytes", price_limit(in, d));
    put_curve(&c, out);
    ap_buf_putc(out, '}');
}

/* All devices of a schedule, over time. */
static void put_schedule(struct ap_arena *arena, const struct cost_input *in,
                         const struct ap_pipeline_price *p, struct ap_buf *out)
{
    int most = MOST_SLICES / p->result.n_devices, longest = 0;

    ap_buf_puts(out, ",\"timeline\":[");
    for (int d = 0; d < p->result.n_devices; d++) {
        put_device(arena, p, d, most, out);
        int n = p->result.devices[d].n_slices;
        longest = n > longest ? n : longest;
    }
    ap_buf_printf(out, "],\"cut\":%s,\"memory\":[", longest > most ? "true" : "false");
    for (int d = 0; d < p->result.n_devices; d++)
        put_device_memory(in, p, d, out);
    ap_buf_putc(out, ']');
}

/* ---- a plan ---- */

static const char *stage_name(struct ap_arena *arena, const struct cost_input *in,
                              const struct priced *p, int i)
{
    if (!p->schedule)
        return "all devices";
    return in->of.cluster.n_kinds
               ? ap_arena_printf(arena, "stage %d on %s", i, price_device(in, i)->device)
               : ap_arena_printf(arena, "stage %d", i);
}

void page_put_plan(struct ap_arena *arena, const struct cost_input *in,
                   const struct priced *p, const char *file, struct ap_buf *out)
{
    struct headline head;
    struct advice changes;
    struct ap_buf limit = {0};

    price_changes(arena, in, p, &changes);
    headline_of_plan(arena, in, p, &head);
    put_head(file, &in->of.graph, &in->of.cluster, &head, p->price.step_sec, out);
    advice_put_limit(&changes, &head, &limit);
    if (limit.len > 0)
        limit.data[limit.len - 1] = 0; /* its end of line */
    ap_put_str(out, "limit", limit.len > 0 ? limit.data : "");
    ap_buf_free(&limit);
    headline_free(&head);
    ap_put_key(out, "stages");
    ap_buf_putc(out, '[');
    for (int i = 0; i < in->of.stages.n; i++) {
        const struct ap_sharding *s = &in->of.stages.stage[i].sharding;
        const struct page_part part = {
            &s->plan, p->schedule ? &p->schedule->breakdown[i].conv : &p->conv};
        ap_buf_puts(out, i ? "," : "");
        put_stage(stage_name(arena, in, p, i), &s->plan.mesh, s->algorithm, out);
        page_put_layers(arena, &part, out);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
    if (p->schedule)
        put_schedule(arena, in, p->schedule, out);
    else
        put_rows(arena, in, p, out);
    put_changes(&changes, price_aim_sec(in, p), out);
    put_named(arena, in, p, out);
    ap_buf_putc(out, '}');
}

/* ---- the page ---- */

void page_make(const struct ap_buf *plans, struct ap_buf *out)
{
    ap_buf_puts(out, page_head);
    ap_buf_puts(out, "{\"plans\":[");
    for (size_t i = 0; i < plans->len; i++)
        if (plans->data[i] == '<')
            ap_buf_puts(out, "\\u003c");
        else
            ap_buf_putc(out, plans->data[i]);
    ap_buf_puts(out, "]}\n");
    ap_buf_puts(out, page_tail);
}
