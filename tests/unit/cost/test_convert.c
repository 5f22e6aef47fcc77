/*
 * Conversions: every path's steps are run on simulated devices and must end in the target
 * layout, padded or not; named paths; the price of each step.
 */
#include "cost/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tap.h"
#include "cost/convert.h"

/*
 * An element of a device's block: `index` is the element of the whole tensor, -1 for
 * padding; `parts` says which partial values were combined into it: bit i = the one of
 * the device with coordinates i on the axes that are partial in the source.
 */
struct elem {
    int index;
    uint64_t parts;
};

enum { NEUTRAL = -2, JUNK = -3 };

struct block {
    int rank;
    int64_t dims[4];
    int64_t n;
    struct elem *elem;
};

struct world {
    struct ap_arena arena;
    const struct ap_mesh *mesh;
    const struct ap_shape *shape;
    int64_t n;
    struct block *dev;
};

static uint64_t seed = 1;

static uint64_t rnd(uint64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}

static struct block new_block(struct world *w, const int64_t *dims, int rank)
{
    struct block b = {.rank = rank, .n = 1};
    for (int d = 0; d < rank; d++)
        b.n *= b.dims[d] = dims[d];
    b.elem = AP_NEW_N(&w->arena, b.n, struct elem);
    return b;
}

static int64_t rank_at(const struct ap_mesh *mesh, const int64_t *q)
{
    int64_t r = 0;
    for (int a = 0; a < mesh->n_axes; a++)
        r = r * mesh->size[a] + q[a];
    return r;
}

/* Number of the device among those that hold partial values under l. */
static int part_of(const struct ap_mesh *mesh, const struct ap_layout *l,
                   const int64_t *q)
{
    int64_t i = 0;
    for (int a = 0; a < mesh->n_axes; a++)
        if (l->axis[a].kind == AP_PARTIAL)
            i = i * mesh->size[a] + q[a];
    return (int)i;
}

/* Indices of the elements that device r holds under l. */
static struct block expected(struct world *w, const struct ap_layout *l, int64_t r)
{
    struct ap_shape local = ap_layout_local(&w->arena, w->mesh, w->shape, l);
    struct block b = new_block(w, local.dims, local.rank);
    int64_t q[AP_MAX_AXES];

    ap_mesh_coords(w->mesh, r, q);
    for (int64_t i = 0; i < b.n; i++)
        b.elem[i] = (struct elem){0, 0};
    for (int d = 0; d < b.rank; d++) {
        int64_t inner = 1;
        int64_t *map = AP_NEW_N(&w->arena, b.dims[d] + 1, int64_t);
        ap_layout_index_map(w->mesh, w->shape, l, d, q, map);
        for (int k = d + 1; k < b.rank; k++)
            inner *= b.dims[k];
        for (int64_t i = 0; i < b.n; i++) {
            int64_t m = map[i / inner % b.dims[d]];
            if (m < 0)
                b.elem[i].index = -1;
            else if (b.elem[i].index >= 0)
                b.elem[i].index = (int)(b.elem[i].index * w->shape->dims[d] + m);
        }
    }
    return b;
}

/* ---- steps, as graph.h describes them ---- */

/* Position in a block of the element (outer, x, inner) of dimension s->dim. */
struct view {
    int64_t before, outer, x, inner, after; /* dims before, the three, dims after */
};

static struct view view_of(const struct block *b, const struct ap_split *s, int64_t x)
{
    struct view v = {1, s->outer, x, 0, 1};
    for (int d = 0; d < s->dim; d++)
        v.before *= b->dims[d];
    for (int d = s->dim + 1; d < b->rank; d++)
        v.after *= b->dims[d];
    v.inner = s->outer * x > 0 ? b->dims[s->dim] / (s->outer * x) : 0;
    return v;
}

static bool view_ok(const struct block *b, const struct view *v)
{
    return v->before * v->outer * v->x * v->inner * v->after == b->n;
}

