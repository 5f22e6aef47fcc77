/*
 * The section "stages" of a planner's answer. It is written, read back as ap-cost reads
 * it (which checks blocks, devices and shardings against each other), and priced by the
 * same code as ap-cost's, so that the objective is the step time that ap-cost reports.
 */
#include "result.h"

#include "pipeline/pipeline_program.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "oracle/oracle.h"
#include "line/line.h"
#include "planners/recompute_select.h"

/* A bound so much above the plan's price is of a shard command that does not answer in
 * seconds; sums over blocks differ by less. */
#define OTHER_UNITS 0.02

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

const char *stage_result_words(struct ap_arena *arena, const struct stage_model *m,
                               const struct ap_buf *section, struct stage_simplicity *is)
{
    const struct ap_staged_graph of = {&m->graph, &m->nests, &m->blocks, &m->cluster};
    struct ap_arena scratch = {0};
    struct ap_stages read = {0};
    struct ap_buf words = {0}, layers = {0};
    struct ap_plan_degrees *each;
    struct ap_plan_line says;
    struct ap_err err = {0};
    const char *text = NULL;

    if (ap_stages_from_text(&scratch, section->data, section->len, &of, &read, &err) ==
        0) {
        ap_line_of_stages(&scratch, &of, &read, &says, &each);
        ap_plan_line_words(&says, each, &read, &words);
        if (read.n == 1)
            ap_degrees_print_layers(each, &layers);
        text = ap_arena_strdup(arena, words.data);
        *is = stage_simplicity_of(&says.line, says.stages_differ || layers.len > 0);
    }
    ap_buf_free(&words);
    ap_buf_free(&layers);
    ap_arena_free(&scratch);
    return text;
}

/* The plan of the least measure, where another one is quicker. */
static void put_own(const struct plan_answer *a, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"measured\":");
    ap_json_num(out, a->objective);
    ap_put_int(out, "microbatches", a->microbatches);
    ap_put_key(out, "stages");
    for (int s = 0; s < a->n_stages; s++)
        ap_buf_printf(out, "%s[%d,%d,%d]", s > 0 ? "," : "[", a->stage[s].lo,
                      a->stage[s].hi, a->stage[s].hosts * a->stage[s].devices);
    ap_buf_puts(out, "]}");
}

static const char *history(struct ap_arena *arena, const struct stage_model *m,
                           const struct plan_answer *answer, const struct stage_result *r)
{
    struct ap_buf out = {0};
    struct stage_simplicity is;
    const char *words = stage_result_words(arena, m, &r->json, &is);
    if (words)
        ap_put_str(&out, "words", words);
    ap_put_key(&out, "objective_sec");
    ap_json_num(&out, r->objective_sec);
    ap_put_key(&out, "lower_bound_sec");
    ap_json_num(&out, r->bound_sec);
    if (answer->measure) {
        ap_put_str(&out, "measure", answer->measure);
        ap_put_key(&out, "measured");
        ap_json_num(&out, answer->objective);
    }
    if (answer->own && answer->own->n_stages > 0 && !plan_same(answer->own, answer)) {
        ap_put_key(&out, "own");
        put_own(answer->own, &out);
    }
    const char *text = ap_arena_strdup(arena, out.data);
    ap_buf_free(&out);
    return text;
}

/* What is compared of plans; all else of their prices is large, and soon gone. */
struct price {
    double step_sec; /* or what else the plan is to keep low */
    int64_t peak_bytes;
};

/* What all plans that are looked at share. */
struct pricing {
    const struct stage_model *m;
    const struct plan_instance *inst;
    struct stage_oracle *oracle;
    bool select;
    const struct plan_answer *light;   /* as in struct stage_candidates */
    const struct stage_replan *replan; /* likewise */
    const struct stage_replan *given;  /* likewise */
    struct ap_work *work;              /* likewise */
    double bound_sec;                  /* of the first plan */
};

