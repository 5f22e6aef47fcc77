/* Random and synthetic instances of the problem of pipeline planners. */
#ifndef STAGE_ORACLE_H
#define STAGE_ORACLE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "judge/planner.h"

#define ORACLE_BLOCKS 512

struct oracle_slot {
    struct plan_ask key;
    struct plan_front *front;
};

/* Prices by a formula over sums of blocks, with noise by hash; answers are kept. */
struct oracle {
    struct ap_arena arena;
    double sec[ORACLE_BLOCKS];           /* forward of the whole batch on one device */
    int64_t weight_bytes[ORACLE_BLOCKS]; /* with gradients and states */
    int64_t activation_bytes[ORACLE_BLOCKS]; /* of the whole batch */
    double noise;               /* 0: none; otherwise 1 - noise .. 1 + noise */
    double hole;                /* share of asks that nothing runs */
    double loss;                /* of a doubling of devices */
    double launch_sec;          /* of a microbatch and block */
    double bandwidth;           /* of gradients' sums */
    bool recompute;             /* offers it */
    double recomputed;          /* bytes for it, of those of a microbatch */
    bool inference;             /* no backward */
    double speed[AP_MAX_KINDS]; /* of each kind of device, 0: 1 */
    uint64_t seed;
    struct oracle_slot *slot;
    size_t n_slots, n;
    int64_t n_asked;
    int64_t n_waves, n_alone; /* questions at once; those that nobody had announced */
};

static double oracle_speed(const struct oracle *o, const struct plan_ask *a)
{
    return o->speed[a->kind] > 0 ? o->speed[a->kind] : 1;
}

static double oracle_noise(const struct oracle *o, const struct plan_ask *a,
                           uint64_t salt)
{
    int64_t key[6] = {a->lo, a->hi, a->hosts, a->devices, a->replicas, a->microbatches};
    uint64_t h = ap_hash(key, sizeof key, o->seed + salt + 1000 * (uint64_t)a->kind);
    if (a->set)
        h = ap_hash(a->set, sizeof(uint64_t), h);
    return 1 + o->noise * (2 * ((double)(h >> 11) * 0x1p-53) - 1);
}

static struct plan_front *oracle_price(struct oracle *o, const struct plan_ask *a)
{
    struct plan_front *f = AP_NEW(&o->arena, struct plan_front);
    struct plan_point *p = AP_NEW_N(&o->arena, 3, struct plan_point);
    double sec = 0, d = a->hosts * a->devices;
    int64_t weights = 0, activations = 0, split;
    int n_blocks = 0;

    for (int b = a->lo; b <= a->hi; b++) {
        if (a->set && !(a->set[b / 64] >> (b % 64) & 1))
            continue;
        sec += o->sec[b];
        weights += o->weight_bytes[b];
        activations += o->activation_bytes[b];
        n_blocks++;
    }
    split = a->microbatches * a->replicas;
    if ((oracle_noise(o, a, 7) - 1) / (o->noise + 1e-9) < 2 * o->hole - 1)
        return f;
    double speed = d * pow(1 - o->loss, log2(d)) * oracle_speed(o, a);
    p->forward_sec =
        (sec / (double)split / speed + o->launch_sec * n_blocks) * oracle_noise(o, a, 1);
    p->backward_sec = 2 * p->forward_sec * oracle_noise(o, a, 2);
    p->sync_sec =
        a->replicas > 1 ? (double)weights / d / o->bandwidth * oracle_noise(o, a, 3) : 0;
    p->update_sec = (double)weights / d / o->bandwidth / 10 * oracle_noise(o, a, 4);
    p->stage_bytes = (int64_t)((double)weights / d * oracle_noise(o, a, 5));
    p->microbatch_bytes =
        (int64_t)((double)(activations / split) / d * oracle_noise(o, a, 6));
    f->n = 1;
    if (o->inference)
        p->backward_sec = p->sync_sec = p->update_sec = 0;
    if (o->recompute && !o->inference) {
        p[1] = p[0];
        p[1].backward_sec += p->forward_sec;
        p[1].microbatch_bytes = p->microbatch_bytes / 4;
        p[1].recompute = true;
        p[1].passing_bytes = (int64_t)(o->recomputed * (double)p->microbatch_bytes);
        p[1].stage_bytes += p[1].passing_bytes;
        f->n = 2;
    }
    f->point = p;
    f->least_sec = p->forward_sec + p->backward_sec;
    f->least_bytes = p[f->n - 1].stage_bytes + p[f->n - 1].microbatch_bytes;
    return f;
}

