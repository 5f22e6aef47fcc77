/*
 * Problem: what a stage takes, for thousands of lines, where the plan of each takes a
 * second to make in a large model.
 * Idea: a plan of given degrees shards all layers alike, and a choice or a conversion
 * depends on the block that it is in and the blocks beside it. So what is a sum over a
 * stage is the sum over its pairs of neighbouring blocks, less that of the blocks inside,
 * which are in two pairs: of blocks a, b, c, d it is ab + bc + cd - b - c. What is the
 * largest of a stage is that of a block between its neighbours: of a in abc, b in abc, c
 * in bcd, d in bcd. Identical runs of up to three blocks are measured once for each way
 * to shard, and for each number of microbatches and recomputation.
 * What blocks further apart share is left out, so that the sums are no more than the
 * stage has: conversions of values that are read beyond the next block; of blocks that
 * hold one weight all but one's memory, and the sums of its gradients; what is kept,
 * where such a value is kept. So are all conversions where stages lie unlike the first on
 * the hosts. Otherwise a stage's time and memory are these (tests/for.bats). Cost: ways
 * to shard times the operators of the parts.
 */
#include <math.h>
#include <string.h>

#include "base/threads.h"
#include "grid/grid_rows_impl.h"

/* ---- parts ---- */

static int add_part(struct grid_rows *r, int first, int last, struct ap_err *err)
{
    const struct stage_model *m = r->m;
    struct grid_part *p = &r->part[r->n_parts];

    *p = (struct grid_part){.first = first, .last = last};
    if (ap_subgraph_blocks(r->arena, &m->graph, m->blocks.block_of, first, last, &p->sub,
                           err) ||
        ap_nests_build(r->arena, &p->sub.graph, &p->nests, err))
        return -1;
    p->experts = ap_has_experts(r->arena, &p->sub.graph, &p->nests);
    r->experts |= p->experts;
    return r->n_parts++;
}

/* Values that are read beyond the block next to theirs. */
static void find_far(struct grid_rows *r)
{
    const struct ap_graph *g = &r->m->graph;
    const int *block_of = r->m->blocks.block_of;
    bool *far = AP_NEW_N(r->arena, g->n_nodes + 1, bool);
    bool *far_block = AP_NEW_N(r->arena, r->m->blocks.n + 1, bool);

    for (int v = 0; v < g->n_nodes; v++) {
        const struct ap_node *n = &g->nodes[v];
        const bool given = n->op == AP_OP_PARAMETER;
        int lo = given ? r->m->blocks.n : block_of[v], hi = given ? 0 : lo;
        bool kept = false;
        if (!given && r->model.origins[v] == AP_FROM_CONSTANTS)
            continue;
        for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++) {
            const int b = block_of[g->users[u]];
            lo = b < lo ? b : lo;
            hi = b > hi ? b : hi;
            kept |= g->nodes[g->users[u]].phase == AP_BACKWARD;
        }
        far[v] = hi > lo + 1;
        if (!far[v])
            continue;
        if (n->op == AP_OP_PARAMETER && n->role != AP_ROLE_INPUT)
            for (int u = g->user_start[v]; u < g->user_start[v + 1]; u++)
                far_block[block_of[g->users[u]]] = true;
        else
            r->far_kept |= n->phase == AP_FORWARD && n->shape.rank > 0 && kept;
    }
    r->far = far;
    r->far_block = far_block;
}

int grid_find_parts(struct grid_rows *r, struct ap_err *err)
{
    const int n = r->m->blocks.n;

    r->part = AP_NEW_N(r->arena, GRID_MOST_BLOCKS * n, struct grid_part);
    for (int more = 0; more < GRID_MOST_BLOCKS; more++) {
        int *of = AP_NEW_N(r->arena, n, int);
        for (int b = 0; b + more < n; b++) {
            const int like = r->m->twin[b * n + b + more];
            of[b] = like < b ? of[like] : add_part(r, b, b + more, err);
            if (of[b] < 0)
                return -1;
        }
        r->run[more] = of;
    }
    find_far(r);
    return 0;
}

/* ---- measures ---- */

/* Whether all stages lie on the hosts as the first one does. */
static bool lies_evenly(const struct grid_rows *r, const struct grid_sharding *s)
{
    const int64_t host = r->m->cluster.levels[0].size;

    return s->pipeline == 1 ||
           (s->n_devices <= host ? host % s->n_devices : s->n_devices % host) == 0;
}

/* The conversions that neighbouring blocks have alone. */
static struct ap_conversions near_conversions(const struct grid_rows *r,
                                              const struct grid_part *part,
                                              const struct ap_conversions *all, bool even,
                                              struct ap_arena *arena)
{
    struct ap_conversions near = *all;
    struct ap_conversion *list = AP_NEW_N(arena, all->n + 1, struct ap_conversion);

