/* Meshes, canonical layouts, pieces and index maps, against brute force. */
#include "layout/layout.h"

#include <stdlib.h>
#include <string.h>

#include "padded.h"
#include "tap.h"

static struct ap_arena arena;

static struct ap_mesh mesh_of(const char *text)
{
    struct ap_mesh mesh;
    struct ap_err err = {""};
    if (ap_mesh_parse(&arena, text, &mesh, &err))
        CHECK(false, "mesh %s: %s", text, err.msg);
    return mesh;
}

static const char *text_of(const struct ap_mesh *mesh, const struct ap_layout *l)
{
    struct ap_buf buf = {0};
    ap_layout_print(mesh, l, &buf);
    const char *text = ap_arena_strdup(&arena, buf.data);
    ap_buf_free(&buf);
    return text;
}

/*
 * Placements that a layout of one dimension may use, written as the brute force sees
 * them: 0 is R, then the divisors of the dimension as strides.
 */
static int placements(int64_t dim, struct ap_placement *out)
{
    int n = 0;
    out[n++] = (struct ap_placement){.kind = AP_REPLICATED};
    for (int64_t s = dim; s > 0; s--)
        if (dim % s == 0)
            out[n++] = (struct ap_placement){.kind = AP_SPLIT, .stride = s};
    return n;
}

struct seen {
    struct ap_layout canon;
    int64_t *map; /* of all devices, one after the other; then -2 */
    int n;
};

/* Index maps straight from the definition in layout.h, for one dimension. */
static int naive_map(const struct ap_mesh *mesh, int64_t dim, const struct ap_layout *l,
                     int64_t *out)
{
    int64_t n_devices = ap_mesh_devices(mesh);
    int n = 0;

    for (int64_t rank = 0; rank < n_devices; rank++) {
        int64_t q[AP_MAX_AXES], at[1024], len = 1, above = dim;
        ap_mesh_coords(mesh, rank, q);
        at[0] = 0;
        while (above > 0) { /* one factor: run `above` down to the next smaller stride */
            int64_t next = 0;
            for (int a = 0; a < mesh->n_axes; a++) {
                int64_t s = l->axis[a].kind == AP_SPLIT ? l->axis[a].stride : 0;
                if (s < above && s > next)
                    next = s;
            }
            int64_t unit = next ? next : 1, size = above / unit;
            int64_t lo = 0, hi = size,
                    block = size; /* [lo, hi) is real, block with padding */
            for (int a = 0; a < mesh->n_axes; a++) {
                if (l->axis[a].kind != AP_SPLIT || l->axis[a].stride != above)
                    continue;
                block = (block + mesh->size[a] - 1) / mesh->size[a];
                lo += q[a] * block;
                if (hi > lo + block)
                    hi = lo + block;
            }
            int64_t more[1024], k = 0;
            for (int64_t i = 0; i < len; i++)
                for (int64_t j = lo; j < lo + block; j++)
                    more[k++] = at[i] < 0 || j >= hi ? -1 : at[i] + j * unit;
            memcpy(at, more, (size_t)k * sizeof(*at));
            len = k;
            above = next;
        }
        for (int64_t i = 0; i < len; i++)
            out[n++] = at[i];
        out[n++] = -2;
    }
    return n;
}

static int mapped(const struct ap_mesh *mesh, const struct ap_shape *shape,
                  const struct ap_layout *l, int64_t *out)
{
    struct ap_shape local = ap_layout_local(&arena, mesh, shape, l);
    int n = 0;
    for (int64_t rank = 0; rank < ap_mesh_devices(mesh); rank++) {
        int64_t q[AP_MAX_AXES];
        ap_mesh_coords(mesh, rank, q);
        ap_layout_index_map(mesh, shape, l, 0, q, out + n);
        n += (int)local.dims[0];
        out[n++] = -2;
    }
    return n;
}

struct tally {
    int layouts, refused, wrong_map, not_equal, too_equal, not_idempotent, classes,
        padded;
};

