/*
 * Problem: a plan as the configuration of a trainer. Idea: what a trainer runs is a line
 * (line/line.h). A section "stages" that was made of a line says it, and the trainer's
 * row writes it (line/trainer.h); any other plan is refused with what makes one. Cost:
 * that of the plan's price, which the comment says.
 */
#include "trainer.h"

#include <string.h>

#include "pipeline/pipeline_program.h"

/* Ends the tool: the trainer runs no such plan. */
_Noreturn static void refuse(const struct ap_trainer *trainer, const char *why)
{
    ap_die(
        AP_NO_SOLUTION,
        "--to %s: %s; ap-stage --for %s (ap-plan --for %s) finds the best line that it "
        "can run",
        trainer->name, why, trainer->name, trainer->name);
}

/*
 * The line of the document's plan, with what the trainer adds by itself, and the facts
 * beside it; *as_planned: nothing was added, so that the plan's price is the line's.
 */
static struct ap_line find_line(struct ap_arena *arena, const struct ap_planned *in,
                                const struct ap_trainer *trainer,
                                struct ap_line_facts *facts, bool *as_planned)
{
    const struct ap_staged_graph of = ap_planned_of(in);
    const struct ap_stages *stages = &in->stages;
    struct ap_plan_degrees *each;
    struct ap_plan_line says;
    struct ap_err err = {0};

    if (stages->alone)
        refuse(trainer, "the plan is one of ap-shard, which is no line");
    ap_line_of_stages(arena, &of, stages, &says, &each);
    if (!says.said)
        refuse(trainer, stages->line ? ap_arena_printf(
                                           arena, "the plan is not that of its line %s",
                                           stages->line)
                                     : "the plan is free, and no line");
    ap_line_facts_find(arena, &in->graph, &in->nests, facts);
    facts->world = says.n_devices;
    if (ap_trainer_check(trainer, &says.line, facts, &err) ||
        ap_trainer_settle(trainer, facts, &says.line, &err))
        refuse(trainer, err.msg);
    const char *line = ap_line_text(arena, &says.line);
    *as_planned = strcmp(line, stages->line) == 0;
    if (!*as_planned)
        ap_warn("--to %s: by itself it runs %s, the plan is %s: no price is written "
                "(ap-stage --grid LINE --for %s has it)",
                trainer->name, line, stages->line, trainer->name);
    return says.line;
}

static void put_comment(struct ap_arena *arena, const struct ap_planned *in,
                        const struct ap_trainer *trainer, const struct ap_line *line,
                        bool as_planned, struct ap_buf *out)
{
    const struct ap_staged_graph of = ap_planned_of(in);
    struct ap_pipeline_price price;
    struct ap_err err = {0};

    if (!trainer->comment)
        return;
    ap_buf_printf(out, "%s%s for %s: ", trainer->comment, in->graph.name, trainer->title);
    ap_line_words(line, out);
    ap_buf_printf(out, "\n%s%lld devices", trainer->comment,
                  (long long)in->stages.n_devices);
    if (as_planned) {
        if (ap_pipeline_price(arena, &of, &in->stages, &price, &err))
            ap_die(AP_BAD_INPUT, "%s", err.msg);
        (void)ap_pipeline_measure(&of, &in->stages, 0, &price);
        ap_buf_printf(out, "; predicted: step %.4g s, %.4g GB a device",
                      price.result.step_sec, (double)price.peak_bytes / 1e9);
    }
    ap_buf_printf(out, "\n");
}

int trainer_rewrite(struct ap_tool *tool, struct ap_arena *arena,
                    const struct ap_doc *doc, const struct ap_trainer *trainer)
{
    struct ap_planned in = {0};
    struct ap_notes script = {.arena = arena};
    struct ap_line_facts facts;
    struct ap_buf text = {0};
    struct ap_err err = {0};
    bool as_planned;

    if (ap_doc_planned(arena, doc, NULL, NULL, &in, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    const struct ap_line line = find_line(arena, &in, trainer, &facts, &as_planned);
    put_comment(arena, &in, trainer, &line, as_planned, &text);
    trainer->write(trainer, &line, &facts, &text, &script);
    for (int i = 0; i < script.n && !tool->quiet; i++)
        ap_warn("%s: %s", trainer->title, script.note[i]);
    ap_tool_write_bytes(tool, &text);
    ap_buf_free(&text);
    return ap_tool_finish(tool, "");
}
