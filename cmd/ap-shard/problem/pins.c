/*
 * Problem: read the shardings that HLO text carries (three generations) as layouts of our
 * mesh.
 * Idea: turn the text into a tile number per device and dimension, then look for the
 * layout of at most one dimension per mesh axis that gives every device the same tiles.
 * Cost: (rank + 1)^axes candidates times devices, per pinned tensor.
 * Forms: {replicated}, {devices=[2,1,4]0,1,..}, {devices=[2,4]<=[8]}, with T(..) and
 * last_tile_dim_replicate or last_tile_dims={replicated}; {mesh['x'=4,'y'=2], [{'x'},
 * {}]}. {maximal}, {manual} and {unknown} pin nothing. Text that ap-rewrite wrote may
 * have a layout in our own words instead, on a mesh of some shape: 2x4:S0,P.
 */
#include "problem/shard.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "graph/blocks.h"
#include "tool/tool.h"

struct tiles {
    int n_dims; /* tile dimensions that are the tensor's, then one for replication */
    int64_t dims[AP_MAX_RANK + 2];
    int64_t n_devices;
    int64_t *device; /* row-major over the tile dims */
};

enum pin_kind { PIN_NONE, PIN_REPLICATED, PIN_TILES, PIN_BAD };

static void skip_blanks(const char **p)
{
    while (isspace((unsigned char)**p))
        ++*p;
}

/* "[2,1,4]" or "(1,0)"; the number of entries, -1 when it is malformed. */
static int read_list(const char **p, char open, char close, int64_t *out, int max)
{
    int n = 0;
    skip_blanks(p);
    if (**p != open)
        return -1;
    do {
        ++*p;
        skip_blanks(p);
        char *end;
        long long v = strtoll(*p, &end, 10);
        if (end == *p || n == max || v < 0 || v > INT32_MAX)
            return -1;
        out[n++] = v;
        *p = end;
        skip_blanks(p);
    } while (**p == ',');
    if (**p != close)
        return -1;
    ++*p;
    return n;
}

static int64_t product(const int64_t *v, int n)
{
    int64_t p = 1;
    for (int i = 0; i < n; i++)
        p = ap_mul64(p, v[i]);
    return p;
}

/* devices = reshape(iota, dims), transposed by perm, laid out row-major. */
static void iota_devices(struct tiles *t, const int64_t *dims, int n, const int64_t *perm)
{
    for (int64_t i = 0; i < t->n_devices; i++) {
        int64_t rest = i, id = 0, coord[AP_MAX_RANK + 2];
        for (int k = n - 1; k >= 0; k--) {
            coord[perm[k]] = rest % dims[perm[k]];
            rest /= dims[perm[k]];
        }
        for (int k = 0; k < n; k++)
            id = id * dims[k] + coord[k];
        t->device[i] = id;
    }
}

static enum pin_kind read_devices(struct ap_arena *arena, const char *p, struct tiles *t)
{
    int n = read_list(&p, '[', ']', t->dims, AP_MAX_RANK + 2);
    if (n < 0)
        return PIN_BAD;
    t->n_dims = n;
    t->n_devices = product(t->dims, n);
    if (t->n_devices < 1 || t->n_devices > 1 << 20)
        return PIN_BAD;
    t->device = AP_NEW_N(arena, t->n_devices, int64_t);
    skip_blanks(&p);
    if (strncmp(p, "<=", 2) == 0) {
        int64_t dims[AP_MAX_RANK + 2], perm[AP_MAX_RANK + 2];
        p += 2;
        int r = read_list(&p, '[', ']', dims, AP_MAX_RANK + 2);
        if (r < 0 || product(dims, r) != t->n_devices)
            return PIN_BAD;
        for (int k = 0; k < r; k++)
            perm[k] = k;
        if (*p == 'T') {
            bool seen[AP_MAX_RANK + 2] = {false};
            p++;
            if (read_list(&p, '(', ')', perm, r) != r)
                return PIN_BAD;
            for (int k = 0; k < r; k++) {
                if (perm[k] >= r || seen[perm[k]])
                    return PIN_BAD;
                seen[perm[k]] = true;
            }
        }
        iota_devices(t, dims, r, perm);
    } else {
        for (int64_t i = 0; i < t->n_devices; i++) {
            char *end;
            t->device[i] = strtoll(p, &end, 10);
            if (end == p || t->device[i] < 0 || t->device[i] >= t->n_devices)
                return PIN_BAD;
            p = end + (*end == ',');
        }
    }
    if (strstr(p, "last_tile_dims") && !strstr(p, "{replicated}"))
        return PIN_NONE; /* manual subgroups: nothing to pin */
    if (strstr(p, "last_tile_dim"))
        t->n_dims--; /* the last tile dimension only replicates */
    return PIN_TILES;
}

