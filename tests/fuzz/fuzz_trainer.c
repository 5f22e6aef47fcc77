/*
 * Any bytes as what a trainer is given, the first byte for the trainer: nothing may
 * crash, leak or exit, what is refused says why, and what is accepted and legal is
 * written so that it is read as the same line again.
 */
#include <assert.h>
#include <string.h>

#include "line/trainer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was written of a line is read as that line. */
static void write_again(struct ap_arena *arena, const struct ap_trainer *trainer,
                        const struct ap_trainer_said *said,
                        const struct ap_line_facts *facts)
{
    const struct ap_line_facts known = {
        .world = facts->world, .layers = facts->layers, .experts = facts->experts};
    struct ap_notes notes = {.arena = arena};
    struct ap_trainer_said again;
    struct ap_buf text = {0};
    struct ap_err err = {{0}};

    trainer->write(trainer, &said->line, facts, &text, &notes);
    const int rc = ap_trainer_parse(trainer, text.data, &known, &again, &notes, &err);
    assert(rc == 0);
    assert(again.line.degrees.tensor == said->line.degrees.tensor &&
           again.line.degrees.data == said->line.degrees.data &&
           again.line.pipeline == said->line.pipeline &&
           again.line.chunks == said->line.chunks);
    ap_buf_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct ap_line_facts known = {.world = 64, .layers = 32, .experts = 8};
    struct ap_arena arena = {0};
    struct ap_notes notes = {.arena = &arena};
    struct ap_trainer_said said;
    struct ap_err err = {{0}};

    if (size == 0)
        return 0;
    const struct ap_trainer *trainer = ap_trainers[data[0] % AP_N_TRAINERS];
    const char *text = ap_arena_strndup(&arena, (const char *)data + 1, size - 1);
    const int rc = ap_trainer_parse(trainer, text, &known, &said, &notes, &err);
    assert(!rc == !err.msg[0]);
    if (rc == 0) {
        struct ap_line_facts facts = said.facts;
        facts.layers = facts.layers ? facts.layers : known.layers;
        facts.experts = known.experts;
        if (ap_trainer_check(trainer, &said.line, &facts, &err) == 0)
            write_again(&arena, trainer, &said, &facts);
    }
    ap_arena_free(&arena);
    return 0;
}
