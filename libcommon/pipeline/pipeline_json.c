/*
 * The sections "pipeline" (programs of stages, transfers between them, lanes) and
 * "program" (one stage, which needs none of these), and the part of a pipeline that the
 * ranks of one lane need. What is read is checked as a whole before anything runs it.
 */
#include "base/pack.h"
#include "pipeline/pipeline_program.h"

#include <limits.h>
#include <string.h>

static const char *const do_names[] = {"run", "send", "receive"};

/* ---- writing ---- */

static void put_stage(const struct ap_pipeline_stage *st, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"lane\":");
    ap_buf_int(out, st->lane);
    const struct ap_pipeline_cuts *c = &st->cuts;
    const int cuts[] = {c->each_lo, c->backward_lo, c->weights_lo, c->each_hi};
    ap_put_ids(out, "cuts", cuts, c->weights_lo < c->each_hi ? 4 : 3);
    ap_put_ids(out, "params", st->param, st->prog.local.n_params);
    ap_put_ids(out, "results", st->result, st->prog.local.n_results);
    if (st->n_slots > 0) {
        ap_put_int(out, "slot_bytes", st->slot_bytes);
        ap_put_key(out, "slots");
        for (int k = 0; k < st->n_slots; k++)
            ap_buf_printf(out, "%c%lld", k ? ',' : '[', (long long)st->slot[k]);
        ap_buf_putc(out, ']');
        if (st->host_slot_bytes > 0) {
            ap_put_int(out, "host_slot_bytes", st->host_slot_bytes);
            ap_put_int(out, "host_slots", st->host_at);
        }
    }
    ap_put_key(out, "program");
    ap_program_to_json(&st->prog, out);
    ap_buf_putc(out, '}');
}

static void put_transfer(const struct ap_pipeline_program *r, const struct ap_transfer *t,
                         struct ap_buf *out)
{
    struct ap_buf layout = {0};
    ap_buf_puts(out, "{\"from\":");
    ap_buf_int(out, t->from);
    ap_put_int(out, "result", t->result);
    ap_put_int(out, "to", t->to);
    ap_put_int(out, "param", t->param);
    ap_put_shape(out, "shape", &t->shape);
    ap_layout_print(&r->stage[t->from].prog.mesh, &t->layout, &layout);
    ap_buf_putc(&layout, '\0');
    ap_put_str(out, "layout", layout.data);
    ap_put_int(out, "messages", t->n_messages);
    ap_put_str(out, "resharding", ap_resharding_names[t->how]);
    ap_buf_putc(out, '}');
    ap_buf_free(&layout);
}

static void put_instr(const struct ap_pipeline_instr *x, struct ap_buf *out)
{
    if (x->what == AP_PIPELINE_RUN)
        ap_buf_printf(out, "{\"run\":%d,\"groups\":[%d,%d],\"microbatch\":%d", x->stage,
                      x->lo, x->hi, x->message);
    else
        ap_buf_printf(out, "{\"%s\":%d,\"message\":%d", do_names[x->what], x->transfer,
                      x->message);
    if (x->slot > 0)
        ap_put_int(out, "slot", x->slot);
    ap_buf_putc(out, '}');
}

static void put_lane(const struct ap_lane *lane, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"ranks\":[");
    for (int i = 0; i < lane->n_ranks; i++)
        ap_buf_printf(out, "%s%d", i ? "," : "", lane->ranks[i]);
    ap_buf_puts(out, "]");
    ap_put_int(out, "peak_bytes", lane->peak_bytes);
    if (lane->host_bytes > 0)
        ap_put_int(out, "host_bytes", lane->host_bytes);
    ap_buf_puts(out, ",\"instructions\":[");
    for (int i = 0; i < lane->n; i++) {
        ap_buf_puts(out, i ? "," : "");
        put_instr(&lane->instr[i], out);
    }
    ap_buf_puts(out, "]}");
}

const char *ap_pipeline_section(const struct ap_pipeline_program *r)
{
    return r->alone ? "program" : "pipeline";
}

