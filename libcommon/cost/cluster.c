/* Cluster descriptions: reading, checking, writing. */
#include "cost/cost.h"

#include <string.h>

#include "base/text.h"

int64_t ap_cluster_devices(const struct ap_cluster *c)
{
    int64_t n = 1;
    for (int i = 0; i < c->n_levels; i++)
        n = ap_mul64(n, c->levels[i].size);
    return n;
}

double ap_cluster_efficiency(const struct ap_cluster *c, double flops)
{
    return c->n_curve ? ap_share_at(c->curve, c->n_curve, flops) : c->efficiency;
}

double ap_link_rate(const struct ap_link_level *level, double per_child, double per_group)
{
    double rate = level->bandwidth_bytes_per_sec;
    double rails = level->rails > 1 ? (double)level->rails : 1;

    if (level->oversubscription > 1)
        rate /= level->oversubscription;
    if (level->shared)
        return rate / per_group;
    if (level->uplink && per_child > rails)
        return rate / (per_child / rails);
    return rate;
}

/* ---- several kinds of devices ---- */

double ap_cluster_peak(const struct ap_cluster *c, enum ap_dtype dtype)
{
    double sum = 0, hosts = 0;

    if (c->n_kinds == 0 && dtype == AP_F32 && c->tf32_flops_per_sec > 0)
        return c->tf32_flops_per_sec;
    if (c->n_kinds == 0)
        return c->flops_per_sec[dtype] > 0 ? c->flops_per_sec[dtype]
                                           : c->flops_per_sec[AP_F32];
    for (int k = 0; k < c->n_kinds; k++) {
        sum += (double)c->kind[k].hosts * ap_cluster_peak(c->kind[k].devices, dtype);
        hosts += (double)c->kind[k].hosts;
    }
    return sum / hosts;
}

int64_t ap_cluster_host_devices(const struct ap_cluster *c)
{
    return c->levels[0].uplink ? 1 : c->levels[0].size;
}

int ap_cluster_kind_of(const struct ap_cluster *c, int64_t device)
{
    int64_t host = device / c->levels[0].size;
    int k = 0;

    while (k + 1 < c->n_kinds && host >= c->kind[k].hosts)
        host -= c->kind[k++].hosts;
    return k;
}

const struct ap_cluster *ap_cluster_of_device(const struct ap_cluster *c, int64_t device)
{
    return c->n_kinds ? c->kind[ap_cluster_kind_of(c, device)].devices : c;
}

void ap_cluster_put_kinds(const struct ap_cluster *c, struct ap_buf *out)
{
    if (c->n_kinds == 0)
        ap_buf_puts(out, c->device);
    for (int k = 0; k < c->n_kinds; k++)
        ap_buf_printf(out, "%s%s", k ? ", " : "", c->kind[k].devices->device);
}

static void copy_devices(struct ap_cluster *c, const struct ap_cluster *from)
{
    c->device = from->device;
    c->memory_bytes = from->memory_bytes;
    memcpy(c->flops_per_sec, from->flops_per_sec, sizeof c->flops_per_sec);
    c->memory_bandwidth_bytes_per_sec = from->memory_bandwidth_bytes_per_sec;
    c->launch_sec = from->launch_sec;
    c->host_sec = from->host_sec;
    c->host_link = from->host_link;
    c->tf32_flops_per_sec = from->tf32_flops_per_sec;
    c->attention_of_peak = from->attention_of_peak;
    c->uneven_of_peak = from->uneven_of_peak;
    c->efficiency = from->efficiency;
    c->n_curve = from->n_curve;
    memcpy(c->curve, from->curve, sizeof c->curve);
    memcpy(c->collective_share, from->collective_share, sizeof c->collective_share);
    c->measured.kernel = from->measured.kernel;
    c->measured.n_kernels = from->measured.n_kernels;
    c->measured.rate = from->measured.rate;
    c->measured.n_rates = from->measured.n_rates;
}

void ap_cluster_set_kind(struct ap_cluster *c, int kind)
{
    if (c->n_kinds == 0)
        return;
    const struct ap_cluster *of = c->kind[kind].devices;
    int64_t size = c->levels[0].size;

    copy_devices(c, of);
    c->levels[0] = of->levels[0];
    c->levels[0].size = size;
    c->n_kinds = 0;
}

