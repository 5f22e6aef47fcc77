/*
 * Problem: a plan's conversions are priced one by one, as ap-exec makes them, but
 * trainers send gradients and weights in buckets or as flat parameters, whose latency is
 * paid once, ZeRO-2 and ZeRO-3 reduce gradients with each microbatch, and some keep what
 * they gathered. Idea: bytes that are sent together are summed by kind and axes, and each
 * sum is priced as one collective. Linear in the steps. Sources: Li et al., "PyTorch
 * Distributed", VLDB 2020, section 3.2.2 (buckets); Zhao et al., "PyTorch FSDP", VLDB
 * 2023, section 3.2.1 (flat parameters); Rajbhandari et al., "ZeRO", SC 2020, section 5.
 */
#include "pipeline/stage_facts.h"

#include <string.h>

const char *const ap_trainer_names[AP_N_TRAINER] = {
    "packs",           "low-sums",      "scatters",    "keeps-gathered",
    "keeps-gradients", "waits",         "broadcasts",  "ep-overlap",
    "tp-overlap",      "wgrad-overlap", "host-update", "stops-early"};

static const enum ap_op kinds[AP_N_PACKED] = {AP_OP_ALL_REDUCE, AP_OP_REDUCE_SCATTER,
                                              AP_OP_ALL_GATHER, AP_OP_ALL_TO_ALL,
                                              AP_OP_COLLECTIVE_PERMUTE};

void ap_trainer_put(unsigned trainer, struct ap_buf *out)
{
    const char *sep = "[";

    if (!trainer)
        return;
    ap_put_key(out, "trainer");
    for (int i = 0; i < AP_N_TRAINER; i++)
        if (trainer >> i & 1) {
            ap_buf_printf(out, "%s\"%s\"", sep, ap_trainer_names[i]);
            sep = ",";
        }
    ap_buf_putc(out, ']');
}

int ap_trainer_read(const json_t *o, const struct ap_at *at, enum ap_schedule schedule,
                    unsigned *trainer, struct ap_err *err)
{
    const json_t *list = json_object_get(o, "trainer");
    const struct ap_at here = {at, "trainer", 0};

    *trainer = 0;
    if (list && !json_is_array(list))
        return ap_at_err(&here, err, "expected an array of words");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const struct ap_at item = {&here, NULL, (int)i};
        const char *word = json_string_value(json_array_get(list, i));
        int bit = 0;
        while (bit < AP_N_TRAINER && !(word && strcmp(word, ap_trainer_names[bit]) == 0))
            bit++;
        if (bit == AP_N_TRAINER)
            return ap_at_err(
                &item, err,
                "expected packs, low-sums, scatters, keeps-gathered, "
                "keeps-gradients, waits, broadcasts, ep-overlap, tp-overlap, "
                "wgrad-overlap, host-update or stops-early");
        if (1u << bit == AP_TRAINER_WAITS && !ap_schedule_traits[schedule].may_wait)
            return ap_at_err(&item, err,
                             "waits: not under %s, whose stages would wait for each "
                             "other for ever",
                             ap_schedule_names[schedule]);
        if (1u << bit == AP_TRAINER_WGRAD_OVERLAP && ap_schedule_traits[schedule].splits)
            return ap_at_err(&item, err,
                             "wgrad-overlap: not under %s, which computes weights' "
                             "gradients later",
                             ap_schedule_names[schedule]);
        *trainer |= 1u << bit;
    }
    return 0;
}

/* Whether it is sent with each microbatch, though nothing of it is one's. */
static bool is_again(const struct ap_stage_microbatch *micro,
                     const struct ap_stage_sent *s)
{
    return micro->trainer & AP_TRAINER_SCATTERS && s->once && s->inside &&
           (s->weight ? s->conv->phase != AP_UPDATE : s->partial);
}

/*
 * Whether it is a gradient that is summed as it is made, on each device, and reduced
 * after the last microbatch for more of the backward pass: what that makes of it, which
 * is smaller, is what counts until the update.
 */
static bool is_summed(const struct ap_stage_microbatch *micro,
                      const struct ap_stage_sent *s)
{
    return micro->n > 1 && s->once && s->inside && s->partial && s->more_bytes < 0 &&
           !(s->read_in >> AP_UPDATE & 1);
}

