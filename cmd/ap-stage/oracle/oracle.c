/*
 * Problem: planners ask what a run of blocks costs on a submesh, one question at a time,
 * and a question costs a search. Idea: a memo over contents (server.h), so that layers
 * that repeat are searched once; each question is one request for each logical mesh of
 * the submesh, and the front is the union of theirs. Planners say what they will ask, on
 * all submeshes, so that all processes have work; what is asked does not depend on their
 * number. Questions about one logical mesh go to one process, which searches it once.
 *
 * Logical meshes of H hosts with D devices each: all of them in one axis, and each way to
 * put a divisor of D on an inner axis, which stays inside the host, and the rest on an
 * outer one (Zheng et al., "Alpa", section 5.2, as its code lists them). Replicas of the
 * whole pipeline are the outer part of a stage's mesh.
 */
#include "oracle/oracle_impl.h"

#include "base/array.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_MESHES 32 /* of a submesh */

struct entry {
    struct plan_ask ask;    /* of the lowest identical run */
    int64_t hosts, devices; /* submesh of all replicas */
    bool asked, done;
    bool ahead;                     /* in the batch of stage_oracle_ahead */
    int n_requests, first;          /* of the batch under way: one for each mesh */
    struct plan_front front, light; /* light: see stage_oracle_ask_light */
};

/* Runs on one submesh. */
struct column {
    int hosts, devices, kind, replicas;
    int64_t microbatches;
    const double *least; /* stage_least_sec */
};

/* ---- meshes ---- */

static int mesh_row(struct stage_oracle *o, const char *text)
{
    for (int i = 0; i < o->n_meshes; i++)
        if (!strcmp(o->mesh[i], text))
            return i;
    AP_ROOM(o->mesh, o->n_meshes, o->cap_meshes);
    o->mesh[o->n_meshes] = ap_arena_strdup(o->arena, text);
    return o->n_meshes++;
}

/* The submesh that all replicas make up; false when the cluster has none. */
bool oracle_submesh(const struct plan_instance *inst, const struct plan_ask *ask,
                    int64_t *hosts, int64_t *devices)
{
    int64_t all = (int64_t)ask->hosts * ask->devices * ask->replicas;
    int most = plan_kind_hosts(inst, ask->kind);
    *hosts = (int64_t)ask->hosts * ask->replicas;
    if (*hosts > most)
        *hosts = most;
    *devices = all / *hosts;
    return all % *hosts == 0 && *devices <= inst->n_devices;
}

static int list_meshes(struct stage_oracle *o, int64_t hosts, int64_t devices,
                       int rows[MAX_MESHES])
{
    int64_t all = hosts * devices;
    char text[64];
    int n = 0;
    snprintf(text, sizeof text, "%lld", (long long)all);
    rows[n++] = mesh_row(o, text);
    for (int64_t inner = 2; inner <= devices && inner < all; inner++) {
        if (devices % inner || n == MAX_MESHES)
            continue;
        snprintf(text, sizeof text, "%lldx%lld", (long long)(all / inner),
                 (long long)inner);
        rows[n++] = mesh_row(o, text);
    }
    return n;
}

/* ---- the memo ---- */

static int set_words(const struct stage_oracle *o)
{
    return (o->inst->n_blocks + 63) / 64;
}

static int first_block(const struct plan_ask *ask)
{
    int b = 0;
    while (!(ask->set[b / 64] >> (b % 64) & 1))
        b++;
    return b;
}

/*
 * The ask for the lowest identical run, with all replicas in one submesh, if there is
 * one; a set without gaps is a run.
 */