void ap_pipeline_to_json(const struct ap_pipeline_program *r, struct ap_buf *out)
{
    if (r->alone) {
        ap_program_to_json(&r->stage[0].prog, out);
        return;
    }
    ap_buf_puts(out, "{\"schedule\":");
    ap_json_str(out, ap_schedule_names[r->schedule]);
    ap_put_int(out, "microbatches", r->microbatches);
    ap_put_str(out, "microbatch", r->each ? "each" : "exact");
    ap_put_int(out, "n_ranks", r->n_ranks);
    ap_put_key(out, "stages");
    for (int i = 0; i < r->n_stages; i++) {
        ap_buf_putc(out, i ? ',' : '[');
        put_stage(&r->stage[i], out);
    }
    ap_buf_putc(out, ']');
    ap_put_key(out, "transfers");
    ap_buf_putc(out, '[');
    for (int t = 0; t < r->n_transfers; t++) {
        ap_buf_puts(out, t ? "," : "");
        put_transfer(r, &r->transfer[t], out);
    }
    ap_buf_putc(out, ']');
    ap_put_key(out, "lanes");
    for (int i = 0; i < r->n_lanes; i++) {
        ap_buf_putc(out, i ? ',' : '[');
        put_lane(&r->lane[i], out);
    }
    ap_buf_puts(out, "]}");
}

/* ---- reading ---- */

static int read_int(const json_t *o, const struct ap_at *at, const char *key, int lo,
                    int hi, int *out, struct ap_err *err)
{
    int64_t v;
    if (ap_get_int(o, at, key, lo, hi, &v, err))
        return -1;
    *out = (int)v;
    return 0;
}

static int read_slots(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      const struct ap_pipeline_program *r, struct ap_pipeline_stage *st,
                      struct ap_err *err)
{
    const int64_t end = r->lane[st->lane].peak_bytes;
    const struct ap_at list = {at, "slots", 0};
    json_t *slots;

    if (!json_object_get(o, "slots") && !json_object_get(o, "slot_bytes"))
        return 0;
    if (ap_get_arr(o, at, "slots", &slots, err) ||
        ap_get_int(o, at, "slot_bytes", 1, end, &st->slot_bytes, err))
        return -1;
    st->n_slots = (int)json_array_size(slots);
    if (st->n_slots < 1 || st->n_slots > r->microbatches)
        return ap_at_err(&list, err, "expected 1 to %d, one for a microbatch in flight",
                         r->microbatches);
    int64_t *slot = AP_NEW_N(arena, st->n_slots, int64_t);
    for (int k = 0; k < st->n_slots; k++) {
        const struct ap_at here = {&list, NULL, k};
        const json_t *v = json_array_get(slots, (size_t)k);
        slot[k] = json_integer_value(v);
        if (!json_is_integer(v) || slot[k] < 0 || slot[k] > end - st->slot_bytes ||
            slot[k] % AP_PACK_ALIGN)
            return ap_at_err(&here, err,
                             "expected a multiple of %d whose slot ends within the "
                             "lane's peak_bytes",
                             AP_PACK_ALIGN);
    }
    st->slot = slot;
    return !json_object_get(o, "host_slot_bytes") ||
                   (!ap_get_int(o, at, "host_slot_bytes", 1, INT64_MAX / 4 / (1 << 20),
                                &st->host_slot_bytes, err) &&
                    !ap_get_int(o, at, "host_slots", end, INT64_MAX / 4, &st->host_at,
                                err))
               ? 0
               : -1;
}

static int read_stage(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      bool part, const struct ap_pipeline_program *r,
                      struct ap_pipeline_stage *st, struct ap_err *err)
{
    struct ap_at prog_at = {at, "program", 0};
    const struct ap_graph *g = &st->prog.local;
    const struct ap_pipeline_cuts *c = &st->cuts;

    if (ap_program_from_json(arena, json_object_get(o, "program"), &prog_at, &st->prog,
                             err))
        return -1;
    st->prog.part = true;
    if ((!part && ap_program_check(&st->prog, &prog_at, err)) ||
        ap_get_ids(arena, o, at, "params",
                   (struct ap_id_range){g->n_params, -1, INT_MAX - 1}, &st->param,
                   err) < 0 ||
        ap_get_ids(arena, o, at, "results",
                   (struct ap_id_range){g->n_results, -1, INT_MAX - 1}, &st->result,
                   err) < 0 ||
        read_slots(arena, o, at, r, st, err))
        return -1;
    if (c->each_lo > c->backward_lo || c->backward_lo > c->weights_lo ||
        c->weights_lo > c->each_hi || c->each_hi > g->n_groups)
        return ap_at_err(at, err, "cuts: expected groups in order");
    if (ap_mesh_microbatches(&st->prog.mesh) != r->microbatches)
        return ap_at_err(&prog_at, err, "is of %lld microbatches, the pipeline of %d",
                         (long long)ap_mesh_microbatches(&st->prog.mesh),
                         r->microbatches);
    if (ap_mesh_devices(&st->prog.mesh) != r->lane[st->lane].n_ranks)
        return ap_at_err(&prog_at, err, "is for %lld ranks, lane %d has %d",
                         (long long)ap_mesh_devices(&st->prog.mesh), st->lane,
                         r->lane[st->lane].n_ranks);
    return 0;
}

