/* The families with their default sizes, and the papers' configurations. */
#include "model.h"

#include <string.h>

const struct model_size_row model_sizes[MODEL_N_SIZES] = {
    [MODEL_LAYERS] = {"layers", "layers; encoder-decoder: of each; U-Net: levels"},
    [MODEL_HIDDEN] = {"hidden",
                      "hidden size; ResNet, U-Net: features of the first stage"},
    [MODEL_HEADS] = {"heads", "attention heads"},
    [MODEL_KV_HEADS] = {"kv-heads", "heads of keys and values (heads)"},
    [MODEL_HEAD_DIM] = {"head-dim",
                        "width of a head (hidden / heads); DeepSeek: less --rope-dim"},
    [MODEL_VALUE_DIM] = {"value-dim", "width of a head's values (head-dim)"},
    [MODEL_ROPE_DIM] = {"rope-dim", "rotated features of a head, beside head-dim"},
    [MODEL_Q_RANK] = {"q-rank", "width of latent queries (none)"},
    [MODEL_KV_RANK] = {"kv-rank", "width of latent keys and values"},
    [MODEL_WINDOW] = {"window", "earlier positions that attention sees (all)"},
    [MODEL_FFN] = {"ffn", "hidden size of feed-forward layers (4 * hidden)"},
    [MODEL_EXPERTS] = {"experts", "experts of an MoE layer"},
    [MODEL_TOP] = {"top", "experts per token, at most 16"},
    [MODEL_MOE_EVERY] = {"moe-every", "every N-th layer has experts"},
    [MODEL_DENSE_LAYERS] = {"dense-layers", "first layers, without experts (none)"},
    [MODEL_MTP] = {"mtp", "layers more, that each predict one token further (none)"},
    [MODEL_EXPERT_FFN] = {"expert-ffn", "hidden size of an expert (ffn)"},
    [MODEL_SHARED_EXPERTS] = {"shared-experts", "experts that see all tokens (none)"},
    [MODEL_CAPACITY] = {"capacity",
                        "expert capacity, tokens per group (top * group / experts)"},
    [MODEL_GROUP] = {"group", "tokens that share expert capacity, divides seq (seq)"},
    [MODEL_SEQ] = {"seq", "sequence length; wav2vec: samples"},
    [MODEL_TARGET_SEQ] = {"target-seq", "sequence length of the decoder (seq)"},
    [MODEL_POSITIONS] = {"positions", "learned positions, seq or more (seq)"},
    [MODEL_BATCH] = {"batch", "batch size"},
    [MODEL_CLASSES] = {"classes", "classes"},
    [MODEL_VOCAB] = {"vocab", "vocabulary size"},
    [MODEL_EMBED] = {"embed", "embedding size"},
    [MODEL_TEXT_HIDDEN] = {"text-hidden", "hidden size of the text encoder"},
    [MODEL_IMAGE] = {"image", "height and width of the image"},
    [MODEL_PATCH] = {"patch", "height and width of a patch"},
    [MODEL_WIDTH_FACTOR] = {"width-factor", "width multiplier"},
    [MODEL_FEATURES] = {"features", "input features"},
    [MODEL_UNTIED] = {"untied", "do not tie the head's weight to the embedding"},
    [MODEL_HEAD_BIAS] = {"head-bias", "the head has a bias"},
    [MODEL_NO_KEY_BIAS] = {"no-key-bias", "keys of attention have no bias"},
    [MODEL_NO_EXPERT_BIAS] = {"no-expert-bias", "experts have no biases"},
    [MODEL_NO_CAPACITY] = {"no-capacity", "every expert computes every token, masked"},
    [MODEL_LAYER_NORM] = {"layer-norm", "layer norms and biases instead of RMS norms"},
};

const struct model_style model_classic = {
    .qkv_bias = true, .out_bias = true, .mlp_bias = true, .balance = 0.01};