struct plan_ask oracle_canonical(const struct stage_oracle *o, const struct plan_ask *ask)
{
    struct plan_ask c = *ask;
    int n = o->inst->n_blocks;
    int64_t hosts, devices;
    if (oracle_submesh(o->inst, ask, &hosts, &devices)) {
        c.hosts = (int)hosts;
        c.devices = (int)devices;
        c.replicas = 1;
    }
    if (ask->set) {
        int members = 0;
        c.lo = first_block(ask);
        for (int b = 0; b < n; b++)
            if (ask->set[b / 64] >> (b % 64) & 1) {
                members++;
                c.hi = b;
            }
        if (c.hi - c.lo + 1 == members)
            c.set = NULL;
    }
    if (!c.set) {
        int lo = o->model->twin[c.lo * n + c.hi];
        c.hi += lo - c.lo;
        c.lo = lo;
    }
    return c;
}

static uint64_t hash_ask(const struct stage_oracle *o, const struct plan_ask *a)
{
    int64_t v[7] = {a->lo,   a->hi,       a->hosts,       a->devices,
                    a->kind, a->replicas, a->microbatches};
    uint64_t h = ap_hash(v, sizeof v, 1);
    return a->set ? ap_hash(a->set, sizeof *a->set * (size_t)set_words(o), h) : h;
}

static bool same_ask(const struct stage_oracle *o, const struct plan_ask *a,
                     const struct plan_ask *b)
{
    return a->lo == b->lo && a->hi == b->hi && a->hosts == b->hosts &&
           a->devices == b->devices && a->kind == b->kind && a->replicas == b->replicas &&
           a->microbatches == b->microbatches && !a->set == !b->set &&
           (!a->set || !memcmp(a->set, b->set, sizeof *a->set * (size_t)set_words(o)));
}

/* The entry of an ask, made when it is new. ask is canonical. */
static struct entry *find(struct stage_oracle *o, const struct plan_ask *ask)
{
    uint64_t hash = hash_ask(o, ask);
    struct ap_index_walk walk;
    for (int i = ap_index_first(&o->index, hash, &walk); i >= 0;
         i = ap_index_next(&o->index, &walk))
        if (same_ask(o, &o->entry[i]->ask, ask))
            return o->entry[i];
    struct entry *e = AP_NEW(o->arena, struct entry);
    e->ask = *ask;
    if (ask->set)
        e->ask.set =
            ap_arena_dup(o->arena, ask->set, sizeof *ask->set * (size_t)set_words(o));
    e->done = !oracle_submesh(o->inst, ask, &e->hosts, &e->devices);
    AP_ROOM(o->entry, o->n_entries, o->cap_entries);
    o->entry[o->n_entries] = e;
    ap_index_put(&o->index, hash, o->n_entries++);
    return e;
}

/* ---- what goes out ---- */

static void put_blocks(const struct stage_oracle *o, const struct plan_ask *ask,
                       struct ap_buf *line)
{
    if (!ask->set) {
        ap_buf_printf(line, ",\"blocks\":[%d,%d]", ask->lo, ask->hi);
        return;
    }
    const char *between = "";
    ap_buf_puts(line, ",\"set\":[");
    for (int b = 0; b < o->inst->n_blocks; b++)
        if (ask->set[b / 64] >> (b % 64) & 1) {
            ap_buf_printf(line, "%s%d", between, b);
            between = ",";
        }
    ap_buf_putc(line, ']');
}

const char *oracle_request(struct stage_oracle *o, int id, const struct plan_ask *ask,
                           int64_t hosts, int64_t devices, int mesh, int plan)
{
    struct ap_buf line = {0};
    ap_buf_printf(&line, "{\"id\":%d", id);
    put_blocks(o, ask, &line);
    ap_buf_printf(&line, ",\"mesh\":\"%s\",\"submesh\":[%lld,%lld]", o->mesh[mesh],
                  (long long)hosts, (long long)devices);
    ap_put_int(&line, "microbatches", ask->microbatches);
    if (plan >= 0)
        ap_put_int(&line, "plan", plan);
    ap_buf_putc(&line, '}');
    const char *text = ap_arena_strdup(o->arena, line.data);
    ap_buf_free(&line);
    return text;
}

