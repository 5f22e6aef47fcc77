/* Section "blocks". */
#ifndef AP_BLOCKS_JSON_H
#define AP_BLOCKS_JSON_H

#include "doc/doc.h"
#include "graph/blocks.h"

void ap_blocks_to_json(const struct ap_graph *g, const struct ap_blocks *b,
                       const struct ap_block_sum *sums, struct ap_buf *out);
/*
 * Reads and checks (ap_blocks_check). Written by hand, the section may be a cut of the
 * forward pass: "block_of" with -1 or null at all other nodes, or "cut", the nodes (names
 * or ids) with which blocks 1, 2, ... begin in the program's order. ap_blocks_carry
 * places all nodes but those of ap_blocks_operators then, whatever a cut says of them.
 */
int ap_blocks_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                        const struct ap_graph *g, struct ap_blocks *b,
                        struct ap_err *err);

#endif
