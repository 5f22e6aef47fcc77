/*
 * Problem: in which order does a device of a pipeline run its passes? Idea: three kinds
 * of rules. Most schedules are pairs: a number of forwards in advance, then one backward,
 * one forward and so on; where backward passes are split, the weights of the oldest one
 * follow once more than so many wait. ZB-V and DualPipe-V are scripts of phases. V-Half
 * and V-Min repeat a pattern of six slots and put weights where a slot is free. Cost:
 * linear in the instructions. Source: GPipe (Huang et al., NeurIPS 2019, section 2.3),
 * 1F1B (Fan et al., "DAPPLE", PPoPP 2021, section 3), interleaved 1F1B (Narayanan et al.,
 * SC 2021, section 2.2), eager 1F1B (Zhuang et al., "On Optimizing the Communication of
 * Model Parallelism", MLSys 2023, section 4; Alpa's 1f1b_overlap_friendly), breadth-first
 * (Lamy-Poirier, MLSys 2023), zero bubble (Qi et al., "Zero Bubble Pipeline Parallelism",
 * ICLR 2024; "Pipeline Parallelism with Controllable Memory", NeurIPS 2024), DualPipe-V
 * (DeepSeek's DualPipe; torch.distributed.pipelining's ScheduleDualPipeV and
 * ScheduleZBVZeroBubble).
 */
#include "pipeline/schedule.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

const char *const ap_schedule_names[AP_N_SCHEDULES] = {
    "gpipe",  "1f1b",  "interleaved-1f1b", "looped-bfs", "zb-h1",     "zb-h2", "zb-v",
    "v-half", "v-min", "dualpipe-v",       "inference",  "eager-1f1b"};
const char *const ap_pass_names[AP_N_PASSES] = {"forward", "backward", "weights"};

const struct ap_schedule_traits ap_schedule_traits[AP_N_SCHEDULES] = {
    [AP_SCHEDULE_GPIPE] = {1, 1, .may_wait = true},
    [AP_SCHEDULE_1F1B] = {1, 1, .may_wait = true},
    [AP_SCHEDULE_INTERLEAVED] = {1, INT_MAX},
    [AP_SCHEDULE_LOOPED_BFS] = {2, INT_MAX},
    [AP_SCHEDULE_ZB_H1] = {1, INT_MAX, .splits = true},
    [AP_SCHEDULE_ZB_H2] = {1, 1, .splits = true},
    [AP_SCHEDULE_ZB_V] = {2, 2, .splits = true, .is_v = true},
    [AP_SCHEDULE_V_HALF] = {2, 2, .splits = true, .is_v = true},
    [AP_SCHEDULE_V_MIN] = {2, 2, .splits = true, .is_v = true},
    [AP_SCHEDULE_DUALPIPE_V] = {2, 2, .splits = true, .is_v = true},
    [AP_SCHEDULE_INFERENCE] = {1, 1, .may_wait = true},
    [AP_SCHEDULE_EAGER] = {1, 1},
};

int ap_schedule_device(enum ap_schedule schedule, int n_devices, int stage)
{
    return ap_schedule_traits[schedule].is_v && stage >= n_devices
               ? 2 * n_devices - 1 - stage
               : stage % n_devices;
}

int ap_schedule_stage(enum ap_schedule schedule, int n_devices, int device, int chunk)
{
    return ap_schedule_traits[schedule].is_v && chunk > 0 ? 2 * n_devices - 1 - device
                                                          : chunk * n_devices + device;
}

int ap_schedule_check(const struct ap_schedule_size *z, struct ap_err *err)
{
    const struct ap_schedule_traits *t = &ap_schedule_traits[z->schedule];
    const char *name = ap_schedule_names[z->schedule];
    const bool groups = z->schedule == AP_SCHEDULE_INTERLEAVED ||
                        (z->schedule == AP_SCHEDULE_ZB_H1 && z->chunks > 1);

    if (z->n_devices < 1 || z->microbatches < 1 || z->chunks < 1)
        return ap_err_set(err, "%s: expected stages, chunks and microbatches > 0", name);
    if (z->chunks < t->least_chunks || z->chunks > t->most_chunks)
        return ap_err_set(err, "%s: a device has %s, not %d", name,
                          t->most_chunks == 1   ? "one stage"
                          : t->most_chunks == 2 ? "two stages"
                                                : "two stages or more",
                          z->chunks);
    if (groups && z->microbatches % z->n_devices != 0)
        return ap_err_set(err, "%s: %d devices do not divide %d microbatches", name,
                          z->n_devices, z->microbatches);
    if (z->schedule == AP_SCHEDULE_DUALPIPE_V && z->microbatches < 2 * z->n_devices)
        return ap_err_set(err, "%s: %d microbatches are fewer than twice the %d devices",
                          name, z->microbatches, z->n_devices);
    if (ap_mul64(ap_mul64(AP_N_PASSES, z->microbatches), z->chunks) > INT_MAX / 2 ||
        z->n_devices > INT_MAX / 16)
        return ap_err_set(err, "%s: %d microbatches are too many", name, z->microbatches);
    return 0;
}

