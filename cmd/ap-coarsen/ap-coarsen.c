/*
 * ap-coarsen: put the operators of a graph into an ordered list of blocks. An algorithm
 * of the table places the forward operators; the backward and update operators follow
 * (ap_blocks_carry), and every answer is checked and measured here. `none` needs no file
 * of its own: one block.
 */
#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coarsen.h"
#include "graph/critical.h"
#include "doc/blocks_json.h"

struct coarsen_algo {
    const char *name, *help;
    coarsen_fn *run;
    bool needs_cluster;
    const char *options; /* its own, " eps balance " */
};

static enum ap_exit coarsen_none(struct ap_arena *arena, const struct ap_graph *g,
                                 const struct coarsen_params *params,
                                 struct coarsen_answer *answer, struct ap_err *err)
{
    (void)arena;
    if (params->n_blocks > 1) {
        ap_err_set(err, "none makes one block, not %d", params->n_blocks);
        return AP_USAGE;
    }
    memset(answer->block_of, 0, (size_t)g->n_nodes * sizeof(int));
    answer->n = 1;
    return AP_OK;
}

/* As many operators in each block: the "equal operator" that Alpa's clustering is
 * compared with (OSDI 2022, section 8.3); stages are chosen freely afterwards. */
static enum ap_exit coarsen_operators(struct ap_arena *arena, const struct ap_graph *g,
                                      const struct coarsen_params *params,
                                      struct coarsen_answer *answer, struct ap_err *err)
{
    int *ids, n = ap_blocks_operators(arena, g, &ids), blocks = params->n_blocks;

    if (blocks == 0)
        return ap_err_set(err, "operators needs --blocks"), AP_USAGE;
    for (int i = 0; i < n; i++)
        answer->block_of[ids[i]] = (int)((int64_t)i * blocks / n);
    answer->n = blocks;
    return AP_OK;
}

/* The document's own blocks, completed: those of its operators. */
static enum ap_exit coarsen_given(struct ap_arena *arena, const struct ap_graph *g,
                                  const struct coarsen_params *params,
                                  struct coarsen_answer *answer, struct ap_err *err)
{
    const struct ap_section *section = ap_doc_find(params->doc, "blocks");
    const struct ap_at at = {.key = "blocks"};
    struct ap_blocks b;

    if (!section)
        return ap_err_set(err, "%s: no section \"blocks\"", params->doc->file),
               AP_BAD_INPUT;
    json_t *o = ap_doc_load(params->doc, section, err);
    int rc = o ? ap_blocks_from_json(arena, o, &at, g, &b, err) : -1;
    json_decref(o);
    if (rc)
        return o ? ap_doc_err(params->doc, err) : -1, AP_BAD_INPUT;
    if (params->n_blocks && params->n_blocks != b.n) {
        ap_err_set(err, "%s: /blocks has %d blocks, not %d", params->doc->file, b.n,
                   params->n_blocks);
        return AP_NO_SOLUTION;
    }
    memcpy(answer->block_of, b.block_of, (size_t)g->n_nodes * sizeof(int));
    answer->n = b.n;
    return AP_OK;
}

#define RANNC_OPTIONS                                                      \
    " merge successors-only unprofiled-above stop-blocks no-uncoarsening " \
    "microbatches no-checkpointing memory-margin optimizer-factor "

