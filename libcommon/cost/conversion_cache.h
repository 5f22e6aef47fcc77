/* What conversions cost, by shape and layouts: the searches ask for the same millions of
 * times. */
#ifndef AP_CONVERSION_CACHE_H
#define AP_CONVERSION_CACHE_H

#include "cost/conversion_bound.h"
#include "cost/convert.h"
#include "layout/layout.h"

struct ap_conversion_cache;

/* Of conversions on a mesh with this many axes; the caller frees it. */
struct ap_conversion_cache *ap_conversion_cache_new(int n_axes);
void ap_conversion_cache_free(struct ap_conversion_cache *cache);

/* Bounds on what is left of conversions, which live as long as the cache. */
struct ap_bounds *ap_conversion_cache_bounds(struct ap_conversion_cache *cache);

struct ap_cached_conversion {
    double sec;
    int n_steps; /* -1: only sec is known yet */
    const struct ap_step *steps;
    int n_words; /* of the key */
    const uint64_t *words;
};

/*
 * The entry of a conversion, made if it is new (*found says). The pointer holds until the
 * next call. NULL when the conversion cannot be a key (strides beyond 2^48).
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