/* Whether the value is where the message takes it from and goes where it fits. */
static int check_transfer(struct ap_arena *arena, const struct ap_pipeline_program *r,
                          const struct ap_at *at, const struct ap_transfer *t,
                          struct ap_err *err)
{
    const struct ap_program *from = &r->stage[t->from].prog, *to = &r->stage[t->to].prog;
    const struct ap_shape *made =
        &from->local.nodes[from->local.results[t->result].node].shape;
    const struct ap_node *param = &to->local.nodes[to->local.params[t->param]];
    struct ap_shape local = ap_layout_local(arena, &from->mesh, &t->shape, &t->layout);
    bool share = ap_layout_per_microbatch(&from->mesh, &t->layout);
    bool takes_share = ap_pipeline_is_share(to, t->param);

    for (int a = 0; a < from->mesh.n_axes; a++)
        if (t->layout.axis[a].kind == AP_PARTIAL)
            return ap_at_err(
                at, err,
                "layout: partial sums have to be reduced before a value is sent");
    if (!ap_shape_equal(made, &local))
        return ap_at_err(at, err, "result %d of stage %d has another shape", t->result,
                         t->from);
    if (!ap_shape_equal(param->attrs->global, &t->shape))
        return ap_at_err(at, err, "parameter %d of stage %d has another shape", t->param,
                         t->to);
    if (t->n_messages != (share || takes_share ? r->microbatches : 1))
        return ap_at_err(at, err, "messages: expected %d",
                         share || takes_share ? r->microbatches : 1);
    return 0;
}

static int read_transfer(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                         const struct ap_pipeline_program *r, struct ap_transfer *t,
                         struct ap_err *err)
{
    struct ap_at shape_at = {at, "shape", 0}, layout_at = {at, "layout", 0};
    const char *shape, *layout;
    struct ap_err why = {0};
    size_t pos = 0;
    int how = 0;

    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (ap_opt_name(o, at, "resharding", ap_resharding_names + 1, AP_N_RESHARDINGS - 1,
                    &how, err) ||
        read_int(o, at, "from", 0, r->n_stages - 1, &t->from, err) ||
        read_int(o, at, "to", 0, r->n_stages - 1, &t->to, err) ||
        read_int(o, at, "result", 0, r->stage[t->from].prog.local.n_results - 1,
                 &t->result, err) ||
        read_int(o, at, "param", 0, r->stage[t->to].prog.local.n_params - 1, &t->param,
                 err) ||
        read_int(o, at, "messages", 1, INT_MAX, &t->n_messages, err) ||
        ap_get_str(o, at, "shape", &shape, err) ||
        ap_get_str(o, at, "layout", &layout, err))
        return -1;
    t->how = (enum ap_resharding)(how + 1);
    if (ap_shape_parse(arena, shape, &pos, &t->shape, &why) || shape[pos] ||
        t->shape.dtype == AP_TUPLE)
        return ap_at_err(&shape_at, err, "expected the shape of a tensor%s%s",
                         why.msg[0] ? ": " : "", why.msg);
    if (ap_layout_parse(&r->stage[t->from].prog.mesh, &t->shape, layout, &t->layout,
                        &why))
        return ap_at_err(&layout_at, err, "%s", why.msg);
    return check_transfer(arena, r, at, t, err);
}

static int read_instr(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      struct ap_pipeline_instr *x, struct ap_err *err)
{
    const int *groups;

    *x = (struct ap_pipeline_instr){0};
    for (int k = AP_PIPELINE_RUN; k <= AP_PIPELINE_RECEIVE; k++)
        if (json_object_get(o, do_names[k]))
            x->what = (enum ap_pipeline_do)k;
    if (json_object_get(o, "slot") && read_int(o, at, "slot", 0, INT_MAX, &x->slot, err))
        return -1;
    if (x->what != AP_PIPELINE_RUN)
        return read_int(o, at, do_names[x->what], 0, INT_MAX, &x->transfer, err) ||
                       read_int(o, at, "message", 0, INT_MAX, &x->message, err)
                   ? -1
                   : 0;
    if (read_int(o, at, "run", 0, INT_MAX, &x->stage, err) ||
        read_int(o, at, "microbatch", 0, INT_MAX, &x->message, err) ||
        ap_get_ids(arena, o, at, "groups", (struct ap_id_range){2, 0, INT_MAX}, &groups,
                   err) < 0)
        return -1;
    x->lo = groups[0];
    x->hi = groups[1];
    return 0;
}

