/*
 * Problem: describe a plan in the words of trainers: the devices that split weights, the
 * devices that split the batch, and the tensors that ZeRO shards. Idea: two sweeps over
 * the nests, without a mesh, say which factor of each group runs along the batch and
 * which along the sequence (named_plan_sweep.c); what else a weight's contraction can be
 * split by is a dimension of the weight, or its experts. An axis is named by most FLOPs.
 * On an axis that does not split the weight's contraction, a split weight is ZeRO-3's, a
 * split update ZeRO-1's or 2's. Cost: linear in the operand slots, times axes. Sources:
 * Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
 * Megatron-LM", SC 2021, section 2 (tensor, pipeline, data); Korthikanti et al.,
 * "Reducing Activation Recomputation in Large Transformer Models", section 4.2
 * (sequence); Rajbhandari et al., "ZeRO", section 5 (stages); Lepikhin et al., "GShard",
 * section 3.2 (experts).
 */
#include "plan/degrees.h"

#include <string.h>

#include "plan/microbatch.h"
#include "plan/named_plan_impl.h"
#include "plan/patterns.h"

#include "graph/blocks.h"

/* Which factor of each group runs along the batch, and along the sequence; -1: none. */
struct labels {
    int16_t *batch, *sequence;
    const bool *derived; /* [group]: made of weights and states alone */
    const int *origin;   /* [group]: see ap_weight_origins */
};

/* Of an attention: what its projections use the axis for decides whether that is tensor
 * parallelism or an exchange for tokens. */
#define HEADS AP_N_AXIS_USES

/* Sums per use of an axis. */
struct votes {
    double flops[AP_MAX_AXES][AP_N_AXIS_USES + 1];
    double all;
};

/* Bytes between tensor parallel regions, by how they lie on an axis. */
struct between {
    double sequence[AP_MAX_AXES], other[AP_MAX_AXES];
};

/* Bytes of weights by ZeRO's stage on an axis. */
struct sharded {
    double bytes[AP_MAX_AXES][4];
};

struct tally {
    struct votes dense, experts;
    struct between between;
    struct sharded sharded;
    double agreeing; /* FLOPs */
};

struct finder {
    struct ap_arena *arena;
    const struct ap_plan *plan;
    const struct ap_graph *g;
    const struct ap_mesh *mesh;
    struct labels labels;
    const uint8_t *from; /* [node] enum ap_origin */
    bool experts;        /* their FLOPs are worth a count */
    const struct ap_layers *layers;
    bool gradients_whole; /* they are held whole before they are sharded */
    const int *use_of;    /* [node]: group of the weight's first contraction, -1 */
    const int *new_value; /* [node]: of a weight, -1 */
    struct tally *tally;  /* [layer], then one for all */
};

/* ---- labels ---- */

static int16_t *sweep_labels(struct ap_arena *arena, const struct ap_plan *of,
                             int64_t size, bool sequence)
{
    struct ap_plan plan = {.graph = of->graph, .nests = of->nests};
    int16_t *label = AP_NEW_N(arena, of->nests->n + 1, int16_t);

    plan.mesh = (struct ap_mesh){.n_axes = 1, .size = {size}, .name = {"x"}};
    ap_sweep_start(arena, &plan, NULL);
    struct ap_sweep s = ap_sweep_new(arena, &plan, NULL);
    ap_sweep_axis(&s, 0, AP_SWEEP_BATCH);
    if (sequence)
        ap_sweep_seed_sequence(&s);
    else
        ap_sweep_seed_batch(&s, ap_batch_size(of->graph));
    ap_sweep_run(&s);
    for (int i = 0; i < of->nests->n; i++) {
        int c = plan.choice[i].axis[0];
        label[i] = (int16_t)(c < of->nests->nest[i].n_factors ? c : -1);
    }
    return label;
}

/* The smallest number above 1 that divides n: an axis on which nothing is padded. */
static int64_t smallest_divisor(int64_t n)
{
    for (int64_t d = 2; d * d <= n; d++)
        if (n % d == 0)
            return d;
    return n < 2 ? 2 : n;
}

int64_t ap_sequence_length(struct ap_arena *arena, const struct ap_graph *g,
                           const struct ap_nests *nests)
{
    struct ap_plan plan = {.graph = g, .nests = nests};

    plan.mesh = (struct ap_mesh){.n_axes = 1, .size = {2}, .name = {"x"}};
    ap_sweep_start(arena, &plan, NULL);
    struct ap_sweep s = ap_sweep_new(arena, &plan, NULL);
    ap_sweep_axis(&s, 0, AP_SWEEP_BATCH);
    return ap_sweep_seed_sequence(&s);
}