/* Memory of each device of the price (arena), each so many bytes less. */
static const int64_t *list_memory(struct ap_arena *arena, const struct pricing *x,
                                  const struct ap_stages *stages, int64_t less)
{
    int64_t *bytes = AP_NEW_N(arena, stages->n, int64_t);

    for (int s = 0; s < stages->n; s++) {
        int kind = ap_cluster_kind_of(&x->m->cluster, stages->stage[s].devices[0]);
        bytes[s] = plan_memory(x->inst, x->inst->n_kinds > 0 ? kind : 0);
        bytes[s] = bytes[s] > less ? bytes[s] - less : bytes[s];
    }
    return bytes;
}

/* As plan_whole_bytes, of the fullest device. */
static int64_t fullest(const struct stage_model *m, const struct plan_instance *inst,
                       const struct ap_stages *stages,
                       const struct ap_pipeline_price *pipe)
{
    int64_t most = 0;

    for (int d = 0; d < pipe->result.n_devices; d++) {
        int kind = ap_cluster_kind_of(&m->cluster, stages->stage[d].devices[0]);
        int64_t bytes = pipe->result.devices[d].peak_bytes;
        if (inst->n_kinds > 0)
            bytes = plan_whole_bytes(inst, kind, bytes);
        most = bytes > most ? bytes : most;
    }
    return most;
}

int64_t stage_result_peak(const struct stage_model *m, const struct plan_instance *inst,
                          const struct ap_stages *read, int64_t limit,
                          struct ap_pipeline_price *pipe)
{
    const int64_t peak = fullest(m, inst, read, pipe);
    const double memory = (double)inst->memory_bytes;
    const struct ap_staged_graph of = {&m->graph, &m->nests, &m->blocks, &m->cluster};

    if ((double)peak < STAGE_ARENA_SHARE * memory ||
        STAGE_ARENA_SHARE * (double)peak > memory ||
        ap_pipeline_measure(&of, read, limit, pipe))
        return peak;
    return fullest(m, inst, read, pipe);
}

/* Selections of one plan: programs of those that fill a device may need more than their
 * price. One that fills, one with as much less as the program lacked, one that fills
 * less. */
#define MOST_SELECTIONS 3

/* Of each stage those operators are recomputed that save most memory per second; with
 * less of it where the program then needs more than a device has, and at last with equal
 * parts of what is left, which fill a device less. */
static int select_recomputed(struct ap_arena *arena, struct ap_arena *scratch,
                             const struct pricing *x, struct ap_stages *read,
                             struct ap_stages *stages, struct price *price,
                             struct ap_err *err)
{
    const struct stage_model *m = x->m;
    const struct ap_staged_graph of = {&m->graph, &m->nests, &m->blocks, &m->cluster};
    const size_t size = (size_t)read->n * sizeof *read->stage;
    const struct ap_stage *given = ap_arena_dup(scratch, read->stage, size);
    const int64_t limit = x->inst->memory_bytes;
    struct ap_pipeline_price all, pipe;
    int64_t less = 0;

    if (ap_pipeline_price(scratch, &of, read, &all, err))
        return -1;
    for (int i = 0; i < MOST_SELECTIONS; i++) {
        const bool last = i + 1 == MOST_SELECTIONS;
        const int64_t *memory = list_memory(scratch, x, read, last ? 0 : less);
        pipe = all;
        memcpy(read->stage, given, size);
        if (recompute_select_stages(scratch, &of, memory, !last, read, &pipe, err))
            return -1;
        *price = (struct price){stages->throughput ? ap_sim_batch_sec(&pipe.sim)
                                                   : pipe.result.step_sec,
                                stage_result_peak(m, x->inst, read, 0, &pipe)};
        if (limit == 0 || price->peak_bytes <= limit)
            break;
        less += price->peak_bytes - limit;
    }
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

/* The plan as it is read back, and its shardings as they are written: those that only
 * name a named plan are written out. */
static int read_back(struct ap_arena *arena, struct ap_arena *scratch,
                     const struct stage_model *m, const struct stage_detail *detail,
                     struct ap_stages *stages, struct ap_stages *read, struct ap_err *err)
{
    const struct ap_staged_graph of = {&m->graph, NULL, &m->blocks, &m->cluster};
    struct ap_buf json = {0};

