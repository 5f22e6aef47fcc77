/*
 * Problem: a plan as the configuration of a trainer, which knows less: one use per device
 * axis, the same in all layers, stages of whole layers. Idea: the degrees under which
 * most of the plan's FLOPs run (plan/degrees.h) are fitted to the trainer
 * (trainer_fit.c); the plan of these degrees is built on the same devices and priced as
 * ap-cost prices plans, and different layouts are counted.
 */
#include "trainer.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "plan/named_plan.h"
#include "rewrite.h"

#define MOST_NAMED 3 /* names of tensors in a message; the rest is a count */

/* What was read, and what becomes of it. */
struct fitted {
    const struct ap_trainer *trainer;
    struct ap_line_facts facts;
    struct ap_plan_line planned;
    struct trainer_plan plan;
    struct ap_notes notes;
    struct trainer_price price, planned_price;
};

_Noreturn static void refuse(const struct fitted *f, const struct ap_err *err)
{
    ap_die(AP_NO_SOLUTION, "--to %s: no plan of that kind is near this one: %s",
           f->trainer->name, err->msg);
}

/* The line as the trainer runs it, and the facts of the plan. */
static int settle(struct fitted *f, struct ap_line *line, struct ap_err *err)
{
    f->facts.world = f->plan.s.n_devices;
    f->facts.batch = f->plan.s.batch;
    return ap_trainer_settle(f->trainer, &f->facts, line, err);
}

static bool same_price(const struct fitted *f)
{
    return fabs(f->price.sec - f->planned_price.sec) <= 5e-5 * f->planned_price.sec &&
           f->price.peak_bytes == f->planned_price.peak_bytes;
}

/* A plan that no longer fits. */
static void note_memory(struct fitted *f, int64_t device_bytes)
{
    if (f->price.peak_bytes > device_bytes && f->planned_price.peak_bytes <= device_bytes)
        ap_note(&f->notes,
                "it does not fit the %s of a device; ap-plan --for %s finds the best "
                "line that does",
                ap_size_text(f->notes.arena, device_bytes), f->trainer->name);
}

static void note_share(struct ap_notes *notes, double flops, double agreeing)
{
    if (agreeing < 0.9995 * flops)
        ap_note(notes, "%.1f %% of the plan's FLOPs split their operators otherwise",
                100 * (1 - agreeing / flops));
}

/* What the plan does beside its degrees. */
static void note_mixture(struct ap_notes *notes, const struct ap_plan_degrees *d)
{
    struct ap_buf layers = {0};

    ap_degrees_print_layers(d, &layers);
    if (layers.len > 0)
        ap_note(notes, "layers differ in the plan: %.400s", layers.data);
    ap_buf_free(&layers);
    note_share(notes, d->flops, d->agreeing);
}

/* ---- one plan ---- */

static int price(struct ap_arena *arena, struct job *job, const struct ap_plan *plan,
                 struct trainer_price *out, struct ap_err *err)
{
    struct ap_conversions conv;
    struct ap_program prog;

    if (ap_plan_check_choices(plan, &job->cost, err) ||
        ap_program_make(arena, plan, &(struct ap_program_form){.cost = &job->cost}, &conv,
                        &prog, err))
        return -1;
    out->sec = ap_plan_price(plan, &job->cost, &conv).step_sec;
    out->peak_bytes = prog.peak_bytes;
    return 0;
}

/*
 * Whether a parameter lies differently: in bytes of a device, or on an axis that splits
 * weights. Along which dimension something is sharded between steps does not matter.
 */
static bool lies_differently(const struct ap_plan *a, const struct ap_plan *b,
                             const struct ap_axis_uses *u, int node, struct ap_buf *out)
{
    struct ap_layout x = ap_plan_node_layout(a, node), y = ap_plan_node_layout(b, node);
    const struct ap_shape *shape = &a->graph->nodes[node].shape;
    bool differ = ap_layout_local_bytes(&a->mesh, shape, &x) !=
                  ap_layout_local_bytes(&b->mesh, shape, &y);

    for (int i = 0; i < a->mesh.n_axes; i++)
        differ |= u->use[i] == AP_USE_TENSOR &&
                  ap_placement_word(&x.axis[i]) != ap_placement_word(&y.axis[i]);
    if (!differ || !out)
        return differ;
    ap_buf_printf(out, "%s%s ", out->len ? ", " : "", a->graph->nodes[node].name);
    ap_layout_print(&a->mesh, &x, out);
    ap_buf_puts(out, " planned, now ");
    ap_layout_print(&b->mesh, &y, out);
    return true;
}