static struct column *find_column(struct stage_oracle *o, const struct plan_ask *a)
{
    for (int i = 0; i < o->n_columns; i++) {
        struct column *c = &o->column[i];
        if (c->hosts == a->hosts && c->devices == a->devices && c->kind == a->kind &&
            c->replicas == a->replicas && c->microbatches == a->microbatches)
            return c;
    }
    AP_ROOM(o->column, o->n_columns, o->cap_columns);
    struct column *c = &o->column[o->n_columns++];
    *c = (struct column){a->hosts,    a->devices,      a->kind,
                         a->replicas, a->microbatches, NULL};
    c->least =
        stage_least_sec(o->arena, o->model, a->kind,
                        (int64_t)a->hosts * a->devices * a->replicas, a->microbatches);
    return c;
}

/* ---- what comes back ---- */

int oracle_take(void *ctx, const char *line, size_t len, struct ap_err *err)
{
    struct stage_oracle *o = ctx;
    struct answer a;
    if (answer_parse(o->arena, line, len, &a, err))
        return -1;
    int id = a.id >= 0 && a.id < o->n_batch ? (int)a.id : -1;
    if (id >= 0) {
        o->request[id].n_points = a.n_points;
        o->request[id].points = a.points;
        if (a.error) {
            o->stats.n_refused++;
            if (!o->refusal || strcmp(a.error, o->refusal) < 0)
                o->refusal = a.error;
        }
    }
    if (id >= 0 && o->detail) {
        o->detail[id].sharding = a.sharding;
        o->detail[id].names_only = a.names_only;
    } else {
        free(a.sharding);
    }
    return id >= 0 ? id : ap_err_set(err, "an id without a request");
}

static double point_sec(const struct plan_point *p)
{
    return p->forward_sec + p->backward_sec;
}

static bool covers(const struct plan_point *a, const struct plan_point *b)
{
    return point_sec(a) <= point_sec(b) &&
           a->sync_sec + a->update_sec <= b->sync_sec + b->update_sec &&
           a->stage_bytes <= b->stage_bytes &&
           plan_always_bytes(a) <= plan_always_bytes(b) &&
           a->microbatch_bytes <= b->microbatch_bytes;
}

static int compare_points(const void *pa, const void *pb)
{
    const struct plan_point *a = pa, *b = pb;
    double x = point_sec(a), y = point_sec(b);
    return x != y ? (x < y ? -1 : 1) : a->tag - b->tag;
}

static int add_origin(struct stage_oracle *o, int mesh, int index,
                      const struct answer_point *p)
{
    AP_ROOM(o->origin, o->n_origins, o->cap_origins);
    o->origin[o->n_origins] = (struct origin){mesh, index, *p};
    return o->n_origins++;
}

static bool is_wanted(const struct stage_oracle *o, const struct answer_point *p)
{
    switch (o->params->recompute) {
    case STAGE_RECOMPUTE_NONE:
        return !p->recompute;
    case STAGE_RECOMPUTE_ALL:
        return p->recompute;
    case STAGE_RECOMPUTE_AUTO:
    case STAGE_RECOMPUTE_SELECTED:
        break;
    }
    return true;
}