    for (int s = 0; s < stages->n; s++)
        stages->stage[s].sharding_json = detail[s].sharding;
    ap_stages_to_json(stages, &json);
    int rc = ap_stages_from_text(scratch, json.data, json.len, &of, read, err);
    ap_buf_free(&json);
    for (int s = 0; s < stages->n && rc == 0; s++)
        if (detail[s].names_only) {
            rc = ap_stage_put_sharding(arena, &m->cluster, &read->stage[s], err);
            stages->stage[s].sharding_json = read->stage[s].sharding_json;
        }
    return rc;
}

static int price_stages(struct ap_arena *arena, struct ap_arena *scratch,
                        const struct pricing *x, const struct stage_detail *detail,
                        struct ap_stages *stages, struct price *price, struct ap_err *err)
{
    const struct stage_model *m = x->m;
    struct ap_stages read = {0};
    struct ap_pipeline_price pipe;

    if (read_back(arena, scratch, m, detail, stages, &read, err))
        return -1;
    if (x->select)
        return select_recomputed(arena, scratch, x, &read, stages, price, err);
    int rc = ap_pipeline_compare(
        scratch, &(struct ap_staged_graph){&m->graph, &m->nests, &m->blocks, &m->cluster},
        &read, &m->micro, &pipe, err);
    if (rc == 0)
        *price = (struct price){stages->throughput ? ap_sim_batch_sec(&pipe.sim)
                                                   : pipe.result.step_sec,
                                stage_result_peak(x->m, x->inst, &read, 0, &pipe)};
    return rc;
}

/* Reads the section and prices it; what it says more than before goes to the arena. */
static int weigh(struct ap_arena *arena, const struct pricing *x,
                 const struct stage_detail *detail, struct ap_stages *stages,
                 struct price *price, struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct ap_err why = {0};

    if (price_stages(arena, &scratch, x, detail, stages, price, &why)) {
        ap_arena_free(&scratch);
        return ap_err_set(err, "the shard command's plan: %s", why.msg);
    }
    stages->objective_sec = price->step_sec;
    ap_arena_free(&scratch);
    return 0;
}

/* The plan's section and price; the shardings of *stages and its objective. */
static int make(struct ap_arena *arena, const struct pricing *x,
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

/* Plans of the planner that are priced with their layouts, interleaved ones and others:
 * more where the estimated sends mislead (tests/stage.bats: slow links between hosts;
 * tests/plans.bats: two towers, 3.8 % with 4), and memory does, which interleaved plans
 * as written may need more of. What people type does not count: there is little of it. */
#define MOST_PRICED 8
/* A stage as it is written may be so many times quicker than its front: plans of one
 * stage are priced although their estimate is that much slower (tests/stage.bats). */
#define FRONT_SLACK 1.05
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
    int n_priced, cap_priced;
    struct priced {
        struct plan_answer plan;
        bool fits;
    } * priced; /* malloc: all plans that were priced */
};

static void note_priced(const struct plan_instance *inst, const struct plan_answer *plan,
                        const struct price *p, struct best *best)
{
    AP_ROOM(best->priced, best->n_priced, best->cap_priced);
    best->priced[best->n_priced++] = (struct priced){*plan, fits(inst, p)};
    if (!fits(inst, p) && p->step_sec < best->missed.step_sec)
        best->missed = *p;
}

/* Another plan, which takes the place of the best one if it is better. */
static int price_plan(const struct pricing *x, const struct plan_answer *other,
                      struct best *best, struct plan_answer *answer,
                      struct ap_stages *stages, struct ap_err *err)
{
    struct ap_stages its = best->blank;
    struct price price;
    struct plan_answer plan = *other;
    struct ap_arena own = {0};

