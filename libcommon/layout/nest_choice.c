/*
 * Consequences of a choice of factors: legality, layouts, local extents, masks, work. All
 * of it is read off the nest, so that no other file knows how operators are sharded.
 */
#include "layout/nest_impl.h"

#include <assert.h>
#include <math.h>

/* ---- extents ---- */

/* Whether an axis with choice c splits factor f of what a device computes: in a ring it
 * computes with all keys, one block after the other. */
static bool splits(const struct ap_nest *nest, int c, int f)
{
    return c == f || (ap_choice_is_ring(nest, c) && f == nest->ring->rows);
}

int64_t ap_nest_extent(const struct ap_nest *nest, const struct ap_mesh *mesh,
                       const struct ap_choice_vec *choice, int f)
{
    int64_t extent = nest->factors[f].size;
    for (int a = 0; a < mesh->n_axes; a++) {
        if (splits(nest, choice->axis[a], f))
            extent = ap_ceil_div(extent, mesh->size[a]);
    }
    return extent;
}

int64_t ap_choice_devices(const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                          int c)
{
    int64_t n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        if (choice->axis[a] == c)
            n = ap_mul64(n, mesh->size[a]);
    return n;
}

bool ap_choice_reaches(const struct ap_nest *nest, const struct ap_mesh *mesh,
                       const struct ap_choice_vec *choice, int c)
{
    return c < 0 || c >= nest->n_factors ||
           nest->factors[c].size >= ap_choice_devices(mesh, choice, c);
}

bool ap_nest_is_padded(const struct ap_nest *nest, const struct ap_mesh *mesh,
                       const struct ap_choice_vec *choice, int f)
{
    int64_t n = 1;
    for (int a = 0; a < mesh->n_axes; a++)
        if (splits(nest, choice->axis[a], f))
            n = ap_mul64(n, mesh->size[a]);
    return ap_mul64(ap_nest_extent(nest, mesh, choice, f), n) > nest->factors[f].size;
}

/* ---- legality ---- */

/*
 * True when axes of devices alone split factor f. What a device has of all microbatches
 * (parameters) is not split by theirs: a factor that both split is in part unsplit there.
 */
static bool is_split(const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                     int f)
{
    bool split = false;

    for (int a = 0; a < mesh->n_axes; a++) {
        if (choice->axis[a] == f && (mesh->microbatch >> a & 1))
            return false;
        split |= choice->axis[a] == f;
    }
    return split;
}

/*
 * A layout names factors by strides, so it cannot say that a factor is padded when an
 * unsplit one lies right after it in the same dimension.
 */
static bool has_layout(const struct ap_access *access, const struct ap_mesh *mesh,
                       const struct ap_choice_vec *choice, uint64_t padded)
{
    for (int d = 0; d < access->rank; d++) {
        const struct ap_dim_factors *list = &access->dims[d];
        for (int j = 0; j + 1 < list->n; j++) {
            if ((padded >> list->factor[j] & 1) &&
                !is_split(mesh, choice, list->factor[j + 1]))
                return false;
        }
    }
    return true;
}

static bool all_have_layouts(const struct ap_nest *nest, const struct ap_mesh *mesh,
                             const struct ap_choice_vec *choice)
{
    uint64_t padded = 0;
    for (int a = 0; a < mesh->n_axes; a++) {
        int c = choice->axis[a];
        if (c >= 0 && c < nest->n_factors && ap_nest_is_padded(nest, mesh, choice, c))
            padded |= UINT64_C(1) << c;
    }
    bool ok = true;
    for (int i = 0; padded && ok && i < nest->n_ins; i++)
        ok = has_layout(&nest->ins[i].access, mesh, choice, padded);
    for (int m = 0; padded && ok && m < nest->n_members; m++)
        ok = has_layout(&nest->values[m], mesh, choice, padded);
    return ok;
}