static struct elem *view_at(const struct block *b, const struct view *v, int64_t i,
                            int64_t o, int64_t x, int64_t k, int64_t j)
{
    return &b->elem[(((i * v->outer + o) * v->x + x) * v->inner + k) * v->after + j];
}

/* Copies x range [at, at + len) of src's view to x range [to, ...) of dst's. */
static bool copy_x(const struct block *src, const struct view *from, int64_t at,
                   const struct block *dst, const struct view *into, int64_t to,
                   int64_t len)
{
    if (!view_ok(src, from) || !view_ok(dst, into) || from->before != into->before ||
        from->outer != into->outer || from->inner != into->inner ||
        from->after != into->after)
        return false;
    for (int64_t i = 0; i < from->before; i++)
        for (int64_t o = 0; o < from->outer; o++)
            for (int64_t x = 0; x < len; x++)
                for (int64_t k = 0; k < from->inner; k++)
                    for (int64_t j = 0; j < from->after; j++)
                        *view_at(dst, into, i, o, to + x, k, j) =
                            *view_at(src, from, i, o, at + x, k, j);
    return true;
}

static bool cut(struct world *w, const struct block *src, const struct ap_split *s,
                int64_t q, struct block *out)
{
    int64_t dims[4], len = s->full - q * s->part;
    struct view from = view_of(src, s, s->full), into;

    memcpy(dims, src->dims, sizeof(dims));
    dims[s->dim] = s->outer * s->part * from.inner;
    *out = new_block(w, dims, src->rank);
    for (int64_t i = 0; i < out->n; i++)
        out->elem[i].index = -1;
    into = view_of(out, s, s->part);
    len = len < 0 ? 0 : len > s->part ? s->part : len;
    return copy_x(src, &from, q * s->part, out, &into, 0, len);
}

/* Puts the blocks of n devices next to each other. */
static bool paste(struct world *w, struct block *const *src, int64_t n,
                  const struct ap_split *s, struct block *out)
{
    int64_t dims[4];
    struct view from = view_of(src[0], s, s->part), into;

    memcpy(dims, src[0]->dims, sizeof(dims));
    dims[s->dim] = s->outer * s->full * from.inner;
    *out = new_block(w, dims, src[0]->rank);
    into = view_of(out, s, s->full);
    for (int64_t q = 0; q < n; q++) {
        int64_t len = s->full - q * s->part;
        len = len < 0 ? 0 : len > s->part ? s->part : len;
        if (!copy_x(src[q], &from, 0, out, &into, q * s->part, len))
            return false;
    }
    return true;
}

/* The devices that differ from q on the axes only. */
static int group_of(struct world *w, unsigned axes, const int64_t *q, struct block **out)
{
    int n = 0;
    for (int64_t r = 0; r < w->n; r++) {
        int64_t p[AP_MAX_AXES];
        bool same = true;
        ap_mesh_coords(w->mesh, r, p);
        for (int a = 0; a < w->mesh->n_axes; a++)
            same &= (axes >> a & 1) || p[a] == q[a];
        if (same)
            out[n++] = &w->dev[r];
    }
    return n;
}

static bool combine(struct world *w, struct block *const *src, int n, struct block *out)
{
    *out = new_block(w, src[0]->dims, src[0]->rank);
    for (int64_t i = 0; i < out->n; i++) {
        struct elem sum = {NEUTRAL, 0};
        for (int k = 0; k < n; k++) {
            struct elem e = src[k]->elem[i];
            if (e.index == NEUTRAL)
                continue;
            /* a part that is counted twice, or of another element, spoils the sum */
            if (sum.index != NEUTRAL && (e.index != sum.index || (sum.parts & e.parts)))
                e.index = e.index == -1 && sum.index == -1 ? -1 : JUNK;
            sum.index = e.index;
            sum.parts |= e.parts;
        }
        out->elem[i] = sum;
    }
    return true;
}