static const bool *derived_groups(struct ap_arena *arena, const struct ap_plan *of)
{
    struct ap_plan plan = *of;
    return ap_sweep_new(arena, &plan, NULL).derived;
}

static struct labels find_labels(struct ap_arena *arena, const struct ap_plan *plan)
{
    return (struct labels){
        .batch = sweep_labels(arena, plan, smallest_divisor(ap_batch_size(plan->graph)),
                              false),
        .sequence = sweep_labels(
            arena, plan,
            smallest_divisor(ap_sequence_length(arena, plan->graph, plan->nests)), true),
        .derived = derived_groups(arena, plan),
        .origin = ap_weight_origins(arena, plan->graph, plan->nests)};
}

/* ---- contractions ---- */

static bool made_of_weights(const struct finder *f, const struct ap_nest *nest, int slot)
{
    return f->labels.derived[f->g->nodes[nest->ins[slot].node].group];
}

/* Whether the contraction has a weight, and, if factor x is given, where it is: in the
 * weight, in the other operand. */
static bool has_weight(const struct finder *f, const struct ap_nest *nest, int x,
                       bool *in_weight, bool *in_other)
{
    bool any = false;

    *in_weight = *in_other = false;
    for (int k = 0; k < nest->n_ins; k++) {
        bool weight = made_of_weights(f, nest, k);
        any |= weight;
        if (x >= 0 && ap_access_has(&nest->ins[k].access, x))
            *(weight ? in_weight : in_other) = true;
    }
    return any;
}

static bool is_of_experts(const struct finder *f, const struct ap_nest *nest)
{
    return f->experts && ap_node_is_of_experts(f->g, f->from, nest->members[0]);
}

static enum ap_axis_split use_of_axis(const struct finder *f, const struct ap_nest *nest,
                                      int axis)
{
    int x = f->plan->choice[nest->group].axis[axis];
    bool in_weight, in_other;

    if (ap_choice_is_ring(nest, x))
        return AP_USE_CONTEXT;
    if (x < 0 || x >= nest->n_factors || f->mesh->size[axis] == 1)
        return AP_USE_NONE;
    if (nest->factors[x].stripes)
        return AP_USE_CONTEXT;
    if (x == f->labels.batch[nest->group])
        return AP_USE_DATA;
    if (x == f->labels.sequence[nest->group])
        return AP_USE_CONTEXT;
    if (!has_weight(f, nest, x, &in_weight, &in_other))
        return HEADS;
    if (!in_weight)
        return AP_USE_DATA;
    return in_other && is_of_experts(f, nest) &&
                   nest->factors[x].kind == AP_FACTOR_PARALLEL
               ? AP_USE_EXPERT
               : AP_USE_TENSOR;
}

static double flops_of(const struct finder *f, const struct ap_nest *nest)
{
    double sum = 0;
    for (int m = 0; m < nest->n_members; m++)
        sum += ap_node_heavy_flops(f->g, nest->members[m]);
    return sum;
}

static bool is_forward_contraction(const struct finder *f, const struct ap_nest *nest)
{
    return nest->heavy && f->g->nodes[nest->members[0]].phase == AP_FORWARD;
}

/* Layer of a contraction: its own, else its weight's. */
static int layer_of(const struct finder *f, const struct ap_nest *nest)
{
    int layer = f->layers->of_node[nest->members[0]];

    for (int k = 0; k < nest->n_ins && layer < 0; k++) {
        int from = f->labels.origin[f->g->nodes[nest->ins[k].node].group];
        if (from >= 0)
            layer = f->layers->of_node[from];
    }
    return layer;
}

static void vote(struct votes *v, const enum ap_axis_split *use, int n_axes, double flops)
{
    v->all += flops;
    for (int a = 0; a < n_axes; a++)
        v->flops[a][use[a]] += flops;
}

static void tally_contractions(struct finder *f)
{
    for (int i = 0; i < f->plan->nests->n; i++) {
        const struct ap_nest *nest = &f->plan->nests->nest[i];
        enum ap_axis_split use[AP_MAX_AXES] = {AP_USE_NONE};
        if (!is_forward_contraction(f, nest))
            continue;
        for (int a = 0; a < f->mesh->n_axes; a++)
            use[a] = use_of_axis(f, nest, a);
        int layer = layer_of(f, nest);
        bool experts = is_of_experts(f, nest);
        for (int k = 0; k < 2; k++) {
            struct tally *t = &f->tally[k ? f->layers->n : layer];
            if (k || layer >= 0)
                vote(experts ? &t->experts : &t->dense, use, f->mesh->n_axes,
                     flops_of(f, nest));
        }
    }
}

