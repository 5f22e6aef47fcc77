/* Private to the table of trainers: its rows, and conditions that several share. */
#ifndef AP_LINE_TRAINER_IMPL_H
#define AP_LINE_TRAINER_IMPL_H

#include "line/trainer.h"
#include "pipeline/stage_cost.h"

extern const struct ap_trainer trainer_megatron, trainer_torchtitan,
    trainer_torchtitan_main, trainer_deepspeed;

/* Places in ap_trainer.parallelism. */
enum trainer_degree {
    TRAINER_TP,
    TRAINER_PP,
    TRAINER_CP,
    TRAINER_EP,
    TRAINER_ETP,
    TRAINER_MBS
};
/* Flag and value, in text. */
const char *trainer_said(const struct ap_trainer_case *c, enum trainer_degree which,
                         char *text, size_t size);

ap_trainer_condition trainer_has_layers, trainer_has_heads, trainer_has_experts,
    trainer_has_expert_grid, trainer_has_sequence, trainer_has_schedule,
    trainer_has_groups;

#endif
