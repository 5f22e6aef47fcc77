/*
 * The graph: a training step for one device, in XLA HLO's operators. Nodes are kept in an
 * order in which operands come first; ids are array positions.
 */
#ifndef AP_GRAPH_H
#define AP_GRAPH_H

#include "base/base.h"

#define AP_MAX_RANK 12
#define AP_MAX_AXES 6 /* mesh axes */

enum ap_dtype {
    AP_PRED,
    AP_S8,
    AP_S16,
    AP_S32,
    AP_S64,
    AP_U8,
    AP_U16,
    AP_U32,
    AP_U64,
    AP_F16,
    AP_BF16,
    AP_F32,
    AP_F64,
    AP_F8E4M3FN,
    AP_F8E5M2,
    AP_C64,
    AP_C128,
    AP_TUPLE, /* not an element type */
    AP_N_DTYPES
};

const char *ap_dtype_name(enum ap_dtype dtype); /* as HLO spells it: "f32" */
int ap_dtype_size(enum ap_dtype dtype);         /* bytes of an element, 0 for a tuple */
/* Bits of the significand, the leading one included; 0: exact (integers, pred). */
int ap_dtype_precision(enum ap_dtype dtype);
bool ap_dtype_is_float(enum ap_dtype dtype);
/* The type in which values of this type are added up: f32 for f16 and bf16, else the type
 * itself. */
enum ap_dtype ap_dtype_of_sums(enum ap_dtype dtype);
bool ap_dtype_is_int(enum ap_dtype dtype); /* signed or unsigned, not pred */
/* The type that the len bytes at s name; AP_N_DTYPES if they name none. */
enum ap_dtype ap_dtype_find(const char *s, size_t len);

struct ap_shape {
    enum ap_dtype dtype;
    int rank;            /* 0..AP_MAX_RANK; 0 for tuples */
    const int64_t *dims; /* rank sizes >= 0 */
    int n_parts;         /* tuples only */
    const struct ap_shape *parts;
};

int64_t ap_shape_elems(const struct ap_shape *s); /* saturating; 0 for a tuple */
/* Saturating; of a tuple: the sum of its parts. */
int64_t ap_shape_bytes(const struct ap_shape *s);
bool ap_shape_equal(const struct ap_shape *a, const struct ap_shape *b);
bool ap_shape_same_dims(const struct ap_shape *a, const struct ap_shape *b);
/* HLO's spelling without a layout: "f32[8,4]", "(f32[8], s32[8])". */
void ap_shape_print(const struct ap_shape *s, struct ap_buf *out);
/*
 * Reads a shape at *pos of NUL-terminated text and moves *pos past it; a layout in braces
 * is skipped. -1 with err set (no position in the message) if the shape is malformed, or
 * has a dynamic size or more than AP_MAX_RANK dimensions.
 */
int ap_shape_parse(struct ap_arena *arena, const char *text, size_t *pos,
                   struct ap_shape *shape, struct ap_err *err);

/* ---- operators: one row of ops.def each ---- */

enum ap_op {
#define AP_OP(id, ...) AP_OP_##id,
#include "graph/ops.def"
#undef AP_OP
    AP_N_OPS
};

/* The class of an operator, which decides its factor rule and whether it may join a fused
 * chain. */
enum ap_op_class {
    AP_CLASS_LEAF,        /* parameter, constant, iota */
    AP_CLASS_ELEMENTWISE, /* one factor per dimension, the same for all operands (or
                             scalar) */
    AP_CLASS_MOVE,        /* moves elements: broadcast, reshape, transpose, slice, ... */
    AP_CLASS_HEAVY,       /* dot, convolution */
    AP_CLASS_REDUCE,      /* reduce, reduce-window, select-and-scatter, sort, topk */
    AP_CLASS_INDEX,       /* gather, scatter, dynamic-slice, dynamic-update-slice,
                             custom-call, while */
    AP_CLASS_TUPLE,       /* get-tuple-element */
    AP_CLASS_COLLECTIVE,  /* programs only: all-reduce ... collective-permute */
    AP_CLASS_LOCAL        /* programs only: ap-slice, ap-mask, ap-partial */
};

/* Sets of element types. */
enum ap_op_types {
    AP_OF_PRED = 1,
    AP_OF_INT = 2,     /* signed and unsigned */
    AP_OF_NARROW = 4,  /* floats narrower than f32 */
    AP_OF_F32_F64 = 8, /* the other floats */
    AP_OF_COMPLEX = 16,
    AP_OF_FLOAT = AP_OF_NARROW | AP_OF_F32_F64,
    AP_OF_NUMBER = AP_OF_INT | AP_OF_FLOAT | AP_OF_COMPLEX,
    AP_OF_ANY = AP_OF_PRED | AP_OF_NUMBER,
};

