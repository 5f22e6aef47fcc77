/* ap-rewrite: the plan as the program that every rank runs, or as other compilers read
 * it. */
#include <string.h>

#include "hlo.h"
#include "placement.h"
#include "rewrite.h"
#include "stage_texts.h"
#include "taskgraph.h"
#include "torch.h"
#include "trainer.h"

enum { TO_PROGRAM, TO_HLO, TO_JAX, TO_TORCH, TO_TASKGRAPH, TO_TRAINER };
static struct ap_choice forms[TO_TRAINER + AP_N_TRAINERS + 1] = {
    {"program", "section \"program\": what ap-exec runs"},
    {"hlo", "HLO text of the graph, annotated with shardings"},
    {"jax", "Python module of PartitionSpecs of parameters and results"},
    {"torch", "JSON of placements for PyTorch, for DTensor and FSDP2"},
    {"taskgraph", "JSON: Rhino's task graph, and its order by a list scheduler"},
};
static const struct ap_choice dialects[] = {
    [HLO_GSPMD] = {"gspmd", "sharding attributes and \"Sharding\" calls"},
    [HLO_SHARDY] = {"shardy", "Shardy's, as frontend attributes"},
    {NULL, NULL},
};

static const struct ap_choice rankfiles[] = {
    [RANKFILE_OPENMPI] = {"openmpi", "mpirun --rankfile"},
    [RANKFILE_SLURM] = {"slurm", "SLURM_HOSTFILE of srun --distribution=arbitrary"},
    {NULL, NULL},
};

/* Members of the --stats line of a plan without stages. */
static const char *stats(struct ap_arena *arena, const struct ap_program *prog)
{
    struct ap_coll_count *coll;
    int n = ap_program_collectives(arena, prog, &coll);
    int64_t count = 0, bytes = 0;
    for (int i = 0; i < n; i++) {
        count += coll[i].count;
        bytes = ap_add64(bytes, coll[i].bytes);
    }
    return ap_arena_printf(
        arena,
        ",\"nodes\":%d,\"groups\":%d,\"ranks\":%lld,\"collectives\":%lld,"
        "\"collective_bytes\":%lld,\"peak_device_bytes\":%lld",
        prog->local.n_nodes, prog->local.n_groups,
        (long long)ap_mesh_devices(&prog->mesh), (long long)count, (long long)bytes,
        (long long)prog->peak_bytes);
}

/* And of one with stages. */
static const char *stats_of_stages(struct ap_arena *arena,
                                   const struct ap_pipeline_program *r)
{
    int64_t nodes = 0, peak = 0, messages = 0;

    for (int i = 0; i < r->n_stages; i++) {
        const struct ap_program *p = &r->stage[i].prog;
        nodes += p->local.n_nodes;
        peak = p->peak_bytes > peak ? p->peak_bytes : peak;
    }
    for (int t = 0; t < r->n_transfers; t++)
        messages += r->transfer[t].n_messages;
    return ap_arena_printf(arena,
                           ",\"nodes\":%lld,\"stages\":%d,\"ranks\":%d,"
                           "\"messages\":%lld,\"peak_device_bytes\":%lld",
                           (long long)nodes, r->n_stages, r->n_ranks, (long long)messages,
                           (long long)peak);
}

/* What PartitionSpecs leave to XLA. */
static void warn_pinned(struct ap_arena *arena, const struct ap_plan *plan,
                        const struct ap_conversions *conv)
{
    struct jax_pinned pinned;
    struct ap_buf said = {0};

    jax_count(plan, conv, &pinned);
    jax_put_pinned(arena, &pinned, &said);
    if (pinned.sums + pinned.changes)
        ap_warn("jax: %s", said.data);
    ap_buf_free(&said);
}

