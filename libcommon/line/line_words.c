/*
 * Problem: the line of a plan with stages, in words. Idea: each stage has the degrees of
 * its own plan (plan/degrees.h); the line has those under which most FLOPs run, and says
 * if others differ; a report's first line lists the runs of layers or stages that are
 * alike. Cost: finding the stages' degrees.
 */
#include "line/line.h"

#include <string.h>

#include "pipeline/stage_cost.h"
#include "plan/named_plan.h"

#define MOSTLY 0.995 /* of the FLOPs: what the line says is said of all */

static int64_t micro_batch_of(int64_t batch, int64_t microbatches, int64_t devices)
{
    return batch == 0 ? 0 : ap_ceil_div(ap_ceil_div(batch, microbatches), devices);
}

void ap_line_of_plan(struct ap_arena *arena, const struct ap_plan *plan,
                     const struct ap_plan_degrees *d, struct ap_plan_line *out)
{
    *out = (struct ap_plan_line){.line = ap_line_least,
                                 .batch = ap_batch_size(plan->graph),
                                 .microbatches = ap_mesh_microbatches(&plan->mesh),
                                 .sequence_length =
                                     ap_sequence_length(arena, plan->graph, plan->nests),
                                 .n_devices = ap_mesh_devices(&plan->mesh)};
    out->line.degrees = d->all.degrees;
    if (out->microbatches > 1 && plan->scatters && out->line.degrees.zero == 1)
        out->line.degrees.zero = 2;
    out->line.micro_batch =
        micro_batch_of(out->batch, out->microbatches, out->line.degrees.data);
}

/* The word for what a stage recomputes that is nearest to it. */
static enum ap_line_recompute recompute_word(enum ap_recompute recompute)
{
    static const enum ap_line_recompute nearest[] = {
        [AP_RECOMPUTE_NONE] = AP_LINE_RECOMPUTE_NONE,
        [AP_RECOMPUTE_ALL] = AP_LINE_RECOMPUTE_FULL,
        [AP_RECOMPUTE_SELECTED] = AP_LINE_RECOMPUTE_SELECTIVE};

    return nearest[recompute];
}

/* Stages whose degrees, devices and recomputation are those of stage i. */
static bool same(const struct ap_stages *s, const struct ap_plan_degrees *each, int i,
                 int k)
{
    return s->stage[i].n_devices == s->stage[k].n_devices &&
           (s->stage[i].recompute == s->stage[k].recompute || each[i].layers.n == 0 ||
            each[k].layers.n == 0) &&
           ap_degrees_equal(&each[i].all.degrees, &each[k].all.degrees);
}

/* The stage whose likes have most FLOPs. */
static int main_stage(const struct ap_stages *s, const struct ap_plan_degrees *each,
                      bool *differ)
{
    double most = -1;
    int best = 0;

    for (int i = 0; i < s->n; i++) {
        double flops = 0;
        for (int k = 0; k < s->n; k++)
            flops += same(s, each, i, k) ? each[k].flops : 0;
        if (flops > most) {
            most = flops;
            best = i;
        }
    }
    for (int i = 0; i < s->n; i++)
        *differ |= each[i].flops > 0 && !same(s, each, best, i);
    return best;
}

/* With several microbatches, a plan's stages 1 and 2 differ in when the trainer reduces
 * gradients. */
static void settle_zero(const struct ap_stages *s, struct ap_degrees *d)
{
    if (d->zero == 1 && s->trainer & AP_TRAINER_SCATTERS)
        d->zero = 2;
}

/* Whether a plan of these degrees is of that stage of ZeRO: with one microbatch 1 is 2.
 */
static bool same_zero(const struct ap_stages *s, const struct ap_degrees *said,
                      const struct ap_degrees *d)
{
    const bool one = d->data * d->context == 1;

    return one || (said->zero == d->zero && said->shard == d->shard) ||
           (s->microbatches == 1 && said->zero == 1 && d->zero == 2);
}

/* The line that the section says, if it is that of the plan, which may have been changed
 * since: some words of a line are not seen in a plan. */
static void take_said(struct ap_arena *arena, const struct ap_stages *s,
                      struct ap_plan_line *out)
{
    const struct ap_degrees found = out->line.degrees;
    struct ap_degrees same_but_zero;
    struct ap_line said;
    struct ap_err ignored = {0};

    if (!s->line || ap_line_read(arena, s->line, &said, &ignored) ||
        ap_line_complete(&said, s->n_devices, &ignored) || out->stages_differ)
        return;
    if (found.expert == 0) /* the model has none */
        said.degrees.expert = said.degrees.expert_tensor = 0;
    same_but_zero = said.degrees;
    same_but_zero.idle = found.idle;
    same_but_zero.zero = found.zero;
    same_but_zero.shard = found.shard;
    if (!ap_degrees_equal(&same_but_zero, &found) ||
        !same_zero(s, &said.degrees, &found) || said.pipeline != out->line.pipeline ||
        said.chunks != out->line.chunks || said.schedule != out->line.schedule ||
        said.micro_batch != out->line.micro_batch || said.overlap != s->overlap ||
        ap_line_trainer(&said) != s->trainer || said.offload != out->line.offload ||
        (said.recompute == AP_LINE_RECOMPUTE_NONE) !=
            (out->line.recompute == AP_LINE_RECOMPUTE_NONE))
        return;
    said.degrees.idle = found.idle;
    out->line = said;
    out->said = true;
}

