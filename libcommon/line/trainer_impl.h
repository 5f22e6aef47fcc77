/* Private to the table of trainers: its rows, and conditions that several share. */
#ifndef AP_LINE_TRAINER_IMPL_H
#define AP_LINE_TRAINER_IMPL_H

#include "line/trainer.h"
#include "pipeline/stage_cost.h"

extern const struct ap_trainer trainer_megatron, trainer_torchtitan,
    trainer_torchtitan_main, trainer_deepspeed;

/* Product of the sizes of dimensions. */
int64_t trainer_product(const struct ap_shape *s, const struct ap_ints *dims);
/* Fills facts->layer but for the widths of heads, which are there, as all else is.
 * origin: ap_weight_origins. */
void trainer_find_layers(struct ap_arena *arena, const struct ap_graph *g,
                         const uint8_t *from, const int *origin,
                         const struct ap_layers *layers, struct ap_line_facts *facts);

/* Places in ap_trainer.parallelism. */
enum trainer_degree { TRAINER_TP, TRAINER_PP, TRAINER_CP, TRAINER_EP };
/* Flag and value, in text. */
const char *trainer_said(const struct ap_trainer_case *c, enum trainer_degree which,
                         char *text, size_t size);

/* Whether contractions read 8 bits; whether gradients have 16. */
bool trainer_is_fp8(const struct ap_line_facts *f);
bool trainer_is_low(const struct ap_line_facts *f);
/* Whether the optimizer has f32 weights, and moments of 16 or 8 bits. */
bool trainer_has_low_moments(const struct ap_line_facts *f);
/* Devices that split each expert, of trainers that split experts one way or the other. */
int64_t trainer_expert_tensor(const struct ap_line *line);
/* A flag with its value, as a line of a bash array. */
void trainer_put_flag(struct ap_buf *out, const char *name, int64_t value);
/* The list of layers of the line (arena), which has n stages. */
int *trainer_new_layers(struct ap_arena *arena, struct ap_line *line, int n);
/* What a stage of n has of so many units: the first ones have one of what is left. */
int64_t trainer_share(int64_t units, int64_t n, int64_t stage);

/* Megatron-LM's name of a type: "bf16". */
const char *trainer_moments_word(enum ap_dtype dtype);
/* See ap_trainer.read. */
int trainer_megatron_read(const struct ap_trainer *own, const char *text,
                          const struct ap_line_facts *known, struct ap_trainer_said *said,
                          struct ap_notes *notes, struct ap_err *err);

ap_trainer_condition trainer_has_heads, trainer_has_sequence, trainer_has_schedule,
    trainer_has_single_layers, trainer_has_exchange, trainer_has_expert_tensor,
    trainer_has_f32_states;

#endif
