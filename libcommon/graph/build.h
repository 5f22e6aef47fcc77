/*
 * Making graphs: one function per family of operators, which infers the result's shape
 * and adds the node. Used where a graph is written by a program: readers that lower to
 * HLO, differentiation, model generators.
 *
 * A wrong call (dimensions that do not fit) is a bug of the caller, except that
 * ap_build_finish checks the whole graph (ap_graph_check_shapes) and returns the message.
 */
#ifndef AP_BUILD_H
#define AP_BUILD_H

#include "graph/graph.h"

struct ap_build_kept {
    const void *data; /* NULL: nothing yet */
    size_t size;
};

struct ap_build {
    struct ap_arena *arena;
    int n, cap;
    struct ap_node *nodes; /* malloc'ed, the arena's at the end */
    const char *scope;     /* of the nodes added from now on; interned by the caller */
    enum ap_phase phase;
    int n_params;
    int n_reducers, cap_reducers;
    struct ap_reducer *reducers;
    int n_comps; /* of the graph that ap_build_from started from */
    const struct ap_comp *comps;
    int reducer_of[AP_N_REDS][AP_N_DTYPES]; /* number + 1 */
    struct ap_build_kept kept[256];         /* by a hash */
};

void ap_build_init(struct ap_build *b, struct ap_arena *arena);
/* Starts from a graph whose nodes keep their ids. */
void ap_build_from(struct ap_build *b, struct ap_arena *arena, const struct ap_graph *g);
/* Adds a node as given (operands are copied) and returns its id; a name of NULL becomes
 * "<op>.<id>". */
int ap_build_node(struct ap_build *b, enum ap_op op, const char *name,
                  struct ap_shape shape, const struct ap_attrs *attrs, int n_in,
                  const int *in);
/* The attributes' defaults, in the arena. */
struct ap_attrs *ap_build_attrs(struct ap_build *b);
/* Shape with copied dims. */
struct ap_shape ap_build_shape(struct ap_build *b, enum ap_dtype dtype, int rank,
                               const int64_t *dims);
/* A window of one dimension without padding, dilation or reversal. */
static inline struct ap_window_dim ap_build_window(int64_t size, int64_t stride)
{
    return (struct ap_window_dim){
        .size = size, .stride = stride, .lhs_dilate = 1, .rhs_dilate = 1};
}
struct ap_ints ap_build_ints(struct ap_build *b, int n, const int64_t *v);
static inline const struct ap_shape *ap_build_shape_of(const struct ap_build *b, int id)
{
    return &b->nodes[id].shape;
}

int ap_build_param(struct ap_build *b, const char *name, struct ap_shape shape,
                   enum ap_role role);
/* A scalar constant, and one broadcast to a shape (two nodes). */
int ap_build_scalar(struct ap_build *b, enum ap_dtype dtype, double value);
int ap_build_full(struct ap_build *b, const struct ap_shape *like, double value);
/* A constant of all elements; data is copied. */
int ap_build_literal(struct ap_build *b, struct ap_shape shape, const void *data);
int ap_build_iota(struct ap_build *b, struct ap_shape shape, int dim);

int ap_build_unary(struct ap_build *b, enum ap_op op, int x);
/* Operands of equal shape. */
int ap_build_binary(struct ap_build *b, enum ap_op op, int x, int y);
int ap_build_compare(struct ap_build *b, enum ap_direction direction, int x, int y);
int ap_build_select(struct ap_build *b, int pred, int on_true, int on_false);
int ap_build_convert(struct ap_build *b, int x,
                     enum ap_dtype dtype); /* x itself if it has this type */
/* x op value, the number broadcast to x's shape. */
int ap_build_with(struct ap_build *b, enum ap_op op, int x, double value);

/* Operand dimension i becomes result dimension map[i]. */
int ap_build_broadcast(struct ap_build *b, int x, int rank, const int64_t *dims,
                       const int64_t *map);
int ap_build_reshape(struct ap_build *b, int x, int rank, const int64_t *dims);
int ap_build_transpose(struct ap_build *b, int x, const int64_t *perm);
int ap_build_slice(struct ap_build *b, int x, const struct ap_slice_dim *dims);
int ap_build_pad(struct ap_build *b, int x, int value, const struct ap_pad_dim *dims);
int ap_build_concat(struct ap_build *b, int n, const int *x, int dim);
int ap_build_reverse(struct ap_build *b, int x, int n, const int64_t *dims);

/* The dimensions of a product that are batch, and those that are summed over. */
struct ap_dot_dims {
    int n_batch;
    const int64_t *x_batch, *y_batch;
    int n_contract;
    const int64_t *x_contract, *y_contract;
};
/* Result: batch, free of x, free of y, as HLO orders them. */
int ap_build_dot(struct ap_build *b, int x, int y, const struct ap_dot_dims *of);
/* A product without batch that sums over one dimension of each operand. */
int ap_build_matmul(struct ap_build *b, int x, int y, int64_t x_dim, int64_t y_dim);
/* attrs: window, conv, groups; the result's shape follows. */
int ap_build_conv(struct ap_build *b, int x, int w, struct ap_attrs *attrs);
/* Reduces over dims, from the neutral element; red: sum, prod, max, min, and, or. */
int ap_build_reduce(struct ap_build *b, int x, enum ap_red red, int n,
                    const int64_t *dims);
/* window: one per dimension; from the neutral element. */
int ap_build_reduce_window(struct ap_build *b, int x, enum ap_red red,
                           const struct ap_window_dim *window);
/* Rows of a table: x[indices[...], ...], indices s32 of any rank. */
int ap_build_take(struct ap_build *b, int table, int indices);
/* The number of the reducer of red in dtype, which is made on first use; assign is for
 * scatter. */
int ap_build_reducer(struct ap_build *b, enum ap_red red, enum ap_dtype dtype);

/* Number of a reducer of any kind; its body is not copied. */
int ap_build_add_reducer(struct ap_build *b, struct ap_reducer reducer);

/*
 * The finished graph: its parameters are numbered in the order of ap_build_param, and it
 * is indexed, checked and grouped (ap_group). Frees the builder's own memory.
 */
int ap_build_finish(struct ap_build *b, const char *name, int n_results,
                    const struct ap_result *results, struct ap_graph *g,
                    struct ap_err *err);

#endif
