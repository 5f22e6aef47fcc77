/*
 * Pipeline schedules, and the time of a step under a schedule: every device runs its
 * instructions in the schedule's order, each as soon as its input has arrived. Stages may
 * differ in all numbers; the devices of one stage act identically and count as one.
 */
#ifndef AP_SCHEDULE_H
#define AP_SCHEDULE_H

#include "base/base.h"

/*
 * Schedules of whole backward passes:
 * gpipe: all forwards, then all backwards in the same order, so that sums start with the
 *   first microbatch.
 * 1f1b: after n - i forwards the device of stage i of n (from 0) runs one backward, one
 *   forward and so on, so that it holds n - i microbatches at most.
 * interleaved-1f1b: a device has several stages (chunks), stage s runs on device s modulo
 *   the devices; microbatches go through in groups of as many as there are devices.
 * looped-bfs: chunks as interleaved; gpipe, one chunk after the other.
 * inference: forwards only, nothing is kept.
 * eager-1f1b: 1f1b whose device of stage i runs 2 (n - i) - 1 forwards before its first
 *   backward, so that a value has a forward's time to arrive; it holds as many.
 * Those that split: a backward pass makes the gradients that the previous stage needs,
 * and a pass of weights, later, those of the weights. Until then a microbatch is held.
 * zb-h1: 1f1b, or interleaved with fewer forwards ahead, whose weights lag by as many
 *   passes as the device's number: every device holds what the first one holds.
 * zb-h2: eager-1f1b, whose weights lag by twice as many.
 * zb-v, v-half, v-min, dualpipe-v: a device has two stages, i and 2 n - 1 - i: the second
 *   half of the stages goes back over the devices (a V). The orders are the sources'.
 */
enum ap_schedule {
    AP_SCHEDULE_GPIPE,
    AP_SCHEDULE_1F1B,
    AP_SCHEDULE_INTERLEAVED,
    AP_SCHEDULE_LOOPED_BFS,
    AP_SCHEDULE_ZB_H1,
    AP_SCHEDULE_ZB_H2,
    AP_SCHEDULE_ZB_V,
    AP_SCHEDULE_V_HALF,
    AP_SCHEDULE_V_MIN,
    AP_SCHEDULE_DUALPIPE_V,
    AP_N_TRAIN_SCHEDULES, /* those that a line may say */
    AP_SCHEDULE_INFERENCE = AP_N_TRAIN_SCHEDULES,
    AP_SCHEDULE_EAGER,
    AP_N_SCHEDULES
};
extern const char *const ap_schedule_names[AP_N_SCHEDULES];

struct ap_schedule_traits {
    int least_chunks, most_chunks; /* stages of a device */
    bool splits;                   /* has passes of weights */
    bool is_v;
    /* stages may send between their passes and wait for each other until a message has
       arrived (overlap_send of struct ap_sim is false); under the others they would wait
       for ever */
    bool may_wait;
};
extern const struct ap_schedule_traits ap_schedule_traits[AP_N_SCHEDULES];

/* The set of devices, of n, that a stage is on. */
int ap_schedule_device(enum ap_schedule schedule, int n_devices, int stage);
/* The stage that is a device's chunk. */
int ap_schedule_stage(enum ap_schedule schedule, int n_devices, int device, int chunk);

enum ap_pass { AP_PASS_FORWARD, AP_PASS_BACKWARD, AP_PASS_WEIGHTS, AP_N_PASSES };
extern const char *const ap_pass_names[AP_N_PASSES];

struct ap_instr {
    int stage, microbatch;
    enum ap_pass pass;
};

/* The instructions of one device, in order. */
struct ap_instr_list {
    int n;
    struct ap_instr *list;
};

struct ap_schedule_size {
    enum ap_schedule schedule;
    int n_devices;
    int chunks; /* stages of a device */
    int microbatches;
    bool pairs; /* as in struct ap_sim */
};

/* -1 if the schedule does not exist for this size. */
int ap_schedule_check(const struct ap_schedule_size *size, struct ap_err *err);
/* The k-th forward, or backward, of a device under a schedule that is no V: groups of
 * n_devices microbatches (looped-bfs: of all) go through one chunk after the other. */
struct ap_instr ap_schedule_pass(const struct ap_schedule_size *size, int k, int device,
                                 enum ap_pass pass);
/* The number of forwards, of n in all, that a device runs before its first backward,
 * which it holds at once. */
int ap_schedule_warm_up(const struct ap_schedule_size *size, int n, int device);

/* Instructions of one device in order, into the arena; *n_out of them. -1: as
 * ap_schedule_check. */
