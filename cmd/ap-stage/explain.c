/*
 * Problem: say why there is no plan, and the smallest change found under which there is
 * one. Idea: a person who is advised to change something will run the same planner with
 * that change, and so does this code: with other limits of memory, more hosts, or fewer
 * of the rules that were asked for. The limit of memory is searched between the one that
 * fails and what a plan without limits needs: a limit that works is lowered to what its
 * plan needs, one that fails is raised to the middle, and near the end the next limit is
 * a byte below one that works. Where no change helps this planner, auto is asked. Cost:
 * up to TRIES runs of the planner for memory, of which most fronts are known after the
 * first; five for hosts, which price everything anew; one for each rule.
 */
#include "explain.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "search/space.h"

#define TRIES     24        /* limits of memory */
#define WORK      (1 << 19) /* so many blocks times devices are planned for again */
#define LARGER    4         /* times a limit that is too low */
#define CLOSE     16        /* parts of a limit of memory: then a byte less is the next */
#define EXACT     256       /* parts of it where limits are not what plans need */
#define CONFIRMED 4         /* limits that plans as written are tried with */

struct asker {
    const struct plan_ask_again *again;
    const struct plan_instance *inst;
    const struct plan_params *params;
};

/* How many runs of the planner are no waste of time. */
static int tries_of(const struct asker *a)
{
    int64_t size = (int64_t)a->inst->n_blocks * a->inst->n_hosts * a->inst->n_devices;

    return size > 0 && WORK / size < TRIES ? (int)(WORK / size) : TRIES;
}

/* Runs a planner; what its plan needs as it is written, if that may be more. */
static bool run_planner(const struct asker *a, const struct plan_algorithm *row,
                        const struct plan_instance *inst,
                        const struct plan_params *params, bool write,
                        struct plan_found *out)
{
    struct ap_arena scratch = {0};
    struct ap_err why = {{0}};
    struct plan_answer plan = {.replicas = 1, .chunks = 1};
    struct plan_instance its = *inst;

    if (its.links)
        its.links = plan_links_new(&scratch);
    int rc = row->run(&scratch, &its, params, &plan, &why);
    if (rc == 0)
        rc = plan_judge(&scratch, &its, &plan, &why);
    if (rc == 0) {
        *out = (struct plan_found){plan.n_stages, plan.microbatches, plan.peak_bytes,
                                   plan.schedule, false};
        for (int s = 0; s < plan.n_stages; s++)
            out->recompute |= plan.stage[s].point->recompute;
        if (write && row == a->again->row && a->again->written)
            rc = a->again->written(a->again->ctx, &its, &plan, &out->peak_bytes, &why);
    }
    ap_arena_free(&scratch);
    return rc == 0;
}

static bool has_plan(const struct asker *a, const struct plan_algorithm *row,
                     const struct plan_instance *inst, const struct plan_params *params,
                     struct plan_found *out)
{
    return run_planner(a, row, inst, params, true, out) &&
           (inst->memory_bytes == 0 || out->peak_bytes <= inst->memory_bytes);
}

/* ---- memory ---- */

static bool fits_in(const struct asker *a, int64_t bytes, bool write,
                    struct plan_found *out)
{
    struct plan_instance inst = *a->inst;

    inst.memory_bytes = bytes;
    return run_planner(a, a->again->row, &inst, a->params, write, out) ||
           (a->again->lines && a->again->lines(a->again->ctx, &inst, out));
}

/* A limit at which the plan fits as it is written, too; 0: none found. */
static int64_t confirm_memory(const struct asker *a, int64_t bytes,
                              struct plan_found *out)
{
    for (int i = 0; i < CONFIRMED; i++) {
        if (!fits_in(a, bytes, true, out))
            return 0;
        if (out->peak_bytes <= bytes)
            return bytes;
        bytes = out->peak_bytes;
    }
    return 0;
}

/* A plan for a larger limit; the first does not ask what blocks cost that fit in none. */
static bool fits_in_more(const struct asker *a, struct plan_found *out)
{
    const int64_t limit = a->inst->memory_bytes;

    return limit > 0 && (fits_in(a, ap_mul64(limit, LARGER), false, out) ||
                         fits_in(a, ap_mul64(limit, LARGER * LARGER), false, out) ||
                         fits_in(a, 0, false, out));
}

/*
 * The least limit found at which there is a plan; 0: none at any. A plan that needs less
 * than its limit makes that the limit, until a planner refuses its own plan so (alpa
 * counts microbatches in flight that are not).
 */
static int64_t least_memory(const struct asker *a, struct plan_found *best)
{
    struct plan_found now;
    int64_t lo = a->inst->memory_bytes, sure = INT64_MAX, hi;
    bool trusted = true;

    if (!fits_in_more(a, &now) || now.peak_bytes <= lo)
        return 0;
    hi = now.peak_bytes;
    for (int i = 0;
         i < tries_of(a) && (hi < sure || hi - lo > (trusted ? 1 : hi / EXACT)); i++) {
        int64_t at = hi - lo > hi / (trusted ? CLOSE : EXACT)
                         ? (int64_t)sqrt((double)lo * (double)hi)
                     : hi - lo > 1 ? hi - 1
                                   : hi;
        if (fits_in(a, at, false, &now)) {
            sure = at;
            *best = now;
            hi = trusted && now.peak_bytes > lo ? now.peak_bytes : at;
        } else {
            lo = at;
        }
        if (lo >= hi) { /* its own plan */
            trusted = false;
            hi = sure < INT64_MAX ? sure : hi + hi / CLOSE + 1;
        }
    }
    if (sure == INT64_MAX)
        return 0;
    return a->again->written ? confirm_memory(a, sure, best) : sure;
}

