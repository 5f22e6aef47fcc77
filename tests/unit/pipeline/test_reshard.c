/* Who sends which elements to whom, by the lists of indices that devices have: random
 * values, meshes and layouts, against every pair of devices. */
#include "pipeline/reshard.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "random_plan.h"
#include "tap.h"

static struct ap_arena arena;
static uint64_t seed = 7;

struct side {
    struct ap_mesh mesh;
    struct ap_layout layout;
    int64_t id[64];
    int n;
};

/* Every axis splits a dimension or nothing; the first may be that of microbatches. */
static void draw_side(const struct ap_shape *shape, int first_id, bool time,
                      struct side *out)
{
    static const char *const meshes[] = {"1", "4", "2x3", "2x2x2", "3x4", "8"};
    struct ap_err err = {0};

    *out = (struct side){.layout = ap_layout_replicated()};
    ap_mesh_parse(&arena, meshes[random_below(&seed, 6)], &out->mesh, &err);
    if (time)
        ap_mesh_add_microbatches(&out->mesh, 2, &err);
    out->n = (int)ap_mesh_devices(&out->mesh);
    for (int i = 0; i < out->n; i++)
        out->id[i] = first_id + i;
    for (int a = 0; a < out->mesh.n_axes && shape->rank > 0; a++) {
        struct ap_layout l = out->layout;
        l.axis[a] = (struct ap_placement){
            .kind = AP_SPLIT, .dim = (int8_t)random_below(&seed, shape->rank)};
        const int64_t size = shape->dims[l.axis[a].dim];
        if (random_below(&seed, 4) == 0 && size % 3 == 0)
            l.axis[a].stride = 3;
        if ((a == 0 && time ? size % 2 == 0 : random_below(&seed, 3) > 0) &&
            !ap_layout_canon(&out->mesh, shape, &l))
            out->layout = l;
    }
}

static int64_t common(int rank, const struct ap_index_set *a,
                      const struct ap_index_set *b)
{
    int64_t n = 1;

    for (int d = 0; d < rank; d++) {
        int64_t same = 0;
        for (int64_t i = 0; i < a[d].n; i++)
            for (int64_t k = 0; k < b[d].n; k++)
                same += a[d].global[i] == b[d].global[k];
        n *= same;
    }
    return n;
}

static bool same_sets(int rank, const struct ap_index_set *a,
                      const struct ap_index_set *b)
{
    for (int d = 0; d < rank; d++)
        if (a[d].n != b[d].n ||
            (a[d].n && memcmp(a[d].global, b[d].global, (size_t)a[d].n * 8) != 0))
            return false;
    return true;
}

/* The moves that go through all pairs in order. */
static int expected(const struct ap_reshard *r, const struct side *from,
                    const struct side *to, struct ap_reshard_move *move)
{
    int64_t load[64] = {0};
    int n = 0;

    for (int q = 0; q < r->n_to; q++)
        for (int s = 0; s < r->n_from; s++) {
            const struct ap_index_set *has = &r->has[s * r->rank];
            int best = -1;
            bool own = false, seen = false;
            for (int p = 0; p < s; p++)
                seen |= same_sets(r->rank, &r->has[p * r->rank], has);
            const int64_t elems = common(r->rank, has, &r->lands[q * r->rank]);
            if (seen || elems == 0)
                continue;
            for (int p = s; p < r->n_from && !own; p++) {
                if (!same_sets(r->rank, &r->has[p * r->rank], has))
                    continue;
                own = from->id[p] == to->id[q];
                best = own || best < 0 || load[p] < load[best] ? p : best;
            }
            load[best] += own ? 0 : elems;
            move[n++] = (struct ap_reshard_move){best, q, elems};
        }
    return n;
}

/* Every receiver of a tile lands its part of it, and all parts are the tile. */
static bool covers(const struct ap_reshard *r, enum ap_resharding how, int q)
{
    int64_t sum = 0;

    for (int k = 0; k < r->n_to; k++) {
        const bool same =
            same_sets(r->rank, &r->needs[k * r->rank], &r->needs[q * r->rank]);
        if (same != (r->start[k] == r->start[q]))
            return false;
        if (same && r->group[r->start[k] + r->place[k]] != k)
            return false;
        sum += same ? ap_reshard_elems(r->rank, &r->lands[k * r->rank]) : 0;
    }
    const int64_t all = ap_reshard_elems(r->rank, &r->needs[q * r->rank]);
    return sum == (how == AP_RESHARD_SEND_RECV || r->rank == 0 ? all * r->size[q] : all);
}

static bool check_one(int round)
{
    int64_t dims[3];
    struct ap_shape shape = {
        .dtype = AP_F32, .rank = random_below(&seed, 4), .dims = dims};
    const enum ap_resharding how = (enum ap_resharding)(1 + round % 3);
    const bool time = random_below(&seed, 2);
    struct side from, to;
    struct ap_mark mark = ap_arena_mark(&arena);
    static struct ap_reshard_move want[64 * 64];

    for (int d = 0; d < shape.rank; d++)
        dims[d] = (int64_t[]){1, 2, 6, 12, 7}[random_below(&seed, 5)];
    draw_side(&shape, 0, time, &from);
    draw_side(&shape, random_below(&seed, 2) ? 100 : 2, time, &to);
    const struct ap_reshard_side a = {&from.mesh, &from.layout, from.id};
    const struct ap_reshard_side b = {&to.mesh, &to.layout, to.id};
    const struct ap_reshard r = ap_reshard_new(&arena, &shape, &a, &b, time, how);
    const int n = expected(&r, &from, &to, want);
    bool same = n == r.n_moves, all = true;
    for (int i = 0; i < n && same; i++)
        same = want[i].from == r.move[i].from && want[i].to == r.move[i].to &&
               want[i].elems == r.move[i].elems;
    for (int q = 0; q < r.n_to; q++)
        all &= covers(&r, how, q);
    if (!same || !all)
        printf("# round %d: %d moves, expected %d\n", round, r.n_moves, n);
    ap_arena_rewind(&arena, mark);
    return same && all;
}

int main(void)
{
    int bad = 0;
    for (int round = 0; round < 2000; round++)
        bad += !check_one(round);
    CHECK(bad == 0, "moves and tiles of %d random values", 2000);
    ap_arena_free(&arena);
    return tap_done();
}
