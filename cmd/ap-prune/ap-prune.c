/*
 * ap-prune: finds the repeated parts of a graph. An algorithm of the table proposes
 * families, and libcommon checks that their instances are isomorphic. `none` needs no
 * file of its own: no families.
 */
#include "prune.h"

#include "doc/families_json.h"
#include "tool/tool.h"

static int prune_none(struct ap_arena *arena, const struct ap_graph *g,
                      const struct prune_params *params, struct ap_families *f,
                      struct ap_err *err)
{
    (void)arena;
    (void)g;
    (void)params;
    (void)f;
    (void)err;
    return 0;
}

struct prune_algo {
    struct ap_choice choice;
    prune_fn *run;
    bool needs_names, needs_sizes; /* uses --depth-order and --max-depth, --min-* */
};

static const struct prune_algo algos[] = {
    {{"scope", "name scopes that repeat, and what repeats inside"},
     prune_scope,
     true,
     true},
    {{"structure", "isomorphic regions, whatever their names"},
     prune_structure,
     false,
     true},
    {{"none", "no families"}, prune_none, false, false},
    {{NULL, NULL}, NULL, false, false},
};

static const struct ap_choice orders[] = {
    {"deep", "from the deepest scopes up; families inside families are kept"},
    {"shallow", "from the outermost scopes down, not into those that repeat"},
    {NULL, NULL},
};

/* Options that the chosen algorithm does not use are refused. */
static void check_options(const struct ap_tool *tool, const struct prune_algo *algo)
{
    static const struct {
        const char *name;
        bool names;
    } rows[] = {
        {"depth-order", true},
        {"max-depth", true},
        {"min-duplicate", false},
        {"min-nodes", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (ap_tool_given(tool, rows[i].name) &&
            !(rows[i].names ? algo->needs_names : algo->needs_sizes))
            ap_die_usage("--%s is not for %s", rows[i].name, algo->choice.name);
}

static const char *stats(struct ap_arena *arena, const struct ap_graph *g,
                         const struct ap_families *f, double sec)
{
    struct ap_families_summary sum;

    ap_families_sum(arena, g, f, &sum);
    return ap_arena_printf(
        arena,
        ",\"prune_sec\":%.6f,\"nodes\":%d,\"families\":%d,\"outer\":%d,\"distinct\":%d,"
        "\"instances\":%d,\"nodes_inside\":%lld,\"weights_inside\":%lld,\"weights\":%lld,"
        "\"trimmed\":%d",
        sec, g->n_nodes, f->n, sum.n_outer, sum.n_distinct, sum.n_instances,
        (long long)sum.nodes, (long long)sum.weights, (long long)sum.all_weights,
        f->n_trimmed);
}

int main(int argc, char **argv)
{
    int row = 0, order = 0;
    int64_t min_duplicate = 2, min_nodes = 8, max_depth = 20;
    const struct ap_opt opts[] = {
        {"algorithm", AP_OPT_CHOICE, &row, "NAME",
         "how repetition is found; --algorithm=help lists the ways", &algos[0].choice,
         sizeof(algos[0]), 0, 0, NULL},
        {"depth-order", AP_OPT_CHOICE, &order, "NAME",
         "order in which scope visits the names", orders, sizeof(orders[0]), 0, 0, NULL},
        {"max-depth", AP_OPT_INT, &max_depth, "N", "names have at most N components (20)",
         NULL, 0, 1, 1000000, NULL},
        {"min-duplicate", AP_OPT_INT, &min_duplicate, "N",
         "a family has at least N instances (2)", NULL, 0, 2, 1000000, NULL},
        {"min-nodes", AP_OPT_INT, &min_nodes, "N", "an instance has at least N nodes (8)",
         NULL, 0, 1, 1000000, NULL},
        {0},
    };
    struct ap_tool tool = {.name = "ap-prune",
                           .summary = "find what a graph repeats",
                           .operand = "[FILE]",
                           .opts = opts};
    struct ap_arena arena = {0};
    struct ap_doc doc;
    struct ap_graph g;
    struct ap_families families = {0};
    struct ap_new_section section = {.name = "families"};
    struct ap_err err = {0};

    ap_tool_start(&tool, argc, argv);
    check_options(&tool, &algos[row]);
    ap_tool_read_graph(&tool, &arena, &doc, &g);
    const struct prune_params params = {.min_duplicate = (int)min_duplicate,
                                        .min_nodes = (int)min_nodes,
                                        .max_depth = (int)max_depth,
                                        .order = order};
    double start = ap_now_sec();
    if (algos[row].run(&arena, &g, &params, &families, &err))
        ap_die(AP_BAD_INPUT, "%s: %s", doc.file, err.msg);
    double sec = ap_now_sec() - start;
    families.algorithm = algos[row].choice.name;
    if (ap_families_check(&arena, &g, &families, &err))
        ap_die(AP_BAD_INPUT, "%s: %s: wrong families, a bug: %s", doc.file,
               families.algorithm, err.msg);
    ap_families_to_json(&arena, &g, &families, &section.json);
    ap_tool_write(&tool, &doc, &section, 1,
                  ap_arena_printf(&arena, ",\"algorithm\":\"%s\"", families.algorithm));
    return ap_tool_finish(&tool, stats(&arena, &g, &families, sec));
}
