/* Text for people: bytes that are safe to print, and the name that was meant. */
#ifndef AP_TEXT_H
#define AP_TEXT_H

#include "base/base.h"

/*
 * Appends the len bytes at s to out, with \xNN for control bytes and for bytes that are
 * no UTF-8; line ends stay. At most `most` bytes of s, then "...".
 */
void ap_text_shown(const char *s, size_t len, size_t most, struct ap_buf *out);

/* The closest of the names tried to what somebody wrote. Start with {.want = ...}. */
struct ap_nearest {
    const char *want;
    const char *name; /* NULL: none is close */
    int distance;
};
/* The first of the closest names is kept. Quadratic in the names' lengths. */
void ap_nearest_try(struct ap_nearest *n, const char *name);
/* "; did you mean 'PREFIXname'?", or "" where nothing is close; within buf of 160. */
enum { AP_MEANT = 160 };
const char *ap_nearest_meant(const struct ap_nearest *n, const char *prefix, char *buf);

#endif