/* The type in which mixed precision computes an operator of f32 (grad/grad_lower.c). */
enum ap_op_precision {
    AP_LIKE_OPERANDS, /* the type that its operands were computed in */
    AP_IN_F32,        /* f32, because the low type would lose too much precision */
    AP_IN_LOW,        /* the low type */
};

struct ap_op_info {
    const char *name; /* HLO's */
    int arity;        /* operands, -1 for any number */
    enum ap_op_class class;
    int flops;          /* per result element of elementwise operators */
    unsigned int types; /* enum ap_op_types of an elementwise operator's operand 0 */
    enum ap_op_precision precision;
};

extern const struct ap_op_info ap_ops[AP_N_OPS];
/*
 * The operator that the len bytes at s name; AP_N_OPS if the table has no such operator.
 */
enum ap_op ap_op_find(const char *s, size_t len);

/* ---- attributes ---- */

struct ap_ints {
    int n;
    const int64_t *v;
};

struct ap_window_dim {
    int64_t size, stride, pad_lo, pad_hi, lhs_dilate, rhs_dilate;
    bool reversal;
};

struct ap_pad_dim {
    int64_t lo, hi, interior; /* lo and hi may be negative */
};

struct ap_slice_dim {
    int64_t start, limit, stride;
};

/* dim_labels: positions of each role; spatial dimension i is the digit i of the label. */
struct ap_conv_dims {
    int n_spatial;
    int lhs_batch, lhs_feature, lhs_spatial[AP_MAX_RANK];
    int rhs_in, rhs_out, rhs_spatial[AP_MAX_RANK];
    int out_batch, out_feature, out_spatial[AP_MAX_RANK];
};

enum ap_direction { AP_EQ, AP_NE, AP_GE, AP_GT, AP_LE, AP_LT };

/* The transforms of fft: from complex to complex and back, from real to half a spectrum
 * and back. */
enum ap_fft { AP_FFT_FFT, AP_FFT_IFFT, AP_FFT_RFFT, AP_FFT_IRFFT, AP_N_FFTS };
extern const char *const ap_fft_names[AP_N_FFTS]; /* "FFT", "IFFT", ... */

/* The precision to which a matrix product reads its operands, by XLA's names. */
enum ap_precision {
    AP_PRECISION_DEFAULT,
    AP_PRECISION_HIGH,
    AP_PRECISION_HIGHEST,
    AP_PRECISION_PACKED_NIBBLE,
    AP_N_PRECISIONS
};
extern const char *const ap_precision_names[AP_N_PRECISIONS]; /* "default", ... */

/* The part of a fused attention that a node is: its first node, or another one. */
enum ap_attention { AP_ATTENTION_NONE, AP_ATTENTION_FIRST, AP_ATTENTION_NEXT };

/* How a reducer combines two values; AP_RED_NONE stands for "any other computation". */
enum ap_red {
    AP_RED_NONE,
    AP_RED_SUM,
    AP_RED_PROD,
    AP_RED_MAX,
    AP_RED_MIN,
    AP_RED_AND,
    AP_RED_OR,
    AP_RED_ASSIGN, /* scatter only: the update replaces the old value */
    AP_N_REDS
};
extern const char *const ap_red_names[AP_N_REDS]; /* "sum", "max", ... */
/* The operator that combines two values in this way; AP_OP_PARAMETER if there is none. */
extern const enum ap_op ap_red_ops[AP_N_REDS];

/*
 * A constant's value. data holds one element if splat, else all in row-major order, in
 * the shape's dtype (pred: one byte, 0 or 1), little endian.
 */
struct ap_literal {
    bool elided; /* printed as {...}: no data */
    bool splat;
    const void *data;
};

/* One step of a layout change inside a dimension, see ap_coll. */
struct ap_split {
    int dim;
    int64_t outer; /* local elements of dim that are major to the split factor's piece */
    int64_t full;  /* extent before the split (after gathering), without padding */
    int64_t part;  /* extent of one device's block, ceil(full / n) */
};