/* ---- reading ---- */

/* What makes sense, far from where prices would overflow. */
static const struct range {
    double low, high;
} rates = {1, 1e30}, seconds = {0, 1e6}, shares = {1e-6, 1}, factors_of_one = {1e-6, 1e6},
  more_than_one = {1, 1e6}, parts = {0, 0.9};

static int get_amount(const json_t *o, const struct ap_at *at, const char *key,
                      struct range r, double *out, struct ap_err *err)
{
    struct ap_at here = {at, key, 0};
    if (ap_get_num(o, at, key, out, err))
        return -1;
    if (!(*out >= r.low && *out <= r.high))
        return ap_at_err(&here, err, "expected a number from %g to %g, got %g", r.low,
                         r.high, *out);
    return 0;
}

/* A flag that is false when absent. */
static int get_flag(const json_t *o, const struct ap_at *at, const char *key, bool *out,
                    struct ap_err *err)
{
    struct ap_at here = {at, key, 0};
    const json_t *v = json_object_get(o, key);
    if (v && !json_is_boolean(v))
        return ap_at_err(&here, err, "expected true or false");
    *out = json_is_true(v);
    return 0;
}

/* Links beyond the first of a child, and how much of them the level carries. */
static int get_fabric(const json_t *o, const struct ap_at *at,
                      struct ap_link_level *level, struct ap_err *err)
{
    if (json_object_get(o, "rails")) {
        if (ap_get_int(o, at, "rails", 1, AP_MAX_DEVICES, &level->rails, err))
            return -1;
        if (level->shared)
            return ap_at_err(at, err, "a shared level has no rails");
        level->uplink = true;
    }
    if (json_object_get(o, "oversubscription"))
        return get_amount(o, at, "oversubscription", more_than_one,
                          &level->oversubscription, err);
    return 0;
}

static int get_level(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                     struct ap_link_level *level, struct ap_err *err)
{
    const char *name;
    if (ap_get_str(o, at, "name", &name, err) ||
        ap_get_int(o, at, "size", 1, AP_MAX_DEVICES, &level->size, err) ||
        get_amount(o, at, "bandwidth_bytes_per_sec", rates,
                   &level->bandwidth_bytes_per_sec, err) ||
        get_amount(o, at, "latency_sec", seconds, &level->latency_sec, err) ||
        get_flag(o, at, "shared", &level->shared, err) ||
        get_flag(o, at, "uplink", &level->uplink, err))
        return -1;
    if (level->shared && level->uplink)
        return ap_at_err(at, err, "a level cannot be both shared and an uplink");
    if (get_fabric(o, at, level, err))
        return -1;
    level->name = ap_arena_strdup(arena, name);
    return 0;
}

static int get_levels(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                      struct ap_cluster *c, struct ap_err *err)
{
    struct ap_at list = {at, "levels", 0};
    json_t *levels;

    if (ap_get_arr(o, at, "levels", &levels, err))
        return -1;
    size_t n = json_array_size(levels);
    if (n < 1 || n > AP_MAX_LEVELS)
        return ap_at_err(&list, err, "expected 1 to %d levels, got %zu", AP_MAX_LEVELS,
                         n);
    for (size_t i = 0; i < n; i++) {
        struct ap_at here = {&list, NULL, (long)i};
        if (get_level(arena, json_array_get(levels, i), &here, &c->levels[i], err))
            return -1;
    }
    c->n_levels = (int)n;
    if (ap_cluster_devices(c) > AP_MAX_DEVICES)
        return ap_at_err(&list, err, "more than %d devices", AP_MAX_DEVICES);
    return 0;
}

static int get_flops(const json_t *o, const struct ap_at *at, struct ap_cluster *c,
                     struct ap_err *err)
{
    struct ap_at here = {at, "flops_per_sec", 0};
    json_t *peaks = json_object_get(o, "flops_per_sec");
    const char *key;
    json_t *value;

    if (!json_is_object(peaks))
        return ap_at_err(&here, err, "expected an object of element types");
    json_object_foreach(peaks, key, value)
    {
        struct ap_at member = {&here, key, 0};
        enum ap_dtype dtype = ap_dtype_find(key, strlen(key));
        if (dtype == AP_N_DTYPES || dtype == AP_TUPLE)
            return ap_at_err(&member, err, "no element type has this name");
        if (get_amount(peaks, &here, key, rates, &c->flops_per_sec[dtype], err))
            return -1;
    }
    double f32;
    return get_amount(peaks, &here, "f32", rates, &f32, err);
}

