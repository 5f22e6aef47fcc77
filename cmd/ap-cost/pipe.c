/*
 * Problem: say what a pipelined plan costs: where the time of each stage's devices goes,
 * what crosses which links, what memory holds over the step.
 * Idea: libcommon's price and simulation, which planners use, too; here they are put in
 * words. Memory over time is cut into windows of equal length, of which each shows the
 * most that it holds, so that peaks stay.
 */
#include "pipe.h"

#include <math.h>

#include "base/threads.h"
#include "pipeline/pipeline_program.h"
#include "tool/tool.h"

#define WINDOWS 32

/* ---- reading ---- */

struct reading {
    const struct ap_doc *doc;
    const char *cluster_path;
    const struct ap_cluster *cluster;
    struct pipe_input *in;
};

/* Of the whole graph in one round, of its stages in the other. */
static int read_half(void *ctx, int i, struct ap_arena *arena, struct ap_err *err)
{
    const struct reading *r = ctx;
    struct pipe_input *in = r->in;

    if (i == 0 && in->nests.nest)
        return 0;
    return i == 0 ? ap_nests_build(arena, &in->graph, &in->nests, err)
                  : ap_doc_stages(arena, r->doc, &in->graph, r->cluster_path, r->cluster,
                                  &in->blocks, &in->cluster, &in->stages, err);
}

/*
 * The price of memory that planners go by is a sum of values, without what is lost in
 * packing and without copies that stay from one phase to the next. The programs' buffers
 * are what a device needs.
 */
static const int64_t *plan_buffers(struct ap_arena *arena, const struct pipe_input *in)
{
    const struct ap_staged_graph of = {&in->graph, &in->nests, &in->blocks, &in->cluster};
    int64_t *bytes = AP_NEW_N(arena, in->stages.n, int64_t);
    struct ap_pipeline_program program;
    struct ap_arena scratch = {0};
    struct ap_err why = {0};
    bool unsupported;
    const int rc =
        ap_pipeline_build(&scratch, &of, &in->stages, &(struct ap_program_form){0},
                          &program, &unsupported, &why);

    for (int d = 0; !rc && d < program.n_lanes; d++)
        bytes[d] = program.lane[d].peak_bytes;
    ap_arena_free(&scratch);
    return rc ? NULL : bytes;
}

/* The order of the lists that run, if the document has them. */
static int read_order(struct ap_arena *arena, const struct ap_doc *doc,
                      struct pipe_input *in, struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(doc, "pipeline");
    const struct ap_at at = {NULL, "pipeline", 0};

    if (!section)
        return 0;
    json_t *json = ap_doc_load(doc, section, err);
    int rc = json ? ap_pipeline_read_order(arena, json, &at, &in->stages, err) : -1;
    json_decref(json);
    return rc;
}

int pipe_read(struct ap_arena *arena, const struct ap_doc *doc, const char *cluster_path,
              const struct ap_cluster *cluster, struct pipe_input *in,
              struct ap_pipeline_price *p, struct ap_err *err)
{
    struct reading halves = {doc, cluster_path, cluster, in};

    if (!in->nests.nest) {
        if (ap_doc_graph(arena, doc, &in->graph, err))
            return -1;
        ap_group(arena, &in->graph); /* whatever the document says of groups */
    }
    int rc = ap_in_arenas(arena, 2, read_half, &halves, err);
    if (!rc)
        rc = read_order(arena, doc, in, err);
    if (!rc)
        ap_tool_set_f32_matmul(&in->cluster, in->f32_matmul);
    if (!rc)
        rc = ap_pipeline_price(
            arena,
            &(struct ap_staged_graph){&in->graph, &in->nests, &in->blocks, &in->cluster},
            &in->stages, p, err);
    if (rc && err->msg[0] == '/')
        ap_doc_err(doc, err);
    if (rc)
        return rc;
    in->by_hand = in->stages.objective_sec <= 0;
    in->buffer_bytes = plan_buffers(arena, in);
    return 0;
}

