/*
 * Problem: cut a line of blocks into stages, replicate each stage over devices and the
 * pipeline over groups of hosts, so that the slowest forward plus the slowest backward of
 * a microbatch, communication included, is least and everything fits.
 * Idea: Algorithm 2 takes n hosts for a pipeline, n a divisor of all, R = all / n
 * replicas, and the numbers of stages that n hosts have devices for beyond those of the n
 * before; for each number of microbatches MB it runs Algorithm 1: T(s, b, d), the best
 * ways to run the first b blocks in s stages on d devices. The first number of stages
 * with a plan ends the search (search_all goes on); among plans (MB + S - 1) (max forward
 * + max backward)
 * + the slowest sum of gradients decides. Stages are recomputed when MB > 1. GPipe: all
 * MB microbatches are held. d_min: states with fewer devices than any plan of s stages
 * took are not looked at.
 * Algorithm 1 keeps one value for a state, the least sum of the two maxima, which is not
 * enough for the least: here a state keeps every triple (max forward, max backward, max
 * sum of gradients) that no other equals or beats in all three.
 * Cost: stages x blocks^2 x devices x submeshes x triples.
 * Source: Tanaka et al., "Automatic graph partitioning for very large-scale deep
 * learning" (IPDPS 2021), section III-C, Algorithms 1 and 2; limits of its code, which
 * takes at most 32 microbatches. Where nothing fits with these, those beyond, up to the
 * batch, are tried as in the paper.
 */
#include <math.h>
#include <stdlib.h>

#include "search/space.h"

#include "base/array.h"

struct triple {
    double forward, backward, sync;
    int before; /* triple of the stages in front, -1 */
    int lo, mesh;
    const struct plan_point *point;
};

struct table {
    struct space *sp;
    struct config *c;
    int n, n_devices, n_stages;
    int *first, *n_triples; /* [(s * (n + 1) + b) * (devices + 1) + d] */
    struct triple *all;
    int n_all, cap;
    struct triple *now; /* of the state in work */
    int n_now, now_cap;
    int *d_min; /* [stages]: least devices of a state that is not empty */
    int64_t work;
};

#define MAX_PIPELINE 32
#define WORK_LIMIT   ((int64_t)1 << 31)

static size_t state(const struct table *t, int s, int b, int d)
{
    return ((size_t)s * (size_t)(t->n + 1) + (size_t)b) * (size_t)(t->n_devices + 1) +
           (size_t)d;
}

/* Adds a triple to those in work unless one is as good; drops those that it beats. */
static void add_now(struct table *t, const struct triple *v)
{
    int n = 0;

    for (int i = 0; i < t->n_now; i++) {
        const struct triple *u = &t->now[i];
        if (u->forward <= v->forward && u->backward <= v->backward && u->sync <= v->sync)
            return;
    }
    for (int i = 0; i < t->n_now; i++) {
        const struct triple *u = &t->now[i];
        if (v->forward > u->forward || v->backward > u->backward || v->sync > u->sync)
            t->now[n++] = *u;
    }
    AP_ROOM(t->now, n, t->now_cap);
    t->now[n++] = *v;
    t->n_now = n;
}

static void keep_now(struct table *t, size_t at)
{
    AP_ROOM_FOR(t->all, t->n_all, t->cap, t->n_now);
    t->first[at] = t->n_all;
    t->n_triples[at] = t->n_now;
    for (int i = 0; i < t->n_now; i++)
        t->all[t->n_all++] = t->now[i];
    t->n_now = 0;
}

/* Seconds to receive what blocks lo on read, and to send on what hi makes: the links of
 * the mesh side by side. */
static double edge_sec(const struct table *t, int lo, int hi, bool backward,
                       const struct plan_submesh *m)
{
    const struct ap_cluster *cl = t->sp->inst->cluster;
    int level = t->n_devices > t->sp->inst->n_devices && cl->n_levels > 1 ? 1 : 0;
    double sec = 0;

    if (lo > 0)
        sec += plan_link_sec(cl, level, config_cut(t->sp, t->c, lo - 1, backward),
                             mesh_size(m), m->hosts);
    if (hi < t->n - 1)
        sec += plan_link_sec(cl, level, config_cut(t->sp, t->c, hi, backward),
                             mesh_size(m), m->hosts);
    return sec;
}

