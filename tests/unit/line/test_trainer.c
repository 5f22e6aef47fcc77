/*
 * Trainers: conditions, each with its message; random lines that a trainer can run are
 * written and read back. Documents named as arguments: the facts of their graphs are
 * printed. "--read TRAINER DEVICES LAYERS FILE": prints the line that the file says.
 * "--lines TRAINER N FOLDER": writes what N random lines are for the trainer.
 */
#include "line/trainer.h"

#include <string.h>

#include "base/file.h"
#include "doc/doc.h"
#include "pipeline/stage_cost.h"
#include "tap.h"

/* Llama-3 8B, Mixtral 8x7B, and GPT-2 with tied weights. */
static const struct ap_line_facts llama = {.world = 64,
                                           .batch = 512,
                                           .sequence = 8192,
                                           .layers = 32,
                                           .heads = 32,
                                           .kv_heads = 8,
                                           .compute = AP_BF16};
static const struct ap_line_facts mixtral = {.world = 64,
                                             .batch = 256,
                                             .sequence = 4096,
                                             .layers = 32,
                                             .heads = 32,
                                             .kv_heads = 8,
                                             .experts = 8,
                                             .compute = AP_BF16};
static const struct ap_line_facts gpt2 = {.world = 8,
                                          .batch = 64,
                                          .sequence = 1024,
                                          .layers = 12,
                                          .heads = 12,
                                          .kv_heads = 12,
                                          .tied = true};