    near.n = 0;
    for (int i = 0; i < all->n && even; i++)
        if (!r->far[part->sub.source[all->conv[i].node]])
            list[near.n++] = all->conv[i];
    near.conv = list;
    return near;
}

/* [node of the part]: whether it is recomputed. */
static const bool *marks_of(const struct grid_rows *r, const struct grid_part *part,
                            enum ap_line_recompute recompute, struct ap_arena *arena)
{
    bool *again = AP_NEW_N(arena, part->sub.graph.n_nodes, bool);

    for (int v = 0; v < part->sub.graph.n_nodes; v++)
        again[v] = r->model.again[recompute][part->sub.source[v]];
    return again;
}

/* The part's plan under all that is asked of the sharding. */
static void measure_cases(const struct grid_rows *r, const struct grid_sharding *s, int p,
                          struct ap_arena *arena, const struct ap_stage_plan *plan)
{
    const struct grid_part *part = &r->part[p];
    const size_t length = (size_t)(part->last - part->first + 1);
    const bool *again[AP_N_LINE_RECOMPUTES] = {NULL};
    struct ap_stage_case *list = AP_NEW_N(arena, r->n_at_once, struct ap_stage_case);
    struct grid_measure **to = AP_NEW_N(arena, r->n_at_once, struct grid_measure *);
    int n = 0;

    for (int i = 0; i < r->n_at_once; i++) {
        const enum ap_line_recompute how = r->at_once[i].recompute;
        if (!s->asked[i])
            continue;
        if (how != AP_LINE_RECOMPUTE_NONE && !again[how])
            again[how] = marks_of(r, part, how, arena);
        to[n] = &s->measure[i][p];
        list[n] = (struct ap_stage_case){
            &r->at_once[i].micro, again[how], &to[n]->sum,
            AP_NEW_N(arena, r->m->blocks.n, struct ap_stage_largest)};
        n++;
    }
    ap_stage_measure_cases(arena, plan, n, list);
    for (int i = 0; i < n; i++)
        memcpy(to[i]->largest, &list[i].largest[part->first],
               length * sizeof *list[i].largest);
}

static int measure_part(const struct grid_rows *r, const struct grid_sharding *s, int p,
                        const struct ap_cost *cost, struct ap_arena *arena,
                        struct ap_err *err)
{
    const struct grid_part *part = &r->part[p];
    struct ap_stages stages = {.microbatches = 1};
    struct ap_line_maker k = {.arena = arena,
                              .model = &r->model,
                              .line = ap_line_least,
                              .stages = &stages,
                              .uses = s->uses,
                              .mesh = s->mesh};
    struct ap_plan plan = {
        .graph = &part->sub.graph, .nests = &part->nests, .mesh = s->mesh};
    struct ap_conversions conv;

    for (int a = 0; a < s->mesh.n_axes && !part->experts; a++)
        k.uses.expert_use[a] = k.uses.use[a];
    if (!part->experts)
        k.uses.degrees.expert = 0;
    if (ap_line_shard(&k, arena, &plan, err))
        return -1;
    const bool sums = part->last - part->first + 1 < GRID_MOST_BLOCKS;
    int rc = sums ? ap_plan_conversions(arena, &plan, cost, &conv, err) : 0;
    if (rc == 0 && sums)
        conv = near_conversions(r, part, &conv, lies_evenly(r, s), arena);
    if (rc == 0)
        measure_cases(
            r, s, p, arena,
            &(struct ap_stage_plan){&part->sub, NULL, &plan, sums ? &conv : NULL, cost});
    return rc;
}

struct measuring {
    const struct grid_rows *r;
    const int *sharding;
    int blocks;
};

/* One way to shard; what cannot be sharded so is no line, and no mistake. */
static void measure_sharding(void *ctx, int i)
{
    const struct measuring *all = ctx;
    const struct grid_rows *r = all->r;
    struct grid_sharding *s = &r->sharding[all->sharding[i]];
    struct ap_arena scratch = {0};
    struct ap_cluster own;
    struct ap_cost cost = {0}; /* of all parts, which have the same conversions */
    struct ap_err why = {0};

    s->ok = s->ok &&
            !ap_cluster_take(&r->m->cluster, s->n_devices, s->devices, &own, &why) &&
            !ap_cost_init(&scratch, &cost, AP_COST_DEFAULT, &own, &s->mesh, &why);
    for (int p = 0; p < r->n_parts && s->ok; p++) {
        const int blocks = r->part[p].last - r->part[p].first + 1;
        if (blocks > s->measured && blocks <= all->blocks)
            s->ok = measure_part(r, s, p, &cost, &scratch, &why) == 0;
    }
    s->measured = all->blocks;
    ap_cost_free(&cost);
    ap_arena_free(&scratch);
}