/* ---- hosts ---- */

/*
 * How many times the hosts are enough; 0: unknown. bytes: the least memory found, 0 if
 * that is not what lacks; with so many times the devices no less than its share is
 * needed. More than enough may be too many for the stages that are asked for.
 */
static int times_hosts(const struct asker *a, int64_t bytes)
{
    static const int times[] = {2, 3, 4, 6, 8};

    if (!a->again->hosts || a->inst->cluster->n_levels < 2)
        return 0;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        if (bytes / times[i] <= a->inst->memory_bytes && tries_of(a) >= times[i] &&
            a->again->hosts(a->again->ctx, a->inst, times[i]))
            return times[i];
    return 0;
}

/* ---- rules that were asked for ---- */

enum { RULE_STAGES = 1, RULE_SUBMESHES = 2, RULE_SCHEDULE = 4, RULE_ALL = 7 };

static int rules_of(const struct asker *a)
{
    const struct plan_params *p = a->params;

    return (p->n_stages > 0 ? RULE_STAGES : 0) |
           (p->n_submeshes > 0 ? RULE_SUBMESHES : 0) |
           (p->schedule >= 0 && !a->inst->inference ? RULE_SCHEDULE : 0);
}

static bool fits_without(const struct asker *a, int rules, struct plan_found *out)
{
    struct plan_params params = *a->params;

    if (rules & RULE_STAGES)
        params.n_stages = 0;
    if (rules & RULE_SUBMESHES)
        params.n_submeshes = 0;
    if (rules & RULE_SCHEDULE)
        params.schedule = -1;
    return has_plan(a, a->again->row, a->inst, &params, out);
}

/* ---- the message ---- */

static void add(struct ap_err *err, const char *format, ...)
{
    size_t len = strlen(err->msg);
    va_list args;

    va_start(args, format);
    vsnprintf(err->msg + len, sizeof err->msg - len, format, args);
    va_end(args);
}

static void add_plan(struct ap_err *err, const struct plan_found *f)
{
    add(err, "%d stage%s, %lld microbatch%s%s", f->n_stages, f->n_stages == 1 ? "" : "s",
        (long long)f->microbatches, f->microbatches == 1 ? "" : "es",
        f->recompute ? ", with recomputation" : "");
}

/* Returns whether some are named. */
static bool add_rules(const struct asker *a, struct ap_err *err)
{
    static const char *const names[] = {"--stages", "--submeshes", "--schedule"};
    int asked = rules_of(a), n_named = 0;
    struct plan_found f;

    for (int i = 0; i < 3; i++)
        if ((asked & 1 << i) && fits_without(a, 1 << i, &f)) {
            add(err, "; or without %s: ", names[i]);
            add_plan(err, &f);
            if (1 << i == RULE_SCHEDULE)
                add(err, ", %s", ap_schedule_names[f.schedule]);
            n_named++;
        }
    if (n_named == 0 && (asked & (asked - 1)) && fits_without(a, RULE_ALL, &f)) {
        add(err, "; or without");
        for (int i = 0; i < 3; i++)
            if (asked & 1 << i)
                add(err, " %s", names[i]);
        add(err, ": ");
        add_plan(err, &f);
        n_named++;
    }
    return n_named > 0;
}

void plan_explain(const struct plan_instance *inst, const struct plan_params *params,
                  const struct plan_ask_again *again, struct ap_err *err)
{
    const struct plan_algorithm *other = plan_algorithms();
    const struct asker a = {again, inst, params};
    struct plan_found best;

    if (tries_of(&a) < 2) {
        add(err, "; nothing else was tried: %d blocks on %d devices are too many",
            inst->n_blocks, inst->n_hosts * inst->n_devices);
        return;
    }
    int64_t bytes = least_memory(&a, &best);
    if (bytes > 0) {
        *err = (struct ap_err){{0}};
        ap_err_set(err,
                   "%s: nothing fits in %lld bytes of memory: the leanest plan found (",
                   again->row->name, (long long)inst->memory_bytes);
        add_plan(err, &best);
        add(err, ") needs %lld bytes per device, %lld more", (long long)bytes,
            (long long)(bytes - inst->memory_bytes));
    }
    int times = times_hosts(&a, bytes);
    if (times > 0)
        add(err, "; or %d hosts in place of %d", times * inst->n_hosts, inst->n_hosts);
    bool named = add_rules(&a, err) || times > 0 || bytes > 0;
    if (!named && again->row != other && has_plan(&a, other, inst, params, &best)) {
        add(err, "; try %s: ", other->name);
        add_plan(err, &best);
    } else if (!named)
        add(err, ", nor with more memory%s",
            again->hosts && a.inst->cluster->n_levels > 1 ? " or hosts" : "");
}