/* The layout as the definition takes it: trivial axes replicated, -1 when not allowed. */
static int plain(const struct ap_mesh *mesh, struct ap_layout *l)
{
    for (int a = 0; a < mesh->n_axes; a++) {
        if (mesh->size[a] == 1)
            l->axis[a] = (struct ap_placement){0};
        for (int b = 0; b < a; b++) {
            int64_t s = l->axis[a].stride, t = l->axis[b].stride;
            if (l->axis[a].kind == AP_SPLIT && l->axis[b].kind == AP_SPLIT &&
                s % t != 0 && t % s != 0)
                return -1;
        }
    }
    return 0;
}

static void try_layout(const struct ap_mesh *mesh, const struct ap_shape *shape,
                       struct ap_layout l, struct seen *seen, struct tally *t)
{
    static int64_t map[65536], map2[65536];
    struct ap_layout canon = l;
    bool allowed = plain(mesh, &l) == 0;

    t->layouts++;
    if ((ap_layout_canon(mesh, shape, &canon) == 0) != allowed) {
        /* size-1 axes are looked at first, so that both agree on what is left */
        t->wrong_map++;
        return;
    }
    if (!allowed) {
        t->refused++;
        return;
    }
    int n = naive_map(mesh, shape->dims[0], &l, map);
    int n2 = mapped(mesh, shape, &canon, map2);
    struct ap_layout again = canon;
    if (n != n2 || memcmp(map, map2, (size_t)n * sizeof(*map)) != 0)
        t->wrong_map++;
    if (ap_layout_canon(mesh, shape, &again) || !ap_layout_equal(&again, &canon))
        t->not_idempotent++;
    bool pad = false;
    for (int i = 0; i < n; i++)
        pad |= map[i] == -1;
    if (pad != is_padded(mesh, shape, &canon))
        t->wrong_map++;
    t->padded += pad;
    int known = -1;
    for (int i = 0; i < t->classes; i++) {
        bool same = seen[i].n == n && !memcmp(seen[i].map, map, (size_t)n * sizeof(*map));
        bool equal = ap_layout_equal(&seen[i].canon, &canon);
        if (same)
            known = i;
        t->not_equal += same && !equal;
        t->too_equal += !same && equal;
    }
    if (known < 0)
        seen[t->classes++] =
            (struct seen){canon, ap_arena_dup(&arena, map, (size_t)n * sizeof(*map)), n};
}

static void brute(const char *mesh_text, int64_t dim, struct tally *t)
{
    static struct seen seen[20000];
    struct ap_mark mark = ap_arena_mark(&arena);
    struct ap_mesh mesh = mesh_of(mesh_text);
    struct ap_shape shape = {.dtype = AP_F32, .rank = 1, .dims = &dim};
    struct ap_placement p[64];
    int n = placements(dim, p), total = 1;

    for (int a = 0; a < mesh.n_axes; a++)
        total *= n;
    t->classes = 0;
    for (int i = 0; i < total; i++) {
        struct ap_layout l = ap_layout_replicated();
        for (int a = 0, k = i; a < mesh.n_axes; a++, k /= n)
            l.axis[a] = p[k % n];
        try_layout(&mesh, &shape, l, seen, t);
    }
    ap_arena_rewind(&arena, mark);
}

static void test_canon(void)
{
    static const char *const meshes[] = {
        "1",     "2",     "3",     "4",     "2x2",   "2x3",     "3x2",     "4x2",
        "2x4",   "4x4",   "1x3",   "3x1",   "4x3",   "3x3",     "2x2x2",   "2x1x2",
        "4x2x3", "2x3x4", "4x2x2", "3x3x2", "2x4x3", "2x2x2x2", "4x2x3x2",
    };
    struct tally all = {0};
    for (size_t m = 0; m < sizeof(meshes) / sizeof(*meshes); m++) {
        struct tally t = {0};
        int axes = mesh_of(meshes[m]).n_axes;
        int64_t most = axes < 3 ? 24 : axes == 3 ? 16 : 8;
        for (int64_t dim = 1; dim <= most; dim++)
            brute(meshes[m], dim, &t);
        if (axes == 2)
            brute(meshes[m], 48, &t);
        if (axes == 3)
            brute(meshes[m], 24, &t);
        CHECK(
            t.wrong_map == 0 && t.not_equal == 0 && t.too_equal == 0 &&
                t.not_idempotent == 0,
            "mesh %s: %d layouts, %d refused, %d padded; %d maps changed, %d equal ones "
            "differ, %d different ones equal, %d not stable",
            meshes[m], t.layouts, t.refused, t.padded, t.wrong_map, t.not_equal,
            t.too_equal, t.not_idempotent);
        all.layouts += t.layouts;
        all.padded += t.padded;
    }
    CHECK(all.padded > 1000, "%d layouts in all, %d of them padded", all.layouts,
          all.padded);
}