/* The union of the fronts of all meshes; ties go to the first. jobs: of its requests. */
static void join_fronts(struct stage_oracle *o, bool light, const int *jobs, int n_jobs,
                        struct plan_front *front)
{
    int n = 0, kept = 0;
    for (int r = 0; r < n_jobs; r++)
        n += o->request[jobs[r]].n_points;
    struct plan_point *all = AP_NEW_N(o->arena, n + 1, struct plan_point);
    for (int r = 0; r < n_jobs; r++) {
        const struct request *q = &o->request[jobs[r]];
        for (int i = 0; i < q->n_points; i++) {
            const struct answer_point *p = &q->points[i];
            struct plan_point new = {.forward_sec = p->forward_sec,
                                     .backward_sec = p->backward_sec,
                                     .sync_sec = p->sync_sec,
                                     .update_sec = p->update_sec,
                                     .stage_bytes = p->stage_bytes,
                                     .passing_bytes = p->passing_bytes,
                                     .microbatch_bytes = p->microbatch_bytes,
                                     .recompute = p->recompute,
                                     .mesh = q->mesh,
                                     .tag = -1};
            if (light && p->recompute)
                new.backward_sec = fmax(0, p->backward_sec - p->forward_sec);
            bool covered = !is_wanted(o, p);
            for (int k = 0; k < kept && !covered; k++)
                covered = covers(&all[k], &new);
            if (covered)
                continue;
            int left = 0;
            for (int k = 0; k < kept; k++)
                if (!covers(&new, &all[k]))
                    all[left++] = all[k];
            new.tag = add_origin(o, q->mesh, i, p);
            all[left++] = new;
            kept = left;
        }
    }
    qsort(all, (size_t)kept, sizeof *all, compare_points);
    front->n = kept;
    front->point = all;
}

/* Least time and memory of a front, below every plan's. */
static void bound_front(struct stage_oracle *o, const struct entry *e,
                        struct plan_front *front)
{
    const struct plan_ask *a = &e->ask;
    int64_t devices = e->hosts * e->devices, own = 0;
    const double *before = find_column(o, a)->least;
    double sec = 0;
    for (int b = 0; b < o->inst->n_blocks; b++) {
        if (a->set ? !(a->set[b / 64] >> (b % 64) & 1) : b < a->lo || b > a->hi)
            continue;
        sec += before[b + 1] - before[b];
        own = ap_add64(
            own, ap_add64(o->model->sums[b].weight_bytes, o->model->sums[b].state_bytes));
    }
    front->least_sec = sec * (1 - 1e-12);
    front->least_bytes = own / devices;
    for (int i = 0; i < front->n; i++) {
        const struct plan_point *p = &front->point[i];
        o->cheaper |= point_sec(p) < front->least_sec * (1 - 1e-6);
        front->least_sec = fmin(front->least_sec, point_sec(p));
        int64_t bytes = ap_add64(p->stage_bytes, p->microbatch_bytes);
        if (bytes < front->least_bytes)
            front->least_bytes = bytes;
    }
}

/* ---- asking ---- */

/* An entry's request on one of its meshes. */
struct query {
    const struct entry *entry;
    int n_axes, mesh, number;
};

/* What takes longest comes first, so that all processes end at about the same time. */
static int compare_queries(const void *pa, const void *pb)
{
    const struct query *a = pa, *b = pb;
    if (a->n_axes != b->n_axes)
        return b->n_axes - a->n_axes;
    return a->mesh != b->mesh ? a->mesh - b->mesh : a->number - b->number;
}

/* All requests of the entries, those of a mesh together. Caller frees. */
static struct query *list_queries(struct stage_oracle *o, struct entry **batch, int n,
                                  int *n_queries)
{
    struct query *queries = NULL;
    int k = 0, cap = 0;

    for (int i = 0; i < n; i++) {
        struct entry *e = batch[i];
        int rows[MAX_MESHES];
        e->first = k;
        e->n_requests = list_meshes(o, e->hosts, e->devices, rows);
        for (int r = 0; r < e->n_requests; r++) {
            AP_ROOM(queries, k, cap);
            int n_axes = strchr(o->mesh[rows[r]], 'x') ? 2 : 1;
            queries[k] = (struct query){e, n_axes, rows[r], k};
            k++;
        }
    }
    qsort(queries, (size_t)k, sizeof *queries, compare_queries);
    *n_queries = k;
    return queries;
}

