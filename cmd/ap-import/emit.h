/* Inside the inlining only: one instruction that becomes several nodes. */
#ifndef EMIT_H
#define EMIT_H

#include "inline/inline.h"

/* The properties that the nodes of one instruction share. */
struct emit {
    struct frame *f;
    const struct hlo_instr *instr;
    struct node_info info;
    const char *name, *scope;
    bool barred; /* the instruction reads through an opt-barrier */
    bool bare;   /* nodes have the name alone, without their operators' names */
    size_t pos;
};

struct emit emit_start(struct frame *f, const struct hlo_instr *instr);
/* The node that operand k of the instruction is; -1 with an error when it is a tuple. */
int emit_operand(const struct emit *e, int k);
const struct ap_shape *emit_shape(const struct emit *e, int node);
/* A copy of the defaults. */
struct ap_attrs *emit_attrs(const struct emit *e);

int emit_op(const struct emit *e, enum ap_op op, int n_in, const int *in,
            const struct ap_shape *shape, const struct ap_attrs *attrs);
int emit_unary(const struct emit *e, enum ap_op op, int x);
int emit_binary(const struct emit *e, enum ap_op op, int x, int y);
/* x with other elements, by convert or bitcast-convert; x itself if it has them. */
int emit_recast(const struct emit *e, enum ap_op op, int x, enum ap_dtype dtype);
/* x in the order perm, x itself if it is in that order. */
int emit_transpose(const struct emit *e, int x, const int64_t *perm);
int emit_reshape(const struct emit *e, int x, int rank, const int64_t *dims);
/* A scalar for every element of an array with the dimensions of `like`. */
int emit_spread(const struct emit *e, int x, const struct ap_shape *like);
/* Numbers of a type for every element of an array with the dimensions of `like`. */
int emit_int(const struct emit *e, enum ap_dtype dtype, int64_t v,
             const struct ap_shape *like);
int emit_number(const struct emit *e, enum ap_dtype dtype, double v,
                const struct ap_shape *like);
/* x op v */
int emit_with(const struct emit *e, enum ap_op op, int x, int64_t v);
int emit_select(const struct emit *e, int pred, int on_true, int on_false);
/* pred of x's dimensions */
int emit_compare(const struct emit *e, enum ap_direction direction, int x, int y);
int emit_iota(const struct emit *e, enum ap_dtype dtype, const struct ap_shape *like,
              int dim);
/*
 * A computation on scalars, element by element: args are arrays of equal dimensions, and
 * so are the roots, one for each of the reducer's results.
 */
int emit_apply(const struct emit *e, int reducer, const int *args, int *roots);

#endif