static const struct {
    const char *trainer;
    const struct ap_line_facts *facts;
    const char *line;
    int64_t expert_tensor; /* 0: not said */
    const char *refused;   /* words of the message, NULL: the trainer runs it */
} cases[] = {
    {"megatron", &llama, "tp=8,sp,pp=4,zero=1,mbs=1", 0, NULL},
    {"megatron", &llama, "tp=8,sp,pp=4,vpp=2,cp=2,ring,zero=1,mbs=1", 0, NULL},
    {"megatron", &llama, "tp=3,mbs=1", 0, "63 devices, there are 64"},
    {"megatron", &llama, "mbs=16", 0, "do not divide the batch of 512"},
    {"megatron", &llama, "pp=64,mbs=1", 0, "32 layers in 64 stages"},
    {"megatron", &llama, "pp=4,layers=8:8:8:9,mbs=1", 0, "layers: 33, the model has 32"},
    {"megatron", &llama, "pp=4,layers=9:9:9:5,mbs=1", 0, NULL},
    {"megatron", &llama, "tp=64,mbs=1", 0, "64 does not divide the 32 heads"},
    {"megatron", &llama, "tp=16,mbs=1", 0, NULL}, /* pairs of devices hold a key's head */
    {"torchtitan", &llama, "tp=16,mbs=1", 0, "16 does not divide the 8 heads of keys"},
    {"megatron", &llama, "ep=2,mbs=1", 0, "the model has no experts"},
    {"megatron", &llama, "cp=64,zero=1,mbs=1", 0, NULL},
    {"megatron", &gpt2, "tp=4,cp=2,zero=1,mbs=1,schedule=gpipe", 0, NULL},
    {"megatron", &gpt2, "pp=2,mbs=1,schedule=gpipe", 0, "schedule gpipe"},
    {"megatron", &llama, "pp=8,vpp=2,mbs=16", 0,
     "interleaved-1f1b: 8 devices do not divide 4 microbatches"},
    {"megatron", &llama, "recompute=operators,mbs=1", 0, "recompute=operators"},
    {"megatron", &llama, "recompute=moe_act,mbs=1", 0, "the model has no experts"},
    {"megatron", &mixtral, "recompute=core_attn+moe_act,mbs=1", 0, NULL},
    {"torchtitan", &llama, "recompute=mlp,zero=3,mbs=1", 0, "recompute=operators"},
    {"megatron", &llama, "waits,mbs=1", 0, "waits: it does not do so"},
    {"megatron", &llama, "low-sums,overlap,mbs=1", 0, NULL},
    {"megatron", &mixtral, "tp=2,pp=2,ep=8,mbs=1", 0, "only with --sequence-parallel"},
    {"megatron", &mixtral, "tp=2,sp,pp=2,ep=8,mbs=1", 0, NULL},
    {"megatron", &mixtral, "tp=2,sp,pp=8,ep=8,mbs=1", 0, "ep=8 x etp=2 do not divide"},
    {"megatron", &mixtral, "tp=2,sp,pp=8,ep=8,mbs=1", 1, NULL}, /* over tp, too */
    {"megatron", &mixtral, "ep=16,mbs=1", 0, "16 does not divide the 8 experts"},
    {"megatron", &mixtral, "ep=8,zero=1,shard=4,mbs=1", 0, "replicas of the experts"},
    {"megatron", &mixtral, "ep=8,zero=1,shard=8,mbs=1", 0, NULL},
    {"megatron", &llama, "tp=2,sp,tp-overlap,mbs=1", 0, NULL},
    {"torchtitan-main", &llama, "tp=2,sp,tp-overlap,mbs=1", 0, NULL},
    {"torchtitan", &llama, "tp=2,sp,pp=2,zero=1,schedule=dualpipe-v,mbs=1", 0, NULL},
    {"torchtitan", &llama, "tp=2,sp,pp=2,zero=1,schedule=dualpipe-v,tp-overlap,mbs=1", 0,
     "dualpipe-v cannot split"},
    {"deepspeed", &llama, "tp=2,sp,tp-overlap,mbs=1", 0, "tp-overlap: "},
    {"megatron", &mixtral, "ep=8,ep-overlap,mbs=1", 0, NULL},
    {"megatron", &mixtral, "pp=2,vpp=2,ep=8,ep-overlap,mbs=1", 0, NULL},
    {"megatron", &mixtral, "pp=2,ep=8,ep-overlap,mbs=1", 0, "virtual stages (vpp)"},
    {"megatron", &mixtral, "ep=8,ep-overlap,recompute=full,mbs=1", 0, "granularity full"},
    {"torchtitan", &mixtral, "ep=8,ep-overlap,mbs=1", 0, "ep-overlap: it does not do so"},
    {"torchtitan", &llama, "zero=3,overlap,mbs=1", 0, NULL},
    {"torchtitan", &llama, "zero=1,mbs=1", 0, "which is zero=2"},
    {"torchtitan", &llama, "pp=4,zero=3,mbs=1", 0, "which is zero=1"},
    {"torchtitan", &llama, "pp=4,zero=1,mbs=1", 0, NULL},
    {"torchtitan", &llama, "pp=4,zero=1,mbs=16", 0, "2 microbatches are fewer than"},
    {"torchtitan", &llama, "pp=4,zero=1,mbs=16,schedule=gpipe", 0, NULL},
    {"torchtitan", &llama, "pp=4,layers=16:0:8:8,mbs=1", 0, "stage 1 has no module"},
    {"torchtitan", &gpt2, "pp=4,mbs=1", 0, "share a weight"},
    {"torchtitan", &llama, "cp=2,mbs=1", 0, "sharded over these devices, too"},
    {"torchtitan", &llama, "cp=2,ring,zero=3,mbs=1", 0, "ring, a2a: "},
    {"torchtitan", &llama, "cp=8,zero=3,shard=4,mbs=1", 0, "sharded over these"},
    {"torchtitan", &llama, "recompute=selective,mbs=1", 0, "recompute=operators"},
    {"torchtitan", &mixtral, "tp=8,sp,ep=8,mbs=1", 0, NULL},
    {"torchtitan", &mixtral, "tp=8,sp,ep=2,mbs=1", 2, "is split over 1 devices"},
    {"torchtitan", &mixtral, "tp=4,sp,ep=8,mbs=1", 0, "does not divide the 4 devices"},
    {"torchtitan-main", &mixtral, "tp=4,sp,ep=8,zero=3,shard=2,mbs=1", 0, NULL},
    {"deepspeed", &llama, "zero=3,overlap,mbs=1", 0, NULL},
    {"deepspeed", &llama, "pp=4,zero=2,mbs=1", 0, "stage 2: PipelineModule"},
    {"deepspeed", &llama, "pp=4,zero=1,mbs=1,waits", 0, NULL},
    {"deepspeed", &llama, "pp=4,vpp=2,mbs=1", 0, "vpp=2: PipelineModule"},
    {"deepspeed", &llama, "pp=4,schedule=gpipe,mbs=1", 0, "runs 1f1b"},
    {"deepspeed", &llama, "pp=2,layers=15:17,mbs=1", 0, "stage 0 has 15"},
    {"deepspeed", &llama, "pp=2,layers=17:15,mbs=1", 0, "stage 0 has 17"},
    {"deepspeed", &llama, "pp=2,tp=2,mbs=1", 0, "no automatic tensor parallelism"},
    {"deepspeed", &llama, "tp=2,sp,mbs=1", 0, "sp: "},
    {"deepspeed", &llama, "cp=2,mbs=1", 0, "(Ulysses)"},
    {"deepspeed", &llama, "cp=8,a2a=8,mbs=1", 0, NULL},
    {"deepspeed", &llama, "cp=16,a2a=16,mbs=1", 0, "8 of keys are not a multiple"},
    {"deepspeed", &llama, "tp=2,cp=2,a2a=2,mbs=1", 0, "without other parallelism"},
    {"megatron", &llama, "tp=2,cp=4,a2a=4,mbs=1", 0, NULL},
    {"megatron", &llama, "tp=2,cp=8,a2a=4,ring,mbs=1", 0, NULL},
    {"megatron", &llama, "tp=2,cp=8,a2a=4,mbs=1", 0, "passes keys and values round"},
    {"megatron", &llama, "tp=4,cp=4,a2a=4,mbs=1", 0, "8 of keys are not a multiple"},
    {"torchtitan", &llama, "cp=2,a2a=2,zero=3,mbs=1", 0, "a2a: "},
    {"deepspeed", &llama, "zero=3,shard=8,mbs=1", 0, "shards over all 64 devices"},

    {"deepspeed", &llama, "recompute=selective,mbs=1", 0, "whole or not at all"},
    {"deepspeed", &mixtral, "tp=2,ep=4,zero=3,mbs=1", 0, "have 0 to 2"},
    {"deepspeed", &mixtral, "tp=2,ep=4,mbs=1", 2, "is split over 1 devices"},
    {"deepspeed", &mixtral, "overlap,mbs=1", 0, "overlap: "},
    {"megatron", &llama, "zero=1,offload=optimizer,mbs=1", 0, NULL},
    {"megatron", &llama, "zero=2,offload=optimizer,mbs=1", 0, "not with zero=2"},
    {"megatron", &llama, "zero=1,offload=activations,mbs=1", 0, "no flag of it says so"},
    {"megatron", &llama, "zero=1,offload=activations:8,mbs=1", 0, NULL},
    {"megatron", &llama, "zero=1,offload=activations:32,mbs=1", 0, "less than the 32"},
    {"megatron", &llama, "pp=2,offload=activations:8,mbs=1", 0, "not with a pipeline"},
    {"torchtitan", &llama, "zero=3,offload=activations:8,mbs=1", 0, "no flag of it says"},
    {"torchtitan", &llama, "zero=3,offload=optimizer,mbs=1", 0, "no flag of it says so"},
    {"deepspeed", &llama, "zero=2,offload=optimizer,mbs=1", 0, NULL},
    {"deepspeed", &llama, "offload=optimizer,mbs=1", 0, "stage 1 to 3"},
};

