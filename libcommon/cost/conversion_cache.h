/*
 * Prices of conversions by shape and layouts, which searches look up millions of times.
 */
#ifndef AP_CONVERSION_CACHE_H
#define AP_CONVERSION_CACHE_H

#include "cost/convert.h"
#include "layout/layout.h"

struct ap_conversion_cache;

/* A cache of conversions on a mesh with this number of axes; the caller frees it. */
struct ap_conversion_cache *ap_conversion_cache_new(int n_axes);
void ap_conversion_cache_free(struct ap_conversion_cache *cache);

struct ap_cached_conversion {
    double sec;
    int n_steps; /* -1: only sec is known yet */
    const struct ap_step *steps;
    int n_words; /* of the key */
    const uint64_t *words;
};

/*
 * The entry of a conversion, made if it is new (then *found is false). The pointer is
 * valid until the next call. NULL if the conversion cannot be a key (strides beyond
 * 2^48).
 */
struct ap_cached_conversion *ap_conversion_cache_get(struct ap_conversion_cache *cache,
                                                     const struct ap_shape *shape,
                                                     const struct ap_layout *from,
                                                     const struct ap_layout *to,
                                                     bool *found);
/* Keeps a copy of the path's steps in the entry. */
void ap_conversion_cache_put_path(struct ap_conversion_cache *cache,
                                  struct ap_cached_conversion *entry,
                                  const struct ap_path *path);

#endif
