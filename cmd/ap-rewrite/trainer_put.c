/*
 * Degrees as the flags and files of trainers. Megatron-LM: arguments of pretrain_*.py
 * (megatron/training/arguments.py, Megatron Core 0.16). torchtitan: arguments of its
 * ConfigManager (0.3.0: "--section.key value", a subcommand for activation checkpoints).
 * DeepSpeed: its JSON (0.19). Flags of Megatron and torchtitan are written as a bash
 * array, one per line, quoted where a shell would read them otherwise.
 */
#include "trainer.h"

/* Even stages need no list of layers. */
static bool even(const struct trainer_plan *p)
{
    const struct ap_line *l = &p->s.line;

    for (int i = 1; i < l->n_layers; i++)
        if (l->layers[i] != l->layers[0])
            return false;
    return true;
}

static bool is_staged(const struct trainer_plan *p)
{
    return ap_line_stages(&p->s.line) > 1;
}

static void flag(struct ap_buf *out, const char *name, int64_t value)
{
    ap_buf_printf(out, "    --%s %lld\n", name, (long long)value);
}

/* ---- Megatron-LM ---- */

static int64_t replicas(const struct ap_degrees *d)
{
    return d->data * d->context / d->shard;
}

/* "Et*3|t*4|t*4L": embedding, layers, loss; a bar between stages. */
static void put_layout(const struct trainer_plan *p, struct ap_buf *out)
{
    ap_buf_puts(out, "    --pipeline-model-parallel-layout \"E");
    for (int i = 0; i < p->s.line.n_layers; i++) {
        const int n = p->s.line.layers[i];
        ap_buf_puts(out, i ? "|" : "");
        if (n > 1)
            ap_buf_printf(out, "t*%d", n);
        else if (n == 1)
            ap_buf_putc(out, 't');
    }
    ap_buf_puts(out, "L\"\n");
}

static void put_zero_megatron(const struct ap_degrees *d, struct ap_buf *out)
{
    static const char *const strategies[] = {"", "optim", "optim_grads",
                                             "optim_grads_params"};
    if (d->zero == 0)
        return;
    ap_buf_puts(out, "    --use-distributed-optimizer\n");
    if (d->zero >= 2)
        ap_buf_printf(
            out, "    --use-megatron-fsdp\n    --data-parallel-sharding-strategy %s\n",
            strategies[d->zero]);
    if (replicas(d) > 1)
        flag(out, "num-distributed-optimizer-instances", replicas(d));
}

static void put_megatron(const struct trainer_plan *p, struct ap_buf *out)
{
    const struct ap_plan_line *s = &p->s;
    const struct ap_line *l = &s->line;
    const struct ap_degrees *d = &l->degrees;

    ap_buf_puts(out, "PARALLEL_ARGS=(\n");
    flag(out, "tensor-model-parallel-size", d->tensor);
    if (d->sequence)
        ap_buf_puts(out, "    --sequence-parallel\n");
    flag(out, "pipeline-model-parallel-size", l->pipeline);
    if (is_staged(p) && even(p)) {
        if (l->chunks > 1)
            flag(out, "num-virtual-stages-per-pipeline-rank", l->chunks);
    } else if (is_staged(p)) {
        put_layout(p, out);
    }
    flag(out, "context-parallel-size", d->context);
    if (p->experts) {
        flag(out, "expert-model-parallel-size", d->expert);
        flag(out, "expert-tensor-parallel-size", d->expert_tensor);
    }
    put_zero_megatron(d, out);
    if (l->recompute == AP_LINE_RECOMPUTE_FULL)
        ap_buf_puts(out,
                    "    --recompute-granularity full\n    --recompute-method uniform\n"
                    "    --recompute-num-layers 1\n");
    if (l->recompute == AP_LINE_RECOMPUTE_SELECTIVE)
        ap_buf_puts(out, "    --recompute-granularity selective\n"
                         "    --recompute-modules core_attn\n");
    flag(out, "micro-batch-size", l->micro_batch);
    flag(out, "global-batch-size", s->batch);
    ap_buf_puts(out, ")\n");
}

