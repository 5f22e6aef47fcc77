/*
 * Meshes and layouts: their texts, whether a layout is legal for a shape, and the piece
 * of a tensor that each device holds. The nesting of axes within a dimension is
 * nested_split.c's, conversions are cost/convert.c's.
 */
#include "layout/layout.h"

#include <ctype.h>
#include <string.h>

#include "graph/attr_text.h"
#include "layout/nested_split.h"

/* ---- meshes ---- */

int64_t ap_mesh_devices(const struct ap_mesh *mesh)
{
    int64_t n = 1;
    for (int a = mesh->microbatch ? 1 : 0; a < mesh->n_axes; a++)
        n = ap_mul64(n, mesh->size[a]);
    return n;
}

int64_t ap_mesh_group(const struct ap_mesh *mesh, unsigned axes)
{
    int64_t n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        if (axes >> a & 1)
            n *= mesh->size[a];
    return n;
}

int ap_mesh_add_microbatches(struct ap_mesh *mesh, int64_t n, struct ap_err *err)
{
    static const char name[] = "time";
    if (n == 1)
        return 0;
    if (mesh->n_axes == AP_MAX_AXES)
        return ap_err_set(err, "a mesh of microbatches has at most %d other axes",
                          AP_MAX_AXES - 1);
    for (int a = mesh->n_axes++; a > 0; a--) {
        mesh->size[a] = mesh->size[a - 1];
        mesh->name[a] = mesh->name[a - 1];
        if (strcmp(mesh->name[a], name) == 0)
            return ap_err_set(err, "\"%s\" is the axis of microbatches", name);
    }
    mesh->size[0] = n;
    mesh->name[0] = name;
    mesh->microbatch = 1;
    return 0;
}

void ap_mesh_drop_microbatches(struct ap_mesh *mesh)
{
    if (!mesh->microbatch)
        return;
    mesh->n_axes--;
    mesh->microbatch = 0;
    for (int a = 0; a < mesh->n_axes; a++) {
        mesh->size[a] = mesh->size[a + 1];
        mesh->name[a] = mesh->name[a + 1];
    }
}

/* "dp=2" or "2" at *p; the name is NULL when none is given. */
static int parse_axis(struct ap_arena *arena, const char **p, const char **name,
                      int64_t *size)
{
    const char *start = *p, *s = start;
    *name = NULL;
    if (isalpha((unsigned char)*s) || *s == '_') {
        while (isalnum((unsigned char)*s) || *s == '_')
            s++;
        if (*s != '=')
            return -1;
        *name = ap_arena_strndup(arena, start, (size_t)(s - start));
        s++;
    }
    if (*s < '0' || *s > '9')
        return -1;
    int64_t n = 0;
    for (; *s >= '0' && *s <= '9'; s++)
        n = ap_add64(ap_mul64(n, 10), *s - '0');
    *size = n;
    *p = s;
    return 0;
}

int ap_mesh_parse(struct ap_arena *arena, const char *text, struct ap_mesh *mesh,
                  struct ap_err *err)
{
    static const char *const names[AP_MAX_STATED_AXES] = {"x", "y", "z", "w"};
    const char *p = text;
    bool named = strchr(text, '=') != NULL;

    *mesh = (struct ap_mesh){0};
    for (;;) {
        const char *name;
        int64_t size;
        if (parse_axis(arena, &p, &name, &size) || (name != NULL) != named)
            return ap_err_set(err, "mesh '%s': expected sizes such as 2x4 or dp=2,tp=4",
                              text);
        if (mesh->n_axes == AP_MAX_STATED_AXES)
            return ap_err_set(err, "mesh '%s': more than %d axes", text,
                              AP_MAX_STATED_AXES);
        if (size < 1)
            return ap_err_set(err, "mesh '%s': an axis needs at least one device", text);
        for (int a = 0; name && a < mesh->n_axes; a++)
            if (strcmp(mesh->name[a], name) == 0)
                return ap_err_set(err, "mesh '%s': two axes are named %s", text, name);
        mesh->name[mesh->n_axes] = name ? name : names[mesh->n_axes];
        mesh->size[mesh->n_axes++] = size;
        if (*p == '\0')
            break;
        if (*p++ != (named ? ',' : 'x'))
            return ap_err_set(err, "mesh '%s': expected sizes such as 2x4 or dp=2,tp=4",
                              text);
    }
    if (ap_mesh_devices(mesh) > AP_MAX_DEVICES)
        return ap_err_set(err, "mesh '%s': more than %d devices", text, AP_MAX_DEVICES);
    return 0;
}

