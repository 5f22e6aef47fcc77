/*
 * Trainers: which lines each can run, what it does by itself, and how its flags or file
 * say a line. A table with a row for each; sources and versions are in the files of the
 * rows.
 */
#ifndef AP_LINE_TRAINER_H
#define AP_LINE_TRAINER_H

#include "line/line.h"

/* What a layer is made of. */
enum ap_norm { AP_NORM_UNKNOWN, AP_NORM_LAYER, AP_NORM_RMS };
enum ap_positions { AP_POSITIONS_UNKNOWN, AP_POSITIONS_LEARNED, AP_POSITIONS_ROTARY };
/* of no linear map, of queries, keys and values alone, of all */
enum ap_bias { AP_BIAS_UNKNOWN, AP_BIAS_NONE, AP_BIAS_QKV, AP_BIAS_ALL };
struct ap_layer_facts {
    int64_t head_width, value_width; /* features of a head's keys, and of its values */
    /* features inside of a feed-forward part: of layers without experts, of an expert,
       beside experts; 0: none, or unknown */
    int64_t ffn, expert_ffn, shared_ffn;
    /* layers with experts: so many times some layers without and then some with them;
       turns 0: in another order */
    int64_t n_experts, turns;
    bool gated, gelu; /* two maps are multiplied; by a function of GELU's kind */
    bool query_norm;  /* queries and keys are normed */
    enum ap_norm norm;
    enum ap_positions positions;
    enum ap_bias bias;
};

/* What a model is made of, a bit each. */
enum ap_model_kind {
    AP_MODEL_LANGUAGE = 1, /* attention in layers of one kind, and a table of tokens */
    AP_MODEL_PATCHES = 2,  /* such layers on other inputs: images, waves */
    AP_MODEL_MIXED = 4,    /* attention in layers of several kinds: encoder and decoder */
    AP_MODEL_OTHER = 8,    /* no attention: convolutions, say */
    AP_MODEL_ANY = 15
};

/*
 * What the conditions of trainers ask beside the line: of a model and the devices, or of
 * a trainer's flags, where 0 is unsaid.
 */
struct ap_line_facts {
    enum ap_model_kind kind; /* 0: unknown */
    int64_t world;           /* devices */
    int64_t batch, sequence; /* samples of a step, tokens of a sample */
    int64_t layers, mtp; /* mtp: the last of them, that predict one token further each */
    int64_t heads, kv_heads;
    int64_t experts, experts_per_token; /* 0: the model has none */
    int64_t vocab, hidden;
    bool tied; /* the embedding is the head's weight, too */
    bool muon; /* the optimizer multiplies matrices */
    struct ap_layer_facts layer;
    /* types of contractions, of the weights that the optimizer updates, and of its first
       and second moments; AP_TUPLE: unknown */
    enum ap_dtype compute, master, moments, second;
};

/* Facts of which nothing is known. */
extern const struct ap_line_facts ap_line_facts_none;

/*
 * What the graph says: all but world. Heads are those of the first attention, layers
 * those that weights are numbered by. Linear in the graph.
 */
void ap_line_facts_find(struct ap_arena *arena, const struct ap_graph *g,
                        const struct ap_nests *nests, struct ap_line_facts *facts);

/* ---- the table ---- */

/* A line to be checked, complete. */
struct ap_trainer_case {
    const struct ap_trainer *trainer;
    struct ap_line line;
    const struct ap_line_facts *facts;
    int64_t microbatches, copies; /* copies: devices with other data / shard */
    int stages;
};
/* -1: the degrees are not the world's devices, or the batch cannot be cut so; err says it
 * in the line's keys. */
int ap_trainer_case_find(const struct ap_trainer *trainer, const struct ap_line *line,
                         const struct ap_line_facts *facts, struct ap_trainer_case *c,
                         struct ap_err *err);
/* A condition: 0, or -1 with a message in the trainer's words, with the numbers. */
typedef int ap_trainer_condition(const struct ap_trainer_case *c, struct ap_err *err);

/* Whether gradients and gathered weights are sent while passes run (line.overlap). */
enum ap_trainer_overlap { AP_OVERLAP_NEVER, AP_OVERLAP_ALWAYS, AP_OVERLAP_ASKED };

