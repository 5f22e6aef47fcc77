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
#include "oracle/stage_memo.h"
#include "pipeline/line.h"
#include "planners/recompute_select.h"
#include "search/space.h"

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

/* The section in words; nothing where it cannot be read back, which pricing has done. */
static void put_words(const struct stage_model *m, const struct ap_buf *section,
                      struct ap_buf *out)
{
    const struct ap_staged_graph of = {&m->graph, &m->nests, &m->blocks, &m->cluster};
    struct ap_arena scratch = {0};
    struct ap_stages read = {0};
    struct ap_err err = {0};

    if (ap_stages_from_text(&scratch, section->data, section->len, &of, NULL, &read,
                            &err) == 0)
        ap_put_str(out, "words", ap_stages_words(&scratch, &of, &read));
    ap_arena_free(&scratch);
}

static const char *history(struct ap_arena *arena, const struct stage_model *m,
                           const struct plan_answer *answer, const struct stage_result *r)
{
    struct ap_buf out = {0};
    put_words(m, &r->json, &out);
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

/* What is compared of plans; all else of their prices is large, and soon gone. */
struct price {
    double step_sec; /* or what else the plan is to keep low */
    int64_t peak_bytes;
};

struct stage_pricer {
    struct stage_pricing of;
    struct stage_memo *memo;
    struct ap_arena arena; /* of the list */
    int n, cap;
    struct plan_answer *priced; /* malloc: all plans that were priced */
    struct plan_answer best;    /* n_stages 0: none */
    struct ap_stages stages;    /* its */
    struct ap_arena own;        /* that these lie in */
    struct price price;         /* likewise */
    struct price missed; /* the quickest that does not fit; step_sec INFINITY: none */
    bool failed;
};

/* Memory of each device of the price (arena), each so many bytes less. */
static const int64_t *list_memory(struct ap_arena *arena, const struct stage_pricer *x,
                                  const struct ap_stages *stages, int64_t less)
{
    int64_t *bytes = AP_NEW_N(arena, stages->n, int64_t);

    for (int s = 0; s < stages->n; s++) {
        int kind = ap_cluster_kind_of(&x->of.model->cluster, stages->stage[s].devices[0]);
        bytes[s] = plan_memory(x->of.inst, x->of.inst->n_kinds > 0 ? kind : 0);
        bytes[s] = bytes[s] > less ? bytes[s] - less : bytes[s];
    }
    return bytes;
}

/* Programs are built of plans whose price takes at least this share of the memory: copies
 * and packing take a third of it at most (scripts/bench/memory-table). */
#define ARENA_SHARE 0.6

/* As plan_whole_bytes, of the fullest device; arena: bytes of each, NULL: by the price.
 */
static int64_t fullest(const struct stage_model *m, const struct plan_instance *inst,
                       const struct ap_stages *stages,
                       const struct ap_pipeline_price *pipe, const struct ap_lane *arena)
{
    int64_t most = 0;

    for (int d = 0; d < pipe->result.n_devices; d++) {
        int kind = ap_cluster_kind_of(&m->cluster, stages->stage[d].devices[0]);
        int64_t bytes = pipe->result.devices[d].peak_bytes;
        if (arena && arena[d].peak_bytes > bytes)
            bytes = arena[d].peak_bytes;
        if (inst->n_kinds > 0)
            bytes = plan_whole_bytes(inst, kind, bytes);
        most = bytes > most ? bytes : most;
    }
    return most;
}

int64_t stage_result_peak(struct ap_arena *scratch, const struct stage_model *m,
                          const struct plan_instance *inst, const struct ap_stages *read,
                          const struct ap_pipeline_price *pipe)
{
    const int64_t peak = fullest(m, inst, read, pipe, NULL), limit = inst->memory_bytes;
    struct ap_pipeline_program program;
    struct ap_err why = {0};
    bool unsupported;

    if (limit == 0 || peak > limit || (double)peak < ARENA_SHARE * (double)limit ||
        ap_pipeline_build(
            scratch,
            &(struct ap_staged_graph){&m->graph, &m->nests, &m->blocks, &m->cluster},
            read, &(struct ap_program_form){0}, &program, &unsupported, &why))
        return peak;
    return fullest(m, inst, read, pipe, program.lane);
}

/* Selections of one plan: programs of those that fill a device may need more than their
 * price. One that fills, one with as much less as the program lacked, one that fills
 * less. */
#define MOST_SELECTIONS 3

/* Of each stage those operators are recomputed that save most memory per second; with
 * less of it where the program then needs more than a device has, and at last with equal
 * parts of what is left, which fill a device less. */
static int select_recomputed(struct ap_arena *arena, struct ap_arena *scratch,
                             const struct stage_pricer *x, struct ap_stages *read,
                             struct ap_stages *stages, struct price *price,
                             struct ap_err *err)
{
    const struct stage_model *m = x->of.model;
    const struct ap_staged_graph of = {&m->graph, &m->nests, &m->blocks, &m->cluster};
    const size_t size = (size_t)read->n * sizeof *read->stage;
    const struct ap_stage *given = ap_arena_dup(scratch, read->stage, size);
    const int64_t limit = x->of.inst->memory_bytes;
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
                                stage_result_peak(scratch, m, x->of.inst, read, &pipe)};
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

static int price_stages(struct ap_arena *arena, struct ap_arena *scratch,
                        const struct stage_pricer *x, const struct stage_detail *detail,
                        struct ap_stages *stages, struct price *price, struct ap_err *err)
{
    const struct stage_model *m = x->of.model;
    struct ap_pipeline_cache known = {.micro = &m->micro};
    struct stage_memo_plan plan;
    struct ap_pipeline_price pipe;

    if (stage_memo_read(x->memo, scratch, detail, stages, &plan, err))
        return -1;
    known.stage = plan.priced;
    if (x->of.select)
        return select_recomputed(arena, scratch, x, &plan.read, stages, price, err);
    int rc = ap_pipeline_compare(
        scratch, &(struct ap_staged_graph){&m->graph, &m->nests, &m->blocks, &m->cluster},
        &plan.read, &known, &pipe, err);
    if (rc == 0)
        *price = (struct price){
            stages->throughput ? ap_sim_batch_sec(&pipe.sim) : pipe.result.step_sec,
            stage_result_peak(scratch, x->of.model, x->of.inst, &plan.read, &pipe)};
    return rc;
}

/* Reads the section and prices it; what it says more than before goes to the arena. */
static int weigh(struct ap_arena *arena, const struct stage_pricer *x,
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
static int make(struct ap_arena *arena, const struct stage_pricer *x,
                const struct plan_answer *answer, struct ap_stages *stages,
                struct price *price, struct ap_err *err)
{
    const struct plan_instance *inst = x->of.inst;
    struct stage_detail *detail = AP_NEW_N(arena, answer->n_stages, struct stage_detail);

    if (stage_oracle_plans(x->of.oracle, answer, detail, err))
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
    stages->n_devices = ap_cluster_devices(&x->of.model->cluster);
    stages->stopped = ""; /* the search goes on */
    return weigh(arena, x, detail, stages, price, err);
}

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

struct stage_pricer *stage_pricer_start(const struct stage_pricing *of)
{
    struct stage_pricer *x = ap_xrealloc(NULL, sizeof *x);

    *x = (struct stage_pricer){.of = *of,
                               .memo = stage_memo_start(of->model),
                               .price = {.step_sec = INFINITY},
                               .missed = {.step_sec = INFINITY}};
    return x;
}

void stage_pricer_stop(struct stage_pricer *x)
{
    stage_memo_stop(x->memo);
    ap_arena_free(&x->arena);
    ap_arena_free(&x->own);
    free(x->priced);
    free(x);
}

/* The price of a plan that has none yet, which takes the place of the best one if it is
 * better. */
static int price_new(struct stage_pricer *x, const struct plan_answer *plan,
                     struct ap_err *err)
{
    const struct plan_instance *inst = x->of.inst;
    struct ap_stages stages = *x->of.blank;
    struct ap_arena own = {0};
    struct price price;

    ap_work_tell(x->of.work, "plans with their layouts", x->price.step_sec, 0);
    if (make(&own, x, plan, &stages, &price, err)) {
        ap_arena_free(&own);
        return -1;
    }
    AP_ROOM(x->priced, x->n, x->cap);
    x->priced[x->n++] = plan_copy(&x->arena, plan);
    if (!fits(inst, &price) && price.step_sec < x->missed.step_sec)
        x->missed = price;
    if (x->best.n_stages > 0 && !is_better(inst, &price, &x->price)) {
        ap_arena_free(&own);
        return 0;
    }
    ap_arena_free(&x->own);
    x->own = own;
    x->price = price;
    x->best = x->priced[x->n - 1];
    x->stages = stages;
    return 0;
}

int stage_pricer_price(void *pricer, const struct plan_answer *plan, double *least,
                       struct ap_err *err)
{
    struct stage_pricer *x = pricer;
    int i = 0;

    *least = fmin(x->missed.step_sec, stage_pricer_least(x));
    while (i < x->n && !plan_same(&x->priced[i], plan))
        i++;
    if (i < x->n || plan->least_sec >= *least)
        return 0;
    if (price_new(x, plan, err)) {
        x->failed = true;
        return -1;
    }
    *least = fmin(x->missed.step_sec, stage_pricer_least(x));
    return 0;
}

bool stage_pricer_failed(const struct stage_pricer *x)
{
    return x->failed;
}

double stage_pricer_least(const struct stage_pricer *x)
{
    return fits(x->of.inst, &x->price) ? x->price.step_sec : INFINITY;
}

int64_t stage_pricer_lacks(struct stage_pricer *x)
{
    const struct price missed = x->missed;

    x->missed.step_sec = INFINITY;
    if (fits(x->of.inst, &x->price) && missed.step_sec >= x->price.step_sec)
        return 0;
    return missed.peak_bytes - x->of.inst->memory_bytes;
}

void stage_result_make(struct ap_arena *arena, const struct stage_pricer *x,
                       const struct plan_answer *first, double bound,
                       struct ap_stages *stages, struct stage_result *out)
{
    *stages = x->stages;
    stages->stopped = first->stopped;
    stages->lower_bound_sec = fmin(bound, stages->objective_sec);
    *out = (struct stage_result){.objective_sec = stages->objective_sec,
                                 .bound_sec = stages->lower_bound_sec,
                                 .peak_bytes = x->price.peak_bytes};
    ap_stages_to_json(stages, &out->json);
    out->found = history(arena, x->of.model, first, out);
    stages->stage = NULL;
}

/* Whether a value of the backward pass is read by a later block: what is made of weights
 * alone may, where blocks are by hand. */
static bool goes_against_flow(const struct ap_graph *g, const int *block_of)
{
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->nodes[i].n_in && g->nodes[i].phase == AP_BACKWARD; k++) {
            const int in = g->nodes[i].in[k];
            if (g->nodes[in].phase == AP_BACKWARD && g->nodes[in].n_in > 0 &&
                block_of[in] < block_of[i])
                return true;
        }
    return false;
}

int stage_result_check(const struct stage_model *m, const struct ap_buf *section,
                       struct ap_err *err)
{
    const struct ap_staged_graph of = {&m->graph, &m->nests, &m->blocks, &m->cluster};
    struct ap_arena scratch = {0};
    struct ap_stages read = {0};
    struct ap_pipeline_program program;
    struct ap_err why = {0};
    bool unsupported;

    if (!goes_against_flow(&m->graph, m->blocks.block_of))
        return 0;
    int rc = ap_stages_from_text(&scratch, section->data, section->len, &of, NULL, &read,
                                 &why);
    if (rc == 0)
        rc = ap_pipeline_build(&scratch, &of, &read, &(struct ap_program_form){0},
                               &program, &unsupported, &why);
    if (rc == 1)
        ap_err_set(err, "%s", why.msg);
    ap_arena_free(&scratch);
    return rc == 1;
}
