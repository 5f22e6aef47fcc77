/*
 * Problem: let a person see a pipelined plan on one screen.
 * Idea: a row per stage, but runs of stages that are identical share one, with the most
 * that one of them has; then where the time of an average device goes, what the links
 * carry, and what fills the fullest device.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pipe.h"

/* ---- the stages ---- */

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-3 * fmax(fabs(a), fabs(b));
}

static bool same_mesh(const struct ap_mesh *a, const struct ap_mesh *b)
{
    bool same = a->n_axes == b->n_axes;
    for (int i = 0; i < a->n_axes && same; i++)
        same = a->size[i] == b->size[i] && strcmp(a->name[i], b->name[i]) == 0;
    return same;
}

static bool same_row(const struct pipe_input *in, const struct ap_pipeline_price *p,
                     int a, int b)
{
    const struct ap_stage *x = &in->stages.stage[a], *y = &in->stages.stage[b];
    return x->n_devices == y->n_devices && x->recompute == y->recompute &&
           ap_cluster_kind_of(&in->cluster, x->devices[0]) ==
               ap_cluster_kind_of(&in->cluster, y->devices[0]) &&
           strcmp(x->sharding.algorithm, y->sharding.algorithm) == 0 &&
           same_mesh(&x->sharding.plan.mesh, &y->sharding.plan.mesh) &&
           near(p->stage[a].forward_sec, p->stage[b].forward_sec) &&
           near(p->stage[a].backward_sec, p->stage[b].backward_sec);
}

static void put_range(struct ap_buf *out, int first, int last, int width)
{
    size_t at = out->len;
    if (first == last)
        ap_buf_printf(out, "%d", first);
    else
        ap_buf_printf(out, "%d-%d", first, last);
    price_pad(out, at, width);
}

static void put_stages(const struct pipe_input *in, const struct ap_pipeline_price *p,
                       int a, int b, struct ap_buf *out)
{
    const struct ap_stage *first = &in->stages.stage[a], *last = &in->stages.stage[b];
    const struct ap_mesh *mesh = &first->sharding.plan.mesh;
    int64_t peak = 0;
    size_t at;

    put_range(out, a, b, -6);
    put_range(out, first->blocks[0], last->blocks[last->n_blocks - 1], -8);
    at = out->len;
    ap_buf_printf(out, "%lld", (long long)first->n_devices);
    for (int i = 0; i < mesh->n_axes; i++)
        ap_buf_printf(out, "%s%s=%lld", i ? "," : " ", mesh->name[i],
                      (long long)mesh->size[i]);
    price_pad(out, at, -15);
    at = out->len;
    ap_buf_puts(out, in->cluster.n_kinds
                         ? ap_cluster_of_device(&in->cluster, first->devices[0])->device
                         : first->sharding.algorithm);
    price_pad(out, at, -11);
    price_put_sec(out, NULL, p->stage[a].forward_sec, 11);
    price_put_sec(out, NULL, p->stage[a].backward_sec + p->stage[a].recompute_sec, 11);
    double sent = 0, once = 0;
    for (int i = a; i <= b; i++) {
        const struct ap_sim_device *d = &p->result.devices[i % p->result.n_devices];
        peak = d->peak_bytes > peak ? d->peak_bytes : peak;
        sent = fmax(sent, p->stage[i].send_forward_sec);
        once = fmax(once, p->stage[i].sync_sec + p->stage[i].update_sec);
    }
    price_put_sec(out, NULL, once, 11);
    price_put_sec(out, NULL, sent, 11);
    price_put_bytes(out, (double)peak, 10);
    if (first->recompute != AP_RECOMPUTE_NONE)
        ap_buf_puts(out, first->recompute == AP_RECOMPUTE_ALL ? " again" : " some");
    ap_buf_putc(out, '\n');
}

/* What experts would find, by the names of their grids. */
static void put_grids(const struct ap_stages *s, struct ap_buf *out)
{
    for (int i = 0; i < s->n_grids; i++) {
        ap_buf_printf(out, "%s%-18s %s", i ? "" : "\nthe best plan of degrees\n  ",
                      s->grid[i].name, s->grid[i].estimated ? "about " : "");
        price_put_sec(out, NULL, s->grid[i].step_sec, 0);
        ap_buf_printf(out, "  %s\n%s", s->grid[i].line, i + 1 < s->n_grids ? "  " : "");
    }
}

static void put_plan(const struct pipe_input *in, const struct ap_pipeline_price *p,
                     struct ap_buf *out)
{
    const struct ap_stages *s = &in->stages;
    struct ap_buf kinds = {0};
    int rows = 0;