/* ---- between tensor parallel regions ---- */

static void tally_between(struct finder *f, enum ap_axis_split use[AP_MAX_AXES])
{
    for (int i = 0; i < f->plan->nests->n; i++) {
        const struct ap_nest *nest = &f->plan->nests->nest[i];
        int first = nest->members[0], along = f->labels.sequence[i];
        if (nest->heavy || f->g->nodes[first].phase != AP_FORWARD || along < 0 ||
            f->labels.derived[i] || nest->n_ins == 0)
            continue;
        double bytes = (double)ap_shape_bytes(ap_value_shape(&f->g->nodes[first]));
        int layer = f->layers->of_node[first];
        for (int a = 0; a < f->mesh->n_axes; a++) {
            int c = f->plan->choice[i].axis[a];
            if (use[a] != AP_USE_TENSOR ||
                (c >= 0 && c != along && c != f->labels.batch[i]))
                continue; /* in a region, or sums on their way out of it */
            for (int k = 0; k < 2; k++) {
                struct between *b = &f->tally[k ? f->layers->n : layer].between;
                if (k || layer >= 0)
                    *(c == along ? &b->sequence[a] : &b->other[a]) += bytes;
            }
        }
    }
}

/* ---- ZeRO ---- */

static bool splits(const struct ap_layout *l, int axis)
{
    return l->axis[axis].kind == AP_SPLIT;
}

/* A weight's stage on each axis that its contractions do not split it on; d: what axes
 * are used for where it has no contraction. */
static void tally_weight(const struct finder *f, int node, const struct ap_axis_uses *d,
                         struct sharded *s)
{
    const struct ap_node *w = &f->g->nodes[node];
    struct ap_layout own = ap_plan_node_layout(f->plan, node);
    struct ap_layout update = own;
    double bytes = (double)ap_shape_bytes(&w->shape);
    int use = f->use_of[node];

    if (f->new_value[node] >= 0)
        update = ap_plan_node_layout(f->plan, f->new_value[node]);
    for (int a = 0; a < f->mesh->n_axes; a++) {
        enum ap_axis_split of =
            use >= 0 ? use_of_axis(f, &f->plan->nests->nest[use], a) : d->use[a];
        if (of == AP_USE_TENSOR || of == AP_USE_EXPERT || (f->mesh->microbatch >> a & 1))
            continue;
        bool gathered = f->plan->regather && f->plan->regather[node];
        int stage = 0;
        if (splits(&own, a) && gathered)
            stage = 3;
        else if (splits(&own, a) || splits(&update, a))
            stage = f->gradients_whole ? 1 : 2;
        s->bytes[a][stage] += bytes;
    }
}

/* Weights that are looked up only (embeddings) have no contraction that says what an axis
 * is for, and are left out. */
static void tally_weights(struct finder *f, const struct ap_axis_uses *layer,
                          const struct ap_axis_uses *all)
{
    for (int i = 0; i < f->g->n_params; i++) {
        int node = f->g->params[i], at = f->layers->of_node[node];
        const struct ap_node *w = &f->g->nodes[node];
        if (w->role != AP_ROLE_WEIGHT || (w->shape.rank >= 2 && f->use_of[node] < 0))
            continue;
        if (at >= 0)
            tally_weight(f, node, &layer[at], &f->tally[at].sharded);
        tally_weight(f, node, at >= 0 ? &layer[at] : all,
                     &f->tally[f->layers->n].sharded);
    }
}

/* ---- what the sums say ---- */

static void settle_uses(const struct votes *v, int n_axes, enum ap_axis_split *use)
{
    for (int a = 0; a < n_axes; a++)
        for (int u = AP_USE_NONE; u < AP_N_AXIS_USES; u++)
            if (v->flops[a][u] > v->flops[a][use[a]])
                use[a] = (enum ap_axis_split)u;
}

static void settle(const struct finder *f, const struct tally *t, struct ap_axis_uses *u)
{
    bool experts = t->experts.all > 0;

    *u = (struct ap_axis_uses){.degrees = {.tensor = 0}};
    settle_uses(&t->dense, f->mesh->n_axes, u->use);
    settle_uses(&t->experts, f->mesh->n_axes, u->expert_use);
    for (int a = 0; a < f->mesh->n_axes; a++) {
        const double heads = t->dense.flops[a][HEADS];
        if (u->use[a] == AP_USE_NONE && heads > t->dense.flops[a][AP_USE_NONE])
            u->use[a] = AP_USE_TENSOR; /* attention alone */
        u->exchange[a] = u->use[a] == AP_USE_CONTEXT && heads > 0;
    }
    if (t->dense.all == 0 && experts)
        for (int a = 0; a < f->mesh->n_axes; a++)
            u->use[a] =
                u->expert_use[a] == AP_USE_EXPERT ? AP_USE_DATA : u->expert_use[a];
}

