/* Clusters by name, by path, of a document, and the default. */
#include "cost/cost.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

static int from_text(struct ap_arena *arena, const char *path, const char *text,
                     size_t len, struct ap_cluster *c, struct ap_err *err)
{
    json_error_t where;
    struct ap_err why = {""};

    json_t *o = json_loadb(text, len, JSON_REJECT_DUPLICATES, &where);
    if (!o)
        return ap_err_set(err, "%s:%d:%d: %s", path, where.line, where.column,
                          where.text);
    int rc = ap_cluster_from_json(arena, o, NULL, c, &why);
    json_decref(o);
    return rc ? ap_err_set(err, "%s: %s", path, why.msg) : 0;
}

static const struct ap_preset *find_preset(const char *name, size_t len)
{
    for (const struct ap_preset *p = ap_presets; p->name; p++)
        if (strlen(p->name) == len && !strncmp(p->name, name, len))
            return p;
    return NULL;
}

/* Whether a preset is called KIND-N: one host, of N devices. */
static bool is_host_of(const char *preset, const char *kind)
{
    const size_t len = strlen(kind);

    return !strncmp(preset, kind, len) && preset[len] == '-' &&
           preset[len + 1 + strspn(preset + len + 1, "0123456789")] == '\0';
}

/* The preset NAME, or else the preset NAME-N if there is only one such. */
static const struct ap_preset *find_host(const char *name)
{
    const struct ap_preset *found = find_preset(name, strlen(name));

    if (found)
        return found;
    for (const struct ap_preset *p = ap_presets; p->name; p++)
        if (is_host_of(p->name, name)) {
            if (found)
                return NULL;
            found = p;
        }
    return found;
}

/* Where the number of hosts begins in KINDxHOSTS, 0: nowhere. */
static size_t hosts_at(const char *name)
{
    size_t n = strlen(name), i = n;
    while (i > 0 && name[i - 1] >= '0' && name[i - 1] <= '9')
        i--;
    return i > 1 && i < n && n - i <= 7 && name[i] != '0' && name[i - 1] == 'x' ? i : 0;
}

static int from_preset(struct ap_arena *arena, const struct ap_preset *p,
                       struct ap_cluster *c, struct ap_err *err)
{
    return from_text(arena, p->name, p->text, strlen(p->text), c, err);
}

static bool same_host(const struct ap_cluster *a, const struct ap_cluster *b)
{
    return !strcmp(a->device, b->device) && a->levels[0].size == b->levels[0].size &&
           !strcmp(a->levels[0].name, b->levels[0].name) &&
           a->memory_bandwidth_bytes_per_sec == b->memory_bandwidth_bytes_per_sec &&
           a->tf32_flops_per_sec == b->tf32_flops_per_sec &&
           !memcmp(a->flops_per_sec, b->flops_per_sec, sizeof a->flops_per_sec);
}

/*
 * The cluster KINDxHOSTS: a preset KIND of several hosts, or of one that another preset
 * has several of, or a preset KINDxN, with its outermost level of HOSTS. 1: no such kind.
 */
static int from_kind(struct ap_arena *arena, const char *path, struct ap_cluster *c,
                     struct ap_err *err)
{
    size_t digits = hosts_at(path), len = digits ? digits - 1 : 0;
    const struct ap_preset *host = digits ? find_preset(path, len) : NULL;
    struct ap_cluster one = {0};

    if (!digits)
        return 1;
    if (host && from_preset(arena, host, &one, err))
        return -1;
    for (const struct ap_preset *p = ap_presets; p->name; p++) {
        bool other = hosts_at(p->name) == digits && !strncmp(p->name, path, digits);
        if (!host && !other)
            continue;
        if (from_preset(arena, p, c, err))
            return -1;
        if ((c->n_levels < 2 && !c->levels[0].uplink) ||
            (host && p != host && (one.n_levels > 1 || !same_host(&one, c))))
            continue;
        c->levels[c->n_levels - 1].size = strtoll(path + digits, NULL, 10);
        c->name = ap_arena_strdup(arena, path);
        if (ap_cluster_devices(c) > AP_MAX_DEVICES)
            return ap_err_set(err, "%s: more than %d devices", path, AP_MAX_DEVICES);
        return 0;
    }
    if (host)
        return ap_err_set(err, "%s: no preset says how hosts like %s are connected", path,
                          host->name);
    return 1;
}

