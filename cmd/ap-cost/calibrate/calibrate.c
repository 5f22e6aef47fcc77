#include "calibrate/calibrate.h"

#include <string.h>

#include "base/array.h"
#include "base/file.h"

struct cal_class *cal_class_of(struct cal *c, const struct cal_class *key)
{
    for (int i = 0; i < c->n; i++) {
        struct cal_class *k = &c->class[i];
        if (k->what == key->what && k->kernel == key->kernel && k->dtype == key->dtype &&
            k->op == key->op && k->level == key->level && k->devices == key->devices &&
            k->rings == key->rings)
            return k;
    }
    AP_ROOM_IN(c->arena, c->class, c->n, c->cap);
    c->class[c->n] = *key;
    return &c->class[c->n++];
}

void cal_add(struct cal *c, struct cal_class *class, const struct cal_sample *s)
{
    AP_ROOM_IN(c->arena, class->sample, class->n, class->cap);
    class->sample[class->n++] = *s;
}

int cal_level(const struct ap_cluster *c, int n_groups, const int *first,
              const int64_t *device, int *level, int64_t *rings)
{
    const int64_t all = ap_cluster_devices(c);
    int64_t child = 1;

    *level = -1;
    for (int i = 0; i < first[n_groups]; i++)
        if (device[i] < 0 || device[i] >= all)
            return -1;
    for (int l = 0; l < c->n_levels; l++) {
        int64_t through = 0;
        for (int g = 0; g < n_groups; g++) {
            bool crosses = false, here = false;
            const int64_t at = device[first[0]] / child; /* the child of the first one */
            for (int i = first[g]; i < first[g + 1]; i++) {
                crosses |= device[i] / child != device[first[g]] / child;
                here |= device[i] / child == at;
            }
            through += crosses && here;
        }
        if (through) {
            *level = l;
            *rings = through;
        }
        child *= c->levels[l].size;
    }
    return *level < 0 ? -1 : 0;
}

static int read_file(struct cal *c, const char *file, struct ap_err *err)
{
    char *text;
    size_t len;
    json_error_t where;

    if (ap_read_file(c->arena, file, true, &text, &len, err))
        return -1;
    const char *at = text + strspn(text, " \t\r\n");
    if (*at != '{')
        return cal_read_nccl_text(c, file, text, err);
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, &where);
    if (!doc)
        return ap_err_set(err, "%s:%d:%d: %s", file, where.line, where.column,
                          where.text);
    const int rc = cal_is_nccl_json(doc) ? cal_read_nccl_json(c, file, doc, err)
                                         : cal_read_profile(c, file, doc, err);
    json_decref(doc);
    return rc;
}

/* Writes the cluster. */
static int write_cluster(struct ap_tool *tool, struct cal *c, const char *source)
{
    struct ap_buf text = {0}, extra = {0};

    c->cluster.source = source;
    ap_cluster_to_json(&c->cluster, &text);
    ap_buf_putc(&text, '\n');
    ap_tool_write_bytes(tool, &text);
    ap_buf_free(&text);
    ap_put_int(&extra, "classes", c->n);
    ap_arena_free(c->arena);
    return ap_tool_finish(tool, extra.data);
}

int calibrate(struct ap_tool *tool, const struct ap_list *files, const char *cluster_path,
              double step_sec)
{
    static const char *const input[] = {"-"};
    struct ap_arena arena = {0};
    struct ap_err err = {0};
    struct ap_buf text = {0};
    struct cal c = {.arena = &arena, .has_cluster = cluster_path != NULL};
    const int n = files->n ? files->n : 1;
    double by = 1;

    if (cluster_path && ap_cluster_get(&arena, NULL, cluster_path, 1, &c.cluster, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    for (int i = 0; i < n; i++) {
        const char *file = files->n ? files->v[i] : input[0];
        if (step_sec > 0 ? cal_read_step(&c, file, step_sec, &by, &err)
                         : read_file(&c, file, &err))
            ap_die(AP_BAD_INPUT, "%s", err.msg);
    }
    ap_tool_one_kind(&c.cluster);
    if (step_sec > 0) {
        cal_scale(&c, by);
        return write_cluster(tool, &c,
                             ap_arena_printf(&arena,
                                             "%s, all times x %.4g: ap-cost "
                                             "--calibrate --step %.6g",
                                             c.cluster.name, by, step_sec));
    }
    cal_fit(&c);
    if (!tool->quiet) {
        cal_report(&c, &text);
        fputs(text.len ? text.data : "", stderr);
    }
    ap_buf_free(&text);
    return write_cluster(tool, &c,
                         ap_arena_printf(&arena, "ap-cost --calibrate of %d file%s", n,
                                         n == 1 ? "" : "s"));
}
