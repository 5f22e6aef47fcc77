/* Two layers in two blocks, and pipelined plans of them written by hand. For tests. */
#ifndef AP_TEST_STAGE_CASE_H
#define AP_TEST_STAGE_CASE_H

#include "pipeline/pipeline_price.h"
#include "sample_graphs.h"

struct stage_case {
    struct sample sample;
    struct ap_blocks blocks;
    struct ap_cluster cluster; /* 8 devices on 1 host, or as given */
};

/* The first sample graph; the first layer's dot and maximum are block 0. */
static inline int load_stage_case(struct ap_arena *arena, struct stage_case *c,
                                  struct ap_err *err)
{
    static const int first[] = {3, 6}, second[] = {7, 8, 10};
    struct ap_doc doc;
    const char *empty = "{\"autopar\":1}";

    if (load_sample(arena, sample_graphs[0].json, &c->sample, err) ||
        ap_doc_parse(arena, "empty", empty, strlen(empty), &doc, err) ||
        ap_cluster_get(arena, &doc, NULL, 16, &c->cluster, err))
        return -1;
    int n = c->sample.g.n_nodes, *of = AP_NEW_N(arena, n, int);
    for (int i = 0; i < n; i++)
        of[i] = -1;
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        of[first[i]] = 0;
    for (size_t i = 0; i < sizeof second / sizeof *second; i++)
        of[second[i]] = 1;
    ap_blocks_carry(arena, &c->sample.g, 2, of);
    c->blocks = (struct ap_blocks){.algorithm = "given", .n = 2, .block_of = of};
    return ap_blocks_check(arena, &c->sample.g, &c->blocks, err);
}

/* Reads a section from its text. */
static inline int read_stages_text(struct ap_arena *arena, const struct stage_case *c,
                                   const char *text, struct ap_stages *s,
                                   struct ap_err *err)
{
    const struct ap_staged_graph of = {&c->sample.g, NULL, &c->blocks, &c->cluster};
    return ap_stages_from_text(arena, text, strlen(text), &of, s, err);
}

#endif