/* An object with a number for each of some kinds of collectives. */
static int get_collectives(const json_t *o, const struct ap_at *at, const char *name,
                           struct range range, double silent, double number[AP_N_OPS],
                           struct ap_err *err)
{
    struct ap_at here = {at, name, 0};
    json_t *factors = json_object_get(o, name);
    const char *key;
    json_t *value;

    for (int op = 0; op < AP_N_OPS; op++)
        number[op] = silent;
    if (!factors)
        return 0;
    if (!json_is_object(factors))
        return ap_at_err(&here, err, "expected an object of collectives");
    json_object_foreach(factors, key, value)
    {
        struct ap_at member = {&here, key, 0};
        enum ap_op op = ap_op_find(key, strlen(key));
        if (op == AP_N_OPS || ap_ops[op].class != AP_CLASS_COLLECTIVE)
            return ap_at_err(&member, err, "no collective has this name");
        if (get_amount(factors, &here, key, range, &number[op], err))
            return -1;
    }
    return 0;
}

/* One number, or rows of FLOPs and what operators of that size reach. */
static int get_efficiency(const json_t *o, const struct ap_at *at, struct ap_cluster *c,
                          struct ap_err *err)
{
    struct ap_at list = {at, "efficiency", 0};
    const json_t *rows = json_object_get(o, "efficiency");

    if (!json_is_array(rows))
        return get_amount(o, at, "efficiency", shares, &c->efficiency, err);
    if (ap_shares_from_json(rows, &list, "flops", c->curve, &c->n_curve, err))
        return -1;
    c->efficiency = c->curve[c->n_curve - 1].of_peak;
    return 0;
}

/* The link to the host's memory, if it is known. */
static int get_host_link(const json_t *o, const struct ap_at *at,
                         struct ap_host_link *link, struct ap_err *err)
{
    static const char *const members[] = {"out_bytes_per_sec", "in_bytes_per_sec",
                                          "both_bytes_per_sec", "memory_bytes_per_sec",
                                          "memory_bytes"};
    const struct ap_at here = {at, "host_link", 0};
    json_t *from = json_object_get(o, "host_link"), *value;
    const char *name;

    if (!from)
        return 0;
    if (!json_is_object(from))
        return ap_at_err(&here, err, "expected an object");
    json_object_foreach(from, name, value)
    {
        const struct ap_at member = {&here, name, 0};
        size_t i = 0;
        while (i < sizeof members / sizeof *members && strcmp(members[i], name) != 0)
            i++;
        if (i == sizeof members / sizeof *members)
            return ap_at_err(&member, err, "a host_link has no such member");
    }
    return get_amount(from, &here, "out_bytes_per_sec", rates, &link->out_bytes_per_sec,
                      err) ||
                   get_amount(from, &here, "in_bytes_per_sec", rates,
                              &link->in_bytes_per_sec, err) ||
                   (json_object_get(from, "both_bytes_per_sec") &&
                    get_amount(from, &here, "both_bytes_per_sec", rates,
                               &link->both_bytes_per_sec, err)) ||
                   (json_object_get(from, "memory_bytes_per_sec") &&
                    get_amount(from, &here, "memory_bytes_per_sec", rates,
                               &link->memory_bytes_per_sec, err)) ||
                   (json_object_get(from, "memory_bytes") &&
                    ap_get_int(from, &here, "memory_bytes", 1, INT64_MAX,
                               &link->memory_bytes, err))
               ? -1
               : 0;
}