enum ap_axis_use ap_mesh_axis_use(const struct ap_mesh *mesh, int axis)
{
    static const struct {
        const char *name;
        enum ap_axis_use use;
    } known[] = {
        {"dp", AP_AXIS_DATA},      {"data", AP_AXIS_DATA},
        {"batch", AP_AXIS_DATA},   {"dp_replicate", AP_AXIS_DATA},
        {"fsdp", AP_AXIS_FSDP},    {"dp_shard", AP_AXIS_FSDP},
        {"tp", AP_AXIS_TENSOR},    {"tensor", AP_AXIS_TENSOR},
        {"model", AP_AXIS_TENSOR}, {"mp", AP_AXIS_TENSOR},
        {"ep", AP_AXIS_EXPERT},    {"expert", AP_AXIS_EXPERT},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(mesh->name[axis], known[i].name) == 0)
            return known[i].use;
    return AP_AXIS_ANY;
}

unsigned ap_mesh_axes_for(const struct ap_mesh *mesh, enum ap_axis_use use)
{
    unsigned axes = 0;
    for (int a = 0; a < mesh->n_axes; a++)
        if (!(mesh->microbatch >> a & 1) && ap_mesh_axis_use(mesh, a) == use)
            axes |= 1u << a;
    return axes;
}

int ap_mesh_tensor_axis(const struct ap_mesh *mesh)
{
    unsigned axes = ap_mesh_axes_for(mesh, AP_AXIS_TENSOR);
    int last = mesh->n_axes - 1;

    axes = axes ? axes : ap_mesh_axes_for(mesh, AP_AXIS_ANY);
    while (last >= 0 && !(axes >> last & 1))
        last--;
    return last;
}

void ap_mesh_coords(const struct ap_mesh *mesh, int64_t rank, int64_t *coords)
{
    for (int a = mesh->n_axes - 1; a >= 0; a--) {
        bool micro = mesh->microbatch >> a & 1;
        coords[a] = micro ? 0 : rank % mesh->size[a];
        rank /= micro ? 1 : mesh->size[a];
    }
}

/* ---- layouts ---- */

struct ap_layout ap_layout_whole(const struct ap_layout *l)
{
    struct ap_layout whole = *l;
    for (int a = 0; a < AP_MAX_AXES; a++)
        if (l->axis[a].kind == AP_PARTIAL)
            whole.axis[a] = ap_layout_replicated().axis[0];
    return whole;
}

bool ap_layout_is_partial(const struct ap_layout *l)
{
    for (int a = 0; a < AP_MAX_AXES; a++)
        if (l->axis[a].kind == AP_PARTIAL)
            return true;
    return false;
}

bool ap_layout_equal(const struct ap_layout *a, const struct ap_layout *b)
{
    for (int i = 0; i < AP_MAX_AXES; i++) {
        const struct ap_placement *p = &a->axis[i], *q = &b->axis[i];
        if (p->kind != q->kind || p->red != q->red || p->dim != q->dim ||
            p->stride != q->stride)
            return false;
    }
    return true;
}

int ap_layout_unsplit(const struct ap_mesh *mesh, const struct ap_shape *shape,
                      struct ap_layout *l, int axis)
{
    int d = l->axis[axis].dim;
    struct ap_nested_split nested;

    if (ap_nested_split_get(mesh, shape, l, d, &nested))
        return -1;
    l->axis[axis] = (struct ap_placement){0};
    for (int i = 0; i < nested.n; i++) {
        struct ap_split_factor *f = &nested.factor[i];
        if (f->n == 0 || f->axis[f->n - 1] != axis)
            continue;
        f->n--;
        return ap_nested_split_refine(mesh, &nested) ||
                       ap_nested_split_put(mesh, shape, &nested, d, l)
                   ? -1
                   : 0;
    }
    return -1;
}

