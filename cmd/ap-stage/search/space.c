/*
 * What planners ask, and how. Runs of blocks with the same content have one number, so
 * that a front is asked for once; what a configuration knows is a table of fronts by run
 * and submesh. Numbering takes O(blocks^2), an ask of what is known O(1).
 */
#include "search/space.h"

#include "base/array.h"

#include <math.h>
#include <string.h>

/* ---- runs ---- */

/* Numbers runs, identical ones once. */
static void number_runs(struct space *sp)
{
    const int *twin = sp->inst->twin;
    int n = sp->n, most = n * (n + 1) / 2;

    sp->run = AP_NEW_N(sp->arena, n * n, int);
    sp->run_lo = AP_NEW_N(sp->arena, most, int);
    sp->run_hi = AP_NEW_N(sp->arena, most, int);
    for (int lo = 0; lo < n; lo++)
        for (int hi = lo; hi < n; hi++) {
            const int first = twin ? twin[lo * n + hi] : lo;
            int *run = &sp->run[lo * n + hi];
            *run = first < lo ? sp->run[first * n + first + hi - lo] : sp->n_runs++;
            if (first == lo) {
                sp->run_lo[*run] = lo;
                sp->run_hi[*run] = hi;
            }
        }
}

static void sum_cuts(struct space *sp)
{
    int n = sp->n;
    for (int back = 0; back < 2; back++) {
        int64_t *split = AP_NEW_N(sp->arena, n + 1, int64_t);
        int64_t *whole = AP_NEW_N(sp->arena, n + 1, int64_t);
        for (int i = 0; i < sp->inst->n_values; i++) {
            const struct plan_value *v = &sp->inst->value[i];
            int64_t bytes = back ? v->backward_bytes : v->forward_bytes;
            int64_t *sum = v->split ? split : whole;
            sum[v->from] += bytes;
            sum[v->n_to > 0 ? v->to[v->n_to - 1] : v->from] -= bytes;
        }
        for (int b = 1; b < n; b++) {
            split[b] += split[b - 1];
            whole[b] += whole[b - 1];
        }
        sp->split_bytes[back] = split;
        sp->whole_bytes[back] = whole;
    }
}

void space_init(struct space *sp, struct ap_arena *arena,
                const struct plan_instance *inst, const struct plan_params *params)
{
    *sp = (struct space){
        .arena = arena, .inst = inst, .params = params, .n = inst->n_blocks};
    number_runs(sp);
    sum_cuts(sp);
}

/* ---- configurations ---- */

static bool list_submeshes(struct space *sp, struct config *c)
{
    const struct plan_params *p = sp->params;
    struct ap_buf all = {0};
    int space = p->n_submeshes > 0 ? PLAN_ALL_SUBMESHES : p->submesh_space, kept = 0;

    for (int kind = 0; kind < c->counts.n_kinds; kind++) {
        struct plan_submesh *mesh;
        int hosts, devices;
        plan_grid(sp->inst, kind, c->replicas, &hosts, &devices);
        int n = plan_submeshes(sp->arena, space, hosts, devices, &mesh);
        for (int i = 0; i < n; i++) {
            mesh[i].kind = kind;
            if (!plan_may_have(p, mesh[i].hosts, mesh[i].devices))
                continue;
            ap_buf_put(&all, &mesh[i], sizeof mesh[i]);
            kept++;
        }
    }
    c->mesh = ap_arena_dup(sp->arena, all.data, all.len);
    c->n_meshes = kept;
    ap_buf_free(&all);
    return kept > 0;
}

/* Devices of a replica by kind; false: they do not divide. */
static bool count_devices(const struct plan_instance *inst, struct config *c)
{
    c->counts = (struct plan_counts){.n_kinds = plan_n_kinds(inst), .width = 1};
    for (int kind = c->counts.n_kinds - 1; kind >= 0; kind--) {
        if (!plan_grid(inst, kind, c->replicas, &c->hosts, &c->devices))
            return false;
        c->counts.most[kind] = c->hosts * c->devices;
        c->counts.stride[kind] = c->counts.width;
        c->counts.width *= c->counts.most[kind] + 1;
        c->speed[kind] = plan_kind_speed(inst, kind);
        c->capacity += c->counts.most[kind] * c->speed[kind];
    }
    return true;
}

bool config_init(struct space *sp, struct config *c, int replicas, int64_t microbatches,
                 const struct plan_submesh *mesh, int n_meshes)
{
    *c = (struct config){.replicas = replicas, .microbatches = microbatches};
    if (!count_devices(sp->inst, c))
        return false;
    c->mesh = mesh;
    c->n_meshes = n_meshes;
    if (!mesh && !list_submeshes(sp, c))
        return false;
    c->front = AP_NEW_N(sp->arena, sp->n_runs * c->n_meshes, const struct plan_front *);
    return true;
}

static struct plan_ask ask_of(const struct space *sp, const struct config *c, int run,
                              int mesh)
{
    return (struct plan_ask){.lo = sp->run_lo[run],
                             .hi = sp->run_hi[run],
                             .hosts = c->mesh[mesh].hosts,
                             .devices = c->mesh[mesh].devices,
                             .kind = c->mesh[mesh].kind,
                             .replicas = c->replicas,
                             .microbatches = c->microbatches};
}