/* What is said of one device. */
static int get_devices(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                       struct ap_cluster *c, struct ap_err *err)
{
    const char *device;

    if (ap_get_str(o, at, "device", &device, err) ||
        ap_get_int(o, at, "memory_bytes", 1, INT64_MAX, &c->memory_bytes, err) ||
        get_flops(o, at, c, err) ||
        get_amount(o, at, "memory_bandwidth_bytes_per_sec", rates,
                   &c->memory_bandwidth_bytes_per_sec, err) ||
        get_amount(o, at, "launch_sec", seconds, &c->launch_sec, err) ||
        (json_object_get(o, "tf32_flops_per_sec") &&
         get_amount(o, at, "tf32_flops_per_sec", rates, &c->tf32_flops_per_sec, err)) ||
        (json_object_get(o, "attention_of_peak") &&
         get_amount(o, at, "attention_of_peak", shares, &c->attention_of_peak, err)) ||
        (json_object_get(o, "uneven_of_peak") &&
         get_amount(o, at, "uneven_of_peak", shares, &c->uneven_of_peak, err)) ||
        (json_object_get(o, "host_sec") &&
         get_amount(o, at, "host_sec", seconds, &c->host_sec, err)) ||
        get_host_link(o, at, &c->host_link, err) ||
        get_collectives(o, at, "collective_share", parts, 0, c->collective_share, err) ||
        get_efficiency(o, at, c, err) ||
        ap_measured_kernels_from_json(arena, o, at, &c->measured, err))
        return -1;
    c->device = ap_arena_strdup(arena, device);
    return 0;
}

/* An element of "hosts": devices, how many hosts, and the links inside if they are not
 * those of the first level. */
static int get_kind(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                    const struct ap_cluster *c, struct ap_host_kind *kind,
                    struct ap_err *err)
{
    const struct ap_at in = {at, "links", 0};
    struct ap_cluster *devices = AP_NEW(arena, struct ap_cluster);
    const json_t *links = json_object_get(o, "links");

    devices->levels[0] = c->levels[0];
    kind->devices = devices;
    if (ap_get_int(o, at, "count", 1, AP_MAX_DEVICES, &kind->hosts, err) ||
        get_devices(arena, o, at, devices, err))
        return -1;
    if (!links)
        return 0;
    return get_amount(links, &in, "bandwidth_bytes_per_sec", rates,
                      &devices->levels[0].bandwidth_bytes_per_sec, err) ||
                   get_amount(links, &in, "latency_sec", seconds,
                              &devices->levels[0].latency_sec, err)
               ? -1
               : 0;
}

static int get_kinds(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                     struct ap_cluster *c, struct ap_err *err)
{
    const struct ap_at list = {at, "hosts", 0};
    int64_t hosts = 0, least = INT64_MAX;
    json_t *kinds;

    if (ap_get_arr(o, at, "hosts", &kinds, err))
        return -1;
    if (json_object_get(o, "device"))
        return ap_at_err(&list, err, "there is a /device, too: which is meant?");
    size_t n = json_array_size(kinds);
    if (n < 1 || n > AP_MAX_KINDS)
        return ap_at_err(&list, err, "expected 1 to %d kinds, got %zu", AP_MAX_KINDS, n);
    for (size_t i = 0; i < n; i++) {
        const struct ap_at here = {&list, NULL, (long)i};
        if (get_kind(arena, json_array_get(kinds, i), &here, c, &c->kind[i], err))
            return -1;
        hosts += c->kind[i].hosts;
        if (c->kind[i].devices->memory_bytes < least)
            least = c->kind[i].devices->memory_bytes;
    }
    int64_t all = ap_cluster_devices(c) / c->levels[0].size;
    if (hosts != all)
        return ap_at_err(&list, err, "%lld hosts, the levels have %lld", (long long)hosts,
                         (long long)all);
    c->n_kinds = (int)n;
    copy_devices(c, c->kind[0].devices);
    c->memory_bytes = least;
    if (n == 1)
        ap_cluster_set_kind(c, 0);
    return 0;
}

static int get_attention(const json_t *o, const struct ap_at *at, struct ap_cluster *c,
                         struct ap_err *err)
{
    const struct ap_at here = {at, "attention", 0};
    const char *word = "plain";

    if (ap_opt_str(o, at, "attention", &word, err))
        return -1;
    c->fused_attention = strcmp(word, "fused") == 0;
    if (!c->fused_attention && strcmp(word, "plain") != 0)
        return ap_at_err(&here, err, "expected fused or plain");
    return 0;
}

static void level_names(const struct ap_cluster *c, const char *name[AP_MAX_LEVELS])
{
    for (int i = 0; i < c->n_levels; i++)
        name[i] = c->levels[i].name;
}

