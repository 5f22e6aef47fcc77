/*
 * Layouts as GSPMD's tile assignments and as Shardy's lists of axes. Both cut a dimension
 * once, into tiles of equal size; the axes may nest in any order.
 */
#include "hlo.h"

#include <string.h>

static bool is_partial(const struct ap_mesh *mesh, const struct ap_layout *l)
{
    for (int a = 0; a < mesh->n_axes; a++)
        if (l->axis[a].kind == AP_PARTIAL)
            return true;
    return false;
}

enum hlo_said hlo_axes(const struct ap_mesh *mesh, const struct ap_shape *shape,
                       const struct ap_layout *l, int n[AP_MAX_RANK],
                       int order[AP_MAX_RANK][AP_MAX_AXES])
{
    enum hlo_said said = HLO_SAID;
    if (is_partial(mesh, l))
        return HLO_NOT_SAID;
    for (int d = 0; d < shape->rank; d++) {
        struct ap_piece pieces[AP_MAX_AXES + 1];
        int n_pieces = ap_layout_pieces(mesh, shape, l, d, pieces);
        int64_t tiles = 1;
        bool whole = false; /* some of the dimension stayed together further out */
        n[d] = 0;
        for (int p = 0; p < n_pieces; p++) {
            if (pieces[p].axes && whole)
                said = HLO_MOVED;
            whole |= pieces[p].local > 1;
            for (int a = 0; a < mesh->n_axes; a++)
                if (pieces[p].axes >> a & 1 && mesh->size[a] > 1) {
                    order[d][n[d]++] = a;
                    tiles *= mesh->size[a];
                }
        }
        if (n[d] > 1 && shape->dims[d] % tiles)
            said = HLO_MOVED;
    }
    return said;
}

/* Writes "<=[2,4]T(1,0)": where devices go that are numbered along the mesh. */
static void put_order(const struct ap_mesh *mesh, const int *order, int n,
                      struct ap_buf *out)
{
    int rank_of[AP_MAX_AXES], rank = 0;
    bool sorted = true;
    for (int i = 1; i < n; i++)
        sorted &= order[i] > order[i - 1];
    if (sorted) {
        ap_buf_printf(out, "<=[%lld]", (long long)ap_mesh_devices(mesh));
        return;
    }
    ap_buf_puts(out, "<=[");
    for (int a = 0; a < mesh->n_axes; a++) {
        if (mesh->size[a] < 2)
            continue;
        ap_buf_printf(out, "%s%lld", rank ? "," : "", (long long)mesh->size[a]);
        rank_of[a] = rank++;
    }
    ap_buf_puts(out, "]T(");
    for (int i = 0; i < n; i++)
        ap_buf_printf(out, "%s%d", i ? "," : "", rank_of[order[i]]);
    ap_buf_putc(out, ')');
}

enum hlo_said hlo_put_gspmd(const struct ap_mesh *mesh, const struct ap_shape *shape,
                            const struct ap_layout *l, struct ap_buf *out)
{
    int n[AP_MAX_RANK], order[AP_MAX_RANK][AP_MAX_AXES], all[AP_MAX_AXES], n_all = 0;
    unsigned used = 0;
    enum hlo_said said = hlo_axes(mesh, shape, l, n, order);
    if (said == HLO_NOT_SAID)
        return said;
    ap_buf_puts(out, "{devices=[");
    size_t start = out->len - strlen("{devices=[");
    for (int d = 0; d < shape->rank; d++) {
        int64_t tiles = 1;
        for (int i = 0; i < n[d]; i++) {
            all[n_all++] = order[d][i];
            used |= 1u << order[d][i];
            tiles *= mesh->size[order[d][i]];
        }
        ap_buf_printf(out, "%s%lld", d ? "," : "", (long long)tiles);
    }
    if (!used) {
        out->len = start;
        ap_buf_puts(out, "{replicated}");
        return said;
    }
    int64_t copies = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        if (!(used >> a & 1) && mesh->size[a] > 1) {
            all[n_all++] = a;
            copies *= mesh->size[a];
        }
    if (copies > 1)
        ap_buf_printf(out, ",%lld", (long long)copies);
    ap_buf_putc(out, ']');
    put_order(mesh, all, n_all, out);
    ap_buf_puts(out, copies > 1 ? " last_tile_dim_replicate}" : "}");
    return said;
}

enum hlo_said hlo_put_shardy(const struct ap_mesh *mesh, const struct ap_shape *shape,
                             const struct ap_layout *l, struct ap_buf *out)
{
    int n[AP_MAX_RANK], order[AP_MAX_RANK][AP_MAX_AXES];
    enum hlo_said said = hlo_axes(mesh, shape, l, n, order);
    if (said == HLO_NOT_SAID)
        return said;
    ap_buf_puts(out, "<@mesh, [");
    for (int d = 0; d < shape->rank; d++) {
        ap_buf_puts(out, d ? ", {" : "{");
        for (int i = 0; i < n[d]; i++)
            ap_buf_printf(out, "%s\\\"%s\\\"", i ? ", " : "", mesh->name[order[d][i]]);
        ap_buf_putc(out, '}');
    }
    ap_buf_puts(out, "]>");
    return said;
}