static bool oracle_same(const struct plan_ask *a, const struct plan_ask *b)
{
    return a->lo == b->lo && a->hi == b->hi && a->hosts == b->hosts &&
           a->devices == b->devices && a->kind == b->kind && a->replicas == b->replicas &&
           a->microbatches == b->microbatches &&
           (a->set ? b->set && *a->set == *b->set : !b->set);
}

static void oracle_put(struct oracle *o, const struct plan_ask *key,
                       struct plan_front *front)
{
    int64_t k[6] = {key->lo,      key->hi,       key->hosts,
                    key->devices, key->replicas, key->microbatches};
    size_t at = (size_t)ap_hash(k, sizeof k, 0) & (o->n_slots - 1);
    while (o->slot[at].front)
        at = (at + 1) & (o->n_slots - 1);
    o->slot[at].key = *key;
    o->slot[at].front = front;
}

static int oracle_answer(struct oracle *o, const struct plan_ask *a,
                         const struct plan_front **front)
{
    int64_t k[6] = {a->lo, a->hi, a->hosts, a->devices, a->replicas, a->microbatches};
    if (2 * (o->n + 1) > o->n_slots) {
        size_t old = o->n_slots;
        struct oracle_slot *was = o->slot;
        o->n_slots = old ? 2 * old : 1024;
        o->slot = calloc(o->n_slots, sizeof *o->slot);
        if (!o->slot)
            abort();
        for (size_t i = 0; i < old; i++)
            if (was[i].front)
                oracle_put(o, &was[i].key, was[i].front);
        free(was);
    }
    size_t at = (size_t)ap_hash(k, sizeof k, 0) & (o->n_slots - 1);
    for (; o->slot[at].front; at = (at + 1) & (o->n_slots - 1))
        if (oracle_same(&o->slot[at].key, a)) {
            *front = o->slot[at].front;
            return 0;
        }
    struct plan_ask key = *a;
    if (a->set)
        key.set = ap_arena_dup(&o->arena, a->set, sizeof(uint64_t));
    struct plan_front *f = oracle_price(o, a);
    oracle_put(o, &key, f);
    o->n++;
    o->n_asked++;
    *front = f;
    return 0;
}

static int oracle_ask(void *oracle, const struct plan_ask *a,
                      const struct plan_front **front, struct ap_err *err)
{
    struct oracle *o = oracle;
    int64_t before = o->n_asked;
    (void)err;
    int rc = oracle_answer(o, a, front);
    o->n_alone += o->n_asked - before;
    return rc;
}

static inline int oracle_ahead(void *oracle, const struct plan_ask *ask, int n,
                               struct ap_err *err)
{
    struct oracle *o = oracle;
    int64_t before = o->n_asked;
    (void)err;
    for (int i = 0; i < n; i++) {
        const struct plan_front *front;
        if (oracle_answer(o, &ask[i], &front))
            return -1;
    }
    o->n_waves += o->n_asked > before;
    return 0;
}

/* Without noise and with all devices at work. */
static inline double oracle_least(void *oracle, const struct plan_ask *a)
{
    const struct oracle *o = oracle;
    double sec = 0, d = a->hosts * a->devices * oracle_speed(o, a);
    for (int b = a->lo; b <= a->hi; b++)
        sec += o->sec[b];
    return (o->inference ? 1 : 3) * (sec / (double)(a->microbatches * a->replicas) / d) *
           (1 - o->noise) * (1 - o->noise);
}

static inline void oracle_free(struct oracle *o)
{
    free(o->slot);
    ap_arena_free(&o->arena);
}

/* ---- random instances ---- */

struct random_case {
    struct oracle oracle;
    struct plan_instance inst;
    struct ap_cluster cluster;
    struct plan_value value[2 * ORACLE_BLOCKS];
    int to[2 * ORACLE_BLOCKS][2];
    double flops[ORACLE_BLOCKS];
    int n_ops[ORACLE_BLOCKS], twin[ORACLE_BLOCKS * ORACLE_BLOCKS];
    int64_t microbatches[16];
    struct plan_kind kind[AP_MAX_KINDS];
    uint64_t state;
};

