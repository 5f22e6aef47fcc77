/*
 * Problem: a bound that no step of a line is below, without its plan. Idea: what its
 * stages take is known but for what they send (grid_parts.c), and no send makes a step
 * shorter. The devices of a lane (that hold every pipeline-th stage) work on all
 * microbatches, after the first one's way to them, and before the last one's way back;
 * where that is not enough, the schedule is simulated with sends that take no time. Cost:
 * linear in the stages; of the simulation, in its instructions.
 */
#include <math.h>

#include "grid/grid_rows_impl.h"

/* Sums are rounded, and those of bytes count scalars of the update that blocks share: a
 * bound is so much below them. */
#define ROUNDED       (1 - 1e-9)
#define ROUNDED_BYTES (1 - 1e-6)

static bool has_pairs(const struct ap_line *line)
{
    return line->trainer & AP_TRAINER_EP_OVERLAP;
}

/* Seconds of a lane for all microbatches, and after its last pass. */
struct busy {
    double work_sec, tail_sec;
};

static int stage_of(const struct ap_line *line, int lane, int chunk)
{
    return ap_schedule_stage(line->schedule, (int)line->pipeline, lane, chunk);
}

static bool splits(const struct ap_line *line)
{
    return ap_schedule_traits[line->schedule].splits;
}

static struct busy busy_of(const struct grid_rows *r, const struct grid_candidate *row,
                           const struct ap_sim_stage *stage, int lane)
{
    const double microbatches = (double)r->at_once[row->at_once].microbatches;
    struct busy b = {0, 0};
    double sync = 0;

    for (int k = 0; k < r->cut[row->cut].n / (int)row->line.pipeline; k++) {
        const int i = stage_of(&row->line, lane, k);
        b.work_sec +=
            microbatches * (stage[i].forward_sec + stage[i].backward_sec -
                            stage[i].exchange_sec[0] - stage[i].exchange_sec[1]);
        b.tail_sec += stage[i].update_sec;
        sync += stage[i].sync_sec;
    }
    if (row->line.overlap && splits(&row->line))
        sync = 0;
    else if (row->line.overlap) /* its first stage's backward is its last pass */
        sync = fmax(0, stage[lane].sync_sec - stage[lane].backward_sec);
    b.tail_sec += sync;
    return b;
}

static double bound_sec(const struct grid_rows *r, const struct grid_candidate *row,
                        const struct ap_sim_stage *stage)
{
    double way = 0, back = 0, sec = 0, first_tail = 0;

    for (int g = 0; g < (int)row->line.pipeline; g++) {
        const struct busy lane = busy_of(r, row, stage, g);
        first_tail = g && !splits(&row->line) ? first_tail : lane.tail_sec;
        sec = fmax(sec, way + lane.work_sec + fmax(lane.tail_sec, back + first_tail));
        way += stage[g].forward_sec;
        if (!splits(&row->line)) /* else the lane's last pass may be of weights */
            back += stage[g].backward_sec;
    }
    return sec;
}

/*
 * What the devices of a lane hold at least, of which row->bytes is the most: where the
 * first backward begins, what is there all the time and what the microbatches in flight
 * keep is in memory at once, and none of it shares its place.
 */
static double lane_bytes(const struct grid_rows *r, const struct grid_candidate *row,
                         const struct ap_sim_stage *stage, int lane)
{
    const struct ap_line *l = &row->line;
    const int microbatches = (int)r->at_once[row->at_once].microbatches;
    const struct ap_schedule_size size = {l->schedule, (int)l->pipeline, (int)l->chunks,
                                          microbatches, has_pairs(l)};
    const int passes = ap_schedule_warm_up(&size, microbatches * (int)l->chunks, lane);
    double fixed = 0, kept = INFINITY; /* of the least stage */

    for (int k = 0; k < r->cut[row->cut].n / (int)l->pipeline; k++) {
        const struct ap_sim_stage *s = &stage[stage_of(l, lane, k)];
        fixed += (double)s->fixed_bytes;
        kept = fmin(kept, (double)s->flight_bytes);
    }
    return fixed + kept * passes;
}

static void set_bytes(const struct grid_rows *r, struct grid_candidate *row, double bytes)
{
    const int64_t limit = r->want->inst->memory_bytes;

    row->bytes = fmax(row->bytes, ROUNDED_BYTES * bytes);
    if (limit > 0 && row->bytes > (double)limit)
        row->known = GRID_TOO_LARGE;
}

