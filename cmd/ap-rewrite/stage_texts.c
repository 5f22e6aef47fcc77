/*
 * Problem: write a pipelined plan for another compiler: the program of each set of
 * devices, and the transfers between them. Idea: the pipeline program
 * (pipeline/pipeline_program.h) knows both; a stage's graph has the values that it reads
 * of others as parameters, those that it sends as results, and is written as a plan
 * without stages is. Modules are on the whole batch: in m messages of a transfer, each is
 * an m-th of the rows.
 */
#include "stage_texts.h"

struct texts {
    struct ap_arena *arena;
    const struct ap_planned *in;
    struct ap_pipeline_program program;
    struct hlo_lost lost;     /* of all stages */
    struct jax_pinned pinned; /* of all stages */
};

/* A stage's plan with what it passes on, and its conversions. */
static void lay_stage(const struct texts *t, int i, struct ap_plan *plan,
                      struct ap_conversions *conv)
{
    const struct ap_stage *st = &t->in->stages.stage[i];
    struct ap_graph *g = ap_arena_dup(t->arena, t->program.stage[i].graph, sizeof *g);
    struct ap_cost cost;
    struct ap_err err = {0};

    g->name = ap_arena_printf(t->arena, "%s.stage_%d", g->name, i);
    *plan = st->sharding.plan;
    plan->graph = g;
    if (ap_stage_cost(t->arena, &t->in->cluster, st, &plan->mesh, &cost, &err) ||
        ap_plan_conversions(t->arena, plan, &cost, conv, &err))
        ap_die(AP_BAD_INPUT, "/stages/stages/%d: %s", i, err.msg);
    ap_cost_free(&cost);
}

static void add_lost(struct hlo_lost *sum, const struct hlo_lost *one)
{
    sum->partial += one->partial;
    sum->strided += one->strided;
    sum->moved += one->moved;
}

/* What both forms say of a transfer. */
static void put_transfer(const struct texts *t, const struct ap_transfer *x,
                         struct ap_buf *out)
{
    const struct ap_graph *to = t->program.stage[x->to].graph;

    ap_buf_printf(out, "{\"from\": %d, \"result\": %d, \"to\": %d, \"parameter\": %d, ",
                  x->from, x->result, x->to, x->param);
    ap_buf_puts(out, "\"name\": ");
    ap_json_str(out, to->nodes[to->params[x->param]].name);
    ap_buf_puts(out, ", \"shape\": \"");
    ap_shape_print(&x->shape, out);
    ap_buf_printf(out, "\", \"messages\": %d}", x->n_messages);
}

static void put_devices(const struct ap_stage *st, struct ap_buf *out)
{
    ap_buf_puts(out, "\"devices\": [");
    for (int64_t d = 0; d < st->n_devices; d++)
        ap_buf_printf(out, "%s%lld", d ? ", " : "", (long long)st->devices[d]);
    ap_buf_puts(out, "],\n");
}

/* ---- HLO ---- */

static void put_module(struct texts *t, const struct ap_doc *doc, int i,
                       enum hlo_dialect dialect, struct ap_buf *out)
{
    struct ap_plan plan;
    struct ap_conversions conv;
    struct hlo_lost lost;
    struct ap_buf text = {0};
    struct ap_err err = {0};

    lay_stage(t, i, &plan, &conv);
    if (hlo_print(t->arena, &plan, &conv, dialect, &text, &lost, &err))
        ap_die(AP_USAGE, "%s: /stages/stages/%d: %s", doc->file, i, err.msg);
    add_lost(&t->lost, &lost);
    ap_buf_printf(out, "%s\n    {", i ? "," : "");
    put_devices(&t->in->stages.stage[i], out);
    ap_buf_puts(out, "     \"mesh\": ");
    ap_mesh_to_json(&plan.mesh, out);
    ap_buf_puts(out, ",\n     \"module\": ");
    ap_json_str(out, text.data);
    ap_buf_putc(out, '}');
    ap_buf_free(&text);
}

