/*
 * ONNX to HLO. onnx_import.c walks the nodes in the order of the file; each is lowered by
 * a function of the table in onnx_ops.c, written with the calls below, which infer shapes
 * and check the file. Values that decide shapes are computed on demand (onnx_eval.c).
 *
 * Every call that returns a node id returns -1 when an operand is -1 or when it failed:
 * lowering functions need not check in between, the first message wins.
 */
#ifndef ONNX_H
#define ONNX_H

#include "graph/build.h"
#include "import.h"
#include "onnx/onnx_read.h"

struct onnx_dim {
    const char *name;
    int64_t size;
    bool used;
};

struct onnx_options {
    int n_dims;
    struct onnx_dim *dims; /* --dim */
    const char *values;    /* --values: folder, or NULL */
    const char *weights;   /* --weights: folder, or NULL */
};

/*
 * The whole pipeline: a model to an indexed, grouped and checked graph in f->arena; with
 * options->weights, parameters with values are written there. -1 with f->err (and
 * f->unsupported) set.
 */
int import_onnx(struct onnx_file *f, struct onnx_options *options,
                struct import_params *params, struct ap_graph *g,
                struct import_stats *stats);

/* ---- lowering ---- */

/* Elements that are known while lowering, row-major; as i or f by the node's dtype. */
struct ox_val {
    int64_t n;
    int64_t *i;
    double *f;
};

/* Where a parameter's value comes from. */
struct ox_leaf {
    int init;  /* number of the initialiser, or -1 */
    int input; /* number of the graph's input, or -1 */
};

struct ox;
struct ox_op {
    const char *name;
    int since, until; /* opsets */
    int min_in, max_in;
    int (*run)(struct ox *c); /* node of output 0; others in c->out */
    int arg;                  /* run's own: operator, reducer, variant */
};

#define OX_MAX_OUT 64

struct ox {
    struct onnx_file *file;
    struct onnx_model *model;
    struct onnx_options *opt;
    struct ap_build b;
    struct ap_names values; /* name to node */
    int n_leaves, cap_leaves;
    struct ox_leaf *leaves;   /* by parameter number */
    struct ox_val **known;    /* by node, NULL: not computed; malloc */
    signed char *known_state; /* by node, malloc */
    int cap_known;
    /* the ONNX node being lowered */
    const struct onnx_node *node;
    const struct ox_op *op;
    int64_t opset;
    int n_in;
    int *in; /* -1: left out */
    int out[OX_MAX_OUT];
};

/* The row for an operator, NULL with *known_name set if only its version is not known. */
const struct ox_op *ox_find(const char *domain, const char *name, int64_t opset,
                            bool *known_name);