double pipe_aim_sec(const struct ap_stages *s, const struct ap_pipeline_price *p)
{
    return s->throughput ? ap_sim_batch_sec(&p->sim) : p->result.step_sec;
}

struct ap_buf pipe_correct(struct ap_arena *arena, struct pipe_input *in,
                           const struct ap_pipeline_price *p, struct ap_err *err)
{
    struct ap_stages *s = &in->stages;
    struct ap_buf json = {0};
    double sec = pipe_aim_sec(s, p);

    if (!in->by_hand && fabs(s->objective_sec - sec) <= 1e-9 * sec)
        return json;
    if (!in->by_hand)
        ap_warn(
            "/stages: objective_sec %.9g is not what the plan costs, %.9g: corrected, "
            "and its bound dropped",
            s->objective_sec, sec);
    s->objective_sec = sec;
    s->lower_bound_sec = 0;
    s->stopped = "given";
    for (int i = 0; i < s->n; i++)
        if (ap_stage_put_sharding(arena, &in->cluster, &s->stage[i], err))
            return json;
    ap_stages_to_json(s, &json);
    return json;
}

/* ---- where the time goes ---- */

static struct pipe_spent spent_by(const struct pipe_input *in,
                                  const struct ap_pipeline_price *p, int device)
{
    const struct ap_sim_device *d = &p->result.devices[device];
    double times = (double)in->stages.microbatches;
    struct pipe_spent s = {.send_sec = d->send_sec, .sync_sec = d->sync_sec};

    for (int i = device; i < in->stages.n; i += p->result.n_devices) {
        const struct ap_stage_breakdown *part = &p->breakdown[i];
        double comm = part->forward_comm_sec;
        if (in->stages.schedule != AP_SCHEDULE_INFERENCE)
            comm += part->backward_comm_sec + part->recompute_comm_sec;
        s.comm_sec += times * comm + part->update_comm_sec;
    }
    s.compute_sec = d->compute_sec - s.comm_sec;
    s.wait_sec = fmax(0, p->result.step_sec - d->compute_sec - s.send_sec - s.sync_sec);
    return s;
}

struct pipe_spent pipe_spent_by_all(const struct pipe_input *in,
                                    const struct ap_pipeline_price *p)
{
    struct pipe_spent sum = {0};
    for (int d = 0; d < p->result.n_devices; d++) {
        struct pipe_spent s = spent_by(in, p, d);
        double share = (double)in->stages.stage[d].n_devices / (double)p->n_devices;
        sum.compute_sec += share * s.compute_sec;
        sum.comm_sec += share * s.comm_sec;
        sum.send_sec += share * s.send_sec;
        sum.sync_sec += share * s.sync_sec;
        sum.wait_sec += share * s.wait_sec;
    }
    return sum;
}

/* ---- the section ---- */

static void put_num(struct ap_buf *out, const char *key, double v)
{
    ap_put_key(out, key);
    ap_json_num(out, v);
}

static void put_spent(struct ap_buf *out, const struct pipe_spent *s)
{
    put_num(out, "compute_sec", s->compute_sec);
    put_num(out, "comm_sec", s->comm_sec);
    put_num(out, "send_sec", s->send_sec);
    put_num(out, "sync_sec", s->sync_sec);
    put_num(out, "wait_sec", s->wait_sec);
}

static const struct ap_cluster *device_of(const struct pipe_input *in, int stage)
{
    return ap_cluster_of_device(&in->cluster, in->stages.stage[stage].devices[0]);
}

int64_t pipe_limit(const struct pipe_input *in, int stage)
{
    return in->stages.limit_bytes > 0 ? in->stages.limit_bytes
                                      : device_of(in, stage)->memory_bytes;
}

/* buffers: of the arenas that ap-rewrite plans, which must be known. */
static int fullest(const struct pipe_input *in, const struct ap_pipeline_price *p,
                   bool buffers, int64_t *limit_bytes)
{
    int full = 0;
    int64_t least = INT64_MAX;

    for (int d = 0; d < p->result.n_devices; d++) {
        int64_t spare = pipe_limit(in, d) -
                        (buffers ? in->buffer_bytes[d] : p->result.devices[d].peak_bytes);
        if (spare < least) {
            full = d;
            least = spare;
        }
    }
    *limit_bytes = pipe_limit(in, full);
    return full;
}