int ap_choice_ring_axis(const struct ap_nest *nest, const struct ap_mesh *mesh,
                        const struct ap_choice_vec *choice)
{
    for (int a = 0; a < mesh->n_axes; a++)
        if (ap_choice_is_ring(nest, choice->axis[a]))
            return a;
    return -1;
}

/* One ring, of devices, with blocks of one size. */
static bool ring_ok(const struct ap_nest *nest, const struct ap_mesh *mesh,
                    const struct ap_choice_vec *choice)
{
    const int ring = ap_choice_ring_axis(nest, mesh, choice);

    if (ring < 0)
        return true;
    for (int a = ring + 1; a < mesh->n_axes; a++)
        if (ap_choice_is_ring(nest, choice->axis[a]))
            return false;
    return !(mesh->microbatch >> ring & 1) &&
           nest->factors[nest->ring->keys].size % mesh->size[ring] == 0 &&
           !ap_nest_is_padded(nest, mesh, choice, nest->ring->rows);
}

bool ap_choice_ok(const struct ap_nest *nest, const struct ap_mesh *mesh,
                  const struct ap_choice_vec *choice)
{
    bool linear = false, other_than_sum = false;

    if (!ring_ok(nest, mesh, choice))
        return false;

    for (int a = 0; a < mesh->n_axes; a++) {
        int c = choice->axis[a];
        if (c == -1)
            continue;
        if (c < -1 || c >= nest->n_factors + nest->n_linear || mesh->size[a] == 1)
            return false;
        if (c >= nest->n_factors) {
            linear |= !ap_choice_is_ring(nest, c);
            continue;
        }
        const struct ap_factor *f = &nest->factors[c];
        if (f->kind == AP_FACTOR_WHOLE || f->size <= 1)
            return false;
        if ((mesh->microbatch >> a & 1) && f->size % mesh->size[a])
            return false; /* microbatches are of one size */
        if (nest->attention && f->kind == AP_FACTOR_REDUCED &&
            ap_nest_is_padded(nest, mesh, choice, c))
            return false; /* no padding is neutral to all of its operators */
        other_than_sum |= f->red != AP_RED_NONE && f->red != AP_RED_SUM;
    }
    return !(linear && other_than_sum) && all_have_layouts(nest, mesh, choice);
}

/* ---- layouts ---- */

/* Splits the dimension that holds factor f; a stride is what lies minor to the factor. */
static void split_factor(const struct ap_nest *nest, const struct ap_access *access,
                         int f, struct ap_placement *p)
{
    for (int d = 0; d < access->rank; d++) {
        int64_t stride = 1;
        for (int j = access->dims[d].n - 1; j >= 0; j--) {
            stride *= nest->factors[access->dims[d].factor[j]].size;
            if (access->dims[d].factor[j] != f)
                continue;
            p->kind = AP_SPLIT;
            p->dim = (uint8_t)d;
            p->stride = stride;
            return;
        }
    }
}

static void place_factor(const struct ap_nest *nest, const struct ap_access *access,
                         int f, struct ap_placement *p)
{
    if (access->partial >> f & 1) {
        p->kind = AP_PARTIAL;
        p->red = (uint8_t)nest->factors[f].red;
        return;
    }
    split_factor(nest, access, f, p);
}

/* The factor of a tensor that a ring splits: rows, or keys where they go round, -1. */
static int ring_factor(const struct ap_nest *nest, const struct ap_access *access,
                       bool goes_round)
{
    if (!nest->ring)
        return -1;
    if (ap_access_has(access, nest->ring->rows))
        return nest->ring->rows;
    return goes_round && ap_access_has(access, nest->ring->keys) ? nest->ring->keys : -1;
}

/* An operand or a value of a group: its indices, shape, partial sums, place in a ring. */
struct tensor {
    const struct ap_access *access;
    const struct ap_shape *shape;
    uint64_t linear; /* bit k = partial under linear set k */
    bool goes_round; /* in a ring */
};