/* "node NAME (Op): ..." */
int ox_fail(struct ox *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int ox_refuse(struct ox *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Input i, -1 if it is left out. */
static inline int ox_in(const struct ox *c, int i)
{
    return i < c->n_in ? c->in[i] : -1;
}
static inline struct ap_shape ox_shape(const struct ox *c, int id)
{
    return id < 0 ? (struct ap_shape){0} : c->b.nodes[id].shape;
}
static inline enum ap_dtype ox_dtype(const struct ox *c, int id)
{
    return ox_shape(c, id).dtype;
}
static inline int ox_rank(const struct ox *c, int id)
{
    return ox_shape(c, id).rank;
}
/* Whether output k is asked for. */
static inline bool ox_wants(const struct ox *c, int k)
{
    return k < c->node->n_out && *c->node->out[k];
}

/* ---- attributes ---- */

const struct onnx_attr *ox_attr(const struct ox *c, const char *name);
int64_t ox_attr_i(const struct ox *c, const char *name, int64_t otherwise);
double ox_attr_f(const struct ox *c, const char *name, double otherwise);
const char *ox_attr_s(const struct ox *c, const char *name, const char *otherwise);
bool ox_attr_ints(const struct ox *c, const char *name, struct ap_ints *v);
/* An axis in [-rank, rank) made one in [0, rank); false and failed otherwise. */
bool ox_axis(struct ox *c, int64_t *axis, int rank);

/* ---- known values ---- */

/* The elements of a node; NULL if they depend on unknown values. */
const struct ox_val *ox_eval(struct ox *c, int id);
/* Integers of input i; false and refused when they are not known. */
bool ox_ints(struct ox *c, int i, struct ap_ints *v);
bool ox_floats(struct ox *c, int i, const double **v, int64_t *n);
/* As attribute `name`, or as input i if that is there; *given says whether either. */
bool ox_ints_of(struct ox *c, const char *name, int i, struct ap_ints *v, bool *given);

/* ---- nodes ---- */

int ox_scalar(struct ox *c, enum ap_dtype dtype, double v);
int ox_full(struct ox *c, enum ap_dtype dtype, int rank, const int64_t *dims, double v);
int ox_full_like(struct ox *c, int x, double v);
int ox_ints_const(struct ox *c, enum ap_dtype dtype, int rank, const int64_t *dims,
                  const int64_t *v);
int ox_floats_const(struct ox *c, enum ap_dtype dtype, int rank, const int64_t *dims,
                    const double *v);
int ox_iota(struct ox *c, enum ap_dtype dtype, int rank, const int64_t *dims, int dim);

int ox_unary(struct ox *c, enum ap_op op, int x);
/* Operands of one dtype; dimensions broadcast as numpy does. */
int ox_bin(struct ox *c, enum ap_op op, int x, int y);
int ox_cmp(struct ox *c, enum ap_direction dir, int x, int y);
int ox_select(struct ox *c, int pred, int x, int y);
int ox_with(struct ox *c, enum ap_op op, int x, double v); /* x op v */
int ox_to(struct ox *c, int x, enum ap_dtype dtype);

/* To these dimensions, as numpy does: aligned at the right, 1 repeats. */
int ox_expand(struct ox *c, int x, int rank, const int64_t *dims);
/* x's dimension i becomes dimension map[i] of dims. */
int ox_broadcast(struct ox *c, int x, int rank, const int64_t *dims, const int64_t *map);
/* A vector along dimension d of a tensor of these dimensions. */
int ox_along(struct ox *c, int x, int d, int rank, const int64_t *dims);
int ox_reshape(struct ox *c, int x, int rank, const int64_t *dims);
int ox_transpose(struct ox *c, int x, const int64_t *perm);
/* Dimension d cut to [start, limit) by steps. */
int ox_slice(struct ox *c, int x, int d, int64_t start, int64_t limit, int64_t step);
int ox_pad(struct ox *c, int x, int value, const struct ap_pad_dim *pad);
int ox_concat(struct ox *c, int n, const int *x, int d);
int ox_reverse(struct ox *c, int x, int d);
/* Moves dimension `from` to place `to`. */
int ox_move(struct ox *c, int x, int from, int to);
/* keep: reduced dimensions stay with size 1. */
int ox_reduce(struct ox *c, int x, enum ap_red red, int n, const int64_t *dims,
              bool keep);
int ox_reduce1(struct ox *c, int x, enum ap_red red, int d, bool keep);
int ox_mean(struct ox *c, int x, int n, const int64_t *dims, bool keep);
int ox_reduce_window(struct ox *c, int x, enum ap_red red,
                     const struct ap_window_dim *window);
int ox_conv(struct ox *c, int x, int w, struct ap_attrs *attrs);
/* As ap_build_dot and ap_build_matmul. */
int ox_dot(struct ox *c, int x, int y, const struct ap_dot_dims *of);
int ox_product(struct ox *c, int x, int y, int64_t x_dim, int64_t y_dim);
/* numpy's matmul. */
int ox_matmul(struct ox *c, int x, int y);

/* Indices below zero count from the end. */
int ox_wrap_index(struct ox *c, int indices, int64_t extent);
/* x[..., indices, ...] in dimension d. */
int ox_take(struct ox *c, int x, int indices, int d);
/* The same with known indices. */
int ox_take_known(struct ox *c, int x, int d, int64_t n, const int64_t *indices);
/* Any node. */
int ox_node(struct ox *c, enum ap_op op, struct ap_shape shape, struct ap_attrs *attrs,
            int n_in, const int *in);

/* ---- shared by the files of operators ---- */

int ox_softmax(struct ox *c, int x, int d, bool log);
/* Index vectors of all dimensions, dimension d's replaced by indices: [..., rank]. */
int ox_index_grid(struct ox *c, int indices, int d);
int ox_gather_elements(struct ox *c, int x, int indices, int d);

/* One table a file, ended by a NULL name. */
extern const struct ox_op ox_math_ops[], ox_reduce_ops[], ox_shape_ops[], ox_index_ops[],
    ox_nn_ops[], ox_pool_ops[], ox_loss_ops[], ox_resize_ops[], ox_quant_ops[],
    ox_einsum_ops[];

#endif