/* Ranks of the job, each in one lane: `seen` says which have one. */
static int read_lane(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                     const struct ap_pipeline_program *r, bool *seen,
                     struct ap_lane *lane, struct ap_err *err)
{
    struct ap_at ranks_at = {at, "ranks", 0}, list = {at, "instructions", 0};
    json_t *instr;

    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (ap_get_arr(o, at, "instructions", &instr, err) ||
        ap_get_int(o, at, "peak_bytes", 0, INT64_MAX / 4, &lane->peak_bytes, err) ||
        (json_object_get(o, "host_bytes") &&
         ap_get_int(o, at, "host_bytes", 1, INT64_MAX / 4, &lane->host_bytes, err)) ||
        (lane->n_ranks = ap_get_ids(arena, o, at, "ranks",
                                    (struct ap_id_range){-1, 0, r->n_ranks - 1},
                                    &lane->ranks, err)) < 0)
        return -1;
    if (lane->n_ranks == 0)
        return ap_at_err(&ranks_at, err, "expected the lane's ranks");
    for (int i = 0; i < lane->n_ranks; i++) {
        struct ap_at here = {&ranks_at, NULL, i};
        if (seen[lane->ranks[i]])
            return ap_at_err(&here, err, "rank %d has a place already", lane->ranks[i]);
        seen[lane->ranks[i]] = true;
    }
    lane->n = (int)json_array_size(instr);
    lane->instr = AP_NEW_N(arena, lane->n + 1, struct ap_pipeline_instr);
    for (int i = 0; i < lane->n; i++) {
        struct ap_at here = {&list, NULL, i};
        if (read_instr(arena, json_array_get(instr, (size_t)i), &here, &lane->instr[i],
                       err))
            return -1;
    }
    return 0;
}

/* expected: how many; 0: any number. */
static int read_lanes(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      int expected, struct ap_pipeline_program *r, struct ap_err *err)
{
    struct ap_at list = {at, "lanes", 0};
    bool *seen = AP_NEW_N(arena, r->n_ranks, bool);
    json_t *lanes;

    if (ap_get_arr(o, at, "lanes", &lanes, err))
        return -1;
    r->n_lanes = (int)json_array_size(lanes);
    if (expected > 0 && r->n_lanes != expected)
        return ap_at_err(&list, err, "%d lanes, the plan has %d", r->n_lanes, expected);
    r->lane = AP_NEW_N(arena, r->n_lanes + 1, struct ap_lane);
    for (int i = 0; i < r->n_lanes; i++) {
        struct ap_at here = {&list, NULL, i};
        if (read_lane(arena, json_array_get(lanes, (size_t)i), &here, r, seen,
                      &r->lane[i], err))
            return -1;
    }
    for (int i = 0; i < r->n_ranks; i++)
        if (!seen[i])
            return ap_at_err(&list, err, "rank %d is in no lane", i);
    return 0;
}

/* The stage's lane, and where its program is cut. */
static int read_place(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      const struct ap_pipeline_program *r, struct ap_pipeline_stage *st,
                      struct ap_err *err)
{
    const int n_cuts = json_array_size(json_object_get(o, "cuts")) == 4 ? 4 : 3;
    const int *cuts;

    if (read_int(o, at, "lane", 0, r->n_lanes - 1, &st->lane, err) ||
        ap_get_ids(arena, o, at, "cuts", (struct ap_id_range){n_cuts, 0, INT_MAX}, &cuts,
                   err) < 0)
        return -1;
    st->cuts = (struct ap_pipeline_cuts){cuts[0], cuts[1], cuts[2], cuts[n_cuts - 1]};
    return 0;
}

