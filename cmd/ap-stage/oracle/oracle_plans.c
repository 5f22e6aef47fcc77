/*
 * Problem: the plans of the points of an answer. Idea: each stage asks for
 * its own run's plan by the index that the point has in the front of the run that it is
 * like. Where its own front has another point there, since rules look at the whole graph,
 * the plan of the identical run is its plan, too, if the two differ in names only.
 * What was asked for is kept: answers that are nearly as good share most of it. Cost: a
 * request for each new plan, two more where that one is not as its front said.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/oracle_impl.h"

#include "base/array.h"

/* Fronts may be sums over blocks: a plan may cost this share more than its front
 * promised, beside the slack in seconds that the front states. */
#define PROMISE_SLACK 0.01
static bool holds(double promised, double slack, double actual)
{
    return actual <= promised * (1 + PROMISE_SLACK) + slack;
}

static bool keeps_promise(const struct answer_point *promised,
                          const struct answer_point *actual)
{
    const double slack = promised->slack_sec;

    return holds(promised->forward_sec, slack, actual->forward_sec) &&
           holds(promised->backward_sec, slack, actual->backward_sec) &&
           holds(promised->sync_sec + promised->update_sec, slack,
                 actual->sync_sec + actual->update_sec) &&
           holds((double)promised->stage_bytes, 0, (double)actual->stage_bytes) &&
           holds((double)(promised->stage_bytes - promised->passing_bytes), 0,
                 (double)(actual->stage_bytes - actual->passing_bytes)) &&
           holds((double)promised->microbatch_bytes, 0,
                 (double)actual->microbatch_bytes) &&
           promised->recompute == actual->recompute;
}

static struct plan_ask ask_of(const struct plan_answer *answer, int s)
{
    const struct plan_stage *stage = &answer->stage[s];
    return (struct plan_ask){stage->lo,        stage->hi,           stage->set,
                             stage->hosts,     stage->devices,      stage->kind,
                             answer->replicas, answer->microbatches};
}

static const char *behind_id(const char *line)
{
    return strchr(line, ',');
}

static const struct known_plan *find_plan(const struct stage_oracle *o, int kind,
                                          const char *line)
{
    for (int i = 0; i < o->n_plans; i++)
        if (o->plan[i].kind == kind && !strcmp(o->plan[i].line, behind_id(line)))
            return &o->plan[i];
    return NULL;
}

static void keep_plan(struct stage_oracle *o, const char *line, int kind,
                      const struct request *q, const struct stage_detail *got)
{
    AP_ROOM(o->plan, o->n_plans, o->cap_plans);
    o->plan[o->n_plans++] = (struct known_plan){
        behind_id(line), kind, q->n_points, q->points, got->sharding, got->names_only};
}

/* Asks for what is not known yet. */
static int fetch_plans(struct stage_oracle *o, const struct coproc_job *jobs,
                       const int *kind_of, int n, struct ap_err *err)
{
    struct stage_detail *got = ap_xrealloc(NULL, sizeof *got * (size_t)(n + 1));
    memset(got, 0, sizeof *got * (size_t)(n + 1));
    o->n_batch = n;
    o->request = ap_xrealloc(NULL, sizeof *o->request * (size_t)(n + 1));
    memset(o->request, 0, sizeof *o->request * (size_t)(n + 1));
    o->detail = got;
    int rc = oracle_run(o, jobs, kind_of, n, err);
    o->detail = NULL;
    o->stats.n_requests += n;
    for (int i = 0; i < n && rc == 0; i++)
        keep_plan(o, jobs[i].line, kind_of[i], &o->request[i], &got[i]);
    free(got);
    free(o->request);
    o->request = NULL;
    return rc;
}

/* The plans of one answer, while they are asked for. */
struct asking {
    struct stage_oracle *o;
    const struct plan_answer *answer;
    struct stage_detail *detail;
    int n_jobs;
    struct coproc_job *jobs; /* at most two for each stage */
    int *kind_of;            /* [job] */
};

/* The request for a plan of a run in stage s, which is asked for if it is not known. */
static const char *want(struct asking *a, int s, const struct plan_ask *ask, int index)
{
    const int mesh = a->o->origin[a->answer->stage[s].point->tag].mesh;
    const char *line = oracle_request(a->o, a->n_jobs, ask, a->detail[s].hosts,
                                      a->detail[s].devices, mesh, index);
    if (!find_plan(a->o, ask->kind, line)) {
        a->kind_of[a->n_jobs] = ask->kind;
        a->jobs[a->n_jobs++] = (struct coproc_job){line, mesh};
    }
    return line;
}

