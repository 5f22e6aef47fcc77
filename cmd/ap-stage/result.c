/*
 * The section "stages" of a planner's answer. It is written, read back as ap-cost reads
 * it (which checks blocks, devices and shardings against each other), and priced by the
 * same code as ap-cost's, so that the objective is the step time that ap-cost reports.
 */
#include "result.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/priced_plans.h"
#include "oracle/stage_memo.h"
#include "planners/recompute_select.h"

static int list_blocks(struct ap_arena *arena, const struct plan_stage *from,
                       int n_blocks, const int **out)
{
    int *list = AP_NEW_N(arena, n_blocks, int), n = 0;
    for (int b = 0; b < n_blocks; b++)
        if (from->set ? from->set[b / 64] >> (b % 64) & 1
                      : b >= from->lo && b <= from->hi)
            list[n++] = b;
    *out = list;
    return n;
}

static int compare_devices(const void *pa, const void *pb)
{
    int64_t a = *(const int64_t *)pa, b = *(const int64_t *)pb;
    return a < b ? -1 : a > b;
}

/* All replicas' devices, ascending. */
static void list_devices(struct ap_arena *arena, const struct plan_instance *inst,
                         const struct plan_answer *answer, int s, struct ap_stage *to)
{
    const struct plan_stage *from = &answer->stage[s];
    int64_t n = (int64_t)from->hosts * from->devices * answer->replicas;
    int64_t *list = AP_NEW_N(arena, n, int64_t);
    for (int r = 0; r < answer->replicas; r++) {
        int64_t first = plan_first_device(inst, answer, s, r);
        for (int h = 0; h < from->hosts; h++)
            for (int d = 0; d < from->devices; d++)
                list[to->n_devices++] = first + (int64_t)h * inst->n_devices + d;
    }
    qsort(list, (size_t)n, sizeof *list, compare_devices);
    to->devices = list;
}

static const char *history(struct ap_arena *arena, const struct plan_answer *answer,
                           const struct stage_result *r)
{
    struct ap_buf out = {0};
    ap_put_key(&out, "objective_sec");
    ap_json_num(&out, r->objective_sec);
    ap_put_key(&out, "lower_bound_sec");
    ap_json_num(&out, r->bound_sec);
    if (answer->measure) {
        ap_put_str(&out, "measure", answer->measure);
        ap_put_key(&out, "measured");
        ap_json_num(&out, answer->objective);
    }
    const char *text = ap_arena_strdup(arena, out.data);
    ap_buf_free(&out);
    return text;
}

#define KNOWN_SHARE 16 /* a plan of known stages takes that share of the graph's time */

/* What is compared of plans; all else of their prices is large, and soon gone. */
struct price {
    double step_sec; /* or what else the plan is to keep low */
    int64_t peak_bytes;
    const int64_t *stage_bytes; /* [stage]; NULL: several are on a device */
};

static const int64_t *list_peaks(struct ap_arena *arena,
                                 const struct ap_pipeline_price *pipe)
{
    int n = pipe->sim.n_stages;
    int64_t *bytes = AP_NEW_N(arena, n, int64_t);

    if (pipe->sim.chunks > 1)
        return NULL;
    for (int s = 0; s < n; s++)
        bytes[s] = pipe->result.devices[s].peak_bytes;
    return bytes;
}

/* What all plans that are looked at share. */
struct pricing {
    const struct stage_model *m;
    const struct plan_instance *inst;
    struct stage_oracle *oracle;
    struct stage_memo *memo;
    bool select;
    const struct plan_answer *light;   /* as in struct stage_candidates */
    const struct stage_replan *replan; /* likewise */
    int64_t n_priced;                  /* operators, of all plans */
};

/* Of each stage those operators are recomputed that save most memory per second. */
static int select_recomputed(struct ap_arena *arena, struct ap_arena *scratch,
                             const struct pricing *x, struct ap_stages *read,
                             struct ap_stages *stages, struct ap_pipeline_price *pipe,
                             struct ap_err *err)
{
    const struct stage_model *m = x->m;