int pipe_fullest(const struct pipe_input *in, const struct ap_pipeline_price *p,
                 int64_t *limit_bytes)
{
    return fullest(in, p, false, limit_bytes);
}

int pipe_fullest_arena(const struct pipe_input *in, const struct ap_pipeline_price *p,
                       int64_t *limit_bytes)
{
    return in->buffer_bytes ? fullest(in, p, true, limit_bytes) : -1;
}

static void put_stage(const struct pipe_input *in, const struct ap_pipeline_price *p,
                      int i, struct ap_buf *out)
{
    const struct ap_sim_stage *s = &p->stage[i];
    const struct ap_stage_breakdown *part = &p->breakdown[i];

    ap_buf_puts(out, "{\"blocks\":[");
    for (int k = 0; k < in->stages.stage[i].n_blocks; k++)
        ap_buf_printf(out, "%s%d", k ? "," : "", in->stages.stage[i].blocks[k]);
    ap_buf_puts(out, "]");
    if (in->cluster.n_kinds > 0)
        ap_put_str(out, "device", device_of(in, i)->device);
    put_num(out, "forward_sec", s->forward_sec);
    put_num(out, "backward_sec", s->backward_sec);
    put_num(out, "recompute_sec", s->recompute_sec);
    put_num(out, "sync_sec", s->sync_sec);
    put_num(out, "update_sec", s->update_sec);
    put_num(out, "forward_comm_sec", fmax(0, part->forward_comm_sec));
    put_num(out, "backward_comm_sec", fmax(0, part->backward_comm_sec));
    put_num(out, "recompute_comm_sec", fmax(0, part->recompute_comm_sec));
    put_num(out, "send_forward_sec", s->send_forward_sec);
    put_num(out, "send_backward_sec", s->send_backward_sec);
    ap_put_int(out, "send_forward_bytes", s->send_forward_bytes);
    ap_put_int(out, "send_backward_bytes", s->send_backward_bytes);
    put_num(out, "flops", part->flops);
    ap_put_int(out, "stage_bytes", ap_add64(s->fixed_bytes, s->work_bytes));
    ap_put_int(out, "work_bytes", s->work_bytes);
    ap_put_int(out, "microbatch_bytes", s->flight_bytes);
    ap_put_int(out, "recomputed_bytes", s->recomputed_bytes);
    ap_buf_putc(out, '}');
}

/* [[seconds, most bytes from there to the next], ...] */
static void put_over_time(const struct ap_pipeline_price *p, int device,
                          struct ap_buf *out)
{
    const struct ap_sim_device *d = &p->result.devices[device];
    int64_t most[WINDOWS] = {0}, held = d->n_slices ? 0 : d->peak_bytes;
    double window = p->result.step_sec / WINDOWS;
    int at = 0;

    for (int i = device; i < p->sim.n_stages; i += p->result.n_devices)
        held = ap_add64(held, p->stage[i].fixed_bytes);
    for (int w = 0; w < WINDOWS; w++) {
        most[w] = held;
        for (; at < d->n_slices && d->slices[at].start_sec < (w + 1) * window; at++) {
            most[w] = d->slices[at].bytes > most[w] ? d->slices[at].bytes : most[w];
            held = d->slices[at].after_bytes;
        }
        if (at > 0 && d->slices[at - 1].end_sec > w * window &&
            d->slices[at - 1].bytes > most[w])
            most[w] = d->slices[at - 1].bytes;
    }
    ap_put_key(out, "over_time");
    ap_buf_putc(out, '[');
    for (int w = 0; w < WINDOWS; w++) {
        if (w > 0 && most[w] == most[w - 1])
            continue;
        ap_buf_puts(out, w ? ",[" : "[");
        ap_json_num(out, w * window);
        ap_buf_printf(out, ",%lld]", (long long)most[w]);
    }
    ap_buf_putc(out, ']');
}

