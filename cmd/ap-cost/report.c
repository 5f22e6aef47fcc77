/*
 * Problem: let a person see a plan at a glance. Idea: the plan in words, then its parts,
 * where the time goes, the contents of memory, and the changes that would help. A
 * schedule has a row per stage, but runs of stages that are identical share one, with the
 * most that one of them has. Tensors are shown by kind: names with every number replaced
 * by '*', so that the layers of a model fall together; kinds keep the order of their
 * first member.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "price.h"

#include "base/array.h"
#include "line/trainer.h"

#define MAX_KINDS 12 /* that are shown of a list */

/* Tensors of one normalised name, shape and layout. */
struct kind {
    char name[PRICE_KIND];
    struct ap_buf text; /* shape and layout */
    int count;
};

struct kinds {
    int n, cap;
    struct kind *kind;
};

void price_pad(struct ap_buf *out, size_t start, int width)
{
    size_t len = out->len - start, want = (size_t)(width < 0 ? -width : width);
    if (len >= want)
        return;
    size_t fill = want - len;
    for (size_t i = 0; i < fill; i++)
        ap_buf_putc(out, ' ');
    if (width < 0)
        return;
    memmove(out->data + start + fill, out->data + start, len);
    memset(out->data + start, ' ', fill);
}

void price_put_bytes(struct ap_buf *out, double bytes, int width)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    size_t at = out->len;
    int u = 0;
    while (bytes >= 1000 && u < 4) {
        bytes /= 1000;
        u++;
    }
    ap_buf_printf(out, u ? "%.4g %s" : "%.0f %s", bytes, units[u]);
    price_pad(out, at, width);
}

static void put_sec(struct ap_buf *out, const struct cost_input *in, double sec)
{
    if (in && in->cost.variant != AP_COST_DEFAULT)
        ap_buf_printf(out, "%.6g", sec);
    else if (sec < 1e-3)
        ap_buf_printf(out, "%.4g us", sec * 1e6);
    else if (sec < 1)
        ap_buf_printf(out, "%.4g ms", sec * 1e3);
    else
        ap_buf_printf(out, "%.4g s", sec);
}

void price_put_sec(struct ap_buf *out, const struct cost_input *in, double sec, int width)
{
    size_t at = out->len;
    put_sec(out, in, sec);
    price_pad(out, at, width);
}

void price_put_change(struct ap_buf *out, const struct cost_input *in, double sec)
{
    size_t at = out->len;
    ap_buf_puts(out, sec < 0 ? "-" : "+");
    put_sec(out, in, fabs(sec));
    price_pad(out, at, 14);
}

void price_kind(const char *name, char *out)
{
    size_t n = 0;
    for (const char *p = name; *p && n + 1 < PRICE_KIND; p++) {
        if (isdigit((unsigned char)*p)) {
            if (n == 0 || out[n - 1] != '*')
                out[n++] = '*';
        } else if (*p != '\'' && *p != '"') {
            out[n++] = *p;
        }
    }
    out[n] = '\0';
}

const char *price_node_name(const struct ap_node *node)
{
    return *node->scope ? node->scope : node->name;
}

void price_fit_columns(struct ap_buf *text)
{
    size_t to = 0, column = 0;

    for (size_t i = 0; i < text->len; i++) {
        column = text->data[i] == '\n' ? 0 : column + 1;
        if (column <= PRICE_COLUMNS)
            text->data[to++] = text->data[i];
        else if (column == PRICE_COLUMNS + 1)
            memcpy(text->data + to - 3, "...", 3);
    }
    text->len = to;
    if (text->data)
        text->data[to] = '\0';
}

static void add_kind(struct kinds *ks, const struct ap_mesh *mesh, const char *name,
                     const struct ap_shape *shape, const struct ap_layout *layout)
{
    struct kind k = {.count = 1};

    price_kind(name, k.name);
    ap_shape_print(shape, &k.text);
    price_pad(&k.text, 0, -18);
    ap_buf_putc(&k.text, ' ');
    ap_layout_print(mesh, layout, &k.text);
    for (int i = 0; i < ks->n; i++)
        if (strcmp(ks->kind[i].name, k.name) == 0 &&
            strcmp(ks->kind[i].text.data, k.text.data) == 0) {
            ks->kind[i].count++;
            ap_buf_free(&k.text);
            return;
        }
    AP_ROOM(ks->kind, ks->n, ks->cap);
    ks->kind[ks->n++] = k;
}