int stages_to_hlo(struct ap_tool *tool, struct ap_arena *arena, const struct ap_doc *doc,
                  enum hlo_dialect dialect, struct job *job)
{
    struct texts t = {.arena = arena, .in = &job->in};
    struct ap_buf out = {0};

    rewrite_build(arena, doc, &(struct ap_program_form){.split = true}, job, &t.program);
    ap_buf_printf(&out,
                  "{\"schedule\": \"%s\", \"chunks\": %d, \"microbatches\": %d,\n"
                  " \"stages\": [",
                  ap_schedule_names[t.program.schedule], t.in->stages.chunks,
                  t.program.microbatches);
    for (int i = 0; i < t.program.n_stages; i++)
        put_module(&t, doc, i, dialect, &out);
    ap_buf_puts(&out, "],\n \"transfers\": [");
    for (int x = 0; x < t.program.n_transfers; x++) {
        ap_buf_puts(&out, x ? ",\n    " : "\n    ");
        put_transfer(&t, &t.program.transfer[x], &out);
    }
    ap_buf_puts(&out, "]}\n");
    hlo_warn_lost(tool, "hlo", &t.lost);
    ap_tool_write_bytes(tool, &out);
    ap_buf_free(&out);
    return ap_tool_finish(tool, "");
}

/* ---- PartitionSpecs ---- */

static void put_specs(struct texts *t, int i, struct ap_buf *out)
{
    struct ap_plan plan;
    struct ap_conversions conv;
    struct jax_pinned own;
    struct hlo_lost lost = {0};

    lay_stage(t, i, &plan, &conv);
    jax_count(&plan, &conv, &own);
    t->pinned.count += own.count;
    t->pinned.bytes = ap_add64(t->pinned.bytes, own.bytes);
    t->pinned.sums += own.sums;
    t->pinned.sum_bytes = ap_add64(t->pinned.sum_bytes, own.sum_bytes);
    t->pinned.changes += own.changes;
    t->pinned.change_bytes = ap_add64(t->pinned.change_bytes, own.change_bytes);
    t->pinned.strided += own.strided;
    ap_buf_puts(out, "    {");
    put_devices(&t->in->stages.stage[i], out);
    jax_put_specs(&plan, true, out, &lost);
    ap_buf_puts(out, "    },\n");
    add_lost(&t->lost, &lost);
}

int stages_to_jax(struct ap_tool *tool, struct ap_arena *arena, const struct ap_doc *doc,
                  struct job *job)
{
    struct texts t = {.arena = arena, .in = &job->in};
    struct ap_buf out = {0}, stages = {0}, said = {0};

    rewrite_build(arena, doc, &(struct ap_program_form){.split = true}, job, &t.program);
    for (int i = 0; i < t.program.n_stages; i++)
        put_specs(&t, i, &stages);
    jax_put_pinned(arena, &t.pinned, &said);
    ap_buf_printf(
        &out,
        "# inside the stages %s\n"
        "from jax.sharding import PartitionSpec as P\n\n"
        "schedule = \"%s\"\nchunks = %d\nmicrobatches = %d\n\nstages = [\n%s]\n\n"
        "transfers = [\n",
        said.data, ap_schedule_names[t.program.schedule], t.in->stages.chunks,
        t.program.microbatches, stages.data);
    for (int x = 0; x < t.program.n_transfers; x++) {
        ap_buf_puts(&out, "    ");
        put_transfer(&t, &t.program.transfer[x], &out);
        ap_buf_puts(&out, ",\n");
    }
    ap_buf_puts(&out, "]\n");
    if (t.pinned.sums + t.pinned.changes && !tool->quiet)
        ap_warn("jax: inside the stages %s", said.data);
    hlo_warn_lost(tool, "jax", &t.lost);
    ap_tool_write_bytes(tool, &out);
    ap_buf_free(&out);
    ap_buf_free(&stages);
    ap_buf_free(&said);
    return ap_tool_finish(tool, "");
}
