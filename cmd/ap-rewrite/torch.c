/*
 * The plan as a JSON document for python/autopar/torch/loader.py: the mesh, placements of
 * parameters, inputs and values at modules' boundaries in DTensor's words, FSDP2's axes,
 * the stages of a pipeline, and the differences from the plan.
 */
#include "torch.h"

#include <string.h>

#include "program/program.h"
#include "rewrite.h"

/* ---- placements ---- */

/* "Shard(0)", "StridedShard(0, 2)" (of 2 runs each), "Partial(sum)", "Replicate" */
static void put_placement(const struct ap_shape *shape, const struct ap_placement *p,
                          struct ap_buf *out)
{
    if (p->kind == AP_PARTIAL)
        ap_buf_printf(out, "\"Partial(%s)\"", ap_red_names[p->red]);
    else if (p->kind == AP_SPLIT && p->stride)
        ap_buf_printf(out, "\"StridedShard(%d, %lld)\"", p->dim,
                      (long long)(shape->dims[p->dim] / p->stride));
    else if (p->kind == AP_SPLIT)
        ap_buf_printf(out, "\"Shard(%d)\"", p->dim);
    else
        ap_buf_puts(out, "\"Replicate\"");
}

static void put_layout(const struct ap_mesh *mesh, const struct ap_shape *shape,
                       const char *key, const struct ap_layout *l, struct ap_buf *out)
{
    bool first = true;

    ap_buf_printf(out, ", \"%s\": [", key);
    for (int a = 0; a < mesh->n_axes; a++) {
        if (mesh->microbatch >> a & 1)
            continue;
        ap_buf_puts(out, first ? "" : ", ");
        put_placement(shape, &l->axis[a], out);
        first = false;
    }
    ap_buf_putc(out, ']');
}

static void put_dims(const char *key, const struct ap_shape *shape, struct ap_buf *out)
{
    ap_buf_printf(out, ", \"%s\": [", key);
    for (int d = 0; d < shape->rank; d++)
        ap_buf_printf(out, "%s%lld", d ? ", " : "", (long long)shape->dims[d]);
    ap_buf_putc(out, ']');
}

/* Shape of one microbatch of a node's value that lies so. */
static struct ap_shape share_of(const struct torch_part *part, int node,
                                struct ap_layout l)
{
    const struct ap_mesh *mesh = &part->plan->mesh;
    const struct ap_shape *shape = &part->plan->graph->nodes[node].shape;

    for (int a = 0; a < mesh->n_axes; a++)
        if (!(mesh->microbatch >> a & 1))
            l.axis[a] = (struct ap_placement){0};
    struct ap_shape share = ap_layout_local(part->arena, mesh, shape, &l);
    int id = part->micro ? part->sub->source[node] : -1;
    if (id < 0 || !part->micro->split[id] || part->micro->dim[id] < 0)
        return share;
    int64_t *dims = AP_NEW_N(part->arena, share.rank + 1, int64_t);
    memcpy(dims, share.dims, sizeof *dims * (size_t)share.rank);
    dims[part->micro->dim[id]] /= part->micro->n;
    share.dims = dims;
    return share;
}

/* A module's name: its scope with dots. */
static void put_module(const char *scope, struct ap_buf *out)
{
    ap_buf_putc(out, '"');
    for (; *scope; scope++)
        ap_buf_putc(out, *scope == '/' ? '.' : *scope);
    ap_buf_putc(out, '"');
}

/* ---- parts ---- */

static void put_axes(const struct ap_mesh *mesh, unsigned axes, const char *key,
                     struct ap_buf *out)
{
    bool first = true;

    ap_buf_printf(out, "\"%s\": [", key);
    for (int a = 0; a < mesh->n_axes; a++) {
        if (!(axes >> a & 1))
            continue;
        ap_buf_printf(out, "%s\"%s\"", first ? "" : ", ", mesh->name[a]);
        first = false;
    }
    ap_buf_putc(out, ']');
}

