/* Lines: random ones are read as they were written; what silence says. */
#include "line/line.h"

#include <stddef.h>
#include <string.h>

#include "pipeline/stage_cost.h"
#include "tap.h"

static uint64_t state = 1;
static int draw(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)(state >> 33) % n;
}

/* A line that no condition refuses. */
static struct ap_line draw_line(struct ap_arena *arena)
{
    struct ap_line line = ap_line_least;
    struct ap_degrees *d = &line.degrees;
    static const unsigned bits[] = {AP_TRAINER_PACKS,           AP_TRAINER_LOW_SUMS,
                                    AP_TRAINER_KEEPS_GATHERED,  AP_TRAINER_BROADCASTS,
                                    AP_TRAINER_KEEPS_GRADIENTS, AP_TRAINER_WAITS,
                                    AP_TRAINER_EP_OVERLAP,      AP_TRAINER_TP_OVERLAP,
                                    AP_TRAINER_WGRAD_OVERLAP,   AP_TRAINER_STOPS_EARLY};

    d->tensor = 1 + draw(3);
    d->sequence = d->tensor > 1 && draw(2);
    d->context = 1 + draw(3);
    d->exchange = d->context > 1 && draw(2) ? d->context : 1;
    d->ring = d->context > d->exchange && draw(2);
    d->expert = 1 + draw(2);
    d->expert_tensor = draw(3);
    d->data =
        draw(2) * (1 + draw(3)) * d->expert * (d->expert_tensor ? d->expert_tensor : 1);
    d->zero = draw(4);
    d->shard = d->zero && draw(2) ? 1 + draw(3) : 0;
    if (d->shard > 0 && d->data * d->context % d->shard)
        d->shard = 1;
    line.pipeline = 1 + draw(4);
    line.chunks = line.pipeline > 1 ? 1 + draw(3) : 1;
    line.schedule = line.chunks > 1 ? AP_SCHEDULE_INTERLEAVED
                    : draw(2)       ? AP_SCHEDULE_GPIPE
                                    : AP_SCHEDULE_1F1B;
    line.recompute = (enum ap_line_recompute)draw(AP_N_LINE_RECOMPUTES);
    if (line.recompute == AP_LINE_RECOMPUTE_FULL && draw(2))
        line.recompute_first = draw(3);
    else if (line.recompute == AP_LINE_RECOMPUTE_FULL)
        line.recompute_group = 2 + draw(3);
    if (line.recompute == AP_LINE_RECOMPUTE_SELECTIVE && draw(2))
        line.recompute_modules = 2 + (unsigned)draw((1 << AP_N_LINE_MODULES) - 2);
    line.offload = (unsigned)draw(4);
    line.micro_batch = 1 + draw(4);
    line.overlap = draw(2);
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
        if (draw(2) && (bits[i] != AP_TRAINER_WAITS || line.chunks == 1) &&
            (bits[i] != AP_TRAINER_EP_OVERLAP || d->expert > 1) &&
            (bits[i] != AP_TRAINER_TP_OVERLAP || d->sequence) &&
            (bits[i] != AP_TRAINER_WGRAD_OVERLAP || d->tensor > 1) &&
            (bits[i] != AP_TRAINER_STOPS_EARLY ||
             line.recompute == AP_LINE_RECOMPUTE_FULL))
            line.trainer |= bits[i];
    if (draw(2)) {
        int *layers = AP_NEW_N(arena, ap_line_stages(&line), int);
        line.n_layers = ap_line_stages(&line);
        for (int i = 0; i < line.n_layers; i++)
            layers[i] = draw(5);
        line.layers = layers;
    }
    return line;
}

/* With what silence says; a line may leave its devices open. */
static bool same(struct ap_line *a, struct ap_line *b)
{
    struct ap_degrees *x = &a->degrees, *y = &b->degrees;
    struct ap_err ignored = {0};

    for (int i = 0; i < 2; i++) {
        struct ap_line *l = i ? b : a;
        const struct ap_degrees *d = &l->degrees;
        const int64_t data =
            d->data ? d->data : d->expert * 6 * (d->zero && d->shard ? d->shard : 1);
        if (ap_line_complete(l, d->tensor * d->context * data * l->pipeline, &ignored))
            return false;
    }
    return x->tensor == y->tensor && x->data == y->data && x->context == y->context &&
           x->expert == y->expert && x->expert_tensor == y->expert_tensor &&
           x->zero == y->zero && x->shard == y->shard && x->sequence == y->sequence &&
           x->ring == y->ring && x->exchange == y->exchange &&
           a->pipeline == b->pipeline && a->chunks == b->chunks &&
           a->n_layers == b->n_layers &&
           (a->n_layers == 0 ||
            !memcmp(a->layers, b->layers, (size_t)a->n_layers * sizeof *a->layers)) &&
           a->schedule == b->schedule && a->recompute == b->recompute &&
           a->recompute_first == b->recompute_first &&
           a->recompute_group == b->recompute_group &&
           a->recompute_modules == b->recompute_modules && a->offload == b->offload &&
           a->micro_batch == b->micro_batch && a->overlap == b->overlap &&
           a->trainer == b->trainer;
}

int main(void)
{
    struct ap_arena arena = {0};
    struct ap_line line;
    struct ap_err err = {""};
    const char *first = "";
    int wrong = 0;
    const int n = tap_cases(3000);

    for (int i = 0; i < n; i++) {
        struct ap_line made = draw_line(&arena);
        const char *text = ap_line_text(&arena, &made);
        if (ap_line_read(&arena, text, &line, &err) == 0 &&
            !strcmp(text, ap_line_text(&arena, &line)) && same(&made, &line)) {
            /* a whole line, too */
            text = ap_line_text(&arena, &made);
            if (ap_line_read(&arena, text, &line, &err) == 0 &&
                !strcmp(text, ap_line_text(&arena, &line)) && same(&made, &line))
                continue;
        }
        first = wrong++ ? first : text;
    }
    CHECK(wrong == 0, "%d random lines are read as written: %d are not, %s %s", n, wrong,
          first, err.msg);

    CHECK(ap_line_read(&arena, "mbs=2,tp=4", &line, &err) == 0 &&
              !strcmp(ap_line_text(&arena, &line), "tp=4,mbs=2") &&
              line.degrees.data == 0 && line.schedule == AP_SCHEDULE_1F1B,
          "keys have one order; data parallelism takes what the others leave");
    CHECK(ap_line_read(&arena, "pp=2,vpp=2,zero=2", &line, &err) == 0 &&
              line.schedule == AP_SCHEDULE_INTERLEAVED &&
              ap_line_trainer(&line) == AP_TRAINER_SCATTERS,
          "chunks are interleaved, ZeRO-2 scatters");
    ap_arena_free(&arena);
    return tap_done();
}