/* Position of the axis called name (len bytes) in the mesh list of the text, -1: none. */
static int find_axis(char names[][64], int n, const char *name, size_t len)
{
    for (int i = 0; i < n; i++)
        if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0)
            return i;
    return -1;
}

static size_t word_len(const char *p)
{
    size_t n = 0;
    while (isalnum((unsigned char)p[n]) || p[n] == '_' || p[n] == '.')
        n++;
    return n;
}

/* {mesh['x'=4,'y'=2], [{'x'}, {'y', ?}, {}], ...} */
static enum pin_kind read_named(struct ap_arena *arena, const char *p, struct tiles *t)
{
    char names[AP_MAX_AXES + 2][64];
    int64_t size[AP_MAX_AXES + 2], order[AP_MAX_AXES + 2], perm[AP_MAX_AXES + 2];
    int n = 0, used = 0;

    while (*p != ']') {
        p += strcspn(p, "'\"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_]");
        if (*p == ']' || *p == '\0')
            break;
        p += *p == '\'' || *p == '"';
        size_t len = word_len(p);
        if (n == AP_MAX_AXES + 2 || len == 0 || len >= sizeof names[0])
            return PIN_BAD;
        memcpy(names[n], p, len);
        names[n][len] = '\0';
        p += len;
        p += *p == '\'' || *p == '"';
        if (*p++ != '=')
            return PIN_BAD;
        char *end;
        size[n] = strtoll(p, &end, 10);
        if (end == p || size[n] < 1 || size[n] > 1 << 20)
            return PIN_BAD;
        p = end;
        n++;
    }
    t->n_devices = product(size, n);
    if (*p++ != ']' || n == 0 || t->n_devices > 1 << 20)
        return PIN_BAD;
    p += strspn(p, ", ");
    if (*p != '[')
        return strstr(p, "replicated") ? PIN_REPLICATED : PIN_NONE;
    bool taken[AP_MAX_AXES + 2] = {false};
    t->n_dims = 0;
    for (p++; *p && *p != ']'; p += strspn(p, ", ")) {
        if (*p++ != '{' || t->n_dims == AP_MAX_RANK)
            return PIN_BAD;
        int64_t tiles = 1;
        while (*p && *p != '}') {
            p += strspn(p, "'\", ?");
            size_t len = word_len(p);
            if (len == 0 && *p && *p != '}')
                return PIN_BAD;
            if (len == 0)
                continue;
            int a = find_axis(names, n, p, len);
            p += len + (p[len] == '\'' || p[len] == '"');
            if (a < 0 || taken[a] || *p == ':')
                return PIN_NONE; /* sub-axes: more than a layout of ours can say */
            taken[a] = true;
            order[used++] = a;
            tiles *= size[a];
        }
        if (*p++ != '}')
            return PIN_BAD;
        t->dims[t->n_dims++] = tiles;
    }
    if (*p != ']')
        return PIN_BAD;
    for (int a = 0; a < n; a++)
        if (!taken[a])
            order[used++] = a;
    for (int k = 0; k < n; k++)
        perm[k] = order[k];
    t->device = AP_NEW_N(arena, t->n_devices, int64_t);
    iota_devices(t, size, n, perm);
    return PIN_TILES;
}