int ap_pipeline_lists_from_json(struct ap_arena *arena, const json_t *o,
                                const struct ap_at *at, const struct ap_stages *of,
                                struct ap_pipeline_program *r, struct ap_err *err)
{
    static const char *const modes[] = {"exact", "each"};
    const struct ap_at list = {at, "stages", 0};
    int schedule = AP_SCHEDULE_INFERENCE, mode = 0;
    json_t *stages;

    *r = (struct ap_pipeline_program){0};
    if (!json_is_object(o))
        return ap_at_err(at, err, "expected an object");
    if (ap_opt_name(o, at, "schedule", ap_schedule_names, AP_N_SCHEDULES, &schedule,
                    err) ||
        ap_opt_name(o, at, "microbatch", modes, 2, &mode, err) ||
        read_int(o, at, "microbatches", 1, AP_MAX_MICROBATCHES, &r->microbatches, err) ||
        read_int(o, at, "n_ranks", 1, AP_MAX_DEVICES, &r->n_ranks, err))
        return -1;
    r->schedule = (enum ap_schedule)schedule;
    r->each = mode == 1;
    if (of && (r->schedule != of->schedule || r->microbatches != of->microbatches))
        return ap_at_err(at, err,
                         "is of another plan than the stages: pipe them through "
                         "ap-rewrite");
    if (read_lanes(arena, o, at, of ? of->n / of->chunks : 0, r, err) ||
        ap_get_arr(o, at, "stages", &stages, err))
        return -1;
    r->n_stages = (int)json_array_size(stages);
    if (of && r->n_stages != of->n)
        return ap_at_err(&list, err, "%d stages, the plan has %d", r->n_stages, of->n);
    r->stage = AP_NEW_N(arena, r->n_stages + 1, struct ap_pipeline_stage);
    for (int i = 0; i < r->n_stages; i++) {
        const struct ap_at here = {&list, NULL, i};
        if (read_place(arena, json_array_get(stages, (size_t)i), &here, r, &r->stage[i],
                       err))
            return -1;
    }
    return 0;
}

/* What becomes a parameter of a stage becomes one of the graph's. */
static int check_results(const struct ap_pipeline_stage *st, const struct ap_at *at,
                         struct ap_err *err)
{
    const struct ap_graph *g = &st->prog.local;

    for (int r = 0; r < g->n_results; r++) {
        int alias = g->results[r].alias;
        if (alias >= 0 && st->param[g->nodes[alias].param] < 0)
            return ap_at_err(at, err,
                             "results: %d becomes a value that another stage sends", r);
    }
    return 0;
}

/* A parameter that another stage passes on comes by one transfer. */
static int check_handed(struct ap_arena *arena, const struct ap_pipeline_program *r,
                        const struct ap_at *at, struct ap_err *err)
{
    struct ap_at list = {at, "stages", 0};
    int **come = AP_NEW_N(arena, r->n_stages + 1, int *);

    for (int s = 0; s < r->n_stages; s++)
        come[s] = AP_NEW_N(arena, r->stage[s].prog.local.n_params + 1, int);
    for (int t = 0; t < r->n_transfers; t++)
        come[r->transfer[t].to][r->transfer[t].param]++;
    for (int s = 0; s < r->n_stages; s++) {
        struct ap_at here = {&list, NULL, s};
        if (check_results(&r->stage[s], &here, err))
            return -1;
        for (int k = 0; k < r->stage[s].prog.local.n_params; k++)
            if (r->stage[s].param[k] < 0 ? come[s][k] != 1 : come[s][k] > 1)
                return ap_at_err(&here, err, "params: parameter %d comes by %d transfers",
                                 k, come[s][k]);
            else if (r->stage[s].param[k] >= 0 &&
                     ap_pipeline_is_share(&r->stage[s].prog, k))
                return ap_at_err(&here, err,
                                 "params: parameter %d is one microbatch's share", k);
    }
    return 0;
}

/* What the stages say of the whole graph's parameters and results, by number. */
struct whole {
    int n_params, n_results;       /* bounds of the numbers */
    const struct ap_shape **shape; /* [parameter]; NULL: no stage has it */
    int *held;                     /* [parameter]: 1 + the last stage that lists it */
    bool *updated, *made;          /* [parameter], [result]: by a stage */
};

static int check_stage_numbers(const struct ap_pipeline_stage *st, int stage,
                               struct whole *w, const struct ap_at *at,
                               struct ap_err *err)
{
    const struct ap_graph *g = &st->prog.local;