static struct ap_layout layout_of(const struct ap_nest *nest, const struct ap_mesh *mesh,
                                  const struct ap_choice_vec *choice,
                                  const struct tensor *t)
{
    const int ring = ring_factor(nest, t->access, t->goes_round);
    struct ap_layout l = ap_layout_replicated();

    for (int a = 0; a < mesh->n_axes; a++) {
        int c = choice->axis[a];
        if (ap_choice_is_ring(nest, c)) {
            if (!t->goes_round && (t->access->partial >> nest->ring->rows & 1))
                place_factor(nest, t->access, nest->ring->rows, &l.axis[a]);
            else if (ring >= 0)
                split_factor(nest, t->access, ring, &l.axis[a]);
        } else if (c >= 0 && c < nest->n_factors) {
            place_factor(nest, t->access, c, &l.axis[a]);
        } else if (c >= 0 && (t->linear >> (c - nest->n_factors) & 1)) {
            l.axis[a].kind = AP_PARTIAL;
            l.axis[a].red = AP_RED_SUM;
        }
    }
    int status = ap_layout_canon(mesh, t->shape, &l);
    assert(status == 0);
    (void)status;
    return l;
}

struct ap_layout ap_nest_in_layout(const struct ap_nest *nest, const struct ap_graph *g,
                                   const struct ap_mesh *mesh,
                                   const struct ap_choice_vec *choice, int in)
{
    assert(in >= 0 && in < nest->n_ins);
    const struct ap_nest_in *slot = &nest->ins[in];
    uint64_t linear = 0;

    for (int k = 0; k < nest->n_linear; k++) {
        bool held = in < 64 && (nest->linear[k].ins >> in & 1);
        linear |= (uint64_t)held << k;
    }
    const struct tensor t = {&slot->access, ap_value_shape(&g->nodes[slot->node]), linear,
                             nest->ring && in < 64 && (nest->ring->ins >> in & 1)};
    return layout_of(nest, mesh, choice, &t);
}

struct ap_layout ap_nest_value_layout(const struct ap_nest *nest,
                                      const struct ap_graph *g,
                                      const struct ap_mesh *mesh,
                                      const struct ap_choice_vec *choice, int m)
{
    assert(m >= 0 && m < nest->n_members);
    const struct ap_node *node = &g->nodes[nest->members[m]];
    const struct tensor t = {&nest->values[m], ap_value_shape(node),
                             nest->linear_values[m], ap_ring_splits_keys(nest, g, m)};
    struct ap_layout l = layout_of(nest, mesh, choice, &t);
    /* parameters are there for all microbatches, in the rows that each will read, unless
       they come with each */
    if (mesh->microbatch && node->op == AP_OP_PARAMETER && l.axis[0].kind == AP_SPLIT &&
        !(g->handed && g->handed[nest->members[m]])) {
        int status = ap_layout_unsplit(mesh, &node->shape, &l, 0);
        assert(status == 0);
        (void)status;
    }
    return l;
}

/* ---- masks ---- */

uint64_t ap_nest_masked(const struct ap_nest *nest, const struct ap_mesh *mesh,
                        const struct ap_choice_vec *choice)
{
    uint64_t padded = 0, masked = 0; /* factors, slots */

    for (int f = 0; f < nest->n_factors; f++) {
        bool reduced = nest->factors[f].kind == AP_FACTOR_REDUCED;
        if (reduced && ap_nest_is_padded(nest, mesh, choice, f))
            padded |= UINT64_C(1) << f;
    }
    for (int i = 0; padded && i < nest->n_ins && i < 64; i++) {
        const struct ap_access *access = &nest->ins[i].access;
        for (int d = 0; d < access->rank; d++) {
            for (int j = 0; j < access->dims[d].n; j++) {
                if (padded >> access->dims[d].factor[j] & 1)
                    masked |= UINT64_C(1) << i;
            }
        }
    }
    return masked & nest->maskable;
}

/* ---- work ---- */

struct work {
    const struct ap_nest *nest;
    const struct ap_graph *g;
    int64_t extent[AP_MAX_FACTORS];
};

