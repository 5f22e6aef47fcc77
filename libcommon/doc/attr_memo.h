/* Attributes of nodes that say the same are one in memory. */
#ifndef AP_ATTR_MEMO_H
#define AP_ATTR_MEMO_H

#include "graph/graph.h"

/* Zero-initialise; the owner calls ap_attr_memo_free. */
struct ap_attr_memo {
    struct ap_attr_entry *slot;
    size_t n, n_slots;
};

/*
 * What ap_attrs_from_json makes of the object in text, for a node of this operator and
 * shape; the same pointer for the same question, in the arena. NULL: the text is not
 * plain JSON (fast_json.h), or wrong.
 */
const struct ap_attrs *ap_attr_memo_get(struct ap_attr_memo *memo, struct ap_arena *arena,
                                        enum ap_op op, const struct ap_shape *shape,
                                        const char *text, size_t len);
void ap_attr_memo_free(struct ap_attr_memo *memo);

#endif
