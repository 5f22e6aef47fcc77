/* A fast reader for values of plain JSON. */
#ifndef AP_FAST_JSON_H
#define AP_FAST_JSON_H

#include <jansson.h>

/*
 * The value that jansson's json_loadb reads from plain text: members are unique, names
 * have at most 63 bytes, strings are ASCII without escapes, numbers have at most 18
 * digits, or at most 40 bytes if they are not integers, and there are at most 64 levels.
 * NULL for all other text, valid or not: use jansson. Equal strings and numbers may be
 * one value, which must not be changed. The caller decrefs.
 */
json_t *ap_fast_json_value(const char *text, size_t len);

#endif