uint64_t ap_layout_hash(const struct ap_layout *l)
{
    uint64_t hash = 0;
    for (int i = 0; i < AP_MAX_AXES; i++) {
        const uint64_t high = (uint64_t)l->axis[i].stride >> 48;
        hash = ap_hash_mix(hash, ap_placement_word(&l->axis[i]));
        if (high) /* the word has no room for it */
            hash = ap_hash_mix(hash, high);
    }
    return hash;
}

/* One placement on its own: bounds, unused members, trivial axes. */
static int canon_placement(const struct ap_shape *shape, int64_t axis_size,
                           struct ap_placement *p)
{
    switch ((enum ap_placement_kind)p->kind) {
    case AP_REPLICATED:
        *p = (struct ap_placement){0};
        return 0;
    case AP_PARTIAL:
        if (p->red <= AP_RED_NONE || p->red > AP_RED_OR)
            return -1;
        *p = axis_size == 1 ? (struct ap_placement){0}
                            : (struct ap_placement){.kind = AP_PARTIAL, .red = p->red};
        return 0;
    case AP_SPLIT:
        if (p->dim >= shape->rank || p->stride < 0 || p->stride > shape->dims[p->dim])
            return -1;
        if (axis_size == 1 || shape->dims[p->dim] == 0) {
            *p = (struct ap_placement){0};
            return 0;
        }
        p->red = AP_RED_NONE;
        if (p->stride == shape->dims[p->dim])
            p->stride = 0;
        return shape->dims[p->dim] % ap_stride(p, shape->dims[p->dim]) == 0 ? 0 : -1;
    }
    return -1;
}

int ap_layout_canon(const struct ap_mesh *mesh, const struct ap_shape *shape,
                    struct ap_layout *l)
{
    unsigned strided = 0; /* dimensions; without strides nothing can be merged */

    for (int a = 0; a < mesh->n_axes; a++) {
        struct ap_placement *p = &l->axis[a];
        if (canon_placement(shape, mesh->size[a], p))
            return -1;
        if (p->kind == AP_SPLIT && p->stride)
            strided |= 1u << p->dim;
    }
    for (int a = mesh->n_axes; a < AP_MAX_AXES; a++)
        l->axis[a] = (struct ap_placement){0};
    for (int d = 0; strided >> d; d++) {
        struct ap_nested_split nested;
        if (!(strided >> d & 1))
            continue;
        if (ap_nested_split_get(mesh, shape, l, d, &nested) ||
            ap_nested_split_put(mesh, shape, &nested, d, l))
            return -1;
    }
    return 0;
}

void ap_layout_print(const struct ap_mesh *mesh, const struct ap_layout *l,
                     struct ap_buf *out)
{
    for (int a = 0; a < mesh->n_axes; a++) {
        if (a > 0)
            ap_buf_putc(out, ',');
        ap_placement_print(&l->axis[a], out);
    }
}

int ap_layout_parse(const struct ap_mesh *mesh, const struct ap_shape *shape,
                    const char *text, struct ap_layout *l, struct ap_err *err)
{
    struct ap_err why = {""};
    size_t pos = 0;

    *l = ap_layout_replicated();
    for (int a = 0; a < mesh->n_axes; a++) {
        if (a > 0 && text[pos] != ',')
            return ap_err_set(err, "layout '%s': expected %d placements", text,
                              mesh->n_axes);
        pos += a > 0;
        if (ap_placement_parse(text, &pos, &l->axis[a], &why))
            return ap_err_set(err, "layout '%s': %s", text, why.msg);
        if (l->axis[a].kind == AP_SPLIT && l->axis[a].dim >= shape->rank)
            return ap_err_set(err, "layout '%s': the tensor has no dimension %d", text,
                              l->axis[a].dim);
    }
    if (text[pos] != '\0')
        return ap_err_set(err, "layout '%s': expected %d placements", text, mesh->n_axes);
    if (ap_layout_canon(mesh, shape, l))
        return ap_err_set(err, "layout '%s': strides do not divide the dimension", text);
    return 0;
}

/* ---- pieces and extents ---- */

/* The nesting of dimension d; a layout that is not canonical leaves it whole. */
static struct ap_nested_split nested_of(const struct ap_mesh *mesh,
                                        const struct ap_shape *shape,
                                        const struct ap_layout *l, int d)
{
    struct ap_nested_split nested;
    if (ap_nested_split_raw(mesh, shape, l, d, &nested))
        nested = (struct ap_nested_split){.n = 1, .factor = {{.size = shape->dims[d]}}};
    return nested;
}