bool config_note(struct space *sp, struct config *c, int lo, int hi, int mesh)
{
    int run = sp->run[lo * sp->n + hi];

    if (c->front[run * c->n_meshes + mesh])
        return false;
    AP_ROOM_IN(sp->arena, sp->noted, sp->n_noted, sp->cap_noted);
    sp->noted[sp->n_noted++] = ask_of(sp, c, run, mesh);
    return true;
}

int space_ask_noted(struct space *sp, struct ap_err *err)
{
    int n = sp->n_noted;

    sp->n_noted = 0;
    if (n == 0 || !sp->inst->ahead)
        return 0;
    return sp->inst->ahead(sp->inst->oracle, sp->noted, n, err);
}

int config_front(struct space *sp, struct config *c, int lo, int hi, int mesh,
                 const struct plan_front **front, struct ap_err *err)
{
    int run = sp->run[lo * sp->n + hi];
    const struct plan_front **cell = &c->front[run * c->n_meshes + mesh];

    if (!*cell) {
        struct plan_ask ask = ask_of(sp, c, run, mesh);
        if (sp->inst->ask(sp->inst->oracle, &ask, cell, err))
            return -1;
        sp->n_asked++;
    }
    *front = *cell;
    return 0;
}

int64_t config_cut(const struct space *sp, const struct config *c, int block,
                   bool backward)
{
    return sp->split_bytes[backward][block] / (c->microbatches * c->replicas) +
           sp->whole_bytes[backward][block];
}

const struct plan_point *plan_fastest(const struct plan_instance *inst, int kind,
                                      const struct plan_front *front,
                                      int64_t microbatches, int flight)
{
    const struct plan_point *best = NULL;
    double least = INFINITY;

    for (int i = 0; i < front->n; i++) {
        const struct plan_point *p = &front->point[i];
        double sec = (double)microbatches * (p->forward_sec + p->backward_sec) +
                     p->sync_sec + p->update_sec;
        if (sec < least && plan_fits(inst, kind, p, flight)) {
            least = sec;
            best = p;
        }
    }
    return best;
}

/* ---- answers ---- */

struct plan_answer plan_copy(struct ap_arena *arena, const struct plan_answer *a)
{
    struct plan_answer copy = *a;
    copy.stage = ap_arena_dup(arena, a->stage, (size_t)a->n_stages * sizeof *a->stage);
    return copy;
}

double plan_score(const struct plan_instance *inst, const struct plan_params *params,
                  const struct plan_answer *a)
{
    return inst->inference && !params->latency ? a->batch_sec : a->step_sec;
}

int plan_check_schedule(const char *name, const struct plan_params *params,
                        struct ap_err *err)
{
    if (params->schedule <= AP_SCHEDULE_1F1B || params->schedule == AP_SCHEDULE_INFERENCE)
        return 0;
    return ap_err_set(err, "%s: plans for 1f1b and gpipe, not %s", name,
                      ap_schedule_names[params->schedule]);
}

int plan_none_fits(const char *name, struct ap_err *err)
{
    ap_err_set(err, "%s: no plan under the limits", name);
    return 1;
}

double plan_least_bare(const struct plan_answer *a)
{
    int groups = plan_groups(a);
    double b = (double)a->microbatches, way = 0, back = 0, least = 0;

    for (int g = 0; g < groups; g++) {
        double all = way, once = 0;
        for (int s = g; s < a->n_stages; s += groups) {
            const struct plan_point *p = a->stage[s].point;
            all += b * (p->forward_sec + p->backward_sec);
            once += p->update_sec + p->sync_sec;
        }
        least = fmax(least, all + fmax(back, once));
        way += a->stage[g].point->forward_sec;
        back += a->stage[g].point->backward_sec;
    }
    return least * (1 - 1e-9);
}

void shortlist_put(struct ap_arena *arena, struct shortlist *l, double score,
                   const struct plan_answer *a)
{
    int at = 0;
    if (l->n == SHORTLIST && score >= l->score[l->n - 1])
        return;
    while (at < l->n && !plan_same(&l->plan[at], a))
        at++;
    if (at == SHORTLIST)
        at--;
    if (at < l->n && score >= l->score[at])
        return;
    if (at == l->n)
        l->n++;
    for (; at > 0 && l->score[at - 1] > score; at--) {
        l->plan[at] = l->plan[at - 1];
        l->score[at] = l->score[at - 1];
    }
    l->plan[at] = plan_copy(arena, a);
    l->score[at] = score;
}

int plan_try(struct space *sp, struct plan_answer *a, double *score, struct ap_err *err)
{
    sp->n_plans++;
    for (int s = 0; s < a->n_stages; s++)
        if (!plan_may_have(sp->params, a->stage[s].hosts, a->stage[s].devices))
            return ap_err_set(err, "stage %d: %dx%d is not one of the submeshes", s,
                              a->stage[s].hosts, a->stage[s].devices),
                   1;
    int rc = plan_judge(sp->arena, sp->inst, a, err);
    if (rc == 0)
        *score = plan_score(sp->inst, sp->params, a);
    return rc;
}