static void settle_rest(const struct finder *f, const struct tally *t,
                        struct ap_axis_uses *u)
{
    double along = 0, other = 0;

    for (int a = 0; a < f->mesh->n_axes; a++) {
        const double *bytes = t->sharded.bytes[a];
        along += t->between.sequence[a];
        other += t->between.other[a];
        const bool same = u->use[a] == AP_USE_TENSOR && u->expert_use[a] != AP_USE_DATA;
        for (int stage = 1; stage <= 3 && !same; stage++)
            if (bytes[stage] > bytes[u->zero[a]])
                u->zero[a] = (uint8_t)stage;
    }
    ap_degrees_count(u, f->mesh, t->experts.all > 0);
    u->degrees.sequence = u->degrees.tensor > 1 && along > other;
}

void ap_degrees_count(struct ap_axis_uses *u, const struct ap_mesh *mesh, bool experts)
{
    struct ap_degrees *d = &u->degrees;
    int64_t by_use[AP_N_AXIS_USES] = {1, 1, 1, 1, 1};

    d->expert = d->expert_tensor = experts;
    d->shard = d->exchange = 1;
    d->zero = 0;
    for (int a = 0; a < mesh->n_axes; a++) {
        if (mesh->microbatch >> a & 1)
            continue;
        by_use[u->use[a]] *= mesh->size[a];
        if (u->use[a] == AP_USE_CONTEXT && u->exchange[a])
            d->exchange *= mesh->size[a];
        if (u->expert_use[a] == AP_USE_EXPERT)
            d->expert *= mesh->size[a];
        if (u->expert_use[a] == AP_USE_TENSOR)
            d->expert_tensor *= mesh->size[a];
        if (u->zero[a] && mesh->size[a] > 1 && u->use[a] != AP_USE_TENSOR) {
            d->shard *= mesh->size[a];
            d->zero = u->zero[a] > d->zero ? u->zero[a] : d->zero;
        }
    }
    d->idle = by_use[AP_USE_NONE];
    d->data = by_use[AP_USE_DATA];
    d->context = by_use[AP_USE_CONTEXT];
    d->tensor = by_use[AP_USE_TENSOR];
}

/* ---- finding ---- */

static void find_weights(struct finder *f)
{
    int *use = AP_NEW_N(f->arena, f->g->n_nodes + 1, int);
    int *new_value = AP_NEW_N(f->arena, f->g->n_nodes + 1, int);

    memset(use, -1, sizeof *use * (size_t)f->g->n_nodes);
    memset(new_value, -1, sizeof *new_value * (size_t)f->g->n_nodes);
    for (int i = 0; i < f->plan->nests->n; i++) {
        const struct ap_nest *nest = &f->plan->nests->nest[i];
        if (!is_forward_contraction(f, nest))
            continue;
        for (int k = 0; k < nest->n_ins; k++) {
            int from = f->labels.origin[f->g->nodes[nest->ins[k].node].group];
            if (from >= 0 && use[from] < 0)
                use[from] = i;
        }
    }
    for (int r = 0; r < f->g->n_results; r++)
        if (f->g->results[r].alias >= 0)
            new_value[f->g->results[r].alias] = f->g->results[r].node;
    f->use_of = use;
    f->new_value = new_value;
}

/* Whether gradients are held whole: microbatches are summed first, or the plan says so.
 */
static bool holds_gradients(const struct ap_plan *plan, int64_t microbatches)
{
    if (microbatches > 1 || ap_mesh_microbatches(&plan->mesh) > 1)
        return true;
    for (int i = 0; plan->whole && i < plan->graph->n_nodes; i++)
        if (plan->whole[i] && plan->graph->nodes[i].phase == AP_BACKWARD)
            return true;
    return false;
}

/* FLOPs of contractions, and of those that use all axes as most do. */
static void count_agreeing(struct finder *f, struct ap_plan_degrees *out)
{
    const struct tally *all = &f->tally[f->layers->n];

    out->flops = all->dense.all + all->experts.all;
    out->agreeing = 0;
    for (int i = 0; i < f->plan->nests->n; i++) {
        const struct ap_nest *nest = &f->plan->nests->nest[i];
        if (!is_forward_contraction(f, nest))
            continue;
        const enum ap_axis_split *use =
            is_of_experts(f, nest) ? out->all.expert_use : out->all.use;
        bool same = true;
        for (int a = 0; a < f->mesh->n_axes; a++) {
            const enum ap_axis_split of = use_of_axis(f, nest, a);
            same &= of == use[a] ||
                    (of == HEADS && (use[a] == AP_USE_TENSOR || out->all.exchange[a]));
        }
        out->agreeing += same ? flops_of(f, nest) : 0;
    }
}