/* Recomputed when there are microbatches, if the oracle has such a point. */
static bool is_mode(const struct plan_front *front, const struct plan_point *p,
                    int64_t microbatches)
{
    if (p->recompute == (microbatches > 1))
        return true;
    for (int i = 0; i < front->n; i++)
        if (front->point[i].recompute == (microbatches > 1))
            return false;
    return true;
}

/* Stage s of blocks lo to b - 1 on mesh m, after every way to run those in front. */
static void extend(struct table *t, int s, int lo, int b, int m, int d,
                   const struct plan_front *front)
{
    const struct plan_submesh *mesh = &t->c->mesh[m];
    size_t rest = state(t, s - 1, lo, d - mesh_size(mesh));
    double forward = edge_sec(t, lo, b - 1, false, mesh);
    double backward = edge_sec(t, lo, b - 1, true, mesh);

    for (int i = 0; i < front->n; i++) {
        const struct plan_point *p = &front->point[i];
        int flight = plan_in_flight(t->sp->inst->inference ? AP_SCHEDULE_INFERENCE
                                                           : AP_SCHEDULE_GPIPE,
                                    1, t->c->microbatches);
        if (!is_mode(front, p, t->c->microbatches) ||
            !plan_fits(t->sp->inst, 0, p, flight))
            continue;
        for (int k = t->first[rest]; k < t->first[rest] + t->n_triples[rest]; k++) {
            const struct triple *u = &t->all[k];
            struct triple v = {.forward = fmax(u->forward, p->forward_sec + forward),
                               .backward = fmax(u->backward, p->backward_sec + backward),
                               .sync = fmax(u->sync, p->sync_sec),
                               .before = k,
                               .lo = lo,
                               .mesh = m,
                               .point = p};
            add_now(t, &v);
            t->work++;
        }
    }
}

static int fill_state(struct table *t, int s, int b, int d, struct ap_err *err)
{
    for (int lo = s - 1; lo < b; lo++)
        for (int m = 0; m < t->c->n_meshes; m++) {
            const struct plan_front *front;
            int left = d - mesh_size(&t->c->mesh[m]);
            if (left < t->d_min[s - 1] || !t->n_triples[state(t, s - 1, lo, left)])
                continue;
            if (config_front(t->sp, t->c, lo, b - 1, m, &front, err))
                return -1;
            extend(t, s, lo, b, m, d, front);
        }
    if (t->n_now > 0 && d < t->d_min[s])
        t->d_min[s] = d;
    keep_now(t, state(t, s, b, d));
    return 0;
}

/* Notes what the states of s stages will ask for. */
static void note_stages(struct table *t, int s)
{
    for (int lo = s - 1; lo < t->n; lo++)
        for (int m = 0; m < t->c->n_meshes; m++) {
            int left = t->n_devices - mesh_size(&t->c->mesh[m]);
            while (left >= t->d_min[s - 1] && !t->n_triples[state(t, s - 1, lo, left)])
                left--;
            for (int b = lo + 1; b <= t->n && left >= t->d_min[s - 1]; b++)
                config_note(t->sp, t->c, lo, b - 1, m);
        }
}

/* Fills the states of s stages. */
static int fill_stages(struct table *t, int s, struct ap_err *err)
{
    t->d_min[s] = t->n_devices + 1;
    for (int b = s; b <= t->n; b++)
        for (int d = s; d <= t->n_devices; d++)
            if (fill_state(t, s, b, d, err))
                return -1;
    return 0;
}

static double objective(const struct table *t, int n_stages, const struct triple *v)
{
    return (double)(t->c->microbatches + n_stages - 1) * (v->forward + v->backward) +
           v->sync;
}