#define ROTARY_STYLE .norm = MODEL_NORM_RMS, .rope = true, .gated = true
#define LLAMA        ROTARY_STYLE, .act = MODEL_SILU, .norm_eps = 1e-5
static const struct model_style llama3 = {LLAMA, .rope_theta = 5e5};
static const struct model_style mixtral = {LLAMA, .rope_theta = 1e6, .balance = 0.02,
                                           .balance_rows = true};
#define QWEN ROTARY_STYLE, .act = MODEL_SILU, .norm_eps = 1e-6, .rope_theta = 1e6
static const struct model_style qwen3 = {QWEN, .qk_norm = MODEL_QK_HEAD};
#define GEMMA                                                                    \
    ROTARY_STYLE, .act = MODEL_GELU, .norm_plus_one = true, .scale_embed = true, \
                  .norm_eps = 1e-6, .rope_theta = 1e4
static const struct model_style gemma = {GEMMA};
#define DEEPSEEK ROTARY_STYLE, .act = MODEL_SILU, .norm_eps = 1e-6, .rope_theta = 1e4
static const struct model_style deepseek_v3 = {
    DEEPSEEK,    .sigmoid = true, .choice = MODEL_PAIR_GROUPS,
    .groups = 8, .top_groups = 4, .gate_scale = 2.5};

/* Short names, for the tables below only. */
#define SIZES(...)  \
    {               \
        __VA_ARGS__ \
    }
#define L(n)      [MODEL_LAYERS] = (n)
#define H(n)      [MODEL_HIDDEN] = (n)
#define A(n)      [MODEL_HEADS] = (n)
#define KV(n)     [MODEL_KV_HEADS] = (n)
#define HD(n)     [MODEL_HEAD_DIM] = (n)
#define F(n)      [MODEL_FFN] = (n)
#define E(n)      [MODEL_EXPERTS] = (n)
#define K(n)      [MODEL_TOP] = (n)
#define EV(n)     [MODEL_MOE_EVERY] = (n)
#define S(n)      [MODEL_SEQ] = (n)
#define B(n)      [MODEL_BATCH] = (n)
#define C(n)      [MODEL_CLASSES] = (n)
#define V(n)      [MODEL_VOCAB] = (n)
#define EM(n)     [MODEL_EMBED] = (n)
#define IM(n)     [MODEL_IMAGE] = (n)
#define P(n)      [MODEL_PATCH] = (n)
#define W(n)      [MODEL_WIDTH_FACTOR] = (n)
#define X(n)      [MODEL_FEATURES] = (n)
#define G(n)      [MODEL_GROUP] = (n)
#define UNTIED(n) [MODEL_UNTIED] = (n)
#define ROUTED    [MODEL_CAPACITY] = -1, [MODEL_NO_CAPACITY] = -1
#define DECODER \
    [MODEL_UNTIED] = -1, [MODEL_HEAD_BIAS] = -1, [MODEL_NO_KEY_BIAS] = -1, KV(-1), HD(-1)
#define OPTIONAL                                                                         \
    KV(-1), HD(-1),                                                                      \
        E(-1), [MODEL_VALUE_DIM] = -1, [MODEL_ROPE_DIM] = 64, [MODEL_Q_RANK] = -1,       \
               [MODEL_KV_RANK] = -1, [MODEL_DENSE_LAYERS] = -1, [MODEL_EXPERT_FFN] = -1, \
               [MODEL_SHARED_EXPERTS] = -1, [MODEL_HEAD_BIAS] = -1
#define ROTARY [MODEL_WINDOW] = -1, [MODEL_MTP] = -1, S(4096), B(8)
#define LATENT [MODEL_VALUE_DIM] = -1, [MODEL_ROPE_DIM] = 64, [MODEL_KV_RANK] = 512
#define MIXED  [MODEL_NO_EXPERT_BIAS] = -1, [MODEL_NO_CAPACITY] = -1, [MODEL_CAPACITY] = -1

