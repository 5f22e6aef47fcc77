/*
 * Operators as loop nests over factors, for whole fusion groups.
 *
 * A fusion group is one operator or a chain of elementwise operators, or an attention
 * (ap-fuse). It is the unit of decision: a choice gives each mesh axis one factor of the
 * group's nest, or none (replicated), or a linear set (the operands in it are partial,
 * and so is the result). The first node of an attention is its first contraction. Values
 * inside an attention must not be partial, so factors that would make them partial (keys,
 * the width of heads) cannot be split, whereas batch, heads and queries can. In addition
 * to its factors an attention has a ring: queries are split, and so are keys and values,
 * whose blocks go from device to device until each device has seen all blocks (Liu et
 * al., "Ring Attention"). The layouts of operands and results, partial values, local
 * shapes and FLOPs per device all follow from the nest and the choice.
 */
#ifndef AP_NEST_H
#define AP_NEST_H

#include "layout/kernel.h"
#include "graph/group.h"
#include "layout/layout.h"

enum ap_factor_kind {
    AP_FACTOR_PARALLEL,
    AP_FACTOR_REDUCED, /* results (and linear operands such as initial values) are partial
                        */
    AP_FACTOR_INDEXED, /* gather: operand split, masked lookup, result partial;
                          scatter: operand and result split, updates replicated */
    AP_FACTOR_WHOLE    /* cannot be split */
};

/* The factors of a sequence in stripes (ap-fuse --stripes): the number of the stripe, and
 * the position in it. */
enum ap_stripes { AP_STRIPES_NONE, AP_STRIPES_WHICH, AP_STRIPES_INSIDE };

struct ap_factor {
    int64_t size;
    enum ap_factor_kind kind;
    enum ap_red red; /* reduced, and indexed of gather: how partial results combine */
    uint8_t stripes; /* enum ap_stripes */
};

/* Factors of one dimension, major to minor; their sizes multiply to the dimension. */
struct ap_dim_factors {
    int n;
    const int *factor;
};

/* How a tensor is indexed by the nest. */
struct ap_access {
    int rank;
    const struct ap_dim_factors *dims; /* rank of them */
    uint64_t partial; /* bit f: split over factor f makes this tensor partial */
};

/* An operand that comes from outside the group, once per distinct access. */
struct ap_nest_in {
    int node; /* producer of the tensor */
    struct ap_access access;
};

/* Operands in `ins` (bit i) that may be partial (sum) together; all results are then
 * partial. */
struct ap_linear_set {
    uint64_t ins;
};

/*
 * The ring of an attention, choice n_factors: queries are split as by factor rows, and
 * keys and values, and the gradients of both, as by factor keys.
 */
struct ap_ring {
    int rows, keys;
    uint64_t
        ins; /* slots that go round: operands with keys that only contractions read */
};

#define AP_MAX_FACTORS 62
struct ap_nest {
    int group;
    int n_members;
    const int *members; /* node ids, ascending */
    int n_factors;
    struct ap_factor *factors;
    int n_ins;
    struct ap_nest_in *ins;
    /* in_slot[m][k]: operand k of member m is ins[in_slot[m][k]], or -1 if a member makes
     * it */
    const int *const *in_slot;
    int n_outs;
    const int *outs; /* node ids of members whose value is used outside or is a result */
    const struct ap_access
        *values;  /* access of each member's own value (for a tuple: of a part) */
    int n_linear; /* for an attention with a ring: 1, the ring, in which nothing is
                     partial */
    struct ap_linear_set *linear;
    const uint8_t *linear_values; /* per member: bit k = its value is partial in set k */
    uint64_t maskable; /* slots whose elements reductions combine (no indices) */
    bool precise;      /* a member's operands in f32 must not be rounded */
    bool heavy;        /* a member is a dot or convolution */
    enum ap_kernel kernel;
    int8_t
        experts; /* grouped: where the experts' weights are, as ap_kernel_experts says */
    bool attention; /* several operators, not all of them elementwise */
    /* operands, then outs, that take no memory traffic in this group, because they stay
       in the group's kernel, or because another group of the kernel has read them
       (ap-fuse --kernels); NULL: none */
    const bool *in_kernel;
    bool launched;                           /* another group of the kernel is launched */
    const struct ap_ring *ring;              /* NULL: none */
    const struct ap_nests *condition, *body; /* of a while's computations, else NULL */
};

/* Whether factor f is part of a dimension of the tensor. */
bool ap_access_has(const struct ap_access *access, int f);
/* The shape to which a node's nest refers: its own, or the first part of a tuple. */
const struct ap_shape *ap_value_shape(const struct ap_node *n);

/* All nests of a grouped graph; index = group id. */
struct ap_nests {
    const struct ap_graph *graph;
    int n;
    struct ap_nest *nest;
};

/*
 * Factor rules of every group. Dimensions are first refined: the boundaries that reshapes
 * put into dimensions are carried along to all tensors that share the factor (bounded: at
 * most 3 factors a dimension from this), so that strided layouts exist wherever a reshape
 * could pass them on for free. -1 if a group has more than AP_MAX_FACTORS factors, which
 * no operator of ops.def has.
 */
int ap_nests_build(struct ap_arena *arena, const struct ap_graph *g,
                   struct ap_nests *nests, struct ap_err *err);

/* ---- choices ---- */

/* Per mesh axis: -1 none, f >= 0 factor f, n_factors + k linear set k, or the ring. */
struct ap_choice_vec {
    int16_t axis[AP_MAX_AXES];
};