static enum pin_kind read_pin(struct ap_arena *arena, const char *text, struct tiles *t)
{
    const char *p = text + strspn(text, "{ ");
    if (strncmp(p, "replicated", 10) == 0)
        return PIN_REPLICATED;
    if (strncmp(p, "devices=", 8) == 0)
        return read_devices(arena, p + 8, t);
    if (strncmp(p, "mesh[", 5) == 0)
        return read_named(arena, p + 5, t);
    if (strncmp(p, "maximal", 7) == 0 || strncmp(p, "manual", 6) == 0 ||
        strncmp(p, "unknown", 7) == 0 || strncmp(p, "unreduced", 9) == 0)
        return PIN_NONE;
    return PIN_BAD;
}

/* ---- tiles as a layout ---- */

static bool same_tiles(const struct ap_mesh *mesh, const struct tiles *t, int rank,
                       const struct ap_layout *l)
{
    for (int64_t i = 0; i < t->n_devices; i++) {
        int64_t coords[AP_MAX_AXES], rest = i;
        ap_mesh_coords(mesh, t->device[i], coords);
        int64_t inner = t->n_devices / product(t->dims, t->n_dims);
        rest /= inner;
        for (int d = t->n_dims - 1; d >= 0; d--) {
            int64_t want = rest % t->dims[d], have = 0;
            rest /= t->dims[d];
            for (int a = 0; d < rank && a < mesh->n_axes; a++)
                if (l->axis[a].kind == AP_SPLIT && l->axis[a].dim == d)
                    have = have * mesh->size[a] + coords[a];
            if (want != have)
                return false;
        }
    }
    return true;
}

static bool find_layout(const struct ap_mesh *mesh, const struct ap_shape *shape,
                        const struct tiles *t, struct ap_layout *out)
{
    int64_t n_candidates = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        n_candidates *= shape->rank + 1;
    for (int64_t c = 0; c < n_candidates; c++) {
        struct ap_layout l = ap_layout_replicated();
        int64_t rest = c, tiles[AP_MAX_RANK];
        for (int d = 0; d < shape->rank; d++)
            tiles[d] = 1;
        for (int a = 0; a < mesh->n_axes; a++) {
            int d = (int)(rest % (shape->rank + 1)) - 1;
            rest /= shape->rank + 1;
            if (d < 0)
                continue;
            l.axis[a].kind = AP_SPLIT;
            l.axis[a].dim = (uint8_t)d;
            tiles[d] *= mesh->size[a];
        }
        bool fits = t->n_dims == shape->rank;
        for (int d = 0; d < shape->rank && fits; d++)
            fits = tiles[d] == t->dims[d];
        if (fits && same_tiles(mesh, t, shape->rank, &l) &&
            ap_layout_canon(mesh, shape, &l) == 0) {
            *out = l;
            return true;
        }
    }
    return false;
}

/* "2x4:S0,R" of a mesh of that shape. */
static bool read_own(const struct ap_mesh *mesh, const struct ap_shape *shape,
                     const char *text, struct ap_layout *out)
{
    struct ap_err err = {""};
    for (int a = 0; a < mesh->n_axes; a++) {
        char *end;
        if (strtoll(text, &end, 10) != mesh->size[a] ||
            *end != (a + 1 < mesh->n_axes ? 'x' : ':'))
            return false;
        text = end + 1;
    }
    return !ap_layout_parse(mesh, shape, text, out, &err);
}