static const struct coarsen_algo algos[] = {
    {"alpa", "layers of about equal FLOPs that receive the fewest bytes", coarsen_alpa,
     false, " cluster-cost balance eps cut "},
    {"rannc", "components joined to at most 32 blocks of about equal time", coarsen_rannc,
     true, RANNC_OPTIONS},
    {"rhino", "segments between critical nodes, and cones", coarsen_rhino, false,
     " critical level "},
    {"layers", "a block for each numbered layer, one before them and one after",
     coarsen_layers, false, " "},
    {"operators", "blocks of equally many operators, in the program's order",
     coarsen_operators, false, " "},
    {"none", "one block", coarsen_none, false, " "},
    {"given", "the document's own blocks, checked and completed", coarsen_given, false,
     " "},
    {0},
};
static const struct ap_choice cluster_costs[] = {
    {"paper", "received bytes, with FLOPs bounded"},
    {"optimized", "seconds of FLOPs and received bytes"},
    {NULL, NULL},
};
static const struct ap_choice cuts[] = {
    {"anywhere", "before any operator"},
    {"modules", "where a module begins, as stages for PyTorch do"},
    {NULL, NULL},
};
static const struct ap_choice merges[] = {
    {"time", "the pair that takes the least time"},
    {"gain", "the largest gain, no pair above mean + 2 sigma"},
    {NULL, NULL},
};
static const struct ap_choice balances[] = {
    {"flops", "of dot and convolution"},
    {"count", "of dots and convolutions"},
    {"input-memory", "bytes of weights and inputs that operators read"},
    {NULL, NULL},
};

static const struct ap_choice criticals[] = {
    {"paper", "heavy, without slack if every operator takes unit time"},
    {"code", "heavy, and ordered against all other heavy operators"},
    {NULL, NULL},
};

struct request {
    int algorithm;
    const char *blocks, *cluster_path;
    struct coarsen_params params;
};

/* The tool's options; NULL name ends. */
static const struct ap_opt *options(struct ap_arena *arena, struct request *r)
{
    const struct ap_opt opts[] = {
        {"algorithm", AP_OPT_CHOICE, &r->algorithm, "NAME",
         "how the graph is cut; --algorithm=help lists the ways",
         (const struct ap_choice *)algos, sizeof *algos, 0, 0, NULL},
        {"blocks", AP_OPT_STR, &r->blocks, "N", "number of blocks, or auto (auto)", NULL,
         0, 0, 0, NULL},
        {"memory", AP_OPT_INT, &r->params.memory_bytes, "BYTES",
         "memory of a device (the cluster's)", NULL, 0, 1, INT64_MAX, NULL},
        {"cluster", AP_OPT_CLUSTER, &r->cluster_path, "FILE",
         "file, or a name of --cluster help (default: the document's, else A100s)", NULL,
         0, 0, 0, NULL},
        {"cluster-cost", AP_OPT_CHOICE, &r->params.alpa.cost, "NAME",
         "alpa: cost that the cut minimizes", cluster_costs, sizeof *cluster_costs, 0, 0,
         "alpa"},
        {"balance", AP_OPT_CHOICE, &r->params.alpa.balance, "NAME",
         "alpa: quantity that --eps balances", balances, sizeof *balances, 0, 0, "alpa"},
        {"eps", AP_OPT_NUM, &r->params.alpa.eps, "X",
         "alpa: the bound is 1 + X times the average (0.5)", NULL, 0, 0, INT_MAX, "alpa"},
        {"cut", AP_OPT_CHOICE, &r->params.alpa.cut, "WHERE",
         "alpa: where layers may begin", cuts, sizeof *cuts, 0, 0, "alpa"},
        {"merge", AP_OPT_CHOICE, &r->params.rannc.merge, "NAME",
         "rannc: which neighbour to merge with", merges, sizeof *merges, 0, 0, "rannc"},
        {"successors-only", AP_OPT_FLAG, &r->params.rannc.successors_only, NULL,
         "rannc: merge with successors, not with predecessors", NULL, 0, 0, 0, "rannc"},
        {"unprofiled-above", AP_OPT_INT, &r->params.rannc.unprofiled_above, "N",
         "rannc: no prices for gains among more than N (none)", NULL, 0, 0, INT_MAX,
         "rannc"},
        {"stop-blocks", AP_OPT_INT, &r->params.rannc.stop_blocks, "N",
         "rannc: coarsen to N, --blocks is an upper bound (--blocks)", NULL, 0, 1,
         INT_MAX, "rannc"},
        {"no-uncoarsening", AP_OPT_FLAG, &r->params.rannc.no_uncoarsening, NULL,
         "rannc: do not refine the borders of blocks", NULL, 0, 0, 0, "rannc"},
        {"microbatches", AP_OPT_INT, &r->params.rannc.microbatches, "N",
         "rannc: microbatches of a step, for times and memory (32)", NULL, 0, 1, INT_MAX,
         "rannc"},
        {"no-checkpointing", AP_OPT_FLAG, &r->params.rannc.no_checkpointing, NULL,
         "rannc: keep activations of all microbatches", NULL, 0, 0, 0, "rannc"},
        {"memory-margin", AP_OPT_NUM, &r->params.rannc.memory_margin, "X",
         "rannc: share of the memory left free (0.1)", NULL, 0, 0, 0, "rannc"},
        {"optimizer-factor", AP_OPT_NUM, &r->params.rannc.optimizer_factor, "X",
         "rannc: optimizer bytes per byte of weights (the graph's)", NULL, 0, 0, 0,
         "rannc"},
        {"critical", AP_OPT_CHOICE, &r->params.rhino.critical, "NAME",
         "rhino: definition of a critical node", criticals, sizeof *criticals, 0, 0,
         "rhino"},
        {"level", AP_OPT_INT, &r->params.rhino.level, "N",
         "rhino: what ends a cone, 0 to 4 (2)", NULL, 0, 0, AP_CONE_LEVEL_MAX, "rhino"},
        {0},
    };
    return ap_arena_dup(arena, opts, sizeof opts);
}

