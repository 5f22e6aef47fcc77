/*
 * Random (graph, plan, mesh) cases: the program for n ranks must give the bits of the
 * program for one rank. Run under mpirun; every rank makes the same case from its seed,
 * runs the one-rank program too, and compares the blocks that it holds.
 *
 *     mpirun -n 4 test_equiv FIRST_SEED CASES [cuda|cuda-near]
 *
 * Two cases in seven have kernels between contractions, one in seven has kernels of any
 * nodes. Two cases in five run in two or three microbatches, on random axes of random
 * groups. In every other case collectives run as late as they may, after the calls that
 * need not wait for them.
 *
 * With "cuda" the n ranks compute by the CUDA backend, the one rank on the CPU. A real
 * device has other functions than libm: with "cuda-near" floats may differ by NEAR_ULPS
 * units in the last place of the larger of the element and the tensor's root mean square.
 *
 * Prints TAP, and for each kind of operator, conversion and layout that occurred a line
 * "# covered KIND". A failing case prints its seed, mesh and the first wrong element.
 */
#include "gen.h"
#include "base/float16.h"
#include "cuda/plugin.h"
#include "ap-fuse/kernels.h"
#include "run/job.h"
#include "plan/microbatch.h"
#include "program/kernel_form.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../unit/padded.h"
#include "../unit/random_plan.h"
#include "cost/convert.h"

#define N_STEPS 2
/* CUDA's functions are within 2 units of libm's; random programs chain a dozen. */
#define NEAR_ULPS 64

static const char *const meshes[] = {"1",   "2",   "2x1",   "3",      "4",     "2x2",
                                     "1x4", "6",   "2x3",   "3x2",    "3x2x1", "8",
                                     "2x4", "4x2", "2x2x2", "2x1x2x2"};
enum { N_MESHES = sizeof meshes / sizeof *meshes };

struct coverage {
    bool op[AP_N_OPS], step[AP_N_OPS], red[AP_N_REDS], dtype[AP_N_DTYPES];
    bool strided, padded, mesh[N_MESHES];
    bool time[AP_N_OPS]; /* steps over microbatches */
    bool before, behind; /* groups outside of a loop over microbatches */
    bool form[AP_KERNEL_COLS + 1];
};

struct sample {
    uint64_t seed;
    int mesh_row;
    struct ap_graph graph;
    struct ap_nests nests;
    struct ap_cost cost;
    struct ap_plan plan;
    struct ap_conversions conv;
    struct ap_program whole, part;
};

/* A mesh of n devices, by the seed. */
static int pick_mesh(struct ap_arena *arena, uint64_t seed, int n, struct ap_mesh *mesh)
{
    int fits[N_MESHES], n_fits = 0;
    struct ap_err err = {0};
    for (int i = 0; i < N_MESHES; i++)
        if (ap_mesh_parse(arena, meshes[i], mesh, &err) == 0 &&
            ap_mesh_devices(mesh) == n)
            fits[n_fits++] = i;
    int row = fits[seed % (uint64_t)n_fits];
    ap_mesh_parse(arena, meshes[row], mesh, &err);
    return row;
}

/* Takes groups that need what is not there with every microbatch out of the axis. */
static void keep_in_time(struct ap_arena *arena, struct ap_plan *plan)
{
    const struct ap_node *nodes = plan->graph->nodes;
    uint8_t *when = AP_NEW_N(arena, plan->nests->n, uint8_t);

    for (int i = 0; plan->mesh.microbatch && i < plan->nests->n; i++) {
        const struct ap_nest *nest = &plan->nests->nest[i];
        bool each = ap_runs_each(nest, plan->graph, &plan->mesh, &plan->choice[i]);
        for (int k = 0; k < nest->n_ins && each; k++)
            each = ap_plan_slot_is_ready(plan, nest, k, when);
        when[i] = each ? AP_EACH : AP_BEFORE;
        for (int k = 0; k < nest->n_ins && !each; k++)
            if (when[nodes[nest->ins[k].node].group] != AP_BEFORE)
                when[i] = AP_AFTER;
        if (!each && nodes[nest->members[0]].op != AP_OP_PARAMETER)
            plan->choice[i].axis[0] = -1;
    }
}