int ap_cluster_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                         struct ap_cluster *c, struct ap_err *err)
{
    const char *name, *source = NULL, *levels[AP_MAX_LEVELS];

    *c = (struct ap_cluster){0};
    if (ap_get_str(o, at, "name", &name, err) ||
        ap_opt_str(o, at, "source", &source, err))
        return -1;
    if (json_object_get(o, "hosts")) {
        if (get_levels(arena, o, at, c, err) || get_kinds(arena, o, at, c, err))
            return -1;
    } else if (get_devices(arena, o, at, c, err) || get_levels(arena, o, at, c, err)) {
        return -1;
    }
    level_names(c, levels);
    if (json_object_get(o, "experts_per_token") &&
        get_amount(o, at, "experts_per_token", more_than_one, &c->experts_per_token, err))
        return -1;
    if (json_object_get(o, "expert_load") &&
        get_amount(o, at, "expert_load", more_than_one, &c->expert_load, err))
        return -1;
    if (get_attention(o, at, c, err) || get_flag(o, at, "overlap", &c->overlap, err) ||
        get_collectives(o, at, "collective_efficiency", factors_of_one, 1,
                        c->collective_efficiency, err) ||
        ap_measured_links_from_json(arena, o, at, levels, c->n_levels, &c->measured,
                                    err) ||
        ap_published_from_json(arena, o, at, c->published, &c->n_published, err))
        return -1;
    c->has_published = json_object_get(o, "published") != NULL;
    c->name = ap_arena_strdup(arena, name);
    c->source = source ? ap_arena_strdup(arena, source) : NULL;
    return 0;
}

/* ---- writing ---- */

static void put_num(struct ap_buf *out, const char *key, double v)
{
    ap_buf_printf(out, ",\"%s\":", key);
    ap_json_num(out, v);
}

static void put_level(const struct ap_link_level *level, struct ap_buf *out)
{
    ap_buf_puts(out, "{\"name\":");
    ap_json_str(out, level->name);
    ap_buf_puts(out, ",\"size\":");
    ap_buf_int(out, level->size);
    put_num(out, "bandwidth_bytes_per_sec", level->bandwidth_bytes_per_sec);
    put_num(out, "latency_sec", level->latency_sec);
    if (level->rails > 0)
        ap_put_int(out, "rails", level->rails);
    else if (level->uplink)
        ap_buf_puts(out, ",\"uplink\":true");
    else
        ap_buf_puts(out, level->shared ? ",\"shared\":true" : ",\"shared\":false");
    if (level->oversubscription > 0)
        put_num(out, "oversubscription", level->oversubscription);
    ap_buf_putc(out, '}');
}

static void put_efficiency(const struct ap_cluster *c, struct ap_buf *out)
{
    if (c->n_curve == 0) {
        put_num(out, "efficiency", c->efficiency);
        return;
    }
    ap_put_key(out, "efficiency");
    ap_shares_put(c->curve, c->n_curve, "flops", out);
}

static void put_collectives(const char *name, double silent,
                            const double number[AP_N_OPS], struct ap_buf *out)
{
    const char *sep = "{";

    for (int op = 0; op < AP_N_OPS; op++) {
        if (number[op] == silent)
            continue;
        if (*sep == '{')
            ap_put_key(out, name);
        ap_buf_printf(out, "%s\"%s\":", sep, ap_ops[op].name);
        ap_json_num(out, number[op]);
        sep = ",";
    }
    if (*sep == ',')
        ap_buf_putc(out, '}');
}

static void put_host_link(const struct ap_host_link *link, struct ap_buf *out)
{
    ap_buf_puts(out, ",\"host_link\":{\"out_bytes_per_sec\":");
    ap_json_num(out, link->out_bytes_per_sec);
    put_num(out, "in_bytes_per_sec", link->in_bytes_per_sec);
    if (link->both_bytes_per_sec > 0)
        put_num(out, "both_bytes_per_sec", link->both_bytes_per_sec);
    if (link->memory_bytes_per_sec > 0)
        put_num(out, "memory_bytes_per_sec", link->memory_bytes_per_sec);
    if (link->memory_bytes > 0)
        ap_put_int(out, "memory_bytes", link->memory_bytes);
    ap_buf_putc(out, '}');
}

