/* Inside the inlining only: values and frames, with functions for loops and branches. */
#ifndef INLINE_H
#define INLINE_H

#include "import.h"

struct value {
    int node; /* -1: the tuple of the parts */
    int n_parts;
    const struct value *parts;
    bool barred; /* read through an opt-barrier: nodes that read it repeat a computation
                    on purpose */
};

static inline struct value inline_tuple(int n, const struct value *parts)
{
    return (struct value){.node = -1, .n_parts = n, .parts = parts};
}

/* One iteration of a loop that is being unrolled. */
struct iteration {
    const struct iteration *outer;
    int depth;      /* loops around this one, itself included */
    int64_t number; /* of the layer: counted down where the loop goes backward */
};

/* Where an inlined computation stands. */
struct frame {
    struct import *im;
    const struct hlo_comp *comp;
    struct value *values; /* per instruction */
    const char *prefix;   /* of names, "" in the entry computation */
    const char *op_name;  /* of the call, "" in the entry computation */
    int depth;
    const struct iteration *iteration; /* NULL outside of loops */
    bool in_branch;                    /* of a conditional that is not decided */
};

#define INLINE_MAX_CALLS 256 /* calls and loops in one another */

/* The frame of a computation that an instruction of f evaluates. */
struct frame inline_inner(const struct frame *f, const struct hlo_comp *comp,
                          const char *prefix, const char *op_name);
/* The value of f->comp for these arguments. */
int inline_comp(struct frame *f, const struct value *args, struct value *out);
bool inline_has_shape(struct import *im, const struct value *v,
                      const struct ap_shape *shape);
const char *inline_name(const struct frame *f, const struct hlo_instr *instr);
const char *inline_op_name(const struct frame *f, const struct hlo_instr *instr);
int inline_check(struct import *im, size_t pos, const struct ap_node *node);
/* Whether an operand of the instruction is read through an opt-barrier. */
bool inline_is_barred(const struct frame *f, const struct hlo_instr *instr);
/* Adds the get-tuple-elements of node id, a tuple, one after the other; the first one. */
int inline_parts(struct import *im, int id);

/* An operator: one node on its operands' nodes. */
int inline_op(struct frame *f, const struct hlo_instr *instr, struct value *out);

/* ---- call.c ---- */

int inline_custom_call(struct frame *f, const struct hlo_instr *instr, struct value *out);

/* ---- lower.c ---- */

/* Whether an operator becomes others: by its operands, for all that HLO_OP says. */
bool inline_is_lowered(const struct frame *f, const struct hlo_instr *instr);
int inline_lowered(struct frame *f, const struct hlo_instr *instr, struct value *out);
int inline_map(struct frame *f, const struct hlo_instr *instr, struct value *out);
int inline_bitcast(struct frame *f, const struct hlo_instr *instr, struct value *out);

/* ---- batchnorm.c ---- */

/* batch-norm-training, -inference and -grad as the operators that they are made of. */
int inline_batch_norm(struct frame *f, const struct hlo_instr *instr, struct value *out);

/* ---- attention.c ---- */

/* Whether a custom call is an attention of cuDNN that inline_attention knows. */
bool inline_is_attention(struct frame *f, const struct hlo_instr *instr);
/* It, as the operators that it is made of. */
int inline_attention(struct frame *f, const struct hlo_instr *instr, struct value *out);

/* ---- rng.c ---- */

/* rng and rng-bit-generator as the arithmetic that they are. */
int inline_rng(struct frame *f, const struct hlo_instr *instr, struct value *out);

/* ---- loop.c ---- */

/* Unrolls a while loop of known trip count, or leaves it to inline_kept_while. */
int inline_while(struct frame *f, const struct hlo_instr *instr, struct value *out);
/* An absolute op_name with the numbers of the iterations after its loops. */
const char *inline_number_path(const struct frame *f, const char *op_name);

/* ---- keep.c ---- */

/* One node while, its computations among im->comps. Shapes have not been checked. */
int inline_kept_while(struct frame *f, const struct hlo_instr *instr, struct value *out);

/* ---- branch.c ---- */

/* Inlines the branch that is known to be taken, or all branches and a selection of their
 * results. */
int inline_conditional(struct frame *f, const struct hlo_instr *instr, struct value *out);

/* ---- fold.c ---- */

/*
 * If node follows from the counter of a loop: turns it into a constant, or finds the node
 * that it equals (returned), or makes a slice at known places out of a dynamic one. -1 if
 * the node, possibly changed, is to be added.
 */
int inline_fold(struct import *im, struct ap_node *node, struct node_info *info);
/* True, and its value, if the node is a known scalar integer or truth value. */
bool inline_known(const struct import *im, int id, int64_t *value);
/* True if the node is a scalar whose value could follow from its operands' numbers. */
bool inline_countable(const struct ap_node *node);
/* The node's value from its operands' v, which are of dtype; false if it has none. */
bool inline_count(const struct ap_node *node, enum ap_dtype dtype, const int64_t *v,
                  int64_t *out);

#endif