/* Marks nodes at random as those of a few kernels. */
static void mark_any(struct ap_arena *arena, struct ap_graph *g, uint64_t *state)
{
    for (int i = 0; i < g->n_nodes; i++) {
        struct ap_attrs *attrs = ap_arena_dup(arena, g->nodes[i].attrs, sizeof *attrs);
        attrs->kernel = (int64_t)random_below(state, 4) % 3;
        g->nodes[i].attrs = attrs;
    }
}

/* n: devices. */
static int make_sample(struct ap_arena *arena, uint64_t seed, int n, struct sample *s,
                       struct ap_err *err)
{
    struct ap_mesh mesh;
    struct ap_doc doc = {.file = "test"};
    struct ap_cluster cluster;
    uint64_t state = seed;
    struct random_weights weights = {1, 4, 2};
    struct ap_plan single;
    struct ap_conversions none;

    *s = (struct sample){.seed = seed, .mesh_row = pick_mesh(arena, seed, n, &mesh)};
    if (gen_graph(arena, seed, 14, &s->graph, err) ||
        ap_mesh_add_microbatches(&mesh, seed % 5 < 2 ? 2 + (int64_t)(seed / 5 % 2) : 1,
                                 err))
        return -1;
    if (seed % 7 < 2) {
        const struct ap_graph plain = s->graph;
        struct fuse_kernel_count made;
        if (fuse_kernels_mark(arena, &plain, &(struct fuse_kernel_rules){0}, &s->graph,
                              &made, err))
            return -1;
    }
    ap_group(arena, &s->graph);
    if (ap_nests_build(arena, &s->graph, &s->nests, err) ||
        ap_cluster_get(arena, &doc, NULL, n, &cluster, err) ||
        ap_cost_init(arena, &s->cost, AP_COST_DEFAULT, &cluster, &mesh, err))
        return -1;
    s->plan = (struct ap_plan){.graph = &s->graph, .nests = &s->nests, .mesh = mesh};
    s->plan.choice = AP_NEW_N(arena, s->nests.n, struct ap_choice_vec);
    for (int i = 0; i < s->nests.n; i++)
        s->plan.choice[i] = random_choice(&s->nests.nest[i], &mesh, weights, &state);
    keep_in_time(arena, &s->plan);
    if (seed % 3 == 0) { /* conversions repeated in each phase */
        s->plan.regather = AP_NEW_N(arena, s->graph.n_nodes, bool);
        for (int i = 0; i < s->graph.n_nodes; i++)
            s->plan.regather[i] = random_below(&state, 2);
    }
    if (ap_plan_check(&s->plan, &s->cost, err) ||
        ap_plan_conversions(arena, &s->plan, &s->cost, &s->conv, err) ||
        ap_partition(arena, &s->plan, &s->conv, &s->part, err))
        return -1;
    if (seed % 7 == 2)
        mark_any(arena, &s->part.local, &state);
    if (seed % 7 < 3)
        ap_program_kernels(arena, &s->part);
    if (seed % 4 < 3)
        ap_program_pack(arena, &s->part,
                        &(struct ap_program_form){.overlap = seed % 4 > 0,
                                                  .pack_bytes = seed % 4 < 2 ? 200 : 0});
    ap_plan_buffers(arena, &s->part, 0);
    const struct ap_at at = {.key = "program"};
    struct ap_pipeline_program alone;
    ap_pipeline_of_program(arena, &s->part, &alone);
    if (ap_program_check(&s->part, &at, err) ||
        ap_pipeline_check_memory(&alone, &at, err))
        return -1;
    ap_plan_single(arena, &s->graph, &s->nests, &single);
    struct ap_cost one;
    if (ap_cluster_get(arena, &doc, NULL, 1, &cluster, err) ||
        ap_cost_init(arena, &one, AP_COST_DEFAULT, &cluster, &single.mesh, err) ||
        ap_plan_conversions(arena, &single, &one, &none, err) ||
        ap_partition(arena, &single, &none, &s->whole, err))
        return -1;
    ap_plan_buffers(arena, &s->whole, 0);
    ap_cost_free(&one);
    return 0;
}

/* ---- data ---- */