const struct model_family model_families[] = {
    {"mlp", "dense layers with relu, a classifier of vectors", model_mlp, "adam",
     SIZES(L(3), H(64), X(32), C(10), B(8)), NULL},
    {"gpt", "GPT: decoder with learned positions", model_decoder, "adam",
     SIZES(L(12), H(768), A(12), F(-1), S(1024), [MODEL_POSITIONS] = -1, B(8), V(50257),
           DECODER),
     NULL},
    {"bert", "BERT: encoder, masked tokens and next sentence", model_bert, "adam",
     SIZES(L(12), H(768), A(12), F(-1), S(512), [MODEL_POSITIONS] = -1, B(8),
           V(30522), [MODEL_UNTIED] = -1, [MODEL_NO_KEY_BIAS] = -1),
     NULL},
    {"albert", "ALBERT: BERT with one layer's weights for all", model_albert, "adam",
     SIZES(L(12), H(768), A(12), F(-1), S(512), B(8), V(30000),
           EM(128), [MODEL_UNTIED] = -1, [MODEL_NO_KEY_BIAS] = -1),
     NULL},
    {"t5", "T5: encoder and decoder with relative positions", model_t5, "adam",
     SIZES(L(12), H(768), A(12), HD(-1), F(-1), S(512), [MODEL_TARGET_SEQ] = -1, B(8),
           V(32128), [MODEL_LAYER_NORM] = -1, [MODEL_NO_KEY_BIAS] = -1),
     NULL},
    {"moe", "GPT with GShard's mixture of experts in every second layer", model_decoder,
     "adam",
     SIZES(L(8), H(768), A(16), F(-1), E(8), K(2), EV(2), S(1024), B(8), V(32000),
           DECODER, MIXED),
     NULL},
    {"m6-moe", "M6: GPT with experts in every layer", model_decoder, "adam",
     SIZES(L(5), H(1024), A(16), F(-1), E(32), K(2), EV(1), S(272), B(8), V(21128),
           DECODER, MIXED),
     NULL},
    {"switch", "Switch transformer: T5 with one expert per token", model_switch, "adam",
     SIZES(L(12), H(768), A(12), HD(-1), F(-1), E(128), K(1), EV(2),
           S(512), [MODEL_TARGET_SEQ] = -1, B(8),
           V(32128), [MODEL_LAYER_NORM] = -1, [MODEL_NO_KEY_BIAS] = -1, MIXED),
     NULL},
    {"llama", "Llama: rotary embedding, grouped queries, gated feed-forward parts",
     model_decoder, "adamw",
     SIZES(L(16), H(2048), A(32), KV(8), HD(-1), F(8192), V(128256), UNTIED(-1), ROTARY),
     &llama3},
    {"decoder",
     "decoders of config.json: Llama with any sizes, for model_types without a name",
     model_decoder, "adamw",
     SIZES(L(16), H(2048), A(32), F(8192), V(128256), UNTIED(1), K(2), G(256), OPTIONAL,
           ROTARY, ROUTED),
     &llama3},
    {"mixtral", "Mixtral: Llama with experts in every layer", model_decoder, "adamw",
     SIZES(L(32), H(4096), A(32), KV(8), HD(-1), F(14336), E(8), K(2), G(512), V(32000),
           UNTIED(1), ROTARY, ROUTED),
     &mixtral},
    {"deepseek", "DeepSeek: latent attention, shared and routed experts", model_decoder,
     "adamw",
     SIZES(L(61), H(7168), A(128), HD(128), [MODEL_Q_RANK] = 1536, LATENT, F(18432),
           E(256), K(8), [MODEL_DENSE_LAYERS] = 3, [MODEL_EXPERT_FFN] = 2048,
           [MODEL_SHARED_EXPERTS] = 1, G(256), V(129280), UNTIED(1), ROTARY, ROUTED),
     &deepseek_v3},
    {"gemma", "Gemma: Llama with wide heads and scaled, tied embeddings", model_decoder,
     "adamw",
     SIZES(L(28), H(3072), A(16), KV(-1), HD(256), F(24576), V(256000), UNTIED(-1),
           ROTARY),
     &gemma},
    {"qwen", "Qwen: Llama with norms of queries and keys, or biases", model_decoder,
     "adamw",
     SIZES(L(36), H(4096), A(32), KV(8), HD(-1), F(12288), V(151936), UNTIED(1), ROTARY),
     &qwen3},
    {"vit", "ViT: transformer on the patches of an image", model_vit, "adam",
     SIZES(L(12), H(768), A(12), F(-1), IM(224), P(16), C(1000),
           B(8), [MODEL_NO_KEY_BIAS] = -1),
     NULL},
    {"v-moe", "V-MoE: ViT with experts in every second layer", model_v_moe, "adam",
     SIZES(L(12), H(768), A(12), F(-1), E(32), K(2), EV(2), IM(224), P(16), C(1000),
           B(8), [MODEL_NO_KEY_BIAS] = -1, MIXED),
     NULL},
    {"widenet", "WideNet: ViT whose layers share attention and experts", model_widenet,
     "adam",
     SIZES(L(12), H(768), A(12), F(-1), E(4), K(2), EV(1), IM(224), P(16), C(1000),
           B(8), [MODEL_NO_KEY_BIAS] = -1, MIXED),
     NULL},
    {"clip", "CLIP: images and texts side by side, contrastive loss", model_clip, "adam",
     SIZES(L(12), H(768), A(12), F(-1), IM(224), P(32), S(77), V(49408),
           EM(512), [MODEL_TEXT_HIDDEN] = 512, B(8), [MODEL_NO_KEY_BIAS] = -1),
     NULL},
    {"wav2vec2", "wav2vec 2.0: pre-training on waves", model_wav2vec2, "adam",
     SIZES(L(12), H(768), A(12), F(-1), S(160000), EM(256),
           B(8), [MODEL_NO_KEY_BIAS] = -1),
     NULL},
    {"resnet", "ResNet of 18, 34, 50, 101 or 152 layers", model_resnet, "momentum",
     SIZES(L(50), H(64), W(1), IM(224), C(1000), B(8)), NULL},
    {"wresnet", "Wide-ResNet of bottlenecks with wider 3x3 convolutions", model_wresnet,
     "momentum", SIZES(L(50), H(64), W(2), IM(224), C(1000), B(8)), NULL},
    {"vgg19", "VGG-19", model_vgg19, "momentum",
     SIZES(H(64), F(4096), IM(224), C(1000), B(8)), NULL},
    {"alexnet", "AlexNet in one tower", model_alexnet, "momentum",
     SIZES(F(4096), IM(227), C(1000), B(8)), NULL},
    {"cnn", "3x3 convolutions with relu and one dense layer", model_cnn, "momentum",
     SIZES(L(5), H(512), X(3), IM(24), C(10), B(8)), NULL},
    {"unet", "U-Net: a class for every pixel", model_unet, "adam",
     SIZES(L(4), H(64), X(3), IM(256), C(2), B(8)), NULL},
    {.name = NULL},
};