static void put_mesh(const struct torch_part *part, struct ap_buf *out)
{
    struct ap_mesh devices = part->plan->mesh;

    ap_mesh_drop_microbatches(&devices);
    ap_buf_puts(out, "\"mesh\": ");
    ap_mesh_to_json(&devices, out);
    ap_buf_puts(out, ",\n\"fsdp\": ");
    if (!part->fsdp.shard) {
        ap_buf_puts(out, "null");
        return;
    }
    ap_buf_putc(out, '{');
    put_axes(&part->plan->mesh, part->fsdp.shard, "shard", out);
    ap_buf_puts(out, ", ");
    put_axes(&part->plan->mesh, part->fsdp.replicate, "replicate", out);
    ap_buf_printf(out, ", \"reshard_after_forward\": %s}",
                  part->fsdp.reshard ? "true" : "false");
}

/* Starts an item of a list. */
static void put_item(bool *first, struct ap_buf *out)
{
    ap_buf_puts(out, *first ? "\n  " : ",\n  ");
    *first = false;
}

static bool is_cut(const struct ap_subgraph *sub, int node)
{
    for (int i = 0; sub && i < sub->n_cut_in; i++)
        if (sub->cut_in[i] == node)
            return true;
    return false;
}

/* How one microbatch of an input lies, whose whole the plan splits run by run. */
static struct ap_layout share_layout(struct torch_part *part, int node)
{
    const struct ap_node *input = &part->plan->graph->nodes[node];
    const struct ap_mesh *mesh = &part->plan->mesh;
    struct ap_layout l = ap_plan_node_layout(part->plan, node);

    for (int a = 0; a < mesh->n_axes; a++) {
        struct ap_placement *p = &l.axis[a];
        if (p->kind == AP_SPLIT && p->dim == 0 &&
            p->stride * ap_mesh_microbatches(mesh) == input->shape.dims[0])
            p->stride = 0;
    }
    torch_express(part, node, 0, &l);
    return l;
}

