/* Whether some device's block of a tensor holds padding. */
#ifndef PADDED_H
#define PADDED_H

#include "layout/layout.h"

static bool is_padded(const struct ap_mesh *mesh, const struct ap_shape *shape,
                      const struct ap_layout *l)
{
    for (int d = 0; d < shape->rank; d++) {
        struct ap_piece piece[AP_MAX_AXES + 1];
        int n = ap_layout_pieces(mesh, shape, l, d, piece);
        for (int i = 0; i < n; i++)
            if (piece[i].size % ap_mesh_group(mesh, piece[i].axes))
                return true;
    }
    return false;
}

#endif