/* Replicated on every axis. */
#define AP_CHOICE_NONE ((struct ap_choice_vec){{-1, -1, -1, -1, -1, -1}})
_Static_assert(AP_MAX_AXES == 6, "a -1 for each axis");

/* Whether c is the ring of an attention. */
static inline bool ap_choice_is_ring(const struct ap_nest *nest, int c)
{
    return nest->ring && c == nest->n_factors;
}
/* The axis of the ring, or -1. */
int ap_choice_ring_axis(const struct ap_nest *nest, const struct ap_mesh *mesh,
                        const struct ap_choice_vec *choice);
/* The number of devices that share c, a factor or a linear set, under a choice: the
 * product of all axes on it. */
int64_t ap_choice_devices(const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                          int c);
/* Whether c is not a factor, or is a factor with an element for each device that shares
 * it. */
bool ap_choice_reaches(const struct ap_nest *nest, const struct ap_mesh *mesh,
                       const struct ap_choice_vec *choice, int c);

/*
 * Whether a choice is legal: factors can be split, linear sets exist, reduced factors and
 * linear sets do not conflict, and no padded factor lies right before an unsplit one in a
 * dimension (no layout can express that).
 */
bool ap_choice_ok(const struct ap_nest *nest, const struct ap_mesh *mesh,
                  const struct ap_choice_vec *choice);

/*
 * Layout of operand slot `in`, or of the value of members[m] (m is a position, not a node
 * id), under a choice; canonical. A parameter that is split over the microbatch axis is
 * whole on that axis, with the rest of its layout as in each microbatch's share, unless
 * another part of the graph sends it share by share (struct ap_graph).
 */
struct ap_layout ap_nest_in_layout(const struct ap_nest *nest, const struct ap_graph *g,
                                   const struct ap_mesh *mesh,
                                   const struct ap_choice_vec *choice, int in);
struct ap_layout ap_nest_value_layout(const struct ap_nest *nest,
                                      const struct ap_graph *g,
                                      const struct ap_mesh *mesh,
                                      const struct ap_choice_vec *choice, int m);
/* Local extent of factor f (size split by its axes in mesh order, rounded up each time).
 */
int64_t ap_nest_extent(const struct ap_nest *nest, const struct ap_mesh *mesh,
                       const struct ap_choice_vec *choice, int f);
/* Whether the devices' extents of factor f together exceed its size. */
bool ap_nest_is_padded(const struct ap_nest *nest, const struct ap_mesh *mesh,
                       const struct ap_choice_vec *choice, int f);
/*
 * Bit i: operand i must be masked with the reducer's neutral element before use, because
 * a reduced factor that it carries is padded under this choice.
 */
uint64_t ap_nest_masked(const struct ap_nest *nest, const struct ap_mesh *mesh,
                        const struct ap_choice_vec *choice);

/*
 * The iterations of a while for which it is priced: one if its trip count is not known.
 */
double ap_nest_trips(const struct ap_nest *nest, const struct ap_graph *g);

/* FLOPs and bytes that one device computes and moves for the group under a choice. */
void ap_nest_work(const struct ap_nest *nest, const struct ap_graph *g,
                  const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                  double *flops, double *bytes, enum ap_dtype *dtype);
/* On a device: elements of the experts' weights in a grouped product. */
double ap_nest_expert_elems(const struct ap_nest *nest, const struct ap_graph *g,
                            const struct ap_mesh *mesh,
                            const struct ap_choice_vec *choice);
/*
 * On a device: the length of an attention's sequences (the geometric mean of queries and
 * keys) and the width of its heads, which is the least of the three sizes of its first
 * contraction, be it of scores or of their gradients.
 */
void ap_nest_heads(const struct ap_nest *nest, const struct ap_graph *g,
                   const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                   double *length, double *width);
/* How often an operator that runs alone reads operand k (the whole operand, or the part
 * that it uses, once per result), and how often it writes its result. */
double ap_op_reads(enum ap_op op, int k);
double ap_op_writes(enum ap_op op);
/*
 * The same bytes by operand slot, then by out: moved[n_ins + n_outs]. Elements that are
 * looked up in an operand count for the value that they become. Loops are not supported.
 */
void ap_nest_moved(const struct ap_nest *nest, const struct ap_graph *g,
                   const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                   double *moved);

/*
 * The bytes that each device sends to the next one in a round of a ring: blocks of
 * operands (*in), and blocks of results that are summed up on their way (*out). Returns
 * the number of messages, 0 without a ring.
 */
int ap_nest_ring_bytes(const struct ap_nest *nest, const struct ap_graph *g,
                       const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                       double *in, double *out);

/* The role of a contraction in a ring. */
enum ap_ring_part {
    AP_RING_NONE,   /* none: its operands are not blocks of the ring */
    AP_RING_SCORES, /* makes the scores of a block of keys */
    AP_RING_VALUES, /* sums over blocks of keys */
    AP_RING_SUMS    /* makes sums over rows, for a block that goes round */
};
enum ap_ring_part ap_ring_part_of(const struct ap_nest *nest, const struct ap_graph *g,
                                  int m);
/* The number of stripes of the keys: the extent that is major to the ring's factor in
 * their dimension. */
int64_t ap_ring_stripes(const struct ap_nest *nest, int m);
/* The dimension of an operand or value that has the ring's keys, or -1. */
int ap_ring_key_dim(const struct ap_nest *nest, const struct ap_access *access);

#endif
