/*
 * The section "stages" of a planner's answer. It is written, read back as ap-cost reads
 * it (which checks blocks, devices and shardings against each other), and priced by the
 * same code as ap-cost's, so that the objective is the step time that ap-cost reports.
 */
#include "result.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "select.h"

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

/* The section as it stands in `stages`, read again. */
static int read_back(struct ap_arena *arena, const struct stage_model *m,
                     const struct ap_stages *stages, struct ap_stages *out,
                     struct ap_err *err)
{
    struct ap_buf json = {0};

    ap_stages_to_json(arena, stages, &json);
    int rc = ap_stages_from_text(arena, json.data, json.len, &m->graph, &m->blocks,
                                 &m->cluster, NULL, out, err);
    ap_buf_free(&json);
    return rc;
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

/* Shardings that only name a baseline are written out. */
static int write_out(struct ap_arena *arena, const struct stage_model *m,
                     const struct stage_detail *detail, struct ap_stages *read,
                     struct ap_stages *stages, struct ap_err *err)
{
    for (int s = 0; s < stages->n; s++) {
        if (!detail[s].names_only)
            continue;
        if (ap_stage_put_sharding(arena, &m->cluster, &read->stage[s], err))
            return -1;
        stages->stage[s].sharding_json = read->stage[s].sharding_json;
    }
    return 0;
}

/* What is compared of plans; all else of their prices is large, and soon gone. */
struct price {
    double step_sec;
    int64_t peak_bytes;
};

/* Reads the section and prices it; what it says more than before goes to the arena. */
static int weigh(struct ap_arena *arena, const struct stage_model *m,
                 const struct plan_instance *inst, const struct stage_detail *detail,
                 bool select, struct ap_stages *stages, struct price *price,
                 struct ap_err *err)
{
    struct ap_arena scratch = {0};
    struct ap_stages read;
    struct ap_pipeline pipe;
    struct ap_err why = {0};

    if (read_back(&scratch, m, stages, &read, &why) ||
        write_out(arena, m, detail, &read, stages, &why) ||
        ap_pipeline_price(&scratch, &m->graph, &m->nests, &m->blocks, &m->cluster, &read,
                          &pipe, &why) ||
        (select &&
         ap_pipeline_select(&scratch, &m->graph, &m->nests, &m->blocks, &m->cluster,
                            inst->memory_bytes, &read, &pipe, &why))) {
        ap_arena_free(&scratch);
        return ap_err_set(err, "the shard command's plan: %s", why.msg);
    }
    for (int s = 0; s < stages->n; s++) {
        const struct ap_stage *from = &read.stage[s];
        struct ap_stage *to = &stages->stage[s];
        to->recompute = from->recompute;
        to->n_remade = from->n_remade;
        to->remade = ap_arena_dup(arena, from->remade,
                                  (size_t)from->n_remade * sizeof *from->remade);
    }
    *price = (struct price){pipe.result.step_sec, pipe.peak_bytes};
    stages->objective_sec = price->step_sec;
    ap_arena_free(&scratch);
    return 0;
}

/* The plan's section and price; the shardings of *stages and its objective. */
static int make(struct ap_arena *arena, const struct stage_model *m,
                const struct plan_instance *inst, struct stage_oracle *oracle,
                bool select, const struct plan_answer *answer, struct ap_stages *stages,
                struct price *price, struct ap_err *err)
{
    struct stage_detail *detail = AP_NEW_N(arena, answer->n_stages, struct stage_detail);

    if (stage_oracle_plans(oracle, answer, detail, err))
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
    stages->n_devices = ap_cluster_devices(&m->cluster);
    stages->stopped = answer->stopped;
    stages->objective_sec = answer->step_sec;
    return weigh(arena, m, inst, detail, select, stages, price, err);
}

#define MOST_LOOKS  64
#define LEAST_LOOKS 7
#define LOOK_NODES  400000 /* between the two: so many operators are priced */
/* A stage as it is written may be so much quicker than on its front: what rules found,
   and plans of one stage, are priced although they seem that much slower. */
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
    const bool select;
    struct ap_arena own; /* that it lies in; the first one's is the caller's */
    struct price price;
    struct price missed; /* the quickest that does not fit; step_sec INFINITY: none */
};

static void note_missed(const struct plan_instance *inst, const struct price *p,
                        struct best *best)
{
    if (!fits(inst, p) && p->step_sec < best->missed.step_sec)
        best->missed = *p;
}

/* Another plan, which takes the place of the best one if it is better. */
static int look_at(const struct stage_model *m, const struct plan_instance *inst,
                   struct stage_oracle *oracle, const struct plan_answer *other,
                   struct best *best, struct plan_answer *answer,
                   struct ap_stages *stages, struct ap_err *err)
{
    struct ap_stages its = best->blank;
    struct price price;
    struct plan_answer plan = *other;
    struct ap_arena own = {0};