static void take_fronts(struct stage_oracle *o, struct entry *e, const int *job_of)
{
    const int *jobs = &job_of[e->first];

    join_fronts(o, false, jobs, e->n_requests, &e->front);
    bound_front(o, e, &e->front);
    if (o->params->recompute == STAGE_RECOMPUTE_SELECTED) {
        join_fronts(o, true, jobs, e->n_requests, &e->light);
        bound_front(o, e, &e->light);
    }
    e->done = true;
    o->stats.n_fronts++;
}

/* The jobs of one kind among those of a batch. */
struct kind_jobs {
    struct stage_oracle *o;
    int *number; /* [id in the batch]: among the kind's, -1: of another */
};

/* oracle_take, for which a job's number is its place among the kind's. */
static int take_of_kind(void *ctx, const char *line, size_t len, struct ap_err *err)
{
    const struct kind_jobs *its = ctx;
    int id = oracle_take(its->o, line, len, err);

    if (id >= 0 && its->number[id] < 0)
        return ap_err_set(err, "an id without a request");
    return id < 0 ? -1 : its->number[id];
}

int oracle_run(struct stage_oracle *o, const struct coproc_job *jobs, const int *kind_of,
               int n, struct ap_err *err)
{
    int n_kinds = plan_n_kinds(o->inst), rc = 0;
    const double sec = o->params->limit_sec;

    if (n_kinds == 1)
        return coproc_run(o->pool[0], jobs, n, sec, oracle_take, o, err);
    struct kind_jobs its = {o, ap_xrealloc(NULL, sizeof(int) * (size_t)(n + 1))};
    struct coproc_job *job = ap_xrealloc(NULL, sizeof *job * (size_t)(n + 1));
    for (int kind = 0; kind < n_kinds && rc == 0; kind++) {
        int n_its = 0;
        for (int i = 0; i < n; i++) {
            its.number[i] = kind_of[i] == kind ? n_its : -1;
            if (kind_of[i] == kind)
                job[n_its++] = jobs[i];
        }
        if (n_its > 0)
            rc = coproc_run(o->pool[kind], job, n_its, sec, take_of_kind, &its, err);
    }
    free(its.number);
    free(job);
    return rc;
}

/* Asks for all entries; each occurs once. */
static int fetch(struct stage_oracle *o, struct entry **batch, int n, struct ap_err *err)
{
    struct query *queries = list_queries(o, batch, n, &o->n_batch);
    size_t n_jobs = (size_t)o->n_batch;
    o->request = ap_xrealloc(NULL, sizeof *o->request * n_jobs);
    struct coproc_job *jobs = ap_xrealloc(NULL, sizeof *jobs * n_jobs);
    int *job_of = ap_xrealloc(NULL, sizeof *job_of * n_jobs);   /* [part's number] */
    int *kind_of = ap_xrealloc(NULL, sizeof *kind_of * n_jobs); /* [job] */
    for (int id = 0; id < o->n_batch; id++) {
        const struct query *p = &queries[id];
        const struct entry *e = p->entry;
        job_of[p->number] = id;
        o->request[id] = (struct request){p->mesh, 0, NULL};
        jobs[id].group = p->mesh;
        kind_of[id] = e->ask.kind;
        jobs[id].line = oracle_request(o, id, &e->ask, e->hosts, e->devices, p->mesh, -1);
    }
    double start = ap_now_sec();
    int rc = oracle_run(o, jobs, kind_of, o->n_batch, err);
    o->stats.wait_sec += ap_now_sec() - start;
    o->stats.n_requests += o->n_batch;
    for (int i = 0; i < n && rc == 0; i++)
        take_fronts(o, batch[i], job_of);
    free(queries);
    free(jobs);
    free(job_of);
    free(kind_of);
    free(o->request);
    o->request = NULL;
    o->broken |= rc != 0;
    return rc;
}

int stage_oracle_ahead(void *oracle, const struct plan_ask *ask, int n,
                       struct ap_err *err)
{
    struct stage_oracle *o = oracle;
    struct entry **batch = ap_xrealloc(NULL, sizeof(struct entry *) * (size_t)n);
    int n_batch = 0;