    for (int k = 0; k < g->n_params; k++) {
        const int p = st->param[k];
        const struct ap_node *v = &g->nodes[g->params[k]];
        const struct ap_shape *shape = v->attrs->global ? v->attrs->global : &v->shape;
        if (p < 0)
            continue;
        if (p >= w->n_params)
            return ap_at_err(at, err, "params: %d, where the stages hold %d", p,
                             w->n_params);
        if (w->held[p] == stage + 1)
            return ap_at_err(at, err, "params: %d is there twice", p);
        if (w->shape[p] && !ap_shape_equal(w->shape[p], shape))
            return ap_at_err(at, err, "params: %d has another shape in another stage", p);
        w->shape[p] = shape;
        w->held[p] = stage + 1;
    }
    for (int k = 0; k < g->n_results; k++) {
        const int r = st->result[k], alias = g->results[k].alias;
        const int p = alias < 0 ? -1 : st->param[g->nodes[alias].param];
        if (r >= w->n_results)
            return ap_at_err(at, err, "results: %d, where the stages make %d", r,
                             w->n_results - w->n_params);
        if ((r >= 0 && w->made[r]) || (p >= 0 && w->updated[p]))
            return ap_at_err(at, err, "results: %d is made twice", r >= 0 ? r : p);
        if (r >= 0)
            w->made[r] = true;
        if (p >= 0)
            w->updated[p] = true;
    }
    return 0;
}

/*
 * Numbers in the whole graph: every parameter has one shape, every result and every new
 * value of a parameter is made once. No parameter is left out; a result may be, where it
 * is a parameter that does not change. So no number exceeds what the stages list.
 */
static int check_numbers(struct ap_arena *arena, const struct ap_pipeline_program *r,
                         const struct ap_at *at, struct ap_err *err)
{
    struct ap_at list = {at, "stages", 0};
    struct whole w = {0};
    int n = 0; /* parameters in use */

    for (int s = 0; s < r->n_stages; s++) {
        w.n_params += r->stage[s].prog.local.n_params;
        w.n_results += r->stage[s].prog.local.n_results;
    }
    w.n_results += w.n_params;
    w.shape = AP_NEW_N(arena, w.n_params + 1, const struct ap_shape *);
    w.held = AP_NEW_N(arena, w.n_params + 1, int);
    w.updated = AP_NEW_N(arena, w.n_params + 1, bool);
    w.made = AP_NEW_N(arena, w.n_results + 1, bool);
    for (int s = 0; s < r->n_stages; s++) {
        struct ap_at here = {&list, NULL, s};
        if (check_stage_numbers(&r->stage[s], s, &w, &here, err))
            return -1;
    }
    for (int k = 0; k < w.n_params; k++)
        n = w.shape[k] ? k + 1 : n;
    for (int k = 0; k < n; k++)
        if (!w.shape[k])
            return ap_at_err(at, err, "no stage has parameter %d", k);
    return 0;
}

/* A lane's arena ends where its last buffer or slot does. */
static int check_peaks(const struct ap_pipeline_program *r, const struct ap_at *at,
                       struct ap_err *err)
{
    const struct ap_at list = {at, "lanes", 0};

    for (int i = 0; i < r->n_lanes; i++) {
        const struct ap_at here = {&list, NULL, i};
        int64_t end = 0;
        for (int s = 0; s < r->n_stages; s++) {
            const struct ap_pipeline_stage *st = &r->stage[s];
            if (st->lane != i)
                continue;
            end = st->prog.peak_bytes > end ? st->prog.peak_bytes : end;
            for (int k = 0; k < st->n_slots; k++)
                end = st->slot[k] + st->slot_bytes > end ? st->slot[k] + st->slot_bytes
                                                         : end;
        }
        if (r->lane[i].peak_bytes != end)
            return ap_at_err(&here, err,
                             "peak_bytes %lld, its buffers and slots end at %lld",
                             (long long)r->lane[i].peak_bytes, (long long)end);
    }
    return 0;
}

static int check_lanes(struct ap_arena *arena, const struct ap_pipeline_program *r,
                       const struct ap_at *at, struct ap_err *err)
{
    struct ap_at list = {at, "lanes", 0};
    bool *used = AP_NEW_N(arena, r->n_lanes + 1, bool);

    for (int s = 0; s < r->n_stages; s++)
        used[r->stage[s].lane] = true;
    for (int i = 0; i < r->n_lanes; i++) {
        struct ap_at here = {&list, NULL, i};
        if (!used[i])
            return ap_at_err(&here, err, "no stage is of this lane");
    }
    return check_peaks(r, at, err);
}