/* What a trainer does by itself with a line whose degrees are there. */
struct ap_trainer_habits {
    unsigned traits; /* without those that a flag turns on */
    enum ap_trainer_overlap overlap;
    int64_t expert_tensor; /* devices that split each expert where the line is silent */
};

/* Sentences for people, one after the other (arena). */
struct ap_notes {
    struct ap_arena *arena;
    int n, cap;
    const char **note;
};
void ap_note(struct ap_notes *notes, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* What a text says to a trainer. */
struct ap_trainer_said {
    struct ap_line line; /* settled */
    struct ap_line_facts facts;
};

struct ap_trainer {
    const char *name, *title; /* "megatron", "Megatron-LM 0.20" */
    /* before each line of a comment in what is written; NULL: the format has none */
    const char *comment;
    const char *parallelism[4]; /* flags of tp, pp, cp, ep; NULL: it has none */
    unsigned models;            /* kinds that it has layers for */
    int ends; /* layers that the embedding counts for, and the head (ap_trainer_deal) */
    ap_trainer_condition *const *conditions; /* ends with NULL */
    unsigned may;                            /* traits that a flag of it turns on */
    unsigned offloads;   /* bits of enum ap_line_offload that a flag of it says */
    bool offloads_first; /* activations of so many layers, too */
    struct ap_trainer_habits (*habits)(const struct ap_line *line);
    /* Flags or file of a settled, legal line; notes: what the file cannot say and the
       script must. */
    void (*write)(const struct ap_trainer *own, const struct ap_line *line,
                  const struct ap_line_facts *facts, struct ap_buf *out,
                  struct ap_notes *notes);
    /* See ap_trainer_parse. */
    int (*read)(const struct ap_trainer *own, const char *text,
                const struct ap_line_facts *known, struct ap_trainer_said *said,
                struct ap_notes *notes, struct ap_err *err);
};

#define AP_N_TRAINERS 4
extern const struct ap_trainer *const ap_trainers[AP_N_TRAINERS];
/* NULL: there is none of that name. */
const struct ap_trainer *ap_trainer_find(const char *name);
/* "megatron, torchtitan, ..." */
const char *ap_trainers_text(struct ap_arena *arena);

/*
 * Completes the line (ap_line_complete) with all that the trainer's silence says: etp,
 * its traits, the overlap that it always or never has; what says nothing goes: a list of
 * equal layers, shards of one device, the schedule of one stage. Call it before the
 * price: what the trainer runs is the line afterwards. -1: as ap_trainer_case_find.
 */
int ap_trainer_settle(const struct ap_trainer *trainer, const struct ap_line_facts *facts,
                      struct ap_line *line, struct ap_err *err);

/*
 * Deals layers over the line's stages (its list is in the arena) as trainers do: evenly,
 * where what the first and the last stage have beside them counts for so many layers, and
 * the first stages have one of what is left. -1: a stage would have less than none.
 */
int ap_trainer_deal(struct ap_arena *arena, struct ap_line *line, int64_t layers,
                    int64_t first, int64_t last);

/*
 * Whether the trainer can run the line, which need not be settled. -1: err has the first
 * condition that does not hold, in the trainer's flags and with the numbers. Conditions
 * whose facts are 0 (unknown) hold. No memory, a fraction of a microsecond.
 */
int ap_trainer_check(const struct ap_trainer *trainer, const struct ap_line *line,
                     const struct ap_line_facts *facts, struct ap_err *err);

/*
 * What a text says: a command line or script of Megatron-LM or torchtitan, a file of
 * DeepSpeed. What it leaves out is as the trainer has it by default. known: the world
 * where the text does not say it, layers, and others that the text may leave open; they
 * are 0 where they are not known. notes (whose arena gets the line's layers): what does
 * not map, and makes little difference. -1: bad input, or a flag that no line says; err
 * names it.
 */
int ap_trainer_parse(const struct ap_trainer *trainer, const char *text,
                     const struct ap_line_facts *known, struct ap_trainer_said *said,
                     struct ap_notes *notes, struct ap_err *err);
/* Whether what a text says of the model is true of it. -1: err has all numbers that
 * differ. notes: what differs and hardly changes the price. */
int ap_line_facts_agree(const struct ap_line_facts *said,
                        const struct ap_line_facts *model, struct ap_notes *notes,
                        struct ap_err *err);

#endif
