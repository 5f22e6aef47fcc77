/*
 * Problem: which logical mesh suits the cluster and the graph? Idea: search every ordered
 * factorisation of the device count into at most --max-axes axes (the last axis has
 * neighbouring devices), each in a process of its own, and keep the best. Cost: one
 * search per view, --jobs at a time. Views are compared by objective, then by their
 * order, so that the answer does not depend on which process ended first. After Zheng et
 * al., "Alpa", section 5.2 (logical mesh shapes of a submesh).
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "problem/shard.h"
#include "tool/passes.h"

#define MAX_VIEWS 4096 /* logical meshes; more are refused */

struct view {
    struct ap_mesh mesh;
    pid_t pid;
    FILE *answer, *messages; /* unnamed temporary files, written by the child */
    int code;                /* the child's exit code */
    struct shard_result result;
    char *said; /* its text on standard error */
};

/* What stands in front of the texts in the answer file. */
struct header {
    double objective, bound;
    size_t json, found, stats; /* bytes */
};

/* Appends the views of n devices with so many axes, the first ones given. */
static void list_views(struct view *views, int *n_views, struct ap_mesh *mesh, int axis,
                       int n_axes, int64_t n)
{
    static const char *const names[AP_MAX_AXES] = {"x", "y", "z", "w", "v", "u"};
    if (*n_views == MAX_VIEWS)
        return;
    mesh->name[axis] = names[axis];
    if (axis == n_axes - 1) {
        mesh->size[axis] = n;
        if (n > 1 || n_axes == 1)
            views[(*n_views)++].mesh = *mesh;
        return;
    }
    for (int64_t d = 2; d <= n / 2; d++) {
        if (n % d)
            continue;
        mesh->size[axis] = d;
        list_views(views, n_views, mesh, axis + 1, n_axes, n / d);
    }
}

/* ---- one view, in a child ---- */

static bool put(FILE *f, const void *data, size_t len)
{
    return fwrite(data, 1, len, f) == len;
}

static _Noreturn void search_view(struct shard_job *job, const struct shard_request *req,
                                  const struct ap_doc *doc, struct view *v)
{
    if (dup2(fileno(v->messages), STDERR_FILENO) < 0)
        _exit(AP_BAD_INPUT);
    shard_job_place(job, req, doc, &v->mesh);
    if (job->pins.cut)
        ap_die_usage("--mesh auto: a pin with a stride is for one mesh");
    shard_job_run(job, req);
    struct shard_result r = shard_job_result(job, req);
    struct header h = {r.objective, r.bound, r.json.len, strlen(r.found),
                       strlen(r.stats)};
    if (!put(v->answer, &h, sizeof h) || !put(v->answer, r.json.data, h.json) ||
        !put(v->answer, r.found, h.found) || !put(v->answer, r.stats, h.stats) ||
        fflush(v->answer))
        ap_die(AP_BAD_INPUT, "temporary file: %s", strerror(errno));
    _exit(AP_OK);
}

static void start(struct shard_job *job, const struct shard_request *req,
                  const struct ap_doc *doc, struct view *v)
{
    v->answer = tmpfile();
    v->messages = tmpfile();
    if (!v->answer || !v->messages)
        ap_die(AP_BAD_INPUT, "temporary file: %s", strerror(errno));
    v->pid = fork();
    if (v->pid < 0)
        ap_die(AP_BAD_INPUT, "fork: %s", strerror(errno));
    if (v->pid == 0)
        search_view(job, req, doc, v);
}

/* ---- the parent ---- */

static char *get(struct ap_arena *arena, FILE *f, size_t len)
{
    char *text = ap_arena_alloc(arena, len + 1);
    if (fread(text, 1, len, f) != len)
        ap_die(AP_BAD_INPUT, "a search ended early");
    return text;
}

static void collect(struct ap_arena *arena, struct view *v, int status)
{
    struct header h;
    v->code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    v->pid = 0;
    long len = fseek(v->messages, 0, SEEK_END) ? 0 : ftell(v->messages);
    rewind(v->messages);
    v->said = get(arena, v->messages, len > 0 ? (size_t)len : 0);
    fclose(v->messages);
    rewind(v->answer);
    if (v->code == AP_OK) {
        if (fread(&h, sizeof h, 1, v->answer) != 1)
            ap_die(AP_BAD_INPUT, "a search ended early");
        v->result.objective = h.objective;
        v->result.bound = h.bound;
        ap_buf_put(&v->result.json, get(arena, v->answer, h.json), h.json);
        v->result.found = get(arena, v->answer, h.found);
        v->result.stats = get(arena, v->answer, h.stats);
    }
    fclose(v->answer);
}

