/*
 * Problem: in a pipe of tools each waits for the whole document of the one before, most
 * of which is the graph that all of them hand on as it is. Idea: a long graph is looked
 * at while the tool before is still at work, and its text is written once it is found
 * right, so that the next tool has it before what is made of it. Of short documents
 * nothing is written before all is done.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tool/tool.h"

enum { LONG = 1 << 20 }; /* bytes of a graph */

struct reading {
    const struct ap_stream *early;
    bool hands_on, has_graph, is_handed;
};

static bool is_pipe(int fd)
{
    struct stat st;
    return !fstat(fd, &st) && S_ISFIFO(st.st_mode);
}

/* What stands in front of the graph is what is written in front of it, or at the end. */
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

static void hand_on(struct reading *r, const struct ap_section *graph)
{
    ap_doc_hand_on(graph, stdout);
    r->is_handed = true;
    if (fflush(stdout))
        ap_die(AP_BAD_INPUT, "cannot write to standard output: %s", strerror(errno));
}

static void came(void *ctx, const struct ap_doc *doc)
{
    struct reading *r = ctx;
    const struct ap_section *graph = ap_doc_find(doc, "graph");

    if (r->has_graph || !graph || graph->len < LONG)
        return;
    r->has_graph = true;
    r->early->graph(r->early->ctx, doc, true);
    if (r->hands_on && stands_first(doc))
        hand_on(r, graph);
}

void ap_tool_stream(struct ap_tool *tool, struct ap_arena *arena, struct ap_doc *doc,
                    const struct ap_stream *early)
{
    struct reading r = {.early = early};
    const struct ap_doc_watch watch = {came, &r};
    bool to_stdout = !tool->out_path || !strcmp(tool->out_path, "-");
    struct stat st;
    bool waits = strcmp(tool->path, "-") != 0
                     ? !stat(tool->path, &st) && S_ISFIFO(st.st_mode)
                     : is_pipe(STDIN_FILENO);
    struct ap_err err = {""};

    r.hands_on = early->keeps_graph && to_stdout && is_pipe(STDOUT_FILENO);
    if (ap_doc_read_watched(arena, tool->path, waits ? &watch : NULL, doc, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    doc->is_handed = r.is_handed;
    if (!r.has_graph)
        early->graph(early->ctx, doc, false);
}

struct taking {
    struct ap_arena *arena;
    struct ap_graph *g;
};

static void take_graph(void *ctx, const struct ap_doc *doc, bool more)
{
    struct taking *t = ctx;
    struct ap_err err = {""};

    (void)more;
    if (ap_doc_graph(t->arena, doc, t->g, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
}

void ap_tool_read_graph(struct ap_tool *tool, struct ap_arena *arena, struct ap_doc *doc,
                        struct ap_graph *g)
{
    struct taking t = {arena, g};
    const struct ap_stream early = {.graph = take_graph, .ctx = &t, .keeps_graph = true};

    ap_tool_stream(tool, arena, doc, &early);
}