static int from_path(struct ap_arena *arena, const char *path, struct ap_cluster *c,
                     struct ap_err *err);

/* Of two clusters' links between hosts the slower bandwidth and the longer latency. */
static int join_links(struct ap_link_level *to, const struct ap_link_level *of,
                      const char *path, struct ap_err *err)
{
    double latency = to->latency_sec;

    if (to->shared != of->shared || to->uplink != of->uplink)
        return ap_err_set(err, "%s: links between hosts of different forms, %s and %s",
                          path, to->name, of->name);
    if (ap_link_rate(of, 1, 1) < ap_link_rate(to, 1, 1))
        *to =
            (struct ap_link_level){.size = to->size,
                                   .name = of->name,
                                   .bandwidth_bytes_per_sec = of->bandwidth_bytes_per_sec,
                                   .shared = of->shared,
                                   .uplink = of->uplink,
                                   .rails = of->rails,
                                   .oversubscription = of->oversubscription};
    to->latency_sec = latency > of->latency_sec ? latency : of->latency_sec;
    to->size += of->size;
    return 0;
}

/* Forgets tables of collectives inside hosts, which each kind has others of; true if
 * there are none of links between hosts. */
static bool drop_inner_tables(struct ap_measured *m)
{
    for (int i = 0; i < m->n_collectives; i++)
        if (m->collective[i].level > 0)
            return false;
    m->n_collectives = 0;
    return m->n_sends == 0;
}

/* One more kind of hosts. */
static int join_kind(struct ap_arena *arena, const char *path, const char *name,
                     struct ap_cluster *c, struct ap_err *err)
{
    struct ap_cluster *of = AP_NEW(arena, struct ap_cluster);

    int rc = hosts_at(name) ? from_kind(arena, name, of, err) : 1;

    if (rc < 0 || (rc > 0 && from_path(arena, name, of, err)))
        return -1;
    if (of->n_levels != 2 || of->n_kinds > 0)
        return ap_err_set(err, "%s: %s is not KINDxHOSTS, hosts with links between them",
                          path, name);
    if (c->n_kinds == AP_MAX_KINDS)
        return ap_err_set(err, "%s: more than %d kinds of hosts", path, AP_MAX_KINDS);
    const bool formulas = drop_inner_tables(&of->measured);
    if (c->n_kinds == 0) {
        *c = *of;
    } else if (c->levels[0].size != of->levels[0].size) {
        return ap_err_set(err, "%s: hosts of %lld devices and of %lld", path,
                          (long long)c->levels[0].size, (long long)of->levels[0].size);
    } else if (memcmp(c->collective_efficiency, of->collective_efficiency,
                      sizeof c->collective_efficiency) != 0) {
        return ap_err_set(err, "%s: %s has another collective_efficiency", path, name);
    } else if (!formulas || c->measured.n_collectives + c->measured.n_sends > 0) {
        return ap_err_set(err,
                          "%s: links of %s are measured, those between kinds of "
                          "hosts are not",
                          path, name);
    } else if (join_links(&c->levels[1], &of->levels[1], path, err)) {
        return -1;
    }
    c->kind[c->n_kinds++] = (struct ap_host_kind){of->levels[1].size, of};
    if (of->memory_bytes < c->memory_bytes)
        c->memory_bytes = of->memory_bytes;
    c->fused_attention &= of->fused_attention; /* a graph is for all kinds */
    c->overlap &= of->overlap;
    return 0;
}

/* KINDxHOSTS+KINDxHOSTS: hosts of several kinds. */
static int from_kinds(struct ap_arena *arena, const char *path, struct ap_cluster *c,
                      struct ap_err *err)
{
    *c = (struct ap_cluster){0};
    for (const char *at = path;; at++) {
        size_t len = strcspn(at, "+");
        if (len == 0)
            return ap_err_set(
                err, "%s: expected hosts such as h100x2 on both sides of each '+'", path);
        if (join_kind(arena, path, ap_arena_strndup(arena, at, len), c, err))
            return -1;
        at += len;
        if (!*at)
            break;
    }
    if (ap_cluster_devices(c) > AP_MAX_DEVICES)
        return ap_err_set(err, "%s: more than %d devices", path, AP_MAX_DEVICES);
    c->name = ap_arena_strdup(arena, path);
    c->source = NULL;
    if (c->n_kinds == 1)
        ap_cluster_set_kind(c, 0);
    return 0;
}