static void put_kinds(struct kinds *ks, const char *title, struct ap_buf *out)
{
    ap_buf_printf(out, "\n%s\n", title);
    for (int i = 0; i < ks->n; i++) {
        if (i < MAX_KINDS)
            ap_buf_printf(out, "  %4d x  %-36s %s\n", ks->kind[i].count, ks->kind[i].name,
                          ks->kind[i].text.data);
        ap_buf_free(&ks->kind[i].text);
    }
    if (ks->n > MAX_KINDS)
        ap_buf_printf(out, "  and %d more kinds\n", ks->n - MAX_KINDS);
    free(ks->kind);
}

static void put_model(const struct cost_input *in, struct ap_buf *out)
{
    const struct ap_graph *g = &in->of.graph;
    int64_t count[AP_N_ROLES] = {0}, elems[AP_N_ROLES] = {0};
    int n_heavy = 0;

    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *p = &g->nodes[g->params[i]];
        count[p->role]++;
        elems[p->role] += ap_shape_elems(&p->shape);
    }
    for (int i = 0; i < in->of.nests.n; i++)
        n_heavy += in->of.nests.nest[i].heavy;
    ap_buf_printf(out,
                  "model %s: %d operators in %d groups, %d contractions\n"
                  "%lld weights (%.4g M parameters), %lld states, %lld inputs\n",
                  g->name, g->n_nodes, in->of.nests.n, n_heavy,
                  (long long)count[AP_ROLE_WEIGHT], (double)elems[AP_ROLE_WEIGHT] / 1e6,
                  (long long)count[AP_ROLE_STATE], (long long)count[AP_ROLE_INPUT]);
}

void price_put_weights(const struct ap_plan *plan, const char *title, struct ap_buf *out)
{
    const struct ap_graph *g = plan->graph;
    struct kinds weights = {0};

    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *node = &g->nodes[g->params[i]];
        struct ap_layout l = ap_plan_node_layout(plan, g->params[i]);
        if (node->role == AP_ROLE_WEIGHT)
            add_kind(&weights, &plan->mesh, node->name, &node->shape, &l);
    }
    put_kinds(&weights, title, out);
}

static void put_plan(const struct cost_input *in, const struct priced *p,
                     struct ap_buf *out)
{
    const struct ap_mesh *mesh = &in->cost.mesh;

    ap_buf_printf(out, "plan %s on mesh", p->name);
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
        ap_buf_printf(out, " %s=%lld", mesh->name[a], (long long)mesh->size[a]);
    ap_buf_printf(out, " of %s (%s)", in->of.cluster.name, in->of.cluster.device);
    if (mesh->microbatch)
        ap_buf_printf(out, ", %lld microbatches", (long long)mesh->size[0]);
    ap_buf_putc(out, '\n');
}

static void put_tensors(const struct cost_input *in, const struct priced *p,
                        struct ap_buf *out)
{
    const struct ap_graph *g = &in->of.graph;
    const struct ap_mesh *mesh = &in->cost.mesh;
    struct kinds inputs = {0}, activations = {0};

    ap_buf_puts(out, "one placement per axis: R whole, S<d> split along dimension d, P "
                     "partial sums\n");
    if (mesh->microbatch)
        ap_buf_puts(out, "the first axis is the microbatch axis: S one microbatch's "
                         "share, P to be accumulated, R once per step\n");
    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *node = &g->nodes[g->params[i]];
        struct ap_layout l = ap_plan_node_layout(&p->plan, g->params[i]);
        if (node->role == AP_ROLE_INPUT)
            add_kind(&inputs, mesh, node->name, &node->shape, &l);
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        struct ap_layout l;
        if (node->phase != AP_FORWARD || ap_ops[node->op].class != AP_CLASS_HEAVY)
            continue;
        l = ap_plan_node_layout(&p->plan, i);
        add_kind(&activations, mesh, price_node_name(node), &node->shape, &l);
    }
    put_kinds(&inputs, "inputs", out);
    price_put_weights(&p->plan, "weights", out);
    put_kinds(&activations, "activations (results of forward dot and convolution)", out);
}

