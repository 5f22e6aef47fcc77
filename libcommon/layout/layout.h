/*
 * Meshes, layouts and how to get from one layout to another.
 *
 * A layout says per mesh axis: replicated (R), split along a dimension (S<d>, or
 * S<d>/<stride>), or partial (P = sum, Pmax, ...). Axis a of size n with S<d>/<stride>
 * cuts every run of `stride` elements of dimension d (the whole dimension when no stride
 * is given) into n blocks, block q to the devices with coordinate q.
 *
 * Several axes may split one dimension: the distinct strides, largest first, cut it into
 * factors (an unsplit one of size D / s1 in front if the largest stride s1 < D; then
 * sizes s1 / s2, ..., sk / 1; each must divide). Axes with the same stride split the same
 * factor, nested in mesh order, first outermost: an extent L split by an axis of size n
 * leaves blocks of ceil(L / n), and those are split by the next axis. Blocks at the end
 * may lie partly or wholly in the padding.
 *
 * Layouts are kept canonical (ap_layout_canon), so that equal ones compare equal.
 */
#ifndef AP_LAYOUT_H
#define AP_LAYOUT_H

#include "graph/graph.h"

/*
 * Devices are numbered row-major over the axes: the last axis varies fastest. The first
 * axis may be the microbatch axis: its coordinate is the number of the current
 * microbatch, and all microbatches run on the same devices, one after the other. On this
 * axis, a split value is one microbatch's share, a partial value is still to be
 * accumulated, and a replicated value exists once per step.
 */
struct ap_mesh {
    int n_axes;
    int64_t size[AP_MAX_AXES];
    const char *name[AP_MAX_AXES];
    unsigned microbatch; /* set of axes: 1, the microbatch axis, or 0 */
};

/* Microbatches of a step. */
static inline int64_t ap_mesh_microbatches(const struct ap_mesh *mesh)
{
    return mesh->microbatch ? mesh->size[0] : 1;
}
/* Number of axis a among the axes of devices, -1 for the microbatch axis. */
static inline int ap_mesh_device_axis(const struct ap_mesh *mesh, int a)
{
    return mesh->microbatch ? a - 1 : a;
}
/* Puts an axis of n microbatches in front, unless n is 1. -1 if there are too many axes,
 * or the axis's name is taken. */
int ap_mesh_add_microbatches(struct ap_mesh *mesh, int64_t n, struct ap_err *err);
/* Removes the microbatch axis, if there is one, so that the axes of devices remain. */
void ap_mesh_drop_microbatches(struct ap_mesh *mesh);
/* Whether a value of this layout is computed once per microbatch. */
static inline bool ap_layout_per_microbatch(const struct ap_mesh *mesh,
                                            const struct ap_layout *l)
{
    return mesh->microbatch && l->axis[0].kind != AP_REPLICATED;
}
/*
 * Removes an axis that is innermost in its factor from a layout: the result is the layout
 * of the operand of an ap-slice on this axis. -1 if there is no such layout.
 */
int ap_layout_unsplit(const struct ap_mesh *mesh, const struct ap_shape *shape,
                      struct ap_layout *l, int axis);

/* Axes that a user may state. Tofu's halvings and lines of trainers make up to
 * AP_MAX_AXES, where each conversion takes a search over 5^axes layouts. */
#define AP_MAX_STATED_AXES 4

#define AP_MAX_DEVICES      (1 << 20)
#define AP_MAX_MICROBATCHES (1 << 20)
/* Product of the sizes of all axes except the microbatch axis. */
int64_t ap_mesh_devices(const struct ap_mesh *mesh);
/* Product of the sizes of a set of axes: devices of one group of a collective over it. */
int64_t ap_mesh_group(const struct ap_mesh *mesh, unsigned axes);
/* "2x4", or "dp=2,tp=4"; names default to x, y, z, w. Axes of size 1 are kept. */
int ap_mesh_parse(struct ap_arena *arena, const char *text, struct ap_mesh *mesh,
                  struct ap_err *err);

