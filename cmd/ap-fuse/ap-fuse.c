/* ap-fuse: find attentions and make each one operator. */
#include "attention.h"
#include "cost/cost.h"
#include "fp8.h"
#include "graph/group.h"
#include "kernels.h"
#include "tool/tool.h"

static const struct ap_choice attentions[] = {
    {"fused", "one operator each"},
    {"plain", "what they are"},
    {NULL, NULL},
};

/*
 * Refuses a document with sections that were computed from the graph before the change.
 */
static void check_document(const struct ap_doc *doc)
{
    static const char *const late[] = {"families", "blocks",  "sharding", "stages",
                                       "cost",     "program", "pipeline", "placement"};
    for (size_t i = 0; i < sizeof late / sizeof *late; i++)
        if (ap_doc_find(doc, late[i]))
            ap_die(AP_USAGE,
                   "%s: section \"%s\" refers to the graph before the change: run "
                   "ap-fuse before "
                   "the tool that made it",
                   doc->file, late[i]);
}

static char *stats(struct ap_arena *arena, const struct ap_graph *g,
                   const struct fuse_attention_count *count,
                   const struct fuse_kernel_count *made, const struct fp8_count *fp8)
{
    return ap_arena_printf(arena,
                           ",\"nodes\":%d,\"groups\":%d,\"forward\":%d,\"backward\":%d,"
                           "\"copies\":%d,\"plain\":%d,\"kernels\":%d,"
                           "\"striped\":%d,\"fp8\":%d",
                           g->n_nodes, g->n_groups, count->forward, count->backward,
                           count->copies + made->copies, count->plain, made->kernels,
                           count->striped, fp8->contractions);
}

/* Whether the devices of a cluster have kernels for attention. Dies if they are to have
 * products in fp8, and do not. */
static bool has_kernels(struct ap_arena *arena, const struct ap_doc *doc,
                        const char *path, bool fp8)
{
    struct ap_cluster cluster;
    struct ap_err err = {{0}};

    if (ap_cluster_get(arena, doc, path, 1, &cluster, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    for (int k = 0; fp8 && k < (cluster.n_kinds ? cluster.n_kinds : 1); k++) {
        const struct ap_cluster *of =
            cluster.n_kinds ? cluster.kind[k].devices : &cluster;
        if (of->flops_per_sec[AP_F8E4M3FN] == 0)
            ap_die(AP_USAGE,
                   "--fp8: the devices of cluster %s (%s) have no products in "
                   "fp8",
                   cluster.name, of->device);
    }
    return cluster.fused_attention;
}

static void stripe(struct ap_arena *arena, struct ap_graph *g, int64_t stripes,
                   struct fuse_attention_count *count)
{
    const int n = count->forward + count->backward;

    count->striped = fuse_attention_stripe(arena, g, stripes);
    if (count->striped < n)
        ap_warn("%d of %d fused groups are not in stripes: they have no causal mask, or "
                "%lld does not divide their sequences",
                n - count->striped, n, (long long)stripes);
}

static void mark_kernels(struct ap_arena *arena, const struct ap_doc *doc,
                         const struct fuse_kernel_rules *rules, struct ap_graph *g,
                         struct fuse_kernel_count *made)
{
    const struct ap_graph marked = *g;
    struct ap_err err = {{0}};

    check_document(doc);
    for (int i = 0; i < rules->n_eager; i++)
        if (!fuse_kernels_has_part(g, rules->eager[i]))
            ap_die(AP_BAD_INPUT, "%s: --eager %s: no part of the model has this name",
                   doc->file, rules->eager[i]);
    if (fuse_kernels_mark(arena, &marked, rules, g, made, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
}

int main(int argc, char **argv)
{
    const char *cluster = NULL;
    int64_t stripes = 1;
    int attention = 0;
    bool kernels = false, fp8 = false, norms = false;
    struct ap_list eager = {0};
    const struct ap_opt opts[] = {
        {"cluster", AP_OPT_CLUSTER, &cluster, "FILE",
         "fuse, and make kernels, only if its devices have some for attention", NULL, 0,
         0, 0, NULL},
        {"attention", AP_OPT_CHOICE, &attention, "WHAT", "what attentions become",
         attentions, sizeof *attentions, 0, 0, NULL},
        {"kernels", AP_OPT_FLAG, &kernels, NULL,
         "also make what is between two contractions one kernel", NULL, 0, 0, 0, NULL},
        {"norms", AP_OPT_FLAG, &norms, NULL,
         "with --kernels: also where it reduces, as norms do", NULL, 0, 0, 0, NULL},
        {"eager", AP_OPT_LIST, &eager, "PART",
         "no kernels in this part of the model (loss, attn/core)", NULL, 0, 0, 0, NULL},
        {"fp8", AP_OPT_FLAG, &fp8, NULL, "make contractions of layers' weights read fp8",
         NULL, 0, 0, 0, NULL},
        {"stripes", AP_OPT_INT, &stripes, "N",
         "parts of a causal sequence that devices may share", NULL, 0, 1, 1 << 20, NULL},
        {0}};
    struct ap_tool tool = {.name = "ap-fuse",
                           .summary = "find attentions and make each one operator",
                           .operand = "[FILE]",
                           .opts = opts};
    struct ap_arena arena = {0};
    struct ap_doc doc;
    struct ap_graph read, graph;
    struct fuse_attention_count count = {0};
    struct fuse_kernel_count made = {0};
    struct fp8_count narrow = {0};
    struct ap_err err = {{0}};

    ap_tool_start(&tool, argc, argv);
    if (eager.n && !kernels && !norms)
        ap_die_usage("--eager needs --kernels or --norms");
    ap_tool_read(&tool, &arena, &doc);
    if (ap_doc_graph(&arena, &doc, &read, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    const bool have = !cluster || has_kernels(&arena, &doc, cluster, fp8);
    const bool fuse = have && attention == 0;
    kernels &= have;
    norms &= have;
    graph = read;
    if (fuse)
        check_document(&doc);
    if (fuse && fuse_attention_mark(&arena, &read, &graph, &count, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    if (fp8) {
        const struct ap_graph marked = graph;
        check_document(&doc);
        if (fp8_mark(&arena, &marked, &graph, &narrow, &err))
            ap_die(AP_BAD_INPUT, "%s", err.msg);
        if (narrow.contractions == 0)
            ap_die(AP_BAD_INPUT,
                   "%s: --fp8: no layer has a contraction of a weight in 16 bits",
                   doc.file);
    }
    if (kernels || norms)
        mark_kernels(&arena, &doc,
                     &(struct fuse_kernel_rules){!kernels, eager.v, eager.n}, &graph,
                     &made);
    if (fuse && stripes > 1)
        stripe(&arena, &graph, stripes, &count);
    ap_group(&arena, &graph);
    if (count.plain)
        ap_warn("%d softmax(es) between contractions stay as they are: their scores are "
                "read elsewhere",
                count.plain);
    struct ap_new_section section = {.name = "graph", .graph = &graph};
    ap_tool_write(&tool, &doc, &section, fuse || kernels || norms || fp8 ? 1 : 0,
                  ap_arena_printf(&arena, ",\"attentions\":%d", count.forward));
    return ap_tool_finish(&tool, stats(&arena, &graph, &count, &made, &narrow));
}
