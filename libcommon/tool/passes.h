/* Warnings of a planner about a pipe that leaves out a pass. */
#ifndef AP_PASSES_H
#define AP_PASSES_H

#include "cost/cost.h"
#include "doc/doc.h"

/*
 * Warns, with one line each, that
 * - the graph has attention that is not fused, though the cluster's devices have kernels
 *   for it: ap-fuse is missing;
 * - with `searched`, a large graph repeats its layers and the document has no families,
 *   so that the search plans every layer by itself: ap-prune is missing.
 * Both tests are cheap and look at shapes alone; they do not run ap-fuse's or ap-prune's
 * search.
 */
void ap_passes_warn(const struct ap_doc *doc, const struct ap_graph *g,
                    const struct ap_cluster *c, bool searched);

#endif
