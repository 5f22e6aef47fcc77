/*
 * Trainers: conditions, each with its message. Documents named as arguments: the facts of
 * their graphs are printed.
 */
#include "line/trainer.h"

#include <string.h>

#include "doc/doc.h"
#include "tap.h"

/* Llama-3 8B, Mixtral 8x7B, and GPT-2 with tied weights. */
static const struct ap_line_facts llama = {.world = 64,
                                           .batch = 512,
                                           .sequence = 8192,
                                           .layers = 32,
                                           .heads = 32,
                                           .kv_heads = 8};
static const struct ap_line_facts mixtral = {.world = 64,
                                             .batch = 256,
                                             .sequence = 4096,
                                             .layers = 32,
                                             .heads = 32,
                                             .kv_heads = 8,
                                             .experts = 8};
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
    {"megatron", &llama, "tp=3,mbs=1", 0, "are not the 64 devices"},
    {"megatron", &llama, "mbs=16", 0, "do not divide the batch of 512"},
    {"megatron", &llama, "pp=64,mbs=1", 0, "32 layers are not a multiple of the 64"},
    {"megatron", &llama, "pp=4,layers=8:8:8:9,mbs=1", 0, "33 layers, the model has 32"},
    {"megatron", &llama, "pp=4,layers=9:9:9:5,mbs=1", 0, NULL},
    {"megatron", &llama, "tp=64,mbs=1", 0, "64 does not divide the 32 heads"},
    {"megatron", &llama, "tp=16,mbs=1", 0, NULL}, /* pairs of devices hold a key's head */
    {"torchtitan", &llama, "tp=16,mbs=1", 0, "16 does not divide the 8 heads of keys"},
    {"megatron", &llama, "ep=2,mbs=1", 0, "the model has no experts"},
    {"megatron", &llama, "cp=64,zero=1,mbs=1", 0, NULL},
    {"megatron", &gpt2, "tp=4,cp=2,zero=1,mbs=1,schedule=gpipe", 0, NULL},
    {"megatron", &gpt2, "pp=2,mbs=1,schedule=gpipe", 0, "schedule gpipe"},
    {"megatron", &llama, "pp=8,vpp=2,mbs=16", 0, "4 microbatches are not a multiple of"},
    {"megatron", &llama, "recompute=operators,mbs=1", 0, "recompute=operators"},
    {"megatron", &llama, "waits,mbs=1", 0, "waits: it does not do so"},
    {"megatron", &llama, "low-sums,overlap,mbs=1", 0, NULL},
    {"megatron", &mixtral, "tp=2,pp=2,ep=8,mbs=1", 0, "only with --sequence-parallel"},
    {"megatron", &mixtral, "tp=2,sp,pp=2,ep=8,mbs=1", 0, NULL},
    {"megatron", &mixtral, "tp=2,sp,pp=8,ep=8,mbs=1", 0,
     "x --expert-tensor-parallel-size"},
    {"megatron", &mixtral, "tp=2,sp,pp=8,ep=8,mbs=1", 1, NULL}, /* over tp, too */
    {"megatron", &mixtral, "ep=16,mbs=1", 0, "16 does not divide the 8 experts"},
    {"megatron", &mixtral, "ep=8,zero=1,shard=4,mbs=1", 0, "replicas of the experts"},
    {"megatron", &mixtral, "ep=8,zero=1,shard=8,mbs=1", 0, NULL},
    {"torchtitan", &llama, "zero=3,overlap,mbs=1", 0, NULL},
    {"torchtitan", &llama, "zero=1,mbs=1", 0, "which is zero=2"},
    {"torchtitan", &llama, "pp=4,zero=3,mbs=1", 0, "which is zero=1"},
    {"torchtitan", &llama, "pp=4,zero=1,mbs=1", 0, NULL},
    {"torchtitan", &llama, "pp=4,zero=1,mbs=16", 0, "2 microbatches are fewer than"},
    {"torchtitan", &llama, "pp=4,zero=1,mbs=16,schedule=gpipe", 0, NULL},
    {"torchtitan", &llama, "pp=4,layers=16:0:8:8,mbs=1", 0, "stage 1 has no module"},
    {"torchtitan", &gpt2, "pp=4,mbs=1", 0, "share a weight"},
    {"torchtitan", &llama, "cp=2,mbs=1", 0, "sharded over these devices, too"},
    {"torchtitan", &llama, "cp=2,ring,zero=3,mbs=1", 0, "ring: "},
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
    {"deepspeed", &llama, "pp=2,layers=15:17,mbs=1", 0, "no partition_method says"},
    {"deepspeed", &llama, "pp=2,tp=2,mbs=1", 0, "no automatic tensor parallelism"},
    {"deepspeed", &llama, "tp=2,sp,mbs=1", 0, "sp: "},
    {"deepspeed", &llama, "cp=2,mbs=1", 0, "(Ulysses)"},
    {"deepspeed", &llama, "zero=3,shard=8,mbs=1", 0, NULL},
    {"deepspeed", &llama, "zero=1,shard=8,mbs=1", 0, "mics_shard_size"},
    {"deepspeed", &llama, "recompute=selective,mbs=1", 0, "whole or not at all"},
    {"deepspeed", &mixtral, "tp=2,ep=4,zero=3,mbs=1", 0, "have 0 to 2"},
    {"deepspeed", &mixtral, "tp=2,ep=4,mbs=1", 2, "expert_tensor_parallel_size is 1"},
    {"deepspeed", &mixtral, "overlap,mbs=1", 0, "overlap: "},
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
    printf("batch %lld x %lld, %lld layers, %lld heads, %lld of keys, %lld experts, "
           "%lld tokens x %lld%s, %s of %s, moments %s\n",
           (long long)f.batch, (long long)f.sequence, (long long)f.layers,
           (long long)f.heads, (long long)f.kv_heads, (long long)f.experts,
           (long long)f.vocab, (long long)f.hidden, f.tied ? " tied" : "",
           ap_dtype_name(f.compute), ap_dtype_name(f.master), ap_dtype_name(f.moments));
    ap_arena_free(&arena);
}

int main(int argc, char **argv)
{
    struct ap_arena arena = {0};

    for (int i = 1; i < argc; i++)
        print_facts(argv[i]);
    if (argc > 1)
        return 0;
    test_conditions(&arena);
    ap_arena_free(&arena);
    return tap_done();
}
