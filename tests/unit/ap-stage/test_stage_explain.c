/* ap-stage: what is said to make a plan where there is none does. */
#include "explain.h"
#include "search/space.h"
#include "stage_oracle.h"
#include "tap.h"

#include <stdlib.h>
#include <string.h>

static struct random_case cases;

struct on_more {
    const struct plan_algorithm *row;
    const struct plan_params *params;
};

static bool fits_on(void *ctx, const struct plan_instance *inst, int times)
{
    const struct on_more *on = ctx;
    struct ap_arena arena = {0};
    struct plan_instance more = *inst;
    struct plan_answer a = {0};
    struct ap_err err = {0};

    more.n_hosts *= times;
    int rc = on->row->run(&arena, &more, on->params, &a, &err);
    ap_arena_free(&arena);
    return rc == 0;
}

/* The planner's words, with what would do. */
static int explained(const char *row, const struct plan_params *params,
                     struct ap_err *err)
{
    struct ap_arena arena = {0};
    struct plan_answer a = {0};
    struct on_more ctx = {case_algorithm(row), params};
    const struct plan_ask_again again = {.row = ctx.row, .hosts = fits_on, .ctx = &ctx};

    *err = (struct ap_err){0};
    int rc = again.row->run(&arena, &cases.inst, params, &a, err);
    if (rc > 0)
        plan_explain(&cases.inst, params, &again, err);
    ap_arena_free(&arena);
    return rc;
}

static void the_smallest_change(void)
{
    struct ap_arena arena = {0};
    int named = 0, fits = 0, tight = 0, hosts_named = 0, hosts_fit = 0;

    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct plan_params params = {.schedule = -1, .imbalance = 0.08};
        struct plan_answer a = {0};
        struct ap_err err, no = {0};
        case_random(&cases, 100 + seed, 6);
        cases.oracle.hole = 0;
        cases.inst.memory_bytes = 60000000;
        int rc = explained("auto", &params, &err);
        const char *at = strstr(err.msg, " needs "), * or = strstr(err.msg, "; or ");
        if (rc == 1 && at && strstr(err.msg, "bytes per device")) {
            named++;
            cases.inst.memory_bytes = strtoll(at + 7, NULL, 10);
            fits += plan_auto(&arena, &cases.inst, &params, &a, &no) == 0;
            cases.inst.memory_bytes--;
            struct ap_err why = {0};
            tight += plan_auto(&arena, &cases.inst, &params, &a, &why) == 1;
            cases.inst.memory_bytes = 60000000;
            hosts_named += or != NULL;
            if (or) {
                cases.inst.n_hosts = (int)strtol(or +5, NULL, 10);
                hosts_fit += plan_auto(&arena, &cases.inst, &params, &a, &no) == 0;
            }
        }
        oracle_free(&cases.oracle);
    }
    CHECK(named >= 15, "%d of 20 say how much memory is needed", named);
    CHECK(fits == named, "with as much there is a plan: %d", fits);
    CHECK(tight >= named / 2, "with a byte less there mostly is none: %d", tight);
    CHECK(hosts_fit == hosts_named, "with as many hosts there is one: %d of %d",
          hosts_fit, hosts_named);
    ap_arena_free(&arena);
}

enum { MEMORY, HOSTS, RULES, AUTO, NOTHING, N_WORDS };

/* Whether the advice names a rule, or all of them. */
static bool without(const char *said, const char *rule)
{
    bool all =
        strstr(said, "without --stages --") || strstr(said, "without --submeshes --");
    return all || !strncmp(said + strlen("without "), rule, strlen(rule));
}

/* Takes the first advice and asks again; what is said of hosts is looked at elsewhere. */
static bool holds(const struct plan_algorithm *row, struct plan_params params,
                  const char *const at[N_WORDS])
{
    struct ap_arena arena = {0};
    struct plan_instance inst = cases.inst;
    struct plan_answer a = {0};
    struct ap_err no = {0};

    if (at[MEMORY]) {
        inst.memory_bytes = strtoll(at[MEMORY] + strlen(" needs "), NULL, 10);
    } else if (at[RULES]) {
        if (without(at[RULES], "--stages"))
            params.n_stages = 0;
        if (without(at[RULES], "--submeshes"))
            params.n_submeshes = 0;
        if (without(at[RULES], "--schedule"))
            params.schedule = -1;
    } else if (at[AUTO]) {
        row = case_algorithm("auto");
    }
    int rc = row->run(&arena, &inst, &params, &a, &no);
    if (rc == 0)
        rc = plan_judge(&arena, &inst, &a, &no);
    ap_arena_free(&arena);
    return at[MEMORY] || at[RULES] || at[AUTO] ? rc == 0 : rc > 0;
}

/* A row and what it is asked. */
static const struct plan_algorithm *some_request(uint64_t seed,
                                                 struct plan_params *params)
{
    static const char *const rows[] = {"auto",  "alpa",       "rannc",     "equal-layer",
                                       "pp-dp", "inter-only", "intra-only"};
    static const struct plan_submesh one[] = {{1, 1, 0}};
    static const int64_t bytes[] = {60000000, 0, 150000000};
    const struct plan_algorithm *row =
        case_algorithm(rows[seed % (sizeof rows / sizeof *rows)]);

    case_random(&cases, 500 + seed, 6);
    cases.inst.memory_bytes = bytes[seed / 2 % 3];
    *params = (struct plan_params){.schedule = -1, .epsilon_sec = 1e-6, .n_kept = 64};
    if (seed % 3 == 0)
        params->n_stages = 2 + (int)(seed % 4);
    if (seed % 5 == 0) {
        params->submesh = one;
        params->n_submeshes = 1;
    }
    if (seed % 4 == 0 && row->run != plan_rannc)
        params->schedule = AP_SCHEDULE_GPIPE;
    return row;
}

static void advice_holds(void)
{
    static const char *const words[N_WORDS] = {" needs ", " hosts in place", "without --",
                                               "try auto", "nor with more"};
    int n_none = 0, n_advised = 0, n_hold = 0, n_words[N_WORDS] = {0};

    for (uint64_t seed = 1; seed <= 120; seed++) {
        struct plan_params params;
        struct ap_err err;
        const struct plan_algorithm *row = some_request(seed, &params);
        if (explained(row->name, &params, &err) > 0) {
            const char *at[N_WORDS];
            bool any = false;
            n_none++;
            for (int i = 0; i < N_WORDS; i++) {
                at[i] = strstr(err.msg, words[i]);
                n_words[i] += at[i] != NULL;
                any |= at[i] != NULL;
            }
            n_advised += any;
            n_hold += holds(row, params, at);
        }
        oracle_free(&cases.oracle);
    }
    CHECK(n_none >= 40, "%d of 120 have no plan", n_none);
    CHECK(n_advised == n_none, "%d of them are told something", n_advised);
    CHECK(n_hold == n_none, "which is so for %d", n_hold);
    for (int i = 0; i <= RULES; i++)
        CHECK(n_words[i] >= 5, "\"%s\" is said %d times", words[i], n_words[i]);
}

int main(void)
{
    the_smallest_change();
    advice_holds();
    return tap_done();
}