static void test_conditions(struct ap_arena *arena)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct ap_trainer *t = ap_trainer_find(cases[i].trainer);
        struct ap_err err = {""};
        struct ap_line line;
        int rc = ap_line_read(arena, cases[i].line, &line, &err);
        line.degrees.expert_tensor = cases[i].expert_tensor;
        rc = rc ? 1 : ap_trainer_check(t, &line, cases[i].facts, &err);
        CHECK(cases[i].refused ? rc < 0 && strstr(err.msg, cases[i].refused) : rc == 0,
              "%s %s: '%s'", cases[i].trainer, cases[i].line, err.msg);
        struct ap_err again = {""};
        const bool settled = !rc &&
                             !ap_trainer_settle(t, cases[i].facts, &line, &again) &&
                             !ap_trainer_check(t, &line, cases[i].facts, &again);
        CHECK(rc || settled, "settled it is legal, too: '%s'", again.msg);
    }
}

/* ---- random lines ---- */

static uint64_t state = 1;
static int draw(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)(state >> 33) % n;
}
static int64_t power(int most)
{
    return (int64_t)1 << draw(most + 1);
}

static void draw_layer(struct ap_line_facts *f)
{
    struct ap_layer_facts *l = &f->layer;

    l->ffn = 256 * (1 + draw(64));
    l->expert_ffn = f->experts ? 64 * (1 + draw(64)) : 0;
    l->shared_ffn = f->experts && draw(2) ? 64 * (1 + draw(64)) : 0;
    l->turns = f->experts ? 1 + draw(2) * (f->layers % 2 == 0 && f->mtp == 0) : 0;
    l->n_experts = l->turns * (f->layers / (l->turns + !l->turns) - draw(4));
    if (l->n_experts == f->layers)
        l->turns = 1;
    l->head_width = l->value_width = draw(4) ? 128 : 192;
    l->gated = draw(2);
    l->query_norm = draw(2);
    l->norm = draw(2) ? AP_NORM_LAYER : AP_NORM_RMS;
    l->positions = draw(2) ? AP_POSITIONS_LEARNED : AP_POSITIONS_ROTARY;
    l->bias = (enum ap_bias)(AP_BIAS_NONE + draw(3));
}