static bool step_on(struct world *w, const struct ap_step *s, int64_t r,
                    struct block *out)
{
    struct block *group[64], tmp[64], *tmps[64];
    const struct ap_coll *c = &s->coll;
    int64_t q[AP_MAX_AXES];
    int axis = __builtin_ctz(c->axes);

    ap_mesh_coords(w->mesh, r, q);
    int n = group_of(w, c->axes, q, group);
    if (s->op == AP_OP_ALL_REDUCE)
        return combine(w, group, n, out);
    if (s->op == AP_OP_ALL_GATHER)
        return paste(w, group, n, &c->split, out);
    if (s->op == AP_OP_AP_SLICE)
        return cut(w, &w->dev[r], &c->split, q[axis], out);
    if (s->op == AP_OP_REDUCE_SCATTER)
        return combine(w, group, n, &tmp[0]) && cut(w, &tmp[0], &c->split, q[axis], out);
    if (s->op == AP_OP_ALL_TO_ALL) {
        for (int k = 0; k < n; k++) {
            tmps[k] = &tmp[k];
            if (!cut(w, group[k], &c->split, q[axis], &tmp[k]))
                return false;
        }
        return paste(w, tmps, n, &c->join, out);
    }
    if (s->op == AP_OP_COLLECTIVE_PERMUTE) {
        int b = __builtin_ctz(c->axes & (c->axes - 1));
        int64_t x = q[axis];
        q[axis] = q[b];
        q[b] = x;
        *out = w->dev[rank_at(w->mesh, q)];
        return true;
    }
    if (s->op != AP_OP_AP_PARTIAL)
        return false;
    *out = new_block(w, w->dev[r].dims, w->dev[r].rank);
    for (int64_t i = 0; i < out->n; i++)
        out->elem[i] = q[axis] == 0 ? w->dev[r].elem[i] : (struct elem){NEUTRAL, 0};
    return true;
}

/*
 * Is what the devices hold the target? Over the target's partial axes an element must be
 * complete when all devices' values are combined, without one counted twice.
 */
static bool arrived(struct world *w, const struct ap_layout *to, uint64_t all_parts)
{
    unsigned partial = 0;
    for (int a = 0; a < w->mesh->n_axes; a++)
        if (to->axis[a].kind == AP_PARTIAL)
            partial |= 1u << a;
    for (int64_t r = 0; r < w->n; r++) {
        struct block want = expected(w, to, r), *group[64], got;
        int64_t q[AP_MAX_AXES];
        ap_mesh_coords(w->mesh, r, q);
        int n = group_of(w, partial, q, group);
        if (w->dev[r].n != want.n)
            return false;
        combine(w, group, n, &got);
        for (int64_t i = 0; i < want.n; i++)
            if (want.elem[i].index >= 0 && (got.elem[i].index != want.elem[i].index ||
                                            got.elem[i].parts != all_parts))
                return false;
    }
    return true;
}

/* Do the layouts, bytes and prices that the path names fit together? */
static bool consistent(const struct ap_cost *cost, const struct ap_shape *shape,
                       const struct ap_layout *from, const struct ap_layout *to,
                       const struct ap_path *path, struct ap_arena *arena)
{
    double sec = 0;
    const struct ap_layout *at = from;
    for (int k = 0; k < path->n_steps; k++) {
        const struct ap_step *s = &path->steps[k];
        struct ap_shape x = ap_layout_local(arena, &cost->mesh, shape, &s->from);
        struct ap_shape y = ap_layout_local(arena, &cost->mesh, shape, &s->to);
        struct ap_layout canon = s->to;
        if (!ap_layout_equal(at, &s->from) ||
            ap_layout_canon(&cost->mesh, shape, &canon) ||
            !ap_layout_equal(&canon, &s->to) ||
            s->bytes != ap_step_bytes(&cost->mesh, s->op, &s->coll, &x, &y) ||
            s->sec != ap_cost_collective(cost, s->op, s->coll.axes, s->bytes))
            return false;
        at = &s->to;
        sec += s->sec;
    }
    return ap_layout_equal(at, to) && path->sec == sec &&
           ap_convert_sec(cost, shape, from, to) == sec;
}