/* Options that the chosen algorithm does not use are refused. */
static void check_options(const struct ap_tool *tool, const struct coarsen_algo *algo)
{
    for (const struct ap_opt *opt = tool->opts; opt->name; opt++) {
        char key[32];
        if (!ap_tool_given(tool, opt->name))
            continue;
        snprintf(key, sizeof key, " %s ", opt->name);
        for (const struct coarsen_algo *other = algos; other->name; other++)
            if (strstr(other->options, key) && !strstr(algo->options, key))
                ap_die_usage("--%s is for %s, not for %s", opt->name, other->name,
                             algo->name);
    }
}

static int number_of_blocks(const char *text)
{
    char *end;

    if (!text || strcmp(text, "auto") == 0)
        return 0;
    long n = strtol(text, &end, 10);
    if (end == text || *end || n < 1 || n > INT_MAX)
        ap_die_usage("--blocks: expected a number from 1 to %d or auto, got '%s'",
                     INT_MAX, text);
    return (int)n;
}

static void set_cluster(struct ap_arena *arena, struct request *r,
                        const struct coarsen_algo *algo, const struct ap_doc *doc)
{
    struct ap_err err = {{0}};

    if (!algo->needs_cluster)
        return;
    struct ap_cluster *c = AP_NEW(arena, struct ap_cluster);
    if (ap_cluster_get(arena, doc, r->cluster_path, 1, c, &err))
        ap_die(AP_BAD_INPUT, "%s", err.msg);
    ap_tool_one_kind(c);
    if (!r->params.memory_bytes)
        r->params.memory_bytes = c->memory_bytes;
    r->params.cluster = c;
}

/* Whether no forward operator reads one of a later block: all that an algorithm decides.
 */
static bool is_ordered(const struct ap_graph *g, const int *ids, int n,
                       const int *block_of)
{
    for (int i = 0; i < n; i++) {
        const struct ap_node *node = &g->nodes[ids[i]];
        for (int k = 0; k < node->n_in; k++)
            if (g->nodes[node->in[k]].op != AP_OP_PARAMETER &&
                block_of[node->in[k]] > block_of[ids[i]])
                return false;
    }
    return true;
}

/*
 * Blocks of the whole step, checked. Wrong forward blocks are a bug; if the other phases
 * do not follow them, the document says things of them that cannot be.
 */
static struct ap_blocks run(struct ap_arena *arena, const struct coarsen_algo *algo,
                            const struct ap_doc *doc, const struct ap_graph *g,
                            const struct coarsen_params *params,
                            struct coarsen_answer *answer)
{
    struct ap_err err = {{0}};
    int *ids;