static void check_parse(const char *mesh_text, const int64_t *dims, int rank,
                        const char *text, const char *want)
{
    struct ap_mesh mesh = mesh_of(mesh_text);
    struct ap_shape shape = {.dtype = AP_F32, .rank = rank, .dims = dims};
    struct ap_layout l;
    struct ap_err err = {""};
    const char *got =
        ap_layout_parse(&mesh, &shape, text, &l, &err) ? err.msg : text_of(&mesh, &l);
    CHECK(strcmp(got, want) == 0, "%s on %s is %s (want %s)", text, mesh_text, got, want);
}

static void test_text(void)
{
    const int64_t dims[] = {8, 64};
    check_parse("2x4", dims, 2, "S0,R", "S0,R");
    check_parse("2x4", dims, 2, "R,S1/16", "R,S1/16");
    check_parse("2x4", dims, 2, "P,Pmax", "P,Pmax");
    check_parse("2x4", dims, 2, "S0/8,S0/4", "S0,S0");
    check_parse("2x4", dims, 2, "S0/4,S0", "S0/4,S0");
    check_parse("2x4", dims, 2, "S0/2,S0", "S0/2,S0");
    check_parse("1x4", dims, 2, "S0,S1", "R,S1");
    check_parse("2x4", dims, 2, "S0", "layout 'S0': expected 2 placements");
    check_parse("2x4", dims, 2, "S0,S0,S1", "layout 'S0,S0,S1': expected 2 placements");
    check_parse("2x4", dims, 2, "S2,R", "layout 'S2,R': the tensor has no dimension 2");
    check_parse("2x4", dims, 2, "S0/3,R",
                "layout 'S0/3,R': strides do not divide the dimension");
    check_parse("2x4", dims, 2, "S0/16,R",
                "layout 'S0/16,R': strides do not divide the dimension");
    check_parse("2x4", dims, 2, "X,R",
                "layout 'X,R': placement: expected R, P or S<dimension>");
}

static void test_mesh(void)
{
    static const char *const bad[] = {"",
                                      "x",
                                      "2x",
                                      "2x4x",
                                      "0",
                                      "2x0",
                                      "-2",
                                      "dp=2,4",
                                      "2,tp=4",
                                      "dp=2xtp",
                                      "a=2,a=2",
                                      "2 x 4",
                                      "dp=",
                                      "=2",
                                      "2x2x2x2x2x2x2",
                                      "99999x99999",
                                      "99999999999999999999"};
    struct ap_mesh m = mesh_of("dp=2,tp=4");
    int64_t q[AP_MAX_AXES];

    CHECK(m.n_axes == 2 && m.size[0] == 2 && m.size[1] == 4, "dp=2,tp=4 has sizes 2, 4");
    CHECK(!strcmp(m.name[0], "dp") && !strcmp(m.name[1], "tp"), "its axes have names");
    CHECK(ap_mesh_devices(&m) == 8, "8 devices");
    ap_mesh_coords(&m, 6, q);
    CHECK(q[0] == 1 && q[1] == 2, "rank 6 is at (1, 2): the last axis varies fastest");
    m = mesh_of("2x1x3");
    CHECK(m.n_axes == 3 && m.size[1] == 1 && !strcmp(m.name[2], "z"),
          "2x1x3 keeps its axis of size 1; names default to x, y, z");
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct ap_err err = {""};
        CHECK(ap_mesh_parse(&arena, bad[i], &m, &err) == -1 && err.msg[0],
              "mesh '%s' is refused: %s", bad[i], err.msg);
    }
}

