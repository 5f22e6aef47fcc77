/* Inside the shape checks only: helpers that their files share. */
#ifndef AP_SHAPE_CHECK_H
#define AP_SHAPE_CHECK_H

#include "graph/graph.h"

struct check {
    const struct ap_graph *g;
    const struct ap_node *node;
    struct ap_err *err;
};

/* Shape of operand k. */
static inline const struct ap_shape *check_in(const struct check *c, int k)
{
    return &c->g->nodes[c->node->in[k]].shape;
}

/* The result must be an array of this dtype and these dims; a rank that is too large is
 * an error. */
int check_result(const struct check *c, enum ap_dtype dtype, const int64_t *dims,
                 int rank);
/* The result must have shape s. */
int check_result_like(const struct check *c, const struct ap_shape *s);
/* Entries of an attribute are dimensions below rank, each once; *mask gets them as bits.
 */
int check_dims(const struct check *c, const char *name, const struct ap_ints *dims,
               int rank, unsigned *mask);
/* The attribute has n entries. */
int check_count(const struct check *c, const char *name, int have, int need);
/* Reducer attribute: present, and with n parameters and n_results if it has a body. */
int check_reducer_arity(const struct check *c, const char *name, int id, int n_params,
                        int n_results);
/* Operand k is a scalar of dtype. */
int check_scalar(const struct check *c, int k, enum ap_dtype dtype);

/* Checks of single operators; check_node has dispatched on the operator. */
int check_dot(const struct check *c);
int check_convolution(const struct check *c);
int check_fft(const struct check *c);
int check_linalg(const struct check *c);
int check_reduce_window(const struct check *c);
int check_select_and_scatter(const struct check *c);
int check_gather(const struct check *c);
int check_scatter(const struct check *c);
int check_dynamic_slice(const struct check *c);
int check_dynamic_update_slice(const struct check *c);
int check_program_op(const struct check *c);
/* Checks attrs.global, if the node has it. */
int check_global(const struct check *c);

#endif