static void fit_common(struct trainer_plan *p, struct trainer_notes *notes)
{
    struct ap_degrees *d = &p->s.line.degrees;

    if (p->s.line.schedule == AP_SCHEDULE_INFERENCE)
        ap_die_usage("--to: the schedule is inference, and trainers train");
    if (is_staged(p) && p->s.line.schedule == AP_SCHEDULE_EAGER) {
        trainer_note(notes, "the schedule is eager-1f1b: 1f1b instead");
        p->s.line.schedule = AP_SCHEDULE_1F1B;
    }
    if (d->idle > 1) {
        trainer_note(notes, "%lld devices do the same in the plan: they split the batch",
                     (long long)d->idle);
        for (int a = 0; a < AP_MAX_AXES; a++) {
            if (p->uses.use[a] == AP_USE_NONE)
                p->uses.use[a] = AP_USE_DATA;
            if (p->uses.use[a] != AP_USE_TENSOR)
                p->uses.zero[a] = (uint8_t)d->zero;
            if (p->uses.expert_use[a] == AP_USE_NONE)
                p->uses.expert_use[a] = p->uses.use[a];
        }
        d->data *= d->idle;
        d->shard = d->zero ? d->data * d->context : 1;
        d->idle = 1;
    }
    if (p->s.line.recompute == AP_LINE_RECOMPUTE_SELECTIVE)
        trainer_note(notes,
                     "operators that the plan recomputes are not chosen one by one");
}

/* The highest stage that the trainer has there. */
static void lower_zero(struct trainer_plan *p, int most, const char *why,
                       struct trainer_notes *notes)
{
    struct ap_degrees *d = &p->s.line.degrees;

    if (d->zero <= most)
        return;
    trainer_note(notes, "ZeRO-%lld becomes ZeRO-%d: %s", (long long)d->zero, most, why);
    for (int a = 0; a < AP_MAX_AXES; a++)
        if (p->uses.zero[a] > most)
            p->uses.zero[a] = (uint8_t)most;
    d->zero = most;
}

static void fit_megatron(struct trainer_plan *p, struct trainer_notes *notes)
{
    struct ap_degrees *d = &p->s.line.degrees;

    fit_common(p, notes);
    if (is_staged(p) && p->s.line.schedule == AP_SCHEDULE_GPIPE) {
        trainer_note(notes, "the schedule is gpipe: 1f1b instead");
        p->s.line.schedule = AP_SCHEDULE_1F1B;
    }
    if (is_staged(p))
        lower_zero(p, 1, "its pipelines sum gradients whole", notes);
    if (p->experts && d->expert > 1 && d->tensor > 1 && !d->sequence) {
        trainer_note(notes,
                     "experts beside tensor parallelism need sequence parallelism");
        d->sequence = true;
    }
}

/* ---- torchtitan ---- */

static void put_parts(const struct trainer_plan *p, struct ap_buf *out)
{
    int layer = 0;

    ap_buf_puts(out, "    --parallelism.module_fqns_per_model_part");
    for (int i = 0; i < p->s.line.n_layers; i++) {
        const char *sep = " ";
        if (i == 0) {
            ap_buf_puts(out, " tok_embeddings");
            sep = ",";
        }
        for (int k = 0; k < p->s.line.layers[i]; k++, sep = ",")
            ap_buf_printf(out, "%slayers.%d", sep, layer++);
        if (i == p->s.line.n_layers - 1)
            ap_buf_printf(out, "%snorm,lm_head", sep);
    }
    ap_buf_putc(out, '\n');
}

