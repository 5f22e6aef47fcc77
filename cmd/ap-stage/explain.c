/*
 * Problem: why no plan fits, and the smallest change found under which one does.
 * Idea: the leanest pipeline: lean(k, d) = least memory of the fullest device over the
 * ways to run the blocks from k on with d devices, a stage with s stages from it to the
 * end holding min(s, B) microbatches; equal memory goes to fewer stages. It is filled for
 * more hosts than there are, with the submeshes that there are, so that the number of
 * hosts under which a plan fits is read off. The largest number of microbatches is
 * looked at and, unless it fits, the smallest, without replicas; of many blocks every so
 * many are the places for cuts, since each run of blocks has to be asked for on each
 * submesh, all of them at once.
 * Cost: O(places^2 submeshes devices) for up to 16 places and 128 units of devices.
 */
#include <math.h>

#include "space.h"

#define MAX_PLACES 16

struct lean {
    int64_t bytes; /* INT64_MAX: nothing runs it */
    int n_stages;
    bool recompute; /* some stage */
};

struct leanest {
    struct space *sp;
    struct config c;
    int n_units, unit;  /* of devices */
    int step;           /* a cut lies in front of every so many blocks */
    struct lean *table; /* [block * (n_units + 1) + units] */
};

static bool fits_in(const struct plan_front *front, int flight, struct lean *out)
{
    out->bytes = INT64_MAX;
    for (int i = 0; i < front->n; i++) {
        const struct plan_point *p = &front->point[i];
        int64_t bytes = ap_add64(p->stage_bytes, ap_mul64(p->microbatch_bytes, flight));
        if (bytes < out->bytes) {
            out->bytes = bytes;
            out->recompute = p->recompute;
        }
    }
    return front->n > 0;
}

/* Stages that begin at block k and end at hi on one mesh, in front of what follows. */
static void extend(struct leanest *l, int k, int hi, int size,
                   const struct plan_front *front)
{
    int units = (size + l->unit - 1) / l->unit, known = -1;
    struct lean own = {0};

    for (int d = units; d <= l->n_units; d++) {
        const struct lean *rest = &l->table[(hi + 1) * (l->n_units + 1) + d - units];
        struct lean *best = &l->table[k * (l->n_units + 1) + d];
        if (rest->bytes == INT64_MAX)
            continue;
        if (known != rest->n_stages) {
            known = rest->n_stages;
            fits_in(front, plan_in_flight(AP_SCHEDULE_1F1B, known + 1, l->c.microbatches),
                    &own);
        }
        int64_t bytes = own.bytes > rest->bytes ? own.bytes : rest->bytes;
        if (bytes < best->bytes || (bytes == best->bytes && known + 1 < best->n_stages))
            *best = (struct lean){bytes, known + 1, own.recompute || rest->recompute};
    }
}

/* The last block of a stage that ends with the places from `end` on. */
static int last_block(const struct leanest *l, int end)
{
    return end + l->step < l->sp->n ? end + l->step - 1 : l->sp->n - 1;
}

static int ask_all(struct leanest *l, struct ap_err *err)
{
    for (int k = 0; k < l->sp->n; k += l->step)
        for (int end = k; end < l->sp->n; end += l->step)
            for (int m = 0; m < l->c.n_meshes; m++)
                config_note(l->sp, &l->c, k, last_block(l, end), m);
    return space_ask_noted(l->sp, err);
}

static int fill(struct leanest *l, struct ap_err *err)
{
    int n = l->sp->n, row = l->n_units + 1;

    if (ask_all(l, err))
        return -1;
    l->table = AP_NEW_N(l->sp->arena, (n + 1) * row, struct lean);
    for (int k = (n - 1) / l->step * l->step; k >= 0; k -= l->step) {
        for (int d = 0; d < row; d++)
            l->table[k * row + d].bytes = INT64_MAX;
        for (int end = k; end < n; end += l->step) {
            int hi = last_block(l, end);
            for (int m = 0; m < l->c.n_meshes; m++) {
                const struct plan_front *front;
                if (config_front(l->sp, &l->c, k, hi, m, &front, err))
                    return -1;
                if (front->n > 0)
                    extend(l, k, hi, mesh_size(&l->c.mesh[m]), front);
            }
        }
    }
    return 0;
}

static int look(struct space *sp, int64_t microbatches, int more, struct leanest *l,
                struct ap_err *err)
{
    *l = (struct leanest){
        .sp = sp, .unit = 1, .step = (sp->n + MAX_PLACES - 1) / MAX_PLACES};
    config_init(sp, &l->c, 1, microbatches, NULL, 0);
    int devices = l->c.hosts * l->c.devices;
    while (devices / l->unit > 16)
        l->unit *= 2;
    l->n_units = more * (devices / l->unit);
    return fill(l, err);
}

#define MORE 8

int plan_explain(struct space *sp, const char *name, struct ap_err *err)
{
    const struct plan_instance *inst = sp->inst;
    struct lean best = {INT64_MAX, 0, false};
    int64_t at[2] = {inst->microbatches[inst->n_microbatches - 1], inst->microbatches[0]};
    int64_t with = 0;
    int factor = 0;

    if (sp->params->n_stages > sp->n)
        return ap_err_set(err,
                          "%s: %d stages are more than %d blocks: ask for %d at most, "
                          "or make more blocks",
                          name, sp->params->n_stages, sp->n, sp->n),
               1;
    if (sp->params->brief)
        return ap_err_set(err, "%s: no plan under the limits", name), 1;
    for (int i = 0; i < (inst->n_microbatches > 1 ? 2 : 1); i++) {
        struct leanest l;
        if (best.bytes <= inst->memory_bytes)
            break; /* that one will do */
        if (look(sp, at[i], MORE, &l, err))
            return -1;
        const struct lean *first = l.table;
        int all = l.n_units / MORE;
        for (int d = 1; d <= all; d++)
            if (first[d].bytes < best.bytes) {
                best = first[d];
                with = at[i];
            }
        for (int f = MORE; f > 1; f--)
            for (int d = 1; d <= f * all; d++)
                if (first[d].bytes <= inst->memory_bytes && (!factor || f < factor))
                    factor = f;
    }
    if (best.bytes == INT64_MAX)
        return ap_err_set(err,
                          "%s: no stage runs any of its submeshes: the oracle has no "
                          "plan for the blocks with %lld microbatches (batch too "
                          "small, or no memory)",
                          name, (long long)inst->microbatches[0]),
               1;
    if (inst->memory_bytes == 0 || best.bytes <= inst->memory_bytes)
        return ap_err_set(err,
                          "%s: no plan%s under its own rules; one of %d stage%s and "
                          "%lld microbatches%s, of any sizes, fits: try auto",
                          name, sp->params->n_stages > 0 ? " of so many stages" : "",
                          best.n_stages, best.n_stages == 1 ? "" : "s", (long long)with,
                          best.recompute ? " with recomputation" : ""),
               1;
    ap_err_set(err,
               "%s: nothing fits in %lld bytes of memory: the leanest plan found (%d "
               "stages, %lld microbatches%s) needs %lld bytes per device",
               name, (long long)inst->memory_bytes, best.n_stages, (long long)with,
               best.recompute ? ", with recomputation" : "", (long long)best.bytes);
    if (factor > 0) {
        size_t len = 0;
        while (err->msg[len])
            len++;
        struct ap_err more = {0};
        ap_err_set(&more, "%s; or %d hosts in place of %d", err->msg,
                   factor * inst->n_hosts, inst->n_hosts);
        *err = more;
    }
    return 1;
}