static bool simulate(const struct ap_cost *cost, const struct ap_shape *shape,
                     const struct ap_layout *from, const struct ap_layout *to,
                     const struct ap_path *path)
{
    struct world w = {.mesh = &cost->mesh, .shape = shape};
    uint64_t all_parts = 0;

    w.n = ap_mesh_devices(w.mesh);
    w.dev = AP_NEW_N(&w.arena, w.n, struct block);
    for (int64_t r = 0; r < w.n; r++) {
        int64_t q[AP_MAX_AXES];
        ap_mesh_coords(w.mesh, r, q);
        w.dev[r] = expected(&w, from, r);
        for (int64_t i = 0; i < w.dev[r].n; i++)
            w.dev[r].elem[i].parts = (uint64_t)1 << part_of(w.mesh, from, q);
        all_parts |= (uint64_t)1 << part_of(w.mesh, from, q);
    }
    bool ok = consistent(cost, shape, from, to, path, &w.arena);
    for (int k = 0; ok && k < path->n_steps; k++) {
        struct block *next = AP_NEW_N(&w.arena, w.n, struct block);
        for (int64_t r = 0; ok && r < w.n; r++)
            ok = step_on(&w, &path->steps[k], r, &next[r]);
        w.dev = next;
    }
    ok = ok && arrived(&w, to, all_parts);
    ap_arena_free(&w.arena);
    return ok;
}

/* ---- cases ---- */

static struct ap_arena arena;

static void cluster_of(int64_t n, struct ap_cluster *c)
{
    struct ap_err err = {""};
    if (ap_cluster_get(&arena, NULL, NULL, n, c, &err))
        CHECK(false, "default cluster: %s", err.msg);
}

static void setup_with(struct ap_cost *cost, const char *mesh_text, int microbatches,
                       enum ap_cost_variant variant)
{
    struct ap_mesh mesh;
    struct ap_cluster cluster;
    struct ap_err err = {""};
    if (ap_mesh_parse(&arena, mesh_text, &mesh, &err) ||
        ap_mesh_add_microbatches(&mesh, microbatches, &err))
        CHECK(false, "%s", err.msg);
    cluster_of(ap_mesh_devices(&mesh), &cluster);
    if (ap_cost_init(&arena, cost, variant, &cluster, &mesh, &err))
        CHECK(false, "%s", err.msg);
}

static void setup(struct ap_cost *cost, const char *mesh_text,
                  enum ap_cost_variant variant)
{
    setup_with(cost, mesh_text, 1, variant);
}

/* All distinct layouts of a shape on a mesh, sums and maxima included. */
static int all_layouts(const struct ap_mesh *mesh, const struct ap_shape *shape,
                       struct ap_layout *out, int most)
{
    struct ap_placement p[64];
    int n = 0, total = 1, found = 0;

    p[n++] = (struct ap_placement){.kind = AP_REPLICATED};
    p[n++] = (struct ap_placement){.kind = AP_PARTIAL, .red = AP_RED_SUM};
    p[n++] = (struct ap_placement){.kind = AP_PARTIAL, .red = AP_RED_MAX};
    for (int d = 0; d < shape->rank; d++)
        for (int64_t s = shape->dims[d]; s > 0; s--)
            if (shape->dims[d] % s == 0)
                p[n++] = (struct ap_placement){
                    .kind = AP_SPLIT, .dim = (uint8_t)d, .stride = s};
    for (int a = 0; a < mesh->n_axes; a++)
        total *= n;
    for (int i = 0; i < total && found < most; i++) {
        struct ap_layout l = ap_layout_replicated();
        for (int a = 0, k = i; a < mesh->n_axes; a++, k /= n)
            l.axis[a] = p[k % n];
        if (ap_layout_canon(mesh, shape, &l))
            continue;
        int k = 0;
        while (k < found && !ap_layout_equal(&out[k], &l))
            k++;
        if (k == found)
            out[found++] = l;
    }
    return found;
}

