/*
 * Problem: in a pipe of tools each tool waits for the whole document of the previous one.
 * Most of the document is the graph, and most tools pass the graph on unchanged. Idea: a
 * long graph is read while the previous tool is still at work, and once it is known to be
 * valid its text is written, so that the next tool has it before this one has computed
 * anything. A short document is written only when the tool has finished.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tool/tool.h"

enum { LONG = 1 << 20 }; /* bytes of a graph */

struct reading {
    const struct ap_stream *stream;
    bool may_write; /* the graph, ahead of all else */
    bool has_graph; /* stream->graph has been called */
    bool graph_written;
};

static bool is_pipe(int fd)
{
    struct stat st;
    return !fstat(fd, &st) && S_ISFIFO(st.st_mode);
}

/* Only the version and the history precede the graph: the one is written before it,
 * the other at the end. */
static bool stands_first(const struct ap_doc *doc)
{
    const struct ap_section *version = doc->sections;

    if (doc->n_sections == 0 || strcmp(version->name, "autopar") != 0 ||
        version->len != 1 || version->text[0] != '0' + AP_DOC_VERSION)
        return false;
    for (int i = 1; i < doc->n_sections && strcmp(doc->sections[i].name, "graph"); i++)
        if (strcmp(doc->sections[i].name, "history") != 0)
            return false;
    return true;
}

static void write_ahead(struct reading *r, const struct ap_section *graph)
{
    ap_doc_write_ahead(graph, stdout);
    r->graph_written = true;
    if (fflush(stdout))
        ap_die(AP_BAD_INPUT, "cannot write to standard output: %s", strerror(errno));
}

static void progress(void *ctx, const struct ap_doc *doc)
{
    struct reading *r = ctx;
    const struct ap_section *graph = ap_doc_find(doc, "graph");

    if (r->has_graph || !graph || graph->len < LONG)
        return;
    r->has_graph = true;
    r->stream->graph(r->stream->ctx, doc, true);
    if (r->may_write && stands_first(doc))
        write_ahead(r, graph);
}

void ap_tool_stream(struct ap_tool *tool, struct ap_arena *arena, struct ap_doc *doc,
                    const struct ap_stream *stream)
{
    struct reading r = {.stream = stream};
    const struct ap_doc_watch watch = {progress, &r};
    bool to_stdout = !tool->out_path || !strcmp(tool->out_path, "-");
    struct stat st;
    bool waits = strcmp(tool->path, "-") != 0
                     ? !stat(tool->path, &st) && S_ISFIFO(st.st_mode)
                     : is_pipe(STDIN_FILENO);
    struct ap_err err = {""};

    ap_tool_check_out(tool);
    r.may_write = stream->keeps_graph && to_stdout && is_pipe(STDOUT_FILENO);
    if (ap_doc_read_watched(arena, tool->path, waits ? &watch : NULL, doc, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    doc->graph_written = r.graph_written;
    if (!r.has_graph)
        stream->graph(stream->ctx, doc, false);
}

struct graph_reader {
    struct ap_arena *arena;
    struct ap_graph *g;
};

static void read_graph(void *ctx, const struct ap_doc *doc, bool more)
{
    struct graph_reader *t = ctx;
    struct ap_err err = {""};

    (void)more;
    if (ap_doc_graph(t->arena, doc, t->g, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
}

void ap_tool_read_graph(struct ap_tool *tool, struct ap_arena *arena, struct ap_doc *doc,
                        struct ap_graph *g)
{
    struct graph_reader t = {arena, g};
    const struct ap_stream stream = {.graph = read_graph, .ctx = &t, .keeps_graph = true};

    ap_tool_stream(tool, arena, doc, &stream);
}