    for (int i = 0; i < n; i++) {
        struct plan_ask key = oracle_canonical(o, &ask[i]);
        struct entry *e = find(o, &key);
        if (e->done || e->ahead)
            continue;
        e->ahead = true;
        batch[n_batch++] = e;
    }
    int rc = n_batch > 0 ? fetch(o, batch, n_batch, err) : 0;
    free(batch);
    return rc;
}

static int answer_ask(struct stage_oracle *o, const struct plan_ask *ask,
                      struct entry **entry, struct ap_err *err)
{
    struct plan_ask key = oracle_canonical(o, ask);
    struct entry *e = *entry = find(o, &key);

    if (!e->asked)
        o->stats.n_asked++;
    e->asked = true;
    return e->done ? 0 : fetch(o, entry, 1, err);
}

int stage_oracle_ask(void *oracle, const struct plan_ask *ask,
                     const struct plan_front **front, struct ap_err *err)
{
    struct entry *e;
    int rc = answer_ask(oracle, ask, &e, err);
    *front = &e->front;
    return rc;
}

int stage_oracle_ask_light(void *oracle, const struct plan_ask *ask,
                           const struct plan_front **front, struct ap_err *err)
{
    struct entry *e;
    int rc = answer_ask(oracle, ask, &e, err);
    *front = &e->light;
    return rc;
}

double stage_oracle_least(void *oracle, const struct plan_ask *ask)
{
    struct stage_oracle *o = oracle;
    struct plan_ask key = oracle_canonical(o, ask);
    if (key.set || o->cheaper)
        return 0;
    const double *before = find_column(o, &key)->least;
    return (before[key.hi + 1] - before[key.lo]) * (1 - 1e-9);
}

/* ---- start and stop ---- */

static int count_runs(const struct stage_model *m)
{
    int n = 0;

    for (int lo = 0; lo < m->blocks.n; lo++)
        for (int hi = lo; hi < m->blocks.n; hi++)
            n += m->twin[lo * m->blocks.n + hi] == lo;
    return n;
}

struct stage_oracle *stage_oracle_start(struct ap_arena *arena,
                                        const struct stage_model *model,
                                        const struct plan_instance *inst,
                                        const struct stage_oracle_params *params,
                                        struct coproc_pool *const *pool)
{
    struct stage_oracle *o = AP_NEW(arena, struct stage_oracle);
    o->arena = arena;
    o->model = model;
    o->inst = inst;
    o->params = params;
    o->stats.n_distinct = count_runs(model);
    o->pool = pool;
    return o;
}

struct stage_oracle *stage_oracle_share(struct stage_oracle *o,
                                        const struct stage_oracle_params *params)
{
    struct stage_oracle *again =
        stage_oracle_start(o->arena, o->model, o->inst, params, o->pool);
    again->lent = true;
    for (int i = 0; i < o->n_meshes; i++) /* who has searched a mesh is asked again */
        mesh_row(again, o->mesh[i]);
    return again;
}

bool stage_oracle_broken(const struct stage_oracle *o)
{
    return o->broken;
}

const char *stage_oracle_refusal(const struct stage_oracle *o)
{
    return o->refusal;
}

void stage_oracle_stats(const struct stage_oracle *o, struct stage_oracle_stats *stats)
{
    *stats = o->stats;
}

void stage_oracle_stop(struct stage_oracle *o)
{
    for (int kind = 0; kind < plan_n_kinds(o->inst) && !o->lent; kind++)
        coproc_stop(o->pool[kind]);
    for (int i = 0; i < o->n_plans; i++)
        free(o->plan[i].sharding);
    free(o->plan);
    free(o->entry);
    ap_index_free(&o->index);
    free(o->column);
    free(o->mesh);
    free(o->origin);
}
