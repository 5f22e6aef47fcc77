/* Reading config.json: what config.c and config_values.c share. */
#ifndef CONFIG_H
#define CONFIG_H

#include "doc/doc.h"
#include "model.h"

/* What the value of a member is. */
enum config_kind {
    SIZE,     /* a positive integer: size[at] */
    OPTION,   /* the same, or null or 0: derived, or none */
    SWITCH,   /* true or false: the flag size[at] */
    TIED,     /* the same: head and embedding are one weight */
    COUNT,    /* an integer > 0, or null: the int64_t of the style at byte `at` */
    REAL,     /* a number >= 0: the double of the style at byte `at`; null: 0 */
    FLAG,     /* true or false: the bool of the style at byte `at` */
    NOT,      /* the same, turned round */
    UNLESS,   /* false clears the enum of the style at byte `at` */
    WORD,     /* one of the words `why`: the enum of the style at byte `at` */
    BIASES,   /* a flag: sum of 1 (queries, keys, values), 2 (output), 4 (feed-forward) */
    ACT,      /* name of an activation */
    SCALAR,   /* a number > 0: scores are divided by its root */
    LIMIT,    /* most positions: bounds the default of --seq */
    ROPE,     /* theta, share and type of scaling; or these of two kinds of layers */
    PATTERN,  /* the pattern of the style at byte `at` */
    LAST_OFF, /* the same, from a period: ones and a last 0 */
    LAST_ON,  /* the same: zeros and a last 1 */
    LAYERS,   /* the same, from a word or number for each layer */
    ONLY,     /* the same, from the numbers of the layers that have 1 */
    EXCEPT,   /* the same, from the numbers of layers that have 0 */
    SAME,     /* null, or size[at] */
    MIXERS,   /* a letter or word for each layer: style->mixers, and their number */
    MUST_BE,  /* an integer or flag that has to be `at`; null: as absent */
    LEFT_OUT  /* said, unless null, false, zero or empty */
};

/* A member, by its usual name; several types may have it. */
struct config_field {
    const char *key;
    enum config_kind kind;
    size_t at;
    const char *why; /* WORD; MUST_BE, LEFT_OUT: reason */
};

struct config_reader {
    const char *file, *type;
    const json_t *top;     /* of the file, or its text_config */
    const json_t *names;   /* usual names by the type's own */
    const json_t *ignored; /* patterns of members of no weight for the graph */
    json_t *all; /* members by their usual names: how it is built, defaults, file */
    struct ap_arena *arena;
    struct model_config *config;
    struct model_style *style;
    bool quiet, usage; /* usage: the error is of a model that is not built */
    struct ap_err *err;
};

/* A warning about a member of the file. */
void config_note(const struct config_reader *r, const char *key, const char *what);
/* Marks the error as one of a model that is not built; -1. */
int config_not_built(struct config_reader *r);
/* The type's own name of a member, and back. */
const char *config_own_name(const struct config_reader *r, const char *usual);
const char *config_usual_name(const json_t *names, const char *own);
/* Puts the value of a member into the sizes and the style; -1 with the error set. */
int config_read_field(struct config_reader *r, const struct config_field *f,
                      const json_t *v);

#endif