    ap_cluster_put_kinds(&in->cluster, &kinds);
    ap_buf_printf(out,
                  "model %s: %d operators in %d blocks\n"
                  "plan %s: %d stage%s on %lld of %lld devices of %s (%s), %lld "
                  "microbatch%s, %s\n\n",
                  in->graph.name, in->graph.n_nodes, in->blocks.n, s->algorithm, s->n,
                  s->n == 1 ? "" : "s", (long long)p->n_devices,
                  (long long)ap_cluster_devices(&in->cluster), in->cluster.name,
                  kinds.data, (long long)s->microbatches,
                  s->microbatches == 1 ? "" : "es", ap_schedule_names[s->schedule]);
    ap_buf_free(&kinds);
    ap_buf_printf(out, "%-6s%-8s%-15s%-11s%11s%11s%11s%11s%10s\n", "stage", "blocks",
                  "devices", in->cluster.n_kinds ? "kind" : "sharding", "forward",
                  "backward", "per step", "send on", "memory");
    for (int a = 0, b; a < s->n; a = b + 1) {
        for (b = a; b + 1 < s->n && same_row(in, p, a, b + 1);)
            b++;
        if (rows++ < PRICE_ROWS)
            put_stages(in, p, a, b, out);
        else if (rows == PRICE_ROWS + 2)
            ap_buf_puts(out, "and more\n");
    }
}

#define MOST_TABLES 4 /* of weights */

/* ---- what is recomputed ---- */

#define MOST_AGAIN 4 /* stages, and operators of each */

/* Values of a stage that are not kept, the most frequent operators first. */
static void put_again(const struct pipe_input *in, const struct ap_pipeline_price *p,
                      int i, struct ap_buf *out)
{
    const struct ap_stage *st = &in->stages.stage[i];
    int count[AP_N_OPS] = {0};

    for (int k = 0; k < st->n_recomputed; k++)
        count[in->graph.nodes[st->recomputed[k]].op]++;
    ap_buf_printf(out, "  stage %d recomputes %d value%s in ", i, st->n_recomputed,
                  st->n_recomputed == 1 ? "" : "s");
    price_put_sec(out, NULL, p->stage[i].recompute_sec, 0);
    ap_buf_puts(out, " a microbatch");
    for (int n = 0; n < MOST_AGAIN; n++) {
        int most = 0;
        for (int op = 1; op < AP_N_OPS; op++)
            most = count[op] > count[most] ? op : most;
        if (count[most] == 0)
            break;
        ap_buf_printf(out, "%s %d %s", n ? "," : ":", count[most], ap_ops[most].name);
        count[most] = 0;
    }
    ap_buf_putc(out, '\n');
}

static void put_selected(const struct pipe_input *in, const struct ap_pipeline_price *p,
                         struct ap_buf *out)
{
    int n = 0;

    for (int i = 0; i < in->stages.n; i++) {
        if (in->stages.stage[i].recompute != AP_RECOMPUTE_SELECTED)
            continue;
        if (n++ < MOST_AGAIN)
            put_again(in, p, i, out);
    }
    if (n > MOST_AGAIN)
        ap_buf_printf(out, "  and %d more stages recompute values\n", n - MOST_AGAIN);
}

/* ---- time, links, memory ---- */

static void put_share(struct ap_buf *out, const char *what, double sec, double whole)
{
    if (sec > 0 && whole > 0)
        ap_buf_printf(out, ", %s %.1f %%", what, 100 * sec / whole);
}

static void put_time(const struct pipe_input *in, const struct ap_pipeline_price *p,
                     struct ap_buf *out)
{
    struct pipe_spent s = pipe_spent_by_all(in, p);
    double step = p->result.step_sec, again = 0;

    ap_buf_puts(out, "\nwhere the time goes\n  step ");
    price_put_sec(out, NULL, step, 0);
    if (step > 0)
        ap_buf_printf(out, ", %.4g PFLOP/s of the model, bubble %.1f %%",
                      p->flops / step / 1e15, 100 * p->result.bubble);
    if (in->stages.schedule == AP_SCHEDULE_INFERENCE) {
        ap_buf_puts(out, "\n  time between batches in a stream ");
        price_put_sec(out, NULL, ap_sim_batch_sec(&p->sim), 0);
    }
    for (int i = 0; i < in->stages.n; i++)
        again += p->stage[i].recompute_sec * (double)in->stages.microbatches *
                 (double)in->stages.stage[i].n_devices / (double)p->n_devices;
    ap_buf_printf(out, "\n  compute %.1f %%", 100 * s.compute_sec / step);
    if (again > 0)
        ap_buf_printf(out, " (recompute %.1f %%)", 100 * again / step);
    put_share(out, "collectives", s.comm_sec, step);
    put_share(out, "sends", s.send_sec, step);
    put_share(out, "gradients", s.sync_sec, step);
    put_share(out, "waiting", s.wait_sec, step);
    ap_buf_puts(out, "\n  links:");
    for (int l = 0; l < in->cluster.n_levels; l++) {
        ap_buf_printf(out, "%s %s ", l ? "," : "", in->cluster.levels[l].name);
        price_put_bytes(out, p->level_bytes[l], 0);
    }
    if (p->tied_bytes > 0) {
        ap_buf_puts(out, "; gradients of tied weights ");
        price_put_bytes(out, (double)p->tied_bytes, 0);
    }
    ap_buf_putc(out, '\n');
}