static void put_inputs(struct torch_part *part, struct ap_buf *out)
{
    const struct ap_graph *g = part->plan->graph;
    const struct ap_mesh *mesh = &part->plan->mesh;
    bool first = true;

    ap_buf_puts(out, ",\n\"inputs\": [");
    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *node = &g->nodes[g->params[i]];
        if (node->role != AP_ROLE_INPUT || is_cut(part->sub, g->params[i]))
            continue;
        struct ap_layout l = share_layout(part, g->params[i]);
        put_item(&first, out);
        ap_buf_puts(out, "{\"name\": ");
        ap_json_str(out, node->name);
        put_dims("shape", &node->shape, out);
        put_layout(mesh, &node->shape, "placements", &l, out);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

/* Values that a stage's forward pass takes of stages before it, as they arrive. */
static void put_receives(struct torch_part *part, struct ap_buf *out)
{
    const struct ap_graph *g = part->plan->graph;
    bool first = true;

    ap_buf_puts(out, ",\n\"receives\": [");
    for (int i = 0; i < part->sub->n_cut_in; i++) {
        int id = part->sub->cut_in[i];
        const struct ap_node *sent = &part->whole->nodes[part->sub->source[id]];
        if (sent->phase != AP_FORWARD)
            continue;
        struct ap_layout l = share_layout(part, id);
        struct ap_shape share = share_of(part, id, l);
        put_item(&first, out);
        ap_buf_puts(out, "{\"value\": ");
        ap_json_str(out, sent->name);
        put_dims("shape", &share, out);
        put_layout(&part->plan->mesh, &g->nodes[id].shape, "placements", &l, out);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

static void put_weights(const struct torch_part *part, struct ap_buf *out)
{
    const struct ap_mesh *mesh = &part->plan->mesh;
    bool first = true;

    ap_buf_puts(out, ",\n\"parameters\": [");
    for (int i = 0; i < part->n_weights; i++) {
        const struct torch_weight *w = &part->weight[i];
        const struct ap_node *node = &part->plan->graph->nodes[w->node];
        struct ap_shape local =
            ap_layout_local(part->arena, mesh, &node->shape, &w->held);
        put_item(&first, out);
        ap_buf_puts(out, "{\"name\": ");
        ap_json_str(out, node->name);
        put_dims("shape", &node->shape, out);
        put_dims("local", &local, out);
        put_layout(mesh, &node->shape, "placements", &w->held, out);
        if (!ap_layout_equal(&w->use, &w->held))
            put_layout(mesh, &node->shape, "use", &w->use, out);
        if (!ap_layout_equal(&w->own, &w->held))
            put_layout(mesh, &node->shape, "planned", &w->own, out);
        if (!ap_layout_equal(&w->state, &w->held))
            put_layout(mesh, &node->shape, "state", &w->state, out);
        put_layout(mesh, &node->shape, "gradient", &w->gradient, out);
        if (w->fsdp)
            ap_buf_puts(out, ", \"fsdp\": true");
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

/* Buffers that the forward pass changes. */
static void put_buffers(const struct torch_part *part, struct ap_buf *out)
{
    const struct ap_graph *g = part->plan->graph;
    bool first = true;

    ap_buf_puts(out, ",\n\"buffers\": [");
    for (int i = 0; i < g->n_params; i++) {
        const struct ap_node *node = &g->nodes[g->params[i]];
        if (node->role != AP_ROLE_STATE || node->phase != AP_FORWARD)
            continue;
        put_item(&first, out);
        ap_json_str(out, node->name);
    }
    ap_buf_putc(out, ']');
}

static void put_pins(const struct torch_part *part, struct ap_buf *out)
{
    const struct ap_mesh *mesh = &part->plan->mesh;
    bool first = true;

    ap_buf_puts(out, ",\n\"activations\": [");
    for (int i = 0; i < part->n_pins; i++) {
        const struct torch_pin *p = &part->pin[i];
        const struct ap_node *node = &part->plan->graph->nodes[p->node];
        struct ap_shape share =
            share_of(part, p->node, p->output ? p->computed : p->wanted);
        put_item(&first, out);
        ap_buf_puts(out, "{\"module\": ");
        put_module(p->scope, out);
        ap_buf_printf(out, ", \"%s\": 0", p->output ? "output" : "input");
        put_dims("shape", &share, out);
        if (p->output)
            put_layout(mesh, &node->shape, "computed", &p->computed, out);
        put_layout(mesh, &node->shape, "placements", &p->wanted, out);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

/* Changes of layout in the forward pass that no hook makes: DTensor's own. */
static void put_unpinned(const struct torch_part *part, struct ap_buf *out)
{
    const struct ap_graph *g = part->plan->graph;
    const struct ap_mesh *mesh = &part->plan->mesh;
    int n = 0, n_all = 0;
    bool first = true;

    ap_buf_puts(out, ",\n\"unpinned\": [");
    for (int i = 0; i < part->conv->n; i++) {
        const struct ap_conversion *c = &part->conv->conv[i];
        const struct ap_node *node = &g->nodes[c->node];
        bool sends = false;
        for (int k = 0; k < c->path.n_steps; k++)
            sends |= ap_ops[c->path.steps[k].op].class == AP_CLASS_COLLECTIVE;
        if (c->phase != AP_FORWARD || !sends || node->role == AP_ROLE_WEIGHT ||
            node->shape.rank == 0) /* sums of the loss, which DTensor makes, too */
            continue;
        n_all++;
        if (torch_is_pinned(part, c->node, &c->to))
            continue;
        n++;
        put_item(&first, out);
        ap_buf_puts(out, "{\"value\": ");
        ap_json_str(out, node->name);
        ap_buf_puts(out, ", \"module\": ");
        put_module(node->scope, out);
        put_dims("shape", &node->shape, out);
        put_layout(mesh, &node->shape, "from", &c->from, out);
        put_layout(mesh, &node->shape, "to", &c->to, out);
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
    if (n)
        ap_note(part->notes,
                "%d of the forward pass's %d collectives on activations are inside "
                "modules: DTensor makes its own",
                n, n_all);
}

static void put_collectives(const struct torch_part *part, struct ap_buf *out)
{
    struct ap_coll_count *coll;
    int n = ap_conversion_collectives(part->arena, &part->plan->mesh, part->conv, &coll);
    bool first = true;

    ap_buf_puts(out, ",\n\"collectives\": [");
    for (int i = 0; i < n; i++) {
        put_item(&first, out);
        ap_buf_printf(out, "{\"op\": \"%s\", ", ap_ops[coll[i].op].name);
        put_axes(&part->plan->mesh, coll[i].axes, "axes", out);
        ap_buf_printf(out, ", \"count\": %lld, \"bytes\": %lld}",
                      (long long)coll[i].count, (long long)coll[i].bytes);
    }
    ap_buf_putc(out, ']');
}

/* Members of a plan, or of a stage. */
static void put_part(struct torch_part *part, struct ap_buf *out)
{
    torch_find_weights(part);
    torch_find_pins(part);
    put_mesh(part, out);
    put_inputs(part, out);
    if (part->sub)
        put_receives(part, out);
    put_weights(part, out);
    put_buffers(part, out);
    put_pins(part, out);
    put_unpinned(part, out);
    put_collectives(part, out);
    torch_note_lacks(part);
}

/* ---- documents ---- */

static void put_end(const struct ap_tool *tool, const struct ap_notes *notes,
                    struct ap_buf *out)
{
    bool first = true;

    ap_buf_puts(out, ",\n\"differences\": [");
    for (int i = 0; i < notes->n; i++) {
        put_item(&first, out);
        ap_json_str(out, notes->note[i]);
    }
    ap_buf_puts(out, "]\n}\n");
    if (notes->n && !tool->quiet)
        ap_warn("PyTorch cannot express all of the plan:");
    for (int i = 0; i < notes->n && !tool->quiet; i++)
        ap_warn("  %s", notes->note[i]);
}

static void put_start(const char *model, int64_t microbatches, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"autopar_torch\": 1,\n\"model\": ");
    ap_json_str(out, model);
    ap_buf_printf(out, ",\n\"microbatches\": %lld,\n", (long long)microbatches);
}

static void put_alone(struct ap_arena *arena, const struct ap_doc *doc, struct job *job,
                      struct ap_notes *notes, struct ap_buf *out)
{
    const struct ap_plan *plan = &job->in.stages.stage->sharding.plan;
    struct ap_conversions conv;
    struct ap_err err = {0};

    if (ap_plan_conversions(arena, plan, &job->cost, &conv, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    struct torch_part part = {
        .arena = arena, .plan = plan, .cost = &job->cost, .conv = &conv, .notes = notes};
    put_part(&part, out);
    ap_cost_free(&job->cost);
}

static void put_stage(struct ap_arena *arena, const struct ap_planned *in,
                      const struct ap_stage_microbatch *micro, int i, const char *start,
                      struct ap_notes *notes, struct ap_buf *out)
{
    static const char *const recompute[] = {"none", "all", "selected"};
    const struct ap_stage *st = &in->stages.stage[i];
    struct ap_conversions conv;
    struct ap_cost cost;
    struct ap_err err = {0};

    if (ap_stage_cost(arena, &in->cluster, st, &st->sharding.plan.mesh, &cost, &err) ||
        ap_plan_conversions(arena, &st->sharding.plan, &cost, &conv, &err))
        ap_die(AP_BAD_INPUT, "/stages/stages/%d: %s", i, err.msg);
    ap_buf_printf(out, "%s\n{\"begins\": ", i ? "," : "");
    put_module(start, out);
    ap_buf_puts(out, ", \"devices\": [");
    for (int64_t d = 0; d < st->n_devices; d++)
        ap_buf_printf(out, "%s%lld", d ? ", " : "", (long long)st->devices[d]);
    ap_buf_printf(out, "], \"recompute\": \"%s\",\n", recompute[st->recompute]);
    struct torch_part part = {.arena = arena,
                              .plan = &st->sharding.plan,
                              .cost = &cost,
                              .conv = &conv,
                              .notes = notes,
                              .whole = &in->graph,
                              .sub = &st->sub,
                              .micro = micro};
    int first = notes->n;
    if (st->recompute == AP_RECOMPUTE_SELECTED)
        ap_note(notes, "recomputes %d values: PyTorch keeps them", st->n_recomputed);
    put_part(&part, out);
    ap_cost_free(&cost);
    for (int k = first; k < notes->n; k++)
        notes->note[k] = ap_arena_printf(arena, "stage %d: %s", i, notes->note[k]);
    ap_buf_putc(out, '}');
}

static int check_devices(const struct ap_stages *stages, struct ap_err *err)
{
    const struct ap_stage *first = &stages->stage[0];

    for (int i = 1; i < stages->n; i++) {
        const struct ap_stage *st = &stages->stage[i];
        if (st->n_devices != first->n_devices)
            return ap_err_set(err,
                              "stage %d has %lld devices and stage 0 %lld, and PyTorch's "
                              "stages have equal numbers: ap-stage --submeshes "
                              "%lldx%lld",
                              i, (long long)st->n_devices, (long long)first->n_devices,
                              (long long)first->hosts,
                              (long long)first->devices_per_host);
    }
    return 0;
}

static void put_stages(struct ap_arena *arena, const struct ap_planned *in,
                       struct ap_notes *notes, struct ap_buf *out)
{
    const struct ap_stages *stages = &in->stages;
    struct ap_err err = {0};

    if (stages->schedule == AP_SCHEDULE_INFERENCE)
        ap_die_usage("--to torch: the schedule is inference, and the loader trains");
    if (stages->schedule != AP_SCHEDULE_GPIPE && stages->schedule != AP_SCHEDULE_1F1B &&
        stages->schedule != AP_SCHEDULE_INTERLEAVED)
        ap_die_usage("--to torch: the loader has no schedule %s",
                     ap_schedule_names[stages->schedule]);
    struct ap_stage_microbatch micro;
    if (ap_stage_microbatch_axis(arena, &in->graph, &in->nests, stages->microbatches,
                                 &micro, &err))
        ap_die(AP_BAD_INPUT, "/stages/microbatches: %s", err.msg);
    const int *stage_of = ap_stages_of_nodes(arena, stages, &in->graph, &in->blocks);
    const char **start;
    if (check_devices(stages, &err) ||
        torch_stage_starts(arena, &in->graph, stage_of, stages->n, notes, &start, &err))
        ap_die_usage("--to torch: %s", err.msg);
    ap_buf_printf(out, "\"schedule\": \"%s\",\n\"chunks\": %d,\n\"stages\": [",
                  ap_schedule_names[stages->schedule], stages->chunks);
    for (int i = 0; i < stages->n; i++)
        put_stage(arena, in, &micro, i, start[i], notes, out);
    ap_buf_putc(out, ']');
}

int torch_rewrite(struct ap_tool *tool, struct ap_arena *arena, const struct ap_doc *doc)
{
    struct ap_notes notes = {.arena = arena};
    struct job job = {0};
    struct ap_buf out = {0};
    struct ap_err err = {0};

    rewrite_read(arena, doc, &job);
    if (job.in.stages.n_offloaded > 0)
        ap_die_usage(
            "--to torch: the plan keeps values on the host (offload), the loader "
            "does not");
    if (torch_check_names(&job.in.graph, &err))
        ap_die_usage("--to torch: %s", err.msg);
    put_start(job.in.graph.name, job.in.stages.microbatches, &out);
    if (job.in.stages.alone)
        put_alone(arena, doc, &job, &notes, &out);
    else
        put_stages(arena, &job.in, &notes, &out);
    put_end(tool, &notes, &out);
    ap_tool_write_bytes(tool, &out);
    ap_buf_free(&out);
    return ap_tool_finish(tool, "");
}