/* ---- one stage ---- */

/* 0 .. n - 1 */
static const int *number_all(struct ap_arena *arena, int n)
{
    int *out = AP_NEW_N(arena, n + 1, int);
    for (int k = 0; k < n; k++)
        out[k] = k;
    return out;
}

static void add_run(struct ap_lane *lane, int lo, int hi, int microbatch)
{
    if (lo < hi)
        lane->instr[lane->n++] =
            (struct ap_pipeline_instr){.lo = lo, .hi = hi, .message = microbatch};
}

/* Where the update begins, of a program whose microbatches are not told from the rest. */
static int first_update(const struct ap_graph *g)
{
    int first = g->n_groups;
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].phase == AP_UPDATE && g->nodes[i].group >= 0 &&
            g->nodes[i].group < first && g->nodes[i].op != AP_OP_PARAMETER)
            first = g->nodes[i].group;
    return first;
}

void ap_pipeline_of_program(struct ap_arena *arena, const struct ap_program *prog,
                            struct ap_pipeline_program *out)
{
    const int n = (int)ap_mesh_microbatches(&prog->mesh);
    const struct ap_graph *g = &prog->local;
    struct ap_pipeline_stage *st = AP_NEW(arena, struct ap_pipeline_stage);
    struct ap_lane *lane = AP_NEW(arena, struct ap_lane);
    const int hi = prog->mesh.microbatch ? prog->each_hi : first_update(g);
    int *rank;

    *st = (struct ap_pipeline_stage){.prog = *prog,
                                     .cuts = {prog->each_lo, hi, hi, hi},
                                     .param = number_all(arena, g->n_params),
                                     .result = number_all(arena, g->n_results)};
    *out = (struct ap_pipeline_program){.alone = true,
                                        .schedule = AP_SCHEDULE_INFERENCE,
                                        .microbatches = n,
                                        .n_ranks = (int)ap_mesh_devices(&prog->mesh),
                                        .n_stages = 1,
                                        .stage = st,
                                        .transfer = AP_NEW(arena, struct ap_transfer),
                                        .n_lanes = 1,
                                        .lane = lane};
    lane->ranks = rank = AP_NEW_N(arena, out->n_ranks, int);
    lane->n_ranks = out->n_ranks;
    for (int i = 0; i < out->n_ranks; i++)
        rank[i] = i;
    lane->peak_bytes = prog->peak_bytes;
    lane->instr = AP_NEW_N(arena, n + 2, struct ap_pipeline_instr);
    add_run(lane, 0, prog->each_lo, 0);
    for (int m = 0; m < n; m++)
        add_run(lane, prog->each_lo, prog->each_hi, m);
    add_run(lane, prog->each_hi, g->n_groups, 0);
}

static int read_program(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                        bool part, struct ap_pipeline_program *r, struct ap_err *err)
{
    struct ap_program prog;

    if (ap_program_from_json(arena, o, at, &prog, err) ||
        (!part && ap_program_check(&prog, at, err)))
        return -1;
    ap_pipeline_of_program(arena, &prog, r);
    return part ? 0 : ap_pipeline_check_memory(r, at, err);
}

static bool is_program(const struct ap_at *at)
{
    return !strcmp(at->key, "program");
}

/* ---- what the ranks of a lane need: the programs of their own stages, and of all others
 * what they exchange with them. So a rank's memory grows with its lane's stages. ---- */

/* A stage of another lane, its operators left out: a result that an operator makes stands
 * as a parameter of its shape after the others. */