struct lister {
    const struct ap_schedule_size *z;
    int device, n, oldest;    /* oldest: backward in the list whose weights come next */
    int next[AP_N_PASSES][2]; /* [pass][chunk] of a V: microbatch that comes next */
    struct ap_instr *list;
};

/* ---- pairs ---- */

struct ap_instr ap_schedule_pass(const struct ap_schedule_size *z, int k, int device,
                                 enum ap_pass pass)
{
    const int n = z->schedule == AP_SCHEDULE_LOOPED_BFS ? z->microbatches : z->n_devices;
    const int group = n * z->chunks;
    int chunk = k % group / n;

    if (pass != AP_PASS_FORWARD)
        chunk = z->chunks - 1 - chunk;
    return (struct ap_instr){.stage = chunk * z->n_devices + device,
                             .microbatch = k / group * n + k % n,
                             .pass = pass};
}

/* How many backward passes may wait for their weights. */
static int lag_of(const struct ap_schedule_size *z, int device)
{
    return z->schedule == AP_SCHEDULE_ZB_H2 ? 2 * device : device;
}

static void list_pairs(struct lister *l)
{
    const struct ap_schedule_size *z = l->z;
    const int n = z->microbatches * z->chunks, lag = lag_of(z, l->device);
    const int warm = ap_schedule_warm_up(z, n, l->device);
    const bool splits = ap_schedule_traits[z->schedule].splits;
    const int n_backward = z->schedule == AP_SCHEDULE_INFERENCE ? 0 : n;

    for (int k = 0; k < warm; k++)
        l->list[l->n++] = ap_schedule_pass(z, k, l->device, AP_PASS_FORWARD);
    for (int k = 0; k < n_backward; k++) {
        l->list[l->n++] = ap_schedule_pass(z, k, l->device, AP_PASS_BACKWARD);
        if (splits && k >= lag)
            l->list[l->n++] = ap_schedule_pass(z, k - lag, l->device, AP_PASS_WEIGHTS);
        if (warm + k < n)
            l->list[l->n++] = ap_schedule_pass(z, warm + k, l->device, AP_PASS_FORWARD);
    }
    for (int k = n - lag > 0 ? n - lag : 0; splits && k < n; k++)
        l->list[l->n++] = ap_schedule_pass(z, k, l->device, AP_PASS_WEIGHTS);
}

/* ---- passes of a V ---- */

/* The next microbatch's pass; padded schedules have more than there are. */
static void add_next(struct lister *l, enum ap_pass pass, int chunk)
{
    const int m = l->next[pass][chunk]++;

    if (m < l->z->microbatches)
        l->list[l->n++] = (struct ap_instr){
            ap_schedule_stage(l->z->schedule, l->z->n_devices, l->device, chunk), m,
            pass};
}

/* Weights of the backward pass that waits longest; false: none waits. */
static bool add_oldest(struct lister *l)
{
    for (; l->oldest < l->n; l->oldest++) {
        const struct ap_instr *i = &l->list[l->oldest];
        const int chunk = i->stage >= l->z->n_devices;
        if (i->pass != AP_PASS_BACKWARD ||
            i->microbatch < l->next[AP_PASS_WEIGHTS][chunk])
            continue;
        add_next(l, AP_PASS_WEIGHTS, chunk);
        return true;
    }
    return false;
}

/* ---- scripts ---- */

enum times { ALL, HALF, ODD };
/* The passes so many times: p * devices + r * device + n * microbatches + more; half of
 * it, or whether it is odd. "W" without a chunk is the oldest. */
struct phase {
    int p, r, n, more;
    enum times times;
    const char *passes;
};

/* The paper's figure 4 in words; of 2 p - 1 microbatches at least. */
static const struct phase zb_v[] = {{2, -2, 0, -1, ALL, "F0"},
                                    {0, 1, 0, 0, ALL, "F1F0"},
                                    {1, -1, 0, 0, ALL, "F1B1W1"},
                                    {-1, 0, 1, 0, ALL, "F0B0W0F1B1W1"},
                                    {0, 1, 0, 0, ALL, "B0B1"},
                                    {1, -1, 0, 0, ALL, "B0W0"},
                                    {0, 1, 0, 0, ALL, "W1"},
                                    {0, 1, 0, 0, ALL, "W0"},
                                    {0}};
/* Forward passes beside backward ones follow each other here. */
static const struct phase dualpipe_v[] = {{2, -2, 0, -2, ALL, "F0"},
                                          {0, 1, 0, 1, ALL, "F0F1"},
                                          {1, -1, 0, -1, ALL, "B1W1F1"},
                                          {-2, 1, 1, 1, ALL, "F0B1W1F1B0W0"},
                                          {1, -1, 0, -1, ALL, "B1W1F1B0W0"},
                                          {0, 1, 0, 1, HALF, "B1W1B0W0"},
                                          {0, 1, 0, 1, ODD, "B1W1B0"},
                                          {0, 1, 0, 1, HALF, "B1B0"},
                                          {1, -1, 0, -1, ALL, "WB0"},
                                          {0, 1, 0, 1, ALL, "W"},
                                          {0}};