static void complain(const struct ap_mesh *mesh, const struct ap_layout *from,
                     const struct ap_layout *to, const struct ap_path *path)
{
    struct ap_buf b = {0};
    ap_layout_print(mesh, from, &b);
    ap_buf_puts(&b, " to ");
    ap_layout_print(mesh, to, &b);
    for (int k = 0; k < path->n_steps; k++) {
        const struct ap_step *s = &path->steps[k];
        ap_buf_printf(&b, "; %s %u ", ap_ops[s->op].name, s->coll.axes);
        ap_layout_print(mesh, &s->to, &b);
    }
    printf("# %s\n", b.data);
    ap_buf_free(&b);
}

static void test_pairs(const char *mesh_text, const int64_t *dims, int rank,
                       enum ap_cost_variant variant, int *used)
{
    enum { MOST = 4000 };
    const int64_t sample = tap_cases(700);
    static struct ap_layout layout[MOST];
    struct ap_cost cost;
    struct ap_shape shape = {.dtype = AP_F32, .rank = rank, .dims = dims};

    setup(&cost, mesh_text, variant);
    int n = all_layouts(&cost.mesh, &shape, layout, MOST);
    int64_t pairs = (int64_t)n * n, tried = pairs < sample ? pairs : sample;
    int wrong = 0, missing = 0, longest = 0;
    for (int64_t i = 0; i < tried; i++) {
        int64_t k = pairs < sample ? i : (int64_t)rnd((uint64_t)pairs);
        const struct ap_layout *from = &layout[k / n], *to = &layout[k % n];
        struct ap_step room[AP_MAX_STEPS];
        struct ap_path path;
        if (ap_convert(&cost, &shape, from, to, room, &path)) {
            missing++;
            continue;
        }
        bool ok = simulate(&cost, &shape, from, to, &path);
        if (!ok && wrong++ < 3)
            complain(&cost.mesh, from, to, &path);
        longest = path.n_steps > longest ? path.n_steps : longest;
        for (int s = 0; s < path.n_steps; s++)
            used[path.steps[s].op]++;
    }
    ap_cost_free(&cost);
    CHECK(
        wrong == 0 && missing == 0,
        "%s, rank %d, first size %lld: %d layouts, %lld pairs; %d wrong, %d impossible; "
        "longest path %d",
        mesh_text, rank, (long long)dims[0], n, (long long)tried, wrong, missing,
        longest);
}

static void test_all_pairs(void)
{
    static const char *const meshes[] = {"2",   "3",   "4",     "2x2",
                                         "2x3", "2x4", "4x1",   "2x2x2",
                                         "3x3", "4x4", "3x2x2", "2x2x2x2"};
    static const struct {
        int rank;
        int64_t dims[3];
    } shapes[] = {{1, {8}}, {1, {6}},       {2, {4, 6}},    {2, {5, 3}}, {2, {8, 12}},
                  {1, {1}}, {3, {2, 1, 4}}, {3, {4, 2, 6}}, {1, {36}},   {2, {24, 7}}};
    int used[AP_N_OPS] = {0};

    for (size_t m = 0; m < sizeof(meshes) / sizeof(*meshes); m++)
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
            test_pairs(meshes[m], shapes[i].dims, shapes[i].rank,
                       (enum ap_cost_variant)((m + i) % 3), used);
    for (int op = AP_OP_ALL_REDUCE; op < AP_N_OPS; op++)
        if (op != AP_OP_AP_MASK)
            CHECK(used[op] > tap_cases(100), "%s occurs in %d paths", ap_ops[op].name,
                  used[op]);
}

/* ---- named paths ---- */

