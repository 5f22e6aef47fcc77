/* ap-import: HLO text or an ONNX model to a document with a graph. */
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "onnx/onnx.h"
#include "tool/tool.h"
#include "base/file.h"

enum format { FORMAT_AUTO, FORMAT_HLO, FORMAT_ONNX, FORMAT_STABLEHLO };

static const struct ap_choice formats[] = {
    {"auto", "detect from the first bytes"},
    {"hlo", "XLA's HLO text, plain or gzip"},
    {"onnx", "an ONNX model"},
    {"stablehlo", "not supported yet"},
    {NULL, NULL},
};

/* The format of the input, or dies: what is not read is refused by name. */
static enum format find_format(const char *file, const char *text, size_t len, int format)
{
    static const char mlir[] = "ML\xefR";
    if (format == FORMAT_AUTO && len > 2 && text[0] == 0x08 && text[1] < 0x20 &&
        memchr(text, 0, len < 4096 ? len : 4096))
        format = FORMAT_ONNX;
    if (format == FORMAT_ONNX)
        return FORMAT_ONNX;
    const char *p = text + strspn(text, " \t\r\n");
    if (format == FORMAT_AUTO) {
        bool bytecode = len > 4 && memcmp(text, mlir, 4) == 0;
        bool pretty = strncmp(p, "module @", 8) == 0 || strncmp(p, "module {", 8) == 0 ||
                      strncmp(p, "module attributes", 17) == 0 ||
                      strncmp(p, "#loc", 4) == 0 || strstr(text, "stablehlo.") != NULL;
        if (bytecode || (pretty && strncmp(p, "HloModule", 9) != 0))
            format = FORMAT_STABLEHLO;
    }
    if (format == FORMAT_STABLEHLO)
        ap_die(AP_USAGE,
               "%s: StableHLO is not read: scripts/jax/export.py --stablehlo FILE makes "
               "HLO text of it",
               file);
    return FORMAT_HLO;
}

/* A regular file that is an ONNX model, mapped; false for anything else. */
static bool map_onnx(const char *path, int format, struct onnx_file *f)
{
    struct stat st;
    unsigned char head[64];
    int fd = strcmp(path, "-") == 0 ? -1 : open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_size < 1) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    ssize_t n = read(fd, head, sizeof head);
    bool looks = n > 2 && head[0] == 0x08 && head[1] < 0x20 &&
                 (head[2] == 0x12 || head[2] == 0x3a || head[2] == 0x42);
    void *p = MAP_FAILED;
    if (format == FORMAT_ONNX || (format == FORMAT_AUTO && looks))
        p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return false;
    f->data = p;
    f->len = (size_t)st.st_size;
    return true;
}

/* "NAME=N,NAME=N" of --dim. */
static void read_dims(struct ap_arena *arena, const char *text, struct onnx_options *o)
{
    char *rest = ap_arena_strdup(arena, text ? text : ""), *end;
    o->dims = AP_NEW_N(arena, strlen(rest) + 1, struct onnx_dim);
    while (*rest) {
        char *item = rest, *is;
        rest += strcspn(rest, ",");
        if (*rest)
            *rest++ = 0;
        is = strrchr(item, '=');
        long long size = is ? strtoll(is + 1, &end, 10) : 0;
        if (!is || is == item || end == is + 1 || *end || size < 1 || size > 1LL << 40)
            ap_die_usage("--dim '%s': expected NAME=N", item);
        *is = 0;
        o->dims[o->n_dims++] = (struct onnx_dim){item, size, false};
    }
}

/* import_read_overrides of a file; NULL: none. */
static int read_overrides(struct ap_arena *arena, const char *path,
                          const char *const *names, int n, struct override **out)
{
    char *text;
    size_t len;
    struct ap_err err = {{0}};
    if (!path)
        return 0;
    int count =
        ap_read_file(arena, path, false, &text, &len, &err)
            ? -1
            : import_read_overrides(
                  arena, &(struct import_words){path, text, len, names, n}, out, &err);
    if (count < 0)
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    return count;
}

static void warn(void *arg, const char *msg)
{
    (void)arg;
    ap_warn("%s", msg);
}

static char *stats_text(struct ap_arena *arena, const struct ap_graph *g,
                        const struct import_stats *s)
{
    struct ap_buf out = {0};
    ap_put_int(&out, "instructions", s->n_instrs);
    ap_put_int(&out, "inlined", s->n_inlined);
    ap_totals_put(g, &s->totals, &out);
    char *text = ap_arena_strndup(arena, out.data, out.len);
    ap_buf_free(&out);
    return text;
}