static void put_device(const struct pipe_input *in, const struct ap_pipeline_price *p,
                       int device, struct ap_buf *out)
{
    const struct ap_sim_device *d = &p->result.devices[device];
    struct pipe_spent spent = spent_by(in, p, device);
    int64_t role[AP_N_ROLES] = {0};
    const char *sep = "";

    ap_buf_puts(out, "{\"stages\":[");
    for (int i = device; i < p->sim.n_stages; i += p->result.n_devices) {
        ap_buf_printf(out, "%s%d", sep, i);
        sep = ",";
        for (int r = 0; r < AP_N_ROLES; r++)
            role[r] += p->breakdown[i].role_bytes[r];
    }
    ap_buf_putc(out, ']');
    ap_put_int(out, "n_devices", in->stages.stage[device].n_devices);
    put_spent(out, &spent);
    put_num(out, "end_sec", d->end_sec);
    ap_put_int(out, "peak_in_flight", d->peak_in_flight);
    ap_buf_puts(out, ",\"memory\":{\"peak_bytes\":");
    ap_buf_int(out, d->peak_bytes);
    if (in->buffer_bytes)
        ap_put_int(out, "buffer_bytes", in->buffer_bytes[device]);
    ap_put_int(out, "weight_bytes", role[AP_ROLE_WEIGHT]);
    ap_put_int(out, "state_bytes", role[AP_ROLE_STATE]);
    ap_put_int(out, "limit_bytes", pipe_limit(in, device));
    put_over_time(p, device, out);
    ap_buf_puts(out, "}}");
}

void pipe_to_json(struct ap_arena *arena, const struct pipe_input *in,
                  const struct ap_pipeline_price *p, struct ap_buf *out)
{
    struct headline head;
    struct pipe_spent spent = pipe_spent_by_all(in, p);
    double step = p->result.step_sec;

    ap_buf_puts(out, "{\"cost_model\":\"default\"");
    put_num(out, "step_sec", step);
    if (in->stages.schedule == AP_SCHEDULE_INFERENCE)
        put_num(out, "batch_sec", ap_sim_batch_sec(&p->sim));
    put_spent(out, &spent);
    put_num(out, "bubble", p->result.bubble);
    put_num(out, "flops", p->flops);
    put_num(out, "flops_per_sec", step > 0 ? p->flops / step : 0);
    put_num(out, "mfu", p->mfu);
    ap_put_int(out, "n_devices", p->n_devices);
    ap_put_str(out, "schedule", ap_schedule_names[in->stages.schedule]);
    ap_put_int(out, "microbatches", in->stages.microbatches);
    put_num(out, "norm_sec", p->sim.norm_sec);
    ap_put_int(out, "tied_bytes", p->tied_bytes);
    ap_put_int(out, "peak_bytes", p->peak_bytes);
    ap_put_key(out, "levels");
    for (int l = 0; l < in->cluster.n_levels; l++) {
        ap_buf_puts(out, l ? ",{\"name\":" : "[{\"name\":");
        ap_json_str(out, in->cluster.levels[l].name);
        put_num(out, "bytes", p->level_bytes[l]);
        ap_buf_putc(out, '}');
    }
    ap_buf_puts(out, "],\"links\":[");
    for (int i = 0; i < p->n_links; i++) {
        const struct ap_device_link *link = &p->links[i];
        ap_buf_printf(out, "%s[%lld,%lld,%lld]", i ? "," : "", (long long)link->from,
                      (long long)link->to, (long long)link->bytes);
    }
    ap_buf_puts(out, "],\"stages\":[");
    for (int i = 0; i < in->stages.n; i++) {
        ap_buf_puts(out, i ? "," : "");
        put_stage(in, p, i, out);
    }
    ap_buf_puts(out, "],\"devices\":[");
    for (int d = 0; d < p->result.n_devices; d++) {
        ap_buf_puts(out, d ? "," : "");
        put_device(in, p, d, out);
    }
    ap_buf_putc(out, ']');
    headline_of_stages(arena, in, p, &head);
    headline_json(&head, out);
    headline_free(&head);
    ap_buf_putc(out, '}');
}
