/* ap-cost: say what a plan costs in time, communication and memory. */
#include <math.h>
#include <string.h>

#include "calibrate/calibrate.h"
#include "page.h"
#include "tool/tool.h"

/* Of a document whose rest is still to come. */
struct known {
    struct ap_arena *arena;
    struct ap_graph graph;
    struct ap_nests nests; /* none: all has come at once */
};

static void read_graph(struct ap_arena *arena, const struct ap_doc *doc,
                       struct ap_graph *g, struct ap_nests *nests)
{
    struct ap_err err = {0};

    if (ap_doc_graph(arena, doc, g, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_group(arena, g); /* whatever the document says of groups */
    if (ap_nests_build(arena, g, nests, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
}

static void know_graph(void *ctx, const struct ap_doc *doc, bool more)
{
    struct known *known = ctx;

    if (more)
        read_graph(known->arena, doc, &known->graph, &known->nests);
}

static void take_known(const struct known *known, struct ap_graph *g,
                       struct ap_nests *nests)
{
    *g = known->graph;
    *nests = known->nests;
    nests->graph = g;
}

/* How to price: the cluster, and what the options make of it. */
struct priced_on {
    const char *cluster_path;         /* NULL: the document's */
    const struct ap_cluster *cluster; /* this one, in place of that; NULL: none */
    int overlap, f32_matmul;          /* rows of ap_overlap_modes, ap_f32_matmul_modes */
};

/* in: as for pipe_read. */
static void read_input(struct ap_arena *arena, const struct ap_doc *doc,
                       const struct priced_on *on, struct cost_input *in)
{
    struct ap_err err = {0};
    const struct ap_section *section = ap_doc_find(doc, "sharding");
    int variant = AP_COST_DEFAULT;

    if (!in->nests.nest)
        read_graph(arena, doc, &in->graph, &in->nests);
    if (section) {
        struct ap_at top = {.key = "sharding"};
        json_t *json = ap_doc_load(doc, section, &err);
        if (!json || ap_sharding_from_json(arena, json, &top, &in->graph, &in->nests,
                                           &in->sharding, &err))
            ap_die(AP_BAD_INPUT, "%s%s%s", json ? doc->file : "", json ? ": " : "",
                   err.msg);
        json_decref(json);
        while (strcmp(ap_cost_variant_names[variant], in->sharding.cost_model) != 0)
            variant++;
    } else {
        ap_plan_single(arena, &in->graph, &in->nests, &in->sharding.plan);
        in->sharding.algorithm = "one device";
    }
    const struct ap_mesh *mesh = &in->sharding.plan.mesh;
    if (on->cluster)
        in->cluster = *on->cluster;
    else if (ap_cluster_get(arena, doc, on->cluster_path, ap_mesh_devices(mesh),
                            &in->cluster, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_tool_one_kind(&in->cluster);
    ap_tool_set_overlap(&in->cluster, on->overlap);
    ap_tool_set_f32_matmul(&in->cluster, on->f32_matmul);
    if (ap_cost_init(arena, &in->cost, (enum ap_cost_variant)variant, &in->cluster, mesh,
                     &err) ||
        ap_cost_init(arena, &in->byte_count, AP_COST_BYTES, &in->cluster, mesh, &err))
        ap_die(AP_NO_SOLUTION, "%s", err.msg);
    in->cost.alpa = in->sharding.alpa;
    if (in->cost.alpa.space)
        ap_plan_results_lie(arena, &in->graph);
}

/*
 * A section whose objective is not what its plan costs here (edited by hand, or another
 * cluster) gets the right one, and no bound: what was proven, if anything, was of another
 * question. Empty when the section is right.
 */
static struct ap_buf correct_sharding(struct ap_arena *arena, struct cost_input *in,
                                      double sec)
{
    struct ap_sharding *s = &in->sharding;
    struct ap_conversions conv;
    struct ap_err err = {0};
    struct ap_buf json = {0};

    if (!s->stopped || fabs(s->objective_sec - sec) <= 1e-9 * sec)
        return json;
    ap_warn("/sharding: objective_sec %.9g is not what the plan costs, %.9g: corrected, "
            "and its bound dropped",
            s->objective_sec, sec);
    s->objective_sec = sec;
    s->lower_bound_sec = 0;
    s->stopped = "given";
    if (ap_plan_conversions(arena, &s->plan, &in->cost, &conv, &err))
        ap_die(AP_BAD_INPUT, "/sharding: %s", err.msg);
    ap_sharding_to_json(s, &conv, &json);
    return json;
}

static void price_named_plans(struct ap_arena *arena, const struct cost_input *in,
                              struct priced *out)
{
    for (int row = 0; row < AP_N_NAMED_PLANS; row++) {
        struct ap_plan plan = {.graph = &in->graph,
                               .nests = &in->nests,
                               .mesh = in->cost.mesh,
                               .microbatch_choice = in->sharding.plan.microbatch_choice,
                               .recompute_heavy = in->sharding.plan.recompute_heavy};
        struct ap_err err = {0};
        out[row].name = ap_named_plans[row].name;
        if (ap_named_plan_make(arena, row, &plan, NULL, &err) ||
            price_plan(arena, in, &plan, &out[row], &err))
            out[row].why_not = ap_arena_strdup(arena, err.msg);
    }
}

static void price_input(struct ap_arena *arena, const struct cost_input *in,
                        const char *file, struct priced *plan)
{
    struct ap_err err = {0};

    plan->name = in->sharding.algorithm;
    if (price_plan(arena, in, &in->sharding.plan, plan, &err))
        ap_die(AP_BAD_INPUT, "%s: /sharding: %s", file, err.msg);
}

/* The document's plan, by its program where it has one of one mesh. Returns the step of
 * the plan itself. */
static double price_document(struct ap_arena *arena, const struct ap_doc *doc,
                             const struct cost_input *in, struct priced *plan)
{
    const struct ap_section *section = ap_doc_find(doc, "program");
    const struct ap_at at = {.key = "program"};
    struct ap_program prog;
    struct ap_err err = {0};

    price_input(arena, in, doc->file, plan);
    const double sec = plan->price.step_sec;
    if (!section)
        return sec;
    json_t *json = ap_doc_load(doc, section, &err);
    if (!json || ap_program_from_json(arena, json, &at, &prog, &err))
        ap_die(AP_BAD_INPUT, "%s%s%s", json ? doc->file : "", json ? ": " : "", err.msg);
    json_decref(json);
    if (ap_program_per_rank(&prog) > 1) {
        ap_warn(
            "/program: its ranks play %d devices each; the price is that of the plan, "
            "with every device for itself",
            ap_program_per_rank(&prog));
        return sec;
    }
    price_packed(arena, in, &prog, plan);
    price_kernels(arena, in, &prog, plan);
    return sec;
}

/* Texts for people, one at a time; the document is not written. */
struct asked {
    bool report, details; /* details: all of the report */
    const char *why, *diff, *trace;
    const char *html, *beside;
    struct priced_on on;
};

static void write_text(struct ap_arena *arena, struct ap_tool *tool,
                       const struct asked *asked, const struct cost_input *in,
                       const struct priced *plan)
{
    struct ap_buf text = {0};
    struct ap_err err = {0};

    if (asked->report || asked->details) {
        struct priced named_plans[AP_N_NAMED_PLANS] = {0};
        price_named_plans(arena, in, named_plans);
        price_report(arena, in, plan, named_plans, asked->details, &text);
    } else if (asked->why) {
        if (price_why(arena, in, plan, asked->why, &text, &err))
            ap_die_usage("--why: %s", err.msg);
    } else {
        struct ap_tool second = {.path = asked->diff};
        struct ap_doc doc;
        struct cost_input other_in = {0};
        struct priced other = {0};
        ap_tool_read(&second, arena, &doc);
        read_input(arena, &doc, &(struct priced_on){.cluster = &in->cluster}, &other_in);
        price_input(arena, &other_in, doc.file, &other);
        if (price_diff(arena, in, plan, &other_in, &other, &text, &err))
            ap_die(AP_BAD_INPUT, "%s: %s", doc.file, err.msg);
    }
    ap_tool_write_bytes(tool, &text);
    ap_buf_free(&text);
}

static void check_seconds(const char *option, const struct cost_input *in)
{
    if (in->cost.variant != AP_COST_DEFAULT)
        ap_die_usage("%s: the plan's cost model %s is not in seconds", option,
                     ap_cost_variant_names[in->cost.variant]);
}

static void write_trace(struct ap_arena *arena, const char *path,
                        const struct cost_input *in, const struct priced *plan)
{
    struct ap_buf text = {0};

    check_seconds("--trace", in);
    price_trace(arena, in, plan, &text);
    ap_tool_write_file(path, &text);
    ap_buf_free(&text);
}

/* Another document's plan as one of the page's, for its cluster, or the one at path. */
static void put_beside(struct ap_arena *arena, const struct asked *asked,
                       struct ap_buf *out)
{
    struct ap_tool second = {.path = asked->beside};
    struct ap_doc doc;
    struct ap_err err = {0};

    ap_tool_read(&second, arena, &doc);
    ap_buf_putc(out, ',');
    if (ap_doc_find(&doc, "stages")) {
        struct pipe_input in = {.f32_matmul = asked->on.f32_matmul};
        struct ap_pipeline_price p;
        int rc = pipe_read(arena, &doc, asked->on.cluster_path, NULL, &in, &p, &err);
        if (rc)
            ap_die(rc > 0 ? AP_NO_SOLUTION : AP_BAD_INPUT, "%s", err.msg);
        page_put_stages(arena, &in, &p, doc.file, out);
        return;
    }
    struct cost_input in = {0};
    struct priced plan = {0}, named_plans[AP_N_NAMED_PLANS] = {0};
    read_input(arena, &doc, &asked->on, &in);
    price_input(arena, &in, doc.file, &plan);
    price_named_plans(arena, &in, named_plans);
    check_seconds("--beside", &in);
    page_put_plan(arena, &in, &plan, named_plans, AP_N_NAMED_PLANS, doc.file, out);
}

/* plans: the document's, which is freed. */
static void write_page(struct ap_arena *arena, const struct asked *asked,
                       struct ap_buf *plans)
{
    struct ap_buf page = {0};

    if (asked->beside)
        put_beside(arena, asked, plans);
    page_make(plans, &page);
    ap_tool_write_file(asked->html, &page);
    ap_buf_free(&page);
    ap_buf_free(plans);
}

static void write_plan_page(struct ap_arena *arena, const struct asked *asked,
                            const char *file, const struct cost_input *in,
                            const struct priced *plan)
{
    struct priced named_plans[AP_N_NAMED_PLANS] = {0};
    struct ap_buf plans = {0};

    check_seconds("--html", in);
    price_named_plans(arena, in, named_plans);
    page_put_plan(arena, in, plan, named_plans, AP_N_NAMED_PLANS, file, &plans);
    write_page(arena, asked, &plans);
}

/* A document with stages. */
static int cost_pipeline(struct ap_arena *arena, struct ap_tool *tool,
                         const struct ap_doc *doc, const struct known *known,
                         const struct asked *asked)
{
    struct pipe_input in = {.f32_matmul = asked->on.f32_matmul};
    struct ap_pipeline_price p;
    struct ap_err err = {0};
    struct ap_buf text = {0};

    if (asked->on.overlap)
        ap_die_usage("--overlap is for plans of one mesh; whether stages overlap is said "
                     "by their own member overlap");
    take_known(known, &in.graph, &in.nests);
    int rc = pipe_read(arena, doc, asked->on.cluster_path, NULL, &in, &p, &err);
    if (rc)
        ap_die(rc > 0 ? AP_NO_SOLUTION : AP_BAD_INPUT, "%s", err.msg);
    if (asked->trace) {
        pipe_trace(arena, &in, &p, &text);
        ap_tool_write_file(asked->trace, &text);
        ap_buf_free(&text);
    }
    if (asked->html) {
        page_put_stages(arena, &in, &p, doc->file, &text);
        write_page(arena, asked, &text);
        text = (struct ap_buf){0};
    }
    if (asked->report || asked->details) {
        pipe_report(arena, &in, &p, asked->details, &text);
    } else if (asked->why) {
        if (pipe_why(arena, &in, &p, asked->why, &text, &err))
            ap_die_usage("--why: %s", err.msg);
    } else if (asked->diff) {
        struct ap_tool second = {.path = asked->diff};
        struct ap_doc other;
        ap_tool_read(&second, arena, &other);
        if (pipe_diff(arena, &in, &p, &other, &text, &err))
            ap_die(AP_BAD_INPUT, "%s", err.msg);
    } else {
        struct ap_new_section out[3] = {
            {.name = "cluster"}, {.name = "cost"}, {.name = "stages"}};
        ap_cluster_to_json(&in.cluster, &out[0].json);
        pipe_to_json(arena, &in, &p, &out[1].json);
        out[2].json = pipe_correct(arena, &in, &p, &err);
        if (err.msg[0])
            ap_die(AP_BAD_INPUT, "%s", err.msg);
        ap_tool_write(tool, doc, out, out[2].json.len ? 3 : 2, "");
    }
    if (text.len)
        ap_tool_write_bytes(tool, &text);
    ap_buf_free(&text);
    return ap_tool_finish(
        tool, ap_arena_printf(arena, ",\"step_sec\":%.9g,\"peak_device_bytes\":%lld",
                              p.result.step_sec, (long long)p.peak_bytes));
}

/* Refuses what does not go together; whether a text is printed and no document. */
static bool check_asked(const struct ap_tool *tool, const struct asked *asked)
{
    int n_texts =
        (asked->report || asked->details) + (asked->why != NULL) + (asked->diff != NULL);

    ap_tool_check_file(tool, "trace", asked->trace);
    ap_tool_check_file(tool, "html", asked->html);
    if (asked->beside && !asked->html)
        ap_die_usage("--beside: only with --html");
    if (n_texts > 1)
        ap_die_usage("only one of --report or --details, --why and --diff");
    return n_texts > 0;
}

static void write_document(struct ap_arena *arena, struct ap_tool *tool,
                           const struct ap_doc *doc, struct cost_input *in,
                           const struct priced *plan, double planned_sec)
{
    struct ap_new_section out[3] = {{.name = "cluster"}, {.name = "cost"}};

    ap_cluster_to_json(&in->cluster, &out[0].json);
    price_to_json(arena, in, plan, &out[1].json);
    out[2].name = "sharding";
    out[2].json = correct_sharding(arena, in, planned_sec);
    ap_tool_write(tool, doc, out, out[2].json.len ? 3 : 2, "");
}

int main(int argc, char **argv)
{
    struct asked asked = {0};
    bool to_calibrate = false;
    struct ap_list operands = {0};
    const struct ap_opt opts[] = {
        {"beside", AP_OPT_STR, &asked.beside, "OTHER",
         "with --html: show another plan beside this one", NULL, 0, 0, 0, "more"},
        {"calibrate", AP_OPT_FLAG, &to_calibrate, NULL,
         "write the cluster whose times the operands measured: profiles of ap-exec, "
         "outputs of nccl-tests",
         NULL, 0, 0, 0, NULL},
        {"cluster", AP_OPT_CLUSTER, &asked.on.cluster_path, "FILE",
         "file, or a name of --cluster help (default: the document's, else A100s)", NULL,
         0, 0, 0, NULL},
        {"details", AP_OPT_FLAG, &asked.details, NULL,
         "print the report with tensors, collectives, memory and all named plans", NULL,
         0, 0, 0, NULL},
        {"diff", AP_OPT_STR, &asked.diff, "OTHER",
         "explain the difference in price to another plan", NULL, 0, 0, 0, NULL},
        {"f32-matmul", AP_OPT_CHOICE, &asked.on.f32_matmul, "TYPE",
         "precision of f32 contractions", ap_f32_matmul_modes,
         sizeof *ap_f32_matmul_modes, 0, 0, "more"},
        {"html", AP_OPT_STR, &asked.html, "FILE",
         "also write the plan as a page for a browser", NULL, 0, 0, 0, NULL},
        {"overlap", AP_OPT_CHOICE, &asked.on.overlap, "WHEN",
         "whether a step's collectives run beside its operators", ap_overlap_modes,
         sizeof *ap_overlap_modes, 0, 0, NULL},
        {"report", AP_OPT_FLAG, &asked.report, NULL,
         "print a summary for people, not the document", NULL, 0, 0, 0, NULL},
        {"trace", AP_OPT_STR, &asked.trace, "FILE",
         "also write the step's timeline as Perfetto JSON", NULL, 0, 0, 0, NULL},
        {"why", AP_OPT_STR, &asked.why, "NODE",
         "print a node's other strategies and their cost", NULL, 0, 0, 0, NULL},
        {0},
    };
    struct ap_tool tool = {.name = "ap-cost",
                           .summary = "price a plan: step time, communication, memory",
                           .operand = "[FILE]...",
                           .operands = &operands,
                           .opts = opts};
    struct ap_arena arena = {0};
    struct ap_doc doc;
    struct cost_input in = {0};
    struct priced plan = {0};
    struct known known = {.arena = &arena};

    ap_tool_start(&tool, argc, argv);
    if (operands.n > 1 && !to_calibrate)
        ap_die_usage("more than one operand: '%s' and '%s'", operands.v[0],
                     operands.v[1]);
    if (to_calibrate && (asked.on.overlap || asked.on.f32_matmul))
        ap_die_usage("--calibrate: without --overlap and --f32-matmul");
    if (to_calibrate)
        return calibrate(&tool, &operands, asked.on.cluster_path);
    const bool text = check_asked(&tool, &asked);
    ap_tool_stream(
        &tool, &arena, &doc,
        &(struct ap_stream){.graph = know_graph, .ctx = &known, .keeps_graph = !text});
    if (ap_doc_find(&doc, "stages"))
        return cost_pipeline(&arena, &tool, &doc, &known, &asked);
    take_known(&known, &in.graph, &in.nests);
    read_input(&arena, &doc, &asked.on, &in);
    const double planned_sec = price_document(&arena, &doc, &in, &plan);
    if (asked.trace)
        write_trace(&arena, asked.trace, &in, &plan);
    if (asked.html)
        write_plan_page(&arena, &asked, doc.file, &in, &plan);
    if (text)
        write_text(&arena, &tool, &asked, &in, &plan);
    else
        write_document(&arena, &tool, &doc, &in, &plan, planned_sec);
    return ap_tool_finish(
        &tool, ap_arena_printf(&arena, ",\"step_sec\":%.9g,\"peak_device_bytes\":%lld",
                               plan.price.step_sec, (long long)plan.peak_bytes));
}