/* The document as another text, to standard output. */
static void write_text(struct ap_tool *tool, struct ap_arena *arena,
                       const struct ap_doc *doc, struct job *job, int form, int dialect)
{
    struct ap_err err = {0};
    struct ap_buf text = {0};
    struct hlo_lost lost;
    struct ap_conversions conv;
    const struct ap_plan *plan = &job->in.stages.stage->sharding.plan;
    if (plan->mesh.microbatch)
        ap_die_usage("--to %s: the plan has %lld microbatches, and annotations express "
                     "shardings only; plan without --microbatches",
                     forms[form].name, (long long)plan->mesh.size[0]);
    if (ap_plan_conversions(arena, plan, &job->cost, &conv, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    if (form == TO_JAX)
        jax_print(plan, &conv, &text, &lost);
    else if (hlo_print(arena, plan, &conv, (enum hlo_dialect)dialect, &text, &lost, &err))
        ap_die(AP_USAGE, "%s: %s", doc->file, err.msg);
    if (form == TO_JAX && !tool->quiet)
        warn_pinned(arena, plan, &conv);
    ap_cost_free(&job->cost);
    hlo_warn_lost(tool, forms[form].name, &lost);
    ap_tool_write_bytes(tool, &text);
    ap_buf_free(&text);
}

/* What the options say. */
struct asked {
    int form, dialect;              /* rows of the tables; dialect -1: not given */
    int64_t pack_bytes;             /* -1: not given */
    struct ap_program_form program; /* of --to program */
    struct placement_asked place;
};

/* The section of the programs, with their place; programs of the other section were of an
 * older plan. */
static int write_programs(struct ap_tool *tool, struct ap_arena *arena,
                          const struct ap_doc *doc, const struct asked *asked,
                          struct job *job)
{
    struct ap_pipeline_program r;

    rewrite_build(arena, doc, &asked->program, job, &r);
    struct ap_new_section out[] = {{.name = ap_pipeline_section(&r)},
                                   {.name = r.alone ? "pipeline" : "program"},
                                   {.name = "placement"}};
    if (asked->form == TO_TASKGRAPH)
        return taskgraph_write(tool, arena, &r);
    ap_pipeline_to_json(&r, &out[0].json);
    placement_write(&asked->place, arena, &job->in.cluster,
                    rewrite_devices(arena, job, r.n_ranks), r.n_ranks, &out[2].json);
    ap_tool_write(tool, doc, out, 3, "");
    return ap_tool_finish(tool, r.alone ? stats(arena, &r.stage[0].prog)
                                        : stats_of_stages(arena, &r));
}

static void check_options(const struct ap_tool *tool, const struct asked *all)
{
    const struct placement_asked *asked = &all->place;
    static const char *const of_rankfile[] = {"hosts", "rankfile-format",
                                              "rankfile-cores"};

    if (all->dialect >= 0 && all->form != TO_HLO)
        ap_die_usage("--dialect is for --to hlo");
    if (asked->rankfile && all->form != TO_PROGRAM)
        ap_die_usage("--rankfile is for --to program");
    if (all->form != TO_PROGRAM && (all->program.overlap || all->pack_bytes >= 0))
        ap_die_usage("--overlap and --pack-bytes are for --to program");
    if (asked->rankfile && !asked->hosts)
        ap_die_usage("--rankfile: needs --hosts");
    for (int i = 0; i < 3 && !asked->rankfile; i++)
        if (ap_tool_given(tool, of_rankfile[i]))
            ap_die_usage("--%s: needs --rankfile", of_rankfile[i]);
    if (asked->rankfile && !strcmp(asked->rankfile, "-"))
        ap_die_usage("--rankfile: expected a file, got -");
    ap_tool_check_file(tool, "rankfile", asked->rankfile);
}

/* The options, written to asked; arena. */
static const struct ap_opt *options(struct ap_arena *arena, struct asked *asked)
{
    for (int i = 0; i < AP_N_TRAINERS; i++)
        forms[TO_TRAINER + i] = (struct ap_choice){
            ap_trainers[i]->name,
            ap_arena_printf(arena, "arguments or file of %s", ap_trainers[i]->title)};
    const struct ap_opt opts[] = {
        {.name = "to",
         .kind = AP_OPT_CHOICE,
         .out = &asked->form,
         .arg = "NAME",
         .help = "what to write (default: program)",
         .choices = forms},
        {.name = "dialect",
         .kind = AP_OPT_CHOICE,
         .out = &asked->dialect,
         .arg = "NAME",
         .help = "shardings of --to hlo (default: gspmd)",
         .choices = dialects},
        {.name = "overlap",
         .kind = AP_OPT_FLAG,
         .out = &asked->program.overlap,
         .help = "start collectives early and await them late; packs gradients"},
        {.name = "pack-bytes",
         .kind = AP_OPT_INT,
         .out = &asked->pack_bytes,
         .arg = "BYTES",
         .hi = INT64_MAX,
         .help =
             "reduce gradients in buckets of about so many; 0: one by one (default: by "
             "price with --overlap, else 0)",
         .group = "more"},
        {.name = "rankfile",
         .kind = AP_OPT_STR,
         .out = &asked->place.rankfile,
         .arg = "FILE",
         .help = "also write which rank runs on which host, for the launcher"},
        {.name = "hosts",
         .kind = AP_OPT_STR,
         .out = &asked->place.hosts,
         .arg = "NAME,...",
         .help = "--rankfile: the hosts, in the order of the plan's"},
        {.name = "rankfile-format",
         .kind = AP_OPT_CHOICE,
         .out = &asked->place.format,
         .arg = "NAME",
         .help = "whose rankfile",
         .choices = rankfiles,
         .choice_stride = sizeof rankfiles[0],
         .group = "more"},
        {.name = "rankfile-cores",
         .kind = AP_OPT_INT,
         .out = &asked->place.cores,
         .arg = "N",
         .help = "cores that Open MPI binds a rank to (1)",
         .lo = 1,
         .hi = 4096,
         .group = "more"},
        {0},
    };
    return ap_arena_dup(arena, opts, sizeof opts);
}

int main(int argc, char **argv)
{
    struct asked asked = {.form = TO_PROGRAM,
                          .dialect = -1,
                          .pack_bytes = -1,
                          .program = {.split = true},
                          .place = {.cores = 1}};
    struct ap_arena arena = {0};
    struct ap_tool tool = {.name = "ap-rewrite",
                           .summary = "turn a plan into the program that every rank runs",
                           .operand = "[FILE]",
                           .opts = options(&arena, &asked)};
    struct ap_doc doc;
    struct job job = {0};

    ap_tool_start(&tool, argc, argv);
    check_options(&tool, &asked);
    if (asked.pack_bytes < 0)
        asked.pack_bytes = asked.program.overlap ? AP_BUCKET_BY_PRICE : 0;
    asked.program.pack_bytes = asked.pack_bytes;
    const int form = asked.form, dialect = asked.dialect < 0 ? HLO_GSPMD : asked.dialect;
    ap_tool_read(&tool, &arena, &doc);
    if (form == TO_TORCH)
        return torch_rewrite(&tool, &arena, &doc);
    if (form >= TO_TRAINER)
        return trainer_rewrite(&tool, &arena, &doc, ap_trainers[form - TO_TRAINER]);
    rewrite_read(&arena, &doc, &job);
    if (form != TO_PROGRAM && job.in.stages.n_offloaded > 0)
        ap_die_usage("--to %s: the plan keeps values on the host (offload), which --to "
                     "program says",
                     forms[form].name);
    if (form == TO_PROGRAM || form == TO_TASKGRAPH)
        return write_programs(&tool, &arena, &doc, &asked, &job);
    if (!job.in.stages.alone)
        return form == TO_JAX
                   ? stages_to_jax(&tool, &arena, &doc, &job)
                   : stages_to_hlo(&tool, &arena, &doc, (enum hlo_dialect)dialect, &job);
    write_text(&tool, &arena, &doc, &job, form, dialect);
    return ap_tool_finish(&tool, "");
}