void ap_degrees_find(struct ap_arena *arena, const struct ap_plan *plan,
                     int64_t microbatches, struct ap_plan_degrees *out)
{
    struct finder f = {.arena = arena,
                       .plan = plan,
                       .g = plan->graph,
                       .mesh = &plan->mesh,
                       .labels = find_labels(arena, plan),
                       .from = ap_blocks_origins(arena, plan->graph),
                       .gradients_whole = holds_gradients(plan, microbatches)};

    ap_layers_find(arena, plan->graph, plan->nests, &out->layers);
    f.layers = &out->layers;
    int n = out->layers.n;
    out->layer = AP_NEW_N(arena, n + 1, struct ap_axis_uses);
    f.tally = AP_NEW_N(arena, n + 1, struct tally);
    find_weights(&f);
    f.experts = ap_experts_find(f.g, f.from) >= 0;
    tally_contractions(&f);
    for (int i = 0; i <= n; i++)
        settle(&f, &f.tally[i], i < n ? &out->layer[i] : &out->all);
    tally_between(&f, out->all.use);
    tally_weights(&f, out->layer, &out->all);
    for (int i = 0; i <= n; i++)
        settle_rest(&f, &f.tally[i], i < n ? &out->layer[i] : &out->all);
    count_agreeing(&f, out);
}

/* ---- words ---- */

bool ap_degrees_equal(const struct ap_degrees *a, const struct ap_degrees *b)
{
    return a->tensor == b->tensor && a->data == b->data && a->context == b->context &&
           a->idle == b->idle && a->sequence == b->sequence && a->zero == b->zero &&
           a->shard == b->shard &&
           (a->exchange > 1 ? a->exchange : 1) == (b->exchange > 1 ? b->exchange : 1) &&
           (a->expert == 0 || b->expert == 0 ||
            (a->expert == b->expert && a->expert_tensor == b->expert_tensor));
}

static void put(struct ap_buf *out, size_t start, const char *name, int64_t n)
{
    ap_buf_printf(out, "%s%s %lld", out->len > start ? " · " : "", name, (long long)n);
}

void ap_degrees_print(const struct ap_degrees *d, struct ap_buf *out)
{
    size_t start = out->len;

    if (d->tensor > 1)
        put(out, start, "TP", d->tensor);
    if (d->sequence)
        ap_buf_puts(out, " with sequence parallelism");
    if (d->context > 1)
        put(out, start, "CP", d->context);
    if (d->exchange > 1 && d->exchange == d->context)
        ap_buf_puts(out, " by heads");
    else if (d->exchange > 1)
        ap_buf_printf(out, ", %lld of them by heads", (long long)d->exchange);
    if (d->data > 1)
        put(out, start, "DP", d->data);
    if (d->expert > 1)
        put(out, start, "EP", d->expert);
    if (d->expert > 0 && d->expert_tensor != d->tensor)
        put(out, start, "expert TP", d->expert_tensor);
    if (d->zero) {
        ap_buf_printf(out, "%sZeRO-%lld", out->len > start ? " · " : "",
                      (long long)d->zero);
        if (d->shard != d->data * d->context)
            ap_buf_printf(out, " over %lld", (long long)d->shard);
    }
    if (d->idle > 1)
        put(out, start, "replicated", d->idle);
    if (out->len == start)
        ap_buf_puts(out, "1 device");
}

void ap_degrees_print_layers(const struct ap_plan_degrees *d, struct ap_buf *out)
{
    int n = d->layers.n;

    for (int a = 0, b; a < n; a = b + 1) {
        const struct ap_degrees *run = &d->layer[a].degrees; /* with experts, if any */
        for (b = a; b + 1 < n && ap_degrees_equal(run, &d->layer[b + 1].degrees); b++)
            run = run->expert ? run : &d->layer[b + 1].degrees;
        if (a == 0 && b == n - 1)
            return;
        ap_buf_printf(out, a ? ", layer%s %d" : "layer%s %d", a == b ? "" : "s", a);
        if (b > a)
            ap_buf_printf(out, "-%d", b);
        ap_buf_putc(out, ' ');
        ap_degrees_print(run, out);
    }
}