    if (ap_pipeline_price(
            scratch,
            &(struct ap_staged_graph){&m->graph, &m->nests, &m->blocks, &m->cluster},
            read, pipe, err) ||
        recompute_select_stages(
            scratch,
            &(struct ap_staged_graph){&m->graph, &m->nests, &m->blocks, &m->cluster},
            x->inst->memory_bytes, read, pipe, err))
        return -1;
    for (int s = 0; s < stages->n; s++) {
        const struct ap_stage *from = &read->stage[s];
        struct ap_stage *to = &stages->stage[s];
        to->recompute = from->recompute;
        to->n_recomputed = from->n_recomputed;
        to->recomputed =
            ap_arena_dup(arena, from->recomputed,
                         (size_t)from->n_recomputed * sizeof *from->recomputed);
    }
    return 0;
}

static int price_stages(struct ap_arena *arena, struct ap_arena *scratch,
                        struct pricing *x, const struct stage_detail *detail,
                        struct ap_stages *stages, struct ap_pipeline_price *pipe,
                        struct ap_err *err)
{
    const struct stage_model *m = x->m;
    struct ap_pipeline_cache known = {.micro =
                                          stage_memo_axis(x->memo, stages->microbatches)};
    struct stage_memo_plan plan;

    if (stage_memo_read(x->memo, scratch, detail, stages, &plan, err))
        return -1;
    known.stage = plan.priced;
    x->n_priced += plan.nodes + m->graph.n_nodes / KNOWN_SHARE;
    if (x->select)
        return select_recomputed(arena, scratch, x, &plan.read, stages, pipe, err);
    return ap_pipeline_compare(
        scratch, &(struct ap_staged_graph){&m->graph, &m->nests, &m->blocks, &m->cluster},
        &plan.read, &known, pipe, err);
}

/* Reads the section and prices it; what it says more than before goes to the arena. */
static int weigh(struct ap_arena *arena, struct pricing *x,
                 const struct stage_detail *detail, struct ap_stages *stages,
                 struct price *price, struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct ap_pipeline_price pipe;
    struct ap_err why = {0};

    if (price_stages(arena, &scratch, x, detail, stages, &pipe, &why)) {
        ap_arena_free(&scratch);
        return ap_err_set(err, "the shard command's plan: %s", why.msg);
    }
    *price = (struct price){stages->throughput ? ap_sim_batch_sec(&pipe.sim)
                                               : pipe.result.step_sec,
                            pipe.peak_bytes, list_peaks(arena, &pipe)};
    stages->objective_sec = price->step_sec;
    ap_arena_free(&scratch);
    return 0;
}

/* The plan's section and price; the shardings of *stages and its objective. */
static int make(struct ap_arena *arena, struct pricing *x,
                const struct plan_answer *answer, struct ap_stages *stages,
                struct price *price, struct ap_err *err)
{
    const struct plan_instance *inst = x->inst;
    struct stage_detail *detail = AP_NEW_N(arena, answer->n_stages, struct stage_detail);

    if (stage_oracle_plans(x->oracle, answer, detail, err))
        return -1;
    stages->n = answer->n_stages;
    stages->stage = AP_NEW_N(arena, stages->n, struct ap_stage);
    for (int s = 0; s < stages->n; s++) {
        struct ap_stage *to = &stages->stage[s];
        const struct plan_stage *from = &answer->stage[s];
        to->n_blocks = list_blocks(arena, from, inst->n_blocks, &to->blocks);
        to->hosts = detail[s].hosts;
        to->devices_per_host = detail[s].devices;
        to->recompute = from->point->recompute ? AP_RECOMPUTE_ALL : AP_RECOMPUTE_NONE;
        list_devices(arena, inst, answer, s, to);
        to->sharding_json = detail[s].sharding;
    }
    stages->schedule = answer->schedule;
    stages->chunks = answer->chunks > 1 ? answer->chunks : 1;
    stages->microbatches = answer->microbatches;
    stages->n_devices = ap_cluster_devices(&x->m->cluster);
    stages->stopped = answer->stopped;
    stages->objective_sec = answer->step_sec;
    return weigh(arena, x, detail, stages, price, err);
}

