/*
 * DeepSpeed 0.19: which lines its JSON, with the script of the user, can say. Sources:
 * deepspeed/runtime/config.py, runtime/zero/config.py, runtime/pipe (module.py: stages
 * are the script's), module_inject/auto_ep_folding.py, runtime/engine.py.
 */
#include "line/trainer_impl.h"

static bool is_staged(const struct ap_trainer_case *c)
{
    return c->is.pipeline > 1;
}

static int has_zero(const struct ap_trainer_case *c, struct ap_err *err)
{
    const long long zero = c->line->degrees.zero;

    if (is_staged(c) && zero > 1)
        return ap_err_set(err,
                          "zero_optimization.stage %lld: PipelineModule (pp=%lld) has 0 "
                          "and 1",
                          zero, (long long)c->is.pipeline);
    if (c->is.tensor > 1 && c->is.expert > 1 && zero > 2)
        return ap_err_set(err,
                          "zero_optimization.stage %lld: experts beside "
                          "tensor_parallel.autotp_size %lld have 0 to 2",
                          zero, (long long)c->is.tensor);
    return 0;
}

/* MiCS, under ZeRO-3 only, and without expert parallelism. */
static int has_shards(const struct ap_trainer_case *c, struct ap_err *err)
{
    const long long zero = c->line->degrees.zero;

    if (zero == 0 || c->is.copies == 1 || (zero == 3 && c->is.expert == 1))
        return 0;
    return ap_err_set(err,
                      "shard=%lld: zero_optimization.mics_shard_size is for stage 3 "
                      "without expert_parallel; stage %lld shards over all %lld devices",
                      (long long)c->is.shard, zero,
                      (long long)(c->is.data * c->is.context));
}

static int has_tensor(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->line->degrees.sequence)
        return ap_err_set(err,
                          "sp: tensor_parallel.autotp_size %lld all-reduces whole "
                          "activations",
                          (long long)c->is.tensor);
    if (c->is.tensor > 1 && is_staged(c))
        return ap_err_set(
            err,
            "tensor_parallel.autotp_size %lld: PipelineModule (pp=%lld) has "
            "no automatic tensor parallelism",
            (long long)c->is.tensor, (long long)c->is.pipeline);
    return 0;
}

static int has_context(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->is.context == 1)
        return 0;
    return ap_err_set(err,
                      "cp=%lld: sequence_parallel_size exchanges the sequence for heads "
                      "(Ulysses), which no line says",
                      (long long)c->is.context);
}

static int64_t expert_tensor(const struct ap_line *line)
{
    return line->degrees.expert > 1 ? 1 : line->degrees.tensor;
}

static int has_expert_tensor(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t is = c->is.expert_tensor;

    if (c->facts->experts == 0 || is == expert_tensor(c->line))
        return 0;
    return ap_err_set(err,
                      "etp=%lld: expert_parallel.expert_tensor_parallel_size is 1 (under "
                      "autoep_size %lld)",
                      (long long)is, (long long)c->is.expert);
}

/* The script's PipelineModule: one stage for each set of devices, of as many layers. */
static int has_stages(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->is.chunks > 1)
        return ap_err_set(err,
                          "vpp=%lld: PipelineModule has one stage for each set of "
                          "devices",
                          (long long)c->is.chunks);
    if (is_staged(c) && c->line->schedule != AP_SCHEDULE_1F1B)
        return ap_err_set(err, "schedule %s: PipelineModule runs 1f1b",
                          ap_schedule_names[c->line->schedule]);
    for (int i = 1; i < c->line->n_layers; i++)
        if (c->line->layers[i] != c->line->layers[0])
            return ap_err_set(err,
                              "layers: stage %d has %d layers and stage 0 has %d, which "
                              "no partition_method says",
                              i, c->line->layers[i], c->line->layers[0]);
    return 0;
}

static int has_recompute(const struct ap_trainer_case *c, struct ap_err *err)
{
    const enum ap_line_recompute r = c->line->recompute;

    if (r == AP_LINE_RECOMPUTE_NONE || r == AP_LINE_RECOMPUTE_FULL)
        return 0;
    return ap_err_set(err, "recompute: layers are recomputed whole or not at all");
}

static ap_trainer_condition *const conditions[] = {
    trainer_has_heads,   trainer_has_layers, has_stages,
    trainer_has_experts, has_expert_tensor,  trainer_has_expert_grid,
    has_tensor,          has_context,        has_zero,
    has_shards,          has_recompute,      NULL};

/* Stages send between passes; gradients of 16 bits stay beside their sums; stage 3
 * gathers parameter by parameter. zero_optimization.overlap_comm asks for the overlap, of
 * which a pipeline's single reduction has no use. */
static struct ap_trainer_habits habits(const struct ap_line *line)
{
    const int64_t zero = line->degrees.zero;

    return (struct ap_trainer_habits){
        (zero < 3 ? AP_TRAINER_PACKS : 0) | (line->pipeline > 1 ? AP_TRAINER_WAITS : 0) |
            AP_TRAINER_KEEPS_GRADIENTS,
        zero == 0 || line->pipeline > 1 ? AP_OVERLAP_NEVER : AP_OVERLAP_ASKED,
        expert_tensor(line)};
}

const struct ap_trainer trainer_deepspeed = {
    .name = "deepspeed",
    .title = "DeepSpeed",
    .parallelism = {"tensor_parallel.autotp_size", NULL, "sequence_parallel_size",
                    "expert_parallel.autoep_size",
                    "expert_parallel.expert_tensor_parallel_size",
                    "train_micro_batch_size_per_gpu"},
    .conditions = conditions,
    .habits = habits};
