/*
 * The nested split of one dimension under a layout, as a list of factors. Only layout.c
 * and cost/convert.c use it.
 *
 * In a *finest* nested split no factor can be cut in two without moving elements, axes
 * that hold only padding at coordinates > 0 (*dead* axes, which have no elements left to
 * split) are listed separately, and no factor but the first is unsplit. Two layouts put
 * the elements of a dimension on the same devices at the same local places if and only if
 * their finest nested splits are equal.
 */
#ifndef AP_NESTED_SPLIT_H
#define AP_NESTED_SPLIT_H

#include "layout/layout.h"

struct ap_split_factor {
    int64_t size;
    int n;                     /* axes that split it, */
    uint8_t axis[AP_MAX_AXES]; /* outermost first */
};

struct ap_nested_split {
    int n; /* factors, major to minor; 0 if the dimension has at most one element */
    unsigned dead;
    struct ap_split_factor factor[AP_MAX_AXES + 2];
};

/* The stride of placement p on a dimension of this size. */
static inline int64_t ap_stride(const struct ap_placement *p, int64_t size)
{
    return p->stride ? p->stride : size;
}

/* The factors of dimension d as the strides cut it, not yet finest. -1 if strides do not
 * divide. */
int ap_nested_split_raw(const struct ap_mesh *mesh, const struct ap_shape *shape,
                        const struct ap_layout *l, int d, struct ap_nested_split *nested);
/* Makes a nested split finest. -1 if no layout has this nesting (an unsplit factor
 * follows an unevenly split one). */
int ap_nested_split_refine(const struct ap_mesh *mesh, struct ap_nested_split *nested);
/* ap_nested_split_raw and ap_nested_split_refine. */
int ap_nested_split_get(const struct ap_mesh *mesh, const struct ap_shape *shape,
                        const struct ap_layout *l, int d, struct ap_nested_split *nested);
/*
 * Writes the placements of the nested split's axes into l, canonical. -1 if no layout has
 * this nesting (axes are nested against mesh order). The nested split must be finest.
 */
int ap_nested_split_put(const struct ap_mesh *mesh, const struct ap_shape *shape,
                        const struct ap_nested_split *nested, int d, struct ap_layout *l);
/* Extent of a factor on a device. */
int64_t ap_nested_split_local(const struct ap_mesh *mesh,
                              const struct ap_split_factor *f);
/*
 * The stride of axis a in the finest nested split. Unlike the canonical stride it does
 * not depend on how other axes split the dimension, if all sizes divide evenly.
 */
int64_t ap_nested_split_stride(const struct ap_nested_split *nested, int a);

#endif