static void put_torchtitan(const struct trainer_plan *p, struct ap_buf *out)
{
    static const char *const schedules[AP_N_SCHEDULES] = {[AP_SCHEDULE_GPIPE] = "GPipe",
                                                          [AP_SCHEDULE_1F1B] = "1F1B",
                                                          [AP_SCHEDULE_INTERLEAVED] =
                                                              "Interleaved1F1B"};
    static const char *const checkpoints[AP_N_LINE_RECOMPUTES] = {"none", "selective",
                                                                  "selective", "full"};
    const struct ap_plan_line *s = &p->s;
    const struct ap_line *l = &s->line;
    const struct ap_degrees *d = &l->degrees;
    int64_t local = l->micro_batch * (is_staged(p) ? s->microbatches : 1);

    ap_buf_puts(out, "PARALLEL_ARGS=(\n");
    flag(out, "parallelism.data_parallel_replicate_degree",
         d->zero ? replicas(d) : d->data);
    flag(out, "parallelism.data_parallel_shard_degree",
         d->zero ? d->shard / d->context : 1);
    if (d->zero)
        ap_buf_printf(out, "    --parallelism.fsdp_reshard_after_forward %s\n",
                      d->zero == 3 ? "always" : "never");
    flag(out, "parallelism.context_parallel_degree", d->context);
    flag(out, "parallelism.tensor_parallel_degree", d->tensor);
    if (d->tensor > 1 && !d->sequence)
        ap_buf_puts(out, "    --parallelism.no-enable_sequence_parallel\n");
    if (p->experts)
        flag(out, "parallelism.expert_parallel_degree", d->expert);
    flag(out, "parallelism.pipeline_parallel_degree", l->pipeline);
    if (is_staged(p)) {
        ap_buf_printf(out, "    --parallelism.pipeline_parallel_schedule %s\n",
                      schedules[l->schedule]);
        flag(out, "parallelism.pipeline_parallel_microbatch_size", l->micro_batch);
        put_parts(p, out);
    }
    if (is_staged(p) || d->expert > 1) /* refused with CUDA graphs */
        ap_buf_puts(out, "    --training.disable_cuda_graphs\n");
    flag(out, "training.local_batch_size", local);
    flag(out, "training.global_batch_size", s->batch);
    if (s->sequence_length)
        flag(out, "training.seq_len", s->sequence_length);
    ap_buf_printf(out, "    activation_checkpoint:%s\n)\n", checkpoints[l->recompute]);
}

static void fit_torchtitan(struct trainer_plan *p, struct trainer_notes *notes)
{
    struct ap_degrees *d = &p->s.line.degrees;

    fit_common(p, notes);
    if (d->context > 1 && d->shard % d->context) {
        trainer_note(notes, "weights are sharded over the devices of the sequence, too");
        for (int a = 0; a < AP_MAX_AXES; a++)
            if (p->uses.use[a] == AP_USE_CONTEXT)
                p->uses.zero[a] = 2;
        d->shard *= d->context;
        d->zero = d->zero > 2 ? d->zero : 2;
    }
    if (p->experts && d->expert_tensor > 1 && d->expert > 1) {
        trainer_note(notes, "experts are not split beside expert parallelism: those "
                            "devices have different experts");
        d->expert *= d->expert_tensor;
        d->expert_tensor = 1;
        for (int a = 0; a < AP_MAX_AXES; a++)
            if (p->uses.expert_use[a] == AP_USE_TENSOR)
                p->uses.expert_use[a] = AP_USE_EXPERT;
    }
    if (d->expert > 1 && d->shard * d->tensor % d->expert) {
        trainer_note(notes, "other weights are sharded over the devices of the experts");
        for (int a = 0; a < AP_MAX_AXES; a++)
            if (p->uses.use[a] == AP_USE_DATA && p->uses.zero[a] == 0)
                p->uses.zero[a] = 2;
        d->shard = d->data * d->context;
        d->zero = d->zero > 2 ? d->zero : 2;
    }
    if (d->zero == 1) {
        trainer_note(notes, "gradients are sharded, too (ZeRO-2)");
        for (int a = 0; a < AP_MAX_AXES; a++)
            p->uses.zero[a] = p->uses.zero[a] ? 2 : 0;
        d->zero = 2;
    }
}

/* ---- DeepSpeed ---- */