static void work_of(const struct ap_nest *nest, const struct ap_graph *g,
                    const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                    struct work *w)
{
    w->nest = nest;
    w->g = g;
    for (int f = 0; f < nest->n_factors; f++)
        w->extent[f] = ap_nest_extent(nest, mesh, choice, f);
}

/* Elements of dimension d that one device holds. */
static double local_dim(const struct work *w, const struct ap_access *access, int d)
{
    double n = 1;
    for (int j = 0; j < access->dims[d].n; j++)
        n *= (double)w->extent[access->dims[d].factor[j]];
    return n;
}

static double local_elems(const struct work *w, const struct ap_access *access)
{
    double n = 1;
    for (int d = 0; d < access->rank; d++)
        n *= local_dim(w, access, d);
    return n;
}

static double value_elems(const struct work *w, int m)
{
    return local_elems(w, &w->nest->values[m]);
}

static double value_bytes(const struct work *w, int m)
{
    const struct ap_shape *s = ap_value_shape(&w->g->nodes[w->nest->members[m]]);
    return value_elems(w, m) * ap_dtype_size(s->dtype);
}

static double slot_elems(const struct work *w, int slot)
{
    return local_elems(w, &w->nest->ins[slot].access);
}

static double slot_bytes(const struct work *w, int slot)
{
    const struct ap_shape *s = ap_value_shape(&w->g->nodes[w->nest->ins[slot].node]);
    return slot_elems(w, slot) * ap_dtype_size(s->dtype);
}

static const struct ap_access *operand_access(const struct work *w, int m, int k)
{
    int slot = w->nest->in_slot[m][k], in = w->g->nodes[w->nest->members[m]].in[k], i = 0;

    if (slot >= 0)
        return &w->nest->ins[slot].access;
    while (w->nest->members[i] != in)
        i++;
    return &w->nest->values[i];
}

/* Of an attention's scores, those that its mask does not hide. */
static double seen_share(const struct work *w, int m)
{
    const struct ap_ints *s = &w->g->nodes[w->nest->members[m]].attrs->scores;

    if (s->n < 5 || !w->nest->attention)
        return 1;
    return ap_nest_seen(
        w->nest, s->v[0] ? operand_access(w, m, (int)s->v[0] - 1) : &w->nest->values[m],
        s, w->extent);
}

static double dot_flops(const struct work *w, int m)
{
    const struct ap_ints *over =
        &w->g->nodes[w->nest->members[m]].attrs->lhs_contracting_dims;
    const struct ap_access *lhs = operand_access(w, m, 0);
    double flops = 2 * value_elems(w, m);

    for (int i = 0; i < over->n; i++)
        flops *= local_dim(w, lhs, (int)over->v[i]);
    return flops * seen_share(w, m);
}

/* Two for every result element, kernel position and input channel of its group. */
static double convolution_flops(const struct work *w)
{
    const struct ap_conv_dims *c = &w->g->nodes[w->nest->members[0]].attrs->conv;
    const struct ap_access *kernel = &w->nest->ins[w->nest->in_slot[0][1]].access;
    double flops = 2 * value_elems(w, 0) * local_dim(w, kernel, c->rhs_in);
    for (int i = 0; i < c->n_spatial; i++)
        flops *= local_dim(w, kernel, c->rhs_spatial[i]);
    return flops;
}

/* n^3 / 3 of each matrix, n^2 of each right side. */
static double linalg_flops(const struct work *w, int m)
{
    const struct ap_node *n = &w->g->nodes[w->nest->members[m]];
    const struct ap_shape *a = &w->g->nodes[n->in[0]].shape;
    double side = (double)a->dims[a->rank - 1];
    return value_elems(w, m) * side / (n->op == AP_OP_CHOLESKY ? 3 : 1);
}