static void store(void *data, enum ap_dtype t, int64_t i, double v)
{
    float f = (float)v;
    switch (t) {
    case AP_F64:
        ((double *)data)[i] = v;
        return;
    case AP_F32:
        ((float *)data)[i] = f;
        return;
    case AP_BF16:
        ((uint16_t *)data)[i] = ap_f32_to_bf16(f);
        return;
    case AP_F16:
        ((uint16_t *)data)[i] = ap_f32_to_f16(f);
        return;
    default: {
        int64_t n = (int64_t)v;
        int size = ap_dtype_size(t);
        memcpy((char *)data + i * size, &n, (size_t)size);
    }
    }
}

/* Index of each local element in the whole tensor, -1 for padding; caller frees. */
static int64_t *global_indices(const struct ap_mesh *mesh, const struct ap_shape *global,
                               const struct ap_layout *layout,
                               const struct ap_shape *local, int64_t rank)
{
    int64_t coords[AP_MAX_AXES], n = ap_shape_elems(local), *out, *map[AP_MAX_RANK];
    ap_mesh_coords(mesh, rank, coords);
    out = ap_xrealloc(NULL, (size_t)(n + 1) * sizeof *out);
    for (int d = 0; d < local->rank; d++) {
        map[d] = ap_xrealloc(NULL, (size_t)(local->dims[d] + 1) * sizeof **map);
        ap_layout_index_map(mesh, global, layout, d, coords, map[d]);
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at[AP_MAX_RANK];
        for (int d = local->rank - 1; d >= 0; d--) {
            at[d] = map[d][rest % local->dims[d]];
            rest /= local->dims[d];
        }
        out[i] = 0;
        for (int d = 0; d < local->rank; d++)
            out[i] = at[d] < 0 || out[i] < 0 ? -1 : out[i] * global->dims[d] + at[d];
    }
    for (int d = 0; d < local->rank; d++)
        free(map[d]);
    return out;
}

static void fill_params(struct exec *x, const struct sample *s, int rank)
{
    const struct ap_graph *g = &x->prog->local;
    for (int p = 0; p < g->n_params; p++) {
        const struct ap_node *node = &g->nodes[g->params[p]];
        const struct ap_shape *global = node->attrs->global;
        const int number = x->number ? x->number[p] : p;
        int64_t *index = global_indices(&x->prog->mesh, global, &node->attrs->layout,
                                        &node->shape, rank);
        const int64_t bytes = ap_shape_bytes(&node->shape);
        char *host = ap_xrealloc(NULL, (size_t)bytes + 1);
        for (int64_t i = 0; i < ap_shape_elems(&node->shape); i++)
            store(host, node->shape.dtype, i,
                  index[i] < 0 ? 0
                               : gen_value(s->seed, number, index[i], node->shape.dtype));
        x->backend->write(x->value[g->params[p]], host, bytes);
        free(host);
        free(index);
    }
}

/* ---- one case ---- */

/* near: what b's element may differ by, besides its own size; negative: nothing. */
static bool same(const void *a, int64_t i, const void *b, int64_t j, enum ap_dtype t,
                 double near)
{
    size_t size = (size_t)ap_dtype_size(t);
    if (memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)j * size,
               size) == 0)
        return true;
    if (t == AP_C64)
        return same(a, 2 * i, b, 2 * j, AP_F32, near) &&
               same(a, 2 * i + 1, b, 2 * j + 1, AP_F32, near);
    if (!ap_dtype_is_float(t))
        return false;
    double x = data_number(a, t, i), y = data_number(b, t, j);
    if ((x == 0 && y == 0) || (x != x && y != y)) /* the sign of a zero sum is free */
        return true;
    const double ulp = ldexp(1, 1 - ap_dtype_precision(t));
    return near >= 0 && fabs(x - y) <= NEAR_ULPS * ulp * fmax(fabs(y), near);
}

static double root_mean_square(const void *p, int64_t n, enum ap_dtype t)
{
    if (t == AP_C64) /* its parts */
        return root_mean_square(p, 2 * n, AP_F32);
    double sum = 0;
    for (int64_t i = 0; ap_dtype_is_float(t) && i < n; i++) {
        const double v = data_number(p, t, i);
        sum += isfinite(v) ? v * v : 0;
    }
    return sqrt(sum / (double)(n > 0 ? n : 1));
}