static void put_row(const struct cost_input *in, const struct priced *p,
                    struct ap_buf *out)
{
    ap_buf_printf(out, "  %-12s", p->name);
    if (p->why_not) {
        ap_buf_printf(out, "  does not exist: %s\n", p->why_not);
        return;
    }
    double sec[3] = {p->price.step_sec, p->price.compute_sec, p->price.comm_sec};
    double bytes[2] = {p->sent_bytes, (double)p->peak_bytes};
    for (int i = 0; i < 3; i++) {
        price_put_sec(out, in, sec[i], i == 2 ? 15 : 14);
    }
    for (int i = 0; i < 2; i++) {
        price_put_bytes(out, bytes[i], 14 + i);
    }
    if (p->peak_bytes > price_limit(in, 0))
        ap_buf_puts(out, "  too large");
    ap_buf_putc(out, '\n');
}

/* What the two streams hide of communication. */
static void put_overlap(const struct cost_input *in, const struct priced *p,
                        struct ap_buf *out)
{
    double hidden = fmax(0, p->price.comm_sec - p->overlap.exposed_sec);

    ap_buf_puts(out, "\n  exposed communication ");
    price_put_sec(out, in, p->overlap.exposed_sec, 0);
    ap_buf_puts(out, " of ");
    price_put_sec(out, in, p->price.comm_sec, 0);
    ap_buf_printf(out, ", %.1f %% hidden; serially the step is ",
                  100 * hidden / p->price.comm_sec);
    price_put_sec(out, in, p->price.serial_sec, 0);
}

static void put_time(const struct cost_input *in, const struct priced *p,
                     struct ap_buf *out)
{
    double all = p->price.serial_sec, each = all > 0 ? 100 / all : 0;

    ap_buf_printf(out, "\nwhere the time goes\n  compute %.1f %%, communication %.1f %%",
                  p->price.compute_sec * each, p->price.comm_sec * each);
    if (p->plan.mesh.microbatch)
        ap_buf_printf(
            out,
            "\n  with every microbatch: compute %.1f %%, communication %.1f %%; "
            "the rest once per step",
            p->price.each_compute_sec * each, p->price.each_comm_sec * each);
    if (ap_cost_overlaps(&in->cost) && p->price.comm_sec > 0)
        put_overlap(in, p, out);
    for (int i = 0; i < AP_N_PHASES; i++)
        ap_buf_printf(out, "%s%s %.1f %%", i ? ", " : "\n  ", ap_phase_names[i],
                      p->phase_sec[i] * each);
    ap_buf_putc(out, '\n');
}

static void put_memory(const struct cost_input *in, const struct priced *p,
                       struct ap_buf *out)
{
    double limit = (double)price_limit(in, 0), peak = (double)p->peak_bytes;
    const char *sep = "";

    ap_buf_puts(out, "\nwhat fills a device's memory\n  ");
    for (int i = 0; i <= AP_N_ROLES; i++) {
        double bytes =
            i < AP_N_ROLES ? (double)p->role_bytes[i] : peak - (double)p->parameter_bytes;
        if (bytes <= 0)
            continue;
        ap_buf_printf(out, "%s%s ", sep, i < AP_N_ROLES ? ap_role_names[i] : "temporary");
        price_put_bytes(out, bytes, 0);
        sep = ", ";
    }
    ap_buf_puts(out, "; ");
    price_put_bytes(out, peak, 0);
    ap_buf_puts(out, peak > limit ? " is too large for " : " of ");
    price_put_bytes(out, limit, 0);
    ap_buf_putc(out, '\n');
}

static void put_collectives(const struct cost_input *in, const struct priced *p,
                            struct ap_buf *out)
{
    const struct ap_mesh *mesh = &in->cost.mesh;

    ap_buf_printf(out, "\ncollectives of the plan\n  %-20s %-8s %6s %13s %13s\n", "kind",
                  "axes", "count", "bytes", "time");
    for (int c = 0; c < p->n_colls; c++) {
        struct ap_buf axes = {0};
        for (int a = 0; a < mesh->n_axes; a++)
            if (p->colls[c].axes >> a & 1)
                ap_buf_printf(&axes, "%s%s", axes.len ? "," : "", mesh->name[a]);
        ap_buf_printf(out, "  %-20s %-8s %6lld", ap_ops[p->colls[c].op].name, axes.data,
                      (long long)p->colls[c].count);
        price_put_bytes(out, (double)p->colls[c].bytes, 14);
        price_put_sec(out, in, p->coll_sec[c], 14);
        ap_buf_putc(out, '\n');
        ap_buf_free(&axes);
    }
    if (p->n_colls == 0)
        ap_buf_puts(out, "  none\n");
}