static inline uint64_t case_next(struct random_case *c)
{
    c->state += 0x9e3779b97f4a7c15u;
    return ap_hash(&c->state, sizeof c->state, 1);
}
static inline int case_int(struct random_case *c, int lo, int hi)
{
    return lo + (int)(case_next(c) % (uint64_t)(hi - lo + 1));
}
static inline double case_num(struct random_case *c, double lo, double hi)
{
    return lo + (hi - lo) * ((double)(case_next(c) >> 11) * 0x1p-53);
}

static inline void case_cluster(struct random_case *c, int hosts, int devices)
{
    c->cluster = (struct ap_cluster){
        .name = "test", .device = "test", .n_levels = 2, .memory_bytes = 1 << 30};
    c->cluster.levels[0] = (struct ap_link_level){
        .name = "host", .size = devices, .bandwidth_bytes_per_sec = 100e9};
    c->cluster.levels[1] = (struct ap_link_level){.name = "net",
                                                  .size = hosts,
                                                  .bandwidth_bytes_per_sec = 10e9,
                                                  .latency_sec = 1e-6,
                                                  .uplink = true};
    c->inst.cluster = &c->cluster;
    c->inst.n_hosts = hosts;
    c->inst.n_devices = devices;
}

/* A chain, with some values that skip blocks. */
static inline void case_values(struct random_case *c, int n, int skips, double bytes)
{
    int m = 0;
    for (int b = 0; b + 1 < n; b++) {
        struct plan_value *v = &c->value[m];
        c->to[m][0] = b + 1;
        *v = (struct plan_value){.from = b, .n_to = 1, .to = c->to[m], .split = true};
        v->forward_bytes = v->backward_bytes = (int64_t)bytes;
        m++;
        if (b + 3 < n && case_int(c, 0, 99) < skips) {
            v = &c->value[m];
            c->to[m][0] = case_int(c, b + 2, n - 1);
            *v = (struct plan_value){.from = b, .n_to = 1, .to = c->to[m]};
            v->forward_bytes = (int64_t)(bytes * case_num(c, 0, 0.2));
            v->split = case_int(c, 0, 1);
            v->backward_bytes = v->split ? v->forward_bytes : 0;
            m++;
        }
    }
    c->inst.n_values = m;
    c->inst.value = c->value;
}

static inline void case_instance(struct random_case *c, int n_blocks, int n_microbatches)
{
    c->inst.n_microbatches = n_microbatches;
    c->inst.microbatches = c->microbatches;
    c->inst.n_blocks = n_blocks;
    c->inst.flops = c->flops;
    c->inst.n_ops = c->n_ops;
    c->inst.ask = oracle_ask;
    c->inst.oracle = &c->oracle;
}

/* Up to max_blocks blocks, 8 devices and 4 numbers of microbatches. */
static inline void case_random(struct random_case *c, uint64_t seed, int max_blocks)
{
    static const int shape[][2] = {{1, 1}, {1, 2}, {2, 1}, {1, 4},
                                   {2, 2}, {1, 8}, {2, 4}, {4, 2}};
    memset(c, 0, sizeof *c);
    c->state = c->oracle.seed = seed;
    int n = case_int(c, max_blocks > 2 ? 2 : 1, max_blocks), k = case_int(c, 0, 7);
    double total = 0, act = 0;

    case_cluster(c, shape[k][0], shape[k][1]);
    for (int b = 0; b < n; b++) {
        c->flops[b] = case_num(c, 0.2, 2);
        c->n_ops[b] = case_int(c, 1, 20);
        c->oracle.sec[b] = c->flops[b] * 0.1;
        c->oracle.weight_bytes[b] = (int64_t)case_num(c, 1e8, 4e8);
        c->oracle.activation_bytes[b] = (int64_t)case_num(c, 1e8, 2e9);
        total += (double)c->oracle.weight_bytes[b];
        act += (double)c->oracle.activation_bytes[b];
    }
    c->oracle.noise = case_int(c, 0, 3) ? case_num(c, 0, 0.4) : 0.01;
    c->oracle.hole = case_int(c, 0, 3) ? 0 : 0.05;
    c->oracle.loss = case_num(c, 0, 0.6);
    c->oracle.launch_sec = case_num(c, 0, 0.0005);
    c->oracle.bandwidth = case_num(c, 1e9, 2e10);
    c->oracle.recompute = case_int(c, 0, 1);
    case_values(c, n, 30, case_num(c, 0, 1e8));
    int m = 0;
    int first = case_int(c, 0, 1) ? 1 : 4;
    for (int b = first; b <= 8 * first; b *= 2)
        if (case_int(c, 0, 2) || b == 4)
            c->microbatches[m++] = b;
    case_instance(c, n, m);
    if (case_int(c, 0, 1))
        c->inst.least = oracle_least;
    case_int(c, 0,
             1); /* two draws without a use: the instances are known by their seeds */
    case_int(c, 0, 1);
    if (case_int(c, 0, 2) > 0)
        c->inst.memory_bytes = (int64_t)((total + act / 4) * case_num(c, 0.3, 2) /
                                         (double)(shape[k][0] * shape[k][1]));
}