/* The members of one device, no comma before them. */
static void put_devices(const struct ap_cluster *c, struct ap_buf *out)
{
    const char *sep = "";

    ap_buf_puts(out, "\"device\":");
    ap_json_str(out, c->device);
    ap_buf_puts(out, ",\"memory_bytes\":");
    ap_buf_int(out, c->memory_bytes);
    ap_buf_puts(out, ",\"flops_per_sec\":{");
    for (int t = 0; t < AP_N_DTYPES; t++) {
        if (c->flops_per_sec[t] == 0)
            continue;
        ap_buf_printf(out, "%s\"%s\":", sep, ap_dtype_name((enum ap_dtype)t));
        ap_json_num(out, c->flops_per_sec[t]);
        sep = ",";
    }
    ap_buf_putc(out, '}');
    put_num(out, "memory_bandwidth_bytes_per_sec", c->memory_bandwidth_bytes_per_sec);
    put_num(out, "launch_sec", c->launch_sec);
    if (c->tf32_flops_per_sec > 0)
        put_num(out, "tf32_flops_per_sec", c->tf32_flops_per_sec);
    if (c->attention_of_peak > 0)
        put_num(out, "attention_of_peak", c->attention_of_peak);
    if (c->uneven_of_peak > 0)
        put_num(out, "uneven_of_peak", c->uneven_of_peak);
    if (c->host_sec > 0)
        put_num(out, "host_sec", c->host_sec);
    if (c->host_link.out_bytes_per_sec > 0)
        put_host_link(&c->host_link, out);
    put_collectives("collective_share", 0, c->collective_share, out);
    put_efficiency(c, out);
    ap_measured_put_kernels(&c->measured, out);
}

static void put_kinds(const struct ap_cluster *c, struct ap_buf *out)
{
    ap_buf_puts(out, "\"hosts\":[");
    for (int k = 0; k < c->n_kinds; k++) {
        const struct ap_cluster *of = c->kind[k].devices;
        ap_buf_puts(out, k ? ",{\"count\":" : "{\"count\":");
        ap_buf_int(out, c->kind[k].hosts);
        ap_buf_putc(out, ',');
        put_devices(of, out);
        ap_buf_puts(out, ",\"links\":{\"bandwidth_bytes_per_sec\":");
        ap_json_num(out, of->levels[0].bandwidth_bytes_per_sec);
        put_num(out, "latency_sec", of->levels[0].latency_sec);
        ap_buf_puts(out, "}}");
    }
    ap_buf_putc(out, ']');
}

void ap_cluster_to_json(const struct ap_cluster *c, struct ap_buf *out)
{
    const char *levels[AP_MAX_LEVELS];

    ap_buf_puts(out, "{\"name\":");
    ap_json_str(out, c->name);
    if (c->source)
        ap_put_str(out, "source", c->source);
    ap_buf_putc(out, ',');
    if (c->n_kinds)
        put_kinds(c, out);
    else
        put_devices(c, out);
    ap_buf_puts(out, ",\"levels\":[");
    for (int i = 0; i < c->n_levels; i++) {
        ap_buf_puts(out, i ? "," : "");
        put_level(&c->levels[i], out);
    }
    ap_buf_putc(out, ']');
    if (c->fused_attention)
        ap_put_str(out, "attention", "fused");
    if (c->overlap)
        ap_buf_puts(out, ",\"overlap\":true");
    if (c->experts_per_token > 0)
        put_num(out, "experts_per_token", c->experts_per_token);
    if (c->expert_load > 0)
        put_num(out, "expert_load", c->expert_load);
    put_collectives("collective_efficiency", 1, c->collective_efficiency, out);
    level_names(c, levels);
    ap_measured_put_links(&c->measured, levels, out);
    if (c->has_published)
        ap_published_put(c->published, c->n_published, out);
    ap_buf_putc(out, '}');
}

const char *ap_cluster_fingerprint(struct ap_arena *arena, const struct ap_cluster *c)
{
    struct ap_buf text = {0};
    struct ap_cluster figures = *c;
    figures.source = NULL;
    figures.has_published = false;
    ap_cluster_to_json(&figures, &text);
    uint64_t h = ap_hash(text.data, text.len, 0);
    ap_buf_free(&text);
    return ap_arena_printf(arena, "%016llx", (unsigned long long)h);
}
