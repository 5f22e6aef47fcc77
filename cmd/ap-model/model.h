/*
 * Models as programs: a family is a function that adds a forward graph and a loss to a
 * builder, from sizes; layers (layers.c) are functions of a path, which is the scope of
 * their nodes and the prefix of their weights' names.
 */
#ifndef MODEL_H
#define MODEL_H

#include "base/index_map.h"
#include "graph/build.h"

/* The sizes that families have; each has an option. Flags are 1 when given. */
enum model_size {
    MODEL_LAYERS,
    MODEL_HIDDEN,
    MODEL_HEADS,
    MODEL_KV_HEADS,
    MODEL_HEAD_DIM,
    MODEL_VALUE_DIM,
    MODEL_ROPE_DIM,
    MODEL_Q_RANK,
    MODEL_KV_RANK,
    MODEL_WINDOW,
    MODEL_FFN,
    MODEL_EXPERTS,
    MODEL_TOP,
    MODEL_MOE_EVERY,
    MODEL_DENSE_LAYERS,
    MODEL_MTP,
    MODEL_EXPERT_FFN,
    MODEL_SHARED_EXPERTS,
    MODEL_CAPACITY,
    MODEL_GROUP,
    MODEL_SEQ,
    MODEL_TARGET_SEQ,
    MODEL_POSITIONS,
    MODEL_BATCH,
    MODEL_CLASSES,
    MODEL_VOCAB,
    MODEL_EMBED,
    MODEL_TEXT_HIDDEN,
    MODEL_IMAGE,
    MODEL_PATCH,
    MODEL_WIDTH_FACTOR,
    MODEL_FEATURES,
    MODEL_UNTIED, /* first of the flags */
    MODEL_HEAD_BIAS,
    MODEL_NO_KEY_BIAS,
    MODEL_NO_EXPERT_BIAS,
    MODEL_NO_CAPACITY,
    MODEL_LAYER_NORM,
    MODEL_N_SIZES
};
#define MODEL_FIRST_FLAG MODEL_UNTIED
#define MODEL_MAX_TOP    16 /* most experts per token */

struct model_size_row {
    const char *name, *help; /* of its option */
};
extern const struct model_size_row model_sizes[MODEL_N_SIZES];

/* Activations; all may gate. */
enum model_act {
    MODEL_GELU,
    MODEL_GELU_ERF,
    MODEL_RELU,
    MODEL_RELU2, /* relu(x)^2 */
    MODEL_SILU
};

/* Layer norms with scale and bias, RMS norms with a scale, and both with fewer weights.
 */
enum model_norm {
    MODEL_NORM_LAYER,
    MODEL_NORM_RMS,
    MODEL_NORM_NO_BIAS, /* of layers */
    MODEL_NORM_PLAIN,   /* of layers */
    MODEL_NORM_UNIT     /* RMS */
};

/* What is normed of queries and keys: nothing, each head, all heads at once, or each head
 * after its rotation and without weights. */
enum model_qk_norm { MODEL_QK_NONE, MODEL_QK_HEAD, MODEL_QK_ALL, MODEL_QK_UNIT };

/* How a token's experts are chosen: the best of all, those of the best groups (by their
 * best expert), or of the groups with the best pairs. */
enum model_choice { MODEL_GREEDY, MODEL_BEST_GROUPS, MODEL_PAIR_GROUPS };

/*
 * The differences between models of one family besides sizes. A style is named by a row
 * of the tables (table.c) or read from a config.json (config.c); all zero is GPT-2's.
 * Patterns have a character for each layer, 0 or 1, and start again at their end.
 */
