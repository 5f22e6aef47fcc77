/*
 * Megatron-LM 0.20: which lines its arguments can say. Sources: megatron/core/
 * parallel_state.py (degrees; experts have a grid of their own), core/transformer/
 * transformer_config.py, training/arguments.py (validate_args), core/transformer/moe/
 * moe_layer.py, core/transformer/pipeline_parallel_layer_layout.py (stages of any number
 * of layers), docs of Megatron-FSDP.
 */
#include "line/trainer_impl.h"

/* Key and value heads are split, or as many devices hold the same. */
static int has_kv_heads(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t kv = c->facts->kv_heads, t = c->is.tensor;

    if (kv == 0 || kv % t == 0 || t % kv == 0)
        return 0;
    return ap_err_set(err,
                      "--tensor-model-parallel-size %lld and --num-query-groups %lld: "
                      "neither divides the other",
                      (long long)t, (long long)kv);
}

/* moe_layer.py raises an error in training. */
static int has_sequence_of_experts(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->facts->experts == 0 || c->is.tensor == 1 || c->line->degrees.sequence)
        return 0;
    return ap_err_set(err,
                      "experts under --tensor-model-parallel-size %lld train only with "
                      "--sequence-parallel (sp)",
                      (long long)c->is.tensor);
}

/* Groups of experts' replicas are cut by instances, too. */
static int has_instances(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t each = c->is.tensor * c->is.context * c->is.data;
    const int64_t replicas = each / (c->is.expert * c->is.expert_tensor);

    if (c->line->degrees.zero == 0 || c->facts->experts == 0 ||
        replicas % c->is.copies == 0)
        return 0;
    return ap_err_set(err,
                      "--num-distributed-optimizer-instances %lld does not divide the "
                      "%lld replicas of the experts",
                      (long long)c->is.copies, (long long)replicas);
}

static int has_recompute(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->line->recompute != AP_LINE_RECOMPUTE_OPERATORS)
        return 0;
    return ap_err_set(err, "recompute=operators: --recompute-granularity is full, or "
                           "selective by modules");
}

static ap_trainer_condition *const conditions[] = {has_kv_heads,
                                                   trainer_has_heads,
                                                   trainer_has_layers,
                                                   trainer_has_experts,
                                                   trainer_has_expert_grid,
                                                   trainer_has_sequence,
                                                   has_sequence_of_experts,
                                                   trainer_has_schedule,
                                                   trainer_has_groups,
                                                   has_instances,
                                                   has_recompute,
                                                   NULL};

/* Gradients lie in buckets; flags ask for them to be reduced in the last backward. */
static struct ap_trainer_habits habits(const struct ap_line *line)
{
    return (struct ap_trainer_habits){AP_TRAINER_PACKS, AP_OVERLAP_ASKED,
                                      line->degrees.tensor};
}

const struct ap_trainer trainer_megatron = {
    .name = "megatron",
    .title = "Megatron-LM",
    .comment = "# ",
    .parallelism = {"--tensor-model-parallel-size", "--pipeline-model-parallel-size",
                    "--context-parallel-size", "--expert-model-parallel-size",
                    "--expert-tensor-parallel-size", "--micro-batch-size"},
    .conditions = conditions,
    .may = AP_TRAINER_LOW_SUMS,
    .habits = habits};
