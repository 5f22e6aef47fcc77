/*
 * Makes a stage's points from its measure, and keeps the points that no other one equals
 * or beats in every member.
 */
#include <math.h>
#include <stdlib.h>

#include "pipeline/stage_facts.h"

/* ---- sums ---- */

void ap_stage_launch(const struct ap_cost *cost, enum ap_phase phase, bool again, int n,
                     struct ap_stage_measure *m)
{
    const double sec = n * cost->cluster.host_sec;

    m->host_sec[phase != AP_FORWARD] += sec;
    if (again)
        m->host_sec[1] += sec;
}

void ap_stage_add_sec(struct ap_stage_measure *m, bool shared, enum ap_phase phase,
                      double sec)
{
    if (!shared)
        m->update_sec += sec;
    else if (phase == AP_FORWARD)
        m->forward_sec += sec;
    else
        m->backward_sec += sec;
}

double ap_stage_add_timed(const struct ap_path *path, const struct ap_layout *from,
                          enum ap_phase phase, struct ap_stage_measure *m)
{
    double each = 0;
    for (int i = 0; i < path->n_steps; i++) {
        const struct ap_step *s = &path->steps[i];
        bool shared = s->times > 1;
        double sec = s->sec / (double)s->times;
        if (!shared && ap_layout_is_partial(from))
            m->sync_sec += sec;
        else
            ap_stage_add_sec(m, shared, phase, sec);
        each += shared ? sec : 0;
    }
    return each;
}

/* ---- points ---- */

/*
 * Seconds of a pass whose device and host work beside each other. Where both take about
 * as long they wait for each other in turn, since operators differ: a norm of both, of
 * the power 2.5, fitted to the steps of small GPTs on eight A100s that scripts/published
 * has (Bang et al., vTrain): 1.2 to 1.4 times the longer of the two where they are equal,
 * and no more where one is twice the other.
 */
static double beside(double device, double host)
{
    return host > 0 ? pow(pow(device, 2.5) + pow(host, 2.5), 1 / 2.5) : device;
}

/*
 * A pass (forward, backward) takes at least the time in which the host launches its
 * operators, and the time of the weights that are gathered during the pass.
 */
static void wait_for(const double host[2], const struct ap_stage_measure *m,
                     struct ap_stage_point *point)
{
    const double *gather = m->gather_sec;

    point->forward_sec -=
        ap_hidden_sec(gather[0], point->forward_sec - gather[0], m->gather_share);
    point->backward_sec -=
        ap_hidden_sec(gather[1], point->backward_sec - gather[1], m->gather_share);
    point->forward_sec = beside(point->forward_sec, host[0]);
    point->backward_sec = beside(point->backward_sec, host[1]);
}

/* A pass, and the update, takes at least as long as its copies to and from the host. */
static void wait_for_link(const struct ap_stage_measure *m, struct ap_stage_point *point)
{
    const double *step = m->step_link_sec;

    point->link_sec[0] = m->pass_link_sec[0];
    point->link_sec[1] = m->pass_link_sec[1];
    point->link_sec[2] = fmax(step[2], fmax(step[0], step[1]));
    const double least[3] = {point->link_sec[0], point->link_sec[1],
                             fmax(point->link_sec[2], step[3])};
    double *const sec[3] = {&point->forward_sec, &point->backward_sec,
                            &point->update_sec};
    for (int i = 0; i < 3; i++) {
        point->host_wait_sec[i] = fmax(0, least[i] - *sec[i]);
        *sec[i] = fmax(*sec[i], least[i]);
    }
    point->host_bytes = (int64_t)m->host_bytes;
    point->host_flight_bytes = (int64_t)m->host_flight_bytes;
}

/* What is there all the time. Of one microbatch, of which `kept` bytes are kept and
 * copies of weights beside, these go as gradients come. */
static double always_bytes(const struct ap_stage_measure *m, double kept)
{
    return fmax(0, m->fixed_bytes - m->gradient_bytes) +
           fmax(m->copied_bytes, m->gradient_bytes - kept);
}

void ap_stage_points(const struct ap_stage_measure *m, struct ap_stage_point point[2])
{
    point[0].forward_sec = m->forward_sec;
    point[0].backward_sec = m->backward_sec;
    point[0].sync_sec = m->sync_sec;
    point[0].update_sec = m->update_sec;
    point[0].microbatch_bytes = (int64_t)m->kept_bytes;
    point[0].recompute = false;
    point[0].slack_sec = m->slack_sec;
    for (int i = 0; i < 2; i++)
        point[0].exchange_sec[i] = m->exchange_sec[i];
    point[0].pending_bytes = (int64_t)m->pending_bytes;
    point[1] = point[0];
    point[1].recompute = true;
    point[1].backward_sec += m->forward_sec;
    for (int i = 0; i < 2; i++) {
        const double host[2] = {m->host_sec[0], m->host_sec[1] + i * m->host_sec[0]};
        wait_for(host, m, &point[i]);
        wait_for_link(m, &point[i]);
    }
    point[0].weights_sec = m->backward_sec > 0
                               ? point[0].backward_sec * m->weights_sec / m->backward_sec
                               : 0;
    point[1].weights_sec = point[0].weights_sec;
    point[1].microbatch_bytes = (int64_t)m->input_bytes;
    point[1].pending_bytes += (int64_t)fmax(0, m->kept_bytes - m->input_bytes);
    for (int i = 0; i < 2; i++) {
        const double always = always_bytes(m, i ? m->input_bytes : m->kept_bytes);
        const double passing = m->working_bytes + i * m->recomputed_bytes;
        point[i].stage_bytes = (int64_t)(always + passing);
        point[i].passing_bytes = point[i].stage_bytes - (int64_t)always;
    }
}

static double microbatch_sec(const struct ap_stage_point *p)
{
    return p->forward_sec + p->backward_sec;
}

static double step_sec(const struct ap_stage_point *p)
{
    return p->sync_sec + p->update_sec;
}

static int64_t there_always(const struct ap_stage_point *p)
{
    return p->stage_bytes - p->passing_bytes;
}

static bool covers(const struct ap_stage_point *a, const struct ap_stage_point *b)
{
    return microbatch_sec(a) <= microbatch_sec(b) && step_sec(a) <= step_sec(b) &&
           a->stage_bytes <= b->stage_bytes && there_always(a) <= there_always(b) &&
           a->microbatch_bytes <= b->microbatch_bytes;
}

static int compare(const void *pa, const void *pb)
{
    const struct ap_stage_point *a = pa, *b = pb;
    double x = microbatch_sec(a), y = microbatch_sec(b);
    if (x != y)
        return x < y ? -1 : 1;
    x = step_sec(a), y = step_sec(b);
    if (x != y)
        return x < y ? -1 : 1;
    if (a->stage_bytes != b->stage_bytes)
        return a->stage_bytes < b->stage_bytes ? -1 : 1;
    if (there_always(a) != there_always(b))
        return there_always(a) < there_always(b) ? -1 : 1;
    return a->microbatch_bytes < b->microbatch_bytes
               ? -1
               : a->microbatch_bytes > b->microbatch_bytes;
}

int ap_stage_front(struct ap_stage_point *points, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) { /* among equals, the first one stays */
        bool covered = false;
        for (int k = 0; k < kept && !covered; k++)
            covered = covers(&points[k], &points[i]);
        if (covered)
            continue;
        int left = 0;
        for (int k = 0; k < kept; k++)
            if (!covers(&points[i], &points[k]))
                points[left++] = points[k];
        points[left++] = points[i];
        kept = left;
    }
    qsort(points, (size_t)kept, sizeof *points, compare);
    return kept;
}
