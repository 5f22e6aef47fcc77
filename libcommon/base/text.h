/* Text for people: bytes that are safe to print, and the name that was meant. */
#ifndef AP_TEXT_H
#define AP_TEXT_H

#include "base/base.h"

/*
 * Appends the len bytes at s to out, with \xNN for control bytes and for bytes that are
 * not UTF-8; line ends stay. At most `most` bytes of s, then "...".
 */
void ap_text_shown(const char *s, size_t len, size_t most, struct ap_buf *out);

/* Finds the name that is closest to a word that a person wrote, among the names tried.
 * Start with {.want = ...}. */
struct ap_nearest {
    const char *want;
    const char *name; /* NULL: none is close */
    int distance;
};
/* The first of the closest names is kept. Quadratic in the names' lengths. */
void ap_nearest_try(struct ap_nearest *n, const char *name);
/* Writes "; did you mean 'PREFIXname'?", or "" if no name is close, to buf of AP_MEANT
 * bytes. */
enum { AP_MEANT = 160 };
const char *ap_nearest_meant(const struct ap_nearest *n, const char *prefix, char *buf);

#endif