/*
 * A collective or local step of a program. The dimension split.dim of local size
 * outer * x * inner is seen as (outer, x, inner); blocks of part elements of x belong to
 * the devices of the axes, the last block may be padded with zeros.
 *   all-reduce          axes (one or several at once), red
 *   all-gather          axis, split: x goes from part to full
 *   reduce-scatter      axis, split, red: x goes from full to part
 *   all-to-all          axis, split: x goes from full to part; join: x from part to full
 *   collective-permute  swaps the coordinates of two axes of equal size (axes has both);
 *                       of one axis: sends to the next device on it, from the last one to
 *                       the first
 *   ap-slice            axis, split: keeps this device's block; x from full to part
 *   ap-partial          axes, red: keeps the value where all coordinates on axes are 0,
 *                       puts red's neutral element elsewhere
 */
struct ap_coll {
    unsigned axes; /* bit a = mesh axis a */
    enum ap_red red;
    struct ap_split split, join;
};

/* How one mesh axis distributes a tensor; layouts are layout.h's subject. */
enum ap_placement_kind { AP_REPLICATED, AP_SPLIT, AP_PARTIAL };
struct ap_placement {
    uint8_t kind; /* enum ap_placement_kind */
    uint8_t red;
    uint8_t dim;
    int64_t stride;
};
struct ap_layout {
    struct ap_placement axis[AP_MAX_AXES];
};

/*
 * The array of the exported step that a parameter or a result is a part of: number
 * `index` among the leaves of the step's arguments (or results) was split along one
 * dimension after the other into parts without that dimension. Each split numbers the
 * dimensions that the splits before it left.
 */
struct ap_part {
    int index, n;
    struct ap_part_split {
        int dim;
        int64_t part, parts; /* number of this part, and of all parts */
    } split[AP_MAX_RANK];
};

/*
 * The union of all attributes: one member for each attribute of attrs.def, where the
 * parts of coll are separate attributes. An operator reads the attributes that HLO gives
 * it.
 */
struct ap_attrs {
#define AP_MEMBER_BOOL(m)       bool m;
#define AP_MEMBER_COMP(m)       int m;
#define AP_MEMBER_DIM_LABELS(m) struct ap_conv_dims m;
#define AP_MEMBER_DIRECTION(m)  enum ap_direction m;
#define AP_MEMBER_FFT(m)        enum ap_fft m;
#define AP_MEMBER_INT(m)        int64_t m;
#define AP_MEMBER_INTS(m)       struct ap_ints m;
#define AP_MEMBER_LAYOUT(m)     struct ap_layout m;
#define AP_MEMBER_ORDER(m)      bool m;
#define AP_MEMBER_PADDING(m) \
    int n_##m;               \
    const struct ap_pad_dim *m;
#define AP_MEMBER_PART(m)      const struct ap_part *m;
#define AP_MEMBER_PRECISION(m) enum ap_precision m[2];
#define AP_MEMBER_REDUCER(m)   int m;
#define AP_MEMBER_SHAPE(m)     const struct ap_shape *m;
#define AP_MEMBER_SLICE(m) \
    int n_##m;             \
    const struct ap_slice_dim *m;
#define AP_MEMBER_STRING(m)    const char *m;
#define AP_MEMBER_WORD(m)      const char *m;
#define AP_MEMBER_TRANSPOSE(m) bool m;
#define AP_MEMBER_VALUE(m)     struct ap_literal m;
#define AP_MEMBER_WINDOW(m) \
    int n_##m;              \
    const struct ap_window_dim *m;
/* members of coll: */
#define AP_MEMBER_AXES(m)
#define AP_MEMBER_RED(m)
#define AP_MEMBER_SPLIT(m)
#define AP_ATTR(name, kind, member, hlo) AP_MEMBER_##kind(member)
#include "graph/attrs.def"
    struct ap_coll coll;
};

/* The attributes of a node that gives none: ids -1, group counts 1, the rest 0. */
extern const struct ap_attrs ap_attrs_default;

/* ---- nodes ---- */

enum ap_phase { AP_FORWARD, AP_BACKWARD, AP_UPDATE, AP_N_PHASES };
enum ap_role {
    AP_ROLE_NONE,
    AP_ROLE_WEIGHT,
    AP_ROLE_STATE,
    AP_ROLE_INPUT,
    AP_ROLE_CONSTANT,
    AP_ROLE_LOSS,
    AP_ROLE_AUX,
    AP_N_ROLES
};
extern const char *const ap_phase_names[AP_N_PHASES];
extern const char *const ap_role_names[AP_N_ROLES];

struct ap_node {
    enum ap_op op;
    const char *name;
    int n_in;
    const int *in;
    struct ap_shape shape;
    const struct ap_attrs *attrs; /* never NULL */
    const char *scope; /* normalised name path, "" for none; interned per graph */
    enum ap_phase phase;
    enum ap_role role; /* parameters only */
    int param;         /* parameter number, -1 for others */
    int group;         /* fusion group; ids rise in execution order; -1 before ap_group */
    const char *pin;   /* imported sharding (raw text of the attribute), NULL for none */
};