    plan.stopped = answer->stopped;
    ap_work_tell(x->work, "plans with their layouts", best->price.step_sec, x->bound_sec);
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
    double estimate; /* of what the plan is to keep low */
};

static int compare_estimates(const void *pa, const void *pb)
{
    const struct candidate *a = pa, *b = pb;
    if (a->estimate != b->estimate)
        return a->estimate < b->estimate ? -1 : 1;
    return a->plan < b->plan ? -1 : a->plan > b->plan;
}

static double estimate_of(const struct best *best, const struct plan_answer *plan)
{
    return best->blank.throughput ? plan->batch_sec : plan->step_sec;
}

/* Whether a priced plan that fits has the same blocks on the same devices in the same
 * order, and a lower estimate. Layouts add the same to both, to about 1e-6: the other one
 * is no better. */
static bool has_quicker_twin(const struct candidate *c, const struct best *best)
{
    for (int i = 0; i < best->n_priced; i++)
        if (best->priced[i].fits &&
            estimate_of(best, &best->priced[i].plan) <= c->estimate &&
            plan_same_outline(&best->priced[i].plan, c->plan))
            return true;
    return false;
}

/* Whether a candidate may be better than the best plan. */
static bool is_promising(const struct pricing *x, const struct candidate *c,
                         const struct best *best)
{
    const bool fit = fits(x->inst, &best->price);
    const double slack = c->plan->n_stages == 1 ? FRONT_SLACK : 1;

    for (int i = 0; i < best->n_priced; i++)
        if (plan_same(&best->priced[i].plan, c->plan))
            return false;
    if (fit && !x->select && !(x->replan && x->replan->one_outline) &&
        has_quicker_twin(c, best))
        return false;
    return !fit || c->estimate < slack * best->price.step_sec;
}

/* Plans that may be better than what is found, by the planner's estimate; alpa's all. */
static int price_all(const struct pricing *x, const struct plan_answer *first,
                     struct best *best, struct plan_answer *answer,
                     struct ap_stages *stages, struct ap_err *err)
{
    int n = first->n_others, rc = 0;
    int left[2] = {MOST_PRICED, MOST_PRICED}; /* interleaved ones */
    struct candidate *list = ap_xrealloc(NULL, (size_t)n * sizeof *list);

    for (int i = 0; i < n; i++)
        list[i] = (struct candidate){.plan = &first->others[i],
                                     .estimate = estimate_of(best, &first->others[i])};
    qsort(list, (size_t)n, sizeof *list, compare_estimates);
    for (int i = 0; i < n && rc == 0; i++)
        if (is_promising(x, &list[i], best) &&
            (first->own || list[i].plan->typed || left[list[i].plan->chunks > 1]-- > 0))
            rc = price_plan(x, list[i].plan, best, answer, stages, err);
    free(list);
    return rc;
}

#define REPLANS     5
#define LEAST_SHARE 64   /* of the memory is planned without: few bytes change nothing */
#define MISSED      0.99 /* what is this much quicker is missed */

/*
 * Plans for less memory. Values that wait for their stage may make all quick plans too
 * large: the planner runs again with as much less memory as the quickest of these lacks.
 * If that is not enough, or if a plan that fits is slower, as written, than the planner's
 * estimate, then with twice as much less; or, where the second attempt lacks little, with
 * twice that less than before. Once the quickest ones fit, too much may have been given
 * up: at last half way back to where they did not.
 */
static int price_lean(struct ap_arena *arena, const struct pricing *x, struct best *best,
                      struct plan_answer *answer, struct ap_stages *stages,
                      struct ap_err *err)
{
    const struct plan_instance *inst = x->inst;
    double estimate = INFINITY; /* by the planner, of the leaner plans */
    double quickest = best->missed.step_sec;
    int64_t less = inst->memory_bytes / LEAST_SHARE / 2, little = 0;
    bool is_back = false;