static void put_memory(const struct pipe_input *in, const struct ap_pipeline_price *p,
                       struct ap_buf *out)
{
    int64_t limit_bytes;
    int full = pipe_fullest(in, p, &limit_bytes);
    double limit = (double)limit_bytes;
    const struct ap_sim_device *d = &p->result.devices[full];
    double weight = 0, state = 0, fixed = 0, waiting = 0, work = 0, recomputed = 0;
    for (int i = 0; i < d->n_slices; i++)
        if (d->slices[i].bytes == d->peak_bytes) {
            const struct ap_sim_stage *of = &p->stage[d->slices[i].instr.stage];
            work = (double)of->work_bytes;
            recomputed = d->slices[i].instr.backward ? (double)of->recomputed_bytes : 0;
        }
    for (int i = full; i < in->stages.n; i += p->result.n_devices) {
        weight += (double)p->breakdown[i].role_bytes[AP_ROLE_WEIGHT];
        state += (double)p->breakdown[i].role_bytes[AP_ROLE_STATE];
        fixed += (double)p->stage[i].fixed_bytes;
        waiting += (double)p->breakdown[i].waiting_bytes;
    }
    ap_buf_printf(out, "\nwhat fills the fullest device (stage %d)\n  weights ", full);
    price_put_bytes(out, weight, 0);
    ap_buf_puts(out, ", states ");
    price_put_bytes(out, state, 0);
    ap_buf_puts(out, ", gradients and work ");
    price_put_bytes(out, fixed + work - weight - state - waiting, 0);
    ap_buf_printf(out, ",\n  %d microbatch%s in flight ", d->peak_in_flight,
                  d->peak_in_flight == 1 ? "" : "es");
    price_put_bytes(out, (double)d->peak_bytes - fixed - work - recomputed, 0);
    if (recomputed > 0) {
        ap_buf_puts(out, ", recomputed activations ");
        price_put_bytes(out, recomputed, 0);
    }
    if (waiting > 0) {
        ap_buf_puts(out, ", waiting values ");
        price_put_bytes(out, waiting, 0);
    }
    ap_buf_puts(out, "; ");
    price_put_bytes(out, (double)d->peak_bytes, 0);
    ap_buf_puts(out, (double)d->peak_bytes > limit ? " is too large for " : " of ");
    price_put_bytes(out, limit, 0);
    ap_buf_putc(out, '\n');
    full = pipe_fullest_arena(in, p, &limit_bytes);
    if (full < 0)
        return;
    limit = (double)limit_bytes;
    ap_buf_printf(out, "  buffers, packed, with converted copies (stage %d): ", full);
    price_put_bytes(out, (double)in->buffer_bytes[full], 0);
    ap_buf_puts(out, (double)in->buffer_bytes[full] > limit ? ", too large\n" : "\n");
}

/* Of each run of stages whose rows are one. */
static void put_weights(const struct pipe_input *in, const struct ap_pipeline_price *p,
                        struct ap_buf *out)
{
    const struct ap_stages *s = &in->stages;
    int rows = 0;

    for (int a = 0, b; a < s->n && rows < MOST_TABLES; a = b + 1, rows++) {
        char title[96];
        for (b = a; b + 1 < s->n && same_row(in, p, a, b + 1);)
            b++;
        snprintf(title, sizeof title, "weights of stage %d%s", a,
                 b > a ? " (the same in the other stages of its row)" : "");
        price_put_weights(&s->stage[a].sharding.plan, title, out);
    }
}

void pipe_report(struct ap_arena *arena, const struct pipe_input *in,
                 const struct ap_pipeline_price *p, bool details, struct ap_buf *out)
{
    struct headline head;
    struct ap_buf rest = {0};

    headline_of_stages(arena, in, p, &head);
    headline_put(&head, out);
    headline_free(&head);
    put_plan(in, p, &rest);
    if (details)
        put_selected(in, p, &rest);
    put_grids(&in->stages, &rest);
    put_time(in, p, &rest);
    if (details)
        put_memory(in, p, &rest);
    pipe_advice(arena, in, p, &rest);
    if (details)
        put_weights(in, p, &rest);
    price_fit_columns(&rest);
    ap_buf_put(out, rest.data, rest.len);
    ap_buf_free(&rest);
}
