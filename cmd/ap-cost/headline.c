/*
 * Problem: say in four lines which plan this is, how fast, whether it fits, and in which
 * types it trains. Idea: the words of line/line.h and precision.c and the rates of
 * plan_rates.h, wrapped between their parts; reports start with them, the section "cost"
 * and pages hold them.
 */
#include <math.h>
#include <string.h>

#include "price.h"

/* "best: 2.938 s, 0.3 % less: PP 2 × VPP 16 · DP 4": what the plan is simpler than. */
static void put_best(const struct ap_stages *s, double step_sec, struct ap_buf *out)
{
    if (!s->best_words)
        return;
    ap_buf_puts(out, "best: ");
    price_put_sec(out, NULL, s->best_sec, 0);
    ap_buf_printf(out, ", %.1f %% less: %s", 100 * (1 - s->best_sec / step_sec),
                  s->best_words);
}

/* The published runs that are near the plan. */
static void find_published(const struct cost_input *in, struct headline *h)
{
    const struct ap_cluster *c = &in->of.cluster;
    const struct ap_degrees *d = &h->says.line.degrees;

    h->sure = c->has_published && h->in_seconds && h->rates.step_sec > 0;
    h->near = ap_published_near(c->published, c->n_published, h->rates.flops.dtype,
                                d->expert > 0         ? AP_PUBLISHED_EXPERTS
                                : in->of.stages.n > 1 ? AP_PUBLISHED_PIPELINE
                                                      : AP_PUBLISHED_ONE_STAGE,
                                h->rates.n_devices);
}

void headline_of_plan(struct ap_arena *arena, const struct cost_input *in,
                      const struct priced *plan, struct headline *out)
{
    const struct ap_pipeline_price *p = plan->schedule;
    const struct ap_staged_graph of = ap_planned_of(&in->of);
    double recomputed = 0;

    *out = (struct headline){.peak_bytes = plan->peak_bytes,
                             .limit_bytes = price_limit(in, 0),
                             .in_seconds = in->cost.variant == AP_COST_DEFAULT};
    if (p) {
        const int full = price_fullest(in, p, &out->limit_bytes);
        struct ap_plan_degrees *each;
        out->peak_bytes = p->result.devices[full].peak_bytes;
        ap_line_of_stages(arena, &of, &in->of.stages, &out->says, &each);
        ap_plan_line_words(&out->says, each, &in->of.stages, &out->words);
        put_best(&in->of.stages, p->result.step_sec, &out->best);
        out->host_bytes = p->host_bytes;
        out->host_limit_bytes = p->host_limit_bytes;
        out->host_link_sec = p->host_link_sec;
        recomputed = ap_stages_recomputed_flops(&in->of.graph, &in->of.stages);
    } else {
        struct ap_plan_degrees d;
        ap_degrees_find(arena, &plan->plan, 1, &d);
        ap_line_of_plan(arena, &plan->plan, &d, &out->says);
        ap_plan_line_words(&out->says, &d, NULL, &out->words);
    }
    out->parameter_bytes = precision_put(in, &out->precision);
    ap_rates_find(arena, &out->says, &of, out->in_seconds ? price_aim_sec(in, plan) : 0,
                  recomputed, &out->rates);
    find_published(in, out);
    out->fewest_microbatches = price_fewest_microbatches(in, plan);
}

/* Samples of the largest micro-batch that fits; 0: not known. */
static int64_t largest_micro_batch(const struct headline *h)
{
    return h->fewest_microbatches > 0
               ? h->says.line.micro_batch *
                     (h->says.microbatches / h->fewest_microbatches)
               : 0;
}

void headline_free(struct headline *h)
{
    ap_buf_free(&h->words);
    ap_buf_free(&h->precision);
    ap_buf_free(&h->best);
}

/* Breaks the line before a part: after "; ", ", " or before " · ". */
static void put_wrapped(const char *text, struct ap_buf *out)
{
    int column = 0;

    for (const char *at = text; *at;) {
        const char *end = at + 1;
        while (*end && !(end[-1] == ' ' && (end[-2] == ';' || end[-2] == ',')) &&
               strncmp(end, " · ", strlen(" · ")) != 0)
            end++;
        if (column > 0 && column + (end - at) > PRICE_COLUMNS) {
            while (out->data[out->len - 1] == ' ')
                out->len--;
            at += strspn(at, " ");
            ap_buf_puts(out, "\n    ");
            column = 4;
        }
        ap_buf_put(out, at, (size_t)(end - at));
        column += (int)(end - at); /* in bytes: no line is too long */
        at = end;
    }
    ap_buf_putc(out, '\n');
}

static void put_speed(const struct headline *h, struct ap_buf *out)
{
    const struct ap_plan_rates *r = &h->rates;
    double each = r->step_sec * (double)r->n_devices;

    ap_buf_puts(out, "step ");
    price_put_sec(out, NULL, r->step_sec, 0);
    if (r->samples > 0)
        ap_buf_printf(out, "; per device %.4g samples/s", (double)r->samples / each);
    if (r->tokens > 0)
        ap_buf_printf(out, ", %.4g tokens/s", (double)r->tokens / each);
    if (r->n_devices > 1 && r->one_device_sec > 0)
        ap_buf_printf(out, "; %.3g x the speed of one", r->one_device_sec / r->step_sec);
    ap_buf_putc(out, '\n');
}