/* First difference as a message, or 0. */
static int compare(const struct exec *part, const struct exec *whole,
                   const struct sample *s, bool near, int rank, struct ap_err *err)
{
    const struct ap_graph *g = &s->graph, *own = &part->prog->local;
    for (int r = 0; r < own->n_results; r++) {
        const struct ap_shape *global = &g->nodes[g->results[r].node].shape;
        struct ap_layout layout = ap_plan_result_layout(&s->plan, r);
        int node = own->results[r].node;
        const struct ap_shape *local = &own->nodes[node].shape;
        const int64_t bytes = ap_shape_bytes(local);
        char *mine = ap_xrealloc(NULL, (size_t)bytes + 1);
        part->backend->read(mine, part->value[node], bytes);
        const void *all = whole->value[whole->prog->local.results[r].node];
        int64_t *index = global_indices(&s->plan.mesh, global, &layout, local, rank);
        int64_t i = 0, n = ap_shape_elems(local);
        const double size =
            near ? root_mean_square(all, ap_shape_elems(global), global->dtype) : -1;
        while (i < n &&
               (index[i] < 0 || same(mine, i, all, index[i], global->dtype, size)))
            i++;
        if (i < n)
            ap_err_set(err, "rank %d, result %d (%s), element %lld: %g, one rank has %g",
                       rank, r, g->nodes[g->results[r].node].name, (long long)index[i],
                       data_number(mine, global->dtype, i),
                       data_number(all, global->dtype, index[i]));
        free(mine);
        free(index);
        if (i < n)
            return -1;
    }
    return 0;
}

/* 2: the backend cannot run it, and said so. */
static int run_case(const struct sample *s, const struct backend *backend, bool near,
                    struct comm *comm, struct comm *self, struct ap_err *err)
{
    struct ap_arena arena = {0};
    struct exec part, whole;
    int rc = 0;

    if (exec_open(&part, &arena, &s->part, backend, comm, err)) {
        rc = part.exit_code == 2 ? 2 : -1; /* the same on all ranks */
        exec_close(&part);
        ap_arena_free(&arena);
        return rc;
    }
    if (exec_open(&whole, &arena, &s->whole, &cpu_backend, self, err))
        return -1;
    part.late = s->seed % 2;
    fill_params(&part, s, comm->rank);
    fill_params(&whole, s, 0);
    for (int step = 0; step < N_STEPS; step++) {
        exec_step(&part);
        exec_step(&whole);
        if (rc == 0)
            rc = compare(&part, &whole, s, near, comm->rank, err);
        exec_advance(&part);
        exec_advance(&whole);
    }
    exec_close(&part);
    exec_close(&whole);
    ap_arena_free(&arena);
    return rc;
}

/* ---- coverage ---- */

static void cover_step(struct coverage *c, const struct sample *s,
                       const struct ap_step *step)
{
    bool time = step->coll.axes & s->plan.mesh.microbatch;
    *(time ? &c->time[step->op] : &c->step[step->op]) = true;
}

static void cover(struct coverage *c, const struct sample *s)
{
    c->mesh[s->mesh_row] = true;
    for (int i = 0; i < s->graph.n_nodes; i++) {
        const struct ap_node *n = &s->graph.nodes[i];
        struct ap_layout l = ap_plan_node_layout(&s->plan, i);
        c->op[n->op] = true;
        c->dtype[n->shape.dtype] = true;
        for (int a = 0; a < s->plan.mesh.n_axes; a++) {
            c->strided |= l.axis[a].kind == AP_SPLIT && l.axis[a].stride > 0;
            if (l.axis[a].kind == AP_PARTIAL)
                c->red[l.axis[a].red] = true;
        }
        c->padded |=
            n->shape.dtype != AP_TUPLE && is_padded(&s->plan.mesh, &n->shape, &l);
    }
    for (int i = 0; i < s->conv.n; i++)
        for (int k = 0; k < s->conv.conv[i].path.n_steps; k++)
            cover_step(c, s, &s->conv.conv[i].path.steps[k]);
    const struct ap_program *part = &s->part;
    c->before |= part->each_lo > part->local.n_params && part->each_lo < part->each_hi;
    for (int i = 0, end; i < part->local.n_nodes; i = end) {
        struct ap_kernel_form form;
        int where;
        for (end = i + 1; end < part->local.n_nodes &&
                          part->local.nodes[end].group == part->local.nodes[i].group;
             end++)
            ;
        if (end - i > 1 && !ap_kernel_form_of(&part->local, i, end, &form, &where))
            c->form[form.kind] = true;
    }
    c->behind |= part->mesh.microbatch && part->each_hi < part->local.n_groups;
    for (int i = 0; i < s->part.local.n_nodes; i++)
        c->step[s->part.local.nodes[i].op] |= s->part.local.nodes[i].op == AP_OP_AP_MASK;
}