static struct ap_pipeline_stage outline(struct ap_arena *arena,
                                        const struct ap_pipeline_stage *of)
{
    const struct ap_graph *from = &of->prog.local;
    const int n = from->n_params + from->n_results;
    struct ap_pipeline_stage st = {.lane = of->lane, .prog = of->prog};
    struct ap_graph *g = &st.prog.local;
    int *params = AP_NEW_N(arena, n + 1, int), *number = AP_NEW_N(arena, n + 1, int);
    int *result = AP_NEW_N(arena, from->n_results + 1, int);

    *g = (struct ap_graph){.name = from->name, .n_results = from->n_results};
    g->nodes = AP_NEW_N(arena, n + 1, struct ap_node);
    g->results = AP_NEW_N(arena, from->n_results + 1, struct ap_result);
    for (int k = 0; k < from->n_params; k++) {
        number[k] = of->param[k];
        g->nodes[g->n_nodes] = from->nodes[from->params[k]];
        g->nodes[g->n_nodes++].group = -1;
    }
    for (int r = 0; r < from->n_results; r++) {
        const struct ap_result *res = &from->results[r];
        const struct ap_node *v = &from->nodes[res->node];
        result[r] = of->result[r];
        g->results[r] = *res;
        g->results[r].node = v->op == AP_OP_PARAMETER ? v->param : g->n_nodes;
        if (res->alias >= 0)
            g->results[r].alias = from->nodes[res->alias].param;
        if (v->op == AP_OP_PARAMETER)
            continue;
        number[g->n_nodes] = -1;
        g->nodes[g->n_nodes] = (struct ap_node){.op = AP_OP_PARAMETER,
                                                .name = v->name,
                                                .shape = v->shape,
                                                .scope = "",
                                                .param = g->n_nodes,
                                                .group = -1,
                                                .attrs = &ap_attrs_default};
        g->n_nodes++;
    }
    for (int i = 0; i < g->n_nodes; i++)
        params[i] = i;
    g->params = params;
    g->n_params = g->n_nodes;
    st.param = number;
    st.result = result;
    st.prog.buffer = AP_NEW_N(arena, n + 1, struct ap_buffer);
    for (int i = 0; i < g->n_nodes; i++)
        st.prog.buffer[i] = (struct ap_buffer){-1, 0, -1};
    st.prog.source = AP_NEW_N(arena, n + 1, int);
    return st;
}

struct ap_pipeline_program
ap_pipeline_part(struct ap_arena *arena, const struct ap_pipeline_program *of, int lane)
{
    struct ap_pipeline_program r = *of;

    r.stage = AP_NEW_N(arena, r.n_stages + 1, struct ap_pipeline_stage);
    for (int s = 0; s < r.n_stages; s++)
        r.stage[s] =
            of->stage[s].lane == lane ? of->stage[s] : outline(arena, &of->stage[s]);
    r.lane = AP_NEW_N(arena, r.n_lanes + 1, struct ap_lane);
    for (int i = 0; i < r.n_lanes; i++) {
        r.lane[i] = of->lane[i];
        if (i != lane)
            r.lane[i].n = 0;
    }
    return r;
}

/* part: of ap_pipeline_part, checked before. */
static int read_pipeline(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                         bool part, struct ap_pipeline_program *r, struct ap_err *err)
{
    struct ap_at stages_at = {at, "stages", 0}, transfers_at = {at, "transfers", 0};
    json_t *transfers;

    if (ap_pipeline_lists_from_json(arena, o, at, NULL, r, err) ||
        ap_get_arr(o, at, "transfers", &transfers, err))
        return -1;
    for (int i = 0; i < r->n_stages; i++) {
        struct ap_at here = {&stages_at, NULL, i};
        const json_t *stage = json_array_get(json_object_get(o, "stages"), (size_t)i);
        if (read_stage(arena, stage, &here, part, r, &r->stage[i], err))
            return -1;
    }
    r->n_transfers = (int)json_array_size(transfers);
    r->transfer = AP_NEW_N(arena, r->n_transfers + 1, struct ap_transfer);
    for (int t = 0; t < r->n_transfers; t++) {
        struct ap_at here = {&transfers_at, NULL, t};
        if (read_transfer(arena, json_array_get(transfers, (size_t)t), &here, r,
                          &r->transfer[t], err))
            return -1;
    }
    return 0;
}

int ap_pipeline_part_from_json(struct ap_arena *arena, const json_t *o,
                               const struct ap_at *at, struct ap_pipeline_program *r,
                               struct ap_err *err)
{
    return is_program(at) ? read_program(arena, o, at, true, r, err)
                          : read_pipeline(arena, o, at, true, r, err);
}

int ap_pipeline_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                          struct ap_pipeline_program *r, struct ap_err *err)
{
    if (is_program(at))
        return read_program(arena, o, at, false, r, err);
    return read_pipeline(arena, o, at, false, r, err) || check_lanes(arena, r, at, err) ||
                   check_handed(arena, r, at, err) || check_numbers(arena, r, at, err) ||
                   ap_pipeline_check(r, at, err) || ap_pipeline_check_flow(r, at, err) ||
                   ap_pipeline_check_memory(r, at, err)
               ? -1
               : 0;
}