/*
 * How many plans are priced with their layouts, in operators: those of LEAST_PRICED plans
 * of the graph, or PRICED_NODES if that is more; TWIN_NODES for plans that do not seem
 * better than a priced one of their outline. They matter where the estimated sends
 * mislead (tests/stage.bats: slow links between hosts); of GPT-39B on 64 devices and BERT
 * with 256 layers on 32 the plan of least estimate is the best.
 */
#define LEAST_PRICED 4
#define PRICED_NODES 400000
#define TWIN_NODES   50000
/* A stage as it is written may be so many times quicker than its front: plans of one
 * stage are priced although their estimate is that much slower (tests/stage.bats). */
#define FRONT_SLACK 1.05
/* Where less is recomputed than planned with, at least that share of a step is left: a
 * forward less. */
#define LIGHT_SHARE 0.5

static bool fits(const struct plan_instance *inst, const struct price *p)
{
    return inst->memory_bytes == 0 || p->peak_bytes <= inst->memory_bytes;
}

/* Priced with their layouts, those that fit go first, then the quicker. */
static bool is_better(const struct plan_instance *inst, const struct price *a,
                      const struct price *b)
{
    if (fits(inst, a) != fits(inst, b))
        return fits(inst, a);
    return a->step_sec < b->step_sec;
}

/* The best plan so far, with what the others start from. */
struct best {
    const struct ap_stages blank;
    struct ap_arena own; /* that it lies in; the first one's is the caller's */
    struct price price;
    struct price missed; /* the quickest that does not fit; step_sec INFINITY: none */
    struct priced_plans priced; /* all plans that were priced */
    struct ap_arena priced_arena;
};

static void note_missed(const struct plan_instance *inst, const struct price *p,
                        struct best *best)
{
    if (!fits(inst, p) && p->step_sec < best->missed.step_sec)
        best->missed = (struct price){p->step_sec, p->peak_bytes, NULL};
}

static void note_priced(const struct plan_instance *inst, const struct plan_answer *plan,
                        const struct price *p, struct best *best)
{
    priced_plans_add(&best->priced_arena, &best->priced, plan, p->step_sec,
                     p->stage_bytes);
    note_missed(inst, p, best);
}

/* Another plan, which takes the place of the best one if it is better. */
static int price_plan(struct pricing *x, const struct plan_answer *other,
                      struct best *best, struct plan_answer *answer,
                      struct ap_stages *stages, struct ap_err *err)
{
    struct ap_stages its = best->blank;
    struct price price;
    struct plan_answer plan = *other;
    struct ap_arena own = {0};

    plan.stopped = answer->stopped;
    int rc = make(&own, x, &plan, &its, &price, err);
    if (rc == 0)
        note_priced(x->inst, other, &price, best);
    if (rc || !is_better(x->inst, &price, &best->price)) {
        ap_arena_free(&own);
        return rc;
    }
    ap_arena_free(&best->own);
    best->own = own;
    best->price = price;
    *stages = its;
    answer->n_stages = other->n_stages;
    answer->microbatches = other->microbatches;
    return 0;
}

struct candidate {
    const struct plan_answer *plan;
    bool reported;
    bool twin; /* one of its likes was priced, and it does not seem better */
    bool done; /* looked at, or it need not be */
};

