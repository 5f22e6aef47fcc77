/*
 * torchtitan 0.3.0, and main of August 2026: which lines its configuration can say.
 * Sources: torchtitan/config/configs.py, distributed/parallel_dims.py,
 * distributed/pipeline_parallel.py, models/llama3; torch/distributed/pipelining
 * (schedules.py, stage.py). Experts are split by tensor parallelism where there is no
 * expert parallelism, and whole where there is. Under a pipeline torch keeps gathered
 * weights and whole gradients to the end of the step: ZeRO-1.
 */
#include "line/trainer_impl.h"

#define TP    "--parallelism.tensor_parallel_degree"
#define PP    "--parallelism.pipeline_parallel_degree"
#define CP    "--parallelism.context_parallel_degree"
#define EP    "--parallelism.expert_parallel_degree"
#define SHARD "--parallelism.data_parallel_shard_degree"

static int has_kv_heads(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->facts->kv_heads % c->is.tensor == 0)
        return 0;
    return ap_err_set(err, TP " %lld does not divide the %lld heads of keys and values",
                      (long long)c->is.tensor, (long long)c->facts->kv_heads);
}

static int64_t expert_tensor(const struct ap_line *line)
{
    return line->degrees.expert > 1 ? 1 : line->degrees.tensor;
}

static int has_expert_tensor(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t is = c->is.expert_tensor, has = expert_tensor(c->line);

    if (c->facts->experts == 0 || is == has)
        return 0;
    return ap_err_set(
        err, "etp=%lld: under " EP " %lld each expert is split over %lld devices",
        (long long)is, (long long)c->is.expert, (long long)has);
}

/* Experts lie on the devices of tensor parallelism, then of the context, then of those
 * that shard. */
static int has_expert_mesh(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t each = c->is.tensor * (c->line->degrees.zero ? c->is.shard : 1);

    if (c->is.expert == 1 || each % c->is.expert == 0)
        return 0;
    return ap_err_set(
        err, EP " %lld does not divide the %lld devices of " SHARD " x " CP " x " TP,
        (long long)c->is.expert, (long long)each);
}

/* Replicated, or FSDP whose weights stay gathered after the forward pass, or not. */
static int has_zero(const struct ap_trainer_case *c, struct ap_err *err)
{
    const int64_t zero = c->line->degrees.zero;

    if (zero == 0 || (c->is.pipeline > 1 ? zero == 1 : zero >= 2))
        return 0;
    return ap_err_set(err,
                      c->is.pipeline > 1
                          ? "zero=%lld: under " PP " %lld gradients are summed whole, "
                            "which is zero=1"
                          : "zero=%lld: FSDP scatters gradients with each microbatch, "
                            "which is zero=2 (" PP " %lld)",
                      (long long)zero, (long long)c->is.pipeline);
}

static int has_shards(const struct ap_trainer_case *c, struct ap_err *err)
{
    const bool sharded = c->line->degrees.zero > 0;

    if (sharded ? c->is.shard % c->is.context == 0 : c->is.context == 1)
        return 0;
    return ap_err_set(err,
                      CP " %lld: weights are sharded over these devices, too (zero, "
                         "shard=%lld)",
                      (long long)c->is.context, (long long)c->is.shard);
}

static int has_untied(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->is.pipeline == 1 || !c->facts->tied)
        return 0;
    return ap_err_set(err,
                      PP " %lld: embedding and head share a weight, and lie in "
                         "different stages",
                      (long long)c->is.pipeline);
}

/* Stages are lists of modules: first and last have the embedding and the head. */
static int has_modules(const struct ap_trainer_case *c, struct ap_err *err)
{
    for (int i = 1; i + 1 < c->line->n_layers; i++)
        if (c->line->layers[i] == 0)
            return ap_err_set(err,
                              "stage %d has no module for "
                              "--parallelism.module_fqns_per_model_part",
                              i);
    return 0;
}

/* schedules.py, Schedule1F1B */
static int has_microbatches(const struct ap_trainer_case *c, struct ap_err *err)
{
    const bool gpipe = c->line->schedule == AP_SCHEDULE_GPIPE;

    if (c->is.pipeline == 1 || gpipe || c->is.microbatches >= c->is.pipeline)
        return 0;
    return ap_err_set(err, "%lld microbatches are fewer than " PP " %lld (1F1B)",
                      (long long)c->is.microbatches, (long long)c->is.pipeline);
}

static int has_schedule(const struct ap_trainer_case *c, struct ap_err *err)
{
    return c->line->schedule == AP_SCHEDULE_GPIPE ? 0 : trainer_has_schedule(c, err);
}

static int has_recompute(const struct ap_trainer_case *c, struct ap_err *err)
{
    if (c->line->recompute != AP_LINE_RECOMPUTE_SELECTIVE)
        return 0;
    return ap_err_set(err, "recompute=selective: activation_checkpoint:selective keeps "
                           "attention and every other product (recompute=operators)");
}

static int has_gathered_context(const struct ap_trainer_case *c, struct ap_err *err)
{
    return c->line->degrees.ring
               ? ap_err_set(err, "ring: under " CP " %lld keys and values are gathered",
                            (long long)c->is.context)
               : 0;
}

static ap_trainer_condition *const conditions[] = {trainer_has_heads,
                                                   has_kv_heads,
                                                   trainer_has_layers,
                                                   has_modules,
                                                   has_untied,
                                                   trainer_has_experts,
                                                   has_expert_tensor,
                                                   has_expert_mesh,
                                                   trainer_has_sequence,
                                                   has_gathered_context,
                                                   has_schedule,
                                                   has_microbatches,
                                                   trainer_has_groups,
                                                   has_zero,
                                                   has_shards,
                                                   has_recompute,
                                                   NULL};

/* A collective for all parameters of a layer, beside the passes. */
static struct ap_trainer_habits habits(const struct ap_line *line)
{
    return (struct ap_trainer_habits){
        AP_TRAINER_PACKS, line->pipeline == 1 ? AP_OVERLAP_ALWAYS : AP_OVERLAP_NEVER,
        expert_tensor(line)};
}

#define ROW(name_, title_)                                                            \
    {                                                                                 \
        .name = name_, .title = title_, .comment = "# ",                              \
        .parallelism = {TP, PP,   CP,                                                 \
                        EP, NULL, "--parallelism.pipeline_parallel_microbatch_size"}, \
        .conditions = conditions, .habits = habits                                    \
    }
const struct ap_trainer trainer_torchtitan = ROW("torchtitan", "torchtitan");
const struct ap_trainer trainer_torchtitan_main =
    ROW("torchtitan-main", "torchtitan (main)");