static int count_of(const struct phase *p, const struct ap_schedule_size *z, int device)
{
    const int least = 2 * z->n_devices - 1;
    const int n = z->microbatches < least ? least : z->microbatches;
    const int all = p->p * z->n_devices + p->r * device + p->n * n + p->more;

    return p->times == ALL ? all : p->times == HALF ? all / 2 : all % 2;
}

static void add_phase(struct lister *l, const struct phase *p)
{
    for (int k = count_of(p, l->z, l->device); k > 0; k--)
        for (const char *at = p->passes; *at; at++) {
            const enum ap_pass pass = *at == 'F'   ? AP_PASS_FORWARD
                                      : *at == 'B' ? AP_PASS_BACKWARD
                                                   : AP_PASS_WEIGHTS;
            if (at[1] == '0' || at[1] == '1')
                add_next(l, pass, *++at - '0');
            else
                add_oldest(l);
        }
}

static const struct phase *script_of(enum ap_schedule schedule)
{
    return schedule == AP_SCHEDULE_ZB_V         ? zb_v
           : schedule == AP_SCHEDULE_DUALPIPE_V ? dualpipe_v
                                                : NULL;
}

/* ---- slots ---- */

#define N_SLOTS 6
/* Where the first F0, F1, B1 and B0 of a device start. */
static void first_slots(const struct ap_schedule_size *z, int device, int first[4])
{
    const int p = z->n_devices, half = p % 2 == 0 ? 3 : 0, min = p % 3 == 0 ? 2 : 0;
    const bool is_half = z->schedule == AP_SCHEDULE_V_HALF;

    first[0] = is_half ? 2 * device : device;
    first[1] = is_half ? 3 * p - device - 2 : 2 * p - device - 1;
    first[2] = is_half ? 3 * p + half + 2 * device - 1 : 2 * p + min + device;
    first[3] = is_half ? 6 * p + half - device - 2 : 4 * p + min - device - 1;
}

static void list_slots(struct lister *l)
{
    const int n = 2 * l->z->microbatches * AP_N_PASSES;
    int first[4];

    first_slots(l->z, l->device, first);
    for (int t = 0; l->n < n; t++) {
        bool busy = false;
        for (int k = 0; k < 4; k++) {
            const int m = (t - first[k]) / N_SLOTS;
            if (t < first[k] || (t - first[k]) % N_SLOTS || m >= l->z->microbatches)
                continue;
            add_next(l, k < 2 ? AP_PASS_FORWARD : AP_PASS_BACKWARD, k == 1 || k == 2);
            busy = true;
        }
        if (!busy)
            add_oldest(l);
    }
}

/* ---- all ---- */

static void list_v(struct lister *l)
{
    if (!script_of(l->z->schedule))
        list_slots(l);
    for (const struct phase *p = script_of(l->z->schedule); p && p->passes; p++)
        add_phase(l, p);
}

/* Forwards of a V before its first backward: with few microbatches fewer than its phases
 * or slots have. */
static int forwards_of_v(const struct ap_schedule_size *z, int device)
{
    struct ap_arena scratch = {0};
    struct lister l = {.z = z,
                       .device = device,
                       .list =
                           AP_NEW_N(&scratch, AP_N_PASSES * z->microbatches * z->chunks,
                                    struct ap_instr)};
    int n = 0;

    list_v(&l);
    while (l.list[n].pass == AP_PASS_FORWARD)
        n++;
    ap_arena_free(&scratch);
    return n;
}

int ap_schedule_warm_up(const struct ap_schedule_size *z, int n, int device)
{
    const enum ap_schedule s = z->schedule;
    int ahead = z->n_devices - device - 1;

    if (s == AP_SCHEDULE_GPIPE || s == AP_SCHEDULE_INFERENCE ||
        s == AP_SCHEDULE_LOOPED_BFS)
        return n;
    if (ap_schedule_traits[s].is_v)
        ahead = forwards_of_v(z, device) - 1;
    if (s == AP_SCHEDULE_EAGER || s == AP_SCHEDULE_ZB_H2 ||
        (s == AP_SCHEDULE_INTERLEAVED && z->chunks > 1))
        ahead *= 2;
    if (s == AP_SCHEDULE_INTERLEAVED || s == AP_SCHEDULE_ZB_H1)
        ahead += (z->chunks - 1) * z->n_devices;
    if (z->pairs && !ap_schedule_traits[s].is_v)
        ahead++;
    return ahead + 1 < n ? ahead + 1 : n;
}

int ap_schedule_order(struct ap_arena *arena, const struct ap_schedule_size *z,
                      int device, struct ap_instr **out, int *n_out, struct ap_err *err)
{
    if (ap_schedule_check(z, err))
        return -1;
    assert(device >= 0 && device < z->n_devices);
    struct lister l = {.z = z,
                       .device = device,
                       .list = AP_NEW_N(arena, AP_N_PASSES * z->microbatches * z->chunks,
                                        struct ap_instr)};

    if (ap_schedule_traits[z->schedule].is_v)
        list_v(&l);
    else
        list_pairs(&l);
    *out = l.list;
    *n_out = l.n;
    return 0;
}