/* A computation on scalars used by reduce, scatter, sort, ... */
struct ap_reducer {
    const char *name;
    enum ap_red red; /* AP_RED_NONE: run `body` */
    /* body: parameters first (accumulators, then values); all nodes scalar */
    int n_nodes, n_results;
    struct ap_node *nodes;
    const int *results;
};

/*
 * A computation on tensors: the condition or the body of a `while`, which has the tensors
 * of its state as operands and a tuple of the next state as result. A body maps the state
 * to the next one; a condition gives one pred[], which is true if the loop continues.
 * Node ids are the computation's own; reducers are the graph's; loops inside use
 * computations of lower ids.
 */
struct ap_comp {
    const char *name;
    int n_nodes; /* parameters first, in order */
    struct ap_node *nodes;
    int n_results;
    const int *results;
};

struct ap_result {
    int node;
    enum ap_role role; /* loss, weight, state, aux */
    int alias; /* node id of the parameter that it becomes in the next step, or -1 */
    const struct ap_part
        *part; /* of the step's result; NULL: the whole result of the same number */
};

struct ap_graph {
    const char *name;
    int n_nodes;
    struct ap_node *nodes;
    int n_params;
    const int *params; /* node id of parameter number i */
    int64_t batch;     /* of a part: ap_batch_size of the whole graph, 0: unknown */
    int n_results;
    struct ap_result *results;
    /* [result]: whether other parts read this result of a part in its layout (with
     * partial sums reduced); NULL: none */
    const bool *taken;
    /* [node]: whether a parameter of a part is sent by another part, a share for each
       microbatch if it is split over time; NULL: none */
    const bool *handed;
    int n_reducers;
    const struct ap_reducer *reducers;
    int n_comps;
    const struct ap_comp *comps;
    int n_groups;               /* 0 before ap_group */
    const char *const *dropped; /* names of nodes that the importer dropped */
    int n_dropped;
    /* CSR: users of node i are users[user_start[i] .. user_start[i + 1]), ascending, a
     * user once per operand position; made by ap_graph_index */
    const int *user_start, *users;
};

/* The batch size: the first dimension that most inputs share; 0 if there is none. */
int64_t ap_batch_size(const struct ap_graph *g);

/*
 * Moves masks (y > 0) from the backward to the forward phase, with the broadcasts, iotas
 * and scalar constants that they read: elementwise nodes that are made of forward values
 * and narrower than one of them, so that they can be kept in its place. Operands come
 * before their users, phases are set. Linear, but for chains of broadcasts.
 */
void ap_graph_keep_masks(struct ap_node *nodes, int n);

/*
 * Builds the CSR index and params, and checks what every tool relies on: operands come
 * before their users and exist, arities fit, tuples are used by get-tuple-element only,
 * result and reducer ids exist. `where` is a JSON pointer prefix ("/graph") for messages.
 */
int ap_graph_index(struct ap_arena *arena, struct ap_graph *g, const char *where,
                   struct ap_err *err);

/* Whether a node is one of the graph's results. Linear in these. */
bool ap_graph_is_result(const struct ap_graph *g, int node);

/*
 * Replaces the graph's nodes by n others; node to[v] takes the place of node v. Results
 * and the parameters that they become are renumbered, and the graph is indexed. The
 * caller sets n_groups.
 */
int ap_graph_replace(struct ap_arena *arena, struct ap_graph *g, struct ap_node *nodes,
                     int n, const int *to, struct ap_err *err);

/*
 * Makes computation `id` of g a graph of its own, indexed, with g's reducers and the
 * computations that it may use; its nodes are copies without groups.
 */
void ap_graph_of_comp(struct ap_arena *arena, const struct ap_graph *g, int id,
                      struct ap_graph *out);

/*
 * Checks that each node's shape follows from its operands' shapes and attributes; message
 * "<where>/nodes/<i> (<name>): ...". Programs (local graphs) are checked too.
 */
int ap_graph_check_shapes(const struct ap_graph *g, const char *where,
                          struct ap_err *err);

/*
 * The same for one node whose operands are earlier nodes of g. The message names no
 * place, so that readers can put their own in front.
 */
int ap_check_node(const struct ap_graph *g, const struct ap_node *node,
                  struct ap_err *err);

/* The neutral element of red in dtype, written to 16 bytes at out. */
void ap_red_neutral(enum ap_red red, enum ap_dtype dtype, void *out);

#endif