/* "all-gather(x) all-to-all(y)" */
static const char *path_text(const struct ap_mesh *mesh, const struct ap_path *path)
{
    struct ap_buf b = {0};
    for (int k = 0; k < path->n_steps; k++) {
        ap_buf_printf(&b, "%s%s(", k ? " " : "", ap_ops[path->steps[k].op].name);
        for (int a = 0; a < mesh->n_axes; a++)
            if (path->steps[k].coll.axes >> a & 1)
                ap_buf_puts(&b, mesh->name[a]);
        ap_buf_putc(&b, ')');
    }
    const char *text = b.data ? ap_arena_strdup(&arena, b.data) : "";
    ap_buf_free(&b);
    return text;
}

static struct ap_path convert(const struct ap_cost *cost, const struct ap_shape *shape,
                              const char *from_text, const char *to_text)
{
    struct ap_layout from, to;
    struct ap_err err = {""};
    static struct ap_step room[AP_MAX_STEPS];
    struct ap_path path = {0};
    if (ap_layout_parse(&cost->mesh, shape, from_text, &from, &err) ||
        ap_layout_parse(&cost->mesh, shape, to_text, &to, &err) ||
        ap_convert(cost, shape, &from, &to, room, &path))
        CHECK(false, "%s to %s: %s", from_text, to_text, err.msg);
    return path;
}

static void check_path(const struct ap_cost *cost, const struct ap_shape *shape,
                       const char *from, const char *to, const char *want)
{
    struct ap_path path = convert(cost, shape, from, to);
    const char *got = path_text(&cost->mesh, &path);
    CHECK(strcmp(got, want) == 0, "%s to %s: %s (want %s)", from, to, got, want);
}

static void test_named(void)
{
    struct ap_cost cost;
    const int64_t dims[] = {1 << 12, 1 << 12};
    struct ap_shape shape = {.dtype = AP_F32, .rank = 2, .dims = dims};

    setup(&cost, "4", AP_COST_DEFAULT);
    check_path(&cost, &shape, "R", "R", "");
    check_path(&cost, &shape, "R", "S0", "ap-slice(x)");
    check_path(&cost, &shape, "S0", "R", "all-gather(x)");
    check_path(&cost, &shape, "P", "R", "all-reduce(x)");
    check_path(&cost, &shape, "P", "S1", "reduce-scatter(x)");
    check_path(&cost, &shape, "Pmax", "S1/64", "reduce-scatter(x)");
    check_path(&cost, &shape, "S0", "S1", "all-to-all(x)");
    check_path(&cost, &shape, "R", "P", "ap-partial(x)");
    check_path(&cost, &shape, "S0", "S0/64", "all-gather(x) ap-slice(x)");
    check_path(&cost, &shape, "S0", "P", "all-gather(x) ap-partial(x)");
    ap_cost_free(&cost);
    setup(&cost, "2x8", AP_COST_DEFAULT); /* x crosses nodes */
    check_path(&cost, &shape, "P,P", "R,R",
               "reduce-scatter(y) all-reduce(x) all-gather(y)");
    check_path(&cost, &shape, "P,S0", "R,S0", "all-reduce(x)");
    check_path(&cost, &shape, "S0,S0", "R,S0", "all-gather(x) all-gather(y) ap-slice(y)");
    ap_cost_free(&cost);
    setup(&cost, "2x2", AP_COST_DEFAULT); /* axes of equal links are summed at once */
    check_path(&cost, &shape, "P,P", "R,R", "all-reduce(xy)");
    check_path(&cost, &shape, "S0,S1", "S1,S0", "collective-permute(xy)");
    check_path(&cost, &shape, "S0,R", "R,S0", "collective-permute(xy)");
    ap_cost_free(&cost);
    setup(&cost, "2x4", AP_COST_DEFAULT);
    check_path(&cost, &shape, "P,P", "R,R", "all-reduce(xy)");
    ap_cost_free(&cost);
    setup(&cost, "2x2x2", AP_COST_DEFAULT);
    check_path(&cost, &shape, "P,P,P", "R,R,R", "all-reduce(xyz)");
    check_path(&cost, &shape, "P,S1,P", "R,S1,R", "all-reduce(xz)");
    ap_cost_free(&cost);
    setup(&cost, "2x4", AP_COST_DEFAULT); /* slices first, so that less is gathered */
    check_path(&cost, &shape, "S0,R", "R,S1", "ap-slice(y) all-gather(x)");
    ap_cost_free(&cost);
}