void grid_measure(struct grid_rows *r, int n, const int *sharding, int blocks)
{
    struct measuring all = {r, sharding, blocks};

    for (int i = 0; i < n; i++) {
        struct grid_sharding *s = &r->sharding[sharding[i]];
        if (s->measured)
            continue;
        s->ok = true;
        s->measure = AP_NEW_N(r->arena, r->n_at_once, struct grid_measure *);
        for (int k = 0; k < r->n_at_once; k++)
            if (s->asked[k])
                s->measure[k] = AP_NEW_N(r->arena, r->n_parts, struct grid_measure);
    }
    ap_in_threads(n, measure_sharding, &all);
}

/* ---- stages ---- */

/* Adds, or takes away. */
static void add_sums(struct ap_stage_measure *to, const struct ap_stage_measure *m,
                     double sign)
{
    to->forward_sec += sign * m->forward_sec;
    to->backward_sec += sign * m->backward_sec;
    to->sync_sec += sign * m->sync_sec;
    to->update_sec += sign * m->update_sec;
    to->fixed_bytes += sign * m->fixed_bytes;
    to->gradient_bytes += sign * m->gradient_bytes;
    to->copied_bytes += sign * m->copied_bytes;
    to->kept_bytes += sign * m->kept_bytes;
    for (int i = 0; i < 2; i++) {
        to->host_sec[i] += sign * m->host_sec[i];
        to->gather_sec[i] += sign * m->gather_sec[i];
    }
}

/* Largest values of a block of a stage: between its neighbours, as far as it has them. */
static void add_largest(const struct grid_rows *r, const struct grid_measure *of,
                        const int stage[2], int block, struct ap_stage_measure *m)
{
    const int last = stage[1] < block + 1 ? stage[1] : block + 1;
    const int first = last - 2 > stage[0] ? last - 2 : stage[0];
    const int end = first + 2 < stage[1] ? first + 2 : stage[1];
    const struct ap_stage_largest *l =
        &of[r->run[end - first][first]].largest[block - first];

    m->working_bytes = fmax(m->working_bytes, l->working_bytes);
    m->recomputed_bytes = fmax(m->recomputed_bytes, l->recomputed_bytes);
}

/* The measure of a stage of blocks stage[0] to stage[1]. */
static void add_up(const struct grid_rows *r, const struct grid_measure *of,
                   const int stage[2], struct ap_stage_measure *m)
{
    const int first = stage[0], last = stage[1];
    int n_far = 0;

    *m = (struct ap_stage_measure){0};
    if (first == last)
        add_sums(m, &of[r->run[0][first]].sum, 1);
    for (int b = first; b < last; b++) {
        add_sums(m, &of[r->run[1][b]].sum, 1);
        if (b > first)
            add_sums(m, &of[r->run[0][b]].sum, -1);
    }
    for (int b = first; b <= last; b++) {
        add_largest(r, of, stage, b, m);
        n_far += r->far_block[b];
    }
    for (int b = first, left = n_far; b <= last && n_far > 1; b++)
        if (r->far_block[b]) {
            const struct ap_stage_measure *block = &of[r->run[0][b]].sum;
            m->fixed_bytes -= --left > 0 ? block->fixed_bytes : 0;
            m->sync_sec = fmax(0, m->sync_sec - block->sync_sec);
        }
    if (r->far_kept)
        m->kept_bytes = 0;
}

/* As price_stage of pipeline_price.c makes it of the whole stage. */
static void make_stage(struct ap_stage_measure *m, enum ap_line_recompute recompute,
                       struct ap_sim_stage *to)
{
    const bool again = recompute != AP_LINE_RECOMPUTE_NONE;
    struct ap_stage_point point[2];

    m->input_bytes = m->kept_bytes;
    ap_stage_points(m, point);
    *to = (struct ap_sim_stage){
        .forward_sec = point[0].forward_sec,
        .backward_sec = point[0].backward_sec,
        .sync_sec = point[0].sync_sec,
        .update_sec = point[0].update_sec,
        .fixed_bytes = point[0].stage_bytes - point[0].passing_bytes,
        .work_bytes = point[0].passing_bytes,
        .flight_bytes = point[0].microbatch_bytes,
        .recomputed_bytes = again ? (int64_t)m->recomputed_bytes : 0};
}

bool grid_stages(const struct grid_rows *r, const struct grid_candidate *row,
                 struct ap_arena *arena, struct ap_sim_stage **stage)
{
    const struct grid_sharding *s = &r->sharding[row->shard];
    const struct grid_cut *cut = &r->cut[row->cut];

    if (!s->ok)
        return false;
    *stage = AP_NEW_N(arena, cut->n, struct ap_sim_stage);
    for (int i = 0; i < cut->n; i++) {
        const int blocks[2] = {i ? cut->end[i - 1] : 0, cut->end[i] - 1};
        struct ap_stage_measure m;
        add_up(r, s->measure[row->at_once], blocks, &m);
        make_stage(&m, row->line.recompute, &(*stage)[i]);
    }
    return true;
}