static const char *const forms[] = {[AP_KERNEL_PASS] = "elements",
                                    [AP_KERNEL_ROWS] = "rows",
                                    [AP_KERNEL_COLS] = "columns"};

static void print_coverage(const struct coverage *c)
{
    for (int i = 0; i < AP_N_OPS; i++)
        if (c->op[i] || c->step[i])
            printf("# covered %s\n", ap_ops[i].name);
    for (int i = 0; i < AP_N_REDS; i++)
        if (c->red[i])
            printf("# covered partial %s\n", ap_red_names[i]);
    for (int i = 0; i < AP_N_DTYPES; i++)
        if (c->dtype[i] && i != AP_TUPLE)
            printf("# covered type %s\n", ap_dtype_name((enum ap_dtype)i));
    for (int i = 0; i < N_MESHES; i++)
        if (c->mesh[i])
            printf("# covered mesh %s\n", meshes[i]);
    for (int i = 0; i < AP_N_OPS; i++)
        if (c->time[i])
            printf("# covered %s over microbatches\n", ap_ops[i].name);
    if (c->before)
        printf("# covered groups before microbatches\n");
    if (c->behind)
        printf("# covered groups behind microbatches\n");
    for (int i = 0; i <= AP_KERNEL_COLS; i++)
        if (c->form[i])
            printf("# covered kernel of %s\n", forms[i]);
    if (c->strided)
        printf("# covered strided\n");
    if (c->padded)
        printf("# covered padded\n");
}

/* The CUDA backend, joined to the job. */
static const struct backend *open_cuda(struct comm *comm)
{
    const struct cuda_options opts = {0};
    struct ap_err err = {{0}};
    const struct cuda_plugin *plugin = plugin_open(&opts, &err);
    if (!plugin || plugin->backend->join(comm, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    return plugin->backend;
}

int main(int argc, char **argv)
{
    const bool near = argc == 4 && !strcmp(argv[3], "cuda-near");
    const bool cuda = near || (argc == 4 && !strcmp(argv[3], "cuda"));
    if (argc < 3 || argc > 4 || (argc == 4 && !cuda))
        ap_die_usage("usage: test_equiv FIRST_SEED CASES [cuda|cuda-near]");
    uint64_t first = strtoull(argv[1], NULL, 10);
    int n_cases = atoi(argv[2]), n_failed = 0;
    struct comm comm, self;
    struct coverage coverage = {0};

    job_join(&comm, 0);
    comm_self_open(&self);
    const struct backend *backend = cuda ? open_cuda(&comm) : &cpu_backend;
    for (int i = 0; i < n_cases; i++) {
        struct ap_arena arena = {0};
        struct ap_err err = {0};
        struct sample s;
        uint64_t seed = first + (uint64_t)i;
        int rc = make_sample(&arena, seed, comm.size, &s, &err);
        if (rc == 0) {
            rc = run_case(&s, backend, near, &comm, &self, &err);
            cover(&coverage, &s);
        }
        if (rc == 2 && comm.rank == 0)
            printf("# refused: %s\n", err.msg);
        rc = rc == 2 ? 0 : rc;
        if (rc)
            fprintf(stderr, "# seed %llu, mesh %s: %s\n", (unsigned long long)seed,
                    meshes[s.mesh_row], err.msg);
        bool failed = comm.max(&comm, rc != 0) != 0;
        n_failed += failed;
        if (comm.rank == 0)
            printf("%sok %d - seed %llu on %d ranks (%s)\n", failed ? "not " : "", i + 1,
                   (unsigned long long)seed, comm.size, meshes[s.mesh_row]);
        ap_cost_free(&s.cost);
        ap_arena_free(&arena);
    }
    if (comm.rank == 0) {
        print_coverage(&coverage);
        printf("1..%d\n", n_cases);
    }
    comm.close(&comm);
    return n_failed != 0;
}