static bool same_layer(const struct ap_layer_facts *a, const struct ap_layer_facts *b)
{
    return a->ffn == b->ffn && a->expert_ffn == b->expert_ffn &&
           a->shared_ffn == b->shared_ffn && a->n_experts == b->n_experts &&
           a->turns == b->turns && a->head_width == b->head_width &&
           a->gated == b->gated && a->query_norm == b->query_norm && a->norm == b->norm &&
           a->positions == b->positions;
}

static struct ap_line_facts draw_facts(void)
{
    static const int64_t layers[] = {12, 24, 32, 40, 61, 80},
                         heads[] = {6, 8, 12, 20, 32, 64};
    struct ap_line_facts f = ap_line_facts_none;

    f.world = power(8) * (draw(4) ? 1 : 3);
    f.sequence = draw(4) ? 1024 << draw(4) : 1000;
    f.layers = layers[draw(6)];
    f.mtp = draw(4) ? 0 : 1 + draw(2);
    f.heads = heads[draw(6)];
    f.kv_heads = f.heads % 4 ? f.heads : f.heads / power(2);
    f.experts = draw(2) ? 4 << draw(6) : 0;
    f.batch = f.world * power(4) * (draw(4) ? 1 : 3);
    f.vocab = 32000;
    f.hidden = f.heads * 128;
    f.tied = draw(2);
    f.compute = draw(4)                ? AP_BF16
                : draw(2)              ? AP_F16
                : draw(2) || f.experts ? AP_F32
                                       : AP_F8E4M3FN;
    f.master = draw(8) ? AP_F32 : AP_BF16;
    f.moments = f.master == AP_F32 && draw(4) ? AP_F32 : AP_BF16;
    f.second = f.master == AP_F32 && draw(8) == 0 ? AP_F8E4M3FN : f.moments;
    draw_layer(&f);
    return f;
}

/* Layers of the stages, not all as many. */
static void draw_layers(struct ap_arena *arena, const struct ap_line_facts *f,
                        struct ap_line *line)
{
    const int n = ap_line_stages(line), ends = draw(2);
    int *layers = AP_NEW_N(arena, n, int);

    if (draw(2) && ap_trainer_deal(arena, line, f->layers, ends, ends) == 0)
        return;
    for (int i = 0; i < f->layers; i++)
        layers[draw(n)]++;
    line->layers = layers;
    line->n_layers = n;
}

static struct ap_line draw_line(struct ap_arena *arena, const struct ap_line_facts *f)
{
    struct ap_line line = ap_line_least;
    struct ap_degrees *d = &line.degrees;