/* 5 n log2(n) of a transform of n complex elements; of one from or to real ones half. */
static double fft_flops(const struct work *w, int m)
{
    const struct ap_node *n = &w->g->nodes[w->nest->members[m]];
    const struct ap_ints *len = &n->attrs->fft_length;
    bool half = n->attrs->fft_type == AP_FFT_RFFT || n->attrs->fft_type == AP_FFT_IRFFT;
    double full = n->attrs->fft_type == AP_FFT_RFFT
                      ? slot_elems(w, w->nest->in_slot[m][0])
                      : value_elems(w, m);
    double log = 0;
    for (int i = 0; i < len->n; i++)
        log += log2((double)len->v[i]);
    return ap_ops[n->op].flops * full * log * (half ? 0.5 : 1);
}

static double member_flops(const struct work *w, int m)
{
    const struct ap_node *n = &w->g->nodes[w->nest->members[m]];
    const struct ap_op_info *op = &ap_ops[n->op];
    double elems = 0;

    if (n->op == AP_OP_DOT)
        return dot_flops(w, m);
    if (n->op == AP_OP_CONVOLUTION)
        return convolution_flops(w);
    if (n->op == AP_OP_CUSTOM_CALL)
        return (double)n->attrs->flops;
    if (n->op == AP_OP_CHOLESKY || n->op == AP_OP_TRIANGULAR_SOLVE)
        return linalg_flops(w, m);
    if (n->op == AP_OP_FFT)
        return fft_flops(w, m);
    if (op->class != AP_CLASS_REDUCE)
        return op->flops * value_elems(w, m);
    for (int k = 0; k < n->n_in; k++)
        elems += local_elems(w, operand_access(w, m, k));
    return op->flops * elems;
}

/*
 * Operators that do not read each operand and write their result once: how often instead.
 * What is looked up or cut out of an operand is as large as the result or the update.
 */
static const struct moves {
    bool known;
    uint8_t in[3], out; /* the third for all further operands */
} moves[AP_N_OPS] = {
    [AP_OP_PARAMETER] = {true, {0, 0, 0}, 0},
    [AP_OP_RESHAPE] = {true, {0, 0, 0}, 0},
    [AP_OP_SLICE] = {true, {0, 0, 0}, 2},
    [AP_OP_DYNAMIC_SLICE] = {true, {0, 0, 0}, 2},
    [AP_OP_DYNAMIC_UPDATE_SLICE] = {true, {0, 2, 0}, 0},
    [AP_OP_GATHER] = {true, {0, 1, 0}, 2},
    [AP_OP_SCATTER] = {true, {1, 1, 2}, 1},
};

double ap_op_reads(enum ap_op op, int k)
{
    return moves[op].known ? moves[op].in[k < 2 ? k : 2] : 1;
}

double ap_op_writes(enum ap_op op)
{
    return moves[op].known ? moves[op].out : 1;
}

/* How often operand slot s is read. */
static double slot_times(const struct work *w, int s)
{
    const struct ap_node *n = &w->g->nodes[w->nest->members[0]];
    double times = 0;

    if (!moves[n->op].known)
        return 1;
    for (int k = 0; k < n->n_in; k++)
        if (w->nest->in_slot[0][k] == s)
            times += ap_op_reads(n->op, k);
    return times;
}

static double out_times(const struct work *w)
{
    enum ap_op op = w->g->nodes[w->nest->members[0]].op;
    if (op == AP_OP_CONSTANT) /* a scalar may lead a chain */
        return w->nest->n_members > 1;
    return ap_op_writes(op);
}

/* Returns the sum; moved may be NULL. */
static double move(const struct work *w, double *moved)
{
    const struct ap_nest *nest = w->nest;
    double sum = 0, times = out_times(w);

    for (int s = 0; s < nest->n_ins; s++) {
        double bytes = nest->in_kernel && nest->in_kernel[s]
                           ? 0
                           : slot_times(w, s) * slot_bytes(w, s);
        sum += bytes;
        if (moved)
            moved[s] = bytes;
    }
    for (int m = 0, o = 0; m < nest->n_members && o < nest->n_outs; m++) {
        if (nest->members[m] != nest->outs[o])
            continue;
        double bytes = nest->in_kernel && nest->in_kernel[nest->n_ins + o]
                           ? 0
                           : times * value_bytes(w, m);
        sum += bytes;
        if (moved)
            moved[nest->n_ins + o] = bytes;
        o++;
    }
    return sum;
}