    for (int i = 0; i < REPLANS; i++) {
        struct plan_answer lean = {.replicas = 1, .chunks = 1};
        struct plan_instance its = *inst;
        struct ap_err why = {0};

        const double missed = MISSED * best->price.step_sec;
        if (is_back)
            return 0;
        if (!fits(inst, &best->price) ||
            fmin(best->missed.step_sec, estimate) <= missed) {
            quickest = best->missed.step_sec;
            little = i > 0 ? less : 0;
        } else if (quickest <= missed) {
            is_back = true;
        } else {
            return 0;
        }
        int64_t lacks = best->missed.peak_bytes - inst->memory_bytes;
        if (is_back)
            less = little + (less - little) / 2;
        else if (i == 1 && isfinite(best->missed.step_sec) && lacks < less / 2)
            less += 2 * lacks;
        else
            less = lacks > 2 * less ? lacks : 2 * less;
        its.memory_bytes -= less;
        if (its.memory_bytes <= 0)
            return 0;
        int rc = x->replan->run(arena, &its, x->replan->params, &lean, &why);
        if (rc < 0)
            return ap_err_set(err, "%s", why.msg);
        if (rc > 0 || plan_judge(arena, &its, &lean, &why))
            return 0;
        estimate = estimate_of(best, &lean);
        best->missed.step_sec = INFINITY;
        if (price_plan(x, &lean, best, answer, stages, err) ||
            price_all(x, &lean, best, answer, stages, err))
            return -1;
    }
    return 0;
}

/* The plan where the search started, however slow it seems, and leaner ones of its stages
 * where it does not fit as it is written. */
static int price_given(struct ap_arena *arena, const struct pricing *x, struct best *best,
                       struct plan_answer *answer, struct ap_stages *stages,
                       struct ap_err *err)
{
    struct plan_answer plan = {.replicas = 1, .chunks = 1};
    struct pricing its = *x;
    struct ap_err why = {0};

    int rc = x->given->run(arena, x->inst, x->given->params, &plan, &why);
    if (rc < 0)
        return ap_err_set(err, "%s", why.msg);
    if (rc > 0) {
        ap_warn("--start: %s", why.msg);
        return 0;
    }
    best->missed.step_sec = INFINITY;
    its.replan = x->given;
    if (price_plan(&its, &plan, best, answer, stages, err) ||
        price_all(&its, &plan, best, answer, stages, err))
        return -1;
    return x->select ? 0 : price_lean(arena, &its, best, answer, stages, err);
}

/* The best of the plans; -1: the shard command broke. */
static int find_best(struct ap_arena *arena, const struct pricing *x, struct best *best,
                     struct plan_answer *answer, struct ap_stages *stages,
                     struct ap_err *err)
{
    const struct plan_answer first = *answer;