    d->tensor = draw(2) ? power(4) : draw(8) ? 1 : 3;
    d->sequence = d->tensor > 1 && draw(2);
    d->context = draw(3) ? 1 : power(2);
    d->exchange = d->context > 1 && draw(2) ? d->context >> draw(2) : 1;
    d->ring = d->context > d->exchange && draw(2);
    d->expert = f->experts && draw(3) ? power(4) : 1;
    d->expert_tensor = draw(3) ? 0 : power(2);
    d->zero = draw(4);
    d->data = 0;
    d->shard = d->zero && !draw(3) ? power(3) : 0;
    line.pipeline = draw(2) ? 1 : draw(4) ? power(4) : 1 + draw(6);
    line.chunks = line.pipeline > 1 && !draw(3) ? 1 + draw(4) : 1;
    line.schedule = line.chunks == 2 && !draw(4) ? AP_SCHEDULE_V_HALF
                    : line.chunks > 1            ? AP_SCHEDULE_INTERLEAVED
                    : !draw(4)                   ? AP_SCHEDULE_GPIPE
                    : !draw(8)                   ? AP_SCHEDULE_EAGER
                    : !draw(8)                   ? AP_SCHEDULE_ZB_H2
                    : !draw(8)                   ? AP_SCHEDULE_ZB_H1
                                                 : AP_SCHEDULE_1F1B;
    line.recompute = (enum ap_line_recompute)draw(AP_N_LINE_RECOMPUTES);
    if (line.recompute == AP_LINE_RECOMPUTE_FULL && draw(3) == 0)
        line.recompute_first = draw(3);
    else if (line.recompute == AP_LINE_RECOMPUTE_FULL && draw(3) == 0)
        line.recompute_group = 2 + draw(2);
    if (line.recompute == AP_LINE_RECOMPUTE_SELECTIVE && draw(2))
        line.recompute_modules = 2 + (unsigned)draw((1 << AP_N_LINE_MODULES) - 2);
    line.offload = draw(4) ? 0 : AP_LINE_OFFLOAD_OPTIMIZER;
    line.offload_first = draw(4) ? 0 : 1 + draw(16);
    line.offload |= line.offload_first ? AP_LINE_OFFLOAD_ACTIVATIONS : 0;
    line.micro_batch = power(3);
    line.overlap = draw(2);
    line.trainer = draw(4) ? 0 : AP_TRAINER_LOW_SUMS;
    line.trainer |= line.degrees.sequence && !draw(3) ? AP_TRAINER_TP_OVERLAP : 0;
    line.trainer |= line.degrees.expert > 1 && !draw(3) ? AP_TRAINER_EP_OVERLAP : 0;
    if (ap_line_stages(&line) > 1 && !draw(3))
        draw_layers(arena, f, &line);
    return line;
}

static bool same(const struct ap_line *a, const struct ap_line *b)
{
    const struct ap_degrees *x = &a->degrees, *y = &b->degrees;

    return x->tensor == y->tensor && x->data == y->data && x->context == y->context &&
           x->expert == y->expert && x->expert_tensor == y->expert_tensor &&
           x->zero == y->zero && x->shard == y->shard && x->sequence == y->sequence &&
           x->ring == y->ring && x->exchange == y->exchange &&
           a->pipeline == b->pipeline && a->chunks == b->chunks &&
           a->n_layers == b->n_layers &&
           (a->n_layers == 0 ||
            !memcmp(a->layers, b->layers, (size_t)a->n_layers * sizeof *a->layers)) &&
           (a->schedule == b->schedule || ap_line_stages(a) == 1) &&
           a->recompute == b->recompute && a->recompute_first == b->recompute_first &&
           a->recompute_group == b->recompute_group &&
           a->recompute_modules == b->recompute_modules && a->offload == b->offload &&
           a->offload_first == b->offload_first && a->micro_batch == b->micro_batch &&
           a->overlap == b->overlap && a->trainer == b->trainer;
}

/* Written, read, and written again. */
static bool comes_back(struct ap_arena *arena, const struct ap_trainer *t,
                       const struct ap_line *line, const struct ap_line_facts *f,
                       struct ap_err *err)
{
    const struct ap_line_facts known = {
        .world = f->world, .layers = f->layers, .experts = f->experts};
    struct ap_notes notes = {.arena = arena};
    struct ap_buf text = {0}, again = {0};
    struct ap_trainer_said said;