static void wait_one(struct ap_arena *arena, struct view *views, int n)
{
    int status;
    pid_t pid = wait(&status);
    if (pid < 0)
        ap_die(AP_BAD_INPUT, "wait: %s", strerror(errno));
    for (int i = 0; i < n; i++)
        if (views[i].pid == pid)
            collect(arena, &views[i], status);
}

/* The message without the tool's name and the line's end. */
static const char *reason(struct view *v)
{
    char *text = v->said, *colon = strstr(text, ": ");
    text[strcspn(text, "\n")] = '\0';
    return colon ? colon + 2 : text;
}

static int compare(const void *pa, const void *pb)
{
    const struct view *a = *(struct view *const *)pa, *b = *(struct view *const *)pb;
    double x = a->code == AP_OK ? a->result.objective : INFINITY;
    double y = b->code == AP_OK ? b->result.objective : INFINITY;
    if (x != y)
        return x < y ? -1 : 1;
    return a < b ? -1 : a > b;
}

static void put_meshes(struct view **order, int n, struct ap_buf *out)
{
    ap_buf_puts(out, ",\"meshes\":[");
    for (int i = 0; i < n; i++) {
        struct view *v = order[i];
        ap_buf_puts(out, i ? ",{\"shape\":[" : "{\"shape\":[");
        for (int a = 0; a < v->mesh.n_axes; a++)
            ap_buf_printf(out, "%s%lld", a ? "," : "", (long long)v->mesh.size[a]);
        ap_buf_putc(out, ']');
        if (v->code == AP_OK) {
            ap_buf_puts(out, ",\"objective_sec\":");
            ap_json_num(out, v->result.objective);
            ap_buf_puts(out, ",\"lower_bound_sec\":");
            ap_json_num(out, v->result.bound);
        } else {
            ap_put_str(out, "error", reason(v));
        }
        ap_buf_putc(out, '}');
    }
    ap_buf_putc(out, ']');
}

static void run_all(struct shard_job *job, const struct shard_request *req,
                    const struct ap_doc *doc, struct view *views, int n)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int jobs = req->jobs ? (int)req->jobs : cores > 0 ? (int)cores : 1, running = 0;
    for (int i = 0; i < n; i++) {
        if (running == jobs) {
            wait_one(job->arena, views, n);
            running--;
        }
        start(job, req, doc, &views[i]);
        running++;
    }
    for (; running > 0; running--)
        wait_one(job->arena, views, n);
}

struct shard_result shard_auto(struct shard_job *job, const struct shard_request *req,
                               const struct ap_doc *doc)
{
    struct view *views = AP_NEW_N(job->arena, MAX_VIEWS, struct view);
    struct ap_err err = {0};
    int n = 0;

    if (!req->cluster_path && !ap_doc_find(doc, "cluster"))
        ap_die_usage("--mesh auto needs --cluster, or a document with a cluster");
    if (ap_cluster_get(job->arena, doc, req->cluster_path, 0, &job->cluster, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_tool_one_kind(&job->cluster);
    ap_passes_warn(doc, &job->graph, &job->cluster,
                   req->algorithm == 0 && !req->params.no_families);
    for (int axes = 1; axes <= req->max_axes; axes++) {
        struct ap_mesh mesh = {.n_axes = axes};
        list_views(views, &n, &mesh, 0, axes, ap_cluster_devices(&job->cluster));
    }
    if (n == MAX_VIEWS)
        ap_die_usage("--max-axes %lld: more than %d views of the cluster",
                     (long long)req->max_axes, MAX_VIEWS - 1);
    run_all(job, req, doc, views, n);

    struct view **order = AP_NEW_N(job->arena, n, struct view *);
    for (int i = 0; i < n; i++) {
        order[i] = &views[i];
        if (views[i].code != AP_OK && views[i].code != AP_NO_SOLUTION)
            ap_die(views[i].code == AP_USAGE ? AP_USAGE : AP_BAD_INPUT, "%s",
                   *views[i].said ? reason(&views[i]) : "a search was killed");
    }
    qsort(order, (size_t)n, sizeof(struct view *), compare);
    struct view *best = order[0];
    if (best->code != AP_OK)
        ap_die(AP_NO_SOLUTION, "no view of the cluster has a plan: %s", reason(best));
    if (*best->said)
        ap_warn("%s", reason(best));
    struct shard_result result = best->result;
    struct ap_buf json = {0};
    ap_buf_put(&json, result.json.data, result.json.len - 1); /* all but the brace */
    put_meshes(order, n, &json);
    ap_buf_putc(&json, '}');
    for (int i = 0; i < n; i++)
        ap_buf_free(&views[i].result.json);
    result.json = json;
    return result;
}
