/*
 * Problem: what a stage takes, for thousands of lines, where the plan of each takes a
 * second to make in a large model.
 * Idea: a plan of given degrees shards all layers alike, and what a block takes depends
 * on the blocks beside it, which say how its values arrive and leave. So a stage is the
 * sum of its blocks, each measured between its neighbours: of blocks a, b, c, d it is a
 * and b in abc, c and d in bcd. Runs of up to three blocks that are identical are planned
 * once for each way to shard, and measured block by block for each number of
 * microbatches and recomputation.
 * Blocks further apart may share a weight, whose layout follows from both: where these
 * are the first and the last (tied embeddings), both ends of the model are one part, for
 * the stage that has them; else nothing is known of such stages. Other values that are
 * read beyond the next block are left out, so that the sums are no more than the stage
 * has: their conversions, and what is kept, where such a value is kept; and so are
 * constants that a block further away makes. So are all conversions where stages lie
 * unlike the first on the hosts. Otherwise a stage's time and memory are these
 * (tests/for.bats). Cost: ways to shard times the operators of the parts.
 */
#include <math.h>
#include <string.h>

#include "base/threads.h"
#include "grid/grid_rows_impl.h"

/* ---- parts ---- */

/* A part of runs of blocks from[0] to to[0], and from[1] to to[1] if there is one. */
static int add_part(struct grid_rows *r, const int from[2], const int to[2],
                    struct ap_err *err)
{
    const struct stage_model *m = r->m;
    struct grid_part *p = &r->part[r->n_parts];
    bool *inside = AP_NEW_N(r->arena, m->graph.n_nodes, bool);

    for (int v = 0; v < m->graph.n_nodes; v++)
        for (int k = 0; k < 2; k++)
            inside[v] |=
                m->blocks.block_of[v] >= from[k] && m->blocks.block_of[v] <= to[k];
    *p = (struct grid_part){0};
    if (ap_subgraph(r->arena, &m->graph, inside, &p->sub, err) ||
        ap_nests_build(r->arena, &p->sub.graph, &p->nests, err))
        return -1;
    return r->n_parts++;
}

