/* ap-fuse: find attentions and make each one operator. */
#include "graph/attention.h"
#include "graph/group.h"
#include "tool/tool.h"

/* What was computed from the graph as it is would be wrong after this. */
static void check_document(const struct ap_doc *doc)
{
    static const char *const late[] = {"families", "blocks", "sharding",
                                       "stages",   "cost",   "program"};
    for (size_t i = 0; i < sizeof late / sizeof *late; i++)
        if (ap_doc_find(doc, late[i]))
            ap_die(AP_USAGE,
                   "%s: section \"%s\" is about the graph as it is: run ap-fuse before "
                   "the tool that made it",
                   doc->file, late[i]);
}

static char *stats(struct ap_arena *arena, const struct ap_graph *g,
                   const struct ap_attention_count *count)
{
    return ap_arena_printf(arena,
                           ",\"nodes\":%d,\"groups\":%d,\"forward\":%d,\"backward\":%d,"
                           "\"copies\":%d,\"plain\":%d",
                           g->n_nodes, g->n_groups, count->forward, count->backward,
                           count->copies, count->plain);
}

int main(int argc, char **argv)
{
    const struct ap_opt opts[] = {{0}};
    struct ap_tool tool = {.name = "ap-fuse",
                           .summary = "find attentions and make each one operator",
                           .operand = "[FILE]",
                           .opts = opts};
    struct ap_arena arena = {0};
    struct ap_doc doc;
    struct ap_graph read, fused;
    struct ap_attention_count count;
    struct ap_err err = {{0}};

    ap_tool_start(&tool, argc, argv);
    ap_tool_read(&tool, &arena, &doc);
    check_document(&doc);
    if (ap_doc_graph(&arena, &doc, &read, &err) ||
        ap_attention_mark(&arena, &read, &fused, &count, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_group(&arena, &fused);
    if (count.plain)
        ap_warn("%d softmax(es) between contractions stay as they are: their scores are "
                "read elsewhere",
                count.plain);
    struct ap_new_section section = {.name = "graph", .graph = &fused};
    ap_tool_write(&tool, &doc, &section, 1,
                  ap_arena_printf(&arena, ",\"attentions\":%d", count.forward));
    return ap_tool_finish(&tool, stats(&arena, &fused, &count));
}