#define MOST_NAMED 3 /* of the quickest named plans, in a summary */

/* The quickest plans by rule that fit. */
static void put_quickest(const struct cost_input *in, const struct priced *named_plans,
                         struct ap_buf *out)
{
    double last = -1;

    for (int k = 0; k < MOST_NAMED; k++) {
        const struct priced *best = NULL;
        for (int i = 0; i < AP_N_NAMED_PLANS; i++) {
            const struct priced *p = &named_plans[i];
            if (!p->why_not && p->peak_bytes <= price_limit(in, 0) &&
                p->price.step_sec > last &&
                (!best || p->price.step_sec < best->price.step_sec))
                best = p;
        }
        if (!best)
            break;
        ap_buf_printf(out, "%s %s ", k ? "," : "plans by rule:", best->name);
        price_put_sec(out, in, best->price.step_sec, 0);
        last = best->price.step_sec;
    }
    ap_buf_puts(out, last < 0 ? "plans by rule: none fits\n" : "\n");
}

static void put_details(const struct cost_input *in, const struct priced *plan,
                        const struct priced *named_plans, struct ap_buf *out)
{
    put_tensors(in, plan, out);
    ap_buf_printf(out, "\n  %-12s%14s%14s%15s%14s%15s\n", "plan", "step time", "compute",
                  "communication", "sent/device", "memory/device");
    put_row(in, plan, out);
    for (int i = 0; i < AP_N_NAMED_PLANS; i++)
        put_row(in, &named_plans[i], out);
    put_collectives(in, plan, out);
}

/* ---- a schedule: its stages ---- */

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