    if (make(arena, x, &first, stages, &best->price, err))
        return -1;
    note_priced(x->inst, &first, &best->price, best);
    if (price_all(x, &first, best, answer, stages, err) ||
        (x->replan && price_lean(arena, x, best, answer, stages, err)) ||
        (x->given && price_given(arena, x, best, answer, stages, err)))
        return -1;
    for (int i = 0; x->light && i < x->light->n_others; i++)
        if (x->light->others[i].step_sec < stages->objective_sec &&
            price_plan(x, &x->light->others[i], best, answer, stages, err))
            return -1;
    return 0;
}

/* ---- simpler plans ---- */

/* Of the planner's plans that may be below the limit the quickest, by its estimate, of
 * those with the fewest stages, but at least so many; NULL: there is none. */
static const struct plan_answer *fewest_stages(const struct plan_answer *first, int least,
                                               double limit)
{
    const struct plan_answer *found = NULL;

    for (int i = 0; i < first->n_others; i++) {
        const struct plan_answer *p = &first->others[i];
        const double slack = p->n_stages == 1 ? FRONT_SLACK : 1;
        if (p->n_stages >= least && p->step_sec <= slack * limit &&
            (!found || p->n_stages < found->n_stages ||
             (p->n_stages == found->n_stages && p->step_sec < found->step_sec)))
            found = p;
    }
    return found;
}

/* The simplest of the planner's plans: best->simpler, where it is simpler than the best
 * one, whose first members are there. */
static int find_simpler(struct ap_arena *arena, const struct pricing *x,
                        const struct plan_answer *first, const struct ap_stages *blank,
                        double simple, struct stage_result *best, struct ap_err *err)
{
    const double limit = (1 + simple) * best->objective_sec;
    struct plan_answer plan = {.n_stages = 0};
    struct stage_simplicity least;

    if (!stage_result_words(arena, x->m, &best->json, &least))
        return 0;
    for (int i = 0; i < MOST_PRICED; i++) {
        const struct plan_answer *next = fewest_stages(first, plan.n_stages + 1, limit);
        struct ap_stages its = *blank;
        struct price price;
        struct stage_result result = {.bound_sec = best->bound_sec};
        struct stage_simpler *to = AP_NEW(arena, struct stage_simpler);
        if (!next)
            break;
        plan = *next;
        plan.stopped = first->stopped;
        if (make(arena, x, &plan, &its, &price, err))
            return -1;
        if (!fits(x->inst, &price) || price.step_sec > limit)
            continue;
        its.lower_bound_sec = best->bound_sec;
        result.objective_sec = its.objective_sec;
        ap_stages_to_json(&its, &result.json);
        if (stage_result_words(arena, x->m, &result.json, &to->is) &&
            stage_simplicity_compare(&to->is, &least) < 0) {
            least = to->is;
            to->json = ap_arena_strdup(arena, result.json.data);
            to->step_sec = its.objective_sec;
            to->peak_bytes = price.peak_bytes;
            to->found = history(arena, x->m, &plan, &result);
            to->n_stages = its.n;
            to->microbatches = its.microbatches;
            best->simpler = to;
        }
        ap_buf_free(&result.json);
    }
    return 0;
}

int stage_result_make(struct ap_arena *arena, const struct stage_candidates *of,
                      struct plan_answer *answer, struct ap_stages *stages,
                      struct stage_result *out, struct ap_err *err)
{
    const struct plan_answer first = *answer;
    struct best best = {.blank = *stages, .missed = {.step_sec = INFINITY}};
    const struct pricing x = {.m = of->model,
                              .inst = of->inst,
                              .oracle = of->oracle,
                              .select = of->light != NULL,
                              .light = of->light,
                              .replan = of->replan,
                              .given = of->given,
                              .work = of->work,
                              .bound_sec = first.bound};

    if (find_best(arena, &x, &best, answer, stages, err))
        return -1;
    const double bound = of->light ? of->light->bound : first.bound;
    const bool other_units = bound > stages->objective_sec * (1 + OTHER_UNITS);
    stages->lower_bound_sec = other_units ? 0 : fmin(bound, stages->objective_sec);
    *out = (struct stage_result){.objective_sec = stages->objective_sec,
                                 .bound_sec = stages->lower_bound_sec,
                                 .in_other_units = other_units,
                                 .peak_bytes = best.price.peak_bytes};
    ap_stages_to_json(stages, &out->json);
    out->found = history(arena, of->model, &first, out);
    int rc = of->simple > 0
                 ? find_simpler(arena, &x, &first, &best.blank, of->simple, out, err)
                 : 0;
    ap_arena_free(&best.own);
    free(best.priced);
    stages->stage = NULL;
    return rc;
}

int stage_result_check(const struct stage_model *m, const struct ap_buf *section,
                       struct ap_err *err)
{
    const struct ap_staged_graph of = {&m->graph, &m->nests, &m->blocks, &m->cluster};
    struct ap_arena scratch = {0};
    struct ap_stages read = {0};
    int rc = 0;

    if (m->blocks.n_moved > 0 &&
        !ap_stages_from_text(&scratch, section->data, section->len, &of, &read,
                             &(struct ap_err){0}))
        rc = ap_stages_check_waits(&of, &read, err);
    ap_arena_free(&scratch);
    return rc;
}