/* Which stages lie on which kind of device, runs of them together. */
static void find_kinds(struct ap_arena *arena, const struct ap_cluster *c,
                       const struct ap_stages *stages, struct ap_plan_line *out)
{
    struct ap_buf text = {0};

    for (int a = 0, b; a < stages->n && c->n_kinds > 0; a = b) {
        int kind = ap_cluster_kind_of(c, stages->stage[a].devices[0]);
        for (b = a; b < stages->n; b++) {
            if (ap_cluster_kind_of(c, stages->stage[b].devices[0]) != kind)
                break;
            out->kind_devices[kind] +=
                b < out->line.pipeline ? stages->stage[b].n_devices : 0;
        }
        ap_buf_printf(&text, "%sstage%s %d", a ? ", " : "", b - a > 1 ? "s" : "", a);
        if (b - a > 1)
            ap_buf_printf(&text, "-%d", b - 1);
        ap_buf_printf(&text, " on %s", c->kind[kind].devices->device);
    }
    if (text.len > 0)
        out->kinds = ap_arena_strdup(arena, text.data);
    ap_buf_free(&text);
}

void ap_line_of_stages(struct ap_arena *arena, const struct ap_staged_graph *of,
                       const struct ap_stages *stages, struct ap_plan_line *out,
                       struct ap_plan_degrees **each)
{
    struct ap_plan_degrees *d = AP_NEW_N(arena, stages->n, struct ap_plan_degrees);
    struct ap_line *line = &out->line;

    *out = (struct ap_plan_line){.line = ap_line_least,
                                 .batch = ap_batch_size(of->graph),
                                 .microbatches = stages->microbatches,
                                 .sequence_length =
                                     ap_sequence_length(arena, of->graph, of->nests)};
    line->pipeline = stages->n / stages->chunks;
    line->chunks = stages->chunks;
    line->schedule = stages->schedule;
    for (int i = 0; i < stages->n; i++) {
        ap_degrees_find(arena, &stages->stage[i].sharding.plan, stages->microbatches,
                        &d[i]);
        settle_zero(stages, &d[i].all.degrees);
        for (int l = 0; l < d[i].layers.n; l++)
            settle_zero(stages, &d[i].layer[l].degrees);
        if (i < line->pipeline)
            out->n_devices += stages->stage[i].n_devices;
    }
    int best = main_stage(stages, d, &out->stages_differ);
    line->degrees = d[best].all.degrees;
    for (int i = 0; i < stages->n && line->degrees.expert == 0; i++)
        if (same(stages, d, best, i))
            line->degrees = d[i].all.degrees;
    line->recompute = recompute_word(stages->stage[best].recompute);
    line->micro_batch = micro_batch_of(out->batch, out->microbatches, line->degrees.data);
    line->overlap = stages->overlap;
    line->trainer = stages->trainer & ~(unsigned)AP_TRAINER_SCATTERS;
    for (int k = 0; k < stages->n_offloaded; k++)
        line->offload |= of->graph->nodes[stages->offloaded[k]].op == AP_OP_PARAMETER
                             ? AP_LINE_OFFLOAD_OPTIMIZER
                             : AP_LINE_OFFLOAD_ACTIVATIONS;
    take_said(arena, stages, out);
    find_kinds(arena, of->cluster, stages, out);
    *each = d;
}

static void put_recompute(enum ap_line_recompute recompute, struct ap_buf *out)
{
    if (recompute != AP_LINE_RECOMPUTE_NONE)
        ap_buf_printf(out, " · recompute %s",
                      recompute == AP_LINE_RECOMPUTE_FULL ? "all" : "selected");
}

static void put_offload(unsigned offload, struct ap_buf *out)
{
    static const char *const words[] = {"", "optimizer", "activations",
                                        "optimizer and activations"};

    if (offload)
        ap_buf_printf(out, " · offload %s", words[offload]);
}

static void put_pipeline(const struct ap_line *l, struct ap_buf *out)
{
    ap_buf_printf(out, "PP %lld", (long long)l->pipeline);
    if (l->chunks > 1)
        ap_buf_printf(out, " × VPP %lld", (long long)l->chunks);
    if (l->schedule > AP_SCHEDULE_INTERLEAVED && l->schedule < AP_N_TRAIN_SCHEDULES)
        ap_buf_printf(out, " (%s)", ap_schedule_names[l->schedule]);
}

