/* Private to ap-rewrite: the document's sharding plan. */
#ifndef REWRITE_H
#define REWRITE_H

#include "program/program.h"
#include "tool/tool.h"

struct job {
    struct ap_graph graph;
    struct ap_nests nests;
    struct ap_sharding sharding;
    struct ap_cluster cluster;
    struct ap_cost cost; /* ap_cost_free */
    struct ap_conversions conv;
    struct ap_program prog;
};

/* Graph, plan (the trivial one of a single device without), cluster and cost model; ends
 * the tool when something is bad. */
void rewrite_set_up(struct ap_arena *arena, const struct ap_doc *doc, struct job *job);

#endif