/* The same on hosts of two or three kinds, of 2 or 4 devices each. */
static inline void case_kinds(struct random_case *c, uint64_t seed, int max_blocks)
{
    case_random(c, seed, max_blocks);
    int n_kinds = seed % 3 == 0 ? 3 : 2, hosts = 0;

    for (int k = 0; k < n_kinds; k++) {
        c->kind[k] = (struct plan_kind){.first_host = hosts,
                                        .n_hosts = case_int(c, 1, n_kinds == 2 ? 2 : 1),
                                        .memory_share = k ? case_num(c, 0.4, 1) : 1,
                                        .speed = case_num(c, 0.3, 1)};
        hosts += c->kind[k].n_hosts;
        c->oracle.speed[k] = c->kind[k].speed;
    }
    case_cluster(c, hosts, n_kinds == 2 && hosts == 2 ? 4 : 2);
    c->inst.n_kinds = n_kinds;
    c->inst.kind = c->kind;
}

/* All but the first and the last are one block. */
static inline void case_alike(struct random_case *c, int n)
{
    for (int lo = 0; lo < n; lo++)
        for (int hi = lo; hi < n; hi++)
            c->twin[lo * n + hi] = lo > 0 && hi + 1 < n ? 1 : lo;
    c->inst.twin = c->twin;
}

/* n alike blocks of a GPT-3 layer's size, the first and the last different. */
static inline void case_layers(struct random_case *c, int n, int hosts, int devices,
                               int most_microbatches)
{
    memset(c, 0, sizeof *c);
    case_cluster(c, hosts, devices);
    c->cluster.levels[0].bandwidth_bytes_per_sec = 300e9;
    c->cluster.levels[1].bandwidth_bytes_per_sec = 100e9;
    for (int b = 0; b < n; b++) {
        double head = b == n - 1 ? 1.5 : b == 0 ? 0.5 : 1;
        c->flops[b] = head;
        c->n_ops[b] = 20;
        c->oracle.sec[b] = 25.0 * head; /* of a batch of 1536 x 2048 tokens, A100 */
        c->oracle.weight_bytes[b] = (int64_t)(1.8e9 * 16 * head);
        c->oracle.activation_bytes[b] = (int64_t)(34.0 * 1536 * 2048 * 12288 / 8);
    }
    c->oracle.noise = 0;
    c->oracle.loss = 0.05;
    c->oracle.launch_sec = 1e-4;
    c->oracle.bandwidth = 1e11;
    c->oracle.recompute = true;
    case_values(c, n, 0, 2.0 * 1536 * 2048 * 12288);
    int m = 0;
    for (int b = 1; b <= most_microbatches; b *= 2)
        c->microbatches[m++] = b;
    case_instance(c, n, m);
    case_alike(c, n);
    c->inst.monotone = true;
    c->inst.least = oracle_least;
    c->inst.memory_bytes = (int64_t)80e9;
}

static inline const struct plan_algorithm *case_algorithm(const char *name)
{
    const struct plan_algorithm *a = plan_algorithms();
    while (a->name && strcmp(a->name, name) != 0)
        a++;
    return a;
}

#endif