static int fetch_wanted(struct asking *a, struct ap_err *err)
{
    const int n = a->n_jobs;
    a->n_jobs = 0;
    return n > 0 ? fetch_plans(a->o, a->jobs, a->kind_of, n, err) : 0;
}

static bool is_as_promised(const struct known_plan *known, const struct origin *from)
{
    return known->sharding && from->index < known->n_points &&
           keeps_promise(&from->point, &known->points[from->index]);
}

/* The fingerprint of the part that a sharding was made for; NULL: it has none. */
static const char *print_of(const struct known_plan *known)
{
    const char *at = known->sharding ? strstr(known->sharding, "\"fingerprint\"") : NULL;
    return at ? strstr(at, "\"graph\"") : NULL;
}

static bool same_print(const struct known_plan *a, const struct known_plan *b)
{
    const char *x = print_of(a), *y = print_of(b);
    const char *end = x ? strpbrk(x, ",}") : NULL;
    return x && y && end && !strncmp(x, y, (size_t)(end - x) + 1);
}

static void take_plan(struct asking *a, int s, const struct known_plan *known, bool again)
{
    a->detail[s].sharding = known->sharding;
    a->detail[s].names_only = known->names_only || again;
}

/*
 * A run's own front may not have the point of the run that it is like: rules look at the
 * whole graph. The plan of that one is a plan of this one if both are the same but for
 * names, which are then written anew; else the nearest is taken, with a warning.
 */
static int take_other(struct asking *a, int s, const char *own, const char *like,
                      const char *first, struct ap_err *err)
{
    struct stage_oracle *o = a->o;
    const struct origin *from = &o->origin[a->answer->stage[s].point->tag];
    const int kind = a->answer->stage[s].kind;
    const struct known_plan *plan = find_plan(o, kind, own),
                            *twin = find_plan(o, kind, like),
                            *any = find_plan(o, kind, first);
    if (is_as_promised(twin, from) && same_print(twin, plan->sharding ? plan : any)) {
        take_plan(a, s, twin, true);
        return 0;
    }
    if (!plan->sharding)
        plan = any;
    if (!plan->sharding)
        return ap_err_set(err,
                          "the shard command gave no sharding; request: %.300s; "
                          "answer: %s",
                          own, o->refusal ? o->refusal : "none");
    ap_warn("stage %d: the shard command's plan needs more memory or time than its front "
            "said; the plan's own price counts",
            s);
    take_plan(a, s, plan, false);
    return 0;
}

int stage_oracle_plans(struct stage_oracle *o, const struct plan_answer *answer,
                       struct stage_detail *detail, struct ap_err *err)
{
    const int n = answer->n_stages;
    struct asking a = {.o = o, .answer = answer, .detail = detail};
    const char **line = ap_xrealloc(NULL, sizeof *line * 3 * (size_t)n);
    struct plan_ask ask;

    a.jobs = ap_xrealloc(NULL, sizeof *a.jobs * 2 * (size_t)n);
    a.kind_of = ap_xrealloc(NULL, sizeof *a.kind_of * 2 * (size_t)n);
    for (int s = 0; s < n; s++) {
        const struct origin *from = &o->origin[answer->stage[s].point->tag];
        ask = ask_of(answer, s);
        bool fits = oracle_submesh(o->inst, &ask, &detail[s].hosts, &detail[s].devices);
        assert(fits);
        (void)fits;
        detail[s].mesh = o->mesh[from->mesh];
        line[3 * s] = want(&a, s, &ask, from->index);
    }
    int rc = fetch_wanted(&a, err);
    for (int s = 0; s < n && rc == 0; s++) {
        const struct origin *from = &o->origin[answer->stage[s].point->tag];
        if (is_as_promised(find_plan(o, answer->stage[s].kind, line[3 * s]), from))
            continue;
        ask = ask_of(answer, s);
        struct plan_ask like = oracle_canonical(o, &ask);
        line[3 * s + 1] = want(&a, s, &like, from->index);
        line[3 * s + 2] = want(&a, s, &ask, 0);
    }
    rc = rc ? rc : fetch_wanted(&a, err);
    for (int s = 0; s < n && rc == 0; s++) {
        const struct known_plan *known = find_plan(o, answer->stage[s].kind, line[3 * s]);
        if (is_as_promised(known, &o->origin[answer->stage[s].point->tag]))
            take_plan(&a, s, known, false);
        else
            rc = take_other(&a, s, line[3 * s], line[3 * s + 1], line[3 * s + 2], err);
    }
    free(a.jobs);
    free(a.kind_of);
    free(line);
    return rc;
}