int ap_schedule_order(struct ap_arena *arena, const struct ap_schedule_size *size,
                      int device, struct ap_instr **out, int *n_out, struct ap_err *err);

/* ---- simulation ---- */

/*
 * Seconds that a device is quicker where it sends beside what it computes, than one after
 * the other. While both run each has but 1 - share of the device: a collective takes some
 * of its multiprocessors, and is slower by about as much itself.
 */
double ap_hidden_sec(double sent, double computed, double share);

/* Seconds and bytes are those of one device of the stage. */
struct ap_sim_stage {
    double forward_sec, backward_sec; /* of one microbatch; of the whole backward */
    double weights_sec;   /* the part of backward_sec that a pass of weights may run */
    double recompute_sec; /* recomputed before each backward; 0 for none */
    /* of forward_sec and backward_sec, what a pass sends beside a pass of the other kind,
     * with pairs */
    double exchange_sec[2];
    double exchange_share; /* of the device, which that takes from what is beside it */
    double sync_sec;       /* reduces the gradients, once per step */
    double update_sec;     /* once per step, after it */
    /* of one microbatch: to the next stage, and back to the previous one */
    double send_forward_sec, send_backward_sec;
    int64_t send_forward_bytes, send_backward_bytes;
    int send_forward_level, send_backward_level; /* of links, < AP_SIM_LEVELS */
    int64_t fixed_bytes;   /* weights, gradients, optimizer states */
    int64_t flight_bytes;  /* from a microbatch's forward to the end of its last pass */
    int64_t pending_bytes; /* from a backward's start to the end of its weights */
    int64_t work_bytes;    /* while an instruction runs */
    int64_t recomputed_bytes; /* while a backward runs, for recompute */
};

#define AP_SIM_LEVELS 6

struct ap_sim {
    enum ap_schedule schedule;
    int n_stages, chunks, microbatches; /* n_stages / chunks devices */
    const struct ap_sim_stage *stages;
    const struct ap_instr_list *order; /* [device]; NULL: the schedule's */
    /* a device computes while it sends; sends of one link wait for each other. Otherwise
       a stage sends between its passes, one message at a time, and sender and receiver
       wait for each other and for the message (struct ap_schedule_traits) */
    bool overlap_send;
    /* a backward runs beside the forward before it on its device, of another microbatch:
       what either sends is hidden behind what the other computes. One forward more comes
       before the first backward */
    bool pairs;
    bool overlap_sync; /* gradients are reduced during the last backward of a stage */
    double norm_sec;   /* between all reductions and all updates: a global norm; with 0
                          no stage waits for another */
};

struct ap_sim_slice {
    double start_sec, end_sec; /* of the computation, without what it sends */
    double arrive_sec; /* when the next stage has its result; end_sec if there is none */
    int64_t bytes;     /* of the device while it runs */
    int64_t after_bytes; /* of the device once it is over */
    struct ap_instr instr;
};

struct ap_sim_device {
    int n_slices;
    struct ap_sim_slice *slices; /* in order */
    double compute_sec;          /* forwards, backwards, recompute and updates */
    double paired_sec;           /* that pairs save, not in compute_sec */
    double send_sec;             /* busy with messages, 0 with overlap_send */
    double sync_sec; /* reduction of gradients that nothing hides, and the norm's */
    double end_sec;  /* after its update */
    int64_t peak_bytes;
    int64_t summed_bytes; /* peak_bytes of the simulation, which ap_pipeline_measure
                             replaces by the program's */
    int peak_in_flight;   /* microbatches, of all of its chunks */
};

struct ap_sim_result {
    double step_sec;
    double bubble; /* share of all devices' time in which they wait, [0, 1) */
    int n_devices;
    struct ap_sim_device *devices;
    int64_t level_bytes[AP_SIM_LEVELS]; /* sent between stages, over the step */
};

/*
 * Runs one step. Time and memory are linear in the instructions, 2 * stages *
 * microbatches. -1 if the schedule does not exist for these numbers, or if a device waits
 * for ever under the given order.
 */
int ap_simulate(struct ap_arena *arena, const struct ap_sim *sim,
                struct ap_sim_result *out, struct ap_err *err);

static inline int ap_sim_device_of(const struct ap_sim *sim, int stage)
{
    return ap_schedule_device(sim->schedule, sim->n_stages / sim->chunks, stage);
}

/* Seconds of a pass of the simulation, without what it sends. */
double ap_sim_pass_sec(const struct ap_sim *sim, const struct ap_instr *instr);

/*
 * For inference: seconds between the ends of consecutive batches in a stream, which is
 * the time of the slowest stage or link for all microbatches.
 */
double ap_sim_batch_sec(const struct ap_sim *sim);

#endif
