/* ap-import: HLO text to a document with a graph. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "import.h"
#include "tool.h"

enum format { FORMAT_AUTO, FORMAT_HLO, FORMAT_ONNX, FORMAT_STABLEHLO };

static const struct ap_choice formats[] = {
    {"auto", "tell by the first bytes"},
    {"hlo", "XLA's HLO text, plain or gzip"},
    {"onnx", "not supported yet"},
    {"stablehlo", "not supported yet"},
    {NULL, NULL},
};

/* The format of the text, or dies: what is not read is refused by name. */
static void check_format(const char *file, const char *text, size_t len, int format)
{
    static const char mlir[] = "ML\xefR";
    const char *p = text + strspn(text, " \t\r\n");
    if (format == FORMAT_AUTO) {
        bool bytecode = len > 4 && memcmp(text, mlir, 4) == 0;
        bool pretty = strncmp(p, "module @", 8) == 0 || strncmp(p, "module {", 8) == 0 ||
                      strncmp(p, "module attributes", 17) == 0 ||
                      strncmp(p, "#loc", 4) == 0 || strstr(text, "stablehlo.") != NULL;
        if (bytecode || (pretty && strncmp(p, "HloModule", 9) != 0))
            format = FORMAT_STABLEHLO;
        else if (len > 2 && text[0] == 0x08 && text[1] < 0x20 && memchr(text, 0, len))
            format = FORMAT_ONNX;
    }
    if (format == FORMAT_STABLEHLO)
        ap_die(AP_USAGE,
               "%s: StableHLO is not supported yet; print the module as HLO text", file);
    if (format == FORMAT_ONNX)
        ap_die(AP_USAGE, "%s: ONNX is not supported yet", file);
}

/* {"GLOB": "word", ...} of --roles or --phases, words being names[0 .. n). */
static int read_overrides(struct ap_arena *arena, const char *path,
                          const char *const *names, int n, struct override **out)
{
    if (!path)
        return 0;
    char *text;
    size_t len;
    struct ap_err err = {{0}};
    if (ap_read_file(arena, path, false, &text, &len, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    json_error_t where;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        ap_die(AP_BAD_INPUT, "%s:%d:%d: %s", path, where.line, where.column, where.text);
    if (!json_is_object(root))
        ap_die(AP_BAD_INPUT, "%s: expected an object", path);
    int count = 0;
    const char *key;
    json_t *value;
    *out = AP_NEW_N(arena, json_object_size(root) + 1, struct override);
    json_object_foreach(root, key, value)
    {
        const char *word = json_is_string(value) ? json_string_value(value) : "";
        int i = 0;
        while (i < n && (!names[i] || strcmp(names[i], word) != 0))
            i++;
        if (i == n)
            ap_die(AP_BAD_INPUT, "%s: /%s: '%s' is not one of the words allowed", path,
                   key, word);
        (*out)[count++] = (struct override){ap_arena_strdup(arena, key), i, false};
    }
    json_decref(root);
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

int main(int argc, char **argv)
{
    int format = FORMAT_AUTO;
    const char *roles = NULL, *phases = NULL;
    const struct ap_opt opts[] = {
        {.name = "format",
         .kind = AP_OPT_CHOICE,
         .out = &format,
         .arg = "FORMAT",
         .help = "what the input is",
         .choices = formats,
         .choice_stride = sizeof formats[0]},
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
        {.name = NULL},
    };
    struct ap_tool tool = {.name = "ap-import",
                           .summary = "read a train step and write its graph",
                           .operand = "[FILE]",
                           .opts = opts};
    struct ap_arena arena = {0};
    struct ap_err err = {{0}};
    ap_tool_start(&tool, argc, argv);

    struct import_params params = {0};
    params.n_roles =
        read_overrides(&arena, roles, ap_role_names, AP_N_ROLES, &params.roles);
    params.n_phases =
        read_overrides(&arena, phases, ap_phase_names, AP_N_PHASES, &params.phases);

    struct hlo_src src = {.arena = &arena, .err = &err, .warn = tool.quiet ? NULL : warn};
    char *text;
    if (ap_read_file(&arena, tool.path, true, &text, &src.len, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    src.text = text;
    src.file = strcmp(tool.path, "-") == 0 ? "<stdin>" : tool.path;
    check_format(src.file, text, src.len, format);

    struct ap_graph graph;
    struct import_stats stats = {0};
    if (import_hlo(&src, &params, &graph, &stats))
        ap_die(src.unsupported ? AP_USAGE : AP_BAD_INPUT, "%s", err.msg);

    struct ap_doc doc = {.file = src.file};
    struct ap_new_section section = {.name = "graph"};
    ap_graph_to_json(&graph, &section.json);
    ap_tool_write(&tool, &doc, &section, 1, "");
    const char *extra = stats_text(&arena, &graph, &stats);
    int rc = ap_tool_finish(&tool, extra);
    ap_arena_free(&arena);
    return rc;
}