static void test_pieces(void)
{
    struct ap_mesh mesh = mesh_of("2x4");
    const int64_t dims[] = {12, 5};
    struct ap_shape shape = {.dtype = AP_F32, .rank = 2, .dims = dims};
    struct ap_layout l;
    struct ap_err err = {""};
    struct ap_piece p[AP_MAX_AXES + 1];

    ap_layout_parse(&mesh, &shape, "S0/6,S1", &l, &err);
    int n = ap_layout_pieces(&mesh, &shape, &l, 0, p);
    CHECK(n == 2 && p[0].size == 2 && p[0].local == 2 && p[0].axes == 0 &&
              p[1].size == 6 && p[1].local == 3 && p[1].axes == 1,
          "12 split S0/6 by 2: pieces 2 and 6 by axis x, 3 left");
    n = ap_layout_pieces(&mesh, &shape, &l, 1, p);
    CHECK(n == 1 && p[0].size == 5 && p[0].local == 2 && p[0].axes == 2,
          "5 split by 4: blocks of 2");
    CHECK(is_padded(&mesh, &shape, &l), "that one is padded");
    CHECK(ap_layout_local_bytes(&mesh, &shape, &l) == 2 * 3 * 2 * 4,
          "6x2 floats on a device: 48 bytes");
    struct ap_shape local = ap_layout_local(&arena, &mesh, &shape, &l);
    CHECK(local.rank == 2 && local.dims[0] == 6 && local.dims[1] == 2, "local shape 6x2");
    ap_layout_parse(&mesh, &shape, "S0/6,R", &l, &err);
    CHECK(!is_padded(&mesh, &shape, &l), "S0/6,R is not padded");
}

static void test_zero(void)
{
    struct ap_mesh mesh = mesh_of("2x4");
    const int64_t dims[] = {0, 4};
    struct ap_shape shape = {.dtype = AP_F32, .rank = 2, .dims = dims};
    struct ap_layout l;
    struct ap_err err = {""};
    CHECK(ap_layout_parse(&mesh, &shape, "S0,S1", &l, &err) == 0 &&
              !strcmp(text_of(&mesh, &l), "R,S1") &&
              ap_layout_local_bytes(&mesh, &shape, &l) == 0,
          "an empty dimension is not split");
}

/* Canonical layouts of a tensor without padding, by trying all placements. */
static int count(const char *mesh_text, const int64_t *dims, bool strides, bool partial)
{
    struct ap_mesh mesh = mesh_of(mesh_text);
    struct ap_shape shape = {.dtype = AP_F32, .rank = 2, .dims = dims};
    struct ap_placement p[64];
    int n = 0, total = 1, found = 0;
    struct ap_layout *seen = AP_NEW_N(&arena, 4096, struct ap_layout);

    p[n++] = (struct ap_placement){.kind = AP_REPLICATED};
    if (partial)
        p[n++] = (struct ap_placement){.kind = AP_PARTIAL, .red = AP_RED_SUM};
    for (uint8_t d = 0; d < 2; d++)
        for (int64_t s = dims[d]; s > 0; s--)
            if (dims[d] % s == 0 && (strides || s == dims[d]))
                p[n++] = (struct ap_placement){.kind = AP_SPLIT, .dim = d, .stride = s};
    for (int a = 0; a < mesh.n_axes; a++)
        total *= n;
    for (int i = 0; i < total; i++) {
        struct ap_layout l = ap_layout_replicated();
        for (int a = 0, k = i; a < mesh.n_axes; a++, k /= n)
            l.axis[a] = p[k % n];
        if (ap_layout_canon(&mesh, &shape, &l) || is_padded(&mesh, &shape, &l))
            continue;
        int k = 0;
        while (k < found && !ap_layout_equal(&seen[k], &l))
            k++;
        if (k == found)
            seen[found++] = l;
    }
    return found;
}

static void test_counts(void)
{
    int n = count("4", (const int64_t[]){256, 256}, true, true);
    CHECK(n == 16, "rhino §4.3.3: 256x256 on 4 devices has 16 layouts (%d)", n);
    n = count("2", (const int64_t[]){4, 2}, true, true);
    CHECK(n == 5, "rhino §4.3.3: 4x2 on 2 devices has 5 (%d)", n);
    n = count("8", (const int64_t[]){4096, 16384}, true, true);
    CHECK(n == 24, "rhino §4.3.3: 4096x16384 on 8 devices has 24 (%d)", n);
    n = count("8", (const int64_t[]){1024, 4096}, true, true);
    CHECK(n == 20, "rhino §4.3.3: 1024x4096 on 8 devices has 20 (%d)", n);
    n = count("2x2", (const int64_t[]){8, 8}, false, false);
    CHECK(n == 9, "alpa table 1: a 2-D tensor has 9 specs on 2x2 (%d)", n);
}