/* Type that the group computes in: of the contraction's operand, else of the largest out.
 */
static enum ap_dtype group_dtype(const struct ap_nest *nest, const struct ap_graph *g)
{
    const struct ap_node *first = &g->nodes[nest->members[0]];
    int best = nest->members[0];
    int64_t best_bytes = -1;

    if (nest->heavy)
        return g->nodes[first->in[0]].shape.dtype;
    for (int o = 0; o < nest->n_outs; o++) {
        int64_t bytes = ap_shape_bytes(&g->nodes[nest->outs[o]].shape);
        if (bytes > best_bytes) {
            best = nest->outs[o];
            best_bytes = bytes;
        }
    }
    return ap_value_shape(&g->nodes[best])->dtype;
}

/* What all groups of a loop's computation compute and move, on every device. */
static void add_loop_work(const struct ap_nests *nests, const struct ap_mesh *mesh,
                          double trips, double *flops, double *bytes)
{
    const struct ap_choice_vec whole = AP_CHOICE_NONE;

    for (int i = 0; i < nests->n; i++) {
        double f, b;
        enum ap_dtype dtype;
        ap_nest_work(&nests->nest[i], nests->graph, mesh, &whole, &f, &b, &dtype);
        *flops += trips * f;
        *bytes += trips * b;
    }
}

double ap_nest_trips(const struct ap_nest *nest, const struct ap_graph *g)
{
    int64_t n = g->nodes[nest->members[0]].attrs->trip_count;
    return n < 0 ? 1 : (double)n;
}

void ap_nest_work(const struct ap_nest *nest, const struct ap_graph *g,
                  const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                  double *flops, double *bytes, enum ap_dtype *dtype)
{
    struct work w;

    work_of(nest, g, mesh, choice, &w);
    *flops = *bytes = 0;
    *dtype = group_dtype(nest, g);
    if (nest->body) {
        double trips = ap_nest_trips(nest, g);
        add_loop_work(nest->body, mesh, trips, flops, bytes);
        add_loop_work(nest->condition, mesh, trips + 1, flops, bytes);
        return;
    }
    for (int m = 0; m < nest->n_members; m++)
        *flops += member_flops(&w, m);
    *bytes = move(&w, NULL);
}

double ap_nest_expert_elems(const struct ap_nest *nest, const struct ap_graph *g,
                            const struct ap_mesh *mesh,
                            const struct ap_choice_vec *choice)
{
    struct work w;

    work_of(nest, g, mesh, choice, &w);
    return nest->experts == 2 ? value_elems(&w, 0)
                              : local_elems(&w, operand_access(&w, 0, nest->experts));
}

void ap_nest_heads(const struct ap_nest *nest, const struct ap_graph *g,
                   const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                   double *length, double *width)
{
    const struct ap_ints *over = &g->nodes[nest->members[0]].attrs->lhs_contracting_dims;
    const struct ap_access *out = &nest->values[0];
    double size[3] = {1, 1, 1};
    struct work w;

    work_of(nest, g, mesh, choice, &w);
    for (int i = 0; i < over->n; i++)
        size[0] *= local_dim(&w, operand_access(&w, 0, 0), (int)over->v[i]);
    for (int i = 1; i < 3; i++)
        size[i] = local_dim(&w, out, out->rank - i);
    *width = fmin(size[0], fmin(size[1], size[2]));
    *length = sqrt(size[0] * size[1] * size[2] / *width);
}

void ap_nest_moved(const struct ap_nest *nest, const struct ap_graph *g,
                   const struct ap_mesh *mesh, const struct ap_choice_vec *choice,
                   double *moved)
{
    struct work w;

    work_of(nest, g, mesh, choice, &w);
    move(&w, moved);
}
