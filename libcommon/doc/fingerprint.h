/* Fingerprints, by which a document recognises the graph and the cluster of a plan. */
#ifndef AP_FINGERPRINT_H
#define AP_FINGERPRINT_H

#include "doc/doc.h"

/*
 * 16 hexadecimal digits, equal for two documents with the same graph (operators, shapes,
 * attributes, operands, results; not names). They are the same on every machine, and lie
 * in the arena.
 */
const char *ap_graph_fingerprint(struct ap_arena *arena, const struct ap_graph *g);

#endif