/* HLO text has no weights: its exporter has written them as DIR/K.npy, or this dies. */
static void check_weights(const struct ap_graph *g, const char *dir)
{
    struct ap_buf path = {0};
    for (int k = 0; k < g->n_params; k++) {
        const struct ap_node *node = &g->nodes[g->params[k]];
        path.len = 0;
        ap_buf_printf(&path, "%s/%d.npy", dir, k);
        if (node->role == AP_ROLE_WEIGHT && access(path.data, R_OK))
            ap_die(AP_BAD_INPUT, "%s: no such file: HLO text has not the values of '%s'",
                   path.data, node->name);
    }
    ap_buf_free(&path);
}

/* The graph of the input, or dies. */
static void read_graph(const struct ap_tool *tool, struct ap_arena *arena, int format,
                       struct onnx_options *onnx, struct import_params *params,
                       struct ap_graph *graph, struct import_stats *stats)
{
    struct ap_err err = {{0}};
    struct hlo_src src = {.arena = arena, .err = &err, .warn = tool->quiet ? NULL : warn};
    struct onnx_file model = {.arena = arena, .err = &err};
    char *text;
    src.file = model.path = strcmp(tool->path, "-") == 0 ? "<stdin>" : tool->path;
    bool is_onnx = map_onnx(tool->path, format, &model);
    if (!is_onnx) {
        if (ap_read_file(arena, tool->path, true, &text, &src.len, &err))
            ap_die(AP_BAD_INPUT, "%s", err.msg);
        if (!src.len)
            ap_die(AP_BAD_INPUT, "%s: the input is empty", src.file);
        src.text = text;
        is_onnx = find_format(src.file, text, src.len, format) == FORMAT_ONNX;
        model.data = (const uint8_t *)text;
        model.len = src.len;
    }
    if (!is_onnx && (onnx->n_dims || onnx->values))
        ap_die_usage("--dim and --values are for ONNX models");
    if (is_onnx && params->keep_loops)
        ap_die_usage("--keep-loops is for HLO text");
    if (is_onnx ? import_onnx(&model, onnx, params, graph, stats)
                : import_hlo(&src, params, graph, stats))
        ap_die(src.unsupported || model.unsupported ? AP_USAGE : AP_BAD_INPUT, "%s",
               err.msg);
    if (!is_onnx && onnx->weights)
        check_weights(graph, onnx->weights);
}

int main(int argc, char **argv)
{
    int format = FORMAT_AUTO;
    const char *roles = NULL, *phases = NULL, *dims = NULL;
    bool keep_loops = false;
    struct onnx_options onnx = {0};
    const struct ap_opt opts[] = {
        {.name = "format",
         .kind = AP_OPT_CHOICE,
         .out = &format,
         .arg = "FORMAT",
         .help = "what the input is",
         .choices = formats,
         .choice_stride = sizeof formats[0]},
        {.name = "keep-loops",
         .kind = AP_OPT_FLAG,
         .out = &keep_loops,
         .help = "HLO: leave while loops as single nodes"},
        {.name = "roles",
         .kind = AP_OPT_STR,
         .out = &roles,
         .arg = "FILE",
         .help = "JSON object: parameter or result name to role"},
        {.name = "phases",
         .kind = AP_OPT_STR,
         .out = &phases,
         .arg = "FILE",
         .help = "JSON object: node name or scope to phase"},
        {.name = "dim",
         .kind = AP_OPT_STR,
         .out = &dims,
         .arg = "NAME=N,...",
         .help = "ONNX: sizes of dimensions that have a name"},
        {.name = "values",
         .kind = AP_OPT_STR,
         .out = &onnx.values,
         .arg = "DIR",
         .help = "ONNX: DIR/K.npy is input K, where a shape depends on it"},
        {.name = "weights",
         .kind = AP_OPT_STR,
         .out = &onnx.weights,
         .arg = "DIR",
         .help = "write weights as DIR/K.npy, K the parameter; HLO: check"},
        {.name = NULL},
    };
    struct ap_tool tool = {.name = "ap-import",
                           .summary = "read a train step and write its graph",
                           .operand = "[FILE]",
                           .opts = opts};
    struct ap_arena arena = {0};
    ap_tool_start(&tool, argc, argv);

    struct import_params params = {.keep_loops = keep_loops};
    params.n_roles =
        read_overrides(&arena, roles, ap_role_names, AP_N_ROLES, &params.roles);
    params.n_phases =
        read_overrides(&arena, phases, ap_phase_names, AP_N_PHASES, &params.phases);

    struct ap_graph graph;
    struct import_stats stats = {0};
    read_dims(&arena, dims, &onnx);
    read_graph(&tool, &arena, format, &onnx, &params, &graph, &stats);

    struct ap_doc doc = {.file = tool.path};
    struct ap_new_section sections[2] = {{.name = "graph", .graph = &graph},
                                         {.name = "step"}};
    if (stats.step)
        ap_buf_puts(&sections[1].json, stats.step);
    ap_tool_write(&tool, &doc, sections, 1 + (stats.step != NULL), "");
    const char *extra = stats_text(&arena, &graph, &stats);
    int rc = ap_tool_finish(&tool, extra);
    ap_arena_free(&arena);
    return rc;
}
