/*
 * Numbers by name: a map from strings of bytes to ints. The strings belong to the caller
 * and must outlive the map. Expected O(length) per call.
 */
#ifndef AP_NAMES_H
#define AP_NAMES_H

#include "base/index_map.h"

struct ap_name {
    const char *s;
    size_t len;
    int value;
};

/* Starts zeroed; the owner calls ap_names_free. */
struct ap_names {
    struct ap_name *name; /* in the order in which they were put */
    int n, cap;
    struct ap_index index;
};

void ap_names_free(struct ap_names *names);
/* Forgets all names, keeps the memory. */
void ap_names_clear(struct ap_names *names);
/* The value of a name, or -1. */
int ap_names_get(const struct ap_names *names, const char *s, size_t len);
/* Adds a name that is not there. */
void ap_names_put(struct ap_names *names, const char *s, size_t len, int value);
/* Changes the value of a name that is there. */
void ap_names_set(struct ap_names *names, const char *s, size_t len, int value);

#endif