    t->write(t, line, f, &text, &notes);
    bool ok = !ap_trainer_parse(t, text.data, &known, &said, &notes, err) &&
              !ap_line_facts_agree(&said.facts, f, &notes, err);
    if (ok && !strcmp(t->name, "deepspeed") && said.line.pipeline == 1)
        said.line.recompute = line->recompute; /* is the script's */
    if (ok && (said.facts.compute != f->compute ||
               ((said.facts.moments != f->moments || said.facts.second != f->second) &&
                strcmp(t->name, "deepspeed") != 0)))
        ok = !ap_err_set(err, "other types");
    const bool split = line->degrees.expert_tensor > 1 && f->experts; /* has no bias */
    if (ok && !strcmp(t->name, "megatron") &&
        (!same_layer(&said.facts.layer, &f->layer) || said.facts.vocab != f->vocab ||
         said.facts.tied != f->tied ||
         (!split && said.facts.layer.bias != f->layer.bias)))
        ok = !ap_err_set(err, "another model");
    if (ok && !same(line, &said.line))
        ok = !ap_err_set(err, "%s is read as %s", ap_line_text(arena, line),
                         ap_line_text(arena, &said.line));
    if (ok) {
        t->write(t, &said.line, f, &again, &notes);
        ok = !strcmp(text.data, again.data) || !ap_err_set(err, "%s", again.data);
    }
    if (!ok)
        printf("# %s %s: %s\n# %s", t->name, ap_line_text(arena, line), err->msg,
               text.data);
    ap_buf_free(&text);
    ap_buf_free(&again);
    return ok;
}

/* Number of the condition that refuses the line; -1: the sizes or traits do. */
static int condition_of(const struct ap_trainer *t, const struct ap_line *line,
                        const struct ap_line_facts *f)
{
    struct ap_trainer_case c;
    struct ap_err err = {""};

    if (ap_trainer_case_find(t, line, f, &c, &err))
        return -1;
    for (int i = 0; t->conditions[i]; i++)
        if (t->conditions[i](&c, &err))
            return i;
    return -1;
}

/* Whether a random line is one that the trainer can run; then it is settled. */
static bool draw_legal(struct ap_arena *arena, const struct ap_trainer *t,
                       struct ap_line *line, struct ap_line_facts *f, struct ap_err *err)
{
    *f = draw_facts();
    *line = draw_line(arena, f);
    return !ap_trainer_check(t, line, f, err) && !ap_trainer_settle(t, f, line, err);
}

static void test_random(const struct ap_trainer *t, int n)
{
    struct ap_arena arena = {0};
    int legal = 0, wrong = 0, silent = 0, conditions = 0, n_conditions = 0;
    bool seen[32] = {false};

    for (int64_t tries = 0; legal < n && tries < 4000LL * n; tries++) {
        struct ap_mark mark = ap_arena_mark(&arena);
        struct ap_line_facts f;
        struct ap_line line;
        struct ap_err err = {""};
        if (draw_legal(&arena, t, &line, &f, &err)) {
            legal++;
            wrong += !comes_back(&arena, t, &line, &f, &err);
        } else {
            silent += !*err.msg;
            const int c = condition_of(t, &line, &f);
            if (c >= 0)
                seen[c] = true;
        }
        ap_arena_rewind(&arena, mark);
    }
    for (; t->conditions[n_conditions]; n_conditions++) {
        conditions += seen[n_conditions];
        if (!seen[n_conditions])
            printf("# %s: condition %d\n", t->name, n_conditions);
    }
    CHECK(legal == n && wrong == 0,
          "%s: %d random lines, %d of %d are not read as written", t->name, n, wrong,
          legal);
    CHECK(silent == 0 && conditions == n_conditions,
          "%s: each condition refuses one (%d of %d)", t->name, conditions, n_conditions);
    ap_arena_free(&arena);
}

/* N lines, each in a file DIR/NUMBER-DEVICES. */
static int write_lines(const struct ap_trainer *t, int n, const char *dir)
{
    struct ap_arena arena = {0};

    for (int i = 0; i < n;) {
        struct ap_notes notes = {.arena = &arena};
        struct ap_line_facts f;
        struct ap_line line;
        struct ap_err err = {""};
        struct ap_buf text = {0};
        char path[512];
        if (!draw_legal(&arena, t, &line, &f, &err))
            continue;
        snprintf(path, sizeof path, "%s/%d-%lld", dir, i++, (long long)f.world);
        t->write(t, &line, &f, &text, &notes);
        FILE *out = fopen(path, "w");
        if (!out || fwrite(text.data, 1, text.len, out) != text.len || fclose(out))
            return 1;
        ap_buf_free(&text);
    }
    ap_arena_free(&arena);
    return 0;
}