int shard_pins_read(struct ap_arena *arena, const struct ap_graph *g,
                    const struct ap_mesh *mesh, struct ap_pins *pins, struct ap_err *err)
{
    const char *first_dropped = NULL, *first_unread = NULL;
    int n_unread = 0;

    *pins = ap_pins_none(arena, g);
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *node = &g->nodes[i];
        struct tiles t = {0};
        if (!node->pin || node->shape.dtype == AP_TUPLE)
            continue;
        if (strchr(node->pin, '#')) { /* Shardy's attribute: its mesh is elsewhere */
            first_unread = n_unread++ ? first_unread : node->name;
            continue;
        }
        bool own = isdigit((unsigned char)*node->pin);
        enum pin_kind kind = own ? PIN_TILES : read_pin(arena, node->pin, &t);
        if (kind == PIN_BAD)
            return ap_err_set(err,
                              "/graph/nodes/%d/pin (%s): cannot read the sharding %s", i,
                              node->name, node->pin);
        if (kind == PIN_NONE)
            continue;
        pins->layout[i] = ap_layout_replicated();
        bool ok = kind == PIN_REPLICATED ||
                  (own ? read_own(mesh, &node->shape, node->pin, &pins->layout[i])
                       : t.n_devices == ap_mesh_devices(mesh) &&
                             find_layout(mesh, &node->shape, &t, &pins->layout[i]));
        pins->pinned[i] = ok;
        pins->n += ok;
        pins->n_dropped += !ok;
        if (!ok && !first_dropped)
            first_dropped = node->pin;
    }
    if (n_unread)
        ap_warn(
            "%d imported shardings are in Shardy's form (#sdy), which is not read yet; "
            "they are dropped (the first: the sharding of %s)",
            n_unread, first_unread);
    if (first_dropped) {
        struct ap_buf shape = {0};
        for (int a = 0; a < mesh->n_axes; a++)
            ap_buf_printf(&shape, "%s%lld", a ? "x" : "", (long long)mesh->size[a]);
        ap_warn(
            "%d imported shardings do not fit the mesh %s and are dropped (the first: "
            "%s)",
            pins->n_dropped, shape.data, first_dropped);
        ap_buf_free(&shape);
    }
    return 0;
}

/* ---- pins of the command line, and microbatches ---- */

/* Gives the node a pin with a stride: the nests of every reader have factors for it. */
static void keep_stride(struct ap_arena *arena, struct ap_node *node,
                        const struct ap_mesh *mesh, struct ap_pins *pins, int k)
{
    const struct ap_layout *l = &pins->layout[k];
    struct ap_buf text = {0};
    bool cut = false;

    for (int a = 0; a < mesh->n_axes; a++) {
        cut |= l->axis[a].kind == AP_SPLIT && l->axis[a].stride > 0;
        ap_buf_printf(&text, "%s%lld", a ? "x" : "", (long long)mesh->size[a]);
    }
    ap_buf_putc(&text, ':');
    ap_layout_print(mesh, l, &text);
    if (cut)
        node->pin = ap_arena_strdup(arena, text.data);
    pins->cut |= cut;
    ap_buf_free(&text);
}

/* Sets err: no node has the name of a pin; the products of the forward pass are named,
 * those in the scope of that name ("layers.0.mlp" is layers/0/mlp) if there are any. */
static int no_such_node(struct ap_arena *arena, const struct ap_graph *g,
                        const char *name, const char *asker, struct ap_err *err)
{
    enum { MOST = 6 };
    char *scope = ap_arena_strdup(arena, name);
    struct ap_buf list = {0};
    int n[2] = {0};

    for (char *c = scope; *c; c++)
        *c = *c == '.' ? '/' : *c;
    for (int all = 0; all < 2 && n[0] == 0; all++)
        for (int k = 0; k < g->n_nodes; k++) {
            const struct ap_node *node = &g->nodes[k];
            if (node->phase != AP_FORWARD || ap_node_heavy_flops(g, k) == 0 ||
                !(all || ap_glob(scope, node->scope)))
                continue;
            if (n[all]++ < MOST)
                ap_buf_printf(&list, "%s %s", n[all] > 1 ? "," : "", node->name);
        }
    int rc = ap_err_set(err, "%s: the graph has no such node; products %s%s:%s%s", asker,
                        n[0] ? "in the scope " : "of the forward pass", n[0] ? name : "",
                        list.data ? list.data : " none",
                        n[0] > MOST || n[1] > MOST ? ", ..." : "");
    ap_buf_free(&list);
    return rc;
}