    plan.stopped = answer->stopped;
    int rc = make(&own, m, inst, oracle, best->select, &plan, &its, &price, err);
    if (rc == 0)
        note_missed(inst, &price, best);
    if (rc || !is_better(inst, &price, &best->price)) {
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
    bool heard;
};

/* By what the planner's judge says. */
static int compare_said(const void *pa, const void *pb)
{
    const struct plan_answer *a = ((const struct candidate *)pa)->plan;
    const struct plan_answer *b = ((const struct candidate *)pb)->plan;
    if (a->step_sec != b->step_sec)
        return a->step_sec < b->step_sec ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* Plans that may be better than what is found, the most promising first. */
static int look_at_all(const struct stage_model *m, const struct plan_instance *inst,
                       struct stage_oracle *oracle, const struct plan_answer *first,
                       struct best *best, struct plan_answer *answer,
                       struct ap_stages *stages, struct ap_err *err)
{
    int n = first->n_others + first->n_rivals + first->n_heard, rc = 0;
    int looks = LOOK_NODES / (m->graph.n_nodes + 1);
    struct candidate *list;

    if (n == 0 || inst->inference) /* of batches in a row the step says little */
        return 0;
    if (looks > MOST_LOOKS)
        looks = MOST_LOOKS;
    else if (looks < LEAST_LOOKS)
        looks = LEAST_LOOKS;
    list = ap_xrealloc(NULL, (size_t)n * sizeof *list);
    for (int i = 0; i < n; i++)
        list[i] =
            (struct candidate){&first->others[i], i >= first->n_others + first->n_rivals};
    qsort(list, (size_t)n, sizeof *list, compare_said);
    for (int i = 0; i < n && rc == 0; i++) {
        const struct plan_answer *plan = list[i].plan;
        double slack = plan->n_stages == 1 ? FRONT_SLACK : 1;
        double most = fits(inst, &best->price) ? slack * stages->objective_sec : INFINITY;
        if (plan->least_sec >= most ||
            (!list[i].heard && (plan->step_sec > most || looks == 0)))
            continue;
        looks -= !list[i].heard;
        rc = look_at(m, inst, oracle, plan, best, answer, stages, err);
    }
    free(list);
    return rc;
}

#define REPLANS     4
#define LEAST_SHARE 64   /* of the memory is planned without: few bytes change nothing */
#define MISSED      0.99 /* what is this much quicker is missed */

/*
 * Plans for less memory, for when what arrives early from other stages makes all quick
 * ones too large, which are missed: as much less as the quickest lacks, and twice that if
 * it is not enough, or if what fits now is slower, as written, than the planner said.
 */
static int look_at_lean(struct ap_arena *arena, const struct stage_model *m,
                        const struct plan_instance *inst, struct stage_oracle *oracle,
                        const struct stage_replan *again, struct best *best,
                        struct plan_answer *answer, struct ap_stages *stages,
                        struct ap_err *err)
{
    struct plan_params params = *again->params;
    double said = INFINITY; /* by the planner, of the leaner plans */
    int64_t less = inst->memory_bytes / LEAST_SHARE / 2;

    params.brief = true;
    for (int i = 0; i < REPLANS; i++) {
        struct plan_answer lean = {.replicas = 1, .chunks = 1};
        struct plan_instance its = *inst;
        struct ap_err why = {0};

        if (fits(inst, &best->price) &&
            fmin(best->missed.step_sec, said) > MISSED * best->price.step_sec)
            return 0;
        int64_t lacks = best->missed.peak_bytes - inst->memory_bytes;
        less = lacks > 2 * less ? lacks : 2 * less;
        its.memory_bytes -= less;
        if (its.memory_bytes <= 0)
            return 0;
        int rc = again->run(arena, &its, &params, &lean, &why);
        if (rc < 0)
            return ap_err_set(err, "%s", why.msg);
        if (rc > 0 || plan_judge(arena, &its, &lean, NULL, &why))
            return 0;
        said = lean.step_sec;
        best->missed.step_sec = INFINITY;
        if (look_at(m, inst, oracle, &lean, best, answer, stages, err) ||
            look_at_all(m, inst, oracle, &lean, best, answer, stages, err))
            return -1;
    }
    return 0;
}

int stage_result_make(struct ap_arena *arena, const struct stage_model *m,
                      const struct plan_instance *inst, struct stage_oracle *oracle,
                      const struct plan_answer *light, const struct stage_replan *again,
                      struct plan_answer *answer, struct ap_stages *stages,
                      struct stage_result *out, struct ap_err *err)
{
    const struct plan_answer first = *answer;
    struct best best = {
        .blank = *stages, .select = light != NULL, .missed = {.step_sec = INFINITY}};

    if (make(arena, m, inst, oracle, light != NULL, &first, stages, &best.price, err))
        return -1;
    note_missed(inst, &best.price, &best);
    if (look_at_all(m, inst, oracle, &first, &best, answer, stages, err) ||
        (again &&
         look_at_lean(arena, m, inst, oracle, again, &best, answer, stages, err)))
        return -1;
    for (int i = 0; light && i < light->n_others; i++)
        if (light->others[i].step_sec < stages->objective_sec &&
            look_at(m, inst, oracle, &light->others[i], &best, answer, stages, err))
            return -1;
    if (!fits(inst, &best.price))
        ap_warn("with what arrives early from other stages a device needs %lld bytes, of "
                "%lld",
                (long long)best.price.peak_bytes, (long long)inst->memory_bytes);
    stages->lower_bound_sec =
        fmin(light ? light->bound : first.bound, stages->objective_sec);
    *out = (struct stage_result){.objective_sec = stages->objective_sec,
                                 .bound_sec = stages->lower_bound_sec};
    ap_stages_to_json(arena, stages, &out->json);
    out->found = history(arena, &first, out);
    ap_arena_free(&best.own);
    stages->stage = NULL;
    return 0;
}