static void print_layer(const struct ap_layer_facts *l)
{
    static const char *const norms[] = {"", ", layer norms", ", RMS norms"};
    static const char *const positions[] = {"", ", learned positions", ", rotary"};
    static const char *const biases[] = {"", ", no bias", ", bias of q, k, v",
                                         ", biases"};

    printf("heads of %lld and %lld, inside %lld, %lld of experts, %lld beside them%s%s, "
           "%lld layers with experts%s%s%s%s%s: ",
           (long long)l->head_width, (long long)l->value_width, (long long)l->ffn,
           (long long)l->expert_ffn, (long long)l->shared_ffn, l->gated ? ", gated" : "",
           l->gelu ? ", GELU" : "", (long long)l->n_experts,
           l->turns > 1 ? " (in turns)" : "", norms[l->norm],
           l->query_norm ? ", of queries, too" : "", positions[l->positions],
           biases[l->bias]);
}

static void print_facts(const char *path)
{
    struct ap_arena arena = {0};
    struct ap_err err = {""};
    struct ap_line_facts f;
    struct ap_nests nests;
    struct ap_graph g;
    struct ap_doc doc;

    if (ap_doc_read(&arena, path, &doc, &err) || ap_doc_graph(&arena, &doc, &g, &err) ||
        ap_nests_build(&arena, &g, &nests, &err)) {
        printf("%s\n", err.msg);
        return;
    }
    ap_line_facts_find(&arena, &g, &nests, &f);
    print_layer(&f.layer);
    printf("kind %d, batch %lld x %lld, %lld layers, %lld heads, %lld of keys, %lld of "
           "%lld experts, "
           "%lld tokens x %lld%s, %s of %s, moments %s\n",
           f.kind, (long long)f.batch, (long long)f.sequence, (long long)f.layers,
           (long long)f.heads, (long long)f.kv_heads, (long long)f.experts_per_token,
           (long long)f.experts, (long long)f.vocab, (long long)f.hidden,
           f.tied ? " tied" : "", ap_dtype_name(f.compute), ap_dtype_name(f.master),
           ap_dtype_name(f.moments));
    ap_arena_free(&arena);
}

static int print_line(char **arg)
{
    struct ap_arena arena = {0};
    struct ap_notes notes = {.arena = &arena};
    const struct ap_line_facts known = {
        .world = atoll(arg[1]), .layers = atoll(arg[2]), .experts = 64};
    struct ap_err err = {""};
    struct ap_trainer_said said;
    char *text;
    size_t len;

    const struct ap_trainer *trainer = ap_trainer_find(arg[0]);
    bool ok = !ap_read_file(&arena, arg[3], false, &text, &len, &err) &&
              !ap_trainer_parse(trainer, text, &known, &said, &notes, &err);
    said.facts.experts = ok && said.line.degrees.expert > 1 ? known.experts : 0;
    ok = ok && !ap_trainer_check(trainer, &said.line, &said.facts, &err);
    for (int i = 0; i < notes.n; i++)
        printf("note: %s\n", notes.note[i]);
    if (ok)
        printf("%s of %lld, %lld devices\n", ap_line_text(&arena, &said.line),
               (long long)said.facts.batch, (long long)said.facts.world);
    else
        printf("refused: %s\n", err.msg);
    ap_arena_free(&arena);
    return 0;
}

int main(int argc, char **argv)
{
    struct ap_arena arena = {0};

    if (argc == 5 && !strcmp(argv[1], "--lines"))
        return write_lines(ap_trainer_find(argv[2]), atoi(argv[3]), argv[4]);
    if (argc == 6 && !strcmp(argv[1], "--read"))
        return print_line(argv + 2);

    for (int i = 1; i < argc; i++)
        print_facts(argv[i]);
    if (argc > 1)
        return 0;
    test_conditions(&arena);
    for (int i = 0; i < AP_N_TRAINERS; i++)
        test_random(ap_trainers[i], 2000);
    ap_arena_free(&arena);
    return tap_done();
}