/* How sure the step is. */
static void put_sure(const struct headline *h, struct ap_buf *out)
{
    const struct ap_published *p = h->near;

    if (!p) {
        ap_buf_puts(out, "no measured run is near this plan\n");
        return;
    }
    ap_buf_printf(
        out,
        "within %.0f %% for 8 of 10 published runs of this kind: %.2f to %.2f x, "
        "median %.2f (%lld runs, %lld source%s)\n",
        100 * fmax(fabs(1 - p->low), fabs(p->high - 1)), p->low, p->high, p->median,
        (long long)p->runs, (long long)p->sources, p->sources == 1 ? "" : "s");
}

static void put_fit(const struct headline *h, struct ap_buf *out)
{
    double peak = (double)h->peak_bytes, limit = (double)h->limit_bytes;

    price_put_bytes(out, peak, 0);
    ap_buf_puts(out, " of ");
    price_put_bytes(out, limit, 0);
    ap_buf_puts(out, peak > limit ? ": does not fit, by " : ": fits, ");
    price_put_bytes(out, peak > limit ? peak - limit : limit - peak, 0);
    ap_buf_puts(out, peak > limit ? "" : " to spare");
    if (largest_micro_batch(h) > 0)
        ap_buf_printf(out, "; largest micro-batch of this plan: %lld",
                      (long long)largest_micro_batch(h));
}

/* "105.9 GB of 250 GB on the host; its link works 2.04 s of a step" */
static void put_host(const struct headline *h, struct ap_buf *out)
{
    price_put_bytes(out, (double)h->host_bytes, 0);
    if (h->host_limit_bytes > 0) {
        ap_buf_puts(out, " of ");
        price_put_bytes(out, (double)h->host_limit_bytes, 0);
    }
    ap_buf_puts(out, " on the host");
    if (h->host_limit_bytes > 0 && h->host_bytes > h->host_limit_bytes)
        ap_buf_puts(out, ": does not fit");
    ap_buf_puts(out, "; the link to it works ");
    price_put_sec(out, NULL, h->host_link_sec, 0);
    ap_buf_puts(out, " of a step\n");
}

void headline_put(const struct headline *h, struct ap_buf *out)
{
    const struct ap_plan_rates *r = &h->rates;
    struct ap_buf line = {0};

    put_wrapped(h->words.data, out);
    if (h->best.len > 0)
        put_wrapped(h->best.data, out);
    if (r->no_use)
        ap_buf_printf(out, "of no use: %s\n", r->no_use);
    if (h->in_seconds && r->step_sec > 0) {
        put_speed(h, out);
        ap_buf_printf(&line, "MFU %.1f %%, HFU %.1f %% of the %s peak; ", 100 * r->mfu,
                      100 * r->hfu, r->flops.peak_of);
    }
    put_fit(h, &line);
    put_wrapped(line.data, out);
    ap_buf_free(&line);
    if (h->host_bytes > 0)
        put_host(h, out);
    if (h->parameter_bytes > 0)
        put_wrapped(h->precision.data, out);
    if (h->sure)
        put_sure(h, out);
}

void headline_json(const struct headline *h, struct ap_buf *out)
{
    const struct ap_plan_rates *r = &h->rates;
    double each = r->step_sec * (double)r->n_devices;

    ap_buf_puts(out, ",\"plan\":{\"words\":");
    ap_json_str(out, h->words.data);
    ap_put_int(out, "n_devices", r->n_devices);
    ap_put_int(out, "samples", r->samples);
    ap_put_int(out, "tokens", r->tokens);
    price_put_num(out, "model_flops", r->flops.model);
    price_put_num(out, "recomputed_flops", r->flops.again);
    if (h->in_seconds && each > 0) {
        price_put_num(out, "samples_per_sec_per_device", (double)r->samples / each);
        price_put_num(out, "tokens_per_sec_per_device", (double)r->tokens / each);
        ap_put_str(out, "peak_of", r->flops.peak_of);
        price_put_num(out, "mfu", r->mfu);
        price_put_num(out, "hfu", r->hfu);
        price_put_num(out, "one_device_sec", r->one_device_sec);
    }
    if (h->near) {
        ap_buf_puts(out, ",\"published\":{\"runs\":");
        ap_buf_int(out, h->near->runs);
        ap_put_int(out, "sources", h->near->sources);
        price_put_num(out, "low", h->near->low);
        price_put_num(out, "median", h->near->median);
        price_put_num(out, "high", h->near->high);
        ap_put_str(out, "of", h->near->of);
        ap_buf_putc(out, '}');
    }
    ap_put_int(out, "spare_bytes", h->limit_bytes - h->peak_bytes);
    if (h->host_bytes > 0) {
        ap_put_int(out, "host_bytes", h->host_bytes);
        price_put_num(out, "host_link_sec", h->host_link_sec);
    }
    if (largest_micro_batch(h) > 0)
        ap_put_int(out, "largest_micro_batch", largest_micro_batch(h));
    if (h->parameter_bytes > 0) {
        ap_put_str(out, "precision", h->precision.data);
        price_put_num(out, "bytes_per_parameter", h->parameter_bytes);
    }
    if (r->no_use)
        ap_put_str(out, "no_use", r->no_use);
    ap_buf_putc(out, '}');
}