/* The purpose of a mesh axis, by the names that JAX, PyTorch and their trainers use. */
enum ap_axis_use {
    AP_AXIS_ANY,
    AP_AXIS_DATA,   /* dp, data, batch, dp_replicate: the batch */
    AP_AXIS_FSDP,   /* fsdp, dp_shard: the batch; ZeRO shards states and weights here */
    AP_AXIS_TENSOR, /* tp, tensor, model, mp */
    AP_AXIS_EXPERT  /* ep, expert */
};
enum ap_axis_use ap_mesh_axis_use(const struct ap_mesh *mesh, int axis);
/* The set of axes for this use; the microbatch axis is never in it. */
unsigned ap_mesh_axes_for(const struct ap_mesh *mesh, enum ap_axis_use use);
/* The axis of tensor parallelism: the last axis named for it, or else the last axis not
 * named for another use; -1 if there is none. */
int ap_mesh_tensor_axis(const struct ap_mesh *mesh);
/* Coordinates of a rank on each axis; 0 on the microbatch axis. */
void ap_mesh_coords(const struct ap_mesh *mesh, int64_t rank, int64_t *coords);

/* ---- layouts ---- */

static inline struct ap_layout ap_layout_replicated(void)
{
    return (struct ap_layout){.axis = {{0}}};
}
/* The same layout with sums completed: R for every partial axis. */
struct ap_layout ap_layout_whole(const struct ap_layout *l);
/* A placement as one word; strides must be below 2^48. */
static inline uint64_t ap_placement_word(const struct ap_placement *p)
{
    return (uint64_t)p->stride << 16 | (uint64_t)p->dim << 8 | (uint64_t)p->red << 2 |
           p->kind;
}
bool ap_layout_equal(const struct ap_layout *a, const struct ap_layout *b);
/* Whether it is a partial sum on some axis. */
bool ap_layout_is_partial(const struct ap_layout *l);
uint64_t ap_layout_hash(const struct ap_layout *l);
/*
 * Brings a layout of a tensor with these dims to its canonical form: a stride equal to
 * the dimension becomes 0; two factors are merged if they can be one (a fully split
 * factor before one whose axes come later, or an evenly divided one before an unsplit
 * one); axes of size 1 become R; unused members are 0. -1 if strides do not divide.
 */
int ap_layout_canon(const struct ap_mesh *mesh, const struct ap_shape *shape,
                    struct ap_layout *l);
/* "S0,R", "R,S1/64", "P,Pmax": one placement per mesh axis, separated by commas. */
void ap_layout_print(const struct ap_mesh *mesh, const struct ap_layout *l,
                     struct ap_buf *out);
int ap_layout_parse(const struct ap_mesh *mesh, const struct ap_shape *shape,
                    const char *text, struct ap_layout *l, struct ap_err *err);

/* One factor of a dimension under a layout. */
struct ap_piece {
    int64_t size;  /* of the factor, before splitting */
    int64_t local; /* extent on a device: size split by the axes in turn, rounded up */
    unsigned axes; /* bit a = split by mesh axis a */
};
/* Pieces of dimension d, major to minor; returns their number (>= 1, <= AP_MAX_AXES + 1).
 */
int ap_layout_pieces(const struct ap_mesh *mesh, const struct ap_shape *shape,
                     const struct ap_layout *l, int d, struct ap_piece *pieces);

/* Local shape (dims in the arena). */
struct ap_shape ap_layout_local(struct ap_arena *arena, const struct ap_mesh *mesh,
                                const struct ap_shape *shape, const struct ap_layout *l);
int64_t ap_layout_local_bytes(const struct ap_mesh *mesh, const struct ap_shape *shape,
                              const struct ap_layout *l);
/*
 * Maps the elements of dimension d of one device's block to the whole tensor: map[i] =
 * global index of local index i, -1 for padding. map has room for the local extent.
 * coords are the device's.
 */
void ap_layout_index_map(const struct ap_mesh *mesh, const struct ap_shape *shape,
                         const struct ap_layout *l, int d, const int64_t *coords,
                         int64_t *map);

#endif
