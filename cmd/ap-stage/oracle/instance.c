/*
 * What planners see of a graph: blocks with their FLOPs, values that cross between them,
 * and the ways in which the batch may be cut. A value crosses once, however many blocks
 * read it, and a gradient crosses back from the block that makes it to the first that
 * reads it; what is a parameter or copied (ap_subgraph) is read where it is used, what
 * the update reads is exchanged once per step. All linear in the graph.
 */
#include "oracle/instance.h"

#include "base/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "graph/subgraph.h"
#include "plan/microbatch.h"
#include "plan/named_plan.h"
#include "doc/blocks_json.h"

#define MAX_BLOCKS 1024

static void read_blocks(struct ap_arena *arena, const struct ap_doc *doc,
                        struct stage_model *m)
{
    const struct ap_section *section = ap_doc_find(doc, "blocks");
    struct ap_at at = {.key = "blocks"};
    struct ap_err err = {0};
    if (!section)
        ap_die(AP_BAD_INPUT, "%s: no section \"blocks\" (run ap-coarsen)", doc->file);
    json_t *o = ap_doc_load(doc, section, &err);
    if (!o)
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    if (ap_blocks_from_json(arena, o, &at, &m->graph, &m->blocks, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    json_decref(o);
    if (m->blocks.n > MAX_BLOCKS)
        ap_die(AP_BAD_INPUT,
               "%s: /blocks: %d blocks, at most %d are planned "
               "(ap-coarsen --blocks makes fewer)",
               doc->file, m->blocks.n, MAX_BLOCKS);
}

void stage_model_graph(struct ap_arena *arena, const struct ap_doc *doc,
                       struct stage_model *m)
{
    struct ap_err err = {0};

    *m = (struct stage_model){0};
    if (ap_doc_graph(arena, doc, &m->graph, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
}

/* The hosts of each kind as a cluster of their own. */
static int read_kinds(struct ap_arena *arena, struct stage_model *m, struct ap_err *err)
{
    const struct ap_cluster *c = &m->cluster;
    int64_t *ids = AP_NEW_N(arena, (int)ap_cluster_devices(c), int64_t), first = 0;

    m->n_kinds = c->n_kinds > 1 ? c->n_kinds : 1;
    m->kind = AP_NEW_N(arena, m->n_kinds, struct ap_cluster);
    m->kind[0] = *c;
    for (int k = 0; k < m->n_kinds && m->n_kinds > 1; k++) {
        int64_t n = c->kind[k].hosts * c->levels[0].size;
        struct ap_err why = {0};
        for (int64_t i = 0; i < n; i++)
            ids[i] = first + i;
        if (ap_cluster_take(c, n, ids, &m->kind[k], &why))
            return ap_err_set(err, "cluster %s: /hosts/%d: its %lld hosts: %s", c->name,
                              k, (long long)c->kind[k].hosts, why.msg);
        first += n;
    }
    return 0;
}

void stage_model_read(struct ap_arena *arena, const struct ap_doc *doc,
                      const char *cluster_path, struct stage_model *m)
{
    struct ap_err err = {0};

    read_blocks(arena, doc, m);
    if (!cluster_path && !ap_doc_find(doc, "cluster"))
        ap_die_usage("--cluster is missing, and the document has no cluster");
    if (ap_cluster_get(arena, doc, cluster_path, 0, &m->cluster, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    if (read_kinds(arena, m, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    m->batch = ap_batch_size(&m->graph);
    for (int i = 0; i < m->graph.n_nodes; i++)
        m->training |= m->graph.nodes[i].phase != AP_FORWARD;
}

int stage_model_nests(struct ap_arena *arena, const struct ap_doc *doc,
                      struct stage_model *m, struct ap_err *err)
{
    struct ap_err why = {0};

    ap_group(arena, &m->graph);
    if (ap_nests_build(arena, &m->graph, &m->nests, &why))
        return ap_err_set(err, "%s: %s", doc->file, why.msg);
    return 0;
}

/* ---- microbatches ---- */

/* The nearest number of microbatches that divides the batch, of two the lower. */
static int64_t nearest_divisor(int64_t batch, int64_t n)
{
    int64_t best = 1;
    for (int64_t low = 1; low <= batch / low; low++) {
        if (batch % low)
            continue;
        const int64_t both[] = {low, batch / low};
        for (int i = 0; i < 2; i++) {
            int64_t away = llabs(both[i] - n), least = llabs(best - n);
            if (away < least || (away == least && both[i] < best))
                best = both[i];
        }
    }
    return best;
}

/* Whether the batch can be cut in so many; 1: no. */
static int check_microbatches(const struct stage_model *m, int64_t asked,
                              struct ap_err *err)
{
    if (asked > 1 && m->batch == 0) {
        ap_err_set(err,
                   "%lld microbatches: no input has a batch dimension; "
                   "--microbatches 1 is possible",
                   (long long)asked);
        return 1;
    }
    if (asked > 1 && m->batch % asked) {
        ap_err_set(err,
                   "%lld microbatches do not divide the batch of %lld rows; "
                   "--microbatches %lld is the nearest number that does",
                   (long long)asked, (long long)m->batch,
                   (long long)nearest_divisor(m->batch, asked));
        return 1;
    }
    return 0;
}

/* The next number of microbatches to try: each divides the next one, and the last is the
 * batch. */
static int64_t next_microbatches(int64_t n, int64_t batch)
{
    int64_t factor = 2;

    while (batch / n % factor)
        factor++;
    return n * factor;
}

static int list_microbatches(struct ap_arena *arena, const struct stage_model *m,
                             const struct stage_limits *limits,
                             struct plan_instance *inst, struct ap_err *err)
{
    int64_t *list = AP_NEW_N(arena, 64, int64_t), asked = limits->microbatches,
            also = limits->also;
    inst->microbatches = list;
    if (check_microbatches(m, asked > 0 ? asked : also, err))
        return 1;
    if (asked > 0)
        list[inst->n_microbatches++] = asked;
    for (int64_t n = 1; asked == 0; n = next_microbatches(n, m->batch)) {
        if (also > 0 && also < n)
            list[inst->n_microbatches++] = also;
        also = also > n ? also : 0;
        list[inst->n_microbatches++] = n;
        if (n >= m->batch)
            return 0;
    }
    return 0;
}

/* ---- values between blocks ---- */

struct lister {
    struct ap_arena *arena;
    const struct stage_model *m;
    const struct ap_stage_microbatch *micro;
    const bool *copied; /* [node] */
    int *seen;          /* [block]: last node that was found to be read there, + 1 */
    int n, cap;
    struct plan_value *value;
};

static void add_value(struct lister *l, const struct plan_value *v)
{
    AP_ROOM_IN(l->arena, l->value, l->n, l->cap);
    l->value[l->n] = *v;
    l->value[l->n].to = ap_arena_dup(l->arena, v->to, sizeof(int) * (size_t)v->n_to);
    l->value[l->n].n_forward = v->forward_bytes > 0;
    l->value[l->n].n_backward = v->backward_bytes > 0;
    l->n++;
}

/* Blocks after that read a node, ascending, and the first before that does, or -1. */
static int list_readers(struct lister *l, int node, int *to, int *before)
{
    const struct ap_graph *g = &l->m->graph;
    const int *block_of = l->m->blocks.block_of;
    int n = 0;
    *before = -1;
    for (int u = g->user_start[node]; u < g->user_start[node + 1]; u++) {
        int user = g->users[u], b = block_of[user];
        if (g->nodes[user].phase == AP_UPDATE || b == block_of[node] ||
            l->seen[b] == node + 1)
            continue;
        l->seen[b] = node + 1;
        if (b > block_of[node])
            to[n++] = b;
        else if (*before < 0 || b < *before)
            *before = b;
    }
    if (n > 1)
        qsort(to, (size_t)n, sizeof *to, ap_compare_int);
    return n;
}

static int compare_values(const void *pa, const void *pb)
{
    const struct plan_value *a = pa, *b = pb;
    if (a->from != b->from)
        return a->from - b->from;
    if (a->split != b->split)
        return a->split - b->split;
    if (a->once != b->once)
        return a->once - b->once;
    if (a->n_to != b->n_to)
        return a->n_to - b->n_to;
    for (int i = 0; i < a->n_to; i++)
        if (a->to[i] != b->to[i])
            return a->to[i] - b->to[i];
    return 0;
}

/* Values that cross between the same blocks count as one. */
static void join_values(struct lister *l)
{
    int n = 0;
    if (l->n > 1)
        qsort(l->value, (size_t)l->n, sizeof *l->value, compare_values);
    for (int i = 0; i < l->n; i++) {
        struct plan_value *last = &l->value[n - 1];
        if (n > 0 && compare_values(last, &l->value[i]) == 0) {
            last->forward_bytes =
                ap_add64(last->forward_bytes, l->value[i].forward_bytes);
            last->backward_bytes =
                ap_add64(last->backward_bytes, l->value[i].backward_bytes);
            last->n_forward += l->value[i].n_forward;
            last->n_backward += l->value[i].n_backward;
        } else {
            l->value[n++] = l->value[i];
        }
    }
    l->n = n;
}

static void list_values(struct lister *l)
{
    const struct ap_graph *g = &l->m->graph;
    int *to = AP_NEW_N(l->arena, l->m->blocks.n, int), before;
    for (int i = 0; i < g->n_nodes; i++) {
        const struct ap_node *n = &g->nodes[i];
        if (n->op == AP_OP_PARAMETER || l->copied[i] || n->phase == AP_UPDATE ||
            n->shape.dtype == AP_TUPLE)
            continue;
        int block = l->m->blocks.block_of[i], n_to = list_readers(l, i, to, &before);
        int64_t bytes = ap_shape_bytes(&n->shape);
        if (n_to > 0)
            add_value(l, &(struct plan_value){.from = block,
                                              .n_to = n_to,
                                              .to = to,
                                              .forward_bytes = bytes,
                                              .split = l->micro->split[i]});
        /* sums over the batch go back once per step: each microbatch sends a share */
        if (before >= 0)
            add_value(l, &(struct plan_value){.from = before,
                                              .n_to = 1,
                                              .to = &block,
                                              .backward_bytes = bytes,
                                              .split = true,
                                              .once = !l->micro->split[i] &&
                                                      n->shape.rank > 0});
    }
    join_values(l);
}

/* ---- what every plan does ---- */

static bool is_work(const struct stage_model *m, const struct ap_stage_microbatch *micro,
                    const struct ap_nest *nest)
{
    const struct ap_graph *g = &m->graph;
    int block = m->blocks.block_of[nest->members[0]];

    if (nest->body || ap_plan_group_is_free(g, nest))
        return false;
    for (int i = 0; i < nest->n_members; i++) {
        int node = nest->members[i];
        if (g->nodes[node].phase == AP_UPDATE || m->blocks.block_of[node] != block ||
            (micro->n > 1 && !micro->runs[node]))
            return false;
    }
    return true;
}

/* Whether stages that read the value compute it: of constants, weights, a scalar. */
static bool is_copied(const struct ap_graph *g, const bool *copied, int node)
{
    const struct ap_node *n = &g->nodes[node];
    return copied[node] ||
           (n->op == AP_OP_BROADCAST && g->nodes[n->in[0]].shape.rank == 0);
}

static void add_bytes(const struct ap_stage_microbatch *micro, int node, double bytes,
                      struct stage_work *w)
{
    if (micro->split[node])
        w->split_bytes += bytes;
    else
        w->whole_bytes += bytes;
}

/* What the group moves of each operand and result, on one device; moved is room for it.
 */
static void count_bytes(const struct stage_model *m,
                        const struct ap_stage_microbatch *micro, const bool *copied,
                        const struct ap_nest *nest, double *moved, struct stage_work *w)
{
    const struct ap_mesh one = {.n_axes = 1, .size = {1}, .name = {"x"}};
    const struct ap_choice_vec none = AP_CHOICE_NONE;
    const struct ap_graph *g = &m->graph;
    double ignored;

    ap_nest_work(nest, g, &one, &none, &w->flops, &ignored, &w->dtype);
    if (nest->experts >= 0)
        w->size = w->flops / 2 / ap_nest_expert_elems(nest, g, &one, &none);
    if (nest->attention)
        ap_nest_heads(nest, g, &one, &none, &w->size, &w->width);
    ap_nest_moved(nest, g, &one, &none, moved);
    for (int k = 0; k < nest->n_ins; k++)
        add_bytes(micro, nest->ins[k].node, moved[k], w);
    for (int o = 0; o < nest->n_outs; o++)
        if (!is_copied(g, copied, nest->outs[o]))
            add_bytes(micro, nest->outs[o], moved[nest->n_ins + o], w);
}

static int compare_work(const void *pa, const void *pb)
{
    const struct stage_work *a = pa, *b = pb;
    if (a->block != b->block)
        return a->block - b->block;
    if (a->flops != b->flops)
        return a->flops < b->flops ? -1 : 1;
    if (a->split_bytes != b->split_bytes)
        return a->split_bytes < b->split_bytes ? -1 : 1;
    if (a->whole_bytes != b->whole_bytes)
        return a->whole_bytes < b->whole_bytes ? -1 : 1;
    if (a->size != b->size)
        return a->size < b->size ? -1 : 1;
    if (a->width != b->width)
        return a->width < b->width ? -1 : 1;
    if (a->phase != b->phase)
        return (int)a->phase - (int)b->phase;
    if (a->kernel != b->kernel)
        return (int)a->kernel - (int)b->kernel;
    if (a->launched != b->launched)
        return a->launched - b->launched;
    return (int)a->dtype - (int)b->dtype;
}

static void list_work(struct ap_arena *arena, struct stage_model *m,
                      const struct ap_stage_microbatch *micro, const bool *copied)
{
    int n = 0, kept = 0, most = 1;

    for (int i = 0; i < m->nests.n; i++)
        if (m->nests.nest[i].n_ins + m->nests.nest[i].n_outs > most)
            most = m->nests.nest[i].n_ins + m->nests.nest[i].n_outs;
    double *moved = AP_NEW_N(arena, most, double);

    m->work = AP_NEW_N(arena, m->nests.n + 1, struct stage_work);
    for (int i = 0; i < m->nests.n; i++) {
        const struct ap_nest *nest = &m->nests.nest[i];
        struct stage_work *w = &m->work[n];
        if (!is_work(m, micro, nest))
            continue;
        n++;
        w->block = m->blocks.block_of[nest->members[0]];
        w->n = 1;
        w->kernel = nest->kernel;
        w->launched = nest->launched;
        w->phase = m->graph.nodes[nest->members[0]].phase;
        count_bytes(m, micro, copied, nest, moved, w);
        if (nest->in_kernel && !nest->heavy)
            w->flops = 0;
    }
    qsort(m->work, (size_t)n, sizeof *m->work, compare_work);
    for (int i = 0; i < n; i++)
        if (kept > 0 && compare_work(&m->work[kept - 1], &m->work[i]) == 0)
            m->work[kept - 1].n++;
        else
            m->work[kept++] = m->work[i];
    m->n_work = kept;
}

/* ---- the instance ---- */

/* Whether a program runs the graph in so many microbatches; why is set where none does.
 */
static bool has_program(const struct stage_model *m, bool each, int64_t n,
                        struct ap_err *why)
{
    struct ap_arena scratch = {0};
    const int16_t *choice;
    const bool *estimates;
    int rc = 0;

    if (n > 1)
        rc = each
                 ? ap_microbatch_choices_each(&scratch, &m->graph, &m->nests, n, &choice,
                                              &estimates, why)
                 : ap_microbatch_choices(&scratch, &m->graph, &m->nests, n, &choice, why);
    ap_arena_free(&scratch);
    return rc == 0;
}

/* How the graph lies on the microbatch axis does not depend on the number, if that is not
 * one. */
static int find_axis(struct ap_arena *arena, const struct stage_model *m,
                     const struct stage_limits *limits, struct plan_instance *inst,
                     struct ap_stage_microbatch *micro, struct ap_err *err)
{
    int64_t most = inst->microbatches[inst->n_microbatches - 1];
    struct ap_err why = {0};
    if (ap_stage_microbatch_axis(arena, &m->graph, &m->nests, most, micro, &why) == 0) {
        if (micro->whole >= 0 && !limits->each)
            ap_err_set(&why,
                       "node %d (%s) reduces over the whole batch before the update%s",
                       micro->whole, m->graph.nodes[micro->whole].name,
                       has_program(m, true, most, &(struct ap_err){0})
                           ? "; --microbatch each computes it per microbatch"
                           : "");
        else if (has_program(m, limits->each, most, &why))
            return 0;
    }
    if (limits->microbatches == 0 && limits->also <= 1 && most > 1) {
        ap_warn("no microbatches: %s", why.msg);
        inst->n_microbatches = 1;
        return ap_stage_microbatch_axis(arena, &m->graph, &m->nests, 1, micro, err) ? 1
                                                                                    : 0;
    }
    ap_err_set(err, "%lld microbatches: %s",
               (long long)(limits->also > 1 ? limits->also : most), why.msg);
    return 1;
}

static void count_blocks(struct ap_arena *arena, const struct stage_model *m,
                         struct plan_instance *inst)
{
    double *flops = AP_NEW_N(arena, m->blocks.n, double);
    int *n_ops = AP_NEW_N(arena, m->blocks.n, int), *ids;
    int n = ap_blocks_operators(arena, &m->graph, &ids);
    for (int b = 0; b < m->blocks.n; b++)
        flops[b] = m->sums[b].flops[AP_FORWARD];
    for (int i = 0; i < n; i++)
        n_ops[m->blocks.block_of[ids[i]]]++;
    inst->flops = flops;
    inst->n_ops = n_ops;
}

/* Kinds of devices, their speed by what the blocks take on one device. */
static void fill_kinds(struct ap_arena *arena, const struct stage_model *m, bool limited,
                       struct plan_instance *inst)
{
    struct plan_kind *kind = AP_NEW_N(arena, m->n_kinds, struct plan_kind);
    int64_t most_bytes = 1;
    double least_sec = INFINITY;

    for (int k = 0; k < m->n_kinds; k++) {
        double *sec = stage_least_sec(arena, m, k, 1, 1);
        kind[k].n_hosts = (int)(ap_cluster_devices(&m->kind[k]) / inst->n_devices);
        kind[k].first_host = k > 0 ? kind[k - 1].first_host + kind[k - 1].n_hosts : 0;
        kind[k].speed = sec[m->blocks.n] > 0 ? sec[m->blocks.n] : 1;
        least_sec = fmin(least_sec, kind[k].speed);
        if (m->kind[k].memory_bytes > most_bytes)
            most_bytes = m->kind[k].memory_bytes;
    }
    for (int k = 0; k < m->n_kinds; k++) {
        kind[k].speed = least_sec / kind[k].speed;
        kind[k].memory_share =
            limited ? 1 : (double)m->kind[k].memory_bytes / (double)most_bytes;
    }
    inst->n_kinds = m->n_kinds;
    inst->kind = kind;
    if (!limited)
        inst->memory_bytes = most_bytes;
}

int stage_instance_make(struct ap_arena *arena, struct stage_model *m,
                        const struct stage_limits *limits, struct plan_instance *inst,
                        struct ap_err *err)
{
    struct ap_stage_microbatch micro;
    m->sums = ap_blocks_sum(arena, &m->graph, &m->blocks);
    *inst = (struct plan_instance){.n_blocks = m->blocks.n,
                                   .cluster = &m->cluster,
                                   .n_devices = (int)m->cluster.levels[0].size,
                                   .memory_bytes = limits->memory_bytes > 0
                                                       ? limits->memory_bytes
                                                       : m->cluster.memory_bytes,
                                   .monotone = true,
                                   .inference = !m->training};
    inst->n_hosts = (int)(ap_cluster_devices(&m->cluster) / inst->n_devices);
    if (list_microbatches(arena, m, limits, inst, err))
        return 1;
    if (find_axis(arena, m, limits, inst, &micro, err))
        return 1;
    m->micro = micro;
    inst->twin = m->twin = serve_twins(arena, &m->graph, &m->blocks, micro.split);
    count_blocks(arena, m, inst);
    struct lister l = {.arena = arena,
                       .m = m,
                       .micro = &micro,
                       .copied = ap_subgraph_copied(arena, &m->graph),
                       .seen = AP_NEW_N(arena, m->blocks.n, int)};
    list_values(&l);
    list_work(arena, m, &micro, l.copied);
    inst->n_values = l.n;
    inst->value = l.value;
    inst->links = plan_links_new(arena);
    if (m->n_kinds > 1)
        fill_kinds(arena, m, limits->memory_bytes > 0, inst);
    return 0;
}

double *stage_least_sec(struct ap_arena *arena, const struct stage_model *m, int kind,
                        int64_t devices, int64_t microbatches)
{
    const struct ap_cluster *c = &m->kind[kind];
    double *sec = AP_NEW_N(arena, m->blocks.n + 1, double);
    double d = (double)devices, b = (double)microbatches;
    for (int i = 0; i < m->n_work; i++) {
        const struct stage_work *w = &m->work[i];
        const struct ap_kernel_work least = {
            .kernel = w->kernel,
            .dtype = w->dtype,
            .phase = w->phase,
            .flops = w->flops / (d * b),
            .bytes = (w->split_bytes / b + w->whole_bytes) / d,
            .size = w->kernel == AP_KERNEL_GROUPED ? w->size / b : w->size,
            .width = w->width};
        const double each = ap_cluster_kernel_sec(c, &least);
        sec[w->block + 1] += w->n * (w->launched ? fmax(0, each - c->launch_sec) : each);
    }
    for (int k = 0; k < m->blocks.n; k++)
        sec[k + 1] += sec[k];
    return sec;
}