/* Weights, states and inputs that lie differently, contractions that split otherwise. */
static void note_differences(struct ap_notes *notes, const struct ap_plan *planned,
                             const struct ap_plan *now, const struct ap_axis_uses *u)
{
    static const struct {
        enum ap_role role;
        const char *name;
    } kinds[] = {{AP_ROLE_WEIGHT, "weights"},
                 {AP_ROLE_STATE, "states"},
                 {AP_ROLE_INPUT, "inputs"}};
    const struct ap_graph *g = planned->graph;

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct ap_buf names = {0};
        int all = 0, n = 0;
        for (int i = 0; i < g->n_params; i++) {
            if (g->nodes[g->params[i]].role != kinds[k].role)
                continue;
            all++;
            n += lies_differently(planned, now, u, g->params[i],
                                  n < MOST_NAMED ? &names : NULL);
        }
        if (n)
            ap_note(notes, "%d of %d %s lie differently: %.300s%s", n, all, kinds[k].name,
                    names.data, n > MOST_NAMED ? ", ..." : "");
        ap_buf_free(&names);
    }
    int all = 0, n = 0;
    for (int i = 0; i < planned->nests->n; i++) {
        if (!planned->nests->nest[i].heavy)
            continue;
        all++;
        n += memcmp(planned->choice[i].axis, now->choice[i].axis,
                    sizeof *now->choice[i].axis * (size_t)planned->mesh.n_axes) != 0;
    }
    if (n)
        ap_note(notes, "%d of %d contractions are split otherwise", n, all);
}

/* The plan of degrees, and its price. */
static int build(struct ap_arena *arena, struct job *job, const struct ap_axis_uses *u,
                 struct ap_plan *now, struct trainer_price *out, struct ap_err *err)
{
    const struct ap_plan *plan = &job->in.stages.stage->sharding.plan;

    *now = (struct ap_plan){.graph = plan->graph,
                            .nests = plan->nests,
                            .mesh = plan->mesh,
                            .microbatch_choice = plan->microbatch_choice};
    if (ap_degrees_plan(arena, u, now, err))
        return -1;
    return price(arena, job, now, out, err);
}

