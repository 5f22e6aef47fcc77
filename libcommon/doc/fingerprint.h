/* Fingerprints, by which documents recognise what a plan was made for. */
#ifndef AP_FINGERPRINT_H
#define AP_FINGERPRINT_H

#include "doc/doc.h"

/*
 * 16 hexadecimal digits that tell whether two documents speak of the same graph
 * (operators, shapes, attributes, operands, results; not names). The same on every
 * machine. In the arena.
 */
const char *ap_graph_fingerprint(struct ap_arena *arena, const struct ap_graph *g);

#endif