int ap_layout_pieces(const struct ap_mesh *mesh, const struct ap_shape *shape,
                     const struct ap_layout *l, int d, struct ap_piece *pieces)
{
    struct ap_nested_split nested = nested_of(mesh, shape, l, d);
    for (int i = 0; i < nested.n; i++) {
        const struct ap_split_factor *f = &nested.factor[i];
        pieces[i] = (struct ap_piece){f->size, ap_nested_split_local(mesh, f), 0};
        for (int k = 0; k < f->n; k++)
            pieces[i].axes |= 1u << f->axis[k];
    }
    return nested.n;
}

/* Extent of dimension d on a device. */
static int64_t local_extent(const struct ap_mesh *mesh, const struct ap_shape *shape,
                            const struct ap_layout *l, int d)
{
    struct ap_piece piece[AP_MAX_AXES + 1];
    int n = ap_layout_pieces(mesh, shape, l, d, piece);
    int64_t x = 1;
    for (int i = 0; i < n; i++)
        x *= piece[i].local;
    return x;
}

/* Bit d: dimension d is split. */
static unsigned split_dims(const struct ap_mesh *mesh, const struct ap_layout *l)
{
    unsigned dims = 0;
    for (int a = 0; a < mesh->n_axes; a++)
        if (l->axis[a].kind == AP_SPLIT)
            dims |= 1u << l->axis[a].dim;
    return dims;
}

struct ap_shape ap_layout_local(struct ap_arena *arena, const struct ap_mesh *mesh,
                                const struct ap_shape *shape, const struct ap_layout *l)
{
    struct ap_shape local = *shape;
    unsigned split = split_dims(mesh, l);
    if (split == 0)
        return local;
    int64_t *dims = AP_NEW_N(arena, shape->rank, int64_t);
    for (int d = 0; d < shape->rank; d++)
        dims[d] = split >> d & 1 ? local_extent(mesh, shape, l, d) : shape->dims[d];
    local.dims = dims;
    return local;
}

int64_t ap_layout_local_bytes(const struct ap_mesh *mesh, const struct ap_shape *shape,
                              const struct ap_layout *l)
{
    unsigned split = split_dims(mesh, l);
    int64_t n = ap_dtype_size(shape->dtype);
    for (int d = 0; d < shape->rank; d++)
        n = ap_mul64(n,
                     split >> d & 1 ? local_extent(mesh, shape, l, d) : shape->dims[d]);
    return n;
}

/* Index within a factor of local index i of the device at coords, -1 for padding. */
static int64_t factor_index(const struct ap_mesh *mesh, const struct ap_split_factor *f,
                            const int64_t *coords, int64_t i)
{
    int64_t block[AP_MAX_AXES + 1];
    block[0] = f->size;
    for (int k = 0; k < f->n; k++)
        block[k + 1] = ap_ceil_div(block[k], mesh->size[f->axis[k]]);
    for (int k = f->n; k > 0; k--) {
        i += coords[f->axis[k - 1]] * block[k];
        if (i >= block[k - 1])
            return -1;
    }
    return i;
}

void ap_layout_index_map(const struct ap_mesh *mesh, const struct ap_shape *shape,
                         const struct ap_layout *l, int d, const int64_t *coords,
                         int64_t *map)
{
    struct ap_nested_split nested = nested_of(mesh, shape, l, d);
    /* one factor after the other, each making the list `local` times as long, in place
       from the end */
    int64_t n = 1;
    if (shape->dims[d] == 0)
        return;
    map[0] = 0;
    for (int i = 0; i < nested.n; i++) {
        const struct ap_split_factor *f = &nested.factor[i];
        int64_t local = ap_nested_split_local(mesh, f);
        for (int64_t major = n - 1; major >= 0; major--) {
            int64_t up = map[major];
            for (int64_t k = local - 1; k >= 0; k--) {
                int64_t at = factor_index(mesh, f, coords, k);
                map[major * local + k] = up < 0 || at < 0 ? -1 : up * f->size + at;
            }
        }
        n *= local;
    }
}