static bool same_row(const struct cost_input *in, const struct ap_pipeline_price *p,
                     int a, int b)
{
    const struct ap_stage *x = &in->of.stages.stage[a], *y = &in->of.stages.stage[b];
    return x->n_devices == y->n_devices && x->recompute == y->recompute &&
           ap_cluster_kind_of(&in->of.cluster, x->devices[0]) ==
               ap_cluster_kind_of(&in->of.cluster, y->devices[0]) &&
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

static void put_stages(const struct cost_input *in, const struct ap_pipeline_price *p,
                       int a, int b, struct ap_buf *out)
{
    const struct ap_stage *first = &in->of.stages.stage[a],
                          *last = &in->of.stages.stage[b];
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
    ap_buf_putc(out, ' ');
    price_pad(out, at, -15);
    ap_buf_puts(out,
                in->of.cluster.n_kinds
                    ? ap_cluster_of_device(&in->of.cluster, first->devices[0])->device
                    : first->sharding.algorithm);
    price_pad(out, at, -26); /* long meshes take of the column's room */
    price_put_sec(out, NULL, p->stage[a].forward_sec, 11);
    price_put_sec(out, NULL, p->stage[a].backward_sec + p->stage[a].recompute_sec, 11);
    double sent = 0, once = 0;
    for (int i = a; i <= b; i++) {
        const struct ap_sim_device *d = &p->result.devices[ap_sim_device_of(&p->sim, i)];
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

/* How many lines a trainer's best one was chosen of; what experts would find, by the
 * names of their grids. */
static void put_grids(const struct ap_stages *s, struct ap_buf *out)
{
    const struct ap_trainer *trainer =
        s->for_trainer ? ap_trainer_find(s->for_trainer) : NULL;
    const struct ap_line_counts *n = &s->lines;

    if (s->for_trainer) {
        ap_buf_printf(out, "\nbest of %lld lines that %s runs: %lld priced, ",
                      (long long)n->legal, trainer ? trainer->title : s->for_trainer,
                      (long long)n->priced);
        ap_buf_printf(out, "%lld slower by bounds, %lld do not fit",
                      (long long)n->too_slow, (long long)n->too_large);
        if (n->no_plan)
            ap_buf_printf(out, "\n  (%lld cannot be divided so)", (long long)n->no_plan);
        ap_buf_putc(out, '\n');
    }
    for (int i = 0; i < s->n_grids; i++) {
        ap_buf_printf(out, "%s%-18s ", i ? "" : "\nthe best plan of degrees\n  ",
                      s->grid[i].name);
        price_put_sec(out, NULL, s->grid[i].step_sec, 0);
        ap_buf_printf(out, "  %s", s->grid[i].line);
        if (s->grid[i].whole_sec > s->grid[i].step_sec)
            ap_buf_printf(out,
                          "\n%21s%.1f %% less than the best plan with whole backward "
                          "passes",
                          "", 100 * (1 - s->grid[i].step_sec / s->grid[i].whole_sec));
        ap_buf_printf(out, "\n%s", i + 1 < s->n_grids ? "  " : "");
    }
}

static void put_all_stages(const struct cost_input *in, const struct ap_pipeline_price *p,
                           struct ap_buf *out)
{
    const struct ap_stages *s = &in->of.stages;
    struct ap_buf kinds = {0};
    int rows = 0;

    ap_cluster_put_kinds(&in->of.cluster, &kinds);
    ap_buf_printf(out,
                  "model %s: %d operators in %d blocks\n"
                  "plan %s: %d stage%s on %lld of %lld devices of %s (%s), %lld "
                  "microbatch%s, %s\n\n",
                  in->of.graph.name, in->of.graph.n_nodes, in->of.blocks.n, s->algorithm,
                  s->n, s->n == 1 ? "" : "s", (long long)p->n_devices,
                  (long long)ap_cluster_devices(&in->of.cluster), in->of.cluster.name,
                  kinds.data, (long long)s->microbatches,
                  s->microbatches == 1 ? "" : "es", ap_schedule_names[s->schedule]);
    ap_buf_free(&kinds);
    ap_buf_printf(out, "%-6s%-8s%-15s%-11s%11s%11s%11s%11s%10s\n", "stage", "blocks",
                  "devices", in->of.cluster.n_kinds ? "kind" : "sharding", "forward",
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

/* ---- what is recomputed ---- */

#define MOST_AGAIN 4 /* stages, and operators of each */

/* Values of a stage that are not kept, the most frequent operators first. */
static void put_again(const struct cost_input *in, const struct ap_pipeline_price *p,
                      int i, struct ap_buf *out)
{
    const struct ap_stage *st = &in->of.stages.stage[i];
    int count[AP_N_OPS] = {0};

    for (int k = 0; k < st->n_recomputed; k++)
        count[in->of.graph.nodes[st->recomputed[k]].op]++;
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

static void put_selected(const struct cost_input *in, const struct ap_pipeline_price *p,
                         struct ap_buf *out)
{
    int n = 0;

    for (int i = 0; i < in->of.stages.n; i++) {
        if (in->of.stages.stage[i].recompute != AP_RECOMPUTE_SELECTED)
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

static void put_spent(const struct cost_input *in, const struct ap_pipeline_price *p,
                      struct ap_buf *out)
{
    struct price_spent s = price_spent_by_all(in, p);
    double step = p->result.step_sec, again = 0;

    ap_buf_puts(out, "\nwhere the time goes\n  step ");
    price_put_sec(out, NULL, step, 0);
    if (step > 0)
        ap_buf_printf(out, ", %.4g PFLOP/s of the model, bubble %.1f %%",
                      p->flops / step / 1e15, 100 * p->result.bubble);
    if (in->of.stages.schedule == AP_SCHEDULE_INFERENCE) {
        ap_buf_puts(out, "\n  time between batches in a stream ");
        price_put_sec(out, NULL, ap_sim_batch_sec(&p->sim), 0);
    }
    for (int i = 0; i < in->of.stages.n; i++)
        again += p->stage[i].recompute_sec * (double)in->of.stages.microbatches *
                 (double)in->of.stages.stage[i].n_devices / (double)p->n_devices;
    ap_buf_printf(out, "\n  compute %.1f %%", 100 * s.compute_sec / step);
    if (again > 0)
        ap_buf_printf(out, " (recompute %.1f %%)", 100 * again / step);
    put_share(out, "collectives", s.comm_sec, step);
    put_share(out, "sends", s.send_sec, step);
    put_share(out, "gradients", s.sync_sec, step);
    put_share(out, "waiting", s.wait_sec, step);
    put_share(out, "waiting for the host", s.host_wait_sec, step);
    ap_buf_puts(out, "\n  links:");
    for (int l = 0; l < in->of.cluster.n_levels; l++) {
        ap_buf_printf(out, "%s %s ", l ? "," : "", in->of.cluster.levels[l].name);
        price_put_bytes(out, p->level_bytes[l], 0);
    }
    if (p->tied_bytes > 0) {
        ap_buf_puts(out, "; gradients of tied weights ");
        price_put_bytes(out, (double)p->tied_bytes, 0);
    }
    ap_buf_putc(out, '\n');
}

static void put_fullest(const struct cost_input *in, const struct ap_pipeline_price *p,
                        struct ap_buf *out)
{
    int64_t limit_bytes;
    int full = price_fullest(in, p, &limit_bytes);
    double limit = (double)limit_bytes;
    const struct ap_sim_device *d = &p->result.devices[full];
    const struct price_held h = price_held_by(p, full);
    const double weight = (double)h.role_bytes[AP_ROLE_WEIGHT];
    const double state = (double)h.role_bytes[AP_ROLE_STATE];
    const double fixed = (double)h.fixed_bytes, waiting = (double)h.waiting_bytes;
    double work = 0, recomputed = 0;

    for (int i = 0; i < d->n_slices; i++)
        if (d->slices[i].bytes == d->peak_bytes) {
            const struct ap_sim_stage *of = &p->stage[d->slices[i].instr.stage];
            work = (double)of->work_bytes;
            if (d->slices[i].instr.pass == AP_PASS_BACKWARD)
                recomputed = (double)of->recomputed_bytes;
        }
    ap_buf_printf(out, "\nwhat fills the fullest device (stage %d)\n  weights ", full);
    price_put_bytes(out, weight, 0);
    ap_buf_puts(out, ", states ");
    price_put_bytes(out, state, 0);
    ap_buf_puts(out, ", gradients and work ");
    price_put_bytes(out, fixed + work - weight - state - waiting, 0);
    ap_buf_printf(out, ",\n  %d microbatch%s in flight ", d->peak_in_flight,
                  d->peak_in_flight == 1 ? "" : "es");
    price_put_bytes(out, (double)d->summed_bytes - fixed - work - recomputed, 0);
    if (recomputed > 0) {
        ap_buf_puts(out, ", recomputed activations ");
        price_put_bytes(out, recomputed, 0);
    }
    if (waiting > 0) {
        ap_buf_puts(out, ", waiting values ");
        price_put_bytes(out, waiting, 0);
    }
    ap_buf_puts(out, d->summed_bytes != d->peak_bytes ? "; laid out " : "; ");
    price_put_bytes(out, (double)d->peak_bytes, 0);
    ap_buf_puts(out, (double)d->peak_bytes > limit ? " is too large for " : " of ");
    price_put_bytes(out, limit, 0);
    ap_buf_putc(out, '\n');
}

#define MOST_TABLES 4 /* of weights */

/* Of each run of stages whose rows are one. */
static void put_stage_weights(const struct cost_input *in,
                              const struct ap_pipeline_price *p, struct ap_buf *out)
{
    const struct ap_stages *s = &in->of.stages;
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

/* ---- the report ---- */

/* The plan of one stage: its tensors, and plans by rule beside it. */
static void put_stage(struct ap_arena *arena, const struct cost_input *in,
                      const struct priced *p, bool details, struct ap_buf *out)
{
    struct priced named_plans[AP_N_NAMED_PLANS] = {0};

    price_named_plans(arena, in, named_plans);
    put_model(in, out);
    put_plan(in, p, out);
    if (details)
        put_details(in, p, named_plans, out);
    else
        put_quickest(in, named_plans, out);
}

void price_report(struct ap_arena *arena, const struct cost_input *in,
                  const struct priced *p, bool details, struct ap_buf *out)
{
    const struct ap_pipeline_price *schedule = p->schedule;
    struct headline head;
    struct advice changes;
    struct ap_buf rest = {0};

    price_changes(arena, in, p, &changes);
    headline_of_plan(arena, in, p, &head);
    headline_put(&head, out);
    advice_put_limit(&changes, &head, out);
    if (schedule) {
        put_all_stages(in, schedule, &rest);
        if (details)
            put_selected(in, schedule, &rest);
        put_grids(&in->of.stages, &rest);
        put_spent(in, schedule, &rest);
        if (details)
            put_fullest(in, schedule, &rest);
    } else {
        put_stage(arena, in, p, details, &rest);
        put_time(in, p, &rest);
        if (details)
            put_memory(in, p, &rest);
    }
    advice_put(&changes, &head, &rest);
    headline_free(&head);
    if (schedule && details)
        put_stage_weights(in, schedule, &rest);
    price_fit_columns(&rest);
    ap_buf_put(out, rest.data, rest.len);
    ap_buf_free(&rest);
}
