/* The memo of ap_convert: what conversions cost, by shape and layouts. */
#ifndef AP_MEMO_H
#define AP_MEMO_H

#include "layout/layout.h"
#include "cost/convert.h"

struct ap_memo;

/* Of conversions on a mesh with this many axes; freed by ap_memo_free. */
struct ap_memo *ap_memo_new(int n_axes);
void ap_memo_free(struct ap_memo *memo);

struct ap_memo_entry {
    uint64_t hash;
    double sec;
    int n_steps; /* -1: only sec is known yet */
    const struct ap_step *steps;
    uint32_t n_words;
    const uint64_t *words;
};

/*
 * The entry of a conversion, made if it is new (*found says). The pointer holds until the
 * next call. NULL when the conversion cannot be a key (strides beyond 2^48).
 */
struct ap_memo_entry *ap_memo_get(struct ap_memo *memo, const struct ap_shape *shape,
                                  const struct ap_layout *from,
                                  const struct ap_layout *to, bool *found);
/* Keeps a copy of the steps in the entry. */
void ap_memo_put_path(struct ap_memo *memo, struct ap_memo_entry *entry,
                      const struct ap_path *path);

#endif
