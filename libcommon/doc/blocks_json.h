/* Section "blocks". */
#ifndef AP_BLOCKS_JSON_H
#define AP_BLOCKS_JSON_H

#include "doc/doc.h"
#include "graph/blocks.h"

void ap_blocks_to_json(const struct ap_graph *g, const struct ap_blocks *b,
                       const struct ap_block_sum *sums, struct ap_buf *out);
/* Reads and checks (ap_blocks_check). */
int ap_blocks_from_json(struct ap_arena *arena, const json_t *o, const struct ap_at *at,
                        const struct ap_graph *g, struct ap_blocks *b,
                        struct ap_err *err);

#endif