#define GPT(l, h, a) SIZES(L(l), H(h), A(a), S(1024), V(51200))
#define GPT3(l, h, a) \
    SIZES(L(l), H(h), A(a), S(1024), V(51200), B(1024), [MODEL_HEAD_BIAS] = 1)
#define MOE(l, h, a, e)                                          \
    SIZES(L(l), H(h), A(a), E(e), F(8 * (h)), S(1024), V(32000), \
          B(1024), [MODEL_HEAD_BIAS] = 1)
#define WRN(l, c, w) SIZES(L(l), H(c), W(w), C(1024), B(1536))
#define RANNC(l, h)  SIZES(L(l), H(h), A((h) / 64), B(256))

const struct model_config model_configs[] = {
    {"gpt2-124m", "gpt", "GPT-2 small", SIZES(L(12)), NULL},
    {"gpt-350m", "gpt", "Rhino, table 1", GPT(24, 1024, 16), NULL},
    {"gpt-760m", "gpt", "Rhino, table 1", GPT(24, 1536, 16), NULL},
    {"gpt-1.3b", "gpt", "Rhino, table 1", GPT(24, 2048, 32), NULL},
    {"gpt-2.7b", "gpt", "Rhino, table 1", GPT(32, 2560, 32), NULL},
    {"gpt-6.7b", "gpt", "Rhino, table 1", GPT(32, 4096, 32), NULL},
    {"gpt3-350m", "gpt", "Alpa, table 6", GPT3(24, 1024, 16), NULL},
    {"gpt3-1.3b", "gpt", "Alpa, table 6", GPT3(24, 2048, 32), NULL},
    {"gpt3-2.6b", "gpt", "Alpa, table 6", GPT3(32, 2560, 32), NULL},
    {"gpt3-6.7b", "gpt", "Alpa, table 6", GPT3(32, 4096, 32), NULL},
    {"gpt3-15b", "gpt", "Alpa, table 6", GPT3(48, 5120, 32), NULL},
    {"gpt3-39b", "gpt", "Alpa, table 6", GPT3(48, 8192, 64), NULL},
    {"gpt3-175b", "gpt", "GPT-3 (TAP, table 1)", GPT3(96, 12288, 96), NULL},
    {"moe-380m", "moe", "Alpa, table 7; Rhino, table 2", MOE(8, 768, 16, 8), NULL},
    {"moe-760m", "moe", "Rhino, table 2", MOE(16, 768, 16, 8), NULL},
    {"moe-1.3b", "moe", "Alpa, table 7; Rhino, table 2", MOE(16, 768, 16, 16), NULL},
    {"moe-2.4b", "moe", "Alpa, table 7; Rhino, table 2", MOE(16, 1024, 16, 16), NULL},
    {"moe-10b", "moe", "Alpa, table 7; Rhino, table 2", MOE(16, 1536, 16, 32), NULL},
    {"moe-27b", "moe", "Alpa, table 7", MOE(16, 2048, 32, 48), NULL},
    {"moe-70b", "moe", "Alpa, table 7", MOE(32, 2048, 32, 64), NULL},
    {"m6-moe-100b", "m6-moe", "TAP", SIZES(L(24), F(4096), E(512)), NULL},
    {"m6-moe-1t", "m6-moe", "TAP", SIZES(L(24), F(21248), E(960)), NULL},
    {"bert-base", "bert", "110M", SIZES(L(12)), NULL},
    {"bert-large", "bert", "RaNNC, 24 layers of 1024", RANNC(24, 1024), NULL},
    {"bert-24x1536", "bert", "RaNNC", RANNC(24, 1536), NULL},
    {"bert-24x2048", "bert", "RaNNC", RANNC(24, 2048), NULL},
    {"bert-48x2048", "bert", "RaNNC, the largest that Megatron-LM trains",
     RANNC(48, 2048), NULL},
    {"bert-256x2048", "bert", "RaNNC, the largest", RANNC(256, 2048), NULL},
    {"dnabert", "bert", "Rhino, 162M; layers and hidden size chosen to give that",
     SIZES(L(12), H(1024), A(16), V(4101), B(32), [MODEL_UNTIED] = 1), NULL},
    {"albert-base", "albert", "12M", SIZES(L(12)), NULL},
    {"albert-large", "albert", "18M", SIZES(L(24), H(1024), A(16)), NULL},
    {"albert-xlarge", "albert", "59M", SIZES(L(24), H(2048), A(16)), NULL},
    {"albert-xxlarge", "albert", "223M", SIZES(L(12), H(4096), A(64)), NULL},
    {"t5-base", "t5", "no biases, RMS norms", SIZES(F(3072)), NULL},
    {"t5-large", "t5", "TAP, 1015 weights: with biases and layer norms",
     SIZES(L(24), H(1024), A(16), F(4096), B(16), [MODEL_LAYER_NORM] = 1), NULL},
    {"switch-base", "switch", "7B, 128 experts", SIZES(F(3072)), NULL},
    {"switch-c", "switch", "1.6T, 2048 experts in each of 15 layers (TAP, table 1)",
     SIZES(L(15), H(2080), A(32), HD(64), F(6144), E(2048), EV(1)), NULL},
    {"vit-base", "vit", "86M", SIZES(L(12)), NULL},
    {"vit-large", "vit", "304M", SIZES(L(24), H(1024), A(16)), NULL},
    {"vit-huge", "vit", "632M (TAP, table 1)", SIZES(L(32), H(1280), A(16), P(14)), NULL},
    {"v-moe-large", "v-moe", "24 layers (TAP, table 1)", SIZES(L(24), H(1024), A(16)),
     NULL},
    {"widenet-huge", "widenet", "32 layers (TAP, table 1)",
     SIZES(L(32), H(1280), A(16), P(14)), NULL},
    {"clip-base", "clip", "151M (TAP, table 1)", SIZES(L(12)), NULL},
    {"wav2vec2-base", "wav2vec2", "95M", SIZES(L(12)), NULL},
    {"wav2vec2-large", "wav2vec2", "317M (TAP, table 1)",
     SIZES(L(24), H(1024), A(16), EM(768)), NULL},
    {"resnet50", "resnet", "26M", SIZES(L(50)), NULL},
    {"resnet50-100k", "resnet", "TAP, 100 000 classes", SIZES(L(50), C(100000), B(1024)),
     NULL},
    {"resnet152", "resnet", "60M", SIZES(L(152)), NULL},
    {"resnet152-100k", "resnet", "TAP, 100 000 classes",
     SIZES(L(152), C(100000), B(1024)), NULL},
    {"resnet50x8", "resnet", "RaNNC, 8 times as wide", SIZES(L(50), W(8), B(512)), NULL},
    {"resnet101x8", "resnet", "RaNNC, 8 times as wide", SIZES(L(101), W(8), B(512)),
     NULL},
    {"resnet152x8", "resnet", "RaNNC, 3.7B", SIZES(L(152), W(8), B(512)), NULL},
    {"wresnet-250m", "wresnet", "Alpa, table 8", WRN(50, 160, 2), NULL},
    {"wresnet-1b", "wresnet", "Alpa, table 8; Rhino's 1.3B", WRN(50, 320, 2), NULL},
    {"wresnet-2b", "wresnet", "Alpa, table 8; Rhino's 2.6B", WRN(50, 448, 2), NULL},
    {"wresnet-4b", "wresnet", "Alpa, table 8; Rhino's 6B", WRN(50, 640, 2), NULL},
    {"wresnet-6.8b", "wresnet", "Alpa, table 8", WRN(50, 320, 16), NULL},
    {"wresnet-12b", "wresnet", "Rhino's 12B, which has 9.55B", WRN(101, 320, 12), NULL},
    {"wresnet-13b", "wresnet", "Alpa, table 8", WRN(101, 320, 16), NULL},
    {"vgg19-4.2b", "vgg19", "Rhino, a million classes", SIZES(C(1000000), B(128)), NULL},
    {"unet-33m", "unet", "Rhino; features chosen to give 33M", SIZES(H(66), B(16)), NULL},
    {"tofu-mlp4", "mlp", "Tofu, 4 layers of 8192",
     SIZES(L(4), H(8192), X(8192), C(8192), B(512)), NULL},
    {"tofu-mlp4-12k", "mlp", "Tofu, 4 layers of 12288",
     SIZES(L(4), H(12288), X(12288), C(12288), B(2048)), NULL},
    {"tofu-cnn5-6", "cnn", "Tofu, 6x6 of 2048", SIZES(H(2048), X(2048), IM(6), B(256)),
     NULL},
    {"tofu-cnn5-24", "cnn", "Tofu, 24x24 of 512", SIZES(H(512), X(512), IM(24), B(256)),
     NULL},
    {"rannc-mlp", "mlp", "RaNNC's tutorial", SIZES(L(10), H(512), X(512), C(512), B(64)),
     NULL},
    {.name = NULL},
};

const struct model_family *model_find_family(const char *name)
{
    for (const struct model_family *f = model_families; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return f;
    return NULL;
}

const struct model_config *model_find_config(const char *name)
{
    for (const struct model_config *c = model_configs; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}