    if (ap_blocks_check_phases(g, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc->file, err.msg);
    int n = ap_blocks_operators(arena, g, &ids);
    if (n == 0)
        ap_die(AP_BAD_INPUT, "%s: /graph: there is no forward operator", doc->file);
    if (params->n_blocks > n)
        ap_die(AP_NO_SOLUTION, "no %d blocks: the forward pass has %d operators",
               params->n_blocks, n);
    answer->block_of = AP_NEW_N(arena, g->n_nodes, int);
    for (int i = 0; i < g->n_nodes; i++)
        answer->block_of[i] = -1;
    answer->stats = "";
    enum ap_exit code = algo->run(arena, g, params, answer, &err);
    if (code != AP_OK)
        ap_die(code, "%s", err.msg);
    assert(is_ordered(g, ids, n, answer->block_of));
    ap_blocks_carry(arena, g, answer->n, answer->block_of);
    struct ap_blocks b = answer->more;
    b.algorithm = algo->name;
    b.n = answer->n;
    b.block_of = answer->block_of;
    if (ap_blocks_check(arena, g, &b, &err))
        ap_die(AP_BAD_INPUT, "%s: %s; the graph's phases have no order by blocks",
               doc->file, err.msg);
    return b;
}

static const char *history(struct ap_arena *arena, const struct ap_blocks *b)
{
    if (!b->objective_unit)
        return ap_arena_printf(arena, ",\"algorithm\":\"%s\"", b->algorithm);
    return ap_arena_printf(arena,
                           ",\"algorithm\":\"%s\",\"objective\":%.9g,\"bound\":%.9g",
                           b->algorithm, b->objective, b->bound);
}

int main(int argc, char **argv)
{
    struct ap_arena arena = {0};
    struct request r = {.params.alpa.eps = 0.5,
                        .params.rhino.level = 2,
                        .params.rannc = {.microbatches = 32,
                                         .memory_margin = 0.1,
                                         .optimizer_factor = -INFINITY}};
    struct ap_tool tool = {.name = "ap-coarsen",
                           .summary = "cut a graph into an ordered list of blocks",
                           .operand = "[FILE]",
                           .opts = options(&arena, &r)};
    struct coarsen_answer answer = {0};
    struct ap_doc doc;
    struct ap_graph graph;

    ap_tool_start(&tool, argc, argv);
    const struct coarsen_algo *algo = &algos[r.algorithm];
    check_options(&tool, algo);
    if (r.params.alpa.cost == COARSEN_COST_OPTIMIZED &&
        (ap_tool_given(&tool, "eps") || ap_tool_given(&tool, "balance")))
        ap_die_usage("--eps and --balance are for --cluster-cost paper");
    if (!algo->needs_cluster && (r.cluster_path || r.params.memory_bytes))
        ap_die_usage("%s looks at no cluster: --cluster and --memory are not for it",
                     algo->name);
    r.params.n_blocks = number_of_blocks(r.blocks);
    ap_tool_read_graph(&tool, &arena, &doc, &graph);
    r.params.doc = &doc;
    set_cluster(&arena, &r, algo, &doc);
    double start = ap_now_sec();
    struct ap_blocks blocks = run(&arena, algo, &doc, &graph, &r.params, &answer);
    double sec = ap_now_sec() - start;

    /* what was derived from older blocks goes */
    struct ap_new_section out[] = {{.name = "cluster"},
                                   {.name = "blocks"},
                                   {.name = "stages"},
                                   {.name = "pipeline"},
                                   {.name = "placement"}};
    bool keep = !r.params.cluster;
    if (r.params.cluster)
        ap_cluster_to_json(r.params.cluster, &out[0].json);
    ap_blocks_to_json(&graph, &blocks, ap_blocks_sum(&arena, &graph, &blocks),
                      &out[1].json);
    ap_tool_write(&tool, &doc, out + keep, 5 - keep, history(&arena, &blocks));
    const char *stats =
        ap_arena_printf(&arena,
                        ",\"algorithm\":\"%s\",\"nodes\":%d,\"blocks\":%d,"
                        "\"coarsen_sec\":%.6f%s",
                        algo->name, graph.n_nodes, blocks.n, sec, answer.stats);
    return ap_tool_finish(&tool, stats);
}