/* "PP 2 × VPP 3" comes after the tensor axis, where a model is cut first. */
void ap_line_words(const struct ap_line *l, struct ap_buf *out)
{
    const struct ap_degrees *d = &l->degrees;
    struct ap_buf degrees = {0};

    ap_degrees_print(d, &degrees);
    const char *rest = degrees.data;
    if (l->pipeline > 1) {
        const char *cut = d->tensor > 1 ? strstr(rest, " · ") : NULL;
        bool alone = d->tensor * d->data * d->context * d->idle == 1;
        if (d->tensor > 1) {
            size_t len = cut ? (size_t)(cut - rest) : strlen(rest);
            ap_buf_put(out, rest, len);
            ap_buf_puts(out, " · ");
            rest = cut ? cut + strlen(" · ") : "";
        }
        put_pipeline(l, out);
        if (*rest && !alone)
            ap_buf_puts(out, " · ");
        rest = alone ? "" : rest;
    }
    ap_buf_puts(out, rest);
    if (l->micro_batch > 0)
        ap_buf_printf(out, " · micro-batch %lld", (long long)l->micro_batch);
    if (l->recompute_first > 0)
        ap_buf_printf(out, " · recompute %lld of each stage's layers",
                      (long long)l->recompute_first);
    else if (l->recompute_group > 0)
        ap_buf_printf(out, " · recompute all, %lld layers together",
                      (long long)l->recompute_group);
    else
        put_recompute(l->recompute, out);
    put_offload(l->offload, out);
    if (l->offload_first)
        ap_buf_printf(out, " of %lld of each stage's layers",
                      (long long)l->offload_first);
    ap_buf_free(&degrees);
}

/* Runs of stages that are alike. */
static void put_stages(const struct ap_plan_degrees *each, const struct ap_stages *stages,
                       struct ap_buf *out)
{
    for (int a = 0, b; a < stages->n; a = b + 1) {
        const struct ap_degrees *run = &each[a].all.degrees; /* with experts, if any */
        for (b = a; b + 1 < stages->n && same(stages, each, a, b + 1); b++)
            run = run->expert ? run : &each[b + 1].all.degrees;
        ap_buf_printf(out, "%s stage%s %d", a ? "," : ";", a == b ? "" : "s", a);
        if (b > a)
            ap_buf_printf(out, "-%d", b);
        ap_buf_putc(out, ' ');
        ap_degrees_print(run, out);
        put_recompute(recompute_word(stages->stage[a].recompute), out);
    }
}

static void put_line(const struct ap_plan_line *s, const struct ap_plan_degrees *each,
                     const struct ap_stages *stages, struct ap_buf *out)
{
    struct ap_buf layers = {0};
    bool one = !stages || stages->n == 1;

    if (one)
        ap_degrees_print_layers(each, &layers);
    if (!s->stages_differ && layers.len == 0) {
        ap_line_words(&s->line, out);
        if (one && each->agreeing < MOSTLY * each->flops)
            ap_buf_printf(out, " (%.0f %% of the FLOPs)",
                          100 * each->agreeing / each->flops);
        return;
    }
    if (!one) {
        put_pipeline(&s->line, out);
    } else {
        ap_buf_puts(out, "layers differ");
    }
    if (s->microbatches > 1)
        ap_buf_printf(out, " · %lld microbatches", (long long)s->microbatches);
    if (one) {
        put_recompute(s->line.recompute, out);
        ap_buf_printf(out, "; %s", layers.data);
    } else {
        put_stages(each, stages, out);
    }
    put_offload(s->line.offload, out);
    ap_buf_free(&layers);
}

void ap_plan_line_words(const struct ap_plan_line *s, const struct ap_plan_degrees *each,
                        const struct ap_stages *stages, struct ap_buf *out)
{
    put_line(s, each, stages, out);
    if (s->kinds)
        ap_buf_printf(out, "; %s", s->kinds);
}

static const char *text_of(struct ap_arena *arena, const struct ap_plan_line *s,
                           const struct ap_plan_degrees *each,
                           const struct ap_stages *stages)
{
    struct ap_buf line = {0};

    ap_plan_line_words(s, each, stages, &line);
    const char *text = ap_arena_strdup(arena, line.data);
    ap_buf_free(&line);
    return text;
}

const char *ap_plan_words(struct ap_arena *arena, const struct ap_plan *plan)
{
    struct ap_plan_degrees d;
    struct ap_plan_line words;

    ap_degrees_find(arena, plan, 1, &d);
    ap_line_of_plan(arena, plan, &d, &words);
    return text_of(arena, &words, &d, NULL);
}

const char *ap_stages_words(struct ap_arena *arena, const struct ap_staged_graph *of,
                            const struct ap_stages *stages)
{
    struct ap_plan_degrees *each;
    struct ap_plan_line words;

    ap_line_of_stages(arena, of, stages, &words, &each);
    return text_of(arena, &words, each, stages);
}