struct model_style {
    enum model_act act;
    enum model_norm norm;
    enum model_qk_norm qk_norm;
    bool rope;               /* rotary embedding; otherwise learned positions */
    bool gated;              /* feed-forward: act(x . gate) * (x . up) */
    bool qkv_bias, out_bias; /* attention of decoders with rotary embedding */
    bool mlp_bias;           /* their feed-forward part */
    bool expert_bias, router_bias;
    bool sandwich;       /* norms after attention and feed-forward part, too */
    bool no_pre_norm;    /* none before them */
    bool parallel;       /* x + attention(norm x) + feed-forward(norm x) */
    bool one_norm;       /* parallel: both read the same norm */
    bool norm_plus_one;  /* RMS norms scale by 1 + weight */
    bool sinks;          /* a learned score that takes part in each softmax */
    bool chunked;        /* windows are chunks of the sequence */
    const char *windows; /* pattern of layers with --window; NULL: all */
    const char *rotated; /* pattern of layers with rotary embedding; NULL: all */
    const char *mixed;   /* pattern of layers with experts; NULL: all */
    double norm_eps;     /* 0: 1e-5, of RMS norms 1e-6 */
    double rope_theta;
    double window_theta;         /* of layers with a window; 0: rope_theta */
    int64_t rope_width;          /* rotated features of a head; 0: see below */
    double rope_share;           /* their share of a head; 0: all */
    double score_scale;          /* 0: 1 / sqrt(width of a head) */
    double score_cap, logit_cap; /* c tanh(x / c); 0: none */
    bool temper;                 /* queries of unrotated layers: attention.c */
    double temper_scale, temper_floor;
    double glu_alpha, glu_limit;        /* limit > 0: clipped gates, layers.c */
    bool scale_embed;                   /* embeddings times sqrt(hidden) */
    double embed_scale, residual_scale; /* factors; 0: 1 */
    double logit_scale, logit_divide;   /* 0: 1 */
    int sigmoid;                        /* router: sigmoid, not softmax */
    bool raw_gates;   /* gates of the chosen are not made to sum to one */
    bool gate_inputs; /* gates scale what experts read */
    bool shared_gate; /* the shared expert has a gate of its own */
    enum model_choice choice;
    int64_t groups, top_groups; /* of experts: only the best groups' are chosen from */
    int64_t shared_ffn; /* of all shared experts; 0: shared-experts * expert-ffn */
    double gate_scale;  /* 0: 1 */
    double balance;     /* weight of the load-balancing loss; 0: none */
    /* scan.c; scan_least: of a step */
    int64_t scan_heads, scan_width, scan_states, scan_groups, scan_conv, scan_chunk;
    double scan_least;
    bool scan_bias, conv_bias;
    const char *mixers; /* layers have one part each: M scan, * attention, - feed-forward,
                         * E experts; NULL: attention and feed-forward part */
    bool balance_rows;  /* computed per row or group, so that microbatches add up to it */
};

struct model_weight {
    const char *name;
    int node;
};

struct model {
    struct ap_build b;
    struct ap_arena *arena;
    struct ap_err *err;
    const char *family;
    int64_t size[MODEL_N_SIZES]; /* -1: the family derives it; flags: 1 or -1 */
    struct model_style style;
    /* Weights of paths that begin with shared_from are those of shared_to, see
     * model_share. */
    const char *shared_from, *shared_to;
    int n_weights, cap_weights;
    struct model_weight *weights;
    struct ap_index by_name; /* weights, for layers that share them */
    int n_stats, cap_stats;  /* results: new running statistics */
    struct ap_result *stats;
    bool share_layers; /* vision: all layers have one's weights, but for norms */
    int aux;           /* sum of the load-balancing losses, -1 for none */
    double dropout;    /* share that model_dropout drops, 0: nothing */
    int n_drops, seed; /* places that drop; with one, the input they draw from */
};

/* Builds the forward graph; the loss, or -1 with m->err set. */
typedef int model_fn(struct model *m);

struct model_family {
    const char *name, *help;
    model_fn *build;
    const char *optimizer;       /* default */
    int64_t size[MODEL_N_SIZES]; /* defaults; 0: not taken, -1: derived or off */
    const struct model_style *style;
};

/* A named configuration; sizes of 0 and a style of NULL are the family's. */
struct model_config {
    const char *name, *family, *help;
    int64_t size[MODEL_N_SIZES];
    const struct model_style *style;
};

extern const struct model_style model_classic; /* of the papers' models */

extern const struct model_family model_families[]; /* NULL name ends */
extern const struct model_config model_configs[];
const struct model_family *model_find_family(const char *name);
const struct model_config *model_find_config(const char *name);

/*
 * A configuration from Hugging Face's config.json (config.c), named after its
 * _name_or_path or model_type, all in the arena. Sizes on the command line override the
 * file. Otherwise an exit status with "FILE: /POINTER: why": AP_BAD_INPUT for members
 * that are wrong, AP_USAGE for a model that is not built; unless quiet, warns of
 * members that are left out.
 */