/* Dimension 0 of each device's block, devices separated by bars, padding as dots. */
static const char *blocks(const char *mesh_text, int64_t dim, const char *layout)
{
    struct ap_mesh mesh = mesh_of(mesh_text);
    struct ap_shape shape = {.dtype = AP_F32, .rank = 1, .dims = &dim};
    struct ap_layout l;
    struct ap_err err = {""};
    struct ap_buf out = {0};
    int64_t map[256];

    if (ap_layout_parse(&mesh, &shape, layout, &l, &err))
        return "no layout";
    int n = mapped(&mesh, &shape, &l, map);
    for (int i = 0; i + 1 < n; i++)
        if (map[i] == -2)
            ap_buf_puts(&out, " |");
        else if (map[i] == -1)
            ap_buf_puts(&out, " .");
        else
            ap_buf_printf(&out, " %lld", (long long)map[i]);
    const char *text = ap_arena_strdup(&arena, out.data + 1);
    ap_buf_free(&out);
    return text;
}

static void test_readme(void)
{
    static const struct {
        const char *mesh;
        int64_t dim;
        const char *layout, *blocks;
    } cases[] = {
        {"2", 12, "S0", "0 1 2 3 4 5 | 6 7 8 9 10 11"},
        {"2", 12, "S0/6", "0 1 2 6 7 8 | 3 4 5 9 10 11"},
        {"2x2", 12, "S0,S0", "0 1 2 | 3 4 5 | 6 7 8 | 9 10 11"},
        {"2x2", 12, "S0/6,S0", "0 1 2 | 6 7 8 | 3 4 5 | 9 10 11"},
        {"2x2", 10, "S0,S0", "0 1 2 | 3 4 . | 5 6 7 | 8 9 ."},
        {"4", 10, "S0", "0 1 2 | 3 4 5 | 6 7 8 | 9 . ."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = blocks(cases[i].mesh, cases[i].dim, cases[i].layout);
        CHECK(!strcmp(got, cases[i].blocks), "README of libcommon/layout: %s of %lld: %s",
              cases[i].layout, (long long)cases[i].dim, got);
    }
}

static void check_axis_names(void)
{
    struct ap_mesh plain = {.n_axes = 2, .size = {2, 4}, .name = {"x", "y"}};
    struct ap_mesh named = {.n_axes = 3, .size = {2, 2, 2}, .name = {"tp", "fsdp", "dp"}};
    struct ap_mesh data = {.n_axes = 2, .size = {2, 2}, .name = {"batch", "ep"}};
    struct ap_mesh timed = {
        .n_axes = 2, .size = {4, 2}, .name = {"time", "data"}, .microbatch = 1};

    CHECK(ap_mesh_tensor_axis(&plain) == 1, "without names tensors go on the last axis");
    CHECK(ap_mesh_tensor_axis(&named) == 0, "tp is for tensors, wherever it stands");
    CHECK(ap_mesh_tensor_axis(&data) == -1, "no axis is left where all are for others");
    CHECK(ap_mesh_tensor_axis(&timed) == -1, "nor is the microbatch axis one");
    CHECK(ap_mesh_axes_for(&named, AP_AXIS_FSDP) == 2 &&
              ap_mesh_axes_for(&named, AP_AXIS_DATA) == 4 &&
              ap_mesh_axes_for(&data, AP_AXIS_EXPERT) == 2 &&
              ap_mesh_axes_for(&plain, AP_AXIS_DATA) == 0,
          "sets of axes by their use");
}

int main(void)
{
    test_mesh();
    test_text();
    test_pieces();
    test_zero();
    test_canon();
    test_counts();
    test_readme();
    ap_arena_free(&arena);
    check_axis_names();
    return tap_done();
}