void ap_stage_count_sent(const struct ap_stage_microbatch *micro,
                         const struct ap_stage_sent *s, double *fixed, double *kept)
{
    const bool summed = micro->n > 1 && ap_dtype_size(s->node->shape.dtype) == 2 &&
                        !(micro->trainer & AP_TRAINER_LOW_SUMS);

    const bool again = is_again(micro, s), late = s->read_in == 1u << AP_UPDATE;
    double more = 0;

    /* a share is cut from what each device has whole before it is added up */
    if (s->node->phase == AP_BACKWARD && !again && is_summed(micro, s))
        more = s->cut_bytes - s->more_bytes;
    else if (s->node->phase == AP_BACKWARD && late && s->once && s->inside)
        more = again ? s->more_bytes : micro->n > 1 ? s->cut_bytes : 0;
    *fixed += (summed ? 2 : 1) * more;
    if (micro->trainer & AP_TRAINER_KEEPS_GATHERED && s->conv->phase == AP_FORWARD &&
        s->shared && s->inside && s->read_in >> AP_BACKWARD & 1 && s->more_bytes > 0)
        *kept += s->more_bytes;
}

bool ap_stage_pack(const struct ap_stage_microbatch *micro, const struct ap_stage_sent *s,
                   struct ap_stage_packs *packs)
{
    const bool again = is_again(micro, s);
    int at = s->partial ? AP_PACK_SYNC : AP_PACK_UPDATE;

    if (!again && (!(micro->trainer & AP_TRAINER_PACKS) || !s->once))
        return false;
    if (again)
        at = s->conv->phase == AP_FORWARD ? AP_PACK_FORWARD : AP_PACK_BACKWARD;
    for (int i = 0; i < s->conv->path.n_steps; i++) {
        const struct ap_step *step = &s->conv->path.steps[i];
        for (int k = 0; k < AP_N_PACKED; k++)
            if (step->op == kinds[k])
                packs->bytes[at][k][step->coll.axes] += (double)step->bytes;
    }
    return true;
}

static double pack_sec(const struct ap_stage_packs *packs, int pack,
                       const struct ap_cost *cost)
{
    double sec = 0;

    for (int k = 0; k < AP_N_PACKED; k++)
        for (unsigned axes = 1; axes < 1u << cost->mesh.n_axes; axes++)
            if (packs->bytes[pack][k][axes] > 0)
                sec += ap_cost_collective(cost, kinds[k], axes,
                                          (int64_t)packs->bytes[pack][k][axes]);
    return sec;
}

/*
 * What broadcasts take longer than the gathers of the same weights: as many bytes cross
 * the links, but the latency counts for each owner (NCCL broadcasts along a ring).
 */
static double broadcasts_sec(const struct ap_stage_packs *packs,
                             const struct ap_cost *cost)
{
    const int gather = 2; /* of kinds */
    unsigned owning = 0;
    double latency = 0;

    for (unsigned axes = 1; axes < 1u << cost->mesh.n_axes; axes++)
        if (packs->bytes[AP_PACK_UPDATE][gather][axes] > 0) {
            latency += ap_cost_collective(cost, AP_OP_ALL_GATHER, axes, 0);
            owning |= axes;
        }
    return owning ? latency * (double)(ap_mesh_group(&cost->mesh, owning) - 1) : 0;
}

void ap_stage_add_packs(const struct ap_stage_microbatch *micro,
                        const struct ap_stage_packs *packs, const struct ap_cost *cost,
                        struct ap_stage_measure *measure)
{
    if (!micro->trainer)
        return;
    const double forward = pack_sec(packs, AP_PACK_FORWARD, cost);
    const double backward = pack_sec(packs, AP_PACK_BACKWARD, cost);

    measure->forward_sec += forward;
    measure->backward_sec += backward;
    measure->gather_sec[0] += micro->overlap ? forward : 0;
    measure->gather_sec[1] += micro->overlap ? backward : 0;
    measure->gather_share = cost->cluster.collective_share[AP_OP_ALL_GATHER];
    measure->sync_sec += pack_sec(packs, AP_PACK_SYNC, cost);
    measure->update_sec += pack_sec(packs, AP_PACK_UPDATE, cost);
    if (micro->trainer & AP_TRAINER_BROADCASTS)
        measure->update_sec += broadcasts_sec(packs, cost);
}