int shard_pins_add(struct ap_arena *arena, struct ap_graph *g, const struct ap_mesh *mesh,
                   const struct ap_list *list, struct ap_pins *pins, struct ap_err *err)
{
    if (list->n > 0 && !pins->pinned)
        *pins = ap_pins_none(arena, g);
    for (int i = 0; i < list->n; i++) {
        const char *text = list->v[i], *eq = strrchr(text, '=');
        const char *asker = ap_arena_printf(arena, "--pin '%s'", text);
        bool any = false;
        if (!eq)
            return ap_err_set(err, "%s: expected GLOB=LAYOUT, such as '*/kernel=S0,R'",
                              asker);
        const char *glob = ap_arena_strndup(arena, text, (size_t)(eq - text));
        for (int k = 0; k < g->n_nodes; k++) {
            struct ap_err why = {0};
            if (strcmp(glob, g->nodes[k].name) != 0 && !ap_glob(glob, g->nodes[k].name))
                continue;
            any = true;
            if (ap_pins_set(pins, g, mesh, k, eq + 1, asker, &why))
                return ap_err_set(err, "%s: %s", asker, why.msg);
        }
        if (!any)
            return no_such_node(arena, g, glob, asker, err);
    }
    for (int k = 0; pins->pinned && k < g->n_nodes; k++)
        if (pins->asker[k])
            keep_stride(arena, &g->nodes[k], mesh, pins, k);
    return 0;
}

/* Makes layout l of the devices' axes one of a mesh with a microbatch axis; -1: none. */
static int add_microbatch_axis(const struct ap_nests *nests, const struct ap_mesh *mesh,
                               const int16_t *microbatch_choice, int node,
                               struct ap_layout *l)
{
    const struct ap_graph *g = nests->graph;
    const struct ap_nest *nest = &nests->nest[g->nodes[node].group];
    const struct ap_shape *shape = &g->nodes[node].shape;
    struct ap_choice_vec alone = AP_CHOICE_NONE;
    struct ap_mesh devices_only = *mesh;

    devices_only.microbatch = 0; /* parameters are split as their users are */
    alone.axis[0] = microbatch_choice[nest->group];
    struct ap_layout timed =
        ap_nest_value_layout(nest, g, &devices_only, &alone, ap_nest_member(nest, node));
    for (int a = 1; a < mesh->n_axes; a++)
        timed.axis[a] = l->axis[a - 1];
    *l = timed;
    if (ap_layout_canon(mesh, shape, l))
        return -1;
    bool there = g->nodes[node].op == AP_OP_PARAMETER; /* for all microbatches */
    return there && l->axis[0].kind == AP_SPLIT ? ap_layout_unsplit(mesh, shape, l, 0)
                                                : 0;
}

int shard_pins_on_mesh(struct ap_arena *arena, struct ap_pins *pins,
                       const struct ap_nests *nests, const struct ap_mesh *mesh,
                       const int16_t *microbatch_choice, struct ap_err *err)
{
    const struct ap_graph *g = nests->graph;
    struct ap_layout *layout;

    if (!mesh->microbatch || pins->n == 0)
        return 0;
    layout = ap_arena_dup(arena, pins->layout, (size_t)g->n_nodes * sizeof *layout);
    for (int i = 0; i < g->n_nodes; i++)
        if (pins->pinned[i] &&
            add_microbatch_axis(nests, mesh, microbatch_choice, i, &layout[i]))
            return ap_pins_refuse(pins, g, i, "microbatches do not divide it so", err);
    pins->layout = layout;
    return 0;
}