static void read_plan(const struct table *t, int n_stages, const struct triple *v,
                      struct plan_answer *a)
{
    int hi = t->n - 1;

    *a = (struct plan_answer){.n_stages = n_stages,
                              .replicas = t->c->replicas,
                              .microbatches = t->c->microbatches,
                              .schedule = t->sp->inst->inference ? AP_SCHEDULE_INFERENCE
                                                                 : AP_SCHEDULE_GPIPE,
                              .chunks = 1,
                              .objective = objective(t, n_stages, v),
                              .measure = "rannc",
                              .stopped = "done"};
    a->stage = AP_NEW_N(t->sp->arena, n_stages, struct plan_stage);
    for (int s = n_stages - 1; s >= 0; s--) {
        a->stage[s] = (struct plan_stage){.lo = v->lo,
                                          .hi = hi,
                                          .hosts = t->c->mesh[v->mesh].hosts,
                                          .devices = t->c->mesh[v->mesh].devices,
                                          .point = v->point};
        hi = v->lo - 1;
        v = &t->all[v->before];
    }
}

/* Takes the best plan of s stages on all devices if it is better than what is there. */
static bool take_best(const struct table *t, int s, struct plan_answer *answer)
{
    size_t at = state(t, s, t->n, t->n_devices);
    bool any = false;

    for (int i = t->first[at]; i < t->first[at] + t->n_triples[at]; i++) {
        struct plan_answer a;
        struct ap_err why = {0};
        if (answer->n_stages > 0 && objective(t, s, &t->all[i]) >= answer->objective) {
            any = true;
            continue;
        }
        read_plan(t, s, &t->all[i], &a);
        t->sp->n_plans++;
        if (plan_place(t->sp->inst, &a, &why))
            continue;
        any = true;
        *answer = a;
    }
    return any;
}

static bool table_init(struct table *t, struct space *sp, struct config *c,
                       struct ap_arena *scratch)
{
    *t = (struct table){.sp = sp, .c = c, .n = sp->n, .n_devices = c->hosts * c->devices};
    t->n_stages = t->n < t->n_devices ? t->n : t->n_devices;
    size_t n =
        (size_t)(t->n_stages + 1) * (size_t)(t->n + 1) * (size_t)(t->n_devices + 1);
    if (n > (size_t)1 << 28)
        return false;
    t->first = AP_NEW_N(scratch, n, int);
    t->n_triples = AP_NEW_N(scratch, n, int);
    t->d_min = AP_NEW_N(scratch, t->n_stages + 1, int);
    t->now = ap_xrealloc(NULL, sizeof *t->now);
    t->now_cap = 1;
    t->now[t->n_now++] = (struct triple){.before = -1};
    keep_now(t, state(t, 0, 0, 0));
    return true;
}

struct rannc {
    struct space *sp;
    struct plan_answer *answer;
    bool limited;        /* the limit of work was met */
    int64_t least, most; /* microbatches of a replica */
};

/* Fills the tables up to s stages, of which each goes on by what the one before has; what
 * they ask for is asked for at once. done[i]: stages filled, -1: a table that is none. */
static int fill_tables(struct space *sp, struct table *t, int *done, int n, int s,
                       int64_t limit, struct ap_err *err)
{
    for (int at = 1; at <= s; at++) {
        for (int i = 0; i < n; i++)
            if (done[i] == at - 1 && t[i].work < limit)
                note_stages(&t[i], at);
        if (space_ask_noted(sp, err))
            return -1;
        for (int i = 0; i < n; i++)
            if (done[i] == at - 1 && t[i].work < limit &&
                fill_stages(&t[i], ++done[i], err))
                return -1;
    }
    return 0;
}