/* A part of a run of blocks. */
static int add_run(struct grid_rows *r, int first, int last, struct ap_err *err)
{
    const int part = add_part(r, (int[2]){first, first}, (int[2]){last, last}, err);
    struct grid_part *p = &r->part[part < 0 ? 0 : part];

    for (int b = first; b <= last && part >= 0; b++)
        p->block[p->n++] = b;
    return part;
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

/* Whether two blocks, which are identical, recompute the same. */
static bool same_marks(const struct grid_rows *r, int a, int b)
{
    const int *of = r->m->blocks.block_of, n = r->m->graph.n_nodes;
    int v = 0, w = 0;

    for (;; v++, w++) {
        while (v < n && of[v] != a)
            v++;
        while (w < n && of[w] != b)
            w++;
        if (v == n || w == n)
            return v == n && w == n;
        for (int how = 0; how < AP_N_LINE_RECOMPUTES; how++)
            if (r->model.again[how][v] != r->model.again[how][w])
                return false;
    }
}

/* First block of an earlier run that is like that of blocks b to b + more; -1: none. */
static int find_like(const struct grid_rows *r, const int *kind, int b, int more)
{
    const int n = r->m->blocks.n, first = r->m->twin[b * n + b + more];

    for (int a = first; a < b; a++) {
        bool same = r->m->twin[a * n + a + more] == first;
        for (int k = 0; k <= more && same; k++)
            same = kind[a + k] == kind[b + k];
        if (same)
            return a;
    }
    return -1;
}

/* Whether the first and the last block share a weight, and no others do so. */
static int find_ends(struct grid_rows *r, struct ap_err *err)
{
    const int n = r->m->blocks.n;
    int n_far = 0;

    r->ends = -1;
    for (int b = 0; b < n; b++)
        n_far += r->far_block[b];
    if (n_far != 2 || n < 4 || !r->far_block[0] || !r->far_block[n - 1])
        return 0;
    r->ends = add_part(r, (int[2]){0, n - 2}, (int[2]){1, n - 1}, err);
    if (r->ends < 0)
        return -1;
    struct grid_part *p = &r->part[r->ends];
    p->n = 2;
    p->block[1] = n - 1;
    p->all = true;
    return 0;
}

int grid_find_parts(struct grid_rows *r, struct ap_err *err)
{
    const int n = r->m->blocks.n;

    int *kind = AP_NEW_N(r->arena, n, int); /* [block]: first that is like it */

    for (int b = 0; b < n; b++)
        for (kind[b] = r->m->twin[b * n + b];
             kind[b] < b &&
             !(kind[kind[b]] == kind[b] &&
               r->m->twin[kind[b] * n + kind[b]] == r->m->twin[b * n + b] &&
               same_marks(r, kind[b], b));)
            kind[b]++;
    r->part = AP_NEW_N(r->arena, GRID_MOST_BLOCKS * n + 1, struct grid_part);
    for (int more = 0; more < GRID_MOST_BLOCKS; more++) {
        int *of = AP_NEW_N(r->arena, n, int);
        for (int b = 0; b + more < n; b++) {
            const int like = find_like(r, kind, b, more);
            of[b] = like >= 0 ? of[like] : add_run(r, b, b + more, err);
            if (of[b] < 0)
                return -1;
        }
        r->run[more] = of;
    }
    find_far(r);
    return find_ends(r, err);
}

/* ---- measures ---- */

/* The conversions that neighbouring blocks have alone. */
static struct ap_conversions near_conversions(const struct grid_rows *r,
                                              const struct grid_sharding *s,
                                              const struct grid_part *part,
                                              const struct ap_conversions *all,
                                              struct ap_arena *arena)
{
    struct ap_conversions near = *all;
    struct ap_conversion *list = AP_NEW_N(arena, all->n + 1, struct ap_conversion);

    near.n = 0;
    for (int i = 0; i < all->n && s->even; i++) {
        const int node = part->sub.source[all->conv[i].node];
        if ((part->all || !r->far[node]) &&
            !(s->is_bare && r->model.origins[node] == AP_FROM_WEIGHTS))
            list[near.n++] = all->conv[i];
    }
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

/* What is sent together, if sent is not NULL; returns how many there are. */
static int list_sent(const struct ap_stage_packs *packs, struct grid_sent *sent)
{
    int n = 0;

    for (int p = 0; p < AP_N_PACKS; p++)
        for (int k = 0; k < AP_N_PACKED; k++)
            for (int a = 1; a < 1 << AP_MAX_AXES; a++)
                if (packs->bytes[p][k][a] > 0 && sent)
                    sent[n++] = (struct grid_sent){(uint8_t)p, (uint8_t)k, (uint8_t)a,
                                                   packs->bytes[p][k][a]};
                else
                    n += packs->bytes[p][k][a] > 0;
    return n;
}

static void keep_sent(struct grid_sharding *s, const struct ap_stage_packs *packs,
                      struct grid_measure *to)
{
    to->n_sent = list_sent(packs, NULL);
    to->sent = AP_NEW_N(&s->arena, to->n_sent + 1, struct grid_sent);
    list_sent(packs, to->sent);
}

/* The part's plan under all that is asked of the sharding, block by block. */
static void measure_cases(const struct grid_rows *r, struct grid_sharding *s, int p,
                          struct ap_arena *arena, const struct ap_stage_plan *plan)
{
    const struct grid_part *part = &r->part[p];
    const int most = r->n_at_once * part->n;
    const bool *again[AP_N_LINE_RECOMPUTES] = {NULL};
    struct ap_stage_case *list = AP_NEW_N(arena, most, struct ap_stage_case);
    struct grid_measure **to = AP_NEW_N(arena, most, struct grid_measure *);
    int n = 0;

    for (int i = 0; i < r->n_at_once; i++) {
        const enum ap_line_recompute how = r->at_once[i].recompute;
        if (!s->asked[i])
            continue;
        if (how != AP_LINE_RECOMPUTE_NONE && !again[how])
            again[how] = marks_of(r, part, how, arena);
        for (int b = 0; b < part->n; b++) {
            if (!(s->needed[p] >> b & 1))
                continue;
            to[n] = &s->measure[i][p * GRID_MOST_BLOCKS + b];
            list[n] = (struct ap_stage_case){&r->at_once[i].micro, again[how],
                                             &to[n]->sum, part->block[b],
                                             AP_NEW(arena, struct ap_stage_packs)};
            n++;
        }
    }
    ap_stage_measure_cases(arena, plan, n, list);
    for (int i = 0; i < n; i++)
        keep_sent(s, list[i].packs, to[i]);
}

static int measure_part(const struct grid_rows *r, struct grid_sharding *s, int p,
                        struct ap_arena *arena, struct ap_err *err)
{
    const struct grid_part *part = &r->part[p];
    struct ap_stages stages = {.microbatches = 1};
    struct line_maker k = {.arena = arena,
                           .model = &r->model,
                           .line = ap_line_least,
                           .stages = &stages,
                           .uses = s->uses,
                           .mesh = s->mesh};
    struct ap_plan plan = {
        .graph = &part->sub.graph, .nests = &part->nests, .mesh = s->mesh};
    struct ap_conversions conv;

    if (line_shard(&k, arena, &plan, err) ||
        ap_plan_conversions(arena, &plan, s->cost, &conv, err))
        return -1;
    conv = near_conversions(r, s, part, &conv, arena);
    measure_cases(r, s, p, arena,
                  &(struct ap_stage_plan){&part->sub, NULL, &plan, &conv, s->cost});
    return 0;
}

struct measuring {
    const struct grid_rows *r;
    const int *sharding;
};

/* One way to shard; what cannot be sharded so is no line, and no mistake. */
static void measure_sharding(void *ctx, int i)
{
    const struct measuring *all = ctx;
    const struct grid_rows *r = all->r;
    struct grid_sharding *s = &r->sharding[all->sharding[i]];
    struct ap_arena scratch = {0};
    struct ap_cluster own;
    struct ap_err why = {0};

    s->measured = true;
    s->ok = ap_cluster_take(&r->m->cluster, s->n_devices, s->devices, &own, &why) == 0 &&
            ap_cost_init(&scratch, s->cost, AP_COST_DEFAULT, &own, &s->mesh, &why) == 0;
    for (int p = 0; p < r->n_parts && s->ok; p++)
        if (s->needed[p] != 0)
            s->ok = measure_part(r, s, p, &scratch, &why) == 0;
    ap_cost_free(s->cost); /* its memo */
    ap_arena_free(&scratch);
}

void grid_measure(struct grid_rows *r, int n, const int *sharding)
{
    struct measuring all = {r, sharding};

    for (int i = 0; i < n; i++) {
        struct grid_sharding *s = &r->sharding[sharding[i]];
        s->cost = AP_NEW(r->arena, struct ap_cost);
        s->measure = AP_NEW_N(r->arena, r->n_at_once, struct grid_measure *);
        for (int k = 0; k < r->n_at_once; k++)
            if (s->asked[k])
                s->measure[k] = AP_NEW_N(r->arena, r->n_parts * GRID_MOST_BLOCKS,
                                         struct grid_measure);
    }
    ap_in_threads(n, measure_sharding, &all);
}

/* ---- stages ---- */

/* A stage that is added up. */
struct sum {
    struct ap_stage_measure m;
    struct ap_stage_packs packs;
};

static void add_block(struct sum *sum, const struct grid_measure *block)
{
    struct ap_stage_measure *to = &sum->m;
    const struct ap_stage_measure *m = &block->sum;

    for (int i = 0; i < block->n_sent; i++) {
        const struct grid_sent *s = &block->sent[i];
        sum->packs.bytes[s->pack][s->kind][s->axes] += s->bytes;
    }
    to->forward_sec += m->forward_sec;
    to->backward_sec += m->backward_sec;
    to->weights_sec += m->weights_sec;
    to->sync_sec += m->sync_sec;
    to->update_sec += m->update_sec;
    to->fixed_bytes += m->fixed_bytes;
    to->gradient_bytes += m->gradient_bytes;
    to->copied_bytes += m->copied_bytes;
    to->kept_bytes += m->kept_bytes;
    to->host_bytes += m->host_bytes;
    to->host_flight_bytes += m->host_flight_bytes;
    for (int i = 0; i < 4; i++)
        to->step_link_sec[i] += m->step_link_sec[i];
    for (int i = 0; i < 2; i++)
        to->pass_link_sec[i] += m->pass_link_sec[i];
    for (int i = 0; i < 2; i++) {
        to->host_sec[i] += m->host_sec[i];
        to->gather_sec[i] += m->gather_sec[i];
        to->exchange_sec[i] += m->exchange_sec[i];
    }
    to->gather_share = fmax(to->gather_share, m->gather_share);
    to->working_bytes = fmax(to->working_bytes, m->working_bytes);
    to->recomputed_bytes = fmax(to->recomputed_bytes, m->recomputed_bytes);
}

/* Where a block of a stage of blocks stage[0] to stage[1] is between its neighbours, as
 * far as it has them: its part and, in *at, its place there. */
static int part_of(const struct grid_rows *r, const int stage[2], int block, int *at)
{
    const int last = stage[1] < block + 1 ? stage[1] : block + 1;
    const int first = last - 2 > stage[0] ? last - 2 : stage[0];
    const int end = first + 2 < stage[1] ? first + 2 : stage[1];
    const bool whole = stage[0] == 0 && stage[1] == r->m->blocks.n - 1;

    if (whole && r->ends >= 0 && (block == 0 || block == stage[1])) {
        *at = block > 0;
        return r->ends;
    }
    *at = block - first;
    return r->run[end - first][first];
}

/* Whether something is known of the stage: no blocks of it share weights but its ends. */
static bool is_known(const struct grid_rows *r, const int stage[2])
{
    int n_far = 0;

    for (int b = stage[0]; b <= stage[1]; b++)
        n_far += r->far_block[b];
    return n_far < 2 || r->ends >= 0;
}

static void stage_blocks(const struct grid_cut *cut, int s, int stage[2])
{
    stage[0] = s ? cut->end[s - 1] : 0;
    stage[1] = cut->end[s] - 1;
}

void grid_need(const struct grid_rows *r, struct grid_sharding *s, int cut)
{
    for (int i = 0; i < r->cut[cut].n; i++) {
        int stage[2], at;
        stage_blocks(&r->cut[cut], i, stage);
        for (int b = stage[0]; b <= stage[1] && is_known(r, stage); b++) {
            const int part = part_of(r, stage, b, &at);
            s->needed[part] |= (uint8_t)(1 << at);
        }
    }
}

static void add_up(const struct grid_rows *r, const struct grid_measure *of,
                   const int stage[2], struct sum *sum)
{
    memset(sum, 0, sizeof *sum);
    for (int b = stage[0], at; b <= stage[1]; b++) {
        const int part = part_of(r, stage, b, &at);
        add_block(sum, &of[part * GRID_MOST_BLOCKS + at]);
    }
    if (r->far_kept)
        sum->m.kept_bytes = sum->m.host_flight_bytes = 0;
}

/* As price_stage of pipeline_price.c makes it of the whole stage, but of its bytes only
 * those that are there where the first backward begins: what passes is not, nor is what
 * one microbatch has no longer, or not yet, when it has the rest. */
static void make_stage(struct ap_stage_measure *m, double share, bool is_first,
                       struct ap_sim_stage *to)
{
    struct ap_stage_point point[2] = {{0}};

    if (is_first) /* sends no gradients back */
        m->weights_sec = m->backward_sec;
    m->input_bytes = m->kept_bytes;
    ap_stage_points(m, point);
    *to = (struct ap_sim_stage){
        .forward_sec = point[0].forward_sec,
        .backward_sec = point[0].backward_sec,
        .weights_sec = point[0].weights_sec,
        .exchange_sec = {point[0].exchange_sec[0], point[0].exchange_sec[1]},
        .exchange_share = share,
        .sync_sec = point[0].sync_sec,
        .update_sec = point[0].update_sec,
        .fixed_bytes = (int64_t)fmax(0, m->fixed_bytes - m->gradient_bytes),
        .flight_bytes = point[0].microbatch_bytes};
}

/* Blocks are measured with all on the host that may be there; what the line does not
 * offload is on the device. */
static void keep_rest(unsigned offload, struct ap_stage_measure *m)
{
    if (!(offload & AP_LINE_OFFLOAD_OPTIMIZER)) {
        m->fixed_bytes += m->host_bytes;
        m->host_bytes = 0;
        memset(m->step_link_sec, 0, sizeof m->step_link_sec);
    }
    if (!(offload & AP_LINE_OFFLOAD_ACTIVATIONS)) {
        m->kept_bytes += m->host_flight_bytes;
        m->host_flight_bytes = 0;
        memset(m->pass_link_sec, 0, sizeof m->pass_link_sec);
    }
}

/* Whether two runs of blocks have the same parts. */
static bool is_same(const struct grid_rows *r, const int a[2], const int b[2])
{
    bool same = a[1] - a[0] == b[1] - b[0];

    for (int k = 0; k <= a[1] - a[0] && same; k++)
        for (int more = 0; more < GRID_MOST_BLOCKS && k + more <= a[1] - a[0]; more++)
            same &= r->run[more][a[0] + k] == r->run[more][b[0] + k];
    return same;
}

struct ap_sim_stage *grid_stages(const struct grid_rows *r,
                                 const struct grid_candidate *row, int sharding,
                                 struct ap_arena *arena)
{
    const struct grid_sharding *s = &r->sharding[sharding];
    const struct grid_cut *cut = &r->cut[row->cut];
    struct ap_sim_stage *stage = AP_NEW_N(arena, cut->n, struct ap_sim_stage);
    int before[2] = {0, 0};
    struct sum sum;

    for (int i = 0; i < cut->n; i++) {
        int blocks[2];
        stage_blocks(cut, i, blocks);
        if (!is_known(r, blocks))
            return NULL;
        if (i > 1 && is_same(r, blocks, before)) {
            stage[i] = stage[i - 1];
            continue;
        }
        add_up(r, s->measure[s->is_bare ? row->bare_at_once : row->at_once], blocks,
               &sum);
        if (s->is_bare)
            sum.m.sync_sec = sum.m.update_sec = 0;
        else
            ap_stage_add_packs(&r->at_once[row->at_once].micro, &sum.packs, s->cost,
                               &sum.m);
        keep_rest(s->is_bare ? 0 : row->line.offload, &sum.m); /* bare: larger shards */
        make_stage(&sum.m, s->cost->cluster.collective_share[AP_OP_ALL_TO_ALL], i == 0,
                   &stage[i]);
        memcpy(before, blocks, sizeof before);
    }
    return stage;
}
