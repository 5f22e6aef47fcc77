/*
 * HLO text as written: computations of instructions, names resolved, attributes read;
 * calls, tuples and sharding calls still in place. Everything lives in the source's
 * arena.
 */
#ifndef HLO_PARSE_H
#define HLO_PARSE_H

#include "graph/graph.h"
#include "hlo/hlo_lex.h"

enum hlo_kind {
    HLO_OP, /* an operator of ops.def */
    HLO_TUPLE,
    HLO_GET,  /* get-tuple-element */
    HLO_CALL, /* also a fusion, which is a call to the reader */
    HLO_MAP,
    HLO_BITCAST,
    HLO_CUSTOM_CALL,
    HLO_BARRIER, /* opt-barrier */
    HLO_BATCH_NORM,
    HLO_RNG,
    HLO_WHILE,
    HLO_CONDITIONAL,
    HLO_UNSUPPORTED /* legal HLO that the planner cannot represent; attributes are unread
                     */
};

struct hlo_instr {
    enum hlo_kind kind;
    enum ap_op op; /* of HLO_OP */
    struct hlo_span opcode;
    const char *name;
    size_t pos;       /* of the name in the text */
    size_t shape_pos; /* of the shape in the text, layout included; 0: not given */
    bool shape_known; /* false: the text leaves the shape out */
    struct ap_shape shape;
    int n_in;
    const int *in;                    /* earlier instructions of the same computation */
    int64_t number;                   /* parameter number, get-tuple-element index */
    const struct ap_attrs *attrs;     /* shared; reducers and literal are not in it */
    const struct ap_literal *literal; /* constants */
    int comp[2];    /* to_apply, calls, select or body; scatter or condition. -1:
                       none */
    double epsilon; /* of a batch norm */
    int n_branches; /* of a conditional */
    const int *branches;
    int64_t trip_count;  /* of a while loop, as its backend_config says; -1: not said */
    const char *op_name; /* metadata, "" for none */
    const char *pin;     /* sharding, raw text, or NULL */
    const char *target;  /* custom_call_target, or NULL */
    struct hlo_span config; /* backend_config, raw text */
    bool side_effect;       /* of a custom call */
};

struct hlo_comp {
    const char *name;
    size_t pos;
    int n, root;
    const struct hlo_instr *instr;
    int n_params;
    const int *params; /* instruction of parameter i */
};

/* One entry of input_output_alias: a leaf of the result and one of a parameter. */
struct hlo_alias {
    struct ap_ints result, param_index;
    int64_t param;
    size_t pos;
};

struct hlo_module {
    const char *name;
    int n_comps, entry;
    const struct hlo_comp *comps;
    int n_params; /* of the entry, as its layout in the header says; -1: not said */
    int n_aliases;
    const struct hlo_alias *aliases;
    int64_t n_instrs; /* of all computations */
    const char *step; /* frontend attribute autopar.step of the header, or NULL */
    size_t step_pos;  /* of that header's attributes in the text */
};

/* -1 with src->err and src->unsupported set. Linear in the text. */
int hlo_parse(struct hlo_src *src, struct hlo_module *module);

/* ---- shared by the files of the reader ---- */

/* A shape at the cursor, its layout skipped. */
int hlo_shape(struct hlo_src *src, struct ap_shape *shape);
/* True if the text at the cursor is a shape rather than a name. */
bool hlo_at_shape(struct hlo_src *src);
/* The value of a constant of this shape, up to but without the closing parenthesis. */
int hlo_literal(struct hlo_src *src, const struct ap_shape *shape,
                const struct ap_literal **out);
/* Adds splat and interned data for a literal: n elements of size bytes each. */
const struct ap_literal *hlo_literal_make(struct ap_arena *arena, const void *data,
                                          int64_t n, size_t size);

/* Attribute sets that were read before, by their text; warned unknown attributes. */
struct hlo_attr_cache {
    struct ap_names texts; /* "<op><name>=<value>..." to index in sets */
    const struct ap_attrs **sets;
    int n, cap;
    struct ap_names warned;
    struct ap_buf key;
};
void hlo_attr_cache_free(struct hlo_attr_cache *cache);

/*
 * ", name=value" pairs after an instruction. comps maps names of computations to their
 * numbers.
 */
int hlo_attrs(struct hlo_src *src, struct hlo_attr_cache *cache,
              const struct ap_names *comps, struct hlo_instr *instr);
/* Attributes of the module header; fills the aliases. */
int hlo_header_attrs(struct hlo_src *src, struct hlo_attr_cache *cache,
                     struct hlo_module *module);

#endif
