/* ap-cost: prices a plan in time, communication and memory. */
#include <string.h>

#include "calibrate/calibrate.h"
#include "page.h"
#include "tool/tool.h"

static void read_plan(struct ap_arena *arena, const struct ap_doc *doc,
                      const struct priced_on *on, struct cost_input *in,
                      struct priced *plan)
{
    struct ap_err err = {0};
    int rc = price_read(arena, doc, on, in, plan, &err);

    if (rc)
        ap_die(rc > 0 ? AP_NO_SOLUTION : AP_BAD_INPUT, "%s", err.msg);
}

/* Texts for people, one at a time; the document is not written. */
struct asked {
    bool report, details; /* details: all of the report */
    const char *why, *diff, *trace;
    const char *html, *beside;
    struct priced_on on;
};

/*
 * The price of a section "cost" that another program than this one wrote, by a model of
 * its own, for reports; "" where there is none. No document is written with another price
 * in its place.
 */
static const char *own_price(struct ap_arena *arena, const struct ap_doc *doc, bool text)
{
    const struct ap_section *section = ap_doc_find(doc, "cost");
    const struct ap_at at = {.key = "cost"};
    const char *model = NULL, *says = "";
    struct ap_err err = {0};
    double sec;
    int v = AP_COST_DEFAULT;

    json_t *o = section ? ap_doc_load(doc, section, &err) : NULL;
    if ((section && !o) || ap_opt_str(o, &at, "cost_model", &model, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    while (model && v <= AP_COST_BYTES && strcmp(model, ap_cost_variant_names[v]) != 0)
        v++;
    if (o && (!model || v > AP_COST_BYTES)) {
        model = model ? model : "hand";
        if (ap_get_num(o, &at, "step_sec", &sec, &err))
            ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
        if (!text)
            ap_die(
                AP_BAD_INPUT,
                "%s: /cost: its price is by %.80s, not by ap-cost, which would replace "
                "it: delete the section, or ask for --report",
                doc->file, model);
        says = ap_arena_printf(arena, "cost by %.80s: step %.4g s\n", model, sec);
    }
    json_decref(o);
    return says;
}

static void write_text(struct ap_arena *arena, struct ap_tool *tool,
                       const struct asked *asked, const char *own,
                       const struct cost_input *in, const struct priced *plan)
{
    struct ap_buf text = {0};
    struct ap_err err = {0};

    ap_buf_puts(&text, own);
    if (asked->report || asked->details) {
        price_report(arena, in, plan, asked->details, &text);
    } else if (asked->why) {
        if (price_why(arena, in, plan, asked->why, &text, &err))
            ap_die_usage("--why: %s", err.msg);
    } else {
        struct ap_tool second = {.path = asked->diff};
        struct ap_doc doc;
        ap_tool_read(&second, arena, &doc);
        int rc = price_diff(arena, in, plan, &doc, &text, &err);
        if (rc)
            ap_die(rc > 0 ? AP_NO_SOLUTION : AP_BAD_INPUT, "%s", err.msg);
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
    struct cost_input in = {0};
    struct priced plan = {0};

    ap_tool_read(&second, arena, &doc);
    read_plan(arena, &doc, &asked->on, &in, &plan);
    check_seconds("--beside", &in);
    ap_buf_putc(out, ',');
    page_put_plan(arena, &in, &plan, doc.file, out);
}

static void write_page(struct ap_arena *arena, const struct asked *asked,
                       const char *file, const struct cost_input *in,
                       const struct priced *plan)
{
    struct ap_buf plans = {0}, page = {0};

    check_seconds("--html", in);
    page_put_plan(arena, in, plan, file, &plans);
    if (asked->beside)
        put_beside(arena, asked, &plans);
    page_make(&plans, &page);
    ap_tool_write_file(asked->html, &page);
    ap_buf_free(&page);
    ap_buf_free(&plans);
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
                           const struct priced *plan)
{
    struct ap_new_section out[3] = {{.name = "cluster"}, {.name = "cost"}};
    struct ap_err err = {0};

    ap_cluster_to_json(&in->of.cluster, &out[0].json);
    price_to_json(arena, in, plan, &out[1].json);
    out[2].name = plan->schedule ? "stages" : "sharding";
    out[2].json = price_correct(arena, in, plan, &err);
    if (err.msg[0])
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_tool_write(tool, doc, out, out[2].json.len ? 3 : 2, "");
}

int main(int argc, char **argv)
{
    struct asked asked = {0};
    bool to_calibrate = false;
    double step_sec = 0;
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
        {"step", AP_OPT_NUM, &step_sec, "SEC",
         "with --calibrate: the operand is a plan whose step took SEC with a trainer",
         NULL, 0, 0, 0, "more"},
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
    struct ap_err err = {0};

    ap_tool_start(&tool, argc, argv);
    if (operands.n > 1 && !to_calibrate)
        ap_die_usage("more than one operand: '%s' and '%s'", operands.v[0],
                     operands.v[1]);
    if (to_calibrate && (asked.on.overlap || asked.on.f32_matmul))
        ap_die_usage("--calibrate: without --overlap and --f32-matmul");
    if (step_sec != 0 &&
        (!to_calibrate || step_sec < 0 || operands.n > 1 || asked.on.cluster_path))
        ap_die_usage("--step: seconds, with --calibrate, of one plan on its own cluster");
    if (to_calibrate)
        return calibrate(&tool, &operands, asked.on.cluster_path, step_sec);
    const bool text = check_asked(&tool, &asked);
    ap_tool_read(&tool, &arena, &doc);
    const char *own = own_price(&arena, &doc, text);
    if (asked.on.overlap && ap_doc_find(&doc, "stages"))
        ap_die_usage("--overlap is for plans of one mesh; whether stages overlap is said "
                     "by their own member overlap");
    read_plan(&arena, &doc, &asked.on, &in, &plan);
    if (price_program(&arena, &doc, &in, &plan, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    if (asked.trace)
        write_trace(&arena, asked.trace, &in, &plan);
    if (asked.html)
        write_page(&arena, &asked, doc.file, &in, &plan);
    if (text)
        write_text(&arena, &tool, &asked, own, &in, &plan);
    else
        write_document(&arena, &tool, &doc, &in, &plan);
    return ap_tool_finish(
        &tool, ap_arena_printf(&arena, ",\"step_sec\":%.9g,\"peak_device_bytes\":%lld",
                               plan.price.step_sec, (long long)plan.peak_bytes));
}