static void bound(const struct grid_rows *r, struct grid_candidate *row)
{
    struct ap_arena scratch = {0};
    double bytes = 0;

    row->known = r->sharding[row->shard].ok ? GRID_MEASURED : GRID_NO_PLAN;
    const struct ap_sim_stage *stage =
        row->known == GRID_MEASURED ? grid_stages(r, row, row->shard, &scratch) : NULL;
    for (int g = 0; stage && g < (int)row->line.pipeline; g++)
        bytes = fmax(bytes, lane_bytes(r, row, stage, g));
    if (stage) {
        row->step_sec = fmax(row->step_sec, ROUNDED * bound_sec(r, row, stage));
        set_bytes(r, row, bytes);
    }
    ap_arena_free(&scratch);
}

/* Whether the line may offload this; what the trainer then does is added. */
static bool may_offload(const struct grid_rows *r, struct ap_line *line)
{
    const struct ap_trainer *trainer = r->want->space->trainer;
    struct ap_err why = {0};

    return !(line->offload & ~r->offloads) &&
           !(trainer && (ap_trainer_check(trainer, line, &r->facts, &why) ||
                         ap_trainer_settle(trainer, &r->facts, line, &why)));
}

bool grid_exceeds_host(const struct grid_rows *r, double bytes,
                       struct grid_candidate *row)
{
    const int64_t limit = r->m->cluster.host_link.memory_bytes;

    if (limit == 0 || bytes <= (double)limit)
        return false;
    row->host_bytes = row->host_bytes > 0 ? fmin(row->host_bytes, bytes) : bytes;
    return true;
}

bool grid_offload(const struct grid_rows *r, struct grid_candidate *row)
{
    struct grid_candidate best = *row;

    best.tried |= (uint8_t)(1 << row->line.offload);
    best.known = GRID_TOO_LARGE;
    for (unsigned what = 1; what <= r->offloads; what++) {
        struct grid_candidate with = *row;
        with.line.offload = what;
        with.known = GRID_LISTED;
        with.bytes = 0;
        with.tried = (uint8_t)(1 << row->line.offload | row->tried);
        if (with.tried >> what & 1 || !may_offload(r, &with.line) ||
            grid_exceeds_host(r, ROUNDED_BYTES * grid_host_bytes(r, &with.line), row))
            continue;
        if (r->sharding[row->shard].measured)
            bound(r, &with);
        if (with.known < GRID_PRICED &&
            (best.known == GRID_TOO_LARGE || with.step_sec < best.step_sec))
            best = with;
    }
    best.host_bytes = row->host_bytes;
    *row = best;
    return row->known != GRID_TOO_LARGE;
}

void grid_bound(const struct grid_rows *r, struct grid_candidate *row)
{
    bound(r, row);
    if (row->known == GRID_TOO_LARGE)
        (void)grid_offload(r, row);
}

void grid_bound_bare(const struct grid_rows *r, struct grid_candidate *row)
{
    const int bare = r->sharding[row->shard].bare;
    struct ap_arena scratch = {0};
    const struct ap_sim_stage *stage =
        r->sharding[bare].ok ? grid_stages(r, row, bare, &scratch) : NULL;

    if (!r->sharding[bare].ok)
        row->known = GRID_NO_PLAN;
    if (stage)
        row->step_sec = fmax(row->step_sec, ROUNDED * bound_sec(r, row, stage));
    ap_arena_free(&scratch);
}

void grid_simulate(const struct grid_rows *r, struct grid_candidate *row)
{
    struct ap_arena scratch = {0};
    const struct ap_sim_stage *stage = grid_stages(r, row, row->shard, &scratch);
    struct ap_sim_result result;
    struct ap_err why = {0};
    double bytes = 0;

    row->known = GRID_SIMULATED;
    if (!stage)
        return;
    const struct ap_sim sim = {.schedule = row->line.schedule,
                               .n_stages = r->cut[row->cut].n,
                               .chunks = (int)row->line.chunks,
                               .microbatches = (int)r->at_once[row->at_once].microbatches,
                               .stages = stage,
                               .overlap_send = true,
                               .pairs = has_pairs(&row->line),
                               .overlap_sync = row->line.overlap};
    row->known = GRID_NO_PLAN;
    if (ap_simulate(&scratch, &sim, &result, &why) == 0) {
        for (int d = 0; d < result.n_devices; d++)
            bytes = fmax(bytes, (double)result.devices[d].peak_bytes);
        row->step_sec = fmax(row->step_sec, ROUNDED * result.step_sec);
        row->known = GRID_SIMULATED;
        set_bytes(r, row, bytes);
    }
    ap_arena_free(&scratch);
    if (row->known == GRID_TOO_LARGE)
        (void)grid_offload(r, row);
}