/* Alpa's table 2: what a resharding costs, M = bytes of the whole tensor. */
static void check_table_2(const struct ap_cost *cost, const struct ap_shape *shape,
                          const char *from, const char *to, const char *want,
                          int64_t bytes)
{
    struct ap_path path = convert(cost, shape, from, to);
    const char *got = path_text(&cost->mesh, &path);
    int64_t b = path.n_steps ? path.steps[path.n_steps - 1].bytes : 0;
    CHECK(strcmp(got, want) == 0 && b == bytes && (bytes || path.sec == 0),
          "alpa table 2: %s to %s: %s of %lld bytes (want %s of %lld)", from, to, got,
          (long long)b, want, (long long)bytes);
}

static void test_table_2(void)
{
    struct ap_cost cost;
    const int64_t dims[] = {1024, 2048}, m = 4 * 1024 * 2048;
    struct ap_shape shape = {.dtype = AP_F32, .rank = 2, .dims = dims};

    setup(&cost, "2x4", AP_COST_ALPA);
    check_table_2(&cost, &shape, "R,R", "S0,S1", "ap-slice(x) ap-slice(y)", 0);
    check_table_2(&cost, &shape, "S0,R", "R,R", "all-gather(x)", m);
    check_table_2(&cost, &shape, "S0,S1", "S0,R", "all-gather(y)", m / 2);
    /* the table divides these two by the exchanging axis: what a device sends in all */
    check_table_2(&cost, &shape, "S0,R", "S1,R", "all-to-all(x)", m / 2 * 2);
    check_table_2(&cost, &shape, "S0,S1", "S0,S0", "all-to-all(y)", m / 8 * 4);
    ap_cost_free(&cost);
}

/*
 * A device that holds h of the b bytes that it is to have must receive b - h, over links
 * no faster than its fastest axis: no path between layouts without sums takes less.
 */
static double bound_of(const struct ap_cost *cost, const struct ap_shape *shape,
                       const struct ap_layout *from, const struct ap_layout *to)
{
    int64_t bytes = ap_layout_local_bytes(&cost->mesh, shape, to);
    double most = 0, held = (double)ap_layout_local_bytes(&cost->mesh, shape, from);
    for (int a = 0; a < cost->mesh.n_axes; a++)
        most = fmax(most, cost->bandwidth[a]);
    return fmax(0, (double)bytes - held) / most;
}

static void test_readme(void)
{
    struct ap_cost cost;
    const int64_t dims[] = {4000, 4000};
    struct ap_shape shape = {.dtype = AP_F32, .rank = 2, .dims = dims};
    static struct ap_layout all[4096];
    int below = 0;

    setup(&cost, "2x8", AP_COST_DEFAULT); /* x crosses nodes */
    check_path(&cost, &shape, "P,P", "R,R",
               "reduce-scatter(y) all-reduce(x) all-gather(y)");
    struct ap_path path = convert(&cost, &shape, "P,P", "R,R");
    CHECK(path.n_steps == 3 && round(path.sec * 1e7) == 7553,
          "README of libcommon/cost: P,P to R,R takes %g us", path.sec * 1e6);
    const int64_t few[] = {8, 8};
    shape.dims = few;
    int n = all_layouts(&cost.mesh, &shape, all, 4096);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            below += ap_convert_sec(&cost, &shape, &all[i], &all[j]) <
                     bound_of(&cost, &shape, &all[i], &all[j]) * (1 - 1e-12);
    CHECK(n > 0 && below == 0,
          "README of libcommon/cost: none of %d pairs below the bound on received bytes",
          n * n);
    ap_cost_free(&cost);
}

int main(void)
{
    test_named();
    test_readme();
    test_table_2();
    test_all_pairs();
    ap_arena_free(&arena);
    return tap_done();
}
