/*
 * ap-shard --serve for a program that has read the document itself and links ap-shard's
 * objects: ap-stage, which asks for thousands of prices. The protocol is that of the
 * command (ap-shard(1)); what is saved is reading the document twice, and its second
 * copy.
 */
#ifndef SHARD_SERVER_H
#define SHARD_SERVER_H

#include "cost/cost.h"
#include "doc/doc.h"
#include "graph/blocks.h"
#include "layout/nest.h"

/* ---- serve_blocks.c: which runs of blocks are equal ---- */

/*
 * [lo * n + hi]: the lowest start of a run that is equal to the blocks lo to hi. Two runs
 * are equal when their parts of the graph (ap_subgraph) are: operators, shapes,
 * attributes, roles, phases, wiring, what comes from outside, and what is used outside.
 * Names and the sharing of constants do not count. split: [node], whether a microbatch
 * splits the value: runs that differ in that are not equal; NULL: it does not count.
 * Arena.
 */
const int *serve_twins(struct ap_arena *arena, const struct ap_graph *g,
                       const struct ap_blocks *blocks, const bool *split);

/* ---- the server ---- */

struct shard_server {
    const struct ap_doc *doc;
    const struct ap_graph *graph; /* grouped */
    const struct ap_nests *nests;
    const struct ap_cluster *cluster; /* NULL: --cluster's, or the document's */
};

/*
 * Serves as `ap-shard ARGS`, --serve among them, on n pipes {requests, answers}, with one
 * process for each; the calling one, forked for this, is the first and ends when
 * all have ended. Pipes lie above standard error. Dies as the command would.
 */
_Noreturn void shard_server_run(const struct shard_server *server, int argc, char **argv,
                                int n, const int (*pipes)[2]);

#endif