static int from_path(struct ap_arena *arena, const char *path, struct ap_cluster *c,
                     struct ap_err *err)
{
    char *text;
    size_t len;

    if (strcmp(path, "-") && !strchr(path, '/') && access(path, F_OK)) {
        const struct ap_preset *preset = find_host(path);
        struct ap_nearest near = {.want = path};
        char meant[AP_MEANT];
        if (strchr(path, '+'))
            return from_kinds(arena, path, c, err);
        int rc =
            preset ? from_preset(arena, preset, c, err) : from_kind(arena, path, c, err);
        if (rc <= 0)
            return rc;
        for (const struct ap_preset *p = ap_presets; p->name; p++)
            ap_nearest_try(&near, p->name);
        return ap_err_set(err,
                          "%s: no such file, and no preset has this name; '--cluster "
                          "help' lists the presets%s",
                          path, ap_nearest_meant(&near, "", meant));
    }
    if (ap_read_file(arena, path, true, &text, &len, err))
        return -1;
    return from_text(arena, path, text, len, c, err);
}

void ap_cluster_list(struct ap_buf *out)
{
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    struct ap_cluster c;

    for (const struct ap_preset *p = ap_presets; p->name; p++) {
        if (from_text(&arena, p->name, p->text, strlen(p->text), &c, &err))
            continue; /* the message comes when it is asked for */
        struct ap_buf devices = {0};
        for (int i = c.n_levels - 1; i >= 0; i--)
            ap_buf_printf(&devices, "%lld%s", (long long)c.levels[i].size, i ? "x" : "");
        ap_buf_printf(out, "%-15s %5s %-15s   %s\n", p->name, devices.data, c.device,
                      c.source ? c.source : "");
        ap_buf_free(&devices);
    }
    ap_buf_puts(out,
                "KIND: one host (h100, the same as h100-8)\n"
                "KINDxHOSTS: any number of hosts of a kind: h100x64, dgx-h100x16, p3x3\n"
                "KINDxHOSTS+KINDxHOSTS: hosts of several kinds, for ap-stage: "
                "h100x2+a100x4\n");
    ap_arena_free(&arena);
}

static int from_section(struct ap_arena *arena, const struct ap_doc *doc,
                        const struct ap_section *section, struct ap_cluster *c,
                        struct ap_err *err)
{
    struct ap_err why = {""};
    struct ap_at at = {NULL, section->name, 0};
    json_t *o = ap_doc_load(doc, section, err);

    if (!o)
        return -1;
    int rc = ap_cluster_from_json(arena, o, &at, c, &why);
    json_decref(o);
    return rc ? ap_err_set(err, "%s: %s", doc->file, why.msg) : 0;
}

/* A100s with 80 GB, 8 to a node; vendor's peaks, a matrix multiplication reaches 0.7. */
static void set_default(int64_t n_devices, struct ap_cluster *c)
{
    int64_t inside = n_devices < 8 ? n_devices : 8;

    *c = (struct ap_cluster){
        .name = "default",
        .device = "A100-80GB",
        .memory_bytes = 80000000000,
        .memory_bandwidth_bytes_per_sec = 2.0e12,
        .launch_sec = 4e-6,
        .efficiency = 0.7,
        .n_levels = n_devices > 8 ? 2 : 1,
        .levels = {{.name = "nvlink",
                    .size = inside > 0 ? inside : 1,
                    .bandwidth_bytes_per_sec = 300e9,
                    .latency_sec = 3e-6},
                   {.name = "infiniband",
                    .size = ap_ceil_div(n_devices, 8),
                    .bandwidth_bytes_per_sec = 25e9,
                    .latency_sec = 10e-6}},
    };
    c->flops_per_sec[AP_F32] = 19.5e12;
    c->flops_per_sec[AP_F16] = c->flops_per_sec[AP_BF16] = 312e12;
    c->flops_per_sec[AP_F64] = 19.5e12;
    for (int op = 0; op < AP_N_OPS; op++)
        c->collective_efficiency[op] = 1;
}

int ap_cluster_get(struct ap_arena *arena, const struct ap_doc *doc, const char *path,
                   int64_t n_devices, struct ap_cluster *c, struct ap_err *err)
{
    const struct ap_section *section = doc ? ap_doc_find(doc, "cluster") : NULL;

    if (path)
        return from_path(arena, path, c, err);
    if (section)
        return from_section(arena, doc, section, c, err);
    set_default(n_devices, c);
    return 0;
}
