/*
 * Problem: planners compare plans before anyone knows the layouts of what crosses between
 * their stages; the price of the answer knows them.
 * Idea: as ap_pipeline_price, but for the layouts: a value goes straight from its maker
 * to each stage that reads it, spread evenly over all pairs of devices of all replicas,
 * and arrives once, in parts. What is gathered there is left out. Links between two
 * places are kept, as the same ones come again and again. Cost: linear in values and
 * stages that read them, and in the devices for a new link.
 */
#include "judge/planner.h"

#include <string.h>

enum { N_SLOTS = 4096 };

struct place {
    int replicas, kind[2], first_host[2], first_device[2], hosts[2], devices[2];
};
struct plan_links {
    struct slot {
        struct place key; /* replicas 0: empty */
        struct ap_link link;
    } slot[N_SLOTS];
};

struct plan_links *plan_links_new(struct ap_arena *arena)
{
    return AP_NEW(arena, struct plan_links);
}

/* All replicas' devices, ascending. */
static struct ap_devices list(struct ap_arena *arena, const struct plan_instance *inst,
                              int replicas, const struct plan_stage *st)
{
    int64_t all = (int64_t)plan_kind_hosts(inst, st->kind) * inst->n_devices;
    int64_t stride = all / replicas, host = plan_kind_first(inst, st->kind);
    int64_t *id = AP_NEW_N(arena, replicas * st->hosts * st->devices, int64_t), n = 0;

    for (int r = 0; r < replicas; r++)
        for (int h = 0; h < st->hosts; h++)
            for (int d = 0; d < st->devices; d++)
                id[n++] = r * stride + (host + st->first_host + h) * inst->n_devices +
                          st->first_device + d;
    return (struct ap_devices){n, id};
}

struct ap_link plan_link_between(const struct plan_instance *inst, int replicas,
                                 const struct plan_stage *from,
                                 const struct plan_stage *to)
{
    struct place key = {
        replicas,
        {from->kind, to->kind},
        {from->first_host, to->first_host},
        {from->first_device, to->first_device},
        {from->hosts, to->hosts},
        {from->devices, to->devices},
    };
    struct slot none = {.key = {0}}, *slot = &none;

    if (inst->links)
        slot = &inst->links->slot[ap_hash(&key, sizeof key, 0) % N_SLOTS];
    if (memcmp(&slot->key, &key, sizeof key) != 0) {
        struct ap_arena scratch = {0};
        struct ap_devices a = list(&scratch, inst, replicas, from);
        struct ap_devices b = list(&scratch, inst, replicas, to);
        slot->key = key;
        slot->link = ap_link_between(inst->cluster, &a, &b);
        ap_arena_free(&scratch);
    }
    return slot->link;
}

struct estimate {
    const struct plan_instance *inst;
    const struct plan_answer *a;
    struct ap_sim_stage *stages;
};

static double send_sec(const struct estimate *g, int from, int to, int64_t bytes, int n,
                       int *level)
{
    struct ap_link link =
        plan_link_between(g->inst, g->a->replicas, &g->a->stage[from], &g->a->stage[to]);
    *level = link.level > *level ? link.level : *level;
    return ap_link_sec(&link, (double)bytes, n);
}

/* Bytes of a microbatch of all replicas. */
static int64_t bytes_of(const struct estimate *g, const struct plan_value *v, int64_t all)
{
    return v->split ? ap_ceil_div(all, g->a->microbatches) : all;
}

static void send_forward(const struct estimate *g, const struct plan_value *v, int from,
                         int to)
{
    int64_t bytes = bytes_of(g, v, v->forward_bytes);
    struct ap_sim_stage *st = &g->stages[from];

    if (bytes == 0 || from == to)
        return;
    st->send_forward_bytes += bytes;
    st->send_forward_sec +=
        send_sec(g, from, to, bytes, v->n_forward, &st->send_forward_level);
}

static void send_backward(const struct estimate *g, const struct plan_value *v, int from,
                          int to)
{
    int64_t bytes = v->once ? v->backward_bytes : bytes_of(g, v, v->backward_bytes);
    struct ap_sim_stage *st = &g->stages[from];
    int level = 0;

    if (bytes == 0 || from == to)
        return;
    if (v->once) {
        double sec = send_sec(g, from, to, bytes, v->n_backward, &level);
        st->sync_sec += sec;
        st->update_sec += sec;
        g->stages[to].sync_sec += sec;
        return;
    }
    st->send_backward_bytes += bytes;
    st->send_backward_sec +=
        send_sec(g, from, to, bytes, v->n_backward, &st->send_backward_level);
}

void plan_estimate_sends(const struct plan_instance *inst,
                         const struct plan_answer *answer, struct ap_sim_stage *stages)
{
    struct estimate g = {inst, answer, stages};
    struct ap_arena scratch = {0};
    int *stage_of = AP_NEW_N(&scratch, inst->n_blocks, int);
    int *last =
        AP_NEW_N(&scratch, answer->n_stages, int); /* value that went there, + 1 */

    if (answer->n_stages > 1)
        plan_stages_of(inst, answer, stage_of);
    for (int i = 0; i < inst->n_values && answer->n_stages > 1; i++) {
        const struct plan_value *v = &inst->value[i];
        int from = stage_of[v->from];
        for (int k = 0; k < v->n_to; k++) {
            int to = stage_of[v->to[k]];
            if (last[to] == i + 1)
                continue;
            last[to] = i + 1;
            send_forward(&g, v, from, to);
            send_backward(&g, v, to, from);
        }
    }
    ap_arena_free(&scratch);
}