static void fit_plan(struct ap_arena *arena, const struct ap_doc *doc, struct fitted *f)
{
    struct job job = {0};
    struct ap_plan_degrees d;
    struct ap_err err = {0};
    struct ap_plan now;

    rewrite_read(arena, doc, &job);
    const struct ap_plan *plan = &job.in.stages.stage->sharding.plan;
    if (job.cost.variant != AP_COST_DEFAULT)
        ap_die_usage("--to %s: cost model %s is not in seconds", f->trainer->name,
                     ap_cost_variant_names[job.cost.variant]);
    ap_degrees_find(arena, plan, 1, &d);
    ap_line_of_plan(arena, plan, &d, &f->planned);
    ap_line_facts_find(arena, plan->graph, plan->nests, &f->facts);
    f->plan = (struct trainer_plan){.arena = arena,
                                    .model = job.in.graph.name,
                                    .s = f->planned,
                                    .uses = d.all,
                                    .n_layers = d.layers.n};
    if (plan->whole && d.all.degrees.zero == 1 && f->planned.microbatches == 1)
        ap_note(&f->notes, "gradients are reduce-scattered; the plan all-reduces them");
    if (trainer_fit(f->trainer, &f->facts, &f->plan, &f->notes, &err))
        refuse(f, &err);
    if (price(arena, &job, plan, &f->planned_price, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    if (build(arena, &job, &f->plan.uses, &now, &f->price, &err))
        refuse(f, &err);
    int n = f->notes.n;
    note_differences(&f->notes, plan, &now, &f->plan.uses);
    if (f->notes.n > n || !same_price(f))
        note_mixture(&f->notes, &d);
    note_memory(f, job.in.cluster.memory_bytes);
    ap_cost_free(&job.cost);
}

/* ---- stages ---- */

static bool same_stage(const struct ap_stages *stages, const struct ap_plan_degrees *each,
                       int a, int b)
{
    return ap_degrees_equal(&each[a].all.degrees, &each[b].all.degrees) &&
           stages->stage[a].recompute == stages->stage[b].recompute;
}

/* FLOPs that are split otherwise than most of their stage. */
static void note_mixed_stages(struct fitted *f, int n, const struct ap_plan_degrees *each)
{
    double flops = 0, agreeing = 0;

    for (int i = 0; i < n; i++) {
        flops += each[i].flops;
        agreeing += each[i].agreeing;
    }
    note_share(&f->notes, flops, agreeing);
}

static void note_stages(struct fitted *f, const struct ap_stages *stages,
                        const struct ap_plan_degrees *each)
{
    for (int a = 0, b; a < stages->n; a = b + 1) {
        struct ap_line own = f->planned.line;
        struct ap_buf text = {0};

        for (b = a; b + 1 < stages->n && same_stage(stages, each, a, b + 1);)
            b++;
        own.degrees = each[a].all.degrees;
        own.recompute = ap_line_recompute_of(stages->stage[a].recompute);
        own.pipeline = 1;
        own.micro_batch = 0;
        ap_line_words(&own, &text);
        if (a == b)
            ap_note(&f->notes, "in the plan stage %d is %.200s", a, text.data);
        else
            ap_note(&f->notes, "in the plan stages %d-%d are %.200s", a, b, text.data);
        ap_buf_free(&text);
    }
}

/* The largest divisor of n that is at most most. */
static int64_t divisor(int64_t n, int64_t most)
{
    int64_t d = most < n ? most : n;
    while (n % d)
        d--;
    return d;
}

/* The divisor of n nearest to x, at most most; the lower of two. */
static int64_t nearest_divisor(int64_t n, int64_t x, int64_t most)
{
    int64_t best = 1;

    for (int64_t d = 1; d <= most && d <= n; d++)
        if (n % d == 0 && llabs(d - x) < llabs(best - x))
            best = d;
    return best;
}

/* All sets of devices are of one size: another number of stages where it does not divide
 * the devices. */
static void fit_devices(struct fitted *f, const struct ap_stages *stages)
{
    struct trainer_plan *p = &f->plan;
    struct ap_line *l = &p->s.line;
    struct ap_degrees *d = &l->degrees;
    bool equal = true;

    for (int i = 1; i < stages->n; i++)
        equal &= stages->stage[i].n_devices == stages->stage[0].n_devices;
    if (equal)
        return;
    if (p->s.n_devices % l->pipeline) {
        l->pipeline = nearest_divisor(p->s.n_devices, l->pipeline, p->n_layers);
        l->chunks = 1;
        if (l->schedule == AP_SCHEDULE_INTERLEAVED)
            l->schedule = AP_SCHEDULE_1F1B;
        trainer_even_layers(f->notes.arena, p);
    }
    int64_t each = p->s.n_devices / l->pipeline;
    ap_note(&f->notes,
            "stages have different numbers of devices: %lld set%s of %lld instead",
            (long long)l->pipeline, l->pipeline == 1 ? "" : "s", (long long)each);
    d->tensor = divisor(each, d->tensor);
    d->context = divisor(each / d->tensor, d->context);
    d->data = each / d->tensor / d->context;
    d->idle = 1;
    d->shard = d->zero ? d->data * d->context : 1;
    d->expert = d->expert > 1 ? divisor(each, d->expert) : d->expert;
    d->expert_tensor = d->expert_tensor > 1 ? divisor(each / d->expert, d->expert_tensor)
                                            : d->expert_tensor;
}

/* Stages may differ in what they recompute, a trainer's do not: takes what most stages
 * do, or recomputes all layers, whichever comes nearer to the plan's memory. */
static void fit_recompute(struct ap_arena *arena, const struct trainer_model *model,
                          struct fitted *f)
{
    struct trainer_plan all = f->plan;
    struct trainer_price price;
    struct ap_err ignored = {0};
    double planned = (double)f->planned_price.peak_bytes;

    all.s.line.recompute = AP_LINE_RECOMPUTE_FULL;
    if (trainer_check(f->trainer, &f->facts, &all, &ignored) ||
        trainer_price_stages(arena, model, &all, &price, &ignored) ||
        fabs((double)price.peak_bytes - planned) >=
            fabs((double)f->price.peak_bytes - planned))
        return;
    ap_note(&f->notes,
            "all layers are recomputed, which comes nearer to the plan's memory");
    f->plan = all;
    f->price = price;
}

static void fit_stages(struct ap_arena *arena, const struct ap_doc *doc, struct fitted *f)
{
    struct ap_planned in = {0};
    struct ap_plan_degrees *each;
    struct ap_layers layers;
    struct ap_err err = {0};
    bool recompute = false;

    if (ap_doc_planned(arena, doc, NULL, NULL, &in, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    const struct ap_staged_graph of = ap_planned_of(&in);
    const struct trainer_model model = {&of, &layers, &in.stages};
    ap_line_of_stages(arena, &of, &in.stages, &f->planned, &each);
    ap_layers_find(arena, &in.graph, &in.nests, &layers);
    ap_line_facts_find(arena, &in.graph, &in.nests, &f->facts);
    f->plan = (struct trainer_plan){
        .arena = arena, .model = in.graph.name, .s = f->planned, .n_layers = layers.n};
    if (trainer_layers_by_stage(arena, &model, &f->notes, &f->plan.s.line, &err))
        ap_die_usage("--to %s: %s", f->trainer->name, err.msg);
    if (f->planned.stages_differ)
        note_stages(f, &in.stages, each);
    if (f->planned.line.recompute == AP_LINE_RECOMPUTE_SELECTIVE && !f->planned.said)
        ap_note(&f->notes,
                "operators that the plan recomputes are not chosen one by one");
    fit_devices(f, &in.stages);
    if (trainer_fit(f->trainer, &f->facts, &f->plan, &f->notes, &err))
        refuse(f, &err);
    if (trainer_price(arena, &of, &in.stages, &f->planned_price, &err))
        rewrite_refuse(doc, AP_BAD_INPUT, &err);
    f->price = f->planned_price;
    const char *line = ap_line_text(arena, &f->planned.line);
    if (settle(f, &f->plan.s.line, &err))
        refuse(f, &err);
    if (f->planned.said && !strcmp(ap_line_text(arena, &f->plan.s.line), line))
        return; /* the document's plan is that of its line */
    if (trainer_price_stages(arena, &model, &f->plan, &f->price, &err))
        refuse(f, &err);
    for (int i = 0; i < in.stages.n; i++)
        recompute |= in.stages.stage[i].recompute != AP_RECOMPUTE_NONE;
    if (recompute && f->plan.s.line.recompute != AP_LINE_RECOMPUTE_FULL)
        fit_recompute(arena, &model, f);
    if (!same_price(f))
        note_mixed_stages(f, in.stages.n, each);
    note_memory(f, in.cluster.memory_bytes);
}

/* ---- what is said ---- */

static void put_sec(struct ap_buf *out, double sec)
{
    bool micro = sec < 1e-3, milli = sec < 1;
    ap_buf_printf(out, "%.4g %s",
                  sec * (micro   ? 1e6
                         : milli ? 1e3
                                 : 1),
                  micro   ? "us"
                  : milli ? "ms"
                          : "s");
}

static void put_price(struct ap_arena *arena, const struct fitted *f, struct ap_buf *out)
{
    double more = f->price.sec / f->planned_price.sec - 1;

    ap_buf_puts(out, "predicted: step ");
    put_sec(out, f->price.sec);
    ap_buf_printf(out, ", %s a device", ap_size_text(arena, f->price.peak_bytes));
    if (same_price(f))
        return;
    ap_buf_puts(out, "; of the plan: step ");
    put_sec(out, f->planned_price.sec);
    ap_buf_printf(out, " (%+.1f %%), %s", 100 * more,
                  ap_size_text(arena, f->planned_price.peak_bytes));
}

static void put_comment(const struct fitted *f, const struct ap_buf *price,
                        struct ap_buf *out)
{
    const char *mark = f->trainer->comment;

    if (!mark)
        return;
    ap_buf_printf(out, "%s%s for %s: ", mark, f->plan.model, f->trainer->title);
    ap_line_words(&f->plan.s.line, out);
    ap_buf_printf(out, "\n%s%lld devices; %s\n", mark, (long long)f->plan.s.n_devices,
                  price->data);
    for (int i = 0; i < f->notes.n; i++)
        ap_buf_printf(out, "%s%s%s\n", mark, i ? "  " : "nearest to the plan:\n#   ",
                      f->notes.note[i]);
}

/* notes: what the user's script must say. */
static void put_flags(struct fitted *f, struct ap_buf *out, struct ap_notes *notes)
{
    struct ap_line line = f->plan.s.line;
    struct ap_err err = {0};

    if (settle(f, &line, &err))
        refuse(f, &err);
    f->trainer->write(f->trainer, &line, &f->facts, out, notes);
}

int trainer_rewrite(struct ap_tool *tool, struct ap_arena *arena,
                    const struct ap_doc *doc, const struct ap_trainer *trainer)
{
    struct fitted f = {.trainer = trainer, .notes = {.arena = arena}};
    struct ap_notes script = {.arena = arena};
    struct ap_buf text = {0}, words = {0}, cost = {0};

    if (ap_doc_find(doc, "stages"))
        fit_stages(arena, doc, &f);
    else
        fit_plan(arena, doc, &f);
    put_price(arena, &f, &cost);
    put_comment(&f, &cost, &text);
    put_flags(&f, &text, &script);
    if (f.notes.n && !tool->quiet) {
        ap_line_words(&f.plan.s.line, &words);
        ap_warn("%s cannot express the plan; nearest: %s; %s", trainer->title, words.data,
                cost.data);
        for (int i = 0; i < f.notes.n; i++)
            ap_warn("  %s", f.notes.note[i]);
    }
    for (int i = 0; i < script.n && !tool->quiet; i++)
        ap_warn("%s: %s", trainer->title, script.note[i]);
    ap_tool_write_bytes(tool, &text);
    ap_buf_free(&text);
    ap_buf_free(&words);
    ap_buf_free(&cost);
    return ap_tool_finish(tool, "");
}