/* All MB for S from lo to hi on n hosts: Algorithm 2's two inner loops. */
static int search_stages(struct rannc *q, int replicas, int lo, int hi,
                         struct ap_err *err)
{
    struct space *sp = q->sp;
    int n_mb = sp->inst->n_microbatches, rc = 0, want = sp->params->n_stages;
    int64_t limit = sp->params->work_limit ? sp->params->work_limit : WORK_LIMIT;
    struct ap_arena scratch = {0};
    struct table *t = AP_NEW_N(&scratch, n_mb, struct table);
    struct config *c = AP_NEW_N(&scratch, n_mb, struct config);
    int *done = AP_NEW_N(&scratch, n_mb, int); /* stages filled */
    bool stop = false;

    for (int i = 0; i < n_mb; i++) {
        int64_t n = sp->inst->microbatches[i];
        bool wanted = n >= q->least && n <= q->most;
        if (!wanted || !config_init(sp, &c[i], replicas, n, NULL, 0)) {
            done[i] = -1;
        } else if (!table_init(&t[i], sp, &c[i], &scratch)) {
            q->limited = true;
            done[i] = -1;
        }
    }
    for (int s = lo; s <= hi && !stop && rc == 0; s++) {
        bool any = false;
        if (want > 0 && s != want)
            continue;
        rc = fill_tables(sp, t, done, n_mb, s, limit, err);
        for (int i = 0; i < n_mb && rc == 0; i++) {
            if (done[i] == s)
                any |= take_best(&t[i], s, q->answer);
            q->limited |= done[i] >= 0 && t[i].work >= limit;
        }
        stop = any && !sp->params->search_all;
    }
    for (int i = 0; i < n_mb; i++) {
        free(t[i].now);
        free(t[i].all);
    }
    ap_arena_free(&scratch);
    return rc < 0 ? -1 : stop;
}

/* Algorithm 2. */
static int search(struct rannc *q, struct ap_err *err)
{
    struct plan_rannc_loop loop[32];
    int n = plan_rannc_loops(q->sp->inst->n_hosts, q->sp->inst->n_devices, loop), rc = 0;
    for (int i = 0; i < n && rc == 0; i++) {
        int hi = loop[i].last_stages < q->sp->n ? loop[i].last_stages : q->sp->n;
        rc = search_stages(q, loop[i].replicas, loop[i].first_stages, hi, err);
    }
    return rc < 0 ? -1 : 0;
}

int plan_rannc(struct ap_arena *arena, const struct plan_instance *inst,
               const struct plan_params *params, struct plan_answer *answer,
               struct ap_err *err)
{
    struct space sp;
    struct plan_answer best = {0};

    if (params->schedule >= 0 && params->schedule != AP_SCHEDULE_GPIPE &&
        params->schedule != AP_SCHEDULE_INFERENCE)
        return ap_err_set(err, "rannc: its schedule is gpipe, not %s",
                          ap_schedule_names[params->schedule]);
    space_init(&sp, arena, inst, params);
    struct rannc q = {.sp = &sp, .answer = &best, .least = 1, .most = MAX_PIPELINE};
    if (search(&q, err))
        return -1;
    q.least = MAX_PIPELINE + 1;
    q.most = inst->microbatches[inst->n_microbatches - 1];
    if (best.n_stages == 0 && q.most >= q.least && search(&q, err))
        return -1;
    if (best.n_stages == 0)
        return plan_none_fits("rannc", err);
    *answer = best;
    if (q.limited)
        answer->stopped = "work limit";
    answer->n_asked = sp.n_asked;
    answer->n_plans = sp.n_plans;
    return plan_judge(arena, inst, answer, err);
}

int plan_rannc_loops(int n_hosts, int n_devices, struct plan_rannc_loop loop[32])
{
    int n = 0, most = 0;
    for (int hosts = 1; hosts <= n_hosts && n < 32; hosts++) {
        if (n_hosts % hosts != 0)
            continue;
        loop[n] = (struct plan_rannc_loop){.hosts = hosts,
                                           .devices = hosts * n_devices,
                                           .replicas = n_hosts / hosts,
                                           .first_stages = most + 1,
                                           .last_stages = hosts * n_devices};
        most = loop[n++].last_stages;
    }
    return n;
}