/* By the planner's estimate. */
static int compare_estimates(const void *pa, const void *pb)
{
    const struct plan_answer *a = ((const struct candidate *)pa)->plan;
    const struct plan_answer *b = ((const struct candidate *)pb)->plan;
    if (a->step_sec != b->step_sec)
        return a->step_sec < b->step_sec ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* Operators that may still be priced; what rules found does not count. */
struct budget {
    int64_t others, twins;
};

/* Whether a candidate may be better than the best plan; estimate: seconds of its step. */
static bool is_promising(const struct pricing *x, struct candidate *c,
                         const struct budget *left, struct best *best, double *estimate)
{
    const struct plan_instance *inst = x->inst;
    const struct plan_answer *plan = c->plan;
    struct forecast f = priced_plans_forecast(&best->priced, inst, plan);
    const struct price seems = {f.step_sec, f.peak_bytes, NULL};
    double slack = plan->n_stages == 1 ? FRONT_SLACK : 1, most = INFINITY;
    double share = x->select && c->reported ? LIGHT_SHARE : 1;

    if (fits(inst, &best->price))
        most = slack * best->price.step_sec;
    *estimate = f.step_sec;
    c->done = f.same || share * plan->least_sec >= most || !fits(inst, &seems);
    if (c->done && !f.same)
        note_missed(inst, &seems, best);
    c->twin = (f.known && f.step_sec >= most) || plan->step_sec > most;
    if (!c->reported)
        c->done |= plan->step_sec > most || (c->twin ? left->twins : left->others) <= 0;
    return !c->done;
}

static int compare_batches(const void *pa, const void *pb)
{
    const struct plan_answer *a = ((const struct candidate *)pa)->plan;
    const struct plan_answer *b = ((const struct candidate *)pb)->plan;
    if (a->batch_sec != b->batch_sec)
        return a->batch_sec < b->batch_sec ? -1 : 1;
    return a < b ? -1 : a > b;
}

/*
 * Of an inference by the time between batches, of which steps say little: all rules'
 * plans whose estimate is below the best price, and LEAST_PRICED others.
 */
static int price_batches(struct pricing *x, struct candidate *list, int n,
                         struct best *best, struct plan_answer *answer,
                         struct ap_stages *stages, struct ap_err *err)
{
    int left = LEAST_PRICED, rc = 0;

    qsort(list, (size_t)n, sizeof *list, compare_batches);
    for (int i = 0; i < n && rc == 0; i++) {
        bool fit = fits(x->inst, &best->price);
        if (fit && list[i].plan->batch_sec >= best->price.step_sec)
            break;
        if (list[i].reported || left-- > 0)
            rc = price_plan(x, list[i].plan, best, answer, stages, err);
    }
    return rc;
}

/* Plans that may be better than what is found, the most promising first. */
static int price_all(struct pricing *x, const struct plan_answer *first,
                     struct best *best, struct plan_answer *answer,
                     struct ap_stages *stages, struct ap_err *err)
{
    int n = first->n_others + first->n_rivals + first->n_reported, rc = 0, next = 0;
    struct budget left = {LEAST_PRICED * (int64_t)x->m->graph.n_nodes, TWIN_NODES};
    struct candidate *list;

    if (n == 0)
        return 0;
    if (left.others < PRICED_NODES)
        left.others = PRICED_NODES;
    list = ap_xrealloc(NULL, (size_t)n * sizeof *list);
    for (int i = 0; i < n; i++)
        list[i] = (struct candidate){.plan = &first->others[i],
                                     .reported = i >= first->n_others + first->n_rivals};
    if (best->blank.throughput) {
        rc = price_batches(x, list, n, best, answer, stages, err);
        next = -1;
    }
    qsort(list, (size_t)n, sizeof *list, compare_estimates);
    while (rc == 0 && next >= 0) {
        double least = INFINITY, estimate;
        next = -1;
        for (int i = 0; i < n; i++)
            if (!list[i].done && is_promising(x, &list[i], &left, best, &estimate) &&
                estimate < least) {
                least = estimate;
                next = i;
            }
        if (next < 0)
            break;
        const int64_t before = x->n_priced;
        list[next].done = true;
        rc = price_plan(x, list[next].plan, best, answer, stages, err);
        if (list[next].twin)
            left.twins -= x->n_priced - before;
        else if (!list[next].reported)
            left.others -= x->n_priced - before;
    }
    free(list);
    return rc;
}

#define REPLANS     4
#define LEAST_SHARE 64   /* of the memory is planned without: few bytes change nothing */
#define MISSED      0.99 /* what is this much quicker is missed */

/*
 * Plans for less memory. Values that wait for their stage may make all quick plans too
 * large: the planner runs again with as much less memory as the quickest of these lacks,
 * and twice as much less if that is not enough, or if a plan that fits is slower, as
 * written, than the planner's estimate.
 */
static int price_lean(struct ap_arena *arena, struct pricing *x, struct best *best,
                      struct plan_answer *answer, struct ap_stages *stages,
                      struct ap_err *err)
{
    const struct plan_instance *inst = x->inst;
    double estimate = INFINITY; /* by the planner, of the leaner plans */
    int64_t less = inst->memory_bytes / LEAST_SHARE / 2;

    for (int i = 0; i < REPLANS; i++) {
        struct plan_answer lean = {.replicas = 1, .chunks = 1};
        struct plan_instance its = *inst;
        struct ap_err why = {0};

        if (fits(inst, &best->price) &&
            fmin(best->missed.step_sec, estimate) > MISSED * best->price.step_sec)
            return 0;
        int64_t lacks = best->missed.peak_bytes - inst->memory_bytes;
        less = lacks > 2 * less ? lacks : 2 * less;
        its.memory_bytes -= less;
        if (its.memory_bytes <= 0)
            return 0;
        int rc = x->replan->run(arena, &its, x->replan->params, &lean, &why);
        if (rc < 0)
            return ap_err_set(err, "%s", why.msg);
        if (rc > 0 || plan_judge(arena, &its, &lean, NULL, &why))
            return 0;
        estimate = best->blank.throughput ? lean.batch_sec : lean.step_sec;
        best->missed.step_sec = INFINITY;
        if (price_plan(x, &lean, best, answer, stages, err) ||
            price_all(x, &lean, best, answer, stages, err))
            return -1;
    }
    return 0;
}

/*
 * Where the best plan's price is above every estimate of a plan that other planners
 * reported, the planner runs again and reports plans of any step.
 */
static int price_reported(struct ap_arena *arena, struct pricing *x,
                          const struct plan_answer *first, struct best *best,
                          struct plan_answer *answer, struct ap_stages *stages,
                          struct ap_err *err)
{
    struct plan_params params = *x->replan->params;
    struct plan_answer more = {.replicas = 1, .chunks = 1};
    struct ap_err why = {0};
    const double estimate = best->blank.throughput ? first->batch_sec : first->step_sec;

    if (best->price.step_sec <= UNDERESTIMATE * estimate)
        return 0;
    params.reported_sec = INFINITY;
    int rc = x->replan->run(arena, x->inst, &params, &more, &why);
    if (rc < 0)
        return ap_err_set(err, "%s", why.msg);
    return rc > 0 ? 0 : price_all(x, &more, best, answer, stages, err);
}

/* The best of the plans; -1: the shard command broke. */
static int find_best(struct ap_arena *arena, struct pricing *x, struct best *best,
                     struct plan_answer *answer, struct ap_stages *stages,
                     struct ap_err *err)
{
    const struct plan_answer first = *answer;

    if (make(arena, x, &first, stages, &best->price, err))
        return -1;
    note_priced(x->inst, &first, &best->price, best);
    if (price_all(x, &first, best, answer, stages, err) ||
        (x->replan && (price_lean(arena, x, best, answer, stages, err) ||
                       price_reported(arena, x, &first, best, answer, stages, err))))
        return -1;
    for (int i = 0; x->light && i < x->light->n_others; i++)
        if (x->light->others[i].step_sec < stages->objective_sec &&
            price_plan(x, &x->light->others[i], best, answer, stages, err))
            return -1;
    return 0;
}

int stage_result_make(struct ap_arena *arena, const struct stage_candidates *of,
                      struct plan_answer *answer, struct ap_stages *stages,
                      struct stage_result *out, struct ap_err *err)
{
    const struct plan_answer first = *answer;
    struct best best = {.blank = *stages, .missed = {.step_sec = INFINITY}};
    struct pricing x = {.m = of->model,
                        .inst = of->inst,
                        .oracle = of->oracle,
                        .memo = stage_memo_start(of->model),
                        .select = of->light != NULL,
                        .light = of->light,
                        .replan = of->replan};

    if (find_best(arena, &x, &best, answer, stages, err)) {
        stage_memo_stop(x.memo);
        return -1;
    }
    stages->lower_bound_sec =
        fmin(of->light ? of->light->bound : first.bound, stages->objective_sec);
    *out = (struct stage_result){.objective_sec = stages->objective_sec,
                                 .bound_sec = stages->lower_bound_sec,
                                 .peak_bytes = best.price.peak_bytes};
    ap_stages_to_json(stages, &out->json);
    out->found = history(arena, &first, out);
    stage_memo_stop(x.memo);
    ap_arena_free(&best.own);
    ap_arena_free(&best.priced_arena);
    stages->stage = NULL;
    return 0;
}