int model_read_config(struct ap_arena *arena, const char *path, bool quiet,
                      struct model_config *config, struct ap_err *err);

/* The same for the config.json of this name in configs/; false: there is none. */
bool model_named_config(struct ap_arena *arena, const char *name,
                        struct model_config *config);
struct model_name {
    const char *name, *type; /* model_type */
};
/* The n names in configs/, in the arena. */
const struct model_name *model_named_configs(struct ap_arena *arena, int *n);

/* ---- families ---- */

model_fn model_mlp, model_decoder, model_bert, model_albert, model_t5, model_switch,
    model_vit, model_v_moe, model_widenet, model_clip, model_resnet, model_wresnet,
    model_vgg19, model_alexnet, model_cnn, model_unet, model_wav2vec2;

/* ---- sizes ---- */

/* Size s, or `derived` when it was not given. */
int64_t model_get(const struct model *m, enum model_size s, int64_t derived);
bool model_flag(const struct model *m, enum model_size s);
/* -1 with m->err naming the options unless the size of a is a multiple of b's. */
int model_check_divides(struct model *m, enum model_size a, enum model_size b);
/* -1 with m->err set when the sequence is longer than the table of positions. */
int model_check_positions(struct model *m);

/* ---- nodes (layers.c) ---- */

/* Sets the scope of the nodes that follow. */
void model_scope(struct model *m, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Weight "<path>/<leaf>", made at its first use; leaf may be NULL. */
int model_weight(struct model *m, const char *path, const char *leaf, int rank,
                 const int64_t *dims);
/* While set, weights below path `from` are those below `to`; NULL ends it. */
void model_share(struct model *m, const char *from, const char *to);
int model_input(struct model *m, const char *name, enum ap_dtype dtype, int rank,
                const int64_t *dims);
/* Path in the arena. */
const char *model_path(struct model *m, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* [batch, image, image, features], and [batch] of classes. */
int model_image(struct model *m, int64_t features);
int model_label(struct model *m);
int64_t model_dim(const struct model *m, int x, int d);         /* d < 0: from the end */
int model_binary(struct model *m, enum ap_op op, int x, int y); /* same shapes */
int model_add(struct model *m, int x, int y);
int model_mul(struct model *m, int x, int y);
/* Vector v along dimension d (< 0: from the end) of x's shape. */
int model_along(struct model *m, int v, int x, int d);
/* y, which lacks the dimension d of x, broadcast to x's shape. */
int model_over(struct model *m, int y, int x, int d);
int model_sum(struct model *m, int x, int d); /* over one dimension */
int model_mean(struct model *m, int x, int n, const int64_t *dims);
int model_mean_all(struct model *m, int x);

int model_relu(struct model *m, int x);
int model_gelu(struct model *m, int x); /* by tanh */
int model_act(struct model *m, enum model_act act, int x);
int model_cap(struct model *m, int x, double cap); /* cap tanh(x / cap); 0: x */
int model_softmax(struct model *m, int x);
/* Zeros for a share m->dropout of x, the rest times 1 / (1 - share). */
int model_dropout(struct model *m, int x);
/* x plus the vector "<path>/b" along its last dimension. */
int model_bias(struct model *m, const char *path, int x);
/* x . w (+ b) over the last dimension. */
int model_dense(struct model *m, const char *path, int x, int64_t n_out, bool bias);
int model_norm(struct model *m, enum model_norm norm, const char *path, int x);
/* act(gate) * up, or act(up) without a gate (-1). */
int model_glu(struct model *m, int gate, int up);
int model_unit_rows(struct model *m, int x); /* last dimension: vectors of length one */
/* Rows of the table at path, [n, width]; table: where to put it, or NULL. */
int model_embed(struct model *m, const char *path, int ids, int64_t n, int64_t width,
                int *table);
/* x plus the first seq of the --positions positions [.., width] at path. */
int model_add_positions(struct model *m, const char *path, int x);
/* x [..., width] . table [n, width], transposed: a head tied to an embedding. */
int model_tied_head(struct model *m, const char *path, int x, int table);
/* x[:, row, :] of x [batch, seq, width], in the current scope. */
int model_row(struct model *m, int x, int64_t row);
/* one_hot(ids, n) as f32, ids of any shape. */
int model_one_hot(struct model *m, int ids, int64_t n);
/* Per row: logsumexp(logits) - logits[label]. */
int model_cross_entropy(struct model *m, int logits, int labels);
/* sum(x * mask) / max(sum(mask), 1); mask: 0 or 1, integers */
int model_masked_mean(struct model *m, int x, int mask);
/* The mean of that, under the scope "loss"; with the balance losses if there are some. */
int model_loss(struct model *m, int logits, int labels);
/* loss with the balance losses, if there are some, under that scope */
int model_balanced(struct model *m, int loss);

/* ---- attention and mixtures (attention.c, block.c, moe.c) ---- */

struct model_names {
    const char *ln_attn, *attn, *ln_cross, *cross, *ln_mlp, *gate, *up, *act, *down;
};
extern const struct model_names model_t5_names, model_gated_names;

struct model_block {
    const struct model_names *names;
    int64_t heads, head_dim, ffn;
    int64_t kv_heads; /* divides heads; as many queries share a key and a value */
    int64_t window;   /* positions that a query sees, itself included; 0: all earlier */
    int64_t turned;   /* features of queries and keys with rotary embedding; 0: none */
    double theta;     /* of the rotation */
    bool latent;      /* multi-head latent attention, sizes from m */
    double scale;     /* of the scores */
    bool causal;      /* a mask that hides later positions */
    bool post_norm;   /* norms after the sums, as BERT */
    enum model_norm norm;
    bool qkv_bias, key_bias, out_bias; /* key_bias: with qkv_bias, the key's, too */
    bool mlp_bias;
    bool expert_bias;               /* in mixtures */
    int64_t experts, top, capacity; /* experts 0: a dense layer; capacity 0: no limit */
    int64_t group;                  /* tokens that share a capacity; 0: a row's */
    int64_t shared_ffn;             /* of an expert that sees all tokens; 0: none */
    const char *weights; /* path whose weights are used, but for norms; NULL: its own */
};

/*
 * x [batch, seq, width] attends to memory [batch, seq', width] (x itself: self
 * attention); position (-1: none) [heads, seq, seq'] is added to the scores.
 */
int model_attention(struct model *m, const char *path, const struct model_block *block,
                    int x, int memory, int position);
/* The same for x alone by latent keys and values (DeepSeek-V2, section 2.1). */
int model_latent_attention(struct model *m, const char *path,
                           const struct model_block *block, int x);
/*
 * One layer on x [batch, seq, width]; memory (-1: none) [batch, seq, width] adds cross
 * attention, position (-1: none) [heads, seq, seq] is added to the scores.
 */
int model_transformer(struct model *m, const char *path, const struct model_block *block,
                      int x, int memory, int position);
/* A layer of one part, see struct model_style. */
int model_single(struct model *m, const char *path, const struct model_block *block,
                 char kind, int x);
/* Mamba-2's scan below path (scan.c), on x [batch, seq, width]; chunks divide seq. */
int model_scan(struct model *m, const char *path, int x);
/* The feed-forward part below path, of hidden size ffn. */
int model_mlp_part(struct model *m, const char *path, const struct model_block *block,
                   int64_t ffn, int x);
/* The mixture of experts below path, on x [batch, seq, width]; adds to m->aux. */
int model_mixture(struct model *m, const char *path, const struct model_block *block,
                  int x);
/* Fills a block from m's sizes: biases, layer norms, no mask, no experts. */
void model_block_init(const struct model *m, struct model_block *block);
/* Puts experts in, from m's sizes; tokens: of a row of the batch. */
void model_block_experts(const struct model *m, struct model_block *block,
                         int64_t tokens);
/*
 * --layers layers, "<prefix>0" and so on; mixed (NULL: none) is the block of the last one
 * of every --moe-every.
 */
int model_stack(struct model *m, const char *prefix, const struct model_block *block,
                const struct model_block *mixed, int x, int memory, int position);

/* ---- convolutions (conv.c) ---- */

struct model_conv {
    int64_t n_out, size, stride;
    int64_t groups; /* 0: one */
    bool valid;     /* no padding; otherwise output = ceil(input / stride) */
    bool bias;
};

/* x [batch, spatial ..., features]; weight "<path>/w" [size ..., in, out]. */
int model_convolve(struct model *m, const char *path, int x,
                   const struct model_conv *conv);

#endif