static void put_deepspeed(const struct trainer_plan *p, struct ap_buf *out)
{
    const struct ap_plan_line *s = &p->s;
    const struct ap_line *l = &s->line;
    const struct ap_degrees *d = &l->degrees;

    ap_buf_printf(out,
                  "{\n  \"train_batch_size\": %lld,\n"
                  "  \"train_micro_batch_size_per_gpu\": %lld,\n"
                  "  \"gradient_accumulation_steps\": %lld,\n"
                  "  \"zero_optimization\": {\"stage\": %lld}",
                  (long long)s->batch, (long long)l->micro_batch,
                  (long long)s->microbatches, (long long)d->zero);
    if (d->tensor > 1)
        ap_buf_printf(out, ",\n  \"tensor_parallel\": {\"autotp_size\": %lld}",
                      (long long)d->tensor);
    if (d->context > 1)
        ap_buf_printf(out,
                      ",\n  \"data_parallel_size\": %lld,\n"
                      "  \"sequence_parallel_size\": %lld",
                      (long long)d->data, (long long)d->context);
    if (d->expert > 1)
        ap_buf_printf(
            out,
            ",\n  \"expert_parallel\": {\"enabled\": true, \"autoep_size\": %lld, "
            "\"expert_tensor_parallel_size\": %lld}",
            (long long)d->expert, (long long)d->expert_tensor);
    if (l->recompute == AP_LINE_RECOMPUTE_FULL && !is_staged(p))
        ap_buf_puts(out,
                    ",\n  \"activation_checkpointing\": {\"number_checkpoints\": 1}");
    if (is_staged(p))
        ap_buf_printf(out,
                      ",\n  \"pipeline\": {\"stages\": %d, \"partition\": \"uniform\", "
                      "\"activation_checkpoint_interval\": %d}",
                      (int)l->pipeline, l->recompute == AP_LINE_RECOMPUTE_FULL);
    ap_buf_puts(out, "\n}\n");
}

/* One stage per set of devices, layers as even as they can be. */
static void fit_uniform(struct trainer_plan *p, struct trainer_notes *notes)
{
    struct ap_line *l = &p->s.line;
    const struct ap_line planned = *l;

    if (l->schedule != AP_SCHEDULE_1F1B)
        trainer_note(notes, "the schedule is %s: 1f1b instead",
                     ap_schedule_names[l->schedule]);
    l->schedule = AP_SCHEDULE_1F1B;
    l->chunks = 1;
    trainer_even_layers(notes->arena, p);
    bool same = planned.n_layers == l->n_layers;
    for (int i = 0; same && i < l->n_layers; i++)
        same = planned.layers[i] == l->layers[i];
    if (!same)
        trainer_note(notes,
                     "stages of as many layers each: the file has no list of layers");
}

static void fit_deepspeed(struct trainer_plan *p, struct trainer_notes *notes)
{
    struct ap_degrees *d = &p->s.line.degrees;

    fit_common(p, notes);
    if (d->context > 1)
        trainer_note(notes, "attention exchanges the sequence for heads (Ulysses)");
    if (d->zero && d->shard != d->data * d->context)
        trainer_note(notes, "ZeRO shards over all %lld data parallel devices",
                     (long long)(d->data * d->context));
    if (is_staged(p) && d->tensor > 1) {
        trainer_note(notes,
                     "PipelineModule has no automatic tensor parallelism: %lld "
                     "devices split the batch instead",
                     (long long)d->tensor);
        for (int a = 0; a < AP_MAX_AXES; a++)
            if (p->uses.use[a] == AP_USE_TENSOR)
                p->uses.use[a] = p->uses.expert_use[a] = AP_USE_DATA;
        d->data *= d->tensor;
        d->tensor = 1;
        d->sequence = false;
    }
    if (d->sequence)
        trainer_note(notes, "tensor parallelism without sequence parallelism");
    d->sequence = false;
    if (is_staged(p))
        lower_zero(p, 1, "pipelines sum gradients whole", notes);
    for (int a = 0; d->zero && a < AP_MAX_AXES; a++)
        if (p->uses.use[a] == AP_USE_DATA || p->uses.use[a] == AP_USE_CONTEXT)
            p->uses.zero[a] = (uint8_t)d->zero;
    d->shard = d->zero ? d->data * d->context : 1;
    if (p->s.line.recompute == AP_LINE_RECOMPUTE_SELECTIVE) {
        trainer_note(notes, "layers are recomputed whole or not at all: all are");
        p->s.line.recompute = AP_LINE_RECOMPUTE_FULL;
    }
    if (is_staged(p))
        fit_uniform(p, notes);
}

const struct trainer trainers[N_TRAINERS] = {
    {"megatron", "Megatron-LM", AP_LINE_RECOMPUTE_SELECTIVE, false, fit_megatron,
     put_megatron, "# "},
    {"torchtitan", "torchtitan", AP_LINE_RECOMPUTE_OPERATORS, true, fit_torchtitan,
     put_torchtitan, "# "},
    {"deepspeed", "DeepSpeed", AP_LINE_RECOMPUTE_SELECTIVE, false, fit_deepspeed,
     put_deepspeed, NULL},
};
